//! Two ends of a connection, each kept to a processor of its own.
//!
//! Between machines the two ends never share a processor. On one machine the scheduler may put both sleeping ends on one, where waking is
//! cheap, or on two, where it costs an interrupt; it does either for minutes, and not the same for what is compared.

use hinterland_os::affinity::{CoreSet, allowed_cores};

/// Keeps all threads of two processes on two processors until it is dropped.
pub struct Apart {
    /// Processes, and where they could run before.
    kept: Vec<(u32, CoreSet)>,
}

impl Apart {
    /// Keeps one process on the first processor that may be used and the other one on the last. With one processor nothing is done.
    pub fn keep(near: u32, far: u32) -> Self {
        let cores = allowed_cores();
        let mut kept = Vec::new();
        if let [first, .., last] = cores[..] {
            for (process, core) in [(near, first), (far, last)] {
                if let (Some(core), Ok(before)) =
                    (CoreSet::one(core), CoreSet::of_thread(process.cast_signed()))
                {
                    kept.push((process, before));
                    place(process, core);
                }
            }
        }
        Self { kept }
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        for (process, before) in &self.kept {
            // Also threads that have begun meanwhile, where those lay that began them.
            place(*process, *before);
        }
    }
}

/// Lets all threads of a process run on these processors only.
fn place(process: u32, cores: CoreSet) {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{process}/task")) else { return };
    for thread in entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
        // One that has just ended needs no place.
        let _ = cores.apply(thread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn ends_are_apart_until_the_guard_goes() {
        let mut far = Command::new("sleep").arg("60").spawn().unwrap();
        let mut near = Command::new("sleep").arg("60").spawn().unwrap();
        let cores = allowed_cores();
        let places =
            || [near.id(), far.id()].map(|process| CoreSet::of_thread(process.cast_signed()).unwrap());
        let before = places().map(|set| set.count());
        let apart = Apart::keep(near.id(), far.id());
        if cores.len() > 1 {
            let [first, last] = places();
            assert!(first.count() == 1 && first.contains(cores[0]));
            assert!(last.count() == 1 && last.contains(cores[cores.len() - 1]));
        }
        drop(apart);
        assert_eq!(places().map(|set| set.count()), before);
        for child in [&mut near, &mut far] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
