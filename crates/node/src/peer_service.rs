//! What this node does for other nodes: homes of objects, checksums, the directory if it hosts it.

use crate::capability::CapabilityTable;
use crate::core::{Core, Resource};
use crate::directory_link::{DirectoryLink, answer};
use crate::fault_point;
use crate::holdings::{Holding, HoldingError};
use crate::mend;
use crate::refused::{Refused, errno};
use crate::regions::Region;
use crate::verify;
use hinterland_fabric::Slice;
use hinterland_proto::control::{PeerReply, PeerRequest, decode, encode};
use hinterland_types::{ByteRange, Epoch, Handle, NodeId, ObjectId, ObjectName, Rights};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Checksums in one answer: 128 KiB of postcard-encoded numbers, five bytes each at the most.
const CHECKSUMS_MAX: usize = 100_000;

/// The session of another node.
#[derive(Default)]
pub struct PeerSession {
    table: Mutex<CapabilityTable<Resource>>,
    /// The capability to each user's KV blocks: one for all questions.
    kv: Mutex<HashMap<u32, Handle>>,
    /// The capability to each region's frozen pages.
    frozen: Mutex<HashMap<ObjectId, (Handle, Arc<Region>)>>,
}

impl PeerSession {
    /// Answers a request of the node `peer`.
    ///
    /// # Errors
    /// [`Refused`] with what to tell it.
    pub fn answer(&self, core: &Core, peer: NodeId, request: PeerRequest) -> Result<PeerReply, Refused> {
        match request {
            PeerRequest::Directory(command) => directory(core, &command),
            PeerRequest::DirectoryOnce(request) => directory_once(core, &request),
            PeerRequest::HomeCreate { object, epoch, name, bytes, ticket } => {
                create(core, object, epoch, name, bytes, ticket)
            }
            PeerRequest::HomeGrow { object, bytes } => {
                core.holdings.grow(object, bytes)?;
                fault_point::reach("home-grown");
                Ok(PeerReply::Done)
            }
            PeerRequest::HomeSeal { object, bytes } => seal(core, object, bytes, None),
            PeerRequest::HomeSealAs { object, bytes, name } => seal(core, object, bytes, Some(&name)),
            PeerRequest::HomeDrop { object } => Ok(drop_home(core, object, None)),
            PeerRequest::HomeDistrust { object, epoch } => Ok(drop_home(core, object, Some(epoch))),
            PeerRequest::HomeMend { object } => mend::mend_own(core, object),
            PeerRequest::HomeRegion { object, epoch, name, bytes } => {
                core.holdings.create_region(object, epoch, name, bytes)?;
                Ok(PeerReply::Done)
            }
            PeerRequest::HomePart { object, epoch, name, bytes } => {
                core.holdings.create_part(object, epoch, name, bytes)?;
                fault_point::reach("home-part-made");
                core.regions.get(core, object)?;
                Ok(PeerReply::Done)
            }
            PeerRequest::Checksums { object, first } => checksums(core, object, first),
            PeerRequest::HomeVerify { object } => verify::verify_own(core, object, None),
            PeerRequest::Attach { object } => self.attach(core, peer, object),
            PeerRequest::Detach { handle } => self.detach(handle),
            PeerRequest::Locks(body) => Ok(PeerReply::Locks(core.locks.answer(core, peer, &body)?)),
            PeerRequest::LockForget { address } => Ok(forget_lock(core, address)),
            PeerRequest::LockNews => Ok(lock_news(core, peer)),
            PeerRequest::KvFind { user, fingerprint, keys } => self.kv_find(core, user, &fingerprint, &keys),
            PeerRequest::KvStage { user, fingerprint, keys } => {
                if let Some(store) = core.kv.existing(user).filter(|_| core.kv_racks.is_on()) {
                    core.kv_elsewhere.stage(&store, &fingerprint, &keys)?;
                }
                fault_point::reach("home-kv-staged");
                self.kv_find(core, user, &fingerprint, &keys)
            }
            PeerRequest::KvCheck { user, fingerprint, blocks } => {
                let store = core.kv.existing(user).filter(|_| core.kv_racks.is_on());
                let sums = match store {
                    Some(store) => store.sums(&fingerprint, &blocks)?,
                    None => vec![None; blocks.len()],
                };
                fault_point::reach("home-kv-checked");
                Ok(PeerReply::KvChecked { sums })
            }
            PeerRequest::KvClear { user, fingerprint } => {
                let (removed, pinned) = core.kv.clear_for_all(user, &fingerprint)?;
                Ok(PeerReply::KvCleared { removed, pinned })
            }
            PeerRequest::KvRemove { user, fingerprint, keys, is_end } => {
                // Who neither gives nor takes has blocks of its own.
                let (removed, pinned) = match core.kv_racks.is_on() {
                    true => core.kv.remove_for_all(user, &fingerprint, &keys, is_end)?,
                    false => (0, 0),
                };
                Ok(PeerReply::KvCleared { removed, pinned })
            }
            other => self.answer_about_pages(core, peer, other),
        }
    }

    /// Answers what other nodes ask of pages of regions.
    fn answer_about_pages(
        &self,
        core: &Core,
        peer: NodeId,
        request: PeerRequest,
    ) -> Result<PeerReply, Refused> {
        match request {
            PeerRequest::PageFreeze { object, index, epoch, heat } => {
                let region = core.regions.get(core, object)?;
                core.regions.allows(&region, index, heat.as_ref())?;
                core.regions.recall(core, &region, index)?;
                let crc = core.regions.freeze(&region, index, epoch)?;
                Ok(PeerReply::PageFrozen { handle: self.frozen(&region)?, crc })
            }
            PeerRequest::PageWanted { object, index, heat } => {
                let region = core.regions.get(core, object)?;
                if core.regions.may_be_copied(&region, index, &heat) {
                    return Ok(PeerReply::PageMayBeCopied);
                }
                core.regions.allows(&region, index, Some(&heat))?;
                Ok(PeerReply::Done)
            }
            PeerRequest::PageShare { object, index, address } => {
                let region = core.regions.get(core, object)?;
                let (crc, term) = core.regions.share(&region, index, peer, &address)?;
                Ok(PeerReply::PageShared { handle: self.frozen(&region)?, crc, term })
            }
            PeerRequest::PageUnshare { object, index } => {
                if let Some(region) = core.regions.known(object) {
                    core.regions.give_back(core, &region, index)?;
                }
                Ok(PeerReply::Done)
            }
            PeerRequest::PageWrite { object, index } => {
                let region = core.regions.get(core, object)?;
                core.regions.recall(core, &region, index)?;
                Ok(PeerReply::Done)
            }
            PeerRequest::PageKeep { term } => {
                core.regions.keep_copies(peer, term)?;
                Ok(PeerReply::Done)
            }
            PeerRequest::PageMoved { object, index, epoch } => {
                let region = core.regions.get(core, object)?;
                core.regions.moved(core, &region, index, epoch)?;
                Ok(PeerReply::Done)
            }
            PeerRequest::PageTake { object, index } => {
                let region = core.regions.get(core, object)?;
                core.regions.pull(core, &region, index, None)?;
                Ok(PeerReply::Done)
            }
            other => Err(Refused::new(errno::EINVAL, format!("{other:?} cannot be answered here"))),
        }
    }

    /// The memory behind a range of a handle that was given with `Attach`.
    ///
    /// # Errors
    /// [`Refused`] if the handle does not allow it.
    pub fn resolve(&self, handle: Handle, range: ByteRange, needed: Rights) -> Result<Slice, Refused> {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        match table.check(handle, range.offset(), range.bytes(), needed)? {
            Resource::Held(holding) => {
                holding.note_use();
                Ok(Slice::from(holding.slice(range.offset(), range.bytes())?))
            }
            Resource::Region(region) => region.frozen_slice(range),
            Resource::Remote(info) => {
                Err(Refused::new(errno::ENOTSUP, format!("{} is not held by this node", info.name)))
            }
            Resource::KvBlocks(store) => store.block_bytes(range),
            // No node grants it to another.
            Resource::Kv(..) | Resource::Lent(_) => {
                Err(Refused::new(errno::ENOTSUP, "KV blocks are read in their own rack"))
            }
        }
    }

    /// The capability to the frozen pages of a region: one for all moves.
    fn frozen(&self, region: &Arc<Region>) -> Result<Handle, Refused> {
        let mut frozen = self.frozen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((handle, known)) = frozen.get(&region.object)
            && Arc::ptr_eq(known, region)
        {
            return Ok(*handle);
        }
        let range = ByteRange::new(0, region.bytes)
            .map_err(|error| Refused::new(errno::EINVAL, error.to_string()))?;
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = table.grant(Resource::Region(Arc::clone(region)), Rights::READ, range)?;
        if let Some((before, _)) = frozen.insert(region.object, (handle, Arc::clone(region))) {
            table.close(before)?;
        }
        Ok(handle)
    }

    /// What a device may read of a handle without asking.
    ///
    /// # Errors
    /// [`Refused`] if the handle does not allow it.
    pub fn one_sided(
        &self,
        handle: Handle,
        range: ByteRange,
        needed: Rights,
    ) -> Result<Option<(ByteRange, Slice)>, Refused> {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Resource::Region(_) = table.check(handle, range.offset(), range.bytes(), needed)? {
            // Nodes read frozen pages, once each.
            return Ok(None);
        }
        crate::core::one_sided(&table, handle, range, needed)
    }

    fn kv_find(
        &self,
        core: &Core,
        user: u32,
        fingerprint: &[u8; 32],
        keys: &[Vec<u8>],
    ) -> Result<PeerReply, Refused> {
        let Some(store) = core.kv.existing(user).filter(|_| core.kv_racks.is_on()) else {
            return Ok(PeerReply::KvFound { handle: None, places: Vec::new(), on_disk: Vec::new() });
        };
        let (places, on_disk) = store.places(fingerprint, keys)?;
        let mut handles = self.kv.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = match handles.get(&user) {
            Some(&handle) => handle,
            None => {
                let range = ByteRange::new(0, store.blocks_bytes())
                    .map_err(|error| Refused::new(errno::EINVAL, error.to_string()))?;
                let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
                let handle = table.grant(Resource::KvBlocks(store), Rights::READ, range)?;
                handles.insert(user, handle);
                handle
            }
        };
        fault_point::reach("home-kv-found");
        Ok(PeerReply::KvFound { handle: Some(handle), places, on_disk })
    }

    fn detach(&self, handle: Handle) -> Result<PeerReply, Refused> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).close(handle)?;
        Ok(PeerReply::Done)
    }

    fn attach(&self, core: &Core, peer: NodeId, object: ObjectId) -> Result<PeerReply, Refused> {
        fault_point::reach("home-attached");
        let holding = core.holdings.find(object)?;
        if !holding.is_sealed() {
            let text = format!("{object} is not sealed, so {peer} cannot read it");
            return Err(Refused::new(errno::EACCES, text));
        }
        // The room of the file, which is more than the object: fills end at the object's last byte.
        let range = ByteRange::new(0, holding.bytes())
            .map_err(|error| Refused::new(errno::EINVAL, error.to_string()))?;
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(PeerReply::Granted { handle: table.grant(Resource::Held(holding), Rights::READ, range)? })
    }
}

fn seal(core: &Core, object: ObjectId, bytes: u64, name: Option<&ObjectName>) -> Result<PeerReply, Refused> {
    let digest = core.holdings.seal_as(object, bytes, name)?;
    fault_point::reach("home-sealed");
    Ok(PeerReply::Sealed { digest })
}

fn forget_lock(core: &Core, address: hinterland_types::GlobalAddress) -> PeerReply {
    core.locks.forget(address);
    PeerReply::Done
}

fn lock_news(core: &Core, home: NodeId) -> PeerReply {
    core.locks.news(core, home);
    PeerReply::Done
}

fn directory_once(core: &Core, request: &[u8]) -> Result<PeerReply, Refused> {
    let Some(shared) = core.directory.shared() else {
        let text = "this node's directory is not in etcd (hint: give all nodes of a pool the same --directory, or --join)";
        return Err(Refused::new(errno::ENOTSUP, text));
    };
    let (id, command) = decode(request)?;
    let answered = shared.serve(Some(id), &command)?;
    fault_point::reach("directory-answered");
    Ok(PeerReply::Directory(encode(&answered)?))
}

fn directory(core: &Core, command: &[u8]) -> Result<PeerReply, Refused> {
    let answered = match &*core.directory {
        DirectoryLink::Embedded(host) => answer(host, &decode(command)?)?,
        DirectoryLink::Etcd(shared) => shared.serve(None, &decode(command)?)?,
        DirectoryLink::Remote { .. } => {
            let text = "this node does not host the directory (hint: --join the node that does)";
            return Err(Refused::new(errno::ENOTSUP, text));
        }
    };
    fault_point::reach("directory-answered");
    Ok(PeerReply::Directory(encode(&answered)?))
}

fn create(
    core: &Core,
    object: ObjectId,
    epoch: Epoch,
    name: ObjectName,
    bytes: Option<u64>,
    ticket: [u8; 16],
) -> Result<PeerReply, Refused> {
    match core.holdings.create(object, epoch, name, bytes.unwrap_or(0), ticket) {
        // The same request again, because its answer was lost.
        Err(HoldingError::Exists(_)) if is_put_with(core, object, ticket) => {}
        created => drop(created?),
    }
    fault_point::reach("home-created");
    Ok(PeerReply::Done)
}

fn is_put_with(core: &Core, object: ObjectId, ticket: [u8; 16]) -> bool {
    core.holdings.find(object).is_ok_and(|there| there.is_writing() && there.ticket == ticket)
}

/// Drops this node's copy of an object, and tells the directory. `wrong` is the epoch of a copy whose bytes are wrong: who has it open reads another
/// one from here on; programs of this host that have mapped it keep what they see. A copy of another epoch was made since, and stays.
pub fn drop_home(core: &Core, object: ObjectId, wrong: Option<Epoch>) -> PeerReply {
    let Ok(holding) = core.holdings.find(object) else { return PeerReply::Done };
    if wrong.is_some_and(|epoch| epoch != holding.epoch()) {
        return PeerReply::Done;
    }
    if wrong.is_some() {
        holding.distrust();
    }
    core.holdings.drop_object(object);
    fault_point::reach("home-dropped");
    let home = hinterland_directory::HomeInfo {
        node: core.own,
        rack: core.membership.rack.clone(),
        address: core.membership.address.clone(),
        epoch: holding.epoch(),
    };
    core.puts.forget(object, &home);
    PeerReply::Done
}

fn checksums(core: &Core, object: ObjectId, first: u64) -> Result<PeerReply, Refused> {
    Ok(PeerReply::Checksums { blocks: checksums_from(&*core.holdings.find(object)?, first) })
}

/// The checksums of a copy from this block on, as many as one answer holds.
pub fn checksums_from(holding: &Holding, first: u64) -> Vec<u32> {
    let blocks = holding.blocks();
    let start = usize::try_from(first).unwrap_or(usize::MAX).min(blocks.len());
    let end = (start + CHECKSUMS_MAX).min(blocks.len());
    blocks[start..end].to_vec()
}
