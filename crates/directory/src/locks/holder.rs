//! The node of those who hold locks: what its programs want, what lock homes said of it, and until when that counts.

use super::message::{Fence, LockAnswer, LockAsk, LockClaim, LockMode, LockRefusal, LockRequest};
use hinterland_types::{GlobalAddress, NodeId, ObjectId, SessionId};
use std::collections::BTreeMap;

/// Where a wish stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClaimState {
    /// It waits.
    Waiting,
    /// It is held under this fence, and counts until this moment of the own clock, in milliseconds; more with each renewal.
    Held {
        /// Its fence.
        fence: Fence,
        /// Behind this moment it does not count.
        until_ms: u64,
    },
    /// It is over.
    Refused(LockRefusal),
}

/// What a program wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockWish {
    /// Its session.
    pub session: SessionId,
    /// Its process, for people.
    pub pid: u32,
    /// On what.
    pub address: GlobalAddress,
    /// What lies there.
    pub object: ObjectId,
    /// How many bytes from there on it means to use, for people.
    pub bytes: u64,
    /// How.
    pub mode: LockMode,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Waiting,
    /// With the number of the last renewal that was sent before this was heard: older ones may not know of it. It counts
    /// only in the term of the lease in which the home last said so.
    Held {
        fence: Fence,
        heard: u64,
        term: u64,
    },
    Refused(LockRefusal),
    /// It waited, and is given up unless it was granted before the home hears that.
    Withdrawing,
    Leaving {
        clean: bool,
    },
    /// An upgrade that is given up before anybody has heard of a grant: its read lock stays.
    TakingBack,
}

#[derive(Clone, Debug)]
struct Claim {
    wish: LockWish,
    home: NodeId,
    replaces: Option<LockRequest>,
    wait: bool,
    stage: Stage,
}

#[derive(Clone, Debug)]
struct Link {
    life: u64,
    /// What was heard of the home counts until then, by the own clock.
    until_ms: u64,
    /// Counts how often the lease was over before it was renewed: what was believed before such a moment is not any more.
    term: u64,
    /// When what began the term was sent: answers to what was sent before say nothing of it.
    term_start_ms: u64,
    renewals: u64,
}

/// All wishes of a node.
#[derive(Clone, Debug)]
pub struct LockHolder {
    lease_ms: u64,
    next_request: u64,
    claims: BTreeMap<LockRequest, Claim>,
    links: BTreeMap<NodeId, Link>,
}

impl LockHolder {
    /// Nothing is wanted. `lease_ms` is that of all lock homes of the pool.
    pub const fn new(lease_ms: u64) -> Self {
        Self { lease_ms, next_request: 1, claims: BTreeMap::new(), links: BTreeMap::new() }
    }

    /// Notes a wish; gives its number and what to ask the lock home.
    pub fn begin(
        &mut self,
        wish: LockWish,
        home: NodeId,
        replaces: Option<LockRequest>,
        wait: bool,
    ) -> (LockRequest, LockAsk) {
        let request = LockRequest(self.next_request);
        self.next_request += 1;
        let claim = Claim { wish, home, replaces, wait, stage: Stage::Waiting };
        let ask = acquire(request, &claim);
        self.claims.insert(request, claim);
        (request, ask)
    }

    /// Where a wish stands; none if it was never begun or is forgotten.
    pub fn state(&self, request: LockRequest) -> Option<ClaimState> {
        let claim = self.claims.get(&request)?;
        Some(match claim.stage {
            Stage::Waiting | Stage::Withdrawing => ClaimState::Waiting,
            Stage::Held { fence, term, .. } => {
                let link = self.links.get(&claim.home).filter(|link| link.term == term);
                let until_ms = link.map_or(0, |link| link.until_ms);
                ClaimState::Held { fence, until_ms }
            }
            Stage::Refused(refusal) => ClaimState::Refused(refusal),
            Stage::Leaving { .. } | Stage::TakingBack => return None,
        })
    }

    /// What lay at the address of a wish when it was begun.
    pub fn object(&self, request: LockRequest) -> Option<ObjectId> {
        self.claims.get(&request).map(|claim| claim.wish.object)
    }

    /// What a lock home said its lease is: whoever has the shorter one goes first.
    pub fn limit_lease(&mut self, lease_ms: u64) {
        self.lease_ms = self.lease_ms.min(lease_ms);
    }

    /// The read lock that a wish would become, while it waits or after it was refused.
    pub fn replaced(&self, request: LockRequest) -> Option<LockRequest> {
        let old = self.claims.get(&request)?.replaces?;
        self.claims.contains_key(&old).then_some(old)
    }

    /// The lock home and the address of a wish.
    pub fn place(&self, request: LockRequest) -> Option<(NodeId, GlobalAddress)> {
        self.claims.get(&request).map(|claim| (claim.home, claim.wish.address))
    }

    /// A lock home answered what was sent at `sent_ms`, in this life of it, about this wish.
    pub fn answered(
        &mut self,
        request: LockRequest,
        (home, life): (NodeId, u64),
        (sent_ms, now_ms): (u64, u64),
        answer: &LockAnswer,
    ) {
        if !self.heard(home, life, sent_ms, now_ms) {
            return;
        }
        let (heard, term) = self.links.get(&home).map_or((0, 0), |link| (link.renewals, link.term));
        let Some(claim) = self.claims.get_mut(&request) else { return };
        match (answer, claim.stage) {
            (LockAnswer::Granted { fence }, Stage::Waiting | Stage::Withdrawing) => {
                claim.stage = Stage::Held { fence: *fence, heard, term };
                let replaced = claim.replaces;
                self.forget_replaced(replaced);
            }
            (LockAnswer::Refused(refusal), Stage::Waiting | Stage::Withdrawing) => {
                claim.stage = Stage::Refused(*refusal);
            }
            (LockAnswer::Released, Stage::Withdrawing) => claim.stage = Stage::Refused(LockRefusal::Busy),
            (LockAnswer::Released, Stage::Leaving { .. } | Stage::TakingBack) => {
                self.claims.remove(&request);
            }
            _ => {}
        }
    }

    /// The number of a renewal that is about to be sent to a home.
    pub fn renewal(&mut self, home: NodeId) -> u64 {
        let Some(link) = self.links.get_mut(&home) else { return 0 };
        link.renewals += 1;
        link.renewals
    }

    /// A home answered a renewal with all that it knows; gives what it has to be asked in turn.
    pub fn renewed(
        &mut self,
        (home, life): (NodeId, u64),
        number: u64,
        (sent_ms, now_ms): (u64, u64),
        known: &[LockClaim],
    ) -> Vec<(LockRequest, LockAsk)> {
        let mut asks = Vec::new();
        if !self.heard(home, life, sent_ms, now_ms) {
            return asks;
        }
        // As in `answered`: an answer to a renewal that was sent before this may come behind it and not know of it.
        let (last, now_term) = self.links.get(&home).map_or((0, 0), |link| (link.renewals, link.term));
        let mut replaced = Vec::new();
        // An upgrade was granted that is being taken back: the home has its read lock for us until it hears that.
        let is_granted = |request: &LockRequest| {
            known.iter().any(|other| other.request == *request && other.fence.is_some())
        };
        let returning: Vec<LockRequest> = self
            .claims
            .iter()
            .filter(|(request, claim)| claim.stage == Stage::TakingBack && is_granted(request))
            .filter_map(|(_, claim)| claim.replaces)
            .collect();
        for (request, claim) in self.claims.iter_mut().filter(|(_, claim)| claim.home == home) {
            let found = known.iter().find(|other| other.request == *request);
            match (claim.stage, found.map(|other| other.fence)) {
                (Stage::Waiting | Stage::Withdrawing, Some(Some(fence))) => {
                    claim.stage = Stage::Held { fence, heard: last, term: now_term };
                    replaced.extend(claim.replaces);
                }
                (Stage::Waiting, None) => asks.push((*request, acquire(*request, claim))),
                // Also of one that the home does not know: a copy of the question may yet come.
                (Stage::Withdrawing, _) => asks.push((*request, LockAsk::Withdraw { request: *request })),
                (Stage::Held { fence, heard, .. }, found) if found == Some(Some(fence)) => {
                    claim.stage = Stage::Held { fence, heard, term: now_term };
                }
                (Stage::Held { fence, heard, .. }, None) if returning.contains(request) => {
                    claim.stage = Stage::Held { fence, heard, term: now_term };
                }
                (Stage::Held { heard, .. }, _) if heard < number => {
                    claim.stage = Stage::Refused(LockRefusal::Lost);
                }
                (Stage::Leaving { clean }, _) => {
                    asks.push((*request, LockAsk::Release { request: *request, clean }));
                }
                (Stage::TakingBack, _) => asks.push((*request, LockAsk::TakeBack { request: *request })),
                _ => {}
            }
        }
        replaced.into_iter().for_each(|request| self.forget_replaced(Some(request)));
        // What it knows and nobody here wants: a late copy of a question brought it back.
        for other in known {
            let is_wanted = self
                .claims
                .get(&other.request)
                .is_some_and(|claim| !matches!(claim.stage, Stage::Refused(_)));
            if !is_wanted {
                asks.push((other.request, LockAsk::Release { request: other.request, clean: false }));
            }
        }
        asks
    }

    /// Gives a wish up, held or not; gives what to tell the home. The wish is remembered until the home has answered.
    pub fn release(&mut self, request: LockRequest, clean: bool) -> Option<LockAsk> {
        let claim = self.claims.get_mut(&request)?;
        if matches!(claim.stage, Stage::Refused(_)) {
            self.claims.remove(&request);
            return None;
        }
        claim.stage = Stage::Leaving { clean };
        Some(LockAsk::Release { request, clean })
    }

    /// Gives up a wish that waits, unless it was granted; gives what to tell the home. It waits until the home has answered: then it is
    /// held, or was refused as [`LockRefusal::Busy`], and what it would have replaced is held as before.
    pub fn withdraw(&mut self, request: LockRequest) -> Option<LockAsk> {
        let claim = self.claims.get_mut(&request).filter(|claim| claim.stage == Stage::Waiting)?;
        claim.stage = Stage::Withdrawing;
        Some(LockAsk::Withdraw { request })
    }

    /// Gives up an upgrade without waiting for the home's word, and keeps the read lock that it would replace; gives what to tell the home.
    pub fn take_back(&mut self, request: LockRequest) -> Option<LockAsk> {
        let waits = |claim: &Claim| matches!(claim.stage, Stage::Waiting | Stage::Withdrawing);
        match self.claims.get_mut(&request).filter(|claim| claim.replaces.is_some() && waits(claim)) {
            Some(claim) => {
                claim.stage = Stage::TakingBack;
                Some(LockAsk::TakeBack { request })
            }
            None => self.release(request, true),
        }
    }

    /// Gives up all wishes of a session: what it wrote may still be on its way.
    pub fn end_session(&mut self, session: SessionId) -> Vec<(NodeId, LockRequest, LockAsk)> {
        let own = self.claims.iter().filter(|(_, claim)| claim.wish.session == session);
        let requests: Vec<_> = own
            .filter(|(_, claim)| !matches!(claim.stage, Stage::Leaving { .. }))
            .map(|(request, claim)| (*request, claim.home))
            .collect();
        let release = |(request, home)| Some((home, request, self.release(request, false)?));
        requests.into_iter().filter_map(release).collect()
    }

    /// Homes that have to be renewed at: those that something is wanted of.
    pub fn homes(&self) -> Vec<NodeId> {
        let mut homes: Vec<_> = self
            .claims
            .values()
            .filter(|claim| !matches!(claim.stage, Stage::Refused(_)))
            .map(|claim| claim.home)
            .collect();
        homes.sort_unstable();
        homes.dedup();
        homes
    }

    /// Whether a home is waited for, so that its answers are urgent.
    pub fn waits_for(&self, home: NodeId) -> bool {
        let waits = |claim: &Claim| matches!(claim.stage, Stage::Waiting | Stage::Withdrawing);
        self.claims.values().any(|claim| claim.home == home && waits(claim))
    }

    /// A home answered anything that was sent at `sent_ms`. False if that says nothing any more: it came from a life that is
    /// over, or was sent before the lease was over and renewed.
    pub fn heard(&mut self, home: NodeId, life: u64, sent_ms: u64, now_ms: u64) -> bool {
        // An eighth is left to clocks that run at different speeds.
        let until_ms = sent_ms + self.lease_ms - self.lease_ms / 8;
        let fresh = Link { life, until_ms, term: 0, term_start_ms: sent_ms, renewals: 0 };
        let link = self.links.entry(home).or_insert(fresh);
        if life < link.life {
            return false;
        }
        if now_ms > link.until_ms || life > link.life {
            link.term += 1;
            link.term_start_ms = sent_ms;
        } else if sent_ms < link.term_start_ms {
            return false;
        }
        if life > link.life {
            link.life = life;
            link.until_ms = until_ms;
            let held = self.claims.values_mut().filter(|claim| claim.home == home);
            for claim in held.filter(|claim| matches!(claim.stage, Stage::Held { .. })) {
                claim.stage = Stage::Refused(LockRefusal::Lost);
            }
        }
        link.until_ms = link.until_ms.max(until_ms);
        true
    }

    /// What a page home may believe of a lock home: since when without a break, and until which moment.
    pub fn term(&self, home: NodeId) -> Option<(u64, u64)> {
        self.links.get(&home).map(|link| (link.term, link.until_ms))
    }

    fn forget_replaced(&mut self, replaced: Option<LockRequest>) {
        if let Some(request) = replaced {
            self.claims.remove(&request);
        }
    }
}

const fn acquire(request: LockRequest, claim: &Claim) -> LockAsk {
    LockAsk::Acquire {
        request,
        session: claim.wish.session,
        pid: claim.wish.pid,
        address: claim.wish.address,
        object: claim.wish.object,
        bytes: claim.wish.bytes,
        mode: claim.wish.mode,
        replaces: claim.replaces,
        wait: claim.wait,
    }
}
