//! What the nodes of the pool are called: people read errors and logs, and know nodes by the names that they gave them.
//!
//! The members are asked for seldom, by a thread that may wait. Until then, and of a node that has come since, its number is all there is.

use hinterland_directory::MemberInfo;
use hinterland_types::{NodeId, NodeName};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

/// How often the directory is asked for the members: few nodes come, and a list of a thousand is some tens of kilobytes.
pub const PAUSE: Duration = Duration::from_secs(30);

/// What the number of a node begins with as it is shown.
const PREFIX: &str = "node-";

/// The names of nodes, as far as they are known.
#[derive(Debug, Default)]
pub struct Roster {
    names: RwLock<BTreeMap<NodeId, NodeName>>,
    is_missed: AtomicBool,
}

impl Roster {
    /// The directory has listed its members. Who is none any more keeps the name: errors may still be about it.
    pub fn heard(&self, members: &[MemberInfo]) {
        let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
        names.extend(members.iter().filter_map(|member| Some((member.node, member.name.clone()?))));
    }

    /// A node by its name and its number, as tables show both, or by its number where no name is known.
    pub fn called(&self, node: NodeId) -> String {
        self.name(node).map_or_else(|| node.to_string(), |name| format!("{name} ({node})"))
    }

    fn name(&self, node: NodeId) -> Option<NodeName> {
        let name = self.names.read().unwrap_or_else(PoisonError::into_inner).get(&node).cloned();
        // Relaxed: it only brings the next question forward.
        self.is_missed.fetch_or(name.is_none(), Ordering::Relaxed);
        name
    }

    /// Whether a name was wanted since the last time that was not known.
    pub fn was_missed(&self) -> bool {
        // Relaxed: as above.
        self.is_missed.swap(false, Ordering::Relaxed)
    }

    /// A text for people with the names of the nodes whose numbers it has.
    pub fn named(&self, text: &str) -> String {
        let mut named = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(place) = rest.find(PREFIX) {
            let (before, found) = rest.split_at(place);
            named.push_str(before);
            let digits = found[PREFIX.len()..].bytes().take_while(u8::is_ascii_digit).count();
            let (number, behind) = found.split_at(PREFIX.len() + digits);
            let name = number_in(before, number, behind).and_then(|node| self.name(node));
            // It may have been named where the text comes from.
            let is_named = |name: &NodeName| named.ends_with(&format!("{name} (")) && behind.starts_with(')');
            match name.filter(|name| !is_named(name)) {
                Some(name) => named.push_str(&format!("{name} ({number})")),
                None => named.push_str(number),
            }
            rest = behind;
        }
        named + rest
    }
}

/// The node whose number a word of a text is. A part of a longer word, such as a path, is none.
fn number_in(before: &str, word: &str, behind: &str) -> Option<NodeId> {
    let joins = |c: &char| c.is_alphanumeric() || matches!(c, '-' | '_' | '/');
    let mut next = behind.chars();
    let first = next.next();
    let goes_on = match first {
        Some('.') => next.next().is_some_and(|c| c.is_alphanumeric()),
        first => first.as_ref().is_some_and(joins),
    };
    if goes_on || before.ends_with(|c| joins(&c) || c == '.') {
        return None;
    }
    let node = NodeId(word.strip_prefix(PREFIX)?.parse().ok()?);
    (node.to_string() == word).then_some(node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hinterland_directory::MemberState;
    use hinterland_types::RackName;

    fn member(node: u64, name: Option<&str>) -> MemberInfo {
        MemberInfo {
            node: NodeId(node),
            rack: RackName::parse("r").unwrap(),
            name: name.map(|name| NodeName::parse(name).unwrap()),
            address: "127.0.0.1:1".to_owned(),
            incarnation: 1,
            state: MemberState::Up,
            capacity_bytes: 0,
            reserved_bytes: 0,
            used_bytes: 0,
            object_count: 0,
            lease_left_ms: None,
        }
    }

    #[test]
    fn texts_get_the_names_of_the_nodes_whose_numbers_they_have_and_nothing_else() {
        let roster = Roster::default();
        let text = "the lease of node-7 ran out";
        assert_eq!(roster.named(text), text, "nobody is known");
        assert!(roster.was_missed() && !roster.was_missed());
        roster.heard(&[member(7, Some("first")), member(8, None), member(u64::MAX, Some("last"))]);
        roster.heard(&[member(8, None)]);
        for (text, named) in [
            (text, "the lease of first (node-7) ran out"),
            ("node-7", "first (node-7)"),
            ("on node-7, node-8: (node-7)", "on first (node-7), node-8: (first (node-7))"),
            ("of node-18446744073709551615. ü", "of last (node-18446744073709551615). ü"),
            ("node-7.", "first (node-7)."),
        ] {
            assert_eq!(roster.named(text), named);
            assert_eq!(roster.named(named), named, "what passes two nodes is named once");
        }
        for same in [
            "node-77 node- node-07 node-7a node-7-a node-7_b node-7.gguf",
            "a/node-7 node-7/a a-node-7 supernode-7 .node-7",
            "node-99999999999999999999999 node-",
            "",
        ] {
            assert_eq!(roster.named(same), same);
        }
        assert!(roster.was_missed(), "nodes 8 and 77");
    }
}
