//! The body of an Error frame: why the peer did not do what it was asked.

use std::fmt;

/// Longest text of an error; what is longer is cut at a character.
pub const ERROR_TEXT_BYTES_MAX: usize = 1024;

/// What kind of failure a peer reports. Codes from [`ErrorCode::APPLICATION`] on belong to the service.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ErrorCode(pub u32);

impl ErrorCode {
    /// No such handle in this session.
    pub const UNKNOWN_HANDLE: Self = Self(1);
    /// The capability does not allow this.
    pub const RIGHTS: Self = Self(2);
    /// The range lies outside the resource.
    pub const RANGE: Self = Self(3);
    /// The capability was revoked.
    pub const REVOKED: Self = Self(4);
    /// A limit of the peer is reached.
    pub const LIMIT: Self = Self(5);
    /// The request makes no sense.
    pub const MALFORMED: Self = Self(6);
    /// The peer failed; its log says more.
    pub const INTERNAL: Self = Self(7);
    /// The peer does not offer this operation.
    pub const UNSUPPORTED: Self = Self(8);
    /// The peer is going down.
    pub const STOPPING: Self = Self(9);
    /// First code that a service may define for itself.
    pub const APPLICATION: Self = Self(1024);
    /// The page lies on another node: ask your own node where, and go there. Nothing was done.
    pub const PAGE_MOVED: Self = Self(1025);
    /// The page cannot be used for the moment: ask again. Nothing was done.
    pub const PAGE_MOVING: Self = Self(1026);
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::UNKNOWN_HANDLE => "unknown handle",
            Self::RIGHTS => "not allowed",
            Self::RANGE => "out of range",
            Self::REVOKED => "revoked",
            Self::LIMIT => "limit reached",
            Self::MALFORMED => "malformed request",
            Self::INTERNAL => "internal error",
            Self::UNSUPPORTED => "not supported",
            Self::STOPPING => "stopping",
            Self(code) => return write!(f, "code {code}"),
        })
    }
}

impl fmt::Debug for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ErrorCode({self})")
    }
}

/// A failure that the peer reports in answer to one request; the connection stays good.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone)]
#[error("{text} ({code})")]
pub struct RemoteError {
    /// What kind of failure.
    pub code: ErrorCode,
    /// What failed, with what, and a hint; at most [`ERROR_TEXT_BYTES_MAX`] bytes on the wire.
    pub text: String,
}

impl RemoteError {
    /// Makes an error.
    pub fn new(code: ErrorCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// The body of the Error frame: the code, then the text.
    pub fn to_body(&self) -> Vec<u8> {
        let mut end = self.text.len().min(ERROR_TEXT_BYTES_MAX);
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        let mut body = Vec::with_capacity(4 + end);
        body.extend_from_slice(&self.code.0.to_le_bytes());
        body.extend_from_slice(&self.text.as_bytes()[..end]);
        body
    }

    /// Reads the body of an Error frame. Never fails: bytes that are no UTF-8 are replaced, and control
    /// characters too, because the text may reach a terminal.
    pub fn from_body(body: &[u8]) -> Self {
        let (code, text) = match body.split_first_chunk::<4>() {
            Some((code, text)) => (ErrorCode(u32::from_le_bytes(*code)), text),
            None => (ErrorCode::MALFORMED, body),
        };
        let text = &text[..text.len().min(ERROR_TEXT_BYTES_MAX)];
        Self { code, text: printable(text) }
    }
}

/// Text of a peer, safe to print.
pub(crate) fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
