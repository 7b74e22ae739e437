//! What is wrong in a copy is written anew, in place, from copies of other nodes: who has it mapped sees right bytes from then on.
//!
//! Only blocks whose checksum does not fit are written, each from a home that has it right, so copies that are wrong in different
//! blocks mend each other. A copy is let go only where that fails: its checksums are wrong themselves, its memory does not keep
//! what is written to it, or no other home has the block, and another copy is right.

use crate::cache::Source;
use crate::core::Core;
use crate::directory_link::describe;
use crate::fault_point;
use crate::holdings::Holding;
use crate::peers::patience;
use crate::refused::{Refused, errno};
use hinterland_fabric::Intake;
use hinterland_proto::checksum::digest;
use hinterland_proto::control::{Home, ObjectInfo, PeerReply, PeerRequest};
use hinterland_types::limits::CHECKSUM_BLOCK_BYTES;
use hinterland_types::{ByteRange, ObjectId};
use std::sync::{Arc, TryLockError};

/// What became of a wrong copy.
pub enum Outcome {
    /// Its bytes are right.
    Mended,
    /// It stays as it is for now: the home mends another object.
    Busy(Refused),
    /// It cannot be mended in place.
    Failed(Refused),
}

/// Lets a home write its wrong blocks anew.
pub fn mend(core: &Core, info: &ObjectInfo, home: &Home) -> Outcome {
    let result = if home.node == core.own {
        mend_own(core, info.object)
    } else {
        let request = PeerRequest::HomeMend { object: info.object };
        core.peers.call_within(&home.address, &request, patience(info.bytes))
    };
    match result {
        Ok(_) => {
            let node = core.peers.roster().called(home.node);
            tracing::warn!(object = %info.object, node, "a wrong copy was mended");
            Outcome::Mended
        }
        Err(refused) if refused.code == errno::EBUSY => Outcome::Busy(refused),
        Err(refused) => Outcome::Failed(refused),
    }
}

/// Writes the wrong blocks of this node's copy anew.
///
/// # Errors
/// [`Refused`] with `EBUSY` while another object is mended here: nodes that wait for each other would have no connection left for the
/// bytes. Else why it cannot be; blocks may have been mended.
pub fn mend_own(core: &Core, object: ObjectId) -> Result<PeerReply, Refused> {
    let _alone = match core.repairs.mending.try_lock() {
        Ok(alone) => alone,
        Err(TryLockError::Poisoned(error)) => error.into_inner(),
        Err(TryLockError::WouldBlock) => {
            let text = "another copy is being mended on that node (hint: verify again with --mend)";
            return Err(Refused::new(errno::EBUSY, text));
        }
    };
    let info = describe(&core.directory.lookup_object(object)?, core.own);
    let holding = core.holdings.find(object)?;
    let kept = holding.blocks();
    if !holding.is_sealed() || digest(holding.bytes(), &kept) != info.digest {
        return Err(Refused::new(errno::EIO, "its checksums are not those that the directory knows"));
    }
    let wrong = wrong_blocks(&holding)?;
    if !wrong.is_empty() {
        write_anew(core, &info, &holding, &wrong)?;
        if !wrong_blocks(&holding)?.is_empty() {
            return Err(Refused::new(errno::EIO, "its memory does not keep what is written to it"));
        }
    }
    Ok(PeerReply::Verified { blocks: kept.len() as u64, wrong: Vec::new() })
}

/// Blocks that do not fit their checksum.
fn wrong_blocks(holding: &Holding) -> Result<Vec<u64>, Refused> {
    let found = holding.compute_blocks(holding.bytes())?;
    let pairs = holding.blocks();
    Ok((0..)
        .zip(pairs.iter().zip(&found))
        .filter(|(_, (kept, found))| kept != found)
        .map(|(index, _)| index)
        .collect())
}

/// Writes all blocks that another home has right; the error is that of the first one that none has.
fn write_anew(core: &Core, info: &ObjectInfo, holding: &Holding, blocks: &[u64]) -> Result<(), Refused> {
    let (peers, directory) = (Arc::clone(&core.peers), Arc::clone(&core.directory));
    let source = Source::open(info.clone(), peers, directory, core.own, Arc::default())?;
    let mut intake = Intake::new(CHECKSUM_BLOCK_BYTES as usize, 1)?;
    let mut outcome = Ok(());
    for block in blocks {
        let start = block * CHECKSUM_BLOCK_BYTES;
        let range = ByteRange::new(start, CHECKSUM_BLOCK_BYTES.min(info.bytes - start))
            .map_err(|error| Refused::new(errno::EINVAL, error.to_string()))?;
        let written = source.fetch(range, &mut intake, &mut |intake, piece| {
            let memory = holding.slice(piece.offset(), piece.bytes())?;
            // At most a block: the casts lose nothing.
            memory.write_at(0, intake.bytes((piece.offset() - start) as usize, piece.bytes() as usize))?;
            Ok(())
        });
        outcome = outcome.and(written);
        fault_point::reach("mend-block");
    }
    outcome
}
