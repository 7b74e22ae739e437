//! `hinterland completions`: prints the completions of a shell.

use crate::arguments;
use crate::context::Context;
use crate::failure::Failure;
use clap::CommandFactory;
use clap_complete::Shell;
use std::process::ExitCode;

/// For which shell.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example: hinterland completions bash > ~/.local/share/bash-completion/completions/hinterland"
)]
pub struct Arguments {
    /// The shell
    shell: Shell,
}

/// Prints the completions on standard output.
///
/// # Errors
/// [`Failure`] when standard output is closed.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut arguments::Arguments::command(), "hinterland", &mut script);
    context.output.data(String::from_utf8_lossy(&script).trim_end())?;
    Ok(ExitCode::SUCCESS)
}
