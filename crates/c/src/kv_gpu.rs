//! KV blocks to and from memory of a GPU, on a stream of the program.

use crate::failure::{Failure, guarded};
use crate::kv::{BlockRecord, KvHandle, Owner, answer, key, runs};
use crate::text::{place, values};
use hinterland_gpu::StreamHandle;
use hinterland_pool::{Batch, GpuOptions, KvGpu, KvTransfer};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// The blocks of a namespace, reached by a GPU: `hl_kv_gpu` in C.
pub struct GpuHandle {
    gpu: KvGpu,
    owner: Owner,
}

/// A batch on its way: `hl_kv_transfer` in C.
pub struct TransferHandle {
    transfer: KvTransfer,
    owner: Owner,
}

/// What to do with a batch.
enum Way {
    Get,
    Put,
}

impl GpuHandle {
    /// The GPU behind a handle of this process.
    ///
    /// # Safety
    /// `pointer` is null or came from [`hl_kv_gpu_open`] and was not closed.
    unsafe fn of<'a>(pointer: *mut Self) -> Result<&'a Self, Failure> {
        // SAFETY: the caller promises one that came from a box.
        let handle = unsafe { pointer.as_ref() };
        let handle =
            handle.ok_or_else(|| Failure::argument("the GPU is NULL (hint: call hl_kv_gpu_open first)"))?;
        handle.owner.check()?;
        Ok(handle)
    }
}

/// Lets a GPU reach the blocks of a namespace.
///
/// # Safety
/// `kv` came from [`hl_kv_open`](crate::hl_kv_open); `gpu` is null or takes a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_kv_gpu_open(kv: *mut KvHandle, device: c_int, gpu: *mut *mut GpuHandle) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises both.
        let (handle, place) = unsafe { (KvHandle::of(kv)?, place("the GPU", gpu)?) };
        // Any negative number is the default.
        let options = GpuOptions { device: usize::try_from(device).ok(), ..GpuOptions::default() };
        let opened = GpuHandle { gpu: handle.cache().gpu(&options)?, owner: Owner::new() };
        place.fill(Box::into_raw(Box::new(opened)));
        Ok(())
    })
}

/// Takes the blocks away from a GPU; transfers go on. Null is nothing to close.
///
/// # Safety
/// `gpu` is null or came from [`hl_kv_gpu_open`] and was not closed; no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_kv_gpu_close(gpu: *mut GpuHandle) -> c_int {
    guarded(|| {
        if !gpu.is_null() {
            // SAFETY: the caller promises one that came from a box, and that this is its last use.
            let handle = unsafe { Box::from_raw(gpu) };
            if handle.owner.check().is_err() {
                // Its context is the parent's.
                std::mem::forget(handle);
            }
        }
        Ok(())
    })
}

/// Begins to copy blocks into memory of the GPU.
///
/// # Safety
/// `gpu` came from [`hl_kv_gpu_open`]; the records may be read now; the fragments are memory of the GPU that nobody else uses,
/// and the stream one of its context, until the transfer has ended; `transfer` is null or takes a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_kv_get_on(
    gpu: *mut GpuHandle,
    blocks: *const BlockRecord,
    count: usize,
    stream: *mut c_void,
    transfer: *mut *mut TransferHandle,
) -> c_int {
    // SAFETY: the caller promises all.
    guarded(|| unsafe { begin(Way::Get, gpu, blocks, count, stream, transfer) })
}

/// Begins to gather blocks from memory of the GPU.
///
/// # Safety
/// As [`hl_kv_get_on`], but the fragments are read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_kv_put_on(
    gpu: *mut GpuHandle,
    blocks: *const BlockRecord,
    count: usize,
    stream: *mut c_void,
    transfer: *mut *mut TransferHandle,
) -> c_int {
    // SAFETY: the caller promises all.
    guarded(|| unsafe { begin(Way::Put, gpu, blocks, count, stream, transfer) })
}

/// # Safety
/// As [`hl_kv_get_on`].
unsafe fn begin(
    way: Way,
    gpu: *mut GpuHandle,
    blocks: *const BlockRecord,
    count: usize,
    stream: *mut c_void,
    transfer: *mut *mut TransferHandle,
) -> Result<(), Failure> {
    // SAFETY: the caller promises both.
    let (handle, records) = unsafe { (GpuHandle::of(gpu)?, values("the blocks", blocks, count)?) };
    // SAFETY: as above.
    let place = unsafe { place("the transfer", transfer) }?;
    let mut batch = Batch::with_capacity(count, count);
    for block in records {
        // SAFETY: the caller promises what the record names.
        let (key, list) = unsafe { (key(block)?, runs(block)?) };
        batch.push(key, list)?;
    }
    let stream = StreamHandle::of_program(stream.expose_provenance());
    let transfer = match way {
        // SAFETY: the caller promises fragments and stream until the transfer has ended.
        Way::Get => unsafe { handle.gpu.get(&batch, stream, Arc::new(())) },
        // SAFETY: as above.
        Way::Put => unsafe { handle.gpu.put(&batch, stream, Arc::new(())) },
    };
    let begun = TransferHandle { transfer: transfer?, owner: Owner::new() };
    place.fill(Box::into_raw(Box::new(begun)));
    Ok(())
}

/// Whether the GPU is done.
///
/// # Safety
/// `transfer` is null or came from [`hl_kv_get_on`] or [`hl_kv_put_on`], has not ended, and no other thread uses it; `arrived` is
/// null or takes a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_kv_transfer_arrived(transfer: *mut TransferHandle, arrived: *mut c_int) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises both.
        let (handle, place) = unsafe { (transfer.as_mut(), place("the answer", arrived)?) };
        let handle = handle.ok_or_else(absent)?;
        handle.owner.check()?;
        place.fill(c_int::from(handle.transfer.is_arrived()?));
        Ok(())
    })
}

/// Waits for a transfer and ends it; an answer for each block.
///
/// # Safety
/// `transfer` is null or as for [`hl_kv_transfer_arrived`], and this is its last use; `answers` is null or takes a byte for each
/// block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_kv_transfer_wait(transfer: *mut TransferHandle, answers: *mut u8) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises it.
        let handle = unsafe { own(transfer) }?.ok_or_else(absent)?;
        let outcomes = handle.transfer.wait()?;
        // SAFETY: the caller promises room for all.
        unsafe { answer(answers, outcomes.into_iter()) };
        Ok(())
    })
}

/// Waits for the GPU and ends a transfer; a put is not published. Null is nothing to drop.
///
/// # Safety
/// As [`hl_kv_transfer_wait`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_kv_transfer_drop(transfer: *mut TransferHandle) -> c_int {
    // SAFETY: the caller promises it.
    guarded(|| unsafe { own(transfer) }.map(drop))
}

/// Takes a transfer out of its box, unless it is null.
///
/// # Safety
/// As [`hl_kv_transfer_wait`].
unsafe fn own(transfer: *mut TransferHandle) -> Result<Option<TransferHandle>, Failure> {
    if transfer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller promises one that came from a box, and that this is its last use.
    let handle = unsafe { Box::from_raw(transfer) };
    if let Err(failure) = handle.owner.check() {
        // Its context is the parent's.
        std::mem::forget(handle);
        return Err(failure);
    }
    Ok(Some(*handle))
}

fn absent() -> Failure {
    Failure::argument("the transfer is NULL (hint: call hl_kv_get_on or hl_kv_put_on first)")
}
