//! A link of a known rate between two hosts: two network namespaces of this machine, joined by a pair of devices.
//!
//! On the loopback both ends of a connection share the processors, and bare TCP keeps them all busy: whatever is done with the
//! bytes makes it slower. A network is slower than that and leaves processors idle, and so is a link.

use crate::failure::Failure;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What a namespace of a bench is called, before the number of its process and the end of the link.
const PREFIX: &str = "hl-bench-";
/// Where the system keeps namespaces by name.
const FOLDER: &str = "/run/netns";
/// The network device of each end.
const DEVICE: &str = "wire0";
/// Addresses of the two ends, within the namespaces only.
const ADDRESSES: [&str; 2] = ["10.213.77.1", "10.213.77.2"];
/// Bytes that may leave at once: some of the largest packets that TCP hands over.
const BURST: &str = "1mb";
/// How long a packet may wait for its turn: longer ones are dropped, as a switch does.
const QUEUE: &str = "20ms";

/// One end of a link: a host of its own as far as its network goes.
#[derive(Clone, Copy)]
pub struct End<'link> {
    space: &'link Path,
    /// Its address on the link.
    pub address: &'static str,
}

/// The two ends.
pub struct Link {
    spaces: [PathBuf; 2],
}

impl Link {
    /// Makes one of so many gigabits a second in each direction.
    ///
    /// # Errors
    /// [`Failure`] if the system does not allow it.
    pub fn new(gigabits: u32) -> Result<Self, Failure> {
        let names = ["a", "b"].map(|end| format!("{PREFIX}{}-{end}", std::process::id()));
        let link = Self { spaces: names.clone().map(|name| Path::new(FOLDER).join(name)) };
        for name in &names {
            run(&["ip", "netns", "add", name])?;
        }
        let [first, second] = &names;
        let pair = ["type", "veth", "peer", "name", DEVICE, "netns", second];
        run(&[&["ip", "-n", first, "link", "add", DEVICE][..], &pair].concat())?;
        for (name, address) in names.iter().zip(ADDRESSES) {
            let (address, rate) = (format!("{address}/30"), format!("{gigabits}gbit"));
            run(&["ip", "-n", name, "addr", "add", &address, "dev", DEVICE])?;
            run(&["ip", "-n", name, "link", "set", "lo", "up"])?;
            run(&["ip", "-n", name, "link", "set", DEVICE, "up"])?;
            let shape = ["root", "tbf", "rate", &rate, "burst", BURST, "latency", QUEUE];
            run(&[&["tc", "-n", name, "qdisc", "replace", "dev", DEVICE][..], &shape].concat())?;
        }
        Ok(link)
    }

    /// An end, 0 or 1.
    pub fn end(&self, which: usize) -> End<'_> {
        End { space: &self.spaces[which], address: ADDRESSES[which] }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        remove(std::process::id());
    }
}

impl End<'_> {
    /// Lets a program run at this end.
    pub fn command(&self, command: &Command) -> Command {
        let mut inside = Command::new("nsenter");
        inside.arg(format!("--net={}", self.space.display())).arg("--");
        inside.arg(command.get_program()).args(command.get_args());
        inside
    }

    /// Words that tell the program of the machine to serve at this end.
    pub fn words(&self) -> String {
        format!("{} {}", self.space.display(), self.address)
    }
}

/// Removes the link that a process has made; its processes keep what they have open until they end.
pub fn remove(process: u32) {
    for end in ["a", "b"] {
        let name = format!("{PREFIX}{process}-{end}");
        if Path::new(FOLDER).join(&name).exists() {
            // What stays is shown by `ip netns`; there is nothing else to be done about it.
            let _ = run(&["ip", "netns", "del", &name]);
        }
    }
}

/// Processes that have made links, dead or not.
pub fn makers() -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir(FOLDER) else { return Vec::new() };
    let maker = |name: &str| name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok();
    entries.flatten().filter_map(|entry| maker(entry.file_name().to_str()?)).collect()
}

fn run(words: &[&str]) -> Result<(), Failure> {
    let hint = "run as root, with `apt-get install iproute2 util-linux`";
    let failed = |why: String| Failure::new(format!("`{}` failed: {why}", words.join(" ")), hint);
    let output = Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
        Err(error) => Err(failed(error.to_string())),
    }
}
