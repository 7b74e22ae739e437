//! The side that gives a page: `freeze`, `moved`, `settle_leaving`, `find` of `node`'s `regions/moving.rs`, one message at a time.

use super::BrokenMoveRule;
use super::node::{Leaving, Letter, Move, Purpose, Word, sum_of};
use super::taker::{Told, is_at};
use super::world::World;
use hinterland_directory::{Command, Reply};
use hinterland_policy::heat::{Heat, Room};
use hinterland_types::{Epoch, NodeId};

/// How long a home waits for those who are in a page, in milliseconds.
pub(super) const FREEZE_WAIT_MS: u64 = 50;
/// How long a frozen page waits to hear from its mover before the directory is asked.
const SILENCE_MS: u64 = 1500;

impl World {
    pub(super) fn leaving(&mut self, id: NodeId, page: usize, epoch: Epoch) -> Option<&mut Leaving> {
        match self.node(id).table()?.moves.get_mut(&page)? {
            Move::Leaving(leaving) if leaving.epoch == epoch => Some(leaving),
            _ => None,
        }
    }

    /// Whether the heats let a page go; an order is never refused.
    pub(super) fn allows(&mut self, id: NodeId, page: usize, wanted: Option<Heat>) -> bool {
        let Some(wanted) = wanted else { return true };
        let (number, now, rules) = (self.number(page), self.clock(id), self.rules);
        let Some(running) = &mut self.node(id).running else { return false };
        let own = running.heat.heat(number, now);
        rules.decide(wanted, own, Room::Free).is_pull() && running.budget.is_free(number, now).is_ok()
    }

    /// A page is to be frozen for another node.
    pub(super) fn freeze(
        &mut self,
        id: NodeId,
        from: NodeId,
        call: u64,
        (page, epoch): (usize, Epoch),
        heat: Option<Heat>,
    ) {
        let clock_ms = self.clock_ms(id);
        let is_allowed = self.allows(id, page, heat);
        if let Some(leaving) = self.leaving(id, page, epoch) {
            // The same request again.
            match leaving.wait_until_ms {
                Some(_) => leaving.askers.push((from, call)),
                None => self.tell_frozen(id, page, vec![(from, call)]),
            }
            return;
        }
        let broken = self.broken;
        let is_pinned = self.node(id).is_pinned() && broken != Some(BrokenMoveRule::ForgetsEarlierLives);
        let word = self.node(id).word(page);
        let is_still = is_allowed && !self.must_recall(id, page);
        let table = self.node(id).table().filter(|table| !table.moves.contains_key(&page));
        let (Some(table), Word::Here(own), true, false) = (table, word, is_still, is_pinned) else {
            self.post(id, from, Letter::Refused { call });
            return;
        };
        if broken == Some(BrokenMoveRule::CopiesUnfrozen) {
            let sum = self.node(id).memory.get(&page).map_or(0, sum_of);
            self.post(id, from, Letter::Frozen { call, sum });
            return;
        }
        let leaving = Leaving {
            epoch,
            since_ms: clock_ms,
            wait_until_ms: Some(clock_ms + FREEZE_WAIT_MS),
            askers: vec![(from, call)],
            is_settling: false,
        };
        table.moves.insert(page, Move::Leaving(leaving));
        table.words[page] = Word::Moving(own);
        if self.reach(id, Some(from), "home-page-marked") {
            self.look_if_left(id, page, epoch);
        }
    }

    /// Freezes a page when nobody is in it, or gives that up.
    fn look_if_left(&mut self, id: NodeId, page: usize, epoch: Epoch) {
        let clock_ms = self.clock_ms(id);
        let is_in_use = self.node(id).is_in_use(page) && self.broken != Some(BrokenMoveRule::WaitsForNobody);
        let Some(leaving) = self.leaving(id, page, epoch) else { return };
        let Some(until_ms) = leaving.wait_until_ms else { return };
        if !is_in_use {
            leaving.wait_until_ms = None;
            let askers = std::mem::take(&mut leaving.askers);
            if self.reach(id, askers.first().map(|(asker, _)| *asker), "home-page-frozen") {
                self.tell_frozen(id, page, askers);
            }
        } else if clock_ms >= until_ms {
            let askers = std::mem::take(&mut leaving.askers);
            self.thaw(id, page);
            for (asker, call) in askers {
                self.post(id, asker, Letter::Refused { call });
            }
        }
    }

    /// The page is served as before.
    fn thaw(&mut self, id: NodeId, page: usize) {
        let Some(table) = self.node(id).table() else { return };
        if let Word::Moving(epoch) = table.words[page] {
            table.words[page] = Word::Here(epoch);
        }
        table.moves.remove(&page);
    }

    fn tell_frozen(&mut self, id: NodeId, page: usize, askers: Vec<(NodeId, u64)>) {
        let Some(sum) = self.node(id).memory.get(&page).map(sum_of) else { return };
        for (asker, call) in askers {
            self.post(id, asker, Letter::Frozen { call, sum });
        }
    }

    /// A word of a frozen page is read by its taker.
    pub(super) fn copy(&mut self, id: NodeId, from: NodeId, call: u64, (page, index): (usize, usize)) {
        let is_unfrozen = self.broken == Some(BrokenMoveRule::CopiesUnfrozen);
        let is_served = match self.node(id).word(page) {
            Word::Moving(_) => true,
            Word::Here(_) => is_unfrozen || self.is_shared(id, page),
            Word::Unknown | Word::At(_) | Word::Copy(_) => false,
        };
        let value = self.node(id).memory.get(&page).filter(|_| is_served).map(|content| content[index]);
        let letter = match value {
            Some(value) => Letter::Copied { call, word: index, value },
            None => Letter::Refused { call },
        };
        self.post(id, from, letter);
        let is_last = value.is_some() && index + 1 == super::world::WORDS;
        if is_last && self.broken == Some(BrokenMoveRule::DropsWhenCopied) {
            self.let_go(id, page, Word::At(from));
        }
    }

    /// The taker says that it has the page.
    pub(super) fn moved(&mut self, id: NodeId, page: usize, epoch: Epoch) {
        let is_unfrozen = self.broken == Some(BrokenMoveRule::CopiesUnfrozen);
        if is_unfrozen || self.leaving(id, page, epoch).is_some() {
            self.ask_where(id, page, epoch);
        }
    }

    /// Asks the directory where a frozen page lies.
    fn ask_where(&mut self, id: NodeId, page: usize, epoch: Epoch) {
        if let Some(leaving) = self.leaving(id, page, epoch) {
            if leaving.is_settling {
                return;
            }
            leaving.is_settling = true;
        }
        let command = Command::CancelMove { page: self.number(page), epoch };
        self.ask_directory(id, Purpose::Settle(page, epoch), command);
    }

    /// The directory has said where a frozen page lies.
    pub(super) fn settle(&mut self, id: NodeId, page: usize, epoch: Epoch, told: Told) {
        let is_unfrozen = self.broken == Some(BrokenMoveRule::CopiesUnfrozen);
        match self.leaving(id, page, epoch) {
            Some(leaving) => leaving.is_settling = false,
            None if is_unfrozen => {}
            None => return,
        }
        let Some(Ok(Reply::PageHome(home))) = told else { return };
        let other = home.home.as_ref().map(|info| info.node).filter(|node| *node != id);
        if !self.reach(id, other, "home-page-decided") {
            return;
        }
        if is_at(&home, id) {
            self.report.thawed += 1;
            self.thaw(id, page);
            return;
        }
        let word = other.map_or(Word::Unknown, Word::At);
        if self.node(id).memory.contains_key(&page) {
            self.let_go(id, page, word);
        }
        if self.reach(id, other, "home-page-gone")
            && let Some(table) = self.node(id).table()
        {
            table.moves.remove(&page);
        }
    }

    /// Says where a page lies, and gives its memory back.
    fn let_go(&mut self, id: NodeId, page: usize, word: Word) {
        let is_broken = self.broken.is_some();
        if let Some(table) = self.node(id).table() {
            table.words[page] = word;
        }
        if !is_broken && let Err(text) = self.may_go(id, page) {
            self.fail(text);
        }
        self.node(id).memory.remove(&page);
    }

    /// Threads that may have left, and frozen pages of which nothing is heard.
    pub(super) fn wake_home(&mut self, id: NodeId) {
        let clock_ms = self.clock_ms(id);
        let Some(table) = self.node(id).table() else { return };
        let leaving = |(page, going): (&usize, &Move)| match going {
            Move::Leaving(leaving) => Some((*page, leaving.clone())),
            Move::Coming(_) => None,
        };
        for (page, leaving) in table.moves.iter().filter_map(leaving).collect::<Vec<_>>() {
            if leaving.wait_until_ms.is_some() {
                self.look_if_left(id, page, leaving.epoch);
            } else if clock_ms >= leaving.since_ms + SILENCE_MS {
                if self.broken == Some(BrokenMoveRule::ThawsOnSilence) {
                    self.thaw(id, page);
                } else {
                    self.ask_where(id, page, leaving.epoch);
                }
            }
        }
    }

    /// A program did not find a page where its word said: looks at the directory.
    pub(super) fn find(&mut self, id: NodeId, page: usize) {
        let number = self.number(page);
        let Some(running) = &self.node(id).running else { return };
        let Some(table) = &running.table else { return };
        let is_asked = running.asks.values().any(|asked| asked.purpose == Purpose::Find(page));
        if !is_asked
            && !table.moves.contains_key(&page)
            && !matches!(table.words[page], Word::Here(_) | Word::Copy(_))
        {
            self.ask_directory(id, Purpose::Find(page), Command::LookupHome { page: number });
        }
    }

    pub(super) fn found(&mut self, id: NodeId, page: usize, told: Told) {
        let Some(Ok(Reply::PageHome(home))) = told else { return };
        let Some(info) = home.home.as_ref().filter(|_| home.is_up) else { return };
        let Some(table) = self.node(id).table() else { return };
        // What was decided here since the question is newer than the answer.
        let is_open =
            !table.moves.contains_key(&page) && !matches!(table.words[page], Word::Here(_) | Word::Copy(_));
        if is_open && info.node != id {
            table.words[page] = Word::At(info.node);
        }
    }
}
