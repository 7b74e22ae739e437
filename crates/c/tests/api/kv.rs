//! KV blocks as a C program uses them.

use crate::racks::Racks;
use hinterland::*;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::{null, null_mut};

const EAGAIN: c_int = 11;
const EINVAL: c_int = 22;

/// A namespace and its pool, closed with the test.
struct Opened(*mut PoolHandle, *mut KvHandle);

impl Opened {
    fn new(racks: &Racks) -> Self {
        let (mut pool, mut kv) = (null_mut(), null_mut());
        // SAFETY: strings and places.
        unsafe {
            assert_eq!(hl_open(racks.socket("a").as_ptr(), &mut pool), 0, "{}", words());
            assert_eq!(hl_kv_open(pool, c"model".as_ptr(), &mut kv), 0, "{}", words());
        }
        Self(pool, kv)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: both were opened once, and this is their last use.
        unsafe {
            assert_eq!(hl_close(self.0), 0);
            assert_eq!(hl_kv_close(self.1), 0);
        }
    }
}

fn words() -> String {
    // SAFETY: the words of this thread.
    unsafe { CStr::from_ptr(hl_last_error()) }.to_str().unwrap().to_owned()
}

fn refused(status: c_int, code: c_int, word: &str) {
    assert_eq!(status, -code, "{}", words());
    assert!(words().contains(word) && words().contains("hint: "), "{}", words());
}

fn run(memory: &mut [u8], bytes: usize, stride: isize, count: usize) -> RunRecord {
    RunRecord { start: memory.as_mut_ptr().cast(), bytes, stride, count }
}

fn block(key: &[u8], runs: &[RunRecord]) -> BlockRecord {
    BlockRecord { key: key.as_ptr().cast(), key_bytes: key.len(), runs: runs.as_ptr(), run_count: runs.len() }
}

fn is_readable(descriptor: c_int) -> bool {
    // SAFETY: the queue that owns the descriptor is open.
    let descriptor = unsafe { std::os::fd::BorrowedFd::borrow_raw(descriptor) };
    hinterland_os::poll::wait_readable(descriptor, Some(std::time::Duration::from_millis(20))).unwrap()
}

fn wait(descriptor: c_int) {
    while !is_readable(descriptor) {}
}

#[test]
fn blocks_are_gathered_found_scattered_and_removed() {
    let racks = Racks::start();
    let opened = Opened::new(&racks);
    let mut from: Vec<u8> = (0..3000).map(|index: u32| (index % 251) as u8).collect();
    let (mut into, mut answers) = (vec![0; 3000], [9; 3]);
    let sources = [run(&mut from, 100, 300, 10), run(&mut from[200..], 7, 0, 1)];
    let targets = [run(&mut into, 100, 300, 10), run(&mut into[200..], 7, 0, 1)];
    let put = [block(b"one", &sources[..1]), block(b"two", &sources)];
    let get = [block(b"one", &targets[..1]), block(b"none", &targets[..1]), block(b"two", &targets)];
    let (mut prefix, mut removed) = (9, 9);
    // SAFETY: records of live memory and places.
    unsafe {
        assert_eq!(hl_kv_put(opened.1, put.as_ptr(), 2, answers.as_mut_ptr()), 0, "{}", words());
        assert_eq!(answers, [1, 1, 9]);
        assert_eq!(hl_kv_get(opened.1, get.as_ptr(), 3, answers.as_mut_ptr()), 0, "{}", words());
        assert_eq!(answers, [1, 0, 1]);
        assert_eq!(hl_kv_match_prefix(opened.1, get.as_ptr(), 3, &mut prefix), 0);
        assert_eq!(hl_kv_exists(opened.1, get.as_ptr(), 3, answers.as_mut_ptr()), 0);
        assert_eq!((prefix, answers), (1, [1, 0, 1]));
        assert_eq!(hl_kv_remove(opened.1, get.as_ptr(), 3, &mut removed), 0);
        assert_eq!(removed, 2);
        assert_eq!(hl_kv_exists(opened.1, get.as_ptr(), 3, null_mut()), 0);
    }
    for (wrote, got) in from.chunks(300).zip(into.chunks(300)) {
        assert_eq!(wrote[..100], got[..100]);
    }
    assert_eq!((&into[200..207], &into[207..300]), (&from[200..207], &[0; 93][..]));
}

#[test]
fn null_and_nonsense_about_blocks_are_refused_with_words() {
    let racks = Racks::start();
    let opened = Opened::new(&racks);
    let kv = opened.1;
    let mut memory = [1; 16];
    let runs = [run(&mut memory, 16, 0, 1)];
    let right = [block(b"k", &runs)];
    let nowhere = [RunRecord { start: null_mut(), bytes: 1, stride: 0, count: 1 }];
    let endless = [run(&mut memory, 1, isize::MAX, 3)];
    let mut short = block(b"k", &runs);
    short.runs = null();
    let mut number = 0;
    // SAFETY: null is allowed everywhere, and what is named is there.
    unsafe {
        let mut none = null_mut();
        refused(hl_kv_open(opened.0, null(), &mut none), EINVAL, "fingerprint is NULL");
        refused(hl_kv_open(opened.0, c"m".as_ptr(), null_mut()), EINVAL, "NULL");
        refused(hl_kv_put(null_mut(), right.as_ptr(), 1, null_mut()), EINVAL, "hl_kv_open");
        refused(hl_kv_put(kv, null(), 1, null_mut()), EINVAL, "pass an array");
        refused(hl_kv_put(kv, right.as_ptr(), usize::MAX, null_mut()), EINVAL, "check the number");
        for wrong in [block(b"", &runs), block(&[7; 65], &runs), block(b"n", &nowhere), block(b"n", &endless)]
        {
            refused(hl_kv_put(kv, &wrong, 1, null_mut()), EINVAL, "hint:");
        }
        refused(hl_kv_put(kv, &block(b"n", &[]), 1, null_mut()), EINVAL, "hint:");
        refused(hl_kv_put(kv, &short, 1, null_mut()), EINVAL, "list of runs");
        assert_eq!(hl_kv_put(kv, right.as_ptr(), 1, null_mut()), 0, "{}", words());
        let longer = [run(&mut memory, 15, 0, 1)];
        refused(hl_kv_get(kv, &block(b"k", &longer), 1, null_mut()), EINVAL, "fingerprint");
        refused(hl_kv_match_prefix(kv, right.as_ptr(), 1, null_mut()), EINVAL, "NULL");
        assert_eq!(hl_kv_put(kv, null(), 0, null_mut()), 0);
        let mut queue = null_mut();
        refused(hl_kv_queue_open(kv, 65, 0, &mut queue), EINVAL, "65 workers (hint: 1 to 64");
        refused(
            hl_kv_queue_open(kv, 0, u32::MAX, &mut queue),
            EINVAL,
            "4294967295 batches at once (hint: 1 to 65536",
        );
        assert!(queue.is_null());
        assert_eq!(hl_kv_queue_open(kv, 0, 0, &mut queue), 0, "{}", words());
        refused(hl_kv_submit(queue, 11, right.as_ptr(), 1, null_mut(), &mut number), EINVAL, "HL_KV_");
        refused(hl_kv_submit(queue, 1, right.as_ptr(), 1, null_mut(), null_mut()), EINVAL, "NULL");
        refused(hl_kv_queue_fd(null_mut(), null_mut()), EINVAL, "hl_kv_queue_open");
        refused(hl_kv_drain(queue, null_mut(), 1, &mut 0), EINVAL, "NULL");
        assert_eq!(hl_kv_queue_close(queue), 0);
        assert_eq!((hl_kv_queue_close(null_mut()), hl_kv_close(null_mut())), (0, 0));
    }
}

#[test]
fn a_queue_announces_what_had_no_room_in_the_last_drain() {
    let racks = Racks::start();
    let opened = Opened::new(&racks);
    let (mut queue, mut descriptor) = (null_mut(), 0);
    let mut from = [7_u8; 4096];
    let mut into = [0_u8; 4096];
    let (sources, targets) = ([run(&mut from, 4096, 0, 1)], [run(&mut into, 4096, 0, 1)]);
    let (source, target) = (block(b"k", &sources), block(b"k", &targets));
    let mut answers = [9; 10];
    let mut batches = [0; 10];
    let record = || CompletionRecord { batch: 0, status: 9, reserved: 9 };
    // SAFETY: memory, places and answers live until all batches are drained.
    unsafe {
        assert_eq!(hl_kv_queue_open(opened.1, 1, 4, &mut queue), 0, "{}", words());
        assert_eq!(hl_kv_queue_fd(queue, &mut descriptor), 0);
        assert!(!is_readable(descriptor));
        let looking = [HL_KV_EXISTS, HL_KV_MATCH_PREFIX, HL_KV_MATCH_PREFIX_EVERYWHERE, HL_KV_FETCH];
        let keeping = [HL_KV_PIN, HL_KV_UNPIN, HL_KV_REMOVE, HL_KV_EXISTS];
        let operations = [HL_KV_PUT, HL_KV_GET].into_iter().chain(looking).chain(keeping);
        let mut done: Vec<(u64, c_int)> = Vec::new();
        for (index, operation) in operations.enumerate() {
            let block: *const BlockRecord = if operation == HL_KV_PUT { &source } else { &target };
            let answer = answers.as_mut_ptr().add(index);
            loop {
                match hl_kv_submit(queue, operation, block, 1, answer, &mut batches[index]) {
                    0 => break,
                    // Full: one worker sees to them in their order.
                    other => assert_eq!(other, -EAGAIN, "{}", words()),
                }
            }
        }
        while done.len() < 10 {
            wait(descriptor);
            let (mut completion, mut count) = (record(), 0);
            assert_eq!(hl_kv_drain(queue, &mut completion, 1, &mut count), 0, "{}", words());
            assert_eq!((count, completion.reserved), (1, 0));
            done.push((completion.batch, completion.status));
        }
        assert!(!is_readable(descriptor));
        assert_eq!(done, batches.map(|batch| (batch, 0)));
        assert_eq!((answers, into), ([1, 1, 1, 1, 1, 1, 1, 1, 1, 0], from));
        let nothing: *mut c_void = null_mut();
        assert_eq!(hl_kv_drain(queue, nothing.cast(), 0, &mut 0), 0);
        assert_eq!(hl_kv_queue_close(queue), 0);
    }
}
