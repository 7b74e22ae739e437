//! The half of an end that receives.

use crate::error::ChannelError;
use crate::fate::Fate;
use crate::frame::{Frame, HEAD_BYTES_MAX};
use crate::lane::Inlet;
use crate::line::Line;
use crate::memory::Lane;
use crate::meter::{Counters, Meter, add};
use crate::network::intake::{Intake, Taken};
use crate::patience::{Awaited, wait_until};
use crate::{FRAME_HEADER_BYTES, frame_bytes};
use hinterland_os::shared_slice::copy_racing;
use hinterland_os::{SpinBudget, barrier};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Looks that find nothing after which the peer is asked for by a system call.
const LOOKS_PER_PROBE: u32 = 1024;

/// Who writes the ring, and how it is woken and waited for.
#[derive(Debug)]
pub(crate) enum Writer {
    /// The other side of a channel in shared memory.
    Peer(Arc<Line>),
    /// This half itself, from a connection.
    Intake(Box<Intake>),
}

/// Receives frames. For one thread at a time. Nothing here allocates after it was made, but [`Frame::bytes`].
#[derive(Debug)]
pub struct Receiver {
    lane: Lane,
    inlet: Inlet,
    writer: Writer,
    body_bytes_max: usize,
    fate: Fate,
    meter: Arc<Meter>,
    /// Whether this process takes part in barriers that the peer makes.
    registered: bool,
    budget: SpinBudget,
    until_probe: u32,
    /// Bytes of the frame that is out; 0 if none is.
    taken: usize,
    head: Box<[u8; HEAD_BYTES_MAX]>,
    whole: Vec<u8>,
    /// Whether a connection has told all that it will.
    finished: bool,
}

impl Receiver {
    pub(crate) fn new(lane: Lane, writer: Writer, body_bytes_max: usize, fate: Fate) -> Self {
        let registered = barrier::register();
        if registered {
            lane.words().receiver().promise_barriers();
        }
        Self {
            inlet: Inlet::new(lane.ring_bytes as u64),
            lane,
            writer,
            body_bytes_max,
            fate,
            meter: Arc::default(),
            registered,
            budget: SpinBudget::new(hinterland_os::affinity::online_core_count()),
            until_probe: LOOKS_PER_PROBE,
            taken: 0,
            head: Box::new([0; HEAD_BYTES_MAX]),
            whole: Vec::new(),
            finished: false,
        }
    }

    /// The next frame, if one is there. Never waits.
    ///
    /// # Errors
    /// [`ChannelError::Closed`] soon after the peer has gone and all that it sent was taken; [`ChannelError::Broken`], for
    /// ever from the first thing on that makes no sense.
    #[inline]
    #[allow(
        clippy::should_implement_trait,
        reason = "a frame borrows from the receiver, which no Iterator allows"
    )]
    pub fn next(&mut self) -> Result<Option<Frame<'_>>, ChannelError> {
        self.release_taken();
        self.fate.check_unbroken()?;
        let found = match self.writer {
            Writer::Peer(_) => self.has_bytes()? || self.has_late_bytes()?,
            Writer::Intake(_) => self.has_come()?,
        };
        if !found {
            return Ok(None);
        }
        let (word, body_bytes) = self.take_header()?;
        self.taken = frame_bytes(body_bytes);
        add(&self.meter.frames, 1);
        add(&self.meter.bytes, self.taken as u64);
        let head_bytes = body_bytes.min(HEAD_BYTES_MAX);
        // SAFETY: the header was checked, so that the frame with its body lies at this place, mapped in one piece; the
        // head has HEAD_BYTES_MAX bytes and is ours.
        unsafe { copy_racing(self.place().add(FRAME_HEADER_BYTES), self.head.as_mut_ptr(), head_bytes) };
        Ok(Some(Frame::new(self, word, body_bytes)))
    }

    /// Waits until a frame is there: spins, then sleeps. `false` when the time is over first; without a limit never.
    ///
    /// # Errors
    /// As [`next`](Self::next); the end of the peer ends the sleep.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, ChannelError> {
        self.release_taken();
        let mut budget = self.budget;
        let found = wait_until(self, &mut budget, timeout);
        self.budget = budget;
        found
    }

    /// Most bytes of a body.
    #[must_use]
    pub fn body_max(&self) -> usize {
        self.body_bytes_max
    }

    /// What was received so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.meter.counters()
    }

    /// The counters, for another thread to read.
    #[must_use]
    pub fn meter(&self) -> Arc<Meter> {
        Arc::clone(&self.meter)
    }

    /// Where the frame that is out, or else the next one, begins.
    #[inline]
    pub(crate) fn place(&self) -> *mut u8 {
        // SAFETY: the offset is below the length of the ring, of which twice as many bytes are mapped.
        unsafe { self.lane.ring.as_ptr().add(self.inlet.offset()) }
    }

    #[inline]
    pub(crate) fn head(&self, bytes: usize) -> &[u8] {
        &self.head[..bytes]
    }

    /// All of the body of the frame that is out, which is longer than the head, in private memory.
    pub(crate) fn whole(&mut self, body_bytes: usize) -> &[u8] {
        // SAFETY: the header of a frame is followed by its body.
        let body = unsafe { self.place().add(FRAME_HEADER_BYTES) };
        if matches!(self.writer, Writer::Intake(_)) {
            // SAFETY: the frame that is out has a body of so many bytes, in one piece, in memory of this process that only
            // we write, and not before the frame is given back.
            return unsafe { std::slice::from_raw_parts(body, body_bytes) };
        }
        self.whole.resize(self.whole.len().max(body_bytes), 0);
        let (head, rest) = self.whole[..body_bytes].split_at_mut(HEAD_BYTES_MAX);
        head.copy_from_slice(&self.head[..]);
        // SAFETY: the body has as many bytes behind its head; the destination is an exclusive borrow.
        unsafe { copy_racing(body.add(HEAD_BYTES_MAX), rest.as_mut_ptr(), rest.len()) };
        &self.whole[..body_bytes]
    }

    /// Gives the frame that is out back to the writer, and wakes it if it waits for that.
    #[inline]
    pub(crate) fn release_taken(&mut self) {
        let bytes = std::mem::take(&mut self.taken);
        if bytes == 0 {
            return;
        }
        let words = self.lane.words();
        let ask = self.inlet.release(words, bytes as u64);
        if let Writer::Peer(line) = &self.writer
            && ask
            && words.sender().must_wake(self.registered)
        {
            line.ring();
            add(&self.meter.wakes, 1);
            add(&self.meter.messages, 1);
        }
    }

    #[inline]
    fn has_bytes(&mut self) -> Result<bool, ChannelError> {
        if self.inlet.seen() > 0 {
            return Ok(true);
        }
        match self.inlet.look(self.lane.words()) {
            Ok(bytes) => Ok(bytes > 0),
            Err(bad) => Err(self.break_off(ChannelError::position(bad))),
        }
    }

    /// Whether a whole frame has come over the connection, after a look at it if not.
    fn has_come(&mut self) -> Result<bool, ChannelError> {
        if self.finished {
            return Err(self.fate.error());
        }
        let Writer::Intake(intake) = &mut self.writer else { return Ok(false) };
        loop {
            let seen = self.inlet.seen();
            if seen >= FRAME_HEADER_BYTES as u64 {
                // SAFETY: 8 bytes were received at this place, a multiple of 8 in private memory.
                let place = unsafe { self.lane.ring.as_ptr().add(self.inlet.offset()).cast::<u64>() };
                // SAFETY: as above.
                let body_bytes = (unsafe { place.read() } & 0xffff_ffff) as usize;
                // A longer one is refused when its header is taken.
                if body_bytes > self.body_bytes_max || seen >= frame_bytes(body_bytes) as u64 {
                    return Ok(true);
                }
            }
            let error = match intake.take(&self.lane, &mut self.inlet, &self.meter) {
                Ok(Taken::Some) => continue,
                Ok(Taken::Nothing) => return Ok(false),
                Ok(Taken::End) if seen == 0 => ChannelError::Closed,
                Ok(Taken::End) => {
                    ChannelError::Lost { reason: "the connection ended within a frame".to_owned() }
                }
                Err(error) => error,
            };
            intake.end();
            self.finished = true;
            return Err(self.fate.end(error));
        }
    }

    /// Called when nothing was there: asks at times whether the peer is still there, and looks once more if it is not.
    #[inline]
    fn has_late_bytes(&mut self) -> Result<bool, ChannelError> {
        self.until_probe -= 1;
        if self.until_probe == 0 {
            self.probe();
        }
        if !self.fate.is_over() {
            return Ok(false);
        }
        // What the peer published before it went is there now.
        if self.has_bytes()? { Ok(true) } else { Err(self.fate.error()) }
    }

    #[cold]
    fn probe(&mut self) {
        self.until_probe = LOOKS_PER_PROBE;
        if let Writer::Peer(line) = &self.writer
            && line.has_ended()
        {
            self.fate.close();
        }
    }

    /// Reads the header of the next frame, once, and checks it.
    #[inline]
    fn take_header(&mut self) -> Result<(u32, usize), ChannelError> {
        // SAFETY: at least 8 bytes were seen to be published at this place, a multiple of 8 in a live mapping.
        let header = unsafe { AtomicU64::from_ptr(self.place().cast()) };
        // Relaxed: ordered by the Acquire of the position in Inlet::look().
        let header = header.load(Ordering::Relaxed);
        let (word, body_bytes) = ((header >> 32) as u32, (header & 0xffff_ffff) as usize);
        if body_bytes > self.body_bytes_max || frame_bytes(body_bytes) as u64 > self.inlet.seen() {
            let seen = self.inlet.seen();
            let reason = format!("a frame says {body_bytes} bytes where {seen} are published");
            return Err(self.break_off(ChannelError::Broken { reason }));
        }
        Ok((word, body_bytes))
    }

    #[cold]
    fn break_off(&self, error: ChannelError) -> ChannelError {
        if let Writer::Intake(intake) = &self.writer {
            intake.end();
        }
        self.fate.end(error)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // The other half may keep the socket open; the peer is to find out now.
        if let Writer::Peer(line) = &self.writer {
            line.end();
        }
    }
}

impl Awaited for Receiver {
    #[inline]
    fn look(&mut self) -> Result<bool, ChannelError> {
        self.fate.check_unbroken()?;
        if matches!(self.writer, Writer::Intake(_)) {
            return self.has_come();
        }
        if self.has_bytes()? {
            return Ok(true);
        }
        if !self.fate.is_over() {
            return Ok(false);
        }
        if self.has_bytes()? { Ok(true) } else { Err(self.fate.error()) }
    }

    fn nap(&mut self, rest: Option<Duration>) -> Result<(), ChannelError> {
        if let Writer::Intake(intake) = &self.writer {
            add(&self.meter.sleeps, 1);
            return intake.sleep(rest);
        }
        let registered = self.registered;
        self.lane.words().receiver().announce(|| {
            if registered {
                barrier::all_processors();
            }
        });
        let mut slept = Ok(());
        let found = self.look();
        if matches!(found, Ok(false)) {
            add(&self.meter.sleeps, 1);
            if let Writer::Peer(line) = &self.writer {
                slept = line.sleep(rest);
            }
        }
        self.lane.words().receiver().bell.retract();
        self.probe();
        found?;
        Ok(slept?)
    }
}
