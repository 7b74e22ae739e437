//! `hinterland trace`: runs a program and records which of its memory it touches when.

use crate::context::Context;
use crate::failure::Failure;
use crate::output::Output;
use crate::run::far::{self, Supervised};
use crate::run::{preload, program};
use crate::size::Size;
use hinterland_far::store::{Packed, Stores};
use hinterland_far::{Budget, Options, Service, TraceWriter, Watch, Written};
use hinterland_farplan::trace::Header;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Least window: the program's libraries, the margin of the engine, and the least that it holds.
const WINDOW_BYTES_MIN: u64 = 32 << 20;

/// Which program, and how closely it is looked at.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example: hinterland trace -o sum.trace -- python3 sum.py
         hinterland advise sum.trace

All but --window of the program's memory is kept out of its sight, in compressed memory of this host; what it touches there is a \
page fault, and is recorded with its time. So the trace tells all that a --local above the window can miss, and nothing of what \
the program does within the window. Touches of files are not seen, only how many of their pages are there. The program needs what \
`hinterland run --local` needs, and takes longer: a fault costs some 20 us.

`hinterland advise` reads the file; its bytes are described in docs/internals/far-trace.md. The status is the program's.")]
pub struct Arguments {
    /// The file that is written
    #[arg(long, short, default_value = "hinterland.trace", value_name = "FILE")]
    output: PathBuf,
    /// What stays in sight: a size, or hundredths of what the program uses; at least 32M
    #[arg(long, default_value = "20%", value_name = "SIZE", value_parser = window)]
    window: Budget,
    /// Bytes that are told apart, a power of two from 4K to 2M: the trace is quicker and coarser with larger ones
    #[arg(long, default_value = "4K", value_name = "SIZE", value_parser = far::unit)]
    unit: Size,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Traces, and ends with the program's status.
///
/// # Errors
/// [`Failure`] when the program cannot have far memory, and when the file cannot be written.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    if let Some(name) = arguments.program.first() {
        far::check(name)?;
        // A trace of before is replaced only by one of a program that can be started.
        program::check_startable(name)?;
    }
    let (recorder, written) = begin(&arguments.output, arguments.window, arguments.unit.bytes)?;
    // Before there are other threads: they take the mask over.
    let signals = program::Signals::hold()?;
    let supervised = Supervised::start(Options {
        budget: arguments.window,
        unit_bytes: arguments.unit.bytes,
        stores: Arc::new(Stores::new(vec![Box::new(Packed::new(u64::MAX / 2))], 1)),
        ahead: false,
        service: Service::default(),
        watch: Watch::Record(recorder),
    })?;
    let variables = [(far::SOCKET_VARIABLE, supervised.socket())];
    let mut child = program::start(&arguments.program, &[preload::find()?], &variables, context.output)?;
    let code = program::watch(&signals, &mut child)?;
    drop(supervised.finish(&context.output, child.try_wait().ok().flatten()));
    tell(&written, &arguments.output, &context.output)?;
    Ok(code)
}

/// Begins a trace of a program that has so much of its memory in sight.
///
/// # Errors
/// [`Failure`] for a file that cannot be written.
pub fn begin(path: &Path, window: Budget, unit_bytes: u64) -> Result<(TraceWriter, Written), Failure> {
    let file = File::create(path).map_err(|error| Failure::file("making", path, &error))?;
    let (window_bytes, window_percent) = match window {
        Budget::Bytes(bytes) => (bytes, 0),
        Budget::Percent(percent) => (0, u64::from(percent)),
    };
    let header = Header { unit_bytes, window_bytes, window_percent };
    TraceWriter::new(file, header).map_err(|error| Failure::file("writing", path, &error))
}

/// Waits until a trace is written, and says what can be done with it.
///
/// # Errors
/// [`Failure`] for one that could not be written.
pub fn tell(written: &Written, path: &Path, output: &Output) -> Result<(), Failure> {
    let result = written.recv().map_err(|_| Failure::new("the trace was not finished", "report this"))?;
    let records = result.map_err(|error| Failure::file("writing", path, &error))?;
    output.say(format_args!(
        "hinterland: {records} records in {}; `hinterland advise {}` says what suits",
        path.display(),
        path.display()
    ));
    Ok(())
}

fn window(text: &str) -> Result<Budget, String> {
    if text.ends_with('%') {
        return far::budget(text);
    }
    let size: Size = text.parse().map_err(|error: crate::size::SizeError| error.to_string())?;
    if size.bytes < WINDOW_BYTES_MIN {
        return Err(format!("{size} is too little to run in (hint: at least 32M)"));
    }
    Ok(Budget::Bytes(size.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Exit;

    #[test]
    fn a_trace_of_before_stays_when_the_program_cannot_be_started() {
        let context = Context::new(Output { json: false, quiet: true }, None);
        let output = std::env::temp_dir().join(format!("hl-trace-{}", std::process::id()));
        std::fs::write(&output, "of before").unwrap();
        for (program, exit) in
            [("/", Exit::CannotStart), ("/etc/passwd", Exit::CannotStart), ("./nope", Exit::NotFound)]
        {
            let arguments = Arguments {
                output: output.clone(),
                window: Budget::Percent(20),
                unit: Size { bytes: 4096 },
                program: vec![program.into()],
            };
            assert_eq!(run(&arguments, &context).unwrap_err().exit, exit, "{program}");
            assert_eq!(std::fs::read_to_string(&output).unwrap(), "of before");
        }
        std::fs::remove_file(output).unwrap();
    }

    #[test]
    fn a_window_may_be_less_than_any_budget() {
        assert!(matches!(window("32M"), Ok(Budget::Bytes(bytes)) if bytes == 32 << 20));
        assert!(matches!(window("5%"), Ok(Budget::Percent(5))));
        for bad in ["31M", "0%", "much"] {
            assert!(window(bad).unwrap_err().contains("hint:"), "{bad}");
        }
    }
}
