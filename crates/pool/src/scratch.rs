//! Memory of the pool that goes with the session: room in a home that is written and read in place and never gets a name that others see.
//!
//! To the pool it is a put that is never sealed. So the room is free again when the session ends, in whatever way, in every rack, by the
//! same path as that of a put whose program died; and until then no other program can find it.

use crate::remote::{Attached, call_for_handle};
use crate::session::unexpected;
use crate::{Pool, PoolError, PutOptions};
use hinterland_fabric::rdma::RdmaEndpoint;
use hinterland_fabric::{Endpoint, FabricError};
use hinterland_os::{MapOptions, MemoryFile, SharedSlice};
use hinterland_proto::control::{Placement, PutStarted, PutTarget, Reply, Request};
use hinterland_types::{ByteRange, Handle, NodeId, ObjectId, ObjectName};
use std::sync::{Arc, Mutex, PoisonError};

/// Room in one home. Several threads may use it at once; who reads what another one writes at the same time gets some of both.
pub struct Scratch {
    pool: Pool,
    object: ObjectId,
    bytes: u64,
    target: PutTarget,
    place: Place,
    /// The session gives it back.
    is_left: bool,
}

enum Place {
    /// On this host.
    Here(SharedSlice),
    There(Mutex<Option<Attached>>),
}

impl Pool {
    /// Takes `bytes` bytes, whole pages of 2 MiB, at a home that `placement` chooses, until the value is dropped or the session ends.
    /// `name` is taken as long and shown to nobody.
    ///
    /// # Errors
    /// [`PoolError::Refused`] with `ENOSPC` if there is no room, with `EEXIST` if the name is taken.
    ///
    /// ```no_run
    /// # use hinterland_pool::Pool;
    /// # use hinterland_proto::control::Placement;
    /// # use hinterland_types::ObjectName;
    /// # let pool = Pool::connect(None)?;
    /// let room = pool.scratch(&ObjectName::parse("scratch/1")?, 2 << 20, Placement::Policy)?;
    /// room.write_at(4096, b"until this value is dropped")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scratch(&self, name: &ObjectName, bytes: u64, placement: Placement) -> Result<Scratch, PoolError> {
        let options = PutOptions { bytes: Some(bytes), copies: 1, placement };
        let request = Request::PutBegin {
            name: name.clone(),
            bytes: options.bytes,
            copies: options.copies,
            placement: options.placement,
        };
        let PutStarted { object, mut targets } = match self.session().call(&request)? {
            Reply::PutStarted(started) => started,
            other => return Err(unexpected("PutStarted", &other)),
        };
        let Some(target) = targets.pop() else { return Err(PoolError::Closed) };
        let mut scratch = Scratch {
            pool: self.clone(),
            object,
            bytes,
            target,
            place: Place::There(Mutex::default()),
            is_left: false,
        };
        match scratch.target.handle {
            Some(handle) => scratch.place = Place::Here(scratch.map(handle)?),
            None => drop(scratch.attach()?),
        }
        Ok(scratch)
    }
}

impl Scratch {
    /// Length in bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The node that has it.
    pub const fn home(&self) -> NodeId {
        self.target.home.node
    }

    /// Whether it is memory of this host, which is loaded and stored without asking anybody.
    pub const fn is_here(&self) -> bool {
        matches!(self.place, Place::Here(_))
    }

    /// Whether the node has ended the session. What is on this host can still be read; the rest goes within a lease.
    pub fn is_lost(&self) -> bool {
        self.pool.session().is_lost()
    }

    /// Leaves it to the end of the session: nobody waits for a home that does not answer.
    pub fn leave(mut self) {
        self.is_left = true;
    }

    /// Reads bytes at an offset.
    ///
    /// # Errors
    /// [`PoolError::Os`] outside of it, or if the file was cut off; [`PoolError`] if the home does not answer or has given it up.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), PoolError> {
        match &self.place {
            Place::Here(memory) => Ok(memory.read_at(offset as usize, into)?),
            Place::There(_) => {
                let run = crate::session::range(offset, into.len() as u64)?;
                self.there(|endpoint, handle| endpoint.read(handle, &[run], into))
            }
        }
    }

    /// Writes bytes at an offset.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), PoolError> {
        match &self.place {
            Place::Here(memory) => Ok(memory.write_at(offset as usize, from)?),
            Place::There(_) => {
                let run: ByteRange = crate::session::range(offset, from.len() as u64)?;
                self.there(|endpoint, handle| endpoint.write(handle, &[run], from))
            }
        }
    }

    /// An operation at the home; after a lost connection once more over another one.
    fn there(
        &self,
        mut operation: impl FnMut(&RdmaEndpoint, Handle) -> Result<(), FabricError>,
    ) -> Result<(), PoolError> {
        let home = self.attach()?;
        match operation(&home.endpoint, home.handle) {
            Ok(()) => return Ok(()),
            Err(error @ FabricError::Remote { .. }) => return Err(error.into()),
            Err(_) => {}
        }
        if let Place::There(attached) = &self.place {
            *attached.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        self.pool.remotes().forget(&self.target.home.address);
        let home = self.attach()?;
        Ok(operation(&home.endpoint, home.handle)?)
    }

    fn attach(&self) -> Result<Attached, PoolError> {
        let Place::There(attached) = &self.place else { return Err(PoolError::Closed) };
        let known = attached.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(known) = known {
            return Ok(known);
        }
        let endpoint = self.pool.remotes().endpoint(&self.target.home.address)?;
        let request = Request::PutAttach { object: self.object, ticket: self.target.ticket };
        let handle = call_for_handle(&endpoint, &request)?;
        let made = self.pool.remotes().attached(endpoint, handle, &self.target.home.address);
        *attached.lock().unwrap_or_else(PoisonError::into_inner) = Some(made.clone());
        Ok(made)
    }

    fn map(&self, handle: Handle) -> Result<SharedSlice, PoolError> {
        match self.pool.session().call_with(&Request::Map { handle }, &[])? {
            (Reply::Mapped(mapped), mut descriptors) if descriptors.len() == 1 => {
                // The length was just checked.
                let file = MemoryFile::from_descriptor(descriptors.remove(0))?;
                let options =
                    MapOptions { write: true, guarded: true, skip_fork: true, ..MapOptions::default() };
                let mapping = file.map(0, mapped.file_bytes as usize, options)?;
                Ok(Arc::new(mapping).slice().sub(0, self.bytes as usize)?)
            }
            (other, _) => Err(unexpected("Mapped with a descriptor", &other)),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.is_left {
            return;
        }
        // A node that is gone gives it up by itself.
        let _ = self.pool.session().call(&Request::PutAbort { object: self.object });
    }
}
