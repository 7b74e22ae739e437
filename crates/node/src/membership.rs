//! Membership: joining the directory, saying what is held, renewing the lease, letting go of what it asks for.

use crate::adopted::Adopted;
use crate::directory_link::{DirectoryLink, EncodedAnswer};
use crate::fault_point;
use crate::holdings::{Holding, Holdings};
use crate::known_names::KnownNames;
use crate::options::NodeOptions;
use crate::put::Puts;
use crate::refused::{Refused, errno};
use crate::repair::Repairs;
use crate::rescue::{rescue, rescued};
use hinterland_directory::{
    Command, ContentDigest, Departure, DirectoryError, FOUND_MAX, FormerPool, Found, HELD_MAX, Held,
    NotAdopted, Reply,
};
use hinterland_os::clock;
use hinterland_proto::PoolId;
use hinterland_types::{Epoch, NodeId, NodeName, ObjectId, RackName};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

mod rest;

use rest::{Left, Rest};

/// Heartbeats in the time of a lease.
pub const BEATS_PER_LEASE: u64 = 4;

/// Which life of the node this is; larger than in every earlier one.
#[derive(Clone, Debug)]
pub struct Incarnation(Arc<AtomicU64>);

impl Incarnation {
    /// The wall clock, which a restart finds further on.
    pub fn fresh() -> Self {
        Self(Arc::new(AtomicU64::new(clock::wall_ms())))
    }

    /// Its number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn raise_above(&self, known: u64) {
        self.0.fetch_max(known.saturating_add(1), Ordering::AcqRel);
    }
}

/// What the directory knows a node by.
#[derive(Clone, Debug)]
pub struct Membership {
    /// The node.
    pub node: NodeId,
    /// What people call it.
    pub name: Option<NodeName>,
    /// Its rack.
    pub rack: RackName,
    /// `HOST:PORT` of its fabric.
    pub address: String,
    /// This life.
    pub incarnation: Incarnation,
    /// Until when the lease counts.
    pub lease: LeaseClock,
    /// What is put into the directory again that it does not know.
    pub adoption: Adoption,
    /// Folder of the node's state.
    pub state: PathBuf,
    /// As of when the names are known of what is held.
    pub names: Arc<KnownNames>,
    /// Whether the directory has heard all that is held since this node joined last.
    is_joined: Arc<AtomicBool>,
    /// When it says again what the directory has refused it for.
    rest: Arc<Mutex<Rest>>,
    /// What it has not put into the directory again yet although it adopts.
    left: Arc<Mutex<Left>>,
    /// Copies in a part of what is said to be held: [`HELD_MAX`], or fewer in tests.
    part: usize,
}

/// Which objects a node puts into a directory again that does not know them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Adoption {
    /// None: the node does not come up.
    Refused,
    /// Those of a time after the directory's store.
    Newer,
    /// All: they are of this pool, which is no more.
    All(PoolId),
}

impl Adoption {
    /// What a node adopts that has been a member: what it holds by then is of this pool.
    const fn of_a_member(self) -> Self {
        match self {
            Self::All(_) => Self::Newer,
            usual => usual,
        }
    }
}

/// A node has joined.
#[derive(Debug)]
pub struct Joined {
    /// The lease in milliseconds.
    pub lease_ms: u64,
    /// What has become of objects that the directory did not know, in words.
    pub words: Vec<String>,
}

/// When the lease is to be renewed by who has much to do.
struct Pace {
    lease_ms: u64,
    due_ms: u64,
}

impl Pace {
    /// It was renewed by what was sent at `sent_ms`.
    const fn begun(sent_ms: u64, lease_ms: u64) -> Self {
        Self { lease_ms, due_ms: sent_ms + lease_ms / BEATS_PER_LEASE }
    }

    /// How long until it is due.
    fn left(&self) -> Duration {
        Duration::from_millis(self.due_ms.saturating_sub(clock::boot_ms()))
    }
}

/// Until when the directory keeps this node's place, by the own clock, which goes on while the machine is suspended.
#[derive(Clone, Debug, Default)]
pub struct LeaseClock(Arc<AtomicU64>);

impl LeaseClock {
    /// Whether it does now.
    pub fn is_held(&self) -> bool {
        clock::boot_ms() < self.0.load(Ordering::Acquire)
    }

    /// The directory has renewed it, asked at `sent_ms`. An eighth is left to clocks that run at different speeds.
    fn renewed(&self, sent_ms: u64, lease_ms: u64) {
        self.0.fetch_max(sent_ms + lease_ms - lease_ms / 8, Ordering::AcqRel);
    }
}

impl Membership {
    /// A node that the directory has not heard of in this life.
    pub fn new(
        options: &NodeOptions,
        node: NodeId,
        address: String,
        incarnation: Incarnation,
        adoption: Adoption,
    ) -> Self {
        let (rack, state) = (options.rack.clone(), options.state.clone());
        let name = Some(options.name.clone());
        let (lease, names) = (LeaseClock::default(), Arc::new(KnownNames::open(&state)));
        let (is_joined, rest, left, part) = (Arc::default(), Arc::default(), Arc::default(), HELD_MAX);
        Self {
            node,
            name,
            rack,
            address,
            incarnation,
            lease,
            adoption,
            state,
            names,
            is_joined,
            rest,
            left,
            part,
        }
    }

    /// Joins, says what is held, and drops what the directory does not want.
    ///
    /// # Errors
    /// [`Refused`] if the directory cannot be reached or does not take the node.
    pub fn join(&self, directory: &DirectoryLink, holdings: &Holdings) -> Result<Joined, Refused> {
        self.join_and(self.adoption, directory, holdings)
    }

    fn join_and(
        &self,
        adoption: Adoption,
        directory: &DirectoryLink,
        holdings: &Holdings,
    ) -> Result<Joined, Refused> {
        self.is_joined.store(false, Ordering::Release);
        // All is said anew.
        *self.left() = Left::default();
        let (lease_ms, mut pace) = loop {
            let sent_ms = clock::boot_ms();
            let command = Command::Join {
                node: self.node,
                rack: self.rack.clone(),
                address: self.address.clone(),
                capacity_bytes: holdings.capacity_bytes(),
                incarnation: self.incarnation.get(),
                name: self.name.clone(),
            };
            match directory.ask(&command)? {
                Ok(Reply::Joined { lease_ms }) => {
                    self.lease.renewed(sent_ms, lease_ms);
                    break (lease_ms, Pace::begun(sent_ms, lease_ms));
                }
                Err(DirectoryError::StaleIncarnation { known, .. }) => self.incarnation.raise_above(known),
                Ok(other) => {
                    return Err(Refused::new(errno::EIO, format!("the directory answered {other:?}")));
                }
                Err(error) => return Err(error.into()),
            }
        };
        fault_point::reach("joined");
        let words = self.report(adoption, &mut pace, directory, holdings)?;
        Ok(Joined { lease_ms, words })
    }

    fn is_joined(&self) -> bool {
        // Acquire: pairs with the Release of who joins.
        self.is_joined.load(Ordering::Acquire)
    }

    /// Renews the lease; joins again if it had run out, or the directory has not heard all that is held. Returns the lease in milliseconds.
    ///
    /// # Errors
    /// [`Refused`] if the directory cannot be reached, or is older than what is held.
    pub fn heartbeat(
        &self,
        directory: &DirectoryLink,
        holdings: &Holdings,
        puts: &Puts,
        repairs: &Repairs,
    ) -> Result<u64, Refused> {
        if !self.is_joined() {
            return match self.resting(directory, holdings)? {
                Some(refused) => Err(refused),
                None => self.join_anew(directory, holdings),
            };
        }
        let sent_ms = clock::boot_ms();
        match directory.ask(&self.beat(holdings))? {
            Ok(Reply::Beat { lease_ms, forget, copying, writing }) => {
                self.lease.renewed(sent_ms, lease_ms);
                let mut pace = Pace::begun(sent_ms, lease_ms);
                for (object, epoch) in forget {
                    self.let_go(&mut pace, directory, holdings, object, epoch);
                }
                for copy in &copying {
                    repairs.reconcile(std::slice::from_ref(copy));
                    self.keep_pace(&mut pace, directory, holdings);
                }
                for (object, token) in writing {
                    if !puts.knows(token) {
                        // Nobody goes on with it: its session ended while the directory was away. What was refused has been made meanwhile.
                        if let Err(error) = directory.ask(&Command::Abort { object })? {
                            tracing::debug!(%error, "nothing was given up");
                        }
                        self.keep_pace(&mut pace, directory, holdings);
                    }
                }
                self.adopt_again(&mut pace, directory, holdings)?;
                Ok(lease_ms)
            }
            Ok(other) => Err(Refused::new(errno::EIO, format!("the directory answered {other:?}"))),
            Err(
                DirectoryError::LeaseExpired { .. }
                | DirectoryError::UnknownNode { .. }
                | DirectoryError::NotReady { .. }
                | DirectoryError::StaleIncarnation { .. },
            ) => self.join_anew(directory, holdings),
            Err(error) => Err(error.into()),
        }
    }

    fn beat(&self, holdings: &Holdings) -> Command {
        let (node, incarnation) = (self.node, self.incarnation.get());
        Command::Heartbeat { node, incarnation, used_bytes: holdings.used_bytes() }
    }

    /// What the directory has refused this node for, which keeps its lease meanwhile and does not say again what it holds; nothing if it is to
    /// join anew.
    fn resting(&self, directory: &DirectoryLink, holdings: &Holdings) -> Result<Option<Refused>, Refused> {
        let Some(refused) = self.rest().pass() else { return Ok(None) };
        let sent_ms = clock::boot_ms();
        if let Ok(Reply::Beat { lease_ms, .. }) = directory.ask(&self.beat(holdings))? {
            self.lease.renewed(sent_ms, lease_ms);
            return Ok(Some(refused));
        }
        // Its store may be the newest again.
        self.rest().end();
        Ok(None)
    }

    fn rest(&self) -> MutexGuard<'_, Rest> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins as another life: what was heard of the one before, which may be a part of its list, counts no more.
    fn join_anew(&self, directory: &DirectoryLink, holdings: &Holdings) -> Result<u64, Refused> {
        self.incarnation.raise_above(self.incarnation.get());
        let joined = self.join_and(self.adoption.of_a_member(), directory, holdings);
        let joined = joined.map_err(|refused| self.tried_again(refused))?;
        joined.words.iter().for_each(|words| tracing::warn!("{words}"));
        Ok(joined.lease_ms)
    }

    /// Puts into the directory again what was left when this node joined, behind as many heartbeats as pass before a refused list is said
    /// again: a disk that was full may have room by then.
    fn adopt_again(
        &self,
        pace: &mut Pace,
        directory: &DirectoryLink,
        holdings: &Holdings,
    ) -> Result<(), Refused> {
        let Some(copies) = self.left().next()? else { return Ok(()) };
        // What was copied here anew meanwhile is in the directory, or on its way.
        let is_here = |(object, epoch)| holdings.find(object).is_ok_and(|holding| holding.epoch() == epoch);
        let objects: Vec<ObjectId> =
            copies.into_iter().filter(|copy| is_here(*copy)).map(|(object, _)| object).collect();
        let adoption = self.adoption.of_a_member();
        let words = self.adopt(adoption, pace, directory, holdings, &objects);
        let words = words.map_err(|refused| self.tried_again(refused))?;
        *self.left() = Left::default();
        words.iter().for_each(|words| tracing::warn!("{words}"));
        Ok(())
    }

    /// Why a node that is up has not put all into the directory again, with the word that it tries again; the same where nothing is left.
    fn tried_again(&self, refused: Refused) -> Refused {
        let mut left = self.left();
        if left.is_none() {
            return refused;
        }
        let Refused { code, text } = refused;
        let text = format!(
            "the directory does not have all again that is held here, which is tried again while this node runs: {text}"
        );
        left.rest(Refused::new(code, text))
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows the directory the newest of what is held, so that one whose store was put back from an older copy while this node was up
    /// notices before it gives the same numbers again. What there is to say if it is older. A node that has not joined shows all when it does.
    pub fn show_newest(&self, directory: &DirectoryLink, holdings: &Holdings) -> Option<Refused> {
        // What it puts into the directory again is not known there before.
        if !self.is_joined() || !self.left().is_none() {
            return None;
        }
        match self.ask_of_newest(directory, holdings) {
            Ok(Ok(Reply::KnowsLess { objects })) => Some(knows_less(holdings, &objects)),
            Ok(Ok(Reply::Shown { up: false })) => {
                // Its store is of a time before it had heard what is held: the next heartbeat joins anew.
                self.is_joined.store(false, Ordering::Release);
                None
            }
            // Heartbeats join again where that is needed.
            Ok(_) | Err(_) => None,
        }
    }

    fn ask_of_newest(
        &self,
        directory: &DirectoryLink,
        holdings: &Holdings,
    ) -> Result<EncodedAnswer, Refused> {
        let objects = holdings.newest().into_iter().map(|holding| held(&holding)).collect();
        let (node, incarnation) = (self.node, self.incarnation.get());
        directory.ask(&Command::ShowHeld { node, incarnation, objects })
    }

    /// Hears how the objects that are held are called by now. What there is to say where those are names of before.
    ///
    /// # Errors
    /// [`Refused`] if the directory does not say it, is older than what is held or may be, or a disk does not take it.
    pub fn hear_names(
        &self,
        directory: &DirectoryLink,
        holdings: &Holdings,
    ) -> Result<Option<String>, Refused> {
        let older = || match self.ask_of_newest(directory, holdings) {
            Ok(Ok(Reply::Shown { up: true })) => None,
            Ok(Ok(Reply::KnowsLess { objects })) => Some(knows_less(holdings, &objects)),
            Ok(Ok(_)) => {
                Some(Refused::new(errno::EAGAIN, "the directory has not heard yet what is held here"))
            }
            Ok(Err(error)) => Some(error.into()),
            Err(refused) => Some(refused),
        };
        self.names.hear(self.node, directory, holdings, older)
    }

    /// Says that the node goes for a while; its copies are remembered.
    pub fn leave(&self, directory: &DirectoryLink) {
        let command = Command::Leave {
            node: self.node,
            incarnation: self.incarnation.get(),
            departure: Departure::ComesBack,
        };
        if let Err(refused) = directory.apply(&command) {
            tracing::debug!(%refused, "the directory notices by the lease");
        }
    }

    /// Says what is held and drops what the directory does not want. Nothing is dropped, and all is put into the directory again if this
    /// node adopts, where that must come from a store that knew more.
    fn report(
        &self,
        adoption: Adoption,
        pace: &mut Pace,
        directory: &DirectoryLink,
        holdings: &Holdings,
    ) -> Result<Vec<String>, Refused> {
        let (halves, there): (Vec<_>, Vec<_>) =
            holdings.all().into_iter().partition(|holding| holding.is_writing());
        let mut held: Vec<Held> = there.iter().map(|holding| held(holding)).collect();
        let mut newer = Vec::new();
        if let Adoption::All(_) = adoption {
            newer.extend(held.drain(..).map(|held| held.object));
        }
        self.show_parts(adoption, pace, directory, holdings, &held)?;
        let (mut after, mut told) = (ObjectId(0), 0);
        loop {
            let end = held.len().min(told + self.part);
            let command = Command::NodeObjects {
                node: self.node,
                incarnation: self.incarnation.get(),
                after,
                objects: held[told..end].to_vec(),
                more: end < held.len(),
            };
            match directory.apply(&command)? {
                Reply::Reconciled { delete, .. } => {
                    for (object, epoch) in delete {
                        self.let_go(pace, directory, holdings, object, epoch);
                    }
                }
                Reply::KnowsLess { objects } if adoption == Adoption::Refused => {
                    return Err(self.refused_for(holdings, &objects));
                }
                Reply::KnowsLess { objects } => {
                    let known = newer.len();
                    let is_unknown = |held: &mut Held| objects.binary_search(&held.object).is_ok();
                    newer.extend(held.extract_if(told..end, is_unknown).map(|held| held.object));
                    if newer.len() == known {
                        let text = "the directory does not say what it does not know of what is held here";
                        return Err(Refused::new(errno::EIO, text));
                    }
                    continue;
                }
                _ => return Err(Refused::new(errno::EIO, "the directory did not say what to delete")),
            }
            if end == held.len() {
                self.is_joined.store(true, Ordering::Release);
                self.rest().end();
                // The directory counts on none of them any more, and has nobody let go of what it was not told of.
                for half in &halves {
                    self.drop_in_pace(pace, directory, holdings, half.object, half.epoch());
                }
                let adopted = self.adopt(adoption, pace, directory, holdings, &newer);
                let copy = |object| Some((object, holdings.find(object).ok()?.epoch()));
                return adopted
                    .inspect_err(|_| self.left().keep(newer.into_iter().filter_map(copy).collect()));
            }
            after = held[end - 1].object;
            told = end;
        }
    }

    /// Shows all parts of a list before the first one is dealt with, if there are several: what the last one tells of the directory's store
    /// counts for what the first one is to let go of.
    fn show_parts(
        &self,
        adoption: Adoption,
        pace: &mut Pace,
        directory: &DirectoryLink,
        holdings: &Holdings,
        held: &[Held],
    ) -> Result<(), Refused> {
        for part in held.chunks(self.part).filter(|part| part.len() < held.len()) {
            let (node, incarnation, objects) = (self.node, self.incarnation.get(), part.to_vec());
            match directory.apply(&Command::ShowHeld { node, incarnation, objects })? {
                Reply::KnowsLess { objects } if adoption == Adoption::Refused => {
                    return Err(self.refused_for(holdings, &objects));
                }
                _ => self.keep_pace(pace, directory, holdings),
            }
        }
        Ok(())
    }

    /// What is said of a list with objects that the directory does not know, which is not said again at once.
    fn refused_for(&self, holdings: &Holdings, objects: &[ObjectId]) -> Refused {
        let refused = knows_less(holdings, objects);
        self.rest().begin(&refused);
        refused
    }

    /// Puts objects into the directory again.
    fn adopt(
        &self,
        adoption: Adoption,
        pace: &mut Pace,
        directory: &DirectoryLink,
        holdings: &Holdings,
        objects: &[ObjectId],
    ) -> Result<Vec<String>, Refused> {
        let (mut adopted, mut left) = (Adopted::default(), Vec::new());
        let claimed = (!objects.is_empty()).then(|| KnownNames::claimed(self.node, directory)).flatten();
        if claimed.is_some_and(|(earliest, _)| earliest < self.names.latest()) {
            adopted.others_are_behind();
        }
        if let (Adoption::All(pool), Some(last)) = (adoption, objects.iter().max()) {
            self.names.remember_pool(FormerPool { pool: pool.0, last: *last })?;
        }
        let former = self.names.former();
        let is_behind =
            |holding: &Holding| claimed.is_some_and(|(_, latest)| self.names.as_of(holding) < latest);
        for part in objects.chunks(FOUND_MAX) {
            let holdings_of = part.iter().filter_map(|object| holdings.find(*object).ok());
            let found = holdings_of.map(|holding| found(&holding, &self.names)).collect();
            let (node, incarnation, former) = (self.node, self.incarnation.get(), former.clone());
            let command = Command::Adopt { node, incarnation, found, former };
            let Reply::Adopted { taken, refused } = directory.apply(&command)? else {
                return Err(Refused::new(errno::EIO, "the directory did not say what it adopts"));
            };
            for (object, name) in taken {
                match holdings.find(object).ok().filter(|_| part.contains(&object)) {
                    Some(holding) => adopted.took(&holding, &name, is_behind(&holding)),
                    None => adopted.moved(&name),
                }
            }
            left.extend(refused);
            fault_point::reach("adopted");
            self.renew(directory, holdings)?;
        }
        // Only now: writing takes its time, and who joins again because the lease has run out all the same adopts no more.
        let words = |adopted: &Adopted| adopted.words(&rescued(&self.state));
        for (object, why) in left {
            let Ok(holding) = holdings.find(object) else { continue };
            // Of those that have copies enough elsewhere nothing is lost.
            let is_saved = why != NotAdopted::TooManyCopies;
            let save = || self.in_pace(pace, directory, holdings, || rescue(&holding, &self.state));
            let saved = is_saved.then(save).transpose().inspect_err(|_| {
                // Where the others are nobody says again.
                words(&adopted).iter().for_each(|words| tracing::warn!("{words}"));
            })?;
            fault_point::reach("rescued");
            adopted.left(&holding, why, saved.as_deref());
            self.let_go(pace, directory, holdings, object, holding.epoch());
        }
        Ok(words(&adopted))
    }

    /// Keeps the lease while there are no heartbeats yet.
    fn renew(&self, directory: &DirectoryLink, holdings: &Holdings) -> Result<(), Refused> {
        let sent_ms = clock::boot_ms();
        if let Reply::Beat { lease_ms, .. } = directory.apply(&self.beat(holdings))? {
            self.lease.renewed(sent_ms, lease_ms);
        }
        Ok(())
    }

    /// Keeps the lease while the node does, one after the other, what the directory asks for: a thousand objects of which it lets go may take
    /// longer than a lease, which would end everything that its sessions write.
    fn keep_pace(&self, pace: &mut Pace, directory: &DirectoryLink, holdings: &Holdings) {
        let now_ms = clock::boot_ms();
        if now_ms < pace.due_ms {
            return;
        }
        if let Err(refused) = self.renew(directory, holdings) {
            tracing::debug!(%refused, "the next heartbeat joins again if the lease has run out");
        }
        *pace = Pace::begun(now_ms, pace.lease_ms);
    }

    fn let_go(
        &self,
        pace: &mut Pace,
        directory: &DirectoryLink,
        holdings: &Holdings,
        object: ObjectId,
        epoch: Epoch,
    ) {
        self.drop_in_pace(pace, directory, holdings, object, epoch);
        fault_point::reach("let-go-dropped");
        let command = Command::Forget { object, node: self.node, incarnation: self.incarnation.get(), epoch };
        if let Err(refused) = directory.apply(&command) {
            tracing::debug!(%refused, "the directory asks again with the next heartbeat");
        }
        self.keep_pace(pace, directory, holdings);
    }

    /// Drops a copy: the kernel takes longer than a lease for the small pages of a very large one.
    fn drop_in_pace(
        &self,
        pace: &mut Pace,
        directory: &DirectoryLink,
        holdings: &Holdings,
        object: ObjectId,
        epoch: Epoch,
    ) {
        self.in_pace(pace, directory, holdings, || drop_copy(holdings, object, epoch));
    }

    /// Does what may take longer than a lease, which is kept meanwhile.
    fn in_pace<T: Send>(
        &self,
        pace: &mut Pace,
        directory: &DirectoryLink,
        holdings: &Holdings,
        work: impl Fn() -> T + Sync,
    ) -> T {
        std::thread::scope(|scope| {
            let (say, said) = mpsc::sync_channel(1);
            let work = &work;
            // Nobody hears of it only if this thread has failed.
            let begun = std::thread::Builder::new().spawn_scoped(scope, move || drop(say.send(work())));
            if let Err(error) = begun {
                tracing::debug!(%error, "what may take longer than a lease is done without a thread of its own");
                return work();
            }
            loop {
                match said.recv_timeout(pace.left()) {
                    Ok(done) => return done,
                    Err(RecvTimeoutError::Timeout) => self.keep_pace(pace, directory, holdings),
                    // The thread has failed, and fails again here.
                    Err(RecvTimeoutError::Disconnected) => return work(),
                }
            }
        })
    }
}

/// An object of another epoch is a newer copy, which stays.
fn drop_copy(holdings: &Holdings, object: ObjectId, epoch: Epoch) {
    if holdings.find(object).is_ok_and(|holding| holding.epoch() == epoch) {
        holdings.drop_object(object);
    }
}

fn held(holding: &Holding) -> Held {
    Held { object: holding.object, epoch: holding.epoch(), digest: sealed_digest(holding) }
}

fn sealed_digest(holding: &Holding) -> Option<ContentDigest> {
    holding.is_sealed().then(|| ContentDigest(holding.digest()))
}

fn found(holding: &Holding, names: &KnownNames) -> Found {
    Found {
        object: holding.object,
        epoch: holding.epoch(),
        name: holding.name(),
        as_of: names.as_of(holding),
        bytes: holding.bytes(),
        digest: sealed_digest(holding),
    }
}

/// What is said where the directory's store is older than objects.
fn knows_less(holdings: &Holdings, objects: &[ObjectId]) -> Refused {
    let first = objects.first().and_then(|object| holdings.find(*object).ok());
    let first = first.map_or_else(String::new, |holding| format!(", such as {}", holding.name()));
    let text = format!(
        "the directory's store is older than this node's objects: it does not know {} of them{first}; nothing was deleted (hint: put the newest store back, or start this node and then all others with --adopt, which puts them into the directory again)",
        objects.len()
    );
    Refused::new(errno::ESTALE, text)
}

#[cfg(test)]
mod tests;
