//! What FUSE can do on this machine, beyond what the probe of the operating system tells.

use hinterland_os::probe::Machine;
use std::path::PathBuf;

/// The device through which the kernel asks.
pub const DEVICE: &str = "/dev/fuse";
/// First kernel with passthrough.
const PASSTHROUGH_KERNEL: (u32, u32) = (6, 9);

/// Whether reads and mappings of local objects can be passed through to their files.
///
/// # Errors
/// What is missing, in words.
pub fn passthrough(machine: &Machine) -> Result<(), String> {
    let (major, minor) = PASSTHROUGH_KERNEL;
    if kernel_version(&machine.kernel).is_none_or(|version| version < PASSTHROUGH_KERNEL) {
        return Err(format!("it needs Linux {major}.{minor}, this is {}", machine.kernel));
    }
    if !machine.may_administrate {
        return Err("it needs root (CAP_SYS_ADMIN)".to_owned());
    }
    Ok(())
}

/// The program that mounts for others than root, if it is installed.
pub fn mount_program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/bin", "/usr/bin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join("fusermount3"))
        .find(|program| program.is_file())
}

/// Major and minor number out of `6.18.44-something`.
fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(['.', '-']).map(|part| part.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_versions_are_read_out_of_release_names() {
        assert_eq!(kernel_version("6.18.44-fc-v669"), Some((6, 18)));
        assert_eq!(kernel_version("6.9-rc1"), Some((6, 9)));
        assert_eq!(kernel_version("six"), None);
        assert!(kernel_version("6.10.0").unwrap() > PASSTHROUGH_KERNEL);
    }

    #[test]
    fn an_old_kernel_and_missing_rights_are_told_apart() {
        let mut machine = Machine::probe();
        machine.kernel = "6.1.0".to_owned();
        assert!(passthrough(&machine).unwrap_err().contains("Linux 6.9"));
        machine.kernel = "6.9.0".to_owned();
        machine.may_administrate = false;
        assert!(passthrough(&machine).unwrap_err().contains("root"));
        machine.may_administrate = true;
        assert_eq!(passthrough(&machine), Ok(()));
    }
}
