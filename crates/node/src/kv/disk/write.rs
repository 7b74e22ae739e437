//! The thread of a disk tier, once it knows what the file holds: it writes what is staged.

use super::{DiskTier, State, count};
use crate::fault_point;
use hinterland_kv::disk::{Place, RECORD_HEADER_BYTES, Record, RecordKind, TierLog, checksum, record_bytes};
use hinterland_os::{DirectBuffer, OsError, Transfer};
use std::io;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Instant;

/// Bytes of records that are written together, if one is not larger.
const BATCH_BYTES: u64 = 8 << 20;

impl DiskTier {
    /// Writes until the tier is stopped.
    pub(super) fn write_all(&self) {
        let mut buffer = match DirectBuffer::new(2 * BATCH_BYTES as usize) {
            Ok(buffer) => buffer,
            Err(error) => return self.give_up(&error),
        };
        loop {
            let mut state = self.lock();
            while state.staged.is_empty() && state.notes.is_empty() && !state.is_stopping {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.is_stopping {
                return;
            }
            if !state.is_working() {
                self.drop_all(&mut state);
                let rests_until = state.rests_until.unwrap_or_else(Instant::now);
                let left = rests_until.saturating_duration_since(Instant::now());
                drop(self.changed.wait_timeout(state, left));
                continue;
            }
            self.write_some(state, &mut buffer);
            self.changed.notify_all();
        }
    }

    /// Without memory for transfers there is no tier.
    fn give_up(&self, error: &OsError) {
        tracing::error!(%error, "no memory for the disk of KV blocks: it is not used");
        let mut state = self.lock();
        state.is_known = false;
        state.is_stopping = true;
        state.last_error = Some(error.to_string());
        self.drop_all(&mut state);
    }

    /// While the tier rests, what was staged is lost. Removals are kept, and written when it works again.
    fn drop_all(&self, state: &mut State) {
        count(&self.tally.lost_blocks, state.staged.len() as u64);
        while state.pop().is_some() {}
    }

    /// Writes removals that wait, then the first of what is staged. It stays staged meanwhile, so that it can be had.
    fn write_some(&self, mut state: MutexGuard<'_, State>, buffer: &mut DirectBuffer) {
        let batch = next_batch(&mut state, buffer);
        if batch.is_empty() {
            return;
        }
        state.is_writing = true;
        drop(state);
        fault_point::reach("kv-disk-appended");
        let results = self.write_batch(buffer, &batch);
        fault_point::reach("kv-disk-written");
        let mut state = self.lock();
        state.is_writing = false;
        let mut gap: Option<Place> = None;
        for ((record, place), result) in batch.iter().zip(&results) {
            self.judge(&mut state, result);
            // Behind a gap nothing is found after a restart.
            let is_behind = gap.is_some_and(|gap| state.log.are_together(&gap, place));
            if result.is_err() && !is_behind {
                state.log.rewind(place);
                gap = Some(*place);
            }
            let is_written = result.is_ok() && !is_behind;
            // What its region held before is still there, whichever region comes next.
            state.has_unknown |= record.begins_region() && !is_written;
            if is_written {
                state.log.written(place);
            }
            self.tried(&mut state, record, place, is_written);
        }
    }

    /// Writes records at once, but none behind the first of a region before that is on the disk: were that one lost, what the region held
    /// before would be found again, without what was noted as removed behind it.
    fn write_batch(&self, buffer: &DirectBuffer, batch: &[(Record, Place)]) -> Vec<io::Result<()>> {
        let mut writes = writes(buffer, batch);
        let (mut results, mut rest) = (Vec::with_capacity(batch.len()), &mut writes[..]);
        for together in batch.split_inclusive(|(record, _)| record.begins_region()) {
            let (some, behind) = std::mem::take(&mut rest).split_at_mut(together.len());
            rest = behind;
            match results.last() {
                Some(Err(error)) => {
                    let text = format!("the one before it was not written: {error}");
                    results.extend(together.iter().map(|_| Err(io::Error::other(text.clone()))));
                }
                _ => results.extend(self.media.transfer(some)),
            }
        }
        results
    }

    /// A record was written, or was not.
    fn tried(&self, state: &mut State, record: &Record, place: &Place, is_written: bool) {
        if record.kind == RecordKind::Block {
            let Some(staged) = state.pop() else { return };
            if is_written {
                // One that was removed meanwhile is on the disk, and its removal will be behind it.
                if staged.is_live {
                    state.log.add(record, *place);
                    fault_point::reach("kv-disk-added");
                }
                count(&self.tally.written_blocks, 1);
                count(&self.tally.written_bytes, place.record_bytes());
                return;
            }
            count(&self.tally.lost_blocks, 1);
        }
        match record.key {
            _ if is_written => {}
            // Also for a block: it may be on the disk all the same, and would not be known to be when it is removed.
            Some(key) => state.note_removed(record.fingerprint, key),
            None => state.notes.clear(record.fingerprint),
        }
    }
}

/// Puts the records that are written next into the buffer: removals first, as all that is staged and lives is later than they are.
fn next_batch(state: &mut State, buffer: &mut DirectBuffer) -> Vec<(Record, Place)> {
    let mut batch: Vec<(Record, Place)> = Vec::new();
    let mut used = 0;
    let mut append = |log: &mut TierLog, record: Record, bytes: &[u8]| {
        let (record, place) = log.append(Record { checksum: checksum(bytes), ..record });
        let whole = &mut buffer.bytes_mut()[used as usize..(used + place.record_bytes()) as usize];
        // A record has room for its header.
        if record.store(whole).is_ok() {
            let (body, rest) = whole[RECORD_HEADER_BYTES..].split_at_mut(bytes.len());
            body.copy_from_slice(bytes);
            rest.fill(0);
        }
        used += place.record_bytes();
        batch.push((record, place));
        used
    };
    let mut filled = 0;
    for record in state.notes.take((BATCH_BYTES / record_bytes(0)) as usize) {
        filled = append(&mut state.log, record, &[]);
    }
    while state.staged.front().is_some_and(|staged| !staged.is_live) {
        state.pop();
    }
    // One that was removed ends the batch, and is the first of the next one.
    for staged in state.staged.iter().take_while(|staged| staged.is_live) {
        if filled > 0 && filled + record_bytes(staged.record.bytes) > BATCH_BYTES {
            break;
        }
        filled = append(&mut state.log, staged.record, &staged.bytes);
    }
    batch
}

fn writes<'buffer>(buffer: &'buffer DirectBuffer, batch: &[(Record, Place)]) -> Vec<Transfer<'buffer>> {
    let mut rest = buffer.bytes();
    let mut writes = Vec::with_capacity(batch.len());
    for (_, place) in batch {
        let (whole, behind) = rest.split_at(place.record_bytes() as usize);
        writes.push(Transfer::Write(place.offset, whole));
        rest = behind;
    }
    writes
}
