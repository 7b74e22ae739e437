//! The second words of those commands that have some: their names, and how many words each takes.

use crate::{Arguments, Command, Spec};

/// Longest part of an unknown name that is shown.
const SHOWN_BYTES_MAX: usize = 128;

/// Why a request is refused for its second word: the text of the error reply.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone)]
pub enum SubcommandError {
    /// There is no such one.
    #[error("ERR unknown subcommand '{name}'. Try {command} HELP.")]
    Unknown {
        /// The command in capitals.
        command: String,
        /// What came in its place.
        name: String,
    },
    /// It takes another number of words.
    #[error("ERR wrong number of arguments for '{command}|{name}' command")]
    Arity {
        /// The command in small letters.
        command: &'static str,
        /// The subcommand in small letters.
        name: &'static str,
    },
}

/// Subcommands in small letters, with the words that each takes as [`Spec::arity`] counts them.
#[rustfmt::skip]
const SUBCOMMANDS: &[(Command, &[(&str, i64)])] = &[
    (Command::Client, &[
        ("getname", 2), ("help", 2), ("id", 2), ("info", 2), ("list", -2), ("no-evict", 3), ("no-touch", 3), ("reply", 3),
        ("setinfo", 4), ("setname", 3),
    ]),
    (Command::Command, &[("count", 2), ("docs", -2), ("help", 2), ("info", -2), ("list", -2)]),
    (Command::Config, &[("get", -3), ("help", 2), ("resetstat", 2), ("rewrite", 2), ("set", -4)]),
    (Command::Memory, &[("help", 2), ("usage", -3)]),
    (Command::Object, &[("encoding", 3), ("freq", 3), ("help", 2), ("idletime", 3), ("refcount", 3)]),
];

/// Whether the second word of a request is one that its command has, with as many words as it takes. Commands without subcommands
/// take any, and so does one that is asked by its name alone.
///
/// # Errors
/// [`SubcommandError`].
pub fn check(spec: &Spec, words: Arguments<'_>) -> Result<(), SubcommandError> {
    let Some((_, known)) = SUBCOMMANDS.iter().find(|(command, _)| *command == spec.command) else {
        return Ok(());
    };
    if words.len() < 2 {
        return Ok(());
    }
    let word = words.get(1);
    match known.iter().find(|(name, _)| word.eq_ignore_ascii_case(name.as_bytes())) {
        None => Err(SubcommandError::Unknown {
            command: spec.name.to_uppercase(),
            name: String::from_utf8_lossy(&word[..word.len().min(SHOWN_BYTES_MAX)]).into_owned(),
        }),
        Some((name, arity)) => {
            let count = words.len() as i64;
            let fits = if *arity < 0 { count >= -arity } else { count == *arity };
            if fits { Ok(()) } else { Err(SubcommandError::Arity { command: spec.name, name }) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, Parsed, RequestParser, command, request};

    fn checked(words: &[&str]) -> Result<(), String> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let mut bytes = Vec::new();
        request::encode(&words, &mut bytes);
        let mut parser = RequestParser::default();
        assert!(matches!(parser.parse(&bytes, &Limits::KNOWN), Ok(Parsed::Request(_))));
        let spec = command::find(words[0]).unwrap();
        check(spec, parser.arguments(&bytes)).map_err(|error| error.to_string())
    }

    #[test]
    fn subcommands_take_as_many_words_as_redis_says() {
        let arity = |name| Err(format!("ERR wrong number of arguments for '{name}' command"));
        assert_eq!(checked(&["get", "anything"]), Ok(()));
        assert_eq!(checked(&["COMMAND"]), Ok(()));
        assert_eq!(checked(&["client", "Reply", "off"]), Ok(()));
        assert_eq!(checked(&["client", "reply"]), arity("client|reply"));
        assert_eq!(checked(&["OBJECT", "FREQ"]), arity("object|freq"));
        assert_eq!(checked(&["config", "resetstat", "x"]), arity("config|resetstat"));
        assert_eq!(checked(&["memory", "usage", "k", "samples", "5"]), Ok(()));
    }

    #[test]
    fn what_is_unknown_is_said_as_redis_says_it() {
        let unknown = |name, command| Err(format!("ERR unknown subcommand '{name}'. Try {command} HELP."));
        assert_eq!(checked(&["client", "Kill"]), unknown("Kill", "CLIENT"));
        assert_eq!(checked(&["command", ""]), unknown("", "COMMAND"));
        assert_eq!(checked(&["object", &"x".repeat(500)]), unknown(&"x".repeat(128), "OBJECT"));
    }
}
