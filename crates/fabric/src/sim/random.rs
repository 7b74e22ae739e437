//! Chance from a seed.

/// A generator whose numbers depend on its seed alone (xoshiro256**, seeded by splitmix64; both by Blackman and Vigna,
/// public domain). Not for secrets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SimRandom {
    state: [u64; 4],
}

impl SimRandom {
    /// A generator for a seed; every seed is good.
    pub fn new(seed: u64) -> Self {
        let mut mixed = seed;
        let state = std::array::from_fn(|_| {
            mixed = mixed.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut word = mixed;
            word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            word ^ (word >> 31)
        });
        Self { state }
    }

    /// 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// A number below `limit`; 0 if the limit is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        // The upper half of the product: its bias is below limit / 2^64, which no test can see.
        ((u128::from(self.next_u64()) * u128::from(limit)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included; `low` if they are the wrong way round.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        let span = high.saturating_sub(low);
        low + if span == u64::MAX { self.next_u64() } else { self.below(span + 1) }
    }

    /// True `per_million` times in a million.
    pub fn chance(&mut self, per_million: u32) -> bool {
        self.below(1_000_000) < u64::from(per_million)
    }

    /// A generator of its own, so that one part of a simulation draws without changing the draws of another.
    pub fn fork(&mut self) -> Self {
        Self::new(self.next_u64())
    }
}
