//! Whether a process, or any that descends from it, can still reach a file.

use hinterland_os::{looks, process};
use nix::sys::stat::{major, makedev, minor};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Processes of one family that are looked at when a file is closed; a larger one is not waited for.
const FAMILY_MAX: u32 = 64;
/// Pauses before it is looked once more where threads or processes came and went meanwhile, so that nothing can be told. A process that
/// ends, or becomes another program, needs a moment on a busy machine.
const PAUSES: [Duration; 6] = {
    let ms = Duration::from_millis;
    [ms(0), ms(0), ms(1), ms(2), ms(4), ms(8)]
};
/// Looks that ask the threads of a process for its children. Those that follow ask all processes for their parents, which takes longer and
/// does not depend on threads that stay.
const BY_THREADS: usize = 2;

/// A file of a mount, as the kernel shows it where it tells of processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenedFile {
    /// The device of its mount. Without it every file of that number counts.
    pub(crate) device: Option<u64>,
    /// Its inode number.
    pub(crate) inode: u64,
}

/// Why it is not certain that a process is without a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    /// It has it.
    HasIt,
    /// Threads or processes came and went.
    Unclear,
}

/// Whether neither a process nor any that descends from it has a descriptor or mapping of a file. False when it cannot be told.
pub(crate) fn is_without(process: u32, file: OpenedFile) -> bool {
    for (number, pause) in PAUSES.into_iter().enumerate() {
        std::thread::sleep(pause);
        match look(process, file, number < BY_THREADS) {
            Ok(()) => return true,
            Err(Doubt::HasIt) => return false,
            Err(Doubt::Unclear) => {}
        }
    }
    false
}

fn look(process: u32, file: OpenedFile, by_threads: bool) -> Result<(), Doubt> {
    // Where the one that closes it is ending, that stays so.
    is_without_it(process, file, Doubt::HasIt)?;
    let mut to_see = children(process, by_threads).ok_or(Doubt::Unclear)?;
    let mut seen = 1;
    while let Some(process) = to_see.pop() {
        seen += 1;
        if seen > FAMILY_MAX {
            return Err(Doubt::HasIt);
        }
        let status = match process::text_of(format!("/proc/{process}/status")) {
            // It has ended since its parent named it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            status => status.map_err(|_| Doubt::Unclear)?,
        };
        // It has ended and is only waited for: the kernel has closed its files. With threads left they could be theirs.
        if has_ended(&status) && threads_of(process).is_some_and(|threads| threads.len() == 1) {
            continue;
        }
        // The kernel says nothing of it until it has become another program.
        if looks::has_no_code(&status) {
            return Err(Doubt::Unclear);
        }
        is_without_it(process, file, Doubt::Unclear)?;
        // Only then: whoever has it at this moment has it from one of these.
        to_see.extend(children(process, by_threads).ok_or(Doubt::Unclear)?);
    }
    Ok(())
}

/// Whether a process has no descriptor or mapping of a file. One that is ending has none any more, and nothing says what its threads had: the
/// doubt is `if_ending` then.
fn is_without_it(process: u32, file: OpenedFile, if_ending: Doubt) -> Result<(), Doubt> {
    let open = entries(format!("/proc/{process}/fdinfo")).ok_or(Doubt::Unclear)?;
    if open.is_empty() {
        return Err(if_ending);
    }
    for path in open {
        let text = text_of(path.clone()).ok_or(Doubt::Unclear)?;
        if field(&text, "ino:") == Some(file.inode) && may_be_of_mount(process, &path, &text, file.device) {
            return Err(Doubt::HasIt);
        }
    }
    let maps = process::text_of(format!("/proc/{process}/maps")).map_err(|_| Doubt::Unclear)?;
    if maps.lines().any(|line| maps_file(line, file)) { Err(Doubt::HasIt) } else { Ok(()) }
}

/// The children of a process. Nothing if they cannot be told.
fn children(process: u32, by_threads: bool) -> Option<Vec<u32>> {
    if !by_threads {
        let processes = entries("/proc".to_owned())?;
        let numbers = processes.iter().filter_map(|path| path.file_name()?.to_str()?.parse().ok());
        return Some(numbers.filter(|other| parent(*other) == Some(process)).collect());
    }
    let threads = threads_of(process)?;
    let of_thread = |thread: &u32| text_of(format!("/proc/{process}/task/{thread}/children").into());
    let found = threads.iter().map(of_thread).collect::<Option<String>>()?;
    // The children of a thread that ends become those of another one.
    let has_changed = threads_of(process).as_ref() != Some(&threads);
    if has_changed { None } else { found.split_whitespace().map(|child| child.parse().ok()).collect() }
}

/// The parent of a process; nothing of one that has gone.
fn parent(process: u32) -> Option<u32> {
    let status = process::text_of(format!("/proc/{process}/status")).ok()?;
    u32::try_from(field(&status, "PPid:")?).ok()
}

/// All threads of a process. Nothing if they cannot be told: the kernel ends the list early when a thread ends meanwhile.
fn threads_of(process: u32) -> Option<Vec<u32>> {
    let paths = entries(format!("/proc/{process}/task"))?;
    let threads = paths.iter().map(|path| path.file_name()?.to_str()?.parse().ok());
    let threads = threads.collect::<Option<Vec<u32>>>()?;
    let status = process::text_of(format!("/proc/{process}/status")).ok()?;
    (field(&status, "Threads:") == Some(threads.len() as u64)).then_some(threads)
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

fn has_ended(status: &str) -> bool {
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    state.is_some_and(|state| state.trim_start().starts_with('Z'))
}

/// A number behind a word at the beginning of a line.
fn field(text: &str, word: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(word))?.trim().parse().ok()
}

/// Whether a descriptor of which the kernel says this may be of a mount of a device: files of other mounts have the same numbers.
fn may_be_of_mount(process: u32, path: &Path, text: &str, device: Option<u64>) -> bool {
    let (Some(device), Some(mount)) = (device, field(text, "mnt_id:")) else { return true };
    let mounts = process::text_of(format!("/proc/{process}/mountinfo")).unwrap_or_default();
    if let Some(known) = mounts.lines().find_map(|line| mounted_device(line, mount)) {
        return known == device;
    }
    // What was unmounted is not listed, and its descriptors are there still. Nor is what has no place among files: pipes, sockets, memory.
    let number = path.file_name().unwrap_or_default();
    let target = fs::read_link(Path::new("/proc").join(process.to_string()).join("fd").join(number));
    target.is_err() || target.is_ok_and(|target| target.has_root() && !is_memory(&target))
}

fn is_memory(target: &Path) -> bool {
    target.as_os_str().as_bytes().starts_with(b"/memfd:")
}

/// The device in a line about a mount, if it is the one of this number.
fn mounted_device(line: &str, mount: u64) -> Option<u64> {
    let mut fields = line.split(' ');
    if fields.next()?.parse() != Ok(mount) {
        return None;
    }
    let (major, minor) = fields.nth(1)?.split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// Whether a line about a mapping is of the file.
fn maps_file(line: &str, file: OpenedFile) -> bool {
    let mut fields = line.split_whitespace().skip(3);
    let (device, inode) = (fields.next(), fields.next().and_then(|inode| inode.parse().ok()));
    // Memory without a file has the number 0.
    inode == Some(file.inode)
        && file.inode != 0
        && file.device.is_none_or(|of| device == Some(&format!("{:02x}:{:02x}", major(of), minor(of))))
}

#[cfg(test)]
mod tests;
