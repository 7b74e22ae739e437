//! A channel to the answering process: frames that nobody answers, and round trips.

use crate::bench::rounds::Samples;
use crate::failure::Failure;
use hinterland_channel::{Address, ChannelError, ChannelOptions, Receiver, Sender, connect, frame_bytes};
use hinterland_proto::{ClientIdentity, Features, PoolId, Role};
use hinterland_types::NodeId;
use std::time::{Duration, Instant};

/// How long an answer may take.
const LONG: Duration = Duration::from_secs(20);
/// Bytes of an answer that only says that all before it was taken.
const MARK_BYTES: usize = 8;

/// This side of a channel whose other side takes frames, and answers those that ask for it.
pub struct Link {
    sender: Sender,
    receiver: Receiver,
    bytes: Vec<u8>,
}

impl Link {
    /// Connects to an answering process.
    ///
    /// # Errors
    /// [`Failure`] if nobody answers there.
    pub fn open(address: &str) -> Result<Self, Failure> {
        let address: Address = address.parse().map_err(broken)?;
        let identity = ClientIdentity {
            role: Role::Client,
            node: NodeId(0),
            pool: PoolId::ANY,
            key: None,
            features: Features(0),
            join: None,
        };
        let channel = connect(&address, &identity, ChannelOptions::default()).map_err(broken)?;
        let (sender, receiver) = channel.split().map_err(broken)?;
        Ok(Self { bytes: vec![1; sender.body_max()], sender, receiver })
    }

    /// Nanoseconds of a frame with a body of so many bytes: the median of bursts, with a wait after each that does not count.
    ///
    /// # Errors
    /// [`Failure`] when the channel has ended.
    pub fn burst_ns(&mut self, bursts: usize, each: usize, body: usize) -> Result<f64, Failure> {
        let mut samples = Samples::default();
        for _ in 0..bursts {
            let begin = Instant::now();
            self.frames(each, body)?;
            samples.add(begin.elapsed().as_nanos() as f64 / each as f64);
            self.trip(MARK_BYTES, MARK_BYTES)?;
        }
        samples.median().ok_or_else(|| Failure::new("no frame was sent", "report this"))
    }

    /// Nanoseconds of a frame of many, until the last one was taken.
    ///
    /// # Errors
    /// [`Failure`] when the channel has ended.
    pub fn burst_ns_to_the_end(&mut self, count: usize, body: usize) -> Result<f64, Failure> {
        let begin = Instant::now();
        self.frames(count, body)?;
        self.trip(MARK_BYTES, MARK_BYTES)?;
        Ok(begin.elapsed().as_nanos() as f64 / count as f64)
    }

    /// Nanoseconds of round trips, one after the other: bytes of each request and of its answer.
    ///
    /// # Errors
    /// [`Failure`] when the channel has ended.
    pub fn trips(&mut self, trips: &[(usize, usize)]) -> Result<f64, Failure> {
        let begin = Instant::now();
        for (out, back) in trips {
            self.trip(*out, *back)?;
        }
        Ok(begin.elapsed().as_nanos() as f64)
    }

    /// Bytes that these round trips put into the ring, made to be counted.
    ///
    /// # Errors
    /// [`Failure`] when the channel has ended.
    pub fn bytes_of(&mut self, trips: &[(usize, usize)]) -> Result<f64, Failure> {
        let before = self.sender.counters().bytes;
        self.trips(trips)?;
        Ok((self.sender.counters().bytes - before) as f64)
    }

    fn frames(&mut self, count: usize, body: usize) -> Result<(), Failure> {
        let bytes = self.bytes.get(..body).ok_or_else(|| too_long(body))?;
        for _ in 0..count {
            put(&mut self.sender, 0, bytes).map_err(broken)?;
        }
        Ok(())
    }

    fn trip(&mut self, out: usize, back: usize) -> Result<(), Failure> {
        let bytes = self.bytes.get(..out).ok_or_else(|| too_long(out))?;
        let word = u32::try_from(back).map_err(|_| too_long(back))?;
        put(&mut self.sender, word, bytes).map_err(broken)?;
        self.sender.flush().map_err(broken)?;
        loop {
            if let Some(mut frame) = self.receiver.next().map_err(broken)? {
                // The program takes its bytes out of the ring, too.
                return if frame.bytes().len() == back { Ok(()) } else { Err(wrong(frame.len(), back)) };
            }
            if !self.receiver.wait(Some(LONG)).map_err(broken)? {
                return Err(Failure::new("the answering process answers no more", "see what it said above"));
            }
        }
    }
}

/// Sends a frame, waiting for room if there is none.
///
/// # Errors
/// The channel has ended, or the body is too long for it.
pub fn put(sender: &mut Sender, word: u32, body: &[u8]) -> Result<(), ChannelError> {
    loop {
        if let Some(mut room) = sender.room(word, body.len())? {
            room.append(body)?;
            room.commit();
            return Ok(());
        }
        sender.wait_room(body.len(), Some(LONG))?;
    }
}

/// A channel that does not work.
pub fn broken(error: ChannelError) -> Failure {
    Failure::of(&error)
}

fn too_long(bytes: usize) -> Failure {
    Failure::new(format!("a frame of {} bytes is too long", frame_bytes(bytes)), "report this")
}

fn wrong(found: usize, expected: usize) -> Failure {
    Failure::new(format!("an answer has {found} bytes and not {expected}"), "report this")
}
