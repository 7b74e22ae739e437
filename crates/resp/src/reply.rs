//! Replies in a buffer that is sent in pieces, in the form of either version of the protocol.

use crate::number;

/// A buffer that has grown beyond this is given up when it is empty: one long value must not cost memory for ever. Values
/// of a block find the pages of the last one.
const KEPT_BYTES_MAX: usize = 8 << 20;

/// Versions of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Version {
    /// RESP2: maps are arrays, nothing is a bulk string of length -1.
    #[default]
    Two,
    /// RESP3.
    Three,
}

/// Replies that wait to be sent.
#[derive(Debug, Default)]
pub struct Replies {
    /// Behind `end` lie bytes without meaning, so that a value can be copied in without clearing its place first.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// How maps, sets and nothing are written.
    pub version: Version,
}

/// A place in the replies to go back to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark(usize);

impl Replies {
    /// None yet, in the form of a version.
    pub fn new(version: Version) -> Self {
        Self { version, ..Self::default() }
    }

    /// Bytes that wait.
    pub fn unsent(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// `count` of the bytes that wait were sent.
    pub fn sent(&mut self, count: usize) {
        self.start = self.end.min(self.start + count);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.bytes.len() > KEPT_BYTES_MAX {
                self.bytes = Vec::new();
            }
        }
    }

    /// Gives up its memory if nothing waits. To be called when nothing has come for a while.
    pub fn rest(&mut self) {
        if self.start == self.end {
            self.bytes = Vec::new();
        }
    }

    /// Bytes of memory that it takes.
    pub const fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// The place behind all replies so far. It is good until bytes are sent.
    pub const fn mark(&self) -> Mark {
        Mark(self.end)
    }

    /// Takes back all behind a mark.
    pub fn back_to(&mut self, mark: Mark) {
        self.end = mark.0.clamp(self.start, self.end);
    }

    /// Appends bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.space(bytes.len()).copy_from_slice(bytes);
    }

    /// Appends `count` bytes for the caller to write; what they are before is of no use.
    pub fn space(&mut self, count: usize) -> &mut [u8] {
        let start = self.end;
        self.end += count;
        if self.bytes.len() < self.end {
            let room = self.end.max(self.bytes.len() * 2).max(4096);
            self.bytes.resize(room, 0);
        }
        &mut self.bytes[start..self.end]
    }

    /// A status, such as `OK`. It must not have line ends.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// An error: a word in capitals, then words for people. Line ends in it become blanks.
    pub fn error(&mut self, text: &str) {
        let clean: Vec<u8> =
            text.bytes().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }).collect();
        self.line(b'-', &clean);
    }

    /// An integer.
    pub fn integer(&mut self, value: i64) {
        self.count(b':', value);
    }

    /// A string of any bytes.
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.bulk_space(bytes.len()).copy_from_slice(bytes);
    }

    /// A string of `count` bytes for the caller to write.
    pub fn bulk_space(&mut self, count: usize) -> &mut [u8] {
        // Lengths are those of slices: the cast loses nothing.
        self.count(b'$', count as i64);
        let all = self.space(count + 2);
        let (bytes, ending) = all.split_at_mut(count);
        ending.copy_from_slice(b"\r\n");
        bytes
    }

    /// Nothing.
    pub fn nil(&mut self) {
        match self.version {
            Version::Two => self.raw(b"$-1\r\n"),
            Version::Three => self.raw(b"_\r\n"),
        }
    }

    /// Nothing, where there would be an array.
    pub fn nil_array(&mut self) {
        match self.version {
            Version::Two => self.raw(b"*-1\r\n"),
            Version::Three => self.raw(b"_\r\n"),
        }
    }

    /// The head of an array; its elements follow.
    pub fn array(&mut self, count: usize) {
        self.count(b'*', count as i64);
    }

    /// The head of a map; its keys and values follow in turn.
    pub fn map(&mut self, pairs: usize) {
        match self.version {
            Version::Two => self.count(b'*', pairs as i64 * 2),
            Version::Three => self.count(b'%', pairs as i64),
        }
    }

    /// The head of a set; its elements follow.
    pub fn set(&mut self, count: usize) {
        self.count(if self.version == Version::Two { b'*' } else { b'~' }, count as i64);
    }

    /// A text for people; clients of RESP3 are told that it is one.
    pub fn text(&mut self, text: &str) {
        match self.version {
            Version::Two => self.bulk(text.as_bytes()),
            Version::Three => {
                self.count(b'=', text.len() as i64 + 4);
                self.raw(b"txt:");
                self.raw(text.as_bytes());
                self.raw(b"\r\n");
            }
        }
    }

    fn count(&mut self, marker: u8, value: i64) {
        self.line(marker, number::digits(value, &mut [0; 20]));
    }

    fn line(&mut self, marker: u8, bytes: &[u8]) {
        let space = self.space(bytes.len() + 3);
        space[0] = marker;
        space[1..=bytes.len()].copy_from_slice(bytes);
        space[bytes.len() + 1..].copy_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(version: Version) -> Vec<u8> {
        let mut replies = Replies::new(version);
        replies.simple("OK");
        replies.error("ERR a\r\nb");
        replies.integer(-7);
        replies.bulk(b"\r\n");
        replies.nil();
        replies.map(1);
        replies.set(2);
        replies.array(3);
        replies.text("é");
        replies.unsent().to_vec()
    }

    #[test]
    fn each_version_has_its_form() {
        assert_eq!(
            all(Version::Two).escape_ascii().to_string(),
            r"+OK\r\n-ERR a  b\r\n:-7\r\n$2\r\n\r\n\r\n$-1\r\n*2\r\n*2\r\n*3\r\n$2\r\n\xc3\xa9\r\n"
        );
        assert_eq!(
            all(Version::Three).escape_ascii().to_string(),
            r"+OK\r\n-ERR a  b\r\n:-7\r\n$2\r\n\r\n\r\n_\r\n%1\r\n~2\r\n*3\r\n=6\r\ntxt:\xc3\xa9\r\n"
        );
    }

    #[test]
    fn what_was_taken_back_or_sent_is_not_sent_again() {
        let mut replies = Replies::default();
        replies.simple("a");
        let mark = replies.mark();
        replies.bulk(&[1; 9000]);
        replies.back_to(mark);
        replies.integer(5);
        assert_eq!(replies.unsent(), b"+a\r\n:5\r\n");
        replies.sent(3);
        assert_eq!(replies.unsent(), b"\n:5\r\n");
        replies.sent(100);
        assert!(replies.unsent().is_empty());
        replies.bulk(b"\0");
        assert_eq!(replies.unsent(), b"$1\r\n\0\r\n");
    }

    #[test]
    fn a_long_value_does_not_keep_its_memory() {
        let mut replies = Replies::default();
        replies.bulk_space(9 << 20);
        assert!(replies.capacity() >= 9 << 20);
        replies.sent(usize::MAX >> 1);
        assert_eq!(replies.capacity(), 0);
        replies.bulk_space(1 << 20);
        replies.rest();
        assert_eq!(replies.unsent().len(), (1 << 20) + 12, "what waits is kept");
        replies.sent(usize::MAX >> 1);
        assert!(replies.capacity() >= 1 << 20);
        replies.rest();
        assert_eq!(replies.capacity(), 0);
    }
}
