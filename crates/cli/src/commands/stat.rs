//! `hinterland stat`: shows one object.

use crate::context::Context;
use crate::failure::Failure;
use crate::shapes;
use crate::size::human;
use hinterland_proto::control::{MemberInfo, ObjectInfo, ObjectState};
use hinterland_types::ObjectName;
use std::process::ExitCode;

/// What to show.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The object's name
    name: ObjectName,
}

/// Shows an object as lines of words, or as a JSON object.
///
/// # Errors
/// [`Failure`], also if there is no such object.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let pool = context.pool_to_look()?;
    let info = pool.stat(&arguments.name)?;
    // Names make it easier to read; it is shown without them where the directory does not answer.
    let members = pool.members().unwrap_or_default();
    if shapes::is_region(&info) {
        let pages = pool.pages_at(&arguments.name)?;
        let text =
            || [vec![words(&info, &members)], shapes::page_lines(&pages, &members)].concat().join("\n");
        context.output.either(&shapes::region(&info, &pages), text)?;
        return Ok(ExitCode::SUCCESS);
    }
    context.output.either(&shapes::object(&info), || words(&info, &members))?;
    Ok(ExitCode::SUCCESS)
}

fn words(info: &ObjectInfo, members: &[MemberInfo]) -> String {
    let mut lines = vec![
        format!("name     {}", info.name),
        format!("object   {}", info.object),
        format!("state    {}", shapes::state(info.state)),
        format!("size     {} ({} bytes)", human(info.bytes), info.bytes),
    ];
    if let Some(address) = info.address {
        lines.push(format!("address  {address}"));
    }
    if info.state == ObjectState::Sealed {
        lines.push(format!("digest   {}", shapes::hexadecimal(&info.digest)));
    }
    // Each page of a region lies on one of its homes.
    if !shapes::is_region(info) {
        lines.push(copies(info));
    }
    for home in &info.homes {
        let state = if home.up { "up" } else { "down" };
        let why = if home.heat { ", for heat: its rack reads it a lot" } else { "" };
        let node = shapes::called(home.node, members);
        lines.push(format!("home     {node} in rack {} at {}, {state}{why}", home.rack, home.address));
    }
    if info.homes.is_empty() && info.state == ObjectState::Sealed {
        lines.push(
            "home     none: it is lost, unless a node that had it comes back (`hinterland rm` forgets it)"
                .to_owned(),
        );
    }
    lines.join("\n")
}

fn copies(info: &ObjectInfo) -> String {
    let heat_copies = info.homes.iter().filter(|home| home.heat).count();
    let held = info.homes.len() - heat_copies;
    let beside =
        if heat_copies > 0 { format!(", {heat_copies} beside them for heat") } else { String::new() };
    format!("copies   {} wanted, {held} held{beside}", info.copies)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::samples::{members, sealed};

    #[test]
    fn an_object_is_shown_with_its_homes() {
        let text = words(&sealed(), &[]);
        assert!(text.contains("size     145 MiB (152043520 bytes)"), "{text}");
        assert!(text.ends_with("home     node-7 in rack b at 127.0.0.1:7401, up"), "{text}");
        let mut members = members();
        members[0].node = sealed().homes[0].node;
        let text = words(&sealed(), &members);
        assert!(text.ends_with("home     first (node-7) in rack b at 127.0.0.1:7401, up"), "{text}");
    }

    #[test]
    fn an_object_without_a_home_is_lost() {
        let mut info = sealed();
        info.homes.clear();
        let text = words(&info, &[]);
        assert!(
            text.contains("copies   1 wanted, 0 held") && text.contains("home     none: it is lost"),
            "{text}"
        );
    }

    #[test]
    fn a_heat_copy_is_none_of_those_that_were_asked_for() {
        let mut info = sealed();
        let heat = hinterland_proto::control::Home { heat: true, ..info.homes[0].clone() };
        info.homes.push(heat);
        let text = words(&info, &[]);
        assert!(text.contains("copies   1 wanted, 1 held, 1 beside them for heat"), "{text}");
        assert!(text.ends_with(", up, for heat: its rack reads it a lot"), "{text}");
    }
}
