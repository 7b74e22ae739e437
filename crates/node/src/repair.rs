//! Copies that were lost are made again: the node asks the directory what lacks copies, and fetches what it is chosen for.
//!
//! A node that is away for a moment must not set gigabytes in motion: an object is repaired once it has lacked copies for
//! [`RepairOptions::after`], as this node has seen it. A copy counts when its checksums agree with the directory's
//! digest and are durable here; whatever fails before leaves nothing, and is tried again.

use crate::cache::Source;
use crate::directory_link::{DirectoryLink, describe};
use crate::fault_point;
use crate::holdings::Holdings;
use crate::membership::Incarnation;
use crate::peers::Peers;
use crate::refused::{Refused, errno};
use hinterland_directory::{Command, ContentDigest, REPAIRS_MAX, Reply};
use hinterland_fabric::Intake;
use hinterland_os::process;
use hinterland_proto::control::ObjectInfo;
use hinterland_types::{ByteRange, Epoch, NodeId, ObjectId};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that are fetched before the node looks whether it is to stop: some milliseconds of a fast network.
const PIECE_BYTES: u64 = 8 << 20;
/// Shortest and longest pause between two questions while something lacks copies.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How often a copy that rests looks whether its room is needed.
const REST_PAUSE: Duration = Duration::from_millis(50);
/// How many times longer the pause is while nothing lacks copies.
const IDLE_PAUSES: u32 = 6;

/// When and how fast lost copies are made again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RepairOptions {
    /// Whether this node makes any.
    pub is_on: bool,
    /// How long an object has lacked copies before it is repaired.
    pub after: Duration,
    /// Bytes a second that are fetched for repairs; 0: as fast as it goes.
    pub bytes_per_second: u64,
}

impl Default for RepairOptions {
    fn default() -> Self {
        Self { is_on: true, after: Duration::from_secs(30), bytes_per_second: 256 << 20 }
    }
}

/// What a copy is made for.
#[derive(Clone, Copy)]
pub enum Purpose<'a> {
    /// It is one of those that were asked for.
    Wanted,
    /// This rack reads the object a lot. The flag says that the room is needed.
    Heat(&'a AtomicBool),
}

/// Makes this node's share of lost copies, and heat copies.
pub struct Repairs {
    options: RepairOptions,
    own: NodeId,
    incarnation: Incarnation,
    directory: Arc<DirectoryLink>,
    peers: Arc<Peers>,
    holdings: Arc<Holdings>,
    /// Copies in the making; no epoch yet while the directory is being asked for one.
    making: Mutex<HashMap<ObjectId, Option<Epoch>>>,
    /// Held while a copy is mended in place.
    pub mending: Mutex<()>,
    stopping: Mutex<bool>,
    bell: Condvar,
    made: AtomicU64,
    made_bytes: AtomicU64,
}

impl Repairs {
    /// Nothing is in the making yet.
    pub fn new(
        options: RepairOptions,
        own: NodeId,
        incarnation: Incarnation,
        (directory, peers, holdings): (Arc<DirectoryLink>, Arc<Peers>, Arc<Holdings>),
    ) -> Self {
        Self {
            options,
            own,
            incarnation,
            directory,
            peers,
            holdings,
            making: Mutex::default(),
            mending: Mutex::default(),
            stopping: Mutex::default(),
            bell: Condvar::new(),
            made: AtomicU64::new(0),
            made_bytes: AtomicU64::new(0),
        }
    }

    /// Copies made since the start, and their bytes.
    pub fn counts(&self) -> (u64, u64) {
        // Relaxed: counters that nothing is ordered by.
        (self.made.load(Ordering::Relaxed), self.made_bytes.load(Ordering::Relaxed))
    }

    /// Ends [`run`](Self::run), also in the middle of a copy.
    pub fn stop(&self) {
        *self.stopping.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.bell.notify_all();
    }

    /// Makes copies until [`stop`](Self::stop).
    pub fn run(&self) {
        process::name_thread("repair");
        let pause = (self.options.after / 4).clamp(PAUSES.0, PAUSES.1);
        let mut lacking: HashMap<ObjectId, Instant> = HashMap::new();
        let mut wait = pause;
        while self.options.is_on && !self.rests(wait) {
            match self.pass(&mut lacking) {
                Ok(()) => wait = if lacking.is_empty() { pause * IDLE_PAUSES } else { pause },
                Err(refused) => tracing::debug!(%refused, "repairs wait for the directory"),
            }
        }
    }

    /// What a heartbeat's answer says that the directory waits for: tells it again about copies that are whole, and
    /// takes back those that nobody makes, because an answer was lost.
    pub fn reconcile(&self, copying: &[(ObjectId, Epoch)]) {
        for &(object, epoch) in copying {
            let known = self.making().get(&object).copied();
            if known.is_some_and(|known| known.is_none_or(|known| known == epoch)) {
                continue;
            }
            let held = self.holdings.find(object).ok();
            let told = match held.filter(|held| held.is_sealed() && held.epoch() == epoch) {
                Some(held) => self.tell_made(object, epoch, held.digest()),
                None => self.forget(object, epoch),
            };
            if let Err(refused) = told {
                tracing::debug!(%refused, "the directory says again with the next heartbeat what it waits for");
            }
        }
    }

    /// Asks for everything that lacks copies, once, and makes those that are due and meant for this node.
    fn pass(&self, lacking: &mut HashMap<ObjectId, Instant>) -> Result<(), Refused> {
        let now = Instant::now();
        let mut found = HashMap::new();
        let mut after = ObjectId(0);
        loop {
            let asked = self.directory.apply(&Command::RepairList { after, limit: REPAIRS_MAX })?;
            let Reply::Repairs { repairs, through, more } = asked else { return Err(confused()) };
            for repair in repairs {
                let since = *lacking.get(&repair.object).unwrap_or(&now);
                found.insert(repair.object, since);
                let is_due = since.elapsed() >= self.options.after;
                if is_due && repair.target == Some(self.own) && !self.is_stopping() {
                    match self.make(repair.object, Purpose::Wanted) {
                        Ok(_) => drop(found.remove(&repair.object)),
                        Err(refused) => {
                            tracing::warn!(object = %repair.object, %refused, "a copy was not made; it is tried again");
                        }
                    }
                }
            }
            if !more || self.is_stopping() {
                *lacking = found;
                return Ok(());
            }
            after = through;
        }
    }

    /// Makes one copy; returns its bytes. Whatever fails leaves nothing here.
    ///
    /// # Errors
    /// [`Refused`] if this node may have none, or no home gives the bytes.
    pub fn make(&self, object: ObjectId, purpose: Purpose<'_>) -> Result<u64, Refused> {
        // Known before the directory hears of it, so that a heartbeat does not take it back as forgotten. Of an object, one copy is
        // made at a time.
        match self.making().entry(object) {
            Entry::Vacant(place) => drop(place.insert(None)),
            Entry::Occupied(_) => return Err(Refused::new(errno::EAGAIN, "a copy of it is being made")),
        }
        let result = self.make_known(object, purpose);
        self.making().remove(&object);
        let bytes = result?;
        fault_point::reach("repair-made");
        if let Purpose::Wanted = purpose {
            // Relaxed: counters that nothing is ordered by.
            self.made.fetch_add(1, Ordering::Relaxed);
            self.made_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(bytes)
    }

    fn make_known(&self, object: ObjectId, purpose: Purpose<'_>) -> Result<u64, Refused> {
        let Some((epoch, info)) = self.reserve(object, purpose)? else {
            // The heat copy that is here has become one of those that were asked for.
            let holding = self.holdings.find(object)?;
            holding.set_heat_copy(false);
            return Ok(holding.bytes());
        };
        self.making().insert(object, Some(epoch));
        fault_point::reach("repair-reserved");
        let copied = self.copy(&info, epoch, purpose).and_then(|()| {
            fault_point::reach("repair-copied");
            self.tell_made(object, epoch, info.digest)
        });
        if copied.is_err() {
            self.take_back(object, epoch);
        }
        copied.map(|()| info.bytes)
    }

    /// What to fetch; nothing if the copy is here already.
    fn reserve(
        &self,
        object: ObjectId,
        purpose: Purpose<'_>,
    ) -> Result<Option<(Epoch, ObjectInfo)>, Refused> {
        let (node, incarnation) = (self.own, self.incarnation.get());
        let command = match purpose {
            Purpose::Wanted => Command::AddReplica { object, node, incarnation },
            Purpose::Heat(_) => Command::AddHeatCopy { object, node, incarnation },
        };
        match self.directory.apply(&command)? {
            Reply::Copying { epoch, object } => Ok(Some((epoch, describe(&object, self.own)))),
            Reply::ReplicaAdded => Ok(None),
            _ => Err(confused()),
        }
    }

    /// Fetches all bytes from the other homes, each block checked, and seals them here.
    fn copy(&self, info: &ObjectInfo, epoch: Epoch, purpose: Purpose<'_>) -> Result<(), Refused> {
        let homes = (Arc::clone(&self.peers), Arc::clone(&self.directory));
        let source = Source::open(info.clone(), homes.0, homes.1, self.own, Arc::default())?;
        let ticket = hinterland_pool::local::random().map_err(Refused::from)?;
        let (object, name) = (info.object, info.name.clone());
        let holding = match purpose {
            Purpose::Wanted => self.holdings.create(object, epoch, name, info.bytes, ticket)?,
            Purpose::Heat(_) => self.holdings.create_heat_copy(object, epoch, name, info.bytes, ticket)?,
        };
        // At most PIECE_BYTES: the casts lose nothing.
        let mut intake = Intake::new(PIECE_BYTES.min(info.bytes.max(1)) as usize, 1)?;
        let begun = Instant::now();
        let mut done = 0;
        while done < info.bytes {
            let bytes = PIECE_BYTES.min(info.bytes - done);
            let range = ByteRange::new(done, bytes)
                .map_err(|error| Refused::new(errno::EINVAL, error.to_string()))?;
            source.fetch(range, &mut intake, &mut |intake, piece| {
                let at = (piece.offset() - done) as usize;
                let memory = holding.slice(piece.offset(), piece.bytes())?;
                memory.write_at(0, intake.bytes(at, piece.bytes() as usize))?;
                Ok(())
            })?;
            fault_point::reach("repair-piece");
            done += bytes;
            self.rests_between(self.ahead(done, begun.elapsed()), purpose)?;
        }
        let sealed = self.holdings.seal(info.object, info.bytes)?;
        if sealed != info.digest {
            let text = format!("the copy of {} has other bytes than were fetched", info.name);
            return Err(Refused::new(errno::EIO, text));
        }
        Ok(())
    }

    /// Rests between two pieces of a copy; an error if it is not to go on.
    fn rests_between(&self, wait: Duration, purpose: Purpose<'_>) -> Result<(), Refused> {
        let until = Instant::now() + wait;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if self.rests(left.min(REST_PAUSE)) {
                return Err(Refused::new(errno::EIO, "the node is being stopped"));
            }
            if let Purpose::Heat(is_needed) = purpose
                && is_needed.load(Ordering::Acquire)
            {
                return Err(Refused::new(errno::ENOSPC, "its room is needed"));
            }
            if left <= REST_PAUSE {
                return Ok(());
            }
        }
    }

    /// How long to rest so that `bytes` did not come faster than they may.
    fn ahead(&self, bytes: u64, taken: Duration) -> Duration {
        match self.options.bytes_per_second {
            0 => Duration::ZERO,
            rate => Duration::from_secs_f64(bytes as f64 / rate as f64).saturating_sub(taken),
        }
    }

    fn tell_made(&self, object: ObjectId, epoch: Epoch, digest: [u8; 32]) -> Result<(), Refused> {
        let incarnation = self.incarnation.get();
        let digest = ContentDigest(digest);
        self.directory
            .apply(&Command::ReplicaAdded { object, node: self.own, incarnation, epoch, digest })
            .map(drop)
    }

    fn forget(&self, object: ObjectId, epoch: Epoch) -> Result<(), Refused> {
        let incarnation = self.incarnation.get();
        self.directory.apply(&Command::Forget { object, node: self.own, incarnation, epoch }).map(drop)
    }

    /// Lets go of a copy that did not become one. What another epoch holds is another copy, and stays.
    fn take_back(&self, object: ObjectId, epoch: Epoch) {
        if self.holdings.find(object).is_ok_and(|holding| holding.epoch() == epoch) {
            self.holdings.drop_object(object);
        }
        if let Err(refused) = self.forget(object, epoch) {
            tracing::debug!(%refused, "a heartbeat takes the copy back");
        }
    }

    /// Waits; whether the node is being stopped.
    fn rests(&self, wait: Duration) -> bool {
        let stopping = self.stopping.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.bell.wait_timeout_while(stopping, wait, |stopping| !*stopping);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn is_stopping(&self) -> bool {
        *self.stopping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn making(&self) -> MutexGuard<'_, HashMap<ObjectId, Option<Epoch>>> {
        self.making.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn confused() -> Refused {
    Refused::new(errno::EIO, "the directory gave an answer that does not belong to the question")
}
