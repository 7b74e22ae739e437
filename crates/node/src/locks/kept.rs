//! What a lock home keeps on its disk: which life it lives, and below which fence all may have been given.

use hinterland_directory::locks::Fence;
use std::fs::{self, File};
use std::io::{Error, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The file with both.
pub struct KeptFences {
    path: PathBuf,
    life: u64,
    given: Option<Fence>,
}

impl KeptFences {
    /// Reads `locks` in the folder of the node's state; a node without one lives for the first time.
    ///
    /// # Errors
    /// [`Error`] if it cannot be read, or holds something else.
    pub fn open(state: &Path) -> Result<Self, Error> {
        let path = state.join("locks");
        match fs::read_to_string(&path) {
            Ok(text) => {
                let (life, given) = parse(&text).ok_or_else(|| {
                    let text = format!(
                        "{} does not hold the life and the fence of this node's locks (hint: if the pool has no locks of this node any more, remove it)",
                        path.display()
                    );
                    Error::new(ErrorKind::InvalidData, text)
                })?;
                Ok(Self { path, life: life + 1, given: Some(Fence(given)) })
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self { path, life: 1, given: None }),
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

    /// Notes durably that fences below this one may be given in this life.
    ///
    /// # Errors
    /// [`Error`] if the disk does not take it; the file is then as before.
    pub fn keep(&self, fence: Fence) -> Result<(), Error> {
        let fresh = self.path.with_extension("new");
        let mut file = File::create(&fresh)?;
        writeln!(file, "{} {}", self.life, fence.0)?;
        file.sync_all()?;
        fs::rename(&fresh, &self.path)?;
        match self.path.parent() {
            Some(folder) => File::open(folder)?.sync_all(),
            None => Ok(()),
        }
    }
}

fn parse(text: &str) -> Option<(u64, u64)> {
    let (life, given) = text.trim_end().split_once(' ')?;
    Some((life.parse().ok()?, given.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_life_is_higher_and_knows_what_the_last_one_may_have_given() {
        let folder = std::env::temp_dir().join(format!("hl-fences-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let first = KeptFences::open(&folder).unwrap();
        assert_eq!((first.life(), first.given()), (1, None));
        first.keep(Fence(700)).unwrap();
        let second = KeptFences::open(&folder).unwrap();
        assert_eq!((second.life(), second.given()), (2, Some(Fence(700))));
        fs::write(folder.join("locks"), "2 x").unwrap();
        assert!(KeptFences::open(&folder).err().unwrap().to_string().contains("hint"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
