//! Global addresses: 46 bits, a 2 MiB page number and an offset in the page.

use crate::limits::{ADDRESS_BITS, PAGE_BYTES, PAGE_SHIFT};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where global address 0 lies in the virtual memory of every process.
///
/// The window is 64 TiB from 17 TiB: above the low shadow of the address sanitizer, below the place
/// where the kernel puts position-independent programs (85 TiB) and mappings without a hint (127 TiB).
pub const WINDOW_BASE: u64 = 0x1100_0000_0000;

/// Size of the symmetric window in bytes (64 TiB, all of the 46-bit address space).
pub const WINDOW_BYTES: u64 = 1 << ADDRESS_BITS;

/// An address in the pool: `page number << 21 | offset`, the same on every node.
///
/// The idea of one address that is valid everywhere is paper 000, section 4 ("symmetric unified
/// virtual address"); page number and offset are paper 004, section 5.1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default)]
#[serde(try_from = "u64")]
pub struct GlobalAddress(u64);

/// The number of a 2 MiB page, the unit of placement.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default, Debug)]
#[serde(try_from = "u32")]
pub struct PageNumber(u32);

/// A number that is no global address.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone, Copy)]
pub enum AddressError {
    /// The number needs more than 46 bits.
    #[error(
        "address {0:#x} has more than {ADDRESS_BITS} bits (hint: the last global address is 0x3fffffffffff)"
    )]
    TooLarge(u64),
    /// The pointer is not inside the symmetric window.
    #[error("pointer {0:#x} is outside the window that starts at {WINDOW_BASE:#x}")]
    OutsideWindow(u64),
}

impl GlobalAddress {
    /// Makes an address from its raw 46-bit value.
    ///
    /// # Errors
    /// [`AddressError::TooLarge`] if a bit above the 46th is set.
    pub const fn new(raw: u64) -> Result<Self, AddressError> {
        if raw >> ADDRESS_BITS == 0 { Ok(Self(raw)) } else { Err(AddressError::TooLarge(raw)) }
    }

    /// The raw 46-bit value.
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// The page that the address lies in.
    pub const fn page(self) -> PageNumber {
        // 46 - 21 = 25 bits: the cast loses nothing.
        PageNumber((self.0 >> PAGE_SHIFT) as u32)
    }

    /// Bytes from the start of the page, below 2 MiB.
    pub const fn offset(self) -> u64 {
        self.0 & (PAGE_BYTES - 1)
    }

    /// The address `bytes` further on, or `None` past the end of the address space.
    pub fn checked_add(self, bytes: u64) -> Option<Self> {
        self.0.checked_add(bytes).and_then(|raw| Self::new(raw).ok())
    }

    /// The pointer at which every process maps this address.
    pub const fn window_pointer(self) -> u64 {
        WINDOW_BASE + self.0
    }

    /// The address behind a pointer into the window.
    ///
    /// # Errors
    /// [`AddressError::OutsideWindow`] for any other pointer.
    pub const fn from_window_pointer(pointer: u64) -> Result<Self, AddressError> {
        if pointer >= WINDOW_BASE && pointer < WINDOW_BASE + WINDOW_BYTES {
            Ok(Self(pointer - WINDOW_BASE))
        } else {
            Err(AddressError::OutsideWindow(pointer))
        }
    }
}

impl PageNumber {
    /// How many pages the address space has (2^25).
    pub const COUNT: u32 = 1 << (ADDRESS_BITS - PAGE_SHIFT);

    /// Makes a page number, or `None` if it is 2^25 or more.
    pub const fn new(raw: u32) -> Option<Self> {
        if raw < Self::COUNT { Some(Self(raw)) } else { None }
    }

    /// The raw number, below 2^25.
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// The address of the page's first byte.
    pub const fn address(self) -> GlobalAddress {
        GlobalAddress((self.0 as u64) << PAGE_SHIFT)
    }
}

impl TryFrom<u64> for GlobalAddress {
    type Error = AddressError;
    fn try_from(raw: u64) -> Result<Self, AddressError> {
        Self::new(raw)
    }
}

impl TryFrom<u32> for PageNumber {
    type Error = AddressError;
    fn try_from(raw: u32) -> Result<Self, AddressError> {
        Self::new(raw).ok_or(AddressError::TooLarge(u64::from(raw) << PAGE_SHIFT))
    }
}

impl fmt::Display for GlobalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#014x}", self.0)
    }
}

impl fmt::Debug for GlobalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GlobalAddress({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn page_and_offset_rebuild_the_address(raw in 0u64..1 << 46) {
            let address = GlobalAddress::new(raw).unwrap();
            prop_assert_eq!(address.page().address().checked_add(address.offset()), Some(address));
        }

        #[test]
        fn a_window_pointer_leads_back_to_its_address(raw in 0u64..1 << 46) {
            let address = GlobalAddress::new(raw).unwrap();
            prop_assert_eq!(GlobalAddress::from_window_pointer(address.window_pointer()), Ok(address));
        }

        #[test]
        fn more_than_46_bits_are_refused(raw in 1u64 << 46..) {
            prop_assert_eq!(GlobalAddress::new(raw), Err(AddressError::TooLarge(raw)));
        }
    }

    #[test]
    fn the_window_keeps_clear_of_programs_and_stacks() {
        const { assert!(WINDOW_BASE + WINDOW_BYTES <= 0x5555_0000_0000) };
        const { assert!(WINDOW_BASE.is_multiple_of(PAGE_BYTES)) };
    }

    #[test]
    fn the_end_of_the_space_has_no_next_address() {
        let last = GlobalAddress::new((1 << 46) - 1).unwrap();
        assert_eq!(last.checked_add(1), None);
        assert!(GlobalAddress::from_window_pointer(WINDOW_BASE - 1).is_err());
    }
}
