//! Regions of a file, written one after the other and then again, and the index of what they hold.

use super::record::{RECORD_ALIGN, Record, RecordKind, record_bytes};
use crate::chunks::BLOCK_BYTES_MAX;
use crate::key::BlockKey;
use std::collections::HashMap;

/// Regions of a log, if they are not too small: what is lost at once is one part in so many.
const REGIONS: u64 = 64;
/// Smallest region: a largest record and as much again.
const REGION_BYTES_MIN: u64 = 2 * (BLOCK_BYTES_MAX + RECORD_ALIGN as u64);
/// Largest region: one large write after the other, and little is lost at once.
const REGION_BYTES_MAX: u64 = 256 << 20;

/// Where a record lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Offset in the file.
    pub offset: u64,
    /// Its sequence number: another record may lie there by now.
    pub sequence: u64,
    /// Bytes of the block in it.
    pub bytes: u32,
    /// It came from another node.
    pub is_fetched: bool,
}

impl Place {
    const fn of(record: &Record, offset: u64) -> Self {
        let &Record { sequence, bytes, is_fetched, .. } = record;
        Self { offset, sequence, bytes, is_fetched }
    }

    /// Bytes from its offset to the end of the record.
    pub const fn record_bytes(&self) -> u64 {
        record_bytes(self.bytes)
    }
}

/// The index and the end of a log.
#[derive(Debug)]
pub struct TierLog {
    region_bytes: u64,
    regions: Vec<Region>,
    /// The region that is being written, and where in it.
    current: usize,
    at: u64,
    /// A record of that region was written in this round: else what it held in the round before is still on the disk.
    is_begun: bool,
    next_sequence: u64,
    index: HashMap<u128, Entry>,
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    place: Place,
    /// Start of the fingerprint.
    space: u64,
}

#[derive(Clone, Debug, Default)]
struct Region {
    sequence: u64,
    blocks: Vec<u128>,
}

/// Where the reading of a region's headers is.
#[derive(Debug)]
pub struct RegionScan {
    region: usize,
    sequence: Option<u64>,
    offset: u64,
    found: Vec<(Record, u64)>,
}

impl RegionScan {
    /// Where the next header is to be read: one page. `None` at the end of the region.
    pub const fn next(&self, log: &TierLog) -> Option<u64> {
        let end = (self.region as u64 + 1) * log.region_bytes;
        if self.offset < end { Some(self.offset) } else { None }
    }

    /// Where the next headers are to be read, `count` of them, if records go on to be as long as the last one; less at the end of the
    /// region. A page that lies elsewhere than [`next`](Self::next) when its turn comes is of no use.
    pub fn ahead(&self, log: &TierLog, count: u64) -> impl Iterator<Item = u64> + use<> {
        let end = (self.region as u64 + 1) * log.region_bytes;
        let known = self.found.last().map(|(last, _)| record_bytes(last.bytes));
        let (first, count) = (self.offset, if known.is_some() { count } else { count.min(1) });
        (0..count)
            .map(move |index| first + index * known.unwrap_or(0))
            .take_while(move |offset| *offset < end)
    }

    /// Takes the page at that place; false if the region has no more records.
    pub fn take(&mut self, log: &TierLog, page: &[u8]) -> bool {
        let end = (self.region as u64 + 1) * log.region_bytes;
        let Ok(record) = Record::load(page) else { return false };
        // A record of the round before lies behind the last one of this round.
        let belongs = self.sequence.is_none_or(|sequence| sequence == record.region);
        let is_first = self.sequence.is_some() || record.sequence == record.region;
        let bytes = record_bytes(record.bytes);
        let fits = u64::from(record.bytes) <= BLOCK_BYTES_MAX && self.offset + bytes <= end;
        let is_later = self.found.last().is_none_or(|(last, _)| last.sequence < record.sequence);
        if !(belongs && is_first && fits && is_later) {
            return false;
        }
        self.sequence = Some(record.region);
        self.found.push((record, self.offset));
        self.offset += bytes;
        true
    }
}

impl TierLog {
    /// An empty log over a file of `file_bytes` bytes; `None` if that is less than two regions.
    pub fn new(file_bytes: u64) -> Option<Self> {
        let wanted = (file_bytes / REGIONS).clamp(REGION_BYTES_MIN, REGION_BYTES_MAX);
        let region_bytes = wanted / RECORD_ALIGN as u64 * RECORD_ALIGN as u64;
        let count = file_bytes / region_bytes;
        (count >= 2).then(|| Self {
            region_bytes,
            regions: vec![Region::default(); count as usize],
            current: 0,
            at: 0,
            is_begun: true,
            next_sequence: 1,
            index: HashMap::new(),
            bytes: 0,
        })
    }

    /// Blocks that are in the index.
    pub fn blocks(&self) -> u64 {
        self.index.len() as u64
    }

    /// Bytes of their records.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that can be used.
    pub const fn capacity_bytes(&self) -> u64 {
        self.region_bytes * self.regions.len() as u64
    }

    /// Where the block of a key may lie.
    pub fn find(&self, fingerprint: &[u8; 32], key: &BlockKey) -> Option<Place> {
        self.index.get(&hash(fingerprint, key)).map(|entry| entry.place)
    }

    /// Whether a place stays for a while: at least a quarter of the log is written before its region is begun anew.
    pub fn is_young(&self, place: &Place) -> bool {
        let (count, region) = (self.regions.len(), self.region_of(place));
        let ahead = (region + count - self.current - 1) % count;
        ahead * 4 >= count
    }

    /// A place for a record at the end of the log, with its numbers. What a region holds is forgotten when it is begun anew.
    /// The record is to be written, after the one that [begins](Record::begins_region) its region, and then [`add`](Self::add)ed.
    pub fn append(&mut self, mut record: Record) -> (Record, Place) {
        let bytes = record_bytes(record.bytes);
        if self.at == 0 || self.at + bytes > self.region_bytes {
            if self.at != 0 {
                self.current = (self.current + 1) % self.regions.len();
            }
            self.at = 0;
            self.begin_region();
        }
        record.sequence = self.next_sequence;
        record.region = self.regions[self.current].sequence;
        let offset = self.current as u64 * self.region_bytes + self.at;
        let place = Place::of(&record, offset);
        self.next_sequence += 1;
        self.at += bytes;
        (record, place)
    }

    /// A record was not written: the next one takes its place, if its region is still the one that is written. What lies behind a gap is
    /// not found after a restart.
    pub fn rewind(&mut self, place: &Place) {
        if self.region_of(place) == self.current {
            self.at = place.offset % self.region_bytes;
        }
    }

    /// A record was written, and all before it in its region.
    pub fn written(&mut self, place: &Place) {
        self.is_begun |= self.region_of(place) == self.current;
    }

    /// Whether what the region that is written now held before can come back no more, after a restart either.
    pub const fn is_begun(&self) -> bool {
        self.is_begun
    }

    /// Whether two records lie in one region.
    pub const fn are_together(&self, one: &Place, other: &Place) -> bool {
        self.region_of(one) == self.region_of(other)
    }

    const fn region_of(&self, place: &Place) -> usize {
        (place.offset / self.region_bytes) as usize
    }

    /// The record was written. Nothing is added if its region was begun anew meanwhile.
    pub fn add(&mut self, record: &Record, place: Place) {
        let region = self.region_of(&place);
        if self.regions[region].sequence != record.region {
            return;
        }
        match (record.kind, &record.key) {
            (RecordKind::Block, Some(key)) => {
                let hash = hash(&record.fingerprint, key);
                self.forget_hash(hash);
                self.index.insert(hash, Entry { place, space: space(&record.fingerprint) });
                self.regions[region].blocks.push(hash);
                self.bytes += place.record_bytes();
            }
            (RecordKind::Removed, Some(key)) => {
                self.forget(&record.fingerprint, key);
            }
            (RecordKind::Cleared, _) => self.clear(&record.fingerprint),
            _ => {}
        }
    }

    /// Forgets the block of a key; whether there was one. A removal is to be appended as well.
    pub fn forget(&mut self, fingerprint: &[u8; 32], key: &BlockKey) -> bool {
        self.forget_hash(hash(fingerprint, key))
    }

    /// Forgets all blocks of a namespace. That it was cleared is to be appended as well.
    pub fn clear(&mut self, fingerprint: &[u8; 32]) {
        let space = space(fingerprint);
        let bytes = &mut self.bytes;
        self.index.retain(|_, entry| {
            let stays = entry.space != space;
            *bytes -= if stays { 0 } else { entry.place.record_bytes() };
            stays
        });
    }

    /// Forgets a block if it is still that of a place: what was read there is not right.
    pub fn forget_place(&mut self, fingerprint: &[u8; 32], key: &BlockKey, place: &Place) {
        if self.find(fingerprint, key).as_ref() == Some(place) {
            self.forget(fingerprint, key);
        }
    }

    /// What is to be read to know what the file holds already: the headers of each region, one after the other.
    pub fn scans(&self) -> Vec<RegionScan> {
        let begin = |region| RegionScan {
            region,
            sequence: None,
            offset: region as u64 * self.region_bytes,
            found: Vec::new(),
        };
        (0..self.regions.len()).map(begin).collect()
    }

    /// Takes what the file holds, and goes on behind the latest record. Nothing must have been appended before. No number is given below
    /// `floor`, which is higher than all that nodes before this one have given.
    ///
    /// Of records that were written at once when a node was killed the first may be lost and those behind it not. They are not found, but
    /// were their numbers higher than those that are given from here on, they would be as soon as another one has the place of the first.
    pub fn recover(&mut self, scans: Vec<RegionScan>, floor: u64) {
        let mut all: Vec<(Record, u64)> = Vec::new();
        for scan in scans {
            if let Some((last, offset)) = scan.found.last() {
                self.regions[scan.region].sequence = last.region;
                if last.sequence >= self.next_sequence {
                    self.next_sequence = last.sequence.saturating_add(1);
                    self.current = scan.region;
                    self.at = offset + record_bytes(last.bytes) - scan.region as u64 * self.region_bytes;
                }
            }
            all.extend(scan.found);
        }
        all.sort_unstable_by_key(|(record, _)| record.sequence);
        for (record, offset) in &all {
            self.add(record, Place::of(record, *offset));
        }
        self.next_sequence = self.next_sequence.max(floor);
    }

    fn begin_region(&mut self) {
        let old = std::mem::take(&mut self.regions[self.current]);
        let (start, end) =
            (self.current as u64 * self.region_bytes, (self.current as u64 + 1) * self.region_bytes);
        for hash in old.blocks {
            if self.index.get(&hash).is_some_and(|entry| (start..end).contains(&entry.place.offset)) {
                self.forget_hash(hash);
            }
        }
        self.regions[self.current].sequence = self.next_sequence;
        self.is_begun = false;
    }

    fn forget_hash(&mut self, hash: u128) -> bool {
        let entry = self.index.remove(&hash);
        self.bytes -= entry.map_or(0, |entry| entry.place.record_bytes());
        entry.is_some()
    }
}

fn space(fingerprint: &[u8; 32]) -> u64 {
    let mut start = [0; 8];
    start.copy_from_slice(&fingerprint[..8]);
    u64::from_le_bytes(start)
}

fn hash(fingerprint: &[u8; 32], key: &BlockKey) -> u128 {
    let mut bytes = [0; 32 + crate::key::KEY_BYTES_MAX];
    bytes[..32].copy_from_slice(fingerprint);
    let key = key.to_vec();
    bytes[32..32 + key.len()].copy_from_slice(&key);
    xxhash_rust::xxh3::xxh3_128(&bytes[..32 + key.len()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block(number: u8, bytes: u32) -> Record {
        Record {
            kind: RecordKind::Block,
            sequence: 0,
            region: 0,
            fingerprint: [number & 1; 32],
            key: BlockKey::new(&[number]).ok(),
            parent: None,
            bytes,
            checksum: 0,
            is_fetched: false,
        }
    }

    /// A file of headers only: pages by offset.
    type Pages = HashMap<u64, Vec<u8>>;

    fn write(log: &mut TierLog, pages: &mut Pages, record: Record) -> (Record, Place) {
        let (record, place) = log.append(record);
        arrive(pages, &record, &place);
        log.add(&record, place);
        (record, place)
    }

    fn arrive(pages: &mut Pages, record: &Record, place: &Place) {
        let end = place.offset + place.record_bytes();
        pages.retain(|offset, _| !(place.offset..end).contains(offset));
        let mut page = vec![0; RECORD_ALIGN];
        record.store(&mut page).unwrap_or_else(|length| panic!("{length}"));
        pages.insert(place.offset, page);
    }

    fn reread(log: &TierLog, pages: &Pages) -> TierLog {
        let mut again = TierLog::new(log.capacity_bytes()).unwrap_or_else(|| panic!("two regions"));
        assert_eq!(again.region_bytes, log.region_bytes);
        let mut scans = again.scans();
        for scan in &mut scans {
            while let Some(offset) = scan.next(&again) {
                let page = pages.get(&offset).cloned().unwrap_or_else(|| vec![0; RECORD_ALIGN]);
                if !scan.take(&again, &page) {
                    break;
                }
            }
        }
        again.recover(scans, log.next_sequence);
        again
    }

    #[derive(Clone, Debug)]
    enum Step {
        Put(u8, u32),
        Remove(u8),
        Clear(u8),
        Restart,
        /// These are written as the tier does when the node is killed, and nothing of the first arrives.
        Killed(Vec<(u8, u32)>),
    }

    /// Many are of one length, so that records of two lives lie in the same places.
    fn bytes() -> impl Strategy<Value = u32> {
        prop_oneof![Just(1 << 20), 1_u32..(4 << 20)]
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            12 => (any::<u8>(), bytes()).prop_map(|(number, bytes)| Step::Put(number, bytes)),
            4 => any::<u8>().prop_map(Step::Remove),
            1 => (0..2_u8).prop_map(Step::Clear),
            1 => Just(Step::Restart),
            1 => prop::collection::vec((any::<u8>(), bytes()), 1..6).prop_map(Step::Killed),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_is_found_is_the_latest_block_of_its_key_after_restarts_too(
            steps in prop::collection::vec(step(), 1..300)
        ) {
            let mut log = TierLog::new(5 * REGION_BYTES_MIN).unwrap_or_else(|| panic!("two regions"));
            let mut pages = Pages::new();
            let mut latest: HashMap<u8, (Record, Place)> = HashMap::new();
            for step in steps {
                match step {
                    Step::Put(number, bytes) => {
                        let written = write(&mut log, &mut pages, block(number, bytes));
                        // What it was written over is gone.
                        latest.retain(|_, (_, place)| pages.contains_key(&place.offset));
                        latest.insert(number, written);
                    }
                    Step::Remove(number) => {
                        let record = block(number, 0);
                        log.forget(&record.fingerprint, &record.key.unwrap_or_else(|| panic!("a key")));
                        write(&mut log, &mut pages, Record { kind: RecordKind::Removed, ..record });
                        latest.remove(&number);
                    }
                    Step::Clear(which) => {
                        let record = block(which, 0);
                        write(&mut log, &mut pages, Record { kind: RecordKind::Cleared, key: None, ..record });
                        latest.retain(|number, _| number & 1 != which);
                    }
                    Step::Restart => log = reread(&log, &pages),
                    Step::Killed(numbers) => {
                        let blocks = numbers.iter().map(|(number, bytes)| block(*number, *bytes));
                        let written: Vec<_> = blocks.map(|record| log.append(record)).collect();
                        // Nothing behind the beginning of a region is written before that is there.
                        let at_once = written.split_inclusive(|(record, _)| record.begins_region()).next();
                        for (record, place) in &at_once.unwrap_or_default()[1..] {
                            arrive(&mut pages, record, place);
                            let range = place.offset..place.offset + place.record_bytes();
                            latest.retain(|_, (_, old)| !range.contains(&old.offset));
                        }
                        log = reread(&log, &pages);
                        // One that begins the next region is found, and what is not stays away.
                        for ((number, _), (record, place)) in numbers.iter().zip(&written) {
                            let key = record.key.unwrap_or_else(|| panic!("a key"));
                            if log.find(&record.fingerprint, &key).as_ref() == Some(place) {
                                latest.insert(*number, (*record, *place));
                            }
                        }
                    }
                }
                let mut found = 0;
                for number in 0..=u8::MAX {
                    let record = block(number, 0);
                    let key = record.key.unwrap_or_else(|| panic!("a key"));
                    let Some(place) = log.find(&record.fingerprint, &key) else { continue };
                    let (_, right) = latest.get(&number).unwrap_or_else(|| panic!("{number} was removed"));
                    prop_assert_eq!(&place, right);
                    found += 1;
                }
                prop_assert_eq!(found, log.blocks());
                prop_assert!(log.bytes() <= log.capacity_bytes());
            }
        }
    }

    #[test]
    fn a_log_goes_round_and_keeps_all_but_a_region() {
        let mut log = TierLog::new(64 * REGION_BYTES_MIN).unwrap_or_else(|| panic!("regions"));
        let mut pages = Pages::new();
        for round in 0..2000_u32 {
            let mut record = block(0, 1 << 20);
            record.key = BlockKey::new(&round.to_le_bytes()).ok();
            write(&mut log, &mut pages, record);
        }
        let a_region = REGION_BYTES_MIN / record_bytes(1 << 20);
        assert!((63 * a_region..=64 * a_region).contains(&log.blocks()), "{}", log.blocks());
        assert!(TierLog::new(REGION_BYTES_MIN).is_none());
    }

    #[test]
    fn what_was_written_behind_a_lost_record_does_not_come_back_behind_the_next_one() {
        let mut log = TierLog::new(5 * REGION_BYTES_MIN).unwrap_or_else(|| panic!("two regions"));
        let mut pages = Pages::new();
        write(&mut log, &mut pages, block(2, 1 << 20));
        let killed: Vec<_> = [4, 6, 8].map(|number| log.append(block(number, 1 << 20))).to_vec();
        killed[1..].iter().for_each(|(record, place)| arrive(&mut pages, record, place));
        let mut log = reread(&log, &pages);
        assert_eq!(log.blocks(), 1);
        write(&mut log, &mut pages, block(10, 1 << 20));
        assert_eq!(reread(&log, &pages).blocks(), 2);
        let mut again = TierLog::new(5 * REGION_BYTES_MIN).unwrap_or_else(|| panic!("two regions"));
        again.recover(again.scans(), 1 << 50);
        assert_eq!(again.append(block(1, 1)).0.sequence, 1 << 50, "no node gives a number again");
    }

    #[test]
    fn a_record_takes_the_place_of_one_that_was_not_written_and_is_found_again() {
        let mut log = TierLog::new(5 * REGION_BYTES_MIN).unwrap_or_else(|| panic!("two regions"));
        let mut pages = Pages::new();
        assert!(log.is_begun(), "nothing is on the disk");
        let (_, lost) = log.append(block(1, 1 << 20));
        log.rewind(&lost);
        assert!(!log.is_begun(), "what the region held before may be there still");
        for number in 2..4 {
            let (_, place) = write(&mut log, &mut pages, block(number, 1 << 20));
            log.written(&place);
            let (_, gap) = log.append(block(number + 10, 3 << 20));
            assert!(log.are_together(&place, &gap) && log.is_begun());
            log.rewind(&gap);
        }
        let again = reread(&log, &pages);
        assert_eq!(again.blocks(), 2);
        for number in 2..4 {
            let record = block(number, 0);
            let key = record.key.unwrap_or_else(|| panic!("a key"));
            assert_eq!(again.find(&record.fingerprint, &key), log.find(&record.fingerprint, &key));
        }
    }
}
