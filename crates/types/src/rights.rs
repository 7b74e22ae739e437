//! What a capability allows; rights only ever shrink.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A set of rights.
///
/// ```
/// use hinterland_types::Rights;
/// let both = Rights::READ | Rights::WRITE;
/// assert!(both.allows(Rights::READ));
/// assert!(!Rights::READ.allows(both));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
pub struct Rights(u8);

impl Rights {
    /// Nothing is allowed.
    pub const NONE: Self = Self(0);
    /// Bytes may be read, mapped and verified.
    pub const READ: Self = Self(1);
    /// Bytes may be written.
    pub const WRITE: Self = Self(2);
    /// Locks may be taken.
    pub const LOCK: Self = Self(4);
    /// The resource may be sealed or removed.
    pub const MANAGE: Self = Self(8);
    /// Everything.
    pub const ALL: Self = Self(15);

    /// Whether every right of `needed` is here.
    pub const fn allows(self, needed: Self) -> bool {
        self.0 & needed.0 == needed.0
    }

    /// The rights that both sets have: how a capability is diminished.
    pub const fn intersect(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The raw bits, as they stand on the wire.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Rights from raw bits; unknown bits are dropped.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & Self::ALL.0)
    }
}

impl std::ops::BitOr for Rights {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = [(Self::READ, 'r'), (Self::WRITE, 'w'), (Self::LOCK, 'l'), (Self::MANAGE, 'm')];
        for (right, letter) in letters {
            write!(f, "{}", if self.allows(right) { letter } else { '-' })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rights({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intersecting_never_adds_a_right() {
        for a in 0..16 {
            for b in 0..16 {
                let both = Rights::from_bits(a).intersect(Rights::from_bits(b));
                assert!(Rights::from_bits(a).allows(both) && Rights::from_bits(b).allows(both));
            }
        }
    }

    #[test]
    fn unknown_bits_from_the_wire_are_dropped() {
        assert_eq!(Rights::from_bits(0xf0), Rights::NONE);
        assert_eq!(Rights::from_bits(0xff).to_string(), "rwlm");
    }
}
