//! What C programs hand over: strings, buffers and places for results, checked before they are used.

use crate::failure::Failure;
use hinterland_types::{ObjectName, RackName};
use std::ffi::{CStr, c_char, c_void};
use std::path::Path;

/// A string that must be there.
///
/// # Safety
/// `pointer` is null or a string that ends in a zero byte and stays as it is for the life of the result.
pub(crate) unsafe fn string<'a>(what: &str, pointer: *const c_char) -> Result<&'a CStr, Failure> {
    if pointer.is_null() {
        return Err(Failure::argument(format!("{what} is NULL (hint: pass a string)")));
    }
    // SAFETY: the caller promises a string.
    Ok(unsafe { CStr::from_ptr(pointer) })
}

/// A string of UTF-8 that must be there.
///
/// # Safety
/// As [`string`].
unsafe fn utf8<'a>(what: &str, pointer: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: the caller promises it.
    let text = unsafe { string(what, pointer) }?;
    text.to_str().map_err(|_| Failure::argument(format!("{what} is not UTF-8 (hint: names are UTF-8)")))
}

/// The name of an object.
///
/// # Safety
/// As [`string`].
pub(crate) unsafe fn name(pointer: *const c_char) -> Result<ObjectName, Failure> {
    // SAFETY: the caller promises it.
    Ok(ObjectName::parse(unsafe { utf8("the name", pointer) }?)?)
}

/// What engines must agree on.
///
/// # Safety
/// As [`string`].
pub(crate) unsafe fn fingerprint<'a>(pointer: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: the caller promises it.
    unsafe { utf8("the fingerprint", pointer) }
}

/// The name of a rack, if one is given.
///
/// # Safety
/// As [`string`].
pub(crate) unsafe fn rack(pointer: *const c_char) -> Result<Option<RackName>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller promises it.
    Ok(Some(RackName::parse(unsafe { utf8("the rack", pointer) }?)?))
}

/// The path of a file.
///
/// # Safety
/// As [`string`].
pub(crate) unsafe fn path<'a>(pointer: *const c_char) -> Result<&'a Path, Failure> {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: the caller promises it.
    let text = unsafe { string("the path", pointer) }?;
    Ok(Path::new(std::ffi::OsStr::from_bytes(text.to_bytes())))
}

/// Bytes to read from.
///
/// # Safety
/// `pointer` is null or valid for reads of `bytes` bytes for the life of the result.
pub(crate) unsafe fn buffer<'a>(pointer: *const c_void, bytes: usize) -> Result<&'a [u8], Failure> {
    if bytes == 0 {
        return Ok(&[]);
    }
    check_buffer(pointer, bytes)?;
    // SAFETY: the caller promises the range; its length fits and it is not null.
    Ok(unsafe { std::slice::from_raw_parts(pointer.cast(), bytes) })
}

/// Bytes to write to.
///
/// # Safety
/// `pointer` is null or valid for writes of `bytes` bytes, and nobody else uses them for the life of the result.
pub(crate) unsafe fn buffer_mut<'a>(pointer: *mut c_void, bytes: usize) -> Result<&'a mut [u8], Failure> {
    if bytes == 0 {
        return Ok(&mut []);
    }
    check_buffer(pointer, bytes)?;
    // SAFETY: the caller promises the range; its length fits and it is not null. Every value of a byte is a byte.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer.cast(), bytes) })
}

/// A list of values.
///
/// # Safety
/// `pointer` is null or valid for reads of `count` values for the life of the result.
pub(crate) unsafe fn values<'a, T>(what: &str, pointer: *const T, count: usize) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(Failure::argument(format!("{what} are {count} at {pointer:p} (hint: pass an array)")));
    }
    let bytes = count
        .checked_mul(size_of::<T>())
        .ok_or_else(|| Failure::argument(format!("{what} cannot be {count} (hint: check the number)")))?;
    check_buffer(pointer.cast(), bytes)?;
    // SAFETY: the caller promises the range; its length fits, it is aligned and not null.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

fn check_buffer(pointer: *const c_void, bytes: usize) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::argument(format!("the buffer for {bytes} bytes is NULL (hint: pass memory)")));
    }
    if isize::try_from(bytes).is_err() {
        return Err(Failure::argument(format!(
            "a buffer of {bytes} bytes cannot be (hint: check the length)"
        )));
    }
    Ok(())
}

/// A place for a result that must be there.
///
/// # Safety
/// `pointer` is null or valid for writes of a `T`.
pub(crate) unsafe fn place<T>(what: &str, pointer: *mut T) -> Result<Place<T>, Failure> {
    if pointer.is_null() {
        return Err(Failure::argument(format!("the place for {what} is NULL (hint: pass a variable)")));
    }
    Ok(Place(pointer))
}

/// Memory of the program that takes a result.
pub(crate) struct Place<T>(*mut T);

impl<T> Place<T> {
    /// Puts the result there.
    pub(crate) fn fill(self, value: T) {
        // SAFETY: `place` was promised a pointer that is valid for a write, and checked that it is not null.
        unsafe { self.0.write(value) };
    }
}
