//! A page that comes from its home: into the room that was made for it, and compared with the checksum that its home said.

use crate::core::Core;
use crate::fault_point;
use crate::holdings::Holding;
use crate::refused::{Refused, errno};
use crate::regions::Region;
use hinterland_fabric::Slice;
use hinterland_proto::checksum::crc32c;
use hinterland_types::limits::PAGE_BYTES;
use hinterland_types::{ByteRange, Handle};

/// What a home has granted.
pub(super) struct Granted<'a> {
    /// Where the home answers.
    pub address: &'a str,
    /// By which the page is read.
    pub handle: Handle,
    /// The checksum of its bytes.
    pub crc: u32,
}

/// Copies a page into this node's part of its region. `step` is reached between the copy and the comparison.
///
/// # Errors
/// [`Refused`] if the home does not answer, or the bytes are not those that it has.
pub(super) fn bring_page(
    core: &Core,
    region: &Region,
    index: u32,
    holding: &Holding,
    granted: &Granted<'_>,
    step: &'static str,
) -> Result<(), Refused> {
    let offset = u64::from(index) * PAGE_BYTES;
    // The last page of a region may be short; its file has whole pages.
    let bytes = PAGE_BYTES.min(region.bytes - offset);
    let into = Slice::from(holding.slice(offset, bytes)?);
    let run =
        ByteRange::new(offset, bytes).map_err(|error| Refused::new(errno::EINVAL, error.to_string()))?;
    core.peers.endpoint(granted.address)?.read_shared(granted.handle, &[run], &into)?;
    fault_point::reach(step);
    if crc32c(&into.to_vec()) != granted.crc || into.is_lost() {
        return Err(Refused::new(errno::EIO, "the page did not arrive as it was sent"));
    }
    Ok(())
}
