//! The bytes of the NBD protocol: the fixed newstyle handshake and simple replies. Pure: bytes in, values out.
//!
//! The protocol is that of the NBD project's document `proto.md`. Numbers are big-endian.

/// What a server says first, in two words.
pub const GREETING: u64 = u64::from_be_bytes(*b"NBDMAGIC");
/// What goes before every option.
pub const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
/// What goes before every answer to an option.
pub const ANSWER_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// What goes before every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// What goes before every reply.
pub const REPLY_MAGIC: u32 = 0x6744_6698;
/// Bytes of a request without its payload.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of a simple reply without its payload.
pub const REPLY_BYTES: usize = 16;
/// Bytes before the payload of an option.
pub const OPTION_BYTES: usize = 16;
/// Most bytes of an option's payload: an export's name has at most 4096, and a list of questions follows.
pub const OPTION_PAYLOAD_BYTES_MAX: usize = 8192;
/// Most bytes that one request reads or writes: what a client may assume that asked for no other limit.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// Flags of both sides in the handshake: options are answered, and no zeros follow the old way in.
pub const FIXED_NEWSTYLE: u16 = 1;
/// See [`FIXED_NEWSTYLE`].
pub const NO_ZEROES: u16 = 2;

/// Transmission flags: there are any; flush, trim, zeros and quick zeros are known; several connections see one device.
pub const HAS_FLAGS: u16 = 1;
/// See [`HAS_FLAGS`].
pub const SENDS_FLUSH: u16 = 1 << 2;
/// See [`HAS_FLAGS`].
pub const SENDS_TRIM: u16 = 1 << 5;
/// See [`HAS_FLAGS`].
pub const SENDS_ZEROES: u16 = 1 << 6;
/// See [`HAS_FLAGS`].
pub const MULTIPLE: u16 = 1 << 8;
/// See [`HAS_FLAGS`].
pub const FAST_ZERO: u16 = 1 << 11;

/// Flags of requests: zeros that must not be a hole, and zeros that must be quick.
const NO_HOLE: u16 = 1 << 1;
/// See [`NO_HOLE`].
const MUST_BE_FAST: u16 = 1 << 4;

/// What a client asks for in the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The old way in: no answer but the export, or the end.
    ExportName(Vec<u8>),
    /// An end.
    Abort,
    /// Names of all exports.
    List,
    /// What an export is like; with `true`, begin.
    Info(bool, Vec<u8>, Vec<u16>),
    /// A known option with a payload that makes no sense.
    Broken,
    /// Something else.
    Unknown,
}

/// Kinds of options.
pub mod option {
    /// The old way in.
    pub const EXPORT_NAME: u32 = 1;
    /// An end.
    pub const ABORT: u32 = 2;
    /// All exports.
    pub const LIST: u32 = 3;
    /// What an export is like.
    pub const INFO: u32 = 6;
    /// The same, and begin.
    pub const GO: u32 = 7;
}

/// Kinds of answers.
pub mod answer {
    /// Done.
    pub const ACK: u32 = 1;
    /// An export's name.
    pub const SERVER: u32 = 2;
    /// Something about an export.
    pub const INFO: u32 = 3;
    /// That option is not known.
    pub const UNSUPPORTED: u32 = 1 << 31 | 1;
    /// That option makes no sense.
    pub const INVALID: u32 = 1 << 31 | 3;
    /// There is no such export.
    pub const NO_EXPORT: u32 = 1 << 31 | 6;
    /// Too many bytes.
    pub const TOO_BIG: u32 = 1 << 31 | 9;
}

/// Kinds of what is told about an export.
pub mod info {
    /// Size and flags.
    pub const EXPORT: u16 = 0;
    /// Words for people.
    pub const DESCRIPTION: u16 = 2;
    /// Least, best and most bytes of a request.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Errors of replies, as the protocol numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// Input or output failed.
    Io = 5,
    /// The request makes no sense.
    Invalid = 22,
    /// No room.
    NoSpace = 28,
    /// Too long.
    Overflow = 75,
}

/// What a request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Bytes.
    Read,
    /// Take the bytes that follow.
    Write,
    /// The end; no reply.
    Disconnect,
    /// All that was acknowledged shall be as safe as it can be.
    Flush,
    /// Forget bytes.
    Trim,
    /// Make bytes zero.
    Zero,
    /// Something else.
    Unknown,
}

/// A request without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is wanted.
    pub command: Command,
    /// Whether its flags make no sense with that.
    pub has_wrong_flags: bool,
    /// What the reply carries, too.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub bytes: u32,
}

impl Request {
    /// Reads the 28 bytes of a request; nothing if they do not begin as one.
    pub fn parse(bytes: &[u8; REQUEST_BYTES]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.u32()? != REQUEST_MAGIC {
            return None;
        }
        let flags = reader.u16()?;
        let (command, allowed) = match reader.u16()? {
            0 => (Command::Read, 0),
            1 => (Command::Write, 0),
            2 => (Command::Disconnect, 0),
            3 => (Command::Flush, 0),
            4 => (Command::Trim, 0),
            6 => (Command::Zero, NO_HOLE | MUST_BE_FAST),
            _ => (Command::Unknown, 0),
        };
        let (cookie, offset, bytes) = (reader.u64()?, reader.u64()?, reader.u32()?);
        Some(Self { command, has_wrong_flags: flags & !allowed != 0, cookie, offset, bytes })
    }

    /// The bytes of a request.
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let command: u16 = match self.command {
            Command::Read => 0,
            Command::Write => 1,
            Command::Disconnect => 2,
            Command::Flush => 3,
            Command::Trim => 4,
            Command::Zero => 6,
            Command::Unknown => u16::MAX,
        };
        let mut out = [0; REQUEST_BYTES];
        out[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        out[6..8].copy_from_slice(&command.to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out[16..24].copy_from_slice(&self.offset.to_be_bytes());
        out[24..].copy_from_slice(&self.bytes.to_be_bytes());
        out
    }
}

/// The head of a reply.
pub fn reply(cookie: u64, error: Option<Errno>) -> [u8; REPLY_BYTES] {
    let mut out = [0; REPLY_BYTES];
    out[..4].copy_from_slice(&REPLY_MAGIC.to_be_bytes());
    out[4..8].copy_from_slice(&error.map_or(0, |error| error as u32).to_be_bytes());
    out[8..].copy_from_slice(&cookie.to_be_bytes());
    out
}

/// Cookie and error number of a reply; nothing if the bytes do not begin as one.
pub fn parse_reply(bytes: &[u8; REPLY_BYTES]) -> Option<(u64, u32)> {
    let mut reader = Reader(bytes);
    if reader.u32()? != REPLY_MAGIC {
        return None;
    }
    let error = reader.u32()?;
    Some((reader.u64()?, error))
}

/// Kind and payload length of an option; nothing if the bytes do not begin as one.
pub fn parse_option(bytes: &[u8; OPTION_BYTES]) -> Option<(u32, usize)> {
    let mut reader = Reader(bytes);
    if reader.u64()? != OPTION_MAGIC {
        return None;
    }
    Some((reader.u32()?, reader.u32()? as usize))
}

/// The bytes of an option.
pub fn option(kind: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = OPTION_MAGIC.to_be_bytes().to_vec();
    out.extend(kind.to_be_bytes());
    out.extend((payload.len() as u32).to_be_bytes());
    out.extend(payload);
    out
}

/// The payload that asks for an export and things about it.
pub fn info_payload(name: &[u8], questions: &[u16]) -> Vec<u8> {
    let mut out = (name.len() as u32).to_be_bytes().to_vec();
    out.extend(name);
    out.extend((questions.len() as u16).to_be_bytes());
    out.extend(questions.iter().flat_map(|question| question.to_be_bytes()));
    out
}

impl Choice {
    /// Understands an option with its payload.
    pub fn parse(kind: u32, payload: &[u8]) -> Self {
        match kind {
            option::EXPORT_NAME => Self::ExportName(payload.to_vec()),
            option::ABORT => Self::Abort,
            option::LIST if payload.is_empty() => Self::List,
            option::LIST => Self::Broken,
            option::INFO | option::GO => parse_info(payload)
                .map_or(Self::Broken, |(name, questions)| Self::Info(kind == option::GO, name, questions)),
            _ => Self::Unknown,
        }
    }
}

fn parse_info(payload: &[u8]) -> Option<(Vec<u8>, Vec<u16>)> {
    let mut reader = Reader(payload);
    let name = reader.u32()? as usize;
    let name = reader.take(name)?.to_vec();
    let count = reader.u16()?;
    let questions = (0..count).map(|_| reader.u16()).collect::<Option<_>>()?;
    reader.0.is_empty().then_some((name, questions))
}

/// The bytes of an answer to an option.
pub fn answer(option: u32, kind: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = ANSWER_MAGIC.to_be_bytes().to_vec();
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend((payload.len() as u32).to_be_bytes());
    out.extend(payload);
    out
}

/// Bytes before the payload of an answer.
pub const ANSWER_BYTES: usize = 20;

/// Option, kind and payload length of an answer; nothing if the bytes do not begin as one.
pub fn parse_answer(bytes: &[u8; ANSWER_BYTES]) -> Option<(u32, u32, usize)> {
    let mut reader = Reader(bytes);
    if reader.u64()? != ANSWER_MAGIC {
        return None;
    }
    Some((reader.u32()?, reader.u32()?, reader.u32()? as usize))
}

/// Reads numbers off the front; nothing when the bytes end.
pub struct Reader<'bytes>(pub &'bytes [u8]);

impl<'bytes> Reader<'bytes> {
    /// The next bytes.
    pub fn take(&mut self, count: usize) -> Option<&'bytes [u8]> {
        let (front, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(front)
    }

    fn array<const COUNT: usize>(&mut self) -> Option<[u8; COUNT]> {
        self.take(COUNT)?.try_into().ok()
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_an_option_or_none(kind in 0u32..12, payload in proptest::collection::vec(any::<u8>(), 0..64)) {
            let encoded = option(kind, &payload);
            let head = encoded[..OPTION_BYTES].try_into().unwrap();
            prop_assert_eq!(parse_option(head), Some((kind, payload.len())));
            if let Choice::Info(_, name, questions) = Choice::parse(kind, &payload) {
                prop_assert_eq!(info_payload(&name, &questions), payload);
            }
        }

        #[test]
        fn any_bytes_are_a_request_or_none(bytes in any::<[u8; REQUEST_BYTES]>(), is_marked in any::<bool>()) {
            let mut bytes = bytes;
            if is_marked {
                bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
            }
            let request = Request::parse(&bytes);
            prop_assert_eq!(request.is_some(), bytes[..4] == REQUEST_MAGIC.to_be_bytes());
            if let Some(request) = request {
                prop_assert_eq!(&request.encode()[8..], &bytes[8..]);
                let again = Request::parse(&request.encode()).unwrap();
                prop_assert_eq!((again.command, again.offset), (request.command, request.offset));
            }
        }

        #[test]
        fn replies_and_answers_come_back(cookie in any::<u64>(), payload in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert_eq!(parse_reply(&reply(cookie, Some(Errno::NoSpace))), Some((cookie, 28)));
            let encoded = answer(7, answer::INFO, &payload);
            let head = encoded[..ANSWER_BYTES].try_into().unwrap();
            prop_assert_eq!(parse_answer(head), Some((7, 3, payload.len())));
        }
    }

    #[test]
    fn a_list_of_questions_that_lies_about_its_length_is_broken() {
        let good = info_payload(b"far", &[info::EXPORT, info::BLOCK_SIZE]);
        assert!(matches!(Choice::parse(option::GO, &good), Choice::Info(true, ..)));
        for cut in 0..good.len() {
            assert_eq!(Choice::parse(option::GO, &good[..cut]), Choice::Broken);
        }
        assert_eq!(Choice::parse(option::GO, &[good.as_slice(), &[0]].concat()), Choice::Broken);
        assert_eq!(Choice::parse(option::INFO, &[0xff; 10]), Choice::Broken);
        assert_eq!(Choice::parse(option::LIST, &[1]), Choice::Broken);
    }
}
