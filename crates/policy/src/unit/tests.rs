//! Tests of fault units: against a plain model, and each refusal by its name.

use super::*;
use proptest::prelude::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Boundaries of a random division in blocks of 64 KiB, with a ragged end.
fn divisions() -> impl Strategy<Value = Vec<u64>> {
    (prop::collection::vec(1u64..=1024, 1..40), 0u64..64 * KIB).prop_map(|(blocks, ragged)| {
        let mut cuts = vec![0];
        for length in &blocks {
            cuts.push(cuts[cuts.len() - 1] + length * 64 * KIB);
        }
        let end = cuts.len() - 1;
        cuts[end] -= ragged;
        cuts
    })
}

fn check_against_plain_division(map: &UnitMap, starts: &[u64], size: u64) -> Result<(), TestCaseError> {
    prop_assert_eq!(map.count() as usize, starts.len());
    let mut next = 0;
    for (index, &start) in starts.iter().enumerate() {
        let range = map.range(index as u32);
        prop_assert_eq!((range.offset(), next), (start, start));
        prop_assert!(range.bytes() > 0);
        prop_assert_eq!(map.unit_of(range.offset()), index as u32);
        prop_assert_eq!(map.unit_of(range.end() - 1), index as u32);
        next = range.end();
    }
    prop_assert_eq!(next, size);
    Ok(())
}

proptest! {
    #[test]
    fn uniform_units_cover_the_object_once(size in 1u64..1 << 32, blocks in 1u64..=1024) {
        let unit = UnitBytes::new(blocks * 64 * KIB).unwrap();
        let map = UnitMap::uniform(size, unit).unwrap();
        let starts: Vec<u64> = (0..size.div_ceil(unit.get())).map(|index| index * unit.get()).collect();
        if starts.len() < 5000 {
            check_against_plain_division(&map, &starts, size)?;
        } else {
            prop_assert_eq!(map.count() as usize, starts.len());
        }
    }

    #[test]
    fn extents_cover_the_object_once(cuts in divisions(), probe in any::<u64>()) {
        let size = cuts[cuts.len() - 1];
        let map = UnitMap::extents(size, cuts.clone(), &[]).unwrap();
        check_against_plain_division(&map, &cuts[..cuts.len() - 1], size)?;
        let offset = probe % size;
        let plain = cuts.iter().filter(|&&cut| cut <= offset).count() as u32 - 1;
        prop_assert_eq!(map.unit_of(offset), plain);
        prop_assert_eq!(map.wants_huge(), cuts[..cuts.len() - 1].iter().all(|cut| cut % (2 * MIB) == 0));
    }

    #[test]
    fn no_question_panics(size in 0u64..1 << 44, blocks in 1u64..=1024, unit in any::<u32>(), at in any::<u64>()) {
        let map = UnitMap::uniform(size.min(OBJECT_BYTES_MAX), UnitBytes::new(blocks * 64 * KIB).unwrap()).unwrap();
        prop_assert!(map.range(unit).end() <= map.size());
        prop_assert!(map.count() == 0 || map.unit_of(at) < map.count());
        prop_assert!(map.mapped_range(unit, 4096).end() <= map.size().next_multiple_of(4096));
        prop_assert_eq!((map.group_of(unit), map.group_at(at)), (None, None));
        prop_assert!(map.group(GroupId(unit)).is_empty());
    }
}

#[test]
fn the_last_unit_is_mapped_to_the_end_of_its_page() {
    let map = UnitMap::uniform(2 * MIB + 5000, UnitBytes::DEFAULT).unwrap();
    assert_eq!(map.mapped_range(0, 4096), map.range(0));
    assert_eq!(map.mapped_range(1, 4096).bytes(), 8192);
    assert_eq!(map.mapped_range(1, 2 * MIB).bytes(), 2 * MIB);
}

#[test]
fn a_touch_behind_the_end_in_the_last_page_belongs_to_the_last_unit() {
    let map = UnitMap::uniform(2 * MIB + 1, UnitBytes::DEFAULT).unwrap();
    assert_eq!(map.unit_of(2 * MIB + 4000), 1);
}

#[test]
fn an_empty_object_has_no_unit() {
    let map = UnitMap::extents(0, vec![0], &[]).unwrap();
    assert_eq!((map.count(), map.unit_of(0), map.range(0).bytes()), (0, 0, 0));
    assert_eq!(UnitMap::uniform(0, UnitBytes::DEFAULT).unwrap().count(), 0);
}

#[test]
fn units_in_a_range_are_those_that_share_a_byte() {
    let map = UnitMap::uniform(10 * MIB, UnitBytes::DEFAULT).unwrap();
    let units = |offset, bytes| map.units_in(ByteRange::new(offset, bytes).unwrap());
    assert_eq!(units(0, 2 * MIB), Some((0, 0)));
    assert_eq!(units(2 * MIB - 1, 2), Some((0, 1)));
    assert_eq!(units(9 * MIB, u64::MAX - 9 * MIB), Some((4, 4)));
    assert_eq!(units(0, 0), None);
    assert_eq!(units(10 * MIB, 1), None);
}

#[test]
fn odd_unit_sizes_are_refused() {
    for bytes in [0, 4096, 65535, 100_000, 64 * MIB + 65536, u64::MAX] {
        assert_eq!(UnitBytes::new(bytes), Err(UnitMapError::UnitBytes(bytes)));
    }
    assert_eq!(UnitBytes::holding(0), UnitBytes::MIN);
    assert_eq!(UnitBytes::holding(300_000).get(), 512 * KIB);
    assert_eq!(UnitBytes::holding(u64::MAX), UnitBytes::MAX);
    assert_eq!(UnitBytes::MIN.to_string() + &UnitBytes::DEFAULT.to_string(), "64 KiB2 MiB");
}

#[test]
fn boundaries_that_make_no_unit_are_refused() {
    let refused = |size, cuts: &[u64]| UnitMap::extents(size, cuts.to_vec(), &[]).unwrap_err();
    assert_eq!(refused(MIB, &[]), UnitMapError::Ends { first: u64::MAX, last: 0, size: MIB });
    assert!(matches!(refused(MIB, &[0, 2 * MIB]), UnitMapError::Ends { .. }));
    assert!(matches!(refused(MIB, &[65536, MIB]), UnitMapError::Ends { .. }));
    assert_eq!(refused(MIB, &[0, 4096, MIB]), UnitMapError::Boundary { start: 0, end: 4096 });
    assert!(matches!(refused(MIB, &[0, 65536, 65536, MIB]), UnitMapError::Boundary { .. }));
    assert!(matches!(refused(MIB, &[0, 131072, 65536, MIB]), UnitMapError::Boundary { .. }));
    assert!(matches!(refused(65 * MIB, &[0, 65 * MIB]), UnitMapError::Boundary { .. }));
    assert!(matches!(refused(u64::MAX, &[0, u64::MAX]), UnitMapError::ObjectTooLarge(_)));
}

fn edge(unit: u32, offset: u64, bytes: u64) -> Edge {
    Edge { unit, part: ByteRange::new(offset, bytes).unwrap() }
}

#[test]
fn a_group_knows_its_members_and_shares_its_edges() {
    let cuts = (0..=6).map(|index| index * 65536).collect::<Vec<u64>>();
    let groups = [
        Group { members: vec![3, 0], edges: vec![edge(1, 65536, 9000)] },
        Group { members: vec![2], edges: vec![edge(1, 74536, 56536), edge(4, 4 * 65536, 100)] },
    ];
    let map = UnitMap::extents(6 * 65536, cuts, &groups).unwrap();
    assert_eq!(map.group_count(), 2);
    assert_eq!(map.group(GroupId(0)), [0, 1, 3]);
    assert_eq!(map.group(GroupId(1)), [1, 2, 4]);
    let owners: Vec<Option<u32>> = (0..6).map(|unit| map.group_of(unit).map(|group| group.0)).collect();
    assert_eq!(owners, [Some(0), None, Some(1), Some(0), None, None]);
}

#[test]
fn a_fault_in_an_edge_is_about_the_group_that_its_page_tells() {
    let group = |unit, offset, bytes| Group { members: vec![], edges: vec![edge(unit, offset, bytes)] };
    // Unit 0: group 0 up to byte 9000, then group 1. Unit 1: group 1 up to 100 bytes, then dense. Unit 2: dense, then group 2.
    let groups = [
        group(0, 0, 9000),
        Group { members: vec![], edges: vec![edge(0, 9000, 56536), edge(1, 65536, 100)] },
        group(2, 2 * 65536 + 5000, 60536),
    ];
    let cuts: Vec<u64> = (0..4).map(|index| index * 65536).collect();
    let map = UnitMap::extents(3 * 65536, cuts, &groups).unwrap();
    let at = |unit: u64, offset: u64| map.group_at(unit * 65536 + offset).map(|group| group.0);
    assert_eq!(
        [at(0, 0), at(0, 4096), at(0, 8192), at(0, 8999), at(0, 12288), at(0, 65535)],
        [Some(0), Some(0), Some(1), Some(1), Some(1), Some(1)]
    );
    assert_eq!([at(1, 0), at(1, 50), at(1, 4096)], [None; 3], "the first page may be read for either");
    assert_eq!([at(2, 0), at(2, 4096), at(2, 8192), at(9, 0)], [None, Some(2), Some(2), Some(2)]);
}

#[test]
fn a_member_of_two_groups_and_a_unit_that_is_not_there_are_refused() {
    let cuts = vec![0, 65536, 131072];
    let group = |members: &[u32], edges: &[u32]| {
        let edges = edges.iter().map(|&unit| edge(unit, 0, 1)).collect();
        Group { members: members.to_vec(), edges }
    };
    let refused = |groups: &[Group]| UnitMap::extents(131072, cuts.clone(), groups).unwrap_err();
    let twice = refused(&[group(&[0], &[]), group(&[0], &[])]);
    assert_eq!(twice, UnitMapError::Member { group: 1, unit: 0 });
    assert_eq!(refused(&[group(&[2], &[])]), UnitMapError::Member { group: 0, unit: 2 });
    assert_eq!(refused(&[group(&[], &[9])]), UnitMapError::Member { group: 0, unit: 9 });
}
