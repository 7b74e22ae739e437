//! Programs that know nothing of the pool, with the library before them and a stand-in for the node behind it.
//!
//! A file of a mount is stood in for by a plain file that says 0xEE in every byte: what the kernel would map. The stand-in
//! for the node serves an object of the same number with other bytes: what the library should map.

// A failure in a function that a test calls is a failed test.
#![allow(clippy::unwrap_used)]

mod building;
#[path = "../../region/tests/stub_node/mod.rs"]
mod stub_node;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use stub_node::StubNode;

const BYTES: u64 = (2 << 20) + 1234;

#[test]
fn stub_node_main() {
    stub_node::run_if_asked();
}

struct Setup {
    node: StubNode,
    folder: PathBuf,
    file: PathBuf,
    object: u64,
    device: u64,
}

fn setup(kind: &str) -> Setup {
    static FOLDERS: AtomicU64 = AtomicU64::new(0);
    let number = FOLDERS.fetch_add(1, Ordering::SeqCst);
    let folder = std::env::temp_dir().join(format!("hinterland-preload-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("model");
    std::fs::write(&file, vec![0xEE; BYTES as usize]).unwrap();
    let status = std::fs::metadata(&file).unwrap();
    let mut node = StubNode::start("stub_node_main", &folder.join("node.sock"));
    node.add(status.ino(), BYTES, kind);
    Setup { node, folder, file, object: status.ino(), device: status.dev() }
}

impl Drop for Setup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Setup {
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_PRELOAD", library())
            .env("HINTERLAND_MOUNT_DEVICE", format!("987654321, {}", self.device))
            .env("HINTERLAND_SOCKET", &self.node.socket)
            .env("HINTERLAND_GRACE_S", "2");
        command
    }

    fn behaviour(&self, case: &str) -> Command {
        let mut command = self.command(&compiled());
        command.arg(case).arg(&self.file).args([self.object.to_string(), BYTES.to_string()]);
        command
    }
}

/// The library under test.
fn library() -> PathBuf {
    building::built().join("libhinterland_preload.so")
}

fn compiled() -> PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| building::compile("preload-behaviours", &[])).clone()
}

fn succeeds(mut command: Command) -> Output {
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    output
}

fn behaves(case: &str) -> Setup {
    let setup = setup("base");
    let output = succeeds(setup.behaviour(case));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "nothing to complain about");
    setup
}

#[test]
fn mmap_of_a_pool_file_shows_the_object_at_its_place_in_the_window() {
    let mut setup = behaves("plain");
    assert_eq!(setup.node.fills(), 33, "each unit comes once");
    let requests = setup.node.order("requests");
    assert!(requests.contains("Unregister") && requests.contains("Close"), "{requests}");
    assert!(!requests.contains("Prefer"));
}

#[test]
fn an_object_of_this_rack_is_mapped_without_faults() {
    let mut setup = setup("local");
    for case in ["plain", "writes", "behind_the_end", "unmaps", "advice", "forks", "threads"] {
        succeeds(setup.behaviour(case));
    }
    assert_eq!(setup.node.fills(), 0);
    assert!(!setup.node.order("requests").contains("Register"));
}

#[test]
fn a_private_mapping_may_be_written_and_changes_nothing_for_others() {
    behaves("writes");
}

#[test]
fn memory_may_be_mapped_without_access_and_opened_later() {
    behaves("hidden");
}

#[test]
fn behind_the_end_of_the_file_there_are_zeros_and_then_sigbus() {
    behaves("behind_the_end");
}

#[test]
fn a_fixed_address_is_kept_and_neighbours_are_spared() {
    behaves("fixed");
}

#[test]
fn any_part_may_be_unmapped_and_used_for_something_else() {
    behaves("unmaps");
}

#[test]
fn mremap_shrinks_and_refuses_without_harm() {
    behaves("remaps");
}

#[test]
fn madvise_reaches_the_node_and_never_loses_a_byte() {
    let mut setup = behaves("advice");
    let requests = setup.node.order("requests");
    for advice in ["WillNeed", "Sequential", "Random", "Normal"] {
        assert!(requests.contains(&format!("advice: {advice}")), "{advice}");
    }
}

#[test]
fn system_calls_read_from_the_mapping() {
    behaves("calls");
}

#[test]
fn forked_children_have_the_memory_and_the_private_pages() {
    behaves("forks");
}

#[test]
fn forks_and_mappings_by_many_threads_at_once() {
    behaves("threads");
}

#[test]
fn many_threads_may_be_the_first_to_map() {
    behaves("first_use_from_many");
}

#[test]
fn a_program_that_never_touches_the_pool_pays_nothing() {
    let mut setup = behaves("untouched");
    assert_eq!(setup.node.order("requests"), "");
}

#[test]
fn a_program_that_closes_every_descriptor_keeps_its_memory() {
    let setup = setup("base");
    succeeds(setup.behaviour("closes_everything"));
}

#[test]
fn without_a_node_the_kernel_maps_the_file_and_says_so_once() {
    let setup = setup("base");
    let mut command = setup.behaviour("kernel_only");
    command.env("HINTERLAND_SOCKET", setup.folder.join("nobody.sock"));
    let output = succeeds(command);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.lines().count() == 1 && said.contains("slower") && said.contains("hint"), "{said}");
    let mut unknown = setup.behaviour("kernel_only");
    unknown.env("HINTERLAND_MOUNT_DEVICE", "7");
    assert!(succeeds(unknown).stderr.is_empty());
    let mut garbage = setup.behaviour("kernel_only");
    garbage.env("HINTERLAND_MOUNT_DEVICE", ",x,99999999999999999999999,");
    assert!(succeeds(garbage).stderr.is_empty());
}

#[test]
fn an_object_that_the_node_does_not_know_is_mapped_by_the_kernel() {
    let setup = setup("base");
    let other = setup.folder.join("other");
    std::fs::write(&other, vec![0xEE; BYTES as usize]).unwrap();
    let mut command = setup.command(&compiled());
    command.arg("kernel_only").arg(other).args(["0", &BYTES.to_string()]);
    let said = String::from_utf8_lossy(&succeeds(command).stderr).into_owned();
    assert!(said.contains("no such object"), "{said}");
}

#[test]
fn with_too_few_descriptors_a_program_gets_one_mapping_or_the_other() {
    let setup = setup("base");
    for limit in 4..16 {
        let mut command = Command::new("sh");
        let behaviour = setup.behaviour("either");
        command
            .arg("-c")
            .arg(format!("ulimit -n {limit}; exec \"$@\""))
            .arg("sh")
            .arg(behaviour.get_program());
        command.args(behaviour.get_args());
        for (name, value) in behaviour.get_envs().filter_map(|(name, value)| Some((name, value?))) {
            command.env(name, value);
        }
        let said = String::from_utf8_lossy(&succeeds(command).stderr).into_owned();
        assert!(said.is_empty() || said.contains("Too many open files"), "{limit}: {said}");
    }
}

#[test]
fn without_the_right_to_serve_faults_the_kernel_maps_the_file_and_says_what_to_do() {
    let allowed = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default();
    // SAFETY: the call takes nothing.
    if unsafe { libc::geteuid() } != 0 || allowed.trim() != "0" {
        eprintln!("not run: needs root, and a system on which others may not serve faults");
        return;
    }
    let setup = setup("base");
    // Copies that another user can reach. A process of its own makes them: a child that another
    // test starts just then would hold what this process writes open, and such a file cannot be
    // executed.
    let (copy, program) = (setup.folder.join("preload.so"), setup.folder.join("behaviours"));
    for (from, to) in [(library(), &copy), (compiled(), &program)] {
        assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
    }
    for path in [&setup.folder, &setup.node.socket, &copy, &program] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let mut command = setup.command(&program);
    command
        .env("LD_PRELOAD", &copy)
        .arg("kernel_only")
        .arg(&setup.file)
        .args([setup.object, BYTES].map(|n| n.to_string()));
    command.uid(65534).gid(65534);
    let said = String::from_utf8_lossy(&succeeds(command).stderr).into_owned();
    assert!(said.contains("unprivileged_userfaultfd"), "{said}");
}

#[test]
fn the_switches_of_the_environment_do_what_they_say() {
    let mut setup = setup("base");
    let mut command = setup.behaviour("symmetric_off");
    command
        .env("HINTERLAND_NO_SYMMETRIC", "1")
        .env("HINTERLAND_BUDGET", "1048576")
        .env("HINTERLAND_UNIT", "65536")
        .env("HINTERLAND_VERBOSE", "1");
    let said = String::from_utf8_lossy(&succeeds(command).stderr).into_owned();
    assert!(said.contains("from another rack, on fault"), "{said}");
    let requests = setup.node.order("requests");
    assert!(
        requests.contains("Prefer { budget_bytes: Some(1048576), unit_bytes: Some(65536) }"),
        "{requests}"
    );
    let mut command = setup.behaviour("advice");
    command.env("HINTERLAND_NO_PREFETCH", "1");
    succeeds(command);
    assert!(!setup.node.order("requests").contains("WillNeed"));
}

#[test]
fn a_library_that_is_loaded_later_maps_pool_memory_too() {
    let setup = setup("base");
    let shared = building::compile("libbehaviours.so", &["-shared", "-fPIC"]);
    let mut command = setup.behaviour("loaded_later");
    command.env("BEHAVIOURS_LIBRARY", shared);
    succeeds(command);
}

#[test]
fn a_constructor_may_map_before_main() {
    let setup = setup("base");
    let mut command = setup.behaviour("before_main");
    command.env("BEHAVIOURS_EARLY", &setup.file);
    succeeds(command);
}

#[test]
fn python_maps_reads_copies_and_forks() {
    let setup = setup("base");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/behaviours.py");
    let mut command = setup.command(Path::new("python3"));
    command.arg(script).arg(&setup.file).arg(setup.object.to_string());
    succeeds(command);
}

#[test]
fn tools_of_the_system_work_with_the_library_before_them() {
    let setup = setup("base");
    for (program, arguments) in
        [("cat", &[][..]), ("sha256sum", &[]), ("sort", &["-c"]), ("grep", &["-c", "x"])]
    {
        let mut command = setup.command(Path::new(program));
        let output = command.args(arguments).arg(&setup.file).output().unwrap();
        assert!(output.stderr.is_empty() && output.status.code().is_some(), "{program}: {output:?}");
    }
}
