//! Queues of KV batches against a real node: answers are announced, limits hold, memory is borrowed until the end.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use hinterland_node::{BackingChoice, Node, NodeOptions};
use hinterland_os::PageKind;
use hinterland_os::poll::wait_readable;
use hinterland_pool::{
    Batch, Completion, Gather, KeyOperation, KvCache, KvQueue, Owned, Pool, QueueOptions, Run, Scatter,
    Stored, WhenFull,
};
use hinterland_types::RackName;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const EAGAIN: i32 = 11;
const EINVAL: i32 = 22;
const ECANCELED: i32 = 125;
const LONG: Option<Duration> = Some(Duration::from_secs(30));

struct Ground {
    root: PathBuf,
    node: Option<Node>,
}

impl Ground {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("hl-kvq-{name}-{}", std::process::id()));
        let rack = RackName::parse("one").unwrap();
        let address = "127.0.0.1:0".parse().unwrap();
        let mut options =
            NodeOptions::new("one".parse().unwrap(), rack, root.join("socket"), root.join("state"), address);
        options.capacity_bytes = 16 << 20;
        options.kv_capacity_bytes = 64 << 20;
        options.backing = BackingChoice::Pages(PageKind::Base4K);
        Self { node: Some(Node::start(options).unwrap()), root }
    }

    fn cache(&self) -> KvCache {
        Pool::connect(Some(&self.root.join("socket"))).unwrap().kv("model").unwrap()
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if let Some(node) = self.node.take() {
            node.stop();
        }
        std::fs::remove_dir_all(&self.root).unwrap();
    }
}

/// Memory of one block that is counted while it lives.
type Memory = Owned<Counted>;

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn memory(bytes: Vec<u8>, alive: &Arc<AtomicUsize>) -> Memory {
    alive.fetch_add(1, Ordering::SeqCst);
    Owned { blocks: vec![bytes], with: Counted(Arc::clone(alive)) }
}

fn batch(keys: &[&[u8]]) -> Batch {
    let mut batch = Batch::default();
    for key in keys {
        batch.push(key, []).unwrap();
    }
    batch
}

fn put(queue: &KvQueue<Memory>, key: &[u8], memory: Memory) -> u64 {
    queue.put(&[key], memory).map_err(|refusal| refusal.error).unwrap()
}

fn get(queue: &KvQueue<Memory>, key: &[u8], memory: Memory) -> u64 {
    queue.get(&[key], memory).map_err(|refusal| refusal.error).unwrap()
}

fn next<K: Send>(queue: &KvQueue<K>) -> Completion<K> {
    assert!(wait_readable(queue.event(), LONG).unwrap(), "no answer came");
    let mut answers = queue.drain();
    assert_eq!(answers.len(), 1);
    answers.remove(0)
}

fn one_worker(depth: usize) -> QueueOptions {
    QueueOptions { workers: 1, depth, when_full: WhenFull::Refuse }
}

#[test]
fn a_block_goes_from_and_to_128_fragments_that_are_one_run() {
    let ground = Ground::new("runs");
    let cache = ground.cache();
    let from: Vec<u8> = (0..128 * 300).map(|index: u32| (index % 251) as u8).collect();
    let runs = [Run { start: 50, bytes: 100, stride: 300, count: 128 }];
    let gather = Gather::within(&from, &runs).unwrap();
    assert_eq!(cache.put_runs(&[(b"block", gather)]).unwrap(), [Stored::Written]);
    let mut into = vec![0; from.len()];
    let scatter = Scatter::within(&mut into, &runs).unwrap();
    assert_eq!(cache.get_runs_batch(&mut [(b"block", scatter)]).unwrap(), [Some(12_800)]);
    for (index, (wrote, got)) in from.chunks(300).zip(into.chunks(300)).enumerate() {
        assert_eq!(got[50..150], wrote[50..150], "fragment {index}");
        assert!(got[..50].iter().chain(&got[150..]).all(|byte| *byte == 0), "beside fragment {index}");
    }
    // A part of it, from a byte on.
    let mut part = [0; 150];
    let whole = [Run::single(0, 150)];
    let mut scatter = Scatter::within(&mut part, &whole).unwrap();
    assert_eq!(cache.get_runs(b"block", 12_700, &mut scatter).unwrap(), Some(12_800));
    assert_eq!(part[..100], from[127 * 300 + 50..127 * 300 + 150]);
    assert_eq!(part[100..], [0; 50]);
    let mut pieces = [0; 12_800];
    let (one, two) = pieces.split_at_mut(5);
    let found = cache.get_batch(&mut [(b"block", &mut [one, two]), (b"none", &mut [])]).unwrap();
    assert_eq!(found, [Some(12_800), None]);
    assert_eq!(pieces[..100], from[50..150]);
    assert_eq!(cache.exists(&[b"none", b"block"]).unwrap(), [false, true]);
}

#[test]
fn answers_are_announced_until_they_are_drained_and_give_the_memory_back() {
    let ground = Ground::new("event");
    let cache = ground.cache();
    let alive = Arc::new(AtomicUsize::new(0));
    let queue = KvQueue::open(&cache, QueueOptions::default()).unwrap();
    assert!(!wait_readable(queue.event(), Some(Duration::ZERO)).unwrap());
    let id = put(&queue, b"k", memory(vec![7; 1000], &alive));
    assert!(wait_readable(queue.event(), LONG).unwrap());
    assert!(wait_readable(queue.event(), Some(Duration::ZERO)).unwrap(), "it stays readable");
    let answer = next(&queue);
    assert_eq!((answer.id, answer.outcome.unwrap()), (id, vec![true]));
    assert!(!wait_readable(queue.event(), Some(Duration::ZERO)).unwrap());
    assert_eq!(alive.load(Ordering::SeqCst), 1);
    drop(answer.kept);
    assert_eq!(alive.load(Ordering::SeqCst), 0);

    get(&queue, b"k", memory(vec![0; 1000], &alive));
    let answer = next(&queue);
    assert_eq!(answer.outcome.unwrap(), [true]);
    assert_eq!(answer.kept.blocks, [[7; 1000]]);
    get(&queue, b"k", memory(vec![0; 999], &alive));
    let error = next(&queue).outcome.unwrap_err();
    assert!(error.code() == EINVAL && error.to_string().contains("hint:"), "{error}");
    get(&queue, b"none", memory(vec![0; 9], &alive));
    assert_eq!(next(&queue).outcome.unwrap(), [false]);
    assert_eq!(
        queue.put(&[b"k", b"l"], memory(vec![0; 9], &alive)).map_err(|refusal| refusal.error.code()),
        Err(EINVAL)
    );

    let none = || memory(Vec::new(), &alive);
    queue
        .submit_keys(KeyOperation::Exists, batch(&[b"none", b"k", b"none"]), none())
        .map_err(|refusal| refusal.error)
        .unwrap();
    assert_eq!(next(&queue).outcome.unwrap(), [false, true, false]);
    queue
        .submit_keys(KeyOperation::Remove, batch(&[b"k", b"none"]), none())
        .map_err(|refusal| refusal.error)
        .unwrap();
    assert_eq!(next(&queue).outcome.unwrap(), [true, false]);
    assert_eq!(cache.length(b"k").unwrap(), None);
}

#[test]
fn a_queue_whose_answers_nobody_drains_refuses_more() {
    let ground = Ground::new("full");
    let queue = KvQueue::open(&ground.cache(), QueueOptions { depth: 1 << 16, ..one_worker(0) }).unwrap();
    let mut taken = 0;
    let refusal = loop {
        match queue.submit_keys(KeyOperation::Exists, batch(&[b"k"]), taken) {
            Ok(_) => taken += 1,
            Err(refusal) if refusal.error.to_string().contains("answers wait") => break refusal,
            Err(_) => std::thread::yield_now(),
        }
    };
    assert!(refusal.error.code() == EAGAIN && refusal.kept == taken && taken >= 1 << 16, "{taken}");
    assert!(queue.drain().len() >= 1 << 16);
    queue.submit_keys(KeyOperation::Exists, batch(&[b"k"]), 0).unwrap();
}

#[test]
fn a_queue_that_waits_takes_every_batch_of_many_threads() {
    let ground = Ground::new("wait");
    let options = QueueOptions { workers: 3, depth: 2, when_full: WhenFull::Wait };
    let queue = KvQueue::open(&ground.cache(), options).unwrap();
    let (threads, each) = (4, 500_usize);
    let mut seen = vec![false; threads * each + 1];
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                for _ in 0..each {
                    queue.submit_keys(KeyOperation::Exists, batch(&[b"k"]), ()).unwrap();
                }
            });
        }
        let mut left = threads * each;
        while left > 0 {
            assert!(wait_readable(queue.event(), LONG).unwrap());
            for answer in queue.drain() {
                assert_eq!(answer.outcome.unwrap(), [false]);
                assert!(!std::mem::replace(&mut seen[answer.id as usize], true), "each is answered once");
                left -= 1;
            }
        }
    });
    assert!(queue.drain().is_empty());
}

#[test]
fn closing_waits_for_what_runs_and_gives_up_the_rest_with_its_memory() {
    let ground = Ground::new("close");
    let cache = ground.cache();
    let alive = Arc::new(AtomicUsize::new(0));
    let queue = KvQueue::open(&cache, one_worker(1000)).unwrap();
    let names: Vec<[u8; 4]> = (0..200_u32).map(u32::to_le_bytes).collect();
    for name in &names {
        put(&queue, name, memory(vec![9; 100_000], &alive));
    }
    queue.close();
    let answers = queue.drain();
    assert_eq!(answers.len(), names.len());
    for answer in &answers {
        let name = &names[answer.id as usize - 1];
        match &answer.outcome {
            Ok(stored) => {
                assert_eq!((stored.as_slice(), cache.length(name).unwrap()), (&[true][..], Some(100_000)))
            }
            Err(error) => {
                assert_eq!((error.code(), cache.length(name).unwrap()), (ECANCELED, None), "{error}");
            }
        }
    }
    let refusal =
        queue.submit_keys(KeyOperation::Exists, batch(&[b"k"]), memory(Vec::new(), &alive)).unwrap_err();
    assert_eq!(refusal.error.code(), ECANCELED);
    drop((answers, refusal));
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

#[test]
fn a_queue_that_is_dropped_in_the_middle_of_its_work_gives_all_memory_back() {
    let ground = Ground::new("drop");
    let cache = ground.cache();
    let alive = Arc::new(AtomicUsize::new(0));
    for _ in 0..5 {
        let queue = KvQueue::open(&cache, QueueOptions::default()).unwrap();
        for name in 0..50_u32 {
            put(&queue, &name.to_le_bytes(), memory(vec![9; 50_000], &alive));
        }
        drop(queue);
        assert_eq!(alive.load(Ordering::SeqCst), 0);
        cache.clear().unwrap();
    }
}

#[test]
fn a_node_that_ends_fails_the_batches_and_nobody_hangs() {
    let mut ground = Ground::new("gone");
    let cache = ground.cache();
    let alive = Arc::new(AtomicUsize::new(0));
    let queue = KvQueue::open(&cache, one_worker(10)).unwrap();
    ground.node.take().unwrap().stop();
    put(&queue, b"k", memory(vec![1; 10], &alive));
    let error = next(&queue).outcome.unwrap_err();
    assert!(error.to_string().contains("hint:"), "{error}");
}
