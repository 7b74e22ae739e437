//! The lock home against a plain model, and the rules of locks one by one.

#![allow(clippy::unwrap_used)] // a test says by its panic where it failed

mod plain;
mod rules;

use hinterland_directory::locks::{
    Fence, HomeAction, LockAnswer, LockAsk, LockClaim, LockHome, LockMode, LockRequest, LockSettings,
};
use hinterland_types::{GlobalAddress, NodeId, ObjectId, SessionId};
use plain::Plain;
use proptest::prelude::*;

const OWN: NodeId = NodeId(1);
const SETTINGS: LockSettings =
    LockSettings { lease_ms: 1000, lease_before_ms: 0, fence_step: 6, claims_per_node_max: 8, idle_max: 64 };

#[derive(Clone, Debug)]
enum Step {
    Acquire { node: u64, session: u64, address: u64, write: bool, wait: bool, upgrade: bool },
    Again { node: u64 },
    Release { node: u64, which: usize, clean: bool },
    Withdraw { node: u64, which: usize },
    TakeBack { node: u64, which: usize },
    Renew { node: u64 },
    Check { node: u64, holder: u64, which: usize },
    Restart { node: u64 },
    Told { which: usize },
    Pass { ms: u64 },
    CutOff(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let node = 1..5_u64;
    prop_oneof![
        6 => (node.clone(), 0..3_u64, 0..3_u64, any::<bool>(), any::<bool>(), proptest::bool::weighted(0.3))
            .prop_map(|(node, session, address, write, wait, upgrade)| {
                Step::Acquire { node, session, address, write, wait, upgrade }
            }),
        1 => node.clone().prop_map(|node| Step::Again { node }),
        5 => (node.clone(), 0..8_usize, any::<bool>())
            .prop_map(|(node, which, clean)| Step::Release { node, which, clean }),
        3 => (node.clone(), 0..8_usize).prop_map(|(node, which)| Step::Withdraw { node, which }),
        3 => (node.clone(), 0..8_usize).prop_map(|(node, which)| Step::TakeBack { node, which }),
        3 => node.clone().prop_map(|node| Step::Renew { node }),
        2 => (node.clone(), node.clone(), 0..8_usize)
            .prop_map(|(node, holder, which)| Step::Check { node, holder, which }),
        1 => node.prop_map(|node| Step::Restart { node }),
        2 => (0..8_usize).prop_map(|which| Step::Told { which }),
        3 => (1..400_u64).prop_map(|ms| Step::Pass { ms }),
        1 => any::<bool>().prop_map(Step::CutOff),
    ]
}

fn address(number: u64) -> GlobalAddress {
    GlobalAddress::new(4096 + number * 8).unwrap()
}

/// The home under test and its model, side by side.
struct Pair {
    home: LockHome,
    plain: Plain,
    now_ms: u64,
    lives: [u64; 5],
    next_request: u64,
    /// Each node's last wish, and how often the home had dropped the node by then.
    last: [Option<(LockAsk, u32)>; 5],
    tells: Vec<(NodeId, GlobalAddress, u64)>,
    /// The highest fence of a writer at each address.
    highest: std::collections::BTreeMap<GlobalAddress, Fence>,
    /// Fences of write grants, so that none comes twice.
    given: std::collections::BTreeSet<Fence>,
}

impl Pair {
    fn new() -> Self {
        Self {
            home: LockHome::new(OWN, SETTINGS, None, 0),
            plain: Plain::default(),
            now_ms: 0,
            lives: [1; 5],
            next_request: 1,
            last: [const { None }; 5],
            tells: Vec::new(),
            highest: std::collections::BTreeMap::new(),
            given: std::collections::BTreeSet::new(),
        }
    }

    fn ask(&mut self, node: u64, ask: &LockAsk) -> LockAnswer {
        let answer = self.home.answer(self.now_ms, NodeId(node), self.lives[node as usize], ask);
        self.act();
        answer
    }

    /// Does what the home wants done; page homes answer later.
    fn act(&mut self) {
        for action in self.home.take_actions() {
            match action {
                HomeAction::Persist(fence) => self.home.persisted(fence),
                HomeAction::Tell(node, address, number) => self.tells.push((node, address, number)),
                HomeAction::Changed(_) => {}
            }
        }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Check { node, holder, which } => self.check(node, holder, which),
            Step::Told { .. } | Step::Pass { .. } | Step::CutOff(_) => self.happen(step),
            Step::Acquire { node, session, address: number, write, wait, upgrade } => {
                let mode = if write { LockMode::Write } else { LockMode::Read };
                let replaces = upgrade.then(|| self.plain.held_by(node, session, address(number))).flatten();
                let request = LockRequest(self.next_request);
                self.next_request += 1;
                let session = SessionId(session);
                let ask = LockAsk::Acquire {
                    request,
                    session,
                    pid: 7,
                    address: address(number),
                    object: ObjectId(1),
                    bytes: 8,
                    mode,
                    replaces,
                    wait,
                };
                let answer = self.ask(node, &ask);
                let expected = self.plain.acquire(node, &ask);
                self.last[node as usize] = Some((ask, self.plain.drops(node)));
                match answer {
                    LockAnswer::Granted { .. } => assert_eq!(expected, Ok(true), "{step:?}"),
                    LockAnswer::Waiting => assert_eq!(expected, Ok(false), "{step:?}"),
                    LockAnswer::Refused(refusal) => assert_eq!(expected, Err(refusal), "{step:?}"),
                    other => panic!("{other:?}"),
                }
            }
            Step::Again { node } => {
                let last = self.last[node as usize].clone();
                if let Some((ask, _)) = last.filter(|(_, drops)| *drops == self.plain.drops(node)) {
                    // The same question once more changes nothing.
                    self.ask(node, &ask);
                    self.plain.hear(node);
                }
            }
            Step::Release { node, which, clean } => {
                let Some(request) = self.plain.requests(node).get(which).copied() else { return };
                self.ask(node, &LockAsk::Release { request, clean });
                self.plain.release(node, request, clean);
            }
            Step::Withdraw { node, which } => {
                let Some(request) = self.plain.requests(node).get(which).copied() else { return };
                let answer = self.ask(node, &LockAsk::Withdraw { request });
                let is_held = self.plain.withdraw(node, request);
                assert_eq!(matches!(answer, LockAnswer::Granted { .. }), is_held, "{answer:?}");
                assert!(is_held || answer == LockAnswer::Released, "{answer:?}");
            }
            Step::TakeBack { node, which } => {
                let Some(request) = self.plain.requests(node).get(which).copied() else { return };
                assert_eq!(self.ask(node, &LockAsk::TakeBack { request }), LockAnswer::Released);
                self.plain.take_back(node, request);
            }
            Step::Renew { node } => {
                self.ask(node, &LockAsk::Renew);
                self.plain.hear(node);
            }
            Step::Restart { node } => {
                self.lives[node as usize] += 1;
                self.last[node as usize] = None;
                self.plain.restart(node);
                self.ask(node, &LockAsk::Renew);
                self.plain.hear(node);
            }
        }
        self.plain.note_tells(&self.tells);
    }

    fn check(&mut self, node: u64, holder: u64, which: usize) {
        let known = self.claims(holder);
        let Some((at, fence)) = known
            .get(which)
            .and_then(|claim| Some((self.plain.address_of(holder, claim.request)?, claim.fence?)))
        else {
            return;
        };
        let answer = self.ask(node, &LockAsk::Check { address: at, fence });
        if self.plain.check(node, at) {
            assert_eq!(answer, LockAnswer::Current);
        } else {
            assert!(matches!(answer, LockAnswer::Refused(_)), "{answer:?}");
        }
    }

    fn happen(&mut self, step: &Step) {
        match *step {
            Step::Told { which } if which < self.tells.len() => {
                let (node, address, number) = self.tells.swap_remove(which);
                self.home.told(self.now_ms, node, address, number);
                self.plain.told(node, address, number);
                self.act();
            }
            Step::Told { .. } => {}
            Step::Pass { ms } => {
                self.now_ms += ms;
                self.home.tick(self.now_ms);
                self.plain.pass(ms);
                self.act();
            }
            Step::CutOff(is_cut_off) => {
                self.home.set_cut_off(is_cut_off);
                self.plain.cut_off(is_cut_off);
                self.act();
            }
            _ => {}
        }
    }

    fn claims(&mut self, node: u64) -> Vec<LockClaim> {
        // A copy is asked: a renewal counts as a sign of life.
        let mut copy = self.home.clone();
        match copy.answer(self.now_ms, NodeId(node), self.lives[node as usize], &LockAsk::Renew) {
            LockAnswer::Claims(claims) => claims,
            other => panic!("{other:?}"),
        }
    }

    fn compare(&mut self) {
        self.home.verify().unwrap();
        for node in 1..5 {
            let found: Vec<_> =
                self.claims(node).iter().map(|claim| (claim.request, claim.fence.is_some())).collect();
            assert_eq!(found, self.plain.claims(node), "node {node}");
            for claim in self.claims(node) {
                let Some(fence) = claim.fence else { continue };
                if self.plain.writes(node, claim.request) && self.given.insert(fence) {
                    let address = self.plain.address_of(node, claim.request).unwrap();
                    let before = self.highest.insert(address, fence).unwrap_or_default();
                    assert!(fence > before, "{fence} after {before}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_lock_home_does_what_the_plain_model_does(steps in proptest::collection::vec(step(), 1..120)) {
        let mut pair = Pair::new();
        pair.act();
        for step in &steps {
            pair.run(step);
            pair.compare();
        }
    }
}
