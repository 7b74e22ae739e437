//! Mapping objects of the pool: the face of this crate for programs that know of it.

use crate::channel::Channel;
use crate::error::RegionError;
use crate::link::{Connection, Guard, Link, Options, nonsense, unexpected};
use crate::placing::{FilePart, Spot, put_armed, put_plain};
use crate::process;
use crate::space::{self, Source};
use crate::system::{self, Extent};
use crate::table::Piece;
use hinterland_os::Userfault;
use hinterland_os::userfault::FaultModes;
use hinterland_pool::Session;
use hinterland_proto::control::{Advice, Mapped, ObjectInfo, Opened, Reply, Request};
use hinterland_types::limits::{BASE_PAGE_BYTES, PAGE_BYTES};
use hinterland_types::{ByteRange, ObjectId, ObjectName, Rights, WINDOW_BASE, WINDOW_BYTES};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// What to map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// The object of this name.
    Name(ObjectName),
    /// The object of this identifier, which is the inode number of its file in a mount.
    Object(ObjectId),
}

impl From<ObjectName> for Target {
    fn from(name: ObjectName) -> Self {
        Self::Name(name)
    }
}

impl From<ObjectId> for Target {
    fn from(object: ObjectId) -> Self {
        Self::Object(object)
    }
}

/// Where to map.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Address {
    /// At the object's place in the window, so that pointers agree in all processes; anywhere if that is taken.
    #[default]
    Symmetric,
    /// Anywhere.
    Anywhere,
    /// At this address, in place of whatever is there.
    Fixed(u64),
}

/// What the program may do to the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Access {
    /// Read.
    #[default]
    Read,
    /// Read, and perhaps protect it otherwise later, so as to change a private copy.
    PrivateRead,
    /// Read, and change a private copy of what it writes to.
    PrivateWrite,
    /// Read and write the object itself; regions only.
    SharedWrite,
}

impl Access {
    const fn is_shared(self) -> bool {
        matches!(self, Self::Read | Self::SharedWrite)
    }
}

/// Which part to map, where, for what.
#[derive(Clone, Copy, Debug, Default)]
pub struct MapOptions {
    /// First byte of the object.
    pub offset: u64,
    /// Length; to the end of the object if absent.
    pub bytes: Option<u64>,
    /// Where.
    pub address: Address,
    /// For what.
    pub access: Access,
    /// Whether the part may end behind the object: the rest of its last page reads as zeros, and every touch behind
    /// that is SIGBUS, as with any file.
    pub beyond_end: bool,
}

/// Objects of a pool as memory of this process.
#[derive(Clone)]
pub struct Regions {
    owner: Arc<Owner>,
}

/// Ends the connection when the last user of it is gone.
struct Owner {
    link: Arc<Link>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.link.close();
    }
}

/// A part of an object, mapped until this value is dropped.
pub struct Region {
    /// The connection ends with the last of its users.
    _owner: Arc<Owner>,
    source: u64,
    pointer: NonNull<u8>,
    range: ByteRange,
    info: ObjectInfo,
    armed: bool,
}

// SAFETY: a Region is an address range; its memory is reached only through raw pointers.
unsafe impl Send for Region {}
// SAFETY: as above; no method changes the value.
unsafe impl Sync for Region {}

impl Regions {
    /// Opens a session of its own with the node that another session is connected to.
    ///
    /// # Errors
    /// [`RegionError::Pool`] without a node.
    pub fn new(session: &Session) -> Result<Self, RegionError> {
        Self::connect(&Options {
            socket: Some(session.socket().to_path_buf()),
            ..Options::from_environment()
        })
    }

    /// Opens a session with a node.
    ///
    /// # Errors
    /// [`RegionError::Pool`] without a node.
    pub fn connect(options: &Options) -> Result<Self, RegionError> {
        Ok(Self { owner: Arc::new(Owner { link: Link::connect(options)? }) })
    }

    /// Maps a part of an object.
    ///
    /// # Errors
    /// [`RegionError::Pool`] if the node refuses; [`RegionError::Range`] for a part that does not exist; the others as
    /// they say.
    pub fn map(&self, target: impl Into<Target>, options: MapOptions) -> Result<Region, RegionError> {
        let target = target.into();
        match self.map_once(&target, options) {
            // The node was restarted while nobody looked: a new session may do.
            Err(error) if error.is_gone() => self.map_once(&target, options),
            other => other,
        }
    }

    fn map_once(&self, target: &Target, options: MapOptions) -> Result<Region, RegionError> {
        let link = &self.owner.link;
        let connection = link.connected()?;
        let granted = open(&connection, target, options.access)?;
        let opened = granted.opened.clone();
        let result = self.place(&connection, granted, options);
        if result.is_err() {
            close(&connection, &opened);
        }
        result
    }

    fn place(
        &self,
        connection: &Connection,
        granted: Granted,
        options: MapOptions,
    ) -> Result<Region, RegionError> {
        let link = &self.owner.link;
        let plan = Plan::new(&granted, options)?;
        let guard = if granted.mapped.armed { Some(link.arm(connection)?) } else { None };
        let source = Source {
            link: Arc::clone(link),
            info: granted.opened.info.clone(),
            file_bytes: granted.mapped.file_bytes,
            page_bytes: granted.mapped.page_bytes,
            armed: guard.is_some(),
            shared: options.access.is_shared(),
            generation: connection.generation,
            handle: granted.opened.handle,
            registrations: Vec::new(),
        };
        let (number, extent) = plan.put_known(&granted, guard.as_deref(), options.access, source)?;
        if let Some(guard) = &guard {
            match register(connection, &granted, guard, extent, plan.file_offset) {
                Ok(registration) => {
                    if let Some(source) = space::lock().sources.get_mut(&number) {
                        source.registrations.extend(registration);
                    }
                }
                Err(error) => {
                    process::forget(number);
                    return Err(error);
                }
            }
        }
        let address = extent.address + plan.lead + plan.inset;
        let pointer = NonNull::new(std::ptr::with_exposed_provenance_mut(address as usize))
            .ok_or_else(|| nonsense("a mapping", "it lies at address zero"))?;
        Ok(Region {
            _owner: Arc::clone(&self.owner),
            source: number,
            pointer,
            range: plan.range,
            info: granted.opened.info,
            armed: guard.is_some(),
        })
    }
}

impl Region {
    /// The first byte. The memory stays mapped until this value is dropped. Other processes may write it if the object
    /// is a region.
    pub const fn pointer(&self) -> NonNull<u8> {
        self.pointer
    }

    /// Length in bytes.
    pub const fn bytes(&self) -> u64 {
        self.range.bytes()
    }

    /// Which part of the object it is.
    pub const fn range(&self) -> ByteRange {
        self.range
    }

    /// The object.
    pub const fn info(&self) -> &ObjectInfo {
        &self.info
    }

    /// Whether the bytes come from another rack, on fault.
    pub const fn is_armed(&self) -> bool {
        self.armed
    }

    /// Whether the memory lies where every process has it.
    pub fn is_symmetric(&self) -> bool {
        let address = self.info.address.and_then(|address| address.checked_add(self.range.offset()));
        address.is_some_and(|address| address.window_pointer() == self.pointer.addr().get() as u64)
    }

    /// Tells the node what is expected of a range of this region (offsets from its first byte). Advice: a node that
    /// does not answer is no error.
    ///
    /// # Errors
    /// [`RegionError::Range`] if the range is not in the region.
    pub fn advise(&self, range: ByteRange, advice: Advice) -> Result<(), RegionError> {
        let range = ByteRange::within(range.offset(), range.bytes(), self.range.bytes())?;
        process::hint(self.pointer.addr().get() as u64 + range.offset(), range.bytes(), advice);
        Ok(())
    }

    /// Leaves the memory mapped for good, or until it is unmapped by address.
    pub fn leak(self) -> NonNull<u8> {
        let pointer = self.pointer;
        std::mem::forget(self);
        pointer
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        process::forget(self.source);
    }
}

/// What the node granted.
pub(crate) struct Granted {
    pub opened: Opened,
    pub mapped: Mapped,
    pub file: OwnedFd,
}

/// Opens an object and asks for its file.
///
/// # Errors
/// [`RegionError::Pool`], or [`RegionError::Nonsense`] for an answer that cannot be.
pub(crate) fn open(connection: &Connection, target: &Target, access: Access) -> Result<Granted, RegionError> {
    let channel = connection.usable().ok_or(hinterland_pool::PoolError::Closed)?;
    let rights = if access == Access::SharedWrite { Rights::READ | Rights::WRITE } else { Rights::READ };
    let request = match target {
        Target::Name(name) => Request::Open { name: name.clone(), rights },
        Target::Object(object) => Request::OpenObject { object: *object, rights },
    };
    let opened = match channel.call(&request)? {
        Reply::Opened(opened) => opened,
        other => return Err(unexpected("Opened", &other)),
    };
    file_of(channel, &opened).inspect_err(|_| close(connection, &opened)).map(|(mapped, file)| Granted {
        opened: opened.clone(),
        mapped,
        file,
    })
}

/// Gives an object back that is not mapped after all.
pub(crate) fn close(connection: &Connection, opened: &Opened) {
    if let Some(channel) = connection.usable() {
        // Whatever the answer is, there is nothing left to be done about it.
        let _ = channel.call(&Request::Close { handle: opened.handle });
    }
}

/// Asks for the file of an object, and checks what is said of it.
fn file_of(channel: &Channel, opened: &Opened) -> Result<(Mapped, OwnedFd), RegionError> {
    let name = opened.info.name.as_str();
    let (reply, mut descriptors) = channel.call_with(&Request::Map { handle: opened.handle }, &[])?;
    let Reply::Mapped(mapped) = reply else { return Err(unexpected("Mapped", &reply)) };
    let file = descriptors.pop().ok_or_else(|| nonsense(name, "no descriptor came with `Mapped`"))?;
    let page = mapped.page_bytes;
    if !page.is_power_of_two() || !(BASE_PAGE_BYTES..=PAGE_BYTES).contains(&page) {
        return Err(nonsense(name, format!("its pages have {page} bytes")));
    }
    if mapped.bytes > mapped.file_bytes
        || mapped.bytes != opened.info.bytes
        || !mapped.file_bytes.is_multiple_of(page)
    {
        let reason = format!(
            "{} bytes in a file of {} bytes, {} by its description",
            mapped.bytes, mapped.file_bytes, opened.info.bytes
        );
        return Err(nonsense(name, reason));
    }
    Ok((mapped, file))
}

/// Which faults of an object's mapping are served.
pub(crate) const fn fault_modes(mapped: &Mapped) -> FaultModes {
    FaultModes { missing: true, minor: mapped.minor, write_protect: false }
}

/// Hands the descriptor of the faults to the node. `None` for a mapping that lies wholly behind the file.
///
/// # Errors
/// [`RegionError::Pool`].
pub(crate) fn register(
    connection: &Connection,
    granted: &Granted,
    guard: &Userfault,
    extent: Extent,
    offset: u64,
) -> Result<Option<u64>, RegionError> {
    let bytes = extent.bytes.min(granted.mapped.file_bytes.saturating_sub(offset));
    if bytes == 0 {
        return Ok(None);
    }
    let channel = connection.usable().ok_or(hinterland_pool::PoolError::Closed)?;
    let request = Request::Register { handle: granted.opened.handle, pointer: extent.address, offset, bytes };
    match channel.call_with(&request, &[guard.as_fd()])? {
        (Reply::Registered { registration }, _) => Ok(Some(registration)),
        (other, _) => Err(unexpected("Registered", &other)),
    }
}

const fn protection(access: Access) -> i32 {
    match access {
        Access::Read | Access::PrivateRead => libc::PROT_READ,
        Access::PrivateWrite | Access::SharedWrite => libc::PROT_READ | libc::PROT_WRITE,
    }
}

/// How a part of an object becomes whole pages of its file.
struct Plan {
    /// The part asked for.
    range: ByteRange,
    /// The part in base pages: what the program may unmap or protect.
    view_offset: u64,
    view_bytes: u64,
    /// The part in pages of the file: what the kernel maps.
    file_offset: u64,
    file_bytes: u64,
    /// From the kernel's mapping to the view, and from the view to the first byte.
    lead: u64,
    inset: u64,
    /// Where to try, in order.
    spots: [Spot; 2],
}

impl Plan {
    fn new(granted: &Granted, options: MapOptions) -> Result<Self, RegionError> {
        let (object_bytes, page) = (granted.mapped.bytes, granted.mapped.page_bytes);
        let bytes = options.bytes.unwrap_or_else(|| object_bytes.saturating_sub(options.offset));
        let limit = if options.beyond_end { i64::MAX as u64 - 2 * PAGE_BYTES } else { object_bytes };
        let range = ByteRange::within(options.offset, bytes, limit)?;
        if bytes == 0 {
            return Err(
                hinterland_types::RangeError::OutOfBounds { offset: range.offset(), bytes, limit }.into()
            );
        }
        if options.access == Access::PrivateWrite && page > BASE_PAGE_BYTES {
            let name = granted.opened.info.name.to_string();
            return Err(RegionError::PrivateHuge { name, page_bytes: page });
        }
        let view_offset = range.offset() - range.offset() % BASE_PAGE_BYTES;
        let view_bytes = range.end().next_multiple_of(BASE_PAGE_BYTES) - view_offset;
        let file_offset = view_offset - view_offset % page;
        let file_bytes = (view_offset + view_bytes).next_multiple_of(page) - file_offset;
        let lead = view_offset - file_offset;
        let spots = match options.address {
            Address::Anywhere => [Spot::Anywhere; 2],
            Address::Symmetric => [symmetric(granted, file_offset, file_bytes), Spot::Anywhere],
            Address::Fixed(address) => {
                let fits = lead == 0 && file_bytes == view_bytes && address.is_multiple_of(page);
                if !fits || range.offset() != view_offset {
                    let offset = range.offset();
                    return Err(RegionError::Alignment { offset, bytes, address, page_bytes: page });
                }
                [Spot::Over(address); 2]
            }
        };
        let inset = range.offset() - view_offset;
        Ok(Self { range, view_offset, view_bytes, file_offset, file_bytes, lead, inset, spots })
    }

    /// Maps the part and enters it into the table, in one step for forks and other threads.
    fn put_known(
        &self,
        granted: &Granted,
        guard: Option<&Guard>,
        access: Access,
        source: Source,
    ) -> Result<(u64, Extent), RegionError> {
        let mut space = space::lock();
        let replaced = match self.spots[0] {
            Spot::Over(address) => space.table.cut(address, address + self.view_bytes),
            Spot::Anywhere | Spot::Free(_) => Vec::new(),
        };
        let retired = space.retire(&replaced);
        let put = self.put(granted, guard, access);
        if let (Err(_), Spot::Over(address)) = (&put, self.spots[0]) {
            // SAFETY: the program gave the range away, and what the pool had there is not looked after any more.
            let _ = unsafe { system::unmap(address, self.view_bytes) };
        }
        let entered = put.map(|extent| {
            let piece = Piece {
                address: extent.address + self.lead,
                bytes: self.view_bytes,
                offset: self.view_offset,
                source: 0,
                protection: protection(access),
                copies: access == Access::PrivateWrite,
            };
            (space.add(source, piece), extent)
        });
        drop(space);
        retired.iter().for_each(|source| source.link.release(source));
        entered
    }

    fn put(&self, granted: &Granted, guard: Option<&Guard>, access: Access) -> Result<Extent, RegionError> {
        let part = FilePart { file: granted.file.as_fd(), offset: self.file_offset, bytes: self.file_bytes };
        let put = |spot| match guard {
            Some(guard) => put_armed(part, spot, protection(access), guard, fault_modes(&granted.mapped)),
            None => put_plain(part, spot, protection(access), access.is_shared()),
        };
        match put(self.spots[0]) {
            Err(error) if error.code() == libc::EEXIST => put(self.spots[1]),
            other => other,
        }
    }
}

/// The place in the window, if the part lies in the object's pages: what lies behind them is another object's place.
fn symmetric(granted: &Granted, file_offset: u64, file_bytes: u64) -> Spot {
    let placed_bytes = granted.mapped.bytes.next_multiple_of(PAGE_BYTES);
    let start = (WINDOW_BASE + granted.mapped.address.raw()).checked_add(file_offset);
    match start {
        Some(start)
            if file_offset + file_bytes <= placed_bytes
                && start + file_bytes <= WINDOW_BASE + WINDOW_BYTES
                && start.is_multiple_of(granted.mapped.page_bytes) =>
        {
            Spot::Free(start)
        }
        _ => Spot::Anywhere,
    }
}
