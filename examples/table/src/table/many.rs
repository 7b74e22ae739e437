//! Gets of many keys: in three rounds of reads, however many keys there are.
//!
//! First come the entries that are remembered, then the first buckets of the keys that are left, then the entries that those name. What is
//! not found so, because it was overtaken, stands in its second bucket or is not there, is looked up by itself.

use super::{Table, TableError, count};
use crate::layout::{Aim, BUCKET_BYTES, Entry, Place, Stage, UNIT_BYTES};
use crate::memory::Memory;

/// Keys that are read together: about what a message of the pool takes.
const TOGETHER_MAX: usize = 1000;

/// Entries that may be those of keys, one behind the other.
struct Candidates {
    /// The place of the key among those that were asked for, and where the entry lies.
    places: Vec<(usize, Place)>,
    bytes: Vec<u8>,
}

impl Candidates {
    fn iter(&self) -> impl Iterator<Item = (usize, Place, Option<Entry<'_>>)> {
        let mut rest = &self.bytes[..];
        self.places.iter().map(move |&(number, place)| {
            let (entry, behind) = rest.split_at(bytes_of(place));
            rest = behind;
            (number, place, Entry::parse(place.offset(), entry))
        })
    }
}

impl<M: Memory> Table<M> {
    /// The values of keys, in their order; `None` for those that are not there. Each is as it was at some moment of the call, and not all
    /// are of the same.
    ///
    /// # Errors
    /// [`TableError`].
    pub fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, TableError> {
        let mut values = Vec::with_capacity(keys.len());
        for keys in keys.chunks(TOGETHER_MAX) {
            values.extend(self.get_together(keys)?);
        }
        Ok(values)
    }

    fn get_together(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, TableError> {
        let aims: Vec<Aim> = keys.iter().map(|key| Aim::of(key, self.buckets)).collect();
        let mut values = vec![None; keys.len()];
        let mut states = vec![0; keys.len()];
        let recalled = aims.iter().enumerate().filter_map(|(number, aim)| {
            let (place, state) = self.recall(*aim)?;
            states[number] = state;
            Some((number, place))
        });
        for (number, _, entry) in self.candidates(recalled.collect())?.iter() {
            match entry {
                Some(found) if found.key == keys[number] && found.state == states[number] => {
                    values[number] = Some(found.value.to_vec());
                    count(&self.counts.remembered);
                }
                _ => self.forget(aims[number]),
            }
        }
        let left: Vec<usize> = (0..keys.len()).filter(|&number| values[number].is_none()).collect();
        for (number, place, entry) in self.candidates(self.named(&left, &aims)?)?.iter() {
            match entry {
                Some(found)
                    if values[number].is_none()
                        && found.key == keys[number]
                        && found.is_of(place)
                        && found.stage() != Some(Stage::Coming) =>
                {
                    values[number] = Some(found.value.to_vec());
                    count(&self.counts.looked_up);
                    if found.stage() == Some(Stage::Live) {
                        self.remember(aims[number], place, found.state);
                    }
                }
                _ => {}
            }
        }
        for number in left {
            let mut value = Vec::new();
            if values[number].is_none() && self.look_up(aims[number], keys[number], &mut value)? {
                values[number] = Some(value);
            }
        }
        Ok(values)
    }

    /// Reads the first buckets of keys; the places there that may be theirs.
    fn named(&self, numbers: &[usize], aims: &[Aim]) -> Result<Vec<(usize, Place)>, TableError> {
        let mut buckets = vec![[0; BUCKET_BYTES as usize]; numbers.len()];
        let offsets = numbers.iter().map(|&number| aims[number].buckets[0]);
        let mut parts: Vec<_> = offsets.zip(buckets.iter_mut().map(|bucket| &mut bucket[..])).collect();
        self.memory.read_many(&mut parts)?;
        let mut named = Vec::new();
        for (&number, bucket) in numbers.iter().zip(&buckets) {
            let places = bucket.as_chunks::<8>().0.iter().map(|word| Place(u64::from_le_bytes(*word)));
            let is_fit = |place: &Place| place.0 != 0 && place.fingerprint() == aims[number].fingerprint;
            named.extend(places.filter(is_fit).map(|place| (number, place)));
        }
        Ok(named)
    }

    /// Reads entries.
    fn candidates(&self, places: Vec<(usize, Place)>) -> Result<Candidates, TableError> {
        let mut bytes = vec![0; places.iter().map(|(_, place)| bytes_of(*place)).sum()];
        let mut rest = &mut bytes[..];
        let mut parts = Vec::with_capacity(places.len());
        for (_, place) in &places {
            let (entry, behind) = rest.split_at_mut(bytes_of(*place));
            parts.push((place.offset(), entry));
            rest = behind;
        }
        self.memory.read_many(&mut parts)?;
        Ok(Candidates { places, bytes })
    }
}

/// Bytes of an entry's room.
const fn bytes_of(place: Place) -> usize {
    // At most 256 KiB.
    (place.units() * UNIT_BYTES) as usize
}
