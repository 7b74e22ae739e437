//! A member of the pool that has two blocks and lies about them, each time in one way.

use crate::pair::{Pair, block};
use hinterland_directory::{Command, Departure, DirectoryError, Reply};
use hinterland_fabric::tcp::{ClientOptions, Server, ServerOptions, TcpEndpoint};
use hinterland_fabric::{Endpoint, Service, Slice};
use hinterland_proto::checksum::{crc32c, crc32c_append};
use hinterland_proto::control::{KvHeld, KvPlace, PeerReply, PeerRequest, decode, encode};
use hinterland_proto::{ErrorCode, PeerHello, Refusal, RemoteError, Role};
use hinterland_types::{ByteRange, Handle, NodeId, ObjectId, RackName, Rights, SessionId};
use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Length of its blocks.
pub const BLOCK_BYTES: usize = 600_000;
const HANDLE: Handle = Handle(9);
/// Longer than anybody waits; a home that leaves is silent no longer.
const SILENCE: Duration = Duration::from_secs(60);

/// How it lies about the block `first`; `None` is the truth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    None,
    FlippedBit,
    OtherBlock,
    OtherKey,
    OtherNamespace,
    Gone,
    TooLong,
    Empty,
    FewSums,
    ManyPlaces,
    WrongHandle,
    OutsideOfTheFile,
    SilentRead,
    SilentCheck,
    /// The truth, once it may be told.
    LateCheck,
    SilentFind,
    Nonsense,
    /// The truth: it is on the disk, and comes into memory when it is asked for.
    OnDisk,
    /// The disk takes for ever.
    SilentDisk,
    /// It is not on the disk any more.
    GoneFromDisk,
    /// What is in memory is of before and turns out to be damaged when it is asked for the checksum; it is on the disk, too.
    DamagedOnDisk,
    ManyOnDisk,
}

impl Lie {
    const fn is_on_disk(self) -> bool {
        matches!(self, Self::OnDisk | Self::SilentDisk | Self::GoneFromDisk | Self::ManyOnDisk)
    }
}

struct Liar {
    lie: Lie,
    fingerprint: [u8; 32],
    memory: Slice,
    asked: AtomicU64,
    checks: AtomicU64,
    staged: AtomicU64,
    may_check: Mutex<bool>,
    has_left: Mutex<bool>,
    leaves: Condvar,
}

/// It runs until it leaves.
pub struct Home {
    server: Server,
    liar: Arc<Liar>,
    node: NodeId,
    incarnation: u64,
}

impl Home {
    /// Joins the pool, with both blocks of a namespace.
    pub fn join(pair: &Pair, fingerprint: [u8; 32], lie: Lie) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(1000);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let bytes = [block(b"first", BLOCK_BYTES), block(b"second", BLOCK_BYTES)].concat();
        let memory = Slice::copied(&bytes);
        if lie == Lie::FlippedBit {
            memory.copy_in(300_000, &[!bytes[300_000]]);
        }
        let (asked, checks, may_check) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::new(false));
        let (has_left, leaves) = (Mutex::new(false), Condvar::new());
        let liar = Arc::new(Liar {
            lie,
            fingerprint,
            memory,
            asked,
            checks,
            may_check,
            has_left,
            leaves,
            staged: AtomicU64::new(0),
        });
        let node = NodeId(number);
        let directory = directory(pair);
        let options = ServerOptions { node, pool: directory.pool(), ..ServerOptions::default() };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let service: Arc<dyn Service> = Arc::<Liar>::clone(&liar);
        let server = Server::start(listener, service, options).unwrap();
        let (incarnation, rack) = (1, RackName::parse("liar").unwrap());
        tell(
            &directory,
            &Command::Join { name: None, node, rack, address, capacity_bytes: 1 << 20, incarnation },
        );
        let (after, objects) = (ObjectId(0), Vec::new());
        tell(&directory, &Command::NodeObjects { node, incarnation, after, objects, more: false });
        Self { server, liar, node, incarnation }
    }

    /// How often it was asked where blocks lie.
    pub fn asked(&self) -> u64 {
        self.liar.asked.load(Ordering::Relaxed)
    }

    /// How often it was asked for checksums.
    pub fn checks(&self) -> u64 {
        self.liar.checks.load(Ordering::Relaxed)
    }

    /// How often it was asked to bring blocks from its disk.
    pub fn staged(&self) -> u64 {
        self.liar.staged.load(Ordering::Relaxed)
    }

    /// From here on it answers that, if it was late.
    pub fn let_check(&self) {
        *self.liar.may_check.lock().unwrap() = true;
        self.liar.leaves.notify_all();
    }

    /// Leaves the pool and ends.
    pub fn leave(mut self, pair: &Pair) {
        let (node, incarnation) = (self.node, self.incarnation);
        tell(&directory(pair), &Command::Leave { node, incarnation, departure: Departure::ComesBack });
        *self.liar.has_left.lock().unwrap() = true;
        self.liar.leaves.notify_all();
        self.server.stop();
    }
}

/// A connection to the node that hosts the directory, as another node has it.
pub fn directory(pair: &Pair) -> TcpEndpoint {
    let pool = pair.a.pool().session().pool();
    let options = ClientOptions { streams: 1, role: Role::Node, pool, ..ClientOptions::default() };
    TcpEndpoint::connect(pair.a.address(), options).unwrap()
}

fn tell(directory: &TcpEndpoint, command: &Command) {
    let body = encode(&PeerRequest::Directory(encode(command).unwrap())).unwrap();
    let answer: PeerReply = decode(&directory.call(&body).unwrap()).unwrap();
    let PeerReply::Directory(answer) = answer else { panic!("{answer:?}") };
    decode::<Result<Reply, DirectoryError>>(&answer).unwrap().unwrap();
}

impl Liar {
    fn is_silent(&self) {
        let has_left = self.has_left.lock().unwrap();
        drop(self.leaves.wait_timeout_while(has_left, SILENCE, |has_left| !*has_left).unwrap());
    }

    fn place(&self, key: &[u8]) -> Option<KvPlace> {
        let is_first = key == b"first";
        let mut offset = if is_first { 0 } else { BLOCK_BYTES as u64 };
        let mut bytes = BLOCK_BYTES as u32;
        if is_first {
            match self.lie {
                Lie::OtherBlock => offset = BLOCK_BYTES as u64,
                Lie::TooLong => bytes = (4 << 20) + 1,
                Lie::Empty => bytes = 0,
                Lie::OutsideOfTheFile => offset = u64::MAX - 1000,
                _ => {}
            }
        }
        (is_first || key == b"second").then_some(KvPlace {
            slot: 3,
            generation: 5,
            offset,
            bytes,
            parent: None,
        })
    }

    fn sum(&self, held: &KvHeld) -> Option<u32> {
        let (mut fingerprint, mut key) = (self.fingerprint, held.key.clone());
        match self.lie {
            Lie::Gone => return None,
            Lie::DamagedOnDisk if held.key == b"first" && self.staged.load(Ordering::Relaxed) == 0 => {
                return None;
            }
            Lie::OtherKey => key[0] ^= 1,
            Lie::OtherNamespace => fingerprint[31] ^= 1,
            _ => {}
        }
        let mut sum = crc32c_append(crc32c(&fingerprint), &[key.len() as u8]);
        sum = crc32c_append(crc32c_append(sum, &key), &(BLOCK_BYTES as u32).to_le_bytes());
        // Of the right bytes: what is in memory may have been flipped after that.
        Some(crc32c_append(sum, &crc32c(&block(&held.key, BLOCK_BYTES)).to_le_bytes()))
    }
}

impl Service for Liar {
    fn opened(&self, _peer: &PeerHello) -> Result<SessionId, Refusal> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        Ok(SessionId(NUMBER.fetch_add(1, Ordering::Relaxed)))
    }

    fn closed(&self, _session: SessionId) {}

    fn resolve(
        &self,
        _session: SessionId,
        handle: Handle,
        range: ByteRange,
        _needed: Rights,
    ) -> Result<Slice, RemoteError> {
        if self.lie == Lie::SilentRead {
            self.is_silent();
        }
        let slice = self.memory.sub(range.offset() as usize, range.bytes() as usize);
        slice.filter(|_| handle == HANDLE).ok_or_else(|| RemoteError::new(ErrorCode::RANGE, "outside"))
    }

    fn call(&self, _session: SessionId, body: &[u8]) -> Result<Vec<u8>, RemoteError> {
        let reply = match decode::<PeerRequest>(body).unwrap() {
            PeerRequest::KvFind { keys, .. } => {
                self.asked.fetch_add(1, Ordering::Relaxed);
                if self.lie == Lie::SilentFind {
                    self.is_silent();
                }
                if self.lie == Lie::Nonsense {
                    return Ok(vec![0xff; 100]);
                }
                let mut places: Vec<_> = keys.iter().map(|key| self.place(key)).collect();
                if self.lie == Lie::ManyPlaces {
                    places.extend_from_within(..);
                }
                let mut on_disk = vec![None; keys.len()];
                for (key, (place, on_disk)) in keys.iter().zip(places.iter_mut().zip(&mut on_disk)) {
                    if self.lie == Lie::DamagedOnDisk && key == b"first" {
                        *on_disk = Some(BLOCK_BYTES as u32);
                    }
                    if self.lie.is_on_disk() && (key == b"first" || key.starts_with(b"more")) {
                        (*place, *on_disk) = (None, Some(BLOCK_BYTES as u32));
                    }
                }
                if self.lie == Lie::ManyOnDisk {
                    on_disk.push(Some(1));
                }
                let handle = if self.lie == Lie::WrongHandle { Handle(10) } else { HANDLE };
                PeerReply::KvFound { handle: Some(handle), places, on_disk }
            }
            PeerRequest::KvStage { keys, .. } => {
                self.staged.fetch_add(1, Ordering::Relaxed);
                if self.lie == Lie::SilentDisk {
                    self.is_silent();
                }
                let is_brought = matches!(self.lie, Lie::OnDisk | Lie::DamagedOnDisk);
                let place = |key: &Vec<u8>| is_brought.then(|| self.place(key)).flatten();
                let places = keys.iter().map(place).collect();
                PeerReply::KvFound { handle: Some(HANDLE), places, on_disk: Vec::new() }
            }
            PeerRequest::KvCheck { blocks, .. } => {
                self.checks.fetch_add(1, Ordering::Relaxed);
                if self.lie == Lie::SilentCheck {
                    self.is_silent();
                }
                if self.lie == Lie::LateCheck {
                    let may_check = self.may_check.lock().unwrap();
                    drop(self.leaves.wait_timeout_while(may_check, SILENCE, |may| !*may).unwrap());
                }
                let mut sums: Vec<_> = blocks.iter().map(|held| self.sum(held)).collect();
                if self.lie == Lie::FewSums {
                    sums.pop();
                }
                PeerReply::KvChecked { sums }
            }
            other => panic!("{other:?}"),
        };
        Ok(encode(&reply).unwrap())
    }
}
