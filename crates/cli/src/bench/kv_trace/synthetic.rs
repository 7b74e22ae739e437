//! A trace that is made up, the same from the same seed: conversations that share system prompts.

use super::requests::{Request, Trace};

/// System prompts; a few of them begin most conversations.
const PROMPTS: u64 = 48;
/// Blocks of a system prompt, at most.
const PROMPT_BLOCKS_MAX: u64 = 24;
/// Blocks that a turn adds, question and answer before it, at most.
const TURN_BLOCKS_MAX: u64 = 8;
/// Conversations that go on at the same time.
const OPEN_CONVERSATIONS: usize = 160;
/// One turn in so many is the last of its conversation.
const TURNS_MEAN: u64 = 4;
/// Mean time between two requests.
const GAP_MS_MEAN: u64 = 300;

/// A trace of `requests` requests.
pub fn trace(requests: usize, seed: u64) -> Trace {
    let mut chance = Chance(seed);
    let mut next_block = 0;
    let mut blocks = |count: u64| -> Vec<u32> {
        let first = next_block;
        // A few million at most.
        next_block += count as u32;
        (first..next_block).collect()
    };
    let prompts: Vec<Vec<u32>> = (0..PROMPTS).map(|_| blocks(1 + chance.below(PROMPT_BLOCKS_MAX))).collect();
    let mut open: Vec<Vec<u32>> = Vec::new();
    let (mut at_ms, mut made) = (0, Vec::with_capacity(requests));
    for _ in 0..requests {
        if open.len() < OPEN_CONVERSATIONS {
            open.push(prompts[chance.zipf(PROMPTS) as usize].clone());
        }
        // Who spoke lately is likely to speak again: the latest are at the end.
        let back = chance.below(OPEN_CONVERSATIONS as u64).min(chance.below(OPEN_CONVERSATIONS as u64));
        let mut conversation = open.remove(open.len() - 1 - (back as usize).min(open.len() - 1));
        conversation.extend(blocks(1 + chance.below(TURN_BLOCKS_MAX)));
        made.push(Request { at_ms, blocks: conversation.clone() });
        at_ms += chance.below(2 * GAP_MS_MEAN);
        if chance.below(TURNS_MEAN) > 0 {
            open.push(conversation);
        }
    }
    Trace { requests: made }
}

/// Numbers at random, always the same (splitmix64).
struct Chance(u64);

impl Chance {
    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        super::content::mixed(self.0)
    }

    const fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Below `limit`, `n` about `1 / (n + 1)` as often as 0.
    fn zipf(&mut self, limit: u64) -> u64 {
        let part = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        // The inverse of the logarithm, which the sum of 1/n follows.
        let value = ((limit + 1) as f64).powf(part) - 1.0;
        // Between 0 and the limit.
        (value as u64).min(limit - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn a_seed_makes_the_same_trace_and_another_seed_another() {
        assert_eq!(trace(200, 1), trace(200, 1));
        assert_ne!(trace(200, 1), trace(200, 2));
    }

    #[test]
    fn prefixes_are_shared_and_a_block_has_one_parent() {
        let trace = trace(2000, 7);
        let share = trace.found_by_unlimited() as f64 / trace.asked() as f64;
        assert!((0.4..0.9).contains(&share), "{share}");
        let mut parents = HashMap::new();
        for request in &trace.requests {
            let mut parent = None;
            for block in &request.blocks {
                assert_eq!(*parents.entry(*block).or_insert(parent), parent);
                parent = Some(*block);
            }
        }
        assert!(trace.requests.is_sorted_by_key(|request| request.at_ms));
    }
}
