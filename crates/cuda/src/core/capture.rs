//! Captures and graphs: commands that are kept here as they would have been sent, and go out as a list.
//!
//! Relaxed throughout: what a program does with one stream or graph in two threads at once has no order, and all lists lie under locks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hinterland_proto::gpu::Message;

use super::capture_mode::CaptureMode;
use super::context::Owner;
use super::graph::{Graph, NodePlace};
use super::handle::{NumberMap, Table};
use super::list::{HostCall, HostCopy};
use super::outbox::Tail;
use super::session::Session;
use super::stream::Stream;
use super::thread::thread_number;
use crate::code::{
    CAPTURE_IMPLICIT, CAPTURE_INVALIDATED, CAPTURE_MERGE, CAPTURE_UNJOINED, CAPTURE_UNMATCHED,
    CAPTURE_UNSUPPORTED, CAPTURE_WRONG_THREAD, Code, ILLEGAL_STATE, INVALID_VALUE,
};

/// A capture that goes on.
#[derive(Debug)]
pub(super) struct Capture {
    origin: u32,
    pub(super) streams: Vec<Arc<Stream>>,
    pub(super) mode: CaptureMode,
    /// The thread that began it.
    pub(super) thread: u64,
    /// Whether the program knows nothing of it.
    pub(super) is_hidden: bool,
    /// Where commands go.
    graph: Arc<Graph>,
    /// Whether the graph was made for it.
    is_own: bool,
    pub(super) is_invalid: bool,
}

impl Capture {
    fn check(&self) -> Result<(), Code> {
        if self.is_invalid { Err(CAPTURE_INVALIDATED) } else { Ok(()) }
    }
}

/// Everything that was captured.
#[derive(Debug)]
pub struct Captures {
    going: Mutex<BTreeMap<u32, Capture>>,
    /// As many as the program knows of, for who asks without the lock.
    known: AtomicUsize,
    next: AtomicU32,
    pub(super) graphs: Table<Graph>,
    pub(super) nodes: Table<NodePlace>,
    /// The event that commands of two streams of a graph wait by.
    pub(super) edge: Mutex<Option<u32>>,
    /// Kernels of the program by the names that launches have.
    launched: Mutex<NumberMap<u32, usize>>,
}

impl Captures {
    pub(super) fn new() -> Self {
        Self {
            going: Mutex::default(),
            known: AtomicUsize::new(0),
            next: AtomicU32::new(1),
            graphs: Table::new(1),
            nodes: Table::new(1),
            edge: Mutex::default(),
            launched: Mutex::default(),
        }
    }

    /// Whether the program is capturing anything.
    #[inline(always)]
    pub(super) fn is_any_going(&self) -> bool {
        self.known.load(Ordering::Relaxed) != 0
    }

    /// Captures that are not in the list any more.
    fn note_ended(&self, count: usize) {
        self.known.fetch_sub(count, Ordering::Relaxed);
    }

    pub(super) fn going(&self) -> MutexGuard<'_, BTreeMap<u32, Capture>> {
        self.going.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// Begins to capture a stream into a graph of its own.
    ///
    /// # Errors
    /// It is the default stream, or is being captured.
    pub fn begin_capture(&self, stream: &Arc<Stream>, mode: CaptureMode) -> Result<(), Code> {
        if stream.is_default() {
            return Err(CAPTURE_UNSUPPORTED);
        }
        if stream.is_captured() {
            return Err(ILLEGAL_STATE);
        }
        let graph = self.add_graph(stream.owner, stream.number)?;
        self.begin_capture_into(stream, &graph, true, mode)
    }

    /// Begins to capture a stream into a graph, which was made for it or not (`is_own`).
    ///
    /// # Errors
    /// It is the default stream, or is being captured.
    pub fn begin_capture_into(
        &self,
        stream: &Arc<Stream>,
        graph: &Arc<Graph>,
        is_own: bool,
        mode: CaptureMode,
    ) -> Result<(), Code> {
        if stream.is_default() {
            return Err(CAPTURE_UNSUPPORTED);
        }
        let mut going = self.captures.going();
        if stream.is_captured() {
            return Err(ILLEGAL_STATE);
        }
        self.captures.known.fetch_add(1, Ordering::Relaxed);
        let (graph, origin, streams) = (graph.clone(), stream.number, vec![stream.clone()]);
        let thread = thread_number();
        self.begin(
            &mut going,
            stream,
            Capture { origin, streams, mode, thread, is_hidden: false, graph, is_own, is_invalid: false },
        );
        Ok(())
    }

    fn begin(&self, going: &mut BTreeMap<u32, Capture>, stream: &Stream, capture: Capture) {
        let number = self.captures.next.fetch_add(1, Ordering::Relaxed);
        going.insert(number, capture);
        stream.capture.store(number, Ordering::Relaxed);
    }

    /// A stream that nobody else has, and the graph that takes what is put on it.
    pub(super) fn begin_hidden_capture(&self, owner: Owner) -> Result<(Arc<Stream>, Arc<Graph>), Code> {
        let stream = Arc::new(Stream::new(owner.device, owner, 0, 0));
        let graph = self.add_graph(owner, owner.device)?;
        let capture = Capture {
            origin: stream.number,
            streams: vec![stream.clone()],
            mode: CaptureMode::Relaxed,
            thread: 0,
            is_hidden: true,
            graph: graph.clone(),
            is_own: true,
            is_invalid: false,
        };
        self.begin(&mut self.captures.going(), &stream, capture);
        Ok((stream, graph))
    }

    /// Nothing more is put on it.
    pub(super) fn end_hidden_capture(&self, stream: &Stream) {
        self.captures.going().remove(&stream.capture.load(Ordering::Relaxed));
    }

    /// The graph that a stream is being captured into.
    ///
    /// # Errors
    /// The capture has failed.
    pub fn captured_graph(&self, stream: &Stream) -> Result<Option<Arc<Graph>>, Code> {
        let going = self.captures.going();
        match going.get(&stream.capture.load(Ordering::Relaxed)) {
            None => Ok(None),
            Some(capture) => capture.check().map(|()| Some(capture.graph.clone())),
        }
    }

    /// Remembers what the program calls a kernel that it launches.
    pub fn note_kernel(&self, function: u32, name: usize) {
        let mut launched = self.captures.launched.lock().unwrap_or_else(PoisonError::into_inner);
        launched.insert(function, name);
    }

    /// Forgets what the program called a kernel that has gone.
    pub(super) fn forget_kernel(&self, function: u32) {
        self.captures.launched.lock().unwrap_or_else(PoisonError::into_inner).remove(&function);
    }

    /// What the program calls a kernel.
    pub(super) fn noted_kernel(&self, function: u32) -> Option<usize> {
        self.captures.launched.lock().unwrap_or_else(PoisonError::into_inner).get(&function).copied()
    }

    /// Takes a command into the capture of its stream.
    pub(super) fn capture<M: Message>(
        &self,
        stream: &Stream,
        message: &M,
        bytes: usize,
        fill: impl FnOnce(&mut Tail<'_>),
    ) -> Result<(), Code> {
        let mut going = self.captures.going();
        let capture = going.get_mut(&stream.capture.load(Ordering::Relaxed)).ok_or(CAPTURE_INVALIDATED)?;
        capture.check()?;
        let pushed = capture.graph.state().list.push(stream.number, None, message, bytes, fill);
        pushed.inspect_err(|_| capture.is_invalid = true)
    }

    /// Takes a copy between the program's memory and a device into the capture of its stream: each launch does it anew.
    ///
    /// # Errors
    /// The capture failed before, or has no room for more.
    pub(super) fn capture_copy<M: Message>(
        &self,
        stream: &Stream,
        copy: HostCopy,
        message: &M,
    ) -> Result<(), Code> {
        let mut going = self.captures.going();
        let capture = going.get_mut(&stream.capture.load(Ordering::Relaxed)).ok_or(CAPTURE_INVALIDATED)?;
        capture.check()?;
        let pushed = capture.graph.state().list.push(stream.number, Some(copy), message, 0, |_| ());
        pushed.inspect_err(|_| capture.is_invalid = true)
    }

    /// Takes a function of the program into the capture of its stream: each launch calls it anew.
    ///
    /// # Errors
    /// The capture failed before, or has no room for more.
    pub(super) fn capture_call(&self, stream: &Stream, call: HostCall) -> Result<(), Code> {
        let mut going = self.captures.going();
        let capture = going.get_mut(&stream.capture.load(Ordering::Relaxed)).ok_or(CAPTURE_INVALIDATED)?;
        capture.check()?;
        let pushed = capture.graph.state().list.push_call(stream.number, call);
        pushed.inspect_err(|_| capture.is_invalid = true)
    }

    /// A stream that waits for an event of a capture becomes part of it.
    pub(super) fn join_capture(&self, stream: &Arc<Stream>, number: u32) -> Result<(), Code> {
        let mut going = self.captures.going();
        let capture = going.get_mut(&number).ok_or(INVALID_VALUE)?;
        match stream.capture.load(Ordering::Relaxed) {
            0 if stream.is_default() => Err(CAPTURE_IMPLICIT),
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
        self.invalidate_capture_number(stream.capture.load(Ordering::Relaxed));
    }

    /// The same for a capture by its number, if it still goes on.
    pub(super) fn invalidate_capture_number(&self, number: u32) {
        if let Some(capture) = self.captures.going().get_mut(&number) {
            capture.is_invalid = true;
        }
    }

    /// The capture of a stream: 0 none, else its number, and whether it has failed.
    ///
    /// # Errors
    /// It is a default stream, and one that it waits for is being captured.
    pub fn capture_of(&self, stream: &Stream) -> Result<(u32, bool), Code> {
        let number = stream.capture.load(Ordering::Relaxed);
        let going = self.captures.going();
        let holds_up = |capture: &Capture| !capture.is_hidden && capture.holds_up(stream.owner);
        if stream.is_default() && going.values().any(holds_up) {
            return Err(CAPTURE_IMPLICIT);
        }
        Ok((number, going.get(&number).is_some_and(|capture| capture.is_invalid)))
    }

    /// Ends all captures that streams of a context take part in, without a graph.
    pub(super) fn abandon_captures(&self, owner: Owner) {
        self.captures.going().retain(|_, capture| {
            let is_meant = !capture.is_hidden && capture.streams.iter().any(|stream| stream.owner == owner);
            if is_meant {
                self.captures.note_ended(1);
                capture.streams.iter().for_each(|stream| stream.capture.store(0, Ordering::Relaxed));
            }
            !is_meant
        });
    }

    /// Ends the capture that began in a stream.
    ///
    /// # Errors
    /// It did not begin there, or, if not in the most relaxed mode, in another thread; it has failed; or work of another of its streams is not waited for.
    pub fn end_capture(&self, stream: &Stream) -> Result<Arc<Graph>, Code> {
        let mut going = self.captures.going();
        let number = stream.capture.load(Ordering::Relaxed);
        let capture = going.get(&number).ok_or(ILLEGAL_STATE)?;
        if capture.origin != stream.number {
            return Err(CAPTURE_UNMATCHED);
        }
        if capture.mode != CaptureMode::Relaxed && capture.thread != thread_number() {
            return Err(CAPTURE_WRONG_THREAD);
        }
        let Some(capture) = going.remove(&number) else { return Err(ILLEGAL_STATE) };
        self.captures.note_ended(1);
        capture.streams.iter().for_each(|stream| stream.capture.store(0, Ordering::Relaxed));
        drop(going);
        let is_joined = capture.graph.state().is_joined(stream.number, &capture.streams);
        if capture.is_invalid || !is_joined {
            // One that the program had before stays, as far as it came.
            if capture.is_own {
                self.destroy_graph(capture.graph.number)?;
            }
            return Err(if capture.is_invalid { CAPTURE_INVALIDATED } else { CAPTURE_UNJOINED });
        }
        Ok(capture.graph)
    }
}
