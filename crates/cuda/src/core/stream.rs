//! Streams, and what is known here of how far each has come.
//!
//! Relaxed where nothing else is said: counts are written with the outbox locked, and who reads one late sees an older state, which
//! means a wait too many.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use hinterland_proto::gpu::DEFAULT_STREAMS;
use hinterland_proto::gpu::command::{Fence, MarkDevice, MarkStream, StreamCreate};

use super::context::{Context, Owner};
use super::inbox::{Pending, Target};
use super::session::Session;
use crate::code::{CAPTURE_UNSUPPORTED, Code};

/// Flag of a stream that does not wait for the default stream.
pub const APART: u32 = 1;

/// A stream. All numbers are counts of commands, as they were sent.
#[derive(Debug)]
pub struct Stream {
    /// Its name at the node.
    pub number: u32,
    /// Its device and context.
    pub owner: Owner,
    /// The program's flags.
    pub flags: u32,
    /// The program's priority.
    pub priority: i32,
    /// The last command of this stream.
    issued: AtomicU64,
    /// The last one whose end a program can see: it computes, fails or brings bytes back.
    visible: AtomicU64,
    /// Everything up to this one is done.
    done: AtomicU64,
    /// Everything up to this one is in front of whatever is sent later.
    fenced: AtomicU64,
    /// The last one, of this stream or of those before it, whose end was asked for without waiting.
    asked: AtomicU64,
    /// The capture that takes its commands, or 0.
    pub capture: AtomicU32,
    /// Whether the program ended it.
    is_destroyed: AtomicBool,
    /// Whether the node was told so; written with the outbox locked.
    is_gone: AtomicBool,
}

impl Stream {
    pub(super) fn new(number: u32, owner: Owner, flags: u32, priority: i32) -> Self {
        Self {
            number,
            owner,
            flags,
            priority,
            issued: AtomicU64::new(0),
            visible: AtomicU64::new(0),
            done: AtomicU64::new(0),
            fenced: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            capture: AtomicU32::new(0),
            is_destroyed: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
        }
    }

    /// Whether it is the default stream of its context.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.number < DEFAULT_STREAMS
    }

    /// Whether it is being captured.
    #[must_use]
    pub fn is_captured(&self) -> bool {
        // Relaxed: what a program does in two threads at once with one stream has no order.
        self.capture.load(Ordering::Relaxed) != 0
    }

    /// Whether it was ended, by the program or with all of its device.
    #[must_use]
    pub fn is_destroyed(&self) -> bool {
        // Relaxed: as above.
        self.is_destroyed.load(Ordering::Relaxed)
    }

    pub(super) fn note_destroyed(&self) {
        // Relaxed: as above.
        self.is_destroyed.store(true, Ordering::Relaxed);
    }

    /// Whether the node was told of its end; called with the outbox locked.
    pub(super) fn is_gone(&self) -> bool {
        // Relaxed: the lock of the outbox orders all who ask or say so.
        self.is_gone.load(Ordering::Relaxed)
    }

    /// The node is told of its end; called with the outbox locked.
    pub(super) fn note_gone(&self) {
        // Relaxed: as above.
        self.is_gone.store(true, Ordering::Relaxed);
    }

    /// Notes a command that was sent; called with the outbox locked, so numbers grow.
    pub(super) fn note(&self, command: u64, is_visible: bool) {
        // Relaxed: the lock of the outbox orders writers; a reader that is late sees an older, safe state of its own stream.
        self.issued.store(command, Ordering::Relaxed);
        if is_visible {
            self.visible.store(command, Ordering::Relaxed);
        }
    }

    /// Notes that everything so far is in front of whatever other streams are sent later; called with the outbox locked.
    pub(super) fn note_fenced(&self) {
        // Relaxed: as in `note`, and the same lock keeps commands from coming in between.
        self.fenced.store(self.last(), Ordering::Relaxed);
    }

    /// Notes that everything up to a command is done.
    pub(super) fn reach(&self, command: u64) {
        // Release: pairs with the load in `state`; bytes that were copied out before are then seen.
        self.done.fetch_max(command, Ordering::Release);
    }

    /// The last command, for events.
    pub(super) fn last(&self) -> u64 {
        self.issued.load(Ordering::Relaxed)
    }

    /// Whether everything up to a command is known to be done.
    #[must_use]
    pub fn has_reached(&self, command: u64) -> bool {
        self.done.load(Ordering::Acquire) >= command
    }

    /// What it has under way.
    pub(super) fn state(&self) -> State {
        let done = self.done.load(Ordering::Acquire);
        let issued = self.issued.load(Ordering::Relaxed);
        if self.visible.load(Ordering::Relaxed) > done {
            State::Open
        } else if issued > done.max(self.fenced.load(Ordering::Relaxed)) {
            State::Filling
        } else {
            State::Idle
        }
    }
}

/// What a stream has under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing that is not done.
    Idle,
    /// Only bytes on their way to the device.
    Filling,
    /// Something that the program could see.
    Open,
}

impl Session {
    /// Makes a stream.
    ///
    /// # Errors
    /// The node is gone.
    pub fn create_stream(&self, owner: Owner, flags: u32, priority: i32) -> Result<Arc<Stream>, Code> {
        let stream = self.streams.add(|number| {
            self.send(&StreamCreate { stream: number, device: owner.device, flags, priority })?;
            Ok(Stream::new(number, owner, flags, priority))
        })?;
        Ok(stream)
    }

    /// Ends all streams of a context but for its default one, those that threads have of their own among them.
    ///
    /// # Errors
    /// The node is gone.
    pub(super) fn destroy_streams_of(&self, owner: Owner) -> Result<(), Code> {
        let all = self.streams.all();
        all.iter().filter(|stream| stream.owner == owner).try_for_each(|stream| self.destroy_stream(stream))
    }

    /// The streams whose work is in front of a stream: itself, and for a default stream all that it waits for.
    fn with_those_before(&self, stream: &Arc<Stream>) -> Vec<Arc<Stream>> {
        let mut all = vec![stream.clone()];
        if stream.is_default() {
            all.extend(
                self.all_streams()
                    .into_iter()
                    .filter(|other| other.owner == stream.owner && other.flags & APART == 0),
            );
        }
        all
    }

    /// Whether work of a stream that waits for the default stream may have work in front of it, there and in what the default stream waits for, whose end a
    /// program can see.
    fn is_behind_default(&self, stream: &Stream) -> bool {
        if stream.is_default() || stream.flags & APART != 0 {
            return false;
        }
        let is_behind = |context: &Arc<Context>| {
            let default = &context.default_stream;
            default.state() != State::Idle
                && self.with_those_before(default).iter().any(|one| one.state() == State::Open)
        };
        self.with_context(stream.owner.context, is_behind).unwrap_or(false)
    }

    /// Returns when the work of a stream is done, or when no program could tell that it is not.
    ///
    /// # Errors
    /// It is being captured; a fault of the device; the node is gone.
    pub fn synchronize_stream(&self, stream: &Arc<Stream>) -> Result<(), Code> {
        if stream.is_captured() {
            self.invalidate_capture(stream);
            return Err(CAPTURE_UNSUPPORTED);
        }
        self.check_default(stream)?;
        self.wait_callbacks(stream)?;
        if !stream.is_default() && stream.state() == State::Idle {
            return self.surface();
        }
        if let Some(pending) = self.end_of_work(stream)? {
            self.wait_mark(&pending)?;
        }
        self.surface()
    }

    /// The same for all work of a context.
    ///
    /// # Errors
    /// As [`synchronize_stream`](Self::synchronize_stream).
    pub fn synchronize_context(&self, context: &Context) -> Result<(), Code> {
        let (owner, device) = (context.owner, context.owner.device);
        self.wait_callbacks_of(owner)?;
        self.inbox.drain()?;
        let mut all = vec![context.default_stream.clone()];
        all.extend(self.all_streams().into_iter().filter(|other| other.owner == owner));
        if all.iter().any(|one| one.is_captured()) {
            return Err(CAPTURE_UNSUPPORTED);
        }
        if self.must_wait(&all) {
            let pending = self.mark(&all, |mark| MarkDevice { mark, device })?;
            self.wait_mark(&pending)?;
        } else {
            self.fence(&all);
        }
        self.end_those_done()?;
        self.surface()
    }

    /// The same for all work of all contexts.
    ///
    /// # Errors
    /// As [`synchronize_stream`](Self::synchronize_stream).
    pub fn synchronize_all(&self) -> Result<(), Code> {
        self.all_contexts().iter().try_for_each(|context| self.synchronize_context(context))
    }

    /// Whether the work of a stream is done; asks the node, without waiting, at most once for the same work.
    ///
    /// # Errors
    /// As [`synchronize_stream`](Self::synchronize_stream).
    pub fn is_stream_done(&self, stream: &Arc<Stream>) -> Result<bool, Code> {
        if stream.is_captured() {
            self.invalidate_capture(stream);
            return Err(CAPTURE_UNSUPPORTED);
        }
        self.check_default(stream)?;
        self.inbox.drain()?;
        if self.has_callback(stream) {
            return self.surface().map(|()| false);
        }
        let all = self.with_those_before(stream);
        let is_behind = stream.state() == State::Filling && self.is_behind_default(stream);
        if is_behind || all.iter().any(|one| one.state() == State::Open) {
            let last = all.iter().map(|one| one.last()).max().unwrap_or(0);
            if stream.asked.fetch_max(last, Ordering::Relaxed) < last {
                self.mark_stream(stream, &all)?;
            }
            return self.surface().map(|()| false);
        }
        self.fence(&all);
        self.surface().map(|()| true)
    }

    /// Whether any of these has something under way that only the node can tell the end of.
    fn must_wait(&self, streams: &[Arc<Stream>]) -> bool {
        let is_open = |stream: &Arc<Stream>| match stream.state() {
            State::Open => true,
            State::Filling => self.without.fence,
            State::Idle => false,
        };
        streams.iter().any(is_open)
    }

    /// A mark behind the work of a stream so far; none if no program could tell that it is not done.
    ///
    /// # Errors
    /// The node is gone.
    pub(super) fn end_of_work(&self, stream: &Arc<Stream>) -> Result<Option<Arc<Pending>>, Code> {
        self.inbox.drain()?;
        let all = self.with_those_before(stream);
        if self.must_wait(&all) || self.is_behind_default(stream) {
            return self.mark_stream(stream, &all).map(Some);
        }
        self.fence(&all);
        Ok(None)
    }

    fn mark_stream(&self, stream: &Arc<Stream>, all: &[Arc<Stream>]) -> Result<Arc<Pending>, Code> {
        self.mark(all, |mark| MarkStream { mark, stream: stream.number })
    }

    /// Sends a mark behind which everything of these streams is known to be done.
    pub(super) fn mark<M: hinterland_proto::gpu::Message>(
        &self,
        streams: &[Arc<Stream>],
        message: impl FnOnce(u64) -> M,
    ) -> Result<Arc<Pending>, Code> {
        let ends = streams.iter().map(|stream| (stream.clone(), stream.last())).collect();
        let (number, pending) = self.inbox.expect(Target::Mark(ends));
        self.send(&message(number))?;
        Ok(pending)
    }

    /// Waits for a mark.
    pub(super) fn wait_mark(&self, pending: &Pending) -> Result<(), Code> {
        self.say_wait(pending.kind());
        self.flush()?;
        match self.inbox.wait(pending)? {
            0 => Ok(()),
            error => Err(error),
        }
    }

    /// Puts what is on its way to the device in front of whatever is sent later; the commands go out with the next one.
    pub(super) fn fence(&self, streams: &[Arc<Stream>]) {
        for stream in streams.iter().filter(|stream| stream.state() == State::Filling) {
            self.want_fence(stream);
        }
    }

    /// Fences all streams that have anything under way, computing or not: for memory that changes hands. Those of other devices may copy from there.
    pub(super) fn fence_all(&self) {
        let defaults = self.all_contexts().into_iter().map(|context| context.default_stream.clone());
        for stream in defaults.chain(self.all_streams()) {
            if stream.state() != State::Idle {
                self.want_fence(&stream);
            }
        }
    }

    /// The command that a wanted fence becomes.
    pub(super) fn fence_command(stream: u32) -> Fence {
        Fence { stream }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::atomic::{AtomicBool, Ordering};

    use hinterland_proto::gpu::command::Fill;

    use super::super::context::Owner;
    use super::super::hostile::with_honest_node;
    use super::super::outbox::Effect;
    use super::{APART, State};

    /// Ends the other thread, also when this one fails.
    struct Over<'flag>(&'flag AtomicBool);

    impl Drop for Over<'_> {
        fn drop(&mut self) {
            // Relaxed: a flag alone.
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_a_thread_copies_while_another_one_fences_the_stream_is_not_taken_for_fenced() {
        const TIMES: u32 = 300_000;
        with_honest_node(|session| {
            let [filled, other] =
                [(); 2].map(|()| session.create_stream(Owner::primary(0), APART, 0).unwrap());
            let is_over = AtomicBool::new(false);
            let check = || {
                let outbox = session.outbox.lock();
                let is_safe = filled.state() == State::Filling || outbox.wants_fence(filled.number);
                assert!(is_safe, "nothing keeps other streams behind what was copied");
            };
            let fill = |stream: &std::sync::Arc<super::Stream>| {
                let fill = Fill { stream: stream.number, element: 1, address: 0, count: 1, value: 0 };
                session.issue(stream, Effect::Quiet, &fill, 0, |_| ()).unwrap();
            };
            std::thread::scope(|scope| {
                // Relaxed: a flag alone.
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        session.fence(std::slice::from_ref(&filled));
                    }
                });
                let _over = Over(&is_over);
                for _ in 0..TIMES {
                    fill(&other);
                    fill(&filled);
                    check();
                    check();
                }
            });
        });
    }
}
