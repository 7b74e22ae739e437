//! Both rings of a session: one for requests that stay in the rack, one for those that may take long.
//!
//! A program asks its node over the session's socket, one request after the other, until that would make a thread wait for
//! another's request. Then the session gets rings, and [`goes_over`] says what goes over them: a request that makes the
//! node ask another rack, or wait for somebody, holds up nobody but who made it.

use crate::session::unexpected;
use crate::waiting::{INTERRUPTED_AFTER, look};
use crate::{Pool, PoolError, Session};
use hinterland_fabric::FabricError;
use hinterland_fabric::shm::{FarEndpoint, SLOTS, ShmEndpoint};

use hinterland_os::poll::has_hung_up;
use hinterland_os::socket::UnixStream;
use hinterland_os::{fault_point, fork_mark};
use hinterland_proto::ErrorCode;
use hinterland_proto::control::{Reply, Request, decode, encode};
use std::cell::{Cell, OnceCell};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

/// Room for an answer with nothing or a few words in it. As many as the far ring has slots fit into its data.
const ROOM_BYTES: usize = 4096;
/// Room for what is known of one object: it names each of its homes.
const OBJECT_ROOM_BYTES: usize = 16 << 10;
/// Room for answers with lists. A longer one is asked for again, over the socket.
const LIST_ROOM_BYTES: usize = 128 << 10;
/// Links of the folder of a process's threads, beside those of the threads themselves.
const TASK_LINKS: u64 = 2;

/// Over how many rings the requests of a session go once they are of use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingChoice {
    /// Two: what may take long has one of its own.
    Two,
    /// One for all, each request in its turn.
    Single,
    /// None: all goes over the socket, each request in its turn.
    Socket,
}

impl RingChoice {
    /// Two, unless `HINTERLAND_NO_RINGS=1` or `HINTERLAND_SINGLE_RING=1` is set.
    pub fn of_environment() -> Self {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| value == "1");
        match (is_set("HINTERLAND_NO_RINGS"), is_set("HINTERLAND_SINGLE_RING")) {
            (true, _) => Self::Socket,
            (false, true) => Self::Single,
            (false, false) => Self::Two,
        }
    }
}

/// Calls without a system call each; may be used by many threads at once.
///
/// A request that the node answers by itself goes over the near ring, one that may make it ask other nodes, or wait for
/// somebody, over the far ring. With `HINTERLAND_SINGLE_RING=1` all go over the near ring, each in its turn.
pub struct Rings {
    near: ShmEndpoint,
    far: Option<FarEndpoint>,
    /// The session's socket: no request comes back from a node that has closed it.
    watch: UnixStream,
}

impl Rings {
    /// With [`RingChoice::Single`] one for all, else two.
    pub(crate) fn open(session: &Session, choice: RingChoice) -> Result<Self, PoolError> {
        let far = if choice == RingChoice::Single { None } else { Some(open_far(session)?) };
        Ok(Self { near: open_near(session)?, far, watch: session.watch()? })
    }

    /// The same with everything on the near ring, to show what the far one is for.
    ///
    /// # Errors
    /// As [`Pool::rings`].
    pub fn open_single(pool: &Pool) -> Result<Self, PoolError> {
        Self::open(pool.session(), RingChoice::Single)
    }

    /// Asks the node, and waits for its answer for as long as the node is there: a lock whose caller had gone away before it was
    /// granted would be nobody's. What needs a descriptor is refused.
    ///
    /// # Errors
    /// [`PoolError::Refused`] with the node's words; [`PoolError::Closed`] if the node has ended the session;
    /// [`PoolError::Fabric`] if the ring is too small for the answer, or broken.
    pub fn call(&self, request: &Request) -> Result<Reply, PoolError> {
        let body = encode(request)?;
        // From the first look on: who is answered at once looks at no clock.
        let (begun, interrupted) = (OnceCell::new(), Cell::new(None));
        let is_there = || {
            if begun.get_or_init(Instant::now).elapsed() >= INTERRUPTED_AFTER
                && let Err(error) = look("waiting for the node")
            {
                // The node takes back what it grants to nobody.
                self.watch.shutdown();
                interrupted.set(Some(error));
                return false;
            }
            // What cannot be looked at is taken to be there; the socket will say otherwise.
            !has_hung_up(&self.watch).unwrap_or(false)
        };
        let answer = match &self.far {
            Some(far) if request.may_take_long() => far.call_while(&body, room(request), &is_there),
            _ => self.near.call_while(&body, &is_there),
        };
        let answer = answer.map_err(|error| match error {
            FabricError::Closed { .. } => interrupted.take().unwrap_or(PoolError::Closed),
            error => error.into(),
        })?;
        match decode(&answer)? {
            Reply::Error { code, text } => Err(PoolError::Refused { code, text }),
            reply => Ok(reply),
        }
    }

    /// The near ring.
    pub const fn near(&self) -> &ShmEndpoint {
        &self.near
    }

    /// The far ring, if there is one.
    pub const fn far(&self) -> Option<&FarEndpoint> {
        self.far.as_ref()
    }
}

/// The rings of a session that has none before they are of use.
pub(crate) struct LazyRings {
    choice: RingChoice,
    /// None within if the node gives none: then all goes over the socket, as with one that knows no rings.
    rings: OnceLock<Option<Rings>>,
    /// Whether a thread had to wait for another's request on the socket.
    was_busy: AtomicBool,
    /// Whether somebody is to be told of a silence of the node, which the socket is watched for.
    is_watched: AtomicBool,
    /// Whether an answer about an object was longer than its room.
    are_objects_long: AtomicBool,
    /// 1 in this process, 0 in a child of it.
    mark: Option<&'static AtomicU32>,
}

impl LazyRings {
    pub fn new(choice: RingChoice) -> Self {
        Self {
            choice,
            rings: OnceLock::new(),
            was_busy: AtomicBool::new(false),
            is_watched: AtomicBool::new(false),
            are_objects_long: AtomicBool::new(false),
            mark: fork_mark::mark(),
        }
    }

    /// A thread found the socket in use.
    pub fn note_busy(&self) {
        // Relaxed: a hint that orders nothing.
        self.was_busy.store(true, Ordering::Relaxed);
    }

    /// Somebody wants to be told when the node is silent: all goes over the socket from here on.
    pub fn forgo(&self) {
        // Relaxed: a hint that orders nothing.
        self.is_watched.store(true, Ordering::Relaxed);
    }

    /// The rings, if they are open.
    pub fn known(&self) -> Option<&Rings> {
        self.rings.get()?.as_ref()
    }

    /// Asks over the rings; `None` for what goes over the socket.
    pub fn call(&self, session: &Session, request: &Request) -> Option<Result<Reply, PoolError>> {
        // A child of fork never touches them: they are its parent's, which may be in the middle of a call.
        if self.choice == RingChoice::Socket || self.is_forked() || !goes_over(request) {
            return None;
        }
        // Relaxed: as where it is set.
        if self.is_watched.load(Ordering::Relaxed) {
            return None;
        }
        let opens = matches!(request, Request::Open { .. } | Request::OpenObject { .. });
        // Relaxed: a hint that orders nothing.
        if opens && self.are_objects_long.load(Ordering::Relaxed) {
            return None;
        }
        let rings = match self.rings(session, request.may_take_long()) {
            Ok(rings) => rings?,
            Err(error) => return Some(Err(error)),
        };
        fault_point::reach("client-asks");
        let answer = rings.call(request);
        fault_point::reach("client-answered");
        match answer {
            Err(PoolError::Fabric(error)) if is_too_long(&error) => {
                // An open that was granted is known to nobody, so it is not tried again and again.
                if opens {
                    // Relaxed: as above.
                    self.are_objects_long.store(true, Ordering::Relaxed);
                }
                None
            }
            answer => Some(answer),
        }
    }

    /// The rings if they are of use. A program with one thread has nobody who could wait behind its requests; it is spared
    /// the 2 MiB and the two threads of its node. One with several gets them before the first request that may take long, not behind
    /// it: the request that opens them goes over the socket. Whoever was held up there all the same wants them too.
    ///
    /// # Errors
    /// Only of a program that was interrupted meanwhile; without rings all goes over the socket.
    fn rings(&self, session: &Session, is_long: bool) -> Result<Option<&Rings>, PoolError> {
        if let Some(rings) = self.rings.get() {
            return Ok(rings.as_ref());
        }
        // Relaxed: a hint that orders nothing.
        let is_of_use = self.was_busy.load(Ordering::Relaxed) || (is_long && has_threads());
        if !is_of_use {
            return Ok(None);
        }
        let mut interrupted = None;
        let rings = self.rings.get_or_init(|| match Rings::open(session, self.choice) {
            Ok(rings) => Some(rings),
            Err(error) => {
                interrupted = matches!(error, PoolError::Stream { .. }).then_some(error);
                None
            }
        });
        interrupted.map_or_else(|| Ok(rings.as_ref()), Err)
    }

    fn is_forked(&self) -> bool {
        // Relaxed: a process is a child from its first instruction on. Who cannot tell does without.
        self.mark.is_none_or(|mark| mark.load(Ordering::Relaxed) == 0)
    }
}

/// Whether a request of a pool goes over its rings. The session is the same, and each thread has the answer to one request before it makes the
/// next, so that a thread's own order is kept on any way. Left on the socket is what comes with descriptors, what a put or a
/// cache is made of piece by piece, KV blocks, which have sessions of their own, and what must not be done twice but has an
/// answer that may be too long for a ring.
const fn goes_over(request: &Request) -> bool {
    matches!(
        request,
        Request::Ping
            | Request::Status
            | Request::Members
            | Request::FormerPools
            | Request::Open { .. }
            | Request::OpenObject { .. }
            | Request::Stat { .. }
            | Request::List { .. }
            | Request::Resolve { .. }
            | Request::Right { .. }
            | Request::Remove { .. }
            | Request::Rename { .. }
            | Request::RenameFolder { .. }
            | Request::RemoveObject { .. }
            | Request::RenameObject { .. }
            | Request::Verify { .. }
            | Request::Allocate { .. }
            | Request::Free { .. }
            | Request::Lock { .. }
            | Request::LockWait { .. }
            | Request::LockState { .. }
            | Request::Unlock { .. }
            | Request::UnlockAs { .. }
            | Request::KeepLocks { .. }
            | Request::ListLocks
            | Request::AwaitPage { .. }
            | Request::WritePage { .. }
            | Request::PullPage { .. }
            | Request::CopyPage { .. }
            | Request::HotPages { .. }
            | Request::PagesAt { .. }
    )
}

const fn room(request: &Request) -> usize {
    match request {
        Request::List { .. }
        | Request::Members
        | Request::FormerPools
        | Request::ListLocks
        | Request::HotPages { .. }
        | Request::PagesAt { .. }
        | Request::Verify { .. } => LIST_ROOM_BYTES,
        Request::Open { .. }
        | Request::OpenObject { .. }
        | Request::Stat { .. }
        | Request::Resolve { .. } => OBJECT_ROOM_BYTES,
        _ => ROOM_BYTES,
    }
}

/// Whether a request or its answer did not fit into a ring. What the answer did not fit of is done already: it does no harm to do it again, and
/// what changes something and has succeeded has a short answer.
fn is_too_long(error: &FabricError) -> bool {
    match error {
        FabricError::Limit { .. } => true,
        FabricError::Remote { error, .. } => error.code == ErrorCode::LIMIT,
        _ => false,
    }
}

/// Whether this process has more than one thread. If that cannot be seen it is taken to.
fn has_threads() -> bool {
    std::fs::metadata("/proc/self/task").map_or(true, |tasks| tasks.nlink() > TASK_LINKS + 1)
}

pub(crate) fn open_near(session: &Session) -> Result<ShmEndpoint, PoolError> {
    match session.call_with(&Request::OpenRing, &[])? {
        (Reply::RingOpened { slots }, mut descriptors) if descriptors.len() == 1 && slots == SLOTS => {
            // The length was just checked.
            Ok(ShmEndpoint::open(session.node(), descriptors.remove(0))?)
        }
        (other, _) => Err(unexpected("RingOpened with a descriptor", &other)),
    }
}

fn open_far(session: &Session) -> Result<FarEndpoint, PoolError> {
    match session.call_with(&Request::OpenFarRing, &[])? {
        (Reply::FarRingOpened { slots, data_bytes }, mut descriptors) if descriptors.len() == 1 => {
            // The length was just checked.
            let descriptor = descriptors.remove(0);
            Ok(FarEndpoint::open(session.node(), descriptor, slots, data_bytes)?)
        }
        (other, _) => Err(unexpected("FarRingOpened with a descriptor", &other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hinterland_proto::control::LockMode;
    use hinterland_types::GlobalAddress;

    #[test]
    fn a_process_has_threads_as_soon_as_there_is_a_second_one() {
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let waits = std::thread::spawn(move || receiver.recv().is_err());
        assert!(has_threads());
        drop(sender);
        assert!(waits.join().unwrap());
    }

    #[test]
    fn every_request_for_a_lock_takes_long_however_short_its_wait() {
        let address = GlobalAddress::new(4096).unwrap();
        let (mode, upgrade, queue, wait_ms) = (LockMode::Read, false, false, 0);
        assert!(Request::Lock { address, mode, wait_ms }.may_take_long());
        assert!(Request::LockWait { address, mode, upgrade, queue, wait_ms }.may_take_long());
        assert!(Request::GuardLock { address, bytes: 1, mode, upgrade, queue, wait_ms }.may_take_long());
        assert!(!Request::Unlock { address }.may_take_long());
    }

    unsafe extern "C" {
        fn fork() -> i32;
        fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
        fn _exit(status: i32) -> !;
    }

    #[test]
    fn a_child_of_fork_leaves_the_rings_to_its_parent() {
        let rings = LazyRings::new(RingChoice::Two);
        assert!(!rings.is_forked());
        // SAFETY: the child looks at a word and ends by `_exit`.
        let status = unsafe {
            let child = fork();
            if child == 0 {
                _exit(i32::from(!rings.is_forked()));
            }
            let mut status = -1;
            assert_eq!(waitpid(child, &mut status, 0), child);
            status
        };
        assert_eq!(status, 0);
    }
}
