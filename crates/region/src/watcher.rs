//! The one thread that looks after mapped memory: it answers the node's notices, and when the node dies it brings the
//! memory back or gives it up.

use crate::error::RegionError;
use crate::link::{Link, Notices};
use crate::private_pages::{PageScan, Which};
use crate::recovery;
use crate::space::{self, Space};
use crate::system::{self, Extent};
use crate::thread;
use hinterland_os::socket::UnixStream;
use hinterland_proto::control::{Notice, NoticeReply, ProbeRange, decode, encode};
use hinterland_types::limits::{BASE_PAGE_BYTES, CONTROL_BYTES_MAX};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Starts the thread on a channel of notices; without one it begins by making the connection.
///
/// # Errors
/// [`RegionError::Thread`].
pub(crate) fn start(link: Arc<Link>, notices: Option<Arc<Notices>>) -> Result<(), RegionError> {
    thread::start(move || watch(&link, notices)).map_err(|source| RegionError::Thread { source })
}

fn watch(link: &Arc<Link>, mut notices: Option<Arc<Notices>>) {
    loop {
        if let Some(stream) = notices.take() {
            serve(link, &stream);
            // Relaxed: read by a forked child only, in which no other thread runs.
            link.descriptors().watch.store(-1, Ordering::Relaxed);
        }
        if link.is_closing() {
            break;
        }
        notices = recovery::recover(link);
        if notices.is_none() {
            break;
        }
    }
}

/// Answers notices until the channel ends or makes no sense any more.
fn serve(link: &Arc<Link>, stream: &UnixStream) {
    let mut none = Vec::new();
    loop {
        let mut length = [0; 4];
        if stream.receive_exact(&mut length, &mut none).is_err() {
            return;
        }
        let length = u32::from_le_bytes(length);
        if length > CONTROL_BYTES_MAX {
            return;
        }
        // At most 1 MiB: the cast loses nothing.
        let mut body = vec![0; length as usize];
        if stream.receive_exact(&mut body, &mut none).is_err() {
            return;
        }
        none.clear();
        let Ok(notice) = decode::<Notice>(&body) else { return };
        let Ok(reply) = encode(&answer(link, notice)) else { return };
        // A control message has at most 1 MiB: the cast loses nothing.
        let mut frame = (reply.len() as u32).to_le_bytes().to_vec();
        frame.extend_from_slice(&reply);
        if stream.send_all(&frame, &[]).is_err() {
            return;
        }
    }
}

fn answer(link: &Arc<Link>, notice: Notice) -> NoticeReply {
    // Without `/proc` every range counts as in use: a worse guess, never a wrong byte.
    let scan = || PageScan::open().ok();
    match notice {
        Notice::Lost { text } => {
            system::say(&text);
            NoticeReply::Seen { id: 0 }
        }
        Notice::Unmap { id, ranges } => {
            let scan = scan();
            for range in ranges {
                let space = space::lock();
                for extent in own_parts(&space, link, range) {
                    drop_entries(extent, scan.as_ref());
                }
            }
            NoticeReply::Seen { id }
        }
        Notice::Touched { id, ranges } => {
            let scan = scan();
            let touched = ranges.into_iter().map(|range| is_touched(link, range, scan.as_ref())).collect();
            NoticeReply::Touched { id, touched }
        }
    }
}

/// Drops page-table entries of a range that the table lock keeps as it is.
fn drop_entries(extent: Extent, scan: Option<&PageScan>) {
    // What the program wrote for itself would be lost with the entries. Asked each time, since a program may have made a
    // mapping writable without this library knowing.
    if scan.is_none_or(|scan| scan.has(extent, Which::Own).unwrap_or(true)) {
        return;
    }
    // SAFETY: the range is of the pool, by the table under its lock, and all its pages are pages of the file.
    let _ = unsafe { system::advise(extent.address, extent.bytes, libc::MADV_DONTNEED) };
}

fn is_touched(link: &Arc<Link>, range: ProbeRange, scan: Option<&PageScan>) -> bool {
    let space = space::lock();
    let parts = own_parts(&space, link, range);
    match scan {
        Some(scan) => parts.into_iter().any(|part| scan.has(part, Which::Present).unwrap_or(true)),
        None => !parts.is_empty(),
    }
}

/// The pages of a range that this connection serves. A node cannot name memory that is not the pool's.
fn own_parts(space: &Space, link: &Arc<Link>, range: ProbeRange) -> Vec<Extent> {
    let Some(end) = range.pointer.checked_add(range.bytes) else { return Vec::new() };
    let parts = space.table.parts(range.pointer, end);
    parts
        .into_iter()
        .filter_map(|part| {
            let source = space.sources.get(&part.source)?;
            let served = source.armed && Arc::ptr_eq(&source.link, link);
            let page = source.page_bytes.max(BASE_PAGE_BYTES);
            // A page of which the program uses a part is mapped as a whole.
            let start = part.address - part.address % page;
            let stop = part.end().next_multiple_of(page);
            served.then(|| Extent { address: start, bytes: stop - start })
        })
        .collect()
}
