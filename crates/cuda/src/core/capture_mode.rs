//! What may not be done while something is being captured: waits for what only stands in a graph, calls that a capture does not see, and
//! work of the default stream, which would wait for streams that are being captured.
//!
//! Whatever is refused so invalidates the captures for which it is refused.

use super::capture::Capture;
use super::context::{Context, Owner};
use super::session::Session;
use super::stream::{APART, Stream};
use super::thread::{capture_mode, thread_number};
use crate::code::{CAPTURE_IMPLICIT, CAPTURE_UNSUPPORTED, Code, INVALID_VALUE};

/// `cudaStreamCaptureMode`: which threads may make calls that a capture does not see, while it goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureMode {
    /// None. This is also how threads begin.
    Global,
    /// All but the one that captures.
    ThreadLocal,
    /// All.
    Relaxed,
}

impl CaptureMode {
    /// By its number.
    ///
    /// # Errors
    /// There is no such mode.
    pub fn of(number: i32) -> Result<Self, Code> {
        match number {
            0 => Ok(Self::Global),
            1 => Ok(Self::ThreadLocal),
            2 => Ok(Self::Relaxed),
            _ => Err(INVALID_VALUE),
        }
    }
}

impl Capture {
    /// Whether the calling thread may not make calls that this capture does not see.
    fn forbids_unseen(&self) -> bool {
        let is_own = self.thread == thread_number();
        match (capture_mode(), self.mode) {
            (CaptureMode::Relaxed, _) | (_, CaptureMode::Relaxed) => false,
            (CaptureMode::Global, CaptureMode::Global) => true,
            _ => is_own,
        }
    }

    /// Whether the default stream of a context waits for one of its streams.
    pub(super) fn holds_up(&self, owner: Owner) -> bool {
        self.streams.iter().any(|one| one.owner == owner && one.flags & APART == 0)
    }
}

impl Session {
    /// Whether the calling thread may do now what no capture sees: allocate and free, and wait for work that was sent.
    ///
    /// # Errors
    /// It may not, by its mode and by that of a capture.
    pub fn check_unseen(&self) -> Result<(), Code> {
        self.refuse_captures(CAPTURE_UNSUPPORTED, Capture::forbids_unseen)
    }

    /// Whether a stream may be used: a default stream may not, while a stream that it waits for is being captured.
    ///
    /// # Errors
    /// It may not.
    #[inline(always)]
    pub(super) fn check_default(&self, stream: &Stream) -> Result<(), Code> {
        if stream.is_default() && self.captures.is_any_going() {
            return self.refuse_captures(CAPTURE_IMPLICIT, |capture| capture.holds_up(stream.owner));
        }
        Ok(())
    }

    /// Waits for all work of a context, as a program asks for it.
    ///
    /// # Errors
    /// A stream of it is being captured; the thread may not wait; as [`synchronize_context`](Self::synchronize_context).
    pub fn wait_context(&self, context: &Context) -> Result<(), Code> {
        self.check_unseen()?;
        let is_of = |stream: &std::sync::Arc<Stream>| stream.owner == context.owner;
        self.refuse_captures(CAPTURE_UNSUPPORTED, |capture| capture.streams.iter().any(is_of))?;
        self.synchronize_context(context)
    }

    /// The same for all contexts of a device.
    ///
    /// # Errors
    /// As [`wait_context`](Self::wait_context).
    pub fn wait_device(&self, device: u32) -> Result<(), Code> {
        let all = self.all_contexts();
        all.iter()
            .filter(|context| context.owner.device == device)
            .try_for_each(|context| self.wait_context(context))
    }

    /// Invalidates the captures that are meant.
    ///
    /// # Errors
    /// There are some.
    fn refuse_captures(&self, code: Code, is_meant: impl Fn(&Capture) -> bool) -> Result<(), Code> {
        if !self.captures.is_any_going() {
            return Ok(());
        }
        let mut going = self.captures.going();
        let mut outcome = Ok(());
        for capture in going.values_mut().filter(|one| !one.is_hidden && is_meant(one)) {
            capture.is_invalid = true;
            outcome = Err(code);
        }
        outcome
    }
}
