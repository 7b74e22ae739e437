//! The unit of an object of another rack at its next mapping follows from how it was read at the last: two nodes and real mappings.

// A failure in a function that a test calls is a failed test.
#![allow(clippy::unwrap_used)]

#[path = "../../node/tests/kv_racks/pair.rs"]
#[allow(dead_code, reason = "tests of the node use the rest")]
mod pair;

use hinterland_proto::control::CacheStatus;
use hinterland_region::{MapOptions, Options, Region, Regions};
use hinterland_types::ObjectName;
use pair::{Pair, Random, put_object, until};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Four times what of it may be here.
const OBJECT_BYTES: u64 = 48 * MIB;
const BUDGET: u64 = 12 * MIB;

struct Setup {
    pair: Pair,
    huge: bool,
}

impl Setup {
    fn new(name: &str, huge: bool) -> Self {
        let pair = Pair::with(name, 8 << 20, |options| {
            options.capacity_bytes = 64 << 20;
            options.switches.huge = huge;
            // What is fetched ahead depends on how soon it comes, and with it how many touches wait.
            options.switches.prefetch.sequential = false;
            options.switches.prefetch.stride = false;
        });
        put_object(&pair.a.pool(), "data", OBJECT_BYTES as usize);
        Self { pair, huge }
    }

    /// Maps the object, reads it in a way, ends the mapping, and returns the unit that it had.
    fn read(&self, unit_bytes: Option<u64>, budget: u64, way: impl Fn(&Region)) -> u64 {
        let socket = self.pair.b.pool().session().socket().to_path_buf();
        let options =
            Options { socket: Some(socket), budget_bytes: Some(budget), unit_bytes, ..Options::default() };
        let regions = Regions::connect(&options).unwrap();
        let region = regions.map(ObjectName::parse("data").unwrap(), MapOptions::default()).unwrap();
        way(&region);
        let unit = OBJECT_BYTES / u64::from(self.cached().units);
        drop((region, regions));
        // The budget of a session goes with its last use of the file.
        until("nobody uses the file", || {
            let cached = self.cached();
            (cached.mappings, cached.budget_bytes) == (0, None)
        });
        unit
    }

    /// Bytes that came from the home.
    fn received(&self) -> u64 {
        self.pair.b.pool().status().unwrap().counters.network_received_bytes
    }

    fn cached(&self) -> CacheStatus {
        let caches = self.pair.b.pool().status().unwrap().caches;
        assert_eq!(caches.len(), 1, "{caches:?}");
        assert!(self.huge || caches[0].pages == "base", "{caches:?}");
        caches.into_iter().next().unwrap()
    }
}

fn check(region: &Region, at: u64) {
    // SAFETY: the tests ask only for bytes of the region.
    let byte = unsafe { region.pointer().as_ptr().add(at as usize).read_volatile() };
    assert_eq!(byte, (at * 31 % 251) as u8, "at {at}");
}

/// Reads bytes of pages without a pattern.
fn at_random(region: &Region) {
    let mut random = Random(7);
    (0..1500).for_each(|_| check(region, (random.next() >> 16) % OBJECT_BYTES));
}

/// Reads a byte of every page, from start to end, twice.
fn from_start_to_end(region: &Region) {
    (0..2).for_each(|_| (0..OBJECT_BYTES).step_by(4096).for_each(|at| check(region, at)));
}

#[test]
fn random_reads_under_a_budget_end_with_a_small_unit_and_it_stays() {
    for huge in [false, true] {
        let setup = Setup::new(if huge { "units-huge" } else { "units-base" }, huge);
        let (mut units, mut moved) = (Vec::new(), Vec::new());
        for _ in 0..7 {
            let before = setup.received();
            units.push(setup.read(None, BUDGET, at_random));
            moved.push(setup.received() - before);
        }
        println!("huge pages {huge}: units {units:?}, bytes moved {moved:?}");
        assert_eq!(units[0], 2 * MIB);
        assert!(units[1] < units[0], "{units:?}");
        assert!(units.is_sorted_by(|one, next| one >= next), "no unit grows again: {units:?}");
        assert!(units[5] == units[6] && units[6] <= 128 * KIB, "{units:?}");
        assert!(moved[1] < moved[0] && moved[6] < moved[0] / 8, "{moved:?}");
    }
}

#[test]
fn a_scan_under_a_budget_ends_with_a_larger_unit() {
    let setup = Setup::new("units-scan", true);
    let units: Vec<u64> = (0..5).map(|_| setup.read(Some(64 * KIB), BUDGET, from_start_to_end)).collect();
    assert_eq!(units, [64 * KIB; 5], "a unit that was asked for stays");
    let units: Vec<u64> = (0..4).map(|_| setup.read(None, BUDGET, from_start_to_end)).collect();
    assert!(units[3] > 64 * KIB && units.is_sorted(), "{units:?}");
}

#[test]
fn a_unit_that_was_asked_for_stays_however_the_object_is_read() {
    let setup = Setup::new("units-asked", false);
    let units: Vec<u64> = (0..4).map(|_| setup.read(Some(MIB), BUDGET, at_random)).collect();
    assert_eq!(units, [MIB; 4]);
}

#[test]
fn an_object_most_of_which_is_here_is_not_fetched_again_for_the_sake_of_another_unit() {
    let setup = Setup::new("units-here", true);
    setup.read(Some(64 * KIB), 2 * OBJECT_BYTES, from_start_to_end);
    let before = setup.received();
    assert_eq!(setup.read(None, 2 * OBJECT_BYTES, from_start_to_end), 64 * KIB);
    assert_eq!(setup.received(), before);
}
