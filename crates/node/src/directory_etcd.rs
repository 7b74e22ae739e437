//! A directory that several nodes may host: one leads at a time, etcd keeps the records and decides who leads.
//!
//! Every node follows who leads, and asks there, again and again across a fail-over, under the same number. A node that may
//! host stands for election when nobody leads; it leads on as long as its lease in etcd is renewed in time.

mod seat;
mod store;

pub use store::Leader;

use crate::directory_link::EncodedAnswer;
use crate::membership::Incarnation;
use crate::peers::{Peers, Way};
use crate::refused::{Refused, errno};
use hinterland_directory::{Command, Directory, Ended, RecoverError, RequestId, SLOTS, Settings};
use hinterland_etcd::{Client, EtcdError, Lease, Target};
use hinterland_os::notice::Notice;
use hinterland_os::{clock, process};
use hinterland_proto::PoolId;
use hinterland_proto::control::{DirectoryLeader, PeerReply, PeerRequest, SharedDirectory, decode, encode};
use hinterland_types::NodeId;
use seat::{NoAnswer, Seat};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use store::{Fence, Store};

/// Shortest lease of a leader: etcd gives no shorter one with its default settings.
const LEASE_MIN: Duration = Duration::from_secs(2);
/// How long a start waits for an etcd that does not answer yet.
const START_PATIENCE: Duration = Duration::from_secs(5);
/// After this long people are told what a start waits for.
const START_NOTICE: Duration = Duration::from_secs(1);
/// How long a node that stops still asks.
const LAST_PATIENCE: Duration = Duration::from_secs(1);
/// How long a leader is looked for that does not answer.
const LOOK: Duration = Duration::from_millis(300);
/// Pause before a question is asked again.
const AGAIN: Duration = Duration::from_millis(50);
/// Pause after something went wrong in a host's own affairs.
const PAUSE: Duration = Duration::from_millis(250);

/// Who this node is, for the other hosts.
#[derive(Clone, Debug)]
pub struct OwnIdentity {
    /// The node.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// `HOST:PORT` of its fabric.
    pub address: String,
    /// Its life.
    pub incarnation: Incarnation,
}

/// What is seen of the directory from here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    /// Who leads, as far as this node knows.
    pub leader: Option<Leader>,
    /// Whether that is this node, and it is sure of it.
    pub leads: bool,
    /// What keeps this node from the directory, in words.
    pub trouble: Option<String>,
}

#[derive(Default)]
struct View {
    seat: Option<Arc<Seat>>,
    leader: Option<Leader>,
    trouble: Option<String>,
    /// When the first trouble came since the directory was seen last.
    troubled_at: Option<Instant>,
    stopping: bool,
}

/// A directory that several nodes may host.
pub struct EtcdDirectory {
    store: Arc<Store>,
    own: OwnIdentity,
    settings: Settings,
    hosts: bool,
    lease: Duration,
    peers: Arc<Peers>,
    view: Mutex<View>,
    changed: Condvar,
    slots: Slots,
    /// Nobody is waited for any more.
    hurries: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A question that was not answered.
enum Unanswered {
    /// It will not be.
    Refused(Refused),
    /// Perhaps later, or by another host. Whether it was sent.
    Later(String, bool),
}

/// The keys of a pool in etcd, before the node has its other parts.
pub struct Opened {
    store: Arc<Store>,
    lease: Duration,
    /// The pool that lives there, if one does.
    pub pool: Option<PoolId>,
}

/// Looks into etcd, and makes the pool there if there is none and a number for it is given.
///
/// # Errors
/// [`EtcdError`] if etcd does not answer for some seconds, or says no.
pub fn open(target: Target, member_lease: Duration, fresh: Option<PoolId>) -> Result<Opened, EtcdError> {
    let lease = Duration::from_secs(member_lease.max(LEASE_MIN).as_millis().div_ceil(1000) as u64); // days at most
    let place = target.to_string();
    let client = Client::new(target, lease / 4)?;
    let store = Arc::new(Store::new(Arc::new(client)));
    let _notice = Notice::begin(START_NOTICE, move || {
        tracing::warn!("waiting for etcd, which does not answer yet: {place}");
    });
    let begun = Instant::now();
    loop {
        match store.pool(fresh) {
            Ok(pool) => return Ok(Opened { store, lease, pool }),
            Err(error) if error.is_in_doubt() && begun.elapsed() < START_PATIENCE => {
                std::thread::sleep(PAUSE)
            }
            Err(error) => return Err(error),
        }
    }
}

impl EtcdDirectory {
    /// Follows the directory; [`begin`](Self::begin) must come behind.
    pub fn new(opened: Opened, own: OwnIdentity, settings: Settings, hosts: bool, peers: Arc<Peers>) -> Self {
        Self {
            store: opened.store,
            own,
            settings,
            hosts,
            lease: opened.lease,
            peers,
            view: Mutex::default(),
            changed: Condvar::new(),
            slots: Slots::new(),
            hurries: AtomicBool::new(false),
            thread: Mutex::new(None),
        }
    }

    /// Starts to follow who leads, and to stand for election if this node may host.
    ///
    /// # Errors
    /// [`Refused`] if there can be no more threads.
    pub fn begin(self: &Arc<Self>) -> Result<(), Refused> {
        let itself = Arc::clone(self);
        let thread = std::thread::Builder::new()
            .name("directory".to_owned())
            .spawn(move || itself.run())
            .map_err(|error| Refused::new(errno::EIO, error.to_string()))?;
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    }

    /// From here on requests are given up soon: the node is about to stop.
    pub fn hurry(&self) {
        self.hurries.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    /// Stops; a leader makes room for the next one at once.
    pub fn stop(&self) {
        self.view().stopping = true;
        self.changed.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the directory's thread had panicked");
        }
    }

    /// Who leads, as etcd has it at this moment.
    ///
    /// # Errors
    /// [`EtcdError`] if etcd does not answer.
    pub fn leader_in_etcd(&self) -> Result<Option<Leader>, EtcdError> {
        Ok(self.store.leader()?.0)
    }

    /// What is seen of the directory from here.
    pub fn sight(&self) -> Sight {
        let view = self.view();
        let leads = view.seat.as_ref().is_some_and(|seat| seat.is_believed());
        Sight { leader: view.leader.clone(), leads, trouble: view.trouble.clone() }
    }

    /// The same, for people.
    pub fn status(&self) -> SharedDirectory {
        let Sight { leader, trouble, .. } = self.sight();
        let troubled_at = self.view().troubled_at;
        let trouble = trouble.map(|trouble| match troubled_at {
            Some(at) => format!("for {} s, {trouble}", at.elapsed().as_secs()),
            None => trouble,
        });
        let leader = leader.map(|Leader { node, name, address, since_ms, term, .. }| DirectoryLeader {
            node,
            name,
            address,
            since_ms,
            term,
        });
        SharedDirectory { place: self.target().to_string(), leader, trouble }
    }

    /// Whether this node leads, and is sure of it.
    pub fn leads(&self) -> bool {
        let seat = self.view().seat.clone();
        seat.is_some_and(|seat| seat.is_believed())
    }

    /// Where etcd is.
    pub fn target(&self) -> &Target {
        self.store.client().target()
    }

    /// Asks the directory, wherever it is led, for about four leases: etcd may choose a leader of its own before it ends the
    /// lease of ours.
    ///
    /// # Errors
    /// [`Refused`] with the reason why nobody answers, and whether the command may have been carried out.
    pub fn ask(&self, command: &Command) -> Result<EncodedAnswer, Refused> {
        let slot = command.is_asked_once().then(|| self.slots.take());
        let id = slot.as_ref().map(|slot| RequestId {
            node: self.own.node,
            slot: slot.slot,
            incarnation: self.own.incarnation.get(),
            number: slot.number,
        });
        let begun = Instant::now();
        let patience = self.lease * 3 + Duration::from_secs(3);
        let mut may_be_done = false;
        loop {
            match self.attempt(id, command) {
                Ok(answer) => return Ok(answer),
                Err(Unanswered::Refused(refused)) => return Err(refused),
                Err(Unanswered::Later(why, sent)) => {
                    may_be_done |= sent && id.is_some();
                    let hurries = self.hurries.load(Ordering::Acquire);
                    let patience = if hurries { LAST_PATIENCE } else { patience };
                    let view = self.view();
                    if begun.elapsed() >= patience || view.stopping {
                        drop(view);
                        return Err(self.refusal(&why, may_be_done));
                    }
                    drop(self.changed.wait_timeout(view, AGAIN));
                }
            }
        }
    }

    /// Answers a command of another node, if this one leads.
    ///
    /// # Errors
    /// [`Refused`] with `ESTALE` if it does not, or may not.
    pub fn serve(&self, id: Option<RequestId>, command: &Command) -> Result<EncodedAnswer, Refused> {
        let seat = self.view().seat.clone();
        let Some(seat) = seat else {
            return Err(Refused::new(
                errno::ESTALE,
                format!("node {} does not lead the directory", self.own.name),
            ));
        };
        seat.apply(id, command).map_err(|why| match why {
            NoAnswer::NotWritten(why) => not_written(&why),
            NoAnswer::NotLeading(why) => {
                Refused::new(errno::ESTALE, format!("node {}: {why}", self.own.name))
            }
        })
    }

    fn attempt(&self, id: Option<RequestId>, command: &Command) -> Result<EncodedAnswer, Unanswered> {
        let (seat, leader, trouble) = {
            let view = self.view();
            (view.seat.clone(), view.leader.clone(), view.trouble.clone())
        };
        if let Some(seat) = seat {
            return seat.apply(id, command).map_err(|why| match why {
                // Whoever only asks had seen the change of somebody else, which is taken back.
                NoAnswer::NotWritten(why) if id.is_none() => Unanswered::Later(why, false),
                NoAnswer::NotWritten(why) => Unanswered::Refused(not_written(&why)),
                NoAnswer::NotLeading(why) => Unanswered::Later(with(why, trouble), true),
            });
        }
        match leader {
            Some(leader) if leader.node != self.own.node => self.ask_leader(&leader, trouble, id, command),
            Some(_) => {
                let why = "this node's own reign is over, and its lease in etcd has not ended yet";
                Err(Unanswered::Later(with(why.to_owned(), trouble), false))
            }
            None => Err(Unanswered::Later(with("no host leads it".to_owned(), trouble), false)),
        }
    }

    fn ask_leader(
        &self,
        leader: &Leader,
        trouble: Option<String>,
        id: Option<RequestId>,
        command: &Command,
    ) -> Result<EncodedAnswer, Unanswered> {
        let refused = |error: hinterland_proto::control::ControlError| Unanswered::Refused(error.into());
        let request = match id {
            Some(id) => PeerRequest::DirectoryOnce(encode(&(id, command)).map_err(refused)?),
            None => PeerRequest::Directory(encode(command).map_err(refused)?),
        };
        // A leader that was stopped takes requests and answers none; the next one is there after a lease.
        let within = (self.lease / 2).max(Duration::from_secs(1));
        match self.peers.call_once(Way::of(command), &leader.address, &request, (LOOK, within)) {
            Ok(PeerReply::Directory(bytes)) => decode(&bytes).map_err(refused),
            Ok(other) => {
                let text = format!("the directory answered {other:?}");
                Err(Unanswered::Refused(Refused::new(errno::EIO, text)))
            }
            // A leader of another release takes no requests of this node; the next one may be of this one.
            Err(error)
                if matches!(
                    error.code,
                    errno::EHOSTUNREACH | errno::ESTALE | errno::ETIMEDOUT | errno::EPROTO
                ) =>
            {
                let why =
                    format!("node {} at {} leads it, as far as known: {error}", leader.name, leader.address);
                Err(Unanswered::Later(with(why, trouble), error.code != errno::EPROTO))
            }
            Err(error) if error.code == errno::EIO && id.is_none() => {
                Err(Unanswered::Later(error.text, false))
            }
            Err(error) => Err(Unanswered::Refused(error)),
        }
    }

    fn refusal(&self, why: &str, may_be_done: bool) -> Refused {
        let done = if may_be_done { "; whether this was done is not known, so look first" } else { "" };
        let text = format!(
            "the directory does not answer: {why}{done} (hint: nothing is written until a host leads again that can reach most of etcd; what is mapped stays readable; `hinterland doctor` on each node says what it sees)"
        );
        Refused::new(errno::EHOSTUNREACH, text)
    }

    fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn see(&self, leader: Option<Leader>) {
        let mut view = self.view();
        if view.leader != leader {
            match &leader {
                Some(leader) => {
                    tracing::info!(name = leader.name, term = leader.term, "a host leads the directory")
                }
                None => tracing::info!("no host leads the directory"),
            }
        }
        view.leader = leader;
        view.trouble = None;
        view.troubled_at = None;
        drop(view);
        self.changed.notify_all();
    }

    fn trouble(&self, what: String) {
        let mut view = self.view();
        if view.trouble.as_ref() != Some(&what) {
            tracing::warn!("{what}");
        }
        view.trouble = Some(what);
        view.troubled_at.get_or_insert_with(Instant::now);
    }

    fn is_stopping(&self) -> bool {
        self.view().stopping
    }

    /// Sleeps, but not when the node stops.
    fn pause(&self, pause: Duration) {
        let view = self.view();
        drop(self.changed.wait_timeout_while(view, pause, |view| !view.stopping));
    }

    // --- the thread ---------------------------------------------------------------------------------------------

    fn run(&self) {
        process::name_thread("directory");
        while !self.is_stopping() {
            match self.store.leader() {
                Ok((None, _)) if self.hosts => {
                    self.see(None);
                    if let Err(error) = self.campaign() {
                        self.trouble(error.to_string());
                        self.pause(PAUSE);
                    }
                }
                Ok((leader, revision)) => {
                    self.see(leader);
                    let began = Instant::now();
                    // A watch that breaks at once is no reason to ask without pause.
                    let least = match self.store.watch_leader(revision, self.lease / 2) {
                        Ok(true) => Duration::from_millis(20),
                        Ok(false) => PAUSE,
                        Err(error) => {
                            self.trouble(error.to_string());
                            PAUSE
                        }
                    };
                    self.pause(least.saturating_sub(began.elapsed()));
                }
                Err(error) => {
                    self.trouble(error.to_string());
                    self.pause(PAUSE);
                }
            }
        }
    }

    fn campaign(&self) -> Result<(), EtcdError> {
        // Whoever is elected writes. Of a store that only a later release reads not even that, and a host of that release is not kept waiting.
        if let Some(meta) = self.store.format()?
            && let Err(other @ RecoverError::OtherFormat { .. }) = Directory::check_format(&meta)
        {
            self.trouble(format!("this node cannot lead the directory: {other}"));
            self.pause(Duration::from_secs(1));
            return Ok(());
        }
        let client = self.store.client();
        let sent_ms = clock::boot_ms();
        let lease = client.grant(self.lease)?;
        let elected = self.store.stand(self.own.node, &self.own.name, &self.own.address, lease);
        if let Ok(Some((fence, leader))) = elected {
            tracing::info!(term = leader.term, "this node leads the directory");
            self.lead(fence, leader, lease, sent_ms);
            // Most often it is over anyway.
            let _ = client.revoke(lease.id);
            return Ok(());
        }
        // Also in doubt: with the lease goes what may have been written.
        let _ = client.revoke(lease.id);
        elected.map(drop)
    }

    /// Leads until the lease is over or the node stops.
    fn lead(&self, fence: Fence, leader: Leader, lease: Lease, sent_ms: u64) {
        let held = Held { lease, ttl_ms: lease.ttl.as_millis() as u64, until_ms: AtomicU64::new(0) }; // seconds
        held.believe(sent_ms);
        let fence = Arc::new(Mutex::new(fence));
        loop {
            let directory = match self.load(&fence, &held) {
                Ok(directory) => directory,
                Err(why) => {
                    self.trouble(format!("this node was elected to lead the directory and cannot: {why}"));
                    let _ = self.store.client().revoke(lease.id);
                    self.pause(Duration::from_secs(1));
                    return;
                }
            };
            let until_ms = held.until_ms.load(Ordering::Acquire);
            let seat = Arc::new(Seat::new(directory, Arc::clone(&fence), until_ms));
            self.view().seat = Some(Arc::clone(&seat));
            self.see(Some(leader.clone()));
            let ended = self.keep(&seat, &held);
            self.view().seat = None;
            self.changed.notify_all();
            match ended {
                // The same reign goes on with what etcd has.
                Some(Ended::NotWritten(why)) => self.trouble(why),
                Some(Ended::Over(why)) => {
                    self.trouble(format!("this node led the directory: {why}"));
                    return;
                }
                None => return,
            }
        }
    }

    /// Renews the lease until the reign is over; `None` when the node stops.
    fn keep(&self, seat: &Seat, held: &Held) -> Option<Ended> {
        let mut due = Instant::now() + held.lease.ttl / 5;
        loop {
            if self.is_stopping() {
                seat.end("this node stops");
                return None;
            }
            if let Some(ended) = seat.ended() {
                return Some(ended);
            }
            if Instant::now() >= due {
                due = Instant::now() + held.lease.ttl / 5;
                match self.renew(held) {
                    Ok(sent_ms) => seat.renewed(sent_ms, held.ttl_ms),
                    Err(Some(error)) => self.trouble(error.to_string()),
                    Err(None) => seat.end("its lease in etcd ran out, so another host may lead"),
                }
            }
            self.pause(AGAIN);
        }
    }

    /// Renews the lease once; `Err(None)` when there is none any more.
    fn renew(&self, held: &Held) -> Result<u64, Option<EtcdError>> {
        let sent_ms = clock::boot_ms();
        match self.store.client().keep_alive(held.lease.id) {
            Ok(true) => {
                held.believe(sent_ms);
                let mut view = self.view();
                (view.trouble, view.troubled_at) = (None, None);
                Ok(sent_ms)
            }
            Ok(false) => Err(None),
            Err(error) => Err(Some(error)),
        }
    }

    /// Loads the state, and meanwhile renews the lease: a large one takes longer than a lease.
    fn load(&self, fence: &Mutex<Fence>, held: &Held) -> Result<Directory, String> {
        std::thread::scope(|scope| {
            let loader = scope.spawn(|| {
                let may = || clock::boot_ms() < held.until_ms.load(Ordering::Acquire);
                let mut fence = fence.lock().unwrap_or_else(PoisonError::into_inner);
                // What a later release has begun may be of a form of which nothing is known here either.
                let unfinished = |error| self.other_format().unwrap_or_else(|| format!("{error:?}"));
                fence.finish(&may).map_err(unfinished)?;
                let (records, foreign) = self.store.load().map_err(|error| error.to_string())?;
                // Members must first learn who leads: they get two leases, by a clock that begins one ahead and waits there.
                let ahead_ms = clock::boot_ms() + self.settings.lease_ms;
                match (Directory::recover(self.settings, ahead_ms, records), foreign) {
                    // A later release may have tables of which nothing is known here.
                    (Err(other @ RecoverError::OtherFormat { .. }), _) => Err(other.to_string()),
                    (_, Some(foreign)) => Err(foreign.to_string()),
                    (recovered, None) => recovered.map_err(|error| error.to_string()),
                }
            });
            let mut due = Instant::now() + held.lease.ttl / 5;
            while !loader.is_finished() {
                if Instant::now() >= due {
                    due = Instant::now() + held.lease.ttl / 5;
                    // What fails here is noticed by the loader, or by the first command.
                    let _ = self.renew(held);
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            loader.join().unwrap_or_else(|_| Err("loading it has panicked".to_owned()))
        })
    }

    /// What there is to say of records that another release has written, if it has.
    fn other_format(&self) -> Option<String> {
        let (records, _) = self.store.load().ok()?;
        let refused = Directory::recover(self.settings, clock::boot_ms(), records).err()?;
        matches!(refused, RecoverError::OtherFormat { .. }).then(|| refused.to_string())
    }
}

/// A directory that a node follows which is about to start. If it does not start, it leads no longer: others would wait for its lease.
pub struct Following(Option<Arc<EtcdDirectory>>);

impl Following {
    /// As [`EtcdDirectory::begin`].
    ///
    /// # Errors
    /// As [`EtcdDirectory::begin`].
    pub fn begin(shared: &Arc<EtcdDirectory>) -> Result<Self, Refused> {
        shared.begin()?;
        Ok(Self(Some(Arc::clone(shared))))
    }

    /// The node has started.
    pub fn kept(mut self) {
        self.0 = None;
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            shared.stop();
        }
    }
}

/// The lease under which this node leads, and until when it is believed.
struct Held {
    lease: Lease,
    ttl_ms: u64,
    until_ms: AtomicU64,
}

impl Held {
    fn believe(&self, sent_ms: u64) {
        let until = hinterland_directory::believed_until(sent_ms, self.ttl_ms);
        self.until_ms.fetch_max(until, Ordering::AcqRel);
    }
}

fn not_written(why: &str) -> Refused {
    Refused::new(errno::EIO, format!("the directory cannot write, and nothing was changed: {why}"))
}

fn with(why: String, trouble: Option<String>) -> String {
    match trouble {
        Some(trouble) => format!("{why}; {trouble}"),
        None => why,
    }
}

/// The slots of requests that must not be carried out twice.
struct Slots {
    free: Mutex<Vec<(u16, u64)>>,
    freed: Condvar,
}

/// A slot that is in use, with the number of this request.
struct Slot<'a> {
    slots: &'a Slots,
    slot: u16,
    number: u64,
}

impl Slots {
    fn new() -> Self {
        Self { free: Mutex::new((0..SLOTS).map(|slot| (slot, 1)).collect()), freed: Condvar::new() }
    }

    fn take(&self) -> Slot<'_> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some((slot, number)) = free.pop() {
                return Slot { slots: self, slot, number };
            }
            free = self.freed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let mut free = self.slots.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.push((self.slot, self.number + 1));
        self.slots.freed.notify_one();
    }
}
