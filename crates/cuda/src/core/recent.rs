//! Launches that a thread made before: what their function and stream are, without a lock or a shared count.
//!
//! Each locked instruction waits until the stores of the command before it have reached memory, which the node reads at the same time. So a
//! launch that is like an earlier one does none of them but those of the outbox. What was found is forgotten, everywhere, when a
//! stream, code or a context goes.

use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::module::Kernel;
use super::session::Session;
use super::stream::Stream;
use super::thread::context;
use crate::code::Code;

/// Launches that are remembered, by function and stream.
const PLACES: usize = 256;

/// Counts streams, code and contexts that went.
static GONE: AtomicU64 = AtomicU64::new(0);

/// What a thread launched.
struct Launched {
    function: usize,
    stream: usize,
    context: u32,
    gone: u64,
    kernel: Arc<Kernel>,
    to: Arc<Stream>,
}

thread_local! {
    static RECENT: RefCell<Vec<Option<Launched>>> = const { RefCell::new(Vec::new()) };
}

/// A stream, code or a context has gone: what was found before is looked up again.
pub(super) fn forget_all() {
    // Release: pairs with the load in `with_launched`; whoever sees the new count does not find what went.
    GONE.fetch_add(1, Ordering::Release);
}

impl Session {
    /// Calls `work` with the kernel and the stream that a program names; `find` looks them up the first time.
    ///
    /// # Errors
    /// What `find` or `work` say.
    pub fn with_launched(
        &self,
        function: *const c_void,
        stream: *mut c_void,
        find: impl FnOnce() -> Result<(Arc<Kernel>, Arc<Stream>), Code>,
        work: impl FnOnce(&Kernel, &Arc<Stream>) -> Result<(), Code>,
    ) -> Result<(), Code> {
        // In a destructor that runs last nothing is remembered any more.
        if self.without.recent || RECENT.try_with(|_| ()).is_err() {
            let (kernel, to) = find()?;
            return work(&kernel, &to);
        }
        let (function, stream, context) = (function.addr(), stream.addr(), context());
        let gone = GONE.load(Ordering::Acquire);
        RECENT.with_borrow_mut(|recent| {
            if recent.is_empty() {
                recent.resize_with(PLACES, || None);
            }
            let place =
                &mut recent[(function >> 4 ^ stream >> 4).wrapping_mul(0x9e37_79b9) >> 8 & (PLACES - 1)];
            let is_same = |one: &Launched| {
                (one.function, one.stream, one.context, one.gone) == (function, stream, context, gone)
            };
            if let Some(one) = place.as_ref().filter(|one| is_same(one)) {
                return work(&one.kernel, &one.to);
            }
            let (kernel, to) = find()?;
            let one = place.insert(Launched { function, stream, context, gone, kernel, to });
            work(&one.kernel, &one.to)
        })
    }
}
