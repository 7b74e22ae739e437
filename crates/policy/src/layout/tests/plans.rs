//! Plans: what becomes of experts, edges and dense parts.

use super::*;

fn map_of(writer: &GgufWriter, preference: &Preference) -> (Layout, UnitMap) {
    let (header, _, object_bytes) = writer.header();
    let layout = layout_of(&header, object_bytes);
    let map = plan(Some(&layout), object_bytes, preference).unwrap();
    (layout, map)
}

/// Bytes of all units that hold a byte of an expert.
fn fetched_bytes(layout: &Layout, map: &UnitMap, expert: Expert) -> (u64, u64) {
    let own = layout.pieces.iter().filter(|piece| piece.expert == expert);
    let units: std::collections::BTreeSet<u32> = own
        .clone()
        .flat_map(|piece| map.units_in(piece.range).map(|(first, last)| first..=last))
        .flatten()
        .collect();
    (own.map(|piece| piece.range.bytes()).sum(), units.iter().map(|&unit| map.range(unit).bytes()).sum())
}

#[test]
fn an_aligned_expert_is_three_units_of_one_group() {
    let (layout, map) = map_of(&olmoe(64 * KIB, 2), &Preference::default());
    assert_eq!(map.group_count(), 128);
    for group in 0..128 {
        let units = map.group(GroupId(group));
        assert_eq!(units.len(), 3, "group {group}");
        assert!(units.iter().all(|&unit| map.group_of(unit) == Some(GroupId(group))));
        assert!(units.iter().all(|&unit| map.range(unit).bytes() == 18 * 64 * KIB));
    }
    for piece in &layout.pieces {
        assert_eq!(map.range(map.unit_of(piece.range.offset())), piece.range);
    }
    assert!(!map.wants_huge());
}

#[test]
fn dense_parts_are_cut_evenly() {
    let preference = Preference { unit: None, default_unit: UnitBytes::new(256 * KIB).unwrap() };
    let (_, map) = map_of(&olmoe(64 * KIB, 1), &preference);
    let dense: Vec<u32> = (0..map.count()).filter(|&unit| map.group_of(unit).is_none()).collect();
    assert!(dense.iter().all(|&unit| map.range(unit).bytes() <= 256 * KIB));
    assert_eq!(map.range(0).bytes(), 256 * KIB);
}

#[test]
fn an_unaligned_expert_costs_its_edges_and_not_its_neighbours() {
    let mut writer = olmoe(32, 2);
    writer
        .metadata
        .push([gguf_string("pad"), 8u32.to_le_bytes().to_vec(), gguf_string(&"x".repeat(1000))].concat());
    let (layout, map) = map_of(&writer, &Preference::default());
    for expert in [0, 1, 31, 63] {
        let expert = Expert { block: 1, expert };
        let (own, fetched) = fetched_bytes(&layout, &map, expert);
        assert!(fetched <= own + 3 * 2 * 64 * KIB, "{own} {fetched}");
        let group = GroupId(64 + expert.expert);
        let listed: u64 = map.group(group).iter().map(|&unit| map.range(unit).bytes()).sum();
        assert_eq!(listed, fetched, "the group lists every unit that the expert needs");
        let edges = map.group(group).iter().filter(|&&unit| map.group_of(unit).is_none());
        assert!(edges.clone().all(|&unit| map.range(unit).bytes() == 64 * KIB));
        assert!(edges.count() >= 3);
    }
}

#[test]
fn large_experts_are_cut_for_huge_pages() {
    let mut writer = GgufWriter::new(32);
    writer.tensor("token_embd.weight", &[4096, 1000], F32, 4096 * 1000 * 4);
    for matrix in ["gate", "up", "down"] {
        let bytes = 4096 * 14336 / 32 * 18;
        writer.tensor(&format!("blk.0.ffn_{matrix}_exps.weight"), &[4096, 14336, 8], Q4_0, 8 * bytes);
    }
    let preference = Preference { unit: None, default_unit: UnitBytes::new(128 * KIB).unwrap() };
    let (layout, map) = map_of(&writer, &preference);
    assert!(map.wants_huge());
    assert_eq!(map.group_count(), 8);
    let (own, fetched) = fetched_bytes(&layout, &map, Expert { block: 0, expert: 3 });
    assert!(fetched <= own + 3 * 4 * MIB, "{own} {fetched}");
    let longest = (0..map.count()).map(|unit| map.range(unit).bytes()).max();
    assert!(longest <= Some(EXPERT_UNIT_BYTES_MAX));
}

#[test]
fn an_explicit_unit_wins_over_the_layout() {
    let unit = UnitBytes::new(MIB).unwrap();
    let (_, map) =
        map_of(&olmoe(64 * KIB, 1), &Preference { unit: Some(unit), default_unit: UnitBytes::DEFAULT });
    assert_eq!(map, UnitMap::uniform(map.size(), unit).unwrap());
}

#[test]
fn an_object_without_experts_is_uniform() {
    let uniform = UnitMap::uniform(5 * MIB, UnitBytes::DEFAULT).unwrap();
    assert_eq!(plan(None, 5 * MIB, &Preference::default()).unwrap(), uniform);
    let mut writer = GgufWriter::new(32);
    writer.tensor("output.weight", &[2048, 4096], Q4_0, 2048 * 4096 / 32 * 18);
    let (_, map) = map_of(&writer, &Preference::default());
    assert_eq!(map, UnitMap::uniform(map.size(), UnitBytes::DEFAULT).unwrap());
}

#[test]
fn the_layout_of_a_larger_object_is_refused() {
    let (header, _, object_bytes) = olmoe(64 * KIB, 1).header();
    let layout = layout_of(&header, object_bytes);
    assert!(plan(Some(&layout), object_bytes / 2, &Preference::default()).is_err());
}

/// Random pieces in a random object, as any header could place them.
fn scattered() -> impl Strategy<Value = (Layout, u64)> {
    let piece = (0u64..4 * MIB, 128 * KIB..40 * MIB, 0u32..4, 0u32..6);
    (prop::collection::vec(piece, 0..30), 0u64..3 * MIB, any::<bool>()).prop_map(|(parts, tail, large)| {
        let mut at = 0;
        let mut pieces = Vec::new();
        for (gap, bytes, block, expert) in parts {
            let start = at + if gap % 3 == 0 { 0 } else { gap };
            let bytes = if large { bytes + HUGE_EXPERT_BYTES_MIN } else { bytes };
            at = start + bytes;
            pieces.push(ExpertPiece {
                range: ByteRange::new(start, bytes).unwrap(),
                expert: Expert { block, expert },
            });
        }
        (Layout { format: Format::Gguf, data_offset: 0, tensor_count: 0, pieces }, at + tail)
    })
}

proptest! {
    #[test]
    fn every_plan_is_whole_and_every_group_holds_its_experts((layout, size) in scattered(), blocks in 1u64..1024) {
        let preference = Preference { unit: None, default_unit: UnitBytes::new(blocks * 64 * KIB).unwrap() };
        let map = plan(Some(&layout), size, &preference).unwrap();
        let sum: u64 = (0..map.count()).map(|unit| map.range(unit).bytes()).sum();
        prop_assert_eq!(sum, size);
        let mut experts: Vec<Expert> = layout.pieces.iter().map(|piece| piece.expert).collect();
        experts.sort();
        experts.dedup();
        for (index, &expert) in experts.iter().enumerate() {
            let group = map.group(GroupId(index as u32));
            prop_assert!(group.is_sorted_by(|a, b| a < b));
            for piece in layout.pieces.iter().filter(|piece| piece.expert == expert) {
                let (first, last) = map.units_in(piece.range).unwrap();
                for unit in first..=last {
                    prop_assert!(group.contains(&unit), "unit {} of {:?}", unit, piece);
                    let is_inside = piece.range.contains(map.range(unit));
                    prop_assert_eq!(map.group_of(unit), is_inside.then_some(GroupId(index as u32)));
                }
            }
        }
    }
}
