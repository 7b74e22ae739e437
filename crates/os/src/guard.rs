//! Files that lose their pages under us: a mapping that is guarded survives it, and knows.
//!
//! Whoever holds a writable descriptor of a file can cut the file off; a touch behind its new end is SIGBUS, which would end
//! a process that serves many. For a guarded mapping the handler puts zeros in the place of all of it and marks it lost.
//! So the touch goes on, and the mark says that what was read since is no byte of the file: look at it after every copy.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::error::OsError;

/// The guards of this process, newest first. They are never freed, so that the handler can walk them at any moment.
static GUARDS: AtomicPtr<Guard> = AtomicPtr::new(ptr::null_mut());
/// Held while a guard is taken: two mappings must not take the same one.
static TAKING: Mutex<()> = Mutex::new(());
/// How many guarded mappings of this process have lost their files.
static LOSSES: AtomicUsize = AtomicUsize::new(0);
/// What was done at SIGBUS before; the handler leaves to it what is not guarded.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// What tells whether a guarded mapping has lost its file, for as long as the mapping lives.
#[derive(Clone, Copy, Debug)]
pub struct Loss(pub(crate) &'static Guard);

impl Loss {
    /// Whether the pages are gone: to be asked after every copy, as zeros may have been copied.
    #[inline]
    pub fn has_happened(self) -> bool {
        self.0.is_lost()
    }
}

/// How many guarded mappings of this process have lost their files. For whoever copies memory of which only the address is known: if it is
/// another number after a copy than before, zeros may have been copied.
#[must_use]
pub fn losses() -> usize {
    // Acquire: as in `is_lost`; pairs with the Release of `give_up`.
    fence(Ordering::Acquire);
    // Relaxed: the fence before it orders it behind the copy.
    LOSSES.load(Ordering::Relaxed)
}

/// The range of a guarded mapping.
#[derive(Debug)]
pub(crate) struct Guard {
    /// First address; 0 if it guards nothing now.
    start: AtomicUsize,
    bytes: AtomicUsize,
    is_lost: AtomicBool,
    next: *const Guard,
}

// SAFETY: `next` points to a guard, which is never freed, and is not written once the guard is in the list.
unsafe impl Send for Guard {}
// SAFETY: as above; all else is atomic.
unsafe impl Sync for Guard {}

impl Guard {
    /// Guards a range that the caller has mapped, until [`release`](Self::release).
    pub(crate) fn take(start: usize, bytes: usize) -> Result<&'static Self, OsError> {
        let _taking = TAKING.lock().unwrap_or_else(PoisonError::into_inner);
        install()?;
        let free = all().find(|guard| guard.start.load(Ordering::Acquire) == 0);
        let guard = free.unwrap_or_else(|| {
            let guard = Box::leak(Box::new(Self {
                start: AtomicUsize::new(0),
                bytes: AtomicUsize::new(0),
                is_lost: AtomicBool::new(false),
                // Relaxed: only who holds TAKING writes the head.
                next: GUARDS.load(Ordering::Relaxed),
            }));
            // Release: pairs with the Acquire of `all`; who finds the guard sees it whole.
            GUARDS.store(guard, Ordering::Release);
            guard
        });
        // Relaxed, both: the Release below orders them.
        guard.is_lost.store(false, Ordering::Relaxed);
        // Relaxed: as above.
        guard.bytes.store(bytes, Ordering::Relaxed);
        // Release: pairs with the Acquire of the handler, which reads the two above after it.
        guard.start.store(start, Ordering::Release);
        Ok(guard)
    }

    /// Guards the range no longer; to be called before it is unmapped.
    pub(crate) fn release(&self) {
        self.start.store(0, Ordering::Release);
    }

    /// Whether the range lost its pages.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        // Acquire: what was copied before is not copied later than the mark is looked at; pairs with the Release of `give_up`.
        fence(Ordering::Acquire);
        self.is_lost.load(Ordering::Relaxed)
    }

    fn holds(&self, address: usize) -> bool {
        let start = self.start.load(Ordering::Acquire);
        // Relaxed: written before the start, by whose Acquire it is seen.
        start != 0 && address.wrapping_sub(start) < self.bytes.load(Ordering::Relaxed)
    }

    /// Puts zeros in the place of the range; whether it could. Called by the handler: system calls and atomics only.
    fn give_up(&self) -> bool {
        let start = ptr::without_provenance_mut(self.start.load(Ordering::Acquire));
        // Relaxed: as in `holds`.
        let bytes = self.bytes.load(Ordering::Relaxed);
        // Before the zeros are there: nobody may read one and find no mark.
        self.is_lost.store(true, Ordering::Release);
        // Release: pairs with the fence of `losses`.
        LOSSES.fetch_add(1, Ordering::Release);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the range belongs to a mapping of this process which a live slice keeps mapped: somebody touched it just
        // now. It is reached by copies and atomics only, for which zeros are as good as any bytes.
        let result = unsafe { libc::mmap(start, bytes, protection, flags, -1, 0) };
        result != libc::MAP_FAILED
    }
}

fn all() -> impl Iterator<Item = &'static Guard> {
    // Acquire: pairs with the Release of `take`.
    let mut at: *const Guard = GUARDS.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: null, or a guard that was leaked.
        let guard = unsafe { at.as_ref() }?;
        at = guard.next;
        Some(guard)
    })
}

/// Installs the handler, once.
fn install() -> Result<(), OsError> {
    if BEFORE.get().is_some() {
        return Ok(());
    }
    // SAFETY: an all-zero sigaction is valid.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live sigaction; asking changes nothing.
    let result = unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &mut before) };
    if result != 0 {
        return Err(OsError::last("sigaction", "SIGBUS"));
    }
    // Known to the handler before it can run.
    if BEFORE.set(before).is_err() {
        return Ok(());
    }
    // SAFETY: an all-zero sigaction is valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_bus_error;
    action.sa_sigaction = handler as usize;
    // On the stack for signals, where a thread has one; a second SIGBUS inside is possible and harmless.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    // SAFETY: the handler calls nothing that is not allowed in one.
    let result = unsafe { libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) };
    if result != 0 {
        return Err(OsError::last("sigaction", "SIGBUS"));
    }
    Ok(())
}

extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let error = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    // SAFETY: the kernel hands over a valid siginfo, and for SIGBUS it holds an address.
    let address = unsafe { (*info).si_addr() }.addr();
    let is_mended = all().find(|guard| guard.holds(address)).is_some_and(Guard::give_up);
    if is_mended {
        // SAFETY: the address of this thread's errno; what the interrupted code was about to read stays there.
        unsafe { *libc::__errno_location() = error };
    } else {
        leave(signal, info, context);
    }
}

/// Does what would have been done without us.
fn leave(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if let Some(before) = BEFORE.get() {
        let is_default = before.sa_sigaction == libc::SIG_DFL || before.sa_sigaction == libc::SIG_IGN;
        if !is_default && before.sa_flags & libc::SA_SIGINFO != 0 {
            // SAFETY: with SA_SIGINFO the word is a handler of this form, installed by somebody before us.
            let handler = unsafe {
                std::mem::transmute::<
                    usize,
                    extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void),
                >(before.sa_sigaction)
            };
            return handler(signal, info, context);
        }
        // SAFETY: what was installed before us is valid; the touch is repeated, and it has its effect.
        unsafe { libc::sigaction(signal, before, ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use crate::{MapOptions, MemoryFile, OsError, PageKind};
    use std::sync::Arc;

    fn guarded(bytes: u64) -> (MemoryFile, crate::SharedSlice) {
        let file = MemoryFile::anonymous("guarded", bytes, PageKind::Base4K).unwrap();
        let options = MapOptions { write: true, guarded: true, ..MapOptions::default() };
        let slice = Arc::new(file.map(0, bytes as usize, options).unwrap()).slice();
        (file, slice)
    }

    #[test]
    fn a_copy_out_of_a_file_that_was_cut_off_is_an_error() {
        let (mut file, slice) = guarded(64 << 10);
        slice.write_at(40_000, b"there").unwrap();
        file.resize(4096).unwrap();
        let mut bytes = [0; 5];
        assert!(matches!(slice.read_at(40_000, &mut bytes), Err(OsError::Lost { .. })));
        assert!(matches!(slice.write_at(0, b"x"), Err(OsError::Lost { .. })), "lost is lost as a whole");
        assert!(matches!(slice.fill(0, 1, 0), Err(OsError::Lost { .. })));
        let (_other, another) = guarded(4096);
        assert!(matches!(slice.copy_to(0, &another, 0, 8), Err(OsError::Lost { .. })));
    }

    #[test]
    fn each_mapping_is_lost_alone_and_a_guard_is_used_again() {
        for _ in 0..100 {
            let (mut cut, lost) = guarded(8192);
            let (_kept, whole) = guarded(8192);
            whole.write_at(5000, b"kept").unwrap();
            cut.resize(0).unwrap();
            let before = super::losses();
            assert!(lost.read_at(5000, &mut [0; 4]).is_err());
            assert!(super::losses() > before);
            let mut text = [0; 4];
            whole.read_at(5000, &mut text).unwrap();
            assert_eq!(&text, b"kept");
        }
        assert!(super::all().count() < 50, "guards are used again");
    }

    #[test]
    fn a_file_that_is_cut_off_while_many_read_it_ends_nobody() {
        let (mut file, slice) = guarded(8 << 20);
        slice.fill(0, 8 << 20, 7).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut piece = vec![0; 1 << 20];
                    for round in 0.. {
                        match slice.read_at((round % 8) << 20, &mut piece) {
                            Ok(()) => assert!(piece.iter().all(|&byte| byte == 7), "zeros without an error"),
                            Err(_) => return,
                        }
                    }
                });
            }
            file.resize(0).unwrap();
        });
    }

    /// Reached as a child process: a touch of a mapping that nobody guards ends it as ever.
    #[test]
    fn without_a_guard_the_signal_ends_the_process() {
        if std::env::var_os("GUARD_TEST_CHILD").is_some() {
            let (_file, _slice) = guarded(4096);
            let mut file = MemoryFile::anonymous("unguarded", 8192, PageKind::Base4K).unwrap();
            let options = MapOptions { write: true, ..MapOptions::default() };
            let slice = Arc::new(file.map(0, 8192, options).unwrap()).slice();
            file.resize(0).unwrap();
            let _ = slice.read_at(4096, &mut [0; 4]);
            return;
        }
        use std::os::unix::process::ExitStatusExt as _;
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "guard::tests::without_a_guard_the_signal_ends_the_process"])
            .env("GUARD_TEST_CHILD", "1")
            .output()
            .unwrap();
        assert_eq!(child.status.signal(), Some(libc::SIGBUS), "{child:?}");
    }
}
