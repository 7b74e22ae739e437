//! Words that must not stand in code, documents or commit text.

use crate::finding::Finding;
use crate::scanner::is_word_byte;
use crate::tree::SourceFile;
use std::path::Path;
use std::process::Command;

/// How a word is looked for.
enum Look {
    /// As it is written, as a whole word.
    Exact,
    /// In any case, as a whole word.
    AnyCase,
    /// Anywhere in the line.
    Inside,
    /// As a path that begins here: not after a letter, a digit, `_` or `.`, and a name follows.
    PathStart,
}

/// Each word is written in two parts, so that this file passes its own check.
const WORDS: &[(&str, Look, &str)] = &[
    (concat!("TO", "DO"), Look::Exact, "finish it, or write an issue"),
    (concat!("FIX", "ME"), Look::Exact, "finish it, or write an issue"),
    (concat!("X", "XX"), Look::Exact, "finish it, or write an issue"),
    (concat!("todo", "!("), Look::Inside, "finish it"),
    (concat!("unimplemented", "!("), Look::Inside, "finish it"),
    (concat!("/ro", "ot/"), Look::PathStart, "a path of one machine: use a relative path or a variable"),
    (concat!("/wo", "rk/"), Look::PathStart, "a path of one machine: use a relative path or a variable"),
    (concat!("/fa", "rm/"), Look::PathStart, "a path of one machine: use a relative path or a variable"),
    (concat!("pythonhosted", ".org"), Look::Inside, "ask for packages by name only"),
    (concat!("pypi", ".org"), Look::Inside, "ask for packages by name only"),
    (concat!("registry.", "npmjs"), Look::Inside, "ask for packages by name only"),
    (concat!("static.", "crates.io"), Look::Inside, "ask for packages by name only"),
    (concat!("index.", "crates.io"), Look::Inside, "ask for packages by name only"),
    (concat!("assist", "ant"), Look::AnyCase, "say what the code does, not who wrote it"),
    (concat!("assist", "ants"), Look::AnyCase, "say what the code does, not who wrote it"),
    (concat!("ag", "ent"), Look::AnyCase, "name the process: node, client, program"),
    (concat!("ag", "ents"), Look::AnyCase, "name the process: node, client, program"),
    (concat!("chat", "bot"), Look::AnyCase, "say what the code does, not who wrote it"),
    (concat!("clau", "de"), Look::AnyCase, "say what the code does, not who wrote it"),
    (concat!("copi", "lot"), Look::AnyCase, "say what the code does, not who wrote it"),
];

/// Texts that others wrote.
const FOREIGN_FILES: &[&str] = &["LICENSE", "Cargo.lock"];

/// Commits looked at, from the tip: older ones are public and cannot be mended.
const COMMITS_CHECKED_MAX: usize = 30;
/// The first line of a commit fits every list.
const SUBJECT_CHARACTERS_MAX: usize = 65;

/// Checks a file line by line.
pub fn check(file: &SourceFile) -> Vec<Finding> {
    if FOREIGN_FILES.contains(&file.path.as_str()) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        findings.extend(complaints(line).map(|message| Finding::new(&file.path, index + 1, message)));
    }
    findings
}

/// Checks the text of the latest commits. No part of `check`: a tree is good or bad whatever its history says.
pub fn check_commits(root: &Path) -> Vec<Finding> {
    let count = COMMITS_CHECKED_MAX.to_string();
    let arguments = ["log", "--no-merges", "-z", "--format=%h%n%B", "-n", &count];
    let Ok(output) = Command::new("git").args(arguments).current_dir(root).output() else {
        return Vec::new();
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut commits = text.split('\0');
    let latest = commits.next().unwrap_or("");
    check_subject(latest)
        .into_iter()
        .chain(check_commit(latest))
        .chain(commits.flat_map(check_commit))
        .collect()
}

/// Checks the first line of the latest commit, which `git commit --amend` still mends.
fn check_subject(text: &str) -> Vec<Finding> {
    let Some((name, message)) = text.trim().split_once('\n') else { return Vec::new() };
    let path = format!("commit {name}");
    let subject = message.lines().next().unwrap_or("");
    let mut findings = Vec::new();
    if subject.chars().count() > SUBJECT_CHARACTERS_MAX {
        findings.push(Finding::new(&path, 1, format!("subject over {SUBJECT_CHARACTERS_MAX} characters")));
    }
    if !subject.split_once(": ").is_some_and(|(area, rest)| !area.contains(' ') && !rest.is_empty()) {
        findings.push(Finding::new(&path, 1, "subject is not `area: imperative`"));
    }
    findings
}

/// Checks the words of a commit, given as its short name on the first line and its message below.
fn check_commit(text: &str) -> Vec<Finding> {
    let Some((name, message)) = text.trim().split_once('\n') else { return Vec::new() };
    let path = format!("commit {name}");
    let mut findings = Vec::new();
    for (index, line) in message.lines().enumerate() {
        findings.extend(complaints(line).map(|message| Finding::new(&path, index + 1, message)));
    }
    findings
}

fn complaints(line: &str) -> impl Iterator<Item = String> {
    let lowered = line.to_lowercase();
    WORDS.iter().filter_map(move |(word, look, advice)| {
        let found = match look {
            Look::Exact => whole_word(line, word),
            Look::AnyCase => whole_word(&lowered, word),
            Look::Inside => line.contains(word),
            Look::PathStart => path_start(line, word),
        };
        found.then(|| format!("`{word}` may not stand here (hint: {advice})"))
    })
}

fn whole_word(line: &str, word: &str) -> bool {
    let bytes = line.as_bytes();
    line.match_indices(word).any(|(at, _)| {
        let before = at.checked_sub(1).map(|index| bytes[index]);
        let after = bytes.get(at + word.len()).copied();
        !before.is_some_and(is_word_byte) && !after.is_some_and(is_word_byte)
    })
}

fn path_start(line: &str, word: &str) -> bool {
    let bytes = line.as_bytes();
    line.match_indices(word).any(|(at, _)| {
        let before = at.checked_sub(1).map(|index| bytes[index]);
        let after = bytes.get(at + word.len()).copied();
        !before.is_some_and(|byte| is_word_byte(byte) || byte == b'.' || byte == b'/')
            && after.is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'.')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(line: &str) -> usize {
        complaints(line).count()
    }

    #[test]
    fn every_word_of_the_list_is_found() {
        for (word, look, _) in WORDS {
            let line = match look {
                Look::PathStart => format!("cd {word}main"),
                _ => format!("// {word} later"),
            };
            assert_eq!(count(&line), 1, "{line}");
        }
    }

    #[test]
    fn longer_words_pass() {
        assert_eq!(count("mktemp name.XXXXXX; reagent; copilots2; TODOS"), 0);
    }

    #[test]
    fn paths_inside_other_paths_pass() {
        assert_eq!(count(concat!("docs/wo", "rk/flow and the /wo", "rk/ alone")), 0);
        assert_eq!(count(concat!("(/ro", "ot/.cache)")), 1);
    }

    #[test]
    fn names_are_found_in_any_case() {
        assert_eq!(count(concat!("by an AG", "ENT")), 1);
    }

    #[test]
    fn a_commit_has_a_short_subject_with_an_area() {
        assert!(check_subject("abc\nring: add futex waiting\n\nWhy.").is_empty());
        assert_eq!(check_subject("abc\nAdd things").len(), 1);
        assert_eq!(check_subject(&format!("abc\nring: {}", "x".repeat(70))).len(), 1);
    }

    #[test]
    fn words_are_found_in_commit_text() {
        let bad = format!("abc\nring: x\n\n{} later", concat!("TO", "DO"));
        assert_eq!(check_commit(&bad).first().map(|finding| finding.line), Some(3));
    }
}
