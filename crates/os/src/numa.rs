//! The NUMA nodes that a process takes memory of files from.
//!
//! Memory of CXL devices and of persistent DIMMs that the kernel uses as memory is a NUMA node without processors: files
//! whose pages are made on it lie on the device, and pages that are made on several in turn are interleaved over them.

use crate::error::{OsError, check};
use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;
use std::sync::OnceLock;

/// NUMA nodes that a kernel may have.
const NODES_MAX: usize = 1024;
const WORD_BITS: usize = 64;
const FOLDER: &str = "/sys/devices/system/node";

static CHOSEN: OnceLock<NumaNodes> = OnceLock::new();

/// Some NUMA nodes, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaNodes(Vec<usize>);

/// Why a text names no NUMA nodes.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} names no NUMA nodes (hint: numbers below {NODES_MAX}, such as 1 or 0,2 or 1-3)")]
pub struct NotNumaNodes(String);

impl FromStr for NumaNodes {
    type Err = NotNumaNodes;

    fn from_str(text: &str) -> Result<Self, NotNumaNodes> {
        let wrong = || NotNumaNodes(text.to_owned());
        let number =
            |part: &str| part.parse().ok().filter(|&node: &usize| node < NODES_MAX).ok_or_else(wrong);
        let mut nodes = Vec::new();
        for part in text.trim().split(',') {
            match part.split_once('-') {
                Some((first, last)) => nodes.extend(number(first)?..=number(last)?),
                None => nodes.push(number(part)?),
            }
        }
        nodes.sort_unstable();
        nodes.dedup();
        if nodes.is_empty() { Err(wrong()) } else { Ok(Self(nodes)) }
    }
}

impl fmt::Display for NumaNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&numbers.join(","))
    }
}

impl NumaNodes {
    /// Those of this machine that have memory; `None` where the kernel does not say.
    pub fn with_memory() -> Option<Self> {
        listed("has_memory")
    }

    /// Those that have memory and no processor.
    pub fn without_processors() -> Vec<usize> {
        let with = listed("has_cpu").map_or_else(Vec::new, |nodes| nodes.0);
        let all = Self::with_memory().map_or_else(Vec::new, |nodes| nodes.0);
        all.into_iter().filter(|node| !with.contains(node)).collect()
    }

    /// From here on the pages of files are made on these by this process, on several in turn.
    ///
    /// # Errors
    /// [`OsError::Refused`] if one of them has no memory, or others were chosen before; the kernel's refusal.
    pub fn choose(self) -> Result<(), OsError> {
        let refused = |reason: String| OsError::Refused {
            operation: "choosing NUMA nodes",
            reason,
            hint: "`numactl --hardware` shows which have memory".into(),
        };
        if let Some(there) = Self::with_memory()
            && let Some(missing) = self.0.iter().find(|node| !there.0.contains(node))
        {
            return Err(refused(format!("node {missing} has no memory (those that have: {there})")));
        }
        self.apply()?;
        set_default();
        if *CHOSEN.get_or_init(|| self.clone()) == self {
            return Ok(());
        }
        Err(refused(format!("others than {self} were chosen before")))
    }

    fn apply(&self) -> Result<(), OsError> {
        let mut mask = [0_u64; NODES_MAX / WORD_BITS];
        for node in &self.0 {
            mask[node / WORD_BITS] |= 1 << (node % WORD_BITS);
        }
        let mode = if self.0.len() == 1 { libc::MPOL_BIND } else { libc::MPOL_INTERLEAVE };
        // SAFETY: the mask has the bits that are said, and lives through the call.
        let result = unsafe {
            libc::syscall(libc::SYS_set_mempolicy, mode, mask.as_ptr(), NODES_MAX as libc::c_ulong)
        };
        // The call returns 0 or -1.
        check(result as libc::c_int, "set_mempolicy", || format!("NUMA nodes {self}")).map(drop).map_err(
            |error| {
                // The kernel itself refuses nobody: a filter of system calls does.
                match error.errno() {
                    Some(libc::EPERM) => error.with_hint(
                        "a container may not choose NUMA nodes: start it with `--cap-add SYS_NICE`",
                    ),
                    _ => error,
                }
            },
        )
    }
}

/// Does something that makes pages, on the nodes that were chosen.
pub(crate) fn on_chosen<T>(make: impl FnOnce() -> T) -> T {
    let Some(nodes) = CHOSEN.get() else { return make() };
    // The kernel took them once; what it refuses now comes from anywhere.
    let _ = nodes.apply();
    let made = make();
    set_default();
    made
}

/// The thread's memory comes from anywhere again.
fn set_default() {
    let none = std::ptr::null::<u64>();
    // SAFETY: without a mask; it cannot fail.
    unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_DEFAULT, none, 0 as libc::c_ulong) };
}

fn listed(name: &str) -> Option<NumaNodes> {
    fs::read_to_string(Path::new(FOLDER).join(name)).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_read_as_the_kernel_writes_them_and_nothing_else_is() {
        for (text, shown) in [("0", "0"), ("2,1", "1,2"), ("0-2,7\n", "0,1,2,7"), ("1,1", "1")] {
            assert_eq!(text.parse::<NumaNodes>().unwrap().to_string(), shown);
        }
        for text in ["", "a", "-1", "1-", "3-1", "1024", "1;2"] {
            assert!(text.parse::<NumaNodes>().unwrap_err().to_string().contains("hint:"), "{text}");
        }
    }

    #[test]
    fn a_node_without_memory_is_refused_and_the_thread_is_as_before() {
        let Some(there) = NumaNodes::with_memory() else {
            return eprintln!("not run: the kernel has no NUMA");
        };
        let error = NumaNodes(vec![NODES_MAX - 1]).choose().unwrap_err().to_string();
        assert!(error.contains("has no memory") && error.contains("hint:"), "{error}");
        assert_eq!(policy(), libc::MPOL_DEFAULT);
        there.apply().unwrap();
        let applied = if there.0.len() == 1 { libc::MPOL_BIND } else { libc::MPOL_INTERLEAVE };
        assert_eq!(policy(), applied);
        set_default();
        assert_eq!(policy(), libc::MPOL_DEFAULT);
    }

    fn policy() -> libc::c_int {
        let mut mode: libc::c_int = -1;
        let none = std::ptr::null_mut::<u64>();
        // SAFETY: the kernel writes one number; nothing else is asked for.
        let result = unsafe { libc::syscall(libc::SYS_get_mempolicy, &mut mode, none, 0, none, 0) };
        assert_eq!(result, 0);
        mode
    }
}
