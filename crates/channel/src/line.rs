//! The socket of one direction: a byte on it wakes the other side, and its end tells that the other side is gone.

use hinterland_os::OsError;
use hinterland_os::poll;
use hinterland_os::socket::UnixStream;
use std::time::Duration;

/// Bytes taken at a time; honest peers send one for each sleep.
const BYTES_PER_LOOK: usize = 64;
/// Looks in a row: a peer that floods the line cannot hold us here.
const LOOKS_MAX: usize = 4;

/// One end of the socket of a direction.
#[derive(Debug)]
pub(crate) struct Line {
    socket: UnixStream,
}

impl Line {
    /// Takes an end that nobody else of this process uses.
    pub fn new(socket: UnixStream) -> Self {
        Self { socket }
    }

    /// Wakes the other side; never blocks. A line that is full has bytes that wake as well as one more, and a line that has
    /// ended is found out by whoever looks next.
    pub fn ring(&self) {
        let _ = self.socket.send_now(&[1]);
    }

    /// Sleeps until the other side rings, or is gone, or the time is over.
    pub fn sleep(&self, rest: Option<Duration>) -> Result<(), OsError> {
        poll::wait_readable(&self.socket, rest).map(drop)
    }

    /// Takes the bytes that are there; whether the other side is gone.
    pub fn has_ended(&self) -> bool {
        let mut bytes = [0; BYTES_PER_LOOK];
        // A hostile peer may send descriptors: they are closed here.
        let mut descriptors = Vec::new();
        for _ in 0..LOOKS_MAX {
            match self.socket.receive_now(&mut bytes, &mut descriptors) {
                Ok(0) => return true,
                Ok(BYTES_PER_LOOK) => descriptors.clear(),
                Ok(_) => return false,
                Err(error) => return !error.is_would_block(),
            }
        }
        false
    }

    /// Ends the direction for both sides, and wakes whoever sleeps on it.
    pub fn end(&self) {
        self.socket.shutdown();
    }
}
