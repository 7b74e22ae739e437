//! Instances of graphs, and what their copies between device and program pass through.
//!
//! A graph cannot read what comes with its next launch out of memory of the host: a launch before may still read it. So what comes is copied, in the order of
//! the stream, into memory of the device that belongs to the instance, and copies of the graph begin there; those to the program end there, and
//! are copied on behind the launch. Launches of one instance wait for each other.

use super::failed;
use super::machine::{CudaMachine, OneDevice};
use super::replay::{Kept, Passage, capture};
use crate::body::Body;
use crate::failure::Failure;
use crate::graph::{Content, Graph};
use crate::work::{Rows, Work};
use hinterland_gpu::lend::Lent;
use hinterland_gpu::lend::memory::Scratch;
use hinterland_gpu::lend::order::{Event, Instance};
use std::collections::HashMap;
use std::sync::Arc;

/// Memory of a device that an instance has, and what its last user's work ends with.
struct Own {
    scratch: Scratch,
    last: Event,
}

struct Exec {
    device: u32,
    instance: Instance,
    graph: Arc<Graph>,
    own: Option<Own>,
    /// What it uses besides. That of an instance that is updated stays as well: a launch of it may still run.
    _kept: Kept,
}

/// The instances of a session.
#[derive(Default)]
pub(super) struct Execs {
    execs: HashMap<u32, Exec>,
    /// Memory of instances that are gone, by device. Work may still use it, which whoever gets it next waits for.
    free: HashMap<u32, Vec<Own>>,
}

impl Execs {
    /// Memory for what passes between device and program, of at least so many bytes.
    fn own(&mut self, device: u32, lent: &Lent, bytes: u64) -> Result<Option<Own>, Failure> {
        if bytes == 0 {
            return Ok(None);
        }
        let free = self.free.entry(device).or_default();
        if let Some(place) = free.iter().position(|own| own.scratch.bytes >= bytes) {
            return Ok(Some(free.swap_remove(place)));
        }
        let scratch = lent.scratch(bytes.next_power_of_two()).map_err(failed)?;
        Ok(Some(Own { scratch, last: lent.event(false).map_err(failed)? }))
    }

    fn give_back(&mut self, device: u32, own: Option<Own>) {
        self.free.entry(device).or_default().extend(own);
    }
}

/// Bytes that pass in and out in one launch.
fn passing(graph: &Graph) -> u64 {
    // Both have a limit far below.
    graph.needs().bytes + graph.needs().bytes_out
}

fn passage(own: Option<&Own>, graph: &Graph) -> Passage {
    let start = own.map_or(0, |own| own.scratch.address);
    Passage { next_in: start, next_out: start + graph.needs().bytes }
}

impl CudaMachine {
    pub(super) fn make_exec(&mut self, exec: u32, graph: &Arc<Graph>) -> Result<(), Failure> {
        let device = graph.device;
        let Self { devices, programs, blases, execs, events, .. } = self;
        let OneDevice { lent, spare, .. } = &mut devices[device as usize];
        let own = execs.own(device, lent, passing(graph))?;
        let made = capture(lent, programs, blases, spare, events, graph, passage(own.as_ref(), graph));
        let made = made.and_then(|(captured, kept)| {
            let instance = lent.instantiate(&captured).map_err(failed);
            lent.end_graph(captured);
            instance.map(|instance| (instance, kept))
        });
        match made {
            Ok((instance, _kept)) => {
                let graph = Arc::clone(graph);
                execs.execs.insert(exec, Exec { device, instance, graph, own, _kept });
                Ok(())
            }
            Err(failure) => {
                execs.give_back(device, own);
                Err(failure)
            }
        }
    }

    pub(super) fn change_exec(&mut self, exec: u32, graph: &Arc<Graph>) -> Result<(), Failure> {
        let Self { devices, programs, blases, execs, events, .. } = self;
        let known = execs.execs.get(&exec).ok_or_else(|| Failure::unknown("instance of a graph", exec))?;
        let (device, has) = (known.device, known.own.as_ref().map_or(0, |own| own.scratch.bytes));
        let OneDevice { lent, spare, .. } = &mut devices[device as usize];
        let larger = if passing(graph) > has { execs.own(device, lent, passing(graph))? } else { None };
        let Some(known) = execs.execs.get_mut(&exec) else { return Ok(()) };
        let own = larger.as_ref().or(known.own.as_ref());
        let captured = capture(lent, programs, blases, spare, events, graph, passage(own, graph));
        let outcome = captured.and_then(|(captured, kept)| {
            let outcome = if lent.update(&known.instance, &captured) {
                Ok(())
            } else {
                lent.instantiate(&captured).map_err(failed).map(|instance| {
                    lent.end_instance(std::mem::replace(&mut known.instance, instance));
                })
            };
            lent.end_graph(captured);
            known._kept.extend(kept);
            outcome
        });
        let unused = if outcome.is_ok() {
            known.graph = Arc::clone(graph);
            match larger {
                Some(larger) => known.own.replace(larger),
                None => None,
            }
        } else {
            larger
        };
        execs.give_back(device, unused);
        outcome
    }

    pub(super) fn end_exec(&mut self, exec: u32) {
        if let Some(known) = self.execs.execs.remove(&exec) {
            self.devices[known.device as usize].lent.end_instance(known.instance);
            self.execs.give_back(known.device, known.own);
        }
    }

    /// Launches an instance; each name of the content gets its bytes or an error.
    pub(super) fn launch_exec(&mut self, exec: u32, stream: u32, content: &Content) -> Result<(), Failure> {
        let mut named = 0;
        let outcome = self.launch_with(exec, stream, content, &mut named);
        if let Err(failure) = &outcome {
            for transfer in content.transfers.iter().skip(named) {
                self.outbox.no_bytes(*transfer, failure.error);
            }
        }
        outcome
    }

    fn launch_with(
        &mut self,
        exec: u32,
        name: u32,
        content: &Content,
        named: &mut usize,
    ) -> Result<(), Failure> {
        let device = self.ready(name)?;
        let lent = Arc::clone(&self.devices[device as usize].lent);
        let known =
            self.execs.execs.get(&exec).ok_or_else(|| Failure::unknown("instance of a graph", exec))?;
        let start = known.own.as_ref().map(|own| own.scratch.address);
        let graph = Arc::clone(&known.graph);
        if let Some(own) = &known.own {
            lent.wait(self.stream(name)?, &own.last).map_err(failed)?;
        }
        if let (Some(start), false) = (start, content.bytes.is_empty()) {
            let bytes = content.bytes.len() as u64;
            self.copy_in(name, Rows::one(start, bytes), Body::Own(&content.bytes))?;
        }
        let known =
            self.execs.execs.get(&exec).ok_or_else(|| Failure::unknown("instance of a graph", exec))?;
        lent.launch_graph(&known.instance, self.stream(name)?).map_err(failed)?;
        self.done.launches += graph.launches();
        if let Some(start) = start {
            self.copies_out(&graph, name, start + graph.needs().bytes, content, named)?;
            let own = self.execs.execs.get(&exec).and_then(|known| known.own.as_ref());
            if let Some(own) = own {
                lent.record(&own.last, self.stream(name)?).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Sends on what a launch has put into memory of the instance from `next` on.
    fn copies_out(
        &mut self,
        graph: &Graph,
        name: u32,
        mut next: u64,
        content: &Content,
        named: &mut usize,
    ) -> Result<(), Failure> {
        for (_, work) in graph.work_with(content) {
            if let Work::CopyOut { from, transfer } = work {
                *named += 1;
                if let Err(failure) = self.copy_out(name, Rows::one(next, from.bytes()), transfer) {
                    if self.watcher.refuse(transfer) {
                        self.outbox.no_bytes(transfer, failure.error);
                    }
                    return Err(failure);
                }
                next += from.bytes();
            }
        }
        Ok(())
    }
}
