//! Reads of many addresses at once, between real nodes: they find what single reads find, wherever pages lie and while they move, and ask
//! each home once.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[allow(dead_code, reason = "other tests use the rest")]
mod nodes;

use hinterland_pool::{PartFailed, Pool, PoolError, PutOptions};
use hinterland_proto::HEADER_BYTES;
use hinterland_types::GlobalAddress;
use nodes::{Nodes, PAGE, name, pattern};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn at(first: GlobalAddress, offset: u64) -> GlobalAddress {
    first.checked_add(offset).unwrap()
}

/// Reads ranges together.
fn many(pool: &Pool, ranges: &[(GlobalAddress, usize)]) -> Result<Vec<Vec<u8>>, PartFailed> {
    let mut found: Vec<_> = ranges.iter().map(|(_, bytes)| vec![0xaa; *bytes]).collect();
    let mut parts: Vec<_> =
        ranges.iter().zip(&mut found).map(|((address, _), into)| (*address, &mut into[..])).collect();
    pool.read_many(&mut parts)?;
    Ok(found)
}

/// Listens in place of a node, and counts what it sends.
fn counted(node: SocketAddr, sent: Arc<AtomicU64>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.unwrap();
            let home = TcpStream::connect(node).unwrap();
            let (to_client, to_home) = (client.try_clone().unwrap(), home.try_clone().unwrap());
            let sent = Arc::clone(&sent);
            std::thread::spawn(move || pass(client, to_home, &AtomicU64::new(0)));
            std::thread::spawn(move || pass(home, to_client, &sent));
        }
    });
    address
}

fn pass(mut from: TcpStream, mut to: TcpStream, count: &AtomicU64) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        count.fetch_add(read as u64, Ordering::SeqCst);
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn parts_of_all_racks_are_what_single_reads_find() {
    let nodes = Nodes::new("many", 3, 32);
    let pools = nodes.pools();
    let bytes = 12 * PAGE - 5000;
    let first = pools[0].create_spread(&name("r"), bytes).unwrap().address.unwrap();
    let near = nodes.region(1, 2);
    let sealed = pattern(9, 3 << 16);
    pools[2].put(&mut &sealed[..], &name("sealed"), &PutOptions::default(), &mut |_| {}).unwrap();
    let sealed_at = pools[2].stat(&name("sealed")).unwrap().address.unwrap();
    let all = pattern(0, bytes as usize);
    pools[1].write(first, &all).unwrap();
    pools[2].write(near, &all[..2 * PAGE as usize]).unwrap();
    // In no order, with page ends inside, some twice, one that overlaps others, and one of no bytes.
    let mut ranges: Vec<(GlobalAddress, usize)> = (0..3000_u64)
        .map(|number| (at(first, number * 7_654_321 % (bytes - 300)), 1 + number as usize % 300))
        .collect();
    ranges.extend((1..12).map(|page| (at(first, page * PAGE - 100), 200)));
    ranges.extend_from_slice(&[ranges[5], ranges[5], (first, 0), (at(first, bytes - 1), 1)]);
    ranges.push((at(first, PAGE / 2), 5 * PAGE as usize));
    ranges.extend([(near, 64), (at(near, PAGE - 1), 2), (at(sealed_at, 70_000), 5000), (sealed_at, 1)]);
    for pool in &pools {
        // The second time what the first has learned is used.
        for _ in 0..2 {
            let found = many(pool, &ranges).unwrap();
            for ((address, bytes), found) in ranges.iter().zip(&found) {
                let mut single = vec![0; *bytes];
                pool.read(*address, &mut single).unwrap();
                assert!(*found == single, "{bytes} bytes at {address}");
            }
            let overlapping = found.iter().zip(&ranges).find(|(_, range)| range.1 == 5 * PAGE as usize);
            assert!(overlapping.unwrap().0[..] == all[PAGE as usize / 2..][..5 * PAGE as usize]);
        }
        assert!(many(pool, &[]).unwrap().is_empty());
        assert_eq!(many(pool, &[(at(first, 77), 0)]).unwrap(), [Vec::<u8>::new()]);
    }
}

#[test]
fn a_part_that_fails_is_named_and_says_what_a_single_read_says() {
    let nodes = Nodes::new("many-failed", 2, 16);
    let pools = nodes.pools();
    let first = pools[0].create_spread(&name("r"), 4 * PAGE).unwrap().address.unwrap();
    let gone = nodes.region(1, 1);
    // Behind the end of one there may be the other.
    let end = at(first, 4 * PAGE).max(at(gone, PAGE));
    let before_end = GlobalAddress::new(end.raw() - 3).unwrap();
    for pool in &pools {
        for (address, bytes) in [(before_end, 8), (at(end, 1 << 40), 8), (end, 1)] {
            let single = pool.read(address, &mut vec![0; bytes]).unwrap_err();
            let good = (first, 16);
            let failed = many(pool, &[good, (at(first, 3 * PAGE), 9), (address, bytes), good]).unwrap_err();
            assert_eq!((failed.part, failed.error.to_string()), (2, single.to_string()));
            assert_eq!(failed.error.code(), single.code());
            assert!(failed.to_string().starts_with("part 2: "), "{failed}");
        }
        // What was learned of an object that is removed then is not believed.
        assert_eq!(many(pool, &[(first, 8), (gone, 8)]).unwrap().len(), 2);
    }
    pools[0].remove(&name("region-1")).unwrap();
    for pool in &pools {
        let failed = many(pool, &[(first, 8), (gone, 8), (gone, 9)]).unwrap_err();
        assert_eq!(failed.part, 1, "{failed}");
        assert!(matches!(failed.error, PoolError::Refused { code: 2, .. }), "{failed}");
        assert_eq!(many(pool, &[(first, 8)]).unwrap(), [vec![0; 8]]);
    }
}

#[test]
fn parts_of_one_home_come_in_one_message() {
    const PARTS: usize = 800;
    const MANY: usize = 5000;
    let sent = Arc::new(AtomicU64::new(0));
    let nodes = Nodes::with("many-counted", 3, 16, |options| {
        // No page comes because it is read.
        options.heat = None;
        if options.join.is_none() {
            options.advertise = Some(counted(options.listen, Arc::clone(&sent)));
        }
    });
    let pools = nodes.pools();
    let first = nodes.region(0, 8);
    pools[0].write(first, &pattern(1, 8 * PAGE as usize)).unwrap();
    let ranges: Vec<_> =
        (0..MANY as u64).map(|number| (at(first, number * 19_997 % (8 * PAGE - 64)), 64)).collect();
    // The region is opened and its home attached.
    many(&pools[1], &ranges[..2]).unwrap();
    // Every frame has a header; the rest of what the home sends are the bytes, which are as many either way.
    let frames = |parts: usize, read: &dyn Fn()| {
        let before = sent.load(Ordering::SeqCst);
        read();
        (sent.load(Ordering::SeqCst) - before).saturating_sub(parts as u64 * 64) / HEADER_BYTES as u64
    };
    let single = frames(PARTS, &|| {
        for (address, bytes) in &ranges[..PARTS] {
            pools[1].read(*address, &mut vec![0; *bytes]).unwrap();
        }
    });
    let together = frames(PARTS, &|| drop(many(&pools[1], &ranges[..PARTS]).unwrap()));
    let more = frames(MANY, &|| drop(many(&pools[1], &ranges).unwrap()));
    println!("frames: {single} one by one, {together} together, {more} of {MANY} parts");
    // Nodes also talk of other things meanwhile. Where a device reads, there are no frames at all.
    assert!(single == 0 || single >= PARTS as u64, "{single} one by one");
    assert!(together <= 20 && more <= 30, "{together} of {PARTS} together, {more} of {MANY}");
    // A page that has moved costs a few refusals, and no message for each part of the others.
    pools[2].pull_page(at(first, 3 * PAGE)).unwrap();
    let page = |address: GlobalAddress| (address.raw() - first.raw()) / PAGE;
    let stay = ranges[..PARTS].iter().filter(|(address, _)| page(*address) != 3).count();
    let moved = frames(stay, &|| {
        let found = many(&pools[1], &ranges[..PARTS]).unwrap();
        let expected = pattern(1, 8 * PAGE as usize);
        for ((address, bytes), found) in ranges.iter().zip(&found) {
            assert!(found[..] == expected[(address.raw() - first.raw()) as usize..][..*bytes]);
        }
    });
    println!("frames: {moved} after a move of {} parts", PARTS - stay);
    // A refusal has words, which are as long as a few headers.
    assert!(moved <= 150, "{moved} after a move");
}

#[test]
fn a_home_that_is_gone_fails_its_parts_and_serves_them_when_it_is_back() {
    let mut nodes = Nodes::new("many-gone", 2, 16);
    let (here, there) = (nodes.region(0, 1), nodes.region(1, 2));
    let pool = nodes.pool(0);
    let all = pattern(4, 2 * PAGE as usize);
    pool.write(there, &all).unwrap();
    let ranges = [(here, 8), (at(there, 100), 50), (at(here, 9), 1), (at(there, PAGE - 20), 40)];
    let as_written =
        |found: &[Vec<u8>]| found[1] == all[100..150] && found[3] == all[PAGE as usize - 20..][..40];
    assert!(as_written(&many(&pool, &ranges).unwrap()));
    nodes.all[1].stop();
    let failed = many(&pool, &ranges).unwrap_err();
    let single = pool.read(ranges[1].0, &mut [0; 50]).unwrap_err();
    assert_eq!((failed.part, failed.error.code()), (1, single.code()), "{failed}");
    assert_eq!(many(&pool, &[ranges[0], ranges[2]]).unwrap().len(), 2);
    nodes.all[1].start();
    // By a connection and a handle of the life before at first.
    assert!(as_written(&many(&pool, &ranges).unwrap()));
}

#[test]
fn what_is_read_together_never_goes_back_while_pages_move() {
    const PAGES: u64 = 6;
    let nodes = Nodes::new("many-moves", 3, 16);
    let first = nodes.all[0].pool().create_spread(&name("r"), PAGES * PAGE).unwrap().address.unwrap();
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut moves, mut reads) = (0, [0u64; 3]);
    // On both sides of each page's end a word.
    let lines: Vec<_> = (1..PAGES).map(|page| (at(first, page * PAGE - 8), 16)).collect();
    std::thread::scope(|scope| {
        let (nodes, stop, written, lines) = (&nodes, &stop, &written, &lines);
        scope.spawn(move || {
            let pool = nodes.all[1].pool();
            let mut count = 0u64;
            while !stop.load(Ordering::Relaxed) {
                count += 1;
                lines.iter().for_each(|(line, _)| pool.write(*line, &count.to_le_bytes().repeat(2)).unwrap());
                written.store(count, Ordering::SeqCst);
            }
        });
        for (reader, reads) in reads.iter_mut().enumerate() {
            scope.spawn(move || {
                let pool = nodes.all[reader].pool();
                while !stop.load(Ordering::Relaxed) {
                    let before = written.load(Ordering::SeqCst);
                    let found = many(&pool, lines).unwrap();
                    let after = written.load(Ordering::SeqCst) + 1;
                    for word in found.iter().flat_map(|line| line.as_chunks::<8>().0) {
                        let word = u64::from_le_bytes(*word);
                        assert!((before..=after).contains(&word), "{word} is not in {before}..={after}");
                    }
                    *reads += 1;
                }
            });
        }
        let pools = nodes.pools();
        let until = Instant::now() + Duration::from_secs(90);
        for number in 0_u64.. {
            if moves >= 60 || Instant::now() > until {
                break;
            }
            let page = at(first, number * 5 % PAGES * PAGE);
            moves += u64::from(pools[number as usize % 3].pull_page(page).is_ok());
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("{moves} moves, {reads:?} reads, {} writes", written.load(Ordering::SeqCst));
    assert!(moves >= 60 && reads.iter().all(|reads| *reads > 0));
}
