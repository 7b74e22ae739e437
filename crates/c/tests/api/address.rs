//! Reads, writes and locks by global address, through `hinterland_pool::Pool`.

use crate::racks::Racks;
use hinterland_pool::{Pool, PoolError, PutOptions};
use hinterland_proto::control::{AllocationKind, LockMode};
use hinterland_types::{GlobalAddress, ObjectName, RackName};
use std::time::{Duration, Instant};

const PAGE: u64 = 2 << 20;
/// For what must become true in a second or two, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(30);

fn name(text: &str) -> ObjectName {
    ObjectName::parse(text).unwrap()
}

fn region(pool: &Pool, text: &str, bytes: u64, rack: &str) -> GlobalAddress {
    let rack = Some(RackName::parse(rack).unwrap());
    pool.create_region(&name(text), bytes, rack).unwrap().address.unwrap()
}

fn code(result: Result<(), PoolError>) -> i32 {
    match result {
        Err(PoolError::Refused { code, text }) => {
            assert!(text.contains("hint:") || code == 2, "{text}");
            code
        }
        other => panic!("not refused: {other:?}"),
    }
}

/// Numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[test]
fn reads_and_writes_across_objects_and_racks_agree_with_a_plain_array() {
    let racks = Racks::start();
    let (near, far) = (racks.pool("a"), racks.pool("b"));
    let first = region(&near, "r0", 2 * PAGE, "a");
    let parts = [region(&near, "r1", PAGE, "b"), region(&far, "r2", PAGE, "a")];
    assert_eq!(parts.map(|part| part.raw() - first.raw()), [2 * PAGE, 3 * PAGE], "they are neighbours");
    let total = 4 * PAGE;
    let mut model = vec![0u8; total as usize];
    let mut numbers = Numbers(7);
    for step in 0..1500u32 {
        let pool = if numbers.below(3) == 0 { &far } else { &near };
        // Around the edges, or anywhere.
        let around = [2 * PAGE, 3 * PAGE, 0, total][numbers.below(4) as usize];
        let offset = match numbers.below(2) {
            0 => numbers.below(total),
            _ => (around + numbers.below(300)).saturating_sub(150).min(total - 1),
        };
        let most = if numbers.below(20) == 0 { 1 << 20 } else { 300 };
        let bytes = numbers.below(most.min(total - offset) + 1);
        let (from, to) = (offset as usize, (offset + bytes) as usize);
        let address = first.checked_add(offset).unwrap();
        if numbers.below(2) == 0 {
            model[from..to].fill_with(|| numbers.below(256) as u8);
            pool.write(address, &model[from..to]).unwrap();
        } else {
            let mut found = vec![0; bytes as usize];
            pool.read(address, &mut found).unwrap();
            assert!(found == model[from..to], "step {step}: {bytes} bytes at {offset}");
        }
    }
}

#[test]
fn a_range_that_leaves_the_last_object_moves_no_byte() {
    let racks = Racks::start();
    let pool = racks.pool("a");
    let address = region(&pool, "r", PAGE, "a");
    let end = address.checked_add(PAGE).unwrap();
    let near_end = address.checked_add(PAGE - 8).unwrap();
    assert_eq!(code(pool.read(end, &mut [0; 1])), 2, "ENOENT");
    assert_eq!(code(pool.write(near_end, &[1; 16])), 2, "ENOENT");
    let mut found = [9; 8];
    pool.read(near_end, &mut found).unwrap();
    assert_eq!(found, [0; 8], "nothing was written");
    pool.read(end, &mut []).unwrap();
    let last = GlobalAddress::new((1 << 46) - 1).unwrap();
    assert_eq!(code(pool.read(last, &mut [0; 8])), 2);
}

#[test]
fn a_sealed_object_is_read_up_to_its_end_and_never_written() {
    let racks = Racks::start();
    let pool = racks.pool("a");
    for (text, rack) in [("near", "a"), ("far", "b")] {
        let placement = hinterland_proto::control::Placement::Rack(RackName::parse(rack).unwrap());
        let options = PutOptions { placement, ..PutOptions::default() };
        let bytes: Vec<u8> = (0..1000u32).map(|number| number as u8).collect();
        let info = pool.put(&mut &bytes[..], &name(text), &options, &mut |_| {}).unwrap();
        let address = info.address.unwrap().checked_add(990).unwrap();
        for _ in 0..2 {
            let mut found = [0; 10];
            pool.read(address, &mut found).unwrap();
            assert_eq!(found, bytes[990..]);
            assert_eq!(code(pool.read(address, &mut [0; 11])), 22, "EINVAL behind the end");
            assert_eq!(code(pool.write(address, &[1])), 13, "EACCES");
        }
    }
}

#[test]
fn addresses_of_a_removed_region_lead_to_the_next_owner() {
    let racks = Racks::start();
    for rack in ["a", "b"] {
        let (one, other) = (racks.pool("a"), racks.pool("a"));
        let address = region(&one, "old", PAGE, rack);
        one.write(address, b"old bytes").unwrap();
        other.remove(&name("old")).unwrap();
        let deadline = Instant::now() + PATIENCE;
        while region(&other, "new", PAGE, rack) != address {
            // The pages are given away again when every home has let go.
            other.remove(&name("new")).unwrap();
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(10));
        }
        other.write(address, b"new bytes").unwrap();
        let mut found = [0; 9];
        while found != *b"new bytes" {
            // For a while it is one or the other, never a mixture.
            one.read(address, &mut found).unwrap();
            assert!([b"old bytes", b"new bytes"].contains(&&found));
            assert!(Instant::now() < deadline, "what was known is believed for ever");
            std::thread::sleep(Duration::from_millis(10));
        }
        one.write(address, b"mine").unwrap();
        other.read(address, &mut found).unwrap();
        assert_eq!(&found, b"minebytes");
        one.remove(&name("new")).unwrap();
        assert_eq!(code(one.read(address, &mut found)), 2, "what this pool removes it forgets at once");
    }
}

#[test]
fn a_node_that_ended_takes_no_more_writes() {
    let mut racks = Racks::start();
    let pool = racks.pool("a");
    let address = region(&pool, "r", PAGE, "a");
    pool.write(address, &[1; 64]).unwrap();
    racks.stop_a();
    let deadline = Instant::now() + PATIENCE;
    while pool.write(address, &[2; 64]).is_ok() {
        assert!(Instant::now() < deadline, "writes go nowhere and nobody says so");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_pool_that_is_dropped_ends_its_session_whatever_it_has_read() {
    let racks = Racks::start();
    let watcher = racks.pool("a");
    let before = watcher.status().unwrap().sessions;
    let pool = racks.pool("a");
    let address = region(&pool, "r", PAGE, "a");
    pool.write(address, &[1; 64]).unwrap();
    let (allocated, _) = pool.allocate(64, AllocationKind::Session).unwrap();
    pool.write(allocated, &[1; 64]).unwrap();
    drop(pool);
    let deadline = Instant::now() + PATIENCE;
    while watcher.status().unwrap().sessions != before {
        assert!(Instant::now() < deadline, "the session outlives its pool");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_thread_that_waits_for_a_lock_holds_up_no_other() {
    let racks = Racks::start();
    let (holder, pool) = (racks.pool("a"), racks.pool("a"));
    let address = region(&holder, "r", PAGE, "a");
    holder.lock(address, LockMode::Write, 0).unwrap();
    let waiting = {
        let pool = pool.clone();
        std::thread::spawn(move || pool.lock_within(address, LockMode::Write, Duration::from_secs(20)))
    };
    for _ in 0..20 {
        pool.stat(&name("r")).unwrap();
        pool.write(address, &[1; 8]).unwrap();
    }
    assert!(!waiting.is_finished());
    holder.unlock(address).unwrap();
    waiting.join().unwrap().unwrap();
    let refused = holder.lock_within(address, LockMode::Read, Duration::from_millis(50));
    assert_eq!(code(refused), 110, "ETIMEDOUT");
}

#[test]
fn threads_that_add_under_a_lock_lose_nothing() {
    let racks = Racks::start();
    let address = region(&racks.pool("a"), "r", PAGE, "a");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let pool = racks.pool("a");
            scope.spawn(move || {
                for _ in 0..25 {
                    pool.lock_within(address, LockMode::Write, Duration::from_secs(20)).unwrap();
                    let mut word = [0; 8];
                    pool.read(address, &mut word).unwrap();
                    let next = u64::from_le_bytes(word) + 1;
                    pool.write(address, &next.to_le_bytes()).unwrap();
                    pool.unlock(address).unwrap();
                }
            });
        }
    });
    let mut word = [0; 8];
    racks.pool("b").read(address, &mut word).unwrap();
    assert_eq!(u64::from_le_bytes(word), 100);
}
