//! How much leaves as one content and comes back with one fault: as much as its place uses together.
//!
//! A program that touches its memory here and there is best served in single pages, one that goes through it in blocks of several; and one program does both, in
//! different places. So each neighbourhood learns its own grain, between a page and a block. What it learns from are *pairs*: two halves of the next larger
//! grain that left one by one. Where the second comes back within the time in which the room is filled anew, one content would have done for both; where it does
//! not, one of both would have brought the other for nothing. Neighbourhoods whose grain is larger than a page let some of it leave in halves, to learn
//! whether less would do: few where halves are known to be used together, many where they seem not to be.
//!
//! Where a program touches at random a memory that is not much larger than the room, the second half comes back in that time as well, by chance, and
//! whatever else might have stayed in its place would have been wanted as likely. So what a pair says is lessened by what chance explains: by how
//! long the second half was here for nothing, times how often content of its size is wanted.

use crate::PAGE;
use crate::refault::Clock;
use crate::table::{Piece, Shared, State, Table};
use std::collections::{HashMap, VecDeque};

/// Grains are a page, two, or four.
const LEVELS: usize = 3;
/// The largest grain.
pub const BLOCK_BYTES: u64 = PAGE << (LEVELS - 1);
/// Bytes of a neighbourhood, and how many are told apart; those of larger programs share.
const NEAR_SHIFT: u32 = 22;
const NEIGHBOURHOODS: usize = 4096;
/// What a pair that comes back together counts, by the size of its halves; one that does not counts 1 against it. A fault costs more
/// than the bytes of a page.
const TOGETHER: [i16; LEVELS - 1] = [4, 6];
/// Where a neighbourhood goes to halves, where it goes back, and the most that is kept in mind.
const APART: i16 = -16;
const TOGETHER_AGAIN: i16 = 16;
const SCORE_MAX: i16 = 24;
/// One of so many blocks leaves in halves: where nothing is known, where halves seem to be used together, and where they do not.
const PROBES: u32 = 8;
const PROBES_TOGETHER: u32 = 32;
const PROBES_APART: u32 = 2;
/// Where so many halves more were filled ahead than told something: a program that goes on in order says nothing, whatever leaves in halves.
const SILENT: u8 = 24;
const SILENT_MAX: u8 = 32;
/// What a half that tells something counts against it.
const SPOKEN: u8 = 4;
/// Pairs of which one half is awaited, at most.
const PAIRS_MAX: usize = 1 << 14;
/// How often any half is wanted while the room is filled anew, at most: from there on chance explains all.
const CHANCE_MAX: f32 = 4.0;
/// Returns by which a neighbourhood knows how long its content is away, and the most rooms that one counts: what was not in use says nothing.
const RETURNS: f32 = 64.0;
const AWAY_ROOMS_MAX: f32 = 8.0;

/// What is known of a neighbourhood.
#[derive(Clone, Copy, Debug)]
struct Near {
    level: u8,
    /// By the size of the halves: above 0, they are used together.
    scores: [i16; LEVELS - 1],
    silent: u8,
    /// Of what was wanted of late: its pages, each counted with the rooms that were filled meanwhile; and how much that was.
    away: f32,
    returns: f32,
}

/// The first half of a pair, which has come back.
#[derive(Clone, Copy, Debug)]
struct First {
    start: u64,
    came: Clock,
    /// How often any content of its size is wanted while the room is filled anew.
    chance: f32,
}

/// A content that comes back.
#[derive(Clone, Copy, Debug)]
pub struct Return {
    /// Its first byte.
    pub start: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Somebody waits for it; else it is filled ahead.
    pub is_wanted: bool,
    /// The other half of its pair is far, as a content of its own.
    pub is_other_far: bool,
    /// What was filled since it left, if that is known.
    pub away: Option<Clock>,
}

/// Units that leave as one content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part<C> {
    /// The first byte.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// The copy that holds what they hold.
    pub clean: Option<Piece<C>>,
}

/// The grains of a program.
#[derive(Clone, Debug)]
pub struct Grains {
    near: Vec<Near>,
    /// The scores of the whole program: where little is known of a neighbourhood, it is likely to be as the others.
    all: [i16; LEVELS - 1],
    /// By half size and number of the pair.
    pairs: HashMap<(u8, u64), First>,
    /// The same in the order in which they came.
    queue: VecDeque<(Clock, u8, u64)>,
    turn: u32,
}

impl Default for Grains {
    fn default() -> Self {
        let level = LEVELS as u8 - 1;
        let near = Near { level, scores: [0; LEVELS - 1], silent: 0, away: 0.0, returns: 0.0 };
        Self {
            near: vec![near; NEIGHBOURHOODS],
            all: [0; LEVELS - 1],
            pairs: HashMap::new(),
            queue: VecDeque::new(),
            turn: 0,
        }
    }
}

impl Grains {
    /// In parts of how many bytes the block at an address leaves this time.
    pub fn part_bytes(&mut self, address: u64) -> u64 {
        let near = self.near[near(address)];
        let level = near.level as usize;
        if level == 0 {
            return PAGE;
        }
        let score = near.scores[level - 1];
        let rate = match score {
            ..0 => PROBES_APART,
            TOGETHER_AGAIN.. => PROBES_TOGETHER,
            _ if near.silent >= SILENT || self.all[level - 1] >= TOGETHER_AGAIN => PROBES_TOGETHER,
            _ => PROBES,
        };
        self.turn = self.turn.wrapping_add(1);
        PAGE << (level - usize::from(self.turn.is_multiple_of(rate)))
    }

    /// The half of a pair that lies beside another one; `None` if content of so many bytes is none.
    pub fn other_half(start: u64, bytes: u64) -> Option<u64> {
        let is_half = bytes.is_power_of_two() && (PAGE..BLOCK_BYTES).contains(&bytes);
        (is_half && start.is_multiple_of(bytes)).then_some(start ^ bytes)
    }

    /// Content has come back, where there is so much room.
    pub fn came(
        &mut self,
        Return { start, bytes, is_wanted, is_other_far, away }: Return,
        now: Clock,
        room_bytes: u64,
    ) {
        self.expire(now, room_bytes);
        if let Some(away) = away.filter(|_| is_wanted) {
            self.near[near(start)].count(bytes, rooms(away, room_bytes));
        }
        if Self::other_half(start, bytes).is_none() {
            return;
        }
        // At most a few: sizes are checked above.
        let half = (bytes / PAGE).ilog2() as u8;
        let pair = (half, start / (2 * bytes));
        if !is_wanted {
            // Nobody knows whether what is filled ahead is used.
            let silent = &mut self.near[near(start)].silent;
            *silent = (*silent + 1).min(SILENT_MAX);
        }
        match self.pairs.get(&pair).copied() {
            Some(first) if first.start != start => {
                self.pairs.remove(&pair);
                if is_wanted {
                    let away = rooms(now.saturating_sub(first.came), room_bytes);
                    self.learn(start, half, TOGETHER[half as usize] - by_chance(half, first.chance * away));
                }
            }
            Some(_) => {}
            // Where the other half never left, it says nothing that it does not come.
            None if is_wanted && is_other_far && self.queue.len() < PAIRS_MAX => {
                let chance = self.near[near(start)].chance(bytes);
                self.pairs.insert(pair, First { start, came: now, chance });
                self.queue.push_back((now, pair.0, pair.1));
            }
            None => {}
        }
    }

    /// Pairs whose other half did not come while the room was filled anew.
    fn expire(&mut self, now: Clock, room_bytes: u64) {
        while let Some((came, half, number)) = self.queue.front().copied()
            && now.saturating_sub(came) > room_bytes
        {
            self.queue.pop_front();
            let pair = (half, number);
            if let Some(first) = self.pairs.get(&pair).copied()
                && first.came == came
            {
                self.pairs.remove(&pair);
                self.learn(first.start, half, -1 - by_chance(half, first.chance));
            }
        }
    }

    fn learn(&mut self, address: u64, half: u8, change: i16) {
        let near = &mut self.near[near(address)];
        near.silent = near.silent.saturating_sub(SPOKEN);
        let (score, of_all) = (&mut near.scores[half as usize], &mut self.all[half as usize]);
        *score = (*score + change).clamp(APART, SCORE_MAX);
        *of_all = (*of_all + change).clamp(APART, SCORE_MAX);
        if near.level == half + 1 && *score == APART {
            near.level = half;
        } else if near.level == half && *score >= TOGETHER_AGAIN {
            near.level = half + 1;
        }
    }

    /// Divides units that are to leave, which are resident and in the order of addresses, into contents. `content_bytes` tells the length of a copy.
    /// `fits`: whether contents of any length are as good; else as much as possible of each block leaves as one.
    pub fn divide<C: Shared>(
        &mut self,
        table: &Table<C>,
        units: &[(u64, u64)],
        fits: bool,
        content_bytes: impl Fn(&C) -> u64,
    ) -> Vec<Part<C>> {
        let mut parts: Vec<Part<C>> = Vec::with_capacity(units.len());
        let (mut block, mut part_bytes) = (u64::MAX, BLOCK_BYTES);
        // Of the last part: from where, and whether its units are not alike.
        let mut is_mixed = false;
        for &(start, end) in units {
            if start / BLOCK_BYTES != block {
                block = start / BLOCK_BYTES;
                part_bytes = if fits { self.part_bytes(start) } else { BLOCK_BYTES };
            }
            let Some(State::Resident { clean, .. }) = table.state(start) else { continue };
            // A copy of more than is to leave together is of no use any more.
            let clean = clean.clone().filter(|piece| content_bytes(&piece.copy) <= part_bytes);
            match parts.last_mut() {
                Some(last) if last.end == start && last.start / part_bytes == start / part_bytes => {
                    let is_same = match (&last.clean, &clean) {
                        (Some(one), Some(other)) => one.is_same(other),
                        (one, other) => one.is_none() && other.is_none(),
                    };
                    is_mixed |= !is_same;
                    last.end = end;
                    if is_mixed {
                        last.clean = None;
                    }
                }
                _ => {
                    is_mixed = false;
                    parts.push(Part { start, end, clean });
                }
            }
        }
        parts
    }
}

impl Near {
    /// So many bytes were wanted, after so many rooms had been filled.
    fn count(&mut self, bytes: u64, rooms: f32) {
        self.away += (bytes / PAGE) as f32 * rooms.min(AWAY_ROOMS_MAX);
        self.returns += 1.0;
        if self.returns > RETURNS {
            self.away -= self.away / self.returns;
            self.returns -= 1.0;
        }
    }

    /// How often content of so many bytes is wanted while the room is filled anew, where each page is as likely to be: what is in use is away the
    /// shorter, the more often it is wanted (Little's law).
    fn chance(&self, bytes: u64) -> f32 {
        if self.away > 0.0 { ((bytes / PAGE) as f32 * self.returns / self.away).min(CHANCE_MAX) } else { 0.0 }
    }
}

/// How often the room has been filled.
fn rooms(filled: Clock, room_bytes: u64) -> f32 {
    filled as f32 / room_bytes.max(1) as f32
}

/// What a pair with halves of some size would have counted by chance, where any content is wanted so many times meanwhile.
fn by_chance(half: u8, times: f32) -> i16 {
    // At most a few dozen: chances have a limit.
    (f32::from(TOGETHER[half as usize]) * times).round() as i16
}

const fn near(address: u64) -> usize {
    (address >> NEAR_SHIFT) as usize % NEIGHBOURHOODS
}

#[cfg(test)]
mod tests;
