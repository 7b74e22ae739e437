//! `Relaxed` needs a reason: a comment on its line or shortly above, or the opening words of the file.

use crate::finding::Finding;
use crate::scanner::Scanned;
use crate::tree::SourceFile;

/// How far above an access its reason may stand: one reason may serve a few accesses in a row.
const REASON_LINES_MAX: usize = 6;

/// Checks every relaxed access outside tests.
pub fn check(file: &SourceFile, scanned: &Scanned) -> Vec<Finding> {
    if file.path.contains("/tests") || file.path.contains("/benches/") {
        return Vec::new();
    }
    let opening = scanned.comments.iter().take_while(|(_, text)| text.starts_with("//!"));
    if opening.into_iter().any(|(_, text)| text.contains("Relaxed")) {
        return Vec::new();
    }
    let tests_start = file.tests_start();
    let mut findings = Vec::new();
    for (offset, word) in scanned.words() {
        if word != "Relaxed" || offset > tests_start {
            continue;
        }
        let line = scanned.line_of(offset);
        let is_import = scanned.code_line(line).trim_start().starts_with("use ");
        if !is_import && !has_reason(scanned, line) {
            let message = "`Relaxed` without a reason (hint: say above it what makes any order right)";
            findings.push(Finding::new(&file.path, line, message));
        }
    }
    findings
}

fn has_reason(scanned: &Scanned, line: usize) -> bool {
    (line.saturating_sub(REASON_LINES_MAX)..=line).any(|above| scanned.comments.contains_key(&above))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let file = SourceFile { path: path.to_string(), text: text.to_string() };
        check(&file, &Scanned::of(text)).into_iter().map(|finding| finding.line).collect()
    }

    const BARE: &str = "//! A.\n\n\n\n\n\n\n\nlet a = b.load(Ordering::Relaxed);\n";

    #[test]
    fn a_relaxed_access_without_a_reason_is_found() {
        assert_eq!(lines("crates/os/src/a.rs", BARE), [9]);
    }

    #[test]
    fn a_reason_nearby_or_for_the_whole_file_serves() {
        let near = BARE.replace("let", "// Relaxed: a statistic.\nlet");
        assert!(lines("crates/os/src/a.rs", &near).is_empty());
        let whole = BARE.replace("//! A.", "//! A. Relaxed throughout: statistics.");
        assert!(lines("crates/os/src/a.rs", &whole).is_empty());
    }

    #[test]
    fn tests_need_none() {
        assert!(lines("crates/os/src/a/tests.rs", BARE).is_empty());
        assert!(
            lines("crates/os/src/a.rs", &format!("//! A.\n#[cfg(test)]\nmod tests {{\n{BARE}}}")).is_empty()
        );
    }
}
