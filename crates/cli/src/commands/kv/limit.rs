//! `hinterland kv limit` and `clear`: how much a namespace may take, and an end to what it has.

use crate::context::Context;
use crate::failure::Failure;
use crate::size::{Size, human};
use serde_json::json;
use std::process::ExitCode;
use std::str::FromStr;

/// What a namespace may have.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The namespace: its number, or the start of its label
    namespace: String,
    /// Most memory, or `none`
    #[arg(long, value_name = "SIZE", value_parser = quota)]
    quota: Option<Quota>,
    /// Blocks of a lower priority are evicted before any of a higher one, 0 to 255; 100 is usual
    #[arg(long, value_name = "NUMBER")]
    priority: Option<u8>,
}

/// Which namespace, and where.
#[derive(clap::Args, Debug)]
pub struct Clear {
    /// The namespace: its number, or the start of its label
    namespace: String,
    /// Also from all other nodes of the pool, whose blocks are found from here else; fails if one is not reached
    #[arg(long)]
    everywhere: bool,
}

/// A quota or none.
#[derive(Clone, Copy, Debug)]
struct Quota(Option<u64>);

fn quota(text: &str) -> Result<Quota, String> {
    if text == "none" {
        return Ok(Quota(None));
    }
    Size::from_str(text).map(|size| Quota(Some(size.bytes))).map_err(|error| error.to_string())
}

/// Sets what was given and leaves the rest as it is.
///
/// # Errors
/// [`Failure`].
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    if arguments.quota.is_none() && arguments.priority.is_none() {
        return Err(Failure::usage("nothing to set", "give --quota SIZE, --priority NUMBER, or both"));
    }
    let cache = super::open(&arguments.namespace, context)?;
    let spaces = context.pool_to_look()?.kv_status()?.into_iter().flat_map(|store| store.namespaces);
    let now = spaces.into_iter().find(|space| space.namespace == cache.namespace());
    let (quota_before, priority_before) =
        now.map_or((None, 100), |space| (space.quota_bytes, space.priority));
    let quota = arguments.quota.map_or(quota_before, |quota| quota.0);
    let priority = arguments.priority.unwrap_or(priority_before);
    let used = cache.limit(quota, priority)?;
    let value = json!({ "quota_bytes": quota, "priority": priority, "slot_bytes": used });
    context.output.either(&value, || {
        let quota =
            quota.map_or_else(|| "no quota".to_owned(), |bytes| format!("a quota of {}", human(bytes)));
        format!("{quota}, priority {priority}; {} in use", human(used))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Removes all blocks of a namespace that are not pinned.
///
/// # Errors
/// [`Failure`].
pub fn clear(arguments: &Clear, context: &Context) -> Result<ExitCode, Failure> {
    let cache = super::open(&arguments.namespace, context)?;
    let removed = if arguments.everywhere { cache.clear_everywhere() } else { cache.clear() }?;
    context.output.either(&json!({ "removed": removed }), || format!("{removed} blocks removed"))?;
    Ok(ExitCode::SUCCESS)
}
