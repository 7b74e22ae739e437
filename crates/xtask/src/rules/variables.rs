//! Environment variables: each that the code reads stands in docs/reference/variables.md, and no other does.

use crate::finding::Finding;
use crate::scanner::is_word_byte;
use crate::tree::{SourceFile, Tree};
use std::collections::BTreeMap;

const PAGE: &str = "docs/reference/variables.md";
const PREFIX: &str = concat!("HINTER", "LAND_");

/// Compares code and page, both ways.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut read: BTreeMap<&str, (&str, usize)> = BTreeMap::new();
    for file in tree.files.iter().filter(|file| is_code(file)) {
        for (line, name) in variables(&file.text) {
            read.entry(name).or_insert((&file.path, line));
        }
    }
    let page = tree.file(PAGE).map_or("", |file| file.text.as_str());
    let told: BTreeMap<&str, usize> = variables(page).into_iter().map(|(line, name)| (name, line)).collect();
    let untold = read.iter().filter(|(name, _)| !told.contains_key(**name));
    let mut findings: Vec<Finding> = untold
        .map(|(name, (path, line))| Finding::new(path, *line, format!("{name} does not stand in {PAGE}")))
        .collect();
    let unread = told.iter().filter(|(name, _)| !read.contains_key(**name));
    findings.extend(unread.map(|(name, line)| Finding::new(PAGE, *line, format!("nothing reads {name}"))));
    findings
}

/// Rust, C and Python sources and scripts, without this program's own.
fn is_code(file: &SourceFile) -> bool {
    let source = ["rs", "c", "py", "sh"].contains(&file.extension()) || file.text.starts_with("#!");
    source && file.crate_name() != Some("xtask")
}

/// Quoted or shell-style mentions of a variable, with their lines.
fn variables(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for (at, _) in line.match_indices(PREFIX) {
            let rest = &line[at..];
            let end = rest.bytes().position(|byte| !is_word_byte(byte)).unwrap_or(rest.len());
            let before = line[..at].chars().next_back().unwrap_or(' ');
            let quoted = matches!(before, '"' | '\'' | '`' | '$' | '{') || rest[end..].starts_with('=');
            if quoted && end > PREFIX.len() {
                found.push((index + 1, &rest[..end]));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(code: &str, page: &str) -> Vec<(String, usize)> {
        let file = |path: &str, text: &str| SourceFile { path: path.to_string(), text: text.to_string() };
        let files = vec![file("crates/os/src/a.rs", code), file(PAGE, page)];
        let tree = Tree { files, ..Tree::default() };
        check(&tree).into_iter().map(|finding| (finding.path, finding.line)).collect()
    }

    #[test]
    fn a_variable_that_no_page_tells_is_found_at_its_reader() {
        let code = format!("//! A.\nvar(\"{PREFIX}SPEED\")");
        assert_eq!(findings(&code, "# Variables\n"), [("crates/os/src/a.rs".to_string(), 2)]);
        assert!(findings(&code, &format!("| `{PREFIX}SPEED` |")).is_empty());
    }

    #[test]
    fn a_variable_that_nothing_reads_is_found_on_the_page() {
        assert_eq!(findings("//! A.", &format!("\n`{PREFIX}GONE`")), [(PAGE.to_string(), 2)]);
    }

    #[test]
    fn other_words_with_the_prefix_are_no_variables() {
        assert!(findings(&format!("#ifndef {PREFIX}H and \"{PREFIX}\""), "").is_empty());
    }
}
