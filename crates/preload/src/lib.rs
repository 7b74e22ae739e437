//! The library that `hinterland run` puts before a program: `mmap` of a pool file becomes memory of the pool.
//!
//! A file of the mount at `/pool` can be read and mapped by any program, through FUSE. This library only makes mapping
//! better: where the kernel would fetch a page at a time through FUSE and keep it in its page cache, the program gets the
//! object's own memory ([`hinterland_region`]). Whatever goes wrong, the program gets the kernel's mapping of the file.
//!
//! It exports the functions of the C library that make, change and unmap memory ([`symbols`]), and those by which a process gives up what far memory
//! begins with ([`far`]). A call that has nothing to
//! do with the pool goes to the kernel after a few comparisons, without a lock, an allocation or a descriptor; nothing is
//! opened before the first file of the pool is mapped. The C library's own use of `mmap` (its allocator, its loader) does
//! not come by here.
//!
//! Environment, set by `hinterland run`:
//!
//! | variable | meaning |
//! | --- | --- |
//! | `HINTERLAND_MOUNT_DEVICE` | `st_dev` of the mounts, decimal, separated by commas, at most 8; nothing happens without it |
//! | `HINTERLAND_SOCKET` | the node |
//! | `HINTERLAND_BUDGET`, `HINTERLAND_UNIT` | bytes that an object may take on this host, and the fault unit |
//! | `HINTERLAND_GRACE_S` | seconds to wait for a node that died |
//! | `HINTERLAND_NO_SYMMETRIC` | `1`: map anywhere, not at the object's place in the window |
//! | `HINTERLAND_NO_PREFETCH` | `1`: `MAP_POPULATE` and `MADV_WILLNEED` are not passed on |
//! | `HINTERLAND_FAR_SOCKET` | the supervisor of far memory ([`far`]); nothing is far without it |
//! | `HINTERLAND_FAR_FIRST` | the number of the run's first process, which says that the library is there |
//! | `HINTERLAND_FAR_EAGER` | `1`: far memory begins as the library is loaded, not with the first memory that is worth it |
//! | `HINTERLAND_VERBOSE` | `1`: say of every mapping what became of it |

mod cancel;
mod far;
mod mounts;
mod speech;
mod symbols;
mod upgrade;
