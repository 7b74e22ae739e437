//! Receives parcels into a ring of this process, and lets the frames in them be seen once they are checked.

use super::parcel::{DELAY_NS_MAX, PARCEL_HEADER_BYTES, Parcel};
use super::socket::{For, Piece, Socket, failed};
use crate::error::ChannelError;
use crate::lane::Inlet;
use crate::memory::Lane;
use crate::meter::{Meter, add};
use hinterland_os::clock::monotonic_ns;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Bytes received beside a known parcel: headers, and small parcels whole.
const STAGING_BYTES: usize = 64 << 10;
/// Clocks of two processes that are further apart than this are those of two hosts.
const SAME_CLOCK_NS: u64 = 1_000_000_000;
/// What is due within this is waited for awake: a sleep is not that exact.
const AWAKE_NS: u64 = 150_000;

/// How a look at the connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taken {
    /// Something came; look at the ring.
    Some,
    /// Nothing is there now, or the ring is full.
    Nothing,
    /// The other side has ended the connection, and all that it sent is in the ring.
    End,
}

/// The receiving side of a connection.
#[derive(Debug)]
pub(crate) struct Intake {
    socket: Arc<Socket>,
    sequence: u64,
    delay_ns: u64,
    /// The header that is being received, and how much of it is there.
    header: [u8; PARCEL_HEADER_BYTES],
    header_bytes: usize,
    /// The parcel that is being received, with the number of its bytes that are missing.
    parcel: Option<(Parcel, usize)>,
    /// Bytes put into the ring since the start, and those of them that are checked.
    filled: u64,
    checked: u64,
    /// Checked bytes that are not due: up to which position, and when.
    held: VecDeque<(u64, u64)>,
    staging: Box<[u8]>,
    /// What of the staging is not in the ring.
    staged: std::ops::Range<usize>,
    ended: bool,
}

impl Intake {
    pub fn new(socket: Arc<Socket>, sequence: u64, delay: Duration) -> Self {
        Self {
            socket,
            sequence,
            delay_ns: u64::try_from(delay.as_nanos()).map_or(0, |ns| ns.min(DELAY_NS_MAX.into())),
            header: [0; PARCEL_HEADER_BYTES],
            header_bytes: 0,
            parcel: None,
            filled: 0,
            checked: 0,
            held: VecDeque::new(),
            staging: vec![0; STAGING_BYTES].into_boxed_slice(),
            staged: 0..0,
            ended: false,
        }
    }

    /// Receives once, and lets be seen what is checked and due.
    ///
    /// # Errors
    /// [`ChannelError::Broken`] for what no honest peer sends or what was damaged; [`ChannelError::Lost`] if the connection
    /// fails or ends within a parcel.
    pub fn take(&mut self, lane: &Lane, inlet: &mut Inlet, meter: &Meter) -> Result<Taken, ChannelError> {
        let before = (self.filled, self.header_bytes, inlet.seen());
        self.digest(lane, inlet)?;
        if self.staged.is_empty() && !self.ended {
            self.receive(lane, inlet, meter)?;
            self.digest(lane, inlet)?;
        }
        self.show_due(inlet);
        if before != (self.filled, self.header_bytes, inlet.seen()) {
            return Ok(Taken::Some);
        }
        let all_seen = self.held.is_empty() && self.staged.is_empty();
        if !self.ended || !all_seen {
            return Ok(Taken::Nothing);
        }
        if self.parcel.is_some() || self.header_bytes > 0 {
            let reason = "the connection ended within a parcel".to_owned();
            return Err(ChannelError::Lost { reason });
        }
        Ok(Taken::End)
    }

    /// Sleeps until something may have come, or the time is over.
    pub fn sleep(&self, rest: Option<Duration>) -> Result<(), ChannelError> {
        if let Some(&(_, due_ns)) = self.held.front() {
            let early_ns = due_ns.saturating_sub(monotonic_ns());
            let long_ns = early_ns.saturating_sub(AWAKE_NS);
            let nap = Duration::from_nanos(long_ns).min(rest.unwrap_or(Duration::MAX));
            if long_ns > 0 {
                std::thread::sleep(nap)
            } else {
                std::hint::spin_loop()
            }
            return Ok(());
        }
        self.socket.wait(For::Bytes, None, rest).map(drop).map_err(|error| failed(&error))
    }

    /// Ends the connection.
    pub fn end(&self) {
        self.socket.end();
    }

    /// One system call: what is missing of a parcel goes straight into the ring, and what follows into the staging.
    fn receive(&mut self, lane: &Lane, inlet: &Inlet, meter: &Meter) -> Result<(), ChannelError> {
        let missing = self.parcel.map_or(0, |(_, missing)| missing);
        let direct = missing.min(self.room(lane, inlet));
        if missing > 0 && direct == 0 {
            return Ok(());
        }
        let staging = if direct == missing { self.staging.len() } else { 0 };
        let pieces = [
            if direct > 0 { Piece { start: self.place(lane), bytes: direct } } else { Piece::NONE },
            Piece { start: self.staging.as_mut_ptr(), bytes: staging },
        ];
        // SAFETY: the ring is private memory with room for `direct` bytes at this place, mapped twice in a row; the
        // staging is ours.
        let received = match unsafe { self.socket.receive(pieces) } {
            Ok(None) => return Ok(()),
            Ok(Some(0)) => {
                self.ended = true;
                return Ok(());
            }
            Ok(Some(bytes)) => bytes,
            // Whether all that was sent has come is not known then, whoever ended it.
            Err(error) => return Err(ChannelError::Lost { reason: error.to_string() }),
        };
        add(&meter.transfers, 1);
        add(&meter.messages, 1);
        add(&meter.transfer_bytes, received as u64);
        let into_ring = received.min(direct);
        self.staged = 0..received - into_ring;
        self.filled += into_ring as u64;
        if let Some((parcel, missing)) = self.parcel {
            self.parcel = Some((parcel, missing - into_ring));
        }
        Ok(())
    }

    /// Takes what is staged apart, as far as the ring has room.
    fn digest(&mut self, lane: &Lane, inlet: &mut Inlet) -> Result<(), ChannelError> {
        loop {
            match self.parcel {
                Some((parcel, 0)) => {
                    self.finish(lane, inlet, parcel)?;
                    self.parcel = None;
                }
                Some((parcel, missing)) => {
                    let bytes = missing.min(self.staged.len()).min(self.room(lane, inlet));
                    if bytes == 0 {
                        return Ok(());
                    }
                    let source = &self.staging[self.staged.start..self.staged.start + bytes];
                    lane.ring.write_at(self.offset(lane), source)?;
                    self.staged.start += bytes;
                    self.filled += bytes as u64;
                    self.parcel = Some((parcel, missing - bytes));
                }
                None => {
                    let bytes = (PARCEL_HEADER_BYTES - self.header_bytes).min(self.staged.len());
                    let source = &self.staging[self.staged.start..self.staged.start + bytes];
                    self.header[self.header_bytes..][..bytes].copy_from_slice(source);
                    self.staged.start += bytes;
                    self.header_bytes += bytes;
                    if self.header_bytes < PARCEL_HEADER_BYTES {
                        return Ok(());
                    }
                    let parcel = Parcel::parse(&self.header, self.sequence)?;
                    self.header_bytes = 0;
                    self.parcel = Some((parcel, parcel.length as usize));
                }
            }
        }
    }

    /// Checks a parcel that is whole.
    fn finish(&mut self, lane: &Lane, inlet: &mut Inlet, parcel: Parcel) -> Result<(), ChannelError> {
        let offset = (self.checked & (lane.ring_bytes as u64 - 1)) as usize;
        let bytes = (self.filled - self.checked) as usize;
        // SAFETY: the ring is private memory, mapped twice in a row; these bytes are received and not shown to anybody, and
        // the next ones are written behind them.
        let payload = unsafe { std::slice::from_raw_parts(lane.ring.as_ptr().add(offset), bytes) };
        parcel.check(payload)?;
        self.sequence = self.sequence.wrapping_add(1);
        self.checked = self.filled;
        let delay_ns = u64::from(parcel.delay_ns.min(DELAY_NS_MAX)) + self.delay_ns;
        if delay_ns == 0 && self.held.is_empty() {
            inlet.believe(self.checked);
            return Ok(());
        }
        let now_ns = monotonic_ns();
        let sent_ns = if now_ns.abs_diff(parcel.sent_ns) < SAME_CLOCK_NS { parcel.sent_ns } else { now_ns };
        self.held.push_back((self.checked, sent_ns + delay_ns));
        Ok(())
    }

    /// Lets be seen what was held back long enough.
    fn show_due(&mut self, inlet: &mut Inlet) {
        while let Some(&(position, due_ns)) = self.held.front() {
            if monotonic_ns() < due_ns {
                return;
            }
            self.held.pop_front();
            inlet.believe(position);
        }
    }

    fn room(&self, lane: &Lane, inlet: &Inlet) -> usize {
        lane.ring_bytes - (self.filled - inlet.position()) as usize
    }

    fn offset(&self, lane: &Lane) -> usize {
        (self.filled & (lane.ring_bytes as u64 - 1)) as usize
    }

    fn place(&self, lane: &Lane) -> *mut u8 {
        // SAFETY: the offset is below the length of the ring, of which twice as many bytes are mapped.
        unsafe { lane.ring.as_ptr().add(self.offset(lane)) }
    }
}
