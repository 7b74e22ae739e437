//! Reads through the cache, for programs that read an object instead of mapping it: what is here is copied out, what is
//! not is filled first, so that a host fetches each byte once whichever way its programs ask for it.

use super::Cache;
use super::file::{CacheFile, Copied};
use super::units::Waiter;
use crate::refused::{Refused, errno};
use hinterland_types::ByteRange;
use hinterland_types::limits::CHECKSUM_BLOCK_BYTES;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How often a unit may leave between its fill and the copy before its bytes are fetched past the cache.
const TRIES_MAX: usize = 8;
/// How often a reader that waits looks whether the node is stopping.
const STOP_PAUSE: Duration = Duration::from_millis(200);

/// Where a reader waits for a unit.
#[derive(Debug, Default)]
pub struct Arrival {
    outcome: Mutex<Option<Result<(), Refused>>>,
    arrived: Condvar,
}

impl Arrival {
    /// Lets the reader go on: the unit is here, or it is lost for this reason.
    pub fn set(&self, outcome: Result<(), Refused>) {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        self.arrived.notify_all();
    }

    fn wait(&self, cache: &Cache) -> Result<(), Refused> {
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(outcome) = outcome.take() {
                return outcome;
            }
            if cache.is_stopping() {
                return Err(Refused::new(errno::EIO, "the node is stopping"));
            }
            outcome =
                self.arrived.wait_timeout(outcome, STOP_PAUSE).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Cache {
    /// Reads `into.len()` bytes at `offset` of a cached object.
    ///
    /// # Errors
    /// [`Refused`] past its end, or with what every home said of bytes that are lost.
    pub fn read(&self, file: &Arc<CacheFile>, offset: u64, into: &mut [u8]) -> Result<(), Refused> {
        let bytes = file.source.info().bytes;
        let range = ByteRange::within(offset, into.len() as u64, bytes)
            .map_err(|error| Refused::new(errno::EINVAL, error.to_string()))?;
        if range.bytes() == 0 {
            return Ok(());
        }
        let units = file.units.unit_of(range.offset())..=file.units.unit_of(range.end() - 1);
        // All are asked for before the first is waited for.
        let arrivals: Vec<Option<Arc<Arrival>>> =
            units.clone().map(|unit| self.want(file, unit, range.offset())).collect();
        for (unit, mut arrival) in units.zip(arrivals) {
            let whole = file.units.range(unit);
            let start = range.offset().max(whole.offset());
            let end = range.end().min(whole.end());
            // Both lie in the range, which is as long as the buffer.
            let part = &mut into[(start - offset) as usize..(end - offset) as usize];
            let mut tries = 0;
            loop {
                match arrival.take().map_or(Ok(()), |arrival| arrival.wait(self)) {
                    Err(refused) if refused.code == errno::ENOMEM => {
                        // Whoever maps must have a page; a reader needs none.
                        fetch_past(file, start, part)?;
                        break;
                    }
                    outcome => outcome?,
                }
                match file.copy_out(unit, start, part)? {
                    Copied::Whole => break,
                    Copied::Absent(wanted) => self.queue.push(file, &wanted),
                }
                tries += 1;
                if tries == TRIES_MAX {
                    fetch_past(file, start, part)?;
                    break;
                }
                arrival = self.want(file, unit, start);
            }
        }
        Ok(())
    }

    /// Asks for a unit; where to wait for it if it is not here.
    fn want(&self, file: &Arc<CacheFile>, unit: u32, offset: u64) -> Option<Arc<Arrival>> {
        let arrival = Arc::new(Arrival::default());
        let offset = offset.max(file.units.range(unit).offset());
        let outcome = file.fault(offset, Waiter::Read(Arc::clone(&arrival)))?;
        self.queue.push(file, &outcome.fetch);
        (!outcome.present).then_some(arrival)
    }
}

/// Reads bytes from a home: the cache is so small that they left again before they could be copied.
fn fetch_past(file: &CacheFile, offset: u64, into: &mut [u8]) -> Result<(), Refused> {
    let first = offset / CHECKSUM_BLOCK_BYTES * CHECKSUM_BLOCK_BYTES;
    let end =
        (offset + into.len() as u64).next_multiple_of(CHECKSUM_BLOCK_BYTES).min(file.source.info().bytes);
    let blocks =
        ByteRange::new(first, end - first).map_err(|error| Refused::new(errno::EINVAL, error.to_string()))?;
    let mut bytes = vec![0; blocks.bytes() as usize];
    file.source.fetch_into(blocks, &mut bytes)?;
    let start = (offset - first) as usize;
    into.copy_from_slice(&bytes[start..start + into.len()]);
    Ok(())
}
