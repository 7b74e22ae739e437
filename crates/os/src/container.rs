//! Whether this process runs in a container, and what it is to be started with: devices and rights are then given by whoever starts it, and
//! no command inside mends what is missing.

use crate::process::text_of;
use std::fs::OpenOptions;
use std::sync::OnceLock;

/// Mode of a process whose system calls are filtered, as they are in containers and hardly anywhere else.
const FILTERED: &str = "2";
/// `CAP_SYS_MODULE` as a bit number: no container has it that was not given all rights, and outside root has it.
const CAP_SYS_MODULE: u32 = 16;
/// What `/proc/self/uid_map` says where users are those of the machine.
const ALL_USERS: [&str; 3] = ["0", "0", "4294967295"];

/// Options of who starts it: root in the container, and no user namespace.
const ROOT_INSIDE: [&str; 2] = ["--user", "0"];
const USERS_OF_HOST: [&str; 2] = ["--userns", "host"];

/// A right of root that a container does not have if nothing is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// To mount: `CAP_SYS_ADMIN`, which root of a user namespace has there as well.
    Mount,
    /// To follow the forks of programs with far memory: `CAP_SYS_PTRACE` on the machine itself.
    FollowForks,
}

impl Right {
    /// Its bit number, and its name as `--cap-add` takes it.
    fn capability(self) -> (u32, &'static str) {
        match self {
            Self::Mount => (21, "SYS_ADMIN"),
            Self::FollowForks => (19, "SYS_PTRACE"),
        }
    }
}

/// What keeps a process from a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Device {
    Opens,
    Closed,
    Absent,
}

/// Whether it looks like one: its system calls are filtered, or a right of root cannot be had. Files that mark a container are not asked
/// for: they are left over where a machine was made of the image of one.
pub fn is_inside() -> bool {
    is_confined(own_status())
}

/// Whether this process has a right. In a user namespace one may have rights there that do not count on the machine.
pub fn has(right: Right) -> bool {
    has_right(right, own_status(), own_users())
}

/// How this container is to be started so that programs in it open devices and have rights, in the words of Docker and Podman: the rest of a
/// sentence that says what is missing. It names what is missing and not what is there.
pub fn mend(devices: &[&str], rights: &[Right]) -> String {
    // Devices and rights are there, and something else forbids it.
    missing(devices, rights).unwrap_or_else(|| {
        "start the container with `--security-opt apparmor=unconfined --security-opt seccomp=unconfined`"
            .to_owned()
    })
}

/// The same where a device or a right is missing; `None` if all of them are there, and something else is in the way.
pub fn missing(devices: &[&str], rights: &[Right]) -> Option<String> {
    let devices: Vec<_> = devices.iter().map(|path| (*path, look_at(path))).collect();
    mending(&devices, rights, own_status(), own_users())
}

/// Keeps what this process was started with, for what is asked afterwards: in a user namespace of its own it would see that one.
pub fn look() {
    let _ = (own_status(), own_users());
}

/// Whether users here are others on the machine.
pub fn has_own_users() -> bool {
    is_mapped(own_users())
}

fn own_status() -> &'static str {
    static STATUS: OnceLock<String> = OnceLock::new();
    STATUS.get_or_init(|| text_of("/proc/self/status").unwrap_or_default())
}

fn own_users() -> &'static str {
    static USERS: OnceLock<String> = OnceLock::new();
    USERS.get_or_init(|| text_of("/proc/self/uid_map").unwrap_or_default())
}

fn look_at(path: &str) -> Device {
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(_) => Device::Opens,
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => Device::Closed,
        // The file may be there all the same, where the group of the container forbids the device (`EPERM`).
        Err(_) => Device::Absent,
    }
}

fn mending(devices: &[(&str, Device)], rights: &[Right], status: &str, users: &str) -> Option<String> {
    let (mut options, mut on_host) = (Vec::new(), Vec::new());
    for (path, state) in devices {
        match state {
            Device::Opens => {}
            Device::Closed => on_host.push(format!("`chmod 0666 {path}`")),
            Device::Absent => options.push(["--device", path]),
        }
    }
    for right in rights.iter().filter(|right| !has_right(**right, status, users)) {
        let (bit, name) = right.capability();
        if !has_bit(status, "CapBnd:", bit) {
            options.push(["--cap-add", name]);
        }
        // Who is root in it has each right that the container has, and others have none.
        let is_root = has_bits(status, "CapEff:");
        if !is_root && !options.contains(&ROOT_INSIDE) {
            options.push(ROOT_INSIDE);
        }
        if is_elsewhere(*right, users) && !options.contains(&USERS_OF_HOST) {
            options.push(USERS_OF_HOST);
        }
    }
    if options.contains(&ROOT_INSIDE) && !is_mapped(users) {
        // Root opens devices whatever their mode.
        on_host.clear();
    }
    let who = if options.contains(&USERS_OF_HOST) { ", as root of the host," } else { "" };
    let words: Vec<&str> = options.concat();
    let mut parts = Vec::new();
    if !words.is_empty() {
        parts.push(format!("start the container{who} with `{}`", words.join(" ")));
    }
    if !on_host.is_empty() {
        parts.push(format!("on the host, before the container starts: {}", on_host.join(", ")));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn is_confined(status: &str) -> bool {
    field(status, "Seccomp:") == Some(FILTERED)
        || field(status, "CapBnd:").is_some() && !has_bit(status, "CapBnd:", CAP_SYS_MODULE)
}

fn has_right(right: Right, status: &str, users: &str) -> bool {
    has_bit(status, "CapEff:", right.capability().0) && !is_elsewhere(right, users)
}

/// Whether a right counts on the machine itself alone, and this process is in a user namespace.
fn is_elsewhere(right: Right, users: &str) -> bool {
    right == Right::FollowForks && is_mapped(users)
}

fn is_mapped(users: &str) -> bool {
    !users.is_empty() && users.split_whitespace().ne(ALL_USERS)
}

fn field<'status>(status: &'status str, name: &str) -> Option<&'status str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

fn has_bit(status: &str, set: &str, bit: u32) -> bool {
    bits(status, set).is_some_and(|bits| bits >> bit & 1 == 1)
}

fn has_bits(status: &str, set: &str) -> bool {
    bits(status, set).is_some_and(|bits| bits != 0)
}

fn bits(status: &str, set: &str) -> Option<u64> {
    field(status, set).and_then(|bits| u64::from_str_radix(bits, 16).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "         0          0 4294967295\n";
    const OTHERS: &str = "         0     100000      65536\n";
    /// What Docker leaves to root, and the same with both rights.
    const USUAL: &str = "CapEff:\t00000000a80425fb\nCapBnd:\t00000000a80425fb\nSeccomp:\t2\n";
    const BOTH: &str = "CapEff:\t00000000a82c25fb\nCapBnd:\t00000000a82c25fb\nSeccomp:\t2\n";
    /// Both, of a user who is not root.
    const USER: &str = "CapEff:\t0000000000000000\nCapBnd:\t00000000a82c25fb\nSeccomp:\t2\n";
    const FUSE: (&str, Device) = ("/dev/fuse", Device::Absent);

    #[test]
    fn filtered_calls_and_missing_rights_are_seen() {
        assert!(is_confined("Name:\tsh\nCapBnd:\t000001ffffffffff\nSeccomp:\t2\nSeccomp_filters:\t1\n"));
        assert!(is_confined("CapBnd:\t00000000a80425fb\nSeccomp:\t0\n"));
        assert!(!is_confined("Name:\tsh\nCapBnd:\t000001ffffffffff\nSeccomp:\t0\n"));
        assert!(!is_confined(""));
    }

    #[test]
    fn what_is_missing_is_named_and_nothing_else() {
        let mount = |devices: &[(&str, Device)], status| {
            mending(devices, &[Right::Mount], status, HOST).unwrap_or_default()
        };
        assert_eq!(
            mount(&[FUSE], USUAL),
            "start the container with `--device /dev/fuse --cap-add SYS_ADMIN`"
        );
        assert_eq!(mount(&[FUSE], BOTH), "start the container with `--device /dev/fuse`");
        let opens = [("/dev/fuse", Device::Opens)];
        assert_eq!(mount(&opens, USUAL), "start the container with `--cap-add SYS_ADMIN`");
        assert_eq!(mount(&opens, BOTH), "");
    }

    #[test]
    fn a_user_who_is_not_root_has_no_right_of_the_container() {
        let closed = [("/dev/fuse", Device::Closed)];
        let rights = [Right::Mount, Right::FollowForks];
        let said = |rights, status, users| mending(&closed, rights, status, users).unwrap();
        // Root opens the device as it is.
        assert_eq!(said(&rights, USER, HOST), "start the container with `--user 0`");
        let without = USER.replace("a82c25fb", "a80425fb");
        assert_eq!(
            said(&[Right::Mount], &without, HOST),
            "start the container with `--cap-add SYS_ADMIN --user 0`"
        );
        // Root of a user namespace is somebody else for the device.
        assert_eq!(
            said(&[Right::Mount], USER, OTHERS),
            "start the container with `--user 0`; on the host, before the container starts: `chmod 0666 /dev/fuse`"
        );
    }

    #[test]
    fn forks_are_followed_on_the_machine_and_in_no_user_namespace() {
        assert!(has_right(Right::FollowForks, BOTH, HOST) && has_right(Right::Mount, BOTH, OTHERS));
        assert!(!has_right(Right::FollowForks, BOTH, OTHERS));
        let mend = |status| mending(&[], &[Right::FollowForks], status, OTHERS).unwrap();
        assert_eq!(mend(BOTH), "start the container, as root of the host, with `--userns host`");
        assert_eq!(
            mend(USUAL),
            "start the container, as root of the host, with `--cap-add SYS_PTRACE --userns host`"
        );
    }
}
