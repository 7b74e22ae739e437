//! Children of a fork: the session is their parent's, and they neither use it nor keep it alive.
//!
//! CUDA cannot be used in the child of a process that has used it: calls there fail with `cudaErrorInitializationError`. Memory of the channel is
//! shared, so a child that sent anything, in a destructor at its end for instance, would write into the parent's commands. And the node takes the end of
//! the sockets for the end of the program, so a child that kept them would keep a dead parent's memory. A child that becomes
//! another program inherits nothing: all descriptors of the channel close then by themselves.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Sockets of a channel at most.
const SOCKETS_MAX: usize = 2;
/// No socket.
const NONE: RawFd = -1;

static IS_CHILD: AtomicBool = AtomicBool::new(false);
static SOCKETS: [AtomicI32; SOCKETS_MAX] = [const { AtomicI32::new(NONE) }; SOCKETS_MAX];

/// Whether this process is the child of one that had, or was about to make, a session.
#[inline]
pub(super) fn is_child() -> bool {
    // Relaxed: set by the only thread that there is.
    IS_CHILD.load(Ordering::Relaxed)
}

/// Has children of this process know that they are; call it before the session is made.
///
/// # Errors
/// A sentence: there is no memory left.
pub(super) fn watch() -> Result<(), String> {
    // SAFETY: the function stores numbers and closes descriptors, both of which are allowed between fork and exec.
    if unsafe { libc::pthread_atfork(None, None, Some(become_child)) } != 0 {
        return Err("the process cannot tell us of its forks (hint: is there memory left?)".into());
    }
    Ok(())
}

/// Says which sockets a child gives up.
pub(super) fn set_sockets(sockets: &[RawFd]) {
    for (place, socket) in SOCKETS.iter().zip(sockets) {
        // Relaxed: a child sees what its parent's memory was at the fork.
        place.store(*socket, Ordering::Relaxed);
    }
}

extern "C" fn become_child() {
    // Relaxed: the child has one thread.
    IS_CHILD.store(true, Ordering::Relaxed);
    for socket in &SOCKETS {
        // Relaxed: as above. A child of the child has none.
        let socket = socket.swap(NONE, Ordering::Relaxed);
        if socket != NONE {
            // SAFETY: a descriptor of the session's, which nothing in this process uses from here on; the parent's stays open.
            unsafe { libc::close(socket) };
        }
    }
}
