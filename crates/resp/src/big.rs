//! Integers of any length that are not negative, as far as numbers with a fraction need them.

use std::cmp::Ordering;

/// An integer: words of 32 bits, the lowest first, and the last one is not zero.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Big(Vec<u32>);

impl From<u64> for Big {
    fn from(value: u64) -> Self {
        // The two halves: the casts lose nothing.
        Self(vec![value as u32, (value >> 32) as u32]).trimmed()
    }
}

impl Big {
    /// Whether it is zero.
    pub const fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    /// Bits up to the highest one that is set.
    pub fn bits(&self) -> usize {
        self.0.last().map_or(0, |last| self.0.len() * 32 - last.leading_zeros() as usize)
    }

    /// Which is larger.
    pub fn compare(&self, other: &Self) -> Ordering {
        self.0.len().cmp(&other.0.len()).then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }

    /// Times two to the `bits`.
    pub fn shifted(&self, bits: usize) -> Self {
        let mut words = vec![0; bits / 32];
        let mut carry = 0;
        for word in &self.0 {
            let wide = u64::from(*word) << (bits % 32) | carry;
            // The lower half, and the upper one for the next word.
            words.push(wide as u32);
            carry = wide >> 32;
        }
        words.push(carry as u32);
        Self(words).trimmed()
    }

    /// Becomes `self * factor + more`.
    pub fn multiply_and_add(&mut self, factor: u32, more: u32) {
        let mut carry = u64::from(more);
        for word in &mut self.0 {
            let wide = u64::from(*word) * u64::from(factor) + carry;
            *word = wide as u32;
            carry = wide >> 32;
        }
        if carry > 0 {
            self.0.push(carry as u32);
        }
    }

    /// Adds another one.
    pub fn add(&mut self, other: &Self) {
        let mut carry = 0;
        self.0.resize(self.0.len().max(other.0.len()) + 1, 0);
        for (word, more) in self.0.iter_mut().zip(other.0.iter().chain(std::iter::repeat(&0))) {
            let wide = u64::from(*word) + u64::from(*more) + carry;
            *word = wide as u32;
            carry = wide >> 32;
        }
        self.trim();
    }

    /// Takes away another one, which is not larger.
    pub fn subtract(&mut self, other: &Self) {
        let mut borrow = false;
        for (word, less) in self.0.iter_mut().zip(other.0.iter().chain(std::iter::repeat(&0))) {
            let (difference, first) = word.overflowing_sub(*less);
            let (difference, second) = difference.overflowing_sub(u32::from(borrow));
            *word = difference;
            borrow = first || second;
        }
        self.trim();
    }

    /// Its decimal digits.
    pub fn to_digits(&self) -> Vec<u8> {
        const GROUP: u64 = 1_000_000_000;
        let (mut rest, mut digits) = (self.clone(), Vec::new());
        while !rest.is_zero() {
            let mut group = 0;
            for word in rest.0.iter_mut().rev() {
                let wide = group << 32 | u64::from(*word);
                // Less than a word, as the group is less than what it is divided by.
                *word = (wide / GROUP) as u32;
                group = wide % GROUP;
            }
            rest.trim();
            for _ in 0..9 {
                digits.push(b'0' + (group % 10) as u8);
                group /= 10;
            }
        }
        while digits.last() == Some(&b'0') {
            digits.pop();
        }
        if digits.is_empty() {
            digits.push(b'0');
        }
        digits.reverse();
        digits
    }

    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    fn trimmed(mut self) -> Self {
        self.trim();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn big(value: u128) -> Big {
        let mut big = Big::from((value >> 64) as u64).shifted(64);
        big.add(&Big::from(value as u64));
        big
    }

    proptest! {
        #[test]
        fn sums_and_differences_are_those_of_smaller_integers(one in 0..u128::MAX / 2, two in 0..u128::MAX / 2, bits in 0..64_usize) {
            let mut sum = big(one);
            sum.add(&big(two));
            prop_assert_eq!(&sum, &big(one + two));
            sum.subtract(&big(two));
            prop_assert_eq!(&sum, &big(one));
            prop_assert_eq!(big(one).compare(&big(two)), one.cmp(&two));
            prop_assert_eq!(sum.to_digits(), one.to_string().into_bytes());
            prop_assert_eq!(sum.bits() as u32, 128 - one.leading_zeros());
            prop_assert_eq!(big(one >> 64).shifted(bits), big((one >> 64) << bits));
            let mut product = big(one >> 32);
            product.multiply_and_add(1_000_000, 7);
            prop_assert_eq!(product, big((one >> 32) * 1_000_000 + 7));
        }
    }
}
