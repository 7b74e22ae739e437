//! Objects: put, get, stat and remove.

use crate::failure::{Failure, guarded};
use crate::pool::PoolHandle;
use crate::text::{buffer, buffer_mut, name, path, place, rack};
use hinterland_pool::{PoolError, PutOptions};
use hinterland_proto::control::{ObjectInfo, ObjectState, Placement};
use hinterland_types::{ByteRange, ObjectName};
use std::ffi::{c_char, c_int, c_void};
use std::fs::File;
use std::io::{self, Read};

/// The object was written once and never changes.
pub const HL_SEALED: u32 = 1;
/// The object is a region that is read and written in place.
pub const HL_WRITABLE: u32 = 2;

/// Hears how many bytes have been put, of how many (0: unknown). Any value but 0 gives the put up.
pub type Progress = Option<unsafe extern "C" fn(context: *mut c_void, done: u64, total: u64) -> c_int>;

/// How to put: `hl_put_options` in C. All zeros are the defaults.
#[repr(C)]
pub struct PutOptionsRecord {
    /// Copies on distinct nodes; 0 is 1.
    pub copies: u32,
    /// Zero.
    pub reserved: u32,
    /// Rack of the first copy; null: this one, else the one with the most room.
    pub rack: *const c_char,
    /// Hears of the progress; null: nobody.
    pub progress: Progress,
    /// Handed to `progress`.
    pub context: *mut c_void,
}

/// What is known of an object: `hl_object` in C.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ObjectRecord {
    /// Size.
    pub bytes: u64,
    /// Global address of the first byte.
    pub address: u64,
    /// Identifier, never used twice.
    pub object: u64,
    /// [`HL_SEALED`] or [`HL_WRITABLE`].
    pub state: u32,
    /// Copies that were asked for.
    pub copies: u32,
    /// Nodes that hold a copy.
    pub homes: u32,
    /// Those whose lease is alive.
    pub homes_up: u32,
    /// blake3 over the size and the crc32c of each 64 KiB block; zeros for a region.
    pub digest: [u8; 32],
}

/// Puts a file, or whatever else can be read at the path.
///
/// # Safety
/// `pool` came from `hl_open`; the strings are null or strings; `options` is null or filled in.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_put_file(
    pool: *mut PoolHandle,
    name_text: *const c_char,
    path_text: *const c_char,
    options: *const PutOptionsRecord,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises all.
        let (handle, name, path) = unsafe { (PoolHandle::of(pool)?, name(name_text)?, path(path_text)?) };
        let failed = |source: io::Error| {
            let text = format!("{}: {source} (hint: check the path and its rights)", path.display());
            Failure::new(source.raw_os_error().unwrap_or(libc::EIO), text)
        };
        let mut file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        // Only of a plain file the size is known.
        let bytes = metadata.is_file().then_some(metadata.len());
        // SAFETY: as above.
        unsafe { put(handle, &name, &mut file, bytes, options) }
    })
}

/// Puts bytes of memory.
///
/// # Safety
/// `pool` came from `hl_open`; `name_text` is null or a string; `memory` is null or may be read for `bytes` bytes;
/// `options` is null or filled in.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_put_buffer(
    pool: *mut PoolHandle,
    name_text: *const c_char,
    memory: *const c_void,
    bytes: usize,
    options: *const PutOptionsRecord,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises all.
        let (handle, name) = unsafe { (PoolHandle::of(pool)?, name(name_text)?) };
        // SAFETY: as above.
        let mut from = unsafe { buffer(memory, bytes) }?;
        // SAFETY: as above.
        unsafe { put(handle, &name, &mut from, Some(bytes as u64), options) }
    })
}

/// Reads `bytes` bytes of an object from `offset` on.
///
/// # Safety
/// `pool` came from `hl_open`; `name_text` is null or a string; `memory` is null or may be written for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_get(
    pool: *mut PoolHandle,
    name_text: *const c_char,
    offset: u64,
    memory: *mut c_void,
    bytes: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises all.
        let (handle, name) = unsafe { (PoolHandle::of(pool)?, name(name_text)?) };
        // SAFETY: as above.
        let into = unsafe { buffer_mut(memory, bytes) }?;
        let object = handle.pool().open_object(&name)?;
        ByteRange::within(offset, into.len() as u64, object.info().bytes)?;
        Ok(object.read_at(offset, into)?)
    })
}

/// Says what is known of an object.
///
/// # Safety
/// `pool` came from `hl_open`; `name_text` is null or a string; `object` is null or takes a record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_stat(
    pool: *mut PoolHandle,
    name_text: *const c_char,
    object: *mut ObjectRecord,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises all.
        let (handle, place) = unsafe { (PoolHandle::of(pool)?, place("the record", object)?) };
        // SAFETY: as above.
        let name = unsafe { name(name_text) }?;
        place.fill(ObjectRecord::from(&handle.pool().stat(&name)?));
        Ok(())
    })
}

/// Removes an object; who has it mapped keeps it until it is unmapped.
///
/// # Safety
/// `pool` came from `hl_open`; `name_text` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_remove(pool: *mut PoolHandle, name_text: *const c_char) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises both.
        let (handle, name) = unsafe { (PoolHandle::of(pool)?, name(name_text)?) };
        Ok(handle.pool().remove(&name)?)
    })
}

/// # Safety
/// `options` is null or filled in.
unsafe fn put(
    handle: &PoolHandle,
    name: &ObjectName,
    reader: &mut dyn Read,
    bytes: Option<u64>,
    options: *const PutOptionsRecord,
) -> Result<(), Failure> {
    let mut chosen = PutOptions { bytes, ..PutOptions::default() };
    let (mut progress, mut context) = (None, std::ptr::null_mut());
    // SAFETY: the caller promises it.
    if let Some(record) = unsafe { options.as_ref() } {
        if record.reserved != 0 {
            return Err(Failure::argument(
                "`reserved` is not 0 (hint: set all of hl_put_options to zeros first)",
            ));
        }
        chosen.copies = u8::try_from(record.copies.max(1)).map_err(|_| {
            Failure::argument(format!("{} copies are too many (hint: 1 to 8)", record.copies))
        })?;
        // SAFETY: the caller promises a string or null.
        if let Some(rack) = unsafe { rack(record.rack) }? {
            chosen.placement = Placement::Rack(rack);
        }
        (progress, context) = (record.progress, record.context);
    }
    let given_up = std::cell::Cell::new(false);
    let mut stoppable = Stoppable { reader, given_up: &given_up };
    let mut report = |done| {
        // SAFETY: the program gave the function and what to hand to it.
        let answer = progress.map_or(0, |progress| unsafe { progress(context, done, bytes.unwrap_or(0)) });
        given_up.set(answer != 0);
    };
    let put = handle.pool().put(&mut stoppable, name, &chosen, &mut report);
    put.map(drop).map_err(|error| match error {
        PoolError::Stream { .. } if given_up.get() => {
            let text =
                format!("`progress` has given up the put of {name} (hint: nothing is left; put it again)");
            Failure::new(libc::ECANCELED, text)
        }
        other => other.into(),
    })
}

/// A reader that fails once the program has given the put up.
struct Stoppable<'a> {
    reader: &'a mut dyn Read,
    given_up: &'a std::cell::Cell<bool>,
}

impl Read for Stoppable<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.given_up.get() {
            return Err(io::Error::from_raw_os_error(libc::ECANCELED));
        }
        self.reader.read(into)
    }
}

impl From<&ObjectInfo> for ObjectRecord {
    fn from(info: &ObjectInfo) -> Self {
        // At most as many homes as copies, of which there are at most 8.
        let count = |number: usize| number as u32;
        Self {
            bytes: info.bytes,
            address: info.address.map_or(0, hinterland_types::GlobalAddress::raw),
            object: info.object.0,
            state: match info.state {
                ObjectState::Sealed => HL_SEALED,
                ObjectState::Mutable => HL_WRITABLE,
                ObjectState::Writing => 0,
            },
            copies: u32::from(info.copies),
            homes: count(info.homes.iter().filter(|home| !home.heat).count()),
            homes_up: count(info.homes.iter().filter(|home| home.up && !home.heat).count()),
            digest: info.digest,
        }
    }
}
