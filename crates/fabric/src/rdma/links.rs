//! All queue pairs to one peer, what the peer granted over them, and how they are made again.

use super::device::{Port, PortName, open_ports};
use super::endpoint::RdmaOptions;
use super::link::{COMPLETIONS, Link, SENDS};
use super::pair::{Completions, Domain, QueuePair, Receives};
use super::{BITS_24, INLINE_BYTES, LINKS_MAX, MESSAGE_BYTES, RECEIVES, random_word, registration_words};
use crate::error::FabricError;
use crate::tcp::TcpEndpoint;
use hinterland_proto::control::{decode, encode};
use hinterland_proto::verbs::{PairAddress, PortAddress, RemoteKey, VERBS_VERSION, VerbsReply, VerbsRequest};
use hinterland_types::{ByteRange, Handle};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Pause before links that failed are made again, and before memory that was not granted is asked for again.
const AGAIN: Duration = Duration::from_secs(1);
/// Longest pause before a link is made again beside others that work: it doubles from `AGAIN`, because a port whose network is
/// gone costs whoever tries it first two seconds.
const AGAIN_MAX: Duration = Duration::from_secs(64);
/// The address of a port that is not to be connected to, such as one that is gone and keeps its place.
pub(super) const NOWHERE: [u8; 16] = [0; 16];
/// Handles whose grants are remembered.
const HANDLES_MAX: usize = 4096;

/// What an endpoint has done, for tests and for people.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Queue pairs that work now.
    pub links: u64,
    /// Queue pairs that failed.
    pub failed: u64,
    /// Chunks that were read, written or swapped one-sidedly.
    pub one_sided: u64,
    /// Requests to devices for those; several go with one ring of the doorbell.
    pub requests: u64,
    /// Calls that went by messages of a queue pair.
    pub calls: u64,
    /// Reads and writes that went by TCP instead.
    pub by_message: u64,
}

/// Memory that the peer granted.
#[derive(Clone)]
pub(super) struct Granted {
    pub range: ByteRange,
    pub write: bool,
    keys: Arc<[RemoteKey]>,
    /// The round of making links after which it was asked for.
    round: u64,
}

impl Granted {
    /// What opens it on a link; `None` if the peer's port does not reach it, or was another when this was granted.
    pub fn key(&self, link: &Link) -> Option<RemoteKey> {
        let key = self.keys.get(link.ends.place).copied()?;
        (link.ends.round <= self.round && key != RemoteKey::NONE).then_some(key)
    }
}

/// What a link connects.
#[derive(Debug)]
pub(super) struct Ends {
    pub port: PortName,
    /// The peer's port, by its place in the peer's list.
    pub place: usize,
    /// The round in which it was made.
    pub round: u64,
}

#[derive(Default)]
struct Handles {
    granted: Vec<Granted>,
    /// No grant is asked for before, reading and writing apart.
    refused: [Option<Instant>; 2],
}

pub(super) struct Links {
    pub tcp: TcpEndpoint,
    pub options: RdmaOptions,
    links: RwLock<Arc<[Arc<Link>]>>,
    grants: Mutex<HashMap<Handle, Handles>>,
    setup: Mutex<Setup>,
    /// Whether there were more links than there are: a look at a clock for each operation only then.
    lacking: AtomicBool,
    /// How often links were made.
    round: AtomicU64,
    failed: AtomicU64,
    pub one_sided: AtomicU64,
    pub requests: AtomicU64,
    pub calls: AtomicU64,
    pub by_message: AtomicU64,
}

#[derive(Default)]
struct Setup {
    tried: Option<Instant>,
    why: Option<String>,
    /// The most pairs of ports that there ever were.
    wanted: usize,
    patience: Patience,
}

/// When links that are missing beside others are made again.
#[derive(Default)]
struct Patience {
    /// When one was last missed or tried.
    since: Option<Instant>,
    pause: Duration,
    at_once: bool,
}

impl Patience {
    /// A link is missing. One that held for long is tried again soon.
    fn miss(&mut self, now: Instant) {
        if self.pause.is_zero() || self.since.is_none_or(|since| now - since >= AGAIN_MAX) {
            self.pause = AGAIN;
        }
        self.since = Some(now);
    }

    fn is_due(&self, now: Instant) -> bool {
        self.at_once || self.since.is_some_and(|since| now - since >= self.pause)
    }

    fn tried(&mut self, now: Instant) {
        if !self.at_once {
            self.pause = (self.pause * 2).min(AGAIN_MAX);
        }
        (self.since, self.at_once) = (Some(now), false);
    }
}

impl Links {
    pub fn new(tcp: TcpEndpoint, options: RdmaOptions) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            tcp,
            options,
            links: RwLock::new(Arc::from([])),
            grants: Mutex::default(),
            setup: Mutex::default(),
            lacking: AtomicBool::new(false),
            round: zero(),
            failed: zero(),
            one_sided: zero(),
            requests: zero(),
            calls: zero(),
            by_message: zero(),
        }
    }

    /// Why there are no links, in words.
    pub fn why_not(&self) -> Option<String> {
        // Whoever has the lock is connecting.
        self.setup.try_lock().ok()?.why.clone()
    }

    pub fn counts(&self) -> Counts {
        // Relaxed: counts; nothing is published through them.
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let links = self.current().iter().filter(|link| !link.has_failed()).count() as u64;
        Counts {
            links,
            failed: read(&self.failed),
            one_sided: read(&self.one_sided),
            requests: read(&self.requests),
            calls: read(&self.calls),
            by_message: read(&self.by_message),
        }
    }

    /// The links that work, none of them made for this.
    pub fn made(&self) -> Arc<[Arc<Link>]> {
        let current = self.current();
        if current.iter().any(|link| link.has_failed()) { self.healthy() } else { current }
    }

    fn current(&self) -> Arc<[Arc<Link>]> {
        Arc::clone(&self.links.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The links that work; made (again) if there are none and it is time to try, and so are those that are missing.
    pub fn healthy(&self) -> Arc<[Arc<Link>]> {
        let current = self.current();
        let whole = !current.is_empty() && current.iter().all(|link| !link.has_failed());
        // Relaxed: a hint; what it is about is looked at under the lock.
        if whole && !self.lacking.load(Ordering::Relaxed) {
            return current;
        }
        // Somebody else is at it: meanwhile by what works, or by TCP.
        let Ok(mut setup) = self.setup.try_lock() else { return working(&current) };
        let current = self.current();
        let working = working(&current);
        if working.len() < current.len() {
            // Relaxed: a count.
            self.failed.fetch_add((current.len() - working.len()) as u64, Ordering::Relaxed);
            // Before the peer is asked, which may take long: others go on with what works.
            self.put(&working);
            setup.patience.miss(Instant::now());
            // Relaxed: a hint.
            self.lacking.store(true, Ordering::Relaxed);
            for link in current.iter().filter(|link| link.has_failed()) {
                self.disconnect(link);
            }
        }
        if !self.tcp.has_rdma() {
            return working;
        }
        if !working.is_empty() {
            return if setup.patience.is_due(Instant::now()) {
                self.mend(&mut setup, working)
            } else {
                working
            };
        }
        if setup.tried.is_some_and(|tried| tried.elapsed() < AGAIN) {
            return working;
        }
        setup.tried = Some(Instant::now());
        self.grants.lock().unwrap_or_else(PoisonError::into_inner).clear();
        match self.connect(&mut setup, &[], &VerbsRequest::Ports { version: VERBS_VERSION }) {
            Ok(links) => {
                setup.why = None;
                links
            }
            Err(why) => {
                setup.why = Some(why);
                working
            }
        }
    }

    /// Makes links that are missing beside those that work, which are left alone.
    fn mend(&self, setup: &mut Setup, working: Arc<[Arc<Link>]>) -> Arc<[Arc<Link>]> {
        let made = self.connect(setup, &working, &VerbsRequest::Refresh);
        setup.patience.tried(Instant::now());
        made.unwrap_or(working)
    }

    #[cfg(test)]
    pub fn setup_for_test(&self) -> std::sync::MutexGuard<'_, impl Sized> {
        self.setup.lock().unwrap()
    }

    fn put(&self, links: &Arc<[Arc<Link>]>) {
        *self.links.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(links);
    }

    /// Ends the peer's end of a link: what is late on the network reaches no memory after this has returned. `false` if
    /// that is not known.
    pub fn disconnect(&self, link: &Link) -> bool {
        link.fail();
        self.ask(&VerbsRequest::Disconnect { pair: link.peer_pair }).is_ok()
    }

    fn ask(&self, request: &VerbsRequest) -> Result<VerbsReply, FabricError> {
        let wrong =
            |what| FabricError::WrongAnswer { peer: self.tcp.node(), during: "a question about RDMA", what };
        let body = encode(request).map_err(|_| wrong("it is too long"))?;
        decode(&self.tcp.verbs(&body)?).map_err(|_| wrong("it is no message about RDMA"))
    }

    /// Connects a pair for every two ports that belong together and have none that works; returns all links that work then.
    fn connect(
        &self,
        setup: &mut Setup,
        working: &[Arc<Link>],
        question: &VerbsRequest,
    ) -> Result<Arc<[Arc<Link>]>, String> {
        let mut ours = open_ports(&self.options.devices)?;
        let mut theirs = self.ports(question)?;
        for link in working {
            ours.retain(|port| port.name() != link.ends.port);
            theirs.iter_mut().skip(link.ends.place).take(1).for_each(|port| port.gid = NOWHERE);
        }
        let mut why = "the peer has no active RDMA port of our kind".to_owned();
        // Relaxed: only whoever has the lock of `setup` changes it.
        let round = self.round.load(Ordering::Relaxed) + 1;
        let addresses: Vec<&PortAddress> = ours.iter().map(|port| &port.address).collect();
        let mut pairs = matched(&addresses, &theirs);
        pairs.truncate(LINKS_MAX.saturating_sub(working.len()));
        setup.wanted = setup.wanted.max(working.len() + pairs.len());
        let mut links = working.to_vec();
        for (port, place) in pairs {
            match self.connect_one(&ours[port], Ends { port: ours[port].name(), place, round }) {
                Ok(link) => links.push(Arc::new(link)),
                Err(error) => why = error,
            }
        }
        let lacking = links.len() < setup.wanted;
        if lacking && working.is_empty() {
            setup.patience.miss(Instant::now());
        }
        // Relaxed: a hint.
        self.lacking.store(lacking, Ordering::Relaxed);
        if links.len() == working.len() {
            return Err(why);
        }
        // Release: pairs with the Acquire in `grant`. What was granted before opens nothing on these links.
        self.round.store(round, Ordering::Release);
        let links: Arc<[Arc<Link>]> = Arc::from(links);
        self.put(&links);
        Ok(links)
    }

    fn ports(&self, question: &VerbsRequest) -> Result<Vec<PortAddress>, String> {
        let VerbsReply::Ports { version, ports } = self.ask(question).map_err(|error| error.to_string())?
        else {
            return Err("the peer did not say which ports it has".to_owned());
        };
        if version != VERBS_VERSION {
            return Err(format!(
                "the peer speaks version {version} over RDMA and this side {VERBS_VERSION} (hint: run the same release on both sides)"
            ));
        }
        Ok(ports)
    }

    fn connect_one(&self, port: &Port, ends: Ends) -> Result<Link, String> {
        let words = |error: std::io::Error| {
            let bytes = super::link::CHUNKS * super::link::CHUNK_BYTES;
            format!("{}: {}", port.device.name, registration_words(&error, bytes as u64))
        };
        let domain = Arc::new(Domain::new(&port.device).map_err(words)?);
        let receives = Arc::new(Receives::new(&domain, RECEIVES, MESSAGE_BYTES).map_err(words)?);
        let completions = Arc::new(Completions::new(&port.device, COMPLETIONS).map_err(words)?);
        let pair = QueuePair::new(&domain, &receives, &completions, SENDS, INLINE_BYTES).map_err(words)?;
        let sequence = (random_word().map_err(words)? as u32) & BITS_24;
        let frames = random_word().map_err(words)?;
        let from = PairAddress { port: port.address.clone(), pair: pair.number(), sequence, frames };
        let said =
            self.ask(&VerbsRequest::Connect { port: u8::try_from(ends.place).unwrap_or(u8::MAX), from });
        let VerbsReply::Connected { to } = said.map_err(|error| error.to_string())? else {
            return Err("the peer connected no queue pair".to_owned());
        };
        let valid = to.pair <= BITS_24 && to.sequence <= BITS_24 && (1..=5).contains(&to.port.mtu);
        if !valid {
            return Err("the address of the peer's queue pair makes no sense".to_owned());
        }
        // The peer gets no right to our memory: it only answers.
        let connected = pair
            .connect(port, sequence, &to, 0)
            .and_then(|()| Link::new(pair, ends, to.pair, (frames, to.frames)));
        connected.map_err(words).inspect_err(|_| {
            // A session may have few pairs there, and nobody else would end this one.
            let _ = self.ask(&VerbsRequest::Disconnect { pair: to.pair });
        })
    }

    /// What opens `range` of a handle, asked for if it is not known; `None` if it goes by messages.
    pub fn grant(&self, handle: Handle, range: ByteRange, write: bool) -> Option<Granted> {
        // Acquire: pairs with the Release in `connect`. Read before the question, whose answer is not older.
        let round = self.round.load(Ordering::Acquire);
        let find = |handles: &Handles| {
            let fits = |known: &&Granted| known.range.contains(range) && (known.write || !write);
            handles.granted.iter().find(|known| known.round == round && fits(known)).cloned()
        };
        {
            let grants = self.grants.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(handles) = grants.get(&handle) {
                if let Some(known) = find(handles) {
                    return Some(known);
                }
                if handles.refused[usize::from(write)].is_some_and(|refused| refused.elapsed() < AGAIN) {
                    return None;
                }
            }
        }
        let said = self.ask(&VerbsRequest::Grant { handle, range, write });
        let mut grants = self.grants.lock().unwrap_or_else(PoisonError::into_inner);
        if grants.len() >= HANDLES_MAX {
            grants.clear();
        }
        let handles = grants.entry(handle).or_default();
        if let Ok(VerbsReply::Granted { range: given, write: writable, keys }) = said
            && ByteRange::new(given.offset(), given.bytes()).is_ok_and(|given| given.contains(range))
            && (writable || !write)
        {
            let granted = Granted { range: given, write: writable, keys: keys.into(), round };
            handles.granted.retain(|known| known.round >= round);
            handles.granted.push(granted.clone());
            return Some(granted);
        }
        handles.refused[usize::from(write)] = Some(Instant::now());
        None
    }

    /// Forgets what was granted of a handle: the peer's device refused it. That ended the link, but the peer is well: links are
    /// made again at once, and this handle goes by message for a while.
    pub fn forget(&self, handle: Handle) {
        // Whoever has the lock is connecting already.
        if let Ok(mut setup) = self.setup.try_lock() {
            setup.tried = None;
            setup.patience.at_once = true;
        }
        let mut grants = self.grants.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = [Some(Instant::now()); 2];
        grants.insert(handle, Handles { granted: Vec::new(), refused });
    }
}

fn working(links: &[Arc<Link>]) -> Arc<[Arc<Link>]> {
    links.iter().filter(|link| !link.has_failed()).cloned().collect()
}

/// Which of our ports talks to which of theirs: those whose addresses are nearest first, and no port twice. A second pair on
/// one port carries no more, and where each network has its own wire, as after a device has gone, it would reach nobody.
fn matched(ours: &[&PortAddress], theirs: &[PortAddress]) -> Vec<(usize, usize)> {
    let mut pairs: Vec<(usize, usize)> = (0..ours.len())
        .flat_map(|our| (0..theirs.len()).map(move |their| (our, their)))
        .filter(|(our, their)| ours[*our].kind == theirs[*their].kind && theirs[*their].gid != NOWHERE)
        .collect();
    pairs.sort_by_key(|(our, their)| std::cmp::Reverse(near(&ours[*our].gid, &theirs[*their].gid)));
    let mut chosen: Vec<(usize, usize)> = Vec::new();
    for (our, their) in pairs {
        if chosen.iter().all(|(used, place)| *used != our && *place != their) {
            chosen.push((our, their));
        }
    }
    chosen
}

/// How many leading bits two addresses have in common.
fn near(a: &[u8; 16], b: &[u8; 16]) -> u32 {
    (u128::from_be_bytes(*a) ^ u128::from_be_bytes(*b)).leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::{AGAIN, AGAIN_MAX, NOWHERE, Patience, matched, near};
    use hinterland_proto::verbs::{PortAddress, PortKind};
    use std::time::{Duration, Instant};

    fn gid(net: u8, host: u8) -> [u8; 16] {
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 10, 0, net, host]);
        gid
    }

    fn port(net: u8, host: u8) -> PortAddress {
        PortAddress { kind: PortKind::RoceV2, gid: gid(net, host), lid: 0, mtu: 5 }
    }

    #[test]
    fn addresses_of_one_network_are_nearer_than_others() {
        assert!(near(&gid(1, 1), &gid(1, 2)) > near(&gid(1, 1), &gid(2, 2)));
    }

    #[test]
    fn each_port_talks_to_the_one_of_its_network_and_none_to_two() {
        let theirs = [port(1, 1), port(2, 1)];
        let (one, two) = (port(1, 2), port(2, 2));
        assert_eq!(matched(&[&two, &one], &theirs), [(0, 1), (1, 0)]);
        // A device has gone on one side, whichever comes first in the list of the other.
        assert_eq!(matched(&[&one], &theirs), [(0, 0)]);
        assert_eq!(matched(&[&two], &theirs), [(0, 1)]);
        assert_eq!(matched(&[&one, &two], &theirs[1..]), [(1, 0)]);
        assert_eq!(matched(&[], &theirs), []);
        // A port of theirs that is gone keeps its place.
        let gone = PortAddress { gid: NOWHERE, ..port(1, 1) };
        assert_eq!(matched(&[&one, &two], &[gone, port(2, 1)]), [(1, 1)]);
    }

    #[test]
    fn the_pause_doubles_while_a_link_fails_and_is_short_again_after_one_that_held() {
        let (mut now, mut patience) = (Instant::now(), Patience::default());
        assert!(!patience.is_due(now));
        let mut pauses = Vec::new();
        for _ in 0..8 {
            patience.miss(now);
            let begun = now;
            while !patience.is_due(now) {
                now += Duration::from_millis(500);
            }
            pauses.push((now - begun).as_secs());
            patience.tried(now);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64]);
        now += AGAIN_MAX;
        patience.miss(now);
        assert!(!patience.is_due(now) && patience.is_due(now + AGAIN));
        // A refusal is no fault of the network: at once, and no pause grows for it.
        patience.at_once = true;
        assert!(patience.is_due(now));
        patience.tried(now);
        patience.miss(now);
        assert!(!patience.is_due(now) && patience.is_due(now + AGAIN));
    }
}
