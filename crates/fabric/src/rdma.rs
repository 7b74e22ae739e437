//! The fabric over RDMA: bytes that move without the peer's processor, beside a TCP session that says who may reach what.
//!
//! | file | subject |
//! | --- | --- |
//! | `abi` | the binary interface of libibverbs, loaded at run time |
//! | `device` | devices, ports and addresses of this host |
//! | `pair` | queue pairs, completion queues, registered memory |
//! | `host` | the server's side: connects pairs, grants and revokes memory |
//! | `listener` | answers calls that come over one pair |
//! | `link` | the client's end of one pair |
//! | `links` | all pairs to one peer, and what it granted |
//! | `mover` | cuts reads and writes and moves them over all links |
//! | `endpoint` | one peer, by RDMA where that works and by TCP where not |
//! | `queue` | many operations in flight from one thread |
//!
//! The [decision](../../../docs/decisions/2026-11-22-rdma-fabric.md) says why it is made so. Real devices have not been tried: it
//! runs on soft-RoCE, in the guests of `lab/`.

mod abi;
mod device;
mod endpoint;
mod host;
mod link;
mod links;
mod listener;
mod mover;
mod pair;
mod queue;
#[cfg(test)]
mod tests;

pub use device::{DeviceReport, devices, loadable};
pub use endpoint::{RdmaEndpoint, RdmaOptions};
pub(crate) use host::SessionHost;
pub use host::{Host, HostCounts, HostOptions};
pub use links::Counts;

/// Bytes of one buffer for messages: a call that is longer goes by TCP, an answer takes several.
const MESSAGE_BYTES: usize = 8 << 10;
/// Buffers for messages of one session and device: what its peer may send before it hears an answer.
const RECEIVES: usize = 32;
/// Queue pairs of one session.
const LINKS_MAX: usize = 8;
/// Sent with the request itself up to this size, if the device can: no second look at the memory.
const INLINE_BYTES: u32 = 220;
/// Packet sequence numbers and queue pair numbers have 24 bits.
const BITS_24: u32 = 0xff_ffff;

/// 64 bits that nobody can guess.
fn random_word() -> std::io::Result<u64> {
    let mut bytes = [0u8; 8];
    // SAFETY: the buffer is live and its length is given.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == 8 { Ok(u64::from_le_bytes(bytes)) } else { Err(std::io::Error::last_os_error()) }
}

/// What a registration that was refused for want of locked memory means, in words with a hint.
fn registration_words(error: &std::io::Error, bytes: u64) -> String {
    let limit = match hinterland_os::limits::locked_memory_bytes() {
        Ok(limit) if limit.soft != u64::MAX => format!("{} KiB", limit.soft >> 10),
        _ => "unlimited".to_owned(),
    };
    format!(
        "{error}; {} KiB were asked for and the limit on locked memory is {limit} (hint: raise it with `ulimit -l unlimited`, or \
         LimitMEMLOCK=infinity in the service; until then these bytes go by TCP)",
        bytes >> 10
    )
}
