//! Instances of graphs, and what their copies between device and program pass through.
//!
//! A graph cannot read what comes with its next launch out of memory of the host: a launch before may still read it. So what comes is copied, in the order of
//! the stream, into memory of the device that belongs to the instance, and copies of the graph begin there; those to the program end there, and
//! are copied on behind the launch. Launches of one instance wait for each other.

use super::failed;
use super::machine::{CudaMachine, OneDevice};
use super::replay::{Capture, Kept, Passage, Wanted, capture};
use super::shapes::shape;
use crate::body::Body;
use crate::failure::{Failure, number};
use crate::graph::{Content, Graph};
use crate::work::{Rows, Work};
use hinterland_gpu::lend::Lent;
use hinterland_gpu::lend::memory::Scratch;
use hinterland_gpu::lend::order::{Captured, Event, GraphNode, Instance};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Most memory of a device that all instances of a session have, which counts in no grant: four that copy as much as one may.
const SCRATCH_BYTES_MAX: u64 = 2 << 30;

/// Memory of a device that an instance has, and what its last user's work ends with.
struct Own {
    scratch: Scratch,
    last: Event,
}

struct Exec {
    device: u32,
    instance: Instance,
    /// What the instance was made of: the driver names its nodes by those of that.
    captured: Captured,
    /// The node of each command of the graph, as far as that is known.
    nodes: Vec<Option<GraphNode>>,
    /// Commands whose nodes are switched off.
    off: BTreeSet<usize>,
    /// Whether the driver refused a change of one node: the next launch has it take all that the graph says.
    is_behind: bool,
    own: Option<Own>,
    /// What it uses besides. That of an instance that is updated stays as well: a launch of it may still run.
    kept: Kept,
}

impl Exec {
    fn is_switched(&self, lent: &Lent, step: usize, is_on: bool) -> bool {
        let node = self.nodes.get(step).copied().flatten();
        node.is_some_and(|node| lent.switch_node(&self.instance, node, is_on))
    }

    /// Has the driver switch a node of the instance; whether it has.
    fn switch_step(&mut self, lent: &Lent, step: usize, is_on: bool) -> bool {
        if !self.is_switched(lent, step, is_on) {
            return false;
        }
        if is_on {
            self.off.remove(&step);
        } else {
            self.off.insert(step);
        }
        true
    }

    /// Has the driver switch nodes of the instance as the graph says; whether it has. Those that it did switch are known also if it refuses another.
    fn switch(&mut self, lent: &Lent, graph: &Graph) -> bool {
        let wanted: BTreeSet<usize> = graph.off().collect();
        let others: Vec<usize> = wanted.symmetric_difference(&self.off).copied().collect();
        others.into_iter().all(|step| self.switch_step(lent, step, !wanted.contains(&step)))
    }
}

/// The instances of a session.
#[derive(Default)]
pub(super) struct Execs {
    execs: HashMap<u32, Exec>,
    /// Memory of instances that are gone, by device. Work may still use it, which whoever gets it next waits for.
    free: HashMap<u32, Vec<Own>>,
    /// Bytes of all memory of instances, by device, also of what is free: it is given back when others need it, or the session ends.
    scratch_bytes: HashMap<u32, u64>,
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
        let together = self.scratch_bytes.entry(device).or_default();
        let bytes = bytes.next_power_of_two();
        // What is free is too small, each by itself. What work still uses stays.
        while *together + bytes > SCRATCH_BYTES_MAX
            && let Some(place) = free.iter().position(|own| lent.is_done(&own.last).unwrap_or(false))
        {
            let Own { scratch, last } = free.swap_remove(place);
            *together -= scratch.bytes;
            lent.end_event(last);
            lent.end_scratch(scratch).map_err(failed)?;
        }
        if *together + bytes > SCRATCH_BYTES_MAX {
            let words = format!(
                "copies between device and program of all instances of graphs pass through {SCRATCH_BYTES_MAX} bytes at most (hint: end instances that are launched no more, or copy outside of graphs)"
            );
            return Err(Failure::new(number::OUT_OF_MEMORY, words));
        }
        let scratch = lent.scratch(bytes).map_err(failed)?;
        *together += bytes;
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
    pub(super) fn make_exec(&mut self, exec: u32, graph: &Graph) -> Result<(), Failure> {
        let device = graph.device;
        let lent = Arc::clone(&self.devices[device as usize].lent);
        let own = self.execs.own(device, &lent, passing(graph))?;
        let made = self.make(device, graph, passage(own.as_ref(), graph));
        match made {
            Ok(made) => drop(self.execs.execs.insert(exec, Exec { own, ..made })),
            Err(failure) => {
                self.execs.give_back(device, own);
                return Err(failure);
            }
        }
        Ok(())
    }

    fn capture(&mut self, device: u32, wanted: Wanted<'_>) -> Result<Capture, Failure> {
        let Self { devices, programs, blases, events, .. } = self;
        let OneDevice { lent, spare, .. } = &mut devices[device as usize];
        capture(lent, programs, blases, spare, events, wanted)
    }

    /// All commands of a graph; nothing if that fails, and ones that launches leave out may be why: what they name may be gone.
    fn capture_whole(
        &mut self,
        device: u32,
        graph: &Graph,
        passage: Passage,
    ) -> Result<Option<Capture>, Failure> {
        match self.capture(device, Wanted { graph, has_off: true, passage }) {
            Err(_) if graph.off().next().is_some() => Ok(None),
            whole => whole.map(Some),
        }
    }

    /// An instance of a graph, without memory of its own.
    fn make(&mut self, device: u32, graph: &Graph, passage: Passage) -> Result<Exec, Failure> {
        if let Some(whole) = self.capture_whole(device, graph, passage)? {
            let mut made = self.instance_of(device, whole)?;
            let lent = Arc::clone(&self.devices[device as usize].lent);
            if made.switch(&lent, graph) {
                return Ok(made);
            }
            lent.end_instance(made.instance);
            lent.end_graph(made.captured);
        }
        // What a driver does not switch off is left out.
        let rest = self.capture(device, Wanted { graph, has_off: false, passage })?;
        self.instance_of(device, rest).map(|made| Exec { off: graph.off().collect(), ..made })
    }

    fn instance_of(&self, device: u32, capture: Capture) -> Result<Exec, Failure> {
        let lent = &self.devices[device as usize].lent;
        let Capture { captured, kept, nodes } = capture;
        match lent.instantiate(&captured) {
            Ok(instance) => {
                let (off, is_behind, own) = (BTreeSet::new(), false, None);
                Ok(Exec { device, instance, captured, nodes, off, is_behind, own, kept })
            }
            Err(failure) => {
                lent.end_graph(captured);
                Err(failed(failure))
            }
        }
    }

    /// Has an instance do what a graph says, all of whose commands are of the kinds and in the order of the one that it has if they are alike.
    pub(super) fn change_exec(&mut self, exec: u32, graph: &Graph, are_alike: bool) -> Result<(), Failure> {
        let known =
            self.execs.execs.get(&exec).ok_or_else(|| Failure::unknown("instance of a graph", exec))?;
        let (device, has) = (known.device, known.own.as_ref().map_or(0, |own| own.scratch.bytes));
        let lent = Arc::clone(&self.devices[device as usize].lent);
        let larger = if passing(graph) > has { self.execs.own(device, &lent, passing(graph))? } else { None };
        let known = self.execs.execs.get(&exec).and_then(|known| known.own.as_ref());
        let place = passage(larger.as_ref().or(known), graph);
        let outcome = self.update_exec(exec, &lent, graph, place, are_alike);
        let known = self.execs.execs.get_mut(&exec).filter(|_| outcome.is_ok());
        let unused = match (known, larger) {
            (Some(known), larger) => {
                known.is_behind = false;
                if larger.is_some() { std::mem::replace(&mut known.own, larger) } else { None }
            }
            (None, larger) => larger,
        };
        self.execs.give_back(device, unused);
        outcome
    }

    fn update_exec(
        &mut self,
        exec: u32,
        lent: &Lent,
        graph: &Graph,
        passage: Passage,
        are_alike: bool,
    ) -> Result<(), Failure> {
        let Some(known) = self.execs.execs.get(&exec) else { return Ok(()) };
        let device = known.device;
        // Nodes that are switched off are known by their command.
        if (are_alike || known.off.is_empty())
            && let Some(capture) = self.capture_whole(device, graph, passage)?
        {
            let Some(known) = self.execs.execs.get_mut(&exec) else { return Ok(()) };
            let mut is_done = lent.update(&known.instance, &capture.captured);
            lent.end_graph(capture.captured);
            known.kept.extend(capture.kept);
            if is_done && !are_alike {
                known.nodes.clear();
            }
            // Whether an update switches nodes on again is the driver's to know.
            is_done = is_done && known.off.iter().all(|step| known.is_switched(lent, *step, false));
            if is_done && known.switch(lent, graph) {
                return Ok(());
            }
        }
        let made = self.make(device, graph, passage)?;
        let Some(known) = self.execs.execs.get_mut(&exec) else { return Ok(()) };
        let before = std::mem::replace(known, made);
        known.own = before.own;
        known.kept.extend(before.kept);
        lent.end_instance(before.instance);
        lent.end_graph(before.captured);
        Ok(())
    }

    /// Has an instance do what its graph says since a command of it is another one, or is switched. What the driver does not change by itself is left to the next
    /// launch, which makes one capture of all such changes before it.
    pub(super) fn change_exec_step(&mut self, exec: u32, graph: &Graph, step: usize) -> Result<(), Failure> {
        let Self { devices, programs, execs, .. } = self;
        let known =
            execs.execs.get_mut(&exec).ok_or_else(|| Failure::unknown("instance of a graph", exec))?;
        if known.is_behind {
            return Ok(());
        }
        let (lent, is_on) = (&devices[known.device as usize].lent, !graph.is_off(step));
        let is_done = if is_on == known.off.contains(&step) {
            known.switch_step(lent, step, is_on)
        } else if let (Some(Some(node)), Some((_, Work::Launch(launch)))) =
            (known.nodes.get(step), graph.work_at(step))
        {
            let kernel = programs.kernel_given(launch.fields.function, launch.parameters.bytes())?;
            lent.change_kernel(
                &known.instance,
                *node,
                kernel,
                &shape(&launch.fields),
                &launch.parameters.to_vec(),
            )
        } else {
            false
        };
        known.is_behind = !is_done;
        Ok(())
    }

    pub(super) fn end_exec(&mut self, exec: u32) {
        if let Some(known) = self.execs.execs.remove(&exec) {
            let lent = &self.devices[known.device as usize].lent;
            lent.end_instance(known.instance);
            lent.end_graph(known.captured);
            self.execs.give_back(known.device, known.own);
        }
    }

    /// Launches an instance; each name of the content gets its bytes or an error.
    pub(super) fn launch_exec(
        &mut self,
        exec: u32,
        graph: &Graph,
        stream: u32,
        content: &Content,
    ) -> Result<(), Failure> {
        let mut named = 0;
        let outcome = self.launch_with((exec, graph), stream, content, &mut named);
        if let Err(failure) = &outcome {
            for transfer in content.transfers.iter().skip(named) {
                self.outbox.no_bytes(*transfer, failure.error);
            }
        }
        outcome
    }

    fn launch_with(
        &mut self,
        (exec, graph): (u32, &Graph),
        name: u32,
        content: &Content,
        named: &mut usize,
    ) -> Result<(), Failure> {
        let device = self.ready(name)?;
        let lent = Arc::clone(&self.devices[device as usize].lent);
        if self.execs.execs.get(&exec).is_some_and(|known| known.is_behind) {
            self.change_exec(exec, graph, true)?;
        }
        let known =
            self.execs.execs.get(&exec).ok_or_else(|| Failure::unknown("instance of a graph", exec))?;
        let start = known.own.as_ref().map(|own| own.scratch.address);
        if let Some(own) = &known.own {
            lent.wait(self.stream(name)?, &own.last).map_err(failed)?;
        }
        let outcome = self.launch_through((exec, graph), start, name, content, named);
        // Also of a launch that went wrong half way: what is on the stream of it uses the memory.
        let own = self.execs.execs.get(&exec).and_then(|known| known.own.as_ref());
        let record = |own: &Own| lent.record(&own.last, self.stream(name)?).map_err(failed);
        outcome.and(own.map_or(Ok(()), record))
    }

    /// The same by an instance whose memory begins at `start`, if it has some, and is used by nothing else.
    fn launch_through(
        &mut self,
        (exec, graph): (u32, &Graph),
        start: Option<u64>,
        name: u32,
        content: &Content,
        named: &mut usize,
    ) -> Result<(), Failure> {
        if let (Some(start), false) = (start, content.bytes.is_empty()) {
            let bytes = content.bytes.len() as u64;
            self.copy_in(name, Rows::one(start, bytes), Body::Own(&content.bytes))?;
        }
        let known =
            self.execs.execs.get(&exec).ok_or_else(|| Failure::unknown("instance of a graph", exec))?;
        let lent = &self.devices[known.device as usize].lent;
        lent.launch_graph(&known.instance, self.stream(name)?).map_err(failed)?;
        self.done.launches += graph.launches();
        start
            .map_or(Ok(()), |start| self.copies_out(graph, name, start + graph.needs().bytes, content, named))
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
