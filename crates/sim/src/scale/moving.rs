//! Moves of pages, one at a time for each node: the steps of `node`'s `regions`, without bytes.

use super::cluster::{Cluster, Event, Purpose, place_of};
use super::member::Pull;
use hinterland_directory::{Command, DirectoryError, Reply};
use hinterland_policy::heat::Room;
use hinterland_types::limits::PAGE_BYTES;

impl Cluster<'_> {
    /// Goes on with the next page that is wanted, if one may move.
    pub(super) fn next_pull(&mut self, node: usize) {
        loop {
            let member = &mut self.members[node];
            member.pull = None;
            let Some((page, heat)) = member.wanted.pop_front() else { return };
            let number = self.page_numbers[page as usize];
            let from = usize::from(self.page_homes[page as usize]);
            if from == node || member.moves.begin(number, self.now).is_err() {
                continue;
            }
            member.pull = Some(Pull { page, heat, epoch: None, from });
            self.figures.moves.asked += 1;
            if self.plan.asks_home_first {
                self.send_home(node, false);
            } else {
                self.begin_move(node);
            }
            return;
        }
    }

    fn send_home(&mut self, node: usize, freezes: bool) {
        self.messages += 2;
        self.after(self.plan.costs.way(), Event::AtHome { node, freezes });
    }

    pub(super) fn begin_move(&mut self, node: usize) {
        let Some(pull) = self.members[node].pull else { return };
        let (to, incarnation) = (self.members[node].id, self.members[node].incarnation);
        let page = self.page_numbers[pull.page as usize];
        self.ask(node, Command::BeginMove { page, to, incarnation }, Purpose::BeginMove);
    }

    pub(super) fn move_begun(&mut self, node: usize, answer: Result<Reply, DirectoryError>) {
        let Some(pull) = self.members[node].pull else { return };
        let Ok(Reply::Move { epoch, part, from }) = answer else {
            self.figures.moves.refused_by_directory += 1;
            return self.end_pull(node, false);
        };
        let from = from.home.map_or(pull.from, |home| place_of(home.node));
        let object = self.region_of(pull.page);
        let member = &mut self.members[node];
        member.held.entry(object).or_insert((part, None));
        member.pull = Some(Pull { epoch: Some(epoch), from, ..pull });
        self.send_home(node, true);
    }

    /// The home compares heats; if it freezes the page, the bytes follow.
    pub(super) fn at_home(&mut self, node: usize, freezes: bool) {
        let way = self.plan.costs.way();
        let Some(pull) = self.members[node].pull else { return };
        let is_there = usize::from(self.page_homes[pull.page as usize]) == pull.from;
        if !self.members[pull.from].alive || !is_there || self.frozen[pull.page as usize].is_some() {
            return self.after(way, Event::HomeRefuses(node));
        }
        let number = self.page_numbers[pull.page as usize];
        let decision = self.rules.decide(pull.heat, self.heat_at(pull.from, pull.page), Room::Free);
        let mut is_free = decision.is_pull();
        if is_free && freezes {
            // As the node does it: this also makes the page rest at its home for a while.
            let moves = &mut self.members[pull.from].moves;
            let rests = moves.begin(number, self.now);
            moves.end(number, false, self.now);
            is_free = rests.is_ok();
        }
        if !is_free {
            return self.after(way, Event::HomeRefuses(node));
        }
        if !freezes {
            return self.after(way, Event::HomeAllows(node));
        }
        self.frozen[pull.page as usize] = Some(Vec::new());
        let asked = self.now + self.plan.costs.freeze + 2 * way;
        let home = &mut self.members[pull.from];
        home.network_free_at = asked.max(home.network_free_at) + self.plan.costs.transfer(PAGE_BYTES);
        let at = home.network_free_at + way;
        self.messages += 2;
        self.schedule(at, Event::Copied(node));
    }

    pub(super) fn home_refuses(&mut self, node: usize) {
        self.figures.moves.refused_by_home += 1;
        match self.members[node].pull {
            Some(Pull { page, epoch: Some(epoch), .. }) => {
                let page = self.page_numbers[page as usize];
                self.ask(node, Command::CancelMove { page, epoch }, Purpose::CancelMove);
            }
            _ => self.end_pull(node, false),
        }
    }

    pub(super) fn move_cancelled(&mut self, node: usize) {
        self.end_pull(node, false);
    }

    pub(super) fn commit_move(&mut self, node: usize) {
        let member = &self.members[node];
        let Some(Pull { page, epoch: Some(epoch), .. }) = member.pull else { return };
        let (to, incarnation) = (member.id, member.incarnation);
        let page = self.page_numbers[page as usize];
        self.ask(node, Command::CommitMove { page, to, incarnation, epoch }, Purpose::CommitMove);
    }

    pub(super) fn move_committed(&mut self, node: usize, is_committed: bool) {
        let Some(Pull { page, epoch: Some(epoch), from, .. }) = self.members[node].pull else { return };
        let place = page as usize;
        for (waiter, since) in self.frozen[place].take().into_iter().flatten() {
            self.members[waiter].blocked -= 1;
            if !self.has_ended {
                self.operation_ns += (self.now - since).as_nanos() as u64; // Far below 2^64.
            }
        }
        if !is_committed {
            let page = self.page_numbers[place];
            return self.ask(node, Command::CancelMove { page, epoch }, Purpose::CancelMove);
        }
        self.page_homes[place] = node as u16; // There are at most `NODES_MAX` nodes.
        self.page_moves[place] += 1;
        let count = self.page_moves[place];
        self.members[node].known[place] = count;
        self.figures.moves.taken += u64::from(!self.has_ended);
        self.messages += 2;
        self.after(self.plan.costs.way(), Event::Moved(from, page, count));
        self.end_pull(node, true);
    }

    /// The home of before asks the directory, and points its word there.
    pub(super) fn moved(&mut self, node: usize, page: u32, count: u32) {
        let member = &mut self.members[node];
        if !member.alive {
            return;
        }
        member.known[page as usize] = count;
        // An epoch of the past takes back nothing: what counts is the answer.
        let command =
            Command::CancelMove { page: self.page_numbers[page as usize], epoch: hinterland_types::Epoch(0) };
        self.ask(node, command, Purpose::Nothing);
    }

    fn end_pull(&mut self, node: usize, has_moved: bool) {
        if let Some(pull) = self.members[node].pull {
            let number = self.page_numbers[pull.page as usize];
            let now = self.now;
            self.members[node].moves.end(number, has_moved, now);
        }
        self.next_pull(node);
    }

    fn region_of(&self, page: u32) -> hinterland_types::ObjectId {
        let place = self.regions.partition_point(|region| region.first <= page);
        self.regions[place - 1].object
    }
}
