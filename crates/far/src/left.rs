//! Processes that a program leaves behind as it ends: their memory goes with the run, and so do they.
//!
//! Helpers that see the end of their program end by themselves a moment later, and may have something to clean up. Whoever is there still is a daemon, or was started in the
//! background: its words go nowhere, so the run says what becomes of it. The service goes on until all of them have ended: a child that has just been forked, and has nobody yet who
//! would end it, would find zeros.

use crate::engine::Engine;
use crate::evict;
use crate::words::say;
use hinterland_os::process::{ProcessHandle, text_of};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const SIGKILL: i32 = 9;
/// How long they may take to end by themselves.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long the kernel may take to end them.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// Pause between two looks.
const INTERVAL: Duration = Duration::from_millis(5);
/// How many are named.
const NAMED_MAX: usize = 8;

/// Waits for those that end by themselves, ends the others and tells of them. The run is over then: nobody begins any more.
pub(crate) fn end(engine: &Engine) {
    let since = Instant::now();
    let mut left = BTreeMap::new();
    while let Some(living) = living_or_over(engine, since.elapsed() >= PATIENCE + END_PATIENCE) {
        if since.elapsed() >= PATIENCE {
            for process in living {
                left.entry(process).or_insert_with(|| name(process));
                // One that has ended meanwhile needs nothing more.
                let _ = ProcessHandle::open(process).and_then(|process| process.signal(SIGKILL));
            }
        }
        std::thread::sleep(INTERVAL);
    }
    if !left.is_empty() {
        say(sentence(&left.into_iter().collect::<Vec<_>>()));
    }
}

/// The processes that memory is served of, as far as they are known; `None`, and the run is over, if there is no such memory or nobody waits for its end any more.
fn living_or_over(engine: &Engine, is_late: bool) -> Option<Vec<i32>> {
    let mut known = engine.lock();
    evict::sweep(&mut known);
    // Memory of this process, where a service is tried within one, ends with whoever asks for the end.
    let own = std::process::id().cast_signed();
    let others = known.spaces.values().map(|space| space.process).filter(|process| *process != own);
    let others: Vec<i32> = others.collect();
    if others.is_empty() || is_late {
        known.is_over = true;
        return None;
    }
    Some(others.into_iter().filter(|process| *process > 0).collect())
}

fn name(process: i32) -> String {
    let name = text_of(format!("/proc/{process}/comm")).unwrap_or_default();
    name.trim_end().chars().filter(|one| !one.is_control()).collect()
}

fn sentence(left: &[(i32, String)]) -> String {
    let mut names: Vec<String> =
        left.iter().take(NAMED_MAX).map(|(process, name)| format!("{name} ({process})")).collect();
    if left.len() > NAMED_MAX {
        names.push(format!("{} more", left.len() - NAMED_MAX));
    }
    let (what, are, is) =
        if left.len() == 1 { ("a process", "is", "its") } else { ("processes", "are", "their") };
    format!(
        "the program has ended and left {what} behind, which {are} ended, since {is} memory goes with the run: {} (hint: have the program stay in the \
         foreground, or wait for what it starts)",
        names.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_left_is_named_up_to_a_limit() {
        let one = sentence(&[(7, "server".into())]);
        assert!(
            one.contains("left a process behind, which is ended") && one.contains(": server (7) ("),
            "{one}"
        );
        let many: Vec<_> = (1..=11).map(|process| (process, "worker".to_owned())).collect();
        let many = sentence(&many);
        assert!(many.contains("worker (8), 3 more (hint") && !many.contains("worker (9)"), "{many}");
    }
}
