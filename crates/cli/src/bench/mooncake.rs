//! Mooncake's store as a peer: a process that answers lines, made once by `bench/kv/prepare.sh`.

use super::ground::Ground;
use super::prepared;
use super::worker::Worker;
use crate::failure::Failure;
use std::process::Command;

const DRIVER: &str = include_str!("../../../../bench/kv/peer.py");
const HINT: &str = "bench/kv/prepare.sh makes it, once";

/// Starts a store with memory of this host.
///
/// # Errors
/// [`Failure`] if it was not prepared or cannot be started.
pub fn start(ground: &Ground) -> Result<Worker, Failure> {
    let missing = |failure: Failure| Failure { hint: HINT.to_owned(), ..failure };
    let python = prepared::folder().map_err(missing)?.join("mooncake/bin/python");
    // Not made canonical: that would lead past the packages of the folder.
    prepared::file(&python).map_err(missing)?;
    let driver = ground.folder().join("peer.py");
    std::fs::write(&driver, DRIVER).map_err(|error| Failure::file("writing", &driver, &error))?;
    let mut command = Command::new(python);
    command.arg(driver).stderr(std::process::Stdio::null());
    Worker::start("Mooncake", command)
}
