//! `unsafe` lives in few crates, and each block or implementation says why it holds.

use crate::finding::Finding;
use crate::scanner::Scanned;
use crate::tree::SourceFile;

/// The crates that may hold `unsafe`: those that own mappings, descriptors and foreign interfaces.
const UNSAFE_CRATES: &[&str] =
    &["os", "ring", "channel", "gpu", "fabric", "pool", "region", "preload", "cuda", "c", "python"];

/// How far above a block its reason may begin: a long SAFETY comment on a statement of several lines.
const REASON_LINES_MAX: usize = 24;

/// Checks every `unsafe` of a Rust file.
pub fn check(file: &SourceFile, scanned: &Scanned) -> Vec<Finding> {
    let mut findings = Vec::new();
    let allowed = file.crate_name().is_some_and(|name| UNSAFE_CRATES.contains(&name));
    for (offset, word) in scanned.words() {
        if word != "unsafe" {
            continue;
        }
        let line = scanned.line_of(offset);
        if !allowed {
            let message =
                format!("`unsafe` outside {} (hint: use their safe interface)", UNSAFE_CRATES.join(", "));
            findings.push(Finding::new(&file.path, line, message));
            continue;
        }
        let rest = scanned.code[offset + word.len()..].trim_start();
        let needs_reason = rest.starts_with('{') || rest.starts_with("impl");
        if needs_reason && !has_reason(scanned, line) {
            let message = "`unsafe` without a `// SAFETY:` comment above it that a stranger can check";
            findings.push(Finding::new(&file.path, line, message));
        }
    }
    findings
}

/// Looks for SAFETY on the line itself and above it, up to the end of the statement before.
fn has_reason(scanned: &Scanned, line: usize) -> bool {
    let reason_on =
        |number: usize| scanned.comments.get(&number).is_some_and(|comment| comment.contains("SAFETY:"));
    if reason_on(line) {
        return true;
    }
    for above in (line.saturating_sub(REASON_LINES_MAX).max(1)..line).rev() {
        let code = scanned.code_line(above).trim_end();
        if reason_on(above) {
            return true;
        }
        let ends_statement = code.ends_with([';', '}']);
        if ends_statement {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(crate_name: &str, text: &str) -> Vec<usize> {
        let file = SourceFile { path: format!("crates/{crate_name}/src/lib.rs"), text: text.to_string() };
        check(&file, &Scanned::of(text)).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn unsafe_in_a_logic_crate_is_found_even_with_a_reason() {
        assert_eq!(messages("proto", "fn a() {\n    // SAFETY: none.\n    unsafe { b() }\n}"), [3]);
        assert!(messages("proto", "#![forbid(unsafe_code)]\n// unsafe\nlet a = \"unsafe\";").is_empty());
    }

    #[test]
    fn a_block_needs_its_own_reason() {
        assert!(messages("os", "// SAFETY: the pointer is ours.\nunsafe { a() };").is_empty());
        assert_eq!(messages("os", "unsafe { a() };"), [1]);
        assert_eq!(messages("os", "// SAFETY: one.\nunsafe { a() };\nunsafe { b() };"), [3]);
        assert_eq!(messages("os", "unsafe impl Send for A {}"), [1]);
    }

    #[test]
    fn the_reason_may_stand_above_a_statement_of_several_lines() {
        assert!(messages("os", "// SAFETY: ours.\nlet a =\n    b(unsafe {\n c() });").is_empty());
        assert_eq!(messages("os", "// SAFETY: old.\nx();\nlet a =\n    unsafe { c() };"), [4]);
    }

    #[test]
    fn unsafe_functions_and_attributes_state_their_contract_elsewhere() {
        assert!(messages("c", "#[unsafe(no_mangle)]\npub unsafe extern \"C\" fn a() {}").is_empty());
    }
}
