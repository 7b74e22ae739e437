//! Who a process is, as the kernel tells: a program may be in a PID namespace of its own, and the numbers that it knows are others here.

use crate::engine::{Known, Space};
use crate::evict;
use hinterland_os::process::text_of;

/// A process that greets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// Its number here.
    pub process: i32,
    /// The process that forked it, or that it was left to.
    pub parent: i32,
    /// Its number in its own PID namespace, which is also that of its first thread.
    pub own_number: u32,
    /// Whether its numbers are the ones here.
    pub is_numbered_here: bool,
}

impl Peer {
    /// What is known of a process; `None` if it has ended.
    pub(crate) fn of(process: i32) -> Option<Self> {
        Self::parse(process, &text_of(format!("/proc/{process}/status")).ok()?)
    }

    /// Its space, if it is a child of `fork` that greets. A child's space is there before the child runs, so that where its parent has forked only one
    /// that is not known yet, there is no other that it could be. Else the thread of a fault tells, once the child has touched its probe (`is_probed`).
    pub(crate) fn child(self, known: &mut Known, is_probed: bool) -> Option<&mut Space> {
        let mut id = self.only_child(known, is_probed);
        if id.is_none() && is_probed {
            // One that has ended may have had the same number.
            evict::sweep(known);
            id = self.only_child(known, is_probed);
        }
        let space = known.spaces.get_mut(&id?)?;
        space.process = self.process;
        space.is_numbered_here = self.is_numbered_here;
        Some(space)
    }

    fn only_child(self, known: &Known, is_probed: bool) -> Option<u64> {
        let is_it = |space: &Space, is_own: bool| {
            let is_thread = space.thread == self.own_number || (!is_probed && space.thread == 0);
            space.is_child && space.process == 0 && is_thread && (!is_own || space.parent == self.parent)
        };
        let only = |is_own: bool| {
            let mut found = known.spaces.iter().filter(|(_, space)| is_it(space, is_own));
            found.next().map(|(id, _)| *id).filter(|_| found.next().is_none())
        };
        // Who was left to another process has a parent that knows nothing of it.
        only(true).or_else(|| if is_probed { only(false) } else { None })
    }

    fn parse(process: i32, status: &str) -> Option<Self> {
        let words = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let parent = words("PPid:")?.trim().parse().ok()?;
        // A kernel without PID namespaces has no such line.
        let numbers = words("NSpid:").unwrap_or_default().split_whitespace();
        let number =
            numbers.clone().next_back().map_or(u32::try_from(process).ok(), |text| text.parse().ok());
        Some(Self { process, parent, own_number: number?, is_numbered_here: numbers.count() <= 1 })
    }
}

/// A thread that has the memory of a process. Its first one, which has its number, may have ended while others go on (`pthread_exit` in `main`): the
/// kernel then knows of no memory under that number.
pub(crate) fn living(process: i32) -> i32 {
    let has_memory = |task: i32| {
        let text = std::fs::read_to_string(format!("/proc/{process}/task/{task}/statm"));
        text.is_ok_and(|text| !text.starts_with("0 "))
    };
    if has_memory(process) {
        return process;
    }
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let mut numbers = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
    numbers.find(|task| has_memory(*task)).unwrap_or(process)
}

/// Whether the numbers in `/proc` are those of this process's own PID namespace.
pub(crate) fn is_proc_ours() -> bool {
    let own = std::fs::read_link("/proc/self").unwrap_or_default();
    own.to_str().and_then(|text| text.parse().ok()) == Some(std::process::id())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_process_in_a_namespace_of_its_own_has_another_number_there() {
        let here = "Name:\tx\nTgid:\t70\nPid:\t70\nPPid:\t60\nNSpid:\t70\n";
        let peer = Peer { process: 70, parent: 60, own_number: 70, is_numbered_here: true };
        assert_eq!(Peer::parse(70, here), Some(peer));
        let inside = here.replace("NSpid:\t70", "NSpid:\t70\t9\t1");
        assert_eq!(Peer::parse(70, &inside), Some(Peer { own_number: 1, is_numbered_here: false, ..peer }));
        assert_eq!(Peer::parse(70, "Name:\tx\nPPid:\t60\n"), Some(peer));
        assert_eq!(Peer::parse(70, "Name:\tx\n"), None);
    }

    #[test]
    fn a_process_whose_first_thread_is_there_is_known_by_it() {
        let own = std::process::id() as i32;
        assert_eq!(living(own), own);
        assert_eq!(living(i32::MAX), i32::MAX, "nobody else's");
    }

    #[test]
    fn this_process_is_known_and_one_that_is_not_there_is_not() {
        assert!(is_proc_ours());
        let own = std::process::id();
        assert_eq!(Peer::of(own as i32).map(|peer| peer.process), Some(own as i32));
        assert_eq!(Peer::of(i32::MAX), None);
        // The kernel cuts the name at 15 bytes, which is within a character here.
        let named = std::thread::spawn(|| {
            hinterland_os::process::name_thread("a-program-for-ää");
            let own = std::fs::read_link("/proc/thread-self").unwrap();
            let thread = own.file_name().and_then(|name| name.to_str()?.parse().ok()).unwrap();
            (thread, Peer::of(thread).map(|peer| peer.process))
        });
        let (thread, peer) = named.join().unwrap();
        assert_eq!(peer, Some(thread));
    }
}
