//! `hinterland gpu`: programs whose GPU is on another machine.

mod coverage;
mod imports;
mod libraries;

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
}

/// Does it.
///
/// # Errors
/// [`Failure`].
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    match &arguments.command {
        Command::Coverage(arguments) => coverage::run(arguments, context),
        Command::Libraries(arguments) => libraries::run(arguments, context),
    }
}
