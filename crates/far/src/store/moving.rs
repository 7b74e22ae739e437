//! Content moves in the background: away from back ends that were retired or failed, and into one when no room was found at first.

use super::copy::Content;
use super::member::Life;
use super::stores::{SHARDS, Stores};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Pause between two looks whether there is room for what found none.
const PAUSE: Duration = Duration::from_millis(50);
/// Pauses between two passes over all content, from the first that moved nothing on.
const PASS_PAUSE_MAX: Duration = Duration::from_secs(5);

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

    /// Moves away what back ends have that are leaving; returns how many bytes went.
    fn empty_leaving(self: &Arc<Self>) -> u64 {
        let mut moved = 0;
        let begun = Instant::now();
        for shard in 0..SHARDS {
            for content in self.contents(shard) {
                if content.is_leaving() && content.relocate(self) {
                    moved += content.bytes() as u64;
                    self.keep_rate(begun, moved);
                }
            }
        }
        self.close_empty();
        moved
    }

    /// Moves what no back end took into one that has room again.
    fn empty_stranded(self: &Arc<Self>) {
        let mut left = std::mem::take(&mut *self.stranded());
        left.retain(|content| content.upgrade().is_some_and(|content| !content.relocate(self)));
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
        if stores.has_leaving() && Instant::now() >= due {
            pause = if stores.empty_leaving() > 0 { PAUSE } else { (pause * 2).min(PASS_PAUSE_MAX) };
            due = Instant::now() + pause;
        }
        if !stores.has_leaving() && !stores.has_stranded() {
            stores.close_empty();
            let mut state = bell.state.lock().unwrap_or_else(PoisonError::into_inner);
            // What begins from here on sees that no thread is at it; what began before is seen here.
            if !stores.has_leaving() && !stores.has_stranded() {
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
    /// Whether a back end that has it is leaving.
    fn is_leaving(&self) -> bool {
        self.places().at.iter().any(|(member, _)| member.life() != Life::Active)
    }

    /// Puts it into other back ends, and gives back the places that it leaves. `false`: there is no room, or nobody has it.
    fn relocate(&self, stores: &Arc<Stores>) -> bool {
        if !stores.has_room_beside(&self.places().at) && !stores.is_enough(&self.places().at) {
            return false;
        }
        let mut content = vec![0; self.bytes()];
        if self.read(&mut content).is_err() {
            return false;
        }
        // Nobody else changes places: there is one thread that moves.
        let mut places = self.places().at.clone();
        let known = places.len();
        let is_short = stores.place(&content, &mut places).is_some();
        // Where the content must have been put into a back end that failed, nothing is better than before.
        let is_better = places[known..].iter().any(|(member, _)| member.life() == Life::Active);
        let is_enough = !is_short;
        if !is_better && !is_enough {
            for (member, place) in places.drain(known..) {
                member.free(place, self.bytes());
            }
            return false;
        }
        // With too few copies, the places that are left serve on as far as they can.
        let (stay, go): (Vec<_>, Vec<_>) =
            places.into_iter().partition(|(member, _)| is_short || member.life() == Life::Active);
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
