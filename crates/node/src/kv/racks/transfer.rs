//! Blocks of one other node: read one-sidedly into slots of the own store, checked, published; or given back.

use super::Space;
use super::checksum::whole;
use super::link::Lane;
use super::links::senseless;
use crate::fault_point;
use crate::kv::UserStore;
use hinterland_fabric::{Completion, FabricError, Outcome, Slice};
use hinterland_kv::{BLOCK_BYTES_MAX, BlockKey, Reserved, ViewError, Wish, header, sum_over};
use hinterland_os::{Mapping, OsError, SharedSlice};
use hinterland_proto::control::{KvHeld, KvPlace, PeerReply, PeerRequest, decode, encode};
use hinterland_types::{ByteRange, Handle};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Bytes that are checked together: what socket buffers hold, so that bytes flow on while the home takes checksums.
const PART_BYTES: u64 = 1 << 20;
/// Blocks of a part.
const PART_BLOCKS: usize = 512;
/// Parts that are under way at once.
const PARTS: usize = 6;
/// Bytes of one read: one frame of the connection.
const READ_BYTES: u64 = 256 << 10;
/// What blocks begin at multiples of in memory of this process.
const LINE_BYTES: usize = 64;
/// Runs of one read.
const READ_RUNS: usize = 512;

/// A block that is wanted, and where it lies.
pub(super) struct Wanted {
    /// Its key.
    pub key: BlockKey,
    /// Where.
    pub place: KvPlace,
}

/// A block on its way.
struct Arriving {
    /// Which of the wanted ones.
    index: usize,
    /// The slot in the own store.
    slot: u32,
    /// Where it lies in the file of blocks.
    offset: u64,
    /// What the bytes move into: the slot, or memory of this process.
    memory: SharedSlice,
    /// Of what has arrived; none if the file was cut off meanwhile.
    sum: Option<u32>,
}

/// Part of a block, in one read.
struct Piece {
    /// Which of the part's blocks.
    block: usize,
    offset: u64,
    bytes: u64,
}

/// What was asked, in order.
enum Asked {
    Read(Vec<Piece>),
    Check,
}

/// Several blocks, read and then checked together.
struct Part {
    blocks: Vec<Arriving>,
    /// With the tags of their completions, which are used in this order.
    asked: VecDeque<(u64, Asked)>,
    /// Reads that have not completed.
    reads_left: usize,
    /// The question behind the reads, until it is asked.
    check: Option<Vec<u8>>,
    /// What had been removed when its slots were taken.
    since: Since,
    /// Memory of this process that its blocks move into, where a slot is not to be stored into through the cache.
    aside: Option<SharedSlice>,
}

/// How often a namespace had been cleared, and the last removal of single blocks.
#[derive(Clone, Copy)]
struct Since {
    clears: u64,
    removals: u64,
}

/// A writer of the own store that is no session. What it has not published is given back when it is dropped.
struct Writer<'store> {
    store: &'store UserStore,
    number: u64,
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.store.lock().store.release(self.number);
    }
}

/// One transfer.
struct Transfer<'a> {
    // Before the writer: when both are dropped nothing may move into slots that are given back.
    lane: Lane,
    writer: Writer<'a>,
    space: &'a Space,
    handle: Handle,
    wanted: &'a [Wanted],
    /// The first that was not asked for.
    next: usize,
    parts: VecDeque<Part>,
    progressed: Instant,
    stall_after: Duration,
    /// What has completed and was not used yet: devices do not keep the order in which they were asked.
    completions: HashMap<u64, Completion>,
    next_tag: u64,
    /// Memory of parts that are done, if parts have any.
    spare: Vec<SharedSlice>,
}

/// Brings blocks here over a lane on whose connection they were found. Those that are right are published; the others are as
/// they were. `handle` reads there, and `number` is a writer's number that nobody else has.
///
/// # Errors
/// The lane and why no more can be read over it; what was published before stays.
pub(super) fn transfer(
    store: &UserStore,
    number: u64,
    space: &Space,
    (lane, handle): (Lane, Handle),
    wanted: &[Wanted],
    stall_after: Duration,
) -> Result<(), (Lane, FabricError)> {
    let mut transfer = Transfer {
        lane,
        writer: Writer { store, number },
        space,
        handle,
        wanted,
        next: 0,
        parts: VecDeque::new(),
        progressed: Instant::now(),
        stall_after,
        completions: HashMap::new(),
        next_tag: 0,
        spare: Vec::new(),
    };
    let result = transfer.run();
    let Transfer { lane, writer, .. } = transfer;
    match result {
        Ok(()) => lane.give_back(),
        Err(error) => {
            // Bytes move only while the lane is polled, and nobody does so any more: slots may be given back before it is
            // closed.
            drop(writer);
            return Err((lane, error));
        }
    }
    Ok(())
}

impl Transfer<'_> {
    fn run(&mut self) -> Result<(), FabricError> {
        loop {
            while self.parts.len() < PARTS && self.next < self.wanted.len() {
                let part = self.reserve()?;
                if !part.blocks.is_empty() {
                    self.ask(part)?;
                }
            }
            if self.parts.is_empty() {
                return Ok(());
            }
            self.take_one()?;
        }
    }

    /// Slots for the next blocks.
    fn reserve(&mut self) -> Result<Part, FabricError> {
        let aside = self.aside()?;
        let store = self.writer.store;
        let mut blocks = Vec::new();
        let (mut bytes, mut at) = (0, 0);
        let mut state = store.lock();
        let since = Since { clears: state.clears, removals: state.removals.last() };
        if state.is_closed(self.space.namespace) {
            self.next = self.wanted.len();
        }
        while bytes < PART_BYTES && blocks.len() < PART_BLOCKS {
            let Some(Wanted { key, place }) = self.wanted.get(self.next) else { break };
            let index = self.next;
            self.next += 1;
            let length = u64::from(place.bytes);
            let may_fetch = state.removals.may_fetch(self.space.namespace, key, Instant::now());
            if length > BLOCK_BYTES_MAX || !may_fetch {
                continue;
            }
            let parent = place.parent.as_ref().and_then(|parent| BlockKey::new(parent).ok());
            let wish = Wish { namespace: self.space.namespace, key: *key, bytes: length, parent };
            let reserved =
                state.store.reserve(self.writer.number, &wish, &mut |slot| store.was_touched(slot));
            // It is here by now, or written by somebody, or there is no room: all the same to this transfer.
            let Ok(Reserved::Slot { slot, offset }) = reserved else { continue };
            let memory = match &aside {
                // A block is at most 4 MiB: the cast loses nothing.
                Some(aside) => aside.sub(at, length as usize),
                None => store.view.blocks(offset, length),
            };
            match memory {
                Ok(memory) => {
                    at += memory.len().next_multiple_of(LINE_BYTES);
                    blocks.push(Arriving { index, slot, offset, memory, sum: Some(0) });
                    bytes += length;
                }
                Err(error) => tracing::error!(%error, slot, "a slot lies outside its file"),
            }
        }
        drop(state);
        header::before_writing();
        fault_point::reach("kv-fetch-reserved");
        Ok(Part { blocks, asked: VecDeque::new(), reads_left: 0, check: None, since, aside })
    }

    /// Memory of this process for a part, where caches do not see each other: what moves into it through the cache, and may be cut off anywhere,
    /// leaves nothing behind that could go over the next block of a slot. Slots are then written as all who put blocks write them.
    fn aside(&mut self) -> Result<Option<SharedSlice>, FabricError> {
        if !self.writer.store.is_moved_by_hand() {
            return Ok(None);
        }
        if let Some(aside) = self.spare.pop() {
            return Ok(Some(aside));
        }
        // The last block of a part begins within its bytes.
        let bytes = (PART_BYTES + BLOCK_BYTES_MAX) as usize + PART_BLOCKS * LINE_BYTES;
        Ok(Some(Arc::new(Mapping::anonymous(bytes, false).map_err(no_place)?).slice()))
    }

    /// Asks for all bytes of a part, and right behind for the checks; where the order is not kept, when the bytes are here.
    fn ask(&mut self, mut part: Part) -> Result<(), FabricError> {
        let mut pieces = Vec::new();
        let mut bytes = 0;
        for block in 0..part.blocks.len() {
            let length = part.blocks[block].memory.len() as u64;
            let mut offset = 0;
            while offset < length {
                let piece = Piece { block, offset, bytes: (length - offset).min(READ_BYTES - bytes) };
                offset += piece.bytes;
                bytes += piece.bytes;
                pieces.push(piece);
                if bytes == READ_BYTES || pieces.len() == READ_RUNS {
                    self.read(&mut part, std::mem::take(&mut pieces))?;
                    bytes = 0;
                }
            }
        }
        if !pieces.is_empty() {
            self.read(&mut part, pieces)?;
        }
        let held = part.blocks.iter().map(|arriving| {
            let Wanted { key, place } = &self.wanted[arriving.index];
            KvHeld { key: key.to_vec(), slot: place.slot, generation: place.generation }
        });
        let Space { user, fingerprint, .. } = *self.space;
        let check = PeerRequest::KvCheck { user, fingerprint, blocks: held.collect() };
        part.check = Some(encode(&check).map_err(|_| senseless(self.lane.node()))?);
        if self.lane.queue()?.keeps_order() || part.reads_left == 0 {
            self.check(&mut part)?;
        }
        if self.parts.is_empty() {
            self.progressed = Instant::now();
        }
        self.parts.push_back(part);
        Ok(())
    }

    /// Asks for the checks of a part.
    fn check(&mut self, part: &mut Part) -> Result<(), FabricError> {
        let Some(body) = part.check.take() else { return Ok(()) };
        let tag = self.tag();
        self.lane.queue()?.post_call(tag, &body)?;
        part.asked.push_back((tag, Asked::Check));
        Ok(())
    }

    fn tag(&mut self) -> u64 {
        self.next_tag += 1;
        self.next_tag
    }

    fn read(&mut self, part: &mut Part, pieces: Vec<Piece>) -> Result<(), FabricError> {
        let mut runs = Vec::with_capacity(pieces.len());
        let mut into = Vec::with_capacity(pieces.len());
        let node = self.lane.node();
        for piece in &pieces {
            let arriving = &part.blocks[piece.block];
            let from = self.wanted[arriving.index].place.offset.checked_add(piece.offset);
            let run = from.and_then(|from| ByteRange::new(from, piece.bytes).ok());
            runs.push(run.ok_or_else(|| senseless(node))?);
            into.push(Slice::from(part_of(&arriving.memory, piece)?));
        }
        let tag = self.tag();
        self.lane.queue()?.post_read(tag, self.handle, &runs, &into)?;
        part.asked.push_back((tag, Asked::Read(pieces)));
        part.reads_left += 1;
        Ok(())
    }

    /// Waits until the first thing that was asked for has completed.
    fn wait(&mut self) -> Result<(), FabricError> {
        let (peer, after) = (self.lane.node(), self.stall_after);
        loop {
            let first = self.parts.front().and_then(|part| part.asked.front()).map(|(tag, _)| *tag);
            let first = first.ok_or_else(|| senseless(peer))?;
            if self.completions.contains_key(&first) {
                return Ok(());
            }
            let left = after.saturating_sub(self.progressed.elapsed());
            let mut completions = Vec::new();
            if self.lane.queue()?.poll(&mut completions, left)? == 0 {
                return Err(FabricError::Timeout { peer, during: "a read of KV blocks", after });
            }
            self.progressed = Instant::now();
            for completion in completions {
                let tag = completion.tag;
                self.completions.insert(tag, completion);
                self.count(tag)?;
            }
        }
    }

    /// One more answer is here: the checks of its part are asked for behind its last read, if they were not yet.
    fn count(&mut self, tag: u64) -> Result<(), FabricError> {
        let asked = |part: &Part| {
            part.asked.iter().any(|(other, asked)| *other == tag && matches!(asked, Asked::Read(_)))
        };
        let Some(place) = self.parts.iter().position(asked) else { return Ok(()) };
        let Some(mut part) = self.parts.remove(place) else { return Ok(()) };
        part.reads_left = part.reads_left.saturating_sub(1);
        let done = if part.reads_left == 0 { self.check(&mut part) } else { Ok(()) };
        self.parts.insert(place, part);
        done
    }

    /// Waits for the next answer and uses it.
    fn take_one(&mut self) -> Result<(), FabricError> {
        self.wait()?;
        let Some(part) = self.parts.front_mut() else { return Err(senseless(self.lane.node())) };
        let asked = part.asked.pop_front();
        let completion = asked.as_ref().and_then(|(tag, _)| self.completions.remove(tag));
        let Some(outcome) = completion.map(|completion| completion.result).transpose()? else {
            return Err(senseless(self.lane.node()));
        };
        match (asked.map(|(_, asked)| asked), outcome) {
            (Some(Asked::Read(pieces)), Outcome::Done) => {
                for piece in pieces {
                    let arriving = &mut part.blocks[piece.block];
                    // Pieces of a block were asked for in order, and are used so.
                    let memory = part_of(&arriving.memory, &piece)?;
                    arriving.sum = arriving.sum.and_then(|sum| sum_over(&memory, sum, 0, memory.len()).ok());
                }
                Ok(())
            }
            (Some(Asked::Check), Outcome::Reply(body)) => {
                let (blocks, since) = (std::mem::take(&mut part.blocks), part.since);
                let part = self.parts.pop_front();
                match decode(&body) {
                    Ok(PeerReply::KvChecked { sums }) if sums.len() == blocks.len() => {
                        self.publish(blocks, &sums, since);
                        self.spare.extend(part.and_then(|part| part.aside));
                        Ok(())
                    }
                    _ => Err(senseless(self.lane.node())),
                }
            }
            _ => Err(senseless(self.lane.node())),
        }
    }

    /// Whether what has arrived is the block, by the checksum that its home has given.
    fn is_right(&self, arriving: &Arriving, sum: Option<u32>) -> bool {
        let Wanted { key, place } = &self.wanted[arriving.index];
        let of_all = |of_bytes| whole(&self.space.fingerprint, key, place.bytes, of_bytes);
        sum.is_some() && arriving.sum.map(of_all) == sum
    }

    /// Writes what has arrived aside into its slot, as all who put blocks do.
    fn store(&self, arriving: &Arriving) -> bool {
        let mut content = vec![0; arriving.memory.len()];
        let stored =
            arriving.memory.read_at(0, &mut content).map_err(ViewError::from).and_then(|()| {
                self.writer.store.view.write(arriving.offset, content.len() as u64, &[&content])
            });
        stored
            .inspect_err(
                |error| tracing::error!(%error, slot = arriving.slot, "a slot lies outside its file"),
            )
            .is_ok()
    }

    /// Publishes the blocks whose checksums are right and gives the slots of the others back; of all, if a namespace was cleared
    /// meanwhile, and of those that were removed at all nodes.
    fn publish(&self, mut blocks: Vec<Arriving>, sums: &[Option<u32>], since: Since) {
        fault_point::reach("kv-fetch-read");
        if self.writer.store.is_moved_by_hand() {
            for (arriving, sum) in blocks.iter_mut().zip(sums) {
                if self.is_right(arriving, *sum) && !self.store(arriving) {
                    arriving.sum = None;
                }
            }
        }
        let Writer { store, number } = self.writer;
        let (mut hits, mut bytes, mut wrong) = (0, 0, 0);
        let mut state = store.lock();
        let may_count = state.clears == since.clears;
        for (arriving, sum) in blocks.iter().zip(sums) {
            let Wanted { key, .. } = &self.wanted[arriving.index];
            let may_count = may_count && state.removals.may_count(self.space.namespace, key, since.removals);
            let sum = sum.filter(|_| may_count);
            if let Some(of_bytes) = arriving.sum.filter(|_| self.is_right(arriving, sum)) {
                // It is known, so nobody need take it again; the slot is this writer's.
                let _ = state.store.sum_of_written(number, arriving.slot, Some(of_bytes));
                let _ = state.store.fetched(number, arriving.slot);
                // The slot was reserved by this writer and nobody else may publish it; a full index makes it a miss.
                if matches!(
                    state.store.publish(number, arriving.slot, &mut |slot| store.was_touched(slot)),
                    Ok(true)
                ) {
                    // Room that is made meanwhile must not take it before it is read.
                    hinterland_kv::touch(&store.touched, arriving.slot);
                    hits += 1;
                    bytes += arriving.memory.len() as u64;
                }
                continue;
            }
            wrong += u64::from(sum.is_some());
            // As above.
            let _ = state.store.abort(number, arriving.slot);
        }
        drop(state);
        if wrong > 0 {
            tracing::error!(node = self.lane.called(), wrong, "KV blocks arrived with wrong checksums");
        }
        // Relaxed: counters that nothing is ordered by.
        store.tally.hits.fetch_add(hits, Ordering::Relaxed);
        store.tally.bytes.fetch_add(bytes, Ordering::Relaxed);
        store.tally.checksum_failures.fetch_add(wrong, Ordering::Relaxed);
    }
}

fn part_of(memory: &SharedSlice, piece: &Piece) -> Result<SharedSlice, FabricError> {
    // A block has 4 MiB at most: the casts lose nothing.
    memory.sub(piece.offset as usize, piece.bytes as usize).map_err(no_place)
}

fn no_place(error: OsError) -> FabricError {
    FabricError::System { what: "finding a place for a KV block", reason: error.to_string() }
}
