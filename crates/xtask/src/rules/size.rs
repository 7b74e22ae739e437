//! Length: a file stops at 1000 lines, a function fits a screen, the map of the house stays a map.

use crate::finding::Finding;
use crate::scanner::{Scanned, is_word_byte};
use crate::tree::SourceFile;

/// The hard stop for a file that people write and read as code.
const FILE_LINES_MAX: usize = 1000;
/// A function fits a screen.
const FUNCTION_LINES_MAX: usize = 70;
/// ARCHITECTURE.md is read in one sitting.
const ARCHITECTURE_LINES_MAX: usize = 400;

const CODE_EXTENSIONS: &[&str] = &["rs", "py", "pyi", "c", "h", "sh", "js", "html", "css"];

/// Checks the length of a file.
pub fn check_file(file: &SourceFile) -> Option<Finding> {
    let is_code = CODE_EXTENSIONS.contains(&file.extension()) || file.text.starts_with("#!");
    let limit = match file.path.as_str() {
        "ARCHITECTURE.md" => ARCHITECTURE_LINES_MAX,
        _ if is_code && !file.is_generated() => FILE_LINES_MAX,
        _ => return None,
    };
    let lines = file.text.lines().count();
    (lines > limit).then(|| {
        let message = format!("{lines} lines, {limit} are the most (hint: split it by subject)");
        Finding::new(&file.path, limit + 1, message)
    })
}

/// Checks the length of every function of a Rust file, from `fn` to the closing brace.
pub fn check_functions(file: &SourceFile, scanned: &Scanned) -> Vec<Finding> {
    let mut findings = Vec::new();
    for function in functions(scanned) {
        let lines = function.last_line + 1 - function.first_line;
        if lines > FUNCTION_LINES_MAX {
            let message = format!(
                "fn {} has {lines} lines, {FUNCTION_LINES_MAX} are the most (hint: name its parts and call them)",
                function.name
            );
            findings.push(Finding::new(&file.path, function.first_line, message));
        }
    }
    findings
}

#[derive(Debug, PartialEq)]
struct Function {
    name: String,
    first_line: usize,
    last_line: usize,
}

/// Every function with a body, nested ones too, in the order of their `fn`.
fn functions(scanned: &Scanned) -> Vec<Function> {
    let code = scanned.code.as_bytes();
    let mut found = Vec::new();
    for (offset, word) in scanned.words() {
        if word != "fn" || code[..offset].ends_with(b"#") {
            continue;
        }
        let Some(name) = name_after(&scanned.code, offset + word.len()) else { continue };
        let Some(open) = body_start(code, offset) else { continue };
        let close = matching_brace(code, open);
        found.push(Function { name, first_line: scanned.line_of(offset), last_line: scanned.line_of(close) });
    }
    found
}

/// The name after `fn`; nothing for a pointer type such as `fn(u8)`. `$name` stands in macros.
fn name_after(code: &str, from: usize) -> Option<String> {
    let rest = code[from..].trim_start();
    let plain = rest.strip_prefix("r#").or_else(|| rest.strip_prefix('$')).unwrap_or(rest);
    let end = plain.bytes().position(|byte| !is_word_byte(byte)).unwrap_or(plain.len());
    (end > 0).then(|| plain[..end].to_string())
}

/// The `{` that opens the body; nothing when the declaration ends in `;` instead.
fn body_start(code: &[u8], from: usize) -> Option<usize> {
    let mut depth = 0usize;
    for at in from..code.len() {
        let after_arrow = at > 0 && matches!(code[at - 1], b'-' | b'=');
        match code[at] {
            b'(' | b'[' | b'<' => depth += 1,
            b'>' if after_arrow => {}
            b')' | b']' | b'>' => depth = depth.saturating_sub(1),
            b'{' if depth == 0 => return Some(at),
            b';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

fn matching_brace(code: &[u8], open: usize) -> usize {
    let mut depth = 0usize;
    for (at, byte) in code.iter().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 1 => return at,
            b'}' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.to_string(), text: text.to_string() }
    }

    fn spans(text: &str) -> Vec<(String, usize, usize)> {
        let found = functions(&Scanned::of(text));
        found.into_iter().map(|function| (function.name, function.first_line, function.last_line)).collect()
    }

    #[test]
    fn a_file_over_the_limit_is_found_and_one_at_the_limit_is_not() {
        assert!(check_file(&file("a.rs", &"x\n".repeat(1000))).is_none());
        assert_eq!(check_file(&file("a.rs", &"x\n".repeat(1001))).map(|finding| finding.line), Some(1001));
        assert!(check_file(&file("check", &format!("#!/bin/bash\n{}", "x\n".repeat(1000)))).is_some());
        assert!(check_file(&file("data.csv", &"x\n".repeat(5000))).is_none());
        assert!(check_file(&file("ARCHITECTURE.md", &"x\n".repeat(401))).is_some());
    }

    #[test]
    fn a_long_function_is_found_at_its_first_line() {
        let text = format!("mod m {{\n    pub fn long() {{\n{}    }}\n}}\n", "        x();\n".repeat(69));
        let findings = check_functions(&file("a.rs", &text), &Scanned::of(&text));
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].line, 2);
        assert!(findings[0].message.contains("fn long has 71 lines"));
    }

    #[test]
    fn braces_in_strings_characters_and_comments_do_not_count() {
        let text =
            "fn a() {\n let x = \"}\"; // }\n let y = '}'; /* } */\n let z = r#\"}\"#;\n}\nfn b() {}\n";
        assert_eq!(spans(text), [("a".into(), 1, 5), ("b".into(), 6, 6)]);
    }

    #[test]
    fn signatures_with_arrows_arrays_and_constant_generics_are_understood() {
        let text =
            "fn a<const N: usize>(x: [u8; { N + 1 }]) -> impl Fn(u8) -> u8\nwhere\n  T: B<{ 3 }>,\n{\n}\n";
        assert_eq!(spans(text), [("a".into(), 1, 5)]);
    }

    #[test]
    fn declarations_and_pointer_types_are_not_functions() {
        assert!(spans("trait T { fn a(&self); }\ntype F = fn(u8) -> u8;\nfn").is_empty());
    }

    #[test]
    fn nested_functions_are_found_too() {
        assert_eq!(spans("fn a() {\n  fn b() {\n  }\n}"), [("a".into(), 1, 4), ("b".into(), 2, 3)]);
    }
}
