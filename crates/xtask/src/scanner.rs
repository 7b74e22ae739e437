//! A lexical scanner for Rust: tells code from comments, strings and character literals.
//!
//! It understands what a naive search trips over: nested block comments, raw strings with any number of
//! `#`, byte and C strings, raw identifiers, and lifetimes beside character literals.

use std::collections::BTreeMap;
use std::ops::Range;

/// A Rust file taken apart.
#[derive(Debug)]
pub struct Scanned {
    /// The source with every byte of a comment or literal turned into a space; newlines and length stay.
    pub code: String,
    /// The text of the comments on each line, counted from 1.
    pub comments: BTreeMap<usize, String>,
    /// Where the texts of string literals lie, between their quotes, as they are written.
    pub literals: Vec<Range<usize>>,
    line_starts: Vec<usize>,
}

impl Scanned {
    /// Takes a source text apart. Never fails: what does not end runs to the end of the text.
    pub fn of(text: &str) -> Self {
        let mut scanner = Scanner {
            bytes: text.as_bytes(),
            position: 0,
            line: 1,
            code: Vec::with_capacity(text.len()),
            comments: BTreeMap::new(),
            literals: Vec::new(),
        };
        scanner.run();
        let line_starts = std::iter::once(0)
            .chain(text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1))
            .collect();
        let code = String::from_utf8_lossy(&scanner.code).into_owned();
        Self { code, comments: scanner.comments, literals: scanner.literals, line_starts }
    }

    /// The line of a byte offset, counted from 1.
    pub fn line_of(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= offset)
    }

    /// The code on a line, without comments and literals.
    pub fn code_line(&self, line: usize) -> &str {
        self.code.lines().nth(line.saturating_sub(1)).unwrap_or("")
    }

    /// Every word of the code with its byte offset.
    pub fn words(&self) -> Vec<(usize, &str)> {
        let bytes = self.code.as_bytes();
        let mut words = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            if is_word_byte(bytes[at]) {
                let start = at;
                while at < bytes.len() && is_word_byte(bytes[at]) {
                    at += 1;
                }
                words.push((start, &self.code[start..at]));
            } else {
                at += 1;
            }
        }
        words
    }
}

/// Whether a byte can stand inside an identifier. Bytes of other scripts count, so that words stay whole.
pub fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

struct Scanner<'text> {
    bytes: &'text [u8],
    position: usize,
    line: usize,
    code: Vec<u8>,
    comments: BTreeMap<usize, String>,
    literals: Vec<Range<usize>>,
}

impl Scanner<'_> {
    fn run(&mut self) {
        while let Some(byte) = self.peek(0) {
            match (byte, self.peek(1)) {
                (b'/', Some(b'/')) => self.line_comment(),
                (b'/', Some(b'*')) => self.block_comment(),
                (b'"', _) => self.string(),
                (b'\'', _) => self.character_or_lifetime(),
                _ if is_word_byte(byte) => self.word(),
                _ => self.keep(),
            }
        }
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.bytes.get(self.position + ahead).copied()
    }

    /// Passes one byte of code.
    fn keep(&mut self) {
        if let Some(byte) = self.peek(0) {
            self.code.push(byte);
            self.line += usize::from(byte == b'\n');
            self.position += 1;
        }
    }

    /// Blanks up to `count` bytes.
    fn blank(&mut self, count: usize) {
        for _ in 0..count {
            let Some(byte) = self.peek(0) else { return };
            self.code.push(if byte == b'\n' { b'\n' } else { b' ' });
            self.line += usize::from(byte == b'\n');
            self.position += 1;
        }
    }

    fn note_comment(&mut self, from: usize) {
        let text = String::from_utf8_lossy(&self.bytes[from..self.position]).into_owned();
        let lines = text.split('\n').count();
        for (index, part) in text.split('\n').enumerate() {
            let entry = self.comments.entry(self.line + 1 + index - lines).or_default();
            entry.push_str(part);
        }
    }

    fn line_comment(&mut self) {
        let from = self.position;
        while self.peek(0).is_some_and(|byte| byte != b'\n') {
            self.blank(1);
        }
        self.note_comment(from);
    }

    fn block_comment(&mut self) {
        let from = self.position;
        let mut depth = 0usize;
        loop {
            match (self.peek(0), self.peek(1)) {
                (Some(b'/'), Some(b'*')) => {
                    depth += 1;
                    self.blank(2);
                }
                (Some(b'*'), Some(b'/')) => {
                    depth -= 1;
                    self.blank(2);
                }
                (Some(_), _) => self.blank(1),
                (None, _) => break,
            }
            if depth == 0 {
                break;
            }
        }
        self.note_comment(from);
    }

    fn string(&mut self) {
        self.blank(1);
        let from = self.position;
        while let Some(byte) = self.peek(0) {
            match byte {
                b'\\' => self.blank(2),
                b'"' => break,
                _ => self.blank(1),
            }
        }
        self.literals.push(from..self.position);
        self.blank(1);
    }

    fn raw_string(&mut self, hashes: usize) {
        self.blank(hashes + 1);
        let from = self.position;
        while let Some(byte) = self.peek(0) {
            let closes = byte == b'"' && (1..=hashes).all(|ahead| self.peek(ahead) == Some(b'#'));
            if closes {
                break;
            }
            self.blank(1);
        }
        self.literals.push(from..self.position);
        self.blank(hashes + 1);
    }

    /// `'x'`, `'\n'` and `'字'` are literals; `'a` in `&'a str` is a lifetime and stays code.
    fn character_or_lifetime(&mut self) {
        let Some(first) = self.peek(1) else { return self.keep() };
        if first == b'\\' {
            self.blank(3);
            while self.peek(0).is_some_and(|byte| byte != b'\'') {
                self.blank(1);
            }
            return self.blank(1);
        }
        let width = match first {
            0..=0x7f => 1,
            0x80..=0xdf => 2,
            0xe0..=0xef => 3,
            _ => 4,
        };
        if self.peek(1 + width) == Some(b'\'') {
            self.blank(width + 2);
        } else {
            self.keep();
        }
    }

    /// An identifier, a number, or the prefix of a raw string.
    fn word(&mut self) {
        let start = self.position;
        while self.peek(0).is_some_and(is_word_byte) {
            self.keep();
        }
        if matches!(&self.bytes[start..self.position], b"r" | b"br" | b"cr") {
            let hashes = (0..).take_while(|ahead| self.peek(*ahead) == Some(b'#')).count();
            if self.peek(hashes) == Some(b'"') {
                self.raw_string(hashes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        Scanned::of(text).code.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn line_comments_are_not_code_and_are_kept_by_line() {
        let scanned = Scanned::of("a\nb // fn {\nc");
        assert_eq!(scanned.code, "a\nb        \nc");
        assert_eq!(scanned.comments.get(&2).map(String::as_str), Some("// fn {"));
    }

    #[test]
    fn block_comments_nest_and_span_lines() {
        let scanned = Scanned::of("a /* { /* } */ x\n} */ b");
        assert_eq!(scanned.code.split_whitespace().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(scanned.comments.keys().copied().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(scanned.comments[&2], "} */");
    }

    #[test]
    fn quotes_inside_strings_do_not_end_them() {
        assert_eq!(code(r#"let a = "x \" { \\"; b"#), "let a = ; b");
    }

    #[test]
    fn raw_strings_end_only_at_their_own_hashes() {
        assert_eq!(code(r####"r##" "# { "## ; b"####), "r ; b");
        assert_eq!(code(r#"br"\" ; c"x" d"#), "br ; c d");
    }

    #[test]
    fn literals_are_found_between_their_quotes() {
        let text = r####"f("a \" b", b"c", r#"d " e"#, '"', "") // "no"
"open"####;
        let found = Scanned::of(text).literals;
        let texts: Vec<&str> = found.into_iter().map(|range| &text[range]).collect();
        assert_eq!(texts, [r#"a \" b"#, "c", r#"d " e"#, "", "open"]);
    }

    #[test]
    fn raw_identifiers_are_code() {
        assert_eq!(code("r#fn { }"), "r#fn { }");
    }

    #[test]
    fn lifetimes_are_code_and_characters_are_not() {
        assert_eq!(code("fn f<'a>(x: &'a str) { '{' }"), "fn f<'a>(x: &'a str) { }");
        assert_eq!(code(r"['\'', '\u{7b}', b'}', '字', '\\']"), "[ , , b , , ]");
    }

    #[test]
    fn comment_marks_inside_strings_are_text() {
        assert_eq!(code("\"// /*\" a"), "a");
    }

    #[test]
    fn what_never_ends_runs_to_the_end() {
        assert_eq!(code("a \"b"), "a");
        assert_eq!(code("a /* b"), "a");
        assert_eq!(code("a '"), "a '");
        assert_eq!(code("a r#\"b"), "a r");
    }

    #[test]
    fn lines_of_offsets_count_from_one() {
        let scanned = Scanned::of("a\nbc\n");
        assert_eq!([0, 1, 2, 4, 5].map(|offset| scanned.line_of(offset)), [1, 1, 2, 2, 3]);
    }
}
