//! Forks: a child gets none of the armed memory by inheritance, and all of it anew.
//!
//! Armed memory is `MADV_DONTFORK`: inherited, it would be unserved and read as zeros. In the child every range is
//! reserved again at once, under a descriptor of the child's own, so that touches wait; a thread of the child then makes
//! a session of its own and brings the memory back, exactly as after the death of a node. A child that calls `exec`
//! soon pays for the reservation only.
//!
//! The handlers run around `fork()` of the C library, also with many threads: the table is locked across the fork, and
//! the child touches no other lock that a thread of the parent may hold. It allocates and starts a thread, which the C
//! library makes possible in a child by its own handlers, run before ours. A child made by the bare system call has
//! holes in place of armed memory: SIGSEGV, never zeros.

use crate::link::{Descriptors, Link, State};
use crate::placing::{put_lost, put_waiting};
use crate::private_pages::{Carried, PageScan, carry, drop_carried};
use crate::recovery::give_up;
use crate::space::{self, SpaceGuard};
use crate::{system, watcher};
use std::cell::UnsafeCell;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Once};

/// What `prepare` leaves for the handler that runs after the fork.
struct Fork {
    space: SpaceGuard,
    fresh: Vec<(Arc<Link>, Box<State>)>,
    /// How many carried pages there were before.
    carried_before: usize,
}

struct Slot(UnsafeCell<Option<Fork>>);

// SAFETY: the slot is filled by `prepare` under the table lock and emptied by `parent` or `child` before the lock is let
// go of, all on the thread that forks; so one thread at a time touches it.
unsafe impl Sync for Slot {}

static SLOT: Slot = Slot(UnsafeCell::new(None));

/// Has the C library call us around forks; once for a process and its children.
pub(crate) fn look_after_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the three functions live as long as this library. If there is no memory for the entry, a child has
        // holes in place of armed memory.
        unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    });
}

unsafe extern "C" fn prepare() {
    let mut space = space::lock();
    let fresh = space.links.iter().map(|link| (Arc::clone(link), Box::new(State::disconnected()))).collect();
    let carried_before = space.carried.len();
    match private_pages(&space) {
        Ok(carried) => space.carried.extend(carried),
        Err(error) => system::say(&format!("a child of this process may lack private pages: {error}")),
    }
    let fork = Fork { space, fresh, carried_before };
    // SAFETY: this thread holds the table lock; see `Slot`.
    unsafe { *SLOT.0.get() = Some(fork) };
}

unsafe extern "C" fn parent() {
    // SAFETY: this thread holds the table lock; see `Slot`.
    let Some(mut fork) = (unsafe { (*SLOT.0.get()).take() }) else { return };
    let added = fork.space.carried.split_off(fork.carried_before);
    drop_carried(&added);
}

unsafe extern "C" fn child() {
    space::adopt_lock();
    // SAFETY: the only thread of the child, which inherited the table lock; see `Slot`.
    let Some(mut fork) = (unsafe { (*SLOT.0.get()).take() }) else { return };
    for source in fork.space.sources.values_mut() {
        source.registrations.clear();
        source.generation = 0;
    }
    let mut lost = Vec::new();
    for (link, mut state) in std::mem::take(&mut fork.fresh) {
        // The parent's session and its faults are no business of the child.
        close_all(link.descriptors());
        let waiting = wait_for_recovery(&fork, &link, &mut state);
        // SAFETY: the child has no other thread yet.
        unsafe { link.replace_state(state) };
        match waiting {
            Ok(false) => {}
            Ok(true) => lost.extend(watcher::start(Arc::clone(&link), None).err().map(|error| (link, error))),
            Err(error) => lost.push((link, error)),
        }
    }
    drop(fork);
    for (link, error) in lost {
        link.connection_mut().set_watched(false);
        let numbers = space::lock().armed_sources(&link);
        give_up(&numbers, &error);
    }
}

/// Reserves all armed memory of a connection. Returns whether there is any.
fn wait_for_recovery(fork: &Fork, link: &Arc<Link>, state: &mut State) -> Result<bool, crate::RegionError> {
    let numbers = fork.space.armed_sources(link);
    if numbers.is_empty() {
        return Ok(false);
    }
    let guard = link.new_loose_guard();
    for stretch in numbers.iter().flat_map(|number| fork.space.stretches(*number)) {
        let waiting = guard.as_ref().ok().map(|guard| put_waiting(stretch.extent, stretch.protection, guard));
        if !matches!(waiting, Some(Ok(()))) {
            put_lost(stretch.extent);
        }
    }
    let guard = guard?;
    // Relaxed: there is no other thread.
    state.descriptors.guard.store(guard.as_fd().as_raw_fd(), Ordering::Relaxed);
    let connection = state.connection_mut();
    connection.exchange_guard(Some(guard));
    connection.set_watched(true);
    Ok(true)
}

/// Closes what the child inherited. The values that own the numbers are never dropped in the child.
fn close_all(descriptors: &Descriptors) {
    for number in [&descriptors.channel, &descriptors.watch, &descriptors.guard] {
        close_inherited(number);
    }
}

fn close_inherited(number: &AtomicI32) {
    // Relaxed: there is no other thread.
    let descriptor = number.swap(-1, Ordering::Relaxed);
    if descriptor >= 0 {
        // SAFETY: the value that owns the descriptor is never touched in the child.
        unsafe { system::close(descriptor) };
    }
}

/// Copies of the private pages of all armed mappings.
fn private_pages(space: &SpaceGuard) -> Result<Vec<Carried>, crate::RegionError> {
    let mut carried = Vec::new();
    let mut scan: Option<PageScan> = None;
    let armed = space.sources.iter().filter(|(_, source)| source.armed).map(|(number, _)| *number);
    for stretch in armed.flat_map(|number| space.stretches(number)).filter(|stretch| stretch.copies) {
        let scan = match &mut scan {
            Some(scan) => scan,
            none => none.insert(PageScan::open()?),
        };
        carried.extend(carry(scan, &stretch)?);
    }
    Ok(carried)
}
