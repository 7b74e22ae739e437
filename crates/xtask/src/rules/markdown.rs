//! Reading Markdown by line: which lines are prose, which stand in a fenced block, what a heading links as.

/// A line of a document.
#[derive(Debug, Clone, Copy)]
pub struct Line<'text> {
    /// Counted from 1.
    pub number: usize,
    /// Without its line end.
    pub text: &'text str,
    /// The language of the fenced block that the line stands in (it may be empty), or nothing for prose.
    pub fence: Option<&'text str>,
}

/// The lines of a document, without those that open and close fenced blocks.
pub fn lines(text: &str) -> Vec<Line<'_>> {
    let mut found = Vec::new();
    let mut fence: Option<&str> = None;
    for (index, line) in text.lines().enumerate() {
        match (line.trim_start().strip_prefix("```"), fence) {
            (Some(language), None) => fence = Some(language.trim()),
            (Some(_), Some(_)) => fence = None,
            (None, _) => found.push(Line { number: index + 1, text: line, fence }),
        }
    }
    found
}

/// Every `](target)` of a prose line.
pub fn link_targets(line: &str) -> Vec<&str> {
    let after = line.split("](").skip(1);
    after.filter_map(|rest| rest.split_once(')').map(|(target, _)| target.trim())).collect()
}

/// Every piece of a prose line that stands between back quotes.
pub fn inline_code(line: &str) -> Vec<&str> {
    let parts: Vec<&str> = line.split('`').collect();
    let closed = parts.len().saturating_sub(1);
    parts.into_iter().take(closed).skip(1).step_by(2).collect()
}

/// The name that a heading can be linked by: lower case, spaces as `-`, other punctuation dropped.
pub fn heading_anchor(line: &str) -> Option<String> {
    let title = line.strip_prefix('#')?.trim_start_matches('#').trim();
    let kept = title.chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
    Some(kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect::<String>().to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fenced_lines_know_their_language() {
        let found = lines("a\n```sh\nb\n```\nc");
        let seen: Vec<_> = found.iter().map(|line| (line.number, line.text, line.fence)).collect();
        assert_eq!(seen, [(1, "a", None), (3, "b", Some("sh")), (5, "c", None)]);
    }

    #[test]
    fn links_and_code_are_taken_from_a_line() {
        assert_eq!(link_targets("see [a](b.md) and [c](d#e)."), ["b.md", "d#e"]);
        assert_eq!(inline_code("run `a b` or `c` not `d"), ["a b", "c"]);
        assert!(inline_code("none").is_empty());
    }

    #[test]
    fn headings_become_anchors() {
        assert_eq!(
            heading_anchor("## What works, what does not").as_deref(),
            Some("what-works-what-does-not")
        );
        assert_eq!(heading_anchor("text"), None);
    }
}
