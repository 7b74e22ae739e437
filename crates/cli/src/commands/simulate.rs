//! `hinterland simulate`: big clusters on paper, over the real directory and the real rules of page heat, and over traces of others.

mod balance;
mod contour;

use crate::context::Context;
use crate::failure::Failure;
use crate::table::{Align, Table};
use clap::{Subcommand, ValueEnum};
use hinterland_os::clock;
use hinterland_sim::scale::{RecoveryFigures, ScaleFigures, ScalePlan, Workload, shards, simulate};
use serde_json::Value;
use std::process::ExitCode;
use std::time::Duration;

/// What to simulate.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Nothing is started and nothing is moved: nodes, programs and the network are a model, whose times are \
measured ones of a machine with two processors and loopback TCP, but for those of the directory's \
store, which are assumed. The directory and the decision which \
page moves are the program's own. docs/internals/scaling.md says what is simulated and what was found.")]
pub struct Arguments {
    /// What to simulate
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// One directory and many nodes whose programs use regions
    Scale(ScaleArguments),
    /// Names over several directories by consistent hashing: how even, and what moves (no product part)
    Shards(ShardArguments),
    /// What far memory would even out between machines, from how full their memory is
    Balance(balance::Arguments),
}

#[derive(clap::Args, Debug)]
struct ScaleArguments {
    /// Nodes
    #[arg(long, default_value_t = 100, value_name = "N")]
    nodes: u32,
    /// Racks among which they are divided
    #[arg(long, default_value_t = 10, value_name = "N")]
    racks: u32,
    /// Which pages programs use
    #[arg(long, value_enum, default_value_t = Kind::Tenants)]
    workload: Kind,
    /// Another seed, other draws
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Seconds that programs run
    #[arg(long, default_value_t = 5, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Operations of the programs of a node in a second
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    operations: u32,
    /// Pages of 2 MiB for each node
    #[arg(long, default_value_t = 4, value_name = "N")]
    pages: u32,
    /// Sealed objects of 256 MiB with two copies for each node
    #[arg(long, default_value_t = 20, value_name = "N")]
    objects: u32,
    /// A whole rack dies after this many seconds
    #[arg(long, value_name = "S")]
    rack_dies: Option<u64>,
    /// Pages stay where they are
    #[arg(long)]
    no_moves: bool,
    /// Nodes ask a page's home before the directory: what the product does not do
    #[arg(long)]
    ask_home_first: bool,
    /// Microseconds that a network adds to each message, one way
    #[arg(long, default_value_t = 0, value_name = "US")]
    wire: u64,
    /// Microseconds of a command of the directory with its transaction [default: 1000, assumed]
    #[arg(long, value_name = "US")]
    durable: Option<u64>,
}

#[derive(Clone, Copy, ValueEnum, Debug)]
enum Kind {
    /// All nodes use all pages alike
    Uniform,
    /// All nodes use the same pages most
    Zipfian,
    /// Each node uses a region of its own most, which lies in another rack
    Tenants,
    /// The same, and twice each program goes on in another rack
    Shifting,
}

#[derive(clap::Args, Debug)]
struct ShardArguments {
    /// Directories
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    shards: u32,
    /// Points of each on the circle
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    points: u32,
    /// Names that are tried
    #[arg(long, default_value_t = 100_000, value_name = "N")]
    names: u64,
}

/// Simulates, and prints what came of it.
///
/// # Errors
/// [`Failure`] for a plan that makes no sense.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let value = match &arguments.what {
        What::Scale(arguments) => {
            let plan = plan(arguments);
            let figures = simulate(&plan, &clock::monotonic_ns).map_err(|error| Failure::of(&error))?;
            let value = encode(&figures)?;
            context.output.either(&value, || text(&figures))?;
            return Ok(ExitCode::SUCCESS);
        }
        What::Shards(arguments) => {
            encode(&shards::try_names(arguments.shards, arguments.points, arguments.names))?
        }
        What::Balance(arguments) => {
            let value = balance::run(arguments, context.output)?;
            context.output.either(&value, || balance::text(&value))?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    context.output.either(&value, || rows(&value))?;
    Ok(ExitCode::SUCCESS)
}

fn plan(arguments: &ScaleArguments) -> ScalePlan {
    let mut plan = ScalePlan {
        nodes: arguments.nodes,
        racks: arguments.racks,
        workload: match arguments.workload {
            Kind::Uniform => Workload::Uniform,
            Kind::Zipfian => Workload::Zipfian,
            Kind::Tenants => Workload::Tenants,
            Kind::Shifting => Workload::Shifting,
        },
        seed: arguments.seed,
        time: Duration::from_secs(arguments.seconds),
        operations_per_s: arguments.operations,
        pages_per_node: arguments.pages,
        objects_per_node: arguments.objects,
        rack_dies: arguments.rack_dies.map(Duration::from_secs),
        asks_home_first: arguments.ask_home_first,
        ..ScalePlan::default()
    };
    plan.heat.moves = !arguments.no_moves;
    plan.costs.wire = Duration::from_micros(arguments.wire);
    plan.costs.durable = arguments.durable.map_or(plan.costs.durable, Duration::from_micros);
    plan
}

fn encode(figures: &impl serde::Serialize) -> Result<Value, Failure> {
    serde_json::to_value(figures)
        .map_err(|error| Failure::new(format!("the figures are no JSON: {error}"), "report this"))
}

/// The figures that matter, and the commands by kind.
fn text(figures: &ScaleFigures) -> String {
    let (moves, directory) = (&figures.moves, &figures.directory);
    let share = |count: u64| 100.0 * count as f64 / figures.operations.max(1) as f64;
    let mut lines = vec![
        format!(
            "{} operations: {:.1} % on the node, {:.1} % in the rack, {:.1} % in other racks; {:.0} ns each",
            figures.operations,
            share(figures.here),
            share(figures.rack),
            share(figures.away),
            figures.operation_ns
        ),
        format!(
            "words out of date: {} of {} ({:.4} % right)",
            figures.stale,
            figures.rack + figures.away,
            100.0 * figures.word_hit_rate
        ),
        format!(
            "moves: {:.0} pages/s, {:.1} MB/s; {} asked for, {} refused by homes, {} by the directory",
            moves.taken_per_s,
            moves.bytes_per_s / 1e6,
            moves.asked,
            moves.refused_by_home,
            moves.refused_by_directory
        ),
        format!(
            "directory: {:.0} commands/s, {:.0} of them durable; {:.0} % of its time, waits of {:.2} ms, {} leases lost",
            directory.commands_per_s,
            directory.durable_per_s,
            100.0 * directory.utilisation,
            directory.wait_ms,
            directory.leases_lost
        ),
        format!(
            "measured on this machine: {:.1} us of a processor for a command, without its store",
            directory.measured_ns / 1e3
        ),
    ];
    lines.extend(figures.recovery.as_ref().map(recovery));
    lines.push(String::new());
    lines.push(kinds(figures));
    lines.join("\n")
}

/// What a rack's death came to.
fn recovery(recovery: &RecoveryFigures) -> String {
    let whole = recovery.whole_s.map_or("not whole".to_owned(), |s| format!("whole after {s:.1} s"));
    format!(
        "a rack of {} nodes died: noticed after {:.1} s, {whole}; {} of {} copies made, by {} nodes at once; {} objects lost",
        recovery.nodes,
        recovery.noticed_s,
        recovery.copies_made,
        recovery.copies,
        recovery.making_max,
        recovery.objects_lost
    )
}

/// Commands by kind.
fn kinds(figures: &ScaleFigures) -> String {
    let mut table = Table::new(&[
        ("COMMAND", Align::Left),
        ("COUNT", Align::Right),
        ("REFUSED", Align::Right),
        ("DURABLE", Align::Right),
        ("BYTES EACH", Align::Right),
        ("MEASURED US", Align::Right),
    ]);
    for (name, kind) in &figures.directory.kinds {
        table.row([
            (*name).to_owned(),
            kind.count.to_string(),
            kind.refused.to_string(),
            kind.durable.to_string(),
            (kind.written_bytes / kind.durable.max(1)).to_string(),
            format!("{:.1}", kind.measured_ns as f64 / 1e3 / kind.count.max(1) as f64),
        ]);
    }
    table.text()
}

/// Each field on a line.
fn rows(value: &Value) -> String {
    let fields = value.as_object().into_iter().flatten();
    fields.map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>().join("\n")
}
