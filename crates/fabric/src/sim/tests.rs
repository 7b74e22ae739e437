//! The simulated network keeps its promises, and the same seed keeps them the same way.

use super::*;
use crate::{Endpoint, FabricError, MemoryService, Outcome, Slice};
use hinterland_types::{ByteRange, NodeId, Rights};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const C: NodeId = NodeId(3);

fn run(offset: u64, bytes: u64) -> ByteRange {
    ByteRange::new(offset, bytes).unwrap()
}

/// All that arrives.
fn drain(network: &mut SimNetwork<u32>) -> Vec<(NodeId, NodeId, u32)> {
    std::iter::from_fn(|| network.step()).map(|d| (d.from, d.to, d.message)).collect()
}

#[test]
fn the_generator_gives_the_published_numbers() {
    // The reference implementation of splitmix64 for seed 0, then xoshiro256** over that state.
    let first: [u64; 4] =
        [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4, 0x06C4_5D18_8009_454F, 0xF88B_B8A8_724C_81EC];
    let expected = first[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
    assert_eq!(SimRandom::new(0).next_u64(), expected);
}

#[test]
fn without_faults_everything_arrives_once_and_in_order() {
    let mut network = SimNetwork::new(1, NetworkFaults::NONE);
    for number in 0..100 {
        network.send(A, B, number);
    }
    let arrived: Vec<u32> = drain(&mut network).into_iter().map(|(_, _, number)| number).collect();
    assert_eq!(arrived, (0..100).collect::<Vec<_>>());
    assert_eq!(network.now(), Duration::from_micros(10));
}

#[test]
fn a_partition_stops_both_directions_until_it_heals() {
    let mut network = SimNetwork::new(1, NetworkFaults::NONE);
    network.partition(&[A], &[B, C]);
    for (from, to) in [(A, B), (B, A), (C, A), (B, C)] {
        network.send(from, to, 0);
    }
    assert_eq!(drain(&mut network), [(B, C, 0)]);
    network.heal(&[B], &[A]);
    for (from, to) in [(A, B), (B, A), (C, A)] {
        network.send(from, to, 1);
    }
    assert_eq!(drain(&mut network), [(A, B, 1), (B, A, 1)]);
    network.heal_all();
    network.send(C, A, 2);
    assert_eq!(drain(&mut network), [(C, A, 2)]);
}

#[test]
fn a_one_way_cut_leaves_the_other_way_open() {
    let mut network = SimNetwork::new(1, NetworkFaults::NONE);
    network.cut_one_way(A, B);
    network.send(A, B, 1);
    network.send(B, A, 2);
    assert_eq!(drain(&mut network), [(B, A, 2)]);
}

#[test]
fn a_partition_catches_what_is_on_its_way() {
    let mut network = SimNetwork::new(1, NetworkFaults::NONE);
    network.send(A, B, 1);
    network.partition(&[A], &[B]);
    assert_eq!(drain(&mut network), []);
    assert_eq!(network.counts().cut, 1);
}

#[test]
fn a_crashed_node_hears_and_says_nothing_and_its_timers_are_gone() {
    let mut network = SimNetwork::new(1, NetworkFaults::NONE);
    network.send(A, B, 1);
    network.send(B, A, 2);
    network.set_timer(B, Duration::from_secs(1), 3);
    network.crash(B);
    network.send(B, A, 4);
    network.set_timer(B, Duration::ZERO, 5);
    network.send(A, B, 6);
    assert_eq!(drain(&mut network), [(B, A, 2)]);
}

#[test]
fn a_restarted_node_does_not_hear_what_was_meant_for_its_former_life() {
    let mut network = SimNetwork::new(1, NetworkFaults::NONE);
    network.send(A, B, 1);
    network.set_timer(B, Duration::from_micros(1), 2);
    network.crash(B);
    network.restart(B);
    network.send(A, B, 3);
    assert_eq!(drain(&mut network), [(A, B, 3)]);
    assert_eq!(network.counts().unheard, 2);
}

#[test]
fn timers_fire_at_their_time_whatever_the_network_does() {
    let faults = NetworkFaults { drop_per_million: 1_000_000, ..NetworkFaults::BAD };
    let mut network = SimNetwork::new(1, faults);
    network.partition(&[A], &[A, B]);
    network.set_timer(A, Duration::from_millis(5), 1);
    network.set_timer(A, Duration::from_millis(3), 2);
    let first = network.step().unwrap();
    assert_eq!((first.at, first.to, first.message), (Duration::from_millis(3), A, 2));
    assert_eq!(network.step().map(|delivery| delivery.message), Some(1));
    assert_eq!(network.now(), Duration::from_millis(5));
}

proptest! {
    #[test]
    fn the_same_seed_gives_the_same_run_and_time_never_goes_back(seed in any::<u64>()) {
        let trace = || {
            let mut network = SimNetwork::new(seed, NetworkFaults::BAD);
            let mut trace = Vec::new();
            for number in 0..50 {
                network.send(A, B, number);
            }
            while let Some(delivery) = network.step() {
                if delivery.message % 7 == 0 && trace.len() < 200 {
                    network.send(delivery.to, delivery.from, delivery.message + 1);
                }
                trace.push(delivery);
            }
            (trace, network.counts())
        };
        let (one, other) = (trace(), trace());
        prop_assert!(one.0.windows(2).all(|pair| pair[0].at <= pair[1].at));
        prop_assert_eq!(one, other);
    }

    #[test]
    fn every_message_is_accounted_for(seed in any::<u64>(), drop in 0u32..1_000_000, twice in 0u32..1_000_000) {
        let faults =
            NetworkFaults { drop_per_million: drop, duplicate_per_million: twice, ..NetworkFaults::BAD };
        let mut network = SimNetwork::new(seed, faults);
        for number in 0..300 {
            network.send(A, B, number);
        }
        let mut arrived: BTreeMap<u32, u32> = BTreeMap::new();
        for (_, _, number) in drain(&mut network) {
            *arrived.entry(number).or_default() += 1;
        }
        let counts = network.counts();
        prop_assert_eq!(counts.sent, 300);
        prop_assert_eq!(counts.delivered, counts.sent - counts.dropped + counts.duplicated);
        prop_assert_eq!(arrived.len() as u64, counts.sent - counts.dropped);
        prop_assert_eq!(arrived.values().filter(|times| **times == 2).count() as u64, counts.duplicated);
        prop_assert!(arrived.values().all(|times| *times <= 2));
    }

    #[test]
    fn numbers_stay_in_their_range(seed in any::<u64>(), low in any::<u64>(), span in any::<u64>()) {
        let mut random = SimRandom::new(seed);
        let high = low.saturating_add(span);
        for _ in 0..20 {
            prop_assert!((low..=high).contains(&random.between(low, high)));
            prop_assert!(span == 0 || random.below(span) < span);
        }
        prop_assert!(!random.chance(0) && random.chance(1_000_000));
    }
}

fn endpoint(seed: u64, faults: EndpointFaults) -> (SimEndpoint, Arc<MemoryService>) {
    let service = Arc::new(MemoryService::new(Slice::zeroed(4096), Rights::ALL));
    (SimEndpoint::open(A, service.clone(), seed, faults).unwrap(), service)
}

#[test]
fn a_simulated_endpoint_reads_what_was_written() {
    let (endpoint, service) = endpoint(1, EndpointFaults::default());
    endpoint.write(MemoryService::HANDLE, &[run(0, 3), run(100, 2)], b"abcde").unwrap();
    let mut back = [0; 5];
    endpoint.read(MemoryService::HANDLE, &[run(100, 2), run(0, 3)], &mut back).unwrap();
    assert_eq!(&back, b"deabc");
    assert_eq!(endpoint.fetch_and_add(MemoryService::HANDLE, 8, 5).unwrap(), 0);
    assert_eq!(endpoint.compare_and_swap(MemoryService::HANDLE, 8, 5, 9).unwrap(), 5);
    assert_eq!(endpoint.call(b"echo").unwrap(), b"echo");
    let refused = endpoint.read(MemoryService::HANDLE, &[run(4096, 1)], &mut [0]).unwrap_err();
    assert!(matches!(refused, FabricError::Remote { .. }));
    drop(endpoint);
    assert_eq!(service.open_sessions(), 0);
}

#[test]
fn a_lost_request_did_nothing_and_a_lost_answer_did_everything() {
    let lost_request = EndpointFaults { lost_request_per_million: 1_000_000, ..Default::default() };
    let (endpoint, service) = endpoint(1, lost_request);
    let word = || service.memory().to_vec()[0];
    assert!(endpoint.fetch_and_add(MemoryService::HANDLE, 0, 1).unwrap_err().is_connection_lost());
    assert_eq!(word(), 0);
    endpoint.set_faults(EndpointFaults { lost_answer_per_million: 1_000_000, ..EndpointFaults::default() });
    assert!(endpoint.fetch_and_add(MemoryService::HANDLE, 0, 1).unwrap_err().is_connection_lost());
    assert_eq!(word(), 1);
    endpoint.set_faults(EndpointFaults::default());
    endpoint.set_down(true);
    assert!(matches!(endpoint.call(b"x"), Err(FabricError::Closed { .. })));
    endpoint.set_down(false);
    assert!(endpoint.call(b"x").is_ok());
}

#[test]
fn a_torn_write_leaves_a_beginning() {
    let torn = EndpointFaults { torn_write_per_million: 1_000_000, ..Default::default() };
    let mut lengths = Vec::new();
    for seed in 0..20 {
        let (endpoint, service) = endpoint(seed, torn);
        assert!(endpoint.write(MemoryService::HANDLE, &[run(0, 1000)], &[1; 1000]).is_err());
        let memory = service.memory().to_vec();
        let written = memory.iter().take_while(|byte| **byte == 1).count();
        assert!(memory[written..].iter().all(|byte| *byte == 0) && written < 1000);
        lengths.push(written);
    }
    lengths.dedup();
    assert!(lengths.len() > 10);
}

#[test]
fn a_simulated_queue_completes_everything() {
    let (endpoint, _) = endpoint(3, EndpointFaults::default());
    let mut queue = endpoint.queue(0).unwrap();
    let into = Slice::zeroed(16);
    queue.post_write(1, MemoryService::HANDLE, &[run(0, 16)], &[Slice::copied(&[7; 16])]).unwrap();
    queue.post_read(2, MemoryService::HANDLE, &[run(0, 16)], std::slice::from_ref(&into)).unwrap();
    queue.post_call(3, b"x").unwrap();
    let mut completions = Vec::new();
    assert_eq!(queue.poll(&mut completions, Duration::ZERO).unwrap(), 3);
    completions.sort_by_key(|completion| completion.tag);
    let results: Vec<_> = completions.into_iter().map(|completion| completion.result.unwrap()).collect();
    assert_eq!(results, [Outcome::Done, Outcome::Done, Outcome::Reply(b"x".to_vec())]);
    assert_eq!(into.to_vec(), [7; 16]);
    assert_eq!(queue.in_flight(), 0);
}
