//! `hinterland gpu serve --pool` and clients that ask for objects: who may read what, and copies that are none.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

use hinterland_channel::{Receiver, Sender, connect};
use hinterland_pool::{Object, Pool, PutOptions};
use hinterland_proto::gpu::answer::{Answer, AnswerMessage, Bytes, Reached};
use hinterland_proto::gpu::command::{AskGrant, AskPooled, CopyOut, CopyPooled, MapMemory, MarkStream};
use hinterland_proto::gpu::{GPU_VERSION, HELLO, Hello, Message, WELCOME, Welcome};
use hinterland_proto::right::right_to_read;
use hinterland_proto::{ClientIdentity, Features, PoolId, Role};
use hinterland_types::{NodeId, ObjectName};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long anything may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);
const PIECE: u64 = 2 << 20;
const OBJECT_BYTES: usize = (1 << 20) + 777;
const NOT_FOUND: i32 = 500;
const NOT_SUPPORTED: i32 = 801;
const INVALID_VALUE: i32 = 1;
const INVALID_HANDLE: i32 = 400;

/// A process of ours that says on standard output when it is ready.
struct Service(Child);

impl Service {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_hinterland"))
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("ready"), "{arguments:?} said {line:?}");
        Self(child)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let number = i32::try_from(self.0.id()).unwrap();
        let process = hinterland_os::process::ProcessHandle::open(number).unwrap();
        process.signal(2).unwrap();
        self.0.wait().unwrap();
    }
}

/// A node of a pool with one object, and a GPU node that reads from it.
struct Ground {
    folder: PathBuf,
    /// Ended in this order, and before the folder goes.
    services: Vec<Service>,
    pool: Pool,
}

impl Ground {
    fn start(name: &str, key: Option<&str>) -> Self {
        let folder = std::env::temp_dir().join(format!("hl-pooled-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let path = |name: &str| folder.join(name).display().to_string();
        let (socket, state, gpu) = (path("node.sock"), path("state"), format!("unix:{}", path("gpu.sock")));
        let mut arguments = vec!["node", "--json", "--name", "a", "--socket", &socket, "--state", &state];
        arguments.extend(["--listen", "127.0.0.1:0", "--capacity", "32M"]);
        // Memory that goes with the folder.
        let memory = path("memory");
        arguments.extend(["--backing", &memory]);
        let key_file = path("key");
        if let Some(key) = key {
            std::fs::write(&key_file, key).unwrap();
            arguments.extend(["--key", &key_file]);
        }
        let node = Service::start(&arguments);
        let device = "software:memory=64M,kernels=none";
        let served = Service::start(&[
            "gpu", "serve", "--json", "--listen", &gpu, "--device", device, "--pool", &socket,
        ]);
        let pool = Pool::connect(Some(Path::new(&socket))).unwrap();
        pool.put(&mut contents().as_slice(), &object_name(), &PutOptions::default(), &mut |_| {}).unwrap();
        Self { folder, services: vec![served, node], pool }
    }

    fn client(&self) -> Client {
        let address = format!("unix:{}", self.folder.join("gpu.sock").display()).parse().unwrap();
        let identity = ClientIdentity {
            role: Role::Client,
            node: NodeId(0),
            pool: PoolId::ANY,
            key: None,
            features: Features(0),
            join: None,
        };
        let (sender, receiver) = connect(&address, &identity, Default::default()).unwrap().split().unwrap();
        Client::greet(sender, receiver)
    }

    fn object(&self) -> Object {
        self.pool.open_object(&object_name()).unwrap()
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.services.drain(..).for_each(drop);
        // What is left lies in the folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn object_name() -> ObjectName {
    ObjectName::parse("weights").unwrap()
}

fn contents() -> Vec<u8> {
    (0..OBJECT_BYTES).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

struct Client {
    sender: Sender,
    receiver: Receiver,
    memory: u64,
}

impl Client {
    fn greet(mut sender: Sender, mut receiver: Receiver) -> Self {
        let hello = Hello {
            version: GPU_VERSION,
            program: "test".to_owned(),
            host: "here".to_owned(),
            process: std::process::id(),
            memory: 0,
            devices: Vec::new(),
        };
        put(&mut sender, HELLO, &postcard::to_stdvec(&hello).unwrap());
        assert!(receiver.wait(Some(PATIENCE)).unwrap(), "no welcome");
        let mut frame = receiver.next().unwrap().unwrap();
        assert_eq!(frame.word(), WELCOME);
        let welcome: Welcome = postcard::from_bytes(frame.bytes()).unwrap();
        drop(frame);
        let mut client = Self { sender, receiver, memory: welcome.window };
        client.send(&AskGrant { question: 9, device: 0, least: PIECE, wanted: PIECE });
        assert_eq!(client.next().0, AnswerMessage::Answer(Answer { question: 9, error: 0 }));
        client.send(&MapMemory { device: 0, flags: 0, address: welcome.window, bytes: PIECE });
        client
    }

    fn send<M: Message>(&mut self, message: &M) {
        let mut body = vec![0; M::FIELD_BYTES];
        message.write(&mut body);
        put(&mut self.sender, M::NUMBER, &body);
    }

    fn next(&mut self) -> (AnswerMessage, Vec<u8>) {
        assert!(self.receiver.wait(Some(PATIENCE)).unwrap(), "no answer");
        let mut frame = self.receiver.next().unwrap().unwrap();
        let (word, body) = (frame.word(), frame.bytes());
        let fields = AnswerMessage::field_bytes(word).unwrap();
        (AnswerMessage::read(word, body, body.len()).unwrap(), body[fields..].to_vec())
    }

    /// The error that a question is answered with, or 0.
    fn ask(&mut self, ask: AskPooled) -> i32 {
        self.send(&ask);
        match self.next().0 {
            AnswerMessage::Answer(Answer { question, error }) if question == ask.question => error,
            other => panic!("{other:?} is no answer"),
        }
    }

    /// The error of the fault that a copy ends with, and 0 if it ends well.
    fn copy(&mut self, copy: CopyPooled) -> (i32, bool) {
        self.send(&copy);
        self.send(&MarkStream { mark: 7, stream: 0 });
        let mut fault = (0, false);
        loop {
            match self.next().0 {
                AnswerMessage::Fault(found) => fault = (found.error, found.sticky != 0),
                AnswerMessage::Reached(Reached { mark: 7, .. }) => return fault,
                other => panic!("{other:?} was not asked for"),
            }
        }
    }

    fn memory(&mut self, at: u64, bytes: usize) -> Vec<u8> {
        self.send(&CopyOut { stream: 0, transfer: 5, address: self.memory + at, bytes: bytes as u64 });
        let mut all = Vec::new();
        while all.len() < bytes {
            let (message, tail) = self.next();
            assert!(
                matches!(message, AnswerMessage::Bytes(Bytes { transfer: 5, error: 0, .. })),
                "{message:?}"
            );
            all.extend(tail);
        }
        all
    }
}

fn put(sender: &mut Sender, word: u32, body: &[u8]) {
    assert!(sender.wait_room(body.len(), Some(PATIENCE)).unwrap());
    let mut room = sender.room(word, body.len()).unwrap().unwrap();
    room.append(body).unwrap();
    room.commit();
}

/// The question for an object, as one asks who may.
fn question(object: &Object, pooled: u32) -> AskPooled {
    AskPooled {
        question: 100 + pooled,
        pooled,
        flags: 0,
        bytes: object.info().bytes,
        object: object.info().object.0,
        pool: object.session().pool().0.to_le_bytes(),
        right: object.right().unwrap(),
    }
}

#[test]
fn only_who_shows_the_right_to_read_an_object_gets_copies_of_it() {
    let ground = Ground::start("rights", None);
    let (mut client, object) = (ground.client(), ground.object());
    let right = question(&object, 1);
    let mut other_right = right.right;
    other_right[31] ^= 1;
    let other_pool = 5_u128.to_le_bytes();
    let region = ground.pool.create_region(&ObjectName::parse("region").unwrap(), PIECE, None).unwrap();
    for (what, wrong) in [
        ("another right", AskPooled { right: other_right, ..right }),
        ("none", AskPooled { right: [0; 32], ..right }),
        ("its digest", AskPooled { right: object.info().digest, ..right }),
        ("another pool", AskPooled { pool: other_pool, ..right }),
        ("another length", AskPooled { bytes: right.bytes + 1, ..right }),
        ("an object that is not there", AskPooled { object: right.object + 1000, ..right }),
        ("a region", AskPooled { object: region.object.0, bytes: region.bytes, ..right }),
    ] {
        assert_eq!(client.ask(wrong), NOT_FOUND, "{what}");
    }
    let copy = CopyPooled { stream: 0, pooled: 1, address: client.memory, offset: 0, bytes: right.bytes };
    assert_eq!(
        client.copy(copy),
        (INVALID_HANDLE, false),
        "nothing was named by a question that was refused"
    );
    assert_eq!(client.ask(right), 0);
    assert_eq!(client.ask(right), INVALID_VALUE, "its name is taken");
    assert_eq!(client.copy(copy), (0, false));
    assert!(client.memory(0, OBJECT_BYTES) == contents());
}

#[test]
fn copies_that_reach_too_far_are_refused_and_change_nothing() {
    let ground = Ground::start("far", None);
    let mut client = ground.client();
    let ask = question(&ground.object(), 3);
    assert_eq!(client.ask(ask), 0);
    let copy = CopyPooled { stream: 0, pooled: 3, address: client.memory, offset: 0, bytes: ask.bytes };
    for (what, wrong) in [
        ("a byte more", CopyPooled { bytes: ask.bytes + 1, ..copy }),
        ("behind the end", CopyPooled { offset: ask.bytes, bytes: 1, ..copy }),
        ("an end beyond all numbers", CopyPooled { offset: u64::MAX, bytes: 2, ..copy }),
        ("a length beyond all numbers", CopyPooled { bytes: u64::MAX, ..copy }),
        ("memory of nobody", CopyPooled { address: client.memory + PIECE, ..copy }),
        ("half of it memory of nobody", CopyPooled { address: client.memory + PIECE - 5, ..copy }),
    ] {
        assert_eq!(client.copy(wrong), (INVALID_VALUE, false), "{what}");
    }
    assert_eq!(client.copy(CopyPooled { stream: 99, ..copy }), (INVALID_HANDLE, false));
    assert!(client.memory(0, PIECE as usize).iter().all(|byte| *byte == 0));
    // The last byte, and none.
    assert_eq!(client.copy(CopyPooled { offset: ask.bytes - 1, bytes: 1, ..copy }), (0, false));
    assert_eq!(client.copy(CopyPooled { offset: ask.bytes, bytes: 0, ..copy }), (0, false));
    assert_eq!(client.memory(0, 2), [contents()[OBJECT_BYTES - 1], 0]);
}

#[test]
fn a_right_cannot_be_made_from_a_digest_without_the_key_nor_guessed() {
    let ground = Ground::start("guess", Some(&"7e".repeat(32)));
    let (mut client, object) = (ground.client(), ground.object());
    let right = question(&object, 1);
    let info = object.info();
    let made = right_to_read(None, object.session().pool(), info.object, &info.digest);
    assert_eq!(client.ask(AskPooled { right: made, ..right }), NOT_FOUND);
    for guess in 0..200_u8 {
        let error = client.ask(AskPooled { right: [guess; 32], ..right });
        assert_eq!(error, if guess < 63 { NOT_FOUND } else { NOT_SUPPORTED }, "guess {guess}");
    }
    assert_eq!(client.ask(right), NOT_SUPPORTED, "who has guessed that often gets nothing");
    drop(client);
    assert_eq!(ground.client().ask(right), 0, "others do");
}

#[test]
fn a_removed_object_is_not_to_be_had_and_one_that_was_asked_for_stays() {
    let ground = Ground::start("removed", None);
    let (mut early, object) = (ground.client(), ground.object());
    let ask = question(&object, 1);
    assert_eq!(early.ask(ask), 0);
    ground.pool.remove(&object_name()).unwrap();
    assert_eq!(ground.client().ask(ask), NOT_FOUND);
    let copy = CopyPooled { stream: 0, pooled: 1, address: early.memory, offset: 0, bytes: ask.bytes };
    assert_eq!(early.copy(copy), (0, false));
    assert!(early.memory(0, OBJECT_BYTES) == contents());
}
