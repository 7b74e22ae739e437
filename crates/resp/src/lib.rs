//! The protocol that Redis clients speak, without sockets, clock or store.
//!
//! | module | subject |
//! | --- | --- |
//! | [`request`], [`inline`] | requests out of bytes that come in pieces |
//! | [`reply`] | replies into a buffer that is sent in pieces |
//! | [`value`] | replies out of bytes, for clients |
//! | [`command`] | the commands: names, arity, keys |
//! | [`subcommand`] | their second words, where they have some |
//! | [`options`] | options of commands that set and expire |
//! | [`bits`], [`lcs`] | single bits of a value, and what two values have in common |
//! | [`glob`], [`number`], [`float`] | patterns, integers and numbers with a fraction as Redis understands them |
//!
//! The protocol is described at <https://redis.io/docs/latest/develop/reference/protocol-spec/>.
#![forbid(unsafe_code)]

mod big;
pub mod bits;
pub mod command;
pub mod float;
pub mod glob;
pub mod inline;
pub mod lcs;
pub mod number;
pub mod options;
pub mod reply;
pub mod request;
pub mod subcommand;
pub mod value;

pub use command::{Command, Spec};
pub use reply::{Replies, Version};
pub use request::{Arguments, Limits, Parsed, ProtocolError, RequestParser};
pub use value::Value;
