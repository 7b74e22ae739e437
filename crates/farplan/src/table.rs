//! Where the content of a program's memory is: units of a fixed size in regions, and what each event does to them.
//!
//! A page of the program is *present* or *missing*; only the kernel knows which. The table says what a missing page of a unit
//! holds, and nothing else, so that it stays true whatever the program does to pages that are present:
//!
//! - [`State::Untouched`] and [`State::Resident`]: zeros.
//! - [`State::Far`]: the byte of the copy at its place; zeros outside of the copy.
//! - [`State::Leaving`]: not known yet. Nobody fills it until [`Table::finish`] says what became of it.
//!
//! A fill may therefore be repeated or cut short at any page: it adds missing pages only.

mod units;

use self::units::Units;
use crate::PAGE;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// Content that several units may hold parts of.
pub trait Shared: Clone {
    /// Whether it is the same content, and not only the same bytes.
    fn is_same(&self, other: &Self) -> bool;
}

impl<T> Shared for Arc<T> {
    fn is_same(&self, other: &Self) -> bool {
        Self::ptr_eq(self, other)
    }
}

impl<T> Shared for Rc<T> {
    fn is_same(&self, other: &Self) -> bool {
        Self::ptr_eq(self, other)
    }
}

impl Shared for () {
    fn is_same(&self, _other: &Self) -> bool {
        true
    }
}

/// A copy of content, and the address at which its first byte belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece<C> {
    /// The content.
    pub copy: C,
    /// The address of its first byte; below zero where a part was moved to the lowest addresses.
    pub base: i64,
}

impl<C: Shared> Piece<C> {
    /// Whether both are parts of one copy, at the same place.
    pub fn is_same(&self, other: &Self) -> bool {
        self.base == other.base && self.copy.is_same(&other.copy)
    }
}

/// What a unit is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State<C> {
    /// Never written, or dropped by the program.
    Untouched,
    /// In the program's memory.
    Resident {
        /// The same bytes as its present pages have, which are write-protected; `None` if they may have been written.
        clean: Option<Piece<C>>,
        /// When it was filled; see [`Table::victims`].
        stamp: u64,
    },
    /// On its way out.
    Leaving {
        /// Which attempt.
        ticket: u64,
        /// The address of the first byte that the attempt was for; as in [`Piece`].
        base: i64,
        /// The program has dropped the content meanwhile.
        zero: bool,
        /// As in [`State::Resident`].
        clean: Option<Piece<C>>,
    },
    /// Not in the program's memory.
    Far(Piece<C>),
}

impl<C: Shared> State<C> {
    /// Whether both hold parts of the same content.
    fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Untouched, Self::Untouched) => true,
            (Self::Far(one), Self::Far(other)) => one.is_same(other),
            (Self::Leaving { ticket: one, .. }, Self::Leaving { ticket: other, .. }) => one == other,
            (Self::Resident { clean: one, .. }, Self::Resident { clean: other, .. }) => one
                .as_ref()
                .zip(other.as_ref())
                .map_or(one.is_none() && other.is_none(), |(one, other)| one.is_same(other)),
            _ => false,
        }
    }
}

/// A state without what it holds.
#[derive(Clone, Copy)]
enum Kind {
    Untouched,
    Resident,
    Refused,
    Leaving,
    Far,
}

const KINDS: [Kind; 5] = [Kind::Untouched, Kind::Resident, Kind::Refused, Kind::Leaving, Kind::Far];

impl Kind {
    const fn of<C>(state: &State<C>) -> Self {
        match state {
            State::Untouched => Self::Untouched,
            State::Resident { stamp: REFUSED, .. } => Self::Refused,
            State::Resident { .. } => Self::Resident,
            State::Leaving { .. } => Self::Leaving,
            State::Far(_) => Self::Far,
        }
    }
}

/// The stamp of a resident unit that the kernel has refused to move, as what a program has locked: it is neither counted as resident nor a victim, until
/// [`Table::refused`] has it asked for again.
pub const REFUSED: u64 = u64::MAX;

/// What became of an attempt to take a unit out.
#[derive(Clone, Debug)]
pub enum Outcome<C> {
    /// Nothing: all pages are where they were.
    Kept,
    /// The pages that are missing from here on are zeros.
    Zero,
    /// The pages that are missing from here on are in this copy, whose first byte is the first byte of the unit then.
    Stored(C),
    /// The pages that are missing from here on are in the clean copy that the unit had.
    Clean,
}

#[derive(Clone, Debug)]
struct Region<C> {
    end: u64,
    /// How much of the first unit lies before the start of the region.
    lead: u64,
    units: Units<C>,
}

/// The memory of one address space.
#[derive(Clone, Debug)]
pub struct Table<C> {
    unit_bytes: u64,
    regions: BTreeMap<u64, Region<C>>,
    resident_bytes: u64,
    refused_bytes: u64,
    far_bytes: u64,
    /// Part of `resident_bytes`.
    leaving_bytes: u64,
}

impl<C: Shared> Table<C> {
    /// An empty table with units of this size, a power of two of at least a page.
    pub fn new(unit_bytes: u64) -> Self {
        let unit_bytes = unit_bytes.max(PAGE).next_power_of_two();
        Self {
            unit_bytes,
            regions: BTreeMap::new(),
            resident_bytes: 0,
            refused_bytes: 0,
            far_bytes: 0,
            leaving_bytes: 0,
        }
    }

    /// Bytes of units that are resident or leaving, without those that the kernel refuses to move.
    pub const fn resident_bytes(&self) -> u64 {
        self.resident_bytes
    }

    /// Bytes of units that the kernel refuses to move.
    pub const fn refused_bytes(&self) -> u64 {
        self.refused_bytes
    }

    /// Bytes of units that are far.
    pub const fn far_bytes(&self) -> u64 {
        self.far_bytes
    }

    /// Bytes of all units.
    pub fn bytes(&self) -> u64 {
        self.regions.iter().map(|(start, region)| region.end - start).sum()
    }

    /// The unit that an address lies in: first byte, and one past the last.
    pub fn unit(&self, address: u64) -> Option<(u64, u64)> {
        let (start, region) = self.region(address)?;
        Some(self.span(start, region, self.index(start, region, address)))
    }

    /// The first address from which on, without a gap, all up to this one is in the table.
    pub fn start(&self, address: u64) -> Option<u64> {
        let (mut start, _) = self.region(address)?;
        while let Some((before, _)) = start.checked_sub(1).and_then(|last| self.region(last)) {
            start = before;
        }
        Some(start)
    }

    /// The state of the unit at an address.
    pub fn state(&self, address: u64) -> Option<&State<C>> {
        let (start, region) = self.region(address)?;
        region.units.get(self.index(start, region, address))
    }

    /// Changes the state of the unit at an address.
    pub fn set(&mut self, address: u64, state: State<C>) {
        let Some((start, end)) = self.unit(address) else { return };
        let Some((key, index)) =
            self.region(address).map(|(key, region)| (key, self.index(key, region, address)))
        else {
            return;
        };
        let after = Kind::of(&state);
        let Some(before) = self.regions.get_mut(&key).and_then(|region| region.units.replace(index, state))
        else {
            return;
        };
        self.count(Kind::of(&before), end - start, false);
        self.count(after, end - start, true);
    }

    /// The units around an address that hold parts of the same content as the one there, no further than the aligned block of so many bytes, a power of
    /// two: first byte, and one past the last.
    pub fn alike(&self, address: u64, block_bytes: u64) -> Option<(u64, u64)> {
        let (key, region) = self.region(address)?;
        let index = self.index(key, region, address);
        let (mut start, mut end) = self.span(key, region, index);
        if block_bytes <= self.unit_bytes {
            return Some((start, end));
        }
        let here = region.units.get(index)?;
        let is_like = |index: usize| region.units.get(index).is_some_and(|other| here.is_like(other));
        let first = address & !(block_bytes - 1);
        let (mut before, mut after) = (index, index + 1);
        while start > first && before > 0 && is_like(before - 1) {
            before -= 1;
            start = self.span(key, region, before).0;
        }
        while end < (first + block_bytes).min(region.end) && is_like(after) {
            end = self.span(key, region, after).1;
            after += 1;
        }
        Some((start, end))
    }

    /// Where the resident units end that begin with the one at an address, if that is not further than so many bytes.
    pub fn resident_end(&self, address: u64, bytes_max: u64) -> u64 {
        let Some((key, region)) = self.region(address) else { return address };
        let (mut at, mut index) = (address, self.index(key, region, address));
        while at < region.end
            && at - address < bytes_max
            && matches!(region.units.get(index), Some(State::Resident { .. }))
        {
            at = self.span(key, region, index).1;
            index += 1;
        }
        at
    }

    /// Changes the states of the units of a range, as far as there are any without a gap.
    pub fn update(&mut self, range: Range<u64>, mut change: impl FnMut(&mut State<C>)) {
        let mut at = range.start;
        while at < range.end {
            let Some((key, region)) = self.region(at) else { return };
            let last = range.end.min(region.end);
            let indices = self.index(key, region, at)..=self.index(key, region, last - 1);
            at = last;
            let unit_bytes = self.unit_bytes;
            let (mut from, end, lead) = (self.span(key, region, *indices.start()).0, region.end, region.lead);
            let (mut less, mut more) = ([0; KINDS.len()], [0; KINDS.len()]);
            let Some(region) = self.regions.get_mut(&key) else { return };
            for index in indices {
                let to = (key + (index as u64 + 1) * unit_bytes - lead).min(end);
                if let Some(unit) = region.units.get_mut(index) {
                    less[Kind::of(unit) as usize] += to - from;
                    change(unit);
                    more[Kind::of(unit) as usize] += to - from;
                }
                from = to;
            }
            for kind in KINDS {
                self.count(kind, less[kind as usize], false);
                self.count(kind, more[kind as usize], true);
            }
        }
    }

    /// Adds memory, untouched. What is in the table already stays as it is. Returns the ranges that are new.
    pub fn add(&mut self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut at = start;
        while at < end {
            if let Some((_, region)) = self.region(at) {
                at = region.end;
                continue;
            }
            let next = self.regions.range(at..end).next().map_or(end, |(next, _)| *next);
            gaps.push((at, next));
            at = next;
        }
        for (from, to) in &gaps {
            let lead = from & (self.unit_bytes - 1);
            let count = (to - from + lead).div_ceil(self.unit_bytes) as usize;
            self.regions.insert(*from, Region { end: *to, lead, units: Units::new(count) });
        }
        gaps
    }

    /// The parts of a range that are in the table.
    pub fn known(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let first = self.region(start).map_or(start, |(key, _)| key);
        let overlaps = self.regions.range(first..end);
        overlaps.map(|(from, region)| ((*from).max(start), region.end.min(end))).collect()
    }

    /// The program has unmapped a range.
    pub fn unmap(&mut self, start: u64, end: u64) {
        drop(self.cut(start, end));
    }

    /// The program has dropped the content of a range.
    pub fn remove(&mut self, start: u64, end: u64) {
        let mut cut = self.cut(start, end);
        for (_, region) in &mut cut {
            region.units.change(|unit| {
                *unit = match std::mem::replace(unit, State::Untouched) {
                    // It may be moved out still, with whatever is there then.
                    State::Leaving { ticket, base, clean, .. } => {
                        State::Leaving { ticket, base, clean, zero: true }
                    }
                    _ => State::Untouched,
                };
            });
        }
        self.insert(cut);
    }

    /// The program has moved `bytes` bytes.
    pub fn remap(&mut self, from: u64, to: u64, bytes: u64) {
        let mut cut = self.cut(from, from.saturating_add(bytes));
        // What was mapped at the target is gone.
        drop(self.cut(to, to.saturating_add(bytes)));
        let moved = |address: u64| address - from + to;
        // Addresses of programs have 47 bits: as signed numbers they neither change nor overflow.
        let moved_base = |base: i64| base - from as i64 + to as i64;
        for (start, region) in &mut cut {
            *start = moved(*start);
            region.end = moved(region.end);
            region.units.change(|unit| match unit {
                State::Untouched => {}
                State::Far(piece) => piece.base = moved_base(piece.base),
                State::Resident { clean, .. } => {
                    if let Some(piece) = clean {
                        piece.base = moved_base(piece.base);
                    }
                }
                State::Leaving { base, clean, .. } => {
                    *base = moved_base(*base);
                    if let Some(piece) = clean {
                        piece.base = moved_base(piece.base);
                    }
                }
            });
        }
        self.insert(cut);
    }

    /// What the kernel has refused to move is resident like all else, filled at `stamp`: a child of `fork` has nothing locked and nothing pinned.
    pub fn accept_refused(&mut self, stamp: u64) {
        if self.refused_bytes == 0 {
            return;
        }
        for region in self.regions.values_mut() {
            region.units.change(|unit| {
                if let State::Resident { stamp: refused @ REFUSED, .. } = unit {
                    *refused = stamp;
                }
            });
        }
        self.resident_bytes += std::mem::take(&mut self.refused_bytes);
    }

    /// Resident units from `hand` on, in the order of addresses, about `bytes_max` bytes of them, filled before `stamp`: no more, but for what an aligned
    /// block of `block_bytes` bytes has of them still, and one at least if there is any. Returns them and where to go on; `None` behind the last.
    pub fn victims(
        &self,
        hand: u64,
        bytes_max: u64,
        block_bytes: u64,
        before: u64,
    ) -> (Vec<(u64, u64)>, Option<u64>) {
        self.stamped(hand, bytes_max, block_bytes, |stamp| stamp <= before && stamp != REFUSED)
    }

    /// As [`victims`](Self::victims), of what the kernel has refused to move.
    pub fn refused(&self, hand: u64, bytes_max: u64, block_bytes: u64) -> (Vec<(u64, u64)>, Option<u64>) {
        self.stamped(hand, bytes_max, block_bytes, |stamp| stamp == REFUSED)
    }

    fn stamped(
        &self,
        hand: u64,
        bytes_max: u64,
        block_bytes: u64,
        is_wanted: impl Fn(u64) -> bool,
    ) -> (Vec<(u64, u64)>, Option<u64>) {
        let mut found = Vec::new();
        let mut bytes = 0;
        let first = self.region(hand).map_or(hand, |(start, _)| start);
        for (start, region) in self.regions.range(first..) {
            let skip = if hand > *start { self.index(*start, region, hand) } else { 0 };
            for (index, unit) in region.units.touched(skip) {
                if !matches!(unit, State::Resident { stamp, .. } if is_wanted(*stamp)) {
                    continue;
                }
                let (from, to) = self.span(*start, region, index);
                let is_new = found.last().is_some_and(|(last, _)| last / block_bytes != from / block_bytes);
                if bytes + (to - from) > bytes_max && is_new {
                    return (found, Some(from));
                }
                bytes += to - from;
                found.push((from, to));
            }
        }
        (found, None)
    }

    /// The units that may not be untouched, in the order of addresses: start, end, and what is there.
    pub fn units(&self) -> impl Iterator<Item = (u64, u64, &State<C>)> {
        self.regions.iter().flat_map(|(start, region)| {
            region.units.touched(0).map(|(index, unit)| {
                let (from, to) = self.span(*start, region, index);
                (from, to, unit)
            })
        })
    }

    /// Marks the resident units of a range as leaving together, as one content. `keeps_clean`: they have one clean copy, which is what they leave as.
    pub fn leave(&mut self, range: Range<u64>, ticket: u64, keeps_clean: bool) {
        let base = range.start as i64;
        self.update(range, |unit| {
            if let State::Resident { clean, .. } = unit {
                let clean = clean.take().filter(|_| keeps_clean);
                *unit = State::Leaving { ticket, base, zero: false, clean };
            }
        });
    }

    /// Says what became of the attempt `ticket`, wherever the unit is by now, and in however many parts. `expected` is the
    /// address at which it began; the whole table is searched only if nothing of it is there. Returns whether any was found.
    pub fn finish(&mut self, ticket: u64, expected: (u64, u64), outcome: &Outcome<C>, stamp: u64) -> bool {
        // Other programs' tables: not even a search.
        if self.leaving_bytes == 0 {
            return false;
        }
        let mut places = self.leaving(ticket, expected.0, expected.1);
        let whole = expected.1 - expected.0;
        let found: u64 = places.iter().map(|(from, to)| to - from).sum();
        if found < whole {
            places = self.leaving(ticket, 0, u64::MAX);
        }
        for (start, end) in &places {
            self.update(*start..*end, |unit| {
                let State::Leaving { base, zero, clean, .. } = unit else { return };
                let clean = clean.take();
                *unit = match outcome {
                    _ if *zero => State::Untouched,
                    Outcome::Kept => State::Resident { clean, stamp },
                    Outcome::Zero => State::Untouched,
                    Outcome::Stored(copy) => State::Far(Piece { copy: copy.clone(), base: *base }),
                    Outcome::Clean => clean.map_or(State::Resident { clean: None, stamp }, State::Far),
                };
            });
        }
        !places.is_empty()
    }

    /// Where an attempt is by now, units that follow each other as one.
    fn leaving(&self, ticket: u64, from: u64, to: u64) -> Vec<(u64, u64)> {
        let first = self.region(from).map_or(from, |(start, _)| start);
        let mut found = Vec::new();
        for (start, region) in self.regions.range(first..to) {
            let skip = if from > *start { self.index(*start, region, from) } else { 0 };
            let end = self.index(*start, region, to.min(region.end) - 1) + 1;
            for (index, unit) in region.units.touched(skip).take_while(|(index, _)| *index < end) {
                if !matches!(unit, State::Leaving { ticket: of, .. } if *of == ticket) {
                    continue;
                }
                let (from, to) = self.span(*start, region, index);
                match found.last_mut() {
                    Some((_, end)) if *end == from => *end = to,
                    _ => found.push((from, to)),
                }
            }
        }
        found
    }

    fn region(&self, address: u64) -> Option<(u64, &Region<C>)> {
        let (start, region) = self.regions.range(..=address).next_back()?;
        (address < region.end).then_some((*start, region))
    }

    fn index(&self, start: u64, region: &Region<C>, address: u64) -> usize {
        ((address - start + region.lead) / self.unit_bytes) as usize
    }

    fn span(&self, start: u64, region: &Region<C>, index: usize) -> (u64, u64) {
        let to = |units: usize| (units as u64 * self.unit_bytes).saturating_sub(region.lead) + start;
        (to(index), to(index + 1).min(region.end))
    }

    fn count(&mut self, kind: Kind, bytes: u64, add: bool) {
        let change =
            |place: &mut u64| *place = if add { *place + bytes } else { place.saturating_sub(bytes) };
        match kind {
            Kind::Untouched => {}
            Kind::Far => change(&mut self.far_bytes),
            Kind::Resident => change(&mut self.resident_bytes),
            Kind::Refused => change(&mut self.refused_bytes),
            Kind::Leaving => {
                change(&mut self.resident_bytes);
                change(&mut self.leaving_bytes);
            }
        }
    }

    /// Takes a range out of the table, cutting regions and units at its ends.
    fn cut(&mut self, start: u64, end: u64) -> Vec<(u64, Region<C>)> {
        if start >= end {
            return Vec::new();
        }
        self.split(start);
        self.split(end);
        let keys: Vec<u64> = self.regions.range(start..end).map(|(key, _)| *key).collect();
        let mut taken = Vec::new();
        for key in keys {
            let Some(region) = self.regions.remove(&key) else { continue };
            for (index, unit) in region.units.touched(0) {
                let (from, to) = self.span(key, &region, index);
                self.count(Kind::of(unit), to - from, false);
            }
            taken.push((key, region));
        }
        taken
    }

    fn insert(&mut self, regions: Vec<(u64, Region<C>)>) {
        for (key, region) in regions {
            for (index, unit) in region.units.touched(0) {
                let (from, to) = self.span(key, &region, index);
                self.count(Kind::of(unit), to - from, true);
            }
            self.regions.insert(key, region);
        }
    }

    /// Cuts the region that an address lies in; the unit there becomes two, with the same state each.
    fn split(&mut self, address: u64) {
        let unit_bytes = self.unit_bytes;
        let Some((key, _)) = self.region(address).filter(|(start, _)| *start < address) else { return };
        let Some(left) = self.regions.get_mut(&key) else { return };
        let (index, lead) =
            ((address - key + left.lead) / unit_bytes, (address - key + left.lead) % unit_bytes);
        let mut units = left.units.split_off(index as usize);
        if lead > 0
            && let Some(first) = units.get(0).cloned()
        {
            // Parts of a unit are not protected as one: neither is known to be clean.
            let half = match first {
                State::Resident { stamp, .. } => State::Resident { clean: None, stamp },
                other => other,
            };
            let _ = units.replace(0, half.clone());
            left.units.push(half);
        }
        let right = Region { end: left.end, lead, units };
        left.end = address;
        self.regions.insert(address, right);
    }
}

#[cfg(test)]
mod tests;
