//! Who writes a file: a process, and whether a signal is ending it.

use crate::family::{self, OpenedFile};
use hinterland_os::{looks, process};
use std::fs;
use std::time::{Duration, Instant};

/// Fields of `/proc/PID/stat` behind the name in parentheses: the 52nd is the status that a process ends with.
const EXIT_CODE_FIELD: usize = 52 - 3;
/// The part of that status which is the number of a signal.
const SIGNAL_BITS: u32 = 0x7f;
/// How long a look at a process is waited for: far longer than it takes where nobody waits for us, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long it is asked at most whether a process was killed that the kernel says nothing of, and the pause between two questions. Where nobody waits for us only
/// a machine that does nothing else any more takes so long.
const SAID_WITHIN: Duration = Duration::from_secs(30);
const ASKED_EVERY: Duration = Duration::from_millis(100);

/// A process by its number, which is that of a thread in requests of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Writer(u32);

/// A thread that closes a descriptor, and waits until that is answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closer {
    /// Its process.
    pub(crate) writer: Writer,
    /// Whether a signal is ending it. A process that ends by itself without closing its files is none of these.
    pub(crate) is_killed: bool,
    /// Whether it is becoming another program. The kernel closes files then, and says nothing else of the process until that is done.
    pub(crate) is_becoming_another: bool,
}

impl Closer {
    /// What the kernel says of a thread that waits for an answer.
    pub(crate) fn of(thread: u32) -> Self {
        let status = status_of(thread);
        let is_becoming_another = looks::has_no_code(&status);
        // Its process becomes no other one as long as it waits, because that needs the end of all other threads: the kernel holds no lock for this read.
        let is_killed = !is_becoming_another && is_ended_by_signal(thread);
        let writer = Writer(group(&status).unwrap_or(thread));
        Self { writer, is_killed, is_becoming_another }
    }

    /// Whether neither the process nor any that descends from it has a descriptor or mapping of a file. False when it cannot be told, also
    /// because the kernel does not say it in time.
    pub(crate) fn is_alone_without(&self, file: OpenedFile) -> bool {
        let Writer(process) = self.writer;
        let look = move || family::is_without(process, file);
        !self.is_becoming_another && looks::in_time(process, PATIENCE, look).unwrap_or(false)
    }
}

impl Writer {
    /// The process of a thread.
    pub(crate) fn of(thread: u32) -> Self {
        Self(group(&status_of(thread)).unwrap_or(thread))
    }

    /// Whether a signal has ended the process, as far as can still be told. It may wait for this mount at the moment, for another file.
    pub(crate) fn was_killed(self) -> bool {
        let Self(process) = self;
        let is_becoming_another = || looks::has_no_code(&status_of(process));
        was_killed_at_last(process, SAID_WITHIN, is_becoming_another, move || is_ended_by_signal(process))
    }

    /// Whether there is such a process still.
    pub(crate) fn is_there(self) -> bool {
        let Self(process) = self;
        fs::exists(format!("/proc/{process}")).is_ok_and(|is_there| is_there)
    }
}

/// Asks until that is said. Who becomes another program goes on, and was not killed. Who is not spoken of at all counts as killed: it is
/// worse to publish a part of a file than to say that a file was not published.
fn was_killed_at_last(
    process: u32,
    within: Duration,
    is_becoming_another: impl Fn() -> bool,
    look: impl Fn() -> bool + Clone + Send + 'static,
) -> bool {
    let asked = Instant::now();
    while asked.elapsed() < within {
        if is_becoming_another() {
            return false;
        }
        if let Some(was_killed) = looks::in_time(process, PATIENCE, look.clone()) {
            return was_killed;
        }
        std::thread::sleep(ASKED_EVERY);
    }
    tracing::warn!("nothing says whether process {process} was killed: what it wrote is not published");
    true
}

fn is_ended_by_signal(thread: u32) -> bool {
    let stat = process::text_of(format!("/proc/{thread}/stat")).unwrap_or_default();
    exit_code(&stat).is_some_and(|code| code & SIGNAL_BITS != 0)
}

fn status_of(thread: u32) -> String {
    process::text_of(format!("/proc/{thread}/status")).unwrap_or_default()
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
    use std::sync::mpsc;

    #[test]
    fn a_live_process_is_its_own_writer_and_not_killed() {
        let own = std::process::id();
        assert_eq!(Writer::of(own), Writer(own));
        let closer = Closer::of(own);
        assert_eq!(
            (closer.writer, closer.is_killed, closer.is_becoming_another),
            (Writer(own), false, false)
        );
        let thread = std::thread::spawn(|| Writer::of(nix::unistd::gettid().as_raw() as u32));
        assert_eq!(thread.join().unwrap(), Writer(own));
    }

    #[test]
    fn who_was_killed_is_known_also_when_that_is_said_late() {
        let (go_on, wait) = mpsc::channel::<()>();
        let wait = std::sync::Arc::new(std::sync::Mutex::new(wait));
        // The first look hangs for longer than anybody waits for one.
        let look = move || wait.lock().unwrap().recv().is_err();
        let late = std::thread::spawn(move || {
            was_killed_at_last(u32::MAX - 7, Duration::from_secs(60), || false, look)
        });
        std::thread::sleep(Duration::from_secs(4));
        assert!(!late.is_finished(), "nothing was said yet");
        drop(go_on);
        assert!(late.join().unwrap());
    }

    #[test]
    fn who_is_not_spoken_of_counts_as_killed_unless_he_becomes_another_program() {
        let (_go_on, wait) = mpsc::channel::<()>();
        let wait = std::sync::Arc::new(std::sync::Mutex::new(wait));
        let look = move || wait.lock().unwrap().recv().is_err();
        let within = Duration::from_millis(100);
        assert!(was_killed_at_last(u32::MAX - 8, within, || false, look.clone()));
        assert!(!was_killed_at_last(u32::MAX - 8, within, || true, look));
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
            assert_eq!(Closer::of(child.id()).is_killed, expected);
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
        child.kill().unwrap();
        let stat = format!("/proc/{}/stat", child.id());
        while !fs::read(&stat).unwrap().windows(4).any(|field| field == b") Z ") {
            std::thread::yield_now();
        }
        let is_killed = writer.was_killed();
        child.wait().unwrap();
        fs::remove_dir_all(folder).unwrap();
        assert!(is_killed);
    }

    #[test]
    fn a_name_with_parentheses_moves_no_field() {
        let fields: Vec<String> = (3..=52).map(|number| number.to_string()).collect();
        assert_eq!(exit_code(&format!("9 (a) b) (c) {}", fields.join(" "))), Some(52));
        assert_eq!(exit_code(""), None);
        assert_eq!(group("Name:\tx\nTgid:\t77\nPid:\t78\n"), Some(77));
    }
}
