//! Putting an object: bytes stream from a reader to every home, checksums are computed on the way.

use crate::remote::call_for_handle;
use crate::session::unexpected;
use crate::{Pool, PoolError, PutOptions};
use hinterland_fabric::Endpoint;
use hinterland_fabric::tcp::TcpEndpoint;
use hinterland_proto::checksum::{BlockChecksums, digest};
use hinterland_proto::control::{ObjectInfo, PutStarted, Reply, Request};
use hinterland_types::{ByteRange, Handle, ObjectId, ObjectName};
use std::io::Read;
use std::sync::Arc;

/// Bytes that are read and sent at once.
const CHUNK_BYTES: usize = 4 << 20;
/// Most room that a stream of unknown size asks for beyond what it needs.
const GROW_BYTES_MAX: u64 = 256 << 20;

enum Target {
    Local(Handle),
    Remote(Arc<TcpEndpoint>, Handle),
}

/// A put that is given up unless it is sealed.
struct Running<'a> {
    pool: &'a Pool,
    object: ObjectId,
    targets: Vec<Target>,
    sealed: bool,
}

impl Pool {
    /// Puts all bytes of `reader` under `name`; `progress` hears how many bytes have been sent. When it returns, the
    /// object is sealed and durable in the directory; on an error nothing is left behind.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if the name is taken or there is no room, before a byte moves if the size is known;
    /// [`PoolError::Stream`] if the reader fails or has another size.
    pub fn put(
        &self,
        reader: &mut dyn Read,
        name: &ObjectName,
        options: &PutOptions,
        progress: &mut dyn FnMut(u64),
    ) -> Result<ObjectInfo, PoolError> {
        let mut running = self.begin(name, options)?;
        let mut checksums = BlockChecksums::default();
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut room = options.bytes.unwrap_or(0);
        loop {
            let filled = fill(reader, &mut chunk)?;
            if filled == 0 {
                break;
            }
            let offset = checksums.bytes();
            let end = offset + filled as u64;
            if options.bytes.is_some_and(|bytes| end > bytes) {
                return Err(wrong_size(options.bytes, end));
            }
            if end > room {
                room = running.grow(end)?;
            }
            running.send(offset, &chunk[..filled])?;
            checksums.update(&chunk[..filled]);
            progress(end);
        }
        let bytes = checksums.bytes();
        if options.bytes.is_some_and(|expected| expected != bytes) {
            return Err(wrong_size(options.bytes, bytes));
        }
        let digest = digest(bytes, &checksums.finish());
        let info = self.object(&Request::PutSeal { object: running.object, bytes, digest })?;
        running.sealed = true;
        Ok(info)
    }

    fn begin(&self, name: &ObjectName, options: &PutOptions) -> Result<Running<'_>, PoolError> {
        let request = Request::PutBegin {
            name: name.clone(),
            bytes: options.bytes,
            copies: options.copies,
            placement: options.placement.clone(),
        };
        let PutStarted { object, targets } = match self.session().call(&request)? {
            Reply::PutStarted(started) => started,
            other => return Err(unexpected("PutStarted", &other)),
        };
        let mut running = Running { pool: self, object, targets: Vec::new(), sealed: false };
        for target in targets {
            let reached = match target.handle {
                Some(handle) => Target::Local(handle),
                None => {
                    let endpoint = self.remotes().endpoint(&target.home.address)?;
                    let attach = Request::PutAttach { object, ticket: target.ticket };
                    let handle = call_for_handle(&endpoint, &attach)?;
                    Target::Remote(endpoint, handle)
                }
            };
            running.targets.push(reached);
        }
        Ok(running)
    }
}

impl Running<'_> {
    /// Asks for room for `needed` bytes and some more, so that homes are not asked for every chunk.
    fn grow(&self, needed: u64) -> Result<u64, PoolError> {
        let object = self.object;
        let generous = needed + GROW_BYTES_MAX.min(needed);
        if self.pool.done(&Request::PutGrow { object, bytes: generous }).is_ok() {
            return Ok(generous);
        }
        self.pool.done(&Request::PutGrow { object, bytes: needed })?;
        Ok(needed)
    }

    fn send(&self, offset: u64, bytes: &[u8]) -> Result<(), PoolError> {
        for target in &self.targets {
            match target {
                Target::Local(handle) => self.pool.session().write(*handle, offset, bytes)?,
                Target::Remote(endpoint, handle) => {
                    // The offset and length of a chunk that was read cannot overflow.
                    let run = ByteRange::new(offset, bytes.len() as u64).unwrap_or_default();
                    endpoint.write(*handle, &[run], bytes)?;
                }
            }
        }
        Ok(())
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.sealed {
            // A node that is gone gives the put up by itself.
            let _ = self.pool.session().call(&Request::PutAbort { object: self.object });
        }
    }
}

/// Reads until the chunk is full or the input ends.
fn fill(reader: &mut dyn Read, chunk: &mut [u8]) -> Result<usize, PoolError> {
    let mut filled = 0;
    while filled < chunk.len() {
        match reader.read(&mut chunk[filled..]) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(source) => return Err(PoolError::Stream { what: "reading the input".to_owned(), source }),
        }
    }
    Ok(filled)
}

fn wrong_size(expected: Option<u64>, found: u64) -> PoolError {
    let text = format!("{} bytes were announced, {found} came", expected.unwrap_or(0));
    let source = std::io::Error::new(std::io::ErrorKind::UnexpectedEof, text);
    PoolError::Stream { what: "the input changed its size while it was read".to_owned(), source }
}
