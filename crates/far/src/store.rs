//! Back ends: where content is while it is far.
//!
//! A back end is one file in `store/` with one type that implements [`Store`]. All others of the modules are about using several
//! at once:
//!
//! | module | subject |
//! | --- | --- |
//! | `stores` | all back ends of a run: content goes in, members come and go |
//! | `placing` | which of them take content |
//! | `member` | one back end in use, and what it has moved |
//! | `meter` | how quick it is of late |
//! | `copy` | content that back ends have |
//! | `moving` | content that moves to other back ends in the background |
//! | `disk`, `packed`, `pooled` | back ends; `slots` are the places of `disk`, `reserve` is what `packed` leaves of the host |

mod copy;
mod disk;
mod member;
mod meter;
mod moving;
mod packed;
mod placing;
mod pooled;
mod reserve;
mod slots;
mod stores;

pub use copy::Copy;
pub use disk::Disk;
pub use member::{Life, MemberState};
pub use packed::{Codec, Packed};
pub use pooled::Pooled;
pub use stores::{AddError, FewError, RetireError, Stores};

use hinterland_os::OsError;

/// The longest content of all: a huge page.
pub const CONTENT_BYTES_MAX: usize = 2 << 20;

/// Why a back end did not do what it was asked for.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// It has no room.
    #[error("{name} is full (hint: give it more room, or name another back end beside it with --far)")]
    Full {
        /// Which back end.
        name: String,
    },
    /// The host that it is on has hardly any memory left.
    #[error(
        "{name} takes no more, because this host has hardly any memory left (hint: name another back end beside it with --far, or end \
         what else needs memory)"
    )]
    Short {
        /// Which back end.
        name: String,
    },
    /// It failed.
    #[error(
        "{name} failed: {reason} (hint: name another back end with --far, and keep two copies with --copies 2)"
    )]
    Failed {
        /// Which back end.
        name: String,
        /// What it said.
        reason: String,
    },
}

/// Why a back end in use does not get another size.
#[derive(Debug, thiserror::Error)]
pub enum ResizeError {
    /// It has no size that could be changed.
    #[error("{name} keeps the size that it has (hint: name it without a size)")]
    Fixed {
        /// Which back end.
        name: String,
    },
    /// It has content that would be beyond its end.
    #[error(
        "{name} has content that does not fit into this size (hint: give it more; or move everything to another back end, and back)"
    )]
    Held {
        /// Which back end.
        name: String,
    },
    /// The system refused it.
    #[error("{0} (hint: name a size for which there is room)")]
    Refused(OsError),
}

/// Where a back end has something: words of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// First word.
    pub at: u64,
    /// Second word.
    pub bytes: u32,
}

/// A back end. Calls come from several threads at once. Content is at most 2 MiB and never changes: it is put once, read any
/// number of times, and freed.
pub trait Store: Send + Sync {
    /// What people call it, as in the report.
    fn name(&self) -> &str;

    /// Keeps content.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is kept then.
    fn put(&self, content: &[u8]) -> Result<Place, StoreError>;

    /// Reads content back, all of it.
    ///
    /// # Errors
    /// [`StoreError::Failed`]; what is in `content` then means nothing.
    fn get(&self, place: Place, content: &mut [u8]) -> Result<(), StoreError>;

    /// Keeps several contents, in one go where that is quicker. One result each, in their order, as from [`put`](Self::put); after one that failed
    /// the others may fail alike, untried.
    fn put_all(&self, contents: &[&[u8]]) -> Vec<Result<Place, StoreError>> {
        let mut failure = None;
        contents.iter().map(|content| unless_failed(&mut failure, || self.put(content))).collect()
    }

    /// Reads several contents back, in one go where that is quicker. One result each, in their order, as from [`get`](Self::get); after one that
    /// failed the others may fail alike, untried.
    fn get_all(&self, wanted: &mut [(Place, &mut [u8])]) -> Vec<Result<(), StoreError>> {
        let mut failure = None;
        wanted
            .iter_mut()
            .map(|(place, content)| unless_failed(&mut failure, || self.get(*place, content)))
            .collect()
    }

    /// Forgets content.
    fn free(&self, place: Place);

    /// The longest content that it takes.
    fn content_bytes_max(&self) -> usize {
        CONTENT_BYTES_MAX
    }

    /// Whether content takes just as much as it is long, or less: where each takes a place of one size, short content is a waste.
    fn is_exact(&self) -> bool {
        false
    }

    /// Whether whoever reads sleeps meanwhile, as with a disk or another host.
    fn sleeps(&self) -> bool {
        false
    }

    /// Most bytes that it takes, as it counts them: what compresses counts what comes out.
    fn limit_bytes(&self) -> u64 {
        u64::MAX
    }

    /// Takes so many bytes at most from here on; what it has stays.
    ///
    /// # Errors
    /// [`ResizeError`]; it is as before then.
    fn resize(&self, _bytes: u64) -> Result<(), ResizeError> {
        Err(ResizeError::Fixed { name: self.name().to_owned() })
    }

    /// A number for the disk or the link behind it, the same for every run of this host that uses it; `None` for memory.
    fn device(&self) -> Option<u64> {
        None
    }

    /// Bytes of memory of this host that it takes.
    fn memory_bytes(&self) -> u64 {
        0
    }
}

/// Does one of several things, unless one before it failed: a back end that does not answer would be waited for again with each.
fn unless_failed<T>(
    failure: &mut Option<StoreError>,
    act: impl FnOnce() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    if let Some(failure) = failure {
        return Err(failure.clone());
    }
    let result = act();
    if let Err(error @ StoreError::Failed { .. }) = &result {
        *failure = Some(error.clone());
    }
    result
}

#[cfg(test)]
mod tests;
