//! `hinterland ls`: lists objects.

use crate::context::Context;
use crate::failure::Failure;
use crate::shapes;
use crate::size::human;
use crate::table::{Align, Table};
use hinterland_proto::control::{ObjectInfo, ObjectState};
use serde_json::Value;
use std::process::ExitCode;

/// What to list.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// Only objects whose names start so
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
}

/// Lists objects sorted by name: a table, or a JSON array.
///
/// # Errors
/// [`Failure`].
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let objects = context.pool_to_look()?.list(&arguments.prefix)?;
    let value = Value::Array(objects.iter().map(shapes::object).collect());
    if objects.is_empty() && !context.output.json {
        match arguments.prefix.as_str() {
            "" => context.output.say("no objects (put one with `hinterland put FILE`)"),
            prefix => context.output.say(format_args!("no object has a name that begins with {prefix:?}")),
        }
        return Ok(ExitCode::SUCCESS);
    }
    context.output.either(&value, || table(&objects))?;
    Ok(ExitCode::SUCCESS)
}

/// In place of the racks of an object of which no node has a copy any more.
const LOST: &str = "none: it is lost";

fn is_lost(info: &ObjectInfo) -> bool {
    info.state == ObjectState::Sealed && info.homes.is_empty()
}

fn table(objects: &[ObjectInfo]) -> String {
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("SIZE", Align::Right),
        ("STATE", Align::Left),
        ("RACKS", Align::Left),
    ]);
    for info in objects {
        let racks: Vec<String> = info
            .homes
            .iter()
            .map(|home| match (home.up, home.heat) {
                (true, false) => home.rack.to_string(),
                (true, true) => format!("{} (heat)", home.rack),
                (false, _) => format!("{} (down)", home.rack),
            })
            .collect();
        table.row([
            info.name.to_string(),
            human(info.bytes),
            shapes::state(info.state).to_owned(),
            if is_lost(info) { LOST.to_owned() } else { racks.join(", ") },
        ]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::samples::sealed;

    #[test]
    fn a_home_that_is_down_is_marked() {
        let mut info = sealed();
        info.homes[0].up = false;
        assert_eq!(
            table(&[info]),
            "NAME                  SIZE  STATE   RACKS\nmodels/small.gguf  145 MiB  sealed  b (down)"
        );
    }

    #[test]
    fn an_object_without_a_home_is_lost() {
        let mut info = sealed();
        info.homes.clear();
        assert!(table(&[info.clone()]).ends_with("sealed  none: it is lost"));
        info.state = ObjectState::Writing;
        assert!(!table(&[info]).contains("lost"), "it has none yet");
    }

    #[test]
    fn a_heat_copy_is_marked() {
        let mut info = sealed();
        info.homes[0].heat = true;
        assert!(table(&[info]).ends_with("sealed  b (heat)"));
    }
}
