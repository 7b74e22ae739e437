//! Bringing armed memory back: after the node died, and in a forked child, which starts with waiting memory only.
//!
//! Until a range is back, its touches wait on the descriptor that armed it before, of which this process keeps a copy:
//! nothing reads zeros. The file of the new session is mapped and armed elsewhere, with private pages copied over, and
//! then moved onto the range in one step (`mremap`). Only after that the old waiters are woken, and fault again, on the
//! new descriptor. If no node comes back within the grace time, an empty file takes the place: SIGBUS, and the reason
//! on stderr.
//!
//! Each object comes back for itself: one that is gone for good is given up at once, and one that the node cannot give
//! at this moment is left to `stragglers`, while the others are served.

use crate::error::RegionError;
use crate::link::{Connection, Guard, Link, Notices, nonsense};
use crate::placing::{FilePart, Spot, move_over, put_armed, put_lost, put_plain};
use crate::private_pages::{Carried, PageScan, Which};
use crate::regions::{Access, Granted, Target, close, fault_modes, open, register};
use crate::space::{self, Space, Stretch};
use crate::stragglers;
use crate::system::{self, Extent};
use crate::thread::{self, Joined};
use hinterland_os::poll::wait_readable;
use hinterland_os::userfault::FaultModes;
use hinterland_types::limits::BASE_PAGE_BYTES;
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Pause between attempts to reach a node: short against the time that it takes to start.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Between two looks for private pages: longer than it takes the kernel to move one.
const BETWEEN_LOOKS: Duration = Duration::from_micros(50);
/// How often the thread that reads events looks whether it may end.
const EVENT_PAUSE: Duration = Duration::from_millis(2);

/// Makes the connection anew and with it all armed memory; returns the new channel of notices. `None` if nothing is armed
/// any more, or if the node stayed away and the memory was given up.
pub(crate) fn recover(link: &Arc<Link>) -> Option<Arc<Notices>> {
    let deadline = Instant::now() + link.grace;
    let mut connection = link.connection_mut();
    connection.disconnect(link.descriptors());
    connection.set_notices(None);
    let mut retired = connection.take_retired();
    retired.extend(connection.exchange_guard(None));
    loop {
        if link.is_closing() || space::lock().armed_sources(link).is_empty() {
            retire(link, &retired);
            connection.set_watched(false);
            return None;
        }
        match attempt(link, &mut connection, &mut retired) {
            Ok(notices) => {
                connection.set_watched(true);
                connection.set_notices(Some(Arc::clone(&notices)));
                stragglers::look_after(link, &mut connection, retired, deadline);
                return Some(notices);
            }
            Err(error) if Instant::now() < deadline => {
                drop(error);
                std::thread::sleep(RETRY_PAUSE);
            }
            Err(error) => {
                let numbers = space::lock().armed_sources(link);
                give_up(&numbers, &error);
                retired.extend(connection.exchange_guard(None));
                retire(link, &retired);
                connection.disconnect(link.descriptors());
                connection.set_watched(false);
                return None;
            }
        }
    }
}

/// Puts SIGBUS in place of what is mapped of these sources, and says why. Whoever waits there must be woken after.
pub(crate) fn give_up(numbers: &[u64], reason: &RegionError) {
    let name_of = |space: &Space, number: &u64| Some(space.sources.get(number)?.info.name.to_string());
    let space = space::lock();
    let mut names: Vec<String> = numbers.iter().filter_map(|number| name_of(&space, number)).collect();
    drop(space);
    names.dedup();
    if names.is_empty() {
        return;
    }
    // Said first: the program may not live long enough to say it afterwards.
    let names = names.join(", ");
    system::say(&format!("memory of {names} is lost, every touch of it is SIGBUS: {reason}"));
    let mut space = space::lock();
    for number in numbers {
        for stretch in space.stretches(*number) {
            put_lost(stretch.extent);
        }
        if let Some(source) = space.sources.get_mut(number) {
            // Nobody serves it: it stays as it is until the program unmaps it.
            source.armed = false;
        }
    }
}

/// Wakes all that wait on descriptors which no mapping of the table uses any more. The descriptors stay open: a mapping
/// that the program moved behind our back may still use one, and would read zeros if it were closed.
pub(crate) fn retire(link: &Link, retired: &[Arc<Guard>]) {
    wake(link, retired);
    for guard in retired {
        guard.let_go();
        std::mem::forget(Arc::clone(guard));
    }
}

/// Has all that wait on these descriptors look again at what is mapped where they wait.
pub(crate) fn wake(link: &Link, guards: &[Arc<Guard>]) {
    let extents: Vec<Extent> = {
        let space = space::lock();
        let of_link = |number: &&u64| {
            space.sources.get(*number).is_some_and(|source| std::ptr::eq(Arc::as_ptr(&source.link), link))
        };
        let numbers: Vec<u64> = space.sources.keys().filter(of_link).copied().collect();
        numbers.iter().flat_map(|number| space.stretches(*number)).map(|stretch| stretch.extent).collect()
    };
    for guard in guards {
        for extent in &extents {
            // Nobody waits in a range that is gone.
            let _ = guard.wake(extent.address, extent.bytes);
        }
    }
}

/// One attempt to bring everything back over a new session. What is gone for good is given up; what fails otherwise
/// keeps waiting.
fn attempt(
    link: &Arc<Link>,
    connection: &mut Connection,
    retired: &mut Vec<Arc<Guard>>,
) -> Result<Arc<Notices>, RegionError> {
    let channel = link.new_channel()?;
    connection.renew(channel, link.descriptors());
    let channel = connection.usable().ok_or_else(|| nonsense("the session", "it broke at once"))?;
    let notices = link.watch(channel)?;
    let guard = link.new_guard()?;
    let raw = std::os::fd::AsRawFd::as_raw_fd(&guard.as_fd());
    // Relaxed: read by a forked child only, in which no other thread runs.
    link.descriptors().guard.store(raw, Ordering::Relaxed);
    retired.extend(connection.exchange_guard(Some(Arc::clone(&guard))));
    let numbers = space::lock().armed_sources(link);
    // What fails and is not gone for good is tried again by `stragglers`.
    bring_back(link, connection, &guard, retired, &numbers)?;
    Ok(notices)
}

/// Brings sources back over the session of a connection, each for itself; returns why the last one failed that may
/// come back later.
///
/// # Errors
/// What shows that the session itself is of no use.
pub(crate) fn bring_back(
    link: &Link,
    connection: &Connection,
    guard: &Arc<Guard>,
    retired: &[Arc<Guard>],
    numbers: &[u64],
) -> Result<Option<RegionError>, RegionError> {
    let scan = PageScan::open().ok();
    let rescue = Rescue { connection, guard, retired, scan: scan.as_ref() };
    let mut events = None;
    let outcome = rescue.all(numbers, &mut events);
    if events.take().is_some() {
        // Faults that the reader of events took for itself are raised again, now for the node.
        wake(link, std::slice::from_ref(guard));
    }
    outcome
}

/// What it takes to bring a source back.
struct Rescue<'a> {
    connection: &'a Connection,
    guard: &'a Arc<Guard>,
    retired: &'a [Arc<Guard>],
    scan: Option<&'a PageScan>,
}

impl Rescue<'_> {
    /// Brings back what can be; `events` are read from the first object on that the node has.
    fn all(
        &self,
        numbers: &[u64],
        events: &mut Option<EventReader>,
    ) -> Result<Option<RegionError>, RegionError> {
        let mut failed = None;
        for number in numbers {
            let outcome = self.find(*number).and_then(|found| {
                let Some(found) = found else { return Ok(()) };
                if events.is_none() {
                    *events = Some(EventReader::start(self.guard)?);
                }
                self.source(*number, &found).inspect_err(|_| close(self.connection, &found.granted.opened))
            });
            match outcome {
                Ok(()) => {}
                Err(error) if error.is_gone() => return Err(error),
                Err(error) if error.is_final() => give_up(&[*number], &error),
                Err(error) => failed = Some(error),
            }
        }
        Ok(failed)
    }

    /// Asks the node for an object, which must be what it was.
    fn find(&self, number: u64) -> Result<Option<Found>, RegionError> {
        let Some((target, before)) = described(number) else { return Ok(None) };
        let granted = open(self.connection, &target, Access::Read)?;
        before.check(&granted).inspect_err(|_| close(self.connection, &granted.opened))?;
        Ok(Some(Found { granted, before }))
    }

    /// Puts the object in place of what waits for it.
    fn source(&self, number: u64, found: &Found) -> Result<(), RegionError> {
        let Found { granted, before } = found;
        let mut space = space::lock();
        let stretches = space.stretches(number);
        for stretch in &stretches {
            self.stretch(&space, stretch, granted, before.shared)?;
            let extent = stretch.extent;
            let (gone, kept): (Vec<Carried>, Vec<Carried>) = std::mem::take(&mut space.carried)
                .into_iter()
                .partition(|page| (extent.address..extent.end()).contains(&page.address));
            space.carried = kept;
            crate::private_pages::drop_carried(&gone);
        }
        if let Some(source) = space.sources.get_mut(&number) {
            source.generation = self.connection.generation;
            source.handle = granted.opened.handle;
            source.registrations.clear();
            source.page_bytes = granted.mapped.page_bytes;
            source.file_bytes = granted.mapped.file_bytes;
            source.armed = granted.mapped.armed;
        }
        drop(space);
        if !granted.mapped.armed {
            return Ok(());
        }
        for Stretch { extent, offset, .. } in stretches {
            let registered = register(self.connection, granted, self.guard, extent, offset)?;
            if let Some(source) = space::lock().sources.get_mut(&number) {
                source.registrations.extend(registered);
            }
        }
        Ok(())
    }

    /// Replaces one mapping. The table lock keeps the program from unmapping it meanwhile.
    fn stretch(
        &self,
        space: &Space,
        stretch: &Stretch,
        granted: &Granted,
        shared: bool,
    ) -> Result<(), RegionError> {
        let extent = stretch.extent;
        let part = FilePart { file: granted.file.as_fd(), offset: stretch.offset, bytes: extent.bytes };
        let armed = granted.mapped.armed;
        let staged = if armed {
            put_armed(part, Spot::Anywhere, stretch.protection, self.guard, fault_modes(&granted.mapped))?
        } else {
            put_plain(part, Spot::Anywhere, stretch.protection, shared)?
        };
        let moved = self
            .take_private_pages(space, stretch, staged, armed)
            .and_then(|()| move_over(staged, extent.address));
        if moved.is_err() {
            // SAFETY: the staged range was made above and nobody knows of it.
            let _ = unsafe { system::unmap(staged.address, staged.bytes) };
        }
        moved
    }

    /// Copies what the program wrote for itself, and what a child was given by its parent.
    fn take_private_pages(
        &self,
        space: &Space,
        stretch: &Stretch,
        staged: Extent,
        armed: bool,
    ) -> Result<(), RegionError> {
        let extent = stretch.extent;
        let mut pages: Vec<Carried> = Vec::new();
        if let Some(scan) = self.scan {
            let failed = |error| RegionError::system("scan for private pages", extent, error);
            // Asked even if the program should have none: it may have made a mapping writable behind our back.
            if stretch.copies || scan.has(extent, Which::Own).unwrap_or(false) {
                // A page is private for good, and is missed by a look only while the kernel moves it: by one of three, not by all.
                let mut found = BTreeSet::new();
                let mut look = || -> Result<(), RegionError> {
                    for run in scan.runs(extent, Which::Private).map_err(failed)? {
                        found.extend((run.address..run.end()).step_by(BASE_PAGE_BYTES as usize));
                    }
                    Ok(())
                };
                look()?;
                self.freeze(scan, extent)?;
                look()?;
                std::thread::sleep(BETWEEN_LOOKS);
                look()?;
                pages.extend(found.into_iter().map(|address| Carried { address, copy: address }));
            }
        } else if stretch.copies {
            return Err(nonsense(
                "a private mapping",
                "it cannot be looked through without /proc/self/pagemap",
            ));
        }
        let carried = space.carried.iter().filter(|page| {
            // A page that the child has written since is the newer one.
            (extent.address..extent.end()).contains(&page.address)
                && pages.iter().all(|newer| newer.address != page.address)
        });
        let carried: Vec<Carried> = carried.copied().collect();
        for page in pages.iter().chain(&carried) {
            let target = staged.address + (page.address - extent.address);
            let source = std::ptr::with_exposed_provenance(page.copy as usize);
            if armed {
                // SAFETY: the page is present: it was found so and is frozen, or it is a copy of our own.
                unsafe { self.guard.copy(target, source, BASE_PAGE_BYTES, BASE_PAGE_BYTES) }?;
                continue;
            }
            let failed = |error| RegionError::system("mprotect", staged, error);
            let writable = libc::PROT_READ | libc::PROT_WRITE;
            let into = std::ptr::with_exposed_provenance_mut::<u8>(target as usize);
            // SAFETY: the staged range is ours alone and private, so that the file is not written to; the source is
            // readable, as above.
            unsafe {
                system::protect(target, BASE_PAGE_BYTES, writable).map_err(failed)?;
                std::ptr::copy_nonoverlapping(source, into, BASE_PAGE_BYTES as usize);
                system::protect(target, BASE_PAGE_BYTES, stretch.protection).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Has all writes to a range wait, so that none is lost between the copy and the move.
    fn freeze(&self, scan: &PageScan, extent: Extent) -> Result<(), RegionError> {
        if let Ok(runs) = scan.runs(extent, Which::Swapped) {
            for run in runs {
                // SAFETY: the range is of the pool. What was swapped out comes back; what is marked as lost refuses.
                let _ = unsafe { system::advise(run.address, run.bytes, libc::MADV_POPULATE_READ) };
            }
        }
        let modes = FaultModes { missing: true, minor: false, write_protect: true };
        let mut refused = nonsense("a private mapping", "no descriptor guards it");
        for guard in self.retired.iter().rev() {
            match guard.register(extent.address, extent.bytes, modes) {
                Ok(()) => return Ok(guard.write_protect(extent.address, extent.bytes, true)?),
                // Another descriptor guards it.
                Err(error) => refused = error.into(),
            }
        }
        Err(refused)
    }
}

/// An object that the node still has.
struct Found {
    granted: Granted,
    before: Before,
}

/// What an object was before.
struct Before {
    name: String,
    bytes: u64,
    digest: [u8; 32],
    page_bytes: u64,
    shared: bool,
}

impl Before {
    fn check(&self, granted: &Granted) -> Result<(), RegionError> {
        let changed = |reason: String| Err(RegionError::Changed { name: self.name.clone(), reason });
        let info = &granted.opened.info;
        if info.bytes != self.bytes || info.digest != self.digest {
            return changed(format!("{} bytes of other contents in place of {}", info.bytes, self.bytes));
        }
        if granted.mapped.page_bytes > self.page_bytes {
            let (old, new) = (self.page_bytes, granted.mapped.page_bytes);
            return changed(format!("its file has pages of {new} bytes in place of {old}"));
        }
        Ok(())
    }
}

fn described(number: u64) -> Option<(Target, Before)> {
    let space = space::lock();
    let source = space.sources.get(&number)?;
    let before = Before {
        name: source.info.name.to_string(),
        bytes: source.info.bytes,
        digest: source.info.digest,
        page_bytes: source.page_bytes,
        shared: source.shared,
    };
    Some((Target::Object(source.info.object), before))
}

/// A thread that reads the events of a descriptor while mappings are moved: `mremap` waits until its event was read.
struct EventReader {
    stop: Arc<AtomicBool>,
    thread: Option<Joined>,
}

impl EventReader {
    fn start(guard: &Arc<Guard>) -> Result<Self, RegionError> {
        let stop = Arc::new(AtomicBool::new(false));
        let (told, guard) = (Arc::clone(&stop), Arc::clone(guard));
        let read = move || {
            let mut events = Vec::new();
            // Acquire: pairs with the Release in `drop`.
            while !told.load(Ordering::Acquire) {
                let ready = wait_readable(guard.as_fd(), Some(EVENT_PAUSE)).unwrap_or(false);
                if ready && guard.read_events(&mut events).is_err() {
                    std::thread::sleep(EVENT_PAUSE);
                }
                events.clear();
            }
        };
        let thread = thread::start_joined(read).map_err(|source| RegionError::Thread { source })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for EventReader {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in the thread.
        self.stop.store(true, Ordering::Release);
        self.thread.take();
    }
}
