//! The pool of the local node as what the file system needs.

use crate::absence::{Absence, is_lost};
use crate::silence::{Questions, Watch};
use crate::source::{Contents, NewObject, Placing, ReadAt, Source, SourceError, Space};
use hinterland_pool::{Object, Pool, PoolError, PutOptions, PutWriter, ReadPreference, Session};
use hinterland_proto::PoolId;
use hinterland_proto::control::{FormerPool, ObjectInfo, Placement, RenameTarget, Reply, Request};
use hinterland_types::{ObjectId, ObjectName};
use std::cell::Cell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

const ENOENT: i32 = 2;
const EIO: i32 = 5;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;

/// Connections that bytes are read over, apart from the one that names are asked over: a read may wait for a home.
const LANES: usize = 4;

/// A pool, asked through the node at a socket. A node that is away is waited for, and connected to again.
pub struct PoolSource {
    door: Arc<Door>,
    pool: Mutex<Option<Pool>>,
    writing: [Mutex<Option<Pool>>; LANES],
    lanes: [Arc<Lane>; LANES],
    opened: AtomicUsize,
    absence: Arc<Absence>,
    _watch: Watch,
}

impl PoolSource {
    /// Connects to the node at `socket`.
    ///
    /// # Errors
    /// [`PoolError::NoNode`] if nobody listens there.
    pub fn connect(socket: &Path) -> Result<Self, PoolError> {
        Self::with_preference(socket, ReadPreference::default())
    }

    /// Connects to the node at `socket`; what is read is cached as preferred.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn with_preference(socket: &Path, preference: ReadPreference) -> Result<Self, PoolError> {
        let pool = Pool::connect(Some(socket))?;
        let questions = Arc::new(Questions::default());
        questions.go_to(&pool);
        let watch = Watch::over(&questions);
        let door = Arc::new(Door { socket: socket.to_owned(), pool: pool.session().pool(), questions });
        let lane = || Arc::new(Lane { door: Arc::clone(&door), preference, pool: Mutex::default() });
        Ok(Self {
            pool: Mutex::new(Some(pool)),
            writing: Default::default(),
            lanes: std::array::from_fn(|_| lane()),
            opened: AtomicUsize::new(0),
            absence: Arc::new(Absence::new(preference.grace)),
            door,
            _watch: watch,
        })
    }

    /// Asks the node; while it cannot be heard, again over a new connection.
    fn ask<T>(&self, question: impl Fn(&Pool) -> Result<T, PoolError>) -> Result<T, PoolError> {
        self.ask_over(&self.pool, question)
    }

    /// The same over one of the connections that bytes are written over, apart from the one that names are asked over.
    fn ask_for_writing<T>(&self, question: impl Fn(&Pool) -> Result<T, PoolError>) -> Result<T, PoolError> {
        // Relaxed: it only spreads files over connections.
        let turn = self.opened.fetch_add(1, Ordering::Relaxed);
        self.ask_over(&self.writing[turn % LANES], question)
    }

    fn ask_over<T>(
        &self,
        connection: &Mutex<Option<Pool>>,
        question: impl Fn(&Pool) -> Result<T, PoolError>,
    ) -> Result<T, PoolError> {
        let _asked = self.door.questions.begin();
        self.absence.outlast(|| self.ask_once(connection, &question))
    }

    fn ask_once<T>(
        &self,
        connection: &Mutex<Option<Pool>>,
        question: impl Fn(&Pool) -> Result<T, PoolError>,
    ) -> Result<T, PoolError> {
        let known = connection.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(pool) = known {
            match question(&pool) {
                Err(error) if is_lost(&error) => {}
                answered => return answered,
            }
        }
        let pool = self.door.connect()?;
        *connection.lock().unwrap_or_else(PoisonError::into_inner) = Some(pool.clone());
        question(&pool)
    }

    fn open_once(&self, lane: &Arc<Lane>, object: ObjectId) -> Result<Contents, PoolError> {
        let object = lane.open(object)?;
        let session = Arc::clone(object.session());
        let contents = self.contents(lane, object);
        if contents.as_ref().is_err_and(is_lost) {
            lane.leave(&session);
        }
        contents
    }

    fn contents(&self, lane: &Arc<Lane>, object: Object) -> Result<Contents, PoolError> {
        if object.is_local() {
            let (mapped, descriptor) = object.file()?;
            // An armed file is a cache file, which loses pages; a local object has one only while it moves.
            if !mapped.armed {
                return Ok(Contents::OwnFile(File::from(descriptor)));
            }
        }
        // Its home keeps the bytes from here on, also if it is removed or replaced. `ENOENT` if that has just happened.
        object.hold()?;
        let (lane, absence) = (Arc::clone(lane), Arc::clone(&self.absence));
        Ok(Contents::Remote(Box::new(Reader { lane, absence, read: Mutex::new(Arc::new(object)) })))
    }
}

impl Source for PoolSource {
    fn pool(&self) -> PoolId {
        self.door.pool
    }

    fn former_pools(&self) -> Result<Vec<FormerPool>, SourceError> {
        Ok(self.ask(Pool::former_pools)?)
    }

    fn stat(&self, name: &ObjectName) -> Result<Option<ObjectInfo>, SourceError> {
        match self.ask(|pool| pool.stat(name)) {
            Ok(info) => Ok(Some(info)),
            // `EEXIST`: somebody has the name and is still writing.
            Err(PoolError::Refused { code: ENOENT | EEXIST, .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn list(
        &self,
        prefix: &str,
        after: Option<&ObjectName>,
        limit: u32,
    ) -> Result<(Vec<ObjectInfo>, bool), SourceError> {
        let request = Request::List { prefix: prefix.to_owned(), after: after.cloned(), limit };
        match self.ask(|pool| pool.session().call(&request))? {
            Reply::Objects { objects, more } => Ok((objects, more)),
            other => Err(unexpected("Objects", &other).into()),
        }
    }

    fn open(&self, info: &ObjectInfo) -> Result<Contents, SourceError> {
        // Relaxed: it only spreads files over lanes.
        let turn = self.opened.fetch_add(1, Ordering::Relaxed);
        let lane = &self.lanes[turn % LANES];
        let _asked = self.door.questions.begin();
        Ok(self.absence.outlast(|| self.open_once(lane, info.object))?)
    }

    fn space(&self) -> Result<Space, SourceError> {
        let members = self.ask(Pool::members)?;
        let up = members.iter().filter(|member| member.up);
        Ok(up.fold(Space::default(), |space, member| Space {
            capacity_bytes: space.capacity_bytes.saturating_add(member.capacity_bytes),
            used_bytes: space.used_bytes.saturating_add(member.used_bytes),
        }))
    }

    fn create(&self, name: &ObjectName, placing: &Placing) -> Result<Box<dyn NewObject>, SourceError> {
        let options = put_options(placing);
        let writer = self.ask_for_writing(|pool| pool.put_writer(name, &options))?;
        Ok(Box::new(Draft { writer, door: Arc::clone(&self.door) }))
    }

    fn create_with_room(
        &self,
        name: &ObjectName,
        placing: &Placing,
        bytes: u64,
    ) -> Result<Box<dyn NewObject>, SourceError> {
        let options = put_options(placing);
        let writer = self.ask_for_writing(|pool| pool.put_writer_with_room(name, &options, bytes))?;
        Ok(Box::new(Draft { writer, door: Arc::clone(&self.door) }))
    }

    fn rename(
        &self,
        object: ObjectId,
        from: &ObjectName,
        to: &ObjectName,
        target: RenameTarget,
    ) -> Result<(), SourceError> {
        Ok(self.ask(|pool| pool.rename_object(object, from, to, target))?)
    }

    fn rename_folder(&self, from: &ObjectName, to: &ObjectName) -> Result<(), SourceError> {
        Ok(self.ask(|pool| pool.rename_folder(from, to))?)
    }

    fn remove(&self, name: &ObjectName, object: ObjectId) -> Result<(), SourceError> {
        let times = Cell::new(0_u32);
        let removed = self.ask(|pool| {
            times.set(times.get() + 1);
            pool.remove_object(name, object)
        });
        match removed {
            // The node was lost before it could say that it had done so.
            Err(PoolError::Refused { code: ENOENT, .. }) if times.get() > 1 => Ok(()),
            removed => Ok(removed?),
        }
    }
}

fn put_options(placing: &Placing) -> PutOptions {
    PutOptions {
        copies: placing.copies.unwrap_or(1),
        placement: placing.rack.clone().map_or(Placement::Policy, Placement::Rack),
        ..PutOptions::default()
    }
}

/// An object that is being written.
struct Draft {
    writer: PutWriter,
    door: Arc<Door>,
}

impl NewObject for Draft {
    fn object(&self) -> ObjectId {
        self.writer.object()
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), SourceError> {
        let _asked = self.door.questions.begin();
        self.writer.write(bytes).map_err(given_up)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let _asked = self.door.questions.begin();
        self.writer.read_at(offset, into).map_err(given_up)
    }

    fn rename(&mut self, from: &ObjectName, to: &ObjectName) -> Result<(), SourceError> {
        let _asked = self.door.questions.begin();
        Ok(self.writer.rename(from, to)?)
    }

    fn exchange_names(
        &mut self,
        from: &ObjectName,
        other: ObjectId,
        to: &ObjectName,
    ) -> Result<(), SourceError> {
        let _asked = self.door.questions.begin();
        Ok(self.writer.exchange_names(from, other, to)?)
    }

    fn rewind(&mut self) {
        self.writer.rewind();
    }

    fn reserve(&mut self, bytes: u64) -> Result<(), SourceError> {
        let _asked = self.door.questions.begin();
        self.writer.reserve(bytes).map_err(given_up)
    }

    fn is_lost(&self) -> bool {
        self.writer.is_lost()
    }

    fn publish(self: Box<Self>, name: &ObjectName) -> Result<ObjectInfo, SourceError> {
        let _asked = self.door.questions.begin();
        self.writer.publish(name).map_err(given_up)
    }
}

/// A put that the pool has given up, because the node was silent for too long, is no file that is missing.
fn given_up(error: PoolError) -> SourceError {
    let SourceError { code, text } = error.into();
    SourceError { code: if matches!(code, ENOENT | EINVAL) { EIO } else { code }, text }
}

/// Where the node listens, and of which pool it must be.
struct Door {
    socket: PathBuf,
    pool: PoolId,
    questions: Arc<Questions>,
}

impl Door {
    /// Connects. A node that is of another pool since is refused: its objects have the same numbers, and with them the inodes of which the
    /// kernel and programs have bytes.
    fn connect(&self) -> Result<Pool, PoolError> {
        let pool = Pool::connect(Some(&self.socket))?;
        let (found, expected) = (pool.session().pool(), self.pool);
        if found == expected {
            self.questions.go_to(&pool);
            return Ok(pool);
        }
        let text = format!(
            "the node at {} is of {found} now, and the mount shows {expected} (hint: unmount, and mount again)",
            self.socket.display()
        );
        Err(PoolError::Refused { code: EIO, text })
    }
}

/// One connection that bytes are read over; made at the first use, and again when the node was restarted.
struct Lane {
    door: Arc<Door>,
    preference: ReadPreference,
    pool: Mutex<Option<Pool>>,
}

impl Lane {
    fn open(&self, object: ObjectId) -> Result<Object, PoolError> {
        let mut lane = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = &*lane {
            match pool.open_id(object) {
                Err(error) if is_lost(&error) => {}
                answered => return answered,
            }
        }
        let pool = self.door.connect()?;
        pool.prefer(self.preference.budget_bytes, self.preference.unit_bytes)?;
        lane.insert(pool).open_id(object)
    }

    /// Has the next one connect anew.
    fn leave(&self, session: &Arc<Session>) {
        let mut lane = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        lane.take_if(|pool| Arc::ptr_eq(pool.session(), session));
    }
}

/// Reads an object through the cache of this host; it stays open as long as this lives.
struct Reader {
    lane: Arc<Lane>,
    absence: Arc<Absence>,
    read: Mutex<Arc<Object>>,
}

impl Reader {
    fn object(&self) -> Arc<Object> {
        Arc::clone(&self.read.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads over a new connection.
    fn read_anew(&self, object: ObjectId, offset: u64, buffer: &mut [u8]) -> Result<(), PoolError> {
        let again = Arc::new(self.lane.open(object)?);
        self.read.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&again);
        again.read_cached(offset, buffer)
    }
}

impl ReadAt for Reader {
    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        let object = self.object();
        let _asked = self.lane.door.questions.begin();
        match object.read_cached(offset, buffer) {
            Err(error) if is_lost(&error) => {}
            answered => return Ok(answered?),
        }
        Ok(self.absence.outlast(|| self.read_anew(object.info().object, offset, buffer))?)
    }
}

impl From<PoolError> for SourceError {
    fn from(error: PoolError) -> Self {
        Self { code: error.code(), text: error.to_string() }
    }
}

fn unexpected(expected: &'static str, answer: &Reply) -> PoolError {
    let answer = format!("{answer:?}").chars().take(80).collect();
    PoolError::Unexpected { expected, answer }
}
