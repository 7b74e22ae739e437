//! The command line: every command and what they share.

use crate::commands::{
    advise, batch, bench, completions, doctor, far, forget, generate, get, gpu, kv, locks, ls, metrics,
    mount, node, put, region, resp, rm, run, simulate, stat, status, swap, switch, top, trace, up, verify,
};
use crate::failure::Failure;
use crate::output::Output;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// What stands below every help text.
const EXIT_STATUS: &str = "\
Exit status:
  0  done
  1  it was tried and failed; standard error says why and what to do
  2  the command line makes no sense
  3  no node answers on the socket
  `run` ends with the status of its program: 128 and the signal if one ended it, 126 or 127 if it could not be started.

Variables:
  HINTERLAND_SOCKET    the node's socket, as --socket
  HINTERLAND_KEY_FILE  file with the pool's key, where its nodes have one
  HINTERLAND_TLS       folder with certificates, where its nodes have them
  HINTERLAND_LOG       how much is reported on standard error: error, warn, info, debug, trace
  NO_COLOR             no colours";

/// Commands that are named of those that have an option which is asked of another.
const OWNERS_MAX: usize = 4;

/// Memory of other machines, lent to programs that do not know of it.
///
/// A pool is made of nodes. Each lends memory; objects are put into it under names, and programs read or map them from
/// any node.
#[derive(Parser, Debug)]
#[command(name = "hinterland", version, after_long_help = EXIT_STATUS, max_term_width = 110)]
pub struct Arguments {
    /// What all commands share.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What all commands share.
#[derive(Args, Debug, Clone)]
pub struct Global {
    /// The node's socket [default: hinterland/node.sock below $XDG_RUNTIME_DIR, else below /run]
    #[arg(long, global = true, value_name = "PATH", help_heading = "Everywhere")]
    pub socket: Option<PathBuf>,
    /// Print JSON on standard output, and errors as JSON on standard error
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub json: bool,
    /// Print no words but errors
    #[arg(long, short, global = true, help_heading = "Everywhere")]
    pub quiet: bool,
}

/// Every command.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Start a pool on this machine
    Up(up::Arguments),
    /// Start a node of a pool
    Node(node::Arguments),
    /// Put a file or a stream into the pool
    Put(put::Arguments),
    /// Copy an object out of the pool
    Get(get::Arguments),
    /// List objects
    Ls(ls::Arguments),
    /// Show an object: its size, digest and homes, and of a region where its pages lie
    Stat(stat::Arguments),
    /// Remove objects
    Rm(rm::Arguments),
    /// Take a node that is gone for good out of the pool
    Forget(forget::Arguments),
    /// Read every copy of objects and compare checksums
    Verify(verify::Arguments),
    /// Show the pool's objects as files
    Mount(mount::Arguments),
    /// Run a program that sees the pool's objects as files and maps them from memory
    Run(run::Arguments),
    /// Programs whose memory is partly elsewhere
    Far(far::Arguments),
    /// Change budget and back ends of a program with far memory while it runs
    Switch(switch::Arguments),
    /// Run a queue of programs with far memory within the memory of one host
    Batch(batch::Arguments),
    /// Record which memory a program touches when
    Trace(trace::Arguments),
    /// Say which settings of far memory suit a program, from its trace
    Advise(advise::Arguments),
    /// Show the node and the members of its pool
    Status(status::Arguments),
    /// Make regions, memory that is read and written in place, and move their pages
    Region(region::Arguments),
    /// Show who holds locks on regions, and who waits
    Locks(locks::Arguments),
    /// Show KV blocks that programs of this host share
    Kv(kv::Arguments),
    /// GPUs for programs of other machines: serving them, and what programs need
    Gpu(gpu::Arguments),
    /// Serve Redis clients with values in KV blocks
    Resp(resp::Arguments),
    /// Far memory as a block device that a kernel swaps on
    Swap(swap::Arguments),
    /// Watch members, caches and rates, and programs with far memory
    Top(top::Arguments),
    /// Print or serve counters for Prometheus
    Metrics(metrics::Arguments),
    /// Say what is missing or broken, and the command that mends it
    Doctor(doctor::Arguments),
    /// Measure, beside the limit of the machine and a peer
    Bench(bench::Arguments),
    /// Simulate big clusters
    Simulate(simulate::Arguments),
    /// Print the completions of a shell
    Completions(completions::Arguments),
    /// Write manual pages or the reference
    Generate(generate::Arguments),
    /// Become a program that ends with its parent; `run` uses it
    #[command(hide = true, name = "become")]
    Become(run::Become),
}

/// What the command line says.
///
/// # Errors
/// The status that the process ends with: it makes no sense, or asks for help, and that was said.
pub fn parse() -> Result<Arguments, ExitCode> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let mut command = with_negative_numbers(Arguments::command());
    let matches = command.try_get_matches_from_mut(&words);
    let matches = matches.map_err(|error| with_meaning(error, &words));
    matches.and_then(|matches| Arguments::from_arg_matches(&matches)).map_err(|error| answer(&error, &words))
}

/// Says what is wrong with the command line, or shows the help that was asked for; the status to end with.
fn answer(error: &clap::Error, words: &[OsString]) -> ExitCode {
    let output = Output { json: asks_for_json(words), quiet: false };
    let failure = if !error.use_stderr() {
        match output.data(error.render().ansi().to_string().trim_end_matches('\n')) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(failure) => failure,
        }
    } else if output.json && error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        Failure::usage("a command is missing", "the same with -h names them")
    } else if output.json {
        misuse(&error.render().to_string())
    } else {
        error.exit()
    };
    output.fail(&failure);
    failure.exit_code()
}

/// Whether a command line that makes no sense has `--json` among words of our own: those of a program that is to be started are its.
fn asks_for_json(words: &[OsString]) -> bool {
    let whole = whole();
    let mut command = &whole;
    let mut words = words.iter().skip(1).map(|word| word.to_string_lossy()).take_while(|word| word != "--");
    while let Some(word) = words.next() {
        let argument = match word.strip_prefix("--") {
            Some("json") => return true,
            Some(long) => command.get_arguments().find(|argument| argument.get_long() == Some(long)),
            None if word.starts_with('-') => {
                command.get_arguments().find(|argument| argument.get_short() == word.chars().nth(1))
            }
            None => match command.find_subcommand(word.as_ref()) {
                Some(inner) => {
                    command = inner;
                    continue;
                }
                None if command.get_positionals().any(clap::Arg::is_trailing_var_arg_set) => return false,
                None => continue,
            },
        };
        if argument.is_some_and(|argument| argument.get_action().takes_values()) {
            words.next();
        }
    }
    false
}

/// Every command with all that is derived of it: of one that was parsed, those parts alone are there that the words had reached.
fn whole() -> clap::Command {
    let mut command = Arguments::command();
    command.build();
    command
}

/// What clap says in paragraphs, as a sentence and the next step.
fn misuse(text: &str) -> Failure {
    let mut paragraphs = text.trim().split("\n\n").map(|paragraph| {
        let lines: Vec<&str> = paragraph.lines().map(str::trim).collect();
        lines.join(" ")
    });
    let what = paragraphs.next().unwrap_or_default();
    let what = what.strip_prefix("error: ").unwrap_or(&what);
    let mut hints: Vec<String> = paragraphs.collect();
    hints.retain(|hint| !hint.starts_with("For more information"));
    let (what, hint) = match what.strip_suffix(')').and_then(|what| what.rsplit_once(" (hint: ")) {
        Some((what, hint)) => (what, hint.to_owned()),
        None if hints.is_empty() => (what, "the same with -h says what is possible".to_owned()),
        None => (what, hints.join("; ").replace(" tip: ", "; ").replacen("tip: ", "", 1)),
    };
    Failure::usage(what, hint)
}

/// Says what an argument is that is missing, or that has no value, and how the name of an object is given to `put`.
fn with_meaning(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    let words = words.iter().take_while(|word| *word != "--");
    let whole = whole();
    let command = words.fold(&whole, |command, word| command.find_subcommand(word).unwrap_or(command));
    if let Some(name) = name_behind_file(&error, command) {
        let tip = StyledStr::from(format!("the object's name is an option: --name {name}"));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
        return error;
    }
    // Nobody looks for a bench among all their names, which hide the nearest one.
    let is_bench =
        matches!(error.get(ContextKind::InvalidArg), Some(ContextValue::String(name)) if name == "<NAME>");
    if command.get_name() == "bench" && is_bench && error.remove(ContextKind::ValidValue).is_some() {
        let tip = StyledStr::from("`hinterland bench list` tells which there are");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
        return error;
    }
    // That a word can be given behind `--` helps nobody who looks for an option.
    if let Some(option) = unknown_option(&error) {
        let owners: Vec<String> = owners(&whole, &option, "").into_iter().take(OWNERS_MAX).collect();
        error.remove(ContextKind::Suggested);
        if !owners.is_empty() {
            let tip = StyledStr::from(format!("{option} is an option of {}", owners.join(", ")));
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
        }
        return error;
    }
    let is_empty =
        |value: Option<&ContextValue>| matches!(value, Some(ContextValue::String(value)) if value.is_empty());
    let is_missing = error.kind() == ErrorKind::MissingRequiredArgument
        || error.kind() == ErrorKind::InvalidValue && is_empty(error.get(ContextKind::InvalidValue));
    let names = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(name)) if is_missing => vec![name.clone()],
        Some(ContextValue::Strings(names)) if is_missing => names.clone(),
        _ => return error,
    };
    let meanings = names.iter().filter_map(|name| {
        let argument = command.get_arguments().find(|argument| argument.to_string() == *name)?;
        Some(StyledStr::from(format!("{name}: {}", argument.get_help()?)))
    });
    let meanings: Vec<StyledStr> = meanings.collect();
    if !meanings.is_empty() {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(meanings));
    }
    error
}

/// What stands behind the file of a `put`, where other commands of this kind take a name.
fn name_behind_file(error: &clap::Error, command: &clap::Command) -> Option<String> {
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(word))
            if error.kind() == ErrorKind::UnknownArgument && command.get_name() == "put" =>
        {
            Some(word.clone()).filter(|word| !word.starts_with('-'))
        }
        _ => None,
    }
}

/// An option that the command does not have, and none of its own is much like.
fn unknown_option(error: &clap::Error) -> Option<String> {
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(word))
            if error.kind() == ErrorKind::UnknownArgument
                && error.get(ContextKind::SuggestedArg).is_none() =>
        {
            Some(word.clone()).filter(|word| word.starts_with("--"))
        }
        _ => None,
    }
}

/// The commands below one that have an option, with the words in front of them.
fn owners(command: &clap::Command, option: &str, words: &str) -> Vec<String> {
    let below = command.get_subcommands().filter(|below| !below.is_hide_set());
    let owners_of = |below: &clap::Command| {
        let name = format!("{words}{}", below.get_name());
        let has = |argument: &clap::Arg| !argument.is_hide_set() && argument.get_long() == option.get(2..);
        let own = below.get_arguments().any(has).then(|| name.clone());
        own.into_iter().chain(owners(below, option, &format!("{name} "))).collect::<Vec<_>>()
    };
    below.flat_map(owners_of).collect()
}

/// Takes `-3` behind an option for its value, and not for an option of its own: the option says what is wrong with it.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|argument| {
        let has_value = argument.get_action().takes_values() && !argument.is_positional();
        argument.allow_negative_numbers(has_value)
    });
    command.mut_subcommands(with_negative_numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_paragraphs_of_help_are_broken_by_the_terminal_alone() {
        fn check(command: &clap::Command) {
            for help in [command.get_after_help(), command.get_after_long_help()].into_iter().flatten() {
                let text = help.to_string();
                let lines: Vec<&str> = text.lines().collect();
                for pair in lines.windows(2) {
                    let is_text = |line: &str| !line.is_empty() && !line.starts_with(' ');
                    let is_broken = pair[0].len() > 60 && is_text(pair[0]) && is_text(pair[1]);
                    assert!(!is_broken, "{}: {pair:?}", command.get_name());
                }
            }
            command.get_subcommands().for_each(check);
        }
        check(&Arguments::command());
    }

    #[test]
    fn a_negative_number_is_refused_by_the_option_that_it_was_meant_for() {
        for (line, option) in [
            ("hinterland top --interval -1", "--interval"),
            ("hinterland node --capacity -3", "--capacity"),
            ("hinterland node --heat-copies-memory -3", "--heat-copies-memory"),
        ] {
            let command = with_negative_numbers(Arguments::command());
            let error = command.try_get_matches_from(line.split(' ')).unwrap_err().to_string();
            assert!(error.contains("invalid value '-") && error.contains(option), "{error}");
        }
    }

    #[test]
    fn what_is_missing_is_said_with_its_meaning() {
        for (line, meaning) in [
            ("hinterland run --local -- true", "--local <SIZE>: Most memory"),
            ("hinterland run --local", "--local <SIZE>: Most memory"),
            ("hinterland put", "<FILE>: "),
            ("hinterland put a models/x", "tip: the object's name is an option: --name models/x"),
            ("hinterland --quiet region create", "<NAME>: "),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let mut command = with_negative_numbers(Arguments::command());
            let error = command.try_get_matches_from_mut(&words).unwrap_err();
            let error = with_meaning(error, &words).to_string();
            assert!(error.contains(meaning), "{error}");
        }
    }

    #[test]
    fn a_command_line_that_makes_no_sense_is_told_as_json_where_that_is_asked_for() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        for (line, is_asked, text, hint) in [
            (
                "hinterland put a --copies 9 --json",
                true,
                "invalid value '9' for '--copies <N>': 9 is not in 1..=8",
                "the same with -h says what is possible",
            ),
            (
                "hinterland --json run --budget 2GB -- true",
                true,
                "is no size: its unit is not known",
                "write 2G, 512M",
            ),
            (
                "hinterland rm --json",
                true,
                "were not provided: <NAME>...",
                "<NAME>...: The objects' names; Usage: ",
            ),
            (
                "hinterland --json bench kv-gett",
                true,
                "invalid value 'kv-gett' for '<NAME>'",
                "a similar value exists: 'kv-get'; `hinterland bench list` tells which there are",
            ),
            ("hinterland --json nothing", true, "unrecognized subcommand 'nothing'", "Usage: "),
            ("hinterland ls --nothing --json", true, "unexpected argument '--nothing' found", "Usage: "),
            ("hinterland run --budget 2GB -- ls --json", false, "", ""),
            ("hinterland run --budget 2GB ls --json", false, "", ""),
            ("hinterland run --budget 2GB --json ls", true, "", ""),
            ("hinterland --socket --json ls --nothing", false, "", ""),
            ("hinterland put a --copies 9", false, "", ""),
        ] {
            let words = words(line);
            let mut command = with_negative_numbers(Arguments::command());
            let error = command.try_get_matches_from_mut(&words).unwrap_err();
            let failure = misuse(&with_meaning(error, &words).to_string());
            assert_eq!(asks_for_json(&words), is_asked, "{line}");
            assert!(failure.text.contains(text) && failure.hint.contains(hint), "{line}: {failure:?}");
            assert!(
                !failure.text.contains("error:")
                    && !failure.text.contains("hint:")
                    && !failure.hint.contains("tip:"),
                "{failure:?}"
            );
        }
    }

    #[test]
    fn words_of_the_program_are_not_taken_for_our_own() {
        let line = ["hinterland", "run", "--budget", "2G", "--", "ls", "--json", "-q"];
        let arguments = Arguments::try_parse_from(line).unwrap();
        let Command::Run(run) = arguments.command else { panic!("not run") };
        assert_eq!(run.program, ["ls", "--json", "-q"]);
        assert!(!arguments.global.json);
    }
}
