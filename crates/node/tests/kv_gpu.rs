//! KV blocks to and from a GPU, a real node and what stands in for a driver: what comes late, what is evicted meanwhile.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use hinterland_gpu::stand_in::StandIn;
use hinterland_gpu::{DeviceMemory, Stream};
use hinterland_node::{BackingChoice, Node, NodeOptions};
use hinterland_os::{Coherence, PageKind};
use hinterland_pool::{GpuOptions, KvCache, KvGpu, Pool, PoolError, Run};
use hinterland_types::RackName;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const EIO: i32 = 5;
const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;
const ENOTSUP: i32 = 95;
/// A block of 60 fragments, as a model with 30 layers has it, in a cache of 8 blocks.
const FRAGMENT: usize = 3072;
const BLOCK: usize = 60 * FRAGMENT;
const SLOTS: usize = 8;

/// A node, a namespace and a GPU that reaches it.
struct Ground {
    root: PathBuf,
    node: Option<Node>,
    cache: Option<KvCache>,
    stand_in: StandIn,
}

impl Ground {
    fn new(name: &str) -> Self {
        Self::with(name, Coherence::Hardware)
    }

    fn with(name: &str, coherence: Coherence) -> Self {
        let stand_in = StandIn::alone();
        let root = std::env::temp_dir().join(format!("hl-kvg-{name}-{}", std::process::id()));
        let rack = RackName::parse("one").unwrap();
        let address = "127.0.0.1:0".parse().unwrap();
        let mut options =
            NodeOptions::new("one".parse().unwrap(), rack, root.join("socket"), root.join("state"), address);
        options.capacity_bytes = 16 << 20;
        options.kv_capacity_bytes = 128 << 20;
        options.coherence = coherence;
        options.backing = BackingChoice::Pages(PageKind::Base4K);
        let node = Node::start(options).unwrap();
        let cache = Pool::connect(Some(&root.join("socket"))).unwrap().kv("model").unwrap();
        Self { root, node: Some(node), cache: Some(cache), stand_in }
    }

    fn cache(&self) -> &KvCache {
        self.cache.as_ref().unwrap()
    }

    fn options(&self) -> GpuOptions {
        let library = Some(self.stand_in.path().to_owned());
        GpuOptions { driver: library.clone(), compiler: library, device: None }
    }

    fn gpu(&self) -> KvGpu {
        self.cache().gpu(&self.options()).unwrap()
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.stand_in.open();
        self.cache = None;
        if let Some(node) = self.node.take() {
            node.stop();
        }
        // A test that failed may have left it to be looked at.
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

/// The cache of an engine on the GPU: for each of 60 layers and kinds, 8 blocks of a fragment.
struct Engine {
    memory: Arc<DeviceMemory>,
    stream: Arc<Stream>,
}

impl Engine {
    fn new(gpu: &KvGpu) -> Self {
        let memory = Arc::new(DeviceMemory::new(gpu.gpu(), SLOTS * BLOCK).unwrap());
        Self { memory, stream: Arc::new(Stream::new(gpu.gpu()).unwrap()) }
    }

    /// Where block `slot` lies.
    fn runs(slot: usize) -> [Run; 1] {
        [Run { start: slot * FRAGMENT, bytes: FRAGMENT, stride: (SLOTS * FRAGMENT) as isize, count: 60 }]
    }

    fn write(&self, slot: usize, block: &[u8]) {
        for (layer, fragment) in block.chunks(FRAGMENT).enumerate() {
            self.memory.write((layer * SLOTS + slot) * FRAGMENT, fragment).unwrap();
        }
    }

    fn read(&self, slot: usize) -> Vec<u8> {
        let mut block = vec![0; BLOCK];
        for (layer, fragment) in block.chunks_mut(FRAGMENT).enumerate() {
            self.memory.read((layer * SLOTS + slot) * FRAGMENT, fragment).unwrap();
        }
        block
    }
}

fn block(number: u64) -> Vec<u8> {
    (0..BLOCK as u64).map(|at| (at.wrapping_mul(31).wrapping_add(number * 77) >> 3) as u8).collect()
}

fn read(cache: &KvCache, key: &[u8]) -> Option<Vec<u8>> {
    let mut into = vec![0; BLOCK];
    cache.get(key, &mut [&mut into]).unwrap().map(|_| into)
}

fn code(result: Result<impl Sized, PoolError>) -> i32 {
    let error = result.err().unwrap();
    assert!(error.to_string().contains("hint:"), "{error}");
    error.code()
}

#[test]
fn blocks_go_to_the_gpu_and_come_from_it_and_others_find_them() {
    let ground = Ground::new("both");
    let gpu = ground.gpu();
    let engine = Engine::new(&gpu);
    (0..SLOTS).for_each(|slot| engine.write(slot, &block(slot as u64)));
    let keys: Vec<[u8; 1]> = (0..SLOTS as u8).map(|number| [number]).collect();
    let runs: Vec<[Run; 1]> = (0..SLOTS).map(Engine::runs).collect();
    let forth: Vec<(&[u8], &[Run])> =
        keys.iter().zip(&runs).map(|(key, runs)| (&key[..], &runs[..])).collect();
    let put = gpu.put_from(&forth, &engine.memory, &engine.stream).unwrap();
    assert_eq!(put.wait().unwrap(), [true; SLOTS]);
    for (number, key) in keys.iter().enumerate() {
        assert!(read(ground.cache(), key).unwrap() == block(number as u64), "block {number} on the host");
    }
    // Back in another order, with one that nobody has.
    let mut back: Vec<(&[u8], &[Run])> =
        keys.iter().rev().zip(&runs).map(|(key, runs)| (&key[..], &runs[..])).collect();
    back[3].0 = b"nobody's";
    let before = ground.stand_in.launches();
    let mut get = gpu.get_into(&back, &engine.memory, &engine.stream).unwrap();
    assert_eq!(ground.stand_in.launches() - before, 1);
    while !get.is_arrived().unwrap() {
        std::thread::yield_now();
    }
    let found = get.wait().unwrap();
    assert_eq!(found, [true, true, true, false, true, true, true, true]);
    for (slot, _) in found.iter().enumerate().filter(|(_, found)| **found) {
        assert!(engine.read(slot) == block((SLOTS - 1 - slot) as u64), "block in slot {slot} of the GPU");
    }
    assert!(engine.read(3) == block(3), "what nobody has is left alone");
}

#[test]
fn a_block_that_is_evicted_while_it_is_copied_is_a_miss() {
    let ground = Ground::new("evicted");
    let (gpu, cache) = (ground.gpu(), ground.cache());
    let engine = Engine::new(&gpu);
    cache.put(&[(b"stays", &[&block(1)]), (b"goes", &[&block(2)])]).unwrap();
    let place = cache.inspect(b"goes").unwrap().unwrap();
    ground.stand_in.close();
    let (first, second) = (Engine::runs(0), Engine::runs(1));
    let get =
        gpu.get_into(&[(b"stays", &first), (b"goes", &second)], &engine.memory, &engine.stream).unwrap();
    // The table, the launch, and some of its groups: the copy is in the middle.
    ground.stand_in.allow(4);
    cache.remove(&[b"goes"]).unwrap();
    cache.put(&[(b"another", &[&block(3)])]).unwrap();
    assert_eq!(
        cache.inspect(b"another").unwrap().unwrap().offset,
        place.offset,
        "its memory is written again"
    );
    ground.stand_in.open();
    assert_eq!(get.wait().unwrap(), [true, false]);
    assert!(engine.read(0) == block(1));
    let got = engine.read(1);
    assert!(got != block(2) && got != block(3), "the test has missed the middle of the copy");
}

#[test]
fn a_block_that_is_evicted_while_somebody_waits_for_it_is_a_miss() {
    let ground = Ground::new("waited");
    let (gpu, cache) = (ground.gpu(), ground.cache());
    let engine = Engine::new(&gpu);
    cache.put(&[(b"stays", &[&block(1)]), (b"goes", &[&block(2)])]).unwrap();
    ground.stand_in.close();
    let (first, second) = (Engine::runs(0), Engine::runs(1));
    let get =
        gpu.get_into(&[(b"stays", &first), (b"goes", &second)], &engine.memory, &engine.stream).unwrap();
    let waiting = std::thread::spawn(move || get.wait());
    while ground.stand_in.waiting() == 0 {
        std::thread::yield_now();
    }
    cache.remove(&[b"goes"]).unwrap();
    cache.put(&[(b"another", &[&block(3)])]).unwrap();
    ground.stand_in.open();
    assert_eq!(waiting.join().unwrap().unwrap(), [true, false]);
    assert!(engine.read(1) == block(3), "the GPU has copied the other block, and nobody is told to use it");
}

#[test]
fn a_block_that_is_evicted_before_the_copy_begins_is_a_miss() {
    let ground = Ground::new("before");
    let (gpu, cache) = (ground.gpu(), ground.cache());
    let engine = Engine::new(&gpu);
    cache.put(&[(b"goes", &[&block(2)])]).unwrap();
    ground.stand_in.close();
    let get = gpu.get_into(&[(b"goes", &Engine::runs(1))], &engine.memory, &engine.stream).unwrap();
    cache.remove(&[b"goes"]).unwrap();
    cache.put(&[(b"another", &[&block(3)])]).unwrap();
    ground.stand_in.open();
    assert_eq!(get.wait().unwrap(), [false]);
    assert!(engine.read(1) == block(3), "the GPU has copied the other block, and nobody is told to use it");
}

#[test]
fn a_put_is_there_when_the_gpu_is_done_and_not_before() {
    let ground = Ground::new("late");
    let (gpu, cache) = (ground.gpu(), ground.cache());
    let engine = Engine::new(&gpu);
    // What was there before must not be taken for what comes.
    engine.write(0, &block(9));
    ground.stand_in.close();
    let mut put = gpu.put_from(&[(b"k", &Engine::runs(0))], &engine.memory, &engine.stream).unwrap();
    assert!(!put.is_arrived().unwrap());
    let pool = Pool::connect(Some(&ground.root.join("socket"))).unwrap();
    let reserved = || pool.kv_status().unwrap()[0].reserved;
    assert_eq!((cache.exists(&[b"k"]).unwrap(), reserved()), (vec![false], 0));
    // Another thread waits: the answer comes when the gate opens, and with the right bytes.
    engine.write(0, &block(5));
    let waiting = std::thread::spawn(move || put.wait());
    ground.stand_in.allow(2);
    while ground.stand_in.waiting() == 0 {
        std::thread::yield_now();
    }
    assert!(!waiting.is_finished() && cache.exists(&[b"k"]).unwrap() == [false]);
    ground.stand_in.open();
    assert_eq!(waiting.join().unwrap().unwrap(), [true]);
    assert!(read(cache, b"k").unwrap() == block(5));
    assert_eq!(reserved(), 0);
}

#[test]
fn a_put_that_is_dropped_is_not_published_and_its_buffers_serve_others() {
    let ground = Ground::new("dropped");
    let (gpu, cache) = (ground.gpu(), ground.cache());
    let engine = Engine::new(&gpu);
    engine.write(0, &block(1));
    let runs = Engine::runs(0);
    ground.stand_in.close();
    let begin = || gpu.put_from(&[(b"k", &runs)], &engine.memory, &engine.stream);
    let many: Vec<_> = (0..32).map(|_| begin().unwrap()).collect();
    assert_eq!(code(begin()), EAGAIN);
    ground.stand_in.open();
    drop(many);
    assert_eq!(cache.exists(&[b"k"]).unwrap(), [false]);
    assert_eq!(begin().unwrap().wait().unwrap(), [true]);
}

#[test]
fn a_large_put_goes_in_parts_and_keeps_its_prefix_together() {
    let ground = Ground::new("parts");
    let (gpu, cache) = (ground.gpu(), ground.cache());
    let engine = Engine::new(&gpu);
    engine.write(2, &block(1));
    // 110 blocks of 4 times the same 60 fragments: 77 MiB, in parts of 16 MiB.
    let runs = Engine::runs(2).repeat(4);
    let keys: Vec<Vec<u8>> = (0..110_u32).map(|number| number.to_le_bytes().to_vec()).collect();
    let blocks: Vec<(&[u8], &[Run])> = keys.iter().map(|key| (&key[..], &runs[..])).collect();
    let before = ground.stand_in.launches();
    let put = gpu.put_prefix_from(&blocks, None, &engine.memory, &engine.stream);
    assert!(put.unwrap().wait().unwrap().iter().all(|stored| *stored));
    assert_eq!(ground.stand_in.launches() - before, 5);
    let mut whole = vec![0; 4 * BLOCK];
    for (number, key) in keys.iter().enumerate() {
        assert_eq!(cache.get(key, &mut [&mut whole]).unwrap(), Some(4 * BLOCK as u32));
        assert!(whole.chunks(BLOCK).all(|part| part == block(1)), "block {number}");
        let parent = cache.inspect(key).unwrap().unwrap().parent;
        assert_eq!(parent, number.checked_sub(1).map(|before| keys[before].clone()));
    }
}

#[test]
fn what_cannot_be_done_is_refused_with_what_to_do_and_nothing_is_begun() {
    let ground = Ground::new("refused");
    let (gpu, cache) = (ground.gpu(), ground.cache());
    let engine = Engine::new(&gpu);
    cache.put(&[(b"k", &[&block(1)])]).unwrap();
    let get = |key: &[u8], runs: &[Run]| gpu.get_into(&[(key, runs)], &engine.memory, &engine.stream);
    let put = |key: &[u8], runs: &[Run]| gpu.put_from(&[(key, runs)], &engine.memory, &engine.stream);
    let before = ground.stand_in.launches();
    assert_eq!(code(get(b"k", &[Run::single(0, BLOCK - 1)])), EINVAL);
    assert_eq!(code(get(b"k", &[Run::single(1, SLOTS * BLOCK)])), EINVAL);
    assert_eq!(code(put(b"n", &[])), EINVAL);
    assert_eq!(code(put(b"n", &Engine::runs(0).repeat(30))), EINVAL);
    assert_eq!(code(put(&[0; 65], &Engine::runs(0))), EINVAL);
    assert_eq!(ground.stand_in.launches(), before);
    assert_eq!(get(b"none", &Engine::runs(0)).unwrap().wait().unwrap(), [false]);
    assert_eq!(ground.stand_in.launches(), before, "nothing is launched for nothing");

    ground.stand_in.lack(c"registration");
    assert_eq!(code(cache.gpu(&ground.options())), ENOMEM);
    ground.stand_in.lack(c"compiler");
    assert_eq!(code(cache.gpu(&ground.options())), ENODEV);
    let none = GpuOptions { driver: Some("/no/such/library".into()), ..ground.options() };
    assert_eq!(code(cache.gpu(&none)), ENODEV);
}

#[test]
fn memory_that_a_broken_gpu_may_still_use_is_never_given_back() {
    let ground = Ground::new("broken");
    let (gpu, cache) = (ground.gpu(), ground.cache());
    let engine = Engine::new(&gpu);
    cache.put(&[(b"k", &[&block(1)])]).unwrap();
    engine.write(1, &block(2));
    let begin_get = || gpu.get_into(&[(b"k", &Engine::runs(0))], &engine.memory, &engine.stream).unwrap();
    let (mut asked, waited, dropped) = (begin_get(), begin_get(), begin_get());
    let put = gpu.put_from(&[(b"n", &Engine::runs(1))], &engine.memory, &engine.stream).unwrap();
    ground.stand_in.lack(c"work");
    let before = ground.stand_in.ranges();
    assert_eq!(code(asked.is_arrived()), EIO);
    assert_eq!(code(waited.wait()), EIO);
    assert_eq!(code(put.wait()), EIO);
    drop((asked, dropped, gpu, engine));
    assert_eq!(ground.stand_in.ranges(), before, "the GPU may still read or write it");
    assert_eq!(cache.exists(&[b"n"]).unwrap(), [false]);
}

#[test]
fn memory_that_a_gpu_cannot_see_whole_is_refused() {
    let ground = Ground::with("software", Coherence::Software);
    assert_eq!(code(ground.cache().gpu(&ground.options())), ENOTSUP);
}

#[test]
fn a_transfer_outlives_its_gpu_and_a_node_that_ends() {
    let mut ground = Ground::new("ends");
    // Another test leaves some, on purpose.
    let before = ground.stand_in.ranges();
    let gpu = ground.gpu();
    let engine = Engine::new(&gpu);
    ground.cache().put(&[(b"k", &[&block(1)])]).unwrap();
    engine.write(1, &block(2));
    ground.stand_in.close();
    let get = gpu.get_into(&[(b"k", &Engine::runs(0))], &engine.memory, &engine.stream).unwrap();
    let put = gpu.put_from(&[(b"n", &Engine::runs(1))], &engine.memory, &engine.stream).unwrap();
    drop(gpu);
    ground.cache = None;
    ground.node.take().unwrap().stop();
    ground.stand_in.open();
    // The memory is still mapped, and nobody writes it any more.
    assert_eq!(get.wait().unwrap(), [true]);
    assert!(engine.read(0) == block(1));
    assert!(code(put.wait()) > 0, "nobody can publish it");
    drop(engine);
    assert_eq!(ground.stand_in.ranges(), before, "all memory is given back");
}

/// Bytes that follow from the key and from the writing: each block says in all of its words which it is.
fn named(key: u64, writing: u64) -> Vec<u8> {
    (key << 32 | writing).to_le_bytes().repeat(BLOCK / 8)
}

#[test]
fn while_blocks_come_and_go_no_answer_is_wrong() {
    const KEYS: u64 = 6;
    /// Answers of each kind that are waited for: enough that blocks go in the middle of copies.
    const HITS: usize = 400;
    const MISSES: usize = 100;
    let ground = Ground::new("churn");
    let gpu = ground.gpu();
    let keys: Vec<[u8; 8]> = (0..KEYS).map(u64::to_le_bytes).collect();
    let over = AtomicBool::new(false);
    let read_into = |slot: usize, engine: &Engine| -> Option<(u64, u64)> {
        let bytes = engine.read(slot);
        let word = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        (bytes == named(word >> 32, word & 0xffff_ffff)).then_some((word >> 32, word & 0xffff_ffff))
    };
    let (mut hits, mut misses) = (0, 0);
    std::thread::scope(|scope| {
        // Blocks are removed and written anew, by the host and by the GPU: their slots go from key to key.
        for writer in 0..2_u64 {
            let (over, keys, gpu, cache) = (&over, &keys, &gpu, ground.cache().again().unwrap());
            scope.spawn(move || {
                let engine = Engine::new(gpu);
                for writing in 1.. {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    let key = (writing * 5 + writer * 3) % KEYS;
                    cache.remove(&[&keys[key as usize]]).unwrap();
                    let bytes = named(key, writing);
                    if writer == 0 {
                        cache.put(&[(&keys[key as usize], &[&bytes])]).unwrap();
                    } else {
                        engine.write(0, &bytes);
                        let runs = Engine::runs(0);
                        let blocks: [(&[u8], &[Run]); 1] = [(&keys[key as usize], &runs)];
                        gpu.put_from(&blocks, &engine.memory, &engine.stream).unwrap().wait().unwrap();
                    }
                }
            });
        }
        let engine = Engine::new(&gpu);
        let runs: Vec<[Run; 1]> = (0..KEYS as usize).map(Engine::runs).collect();
        let blocks: Vec<(&[u8], &[Run])> =
            keys.iter().zip(&runs).map(|(key, runs)| (&key[..], &runs[..])).collect();
        while hits < HITS || misses < MISSES {
            let found = gpu.get_into(&blocks, &engine.memory, &engine.stream).unwrap().wait().unwrap();
            for (slot, _) in found.iter().enumerate().filter(|(_, found)| **found) {
                let got = read_into(slot, &engine);
                over.store(got.is_none_or(|(key, _)| key != slot as u64), Ordering::Relaxed);
                assert_eq!(got.map(|(key, _)| key), Some(slot as u64), "a block that was said to be there");
            }
            hits += found.iter().filter(|found| **found).count();
            misses += found.iter().filter(|found| !**found).count();
        }
        over.store(true, Ordering::Relaxed);
    });
}
