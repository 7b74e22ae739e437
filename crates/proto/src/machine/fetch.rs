//! Fetching a range of a sealed object from its replicas, with checks, time limits and second tries.

mod message;
#[cfg(test)]
mod tests;

pub use message::{
    Body, Fetch, FetchAction, FetchError, FetchEvent, FetchFailure, FetchLimits, Tried, TryError,
};

use hinterland_types::limits::{CHECKSUM_BLOCK_BYTES, FRAME_BODY_BYTES_MAX};
use hinterland_types::{ByteRange, NodeId};
use std::collections::{BTreeMap, VecDeque};

struct Piece {
    range: ByteRange,
    /// Index of its first block in the checksums given.
    first_block: usize,
    /// Failed tries at each replica.
    failures: Vec<u32>,
    /// Whether a right answer has come.
    here: bool,
}

struct Attempt {
    piece: usize,
    replica: usize,
    deadline_ms: u64,
}

/// Fetches one range; see the module for how it is driven.
///
/// An attempt that has timed out is over: its late answer is ignored. A driver that receives straight
/// into the final place asks [`FetchMachine::expects`] first.
pub struct FetchMachine {
    fetch: Fetch,
    limits: FetchLimits,
    pieces: Vec<Piece>,
    waiting: VecDeque<usize>,
    under_way: BTreeMap<u32, Attempt>,
    next_attempt: u32,
    pieces_left: usize,
    /// For each replica: why it is down, failures over all pieces, the last one.
    down: Vec<bool>,
    tried: Vec<Option<Tried>>,
    actions: VecDeque<FetchAction>,
    over: bool,
}

impl FetchMachine {
    /// Begins a fetch; the first actions are ready at once.
    ///
    /// # Errors
    /// [`FetchError`] if the range is not made of whole blocks, the checksums are of another number,
    /// there is no replica, or the limits make no sense.
    pub fn new(fetch: Fetch, limits: FetchLimits, now_ms: u64) -> Result<Self, FetchError> {
        check(&fetch, limits)?;
        let pieces = cut(&fetch, limits);
        let replicas = fetch.replicas.len();
        let mut machine = Self {
            waiting: (0..pieces.len()).collect(),
            pieces_left: pieces.len(),
            pieces,
            under_way: BTreeMap::new(),
            next_attempt: 0,
            down: vec![false; replicas],
            tried: vec![None; replicas],
            actions: VecDeque::new(),
            over: false,
            fetch,
            limits,
        };
        machine.advance(now_ms);
        Ok(machine)
    }

    /// What to do next; `None` until something happens.
    pub fn poll_action(&mut self) -> Option<FetchAction> {
        self.actions.pop_front()
    }

    /// When to hand in a [`FetchEvent::Timeout`]; `None` once the fetch is over.
    pub fn deadline_ms(&self) -> Option<u64> {
        self.under_way.values().map(|attempt| attempt.deadline_ms).min()
    }

    /// The range that an answer to this attempt may fill; `None` if the attempt is over.
    pub fn expects(&self, attempt: u32) -> Option<ByteRange> {
        self.under_way.get(&attempt).map(|attempt| self.pieces[attempt.piece].range)
    }

    /// Whom this attempt asked; `None` if the attempt is over.
    pub fn asked(&self, attempt: u32) -> Option<NodeId> {
        self.under_way.get(&attempt).map(|attempt| self.fetch.replicas[attempt.replica])
    }

    /// Whether a right answer has come for the piece that is this range.
    pub fn has(&self, range: ByteRange) -> bool {
        self.pieces.iter().any(|piece| piece.range == range && piece.here)
    }

    /// Takes what happened. Answers to attempts that are over are ignored.
    pub fn handle(&mut self, now_ms: u64, event: FetchEvent<'_>) {
        match event {
            FetchEvent::Reply { attempt, body } => self.reply(attempt, body),
            FetchEvent::Refused { attempt, reason } => self.failed(attempt, TryError::Refused(reason)),
            FetchEvent::Down { node, reason } => self.down(node, &reason),
            FetchEvent::Timeout => {}
        }
        self.time_out(now_ms);
        self.advance(now_ms);
    }

    fn reply(&mut self, attempt: u32, body: Body<'_>) {
        let Some(known) = self.under_way.get(&attempt) else { return };
        let piece = &self.pieces[known.piece];
        match verify(&self.fetch, piece, body) {
            Ok(()) => {
                self.pieces[known.piece].here = true;
                self.under_way.remove(&attempt);
                self.pieces_left -= 1;
            }
            Err(error) => {
                if let TryError::Checksum { block } = error {
                    let node = self.fetch.replicas[known.replica];
                    self.actions.push_back(FetchAction::Suspect { node, block });
                }
                self.failed(attempt, error);
            }
        }
    }

    fn down(&mut self, node: NodeId, reason: &str) {
        let Some(replica) = self.fetch.replicas.iter().position(|other| *other == node) else { return };
        self.down[replica] = true;
        let there = self.under_way.iter().filter(|(_, attempt)| attempt.replica == replica);
        let attempts: Vec<_> = there.map(|(attempt, _)| *attempt).collect();
        for attempt in attempts {
            self.failed(attempt, TryError::Down(reason.to_owned()));
        }
        if self.tried[replica].is_none() {
            self.tried[replica] = Some(Tried { node, failures: 0, last: TryError::Down(reason.to_owned()) });
        }
    }

    fn time_out(&mut self, now_ms: u64) {
        let late = self.under_way.iter().filter(|(_, attempt)| attempt.deadline_ms <= now_ms);
        let attempts: Vec<_> = late.map(|(attempt, _)| *attempt).collect();
        for attempt in attempts {
            self.failed(attempt, TryError::TimedOut { after_ms: self.limits.timeout_ms });
        }
    }

    fn failed(&mut self, attempt: u32, error: TryError) {
        let Some(Attempt { piece, replica, .. }) = self.under_way.remove(&attempt) else { return };
        self.pieces[piece].failures[replica] += 1;
        let node = self.fetch.replicas[replica];
        let failures = self.tried[replica].as_ref().map_or(0, |tried| tried.failures);
        self.tried[replica] = Some(Tried { node, failures: failures + 1, last: error });
        self.waiting.push_front(piece);
    }

    /// Sends as many pieces as the window allows, and notices the end.
    fn advance(&mut self, now_ms: u64) {
        if self.over {
            return;
        }
        if self.pieces_left == 0 {
            return self.end(FetchAction::Done);
        }
        while self.under_way.len() < self.limits.window {
            let Some(piece) = self.waiting.pop_front() else { return };
            let Some(replica) = self.choose(piece) else {
                let tried = self.tried.iter().flatten().cloned().collect();
                let range = self.pieces[piece].range;
                return self.end(FetchAction::Fail(FetchFailure { object: self.fetch.object, range, tried }));
            };
            let attempt = self.next_attempt;
            self.next_attempt += 1;
            let deadline_ms = now_ms.saturating_add(self.limits.timeout_ms);
            self.under_way.insert(attempt, Attempt { piece, replica, deadline_ms });
            let (node, range) = (self.fetch.replicas[replica], self.pieces[piece].range);
            self.actions.push_back(FetchAction::Send { attempt, node, range });
        }
    }

    /// The replica that failed least for this piece, then least in this fetch, then the preferred one.
    fn choose(&self, piece: usize) -> Option<usize> {
        let failures = &self.pieces[piece].failures;
        let usable = (0..failures.len()).filter(|r| !self.down[*r] && failures[*r] < self.limits.rounds);
        usable.min_by_key(|r| (failures[*r], self.tried[*r].as_ref().map_or(0, |tried| tried.failures), *r))
    }

    fn end(&mut self, last: FetchAction) {
        self.over = true;
        self.under_way.clear();
        self.waiting.clear();
        self.actions.retain(|action| !matches!(action, FetchAction::Send { .. }));
        self.actions.push_back(last);
    }
}

fn check(fetch: &Fetch, limits: FetchLimits) -> Result<(), FetchError> {
    let piece_ok = limits.piece_bytes > 0
        && limits.piece_bytes <= u64::from(FRAME_BODY_BYTES_MAX)
        && limits.piece_bytes.is_multiple_of(CHECKSUM_BLOCK_BYTES);
    if !piece_ok || limits.window == 0 || limits.timeout_ms == 0 || limits.rounds == 0 {
        return Err(FetchError::Limits { limits });
    }
    let range = fetch.range;
    let ends_well = range.end() == fetch.object_bytes || range.end().is_multiple_of(CHECKSUM_BLOCK_BYTES);
    let whole = range.offset().is_multiple_of(CHECKSUM_BLOCK_BYTES) && ends_well;
    if !whole || range.end() > fetch.object_bytes {
        return Err(FetchError::NotWholeBlocks { range, object_bytes: fetch.object_bytes });
    }
    let (expected, found) = (range.bytes().div_ceil(CHECKSUM_BLOCK_BYTES), fetch.checksums.len() as u64);
    if expected != found {
        return Err(FetchError::ChecksumCount { expected, found });
    }
    let mut nodes = fetch.replicas.clone();
    nodes.sort_unstable();
    nodes.dedup();
    if nodes.is_empty() || nodes.len() != fetch.replicas.len() {
        return Err(FetchError::Replicas { object: fetch.object });
    }
    Ok(())
}

fn cut(fetch: &Fetch, limits: FetchLimits) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut offset = fetch.range.offset();
    let mut first_block = 0;
    while offset < fetch.range.end() {
        let bytes = limits.piece_bytes.min(fetch.range.end() - offset);
        let Ok(range) = ByteRange::new(offset, bytes) else { break };
        pieces.push(Piece { range, first_block, failures: vec![0; fetch.replicas.len()], here: false });
        offset += bytes;
        // A piece has at most 64 blocks.
        first_block += bytes.div_ceil(CHECKSUM_BLOCK_BYTES) as usize;
    }
    pieces
}

fn verify(fetch: &Fetch, piece: &Piece, body: Body<'_>) -> Result<(), TryError> {
    let expected = piece.range.bytes();
    let block_count = expected.div_ceil(CHECKSUM_BLOCK_BYTES) as usize;
    let wanted = &fetch.checksums[piece.first_block..piece.first_block + block_count];
    let first = piece.range.offset() / CHECKSUM_BLOCK_BYTES;
    let found = match body {
        Body::Bytes(bytes) => bytes.len() as u64,
        Body::Sums { bytes, sums } if sums.len() == block_count => bytes,
        Body::Sums { .. } => 0,
    };
    if found != expected {
        return Err(TryError::Length { expected, found });
    }
    let wrong = match body {
        Body::Bytes(bytes) => {
            let blocks = bytes.chunks(CHECKSUM_BLOCK_BYTES as usize);
            blocks.zip(wanted).position(|(block, sum)| (fetch.checksum)(block) != *sum)
        }
        Body::Sums { sums, .. } => sums.iter().zip(wanted).position(|(found, sum)| found != sum),
    };
    match wrong {
        Some(place) => Err(TryError::Checksum { block: first + place as u64 }),
        None => Ok(()),
    }
}
