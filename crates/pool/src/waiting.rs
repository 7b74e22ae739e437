//! Waiting for a lock, or for room in a queue: in short slices, so that other threads may use the session in between, and that a program that
//! is interrupted waits no longer. A node that does not answer is waited for no longer then, either.

use crate::session::unexpected;
use crate::{PoolError, Session};
use hinterland_proto::control::{Reply, Request};
use std::io;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long the node waits for a lock before the session is let go for a moment.
const LOCK_SLICE: Duration = Duration::from_millis(20);
/// How long the session is let go.
const LOCK_PAUSE: Duration = Duration::from_micros(200);

/// For how long a node must not have answered before that ends: with it ends the session, and with an answer that comes soon nothing has to.
pub(crate) const INTERRUPTED_AFTER: Duration = Duration::from_secs(1);

/// How often a wait asks whether the program was interrupted.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(100);

const ETIMEDOUT: i32 = 110;

static LOOK: OnceLock<fn() -> io::Result<()>> = OnceLock::new();

/// Has all waits of this process for locks, for room in a queue, and for a node that does not answer, end with the error that `look` gives: for
/// interpreters, which note a signal and raise it when they go on. It is called about ten times a second by each thread that waits. The first
/// that is set stays, for sessions that are opened after it. One whose node was waited for is over then.
pub fn end_waits_when(look: fn() -> io::Result<()>) {
    let _ = LOOK.set(look);
}

/// Whether anybody has said how an interrupt is seen.
pub(crate) fn is_looked() -> bool {
    LOOK.get().is_some()
}

/// Whether the program was interrupted: then with its error.
///
/// # Errors
/// [`PoolError::Stream`] with it.
pub(crate) fn look(what: &str) -> Result<(), PoolError> {
    let looked = LOOK.get().map_or(Ok(()), |look| look());
    looked.map_err(|source| PoolError::Stream { what: what.to_owned(), source })
}

/// Takes a lock within so long; gives its fence and until when that counts. `ask` makes the question, from whether to stand in the queue
/// and for how many milliseconds; `give_back` unlocks what was granted to a program that was interrupted.
///
/// # Errors
/// [`PoolError::Refused`] with `ETIMEDOUT`, or what the node says; [`PoolError::Stream`] with why the program wants to wait no longer.
pub(crate) fn take_lock(
    session: &Session,
    wait: Duration,
    ask: impl Fn(bool, u32) -> Request,
    give_back: impl Fn(),
) -> Result<(u64, u64), PoolError> {
    let start = Instant::now();
    let mut looked = start;
    loop {
        if looked.elapsed() >= LOOK_EVERY {
            looked = Instant::now();
            if let Err(interrupted) = look("waiting for a lock") {
                if leave_queue(session, wait, &ask(false, 0)).is_ok() {
                    give_back();
                }
                return Err(interrupted);
            }
        }
        let left = wait.saturating_sub(start.elapsed());
        // At most 20: the cast loses nothing.
        let wait_ms = left.min(LOCK_SLICE).as_millis() as u32;
        match session.call(&ask(!wait.is_zero(), wait_ms))? {
            Reply::Locked { fence, until_ms } => return Ok((fence, until_ms)),
            Reply::LockWaiting if start.elapsed() < wait => std::thread::sleep(LOCK_PAUSE),
            Reply::LockWaiting => return leave_queue(session, wait, &ask(false, 0)),
            other => return Err(unexpected("Locked", &other)),
        }
    }
}

/// The wait is over: the node takes the wish out of the queue, unless it was granted in this moment. What the lock's home says of that is waited
/// for, for one lease at the most.
fn leave_queue(session: &Session, wait: Duration, leave: &Request) -> Result<(u64, u64), PoolError> {
    loop {
        match session.call(leave) {
            Ok(Reply::Locked { fence, until_ms }) => return Ok((fence, until_ms)),
            Ok(Reply::LockWaiting) => std::thread::sleep(LOCK_PAUSE),
            Ok(other) => return Err(unexpected("Locked", &other)),
            Err(PoolError::Refused { code: ETIMEDOUT, text }) => {
                let text = text.replace(" within 0 ms", &format!(" within {} ms", wait.as_millis()));
                return Err(PoolError::Refused { code: ETIMEDOUT, text });
            }
            Err(error) => return Err(error),
        }
    }
}
