//! Idle processors: how many threads want one, and keeping them from sleep.

use crate::error::OsError;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::time::Duration;

/// Where the kernel takes the longest time in which processors have to wake up.
const LATENCY_FILE: &str = "/dev/cpu_dma_latency";

/// Threads of this machine that run or want to, the calling one among them; `None` where the kernel does not tell.
pub fn runnable_threads() -> Option<usize> {
    runnable(&std::fs::read_to_string("/proc/loadavg").ok()?)
}

/// The fourth word of the kernel's line, before its slash.
fn runnable(line: &str) -> Option<usize> {
    line.split_ascii_whitespace().nth(3)?.split_once('/')?.0.parse().ok()
}

/// How long idle processors of this virtual machine look for work before the host stops them; `None` where the kernel has no such governor.
pub fn look_time() -> Option<Duration> {
    let governor = std::fs::read_to_string("/sys/devices/system/cpu/cpuidle/current_governor").ok()?;
    let time = std::fs::read_to_string("/sys/module/haltpoll/parameters/guest_halt_poll_ns").ok()?;
    look_time_of(&governor, &time)
}

/// What the two files say.
fn look_time_of(governor: &str, time: &str) -> Option<Duration> {
    (governor.trim() == "haltpoll").then(|| time.trim().parse().ok().map(Duration::from_nanos)).flatten()
}

/// As long as it lives, idle processors of this machine look for work and do not sleep: whoever is woken runs sooner, by 10 us and more in a
/// virtual machine, where a sleeping processor has to be woken by the host. It ends with the process, in whatever way that ends.
#[derive(Debug)]
pub struct Wakefulness {
    _file: File,
}

impl Wakefulness {
    /// Keeps them awake from here on.
    ///
    /// # Errors
    /// Without the right to, and where the kernel has no such file.
    pub fn begin() -> Result<Self, OsError> {
        let begun = OpenOptions::new().write(true).open(LATENCY_FILE).and_then(|mut file| {
            // In microseconds, a word of four bytes.
            file.write_all(&0i32.to_ne_bytes())?;
            Ok(Self { _file: file })
        });
        begun.map_err(|error| OsError::system("keeping processors awake", LATENCY_FILE, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_governor_of_virtual_machines_has_a_time() {
        assert_eq!(look_time_of("haltpoll\n", "200000\n"), Some(Duration::from_micros(200)));
        assert_eq!(look_time_of("haltpoll\n", "0\n"), Some(Duration::ZERO));
        assert_eq!(look_time_of("menu\n", "200000\n"), None);
    }

    #[test]
    fn threads_that_run_are_counted() {
        assert_eq!(runnable("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!(runnable("0.20 0.18 0.12"), None);
        // This one runs.
        assert!(runnable_threads().unwrap() >= 1);
    }
}
