//! Looks at processes that may wait for this very mount.
//!
//! The kernel says what a process has mapped under locks of that process, which it may hold while it waits for an answer of the mount: a program that
//! becomes another one (`exec`) closes its files under one. Who looks before he answers waits for
//! himself. So another thread looks, and who needs the result in time goes on without it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// How long a look is waited for: far longer than it takes where nobody waits for us, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(3);
/// Most looks at once: each that hangs has a thread.
const LOOKS_MAX: usize = 64;

/// The looks that are under way: the process, and since when.
static UNDER_WAY: Mutex<BTreeMap<u64, (u32, Instant)>> = Mutex::new(BTreeMap::new());

/// Does `look` at a process; nothing if that takes too long, or another look at it does already.
pub(crate) fn in_time(process: u32, look: impl FnOnce() -> bool + Send + 'static) -> Option<bool> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed); // Relaxed: a number that nobody else has.
    {
        let mut looks = under_way();
        let hangs = |(other, since): &(u32, Instant)| *other == process && since.elapsed() >= PATIENCE;
        if looks.len() >= LOOKS_MAX || looks.values().any(hangs) {
            return None;
        }
        looks.insert(number, (process, Instant::now()));
    }
    let (say, hear) = mpsc::sync_channel(1);
    let begin = move || {
        let found = look();
        under_way().remove(&number);
        // Nobody may wait for it any more.
        let _ = say.send(found);
    };
    if std::thread::Builder::new().name("look".to_owned()).spawn(begin).is_err() {
        under_way().remove(&number);
        return None;
    }
    hear.recv_timeout(PATIENCE).ok()
}

fn under_way() -> MutexGuard<'static, BTreeMap<u64, (u32, Instant)>> {
    UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_hangs_is_waited_for_once() {
        let (process, other) = (u32::MAX, u32::MAX - 1);
        let (go_on, wait) = mpsc::channel::<()>();
        assert_eq!(in_time(process, move || wait.recv().is_ok()), None);
        assert_eq!(in_time(process, || panic!("it hangs already")), None);
        assert_eq!(in_time(other, || true), Some(true));
        assert_eq!(in_time(other, || false), Some(false));
        go_on.send(()).unwrap();
        while in_time(process, || true).is_none() {
            std::thread::yield_now();
        }
    }
}
