//! The `hinterland` command.
#![forbid(unsafe_code)]

mod arguments;
// Not every bench uses every part of what they share.
#[allow(dead_code)]
mod bench;
mod commands;
mod context;
mod failure;
mod input;
mod log;
mod output;
mod progress;
mod run;
mod screen;
mod service;
mod shapes;
mod size;
mod starting;
mod table;

use arguments::Command;
use commands as command;
use context::Context;
use failure::Failure;
use hinterland_os::process;
use output::Output;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = match arguments::parse() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let output = Output { json: arguments.global.json, quiet: arguments.global.quiet };
    let context = Context::new(output, arguments.global.socket);
    log::install();
    process::survive_file_size_limit();
    match perform(arguments.command, &context) {
        Ok(code) => code,
        Err(failure) => {
            output.fail(&failure);
            failure.exit_code()
        }
    }
}

fn perform(command: Command, context: &Context) -> Result<ExitCode, Failure> {
    match command {
        Command::Up(arguments) => command::up::run(&arguments, context),
        Command::Node(arguments) => command::node::run(&arguments, context),
        Command::Put(arguments) => command::put::run(&arguments, context),
        Command::Get(arguments) => command::get::run(&arguments, context),
        Command::Ls(arguments) => command::ls::run(&arguments, context),
        Command::Stat(arguments) => command::stat::run(&arguments, context),
        Command::Region(arguments) => command::region::run(&arguments, context),
        Command::Locks(arguments) => command::locks::run(&arguments, context),
        Command::Rm(arguments) => command::rm::run(&arguments, context),
        Command::Forget(arguments) => command::forget::run(&arguments, context),
        Command::Verify(arguments) => command::verify::run(&arguments, context),
        Command::Mount(arguments) => command::mount::run(&arguments, context),
        Command::Run(arguments) => command::run::run(&arguments, context),
        Command::Far(arguments) => command::far::run(&arguments, context),
        Command::Switch(arguments) => command::switch::run(&arguments, context),
        Command::Batch(arguments) => command::batch::run(&arguments, context),
        Command::Trace(arguments) => command::trace::run(&arguments, context),
        Command::Advise(arguments) => command::advise::run(&arguments, context),
        Command::Status(arguments) => command::status::run(&arguments, context),
        Command::Kv(arguments) => command::kv::run(&arguments, context),
        Command::Resp(arguments) => command::resp::run(&arguments, context),
        Command::Gpu(arguments) => command::gpu::run(&arguments, context),
        Command::Swap(arguments) => command::swap::run(&arguments, context),
        Command::Top(arguments) => command::top::run(&arguments, context),
        Command::Metrics(arguments) => command::metrics::run(&arguments, context),
        Command::Doctor(arguments) => command::doctor::run(&arguments, context),
        Command::Bench(arguments) => command::bench::run(&arguments, context),
        Command::Simulate(arguments) => command::simulate::run(&arguments, context),
        Command::Completions(arguments) => command::completions::run(&arguments, context),
        Command::Generate(arguments) => command::generate::run(&arguments, context),
        Command::Become(arguments) => command::run::become_program(&arguments, context),
    }
}
