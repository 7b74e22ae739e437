//! A word for people who wait longer than they expect.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

/// Since when something is waited for, in nanoseconds of [`BEGUN`]; this, if nothing is.
const NOTHING: u64 = u64::MAX;
/// A part of the time after which a word is said: so often it is looked whether a wait has begun.
const PARTS: u32 = 4;

static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// A thread that says once what is waited for, when a wait has lasted long. It ends with this, and says nothing more then.
pub struct Notice {
    since: Arc<AtomicU64>,
    _ends: Sender<()>,
}

impl Notice {
    /// A wait begins, of which `say` tells when it has lasted for `after`. Where no thread more can be had, nothing is said.
    pub fn begin(after: Duration, say: impl FnOnce() + Send + 'static) -> Self {
        let since = Arc::new(AtomicU64::new(now()));
        let (ends, ended) = channel();
        let seen = Arc::clone(&since);
        // The words are a kindness: without them the work goes on all the same.
        let _ = thread::Builder::new().name("notice".to_owned()).spawn(move || {
            if lasts(&seen, &ended, after) {
                say();
            }
        });
        Self { since, _ends: ends }
    }

    /// Another wait begins, and one that was is over.
    pub fn wait(&self) {
        // Relaxed: nothing is ordered by it.
        self.since.store(now(), Ordering::Relaxed);
    }

    /// The wait is over; the next one begins with [`wait`](Self::wait).
    pub fn go(&self) {
        // Relaxed: as above.
        self.since.store(NOTHING, Ordering::Relaxed);
    }
}

/// Whether one wait lasts for so long; false when all of them are over.
fn lasts(since: &AtomicU64, ended: &Receiver<()>, after: Duration) -> bool {
    loop {
        // Relaxed: as where it is written.
        let left = match since.load(Ordering::Relaxed) {
            NOTHING => after / PARTS,
            since => after.saturating_sub(Duration::from_nanos(now().saturating_sub(since))),
        };
        if left.is_zero() {
            return true;
        }
        if ended.recv_timeout(left) == Err(RecvTimeoutError::Disconnected) {
            return false;
        }
    }
}

fn now() -> u64 {
    // Centuries fit.
    BEGUN.elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn a_wait_that_lasts_is_told_once() {
        let (told, heard) = channel();
        let notice = Notice::begin(SHORT, move || told.send(()).unwrap());
        heard.recv().unwrap();
        notice.wait();
        assert!(heard.recv().is_err(), "nobody is left who could speak again");
    }

    #[test]
    fn a_wait_behind_a_pause_is_told() {
        let (told, heard) = channel();
        let notice = Notice::begin(LONG, move || told.send(()).unwrap());
        notice.go();
        drop(notice);
        assert!(heard.recv().is_err(), "it was over in time");
        let since = Arc::new(AtomicU64::new(NOTHING));
        let (_ends, ended) = channel();
        let seen = Arc::clone(&since);
        let waiting = thread::spawn(move || lasts(&seen, &ended, SHORT));
        since.store(now(), Ordering::Relaxed);
        assert!(waiting.join().unwrap());
    }
}
