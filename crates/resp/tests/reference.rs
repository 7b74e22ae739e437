//! The page of commands says what the table of commands says.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use hinterland_resp::command::COMMANDS;

#[test]
fn the_reference_has_every_command_and_no_other() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/redis.md"))
        .unwrap();
    let list = page.split("\n## ").next().unwrap();
    let told: Vec<&str> = list.lines().filter(|line| line.starts_with("| `")).collect();
    let lines: Vec<String> = COMMANDS
        .iter()
        .map(|spec| {
            format!("| `{}` | {} | {} | {} |", spec.name.to_uppercase(), spec.group, spec.since, spec.summary)
        })
        .collect();
    assert_eq!(told, lines, "docs/reference/redis.md should have these lines:\n{}", lines.join("\n"));
}
