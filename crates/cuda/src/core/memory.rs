//! Device memory as the program sees it: which ranges exist, on which device, and how much is left.
//!
//! Ranges of [`OWN_MIN`] bytes and more are mapped by themselves. Smaller ones share chunks of one granule, in pieces of 512 bytes. A chunk
//! that nothing is in any more is given back, but for one of each context, so that a program that takes and frees one piece after the other sends nothing.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

use hinterland_os::Mapping;
use hinterland_proto::gpu::command::{AskGrant, CopyWithin, MapMemory, UnmapMemory};

use super::context::Owner;
use super::session::Session;
use super::window::Window;
use crate::code::{ALREADY_MAPPED, Code, INVALID_VALUE, NO_MEMORY, NOT_SUPPORTED};

/// From this size on a range is mapped by itself.
const OWN_MIN: u64 = 1 << 20;
/// What is asked for beyond what is needed: a part of the device, and at most so much.
const SLACK_PART: u64 = 64;
const SLACK_MAX: u64 = 64 << 20;
/// As many times that may be free before it is given back.
const SLACKS_MAX: u64 = 4;
/// Addresses of small ranges are multiples of this.
const PIECE: u64 = 512;
/// Bytes of a page of this process.
const PAGE_BYTES: u64 = 4096;

/// Who answers for a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    /// It was mapped by itself.
    Own,
    /// It is a piece of the chunk that starts there.
    Chunk(u64),
    /// The program mapped this piece of memory there (`cuMemMap`).
    Mapped(u32),
    /// A variable of a module, outside the window.
    Symbol,
}

/// A range that exists.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    /// First address.
    pub start: u64,
    /// Length in bytes, as the program asked for it.
    pub bytes: u64,
    /// Its device and context.
    pub owner: Owner,
    /// A number that no other one of the session ever has.
    pub number: u64,
    holder: Holder,
}

impl Range {
    /// A number that is that of its memory alone: what is mapped by hand keeps it where it is mapped again.
    #[must_use]
    pub fn memory(&self) -> u64 {
        const OF_PIECE: u64 = 1 << 63;
        match self.holder {
            Holder::Mapped(piece) => OF_PIECE | u64::from(piece),
            _ => self.number,
        }
    }
}

/// A granule that small ranges of one context share: free pieces by their start.
#[derive(Debug)]
struct Chunk {
    owner: Owner,
    free: BTreeMap<u64, u64>,
}

/// Memory that the program maps by itself.
#[derive(Debug, Clone, Copy)]
struct Piece {
    device: u32,
    bytes: u64,
    /// Where the program has it mapped.
    place: Option<u64>,
    /// Where the node has its memory. One that the program has unmapped stays where it was, with its bytes.
    backed: Option<u64>,
    has_handle: bool,
}

/// Memory of the host from which copies need not wait.
#[derive(Debug, Clone, Copy)]
pub struct Pinned {
    /// First address.
    pub start: u64,
    bytes: u64,
    /// Whether we allocated it.
    pub is_ours: bool,
    /// What the program said when it was pinned.
    pub flags: u32,
    /// What was current then.
    pub owner: Owner,
    /// A number that no other memory of the session ever has.
    pub number: u64,
}

impl Pinned {
    /// First address, and the one behind the last.
    #[must_use]
    pub fn range(&self) -> (usize, usize) {
        (self.start as usize, (self.start + self.bytes) as usize)
    }
}

/// All device memory of a session, and memory of the host that a device may use at once.
#[derive(Debug)]
pub struct Memory {
    window: Window,
    ranges: BTreeMap<u64, Range>,
    /// The number of the last range, and of pinned memory.
    last_number: u64,
    /// Addresses that the program reserved by itself, and their length as it asked for it.
    reserved: BTreeMap<u64, u64>,
    chunks: BTreeMap<u64, Chunk>,
    pieces: BTreeMap<u32, Piece>,
    next_piece: u32,
    grants: Vec<u64>,
    used: Vec<u64>,
    /// Pinned memory of the host by its start.
    pinned: BTreeMap<u64, Pinned>,
    /// Pages in which variables of modules lie, by their start. They stay when a module goes: they cost nothing, and the next one is there.
    held: BTreeMap<u64, Mapping>,
}

impl Memory {
    pub(super) fn new(window: Window, grants: Vec<u64>) -> Self {
        let used = vec![0; grants.len()];
        Self {
            window,
            ranges: BTreeMap::new(),
            last_number: 0,
            reserved: BTreeMap::new(),
            chunks: BTreeMap::new(),
            pieces: BTreeMap::new(),
            next_piece: 0,
            grants,
            used,
            pinned: BTreeMap::new(),
            held: BTreeMap::new(),
        }
    }

    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn insert(&mut self, start: u64, bytes: u64, owner: Owner, holder: Holder) {
        let number = self.number();
        self.ranges.insert(start, Range { start, bytes, owner, number, holder });
    }

    /// Gives addresses back to the window, but for those at which the node has memory of pieces.
    fn give_but_backed(&mut self, start: u64, end: u64) {
        let mut backed: Vec<(u64, u64)> = self
            .pieces
            .values()
            .filter_map(|piece| Some((piece.backed?, piece.bytes)))
            .filter(|(at, _)| (start..end).contains(at))
            .collect();
        backed.sort_unstable();
        let mut from = start;
        for (at, bytes) in backed.into_iter().chain([(end, 0)]) {
            if at > from {
                self.window.give(from, at - from);
            }
            from = at + bytes;
        }
    }

    /// Pieces that are mapped nowhere and whose memory lies where another one is to go.
    fn in_the_way_of(&self, number: u32, start: u64, end: u64) -> Vec<u32> {
        let is_in_the_way = |other: u32, piece: &Piece| {
            let is_there = piece.backed.is_some_and(|at| at < end && start < at + piece.bytes);
            is_there && piece.place.is_none() && (other != number || piece.backed != Some(start))
        };
        let all = self.pieces.iter().filter(|(other, piece)| is_in_the_way(**other, piece));
        all.map(|(other, _)| *other).collect()
    }

    fn find(&self, address: u64) -> Option<&Range> {
        let (_, range) = self.ranges.range(..=address).next_back()?;
        (address - range.start < range.bytes).then_some(range)
    }

    /// Whether something exists in a range that is not empty.
    fn is_used(&self, start: u64, end: u64) -> bool {
        self.find(start).is_some() || self.ranges.range(start..end).next().is_some()
    }

    /// Whether the program reserved all of a range at once.
    fn is_reserved(&self, start: u64, bytes: u64) -> bool {
        let Some((at, length)) = self.reserved.range(..=start).next_back() else { return false };
        let length = length.next_multiple_of(self.window.granularity());
        start - at < length && bytes <= length - (start - at)
    }

    /// A piece of a chunk of this context that has room.
    fn take_piece(&mut self, owner: Owner, bytes: u64) -> Option<(u64, u64)> {
        for (chunk_start, chunk) in self.chunks.iter_mut().filter(|(_, chunk)| chunk.owner == owner) {
            if let Some((start, length)) = chunk.free.iter().find(|(_, length)| **length >= bytes) {
                let (start, length) = (*start, *length);
                chunk.free.remove(&start);
                if length > bytes {
                    chunk.free.insert(start + bytes, length - bytes);
                }
                return Some((*chunk_start, start));
            }
        }
        None
    }

    /// Takes a piece of a chunk back; whether nothing is left in that chunk and another of its context is as empty.
    fn give_piece(&mut self, number: u64, start: u64, bytes: u64) -> bool {
        let granule = self.window.granularity();
        let Some(chunk) = self.chunks.get_mut(&number) else { return false };
        let (mut start, mut length) = (start, bytes);
        if let Some((before, before_bytes)) =
            chunk.free.range(..start).next_back().map(|(at, bytes)| (*at, *bytes))
            && before + before_bytes == start
        {
            chunk.free.remove(&before);
            start = before;
            length += before_bytes;
        }
        if let Some(after) = chunk.free.remove(&(start + length)) {
            length += after;
        }
        chunk.free.insert(start, length);
        let owner = chunk.owner;
        let is_spare = |(other, chunk): (&u64, &Chunk)| {
            *other != number && chunk.owner == owner && chunk.free.get(other) == Some(&granule)
        };
        length == granule && self.chunks.iter().any(is_spare)
    }

    /// Keeps memory of the program away from where a variable of a module lies, as it is kept away from the window: there its addresses would be
    /// taken for those of the variable.
    ///
    /// # Errors
    /// The program has memory there already.
    fn hold(&mut self, start: u64, bytes: u64) -> Result<(), Code> {
        if self.window.contains(start) {
            return Ok(());
        }
        let end = start.checked_add(bytes.max(1)).and_then(|end| end.checked_next_multiple_of(PAGE_BYTES));
        let (mut at, end) = (start & !(PAGE_BYTES - 1), end.ok_or(INVALID_VALUE)?);
        while at < end {
            let before = self.held.range(..=at).next_back();
            let held = before.map(|(start, held)| start + held.len() as u64).filter(|end| *end > at);
            if let Some(end) = held {
                at = end;
                continue;
            }
            let next = self.held.range(at..end).next().map_or(end, |(start, _)| *start);
            // As long as a variable, which fits.
            let mapping = Mapping::reserve(Some(at), (next - at) as usize).map_err(|_| ALREADY_MAPPED)?;
            self.held.insert(at, mapping);
            at = next;
        }
        Ok(())
    }

    /// Whether variables of modules lie in the page of an address.
    fn is_held(&self, address: u64) -> bool {
        let before = self.held.range(..=address).next_back();
        before.is_some_and(|(start, held)| address - start < held.len() as u64)
    }

    /// The pinned memory that all of a range of the host lies in.
    fn pinned_around(&self, start: u64, bytes: u64) -> Option<&Pinned> {
        let (at, one) = self.pinned.range(..=start).next_back()?;
        (start - at < one.bytes && bytes <= one.bytes - (start - at)).then_some(one)
    }
}

/// Whether anything is mapped in this process at an address.
fn has_memory_here(address: u64) -> bool {
    let mut state = 0;
    let page = std::ptr::without_provenance_mut((address & !(PAGE_BYTES - 1)) as usize);
    // SAFETY: the call reads nothing there; it writes one byte of state for one page.
    unsafe { libc::mincore(page, 1, &raw mut state) == 0 }
}

impl Session {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an address is one of a device. One that is none of this process either may be in a variable whose place was not asked for.
    #[must_use]
    pub fn is_device_address(&self, address: u64) -> bool {
        self.is_known_address(address) || (self.looks_for_symbols(address) && self.is_known_address(address))
    }

    fn is_known_address(&self, address: u64) -> bool {
        let memory = self.memory();
        memory.window.contains(address) || memory.find(address).is_some()
    }

    /// Asks where variables are, if there are any that were not asked for and an address has no memory here; whether it did.
    fn looks_for_symbols(&self, address: u64) -> bool {
        // Beside a variable that was asked for there may be another one.
        let may_be = || self.memory().is_held(address) || !has_memory_here(address);
        let looks = self.modules.has_unasked() && may_be();
        if looks {
            self.find_symbols();
        }
        looks
    }

    /// The same where the program says so: it may be in a variable whose place was not asked for.
    #[must_use]
    pub fn is_device_address_as_said(&self, address: u64) -> bool {
        self.is_known_address(address) || {
            self.find_symbols();
            self.is_known_address(address)
        }
    }

    /// Allocates device memory; the address is a multiple of 512.
    ///
    /// # Errors
    /// No memory is left, or the node is gone.
    pub fn allocate(&self, owner: Owner, bytes: u64) -> Result<u64, Code> {
        let device = owner.device;
        self.device(device)?;
        if bytes == 0 {
            return Ok(0);
        }
        let mut memory = self.memory();
        if bytes >= OWN_MIN {
            let (memory, start) = self.map_fresh(memory, device, bytes)?;
            let mut memory = memory;
            memory.insert(start, bytes, owner, Holder::Own);
            return Ok(start);
        }
        let room = bytes.next_multiple_of(PIECE);
        let (chunk, start) = match memory.take_piece(owner, room) {
            Some(piece) => piece,
            None => {
                let granule = memory.window.granularity();
                let (fresh, start) = self.map_fresh(memory, device, granule)?;
                memory = fresh;
                memory.chunks.insert(start, Chunk { owner, free: BTreeMap::from([(start, granule)]) });
                memory.take_piece(owner, room).ok_or(NO_MEMORY)?
            }
        };
        memory.insert(start, bytes, owner, Holder::Chunk(chunk));
        Ok(start)
    }

    /// Maps fresh memory, within the grant or a larger one.
    fn map_fresh<'memory>(
        &'memory self,
        memory: MutexGuard<'memory, Memory>,
        device: u32,
        bytes: u64,
    ) -> Result<(MutexGuard<'memory, Memory>, u64), Code> {
        let bytes = bytes.checked_next_multiple_of(memory.window.granularity()).ok_or(NO_MEMORY)?;
        let mut memory = self.claim(memory, device, bytes)?;
        let start = memory.window.take(bytes, 0).inspect_err(|_| memory.used[device as usize] -= bytes)?;
        self.send(&MapMemory { device, flags: 0, address: start, bytes })?;
        Ok((memory, start))
    }

    /// Counts memory as used; asks for a larger grant if there is not enough.
    fn claim<'memory>(
        &'memory self,
        mut memory: MutexGuard<'memory, Memory>,
        device: u32,
        bytes: u64,
    ) -> Result<MutexGuard<'memory, Memory>, Code> {
        let place = device as usize;
        let wanted = memory.used[place].checked_add(bytes).ok_or(NO_MEMORY)?;
        if wanted > memory.grants[place] {
            let (granted, _) = self.ask_grant(device, wanted, wanted.saturating_add(self.slack(device)))?;
            memory.grants[place] = granted;
            if wanted > granted {
                return Err(NO_MEMORY);
            }
        }
        memory.used[place] = wanted;
        Ok(memory)
    }

    /// The grant of a device after asking for another, and what the node could add to it.
    fn ask_grant(&self, device: u32, least: u64, wanted: u64) -> Result<(u64, u64), Code> {
        let answer = self.ask(&[], |question| AskGrant { question, device, least, wanted })?;
        let word = |from: usize| {
            let bytes = answer.get(from..from + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        word(0).zip(word(8)).ok_or(NO_MEMORY)
    }

    fn slack(&self, device: u32) -> u64 {
        self.device(device).map_or(0, |facts| facts.memory / SLACK_PART).min(SLACK_MAX)
    }

    /// Gives back what was freed, if it is much: others may want it.
    fn trim(&self, memory: &mut Memory, device: u32) {
        let (place, slack) = (device as usize, self.slack(device));
        if memory.grants[place].saturating_sub(memory.used[place]) <= SLACKS_MAX * slack {
            return;
        }
        // A node that is gone is told to whoever calls next.
        if let Ok((granted, _)) = self.ask_grant(device, 0, memory.used[place] + slack) {
            memory.grants[place] = granted;
        }
    }

    /// Frees what [`allocate`](Self::allocate) gave. All work of the device that was sent before is done before the memory is anybody's again.
    ///
    /// # Errors
    /// Nothing was allocated at this address.
    pub fn free(&self, address: u64) -> Result<(), Code> {
        if address == 0 {
            return Ok(());
        }
        if self.free_held(address)? {
            return Ok(());
        }
        // Taken first: once the range is free, another thread may have allocated it from a pool.
        let owner = self.take_pool_of(address);
        self.free_range(address).inspect_err(|_| self.put_pool_of(address, owner))
    }

    pub(super) fn free_range(&self, address: u64) -> Result<(), Code> {
        let mut memory = self.memory();
        let range = *memory.ranges.get(&address).ok_or(INVALID_VALUE)?;
        match range.holder {
            Holder::Own => {
                memory.ranges.remove(&address);
                let bytes = range.bytes.next_multiple_of(memory.window.granularity());
                self.take_from(&mut memory, range.owner.device, address, bytes)?;
            }
            Holder::Chunk(chunk) => {
                memory.ranges.remove(&address);
                self.fence_all();
                if memory.give_piece(chunk, address, range.bytes.next_multiple_of(PIECE)) {
                    memory.chunks.remove(&chunk);
                    let bytes = memory.window.granularity();
                    self.take_from(&mut memory, range.owner.device, chunk, bytes)?;
                }
            }
            Holder::Mapped(_) | Holder::Symbol => return Err(INVALID_VALUE),
        }
        Ok(())
    }

    /// Takes memory that was mapped for the program away, and its addresses back.
    fn take_from(&self, memory: &mut Memory, device: u32, address: u64, bytes: u64) -> Result<(), Code> {
        memory.used[device as usize] -= bytes;
        self.send(&UnmapMemory { address, bytes })?;
        memory.window.give(address, bytes);
        self.trim(memory, device);
        Ok(())
    }

    /// Free and all memory of a device, as far as this session may use it at this moment: the node is asked.
    ///
    /// # Errors
    /// No such device, or the node is gone.
    pub fn memory_left(&self, device: u32) -> Result<(u64, u64), Code> {
        let total = self.device(device)?.memory;
        let mut memory = self.memory();
        let place = device as usize;
        let (granted, more) = self.ask_grant(device, memory.used[place], memory.grants[place])?;
        memory.grants[place] = granted;
        Ok((granted.saturating_sub(memory.used[place]).saturating_add(more).min(total), total))
    }

    /// Bytes of a device that the program has, rounded up to what can be mapped; 0 of one that there is none of.
    pub fn memory_used(&self, device: u32) -> u64 {
        self.memory().used.get(device as usize).copied().unwrap_or(0)
    }

    /// Checks that a range of a device exists; returns its device.
    ///
    /// # Errors
    /// Some of it does not exist.
    pub fn check_range(&self, address: u64, bytes: u64) -> Result<u32, Code> {
        let mut memory = self.memory();
        if memory.find(address).is_none() {
            drop(memory);
            self.find_symbols();
            memory = self.memory();
        }
        let range = memory.find(address).ok_or(INVALID_VALUE)?;
        if bytes > range.bytes - (address - range.start) {
            // Memory that a program maps piece by piece may be copied across pieces.
            let mut end = range.start + range.bytes;
            while end - address < bytes {
                let next = memory.ranges.get(&end).filter(|next| matches!(next.holder, Holder::Mapped(_)));
                end += next.ok_or(INVALID_VALUE)?.bytes;
            }
        }
        Ok(range.owner.device)
    }

    /// The range around an address.
    #[must_use]
    pub fn range_around(&self, address: u64) -> Option<Range> {
        let found = || self.memory().find(address).copied();
        found().or_else(|| if self.looks_for_symbols(address) { found() } else { None })
    }

    /// Reserves addresses without memory.
    ///
    /// # Errors
    /// None are left, the length is 0, or the alignment is no power of two.
    pub fn reserve_addresses(&self, bytes: u64, alignment: u64) -> Result<u64, Code> {
        let mut memory = self.memory();
        let start = memory.window.take(bytes, alignment.max(1))?;
        memory.reserved.insert(start, bytes);
        Ok(start)
    }

    /// Gives reserved addresses back.
    ///
    /// # Errors
    /// This is not what was reserved, as a whole, or memory is still mapped there.
    pub fn release_addresses(&self, address: u64, bytes: u64) -> Result<(), Code> {
        let mut memory = self.memory();
        if bytes == 0 || memory.reserved.get(&address) != Some(&bytes) {
            return Err(INVALID_VALUE);
        }
        // It fits, as it was given out so.
        let end = address + bytes.next_multiple_of(memory.window.granularity());
        if memory.is_used(address, end) {
            return Err(INVALID_VALUE);
        }
        memory.reserved.remove(&address);
        memory.give_but_backed(address, end);
        Ok(())
    }

    /// Sets memory aside that the program will map by itself; returns its name.
    ///
    /// # Errors
    /// No memory is left.
    pub fn create_piece(&self, device: u32, bytes: u64) -> Result<u32, Code> {
        self.device(device)?;
        let memory = self.memory();
        let mut memory = self.claim(memory, device, bytes)?;
        memory.next_piece += 1;
        let number = memory.next_piece;
        memory.pieces.insert(number, Piece { device, bytes, place: None, backed: None, has_handle: true });
        Ok(number)
    }

    /// The program lets go of the name of a piece.
    ///
    /// # Errors
    /// There is no such piece.
    pub fn release_piece(&self, number: u32) -> Result<(), Code> {
        let mut memory = self.memory();
        let piece = memory.pieces.get_mut(&number).filter(|piece| piece.has_handle).ok_or(INVALID_VALUE)?;
        piece.has_handle = false;
        let device = piece.device;
        self.drop_unused(&mut memory, number)?;
        self.trim(&mut memory, device);
        Ok(())
    }

    /// Forgets a piece that has neither a handle nor a place, and its memory with it.
    fn drop_unused(&self, memory: &mut Memory, number: u32) -> Result<(), Code> {
        let is_unused = |piece: &Piece| !piece.has_handle && piece.place.is_none();
        let Some(piece) = memory.pieces.get(&number).copied().filter(is_unused) else { return Ok(()) };
        memory.pieces.remove(&number);
        let used = &mut memory.used[piece.device as usize];
        *used = used.saturating_sub(piece.bytes);
        piece.backed.map_or(Ok(()), |address| self.take_back(memory, address, piece.bytes))
    }

    /// Takes the memory of a piece back from its addresses, and those too, unless the program has them reserved.
    fn take_back(&self, memory: &mut Memory, address: u64, bytes: u64) -> Result<(), Code> {
        self.send(&UnmapMemory { address, bytes })?;
        if !memory.is_reserved(address, bytes) {
            memory.window.give(address, bytes);
        }
        Ok(())
    }

    /// Has the node have the memory of a piece at other addresses, fresh ones if none are named, with the bytes that are in it.
    fn back_piece<'memory>(
        &'memory self,
        mut memory: MutexGuard<'memory, Memory>,
        number: u32,
        wanted: Option<u64>,
    ) -> Result<MutexGuard<'memory, Memory>, Code> {
        let Piece { device, bytes, backed, .. } = *memory.pieces.get(&number).ok_or(INVALID_VALUE)?;
        if wanted.is_some() && wanted == backed {
            return Ok(memory);
        }
        if backed.is_some() {
            // There are two of it until the bytes have been copied.
            memory = self.claim(memory, device, bytes)?;
            memory.used[device as usize] -= bytes;
        }
        let address = wanted.map_or_else(|| memory.window.take(bytes, 0), Ok)?;
        // What writes there was sent before, and what reads the copy is sent behind it, whatever their streams.
        self.fence_all();
        self.send(&MapMemory { device, flags: 0, address, bytes })?;
        if let Some(from) = backed {
            self.send(&CopyWithin { stream: device, flags: 0, to: address, from, bytes })?;
            self.send(&Self::fence_command(device))?;
            self.take_back(&mut memory, from, bytes)?;
        }
        if let Some(piece) = memory.pieces.get_mut(&number) {
            piece.backed = Some(address);
        }
        Ok(memory)
    }

    /// Maps a piece at reserved addresses. What is in it is what was there when it was unmapped.
    ///
    /// # Errors
    /// The place is taken or not reserved; the piece is mapped already or has another length; no memory is left for a copy on its way from where it was.
    pub fn map_piece(&self, number: u32, address: u64, bytes: u64) -> Result<(), Code> {
        let mut memory = self.memory();
        let granule = memory.window.granularity();
        let piece = *memory.pieces.get(&number).ok_or(INVALID_VALUE)?;
        let end = address.checked_add(bytes).ok_or(INVALID_VALUE)?;
        if piece.place.is_some() || piece.bytes != bytes {
            return Err(NOT_SUPPORTED);
        }
        if !address.is_multiple_of(granule)
            || !memory.is_reserved(address, bytes)
            || memory.is_used(address, end)
        {
            return Err(INVALID_VALUE);
        }
        for other in memory.in_the_way_of(number, address, end) {
            memory = self.back_piece(memory, other, None)?;
        }
        memory = self.back_piece(memory, number, Some(address))?;
        let owner = Owner::device_alone(piece.device);
        memory.insert(address, bytes, owner, Holder::Mapped(number));
        if let Some(piece) = memory.pieces.get_mut(&number) {
            piece.place = Some(address);
        }
        Ok(())
    }

    /// Unmaps what was mapped in a range, whole mappings only. Pieces whose handles the program has keep their bytes.
    ///
    /// # Errors
    /// A mapping lies partly outside, or nothing is mapped there.
    pub fn unmap_range(&self, address: u64, bytes: u64) -> Result<(), Code> {
        let mut memory = self.memory();
        let end = address.checked_add(bytes).ok_or(INVALID_VALUE)?;
        let inside: Vec<Range> = memory.ranges.range(address..end).map(|(_, range)| *range).collect();
        let is_whole =
            |range: &Range| matches!(range.holder, Holder::Mapped(_)) && range.start + range.bytes <= end;
        let begins_before = memory.find(address).is_some_and(|range| range.start < address);
        let whole = !begins_before && inside.iter().all(is_whole);
        if inside.is_empty() || !whole {
            return Err(INVALID_VALUE);
        }
        for range in inside {
            memory.ranges.remove(&range.start);
            if let Holder::Mapped(number) = range.holder {
                if let Some(piece) = memory.pieces.get_mut(&number) {
                    piece.place = None;
                }
                self.drop_unused(&mut memory, number)?;
            }
            self.trim(&mut memory, range.owner.device);
        }
        Ok(())
    }

    /// Frees all memory of a context, or what belongs to a device and to none of its contexts, and gives back what of the grant was not promised and is
    /// not needed. Addresses that the program reserved stay reserved.
    ///
    /// # Errors
    /// The node is gone.
    pub(super) fn free_all_of(&self, owner: Owner) -> Result<(), Code> {
        let mut memory = self.memory();
        let memory = &mut *memory;
        let granule = memory.window.granularity();
        let mut mapped: Vec<(u64, u64)> = Vec::new();
        memory.chunks.retain(|start, chunk| {
            if chunk.owner == owner {
                mapped.push((*start, granule));
            }
            chunk.owner != owner
        });
        memory.ranges.retain(|start, range| {
            match range.holder {
                _ if range.owner != owner => return true,
                Holder::Own => mapped.push((*start, range.bytes.next_multiple_of(granule))),
                Holder::Mapped(_) | Holder::Chunk(_) | Holder::Symbol => {}
            }
            false
        });
        let used = &mut memory.used[owner.device as usize];
        for (address, bytes) in mapped {
            *used = used.saturating_sub(bytes);
            self.send(&UnmapMemory { address, bytes })?;
            memory.window.give(address, bytes);
        }
        let mut pieces: Vec<(u64, u64)> = Vec::new();
        memory.pieces.retain(|_, piece| {
            let is_meant = Owner::device_alone(piece.device) == owner;
            if is_meant {
                *used = used.saturating_sub(piece.bytes);
                pieces.extend(piece.backed.map(|address| (address, piece.bytes)));
            }
            !is_meant
        });
        let wanted = *used;
        for (address, bytes) in pieces {
            self.take_back(memory, address, bytes)?;
        }
        memory.grants[owner.device as usize] = self.ask_grant(owner.device, 0, wanted)?.0;
        Ok(())
    }

    /// Forgets the pinned memory of a context; returns it.
    pub(super) fn take_pinned_of(&self, owner: Owner) -> Vec<Pinned> {
        let mut memory = self.memory();
        let taken = memory.pinned.values().filter(|one| one.owner == owner).copied().collect();
        memory.pinned.retain(|_, one| one.owner != owner);
        taken
    }

    /// Remembers where a variable of a module lies; `own` is its length as the image says it.
    ///
    /// # Errors
    /// The program has memory there.
    pub(super) fn add_symbol(&self, owner: Owner, start: u64, bytes: u64, own: u64) -> Result<(), Code> {
        let mut memory = self.memory();
        memory.hold(start, own)?;
        memory.insert(start, bytes, owner, Holder::Symbol);
        Ok(())
    }

    /// Forgets where variables of a module lay that is gone.
    pub(super) fn forget_symbols(&self, starts: impl IntoIterator<Item = u64>) {
        let mut memory = self.memory();
        for start in starts {
            if memory.ranges.get(&start).is_some_and(|range| range.holder == Holder::Symbol) {
                memory.ranges.remove(&start);
            }
        }
    }

    /// Remembers memory of the host as pinned, for a context.
    ///
    /// # Errors
    /// Some of it is already.
    pub fn add_pinned(
        &self,
        owner: Owner,
        start: u64,
        bytes: u64,
        is_ours: bool,
        flags: u32,
    ) -> Result<(), Code> {
        let mut memory = self.memory();
        let end = start.checked_add(bytes).ok_or(INVALID_VALUE)?;
        let before = memory.pinned.range(..end).next_back();
        if before.is_some_and(|(at, one)| at + one.bytes > start) {
            return Err(crate::code::ALREADY_REGISTERED);
        }
        let number = memory.number();
        memory.pinned.insert(start, Pinned { start, bytes, is_ours, flags, owner, number });
        Ok(())
    }

    /// Forgets pinned memory; returns its length.
    ///
    /// # Errors
    /// None starts there, or it is the other kind.
    pub fn remove_pinned(&self, start: u64, is_ours: bool) -> Result<u64, Code> {
        let mut memory = self.memory();
        match memory.pinned.get(&start) {
            Some(one) if one.is_ours == is_ours => {
                let bytes = one.bytes;
                memory.pinned.remove(&start);
                Ok(bytes)
            }
            _ if is_ours => Err(INVALID_VALUE),
            _ => Err(crate::code::NOT_REGISTERED),
        }
    }

    /// Bytes of the pinned memory that starts there.
    #[must_use]
    pub fn pinned_bytes(&self, start: u64) -> Option<u64> {
        self.memory().pinned.get(&start).map(|one| one.bytes)
    }

    /// Whether all of a range of the host is pinned.
    #[must_use]
    pub fn is_pinned(&self, start: u64, bytes: u64) -> bool {
        self.memory().pinned_around(start, bytes).is_some()
    }

    /// The pinned memory of the host around an address.
    #[must_use]
    pub fn pinned(&self, address: u64) -> Option<Pinned> {
        self.memory().pinned_around(address, 1).copied()
    }

    /// What pinned memory of the host around an address belongs to.
    #[must_use]
    pub fn pinned_owner(&self, address: u64) -> Option<Owner> {
        self.pinned(address).map(|one| one.owner)
    }
}
