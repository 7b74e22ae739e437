//! What all handles of one opening share: memory, the pages of a region, and the way to homes in other racks.
//!
//! Whoever gets here has been asked for its rights: [`Object`](super::Object) does that.

use super::capability::Capability;
use crate::region::{Buffer, RegionPages, WordOperation, has_pages};
use crate::remote::{Attached, call_for_handle};
use crate::session::{range, unexpected};
use crate::{Pool, PoolError};
use hinterland_fabric::{Endpoint, FabricError};
use hinterland_os::{MapOptions, Mapping, MemoryFile, SharedSlice};
use hinterland_proto::control::{Home, Mapped, ObjectInfo, ObjectState, Opened, Reply, Request};
use hinterland_types::{ByteRange, Handle, Rights};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

const EACCES: i32 = 13;

/// So many bytes that came from homes in other racks are told the node at once, which copies what is read a lot: a message for each
/// is a small part of what they took.
const TOLD_BYTES: u64 = 16 << 20;
/// Fewer than so many are not told at all.
const TOLD_BYTES_MIN: u64 = 64 << 10;

/// What opening an object gave, and what came of it.
pub struct Opening {
    pub pool: Pool,
    pub opened: Opened,
    local: OnceLock<SharedSlice>,
    pages: OnceLock<Arc<RegionPages>>,
    remote: Mutex<Option<Attached>>,
    /// Bytes that came from homes and that the node was not told of.
    fetched_bytes: AtomicU64,
    /// The handle to all of it, which is used here: given back behind everything else.
    _whole: Arc<Capability>,
}

/// What came of a first read.
enum First {
    /// The bytes are there, and the handle for the next.
    Done,
    /// It is not the first, or only the handle came.
    Other,
    /// The home at this address did not do it.
    Failed(String, PoolError),
}

impl Opening {
    pub const fn new(pool: Pool, opened: Opened, whole: Arc<Capability>) -> Self {
        Self {
            pool,
            opened,
            local: OnceLock::new(),
            pages: OnceLock::new(),
            remote: Mutex::new(None),
            fetched_bytes: AtomicU64::new(0),
            _whole: whole,
        }
    }

    pub const fn info(&self) -> &ObjectInfo {
        &self.opened.info
    }

    /// The file behind the object, by one of its handles.
    pub fn file(&self, handle: Handle) -> Result<(Mapped, OwnedFd), PoolError> {
        match self.pool.session().call_with(&Request::Map { handle }, &[])? {
            (Reply::Mapped(mapped), mut descriptors) if descriptors.len() == 1 => {
                // The length was just checked.
                Ok((mapped, descriptors.remove(0)))
            }
            (other, _) => Err(unexpected("Mapped with a descriptor", &other)),
        }
    }

    /// The memory, mapped once for all who have all rights.
    pub fn memory(&self) -> Result<&SharedSlice, PoolError> {
        if let Some(slice) = self.local.get() {
            return Ok(slice);
        }
        let slice = self.map(self.opened.handle, self.opened.rights)?;
        Ok(self.local.get_or_init(|| slice))
    }

    /// Maps the memory with the rights of a handle.
    pub fn map(&self, handle: Handle, rights: Rights) -> Result<SharedSlice, PoolError> {
        const ENOTSUP: i32 = 95;
        // The node says whether all pages of a region are here now.
        if !self.opened.local && !has_pages(self.info()) {
            let text = format!(
                "{} lies in another rack (hint: read it with read_at, or map it as a region)",
                self.info().name
            );
            return Err(PoolError::Refused { code: ENOTSUP, text });
        }
        let (mapped, descriptor) = self.file(handle)?;
        let file = MemoryFile::from_descriptor(descriptor)?;
        let write = mapped.writable && rights.allows(Rights::WRITE);
        let mapping: Mapping =
            file.map(0, mapped.file_bytes as usize, MapOptions { write, ..MapOptions::default() })?;
        Ok(Arc::new(mapping).slice().sub(0, mapped.bytes as usize)?)
    }

    /// Reads by loads if the local node holds the bytes, else from a home, falling over to the next when one fails.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), PoolError> {
        if let Some(pages) = self.pages()? {
            return pages.access(&self.pool, &self.opened, offset, Buffer::Into(into));
        }
        if self.opened.local {
            return Ok(self.memory()?.read_at(offset as usize, into)?);
        }
        let run = self.within(offset, into.len() as u64)?;
        let first = match self.info().state {
            ObjectState::Sealed => self.fetch_first(run, into),
            _ => First::Other,
        };
        let failed = match first {
            First::Done => {
                self.count_fetched(into.len() as u64);
                return Ok(());
            }
            First::Failed(address, error) => Some((address, error)),
            First::Other => None,
        };
        self.on_a_home(failed, |attached| {
            self.pool.remotes().tallies.read();
            Ok(attached.endpoint.read(attached.handle, &[run], into)?)
        })?;
        self.count_fetched(into.len() as u64);
        Ok(())
    }

    /// Counts bytes that came from a home past the node, and tells the node of them when they are many.
    fn count_fetched(&self, bytes: u64) {
        // Relaxed: a counter that nothing is ordered by.
        if self.fetched_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes >= TOLD_BYTES {
            self.tell_fetched(TOLD_BYTES);
        }
    }

    fn tell_fetched(&self, bytes_min: u64) {
        // Relaxed: as above.
        let bytes = self.fetched_bytes.swap(0, Ordering::Relaxed);
        if bytes >= bytes_min {
            // A node that does not hear it makes a copy later, or none.
            let _ = self.pool.session().call(&Request::Fetched { handle: self.opened.handle, bytes });
        }
    }

    /// The first read of an object: by a handle that an earlier `Object` has learned, or with a question whose answer brings the handle and,
    /// where that is best, the bytes.
    fn fetch_first(&self, run: ByteRange, into: &mut [u8]) -> First {
        let is_attached = self.remote.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if is_attached {
            return First::Other;
        }
        let remotes = self.pool.remotes();
        if let Some(known) = remotes.known(self.info().object) {
            remotes.tallies.read();
            match known.endpoint.read(known.handle, &[run], into) {
                Ok(()) => {
                    remotes.tallies.knew();
                    self.use_from_here(known);
                    return First::Done;
                }
                Err(error) if is_answer(&error) => remotes.forget_handle(self.info().object, &known),
                Err(error) => {
                    remotes.forget(&known.address);
                    return First::Failed(known.address, error.into());
                }
            }
        }
        let Some(home) = self.info().homes.iter().find(|home| home.up) else { return First::Other };
        let (object, offset) = (self.info().object, run.offset());
        let question = |bytes| Request::FetchObject { object, offset, bytes, keep: true };
        match remotes.ask(&home.address, question, into) {
            Ok((attached, is_filled)) => {
                remotes.learn(object, &attached);
                self.use_from_here(attached);
                if is_filled { First::Done } else { First::Other }
            }
            // It answered, if with a refusal: attaching tells why, in words.
            Err(PoolError::Fabric(error)) if is_answer(&error) => First::Other,
            Err(error) => {
                remotes.forget(&home.address);
                First::Failed(home.address.clone(), error)
            }
        }
    }

    /// Reads go by this handle; one that was there is left.
    fn use_from_here(&self, attached: Attached) {
        let before = self.remote.lock().unwrap_or_else(PoisonError::into_inner).replace(attached);
        if let Some(before) = before {
            self.pool.remotes().leave(self.info().object, before);
        }
    }

    /// A read by a handle failed. What the home refuses is wrong with the handle, all else with the connection.
    fn failed(&self, attached: &Attached, error: &PoolError) {
        match error {
            PoolError::Fabric(error) if is_answer(error) => {
                self.pool.remotes().forget_handle(self.info().object, attached);
            }
            _ => self.pool.remotes().forget(&attached.address),
        }
    }

    /// Writes to a region.
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), PoolError> {
        if let Some(pages) = self.pages()? {
            return pages.access(&self.pool, &self.opened, offset, Buffer::From(from));
        }
        let text = format!(
            "{} is sealed: it can be read and nothing else (hint: put a new object)",
            self.info().name
        );
        Err(PoolError::Refused { code: EACCES, text })
    }

    /// An atomic operation on a word of a region.
    pub fn word(&self, offset: u64, operation: WordOperation) -> Result<u64, PoolError> {
        let Some(pages) = self.pages()? else {
            let text = format!(
                "{} is sealed: it can be read and nothing else (hint: use a region)",
                self.info().name
            );
            return Err(PoolError::Refused { code: EACCES, text });
        };
        if !self.opened.rights.allows(Rights::READ | Rights::WRITE) {
            let text = format!("{} was not opened for reading and writing", self.info().name);
            return Err(PoolError::Refused { code: EACCES, text });
        }
        pages.word(&self.pool, &self.opened, offset, operation)
    }

    /// The pages of a region; `None` for a sealed object.
    pub fn pages(&self) -> Result<Option<&Arc<RegionPages>>, PoolError> {
        if !has_pages(self.info()) {
            return Ok(None);
        }
        if let Some(pages) = self.pages.get() {
            return Ok(Some(pages));
        }
        let pages = Arc::new(RegionPages::open(&self.pool, &self.opened)?);
        Ok(Some(self.pages.get_or_init(|| pages)))
    }

    fn within(&self, offset: u64, bytes: u64) -> Result<ByteRange, PoolError> {
        const EINVAL: i32 = 22;
        ByteRange::within(offset, bytes, self.info().bytes)
            .map_err(|error| PoolError::Refused { code: EINVAL, text: error.to_string() })
            .and_then(|run| range(run.offset(), run.bytes()))
    }

    /// Tries the connection in use, then every home, the one that has failed after the others. One that was waited for in vain is not waited for
    /// again.
    fn on_a_home(
        &self,
        failed: Option<(String, PoolError)>,
        mut operation: impl FnMut(&Attached) -> Result<(), PoolError>,
    ) -> Result<(), PoolError> {
        let (mut reasons, mut silent) = (Vec::new(), None);
        let last = failed.map(|(address, error)| {
            if is_silence(&error) {
                reasons.push(format!("{address}: {error}"));
                silent = Some(address.clone());
            }
            address
        });
        let current = self.remote.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(attached) = current {
            match operation(&attached) {
                Ok(()) => return Ok(()),
                Err(error) => {
                    self.failed(&attached, &error);
                    reasons.push(format!("{}: {error}", attached.address));
                    silent = is_silence(&error).then_some(attached.address).or(silent);
                }
            }
        }
        let is_last = |home: &&Home| Some(&home.address) == last.as_ref();
        let (later, sooner): (Vec<_>, Vec<_>) = self.info().homes.iter().partition(is_last);
        for home in sooner.into_iter().chain(later) {
            if silent.as_ref() == Some(&home.address) {
                continue;
            }
            let tried = self.attach(&home.address).and_then(|attached| {
                operation(&attached)?;
                Ok(attached)
            });
            match tried {
                Ok(attached) => {
                    if matches!(self.info().state, ObjectState::Sealed) {
                        self.pool.remotes().learn(self.info().object, &attached);
                    }
                    self.use_from_here(attached);
                    return Ok(());
                }
                Err(error) => {
                    self.pool.remotes().forget(&home.address);
                    reasons.push(format!("{}: {error}", home.address));
                }
            }
        }
        if reasons.is_empty() {
            reasons.push("no node has a copy any more".to_owned());
        }
        Err(PoolError::Unreachable { name: self.info().name.to_string(), reasons: reasons.join("; ") })
    }

    pub fn attach(&self, address: &str) -> Result<Attached, PoolError> {
        let endpoint = self.pool.remotes().endpoint(address)?;
        self.pool.remotes().tallies.asked();
        let request = Request::OpenObject { object: self.info().object, rights: self.opened.rights };
        let handle = call_for_handle(&endpoint, &request)?;
        Ok(self.pool.remotes().attached(endpoint, handle, address))
    }
}

/// Whether the peer is there and said no.
const fn is_answer(error: &FabricError) -> bool {
    matches!(error, FabricError::Remote { .. })
}

/// Whether the peer was waited for in vain, over a connection or for one. A connection that broke may have been of before it was started again.
fn is_silence(error: &PoolError) -> bool {
    let PoolError::Fabric(error) = error else { return false };
    matches!(**error, FabricError::Timeout { .. } | FabricError::Connect { .. })
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.tell_fetched(TOLD_BYTES_MIN);
        let attached = self.remote.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(attached) = attached {
            self.pool.remotes().leave(self.info().object, attached);
        }
    }
}
