//! The server's side: connects queue pairs of a session, lets them reach memory, and takes that back.
//!
//! Each session has protection domains of its own, one for each port: a key opens memory only on pairs of the session that
//! was granted it. Ending the registration is what revokes: the device then refuses, whoever holds the key.

use super::abi;
use super::device::{PORTS_MAX, Port, PortName, open_ports, reads_whole_words};
use super::links::NOWHERE;
use super::listener::{Listener, listen};
use super::pair::{Completions, Domain, QueuePair, Receives, Registered};
use super::{BITS_24, INLINE_BYTES, LINKS_MAX, MESSAGE_BYTES, RECEIVES, random_word, registration_words};
use crate::service::Service;
use crate::slice::Slice;
use hinterland_proto::control::{decode, encode};
use hinterland_proto::verbs::{
    PairAddress, PortAddress, PortKind, RemoteKey, VERBS_VERSION, VerbsReply, VerbsRequest,
};
use hinterland_proto::{ErrorCode, RemoteError};
use hinterland_types::{ByteRange, Handle, Rights, SessionId};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Registrations of one session: objects that it reads at the same time.
const GRANTS_MAX: usize = 256;
/// A grant reaches to the next multiple of this around what was asked for: few questions, and not all of a huge object pinned.
const WINDOW_BYTES: u64 = 256 << 20;
/// Requests that a pair may have under way.
const SENDS: u32 = 16;
const COMPLETIONS: i32 = 256;

/// What peers may do.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// Names of the devices; empty for all.
    pub devices: Vec<String>,
    /// Whether memory is granted for writing and swapping, where the service allows it.
    pub writes: bool,
    /// Registered bytes of all sessions.
    pub registered_bytes_max: u64,
}

impl Default for HostOptions {
    fn default() -> Self {
        Self { devices: Vec::new(), writes: false, registered_bytes_max: 1 << 40 }
    }
}

/// What is going on.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct HostCounts {
    /// Queue pairs that were connected.
    pub links: u64,
    /// Grants that were made.
    pub grants: u64,
    /// Grants that were refused, or taken back before their session ended.
    pub refused: u64,
    /// Taken back before their session ended.
    pub revoked: u64,
    /// Bytes that are registered.
    pub registered_bytes: u64,
    /// Calls that came over queue pairs.
    pub calls: u64,
}

/// The RDMA devices of a server.
#[derive(Debug)]
pub struct Host {
    pub(super) options: HostOptions,
    links: AtomicU64,
    grants: AtomicU64,
    refused: AtomicU64,
    revoked: AtomicU64,
    registered_bytes: AtomicU64,
    pub(super) calls: AtomicU64,
    /// The words of the last grant that the system refused.
    refusal: Mutex<Option<String>>,
    sessions: Mutex<Vec<Weak<SessionHost>>>,
    whole_words: AtomicBool,
    /// The place of a port that registers nothing.
    #[cfg(test)]
    pub(super) refusing: AtomicU64,
}

impl Host {
    /// Looks whether there is a device to serve with.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub fn open(options: HostOptions) -> Result<Self, String> {
        // Opened again for each session: devices come and go.
        let whole_words = AtomicBool::new(reads_whole_words(&open_ports(&options.devices)?));
        let zero = || AtomicU64::new(0);
        Ok(Self {
            options,
            links: zero(),
            grants: zero(),
            refused: zero(),
            revoked: zero(),
            registered_bytes: zero(),
            calls: zero(),
            refusal: Mutex::new(None),
            sessions: Mutex::default(),
            whole_words,
            #[cfg(test)]
            refusing: AtomicU64::new(u64::MAX),
        })
    }

    /// Whether its devices read an aligned word whole while a processor of this host stores it.
    pub fn reads_whole_words(&self) -> bool {
        // Acquire: pairs with the Release in `ports`.
        self.whole_words.load(Ordering::Acquire)
    }

    /// Takes back every grant that reaches into this memory, of all sessions: when it returns, no device reads or writes there
    /// for anybody. Whoever calls it sees to it before that the service vouches for this memory no more.
    pub fn revoke(&self, memory: &Slice) {
        let sessions: Vec<_> = {
            let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
            sessions.retain(|session| session.strong_count() > 0);
            sessions.iter().filter_map(Weak::upgrade).collect()
        };
        let (start, end) = span(memory);
        for session in sessions {
            session.revoke(|grant| {
                let (other_start, other_end) = span(&grant.memory);
                other_start < end && start < other_end
            });
        }
    }

    /// Counts since the start.
    pub fn counts(&self) -> HostCounts {
        // Relaxed: counts; nothing is published through them.
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        HostCounts {
            links: read(&self.links),
            grants: read(&self.grants),
            refused: read(&self.refused),
            revoked: read(&self.revoked),
            registered_bytes: read(&self.registered_bytes),
            calls: read(&self.calls),
        }
    }

    #[cfg(test)]
    fn refuses(&self, place: usize) -> bool {
        // Relaxed: set by a test before it asks.
        self.refusing.load(Ordering::Relaxed) == place as u64
    }

    #[cfg(not(test))]
    const fn refuses(&self, _place: usize) -> bool {
        false
    }

    fn refuse(&self, why: String) {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }

    /// What the system said when it last refused to register memory.
    pub fn refusal(&self) -> Option<String> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What one session reaches.
pub(crate) struct SessionHost {
    pub(super) host: Arc<Host>,
    pub(super) session: SessionId,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ended: bool,
    ports: Vec<Station>,
    links: Vec<Listener>,
    grants: Vec<Grant>,
}

/// One port, and what its pairs share. Its place among the ports is its own as long as the session asks for no new list.
struct Station {
    name: PortName,
    /// `None` while it carries no data: then no device is held.
    port: Option<Port>,
    shared: Option<(Arc<Domain>, Arc<Receives>)>,
}

impl Station {
    fn new(port: Port) -> Self {
        Self { name: port.name(), port: Some(port), shared: None }
    }

    /// Takes what was found of this port; returns whether it is another device than before, or none.
    fn refresh(&mut self, found: Option<Port>) -> bool {
        let stays = match (&self.port, &found) {
            (Some(port), Some(found)) => port.address == found.address && port.holds(),
            (None, None) => true,
            _ => false,
        };
        if !stays {
            (self.port, self.shared) = (found, None);
        }
        !stays
    }

    fn shared(&mut self) -> io::Result<(Arc<Domain>, Arc<Receives>)> {
        let port = self.port.as_ref().ok_or_else(|| io::Error::other("the port is gone"))?;
        if let Some((domain, receives)) = &self.shared {
            return Ok((Arc::clone(domain), Arc::clone(receives)));
        }
        let domain = Arc::new(Domain::new(&port.device)?);
        let receives = Arc::new(Receives::new(&domain, RECEIVES, MESSAGE_BYTES)?);
        self.shared = Some((Arc::clone(&domain), Arc::clone(&receives)));
        Ok((domain, receives))
    }
}

struct Grant {
    handle: Handle,
    range: ByteRange,
    write: bool,
    memory: Slice,
    /// One for each port, `None` where it cannot be reached.
    keys: Vec<Option<Registered>>,
}

impl SessionHost {
    pub fn new(host: &Arc<Host>, session: SessionId) -> Arc<Self> {
        let this = Arc::new(Self { host: Arc::clone(host), session, state: Mutex::default() });
        host.sessions.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&this));
        this
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is whole between any two statements that change it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a question about RDMA.
    pub fn answer(self: &Arc<Self>, service: &Arc<dyn Service>, body: &[u8]) -> Result<Vec<u8>, RemoteError> {
        let malformed = |text: String| RemoteError::new(ErrorCode::MALFORMED, text);
        let request = decode::<VerbsRequest>(body)
            .map_err(|error| malformed(format!("{error} (hint: run the same release on both sides)")))?;
        let reply = match request {
            VerbsRequest::Ports { version } => self.ports(version),
            VerbsRequest::Refresh => self.refresh(&**service),
            VerbsRequest::Connect { port, from } => self.connect(service, port, &from)?,
            VerbsRequest::Disconnect { pair } => {
                let gone = {
                    let mut state = self.state();
                    let place = state.links.iter().position(|link| link.number() == pair);
                    place.map(|place| state.links.swap_remove(place))
                };
                drop(gone);
                VerbsReply::Done
            }
            VerbsRequest::Grant { handle, range, write } => {
                let range = ByteRange::new(range.offset(), range.bytes())
                    .map_err(|error| malformed(error.to_string()))?;
                self.grant(&**service, handle, range, write)?
            }
        };
        encode(&reply).map_err(|error| malformed(error.to_string()))
    }

    /// Starts anew: the peer asks this before its first pair, and after all of them failed.
    fn ports(&self, version: u16) -> VerbsReply {
        self.drop_all(false);
        let found =
            if version == VERBS_VERSION { open_ports(&self.host.options.devices) } else { Ok(Vec::new()) };
        let found = found.unwrap_or_default();
        // Release: pairs with the Acquire in `reads_whole_words`. Before anything is granted on these ports.
        self.host.whole_words.fetch_and(reads_whole_words(&found), Ordering::Release);
        let ports = found.iter().map(|port| port.address.clone()).collect();
        let mut state = self.state();
        if !state.ended {
            state.ports = found.into_iter().map(Station::new).collect();
        }
        VerbsReply::Ports { version: VERBS_VERSION, ports }
    }

    /// Looks again which ports there are, and lets what was granted be reached through those that came. Pairs stay, and
    /// keys of ports that are as they were.
    fn refresh(&self, service: &dyn Service) -> VerbsReply {
        let mut found = open_ports(&self.host.options.devices).unwrap_or_default();
        // Release: as in `ports`. What the service vouched for because of it is asked about again.
        self.host.whole_words.fetch_and(reads_whole_words(&found), Ordering::Release);
        self.revalidate(service);
        let mut state = self.state();
        let State { ended, ports, grants, .. } = &mut *state;
        if *ended {
            return VerbsReply::Ports { version: VERBS_VERSION, ports: Vec::new() };
        }
        for (place, station) in ports.iter_mut().enumerate() {
            let again = found.iter().position(|port| port.name() == station.name);
            if station.refresh(again.map(|again| found.swap_remove(again))) {
                grants.iter_mut().filter_map(|grant| grant.keys.get_mut(place)).for_each(|key| *key = None);
            }
        }
        let room = PORTS_MAX.saturating_sub(ports.len());
        ports.extend(found.into_iter().take(room).map(Station::new));
        for grant in grants {
            // Where it is refused, the memory is reached through the other ports.
            let _ = grant.register(&self.host, ports);
        }
        let none = PortAddress { kind: PortKind::RoceV2, gid: NOWHERE, lid: 0, mtu: 1 };
        let address = |station: &Station| {
            station.port.as_ref().map_or_else(|| none.clone(), |port| port.address.clone())
        };
        VerbsReply::Ports { version: VERBS_VERSION, ports: ports.iter().map(address).collect() }
    }

    fn connect(
        self: &Arc<Self>,
        service: &Arc<dyn Service>,
        place: u8,
        from: &PairAddress,
    ) -> Result<VerbsReply, RemoteError> {
        let refused = |code, text: &str| RemoteError::new(code, text);
        if from.pair > BITS_24 || from.sequence > BITS_24 || !(1..=5).contains(&from.port.mtu) {
            return Err(refused(ErrorCode::MALFORMED, "the address of the queue pair makes no sense"));
        }
        let mut state = self.state();
        if state.ended || state.links.len() >= LINKS_MAX {
            return Err(refused(ErrorCode::LIMIT, "the session has all its queue pairs (hint: end one)"));
        }
        let Some(station) = state.ports.get_mut(usize::from(place)) else {
            return Err(refused(ErrorCode::RANGE, "there is no such port (hint: ask for the ports again)"));
        };
        if station.port.as_ref().is_some_and(|port| port.address.kind != from.port.kind) {
            return Err(refused(ErrorCode::UNSUPPORTED, "the ports speak different kinds of RDMA"));
        }
        let made = self.make_pair(station, from).map_err(|error| {
            let words = registration_words(&error, (RECEIVES * MESSAGE_BYTES) as u64);
            self.host.refuse(format!("no queue pair: {words}"));
            let text = format!("{error} (hint: `hinterland doctor` shows devices and limits)");
            RemoteError::new(ErrorCode::INTERNAL, text)
        })?;
        let (pair, to) = made;
        let listener = listen(pair, self, service, to.frames, from.frames)
            .map_err(|error| RemoteError::new(ErrorCode::INTERNAL, error.to_string()))?;
        state.links.push(listener);
        // Relaxed: a count.
        self.host.links.fetch_add(1, Ordering::Relaxed);
        Ok(VerbsReply::Connected { to })
    }

    fn make_pair(&self, station: &mut Station, from: &PairAddress) -> io::Result<(QueuePair, PairAddress)> {
        let (domain, receives) = station.shared()?;
        let port = station.port.as_ref().ok_or_else(|| io::Error::other("the port is gone"))?;
        let completions = Arc::new(Completions::new(&port.device, COMPLETIONS)?);
        let pair = QueuePair::new(&domain, &receives, &completions, SENDS, INLINE_BYTES)?;
        let random = random_word()?;
        let sequence = (random as u32) & BITS_24;
        let writes = if self.host.options.writes { abi::REMOTE_WRITE | abi::REMOTE_ATOMIC } else { 0 };
        pair.connect(port, sequence, from, abi::REMOTE_READ | writes)?;
        let to =
            PairAddress { port: port.address.clone(), pair: pair.number(), sequence, frames: random_word()? };
        Ok((pair, to))
    }

    fn grant(
        &self,
        service: &dyn Service,
        handle: Handle,
        range: ByteRange,
        write: bool,
    ) -> Result<VerbsReply, RemoteError> {
        let by_message = |reason: &str| Ok(VerbsReply::ByMessage { reason: reason.to_owned() });
        if write && !self.host.options.writes {
            return by_message("this node's memory is written by messages");
        }
        let mut state = self.state();
        let known = state
            .grants
            .iter()
            .find(|grant| grant.handle == handle && grant.range.contains(range) && (grant.write || !write));
        if let Some(known) = known {
            // The table of the session is asked each time, as for every request.
            service.one_sided(self.session, handle, range, rights(write))?;
            return Ok(known.reply());
        }
        let Some((whole, memory)) = service.one_sided(self.session, handle, range, rights(write))? else {
            return by_message("these bytes may move or change, so they are reached by messages");
        };
        let Some((range, memory)) = window(range, whole, &memory) else {
            return Err(RemoteError::new(
                ErrorCode::INTERNAL,
                "the memory has another length than its range",
            ));
        };
        if state.ended || state.grants.len() >= GRANTS_MAX || state.ports.is_empty() {
            return by_message("the session has all the registrations it may have");
        }
        // Relaxed: a count that limits; two sessions at once may pass it by one registration each.
        let registered = self.host.registered_bytes.load(Ordering::Relaxed);
        if registered.saturating_add(range.bytes()) > self.host.options.registered_bytes_max {
            return by_message("this node has registered all the memory that it may");
        }
        match self.register(&mut state, handle, range, write, memory) {
            Ok(reply) => Ok(reply),
            Err(error) => {
                let reason = registration_words(&error, range.bytes());
                // Relaxed: a count.
                self.host.refused.fetch_add(1, Ordering::Relaxed);
                self.host.refuse(reason.clone());
                Ok(VerbsReply::ByMessage { reason: reason.chars().take(1000).collect() })
            }
        }
    }

    fn register(
        &self,
        state: &mut State,
        handle: Handle,
        range: ByteRange,
        write: bool,
        memory: Slice,
    ) -> io::Result<VerbsReply> {
        let mut grant = Grant { handle, range, write, memory, keys: Vec::new() };
        let refused = grant.register(&self.host, &mut state.ports);
        if grant.keys.iter().all(Option::is_none) {
            return Err(refused.err().unwrap_or_else(|| io::Error::other("no port is left")));
        }
        if let Err(error) = refused {
            self.host.refuse(registration_words(&error, range.bytes()));
        }
        let reply = grant.reply();
        // Relaxed: counts.
        self.host.registered_bytes.fetch_add(range.bytes(), Ordering::Relaxed);
        self.host.grants.fetch_add(1, Ordering::Relaxed);
        state.grants.push(grant);
        Ok(reply)
    }

    /// Takes back what the service does not vouch for any more.
    pub fn revalidate(&self, service: &dyn Service) {
        self.revoke(|grant| {
            let again = service.one_sided(self.session, grant.handle, grant.range, rights(grant.write));
            !matches!(again, Ok(Some((whole, memory))) if window(grant.range, whole, &memory)
                .is_some_and(|(_, memory)| memory.as_ptr() == grant.memory.as_ptr()))
        });
    }

    /// Takes back what is stale.
    fn revoke(&self, stale: impl Fn(&Grant) -> bool) {
        let mut state = self.state();
        let gone: Vec<Grant> = state.grants.extract_if(.., |grant| stale(grant)).collect();
        // Relaxed: a count.
        self.host.revoked.fetch_add(gone.len() as u64, Ordering::Relaxed);
        // Under the lock: who finds a grant gone may go on as if no device reached that memory.
        self.unregister(gone);
    }

    /// Ends everything: no device reaches memory for this session any more, and no call of it is under way.
    pub fn end(&self) {
        self.drop_all(true);
    }

    fn drop_all(&self, ended: bool) {
        let (links, ports) = {
            let mut state = self.state();
            state.ended |= ended;
            let state = &mut *state;
            // Under the lock, as in `revoke`.
            self.unregister(std::mem::take(&mut state.grants));
            (std::mem::take(&mut state.links), std::mem::take(&mut state.ports))
        };
        // Each waits for its thread; not under the lock, which a call on that thread may want.
        drop(links);
        drop(ports);
    }

    fn unregister(&self, grants: Vec<Grant>) {
        let bytes = grants.iter().map(|grant| grant.range.bytes()).sum();
        drop(grants);
        // Relaxed: a count.
        self.host.registered_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Grant {
    /// Registers the memory with every port that has no key of it. One that refuses keeps nobody from the others; the error
    /// is that of the last.
    fn register(&mut self, host: &Host, ports: &mut [Station]) -> io::Result<()> {
        let writes = abi::LOCAL_WRITE | abi::REMOTE_WRITE | abi::REMOTE_ATOMIC;
        let access = abi::REMOTE_READ | if self.write { writes } else { 0 };
        self.keys.resize_with(ports.len(), || None);
        let mut outcome = Ok(());
        for (place, (station, key)) in ports.iter_mut().zip(&mut self.keys).enumerate() {
            if key.is_some() || station.port.is_none() {
                continue;
            }
            let domain =
                if host.refuses(place) { Err(io::Error::other("for a test")) } else { station.shared() };
            match domain.and_then(|(domain, _)| Registered::new(&domain, self.memory.clone(), access)) {
                Ok(registered) => *key = Some(registered),
                Err(error) => outcome = Err(error),
            }
        }
        outcome
    }

    fn reply(&self) -> VerbsReply {
        let key = |key: &Option<Registered>| {
            key.as_ref()
                .map_or(RemoteKey::NONE, |key| RemoteKey { address: key.address(), key: key.remote_key() })
        };
        VerbsReply::Granted {
            range: self.range,
            write: self.write,
            keys: self.keys.iter().map(key).collect(),
        }
    }
}

fn rights(write: bool) -> Rights {
    if write { Rights::READ | Rights::WRITE } else { Rights::READ }
}

/// First address of a piece of memory, and the one behind it.
fn span(memory: &Slice) -> (usize, usize) {
    let start = memory.as_ptr().addr();
    (start, start + memory.len())
}

/// The part of `whole` around `wanted` that one grant reaches, and its memory; `None` if they do not fit together.
fn window(wanted: ByteRange, whole: ByteRange, memory: &Slice) -> Option<(ByteRange, Slice)> {
    if !whole.contains(wanted) || memory.len() as u64 != whole.bytes() || wanted.bytes() == 0 {
        return None;
    }
    let first = (wanted.offset() / WINDOW_BYTES * WINDOW_BYTES).max(whole.offset());
    let end = wanted.end().div_ceil(WINDOW_BYTES).saturating_mul(WINDOW_BYTES).min(whole.end());
    let range = ByteRange::new(first, end - first).ok()?;
    let offset = usize::try_from(first - whole.offset()).ok()?;
    Some((range, memory.sub(offset, usize::try_from(range.bytes()).ok()?)?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn range(offset: u64, bytes: u64) -> ByteRange {
        ByteRange::new(offset, bytes).unwrap()
    }

    #[test]
    fn a_window_holds_what_was_wanted_and_stays_inside() {
        let memory = Slice::zeroed(1000);
        let (found, slice) = window(range(150, 10), range(100, 1000), &memory).unwrap();
        assert_eq!((found, slice.len(), slice.as_ptr()), (range(100, 1000), 1000, memory.as_ptr()));
        assert!(window(range(50, 10), range(100, 1000), &memory).is_none());
        assert!(window(range(150, 10), range(100, 999), &memory).is_none());
        assert!(window(range(150, 0), range(100, 1000), &memory).is_none());
    }
}
