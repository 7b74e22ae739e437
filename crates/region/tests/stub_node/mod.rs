//! A node in a process of its own that serves made-up objects, so that it can be told things and killed.
//!
//! The test program starts itself again with the name of the test [`run_if_asked`] is called in. Orders go to its stdin,
//! one a line; each is answered by a line on stdout that starts with `stub: `.

// Each test program uses what it needs of this, and a failure here is a failed test.
#![allow(dead_code, clippy::unwrap_used)]

use hinterland_os::poll::wait_readable;
use hinterland_os::socket::{UnixListener, UnixStream};
use hinterland_os::userfault::{Event, Scope};
use hinterland_os::{MapOptions, Mapping, MemoryFile, PageKind, Userfault};
use hinterland_pool::local::LocalStream;
use hinterland_proto::control::{
    Mapped, Notice, NoticeReply, ObjectInfo, ObjectState, Opened, ProbeRange, Reply, Request, decode, encode,
};
use hinterland_proto::{FrameHeader, FrameKind, PeerLimits, PoolId, ServerIdentity};
use hinterland_types::{GlobalAddress, Handle, NodeId, ObjectId, ObjectName, Rights, SessionId};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Fault unit of the made-up objects of base pages.
const UNIT_BYTES: u64 = 64 << 10;
const SOCKET_VARIABLE: &str = "STUB_NODE_SOCKET";
/// Objects that it has from its start on: number, length and kind of each, with commas between them.
const OBJECTS_VARIABLE: &str = "STUB_NODE_OBJECTS";

/// The byte of an object at an offset; never zero.
pub fn byte_of(object: u64, offset: u64) -> u8 {
    (((offset >> 12) * 131 + (offset & 4095) * 7 + object * 13) % 255 + 1) as u8
}

/// Where an object lies in the window.
pub fn address_of(object: u64) -> GlobalAddress {
    GlobalAddress::new((object % 4096) << 30).unwrap()
}

/// The node, as the test sees it; killed when it is dropped.
pub struct StubNode {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Where it listens.
    pub socket: PathBuf,
}

impl StubNode {
    /// Starts a node that listens at a path and knows no objects.
    pub fn start(test: &str, socket: &Path) -> Self {
        Self::start_with(test, socket, "")
    }

    /// Starts a node that knows objects, each `NUMBER BYTES KIND`, before anybody can ask for them.
    pub fn start_with(test: &str, socket: &Path, objects: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(SOCKET_VARIABLE, socket)
            .env(OBJECTS_VARIABLE, objects)
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut node = Self { child, orders, answers, socket: socket.to_path_buf() };
        assert_eq!(node.answer(), "ready");
        node
    }

    /// Gives an order and waits for the answer.
    pub fn order(&mut self, text: &str) -> String {
        writeln!(self.orders, "{text}").unwrap();
        self.answer()
    }

    /// Adds an object; `kind` is `base`, `huge`, `local`, or `homeless` for one that cannot be mapped.
    pub fn add(&mut self, object: u64, bytes: u64, kind: &str) {
        assert_eq!(self.order(&format!("object {object} {bytes} {kind}")), "done");
    }

    /// Units filled since the start.
    pub fn fills(&mut self) -> u64 {
        self.order("fills").parse().unwrap()
    }

    /// Ends it at once, as a crash would.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.answers.read_line(&mut line).unwrap() > 0, "the stub node ended");
            if let Some((_, text)) = line.split_once("stub: ") {
                return text.trim_end().to_owned();
            }
        }
    }
}

impl Drop for StubNode {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Object {
    object: u64,
    bytes: u64,
    file: MemoryFile,
    armed: bool,
    homeless: bool,
    unit: u64,
    filled: Mutex<Vec<bool>>,
    /// The node's own mapping of a file of huge pages.
    own: Option<Arc<Mapping>>,
}

/// Whether a session lasts.
type Alive = Arc<AtomicBool>;

#[derive(Default)]
struct Node {
    objects: Mutex<HashMap<u64, Arc<Object>>>,
    removed: Mutex<HashMap<u64, Arc<Object>>>,
    watchers: Mutex<Vec<(Alive, UnixStream)>>,
    ranges: Mutex<Vec<(u64, u64, u64, u64)>>,
    requests: Mutex<Vec<String>>,
    fills: AtomicU64,
    /// Whether faults are left waiting.
    deaf: AtomicBool,
}

/// Becomes a node if the environment says so, and then never returns.
pub fn run_if_asked() {
    let Some(socket) = std::env::var_os(SOCKET_VARIABLE) else { return };
    let node = Arc::new(Node::default());
    for object in std::env::var(OBJECTS_VARIABLE).unwrap_or_default().split_terminator(',') {
        node.obey(&std::iter::once("object").chain(object.split_whitespace()).collect::<Vec<_>>());
    }
    let _ = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(Path::new(&socket)).unwrap();
    let accepting = Arc::clone(&node);
    std::thread::spawn(move || {
        loop {
            if let Ok(Some(stream)) = listener.accept(None) {
                let node = Arc::clone(&accepting);
                std::thread::spawn(move || node.session(stream));
            }
        }
    });
    println!("stub: ready");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        println!("stub: {}", node.obey(&words));
    }
    std::process::exit(0);
}

impl Node {
    fn obey(&self, words: &[&str]) -> String {
        let number = |index: usize| words[index].parse::<u64>().unwrap();
        match words[0] {
            "object" => {
                let object = Arc::new(Object::new(number(1), number(2), words[3]));
                self.objects.lock().unwrap().insert(number(1), object);
            }
            "remove" => {
                // Whoever has it mapped is served on.
                let removed = self.objects.lock().unwrap().remove(&number(1)).unwrap();
                self.removed.lock().unwrap().insert(number(1), removed);
            }
            "fills" => return self.fills.load(Ordering::SeqCst).to_string(),
            "deaf" => self.deaf.store(number(1) == 1, Ordering::SeqCst),
            "evict" => {
                let object = Arc::clone(&self.objects.lock().unwrap()[&number(1)]);
                let mut filled = object.filled.lock().unwrap();
                object.file.punch(0, object.file.len()).unwrap();
                filled.fill(false);
            }
            "lost" => return format!("{:?}", self.notify(Notice::Lost { text: words[1..].join(" ") })),
            "unmap" | "touched" => {
                let ranges = vec![ProbeRange { pointer: number(1), bytes: number(2) }];
                let notice = if words[0] == "unmap" {
                    Notice::Unmap { id: 7, ranges }
                } else {
                    Notice::Touched { id: 8, ranges }
                };
                return format!("{:?}", self.notify(notice));
            }
            "requests" => return self.requests.lock().unwrap().drain(..).collect::<Vec<_>>().join(" | "),
            "registered" => return format!("{:x?}", self.ranges.lock().unwrap()),
            other => return format!("unknown order {other}"),
        }
        "done".to_owned()
    }

    fn notify(&self, notice: Notice) -> Vec<NoticeReply> {
        let mut replies = Vec::new();
        let body = encode(&notice).unwrap();
        for (_, stream) in self.watchers.lock().unwrap().iter() {
            let mut frame = (body.len() as u32).to_le_bytes().to_vec();
            frame.extend_from_slice(&body);
            let mut length = [0; 4];
            if stream.send_all(&frame, &[]).is_err()
                || stream.receive_exact(&mut length, &mut Vec::new()).is_err()
            {
                continue;
            }
            let mut reply = vec![0; u32::from_le_bytes(length) as usize];
            stream.receive_exact(&mut reply, &mut Vec::new()).unwrap();
            replies.push(decode(&reply).unwrap());
        }
        replies
    }

    fn session(self: Arc<Self>, stream: UnixStream) {
        let identity = ServerIdentity {
            node: NodeId(1),
            pool: PoolId::ANY,
            key: None,
            features: hinterland_proto::Features(0),
            limits: PeerLimits { body_bytes_max: 1 << 20, runs_max: 1, streams_max: 1 },
        };
        let admitted = LocalStream::answer(stream, identity, |_| Ok((SessionId(1), [0; 32])));
        let Ok(Some((mut stream, _))) = admitted else { return };
        let alive = Arc::new(AtomicBool::new(true));
        self.converse(&mut stream, &alive);
        // What the session held ends with it: faults are not served any more, and the channel of notices closes.
        alive.store(false, Ordering::SeqCst);
        self.watchers.lock().unwrap().retain(|(other, _)| !Arc::ptr_eq(other, &alive));
    }

    fn converse(self: &Arc<Self>, stream: &mut LocalStream, alive: &Alive) {
        let mut handles: Vec<Arc<Object>> = Vec::new();
        while let Ok((header, descriptors)) = stream.receive_header() {
            let Ok(body) = stream.receive_whole(&header) else { return };
            let request: Request = decode(&body).unwrap();
            self.requests.lock().unwrap().push(format!("{request:?}"));
            let (reply, out) = self.reply(request, descriptors, &mut handles, alive);
            let body = encode(&reply).unwrap();
            let borrowed: Vec<BorrowedFd<'_>> = out.iter().map(AsFd::as_fd).collect();
            let mut answer = FrameHeader::new(FrameKind::Reply, header.request, body.len() as u32);
            answer.request = header.request;
            if stream.send(answer, &[&body], &borrowed).is_err() {
                return;
            }
        }
    }

    fn reply(
        self: &Arc<Self>,
        request: Request,
        mut descriptors: Vec<OwnedFd>,
        handles: &mut Vec<Arc<Object>>,
        alive: &Alive,
    ) -> (Reply, Vec<OwnedFd>) {
        let find = |object: u64| self.objects.lock().unwrap().get(&object).cloned();
        match request {
            Request::Open { name, .. } => {
                let object = name.as_str().strip_prefix("object-").and_then(|text| text.parse().ok());
                (opened(object.and_then(find), handles), Vec::new())
            }
            Request::OpenObject { object, .. } => (opened(find(object.0), handles), Vec::new()),
            Request::Map { handle } => {
                let object = &handles[handle.0 as usize];
                if object.homeless {
                    let text = "none of its homes is up (hint: bring one back)".to_owned();
                    return (Reply::Error { code: libc::EIO, text }, Vec::new());
                }
                let descriptor = object.file.reopen_read_only().unwrap();
                (Reply::Mapped(object.mapped()), vec![descriptor])
            }
            Request::Register { handle, pointer, offset, bytes } => {
                let object = Arc::clone(&handles[handle.0 as usize]);
                let guard = Userfault::from_descriptor(descriptors.pop().unwrap(), Scope::Full);
                let mut ranges = self.ranges.lock().unwrap();
                ranges.push((object.object, pointer, offset, bytes));
                let registration = ranges.len() as u64;
                drop(ranges);
                let (node, alive) = (Arc::clone(self), Arc::clone(alive));
                std::thread::spawn(move || node.serve(&guard, &alive));
                (Reply::Registered { registration }, Vec::new())
            }
            Request::Watch => {
                let (one, other) = UnixStream::pair().unwrap();
                self.watchers.lock().unwrap().push((Arc::clone(alive), one));
                (Reply::Done, vec![other.as_fd().try_clone_to_owned().unwrap()])
            }
            _ => (Reply::Done, Vec::new()),
        }
    }

    /// Serves faults as long as the session lasts. Several registrations share a descriptor, so each answers for all
    /// that it reads.
    fn serve(&self, guard: &Userfault, alive: &Alive) {
        while alive.load(Ordering::SeqCst) {
            let mut events = Vec::new();
            if wait_readable(guard.as_fd(), Some(Duration::from_millis(100))).is_err() {
                return;
            }
            if self.deaf.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
            if guard.read_events(&mut events).is_err() {
                return;
            }
            for event in events {
                let Event::Fault(fault) = event else { continue };
                let ranges = self.ranges.lock().unwrap().clone();
                // The latest registration of an address is the one that holds.
                let range = ranges
                    .iter()
                    .rev()
                    .find(|(_, start, _, length)| (*start..start + length).contains(&fault.address));
                let Some((object, start, offset, length)) = range.copied() else { continue };
                let Some(object) = self.served(object) else { continue };
                let place = fault.address - start + offset;
                let unit = place - place % object.unit;
                self.fill(&object, unit);
                let low = unit.max(offset);
                let high = (unit + object.unit).min(offset + length);
                let target = start + low - offset;
                if object.own.is_some() {
                    let _ = guard.continue_range(target, high - low, 2 << 20);
                }
                let _ = guard.wake(target, high - low);
            }
        }
    }

    fn served(&self, object: u64) -> Option<Arc<Object>> {
        let found = self.objects.lock().unwrap().get(&object).cloned();
        found.or_else(|| self.removed.lock().unwrap().get(&object).cloned())
    }

    fn fill(&self, object: &Object, unit: u64) {
        let mut filled = object.filled.lock().unwrap();
        let index = (unit / object.unit) as usize;
        if filled[index] {
            return;
        }
        let end = (unit + object.unit).min(object.bytes);
        let bytes: Vec<u8> = (unit..end).map(|offset| byte_of(object.object, offset)).collect();
        match &object.own {
            Some(own) => own.slice().write_at(unit as usize, &bytes).unwrap(),
            None => object.file.write_at(unit, &bytes).unwrap(),
        }
        filled[index] = true;
        self.fills.fetch_add(1, Ordering::SeqCst);
    }
}

fn opened(object: Option<Arc<Object>>, handles: &mut Vec<Arc<Object>>) -> Reply {
    let Some(object) = object else {
        return Reply::Error { code: 2, text: "no such object (hint: add it)".to_owned() };
    };
    let info = object.info();
    handles.push(object);
    let handle = Handle(handles.len() as u32 - 1);
    Reply::Opened(Opened { handle, rights: Rights::READ, info, local: false })
}

impl Object {
    fn new(object: u64, bytes: u64, kind: &str) -> Self {
        let huge = kind == "huge";
        let page: u64 = if huge { 2 << 20 } else { 4096 };
        let pages = if huge { PageKind::Huge2M } else { PageKind::Base4K };
        let file_bytes = bytes.next_multiple_of(page);
        let file = MemoryFile::anonymous("stub", file_bytes, pages).unwrap();
        let own = huge.then(|| {
            let options = MapOptions { write: true, ..MapOptions::default() };
            Arc::new(file.map(0, file_bytes as usize, options).unwrap())
        });
        let unit = if huge { 2 << 20 } else { UNIT_BYTES };
        let armed = kind != "local";
        let units = bytes.div_ceil(unit) as usize;
        let filled = Mutex::new(vec![false; units]);
        let new = Self { object, bytes, file, armed, homeless: kind == "homeless", unit, filled, own };
        if !armed {
            let all: Vec<u8> = (0..bytes).map(|offset| byte_of(object, offset)).collect();
            new.file.write_at(0, &all).unwrap();
        }
        new
    }

    fn info(&self) -> ObjectInfo {
        ObjectInfo {
            object: ObjectId(self.object),
            name: ObjectName::parse(&format!("object-{}", self.object)).unwrap(),
            state: ObjectState::Sealed,
            bytes: self.bytes,
            address: Some(address_of(self.object)),
            copies: 1,
            homes: Vec::new(),
            digest: [self.object as u8; 32],
        }
    }

    fn mapped(&self) -> Mapped {
        Mapped {
            bytes: self.bytes,
            file_bytes: self.file.len(),
            address: address_of(self.object),
            armed: self.armed,
            minor: self.own.is_some(),
            page_bytes: if self.own.is_some() { 2 << 20 } else { 4096 },
            writable: false,
        }
    }
}
