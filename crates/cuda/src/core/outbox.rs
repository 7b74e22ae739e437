//! What goes to the node: commands of all threads, in one order.

use std::time::Duration;

use hinterland_channel::{Part, Room, Sender};
use hinterland_proto::gpu::Message;

use super::session::Session;
use super::stream::Stream;
use crate::code::{Code, INVALID_VALUE};

/// How long a thread waits for room before it looks again.
const PATIENCE: Duration = Duration::from_millis(10);

/// Most bytes of the fields of a command.
const FIELDS_MAX: usize = 256;
/// Fields of so many bytes are most commands'.
const FIELDS_FEW: usize = 64;

/// Where the tail of a command is written: a frame on its way, or a list that is being captured.
#[derive(Debug)]
pub struct Tail<'place>(Part<'place>);

impl<'place> Tail<'place> {
    pub(super) fn of_list(list: &'place mut [u8]) -> Self {
        Tail(Part::of(list))
    }

    /// Writes at an offset of the tail; all of it must lie inside.
    #[inline]
    pub fn put(&mut self, offset: usize, bytes: &[u8]) {
        let written = self.0.write_at(offset, bytes);
        debug_assert!(written.is_ok(), "a tail is as long as was said");
    }

    /// Writes a value of a known length at an offset of the tail; all of it must lie inside.
    #[inline(always)]
    pub fn put_array<const N: usize>(&mut self, offset: usize, bytes: [u8; N]) {
        let written = self.0.write_array(offset, bytes);
        debug_assert!(written.is_ok(), "a tail is as long as was said");
    }

    /// Writes zeros.
    #[inline]
    pub fn put_zeros(&mut self, offset: usize, bytes: usize) {
        if bytes > 0 {
            self.put_some_zeros(offset, bytes);
        }
    }

    #[cold]
    fn put_some_zeros(&mut self, offset: usize, bytes: usize) {
        const ZEROS: [u8; 64] = [0; 64];
        for start in (0..bytes).step_by(ZEROS.len()) {
            self.put(offset + start, &ZEROS[..(bytes - start).min(ZEROS.len())]);
        }
    }
}

/// What a command means for who synchronises with its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The program can see when it is done.
    Visible,
    /// The program cannot tell whether it is done.
    Quiet,
}

/// The end of the channel that commands go into.
#[derive(Debug)]
pub struct Outbox {
    sender: Sender,
    /// Commands that were sent.
    count: u64,
    /// Streams that are to be fenced before another stream's next command.
    fences: Vec<u32>,
}

impl Outbox {
    pub(super) fn new(sender: Sender) -> Self {
        Self { sender, count: 0, fences: Vec::new() }
    }

    /// Whether a stream is to be fenced before another stream's next command.
    #[cfg(test)]
    pub(super) fn wants_fence(&self, stream: u32) -> bool {
        self.fences.contains(&stream)
    }
}

impl Session {
    /// Sends a command that has no tail and belongs to no stream; returns its count.
    ///
    /// # Errors
    /// The node is gone.
    pub fn send<M: Message>(&self, message: &M) -> Result<u64, Code> {
        self.send_with_tail(message, 0, |_| ())
    }

    /// The same with a tail of `bytes` bytes.
    ///
    /// # Errors
    /// The node is gone.
    pub fn send_with_tail<M: Message>(
        &self,
        message: &M,
        bytes: usize,
        fill: impl FnOnce(&mut Tail<'_>),
    ) -> Result<u64, Code> {
        let mut outbox = self.outbox.lock();
        self.put_fences(&mut outbox, None)?;
        self.put(&mut outbox, message, bytes, Effect::Visible, fill)
    }

    /// Sends a command of a stream, or hands it to the capture of that stream; returns its count, 0 when captured.
    ///
    /// # Errors
    /// The capture failed before, or the node is gone.
    #[inline(always)]
    pub fn issue<M: Message>(
        &self,
        stream: &Stream,
        effect: Effect,
        message: &M,
        bytes: usize,
        fill: impl FnOnce(&mut Tail<'_>),
    ) -> Result<u64, Code> {
        if stream.is_captured() {
            return self.capture(stream, message, bytes, fill).map(|()| 0);
        }
        self.check_default(stream)?;
        self.wait_callbacks(stream)?;
        self.issue_begun(stream, effect, message, bytes, fill)
    }

    /// The same for a command of work that has begun: whatever else begins meanwhile, it goes out behind what is there.
    ///
    /// # Errors
    /// The node is gone.
    #[inline(always)]
    pub(super) fn issue_begun<M: Message>(
        &self,
        stream: &Stream,
        effect: Effect,
        message: &M,
        bytes: usize,
        fill: impl FnOnce(&mut Tail<'_>),
    ) -> Result<u64, Code> {
        let mut outbox = self.outbox.lock();
        self.put_fences(&mut outbox, Some(stream.number))?;
        let count = self.put(&mut outbox, message, bytes, effect, fill)?;
        stream.note(count, effect == Effect::Visible);
        Ok(count)
    }

    /// Lets the calling thread send what lies in the channel, before it waits for the answer.
    ///
    /// # Errors
    /// The node is gone.
    pub(super) fn flush(&self) -> Result<(), Code> {
        let mut outbox = self.outbox.lock();
        outbox.sender.flush().map_err(|error| self.inbox.lose(&error))
    }

    /// Longest tail that fits in a frame behind `fields` bytes.
    #[must_use]
    pub fn tail_max(&self, fields: usize) -> usize {
        self.body_max - fields
    }

    /// Remembers that a stream is to be fenced before other streams go on.
    pub(super) fn want_fence(&self, stream: &Stream) {
        let mut outbox = self.outbox.lock();
        // One that has ended meanwhile is done, or was fenced then.
        if !stream.is_gone() && !outbox.fences.contains(&stream.number) {
            outbox.fences.push(stream.number);
        }
        // Before another thread sends anything: what that puts on the stream may come behind the fence.
        stream.note_fenced();
    }

    /// A stream ends: what was wanted of it goes out first.
    pub(super) fn forget_fence(&self, stream: &Stream) {
        let mut outbox = self.outbox.lock();
        stream.note_gone();
        if outbox.fences.contains(&stream.number) {
            // A node that is gone is met by the command that follows.
            let _ = self.put_fences(&mut outbox, None);
        }
    }

    /// What went over so far: waits for an answer, commands, bytes of commands, messages, which are sends over a network or
    /// wake-ups within a host, and bytes of code.
    #[must_use]
    pub fn counters(&self) -> [u64; 5] {
        let sent = self.sent.counters();
        [self.inbox.waits(), sent.frames, sent.bytes, sent.messages, self.modules.code_bytes()]
    }

    #[inline]
    fn put_fences(&self, outbox: &mut Outbox, stream: Option<u32>) -> Result<(), Code> {
        if outbox.fences.is_empty() || stream.is_some_and(|stream| outbox.fences == [stream]) {
            return Ok(());
        }
        self.put_all_fences(outbox, stream)
    }

    #[cold]
    fn put_all_fences(&self, outbox: &mut Outbox, stream: Option<u32>) -> Result<(), Code> {
        for fenced in std::mem::take(&mut outbox.fences) {
            if Some(fenced) == stream {
                outbox.fences.push(fenced);
            } else {
                self.put(outbox, &Self::fence_command(fenced), 0, Effect::Quiet, |_| ())?;
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn put<M: Message>(
        &self,
        outbox: &mut Outbox,
        message: &M,
        bytes: usize,
        effect: Effect,
        fill: impl FnOnce(&mut Tail<'_>),
    ) -> Result<u64, Code> {
        let body = M::FIELD_BYTES + bytes;
        if body > self.body_max || M::FIELD_BYTES > FIELDS_MAX {
            return Err(INVALID_VALUE);
        }
        loop {
            if let Some(mut room) =
                outbox.sender.room(M::NUMBER, body).map_err(|error| self.inbox.lose(&error))?
            {
                write_fields(message, &mut room);
                if let Ok(tail) = room.part(M::FIELD_BYTES) {
                    fill(&mut Tail(tail));
                }
                match effect {
                    Effect::Visible => room.commit(),
                    Effect::Quiet => room.commit_quietly(),
                }
                outbox.count += 1;
                return Ok(outbox.count);
            }
            self.wait_room(&mut outbox.sender, body)?;
        }
    }

    /// Waits until a body may fit, and takes meanwhile what comes back: the node may be waiting for that.
    #[cold]
    fn wait_room(&self, sender: &mut Sender, body: usize) -> Result<(), Code> {
        self.inbox.drain()?;
        sender.wait_room(body, Some(PATIENCE)).map(drop).map_err(|error| self.inbox.lose(&error))
    }
}

/// Writes fields at the start of a body. Which of the two is known for each kind of command when this is compiled.
#[inline(always)]
fn write_fields<M: Message>(message: &M, room: &mut Room<'_>) {
    let written = if M::FIELD_BYTES <= FIELDS_FEW {
        let mut fields = [0; FIELDS_FEW];
        message.write(&mut fields);
        room.write_at(0, &fields[..M::FIELD_BYTES])
    } else {
        let mut fields = [0; FIELDS_MAX];
        message.write(&mut fields);
        room.write_at(0, &fields[..M::FIELD_BYTES])
    };
    debug_assert!(written.is_ok(), "a body holds its fields");
}
