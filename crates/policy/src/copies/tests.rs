//! When a copy pays, when it does not, and which one goes.

use super::*;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const X: ObjectId = ObjectId(16);
const Y: ObjectId = ObjectId(17);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn same(bytes: u64) -> u64 {
    bytes
}

fn heat() -> FetchHeat {
    FetchHeat::new(CopySettings::default())
}

#[test]
fn the_first_reading_makes_no_copy_and_the_second_does() {
    let mut heat = heat();
    for piece in 0..10 {
        heat.record(X, 10 * MIB, MIB, at(piece));
    }
    assert_eq!(heat.due(u64::MAX, same, at(10)), None);
    for piece in 10..20 {
        heat.record(X, 10 * MIB, MIB, at(piece));
    }
    assert_eq!(heat.due(u64::MAX, same, at(20)), Some(X));
    heat.forget(X);
    assert_eq!(heat.due(u64::MAX, same, at(20)), None);
}

#[test]
fn readings_that_are_far_apart_are_forgotten() {
    let mut heat = heat();
    for hour in 0..24 {
        heat.record(X, MIB, MIB, at(hour * 3600));
        assert_eq!(heat.due(u64::MAX, same, at(hour * 3600)), None, "after {hour} hours");
    }
    heat.record(Y, MIB, 2 * MIB, at(90_000));
    assert_eq!(heat.due(u64::MAX, same, at(90_000)), Some(Y));
    assert_eq!(heat.due(u64::MAX, same, at(90_000 + 600)), None, "it has cooled");
}

#[test]
fn a_small_part_that_is_read_again_and_again_pays_as_well() {
    let mut heat = heat();
    for second in 0..160 {
        heat.record(X, 100 * MIB, MIB, at(second / 10));
    }
    assert_eq!(heat.due(u64::MAX, same, at(16)), Some(X));
}

#[test]
fn what_does_not_fit_waits_and_what_spares_most_comes_first() {
    let mut heat = heat();
    heat.record(X, 8 * MIB, 20 * MIB, at(0));
    heat.record(Y, 4 * MIB, 10 * MIB, at(0));
    assert_eq!(heat.due(8 * MIB, same, at(0)), Some(X));
    assert_eq!(heat.due(8 * MIB, |bytes| bytes + 1, at(0)), Some(Y), "its memory counts, not its size");
    assert_eq!(heat.due(MIB, same, at(0)), None);
    heat.rest(X, at(0));
    assert_eq!(heat.due(8 * MIB, same, at(29)), Some(Y), "it was refused a moment ago");
    assert_eq!(heat.due(8 * MIB, same, at(30)), Some(X));
}

#[test]
fn copies_get_a_share_of_what_nothing_else_uses() {
    let settings = CopySettings::default();
    let room = |free_bytes, copies_bytes| settings.room(CopyRoom { free_bytes, copies_bytes });
    assert_eq!(room(100, 0), 25);
    assert_eq!(room(75, 25), 0);
    assert_eq!(room(80, 20), 5);
    assert_eq!(room(0, 20), 0);
    let all = CopySettings { room_share: 1.0, ..settings };
    assert_eq!(all.room(CopyRoom { free_bytes: 7, copies_bytes: 100 }), 7);
}

#[test]
fn a_copy_goes_when_nobody_has_used_it_for_long_and_nobody_has_it_open() {
    let settings = CopySettings::default();
    let mut uses = CopyUses::default();
    uses.observe(X, 3, false, at(0));
    uses.observe(Y, 0, true, at(0));
    assert!(uses.cold(&settings, at(599)).is_empty());
    assert_eq!(uses.cold(&settings, at(600)), [X]);
    uses.observe(X, 4, false, at(600));
    assert!(uses.cold(&settings, at(1100)).is_empty(), "it was read");
    uses.observe(Y, 0, false, at(1000));
    assert_eq!(uses.order(), [Y, X], "it was open, but nobody has used it for longer");
    uses.observe(Y, 0, true, at(1200));
    assert_eq!(uses.order(), [X, Y]);
    uses.retain(|object| object == Y);
    assert_eq!(uses.order(), [Y]);
    uses.forget(Y);
    assert!(uses.order().is_empty());
}

#[test]
fn no_more_objects_are_known_than_there_is_room_for() {
    let mut heat = heat();
    heat.record(ObjectId(0), MIB, 100 * MIB, at(0));
    for number in 1..10_000 {
        heat.record(ObjectId(number), MIB, 1, at(1));
    }
    assert_eq!(heat.objects.len(), OBJECTS_MAX);
    assert_eq!(heat.due(u64::MAX, same, at(1)), Some(ObjectId(0)), "the coldest go");
}

proptest! {
    /// Whatever comes in any order, no copy is due of which less was fetched than `readings` times its size, ever.
    #[test]
    fn no_copy_is_due_before_it_was_paid_for(
        steps in prop::collection::vec((0u64..3, 0u64..5000, 0u64..100), 1..100),
    ) {
        let settings = CopySettings::default();
        let mut heat = FetchHeat::new(settings);
        let mut total = [0; 3];
        for (object, bytes, second) in steps {
            heat.record(ObjectId(object), 5000, bytes, at(second));
            total[object as usize] += bytes;
            if let Some(due) = heat.due(5000, same, at(second)) {
                prop_assert!(total[due.0 as usize] as f64 > settings.readings * 5000.0);
            }
        }
    }
}
