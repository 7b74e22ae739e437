//! `hinterland forget`: takes a node that is gone for good out of the pool.

use crate::context::Context;
use crate::failure::Failure;
use hinterland_proto::control::MemberInfo;
use hinterland_types::{NodeId, NodeName};
use serde_json::json;
use std::process::ExitCode;

/// Which node.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
What it held in several copies is copied anew by the other nodes. If it starts again \
with its state, it is a new node, and what it still holds is deleted.")]
pub struct Arguments {
    /// Its name, number or address, as `hinterland status` shows them
    #[arg(value_name = "NODE")]
    node: String,
    /// Forget it although some objects or pages of regions are on it alone: they are lost
    #[arg(long)]
    lose_last_copies: bool,
}

/// Takes the node out; what it held in several copies is copied anew by the others.
///
/// # Errors
/// [`Failure`] if there is no such node, it is up, or it has the last copy of something.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let pool = context.pool()?;
    let member = find(&arguments.node, &pool.members()?)?;
    let lost = pool.forget(member.node, arguments.lose_last_copies)?;
    let shown = json!({ "node": member.node.to_string(), "name": member.name.as_ref().map(NodeName::as_str), "address": member.address, "lost": lost });
    context.output.either(&shown, || {
        let about = match lost {
            0 => "nothing is lost".to_owned(),
            1 => "one object has no whole copy any more".to_owned(),
            _ => format!("{lost} objects have no whole copy any more"),
        };
        format!("{} at {} is forgotten; {about}", member.called(), member.address)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The one member that is meant. What is written as a number is the number of a node, and never another node's name.
fn find(wanted: &str, members: &[MemberInfo]) -> Result<MemberInfo, Failure> {
    let is_named = |member: &MemberInfo| member.name.as_ref().is_some_and(|name| name.as_str() == wanted);
    if is_number(wanted) {
        let found = members.iter().find(|member| member.node.to_string() == wanted);
        return found
            .cloned()
            .ok_or_else(|| no_number(wanted, members.iter().filter(|member| is_named(member))));
    }
    let is_meant = |member: &&MemberInfo| member.address == wanted || is_named(member);
    let mut meant = members.iter().filter(is_meant);
    match (meant.next(), meant.next()) {
        (Some(member), None) => Ok(member.clone()),
        (Some(_), Some(_)) => Err(Failure::new(
            format!("{wanted} is meant by several nodes"),
            "give its number, as `hinterland status` shows it",
        )),
        (None, _) => Err(Failure::new(
            format!("the pool has no node {wanted}"),
            "`hinterland status` shows names, numbers and addresses",
        )),
    }
}

/// Whether a text is written as the number of a node is shown.
fn is_number(text: &str) -> bool {
    let number = text.strip_prefix("node-").and_then(|digits| digits.parse().ok());
    number.is_some_and(|number| NodeId(number).to_string() == text)
}

/// What is said of a number that no node has, and some may be called by.
fn no_number<'a>(wanted: &str, named: impl Iterator<Item = &'a MemberInfo>) -> Failure {
    let named: Vec<String> = named.map(|member| format!("{} at {}", member.node, member.address)).collect();
    if named.is_empty() {
        let hint = "`hinterland status` shows names, numbers and addresses";
        return Failure::new(format!("the pool has no node {wanted}"), hint);
    }
    Failure::new(
        format!("no node has the number {wanted}, which is the name of {}", named.join(" and of ")),
        "give its number if that one is meant",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::samples::members;

    #[test]
    fn a_node_is_found_by_name_number_or_address_and_only_if_one_is_meant() {
        let members = members();
        let first = &members[0];
        assert_eq!(find(&first.node.to_string(), &members).unwrap().node, first.node);
        assert_eq!(find(&first.address, &members).unwrap().node, first.node);
        assert_eq!(find("first", &members).unwrap().node, first.node);
        assert!(find("nobody:1", &members).is_err());
        let twice = [first.clone(), first.clone()];
        assert!(find(&first.address, &twice).is_err());
        assert!(find("first", &twice).is_err(), "two nodes may have one name");
        // A number is no other node's, whatever that one calls itself.
        let mut named = members.clone();
        named[0].name = NodeName::parse(&members[1].node.to_string()).ok();
        assert_eq!(find(&members[1].node.to_string(), &named).unwrap().node, members[1].node);
        // Nor where that one is gone: who types a number forgets no other node.
        let gone = [named[0].clone()];
        let refused = find(&members[1].node.to_string(), &gone).unwrap_err();
        assert!(refused.text.contains("which is the name of node-1 at 127.0.0.1:7401"), "{}", refused.text);
        assert_eq!(find(&named[0].node.to_string(), &gone).unwrap().node, named[0].node);
        assert_eq!(find("node-x", &gone).unwrap_err().text, "the pool has no node node-x");
        let mut padded = named[0].clone();
        padded.name = NodeName::parse("node-01").ok();
        assert!(find("node-01", &[padded]).is_ok(), "no number is shown so");
    }
}
