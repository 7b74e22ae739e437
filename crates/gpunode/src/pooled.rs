//! Objects of a pool that the node reads by itself, in place of bytes that the client would send.
//!
//! A client names an object by its identifier and its pool. The node's own session with its pool may read every object of it; that the client may
//! is shown by what the pool tells of an object only to those who may read it. A wrong one and an object that is not there are the same
//! answer, and who shows too many wrong ones is asked no more.

use crate::failure::{Failure, number};
use hinterland_pool::{Object, Pool, PoolError};
use hinterland_proto::PoolId;
use hinterland_proto::control::{Advice, ObjectState, Request};
use hinterland_proto::gpu::command::AskPooled;
use hinterland_proto::right::is_same_right;
use hinterland_types::{ByteRange, ObjectId};
use std::path::PathBuf;
use std::sync::mpsc::{channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes that are read at once.
pub const PIECE_BYTES: usize = 1 << 20;
/// Objects of one session.
pub(crate) const OBJECTS_MAX: usize = 4096;
/// Rights that a session may show in vain: objects do go, and a right of a pool without a key could else be guessed.
const WRONG_MAX: u32 = 64;
/// How long a pool may take to open an object; then bytes are sent in place of names.
const OPEN_TIME: Duration = Duration::from_secs(10);
/// How long it may take for a piece, other homes and a node that is started again included.
const READ_TIME: Duration = Duration::from_secs(60);
/// CUDA's number for devices that are not to be had.
const DEVICES_UNAVAILABLE: i32 = 46;

/// An object that a session may copy from.
pub trait ObjectBytes: Send + Sync {
    /// Its length.
    fn bytes(&self) -> u64;
    /// Reads `into.len()` bytes at `offset`, which lie within it.
    ///
    /// # Errors
    /// The bytes are not to be had any more. The failure is sticky: whoever asked for the copy has gone on.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Failure>;
    /// Whether all of it is memory of this host, so that reads wait for nobody.
    fn is_here(&self) -> bool;
    /// A range that will be read soon.
    fn will_need(&self, offset: u64, bytes: u64);
}

/// Finds objects for a session.
pub trait ObjectStore: Send {
    /// The object that a client asks for.
    ///
    /// # Errors
    /// It cannot be read here, or the client has not shown that it may.
    fn open(&mut self, wanted: &AskPooled) -> Result<Arc<dyn ObjectBytes>, Failure>;
}

/// No pool.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoPool;

impl ObjectStore for NoPool {
    fn open(&mut self, _: &AskPooled) -> Result<Arc<dyn ObjectBytes>, Failure> {
        Err(Failure::unsupported("this node reads from no pool (hint: start it with --pool SOCKET)"))
    }
}

/// The pool of a node on this host.
pub struct PoolObjects {
    socket: PathBuf,
    pool: Option<Pool>,
    wrong: u32,
}

impl PoolObjects {
    /// The pool whose node listens on `socket`; it is connected to when an object is asked for.
    pub const fn new(socket: PathBuf) -> Self {
        Self { socket, pool: None, wrong: 0 }
    }

    fn pool(&mut self) -> Result<Pool, PoolError> {
        if let Some(pool) = self.pool.as_ref().filter(|pool| !pool.session().is_lost()) {
            return Ok(pool.clone());
        }
        Ok(self.pool.insert(Pool::connect(Some(&self.socket))?).clone())
    }
}

impl ObjectStore for PoolObjects {
    fn open(&mut self, wanted: &AskPooled) -> Result<Arc<dyn ObjectBytes>, Failure> {
        let refused = |error: PoolError| {
            Failure::new(
                number::NOT_FOUND,
                format!("object {:x} cannot be read here: {error}", wanted.object),
            )
        };
        if self.wrong >= WRONG_MAX {
            let words =
                format!("{WRONG_MAX} rights to read were wrong: this session gets no object any more");
            return Err(Failure::unsupported(words));
        }
        let pool = self.pool().map_err(|error| Failure::unsupported(error.to_string()))?;
        let Some(opened) = within(OPEN_TIME, move |wanted| open(&pool, wanted), *wanted) else {
            self.pool = None;
            let words = format!("the pool did not answer within {} s", OPEN_TIME.as_secs());
            return Err(Failure::unsupported(words));
        };
        let opened = opened.map_err(refused)?;
        let object = opened.ok_or_else(|| {
            self.wrong += 1;
            Failure::new(
                number::NOT_FOUND,
                format!("there is no such object as {:x} is said to be", wanted.object),
            )
        })?;
        let found =
            PoolObject { socket: self.socket.clone(), wanted: *wanted, object: Mutex::new(Arc::new(object)) };
        Ok(Arc::new(found))
    }
}

/// What a thread of its own finds, if it does within a time; it is left to itself when it does not.
fn within<T: Send + 'static>(
    time: Duration,
    find: impl FnOnce(&AskPooled) -> T + Send + 'static,
    wanted: AskPooled,
) -> Option<T> {
    let (tell, found) = channel();
    // Nobody listens any more if it comes too late.
    let run = move || drop(tell.send(find(&wanted)));
    std::thread::Builder::new().name("pool".to_owned()).spawn(run).ok()?;
    found.recv_timeout(time).ok()
}

/// An object, if it is the one that is wanted: of this pool, sealed, and with these bytes.
fn open(pool: &Pool, wanted: &AskPooled) -> Result<Option<Object>, PoolError> {
    if PoolId(u128::from_le_bytes(wanted.pool)) != pool.session().pool() {
        return Ok(None);
    }
    let object = pool.open_id(ObjectId(wanted.object))?;
    let info = object.info();
    let is_whole = info.state == ObjectState::Sealed && info.bytes == wanted.bytes;
    if !is_whole || !is_same_right(&object.right()?, &wanted.right) {
        return Ok(None);
    }
    if object.is_local() {
        // Mapped now, so that it stays when it is removed.
        object.memory()?;
    } else {
        // The cache of this host, which reads go through, exists from here on.
        object.file()?;
    }
    Ok(Some(object))
}

/// An object of the pool.
struct PoolObject {
    socket: PathBuf,
    wanted: AskPooled,
    object: Mutex<Arc<Object>>,
}

impl PoolObject {
    fn object(&self) -> MutexGuard<'_, Arc<Object>> {
        self.object.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens it once more, over a new connection: the node may have been started again.
    fn open_again(&self) -> Result<Arc<Object>, PoolError> {
        let pool = Pool::connect(Some(&self.socket))?;
        let object = Arc::new(open(&pool, &self.wanted)?.ok_or(PoolError::Closed)?);
        *self.object() = Arc::clone(&object);
        Ok(object)
    }
}

fn read(object: &Object, offset: u64, into: &mut [u8]) -> Result<(), PoolError> {
    if object.is_local() { object.read_at(offset, into) } else { object.read_cached(offset, into) }
}

impl ObjectBytes for PoolObject {
    fn bytes(&self) -> u64 {
        self.wanted.bytes
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Failure> {
        let object = Arc::clone(&self.object());
        let first = match read(&object, offset, into) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let again = self.open_again().and_then(|object| read(&object, offset, into));
        again.map_err(|error| {
            tracing::warn!("{first}; then {error}");
            lost(first.to_string())
        })
    }

    fn is_here(&self) -> bool {
        self.object().is_local()
    }

    fn will_need(&self, offset: u64, bytes: u64) {
        let object = Arc::clone(&self.object());
        let Ok(range) = ByteRange::new(offset, bytes) else { return };
        if !object.is_local() {
            // Advice: a node that does not take it is no error.
            let request = Request::Advise { handle: object.handle(), range, advice: Advice::WillNeed };
            let _ = object.session().call(&request);
        }
    }
}

/// Reads a range piece by piece; `each` gets where in the range a piece lies, and its bytes. What is not on this host is read by a thread, which is
/// a piece ahead, and which nobody waits for when the pool does not answer any more.
///
/// # Errors
/// Those of the object, or of `each`.
pub fn in_pieces(
    object: &Arc<dyn ObjectBytes>,
    offset: u64,
    bytes: u64,
    mut each: impl FnMut(u64, &[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let places = (0..bytes).step_by(PIECE_BYTES);
    // At most the length of a piece.
    let length = move |done: u64| (bytes - done).min(PIECE_BYTES as u64) as usize;
    if object.is_here() {
        let mut piece = vec![0; length(0)];
        return places.into_iter().try_for_each(|done| {
            let part = &mut piece[..length(done)];
            object.read(offset + done, part)?;
            each(done, part)
        });
    }
    let (full, pieces) = sync_channel(1);
    let (give_back, empty) = channel::<Vec<u8>>();
    let reader = Arc::clone(object);
    let ahead = places.clone();
    let read = move || {
        reader.will_need(offset, bytes);
        for done in ahead {
            let mut piece = empty.try_recv().unwrap_or_default();
            piece.resize(length(done), 0);
            let outcome = reader.read(offset + done, &mut piece).map(|()| piece);
            // Whoever waited has given up, or has got a failure.
            if outcome.is_err() | full.send(outcome).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("pool".to_owned())
        .spawn(read)
        .map_err(|error| lost(error.to_string()))?;
    for done in places {
        let silent = |_| lost(format!("the pool did not answer within {} s", READ_TIME.as_secs()));
        let piece = pieces.recv_timeout(READ_TIME).map_err(silent)??;
        each(done, &piece)?;
        // The reader may have ended: this was the last piece.
        let _ = give_back.send(piece);
    }
    Ok(())
}

/// Bytes that were promised and do not come: the device is of no more use, because whoever asked for them has gone on.
fn lost(why: String) -> Failure {
    let words = format!(
        "bytes of the pool are lost to a copy that was promised: {why} (hint: `hinterland doctor` on the GPU node's host; HINTERLAND_NO_POOL_COPIES=1 sends bytes instead)"
    );
    Failure::new(DEVICES_UNAVAILABLE, words).sticky()
}

#[cfg(test)]
mod tests;
