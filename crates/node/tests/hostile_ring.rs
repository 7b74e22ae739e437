//! A client that writes anything anywhere into the rings that it shares with a node and reads nothing of them: other
//! sessions are served as before, and what it held is free when its session ends.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[allow(dead_code, reason = "other tests use the rest")]
mod ground;

use ground::{Ground, Random, name};
use hinterland_os::{MapOptions, MemoryFile, SharedSlice};
use hinterland_pool::{Pool, PutOptions, Session};
use hinterland_proto::control::{AllocationKind, LockMode, Placement, Reply, Request, encode};
use hinterland_ring::{BODY_BYTES, Requester, SLOTS_MAX, WakeBy, session_bytes};
use hinterland_types::{ByteRange, GlobalAddress, Handle, ObjectId, Rights};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Hostile sessions of the run, each with both rings and a seed of its own.
const ROUNDS: u64 = 100;
/// Writes of a session, each to one place or to all of them.
const WRITES: u64 = 60;
/// Name that the hostile client has taken before it begins.
const HELD_NAME: &str = "hostile/half";

/// The memory of one ring as its client has it.
struct Shared {
    whole: SharedSlice,
    /// Bytes of header and slots, what follows them are messages.
    rings: usize,
    slots: u32,
}

impl Shared {
    /// Asks for a ring and maps all of it for writing.
    fn open(session: &Session, request: &Request) -> Self {
        let (reply, mut descriptors) = session.call_with(request, &[]).unwrap();
        let slots = match reply {
            Reply::RingOpened { slots } | Reply::FarRingOpened { slots, .. } => slots,
            other => panic!("{other:?}"),
        };
        assert!(slots <= SLOTS_MAX);
        let file = MemoryFile::from_descriptor(descriptors.remove(0)).unwrap();
        let options = MapOptions { write: true, ..MapOptions::default() };
        let bytes = usize::try_from(file.len()).unwrap();
        let whole = Arc::new(file.map(0, bytes, options).unwrap()).slice();
        Self { whole, rings: session_bytes(slots).unwrap(), slots }
    }

    /// The end that asks, as an honest client would make it, if its header still says that it is a ring.
    fn requester(&self) -> Option<Requester> {
        let session = hinterland_ring::Session::attach(self.whole.clone(), self.slots).ok()?;
        Some(Requester::new(session, WakeBy::Futex))
    }

    /// Overwrites one word of the header or of a slot, or a piece of anything.
    fn scribble(&self, random: &mut Random) {
        let place = random.below(self.rings as u64 - 4) as usize & !3;
        let mut word = [0; 4];
        match random.below(5) {
            0 => word = (random.next() as u32).to_le_bytes(),
            1 => {
                let from = random.below(self.rings as u64 - 4) as usize & !3;
                self.whole.read_at(from, &mut word).unwrap();
            }
            2 => word = (random.below(2 * u64::from(self.slots)) as u32).to_le_bytes(),
            3 => word = [0xff; 4],
            _ => {
                let count = random.below(5000) as usize;
                let bytes: Vec<u8> = std::iter::repeat_with(|| random.next() as u8).take(count).collect();
                let at = random.below((self.whole.len() - bytes.len()) as u64) as usize;
                return self.whole.write_at(at, &bytes).unwrap();
            }
        }
        self.whole.write_at(place, &word).unwrap();
    }

    /// Garbage over all of it, header included; behind the slots it repeats itself.
    fn drown(&self, random: &mut Random) {
        let mut garbage = vec![0; self.rings];
        garbage.chunks_mut(8).for_each(|to| to.copy_from_slice(&random.next().to_le_bytes()[..to.len()]));
        let bytes: Vec<u8> = garbage.iter().copied().cycle().take(self.whole.len()).collect();
        self.whole.write_at(0, &bytes).unwrap();
    }

    /// A request in order, but for a body that lies about its form, its cell, its offset or its lengths.
    fn lie(&self, random: &mut Random, requester: &mut Requester) {
        let requests = requests(random);
        let message = encode(&requests[random.below(requests.len() as u64) as usize]).unwrap();
        let data = self.rings.next_multiple_of(4096);
        // The first cell, and the first bytes of the data of a far ring.
        self.whole.write_at(data, &message).unwrap();
        let mut body = [0; BODY_BYTES];
        body[0] = [1, 2, 1, 16, 17, 18, 19, 20, random.next() as u8][random.below(9) as usize];
        for place in [2, 4, 8, 12] {
            let number = match random.below(6) {
                0 => u32::MAX,
                1 => random.next() as u32,
                2 => 1 << random.below(32),
                3 => message.len() as u32 + 1,
                4 => message.len() as u32,
                _ => 0,
            };
            body[place..place + 4].copy_from_slice(&number.to_le_bytes());
        }
        if random.below(2) == 0 && message.len() <= BODY_BYTES - 8 {
            body[1] = [message.len() as u8, 0xff][random.below(2) as usize];
            body[8..8 + message.len()].copy_from_slice(&message);
        }
        // A ring that is full, or broken, is what this is about.
        drop(requester.submit(&body));
        requester.flush();
    }
}

/// Requests with numbers that are nobody's, or another's.
fn requests(random: &mut Random) -> Vec<Request> {
    let bytes = [0, 1, 4096, 1 << 20, 1 << 40, u64::MAX][random.below(6) as usize];
    let address = GlobalAddress::new(random.below(1 << 30) & !7).unwrap();
    let range = ByteRange::new(random.below(1 << 20), random.below(1 << 30)).unwrap();
    let handle = Handle(random.below(8) as u32);
    vec![
        Request::Status,
        Request::List { prefix: String::new(), after: None, limit: random.next() as u32 },
        Request::PutBegin {
            name: name(&format!("hostile/{}", random.below(20))),
            bytes: Some(random.below(1 << 20)),
            copies: 1,
            placement: Placement::Policy,
        },
        Request::PutGrow { object: ObjectId(random.below(20)), bytes },
        Request::PutSeal { object: ObjectId(random.below(20)), bytes, digest: [3; 32] },
        Request::PutAbort { object: ObjectId(random.below(20)) },
        Request::Open { name: name("kept"), rights: Rights::READ },
        Request::Diminish { handle, rights: Rights::READ, range },
        Request::Revoke { handle },
        Request::Close { handle },
        Request::Lock { address, mode: LockMode::Write, wait_ms: random.below(50) as u32 },
        Request::Unlock { address },
        Request::Free { address },
        Request::OpenRing,
    ]
}

/// What an honest program does meanwhile; every step must succeed, and say what is true.
fn work(pool: &Pool, round: u64) {
    let object = name(&format!("calm/{}", round % 5));
    let data: Vec<u8> = (0..70_000u64).map(|byte| (byte ^ round) as u8).collect();
    let options = PutOptions { bytes: Some(data.len() as u64), ..PutOptions::default() };
    pool.put(&mut &data[..], &object, &options, &mut |_| {}).unwrap();
    let opened = pool.open(&object, Rights::READ).unwrap();
    let mut back = vec![0; data.len()];
    opened.read_at(0, &mut back).unwrap();
    assert!(back == data, "round {round}: other bytes were read");
    back.fill(0);
    opened.memory().unwrap().read_at(0, &mut back).unwrap();
    assert!(back == data, "round {round}: other bytes are mapped");
    drop(opened);
    pool.remove(&object).unwrap();
    pool.session().call(&Request::Ping).unwrap();
}

/// One hostile session: takes some of everything, then writes into its rings; the lock that it has.
fn attack(ground: &Ground, locked: GlobalAddress, seed: u64) {
    let mut random = Random(seed);
    let session = ground.session();
    let begin = Request::PutBegin {
        name: name(HELD_NAME),
        bytes: Some(1 << 20),
        copies: 1,
        placement: Placement::Policy,
    };
    // It has them before it writes the first wrong byte: nobody else may be in the way.
    assert!(matches!(session.call(&begin).unwrap(), Reply::PutStarted(_)));
    session.call(&Request::Lock { address: locked, mode: LockMode::Write, wait_ms: 0 }).unwrap();
    session.call(&Request::Allocate { bytes: 1 << 20, kind: AllocationKind::Session }).unwrap();
    session.call(&Request::Open { name: name("kept"), rights: Rights::READ }).unwrap();
    let rings = [&Request::OpenRing, &Request::OpenFarRing].map(|request| Shared::open(&session, request));
    let mut requesters = rings.each_ref().map(Shared::requester);
    // A third of them only lie, so that the node goes on believing the ring.
    let is_subtle = random.below(3) == 0;
    for _ in 0..WRITES {
        let which = random.below(2) as usize;
        match (random.below(12), &mut requesters[which]) {
            (0, _) if !is_subtle => rings[which].drown(&mut random),
            (1..=5, _) if !is_subtle => rings[which].scribble(&mut random),
            (_, Some(requester)) => rings[which].lie(&mut random, requester),
            (_, None) => {}
        }
    }
    // Half of them leave the socket open until the node has had time to read what they wrote.
    if random.below(2) == 0 {
        drop(session.call(&Request::Ping));
    }
}

#[test]
fn rings_full_of_lies_disturb_nobody_and_leave_nothing() {
    let ground = Ground::new("lying-ring");
    let other = ground.pool();
    ground.put(&other, "kept", 300_000);
    let (locked, _) = other.allocate(64, AllocationKind::Session).unwrap();
    let (over, worked) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let calm = scope.spawn(|| {
            let pool = ground.pool();
            // Relaxed, here and below: a flag and a count that order nothing.
            while !over.load(Ordering::Relaxed) {
                work(&pool, worked.fetch_add(1, Ordering::Relaxed));
            }
        });
        for seed in 0..ROUNDS {
            attack(&ground, locked, seed);
            // Its lock and its name are free as soon as the node has noticed.
            other
                .lock(locked, LockMode::Write, 20_000)
                .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            other.unlock(locked).unwrap();
            take_name(&other, seed);
            if calm.is_finished() {
                break;
            }
        }
        over.store(true, Ordering::Relaxed);
        calm.join().unwrap();
    });
    let worked = worked.load(Ordering::Relaxed);
    eprintln!("{ROUNDS} hostile sessions, {worked} rounds of another");
    assert!(worked > 10, "the other session had nothing to be disturbed in");
    assert_eq!(other.verify(&name("kept")).unwrap().bad, []);
    // No thread of a ring, no handle and no byte is left.
    ground.settles(&other, 1);
    other.free(locked).unwrap();
    let whole = other.allocate(60 << 20, AllocationKind::Session).unwrap();
    other.free(whole.0).unwrap();
}

/// Takes the name that the hostile client's put had, as soon as it is free.
fn take_name(pool: &Pool, seed: u64) {
    let options = PutOptions { bytes: Some(4), ..PutOptions::default() };
    for _ in 0..4000 {
        match pool.put(&mut &b"free"[..], &name(HELD_NAME), &options, &mut |_| {}) {
            Ok(_) => return pool.remove(&name(HELD_NAME)).unwrap(),
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(5)),
        }
    }
    panic!("seed {seed}: the name of a put whose client is gone is never free");
}
