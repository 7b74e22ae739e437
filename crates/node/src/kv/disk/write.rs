//! The thread of a disk tier, once it knows what the file holds: it writes what is staged.

use super::{DiskTier, State, count};
use crate::fault_point;
use hinterland_kv::disk::{Place, RECORD_HEADER_BYTES, Record, RecordKind, checksum, record_bytes};
use hinterland_os::{DirectBuffer, OsError, Transfer};
use std::sync::MutexGuard;
use std::sync::PoisonError;

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
            while state.staged.is_empty() && !state.is_stopping {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.is_stopping {
                return;
            }
            if !state.is_working() {
                self.drop_all(&mut state);
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
        state.last_error = Some(error.to_string());
        self.drop_all(&mut state);
    }

    /// While the tier rests, what was staged is lost. Removals are not needed: what they name is forgotten already, and
    /// after a restart it would come back only if the disk works again.
    fn drop_all(&self, state: &mut State) {
        count(&self.tally.lost_blocks, state.staged.len() as u64);
        while state.pop().is_some() {}
    }

    /// Writes the first of what is staged. It stays staged meanwhile, so that it can be had.
    fn write_some(&self, mut state: MutexGuard<'_, State>, buffer: &mut DirectBuffer) {
        let mut batch: Vec<(Record, Place)> = Vec::new();
        let mut used = 0;
        let mut index = 0;
        while let Some(staged) = state.staged.get(index) {
            let (record, bytes) = (staged.record, record_bytes(staged.record.bytes));
            if !batch.is_empty() && used + bytes > BATCH_BYTES {
                break;
            }
            let sum = checksum(&staged.bytes);
            let (record, place) = state.log.append(Record { checksum: sum, ..record });
            let whole = &mut buffer.bytes_mut()[used as usize..(used + bytes) as usize];
            // A record has room for its header.
            if record.store(whole).is_ok() {
                let (body, rest) = whole[RECORD_HEADER_BYTES..].split_at_mut(record.bytes as usize);
                body.copy_from_slice(&state.staged[index].bytes);
                rest.fill(0);
            }
            used += bytes;
            index += 1;
            batch.push((record, place));
        }
        drop(state);
        fault_point::reach("kv-disk-appended");
        let results = self.media.transfer(&mut writes(buffer, &batch));
        fault_point::reach("kv-disk-written");
        let mut state = self.lock();
        for ((record, place), result) in batch.iter().zip(&results) {
            self.judge(&mut state, result);
            let Some(staged) = state.pop() else { break };
            if result.is_err() {
                continue;
            }
            // One that was removed meanwhile is on the disk, and its removal will be behind it.
            if staged.is_live {
                state.log.add(record, *place);
                fault_point::reach("kv-disk-added");
            }
            if record.kind == RecordKind::Block {
                count(&self.tally.written_blocks, 1);
                count(&self.tally.written_bytes, place.record_bytes);
            }
        }
    }
}

fn writes<'buffer>(buffer: &'buffer DirectBuffer, batch: &[(Record, Place)]) -> Vec<Transfer<'buffer>> {
    let mut rest = buffer.bytes();
    let mut writes = Vec::with_capacity(batch.len());
    for (_, place) in batch {
        let (whole, behind) = rest.split_at(place.record_bytes as usize);
        writes.push(Transfer::Write(place.offset, whole));
        rest = behind;
    }
    writes
}
