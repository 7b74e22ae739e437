//! Tests of the ring endpoint against a real serving thread, and against peers that lie.

use super::*;
use crate::endpoint::{Endpoint, Outcome};
use crate::memory_service::MemoryService;
use crate::service::Service;
use crate::slice::Slice;
use hinterland_proto::{ErrorCode, PeerHello, Refusal, RefusalCode, RemoteError};
use hinterland_types::{ByteRange, Handle, NodeId, Rights, SessionId};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

struct Pair {
    endpoint: ShmEndpoint,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Pair {
    fn new() -> Self {
        let (server, descriptor) = ShmServer::new().unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            let service = MemoryService::new(Slice::zeroed(8), Rights::READ);
            serve_until(
                server,
                &service,
                SessionId(1),
                &mut |body| *body,
                || flag.load(Ordering::Acquire),
                |_| {},
            );
        });
        let endpoint = ShmEndpoint::open(NodeId(1), descriptor).unwrap();
        Self { endpoint, ended, thread: Some(thread) }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

#[test]
fn calls_of_every_length_come_back_as_they_went() {
    let pair = Pair::new();
    for bytes in [0, 1, INLINE_BYTES, INLINE_BYTES + 1, 1000, CELL_BYTES] {
        let body: Vec<u8> = (0..bytes).map(|index| index as u8).collect();
        assert_eq!(pair.endpoint.call(&body).unwrap(), body, "{bytes} bytes");
    }
    let refused = pair.endpoint.call(&vec![0; CELL_BYTES + 1]);
    assert!(matches!(refused, Err(FabricError::Limit { .. })));
}

#[test]
fn many_calls_are_out_at_once_and_each_gets_its_own_answer() {
    let pair = Pair::new();
    let mut queue = pair.endpoint.queue(0).unwrap();
    let mut completions = Vec::new();
    let mut posted = 0u64;
    let mut seen = vec![false; 5000];
    while completions.len() < seen.len() {
        while posted < seen.len() as u64 && queue.in_flight() < 128 {
            queue.post_call(posted, &posted.to_le_bytes()).unwrap();
            posted += 1;
        }
        queue.poll(&mut completions, Duration::from_secs(5)).unwrap();
    }
    for completion in completions {
        assert_eq!(completion.result, Ok(Outcome::Reply(completion.tag.to_le_bytes().to_vec())));
        assert!(!std::mem::replace(&mut seen[completion.tag as usize], true));
    }
}

#[test]
fn queues_of_one_node_that_chose_the_same_tags_get_their_own_answers() {
    let pair = Pair::new();
    let (mut one, mut other) = (pair.endpoint.queue(0).unwrap(), pair.endpoint.queue(0).unwrap());
    for tag in 0..100 {
        one.post_call(tag, b"one").unwrap();
        other.post_call(tag, b"other").unwrap();
    }
    // The plain call takes all answers that came before its own.
    assert_eq!(pair.endpoint.call(b"plain").unwrap(), b"plain");
    for (queue, body) in [(&mut other, &b"other"[..]), (&mut one, b"one")] {
        let mut completions = Vec::new();
        while queue.in_flight() > 0 {
            assert!(queue.poll(&mut completions, Duration::from_secs(60)).unwrap() > 0);
        }
        let mut tags: Vec<u64> = completions.iter().map(|completion| completion.tag).collect();
        tags.sort_unstable();
        assert_eq!(tags, Vec::from_iter(0..100));
        for completion in completions {
            assert_eq!(completion.result, Ok(Outcome::Reply(body.to_vec())));
        }
    }
}

#[test]
fn what_a_queue_asked_that_is_gone_is_no_answer_to_the_next_one() {
    let pair = Pair::new();
    let mut gone = pair.endpoint.queue(0).unwrap();
    for tag in 0..200 {
        gone.post_call(tag, b"gone").unwrap();
    }
    // Some answers were taken by a plain call, the others are out.
    assert_eq!(pair.endpoint.call(b"plain").unwrap(), b"plain");
    gone.post_call(200, b"gone").unwrap();
    drop(gone);
    let mut next = pair.endpoint.queue(0).unwrap();
    let mut completions = Vec::new();
    for tag in 0..u64::from(2 * SLOTS) {
        next.post_call(tag, &tag.to_le_bytes()).unwrap();
        while next.in_flight() > 0 {
            next.poll(&mut completions, Duration::from_secs(60)).unwrap();
        }
    }
    for (tag, completion) in completions.into_iter().enumerate() {
        let (tag, answer) = (tag as u64, (tag as u64).to_le_bytes().to_vec());
        assert_eq!((completion.tag, completion.result), (tag, Ok(Outcome::Reply(answer))));
    }
}

#[test]
fn reads_writes_and_atomics_reach_attached_memory_and_nothing_else() {
    let pair = Pair::new();
    let memory = Slice::zeroed(4096);
    let handle = Handle(3);
    pair.endpoint.attach(handle, memory.clone());
    let run = |offset, bytes| ByteRange::new(offset, bytes).unwrap();
    pair.endpoint.write(handle, &[run(8, 2), run(100, 3)], b"abcde").unwrap();
    let mut back = [0; 5];
    pair.endpoint.read(handle, &[run(100, 3), run(8, 2)], &mut back).unwrap();
    assert_eq!(&back, b"cdeab");
    assert_eq!(pair.endpoint.fetch_and_add(handle, 16, 5).unwrap(), 0);
    assert_eq!(pair.endpoint.compare_and_swap(handle, 16, 5, 9).unwrap(), 5);
    assert_eq!(pair.endpoint.fetch_and_add(handle, 16, 0).unwrap(), 9);
    assert!(pair.endpoint.read(handle, &[run(4095, 2)], &mut [0; 2]).is_err());
    assert!(pair.endpoint.read(Handle(9), &[run(0, 1)], &mut [0]).is_err());
    assert!(pair.endpoint.fetch_and_add(handle, 3, 1).is_err());
}

#[test]
fn memory_whose_file_is_cut_off_gives_no_zeros_and_takes_no_bytes() {
    const BYTES: usize = 2 << 20;
    let pair = Pair::new();
    let handle = Handle(3);
    let run = |offset| [ByteRange::new(offset, 8).unwrap()];
    for attempt in 0..3 {
        let mut file = MemoryFile::anonymous("cut", BYTES as u64, PageKind::Base4K).unwrap();
        let options = MapOptions { write: true, guarded: true, ..MapOptions::default() };
        let memory = Arc::new(file.map(0, BYTES, options).unwrap()).slice();
        memory.fill(0, BYTES, 7).unwrap();
        pair.endpoint.attach(handle, Slice::from(memory));
        let mut word = [0; 8];
        pair.endpoint.read(handle, &run(1 << 20), &mut word).unwrap();
        assert_eq!(word, [7; 8]);
        file.resize(4096).unwrap();
        // Each is the first to miss the pages once.
        let place = 1 << 20;
        let error = match attempt {
            0 => pair.endpoint.read(handle, &run(place), &mut word).unwrap_err(),
            1 => pair.endpoint.write(handle, &run(place), &word).unwrap_err(),
            _ => pair.endpoint.fetch_and_add(handle, place, 1).unwrap_err(),
        };
        assert!(error.to_string().contains("cut off"), "{error}");
        // From then on nothing of it is believed.
        assert!(pair.endpoint.read(handle, &run(0), &mut word).is_err());
        assert!(pair.endpoint.compare_and_swap(handle, 0, 0, 1).is_err());
    }
}

#[test]
fn memory_that_cannot_be_written_is_not_read_into() {
    let pair = Pair::new();
    let handle = Handle(3);
    pair.endpoint.attach(handle, Slice::copied(&[7; 8]));
    let file = MemoryFile::anonymous("read-only", 4096, PageKind::Base4K).unwrap();
    let mapping = Arc::new(file.map(0, 4096, MapOptions::default()).unwrap());
    let into = Slice::from(mapping.slice()).sub(0, 8).unwrap();
    let run = ByteRange::new(0, 8).unwrap();
    let mut queue = pair.endpoint.queue(0).unwrap();
    let refused = FabricError::Unsupported { what: "read into memory that is not writable" };
    assert_eq!(queue.post_read(1, handle, &[run], std::slice::from_ref(&into)), Err(refused.clone()));
    assert_eq!((queue.in_flight(), into.to_vec()), (0, vec![0; 8]));
    assert_eq!(pair.endpoint.read_shared(handle, &[run], &into), Err(refused));
    // To write from it is allowed.
    queue.post_write(2, handle, &[run], &[into]).unwrap();
    let mut word = [1; 8];
    pair.endpoint.read(handle, &[run], &mut word).unwrap();
    assert_eq!(word, [0; 8]);
}

#[test]
fn a_client_that_writes_garbage_is_cut_off_and_nobody_panics() {
    let (mut server, descriptor) = ShmServer::new().unwrap();
    let service = MemoryService::new(Slice::zeroed(8), Rights::READ);
    let area = Area::open(descriptor).unwrap();
    let mut requester =
        hinterland_ring::Requester::new(area.session(false).unwrap(), hinterland_ring::WakeBy::Futex);
    for form in 0..SHORT_FORM_MIN {
        let (mut other, descriptor) = ShmServer::new().unwrap();
        let area = Area::open(descriptor).unwrap();
        let mut liar =
            hinterland_ring::Requester::new(area.session(false).unwrap(), hinterland_ring::WakeBy::Futex);
        let mut body = [form; BODY_BYTES];
        body[0] = form;
        liar.submit(&body).unwrap();
        liar.flush();
        assert_eq!(other.serve(&service, SessionId(1), &mut |body| *body), None, "form {form}");
    }
    let good = area.put(0, b"hello", false).unwrap();
    requester.submit(&good).unwrap();
    requester.flush();
    assert_eq!(server.serve(&service, SessionId(1), &mut |body| *body), Some(1));
}

#[test]
fn a_client_that_never_stops_asking_keeps_no_thread_once_its_session_has_ended() {
    let (server, descriptor) = ShmServer::new().unwrap();
    let area = Area::open(descriptor).unwrap();
    let mut liar =
        hinterland_ring::Requester::new(area.session(false).unwrap(), hinterland_ring::WakeBy::Futex);
    let short = [SHORT_FORM_MIN; BODY_BYTES];
    liar.submit(&short).unwrap();
    liar.flush();
    let (mut served, mut counted) = (0u32, 0);
    let ended = std::cell::Cell::new(false);
    // The next request is there whenever one is answered, as from a peer with a processor of its own.
    let mut answer = |body: &Body| {
        ended.set(true);
        served += 1;
        assert!(served < 10_000, "it is served on and on");
        while liar.poll().unwrap().is_some() {}
        liar.submit(&short).unwrap();
        *body
    };
    let service = MemoryService::new(Slice::zeroed(8), Rights::READ);
    serve_until(server, &service, SessionId(1), &mut answer, || ended.get(), |answered| counted += answered);
    assert_eq!(counted, served as usize);
}

#[test]
fn a_node_that_never_answers_is_a_timeout_and_not_a_hang() {
    let (_server, descriptor) = ShmServer::new().unwrap();
    let endpoint = ShmEndpoint::open(NodeId(1), descriptor).unwrap();
    let late = endpoint.call_within(b"x", Duration::from_millis(20));
    assert!(matches!(late, Err(FabricError::Timeout { .. })), "{late:?}");
}

/// Answers when it is let go.
struct Held(Arc<AtomicBool>);

impl Service for Held {
    fn opened(&self, _: &PeerHello) -> Result<SessionId, Refusal> {
        Err(Refusal::new(RefusalCode::Denied, "a test has no peers"))
    }

    fn closed(&self, _: SessionId) {}

    fn resolve(&self, _: SessionId, _: Handle, _: ByteRange, _: Rights) -> Result<Slice, RemoteError> {
        Err(RemoteError::new(ErrorCode::UNKNOWN_HANDLE, "a test of calls has no memory"))
    }

    fn call(&self, _: SessionId, body: &[u8]) -> Result<Vec<u8>, RemoteError> {
        while !self.0.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        Ok(body.to_vec())
    }
}

#[test]
fn a_call_waits_as_long_as_the_node_is_there() {
    let let_go = Arc::new(AtomicBool::new(false));
    let (near_server, near) = ShmServer::new().unwrap();
    let (far_server, far) = FarServer::new().unwrap();
    let ended = AtomicBool::new(false);
    let is_ended = || ended.load(Ordering::Acquire);
    std::thread::scope(|scope| {
        let held = Held(Arc::clone(&let_go));
        scope.spawn(move || {
            serve_until(near_server, &held, SessionId(1), &mut |body| *body, is_ended, |_| {})
        });
        let held = Held(Arc::clone(&let_go));
        scope.spawn(move || far_server.serve_until(&held, SessionId(1), is_ended, |_| {}));
        let near = ShmEndpoint::open(NodeId(1), near).unwrap();
        let far = FarEndpoint::open(NodeId(1), far, FAR_SLOTS, FAR_DATA_BYTES as u32).unwrap();
        type Call<'a> = &'a dyn Fn(&dyn Fn() -> bool) -> Result<Vec<u8>, FabricError>;
        let calls: [Call<'_>; 2] = [&|is_there| near.call_while(b"near", is_there), &|is_there| {
            far.call_while(b"far", 64, is_there)
        }];
        for (call, answer) in calls.into_iter().zip(["near", "far"]) {
            let_go.store(false, Ordering::Release);
            let looks = AtomicU32::new(0);
            // It was looked for the node again and again before the answer came.
            let answered = call(&|| {
                let_go.store(looks.fetch_add(1, Ordering::Relaxed) >= 3, Ordering::Release);
                true
            });
            assert_eq!(answered.unwrap(), answer.as_bytes());
            assert!(looks.load(Ordering::Relaxed) >= 4);
        }
        ended.store(true, Ordering::Release);
    });
}

#[test]
fn a_node_that_is_gone_ends_the_call_and_all_that_follow() {
    let (_near_server, near) = ShmServer::new().unwrap();
    let (_far_server, far) = FarServer::new().unwrap();
    let near = ShmEndpoint::open(NodeId(1), near).unwrap();
    let far = FarEndpoint::open(NodeId(1), far, FAR_SLOTS, FAR_DATA_BYTES as u32).unwrap();
    let gone = Err(FabricError::Closed { peer: NodeId(1), during: "a call" });
    assert_eq!(near.call_while(b"x", &|| false), gone);
    assert_eq!(far.call_while(b"x", 64, &|| false), gone);
    // Nobody has to look any more.
    assert_eq!(near.call_while(b"x", &|| panic!("looked again")), gone);
    assert_eq!(far.call_while(b"x", 64, &|| panic!("looked again")), gone);
}
