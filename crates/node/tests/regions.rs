//! Regions over several racks, between real nodes: pages have homes, and move to others while programs use them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[allow(dead_code, reason = "other tests use the rest")]
mod nodes;

use hinterland_pool::{Pool, PoolError};
use hinterland_proto::control::HotPage;
use hinterland_types::{GlobalAddress, Rights};
use nodes::{Nodes, PAGE, name, pattern};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn at(first: GlobalAddress, offset: u64) -> GlobalAddress {
    first.checked_add(offset).unwrap()
}

/// Pages on each of the nodes, in their order.
fn pages_on(pool: &Pool, nodes: &Nodes, region: &str) -> Vec<u64> {
    let told = pool.pages_at(&name(region)).unwrap();
    let on = |address: String| {
        let of = told.iter().filter(|on| on.home.as_ref().is_some_and(|home| home.address == address));
        of.map(|on| on.pages).sum()
    };
    nodes.all.iter().map(|member| on(member.address())).collect()
}

#[test]
fn a_spread_region_is_read_and_written_whole_from_everywhere() {
    let nodes = Nodes::new("spread", 3, 32);
    let pools = nodes.pools();
    let bytes = 12 * PAGE - 5000;
    let first = pools[0].create_spread(&name("r"), bytes).unwrap().address.unwrap();
    let on = pages_on(&pools[1], &nodes, "r");
    assert!(on.iter().sum::<u64>() == 12 && on.iter().all(|pages| *pages > 0), "{on:?}");
    for (member, pages) in nodes.all.iter().zip(&on) {
        assert_eq!(member.pool().status().unwrap().used_bytes, pages * PAGE);
    }
    let all = pattern(0, bytes as usize);
    pools[1].write(first, &all).unwrap();
    for pool in &pools {
        let mut found = vec![0; bytes as usize];
        pool.read(first, &mut found).unwrap();
        assert!(found == all);
        let object = pool.open(&name("r"), Rights::READ | Rights::WRITE).unwrap();
        let mut few = vec![0; 3 * PAGE as usize];
        object.read_at(PAGE - 77, &mut few).unwrap();
        assert!(few == all[PAGE as usize - 77..][..few.len()]);
        assert!(object.memory().is_err(), "not all of it is here");
    }
    // What one writes the others read at once, at any place.
    for (number, pool) in pools.iter().enumerate() {
        for page in 0..12 {
            let place = at(first, page * PAGE + number as u64 * 64);
            pool.write(place, &[number as u8 + 7; 64]).unwrap();
            for other in &pools {
                let mut found = [0; 64];
                other.read(place, &mut found).unwrap();
                assert_eq!(found, [number as u8 + 7; 64]);
            }
        }
    }
    assert!(pools[0].read(at(first, bytes - 3), &mut [0; 4]).is_err(), "behind the end");
    pools[2].remove(&name("r")).unwrap();
    for member in &nodes.all {
        assert_eq!(member.pool().status().unwrap().used_bytes, 0);
    }
    assert!(matches!(pools[0].read(first, &mut [0; 4]), Err(PoolError::Refused { code: 2, .. })));
    assert!(matches!(pools[1].write(first, &[0; 4]), Err(PoolError::Refused { code: 2, .. })));
}

#[test]
fn a_region_without_room_near_is_spread_over_those_who_have() {
    let nodes = Nodes::new("near", 3, 8);
    let pools = nodes.pools();
    pools[0].create_region(&name("small"), 4 * PAGE, None).unwrap();
    assert_eq!(pages_on(&pools[0], &nodes, "small"), [4, 0, 0]);
    pools[0].create_region(&name("large"), 10 * PAGE, None).unwrap();
    assert_eq!(pages_on(&pools[0], &nodes, "large").iter().sum::<u64>(), 10);
    let rack = Some(hinterland_types::RackName::parse("r1").unwrap());
    let refused = pools[0].create_region(&name("there"), 10 * PAGE, rack).unwrap_err();
    assert!(refused.to_string().contains("hint:"), "{refused}");
}

#[test]
fn all_nodes_start_again_and_every_page_is_where_it_was() {
    let mut nodes = Nodes::new("restart", 3, 32);
    let bytes = 9 * PAGE;
    let all = pattern(3, bytes as usize);
    let (first, before) = {
        let pools = nodes.pools();
        let first = pools[0].create_spread(&name("r"), bytes).unwrap().address.unwrap();
        pools[0].write(first, &all).unwrap();
        (0..4).for_each(|page| pools[2].pull_page(at(first, page * PAGE)).unwrap());
        (first, pages_on(&pools[0], &nodes, "r"))
    };
    for number in [2, 1, 0, 0, 1, 2] {
        nodes.all[number].stop();
        nodes.all[number].start();
    }
    let pools = nodes.pools();
    assert_eq!(pages_on(&pools[1], &nodes, "r"), before);
    for (pool, pages) in pools.iter().zip(&before) {
        let mut found = vec![0; bytes as usize];
        pool.read(first, &mut found).unwrap();
        assert!(found == all);
        assert_eq!(pool.status().unwrap().used_bytes, pages * PAGE);
    }
}

#[test]
fn a_page_moves_with_its_bytes_and_its_room() {
    let nodes = Nodes::new("move", 3, 16);
    let pools = nodes.pools();
    let first = pools[0].create_region(&name("r"), 4 * PAGE, None).unwrap().address.unwrap();
    let all = pattern(9, 4 * PAGE as usize);
    pools[0].write(first, &all).unwrap();
    for (number, target) in [(1, 1), (2, 2), (3, 1), (4, 0), (5, 2), (6, 1)] {
        let page = number % 3;
        pools[target].pull_page(at(first, page * PAGE)).unwrap();
        for pool in &pools {
            let mut found = vec![0; 4 * PAGE as usize];
            pool.read(first, &mut found).unwrap();
            assert!(found == all, "after move {number}");
        }
    }
    let on = pages_on(&pools[0], &nodes, "r");
    assert_eq!(on.iter().sum::<u64>(), 4);
    for (pool, pages) in pools.iter().zip(&on) {
        assert_eq!(pool.status().unwrap().used_bytes, pages * PAGE);
    }
    pools[1].remove(&name("r")).unwrap();
    for pool in &pools {
        assert_eq!(pool.status().unwrap().used_bytes, 0);
    }
}

#[test]
fn pages_that_have_moved_from_two_homes_to_a_third_are_read_and_written_in_one() {
    let nodes = Nodes::new("two-homes", 4, 16);
    let pools = nodes.pools();
    let first = nodes.region(1, 2);
    let bytes = pattern(0, 2 * PAGE as usize);
    pools[1].write(first, &bytes).unwrap();
    pools[2].pull_page(first).unwrap();
    let mut found = vec![0; bytes.len()];
    pools[0].read(first, &mut found).unwrap();
    // The words of the first node say what was so, and its homes refuse both pages: that of the second one is asked first.
    (0..2).for_each(|page| pools[3].pull_page(at(first, page * PAGE)).unwrap());
    found.fill(0);
    pools[0].read(first, &mut found).unwrap();
    assert!(found == bytes, "read");
    pools[2].pull_page(first).unwrap();
    pools[1].pull_page(at(first, PAGE)).unwrap();
    let other = pattern(7, bytes.len());
    pools[0].write(first, &other).unwrap();
    pools[3].read(first, &mut found).unwrap();
    assert!(found == other, "written");
}

#[test]
fn pages_that_come_at_once_to_a_node_that_had_none_are_there_after_its_next_start() {
    let mut nodes = Nodes::new("at-once", 2, 64);
    let bytes = 4 * PAGE;
    let regions: Vec<_> = (0..12)
        .map(|number| {
            let pool = nodes.pool(0);
            let region = pool.create_region(&name(&format!("r{number}")), bytes, None).unwrap();
            let (first, all) = (region.address.unwrap(), pattern(number * 77, bytes as usize));
            pool.write(first, &all).unwrap();
            (first, all)
        })
        .collect();
    let pools: Vec<_> = (0..4).map(|_| nodes.pool(1)).collect();
    for (first, _) in &regions {
        let together = std::sync::Barrier::new(pools.len());
        std::thread::scope(|scope| {
            for (page, pool) in (0..).zip(&pools) {
                let together = &together;
                scope.spawn(move || {
                    together.wait();
                    pool.pull_page(at(*first, page * PAGE)).unwrap();
                });
            }
        });
    }
    drop(pools);
    for _ in 0..2 {
        let pool = nodes.pool(0);
        for (first, all) in &regions {
            let mut found = vec![0; bytes as usize];
            pool.read(*first, &mut found).unwrap();
            assert!(found == *all);
        }
        nodes.all[1].stop();
        nodes.all[1].start();
    }
}

#[test]
fn a_mapped_region_does_not_move_until_nobody_has_it_mapped() {
    let nodes = Nodes::new("pinned", 2, 16);
    let pools = nodes.pools();
    let first = pools[0].create_region(&name("r"), 2 * PAGE, None).unwrap().address.unwrap();
    let object = pools[0].open(&name("r"), Rights::READ | Rights::WRITE).unwrap();
    let memory = object.memory().unwrap().clone();
    drop(object);
    let refused = pools[1].pull_page(first).unwrap_err();
    assert!(refused.to_string().contains("mapped"), "{refused}");
    memory.write_at(0, &[5; 8]).unwrap();
    let mut found = [0; 8];
    pools[1].read(first, &mut found).unwrap();
    assert_eq!(found, [5; 8]);
    drop(memory);
    pools[1].pull_page(first).unwrap();
    pools[0].read(first, &mut found).unwrap();
    assert_eq!(found, [5; 8]);
    let object = pools[0].open(&name("r"), Rights::READ).unwrap();
    assert!(object.memory().is_err(), "a page of it lies elsewhere");
}

#[test]
fn no_increment_is_lost_or_doubled_while_the_page_moves() {
    let nodes = Nodes::new("add", 3, 16);
    let first = nodes.all[0].pool().create_region(&name("r"), PAGE, None).unwrap().address.unwrap();
    let stop = AtomicBool::new(false);
    let added = [const { AtomicU64::new(0) }; 6];
    let moves = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for (thread, added) in added.iter().enumerate() {
            let (nodes, stop) = (&nodes, &stop);
            scope.spawn(move || {
                let pool = nodes.all[thread % 3].pool();
                let own = at(first, 4096 + thread as u64 * 8);
                let mut count = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    pool.fetch_and_add(first, 1).unwrap();
                    count += 1;
                    // A word of its own, of which both halves are equal: it is never torn, and it is what was written.
                    pool.write(own, &(count << 32 | count).to_le_bytes()).unwrap();
                    let mut found = [0; 8];
                    pool.read(own, &mut found).unwrap();
                    assert_eq!(u64::from_le_bytes(found), count << 32 | count);
                    let other = at(first, 4096 + (thread as u64 + 1) % 6 * 8);
                    pool.read(other, &mut found).unwrap();
                    let word = u64::from_le_bytes(found);
                    assert_eq!(word >> 32, word & 0xffff_ffff, "a torn word");
                }
                added.store(count, Ordering::Relaxed);
            });
        }
        let pools = nodes.pools();
        let until = Instant::now() + Duration::from_secs(4);
        while Instant::now() < until {
            for pool in &pools {
                if pool.pull_page(first).is_ok() {
                    moves.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let mut found = [0; 8];
    nodes.all[1].pool().read(first, &mut found).unwrap();
    let sum: u64 = added.iter().map(|added| added.load(Ordering::Relaxed)).sum();
    println!("{} moves, {sum} increments", moves.load(Ordering::Relaxed));
    assert!(moves.load(Ordering::Relaxed) > 10);
    assert_eq!(u64::from_le_bytes(found), sum);
}

#[test]
fn reads_never_go_back_while_the_page_moves() {
    let nodes = Nodes::new("back", 3, 16);
    let first = nodes.all[0].pool().create_region(&name("r"), 2 * PAGE, None).unwrap().address.unwrap();
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let line = at(first, PAGE + 4096);
    let (mut moves, mut reads) = (0, [0u64; 3]);
    std::thread::scope(|scope| {
        let (nodes, stop, written) = (&nodes, &stop, &written);
        scope.spawn(move || {
            let pool = nodes.all[1].pool();
            let mut count = 0u64;
            while !stop.load(Ordering::Relaxed) {
                count += 1;
                pool.write(line, &count.to_le_bytes().repeat(8)).unwrap();
                written.store(count, Ordering::SeqCst);
            }
        });
        for (reader, reads) in reads.iter_mut().enumerate() {
            scope.spawn(move || {
                let pool = nodes.all[reader].pool();
                let mut found = [0; 64];
                while !stop.load(Ordering::Relaxed) {
                    let before = written.load(Ordering::SeqCst);
                    pool.read(line, &mut found).unwrap();
                    let words = found.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
                    for word in words {
                        assert!(word >= before, "{word} was read after {before} was written");
                    }
                    *reads += 1;
                }
            });
        }
        let pools = nodes.pools();
        let until = Instant::now() + Duration::from_secs(90);
        // Pauses as long as a device that was refused is left alone, so that devices read again before the next move.
        for target in 1.. {
            if moves == 4 || Instant::now() > until {
                break;
            }
            moves += u64::from(pools[target % 3].pull_page(line).is_ok());
            std::thread::sleep(Duration::from_millis(if target % 2 == 0 { 1100 } else { 20 }));
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("{moves} moves, {reads:?} reads, {} writes", written.load(Ordering::SeqCst));
    assert!(moves == 4 && reads.iter().all(|reads| *reads > 0));
}

#[test]
fn words_are_swapped_wherever_their_page_lies() {
    let nodes = Nodes::new("swap", 2, 16);
    let pools = nodes.pools();
    let first = pools[0].create_region(&name("r"), PAGE, None).unwrap().address.unwrap();
    for (number, pool) in [&pools[1], &pools[0], &pools[1]].into_iter().enumerate() {
        let before = number as u64;
        assert_eq!(pool.compare_and_swap(at(first, 8), before, before + 1).unwrap(), before);
        assert_eq!(pool.compare_and_swap(at(first, 8), before, 77).unwrap(), before + 1);
        pools[number % 2].pull_page(first).unwrap();
    }
    assert!(pools[0].fetch_and_add(at(first, 4), 1).unwrap_err().to_string().contains("multiple of 8"));
    assert!(pools[0].fetch_and_add(at(first, PAGE - 4), 1).is_err());
}

#[test]
fn a_program_of_a_life_before_keeps_pages_where_they_are_and_finds_out() {
    let mut nodes = Nodes::new("lives", 2, 16);
    let old = nodes.all[0].pool();
    let first = old.create_region(&name("r"), PAGE, None).unwrap().address.unwrap();
    old.write(first, &[1; 8]).unwrap();
    old.read(first, &mut [0; 8]).unwrap();
    nodes.all[0].stop();
    nodes.all[0].start();
    let other = nodes.all[1].pool();
    let refused = other.pull_page(first).unwrap_err();
    assert!(refused.to_string().contains("mapped"), "{refused}");
    // Its session is gone, and it does not go on with words that nobody keeps.
    assert!(old.write(first, &[2; 8]).is_err());
    assert!(old.read(first, &mut [0; 8]).is_err());
    drop(old);
    let fresh = nodes.all[0].pool();
    let mut found = [0; 8];
    fresh.read(first, &mut found).unwrap();
    assert_eq!(found, [1; 8]);
    other.pull_page(first).unwrap();
    fresh.read(first, &mut found).unwrap();
    assert_eq!(found, [1; 8]);
}

/// Short times and few accesses, so that a test sees what takes a minute otherwise.
fn quick_heat(options: &mut hinterland_node::NodeOptions) {
    options.heat = Some(hinterland_node::HeatSettings {
        threshold: 1.0,
        rest: Duration::from_millis(200),
        ..hinterland_node::HeatSettings::default()
    });
}

#[test]
fn a_page_moves_to_the_rack_that_uses_it_and_what_is_not_used_stays() {
    let nodes = Nodes::with("hot", 2, 16, quick_heat);
    let (home, user) = (nodes.all[0].pool(), nodes.all[1].pool());
    let first = home.create_region(&name("r"), 4 * PAGE, None).unwrap().address.unwrap();
    let deadline = Instant::now() + Duration::from_secs(90);
    while pages_on(&home, &nodes, "r") != [3, 1] {
        assert!(Instant::now() < deadline, "{:?}", user.status().unwrap().counters);
        for number in 0..100u64 {
            user.write(at(first, PAGE + number * 8), &number.to_le_bytes()).unwrap();
        }
    }
    // Both count when they are through with the move, which is committed before that.
    let counted =
        || (user.status().unwrap().counters.pages_taken, home.status().unwrap().counters.pages_given);
    while counted() != (1, 1) {
        assert!(Instant::now() < deadline, "{:?}", counted());
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut found = [0; 8];
    home.read(at(first, PAGE + 99 * 8), &mut found).unwrap();
    assert_eq!(found, 99u64.to_le_bytes());
}

#[test]
fn two_racks_that_use_a_page_alike_do_not_send_it_back_and_forth() {
    let nodes = Nodes::with("pingpong", 2, 16, quick_heat);
    let first = nodes.all[0].pool().create_region(&name("r"), PAGE, None).unwrap().address.unwrap();
    let stop = AtomicBool::new(false);
    let turn = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for number in 0..2u64 {
            let (nodes, stop, turn) = (&nodes, &stop, &turn);
            scope.spawn(move || {
                let pool = nodes.all[number as usize].pool();
                // By turns, so that both make as many accesses.
                while !stop.load(Ordering::Relaxed) {
                    if turn.load(Ordering::Acquire) % 2 == number {
                        (0..64u64).for_each(|place| pool.write(at(first, place * 8), &[1; 8]).unwrap());
                        turn.fetch_add(1, Ordering::Release);
                    } else {
                        std::thread::yield_now();
                    }
                }
            });
        }
        // Time for many moves, and turns enough to have been worth them, however slow this machine is.
        let begun = Instant::now();
        let is_enough = || turn.load(Ordering::Relaxed) > 50 || begun.elapsed() > Duration::from_secs(120);
        while begun.elapsed() < Duration::from_secs(4) || !is_enough() {
            std::thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let taken: u64 = nodes.pools().iter().map(|pool| pool.status().unwrap().counters.pages_taken).sum();
    println!("{taken} moves, {} turns", turn.load(Ordering::Relaxed));
    assert!(turn.load(Ordering::Relaxed) > 50);
    assert!(taken <= 2, "{taken} moves");
}

#[test]
fn a_rack_without_room_sends_its_coldest_page_away_for_a_hot_one() {
    let nodes = Nodes::with("victim", 2, 4, quick_heat);
    let (home, user) = (nodes.all[0].pool(), nodes.all[1].pool());
    let first = home.create_region(&name("far"), 3 * PAGE, None).unwrap().address.unwrap();
    let own = user.create_region(&name("near"), 4 * PAGE, None).unwrap().address.unwrap();
    for page in 0..4 {
        user.write(at(own, page * PAGE), &[page as u8 + 1; 64]).unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(90);
    while pages_on(&home, &nodes, "far") != [2, 1] {
        assert!(Instant::now() < deadline, "{:?}", user.status().unwrap().counters);
        (0..100u64).for_each(|number| user.write(at(first, number * 8), &number.to_le_bytes()).unwrap());
    }
    assert_eq!(pages_on(&home, &nodes, "near"), [1, 3]);
    // Heat decays, so it is looked at while the page is used.
    let is_hot =
        |page: &HotPage| (page.name.as_str(), page.index, page.here, page.reads) == ("far", 0, true, 0);
    loop {
        (0..1000u64).for_each(|number| user.write(at(first, number * 8), &number.to_le_bytes()).unwrap());
        let hottest = user.hot_pages(1).unwrap();
        if hottest.first().is_some_and(|page| is_hot(page) && page.writes > 100) {
            break;
        }
        assert!(Instant::now() < deadline, "{hottest:?}");
    }
    for page in 0..4 {
        let mut found = [0; 64];
        user.read(at(own, page * PAGE), &mut found).unwrap();
        assert_eq!(found, [page as u8 + 1; 64]);
    }
}

#[test]
fn no_rack_ever_reads_half_of_a_word() {
    const BYTES: usize = 400_000;
    let nodes = Nodes::with("halves", 2, 8, |options| options.heat = None);
    let first = nodes.region(1, 2);
    let done = AtomicBool::new(false);
    let is_torn = |word: &[u8; 8]| word.iter().any(|byte| *byte != word[0]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (pool, mut words) = (nodes.pool(1), vec![0_u8; BYTES]);
            while !done.load(Ordering::SeqCst) {
                let byte = !words[0];
                words.fill(byte);
                pool.write(first, &words).unwrap();
            }
        });
        let mut torn = Vec::new();
        for (pool, round) in nodes.pools().iter().flat_map(|pool| (0..60).map(move |round| (pool, round))) {
            for bytes in [12, 100, 1024, 3001, 70_000, 300_001] {
                // Into a place of another phase than that of the words, and what an odd length leaves on the wire.
                let (place, mut into) = (round * 3, vec![0; bytes + 1]);
                pool.read(at(first, place), &mut into[1..]).unwrap();
                let whole = &into[1 + (place.next_multiple_of(8) - place) as usize..];
                torn.extend(whole.as_chunks().0.iter().position(is_torn).map(|word| (bytes, place, word)));
            }
        }
        done.store(true, Ordering::SeqCst);
        assert_eq!(torn, [], "bytes read, at, word in halves");
    });
}

#[test]
fn a_region_that_is_removed_while_its_pages_move_leaves_room_for_as_much_as_before() {
    let nodes = Nodes::new("removed-moving", 2, 16);
    let rack = nodes.all[0].options.rack.clone();
    let is_over = AtomicBool::new(false);
    for round in 0..12 {
        let region = name(&format!("r{round}"));
        let made = nodes.pool(0).create_region(&region, 6 * PAGE, Some(rack.clone())).unwrap();
        let first = made.address.unwrap();
        is_over.store(false, Ordering::SeqCst);
        std::thread::scope(|scope| {
            for index in 0..6 {
                let (pool, is_over) = (nodes.pool(1), &is_over);
                scope.spawn(move || {
                    let page = at(first, index * PAGE);
                    while !is_over.load(Ordering::SeqCst) && pool.pull_page(page).is_err() {}
                });
            }
            std::thread::sleep(Duration::from_millis(3 * round));
            nodes.pool(0).remove(&region).unwrap();
            is_over.store(true, Ordering::SeqCst);
        });
        for member in &nodes.all {
            let used = || member.pool().status().unwrap().used_bytes;
            let until = Instant::now() + Duration::from_secs(20);
            while used() != 0 {
                assert!(Instant::now() < until, "{} bytes are used by nothing, round {round}", used());
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}
