//! Captures and graphs: commands that are kept here as they would have been sent, and go out as a list.
//!
//! Relaxed throughout: what a program does with one stream or graph in two threads at once has no order, and all lists lie under locks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hinterland_proto::gpu::Message;

use super::graph::Graph;
use super::handle::Table;
use super::list::{HostCopy, List};
use super::outbox::Tail;
use super::session::Session;
use super::stream::Stream;
use crate::code::{
    CAPTURE_INVALIDATED, CAPTURE_MERGE, CAPTURE_UNMATCHED, CAPTURE_UNSUPPORTED, Code, INVALID_VALUE,
};

/// A capture that goes on.
#[derive(Debug)]
struct Capture {
    origin: u32,
    streams: Vec<Arc<Stream>>,
    list: List,
    is_invalid: bool,
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
    next: AtomicU32,
    pub(super) graphs: Table<Graph>,
}

impl Captures {
    pub(super) fn new() -> Self {
        Self { going: Mutex::default(), next: AtomicU32::new(1), graphs: Table::new(1) }
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
            list: List::default(),
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
        fill: impl FnOnce(&mut Tail<'_>),
    ) -> Result<(), Code> {
        let mut going = self.captures.going();
        let capture = going.get_mut(&stream.capture.load(Ordering::Relaxed)).ok_or(CAPTURE_INVALIDATED)?;
        capture.check()?;
        let pushed = capture.list.push(stream.number, None, message, bytes, fill);
        pushed.inspect_err(|_| capture.is_invalid = true)
    }

    /// Takes a copy between the program's memory and a device into the capture of its stream: each launch does it anew.
    ///
    /// # Errors
    /// The capture failed before, or the copy reads what the same list brings.
    pub(super) fn capture_copy<M: Message>(
        &self,
        stream: &Stream,
        copy: HostCopy,
        message: &M,
    ) -> Result<(), Code> {
        let mut going = self.captures.going();
        let capture = going.get_mut(&stream.capture.load(Ordering::Relaxed)).ok_or(CAPTURE_INVALIDATED)?;
        capture.check()?;
        if let HostCopy::In(from) = &copy
            && capture.list.lands_in(from)
        {
            eprintln!(
                "hinterland: a graph cannot copy to a device what it copies out of one (hint: copy within the device)"
            );
            capture.is_invalid = true;
            return Err(CAPTURE_UNSUPPORTED);
        }
        let pushed = capture.list.push(stream.number, Some(copy), message, 0, |_| ());
        pushed.inspect_err(|_| capture.is_invalid = true)
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
}
