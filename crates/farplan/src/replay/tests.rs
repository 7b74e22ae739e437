//! The model on traces whose answer is known, and what holds for any.

use super::*;
use crate::features::tests::trace_of;
use crate::width::WIDTH;
use proptest::prelude::*;

fn speeds() -> Vec<Speed> {
    let speed = |name: &str, once, kib, cost| Speed {
        name: name.to_owned(),
        get_ns: once,
        get_kib_ns: kib,
        put_ns: once,
        put_kib_ns: kib,
        cost,
        is_exact: true,
        ..Speed::default()
    };
    vec![speed("near", 1000.0, 100.0, 0.5), speed("wide", 100_000.0, 500.0, 0.05)]
}

fn setting(local_bytes: u64, unit_bytes: u64, ahead: bool) -> Setting {
    Setting { local_bytes, unit: Unit::Bytes(unit_bytes), ahead, width: WIDTH, back_ends: vec![0] }
}

fn played(trace: &Trace, setting: &Setting) -> Prediction {
    replay(trace, &Gaps::of(trace), setting, &speeds(), &Costs::default())
}

fn scan() -> Trace {
    trace_of(&(0..16_384).cycle().take(3 * 16_384).collect::<Vec<u64>>(), |_| false)
}

fn random() -> Trace {
    let mut state = 7u64;
    let mut pages: Vec<u64> = (0..16_384).collect();
    pages.extend((0..30_000).map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % 16_384
    }));
    trace_of(&pages, |_| false)
}

#[test]
fn what_fits_has_no_fault_and_the_plain_time() {
    let told = played(&scan(), &setting(1 << 30, 64 << 10, true));
    assert_eq!((told.faults, told.in_bytes, told.out_bytes), (0, 0, 0));
    assert!((told.time_s - told.plain_s).abs() < 1e-9);
}

#[test]
fn a_loop_over_too_much_brings_all_of_it_back_each_time() {
    // 64 MiB with room for 32: units of 4 KiB in order, two rounds after the first.
    let told = played(&scan(), &setting(40 << 20, 4096, false));
    assert!(told.in_bytes >= 64 << 20, "{told:?}");
    assert!(told.out_bytes >= 32 << 20 && told.out_bytes <= 66 << 20, "written once, then clean: {told:?}");
}

#[test]
fn scans_want_large_units_and_random_touches_small_ones() {
    let local = 40 << 20;
    let time = |trace: &Trace, unit| played(trace, &setting(local, unit, false)).time_s;
    assert!(time(&scan(), 256 << 10) < time(&scan(), 4 << 10));
    assert!(time(&random(), 4 << 10) < time(&random(), 256 << 10));
}

#[test]
fn fetching_ahead_helps_scans() {
    let local = 40 << 20;
    let with = played(&scan(), &setting(local, 16 << 10, true));
    let without = played(&scan(), &setting(local, 16 << 10, false));
    assert!(with.faults < without.faults && with.time_s < without.time_s, "{with:?} {without:?}");
    assert!(with.ahead_bytes > 0 && without.ahead_bytes == 0);
}

#[test]
fn the_slower_back_end_is_slower_and_two_are_between() {
    let with = |back_ends: &[usize]| {
        let setting = Setting { back_ends: back_ends.to_vec(), ..setting(40 << 20, 16 << 10, false) };
        played(&random(), &setting).time_s
    };
    assert!(with(&[0]) < with(&[0, 1]) && with(&[0, 1]) < with(&[1]));
}

/// A disk of 200 us a read, of which it does eight at once.
fn disk() -> Speed {
    Speed {
        get_ns: 200_000.0,
        put_ns: 200_000.0,
        get_together: 8.0,
        put_together: 8.0,
        sleeps: true,
        ..Speed::default()
    }
}

/// Seconds with these widths.
fn by_width<const COUNT: usize>(trace: &Trace, speed: &Speed, widths: [usize; COUNT]) -> [f64; COUNT] {
    widths.map(|width| {
        let setting = Setting { width, ..setting(40 << 20, 64 << 10, true) };
        replay(trace, &Gaps::of(trace), &setting, std::slice::from_ref(speed), &Costs::default()).time_s
    })
}

#[test]
fn more_threads_help_where_a_device_answers_several_at_once_and_order_is_seen() {
    let [one, two, four, eight, sixteen] = by_width(&scan(), &disk(), [1, 2, 4, 8, 16]);
    assert!(two < one * 0.8 && four < two * 0.8 && eight < four, "{one} {two} {four} {eight}");
    // It has no more to give.
    assert!((sixteen - eight).abs() < eight * 0.1, "{eight} {sixteen}");
    // A disk that does one thing at a time gives nobody more.
    let single = Speed { get_together: 1.0, put_together: 1.0, ..disk() };
    let [one, eight] = by_width(&scan(), &single, [1, 8]);
    assert!((one - eight).abs() < one * 0.05, "{one} {eight}");
    // What is touched at random is read when it is touched, by one.
    let [one, eight] = by_width(&random(), &disk(), [1, 8]);
    assert!(eight > one * 0.9, "{one} {eight}");
}

#[test]
fn more_threads_do_not_help_where_they_compute_and_no_processor_is_left() {
    let packed = Speed { sleeps: false, ..disk() };
    let [one, eight] = by_width(&scan(), &packed, [1, 8]);
    assert!((one - eight).abs() < one * 0.05, "{one} {eight}");
    let wide = Costs { processors: 16, ..Costs::default() };
    let [one, eight] = [1, 8].map(|width| {
        let setting = Setting { width, ..setting(40 << 20, 64 << 10, true) };
        replay(&scan(), &Gaps::of(&scan()), &setting, std::slice::from_ref(&packed), &wide).time_s
    });
    assert!(eight < one * 0.8, "{one} {eight}");
}

#[test]
fn fitted_units_bring_single_pages_to_who_uses_those_and_whole_blocks_to_others() {
    let of = |trace: &Trace, unit| {
        let setting = Setting { unit, ..setting(40 << 20, 4096, false) };
        played(trace, &setting)
    };
    // One page of each block of four, at random, of four times the room.
    let mut state = 7u64;
    let mut pages: Vec<u64> = (0..32_768).collect();
    pages.extend((0..120_000).map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % 8192 * 4
    }));
    let single = trace_of(&pages, |_| true);
    let [fitted, whole] = [Unit::Fitted, Unit::Bytes(16 << 10)].map(|unit| of(&single, unit));
    assert!(fitted.in_bytes * 2 < whole.in_bytes, "{fitted:?} {whole:?}");
    assert!(fitted.time_s < whole.time_s, "{fitted:?} {whole:?}");
    // All of each block, one after the other.
    let [fitted, pages] = [Unit::Fitted, Unit::Bytes(4 << 10)].map(|unit| of(&scan(), unit));
    assert!(fitted.faults < pages.faults / 2, "{fitted:?} {pages:?}");
    assert!(fitted.time_s < pages.time_s, "{fitted:?} {pages:?}");
}

#[test]
fn memory_that_was_given_up_is_not_brought_back() {
    let mut trace = scan();
    let drop = Record { time_ns: 0, address: 0, kind: Kind::Drop, space: 0, flags: 0, amount: 16_384 };
    let whole = played(&trace, &setting(40 << 20, 4096, false));
    for round in [2, 1] {
        trace.records.insert(round * 16_384, drop);
    }
    let dropped = played(&trace, &setting(40 << 20, 4096, false));
    assert!(dropped.in_bytes == 0 && whole.in_bytes > 0, "{dropped:?}");
}

#[test]
fn gaps_are_the_programs_own_time() {
    let mut trace = trace_of(&(0..100).collect::<Vec<u64>>(), |_| false);
    assert!(Gaps::of(&trace).sum_ns() < 3000.0, "touches at once after each other are faults only");
    trace.records.push(Record {
        time_ns: 50_000,
        address: 0,
        kind: Kind::Usage,
        space: 0,
        flags: 0,
        amount: 1,
    });
    assert!((Gaps::of(&trace).sum_ns() - 50_000.0).abs() < 1.0);
}

proptest! {
    #[test]
    fn the_model_always_ends_and_counts_what_it_moves(
        pages in proptest::collection::vec(0u64..9000, 1..1500),
        local in 0u64..64,
        unit in 0usize..6,
        width in 1usize..17,
        sleeps: bool,
        ahead: bool,
    ) {
        let trace = trace_of(&pages, |index| index % 3 == 0);
        let units = crate::features::UNITS.map(Unit::Bytes);
        let unit = units.get(unit).copied().unwrap_or(Unit::Fitted);
        let setting = Setting { unit, width, ..setting(local << 20, 4096, ahead) };
        let speeds = speeds().into_iter().map(|speed| Speed { sleeps, get_together: 5.0, ..speed });
        let speeds: Vec<Speed> = speeds.collect();
        let play = || replay(&trace, &Gaps::of(&trace), &setting, &speeds, &Costs::default());
        let told = play();
        prop_assert!(told.time_s >= told.plain_s * 0.999 - 1.0 && told.time_s.is_finite());
        prop_assert_eq!(told.in_bytes % unit.part_bytes(), 0);
        prop_assert_eq!(told, play(), "the same twice");
    }
}
