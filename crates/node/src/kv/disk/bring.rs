//! Blocks that come back: read, checked, and put into memory as any other.

use super::{DiskTier, State, count};
use crate::fault_point;
use crate::kv::UserStore;
use hinterland_kv::disk::{Place, RECORD_HEADER_BYTES, Record, RecordKind, checksum};
use hinterland_kv::{BlockKey, Namespace, Reserved, Wish};
use hinterland_os::{DirectBuffer, Transfer, process};
use std::io;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;

/// Bytes that are read together, if one record is not larger.
const BATCH_BYTES: u64 = 4 << 20;
/// Batches that wait to be checked while another one is read.
const READ_AHEAD: usize = 1;
/// Buffers that are kept: new memory costs as much as what is read into it.
const BUFFERS_MAX: usize = READ_AHEAD + 2;

/// A block that is on the disk.
struct Wanted {
    key: BlockKey,
    place: Place,
    /// How many removals there had been.
    removals: u64,
}

/// What a batch was read into, and what came of each read.
struct Content {
    buffer: DirectBuffer,
    results: Vec<io::Result<()>>,
}

/// In parts that are read together.
fn batches_of(wanted: &[Wanted]) -> Vec<&[Wanted]> {
    let (mut batches, mut rest) = (Vec::new(), wanted);
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |wanted: &&Wanted| {
            bytes += wanted.place.record_bytes();
            bytes <= BATCH_BYTES
        };
        let count = rest.iter().take_while(fits).count().max(1);
        let (batch, behind) = rest.split_at(count);
        batches.push(batch);
        rest = behind;
    }
    batches
}

impl DiskTier {
    /// Brings blocks into memory: those that are there and right. What is not found stays missing.
    pub(in crate::kv) fn bring(
        &self,
        store: &UserStore,
        namespace: Namespace,
        fingerprint: &[u8; 32],
        keys: &[BlockKey],
    ) {
        let number = self.writer_next.fetch_add(1, Ordering::AcqRel);
        let mut wanted = Vec::new();
        for key in keys {
            let state = self.lock();
            if let Some((staged, its)) = state.staged_and_number(fingerprint, key) {
                let (record, bytes, removals) = (staged.record, staged.bytes.clone(), state.removals);
                drop(state);
                let is_staged = |state: &State| {
                    state.staged_and_number(fingerprint, key).is_some_and(|(_, number)| number == its)
                };
                let is_there = |state: &State| state.removals == removals || is_staged(state);
                self.put(store, number, namespace, (&record, &bytes), is_there);
            } else if let Some(place) = state.log.find(fingerprint, key) {
                wanted.push(Wanted { key: *key, place, removals: state.removals });
            }
        }
        self.bring_written(store, number, namespace, fingerprint, &batches_of(&wanted));
        // What was reserved and not published, if anything went wrong.
        store.lock().store.release(number);
    }

    /// Brings blocks that are written. While one batch is checked and copied, the next ones are read.
    fn bring_written(
        &self,
        store: &UserStore,
        number: u64,
        namespace: Namespace,
        fingerprint: &[u8; 32],
        batches: &[&[Wanted]],
    ) {
        let put = |batch: &[Wanted], content: Content| {
            self.put_all(store, number, namespace, fingerprint, (batch, &content));
            self.give_back(content.buffer);
        };
        let read_here = || {
            for batch in batches {
                let Some(content) = self.read(batch) else { return };
                put(batch, content);
            }
        };
        if batches.len() < 2 {
            return read_here();
        }
        std::thread::scope(|scope| {
            let (sender, receiver) = sync_channel(READ_AHEAD);
            let read = move || {
                process::name_thread("kv-disk-read");
                for batch in batches {
                    let Some(content) = self.read(batch) else { return };
                    if sender.send((*batch, content)).is_err() {
                        return;
                    }
                }
            };
            if std::thread::Builder::new().spawn_scoped(scope, read).is_err() {
                return read_here();
            }
            receiver.into_iter().for_each(|(batch, content)| put(batch, content));
        });
    }

    /// Reads a batch; `None` if the disk rests, or there is no memory to read into.
    fn read(&self, batch: &[Wanted]) -> Option<Content> {
        if !self.lock().is_working() {
            return None;
        }
        let bytes = batch.iter().map(|wanted| wanted.place.record_bytes() as usize).sum();
        let mut buffer = self.buffer(bytes)?;
        let mut reads = Vec::with_capacity(batch.len());
        let mut rest = buffer.bytes_mut();
        for wanted in batch {
            let (whole, behind) = rest.split_at_mut(wanted.place.record_bytes() as usize);
            reads.push(Transfer::Read(wanted.place.offset, whole));
            rest = behind;
        }
        let results = self.media.transfer(&mut reads);
        fault_point::reach("kv-disk-read");
        drop(reads);
        Some(Content { buffer, results })
    }

    /// Memory of at least so many bytes; that which was used before has its pages.
    fn buffer(&self, bytes: usize) -> Option<DirectBuffer> {
        let mut kept = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = kept.iter().position(|buffer| buffer.bytes().len() >= bytes) {
            return Some(kept.swap_remove(index));
        }
        drop(kept);
        match DirectBuffer::new(bytes.max(BATCH_BYTES as usize)) {
            Ok(buffer) => Some(buffer),
            Err(error) => {
                tracing::warn!(%error, "no memory to read KV blocks from the disk");
                None
            }
        }
    }

    fn give_back(&self, buffer: DirectBuffer) {
        let mut kept = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < BUFFERS_MAX {
            kept.push(buffer);
        }
    }

    /// Puts what was read into memory, as far as it is right.
    fn put_all(
        &self,
        store: &UserStore,
        number: u64,
        namespace: Namespace,
        fingerprint: &[u8; 32],
        (batch, content): (&[Wanted], &Content),
    ) {
        let mut rest = content.buffer.bytes();
        for (wanted, result) in batch.iter().zip(&content.results) {
            let (whole, behind) = rest.split_at(wanted.place.record_bytes() as usize);
            rest = behind;
            self.judge(&mut self.lock(), result);
            if result.is_err() {
                continue;
            }
            match right_record(whole, fingerprint, wanted) {
                Some(found) => {
                    let is_there = |state: &State| {
                        state.removals == wanted.removals
                            || state.log.find(fingerprint, &wanted.key) == Some(wanted.place)
                    };
                    self.put(store, number, namespace, (&found.0, found.1), is_there);
                }
                None => self.is_wrong(fingerprint, wanted),
            }
        }
    }

    /// What was read is not the block: it was written over meanwhile, or the disk gave other bytes than it was given.
    fn is_wrong(&self, fingerprint: &[u8; 32], wanted: &Wanted) {
        let mut state = self.lock();
        if state.log.find(fingerprint, &wanted.key) == Some(wanted.place) {
            count(&self.tally.checksum_failures, 1);
            tracing::error!(path = %self.path.display(), offset = wanted.place.offset, "a KV block on the disk is not what was written");
            state.log.forget_place(fingerprint, &wanted.key, &wanted.place);
            // A disk may give the right bytes the next time, and the block may be removed until then.
            state.note_removed(*fingerprint, wanted.key);
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Puts what was read into memory, unless it was removed meanwhile.
    fn put(
        &self,
        store: &UserStore,
        number: u64,
        namespace: Namespace,
        (record, bytes): (&Record, &[u8]),
        is_there: impl Fn(&State) -> bool,
    ) {
        let Some(key) = record.key else { return };
        let length = u64::from(record.bytes);
        let wish = Wish { namespace, key, bytes: length, parent: record.parent };
        let reserved = store.lock().store.reserve(number, &wish, &mut |slot| store.was_touched(slot));
        // It is here by now, or written by somebody, or there is no room.
        let Ok(Reserved::Slot { slot, offset }) = reserved else { return };
        let sum = match store.view.write(offset, length, &[bytes]) {
            Ok(sum) => sum,
            Err(error) => return tracing::error!(%error, slot, "a slot lies outside its file"),
        };
        fault_point::reach("kv-disk-brought");
        let mut state = store.lock();
        // Whoever removes a block has both locks: it is removed before this, or from memory after it.
        if !is_there(&self.lock()) {
            // The slot is this writer's.
            let _ = state.store.abort(number, slot);
            return;
        }
        // The slot is this writer's.
        if record.is_fetched {
            let _ = state.store.fetched(number, slot);
        }
        let _ = state.store.sum_of_written(number, slot, sum);
        if matches!(state.store.publish(number, slot, &mut |slot| store.was_touched(slot)), Ok(true)) {
            // Room that is made meanwhile must not take it before it is read.
            hinterland_kv::touch(&store.touched, slot);
            count(&self.tally.read_blocks, 1);
            count(&self.tally.read_bytes, length);
        }
    }
}

/// The header and the bytes, if they are those of the block.
fn right_record<'bytes>(
    whole: &'bytes [u8],
    fingerprint: &[u8; 32],
    wanted: &Wanted,
) -> Option<(Record, &'bytes [u8])> {
    let record = Record::load(whole).ok()?;
    let is_it = record.kind == RecordKind::Block
        && record.sequence == wanted.place.sequence
        && record.fingerprint == *fingerprint
        && record.key == Some(wanted.key);
    let body = whole.get(RECORD_HEADER_BYTES..)?.get(..record.bytes as usize)?;
    (is_it && checksum(body) == record.checksum).then_some((record, body))
}
