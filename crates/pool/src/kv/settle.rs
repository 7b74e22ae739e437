//! Blocks of a put that another process was writing: who is told that a block is there must find it there.

use super::put::{Chain, Source, Stored};
use super::replace::batches;
use super::{KvCache, block_key};
use crate::PoolError;
use hinterland_proto::control::{KvExpects, KvParent};
use std::time::{Duration, Instant};

/// How long the other process is waited for before this one writes a copy of its own. The parts of a put are published as they are copied,
/// so one that goes on has published by then; one that is stopped, or whose socket a child holds, may never do.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// Pauses between two looks: first about as long as a put of few blocks takes, then longer and longer.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// A block that is put again by itself, behind the one that it follows on.
struct Again<'block, S> {
    block: &'block S,
    parent: KvParent,
}

impl<S: Source> Source for Again<'_, S> {
    fn key(&self) -> &[u8] {
        self.block.key()
    }

    fn bytes(&self) -> u64 {
        self.block.bytes()
    }

    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.block.pieces()
    }

    fn parent(&self) -> Option<KvParent> {
        Some(self.parent.clone())
    }
}

impl KvCache {
    /// What became of the blocks of a put. Those that another process was writing are waited for: it may die before it publishes them, and
    /// then they are written here.
    pub(super) fn settle<S: Source>(
        &self,
        blocks: &[S],
        chain: &Chain<'_>,
        mut outcomes: Vec<Option<Stored>>,
    ) -> Result<Vec<Stored>, PoolError> {
        self.look_for(blocks, &mut outcomes)?;
        let (begun, mut pause) = (Instant::now(), PAUSE_MIN);
        let mut left = open(&outcomes);
        while !left.is_empty() && begun.elapsed() < WAIT_MAX {
            std::thread::sleep(pause);
            pause = (2 * pause).min(PAUSE_MAX);
            let again: Vec<Again<'_, S>> = left.iter().map(|&index| again(blocks, chain, index)).collect();
            for (index, outcome) in left.into_iter().zip(self.put_once(&again, &Chain::None)?) {
                outcomes[index] = outcome;
            }
            left = open(&outcomes);
        }
        if !left.is_empty() {
            let again: Vec<Again<'_, S>> = left.iter().map(|&index| again(blocks, chain, index)).collect();
            let mut copies = Vec::with_capacity(left.len());
            for some in batches(&again, Source::bytes) {
                copies.extend(self.replace_some(some, KvExpects::Nothing)?);
            }
            for (index, copy) in left.into_iter().zip(copies) {
                outcomes[index] = Some(copy);
            }
        }
        self.look_for(blocks, &mut outcomes)?;
        Ok(outcomes.into_iter().map(|outcome| outcome.unwrap_or(Stored::NoRoom)).collect())
    }

    /// Looks for blocks that are not known to be there: another process may have published them meanwhile, or have put a copy of its own in
    /// the place of one that was written here.
    fn look_for<S: Source>(&self, blocks: &[S], outcomes: &mut [Option<Stored>]) -> Result<(), PoolError> {
        for (block, outcome) in blocks.iter().zip(outcomes) {
            let is_known = !matches!(outcome, None | Some(Stored::NoRoom));
            if !is_known && self.find(&block_key(block.key())?).is_some() {
                *outcome = Some(Stored::Known);
            }
        }
        Ok(())
    }
}

/// The blocks that another process is writing.
fn open(outcomes: &[Option<Stored>]) -> Vec<usize> {
    outcomes.iter().enumerate().filter(|(_, outcome)| outcome.is_none()).map(|(index, _)| index).collect()
}

/// A block of a put, to be put by itself.
fn again<'block, S: Source>(blocks: &'block [S], chain: &Chain<'_>, index: usize) -> Again<'block, S> {
    let before = index.checked_sub(1).map(|before| blocks[before].key());
    Again { block: &blocks[index], parent: chain.parent(before).unwrap_or(KvParent::None) }
}
