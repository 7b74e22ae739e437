//! Channels to test with, and bodies that can be checked.
#![allow(dead_code, reason = "each target uses a part")]

use hinterland_channel::{
    Address, Channel, ChannelError, ChannelOptions, Frame, Listener, Receiver, Rings, Sender, connect, pair,
};
use hinterland_proto::{ClientIdentity, Features, PeerLimits, PoolId, PoolKey, Role, ServerIdentity};
use hinterland_types::NodeId;
use std::path::PathBuf;
use std::time::Duration;

/// Longer than any wait of a test that passes.
pub const LONG: Option<Duration> = Some(Duration::from_secs(30));

/// Both halves of one end.
pub type End = (Sender, Receiver);

/// Small rings, so that they wrap often.
pub fn small() -> Rings {
    Rings { ring_bytes: 64 << 10, body_bytes_max: 30 << 10 }
}

pub fn shared(rings: Rings) -> (End, End) {
    let (one, other) = pair(rings).unwrap();
    (one.split().unwrap(), other.split().unwrap())
}

/// The body of frame `number`: no two are alike.
pub fn body(number: u32, bytes: usize) -> Vec<u8> {
    (0..bytes as u32)
        .map(|index| (number.wrapping_mul(0x9e37_79b9) ^ index.wrapping_mul(0x85eb_ca6b) >> 7) as u8)
        .collect()
}

/// Sends a frame, waiting for room.
pub fn send(sender: &mut Sender, word: u32, bytes: &[u8]) -> Result<(), ChannelError> {
    assert!(sender.wait_room(bytes.len(), LONG)?, "no room in all this time");
    let mut room = sender.room(word, bytes.len())?.expect("there was room");
    room.append(bytes)?;
    room.commit();
    Ok(())
}

/// Takes the next frame, waiting for it: its word and its body.
pub fn take(receiver: &mut Receiver) -> Result<(u32, Vec<u8>), ChannelError> {
    assert!(receiver.wait(LONG)?, "no frame in all this time");
    let mut frame = receiver.next()?.expect("a frame was there");
    Ok((frame.word(), frame.bytes().to_vec()))
}

/// A body read in pieces, by each way that a frame offers.
pub fn read_in_pieces(frame: &Frame<'_>, piece: usize) -> Vec<u8> {
    let mut bytes = vec![0; frame.len()];
    for (index, chunk) in bytes.chunks_mut(piece.max(1)).enumerate() {
        let offset = index * piece.max(1);
        if index % 2 == 0 {
            frame.read_at(offset, chunk).unwrap();
        } else {
            // SAFETY: the chunk is a live exclusive borrow outside of any ring.
            unsafe { frame.copy_to_address(offset, chunk.as_mut_ptr(), chunk.len()).unwrap() };
        }
    }
    bytes
}

/// A GPU node with this key.
pub fn node(key: Option<PoolKey>) -> ServerIdentity {
    let limits = PeerLimits { body_bytes_max: 1, runs_max: 1, streams_max: 1 };
    ServerIdentity { node: NodeId(3), pool: PoolId(9), key, features: Features(0), limits }
}

/// A client with this key.
pub fn client(key: Option<PoolKey>) -> ClientIdentity {
    let features = Features(0);
    ClientIdentity { role: Role::Client, node: NodeId(0), pool: PoolId::ANY, key, features, join: None }
}

/// A listener at a free port of this host.
pub fn tcp_listener(options: ChannelOptions) -> Listener {
    Listener::bind(&"tcp:127.0.0.1:0".parse().unwrap(), node(None), options).unwrap()
}

/// A path for a socket that nobody else uses, removed with its folder by [`Folder`].
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("hinterland-channel-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn address(&self) -> Address {
        Address::Unix(self.0.join("gpu.sock"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Connects to a listener, or to what stands before it: the client's end and the node's.
pub fn meet(listener: &Listener, address: &Address, options: ChannelOptions) -> (Channel, Channel) {
    std::thread::scope(|scope| {
        let admitted =
            scope.spawn(|| listener.accept(LONG).unwrap().expect("a client comes").admit().unwrap().0);
        let ours = connect(address, &client(None), options).unwrap();
        (ours, admitted.join().unwrap())
    })
}

/// Both ends of a connection over TCP, the client's first.
pub fn network(options: ChannelOptions) -> (End, End) {
    let listener = tcp_listener(options);
    let (ours, theirs) = meet(&listener, &listener.address(), options);
    (ours.split().unwrap(), theirs.split().unwrap())
}
