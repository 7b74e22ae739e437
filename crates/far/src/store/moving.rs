//! Content moves in the background: away from back ends that were retired or failed, into one when no room was found at first, and into as
//! many as it should be in.

use super::StoreError;
use super::copy::{self, Content};
use super::member::{Held, Life};
use super::placing::Placing;
use super::stores::{SHARDS, Stores};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Pause between two looks whether there is room for what found none.
const PAUSE: Duration = Duration::from_millis(50);
/// Pauses between two passes over all content, from the first that moved nothing on.
const PASS_PAUSE_MAX: Duration = Duration::from_secs(5);

/// What is read and put at once: enough that a disk goes on without a pause.
const BATCH_BYTES: usize = 512 << 10;
/// Threads of a pass: a disk is slow with one transfer after the other.
const MOVERS: usize = 4;

/// One look at all content, by several threads.
#[derive(Default)]
struct Pass {
    /// The next shard that nobody has taken.
    next: AtomicUsize,
    moved_bytes: AtomicU64,
    /// There was something that could not go where it should be.
    stays_uneven: AtomicBool,
}

/// Wakes the thread that moves content, and knows whether there is one.
#[derive(Default)]
pub(super) struct Bell {
    state: Mutex<Rung>,
    changed: Condvar,
}

#[derive(Default)]
struct Rung {
    is_running: bool,
    is_rung: bool,
}

impl Bell {
    /// Something has changed: it is worth another pass.
    pub(super) fn ring(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_rung = true;
        self.changed.notify_all();
    }

    /// Waits until somebody rings; returns whether somebody did.
    fn wait(&self, time: Duration) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(state, time, |state| !state.is_rung);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut state.is_rung)
    }
}

impl Stores {
    /// Begins to move content, unless a thread is at it.
    pub(super) fn begin_moving(self: &Arc<Self>) {
        let mut state = self.bell.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_running {
            return;
        }
        let (weak, bell) = (Arc::downgrade(self), Arc::clone(&self.bell));
        let run = move || {
            hinterland_os::process::name_thread("far-move");
            run(&weak, &bell);
        };
        // Without a thread, content stays where it is, and the next reason tries again.
        state.is_running = std::thread::Builder::new().name("far-move".to_owned()).spawn(run).is_ok();
    }

    fn has_leaving(&self) -> bool {
        self.in_use().iter().any(|member| member.life() != Life::Active && member.held_bytes() > 0)
    }

    fn has_stranded(&self) -> bool {
        self.stranded_bytes.load(Ordering::Relaxed) > 0 // Relaxed: the bell orders it.
    }

    /// Moves away what back ends have that are leaving, and has each content in as many others as it should be in; returns how many
    /// bytes went.
    fn even_out(self: &Arc<Self>) -> u64 {
        // SeqCst: who puts content with too few copies behind this is left to the next pass, as is who changes their number.
        let seen = self.uneven.load(Ordering::SeqCst);
        let pass = Pass::default();
        std::thread::scope(|scope| {
            for _ in 1..MOVERS {
                let work = || {
                    hinterland_os::process::name_thread("far-move");
                    self.even_shards(&pass);
                };
                // Without it, the others do its part.
                drop(std::thread::Builder::new().spawn_scoped(scope, work));
            }
            self.even_shards(&pass);
        });
        // Relaxed: all threads of the pass have ended.
        if !pass.stays_uneven.load(Ordering::Relaxed) {
            self.evened.store(seen, Ordering::SeqCst); // SeqCst: as above.
            self.has_said_fewer.store(false, Ordering::Relaxed); // Relaxed: guards nothing but a sentence.
        }
        self.close_empty();
        pass.moved_bytes.load(Ordering::Relaxed) // Relaxed: as above.
    }

    /// The part of a pass that one thread does: contents of a shard are moved by nobody else meanwhile.
    fn even_shards(self: &Arc<Self>, pass: &Pass) {
        let begun = Instant::now();
        loop {
            let shard = pass.next.fetch_add(1, Ordering::Relaxed); // Relaxed: only has to differ.
            if shard >= SHARDS {
                return;
            }
            let mut contents = self.contents(shard);
            contents.retain(|content| !content.is_settled(self));
            let mut rest = &contents[..];
            while let Some(first) = rest.first() {
                let (batch, others) =
                    rest.split_at((BATCH_BYTES / first.bytes().max(1)).clamp(1, rest.len()));
                rest = others;
                let bytes = self.relocate(batch);
                // Relaxed: counters, read when the threads have ended.
                let moved = pass.moved_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
                self.keep_rate(begun, moved);
            }
            if contents.iter().any(|content| !content.is_settled(self)) {
                pass.stays_uneven.store(true, Ordering::Relaxed); // Relaxed: as above.
            }
        }
    }

    /// Whether there is something to move, as far as is known.
    fn has_work(&self) -> bool {
        self.has_leaving() || self.has_stranded() || !self.is_even()
    }

    /// Moves what no back end took into one that has room again.
    fn empty_stranded(self: &Arc<Self>) {
        let mut left = std::mem::take(&mut *self.stranded());
        left.retain(|content| content.upgrade().is_some_and(|content| self.relocate(&[content]) == 0));
        self.stranded().append(&mut left);
    }

    fn keep_rate(&self, begun: Instant, moved: u64) {
        let rate = self.move_bytes_s.load(Ordering::Relaxed).max(1); // Relaxed: a setting.
        let due = Duration::from_secs_f64(moved as f64 / rate as f64);
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
    }
}

/// Moves content until there is nothing more to move, or nobody has any.
fn run(stores: &Weak<Stores>, bell: &Bell) {
    let mut pause = PAUSE;
    let mut due = Instant::now();
    loop {
        let Some(stores) = stores.upgrade() else { return };
        if stores.has_stranded() {
            stores.empty_stranded();
        }
        if (stores.has_leaving() || !stores.is_even()) && Instant::now() >= due {
            pause = if stores.even_out() > 0 { PAUSE } else { (pause * 2).min(PASS_PAUSE_MAX) };
            due = Instant::now() + pause;
        }
        if !stores.has_work() {
            stores.close_empty();
            let mut state = bell.state.lock().unwrap_or_else(PoisonError::into_inner);
            // What begins from here on sees that no thread is at it; what began before is seen here.
            if !stores.has_work() {
                state.is_running = false;
                return;
            }
        }
        drop(stores);
        if bell.wait(PAUSE) {
            (pause, due) = (PAUSE, Instant::now());
        }
    }
}

impl Content {
    /// Whether it is where it should be: in as many back ends as were asked for, and in none that is leaving. What is in none at all
    /// is looked after elsewhere.
    pub(super) fn is_settled(&self, stores: &Stores) -> bool {
        let places = self.places();
        let active = places.at.iter().filter(|(member, _)| member.life() == Life::Active).count();
        places.at.is_empty() || (active == places.at.len() && active == stores.copies())
    }

    /// Where it is from here on, after it was put into places behind the first `known`; gives back those that it leaves. `false`: it stays where it
    /// was, because there is no room.
    fn relocated(
        &self,
        stores: &Stores,
        mut places: Held,
        known: usize,
        refusal: Option<&StoreError>,
    ) -> bool {
        let is_short = refusal.is_some();
        // Where the content must have been put into a back end that failed, nothing is better than before.
        let is_better = places[known..].iter().any(|(member, _)| member.life() == Life::Active);
        // What nobody took is told as such.
        if let Some(refusal) = refusal
            && !places.is_empty()
            && places.iter().all(|(member, _)| member.life() == Life::Active)
        {
            stores.say_fewer(refusal);
        }
        if !is_better && is_short {
            for (member, place) in places.drain(known..) {
                member.free(place, self.bytes());
            }
            return false;
        }
        let (mut stay, mut go): (Held, Held) =
            places.into_iter().partition(|(member, _)| member.life() == Life::Active);
        if is_short || stay.len() < stores.copies() {
            // With too few copies, or when one has just failed, the places that are left serve on as far as they can.
            stay.append(&mut go);
        }
        while !is_short && stay.len() > stores.copies() {
            // Those that answer first stay.
            let last = copy::order(&stay, self.bytes()).pop();
            go.extend(last.map(|index| stay.swap_remove(index)));
        }
        let mut now = self.places_mut();
        now.at = stay;
        let was_stranded = std::mem::take(&mut now.kept).is_stranded();
        drop(now);
        for (member, place) in go {
            member.free(place, self.bytes());
        }
        if was_stranded {
            // Relaxed: a limit, which guards no other memory.
            stores.stranded_bytes.fetch_sub(self.bytes() as u64, Ordering::Relaxed);
        }
        true
    }
}

impl Stores {
    /// Puts contents into as many back ends as they should be in, and gives back the places that they leave. Returns how many bytes are
    /// where they should be, or nearer to it. Nobody else changes their places: one thread has their shard.
    fn relocate(self: &Arc<Self>, contents: &[Arc<Content>]) -> u64 {
        // Looked at once: their number may change meanwhile.
        let (settled, mut short): (Vec<_>, Vec<_>) = contents
            .iter()
            .map(|content| (content, content.places().at.clone()))
            .partition(|(_, places)| self.is_enough(places));
        short.retain(|(_, places)| self.has_room_beside(places));
        let wanted: Vec<&Content> = short.iter().map(|(content, _)| &***content).collect();
        let mut buffer = vec![0; wanted.iter().map(|content| content.bytes()).sum()];
        let read = copy::read_all(&wanted, &mut buffer);
        let (mut moving, mut placings) = (Vec::new(), Vec::new());
        for ((content, places), bytes) in short.into_iter().zip(read) {
            // What nobody has any more stays as it is.
            let Some(bytes) = bytes else { continue };
            moving.push((content, places.len()));
            placings.push(Placing::new(bytes, places));
        }
        self.place_all(&mut placings);
        let settled = settled.into_iter().map(|(content, places)| (content, places.len(), places, None));
        let moved = moving
            .into_iter()
            .zip(placings)
            .map(|((content, known), placing)| (content, known, placing.places, placing.refusal));
        let relocated = settled.chain(moved).filter_map(|(content, known, places, refusal)| {
            content.relocated(self, places, known, refusal.as_ref()).then_some(content.bytes() as u64)
        });
        relocated.sum()
    }
}
