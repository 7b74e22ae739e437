//! What Hinterland asks of Linux: shared memory, page faults, fills, sockets, waiting and the machine's limits.
//!
//! A mechanism crate: every `unsafe` block and system call of the lower house lives here or in `hinterland-ring`.
//! Nothing in it decides anything about the pool. The modules:
//!
//! | module | subject |
//! | --- | --- |
//! | [`shared_slice`] | copies and atomics on memory that others change at the same time |
//! | [`copying`] | long copies that are quicker than those of the C library |
//! | [`coherence`] | cache lines moved by hand, where caches do not see each other |
//! | [`barrier`] | memory barriers that one side of a hand-off makes for both |
//! | [`mapping`] | address ranges mapped from files or made anonymous, guarded against files that are cut off |
//! | [`mappings`] | what another process has mapped, and how |
//! | [`memory_file`] | files whose pages are the memory of the pool |
//! | [`huge_pages`], [`backing`] | huge page counts and mounts, and the choice of what memory to use |
//! | [`fstab`] | mounts that the machine is to have and has not |
//! | [`transparent_huge`] | huge pages of another process's private memory |
//! | [`userfault`] | faults of a range served from outside the program |
//! | [`direct_file`] | files of a disk past the page cache, many transfers at once |
//! | [`fault_point`] | steps at which a test ends the process |
//! | [`file_lock`] | locks that last as long as somebody has a file open or mapped |
//! | [`filler`] | pages that appear whole in a file |
//! | [`nbd_device`], [`swap_area`] | block devices of the kernel that a socket serves, and swap on them |
//! | [`own_files`] | which file lies behind an address, and whether its pages are still the file's |
//! | [`pagemap`] | which pages of a range are present |
//! | [`remote_memory`] | bytes of another process |
//! | [`looks`] | looks at another process that nobody waits for in vain |
//! | [`socket`] | unix streams that carry descriptors |
//! | [`poll`] | waiting on many descriptors, events and signals |
//! | [`fork_mark`] | a word that a child of `fork` finds zero |
//! | [`futex`], [`SpinBudget`] | waiting on a word of shared memory, and how long to spin before |
//! | [`affinity`], [`clock`], [`limits`], [`process`] | cores, time, resource limits, processes |
//! | [`notice`] | a word for people who wait long |
//! | [`idle`] | how many threads want a processor, and keeping idle ones from sleep |
//! | [`probe`] | what this machine offers and the command that mends what is missing |

#[cfg(not(all(target_os = "linux", target_pointer_width = "64", target_endian = "little")))]
compile_error!("hinterland needs a 64-bit little-endian Linux");

pub mod affinity;
pub mod backing;
pub mod barrier;
#[cfg(feature = "checking")]
pub mod checking;
pub mod clock;
pub mod coherence;
pub mod container;
pub mod control_groups;
pub mod copying;
pub mod direct_file;
mod error;
pub mod fault_point;
pub mod file_lock;
pub mod filler;
pub mod fork_mark;
pub mod fstab;
pub mod futex;
mod guard;
pub mod huge_pages;
pub mod idle;
pub mod limits;
pub mod looks;
pub mod mapping;
pub mod mappings;
pub mod memory_file;
pub mod nbd_device;
pub mod notice;
pub mod numa;
pub mod own_files;
pub mod pagemap;
pub mod poll;
pub mod probe;
pub mod process;
pub mod remote_memory;
pub mod shared_slice;
pub mod socket;
mod spin;
pub mod swap_area;
pub mod transparent_huge;
pub mod userfault;

pub use backing::{Backing, DEVICE_HINT, choose_backing};
pub use coherence::{Coherence, FlushedSlice, LineMover};
pub use direct_file::{DIRECT_BYTES, DirectBuffer, DirectFile, Transfer};
pub use error::OsError;
pub use filler::PageFiller;
pub use guard::{Loss, losses};
pub use mapping::{MapOptions, Mapping};
pub use memory_file::{MemoryFile, PageKind, Seals};
pub use numa::NumaNodes;
pub use shared_slice::SharedSlice;
pub use spin::SpinBudget;
pub use userfault::Userfault;

/// Bytes of the smallest page that the processor maps.
pub const BASE_PAGE_BYTES: usize = 4096;
/// Bytes of a huge page.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;
