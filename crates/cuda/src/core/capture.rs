//! Captures and graphs: commands that are kept here as they would have been sent, and go out as a list.
//!
//! Relaxed throughout: what a program does with one stream or graph in two threads at once has no order, and all lists lie under locks.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hinterland_proto::gpu::command::{
    Graph as GraphCommand, GraphDestroy, GraphExecDestroy, GraphInstantiate, GraphLaunch, GraphPart,
    GraphUpdate,
};
use hinterland_proto::gpu::{GRAPH_BYTES_MAX, Message, write_edits};

use super::handle::Table;
use super::outbox::{Effect, Tail};
use super::session::Session;
use super::stream::Stream;
use crate::code::{
    CAPTURE_INVALIDATED, CAPTURE_MERGE, CAPTURE_UNMATCHED, CAPTURE_UNSUPPORTED, Code, INVALID_VALUE,
    NO_MEMORY,
};

/// Graphs whose lists both sides keep, so that a new one can be sent as what differs.
const BASES_MAX: usize = 8;
/// A frame of a list starts with the length of its body and its word.
const HEAD: usize = 8;

/// A capture that goes on.
#[derive(Debug)]
struct Capture {
    origin: u32,
    streams: Vec<Arc<Stream>>,
    list: Vec<u8>,
    is_invalid: bool,
}

/// A graph.
#[derive(Debug)]
pub struct Graph {
    /// Its name at the node.
    pub number: u32,
    origin: u32,
    list: Vec<u8>,
    was_sent: AtomicBool,
    was_destroyed: AtomicBool,
}

impl Graph {
    /// Commands in it.
    #[must_use]
    pub fn command_count(&self) -> usize {
        let mut count = 0;
        let mut at = 0;
        while let Some(length) = self.list.get(at..at + 4) {
            // A slice of four bytes is an array of four.
            let length = u32::from_le_bytes(length.try_into().unwrap_or_default()) as usize;
            at += HEAD + length.next_multiple_of(8);
            count += 1;
        }
        count
    }
}

/// Everything that was captured.
#[derive(Debug)]
pub struct Captures {
    going: Mutex<BTreeMap<u32, Capture>>,
    next: AtomicU32,
    graphs: Table<Graph>,
    execs: Table<u32>,
    bases: Mutex<VecDeque<Arc<Graph>>>,
}

impl Captures {
    pub(super) fn new() -> Self {
        Self {
            going: Mutex::default(),
            next: AtomicU32::new(1),
            graphs: Table::new(1),
            execs: Table::new(1),
            bases: Mutex::default(),
        }
    }

    fn going(&self) -> MutexGuard<'_, BTreeMap<u32, Capture>> {
        self.going.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// Begins to capture a stream.
    ///
    /// # Errors
    /// It is the default stream, or is being captured.
    pub fn begin_capture(&self, stream: &Arc<Stream>) -> Result<(), Code> {
        if stream.is_default() {
            return Err(CAPTURE_UNSUPPORTED);
        }
        let mut going = self.captures.going();
        if stream.is_captured() {
            return Err(CAPTURE_UNSUPPORTED);
        }
        let number = self.captures.next.fetch_add(1, Ordering::Relaxed);
        let capture = Capture {
            origin: stream.number,
            streams: vec![stream.clone()],
            list: Vec::new(),
            is_invalid: false,
        };
        going.insert(number, capture);
        stream.capture.store(number, Ordering::Relaxed);
        Ok(())
    }

    /// Takes a command into the capture of its stream.
    pub(super) fn capture<M: Message>(
        &self,
        stream: &Stream,
        message: &M,
        bytes: usize,
        fill: impl FnOnce(&mut Tail<'_, '_>),
    ) -> Result<(), Code> {
        let mut going = self.captures.going();
        let capture = going.get_mut(&stream.capture.load(Ordering::Relaxed)).ok_or(CAPTURE_INVALIDATED)?;
        if capture.is_invalid {
            return Err(CAPTURE_INVALIDATED);
        }
        let body = M::FIELD_BYTES + bytes;
        let start = capture.list.len();
        let end = start + HEAD + body.next_multiple_of(8);
        if end as u64 > GRAPH_BYTES_MAX {
            capture.is_invalid = true;
            return Err(NO_MEMORY);
        }
        capture.list.resize(end, 0);
        let place = &mut capture.list[start..];
        // A body is shorter than a graph may be, which fits.
        place[..4].copy_from_slice(&(body as u32).to_le_bytes());
        place[4..HEAD].copy_from_slice(&M::NUMBER.to_le_bytes());
        message.write(&mut place[HEAD..]);
        fill(&mut Tail::of_list(&mut place[HEAD + M::FIELD_BYTES..HEAD + body]));
        Ok(())
    }

    /// A stream that waits for an event of a capture becomes part of it.
    pub(super) fn join_capture(&self, stream: &Arc<Stream>, number: u32) -> Result<(), Code> {
        let mut going = self.captures.going();
        let capture = going.get_mut(&number).ok_or(INVALID_VALUE)?;
        match stream.capture.load(Ordering::Relaxed) {
            0 if stream.is_default() => Err(crate::code::CAPTURE_IMPLICIT),
            0 => {
                capture.streams.push(stream.clone());
                stream.capture.store(number, Ordering::Relaxed);
                Ok(())
            }
            other if other == number => Ok(()),
            _ => {
                capture.is_invalid = true;
                Err(CAPTURE_MERGE)
            }
        }
    }

    /// Something was done that no capture allows.
    pub(super) fn invalidate_capture(&self, stream: &Stream) {
        if let Some(capture) = self.captures.going().get_mut(&stream.capture.load(Ordering::Relaxed)) {
            capture.is_invalid = true;
        }
    }

    /// The capture of a stream: 0 none, else its number, and whether it has failed.
    #[must_use]
    pub fn capture_of(&self, stream: &Stream) -> (u32, bool) {
        let number = stream.capture.load(Ordering::Relaxed);
        let failed = self.captures.going().get(&number).is_some_and(|capture| capture.is_invalid);
        (number, failed)
    }

    /// Ends the capture that began in a stream.
    ///
    /// # Errors
    /// It did not begin there, or it has failed.
    pub fn end_capture(&self, stream: &Stream) -> Result<Arc<Graph>, Code> {
        let mut going = self.captures.going();
        let number = stream.capture.load(Ordering::Relaxed);
        let origin = going.get(&number).ok_or(crate::code::INVALID_VALUE)?.origin;
        if origin != stream.number {
            return Err(CAPTURE_UNMATCHED);
        }
        let Some(capture) = going.remove(&number) else { return Err(INVALID_VALUE) };
        capture.streams.iter().for_each(|stream| stream.capture.store(0, Ordering::Relaxed));
        drop(going);
        if capture.is_invalid {
            return Err(CAPTURE_INVALIDATED);
        }
        self.add_graph(origin, capture.list)
    }

    /// An empty graph.
    ///
    /// # Errors
    /// All names were given.
    pub fn add_graph(&self, origin: u32, list: Vec<u8>) -> Result<Arc<Graph>, Code> {
        self.captures.graphs.add(|number| {
            Ok(Graph {
                number,
                origin,
                list,
                was_sent: AtomicBool::new(false),
                was_destroyed: AtomicBool::new(false),
            })
        })
    }

    /// The graph with a number.
    ///
    /// # Errors
    /// There is none (any more).
    pub fn graph(&self, number: u32) -> Result<Arc<Graph>, Code> {
        self.captures.graphs.get(number)
    }

    /// Sends a graph, once: as a whole, or as what differs from one that the node has.
    fn send_graph(&self, graph: &Arc<Graph>) -> Result<(), Code> {
        let mut bases = self.captures.bases.lock().unwrap_or_else(PoisonError::into_inner);
        if graph.was_sent.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let mut edits = Vec::new();
        let base = bases.iter().rev().find(|base| {
            edits.clear();
            !self.without.graph_edits
                && write_edits(&base.list, &graph.list, &mut edits)
                && edits.len() < graph.list.len()
        });
        let (base, bytes) = match base {
            Some(base) => (base.number, &edits),
            None => (0, &graph.list),
        };
        self.send(&GraphCommand {
            graph: graph.number,
            base,
            stream: graph.origin,
            flags: 0,
            bytes: graph.list.len() as u64,
            sent: bytes.len() as u64,
        })?;
        for part in bytes.chunks(self.tail_max(GraphPart::FIELD_BYTES)) {
            self.send_with_tail(&GraphPart { graph: graph.number }, part.len(), |tail| tail.put(0, part))?;
        }
        bases.push_back(graph.clone());
        if bases.len() > BASES_MAX
            && let Some(old) = bases.pop_front()
            && old.was_destroyed.load(Ordering::Relaxed)
        {
            self.send(&GraphDestroy { graph: old.number })?;
        }
        Ok(())
    }

    /// Ends a graph.
    ///
    /// # Errors
    /// There is none (any more), or the node is gone.
    pub fn destroy_graph(&self, number: u32) -> Result<(), Code> {
        let graph = self.captures.graphs.remove(number)?;
        let bases = self.captures.bases.lock().unwrap_or_else(PoisonError::into_inner);
        graph.was_destroyed.store(true, Ordering::Relaxed);
        // A base lives on at the node until another takes its place.
        if graph.was_sent.load(Ordering::Relaxed) && !bases.iter().any(|base| base.number == number) {
            self.send(&GraphDestroy { graph: number })?;
        }
        Ok(())
    }

    /// Makes a graph ready to be launched; returns the name of the instance.
    ///
    /// # Errors
    /// The node is gone.
    pub fn instantiate(&self, graph: &Arc<Graph>, flags: u64) -> Result<u32, Code> {
        self.send_graph(graph)?;
        let exec = self.captures.execs.add(|number| {
            self.send(&GraphInstantiate { exec: number, graph: graph.number, flags })?;
            Ok(number)
        })?;
        Ok(*exec)
    }

    /// Makes an instance do what a graph says.
    ///
    /// # Errors
    /// There is no such instance, or the node is gone.
    pub fn update_exec(&self, exec: u32, graph: &Arc<Graph>) -> Result<(), Code> {
        self.captures.execs.get(exec)?;
        self.send_graph(graph)?;
        self.send(&GraphUpdate { exec, graph: graph.number }).map(drop)
    }

    /// Ends an instance.
    ///
    /// # Errors
    /// There is no such instance, or the node is gone.
    pub fn destroy_exec(&self, exec: u32) -> Result<(), Code> {
        self.captures.execs.remove(exec)?;
        self.send(&GraphExecDestroy { exec }).map(drop)
    }

    /// Launches an instance.
    ///
    /// # Errors
    /// There is no such instance, the stream is being captured, or the node is gone.
    pub fn launch_exec(&self, exec: u32, stream: &Arc<Stream>) -> Result<(), Code> {
        self.captures.execs.get(exec)?;
        if stream.is_captured() {
            self.invalidate_capture(stream);
            return Err(CAPTURE_UNSUPPORTED);
        }
        let message = GraphLaunch { exec, stream: stream.number };
        self.issue(stream, Effect::Visible, &message, 0, |_| ()).map(drop)
    }
}
