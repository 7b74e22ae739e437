//! Form of a file: it is text, opens with the sentence that says its one subject, and is named for that subject.

use crate::finding::Finding;
use crate::tree::{SourceFile, Tree};

/// Names of kinds of code: a module so named has no subject.
const SHAPELESS_NAMES: &[&str] = &["utils", "util", "helpers", "helper", "common", "manager", "misc"];

/// Finds what is no text, or too long for one: packages, programs and data that were fetched or made.
pub fn check_paths(tree: &Tree) -> Vec<Finding> {
    let others = tree.paths.iter().filter(|path| tree.is_of_git && tree.file(path).is_none());
    let message =
        "this is no text that somebody wrote (hint: have a script fetch or make it, and git ignore it)";
    others.map(|path| Finding::new(path, 1, message)).collect()
}

/// Checks the first sentence and the name of a source file.
pub fn check(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    if file.is_generated() {
        return findings;
    }
    if let Some(message) = first_sentence(file) {
        findings.push(Finding::new(&file.path, 1, message));
    }
    let is_code = ["rs", "py", "c", "h"].contains(&file.extension());
    let shapeless = file.path.split(['/', '.']).find(|part| SHAPELESS_NAMES.contains(part));
    if let Some(part) = shapeless.filter(|_| is_code) {
        let message =
            format!("`{part}` names a kind of code, not a subject (hint: name it for what it holds)");
        findings.push(Finding::new(&file.path, 1, message));
    }
    findings
}

fn first_sentence(file: &SourceFile) -> Option<String> {
    let body = file.text.strip_prefix("#!").and_then(|rest| rest.split_once('\n')).map(|(_, rest)| rest);
    let text = body.filter(|_| file.extension() != "rs").unwrap_or(&file.text);
    let (mark, opens) = match file.extension() {
        "rs" => ("//!", text.starts_with("//! ")),
        "py" | "pyi" => ("\"\"\"", text.trim_start().starts_with("\"\"\"") || text.trim().is_empty()),
        "c" | "h" => ("/*", text.starts_with("/*") || text.starts_with("//")),
        "sh" => ("#", text.starts_with('#')),
        _ => return None,
    };
    if !opens {
        return Some(format!("the file does not open with `{mark}` and the sentence that says its subject"));
    }
    if file.extension() != "rs" {
        return None;
    }
    let paragraph: Vec<&str> = text
        .lines()
        .take_while(|line| line.starts_with("//!") && line.trim_end() != "//!")
        .map(|line| line.trim_start_matches("//!").trim())
        .collect();
    let sentence = paragraph.join(" ");
    let ends = sentence.contains(". ") || sentence.ends_with(['.', ':', '!', '?', ')']);
    (!ends)
        .then(|| "the opening `//!` paragraph is not a sentence (hint: end it with a full stop)".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> usize {
        check(&SourceFile { path: path.to_string(), text: text.to_string() }).len()
    }

    #[test]
    fn a_rust_file_opens_with_a_sentence() {
        assert_eq!(findings("crates/a/src/lib.rs", "//! Says what it is.\nfn a() {}\n"), 0);
        assert_eq!(findings("crates/a/src/lib.rs", "//! Says what\n//! it is. And more\n"), 0);
        assert_eq!(findings("crates/a/src/lib.rs", "//! No sentence\n\nfn a() {}\n"), 1);
        assert_eq!(findings("crates/a/src/lib.rs", "use a;\n//! Too late.\n"), 1);
        assert_eq!(findings("crates/a/src/lib.rs", ""), 1);
    }

    #[test]
    fn python_and_c_open_with_their_own_marks() {
        assert_eq!(findings("tests/a.py", "#!/usr/bin/env python3\n\"\"\"Says it.\"\"\"\n"), 0);
        assert_eq!(findings("tests/a.py", "import os\n"), 1);
        assert_eq!(findings("tests/__init__.py", ""), 0);
        assert_eq!(findings("include/a.h", "#ifndef A\n"), 1);
        assert_eq!(findings("include/a.h", "/* The C face. */\n"), 0);
    }

    #[test]
    fn what_is_no_text_is_refused() {
        let text = SourceFile { path: "a.md".to_string(), text: "A.\n".to_string() };
        let paths = ["a.md", "b-1.0.whl"].map(str::to_string).into();
        let tree = Tree { files: vec![text], paths, is_of_git: true, ..Tree::default() };
        let found: Vec<String> = check_paths(&tree).into_iter().map(|finding| finding.path).collect();
        assert_eq!(found, ["b-1.0.whl"]);
    }

    #[test]
    fn generated_files_are_let_be() {
        assert_eq!(findings("include/a.h", "#ifndef A /* @generated */\n"), 0);
    }

    #[test]
    fn a_module_named_for_a_kind_of_code_is_refused() {
        assert_eq!(findings("crates/a/src/utils.rs", "//! A.\n"), 1);
        assert_eq!(findings("crates/a/src/common/x.rs", "//! A.\n"), 1);
        assert_eq!(findings("crates/a/src/utilisation.rs", "//! A.\n"), 0);
    }
}
