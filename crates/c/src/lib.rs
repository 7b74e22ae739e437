//! The pool for C programs: what `include/hinterland.h` declares, with one file here for each of its sections.
//!
//! Every function returns 0 or a negative `errno`, keeps the words in the calling thread, and lets no panic out.
//! `tests/header.rs` fails when this code and the header differ.

mod failure;
mod guard;
mod handle;
mod kv;
mod kv_gpu;
mod mapping;
mod memory;
mod object;
mod pool;
mod text;

pub use failure::{hl_last_error, hl_version};
pub use guard::{
    GuardHandle, hl_guard_fence, hl_guard_flush, hl_guard_load, hl_guard_read, hl_guard_store,
    hl_guard_unlock, hl_guard_upgrade, hl_guard_write,
};
pub use handle::{
    HL_READ, HL_WRITE, ObjectHandle, hl_handle_close, hl_handle_diminish, hl_handle_open, hl_handle_read,
    hl_handle_revoke, hl_handle_write,
};
pub use kv::{
    BlockRecord, CompletionRecord, HL_KV_CLEAR, HL_KV_EXISTS, HL_KV_FETCH, HL_KV_GET, HL_KV_MATCH_PREFIX,
    HL_KV_MATCH_PREFIX_EVERYWHERE, HL_KV_PIN, HL_KV_PUT, HL_KV_REMOVE, HL_KV_UNPIN, KvHandle, QueueHandle,
    RunRecord, hl_kv_close, hl_kv_drain, hl_kv_exists, hl_kv_get, hl_kv_match_prefix, hl_kv_open, hl_kv_put,
    hl_kv_queue_close, hl_kv_queue_fd, hl_kv_queue_open, hl_kv_remove, hl_kv_submit,
};
pub use kv_gpu::{
    GpuHandle, TransferHandle, hl_kv_get_on, hl_kv_gpu_close, hl_kv_gpu_open, hl_kv_put_on,
    hl_kv_transfer_arrived, hl_kv_transfer_drop, hl_kv_transfer_wait,
};
pub use mapping::{
    HL_ADVICE_NORMAL, HL_ADVICE_RANDOM, HL_ADVICE_SEQUENTIAL, HL_ADVICE_WILL_NEED, hl_advise, hl_map,
    hl_map_region, hl_unmap,
};
pub use memory::{
    hl_alloc, hl_alloc_kept, hl_create_region, hl_create_spread, hl_free, hl_read, hl_rlock, hl_unlock,
    hl_wlock, hl_write,
};
pub use object::{
    HL_SEALED, HL_WRITABLE, ObjectRecord, Progress, PutOptionsRecord, hl_get, hl_put_buffer, hl_put_file,
    hl_remove, hl_stat,
};
pub use pool::{PoolHandle, hl_close, hl_open};
