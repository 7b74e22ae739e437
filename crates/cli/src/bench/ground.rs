//! What a bench stands on: a folder, reserved huge pages, nodes of its own; all of it is gone afterwards, also on ctrl-C.

use super::Setting;
use super::link::{self, End};
use super::worker::Worker;
use crate::failure::Failure;
use hinterland_node::{SHARED_MEMORY, take_back};
use hinterland_os::huge_pages;
use hinterland_os::poll::{SignalWatch, wait_readable};
use hinterland_pool::Pool;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::cell::OnceCell;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The program that measures what the machine does without a pool.
const MACHINE_SOURCE: &str = include_str!("../../../../bench/machine/machine.c");
/// Pages that can be reserved.
const RESERVED: &str = "/proc/sys/vm/nr_hugepages";
/// Where version 1 of control groups shares out processors.
const PROCESSOR_GROUPS: &str = "/sys/fs/cgroup/cpu";
/// The most that the kernel allows: 256 times the share of everybody else.
const PROCESSOR_SHARES: &str = "262144";
/// Microseconds of each second in which members may run before all others (`SCHED_FIFO`), as everybody may outside of the group: without
/// any, far memory follows nobody.
const FIRST_US: &str = "900000";
/// How often reserving is tried, with free memory moved together in between.
const RESERVE_TRIES: u32 = 4;
/// How long a node may take to stop before it is killed.
const STOP_PAUSES: u32 = 500;
const STOP_PAUSE: Duration = Duration::from_millis(20);
/// The key of pools whose nodes can be reached from another host: nobody else is on their links.
const KEY: &str = "6b657920666f722062656e6368657320616e64206e6f7468696e6720656c7365";
/// What a shell adds to SIGINT.
const INTERRUPTED: i32 = 130;

/// What must be put back.
struct Traces {
    folder: PathBuf,
    processes: Vec<u32>,
    pages_added: u64,
}

/// The ground of one bench.
pub struct Ground {
    traces: Arc<Mutex<Traces>>,
    folder: PathBuf,
    program: PathBuf,
    without: Vec<String>,
    machine: OnceCell<Result<PathBuf, Failure>>,
}

/// How a node of a bench is started.
#[derive(Clone, Copy, Default)]
pub struct NodePlan<'a> {
    /// Its name and its rack.
    pub name: &'a str,
    /// The address of the node with the directory.
    pub join: Option<&'a str>,
    /// Bytes that it lends.
    pub capacity_bytes: u64,
    /// Bytes for objects of other racks.
    pub cache_bytes: u64,
    /// Further words of its command line.
    pub more: &'a [&'a str],
    /// The end of a link that it runs at; else it listens on the loopback.
    pub end: Option<End<'a>>,
}

/// A running node.
pub struct BenchNode {
    child: Child,
    traces: Arc<Mutex<Traces>>,
    /// Its socket.
    pub socket: PathBuf,
    /// Where other nodes reach it.
    pub address: String,
}

/// What the folder of a bench is called, before the number of its process.
const FOLDER: &str = "hinterland-bench-";

impl Ground {
    /// A folder and `huge_bytes` of huge pages. Frees of a virtual machine may go back to its host, so that the first
    /// touch of a page is far slower than all others: pages that are reserved before and touched in a first round stay.
    ///
    /// # Errors
    /// [`Failure`] without a folder.
    pub fn new(setting: &Setting, huge_bytes: u64) -> Result<Self, Failure> {
        clear_dead();
        let folder = std::env::temp_dir().join(format!("{FOLDER}{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|error| Failure::file("making", &folder, &error))?;
        take_precedence();
        let traces = Traces { folder: folder.clone(), processes: Vec::new(), pages_added: 0 };
        let traces = Arc::new(Mutex::new(traces));
        let ground = Self {
            traces: Arc::clone(&traces),
            folder,
            program: setting.program.clone(),
            without: setting.without.clone(),
            machine: OnceCell::new(),
        };
        watch_signals(traces)?;
        let added = ground.reserve(huge_bytes.div_ceil(2 << 20));
        if added < huge_bytes.div_ceil(2 << 20) {
            (setting.say)(&format!(
                "{added} of {} huge pages could be reserved: figures are lower than they could be",
                huge_bytes.div_ceil(2 << 20)
            ));
        }
        Ok(ground)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn reserve(&self, pages: u64) -> u64 {
        let mut traces = lock(&self.traces);
        let before = reserved();
        for _ in 0..RESERVE_TRIES {
            // Without the right to, there are none more.
            let _ = std::fs::write(RESERVED, (before + pages).to_string());
            if reserved() >= before + pages {
                break;
            }
            // Free memory lies scattered: the kernel moves it together.
            let _ = std::fs::write("/proc/sys/vm/compact_memory", "1");
        }
        traces.pages_added = reserved().saturating_sub(before);
        traces.pages_added
    }

    /// Starts a node and waits until it is ready.
    ///
    /// # Errors
    /// [`Failure`] if it does not get ready.
    pub fn node(&self, plan: NodePlan<'_>) -> Result<BenchNode, Failure> {
        let state = self.folder.join(plan.name);
        let socket = self.folder.join(format!("{}.sock", plan.name));
        let mut command = self.own();
        command.arg("--json").arg("--quiet").arg("--socket").arg(&socket).arg("node");
        let host = plan.end.map_or("127.0.0.1", |end| end.address);
        command.args(["--name", plan.name, "--listen", &format!("{host}:0")]).arg("--state").arg(&state);
        command.arg("--capacity").arg(plan.capacity_bytes.to_string());
        command.arg("--cache-budget").arg(plan.cache_bytes.to_string());
        // What is read again and again to be measured must not come nearer meanwhile.
        command.args(["--heat-copies", "off"]);
        if let Some(address) = plan.join {
            command.args(["--join", address]);
        }
        command.args(self.without.iter().flat_map(|switch| ["--without", switch]));
        command.args(plan.more);
        if let Some(end) = plan.end {
            // Who can be reached from another host has a key.
            let key = self.folder.join("pool.key");
            std::fs::write(&key, KEY).map_err(|error| Failure::file("writing", &key, &error))?;
            command.arg("--key").arg(&key);
            command = end.command(&command);
        }
        self.start(&format!("node {}", plan.name), command, socket, |ready| &ready["address"])
    }

    /// Starts a GPU node with these devices, on a socket and, as its address, on a port of the loopback, and waits until it is ready.
    ///
    /// # Errors
    /// [`Failure`] if it does not get ready.
    pub fn gpu_node(&self, devices: &str) -> Result<BenchNode, Failure> {
        self.gpu_node_of("gpu", devices, None)
    }

    /// The same under a name of its own, reading objects through a node of the pool.
    ///
    /// # Errors
    /// As [`gpu_node`](Self::gpu_node).
    pub fn gpu_node_of(
        &self,
        name: &str,
        devices: &str,
        pool: Option<&BenchNode>,
    ) -> Result<BenchNode, Failure> {
        let socket = self.folder.join(format!("{name}.sock"));
        let mut command = self.own();
        command.args(["--json", "--quiet", "gpu", "serve", "--device", devices, "--listen"]);
        command.arg(format!("unix:{}", socket.display())).args(["--listen", "tcp:127.0.0.1:0", "--cache"]);
        command.arg(self.folder.join(format!("{name}-cache")));
        if let Some(node) = pool {
            command.arg("--pool").arg(&node.socket);
        }
        self.start("the GPU node", command, socket, |ready| &ready["listen"][1])
    }

    /// This program, which must not outlive a bench that is killed.
    fn own(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg("become")
            .arg("--parent")
            .arg(std::process::id().to_string())
            .arg("--")
            .arg(&self.program);
        command
    }

    /// Starts a node and waits for the line that says that it is ready, and in it the address.
    fn start(
        &self,
        what: &str,
        mut command: Command,
        socket: PathBuf,
        address: impl FnOnce(&Value) -> &Value,
    ) -> Result<BenchNode, Failure> {
        let failed = |why: String| Failure::new(format!("{what} did not start: {why}"), "run it by hand");
        command.stdout(Stdio::piped()).stdin(Stdio::null());
        let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
        lock(&self.traces).processes.push(child.id());
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            // What cannot be read is no ready line.
            let _ = BufReader::new(output).read_line(&mut line);
        }
        let ready: Value = serde_json::from_str(&line).unwrap_or_default();
        let address = address(&ready).as_str().unwrap_or_default().to_owned();
        let node = BenchNode { child, traces: Arc::clone(&self.traces), socket, address };
        if node.address.is_empty() { Err(failed(format!("it said {line:?}"))) } else { Ok(node) }
    }

    /// The program that measures the machine.
    ///
    /// # Errors
    /// [`Failure`] without a C compiler.
    pub fn machine(&self) -> Result<Worker, Failure> {
        Worker::start("the machine", Command::new(self.machine_path()?))
    }

    /// The same program at an end of a link.
    ///
    /// # Errors
    /// [`Failure`] without a C compiler.
    pub fn machine_at(&self, end: End<'_>) -> Result<Worker, Failure> {
        Worker::start("the machine", end.command(&Command::new(self.machine_path()?)))
    }

    /// The same program with the pool's objects as files below [`Ground::mount`]; `words` go to `hinterland run`.
    ///
    /// # Errors
    /// [`Failure`] without a C compiler.
    pub fn machine_on(&self, node: &BenchNode, words: &[&str]) -> Result<Worker, Failure> {
        let mut command = self.run_on(node, words);
        command.arg(self.machine_path()?);
        Worker::start("a program of the pool", command)
    }

    /// `hinterland run ... --`, to be followed by a program and its words.
    pub fn run_on(&self, node: &BenchNode, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--quiet").arg("--socket").arg(&node.socket).arg("run").arg("--at").arg(self.mount());
        command.args(words).arg("--");
        command
    }

    /// Where programs of the pool see its objects.
    pub fn mount(&self) -> PathBuf {
        self.folder.join("pool")
    }

    fn machine_path(&self) -> Result<PathBuf, Failure> {
        self.machine.get_or_init(|| self.compiled("machine", MACHINE_SOURCE)).clone()
    }

    /// A program of C, made of one source.
    ///
    /// # Errors
    /// [`Failure`] without a C compiler.
    pub fn compiled(&self, name: &str, source: &str) -> Result<PathBuf, Failure> {
        compile(&self.folder, name, source, &[])
    }

    /// Makes a shared library of C in the bench's folder.
    ///
    /// # Errors
    /// [`Failure`] without a C compiler.
    pub fn compiled_library(&self, name: &str, source: &str) -> Result<PathBuf, Failure> {
        compile(&self.folder, name, source, &["-shared", "-fPIC"])
    }
}

/// The group of processes that the scheduler prefers, where control groups of version 1 are.
fn preferred_group() -> PathBuf {
    Path::new(PROCESSOR_GROUPS).join(format!("hinterland-bench-{}", std::process::id()))
}

/// Lets the work of others wait. Niceness alone does not: the kernel weighs it within a session only. Where neither is
/// allowed, more rounds help.
fn take_precedence() {
    let process = std::process::id().to_string();
    let _ = Command::new("renice")
        .args(["-n", "-19", "-p", &process])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let group = preferred_group();
    if std::fs::create_dir(&group).is_ok() {
        let _ = std::fs::write(group.join("cpu.shares"), PROCESSOR_SHARES);
        let _ = std::fs::write(group.join("cpu.rt_runtime_us"), FIRST_US);
        let _ = std::fs::write(group.join("cgroup.procs"), process);
    }
}

/// Moves whoever is left back among all others: programs of the pool end a moment after those that ask them.
fn leave_precedence() {
    let group = preferred_group();
    let members = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    for process in members.lines() {
        // One that has ended needs no place.
        let _ = std::fs::write(Path::new(PROCESSOR_GROUPS).join("cgroup.procs"), process);
    }
    // Without a group there is nothing to remove.
    let _ = std::fs::remove_dir(group);
}

fn compile(folder: &Path, name: &str, text: &str, options: &[&str]) -> Result<PathBuf, Failure> {
    let (source, program) = (folder.join(format!("{name}.c")), folder.join(name));
    std::fs::write(&source, text).map_err(|error| Failure::file("writing", &source, &error))?;
    let mut command = Command::new("cc");
    command.args(["-O2", "-w", "-pthread"]).args(options).arg("-o").arg(&program).arg(&source).arg("-ldl");
    match command.output() {
        Ok(output) if output.status.success() => Ok(program),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(Failure::new(format!("cc refuses {name}.c: {text}"), "report this"))
        }
        Err(error) => {
            Err(Failure::new(format!("there is no C compiler: {error}"), "apt-get install gcc libc6-dev"))
        }
    }
}

impl BenchNode {
    /// A session with it.
    ///
    /// # Errors
    /// [`Failure`] if it does not answer.
    pub fn pool(&self) -> Result<Pool, Failure> {
        Ok(Pool::connect(Some(&self.socket))?)
    }

    /// Its process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Microseconds of system time that it has used.
    pub fn system_us(&self) -> f64 {
        // Ticks are hundredths of a second for programs.
        const TICK_US: f64 = 1e4;
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.process())).unwrap_or_default();
        let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest);
        let ticks = fields.split_whitespace().nth(12).and_then(|word| word.parse::<f64>().ok());
        ticks.unwrap_or(0.0) * TICK_US
    }
}

impl Drop for BenchNode {
    fn drop(&mut self) {
        lock(&self.traces).processes.retain(|process| *process != self.child.id());
        end(self.child.id());
        // It was told to end, twice if need be.
        let _ = self.child.wait();
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        lock(&self.traces).remove();
    }
}

/// Unmounts what is mounted below a bench's folder, ends its swap, and removes the folder.
fn clear(folder: &Path) {
    super::far::swap::clear(folder);
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for place in mounts.lines().filter_map(|line| line.split(' ').nth(1)).map(Path::new) {
        if place.starts_with(folder) {
            // What stays is shown by `mount`; there is nothing else to be done about it.
            let _ = huge_pages::unmount(place);
        }
    }
    // As above.
    let _ = std::fs::remove_dir_all(folder);
}

/// Whether a process is there and has not ended, be its status taken or not.
fn runs(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|letter| letter != 'Z')
}

/// Clears what benches have left that were killed: their nodes' memory would stay for ever.
fn clear_dead() {
    link::makers().into_iter().filter(|&process| !runs(process)).for_each(link::remove);
    let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(FOLDER)?.parse::<u32>().ok());
        if process.is_some_and(|process| !runs(process)) {
            clear(&entry.path());
        }
    }
}

impl Traces {
    fn remove(&mut self) {
        for process in self.processes.drain(..) {
            end(process);
        }
        link::remove(std::process::id());
        clear(&self.folder);
        // The nodes' states are gone, and so this takes their memory back.
        take_back(Path::new(SHARED_MEMORY));
        if self.pages_added > 0 {
            let left = reserved().saturating_sub(self.pages_added);
            // Without the right to, they stay reserved.
            let _ = std::fs::write(RESERVED, left.to_string());
            self.pages_added = 0;
        }
        leave_precedence();
    }
}

/// Ends a node: it is asked, and killed if it does not listen.
fn end(process: u32) {
    let Ok(number) = i32::try_from(process) else { return };
    let pid = Pid::from_raw(number);
    if kill(pid, Signal::SIGTERM).is_err() {
        return;
    }
    for _ in 0..STOP_PAUSES {
        if !runs(process) {
            return;
        }
        std::thread::sleep(STOP_PAUSE);
    }
    // It ended just now, or ends by this.
    let _ = kill(pid, Signal::SIGKILL);
}

fn watch_signals(traces: Arc<Mutex<Traces>>) -> Result<(), Failure> {
    // Threads that are made later inherit that signals do not end them.
    let signals = SignalWatch::new()?;
    let watching = move || {
        while !matches!(wait_readable(&signals, None), Ok(true)) {}
        lock(&traces).remove();
        std::process::exit(INTERRUPTED);
    };
    let started = std::thread::Builder::new().name("signals".to_owned()).spawn(watching);
    started.map(drop).map_err(|error| Failure::new(format!("no thread: {error}"), "check `ulimit -u`"))
}

fn reserved() -> u64 {
    std::fs::read_to_string(RESERVED).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

fn lock(traces: &Mutex<Traces>) -> std::sync::MutexGuard<'_, Traces> {
    traces.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_bench_left_is_cleared_and_a_running_one_is_left_alone() {
        // No process has the highest number that 32 bits hold.
        let [dead, running] = [u32::MAX, std::process::id()]
            .map(|process| std::env::temp_dir().join(format!("{FOLDER}{process}")));
        for folder in [&dead, &running] {
            std::fs::create_dir_all(folder.join("node")).unwrap();
        }
        clear_dead();
        assert!(!dead.exists() && running.exists());
        std::fs::remove_dir_all(running).unwrap();
    }
}
