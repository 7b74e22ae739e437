//! A long read or write: cut into frames that all free streams of an endpoint carry at once.

use super::channel::{Answer, Channel, Request};
use super::client::Connector;
use super::cutter::Cutter;
use super::socket::{Interest, Spinner, Wait, wait_for};
use super::{Mode, WAIT_SLICE};
use crate::error::FabricError;
use crate::part::Part;
use hinterland_proto::{FrameKind, RUN_BYTES, RUNS_MAX, encode_runs};
use hinterland_types::{ByteRange, Handle};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Requests that are under way on one stream: one that is served, one that waits at the server, one on its way.
const DEPTH: usize = 3;

/// One frame of a read or write, before it has a number.
pub(super) struct FrameDraft {
    kind: FrameKind,
    handle: Handle,
    checked: bool,
    runs: Vec<ByteRange>,
    table: Vec<u8>,
    parts: Vec<Part>,
    pub bytes: usize,
}

impl FrameDraft {
    pub fn new(kind: FrameKind, handle: Handle, checked: bool) -> Self {
        let (runs, table, parts) = (Vec::new(), Vec::with_capacity(RUN_BYTES), Vec::new());
        Self { kind, handle, checked, runs, table, parts, bytes: 0 }
    }

    /// Another draft of the same kind.
    fn like(&self) -> Self {
        Self::new(self.kind, self.handle, self.checked)
    }

    /// Takes the next piece of an operation; false if nothing is left.
    pub fn cut(&mut self, cutter: &mut Cutter<'_>) -> Result<bool, FabricError> {
        self.runs.clear();
        self.table.clear();
        self.parts.clear();
        self.bytes = cutter.next(&mut self.runs, &mut self.parts);
        if self.bytes == 0 {
            return Ok(false);
        }
        // Only more runs than a frame takes can fail here, and the cutter stops before.
        encode_runs(&self.runs, &mut self.table).map_err(|_| FabricError::Limit {
            what: "number of runs",
            value: self.runs.len() as u64,
            limit: RUNS_MAX as u64,
        })?;
        Ok(true)
    }

    pub fn request(&self, tag: u64) -> Request<'_> {
        let (payload, into): (&[Part], &[Part]) =
            if self.kind == FrameKind::Read { (&[], &self.parts) } else { (&self.parts, &[]) };
        Request {
            kind: self.kind,
            handle: self.handle,
            argument: self.runs.len() as u64,
            start: &self.table,
            payload,
            into,
            tag,
            checked: self.checked,
        }
    }
}

/// What is left of a long operation, for all who carry it.
pub(super) struct Work<'a> {
    draft: FrameDraft,
    cutter: Mutex<Cutter<'a>>,
}

impl<'a> Work<'a> {
    /// `draft` says what the frames are; `cutter` has everything still before it.
    pub fn new(draft: FrameDraft, cutter: Cutter<'a>) -> Self {
        Self { draft, cutter: Mutex::new(cutter) }
    }

    /// Carries everything from this thread.
    pub fn move_alone(
        &self,
        connector: &Connector,
        lanes: &mut [&mut Option<Channel>],
    ) -> Result<(), FabricError> {
        Carrier { work: self, connector, lanes, frame: self.draft.like(), failure: None }.run()
    }

    /// Carries everything with a thread for every stream.
    pub fn move_with_helpers(
        &self,
        connector: &Connector,
        lanes: &mut [&mut Option<Channel>],
    ) -> Result<(), FabricError> {
        let Some((own, others)) = lanes.split_first_mut() else { return Ok(()) };
        let mut panicked = false;
        let result = std::thread::scope(|scope| {
            let mut helpers = Vec::with_capacity(others.len());
            for lane in &mut *others {
                let help = || self.move_alone(connector, std::slice::from_mut(lane));
                // A thread that cannot be had is one stream less, not a failure.
                helpers.extend(std::thread::Builder::new().spawn_scoped(scope, help));
            }
            let mut result = self.move_alone(connector, std::slice::from_mut(own));
            for helper in helpers {
                let helped = helper.join().unwrap_or_else(|_| {
                    panicked = true;
                    let reason = "a thread panicked".to_owned();
                    Err(FabricError::System { what: "a striped transfer", reason })
                });
                result = result.and(helped);
            }
            result
        });
        if panicked {
            // Requests of that thread may still name the caller's memory.
            others.iter_mut().for_each(|lane| **lane = None);
        }
        result
    }

    /// Cuts the next frame; false if nothing is left or the operation has failed.
    fn next(&self, frame: &mut FrameDraft) -> Result<bool, FabricError> {
        // A cutter is whole between any two statements that change it.
        let mut cutter = self.cutter.lock().unwrap_or_else(PoisonError::into_inner);
        frame.cut(&mut cutter)
    }

    /// Leaves nothing for the others to carry.
    fn stop(&self) {
        self.cutter.lock().unwrap_or_else(PoisonError::into_inner).stop();
    }
}

/// One thread and its streams.
struct Carrier<'a, 'b, 'c> {
    work: &'a Work<'b>,
    connector: &'a Connector,
    lanes: &'a mut [&'c mut Option<Channel>],
    frame: FrameDraft,
    failure: Option<FabricError>,
}

impl Carrier<'_, '_, '_> {
    /// Moves all frames; after a failure it begins no more, but receives what is under way, so that no answer comes
    /// later into memory that is somebody else's by then.
    fn run(mut self) -> Result<(), FabricError> {
        let mut progressed = Instant::now();
        let mut left = true;
        let mut spinner = Spinner::default();
        loop {
            left = left && self.failure.is_none() && self.feed();
            if self.busy() == 0 && !left {
                break;
            }
            if self.collect() {
                progressed = Instant::now();
                spinner.reset();
                continue;
            }
            if self.connector.options.mode == Mode::Blocking || spinner.pause() {
                self.check(progressed);
            }
        }
        self.failure.map_or(Ok(()), Err)
    }

    fn channels(&self) -> impl Iterator<Item = &Channel> {
        self.lanes.iter().flat_map(|lane| lane.as_ref()).filter(|channel| channel.pending() > 0)
    }

    fn busy(&self) -> usize {
        self.channels().count()
    }

    /// Gives every stream work up to its depth; returns whether more may be left.
    fn feed(&mut self) -> bool {
        for depth in 1..=DEPTH {
            for index in 0..self.lanes.len() {
                if self.lanes[index].as_ref().is_some_and(|channel| channel.pending() >= depth) {
                    continue;
                }
                let channel = match self.connector.ready(self.lanes[index]) {
                    Ok(channel) => channel,
                    Err(error) => {
                        self.fail(index, error);
                        return false;
                    }
                };
                match self.work.next(&mut self.frame) {
                    // SAFETY: the memory is borrowed by the caller of the operation, which returns only when no lane
                    // has a request left (`run`) or the channel was dropped (`fail`).
                    Ok(true) => unsafe { channel.begin(&self.frame.request(0)) },
                    Ok(false) => return false,
                    Err(error) => {
                        self.note(error);
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Sends and receives what can be, sleeping if that is the mode; returns whether an answer came.
    fn collect(&mut self) -> bool {
        let sleeps = self.connector.options.mode == Mode::Blocking;
        // On a single stream the kernel may be waited in: the peer takes all requests of one kind without being read.
        let wait = if sleeps && self.busy() == 1 { Wait::Sleep } else { Wait::Never };
        let mut answered = false;
        for index in 0..self.lanes.len() {
            let Some(channel) = self.lanes[index].as_mut().filter(|channel| channel.pending() > 0) else {
                continue;
            };
            match channel.flush(wait).and_then(|_| channel.receive(wait)) {
                Ok(None) => {}
                Ok(Some((_, answer))) => {
                    answered = true;
                    self.take(answer);
                }
                Err(error) => self.fail(index, error),
            }
        }
        if !answered && sleeps && wait == Wait::Never {
            self.sleep();
        }
        answered
    }

    fn take(&mut self, answer: Answer) {
        if let Err(error) = self.connector.done(answer) {
            self.note(error);
        }
    }

    fn sleep(&mut self) {
        let mut interests: Vec<Interest> = self
            .channels()
            .map(|channel| Interest::new(channel.socket().descriptor(), channel.has_outgoing()))
            .collect();
        if let Err(error) = wait_for(&mut interests, WAIT_SLICE) {
            let reason = error.to_string();
            self.fail_all(&FabricError::System { what: "waiting for a socket", reason });
        }
    }

    fn check(&mut self, progressed: Instant) {
        let after = self.connector.options.timeout;
        if progressed.elapsed() >= after {
            let peer = self.connector.peer;
            self.fail_all(&FabricError::Timeout { peer, during: "a striped transfer", after });
        }
    }

    /// Keeps the first failure and lets nobody begin another frame.
    fn note(&mut self, error: FabricError) {
        self.work.stop();
        self.failure.get_or_insert(error);
    }

    fn fail(&mut self, index: usize, error: FabricError) {
        *self.lanes[index] = None;
        self.note(error);
    }

    fn fail_all(&mut self, error: &FabricError) {
        for index in 0..self.lanes.len() {
            self.fail(index, error.clone());
        }
    }
}
