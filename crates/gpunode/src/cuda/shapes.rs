//! Rows and launches as the driver's calls take them.

use super::staging::PIECE_BYTES;
use crate::work::Rows;
use hinterland_gpu::lend::memory::Region;
use hinterland_gpu::lend::program::Shape;
use hinterland_proto::gpu::command::{self, launch_flags};

/// Rows as the driver's calls take them.
pub(super) const fn region(rows: Rows) -> Region {
    let pitch = if rows.rows <= 1 { rows.width } else { rows.pitch };
    Region { address: rows.address, pitch, width: rows.width, rows: rows.rows }
}

/// Rows in parts of at most a piece of staging.
pub(super) fn parts(all: Rows) -> Vec<Rows> {
    let most = PIECE_BYTES as u64;
    let mut parts = Vec::new();
    if all.bytes() == 0 {
        return parts;
    }
    if all.width <= most {
        let at_once = most / all.width;
        let mut row = 0;
        while row < all.rows {
            let rows = at_once.min(all.rows - row);
            parts.push(Rows { address: all.address + row * all.pitch, rows, ..all });
            row += rows;
        }
        return parts;
    }
    for start in all.starts() {
        let mut at = 0;
        while at < all.width {
            let bytes = most.min(all.width - at);
            parts.push(Rows::one(start + at, bytes));
            at += bytes;
        }
    }
    parts
}

/// The shape of a launch.
pub(super) fn shape(fields: &command::Launch) -> Shape {
    let has = |flag: u32| fields.flags & flag != 0;
    Shape {
        grid: fields.grid,
        block: fields.block,
        shared: fields.shared,
        cluster: has(launch_flags::CLUSTER).then_some(fields.cluster),
        is_cooperative: has(launch_flags::COOPERATIVE),
        is_programmatic: has(launch_flags::PROGRAMMATIC),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_parted_into_pieces_that_hold_all_of_them_once() {
        let most = PIECE_BYTES as u64;
        for all in [
            Rows::one(0, 1),
            Rows::one(5, 3 * most + 7),
            Rows { address: 0, pitch: 10, width: 4, rows: 1_000_000 },
            Rows { address: 9, pitch: 3 * most, width: most + 1, rows: 3 },
            Rows { address: 9, pitch: 3 * most, width: most, rows: 3 },
            Rows { address: 9, pitch: 8, width: 8, rows: 0 },
        ] {
            let parts = parts(all);
            assert!(parts.iter().all(|part| part.bytes() <= most && part.bytes() > 0));
            assert_eq!(parts.iter().map(Rows::bytes).sum::<u64>(), all.bytes());
            let starts: Vec<u64> = parts.iter().flat_map(|part| part.starts()).collect();
            assert!(starts.is_sorted());
            assert_eq!(starts.first().copied(), all.starts().next());
        }
    }
}
