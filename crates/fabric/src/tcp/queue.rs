//! Many operations in flight from one thread, over streams of their own.

use super::Mode;
use super::channel::{Answer, Channel, Request};
use super::client::{Connector, check_call, plain};
use super::cutter::Cutter;
use super::socket::{Interest, Spinner, Wait, wait_for};
use super::stripes::FrameDraft;
use crate::endpoint::{Completion, Outcome, Queue};
use crate::error::FabricError;
use crate::part::Part;
use crate::slice::Slice;
use hinterland_proto::FrameKind;
use hinterland_types::{ByteRange, Handle};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Operations in flight at once: enough to fill a network, few enough that each one's memory is accounted for.
const OPERATIONS_MAX: usize = 4096;
/// How long a queue that has a stream does with those that it has, after another could not be opened: to ask takes a round trip at the
/// least, and no operation shall wait for it again and again.
const UNOPENED_REST: Duration = Duration::from_secs(1);

/// One stream of the queue; `None` after it broke, until the next operation is posted.
struct Lane {
    channel: Option<Channel>,
    /// When it last answered, or was last given work while it had none.
    progressed: Instant,
}

/// A posted operation.
struct Operation {
    tag: u64,
    frames_left: usize,
    /// Keeps the memory alive that its frames name.
    slices: Vec<Slice>,
    result: Result<Outcome, FabricError>,
}

/// A queue over TCP.
pub(super) struct TcpQueue {
    connector: Connector,
    lanes: Vec<Lane>,
    operations: Vec<Option<Operation>>,
    free: Vec<usize>,
    completed: VecDeque<Completion>,
    /// When a stream could not be opened last.
    unopened: Option<Instant>,
}

impl TcpQueue {
    /// Opens as many streams as the endpoint has; at least one.
    pub fn open(connector: Connector, streams: usize) -> Result<Self, FabricError> {
        let mut lanes = vec![Lane { channel: Some(connector.join()?), progressed: Instant::now() }];
        lanes.resize_with(streams.max(1), || Lane { channel: None, progressed: Instant::now() });
        let (operations, free, completed) = (Vec::new(), Vec::new(), VecDeque::new());
        Ok(Self { connector, lanes, operations, free, completed, unopened: None })
    }

    fn post_transfer(
        &mut self,
        kind: FrameKind,
        tag: u64,
        handle: Handle,
        runs: &[ByteRange],
        slices: &[Slice],
    ) -> Result<(), FabricError> {
        let parts: Vec<Part> = slices.iter().map(Part::of_slice).collect();
        let (options, limits) = (&self.connector.options, self.connector.limits);
        let frame_bytes_max = options.chunk_bytes.min(limits.body_bytes_max);
        let mut cutter = Cutter::new(runs, &parts, frame_bytes_max, limits.runs_max)?;
        let mut frame = FrameDraft::new(kind, handle, options.checksums);
        if !frame.cut(&mut cutter)? {
            self.completed.push_back(Completion { tag, result: Ok(Outcome::Done) });
            return Ok(());
        }
        let index = self.reserve(tag, slices.to_vec())?;
        loop {
            self.begin(index, &frame.request(index as u64));
            if !frame.cut(&mut cutter)? {
                break;
            }
        }
        self.flush();
        Ok(())
    }

    /// Finds a place for an operation and makes sure that a stream is there to take it.
    fn reserve(&mut self, tag: u64, slices: Vec<Slice>) -> Result<usize, FabricError> {
        if self.in_flight() >= OPERATIONS_MAX {
            let (value, limit) = (OPERATIONS_MAX as u64 + 1, OPERATIONS_MAX as u64);
            return Err(FabricError::Limit { what: "number of operations in flight", value, limit });
        }
        self.open_lanes()?;
        let operation = Operation { tag, frames_left: 0, slices, result: Ok(Outcome::Done) };
        let index = self.free.pop().unwrap_or(self.operations.len());
        if index == self.operations.len() {
            self.operations.push(None);
        }
        self.operations[index] = Some(operation);
        Ok(index)
    }

    /// Opens the streams that are not there. One that cannot be opened, as where the session has as many as it may, is one stream less,
    /// as long as there is another.
    fn open_lanes(&mut self) -> Result<(), FabricError> {
        let now = Instant::now();
        let is_one_there = self.lanes.iter().any(|lane| lane.channel.is_some());
        if is_one_there && self.unopened.is_some_and(|at| now < at + UNOPENED_REST) {
            return Ok(());
        }
        for index in 0..self.lanes.len() {
            if self.lanes[index].channel.is_some() {
                continue;
            }
            match self.connector.join() {
                Ok(channel) => {
                    self.lanes[index] = Lane { channel: Some(channel), progressed: Instant::now() };
                }
                Err(_) if self.lanes.iter().any(|lane| lane.channel.is_some()) => {
                    self.unopened = Some(Instant::now());
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        self.unopened = None;
        Ok(())
    }

    /// Gives a frame to the stream that has the least to do.
    fn begin(&mut self, index: usize, request: &Request<'_>) {
        let least = self.lanes.iter_mut().filter(|lane| lane.channel.is_some());
        let least = least.min_by_key(|lane| lane.channel.as_ref().map_or(0, Channel::pending));
        let (Some(lane), Some(operation)) = (least, self.operations[index].as_mut()) else { return };
        let Some(channel) = lane.channel.as_mut() else { return };
        if channel.pending() == 0 {
            lane.progressed = Instant::now();
        }
        // SAFETY: the operation keeps the slices until all its frames are answered or their channel is dropped.
        unsafe { channel.begin(request) };
        operation.frames_left += 1;
    }

    fn flush(&mut self) {
        for index in 0..self.lanes.len() {
            if let Some(channel) = self.lanes[index].channel.as_mut()
                && let Err(error) = channel.flush(Wait::Never)
            {
                self.fail(index, &error);
            }
        }
    }

    /// Moves what can be moved without waiting.
    fn advance(&mut self) {
        for index in 0..self.lanes.len() {
            while let Some(channel) = self.lanes[index].channel.as_mut() {
                let answer = channel.flush(Wait::Never).and_then(|_| channel.receive(Wait::Never));
                match answer {
                    Ok(Some((operation, answer))) => {
                        self.lanes[index].progressed = Instant::now();
                        self.answered(operation, answer);
                    }
                    Ok(None) => break,
                    Err(error) => self.fail(index, &error),
                }
            }
        }
    }

    fn answered(&mut self, operation: u64, answer: Answer) {
        let result = match answer {
            Answer::Done => Ok(Outcome::Done),
            Answer::Word(word) => Ok(Outcome::Word(word)),
            Answer::Reply(reply) => Ok(Outcome::Reply(reply)),
            failed @ (Answer::Failed(_) | Answer::Found(..)) => {
                Err(self.connector.unexpected(failed, "a posted operation"))
            }
        };
        self.frame_done(operation, result);
    }

    /// Counts a frame of an operation; after the last one the operation is complete.
    fn frame_done(&mut self, operation: u64, result: Result<Outcome, FabricError>) {
        let index = usize::try_from(operation).unwrap_or(usize::MAX);
        let Some(slot) = self.operations.get_mut(index) else { return };
        let Some(entry) = slot.as_mut() else { return };
        if entry.result.is_ok() {
            entry.result = result;
        }
        entry.frames_left -= 1;
        if entry.frames_left == 0
            && let Some(done) = slot.take()
        {
            drop(done.slices);
            self.free.push(index);
            self.completed.push_back(Completion { tag: done.tag, result: done.result });
        }
    }

    /// Drops a stream; all its frames have failed.
    fn fail(&mut self, index: usize, error: &FabricError) {
        let Some(channel) = self.lanes[index].channel.take() else { return };
        let lost: Vec<u64> = channel.pending_tags().collect();
        // First the channel, then the memory that it knew of.
        drop(channel);
        for operation in lost {
            self.frame_done(operation, Err(error.clone()));
        }
    }

    fn check_deadlines(&mut self) {
        let after = self.connector.options.timeout;
        for index in 0..self.lanes.len() {
            let lane = &self.lanes[index];
            let late = lane.channel.as_ref().filter(|channel| channel.pending() > 0);
            if let Some(channel) = late
                && lane.progressed.elapsed() >= after
            {
                let error =
                    FabricError::Timeout { peer: self.connector.peer, during: channel.during(), after };
                self.fail(index, &error);
            }
        }
    }

    fn sleep(&self, most: Duration) -> Result<(), FabricError> {
        let busy = self.lanes.iter().flat_map(|lane| &lane.channel).filter(|channel| channel.pending() > 0);
        let mut interests: Vec<Interest> = busy
            .map(|channel| Interest::new(channel.socket().descriptor(), channel.has_outgoing()))
            .collect();
        wait_for(&mut interests, most.min(super::WAIT_SLICE)).map_err(|error| FabricError::System {
            what: "waiting for a socket",
            reason: error.to_string(),
        })?;
        Ok(())
    }
}

impl Queue for TcpQueue {
    fn post_read(
        &mut self,
        tag: u64,
        handle: Handle,
        runs: &[ByteRange],
        into: &[Slice],
    ) -> Result<(), FabricError> {
        if into.iter().any(|slice| !slice.is_writable()) {
            return Err(FabricError::Unsupported { what: "read into memory that is not writable" });
        }
        self.post_transfer(FrameKind::Read, tag, handle, runs, into)
    }

    fn post_write(
        &mut self,
        tag: u64,
        handle: Handle,
        runs: &[ByteRange],
        from: &[Slice],
    ) -> Result<(), FabricError> {
        self.post_transfer(FrameKind::Write, tag, handle, runs, from)
    }

    fn post_call(&mut self, tag: u64, body: &[u8]) -> Result<(), FabricError> {
        check_call(body)?;
        let index = self.reserve(tag, Vec::new())?;
        let mut request = plain(FrameKind::Call, body);
        request.tag = index as u64;
        self.begin(index, &request);
        self.flush();
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>, wait: Duration) -> Result<usize, FabricError> {
        let started = Instant::now();
        let mut spinner = Spinner::default();
        loop {
            self.advance();
            if !self.completed.is_empty() || self.in_flight() == 0 {
                break;
            }
            let polling = self.connector.options.mode == Mode::Polling;
            if polling && !wait.is_zero() && !spinner.pause() {
                continue;
            }
            self.check_deadlines();
            let left = wait.saturating_sub(started.elapsed());
            if left.is_zero() {
                break;
            }
            if !polling {
                self.sleep(left)?;
            }
        }
        let count = self.completed.len();
        completions.extend(self.completed.drain(..));
        Ok(count)
    }

    fn in_flight(&self) -> usize {
        self.operations.len() - self.free.len()
    }

    fn keeps_order(&self) -> bool {
        self.lanes.len() == 1
    }
}
