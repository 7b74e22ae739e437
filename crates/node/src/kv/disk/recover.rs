//! What the file held when the node started: the headers of all regions, read at the same time, and of each region several ahead.

use super::{DiskTier, State};
use crate::fault_point;
use hinterland_kv::disk::{RECORD_ALIGN, RegionScan, TierLog};
use hinterland_os::{DirectBuffer, Transfer};
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

/// Headers that are read at once, of all regions together: 4 MiB, and far more than are under way at once.
const PAGES: usize = 1024;
/// Most headers of a region that are read at once.
const AHEAD_MAX: u64 = 64;

/// A number that is higher for each node than what the one before it has given to records, of which it gives far fewer than one a nanosecond.
fn clock_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(0)
}

/// A region whose headers are read.
struct Reading {
    scan: RegionScan,
    /// How many headers are read at once: twice as many as long as all of them are of use, else one again. Blocks of a store are mostly
    /// as long as the one before.
    ahead: u64,
    has_ended: bool,
    /// A header could not be read: there may be more behind.
    has_failed: bool,
}

impl Reading {
    const fn new(scan: RegionScan) -> Self {
        Self { scan, ahead: 1, has_ended: false, has_failed: false }
    }

    /// Takes pages that were read, with their places, one after the other, as long as each lies where the next header does.
    fn take<'pages>(
        &mut self,
        log: &TierLog,
        pages: impl Iterator<Item = (u64, &'pages io::Result<()>, &'pages [u8])>,
    ) {
        for (offset, result, page) in pages {
            if self.scan.next(log) != Some(offset) {
                self.ahead = 1;
                return;
            }
            if result.is_err() || !self.scan.take(log, page) {
                (self.has_ended, self.has_failed) = (true, result.is_err());
                return;
            }
        }
        self.ahead = (self.ahead * 2).min(AHEAD_MAX);
    }
}

impl DiskTier {
    /// Reads headers until each region has ended, then takes what they say.
    pub(super) fn recover(&self) {
        let mut readings: Vec<Reading> = self.lock().log.scans().into_iter().map(Reading::new).collect();
        match DirectBuffer::new(PAGES.max(readings.len()) * RECORD_ALIGN) {
            Ok(mut buffer) => while self.read_next(&mut readings, &mut buffer) {},
            Err(error) => tracing::error!(%error, "what the disk of KV blocks holds cannot be read"),
        }
        fault_point::reach("kv-disk-scanned");
        let mut state = self.lock();
        state.has_unknown = readings.iter().any(|reading| reading.has_failed || !reading.has_ended);
        state.log.recover(readings.into_iter().map(|reading| reading.scan).collect(), clock_ns());
        // What was removed while it was read.
        let State { log, notes, .. } = &mut *state;
        notes.apply(log);
        state.is_known = true;
        let (blocks, bytes) = (state.log.blocks(), state.log.bytes());
        drop(state);
        self.changed.notify_all();
        tracing::info!(path = %self.path.display(), blocks, bytes, "the disk of KV blocks is known");
    }

    /// Reads the next headers of each region that goes on; false if none does.
    fn read_next(&self, readings: &mut [Reading], buffer: &mut DirectBuffer) -> bool {
        let state = self.lock();
        if state.is_stopping {
            return false;
        }
        let going_on = readings.iter().filter(|reading| !reading.has_ended).count().max(1);
        let most = (PAGES / going_on).max(1) as u64;
        // The region and the place of each page.
        let mut places: Vec<(usize, u64)> = Vec::new();
        for (number, reading) in readings.iter_mut().enumerate() {
            let before = places.len();
            if !reading.has_ended {
                let ahead = reading.scan.ahead(&state.log, reading.ahead.min(most));
                places.extend(ahead.map(|offset| (number, offset)));
            }
            reading.has_ended = places.len() == before;
        }
        drop(state);
        let pages = buffer.bytes_mut().as_chunks_mut::<RECORD_ALIGN>().0.iter_mut();
        let read = |((_, offset), page): (&(usize, u64), _)| {
            let page: &mut [u8; RECORD_ALIGN] = page;
            Transfer::Read(*offset, &mut page[..])
        };
        let mut reads: Vec<Transfer<'_>> = places.iter().zip(pages).map(read).collect();
        let results = self.media.transfer(&mut reads);
        drop(reads);
        let mut state = self.lock();
        for result in &results {
            self.judge(&mut state, result);
        }
        let (pages, _) = buffer.bytes().as_chunks::<RECORD_ALIGN>();
        let mut at = 0;
        for of_region in places.chunk_by(|(one, _), (other, _)| one == other) {
            let range = at..at + of_region.len();
            at = range.end;
            let pages = pages[range.clone()].iter().map(|page| &page[..]);
            let read = of_region.iter().zip(&results[range]).zip(pages);
            let read = read.map(|(((_, offset), result), page)| (*offset, result, page));
            readings[of_region[0].0].take(&state.log, read);
        }
        readings.iter().any(|reading| !reading.has_ended)
    }
}
