//! Benchmarks that documents quote: each `hinterland bench NAME` is a name that the command line has.

use super::markdown::{inline_code, lines};
use crate::finding::Finding;
use crate::tree::Tree;

/// Checks every bench name in prose and in fenced blocks; says nothing while there is no bench source.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let sources: Vec<&str> = tree
        .with_extension("rs")
        .filter(|file| file.path.starts_with("crates/cli/src/bench"))
        .map(|file| file.text.as_str())
        .collect();
    if sources.is_empty() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for file in tree.with_extension("md") {
        for line in lines(&file.text) {
            let pieces = if line.fence.is_some() { vec![line.text] } else { inline_code(line.text) };
            for name in pieces.into_iter().flat_map(bench_names) {
                let literal = format!("\"{name}\"");
                if !sources.iter().any(|source| source.contains(&literal)) {
                    let message = format!("there is no `hinterland bench {name}`");
                    findings.push(Finding::new(&file.path, line.number, message));
                }
            }
        }
    }
    findings
}

/// The names after `hinterland bench`; a placeholder in capitals is none.
fn bench_names(text: &str) -> Vec<&str> {
    let after = text.split("hinterland bench ").skip(1);
    let names = after.filter_map(|rest| rest.split_whitespace().next());
    names.filter(|name| name.starts_with(|first: char| first.is_ascii_lowercase())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::SourceFile;

    #[test]
    fn a_bench_that_does_not_exist_is_found_in_prose_and_in_blocks() {
        let file = |path: &str, text: &str| SourceFile { path: path.to_string(), text: text.to_string() };
        let text = "`hinterland bench rpc --json` `hinterland bench NAME` `hinterland bench walk`\n```sh\n\
            hinterland bench fly\n```\n";
        let files = vec![file("README.md", text), file("crates/cli/src/bench/mod.rs", "(\"rpc\", rpc)")];
        let tree = Tree { files, ..Tree::default() };
        let lines: Vec<usize> = check(&tree).into_iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [1, 3]);
    }
}
