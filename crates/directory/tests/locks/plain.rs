//! What a lock home should do, written down as plainly as possible: lists that are searched from the front.

use super::{OWN, SETTINGS};
use hinterland_directory::locks::{LockAsk, LockMode, LockRefusal, LockRequest};
use hinterland_types::{GlobalAddress, NodeId};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
struct Wish {
    node: u64,
    session: u64,
    request: LockRequest,
    address: GlobalAddress,
    mode: LockMode,
    replaces: Option<LockRequest>,
    /// The read lock that it has replaced.
    before: Option<Box<Wish>>,
    is_held: bool,
}

/// All wishes in the order in which they stand.
#[derive(Default)]
pub struct Plain {
    wishes: Vec<Wish>,
    silent_ms: BTreeMap<u64, u64>,
    drops: BTreeMap<u64, u32>,
    informed: BTreeSet<(u64, GlobalAddress)>,
    /// Page homes that were told to forget, by the number of what they were told.
    telling: BTreeMap<(u64, GlobalAddress), u64>,
    newest_tell: BTreeMap<GlobalAddress, u64>,
    dirty: BTreeSet<GlobalAddress>,
    is_cut_off: bool,
}

impl Plain {
    pub fn hear(&mut self, node: u64) {
        self.silent_ms.insert(node, 0);
    }

    pub fn acquire(&mut self, node: u64, ask: &LockAsk) -> Result<bool, LockRefusal> {
        self.hear(node);
        let LockAsk::Acquire { request, session, address, mode, replaces, wait, .. } = ask else { panic!() };
        let own = self.wishes.iter().filter(|wish| wish.node == node);
        if self.is_cut_off {
            return Err(LockRefusal::CutOff);
        }
        if own.clone().count() >= SETTINGS.claims_per_node_max as usize {
            return Err(LockRefusal::Full(SETTINGS.claims_per_node_max));
        }
        let mut there = own.filter(|wish| wish.session == session.0 && wish.address == *address);
        match replaces {
            None if there.next().is_some() => return Err(LockRefusal::Held),
            Some(old)
                if *mode != LockMode::Write || !there.any(|wish| wish.request == *old && wish.is_held) =>
            {
                return Err(LockRefusal::NotHeld);
            }
            Some(_) if self.waiting(*address).any(|wish| wish.replaces.is_some()) => {
                return Err(LockRefusal::UpgradeConflict);
            }
            _ => {}
        }
        let wish = Wish {
            node,
            session: session.0,
            request: *request,
            address: *address,
            mode: *mode,
            replaces: *replaces,
            before: None,
            is_held: false,
        };
        let place = if replaces.is_some() { 0 } else { self.wishes.len() };
        self.wishes.insert(place, wish);
        self.grant();
        let is_held = self.find(node, *request).is_some_and(|wish| wish.is_held);
        if !is_held && !wait {
            self.release(node, *request, true);
            return Err(LockRefusal::Busy);
        }
        Ok(is_held)
    }

    pub fn release(&mut self, node: u64, request: LockRequest, clean: bool) {
        self.hear(node);
        self.end(node, request, clean);
        self.grant();
    }

    /// Whether it is held; it is taken back if not.
    pub fn withdraw(&mut self, node: u64, request: LockRequest) -> bool {
        self.hear(node);
        let is_held = self.is_held(node, request);
        if !is_held {
            self.end(node, request, true);
            self.grant();
        }
        is_held
    }

    /// An upgrade that is held becomes its read lock again; all else ends.
    pub fn take_back(&mut self, node: u64, request: LockRequest) {
        self.hear(node);
        let is_it = |wish: &&mut Wish| wish.node == node && wish.request == request;
        let upgraded = self.wishes.iter_mut().find(is_it).and_then(|wish| Some((*wish.before.take()?, wish)));
        match upgraded {
            Some((before, wish)) => *wish = before,
            None => self.end(node, request, true),
        }
        self.grant();
    }

    pub fn restart(&mut self, node: u64) {
        self.drop_node(node);
        self.grant();
    }

    pub fn check(&mut self, node: u64, address: GlobalAddress) -> bool {
        self.hear(node);
        if self.is_cut_off {
            return false;
        }
        self.informed.insert((node, address));
        true
    }

    pub fn told(&mut self, node: NodeId, address: GlobalAddress, number: u64) {
        if self.telling.get(&(node.0, address)) == Some(&number) {
            self.telling.remove(&(node.0, address));
            self.informed.remove(&(node.0, address));
            self.grant();
        }
    }

    pub fn pass(&mut self, ms: u64) {
        for silent_ms in self.silent_ms.values_mut() {
            *silent_ms += ms;
        }
        let late = |(node, silent_ms): (&u64, &u64)| {
            (NodeId(*node) != OWN && *silent_ms >= SETTINGS.lease_ms).then_some(*node)
        };
        let late: Vec<_> = self.silent_ms.iter().filter_map(late).collect();
        late.into_iter().for_each(|node| self.drop_node(node));
        self.grant();
    }

    pub fn cut_off(&mut self, is_cut_off: bool) {
        self.is_cut_off = is_cut_off;
        self.grant();
    }

    /// Learns the numbers of what the home wants told.
    pub fn note_tells(&mut self, tells: &[(NodeId, GlobalAddress, u64)]) {
        for (node, address, number) in tells {
            if self.newest_tell.get(address).is_none_or(|newest| newest <= number) {
                self.newest_tell.insert(*address, *number);
                if let Some(known) = self.telling.get_mut(&(node.0, *address)) {
                    *known = *number;
                }
            }
        }
    }

    pub fn requests(&self, node: u64) -> Vec<LockRequest> {
        let mut requests: Vec<_> =
            self.wishes.iter().filter(|wish| wish.node == node).map(|wish| wish.request).collect();
        requests.sort();
        requests
    }

    pub fn claims(&self, node: u64) -> Vec<(LockRequest, bool)> {
        self.requests(node).into_iter().map(|request| (request, self.is_held(node, request))).collect()
    }

    pub fn held_by(&self, node: u64, session: u64, address: GlobalAddress) -> Option<LockRequest> {
        let is_it = |wish: &&Wish| {
            wish.node == node && wish.session == session && wish.address == address && wish.is_held
        };
        self.wishes.iter().find(is_it).map(|wish| wish.request)
    }

    /// How often the home has forgotten all that it knew of the node.
    pub fn drops(&self, node: u64) -> u32 {
        self.drops.get(&node).copied().unwrap_or_default()
    }

    pub fn address_of(&self, node: u64, request: LockRequest) -> Option<GlobalAddress> {
        self.find(node, request).map(|wish| wish.address)
    }

    pub fn writes(&self, node: u64, request: LockRequest) -> bool {
        self.find(node, request).is_some_and(|wish| wish.mode == LockMode::Write)
    }

    fn is_held(&self, node: u64, request: LockRequest) -> bool {
        self.find(node, request).is_some_and(|wish| wish.is_held)
    }

    fn find(&self, node: u64, request: LockRequest) -> Option<&Wish> {
        self.wishes.iter().find(|wish| wish.node == node && wish.request == request)
    }

    fn waiting(&self, address: GlobalAddress) -> impl Iterator<Item = &Wish> {
        self.wishes.iter().filter(move |wish| wish.address == address && !wish.is_held)
    }

    fn end(&mut self, node: u64, request: LockRequest, clean: bool) {
        let Some(wish) = self.find(node, request).cloned() else { return };
        self.wishes.retain(|other| !(other.node == node && other.request == request));
        if wish.is_held && wish.mode == LockMode::Write && !clean {
            self.dirty.insert(wish.address);
            self.tell(wish.address);
        }
        let orphan = self.wishes.iter().find(|other| other.node == node && other.replaces == Some(request));
        if let Some(orphan) = orphan.map(|orphan| orphan.request) {
            self.end(node, orphan, true);
        }
    }

    fn tell(&mut self, address: GlobalAddress) {
        for key in self.informed.iter().filter(|(_, known)| *known == address) {
            self.telling.insert(*key, 0);
        }
    }

    fn drop_node(&mut self, node: u64) {
        self.silent_ms.remove(&node);
        *self.drops.entry(node).or_default() += 1;
        self.requests(node).into_iter().for_each(|request| self.end(node, request, false));
        self.informed.retain(|(informed, _)| *informed != node);
        self.telling.retain(|(informed, _), _| *informed != node);
    }

    /// Whoever stands at the front of an address gets it if those who hold it allow that.
    fn grant(&mut self) {
        if self.is_cut_off {
            return;
        }
        for address in (0..3).map(super::address) {
            loop {
                let front = self.waiting(address).next().cloned();
                let Some(front) = front else { break };
                let is_told = !self.telling.keys().any(|(_, telling)| *telling == address);
                let mut holders = self.wishes.iter().filter(|wish| wish.address == address && wish.is_held);
                let fits = match front.mode {
                    LockMode::Read => holders.all(|wish| wish.mode == LockMode::Read),
                    LockMode::Write => {
                        holders.all(|wish| wish.node == front.node && Some(wish.request) == front.replaces)
                    }
                };
                if !fits || !is_told {
                    break;
                }
                self.dirty.remove(&address);
                let is_replaced =
                    |wish: &mut Wish| wish.node == front.node && Some(wish.request) == front.replaces;
                let before = self.wishes.extract_if(.., is_replaced).next().map(Box::new);
                let is_front = |wish: &&mut Wish| wish.node == front.node && wish.request == front.request;
                if let Some(wish) = self.wishes.iter_mut().find(is_front) {
                    (wish.is_held, wish.replaces, wish.before) = (true, None, before);
                }
            }
        }
    }
}
