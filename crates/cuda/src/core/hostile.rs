//! Tests against a node that sends anything: a program's calls end, with the right bytes or an error, and write nowhere else.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use hinterland_channel::{
    Address, Channel, ChannelOptions, Listener, Receiver, Rings, Sender, connect, pair,
};
use hinterland_os::Mapping;
use hinterland_proto::gpu::answer::{Answer, Bytes, Fault, Reached, library};
use hinterland_proto::gpu::command::{Command, Fill, GraphUpdate, Launch, launch_flags};
use hinterland_proto::gpu::{DeviceFacts, GPU_VERSION, Message, Welcome};
use hinterland_proto::{ClientIdentity, Features, PeerLimits, PoolId, Role, ServerIdentity};
use hinterland_types::NodeId;

use super::capture_mode::CaptureMode;
use super::context::Owner;
use super::launch::{Geometry, Parameters};
use super::list::List;
use super::module::{Binary, Kernel};
use super::node::{Given, Node, NodeKind};
use super::session::Session;
use super::stream::Stream;
use crate::code::{ALREADY_MAPPED, Code, INVALID_HANDLE, INVALID_VALUE, UNAVAILABLE};

#[path = "../../../proto/tests/mutate/mod.rs"]
#[allow(dead_code, reason = "other targets use the rest")]
pub(super) mod mutate;
use mutate::{Random, mutate as change, rounds};

pub(super) const HERE: Owner = Owner::primary(0);
const GRANULE: u64 = 2 << 20;
/// Device memory of a session, and bytes on each side of a buffer that nobody may touch.
const MEMORY: u64 = 8 * GRANULE;
const GUARD: usize = 4096;
const BUFFER: usize = 40_000;
/// How long a node is silent before it goes: a program that waits for an answer that was lost waits as long.
const SILENCE: Duration = Duration::from_millis(3);
/// The same of an honest one, which a loaded machine may keep from running.
const SILENCE_HONEST: Duration = Duration::from_secs(5);
/// A round that takes longer hangs.
const STUCK: Duration = Duration::from_secs(60);

/// What a node makes of an answer.
fn spoil(random: &mut Random, word: &mut u32, body: &mut Vec<u8>) {
    match random.below(6) {
        0 => *word = random.below(5) as u32,
        1 => *word = random.number() as u32,
        2 => body.truncate(random.below(body.len() + 1)),
        3 => body.extend(vec![0xee; random.below(300)]),
        _ => change(random, body),
    }
    // What kernels print goes to the standard output of the test.
    if *word == 5 {
        *word = 6;
    }
}

fn answer<M: Message>(message: &M, tail: &[u8]) -> (u32, Vec<u8>) {
    let mut body = vec![0; M::FIELD_BYTES];
    message.write(&mut body);
    body.extend_from_slice(tail);
    (M::NUMBER, body)
}

/// What an honest node answers; bytes that come back are all of one value.
fn honest(command: &Command) -> Vec<(u32, Vec<u8>)> {
    let bytes_out = |transfer: u32, bytes: u64| {
        let mut all = Vec::new();
        let mut offset = 0;
        while offset < bytes.min(BUFFER as u64) {
            let piece = (bytes - offset).min(9000);
            all.push(answer(&Bytes { transfer, error: 0, offset }, &vec![0xab; piece as usize]));
            offset += piece;
        }
        all
    };
    match command {
        Command::MarkStream(c) => vec![answer(&Reached { mark: c.mark, error: 0 }, &[])],
        Command::MarkDevice(c) => vec![answer(&Reached { mark: c.mark, error: 0 }, &[])],
        Command::MarkEvent(c) => vec![answer(&Reached { mark: c.mark, error: 0 }, &[])],
        Command::CopyOut(c) => bytes_out(c.transfer, c.bytes),
        Command::CopyOutRows(c) => bytes_out(c.transfer, c.width * c.rows),
        Command::EventElapsed(c) => {
            vec![answer(&Answer { question: c.question, error: 0 }, &1.5_f32.to_bits().to_le_bytes())]
        }
        Command::AskGrant(c) => {
            vec![answer(
                &Answer { question: c.question, error: 0 },
                &[2 * MEMORY, 0].map(u64::to_le_bytes).concat(),
            )]
        }
        _ => Vec::new(),
    }
}

/// Takes commands and answers as `random` has it, until the program goes or it loses patience.
fn be_node(mut random: Random, (mut sender, mut receiver): (Sender, Receiver), hostility: usize) {
    let mut kept: Vec<(u32, Vec<u8>)> = Vec::new();
    let mut say = |word: u32, body: &[u8]| -> bool {
        let body = &body[..body.len().min(sender.body_max())];
        let Ok(true) = sender.wait_room(body.len(), Some(SILENCE)) else { return false };
        let Ok(Some(mut room)) = sender.room(word, body.len()) else { return false };
        let written = room.append(body);
        room.commit();
        written.is_ok() && sender.flush().is_ok()
    };
    loop {
        match receiver.wait(Some(if hostility == 0 { SILENCE_HONEST } else { SILENCE })) {
            Ok(true) => {}
            _ => return,
        }
        let Ok(Some(frame)) = receiver.next() else { return };
        let Ok(command) = Command::read(frame.word(), frame.head(), frame.len()) else { continue };
        drop(frame);
        for (mut word, mut body) in honest(&command) {
            if random.below(100) < hostility {
                match random.below(8) {
                    0 => continue,
                    1 => kept.push((word, body.clone())),
                    2 => {
                        let fault = Fault {
                            error: random.number() as i32,
                            library: random.below(3) as u32,
                            sticky: random.below(2) as u32,
                            command: random.number(),
                        };
                        (word, body) = answer(&fault, b"a \x1b[31mfault\xff");
                    }
                    3 => return,
                    _ => spoil(&mut random, &mut word, &mut body),
                }
            }
            if !say(word, &body) {
                return;
            }
            // What was said before, once more and out of its order.
            if random.below(100) < hostility && !kept.is_empty() {
                let (word, body) = kept.swap_remove(random.below(kept.len()));
                if !say(word, &body) {
                    return;
                }
            }
        }
    }
}

fn device() -> DeviceFacts {
    DeviceFacts {
        name: "hostile".to_owned(),
        uuid: [7; 16],
        memory: 2 * MEMORY,
        grant: MEMORY,
        capability: (9, 0),
        bus: "0000:00:00.0".to_owned(),
        attributes: vec![(1, 1024), (16, 132)],
        peers: 0,
        needs_assembly: false,
    }
}

/// Held alone while a greeting that may name any addresses is believed, and shared by tests whose windows are their own.
static WINDOWS: RwLock<()> = RwLock::new(());

fn welcome() -> Welcome {
    // Far from where the kernel puts what asks for no address: other threads of the tests map all the time.
    static NEXT: AtomicU64 = AtomicU64::new(0x2000_0000_0000);
    // Relaxed: all that counts is that no window is given twice.
    let window = NEXT.fetch_add((MEMORY * 4).next_multiple_of(GRANULE), Ordering::Relaxed);
    Welcome {
        version: GPU_VERSION,
        session: 1,
        driver: 13_000,
        blas: 130_000,
        window,
        window_bytes: MEMORY * 2,
        granularity: GRANULE,
        devices: vec![device()],
        modules: Vec::new(),
    }
}

/// A buffer of a program with bytes around it that must stay.
struct Guarded(Vec<u8>);

impl Guarded {
    fn new() -> Self {
        Self(vec![0x5a; BUFFER + 2 * GUARD])
    }

    fn start(&mut self) -> *mut u8 {
        self.0[GUARD..].as_mut_ptr()
    }

    /// Looks that nothing but `bytes` bytes from the start of the buffer on was written.
    fn check(&self, bytes: usize) {
        assert!(self.0[..GUARD].iter().all(|byte| *byte == 0x5a), "something was written before the buffer");
        assert!(
            self.0[GUARD + bytes..].iter().all(|byte| *byte == 0x5a),
            "something was written behind the buffer"
        );
    }
}

/// Calls of a program, in an order of `random`'s; some fail, and all end. Returns how many had an error.
fn be_program(random: &mut Random, session: &Session) -> usize {
    let mut errors = 0;
    let mut guarded = Guarded::new();
    let Ok(stream) = session.create_stream(HERE, 0, 0) else { return 1 };
    let (Ok(start), Ok(end)) = (session.create_event(HERE, 0), session.create_event(HERE, 0)) else {
        return 1;
    };
    let Ok(memory) = session.allocate(HERE, BUFFER as u64) else { return 1 };
    let far = std::ptr::with_exposed_provenance_mut(memory as usize);
    let from = [3_u8; 5000];
    let mut written = 0;
    for _ in 0..4 + random.below(12) {
        // As each function of CUDA begins.
        if session.sticky() != 0 {
            return errors + 1;
        }
        let bytes = 1 + random.below(BUFFER);
        let outcome = match random.below(10) {
            0..3 => {
                written = written.max(bytes);
                let outcome = session.copy(&stream, guarded.start().cast(), far, bytes);
                if outcome.is_ok() && random.below(2) == 0 {
                    session.synchronize_stream(&stream)
                } else {
                    outcome
                }
            }
            3 => session.copy(&stream, far, from.as_ptr().cast(), from.len()),
            4 => session.synchronize_stream(&stream),
            5 => session.wait_device(0),
            6 => {
                session.record_event(&start, &stream, 0).and_then(|()| session.record_event(&end, &stream, 0))
            }
            7 => session.synchronize_event(&end).and_then(|()| match session.elapsed(&start, &end) {
                // Nothing was recorded yet.
                Err(INVALID_HANDLE) => Ok(()),
                other => other.map(drop),
            }),
            8 => session.is_stream_done(&stream).map(drop),
            // More than the grant: the node is asked.
            _ => session.allocate(HERE, MEMORY - GRANULE / 2).and_then(|address| session.free(address)),
        };
        errors += usize::from(outcome.is_err());
        guarded.check(written);
    }
    errors
}

/// Calls `work` with a session whose node does nothing wrong.
pub(super) fn with_honest_node(work: impl FnOnce(&Session)) {
    let _windows = WINDOWS.read().unwrap_or_else(PoisonError::into_inner);
    let (ours, theirs) = pair(Rings { ring_bytes: 256 << 10, body_bytes_max: 64 << 10 }).unwrap();
    let ((sender, receiver), theirs) = (ours.split().unwrap(), theirs.split().unwrap());
    std::thread::scope(|scope| {
        let node = scope.spawn(move || be_node(Random::new(0), theirs, 0));
        let session = Session::new(welcome(), sender, receiver).unwrap();
        work(&session);
        drop(session);
        node.join().unwrap();
    });
}

/// The same with a session that stays, as threads of it do.
pub(super) fn with_lasting_session(work: impl FnOnce(&'static Session)) {
    let _windows = WINDOWS.read().unwrap_or_else(PoisonError::into_inner);
    let (ours, theirs) = pair(Rings { ring_bytes: 256 << 10, body_bytes_max: 64 << 10 }).unwrap();
    let ((sender, receiver), theirs) = (ours.split().unwrap(), theirs.split().unwrap());
    std::thread::spawn(move || be_node(Random::new(0), theirs, 0));
    work(Box::leak(Box::new(Session::new(welcome(), sender, receiver).unwrap())));
}

/// Ends the tests if a round hangs.
fn watch(round: &Arc<AtomicU64>) {
    let round = Arc::clone(round);
    std::thread::spawn(move || {
        loop {
            // Relaxed: a count alone.
            let before = round.load(Ordering::Relaxed);
            std::thread::sleep(STUCK);
            // Relaxed: as above.
            let now = round.load(Ordering::Relaxed);
            if now == u64::MAX {
                return;
            }
            if now == before {
                eprintln!("round {now} hangs");
                std::process::abort();
            }
        }
    });
}

fn run(mut ends: impl FnMut() -> (Channel, Channel)) {
    let count = Arc::new(AtomicU64::new(0));
    watch(&count);
    let (mut calm, mut failed) = (0, 0);
    rounds(|random, round| {
        // Relaxed: a count alone.
        count.store(round, Ordering::Relaxed);
        let _windows = WINDOWS.read().unwrap_or_else(PoisonError::into_inner);
        let (ours, theirs) = ends();
        let ((sender, receiver), theirs) = (ours.split().unwrap(), theirs.split().unwrap());
        // Now and then an honest one: the calls of this test are right.
        let hostility = [0, 3, 10, 40][random.below(4)];
        let seed = Random::new(random.number());
        std::thread::scope(|scope| {
            let node = scope.spawn(move || be_node(seed, theirs, hostility));
            let session = Session::new(welcome(), sender, receiver).unwrap();
            let errors = be_program(random, &session);
            if hostility == 0 && session.sticky() != UNAVAILABLE {
                assert_eq!(errors, 0, "an honest node");
                calm += 1;
            }
            failed += usize::from(errors > 0);
            drop(session);
            node.join().unwrap();
        });
    });
    // Relaxed: as above.
    count.store(u64::MAX, Ordering::Relaxed);
    assert!(calm > 0 && failed > 0, "{calm} rounds went well, {failed} did not");
}

#[test]
fn a_node_that_sends_anything_over_shared_memory_harms_no_program() {
    let rings = Rings { ring_bytes: 256 << 10, body_bytes_max: 64 << 10 };
    run(|| pair(rings).unwrap());
}

#[test]
fn a_node_that_sends_anything_over_tcp_harms_no_program() {
    let limits = PeerLimits { body_bytes_max: 0, runs_max: 1, streams_max: 1 };
    let identity =
        ServerIdentity { node: NodeId(0), pool: PoolId::ANY, key: None, features: Features(0), limits };
    let address: Address = "tcp:127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(&address, identity, ChannelOptions::default()).unwrap();
    let place = listener.address();
    let client = ClientIdentity {
        role: Role::Client,
        node: NodeId(0),
        pool: PoolId::ANY,
        key: None,
        features: Features(0),
        join: None,
    };
    run(|| {
        std::thread::scope(|scope| {
            let admitted = scope
                .spawn(|| listener.accept(Some(STUCK)).unwrap().expect("a client comes").admit().unwrap().0);
            let ours = connect(&place, &client, ChannelOptions::default()).unwrap();
            (ours, admitted.join().unwrap())
        })
    });
}

#[test]
fn a_node_that_greets_with_anything_is_believed_or_refused() {
    let seed = postcard::to_allocvec(&welcome()).unwrap();
    let rings = Rings { ring_bytes: 64 << 10, body_bytes_max: 16 << 10 };
    let (mut believed, mut refused) = (0, 0);
    mutate::fuzz(&[seed], |random, bytes| {
        let Ok(greeting) = postcard::from_bytes::<Welcome>(&bytes) else { return };
        let (ours, theirs) = pair(rings).unwrap();
        let (sender, receiver) = ours.split().unwrap();
        let _alone = WINDOWS.write().unwrap_or_else(PoisonError::into_inner);
        let Ok(session) = Session::new(greeting, sender, receiver) else {
            refused += 1;
            return;
        };
        believed += 1;
        drop(theirs);
        // The node is gone; what it said of itself is looked at all the same.
        for number in 0..3 {
            let _ = (session.device(number).is_ok(), session.attribute(number, random.below(120) as i32));
            let _ = session.memory_left(number);
            let _ = session.allocate(Owner::primary(number), random.number() >> random.below(64));
        }
        let _ = session.synchronize_all();
    });
    assert!(believed > 0 && refused > 0);
}

/// A length or an alignment that a program may pass.
fn any_bytes(random: &mut Random) -> u64 {
    match random.below(8) {
        0 => GRANULE.wrapping_neg(),
        1 => u64::MAX - random.number() % GRANULE,
        2 => 0,
        3 => random.number() >> random.below(64),
        4 => 1 << random.below(64),
        _ => GRANULE * (1 + random.below(3) as u64),
    }
}

/// Ranges that a program has, whatever they are for: none may share an address with another.
fn check_apart(ranges: &[(u64, u64)]) {
    let mut ranges = ranges.to_vec();
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        assert!(pair[0].0 + pair[0].1 <= pair[1].0, "ranges overlap: {ranges:x?}");
    }
}

/// Calls about addresses with numbers of all kinds; what the program has is counted here, too.
fn be_careless(random: &mut Random, session: &Session) {
    let mut reserved: Vec<(u64, u64)> = Vec::new();
    let mut allocated: Vec<(u64, u64)> = Vec::new();
    let pick = |random: &mut Random, from: &[(u64, u64)]| from.get(random.below(from.len())).copied();
    for _ in 0..40 {
        match random.below(5) {
            0 | 1 => {
                let (bytes, alignment) = (any_bytes(random), any_bytes(random));
                let alignment = if random.below(2) == 0 { 0 } else { alignment };
                if let Ok(start) = session.reserve_addresses(bytes, alignment) {
                    assert!(bytes > 0 && bytes <= session.welcome.window_bytes, "{bytes:#x} were reserved");
                    reserved.push((start, bytes));
                }
            }
            2 => {
                let bytes = GRANULE * (1 + random.below(2) as u64);
                allocated.extend(session.allocate(HERE, bytes).ok().map(|start| (start, bytes)));
            }
            3 => {
                let of = if random.below(2) == 0 { &reserved } else { &allocated };
                let Some((start, bytes)) = pick(random, of) else { continue };
                let (start, bytes) = match random.below(4) {
                    0 => (start.wrapping_add(any_bytes(random)), bytes),
                    1 => (start, any_bytes(random)),
                    _ => (start, bytes),
                };
                let before = reserved.len();
                reserved.retain(|one| *one != (start, bytes));
                let is_right = reserved.len() < before;
                assert_eq!(
                    session.release_addresses(start, bytes).is_ok(),
                    is_right,
                    "{start:#x}+{bytes:#x}"
                );
                assert_eq!(session.release_addresses(start, bytes), Err(INVALID_VALUE), "it is gone");
            }
            _ => {
                if let Some(one) = pick(random, &allocated) {
                    allocated.retain(|other| *other != one);
                    session.free(one.0).unwrap();
                }
            }
        }
        check_apart(&[reserved.clone(), allocated.clone()].concat());
    }
}

#[test]
fn a_program_that_passes_any_addresses_gets_no_range_twice() {
    let rings = Rings { ring_bytes: 256 << 10, body_bytes_max: 64 << 10 };
    rounds(|random, _| {
        let _windows = WINDOWS.read().unwrap_or_else(PoisonError::into_inner);
        let (ours, theirs) = pair(rings).unwrap();
        let ((sender, receiver), theirs) = (ours.split().unwrap(), theirs.split().unwrap());
        std::thread::scope(|scope| {
            let node = scope.spawn(move || be_node(Random::new(0), theirs, 0));
            let session = Session::new(welcome(), sender, receiver).unwrap();
            be_careless(random, &session);
            drop(session);
            node.join().unwrap();
        });
    });
}

#[test]
fn pieces_are_mapped_and_unmapped_whole_and_only_where_addresses_are_reserved() {
    with_honest_node(|session| {
        let start = session.reserve_addresses(2 * GRANULE, 0).unwrap();
        let (large, small) =
            (session.create_piece(0, 2 * GRANULE).unwrap(), session.create_piece(0, GRANULE).unwrap());
        for wrong in
            [start + GRANULE, start + 2 * GRANULE, start - GRANULE, GRANULE, 0_u64.wrapping_sub(GRANULE)]
        {
            assert_eq!(session.map_piece(large, wrong, 2 * GRANULE), Err(INVALID_VALUE), "{wrong:#x}");
        }
        session.map_piece(large, start, 2 * GRANULE).unwrap();
        assert_eq!(
            session.map_piece(small, start + GRANULE, GRANULE),
            Err(INVALID_VALUE),
            "the place is taken"
        );
        assert_eq!(
            session.release_addresses(start, 2 * GRANULE),
            Err(INVALID_VALUE),
            "memory is mapped there"
        );
        for (wrong, bytes) in [(start, GRANULE), (start + GRANULE, GRANULE), (start, 0), (start, u64::MAX)] {
            assert_eq!(session.unmap_range(wrong, bytes), Err(INVALID_VALUE), "{wrong:#x}+{bytes:#x}");
        }
        session.unmap_range(start, 2 * GRANULE).unwrap();
        session.release_addresses(start, 2 * GRANULE).unwrap();
        assert_eq!(
            session.map_piece(large, start, 2 * GRANULE),
            Err(INVALID_VALUE),
            "nothing is reserved any more"
        );
    });
}

#[test]
fn a_function_behind_work_that_was_lost_is_called_with_the_error_and_the_rest_of_the_program_goes_on() {
    let _windows = WINDOWS.read().unwrap_or_else(PoisonError::into_inner);
    let (ours, theirs) = pair(Rings { ring_bytes: 256 << 10, body_bytes_max: 64 << 10 }).unwrap();
    let (sender, receiver) = ours.split().unwrap();
    // The thread that calls has it for ever.
    let session: &'static Session = Box::leak(Box::new(Session::new(welcome(), sender, receiver).unwrap()));
    let (stream, event) =
        (session.create_stream(HERE, 0, 0).unwrap(), session.create_event(HERE, 0).unwrap());
    session.record_event(&event, &stream, 0).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    for number in 0..3 {
        let tell = tell.clone();
        let call = move |code| tell.send((number, code)).unwrap();
        session.call_in_order(&stream, Box::new(call)).unwrap();
    }
    assert_eq!(session.is_stream_done(&stream), Ok(false));
    drop(theirs);
    for number in 0..3 {
        assert_eq!(told.recv_timeout(STUCK), Ok((number, UNAVAILABLE)));
    }
    assert_eq!(session.synchronize_stream(&stream), Err(UNAVAILABLE));
}

/// Answers a command, once it has come, and what came before it as an honest node does.
fn answer_one(
    (sender, receiver): &mut (Sender, Receiver),
    mut answers: impl FnMut(&Command) -> Option<Vec<(u32, Vec<u8>)>>,
) {
    loop {
        assert!(receiver.wait(Some(STUCK)).unwrap(), "the command does not come");
        let frame = receiver.next().unwrap().unwrap();
        let Ok(command) = Command::read(frame.word(), frame.head(), frame.len()) else { continue };
        drop(frame);
        let special = answers(&command);
        let is_last = special.is_some();
        for (word, body) in special.unwrap_or_else(|| honest(&command)) {
            assert!(sender.wait_room(body.len(), Some(STUCK)).unwrap());
            let mut room = sender.room(word, body.len()).unwrap().unwrap();
            room.append(&body).unwrap();
            room.commit();
            sender.flush().unwrap();
        }
        if is_last {
            return;
        }
    }
}

fn fault(error: i32, sticky: u32) -> (u32, Vec<u8>) {
    answer(&Fault { error, library: library::DRIVER, sticky, command: 0 }, b"something went wrong")
}

#[test]
fn a_fault_in_front_of_a_record_of_a_graph_is_told_to_who_asks_for_the_event() {
    let _windows = WINDOWS.read().unwrap_or_else(PoisonError::into_inner);
    let (ours, theirs) = pair(Rings { ring_bytes: 256 << 10, body_bytes_max: 64 << 10 }).unwrap();
    let ((sender, receiver), mut theirs) = (ours.split().unwrap(), theirs.split().unwrap());
    let session = Session::new(welcome(), sender, receiver).unwrap();
    let (stream, event) =
        (session.create_stream(HERE, 0, 0).unwrap(), session.create_event(HERE, 0).unwrap());
    session.note_records(&[event.number], &stream, 1000);
    assert_eq!(session.is_event_done(&event), Ok(false));
    answer_one(&mut theirs, |command| match command {
        Command::MarkEvent(c) => {
            Some(vec![fault(700, 1), answer(&Reached { mark: c.mark, error: 700 }, &[])])
        }
        _ => None,
    });
    assert_eq!(session.is_event_done(&event), Err(700), "its bytes are not there");
}

#[test]
fn a_copy_that_fails_is_told_by_its_own_call_and_no_other() {
    let _windows = WINDOWS.read().unwrap_or_else(PoisonError::into_inner);
    let (ours, theirs) = pair(Rings { ring_bytes: 256 << 10, body_bytes_max: 64 << 10 }).unwrap();
    let ((sender, receiver), mut theirs) = (ours.split().unwrap(), theirs.split().unwrap());
    let session = Session::new(welcome(), sender, receiver).unwrap();
    let stream = session.create_stream(HERE, 0, 0).unwrap();
    let memory = session.allocate(HERE, 64).unwrap();
    let far = std::ptr::with_exposed_provenance(memory as usize);
    let mut bytes = [0_u8; 64];
    std::thread::scope(|scope| {
        scope.spawn(move || {
            answer_one(&mut theirs, |command| match command {
                Command::CopyOut(c) => {
                    let none = Bytes { transfer: c.transfer, error: 2, offset: 0 };
                    Some(vec![fault(2, 0), answer(&none, &[])])
                }
                _ => None,
            });
            answer_one(&mut theirs, |command| {
                matches!(command, Command::MarkStream(_)).then(|| honest(command))
            });
        });
        assert_eq!(session.copy(&stream, bytes.as_mut_ptr().cast(), far, 64), Err(2));
        assert_eq!(session.synchronize_stream(&stream), Ok(()), "it was told");
    });
}

/// All commands that lie in a channel whose other end is gone.
fn all_sent((_, mut receiver): (Sender, Receiver)) -> Vec<Command> {
    let mut all = Vec::new();
    while receiver.wait(Some(STUCK)).unwrap_or(false) {
        let Ok(Some(frame)) = receiver.next() else { break };
        all.extend(Command::read(frame.word(), frame.head(), frame.len()).ok());
    }
    all
}

/// The commands that a session sends which nobody answers.
pub(crate) fn sent_by(work: impl FnOnce(&Session)) -> Vec<Command> {
    let _windows = WINDOWS.read().unwrap_or_else(PoisonError::into_inner);
    let (ours, theirs) = pair(Rings { ring_bytes: 256 << 10, body_bytes_max: 64 << 10 }).unwrap();
    let ((sender, receiver), theirs) = (ours.split().unwrap(), theirs.split().unwrap());
    let session = Session::new(welcome(), sender, receiver).unwrap();
    work(&session);
    drop(session);
    all_sent(theirs)
}

#[test]
fn a_graph_that_is_changed_and_made_ready_again_and_again_leaves_nothing_at_the_node() {
    const TIMES: usize = 40;
    let _windows = WINDOWS.read().unwrap_or_else(PoisonError::into_inner);
    let (ours, theirs) = pair(Rings { ring_bytes: 256 << 10, body_bytes_max: 64 << 10 }).unwrap();
    let ((sender, receiver), theirs) = (ours.split().unwrap(), theirs.split().unwrap());
    let session = Session::new(welcome(), sender, receiver).unwrap();
    let graph = session.add_graph(HERE, 0).unwrap();
    let empty = || Node::own(NodeKind::Empty, List::default(), Given::Nothing);
    let (first, second) =
        (session.add_node(&graph, &[], empty()).unwrap(), session.add_node(&graph, &[], empty()).unwrap());
    let exec = session.instantiate(&graph, 0).unwrap();
    let filled = || {
        let mut list = List::default();
        let fill = Fill { stream: 0, element: 1, address: 0, count: 0, value: 0 };
        list.push(0, None, &fill, 0, |_| ()).unwrap();
        Node::own(NodeKind::Fill, list, Given::Nothing)
    };
    for round in 0..TIMES {
        session.change_edges(&graph, &[first], &[second], round % 2 == 1).unwrap();
        session.add_node(&graph, &[second], filled()).unwrap();
        session.update_exec(exec, &graph).unwrap();
    }
    session.destroy_exec(exec).unwrap();
    session.destroy_graph(graph.number).unwrap();
    drop(session);
    let commands = all_sent(theirs);
    let count = |is_one: fn(&Command) -> bool| commands.iter().filter(|command| is_one(command)).count();
    let made = count(|command| matches!(command, Command::Graph(_)));
    let ended = count(|command| matches!(command, Command::GraphDestroy(_)));
    assert_eq!(made, TIMES + 1);
    // Some stay as what later ones are sent as edits of.
    assert!(made - ended <= 8, "{} graphs are left", made - ended);
}

#[test]
fn a_graph_is_sent_whole_when_the_node_refused_the_one_that_it_differs_from() {
    let _windows = WINDOWS.read().unwrap_or_else(PoisonError::into_inner);
    let (ours, theirs) = pair(Rings { ring_bytes: 256 << 10, body_bytes_max: 64 << 10 }).unwrap();
    let ((sender, receiver), mut theirs) = (ours.split().unwrap(), theirs.split().unwrap());
    let session = Session::new(welcome(), sender, receiver).unwrap();
    let node = |value| {
        let mut list = List::default();
        for value in [0, value] {
            let fill = Fill { stream: 0, element: 1, address: 0, count: 0, value };
            list.push(0, None, &fill, 0, |_| ()).unwrap();
        }
        Node::own(NodeKind::Fill, list, Given::Nothing)
    };
    let graph = session.add_graph(HERE, 0).unwrap();
    let only = session.add_node(&graph, &[], node(1)).unwrap();
    let exec = session.instantiate(&graph, 0).unwrap();
    let mut count = 0;
    // The base of the next list; refuses its last command if it is told to.
    let mut base = |is_refused: bool| {
        let mut base = 0;
        answer_one(&mut theirs, |command| {
            count += 1;
            match command {
                Command::Graph(head) => {
                    base = head.base;
                    None
                }
                Command::GraphPart(_) => {
                    let words = Fault { error: 1, library: library::DRIVER, sticky: 0, command: count };
                    Some(if is_refused { vec![answer(&words, b"no")] } else { Vec::new() })
                }
                _ => None,
            }
        });
        base
    };
    assert_eq!(base(false), 0);
    session.change_node(only, node(2)).unwrap();
    session.instantiate(&graph, 0).unwrap();
    assert_eq!(base(true), 1, "the first one is at the node");
    session.change_node(only, node(3)).unwrap();
    session.instantiate(&graph, 0).unwrap();
    assert_eq!(base(true), 1);
    // What was refused is sent again when it is needed again.
    session.instantiate(&graph, 0).unwrap();
    assert_eq!(base(false), 1);
    session.change_node(only, node(4)).unwrap();
    session.instantiate(&graph, 0).unwrap();
    assert_eq!(base(false), 3);
    session.destroy_exec(exec).unwrap();
}

#[test]
fn faults_of_commands_that_cannot_be_counted_are_faults_and_no_more() {
    let _windows = WINDOWS.read().unwrap_or_else(PoisonError::into_inner);
    let (ours, theirs) = pair(Rings { ring_bytes: 256 << 10, body_bytes_max: 64 << 10 }).unwrap();
    let ((sender, receiver), mut theirs) = (ours.split().unwrap(), theirs.split().unwrap());
    let session = Session::new(welcome(), sender, receiver).unwrap();
    session.create_stream(HERE, 0, 0).unwrap();
    session.flush().unwrap();
    let said = |command| {
        answer(&Fault { error: 1, library: library::DRIVER, sticky: 0, command }, b"something went wrong")
    };
    answer_one(&mut theirs, |_| Some([u64::MAX, 0, u64::MAX].map(said).to_vec()));
    session.inbox.drain().unwrap();
    assert_eq!(session.inbox.surface(), Err(1));
}

#[test]
fn memory_that_small_pieces_had_is_there_for_a_large_one_when_they_are_freed() {
    // The honest node grants no more than so much.
    const GRANULES: u64 = 2 * MEMORY / GRANULE;
    with_honest_node(|session| {
        let small: Vec<u64> =
            (0..(GRANULES - 1) * 4).map(|_| session.allocate(HERE, GRANULE / 4).unwrap()).collect();
        for address in small {
            session.free(address).unwrap();
        }
        let large = session.allocate(HERE, (GRANULES - 2) * GRANULE).unwrap();
        session.free(large).unwrap();
        // One stays, so that who takes and frees one piece after the other sends nothing.
        let before = session.counters()[1];
        for _ in 0..3 {
            let one = session.allocate(HERE, GRANULE / 4).unwrap();
            session.free(one).unwrap();
        }
        assert_eq!(session.counters()[1], before);
    });
}

/// Code with a kernel and a variable.
const CODE: &CStr = c".version 8.0
.target sm_75
.address_size 64
.visible .global .align 4 .b32 counted;
.visible .global .align 4 .b32 other;
.visible .entry once()
{
ret;
}
";

pub(super) fn load(session: &Session) -> (u32, Arc<Kernel>) {
    // SAFETY: text that ends with a zero byte.
    let binary = unsafe { Binary::copy_of(CODE.as_ptr().cast()) }.unwrap();
    let number = session.modules.add_binary(binary).unwrap();
    let name = session.modules.name_function(&session.modules.binary(number).unwrap(), "once").unwrap();
    let kernel = session.kernel(&session.modules.function(name).unwrap(), HERE).unwrap();
    session.note_kernel(kernel.function, 0x1000);
    (number, kernel)
}

#[test]
fn code_that_is_unloaded_leaves_nothing_here() {
    with_honest_node(|session| {
        let (number, kernel) = load(session);
        assert!(session.noted_kernel(kernel.function).is_some() && session.modules.has_unasked());
        session.unload(&session.remove_binary(number).unwrap()).unwrap();
        assert_eq!(session.noted_kernel(kernel.function), None);
        assert!(!session.modules.has_unasked());
    });
}

#[test]
fn a_kernel_of_a_graph_has_its_clusters_also_with_other_parameters() {
    with_honest_node(|session| {
        let (_, kernel) = load(session);
        let stream = session.create_stream(HERE, 0, 0).unwrap();
        let flags = launch_flags::CLUSTER | launch_flags::PROGRAMMATIC;
        let first = Geometry { grid: [4, 1, 1], block: [32, 1, 1], shared: 0, cluster: [2, 1, 1], flags };
        let launch = |stream: &Arc<Stream>, geometry: &Geometry| {
            // SAFETY: the kernel has no parameters.
            unsafe { session.launch(&kernel, stream, geometry, Parameters::Block(std::ptr::null(), 0)) }
        };
        session.begin_capture(&stream, CaptureMode::Relaxed).unwrap();
        launch(&stream, &first).unwrap();
        let graph = session.end_capture(&stream).unwrap();
        let node = session.nodes(&graph).unwrap()[0];
        let exec = session.instantiate(&graph, 0).unwrap();
        let other = |groups: u32| {
            let plain = Geometry { grid: [groups, 1, 1], block: [64, 1, 1], ..Geometry::default() };
            let list = session.commands_of(HERE, |stream| launch(stream, &plain)).unwrap();
            Node::own(NodeKind::Kernel, list, Given::Nothing)
        };
        session.change_exec_node(exec, node, &other(8)).unwrap();
        session.change_node(node, other(6)).unwrap();
        let of = |list: &List| {
            let mut frames = (0..list.entries.len()).map(|index| list.frame(index));
            let (_, body) = frames.find(|(word, _)| *word == Launch::WORD).unwrap();
            let launch = Launch::take(body);
            (launch.grid[0], launch.block[0], launch.cluster, launch.flags)
        };
        session
            .with_instance(exec, |does| {
                assert_eq!(of(&does.definition().done()), (8, 64, [2, 1, 1], flags));
                Ok(())
            })
            .unwrap();
        assert_eq!(of(&session.list_of(&graph).unwrap()), (6, 64, [2, 1, 1], flags));
        assert_eq!(session.change_node(node, other(7)), Err(INVALID_VALUE), "no whole clusters");
        assert_eq!(session.change_exec_node(exec, node, &other(7)), Err(INVALID_VALUE));
    });
}

/// Asks where a variable of a module is, of a node that says one address after the other.
fn variable_at(addresses: &[u64], check: impl FnOnce(&Session, Result<(u64, u64), Code>)) {
    let _windows = WINDOWS.read().unwrap_or_else(PoisonError::into_inner);
    let (ours, theirs) = pair(Rings { ring_bytes: 256 << 10, body_bytes_max: 64 << 10 }).unwrap();
    let ((sender, receiver), mut theirs) = (ours.split().unwrap(), theirs.split().unwrap());
    let session = Session::new(welcome(), sender, receiver).unwrap();
    let (number, _) = load(&session);
    let binary = session.modules.binary(number).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for address in addresses {
                answer_one(&mut theirs, |command| match command {
                    Command::AskSymbol(c) => {
                        let place = [*address, 4].map(u64::to_le_bytes).concat();
                        Some(vec![answer(&Answer { question: c.question, error: 0 }, &place)])
                    }
                    _ => None,
                });
            }
        });
        let found = session.symbol(&binary, HERE, "counted");
        check(&session, found);
    });
}

#[test]
fn memory_of_the_program_is_not_taken_for_a_variable_of_the_node_nor_comes_to_lie_there() {
    const PAGE: usize = 4096;
    let own = Mapping::reserve(None, PAGE).unwrap();
    let address = own.address();
    variable_at(&[address + 64], |session, found| {
        assert_eq!(found, Err(ALREADY_MAPPED));
        assert!(!session.is_device_address(address + 64), "it is the program's");
    });
    // Far from where the kernel puts what asks for no address.
    let free = 0x3000_0000_0000;
    variable_at(&[free + 64, free + 128], |session, found| {
        assert_eq!(found, Ok((free + 64, 4)));
        assert!(session.is_device_address(free + 64));
        assert!(Mapping::reserve(Some(free), PAGE).is_err(), "nothing of the program may lie there");
        assert!(session.is_device_address(free + 128), "another variable, which a kernel named");
    });
    assert!(Mapping::reserve(Some(free), PAGE).is_ok(), "the session is over");
}

#[test]
fn what_the_node_refused_of_an_instance_is_told_again_when_it_is_wanted_again() {
    let _windows = WINDOWS.read().unwrap_or_else(PoisonError::into_inner);
    let (ours, theirs) = pair(Rings { ring_bytes: 256 << 10, body_bytes_max: 64 << 10 }).unwrap();
    let ((sender, receiver), mut theirs) = (ours.split().unwrap(), theirs.split().unwrap());
    let session = Session::new(welcome(), sender, receiver).unwrap();
    let node = |value| {
        let mut list = List::default();
        let fill = Fill { stream: 0, element: 1, address: 0, count: 0, value };
        list.push(0, None, &fill, 0, |_| ()).unwrap();
        Node::own(NodeKind::Fill, list, Given::Nothing)
    };
    let is_update = |command: &Command| matches!(command, Command::GraphUpdate(_));
    let is_made = |command: &Command| matches!(command, Command::GraphInstantiate(_));
    let mut count = 0;
    // What is sent up to a command of a kind, which the node refuses if it is told to.
    let mut until = |is_last: fn(&Command) -> bool, is_refused: bool| {
        let mut seen = Vec::new();
        session.flush().unwrap();
        answer_one(&mut theirs, |command| {
            count += 1;
            seen.push(*command);
            let words = Fault { error: 1, library: library::DRIVER, sticky: 0, command: count };
            let answers = if is_refused { vec![answer(&words, b"no")] } else { Vec::new() };
            is_last(command).then_some(answers)
        });
        seen
    };
    let graph = session.add_graph(HERE, 0).unwrap();
    session.add_node(&graph, &[], node(1)).unwrap();
    let exec = session.instantiate(&graph, 0).unwrap();
    until(is_made, false);
    session.add_node(&graph, &[], node(2)).unwrap();
    session.update_exec(exec, &graph).unwrap();
    until(is_update, true);
    // The same again, and once more, of which the node has nothing to hear.
    session.update_exec(exec, &graph).unwrap();
    session.update_exec(exec, &graph).unwrap();
    let other = session.instantiate(&graph, 0).unwrap();
    assert_eq!(until(is_made, true).iter().filter(|command| is_update(command)).count(), 1);
    // One that the node did not make is made, and neither updated nor ended; also if it was updated before that was known.
    session.update_exec(other, &graph).unwrap();
    session.add_node(&graph, &[], node(3)).unwrap();
    session.update_exec(other, &graph).unwrap();
    until(is_made, true);
    until(is_update, true);
    session.update_exec(other, &graph).unwrap();
    session.destroy_exec(other).unwrap();
    // A list that the node was told to forget meanwhile is sent once more.
    session.add_node(&graph, &[], node(4)).unwrap();
    session.update_exec(exec, &graph).unwrap();
    let is_end = |command: &Command| matches!(command, Command::GraphExecDestroy(_));
    assert_eq!(until(is_update, true).iter().filter(|command| is_end(command)).count(), 1);
    for value in 5..14 {
        session.add_node(&graph, &[], node(value)).unwrap();
        session.instantiate(&graph, 0).unwrap();
    }
    let known = session.instances.execs.get(exec).unwrap();
    known.with(|does| session.make_ready(does, 0)).unwrap();
    session.destroy_exec(exec).unwrap();
    drop((known, session));
    let rest = all_sent(theirs);
    let count = |is_one: fn(&Command) -> bool| rest.iter().filter(|command| is_one(command)).count();
    assert_eq!((count(is_update), count(is_made)), (1, 9));
    let is_sent = |update: &GraphUpdate| {
        rest.iter().any(|command| matches!(command, Command::Graph(head) if head.graph == update.graph))
    };
    assert!(rest.iter().all(|command| !matches!(command, Command::GraphUpdate(update) if !is_sent(update))));
    assert_eq!(count(is_end), 1);
}
