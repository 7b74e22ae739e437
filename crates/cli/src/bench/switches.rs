//! The same bench without one optimisation after the other: what each of them is worth.
//!
//! Many switches are read once in a process, so each turn is a process of its own.

use super::report::Row;
use super::{Bench, Setting};
use crate::failure::Failure;
use serde_json::Value;
use std::process::{Command, Stdio};

/// Rows of all cases without each optimisation of a bench; their peer is the figure of the same case with it, out of `whole`.
///
/// # Errors
/// [`Failure`] if a bench without an optimisation cannot be run at all.
pub fn rows(bench: &dyn Bench, setting: &Setting, whole: &[Row]) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for switch in bench.switches() {
        (setting.say)(&format!("{} without {}", bench.name(), named(switch)));
        let report = without(bench, setting, switch)?;
        let found = report["rows"].as_array().into_iter().flatten();
        for (row, found) in whole.iter().zip(found) {
            rows.push(beside(row, found, switch));
        }
    }
    Ok(rows)
}

/// What the row of a case is called: variables without their value.
fn named(switch: &str) -> &str {
    switch.split_once('=').map_or(switch, |(name, _)| name)
}

/// The words of this bench's own command, without those that say how to print and to do it again and again.
fn words(own: impl Iterator<Item = String>) -> Vec<String> {
    let mut words = Vec::new();
    let mut own = own;
    while let Some(word) = own.next() {
        match word.as_str() {
            "--json" | "--quiet" | "-q" | "--switches" => {}
            // And its file.
            "--plot" => drop(own.next()),
            other if other.starts_with("--plot=") => {}
            _ => words.push(word),
        }
    }
    words
}

fn without(bench: &dyn Bench, setting: &Setting, switch: &str) -> Result<Value, Failure> {
    let mut command = Command::new(&setting.program);
    command.args(words(std::env::args().skip(1))).args(["--json", "--quiet"]);
    match switch.split_once('=') {
        Some((name, value)) => command.env(name, value),
        None => command.args(["--without", switch]),
    };
    let cannot = |why: String| {
        Failure::new(
            format!("{} without {}: {why}", bench.name(), named(switch)),
            "run it without --switches",
        )
    };
    let done = command.stdin(Stdio::null()).output().map_err(|error| cannot(error.to_string()))?;
    if !done.status.success() {
        return Err(cannot(String::from_utf8_lossy(&done.stderr).trim().to_owned()));
    }
    serde_json::from_slice(&done.stdout).map_err(|error| cannot(error.to_string()))
}

/// The row of a case without an optimisation, beside the one with it.
fn beside(row: &Row, found: &Value, switch: &str) -> Row {
    let case = format!("{} without {}", row.case, named(switch));
    if found["case"] != row.case.as_str() {
        return Row::absent(case, row.unit, row.better, "there is no such case without it");
    }
    let spread = found["spread"].as_array().map(|ends| [0, 1].map(|end| ends[end].as_f64().unwrap_or(0.0)));
    Row {
        ours: found["ours"].as_f64(),
        spread,
        // A count of rounds is small.
        runs: found["runs"].as_u64().unwrap_or(0) as usize,
        limit: found["limit"].as_f64(),
        limit_name: row.limit_name.clone(),
        peer: row.ours,
        peer_name: Some("the same with it".to_owned()),
        why: found["why"].as_str().map(str::to_owned),
        ..Row::new(case, row.unit, row.better)
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Better;
    use super::*;
    use serde_json::json;

    #[test]
    fn a_row_without_an_optimisation_stands_beside_the_one_with_it() {
        let row = Row { ours: Some(2.0), ..Row::new("first", "GB/s", Better::Higher) };
        let found = json!({ "case": "first", "ours": 1.0, "spread": [0.5, 1.5], "runs": 3, "limit": 4.0 });
        let beside = beside(&row, &found, "HINTERLAND_NO_STREAMING=1");
        assert_eq!(beside.case, "first without HINTERLAND_NO_STREAMING");
        assert_eq!((beside.ours, beside.peer, beside.limit), (Some(1.0), Some(2.0), Some(4.0)));
        assert_eq!((beside.spread, beside.runs), (Some([0.5, 1.5]), 3));
        assert_eq!(beside.ratio_to_peer(), Some(0.5));
    }

    #[test]
    fn the_command_is_repeated_but_for_how_it_prints() {
        let own = [
            "-q",
            "bench",
            "scan",
            "--plot",
            "a.svg",
            "--rounds",
            "2",
            "--plot=b.svg",
            "--json",
            "--switches",
        ];
        assert_eq!(words(own.map(str::to_owned).into_iter()), ["bench", "scan", "--rounds", "2"]);
    }

    #[test]
    fn another_case_is_not_taken_for_this_one() {
        let row = Row::new("first", "GB/s", Better::Higher);
        let beside = beside(&row, &json!({ "case": "second", "ours": 1.0 }), "pipeline");
        assert_eq!((beside.case.as_str(), beside.ours), ("first without pipeline", None));
        assert!(beside.why.is_some());
    }
}
