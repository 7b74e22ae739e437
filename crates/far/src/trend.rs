//! What lies along the steps of a program, such as down a column of a matrix, is filled before it is touched.

use crate::engine::{Engine, Known};
use crate::fault::{Want, ZEROS, fill};
use hinterland_farplan::State;
use hinterland_farplan::room::FILL_SHARE;
use hinterland_farplan::trend::{ALONG_BYTES_MAX, Trend};
use hinterland_os::OsError;

impl Engine {
    /// Fills the units of a trend behind a page, as far as there is room to spare. What must be waited for is only asked for.
    pub(crate) fn follow_trend(
        &self,
        known: &mut Known,
        id: u64,
        page: u64,
        trend: Trend,
        writes: bool,
    ) -> Result<(), OsError> {
        let room = self.room_bytes(known);
        // Less than where eviction begins, or it would never begin.
        let spare = self.low_bytes(room) / 2;
        let most = ALONG_BYTES_MAX.min(room / FILL_SHARE);
        let mut filled = 0;
        for index in 1..=i64::from(trend.count) {
            let Some(address) = page.checked_add_signed(trend.step * index) else { break };
            let resident = known.resident_bytes();
            let Some(space) = known.spaces.get_mut(&id) else { break };
            let Some((start, end)) = space.table.alike(address, self.unit_bytes) else { break };
            let Some(state) = space.table.state(address).cloned() else { break };
            if matches!(state, State::Resident { .. } | State::Leaving { .. }) {
                continue;
            }
            let (bytes, is_first) = (end - start, matches!(state, State::Untouched));
            if filled + bytes > most || resident + bytes + spare > room {
                break;
            }
            match state {
                State::Untouched => {
                    if !fill(&space.faults, start, &ZEROS[..bytes as usize], false)?.complete {
                        break;
                    }
                    let stamp = known.clock;
                    space.table.update(start..end, |unit| *unit = State::Resident { clean: None, stamp });
                    known.clock += bytes;
                    known.counters.zero_bytes += bytes;
                }
                State::Far(piece) => {
                    if piece.copy.sleeps() && self.reads.get(&piece.copy).is_none() {
                        if self.service.readers == 0 || !self.reads.want(&piece.copy, false) {
                            break;
                        }
                        continue;
                    }
                    let want = Want { waits: false, foretold: true, writes };
                    if !self.fetch(known, id, (start, end), &piece, want)? {
                        break;
                    }
                }
                State::Resident { .. } | State::Leaving { .. } => {}
            }
            known.counters.ahead_bytes += bytes;
            self.watch.filled(self.unit_bytes, id, (start, end), is_first, writes);
            known.counters.trend_bytes += bytes;
            filled += bytes;
        }
        Ok(())
    }
}
