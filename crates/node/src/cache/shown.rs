//! What the node's status says of the cache: sums, and as many files as an answer has room for.

use super::Cache;
use super::file::CacheFile;
use hinterland_proto::control::CacheStatus;
use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most files that a status lists. With the longest names they take 290 KiB of the mebibyte that an answer may have.
const LISTED_MAX: usize = 256;

/// What is said of the cache.
pub struct CacheShown {
    /// Files, by object: those that are mapped, and then those with the most bytes here.
    pub caches: Vec<CacheStatus>,
    /// Files that are not among them.
    pub left_out: u32,
    /// Bytes that came from other nodes.
    pub received_bytes: u64,
    /// Blocks that came with a wrong checksum.
    pub checksum_failures: u64,
    /// Reads that went to another home.
    pub failovers: u64,
}

impl Cache {
    /// What `status` and `top` show.
    pub fn status(&self) -> CacheShown {
        let (files, left_out) =
            listed(self.all(), |file| (file.lock().registrations.len(), file.resident_bytes(), file.key));
        // Relaxed: counters that nothing is ordered by.
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        CacheShown {
            caches: files.iter().map(describe).collect(),
            left_out,
            received_bytes: read(&self.sources.received_bytes),
            checksum_failures: read(&self.sources.checksum_failures),
            failovers: read(&self.sources.failovers),
        }
    }
}

/// As many files as are listed, by their keys, and how many are left out. `rank` gives mappings, bytes and the key.
fn listed<T, K: Ord + Copy>(files: Vec<T>, rank: impl Fn(&T) -> (usize, u64, K)) -> (Vec<T>, u32) {
    // Taken once: it changes while they are sorted.
    let mut ranked: Vec<_> = files.into_iter().map(|file| (rank(&file), file)).collect();
    let left_out = ranked.len().saturating_sub(LISTED_MAX);
    if left_out > 0 {
        ranked.sort_by_key(|&((mappings, bytes, key), _)| (mappings == 0, Reverse(bytes), key));
        ranked.truncate(LISTED_MAX);
    }
    ranked.sort_by_key(|&((_, _, key), _)| key);
    // A host has far fewer cache files than 2^32.
    (ranked.into_iter().map(|(_, file)| file).collect(), left_out as u32)
}

fn describe(file: &Arc<CacheFile>) -> CacheStatus {
    let info = file.source.info();
    let state = file.lock();
    CacheStatus {
        name: info.name.to_string(),
        bytes: info.bytes,
        resident_bytes: file.resident_bytes(),
        budget_bytes: state.budgets.asked(),
        units: file.units.count(),
        resident_units: state.units.present_count(),
        // A host has far fewer mappings than 2^32.
        mappings: state.registrations.len() as u32,
        pages: file.page_kind().name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hinterland_proto::control::{Counters, encode};
    use hinterland_types::limits::NAME_BYTES_MAX;

    #[test]
    fn mapped_files_and_those_with_most_bytes_are_listed_and_the_rest_is_counted() {
        // Number 7 is mapped and holds nothing; the others hold as many bytes as their number says.
        let rank = |&number: &u64| (usize::from(number == 7), if number == 7 { 0 } else { number }, number);
        let (all, left_out) = listed((0..LISTED_MAX as u64).rev().collect(), rank);
        assert_eq!((all, left_out), ((0..LISTED_MAX as u64).collect(), 0));
        let (some, left_out) = listed((0..1000).collect(), rank);
        let expected: Vec<u64> = std::iter::once(7).chain(1001 - LISTED_MAX as u64..1000).collect();
        assert_eq!((some, left_out as usize), (expected, 1000 - LISTED_MAX));
    }

    #[test]
    fn a_full_list_of_the_longest_names_is_no_third_of_an_answer() {
        let cache = CacheStatus {
            name: "n".repeat(NAME_BYTES_MAX),
            bytes: u64::MAX,
            resident_bytes: u64::MAX,
            budget_bytes: Some(u64::MAX),
            units: u32::MAX,
            resident_units: u32::MAX,
            mappings: u32::MAX,
            pages: "tmpfs-huge".to_owned(),
        };
        let bytes = encode(&(vec![cache; LISTED_MAX], Counters::default())).unwrap().len();
        assert!(bytes < hinterland_types::limits::CONTROL_BYTES_MAX as usize / 3, "{bytes}");
    }
}
