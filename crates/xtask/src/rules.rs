//! The house rules, one module each; every rule reads the tree and returns what it found.

mod atomics;
mod benches;
mod commands;
mod form;
mod layers;
mod layouts;
mod links;
mod markdown;
mod options;
mod safety;
mod size;
mod typing;
mod variables;
mod words;

pub use words::check_commits;

use crate::finding::Finding;
use crate::scanner::Scanned;
use crate::tree::Tree;

/// Runs every rule.
///
/// # Errors
/// A sentence when a rule cannot be checked at all, as when `cargo metadata` does not run.
pub fn check_all(tree: &Tree) -> Result<Vec<Finding>, String> {
    let mut findings = layers::check(tree)?;
    for file in tree.with_extension("rs") {
        let scanned = Scanned::of(&file.text);
        findings.extend(size::check_functions(file, &scanned));
        findings.extend(safety::check(file, &scanned));
        findings.extend(atomics::check(file, &scanned));
    }
    for file in &tree.files {
        findings.extend(size::check_file(file));
        findings.extend(form::check(file));
        findings.extend(words::check(file));
        findings.extend(links::check(file, tree));
        findings.extend(layouts::check(file, tree));
    }
    findings.extend(form::check_paths(tree));
    findings.extend(commands::check(tree));
    findings.extend(benches::check(tree));
    findings.extend(options::check(tree));
    findings.extend(typing::check(tree));
    findings.extend(variables::check(tree));
    Ok(findings)
}
