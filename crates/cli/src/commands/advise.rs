//! `hinterland advise`: what suits a program, from its page trace.

use crate::context::Context;
use crate::failure::Failure;
use crate::input;
use crate::run::back_end::{BackEnd, back_end};
use crate::run::costs;
use crate::run::far;
use crate::size::human;
use crate::table::{Align, Table};
use clap::ValueEnum;
use hinterland_far::Budget;
use hinterland_far::control::LOCAL_BYTES_MIN;
use hinterland_farplan::PAGE;
use hinterland_farplan::advise::{Advice, Choice, Goal, Wishes, advise, calmest, local_for};
use hinterland_farplan::features::{Features, SHARES, UNITS};
use hinterland_farplan::replay::{Gaps, Setting, Speed, Unit, footprint_pages, replay};
use hinterland_farplan::trace::Trace;
use hinterland_farplan::width::WIDTH;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

/// Settings that are shown to people.
const SHOWN: usize = 12;
/// Longest trace: 40 million touches.
const TRACE_BYTES_MAX: u64 = 1 << 30;

/// Which trace, and what is wished for.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example: hinterland trace -o sum.trace -- python3 sum.py
         hinterland advise sum.trace --local 200M
         hinterland advise sum.trace --local 200M --run -- python3 sum.py

Every unit, with and without fetching ahead and with several widths, over every set of the back ends of --far is played against a model of the engine; without \
--far-unit, compressed memory moves as much as each place uses together. Back ends are measured for a moment first, and with --measure the faults of this machine, too. EFFECT is how often faster than the slowest \
back ends, over what the memory costs here and there (a byte of a disk a twentieth of one here, a byte of lz4 as the trace compressed).

With --run the recommended setting and the default one are run, and the prediction is shown beside what it took.")]
pub struct Arguments {
    /// The page trace
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// Local memory, as for `hinterland run`: a size, or hundredths of what the program touches [default: 50%]
    #[arg(long, value_name = "SIZE", value_parser = far::budget)]
    local: Option<Budget>,
    /// Back ends that there are, as for `hinterland run`
    #[arg(long, value_name = "LIST", default_value = "lz4,ssd:/var/tmp@4G", value_delimiter = ',', value_parser = back_end)]
    far: Vec<BackEnd>,
    /// How often longer than without far memory the program may take, for the least local memory
    #[arg(long, value_name = "TIMES", default_value_t = 1.5, value_parser = slowdown)]
    slowdown: f64,
    /// What the recommended setting is the best by
    #[arg(long, value_enum, default_value_t = By::Effect)]
    by: By,
    /// Measure what faults cost on this machine, in about ten seconds
    #[arg(long)]
    measure: bool,
    /// Run the program, and compare
    #[arg(long, requires = "program")]
    run: bool,
    /// The program and its arguments, for --run
    #[arg(trailing_var_arg = true, value_name = "PROGRAM", requires = "run")]
    program: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum By {
    /// Speed over cost of memory
    Effect,
    /// Run time
    Time,
}

/// A slowdown as people write it; the same as a job of a batch may ask for.
fn slowdown(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(times) if times.is_finite() && times >= 1.0 => Ok(times),
        _ => Err(format!("{text} is no slowdown (hint: 1 or more; 1.5 lets it take half as long again)")),
    }
}

/// Advises.
///
/// # Errors
/// [`Failure`] for a file that is no whole trace, and for back ends that cannot be had.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let trace = read(&arguments.trace)?;
    let wishes = wishes(arguments, &trace, &context.socket())?;
    let Some(mut advice) = advise(&trace, &wishes) else {
        return Err(Failure::usage("no back end is named", "name one with --far"));
    };
    advice.local_bytes_least = advice.local_bytes_least.map(|bytes| bytes.max(LOCAL_BYTES_MIN));
    let runs = if arguments.run { compare(arguments, &trace, &wishes, &advice)? } else { Vec::new() };
    let value = encode(&advice, &wishes, &runs);
    context.output.either(&value, || text(&advice, &wishes, &runs))?;
    Ok(ExitCode::SUCCESS)
}

/// A trace from its file.
///
/// # Errors
/// [`Failure`] for a file that cannot be read or is no whole trace.
pub fn read(path: &Path) -> Result<Trace, Failure> {
    let bytes = input::read(path, TRACE_BYTES_MAX)?;
    Trace::parse(&bytes).map_err(|error| {
        let failure = Failure::of(&error);
        Failure { text: format!("{}: {}", path.display(), failure.text), ..failure }
    })
}

fn wishes(arguments: &Arguments, trace: &Trace, socket: &Path) -> Result<Wishes, Failure> {
    let compression = Features::of(trace).compression;
    let of = |back_end: &BackEnd| costs::speed(back_end, compression, socket);
    let speeds: Vec<Speed> = arguments.far.iter().map(of).collect::<Result<_, _>>()?;
    let costs = if arguments.measure {
        let packed = back_end("lz4").map_err(|text| Failure::new(text, "report this"))?;
        costs::measured(&of(&packed)?)?
    } else {
        costs::assumed()
    };
    let goal = match arguments.by {
        By::Effect => Goal::Effect,
        By::Time => Goal::Time,
    };
    let local_bytes = Some(local_bytes(arguments.local.unwrap_or(Budget::Percent(50)), trace));
    Ok(Wishes { local_bytes, slowdown_max: arguments.slowdown, speeds, costs, goal })
}

/// Local memory as asked for, and no less than `hinterland run` takes.
fn local_bytes(asked: Budget, trace: &Trace) -> u64 {
    match asked {
        Budget::Bytes(bytes) => bytes,
        Budget::Percent(percent) => {
            let touched = footprint_pages(trace) * PAGE;
            local_for(trace, touched / 100 * u64::from(percent)).max(LOCAL_BYTES_MIN)
        }
    }
}

/// A run and what was told of it.
struct Run {
    name: &'static str,
    command: String,
    told_s: f64,
    took_s: f64,
}

impl Run {
    fn error_percent(&self) -> f64 {
        (self.told_s - self.took_s) / self.took_s.max(1e-9) * 100.0
    }
}

fn compare(
    arguments: &Arguments,
    trace: &Trace,
    wishes: &Wishes,
    advice: &Advice,
) -> Result<Vec<Run>, Failure> {
    let default = Setting {
        local_bytes: advice.local_bytes,
        unit: far::default_unit(&arguments.far[..1]),
        ahead: true,
        width: WIDTH,
        back_ends: vec![0],
    };
    let told = replay(trace, &Gaps::of(trace), &default, &wishes.speeds, &wishes.costs);
    let default = Choice { setting: default, told };
    let plain = (Instant::now(), status(Command::new(&arguments.program[0]).args(&arguments.program[1..])));
    plain.1?;
    let mut runs = vec![Run {
        name: "without far memory",
        command: String::new(),
        told_s: advice.best.told.plain_s,
        took_s: plain.0.elapsed().as_secs_f64(),
    }];
    let program = std::env::current_exe()
        .map_err(|error| Failure::new(format!("this program cannot find itself: {error}"), "mount /proc"))?;
    for (name, choice) in [("recommended", &advice.best), ("default", &default)] {
        let words = words(&choice.setting, &wishes.speeds);
        let mut command = Command::new(&program);
        command.arg("--quiet").args(&words).arg("--").args(&arguments.program);
        let begun = Instant::now();
        status(&mut command)?;
        let took_s = begun.elapsed().as_secs_f64();
        runs.push(Run { name, command: words.join(" "), told_s: choice.told.time_s, took_s });
    }
    Ok(runs)
}

fn status(command: &mut Command) -> Result<(), Failure> {
    // What the program writes is no data of ours.
    let status = command.stdout(std::process::Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::new(
            format!("the program ended with {status}"),
            "run it by itself and see what it says",
        )),
        Err(error) => {
            Err(Failure::new(format!("the program cannot be started: {error}"), "check its name and PATH"))
        }
    }
}

/// The words of `hinterland` for a setting.
pub fn words(setting: &Setting, speeds: &[Speed]) -> Vec<String> {
    let names: Vec<&str> =
        setting.back_ends.iter().filter_map(|index| Some(speeds.get(*index)?.name.as_str())).collect();
    let mut words = vec!["run".to_owned(), "--local".to_owned(), short(setting.local_bytes)];
    words.extend(["--far".to_owned(), names.join(",")]);
    if let Unit::Bytes(bytes) = setting.unit {
        words.extend(["--far-unit".to_owned(), short(bytes)]);
    }
    words.extend(["--far-width".to_owned(), setting.width.to_string()]);
    words.extend((!setting.ahead).then(|| "--no-ahead".to_owned()));
    words
}

/// A size as it is given on the command line, rounded up to whole MiB where it is large.
fn short(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 20) || bytes > 4 << 20 {
        format!("{}M", bytes.div_ceil(1 << 20))
    } else {
        format!("{}K", bytes.div_ceil(1 << 10))
    }
}

fn encode(advice: &Advice, wishes: &Wishes, runs: &[Run]) -> Value {
    let Features { unit_use, miss_ratios, .. } = &advice.features;
    let features = &advice.features;
    let choice = |choice: &Choice| {
        json!({
            "command": words(&choice.setting, &wishes.speeds), "unit_bytes": choice.setting.unit.bytes(),
            "is_fitted": choice.setting.unit == Unit::Fitted, "width": choice.setting.width, "ahead": choice.setting.ahead, "time_s": choice.told.time_s, "faults": choice.told.faults,
            "in_bytes": choice.told.in_bytes, "out_bytes": choice.told.out_bytes,
            "ahead_bytes": choice.told.ahead_bytes,
        })
    };
    let names = |back_ends: &[usize]| -> Vec<&str> {
        back_ends.iter().filter_map(|index| Some(wishes.speeds.get(*index)?.name.as_str())).collect()
    };
    json!({
        "features": {
            "grain_bytes": features.grain_bytes, "footprint_bytes": features.footprint_bytes,
            "touches": features.touches, "fragment_ratio": features.fragment_ratio,
            "unit_use": UNITS.iter().zip(unit_use).map(|(unit, share)| json!({ "unit_bytes": unit, "used": share })).collect::<Vec<_>>(),
            "sequential_ratio": features.sequential_ratio, "run_bytes_max": features.run_bytes_max,
            "run_bytes_median": features.run_bytes_median, "hot_ratio": features.hot_ratio,
            "store_ratio": features.store_ratio, "anonymous_ratio": features.anonymous_ratio,
            "compression": features.compression, "reuse_bytes_median": features.reuse_bytes_median,
            "misses": SHARES.iter().zip(miss_ratios).map(|(share, ratio)| json!({ "local_percent": share, "ratio": ratio })).collect::<Vec<_>>(),
        },
        "local_bytes": advice.local_bytes, "local_bytes_least": advice.local_bytes_least,
        "plain_s": advice.best.told.plain_s, "recommended": choice(&advice.best),
        "choices": advice.choices.iter().map(choice).collect::<Vec<_>>(),
        "back_ends": advice.effects.iter().map(|effect| json!({
            "names": names(&effect.back_ends), "time_s": effect.time_s, "cost": effect.cost, "effect": effect.mei,
        })).collect::<Vec<_>>(),
        "why": advice.why,
        "runs": runs.iter().map(|run| json!({
            "name": run.name, "command": run.command, "told_s": run.told_s, "took_s": run.took_s,
            "error_percent": run.error_percent(),
        })).collect::<Vec<_>>(),
    })
}

fn text(advice: &Advice, wishes: &Wishes, runs: &[Run]) -> String {
    let mut lines = vec![features(&advice.features), String::new(), settings(advice, wishes), String::new()];
    lines.push(effects(advice, wishes));
    lines.push(String::new());
    lines.push(format!("hinterland {} -- PROGRAM", words(&advice.best.setting, &wishes.speeds).join(" ")));
    lines.extend(advice.why.iter().map(|why| format!("  {why}")));
    lines.push(match advice.local_bytes_least {
        Some(bytes) => {
            format!("  --local {} is the least that keeps within {} times", short(bytes), wishes.slowdown_max)
        }
        None => format!("  no --local below all of it keeps within {} times", wishes.slowdown_max),
    });
    if !runs.is_empty() {
        lines.push(String::new());
        lines.push(comparison(runs));
    }
    lines.join("\n")
}

fn features(features: &Features) -> String {
    let percent = |ratio: f64| format!("{:.0} %", ratio * 100.0);
    let shares = |values: &[f64]| values.iter().map(|value| percent(*value)).collect::<Vec<_>>().join(", ");
    [
        format!("memory touched         {} in {} touches", human(features.footprint_bytes), features.touches),
        format!("in fragments           {}", percent(features.fragment_ratio)),
        format!("used of 4K to 2M units {}", shares(&features.unit_use)),
        format!(
            "in order               {}, runs of {} (the longest {})",
            percent(features.sequential_ratio),
            human(features.run_bytes_median),
            human(features.run_bytes_max)
        ),
        format!("hot memory             {}", percent(features.hot_ratio)),
        format!("stores                 {}", percent(features.store_ratio)),
        format!("anonymous              {}", percent(features.anonymous_ratio)),
        format!("misses at 10 to 100 %  {}", shares(&features.miss_ratios)),
        format!("content compresses     {:.1} times", features.compression),
    ]
    .join("\n")
}

fn settings(advice: &Advice, wishes: &Wishes) -> String {
    let mut table = Table::new(&[
        ("SECONDS", Align::Right),
        ("FAULTS", Align::Right),
        ("IN", Align::Right),
        ("OUT", Align::Right),
        ("SETTING", Align::Left),
    ]);
    // Of those that differ in nothing but the width, one.
    let mut shown: Vec<Setting> = Vec::new();
    for quickest in &advice.choices {
        let choice = calmest(quickest, &advice.choices);
        let same = Setting { width: WIDTH, ..choice.setting.clone() };
        if shown.len() == SHOWN || shown.contains(&same) {
            continue;
        }
        shown.push(same);
        table.row([
            format!("{:.2}", choice.told.time_s),
            choice.told.faults.to_string(),
            human(choice.told.in_bytes),
            human(choice.told.out_bytes),
            words(&choice.setting, &wishes.speeds)[1..].join(" "),
        ]);
    }
    table.text()
}

fn effects(advice: &Advice, wishes: &Wishes) -> String {
    let mut table = Table::new(&[
        ("BACK ENDS", Align::Left),
        ("SECONDS", Align::Right),
        ("COST", Align::Right),
        ("EFFECT", Align::Right),
    ]);
    for effect in &advice.effects {
        let setting = Setting { back_ends: effect.back_ends.clone(), ..advice.best.setting.clone() };
        table.row([
            words(&setting, &wishes.speeds)[4].clone(),
            format!("{:.2}", effect.time_s),
            format!("{:.2}", effect.cost),
            format!("{:.2}", effect.mei),
        ]);
    }
    table.text()
}

fn comparison(runs: &[Run]) -> String {
    let mut table = Table::new(&[
        ("RUN", Align::Left),
        ("TOLD", Align::Right),
        ("TOOK", Align::Right),
        ("ERROR", Align::Right),
    ]);
    for run in runs {
        table.row([
            run.name.to_owned(),
            format!("{:.2} s", run.told_s),
            format!("{:.2} s", run.took_s),
            format!("{:+.0} %", run.error_percent()),
        ]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_setting_are_taken_by_the_command_line() {
        use crate::arguments::Arguments;
        use clap::Parser;
        use hinterland_farplan::advise::WIDTHS;
        let speed = |name: &str| Speed { name: name.to_owned(), ..Speed::default() };
        let speeds = [speed("lz4"), speed("ssd:/var/tmp@4294967296")];
        let units = [Unit::Bytes(4 << 10), Unit::Bytes(2 << 20), Unit::Fitted];
        for (unit, width) in units.into_iter().flat_map(|unit| WIDTHS.map(|width| (unit, width))) {
            let ahead = unit.bytes() == 4 << 10;
            let setting = Setting { local_bytes: (100 << 20) + 1, unit, ahead, width, back_ends: vec![0, 1] };
            let words = words(&setting, &speeds);
            assert_eq!(words[2], "101M");
            assert_eq!(words.contains(&"--far-unit".to_owned()), unit != Unit::Fitted);
            assert!(words.windows(2).any(|two| two == ["--far-width".to_owned(), width.to_string()]));
            let line =
                std::iter::once("hinterland".to_owned()).chain(words).chain(["--".into(), "ls".into()]);
            assert!(Arguments::try_parse_from(line).is_ok());
        }
    }
}
