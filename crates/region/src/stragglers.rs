//! Objects that did not come back with the others, as when none of their homes is up: they are asked for again until
//! the grace time is over, while all else is served. What has not come back by then is SIGBUS, with the reason on stderr.
//!
//! A source that waits is one that is armed and belongs to an earlier session. Its touches wait on the descriptors of
//! before, which stay open for as long as there is such a source.

use crate::error::RegionError;
use crate::link::{Connection, Guard, Link};
use crate::recovery::{RETRY_PAUSE, bring_back, give_up, retire, wake};
use crate::{space, thread};
use hinterland_pool::PoolError;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest pause between attempts: a home that is down should not be asked by everybody all the time.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Has what waits looked after until `deadline`, if there is any; whatever came back or was given up is woken at once.
pub(crate) fn look_after(
    link: &Arc<Link>,
    connection: &mut Connection,
    retired: Vec<Arc<Guard>>,
    deadline: Instant,
) {
    let generation = connection.generation;
    let waiting = space::lock().waiting_sources(link, generation);
    if waiting.is_empty() {
        retire(link, &retired);
        return;
    }
    wake(link, &retired);
    connection.keep_retired(retired);
    let watched = Arc::clone(link);
    if let Err(source) = thread::start(move || follow(&watched, generation, deadline)) {
        give_up(&waiting, &RegionError::Thread { source });
        finish(link, connection);
    }
}

/// Tries again and again, for as long as the session is the same: who makes another one starts another thread.
fn follow(link: &Arc<Link>, generation: u64, deadline: Instant) {
    let mut pause = RETRY_PAUSE;
    loop {
        std::thread::sleep(pause.min(deadline.saturating_duration_since(Instant::now())));
        pause = (2 * pause).min(PAUSE_MAX);
        let connection = link.connection();
        if connection.generation != generation {
            return;
        }
        let waiting = space::lock().waiting_sources(link, generation);
        if link.is_closing() || waiting.is_empty() {
            finish(link, &connection);
            return;
        }
        let failed = again(link, &connection, &waiting);
        if let Some(error) = failed.filter(|_| Instant::now() >= deadline) {
            let waiting = space::lock().waiting_sources(link, generation);
            give_up(&waiting, &error);
            finish(link, &connection);
            return;
        }
    }
}

/// Tries once; returns why something did not come back.
fn again(link: &Link, connection: &Connection, waiting: &[u64]) -> Option<RegionError> {
    let Some(guard) = connection.guard() else { return Some(PoolError::Closed.into()) };
    let earlier = connection.retired();
    let mut guards = earlier.clone();
    // An attempt may have moved a part, which is on the descriptor of this session then.
    guards.push(Arc::clone(&guard));
    let outcome = bring_back(link, connection, &guard, &guards, waiting);
    wake(link, &earlier);
    outcome.unwrap_or_else(Some)
}

/// Nothing waits any more.
fn finish(link: &Link, connection: &Connection) {
    retire(link, &connection.take_retired());
    wake(link, connection.guard().as_slice());
}
