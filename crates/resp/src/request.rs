//! Requests out of bytes that come in pieces: arrays of bulk strings, or a line of words.

use crate::inline;
use crate::number;
use std::ops::Range;

/// Longest line: of an inline request, or of a count. What Redis allows.
const LINE_BYTES_MAX: usize = 64 << 10;

/// What a client may send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Words of a request.
    pub arguments_max: usize,
    /// Bytes of one word.
    pub argument_bytes_max: usize,
    /// Bytes of a request.
    pub request_bytes_max: usize,
}

impl Limits {
    /// For clients that may use the store: words as long as Redis allows, and one of them in a request.
    pub const KNOWN: Self = Self {
        arguments_max: 1 << 20,
        argument_bytes_max: 512 << 20,
        request_bytes_max: (512 << 20) + (1 << 20),
    };
    /// For clients that have not said the password yet, as Redis limits them.
    pub const STRANGER: Self =
        Self { arguments_max: 10, argument_bytes_max: 16 << 10, request_bytes_max: 256 << 10 };
}

/// What came is no request; the connection cannot go on, because nobody knows where the next one starts.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone, Copy)]
pub enum ProtocolError {
    /// A line does not end.
    #[error("Protocol error: too big inline request")]
    LongLine,
    /// Quotes of an inline request do not close.
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
    /// A count of words that is none, or too large.
    #[error("Protocol error: invalid multibulk length")]
    Count,
    /// Too many words for a client that has not said the password.
    #[error("Protocol error: unauthenticated multibulk length")]
    StrangerCount,
    /// Something else stands where a word should start.
    #[error("Protocol error: expected '$', got '{}'", char::from(*.0).escape_default())]
    Marker(u8),
    /// A length of a word that is none, or too large.
    #[error("Protocol error: invalid bulk length")]
    Length,
    /// Too long a word for a client that has not said the password.
    #[error("Protocol error: unauthenticated bulk length")]
    StrangerLength,
    /// A line or a word does not end in CR LF.
    #[error("Protocol error: expected CR LF")]
    Ending,
    /// All words together are too long.
    #[error("Protocol error: too big request")]
    LongRequest,
}

/// How far a parser got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parsed {
    /// The request is not whole: it needs as many bytes as this at the least, counted from its start.
    More(usize),
    /// The request is whole and has this many bytes. It may have no words, and then it asks nothing.
    Request(usize),
}

/// A parser that keeps its place while a request comes in pieces.
#[derive(Debug, Default)]
pub struct RequestParser {
    /// Bytes of the request that are understood.
    at: usize,
    /// Words that are still to come; `None` before the first line is read.
    due: Option<usize>,
    /// Length of the word that comes next, if its length is known.
    length: Option<usize>,
    words: Vec<Range<usize>>,
    /// The words of an inline request.
    inline: Option<Vec<u8>>,
    done: bool,
}

impl RequestParser {
    /// Parses on. `bytes` begins where the request begins, and has all that has come of it so far. After a request the next
    /// call is about the next one.
    ///
    /// # Errors
    /// [`ProtocolError`] if this can be no request; then there is no next one.
    pub fn parse(&mut self, bytes: &[u8], limits: &Limits) -> Result<Parsed, ProtocolError> {
        if self.done {
            self.reset();
        }
        let due = match self.due {
            Some(due) => due,
            None => match bytes.first() {
                None => return Ok(Parsed::More(1)),
                Some(b'*') => match self.count(bytes, limits)? {
                    Some(due) => due,
                    None => return Ok(Parsed::More(bytes.len() + 1)),
                },
                Some(_) => return self.line_of_words(bytes, limits),
            },
        };
        for due in (0..due).rev() {
            let length = match self.length {
                Some(length) => length,
                None => match self.word_length(bytes, limits)? {
                    Some(length) => length,
                    None => return Ok(Parsed::More(bytes.len() + 1)),
                },
            };
            let end = self.at + length;
            if bytes.len() < end + 2 {
                return Ok(Parsed::More(end + 2));
            }
            if &bytes[end..end + 2] != b"\r\n" {
                return Err(ProtocolError::Ending);
            }
            self.words.push(self.at..end);
            self.at = end + 2;
            self.length = None;
            self.due = Some(due);
        }
        self.done = true;
        Ok(Parsed::Request(self.at))
    }

    /// The words of the request that the last call of [`parse`](Self::parse) found whole, in the same bytes.
    pub fn arguments<'bytes>(&'bytes self, bytes: &'bytes [u8]) -> Arguments<'bytes> {
        let is_inline = self.inline.is_some();
        let bytes = self.inline.as_deref().unwrap_or(bytes);
        Arguments { words: if self.done { &self.words } else { &[] }, bytes, is_inline }
    }

    /// Bytes of memory that it takes, beside those of the request: its words may be as many as these.
    pub fn capacity(&self) -> usize {
        let inline = self.inline.as_ref().map_or(0, Vec::capacity);
        self.words.capacity() * size_of::<Range<usize>>() + inline
    }

    /// Gives up its memory, unless a request has come in part. To be called when nothing has come for a while.
    pub fn rest(&mut self) {
        if self.done || self.at == 0 {
            *self = Self::default();
        }
    }

    fn reset(&mut self) {
        self.at = 0;
        self.due = None;
        self.length = None;
        self.words.clear();
        self.inline = None;
        self.done = false;
    }

    /// The count of words, once its line is whole.
    fn count(&mut self, bytes: &[u8], limits: &Limits) -> Result<Option<usize>, ProtocolError> {
        let Some(line) = line(bytes, 1)? else { return Ok(None) };
        let count = number::parse(&bytes[line.clone()]).ok_or(ProtocolError::Count)?;
        // A negative count asks nothing, as none.
        let count = usize::try_from(count.max(0)).map_err(|_| ProtocolError::Count)?;
        if count > Limits::KNOWN.arguments_max {
            return Err(ProtocolError::Count);
        }
        if count > limits.arguments_max {
            return Err(ProtocolError::StrangerCount);
        }
        self.at = line.end + 2;
        self.due = Some(count);
        Ok(Some(count))
    }

    /// The length of the next word, once its line is whole.
    fn word_length(&mut self, bytes: &[u8], limits: &Limits) -> Result<Option<usize>, ProtocolError> {
        match bytes.get(self.at) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(other) => return Err(ProtocolError::Marker(*other)),
        }
        let Some(line) = line(bytes, self.at + 1)? else { return Ok(None) };
        let length = number::parse(&bytes[line.clone()]).ok_or(ProtocolError::Length)?;
        let length = usize::try_from(length).map_err(|_| ProtocolError::Length)?;
        if length > Limits::KNOWN.argument_bytes_max {
            return Err(ProtocolError::Length);
        }
        if length > limits.argument_bytes_max {
            return Err(ProtocolError::StrangerLength);
        }
        if line.end + 2 + length > limits.request_bytes_max {
            return Err(ProtocolError::LongRequest);
        }
        self.at = line.end + 2;
        self.length = Some(length);
        Ok(Some(length))
    }

    fn line_of_words(&mut self, bytes: &[u8], limits: &Limits) -> Result<Parsed, ProtocolError> {
        let searched = &bytes[..bytes.len().min(LINE_BYTES_MAX)];
        let Some(end) = searched.iter().position(|byte| *byte == b'\n') else {
            if bytes.len() >= LINE_BYTES_MAX {
                return Err(ProtocolError::LongLine);
            }
            return Ok(Parsed::More(bytes.len() + 1));
        };
        let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
        let mut owned = Vec::with_capacity(line.len());
        inline::split(line, &mut owned, &mut self.words).ok_or(ProtocolError::Quotes)?;
        if self.words.len() > limits.arguments_max {
            return Err(ProtocolError::StrangerCount);
        }
        self.inline = Some(owned);
        self.done = true;
        Ok(Parsed::Request(end + 1))
    }
}

/// The words of a request.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<'bytes> {
    words: &'bytes [Range<usize>],
    bytes: &'bytes [u8],
    is_inline: bool,
}

impl<'bytes> Arguments<'bytes> {
    /// How many, the name of the command included.
    pub const fn len(&self) -> usize {
        self.words.len()
    }

    /// Whether the request asks nothing.
    pub const fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// A word; an empty one beyond the last.
    pub fn get(&self, index: usize) -> &'bytes [u8] {
        self.words.get(index).map_or(&[], |range| &self.bytes[range.clone()])
    }

    /// Where a word lies in the bytes of the request; `None` if it does not lie there as it is meant.
    pub fn place(&self, index: usize) -> Option<Range<usize>> {
        self.words.get(index).filter(|_| !self.is_inline).cloned()
    }

    /// The words from `first` on.
    pub fn from(&self, first: usize) -> impl ExactSizeIterator<Item = &'bytes [u8]> + Clone + use<'bytes> {
        let bytes = self.bytes;
        self.words.get(first..).unwrap_or_default().iter().map(move |range| &bytes[range.clone()])
    }
}

/// Appends a request to `into`.
pub fn encode(words: &[&[u8]], into: &mut Vec<u8>) {
    into.push(b'*');
    number::push(words.len() as i64, into);
    into.extend_from_slice(b"\r\n");
    for word in words {
        into.push(b'$');
        number::push(word.len() as i64, into);
        into.extend_from_slice(b"\r\n");
        into.extend_from_slice(word);
        into.extend_from_slice(b"\r\n");
    }
}

/// The range of a number's line from `start` to its CR, if the line is whole.
fn line(bytes: &[u8], start: usize) -> Result<Option<Range<usize>>, ProtocolError> {
    // An integer has 20 digits at most: what is longer is none, and need not be waited for.
    const DIGITS_MAX: usize = 32;
    let searched = &bytes[start.min(bytes.len())..bytes.len().min(start + DIGITS_MAX)];
    match searched.iter().position(|byte| *byte == b'\r') {
        Some(length) => match bytes.get(start + length + 1) {
            None => Ok(None),
            Some(b'\n') => Ok(Some(start..start + length)),
            Some(_) => Err(ProtocolError::Ending),
        },
        None if searched.len() == DIGITS_MAX => Err(ProtocolError::Length),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(bytes: &[u8]) -> Result<Vec<Vec<u8>>, ProtocolError> {
        let mut parser = RequestParser::default();
        match parser.parse(bytes, &Limits::KNOWN)? {
            Parsed::Request(length) => {
                assert_eq!(length, bytes.len());
                Ok(parser.arguments(bytes).from(0).map(<[u8]>::to_vec).collect())
            }
            Parsed::More(least) => panic!("{least} of {} bytes", bytes.len()),
        }
    }

    #[test]
    fn requests_have_words_of_any_bytes() {
        assert_eq!(words(b"*2\r\n$3\r\nGET\r\n$2\r\n\r\n\r\n").unwrap(), [&b"GET"[..], b"\r\n"]);
        assert_eq!(words(b"SET a \"b\\x00c\"\r\n").unwrap(), [&b"SET"[..], b"a", b"b\0c"]);
        for nothing in [&b"*0\r\n"[..], b"*-1\r\n", b"\r\n", b"   \n"] {
            assert!(words(nothing).unwrap().is_empty());
        }
    }

    #[test]
    fn what_is_no_request_is_refused_as_redis_refuses_it() {
        let wrong = [
            (&b"*x\r\n"[..], ProtocolError::Count),
            (b"*1048577\r\n", ProtocolError::Count),
            (b"*1\r\n%3\r\n", ProtocolError::Marker(b'%')),
            (b"*1\r\n$-1\r\n", ProtocolError::Length),
            (b"*1\r\n$536870913\r\n", ProtocolError::Length),
            (b"*1\r\n$03\r\nGET\r\n", ProtocolError::Length),
            (b"*1\r\n$99999999999999999999999999999999999", ProtocolError::Length),
            (b"*1\r\n$3\r\nGETxx", ProtocolError::Ending),
            (b"*1\rx", ProtocolError::Ending),
            (b"SET a \"b\r\n", ProtocolError::Quotes),
        ];
        for (bytes, error) in wrong {
            assert_eq!(words(bytes), Err(error), "{}", bytes.escape_ascii());
        }
        assert_eq!(words(&[b'x'; 65_536]), Err(ProtocolError::LongLine));
        let all = b"*3\r\n$3\r\nSET\r\n$536870912\r\n";
        assert_eq!(
            RequestParser::default().parse(all, &Limits::KNOWN),
            Ok(Parsed::More(all.len() + (512 << 20) + 2))
        );
    }

    #[test]
    fn words_take_memory_until_nothing_has_come_for_a_while() {
        let mut request = Vec::new();
        encode(&[&b"k"[..]; 1000], &mut request);
        let (part, mut parser) = (&request[..2000], RequestParser::default());
        assert!(matches!(parser.parse(part, &Limits::KNOWN), Ok(Parsed::More(_))));
        parser.rest();
        assert_eq!(parser.parse(&request, &Limits::KNOWN), Ok(Parsed::Request(request.len())));
        assert!(parser.capacity() >= 16_000 && parser.arguments(&request).len() == 1000);
        parser.rest();
        assert_eq!((parser.capacity(), parser.arguments(&request).len()), (0, 0));
        assert_eq!(parser.parse(&request, &Limits::KNOWN), Ok(Parsed::Request(request.len())));
    }

    #[test]
    fn a_stranger_may_send_little() {
        let parse = |bytes: &[u8]| RequestParser::default().parse(bytes, &Limits::STRANGER);
        assert_eq!(parse(b"*11\r\n"), Err(ProtocolError::StrangerCount));
        assert_eq!(parse(b"*2\r\n$16385\r\n"), Err(ProtocolError::StrangerLength));
        assert_eq!(parse(b"*2\r\n$16384\r\n"), Ok(Parsed::More(12 + 16384 + 2)));
        assert_eq!(parse(b"a b c d e f g h i j k\n"), Err(ProtocolError::StrangerCount));
    }
}
