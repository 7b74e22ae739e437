//! What a lock home keeps on its disk: which life it lives, below which fence all may have been given, and how long a lease is believed.

use hinterland_directory::locks::Fence;
use std::fs::{self, File};
use std::io::{Error, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The file with both.
pub struct KeptFences {
    path: PathBuf,
    life: u64,
    given: Option<Fence>,
    lease_before_ms: u64,
    /// The highest fence that the file has had; held while it is written.
    highest: Mutex<Fence>,
}

/// The lease of files that do not say one: the default.
const LEASE_BEFORE_MS: u64 = 3000;

impl KeptFences {
    /// Reads `locks` in the folder of the node's state; a node without one lives for the first time.
    ///
    /// # Errors
    /// [`Error`] if it cannot be read, or holds something else.
    pub fn open(state: &Path) -> Result<Self, Error> {
        let path = state.join("locks");
        match fs::read_to_string(&path) {
            Ok(text) => {
                let words = "it does not hold the life and the fence of this node's locks";
                let (life, given, lease_before_ms) =
                    parse(&text).ok_or_else(|| Error::new(ErrorKind::InvalidData, words))?;
                let (life, given, highest) = (life + 1, Some(Fence(given)), Mutex::new(Fence(given)));
                Ok(Self { path, life, given, lease_before_ms, highest })
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Ok(Self { path, life: 1, given: None, lease_before_ms: 0, highest: Mutex::default() })
            }
            Err(error) => Err(error),
        }
    }

    /// Which life this is.
    pub const fn life(&self) -> u64 {
        self.life
    }

    /// What the life before may have given.
    pub const fn given(&self) -> Option<Fence> {
        self.given
    }

    /// The longest lease of lives before in which somebody may believe, in milliseconds; 0 if there was none.
    pub const fn lease_before_ms(&self) -> u64 {
        self.lease_before_ms
    }

    /// Notes durably that fences below this one may be given in this life, and leases of up to so many milliseconds. A higher fence that is
    /// noted stays, whoever comes last.
    ///
    /// # Errors
    /// [`Error`] if the disk does not take it; the file is then as before.
    pub fn keep(&self, fence: Fence, lease_ms: u64) -> Result<(), Error> {
        let mut highest = self.highest.lock().unwrap_or_else(PoisonError::into_inner);
        let fence = fence.max(*highest);
        let fresh = self.path.with_extension("new");
        let mut file = File::create(&fresh)?;
        writeln!(file, "{} {} {lease_ms}", self.life, fence.0)?;
        file.sync_all()?;
        fs::rename(&fresh, &self.path)?;
        // The file has it, whether or not it is known to last.
        *highest = fence;
        match self.path.parent() {
            Some(folder) => File::open(folder)?.sync_all(),
            None => Ok(()),
        }
    }
}

fn parse(text: &str) -> Option<(u64, u64, u64)> {
    // Without the end of its line it was cut off, and what is left of a fence is a lower one.
    let (life, rest) = text.strip_suffix('\n')?.split_once(' ')?;
    let (given, lease_ms) = match rest.split_once(' ') {
        Some((given, lease_ms)) => (given, lease_ms.parse().ok()?),
        None => (rest, LEASE_BEFORE_MS),
    };
    Some((life.parse().ok()?, given.parse().ok()?, lease_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_keeps_fences_at_once_keeps_the_highest() {
        let folder = std::env::temp_dir().join(format!("hl-fences-at-once-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let kept = KeptFences::open(&folder).unwrap();
        for round in 1..50_u64 {
            std::thread::scope(|scope| {
                for digits in 0..4 {
                    let (kept, fence) = (&kept, Fence(round * 100_000 / 10_u64.pow(digits)));
                    scope.spawn(move || kept.keep(fence, 400).unwrap());
                }
            });
            let found = KeptFences::open(&folder).unwrap();
            assert_eq!((found.life(), found.given()), (2, Some(Fence(round * 100_000))));
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn each_life_is_higher_and_knows_what_the_last_one_may_have_given() {
        let folder = std::env::temp_dir().join(format!("hl-fences-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let first = KeptFences::open(&folder).unwrap();
        assert_eq!((first.life(), first.given()), (1, None));
        first.keep(Fence(700), 9000).unwrap();
        let second = KeptFences::open(&folder).unwrap();
        assert_eq!((second.life(), second.given(), second.lease_before_ms()), (2, Some(Fence(700)), 9000));
        fs::write(folder.join("locks"), "5 800\n").unwrap();
        let third = KeptFences::open(&folder).unwrap();
        assert_eq!((third.life(), third.given(), third.lease_before_ms()), (6, Some(Fence(800)), 3000));
        for wrong in ["2 x\n", "2\n", "2 3 x\n", "2 3 4 5\n", "", "2 3 4", "2 3"] {
            fs::write(folder.join("locks"), wrong).unwrap();
            assert_eq!(KeptFences::open(&folder).err().unwrap().kind(), ErrorKind::InvalidData, "{wrong}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
