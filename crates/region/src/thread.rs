//! Threads of this crate: small, named, deaf to signals, and made without Rust's own start-up, so that a forked child can
//! make one while locks of other threads are held for ever.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Stack of a thread: decoding a message and printing an error need a few KiB.
const STACK_BYTES: usize = 256 << 10;

type Body = Box<dyn FnOnce() + Send>;

/// A thread that is waited for when it is dropped.
pub(crate) struct Joined(libc::pthread_t);

/// Starts a thread that nobody waits for.
///
/// # Errors
/// `EAGAIN` beyond the limit of threads.
pub(crate) fn start(body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = create(Box::new(body))?;
    // SAFETY: the thread was just made and is joined by nobody.
    unsafe { libc::pthread_detach(thread) };
    Ok(())
}

/// Starts a thread that ends before the value that is returned does.
///
/// # Errors
/// `EAGAIN` beyond the limit of threads.
pub(crate) fn start_joined(body: impl FnOnce() + Send + 'static) -> io::Result<Joined> {
    create(Box::new(body)).map(Joined)
}

impl Drop for Joined {
    fn drop(&mut self) {
        // SAFETY: the thread was made by `start_joined` and is joined once.
        unsafe { libc::pthread_join(self.0, std::ptr::null_mut()) };
    }
}

fn create(body: Body) -> io::Result<libc::pthread_t> {
    // The new thread inherits this mask.
    let _held = crate::system::SignalsHeld::hold();
    let body = Box::into_raw(Box::new(body));
    // SAFETY: the attributes live through the calls; an all-zero block is what pthread_attr_init expects to fill.
    let (result, thread) = unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        libc::pthread_attr_init(&mut attributes);
        libc::pthread_attr_setstacksize(&mut attributes, STACK_BYTES);
        let mut thread: libc::pthread_t = std::mem::zeroed();
        let mut result = libc::pthread_create(&mut thread, &attributes, run, body.cast());
        if result == libc::EINVAL {
            // A program with much thread-local memory needs a larger stack than ours.
            result = libc::pthread_create(&mut thread, std::ptr::null(), run, body.cast());
        }
        libc::pthread_attr_destroy(&mut attributes);
        (result, thread)
    };
    if result == 0 {
        return Ok(thread);
    }
    // SAFETY: no thread was made, so the box is still ours.
    drop(unsafe { Box::from_raw(body) });
    Err(io::Error::from_raw_os_error(result))
}

extern "C" fn run(argument: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: `create` passed a box of this type and forgot it.
    let body = unsafe { Box::from_raw(argument.cast::<Body>()) };
    // SAFETY: the name is a NUL-terminated literal of at most 16 bytes.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"hinterland".as_ptr()) };
    if catch_unwind(AssertUnwindSafe(body)).is_err() {
        crate::system::say(
            "a thread of the library ended by a defect; memory of the pool is not looked after any more",
        );
    }
    std::ptr::null_mut()
}
