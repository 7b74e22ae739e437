//! Processes that a program leaves behind as it ends: their memory goes with the run, and so do they.
//!
//! Helpers that see the end of their program end by themselves a moment later, and may have something to clean up. Whoever is there still is a daemon, or was started in the
//! background: its words go nowhere, so the run says what becomes of it. The service goes on until all of them have ended: a child that has just been forked, and has nobody yet who
//! would end it, would find zeros.
//!
//! Who was made past the C library (the system call `clone`, or `_Fork`) has never said who it is, and nothing in it sees the end of the run: it would read zeros, too. It is
//! found by the variable that all programs of the run were started with, and by its memory that is under service. Any process of the host may be one, also one that the kernel says nothing
//! of ([`looks`]): that one is passed over, as its old memory is gone.

use crate::engine::Engine;
use crate::evict;
use crate::words::say;
use hinterland_os::process::{ProcessHandle, text_of};
use hinterland_os::{looks, mappings};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

const SIGKILL: i32 = 9;
/// How long they may take to end by themselves.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long the kernel may take to end them.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// Pause between two looks.
const INTERVAL: Duration = Duration::from_millis(5);
/// Pause between two looks through all processes of the host.
const SEARCH_INTERVAL: Duration = Duration::from_millis(200);
/// How long one process may keep the search.
const LOOK_PATIENCE: Duration = Duration::from_millis(500);
/// What programs of a run know its socket by.
const SOCKET_VARIABLE: &[u8] = b"HINTERLAND_FAR_SOCKET=";
/// How `smaps` marks memory whose missing pages a userfaultfd serves.
const SERVED_FLAG: &str = "um";
/// How many are named.
const NAMED_MAX: usize = 8;

/// Whose memory is served still.
struct Living {
    /// Processes that are known.
    processes: Vec<i32>,
    /// An address under service of each process that has not said who it is.
    places: Vec<u64>,
}

/// Waits for those that end by themselves, ends the others and tells of them. The run is over then: nobody begins any more.
pub(crate) fn end(engine: &Engine, socket: &Path) {
    let since = Instant::now();
    let mut left = BTreeMap::new();
    let mut search_at = PATIENCE;
    while let Some(Living { mut processes, places }) =
        living_or_over(engine, since.elapsed() >= PATIENCE + END_PATIENCE)
    {
        if since.elapsed() >= PATIENCE {
            if !places.is_empty() && since.elapsed() >= search_at {
                processes.extend(strangers(socket, &places));
                search_at = since.elapsed() + SEARCH_INTERVAL;
            }
            for process in processes {
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

/// The processes that memory is served of; `None`, and the run is over, if there is no such memory or nobody waits for its end any more.
fn living_or_over(engine: &Engine, is_late: bool) -> Option<Living> {
    let mut known = engine.lock();
    evict::sweep(&mut known);
    // Memory of this process, where a service is tried within one, ends with whoever asks for the end.
    let own = std::process::id().cast_signed();
    let mut living = Living { processes: Vec::new(), places: Vec::new() };
    let mut is_anybody_there = false;
    for space in known.spaces.values().filter(|space| space.process != own) {
        is_anybody_there = true;
        if space.process > 0 {
            living.processes.push(space.process);
        } else {
            living.places.extend(space.table.known(0, u64::MAX).first().map(|(start, _)| *start));
        }
    }
    if !is_anybody_there || is_late {
        known.is_over = true;
        return None;
    }
    Some(living)
}

/// Processes of the run that have memory under service at one of these places.
fn strangers(socket: &Path, places: &[u64]) -> Vec<i32> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = all.filter_map(|process| process.file_name().to_str()?.parse::<i32>().ok());
    numbers.filter(|process| is_stranger(*process, socket, places)).collect()
}

fn is_stranger(process: i32, socket: &Path, places: &[u64]) -> bool {
    let (wanted, places) = ([SOCKET_VARIABLE, socket.as_os_str().as_bytes()].concat(), places.to_vec());
    let look = move || is_of_run(process, &wanted) && has_served(process, &places);
    // Numbers of processes are not negative.
    let number = process.cast_unsigned();
    !looks::is_becoming_another(number) && looks::in_time(number, LOOK_PATIENCE, look).unwrap_or(false)
}

/// Whether a process was started with this variable.
fn is_of_run(process: i32, wanted: &[u8]) -> bool {
    // What a program has written over its variables since is no such word.
    let variables = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
    variables.split(|byte| *byte == 0).any(|variable| variable == wanted)
}

/// Whether a process has memory under the service of a userfaultfd at one of these places.
fn has_served(process: i32, places: &[u64]) -> bool {
    let found = mappings::flags_of_process(process, |range, flags| {
        let is_one = places.iter().any(|place| range.contains(place));
        (is_one && mappings::has_flag(flags, SERVED_FLAG)).then_some(())
    });
    found.is_ok_and(|found| !found.is_empty())
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
