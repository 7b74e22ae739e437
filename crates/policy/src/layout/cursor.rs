//! A reader over the first bytes of an object that tells a short prefix from a broken object.

use super::{HEADER_BYTES_MAX, LayoutError, Stop};

/// Reads little-endian fields from a prefix of an object.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    prefix: &'a [u8],
    object_bytes: u64,
    at: u64,
}

/// The least that is asked for: one round trip costs more than these bytes.
const ASK_BYTES_MIN: u64 = 64 << 10;

impl<'a> Cursor<'a> {
    pub(super) fn new(prefix: &'a [u8], object_bytes: u64) -> Self {
        Self { prefix, object_bytes, at: 0 }
    }

    /// Bytes read so far.
    pub(super) fn position(&self) -> u64 {
        self.at
    }

    /// Size of the whole object.
    pub(super) fn object_bytes(&self) -> u64 {
        self.object_bytes
    }

    /// The next `count` bytes.
    pub(super) fn take(&mut self, what: &'static str, count: u64) -> Result<&'a [u8], Stop> {
        let object_bytes = self.object_bytes;
        let behind = |end| LayoutError::BehindEnd { what, end, object_bytes };
        let end = self.at.checked_add(count).ok_or(behind(u64::MAX))?;
        if end > object_bytes {
            return Err(behind(end).into());
        }
        if end > HEADER_BYTES_MAX {
            return Err(LayoutError::HeaderTooLong(end).into());
        }
        // Both ends are at most HEADER_BYTES_MAX: the casts lose nothing.
        let Some(bytes) = self.prefix.get(self.at as usize..end as usize) else {
            let ask = end.max(2 * self.prefix.len() as u64).max(ASK_BYTES_MIN);
            return Err(Stop::NeedMore(ask.min(object_bytes).min(HEADER_BYTES_MAX)));
        };
        self.at = end;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, Stop> {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(self.take(what, 4)?);
        Ok(u32::from_le_bytes(bytes))
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, Stop> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(self.take(what, 8)?);
        Ok(u64::from_le_bytes(bytes))
    }
}
