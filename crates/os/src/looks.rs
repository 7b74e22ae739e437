//! Looks at processes that the kernel may keep whoever looks waiting for.
//!
//! The kernel says what a process has mapped, and which variables it was started with, under locks of that process, which it may hold while it waits for a file system: a
//! program that becomes another one (`exec`) closes its files under one. A file system that does not answer then keeps all who look, and one that looks before it
//! answers waits for itself. So another thread looks, and who needs the result in time goes on without it.
//!
//! These threads are kept: who looks again and again starts none for it, and who looks at the family of a mount's processes finds none of its
//! threads coming and going because of the look.

use crate::process;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most looks at once: each that hangs has a thread.
const LOOKS_MAX: usize = 64;
/// Threads that are kept for the next looks: as many as a mount has for requests, which is how many look at once unless some hang.
const KEPT_MAX: usize = 4;

/// The looks that are under way: the process, and since when.
static UNDER_WAY: Mutex<BTreeMap<u64, (u32, Instant)>> = Mutex::new(BTreeMap::new());
/// Threads that have nothing to do.
static IDLE: Mutex<Vec<Sender<Job>>> = Mutex::new(Vec::new());

/// One look, which says that its thread is free before it says what it has found: who hears that looks again at once.
type Job = Box<dyn FnOnce(&dyn Fn()) + Send>;

/// Whether a thread is becoming another program, which has no code yet. The kernel closes files then, and says nothing of the process that takes its locks
/// until that is done. This takes none of them.
pub fn is_becoming_another(thread: u32) -> bool {
    let status = process::text_of(format!("/proc/{thread}/status")).unwrap_or_default();
    has_no_code(&status)
}

/// The same, by its status.
pub fn has_no_code(status: &str) -> bool {
    let code = status.lines().find_map(|line| line.strip_prefix("VmExe:"));
    code.is_some_and(|code| code.trim_start().starts_with("0 "))
}

/// Does `look` at a process; nothing if that takes longer than `patience`, or another look at it does already. A look that hangs keeps a thread until the kernel
/// lets it go on, or this process ends.
pub fn in_time<T: Send + 'static>(
    process: u32,
    patience: Duration,
    look: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed); // Relaxed: a number that nobody else has.
    {
        let mut looks = lock(&UNDER_WAY);
        let hangs = |(other, since): &(u32, Instant)| *other == process && since.elapsed() >= patience;
        if looks.len() >= LOOKS_MAX || looks.values().any(hangs) {
            return None;
        }
        looks.insert(number, (process, Instant::now()));
    }
    let (say, hear) = mpsc::sync_channel(1);
    let is_begun = begin(Box::new(move |is_free| {
        let found = look();
        lock(&UNDER_WAY).remove(&number);
        is_free();
        // Nobody may wait for it any more.
        let _ = say.send(found);
    }));
    if !is_begun {
        lock(&UNDER_WAY).remove(&number);
        return None;
    }
    hear.recv_timeout(patience).ok()
}

/// Has a thread do a look; false if there can be none.
fn begin(job: Job) -> bool {
    let idle = lock(&IDLE).pop();
    let Some(thread) = idle.or_else(start) else { return false };
    thread.send(job).is_ok()
}

fn start() -> Option<Sender<Job>> {
    let (give, jobs) = mpsc::channel();
    let own = give.clone();
    let started = std::thread::Builder::new().name("look".to_owned()).spawn(move || follow(&own, &jobs));
    started.is_ok().then_some(give)
}

/// Does one look after the other, until enough other threads wait for the next.
fn follow(own: &Sender<Job>, jobs: &Receiver<Job>) {
    let is_kept = Cell::new(true);
    while is_kept.get()
        && let Ok(job) = jobs.recv()
    {
        job(&|| {
            let mut idle = lock(&IDLE);
            is_kept.set(idle.len() < KEPT_MAX);
            if is_kept.get() {
                idle.push(own.clone());
            }
        });
    }
}

fn lock<T>(what: &'static Mutex<T>) -> MutexGuard<'static, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(3);

    #[test]
    fn who_becomes_another_program_has_no_code_yet() {
        assert!(has_no_code("VmData:\t     132 kB\nVmExe:\t       0 kB\nVmLib:\t       0 kB\n"));
        assert!(!has_no_code("VmExe:\t      20 kB\n"));
        assert!(!has_no_code("State:\tZ (zombie)\n"), "it has ended");
        assert!(!is_becoming_another(std::process::id()));
    }

    #[test]
    fn who_hangs_is_waited_for_once() {
        let (process, other) = (u32::MAX, u32::MAX - 1);
        let (go_on, wait) = mpsc::channel::<()>();
        assert_eq!(in_time(process, PATIENCE, move || wait.recv().is_ok()), None);
        assert_eq!(in_time(process, PATIENCE, || panic!("it hangs already")), None::<bool>);
        assert_eq!(in_time(other, PATIENCE, || true), Some(true));
        assert_eq!(in_time(other, PATIENCE, || false), Some(false));
        go_on.send(()).unwrap();
        while in_time(process, PATIENCE, || true).is_none() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn one_look_after_the_other_needs_no_thread_of_its_own() {
        let look = |process| in_time(process, PATIENCE, || std::thread::current().id()).unwrap();
        let threads: std::collections::HashSet<_> = (0..1000).map(|turn| look(u32::MAX - 2 - turn)).collect();
        // Tests beside this one look too.
        assert!(threads.len() <= 100, "{}", threads.len());
    }
}
