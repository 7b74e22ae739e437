//! Names that people give: objects (like paths), and racks and nodes (like host names).

use crate::limits::{NAME_BYTES_MAX, NAME_COMPONENT_BYTES_MAX};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Most bytes of the name of a rack or a node.
const LABEL_BYTES_MAX: usize = 64;

/// The name of an object: components joined by `/`, as a relative path is.
///
/// ```
/// use hinterland_types::ObjectName;
/// assert!(ObjectName::parse("models/smollm2.gguf").is_ok());
/// assert!(ObjectName::parse("../etc/passwd").is_err());
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Debug)]
#[serde(try_from = "String", into = "String")]
pub struct ObjectName(String);

/// The folder of names that puts have whose object gets another one: those of files that are written through a mount. Nobody lists it.
pub const DRAFTS_FOLDER: &str = ".hinterland-drafts/";

/// The name of a rack: letters, digits, `-`, `_` and `.`, at most 64 bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Debug)]
#[serde(try_from = "String", into = "String")]
pub struct RackName(String);

/// The name that people give a node: of the same characters as that of a rack. Two nodes may have the same one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Debug)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(String);

/// Why a name is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone)]
pub enum NameError {
    /// The name has no bytes.
    #[error("a name cannot be empty (hint: names are like relative paths, `models/a.gguf`)")]
    Empty,
    /// The name or a component is too long.
    #[error("{what} of {bytes} bytes is too long: {limit} is the most (hint: choose a shorter name)")]
    TooLong {
        /// What it is the name of, in words.
        what: &'static str,
        /// Bytes of what was given.
        bytes: usize,
        /// The limit that it passes.
        limit: usize,
    },
    /// A component is empty, `.` or `..`.
    #[error(
        "{name:?} has the component {component:?}, which no name may have (hint: names are like relative paths, `models/a.gguf`)"
    )]
    Component {
        /// The whole name, shortened.
        name: String,
        /// The component that is refused.
        component: String,
    },
    /// A byte that cannot stand in a name.
    #[error(
        "{name:?} has a character that no name may have (hint: use letters, digits, `-`, `_`, `.` and `/`)"
    )]
    Character {
        /// The whole name, shortened.
        name: String,
    },
    /// No name of a rack or of a node: empty, or with another character.
    #[error(
        "{name:?} cannot be {what} (hint: from 1 to {LABEL_BYTES_MAX} letters, digits, `-`, `_` and `.`)"
    )]
    Label {
        /// What it was to be the name of, in words.
        what: &'static str,
        /// The whole name, shortened.
        name: String,
    },
}

impl ObjectName {
    /// Checks and makes a name.
    ///
    /// # Errors
    /// [`NameError`] says what is wrong: empty, over 1024 bytes, a component that is empty, `.`, `..` or
    /// over 255 bytes, or a control character.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        check_length("a name", text, NAME_BYTES_MAX)?;
        if text.chars().any(char::is_control) {
            return Err(NameError::Character { name: shorten(text) });
        }
        for component in text.split('/') {
            if matches!(component, "" | "." | "..") {
                return Err(NameError::Component { name: shorten(text), component: component.to_owned() });
            }
            check_length("a name", component, NAME_COMPONENT_BYTES_MAX)?;
        }
        Ok(Self(text.to_owned()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<NodeName> for RackName {
    fn from(name: NodeName) -> Self {
        Self(name.0)
    }
}

/// The rules for names of racks and of nodes.
fn check_label(what: &'static str, text: &str) -> Result<(), NameError> {
    let is_good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if text.is_empty() || !text.bytes().all(is_good) {
        return Err(NameError::Label { what, name: shorten(text) });
    }
    check_length(what, text, LABEL_BYTES_MAX)
}

fn check_length(what: &'static str, text: &str, limit: usize) -> Result<(), NameError> {
    match text.len() {
        0 => Err(NameError::Empty),
        bytes if bytes > limit => Err(NameError::TooLong { what, bytes, limit }),
        _ => Ok(()),
    }
}

fn shorten(text: &str) -> String {
    text.chars().take(48).collect()
}

macro_rules! text_name {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl TryFrom<String> for $name {
            type Error = NameError;
            fn try_from(text: String) -> Result<Self, NameError> {
                Self::parse(&text)
            }
        }
        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }
        impl std::str::FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::parse(text)
            }
        }
    };
}
text_name!(ObjectName);

macro_rules! label {
    ($name:ident, $what:literal) => {
        impl $name {
            /// Checks and makes a name.
            ///
            /// # Errors
            /// [`NameError`]: empty, over 64 bytes, or a character outside letters, digits, `-`, `_`, `.`.
            pub fn parse(text: &str) -> Result<Self, NameError> {
                check_label($what, text)?;
                Ok(Self(text.to_owned()))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        text_name!($name);
    };
}
label!(RackName, "the name of a rack");
label!(NodeName, "the name of a node");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_name_is_refused() {
        assert_eq!(ObjectName::parse(""), Err(NameError::Empty));
    }

    #[test]
    fn racks_and_nodes_are_called_by_one_set_of_rules_and_refused_for_what_they_are() {
        let long = "a".repeat(65);
        for bad in ["", "a b", "a/b", "ümlaut", "a\0b"] {
            let (rack, node) = (RackName::parse(bad).unwrap_err(), NodeName::parse(bad).unwrap_err());
            assert_eq!(rack, NameError::Label { what: "the name of a rack", name: bad.to_owned() });
            assert_eq!(node, NameError::Label { what: "the name of a node", name: bad.to_owned() });
        }
        let refused = NodeName::parse("a b").unwrap_err().to_string();
        assert!(
            refused.starts_with("\"a b\" cannot be the name of a node (hint: from 1 to 64 "),
            "{refused}"
        );
        let refused = NodeName::parse(&long).unwrap_err();
        assert_eq!(refused, NameError::TooLong { what: "the name of a node", bytes: 65, limit: 64 });
        assert!(matches!(RackName::parse(&long), Err(NameError::TooLong { bytes: 65, .. })));
        for good in [&long[..64], "a.b-c_D7"] {
            assert_eq!(RackName::from(NodeName::parse(good).unwrap()), RackName::parse(good).unwrap());
        }
    }

    #[test]
    fn a_name_of_4_kib_is_refused_and_not_repeated_whole() {
        let long = "a".repeat(4096);
        assert_eq!(
            ObjectName::parse(&long),
            Err(NameError::TooLong { what: "a name", bytes: 4096, limit: 1024 })
        );
        assert!(ObjectName::parse(&"a".repeat(256)).is_err());
    }

    #[test]
    fn a_name_cannot_climb_out_of_the_mount() {
        for bad in ["..", "a/..", "../a", "a/../b", "/a", "a/", "a//b", "."] {
            assert!(matches!(ObjectName::parse(bad), Err(NameError::Component { .. })), "{bad}");
        }
    }

    #[test]
    fn control_characters_are_refused() {
        assert!(ObjectName::parse("a\0b").is_err());
        assert!(ObjectName::parse("a\nb").is_err());
    }

    #[test]
    fn ordinary_names_pass() {
        for good in ["m", "models/Qwen 3 (30B).gguf", "ümlaut", "a.b-c_d"] {
            assert_eq!(ObjectName::parse(good).unwrap().as_str(), good);
        }
    }
}
