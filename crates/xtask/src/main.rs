//! Developer chores: `cargo xtask tidy` checks the house rules, `cargo xtask docs` writes the reference.
#![forbid(unsafe_code)]

mod finding;
mod reference;
mod rules;
mod scanner;
mod tree;

use finding::Finding;
use std::process::ExitCode;
use tree::Tree;

/// Every subcommand and what it does: the help text, and what a document may name.
pub const SUBCOMMANDS: &[(&str, &str)] = &[
    ("tidy", "check the house rules; prints path:line: message and fails on any"),
    ("commits", "check the text of the latest commits, before you share them"),
    ("docs", "write docs/reference from the built hinterland binary"),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["tidy"] => tidy(),
        ["commits"] => report("commits", rules::check_commits(&tree::root()), "messages read"),
        ["docs"] => reference::write(&tree::root()),
        [] | ["help" | "--help" | "-h"] => {
            print!("{}", help());
            Ok(())
        }
        other => Err(format!("unknown command: {}\n{}", other.join(" "), help())),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn help() -> String {
    let mut text = String::from("usage: cargo xtask COMMAND\n\n");
    for (name, summary) in SUBCOMMANDS {
        text.push_str(&format!("  {name:<8} {summary}\n"));
    }
    text
}

fn tidy() -> Result<(), String> {
    let tree = Tree::load(&tree::root())?;
    let findings = rules::check_all(&tree)?;
    report("tidy", findings, &format!("{} files read", tree.files.len()))
}

/// Prints the findings in order; an error when there are any.
fn report(chore: &str, mut findings: Vec<Finding>, read: &str) -> Result<(), String> {
    findings.sort();
    findings.dedup();
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => {
            println!("{chore}: {read}, nothing to mend");
            Ok(())
        }
        1 => Err(format!("{chore}: 1 finding (hint: the line above says where)")),
        count => Err(format!("{chore}: {count} findings (hint: the lines above say where)")),
    }
}
