//! The wrapper of a fat binary: the structure that a program hands to the runtime when it registers its code.

use crate::numbers::{u32_at, u64_at};
use thiserror::Error;

/// What every wrapper starts with.
pub const WRAPPER_MAGIC: u32 = 0x4662_43b1;

/// Why bytes are no wrapper.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum WrapperError {
    /// Fewer bytes than a wrapper has.
    #[error(
        "the wrapper of a fat binary has {} bytes, here are {have} (hint: pass all of it)",
        Wrapper::BYTES
    )]
    Short {
        /// How many bytes were given.
        have: usize,
    },
    /// Other first bytes.
    #[error(
        "a wrapper of a fat binary starts with {WRAPPER_MAGIC:#x}, not with {found:#x} (hint: is this the pointer that __cudaRegisterFatBinary got?)"
    )]
    Magic {
        /// The first four bytes.
        found: u32,
    },
    /// A version that nobody has seen.
    #[error(
        "version {found} of a fat binary's wrapper is unknown; 1 and 2 are known (hint: report the version of the compiler)"
    )]
    Version {
        /// The version in the wrapper.
        found: u32,
    },
    /// No address.
    #[error("the wrapper of a fat binary points to nothing (hint: the program was stripped of its GPU code)")]
    Null,
}

/// A wrapper: where the fat binary lies in the memory of the program that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrapper {
    /// 1, or 2 for code that was linked on the device.
    pub version: u32,
    /// The address of the container. Whoever has the memory follows it.
    pub data: u64,
}

impl Wrapper {
    /// Bytes of a wrapper: magic, version, address of the data, and a file name or an array that nobody needs at run time.
    pub const BYTES: usize = 24;

    /// Reads a wrapper.
    ///
    /// # Errors
    /// [`WrapperError`] when the bytes are none.
    pub fn parse(bytes: &[u8]) -> Result<Self, WrapperError> {
        let short = WrapperError::Short { have: bytes.len() };
        let bytes = bytes.get(..Self::BYTES).ok_or(short)?;
        let magic = u32_at(bytes, 0).ok_or(short)?;
        let version = u32_at(bytes, 4).ok_or(short)?;
        let data = u64_at(bytes, 8).ok_or(short)?;
        if magic != WRAPPER_MAGIC {
            return Err(WrapperError::Magic { found: magic });
        }
        if !(1..=2).contains(&version) {
            return Err(WrapperError::Version { found: version });
        }
        if data == 0 {
            return Err(WrapperError::Null);
        }
        Ok(Self { version, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapper(magic: u32, version: u32, data: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(magic.to_le_bytes());
        bytes.extend(version.to_le_bytes());
        bytes.extend(data.to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
        bytes
    }

    #[test]
    fn a_wrapper_says_where_the_container_is() {
        let parsed = Wrapper::parse(&wrapper(WRAPPER_MAGIC, 1, 0x7f00_1234_5678));
        assert_eq!(parsed, Ok(Wrapper { version: 1, data: 0x7f00_1234_5678 }));
        assert_eq!(Wrapper::parse(&wrapper(WRAPPER_MAGIC, 2, 8)).map(|found| found.version), Ok(2));
    }

    #[test]
    fn what_is_no_wrapper_is_refused_with_its_reason() {
        assert_eq!(Wrapper::parse(&[0; 23]), Err(WrapperError::Short { have: 23 }));
        assert_eq!(Wrapper::parse(&wrapper(7, 1, 8)), Err(WrapperError::Magic { found: 7 }));
        assert_eq!(Wrapper::parse(&wrapper(WRAPPER_MAGIC, 3, 8)), Err(WrapperError::Version { found: 3 }));
        assert_eq!(Wrapper::parse(&wrapper(WRAPPER_MAGIC, 1, 0)), Err(WrapperError::Null));
    }
}
