//! The connections to all other members of the pool, kept by a thread of its own, and one question to all of them at once.

use super::KvRemote;
use super::link::{Lane, Link};
use crate::directory_link::DirectoryLink;
use crate::peers::PeerIdentity;
use hinterland_directory::{Command, MemberState, Reply};
use hinterland_fabric::tcp::ClientOptions;
use hinterland_fabric::{Completion, FabricError, Outcome};
use hinterland_proto::control::{KvPlace, PeerReply, PeerRequest, decode, encode};
use hinterland_proto::{ErrorCode, RemoteError, Role};
use hinterland_types::{Handle, NodeId};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long who opens KV blocks first waits for the connections to others.
const WANT_WITHIN: Duration = Duration::from_secs(1);

/// How blocks of another node are read.
#[derive(Clone)]
pub(super) struct Way {
    /// The connection on which they were found.
    pub link: Arc<Link>,
    /// Its life: the handle means nothing on a later one.
    pub life: u64,
    /// For reads of the blocks file.
    pub handle: Handle,
}

impl Way {
    /// Whether both are the same.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.link, &other.link) && (self.life, self.handle) == (other.life, other.handle)
    }
}

/// A block of another node.
#[derive(Clone)]
pub(super) struct Spot {
    /// How it is read.
    pub way: Way,
    /// Its length.
    pub bytes: u32,
    /// Where it lies in the node's memory; `None`: it is on its disk.
    pub place: Option<KvPlace>,
}

/// A question that was asked, and its answer is on the way.
pub(super) struct Asked {
    lane: Lane,
    count: usize,
}

/// All connections.
pub(super) struct Links {
    identity: PeerIdentity,
    directory: Arc<DirectoryLink>,
    options: KvRemote,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    links: Vec<Arc<Link>>,
    /// Somebody has opened KV blocks on this host.
    is_wanted: bool,
    /// Times that all members have been tried.
    rounds: u64,
    stopping: bool,
}

impl Links {
    /// None yet.
    pub(super) fn new(identity: PeerIdentity, directory: Arc<DirectoryLink>, options: KvRemote) -> Self {
        Self { identity, directory, options, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Connects from here on; the first caller waits until each member has been tried once, but not long.
    pub(super) fn want(&self) {
        let mut state = self.lock();
        state.is_wanted = true;
        self.changed.notify_all();
        let until = Instant::now() + WANT_WITHIN;
        while state.rounds == 0 && !state.stopping {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Keeps connections until [`stop`](Self::stop).
    pub(super) fn keep(&self) {
        loop {
            let state = self.lock();
            let waiting = self.changed.wait_while(state, |state| !state.is_wanted && !state.stopping);
            if waiting.unwrap_or_else(PoisonError::into_inner).stopping {
                return;
            }
            self.round();
            let mut state = self.lock();
            state.rounds += 1;
            self.changed.notify_all();
            let pause = self.changed.wait_timeout_while(state, self.options.refresh, |state| !state.stopping);
            drop(pause.unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Ends the thread that keeps connections.
    pub(super) fn stop(&self) {
        self.lock().stopping = true;
        self.changed.notify_all();
    }

    /// Nodes that are asked, and nodes that are left alone for a while.
    pub(super) fn counts(&self) -> (u32, u32) {
        let links = self.lock().links.clone();
        let count = |of: fn(&Link) -> bool| links.iter().filter(|link| of(link)).count() as u32;
        (count(Link::is_usable), count(Link::is_resting))
    }

    /// Asks every node where blocks lie; for each key all places, the nodes in the same order. Nodes that do not answer in
    /// time have none, and are left alone for a while.
    pub(super) fn find(&self, user: u32, fingerprint: [u8; 32], keys: &[Vec<u8>]) -> Vec<Vec<Spot>> {
        let mut spots = vec![Vec::new(); keys.len()];
        let links: Vec<_> = self.lock().links.iter().filter(|link| link.is_usable()).cloned().collect();
        // A key has 64 bytes at most and there are not too many, so a message takes them: it was checked.
        let Ok(body) = encode(&PeerRequest::KvFind { user, fingerprint, keys: keys.to_vec() }) else {
            return spots;
        };
        let until = Instant::now() + self.options.find_within;
        let asked = links.iter().filter_map(|link| {
            let mut lane = link.lane(until)?;
            match lane.queue().and_then(|queue| queue.post_call(0, &body)) {
                Ok(()) => Some(lane),
                Err(error) => {
                    self.give_up(&lane, &error);
                    None
                }
            }
        });
        // All are asked before the first answer is waited for.
        for mut lane in asked.collect::<Vec<_>>() {
            match answer(&mut lane, until).and_then(|reply| found(lane.node(), reply, keys.len())) {
                Ok(found) => {
                    for (spots, its) in spots.iter_mut().zip(found.spots(&lane)) {
                        spots.extend(its);
                    }
                    lane.give_back();
                }
                Err(error) => self.give_up(&lane, &error),
            }
        }
        for spots in &mut spots {
            // What has to be read from a disk is asked for last.
            spots.sort_by_key(|spot| spot.place.is_none());
        }
        spots
    }

    /// Asks a node to bring blocks from its disk into its memory; `None` if it cannot be asked.
    pub(super) fn stage(
        &self,
        mut lane: Lane,
        user: u32,
        fingerprint: [u8; 32],
        keys: Vec<Vec<u8>>,
    ) -> Option<Asked> {
        let count = keys.len();
        // As for a question where they are: a message takes them.
        let body = encode(&PeerRequest::KvStage { user, fingerprint, keys }).ok()?;
        match lane.queue().and_then(|queue| queue.post_call(0, &body)) {
            Ok(()) => Some(Asked { lane, count }),
            Err(error) => {
                self.give_up(&lane, &error);
                None
            }
        }
    }

    /// Waits for what came of it: where each block lies now, and the lane. A disk that takes too long only costs these blocks.
    pub(super) fn staged(&self, asked: Asked) -> Option<(Lane, Found)> {
        let Asked { mut lane, count } = asked;
        let until = Instant::now() + self.options.stall_after;
        match answer(&mut lane, until).and_then(|reply| found(lane.node(), reply, count)) {
            Ok(found) => Some((lane, found)),
            Err(error @ FabricError::Timeout { .. }) => {
                // Without a word the stream is closed, and the others stay.
                tracing::warn!(node = lane.called(), %error, "no KV blocks from the disk of a node");
                None
            }
            Err(error) => {
                self.give_up(&lane, &error);
                None
            }
        }
    }

    /// A node failed: if it is only gone, it is looked for again soon; if it was silent or makes no sense, not for a while.
    pub(super) fn give_up(&self, lane: &Lane, error: &FabricError) {
        tracing::warn!(node = lane.called(), %error, "no KV blocks from a node");
        let is_gone = matches!(
            error,
            FabricError::Closed { .. } | FabricError::SessionLost { .. } | FabricError::Connect { .. }
        );
        let rest = if is_gone { Duration::ZERO } else { self.options.rest };
        lane.link().fail(lane.life, rest);
    }

    /// Looks up the members and connects to those without a connection.
    fn round(&self) {
        let members = match self.directory.apply(&Command::Members) {
            Ok(Reply::Members(members)) => members,
            // Those that are known stay.
            Ok(_) | Err(_) => return self.connect(),
        };
        let mut state = self.lock();
        let before = std::mem::take(&mut state.links);
        for member in members {
            if member.node != self.identity.node && matches!(member.state, MemberState::Up) {
                let known = before.iter().find(|link| link.leads_to(member.node, &member.address)).cloned();
                let link = known.unwrap_or_else(|| Arc::new(Link::new(member)));
                state.links.push(link);
            }
        }
        drop(state);
        self.connect();
    }

    fn connect(&self) {
        let links = self.lock().links.clone();
        for link in links {
            let options = ClientOptions {
                streams: 1,
                timeout: self.options.stall_after,
                role: Role::Node,
                node: self.identity.node,
                pool: self.identity.pool,
                key: self.identity.credentials.key.clone(),
                tls: self.identity.credentials.tls.clone(),
                ..ClientOptions::default()
            };
            link.connect(options, self.identity.rdma.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for the answer to the one call of a lane.
fn answer(lane: &mut Lane, until: Instant) -> Result<PeerReply, FabricError> {
    let peer = lane.node();
    let mut completions: Vec<Completion> = Vec::with_capacity(1);
    let begun = Instant::now();
    lane.queue()?.poll(&mut completions, until.saturating_duration_since(begun))?;
    let body = match completions.pop() {
        Some(Completion { result, .. }) => result?,
        None => return Err(FabricError::Timeout { peer, during: "a call", after: begun.elapsed() }),
    };
    let Outcome::Reply(body) = body else { return Err(senseless(peer)) };
    decode(&body).map_err(|_| senseless(peer))
}

/// What a node has.
pub(super) struct Found {
    /// For reads of the blocks file.
    pub handle: Handle,
    /// Where blocks lie in its memory, in the order in which they were asked for.
    pub places: Vec<Option<KvPlace>>,
    on_disk: Vec<Option<u32>>,
}

impl Found {
    /// For each key where it has the block, in memory before on the disk.
    fn spots(self, lane: &Lane) -> Vec<Vec<Spot>> {
        let way = Way { link: Arc::clone(lane.link()), life: lane.life, handle: self.handle };
        let on_disk = self.on_disk.into_iter().chain(std::iter::repeat(None));
        let spots = |(place, on_disk): (Option<KvPlace>, Option<u32>)| {
            let spot = |bytes, place| Spot { way: way.clone(), bytes, place };
            let in_memory = place.map(|place| spot(place.bytes, Some(place)));
            in_memory.into_iter().chain(on_disk.map(|bytes| spot(bytes, None))).collect()
        };
        self.places.into_iter().zip(on_disk).map(spots).collect()
    }
}

/// An answer that makes sense.
fn found(peer: NodeId, reply: PeerReply, count: usize) -> Result<Found, FabricError> {
    match reply {
        // It has no store of this user, or does not answer others.
        PeerReply::KvFound { handle: None, .. } => {
            Ok(Found { handle: Handle(0), places: Vec::new(), on_disk: Vec::new() })
        }
        PeerReply::KvFound { handle: Some(handle), places, on_disk }
            if places.len() == count && (on_disk.is_empty() || on_disk.len() == count) =>
        {
            Ok(Found { handle, places, on_disk })
        }
        PeerReply::Error { text, .. } => {
            Err(FabricError::Remote { peer, error: RemoteError::new(ErrorCode::APPLICATION, text) })
        }
        _ => Err(senseless(peer)),
    }
}

/// The error for an answer that does not belong to the question.
pub(super) const fn senseless(peer: NodeId) -> FabricError {
    let what = "it is an answer to something else";
    FabricError::WrongAnswer { peer, during: "a question about KV blocks", what }
}
