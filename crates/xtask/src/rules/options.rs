//! Options that errors, hints and help texts name: each is one of `hinterland`, of the command that it stands behind, or of a program
//! that is named beside it.

use crate::finding::Finding;
use crate::scanner::{Scanned, is_word_byte};
use crate::tree::{SourceFile, Tree};
use std::collections::{BTreeMap, BTreeSet};

/// The generated page with every option; without it nothing is checked.
const PAGE: &str = "docs/reference/commands.md";

/// An option of another program, which may stand where that program is named.
struct Foreign {
    option: &'static str,
    /// Stands in the same text.
    program: &'static str,
}

/// Reasons are the programs: a text that sends people to one of them has to name its options.
const FOREIGN: &[Foreign] = &[
    // Every command has it, and the page does not repeat it.
    Foreign { option: "--help", program: "hinterland" },
    // How what a release lacks is built.
    Foreign { option: "--release", program: "cargo build" },
    Foreign { option: "--package", program: "cargo build" },
    Foreign { option: "--release", program: "python/build.sh" },
    // What makes benches possible in the source tree.
    Foreign { option: "--prepare", program: "./demo" },
    Foreign { option: "--peers", program: "bench/vllm/prepare.sh" },
    // How a seed of the simulator is run again.
    Foreign { option: "--nocapture", program: "HINTERLAND_SEED" },
    // How a PID namespace gets its own /proc.
    Foreign { option: "--fork", program: "unshare" },
    Foreign { option: "--pid", program: "unshare" },
    Foreign { option: "--mount-proc", program: "unshare" },
    // How a group for a socket is made.
    Foreign { option: "--system", program: "groupadd" },
    // What containers lack for a mount and for far memory.
    Foreign { option: "--cap-add", program: "container" },
    Foreign { option: "--device", program: "container" },
    Foreign { option: "--shm-size", program: "container" },
    Foreign { option: "--security-opt", program: "container" },
    // The kernel's swap devices.
    Foreign { option: "--show", program: "swapon" },
    // How memory of devices becomes a NUMA node, and which nodes there are.
    Foreign { option: "--mode", program: "daxctl" },
    Foreign { option: "--hardware", program: "numactl" },
    // The service that keeps a shared directory, and its limits.
    Foreign { option: "--endpoints", program: "etcdctl" },
    Foreign { option: "--max-txn-ops", program: "etcd" },
    Foreign { option: "--max-request-bytes", program: "etcd" },
    Foreign { option: "--auto-compaction-retention", program: "etcd" },
    // How programs for GPUs are compiled.
    Foreign { option: "--compress-mode", program: "nvcc" },
    // What `hinterland batch` writes for Slurm.
    Foreign { option: "--job-name", program: "#SBATCH" },
    Foreign { option: "--mem", program: "#SBATCH" },
    Foreign { option: "--time", program: "#SBATCH" },
];

/// Checks every text of several words in the sources of every crate, without tests. A literal of one word is an argument that is
/// handed to a program, not a text for people.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let Some(page) = tree.file(PAGE) else { return Vec::new() };
    let known = Known::of(&page.text);
    let sources = tree.with_extension("rs").filter(|file| file.is_product());
    sources.flat_map(|file| complaints(file, &known)).collect()
}

/// What the page says.
#[derive(Default)]
struct Known<'page> {
    /// The options of each command, by its heading; those of every command stand under a heading that names none.
    sections: BTreeMap<&'page str, BTreeSet<&'page str>>,
}

impl<'page> Known<'page> {
    /// Options open a line of a list: "- `--name <VALUE>`: what it does".
    fn of(page: &'page str) -> Self {
        let mut known = Self::default();
        let mut heading = "";
        for line in page.lines() {
            heading = line.strip_prefix("## ").unwrap_or(heading);
            let section = known.sections.entry(heading).or_default();
            let item = line.strip_prefix("- `").and_then(|item| options(item).next());
            section.extend(item.filter(|(at, _)| *at == 0).map(|(_, name)| name));
        }
        known
    }

    /// Whether `command` has the option; without a command, whether any has it.
    fn has(&self, command: Option<&str>, option: &str) -> bool {
        self.sections.iter().any(|(heading, options)| {
            let is_asked =
                command.is_none_or(|command| *heading == command || !heading.starts_with("hinterland "));
            is_asked && options.contains(option)
        })
    }

    /// The command that stands before `at` in its line of shell, such as "hinterland gpu ls".
    fn command_before(&self, text: &str, at: usize) -> Option<&'page str> {
        let begins = text[..at].rfind("hinterland ")?;
        let line = &text[begins..at];
        let ends = line.contains(['`', '(', ')', ',', ';', '|', '\n', ':'])
            || line.contains("\\n")
            || line.contains(" -- ");
        let named = |heading: &&&str| line.strip_prefix(**heading).is_some_and(|rest| rest.starts_with(' '));
        self.sections.keys().filter(named).max_by_key(|heading| heading.len()).copied().filter(|_| !ends)
    }
}

fn complaints(file: &SourceFile, known: &Known<'_>) -> Vec<Finding> {
    let scanned = Scanned::of(&file.text);
    let mut findings = Vec::new();
    for literal in scanned.literals.iter().filter(|literal| literal.start < file.tests_start()) {
        let text = &file.text[literal.clone()];
        if !text.contains(' ') {
            continue;
        }
        for (at, option) in options(text) {
            let is_foreign = FOREIGN.iter().any(|it| it.option == option && text.contains(it.program));
            let command = known.command_before(text, at);
            if !known.has(command, option) && !is_foreign {
                let message = format!(
                    "{} the option `{option}` (hint: {PAGE} has all; one of another program goes into crates/xtask/src/rules/options.rs)",
                    command.map_or("no command has".to_owned(), |command| format!("`{command}` lacks"))
                );
                findings.push(Finding::new(&file.path, scanned.line_of(literal.start + at), message));
            }
        }
    }
    findings
}

/// Every `--name` of a text, with where it begins.
fn options(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.match_indices("--").filter_map(|(at, dashes)| {
        let before = &text[..at];
        let begins = before.ends_with("\\n")
            || !before.bytes().next_back().is_some_and(|byte| is_word_byte(byte) || byte == b'-');
        let name = &text[at + dashes.len()..];
        let end = name
            .bytes()
            .position(|byte| !(byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'))
            .unwrap_or(name.len());
        let named = begins && name.starts_with(|first: char| first.is_ascii_lowercase());
        named.then(|| (at, text[at..at + dashes.len() + end].trim_end_matches('-')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFERENCE: &str = "## hinterland node\n\n- `--capacity <SIZE>`: Memory, as `--room` was\n\n\
        ## hinterland gpu\n\n## hinterland gpu ls\n\n- `--pools`: P\n\n## Everywhere\n\n- `--json`: J\n";

    fn lines(path: &str, code: &str) -> Vec<usize> {
        let file = |path: &str, text: &str| SourceFile { path: path.to_string(), text: text.to_string() };
        let files = vec![file(PAGE, REFERENCE), file(path, code)];
        let tree = Tree { files, ..Tree::default() };
        check(&tree).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_hint_with_an_option_that_no_command_has_is_found_at_its_line() {
        let code =
            "//! A.\n#[error(\"full (hint: give less with --memory)\")]\nA,\nlet b = r#\"a\nor --room\"#;\n";
        assert_eq!(lines("crates/node/src/a.rs", code), [2, 5]);
        assert_eq!(lines("crates/node/src/a.rs", "(\"give:\\n--memory SIZE\")"), [1]);
    }

    #[test]
    fn an_option_of_another_command_is_found_behind_the_wrong_one() {
        assert_eq!(lines("crates/node/src/a.rs", "f(\"do `hinterland gpu ls --capacity 2G`\")"), [1]);
        let right = "f(\"do `hinterland gpu ls --pools --json`, and give the node --capacity; hinterland up, then --pools\")";
        assert!(lines("crates/node/src/a.rs", right).is_empty());
    }

    #[test]
    fn what_follows_a_module_of_tests_that_is_only_named_is_read() {
        assert_eq!(lines("crates/node/src/a.rs", "#[cfg(test)]\nmod tests;\nf(\"a --memory b\");"), [3]);
    }

    #[test]
    fn options_of_commands_pass() {
        let code = "f(\"as --json says (hint: `hinterland node --capacity 2G`, or --capacity=2G)\");";
        assert!(lines("crates/node/src/a.rs", code).is_empty());
    }

    #[test]
    fn options_of_other_programs_pass_beside_their_program_only() {
        assert!(lines("crates/etcd/src/a.rs", "f(\"run `etcdctl --endpoints=... x`\")").is_empty());
        assert_eq!(lines("crates/etcd/src/a.rs", "f(\"give it --endpoints\")"), [1]);
    }

    #[test]
    fn arguments_comments_and_tests_are_no_texts() {
        let code = "//! See --memory here.\nrun(\"git\", [\"--memory\"]); // a --memory b\nlet a = \"a --- b a--b -- c\";\n\
            #[cfg(test)]\nmod tests {\n f(\"a --memory b\");\n}\n";
        assert!(lines("crates/node/src/a.rs", code).is_empty());
        assert!(lines("crates/node/tests/a.rs", "f(\"a --memory b\");").is_empty());
        assert!(lines("crates/node/src/a/tests.rs", "f(\"a --memory b\");").is_empty());
    }
}
