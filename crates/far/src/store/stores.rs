//! All back ends of a run: content goes where it is done first, in proportion to their speed; back ends come and go meanwhile.

use super::copy::{Content, Kept, Places};
use super::member::{Held, Life, Member, MemberState};
use super::moving::Bell;
use super::placing::Placing;
use super::{Codec, Copy, ResizeError, Store, StoreError};
use crate::words::say;
use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::Duration;

/// Content that no back end takes and that is kept in the supervisor, at most: from here on nothing more is to be taken out. It
/// holds what is under way when the back ends become full.
const STRANDED_BYTES_MAX: u64 = 64 << 20;
/// How long a new back end is measured.
const MEASURE_TIME: Duration = Duration::from_millis(10);
/// Bytes of what it is measured with.
const SAMPLE_BYTES: usize = 256 << 10;
/// Parts of the registry, so that threads seldom wait for each other.
pub(super) const SHARDS: usize = 64;
/// Bytes a second at which content moves between back ends: what runs must not notice.
const MOVE_BYTES_S: u64 = 1 << 30;

/// All back ends of a run.
pub struct Stores {
    members: RwLock<Arc<[Arc<Member>]>>,
    /// Those that are gone, for the report.
    past: Mutex<Vec<MemberState>>,
    /// In how many of them each content is to be.
    copies: AtomicUsize,
    /// How often content was found, or may have come, in fewer or more of them; and up to which time all of that was looked after.
    pub(super) uneven: AtomicU64,
    pub(super) evened: AtomicU64,
    /// Bytes by which each member is ahead of its share, by address of the member.
    pub(super) shares: Mutex<HashMap<usize, f64>>,
    registry: [Mutex<HashMap<u64, Weak<Content>>>; SHARDS],
    next: AtomicU64,
    /// Content that no back end took.
    stranded: Mutex<Vec<Weak<Content>>>,
    pub(super) stranded_bytes: AtomicU64,
    pub(super) move_bytes_s: AtomicU64,
    pub(super) bell: Arc<Bell>,
    pub(super) has_said_fewer: AtomicBool,
}

/// Why a back end cannot be added.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// There is one of this name.
    #[error("{0} is in use already (hint: retire it first, or name another one)")]
    Known(String),
    /// It does not work.
    #[error(transparent)]
    Broken(StoreError),
}

/// Why a back end cannot be retired.
#[derive(Debug, thiserror::Error)]
pub enum RetireError {
    /// There is none of this name.
    #[error("no back end in use is called {name} (hint: those in use are {known})")]
    Unknown {
        /// Which.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// The others are too few.
    #[error("without {name}, fewer than {copies} back ends are left (hint: add another one first)")]
    Needed {
        /// Which.
        name: String,
        /// How many are needed.
        copies: usize,
    },
}

/// Why those that were named cannot be the only ones.
#[derive(Debug, thiserror::Error)]
#[error(
    "only {working} of these back ends work, and each byte is to be in {copies} (hint: name another one, or ask for fewer with --copies)"
)]
pub struct FewError {
    working: usize,
    copies: usize,
}

impl Stores {
    /// These back ends, unmeasured, with each content in `copies` of them.
    pub fn new(stores: Vec<Box<dyn Store>>, copies: usize) -> Self {
        let members: Vec<Arc<Member>> =
            stores.into_iter().map(|store| Arc::new(Member::new(store))).collect();
        Self {
            members: RwLock::new(members.into()),
            past: Mutex::default(),
            copies: AtomicUsize::new(copies.max(1)),
            uneven: AtomicU64::new(0),
            evened: AtomicU64::new(0),
            shares: Mutex::default(),
            registry: std::array::from_fn(|_| Mutex::default()),
            next: AtomicU64::new(0),
            stranded: Mutex::default(),
            stranded_bytes: AtomicU64::new(0),
            move_bytes_s: AtomicU64::new(MOVE_BYTES_S),
            bell: Arc::default(),
            has_said_fewer: AtomicBool::new(false),
        }
    }

    /// Measures a back end for some milliseconds and takes it into use.
    ///
    /// # Errors
    /// [`AddError`] if it does not work, or has the name of another one.
    pub fn add(&self, store: Box<dyn Store>) -> Result<(), AddError> {
        let member = Member::new(store);
        let is_it = |other: &&Arc<Member>| other.life() == Life::Active && other.name() == member.name();
        if let Some(other) = self.in_use().iter().find(is_it) {
            return Err(AddError::Known(other.name().to_owned()));
        }
        let sample = sample(SAMPLE_BYTES.min(member.content_bytes_max()));
        member.measure(&sample, MEASURE_TIME).map_err(AddError::Broken)?;
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        *members = members.iter().cloned().chain([Arc::new(member)]).collect();
        drop(members);
        // What found no room may have some here.
        self.bell.ring();
        Ok(())
    }

    /// Gives a back end no new content, and moves what it has to the others in the background; it is closed when it has none. Until then
    /// its content is read from it.
    ///
    /// # Errors
    /// [`RetireError`] if there is no such back end, or too few others are left.
    pub fn retire(self: &Arc<Self>, name: &str) -> Result<(), RetireError> {
        let members = self.in_use();
        let active: Vec<_> = members.iter().filter(|member| member.life() == Life::Active).collect();
        let known = || active.iter().map(|member| member.name()).collect::<Vec<_>>().join(", ");
        let Some(member) =
            members.iter().find(|member| member.name() == name && member.life() != Life::Retired)
        else {
            return Err(RetireError::Unknown { name: name.to_owned(), known: known() });
        };
        let others = active.iter().filter(|other| !Arc::ptr_eq(other, member)).count();
        if others < self.copies() {
            return Err(RetireError::Needed { name: name.to_owned(), copies: self.copies() });
        }
        if member.leave(Life::Retired) {
            self.begin_moving();
            self.bell.ring();
        }
        Ok(())
    }

    /// Retires all back ends but these, with each content in so many of them from here on.
    ///
    /// # Errors
    /// [`FewError`] if too few of them work; nothing has changed then.
    pub fn keep_only(self: &Arc<Self>, names: &[String], copies: usize) -> Result<(), FewError> {
        let members = self.in_use();
        let active = members.iter().filter(|member| member.life() == Life::Active);
        let (stay, go): (Vec<_>, Vec<_>) =
            active.partition(|member| names.iter().any(|name| name == member.name()));
        if stay.len() < copies {
            return Err(FewError { working: stay.len(), copies });
        }
        self.set_copies(copies);
        for member in go {
            // One that has failed meanwhile leaves as it is.
            member.leave(Life::Retired);
        }
        self.begin_moving();
        self.bell.ring();
        Ok(())
    }

    /// Has a back end take so many bytes at most from here on.
    ///
    /// # Errors
    /// [`ResizeError`]; it is as before then.
    pub fn resize(&self, name: &str, bytes: u64) -> Result<(), ResizeError> {
        let members = self.in_use();
        let is_it = |member: &&Arc<Member>| member.life() == Life::Active && member.name() == name;
        // One that has failed meanwhile has no size any more.
        members.iter().find(is_it).map_or(Ok(()), |member| member.resize(bytes))?;
        // What found no room may have some here.
        self.bell.ring();
        Ok(())
    }

    /// Bytes of content for each byte that a codec makes of them, by a few contents of this run; 1 without any.
    pub fn compression(&self, codec: Codec) -> f64 {
        let (mut content_bytes, mut packed_bytes) = (0, 0);
        for shard in &self.registry {
            // Let go of behind the lock, which the last holder of content takes.
            let one = {
                let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
                shard.values().find_map(Weak::upgrade)
            };
            let Some(one) = one else { continue };
            let mut content = vec![0; one.bytes()];
            if one.read(&mut content).is_ok() {
                content_bytes += content.len() as u64;
                packed_bytes += codec.packed_bytes(&content);
            }
        }
        if packed_bytes == 0 { 1.0 } else { content_bytes as f64 / packed_bytes as f64 }
    }

    /// In how many of them each content is kept, or will be.
    pub fn copies(&self) -> usize {
        self.copies.load(Ordering::Relaxed) // Relaxed: a setting.
    }

    /// Has each content in so many of them from here on; what is there already follows in the background. At most as many as are in
    /// use, which is the caller's to see to.
    pub fn set_copies(self: &Arc<Self>, copies: usize) {
        self.copies.store(copies.max(1), Ordering::Relaxed); // Relaxed: as above.
        self.begin_evening();
        self.bell.ring();
    }

    /// Whether each content is in as many of them as it should be, as far as is known.
    pub fn is_even(&self) -> bool {
        // SeqCst: as where content is gone over.
        self.evened.load(Ordering::SeqCst) == self.uneven.load(Ordering::SeqCst)
    }

    /// Has content that is in fewer or more of them than it should be looked for.
    fn begin_evening(self: &Arc<Self>) {
        self.uneven.fetch_add(1, Ordering::SeqCst); // SeqCst: as where content is gone over.
        self.begin_moving();
    }

    /// Bytes a second at which content moves between back ends.
    pub fn set_move_rate(&self, bytes_s: u64) {
        self.move_bytes_s.store(bytes_s.max(1), Ordering::Relaxed); // Relaxed: a setting.
    }

    /// All back ends, those that are gone first, and what they have moved.
    pub fn members(&self) -> Vec<MemberState> {
        let mut states = self.past.lock().unwrap_or_else(PoisonError::into_inner).clone();
        states.extend(self.in_use().iter().map(|member| member.state()));
        states
    }

    /// Bytes of memory of this host that they take, and of content that none took.
    pub fn memory_bytes(&self) -> u64 {
        let stranded = self.stranded_bytes.load(Ordering::Relaxed); // Relaxed: a number for people.
        stranded + self.in_use().iter().map(|member| member.memory_bytes()).sum::<u64>()
    }

    /// Whether short contents take no more than long ones, wherever they go.
    pub fn is_exact(&self) -> bool {
        self.in_use().iter().all(|member| member.life() != Life::Active || member.is_exact())
    }

    /// The disks and links behind those in use, each once.
    pub fn devices(&self) -> BTreeSet<u64> {
        self.in_use().iter().filter_map(|member| member.device()).collect()
    }

    /// Whether nothing more should be taken out of programs: no back end has room, and what none took fills its limit.
    pub fn is_full(&self) -> bool {
        // Relaxed: a limit, which guards no other memory.
        self.stranded_bytes.load(Ordering::Relaxed) >= STRANDED_BYTES_MAX
    }

    /// Keeps content in as many back ends as were asked for. Where none takes it, the copy holds it in memory, so that no byte
    /// is lost; the error tells why, for the caller to act on.
    pub fn put(self: &Arc<Self>, content: &[u8]) -> (Copy, Option<StoreError>) {
        let mut placing = Placing::new(content, Held::new());
        self.place(&mut placing);
        let refusal = placing.refusal.take();
        let copy = self.register(content, self.kept(placing.places, content, refusal.as_ref()));
        self.look_after(&copy);
        (copy, refusal)
    }

    /// A copy of a part of a buffer, which can be read at once and is in no back end before it is [settled](Self::settle).
    pub fn begin(self: &Arc<Self>, buffer: &Arc<Vec<u8>>, range: Range<usize>) -> Copy {
        // A staging area has a few MiB.
        let kept = Kept::Pending(Arc::clone(buffer), range.start as u32..range.end as u32);
        self.register(&buffer[range], Places { kept, ..Places::default() })
    }

    /// Puts copies that were [begun](Self::begin) into back ends, as [`put`](Self::put) does, and lets go of their buffers. Returns why content is
    /// in fewer than it should be, if some is.
    pub fn settle(self: &Arc<Self>, copies: &[Copy]) -> Option<StoreError> {
        let known: Vec<_> = copies.iter().map(|copy| copy.0.places()).collect();
        let (mut settled, mut placings) = (Vec::new(), Vec::new());
        for (copy, places) in copies.iter().zip(&known) {
            // Nobody else changes what is pending: it is read while it is put.
            if let Kept::Pending(buffer, range) = &places.kept {
                settled.push(copy);
                let pending = &buffer[range.start as usize..range.end as usize];
                placings.push(Placing::new(pending, Held::new()));
            }
        }
        self.place_all(&mut placings);
        let mut refusal = None;
        let kept: Vec<Places> = placings
            .into_iter()
            .map(|mut placing| {
                let of_this = placing.refusal.take();
                let kept = self.kept(placing.places, placing.content, of_this.as_ref());
                refusal = of_this.or(refusal.take());
                kept
            })
            .collect();
        drop(known);
        for (copy, places) in settled.into_iter().zip(kept) {
            *copy.0.places_mut() = places;
            self.look_after(copy);
        }
        refusal
    }

    fn register(self: &Arc<Self>, content: &[u8], places: Places) -> Copy {
        // Relaxed: only has to differ.
        let number = NonZeroU64::MIN.saturating_add(self.next.fetch_add(1, Ordering::Relaxed));
        let copy = Arc::new(Content::new(self, number, content, places));
        self.shard(number.get()).insert(number.get(), Arc::downgrade(&copy));
        Copy(copy)
    }

    /// Has content that no back end took moved into one as soon as there is room, and what is in too few or too many into as many as it
    /// should be in: their number may have changed while it was put.
    fn look_after(self: &Arc<Self>, copy: &Copy) {
        if copy.is_stranded() {
            self.stranded().push(Arc::downgrade(&copy.0));
            self.begin_moving();
        } else if !copy.0.is_settled(self) {
            self.begin_evening();
        }
    }

    /// After an error: a back end that failed is drained.
    pub(super) fn give_up(self: &Arc<Self>, member: &Member, error: &StoreError) {
        if !matches!(error, StoreError::Failed { .. }) || !member.leave(Life::Failed) {
            return;
        }
        say(format_args!("{error}; it takes no more, and what it still has moves to the others"));
        self.begin_moving();
        self.bell.ring();
    }

    pub(super) fn in_use(&self) -> Arc<[Arc<Member>]> {
        Arc::clone(&self.members.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Closes what was retired and has no content any more.
    pub(super) fn close_empty(&self) {
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        let is_over = |member: &Arc<Member>| member.life() != Life::Active && member.held_bytes() == 0;
        if !members.iter().any(is_over) {
            return;
        }
        let (over, stay): (Vec<_>, Vec<_>) = members.iter().cloned().partition(is_over);
        *members = stay.into();
        drop(members);
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        shares.retain(|key, _| over.iter().all(|member| Arc::as_ptr(member) as usize != *key));
        drop(shares);
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        past.extend(over.iter().map(|member| MemberState {
            life: Life::Gone,
            memory_bytes: 0,
            // Who tries it once more at this moment counts what it does not take.
            held_bytes: 0,
            ..member.state()
        }));
    }

    pub(super) fn stranded(&self) -> MutexGuard<'_, Vec<Weak<Content>>> {
        self.stranded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn contents(&self, shard: usize) -> Vec<Arc<Content>> {
        let shard = self.registry[shard].lock().unwrap_or_else(PoisonError::into_inner);
        shard.values().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn forget(&self, number: u64) {
        self.shard(number).remove(&number);
    }

    fn shard(&self, number: u64) -> MutexGuard<'_, HashMap<u64, Weak<Content>>> {
        self.registry[number as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes to measure with: half of them compress, as in many programs.
fn sample(bytes: usize) -> Vec<u8> {
    let mut state = 88_172_645_463_325_252u64;
    let mut sample = vec![7; bytes];
    for word in sample.chunks_mut(16) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        for (byte, random) in word.iter_mut().zip((state ^ state >> 29).to_le_bytes()) {
            *byte = random;
        }
    }
    sample
}
