//! Operations on address ranges of this process, whoever mapped them: what the preload library hands on.
//!
//! Each returns `None` if nothing in the range is of the pool; then it is the kernel's business alone.

use crate::space::{self, Source, SpaceGuard};
use crate::system::{self, Extent};
use crate::table::Piece;
use hinterland_proto::control::{Advice, Request};
use hinterland_types::ByteRange;
use hinterland_types::limits::BASE_PAGE_BYTES;
use std::io;
use std::sync::Arc;

/// How much of a range is of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Share {
    /// Nothing.
    None,
    /// Some pages.
    Part,
    /// All pages.
    Whole,
}

/// How much of a range is of the pool.
pub fn share(address: u64, bytes: u64) -> Share {
    let Some((space, end)) = enter(address, bytes) else { return Share::None };
    let parts = space.table.parts(address, end);
    match parts.iter().map(|part| part.bytes).sum::<u64>() {
        0 => Share::None,
        sum if sum == end - address => Share::Whole,
        _ => Share::Part,
    }
}

/// Whether faults of any page of a range are served.
pub fn is_served(address: u64, bytes: u64) -> bool {
    let Some((space, end)) = enter(address, bytes) else { return false };
    let parts = space.table.parts(address, end);
    parts.iter().any(|part| space.sources.get(&part.source).is_some_and(|source| source.armed))
}

/// The largest page of the pool memory in a range; `None` if there is none. On huge pages the kernel refuses what does
/// not begin and end with one.
pub fn page_bytes(address: u64, bytes: u64) -> Option<u64> {
    let (space, end) = enter(address, bytes)?;
    space.table.parts(address, end).iter().map(|part| space.page_bytes(part.source)).max()
}

/// Unmaps a range, pool memory and other memory alike.
///
/// Of huge pages, those of which the program keeps a part stay mapped until it unmaps the rest.
pub fn unmap(address: u64, bytes: u64) -> Option<io::Result<()>> {
    let (mut space, end) = enter(address, bytes)?;
    let parts = space.table.cut(address, end);
    let husks = space.husks.parts(address, end);
    if parts.is_empty() && husks.is_empty() {
        return None;
    }
    let (result, undone) = unmap_parts(&mut space, &parts, &husks, address, end);
    for piece in undone {
        space.table.insert(piece);
    }
    leave(space, &parts);
    Some(result)
}

/// Runs a call that puts something else in place of a range (`mmap` or `mremap` with a fixed address), and forgets what
/// the pool had there. If the call fails, nothing is forgotten.
pub fn replace<T>(address: u64, bytes: u64, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let Some((mut space, end)) = enter(address, bytes) else { return call() };
    let parts = space.table.cut(address, end);
    let result = call();
    if result.is_err() {
        for piece in &parts {
            space.table.insert(*piece);
        }
    }
    leave(space, &parts);
    result
}

/// Changes the protection of a range.
pub fn protect(address: u64, bytes: u64, protection: i32) -> Option<io::Result<()>> {
    let (mut space, end) = enter(address, bytes)?;
    let parts = space.table.parts(address, end);
    if parts.is_empty() {
        return None;
    }
    let writes = protection & libc::PROT_WRITE != 0;
    let refused = |part: &Piece| {
        space
            .sources
            .get(&part.source)
            .is_some_and(|source| source.armed && (source.shared || source.page_bytes > BASE_PAGE_BYTES))
    };
    if writes && parts.iter().any(refused) {
        // What a descriptor opened for reading answers; the kernel would allow it, since the mapping is private.
        return Some(Err(io::Error::from_raw_os_error(libc::EACCES)));
    }
    // The rest of a huge page at either end goes along if the program does not use it.
    let page = |part: Option<&Piece>| part.map_or(BASE_PAGE_BYTES, |part| space.page_bytes(part.source));
    let (first, last) = (page(parts.first()), page(parts.last()));
    let (low, high) = (address - address % first, end.next_multiple_of(last));
    let start = if space.table.parts(low, address).is_empty() { low } else { address };
    let stop = if space.table.parts(end, high).is_empty() { high } else { end };
    // SAFETY: the program asked for it, for memory of its own, and nobody uses the rest of its pages.
    let result = unsafe { system::protect(start, stop - start, protection) };
    if result.is_ok() {
        for part in parts {
            space.table.insert(Piece { protection, copies: part.copies || writes, ..part });
        }
    }
    Some(result)
}

/// Tells the nodes what is expected of the pool memory in a range. Returns whether there is any.
pub fn hint(address: u64, bytes: u64, advice: Advice) -> bool {
    let Some((space, end)) = enter(address, bytes) else { return false };
    let parts = space.table.parts(address, end);
    let told: Vec<_> = parts
        .iter()
        .filter_map(|part| {
            let source = space.sources.get(&part.source)?;
            let bytes = part.bytes.min(source.info.bytes.saturating_sub(part.offset));
            let range = ByteRange::new(part.offset, bytes).ok().filter(|range| range.bytes() > 0)?;
            let request = Request::Advise { handle: source.handle, range, advice };
            Some((Arc::clone(&source.link), source.generation, request))
        })
        .collect();
    drop(space);
    for (link, generation, request) in told {
        let Some(connection) = link.connection_now() else { continue };
        if let Some(channel) = connection.usable().filter(|_| connection.generation == generation) {
            // Advice that is not taken changes nothing.
            let _ = channel.call(&request);
        }
    }
    !parts.is_empty()
}

/// Unmaps what is left of a source.
pub(crate) fn forget(number: u64) {
    let mut space = space::lock();
    let pieces = space.table.of_source(number);
    for piece in &pieces {
        space.table.cut(piece.address, piece.end());
    }
    for piece in &pieces {
        let (result, undone) = unmap_parts(&mut space, &[*piece], &[], piece.address, piece.end());
        if result.is_err() {
            // Out of mappings: what cannot be unmapped stays, and stays known.
            undone.into_iter().for_each(|piece| drop(space.table.insert(piece)));
        }
    }
    leave(space, &pieces);
}

/// The lock and the end of the range, if the range can be of the pool and the kernel would take it.
fn enter(address: u64, bytes: u64) -> Option<(SpaceGuard, u64)> {
    let end = address.checked_add(bytes)?.checked_next_multiple_of(BASE_PAGE_BYTES)?;
    let sound = bytes > 0 && address.is_multiple_of(BASE_PAGE_BYTES);
    if !sound || !space::may_overlap(address, end - address) || space::is_held_here() {
        return None;
    }
    Some((space::lock(), end))
}

/// Lets go of the lock, then of the sources that the parts leave empty.
fn leave(mut space: SpaceGuard, parts: &[Piece]) {
    let retired: Vec<Source> = space.retire(parts);
    drop(space);
    for source in retired {
        source.link.release(&source);
    }
}

/// Unmaps parts that were cut out of the table, and what lies between them and is not of the pool; returns what could
/// not be unmapped. Husks are what the program unmapped earlier of huge pages that it still uses.
fn unmap_parts(
    space: &mut SpaceGuard,
    parts: &[Piece],
    husks: &[Piece],
    address: u64,
    end: u64,
) -> (io::Result<()>, Vec<Piece>) {
    // Each step names the first part that it unmaps, to know what is left if the kernel refuses.
    let mut steps: Vec<(usize, Extent)> = Vec::new();
    let mut add = |index: usize, start: u64, stop: u64| match steps.last_mut() {
        _ if start >= stop => {}
        Some((_, last)) if last.end() >= start => {
            let (low, high) = (start.min(last.address), stop.max(last.end()));
            *last = Extent { address: low, bytes: high - low };
        }
        _ => steps.push((index, Extent { address: start, bytes: stop - start })),
    };
    let mut known: Vec<(Piece, bool)> = parts.iter().map(|part| (*part, true)).collect();
    known.extend(husks.iter().map(|husk| (*husk, false)));
    known.sort_by_key(|(piece, _)| piece.address);
    let (mut cursor, mut index) = (address, 0);
    for (piece, is_part) in &known {
        add(index, cursor, piece.address);
        if *is_part {
            let freed = space.freed_extent(piece);
            add(index, freed.address, freed.end());
            index += 1;
        }
        cursor = piece.end();
    }
    add(parts.len(), cursor, end);
    for (first, extent) in steps {
        // SAFETY: the program asked for the range to be unmapped, or the pages around it are of the pool and unused.
        if let Err(error) = unsafe { system::unmap(extent.address, extent.bytes) } {
            return (Err(error), parts[first.min(parts.len())..].to_vec());
        }
    }
    for part in parts {
        let freed = space.freed_extent(part);
        space.husks.cut(freed.address, freed.end());
        let (before, behind) = (part.within(0, freed.address), part.within(freed.end(), u64::MAX));
        for husk in [before, behind].into_iter().flatten() {
            space.husks.insert(husk);
        }
    }
    (Ok(()), Vec::new())
}
