//! `hinterland doctor`: says what is missing or broken, and the command that mends it.

use crate::context::Context;
use crate::failure::{Exit, Failure};
use crate::run::preload;
use crate::size::human;
use hinterland_fabric::rdma;
use hinterland_gpu::{Compiler, Gpu, GpuError};
use hinterland_os::NumaNodes;
use hinterland_os::container;
use hinterland_os::control_groups;
use hinterland_os::idle;
use hinterland_os::probe::{FaultService, Machine, Works};
use hinterland_proto::control::{Counters, MemberInfo, NodeStatus};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The node's problems that are shown at most, the latest ones.
const PROBLEMS_SHOWN: usize = 10;

/// Shorter than a fault takes to be served, idle processors have stopped before whoever waits for it is woken.
const LOOK_TIME_MIN: Duration = Duration::from_micros(50);

/// Nothing to choose.
#[derive(clap::Args, Debug)]
pub struct Arguments {}

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Good,
    Warning,
    Broken,
}

/// One thing that was looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Check {
    state: State,
    text: String,
    mend: Option<String>,
}

impl Check {
    fn good(text: impl Into<String>) -> Self {
        Self { state: State::Good, text: text.into(), mend: None }
    }

    fn warning(text: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { state: State::Warning, text: text.into(), mend: Some(mend.into()) }
    }

    fn broken(text: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { state: State::Broken, ..Self::warning(text, mend) }
    }

    fn json(&self) -> Value {
        let state = match self.state {
            State::Good => "good",
            State::Warning => "warning",
            State::Broken => "broken",
        };
        json!({ "state": state, "text": self.text, "mend": self.mend })
    }

    fn words(&self) -> String {
        let mark = match self.state {
            State::Good => "ok     ",
            State::Warning => "warning",
            State::Broken => "BROKEN ",
        };
        let mend = self.mend.as_ref().map(|mend| format!("\n           mend: {mend}")).unwrap_or_default();
        format!("  {mark}  {}{mend}", self.text)
    }
}

/// Looks at the machine, at the node and at its pool; the status is 1 if something is broken.
///
/// # Errors
/// [`Failure`] when standard output is closed.
pub fn run(_arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let machine = Machine::probe();
    let parts = [
        ("machine", machine_checks(&machine)),
        ("programs", program_checks(&machine)),
        ("rdma", rdma_checks(&machine)),
        ("pool", pool_checks(context)),
    ];
    let broken = parts.iter().flat_map(|(_, checks)| checks).any(|check| check.state == State::Broken);
    if context.output.json {
        let mut value = json!({ "broken": broken, "machine_summary": summary(&machine) });
        for (name, checks) in &parts {
            value[*name] = Value::Array(checks.iter().map(Check::json).collect());
        }
        context.output.json(&value)?;
    } else {
        context.output.data(summary(&machine))?;
        for (name, checks) in &parts {
            let lines: Vec<String> = checks.iter().map(Check::words).collect();
            context.output.data(format!("\n{name}\n{}", lines.join("\n")))?;
        }
    }
    Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn summary(machine: &Machine) -> String {
    format!(
        "Linux {}, {} x {}, {} of {} memory free",
        machine.kernel,
        machine.cpus,
        machine.cpu_model,
        human(machine.memory_available_bytes),
        human(machine.memory_total_bytes)
    )
}

fn machine_checks(machine: &Machine) -> Vec<Check> {
    let mut checks = Vec::new();
    if let FaultService::Full(_) = machine.fault_service {
        checks.push(Check::good("page faults can be served (userfaultfd)"));
    }
    match machine.huge_pages {
        // Who may not mount them is told so.
        Some(counts)
            if counts.obtainable() > 0 && (machine.may_mount_huge_pages || !machine.in_container) =>
        {
            let who = if nix::unistd::geteuid().is_root() { "" } else { " by a node that root starts" };
            checks.push(Check::good(format!("{} huge pages of 2 MiB can be had{who}", counts.obtainable())));
        }
        _ => {}
    }
    if let Some(limit) =
        control_groups::memory_limit().filter(|limit| limit.bytes < machine.memory_total_bytes)
    {
        checks.push(Check::good(format!(
            "programs here may use {} of memory, as {} says",
            human(limit.bytes),
            limit.file.display()
        )));
    }
    checks.extend(idle::look_time().map(idle_check));
    checks.extend(device_checks(machine));
    for problem in &machine.problems {
        let text = format!("{}: {}", problem.what, problem.effect);
        let check = if problem.is_broken { Check::broken } else { Check::warning };
        checks.push(check(text, problem.command.clone()));
    }
    checks
}

/// Whether idle processors of a virtual machine look for work for long enough before the host stops them.
fn idle_check(time: Duration) -> Check {
    let text = format!("idle processors look for work for {} us before they stop", time.as_micros());
    if time >= LOOK_TIME_MIN {
        return Check::good(text);
    }
    let mend = if container::is_inside() {
        "on the host: `echo 200000 > /sys/module/haltpoll/parameters/guest_halt_poll_ns`; or start the container with \
         `--device /dev/cpu_dma_latency`, for `hinterland run --local SIZE --awake`"
    } else {
        "echo 200000 > /sys/module/haltpoll/parameters/guest_halt_poll_ns, or `hinterland run --local SIZE --awake`"
    };
    Check::warning(format!("{text}: programs wait longer for far memory"), mend)
}

/// Memory of devices, which a node uses when it is told to.
fn device_checks(machine: &Machine) -> Vec<Check> {
    let apart = NumaNodes::without_processors().into_iter().map(|node| {
        Check::good(format!(
            "NUMA node {node} has memory and no processor, as CXL memory has: --numa {node} lends it"
        ))
    });
    let devices = machine.dax_devices.iter().map(|path| {
        let device = path.file_name().unwrap_or_default().to_string_lossy();
        let path = path.display();
        Check::good(format!(
            "{path}: memory of a device: --shelf PART/PARTS:{path} if the hosts of a rack share it; after `daxctl \
             reconfigure-device --mode=system-ram {device}` it is a NUMA node to lend with --numa"
        ))
    });
    apart.chain(devices).collect()
}

/// Locked memory below which a few queue pairs already run out: each has 1 MiB, and objects are registered beside them.
const LOCKED_BYTES_FEW: u64 = 64 << 20;

/// Devices, ports, addresses and limits; that there is none is no fault.
fn rdma_checks(machine: &Machine) -> Vec<Check> {
    let devices = rdma::devices();
    if devices.is_empty() {
        return vec![Check::good("there is no RDMA device: other racks are read over TCP")];
    }
    let mut checks = Vec::new();
    if let Err(why) = rdma::loadable() {
        checks.push(Check::warning(
            format!("the library of RDMA cannot be loaded, so devices are not used: {why}"),
            "sudo apt-get install ibverbs-providers",
        ));
    }
    for (device, port) in
        devices.iter().flat_map(|device| device.ports.iter().map(move |port| (device, port)))
    {
        let (number, state, addresses) = port;
        let what = format!("{} port {number}: {state}", device.name);
        checks.push(match (state.contains("ACTIVE"), addresses.is_empty()) {
            (true, false) => Check::good(format!("{what}; addresses: {}", addresses.join(", "))),
            (true, true) => Check::warning(
                format!("{what}, without an address: it is not used"),
                "ip address add ADDRESS/24 dev CARD",
            ),
            (false, _) => Check::warning(format!("{what}: it is not used"), "rdma link; ip link set CARD up"),
        });
    }
    let limit = machine.locked_memory_bytes.soft;
    checks.push(if machine.may_administrate || limit == u64::MAX {
        Check::good("memory can be locked for devices without a limit")
    } else if limit < LOCKED_BYTES_FEW {
        let text = format!("only {} can be locked for devices; what is beyond goes over TCP", human(limit));
        Check::warning(text, "ulimit -l unlimited, or LimitMEMLOCK=infinity in the service")
    } else {
        Check::good(format!("{} can be locked for devices", human(limit)))
    });
    checks
}

fn program_checks(machine: &Machine) -> Vec<Check> {
    let mut checks = Vec::new();
    if machine.fuse == Works::Yes {
        let program = hinterland_fuse::machine::mount_program();
        checks.push(match (machine.may_administrate, program) {
            (true, _) => Check::good("objects can be mounted as files"),
            (false, Some(program)) => {
                Check::good(format!("objects can be mounted as files, by {}", program.display()))
            }
            (false, None) => Check::warning(
                "only root can mount here: `hinterland mount` fails, `hinterland run` uses a user namespace",
                "apt install fuse3",
            ),
        });
        checks.push(Check::good(
            "mounts use /dev/fuse; FUSE over io_uring is not used, whatever the kernel offers",
        ));
        checks.push(match hinterland_fuse::machine::passthrough(machine) {
            Ok(()) => Check::good(
                "the kernel can read local objects by itself (those in 4 KiB or transparent pages, not in hugetlbfs)",
            ),
            Err(why) => Check::warning(
                format!("reads of local objects go through the mount process: {why}"),
                "run `hinterland mount` or `hinterland run` as root on a recent kernel",
            ),
        });
    }
    checks.push(match preload::find() {
        Ok(library) => Check::good(format!("programs are helped to map objects by {}", library.display())),
        Err(failure) => Check::warning(failure.text, failure.hint),
    });
    checks.push(gpu_check());
    checks
}

/// Whether KV blocks can go to a GPU without memory of the program between.
fn gpu_check() -> Check {
    let looked = Gpu::open(None, None).and_then(|gpu| Ok((Compiler::load(None)?.version(), gpu)));
    match looked {
        Ok((version, gpu)) => Check::good(format!(
            "KV blocks can go to {} directly (driver of CUDA {}, NVRTC {version})",
            gpu.name(),
            gpu.driver_version()
        )),
        Err(GpuError::NoDriver { .. }) => Check::good("no CUDA driver: KV blocks go to memory of the host"),
        Err(error) => {
            let failure = Failure::of(&error);
            Check::warning(format!("KV blocks go to no GPU directly: {}", failure.text), failure.hint)
        }
    }
}

fn pool_checks(context: &Context) -> Vec<Check> {
    let asked = context.pool_to_look().and_then(|pool| {
        let status = pool.status()?;
        Ok((status, pool.members()))
    });
    match asked {
        Ok((status, Ok(members))) => node_checks(&status, &members),
        Ok((status, Err(error))) => {
            let failure = Failure::of(&error);
            let mut checks = node_checks(&status, &[]);
            checks.push(Check::broken(failure.text, failure.hint));
            checks
        }
        // A socket that was named should have a node; on a fresh machine there is none yet.
        Err(failure) if failure.exit == Exit::Unreachable && context.socket.is_none() => {
            vec![Check::warning(failure.text, failure.hint)]
        }
        Err(failure) => vec![Check::broken(failure.text, failure.hint)],
    }
}

fn node_checks(status: &NodeStatus, members: &[MemberInfo]) -> Vec<Check> {
    let mut checks = vec![Check::good(format!(
        "node {} in rack {} answers: {} of {} used, {}",
        status.name,
        status.rack,
        human(status.used_bytes),
        human(status.capacity_bytes),
        status.backing
    ))];
    if let Some(shared) = &status.shared {
        let text = format!("directory led by {}", super::status::leader(shared));
        checks.push(match (&shared.leader, &shared.trouble) {
            (Some(_), None) => Check::good(text),
            _ => Check::warning(
                text,
                "see that this host reaches etcd and the other nodes; docs/guides/directory.md",
            ),
        });
    }
    let up = members.iter().filter(|member| member.up).count();
    if !members.is_empty() {
        checks.push(Check::good(format!("{up} of {} members are up", members.len())));
    }
    for member in members.iter().filter(|member| !member.up) {
        checks.push(Check::warning(
            format!("{} in rack {} at {} is down", member.called(), member.rack, member.address),
            "start it again on its state folder; objects with other copies stay readable",
        ));
    }
    checks.extend(super::region::moved_line(&status.counters).map(Check::good));
    checks.extend(counter_checks(&status.counters));
    let first = status.problems.len().saturating_sub(PROBLEMS_SHOWN);
    for problem in &status.problems[first..] {
        let failure = Failure::of(&problem.text);
        checks.push(Check::warning(format!("{} ago: {}", ago(problem.at_ms), failure.text), failure.hint));
    }
    checks
}

fn counter_checks(counters: &Counters) -> Vec<Check> {
    let mut checks = Vec::new();
    if counters.poisoned_faults > 0 {
        checks.push(Check::warning(
            format!("{} faults ended in SIGBUS because no replica answered", counters.poisoned_faults),
            "put objects with --copies 2",
        ));
    }
    if counters.checksum_failures > 0 {
        checks.push(Check::warning(
            format!("{} blocks arrived with a wrong checksum", counters.checksum_failures),
            "hinterland verify --all",
        ));
    }
    checks
}

fn ago(at_ms: u64) -> String {
    let then = UNIX_EPOCH + Duration::from_millis(at_ms);
    let since = SystemTime::now().duration_since(then).unwrap_or_default();
    super::status::duration(since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::samples::{members, node};

    #[test]
    fn a_member_that_is_down_and_a_problem_are_warnings_with_what_to_do() {
        let checks = node_checks(&node(), &members());
        let warnings: Vec<&Check> = checks.iter().filter(|check| check.state == State::Warning).collect();
        assert_eq!(warnings.len(), 2);
        assert!(warnings[0].text.contains("node-2 in rack b"), "{:?}", warnings[0]);
        assert_eq!(warnings[1].mend.as_deref(), Some("start its node"));
    }

    #[test]
    fn lost_faults_and_wrong_blocks_are_told() {
        let counters = Counters { poisoned_faults: 1, checksum_failures: 2, ..Counters::default() };
        assert_eq!(counter_checks(&counters).len(), 2);
        assert!(counter_checks(&Counters::default()).is_empty());
    }
}
