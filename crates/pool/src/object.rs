//! An open object: reads that fall over to another home, writes to a region, its file for mapping.

use crate::remote::call_for_handle;
use crate::session::{range, unexpected};
use crate::{Pool, PoolError};
use hinterland_fabric::tcp::TcpEndpoint;
use hinterland_fabric::{Endpoint, FabricError};
use hinterland_os::{MapOptions, Mapping, MemoryFile, SharedSlice};
use hinterland_proto::control::{Mapped, ObjectInfo, Opened, Reply, Request};
use hinterland_types::{ByteRange, Handle, Rights};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// An open object or region.
pub struct Object {
    pool: Pool,
    opened: Opened,
    local: OnceLock<SharedSlice>,
    remote: Mutex<Option<Attached>>,
}

#[derive(Clone)]
struct Attached {
    endpoint: Arc<TcpEndpoint>,
    handle: Handle,
    address: String,
}

impl Object {
    pub(crate) const fn new(pool: Pool, opened: Opened) -> Self {
        Self { pool, opened, local: OnceLock::new(), remote: Mutex::new(None) }
    }

    /// What it is.
    pub const fn info(&self) -> &ObjectInfo {
        &self.opened.info
    }

    /// The session that it was opened in.
    pub const fn session(&self) -> &Arc<crate::Session> {
        self.pool.session()
    }

    /// The capability in the local node's table.
    pub const fn handle(&self) -> Handle {
        self.opened.handle
    }

    /// Whether the local node holds the bytes.
    pub const fn is_local(&self) -> bool {
        self.opened.local
    }

    /// What shows, to others who may read the sealed object too, that this connection may.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if it is not sealed (any more).
    pub fn right(&self) -> Result<[u8; 32], PoolError> {
        match self.pool.session().call(&Request::Right { handle: self.opened.handle })? {
            Reply::Right(right) => Ok(right),
            other => Err(unexpected("Right", &other)),
        }
    }

    /// The file behind the object, for mapping. A cache file ([`Mapped::armed`]) must be armed before it is touched:
    /// `hinterland-region` does that.
    ///
    /// # Errors
    /// [`PoolError::Refused`] for a region of another rack.
    pub fn file(&self) -> Result<(Mapped, OwnedFd), PoolError> {
        let request = Request::Map { handle: self.opened.handle };
        match self.pool.session().call_with(&request, &[])? {
            (Reply::Mapped(mapped), mut descriptors) if descriptors.len() == 1 => {
                // The length was just checked.
                Ok((mapped, descriptors.remove(0)))
            }
            (other, _) => Err(unexpected("Mapped with a descriptor", &other)),
        }
    }

    /// The memory of an object that the local node holds, mapped into this process: loads and stores, no requests.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if the object lies in another rack.
    pub fn memory(&self) -> Result<&SharedSlice, PoolError> {
        if let Some(slice) = self.local.get() {
            return Ok(slice);
        }
        const ENOTSUP: i32 = 95;
        if !self.opened.local {
            let text = format!(
                "{} lies in another rack (hint: read it with read_at, or map it as a region)",
                self.info().name
            );
            return Err(PoolError::Refused { code: ENOTSUP, text });
        }
        let (mapped, descriptor) = self.file()?;
        let file = MemoryFile::from_descriptor(descriptor)?;
        let write = mapped.writable && self.opened.rights.allows(Rights::WRITE);
        let mapping: Mapping =
            file.map(0, mapped.file_bytes as usize, MapOptions { write, ..MapOptions::default() })?;
        let slice = Arc::new(mapping).slice().sub(0, mapped.bytes as usize)?;
        Ok(self.local.get_or_init(|| slice))
    }

    /// Reads `into.len()` bytes at `offset`: by loads if the local node holds them, else from a home, falling over to
    /// the next when one fails.
    ///
    /// # Errors
    /// [`PoolError::Unreachable`] with one reason a home.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), PoolError> {
        if self.opened.local {
            return Ok(self.memory()?.read_at(offset as usize, into)?);
        }
        let run = self.within(offset, into.len() as u64)?;
        self.on_a_home(|attached| Ok(attached.endpoint.read(attached.handle, &[run], into)?))
    }

    /// Reads `into.len()` bytes at `offset` of a sealed object through the cache of this host: what other programs of the
    /// same user have read or mapped is not fetched again. For small reads at random [`read_at`](Self::read_at) is quicker.
    ///
    /// # Errors
    /// [`PoolError::Refused`] with what every home said if bytes are lost.
    pub fn read_cached(&self, offset: u64, into: &mut [u8]) -> Result<(), PoolError> {
        self.pool.session().read(self.opened.handle, offset, into)
    }

    /// Writes bytes at `offset` of a region: by stores if the local node holds it, else to its home.
    ///
    /// # Errors
    /// [`PoolError::Refused`] for a sealed object.
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), PoolError> {
        if self.opened.local {
            return Ok(self.memory()?.write_at(offset as usize, from)?);
        }
        let run = self.within(offset, from.len() as u64)?;
        self.on_a_home(|attached| Ok(attached.endpoint.write(attached.handle, &[run], from)?))
    }

    /// Replaces the word at `offset` of a region if it is `expected`; returns what it was.
    ///
    /// # Errors
    /// As [`Pool::compare_and_swap`].
    pub fn compare_and_swap(&self, offset: u64, expected: u64, desired: u64) -> Result<u64, PoolError> {
        if self.opened.local {
            return Ok(self.memory()?.compare_swap_u64(offset as usize, expected, desired)?);
        }
        self.once(|attached| attached.endpoint.compare_and_swap(attached.handle, offset, expected, desired))
    }

    /// Adds to the word at `offset` of a region, wrapping; returns what it was.
    ///
    /// # Errors
    /// As [`Pool::compare_and_swap`].
    pub fn fetch_and_add(&self, offset: u64, addend: u64) -> Result<u64, PoolError> {
        if self.opened.local {
            return Ok(self.memory()?.fetch_add_u64(offset as usize, addend)?);
        }
        self.once(|attached| attached.endpoint.fetch_and_add(attached.handle, offset, addend))
    }

    /// Runs an operation that must not run twice: it is tried again only if the home has said that it did not run it.
    fn once(&self, operation: impl Fn(&Attached) -> Result<u64, FabricError>) -> Result<u64, PoolError> {
        let current = self.remote.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(attached) = current {
            match operation(&attached) {
                Ok(before) => return Ok(before),
                // The handle was of a session that is gone; a new one may do.
                Err(FabricError::Remote { .. }) => {}
                Err(error) => {
                    *self.remote.lock().unwrap_or_else(PoisonError::into_inner) = None;
                    self.pool.remotes().forget(&attached.address);
                    return Err(error.into());
                }
            }
        }
        let home = self.info().homes.first().ok_or_else(|| PoolError::Unreachable {
            name: self.info().name.to_string(),
            reasons: "it has no home that is up".to_owned(),
        })?;
        let attached = self.attach(&home.address)?;
        let before = operation(&attached)?;
        *self.remote.lock().unwrap_or_else(PoisonError::into_inner) = Some(attached);
        Ok(before)
    }

    fn within(&self, offset: u64, bytes: u64) -> Result<ByteRange, PoolError> {
        const EINVAL: i32 = 22;
        ByteRange::within(offset, bytes, self.info().bytes)
            .map_err(|error| PoolError::Refused { code: EINVAL, text: error.to_string() })
            .and_then(|run| range(run.offset(), run.bytes()))
    }

    /// Tries the connection in use, then every home.
    fn on_a_home(
        &self,
        mut operation: impl FnMut(&Attached) -> Result<(), PoolError>,
    ) -> Result<(), PoolError> {
        let mut reasons = Vec::new();
        let current = self.remote.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(attached) = current {
            match operation(&attached) {
                Ok(()) => return Ok(()),
                Err(error) => {
                    self.pool.remotes().forget(&attached.address);
                    reasons.push(format!("{}: {error}", attached.address));
                }
            }
        }
        for home in &self.info().homes {
            let tried = self.attach(&home.address).and_then(|attached| {
                operation(&attached)?;
                Ok(attached)
            });
            match tried {
                Ok(attached) => {
                    *self.remote.lock().unwrap_or_else(PoisonError::into_inner) = Some(attached);
                    return Ok(());
                }
                Err(error) => {
                    self.pool.remotes().forget(&home.address);
                    reasons.push(format!("{}: {error}", home.address));
                }
            }
        }
        Err(PoolError::Unreachable { name: self.info().name.to_string(), reasons: reasons.join("; ") })
    }

    fn attach(&self, address: &str) -> Result<Attached, PoolError> {
        let endpoint = self.pool.remotes().endpoint(address)?;
        let request = Request::OpenObject { object: self.info().object, rights: self.opened.rights };
        let handle = call_for_handle(&endpoint, &request)?;
        Ok(Attached { endpoint, handle, address: address.to_owned() })
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // A session that is gone has taken the capability with it.
        let _ = self.pool.session().call(&Request::Close { handle: self.opened.handle });
    }
}
