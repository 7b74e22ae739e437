//! Real processes: a node, and commands that talk to it.
//!
//! Tests that mount need the right to; where it is missing they say so and pass.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
/// How long anything may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(90);

/// A folder with a node in it; both go with the test.
struct Pool {
    folder: PathBuf,
    node: Child,
}

impl Pool {
    fn start() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("hl-cli-{}-{number}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let mut node = hinterland(&folder)
            .args(["node", "--name", "a", "--capacity", "128M", "--cache-budget", "64M", "--json"])
            .arg("--state")
            .arg(folder.join("state"))
            .arg("--backing")
            .arg(folder.join("memory"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(node.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("\"ready\":true"), "{line:?}");
        let pool = Self { folder, node };
        // The first object of a pool is not one that the tests use.
        pool.put("first", b"first");
        pool
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = hinterland(&self.folder);
        command.args(words);
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    fn good(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        let file = self.path("to-put");
        fs::write(&file, bytes).unwrap();
        self.good(&["put", file.to_str().unwrap(), "--name", name]);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A folder to mount on, or nothing where this process may not mount.
    fn mount_point(&self) -> Option<String> {
        let machine = hinterland_os::probe::Machine::probe();
        if !machine.fuse.is_yes() || !machine.may_administrate {
            eprintln!("skipped: no right to mount here (hint: run as root, with /dev/fuse)");
            return None;
        }
        let path = self.path("mount");
        fs::create_dir_all(&path).unwrap();
        Some(path.to_str().unwrap().to_owned())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        signal(&self.node, SIGINT);
        let status = wait(&mut self.node);
        fs::remove_dir_all(&self.folder).unwrap();
        if !std::thread::panicking() {
            assert_eq!(status, Some(0), "the node did not end in order");
        }
    }
}

fn hinterland(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hinterland"));
    command.env("HINTERLAND_SOCKET", folder.join("s")).env_remove("HINTERLAND_PRELOAD").stdin(Stdio::null());
    command
}

fn signal(child: &Child, number: i32) {
    let number = number.to_string();
    assert!(Command::new("kill").args(["-s", &number, &child.id().to_string()]).status().unwrap().success());
}

/// The exit status, or nothing if a signal ended it.
fn wait(child: &mut Child) -> Option<i32> {
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    panic!("a process did not end");
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn is_mounted(folder: &str) -> bool {
    fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&format!(" {folder} "))
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

#[test]
fn what_is_put_comes_back_by_get_and_is_gone_after_rm() {
    let pool = Pool::start();
    let bytes = pattern(3_000_001);
    pool.put("models/a", &bytes);
    assert!(pool.good(&["ls", "models/"]).contains("models/a  2.86 MiB  sealed  a"));
    assert!(pool.good(&["verify", "--all"]).contains("models/a: 1 right copy"));
    let target = pool.path("got");
    pool.good(&["get", "models/a", target.to_str().unwrap()]);
    assert!(fs::read(&target).unwrap() == bytes);
    assert!(pool.run(&["get", "models/a", "-"]).stdout == bytes);
    pool.good(&["rm", "models/a"]);
    let missing = pool.run(&["stat", "models/a"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8(missing.stderr).unwrap().contains("hint:"));
}

#[test]
fn a_get_that_fails_leaves_the_old_file_and_no_part() {
    let pool = Pool::start();
    let target = pool.path("kept");
    fs::write(&target, "old").unwrap();
    assert_eq!(pool.run(&["get", "absent", target.to_str().unwrap()]).status.code(), Some(1));
    assert_eq!(fs::read(&target).unwrap(), b"old");
    let parts = fs::read_dir(&pool.folder).unwrap().flatten();
    assert_eq!(parts.filter(|entry| entry.file_name().to_string_lossy().ends_with(".partial")).count(), 0);
}

#[test]
fn a_reader_that_goes_away_ends_get_without_a_word() {
    let pool = Pool::start();
    pool.put("a", &pattern(20_000_000));
    let mut get =
        pool.command(&["get", "a", "-"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut start = [0; 4];
    get.stdout.take().unwrap().read_exact(&mut start).unwrap();
    wait(&mut get);
    let mut said = String::new();
    get.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "");
}

#[test]
fn top_shows_a_picture_and_json_lines_until_it_is_interrupted() {
    let pool = Pool::start();
    assert!(pool.good(&["top", "--once"]).contains("hinterland top   a in rack a, directory"));
    let mut top =
        pool.command(&["top", "--json", "--interval", "0.1"]).stdout(Stdio::piped()).spawn().unwrap();
    let lines: Vec<String> = BufReader::new(top.stdout.take().unwrap()).lines().take(3).flatten().collect();
    assert!(lines.iter().all(|line| line.contains("\"faults_per_s\"")), "{lines:?}");
    signal(&top, SIGINT);
    wait(&mut top);
}

#[test]
fn a_mount_shows_objects_and_goes_with_sigterm() {
    let pool = Pool::start();
    let Some(folder) = pool.mount_point() else { return };
    let bytes = pattern(1_000_001);
    pool.put("models/a", &bytes);
    for (number, status) in [(SIGTERM, 0), (SIGINT, 0)] {
        let mut mount = pool.command(&["mount", &folder, "--json"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(mount.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("\"ready\":true"), "{line}");
        assert!(fs::read(Path::new(&folder).join("models/a")).unwrap() == bytes);
        signal(&mount, number);
        assert_eq!(wait(&mut mount), Some(status));
        assert!(!is_mounted(&folder));
    }
}

#[test]
fn the_mount_of_a_killed_process_is_told_with_the_command_that_clears_it() {
    let pool = Pool::start();
    let Some(folder) = pool.mount_point() else { return };
    // It is killed at every moment of its start: none may leave a process that waits for itself.
    for pause_us in (0..8000).step_by(400) {
        let mut mount = pool.command(&["mount", &folder, "--quiet"]).spawn().unwrap();
        until("it is mounted", || is_mounted(&folder));
        std::thread::sleep(Duration::from_micros(pause_us));
        signal(&mount, SIGKILL);
        wait(&mut mount);
        let again = pool.run(&["mount", &folder]);
        let said = String::from_utf8(again.stderr).unwrap();
        let clear = format!("umount {folder}");
        let cleared = Command::new("umount").arg(&folder).status().unwrap().success();
        assert!(said.contains("whose process has ended") && said.contains(&clear) && cleared, "{said}");
    }
}

#[test]
fn run_gives_the_program_a_mount_of_its_own_and_ends_with_its_status() {
    let pool = Pool::start();
    let Some(folder) = pool.mount_point() else { return };
    let bytes = pattern(1_000_001);
    pool.put("models/a", &bytes);
    let run = ["run", "--no-preload", "--budget", "1G", "--unit", "64K", "--at", &folder, "--"];
    let with = |words: &[&str]| pool.run(&[&run, words].concat());
    let seen = with(&["cat", &format!("{folder}/models/a")]);
    assert!(seen.stdout == bytes && seen.status.success());
    let script =
        "stat -c %d \"$0\"; echo $HINTERLAND_MOUNT_DEVICE $HINTERLAND_BUDGET $HINTERLAND_UNIT; exit 7";
    let output = with(&["sh", "-c", script, &folder]);
    let text = String::from_utf8(output.stdout).unwrap();
    let (device, variables) = text.split_once('\n').unwrap();
    assert_eq!(variables.trim(), format!("{device} {} {}", 1 << 30, 64 << 10));
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(with(&["sh", "-c", "kill -9 $$"]).status.code(), Some(137));
    assert_eq!(with(&["no-such-program"]).status.code(), Some(127));
    assert_eq!(with(&["/etc/passwd"]).status.code(), Some(126));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "the mount is seen outside of the program");
}

#[test]
fn run_passes_signals_on_to_the_program() {
    let pool = Pool::start();
    let Some(folder) = pool.mount_point() else { return };
    let script = "trap 'echo term; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
    let mut run = pool
        .command(&["run", "--no-preload", "--at", &folder, "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    signal(&run, SIGTERM);
    assert_eq!(lines.next().unwrap().unwrap(), "term");
    assert_eq!(wait(&mut run), Some(3));
    // Those of a terminal come by themselves, if nothing holds them back.
    let held = ["run", "--no-preload", "--at", &folder, "--", "grep", "SigBlk", "/proc/self/status"];
    assert_eq!(pool.good(&held), "SigBlk:\t0000000000000000\n");
}

#[test]
fn the_program_ends_when_run_is_killed() {
    let pool = Pool::start();
    let Some(folder) = pool.mount_point() else { return };
    let mut run = pool
        .command(&["run", "--no-preload", "--at", &folder, "--", "sh", "-c", "echo $$; exec sleep 60"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(run.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let program = PathBuf::from(format!("/proc/{}", line.trim()));
    assert!(program.exists());
    signal(&run, SIGKILL);
    assert_eq!(wait(&mut run), None);
    until("the program has ended", || !program.exists());
}

#[test]
fn a_second_node_on_the_same_state_is_refused_with_a_next_step() {
    let pool = Pool::start();
    let mut second = pool.command(&["--socket", "/tmp/hl-never.sock", "node", "--name", "b"]);
    second.arg("--state").arg(pool.path("state")).arg("--backing").arg(pool.path("other-memory"));
    let output = second.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("error:") && said.contains("hint:"), "{said}");
}
