//! The side that takes a page: `pull`, `take`, `end_in_doubt` of `node`'s `regions/moving.rs`, one message at a time.

use super::BrokenMoveRule;
use super::node::{Asked, Letter, Move, Purpose, Word, sum_of};
use super::world::{CALL_MS, WORDS, World};
use crate::message::{Address, Ticket};
use hinterland_directory::{Command, DirectoryError, PageHome, Reply};
use hinterland_policy::heat::{Heat, Room};
use hinterland_types::{Epoch, NodeId};

/// What a taker waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Errand {
    Beginning,
    /// It was not told of its intent, and asks again to take it back.
    Asking,
    Freezing,
    Copying,
    Committing,
    /// The intent is being taken back.
    Ending,
}

/// A page on its way here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Coming {
    /// Known once the directory has answered.
    pub epoch: Option<Epoch>,
    /// Of the node when it began.
    pub incarnation: u64,
    pub has_room: bool,
    /// Nobody works on it any more, because the directory could not be asked.
    pub in_doubt: bool,
    pub errand: Errand,
    pub home: Option<NodeId>,
    pub heat: Option<Heat>,
    /// The request on its way to the home, and until when its answer is waited for.
    pub call: u64,
    pub until_ms: u64,
    /// What the home said that the page sums up to.
    pub sum: u64,
}

/// An answer of the directory, or `None` if there was none in time.
pub(super) type Told = Option<Result<Reply, DirectoryError>>;

impl World {
    pub(super) fn coming(&mut self, id: NodeId, page: usize) -> Option<&mut Coming> {
        match self.node(id).table()?.moves.get_mut(&page)? {
            Move::Coming(coming) => Some(coming),
            Move::Leaving(_) => None,
        }
    }

    /// Asks the home of a page that is hot here whether it would let it go.
    pub(super) fn want(&mut self, id: NodeId, page: usize, heat: Heat) {
        let (clock_ms, number, now) = (self.clock_ms(id), self.number(page), self.clock(id));
        let call = self.next_call();
        let rules = self.rules;
        let Some(running) = &mut self.node(id).running else { return };
        let Some(table) = &running.table else { return };
        let Word::At(home) = table.words[page] else { return };
        if table.moves.contains_key(&page) || !rules.decide(heat, Heat::ZERO, Room::Free).is_pull() {
            return;
        }
        if running.budget.begin(number, now).is_err() {
            return;
        }
        running.wanted.insert(page, (call, clock_ms + CALL_MS, heat));
        self.post(id, home, Letter::Wanted { call, page, heat });
    }

    /// The home would let a page go.
    pub(super) fn allowed(&mut self, id: NodeId, call: u64) {
        let Some(running) = &mut self.node(id).running else { return };
        let found = running.wanted.iter().find(|(_, (own, ..))| *own == call);
        let Some((page, heat)) = found.map(|(page, (.., heat))| (*page, *heat)) else { return };
        running.wanted.remove(&page);
        if !self.pull(id, page, Some(heat)) {
            self.rest(id, page, false);
        }
    }

    /// What was begun with the budget of moves is over.
    pub(super) fn rest(&mut self, id: NodeId, page: usize, has_moved: bool) {
        let (number, now) = (self.number(page), self.clock(id));
        if let Some(running) = &mut self.node(id).running {
            running.budget.end(number, has_moved, now);
        }
    }

    /// Begins to bring a page here; false if that cannot be.
    pub(super) fn pull(&mut self, id: NodeId, page: usize, heat: Option<Heat>) -> bool {
        let incarnation = self.node(id).incarnation;
        // A copy makes room for the page itself.
        if !self.give_back(id, page) || self.has_copy(id, page) {
            return false;
        }
        let Some(table) = self.node(id).table() else { return false };
        if matches!(table.words[page], Word::Here(_) | Word::Moving(_)) || table.moves.contains_key(&page) {
            return false;
        }
        let coming = Coming {
            epoch: None,
            incarnation,
            has_room: false,
            in_doubt: false,
            errand: Errand::Beginning,
            home: None,
            heat,
            call: 0,
            until_ms: u64::MAX,
            sum: 0,
        };
        table.moves.insert(page, Move::Coming(coming));
        let command = Command::BeginMove { page: self.number(page), to: id, incarnation };
        self.ask_directory(id, Purpose::Begin(page), command);
        true
    }

    /// The directory has answered to the intent.
    pub(super) fn begun(&mut self, id: NodeId, page: usize, told: Told) {
        let forgets = self.broken == Some(BrokenMoveRule::ForgetsIntents);
        let Some(coming) = self.coming(id, page) else { return };
        let is_over = match coming.errand {
            Errand::Beginning => false,
            Errand::Asking => true,
            _ => return,
        };
        let Some(Ok(Reply::Move { epoch, part, from })) = told else {
            if told.is_none() && !forgets {
                (coming.errand, coming.in_doubt) = (Errand::Asking, true);
            } else {
                self.forget_coming(id, page);
            }
            return;
        };
        if is_over {
            coming.epoch = Some(epoch);
            return self.end_in_doubt(id, page);
        }
        let home = from.home.as_ref().filter(|_| from.is_up).map(|home| home.node);
        if let Some(coming) = self.coming(id, page) {
            (coming.epoch, coming.home) = (Some(epoch), home);
        }
        if !self.reach(id, home, "move-begun") {
            return;
        }
        // The node may have begun another life while the answer was on its way, for which the directory knows no such part.
        let begun_by = self.coming(id, page).map(|coming| coming.incarnation);
        let is_told = begun_by == Some(self.node(id).incarnation)
            && self.node(id).part.is_none_or(|known| known == part);
        if !is_told {
            return self.end_in_doubt(id, page);
        }
        if self.node(id).part.is_none() {
            self.node(id).part = Some(part);
            if !self.reach(id, home, "part-made") {
                return;
            }
        }
        if let Some(before) = self.node(id).memory.insert(page, [0; WORDS]) {
            let text = format!("node {} had memory for page {page}, {before:?}, which was to come", id.0);
            self.fail(text);
        }
        if let Some(coming) = self.coming(id, page) {
            coming.has_room = true;
        }
        if !self.reach(id, home, "move-room-made") {
            return;
        }
        let Some(home) = home else {
            self.end_in_doubt(id, page);
            return;
        };
        let heat = self.coming(id, page).and_then(|coming| coming.heat);
        let call = self.expect(id, page, Errand::Freezing);
        self.post(id, home, Letter::Freeze { call, page, epoch, heat });
    }

    /// Notes what is waited for next, and gives the number of the request.
    fn expect(&mut self, id: NodeId, page: usize, errand: Errand) -> u64 {
        let (call, clock_ms) = (self.next_call(), self.clock_ms(id));
        if let Some(coming) = self.coming(id, page) {
            (coming.errand, coming.call, coming.until_ms) = (errand, call, clock_ms + CALL_MS);
        }
        call
    }

    /// The page whose home was asked with this call.
    fn page_of_call(&mut self, id: NodeId, call: u64) -> Option<(usize, Coming)> {
        let moves = &self.node(id).table()?.moves;
        moves.iter().find_map(|(page, going)| match going {
            Move::Coming(coming) if coming.call == call => Some((*page, *coming)),
            _ => None,
        })
    }

    pub(super) fn frozen(&mut self, id: NodeId, call: u64, sum: u64) {
        let Some((page, coming)) = self.page_of_call(id, call) else { return };
        let (Errand::Freezing, Some(home)) = (coming.errand, coming.home) else { return };
        if let Some(coming) = self.coming(id, page) {
            coming.sum = sum;
        }
        if self.reach(id, Some(home), "move-frozen") {
            let call = self.expect(id, page, Errand::Copying);
            self.post(id, home, Letter::Copy { call, page, word: 0 });
        }
    }

    pub(super) fn copied(&mut self, id: NodeId, call: u64, word: usize, value: u64) {
        if self.copy_came(id, call, word, value) {
            return;
        }
        let Some((page, coming)) = self.page_of_call(id, call) else { return };
        let (Errand::Copying, Some(home), Some(epoch)) = (coming.errand, coming.home, coming.epoch) else {
            return;
        };
        let Some(content) = self.node(id).memory.get_mut(&page) else { return };
        content[word] = value;
        if word + 1 < WORDS {
            let call = self.expect(id, page, Errand::Copying);
            self.post(id, home, Letter::Copy { call, page, word: word + 1 });
            return;
        }
        let sum = sum_of(content);
        if !self.reach(id, Some(home), "move-copied") {
            return;
        }
        if sum != coming.sum {
            self.end_in_doubt(id, page);
            return;
        }
        if self.broken == Some(BrokenMoveRule::ServesBeforeCommit)
            && let Some(table) = self.node(id).table()
        {
            table.words[page] = Word::Here(epoch);
        }
        self.expect(id, page, Errand::Committing);
        if let Some(coming) = self.coming(id, page) {
            coming.until_ms = u64::MAX;
        }
        let command =
            Command::CommitMove { page: self.number(page), to: id, incarnation: coming.incarnation, epoch };
        self.ask_directory(id, Purpose::Commit(page, epoch), command);
    }

    pub(super) fn committed(&mut self, id: NodeId, page: usize, epoch: Epoch, told: Told) {
        let Some(coming) = self.coming(id, page).copied() else { return };
        if (coming.epoch, coming.errand) != (Some(epoch), Errand::Committing) {
            return;
        }
        if !matches!(told, Some(Ok(_))) && self.broken != Some(BrokenMoveRule::BelievesItsCommit) {
            self.end_in_doubt(id, page);
            return;
        }
        if self.reach(id, coming.home, "move-committed")
            && self.arrive(id, page, epoch)
            && let Some(home) = coming.home
        {
            self.post(id, home, Letter::Moved { page, epoch });
        }
    }

    /// The page is here; whether the process is, too.
    fn arrive(&mut self, id: NodeId, page: usize, epoch: Epoch) -> bool {
        let home = self.coming(id, page).and_then(|coming| coming.home);
        if let Some(table) = self.node(id).table() {
            table.words[page] = Word::Here(epoch);
        }
        if !self.reach(id, home, "move-arrived") {
            return false;
        }
        if let Some(table) = self.node(id).table() {
            table.moves.remove(&page);
        }
        self.report.moved += 1;
        self.rest(id, page, true);
        true
    }

    /// Takes the intent back, and finds out in the answer whether it was committed before.
    pub(super) fn end_in_doubt(&mut self, id: NodeId, page: usize) {
        let Some(coming) = self.coming(id, page) else { return };
        let Some(epoch) = coming.epoch else {
            self.forget_coming(id, page);
            return;
        };
        (coming.errand, coming.until_ms) = (Errand::Ending, u64::MAX);
        let command = Command::CancelMove { page: self.number(page), epoch };
        self.ask_directory(id, Purpose::End(page, epoch), command);
    }

    pub(super) fn ended(&mut self, id: NodeId, page: usize, epoch: Epoch, told: Told) {
        let Some(coming) = self.coming(id, page).copied() else { return };
        if (coming.epoch, coming.errand) != (Some(epoch), Errand::Ending) {
            return;
        }
        match told {
            Some(Ok(Reply::PageHome(home))) if is_at(&home, id) && home.epoch == epoch => {
                self.arrive(id, page, epoch);
            }
            None if self.broken != Some(BrokenMoveRule::ForgetsInDoubt) => {
                if let Some(coming) = self.coming(id, page) {
                    coming.in_doubt = true;
                }
            }
            _ => {
                if self.reach(id, coming.home, "move-taken-back") {
                    self.report.ended += 1;
                    self.forget_coming(id, page);
                }
            }
        }
    }

    fn forget_coming(&mut self, id: NodeId, page: usize) {
        let Some(coming) = self.coming(id, page).copied() else { return };
        if coming.has_room {
            self.node(id).memory.remove(&page);
        }
        let is_served_early = self.broken == Some(BrokenMoveRule::ServesBeforeCommit);
        if let Some(table) = self.node(id).table() {
            table.moves.remove(&page);
            if is_served_early && matches!(table.words[page], Word::Here(_)) {
                table.words[page] = Word::Unknown;
            }
        }
        self.rest(id, page, false);
    }

    /// Requests to homes that were not answered in time, and moves that nobody goes on with.
    pub(super) fn wake_taker(&mut self, id: NodeId) {
        let clock_ms = self.clock_ms(id);
        let Some(running) = &mut self.node(id).running else { return };
        let late: Vec<_> = running
            .wanted
            .iter()
            .filter(|(_, (_, until_ms, _))| clock_ms > *until_ms)
            .map(|(page, _)| *page)
            .collect();
        for page in late {
            if let Some(running) = &mut self.node(id).running {
                running.wanted.remove(&page);
            }
            self.rest(id, page, false);
        }
        let Some(table) = self.node(id).table() else { return };
        let is_over = |coming: &Coming| clock_ms > coming.until_ms || coming.in_doubt;
        let late: Vec<_> = table
            .moves
            .iter()
            .filter(|(_, going)| matches!(going, Move::Coming(coming) if is_over(coming)))
            .map(|(page, _)| *page)
            .collect();
        for page in late {
            let Some(coming) = self.coming(id, page) else { continue };
            coming.in_doubt = false;
            let (epoch, incarnation) = (coming.epoch, self.node(id).incarnation);
            if epoch.is_none() {
                let command = Command::BeginMove { page: self.number(page), to: id, incarnation };
                self.ask_directory(id, Purpose::Begin(page), command);
            } else {
                self.end_in_doubt(id, page);
            }
        }
    }

    /// A home says no.
    pub(super) fn home_refused(&mut self, id: NodeId, call: u64) {
        let Some(running) = &mut self.node(id).running else { return };
        let wanted = running.wanted.iter().find(|(_, (own, ..))| *own == call).map(|(page, _)| *page);
        if let Some(page) = wanted {
            running.wanted.remove(&page);
            self.rest(id, page, false);
        } else if let Some((page, Coming { errand: Errand::Freezing | Errand::Copying, .. })) =
            self.page_of_call(id, call)
        {
            self.end_in_doubt(id, page);
        }
    }

    /// Asks the directory; a question that is not answered is asked once more, and then there is no answer.
    pub(super) fn ask_directory(&mut self, id: NodeId, purpose: Purpose, command: Command) {
        let again = Some(command.clone());
        self.ask_with(id, purpose, command, again);
    }

    pub(super) fn ask_with(
        &mut self,
        id: NodeId,
        purpose: Purpose,
        command: Command,
        again: Option<Command>,
    ) {
        let (number, clock_ms) = (self.next_call(), self.clock_ms(id));
        let until_ms = clock_ms + self.patience_ms();
        let life = self.node(id).lives;
        let Some(running) = &mut self.node(id).running else { return };
        running.asks.insert(number, Asked { purpose, until_ms, again });
        let ticket = Ticket { life, task: number, part: 0 };
        self.send(Address::Node(id), Address::Directory, Letter::Ask(ticket, command));
    }
}

pub(super) fn is_at(home: &PageHome, node: NodeId) -> bool {
    home.home.as_ref().is_some_and(|info| info.node == node)
}
