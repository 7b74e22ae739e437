//! Sealed objects of a pool as files, and name components as folders, through FUSE; new files become objects if wanted.
//!
//! | module | subject |
//! | --- | --- |
//! | [`source`] | what the file system needs of a pool |
//! | `pool_source` | the pool of the local node as that |
//! | `tree` | inode numbers: files by object, folders by path |
//! | `listing` | one folder's entries out of sorted object names |
//! | `attributes` | what `stat` and extended attributes say |
//! | `open_files` | how the bytes of an open file are reached |
//! | `drafts` | files that are being written |
//! | `writer` | who writes them, and how that ends |
//! | `folders` | folders that were made and hold nothing yet |
//! | `filesystem` | the kernel's requests |
//! | [`mount`] | mounting, unmounting, and why it cannot be done |
//! | [`machine`] | what this machine offers to FUSE |
//!
//! An object's file has the object's identifier as inode number, so a program that holds a descriptor
//! can ask the node for the same object without knowing its name.
//!
//! When the node that the mount talks to holds an object in a file of its own, the kernel is given that
//! file and passes reads and mappings through to it (Linux 6.9 and root). Everything else is read through
//! the pool in requests of up to 1 MiB and kept in the page cache, which never goes stale because sealed
//! objects never change. Cache files are never passed through: they may be evicted, and a hole reads as
//! zeros. Files on hugetlbfs are not passed through either: FUSE places mappings at 4 KiB boundaries, and
//! the kernel does not check that a mapping of huge pages which it reaches this way is aligned.
//!
//! FUSE over io_uring, which the kernel has from 6.14 on, is not used: the `fuser` crate speaks the
//! classic `/dev/fuse` protocol only.
#![forbid(unsafe_code)]

mod attributes;
mod drafts;
mod filesystem;
mod folders;
mod listing;
pub mod machine;
pub mod mount;
mod open_files;
mod pool_source;
pub mod source;
mod tree;
mod writer;

pub use mount::{MountError, MountOptions, Mounted, Unmounted, mount};
pub use pool_source::{PoolSource, ReadPreference};
pub use source::{Contents, NewObject, ReadAt, Source, SourceError, Space};
