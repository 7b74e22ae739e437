//! Memory that programs map: the files that they are given, and the mappings whose faults are served.

use super::{Answer, Session, not_a_region, not_an_object};
use crate::cache::NewRegistration;
use crate::core::{Core, Resource};
use crate::fault_point;
use crate::refused::{Refused, errno};
use crate::regions::Region;
use hinterland_os::userfault::Scope;
use hinterland_os::{MemoryFile, PageKind, Seals, Userfault};
use hinterland_proto::control::{Mapped, ObjectInfo, ObjectState, Reply};
use hinterland_types::limits::{BASE_PAGE_BYTES, OBJECT_BYTES_MAX};
use hinterland_types::{ByteRange, GlobalAddress, Handle, Rights};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Mappings that a session may have served: each costs the node a descriptor.
const REGISTRATIONS_MAX: usize = 4096;
/// How often a mapping waits for a page that is moving, and how long each time.
const MAP_TRIES: u32 = 200;
const MAP_PAUSE: Duration = Duration::from_millis(10);
/// Behind every address that a program can have.
const POINTER_END: u64 = 1 << 57;

impl Session {
    pub(super) fn map(&self, core: &Core, handle: Handle) -> Answer {
        self.needs_host("map memory")?;
        let (resource, rights) = self.whole(handle)?;
        let write = rights.allows(Rights::WRITE);
        let preference = self.lock().preference;
        match resource {
            Resource::Held(holding) => {
                let info = core.describe(&core.directory.lookup_object(holding.object)?);
                let (file_bytes, kind) = holding.file_shape();
                let mapped = mapped(holding.bytes(), info.address, (file_bytes, kind));
                let writable = write && !holding.is_sealed();
                Ok((Reply::Mapped(Mapped { writable, ..mapped }), vec![holding.descriptor(write)?]))
            }
            Resource::Remote(info) if info.state == ObjectState::Sealed && info.bytes == 0 => {
                map_empty(&info)
            }
            Resource::Remote(info) if info.state == ObjectState::Sealed => {
                // Before Register, too, nobody else may begin it anew with other units.
                let file = core.cache.begin_reading(&info, self.user, self.id, preference)?;
                self.lock().caches.insert(handle, Arc::clone(&file));
                fault_point::reach("map-cached");
                let mapped = mapped(info.bytes, info.address, (file.file_bytes(), file.page_kind()));
                Ok((Reply::Mapped(Mapped { armed: true, ..mapped }), vec![file.descriptor()?]))
            }
            Resource::Region(region) => map_region(core, &region, write),
            Resource::Kv(..) | Resource::KvBlocks(_) | Resource::Lent(_) => Err(not_an_object()),
            Resource::Remote(info) => Err(Refused::new(
                errno::ENOTSUP,
                format!(
                    "region {} lies in another rack and cannot be mapped (hint: read and write it through the pool API)",
                    info.name
                ),
            )),
        }
    }

    pub(super) fn open_pages(&self, handle: Handle) -> Answer {
        self.needs_host("map memory")?;
        let (resource, rights) = self.whole(handle)?;
        let Resource::Region(region) = resource else { return Err(not_a_region()) };
        if region.is_gone() {
            return Err(Refused::new(errno::ENOENT, format!("{} was removed", region.name)));
        }
        let (opened, descriptors) = region.open(rights.allows(Rights::WRITE))?;
        Ok((Reply::PagesOpened(opened), descriptors))
    }

    /// What a handle leads to, and its rights. A descriptor shows its holder the whole file, so a handle for a part of
    /// the object, or without the right to read, gets none.
    fn whole(&self, handle: Handle) -> Result<(Resource, Rights), Refused> {
        let (resource, rights, range) = {
            let held = self.lock();
            let capability = held.table.get(handle)?;
            held.table.check(handle, capability.range.offset(), capability.range.bytes(), Rights::READ)?;
            (capability.resource.clone().still_there()?, capability.rights, capability.range)
        };
        let (what, bytes) = match &resource {
            // It may grow.
            Resource::Held(holding) if holding.is_writing() => (holding.name().to_string(), OBJECT_BYTES_MAX),
            Resource::Held(holding) => (holding.name().to_string(), holding.bytes()),
            Resource::Remote(info) => (info.name.to_string(), info.bytes),
            Resource::Region(region) => (format!("region {}", region.name), region.bytes),
            Resource::Kv(..) | Resource::KvBlocks(_) | Resource::Lent(_) => return Err(not_an_object()),
        };
        if range.offset() != 0 || range.end() < bytes {
            let text = format!(
                "the handle is for a part of {what}, whose file is given as a whole (hint: read and write the part through the pool API, or open all of it)"
            );
            return Err(Refused::new(errno::EACCES, text));
        }
        Ok((resource, rights))
    }

    pub(super) fn open_slots(&self, core: &Core) -> Answer {
        self.needs_host("share slots")?;
        Ok((Reply::Done, vec![core.regions.slots(self.id)?.descriptor()?]))
    }

    pub(super) fn register(
        &self,
        core: &Core,
        handle: Handle,
        pointer: u64,
        offset: u64,
        bytes: u64,
        descriptor: Option<OwnedFd>,
    ) -> Result<Reply, Refused> {
        self.needs_host("serve faults")?;
        let invalid = |text: &str| Refused::new(errno::EINVAL, text.to_owned());
        let descriptor = descriptor.ok_or_else(|| invalid("Register came without a userfaultfd"))?;
        let fault = Userfault::from_descriptor(descriptor, Scope::Full);
        if !fault.is_genuine() {
            return Err(invalid("what came with Register is no userfaultfd"));
        }
        let range =
            ByteRange::new(offset, bytes).map_err(|error| Refused::new(errno::EINVAL, error.to_string()))?;
        if !pointer.is_multiple_of(BASE_PAGE_BYTES) || pointer > POINTER_END || bytes > POINTER_END - pointer
        {
            return Err(invalid("what came with Register is no address of a mapping"));
        }
        self.whole(handle)?;
        let (file, budget_bytes) = {
            let held = self.lock();
            if held.registrations.len() >= REGISTRATIONS_MAX {
                let text = format!(
                    "{REGISTRATIONS_MAX} mappings are served for this session, the most there may be (hint: map larger parts)"
                );
                return Err(Refused::new(errno::ENOSPC, text));
            }
            let file = held.caches.get(&handle).cloned();
            (file.ok_or_else(|| invalid("Register came before Map"))?, held.preference.budget_bytes)
        };
        let new = NewRegistration {
            id: 0,
            session: self.id,
            pointer,
            range,
            page_bytes: 0,
            fault,
            channel: Arc::clone(&self.channel),
        };
        let registration = core.cache.register(&file, new, budget_bytes)?;
        fault_point::reach("map-registered");
        self.lock().registrations.insert(registration);
        Ok(Reply::Registered { registration })
    }
}

/// How a file of this length and these pages is mapped: read-only, and without a fault being served.
fn mapped(bytes: u64, address: Option<GlobalAddress>, (file_bytes, kind): (u64, PageKind)) -> Mapped {
    Mapped {
        bytes,
        file_bytes,
        address: address.unwrap_or_default(),
        armed: false,
        minor: false,
        page_bytes: kind.page_bytes(),
        writable: false,
    }
}

/// An object of another rack without bytes: an empty file, so that the kernel itself answers each touch with SIGBUS.
fn map_empty(info: &ObjectInfo) -> Answer {
    let file = MemoryFile::anonymous("hinterland-empty", 0, PageKind::Base4K)?;
    file.add_seals(Seals::FIXED_LENGTH)?;
    let mapped = mapped(0, info.address, (0, file.kind()));
    Ok((Reply::Mapped(mapped), vec![file.reopen_read_only()?]))
}

/// The file of a region for plain pointers. Its pages stay where they are for as long as anybody has it.
fn map_region(core: &Core, region: &Arc<Region>, write: bool) -> Answer {
    let give = || {
        if region.is_shared() {
            // Somebody was given a copy while the others were being taken back.
            return Ok(None);
        }
        let part = region.part().filter(|_| region.is_whole());
        let part = part.ok_or_else(|| {
            let text = format!(
                "pages of region {} lie in another rack, so it cannot be mapped (hint: read and write it through the pool API)",
                region.name
            );
            Refused::new(errno::ENOTSUP, text)
        })?;
        let descriptor = part.pinning_descriptor(write)?;
        let mapped = mapped(region.bytes, Some(region.pages.address()), part.file_shape());
        Ok(Some((Reply::Mapped(Mapped { writable: write, ..mapped }), vec![descriptor])))
    };
    for _ in 0..MAP_TRIES {
        core.regions.recall_all(core, region)?;
        if let Some(answer) = region.while_still(give)?.flatten() {
            return Ok(answer);
        }
        std::thread::sleep(MAP_PAUSE);
    }
    let text = format!("pages of {} are being moved or copied (hint: try again)", region.name);
    Err(Refused::new(errno::EAGAIN, text))
}
