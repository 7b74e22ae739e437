//! The header of a parcel: a run of bytes of frames as it passes over a network.
//!
//! `docs/internals/channel.md` has it byte by byte.

use crate::error::ChannelError;
use crate::lane::GRAIN;
use hinterland_proto::checksum::{crc32c, crc32c_append};

/// Bytes of a header.
pub(crate) const PARCEL_HEADER_BYTES: usize = 32;
/// Most bytes behind a header: the receiver checks one while the next is on its way, and a header costs nothing beside it.
pub(crate) const PARCEL_BYTES_MAX: usize = 256 << 10;
/// Longest delay that a peer can ask for.
pub(crate) const DELAY_NS_MAX: u32 = 1_000_000_000;

/// What stands before the bytes.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Parcel {
    pub length: u32,
    pub payload_crc: u32,
    pub sequence: u64,
    pub sent_ns: u64,
    pub delay_ns: u32,
    pub header_crc: u32,
}

const _: () = assert!(size_of::<Parcel>() == 32 && PARCEL_HEADER_BYTES == 32);

impl Parcel {
    /// The header of these bytes; it fits, as no caller cuts more than [`PARCEL_BYTES_MAX`].
    pub fn of(payload: &[u8], sequence: u64, sent_ns: u64, delay_ns: u32) -> Self {
        let length = payload.len() as u32;
        Self { length, payload_crc: crc32c(payload), sequence, sent_ns, delay_ns, header_crc: 0 }
    }

    pub fn to_bytes(self) -> [u8; PARCEL_HEADER_BYTES] {
        let mut bytes = [0; PARCEL_HEADER_BYTES];
        bytes[0..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.payload_crc.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sent_ns.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.delay_ns.to_le_bytes());
        let crc = crc32c(&bytes[..28]);
        bytes[28..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a header that should be the one with this number.
    ///
    /// # Errors
    /// [`ChannelError::Broken`]: a damaged header, a parcel out of its order, or a length that none has.
    pub fn parse(bytes: &[u8; PARCEL_HEADER_BYTES], sequence: u64) -> Result<Self, ChannelError> {
        let (words, _) = bytes.as_chunks::<4>();
        let small = |index: usize| u32::from_le_bytes(words[index]);
        let large = |index: usize| u64::from(small(index)) | u64::from(small(index + 1)) << 32;
        let parcel = Self {
            length: small(0),
            payload_crc: small(1),
            sequence: large(2),
            sent_ns: large(4),
            delay_ns: small(6),
            header_crc: small(7),
        };
        if parcel.header_crc != crc32c_append(0, &bytes[..28]) {
            return Err(broken("the header of a parcel was damaged on its way"));
        }
        if parcel.sequence != sequence {
            return Err(broken("a parcel came out of its order, or a second time"));
        }
        let length = parcel.length as usize;
        if length == 0 || length > PARCEL_BYTES_MAX || !length.is_multiple_of(GRAIN as usize) {
            return Err(broken("a parcel has a length that none has"));
        }
        Ok(parcel)
    }

    /// Compares the bytes with their checksum.
    ///
    /// # Errors
    /// [`ChannelError::Broken`].
    pub fn check(&self, payload: &[u8]) -> Result<(), ChannelError> {
        if crc32c(payload) == self.payload_crc {
            Ok(())
        } else {
            Err(broken("bytes of a parcel were damaged on their way"))
        }
    }
}

fn broken(reason: &str) -> ChannelError {
    ChannelError::Broken { reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_says_what_was_put_into_it() {
        let parcel = Parcel::of(b"sixteen bytes...", u64::MAX, 5, 6);
        let parsed = Parcel::parse(&parcel.to_bytes(), u64::MAX).unwrap();
        assert_eq!(Parcel { header_crc: 0, ..parsed }, parcel);
        parsed.check(b"sixteen bytes...").unwrap();
        assert!(parsed.check(b"sixteen bytes..!").is_err());
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_found() {
        let bytes = Parcel::of(b"8 bytes.", 7, 8, 9).to_bytes();
        assert!(Parcel::parse(&bytes, 8).is_err(), "another number");
        for bit in 0..PARCEL_HEADER_BYTES * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Parcel::parse(&damaged, 7).is_err(), "bit {bit}");
        }
        for length in [0, 12, PARCEL_BYTES_MAX + 8] {
            assert!(Parcel::parse(&Parcel::of(&vec![1; length], 7, 8, 9).to_bytes(), 7).is_err());
        }
    }
}
