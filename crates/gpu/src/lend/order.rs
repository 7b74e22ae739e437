//! Streams, events, captures and graphs.

use super::calls::UpdateResult;
use super::{CallError, Lent};
use crate::driver::{EVENT_WITHOUT_TIME, Handle, NOT_READY, STREAM_APART};

/// The handle of the default stream that waits for the others.
const LEGACY: Handle = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: i32 = 2;

/// `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
const CAPTURED: i32 = 1;

/// `CU_EVENT_RECORD_EXTERNAL` and `CU_EVENT_WAIT_EXTERNAL`.
const EXTERNAL: u32 = 1;

/// A stream.
#[derive(Debug)]
pub struct Stream {
    pub(crate) handle: Handle,
}

/// An event.
#[derive(Debug)]
pub struct Event {
    handle: Handle,
}

/// A graph that was captured.
#[derive(Debug)]
pub struct Captured {
    handle: Handle,
}

/// An instance of a graph.
#[derive(Debug)]
pub struct Instance {
    pub(crate) handle: Handle,
}

/// A node of a captured graph: valid as long as that is, also for instances that were made of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphNode {
    pub(crate) handle: Handle,
}

impl Lent {
    /// The default stream.
    pub const fn default_stream(&self) -> Stream {
        Stream { handle: LEGACY }
    }

    /// Makes a stream.
    ///
    /// # Errors
    /// The driver's.
    pub fn stream(&self, is_apart: bool, priority: i32) -> Result<Stream, CallError> {
        let call = self.enter()?;
        let (mut handle, flags) = (0, if is_apart { STREAM_APART } else { 0 });
        // SAFETY: the place is ours.
        self.check("making a stream", unsafe { (call.stream_make)(&mut handle, flags, priority) })?;
        Ok(Stream { handle })
    }

    /// Ends a stream; its work is still done.
    pub fn end_stream(&self, stream: Stream) {
        if self.enter().is_ok() {
            // SAFETY: it was made once, and the value is gone; the default stream is refused.
            unsafe { (self.lender.driver.call.stream_destroy)(stream.handle) };
        }
    }

    /// Makes an event.
    ///
    /// # Errors
    /// The driver's.
    pub fn event(&self, has_time: bool) -> Result<Event, CallError> {
        self.enter()?;
        let (mut handle, flags) = (0, if has_time { 0 } else { EVENT_WITHOUT_TIME });
        // SAFETY: the place is ours.
        let code = unsafe { (self.lender.driver.call.event_create)(&mut handle, flags) };
        self.check("making an event", code)?;
        Ok(Event { handle })
    }

    /// Ends an event; the driver keeps what is still needed of it.
    pub fn end_event(&self, event: Event) {
        if self.enter().is_ok() {
            // SAFETY: it was made once, and the value is gone.
            unsafe { (self.lender.driver.call.event_destroy)(event.handle) };
        }
    }

    /// Records an event behind the work of a stream.
    ///
    /// # Errors
    /// The driver's.
    pub fn record(&self, event: &Event, stream: &Stream) -> Result<(), CallError> {
        self.enter()?;
        // SAFETY: both live.
        let code = unsafe { (self.lender.driver.call.event_record)(event.handle, stream.handle) };
        self.check("recording an event", code)
    }

    /// Makes a stream wait for the last record of an event.
    ///
    /// # Errors
    /// The driver's.
    pub fn wait(&self, stream: &Stream, event: &Event) -> Result<(), CallError> {
        let call = self.enter()?;
        // SAFETY: both live.
        let code = unsafe { (call.stream_wait_event)(stream.handle, event.handle, 0) };
        self.check("waiting for an event", code)
    }

    /// Records an event in a captured stream such that each launch of the graph records it for others.
    ///
    /// # Errors
    /// The driver's.
    pub fn record_for_others(&self, event: &Event, stream: &Stream) -> Result<(), CallError> {
        let call = self.enter()?;
        // SAFETY: both live.
        let code = unsafe { (call.event_record_with_flags)(event.handle, stream.handle, EXTERNAL) };
        self.check("recording an event of a graph", code)
    }

    /// Makes a captured stream wait, at each launch of the graph, for the last record of an event by others.
    ///
    /// # Errors
    /// The driver's.
    pub fn wait_for_others(&self, stream: &Stream, event: &Event) -> Result<(), CallError> {
        let call = self.enter()?;
        // SAFETY: both live.
        let code = unsafe { (call.stream_wait_event)(stream.handle, event.handle, EXTERNAL) };
        self.check("waiting for an event of others", code)
    }

    /// Whether the last record of an event is done.
    ///
    /// # Errors
    /// The driver's, also for what went wrong on the device before.
    pub fn is_done(&self, event: &Event) -> Result<bool, CallError> {
        self.enter()?;
        // SAFETY: it lives.
        match unsafe { (self.lender.driver.call.event_query)(event.handle) } {
            NOT_READY => Ok(false),
            code => self.check("asking for an event", code).map(|()| true),
        }
    }

    /// Milliseconds between two events that are done.
    ///
    /// # Errors
    /// The driver's.
    pub fn elapsed(&self, start: &Event, end: &Event) -> Result<f32, CallError> {
        let call = self.enter()?;
        let mut milliseconds = 0.0;
        // SAFETY: the place is ours, and both live.
        let code = unsafe { (call.event_elapsed)(&mut milliseconds, start.handle, end.handle) };
        self.check("asking for the time between events", code)?;
        Ok(milliseconds)
    }

    /// Begins to capture what is put on a stream.
    ///
    /// # Errors
    /// The driver's.
    pub fn begin_capture(&self, stream: &Stream) -> Result<(), CallError> {
        let call = self.enter()?;
        // SAFETY: it lives.
        self.check("beginning a capture", unsafe { (call.capture_begin)(stream.handle, RELAXED) })
    }

    /// Ends a capture.
    ///
    /// # Errors
    /// The driver's, for what could not be captured.
    pub fn end_capture(&self, stream: &Stream) -> Result<Captured, CallError> {
        let call = self.enter()?;
        let mut handle = 0;
        // SAFETY: the place is ours, and the stream lives.
        self.check("ending a capture", unsafe { (call.capture_end)(stream.handle, &mut handle) })?;
        Ok(Captured { handle })
    }

    /// What the next work of a stream that is being captured would be behind, if it is one node: the one of the work before it.
    pub fn last_node(&self, stream: &Stream) -> Option<GraphNode> {
        let call = self.enter().ok()?;
        let (mut state, mut number, mut graph, mut nodes, mut count) = (0, 0, 0, std::ptr::null(), 0);
        // SAFETY: the places are ours, and the stream lives.
        let code = unsafe {
            (call.capture_info)(stream.handle, &mut state, &mut number, &mut graph, &mut nodes, &mut count)
        };
        if code != 0 || state != CAPTURED || count != 1 || nodes.is_null() {
            return None;
        }
        // SAFETY: the driver's list of as many nodes as it counted, which is there until the next call for the stream.
        Some(GraphNode { handle: unsafe { *nodes } })
    }

    /// Has launches of an instance leave out what a node does that the graph has which it was made of, or do it; false if the driver does not do that.
    pub fn switch_node(&self, instance: &Instance, node: GraphNode, is_on: bool) -> bool {
        let Ok(call) = self.enter() else { return false };
        // SAFETY: the instance lives, and so does the graph that it was made of.
        unsafe { (call.node_switch)(instance.handle, node.handle, u32::from(is_on)) == 0 }
    }

    /// Makes a captured graph ready to be launched.
    ///
    /// # Errors
    /// The driver's.
    pub fn instantiate(&self, graph: &Captured) -> Result<Instance, CallError> {
        let call = self.enter()?;
        let mut handle = 0;
        // SAFETY: the place is ours, and the graph lives.
        let code = unsafe { (call.graph_instantiate)(&mut handle, graph.handle, 0) };
        self.check("instantiating a graph", code)?;
        Ok(Instance { handle })
    }

    /// Makes an instance do what a graph says; false if it is to be made anew.
    pub fn update(&self, instance: &Instance, graph: &Captured) -> bool {
        let Ok(call) = self.enter() else { return false };
        let mut result = UpdateResult::default();
        // SAFETY: the place is ours, and both live.
        unsafe { (call.graph_update)(instance.handle, graph.handle, &mut result) == 0 }
    }

    /// Puts an instance behind the work of a stream.
    ///
    /// # Errors
    /// The driver's.
    pub fn launch_graph(&self, instance: &Instance, stream: &Stream) -> Result<(), CallError> {
        let call = self.enter()?;
        // SAFETY: both live.
        self.check("launching a graph", unsafe { (call.graph_launch)(instance.handle, stream.handle) })
    }

    /// Ends a captured graph.
    pub fn end_graph(&self, graph: Captured) {
        if let Ok(call) = self.enter() {
            // SAFETY: it was made once, and the value is gone.
            unsafe { (call.graph_destroy)(graph.handle) };
        }
    }

    /// Ends an instance; a launch of it that runs goes on.
    pub fn end_instance(&self, instance: Instance) {
        if let Ok(call) = self.enter() {
            // SAFETY: it was made once, and the value is gone.
            unsafe { (call.exec_destroy)(instance.handle) };
        }
    }
}
