//! A node in this process, clients of it that behave, and one that does not.

use hinterland_node::{BackingChoice, Node, NodeOptions};
use hinterland_os::PageKind;
use hinterland_os::socket::UnixStream;
use hinterland_pool::{Pool, PutOptions, Session};
use hinterland_proto::control::{Reply, decode};
use hinterland_proto::{
    ClientHandshake, ClientIdentity, ClientStep, Features, FrameHeader, FrameKind, FrameSender, HEADER_BYTES,
    PoolId, Role,
};
use hinterland_types::{NodeId, ObjectName, RackName};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long anything may take that does not take long.
const LONG: Duration = Duration::from_secs(20);

/// A node of its own in a temporary folder; both go with it.
pub struct Ground {
    node: Option<Node>,
    folder: PathBuf,
    socket: PathBuf,
}

impl Ground {
    /// Starts a node of 4 KiB pages.
    pub fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("hl-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let socket = folder.join("n.sock");
        let rack = RackName::parse("r").unwrap();
        let listen = "127.0.0.1:0".parse().unwrap();
        let mut options =
            NodeOptions::new(name.parse().unwrap(), rack, socket.clone(), folder.join("state"), listen);
        options.backing = BackingChoice::Pages(PageKind::Base4K);
        options.capacity_bytes = 256 << 20;
        options.lease = Duration::from_secs(60);
        Self { node: Some(Node::start(options).unwrap()), folder, socket }
    }

    /// Where other hosts reach it.
    pub fn address(&self) -> String {
        self.node.as_ref().unwrap().core_address()
    }

    /// A client of the pool.
    pub fn pool(&self) -> Pool {
        Pool::connect(Some(&self.socket)).unwrap()
    }

    /// A session without anything around it.
    pub fn session(&self) -> Session {
        Session::connect(Some(&self.socket)).unwrap()
    }

    /// Puts an object of zeros and ones.
    pub fn put(&self, pool: &Pool, object: &str, bytes: usize) {
        let data = vec![1; bytes];
        let options = PutOptions { bytes: Some(bytes as u64), ..PutOptions::default() };
        pool.put(&mut &data[..], &name(object), &options, &mut |_| {}).unwrap();
    }

    /// A client that is through the handshake.
    pub fn peer(&self) -> Peer {
        Peer::connect(UnixStream::connect(&self.socket, LONG).unwrap())
    }

    /// A client of another host that is through the handshake.
    pub fn distant_peer(&self) -> Peer {
        let stream = std::net::TcpStream::connect(self.address()).unwrap();
        Peer::connect(UnixStream::from_descriptor(stream.into()))
    }

    /// Waits until only the session of `pool` is open; then there must be so many objects and nothing else.
    pub fn settles(&self, pool: &Pool, objects: usize) {
        let deadline = Instant::now() + LONG;
        while pool.status().unwrap().sessions > 1 {
            assert!(Instant::now() < deadline, "sessions stay open: {:?}", pool.status());
            std::thread::sleep(Duration::from_millis(5));
        }
        let found: Vec<_> =
            pool.list("").unwrap().into_iter().filter(|info| !is_segment(&info.name)).collect();
        assert_eq!(found.len(), objects, "{found:?}");
        let segments = pool.list("segments/").unwrap().iter().map(|info| info.bytes).sum::<u64>();
        let most = segments + found.iter().map(|info| info.bytes.next_multiple_of(2 << 20)).sum::<u64>();
        let used = pool.status().unwrap().used_bytes;
        assert!(used <= most, "{used} bytes are in use for objects of {most}");
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if let Some(node) = self.node.take() {
            node.stop();
        }
        let number = std::fs::read_to_string(self.folder.join("state/node.id")).unwrap_or_default();
        // Whatever is left of it is of no use to anybody.
        for kind in ["hinterland", "memory"] {
            let _ = std::fs::remove_dir_all(format!("/dev/shm/{kind}-{}", number.trim()));
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn is_segment(name: &ObjectName) -> bool {
    name.as_str().starts_with("segments/")
}

/// An object's name.
pub fn name(text: &str) -> ObjectName {
    ObjectName::parse(text).unwrap()
}

/// A connection that sends what it likes.
pub struct Peer {
    stream: UnixStream,
    sender: FrameSender,
}

impl Peer {
    fn connect(stream: UnixStream) -> Self {
        stream.set_receive_timeout(Some(LONG)).unwrap();
        stream.set_send_timeout(Some(Duration::from_millis(200))).unwrap();
        let identity = ClientIdentity {
            role: Role::Client,
            node: NodeId(0),
            pool: PoolId::ANY,
            key: None,
            features: Features(0),
            join: None,
        };
        let (mut handshake, hello) = ClientHandshake::new(identity, [7; 32]);
        stream.send_all(&hello, &[]).unwrap();
        let mut input = Vec::new();
        loop {
            let mut buffer = [0; 1024];
            let received = stream.receive(&mut buffer, &mut Vec::new()).unwrap();
            input.extend_from_slice(&buffer[..received]);
            loop {
                let (taken, step) = handshake.receive(&input).unwrap();
                input.drain(..taken);
                match step {
                    ClientStep::Wait => break,
                    ClientStep::Send(bytes) => stream.send_all(&bytes, &[]).unwrap(),
                    ClientStep::Done(done) => {
                        return Self { stream, sender: FrameSender::new(done.send_sequence) };
                    }
                }
            }
        }
    }

    /// A header with its sequence number, which is right.
    pub fn sealed(&mut self, header: FrameHeader) -> Vec<u8> {
        self.sender.seal(header).to_vec()
    }

    /// Sends what the node takes; it may have closed.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        // A node that has closed, or that waits for its answers to be read, is what these tests are about.
        let _ = self.stream.send_all(bytes, descriptors);
    }

    /// Sends nothing more.
    pub fn finish(&self) {
        self.stream.shutdown();
    }

    /// Reads until the node closes.
    pub fn drain(&self) {
        let mut buffer = [0; 4096];
        while self.stream.receive(&mut buffer, &mut Vec::new()).is_ok_and(|bytes| bytes > 0) {}
    }

    /// Calls with a body of any bytes and takes the answer; `false` if the node has closed.
    pub fn call(&mut self, body: &[u8]) -> bool {
        self.ask(body).is_some()
    }

    /// Calls with a body of any bytes; the answer, or `None` if the node has closed.
    pub fn ask(&mut self, body: &[u8]) -> Option<Reply> {
        let header = self.sealed(FrameHeader::new(FrameKind::Call, 0, body.len() as u32));
        self.send(&[&header, body].concat(), &[]);
        let mut bytes = [0; HEADER_BYTES];
        if self.stream.receive_exact(&mut bytes, &mut Vec::new()).is_err() {
            return None;
        }
        let header = FrameHeader::parse(&bytes).unwrap();
        let mut body = vec![0; header.body_bytes as usize];
        self.stream.receive_exact(&mut body, &mut Vec::new()).unwrap();
        assert_eq!(header.kind, FrameKind::Reply);
        Some(decode::<Reply>(&body).unwrap())
    }
}

/// Numbers that look random and are the same in every run.
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 16
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
