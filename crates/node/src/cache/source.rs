//! Where the bytes of a cached object come from: its homes, tried in order, every block checked.

use super::Near;
use crate::directory_link::{DirectoryLink, describe, describe_near};
use crate::peers::Peers;
use crate::refused::{Refused, errno};
use hinterland_fabric::{Endpoint, FabricError, Intake, Lease, Outcome};
use hinterland_proto::checksum::{block_count, crc32c, digest};
use hinterland_proto::control::{Home, ObjectInfo, PeerReply, PeerRequest, decode, encode};
use hinterland_proto::machine::{
    Body, Fetch, FetchAction, FetchEvent, FetchFailure, FetchLimits, FetchMachine,
};
use hinterland_types::limits::CHECKSUM_BLOCK_BYTES;
use hinterland_types::{ByteRange, Handle, NodeId};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of one read: one frame of the connection. While a piece is checked and used, the next ones are on their way.
const PIECE_BYTES: u64 = 256 << 10;
/// Bytes of one read where nothing is used before all is there.
const UNCUT_BYTES: u64 = 2 << 20;
/// Pieces that are asked for at once.
const WINDOW: usize = 8;
/// Handles that are kept for reads under way: more than there are threads that fetch one object at once.
const LEASES_MAX: usize = 64;
/// How long a home that failed is asked only if no other home has the bytes.
const AVOIDED_FOR: Duration = Duration::from_secs(30);
/// How long ago homes were tried that are tried again before bytes are given up: a node starts in less.
const TRIED_LONG_AGO: Duration = Duration::from_secs(1);
/// Longest sleep for an answer before the deadlines are looked at.
const POLL: Duration = Duration::from_millis(100);

/// A sealed object that other nodes hold.
pub struct Source {
    info: Mutex<ObjectInfo>,
    blocks: Vec<u32>,
    peers: Arc<Peers>,
    directory: Arc<DirectoryLink>,
    attached: Mutex<HashMap<NodeId, Attached>>,
    /// Handles that reads which are under way may use, the latest last. They are given back with the source.
    leases: Mutex<VecDeque<Arc<Lease>>>,
    /// Homes that failed, and when.
    avoided: Mutex<HashMap<NodeId, Instant>>,
    own: NodeId,
    /// Whether a fetch is cut into pieces that are used as they come.
    pub is_pipelined: bool,
    /// What is near; `None` for who is to read other homes and count nothing.
    pub near: Option<Near>,
    /// Whether bytes have come from another rack of late.
    is_far: AtomicBool,
    tallies: Arc<SourceTallies>,
}

/// Counters of all sources together, which outlive each of them.
#[derive(Debug, Default)]
pub struct SourceTallies {
    /// Reads that went to another home after a failure.
    pub failovers: AtomicU64,
    /// Blocks whose checksum was wrong.
    pub checksum_failures: AtomicU64,
    /// Bytes received.
    pub received_bytes: AtomicU64,
}

#[derive(Clone)]
struct Attached {
    endpoint: Arc<dyn Endpoint>,
    handle: Handle,
}

impl Source {
    /// Finds a home, which keeps the object for it from then on, and learns the checksums, which must agree with the directory's digest.
    /// What happens is counted in `tallies`.
    ///
    /// # Errors
    /// [`Refused`] if no home answers or all answer with wrong checksums; `ENOENT` if it was removed.
    pub fn open(
        info: ObjectInfo,
        peers: Arc<Peers>,
        directory: Arc<DirectoryLink>,
        own: NodeId,
        tallies: Arc<SourceTallies>,
    ) -> Result<Self, Refused> {
        let mut source = Self {
            info: Mutex::new(info),
            blocks: Vec::new(),
            peers,
            directory,
            attached: Mutex::default(),
            leases: Mutex::default(),
            avoided: Mutex::default(),
            own,
            is_pipelined: true,
            near: None,
            is_far: AtomicBool::new(false),
            tallies,
        };
        source.blocks = source.try_homes("checksums", |source, home| {
            let blocks = source.fetch_blocks(home)?;
            if !blocks.is_empty() {
                // Who has opened it reads on when it is removed: the home keeps its bytes for the handle.
                source.attach(home)?;
            }
            Ok(blocks)
        })?;
        Ok(source)
    }

    /// What is known of the object.
    pub fn info(&self) -> ObjectInfo {
        self.info.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The crc32c of a block of 64 KiB.
    pub fn checksum(&self, block: u64) -> Option<u32> {
        usize::try_from(block).ok().and_then(|block| self.blocks.get(block).copied())
    }

    /// Reads a range that starts at a multiple of 64 KiB and ends at one or at the end of the object into an intake, from
    /// its start on. Every block is checked; each piece that is right is delivered at once, while the next ones are on
    /// their way. The fetch machine of the protocol chooses the homes, the same that the simulator runs.
    ///
    /// # Errors
    /// [`Refused`] lists what every home said, or is what `deliver` refused; pieces may have been delivered before.
    pub fn fetch(
        &self,
        range: ByteRange,
        intake: &mut Intake,
        deliver: &mut dyn FnMut(&mut Intake, ByteRange) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        if self.copy_own(range, intake) || self.copy_shelf(range, intake) {
            return deliver(intake, range);
        }
        let info = self.info();
        match self.fetch_once(&info, range, intake, deliver) {
            Err(Stop::Lost(refused)) => {
                match self.look_again(&info.homes) {
                    Again::Removed => return Err(self.removed()),
                    Again::Nowhere => return Err(refused),
                    Again::Perhaps => tracing::debug!(%refused, "asking homes again"),
                }
                self.fetch_once(&self.info(), range, intake, deliver).map_err(Stop::into_inner)
            }
            result => result.map_err(Stop::into_inner),
        }
    }

    /// The directory's answer to somebody who opens the object again: it may know a home in this rack, where none was known. Else what is
    /// known stays, which may be younger.
    pub fn learn(&self, found: &ObjectInfo) {
        let mut info = self.info.lock().unwrap_or_else(PoisonError::into_inner);
        if found.digest == info.digest && !self.has_near(&info.homes) && self.has_near(&found.homes) {
            info.homes.clone_from(&found.homes);
        }
    }

    /// Whether bytes have come from another rack since [`look_for_near`](Self::look_for_near) was last called.
    pub fn is_far(&self) -> bool {
        // Relaxed: see `count`.
        self.is_far.load(Ordering::Relaxed)
    }

    /// Whether one of the homes is in this rack, if that counts here.
    fn has_near(&self, homes: &[Home]) -> bool {
        self.near
            .as_ref()
            .is_some_and(|near| homes.iter().any(|home| home.up && home.rack == near.fetches.rack))
    }

    /// Copies a range from this node's own copy, if it has come to hold one and every block is right.
    fn copy_own(&self, range: ByteRange, intake: &mut Intake) -> bool {
        let Some(near) = &self.near else { return false };
        let object = self.info.lock().unwrap_or_else(PoisonError::into_inner).object;
        let Ok(holding) = near.holdings.find(object) else { return false };
        let Ok(memory) = holding.slice(range.offset(), range.bytes()) else { return false };
        intake.abandon();
        if !holding.is_sealed() || intake.copy(0, &memory).is_err() {
            return false;
        }
        let is_right = self.is_right(range, intake);
        if is_right {
            holding.note_use();
        }
        is_right
    }

    /// Copies a range from memory that this host shares with the object's home, if it is there and every block is right.
    fn copy_shelf(&self, range: ByteRange, intake: &mut Intake) -> bool {
        let Some(shelf) = self.near.as_ref().and_then(|near| near.holdings.shelf()) else { return false };
        let object = self.info.lock().unwrap_or_else(PoisonError::into_inner).object;
        intake.abandon();
        shelf.load(object, range, |memory| {
            if intake.copy(0, memory).is_err() {
                return false;
            }
            let is_right = self.is_right(range, intake);
            if !is_right {
                tracing::error!(%object, offset = range.offset(), bytes = range.bytes(), "shared memory has wrong bytes; they are asked for over the network");
                // Relaxed: a counter that nothing is ordered by.
                self.tallies.checksum_failures.fetch_add(1, Ordering::Relaxed);
            }
            is_right
        })
    }

    /// Whether what an intake has of a range is right. It is no longer than a range that is fetched at once.
    fn is_right(&self, range: ByteRange, intake: &Intake) -> bool {
        let blocks = intake.bytes(0, range.bytes() as usize).chunks(CHECKSUM_BLOCK_BYTES as usize);
        let first = range.offset() / CHECKSUM_BLOCK_BYTES;
        blocks.zip(first..).all(|(block, index)| self.checksum(index) == Some(crc32c(block)))
    }

    /// Asks the directory for a home in this rack, if bytes have come from another one since it was last asked.
    ///
    /// # Errors
    /// [`Refused`] if the directory does not answer, or the object is gone.
    pub fn look_for_near(&self) -> Result<(), Refused> {
        // Relaxed: who sets it meanwhile is heard the next time.
        if let Some(near) = &self.near
            && self.is_far.swap(false, Ordering::Relaxed)
        {
            let found = self.directory.lookup_object(self.info().object)?;
            self.learn(&describe_near(&found, self.own, &near.fetches.rack));
        }
        Ok(())
    }

    /// As [`fetch`](Self::fetch), into plain memory.
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch).
    pub fn fetch_into(&self, range: ByteRange, into: &mut [u8]) -> Result<(), Refused> {
        let mut intake = Intake::new(into.len(), 1)?;
        self.fetch(range, &mut intake, &mut |_, _| Ok(()))?;
        into.copy_from_slice(intake.bytes(0, into.len()));
        Ok(())
    }

    fn fetch_once(
        &self,
        info: &ObjectInfo,
        range: ByteRange,
        intake: &mut Intake,
        deliver: &mut dyn FnMut(&mut Intake, ByteRange) -> Result<(), Refused>,
    ) -> Result<(), Stop> {
        intake.abandon();
        let homes = self.homes(info);
        let first_block = (range.offset() / CHECKSUM_BLOCK_BYTES) as usize;
        let block_total = range.bytes().div_ceil(CHECKSUM_BLOCK_BYTES) as usize;
        let end = (first_block + block_total).min(self.blocks.len());
        let fetch = Fetch {
            object: info.object,
            object_bytes: info.bytes,
            range,
            replicas: homes.iter().map(|home| home.node).collect(),
            checksums: self.blocks[first_block.min(end)..end].to_vec(),
            checksum: crc32c,
        };
        let lost = |reason: String| {
            let text = format!(
                "bytes of {} cannot be fetched: {reason} (hint: bring a home back, or put objects with --copies 2)",
                info.name
            );
            Stop::Lost(Refused::new(errno::EIO, text))
        };
        // The connection itself has the deadline.
        let (piece_bytes, window) = if self.is_pipelined { (PIECE_BYTES, WINDOW) } else { (UNCUT_BYTES, 1) };
        let limits = FetchLimits { piece_bytes, window, timeout_ms: u64::MAX, rounds: 1 };
        let mut machine = FetchMachine::new(fetch, limits, 0).map_err(|error| lost(error.to_string()))?;
        let mut completions = Vec::new();
        loop {
            match machine.poll_action() {
                // The home was given up after this was decided: another one is asked for these bytes.
                Some(FetchAction::Send { attempt, .. }) if machine.expects(attempt).is_none() => {}
                Some(FetchAction::Send { attempt, node, range: piece }) => {
                    let home = homes.iter().find(|home| home.node == node);
                    if let Err(event) = self.post(attempt, home.copied(), piece, range, intake) {
                        machine.handle(0, event);
                    }
                }
                Some(FetchAction::Suspect { node, block }) => {
                    tracing::error!(%node, block, "a home sent a block with a wrong checksum");
                    // Relaxed: a counter that nothing is ordered by.
                    self.tallies.checksum_failures.fetch_add(1, Ordering::Relaxed);
                }
                Some(FetchAction::Done) => return Ok(()),
                Some(FetchAction::Fail(failure)) => return Err(lost(describe_tries(&failure, &homes))),
                None => {
                    let count =
                        intake.poll(&mut completions, POLL).map_err(|error| lost(error.to_string()))?;
                    if count == 0 && intake.in_flight() == 0 {
                        return Err(lost("the fetch ended without an answer".to_owned()));
                    }
                    for completion in completions.drain(..) {
                        // The tag is the number of an attempt, which this loop gave.
                        let attempt = completion.tag as u32;
                        self.completed(attempt, completion.result, range, intake, &mut machine, deliver)?;
                    }
                }
            }
        }
    }

    /// Other nodes that hold the object, those that failed not long ago last: whether a home that is gone has come back
    /// must not be found out by every fetch, since each such attempt may cost the time limit of connecting.
    fn homes<'a>(&self, info: &'a ObjectInfo) -> Vec<&'a Home> {
        let mut avoided = self.avoided.lock().unwrap_or_else(PoisonError::into_inner);
        avoided.retain(|_, failed| failed.elapsed() < AVOIDED_FOR);
        let mut homes: Vec<&Home> = info.homes.iter().filter(|home| home.node != self.own).collect();
        homes.sort_by_key(|home| avoided.contains_key(&home.node));
        homes
    }

    /// Asks one home for one piece; an event if that cannot be.
    fn post(
        &self,
        attempt: u32,
        home: Option<&Home>,
        piece: ByteRange,
        range: ByteRange,
        intake: &mut Intake,
    ) -> Result<(), FetchEvent<'static>> {
        let Some(home) = home else {
            return Err(FetchEvent::Refused { attempt, reason: "it is no home".to_owned() });
        };
        let at = (piece.offset() - range.offset()) as usize;
        let posted = self.peers.expect(home).and_then(|()| self.attach(home)).and_then(|attached| {
            Ok(intake.post(&attached.endpoint, u64::from(attempt), attached.handle, piece, at)?)
        });
        posted.map_err(|refused| self.failed(home, refused, intake))
    }

    /// A home does not answer as it should: it is left for the rest of this fetch. Its queue goes first, so that nothing
    /// of it arrives any more where the answers of others are to lie.
    fn failed(&self, home: &Home, refused: Refused, intake: &mut Intake) -> FetchEvent<'static> {
        let known = self.attached.lock().unwrap_or_else(PoisonError::into_inner).get(&home.node).cloned();
        if let Some(attached) = known {
            intake.forget(&attached.endpoint);
        }
        self.detach(home);
        self.avoided.lock().unwrap_or_else(PoisonError::into_inner).insert(home.node, Instant::now());
        // Relaxed: a counter that nothing is ordered by.
        self.tallies.failovers.fetch_add(1, Ordering::Relaxed);
        FetchEvent::Down { node: home.node, reason: refused.text }
    }

    /// The answer to one attempt is here: checks it, and delivers what is right.
    fn completed(
        &self,
        attempt: u32,
        result: Result<Outcome, FabricError>,
        range: ByteRange,
        intake: &mut Intake,
        machine: &mut FetchMachine,
        deliver: &mut dyn FnMut(&mut Intake, ByteRange) -> Result<(), Refused>,
    ) -> Result<(), Stop> {
        // An attempt that is over, because its home was given up.
        let (Some(piece), Some(node)) = (machine.expects(attempt), machine.asked(attempt)) else {
            return Ok(());
        };
        match result {
            Ok(_) => {
                // Relaxed: a counter that nothing is ordered by.
                self.tallies.received_bytes.fetch_add(piece.bytes(), Ordering::Relaxed);
                self.count(node, piece.bytes());
                let at = (piece.offset() - range.offset()) as usize;
                let body = Body::Bytes(intake.bytes(at, piece.bytes() as usize));
                machine.handle(0, FetchEvent::Reply { attempt, body });
                if machine.has(piece) { deliver(intake, piece).map_err(Stop::Undeliverable) } else { Ok(()) }
            }
            Err(error) => {
                let info = self.info();
                self.note_silent(&info, node, &error);
                let event = match info.homes.iter().find(|home| home.node == node) {
                    Some(home) => self.failed(home, error.into(), intake),
                    None => FetchEvent::Down { node, reason: error.to_string() },
                };
                machine.handle(0, event);
                Ok(())
            }
        }
    }

    /// Keeps known that a home was waited for in vain.
    fn note_silent(&self, info: &ObjectInfo, node: NodeId, error: &FabricError) {
        let home = info.homes.iter().find(|home| home.node == node);
        if let Some(home) = home.filter(|_| matches!(error, FabricError::Timeout { .. })) {
            self.peers.note_silent(&home.address);
        }
    }

    /// Counts bytes that came from another rack.
    fn count(&self, node: NodeId, bytes: u64) {
        let Some(near) = &self.near else { return };
        let info = self.info.lock().unwrap_or_else(PoisonError::into_inner);
        let is_far = |home: &&Home| home.node == node && home.rack != near.fetches.rack;
        if info.homes.iter().any(|home| is_far(&home)) {
            // Relaxed: nothing else is ordered by it.
            self.is_far.store(true, Ordering::Relaxed);
            near.fetches.note(info.object, info.bytes, bytes);
        }
    }

    /// Runs `operation` against each home until one succeeds; asks the directory once for newer homes, and those that are known once
    /// more where it takes long.
    fn try_homes<T>(
        &self,
        what: &str,
        mut operation: impl FnMut(&Self, &Home) -> Result<T, Refused>,
    ) -> Result<T, Refused> {
        let mut reasons = Vec::new();
        let mut info = self.info();
        for round in 0..2 {
            if round == 1 {
                match self.look_again(&info.homes) {
                    Again::Removed => return Err(self.removed()),
                    Again::Nowhere => break,
                    Again::Perhaps => info = self.info(),
                }
            }
            for home in info.homes.iter().filter(|home| home.node != self.own) {
                match self.peers.expect(home).and_then(|()| operation(self, home)) {
                    Ok(value) => return Ok(value),
                    Err(refused) => {
                        self.detach(home);
                        // Relaxed: a counter that nothing is ordered by.
                        self.tallies.failovers.fetch_add(1, Ordering::Relaxed);
                        reasons.push(format!("{} in rack {}: {refused}", home.node, home.rack));
                    }
                }
            }
        }
        let reasons =
            if reasons.is_empty() { "it has no home that is up".to_owned() } else { reasons.join("; ") };
        Err(Refused::new(
            errno::EIO,
            format!(
                "{what} of {} cannot be fetched: {reasons} (hint: bring a home back, or put objects with --copies 2)",
                info.name
            ),
        ))
    }

    /// Whether homes are worth another look, after none of these gave the bytes: the directory knows others, or it was waited for so
    /// long, in vain perhaps, that those which were down may be back.
    fn look_again(&self, tried: &[Home]) -> Again {
        let asked = Instant::now();
        match self.refresh(tried) {
            Again::Nowhere if asked.elapsed() >= TRIED_LONG_AGO => Again::Perhaps,
            found => found,
        }
    }

    /// Asks the directory where the object is now, unless somebody else has learned it: at other homes than those that were tried
    /// perhaps. The directory may take long or be away: nobody else waits for it.
    fn refresh(&self, tried: &[Home]) -> Again {
        let known = self.info();
        if known.homes != tried {
            return Again::Perhaps;
        }
        let found = match self.directory.lookup_object(known.object) {
            Ok(found) => found,
            Err(refused) if refused.code == errno::ENOENT => return Again::Removed,
            Err(_) => return Again::Nowhere,
        };
        if found.state == hinterland_directory::ObjectState::Removing {
            return Again::Removed;
        }
        let found = match &self.near {
            Some(near) => describe_near(&found, self.own, &near.fetches.rack),
            None => describe(&found, self.own),
        };
        let mut info = self.info.lock().unwrap_or_else(PoisonError::into_inner);
        if found.digest == info.digest && found.homes != info.homes {
            info.homes = found.homes;
        }
        if info.homes == tried { Again::Nowhere } else { Again::Perhaps }
    }

    /// What is said where no home has bytes of an object that is in the pool no longer.
    fn removed(&self) -> Refused {
        let text = format!("{} was removed or replaced (hint: open it again)", self.info().name);
        Refused::new(errno::ENOENT, text)
    }

    fn attach(&self, home: &Home) -> Result<Attached, Refused> {
        let known = self.attached.lock().unwrap_or_else(PoisonError::into_inner).get(&home.node).cloned();
        if let Some(attached) = known {
            return Ok(attached);
        }
        let object = self.info().object;
        let endpoint = self.peers.endpoint(&home.address)?;
        // Asked on this very connection: a handle means nothing in another session.
        let body = encode(&PeerRequest::Attach { object })?;
        let answer =
            endpoint.call(&body).inspect_err(|error| self.note_silent(&self.info(), home.node, error));
        let answer = answer?;
        self.peers.note_answer(&home.address);
        let handle = match decode(&answer)? {
            PeerReply::Granted { handle } => handle,
            other => return Err(unexpected(&other)),
        };
        self.keep(self.peers.lease(&endpoint, handle));
        let attached = Attached { endpoint, handle };
        let mut all = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(home.node, attached.clone());
        Ok(attached)
    }

    /// Keeps a handle while there are reads that use it: they are posted and not waited for, and other threads may attach anew
    /// meanwhile. By the time that so many came after it, none is under way.
    fn keep(&self, lease: Arc<Lease>) {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        leases.push_back(lease);
        if leases.len() > LEASES_MAX {
            leases.pop_front();
        }
    }

    fn detach(&self, home: &Home) {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner).remove(&home.node);
        self.peers.forget(&home.address);
    }

    fn fetch_blocks(&self, home: &Home) -> Result<Vec<u32>, Refused> {
        let info = self.info();
        let expected = block_count(info.bytes);
        let mut blocks: Vec<u32> = Vec::new();
        while (blocks.len() as u64) < expected {
            let first = blocks.len() as u64;
            match self.peers.call(&home.address, &PeerRequest::Checksums { object: info.object, first })? {
                PeerReply::Checksums { blocks: more } if !more.is_empty() => blocks.extend(more),
                other => return Err(unexpected(&other)),
            }
        }
        if blocks.len() as u64 != expected || digest(info.bytes, &blocks) != info.digest {
            return Err(Refused::new(errno::EIO, "its checksums are not those that the directory knows"));
        }
        Ok(blocks)
    }
}

/// What the directory says of an object whose bytes no home gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Again {
    /// There is no such object any more.
    Removed,
    /// No other home than those that were tried is known.
    Nowhere,
    /// Another look may find them.
    Perhaps,
}

/// Why a fetch ends early.
enum Stop {
    /// No home gave the bytes.
    Lost(Refused),
    /// They came, and could not be used.
    Undeliverable(Refused),
}

impl Stop {
    fn into_inner(self) -> Refused {
        match self {
            Self::Lost(refused) | Self::Undeliverable(refused) => refused,
        }
    }
}

/// What each home said, in words.
fn describe_tries(failure: &FetchFailure, homes: &[&Home]) -> String {
    if failure.tried.is_empty() {
        return "it has no home that is up".to_owned();
    }
    let tries = failure.tried.iter().map(|tried| {
        let rack = homes.iter().find(|home| home.node == tried.node).map_or("?", |home| home.rack.as_str());
        format!("{} in rack {rack}: {}", tried.node, tried.last)
    });
    tries.collect::<Vec<_>>().join("; ")
}

fn unexpected(reply: &PeerReply) -> Refused {
    let text = match reply {
        PeerReply::Error { text, .. } => text.clone(),
        _ => "a peer gave an answer that does not belong to the question".to_owned(),
    };
    Refused::new(errno::EIO, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::PeerIdentity;
    use hinterland_fabric::rdma::RdmaOptions;
    use hinterland_proto::PoolId;
    use hinterland_proto::control::ObjectState;
    use hinterland_types::{ObjectId, ObjectName, RackName};
    use std::net::TcpListener;
    use std::sync::mpsc;

    const SOON: Duration = Duration::from_secs(1);

    fn home(node: u64) -> Home {
        let rack = RackName::parse("b").unwrap();
        Home { node: NodeId(node), rack, address: "127.0.0.1:1".to_owned(), up: true, heat: false }
    }

    fn peers() -> Arc<Peers> {
        Arc::new(Peers::new(PeerIdentity {
            node: NodeId(1),
            pool: PoolId::ANY,
            credentials: crate::credentials::Credentials::default(),
            streams: 1,
            timeout: SOON * 3,
            rdma: RdmaOptions::default(),
        }))
    }

    fn open(peers: &Arc<Peers>, directory: String, bytes: u64, home: Home) -> Result<Source, Refused> {
        let directory = DirectoryLink::Remote { peers: Arc::clone(peers), address: directory };
        let info = ObjectInfo {
            object: ObjectId(1),
            name: ObjectName::parse("o").unwrap(),
            state: ObjectState::Sealed,
            bytes,
            address: None,
            copies: 1,
            homes: vec![home],
            digest: digest(0, &[]),
        };
        Source::open(info, Arc::clone(peers), Arc::new(directory), NodeId(1), Arc::default())
    }

    /// An object without bytes, of which every home has the right checksums.
    fn source(directory: String) -> Source {
        open(&peers(), directory, 0, home(2)).unwrap()
    }

    #[test]
    fn a_home_that_is_down_is_waited_for_once_by_all_who_need_it() {
        // It takes connections and says nothing, as a node that is stopped.
        let frozen = TcpListener::bind("127.0.0.1:0").unwrap();
        frozen.set_nonblocking(true).unwrap();
        let (peers, address) = (peers(), frozen.local_addr().unwrap().to_string());
        let asked = |up| {
            let opened =
                open(&peers, "127.0.0.1:1".to_owned(), 1, Home { address: address.clone(), up, ..home(2) });
            let refused = opened.map(drop).unwrap_err();
            (refused.text, std::iter::from_fn(|| frozen.accept().ok()).count())
        };
        assert_eq!(asked(false).1, 1, "the first who needs it asks");
        let (words, connections) = asked(false);
        assert!(words.contains("it did not answer a moment ago"), "{words}");
        assert_eq!(connections, 0);
        assert_eq!(asked(true).1, 1, "the directory has heard of it: it may be back");
    }

    #[test]
    fn nobody_waits_for_a_directory_that_does_not_answer_somebody_else() {
        // It takes connections and says nothing, as a node that is stopped.
        let frozen = TcpListener::bind("127.0.0.1:0").unwrap();
        let source = Arc::new(source(frozen.local_addr().unwrap().to_string()));
        let (asks, reads) = (Arc::clone(&source), Arc::clone(&source));
        let asked = std::thread::spawn(move || asks.refresh(&asks.info().homes));
        let _connection = frozen.accept().unwrap();
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || sender.send(reads.info()));
        assert_eq!(receiver.recv_timeout(SOON).unwrap().homes, [home(2)]);
        assert_eq!(asked.join().unwrap(), Again::Nowhere);
    }

    #[test]
    fn homes_that_have_come_back_while_the_directory_was_waited_for_are_asked_again() {
        let frozen = TcpListener::bind("127.0.0.1:0").unwrap();
        let source = source(frozen.local_addr().unwrap().to_string());
        let mut looks = 0;
        let found = source.try_homes("bytes", |_, _| {
            looks += 1;
            if looks == 1 { Err(Refused::new(errno::EHOSTUNREACH, "it is down")) } else { Ok(()) }
        });
        assert_eq!((found.map_err(|refused| refused.text), looks), (Ok(()), 2));
    }

    #[test]
    fn homes_that_were_just_tried_are_not_tried_again() {
        // Nobody listens there, which is told at once.
        let source = source("127.0.0.1:1".to_owned());
        let mut looks = 0;
        let found = source.try_homes("bytes", |_, _| -> Result<(), Refused> {
            looks += 1;
            Err(Refused::new(errno::EHOSTUNREACH, "it is down"))
        });
        assert!(found.is_err());
        assert_eq!(looks, 1);
    }

    #[test]
    fn homes_that_another_fetch_has_learned_are_asked_without_the_directory() {
        let source = source("127.0.0.1:1".to_owned());
        let tried = source.info().homes;
        source.info.lock().unwrap().homes.push(home(3));
        assert_eq!(source.refresh(&tried), Again::Perhaps);
        assert_eq!(source.refresh(&source.info().homes), Again::Nowhere, "there is no directory");
    }
}
