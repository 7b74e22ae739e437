//! Watching over a program: it gets our signals, we end with its status, and it ends if we are killed.

use crate::failure::{Exit, Failure};
use crate::output::Output;
use hinterland_far::program::{find, named_interpreter};
use hinterland_os::limits;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use nix::unistd::{AccessFlags, Pid, access, getppid};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::OnceLock;

/// Signals that are passed on to the program.
const PASSED_ON: [Signal; 9] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGCONT,
    Signal::SIGWINCH,
];
/// The variable that names the mount's device to the preloaded library.
pub const MOUNT_VARIABLE: &str = "HINTERLAND_MOUNT_DEVICE";
/// What a shell adds to the number of a signal.
const BY_SIGNAL: i32 = 128;

/// Signals of this process as data, from the moment that it exists.
pub struct Signals {
    descriptor: SignalFd,
}

impl Signals {
    /// Keeps signals from acting in this thread and those that it makes; call it before any other thread exists.
    ///
    /// # Errors
    /// [`Failure`] without descriptors left.
    pub fn hold() -> Result<Self, Failure> {
        let set = held();
        set.thread_block()
            .and_then(|()| SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC))
            .map(|descriptor| Self { descriptor })
            .map_err(|error| Failure::new(format!("signals cannot be watched: {error}"), "raise `ulimit -n`"))
    }

    fn next(&self) -> Result<siginfo, Failure> {
        loop {
            match self.descriptor.read_signal() {
                Ok(Some(information)) => return Ok(information),
                Ok(None) | Err(Errno::EINTR) => {}
                Err(error) => {
                    return Err(Failure::new(format!("signals cannot be read: {error}"), "try again"));
                }
            }
        }
    }
}

fn held() -> SigSet {
    PASSED_ON.into_iter().chain([Signal::SIGCHLD]).collect()
}

/// Starts the program through this one, which first makes sure that it ends with us. Call it on the thread
/// that lives as long as the mount: the kernel watches that thread.
///
/// # Errors
/// [`Failure`] when no process can be made.
pub fn start(
    program: &[OsString],
    preloaded: &[PathBuf],
    variables: &[(&str, OsString)],
    output: Output,
) -> Result<Child, Failure> {
    command(program, preloaded, variables, output)?.spawn().map_err(|error| not_started(&error))
}

/// What [`start`] starts. The thread that spawns it must live as long as the program.
///
/// # Errors
/// [`Failure`] when our own file cannot be found.
pub fn command(
    program: &[OsString],
    preloaded: &[PathBuf],
    variables: &[(&str, OsString)],
    output: Output,
) -> Result<Command, Failure> {
    let mut command = Command::new(std::env::current_exe().map_err(|error| not_started(&error))?);
    command.args(["become", "--parent", &std::process::id().to_string()]);
    if output.json {
        command.arg("--json");
    }
    let serves = |(name, _): &(&str, OsString)| [super::far::SOCKET_VARIABLE, MOUNT_VARIABLE].contains(name);
    if variables.iter().any(serves)
        && let Some(limit) = raise_open_files()
    {
        command.args(["--open-files", &limit.to_string()]);
    }
    if let Some(path) =
        preloaded.iter().find(|path| path.as_os_str().as_bytes().iter().any(|byte| b" :".contains(byte)))
    {
        return Err(Failure::new(
            format!(
                "{} cannot be preloaded: the loader takes a space or a colon for the end of a path",
                path.display()
            ),
            "install Hinterland in a folder without them",
        ));
    }
    if !preloaded.is_empty() {
        let paths: Vec<&OsStr> = preloaded.iter().map(|path| path.as_os_str()).collect();
        command.arg("--preload").arg(paths.join(OsStr::new(":")));
    }
    command.arg("--").args(program).envs(variables.iter().map(|(name, value)| (*name, value)));
    Ok(command)
}

/// Raises our limit of open files, because a supervisor has four for each process of the program, and a mount one for each file that is open; returns
/// the limit that the program is to have.
fn raise_open_files() -> Option<u64> {
    static BEFORE: OnceLock<Option<u64>> = OnceLock::new();
    *BEFORE.get_or_init(|| {
        let before = limits::open_files().ok()?.soft;
        limits::raise_open_files().ok()?;
        Some(before)
    })
}

/// Why there is no process.
pub fn not_started(error: &std::io::Error) -> Failure {
    Failure::new(format!("no process can be started: {error}"), "check `ulimit -u`")
}

/// Waits for the end of the program and passes signals on to it meanwhile.
///
/// # Errors
/// [`Failure`] when signals cannot be read.
pub fn watch(signals: &Signals, child: &mut Child) -> Result<ExitCode, Failure> {
    // A process number is positive and fits.
    let process = Pid::from_raw(child.id() as i32);
    loop {
        let information = signals.next()?;
        match Signal::try_from(information.ssi_signo as i32) {
            Ok(Signal::SIGCHLD) => {
                let ended = child.try_wait();
                let failed =
                    |error| Failure::new(format!("the program cannot be waited for: {error}"), "try again");
                if let Some(status) = ended.map_err(failed)? {
                    return Ok(exit_code(status));
                }
            }
            // The terminal sends its signals to the program as well.
            Ok(signal) if is_from_a_process(&information) => {
                // It may have ended meanwhile; then SIGCHLD is next.
                let _ = kill(process, signal);
            }
            _ => {}
        }
    }
}

/// Codes above zero are the kernel's own, among them those of a terminal.
fn is_from_a_process(information: &siginfo) -> bool {
    information.ssi_code <= 0
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or(status.signal().map(|signal| BY_SIGNAL + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// Turns this process into the program: it ends when the process `parent` does.
///
/// # Errors
/// [`Failure`] with the status of a shell when it cannot be started. It does not return otherwise.
pub fn become_program(
    parent: u32,
    library: Option<&OsStr>,
    open_files: Option<u64>,
    program: &[OsString],
) -> Failure {
    let failed = |text: String, hint: &str| Failure { exit: Exit::CannotStart, ..Failure::new(text, hint) };
    // The library takes this back in a program that has far memory: it ends all its processes when their supervisor is gone, and says why.
    if let Err(error) = hinterland_os::process::signal_when_parent_dies(Signal::SIGKILL as i32) {
        return failed(error.to_string(), "try again");
    }
    // It may have ended before the kernel was asked to watch it.
    if getppid().as_raw() as u32 != parent {
        return failed("`hinterland run` has ended already".to_owned(), "run it again");
    }
    // What is held back in a process stays so in the programs that it becomes.
    if let Err(error) = held().thread_unblock() {
        return failed(format!("signals cannot be let through: {error}"), "try again");
    }
    if let Some(soft) = open_files
        && let Err(error) = limits::set_open_files(soft)
    {
        return failed(error.to_string(), "try again");
    }
    let Some((name, arguments)) = program.split_first() else {
        return failed("no program is named".to_owned(), "name one behind --");
    };
    let mut command = Command::new(name);
    command.args(arguments);
    if let Some(library) = library {
        let before = std::env::var_os("LD_PRELOAD");
        command.env("LD_PRELOAD", super::preload::variable(Path::new(library), before.as_deref()));
    }
    if std::env::var_os(super::far::SOCKET_VARIABLE).is_some() {
        // The number stays what it is, whatever this process becomes.
        command.env(super::far::FIRST_VARIABLE, std::process::id().to_string());
    }
    let error = command.exec();
    if error.kind() == std::io::ErrorKind::NotFound {
        return not_found(name);
    }
    cannot_start(name, &error)
}

/// Refuses a program that would not be started, for whoever does something before that.
///
/// # Errors
/// [`Failure`] with the status of a shell.
pub fn check_startable(name: &OsStr) -> Result<(), Failure> {
    let Some(path) = find(name).filter(|path| path.exists()) else { return Err(not_found(name)) };
    if named_interpreter(&path).is_some_and(|interpreter| !interpreter.exists()) {
        return Err(not_found(name));
    }
    // By a name without a folder, the kernel is asked about each of the PATH in turn.
    if !name.as_bytes().contains(&b'/') {
        return Ok(());
    }
    let permitted = if path.is_file() { access(&path, AccessFlags::X_OK) } else { Err(Errno::EACCES) };
    permitted.map_err(|error| cannot_start(name, &error.into()))
}

fn cannot_start(name: &OsStr, error: &std::io::Error) -> Failure {
    let text = format!("{} cannot be started: {error}", name.display());
    Failure { exit: Exit::CannotStart, ..Failure::new(text, "check that it is a program that may be run") }
}

/// What was not found: the program, or what the kernel needs to run it, of which it says the same.
fn not_found(name: &OsStr) -> Failure {
    let shown = name.display();
    let Some(path) = find(name).filter(|path| path.exists()) else {
        let failure = Failure::new(format!("there is no program {shown}"), "check its name and the PATH");
        return Failure { exit: Exit::NotFound, ..failure };
    };
    let failure = match named_interpreter(&path) {
        Some(interpreter) => Failure::new(
            // Quoted: what an editor of Windows leaves at the end of the line is else not seen.
            format!("{shown} cannot be started: its first line names {interpreter:?}, which is not there"),
            "install that interpreter, or correct the line",
        ),
        None => Failure::new(
            format!("{shown} cannot be started: the loader that it names is not there"),
            "install the C library that it was built with, or build it on this machine",
        ),
    };
    Failure { exit: Exit::CannotStart, ..failure }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_a_signal_ended_has_the_status_of_a_shell() {
        let code = |raw| format!("{:?}", exit_code(ExitStatus::from_raw(raw)));
        assert_eq!(code(7 << 8), format!("{:?}", ExitCode::from(7)));
        assert_eq!(code(9), format!("{:?}", ExitCode::from(137)));
        assert_eq!(code(0), format!("{:?}", ExitCode::SUCCESS));
    }
}
