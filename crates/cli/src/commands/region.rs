//! `hinterland region`: memory that is read and written in place, over one rack or several.

use crate::context::Context;
use crate::failure::Failure;
use crate::shapes;
use crate::size::{Size, human};
use crate::table::{Align, Table};
use hinterland_proto::control::{Counters, HotPage};
use hinterland_types::limits::PAGE_BYTES;
use hinterland_types::{ObjectName, RackName};
use serde_json::json;
use std::process::ExitCode;

/// What to do.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
A region has pages of 2 MiB, each on one node. `hinterland stat NAME` shows where they lie. Pages that a rack uses \
much more than the rack that has them move there by themselves. What counts is what `heat` shows: \
accesses of the last seconds, those to memory of the host by samples.")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// What can be done.
#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Make a region of zeros
    Create(Create),
    /// Bring pages to the node
    Pull(Pull),
    /// Show the pages that this rack uses most
    Heat(Heat),
}

/// How many.
#[derive(clap::Args, Debug)]
struct Heat {
    /// Pages to show, the hottest first
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    count: u32,
}

/// Which region, and where.
#[derive(clap::Args, Debug)]
struct Create {
    /// The region's name
    name: ObjectName,
    /// How large it is
    size: Size,
    /// Rack that it shall lie in [default: this one, or if it has no room all nodes that have]
    #[arg(long, value_name = "RACK", conflicts_with = "spread")]
    rack: Option<RackName>,
    /// Lay its pages on all nodes with room, by a hash
    #[arg(long)]
    spread: bool,
}

/// Which pages.
#[derive(clap::Args, Debug)]
struct Pull {
    /// The region's name
    name: ObjectName,
    /// Which page of 2 MiB, from 0 [default: all]
    #[arg(long, value_name = "N")]
    page: Option<u32>,
}

/// Does it.
///
/// # Errors
/// [`Failure`].
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    match &arguments.command {
        Command::Create(create) => make(create, context),
        Command::Pull(pull) => bring(pull, context),
        Command::Heat(heat) => show_heat(heat, context),
    }
}

fn make(create: &Create, context: &Context) -> Result<ExitCode, Failure> {
    let pool = context.pool()?;
    let info = if create.spread {
        pool.create_spread(&create.name, create.size.bytes)?
    } else {
        pool.create_region(&create.name, create.size.bytes, create.rack.clone())?
    };
    let pages = pool.pages_at(&create.name)?;
    let members = pool.members().unwrap_or_default();
    context.output.either(&shapes::region(&info, &pages), || {
        let address = info.address.map_or_else(String::new, |address| format!(" at {address}"));
        format!(
            "made {} of {}{address}\n{}",
            info.name,
            human(info.bytes),
            shapes::page_lines(&pages, &members).join("\n")
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

fn show_heat(heat: &Heat, context: &Context) -> Result<ExitCode, Failure> {
    let pages = context.pool_to_look()?.hot_pages(heat.count)?;
    let value: Vec<_> = pages
        .iter()
        .map(|page| {
            json!({
                "name": page.name.as_str(),
                "page": page.index,
                "reads": page.reads,
                "writes": page.writes,
                "here": page.here,
                "copied": page.copied,
                "rack": page.home.as_ref().map(|home| home.rack.as_str().to_owned()),
            })
        })
        .collect();
    context.output.either(&json!({ "pages": value }), || {
        if pages.is_empty() {
            return "no program of this rack has used a page of a region of late".to_owned();
        }
        let mut table = Table::new(&[
            ("REGION", Align::Left),
            ("PAGE", Align::Right),
            ("READS", Align::Right),
            ("WRITES", Align::Right),
            ("WHERE", Align::Left),
        ]);
        for page in &pages {
            let (name, index) = (page.name.to_string(), page.index.to_string());
            table.row([name, index, page.reads.to_string(), page.writes.to_string(), place_of(page)]);
        }
        table.text().trim_end().to_owned()
    })?;
    Ok(ExitCode::SUCCESS)
}

/// What pages of regions did, if any did something.
pub(super) fn moved_line(counters: &Counters) -> Option<String> {
    let Counters { pages_taken, pages_given, pages_refused, pages_copied, pages_recalled, .. } = *counters;
    let any = pages_taken + pages_given + pages_refused + pages_copied + pages_recalled;
    (any > 0).then(|| {
        format!(
            "pages of regions: {pages_taken} came, {pages_given} went, {pages_refused} stayed with their homes; {pages_copied} copies came, {pages_recalled} were taken back"
        )
    })
}

fn place_of(page: &HotPage) -> String {
    let elsewhere = page
        .home
        .as_ref()
        .map_or_else(|| "not known".to_owned(), |home| format!("on {} in rack {}", home.node, home.rack));
    match (page.here, page.copied) {
        (true, false) => "here".to_owned(),
        (true, true) => "here, with copies elsewhere".to_owned(),
        (false, true) => format!("{elsewhere}, with a copy here"),
        (false, false) => elsewhere,
    }
}

fn bring(pull: &Pull, context: &Context) -> Result<ExitCode, Failure> {
    let pool = context.pool()?;
    let info = pool.stat(&pull.name)?;
    let no_region =
        || Failure::new(format!("{} is no region", info.name), "only regions have pages that move");
    let first = info.address.filter(|_| crate::shapes::is_region(&info)).ok_or_else(no_region)?;
    let count = u32::try_from(info.bytes.div_ceil(PAGE_BYTES)).unwrap_or(u32::MAX);
    let wanted = pull.page.map_or(0..count, |page| page..page.saturating_add(1));
    let mut came = 0u32;
    for page in wanted {
        let address = first.checked_add(u64::from(page) * PAGE_BYTES).filter(|_| page < count);
        let address = address.ok_or_else(|| {
            Failure::new(
                format!("{} has no page {page}", info.name),
                format!("its last page is {}", count.saturating_sub(1)),
            )
        })?;
        pool.pull_page(address)?;
        came += 1;
    }
    context.output.either(&json!({ "name": info.name.as_str(), "pages": came }), || {
        let (pages, lie) = if came == 1 { ("page", "lies") } else { ("pages", "lie") };
        format!("{came} {pages} of {} {lie} on this node", info.name)
    })?;
    Ok(ExitCode::SUCCESS)
}
