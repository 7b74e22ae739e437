//! Programs under `hinterland run`, with real nodes: two racks on this machine, the object in the other one.
//!
//! Needs the right to mount; where it is missing the tests say so and pass.

// A failure in a function that a test calls is a failed test.
#![allow(clippy::unwrap_used)]

mod building;
#[path = "../../node/tests/loopback/mod.rs"]
mod loopback;

use building::built;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const BYTES: u64 = (5 << 20) + 1234;
/// The number that the object's bytes are made from.
const SEED: u64 = 7;

/// The program of the behaviours.
fn behaviours() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| building::compile("run-behaviours", &[]))
}

/// Two nodes; both end with the test.
struct Racks {
    folder: PathBuf,
    home: Node,
    near: Node,
}

struct Node {
    child: Child,
    arguments: Vec<String>,
}

impl Node {
    fn start(arguments: Vec<String>) -> Self {
        let mut child = Command::new(built().join("hinterland"))
            .arg("node")
            .args(&arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert!(ready.contains("ready"), "{ready}");
        Self { child, arguments }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn restart(&mut self) {
        *self = Self::start(std::mem::take(&mut self.arguments));
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Racks {
    fn drop(&mut self) {
        for node in [&mut self.near, &mut self.home] {
            // Ends in order, so that it takes its mounts away.
            // SAFETY: the process is our child and was not waited for.
            unsafe { libc::kill(node.child.id() as i32, libc::SIGINT) };
            let deadline = Instant::now() + Duration::from_secs(5);
            while matches!(node.child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Racks {
    /// Starts both and puts the object into the far one. `without` turns an optimisation of the near node off.
    fn start(name: &str, without: &[&str]) -> Option<Self> {
        let machine = hinterland_os::probe::Machine::probe();
        if !machine.fuse.is_yes() || !machine.may_administrate {
            eprintln!("not run: no right to mount here (hint: run as root, with /dev/fuse)");
            return None;
        }
        let folder = std::env::temp_dir().join(format!("hinterland-run-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let listen = loopback::address();
        let path = |file: &str| folder.join(file).to_str().unwrap().to_owned();
        let words = |text: String| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let home = Node::start(words(format!(
            "--json --name b --state {} --socket {} --listen {listen} --capacity 64M --backing {}",
            path("b"),
            path("b.sock"),
            path("b-memory")
        )));
        let mut near = words(format!(
            "--json --name a --state {} --socket {} --join {listen} --capacity 16M --cache-budget 64M --backing {}",
            path("a"),
            path("a.sock"),
            path("a-memory")
        ));
        for switch in without {
            near.extend(["--without".to_owned(), (*switch).to_owned()]);
        }
        let racks = Self { home, near: Node::start(near), folder };
        let object = racks.folder.join("object");
        std::fs::write(&object, (0..BYTES).map(byte_of).collect::<Vec<u8>>()).unwrap();
        racks.put(&object, "first");
        racks.put(&object, "model");
        Some(racks)
    }

    fn command(&self, socket: &str) -> Command {
        let mut command = Command::new(built().join("hinterland"));
        command.arg("--socket").arg(self.folder.join(socket)).env_remove("HINTERLAND_PRELOAD");
        command
    }

    fn put(&self, file: &Path, name: &str) {
        let output =
            self.command("b.sock").arg("put").arg(file).args(["--name", name, "--rack", "b"]).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn run(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = self.command("a.sock");
        command.arg("run").arg("--at").arg(self.mount_point()).arg("--").arg(program).args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn mount_point(&self) -> PathBuf {
        let folder = self.folder.join("pool");
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn model(&self) -> String {
        self.mount_point().join("model").to_str().unwrap().to_owned()
    }

    fn behaviour(&self, case: &str) -> Command {
        let (seed, bytes) = (SEED.to_string(), BYTES.to_string());
        self.run(behaviours(), &[case, &self.model(), &seed, &bytes])
    }

    /// What the program finds in the file when it reads a byte a line: `offset` on stdin, the byte on stdout.
    fn reader(&self, before: &str) -> Command {
        let script = format!(
            "import mmap, sys\nfile = open('{}', 'rb')\nmemory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n\
             file.close()\n{before}\nprint('mapped', flush=True)\n\
             for line in sys.stdin:\n    print(memory[int(line)], flush=True)\n",
            self.model()
        );
        let mut command = self.run(Path::new("python3"), &["-c", &script]);
        command.stdin(Stdio::piped());
        command
    }
}

fn byte_of(offset: u64) -> u8 {
    (((offset >> 12) * 131 + (offset & 4095) * 7 + SEED * 13) % 255 + 1) as u8
}

fn succeeds(mut command: Command) -> Output {
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    output
}

/// A program that is asked for bytes while things happen to its nodes.
struct Reader {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Reader {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut reader = Self { child, answers };
        assert_eq!(reader.line(), "mapped");
        reader
    }

    fn ask(&mut self, offset: u64) {
        use std::io::Write;
        writeln!(self.child.stdin.as_mut().unwrap(), "{offset}").unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn byte(&mut self, offset: u64) -> String {
        self.ask(offset);
        self.line()
    }

    /// Ends it; what it said on stderr.
    fn end(mut self) -> (Option<i32>, String) {
        drop(self.child.stdin.take());
        let output = self.child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

const CASES: [&str; 12] = [
    "plain",
    "writes",
    "hidden",
    "behind_the_end",
    "fixed",
    "unmaps",
    "remaps",
    "advice",
    "calls",
    "forks",
    "threads",
    "first_use_from_many",
];

#[test]
fn every_behaviour_holds_on_base_pages() {
    let Some(racks) = Racks::start("base", &["huge-pages"]) else { return };
    for case in CASES.into_iter().chain(["closes_everything"]) {
        let output = succeeds(racks.behaviour(case));
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{case}");
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/behaviours.py");
    let (model, seed) = (racks.model(), SEED.to_string());
    succeeds(racks.run(Path::new("python3"), &[script.to_str().unwrap(), &model, &seed]));
    for program in ["sha256sum", "cat", "wc"] {
        succeeds(racks.run(Path::new(program), &[&model]));
    }
}

#[test]
fn every_behaviour_holds_on_the_pages_that_the_node_chooses() {
    let Some(racks) = Racks::start("chosen", &[]) else { return };
    for case in CASES {
        let mut command = racks.behaviour(case);
        command.env("BEHAVIOURS_HUGE", "1");
        succeeds(command);
    }
}

#[test]
fn a_program_goes_on_when_its_node_is_killed_and_comes_back() {
    let Some(mut racks) = Racks::start("restart", &[]) else { return };
    let mut reader = Reader::start(racks.reader(""));
    assert_eq!(reader.byte(5), byte_of(5).to_string());
    for round in 0..2 {
        racks.near.kill();
        // Not there yet, so the program waits.
        let offset = (4 << 20) - round * (2 << 20) + 3;
        reader.ask(offset);
        std::thread::sleep(Duration::from_millis(200));
        racks.near.restart();
        assert_eq!(reader.line(), byte_of(offset).to_string(), "round {round}");
        for offset in (0..BYTES).step_by(99_991) {
            assert_eq!(reader.byte(offset), byte_of(offset).to_string(), "round {round}, {offset}");
        }
    }
    let (code, said) = reader.end();
    assert_eq!((code, said.as_str()), (Some(0), ""));
}

#[test]
fn a_program_gets_sigbus_and_the_reason_when_its_node_stays_away() {
    let Some(mut racks) = Racks::start("away", &["sequential-prefetch"]) else { return };
    let mut command = racks.reader("");
    command.env("HINTERLAND_GRACE_S", "1");
    let mut reader = Reader::start(command);
    assert_eq!(reader.byte(5), byte_of(5).to_string());
    racks.near.kill();
    assert_eq!(reader.byte(4 << 20), "", "no byte comes");
    let (code, said) = reader.end();
    assert_eq!(code, Some(128 + libc::SIGBUS), "{said}");
    assert!(said.contains("memory of model is lost") && said.contains("hint"), "{said}");
    racks.near.restart();
}

#[test]
fn a_program_gets_sigbus_and_the_reason_when_the_only_home_dies() {
    let Some(mut racks) = Racks::start("home", &["sequential-prefetch"]) else { return };
    let mut reader = Reader::start(racks.reader(""));
    assert_eq!(reader.byte(5), byte_of(5).to_string());
    racks.home.kill();
    assert_eq!(reader.byte(4 << 20), "", "no byte comes");
    let (code, said) = reader.end();
    assert_eq!(code, Some(128 + libc::SIGBUS), "{said}");
    assert!(said.contains("hint"), "{said}");
    racks.home.restart();
}
