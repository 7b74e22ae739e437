//! Links of documents: what they point to in the tree exists.

use super::markdown::{heading_anchor, lines, link_targets};
use crate::finding::Finding;
use crate::tree::{SourceFile, Tree};

/// Checks the links of one Markdown file.
pub fn check(file: &SourceFile, tree: &Tree) -> Vec<Finding> {
    if file.extension() != "md" {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for line in lines(&file.text).iter().filter(|line| line.fence.is_none()) {
        for target in link_targets(line.text) {
            if let Some(message) = complaint(file, target, tree) {
                findings.push(Finding::new(&file.path, line.number, message));
            }
        }
    }
    findings
}

fn complaint(file: &SourceFile, target: &str, tree: &Tree) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').map_or((target, None), |(path, rest)| (path, Some(rest)));
    let Some(resolved) = resolve(&file.path, path) else {
        return Some(format!("the link {target} leaves the tree"));
    };
    let folder = format!("{resolved}/");
    let exists = tree.paths.contains(&resolved) || tree.paths.iter().any(|known| known.starts_with(&folder));
    if !exists && !resolved.is_empty() {
        return Some(format!("the link {target} points to nothing (hint: there is no {resolved})"));
    }
    let document = tree.file(&resolved).filter(|document| document.extension() == "md")?;
    let known = |wanted: &str| {
        let found = lines(&document.text);
        found.iter().any(|line| line.fence.is_none() && heading_anchor(line.text).as_deref() == Some(wanted))
    };
    anchor
        .filter(|wanted| !known(wanted))
        .map(|wanted| format!("{resolved} has no heading that links as #{wanted}"))
}

/// The path in the tree that a link means; nothing when it climbs above the root.
fn resolve(from: &str, link: &str) -> Option<String> {
    if link.is_empty() {
        return Some(from.to_string());
    }
    let mut parts: Vec<&str> = if link.starts_with('/') { Vec::new() } else { from.split('/').collect() };
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Tree {
        let files: Vec<SourceFile> = files
            .iter()
            .map(|(path, text)| SourceFile { path: path.to_string(), text: text.to_string() })
            .collect();
        let paths = files.iter().map(|file| file.path.clone()).collect();
        Tree { files, paths, ..Tree::default() }
    }

    fn messages(text: &str) -> Vec<String> {
        let tree = tree(&[("docs/a.md", text), ("docs/b.md", "# A title\n"), ("README.md", "")]);
        check(&tree.files[0], &tree).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn links_to_files_folders_and_the_web_pass() {
        assert!(messages("[b](b.md) [r](../README.md) [d](../docs) [w](https://x.invalid/y)").is_empty());
    }

    #[test]
    fn a_link_to_nothing_is_found() {
        assert_eq!(messages("[c](c.md)").len(), 1);
        assert_eq!(messages("[c](../../c.md)").len(), 1);
    }

    #[test]
    fn a_heading_that_is_linked_must_exist() {
        assert!(messages("# Here\n[b](b.md#a-title) [h](#here)").is_empty());
        assert_eq!(messages("[b](b.md#another) [h](#here)").len(), 2);
    }

    #[test]
    fn links_in_fenced_blocks_are_text() {
        assert!(messages("```\n[c](c.md)\n```").is_empty());
    }
}
