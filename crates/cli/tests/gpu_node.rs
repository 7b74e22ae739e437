//! `hinterland gpu serve` with the device in software: clients over both kinds of channel, and either side killed.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

use hinterland_channel::{Address, ChannelOptions, Receiver, Sender, connect};
use hinterland_gpunode::inquiry::Inquiry;
use hinterland_os::process::ProcessHandle;
use hinterland_proto::gpu::answer::{Answer, AnswerMessage, Bytes, Fault, Reached};
use hinterland_proto::gpu::command::{
    AskGrant, BlasCall, BlasCreate, BlasSet, CopyIn, CopyInAtLaunch, CopyOut, CopyWithin, EventCreate,
    EventDestroy, EventRecord, Fence, Function, Graph, GraphInstantiate, GraphLaunch, GraphPart, GraphUpdate,
    Launch, LaunchContent, LtMatmul, MapMemory, MarkDevice, MarkEvent, MarkStream, Module, ModulePart,
    StreamCreate, StreamDestroy, StreamWait, UnmapMemory, blas_functions,
};
use hinterland_proto::gpu::{GPU_VERSION, GpuStatus, HELLO, Hello, LtMatrix, LtProduct, WELCOME, Welcome};
use hinterland_proto::{ClientIdentity, Features, PoolId, Role};
use hinterland_types::NodeId;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long anything may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// Names the node for a client that is a process of its own.
const CLIENT_OF: &str = "TEST_GPU_NODE";
const SIGKILL: i32 = 9;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;
const PIECE: u64 = 2 << 20;

/// A node, ended with this.
struct Node {
    child: Child,
    addresses: Vec<Address>,
    folder: PathBuf,
}

impl Node {
    fn start(name: &str, arguments: &[&str]) -> Self {
        Self::with_driver(name, arguments, "", "")
    }

    /// With a driver, which lacks something or nothing.
    fn with_driver(name: &str, arguments: &[&str], driver: &str, what: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("hinterland-gpu-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_hinterland"))
            .args(["gpu", "serve", "--json", "--listen"])
            .arg(format!("unix:{}", folder.join("gpu.sock").display()))
            .args(["--listen", "tcp:127.0.0.1:0", "--cache"])
            .arg(folder.join("cache"))
            .args(arguments)
            .env("HINTERLAND_CUDA", driver)
            .env("HINTERLAND_CUBLAS", if driver.is_empty() { "/nowhere/libcublas.so" } else { driver })
            .env("HINTERLAND_CUBLASLT", driver)
            .env("STAND_IN_GPUS", "2")
            .env("STAND_IN_LACKS", what)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: serde_json::Value = serde_json::from_str(&line).expect("a line of JSON when it is ready");
        let addresses = ready["listen"].as_array().unwrap().iter();
        let addresses = addresses.map(|address| address.as_str().unwrap().parse().unwrap()).collect();
        Self { child, addresses, folder }
    }

    fn unix(&self) -> &Address {
        &self.addresses[0]
    }

    fn status(&self) -> GpuStatus {
        Inquiry::open(self.unix(), None).unwrap().ask().unwrap()
    }

    /// Waits until the node's status is so.
    fn until(&self, what: &str, is_so: impl Fn(&GpuStatus) -> bool) -> GpuStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            let status = self.status();
            if is_so(&status) {
                return status;
            }
            assert!(Instant::now() < end, "not so: {what}: {status:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

struct Client {
    sender: Sender,
    receiver: Receiver,
    welcome: Welcome,
}

impl Client {
    fn open(address: &Address, memory: u64) -> Result<Self, String> {
        let identity = ClientIdentity {
            role: Role::Client,
            node: NodeId(0),
            pool: PoolId::ANY,
            key: None,
            features: Features(0),
            join: None,
        };
        let channel = connect(address, &identity, ChannelOptions::default()).unwrap();
        let (mut sender, mut receiver) = channel.split().unwrap();
        let hello = Hello {
            version: GPU_VERSION,
            program: "test".to_owned(),
            host: "here".to_owned(),
            process: std::process::id(),
            memory,
            devices: Vec::new(),
        };
        put(&mut sender, HELLO, &postcard::to_stdvec(&hello).unwrap());
        assert!(receiver.wait(Some(PATIENCE)).unwrap(), "no welcome");
        let mut frame = receiver.next().unwrap().unwrap();
        if frame.word() == Fault::WORD {
            return Err(String::from_utf8_lossy(&frame.bytes()[Fault::BYTES..]).into_owned());
        }
        assert_eq!(frame.word(), WELCOME);
        let welcome = postcard::from_bytes(frame.bytes()).unwrap();
        drop(frame);
        Ok(Self { sender, receiver, welcome })
    }

    fn send<const N: usize>(&mut self, word: u32, fields: impl FnOnce(&mut [u8; N]), tail: &[u8]) {
        let mut body = [0; N];
        fields(&mut body);
        put(&mut self.sender, word, &[&body[..], tail].concat());
    }

    /// A grant of so many bytes of a device, and what could be added.
    fn grant(&mut self, device: u32, bytes: u64) -> [u64; 2] {
        let ask = AskGrant { question: 9, device, least: bytes, wanted: bytes };
        self.send::<{ AskGrant::BYTES }>(AskGrant::WORD, |body| ask.put(body), &[]);
        let (answer, tail) = self.next().unwrap();
        assert_eq!(answer, AnswerMessage::Answer(Answer { question: 9, error: 0 }));
        [0, 8].map(|from| u64::from_le_bytes(tail[from..from + 8].try_into().unwrap()))
    }

    fn map(&mut self, pieces: u64) -> u64 {
        let address = self.welcome.window;
        self.grant(0, pieces * PIECE);
        let map = MapMemory { device: 0, flags: 0, address, bytes: pieces * PIECE };
        self.send::<{ MapMemory::BYTES }>(MapMemory::WORD, |body| map.put(body), &[]);
        address
    }

    fn mark(&mut self, mark: u64) {
        let mark = MarkStream { mark, stream: 0 };
        self.send::<{ MarkStream::BYTES }>(MarkStream::WORD, |body| mark.put(body), &[]);
    }

    fn next(&mut self) -> Option<(AnswerMessage, Vec<u8>)> {
        assert!(self.receiver.wait(Some(PATIENCE)).ok()?, "no answer");
        let mut frame = self.receiver.next().ok()??;
        let word = frame.word();
        let body = frame.bytes();
        let fields = AnswerMessage::field_bytes(word).unwrap();
        Some((AnswerMessage::read(word, body, body.len()).unwrap(), body[fields..].to_vec()))
    }

    fn settle(&mut self) {
        self.mark(7);
        assert_eq!(self.next().unwrap().0, AnswerMessage::Reached(Reached { mark: 7, error: 0 }));
    }
}

/// Sends a command that has no tail.
macro_rules! send {
    ($client:expr, $kind:ident $fields:tt) => {{
        let command = $kind $fields;
        $client.send::<{ $kind::BYTES }>($kind::WORD, |body| command.put(body), &[]);
    }};
}

#[path = "gpu_node/driver.rs"]
mod driver;

fn put(sender: &mut Sender, word: u32, body: &[u8]) {
    assert!(sender.wait_room(body.len(), Some(PATIENCE)).unwrap());
    let mut room = sender.room(word, body.len()).unwrap().unwrap();
    room.append(body).unwrap();
    room.commit();
}

fn wait_for_end(process: &ProcessHandle) {
    assert!(process.has_ended(PATIENCE).unwrap(), "process {} goes on", process.number());
}

const SOFTWARE: [&str; 2] = ["--device", "software:memory=64M,kernels=none"];

#[test]
fn bytes_come_back_over_both_kinds_of_channel_and_the_list_says_how_many() {
    let node = Node::start("both", &SOFTWARE);
    for address in &node.addresses {
        let mut client = Client::open(address, 0).unwrap();
        let address = client.map(2);
        let copy = CopyIn { stream: 0, flags: 0, address };
        client.send::<{ CopyIn::BYTES }>(CopyIn::WORD, |body| copy.put(body), b"there and back");
        let copy = CopyOut { stream: 0, transfer: 3, address, bytes: 14 };
        client.send::<{ CopyOut::BYTES }>(CopyOut::WORD, |body| copy.put(body), &[]);
        let (message, tail) = client.next().unwrap();
        assert_eq!(message, AnswerMessage::Bytes(Bytes { transfer: 3, error: 0, offset: 0 }));
        assert_eq!(tail, b"there and back");
        let status =
            node.until("counted", |status| status.sessions.first().is_some_and(|one| one.bytes_out == 14));
        let one = &status.sessions[0];
        assert_eq!((one.program.as_str(), one.memory, one.bytes_in), ("test", 2 * PIECE, 14));
        drop(client);
        node.until("gone", |status| status.sessions.is_empty());
    }
    let output = Command::new(env!("CARGO_BIN_EXE_hinterland"))
        .args(["gpu", "ls", &node.unix().to_string()])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("Hinterland software device") && text.contains("no sessions; 2 so far"), "{text}");
}

#[test]
fn a_client_that_is_killed_gives_everything_back() {
    let node = Node::start("client-killed", &[&SOFTWARE[..], &["--session-memory", "32M"]].concat());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "client_that_waits_to_be_killed", "--nocapture"])
        .env(CLIENT_OF, node.unix().to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let status =
        node.until("mapped", |status| status.sessions.first().is_some_and(|one| one.memory == 8 * PIECE));
    let session = ProcessHandle::open(status.sessions[0].session_process as i32).unwrap();
    assert_eq!(status.devices[0].promised, 32 << 20);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for_end(&session);
    node.until("given back", |status| status.sessions.is_empty() && status.devices[0].promised == 0);
}

/// The client of the test above.
#[test]
#[ignore = "another test starts it, to kill it"]
fn client_that_waits_to_be_killed() {
    let Ok(address) = std::env::var(CLIENT_OF) else { return };
    let mut client = Client::open(&address.parse().unwrap(), 0).unwrap();
    client.map(8);
    client.settle();
    std::thread::sleep(PATIENCE);
}

#[test]
fn a_session_that_is_killed_ends_its_client_and_nobody_else() {
    let node = Node::start("session-killed", &SOFTWARE);
    let mut clients: Vec<Client> =
        node.addresses.iter().map(|address| Client::open(address, 0).unwrap()).collect();
    let status = node.until("two", |status| status.sessions.len() == 2);
    let first = status.sessions.iter().find(|one| one.session == clients[0].welcome.session).unwrap();
    ProcessHandle::open(first.session_process as i32).unwrap().signal(SIGKILL).unwrap();
    assert_eq!(clients[0].next(), None, "its channel ends");
    node.until("one", |status| status.sessions.len() == 1);
    clients[1].settle();
    Client::open(node.unix(), 0).unwrap().settle();
}

#[test]
fn sessions_end_with_the_daemon() {
    let mut node = Node::start("daemon-killed", &SOFTWARE);
    let mut client = Client::open(node.unix(), 0).unwrap();
    client.settle();
    let session = ProcessHandle::open(node.status().sessions[0].session_process as i32).unwrap();
    node.child.kill().unwrap();
    wait_for_end(&session);
    assert_eq!(client.next(), None);
}

#[test]
fn a_client_is_told_that_no_memory_or_no_session_is_left() {
    let quota = Node::start("quota", &[&SOFTWARE[..], &["--session-memory", "48M"]].concat());
    let first = Client::open(quota.unix(), 0).unwrap();
    assert_eq!(first.welcome.devices[0].grant, 48 << 20);
    let words = Client::open(quota.unix(), 0).err().unwrap();
    assert!(words.contains("16777216 bytes left") && words.contains("hint:"), "{words}");
    assert_eq!(Client::open(quota.unix(), 4 << 20).unwrap().welcome.devices[0].grant, 4 << 20);
    let one = Node::start("one", &[&SOFTWARE[..], &["--sessions", "1"]].concat());
    let _client = Client::open(one.unix(), 0).unwrap();
    let words = Client::open(one.unix(), 0).err().unwrap();
    assert!(words.contains("serves 1 sessions already"), "{words}");
}

#[test]
fn sessions_have_together_no_more_than_the_device_has() {
    let node = Node::start("shared", &SOFTWARE);
    let [mut first, mut second] = [(); 2].map(|()| Client::open(node.unix(), 0).unwrap());
    assert_eq!(first.grant(0, 40 << 20), [40 << 20, 24 << 20]);
    assert_eq!(second.grant(0, 30 << 20), [0, 24 << 20], "there is not as much");
    assert_eq!(second.grant(0, 24 << 20), [24 << 20, 0]);
    assert_eq!(node.status().devices[0].promised, 64 << 20);
    first.map(8);
    assert_eq!(first.grant(0, 0), [16 << 20, 24 << 20], "what is mapped stays");
    assert_eq!(second.grant(0, 48 << 20), [48 << 20, 0]);
    drop(second);
    node.until("given back", |status| status.devices[0].promised == 16 << 20);
    first.settle();
}

#[test]
fn memory_is_waited_for_while_the_daemon_is_stopped() {
    let node = Node::start("daemon-stopped", &SOFTWARE);
    let daemon = ProcessHandle::open(node.child.id() as i32).unwrap();
    let mut client = Client::open(node.unix(), 0).unwrap();
    daemon.signal(SIGSTOP).unwrap();
    let waking = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(11));
        daemon.signal(SIGCONT).unwrap();
    });
    assert_eq!(client.grant(0, 40 << 20), [40 << 20, 24 << 20]);
    waking.join().unwrap();
    assert_eq!(client.grant(0, 8 << 20), [8 << 20, 56 << 20], "each answer is that of its question");
}

#[test]
fn code_that_was_sent_once_is_known_to_the_next_session() {
    let node = Node::start("cache", &SOFTWARE);
    let ptx = b".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry one() { ret; }\n";
    let image = fat_binary(ptx);
    let hash = *blake3::hash(&image).as_bytes();
    for turn in 0..2 {
        let mut client = Client::open(node.unix(), 0).unwrap();
        assert_eq!(client.welcome.modules.contains(&hash), turn == 1);
        let bytes = if turn == 0 { image.len() as u64 } else { 0 };
        let module = Module { module: 1, device: 0, bytes, hash };
        client.send::<{ Module::BYTES }>(Module::WORD, |body| module.put(body), &[]);
        if turn == 0 {
            let part = ModulePart { module: 1 };
            client.send::<{ ModulePart::BYTES }>(ModulePart::WORD, |body| part.put(body), &image);
        }
        client.settle();
    }
    assert_eq!(node.status().images, 1);
}

#[test]
fn code_that_a_client_was_told_of_is_there_also_when_others_have_filled_the_cache() {
    let node = Node::start("cache-full", &[&SOFTWARE[..], &["--cache-size", "64K"]].concat());
    let image = |size: usize| {
        let filling = " ".repeat(size);
        let ptx =
            format!(".version 9.0\n.target sm_90\n.address_size 64\n{filling}\n.entry one() {{ ret; }}\n");
        fat_binary(ptx.as_bytes())
    };
    let load = |client: &mut Client, module: u32, image: &[u8]| {
        let hash = *blake3::hash(image).as_bytes();
        let is_known = client.welcome.modules.contains(&hash);
        let bytes = if is_known { 0 } else { image.len() as u64 };
        send!(client, Module { module, device: 0, bytes, hash });
        if !is_known {
            let part = ModulePart { module };
            client.send::<{ ModulePart::BYTES }>(ModulePart::WORD, |body| part.put(body), image);
        }
        client.settle();
        is_known
    };
    assert!(!load(&mut Client::open(node.unix(), 0).unwrap(), 1, &image(40_000)));
    let [mut client, mut other] = [(); 2].map(|()| Client::open(node.unix(), 0).unwrap());
    assert!(!load(&mut other, 1, &image(50_000)));
    node.until("one has gone", |status| status.images == 1);
    // A program loads it in each of its contexts.
    assert!(load(&mut client, 1, &image(40_000)) && load(&mut client, 2, &image(40_000)));
}

fn fat_binary(ptx: &[u8]) -> Vec<u8> {
    let mut payload = ptx.to_vec();
    payload.resize(payload.len().next_multiple_of(8) + 8, 0);
    let mut entry = vec![0; 64];
    entry[0..2].copy_from_slice(&1_u16.to_le_bytes());
    entry[4..8].copy_from_slice(&64_u32.to_le_bytes());
    entry[8..16].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    entry[28..32].copy_from_slice(&90_u32.to_le_bytes());
    entry.extend(payload);
    let mut all = 0xba55_ed50_u32.to_le_bytes().to_vec();
    all.extend([1, 0, 16, 0]);
    all.extend((entry.len() as u64).to_le_bytes());
    all.extend(entry);
    all
}

/// The driver that stands in for one: a copy for each test, because tests run at the same time and each removes its own.
fn stand_in() -> String {
    // Takes a compiler seconds: one does for all of them.
    static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
        let tree = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| tree.join("target"), PathBuf::from);
        let library = target.join("cuda_stand_in.so");
        let built = Command::new(tree.join("tests/cuda_stand_in/build.sh")).arg(&library).status().unwrap();
        assert!(built.success(), "hint: apt-get install g++");
        library
    });
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let library =
        std::env::temp_dir().join(format!("hinterland-stand-in-{}-{number}.so", std::process::id()));
    std::fs::copy(&*BUILT, &library).unwrap();
    library.display().to_string()
}

fn add(stream: u32) -> Launch {
    let (grid, block) = ([1, 1, 1], [32, 1, 1]);
    Launch { function: 1, stream, grid, block, shared: 0, flags: 0, cluster: [0; 3] }
}

/// Gives the stand-in's kernel that adds the name 1; its parameters are what the stand-in says.
fn name_add(client: &mut Client) {
    name_kernel(client, ADD_PARAMETERS);
}

const ADD_PARAMETERS: &str = ".param .u64 numbers, .param .u32 count, .param .u32 value";

fn name_kernel(client: &mut Client, parameters: &str) {
    load_module(client, parameters);
    let function = Function { function: 1, module: 1 };
    client.send::<{ Function::BYTES }>(Function::WORD, |body| function.put(body), b"add");
}

/// Has the node load a module, by the name 1.
fn load_module(client: &mut Client, parameters: &str) {
    let ptx = format!(
        ".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry add({parameters}) {{ ret; }}\n"
    );
    let image = fat_binary(ptx.as_bytes());
    let module =
        Module { module: 1, device: 0, bytes: image.len() as u64, hash: *blake3::hash(&image).as_bytes() };
    client.send::<{ Module::BYTES }>(Module::WORD, |body| module.put(body), &[]);
    let part = ModulePart { module: 1 };
    client.send::<{ ModulePart::BYTES }>(ModulePart::WORD, |body| part.put(body), &image);
}

#[test]
fn a_kernel_that_the_driver_lays_out_in_another_way_than_its_image_is_refused() {
    let driver = stand_in();
    let node = Node::with_driver("layout", &["--device", "cuda"], &driver, "");
    let mut client = Client::open(node.unix(), 0).unwrap();
    std::fs::remove_file(&driver).unwrap();
    // As many bytes at other places: launched, they would be the wrong ones.
    name_kernel(&mut client, ".param .u32 count, .param .u32 value, .param .u64 numbers");
    client.mark(1);
    let (message, tail) = client.next().unwrap();
    let words = String::from_utf8_lossy(&tail).into_owned();
    assert!(matches!(message, AnswerMessage::Fault(fault) if fault.error == 801), "{message:?}: {words}");
    assert!(words.contains("lays out") && words.contains("hint:"), "{words}");
}

#[test]
fn the_driver_behind_the_node_copies_launches_and_replays_graphs() {
    let driver = stand_in();
    let node = Node::with_driver("driver", &["--device", "cuda"], &driver, "");
    let mut client = Client::open(node.unix(), 0).unwrap();
    std::fs::remove_file(&driver).unwrap();
    assert_eq!((client.welcome.devices[0].name.as_str(), client.welcome.granularity), ("stand-in", PIECE));
    let address = client.map(2);
    name_add(&mut client);
    let stream = StreamCreate { stream: 20, device: 0, flags: 1, priority: 0 };
    client.send::<{ StreamCreate::BYTES }>(StreamCreate::WORD, |body| stream.put(body), &[]);
    let numbers: Vec<u8> = (0..250_000_u32).flat_map(u32::to_le_bytes).collect();
    let copy = CopyIn { stream: 20, flags: 0, address };
    client.send::<{ CopyIn::BYTES }>(CopyIn::WORD, |body| copy.put(body), &numbers);
    let parameters =
        |value: u32| [&address.to_le_bytes()[..], &250_000_u32.to_le_bytes(), &value.to_le_bytes()].concat();
    client.send::<{ Launch::BYTES }>(Launch::WORD, |body| add(20).put(body), &parameters(5));
    // A graph of two launches, launched twice.
    let mut list = Vec::new();
    for value in [10, 100] {
        let mut body = vec![0; Launch::BYTES];
        add(20).put(&mut body);
        body.extend(parameters(value));
        list.extend((body.len() as u32).to_le_bytes());
        list.extend(Launch::WORD.to_le_bytes());
        list.extend(&body);
        list.resize(list.len().next_multiple_of(8), 0);
    }
    let bytes = list.len() as u64;
    let graph = Graph { graph: 1, base: 0, stream: 20, flags: 0, bytes, sent: bytes };
    client.send::<{ Graph::BYTES }>(Graph::WORD, |body| graph.put(body), &[]);
    client.send::<{ GraphPart::BYTES }>(GraphPart::WORD, |body| GraphPart { graph: 1 }.put(body), &list);
    let make = GraphInstantiate { exec: 1, graph: 1, flags: 0 };
    client.send::<{ GraphInstantiate::BYTES }>(GraphInstantiate::WORD, |body| make.put(body), &[]);
    let update = GraphUpdate { exec: 1, graph: 1 };
    client.send::<{ GraphUpdate::BYTES }>(GraphUpdate::WORD, |body| update.put(body), &[]);
    for _ in 0..2 {
        let run = GraphLaunch { exec: 1, stream: 20 };
        client.send::<{ GraphLaunch::BYTES }>(GraphLaunch::WORD, |body| run.put(body), &[]);
    }
    client.send::<{ Fence::BYTES }>(Fence::WORD, |body| Fence { stream: 20 }.put(body), &[]);
    let copy = CopyOut { stream: 0, transfer: 3, address, bytes: 1_000_000 };
    client.send::<{ CopyOut::BYTES }>(CopyOut::WORD, |body| copy.put(body), &[]);
    client.mark(9);
    let (message, tail) = client.next().unwrap();
    assert_eq!(
        message,
        AnswerMessage::Bytes(Bytes { transfer: 3, error: 0, offset: 0 }),
        "{}",
        String::from_utf8_lossy(&tail)
    );
    let expected: Vec<u8> = (0..250_000_u32).flat_map(|number| (number + 225).to_le_bytes()).collect();
    assert!(tail == expected, "other numbers");
    assert_eq!(client.next().unwrap().0, AnswerMessage::Reached(Reached { mark: 9, error: 0 }));
    // Memory is taken back behind the work that uses it, and given again.
    for _ in 0..3 {
        let copy = CopyIn { stream: 20, flags: 0, address };
        client.send::<{ CopyIn::BYTES }>(CopyIn::WORD, |body| copy.put(body), &numbers);
        let unmap = UnmapMemory { address, bytes: 2 * PIECE };
        client.send::<{ UnmapMemory::BYTES }>(UnmapMemory::WORD, |body| unmap.put(body), &[]);
        client.map(2);
    }
    client.settle();
    client.send::<{ MarkDevice::BYTES }>(
        MarkDevice::WORD,
        |body| MarkDevice { mark: 5, device: 0 }.put(body),
        &[],
    );
    assert_eq!(client.next().unwrap().0, AnswerMessage::Reached(Reached { mark: 5, error: 0 }));
}

#[test]
fn bytes_come_before_every_mark_behind_them_of_events_devices_and_other_streams() {
    let driver = stand_in();
    let node = Node::with_driver("order", &["--device", "cuda"], &driver, "");
    let mut client = Client::open(node.unix(), 0).unwrap();
    std::fs::remove_file(&driver).unwrap();
    let address = client.map(1);
    for (stream, device) in [(20, 0), (21, 0), (22, 1)] {
        send!(client, StreamCreate { stream, device, flags: 1, priority: 0 });
    }
    send!(client, EventCreate { event: 5, device: 0, flags: 2 });
    for mark in 1..=600 {
        let transfer = mark as u32;
        send!(client, CopyOut { stream: 20, transfer, address, bytes: 8 });
        send!(client, EventRecord { event: 5, stream: 20, flags: 0 });
        match mark % 4 {
            0 => send!(client, MarkEvent { mark, event: 5 }),
            1 => send!(client, MarkDevice { mark, device: 0 }),
            other => {
                let stream = if other == 2 { 21 } else { 22 };
                send!(client, StreamWait { stream, event: 5, flags: 0 });
                send!(client, MarkStream { mark, stream });
            }
        }
        let bytes = AnswerMessage::Bytes(Bytes { transfer, error: 0, offset: 0 });
        assert_eq!(client.next().unwrap().0, bytes, "round {mark}");
        assert_eq!(client.next().unwrap().0, AnswerMessage::Reached(Reached { mark, error: 0 }));
    }
}

#[test]
fn a_copy_of_many_parts_from_a_broken_device_is_refused_once() {
    let driver = stand_in();
    let node = Node::with_driver("refused", &["--device", "cuda"], &driver, "work");
    let mut client = Client::open(node.unix(), 0).unwrap();
    std::fs::remove_file(&driver).unwrap();
    let address = client.map(4);
    send!(client, CopyOut { stream: 0, transfer: 3, address, bytes: 4 * PIECE });
    let (fault, _) = client.next().unwrap();
    assert!(matches!(fault, AnswerMessage::Fault(Fault { error: 700, sticky: 1, .. })), "{fault:?}");
    let none = AnswerMessage::Bytes(Bytes { transfer: 3, error: 700, offset: 0 });
    assert_eq!(client.next().unwrap().0, none);
    // Whoever gets bytes that it does not expect takes the node for lost.
    for mark in 10..30 {
        client.mark(mark);
        assert_eq!(client.next().unwrap().0, AnswerMessage::Reached(Reached { mark, error: 700 }));
    }
}

/// A list that takes two rows of 8 bytes, 16 apart, adds one to six numbers, and brings the rows back.
fn passing_list(address: u64) -> Vec<u8> {
    let mut list = Vec::new();
    let mut put = |word: u32, body: Vec<u8>| {
        list.extend((body.len() as u32).to_le_bytes());
        list.extend(word.to_le_bytes());
        list.extend(&body);
        list.resize(list.len().next_multiple_of(8), 0);
    };
    let copy = CopyInAtLaunch { stream: 20, flags: 0, address, pitch: 16, width: 8, rows: 2 };
    let mut body = vec![0; CopyInAtLaunch::BYTES];
    copy.put(&mut body);
    put(CopyInAtLaunch::WORD, body);
    let mut body = vec![0; Launch::BYTES];
    add(20).put(&mut body);
    body.extend([&address.to_le_bytes()[..], &6_u32.to_le_bytes(), &1_u32.to_le_bytes()].concat());
    put(Launch::WORD, body);
    for (from, bytes) in [(address, 8), (address + 16, 8)] {
        let mut body = vec![0; CopyOut::BYTES];
        CopyOut { stream: 20, transfer: 0, address: from, bytes }.put(&mut body);
        put(CopyOut::WORD, body);
    }
    list
}

/// A list that waits for an event of others, adds, and records another event for them.
fn external_list(address: u64, wait: u32, record: u32) -> Vec<u8> {
    let mut list = Vec::new();
    let mut put = |word: u32, body: Vec<u8>| {
        list.extend((body.len() as u32).to_le_bytes());
        list.extend(word.to_le_bytes());
        list.extend(&body);
        list.resize(list.len().next_multiple_of(8), 0);
    };
    let mut body = vec![0; StreamWait::BYTES];
    StreamWait { stream: 20, event: wait, flags: 1 }.put(&mut body);
    put(StreamWait::WORD, body);
    let mut body = vec![0; Launch::BYTES];
    add(20).put(&mut body);
    body.extend([&address.to_le_bytes()[..], &2_u32.to_le_bytes(), &3_u32.to_le_bytes()].concat());
    put(Launch::WORD, body);
    let mut body = vec![0; EventRecord::BYTES];
    EventRecord { event: record, stream: 20, flags: 1 }.put(&mut body);
    put(EventRecord::WORD, body);
    list
}

#[test]
fn graphs_of_the_driver_record_events_for_others_and_wait_for_them_also_when_they_are_gone() {
    let driver = stand_in();
    let node = Node::with_driver("external", &["--device", "cuda"], &driver, "");
    let mut client = Client::open(node.unix(), 0).unwrap();
    std::fs::remove_file(&driver).unwrap();
    let address = client.map(1);
    name_add(&mut client);
    let stream = StreamCreate { stream: 20, device: 0, flags: 1, priority: 0 };
    client.send::<{ StreamCreate::BYTES }>(StreamCreate::WORD, |body| stream.put(body), &[]);
    for event in [5, 6] {
        let event = EventCreate { event, device: 0, flags: 2 };
        client.send::<{ EventCreate::BYTES }>(EventCreate::WORD, |body| event.put(body), &[]);
    }
    let copy = CopyIn { stream: 20, flags: 0, address };
    client.send::<{ CopyIn::BYTES }>(CopyIn::WORD, |body| copy.put(body), &[0; 8]);
    let list = external_list(address, 5, 6);
    let bytes = list.len() as u64;
    let graph = Graph { graph: 1, base: 0, stream: 20, flags: 0, bytes, sent: bytes };
    client.send::<{ Graph::BYTES }>(Graph::WORD, |body| graph.put(body), &[]);
    client.send::<{ GraphPart::BYTES }>(GraphPart::WORD, |body| GraphPart { graph: 1 }.put(body), &list);
    let make = GraphInstantiate { exec: 1, graph: 1, flags: 0 };
    client.send::<{ GraphInstantiate::BYTES }>(GraphInstantiate::WORD, |body| make.put(body), &[]);
    for round in 0..4 {
        if round == 2 {
            // The instance keeps them.
            for event in [5, 6] {
                let event = EventDestroy { event };
                client.send::<{ EventDestroy::BYTES }>(EventDestroy::WORD, |body| event.put(body), &[]);
            }
        }
        let run = GraphLaunch { exec: 1, stream: 20 };
        client.send::<{ GraphLaunch::BYTES }>(GraphLaunch::WORD, |body| run.put(body), &[]);
    }
    let copy = CopyOut { stream: 20, transfer: 3, address, bytes: 8 };
    client.send::<{ CopyOut::BYTES }>(CopyOut::WORD, |body| copy.put(body), &[]);
    let (message, tail) = client.next().unwrap();
    let words = String::from_utf8_lossy(&tail).into_owned();
    assert_eq!(message, AnswerMessage::Bytes(Bytes { transfer: 3, error: 0, offset: 0 }), "{words}");
    assert_eq!(tail, [12_u32.to_le_bytes(), 12_u32.to_le_bytes()].concat());
}

#[test]
fn graphs_of_the_driver_take_bytes_of_each_launch_and_bring_bytes_of_each() {
    let driver = stand_in();
    let node = Node::with_driver("passage", &["--device", "cuda"], &driver, "");
    let mut client = Client::open(node.unix(), 0).unwrap();
    std::fs::remove_file(&driver).unwrap();
    let address = client.map(1);
    name_add(&mut client);
    for stream in [20, 21] {
        let stream = StreamCreate { stream, device: 0, flags: 1, priority: 0 };
        client.send::<{ StreamCreate::BYTES }>(StreamCreate::WORD, |body| stream.put(body), &[]);
    }
    let list = passing_list(address);
    let bytes = list.len() as u64;
    let graph = Graph { graph: 1, base: 0, stream: 20, flags: 0, bytes, sent: bytes };
    client.send::<{ Graph::BYTES }>(Graph::WORD, |body| graph.put(body), &[]);
    client.send::<{ GraphPart::BYTES }>(GraphPart::WORD, |body| GraphPart { graph: 1 }.put(body), &list);
    let make = GraphInstantiate { exec: 1, graph: 1, flags: 0 };
    client.send::<{ GraphInstantiate::BYTES }>(GraphInstantiate::WORD, |body| make.put(body), &[]);
    // Launches in two streams by turns, none of which is waited for.
    let rounds = 40_u32;
    for round in 0..rounds {
        let names = [2 * round + 1, 2 * round + 2].map(u32::to_le_bytes).concat();
        let numbers = [4 * round, 4 * round + 1, 4 * round + 2, 4 * round + 3].map(u32::to_le_bytes).concat();
        let content = LaunchContent { exec: 1, transfers: 2 };
        client.send::<{ LaunchContent::BYTES }>(
            LaunchContent::WORD,
            |body| content.put(body),
            &[names, numbers].concat(),
        );
        let run = GraphLaunch { exec: 1, stream: 20 + round % 2 };
        client.send::<{ GraphLaunch::BYTES }>(GraphLaunch::WORD, |body| run.put(body), &[]);
        if round == rounds / 2 {
            let update = GraphUpdate { exec: 1, graph: 1 };
            client.send::<{ GraphUpdate::BYTES }>(GraphUpdate::WORD, |body| update.put(body), &[]);
        }
    }
    let mut came = std::collections::BTreeMap::new();
    while came.len() < 2 * rounds as usize {
        let (message, tail) = client.next().unwrap();
        let AnswerMessage::Bytes(Bytes { transfer, error: 0, offset: 0 }) = message else {
            panic!("{message:?}: {}", String::from_utf8_lossy(&tail))
        };
        came.insert(transfer, tail);
    }
    for round in 0..rounds {
        let pair = |at: u32| [4 * round + at + 1, 4 * round + at + 2].map(u32::to_le_bytes).concat();
        assert_eq!((&came[&(2 * round + 1)], &came[&(2 * round + 2)]), (&pair(0), &pair(2)), "round {round}");
    }
    // A launch without what it needs is refused, and the names that came with it are told.
    let content = LaunchContent { exec: 1, transfers: 2 };
    let names = [901_u32, 902].map(u32::to_le_bytes).concat();
    client.send::<{ LaunchContent::BYTES }>(LaunchContent::WORD, |body| content.put(body), &names);
    let run = GraphLaunch { exec: 1, stream: 20 };
    client.send::<{ GraphLaunch::BYTES }>(GraphLaunch::WORD, |body| run.put(body), &[]);
    let (message, tail) = client.next().unwrap();
    assert!(matches!(message, AnswerMessage::Fault(fault) if fault.error == 1), "{message:?}");
    assert!(String::from_utf8_lossy(&tail).contains("takes 16 bytes"), "{}", String::from_utf8_lossy(&tail));
    for transfer in [901, 902] {
        let none = AnswerMessage::Bytes(Bytes { transfer, error: 1, offset: 0 });
        assert_eq!(client.next().unwrap().0, none);
    }
    client.settle();
}

#[test]
fn memory_stays_until_no_device_uses_it_and_streams_that_ended_count() {
    let driver = stand_in();
    let node = Node::with_driver("devices", &["--device", "cuda"], &driver, "");
    let mut client = Client::open(node.unix(), 0).unwrap();
    std::fs::remove_file(&driver).unwrap();
    assert_eq!(client.welcome.devices.iter().map(|device| device.peers).collect::<Vec<_>>(), [2, 1]);
    let (first, second) = (client.welcome.window, client.welcome.window + 8 * PIECE);
    let map = |client: &mut Client, device, address| {
        client.grant(device, 2 * PIECE);
        send!(client, MapMemory { device, flags: 0, address, bytes: 2 * PIECE });
    };
    map(&mut client, 1, second);
    for round in 0..6 {
        map(&mut client, 0, first);
        send!(client, StreamCreate { stream: 30 + round, device: 1, flags: 1, priority: 0 });
        for _ in 0..40 {
            send!(
                client,
                CopyWithin { stream: 30 + round, flags: 0, to: second, from: first, bytes: 2 * PIECE }
            );
        }
        if round % 2 == 0 {
            send!(client, StreamDestroy { stream: 30 + round });
        }
        // The other device has nothing to do; memory that is unmapped too early ends the stand-in.
        send!(client, UnmapMemory { address: first, bytes: 2 * PIECE });
    }
    map(&mut client, 0, first);
    send!(client, MarkDevice { mark: 5, device: 1 });
    assert_eq!(client.next().unwrap().0, AnswerMessage::Reached(Reached { mark: 5, error: 0 }));
    client.settle();
}

/// A product of cuBLASLt of matrices of single precision: two rows and columns everywhere, the first matrix transposed.
fn lt_product(a: u64, b: u64, d: u64) -> LtProduct {
    let layout = |address| {
        let attributes = vec![
            (0, 0_u32.to_le_bytes().to_vec()),
            (2, 2_u64.to_le_bytes().to_vec()),
            (3, 2_u64.to_le_bytes().to_vec()),
            (4, 2_i64.to_le_bytes().to_vec()),
        ];
        LtMatrix { address, attributes }
    };
    let number = |value: u32| value.to_le_bytes().to_vec();
    let mut factor = [0; 16];
    factor[..4].copy_from_slice(&2_f32.to_le_bytes());
    LtProduct {
        attributes: vec![(0, number(68)), (1, number(0)), (3, number(1))],
        matrices: [layout(a), layout(b), layout(d), layout(d)],
        alpha: factor,
        beta: [0; 16],
        workspace: 0,
        workspace_bytes: 0,
    }
}

/// A function of two vectors of four numbers that lie one behind the other, with a factor of ten.
fn blas_call(function: u32, in_memory: u32, address: u64, c: u64) -> BlasCall {
    let mut alpha = [0; 16];
    alpha[..4].copy_from_slice(&10_f32.to_le_bytes());
    BlasCall {
        handle: 1,
        function,
        kind: 0,
        in_memory,
        options: [0; 3],
        more: 0,
        m: 4,
        n: 0,
        k: 0,
        a: address,
        a_step: 1,
        b: address + 16,
        b_step: 1,
        c,
        c_step: 1,
        count: 1,
        alpha,
        beta: [0; 16],
    }
}

#[test]
fn functions_of_cublas_and_products_of_cublaslt_reach_the_libraries_of_the_node() {
    let driver = stand_in();
    let node = Node::with_driver("blas", &["--device", "cuda"], &driver, "");
    let mut client = Client::open(node.unix(), 0).unwrap();
    let address = client.map(1);
    let make = BlasCreate { handle: 1, device: 0 };
    client.send::<{ BlasCreate::BYTES }>(BlasCreate::WORD, |body| make.put(body), &[]);
    let stream = StreamCreate { stream: 20, device: 0, flags: 1, priority: 0 };
    client.send::<{ StreamCreate::BYTES }>(StreamCreate::WORD, |body| stream.put(body), &[]);
    let set = BlasSet { handle: 1, property: 1, value: 20, more: 0 };
    client.send::<{ BlasSet::BYTES }>(BlasSet::WORD, |body| set.put(body), &[]);
    let numbers: Vec<u8> =
        [1_f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0].into_iter().flat_map(f32::to_le_bytes).collect();
    let copy = CopyIn { stream: 20, flags: 0, address };
    client.send::<{ CopyIn::BYTES }>(CopyIn::WORD, |body| copy.put(body), &numbers);
    // y += 10 x; the sum of products into memory; then a product of cuBLASLt, here and in a graph.
    let add = blas_call(blas_functions::AXPY, 0, address, address + 16);
    client.send::<{ BlasCall::BYTES }>(BlasCall::WORD, |body| add.put(body), &[]);
    let dot = blas_call(blas_functions::DOT, 1, address, address + 64);
    client.send::<{ BlasCall::BYTES }>(BlasCall::WORD, |body| dot.put(body), &[]);
    let text = postcard::to_stdvec(&lt_product(address, address + 16, address + 80)).unwrap();
    let lt = LtMatmul { stream: 20, flags: 0 };
    client.send::<{ LtMatmul::BYTES }>(LtMatmul::WORD, |body| lt.put(body), &text);
    let mut body = vec![0; LtMatmul::BYTES];
    lt.put(&mut body);
    body.extend(postcard::to_stdvec(&lt_product(address, address + 80, address + 96)).unwrap());
    let mut list = (body.len() as u32).to_le_bytes().to_vec();
    list.extend(LtMatmul::WORD.to_le_bytes());
    list.extend(&body);
    list.resize(list.len().next_multiple_of(8), 0);
    let bytes = list.len() as u64;
    let graph = Graph { graph: 1, base: 0, stream: 20, flags: 0, bytes, sent: bytes };
    client.send::<{ Graph::BYTES }>(Graph::WORD, |body| graph.put(body), &[]);
    client.send::<{ GraphPart::BYTES }>(GraphPart::WORD, |body| GraphPart { graph: 1 }.put(body), &list);
    let make = GraphInstantiate { exec: 1, graph: 1, flags: 0 };
    client.send::<{ GraphInstantiate::BYTES }>(GraphInstantiate::WORD, |body| make.put(body), &[]);
    let run = GraphLaunch { exec: 1, stream: 20 };
    client.send::<{ GraphLaunch::BYTES }>(GraphLaunch::WORD, |body| run.put(body), &[]);
    let copy = CopyOut { stream: 20, transfer: 3, address: address + 16, bytes: 96 };
    client.send::<{ CopyOut::BYTES }>(CopyOut::WORD, |body| copy.put(body), &[]);
    let (message, tail) = client.next().unwrap();
    let words = String::from_utf8_lossy(&tail).into_owned();
    assert_eq!(message, AnswerMessage::Bytes(Bytes { transfer: 3, error: 0, offset: 0 }), "{words}");
    let seen: Vec<f32> = tail.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect();
    let y = [15.0, 26.0, 37.0, 48.0];
    let product = |b: [f32; 4]| {
        [
            2.0 * (b[0] + 2.0 * b[1]),
            2.0 * (3.0 * b[0] + 4.0 * b[1]),
            2.0 * (b[2] + 2.0 * b[3]),
            2.0 * (3.0 * b[2] + 4.0 * b[3]),
        ]
    };
    assert_eq!(seen[..4], y);
    assert_eq!(seen[12], 15.0 + 2.0 * 26.0 + 3.0 * 37.0 + 4.0 * 48.0);
    assert_eq!(seen[16..20], product(y));
    assert_eq!(seen[20..24], product(product(y)));
    client.settle();
    std::fs::remove_file(&driver).unwrap();
}

#[test]
fn a_machine_without_a_driver_says_so_and_what_to_do() {
    let socket = std::env::temp_dir().join(format!("hinterland-gpu-none-{}.sock", std::process::id()));
    let output = Command::new(env!("CARGO_BIN_EXE_hinterland"))
        .args(["gpu", "serve", "--device", "cuda", "--listen", &format!("unix:{}", socket.display())])
        .env("HINTERLAND_CUDA", "/nowhere/libcuda.so.1")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("there is no CUDA driver") && text.contains("install the NVIDIA driver"), "{text}");
}

#[test]
fn a_session_ends_with_its_client_whatever_it_is_doing() {
    let node = Node::start("busy", &["--device", "software:memory=64M,threads=2"]);
    // A kernel that never ends, with more work behind it than the session takes.
    let mut client = Client::open(node.unix(), 0).unwrap();
    let address = client.map(1);
    let image = fat_binary(
        b".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry spin()\n{\nagain:\n  bra again;\n}\n",
    );
    let module =
        Module { module: 1, device: 0, bytes: image.len() as u64, hash: *blake3::hash(&image).as_bytes() };
    client.send::<{ Module::BYTES }>(Module::WORD, |body| module.put(body), &[]);
    let part = ModulePart { module: 1 };
    client.send::<{ ModulePart::BYTES }>(ModulePart::WORD, |body| part.put(body), &image);
    let function = Function { function: 1, module: 1 };
    client.send::<{ Function::BYTES }>(Function::WORD, |body| function.put(body), b"spin");
    client.settle();
    client.send::<{ Launch::BYTES }>(Launch::WORD, |body| add(0).put(body), &[]);
    let copy = CopyIn { stream: 0, flags: 0, address };
    let bytes = vec![7; 1 << 20];
    while client.sender.wait_room(1 << 20, Some(Duration::from_secs(1))).unwrap() {
        client.send::<{ CopyIn::BYTES }>(
            CopyIn::WORD,
            |body| copy.put(body),
            &bytes[..(1 << 20) - CopyIn::BYTES],
        );
    }
    let session = ProcessHandle::open(node.status().sessions[0].session_process as i32).unwrap();
    drop(client);
    wait_for_end(&session);
    // A client that reads no answers.
    let mut client = Client::open(node.unix(), 0).unwrap();
    let address = client.map(8);
    for transfer in 0..1000 {
        let copy = CopyOut { stream: 0, transfer, address, bytes: 8 * PIECE };
        client.send::<{ CopyOut::BYTES }>(CopyOut::WORD, |body| copy.put(body), &[]);
    }
    let status = node.until("there", |status| status.sessions.first().is_some_and(|one| one.commands > 0));
    let session = ProcessHandle::open(status.sessions[0].session_process as i32).unwrap();
    drop(client);
    wait_for_end(&session);
    node.until("gone", |status| status.sessions.is_empty());
}

fn come_and_go(times: usize) {
    let node = Node::start(&format!("leak-{times}"), &SOFTWARE);
    // The first ones make what stays.
    let visit = |turn: usize| {
        let mut client = Client::open(&node.addresses[turn % 2], 0).unwrap();
        if turn.is_multiple_of(3) {
            client.map(1);
            client.settle();
        }
    };
    (0..8).for_each(visit);
    node.until("settled", |status| status.sessions.is_empty());
    let before = node.descriptors();
    (0..times).for_each(visit);
    node.until("all gone", |status| status.sessions.is_empty() && status.sessions_total == times as u64 + 8);
    let end = Instant::now() + PATIENCE;
    while node.descriptors() > before + 8 {
        assert!(Instant::now() < end, "{} descriptors, and {before} before", node.descriptors());
        std::thread::sleep(Duration::from_millis(20));
    }
    let stat =
        std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", node.child.id())).unwrap_or_default();
    assert!(stat.split_whitespace().count() <= 1, "processes are left: {stat}");
}

#[test]
fn clients_that_come_and_go_leave_nothing_behind() {
    come_and_go(40);
}

#[test]
#[ignore = "minutes: ./check --full"]
fn soak_ten_thousand_clients_come_and_go() {
    come_and_go(10_000);
}
