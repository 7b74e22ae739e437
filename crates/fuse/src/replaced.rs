//! Names that other hosts have lately given to other objects: the kernel is to ask for them each time.
//!
//! The kernel keeps for a second where a name leads. If the object is gone when it opens it, it looks the name up once more, and only once:
//! if that object has gone too by then, the program has the error. So a name that changes often is not kept at all.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a name is asked for each time, after it had changed.
const REMEMBERED_FOR: Duration = Duration::from_secs(10);
/// Names that are remembered at most: forgetting one costs a question, or in the worst case an error of `open`.
const NAMES_MAX: usize = 4096;

/// Names that have changed, and when that was last noticed.
#[derive(Default)]
pub(crate) struct Replaced {
    names: Mutex<HashMap<Box<str>, Instant>>,
}

impl Replaced {
    /// A name leads elsewhere than the kernel had been told.
    pub(crate) fn note(&self, name: &str) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() >= NAMES_MAX {
            names.retain(|_, noticed| noticed.elapsed() < REMEMBERED_FOR);
            if names.len() >= NAMES_MAX {
                names.clear();
            }
        }
        names.insert(name.into(), Instant::now());
    }

    /// Whether a name is to be asked for each time.
    pub(crate) fn has(&self, name: &str) -> bool {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        match names.get(name) {
            None => false,
            Some(noticed) if noticed.elapsed() < REMEMBERED_FOR => true,
            Some(_) => {
                names.remove(name);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_known_and_no_more_than_so_many_names_are_kept() {
        let replaced = Replaced::default();
        assert!(!replaced.has("a"));
        replaced.note("a");
        assert!(replaced.has("a") && !replaced.has("b"));
        for name in 0..3 * NAMES_MAX {
            replaced.note(&name.to_string());
        }
        assert!(replaced.has(&(3 * NAMES_MAX - 1).to_string()) && !replaced.has("a"));
        assert!(replaced.names.lock().unwrap().len() <= NAMES_MAX);
    }
}
