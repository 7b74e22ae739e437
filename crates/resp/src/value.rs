//! Replies out of bytes: the side of a client, for tests and benches.

use crate::number;
use crate::request::ProtocolError;

/// Replies within replies: those of any command have fewer.
const DEPTH_MAX: usize = 16;

/// A reply.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// A status.
    Simple(Vec<u8>),
    /// An error.
    Error(Vec<u8>),
    /// An integer.
    Integer(i64),
    /// A string.
    Bulk(Vec<u8>),
    /// Nothing, in any of its forms.
    Nil,
    /// An array.
    Array(Vec<Value>),
    /// A map: keys and values in turn.
    Map(Vec<(Value, Value)>),
    /// A set.
    Set(Vec<Value>),
    /// Text with its kind in three letters and a colon.
    Text(Vec<u8>),
}

impl Value {
    /// The first reply of some bytes and its length; `None` if it is not whole.
    ///
    /// # Errors
    /// [`ProtocolError`] if this can be no reply.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, ProtocolError> {
        let mut rest = Rest { bytes, at: 0 };
        match rest.value(DEPTH_MAX) {
            Ok(value) => Ok(Some((value, rest.at))),
            Err(Stop::More) => Ok(None),
            Err(Stop::Wrong(error)) => Err(error),
        }
    }

    /// Appends the reply in the form of RESP3.
    pub fn encode(&self, into: &mut Vec<u8>) {
        let head = |marker: u8, count: usize, into: &mut Vec<u8>| {
            into.push(marker);
            number::push(count as i64, into);
            into.extend_from_slice(b"\r\n");
        };
        match self {
            Self::Simple(bytes) | Self::Error(bytes) => {
                into.push(if matches!(self, Self::Error(_)) { b'-' } else { b'+' });
                into.extend_from_slice(bytes);
                into.extend_from_slice(b"\r\n");
            }
            Self::Integer(value) => {
                into.push(b':');
                number::push(*value, into);
                into.extend_from_slice(b"\r\n");
            }
            Self::Bulk(bytes) | Self::Text(bytes) => {
                head(if matches!(self, Self::Text(_)) { b'=' } else { b'$' }, bytes.len(), into);
                into.extend_from_slice(bytes);
                into.extend_from_slice(b"\r\n");
            }
            Self::Nil => into.extend_from_slice(b"_\r\n"),
            Self::Array(values) | Self::Set(values) => {
                head(if matches!(self, Self::Set(_)) { b'~' } else { b'*' }, values.len(), into);
                values.iter().for_each(|value| value.encode(into));
            }
            Self::Map(pairs) => {
                head(b'%', pairs.len(), into);
                for (key, value) in pairs {
                    key.encode(into);
                    value.encode(into);
                }
            }
        }
    }
}

enum Stop {
    More,
    Wrong(ProtocolError),
}

struct Rest<'bytes> {
    bytes: &'bytes [u8],
    at: usize,
}

impl Rest<'_> {
    fn value(&mut self, depth: usize) -> Result<Value, Stop> {
        let Some(depth) = depth.checked_sub(1) else { return Err(Stop::Wrong(ProtocolError::LongRequest)) };
        let marker = *self.bytes.get(self.at).ok_or(Stop::More)?;
        self.at += 1;
        Ok(match marker {
            b'+' => Value::Simple(self.line()?.to_vec()),
            b'-' => Value::Error(self.line()?.to_vec()),
            b':' => Value::Integer(self.number(ProtocolError::Length)?),
            b'_' => {
                self.line()?;
                Value::Nil
            }
            b'$' | b'=' => match self.length()? {
                None => Value::Nil,
                Some(length) => {
                    let bytes = self.bulk(length)?.to_vec();
                    if marker == b'=' { Value::Text(bytes) } else { Value::Bulk(bytes) }
                }
            },
            b'*' | b'~' | b'>' => match self.length()? {
                None => Value::Nil,
                Some(count) => {
                    let mut values = Vec::new();
                    for _ in 0..count {
                        values.push(self.value(depth)?);
                    }
                    if marker == b'~' { Value::Set(values) } else { Value::Array(values) }
                }
            },
            b'%' => {
                let mut pairs = Vec::new();
                for _ in 0..self.length()?.unwrap_or(0) {
                    pairs.push((self.value(depth)?, self.value(depth)?));
                }
                Value::Map(pairs)
            }
            other => return Err(Stop::Wrong(ProtocolError::Marker(other))),
        })
    }

    fn line(&mut self) -> Result<&[u8], Stop> {
        let rest = &self.bytes[self.at..];
        let length = rest.iter().position(|byte| *byte == b'\r').ok_or(Stop::More)?;
        match rest.get(length + 1) {
            None => Err(Stop::More),
            Some(b'\n') => {
                self.at += length + 2;
                Ok(&rest[..length])
            }
            Some(_) => Err(Stop::Wrong(ProtocolError::Ending)),
        }
    }

    fn number(&mut self, error: ProtocolError) -> Result<i64, Stop> {
        number::parse(self.line()?).ok_or(Stop::Wrong(error))
    }

    /// A length; `None` for -1.
    fn length(&mut self) -> Result<Option<usize>, Stop> {
        match self.number(ProtocolError::Length)? {
            -1 => Ok(None),
            length => usize::try_from(length).map(Some).map_err(|_| Stop::Wrong(ProtocolError::Length)),
        }
    }

    fn bulk(&mut self, length: usize) -> Result<&[u8], Stop> {
        let rest = &self.bytes[self.at..];
        let whole = length.checked_add(2).ok_or(Stop::Wrong(ProtocolError::Length))?;
        let all = rest.get(..whole).ok_or(Stop::More)?;
        if !all.ends_with(b"\r\n") {
            return Err(Stop::Wrong(ProtocolError::Ending));
        }
        self.at += whole;
        Ok(&all[..length])
    }
}
