//! How a budget is divided: what the engine and its model have to agree on.

/// Least room: what a thread needs at once is a few units, and every fault must find room in the end.
pub const ROOM_BYTES_MIN: u64 = 16 << 20;
const MARGIN_BYTES: (u64, u64) = (3 << 20, 8 << 20);
const SPARE_BYTES_MAX: u64 = 64 << 20;

/// Bytes taken out at once, and units: few enough that faults in them wait for 1 ms or so.
pub const BATCH_BYTES: u64 = 2 << 20;
/// As above, in units.
pub const BATCH_UNITS: u64 = 128;
/// Part of the room that one fault may fill.
pub const FILL_SHARE: u64 = 64;

/// Kept out of a budget, in bytes: what is in the staging area (2 MiB at most), and what a process grows by outside of its tables
/// between two looks.
pub const fn margin_bytes(budget_bytes: u64) -> u64 {
    let part = budget_bytes / 32;
    if part < MARGIN_BYTES.0 {
        MARGIN_BYTES.0
    } else if part > MARGIN_BYTES.1 {
        MARGIN_BYTES.1
    } else {
        part
    }
}

/// Of a budget, what units may have resident beside so much that they do not count.
pub fn room_bytes(budget_bytes: u64, other_bytes: u64) -> u64 {
    budget_bytes.saturating_sub(other_bytes.saturating_add(margin_bytes(budget_bytes))).max(ROOM_BYTES_MIN)
}

/// The least budget with [`ROOM_BYTES_MIN`] beside so much that does not count.
pub const fn budget_bytes_min(other_bytes: u64) -> u64 {
    let bytes = other_bytes.saturating_add(ROOM_BYTES_MIN);
    bytes.saturating_add(margin_bytes(bytes.saturating_add(MARGIN_BYTES.1)))
}

/// Room that is kept free, so that faults need not wait for an eviction. A sixteenth instead of a thirty-second had `database` fault 15
/// hundredths more often, a sixty-fourth cut sequences short.
pub fn spare_bytes(room_bytes: u64, unit_bytes: u64) -> u64 {
    (room_bytes / 32).clamp(2 * unit_bytes, SPARE_BYTES_MAX).min(room_bytes / 4)
}

/// Free room at which eviction begins; it goes on to the full spare room, else each fault would order one unit out.
pub fn low_bytes(room_bytes: u64, unit_bytes: u64) -> u64 {
    let spare = spare_bytes(room_bytes, unit_bytes);
    (spare / 2).max(2 * unit_bytes).min(spare)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_budget_grow_with_it_between_their_bounds() {
        let margins = [64, 128, 1024].map(|mib| margin_bytes(mib << 20) >> 20);
        assert_eq!(margins, [3, 4, 8]);
        assert_eq!(room_bytes(64 << 20, 21 << 20), 40 << 20);
        assert_eq!(room_bytes(64 << 20, 1 << 40), ROOM_BYTES_MIN);
        for other in (0..400).map(|mib| mib << 20) {
            let least = budget_bytes_min(other);
            assert!(
                (least..least + (64 << 20))
                    .step_by(1 << 20)
                    .all(|budget| { budget - other - margin_bytes(budget) >= ROOM_BYTES_MIN })
            );
        }
        let unit = 64 << 10;
        for room in [ROOM_BYTES_MIN, 1 << 30, 1 << 40] {
            let (spare, low) = (spare_bytes(room, unit), low_bytes(room, unit));
            assert!(2 * unit <= low && low <= spare && spare <= room / 4, "{room}: {low}, {spare}");
        }
        assert_eq!((spare_bytes(1 << 30, unit), low_bytes(1 << 30, unit)), (32 << 20, 16 << 20));
        // Units of 2 MiB in the least room.
        assert_eq!(low_bytes(ROOM_BYTES_MIN, 2 << 20), 4 << 20);
    }
}
