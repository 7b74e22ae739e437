//! What stands on an endpoint over peers that lose requests and answers, go down and come back: seeded, in virtual time.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use hinterland_fabric::adaptive::{Adaptive, Way};
use hinterland_fabric::sim::{EndpointFaults, SimEndpoint, SimRandom};
use hinterland_fabric::{Completion, Endpoint, Intake, MemoryService, Outcome, Slice};
use hinterland_types::{ByteRange, NodeId, Rights};
use std::sync::Arc;
use std::time::Duration;

const BYTES: u64 = 256 << 10;
const PEERS: u64 = 3;
const READS: u64 = 40;
const READ_BYTES_MAX: u64 = 8 << 10;
/// One in five requests and one in five answers are lost.
const BAD: EndpointFaults = EndpointFaults {
    lost_request_per_million: 200_000,
    lost_answer_per_million: 200_000,
    torn_write_per_million: 0,
};

fn pattern() -> Vec<u8> {
    (0..BYTES).map(|index| index.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()[7]).collect()
}

fn peer(number: u64, content: &[u8], seed: u64) -> Arc<SimEndpoint> {
    let service = Arc::new(MemoryService::new(Slice::copied(content), Rights::READ));
    Arc::new(SimEndpoint::open(NodeId(number), service, seed ^ number, BAD).unwrap())
}

/// Reads of one intake from peers that all have the same bytes. A read that failed is asked of the next peer.
struct Reading {
    peers: Vec<Arc<SimEndpoint>>,
    intake: Intake,
    chance: SimRandom,
    /// Offset and length, and by how many it was asked.
    wanted: Vec<(u64, u64, u64)>,
    /// What completed, in its order: the read, and whether it was good.
    told: Vec<(u64, bool)>,
}

impl Reading {
    fn new(content: &[u8], seed: u64) -> Self {
        let mut chance = SimRandom::new(seed);
        let wanted = (0..READS).map(|_| {
            let bytes = chance.between(1, READ_BYTES_MAX);
            (chance.below(BYTES - bytes), bytes, 0)
        });
        let wanted = wanted.collect();
        let peers = (1..=PEERS).map(|number| peer(number, content, seed)).collect();
        let intake = Intake::new((READS * READ_BYTES_MAX) as usize, 1).unwrap();
        Self { peers, intake, chance, wanted, told: Vec::new() }
    }

    /// Asks the next peer for a read.
    fn post(&mut self, tag: u64) {
        let (offset, bytes, asked) = &mut self.wanted[tag as usize];
        let endpoint = Arc::clone(&self.peers[(*asked % PEERS) as usize]) as Arc<dyn Endpoint>;
        *asked += 1;
        let from = ByteRange::new(*offset, *bytes).unwrap();
        let at = (tag * READ_BYTES_MAX) as usize;
        self.intake.post(&endpoint, tag, MemoryService::HANDLE, from, at).unwrap();
    }

    /// Until all reads were good. Now and then a peer goes down, and another comes back.
    fn run(&mut self, content: &[u8]) {
        (0..READS).for_each(|tag| self.post(tag));
        let mut completions = Vec::new();
        while self.intake.in_flight() > 0 {
            let (peer, is_down) = (self.chance.below(PEERS), self.chance.chance(300_000));
            self.peers[peer as usize].set_down(is_down);
            assert!(self.intake.poll(&mut completions, Duration::ZERO).unwrap() > 0);
            for Completion { tag, result } in std::mem::take(&mut completions) {
                self.told.push((tag, result.is_ok()));
                match result {
                    Ok(outcome) => {
                        assert_eq!(outcome, Outcome::Done);
                        let (offset, bytes, _) = self.wanted[tag as usize];
                        let came = self.intake.bytes((tag * READ_BYTES_MAX) as usize, bytes as usize);
                        assert!(came == &content[offset as usize..][..bytes as usize], "read {tag}");
                    }
                    Err(error) => {
                        assert!(error.is_connection_lost(), "{error}");
                        self.post(tag);
                    }
                }
            }
        }
    }
}

#[test]
fn reads_of_an_intake_each_end_once_and_come_right_from_a_peer_that_is_there() {
    let content = pattern();
    for seed in 0..200 {
        let mut reading = Reading::new(&content, seed);
        reading.run(&content);
        let asked: u64 = reading.wanted.iter().map(|(_, _, asked)| asked).sum();
        assert_eq!(reading.told.len() as u64, asked, "each that was asked ends once, seed {seed}");
        let mut good: Vec<u64> = reading.told.iter().filter(|told| told.1).map(|told| told.0).collect();
        good.sort_unstable();
        assert!(good == (0..READS).collect::<Vec<_>>(), "seed {seed}: {good:?}");
        assert!(asked > READS, "nothing was lost with seed {seed}");
    }
}

#[test]
fn the_same_seed_loses_the_same_reads() {
    let content = pattern();
    let told = |seed| {
        let mut reading = Reading::new(&content, seed);
        reading.run(&content);
        (reading.told, reading.peers.iter().map(|peer| peer.elapsed()).collect::<Vec<_>>())
    };
    assert_eq!(told(7), told(7));
    assert_ne!(told(7), told(8));
}

#[test]
fn what_is_fetched_over_losses_is_right_or_an_error_in_each_way() {
    let content = pattern();
    let ways = [None, Some(Way::Message), Some(Way::Read), Some(Way::Direct)];
    for (seed, way) in (0..100).flat_map(|seed| ways.map(|way| (seed, way))) {
        let (endpoint, mut chance) = (peer(1, &content, seed), SimRandom::new(seed));
        let adaptive = Adaptive::new(Arc::clone(&endpoint) as Arc<dyn Endpoint>, way);
        let (mut good, mut lost) = (0, 0);
        for _ in 0..60 {
            // Some questions come again: what was learned of them is read.
            let bytes = chance.below(12) * 3000;
            match adaptive.fetch(&bytes.to_le_bytes(), BYTES) {
                Ok(came) => {
                    assert!(came == content[..bytes as usize], "{way:?}, {bytes} bytes, seed {seed}");
                    good += 1;
                }
                Err(error) => {
                    assert!(error.is_connection_lost(), "{error}");
                    lost += 1;
                }
            }
        }
        assert!(good > 0 && lost > 0 && adaptive.counts().learned > 0, "{way:?}, seed {seed}");
        endpoint.set_faults(EndpointFaults::default());
        for bytes in (0..12).map(|step| step * 3000) {
            let mut came = vec![0; bytes as usize];
            adaptive.fetch_into(&u64::to_le_bytes(bytes), &mut came).unwrap();
            assert!(came == content[..bytes as usize], "{way:?}, {bytes} bytes, seed {seed}");
        }
    }
}
