//! The half of an end that sends.

use crate::error::ChannelError;
use crate::fate::Fate;
use crate::frame_bytes;
use crate::lane::Outlet;
use crate::line::Line;
use crate::memory::Lane;
use crate::meter::{Counters, Meter, add};
use crate::network::pump::Drain;
use crate::patience::{Awaited, wait_until};
use crate::room::Room;
use hinterland_os::{SpinBudget, barrier};
use std::sync::Arc;
use std::time::Duration;

/// Commits in a row that find the sending thread asleep and send by themselves; the next one wakes it, as more will come.
const DIRECT_MAX: u32 = 2;

/// Frames after which the peer is asked for by a system call, so that it costs a nanosecond a frame.
const FRAMES_PER_PROBE: u32 = 512;

/// Who reads the ring, and how it is woken and waited for.
#[derive(Debug)]
pub(crate) enum Reader {
    /// The other side of a channel in shared memory.
    Peer(Arc<Line>),
    /// A thread of this process, which sends what it reads.
    Drain(Drain),
}

/// Sends frames. For one thread at a time; several need a lock around it. Nothing here allocates after it was made.
///
/// Dropping either half ends the channel for the other side: it takes what was sent, and then finds the channel closed.
#[derive(Debug)]
pub struct Sender {
    lane: Lane,
    outlet: Outlet,
    reader: Reader,
    body_bytes_max: usize,
    fate: Fate,
    meter: Arc<Meter>,
    /// Whether this process takes part in barriers that the peer makes.
    registered: bool,
    budget: SpinBudget,
    until_probe: u32,
    /// Commits since the last flush, or since the sending thread was woken, that sent by themselves.
    direct: u32,
}

impl Sender {
    pub(crate) fn new(
        lane: Lane,
        reader: Reader,
        body_bytes_max: usize,
        fate: Fate,
        meter: Arc<Meter>,
    ) -> Self {
        let registered = barrier::register();
        if registered {
            lane.words().sender().promise_barriers();
        }
        Self {
            outlet: Outlet::new(lane.ring_bytes as u64),
            lane,
            reader,
            body_bytes_max,
            fate,
            meter,
            registered,
            budget: SpinBudget::new(hinterland_os::affinity::online_core_count()),
            until_probe: FRAMES_PER_PROBE,
            direct: 0,
        }
    }

    /// Room for a frame with this word and a body of so many bytes, in one piece. `None` while the ring is full: see
    /// [`wait_room`](Self::wait_room).
    ///
    /// # Errors
    /// [`ChannelError::TooLong`]; [`ChannelError::Closed`] soon after the peer has gone, and [`ChannelError::Broken`].
    #[inline(always)]
    pub fn room(&mut self, word: u32, body_bytes: usize) -> Result<Option<Room<'_>>, ChannelError> {
        self.check_length(body_bytes)?;
        self.until_probe -= 1;
        if self.until_probe == 0 {
            self.probe();
        }
        if self.fate.is_over() {
            return Err(self.fate.error());
        }
        if !self.has_room(frame_bytes(body_bytes))? {
            return Ok(None);
        }
        Ok(Some(Room::new(self, word, body_bytes)))
    }

    /// Waits until there may be room for a body of so many bytes: spins, then sleeps. `false` when the time is over first.
    ///
    /// # Errors
    /// As [`room`](Self::room); the end of the peer ends the sleep.
    pub fn wait_room(&mut self, body_bytes: usize, timeout: Option<Duration>) -> Result<bool, ChannelError> {
        self.check_length(body_bytes)?;
        // A reader that sleeps would never make room.
        self.flush()?;
        let mut budget = self.budget;
        let found = wait_until(
            &mut AwaitedRoom { sender: self, bytes: frame_bytes(body_bytes) },
            &mut budget,
            timeout,
        );
        self.budget = budget;
        found
    }

    /// Has what was committed noticed: wakes a peer of the same host that sleeps. Over a network, the calling thread sends by
    /// itself what the connection takes, so that nobody has to be woken for it.
    ///
    /// # Errors
    /// [`ChannelError::Closed`], [`ChannelError::Broken`]. A peer that has gone may have taken all of it, and answered: what
    /// it sent is still taken from the [`Receiver`](crate::Receiver).
    pub fn flush(&mut self) -> Result<(), ChannelError> {
        if self.fate.is_over() {
            return Err(self.fate.error());
        }
        let sent = match &self.reader {
            Reader::Peer(_) => false,
            Reader::Drain(drain) => drain.send_now(),
        };
        self.direct = DIRECT_MAX;
        if !sent {
            self.wake_reader();
        }
        self.direct = 0;
        if self.fate.is_over() { Err(self.fate.error()) } else { Ok(()) }
    }

    /// Most bytes of a body.
    #[inline]
    #[must_use]
    pub fn body_max(&self) -> usize {
        self.body_bytes_max
    }

    /// What was sent so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.meter.counters()
    }

    /// The counters, for another thread to read.
    #[must_use]
    pub fn meter(&self) -> Arc<Meter> {
        Arc::clone(&self.meter)
    }

    /// Where the next frame goes.
    #[inline]
    pub(crate) fn place(&self) -> *mut u8 {
        // SAFETY: the offset is below the length of the ring, of which twice as many bytes are mapped.
        unsafe { self.lane.ring.as_ptr().add(self.outlet.offset()) }
    }

    /// Publishes the frame at [`place`](Self::place).
    #[inline]
    pub(crate) fn publish(&mut self, bytes: usize) {
        self.outlet.publish(self.lane.words(), bytes as u64);
        add(&self.meter.frames, 1);
        add(&self.meter.bytes, bytes as u64);
    }

    /// Has the reader know, if it sleeps.
    #[inline]
    pub(crate) fn wake_reader(&mut self) {
        if self.lane.words().receiver().must_wake(self.registered) {
            self.ring();
        }
    }

    #[cold]
    fn ring(&mut self) {
        match &self.reader {
            Reader::Peer(line) => {
                line.ring();
                add(&self.meter.messages, 1);
            }
            Reader::Drain(drain) => {
                if self.direct < DIRECT_MAX && drain.send_now() {
                    self.direct += 1;
                    // The thread sleeps on: must_wake() has taken its announcement. If it has come up meanwhile, it is woken
                    // once for nothing.
                    self.lane.words().receiver().bell.announce();
                    return;
                }
                self.direct = 0;
                drain.wake();
            }
        }
        add(&self.meter.wakes, 1);
    }

    #[inline]
    fn has_room(&mut self, bytes: usize) -> Result<bool, ChannelError> {
        match self.outlet.has_room(self.lane.words(), bytes as u64) {
            Ok(found) => Ok(found),
            Err(bad) => Err(self.break_off(ChannelError::position(bad))),
        }
    }

    #[inline]
    fn check_length(&self, body_bytes: usize) -> Result<(), ChannelError> {
        let bytes_max = self.body_bytes_max;
        if body_bytes <= bytes_max {
            Ok(())
        } else {
            Err(ChannelError::TooLong { bytes: body_bytes, bytes_max })
        }
    }

    #[cold]
    fn probe(&mut self) {
        self.until_probe = FRAMES_PER_PROBE;
        // The thread that drains a ring finds out by itself.
        if let Reader::Peer(line) = &self.reader
            && line.has_ended()
        {
            self.fate.close();
        }
    }

    #[cold]
    fn break_off(&self, error: ChannelError) -> ChannelError {
        self.fate.end(error)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // The other half may keep the socket open; the peer is to find out now.
        if let Reader::Peer(line) = &self.reader {
            line.end();
        }
    }
}

struct AwaitedRoom<'sender> {
    sender: &'sender mut Sender,
    bytes: usize,
}

impl Awaited for AwaitedRoom<'_> {
    #[inline]
    fn look(&mut self) -> Result<bool, ChannelError> {
        if self.sender.fate.is_over() {
            return Err(self.sender.fate.error());
        }
        self.sender.has_room(self.bytes)
    }

    fn nap(&mut self, rest: Option<Duration>) -> Result<(), ChannelError> {
        let registered = self.sender.registered;
        self.sender.lane.words().sender().announce(|| {
            if registered {
                barrier::all_processors();
            }
        });
        let mut slept = Ok(());
        let found = self.look();
        if matches!(found, Ok(false)) {
            add(&self.sender.meter.sleeps, 1);
            match &self.sender.reader {
                Reader::Peer(line) => slept = line.sleep(rest),
                Reader::Drain(_) => self.sender.lane.words().sender().bell.sleep(rest),
            }
        }
        self.sender.lane.words().sender().bell.retract();
        self.sender.probe();
        found?;
        Ok(slept?)
    }
}
