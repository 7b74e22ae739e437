//! Whether memory that comes back will be written: then it need not be protected, and its copy need not be kept.
//!
//! A protected unit costs a fault at its first write; one that is not written can leave without being kept anew. What happened of late in
//! the neighbourhood tells which it will be. A wrong guess costs time and nothing else.

/// Bytes of a neighbourhood: a power of two.
const NEAR_SHIFT: u32 = 20;
/// Neighbourhoods that are told apart; those of larger programs share.
const NEIGHBOURHOODS: usize = 4096;
/// How much has to happen before a guess turns.
const SURE: i8 = 4;
/// One of so many is protected whatever the guess, to notice that nobody writes any more.
const PROBE: u32 = 16;

/// What happened to units that were protected when they came back.
#[derive(Clone, Debug)]
pub struct Guess {
    /// Above 0: more were written than left as they came.
    written: Vec<i8>,
    turn: u32,
}

impl Default for Guess {
    fn default() -> Self {
        Self { written: vec![0; NEIGHBOURHOODS], turn: 0 }
    }
}

impl Guess {
    /// Whether a unit that comes back at an address shall be protected.
    pub fn protects(&mut self, address: u64) -> bool {
        self.turn = self.turn.wrapping_add(1);
        self.written[index(address)] <= 0 || self.turn.is_multiple_of(PROBE)
    }

    /// A protected unit was written.
    pub fn was_written(&mut self, address: u64) {
        let known = &mut self.written[index(address)];
        *known = (*known + 1).min(SURE);
    }

    /// A protected unit left as it had come.
    pub fn was_kept(&mut self, address: u64) {
        let known = &mut self.written[index(address)];
        *known = (*known - 1).max(-SURE);
    }
}

const fn index(address: u64) -> usize {
    (address >> NEAR_SHIFT) as usize % NEIGHBOURHOODS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of so many units that come back at an address, how many are protected.
    fn protected(guess: &mut Guess, address: u64, count: usize) -> usize {
        (0..count).filter(|_| guess.protects(address)).count()
    }

    #[test]
    fn what_is_written_is_soon_left_open_and_what_is_not_stays_protected() {
        let (mut guess, one, other) = (Guess::default(), 7 << 20, 8 << 20);
        assert_eq!(protected(&mut guess, one, 100), 100);
        for _ in 0..10 {
            guess.was_written(one + 12345);
            guess.was_kept(other);
        }
        assert_eq!(protected(&mut guess, one, 160), 10);
        assert_eq!(protected(&mut guess, other, 160), 160);
        // Nobody writes there any more: probes tell.
        for _ in 0..4 {
            guess.was_kept(one);
        }
        assert_eq!(protected(&mut guess, one, 160), 160);
    }
}
