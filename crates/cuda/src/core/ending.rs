//! Streams that the program has ended while there was work in them whose end it can see. The node is told when that work is done: until then they count among those
//! that the default stream and a whole context wait for, and are fenced before memory changes hands.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hinterland_proto::gpu::command::{MarkStream, StreamDestroy};

use super::inbox::Pending;
use super::session::Session;
use super::stream::{State, Stream};
use crate::code::{CAPTURE_UNSUPPORTED, Code};

/// Streams that are ending at once. The node has room for 16 times as many in all; who ends more waits for the first of them.
const ENDING_MAX: usize = 1024;

/// The streams of a session that are ending, each with the mark behind its work.
#[derive(Debug, Default)]
pub struct Ending(Mutex<VecDeque<(Arc<Stream>, Arc<Pending>)>>);

impl Ending {
    fn all(&self) -> MutexGuard<'_, VecDeque<(Arc<Stream>, Arc<Pending>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// The streams that the program made, those that are ending among them.
    pub(super) fn all_streams(&self) -> Vec<Arc<Stream>> {
        // Locked for both: a stream that goes from the one to the other meanwhile is in one of them.
        let ending = self.ending.all();
        let mut all = self.streams.all();
        all.extend(ending.iter().map(|(stream, _)| stream.clone()));
        all
    }

    /// Ends a stream; its work goes on.
    ///
    /// # Errors
    /// It is being captured, there is none (any more), or the node is gone.
    pub fn destroy_stream(&self, stream: &Arc<Stream>) -> Result<(), Code> {
        if stream.is_captured() {
            return Err(CAPTURE_UNSUPPORTED);
        }
        self.end_those_done()?;
        self.wait_for_fewer()?;
        let mut ending = self.ending.all();
        self.streams.remove(stream.number)?;
        stream.note_destroyed();
        super::recent::forget_all();
        match stream.state() {
            State::Open => {
                let mark = self
                    .mark(std::slice::from_ref(stream), |mark| MarkStream { mark, stream: stream.number })?;
                ending.push_back((stream.clone(), mark));
                return Ok(());
            }
            // No later call could name it.
            State::Filling => self.want_fence(stream),
            State::Idle => {}
        }
        drop(ending);
        self.end_at_node(stream)
    }

    fn end_at_node(&self, stream: &Stream) -> Result<(), Code> {
        self.forget_fence(stream);
        self.send(&StreamDestroy { stream: stream.number }).map(drop)
    }

    /// Has the node end streams whose work is done.
    ///
    /// # Errors
    /// The node is gone.
    pub(super) fn end_those_done(&self) -> Result<(), Code> {
        let mut done = Vec::new();
        self.ending.all().retain(|(stream, mark)| {
            let is_done = mark.state().is_some();
            if is_done {
                done.push(stream.clone());
            }
            !is_done
        });
        done.iter().try_for_each(|stream| self.end_at_node(stream))
    }

    /// Waits until there is room for one more.
    fn wait_for_fewer(&self) -> Result<(), Code> {
        loop {
            let first = {
                let ending = self.ending.all();
                ending.front().filter(|_| ending.len() >= ENDING_MAX).map(|(_, mark)| mark.clone())
            };
            let Some(first) = first else { return Ok(()) };
            self.wait_mark(&first)?;
            self.end_those_done()?;
        }
    }
}
