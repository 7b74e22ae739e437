//! What programs ask about the pool as a whole: its members, and what objects there are and where.

use crate::core::Core;
use crate::refused::{Refused, errno};
use hinterland_directory::{Command, Departure, Reply as DirectoryReply};
use hinterland_proto::PoolId;
use hinterland_proto::control::{FormerPool, MemberInfo, ObjectInfo, Reply};
use hinterland_types::{NodeId, ObjectName};

/// An object as people see it: with its heat copies told apart.
pub(super) fn stat(core: &Core, name: &ObjectName) -> Result<ObjectInfo, Refused> {
    let mut info = core.describe(&core.directory.lookup(name)?);
    mark_heat_copies(core, std::slice::from_mut(&mut info))?;
    Ok(info)
}

pub(super) fn list(
    core: &Core,
    prefix: String,
    after: Option<ObjectName>,
    limit: u32,
) -> Result<Reply, Refused> {
    match core.directory.apply(&Command::List { prefix, after, limit: limit.min(1000) })? {
        DirectoryReply::List { objects, more } => {
            let mut objects: Vec<ObjectInfo> = objects.iter().map(|info| core.describe(info)).collect();
            mark_heat_copies(core, &mut objects)?;
            Ok(Reply::Objects { objects, more })
        }
        _ => Err(Refused::new(errno::EIO, "the directory did not list its objects")),
    }
}

/// Readers need not know which copies are for heat, so the directory tells it only to who asks.
fn mark_heat_copies(core: &Core, objects: &mut [ObjectInfo]) -> Result<(), Refused> {
    // Whatever has one has another home, too, or has lost it.
    let asked: Vec<_> =
        objects.iter().filter(|info| !info.homes.is_empty()).map(|info| info.object).collect();
    if asked.is_empty() {
        return Ok(());
    }
    let DirectoryReply::HeatHomes(heat) = core.directory.apply(&Command::HeatHomes { objects: asked })?
    else {
        return Err(Refused::new(errno::EIO, "the directory did not tell its heat copies"));
    };
    for info in objects {
        let object = info.object;
        info.homes.iter_mut().for_each(|home| home.heat = heat.contains(&(object, home.node)));
    }
    Ok(())
}

pub(super) fn members(core: &Core) -> Result<Vec<MemberInfo>, Refused> {
    let DirectoryReply::Members(members) = core.directory.apply_soon(&Command::Members)? else {
        return Err(Refused::new(errno::EIO, "the directory did not list its members"));
    };
    Ok(members
        .into_iter()
        .map(|member| MemberInfo {
            node: member.node,
            name: member.name,
            rack: member.rack,
            address: member.address,
            up: matches!(member.state, hinterland_directory::MemberState::Up),
            capacity_bytes: member.capacity_bytes,
            used_bytes: member.reserved_bytes,
        })
        .collect())
}

/// The pools that objects of this one were in before.
pub(super) fn former_pools(core: &Core) -> Result<Vec<FormerPool>, Refused> {
    let DirectoryReply::FormerPools(former) = core.directory.apply(&Command::FormerPools)? else {
        return Err(Refused::new(errno::EIO, "the directory did not say which pools objects were in before"));
    };
    Ok(former.iter().map(|former| FormerPool { pool: PoolId(former.pool), last: former.last }).collect())
}

/// Takes a node that is down out of the pool.
pub(super) fn forget(core: &Core, node: NodeId, lose: bool) -> Result<Reply, Refused> {
    let DirectoryReply::Members(members) = core.directory.apply(&Command::Members)? else {
        return Err(Refused::new(errno::EIO, "the directory did not list its members"));
    };
    let Some(member) = members.into_iter().find(|member| member.node == node) else {
        let text = format!("the pool has no node {node} (hint: `hinterland status` lists the nodes)");
        return Err(Refused::new(errno::ENOENT, text));
    };
    if matches!(member.state, hinterland_directory::MemberState::Up) {
        let at = member.address;
        let text = format!(
            "{node} at {at} is up (hint: stop it first; only a node that is gone for good is forgotten)"
        );
        return Err(Refused::new(errno::EBUSY, text));
    }
    // One that has come back since has another incarnation, and stays.
    let incarnation = member.incarnation;
    let departure = if lose { Departure::GoneWithLastCopies } else { Departure::Gone };
    match core.directory.apply(&Command::Leave { node, incarnation, departure })? {
        DirectoryReply::Left { lost } => Ok(Reply::Forgot { lost: lost.len() as u64 }),
        _ => Err(Refused::new(errno::EIO, "the directory did not say what is lost")),
    }
}
