//! `hinterland up`: starts a pool on this machine.

use super::node::{Memory, address, options, serve};
use crate::context::Context;
use crate::failure::Failure;
use hinterland_types::NodeName;
use std::net::SocketAddr;
use std::process::ExitCode;

/// How the pool is started.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
One node that is a pool of its own, at the default socket, so that no other command needs an \
option. It stays in the foreground until ctrl-C or SIGTERM.

Other nodes of this machine can join it at the address that it prints. For nodes of other machines, \
give an address that they reach, and a key:
  hinterland up --listen 10.0.0.7:7401 --key pool.key")]
pub struct Arguments {
    /// The node's name, and its rack
    #[arg(long, default_value = "local", value_name = "NAME")]
    name: NodeName,
    /// Where other nodes reach it; anything but the loopback needs --key or --tls
    #[arg(long, default_value = "127.0.0.1:0", value_name = "HOST:PORT", value_parser = address)]
    listen: SocketAddr,
    /// What is the same for `node`
    #[command(flatten)]
    memory: Memory,
}

/// Starts the pool and stays until it is interrupted.
///
/// # Errors
/// [`Failure`] when it cannot start.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let rack = arguments.name.clone().into();
    let options = options(&arguments.name, rack, arguments.listen, &arguments.memory, context)?;
    let option = if options.socket == hinterland_pool::default_socket() {
        String::new()
    } else {
        format!("--socket {} ", options.socket.display())
    };
    let advice = [
        format!("put a file in:    hinterland {option}put FILE"),
        format!("run a program:    hinterland {option}run -- PROGRAM /pool/FILE"),
        "stop with ctrl-C".to_owned(),
    ];
    serve(options, context, &advice)
}
