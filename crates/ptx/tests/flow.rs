//! Lanes that go apart and meet, barriers, calls, memory in all spaces, and what lanes do together.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

mod device;

use device::{Device, Parameters};
use hinterland_ptx::{FaultKind, LaunchError};

const HEAD: &str = ".version 9.0\n.target sm_90\n.address_size 64\n";
const REGISTERS: &str =
    ".reg .pred %p<16>; .reg .b16 %h<16>; .reg .b32 %r<64>; .reg .b64 %rd<32>; .reg .f32 %f<16>;";

/// A kernel in which `%r1` is the thread and `%rd1` the address of its own number of 32 bits.
fn kernel(before: &str, body: &str) -> String {
    format!(
        "{HEAD}{before}
        .visible .entry run(.param .u64 out) {{ {REGISTERS}
        mov.u32 %r1, %tid.x; ld.param.u64 %rd2, [out]; mul.wide.u32 %rd1, %r1, 4; add.s64 %rd1, %rd1, %rd2;
        {body}
        ret; }}"
    )
}

/// Runs such a kernel with one block, and returns the numbers of all threads.
fn run(threads: u32, before: &str, body: &str) -> Vec<u32> {
    try_run(threads, before, body).unwrap_or_else(|error| panic!("{body}: {error}"))
}

fn try_run(threads: u32, before: &str, body: &str) -> Result<Vec<u32>, LaunchError> {
    let mut device = Device::new(&kernel(before, body));
    device.instructions = 3_000_000;
    let out = device.room(u64::from(threads) * 4);
    device.try_launch("run", (1, threads, 4096), &Parameters::default().with(out).0)?;
    Ok(device.get(out, threads as usize))
}

fn fault(threads: u32, before: &str, body: &str) -> FaultKind {
    match try_run(threads, before, body) {
        Err(LaunchError::Fault { kind, .. }) => kind,
        other => panic!("{body}: {other:?}"),
    }
}

#[test]
fn lanes_that_loop_differently_meet_behind_the_loop() {
    let body = "mov.u32 %r2, 0; mov.u32 %r3, %r1;
        LOOP: setp.eq.u32 %p1, %r3, 0; @%p1 bra DONE; add.u32 %r2, %r2, %r3; sub.u32 %r3, %r3, 1; bra LOOP;
        DONE: activemask.b32 %r4; popc.b32 %r5, %r4; mad.lo.u32 %r2, %r2, 100, %r5; st.global.u32 [%rd1], %r2;";
    let results = run(40, "", body);
    for (thread, result) in results.into_iter().enumerate() {
        let sum = (thread * (thread + 1) / 2) as u32;
        assert_eq!(result, sum * 100 + if thread < 32 { 32 } else { 8 });
    }
}

#[test]
fn both_sides_of_a_branch_run_and_early_exits_do_not_hold_the_others() {
    let body = "and.b32 %r2, %r1, 3; setp.eq.u32 %p1, %r2, 3; @%p1 exit; setp.eq.u32 %p2, %r2, 1; @%p2 bra ONE;
        mov.u32 %r3, 10; bra JOIN; ONE: mov.u32 %r3, 20; JOIN: bar.sync 0; add.u32 %r3, %r3, %r1; st.global.u32 [%rd1], %r3;";
    for (thread, result) in run(70, "", body).into_iter().enumerate() {
        let thread = thread as u32;
        assert_eq!(result, [10 + thread, 20 + thread, 10 + thread, 0][thread as usize % 4]);
    }
}

#[test]
fn tables_of_branches_lead_each_lane_to_its_own_case() {
    let body = "and.b32 %r2, %r1, 3; TABLE: .branchtargets A, B, C, B; brx.idx %r2, TABLE;
        A: mov.u32 %r3, 1; bra E; B: mov.u32 %r3, 2; bra E; C: mov.u32 %r3, 3; E: st.global.u32 [%rd1], %r3;";
    for (thread, result) in run(33, "", body).into_iter().enumerate() {
        assert_eq!(result, [1, 2, 3, 2][thread % 4]);
    }
    let beyond = body.replace("and.b32 %r2, %r1, 3;", "mov.u32 %r2, 9;");
    assert!(matches!(fault(1, "", &beyond), FaultKind::Unsupported(_)));
}

#[test]
fn a_label_belongs_to_its_block() {
    let body = "mov.u32 %r2, 0; { .reg .pred %p1; AGAIN: add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 3; @%p1 bra AGAIN; }
        { .reg .b32 %r2, %r9; mov.u32 %r2, 7; AGAIN: add.u32 %r2, %r2, 1; } st.global.u32 [%rd1], %r2;";
    assert_eq!(run(1, "", body), [3]);
}

#[test]
fn shared_memory_is_seen_by_the_block_behind_a_barrier() {
    let before = ".shared .align 4 .b8 fixed[512]; .extern .shared .align 16 .b8 dynamic[];";
    let body = "mov.u32 %r2, fixed; mov.u32 %r3, dynamic; shl.b32 %r4, %r1, 2; add.u32 %r5, %r2, %r4; add.u32 %r6, %r3, %r4;
        st.shared.u32 [%r5], %r1; st.shared.u32 [%r6], %r4; bar.sync 0;
        xor.b32 %r7, %r4, 508; add.u32 %r8, %r2, %r7; add.u32 %r9, %r3, %r7; ld.shared.u32 %r10, [%r8];
        cvt.u64.u32 %rd3, %r9; cvta.shared.u64 %rd4, %rd3; isspacep.shared %p1, %rd4; ld.u32 %r11, [%rd4];
        add.u32 %r10, %r10, %r11; @!%p1 mov.u32 %r10, 0; st.global.u32 [%rd1], %r10;";
    for (thread, result) in run(128, before, body).into_iter().enumerate() {
        assert_eq!(result, (127 - thread as u32) * 5);
    }
}

#[test]
fn barriers_count_threads_vote_and_wait_for_part_of_the_block() {
    let body = "setp.lt.u32 %p1, %r1, 40; bar.red.popc.u32 %r2, 0, %p1; bar.red.and.pred %p2, 0, %p1; bar.red.or.pred %p3, 0, %p1;
        selp.u32 %r3, 1000, 0, %p2; selp.u32 %r4, 2000, 0, %p3; add.u32 %r2, %r2, %r3; add.u32 %r2, %r2, %r4; st.global.u32 [%rd1], %r2;";
    assert!(run(70, "", body).iter().all(|&result| result == 2040));
    // The first warp waits for what the second announces; the third has nothing to do with it.
    let part = "setp.ge.u32 %p1, %r1, 64; @%p1 bra END; setp.ge.u32 %p2, %r1, 32; @%p2 bra SECOND;
        bar.sync 1, 64; ld.global.u32 %r2, [%rd1+128]; st.global.u32 [%rd1], %r2; bra END;
        SECOND: mul.lo.u32 %r3, %r1, 3; st.global.u32 [%rd1], %r3; bar.arrive 1, 64; END:";
    let results = run(96, "", part);
    assert!((0..32).all(|thread| results[thread] == (thread as u32 + 32) * 3));
}

#[test]
fn a_barrier_that_nobody_completes_is_an_error() {
    assert_eq!(fault(64, "", "setp.lt.u32 %p1, %r1, 32; @%p1 bar.sync 1, 96;"), FaultKind::Deadlock);
    // Half of a warp waits at one barrier, the other half at another.
    let apart = "setp.lt.u32 %p1, %r1, 16; @%p1 bra A; bar.sync 1; bra E; A: bar.sync 2; E:";
    assert_eq!(fault(32, "", apart), FaultKind::Deadlock);
    // Threads that have ended are not waited for.
    assert_eq!(
        run(64, "", "setp.lt.u32 %p1, %r1, 32; @%p1 exit; bar.sync 0; st.global.u32 [%rd1], 5;")[40],
        5
    );
}

#[test]
fn endless_loops_end_with_their_budget() {
    assert_eq!(fault(32, "", "LOOP: bra LOOP;"), FaultKind::Budget(3_000_000));
    // A lane that waits for another lane of its warp lets it run.
    let lock = "mov.u32 %r2, 0; LOOP: setp.eq.u32 %p1, %r1, 0; @%p1 bra GIVE; ld.volatile.global.u32 %r3, [%rd2+124];
        setp.eq.u32 %p2, %r3, 0; @%p2 bra LOOP; bra END; GIVE: mov.u32 %r3, 9; st.volatile.global.u32 [%rd2+124], %r3; END:
        st.global.u32 [%rd1], %r3;";
    assert!(run(32, "", lock).iter().all(|&result| result == 9));
}

#[test]
fn a_warp_that_spins_lets_other_warps_run() {
    let body = "setp.ge.u32 %p1, %r1, 32; @%p1 bra GIVE; SPIN: ld.acquire.gpu.global.u32 %r3, [%rd2+252]; setp.eq.u32 %p2, %r3, 0; @%p2 bra SPIN;
        bra END; GIVE: mov.u32 %r3, 4; st.release.gpu.global.u32 [%rd2+252], %r3; END: st.global.u32 [%rd1], %r3;";
    assert!(run(64, "", body).iter().all(|&result| result == 4));
}

#[test]
fn lanes_whose_partners_have_ended_go_on_also_when_others_spin() {
    // The first eight vote with the next eight, which end later, and the upper half spins until they have.
    let body =
        "mov.u32 %r3, 4; setp.ge.u32 %p1, %r1, 16; @%p1 bra SPIN; setp.ge.u32 %p2, %r1, 8; @%p2 bra LATE;
        vote.sync.any.pred %p3, %p1, 65535; st.volatile.global.u32 [%rd2+124], %r3; bra END;
        LATE: mov.u32 %r9, 50; WAIT: sub.u32 %r9, %r9, 1; setp.ne.u32 %p4, %r9, 0; @%p4 bra WAIT; exit;
        SPIN: ld.volatile.global.u32 %r3, [%rd2+124]; setp.eq.u32 %p2, %r3, 0; @%p2 bra SPIN;
        END: st.global.u32 [%rd1], %r3;";
    let results = run(32, "", body);
    assert!(results[..8].iter().chain(&results[16..]).all(|&result| result == 4), "{results:?}");
}

#[test]
fn functions_take_and_return_and_may_diverge() {
    let before = "
        .func (.param .b32 result) twice(.param .b32 value) { .reg .b32 %a<4>; ld.param.u32 %a1, [value]; add.u32 %a1, %a1, %a1;
          st.param.b32 [result+0], %a1; ret; }
        .func (.param .b32 result) either(.param .b32 value, .param .align 4 .b8 more[8]) { .reg .b32 %a<8>; .reg .pred %q<2>;
          ld.param.u32 %a1, [value]; ld.param.u32 %a2, [more+4]; and.b32 %a3, %a1, 1; setp.eq.u32 %q1, %a3, 0; @%q1 bra EVEN;
          add.u32 %a4, %a1, %a2; st.param.b32 [result], %a4; ret;
          EVEN: { .param .b32 in; .param .b32 out; st.param.b32 [in], %a1; call.uni (out), twice, (in); ld.param.b32 %a4, [out]; }
          st.param.b32 [result], %a4; ret; }";
    let body = "{ .param .b32 in; .param .align 4 .b8 more[8]; .param .b32 out; st.param.b32 [in], %r1; st.param.b32 [more+4], 1000;
        call (out), either, (in, more); ld.param.b32 %r2, [out+0]; } activemask.b32 %r3; shr.u32 %r3, %r3, 31; shl.b32 %r3, %r3, 16;
        or.b32 %r2, %r2, %r3; st.global.u32 [%rd1], %r2;";
    for (thread, result) in run(32, before, body).into_iter().enumerate() {
        let thread = thread as u32;
        assert_eq!(result, 0x1_0000 | if thread.is_multiple_of(2) { thread * 2 } else { thread + 1000 });
    }
}

#[test]
fn functions_are_called_by_address() {
    let before = "
        .func (.param .b32 r) one(.param .b32 v) { .reg .b32 %a; ld.param.u32 %a, [v]; add.u32 %a, %a, 1; st.param.b32 [r], %a; ret; }
        .func (.param .b32 r) two(.param .b32 v) { .reg .b32 %a; ld.param.u32 %a, [v]; mul.lo.u32 %a, %a, 2; st.param.b32 [r], %a; ret; }
        .func broken() { frobnicate.u32 1; }
        .global .align 8 .u64 table[3] = {one, two, broken};";
    let body = "and.b32 %r2, %r1, 1; mul.wide.u32 %rd3, %r2, 8; mov.u64 %rd4, table; add.s64 %rd4, %rd4, %rd3; ld.global.u64 %rd5, [%rd4];
        { .param .b32 in; .param .b32 out; st.param.b32 [in], %r1; SHAPE: .callprototype (.param .b32 _) _ (.param .b32 _);
        call (out), %rd5, (in), SHAPE; ld.param.b32 %r3, [out]; } st.global.u32 [%rd1], %r3;";
    for (thread, result) in run(32, before, body).into_iter().enumerate() {
        assert_eq!(result, if thread % 2 == 0 { thread as u32 + 1 } else { thread as u32 * 2 });
    }
    let wrong = body.replace("ld.global.u64 %rd5, [%rd4];", "mov.u64 %rd5, 12345;");
    assert_eq!(fault(1, before, &wrong), FaultKind::IllegalAddress(12345));
    let broken = body.replace("ld.global.u64 %rd5, [%rd4];", "ld.global.u64 %rd5, [table+16];");
    assert!(matches!(fault(1, before, &broken), FaultKind::Unsupported(why) if why.contains("frobnicate")));
}

#[test]
fn recursion_ends_with_the_stack() {
    let before = ".func again() { call.uni again; ret; }";
    assert_eq!(fault(1, before, "call.uni again;"), FaultKind::Stack);
}

#[test]
fn local_memory_belongs_to_its_thread() {
    let body = ".local .align 8 .b8 depot[16]; mov.u64 %rd3, depot; cvta.local.u64 %rd4, %rd3; st.u32 [%rd4+8], %r1; bar.sync 0;
        ld.local.u32 %r2, [%rd3+8]; add.u32 %r2, %r2, 1; st.global.u32 [%rd1], %r2;";
    assert_eq!(run(64, "", body), (1..=64).collect::<Vec<_>>());
    assert!(matches!(
        fault(1, "", "mov.u64 %rd3, 1024; ld.local.u32 %r2, [%rd3];"),
        FaultKind::IllegalAddress(1024)
    ));
}

#[test]
fn variables_have_their_values_and_addresses() {
    let before = ".const .align 4 .u32 numbers[4] = {5, 6, 7, 8}; .global .align 8 .u64 where[2] = {generic(numbers)+0, numbers+8};
        .global .align 4 .u32 counter = 40;"
        .replace("generic(numbers)+0", "generic(numbers)");
    let body = "ld.global.u64 %rd3, [where+8]; ld.const.u32 %r2, [%rd3]; ld.const.u32 %r3, [numbers+12]; add.u32 %r2, %r2, %r3;
        atom.global.add.u32 %r4, [counter], 1; add.u32 %r2, %r2, %r4; st.global.u32 [%rd1], %r2;";
    let mut device = Device::new(&kernel(&before, body));
    let out = device.room(64 * 4);
    device.launch("run", (1, 64, 0), &Parameters::default().with(out).0);
    let mut results = device.get::<u32>(out, 64);
    results.sort_unstable();
    assert_eq!(results, (55..119).collect::<Vec<_>>());
    let counter = device.variable("counter");
    assert_eq!(device.get::<u32>(counter, 1), [104]);
}

#[test]
fn vectors_of_narrow_and_wide_numbers_are_loaded_and_stored() {
    let body = "mov.u32 %r2, 0x80ff7f01; st.global.u32 [%rd2], %r2; ld.global.v4.s8 {%h1, %h2, _, %h4}, [%rd2];
        cvt.s32.s16 %r3, %h1; cvt.s32.s16 %r4, %h2; cvt.s32.s16 %r5, %h4; ld.global.s16 %r6, [%rd2+2]; ld.global.u8 %rd5, [%rd2+3];
        cvt.u32.u64 %r7, %rd5; st.global.v4.u32 [%rd2+16], {%r3, %r4, %r5, %r6}; st.global.v2.b64 [%rd2+32], {%rd5, 7};";
    let results = run(16, "", &format!("setp.ne.u32 %p1, %r1, 0; @%p1 exit; {body}"));
    assert_eq!(results[4..12], [1, 127, -128i32 as u32, 0xffff_80ff, 0x80, 0, 7, 0]);
}

#[test]
fn wrong_addresses_are_faults() {
    assert_eq!(fault(1, "", "mov.u64 %rd3, 64; ld.global.u32 %r2, [%rd3];"), FaultKind::IllegalAddress(64));
    assert!(matches!(fault(1, "", "ld.global.u32 %r2, [%rd1+2];"), FaultKind::MisalignedAddress(_)));
    assert!(matches!(
        fault(1, "", "ld.global.v2.u32 {%r2, %r3}, [%rd1+4];"),
        FaultKind::MisalignedAddress(_)
    ));
    assert!(matches!(fault(1, "", "st.shared.u32 [4096], %r1;"), FaultKind::IllegalAddress(4096)));
    assert!(matches!(fault(1, "", "ld.shared.u32 %r2, [300000];"), FaultKind::IllegalAddress(_)));
    assert!(matches!(fault(1, "", "atom.global.add.u32 %r2, [0], 1;"), FaultKind::IllegalAddress(0)));
    assert!(matches!(fault(40, "", "setp.eq.u32 %p1, %r1, 37; @%p1 trap;"), FaultKind::Trap));
    let error = try_run(40, "", "setp.eq.u32 %p1, %r1, 37;\n@%p1 trap;").unwrap_err();
    assert!(matches!(error, LaunchError::Fault { thread: [37, 0, 0], line: 8, .. }), "{error:?}");
    assert_eq!(error.cuda_code(), 719);
}

#[test]
fn shuffles_in_all_modes_and_segments() {
    let shuffle = |text: &str| {
        run(
            32,
            "",
            &format!(
                "shfl.sync.{text}; selp.u32 %r3, 100, 0, %p1; add.u32 %r2, %r2, %r3; st.global.u32 [%rd1], %r2;"
            ),
        )
    };
    let expected = |from: fn(i32) -> Option<i32>| -> Vec<u32> {
        (0..32).map(|lane| from(lane).map_or(lane as u32, |from| from as u32 + 100)).collect()
    };
    assert_eq!(shuffle("up.b32 %r2|%p1, %r1, 3, 0, -1"), expected(|lane| (lane >= 3).then_some(lane - 3)));
    assert_eq!(
        shuffle("down.b32 %r2|%p1, %r1, 5, 31, -1"),
        expected(|lane| (lane + 5 < 32).then_some(lane + 5))
    );
    assert_eq!(shuffle("bfly.b32 %r2|%p1, %r1, 16, 31, -1"), expected(|lane| Some(lane ^ 16)));
    assert_eq!(shuffle("idx.b32 %r2|%p1, %r1, 7, 31, -1"), expected(|_| Some(7)));
    // Segments of eight lanes.
    let segment = 0x1807;
    assert_eq!(
        shuffle(&format!("idx.b32 %r2|%p1, %r1, 2, {segment}, -1")),
        expected(|lane| Some((lane & !7) + 2))
    );
    assert_eq!(
        shuffle(&format!("down.b32 %r2|%p1, %r1, 4, {segment}, -1")),
        expected(|lane| (lane % 8 < 4).then_some(lane + 4))
    );
    assert_eq!(
        shuffle(&format!("up.b32 %r2|%p1, %r1, 1, {}, -1", 0x1800)),
        expected(|lane| (lane % 8 > 0).then_some(lane - 1))
    );
}

#[test]
fn lanes_wait_for_the_members_of_what_they_do_together() {
    // Both halves come to shuffles at different places, and exchange across them.
    let body = "setp.lt.u32 %p1, %r1, 16; @%p1 bra A; add.u32 %r2, %r1, 500; shfl.sync.bfly.b32 %r3, %r2, 31, 31, -1; bra E;
        A: shfl.sync.bfly.b32 %r3, %r1, 31, 31, -1; E: st.global.u32 [%rd1], %r3;";
    for (thread, result) in run(32, "", body).into_iter().enumerate() {
        let other = 31 - thread as u32;
        assert_eq!(result, if other < 16 { other } else { other + 500 });
    }
    // Members that have ended are not waited for; those that never come are a deadlock.
    let ended =
        "setp.eq.u32 %p1, %r1, 31; @%p1 exit; vote.sync.ballot.b32 %r2, 1, -1; st.global.u32 [%rd1], %r2;";
    assert_eq!(run(32, "", ended)[0], 0x7fff_ffff);
    let never = "setp.eq.u32 %p1, %r1, 31; @%p1 bra B; bar.warp.sync -1; B: bar.sync 0; @%p1 bar.sync 0;";
    assert_eq!(fault(32, "", never), FaultKind::Deadlock);
}

#[test]
fn votes_matches_and_reductions() {
    let body = "setp.lt.u32 %p1, %r1, 5; vote.sync.ballot.b32 %r2, %p1, -1; vote.sync.any.pred %p2, %p1, -1; vote.sync.all.pred %p3, %p1, -1;
        vote.sync.uni.pred %p4, !%p1, -1; @%p2 add.u32 %r2, %r2, 100; @%p3 add.u32 %r2, %r2, 200; @%p4 add.u32 %r2, %r2, 400;
        st.global.u32 [%rd1], %r2;";
    assert!(run(32, "", body).iter().all(|&result| result == 131));
    let same = "shr.u32 %r2, %r1, 3; match.any.sync.b32 %r3, %r2, -1; st.global.u32 [%rd1], %r3;";
    assert_eq!(run(32, "", same)[9], 0xff00);
    let all = "shr.u32 %r2, %r1, 5; match.all.sync.b32 %r3|%p1, %r2, -1; @!%p1 mov.u32 %r3, 1; st.global.u32 [%rd1], %r3;";
    assert_eq!(run(32, "", all)[9], u32::MAX);
    let sum = "sub.s32 %r2, %r1, 20; redux.sync.min.s32 %r3, %r2, -1; redux.sync.add.u32 %r4, %r1, -1; redux.sync.xor.b32 %r5, %r1, -1;
        mad.lo.s32 %r3, %r3, 1000, %r4; add.u32 %r3, %r3, %r5; st.global.u32 [%rd1], %r3;";
    assert!(run(32, "", sum).iter().all(|&result| result as i32 == -20 * 1000 + 496));
    let elected = "elect.sync %r2|%p1, -1; @%p1 add.u32 %r2, %r2, 7; st.global.u32 [%rd1], %r2;";
    assert_eq!(run(32, "", elected)[..2], [7, 0]);
    // Lanes of two masks do it at one place, each with its own.
    let masks = "and.b32 %r2, %r1, 1; mov.u32 %r3, 0x55555555; shl.b32 %r3, %r3, %r2; vote.sync.ballot.b32 %r4, 1, %r3; st.global.u32 [%rd1], %r4;";
    assert_eq!(run(32, "", masks)[..2], [0x5555_5555, 0xaaaa_aaaa]);
}

#[test]
fn atomics_of_all_kinds() {
    let once = |text: &str, start: u32| {
        let body = format!(
            "mov.u32 %r2, {start}; @!%p0 st.global.u32 [%rd2+256], %r2; {text} ld.global.u32 %r9, [%rd2+256]; st.global.u32 [%rd1], %r9;"
        );
        run(128, "", &format!("setp.ne.u32 %p0, %r1, 0; @%p0 exit; {body}"))[0]
    };
    let at = "[%rd2+256]";
    assert_eq!(once(&format!("atom.global.add.u32 %r3, {at}, 5;"), 7), 12);
    assert_eq!(once(&format!("red.global.max.s32 {at}, -3;"), -7i32 as u32), -3i32 as u32);
    assert_eq!(once(&format!("atom.min.u32 %r3, {at}, 3;"), 7), 3);
    assert_eq!(once(&format!("atom.global.inc.u32 %r3, {at}, 7;"), 7), 0);
    assert_eq!(once(&format!("atom.global.inc.u32 %r3, {at}, 8;"), 7), 8);
    assert_eq!(once(&format!("atom.global.dec.u32 %r3, {at}, 8;"), 0), 8);
    assert_eq!(once(&format!("atom.global.cas.b32 %r3, {at}, 7, 9;"), 7), 9);
    assert_eq!(once(&format!("atom.global.cas.b32 %r3, {at}, 6, 9;"), 7), 7);
    assert_eq!(
        once(
            &format!(
                "atom.acq_rel.gpu.global.exch.b32 %r3, {at}, 3; add.u32 %r3, %r3, 1; st.global.u32 {at}, %r3;"
            ),
            7
        ),
        8
    );
    assert_eq!(once(&format!("red.relaxed.sys.global.and.b32 {at}, 12;"), 7), 4);
    assert_eq!(once(&format!("atom.global.add.f32 %f1, {at}, 0f3F800000;"), 0x4000_0000), 0x4040_0000);
    assert_eq!(
        once(&format!("mov.b32 %r4, 0x3C003C00; atom.global.add.noftz.f16x2 %r3, {at}, %r4;"), 0x4000_3c00),
        0x4200_4000
    );
    assert_eq!(
        once(&format!("mov.u16 %h2, 5; mov.u16 %h3, 7; atom.global.cas.b16 %h1, {at}, %h3, %h2;"), 0x3_0007),
        0x3_0005
    );
    // Sums of 32 bits in global memory have no numbers without a full mantissa, as PTX has it, and in shared memory they have.
    for word in ["atom.global.add.f32 %f1,", "atom.add.f32 %f1,", "red.global.add.f32"] {
        assert_eq!(once(&format!("{word} {at}, 0f00800000;"), 0x8000_0001), 0x0080_0000);
        assert_eq!(once(&format!("{word} {at}, 0f80000001;"), 0x0080_0000), 0x0080_0000);
        assert_eq!(once(&format!("{word} {at}, 0f00800000;"), 0x80c0_0000), 0x8000_0000);
        assert_eq!(once(&format!("{word} {at}, 0f80800000;"), 0x0080_0001), 0);
    }
    let shared = "st.shared.u32 [0], 0x00800001; atom.shared.add.f32 %f1, [0], 0f80800000; ld.shared.u32 %r3, [0]; st.global.u32 [%rd2+256], %r3;";
    assert_eq!(once(shared, 7), 1);
    let shared = "st.shared.u32 [0], 0; bar.sync 0; atom.shared.add.u32 %r2, [0], 1; bar.sync 0; ld.shared.u32 %r3, [0]; st.global.u32 [%rd1], %r3;";
    assert!(run(100, "", shared).iter().all(|&result| result == 100));
}

#[test]
fn copies_to_shared_memory_are_there_at_once() {
    let before = ".shared .align 16 .b8 room[64];";
    let body = "setp.ne.u32 %p1, %r1, 0; @%p1 exit; mov.u32 %r2, 0x01020304; st.global.u32 [%rd2], %r2; st.global.u32 [%rd2+4], %r2; mov.u32 %r3, room;
        st.shared.u32 [%r3+4], 9; cp.async.ca.shared.global [%r3], [%rd2], 8, 4; cp.async.cg.shared.global.L2::128B [%r3+16], [%rd2], 16;
        cp.async.commit_group; cp.async.wait_group 0; cp.async.wait_all;
        ld.shared.v2.u32 {%r4, %r5}, [%r3]; ld.shared.u32 %r6, [%r3+20]; st.global.v4.u32 [%rd2+16], {%r4, %r5, %r6, %r6};";
    assert_eq!(run(8, before, body)[4..8], [0x0102_0304, 0, 0x0102_0304, 0x0102_0304]);
}

#[test]
fn special_registers_say_where_a_thread_is() {
    let text = format!(
        "{HEAD}.visible .entry run(.param .u64 out) {{ {REGISTERS} ld.param.u64 %rd2, [out];
        mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %ntid.x; mad.lo.u32 %r4, %r2, %r3, %r1; mov.u32 %r5, %ctaid.y;
        mov.u32 %r6, %nctaid.x; mov.u32 %r7, %ctaid.x; mad.lo.u32 %r8, %r5, %r6, %r7; mad.lo.u32 %r9, %r8, 40, %r4;
        mul.wide.u32 %rd1, %r9, 4; add.s64 %rd1, %rd1, %rd2; mov.u32 %r10, %laneid; mov.u32 %r11, %warpid; mov.u32 %r12, %lanemask_lt;
        popc.b32 %r13, %r12; mad.lo.u32 %r14, %r11, 100, %r10; mad.lo.u32 %r14, %r13, 10000, %r14; st.global.u32 [%rd1], %r14; ret; }}"
    );
    let mut device = Device::new(&text);
    let out = device.room(6 * 40 * 4);
    let parameters = Parameters::default().with(out);
    let geometry = hinterland_ptx::LaunchGeometry { grid: [3, 2, 1], block: [10, 4, 1], dynamic_shared: 0 };
    let launch = hinterland_ptx::Launch {
        entry: "run",
        geometry,
        parameters: &parameters.0,
        data: 0,
        limits: Default::default(),
    };
    device.module.launch(&launch, &mut device.memory).unwrap();
    for (index, result) in device.get::<u32>(out, 240).into_iter().enumerate() {
        let (warp, lane) = ((index % 40 / 32) as u32, (index % 40 % 32) as u32);
        assert_eq!(result, lane * 10000 + warp * 100 + lane);
    }
}

#[test]
fn a_launch_that_is_none_is_refused() {
    let mut device = Device::new(&kernel("", ""));
    let good = Parameters::default().with(0u64).0;
    for shape in [(0, 32, 0), (1, 0, 0), (1, 1025, 0), (1, 32, 1 << 20)] {
        let error = device.try_launch("run", shape, &good).unwrap_err();
        assert!(matches!(error, LaunchError::Geometry(_)) && error.cuda_code() == 9, "{shape:?}: {error}");
    }
    let error = device.try_launch("run", (1, 1, 0), &good[..7]).unwrap_err();
    assert!(matches!(error, LaunchError::Parameters { needed: 8, given: 7 }));
    assert!(matches!(device.try_launch("runs", (1, 1, 0), &good), Err(LaunchError::NoSuchEntry(_))));
}

#[test]
fn what_is_wrong_in_one_function_does_not_matter_to_the_others() {
    let text = format!("{}\n.visible .entry other() {{\n\n frobnicate.f32 1, 2; }}", kernel("", ""));
    let mut device = Device::new(&text);
    device.launch("run", (1, 1, 0), &Parameters::default().with(0u64).0);
    let error = device.try_launch("other", (1, 1, 0), &[]).unwrap_err();
    assert_eq!(error.cuda_code(), 218);
    assert!(error.to_string().contains("line 11") && error.to_string().contains("frobnicate"), "{error}");
    assert!(device.module.check("run").is_ok() && device.module.check("other").is_err());
}

#[test]
fn parameters_lie_where_a_compiler_puts_them() {
    let text = format!(
        "{HEAD}.visible .entry run(.param .u8 a, .param .u64 .ptr .global .align 4 b, .param .align 16 .b8 c[20], .param .f32 d) .maxntid 64, 2, 1 .minnctapersm 2 {{ ret; }}"
    );
    let device = Device::new(&text);
    let entry = device.module.entry("run").unwrap();
    let places: Vec<_> = entry.parameters.iter().map(|one| (one.offset, one.size, one.align)).collect();
    assert_eq!(places, [(0, 1, 1), (8, 8, 8), (16, 20, 16), (36, 4, 4)]);
    assert_eq!((entry.parameter_bytes, entry.threads_max), (40, Some(128)));
}

#[test]
fn whole_warps_turn_matrices_when_their_lanes_have_met() {
    // Element (row, column) of the matrix lies in lane row * 4 + column / 2.
    let turn = "movmatrix.sync.aligned.m8n8.trans.b16 %r3, %r2;";
    let fill = "shl.b32 %r2, %r1, 1; add.u32 %r4, %r2, 1; shl.b32 %r4, %r4, 16; or.b32 %r2, %r2, %r4;";
    let expected: Vec<u32> = (0..32)
        .map(|lane| {
            let at = |row: u32, column: u32| row * 8 + column;
            let (row, column) = (lane / 4, lane % 4 * 2);
            at(column, row) | at(column + 1, row) << 16
        })
        .collect();
    assert_eq!(run(32, "", &format!("{fill} {turn} st.global.u32 [%rd1], %r3;")), expected);
    // The upper half of the warp comes later.
    let late = "setp.lt.u32 %p1, %r1, 16; @%p1 bra TURN; mov.u32 %r9, 20; WAIT: sub.u32 %r9, %r9, 1; setp.ne.u32 %p2, %r9, 0; @%p2 bra WAIT;
        bra TURN; TURN:";
    assert_eq!(run(32, "", &format!("{fill} {late} {turn} st.global.u32 [%rd1], %r3;")), expected);
    assert_eq!(
        fault(32, "", &format!("setp.lt.u32 %p1, %r1, 16; @%p1 {turn} bar.sync 0;")),
        FaultKind::Deadlock
    );
}

#[test]
fn a_block_finds_nothing_of_the_block_before() {
    let text = kernel(
        ".shared .align 4 .u32 fixed; .extern .shared .align 4 .b8 dynamic[];",
        ".local .align 4 .b8 own[4]; mov.u64 %rd4, own; ld.shared.u32 %r2, [fixed]; ld.shared.u32 %r3, [dynamic]; ld.local.u32 %r4, [%rd4];
        or.b32 %r2, %r2, %r3; or.b32 %r2, %r2, %r4; or.b32 %r2, %r2, %r9; @%p9 or.b32 %r2, %r2, 1;
        atom.global.add.u32 %r5, [%rd2], %r2; mov.u32 %r9, 7; setp.eq.u32 %p9, %r9, 7; bar.sync 0; st.shared.u32 [fixed], %r9;
        st.shared.u32 [dynamic], %r9; st.local.u32 [%rd4], %r9;",
    );
    let mut device = Device::new(&text);
    let out = device.room(4);
    device.launch("run", (5, 64, 4), &Parameters::default().with(out).0);
    assert_eq!(device.get::<u32>(out, 1), [0]);
}

#[test]
fn what_a_kernel_prints_comes_lane_by_lane() {
    let before = ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
        .global .align 1 .b8 format[32] = {91, 37, 52, 117, 93, 32, 37, 45, 54, 108, 108, 100, 124, 32, 37, 46, 50, 101, 37, 37, 10, 0};";
    // "[%4u] %-6lld| %.2e%%\n" of the thread, its opposite and a half of it.
    let body = ".local .align 8 .b8 own[24]; .reg .f64 %d<2>; mov.u64 %rd3, own; cvta.local.u64 %rd4, %rd3; st.local.u32 [%rd3], %r1; cvt.u64.u32 %rd5, %r1;
        neg.s64 %rd6, %rd5; st.local.u64 [%rd3+8], %rd6; cvt.rn.f64.u32 %d0, %r1; mul.f64 %d1, %d0, 0d3FE0000000000000; st.local.f64 [%rd3+16], %d1;
        { .param .b64 f; .param .b64 a; .param .b32 r; mov.u64 %rd7, format; st.param.b64 [f], %rd7; st.param.b64 [a], %rd4; call.uni (r), vprintf, (f, a);
        ld.param.b32 %r5, [r]; } st.global.u32 [%rd1], %r5;";
    let mut device = Device::new(&kernel(before, body));
    let out = device.room(12);
    device.launch("run", (1, 3, 0), &Parameters::default().with(out).0);
    assert_eq!(
        String::from_utf8_lossy(&device.memory.printed),
        "[   0] 0     | 0.00e+00%\n[   1] -1    | 5.00e-01%\n[   2] -2    | 1.00e+00%\n"
    );
    assert_eq!(device.get::<u32>(out, 3), [3, 3, 3]);
    let wrong = body.replace("mov.u64 %rd7, format;", "mov.u64 %rd7, 77;");
    assert_eq!(fault(1, before, &wrong), FaultKind::IllegalAddress(77));
    let beyond = body.replace("st.param.b64 [a], %rd4;", "st.param.b64 [a], -3;");
    assert_eq!(fault(1, before, &beyond), FaultKind::IllegalAddress(0));
}

/// What a thread prints of numbers of 32 bits.
fn printed(format: &str, numbers: &[i32]) -> String {
    String::from_utf8(printed_bytes(format.as_bytes(), numbers)).unwrap()
}

fn printed_bytes(format: &[u8], numbers: &[i32]) -> Vec<u8> {
    let bytes: Vec<String> = format.iter().copied().chain([0]).map(|byte| byte.to_string()).collect();
    let before = format!(
        ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a); .global .align 1 .b8 format[{}] = {{{}}};",
        bytes.len(),
        bytes.join(", ")
    );
    let stored: String = numbers
        .iter()
        .enumerate()
        .map(|(index, number)| format!("mov.u32 %r2, {number}; st.local.u32 [%rd3+{}], %r2;", index * 4))
        .collect();
    let body = format!(
        ".local .align 8 .b8 own[32]; mov.u64 %rd3, own; cvta.local.u64 %rd4, %rd3; {stored}
        {{ .param .b64 f; .param .b64 a; .param .b32 r; mov.u64 %rd7, format; st.param.b64 [f], %rd7; st.param.b64 [a], %rd4; call.uni (r), vprintf, (f, a); }}"
    );
    let mut device = Device::new(&kernel(&before, &body));
    let out = device.room(4);
    device.launch("run", (1, 1, 0), &Parameters::default().with(out).0);
    device.memory.printed
}

/// The same of numbers of 64 bits with a point, one after the other.
fn printed_reals(format: &str, numbers: &[f64]) -> String {
    let halves = |number: &f64| [number.to_bits() as i32, (number.to_bits() >> 32) as i32];
    let numbers: Vec<i32> = numbers.iter().flat_map(halves).collect();
    String::from_utf8(printed_bytes(format.as_bytes(), &numbers)).unwrap()
}

#[test]
fn widths_and_precisions_are_what_c_makes_of_them() {
    assert_eq!(printed("%#010x|%#6X|%#08x", &[255, 255, 0]), "0x000000ff|  0XFF|00000000");
    assert_eq!(printed("%*d|%-*d|%0*d", &[-6, 7, -6, 7, 6, -7]), "7     |7     |-00007");
    assert_eq!(printed("%.*d|%6.*d|%06.3d", &[-1, 7, 3, 7, 7]), "7|   007|   007");
}

#[test]
fn zeros_without_digits_points_without_any_and_what_is_nowhere_are_what_c_makes_of_them() {
    assert_eq!(printed("[%.0d|%3.0d|%+.0d|%.0u|%.0x|%.0o]", &[0; 6]), "[|   |+|||]");
    assert_eq!(printed("%#.0o|%#o|%#.4o|%#.2o|%#.0x", &[0, 0, 8, 8, 0]), "0|0|0010|010|");
    assert_eq!(printed_reals("%#.0f|%#.0e|%#g|%#.3g", &[1.0, 2.0, 1.5, 1e9]), "1.|2.e+00|1.50000|1.00e+09");
    assert_eq!(printed("%s|%.3s|%8s", &[0; 6]), "(null)||  (null)");
    assert_eq!(printed("%p|%6p", &[0; 4]), "(nil)| (nil)");
}

#[test]
fn bytes_of_any_encoding_are_printed_as_they_are() {
    assert_eq!(printed_bytes(b"\xe9%c\xff|%3c%-3c|", &[0xc3, 0xa9, 0x80]), b"\xe9\xc3\xff|  \xa9\x80  |");
}

#[test]
fn short_integers_are_cut_and_reals_are_written_as_c_writes_them() {
    assert_eq!(
        printed("%hhd|%hhu|%hd|%hu|%hhx|%hi|%#hho", &[300, -1, 70000, -1, -2, -32769, 255]),
        "44|255|4464|65535|fe|32767|0377"
    );
    let numbers = [0.1, -1.5, 1.96875, 5e-324];
    assert_eq!(
        printed_reals("%a %A %a %a", &numbers),
        "0x1.999999999999ap-4 -0X1.8P+0 0x1.f8p+0 0x0.0000000000001p-1022"
    );
    assert_eq!(printed_reals("%.0a %#.0a %.3a %.3a", &numbers), "0x2p-4 -0x2.p+0 0x1.f80p+0 0x0.000p-1022");
    assert_eq!(
        printed_reals("%+12.1a|%-14a|%014a|%.15a", &[0.1, -1.5, -1.5, f64::MAX]),
        "   +0x1.ap-4|-0x1.8p+0     |-0x000001.8p+0|0x1.fffffffffffff00p+1023"
    );
    assert_eq!(
        printed_reals("%f|%08f|%A|%014a", &[-f64::NAN, f64::INFINITY, f64::NAN, f64::NEG_INFINITY]),
        "-nan|     inf|NAN|          -inf"
    );
    assert_eq!(
        printed_reals("%a|%.0a|%014a|%a", &[-0.0, 0.0, 1.0, 1024.0]),
        "-0x0p+0|0x0p+0|0x000000001p+0|0x1p+10"
    );
}

#[test]
fn blocks_count_each_other_in_memory_of_the_grid() {
    let text = kernel(
        "",
        "mov.u32 %r2, %envreg1; mov.u32 %r3, %envreg2; mov.b64 %rd3, {%r3, %r2}; ld.u32 %r4, [%rd3]; atom.add.release.gpu.u32 %r5, [%rd3+4], 1;
        SPIN: ld.acquire.gpu.u32 %r6, [%rd3+4]; setp.lt.u32 %p1, %r6, 7; @%p1 bra SPIN; mad.lo.u32 %r6, %r4, 100, %r6;
        mov.u32 %r7, %ctaid.x; mul.wide.u32 %rd4, %r7, 4; add.s64 %rd4, %rd4, %rd2; st.global.u32 [%rd4], %r6;",
    );
    let mut device = Device::new(&text);
    let out = device.room(28);
    device.launch("run", (7, 1, 0), &Parameters::default().with(out).0);
    assert_eq!(device.get::<u32>(out, 7), [807; 7]);
    device.instructions = 3_000_000;
    let parameters = Parameters::default().with(out).0;
    let error = device.try_launch("run", (6, 1, 0), &parameters).unwrap_err();
    assert!(matches!(error, LaunchError::Fault { kind: FaultKind::Budget(_), .. }), "{error}");
    let error = device.try_launch("run", (i32::MAX as u32, 1024, 0), &parameters).unwrap_err();
    assert!(matches!(error, LaunchError::Geometry(_)), "{error}");
}
