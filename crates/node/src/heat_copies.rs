//! Heat copies: sealed objects of other racks that this node fetches again and again get one more copy here, which goes when nobody
//! reads it any more, or when anything else needs its room.
//!
//! Who fetches counts ([`Fetches`]), `policy` decides, the copier of [`repair`](crate::repair) makes the copy, and the directory knows that
//! it is there for heat only. It goes by the directory's word: asked first, it sends nobody here any more, and it refuses where no other
//! copy is up.

use crate::cache::Cache;
use crate::directory_link::DirectoryLink;
use crate::fault_point;
use crate::holdings::Holdings;
use crate::membership::Incarnation;
use crate::refused::{Refused, errno};
use crate::repair::{Purpose, Repairs};
use hinterland_directory::{Command, DirectoryError, Reply, charged_bytes};
use hinterland_os::process;
use hinterland_policy::copies::{CopyRoom, CopySettings, CopyUses, FetchHeat};
use hinterland_proto::control::{Home, ObjectInfo, ObjectState};
use hinterland_types::{Epoch, NodeId, ObjectId, RackName};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often the node looks which copies are due, and which are used.
const PACE: Duration = Duration::from_secs(1);
/// Looks between two tries to drop copies that nobody uses, if one had to stay: the directory is not asked every second.
const LOOKS_BETWEEN: u32 = 10;
/// How long who needs room waits for a copy in the making to be given up: longer than a home may take that does not answer.
const GIVE_UP_WAIT: Duration = Duration::from_secs(8);

/// Whether heat copies are made, and when.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HeatCopyOptions {
    /// Whether this node makes any. If not, those of an earlier life go.
    pub is_on: bool,
    /// When one pays.
    pub settings: CopySettings,
}

impl Default for HeatCopyOptions {
    fn default() -> Self {
        Self { is_on: true, settings: CopySettings::default() }
    }
}

/// Counts the bytes that come from other racks, object by object.
pub struct Fetches {
    /// This node's rack.
    pub rack: RackName,
    is_on: bool,
    started: Instant,
    heat: Mutex<FetchHeat>,
}

impl Fetches {
    /// Nothing was fetched yet.
    pub fn new(rack: RackName, options: HeatCopyOptions) -> Self {
        let heat = Mutex::new(FetchHeat::new(options.settings));
        Self { rack, is_on: options.is_on, started: Instant::now(), heat }
    }

    /// Bytes of an object of `size` bytes came from another rack.
    pub fn note(&self, object: ObjectId, size: u64, bytes: u64) {
        if self.is_on {
            self.lock().record(object, size, bytes, self.now());
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, FetchHeat> {
        self.heat.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes and drops this node's heat copies.
pub struct HeatCopies {
    options: HeatCopyOptions,
    own: NodeId,
    incarnation: Incarnation,
    directory: Arc<DirectoryLink>,
    holdings: Arc<Holdings>,
    repairs: Arc<Repairs>,
    fetches: Arc<Fetches>,
    uses: Mutex<CopyUses>,
    /// Whether a copy is in the making, and what tells that it is over.
    making: (Mutex<bool>, Condvar),
    is_room_needed: AtomicBool,
    stopping: (Mutex<bool>, Condvar),
    made: AtomicU64,
    dropped: AtomicU64,
}

impl HeatCopies {
    /// None is known yet; those of an earlier life are asked for by [`run`](Self::run).
    pub fn new(
        options: HeatCopyOptions,
        own: NodeId,
        incarnation: Incarnation,
        (directory, holdings, repairs): (Arc<DirectoryLink>, Arc<Holdings>, Arc<Repairs>),
        fetches: Arc<Fetches>,
    ) -> Arc<Self> {
        let copies = Arc::new(Self {
            options,
            own,
            incarnation,
            directory,
            holdings,
            repairs,
            fetches,
            uses: Mutex::default(),
            making: (Mutex::new(false), Condvar::new()),
            is_room_needed: AtomicBool::new(false),
            stopping: (Mutex::new(false), Condvar::new()),
            made: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        });
        // Weak: the holdings must not keep alive what keeps them.
        let way = Arc::downgrade(&copies);
        let make_way = move |bytes| way.upgrade().is_some_and(|copies| copies.make_way(bytes));
        copies.holdings.when_full(Box::new(make_way));
        copies
    }

    /// Copies made and dropped since the start.
    pub fn counts(&self) -> (u64, u64) {
        // Relaxed: counters that nothing is ordered by.
        (self.made.load(Ordering::Relaxed), self.dropped.load(Ordering::Relaxed))
    }

    /// Room that heat copies take.
    pub fn bytes(&self) -> u64 {
        let known = self.lock().order();
        known.into_iter().filter_map(|object| self.holdings.heat_room(object)).sum()
    }

    /// A program has read bytes of an object past the node, from the home that is nearest to it.
    pub fn note_fetched(&self, info: &ObjectInfo, bytes: u64) {
        let is_far = |home: &&Home| home.rack != self.fetches.rack;
        if info.state == ObjectState::Sealed
            && info.homes.iter().find(|home| home.up).is_some_and(|h| is_far(&h))
        {
            self.fetches.note(info.object, info.bytes, bytes);
        }
    }

    /// Ends [`run`](Self::run), also in the middle of a copy.
    pub fn stop(&self) {
        *self.stopping.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stopping.1.notify_all();
        self.is_room_needed.store(true, Ordering::Release);
    }

    /// Makes and drops copies until [`stop`](Self::stop).
    pub fn run(&self, cache: &Cache) {
        process::name_thread("heat-copies");
        let (mut is_sure, mut looks_left) = (false, 0);
        while !self.rests() {
            if !is_sure {
                match self.learn() {
                    Ok(()) => is_sure = true,
                    Err(refused) => tracing::debug!(%refused, "heat copies wait for the directory"),
                }
            }
            self.look_at_uses();
            looks_left = match looks_left {
                0 if self.drop_cold() => 0,
                0 => LOOKS_BETWEEN,
                left => left - 1,
            };
            if self.options.is_on && is_sure {
                is_sure = self.make_due(cache);
            }
        }
    }

    /// Learns from the directory which copies are for heat, as after a restart.
    fn learn(&self) -> Result<(), Refused> {
        let mut after = ObjectId(0);
        loop {
            let asked = self.directory.apply(&Command::HeatCopies { node: self.own, after })?;
            let Reply::HeatCopies { copies, more } = asked else { return Err(confused()) };
            for &(object, epoch) in &copies {
                match self.holdings.find(object) {
                    Ok(holding) if holding.epoch() == epoch && holding.is_sealed() => {
                        holding.set_heat_copy(true);
                        self.observe(object);
                    }
                    // The directory believes in a copy that was given up while it did not answer.
                    _ => self.forget(object, epoch)?,
                }
            }
            match copies.last() {
                Some((last, _)) if more => after = *last,
                _ => return Ok(()),
            }
        }
    }

    fn look_at_uses(&self) {
        let known = self.lock().order();
        known.into_iter().for_each(|object| self.observe(object));
        // Those that were removed, or have become ordinary copies, are no concern of ours.
        self.lock().retain(|object| self.holdings.heat_room(object).is_some());
    }

    fn observe(&self, object: ObjectId) {
        let Ok(holding) = self.holdings.find(object) else { return };
        let (count, is_open) = holding.heat_uses();
        self.lock().observe(object, count, is_open, self.fetches.now());
    }

    /// Drops what nobody has used for long; all of it if this node is to have none. Whether none had to stay.
    fn drop_cold(&self) -> bool {
        let cold = if self.options.is_on {
            self.lock().cold(&self.options.settings, self.fetches.now())
        } else {
            self.lock().order()
        };
        for object in &cold {
            self.drop_copy(*object);
        }
        cold.iter().all(|object| self.holdings.heat_room(*object).is_none())
    }

    /// Makes the copy that spares most, if one is due. Whether it is known what came of it.
    fn make_due(&self, cache: &Cache) -> bool {
        let used_bytes = self.holdings.used_bytes();
        let free_bytes = self.holdings.capacity_bytes().saturating_sub(used_bytes);
        let room = self.options.settings.room(CopyRoom { free_bytes, copies_bytes: self.bytes() });
        let Some(object) = self.fetches.lock().due(room, charged_bytes, self.fetches.now()) else {
            return true;
        };
        if self.holdings.find(object).is_ok() {
            self.fetches.lock().forget(object);
            return true;
        }
        let made = {
            let _making = self.begin_making();
            self.repairs.make(object, Purpose::Heat(&self.is_room_needed))
        };
        match made {
            Ok(bytes) => {
                // Relaxed: a counter that nothing is ordered by.
                self.made.fetch_add(1, Ordering::Relaxed);
                tracing::info!(%object, bytes, "this rack reads it a lot and has a copy of it");
                self.fetches.lock().forget(object);
                self.observe(object);
                cache.forget_object(object);
                true
            }
            Err(refused) => {
                tracing::debug!(%object, %refused, "a heat copy was not made");
                self.fetches.lock().rest(object, self.fetches.now());
                false
            }
        }
    }

    /// Drops heat copies of at least so many bytes if it can, those first that were not used for longest; whether any went.
    fn make_way(&self, bytes: u64) -> bool {
        if self.give_up_making() {
            return true;
        }
        // Where all of them would not be enough, none goes.
        let order = if self.bytes() >= bytes { self.lock().order() } else { Vec::new() };
        let mut freed = 0;
        for object in order {
            if freed >= bytes {
                break;
            }
            freed += self.drop_copy(object);
        }
        freed > 0
    }

    /// Drops one copy with the directory's leave; returns the room that it had, 0 if it stays.
    fn drop_copy(&self, object: ObjectId) -> u64 {
        let Ok(holding) = self.holdings.find(object) else { return 0 };
        let Some(room) = self.holdings.heat_room(object) else { return 0 };
        let command = Command::DropHeatCopy {
            object,
            node: self.own,
            incarnation: self.incarnation.get(),
            epoch: holding.epoch(),
        };
        match self.directory.ask(&command) {
            Ok(Ok(_)) => {
                fault_point::reach("heat-copy-let-go");
                // Of two who need room at once, one drops it.
                if !holding.take_heat_mark() {
                    return 0;
                }
                self.holdings.drop_object(object);
                fault_point::reach("heat-copy-dropped");
                self.lock().forget(object);
                // Relaxed: a counter that nothing is ordered by.
                self.dropped.fetch_add(1, Ordering::Relaxed);
                room
            }
            Ok(Err(DirectoryError::CopyIsWanted { .. })) => {
                holding.set_heat_copy(false);
                self.lock().forget(object);
                0
            }
            Ok(Err(error)) => {
                tracing::debug!(%object, %error, "a heat copy stays");
                0
            }
            Err(refused) => {
                tracing::debug!(%object, %refused, "a heat copy stays until the directory answers");
                0
            }
        }
    }

    /// Lets a copy in the making be given up, and waits for it; whether there was one.
    fn give_up_making(&self) -> bool {
        let making = self.making.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !*making {
            return false;
        }
        self.is_room_needed.store(true, Ordering::Release);
        let waited = self.making.1.wait_timeout_while(making, GIVE_UP_WAIT, |making| *making);
        !*waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn begin_making(&self) -> Making<'_> {
        let mut making = self.making.0.lock().unwrap_or_else(PoisonError::into_inner);
        *making = true;
        // Whoever needs room from here on sees that a copy is in the making. A node that stops needs none.
        let is_stopping = *self.stopping.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_room_needed.store(is_stopping, Ordering::Release);
        Making(self)
    }

    fn forget(&self, object: ObjectId, epoch: Epoch) -> Result<(), Refused> {
        let incarnation = self.incarnation.get();
        self.directory.apply(&Command::Forget { object, node: self.own, incarnation, epoch }).map(drop)
    }

    /// Waits; whether the node is being stopped.
    fn rests(&self) -> bool {
        let stopping = self.stopping.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.stopping.1.wait_timeout_while(stopping, PACE, |stopping| !*stopping);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn lock(&self) -> MutexGuard<'_, CopyUses> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A copy is in the making for as long as this lives.
struct Making<'a>(&'a HeatCopies);

impl Drop for Making<'_> {
    fn drop(&mut self) {
        *self.0.making.0.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.making.1.notify_all();
    }
}

fn confused() -> Refused {
    Refused::new(errno::EIO, "the directory gave an answer that does not belong to the question")
}
