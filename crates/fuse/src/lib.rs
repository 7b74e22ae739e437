//! Sealed objects of a pool as files, and name components as folders, through FUSE; new files become objects if wanted.
//!
//! | module | subject |
//! | --- | --- |
//! | [`source`] | what the file system needs of a pool |
//! | `pool_source` | the pool of the local node as that |
//! | `absence` | a node that is away, for all who wait for it |
//! | `silence` | a node that is there and does not answer, in the log |
//! | `tree` | inode numbers: files by object, folders by path |
//! | `listing` | one folder's entries out of sorted object names |
//! | `attributes` | what `stat` and extended attributes say |
//! | `open_files` | how the bytes of an open file are reached |
//! | `scratch` | memory for the bytes of a file that is being written |
//! | `contents` | those bytes, together with what the file was and what has gone to the pool |
//! | `draft` | one file that is being written |
//! | `drafts` | all of them, by inode number and by name |
//! | `writer` | who writes them, and how that ends |
//! | `family` | whether processes can still reach one of them |
//! | `looks` | looks at processes that may wait for the mount |
//! | `folders` | folders that were made and hold nothing yet |
//! | `remembered` | modes, owners and times, which the pool does not keep |
//! | `replaced` | names that other hosts have lately given to other objects |
//! | `coming` | threads that look a name up again, and what was opened for them |
//! | `filesystem` | the tree of files: finding, listing, reading |
//! | `opening` | opening, writing, closing and publishing |
//! | `names` | removing and renaming |
//! | `links` | symbolic links |
//! | `settings` | lengths, modes, owners, times and extended attributes that programs set |
//! | `requests` | the kernel's requests |
//! | [`mount`] | mounting, unmounting, and why it cannot be done |
//! | [`machine`] | what this machine offers to FUSE |
//!
//! An object's file has the object's identifier as inode number, so a program that holds a descriptor
//! can ask the node for the same object without knowing its name. An object that is opened for writing becomes a file with a number
//! of its own: the kernel is told that what it has is stale, looks the name up again, and finds that one. So readers of the object keep
//! it, and its pages in the page cache stay what they are.
//!
//! When the node that the mount talks to holds an object in a file of its own, the kernel is given that
//! file and passes reads and mappings through to it (Linux 6.9 and root). Everything else is read through
//! the pool in requests of up to 1 MiB and kept in the page cache, which never goes stale because sealed
//! objects never change. Cache files are never passed through: they may be evicted, and a hole reads as
//! zeros. Files on hugetlbfs are not passed through either: FUSE places mappings at 4 KiB boundaries, and
//! the kernel does not check that a mapping of huge pages which it reaches this way is aligned.
//!
//! FUSE over io_uring, which the kernel has from 6.14 on, is not used: the `fuser` crate speaks the
//! classic `/dev/fuse` protocol only (`docs/decisions/2026-11-25-io-uring.md`).
#![forbid(unsafe_code)]

mod absence;
mod attributes;
mod coming;
mod contents;
mod draft;
mod drafts;
mod family;
mod filesystem;
mod folders;
mod links;
mod listing;
pub mod machine;
pub mod mount;
mod names;
mod open_files;
mod opening;
mod pool_source;
mod remembered;
mod replaced;
mod requests;
mod scratch;
mod settings;
mod silence;
pub mod source;
mod tree;
mod writer;

pub use hinterland_pool::ReadPreference;
pub use mount::{MountError, MountOptions, Mounted, Unmounted, mount};
pub use pool_source::PoolSource;
pub use source::{Contents, NewObject, Placing, ReadAt, Source, SourceError, Space};
