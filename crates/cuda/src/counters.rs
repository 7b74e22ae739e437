//! What went over the channel, for programs that measure us; no function of CUDA.

use crate::core::session::present;

/// Writes five numbers: waits for an answer, commands, bytes of commands, messages, and bytes of code among them. Zeros before the first
/// call of CUDA.
///
/// # Safety
/// `place` has room for five numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_gpu_counters(place: *mut u64) {
    let counters = present().map_or([0; 5], |session| session.counters());
    if !place.is_null() {
        // SAFETY: the caller's promise.
        unsafe { place.cast::<[u64; 5]>().write_unaligned(counters) };
    }
}

/// Writes two numbers: copies to devices that the node read from a pool by itself, and their bytes. Zeros before the first call of CUDA.
///
/// # Safety
/// `place` has room for two numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_gpu_pooled(place: *mut u64) {
    let counters = present().map_or([0; 2], |session| session.pooled_counters());
    if !place.is_null() {
        // SAFETY: the caller's promise.
        unsafe { place.cast::<[u64; 2]>().write_unaligned(counters) };
    }
}
