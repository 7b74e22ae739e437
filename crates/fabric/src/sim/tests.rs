//! The simulated peer keeps its promises, and breaks them as it was told.

use super::*;
use crate::{Endpoint, FabricError, MemoryService, Outcome, Slice};
use hinterland_types::{ByteRange, NodeId, Rights};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

const A: NodeId = NodeId(1);

fn run(offset: u64, bytes: u64) -> ByteRange {
    ByteRange::new(offset, bytes).unwrap()
}

#[test]
fn the_generator_gives_the_published_numbers() {
    // The reference implementation of splitmix64 for seed 0, then xoshiro256** over that state.
    let first: [u64; 4] =
        [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4, 0x06C4_5D18_8009_454F, 0xF88B_B8A8_724C_81EC];
    let expected = first[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
    assert_eq!(SimRandom::new(0).next_u64(), expected);
}

proptest! {
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
fn time_passes_with_what_is_done_and_a_loss_takes_as_long_as_it_is_waited_for() {
    let (endpoint, _) = endpoint(1, EndpointFaults::default());
    endpoint.call(b"x").unwrap();
    let one = endpoint.elapsed();
    endpoint.call(b"x").unwrap();
    assert!(one > Duration::ZERO && endpoint.elapsed() == 2 * one);
    endpoint.set_faults(EndpointFaults { lost_answer_per_million: 1_000_000, ..EndpointFaults::default() });
    let within = Duration::from_millis(70);
    let lost = endpoint.call_within(b"x", within).unwrap_err();
    assert!(matches!(lost, FabricError::Timeout { after, .. } if after == within), "{lost}");
    assert_eq!(endpoint.elapsed(), 2 * one + within);
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
    while queue.in_flight() > 0 {
        let before = completions.len();
        let count = queue.poll(&mut completions, Duration::ZERO).unwrap();
        assert!(count > 0 && completions.len() == before + count);
    }
    completions.sort_by_key(|completion| completion.tag);
    let results: Vec<_> = completions.into_iter().map(|completion| completion.result.unwrap()).collect();
    assert_eq!(results, [Outcome::Done, Outcome::Done, Outcome::Reply(b"x".to_vec())]);
    assert_eq!(into.to_vec(), [7; 16]);
    assert_eq!(queue.in_flight(), 0);
}
