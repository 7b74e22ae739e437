//! What the file held when the node started: the headers of all regions, read at the same time.

use super::DiskTier;
use crate::fault_point;
use hinterland_kv::disk::{RECORD_ALIGN, RegionScan};
use hinterland_os::{DirectBuffer, Transfer};

impl DiskTier {
    /// Reads headers until each region has ended, then takes what they say.
    pub(super) fn recover(&self) {
        let mut scans = self.lock().log.scans();
        let mut ended = vec![false; scans.len()];
        match DirectBuffer::new(scans.len() * RECORD_ALIGN) {
            Ok(mut buffer) => while self.read_next(&mut scans, &mut ended, &mut buffer) {},
            Err(error) => tracing::error!(%error, "what the disk of KV blocks holds cannot be read"),
        }
        fault_point::reach("kv-disk-scanned");
        let mut state = self.lock();
        state.log.recover(scans);
        state.is_known = true;
        let (blocks, bytes) = (state.log.blocks(), state.log.bytes());
        tracing::info!(path = %self.path.display(), blocks, bytes, "the disk of KV blocks is known");
    }

    /// Reads the next header of each region that goes on; false if none does.
    fn read_next(&self, scans: &mut [RegionScan], ended: &mut [bool], buffer: &mut DirectBuffer) -> bool {
        let state = self.lock();
        if state.is_stopping {
            return false;
        }
        let nexts: Vec<Option<u64>> = scans
            .iter()
            .zip(&*ended)
            .map(|(scan, ended)| if *ended { None } else { scan.next(&state.log) })
            .collect();
        drop(state);
        let pages = buffer.bytes_mut().as_chunks_mut::<RECORD_ALIGN>().0.iter_mut();
        let mut numbers = Vec::new();
        let mut reads = Vec::new();
        for (number, (next, page)) in nexts.iter().zip(pages).enumerate() {
            if let Some(offset) = next {
                numbers.push(number);
                reads.push(Transfer::Read(*offset, &mut page[..]));
            }
        }
        let results = self.media.transfer(&mut reads);
        drop(reads);
        let mut state = self.lock();
        for result in &results {
            self.judge(&mut state, result);
        }
        ended.fill(true);
        for (number, result) in numbers.into_iter().zip(&results) {
            let page = &buffer.bytes()[number * RECORD_ALIGN..(number + 1) * RECORD_ALIGN];
            ended[number] = result.is_err() || !scans[number].take(&state.log, page);
        }
        ended.contains(&false)
    }
}
