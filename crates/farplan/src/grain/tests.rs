//! Grains of programs that use one page of each block, two, or all, and how units are divided.

use super::*;
use std::rc::Rc;

const ROOM: u64 = 1 << 20;
const NEAR: u64 = 1 << NEAR_SHIFT;

/// A program that goes through a neighbourhood whose content has left, in the order of addresses, and touches the pages of each block that
/// `uses` has; what is touched comes back whole. Gives the bytes that came.
fn pass(grains: &mut Grains, now: &mut Clock, uses: &[u64]) -> u64 {
    let mut came = 0;
    for block in (0..NEAR).step_by(BLOCK_BYTES as usize) {
        let part = grains.part_bytes(block);
        let mut back = Vec::new();
        for page in uses {
            let start = (block + page * PAGE) & !(part - 1);
            if back.contains(&start) {
                continue;
            }
            let other = Grains::other_half(start, part);
            let is_other_far = other.is_some_and(|other| !back.contains(&other));
            let away = Some(ROOM);
            grains.came(Return { start, bytes: part, is_wanted: true, is_other_far, away }, *now, ROOM);
            back.push(start);
            came += part;
            *now += part;
        }
    }
    came
}

fn settled(grains: &mut Grains, now: &mut Clock, uses: &[u64]) -> u64 {
    (0..8).map(|_| pass(grains, now, uses)).last().unwrap() * 100 / NEAR
}

#[test]
fn what_comes_back_is_what_is_used_and_what_is_used_together_comes_at_once() {
    let (mut grains, mut now) = (Grains::default(), 0);
    // Hundredths of the neighbourhood.
    assert_eq!(settled(&mut grains, &mut now, &[2]), 25);
    assert_eq!(grains.part_bytes(0), PAGE);
    let pairs = settled(&mut grains, &mut now, &[2, 3]);
    assert_eq!(pairs, 50);
    assert!((0..100).filter(|_| grains.part_bytes(0) == 2 * PAGE).count() > 80);
    assert_eq!(settled(&mut grains, &mut now, &[0, 1, 2, 3]), 100);
    assert!((0..100).filter(|_| grains.part_bytes(0) == BLOCK_BYTES).count() > 90);
    assert!((0..100).all(|_| grains.part_bytes(NEAR) >= 2 * PAGE), "elsewhere nothing is known");
    // Back again, soon.
    assert_eq!(settled(&mut grains, &mut now, &[1]), 25);
}

/// A program that touches so many bytes at random, runs of `run` pages that begin at multiples of as many, with room for `room` bytes of which any may leave.
/// Gives the bytes that come for each touch of what is not here, of the last of its touches.
fn at_random(bytes: u64, room: u64, run: u64) -> u64 {
    let (mut grains, mut now, mut state) = (Grains::default(), 0, 1u64);
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    // By page: where the content begins that it is a part of, if it is far, and how long that is.
    let mut far: Vec<Option<(u64, u64)>> = (0..bytes / PAGE).map(|_| None).collect();
    let mut left = vec![0; far.len()];
    let (mut here, mut faults, mut came) = (bytes, 0, 0);
    const TOUCHES: u64 = 400_000;
    for touch in 0..TOUCHES {
        let first = random(bytes / PAGE / run) * run;
        for page in first..first + run {
            let Some((start, part)) = far[page as usize] else { continue };
            let other = Grains::other_half(start, part).and_then(|other| far[(other / PAGE) as usize]);
            let is_other_far = other.is_some_and(|(_, bytes)| bytes == part);
            let away = Some(now - left[page as usize]);
            let back = Return { start, bytes: part, is_wanted: true, is_other_far, away };
            grains.came(back, now, room);
            far[(start / PAGE) as usize..((start + part) / PAGE) as usize].fill(None);
            (here, now) = (here + part, now + part);
            if touch > TOUCHES / 2 {
                (faults, came) = (faults + 1, came + part);
            }
        }
        while here > room {
            let block = random(bytes / BLOCK_BYTES) * BLOCK_BYTES;
            let part = grains.part_bytes(block);
            for start in (block..block + BLOCK_BYTES).step_by(part as usize) {
                let pages = (start / PAGE) as usize..((start + part) / PAGE) as usize;
                if far[pages.clone()].iter().all(Option::is_none) {
                    far[pages.clone()].fill(Some((start, part)));
                    left[pages].fill(now);
                    here -= part;
                }
            }
        }
    }
    came / faults
}

#[test]
fn what_comes_back_together_by_chance_alone_comes_page_by_page() {
    const MIB: u64 = 1 << 20;
    for (bytes, room) in [(24, 16), (32, 16), (48, 16), (64, 16)] {
        let came = at_random(bytes * MIB, room * MIB, 1);
        assert!(came < 9000, "{bytes}: {came} bytes a fault");
        let came = at_random(bytes * MIB, room * MIB, 4);
        assert!(came > 15_000, "{bytes}: {came} bytes a fault of blocks that are used whole");
    }
}

#[test]
fn what_is_filled_ahead_and_what_lies_beside_memory_that_is_here_says_nothing() {
    let mut grains = Grains::default();
    for number in 0..1000 {
        let start = number * BLOCK_BYTES % NEAR;
        let half = Return { start, bytes: 2 * PAGE, is_wanted: false, is_other_far: true, away: None };
        grains.came(half, number * ROOM * 2, ROOM);
        grains.came(Return { is_wanted: true, is_other_far: false, ..half }, number * ROOM * 2, ROOM);
        // One was wanted, and then the other was filled before anybody could want it.
        let at = number * ROOM * 2 + 1;
        grains.came(Return { is_wanted: true, ..half }, at, ROOM);
        grains.came(Return { start: start + 2 * PAGE, ..half }, at, ROOM);
    }
    assert_eq!((grains.near[0].level, grains.near[0].scores), (2, [0, 0]));
    for (start, bytes) in [(PAGE, 2 * PAGE), (0, BLOCK_BYTES), (0, 3 * PAGE), (0, 1)] {
        assert_eq!(Grains::other_half(start, bytes), None);
    }
}

#[test]
fn pairs_that_are_awaited_are_no_more_than_a_limit() {
    let mut grains = Grains::default();
    for number in 0..100_000 {
        let start = number * BLOCK_BYTES;
        let half = Return { start, bytes: PAGE, is_wanted: true, is_other_far: true, away: None };
        grains.came(half, number, ROOM);
    }
    assert!(grains.pairs.len() == PAIRS_MAX && grains.queue.len() == PAIRS_MAX);
    let last = Return { start: 0, bytes: 1, is_wanted: true, is_other_far: false, away: None };
    grains.came(last, Clock::MAX, ROOM);
    assert!(grains.pairs.is_empty() && grains.queue.is_empty());
}

/// Pages from 8 on: `.` is written, a letter is a clean part of a copy that begins with the first of these letters, `-` is not here.
fn table(pages: &str) -> (Table<Rc<u64>>, Vec<(u64, u64)>) {
    let mut table = Table::new(PAGE);
    table.add(0, 100 * PAGE);
    let mut copies: HashMap<char, Piece<Rc<u64>>> = HashMap::new();
    let mut units = Vec::new();
    for (number, page) in pages.chars().enumerate().filter(|(_, page)| *page != '-') {
        let start = (8 + number as u64) * PAGE;
        let bytes = pages.matches(page).count() as u64 * PAGE;
        let clean = page.is_ascii_alphabetic().then(|| {
            let new = || Piece { copy: Rc::new(bytes), base: start as i64 };
            copies.entry(page).or_insert_with(new).clone()
        });
        table.set(start, State::Resident { clean, stamp: 1 });
        units.push((start, start + PAGE));
    }
    (table, units)
}

/// How pages leave: those of a part have the same number, and are in brackets where the part is clean.
fn divided(grains: &mut Grains, pages: &str, fits: bool) -> String {
    let (table, units) = table(pages);
    let parts = grains.divide(&table, &units, fits, |copy| **copy);
    let told = parts.iter().map(|part| {
        let count = (part.end - part.start) / PAGE;
        if part.clean.is_some() { format!("[{count}]") } else { format!("{count}") }
    });
    told.collect::<Vec<_>>().join(" ")
}

#[test]
fn units_leave_as_their_place_wants_it_and_clean_where_a_copy_is_of_use() {
    let whole = |pages: &str| divided(&mut Grains::default(), pages, true);
    assert_eq!(whole("........"), "4 4");
    assert_eq!(whole("aaaabbbb"), "[4] [4]");
    assert_eq!(whole("aabb"), "4", "two copies become one");
    assert_eq!(whole("aa.."), "4");
    assert_eq!(whole(".aa."), "4");
    assert_eq!(whole("aa--"), "[2]", "the copy is as good as it was");
    assert_eq!(whole("a-a-bbbb"), "[1] [1] [4]");
    assert_eq!(whole("--aaaa--"), "[2] [2]", "content that lies across blocks");
    let mut small = Grains::default();
    small.near[0].level = 0;
    assert_eq!(divided(&mut small, "........", true), "1 1 1 1 1 1 1 1");
    assert_eq!(
        divided(&mut small, "aaaabcde", true),
        "1 1 1 1 [1] [1] [1] [1]",
        "a copy of four pages is too long"
    );
    assert_eq!(divided(&mut small, "aaaab...", false), "[4] 4", "where all contents take one place");
}
