//! What a handle allows: its rights, its range, and the handles that it was made from.

use crate::session::unexpected;
use crate::{PoolError, Session};
use hinterland_proto::control::{Reply, Request};
use hinterland_types::{ByteRange, Handle, ObjectName, Rights};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const EBADF: i32 = 9;
const EACCES: i32 = 13;
const EINVAL: i32 = 22;
const EMLINK: i32 = 31;

/// So many handles may be made each from the one before: every access looks at all of them, and a program that hands a part on
/// to a part of itself needs a few.
const GENERATIONS_MAX: u32 = 32;

/// A handle in the node's table. It is given back when the last one who needs it is gone: those who use it, and the handles that
/// were made from it.
pub struct Capability {
    session: Arc<Session>,
    /// In the node's table.
    pub handle: Handle,
    /// What it allows.
    pub rights: Rights,
    /// Bytes of the object that it reaches.
    pub range: ByteRange,
    parent: Option<Arc<Self>>,
    generation: u32,
    is_revoked: AtomicBool,
}

impl Capability {
    /// What opening an object gave.
    pub const fn opened(session: Arc<Session>, handle: Handle, rights: Rights, range: ByteRange) -> Self {
        let is_revoked = AtomicBool::new(false);
        Self { session, handle, rights, range, parent: None, generation: 1, is_revoked }
    }

    /// Whether it is all that opening gave.
    pub const fn is_whole(&self) -> bool {
        self.parent.is_none()
    }

    /// Makes a weaker one.
    ///
    /// # Errors
    /// [`PoolError::Refused`]: `EACCES` for rights that this one lacks, `EINVAL` for none or for bytes that it does not reach, `EBADF` if
    /// it was revoked, `EMLINK` if too many were made each from the one before.
    pub fn diminish(
        self: &Arc<Self>,
        name: &ObjectName,
        rights: Rights,
        range: ByteRange,
    ) -> Result<Self, PoolError> {
        self.check_held(name)?;
        if rights == Rights::NONE {
            let text = format!("a handle to {name} that allows nothing is of no use (hint: ask for a right)");
            return Err(PoolError::Refused { code: EINVAL, text });
        }
        self.check_rights(name, rights)?;
        self.check_range(name, range.offset(), range.bytes())?;
        if self.generation == GENERATIONS_MAX {
            let text = format!(
                "{GENERATIONS_MAX} handles to {name} were made each from the one before, the most there may be (hint: make this one from an earlier one)"
            );
            return Err(PoolError::Refused { code: EMLINK, text });
        }
        let request = Request::Diminish { handle: self.handle, rights, range };
        let handle = match self.session.call(&request)? {
            Reply::Granted { handle } => handle,
            other => return Err(unexpected("Granted", &other)),
        };
        let (session, parent) = (Arc::clone(&self.session), Some(Arc::clone(self)));
        let generation = self.generation + 1;
        Ok(Self { session, handle, rights, range, parent, generation, is_revoked: AtomicBool::new(false) })
    }

    /// Takes it back, and all that were made from it. The second time nothing happens.
    ///
    /// # Errors
    /// What became of the session; it is revoked for this program nevertheless.
    pub fn revoke(&self) -> Result<(), PoolError> {
        let was_held = !self.is_gone();
        // Release: pairs with the Acquire in `is_gone`.
        if self.is_revoked.swap(true, Ordering::AcqRel) || !was_held {
            return Ok(());
        }
        match self.session.call(&Request::Close { handle: self.handle }) {
            Ok(Reply::Done) => Ok(()),
            // Another thread has revoked what it was made from at this moment.
            Err(PoolError::Refused { .. }) if self.is_above_gone() => Ok(()),
            Ok(other) => Err(unexpected("Done", &other)),
            Err(error) => Err(error),
        }
    }

    /// Checks an access to bytes of the object. Of one that is whole, whoever does the access checks the rest.
    #[inline]
    pub fn check(&self, name: &ObjectName, offset: u64, bytes: u64, needed: Rights) -> Result<(), PoolError> {
        self.check_held(name)?;
        if self.is_whole() {
            return Ok(());
        }
        self.check_rights(name, needed)?;
        self.check_range(name, offset, bytes)
    }

    /// Refuses if it was revoked, or one that it was made from.
    #[inline]
    pub fn check_held(&self, name: &ObjectName) -> Result<(), PoolError> {
        if self.is_gone() {
            let text = format!(
                "this handle to {name} was revoked, or one that it was made from (hint: ask whoever gave it for another, or open {name} again)"
            );
            return Err(PoolError::Refused { code: EBADF, text });
        }
        Ok(())
    }

    fn check_rights(&self, name: &ObjectName, needed: Rights) -> Result<(), PoolError> {
        if self.rights.allows(needed) {
            return Ok(());
        }
        let text = format!(
            "this handle to {name} allows {}, and {needed} is needed (hint: use the handle that it was made from, or open {name} with more rights)",
            self.rights
        );
        Err(PoolError::Refused { code: EACCES, text })
    }

    fn check_range(&self, name: &ObjectName, offset: u64, bytes: u64) -> Result<(), PoolError> {
        if ByteRange::new(offset, bytes).is_ok_and(|range| self.range.contains(range)) {
            return Ok(());
        }
        let text = format!(
            "{bytes} bytes at {offset} of {name} are not all among those that this handle reaches, {} to {} (hint: offsets are those of the whole object)",
            self.range.offset(),
            self.range.end()
        );
        Err(PoolError::Refused { code: EINVAL, text })
    }

    #[inline]
    fn is_gone(&self) -> bool {
        // Acquire: pairs with the AcqRel in `revoke`.
        self.is_revoked.load(Ordering::Acquire) || self.is_above_gone()
    }

    fn is_above_gone(&self) -> bool {
        self.parent.as_deref().is_some_and(Self::is_gone)
    }
}

impl Drop for Capability {
    fn drop(&mut self) {
        if !self.is_gone() {
            // A session that is gone has taken it along.
            let _ = self.session.call(&Request::Close { handle: self.handle });
        }
    }
}
