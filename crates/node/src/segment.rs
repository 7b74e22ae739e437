//! The node's segment: a shared region from which sessions allocate small pieces.
//!
//! Pieces come from slabs: size classes in steps of a quarter power of two, so that at most a fifth of a
//! piece is unused (half for pieces below 64 bytes). A slab is one 2 MiB page of one class; larger pieces take whole pages.
//! The region is made at the first allocation. Books are kept here, never in the shared bytes, which any
//! program may overwrite.

mod slab;

use crate::core::Core;
use crate::refused::{Refused, errno};
use crate::regions::create_region;
use hinterland_directory::{Command, MemberState, Reply};
use hinterland_proto::control::{AllocationKind, Placement};
use hinterland_types::{GlobalAddress, NodeId, ObjectId, ObjectName, SessionId};
use slab::Slabs;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the names of all segments begin with.
const FOLDER: &str = "segments";

/// Refuses to take the name of a segment away, or the folder of all, while its node is up: that would go on giving pieces to programs at
/// addresses that belong to somebody else by then.
///
/// # Errors
/// [`Refused`] with `EBUSY`, or if the directory cannot be asked.
pub fn check_unused(core: &Core, name: &ObjectName) -> Result<(), Refused> {
    if name.as_str().split('/').next() != Some(FOLDER) {
        return Ok(());
    }
    let Reply::Members(members) = core.directory.apply(&Command::Members)? else {
        return Err(Refused::new(errno::EIO, "the directory did not list its members"));
    };
    for member in members.iter().filter(|member| member.state != MemberState::Down) {
        let segment = name_of(member.node)?;
        let is_it = *name == segment || name.as_str() == FOLDER && core.directory.lookup(&segment).is_ok();
        if is_it {
            let text = format!(
                "{segment} is the memory from which {} at {} gives programs what they allocate (hint: it is made anew when a program \
                 allocates after that node's next start; to remove it, stop the node first)",
                member.node, member.address
            );
            return Err(Refused::new(errno::EBUSY, text));
        }
    }
    Ok(())
}

fn name_of(node: NodeId) -> Result<ObjectName, Refused> {
    ObjectName::parse(&format!("{FOLDER}/{node}"))
        .map_err(|error| Refused::new(errno::EINVAL, error.to_string()))
}

/// The allocations of a node.
pub struct Segment {
    bytes: u64,
    books: Mutex<Books>,
    /// Held while the directory is asked about the region: the books are free meanwhile, for what is freed and for sessions that end.
    asking: Mutex<()>,
}

#[derive(Default)]
struct Books {
    region: Option<Pieces>,
    owners: HashMap<u64, Owner>,
}

/// The region and what is free of it.
struct Pieces {
    object: ObjectId,
    first: GlobalAddress,
    slabs: Slabs,
    /// The life of the node in which it was last known to be there: it is not removed while the node is up.
    incarnation: u64,
}

#[derive(Clone, Copy)]
struct Owner {
    session: SessionId,
    kind: AllocationKind,
}

impl Segment {
    /// A segment of `bytes` bytes, made when it is first needed.
    pub fn new(bytes: u64) -> Self {
        Self { bytes, books: Mutex::default(), asking: Mutex::default() }
    }

    /// Allocates; returns the address and the size of the piece.
    ///
    /// # Errors
    /// [`Refused`] if there is no room.
    pub fn allocate(
        &self,
        core: &Core,
        session: SessionId,
        bytes: u64,
        kind: AllocationKind,
    ) -> Result<(GlobalAddress, u64), Refused> {
        if bytes == 0 {
            return Err(Refused::new(errno::EINVAL, "there is no room of 0 bytes (hint: ask for 1 or more)"));
        }
        self.look(core)?;
        let mut books = self.lock();
        let Books { region, owners } = &mut *books;
        let Some(Pieces { first, slabs, .. }) = region else {
            return Err(Refused::new(errno::ENOSPC, "the segment could not be made"));
        };
        let Some((offset, size)) = slabs.allocate(bytes) else {
            let text = format!(
                "{bytes} bytes do not fit in the node's segment of {} bytes (hint: free something, or make a region for what is large)",
                self.bytes
            );
            return Err(Refused::new(errno::ENOSPC, text));
        };
        owners.insert(offset, Owner { session, kind });
        let address =
            first.checked_add(offset).ok_or_else(|| Refused::new(errno::ENOSPC, "no addresses left"))?;
        Ok((address, size))
    }

    /// Frees a piece; any session may free what is kept, only its own what is not.
    ///
    /// # Errors
    /// [`Refused`] if there is no such piece, or it belongs to another session.
    pub fn free(&self, session: SessionId, address: GlobalAddress) -> Result<(), Refused> {
        let mut books = self.lock();
        let Books { region, owners } = &mut *books;
        let offset = region.as_ref().and_then(|region| address.raw().checked_sub(region.first.raw()));
        let owner = offset.and_then(|offset| owners.get(&offset).copied());
        let (Some(Pieces { slabs, .. }), Some(offset), Some(owner)) = (region, offset, owner) else {
            let text = format!(
                "nothing was allocated at {address} (hint: free the address that alloc returned, once)"
            );
            return Err(Refused::new(errno::EINVAL, text));
        };
        if owner.kind == AllocationKind::Session && owner.session != session {
            let text = format!(
                "{address} belongs to another session (hint: its pool frees it; others only what was allocated to be kept)"
            );
            return Err(Refused::new(errno::EACCES, text));
        }
        owners.remove(&offset);
        slabs.free(offset);
        Ok(())
    }

    /// Frees what a session that has ended did not keep.
    pub fn release_all(&self, session: SessionId) {
        let mut books = self.lock();
        let Books { region, owners } = &mut *books;
        let Some(Pieces { slabs, .. }) = region else { return };
        owners.retain(|&offset, owner| {
            let goes = owner.session == session && owner.kind == AllocationKind::Session;
            if goes {
                slabs.free(offset);
            }
            !goes
        });
    }

    /// Sees to it that there is a region. Looks, once in each life of the node, whether it is there still: while the node was taken for
    /// down, it may have been removed, and its addresses given to somebody else.
    fn look(&self, core: &Core) -> Result<(), Refused> {
        let incarnation = core.membership.incarnation.get();
        let is_seen =
            |books: &Books| books.region.as_ref().is_some_and(|region| region.incarnation == incarnation);
        if is_seen(&self.lock()) {
            return Ok(());
        }
        let _asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        let known = {
            let books = self.lock();
            if is_seen(&books) {
                return Ok(());
            }
            books.region.as_ref().map(|region| region.object)
        };
        if let Some(object) = known {
            match core.directory.lookup(&name_of(core.own)?) {
                Ok(info) if info.object == object => {
                    if let Some(region) = &mut self.lock().region {
                        region.incarnation = incarnation;
                    }
                    return Ok(());
                }
                Err(refused) if refused.code != errno::ENOENT => return Err(refused),
                _ => *self.lock() = Books::default(),
            }
        }
        let made = self.make_region(core)?;
        self.lock().region = Some(made);
        Ok(())
    }

    fn make_region(&self, core: &Core) -> Result<Pieces, Refused> {
        let name = name_of(core.own)?;
        // What an earlier process of this node handed out is known to nobody any more.
        if core.directory.lookup(&name).is_ok() {
            crate::naming::remove_always(core, &name)?;
        }
        let incarnation = core.membership.incarnation.get();
        let place = Placement::Rack(core.membership.rack.clone());
        let info = create_region(core, name, self.bytes, place)?;
        let first = info.address.ok_or_else(|| Refused::new(errno::EIO, "the segment has no address"))?;
        Ok(Pieces { object: info.object, first, slabs: Slabs::new(self.bytes), incarnation })
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
