//! The rules of locks one by one: order, upgrades, fences over restarts, leases, what page homes are told.

use hinterland_directory::locks::{
    ClaimState, Fence, Fences, Gate, HomeAction, LockAnswer, LockAsk, LockClaim, LockHolder, LockHome,
    LockMode, LockRefusal, LockRequest, LockSettings, LockWish,
};
use hinterland_types::{GlobalAddress, NodeId, ObjectId, SessionId};

const HOME: NodeId = NodeId(1);
const A: NodeId = NodeId(2);
const B: NodeId = NodeId(3);
const PAGES: NodeId = NodeId(4);

fn address() -> GlobalAddress {
    GlobalAddress::new(1 << 21).unwrap()
}

fn home(given: Option<Fence>, now_ms: u64) -> (LockHome, Option<Fence>) {
    let mut home =
        LockHome::new(HOME, LockSettings { fence_step: 1 << 9, ..LockSettings::default() }, given, now_ms);
    let last = act(&mut home).0;
    (home, last)
}

/// What was made durable last, and who is to be told.
fn act(home: &mut LockHome) -> (Option<Fence>, Vec<(NodeId, u64)>) {
    let (mut durable, mut tells) = (None, Vec::new());
    for action in home.take_actions() {
        match action {
            HomeAction::Persist(fence) => {
                home.persisted(fence);
                durable = Some(fence);
            }
            HomeAction::Tell(node, _, number) => tells.push((node, number)),
            HomeAction::Changed(_) => {}
        }
    }
    (durable, tells)
}

fn acquire(request: u64, mode: LockMode, replaces: Option<u64>) -> LockAsk {
    LockAsk::Acquire {
        request: LockRequest(request),
        session: SessionId(request % 10),
        pid: 1,
        address: address(),
        object: ObjectId(1),
        bytes: 8,
        mode,
        replaces: replaces.map(LockRequest),
        wait: true,
    }
}

fn wish(session: u64, mode: LockMode) -> LockWish {
    LockWish { session: SessionId(session), pid: 1, address: address(), object: ObjectId(1), bytes: 8, mode }
}

fn fence(answer: LockAnswer) -> Fence {
    match answer {
        LockAnswer::Granted { fence } => fence,
        other => panic!("{other:?}"),
    }
}

fn granted(home: &mut LockHome, now_ms: u64, node: NodeId, request: u64) -> Option<Fence> {
    let LockAnswer::Claims(claims) = home.answer(now_ms, node, 1, &LockAsk::Renew) else { panic!() };
    claims.iter().find(|claim| claim.request == LockRequest(request)).and_then(|claim| claim.fence)
}

fn release(home: &mut LockHome, node: NodeId, request: u64, clean: bool) {
    home.answer(0, node, 1, &LockAsk::Release { request: LockRequest(request), clean });
}

#[test]
fn a_writer_that_waits_goes_before_readers_that_come_later() {
    let (mut home, _) = home(None, 0);
    fence(home.answer(0, A, 1, &acquire(1, LockMode::Read, None)));
    assert_eq!(home.answer(0, B, 1, &acquire(2, LockMode::Write, None)), LockAnswer::Waiting);
    assert_eq!(home.answer(0, A, 1, &acquire(3, LockMode::Read, None)), LockAnswer::Waiting);
    release(&mut home, A, 1, true);
    assert!(granted(&mut home, 0, B, 2).is_some());
    assert_eq!(granted(&mut home, 0, A, 3), None);
    release(&mut home, B, 2, true);
    assert!(granted(&mut home, 0, A, 3).is_some());
}

#[test]
fn of_two_readers_that_want_to_write_the_second_is_refused() {
    let (mut home, _) = home(None, 0);
    fence(home.answer(0, A, 1, &acquire(1, LockMode::Read, None)));
    fence(home.answer(0, B, 1, &acquire(2, LockMode::Read, None)));
    assert_eq!(home.answer(0, A, 1, &acquire(11, LockMode::Write, Some(1))), LockAnswer::Waiting);
    let refused = home.answer(0, B, 1, &acquire(12, LockMode::Write, Some(2)));
    assert_eq!(refused, LockAnswer::Refused(LockRefusal::UpgradeConflict));
    // The second still has its read lock; once it lets go, the first writes.
    assert_eq!(granted(&mut home, 0, A, 11), None);
    release(&mut home, B, 2, true);
    assert!(granted(&mut home, 0, A, 11).is_some());
    assert_eq!(granted(&mut home, 0, A, 1), None, "the read lock became the write lock");
}

#[test]
fn what_was_held_of_something_that_was_removed_holds_up_nobody_who_locks_what_lies_there_now() {
    let (mut home, _) = home(None, 0);
    let old = fence(home.answer(0, A, 1, &acquire(1, LockMode::Write, None)));
    assert_eq!(home.answer(0, B, 1, &acquire(2, LockMode::Write, None)), LockAnswer::Waiting);
    let check = LockAsk::Check { address: address(), fence: old };
    assert_eq!(home.answer(0, PAGES, 1, &check), LockAnswer::Current);
    act(&mut home);
    let mut next = acquire(3, LockMode::Write, None);
    if let LockAsk::Acquire { object, .. } = &mut next {
        *object = ObjectId(2);
    }
    assert_eq!(home.answer(0, B, 1, &next), LockAnswer::Waiting, "a write may still be on its way");
    let (_, tells) = act(&mut home);
    assert!(matches!(tells[..], [(PAGES, _)]), "{tells:?}");
    home.told(0, PAGES, address(), tells[0].1);
    assert!(granted(&mut home, 0, B, 3).unwrap() > old);
    assert_eq!((granted(&mut home, 0, A, 1), granted(&mut home, 0, B, 2)), (None, None));
    // A late copy of the question brings nothing back.
    let late = home.answer(0, A, 1, &acquire(1, LockMode::Write, None));
    assert_eq!(late, LockAnswer::Refused(LockRefusal::Elsewhere));
    assert!(granted(&mut home, 0, B, 3).is_some());
    home.verify().unwrap();
}

fn withdraw(request: u64) -> LockAsk {
    LockAsk::Withdraw { request: LockRequest(request) }
}

#[test]
fn an_upgrade_is_taken_back_only_while_it_waits() {
    let (mut home, _) = home(None, 0);
    fence(home.answer(0, A, 1, &acquire(1, LockMode::Read, None)));
    fence(home.answer(0, B, 1, &acquire(2, LockMode::Read, None)));
    let upgrade = acquire(11, LockMode::Write, Some(1));
    assert_eq!(home.answer(0, A, 1, &upgrade), LockAnswer::Waiting);
    for _ in 0..2 {
        assert_eq!(home.answer(0, A, 1, &withdraw(11)), LockAnswer::Released, "also if it is asked twice");
    }
    assert!(granted(&mut home, 0, A, 1).is_some(), "the read lock is held as before");
    release(&mut home, B, 2, true);
    // A late copy of the question brings nothing back.
    assert_eq!(home.answer(0, A, 1, &upgrade), LockAnswer::Refused(LockRefusal::Busy));
    assert!(granted(&mut home, 0, A, 1).is_some());
    let second = fence(home.answer(0, A, 1, &acquire(21, LockMode::Write, Some(1))));
    for _ in 0..2 {
        assert_eq!(home.answer(0, A, 1, &withdraw(21)), LockAnswer::Granted { fence: second });
    }
    assert_eq!(granted(&mut home, 0, A, 21), Some(second));
}

fn take_back(request: u64) -> LockAsk {
    LockAsk::TakeBack { request: LockRequest(request) }
}

#[test]
fn a_grant_that_nobody_has_heard_of_gives_the_read_lock_back_as_it_was() {
    let (mut home, _) = home(None, 0);
    let read = fence(home.answer(0, A, 1, &acquire(1, LockMode::Read, None)));
    fence(home.answer(0, B, 1, &acquire(2, LockMode::Read, None)));
    assert_eq!(home.answer(0, A, 1, &acquire(11, LockMode::Write, Some(1))), LockAnswer::Waiting);
    release(&mut home, B, 2, true);
    // Nobody of A has heard of the grant: who waits meanwhile gets it as a reader, and no writer comes in between.
    assert_eq!(home.answer(0, B, 1, &acquire(3, LockMode::Read, None)), LockAnswer::Waiting);
    for _ in 0..2 {
        assert_eq!(home.answer(0, A, 1, &take_back(11)), LockAnswer::Released, "also if it is asked twice");
        home.verify().unwrap();
    }
    assert_eq!(granted(&mut home, 0, A, 1), Some(read));
    assert_eq!(granted(&mut home, 0, A, 11), None);
    assert_eq!(granted(&mut home, 0, B, 3), Some(read));
    let late = home.answer(0, A, 1, &acquire(11, LockMode::Write, Some(1)));
    assert_eq!(late, LockAnswer::Refused(LockRefusal::Busy), "a late copy of the question");
    release(&mut home, A, 1, true);
    assert_eq!(granted(&mut home, 0, A, 1), None);
    release(&mut home, B, 3, true);
    // What had been given back before its upgrade is taken back stays away.
    fence(home.answer(0, A, 1, &acquire(21, LockMode::Read, None)));
    fence(home.answer(0, A, 1, &acquire(31, LockMode::Write, Some(21))));
    release(&mut home, A, 21, true);
    assert_eq!(home.answer(0, A, 1, &take_back(31)), LockAnswer::Released);
    home.verify().unwrap();
    fence(home.answer(0, B, 1, &acquire(4, LockMode::Write, None)));
}

#[test]
fn a_holder_keeps_its_read_lock_while_it_takes_the_upgrade_back() {
    let mut holder = LockHolder::new(800);
    let (old, _) = holder.begin(wish(1, LockMode::Read), HOME, None, true);
    holder.answered(old, (HOME, 1), (0, 0), &LockAnswer::Granted { fence: Fence(9) });
    let (request, _) = holder.begin(wish(1, LockMode::Write), HOME, Some(old), true);
    holder.withdraw(request);
    assert_eq!(holder.take_back(request), Some(LockAsk::TakeBack { request }));
    // It is granted before the home hears that: a late answer and a renewal say so.
    holder.answered(request, (HOME, 1), (1, 2), &LockAnswer::Granted { fence: Fence(10) });
    let number = holder.renewal(HOME);
    let known = [LockClaim { request, fence: Some(Fence(10)) }];
    let asks = holder.renewed((HOME, 1), number, (3, 4), &known);
    assert_eq!(asks, [(request, LockAsk::TakeBack { request })]);
    assert!(matches!(holder.state(old), Some(ClaimState::Held { fence: Fence(9), until_ms: 1.. })));
    holder.answered(request, (HOME, 1), (5, 6), &LockAnswer::Released);
    assert_eq!(holder.state(request), None);
    assert!(matches!(holder.state(old), Some(ClaimState::Held { fence: Fence(9), .. })));
    // And what the home knows no more is lost as ever.
    let number = holder.renewal(HOME);
    holder.renewed((HOME, 1), number, (7, 8), &[]);
    assert_eq!(holder.state(old), Some(ClaimState::Refused(LockRefusal::Lost)));
}

#[test]
fn an_upgrade_that_is_taken_back_before_its_question_comes_is_never_granted() {
    let (mut home, _) = home(None, 0);
    fence(home.answer(0, A, 1, &acquire(1, LockMode::Read, None)));
    assert_eq!(home.answer(0, A, 1, &withdraw(11)), LockAnswer::Released);
    let late = home.answer(0, A, 1, &acquire(11, LockMode::Write, Some(1)));
    assert_eq!(late, LockAnswer::Refused(LockRefusal::Busy));
    assert!(granted(&mut home, 0, A, 1).is_some());
    let old = home.answer(0, A, 2, &acquire(1, LockMode::Read, None));
    fence(old);
    assert_eq!(
        home.answer(0, A, 1, &withdraw(1)),
        LockAnswer::Refused(LockRefusal::Stranger),
        "of an old life"
    );
    let LockAnswer::Claims(claims) = home.answer(0, A, 2, &LockAsk::Renew) else { panic!() };
    assert_eq!(claims.len(), 1);
}

#[test]
fn a_holder_that_takes_an_upgrade_back_believes_what_the_home_says_of_it() {
    let upgrading = || {
        let mut holder = LockHolder::new(800);
        let (old, _) = holder.begin(wish(1, LockMode::Read), HOME, None, true);
        holder.answered(old, (HOME, 1), (0, 0), &LockAnswer::Granted { fence: Fence(9) });
        let (request, _) = holder.begin(wish(1, LockMode::Write), HOME, Some(old), true);
        assert_eq!(holder.withdraw(request), Some(LockAsk::Withdraw { request }));
        assert_eq!(holder.withdraw(request), None, "renewals ask again");
        assert_eq!(holder.state(request), Some(ClaimState::Waiting), "nothing is known yet");
        (holder, old, request)
    };
    let (mut holder, old, request) = upgrading();
    holder.answered(request, (HOME, 1), (1, 2), &LockAnswer::Waiting);
    holder.answered(request, (HOME, 1), (1, 2), &LockAnswer::Released);
    assert_eq!(holder.state(request), Some(ClaimState::Refused(LockRefusal::Busy)));
    assert!(matches!(holder.state(old), Some(ClaimState::Held { fence: Fence(9), .. })));
    let (mut holder, old, request) = upgrading();
    holder.answered(request, (HOME, 1), (1, 2), &LockAnswer::Granted { fence: Fence(10) });
    assert!(matches!(holder.state(request), Some(ClaimState::Held { fence: Fence(10), .. })));
    assert_eq!(holder.state(old), None, "it became the write lock");
    // The question was lost: it is asked again, whether the home knows the wish or not.
    for known in [None, Some(None)] {
        let (mut holder, old, request) = upgrading();
        let number = holder.renewal(HOME);
        let read = LockClaim { request: old, fence: Some(Fence(9)) };
        let known: Vec<_> =
            known.map(|fence| LockClaim { request, fence }).into_iter().chain([read]).collect();
        let asks = holder.renewed((HOME, 1), number, (1, 2), &known);
        assert_eq!(asks, [(request, LockAsk::Withdraw { request })]);
        assert!(matches!(holder.state(old), Some(ClaimState::Held { .. })));
    }
}

#[test]
fn a_grant_is_not_taken_away_by_an_answer_that_is_older_and_comes_later() {
    let mut holder = LockHolder::new(800);
    let (request, _) = holder.begin(wish(1, LockMode::Write), HOME, None, true);
    let [first, second] = [holder.renewal(HOME), holder.renewal(HOME)];
    let waits = LockClaim { request, fence: None };
    let held = LockClaim { request, fence: Some(Fence(3)) };
    // The first renewal came to the home behind the second, and its answer came back first.
    holder.renewed((HOME, 1), first, (1, 5), &[held]);
    assert_eq!(holder.renewed((HOME, 1), second, (2, 6), &[waits]), []);
    assert!(matches!(holder.state(request), Some(ClaimState::Held { .. })));
}

#[test]
fn fences_grow_over_restarts_and_none_is_given_before_it_is_durable() {
    let mut given = None;
    let mut last = Fence(0);
    for life in 0..5 {
        let now_ms = 100_000 * life;
        let (mut one, durable) = home(given, now_ms);
        let mut known = durable;
        // A restarted home is quiet for a lease: holders from before may still believe.
        let now_ms = now_ms + 3000;
        one.tick(now_ms);
        for request in 0..3000 {
            let got = fence(one.answer(now_ms, A, 1, &acquire(request, LockMode::Write, None)));
            assert!(got > last, "{got} after {last}");
            assert!(known.is_some_and(|durable| got < durable), "{got} was not durable");
            last = got;
            one.answer(now_ms, A, 1, &LockAsk::Release { request: LockRequest(request), clean: true });
            known = act(&mut one).0.or(known);
        }
        given = known;
    }
}

#[test]
fn a_home_whose_fences_could_not_be_kept_asks_again_until_they_are() {
    let (mut home, _) = home(None, 0);
    let mut request = 1;
    // The disk is full from here on: nothing is kept.
    while matches!(home.answer(0, A, 1, &acquire(request, LockMode::Write, None)), LockAnswer::Granted { .. })
    {
        release(&mut home, A, request, true);
        request += 1;
    }
    let asked = |home: &mut LockHome| {
        let actions = home.take_actions();
        actions.iter().any(|action| matches!(action, HomeAction::Persist(_)))
    };
    assert!(asked(&mut home));
    home.tick(100);
    assert!(asked(&mut home), "whoever waits would wait for ever");
    home.tick(200);
    assert_eq!(granted(&mut home, 200, A, request), None);
    // It has room again.
    let kept = act(&mut home).0;
    assert!(granted(&mut home, 200, A, request).is_some_and(|fence| Some(fence) < kept));
    home.verify().unwrap();
    act(&mut home);
    home.tick(300);
    assert!(!asked(&mut home), "all is kept");
}

#[test]
fn a_restarted_home_grants_nothing_before_every_lease_of_before_is_over() {
    let (mut home, _) = home(Some(Fence(50)), 1000);
    assert_eq!(home.answer(1001, A, 1, &acquire(1, LockMode::Read, None)), LockAnswer::Waiting);
    home.tick(2000);
    home.tick(3999);
    assert_eq!(granted(&mut home, 3999, A, 1), None);
    home.tick(4000);
    assert!(granted(&mut home, 4000, A, 1).is_some_and(|fence| fence >= Fence(50)));
}

#[test]
fn a_silent_writer_loses_its_lock_only_after_the_page_homes_forgot_its_fence() {
    let (mut home, _) = home(None, 0);
    let old = fence(home.answer(0, A, 1, &acquire(1, LockMode::Write, None)));
    let check = |fence| LockAsk::Check { address: address(), fence };
    assert_eq!(home.answer(0, PAGES, 1, &check(old)), LockAnswer::Current);
    assert_eq!(home.answer(0, B, 1, &acquire(2, LockMode::Write, None)), LockAnswer::Waiting);
    for now_ms in [700, 1400, 2100, 2800] {
        home.answer(now_ms, B, 1, &LockAsk::Renew);
        home.answer(now_ms, PAGES, 1, &LockAsk::Renew);
        home.tick(now_ms);
        assert_eq!(act(&mut home).1, []);
    }
    home.tick(3000);
    let (_, tells) = act(&mut home);
    assert_eq!(tells.iter().map(|(node, _)| *node).collect::<Vec<_>>(), [PAGES]);
    assert_eq!(granted(&mut home, 3000, B, 2), None, "the page home has not forgotten yet");
    assert_eq!(
        home.answer(3000, PAGES, 1, &check(old)),
        LockAnswer::Refused(LockRefusal::Lost),
        "the old fence counts no more"
    );
    home.told(3001, PAGES, address(), tells[0].1 + 7);
    assert_eq!(granted(&mut home, 3001, B, 2), None, "an answer to something else");
    home.told(3002, PAGES, address(), tells[0].1);
    assert!(granted(&mut home, 3002, B, 2).is_some_and(|fence| fence > old));
}

#[test]
fn a_page_home_that_stays_silent_is_waited_for_until_its_own_lease_is_over() {
    let (mut home, _) = home(None, 0);
    let old = fence(home.answer(0, A, 1, &acquire(1, LockMode::Write, None)));
    home.answer(1000, PAGES, 1, &LockAsk::Check { address: address(), fence: old });
    home.answer(1000, B, 1, &acquire(2, LockMode::Write, None));
    home.answer(1000, A, 1, &LockAsk::Release { request: LockRequest(1), clean: false });
    for now_ms in [1500, 2500, 3500] {
        home.answer(now_ms, B, 1, &LockAsk::Renew);
        home.tick(now_ms);
        assert_eq!(granted(&mut home, now_ms, B, 2), None);
    }
    home.tick(4000);
    assert!(granted(&mut home, 4000, B, 2).is_some());
}

#[test]
fn a_clean_unlock_asks_no_page_home_and_leaves_nothing_behind() {
    let (mut home, _) = home(None, 0);
    fence(home.answer(0, A, 1, &acquire(1, LockMode::Write, None)));
    release(&mut home, A, 1, true);
    assert_eq!(act(&mut home).1, []);
    assert_eq!(home.answer(0, A, 1, &LockAsk::List), LockAnswer::Rows(Vec::new()));
    // A copy of the question that was on its way does not bring the lock back.
    let late = home.answer(0, A, 1, &acquire(1, LockMode::Write, None));
    assert_eq!(late, LockAnswer::Refused(LockRefusal::Lost));
}

#[test]
fn a_home_remembers_no_more_of_what_has_ended_however_much_that_is() {
    const LATELY: u64 = 30_000;
    let (mut home, _) = home(None, 0);
    let mut next = 1;
    let mut lock_often = |home: &mut LockHome| {
        for _ in 0..80_000 {
            fence(home.answer(0, A, 1, &acquire(next, LockMode::Write, None)));
            release(home, A, next, true);
            act(home);
            next += 1;
        }
        format!("{home:?}").len()
    };
    let before = lock_often(&mut home);
    let after = lock_often(&mut home);
    assert!(after < before + before / 4, "{before} characters of it became {after}");
    // A late copy of what was asked lately brings nothing back, and what is asked for the first time is taken.
    let lost = LockAnswer::Refused(LockRefusal::Lost);
    for late in [LATELY, 2 * LATELY] {
        assert_eq!(home.answer(0, A, 1, &acquire(next - late, LockMode::Write, None)), lost, "{late}");
    }
    fence(home.answer(0, A, 1, &acquire(next, LockMode::Write, None)));
}

#[test]
fn a_home_that_was_stopped_itself_takes_nobodys_lock_for_it() {
    let (mut home, _) = home(None, 0);
    fence(home.answer(0, A, 1, &acquire(1, LockMode::Write, None)));
    home.tick(30_000);
    assert!(granted(&mut home, 30_001, A, 1).is_some());
}

#[test]
fn a_holder_stops_believing_an_eighth_of_a_lease_before_the_home_does() {
    let mut holder = LockHolder::new(800);
    let (request, _) = holder.begin(wish(1, LockMode::Write), HOME, None, true);
    holder.answered(request, (HOME, 1), (100, 150), &LockAnswer::Granted { fence: Fence(9) });
    let state = holder.state(request);
    assert_eq!(state, Some(ClaimState::Held { fence: Fence(9), until_ms: 800 }));
    // The home heard of it at 100 by this clock at the earliest, and waits until 900.
}

#[test]
fn a_holder_learns_from_a_renewal_what_it_lost_and_what_it_never_knew() {
    let mut holder = LockHolder::new(800);
    let (kept, _) = holder.begin(wish(1, LockMode::Write), HOME, None, true);
    holder.answered(kept, (HOME, 1), (0, 0), &LockAnswer::Granted { fence: Fence(9) });
    let number = holder.renewal(HOME);
    let ghost = LockClaim { request: LockRequest(77), fence: Some(Fence(10)) };
    let asks = holder.renewed((HOME, 1), number, (1, 2), &[ghost]);
    assert_eq!(holder.state(kept), Some(ClaimState::Refused(LockRefusal::Lost)));
    let give_back = LockAsk::Release { request: LockRequest(77), clean: false };
    assert_eq!(asks, [(LockRequest(77), give_back)]);
}

#[test]
fn an_answer_that_is_older_than_a_grant_does_not_take_the_grant_away() {
    let mut holder = LockHolder::new(800);
    let (first, _) = holder.begin(wish(1, LockMode::Read), HOME, None, true);
    holder.answered(first, (HOME, 1), (0, 0), &LockAnswer::Granted { fence: Fence(1) });
    let number = holder.renewal(HOME);
    let (late, _) = holder.begin(wish(2, LockMode::Read), HOME, None, true);
    holder.answered(late, (HOME, 1), (5, 6), &LockAnswer::Granted { fence: Fence(1) });
    let only_first = LockClaim { request: first, fence: Some(Fence(1)) };
    holder.renewed((HOME, 1), number, (4, 7), &[only_first]);
    assert!(matches!(holder.state(late), Some(ClaimState::Held { .. })));
}

#[test]
fn a_page_home_refuses_lower_fences_and_asks_after_a_broken_lease() {
    let mut fences = Fences::default();
    let term = Some((0, 100));
    let Gate::Ask(number) = fences.gate(1, HOME, address(), Fence(5), term) else { panic!() };
    assert!(fences.learned(number, HOME, address(), Fence(5), 0));
    assert_eq!(fences.gate(2, HOME, address(), Fence(5), term), Gate::Open);
    assert_eq!(fences.gate(3, HOME, address(), Fence(8), term), Gate::Open);
    assert_eq!(fences.gate(4, HOME, address(), Fence(5), term), Gate::Old);
    assert!(matches!(fences.gate(101, HOME, address(), Fence(8), term), Gate::Ask(_)));
    assert!(matches!(fences.gate(102, HOME, address(), Fence(8), Some((1, 200))), Gate::Ask(_)));
}

#[test]
fn an_answer_that_was_taken_back_on_its_way_is_not_believed() {
    let mut fences = Fences::default();
    let Gate::Ask(number) = fences.gate(1, HOME, address(), Fence(5), Some((0, 100))) else { panic!() };
    fences.forget(address());
    assert!(!fences.learned(number, HOME, address(), Fence(5), 0));
    assert!(matches!(fences.gate(2, HOME, address(), Fence(5), Some((0, 100))), Gate::Ask(_)));
}

#[test]
fn a_home_with_a_shorter_lease_than_before_waits_for_the_longer_one_and_says_when_it_may_be_forgotten() {
    let settings = LockSettings { lease_ms: 500, lease_before_ms: 3000, ..LockSettings::default() };
    let mut home = LockHome::new(HOME, settings, Some(Fence(7)), 0);
    act(&mut home);
    assert_eq!(home.lease_owed_ms(), 3000);
    home.answer(0, A, 1, &acquire(1, LockMode::Write, None));
    for now_ms in (0..3000).step_by(100) {
        assert_eq!(granted(&mut home, now_ms, A, 1), None, "somebody of before may believe until 3000");
        home.tick(now_ms);
    }
    home.tick(3000);
    assert_eq!(home.lease_owed_ms(), 500);
    assert!(act(&mut home).0.is_some(), "the shorter lease is noted");
    assert!(granted(&mut home, 3001, A, 1).is_some());
}
