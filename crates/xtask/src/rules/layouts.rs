//! Byte tables of docs/internals: their rows join without a gap and agree with the code's own assertion.
//!
//! A table is announced by `<!-- layout: TYPE BYTES in PATH -->`, or `... in PATH after OFFSET -->` when it
//! continues another. Its columns are offset, size and field. If the source at PATH declares `struct TYPE`, it
//! must assert `size_of::<TYPE>() == BYTES` and declare the same fields in the same order. If it does not, its
//! own documentation must have the same rows: `| 8..16 | field |`, `| 7 | field |`, or `| 8 | 8 |` and more.

use crate::finding::Finding;
use crate::scanner::{Scanned, is_word_byte};
use crate::tree::{SourceFile, Tree};

const ANNOUNCEMENT: &str = "<!-- layout: ";

/// Checks every announced table of one document.
pub fn check(file: &SourceFile, tree: &Tree) -> Vec<Finding> {
    if file.extension() != "md" {
        return Vec::new();
    }
    let lines: Vec<&str> = file.text.lines().collect();
    let mut findings = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(rest) = line.strip_prefix(ANNOUNCEMENT) else { continue };
        let verdict = match Announced::parse(rest) {
            Some(announced) => announced.compare(&lines[index + 1..], tree),
            None => Err((0, "write `layout: TYPE BYTES in PATH` here".to_string())),
        };
        if let Err((below, message)) = verdict {
            findings.push(Finding::new(&file.path, index + 1 + below, message));
        }
    }
    findings
}

struct Announced<'text> {
    name: &'text str,
    bytes: usize,
    path: &'text str,
    after: usize,
}

impl<'text> Announced<'text> {
    fn parse(rest: &'text str) -> Option<Self> {
        let words: Vec<&str> = rest.trim_end().strip_suffix("-->")?.split_whitespace().collect();
        match words.as_slice() {
            [name, bytes, "in", path] => Some(Self { name, bytes: bytes.parse().ok()?, path, after: 0 }),
            [name, bytes, "in", path, "after", after] => {
                Some(Self { name, bytes: bytes.parse().ok()?, path, after: after.parse().ok()? })
            }
            _ => None,
        }
    }

    /// An error carries the lines below the announcement and the message.
    fn compare(&self, below: &[&str], tree: &Tree) -> Result<(), (usize, String)> {
        let source = tree.file(self.path).ok_or((0, format!("there is no {}", self.path)))?;
        let rows = rows(below);
        let mut expected = self.after;
        for (index, row) in &rows {
            if row.offset != expected {
                return Err((index + 1, format!("offset {} where {expected} comes next", row.offset)));
            }
            expected += row.size;
        }
        if expected != self.bytes {
            return Err((0, format!("the rows of {} end at byte {expected}, not {}", self.name, self.bytes)));
        }
        let scanned = Scanned::of(&source.text);
        match fields_of(&scanned.code, self.name) {
            Some(declared) => self.compare_with_structure(&source.text, &declared, &rows),
            None => self.compare_with_documentation(&source.text, &rows),
        }
    }

    fn compare_with_structure(
        &self,
        source: &str,
        declared: &[&str],
        rows: &[(usize, Row<'_>)],
    ) -> Result<(), (usize, String)> {
        if !asserts_size(source, self.name, self.bytes) {
            let message = format!(
                "{} does not assert size_of::<{}>() == {} (hint: one of the two has changed)",
                self.path, self.name, self.bytes
            );
            return Err((0, message));
        }
        if !rows.iter().map(|(_, row)| row.field).eq(declared.iter().copied()) {
            let message =
                format!("{} declares {} with the fields {}", self.path, self.name, declared.join(", "));
            return Err((0, message));
        }
        Ok(())
    }

    fn compare_with_documentation(
        &self,
        source: &str,
        rows: &[(usize, Row<'_>)],
    ) -> Result<(), (usize, String)> {
        for (index, row) in rows {
            let place = match row.size {
                1 => row.offset.to_string(),
                size => format!("{}..{}", row.offset, row.offset + size),
            };
            let named = source.contains(&format!("| {place} | {} |", row.field));
            let sized = source.contains(&format!("//! | {} | {} |", row.offset, row.size));
            if !named && !sized {
                let message =
                    format!("{} has no row `| {place} | {} |` in its documentation", self.path, row.field);
                return Err((index + 1, message));
            }
        }
        Ok(())
    }
}

struct Row<'text> {
    offset: usize,
    size: usize,
    field: &'text str,
}

/// The body rows of the table below an announcement, with their line index.
fn rows<'text>(below: &[&'text str]) -> Vec<(usize, Row<'text>)> {
    let table = below.iter().enumerate().skip_while(|(_, line)| line.trim().is_empty());
    let table = table.take_while(|(_, line)| line.starts_with('|'));
    table.filter_map(|(index, line)| Some((index, parse_row(line)?))).collect()
}

fn parse_row(line: &str) -> Option<Row<'_>> {
    let mut cells = line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`'));
    Some(Row { offset: cells.next()?.parse().ok()?, size: cells.next()?.parse().ok()?, field: cells.next()? })
}

/// Whether the source asserts the size, as a number or as a constant that it declares with that number.
fn asserts_size(source: &str, name: &str, bytes: usize) -> bool {
    let claim = format!("size_of::<{name}>() == ");
    source.split(&claim).skip(1).any(|rest| {
        let end = rest.bytes().position(|byte| !is_word_byte(byte)).unwrap_or(rest.len());
        let value = &rest[..end];
        value == bytes.to_string() || source.contains(&format!("{value}: usize = {bytes};"))
    })
}

/// The names of a structure's fields, in order; nothing when there is no such structure.
fn fields_of<'code>(code: &'code str, name: &str) -> Option<Vec<&'code str>> {
    let heads = [format!("struct {name} {{"), format!("struct {name}<")];
    let start = heads.iter().find_map(|head| code.find(head))?;
    let body = code[start..].split_once('{').map_or("", |(_, rest)| rest);
    let body = body.split_once("\n}").map_or(body, |(body, _)| body);
    let declared = body.lines().filter_map(|line| line.split_once(": ").map(|(left, _)| left.trim()));
    let named = declared.filter_map(|left| left.split_whitespace().last());
    Some(named.filter(|field| field.bytes().all(is_word_byte)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "//! | 8..16 | end | the end |\n/// Head.\npub struct Head {\n    /// Magic: four bytes.\n    pub magic: [u8; 4],\n    \
        pub(crate) length: U32,\n}\nconst _: () = assert!(size_of::<Head>() == HEAD_BYTES);\n\
        pub const HEAD_BYTES: usize = 8;\n";

    fn messages(table: &str) -> Vec<(usize, String)> {
        let file = |path: &str, text: &str| SourceFile { path: path.to_string(), text: text.to_string() };
        let files = vec![file("docs/internals/a.md", table), file("crates/proto/src/a.rs", SOURCE)];
        let tree = Tree { files, ..Tree::default() };
        check(&tree.files[0], &tree).into_iter().map(|finding| (finding.line, finding.message)).collect()
    }

    fn table(bytes: usize, rows: &str) -> String {
        format!(
            "<!-- layout: Head {bytes} in crates/proto/src/a.rs -->\n\n| offset | size | field |\n| --- | --- | --- |\n{rows}"
        )
    }

    #[test]
    fn a_table_that_agrees_with_the_code_passes() {
        assert_eq!(messages(&table(8, "| 0 | 4 | `magic` | x |\n| 4 | 4 | `length` | y |\n")), []);
    }

    #[test]
    fn a_gap_an_overlap_and_a_wrong_sum_are_found() {
        assert_eq!(messages(&table(8, "| 0 | 4 | `magic` |\n| 5 | 3 | `length` |\n"))[0].0, 6);
        assert!(messages(&table(8, "| 0 | 4 | `magic` |\n"))[0].1.contains("end at byte 4"));
    }

    #[test]
    fn a_size_or_field_that_the_code_does_not_have_is_found() {
        let longer = table(12, "| 0 | 4 | `magic` |\n| 4 | 8 | `length` |\n");
        assert!(messages(&longer)[0].1.contains("does not assert"));
        let renamed = table(8, "| 0 | 4 | `magic` |\n| 4 | 4 | `size` |\n");
        assert!(messages(&renamed)[0].1.contains("magic, length"));
    }

    #[test]
    fn a_table_may_continue_another() {
        let text = "<!-- layout: Tail 16 in crates/proto/src/a.rs after 8 -->\n| 8 | 8 | `end` |\n";
        assert_eq!(messages(text), []);
        assert_eq!(messages(&text.replace("after 8", "after 4")).len(), 1);
        assert!(messages(&text.replace("end", "start"))[0].1.contains("no row `| 8..16 | start |`"));
    }

    #[test]
    fn an_announcement_that_cannot_be_read_is_found() {
        assert_eq!(messages("<!-- layout: Head -->\n").len(), 1);
        assert!(messages("<!-- layout: Head 8 in crates/none.rs -->\n")[0].1.contains("there is no"));
    }
}
