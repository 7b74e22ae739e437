//! The mappings of another process, as `/proc/PID/smaps` tells them.

use std::ops::Range;

use crate::error::OsError;

/// The mappings of a process, in order, with their flags as the kernel names them, two letters each. The kernel walks all memory of the process for that.
///
/// # Errors
/// The refusal of `/proc/PID/smaps`: the process has ended, or is another user's.
pub fn flags_of_process<T>(
    process: i32,
    mut look: impl FnMut(Range<u64>, &str) -> Option<T>,
) -> Result<Vec<T>, OsError> {
    let path = format!("/proc/{process}/smaps");
    let text = std::fs::read_to_string(&path).map_err(|error| OsError::system("reading", path, error))?;
    Ok(parse(&text, &mut look))
}

/// Whether flags have one.
pub fn has_flag(flags: &str, flag: &str) -> bool {
    flags.split_ascii_whitespace().any(|other| other == flag)
}

pub(crate) fn parse<T>(smaps: &str, look: &mut impl FnMut(Range<u64>, &str) -> Option<T>) -> Vec<T> {
    let mut found = Vec::new();
    let mut current = None;
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            found.extend(current.take().and_then(|range| look(range, flags)));
        } else if let Some(range) = range(line) {
            current = Some(range);
        }
    }
    found
}

/// The range at the start of the first line of a mapping.
fn range(line: &str) -> Option<Range<u64>> {
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
}
