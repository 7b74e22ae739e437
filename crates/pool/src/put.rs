//! Putting an object: bytes stream from a reader to every home, checksums are computed on the way.

use crate::remote::{Attached, call_for_handle};
use crate::session::unexpected;
use crate::{Pool, PoolError, PutOptions};
use hinterland_fabric::Endpoint;
use hinterland_proto::checksum::{BlockChecksums, digest};
use hinterland_proto::control::{ObjectInfo, PutStarted, Reply, Request};
use hinterland_types::limits::PAGE_BYTES;
use hinterland_types::{ByteRange, Handle, ObjectId, ObjectName};
use std::io::Read;

/// `errno` of a pool without room.
const ENOSPC: i32 = 28;
/// `errno` of more than an object may have.
const EFBIG: i32 = 27;
/// `errno` of a home that does not answer.
const EHOSTUNREACH: i32 = 113;
/// Bytes that are read and sent at once.
const CHUNK_BYTES: usize = 4 << 20;
/// Room that a stream of unknown size begins with: most files are no larger, and need not ask for any more.
const FIRST_ROOM_BYTES: u64 = 64 << 10;
/// Most room that a stream of unknown size asks for beyond what it needs.
const GROW_BYTES_MAX: u64 = 256 << 20;

enum Target {
    Local(Handle),
    Remote(Attached),
}

/// A put whose bytes are handed over one after the other. It is given up, with all its room, unless it is sealed.
pub struct PutWriter {
    pool: Pool,
    object: ObjectId,
    targets: Vec<Target>,
    announced: Option<u64>,
    room: u64,
    checksums: BlockChecksums,
    /// Bytes that were written before the last rewind.
    written: u64,
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
        let mut writer = self.put_writer(name, options)?;
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let filled = fill(reader, &mut chunk)?;
            if filled == 0 {
                return writer.seal();
            }
            writer.write(&chunk[..filled])?;
            progress(writer.bytes());
        }
    }

    /// Takes a name and room, for all bytes if their number is known; the bytes are then handed over by [`PutWriter::write`].
    ///
    /// # Errors
    /// [`PoolError::Refused`] if the name is taken or there is no room.
    ///
    /// ```no_run
    /// # use hinterland_pool::{Pool, PutOptions};
    /// # use hinterland_types::ObjectName;
    /// # let pool = Pool::connect(None)?;
    /// let mut writer = pool.put_writer(&ObjectName::parse("logs/today")?, &PutOptions::default())?;
    /// for line in ["first\n", "second\n"] {
    ///     writer.write(line.as_bytes())?;
    /// }
    /// // Before this nobody sees the object; without it, nobody ever does.
    /// let info = writer.seal()?;
    /// assert_eq!(info.bytes, 13);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn put_writer(&self, name: &ObjectName, options: &PutOptions) -> Result<PutWriter, PoolError> {
        let mut room = options.bytes.unwrap_or(FIRST_ROOM_BYTES);
        let started = match self.begin_put(name, options, Some(room)) {
            Err(PoolError::Refused { code: ENOSPC, .. }) if options.bytes.is_none() => {
                room = 0;
                self.begin_put(name, options, None)
            }
            started => started,
        };
        self.attach(started?, options.bytes, room)
    }

    /// The same for bytes whose number is not known yet, where there is room for so many, and for some more if that is anywhere.
    ///
    /// # Errors
    /// As [`put_writer`](Self::put_writer); the size that `options` has is not looked at.
    pub fn put_writer_with_room(
        &self,
        name: &ObjectName,
        options: &PutOptions,
        bytes: u64,
    ) -> Result<PutWriter, PoolError> {
        let mut room = generous(bytes);
        let started = match self.begin_put(name, options, Some(room)) {
            Err(PoolError::Refused { code: ENOSPC | EFBIG, .. }) => {
                room = bytes;
                self.begin_put(name, options, Some(room))
            }
            started => started,
        };
        self.attach(started?, None, room)
    }

    /// Reaches the homes of a put that has begun.
    fn attach(&self, started: PutStarted, announced: Option<u64>, room: u64) -> Result<PutWriter, PoolError> {
        let PutStarted { object, targets } = started;
        let mut writer = PutWriter {
            pool: self.clone(),
            object,
            targets: Vec::new(),
            announced,
            room,
            checksums: BlockChecksums::default(),
            written: 0,
            sealed: false,
        };
        for target in targets {
            let reached = match target.handle {
                Some(handle) => Target::Local(handle),
                None => {
                    let endpoint = self.remotes().endpoint(&target.home.address)?;
                    let attach = Request::PutAttach { object, ticket: target.ticket };
                    let handle = call_for_handle(&endpoint, &attach)?;
                    Target::Remote(self.remotes().attached(endpoint, handle, &target.home.address))
                }
            };
            writer.targets.push(reached);
        }
        Ok(writer)
    }

    fn begin_put(
        &self,
        name: &ObjectName,
        options: &PutOptions,
        room: Option<u64>,
    ) -> Result<PutStarted, PoolError> {
        let request = Request::PutBegin {
            name: name.clone(),
            bytes: room,
            copies: options.copies,
            placement: options.placement.clone(),
        };
        match self.session().call(&request)? {
            Reply::PutStarted(started) => Ok(started),
            other => Err(unexpected("PutStarted", &other)),
        }
    }
}

impl PutWriter {
    /// The identifier that the object has and keeps.
    pub const fn object(&self) -> ObjectId {
        self.object
    }

    /// How many bytes were handed over.
    pub const fn bytes(&self) -> u64 {
        self.checksums.bytes()
    }

    /// Sends the bytes that follow to every home. After an error nothing but dropping it makes sense.
    ///
    /// # Errors
    /// [`PoolError::Refused`] with `ENOSPC` if there is no room; [`PoolError::Stream`] beyond an announced size.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), PoolError> {
        let offset = self.bytes();
        let end = offset + bytes.len() as u64;
        if self.announced.is_some_and(|announced| end > announced) {
            return Err(wrong_size(self.announced, end));
        }
        if end > self.room {
            self.room = self.grow(end)?;
        }
        self.send(offset, bytes)?;
        self.checksums.update(bytes);
        Ok(())
    }

    /// Reads back what was written; the range must lie within it.
    ///
    /// # Errors
    /// [`PoolError`] if no home answers.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), PoolError> {
        match self.targets.first() {
            Some(Target::Local(handle)) => self.pool.session().read(*handle, offset, into),
            Some(Target::Remote(home)) => {
                let run = ByteRange::new(offset, into.len() as u64).unwrap_or_default();
                Ok(home.endpoint.read(home.handle, &[run], into)?)
            }
            None => Err(PoolError::Closed),
        }
    }

    /// Gives back the name that the put has taken and takes another one, which must be free.
    ///
    /// # Errors
    /// [`PoolError::Refused`]: the put has its name still.
    pub fn rename(&mut self, from: &ObjectName, to: &ObjectName) -> Result<(), PoolError> {
        self.pool.done(&Request::PutRename { object: self.object, from: from.clone(), to: to.clone() })
    }

    /// Takes the name that another put of this node has taken, which gets the one of this put: neither is free at any moment.
    ///
    /// # Errors
    /// [`PoolError::Refused`]: each has its name still.
    pub fn exchange_names(
        &mut self,
        from: &ObjectName,
        other: ObjectId,
        to: &ObjectName,
    ) -> Result<(), PoolError> {
        let (object, from, to) = (self.object, from.clone(), to.clone());
        self.pool.done(&Request::PutExchange { object, from, other, to })
    }

    /// Starts again at the first byte; the room stays.
    pub fn rewind(&mut self) {
        self.written = self.written.max(self.bytes());
        self.checksums = BlockChecksums::default();
    }

    /// Makes sure that there is room for so many bytes, and for some more if there is.
    ///
    /// # Errors
    /// [`PoolError::Refused`] with `ENOSPC` if there is none; the put goes on with the room that it has.
    pub fn reserve(&mut self, bytes: u64) -> Result<(), PoolError> {
        if bytes > self.room {
            self.room = self.grow(bytes)?;
        }
        Ok(())
    }

    /// Whether the node that the put goes through has ended the session, as far as is known without asking it.
    pub fn is_lost(&self) -> bool {
        self.pool.session().is_lost()
    }

    /// As [`seal`](Self::seal), under a name that may be another than the one that the put took. An object that has it is
    /// removed in the same moment: whoever looks for the name finds the one or the other.
    ///
    /// # Errors
    /// As [`seal`](Self::seal).
    pub fn publish(mut self, name: &ObjectName) -> Result<ObjectInfo, PoolError> {
        let bytes = self.bytes();
        self.blank_tail()?;
        let digest = digest(bytes, &std::mem::take(&mut self.checksums).finish());
        let request = Request::PutPublish { object: self.object, bytes, digest, name: name.clone() };
        let info = self.pool.object(&request)?;
        self.sealed = true;
        self.pool.forget_addresses();
        Ok(info)
    }

    /// Zeros behind the end, where bytes from before a rewind may stand on the last page.
    fn blank_tail(&self) -> Result<(), PoolError> {
        let bytes = self.bytes();
        let end = self.written.min(bytes.next_multiple_of(PAGE_BYTES));
        if end > bytes {
            self.send(bytes, &vec![0; (end - bytes) as usize])?;
        }
        Ok(())
    }

    /// Makes the object visible. When it returns, the object is sealed and durable in the directory.
    ///
    /// # Errors
    /// [`PoolError::Stream`] if fewer bytes came than were announced; [`PoolError::Refused`] if a home holds others. Nothing
    /// is left behind then.
    pub fn seal(mut self) -> Result<ObjectInfo, PoolError> {
        let bytes = self.bytes();
        if self.announced.is_some_and(|announced| announced != bytes) {
            return Err(wrong_size(self.announced, bytes));
        }
        let digest = digest(bytes, &std::mem::take(&mut self.checksums).finish());
        let info = self.pool.object(&Request::PutSeal { object: self.object, bytes, digest })?;
        self.sealed = true;
        Ok(info)
    }

    /// Asks for room for `needed` bytes and some more, so that homes are not asked for every chunk.
    fn grow(&self, needed: u64) -> Result<u64, PoolError> {
        let object = self.object;
        let generous = generous(needed);
        match self.pool.done(&Request::PutGrow { object, bytes: generous }) {
            Ok(()) => return Ok(generous),
            // A home that was waited for in vain is not asked for less.
            Err(error @ PoolError::Refused { code: EHOSTUNREACH, .. }) => return Err(error),
            Err(_) => {}
        }
        self.pool.done(&Request::PutGrow { object, bytes: needed })?;
        Ok(needed)
    }

    fn send(&self, offset: u64, bytes: &[u8]) -> Result<(), PoolError> {
        for target in &self.targets {
            match target {
                Target::Local(handle) => self.pool.session().write(*handle, offset, bytes)?,
                Target::Remote(home) => {
                    // The offset and length of a chunk that was read cannot overflow.
                    let run = ByteRange::new(offset, bytes.len() as u64).unwrap_or_default();
                    home.endpoint.write(home.handle, &[run], bytes)?;
                }
            }
        }
        Ok(())
    }
}

impl Drop for PutWriter {
    fn drop(&mut self) {
        if !self.sealed {
            // A node that is gone gives the put up by itself.
            let _ = self.pool.session().call(&Request::PutAbort { object: self.object });
        }
    }
}

/// How much room is asked for where so much is needed.
fn generous(needed: u64) -> u64 {
    needed.saturating_add(GROW_BYTES_MAX.min(needed))
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
