//! A client of raw commands, and the session that it talks to, in one process.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "shared by several tests, which fail by panicking"
)]

use hinterland_channel::{Receiver, Rings, Sender, pair};
use hinterland_gpunode::executor::NoGrants;
use hinterland_gpunode::pooled::NoPool;
use hinterland_gpunode::session::{SessionParts, serve};
use hinterland_gpunode::software::{SoftwareMachine, SoftwareOptions};
use hinterland_gpunode::store::NoStore;
use hinterland_proto::gpu::answer::{Answer, AnswerMessage, Bytes, Fault, Reached};
use hinterland_proto::gpu::command::{Command, MapMemory, MarkStream, Module, ModulePart};
use hinterland_proto::gpu::{GPU_VERSION, HELLO, Hello, WELCOME, Welcome};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long an answer may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// A piece of memory as it is mapped.
pub const PIECE: u64 = 2 << 20;

/// One answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Got {
    pub message: AnswerMessage,
    pub tail: Vec<u8>,
}

impl Got {
    pub fn words(&self) -> String {
        String::from_utf8_lossy(&self.tail).into_owned()
    }
}

pub struct Client {
    pub sender: Option<Sender>,
    pub receiver: Option<Receiver>,
    pub welcome: Welcome,
    pub count: u64,
    session: Option<JoinHandle<()>>,
}

impl Client {
    /// A session on devices in software.
    pub fn start(options: &str) -> Self {
        Self::with_grant(options, u64::MAX)
    }

    pub fn with_grant(options: &str, grant: u64) -> Self {
        let options: SoftwareOptions = options.parse().unwrap();
        let (near, far) = pair(Rings::default()).unwrap();
        let session = std::thread::spawn(move || {
            serve(
                far,
                Box::new(|| None),
                || (),
                |_, outbox| {
                    let machine = SoftwareMachine::new(options, &[grant; 8], outbox.clone()).unwrap();
                    let parts = SessionParts {
                        number: 7,
                        images: Box::new(NoStore),
                        grants: Box::new(NoGrants),
                        objects: Box::new(NoPool),
                        report: Box::new(|_| {}),
                    };
                    Ok((machine, parts))
                },
            )
            .unwrap();
        });
        let (mut sender, mut receiver) = near.split().unwrap();
        let hello = postcard::to_stdvec(&hello(GPU_VERSION)).unwrap();
        let mut room = sender.room(HELLO, hello.len()).unwrap().unwrap();
        room.append(&hello).unwrap();
        room.commit();
        assert!(receiver.wait(Some(PATIENCE)).unwrap(), "no welcome");
        let mut frame = receiver.next().unwrap().unwrap();
        assert_eq!(frame.word(), WELCOME);
        let welcome = postcard::from_bytes(frame.bytes()).unwrap();
        drop(frame);
        Self { sender: Some(sender), receiver: Some(receiver), welcome, count: 0, session: Some(session) }
    }

    /// Sends a command by its number.
    pub fn raw(&mut self, word: u32, body: &[u8]) {
        let sender = self.sender.as_mut().unwrap();
        assert!(sender.wait_room(body.len(), Some(PATIENCE)).unwrap(), "the session takes nothing");
        let mut room = sender.room(word, body.len()).unwrap().unwrap();
        room.append(body).unwrap();
        room.commit();
        self.count += 1;
    }

    pub fn send(&mut self, command: &Command) -> u64 {
        self.with_tail(command, &[])
    }

    pub fn with_tail(&mut self, command: &Command, tail: &[u8]) -> u64 {
        let (word, body) = encode(command, tail);
        self.raw(word, &body);
        self.count
    }

    pub fn next(&mut self) -> Got {
        let receiver = self.receiver.as_mut().unwrap();
        assert!(receiver.wait(Some(PATIENCE)).unwrap(), "no answer");
        let mut frame = receiver.next().unwrap().unwrap();
        let word = frame.word();
        let body = frame.bytes();
        let message = AnswerMessage::read(word, body, body.len()).unwrap();
        let fields = AnswerMessage::field_bytes(word).unwrap();
        Got { message, tail: body[fields..].to_vec() }
    }

    /// The next answer is a fault of this command, with these words among its own.
    pub fn expect_fault(&mut self, command: u64, error: i32, words: &str) {
        let got = self.next();
        match got.message {
            AnswerMessage::Fault(Fault { error: found, sticky: 0, command: of, .. }) => {
                assert_eq!((of, found), (command, error), "{}", got.words());
                assert!(got.words().contains(words), "{}", got.words());
            }
            other => panic!("no fault of command {command} but {other:?}: {}", got.words()),
        }
    }

    pub fn expect_reached(&mut self, mark: u64, error: i32) {
        let got = self.next();
        assert_eq!(got.message, AnswerMessage::Reached(Reached { mark, error }), "{}", got.words());
    }

    pub fn expect_bytes(&mut self, transfer: u32, bytes: &[u8]) {
        let mut all = Vec::new();
        loop {
            let got = self.next();
            let AnswerMessage::Bytes(Bytes { transfer: of, error: 0, offset }) = got.message else {
                panic!("no bytes but {:?}: {}", got.message, got.words())
            };
            assert_eq!((of, offset), (transfer, all.len() as u64));
            all.extend(got.tail);
            if all.len() >= bytes.len() {
                assert!(all == bytes, "bytes of transfer {transfer} differ");
                return;
            }
        }
    }

    pub fn expect_answer(&mut self, question: u32) -> Result<Vec<u8>, i32> {
        let got = self.next();
        let AnswerMessage::Answer(Answer { question: of, error }) = got.message else {
            panic!("no answer but {:?}: {}", got.message, got.words())
        };
        assert_eq!(of, question);
        if error == 0 { Ok(got.tail) } else { Err(error) }
    }

    /// Nothing is left but the answer of this mark: everything before it went well.
    pub fn settle(&mut self) {
        self.send(&Command::MarkStream(MarkStream { mark: 999_999, stream: 0 }));
        self.expect_reached(999_999, 0);
    }

    pub fn map(&mut self, piece: u64, pieces: u64) -> u64 {
        let address = self.welcome.window + piece * PIECE;
        let map = MapMemory { device: 0, flags: 0, address, bytes: pieces * PIECE };
        self.send(&Command::MapMemory(map));
        address
    }

    pub fn module(&mut self, module: u32, image: &[u8]) -> u64 {
        let hash = *blake3::hash(image).as_bytes();
        let head = Module { module, device: 0, bytes: image.len() as u64, hash };
        self.send(&Command::Module(head));
        for part in image.chunks(1000) {
            self.with_tail(&Command::ModulePart(ModulePart { module }), part);
        }
        self.count
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        drop((self.sender.take(), self.receiver.take()));
        let outcome = self.session.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            outcome.unwrap().unwrap();
        }
    }
}

pub fn hello(version: u32) -> Hello {
    Hello {
        version,
        program: "test".to_owned(),
        host: "here".to_owned(),
        process: std::process::id(),
        memory: 0,
        devices: Vec::new(),
    }
}

/// A command as it is sent.
pub fn encode(command: &Command, tail: &[u8]) -> (u32, Vec<u8>) {
    let name = hinterland_gpunode::graph::name_of(*command);
    let layout = Command::layouts().into_iter().find(|layout| layout.name == name).unwrap();
    let mut body = vec![0; layout.bytes];
    macro_rules! put {
        ($($name:ident)*) => { match command { $(Command::$name(fields) => fields.put(&mut body),)* } };
    }
    put!(MapMemory UnmapMemory Module ModulePart Function FunctionAttribute ModuleDrop Launch CopyIn CopyOut CopyWithin CopyRows
        CopyInRows CopyOutRows Fill FillRows StreamCreate StreamDestroy EventCreate EventDestroy EventRecord StreamWait Fence
        MarkStream MarkEvent MarkDevice EventElapsed Graph GraphPart GraphDestroy GraphInstantiate GraphUpdate GraphExecDestroy GraphSwitch GraphChange
        GraphLaunch LaunchContent CopyInAtLaunch AskFunction AskOccupancy AskSymbol AskGrant AskClusters AskTensorMap BlasCreate BlasDestroy BlasSet BlasGemm
        BlasGemmPointers BlasCall LtMatmul AskPooled CopyPooled);
    body.extend(tail);
    (layout.word, body)
}

/// Commands as they stand in a graph.
pub fn list(commands: &[(Command, &[u8])]) -> Vec<u8> {
    let mut list = Vec::new();
    for (command, tail) in commands {
        let (word, body) = encode(command, tail);
        list.extend((body.len() as u32).to_le_bytes());
        list.extend(word.to_le_bytes());
        list.extend(&body);
        list.resize(list.len().next_multiple_of(8), 0);
    }
    list
}

/// A fat binary with one PTX text that is not compressed.
pub fn fat_binary(ptx: &str) -> Vec<u8> {
    image(1, ptx.as_bytes())
}

/// A fat binary with one image: kind 1 is PTX, 2 machine code.
pub fn image(kind: u16, bytes: &[u8]) -> Vec<u8> {
    let mut payload = bytes.to_vec();
    payload.resize(payload.len().next_multiple_of(8) + 8, 0);
    let mut entry = vec![0; 64];
    entry[0..2].copy_from_slice(&kind.to_le_bytes());
    entry[2..4].copy_from_slice(&0x101_u16.to_le_bytes());
    entry[4..8].copy_from_slice(&64_u32.to_le_bytes());
    entry[8..16].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    entry[28..32].copy_from_slice(&90_u32.to_le_bytes());
    entry.extend(payload);
    let mut all = 0xba55_ed50_u32.to_le_bytes().to_vec();
    all.extend(1_u16.to_le_bytes());
    all.extend(16_u16.to_le_bytes());
    all.extend((entry.len() as u64).to_le_bytes());
    all.extend(entry);
    all
}
