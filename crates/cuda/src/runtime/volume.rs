//! Copies and fills of volumes: slices of rows, in memory that is laid out by pitch. Arrays of textures are not there.

use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;

use super::give;
use crate::code::{Code, INVALID_VALUE, NOT_SUPPORTED};
use crate::core::device::Rows;
use crate::core::session::Session;
use crate::core::stream::Stream;
use crate::core::thread::with_session;

/// `cudaPos` and `cudaExtent`: bytes in the first direction, rows, slices.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Place {
    /// Bytes.
    pub x: usize,
    /// Rows.
    pub y: usize,
    /// Slices.
    pub z: usize,
}

/// `cudaPitchedPtr`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Pitched {
    /// The first byte.
    pub start: *mut c_void,
    /// From one row to the next.
    pub pitch: usize,
    /// Elements of a row, which nothing depends on.
    pub width: usize,
    /// Rows of a slice.
    pub height: usize,
}

/// `cudaMemcpy3DParms`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Copy3D {
    /// An array, which is refused.
    pub from_array: *mut c_void,
    /// Where in it.
    pub from_at: Place,
    /// What is copied.
    pub from: Pitched,
    /// An array, which is refused.
    pub to_array: *mut c_void,
    /// Where in it.
    pub to_at: Place,
    /// Where it goes.
    pub to: Pitched,
    /// How much.
    pub extent: Place,
    /// The direction, which is seen from the addresses.
    pub kind: c_int,
}

/// `cudaMemcpy3DPeerParms`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CopyPeer3D {
    from_array: *mut c_void,
    from_at: Place,
    from: Pitched,
    from_device: c_int,
    to_array: *mut c_void,
    to_at: Place,
    to: Pitched,
    to_device: c_int,
    extent: Place,
}

impl Pitched {
    /// The rows of a slice from a place on.
    fn slice(&self, at: Place, slice: usize) -> Result<Rows, Code> {
        let row = at.z.checked_add(slice).and_then(|z| z.checked_mul(self.height)?.checked_add(at.y));
        let offset =
            row.and_then(|row| row.checked_mul(self.pitch)?.checked_add(at.x)).ok_or(INVALID_VALUE)?;
        let start =
            (self.start.expose_provenance() as u64).checked_add(offset as u64).ok_or(INVALID_VALUE)?;
        Ok(Rows { start, pitch: self.pitch as u64 })
    }
}

/// Copies a volume in the order of a stream.
///
/// # Errors
/// An end is an array or not there, or rows overlap.
pub(crate) fn copy_3d(session: &Session, stream: &Arc<Stream>, copy: &Copy3D) -> Result<(), Code> {
    if !copy.from_array.is_null() || !copy.to_array.is_null() {
        return Err(NOT_SUPPORTED);
    }
    let Place { x: width, y: rows, z: slices } = copy.extent;
    if width == 0 || rows == 0 || slices == 0 {
        return Ok(());
    }
    for (end, at) in [(&copy.from, copy.from_at), (&copy.to, copy.to_at)] {
        if end.start.is_null() {
            return Err(INVALID_VALUE);
        }
        let fits = at.y.checked_add(rows).is_some_and(|all| all <= end.height);
        if slices > 1 && !fits {
            return Err(INVALID_VALUE);
        }
    }
    (0..slices).try_for_each(|slice| {
        let (to, from) = (copy.to.slice(copy.to_at, slice)?, copy.from.slice(copy.from_at, slice)?);
        session.copy_rows(stream, to, from, width as u64, rows as u64)
    })
}

/// Copies a volume, and waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMemcpy3D(copy: *const Copy3D) -> Code {
    with_session(|session| {
        session.check_unseen()?;
        let stream = session.default_stream()?;
        // SAFETY: as documented.
        copy_3d(session, &stream, unsafe { copy.as_ref() }.ok_or(INVALID_VALUE)?)?;
        session.synchronize_stream(&stream)
    })
}

/// Copies a volume in the order of a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMemcpy3DAsync(copy: *const Copy3D, stream: *mut c_void) -> Code {
    with_session(|session| {
        let stream = session.stream(stream)?;
        // SAFETY: as documented.
        copy_3d(session, &stream, unsafe { copy.as_ref() }.ok_or(INVALID_VALUE)?)
    })
}

/// The same between devices, behind all work of both.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMemcpy3DPeer(copy: *const CopyPeer3D) -> Code {
    with_session(|session| {
        // SAFETY: as documented.
        let copy = unsafe { copy.as_ref() }.ok_or(INVALID_VALUE)?;
        for one in [copy.from_device, copy.to_device] {
            session.wait_device(super::device::number(session, one)?)?;
        }
        let stream = session.default_stream()?;
        copy_3d(session, &stream, &plain(copy))?;
        session.synchronize_stream(&stream)
    })
}

/// The same between devices in the order of a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMemcpy3DPeerAsync(copy: *const CopyPeer3D, stream: *mut c_void) -> Code {
    with_session(|session| {
        let stream = session.stream(stream)?;
        // SAFETY: as documented.
        copy_3d(session, &stream, &plain(unsafe { copy.as_ref() }.ok_or(INVALID_VALUE)?))
    })
}

fn plain(copy: &CopyPeer3D) -> Copy3D {
    Copy3D {
        from_array: copy.from_array,
        from_at: copy.from_at,
        from: copy.from,
        to_array: copy.to_array,
        to_at: copy.to_at,
        to: copy.to,
        extent: copy.extent,
        kind: 4,
    }
}

/// Sets bytes of a volume in the order of the default stream.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaMemset3D(place: Pitched, value: c_int, extent: Place) -> Code {
    match with_session(Session::check_unseen) {
        0 => hl_cudaMemset3DAsync(place, value, extent, null_mut()),
        code => code,
    }
}

/// Sets bytes of a volume in the order of a stream.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaMemset3DAsync(
    place: Pitched,
    value: c_int,
    extent: Place,
    stream: *mut c_void,
) -> Code {
    with_session(|session| {
        let stream = session.stream(stream)?;
        if extent.z > 1 && extent.y > place.height {
            return Err(INVALID_VALUE);
        }
        (0..extent.z).try_for_each(|slice| {
            let rows = place.slice(Place::default(), slice)?;
            let value = (value & 0xff) as u32;
            session.fill_rows(&stream, rows, 1, value, extent.x as u64, extent.y as u64)
        })
    })
}

/// Allocates a volume whose rows start at multiples of 512.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMalloc3D(place: *mut Pitched, extent: Place) -> Code {
    with_session(|session| {
        if place.is_null() {
            return Err(INVALID_VALUE);
        }
        let pitch = extent.x.checked_next_multiple_of(512).ok_or(INVALID_VALUE)?;
        let rows = extent.y.checked_mul(extent.z).ok_or(INVALID_VALUE)?;
        let bytes = pitch.checked_mul(rows).ok_or(INVALID_VALUE)?;
        session.check_unseen()?;
        let address = session.allocate(session.owner()?, bytes as u64)?;
        let start = without_provenance_mut(address as usize);
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, Pitched { start, pitch, width: extent.x, height: extent.y }) }
    })
}
