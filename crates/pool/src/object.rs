//! An open object as programs use it: a handle with rights and a range, from which weaker ones can be made, and that can be revoked.

mod capability;
mod opening;

use crate::region::{RegionPages, WordOperation};
use crate::remote::Attached;
use crate::session::{range, unexpected};
use crate::{Pool, PoolError};
use capability::Capability;
use hinterland_os::SharedSlice;
use hinterland_proto::control::{Mapped, ObjectInfo, Opened, Reply, Request};
use hinterland_types::{ByteRange, Handle, Rights};
use opening::Opening;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

/// An open object or region: a handle to it.
///
/// A handle has rights and a range. What opening gave has the rights that were asked for, and all bytes;
/// [`diminish`](Self::diminish) makes weaker ones of it, for other parts of the program, and [`revoke`](Self::revoke) takes one
/// back with all that were made from it.
pub struct Object {
    opening: Arc<Opening>,
    capability: Arc<Capability>,
    /// The memory, if this handle is not all that was opened: it has less rights.
    own: OnceLock<SharedSlice>,
}

impl Object {
    pub(crate) fn new(pool: Pool, opened: Opened) -> Self {
        let (session, all) = (Arc::clone(pool.session()), range(0, opened.info.bytes).unwrap_or_default());
        let capability = Arc::new(Capability::opened(session, opened.handle, opened.rights, all));
        let opening = Arc::new(Opening::new(pool, opened, Arc::clone(&capability)));
        Self { opening, capability, own: OnceLock::new() }
    }

    /// What it is: all of it, also for a handle to a part.
    pub fn info(&self) -> &ObjectInfo {
        self.opening.info()
    }

    /// The session that it was opened in.
    pub fn session(&self) -> &Arc<crate::Session> {
        self.opening.pool.session()
    }

    pub(crate) fn opened(&self) -> &Opened {
        &self.opening.opened
    }

    /// The capability in the local node's table.
    pub fn handle(&self) -> Handle {
        self.capability.handle
    }

    /// What this handle allows.
    pub fn rights(&self) -> Rights {
        self.capability.rights
    }

    /// The bytes of the object that this handle reaches.
    pub fn range(&self) -> ByteRange {
        self.capability.range
    }

    /// Whether the local node holds the bytes; of a region, whether it held every page when it was opened.
    pub fn is_local(&self) -> bool {
        self.opening.opened.local
    }

    /// Makes a weaker handle of this one, for another part of the program: with no right and no byte that this one lacks. Offsets of
    /// both are those of the whole object. It lives as long as somebody has it, whatever becomes of this one, but for
    /// [`revoke`](Self::revoke).
    ///
    /// # Errors
    /// [`PoolError::Refused`]: `EACCES` for rights that this handle lacks, `EINVAL` for none or for bytes that it does not reach, `EBADF`
    /// if it was revoked, `EMLINK` if 32 were made each from the one before.
    ///
    /// ```no_run
    /// use hinterland_pool::Pool;
    /// use hinterland_types::{ByteRange, ObjectName, Rights};
    ///
    /// let pool = Pool::connect(None)?;
    /// let region = pool.open(&ObjectName::parse("results")?, Rights::READ | Rights::WRITE)?;
    /// // Whoever gets this one reads the second page, and nothing else.
    /// let part = region.diminish(Rights::READ, ByteRange::new(4096, 4096)?)?;
    /// part.read_at(4096, &mut [0; 64])?;
    /// assert!(part.read_at(0, &mut [0; 64]).is_err());
    /// assert!(part.write_at(4096, &[1; 64]).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn diminish(&self, rights: Rights, range: ByteRange) -> Result<Self, PoolError> {
        let weaker = Arc::new(self.capability.diminish(&self.info().name, rights, range)?);
        Ok(Self { opening: Arc::clone(&self.opening), capability: weaker, own: OnceLock::new() })
    }

    /// Takes this handle back, and all that were made from it: whatever is done with one of them from here on is refused with `EBADF`.
    /// Those that it was made from stay. An access that another thread has begun may still end. Memory that was mapped
    /// ([`memory`](Self::memory), [`file`](Self::file), or by name) stays mapped, for writing too if it was: no kernel takes it out of the
    /// hands of its own process. A handle to a part cannot be mapped. The second time nothing happens.
    ///
    /// # Errors
    /// What became of the session; the handles are revoked for this program nevertheless.
    ///
    /// ```no_run
    /// # use hinterland_pool::Pool;
    /// # use hinterland_types::{ByteRange, ObjectName, Rights};
    /// # let pool = Pool::connect(None)?;
    /// # let name = ObjectName::parse("results")?;
    /// let object = pool.open_object(&name)?;
    /// let lent = object.diminish(Rights::READ, ByteRange::new(0, 4096)?)?;
    /// let lent_on = lent.diminish(Rights::READ, ByteRange::new(0, 64)?)?;
    /// lent.revoke()?;
    /// assert!(lent_on.read_at(0, &mut [0; 64]).is_err());
    /// object.read_at(0, &mut [0; 64])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn revoke(&self) -> Result<(), PoolError> {
        self.capability.revoke()
    }

    /// What shows, to others who may read the sealed object too, that this connection may.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if it is not sealed (any more).
    pub fn right(&self) -> Result<[u8; 32], PoolError> {
        self.check_held()?;
        match self.session().call(&Request::Right { handle: self.handle() })? {
            Reply::Right(right) => Ok(right),
            other => Err(unexpected("Right", &other)),
        }
    }

    /// The file behind the object, for mapping. A cache file ([`Mapped::armed`]) must be armed before it is touched:
    /// `hinterland-region` does that.
    ///
    /// # Errors
    /// [`PoolError::Refused`] for a region of which pages lie elsewhere, and for a handle to a part.
    pub fn file(&self) -> Result<(Mapped, OwnedFd), PoolError> {
        self.check_held()?;
        self.opening.file(self.handle())
    }

    /// The memory of an object that the local node holds, mapped into this process: loads and stores, no requests. Pages of a
    /// region do not move to other nodes for as long as anybody has it mapped so.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if the object lies in another rack, or this is a handle to a part.
    ///
    /// ```no_run
    /// # use hinterland_pool::{Pool, PutOptions};
    /// # use hinterland_types::ObjectName;
    /// # let pool = Pool::connect(None)?;
    /// # let name = ObjectName::parse("models/mapped")?;
    /// # pool.put(&mut &[1; 100_000][..], &name, &PutOptions::default(), &mut |_| {})?;
    /// let object = pool.open_object(&name)?;
    /// let mut header = [0; 16];
    /// // No request: a load from the node's own memory.
    /// object.memory()?.read_at(0, &mut header)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn memory(&self) -> Result<&SharedSlice, PoolError> {
        self.check_held()?;
        if self.capability.is_whole() {
            return self.opening.memory();
        }
        if let Some(slice) = self.own.get() {
            return Ok(slice);
        }
        let slice = self.opening.map(self.handle(), self.rights())?;
        Ok(self.own.get_or_init(|| slice))
    }

    /// Reads `into.len()` bytes at `offset`: by loads if the local node holds them, else from a home, falling over to
    /// the next when one fails. The bytes are not compared with their checksums, which are those of whole blocks:
    /// [`checked`](Self::checked) does that.
    ///
    /// # Errors
    /// [`PoolError::Unreachable`] with one reason a home.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), PoolError> {
        self.check(offset, into.len() as u64, Rights::READ)?;
        self.opening.read_at(offset, into)
    }

    /// Has a home keep the bytes of a sealed object of another rack while this is open, also if it is removed or replaced. An object that lies
    /// here is kept anyway.
    ///
    /// # Errors
    /// [`PoolError::Refused`]: `ENOENT` if it was removed just now, `EIO` if no home answers.
    pub fn hold(&self) -> Result<(), PoolError> {
        self.check_held()?;
        // For all who share the opening: a part alone is not kept.
        match self.session().call(&Request::Hold { handle: self.opened().handle })? {
            Reply::Done => Ok(()),
            other => Err(unexpected("Done", &other)),
        }
    }

    /// Reads `into.len()` bytes at `offset` of a sealed object through the cache of this host: what other programs of the
    /// same user have read or mapped is not fetched again. For small reads at random [`read_at`](Self::read_at) is quicker.
    ///
    /// # Errors
    /// [`PoolError::Refused`] with what every home said if bytes are lost.
    pub fn read_cached(&self, offset: u64, into: &mut [u8]) -> Result<(), PoolError> {
        self.check(offset, into.len() as u64, Rights::READ)?;
        self.session().read(self.handle(), offset, into)
    }

    /// Writes bytes at `offset` of a region: by stores if the local node holds it, else to its home.
    ///
    /// # Errors
    /// [`PoolError::Refused`] for a sealed object, or a handle that does not allow it.
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), PoolError> {
        self.check(offset, from.len() as u64, Rights::WRITE)?;
        self.opening.write_at(offset, from)
    }

    /// Adds to the 8-byte word at `offset` of a region, wrapping, wherever it lies; returns what it was.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at); `EINVAL` for an offset that is no multiple of 8. After a lost connection nobody knows
    /// whether it happened.
    pub fn fetch_and_add(&self, offset: u64, addend: u64) -> Result<u64, PoolError> {
        self.word(offset, WordOperation::Add(addend))
    }

    /// Replaces the 8-byte word at `offset` of a region if it is `expected`, wherever it lies; returns what it was.
    ///
    /// # Errors
    /// As [`fetch_and_add`](Self::fetch_and_add).
    pub fn compare_and_swap(&self, offset: u64, expected: u64, desired: u64) -> Result<u64, PoolError> {
        self.word(offset, WordOperation::Swap { expected, desired })
    }

    fn word(&self, offset: u64, operation: WordOperation) -> Result<u64, PoolError> {
        self.check(offset, 8, Rights::READ | Rights::WRITE)?;
        self.opening.word(offset, operation)
    }

    /// The pages of a region; `None` for a sealed object.
    pub(crate) fn pages(&self) -> Result<Option<&Arc<RegionPages>>, PoolError> {
        self.opening.pages()
    }

    pub(crate) fn attach(&self, address: &str) -> Result<Attached, PoolError> {
        self.opening.attach(address)
    }

    fn check(&self, offset: u64, bytes: u64, needed: Rights) -> Result<(), PoolError> {
        self.capability.check(&self.info().name, offset, bytes, needed)
    }

    fn check_held(&self) -> Result<(), PoolError> {
        self.capability.check_held(&self.info().name)
    }
}
