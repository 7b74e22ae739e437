//! The words of the command line, kept in `tests/words`: help texts, and errors with their next step.
//!
//! `HINTERLAND_UPDATE_WORDS=1` writes the files anew.
#![allow(clippy::unwrap_used)]

use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;

const COMMANDS: [&str; 42] = [
    "",
    "up",
    "node",
    "put",
    "get",
    "ls",
    "stat",
    "rm",
    "verify",
    "mount",
    "run",
    "far",
    "far list",
    "switch",
    "batch",
    "status",
    "region",
    "region create",
    "region pull",
    "locks",
    "gpu",
    "gpu coverage",
    "gpu libraries",
    "gpu serve",
    "gpu ls",
    "gpu top",
    "swap",
    "swap serve",
    "swap attach",
    "swap detach",
    "top",
    "doctor",
    "bench",
    "simulate",
    "simulate scale",
    "simulate shards",
    "simulate balance",
    "trace",
    "advise",
    "completions",
    "generate man",
    "generate reference",
];

/// Command lines that fail, each in its own way and without a node.
const FAILING: [&[&str]; 35] = [
    &["ls"],
    &["ls", "--json"],
    &["ls", "--nothing", "--json"],
    &["get", "--rack", "b", "notes/today"],
    &["put", "tests/words.rs", "--copies", "9", "--json"],
    &["--socket", "--json", "ls"],
    &["stat", "models/small"],
    &["put", "no-such-file"],
    &["put", "/"],
    &["put", "-"],
    &["put", "tests/words.rs"],
    &["put", "tests/words.rs", "--name", "../up"],
    &["put", "tests/words.rs", "--copies", "9"],
    &["put", "tests/words.rs", "models/small"],
    &["get", ""],
    &["rm"],
    &["verify"],
    &["verify", "--all", "a"],
    &["mount", "no-such-folder"],
    &["run", "--budget", "2GB", "--", "true"],
    &["run", "--unit", "3M", "--", "true"],
    &["run"],
    &["top", "--interval", "0"],
    &["bench", "everything"],
    &["bench", "kv-gett", "--quick"],
    &["bench", "read", "--without", "huge-page"],
    &["gpu", "coverage", "no-such-file"],
    &["gpu", "coverage", "tests/words.rs"],
    &["gpu", "libraries"],
    &["metrics", "--listen", "here"],
    &["region", "create", "a", "1G", "--rack", "b", "--spread"],
    &["locks", "a", "b"],
    &["node", "--name", "a b"],
    &["node", "--name", "a", "--listen", "here"],
    &["node", "--name", "a", "--eviction", "random"],
];

fn hinterland(words: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_hinterland"))
        .args(words)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_clear()
        .env("HINTERLAND_SOCKET", "/nonexistent/node.sock")
        .env("HINTERLAND_PRELOAD", "/dev/null")
        .output()
        .unwrap()
}

fn compare(file: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/words").join(file);
    if std::env::var_os("HINTERLAND_UPDATE_WORDS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let first = kept.lines().zip(text.lines()).position(|(kept, shown)| kept != shown);
    assert!(
        kept == text,
        "{} differs from line {} on (hint: look at it, then HINTERLAND_UPDATE_WORDS=1 cargo test -p hinterland-cli --test words)",
        path.display(),
        first.unwrap_or(kept.lines().count().min(text.lines().count())) + 1
    );
}

#[test]
fn help_is_as_it_was() {
    let mut text = String::new();
    for command in COMMANDS {
        let words: Vec<&str> = command.split_whitespace().chain(["--help"]).collect();
        let output = hinterland(&words);
        assert!(output.status.success() && output.stderr.is_empty(), "{words:?}");
        let shown = String::from_utf8(output.stdout).unwrap();
        assert!(shown.lines().all(|line| line.chars().count() <= 110), "{words:?} is too wide");
        writeln!(text, "$ hinterland {}\n{shown}", words.join(" ")).unwrap();
    }
    compare("help.txt", &text);
}

#[test]
fn every_error_goes_to_standard_error_with_a_next_step() {
    let mut text = String::new();
    for words in FAILING {
        let output = hinterland(words);
        let code = output.status.code().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.stdout.is_empty() && code != 0, "{words:?}: {code}");
        let has_step = ["hint", "--help"].iter().any(|step| said.contains(step));
        assert!(has_step, "{words:?} has no next step:\n{said}");
        writeln!(text, "$ hinterland {}\n{said}status {code}\n", words.join(" ")).unwrap();
    }
    compare("errors.txt", &text);
}

#[test]
fn no_colours_leave_the_program_unless_a_terminal_shows_them() {
    for words in [&["ls"][..], &["--help"], &["doctor"]] {
        let output = hinterland(words);
        assert!(!output.stdout.contains(&0x1b) && !output.stderr.contains(&0x1b), "{words:?}");
    }
}

#[test]
fn completions_and_pages_are_made_for_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = String::from_utf8(hinterland(&["completions", shell]).stdout).unwrap();
        assert!(script.contains("doctor") && script.contains("budget"), "{shell}");
    }
    let folder = std::env::temp_dir().join(format!("hinterland-man-{}", std::process::id()));
    let output = hinterland(&["generate", "man", folder.to_str().unwrap(), "--json"]);
    let pages = std::fs::read_dir(&folder).unwrap().count();
    let put = std::fs::read_to_string(folder.join("hinterland-put.1")).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(output.status.success() && pages >= COMMANDS.len());
    assert!(put.contains("hinterland\\-put"), "{put}");
}

#[test]
fn doctor_speaks_json_and_tells_of_the_missing_node() {
    let output = hinterland(&["doctor", "--json"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\"broken\":true") && text.contains("no node answers on /nonexistent"), "{text}");
    assert_eq!(output.status.code(), Some(1));
}
