//! What this machine offers to Hinterland, and the one command that mends each thing that is missing.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use crate::container::{self, Right};
use crate::error::OsError;
use crate::huge_pages::{self, HugePageCounts};
use crate::limits::{self, Limit};
use crate::process::effective_user;
use crate::userfault::{self, Features, Scope, Userfault};

/// Fewer open files than this are too few for a node with many sessions and streams.
const OPEN_FILES_WANTED: u64 = 4096;
/// `CAP_SYS_ADMIN` as a bit number.
const CAP_SYS_ADMIN: u32 = 21;
/// The fault features that regions need.
const FAULT_FEATURES_WANTED: Features = Features::MISSING_SHMEM
    .with(Features::MINOR_SHMEM)
    .with(Features::MISSING_HUGETLBFS)
    .with(Features::MINOR_HUGETLBFS);

/// Something that is missing, what it costs, and what mends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What is missing.
    pub what: String,
    /// What does not work, or is slower, without it.
    pub effect: &'static str,
    /// The one command (as root where it has to be).
    pub command: String,
    /// Whether a part does not work at all, and not only more slowly or in part.
    pub is_broken: bool,
}

/// Whether page faults can be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultService {
    /// Loads, stores and system calls.
    Full(Features),
    /// Loads and stores only; a system call on a missing page of a mapped object fails.
    UserModeOnly(Features),
    /// Not at all, with the reason.
    Absent(String),
}

/// Whether something works, with the reason if not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Works {
    /// It does.
    Yes,
    /// It does not, because.
    No(String),
}

impl Works {
    /// Whether it does.
    pub fn is_yes(&self) -> bool {
        *self == Self::Yes
    }
}

/// Size and free space of a file system in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Size.
    pub total_bytes: u64,
    /// Free for this user.
    pub free_bytes: u64,
}

/// What the machine offers, as of the moment of [`Machine::probe`].
#[derive(Clone, Debug)]
pub struct Machine {
    /// Release of the kernel.
    pub kernel: String,
    /// Processors that this process may run on.
    pub cpus: usize,
    /// Model of the processor.
    pub cpu_model: String,
    /// Memory of the machine.
    pub memory_total_bytes: u64,
    /// Memory that can be had without swapping.
    pub memory_available_bytes: u64,
    /// Huge pages, absent on kernels without 2 MiB pages.
    pub huge_pages: Option<HugePageCounts>,
    /// Setting of transparent huge pages for anonymous memory (`always`, `madvise`, `never`).
    pub transparent_huge_pages: String,
    /// Setting of transparent huge pages for memfds (`always`, `within_size`, `advise`, `never`, `deny`, `force`).
    pub shmem_huge_pages: String,
    /// Whether page faults can be served.
    pub fault_service: FaultService,
    /// Whether `/dev/fuse` can be opened.
    pub fuse: Works,
    /// Whether this process may mount.
    pub may_administrate: bool,
    /// Whether this process may mount huge pages: root of a user namespace mounts much, and not these.
    pub may_mount_huge_pages: bool,
    /// Whether this process may follow the forks of programs whose faults it serves.
    pub may_follow_forks: bool,
    /// Whether this process runs in a container.
    pub in_container: bool,
    /// Limit of open files.
    pub open_files: Limit,
    /// Limit of locked memory in bytes.
    pub locked_memory_bytes: Limit,
    /// Space in `/dev/shm`, absent if there is none.
    pub shared_memory: Option<Space>,
    /// DAX devices.
    pub dax_devices: Vec<PathBuf>,
    /// What is missing, most important first.
    pub problems: Vec<Problem>,
}

impl Machine {
    /// Looks at everything. It opens and closes descriptors and changes nothing.
    pub fn probe() -> Self {
        let no_limit = Limit { soft: u64::MAX, hard: u64::MAX };
        let mut machine = Self {
            kernel: read_line("/proc/sys/kernel/osrelease").unwrap_or_default(),
            cpus: crate::affinity::core_count(),
            cpu_model: cpu_model(),
            memory_total_bytes: memory_total_bytes(),
            memory_available_bytes: memory_available_bytes(),
            huge_pages: HugePageCounts::read().ok(),
            transparent_huge_pages: setting("enabled"),
            shmem_huge_pages: setting("shmem_enabled"),
            fault_service: fault_service(),
            fuse: opens("/dev/fuse"),
            may_administrate: has_capability(CAP_SYS_ADMIN),
            may_mount_huge_pages: has_capability(CAP_SYS_ADMIN) && !container::has_own_users(),
            may_follow_forks: container::has(Right::FollowForks),
            in_container: container::is_inside(),
            open_files: limits::open_files().unwrap_or(no_limit),
            locked_memory_bytes: limits::locked_memory_bytes().unwrap_or(no_limit),
            shared_memory: space(Path::new("/dev/shm")),
            dax_devices: dax_devices(),
            problems: Vec::new(),
        };
        machine.problems = machine.find_problems();
        machine
    }

    fn find_problems(&self) -> Vec<Problem> {
        [
            self.fault_problem(),
            self.fork_problem(),
            self.fuse_problem(),
            self.huge_page_problem(),
            self.shared_memory_problem(),
            self.open_files_problem(),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    fn fault_problem(&self) -> Option<Problem> {
        let newer = "uname -r  # a kernel from 6.8 on is needed";
        let command = if self.in_container {
            // Where the device opens nothing of the container is in the way.
            container::missing(&[userfault::DEVICE], &[]).unwrap_or_else(|| newer.to_owned())
        } else {
            "sysctl vm.unprivileged_userfaultfd=1".to_owned()
        };
        match &self.fault_service {
            FaultService::Full(features) if features.contains(FAULT_FEATURES_WANTED) => None,
            FaultService::Full(_) => Some(Problem {
                what: format!("kernel {} cannot serve faults of all kinds of memory", self.kernel),
                effect: "objects of other racks cannot be mapped from huge pages",
                command: newer.to_owned(),
                is_broken: false,
            }),
            FaultService::UserModeOnly(_) => Some(Problem {
                what: "only faults of user code can be served".to_owned(),
                effect: "a system call on a mapped object of another rack fails with EFAULT where it was not touched",
                command,
                is_broken: false,
            }),
            FaultService::Absent(reason) => Some(Problem {
                what: format!("page faults cannot be served: {reason}"),
                effect: "objects of other racks cannot be mapped, only read",
                command,
                is_broken: true,
            }),
        }
    }

    /// Outside of containers root has the right, and the others are told when they need it.
    fn fork_problem(&self) -> Option<Problem> {
        (self.in_container && !self.may_follow_forks).then(|| Problem {
            what: "forks of programs cannot be followed".to_owned(),
            effect: "`hinterland run --local` does not work",
            command: container::mend(&[], &[Right::FollowForks]),
            is_broken: false,
        })
    }

    fn fuse_problem(&self) -> Option<Problem> {
        let effect = "`hinterland mount` and `hinterland run` do not work";
        let what = match &self.fuse {
            Works::No(reason) => format!("/dev/fuse cannot be opened: {reason}"),
            Works::Yes if self.in_container && !self.may_administrate => "nothing can be mounted".to_owned(),
            Works::Yes => return None,
        };
        let is_broken = !self.fuse.is_yes();
        let command = if self.in_container {
            let command = container::mend(&["/dev/fuse"], &[Right::Mount]);
            let effect = if effective_user() == 0 || !self.fuse.is_yes() {
                "`hinterland mount` does not work, and `hinterland run` only with --no-mount"
            } else {
                "`hinterland mount` does not work, and `hinterland run` only where user namespaces are allowed"
            };
            return Some(Problem { what, effect, command, is_broken });
        } else if Path::new("/dev/fuse").exists() {
            "chmod 0666 /dev/fuse"
        } else {
            "modprobe fuse"
        };
        Some(Problem { what, effect, command: command.to_owned(), is_broken })
    }

    fn huge_page_problem(&self) -> Option<Problem> {
        let obtainable = self.huge_pages.is_some_and(|counts| counts.obtainable() > 0);
        if self.in_container && !self.may_mount_huge_pages {
            return Some(Problem {
                what: "huge pages cannot be mounted".to_owned(),
                effect: "faults and scans of pool memory are several times slower",
                command: "start the container with `-v /dev/hugepages:/dev/hugepages`, and the node with \
                          `--backing /dev/hugepages`"
                    .to_owned(),
                is_broken: false,
            });
        }
        // With the right to raise the overcommit, nodes do so themselves when they start.
        if obtainable || (self.may_administrate && self.huge_pages.is_some()) {
            return None;
        }
        let pages = self.memory_available_bytes / 2 / crate::HUGE_PAGE_BYTES as u64;
        Some(Problem {
            what: "no 2 MiB huge page can be had".to_owned(),
            effect: "faults and scans of pool memory are several times slower",
            command: format!("sysctl vm.nr_overcommit_hugepages={pages}"),
            is_broken: false,
        })
    }

    fn shared_memory_problem(&self) -> Option<Problem> {
        if self.shared_memory.is_some_and(|space| space.total_bytes >= self.memory_total_bytes / 4) {
            return None;
        }
        Some(Problem {
            what: match self.shared_memory {
                Some(space) => format!("/dev/shm has only {} MiB", space.total_bytes >> 20),
                None => "there is no /dev/shm".to_owned(),
            },
            effect: "without huge pages the pool has no more room than that",
            command: if self.in_container {
                "start the container with `--shm-size 8g`".to_owned()
            } else {
                "mount -o remount,size=75% /dev/shm".to_owned()
            },
            is_broken: false,
        })
    }

    fn open_files_problem(&self) -> Option<Problem> {
        (self.open_files.hard < OPEN_FILES_WANTED).then(|| Problem {
            what: format!("at most {} open files are allowed", self.open_files.hard),
            effect: "a node refuses sessions beyond that",
            command: "ulimit -n 65536".to_owned(),
            is_broken: false,
        })
    }
}

/// Size and free space of the file system of a path; absent if it does not exist.
pub fn space(path: &Path) -> Option<Space> {
    let c_path = std::ffi::CString::new(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str())).ok()?;
    // SAFETY: an all-zero statvfs is a valid value for the kernel to overwrite.
    let mut status: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is NUL-terminated and the structure is of this frame.
    let result = unsafe { libc::statvfs(c_path.as_ptr(), &mut status) };
    (result == 0).then(|| Space {
        total_bytes: status.f_blocks * status.f_frsize,
        free_bytes: status.f_bavail * status.f_frsize,
    })
}

/// Memory that can be had at this moment without swapping, in bytes.
pub fn memory_available_bytes() -> u64 {
    memory_bytes("MemAvailable:")
}

/// Memory of the machine in bytes.
pub fn memory_total_bytes() -> u64 {
    memory_bytes("MemTotal:")
}

fn fault_service() -> FaultService {
    match Userfault::available() {
        Ok((features, Scope::Full)) => FaultService::Full(features),
        Ok((features, Scope::UserModeOnly)) => FaultService::UserModeOnly(features),
        // What mends it is the problem's to say.
        Err(OsError::Unsupported { reason, .. }) => FaultService::Absent(reason),
        Err(error) => FaultService::Absent(error.to_string()),
    }
}

fn opens(path: &str) -> Works {
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(_) => Works::Yes,
        Err(error) => Works::No(error.to_string()),
    }
}

fn has_capability(bit: u32) -> bool {
    let status = crate::process::text_of("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|bits| bits >> bit & 1 == 1)
}

fn memory_bytes(field: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let value = text.lines().find_map(|line| line.strip_prefix(field));
    let kibibytes = value.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kibibytes.unwrap_or(0) << 10
}

fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split_once(": ")).map_or_else(String::new, |(_, model)| model.to_owned())
}

fn setting(name: &str) -> String {
    let path = format!("/sys/kernel/mm/transparent_hugepage/{name}");
    huge_pages::chosen_word(&path).unwrap_or_else(|| "absent".to_owned())
}

fn dax_devices() -> Vec<PathBuf> {
    let entries = fs::read_dir("/dev").into_iter().flatten().flatten();
    let mut devices: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"dax"))
        .map(|entry| entry.path())
        .collect();
    devices.sort();
    devices
}

fn read_line(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probe_sees_this_machine_and_every_problem_has_a_command() {
        let machine = Machine::probe();
        assert!(machine.cpus > 0 && !machine.kernel.is_empty());
        assert!(machine.memory_available_bytes > 0);
        assert!(machine.memory_total_bytes >= machine.memory_available_bytes);
        for problem in &machine.problems {
            assert!(!problem.what.is_empty() && !problem.command.is_empty(), "{problem:?}");
        }
    }

    #[test]
    fn each_missing_thing_is_a_problem_with_its_command() {
        let mut machine = Machine::probe();
        machine.in_container = false;
        machine.fault_service = FaultService::Absent("Operation not permitted".to_owned());
        machine.fuse = Works::No("No such file or directory".to_owned());
        machine.huge_pages = None;
        machine.shared_memory = None;
        machine.open_files = Limit { soft: 1024, hard: 1024 };
        let problems = machine.find_problems();
        // Faults and files; the rest is slower or less.
        assert_eq!(problems.iter().filter(|problem| problem.is_broken).count(), 2, "{problems:?}");
        let commands: Vec<String> = problems.into_iter().map(|problem| problem.command).collect();
        assert_eq!(commands.len(), 5, "{commands:?}");
        for word in ["userfaultfd", "fuse", "hugepages", "/dev/shm", "ulimit -n"] {
            assert!(commands.iter().any(|command| command.contains(word)), "{word} in {commands:?}");
        }
    }

    #[test]
    fn a_container_is_mended_from_outside() {
        let mut machine = Machine::probe();
        machine.in_container = true;
        (machine.may_administrate, machine.may_mount_huge_pages) = (false, false);
        machine.may_follow_forks = false;
        machine.fault_service = FaultService::Full(FAULT_FEATURES_WANTED);
        machine.fuse = Works::Yes;
        machine.shared_memory = Some(Space { total_bytes: 64 << 20, free_bytes: 64 << 20 });
        let commands: Vec<String> =
            machine.find_problems().into_iter().map(|problem| problem.command).collect();
        assert_eq!(commands.len(), 4, "{commands:?}");
        assert!(commands.iter().all(|command| command.contains("start the container")), "{commands:?}");
        // Whether the device is in the way depends on this machine; where it is not, the kernel is.
        machine.fault_service = FaultService::Absent("Function not implemented".to_owned());
        let command = machine.fault_problem().unwrap().command;
        let expected =
            if opens("/dev/userfaultfd").is_yes() { "a kernel from 6.8 on" } else { "/dev/userfaultfd" };
        assert!(command.contains(expected), "{command}");
        for option in ["--backing /dev/hugepages", "--shm-size 8g"] {
            assert!(commands.iter().any(|command| command.contains(option)), "{option} in {commands:?}");
        }
    }
}
