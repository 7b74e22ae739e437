//! Sends what lies in a ring: by a thread that goes on as long as there is something, or by the thread that wrote it.

use super::parcel::{PARCEL_BYTES_MAX, PARCEL_HEADER_BYTES, Parcel};
use super::socket::{For, Piece, Socket, failed};
use crate::error::ChannelError;
use crate::fate::Fate;
use crate::lane::Inlet;
use crate::memory::Lane;
use crate::meter::{Meter, add};
use crate::patience::{Awaited, wait_until};
use hinterland_os::clock::monotonic_ns;
use hinterland_os::poll::EventCounter;
use hinterland_os::{OsError, SpinBudget, barrier};
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a sender that is dropped goes on to send what lies in its ring, to a peer that takes it slowly.
const LINGER_MAX: Duration = Duration::from_secs(1);
/// Looks while the peer takes nothing, at most so far apart, to find out that we are to stop.
const BLOCKED_NAP: Duration = Duration::from_millis(100);

/// What sends what a [`Sender`](crate::Sender) has put into its ring; stops and is waited for on drop.
#[derive(Debug)]
pub(crate) struct Drain {
    common: Arc<Common>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Common {
    lane: Lane,
    socket: Arc<Socket>,
    pump: Mutex<Pump>,
    wake: EventCounter,
    stopping: AtomicBool,
    fate: Fate,
    meter: Arc<Meter>,
}

impl Drain {
    /// Starts the thread that drains the ring of `lane`.
    pub fn start(
        lane: Lane,
        socket: Arc<Socket>,
        sequence: u64,
        delay_ns: u32,
        fate: Fate,
        meter: Arc<Meter>,
    ) -> Result<Self, ChannelError> {
        if barrier::register() {
            lane.words().receiver().promise_barriers();
        }
        let pump = Pump {
            inlet: Inlet::new(lane.ring_bytes as u64),
            sequence,
            delay_ns,
            header: [0; PARCEL_HEADER_BYTES],
            header_left: 0,
            payload: 0,
            payload_left: 0,
        };
        let wake = EventCounter::new()?;
        let stopping = AtomicBool::new(false);
        let common = Arc::new(Common { lane, socket, pump: Mutex::new(pump), wake, stopping, fate, meter });
        let thread = {
            let common = Arc::clone(&common);
            std::thread::Builder::new().name("hinterland-send".to_owned()).spawn(move || common.run())
        };
        let thread =
            thread.map_err(|error| OsError::system("starting a thread", "hinterland-send", error))?;
        Ok(Self { common, thread: Some(thread) })
    }

    /// Wakes the thread.
    pub fn wake(&self) {
        self.common.wake.raise();
    }

    /// Sends what there is, in the calling thread; `false` if the other thread has to go on with it.
    pub fn send_now(&self) -> bool {
        match self.common.pump.try_lock() {
            Ok(mut pump) => self.common.push(&mut pump) != Pushed::Blocked,
            Err(TryLockError::Poisoned(_)) => true,
            // Whoever holds the lock looks once more before it sleeps, and is found asleep by the caller if it did not.
            Err(TryLockError::WouldBlock) => false,
        }
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in run().
        self.common.stopping.store(true, Ordering::Release);
        self.common.wake.raise();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has nothing left to be waited for.
            let _ = thread.join();
        }
    }
}

/// How far a push came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pushed {
    /// Nothing was there.
    Nothing,
    /// All that was there has left.
    All,
    /// The connection takes no more now.
    Blocked,
    /// The connection has ended.
    Over,
}

/// What is on its way, and what comes next; whoever holds it sends.
#[derive(Debug)]
struct Pump {
    inlet: Inlet,
    sequence: u64,
    delay_ns: u32,
    header: [u8; PARCEL_HEADER_BYTES],
    /// Bytes of the header that have not left.
    header_left: usize,
    /// Bytes of the parcel that is on its way, and how many of them have not left.
    payload: usize,
    payload_left: usize,
}

impl Common {
    fn lock(&self) -> MutexGuard<'_, Pump> {
        self.pump.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(self: Arc<Self>) {
        leave_signals_to_others();
        let mut budget = SpinBudget::new(hinterland_os::affinity::online_core_count());
        let mut stop_at = None;
        while !self.fate.is_over() {
            // Acquire: pairs with the Release in Drain::drop().
            if stop_at.is_none() && self.stopping.load(Ordering::Acquire) {
                stop_at = Some(Instant::now() + LINGER_MAX);
            }
            // The guard is gone before the thread waits for anything.
            let pushed = self.push(&mut self.lock());
            match (pushed, stop_at) {
                (Pushed::Over, _) | (Pushed::Nothing | Pushed::All, Some(_)) => break,
                (Pushed::Blocked, Some(limit)) if Instant::now() >= limit => break,
                (Pushed::Blocked, _) => self.watch(self.socket.wait(For::Room, None, Some(BLOCKED_NAP))),
                (Pushed::All, None) => {}
                // An error is in the fate, which the loop looks at.
                (Pushed::Nothing, None) => {
                    drop(wait_until(&mut Idle { common: &self }, &mut budget, None));
                }
            }
        }
        self.socket.end_sending();
        // A writer that waits for room waits in vain.
        self.fate.close();
        let sender = self.lane.words().sender();
        if sender.must_wake(false) {
            sender.bell.wake();
        }
    }

    /// Sends until nothing is left or the connection takes no more.
    fn push(&self, pump: &mut Pump) -> Pushed {
        let mut pushed = Pushed::Nothing;
        loop {
            if pump.payload_left == 0 && !pump.cut(&self.lane) {
                return pushed;
            }
            match pump.send(&self.lane, &self.socket) {
                Ok(Some(bytes)) => {
                    add(&self.meter.transfers, 1);
                    add(&self.meter.messages, 1);
                    add(&self.meter.transfer_bytes, bytes as u64);
                }
                Ok(None) => return Pushed::Blocked,
                Err(error) => {
                    self.fate.end(failed(&error));
                    return Pushed::Over;
                }
            }
            if pump.payload_left == 0 {
                pushed = Pushed::All;
                self.release(pump);
            }
        }
    }

    /// Takes note of how a wait ended: a peer that has ended its direction, or a connection that failed, is gone.
    fn watch(&self, ended: io::Result<bool>) {
        let error = match ended {
            Ok(false) => return,
            Ok(true) => self.socket.failure().map_or(ChannelError::Closed, |error| failed(&error)),
            Err(error) => failed(&error),
        };
        self.fate.end(error);
    }

    /// Gives the bytes of a parcel that has left back to the writer.
    fn release(&self, pump: &mut Pump) {
        let words = self.lane.words();
        let ask = pump.inlet.release(words, pump.payload as u64);
        if ask && words.sender().must_wake(barrier::register()) {
            words.sender().bell.wake();
        }
    }
}

impl Pump {
    /// Takes what is published as the next parcel; whether there was anything.
    fn cut(&mut self, lane: &Lane) -> bool {
        // Positions in private memory are right.
        if self.inlet.seen() == 0 && self.inlet.look(lane.words()).unwrap_or(0) == 0 {
            return false;
        }
        let bytes =
            usize::try_from(self.inlet.seen()).map_or(PARCEL_BYTES_MAX, |seen| seen.min(PARCEL_BYTES_MAX));
        // SAFETY: the ring is private memory of this process, mapped twice in a row; these bytes are published and not
        // released, so that nobody writes them.
        let payload =
            unsafe { std::slice::from_raw_parts(lane.ring.as_ptr().add(self.inlet.offset()), bytes) };
        self.header = Parcel::of(payload, self.sequence, monotonic_ns(), self.delay_ns).to_bytes();
        self.sequence = self.sequence.wrapping_add(1);
        (self.header_left, self.payload, self.payload_left) = (PARCEL_HEADER_BYTES, bytes, bytes);
        true
    }

    /// Sends what is left of the parcel, once; how many bytes left.
    fn send(&mut self, lane: &Lane, socket: &Socket) -> io::Result<Option<usize>> {
        let header = &mut self.header[PARCEL_HEADER_BYTES - self.header_left..];
        // SAFETY: the parcel lies in the ring from the offset on, of which `payload_left` bytes are its end.
        let start = unsafe { lane.ring.as_ptr().add(self.inlet.offset() + self.payload - self.payload_left) };
        let pieces = [
            Piece { start: header.as_mut_ptr(), bytes: header.len() },
            Piece { start, bytes: self.payload_left },
        ];
        // SAFETY: the header is a live borrow; the parcel is not released before all of it has left.
        let sent = unsafe { socket.send(pieces) }?;
        if let Some(bytes) = sent {
            let of_header = bytes.min(self.header_left);
            self.header_left -= of_header;
            self.payload_left -= bytes - of_header;
        }
        Ok(sent)
    }
}

/// Has the handlers of the program run in its own threads, and not in one that it does not know of.
fn leave_signals_to_others() {
    // SAFETY: an all-zero set is valid, and both calls are given live sets or none; they change the calling thread only.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
    }
}

/// The thread while there is nothing to send.
struct Idle<'drain> {
    common: &'drain Common,
}

impl Awaited for Idle<'_> {
    fn look(&mut self) -> Result<bool, ChannelError> {
        let common = self.common;
        // Acquire: pairs with the Release in Drain::drop().
        if common.fate.is_over() || common.stopping.load(Ordering::Acquire) {
            return Ok(true);
        }
        let mut pump = common.lock();
        let seen = pump.inlet.look(common.lane.words()).unwrap_or(0);
        Ok(seen > 0 || pump.payload_left > 0)
    }

    fn nap(&mut self, rest: Option<Duration>) -> Result<(), ChannelError> {
        let common = self.common;
        let receiver = common.lane.words().receiver();
        receiver.announce(|| {
            if barrier::register() {
                barrier::all_processors();
            }
        });
        if !self.look()? {
            common.watch(common.socket.wait(For::End, Some(common.wake.as_fd()), rest));
        }
        receiver.bell.retract();
        common.wake.take();
        Ok(())
    }
}
