//! Reading every copy of an object to compare it with its checksums.

use crate::core::Core;
use crate::directory_link::describe;
use crate::mend::{self, Outcome};
use crate::peer_service;
use crate::peers::patience;
use crate::refused::{Refused, errno};
use hinterland_proto::checksum::digest;
use hinterland_proto::control::{Home, Mending, ObjectInfo, ObjectState, PeerReply, PeerRequest, Reply};
use hinterland_types::{NodeId, ObjectId, ObjectName};

/// Wrong blocks that are named; the rest is known by their number.
const WRONG_MAX: usize = 100;

/// Reads every copy of an object and compares it with its checksums, and those with the directory's digest. If it is wanted, blocks that are
/// wrong are written anew from other copies. A copy where that fails, or is not wanted, is dropped if another one is right: what lacks copies
/// is repaired.
///
/// # Errors
/// [`Refused`] if there is no such name.
pub fn verify(core: &Core, name: &ObjectName, mending: Mending) -> Result<Reply, Refused> {
    let found = core.directory.lookup(name)?;
    let info = describe(&found, core.own);
    if info.state == ObjectState::Mutable {
        let text = format!(
            "{name} is a region, whose bytes may change at any moment: there is nothing to compare them with (hint: `hinterland verify --all` verifies all that is sealed)"
        );
        return Err(Refused::new(errno::EINVAL, text));
    }
    let (mut blocks, mut good, mut bad) = (0, Vec::new(), Vec::new());
    let (mut wrong, mut unasked) = (Vec::new(), Vec::new());
    for home in &info.homes {
        match verify_home(core, &info, home) {
            Ok(count) => {
                blocks += count;
                good.push(home.node);
            }
            Err(refused) => {
                match refused.code {
                    errno::EIO => wrong.push(home),
                    errno::EHOSTUNREACH => unasked.push(home.node),
                    _ => {}
                }
                bad.push((home.node, refused.text));
            }
        }
    }
    for (node, reason) in &bad {
        let what = if unasked.contains(node) { "could not be compared" } else { "cannot be trusted" };
        core.cache.problem(&format!("the copy of {name} on {node} {what}: {reason}"));
    }
    let mut mended = Vec::new();
    if mending != Mending::No {
        // First all in place: a copy that is right again may be what the next one is mended from.
        let is_lost = |home: &&Home| mending == Mending::Drop || is_unmended(core, &info, home, &mut mended);
        let failed: Vec<_> = wrong.into_iter().filter(is_lost).collect();
        if !good.is_empty() || !mended.is_empty() {
            failed.into_iter().for_each(|home| drop_copy(core, &found, home));
        }
    }
    Ok(Reply::Verified { blocks, good, bad, unasked, mended })
}

/// Has a home mend its copy; whether it cannot, and it is time to let go of it.
fn is_unmended(core: &Core, info: &ObjectInfo, home: &Home, mended: &mut Vec<NodeId>) -> bool {
    match mend::mend(core, info, home) {
        Outcome::Mended => mended.push(home.node),
        Outcome::Busy(refused) => core
            .cache
            .problem(&format!("the copy of {} on {} was not mended: {refused}", info.name, home.node)),
        Outcome::Failed(refused) => {
            tracing::warn!(object = %info.object, node = core.peers.roster().called(home.node), %refused, "a wrong copy was not mended in place");
            return true;
        }
    }
    false
}

/// Lets a home drop its copy, as the directory knew it before it was read. One that does not hear it keeps a copy that every reader refuses.
fn drop_copy(core: &Core, found: &hinterland_directory::ObjectInfo, home: &Home) {
    let (object, mut homes) = (found.object, found.homes.iter().chain(&found.homes_down));
    let Some(epoch) = homes.find(|known| known.node == home.node).map(|known| known.epoch) else { return };
    let dropped = if home.node == core.own {
        peer_service::drop_home(core, object, Some(epoch));
        Ok(())
    } else {
        core.peers.call(&home.address, &PeerRequest::HomeDistrust { object, epoch }).map(drop)
    };
    let node = core.peers.roster().called(home.node);
    match dropped {
        Ok(()) => tracing::warn!(%object, node, "a wrong copy was dropped"),
        Err(refused) => tracing::warn!(%object, node, %refused, "a wrong copy was not dropped"),
    }
}

/// How many blocks of a copy were compared and are right. `EIO`: the copy is wrong; `EHOSTUNREACH`: its home did not answer.
fn verify_home(core: &Core, info: &ObjectInfo, home: &Home) -> Result<u64, Refused> {
    let object = info.object;
    let reply = if home.node == core.own {
        verify_own(core, object, Some(info.digest))?
    } else if !home.up {
        return Err(Refused::new(errno::EHOSTUNREACH, "its node is down"));
    } else {
        core.peers.call_within(&home.address, &PeerRequest::HomeVerify { object }, patience(info.bytes))?
    };
    match reply {
        PeerReply::Verified { blocks, wrong } if wrong.is_empty() => Ok(blocks),
        PeerReply::Verified { wrong, .. } => {
            Err(Refused::new(errno::EIO, format!("wrong blocks of 64 KiB: {wrong:?}")))
        }
        _ => Err(Refused::new(errno::EIO, "it gave no answer to the question")),
    }
}

/// Reads the copy that this node holds.
///
/// # Errors
/// [`Refused`] if it holds none.
pub fn verify_own(core: &Core, object: ObjectId, expected: Option<[u8; 32]>) -> Result<PeerReply, Refused> {
    let holding = core.holdings.find(object)?;
    if !holding.is_sealed() {
        return Err(Refused::new(errno::EINVAL, format!("{} is no sealed object", holding.name())));
    }
    let kept = holding.blocks();
    if expected.is_some_and(|expected| digest(holding.bytes(), &kept) != expected) {
        return Err(Refused::new(errno::EIO, "its checksums are not those that the directory knows"));
    }
    let found = holding.compute_blocks(holding.bytes())?;
    let wrong = kept
        .iter()
        .zip(&found)
        .enumerate()
        .filter(|(_, (kept, found))| kept != found)
        .map(|(index, _)| index as u64)
        .take(WRONG_MAX)
        .collect();
    Ok(PeerReply::Verified { blocks: kept.len() as u64, wrong })
}
