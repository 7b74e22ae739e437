//! Commands that documents show: the scripts, chores and subcommands that they name exist.

use super::markdown::lines;
use crate::finding::Finding;
use crate::scanner::{Scanned, is_word_byte};
use crate::tree::Tree;
use std::collections::BTreeSet;

/// Languages of fenced blocks in which every line is a command.
const SHELL_LANGUAGES: &[&str] = &["", "sh", "bash"];

/// Checks every command in the fenced blocks of every document.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let known = Known {
        subcommands: subcommands_of_the_command_line(tree),
        chores: crate::SUBCOMMANDS.iter().map(|(name, _)| *name).collect(),
        paths: &tree.paths,
    };
    let mut findings = Vec::new();
    for file in tree.with_extension("md") {
        for line in lines(&file.text) {
            let Some(language) = line.fence else { continue };
            let text = line.text.trim();
            let command = match text.strip_prefix("$ ") {
                Some(command) => command,
                None if SHELL_LANGUAGES.contains(&language) => text,
                None => continue,
            };
            findings.extend(
                known.complaint(command).map(|message| Finding::new(&file.path, line.number, message)),
            );
        }
    }
    findings
}

/// What a document may name.
struct Known<'tree> {
    /// Subcommands of `hinterland`; nothing when the tree has no command line.
    subcommands: Option<BTreeSet<String>>,
    chores: Vec<&'tree str>,
    paths: &'tree BTreeSet<String>,
}

impl Known<'_> {
    fn complaint(&self, line: &str) -> Option<String> {
        line.split(['|', ';', '&']).find_map(|command| self.complaint_about_one(command))
    }

    fn complaint_about_one(&self, command: &str) -> Option<String> {
        let mut words = command.split_whitespace().skip_while(|word| {
            *word == "sudo" || word.split_once('=').is_some_and(|(name, _)| name.bytes().all(is_word_byte))
        });
        match words.next()? {
            "cargo" => {
                let chore = words.next().filter(|word| *word == "xtask").and_then(|_| words.next())?;
                let missing = !self.chores.contains(&chore);
                missing.then(|| format!("there is no `cargo xtask {chore}`"))
            }
            "hinterland" => self.complaint_about_subcommand(words),
            script => {
                let path = script.strip_prefix("./")?;
                let built = path.starts_with("target/");
                let missing = !built && !self.paths.contains(path);
                missing.then(|| format!("there is no `{script}` in the tree"))
            }
        }
    }

    fn complaint_about_subcommand<'word>(&self, words: impl Iterator<Item = &'word str>) -> Option<String> {
        let subcommands = self.subcommands.as_ref()?;
        let words: Vec<&str> = words.take_while(|word| *word != "--" && !word.starts_with('#')).collect();
        let plain: Vec<&&str> = words.iter().filter(|word| !word.starts_with('-')).collect();
        let first = plain.first()?;
        let known = subcommands.contains(**first);
        let after_option = words.first().is_some_and(|word| word.starts_with('-'))
            && plain.iter().any(|word| subcommands.contains(**word));
        (!known && !after_option).then(|| {
            let list = subcommands.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            format!("there is no `hinterland {first}` (hint: there are {list})")
        })
    }
}

/// Reads the subcommands from the enums that derive `Subcommand`; nothing without such a crate.
fn subcommands_of_the_command_line(tree: &Tree) -> Option<BTreeSet<String>> {
    let mut found = BTreeSet::from(["help".to_string()]);
    for file in tree.with_extension("rs").filter(|file| file.path.starts_with("crates/cli/src/")) {
        let scanned = Scanned::of(&file.text);
        for (offset, word) in scanned.words() {
            if word == "Subcommand" && scanned.code[offset..].trim_start_matches("Subcommand").contains(")]")
            {
                found.extend(variants_after(&scanned.code, &file.text, offset));
            }
        }
    }
    (found.len() > 1).then_some(found)
}

/// The variants of the enum that follows, in the form that the command line shows them.
fn variants_after(code: &str, text: &str, from: usize) -> Vec<String> {
    let mut found = Vec::new();
    let Some(open) = code[from..].find("enum ").and_then(|at| {
        let gap = &code[from..from + at];
        let open = code[from + at..].find('{')?;
        (!gap.contains(['{', ';'])).then_some(from + at + open)
    }) else {
        return found;
    };
    let bytes = code.as_bytes();
    let (mut depth, mut expecting, mut at) = (0usize, false, open);
    while at < bytes.len() {
        match bytes[at] {
            b'{' | b'(' | b'[' => {
                depth += 1;
                expecting |= depth == 1;
            }
            b'}' | b')' | b']' => depth -= 1,
            b',' if depth == 1 => expecting = true,
            byte if byte.is_ascii_uppercase() && depth == 1 && expecting => {
                let end = (at..bytes.len()).find(|end| !is_word_byte(bytes[*end])).unwrap_or(bytes.len());
                found.push(kebab_case(&code[at..end]));
                expecting = false;
                at = end;
                continue;
            }
            _ => {}
        }
        at += 1;
        if depth == 0 {
            break;
        }
    }
    let renamed = text[open..at.min(text.len())].split("name = \"").skip(1);
    found.extend(renamed.filter_map(|rest| rest.split_once('"').map(|(name, _)| name.to_string())));
    found
}

fn kebab_case(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.extend(letter.to_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::SourceFile;

    const CLI: &str = "#[derive(Debug, clap::Subcommand)]\nenum Command {\n    /// Runs, {quickly}\n    \
        #[command(alias = \"x\")]\n    Run(RunArguments),\n    KvGet { key: String },\n    \
        #[command(name = \"ls\")]\n    List,\n}\nenum Other { Not }\n";

    fn messages(text: &str) -> Vec<String> {
        let file = |path: &str, text: &str| SourceFile { path: path.to_string(), text: text.to_string() };
        let files = vec![file("README.md", text), file("crates/cli/src/main.rs", CLI), file("check", "")];
        let paths = files.iter().map(|file| file.path.clone()).collect();
        check(&Tree { files, paths, ..Tree::default() }).into_iter().map(|found| found.message).collect()
    }

    #[test]
    fn subcommands_are_read_from_the_source() {
        let code = Scanned::of(CLI).code;
        assert_eq!(variants_after(&code, CLI, 0), ["run", "kv-get", "list", "ls"]);
    }

    #[test]
    fn commands_that_exist_pass() {
        let text = "```sh\n./check --full && cargo xtask tidy\nA=1 hinterland --socket /tmp/s run -- ./program\n\
            hinterland kv-get x | jq .\ncargo build\n```\n";
        assert_eq!(messages(text), Vec::<String>::new());
    }

    #[test]
    fn commands_that_do_not_exist_are_found() {
        assert_eq!(messages("```sh\n./demo\n```").len(), 1);
        assert_eq!(messages("```console\n$ cargo xtask polish\noutput ./demo\n```").len(), 1);
        assert_eq!(messages("```\nhinterland fly\n```").len(), 1);
        assert_eq!(messages("```\nhinterland --socket /tmp/s fly\n```").len(), 1);
    }

    #[test]
    fn other_languages_and_prose_are_text() {
        assert!(messages("./demo\n```rust\n./demo\n```\n").is_empty());
    }
}
