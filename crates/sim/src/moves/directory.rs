//! The directory's host in the simulation of moves, and what must hold whenever it commits a move.

use super::BrokenMoveRule;
use super::node::{Letter, Move, Word};
use super::world::{LEASE_MS, NODES, PAGES, World};
use crate::Outbox;
use crate::message::{Address, Message, Ticket};
use hinterland_directory::{Command, Reply};
use hinterland_types::NodeId;

/// How many of the directory's answers lie between two checks of all its rules.
const CHECK_EVERY: u64 = 40;
/// After how long a directory that died is started again, in milliseconds.
pub(super) const DIRECTORY_BACK_MS: (u64, u64) = (50, 3000);

impl World {
    pub(super) fn directory_asked(&mut self, from: NodeId, ticket: Ticket, command: &Command) {
        if !self.directory.is_running() {
            return self.break_off(from, Some(ticket));
        }
        let step = match command {
            Command::BeginMove { .. } => Some(("directory-begins", "directory-has-begun")),
            Command::CommitMove { .. } => Some(("directory-commits", "directory-has-committed")),
            Command::CancelMove { .. } => Some(("directory-cancels", "directory-has-cancelled")),
            _ => None,
        };
        if let Some((before, _)) = step
            && !self.reach_directory(from, before)
        {
            return;
        }
        if let Command::CommitMove { page, .. } = command {
            self.before_commit = self.home_of((page.raw() - self.first) as usize);
        }
        let clock_ms = self.directory_clock();
        let mut outbox = Outbox::new(Address::Directory, false);
        let is_alive = self.directory.receive(clock_ms, Address::Node(from), ticket, command, &mut outbox);
        let answered = outbox.messages.into_iter().find_map(|(_, message)| match message {
            Message::Answer(ticket, answer) => Some((ticket, answer)),
            _ => None,
        });
        if let Some((_, answer)) = &answered {
            if step.is_some() {
                self.note(|| format!("{command:?} of node {}: {answer:?}", from.0));
            }
            if let Ok(reply) = answer {
                self.judge(command, reply);
            }
        }
        self.answered += 1;
        if self.answered.is_multiple_of(CHECK_EVERY)
            && let Err(text) = self.directory.check()
        {
            self.fail(text);
        }
        if !is_alive {
            return self.directory_down();
        }
        if answered.is_none() {
            // The store failed.
            self.break_off(from, Some(ticket));
        }
        if let Some((_, after)) = step
            && !self.reach_directory(from, after)
        {
            return;
        }
        if let Some((ticket, answer)) = answered {
            self.send(Address::Directory, Address::Node(from), Letter::Answer(ticket, answer));
        }
    }

    /// The process of the directory has died, and is started again.
    pub(super) fn directory_down(&mut self) {
        self.note(|| "the directory dies".to_owned());
        self.directory.crash();
        Self::ids().for_each(|id| self.break_off(id, None));
        let (first, end) = DIRECTORY_BACK_MS;
        let at_ms = self.now_ms + self.random.between(first, end);
        self.schedule(at_ms, super::world::Step::StartDirectory);
    }

    /// A connection to the directory is at its end, and who waits for an answer waits no longer; all of a node's without a ticket.
    fn break_off(&mut self, id: NodeId, ticket: Option<Ticket>) {
        let node = self.node(id);
        let is_of_this_life = ticket.is_none_or(|ticket| ticket.life == node.lives);
        let Some(running) = node.running.as_mut().filter(|_| is_of_this_life) else { return };
        for (number, asked) in &mut running.asks {
            if ticket.is_none_or(|ticket| ticket.task == *number) {
                asked.until_ms = 0;
            }
        }
    }

    /// Who has a page, as the directory says; `None` while it does not run. The inner `None` is a page that is lost.
    pub(super) fn home_of(&self, page: usize) -> Option<Option<NodeId>> {
        let command = Command::LookupHome { page: self.number(page) };
        match self.directory.ask(self.directory_clock(), &command)? {
            Reply::PageHome(home) => Some(home.home.map(|info| info.node)),
            _ => None,
        }
    }

    /// Whether the memory of a page may go: another node has it.
    pub(super) fn may_go(&self, id: NodeId, page: usize) -> Result<(), String> {
        match self.home_of(page) {
            Some(Some(home)) if home == id => {
                Err(format!("node {} gives up the memory of page {page}, which is its own", id.0))
            }
            Some(None) => Err(format!("page {page} is lost when node {} gives up its memory", id.0)),
            Some(Some(_)) | None => Ok(()),
        }
    }

    /// What the directory has answered to somebody.
    fn judge(&mut self, command: &Command, reply: &Reply) {
        match command {
            Command::Heartbeat { node, .. } | Command::Join { node, .. } => {
                self.renewed_ms[node.0 as usize - 1] = self.now_ms;
            }
            Command::CommitMove { page, to, .. } => {
                let page = (page.raw() - self.first) as usize;
                let before = self.before_commit.take().flatten();
                let Reply::PageHome(home) = reply else { return };
                // Of a commit that was asked twice the second changes nothing.
                if let Some(before) = before.filter(|before| before != to) {
                    self.judge_commit(page, before, *to, home.epoch);
                }
            }
            _ => {}
        }
    }

    /// A page is given to another node: its home before serves nothing of it, and the taker has what that one has.
    fn judge_commit(&mut self, page: usize, before: NodeId, to: NodeId, epoch: hinterland_types::Epoch) {
        self.note(|| format!("page {page} goes from node {} to node {}", before.0, to.0));
        let node = self.node(before);
        let content = node.memory.get(&page).copied();
        let is_dead = self.is_served_by_the_dead(before, page);
        let node = self.node(before);
        let is_frozen = !is_dead
            && node.table().is_none_or(|table| {
                let going = table.moves.get(&page);
                let is_leaving = matches!(going, Some(Move::Leaving(leaving)) if leaving.epoch == epoch);
                is_leaving && matches!(table.words[page], Word::Moving(_))
            });
        let is_same = self.node(to).memory.get(&page).copied() == content;
        // These would see at once what the others have to find out.
        if self.broken.is_some_and(|rule| !matches!(rule, BrokenMoveRule::ServesBeforeJoin)) {
            return;
        }
        if !is_frozen {
            self.fail(format!("page {page} went from node {}, which serves it, to node {}", before.0, to.0));
        } else if !is_same {
            self.fail(format!("page {page} went from node {} to node {} as another", before.0, to.0));
        }
    }

    /// What must hold between any two steps: no two nodes serve a page, and no two freeze it.
    pub(super) fn check_owners(&mut self) {
        for page in 0..PAGES {
            let (mut serving, mut freezing) = (Vec::new(), Vec::new());
            for node in &self.nodes {
                if self.is_served_by_the_dead(node.id, page) {
                    serving.push(node.id);
                }
                let table = node.running.as_ref().and_then(|running| running.table.as_ref());
                let Some(table) = table else { continue };
                match table.words[page] {
                    Word::Here(_) => serving.push(node.id),
                    Word::Moving(_) => freezing.push(node.id),
                    Word::Unknown | Word::At(_) | Word::Copy(_) => {}
                }
            }
            if serving.len() > 1 {
                return self.fail(format!("page {page} is served by {serving:?}"));
            }
            // A home that has not heard yet that its page went may see it frozen at the next one: but never two at work on one move.
            let is_settled = |id: &NodeId| {
                let node = &self.nodes[id.0 as usize - 1];
                let table = node.running.as_ref().and_then(|running| running.table.as_ref());
                table.is_none_or(|table| !table.moves.contains_key(&page))
            };
            if freezing.iter().any(is_settled) {
                return self.fail(format!("page {page} is frozen by {freezing:?} for nobody"));
            }
        }
    }

    /// A home has served an access under a lock: the directory must have heard of it within a lease.
    pub(super) fn check_lease(&mut self, id: NodeId) {
        let heard_ms = self.renewed_ms[id.0 as usize - 1];
        // An eighth for the directory's clock.
        if self.directory_at != Some(id) && self.now_ms > heard_ms + LEASE_MS * 9 / 8 {
            let text = format!(
                "node {} served an access under a lock {} ms after the directory heard of it",
                id.0,
                self.now_ms - heard_ms
            );
            self.fail(text);
        }
    }

    /// An access was answered to a program.
    pub(super) fn count_progress(&mut self, id: NodeId) {
        if let Some((mask, until_ms)) = self.cut
            && self.now_ms < until_ms
            && mask & 1 << (id.0 - 1) == 0
        {
            self.report.went_on += 1;
        }
    }

    /// All nodes, by number.
    pub(super) fn ids() -> impl Iterator<Item = NodeId> {
        (1..=NODES).map(NodeId)
    }
}
