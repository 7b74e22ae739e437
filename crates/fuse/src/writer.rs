//! Who writes a file: a process, and whether a signal is ending it.

use crate::looks;
use hinterland_os::process;
use std::fs;
use std::io;
use std::path::PathBuf;

/// Fields of `/proc/PID/stat` behind the name in parentheses: the 52nd is the status that a process ends with.
const EXIT_CODE_FIELD: usize = 52 - 3;
/// Processes of one family that are looked at when a file is closed; a larger one is not waited for.
const FAMILY_MAX: u32 = 64;
/// The part of that status which is the number of a signal.
const SIGNAL_BITS: u32 = 0x7f;

/// A process by its number, which is that of a thread in requests of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Writer(u32);

impl Writer {
    /// The process of a thread.
    pub(crate) fn of(thread: u32) -> Self {
        let status = process::text_of(format!("/proc/{thread}/status")).unwrap_or_default();
        Self(group(&status).unwrap_or(thread))
    }

    /// Whether a thread is becoming another program, which has no code yet. The kernel closes files then, and says nothing else of
    /// the process until that is done.
    pub(crate) fn is_becoming_another(thread: u32) -> bool {
        let status = process::text_of(format!("/proc/{thread}/status")).unwrap_or_default();
        has_no_code(&status)
    }

    /// Whether a signal is ending the thread that makes the request. A process that ends by itself without closing
    /// its files is none of these.
    pub(crate) fn is_killed(thread: u32) -> bool {
        let look = move || {
            let stat = process::text_of(format!("/proc/{thread}/stat")).unwrap_or_default();
            exit_code(&stat).is_some_and(|code| code & SIGNAL_BITS != 0)
        };
        !Self::is_becoming_another(thread) && looks::in_time(thread, look).unwrap_or(false)
    }

    /// Whether a signal has ended the process, as far as can still be told.
    pub(crate) fn was_killed(self) -> bool {
        let Self(process) = self;
        Self::is_killed(process)
    }

    /// Whether there is such a process still.
    pub(crate) fn is_there(self) -> bool {
        let Self(process) = self;
        fs::exists(format!("/proc/{process}")).is_ok_and(|is_there| is_there)
    }

    /// Whether neither the process nor any that descends from it has a descriptor or mapping of a file with this inode number. False
    /// when it cannot be told, also because the kernel does not say it in time.
    pub(crate) fn is_alone_without(self, inode: u64) -> bool {
        let Self(process) = self;
        let look = move || self.looks_alone_without(inode);
        !Self::is_becoming_another(process) && looks::in_time(process, look).unwrap_or(false)
    }

    fn looks_alone_without(self, inode: u64) -> bool {
        let Self(process) = self;
        if !self.is_there() {
            return false;
        }
        let mut to_see = vec![process];
        let mut seen = 0;
        while let Some(process) = to_see.pop() {
            seen += 1;
            if seen > FAMILY_MAX {
                return false;
            }
            match children_without(process, inode) {
                Some(children) => to_see.extend(children),
                None => return false,
            }
        }
        true
    }
}

/// The children of a process that has no descriptor or mapping of a file with this inode number. Nothing if it has one, or it cannot
/// be told.
fn children_without(process: u32, inode: u64) -> Option<Vec<u32>> {
    let threads = threads_of(process);
    let status = process::text_of(format!("/proc/{process}/status"));
    match (&threads, &status) {
        // It has ended since its parent named it.
        (_, Err(error)) if error.kind() == io::ErrorKind::NotFound => return Some(Vec::new()),
        // It has ended and is only waited for: the kernel has closed its files. With threads left they could be theirs.
        (Some(threads), Ok(status)) if threads.len() == 1 && has_ended(status) => return Some(Vec::new()),
        _ => {}
    }
    let open = entries(format!("/proc/{process}/fdinfo"))?;
    let open = open.into_iter().map(text_of).collect::<Option<Vec<_>>>()?;
    let maps = process::text_of(format!("/proc/{process}/maps")).ok()?;
    let has_one = open.iter().any(|text| inode_of(text) == Some(inode))
        || maps.lines().any(|line| mapped_inode(line) == Some(inode));
    // One that is ending has none any more, and nothing says what its threads had.
    if has_one || open.is_empty() {
        return None;
    }
    let children = |thread: &u32| text_of(format!("/proc/{process}/task/{thread}/children").into());
    let children = threads.as_ref()?.iter().map(children).collect::<Option<String>>()?;
    // The children of a thread that ends become those of another one.
    if threads_of(process) != threads {
        return None;
    }
    children.split_whitespace().map(|child| child.parse().ok()).collect()
}

/// All threads of a process. Nothing if they cannot be told: the kernel ends the list early when a thread ends meanwhile.
fn threads_of(process: u32) -> Option<Vec<u32>> {
    let paths = entries(format!("/proc/{process}/task"))?;
    let threads = paths.iter().map(|path| path.file_name()?.to_str()?.parse().ok());
    let threads = threads.collect::<Option<Vec<u32>>>()?;
    let status = process::text_of(format!("/proc/{process}/status")).ok()?;
    let count = status.lines().find_map(|line| line.strip_prefix("Threads:"))?.trim().parse().ok();
    (count == Some(threads.len())).then_some(threads)
}

/// What is in a folder. Nothing if it cannot be read to its end.
fn entries(folder: String) -> Option<Vec<PathBuf>> {
    fs::read_dir(folder).ok()?.map(|entry| Some(entry.ok()?.path())).collect()
}

/// What a file says that tells of a descriptor or a thread. Nothing if it cannot be read.
fn text_of(path: PathBuf) -> Option<String> {
    match process::text_of(path) {
        // A descriptor that another thread has closed meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some(String::new()),
        found => found.ok(),
    }
}

fn has_no_code(status: &str) -> bool {
    let code = status.lines().find_map(|line| line.strip_prefix("VmExe:"));
    code.is_some_and(|code| code.trim_start().starts_with("0 "))
}

fn has_ended(status: &str) -> bool {
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    state.is_some_and(|state| state.trim_start().starts_with('Z'))
}

/// The inode number in the text about a descriptor.
fn inode_of(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("ino:"))?.trim().parse().ok()
}

/// The inode number in a line about a mapping; nothing for memory without a file.
fn mapped_inode(line: &str) -> Option<u64> {
    line.split_whitespace().nth(4)?.parse().ok().filter(|inode| *inode != 0)
}

fn group(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// A name may hold anything, also parentheses: fields are counted from the last one on.
fn exit_code(stat: &str) -> Option<u32> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(EXIT_CODE_FIELD)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_process_is_its_own_writer_and_not_killed() {
        let own = std::process::id();
        assert_eq!(Writer::of(own), Writer(own));
        assert!(!Writer::is_killed(own));
        let thread = std::thread::spawn(|| Writer::of(nix::unistd::gettid().as_raw() as u32));
        assert_eq!(thread.join().unwrap(), Writer(own));
    }

    #[test]
    fn who_becomes_another_program_has_no_code_yet() {
        assert!(has_no_code("VmData:\t     132 kB\nVmExe:\t       0 kB\nVmLib:\t       0 kB\n"));
        assert!(!has_no_code("VmExe:\t      20 kB\n"));
        assert!(!has_no_code("State:\tZ (zombie)\n"), "it has ended");
        assert!(!Writer::is_becoming_another(std::process::id()));
    }

    #[test]
    fn a_process_with_a_descriptor_is_not_alone() {
        use std::os::unix::fs::MetadataExt;
        let file = fs::File::open("/proc/version").unwrap();
        let inode = file.metadata().unwrap().ino();
        let text =
            fs::read_to_string(format!("/proc/self/fdinfo/{}", std::os::fd::AsRawFd::as_raw_fd(&file)));
        assert_eq!(inode_of(&text.unwrap()), Some(inode));
        assert!(!Writer::of(std::process::id()).is_alone_without(inode));
        // A process of its own, because tests beside this one start children.
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let sleeper = Writer(child.id());
        while !sleeper.is_alone_without(u64::MAX) {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!sleeper.is_alone_without(u64::MAX));
    }

    #[test]
    fn a_child_counts_only_with_the_file() {
        use std::os::unix::fs::MetadataExt;
        let file = tempfile();
        let inode = file.metadata().unwrap().ino();
        // The shell waits for a child of its own, which has the file or has not.
        let start = |line: &str| {
            let input = std::process::Stdio::from(file.try_clone().unwrap());
            std::process::Command::new("sh").args(["-c", line]).stdin(input).spawn().unwrap()
        };
        let wait_for = |shell: u32, expected: bool| {
            let has_child = || {
                fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).unwrap().split(' ').any(
                    |child| {
                        fs::read_to_string(format!("/proc/{}/comm", child.trim()))
                            .is_ok_and(|name| name == "sleep\n")
                    },
                )
            };
            while !has_child() || Writer(shell).is_alone_without(inode) != expected {
                std::thread::yield_now();
            }
        };
        for (line, expected) in [
            ("exec 3<&0 </dev/null; sleep 60 <&3 3<&- & exec 3<&-; wait", false),
            ("exec </dev/null; sleep 60 & wait", true),
        ] {
            let mut shell = start(line);
            wait_for(shell.id(), expected);
            let child = fs::read_to_string(format!("/proc/{0}/task/{0}/children", shell.id())).unwrap();
            let kill = |process: i32| {
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(process), nix::sys::signal::SIGKILL)
                    .unwrap();
            };
            kill(child.trim().parse().unwrap());
            kill(shell.id() as i32);
            shell.wait().unwrap();
        }
    }

    #[test]
    fn a_child_is_seen_while_threads_end() {
        use std::os::unix::fs::MetadataExt;
        use std::sync::Barrier;
        const THREADS: usize = 100;
        let own = Writer::of(std::process::id());
        let mut times_alone = 0;
        for round in 0..40 {
            let file = tempfile();
            let inode = file.metadata().unwrap().ino();
            let (ready, over) = (&Barrier::new(THREADS + 1), &Barrier::new(2));
            std::thread::scope(|scope| {
                // The thread that starts the child stands behind those that end in the kernel's list.
                let others: Vec<_> = (0..THREADS).map(|_| scope.spawn(move || ready.wait())).collect();
                let parent = scope.spawn(move || {
                    let mut child =
                        std::process::Command::new("sleep").arg("60").stdin(file).spawn().unwrap();
                    over.wait();
                    over.wait();
                    child.kill().unwrap();
                    child.wait().unwrap();
                });
                over.wait();
                ready.wait();
                while others.iter().any(|thread| !thread.is_finished()) {
                    times_alone += usize::from(own.is_alone_without(inode));
                }
                assert!(!own.is_alone_without(inode), "round {round}");
                over.wait();
                parent.join().unwrap();
            });
        }
        assert_eq!(times_alone, 0);
    }

    fn tempfile() -> fs::File {
        let thread = nix::unistd::gettid();
        let path = std::env::temp_dir().join(format!("hinterland-writer-{thread}"));
        let file = fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        fs::remove_file(path).unwrap();
        file
    }

    #[test]
    fn a_mapping_counts_as_long_as_it_is_there() {
        let line = "7f00-7f01 rw-s 00000000 00:2f 4611686018427387905            /pool/x";
        assert_eq!(mapped_inode(line), Some(4_611_686_018_427_387_905));
        assert_eq!(mapped_inode("7f00-7f01 rw-p 00000000 00:00 0 [heap]"), None);
    }

    #[test]
    fn a_killed_child_is_told_from_one_that_ended() {
        for (signal, expected) in [(true, true), (false, false)] {
            let mut child =
                std::process::Command::new("sleep").arg(if signal { "60" } else { "0" }).spawn().unwrap();
            if signal {
                child.kill().unwrap();
            }
            let stat = format!("/proc/{}/stat", child.id());
            // Not waited for, so that it is still to be seen.
            while !fs::read_to_string(&stat).unwrap().contains(") Z ") {
                std::thread::yield_now();
            }
            assert_eq!(Writer::is_killed(child.id()), expected);
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_program_whose_name_is_no_text_is_told_as_any_other() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;
        use std::os::unix::process::CommandExt;
        // The kernel cuts names at 15 bytes, also within a character.
        let thread = nix::unistd::gettid();
        let folder = std::env::temp_dir().join(format!("hinterland-named-{thread}"));
        fs::create_dir(&folder).unwrap();
        let program = folder.join(OsStr::from_bytes(b"a-writer-of-\xc3\xa4\xc3\xa4"));
        // A link and not a copy: a child that another thread starts just then would hold the
        // copy open for writing, and such a file cannot be executed.
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
        let mut child = std::process::Command::new(&program).arg0("sleep").arg("60").spawn().unwrap();
        let writer = Writer(child.id());
        // It has its name a moment after it is started.
        let name = format!("/proc/{}/comm", child.id());
        while String::from_utf8(fs::read(&name).unwrap()).is_ok() {
            std::thread::yield_now();
        }
        let threads = threads_of(child.id());
        child.kill().unwrap();
        let stat = format!("/proc/{}/stat", child.id());
        while !fs::read(&stat).unwrap().windows(4).any(|field| field == b") Z ") {
            std::thread::yield_now();
        }
        let is_killed = writer.was_killed();
        child.wait().unwrap();
        fs::remove_dir_all(folder).unwrap();
        assert_eq!((is_killed, threads), (true, Some(vec![writer.0])));
    }

    #[test]
    fn a_name_with_parentheses_moves_no_field() {
        let fields: Vec<String> = (3..=52).map(|number| number.to_string()).collect();
        assert_eq!(exit_code(&format!("9 (a) b) (c) {}", fields.join(" "))), Some(52));
        assert_eq!(exit_code(""), None);
        assert_eq!(group("Name:\tx\nTgid:\t77\nPid:\t78\n"), Some(77));
    }
}
