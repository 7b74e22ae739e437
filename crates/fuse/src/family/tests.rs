//! Tests of who can reach a file.

use super::*;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;

fn opened(inode: u64) -> OpenedFile {
    OpenedFile { device: None, inode }
}

#[test]
fn what_has_no_place_among_files_is_no_file_of_a_mount() {
    use nix::sys::memfd::{MFdFlags, memfd_create};
    let memory = fs::File::from(memfd_create(c"memory", MFdFlags::MFD_CLOEXEC).unwrap());
    let inode = memory.metadata().unwrap().ino();
    let mut child = waiting_with(&memory);
    let of = |device| is_without(child.id(), OpenedFile { device, ..opened(inode) });
    let found = (of(None), of(Some(1)));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(found, (false, true));
}

#[test]
fn a_process_with_a_descriptor_is_not_without_the_file() {
    let file = fs::File::open("/proc/version").unwrap();
    let inode = file.metadata().unwrap().ino();
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()));
    assert_eq!(field(&text.unwrap(), "ino:"), Some(inode));
    assert!(!is_without(std::process::id(), opened(inode)));
    // A process of its own, because tests beside this one start children.
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    while !is_without(child.id(), opened(u64::MAX)) {
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!is_without(child.id(), opened(u64::MAX)));
}

/// A process with a file as its input that waits, and once it does so.
fn waiting_with(file: &fs::File) -> Child {
    let child = Command::new("sleep").arg("60").stdin(file.try_clone().unwrap()).spawn().unwrap();
    let name = format!("/proc/{}/comm", child.id());
    while fs::read_to_string(&name).unwrap() != "sleep\n" {
        std::thread::yield_now();
    }
    child
}

#[test]
fn a_file_of_another_mount_with_the_same_number_is_another_one() {
    let file = tempfile();
    let (inode, device) = (file.metadata().unwrap().ino(), file.metadata().unwrap().dev());
    let mut child = waiting_with(&file);
    let of = |device| is_without(child.id(), OpenedFile { device: Some(device), ..opened(inode) });
    let found = (of(device), of(device + 1));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(found, (false, true));
}

#[test]
fn a_process_whose_threads_come_and_go_is_told_of() {
    // Threads are started and ended all the time, a few hundred in a second.
    let threads = "import threading, time\nwhile True:\n    one = threading.Thread(target=time.sleep, args=(0.002,))\n    one.start()\n    one.join()\n";
    let mut child = Command::new("python3").args(["-c", threads]).stdin(Stdio::null()).spawn().unwrap();
    while threads_of(child.id()).is_none_or(|threads| threads.len() == 1) {
        std::thread::yield_now();
    }
    let times = (0..200).filter(|_| is_without(child.id(), opened(u64::MAX))).count();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(times, 200);
}

#[test]
fn a_child_counts_only_with_the_file() {
    let file = tempfile();
    let inode = file.metadata().unwrap().ino();
    // The shell waits for a child of its own, which has the file or has not.
    let start = |line: &str| {
        let input = Stdio::from(file.try_clone().unwrap());
        Command::new("sh").args(["-c", line]).stdin(input).spawn().unwrap()
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
        while !has_child() || is_without(shell, opened(inode)) != expected {
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
        kill(Pid::from_raw(child.trim().parse().unwrap()), Signal::SIGKILL).unwrap();
        shell.kill().unwrap();
        shell.wait().unwrap();
    }
}

#[test]
fn a_child_is_seen_while_threads_end() {
    const THREADS: usize = 100;
    let own = std::process::id();
    let mut times_alone = 0;
    for round in 0..40 {
        let file = tempfile();
        let inode = file.metadata().unwrap().ino();
        let (ready, over) = (&Barrier::new(THREADS + 1), &Barrier::new(2));
        std::thread::scope(|scope| {
            // The thread that starts the child stands behind those that end in the kernel's list.
            let others: Vec<_> = (0..THREADS).map(|_| scope.spawn(move || ready.wait())).collect();
            let parent = scope.spawn(move || {
                let mut child = Command::new("sleep").arg("60").stdin(file).spawn().unwrap();
                over.wait();
                over.wait();
                child.kill().unwrap();
                child.wait().unwrap();
            });
            over.wait();
            ready.wait();
            while others.iter().any(|thread| !thread.is_finished()) {
                times_alone += usize::from(is_without(own, opened(inode)));
            }
            assert!(!is_without(own, opened(inode)), "round {round}");
            over.wait();
            parent.join().unwrap();
        });
    }
    assert_eq!(times_alone, 0);
}

fn tempfile() -> fs::File {
    let thread = nix::unistd::gettid();
    let path = std::env::temp_dir().join(format!("hinterland-family-{thread}"));
    let file = fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    fs::remove_file(path).unwrap();
    file
}

#[test]
fn a_mapping_counts_as_long_as_it_is_there() {
    let line = "7f00-7f01 rw-s 00000000 00:2f 4611686018427387905            /pool/x";
    let file = opened(4_611_686_018_427_387_905);
    assert!(maps_file(line, file) && maps_file(line, OpenedFile { device: Some(makedev(0, 0x2f)), ..file }));
    assert!(!maps_file(line, OpenedFile { device: Some(makedev(0, 0x2e)), ..file }));
    assert!(!maps_file("7f00-7f01 rw-p 00000000 00:00 0 [heap]", opened(0)));
}

#[test]
fn the_device_of_a_mount_is_told_by_its_number() {
    let line = "36 35 0:98 / /pool rw,nosuid - fuse.hinterland hinterland rw";
    assert_eq!(mounted_device(line, 36), Some(makedev(0, 98)));
    assert_eq!(mounted_device(line, 35), None);
}
