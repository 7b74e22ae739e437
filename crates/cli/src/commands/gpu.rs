//! `hinterland gpu`: programs whose GPU is on another machine.

mod coverage;
mod imports;
mod libraries;
mod list;
mod serve;
mod session;
mod top;

pub use coverage::warn_of_runtime_inside;

use crate::context::Context;
use crate::failure::Failure;
use std::process::ExitCode;

/// What to do.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// What can be done.
#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Say which functions of CUDA a program calls, and which of them are missing
    Coverage(coverage::Arguments),
    /// Write the libraries under CUDA's names into a folder
    Libraries(libraries::Arguments),
    /// Serve the GPUs of this machine, or a device in software
    Serve(serve::Arguments),
    /// Show the devices and sessions of a GPU node
    Ls(list::Arguments),
    /// Watch the devices and sessions of a GPU node
    Top(top::Arguments),
    /// Serve one client; `serve` uses it
    #[command(hide = true)]
    Session(session::Arguments),
}

/// Does it.
///
/// # Errors
/// [`Failure`].
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    match &arguments.command {
        Command::Coverage(arguments) => coverage::run(arguments, context),
        Command::Libraries(arguments) => libraries::run(arguments, context),
        Command::Serve(arguments) => serve::run(arguments, context),
        Command::Ls(arguments) => list::run(arguments, context),
        Command::Top(arguments) => top::run(arguments, context),
        Command::Session(arguments) => session::run(arguments),
    }
}
