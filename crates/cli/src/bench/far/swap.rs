//! The kernel's swap as a peer: a device of the bench's own, and control groups that bound memory.
//!
//! All of it can be found from the bench's folder alone, so that [`clear`] undoes it after a failure, on ctrl-C, and after a bench
//! that was killed.

use crate::bench::ground::Ground;
use crate::failure::Failure;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The name of the swap file in the bench's folder.
const FILE: &str = "swap";
/// In the bench's folder: the number of the device in compressed memory that it made.
const NUMBER: &str = "zram";
/// In the bench's folder: whether the kernel compressed before it swapped, as it was before.
const ZSWAP: &str = "zswap";
/// Whether the kernel keeps compressed in memory what it swaps, as long as there is room.
const ZSWAP_SWITCH: &str = "/sys/module/zswap/parameters/enabled";
/// In the bench's folder: its control groups, one a line.
const GROUPS: &str = "swap-groups";
const MEMORY_GROUPS: &str = "/sys/fs/cgroup/memory";
/// How long killed programs may take to give their memory back.
const END_PAUSES: u32 = 1000;
const END_PAUSE: Duration = Duration::from_millis(10);

/// Where the kernel swaps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Compressed memory.
    Zram,
    /// A file on the disk of the folder for temporary files.
    Disk,
    /// The same, behind a cache of compressed pages in memory.
    Zswap,
}

/// Swap in use, and programs that must use it; undone when dropped.
pub struct Swap {
    folder: PathBuf,
    count: usize,
}

impl Swap {
    /// Begins to swap.
    ///
    /// # Errors
    /// [`Failure`] without the right to, and where something else is used for swapping: that could not be told apart.
    pub fn start(ground: &Ground, kind: Kind, bytes: u64) -> Result<Self, Failure> {
        if !nix::unistd::geteuid().is_root() {
            return Err(Failure::new("swap is for root alone", "run the bench as root"));
        }
        if fs::read_to_string("/proc/swaps").unwrap_or_default().lines().count() > 1 {
            let text = "something is used for swapping already, and the kernel would use both";
            return Err(Failure::new(text, "swapoff --all, or wait for the other bench"));
        }
        let swap = Self { folder: ground.folder().to_owned(), count: 0 };
        swap.zswap(kind == Kind::Zswap)?;
        swap.on(kind, bytes)?;
        Ok(swap)
    }

    fn on(&self, kind: Kind, bytes: u64) -> Result<(), Failure> {
        let device = match kind {
            Kind::Disk | Kind::Zswap => {
                let file = self.folder.join(FILE);
                tool("fallocate", &["-l", &bytes.to_string(), &file.to_string_lossy()])?;
                tool("chmod", &["600", &file.to_string_lossy()])?;
                file
            }
            Kind::Zram => self.zram(bytes)?,
        };
        let device = device.to_string_lossy();
        tool("mkswap", &[&device])?;
        tool("swapon", &[&device])
    }

    /// Swaps to another place from here on, and has the kernel bring back what is in the one before.
    ///
    /// # Errors
    /// [`Failure`] if one of both is refused: `swapoff` where there is too little memory for what comes back.
    pub fn exchange(&mut self, old: Kind, new: Kind, bytes: u64) -> Result<(), Failure> {
        self.on(new, bytes)?;
        let number = fs::read_to_string(self.folder.join(NUMBER)).ok();
        match old {
            Kind::Disk | Kind::Zswap => {
                let file = self.folder.join(FILE);
                tool("swapoff", &[&file.to_string_lossy()])?;
                fs::remove_file(&file).map_err(|error| Failure::file("removing", &file, &error))
            }
            Kind::Zram => {
                tool("swapoff", &[&format!("/dev/zram{}", number.as_deref().unwrap_or_default())])?;
                remove_zram(&self.folder, number.as_deref());
                Ok(())
            }
        }
    }

    /// Has the kernel compress before it swaps, or not.
    fn zswap(&self, wanted: bool) -> Result<(), Failure> {
        let switch = Path::new(ZSWAP_SWITCH);
        let before = fs::read_to_string(switch).unwrap_or_default();
        if before.is_empty() && wanted {
            let text = "this kernel has no zswap";
            return Err(Failure::new(text, "a kernel with CONFIG_ZSWAP has it"));
        }
        let word = if wanted { "Y" } else { "N" };
        if before.is_empty() || before.trim() == word {
            return Ok(());
        }
        write(&self.folder.join(ZSWAP), before.trim())?;
        write(switch, word)
    }

    fn zram(&self, bytes: u64) -> Result<PathBuf, Failure> {
        let path = Path::new("/sys/class/zram-control/hot_add");
        // To read it is to make a device.
        let number = fs::read_to_string(path).map_err(|error| Failure {
            hint: "modprobe zram".to_owned(),
            ..Failure::file("making a zram device with", path, &error)
        })?;
        let number = number.trim();
        write(&self.folder.join(NUMBER), number)?;
        write(&PathBuf::from(format!("/sys/block/zram{number}/disksize")), &bytes.to_string())?;
        Ok(PathBuf::from(format!("/dev/zram{number}")))
    }

    /// A program, to be followed by its words, with at most so many bytes outside of swap.
    ///
    /// # Errors
    /// [`Failure`] without control groups of version 1.
    pub fn command(&mut self, program: &Path, bytes: u64) -> Result<Command, Failure> {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = own.lines().find_map(|line| line.split_once(":memory:")).map_or("/", |(_, path)| path);
        let parent = Path::new(MEMORY_GROUPS).join(own.trim_start_matches('/'));
        let parent = if parent.is_dir() { parent } else { PathBuf::from(MEMORY_GROUPS) };
        self.count += 1;
        let group = parent.join(format!("hinterland-bench-{}-swap-{}", std::process::id(), self.count));
        let list = self.folder.join(GROUPS);
        let before = fs::read_to_string(&list).unwrap_or_default();
        write(&list, &format!("{before}{}\n", group.display()))?;
        fs::create_dir(&group).map_err(|error| Failure {
            hint: "run as root, with control groups of version 1".to_owned(),
            ..Failure::file("making the control group", &group, &error)
        })?;
        write(&group.join("memory.limit_in_bytes"), &bytes.to_string())?;
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\"/cgroup.procs && exec \"$@\""]).arg(&group).arg(program);
        Ok(command)
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        clear(&self.folder);
    }
}

/// Undoes what a bench with this folder did to the machine. What it did not do, or what is undone, stays as it is.
pub fn clear(folder: &Path) {
    let list = folder.join(GROUPS);
    let groups = fs::read_to_string(&list).unwrap_or_default();
    // Programs first: without them swap is empty, and nothing has to come back from it.
    groups.lines().map(Path::new).for_each(end_all);
    let file = folder.join(FILE);
    let number = fs::read_to_string(folder.join(NUMBER)).ok();
    let device = number.as_ref().map(|number| PathBuf::from(format!("/dev/zram{number}")));
    for place in [Some(&file), device.as_ref()].into_iter().flatten().filter(|place| is_used(place)) {
        if let Err(failure) = tool("swapoff", &[&place.to_string_lossy()]) {
            eprintln!("hinterland: {} (hint: {})", failure.text, failure.hint);
        }
    }
    if !is_used(&file) {
        // There may be none.
        let _ = fs::remove_file(&file);
    }
    remove_zram(folder, number.as_deref());
    if let Ok(before) = fs::read_to_string(folder.join(ZSWAP)) {
        // It took the opposite from this bench.
        let _ = fs::write(ZSWAP_SWITCH, before);
        let _ = fs::remove_file(folder.join(ZSWAP));
    }
    for group in groups.lines() {
        // Without programs it can be removed; else the next call does it.
        let _ = fs::remove_dir(group);
    }
    let _ = fs::remove_file(list);
}

fn remove_zram(folder: &Path, number: Option<&str>) {
    let Some(number) = number else { return };
    // A device that is still used refuses, and who asked was told of that.
    let _ = fs::write(format!("/sys/block/zram{number}/reset"), "1");
    let _ = fs::write("/sys/class/zram-control/hot_remove", number);
    let _ = fs::remove_file(folder.join(NUMBER));
}

/// Kills the programs of a group and waits until they are gone.
fn end_all(group: &Path) {
    for _ in 0..END_PAUSES {
        let members = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        if members.is_empty() {
            return;
        }
        for process in members.lines().filter_map(|line| line.parse().ok()) {
            // One that has ended meanwhile is as good.
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(process), nix::sys::signal::SIGKILL);
        }
        std::thread::sleep(END_PAUSE);
    }
}

fn is_used(place: &Path) -> bool {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    swaps.lines().any(|line| line.split_whitespace().next().is_some_and(|name| Path::new(name) == place))
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| Failure::file("writing", path, &error))
}

fn tool(name: &str, words: &[&str]) -> Result<(), Failure> {
    let failed = |why: String| Failure::new(format!("{name} {}: {why}", words.join(" ")), "run it by hand");
    let output = Command::new(name)
        .args(words)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}
