//! Reading a whole object: its checksums from a home, then its blocks with the fetch machine.

use crate::message::{HomeAnswer, HomeRequest};
use hinterland_directory::{ContentDigest, ObjectInfo};
use hinterland_proto::checksum::digest;
use hinterland_proto::machine::{Body, Fetch, FetchAction, FetchEvent, FetchLimits, FetchMachine};
use hinterland_types::limits::CHECKSUM_BLOCK_BYTES;
use hinterland_types::{ByteRange, NodeId, ObjectId};
use std::collections::BTreeMap;

/// Milliseconds that a home has to give checksums.
const SUMS_TIMEOUT_MS: u64 = 300;
/// How often each home is asked for checksums.
const SUMS_ROUNDS: usize = 2;

pub(crate) fn fetch_limits() -> FetchLimits {
    FetchLimits { piece_bytes: 2 * CHECKSUM_BLOCK_BYTES, window: 2, timeout_ms: 300, rounds: 2 }
}

/// What the task wants done.
pub(crate) enum ReadStep {
    /// Send a request; the part comes back with the answer.
    Send(NodeId, HomeRequest, u32),
    /// All blocks are there.
    Done(Vec<u32>),
    /// They cannot be had.
    Failed(String),
}

enum Phase {
    Sums { turn: usize, deadline_ms: u64 },
    Blocks(Box<FetchMachine>),
    Over,
}

pub(crate) struct ReadTask {
    pub(crate) object: ObjectId,
    bytes: u64,
    digest: ContentDigest,
    homes: Vec<NodeId>,
    /// Checksums, once a home has given the right ones.
    sums: Vec<u32>,
    blocks: BTreeMap<u64, u32>,
    phase: Phase,
    checking: bool,
}

impl ReadTask {
    /// Begins to read; without `checking`, wrong checksums are not noticed (a rule broken on purpose).
    pub(crate) fn new(info: &ObjectInfo, now_ms: u64, checking: bool) -> (Self, Vec<ReadStep>) {
        let mut task = Self {
            object: info.object,
            bytes: info.size,
            digest: info.digest.unwrap_or_default(),
            homes: info.homes.iter().map(|home| home.node).collect(),
            sums: Vec::new(),
            blocks: BTreeMap::new(),
            phase: Phase::Over,
            checking,
        };
        let steps = task.ask_sums(0, now_ms);
        (task, steps)
    }

    pub(crate) fn deadline_ms(&self) -> Option<u64> {
        match &self.phase {
            Phase::Sums { deadline_ms, .. } => Some(*deadline_ms),
            Phase::Blocks(machine) => machine.deadline_ms(),
            Phase::Over => None,
        }
    }

    fn ask_sums(&mut self, turn: usize, now_ms: u64) -> Vec<ReadStep> {
        if turn >= self.homes.len() * SUMS_ROUNDS {
            self.phase = Phase::Over;
            return vec![ReadStep::Failed(format!("no home of {} gave its checksums", self.object))];
        }
        self.phase = Phase::Sums { turn, deadline_ms: now_ms + SUMS_TIMEOUT_MS };
        let home = self.homes[turn % self.homes.len()];
        vec![ReadStep::Send(home, HomeRequest::Sums(self.object), turn as u32)]
    }

    pub(crate) fn answered(&mut self, now_ms: u64, part: u32, answer: HomeAnswer) -> Vec<ReadStep> {
        match (&mut self.phase, answer) {
            (Phase::Sums { turn, .. }, HomeAnswer::Sums(sums)) if *turn as u32 == part => {
                if ContentDigest(digest(self.bytes, &sums)) == self.digest {
                    self.sums = sums;
                    return self.begin_blocks(now_ms);
                }
                let next = *turn + 1;
                self.ask_sums(next, now_ms)
            }
            (Phase::Sums { turn, .. }, HomeAnswer::Refused(_)) if *turn as u32 == part => {
                let next = *turn + 1;
                self.ask_sums(next, now_ms)
            }
            (Phase::Blocks(_), HomeAnswer::Blocks(blocks)) => self.arrived(now_ms, part, blocks),
            (Phase::Blocks(machine), HomeAnswer::Refused(reason)) => {
                machine.handle(now_ms, FetchEvent::Refused { attempt: part, reason });
                self.pump()
            }
            _ => Vec::new(),
        }
    }

    pub(crate) fn timeout(&mut self, now_ms: u64) -> Vec<ReadStep> {
        match &mut self.phase {
            Phase::Sums { turn, deadline_ms } if *deadline_ms <= now_ms => {
                let next = *turn + 1;
                self.ask_sums(next, now_ms)
            }
            Phase::Blocks(machine) => {
                machine.handle(now_ms, FetchEvent::Timeout);
                self.pump()
            }
            Phase::Sums { .. } | Phase::Over => Vec::new(),
        }
    }

    fn begin_blocks(&mut self, now_ms: u64) -> Vec<ReadStep> {
        let fetch = Fetch {
            object: self.object,
            object_bytes: self.bytes,
            range: ByteRange::new(0, self.bytes).unwrap_or_default(),
            replicas: self.homes.clone(),
            checksums: self.sums.clone(),
            checksum: |_| 0, // content comes as checksums, see `arrived`
        };
        match FetchMachine::new(fetch, fetch_limits(), now_ms) {
            Ok(machine) => {
                self.phase = Phase::Blocks(Box::new(machine));
                self.pump()
            }
            Err(error) => {
                self.phase = Phase::Over;
                vec![ReadStep::Failed(error.to_string())]
            }
        }
    }

    fn arrived(&mut self, now_ms: u64, attempt: u32, blocks: Vec<u32>) -> Vec<ReadStep> {
        let Phase::Blocks(machine) = &mut self.phase else { return Vec::new() };
        let Some(range) = machine.expects(attempt) else { return Vec::new() };
        let first = range.offset() / CHECKSUM_BLOCK_BYTES;
        self.blocks.extend((first..).zip(blocks.iter().copied()));
        let count = range.bytes().div_ceil(CHECKSUM_BLOCK_BYTES);
        let bytes = if blocks.len() as u64 == count { range.bytes() } else { 0 };
        let right = &self.sums[first as usize..(first + count) as usize];
        let sums = if self.checking { &blocks[..] } else { right };
        machine.handle(now_ms, FetchEvent::Reply { attempt, body: Body::Sums { bytes, sums } });
        self.pump()
    }

    fn pump(&mut self) -> Vec<ReadStep> {
        let Phase::Blocks(machine) = &mut self.phase else { return Vec::new() };
        let mut steps = Vec::new();
        while let Some(action) = machine.poll_action() {
            steps.push(match action {
                FetchAction::Send { attempt, node, range } => {
                    ReadStep::Send(node, HomeRequest::Read(self.object, range), attempt)
                }
                FetchAction::Suspect { node, .. } => {
                    ReadStep::Send(node, HomeRequest::Verify(self.object), 0)
                }
                FetchAction::Done => ReadStep::Done(self.blocks.values().copied().collect()),
                FetchAction::Fail(failure) => ReadStep::Failed(failure.to_string()),
            });
        }
        if matches!(steps.last(), Some(ReadStep::Done(_) | ReadStep::Failed(_))) {
            self.phase = Phase::Over;
        }
        steps
    }
}
