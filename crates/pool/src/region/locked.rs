//! Accesses under a guard: each carries the lock's fence to the home of its page, or happens in the thread's slot while the guard is
//! believed.

use super::{Attempt, HOME_TRIES, Piece, RegionPages, is_unsettled, pieces};
use crate::remote::call;
use crate::session::unexpected;
use crate::{Pool, PoolError};
use hinterland_fabric::FabricError;
use hinterland_proto::control::{Opened, Reply, Request};
use hinterland_types::limits::PAGE_SHIFT;
use hinterland_types::{ByteRange, GlobalAddress, Handle, whole_words};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

/// Most bytes of one message: a control message has 1 MiB.
const MESSAGE_BYTES_MAX: usize = 512 << 10;
/// Most ranges of one message.
const MESSAGE_RUNS_MAX: usize = 1024;

/// The lock under which an access happens.
pub(crate) struct Under<'a> {
    pub(crate) lock: GlobalAddress,
    pub(crate) fence: u64,
    /// Whether the guard is believed at this moment.
    pub(crate) is_believed: &'a dyn Fn() -> bool,
    /// Asks the node whether it is, and says why not.
    pub(crate) confirm: &'a dyn Fn() -> Result<(), PoolError>,
}

/// What is written to one page.
type Store<'a> = (Piece, &'a [u8]);

impl Under<'_> {
    fn check(&self) -> Result<(), PoolError> {
        if (self.is_believed)() { Ok(()) } else { (self.confirm)() }
    }
}

impl RegionPages {
    /// Whether all of a range lies on this host, as far as the words say; to be read also if it is a copy.
    pub(crate) fn lies_here(&self, offset: u64, bytes: usize, is_write: bool) -> bool {
        let last = (offset + bytes.max(1) as u64 - 1) >> PAGE_SHIFT;
        // A region has at most 2^25 pages.
        self.part.get().is_some()
            && (offset >> PAGE_SHIFT..=last)
                .map(|index| self.word_of(index as u32))
                .all(|word| if is_write { word.is_held() } else { word.is_fit(false) || word.is_copy() })
    }

    /// Writes ranges, of which none overlaps another. After an error it is not known which of them were written.
    pub(crate) fn write_locked(
        &self,
        pool: &Pool,
        opened: &Opened,
        under: &Under<'_>,
        writes: &[(u64, &[u8])],
    ) -> Result<(), PoolError> {
        self.check_process()?;
        let mut left: Vec<Store<'_>> = Vec::new();
        for (offset, bytes) in writes {
            for piece in pieces(*offset, bytes.len()) {
                let from = &bytes[piece.done..piece.done + piece.bytes];
                left.extend(messages(piece.offset, piece.bytes).map(|part| {
                    let offset = piece.offset + part.start as u64;
                    (Piece { offset, bytes: part.len(), ..piece }, &from[part])
                }));
            }
        }
        let started = Instant::now();
        while !left.is_empty() {
            under.check()?;
            let mut unsettled: Vec<Store<'_>> = Vec::new();
            let mut own: Vec<Store<'_>> = Vec::new();
            let mut elsewhere: BTreeMap<usize, Vec<Store<'_>>> = BTreeMap::new();
            for (piece, bytes) in left {
                match self.store(under, piece, bytes)? {
                    Attempt::Done(()) => {}
                    Attempt::At(home) => elsewhere.entry(home).or_default().push((piece, bytes)),
                    Attempt::Unsettled if self.is_out_of_slots(piece, true) => own.push((piece, bytes)),
                    Attempt::Unsettled => unsettled.push((piece, bytes)),
                }
            }
            let ask_own = |request: &Request| pool.session().call(request);
            send(under, opened.handle, &own, ask_own, &mut unsettled)?;
            for (home, stores) in elsewhere {
                stores.iter().for_each(|(piece, _)| self.sample(piece.index, true));
                let attached = match self.attach(pool, opened, home) {
                    Err(error) if is_unsettled(&error) => {
                        unsettled.extend(stores);
                        continue;
                    }
                    other => other?,
                };
                let ask = |request: &Request| {
                    call(&attached.endpoint, request)
                        .map_err(|error| self.call_failed(pool, &attached, error))
                };
                send(under, attached.handle, &stores, ask, &mut unsettled)?;
            }
            let places: Vec<Piece> = unsettled.iter().map(|(piece, _)| *piece).collect();
            self.settle(pool, opened, &places, true, started)?;
            left = unsettled;
        }
        Ok(())
    }

    /// Reads a range.
    pub(crate) fn read_locked(
        &self,
        pool: &Pool,
        opened: &Opened,
        under: &Under<'_>,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), PoolError> {
        self.check_process()?;
        let started = Instant::now();
        let mut failures = 0;
        let mut left = pieces(offset, into.len());
        while !left.is_empty() {
            let mut unsettled = Vec::new();
            for piece in left {
                let part = &mut into[piece.done..piece.done + piece.bytes];
                // 64-bit only.
                let at = piece.offset as usize;
                let read = match self.in_page(piece.index, false, |memory| memory.read_at(at, part)) {
                    Attempt::Done(done) => Ok(done?),
                    Attempt::At(home) => self.read_there(pool, opened, under, home, piece, part),
                    Attempt::Unsettled if self.is_out_of_slots(piece, false) => {
                        let ask = |request: &Request| pool.session().call(request);
                        fetch(under, opened.handle, piece.offset, part, ask)
                    }
                    Attempt::Unsettled => {
                        unsettled.push(piece);
                        continue;
                    }
                };
                match read {
                    Ok(()) => {}
                    Err(error) if is_unsettled(&error) => unsettled.push(piece),
                    Err(error @ PoolError::Refused { .. }) => return Err(error),
                    Err(error) => {
                        failures += 1;
                        if failures >= HOME_TRIES {
                            return Err(error);
                        }
                        unsettled.push(piece);
                    }
                }
            }
            self.settle(pool, opened, &unsettled, false, started)?;
            left = unsettled;
        }
        // What was read while it was believed is what the lock protects.
        under.check()
    }

    fn read_there(
        &self,
        pool: &Pool,
        opened: &Opened,
        under: &Under<'_>,
        home: usize,
        piece: Piece,
        into: &mut [u8],
    ) -> Result<(), PoolError> {
        let attached = self.attach(pool, opened, home)?;
        self.sample(piece.index, false);
        fetch(under, attached.handle, piece.offset, into, |request| {
            call(&attached.endpoint, request).map_err(|error| self.call_failed(pool, &attached, error))
        })
    }

    /// Stores into this host's memory if the page is there. The thread is in its slot when it looks whether the guard is believed, so
    /// that its node can be sure that no store comes when it has seen the slot empty behind the end of the belief.
    fn store(&self, under: &Under<'_>, piece: Piece, bytes: &[u8]) -> Result<Attempt<()>, PoolError> {
        // 64-bit only.
        let offset = piece.offset as usize;
        loop {
            let attempt = self.in_page(piece.index, true, |memory| {
                (under.is_believed)().then(|| memory.write_at(offset, bytes))
            });
            match attempt {
                Attempt::Done(Some(done)) => return Ok(Attempt::Done(done?)),
                Attempt::Done(None) => (under.confirm)()?,
                Attempt::At(home) => return Ok(Attempt::At(home)),
                Attempt::Unsettled => return Ok(Attempt::Unsettled),
            }
        }
    }

    /// Whether a page is here and the thread has no slot: then its node does the access.
    fn is_out_of_slots(&self, piece: Piece, is_write: bool) -> bool {
        self.part.get().is_some() && self.word_of(piece.index).is_fit(is_write)
    }

    /// A connection or a handle that is of no use any more is forgotten.
    fn call_failed(&self, pool: &Pool, attached: &super::Attached, error: PoolError) -> PoolError {
        const EBADF: i32 = 9;
        match error {
            PoolError::Fabric(error) if !matches!(*error, FabricError::Remote { .. }) => {
                self.failed(pool, attached, *error)
            }
            PoolError::Refused { code: EBADF, text } => {
                self.lock().remove(&attached.address);
                PoolError::Refused { code: EBADF, text }
            }
            error => error,
        }
    }
}

/// Sends writes in as few messages as they fit in. Those that the home refuses because a page is not there are put with `unsettled`.
fn send<'a>(
    under: &Under<'_>,
    handle: Handle,
    stores: &[Store<'a>],
    ask: impl Fn(&Request) -> Result<Reply, PoolError>,
    unsettled: &mut Vec<Store<'a>>,
) -> Result<(), PoolError> {
    let mut rest = stores;
    while !rest.is_empty() {
        let (mut runs, mut bytes): (Vec<ByteRange>, Vec<u8>) = (Vec::new(), Vec::new());
        for (piece, from) in rest.iter().take(MESSAGE_RUNS_MAX) {
            // Each piece alone fits.
            if bytes.len() + from.len() > MESSAGE_BYTES_MAX {
                break;
            }
            runs.push(crate::session::range(piece.offset, from.len() as u64)?);
            bytes.extend_from_slice(from);
        }
        let (now, later) = rest.split_at(runs.len());
        match ask(&Request::WriteLocked { handle, lock: under.lock, fence: under.fence, runs, bytes }) {
            Ok(Reply::Done) => {}
            Ok(other) => return Err(unexpected("Done", &other)),
            Err(error) if is_unsettled(&error) => unsettled.extend_from_slice(now),
            Err(error) => return Err(error),
        }
        rest = later;
    }
    Ok(())
}

/// Reads a range of one home.
fn fetch(
    under: &Under<'_>,
    handle: Handle,
    offset: u64,
    into: &mut [u8],
    ask: impl Fn(&Request) -> Result<Reply, PoolError>,
) -> Result<(), PoolError> {
    for part in messages(offset, into.len()) {
        let range = crate::session::range(offset + part.start as u64, part.len() as u64)?;
        let part = &mut into[part];
        match ask(&Request::ReadLocked { handle, lock: under.lock, fence: under.fence, range })? {
            Reply::Bytes(bytes) if bytes.len() == part.len() => part.copy_from_slice(&bytes),
            other => return Err(unexpected("as many bytes as were asked for", &other)),
        }
    }
    Ok(())
}

/// Cuts what begins at an offset into parts that fit into a message each, and through no word.
fn messages(offset: u64, bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let (start, end) = (offset + done as u64, offset + bytes as u64);
        // A message has room for more than a word, so that something is left.
        let part = whole_words(start, end, MESSAGE_BYTES_MAX as u64) as usize;
        done += part;
        (part > 0).then_some(done - part..done)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_access_is_cut_between_words_only_and_whole() {
        for offset in 0..9 {
            for bytes in [0, 1, 7, MESSAGE_BYTES_MAX - 1, MESSAGE_BYTES_MAX, 3 * MESSAGE_BYTES_MAX + 5] {
                let mut done = 0;
                for part in messages(offset, bytes) {
                    let is_last = part.end == bytes;
                    assert!(part.start == done && (1..=MESSAGE_BYTES_MAX).contains(&part.len()));
                    assert!(is_last || (offset + part.end as u64).is_multiple_of(8), "{offset} {bytes}");
                    done = part.end;
                }
                assert_eq!(done, bytes);
            }
        }
    }
}
