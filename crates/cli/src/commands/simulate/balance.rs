//! `hinterland simulate balance`: what far memory would even out between the machines of a cluster, from its utilisation.

use super::contour;
use crate::failure::Failure;
use crate::output::Output;
use crate::size::human;
use hinterland_farplan::balance::{Point, Utilisation};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// Bytes of the longest line that is a line and no other kind of file.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Hundredths that a value may be past the ends.
const ROUNDING: f64 = 0.1;
/// Names under which utilisation is looked for.
const UTILISATION_NAMES: [&str; 5] =
    ["utilisation", "utilization", "mem_util_percent", "memory_util", "value"];
/// Names under which machines are looked for.
const MACHINE_NAMES: [&str; 6] = ["machine", "machine_id", "server", "node", "pod", "pod_name"];

/// Which trace, and how it is read.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example: hinterland simulate balance --trace utilisation.csv --plot balance.svg

A trace is a CSV file with a header: a column with the share of a machine's memory that is in use, from 0 to 100 (or from 0 to 1, \
if nothing in it is above 1), and, for --machine, one that names the machine. Each line is an observation. Lines whose value is \
empty are left out, and counted.

The measure is that of paper 002: C * (c - high) - A * (a - low), where A is the share of machines below `low` and a their mean, C \
the share above `high` and c their mean. It \
counts what idle machines have and nobody needs, and is highest at the ends of the scale; so `matched` is shown as well: twice the smaller of \
both terms, what busy machines have too much and idle ones have room for.")]
pub struct Arguments {
    /// The utilisation trace
    #[arg(long, value_name = "FILE.csv")]
    trace: PathBuf,
    /// The column with the utilisation [default: utilisation, utilization, mem_util_percent, memory_util or value]
    #[arg(long, value_name = "NAME")]
    column: Option<String>,
    /// Take the mean of each machine, named in this column, in place of every line by itself
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
    /// Hundredths between two thresholds
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=25))]
    step: u8,
    /// Draw the measure over both thresholds
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// What was read of a trace.
struct Observed {
    values: Vec<f64>,
    machines: usize,
    left_out: u64,
}

/// Computes, and draws if asked to.
///
/// # Errors
/// [`Failure`] for a file that is no such trace, and for a picture that cannot be written.
pub fn run(arguments: &Arguments, output: Output) -> Result<Value, Failure> {
    let observed = read(arguments)?;
    let (machines, left_out) = (observed.machines, observed.left_out);
    let Some(utilisation) = Utilisation::of(observed.values) else {
        return Err(Failure::new(
            format!("{} has values outside of 0 to 100, or none", arguments.trace.display()),
            "name the column with the utilisation with --column",
        ));
    };
    let step = usize::from(arguments.step);
    let points = utilisation.grid(step);
    let equal = points.iter().filter(|point| point.low == point.high);
    let at_mean = (utilisation.mean().round() / step as f64).round() * step as f64;
    let best = highest(points.iter());
    let best_equal = highest(equal);
    let matched = utilisation.best_matched(step);
    if let Some(path) = &arguments.plot {
        let title = format!(
            "Memory balance effectiveness, {} observations, mean {:.1} %",
            utilisation.count(),
            utilisation.mean()
        );
        std::fs::write(path, contour::svg(&title, &points, &matched, step))
            .map_err(|error| Failure::file("writing", path, &error))?;
        output.say(format_args!("the picture is in {}", path.display()));
    }
    let told = |point: Point| json!({ "low": point.low, "high": point.high, "effect_percent": point.effect });
    let mean = Point { low: at_mean, high: at_mean, effect: utilisation.effect(at_mean, at_mean) };
    Ok(json!({
        "observations": utilisation.count(), "machines": machines, "left_out": left_out,
        "mean_percent": utilisation.mean(), "best": told(best), "best_equal": told(best_equal),
        "at_mean": told(mean), "matched": told(matched),
    }))
}

/// What was found, for people.
pub fn text(value: &Value) -> String {
    let point = |name: &str| {
        let of = |field: &str| value[name][field].as_f64().unwrap_or(0.0);
        format!("{:.1} % at low {:.0}, high {:.0}", of("effect_percent"), of("low"), of("high"))
    };
    [
        format!(
            "{} observations, mean {:.1} %; {} lines left out",
            value["observations"],
            value["mean_percent"].as_f64().unwrap_or(0.0),
            value["left_out"]
        ),
        format!("highest             {}", point("best")),
        format!("both at the mean    {}", point("at_mean")),
        format!("matched             {}", point("matched")),
    ]
    .join("\n")
}

fn highest<'points>(points: impl Iterator<Item = &'points Point>) -> Point {
    let none = Point { low: 0.0, high: 100.0, effect: 0.0 };
    points.fold(none, |best, point| if point.effect > best.effect { *point } else { best })
}

fn read(arguments: &Arguments) -> Result<Observed, Failure> {
    let path = &arguments.trace;
    let file = File::open(path).map_err(|error| Failure::file("reading", path, &error))?;
    let mut lines = BufReader::new(file).lines();
    let refused = |what: String, hint: &str| Failure::new(format!("{}: {what}", path.display()), hint);
    let header = match lines.next() {
        Some(Ok(header)) if header.len() <= LINE_BYTES_MAX => header,
        _ => return Err(refused("no line of text".to_owned(), "name a CSV file with a header")),
    };
    let names: Vec<String> = cells(&header).map(str::to_owned).collect();
    let value_at = column(path, &names, arguments.column.as_deref(), &UTILISATION_NAMES, "--column")?;
    let machine_at = match &arguments.machine {
        Some(name) => Some(column(path, &names, Some(name), &MACHINE_NAMES, "--machine")?),
        None => None,
    };
    let mut sums: BTreeMap<String, (f64, u64)> = BTreeMap::new();
    let (mut values, mut left_out) = (Vec::new(), 0);
    for (number, line) in lines.enumerate() {
        let line = line.map_err(|error| Failure::file("reading", path, &error))?;
        let cell = cells(&line).nth(value_at).unwrap_or("");
        if cell.is_empty() {
            left_out += 1;
            continue;
        }
        let Some(value) = cell.parse::<f64>().ok().filter(|value| value.is_finite()) else {
            return Err(refused(
                format!("{cell:?} in line {} is no number", number + 2),
                "name the column with the utilisation with --column",
            ));
        };
        if let Some(at) = machine_at {
            let sum = sums.entry(cells(&line).nth(at).unwrap_or("").to_owned()).or_default();
            *sum = (sum.0 + value, sum.1 + 1);
        } else {
            values.push(value);
        }
    }
    let machines = sums.len();
    values.extend(sums.into_values().map(|(sum, count)| sum / count as f64));
    if values.iter().all(|value| *value <= 1.0) {
        for value in &mut values {
            *value *= 100.0;
        }
    }
    for value in &mut values {
        // What measuring rounds over the ends is at the ends; anything further is a mistake that is told.
        if (-ROUNDING..=100.0 + ROUNDING).contains(value) {
            *value = value.clamp(0.0, 100.0);
        }
    }
    Ok(Observed { values, machines, left_out })
}

/// The cells of a line. Quotes are taken off; a comma within quotes is not known.
fn cells(line: &str) -> impl Iterator<Item = &str> {
    line.split(',').map(|cell| cell.trim().trim_matches('"'))
}

fn column(
    path: &Path,
    names: &[String],
    asked: Option<&str>,
    known: &[&str],
    option: &str,
) -> Result<usize, Failure> {
    let place = match asked {
        Some(asked) => names.iter().position(|name| name == asked),
        None => known.iter().find_map(|known| names.iter().position(|name| name.eq_ignore_ascii_case(known))),
    };
    place.ok_or_else(|| {
        let shown: String = names.join(", ").chars().take(200).collect();
        let size = std::fs::metadata(path).map_or(0, |data| data.len());
        Failure::new(
            format!("{} ({}) has no such column; it has: {shown}", path.display(), human(size)),
            format!("name one of them with {option}"),
        )
    })
}
