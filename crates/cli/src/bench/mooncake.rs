//! Mooncake's store as a peer: processes that answer lines, made once by `bench/kv/prepare.sh`.

use super::ground::Ground;
use super::prepared;
use super::worker::Worker;
use crate::failure::Failure;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const DRIVER: &str = include_str!("../../../../bench/kv/peer.py");
const TRACE_DRIVER: &str = include_str!("../../../../bench/kv/trace_peer.py");
const HINT: &str = "bench/kv/prepare.sh makes it, once";

/// Starts a store with memory of this host.
///
/// # Errors
/// [`Failure`] if it was not prepared or cannot be started.
pub fn start(ground: &Ground) -> Result<Worker, Failure> {
    let (python, driver) = prepare(ground, "peer.py", DRIVER)?;
    let mut command = Command::new(python);
    command.arg(driver).stderr(Stdio::null());
    Worker::start("Mooncake", command)
}

/// A store that a trace is replayed on.
pub struct TracePeer {
    python: PathBuf,
    driver: PathBuf,
    server: RefCell<Worker>,
    port: u16,
}

impl TracePeer {
    /// Starts a store of so many bytes.
    ///
    /// # Errors
    /// As [`start`].
    pub fn start(ground: &Ground, capacity_bytes: u64) -> Result<Self, Failure> {
        prepare(ground, "peer.py", DRIVER)?;
        let (python, driver) = prepare(ground, "trace_peer.py", TRACE_DRIVER)?;
        let mut command = Command::new(&python);
        command.arg(&driver).arg("serve").arg(capacity_bytes.to_string()).stderr(Stdio::null());
        let mut server = Worker::start("Mooncake", command)?;
        let port = server.words("port")?;
        let port =
            port.parse().map_err(|_| Failure::new(format!("Mooncake says {port:?}"), "report this"))?;
        Ok(Self { python, driver, server: RefCell::new(server), port })
    }

    /// Removes every block.
    ///
    /// # Errors
    /// [`Failure`] if it does not answer.
    pub fn clear(&self) -> Result<(), Failure> {
        self.server.borrow_mut().words("clear").map(drop)
    }

    /// A client that takes the requests of a file of words, and puts `fill_blocks` blocks before it is ready.
    pub fn client(&self, requests: &Path, block_bytes: u64, fill_blocks: u64) -> Command {
        let mut command = Command::new(&self.python);
        command.arg(&self.driver).arg("client").arg(self.port.to_string()).arg(requests);
        command.args([block_bytes, fill_blocks].map(|number| number.to_string())).stderr(Stdio::null());
        command
    }
}

/// The interpreter that has Mooncake, and a program for it.
fn prepare(ground: &Ground, name: &str, source: &str) -> Result<(PathBuf, PathBuf), Failure> {
    let missing = |failure: Failure| Failure { hint: HINT.to_owned(), ..failure };
    let python = prepared::folder().map_err(missing)?.join("mooncake/bin/python");
    // Not made canonical: that would lead past the packages of the folder.
    prepared::file(&python).map_err(missing)?;
    let driver = ground.folder().join(name);
    std::fs::write(&driver, source).map_err(|error| Failure::file("writing", &driver, &error))?;
    Ok((python, driver))
}
