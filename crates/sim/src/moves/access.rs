//! Accesses to words of pages: by loads and stores where the page is, by requests to its home elsewhere.

use super::BrokenMoveRule;
use super::node::{Access, Echo, Letter, Node, Outcome, Word, lock_home};
use super::program::{Doing, Going, Phase};
use super::world::{ACCESS_MS, PATIENCE_MS, Step, WORDS, World};
use crate::history::Act;
use hinterland_directory::locks::{ClaimState, Fence, Gate, LockAsk, LockMode};
use hinterland_policy::heat::Heat;
use hinterland_types::NodeId;

/// How often a home looks whether programs of its host may still store under an older fence, and for how long.
const SHUT_OUT_MS: u64 = 5;
const SHUT_OUT_TRIES: u8 = 100;
/// How many of a hundred reads elsewhere have a copy of the page asked for.
const COPIED_PERCENT: u64 = 60;

impl Node {
    /// What the words that a program has say of a page; also those of a life that is dead, until the next one begins.
    fn word_for(&self, index: usize, page: usize) -> Word {
        let is_of_this_life = self.programs[index].life == self.lives;
        match &self.running {
            _ if !is_of_this_life => Word::Unknown,
            Some(_) => self.word(page),
            None => self.stale_words.map_or(Word::Unknown, |words| words[page]),
        }
    }

    /// Whether programs have words of an earlier life: as long as they do nothing moves.
    pub fn is_pinned(&self) -> bool {
        self.programs.iter().any(|program| program.life > 0 && program.life != self.lives)
    }

    /// Whether a thread is in the page, as far as this life knows.
    pub fn is_in_use(&self, page: usize) -> bool {
        self.programs.iter().any(|program| program.life == self.lives && program.is_inside(page))
    }
}

impl World {
    /// Begins an access to a word of the program's page.
    pub(super) fn begin_access(&mut self, id: NodeId, index: usize, word: usize, act: Act, begin: u64) {
        let (number, clock_ms) = (self.next_call(), self.clock_ms(id));
        let patience_ms = clock_ms + if self.is_quiet() { u64::MAX / 2 } else { PATIENCE_MS };
        let phase = Phase::Looking { at_ms: clock_ms };
        self.node(id).programs[index].going =
            Some(Going { number, word, act, begin, phase, is_missed: false, is_in_copy: false, patience_ms });
        self.look(id, index);
    }

    /// Goes on with an access that is not waited for.
    pub(super) fn look(&mut self, id: NodeId, index: usize) {
        let clock_ms = self.clock_ms(id);
        let Some(going) = self.node(id).programs[index].going else { return };
        match going.phase {
            Phase::Inside => return,
            Phase::Asking { until_ms } if clock_ms < until_ms => return,
            Phase::Asking { .. } => return self.give_up_access(id, index, true),
            Phase::Looking { at_ms } if clock_ms < at_ms => return,
            Phase::Looking { .. } if clock_ms > going.patience_ms => {
                return self.give_up_access(id, index, false);
            }
            Phase::Looking { .. } if self.has_lost_its_lock(id, index) => {
                return self.give_up_access(id, index, false);
            }
            Phase::Looking { .. } => {}
        }
        let node = self.node(id);
        if node.table().is_some() {
            // What an earlier life has told says nothing any more, and the node is asked for its words.
            node.programs[index].life = node.lives;
        }
        let page = node.programs[index].page;
        let word = node.word_for(index, page);
        let (is_missed, is_write) = (going.is_missed, matches!(going.act, Act::Write(_)));
        if let Some(going) = &mut node.programs[index].going {
            (going.is_missed, going.phase) = (false, Phase::Looking { at_ms: clock_ms + 3 });
        }
        match word {
            Word::Here(_) if is_write && self.must_recall(id, page) => {}
            Word::Here(_) => self.enter(id, index, going),
            Word::Copy(_) if !is_write => self.enter(id, index, Going { is_in_copy: true, ..going }),
            Word::At(_) if self.is_finding(id, page) => {}
            Word::At(home) | Word::Copy(home) if !is_missed => self.ask_home(id, index, going, home),
            Word::At(_) | Word::Copy(_) | Word::Unknown => self.find(id, page),
            Word::Moving(_) => {}
        }
    }

    fn is_finding(&mut self, id: NodeId, page: usize) -> bool {
        let find = super::node::Purpose::Find(page);
        let running = self.node(id).running.as_ref();
        running.is_some_and(|running| running.asks.values().any(|asked| asked.purpose == find))
    }

    fn has_lost_its_lock(&mut self, id: NodeId, index: usize) -> bool {
        let node = self.node(id);
        let program = &node.programs[index];
        let state = node.running.as_ref().and_then(|running| running.holder.state(program.request));
        program.is_guarded() && !matches!(state, Some(ClaimState::Held { .. }))
    }

    /// Whether the clock of the program's host says that its lock is believed.
    fn is_believed(&mut self, id: NodeId, index: usize) -> bool {
        let clock_ms = self.clock_ms(id);
        let node = self.node(id);
        let request = node.programs[index].request;
        let state = node.running.as_ref().and_then(|running| running.holder.state(request));
        matches!(state, Some(ClaimState::Held { until_ms, .. }) if clock_ms <= until_ms)
    }

    /// The thread is in the page; the load or store comes a little later, or much later if the thread is stopped there.
    fn enter(&mut self, id: NodeId, index: usize, going: Going) {
        if self.node(id).programs[index].is_guarded() && !self.is_believed(id, index) {
            return;
        }
        let is_in_copy = going.is_in_copy;
        let delay_ms = match self.random.below(100) {
            0..80 => 0,
            80..88 if is_in_copy => self.random.below(3000),
            80..96 => self.random.below(8),
            96..99 => self.random.below(100),
            _ => self.random.below(3000),
        };
        let delay_ms = if self.is_quiet() { 0 } else { delay_ms };
        if let Some(going) = &mut self.node(id).programs[index].going {
            going.phase = Phase::Inside;
            going.is_in_copy = is_in_copy;
        }
        self.heat(id, index, matches!(going.act, Act::Write(_)));
        let at_ms = self.now_ms + delay_ms;
        self.schedule(at_ms, Step::Finish(id, index, going.number));
    }

    /// The load or store of a thread that is in a page.
    pub(super) fn finish(&mut self, id: NodeId, index: usize, number: u64) {
        let program = &self.node(id).programs[index];
        let page = program.page;
        let Some(going) =
            program.going.filter(|going| going.number == number && going.phase == Phase::Inside)
        else {
            return;
        };
        if going.is_in_copy {
            return self.finish_in_copy(id, index, page, going.word);
        }
        let Some(value) = self.touch(id, page, going.word, going.act) else {
            return self.fail(format!("a program of node {} was shown a hole in place of page {page}", id.0));
        };
        self.access_done(id, index, value);
    }

    /// The load of a thread that is in a copy: it counts if the time of all copies is not over after it.
    fn finish_in_copy(&mut self, id: NodeId, index: usize, page: usize, word: usize) {
        let clock_ms = self.clock_ms(id);
        let believes = self.broken == Some(BrokenMoveRule::BelievesOldCopies);
        let node = self.node(id);
        let value = node.copied.get(&page).map(|content| content[word]);
        // The words of a life before say nothing, and no life writes to them again.
        let is_of_this_life = node.programs[index].life == node.lives;
        let counts = is_of_this_life && clock_ms < node.copies_until_ms || believes && value.is_some();
        match value {
            Some(value) if counts => {
                self.report.from_copies += 1;
                self.access_done(id, index, value);
            }
            None if counts => {
                self.fail(format!(
                    "a program of node {} was shown a hole in place of a copy of page {page}",
                    id.0
                ));
            }
            _ => {
                self.report.too_late += 1;
                if let Some(going) = &mut self.node(id).programs[index].going {
                    (going.phase, going.is_in_copy) = (Phase::Looking { at_ms: clock_ms + 3 }, false);
                }
            }
        }
    }

    /// Loads or stores a word of a page that is in memory here.
    fn touch(&mut self, id: NodeId, page: usize, word: usize, act: Act) -> Option<u64> {
        let stamp = self.stamp;
        let content = self.node(id).memory.get_mut(&page)?;
        match act {
            Act::Read(_) => Some(content[word]),
            Act::Write(value) => {
                content[word] = value;
                self.books[page * WORDS + word].landed(value, stamp);
                Some(value)
            }
        }
    }

    fn heat(&mut self, id: NodeId, index: usize, is_write: bool) {
        let (page, now) = (self.node(id).programs[index].page, self.clock(id));
        let number = self.number(page);
        if let Some(running) = &mut self.node(id).running {
            let heat: Heat = running.heat.record(number, u64::from(!is_write), u64::from(is_write), now);
            self.want(id, page, heat);
        }
    }

    fn ask_home(&mut self, id: NodeId, index: usize, going: Going, home: NodeId) {
        let clock_ms = self.clock_ms(id);
        let must_believe = self.is_careful && self.node(id).programs[index].is_guarded();
        if self.node(id).running.is_none() || must_believe && !self.is_believed(id, index) {
            return;
        }
        let program = &mut self.node(id).programs[index];
        if let Some(going) = &mut program.going {
            going.phase = Phase::Asking { until_ms: clock_ms + ACCESS_MS };
        }
        let fence = program.is_guarded().then_some(program.fence);
        let write = match going.act {
            Act::Write(value) => Some(value),
            Act::Read(_) => None,
        };
        let page = program.page;
        let access =
            Access { number: going.number, from: id, page, word: going.word, fence, write, tries: 0 };
        self.heat(id, index, write.is_some());
        self.post(id, home, Letter::Access(access));
        if write.is_none() && self.has_copies && !self.is_quiet() && self.random.percent(COPIED_PERCENT) {
            self.ask_for_copy(id, page, home);
        }
    }

    /// A home is asked for an access.
    pub(super) fn access(&mut self, id: NodeId, mut access: Access) {
        let clock_ms = self.clock_ms(id);
        let Some(fence) = access.fence else { return self.serve(id, access) };
        if !self.holds_lease(id) {
            return self.answer(id, access, Outcome::CutOff);
        }
        let home = lock_home(access.page);
        let address = self.lock(access.page);
        let Some(running) = &mut self.node(id).running else { return };
        let term = running.holder.term(home);
        let gate = match self.broken {
            Some(BrokenMoveRule::NoFences) => Gate::Open,
            _ => self.gate(id, clock_ms, access.page, fence, term),
        };
        match gate {
            Gate::Open if self.must_wait(id, access.page, fence) => {
                access.tries += 1;
                if access.tries > SHUT_OUT_TRIES {
                    return self.answer(id, access, Outcome::Old);
                }
                let at_ms = self.now_ms + SHUT_OUT_MS;
                let life = self.node(id).lives;
                self.schedule(at_ms, Step::Again(id, life, access));
            }
            Gate::Open => self.serve(id, access),
            Gate::Old => self.answer(id, access, Outcome::Old),
            Gate::Ask(number) => {
                if let Some(running) = &mut self.node(id).running {
                    running.pending.insert(number, access);
                }
                if self.reach(id, Some(home), "fence-asked") {
                    let ask = LockAsk::Check { address, fence };
                    self.ask_lock(id, home, ask, Echo::Check { number, sent_ms: clock_ms });
                }
            }
        }
    }

    fn gate(
        &mut self,
        id: NodeId,
        clock_ms: u64,
        page: usize,
        fence: Fence,
        term: Option<(u64, u64)>,
    ) -> Gate {
        let address = self.lock(page);
        match &mut self.node(id).running {
            Some(running) => running.fences.gate(clock_ms, lock_home(page), address, fence, term),
            None => Gate::Old,
        }
    }

    /// Whether a program of this host may yet store under an older fence.
    pub(super) fn must_wait(&mut self, id: NodeId, page: usize, fence: Fence) -> bool {
        let count = self.node(id).programs.len();
        (0..count).any(|index| {
            let program = &self.node(id).programs[index];
            let is_older = program.is_guarded() && program.page == page && program.fence < fence;
            let is_inside = program.is_inside(page);
            is_older && (is_inside || self.is_believed(id, index))
        })
    }

    fn serve(&mut self, id: NodeId, access: Access) {
        let act = access.write.map_or(Act::Read(0), Act::Write);
        let must_wait = access.write.is_some()
            && matches!(self.node(id).word(access.page), Word::Here(_))
            && self.must_recall(id, access.page);
        let outcome = match self.node(id).word(access.page) {
            // Nothing was done, and the copies are being taken back.
            Word::Here(_) if must_wait => Outcome::Moved,
            Word::Here(_) => match self.touch(id, access.page, access.word, act) {
                Some(value) => Outcome::Value(value),
                None => {
                    let text =
                        format!("node {} serves page {}, of which it has no memory", id.0, access.page);
                    return self.fail(text);
                }
            },
            Word::Unknown | Word::Moving(_) | Word::At(_) | Word::Copy(_) => Outcome::Moved,
        };
        if access.fence.is_some() && matches!(outcome, Outcome::Value(_)) {
            self.check_lease(id);
            if access.write.is_some() && !self.reach(id, Some(access.from), "flush-arrived") {
                return;
            }
        }
        self.answer(id, access, outcome);
    }

    fn answer(&mut self, id: NodeId, access: Access, outcome: Outcome) {
        self.post(id, access.from, Letter::Done { access: access.number, outcome });
    }

    /// A home has answered.
    pub(super) fn answered_access(&mut self, id: NodeId, number: u64, outcome: Outcome) {
        let clock_ms = self.clock_ms(id);
        let node = self.node(id);
        let is_it = |going: &Going| going.number == number && matches!(going.phase, Phase::Asking { .. });
        let Some(index) = node.programs.iter().position(|program| program.going.as_ref().is_some_and(is_it))
        else {
            return;
        };
        match outcome {
            Outcome::Value(value) => self.access_done(id, index, value),
            Outcome::Moved => {
                self.report.missed += 1;
                if let Some(going) = &mut self.node(id).programs[index].going {
                    (going.phase, going.is_missed) = (Phase::Looking { at_ms: clock_ms + 3 }, true);
                }
            }
            Outcome::Old | Outcome::CutOff => {
                match outcome {
                    Outcome::CutOff => self.report.cut_off += 1,
                    _ => self.report.refused += 1,
                }
                self.give_up_access(id, index, false);
            }
        }
    }

    fn access_done(&mut self, id: NodeId, index: usize, value: u64) {
        let (stamp, clock_ms) = (self.stamp, self.clock_ms(id));
        let rest_ms = self.random.below(120);
        self.count_progress(id);
        let program = &self.node(id).programs[index];
        let (page, going) = (program.page, program.going);
        self.note(|| format!("stamp {stamp}: node {} has {value} for {going:?} of page {page}", id.0));
        let program = &mut self.node(id).programs[index];
        let Some(going) = program.going.take() else { return };
        let flying = std::mem::take(&mut program.flying);
        let register = program.page * WORDS + going.word;
        let is_guarded = program.is_guarded();
        let fence = match program.doing {
            Doing::Holding => program.fence,
            _ if program.last_reads.is_empty() => Fence(0),
            _ => Fence(u64::MAX),
        };
        if !is_guarded {
            program.last_reads.pop();
            program.doing = Doing::Resting { until_ms: clock_ms + rest_ms };
        }
        let act = match going.act {
            Act::Read(_) => Act::Read(value),
            act @ Act::Write(_) => act,
        };
        self.report.done += 1 + flying.len() as u64;
        self.report.locked += u64::from(is_guarded);
        self.report.flushed += flying.len() as u64;
        for (value, begin) in flying {
            self.books[register].done(fence, begin, stamp, Act::Write(value));
        }
        self.books[register].done(fence, going.begin, stamp, act);
    }

    /// An access is over without an answer: if it was sent, nobody knows what became of it.
    pub(super) fn give_up_access(&mut self, id: NodeId, index: usize, was_sent: bool) {
        let clock_ms = self.clock_ms(id);
        let rest_ms = self.random.below(300);
        let program = &mut self.node(id).programs[index];
        let Some(going) = program.going.take() else { return };
        let register = program.page * WORDS + going.word;
        let fence = if program.is_guarded() { program.fence } else { Fence(0) };
        let flying = std::mem::take(&mut program.flying);
        let is_guarded = program.is_guarded();
        if let Act::Write(value) = going.act
            && was_sent
        {
            program.is_clean = false;
            for (value, begin) in flying.into_iter().chain([(value, going.begin)]) {
                self.books[register].unknown(fence, begin, value);
            }
        }
        if is_guarded {
            self.unlock(id, index);
        } else {
            self.node(id).programs[index].doing = Doing::Resting { until_ms: clock_ms + rest_ms };
        }
    }

    /// What a program does next under its lock.
    pub(super) fn hold(&mut self, id: NodeId, index: usize) {
        let (stamp, value) = (self.stamp, self.next_value());
        let (wants_write, wants_buffer) = (self.random.percent(60), self.random.percent(40));
        if self.has_lost_its_lock(id, index) {
            return self.unlock(id, index);
        }
        let node = self.node(id);
        let program = &node.programs[index];
        let is_writer = program.mode == LockMode::Write;
        if program.left == 0 || program.pending.len() > 2 {
            return match program.pending.is_empty() {
                true => self.unlock(id, index),
                false => self.flush(id, index),
            };
        }
        let is_elsewhere = matches!(node.word(program.page), Word::At(_) | Word::Copy(_));
        let program = &mut node.programs[index];
        program.left -= 1;
        if is_writer && wants_write && (wants_buffer && is_elsewhere || !program.pending.is_empty()) {
            return program.pending.push((value, stamp));
        }
        if !program.pending.is_empty() {
            // It would see what it has itself, which nobody else may ever see.
            return;
        }
        let act = if is_writer && wants_write { Act::Write(value) } else { Act::Read(0) };
        self.begin_access(id, index, 0, act, stamp);
    }

    /// Sends what is kept, as one message: the last value is what is there when it has arrived.
    fn flush(&mut self, id: NodeId, index: usize) {
        if !self.reach(id, None, "flush-begun") {
            return;
        }
        let program = &mut self.node(id).programs[index];
        let Some((value, begin)) = program.pending.pop() else { return };
        program.flying = std::mem::take(&mut program.pending);
        self.begin_access(id, index, 0, Act::Write(value), begin);
    }
}
