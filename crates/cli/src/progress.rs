//! A bar that shows how far a transfer has come, on a terminal only.

use crate::output::{Output, columns};
use crate::size::{human, rate};
use crate::table::bar;
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// How often the bar is drawn at most: often enough to look alive, seldom enough to cost nothing.
const REDRAW: Duration = Duration::from_millis(100);
/// Characters of the bar itself.
const BAR_WIDTH: usize = 24;
/// Carriage return, and clear to the end of the line.
const FROM_START: &str = "\r\x1b[K";

/// The progress of one transfer.
pub struct Progress {
    label: String,
    total_bytes: Option<u64>,
    shown: bool,
    started: Instant,
    drawn: Option<Instant>,
}

impl Progress {
    /// Nothing has moved. `total_bytes` is absent for a stream whose end is not known.
    pub fn new(output: Output, label: &str, total_bytes: Option<u64>) -> Self {
        Self {
            label: label.to_owned(),
            total_bytes,
            shown: output.may_animate(),
            started: Instant::now(),
            drawn: None,
        }
    }

    /// So many bytes have moved in all.
    pub fn moved(&mut self, bytes: u64) {
        if !self.shown || self.drawn.is_some_and(|drawn| drawn.elapsed() < REDRAW) {
            return;
        }
        self.drawn = Some(Instant::now());
        let line = line(&self.label, bytes, self.total_bytes, self.started.elapsed());
        let line: String = line.chars().take(columns().saturating_sub(1)).collect();
        self.write(&line);
    }

    /// Takes the bar away.
    pub fn finish(&mut self) {
        if self.drawn.take().is_some() {
            self.write("");
        }
    }

    /// How long it has taken.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    fn write(&self, line: &str) {
        let mut stderr = io::stderr().lock();
        // A picture that cannot be drawn is no reason to stop the transfer.
        let _ = write!(stderr, "{FROM_START}{line}").and_then(|()| stderr.flush());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

fn line(label: &str, bytes: u64, total_bytes: Option<u64>, elapsed: Duration) -> String {
    let speed = bytes as f64 / elapsed.as_secs_f64().max(0.001);
    let Some(total) = total_bytes.filter(|total| *total > 0) else {
        return format!("{label}  {}  {}", human(bytes), rate(speed));
    };
    let share = bytes as f64 / total as f64;
    let left = total.saturating_sub(bytes) as f64 / speed.max(1.0);
    format!(
        "{label}  {} {:3.0} %  {} of {}  {}  {left:.0} s left",
        bar(share, BAR_WIDTH),
        share * 100.0,
        human(bytes),
        human(total),
        rate(speed)
    )
}

/// What a transfer moved, in words: `1.20 GiB in 1.4 s (870 MiB/s)`.
pub fn summary(bytes: u64, elapsed: Duration) -> String {
    let speed = bytes as f64 / elapsed.as_secs_f64().max(0.001);
    format!("{} in {:.1} s ({})", human(bytes), elapsed.as_secs_f64(), rate(speed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_end_shows_share_and_time_left() {
        let text = line("a", 1 << 30, Some(4 << 30), Duration::from_secs(2));
        assert_eq!(text, "a  [######------------------]  25 %  1.00 GiB of 4.00 GiB  512 MiB/s  6 s left");
    }

    #[test]
    fn a_stream_without_a_known_end_shows_bytes_and_speed() {
        assert_eq!(line("-", 2048, None, Duration::from_secs(1)), "-  2.00 KiB  2.00 KiB/s");
        assert_eq!(line("-", 0, Some(0), Duration::ZERO), "-  0 B  0 B/s");
    }
}
