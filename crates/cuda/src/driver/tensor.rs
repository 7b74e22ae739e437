//! Tensor maps, by which kernels copy tiles of a tensor. What their bytes mean is the driver's own, so the node's driver makes them.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Once;

use hinterland_proto::gpu::command::AskTensorMap;

use crate::code::{Code, INVALID_VALUE, NOT_SUPPORTED};
use crate::core::session::Session;
use crate::core::thread::{device, driver};

/// Directions of a tensor at most.
const RANK_MAX: c_uint = 5;
/// Bytes of a `CUtensorMap`, and what its address is a multiple of.
const MAP_BYTES: usize = 128;
const MAP_ALIGNMENT: usize = 64;

/// Describes tiles of a tensor. The node is asked for each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuTensorMapEncodeTiled(
    map: *mut c_void,
    element: c_int,
    rank: c_uint,
    address: *mut c_void,
    sizes: *const u64,
    strides: *const u64,
    tile: *const u32,
    steps: *const u32,
    interleave: c_int,
    swizzle: c_int,
    promotion: c_int,
    fill: c_int,
) -> Code {
    driver(|session| {
        if map.is_null() || !map.addr().is_multiple_of(MAP_ALIGNMENT) || !(1..=RANK_MAX).contains(&rank) {
            return Err(INVALID_VALUE);
        }
        let count = rank as usize;
        let mut tail = Vec::new();
        // SAFETY: as many elements as the rank says, as documented; one less of strides, which may be null if there are none.
        unsafe {
            append(&mut tail, sizes, count, |one| one.to_le_bytes())?;
            append(&mut tail, strides, count - 1, |one| one.to_le_bytes())?;
            append(&mut tail, tile, count, |one| one.to_le_bytes())?;
            append(&mut tail, steps, count, |one| one.to_le_bytes())?;
        }
        let address = address.addr() as u64;
        session.check_range(address, 1)?;
        let number = |given: c_int| u32::try_from(given).map_err(|_| INVALID_VALUE);
        let [element, interleave, swizzle, promotion, fill] =
            [number(element)?, number(interleave)?, number(swizzle)?, number(promotion)?, number(fill)?];
        let bytes = ask(session, &tail, |question| AskTensorMap {
            question,
            device: device(),
            address,
            element,
            rank,
            interleave,
            swizzle,
            promotion,
            fill,
        })?;
        // SAFETY: the program gave room for a map.
        unsafe { map.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), MAP_BYTES) };
        Ok(())
    })
}

/// The bytes of a map, from the node.
fn ask(
    session: &Session,
    tail: &[u8],
    message: impl FnOnce(u32) -> AskTensorMap,
) -> Result<[u8; MAP_BYTES], Code> {
    static SAYS: Once = Once::new();
    let answer = session.ask(tail, message).inspect_err(|code| {
        if *code == NOT_SUPPORTED {
            SAYS.call_once(|| {
                eprintln!(
                    "hinterland: cuTensorMapEncodeTiled needs a GPU at the node, as only its driver knows what the bytes mean (hint: a device in software has none; kernels without TMA)"
                );
            });
        }
    })?;
    answer.try_into().map_err(|_| INVALID_VALUE)
}

/// Appends the elements of an array.
///
/// # Safety
/// `start` has `count` elements.
unsafe fn append<T: Copy, const N: usize>(
    to: &mut Vec<u8>,
    start: *const T,
    count: usize,
    bytes: impl Fn(T) -> [u8; N],
) -> Result<(), Code> {
    if count == 0 {
        return Ok(());
    }
    if start.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    let all = unsafe { std::slice::from_raw_parts(start, count) };
    all.iter().for_each(|one| to.extend(bytes(*one)));
    Ok(())
}
