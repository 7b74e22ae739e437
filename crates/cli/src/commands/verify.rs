//! `hinterland verify`: reads every copy of objects and compares checksums.

use crate::context::Context;
use crate::failure::Failure;
use crate::shapes;
use hinterland_pool::Verified;
use hinterland_proto::control::{MemberInfo, ObjectState};
use hinterland_types::ObjectName;
use serde_json::{Value, json};
use std::process::ExitCode;

/// What to verify.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The objects' names
    #[arg(required_unless_present = "all", conflicts_with = "all", value_name = "NAME")]
    names: Vec<ObjectName>,
    /// Every sealed object
    #[arg(long)]
    all: bool,
    /// Write wrong blocks anew from other copies; a copy where that fails is dropped and made again, if another is right
    #[arg(long)]
    mend: bool,
    /// Drop wrong copies of objects that have a right one, as where a machine's memory is not to be trusted; they are made again
    #[arg(long, conflicts_with = "mend")]
    drop: bool,
}

/// Verifies each object at each of its homes.
///
/// # Errors
/// [`Failure`] if the node cannot be asked. A copy that is wrong, or whose home does not answer, is told, and the status is 1.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let pool = context.pool()?;
    let names = if arguments.all {
        let objects = pool.list("")?.into_iter();
        objects.filter(|info| info.state == ObjectState::Sealed).map(|info| info.name).collect()
    } else {
        arguments.names.clone()
    };
    // Names make it easier to read; it is shown without them where the directory does not answer.
    let members = pool.members().unwrap_or_default();
    let mut shown = Vec::new();
    let (mut all_good, mut all_mended, mut any_wrong) = (true, true, false);
    for name in &names {
        let verified = match (arguments.mend, arguments.drop) {
            (true, _) => pool.verify_and_mend(name),
            (_, true) => pool.verify_and_drop(name),
            _ => pool.verify(name),
        }?;
        all_good &= verified.bad.is_empty();
        all_mended &= verified.bad.iter().all(|(node, _)| verified.mended.contains(node));
        any_wrong |= verified.bad.iter().any(|(node, _)| !verified.unasked.contains(node));
        if context.output.json {
            shown.push(value(name, &verified));
        } else {
            context.output.data(words(name, &verified, &members))?;
        }
    }
    if context.output.json {
        context.output.json(&Value::Array(shown))?;
    } else if !all_good {
        context.output.fail(&if all_mended { mended() } else { failure(any_wrong) });
    }
    Ok(if all_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Wrong bytes are no good sign, even if they are right again.
fn mended() -> Failure {
    let hint = "if it happens again, do not trust the memory of that machine: see the log of its kernel, and `hinterland verify --drop`";
    Failure::new("some copies were wrong, and are right again", hint)
}

/// What is to be done about copies that are wrong, or that nothing is known of.
fn failure(any_wrong: bool) -> Failure {
    if any_wrong {
        let hint = "`hinterland get` reads a right copy; `hinterland verify --mend` writes what is wrong anew from other copies";
        return Failure::new("some copies are wrong", hint);
    }
    let hint = "`hinterland status` shows which nodes are down; verify again when they are back";
    Failure::new("some copies were not compared: their nodes could not be asked", hint)
}

fn value(name: &ObjectName, verified: &Verified) -> Value {
    json!({
        "name": name.as_str(),
        "blocks": verified.blocks,
        "good": verified.good.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "bad": verified
            .bad
            .iter()
            .map(|(node, why)| {
                json!({
                    "node": node.to_string(),
                    "why": why,
                    "asked": !verified.unasked.contains(node),
                    "mended": verified.mended.contains(node),
                })
            })
            .collect::<Vec<_>>(),
    })
}

fn words(name: &ObjectName, verified: &Verified, members: &[MemberInfo]) -> String {
    let copies = verified.good.len();
    let plural = if copies == 1 { "copy" } else { "copies" };
    let mut text = format!("{name}: {copies} right {plural}, {} blocks compared", verified.blocks);
    for (node, why) in &verified.bad {
        let called = shapes::called(*node, members);
        text.push_str(&if verified.unasked.contains(node) {
            format!("\n{name}: {called} could not be asked: {why}")
        } else {
            let outcome =
                if verified.mended.contains(node) { "; right again, from other copies" } else { "" };
            format!("\n{name}: WRONG at {called}: {why}{outcome}")
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::samples::members;
    use hinterland_types::NodeId;

    #[test]
    fn a_wrong_copy_is_named_with_its_node_and_reason() {
        let name = ObjectName::parse("a").unwrap();
        let verified = Verified {
            blocks: 9,
            good: vec![NodeId(1)],
            bad: vec![(NodeId(2), "block 3 differs".to_owned())],
            unasked: Vec::new(),
            mended: Vec::new(),
        };
        assert_eq!(
            words(&name, &verified, &[]),
            "a: 1 right copy, 9 blocks compared\na: WRONG at node-2: block 3 differs"
        );
        assert_eq!(value(&name, &verified)["bad"][0]["why"], "block 3 differs");
        assert_eq!(value(&name, &verified)["bad"][0]["asked"], true);
        assert!(failure(true).hint.contains("--mend"));
    }

    #[test]
    fn a_home_that_is_down_is_not_called_wrong() {
        let name = ObjectName::parse("a").unwrap();
        let verified = Verified {
            blocks: 9,
            good: vec![NodeId(2)],
            bad: vec![(NodeId(1), "its node is down".to_owned())],
            unasked: vec![NodeId(1)],
            mended: Vec::new(),
        };
        assert_eq!(
            words(&name, &verified, &members()),
            "a: 1 right copy, 9 blocks compared\na: first (node-1) could not be asked: its node is down"
        );
        assert_eq!(value(&name, &verified)["bad"][0]["asked"], false);
        assert!(!failure(false).text.contains("wrong"));
    }
}
