//! A node as a member: joining, saying which part it has, renewing the lease, and learning where pages lie.

use super::BrokenMoveRule;
use super::node::{Asked, Purpose, Stage, Table, Word};
use super::taker::Told;
use super::world::{LEASE_MS, PAGES, World, rack_of};
use hinterland_directory::{Command, DirectoryError, Held, Reply};
use hinterland_types::limits::PAGE_BYTES;
use hinterland_types::{Epoch, NodeId, ObjectId};
use std::collections::BTreeMap;

/// How often joining is tried, and how often a node renews, in milliseconds.
const RETRY_MS: u64 = 400;

impl World {
    pub(super) fn wake_member(&mut self, id: NodeId) {
        let clock_ms = self.clock_ms(id);
        let Some(running) = &mut self.node(id).running else { return };
        let late = running.asks.iter().filter(|(_, asked)| clock_ms > asked.until_ms);
        for number in late.map(|(number, _)| *number).collect::<Vec<_>>() {
            let Some(running) = &mut self.node(id).running else { return };
            match running.asks.remove(&number) {
                Some(Asked { purpose, again: Some(command), .. }) => {
                    self.ask_with(id, purpose, command, None)
                }
                Some(asked) => self.told(id, asked.purpose, None),
                None => {}
            }
        }
        let incarnation = self.node(id).incarnation;
        let Some(running) = &mut self.node(id).running else { return };
        let is_asked = |purpose: Purpose| running.asks.values().any(|asked| asked.purpose == purpose);
        match running.stage {
            Stage::Joining | Stage::Reporting if clock_ms >= running.retry_ms => self.join(id),
            Stage::Up if clock_ms >= running.beat_ms => {
                running.beat_ms = clock_ms + LEASE_MS / 3;
                let command = Command::Heartbeat { node: id, incarnation, used_bytes: 0 };
                self.ask_directory(id, Purpose::Beat { sent_ms: clock_ms }, command);
            }
            _ if clock_ms < running.copies.quiet_until_ms => {}
            _ if running.has_joined && running.table.is_none() && !is_asked(Purpose::Layout) => {
                let object = self.object;
                self.ask_directory(id, Purpose::Layout, Command::PageHomes { object, after: None });
            }
            _ => {}
        }
    }

    pub(super) fn join(&mut self, id: NodeId) {
        let clock_ms = self.clock_ms(id);
        let command = self.join_command(id);
        let Some(running) = &mut self.node(id).running else { return };
        (running.stage, running.retry_ms) = (Stage::Joining, clock_ms + RETRY_MS);
        running.asks.retain(|_, asked| !matches!(asked.purpose, Purpose::Join | Purpose::Report));
        self.ask_directory(id, Purpose::Join, command);
    }

    pub(super) fn join_command(&mut self, node: NodeId) -> Command {
        let incarnation = self.node(node).incarnation;
        let capacity_bytes = self.capacity_pages * PAGE_BYTES;
        let address = format!("host-{}:7400", node.0);
        Command::Join { name: None, node, rack: rack_of(node), address, capacity_bytes, incarnation }
    }

    fn report_held(&mut self, id: NodeId) {
        let (clock_ms, object) = (self.clock_ms(id), self.object);
        let (incarnation, part) = (self.node(id).incarnation, self.node(id).part);
        let objects = part.map(|epoch| Held { object, epoch, digest: None }).into_iter().collect();
        let Some(running) = &mut self.node(id).running else { return };
        (running.stage, running.retry_ms) = (Stage::Reporting, clock_ms + RETRY_MS);
        let command =
            Command::NodeObjects { node: id, incarnation, after: ObjectId(0), objects, more: false };
        self.ask_directory(id, Purpose::Report, command);
    }

    /// The directory has answered a question, or it has not in time.
    pub(super) fn told(&mut self, id: NodeId, purpose: Purpose, told: Told) {
        if matches!(
            told,
            Some(Err(DirectoryError::StaleIncarnation { .. }
                | DirectoryError::LeaseExpired { .. }
                | DirectoryError::MoveOver { .. }))
        ) {
            self.report.fenced += 1;
        }
        match purpose {
            Purpose::Join => self.joined(id, told),
            Purpose::Report => self.reported(id, told),
            Purpose::Beat { sent_ms } => self.beaten(id, sent_ms, told),
            Purpose::Layout => self.laid_out(id, told),
            Purpose::Begin(page) => self.begun(id, page, told),
            Purpose::Commit(page, epoch) => self.committed(id, page, epoch, told),
            Purpose::End(page, epoch) => self.ended(id, page, epoch, told),
            Purpose::Settle(page, epoch) => self.settle(id, page, epoch, told),
            Purpose::Find(page) => self.found(id, page, told),
        }
    }

    fn joined(&mut self, id: NodeId, told: Told) {
        match told {
            Some(Ok(Reply::Joined { .. })) if self.reach(id, None, "joined") => self.report_held(id),
            Some(Err(DirectoryError::StaleIncarnation { known, .. })) => {
                self.node(id).incarnation = known + 1;
                self.join(id);
            }
            Some(Err(DirectoryError::LeaseExpired { .. })) => {
                self.node(id).incarnation += 1;
                self.join(id);
            }
            _ => {}
        }
    }

    fn reported(&mut self, id: NodeId, told: Told) {
        let Some(Ok(Reply::Reconciled { delete, .. })) = told else { return };
        let part = self.node(id).part;
        if delete.iter().any(|(_, epoch)| Some(*epoch) == part) {
            self.drop_part(id);
        }
        let clock_ms = self.clock_ms(id);
        let Some(running) = &mut self.node(id).running else { return };
        (running.stage, running.has_joined, running.beat_ms) = (Stage::Up, true, clock_ms);
    }

    /// The directory does not know the part: its pages are nobody's.
    fn drop_part(&mut self, id: NodeId) {
        let lost: Vec<_> = self.node(id).memory.keys().copied().collect();
        self.note(|| format!("node {} drops its part with pages {lost:?}", id.0));
        for page in lost {
            if let Err(text) = self.may_go(id, page) {
                self.fail(text);
            }
        }
        let node = self.node(id);
        node.part = None;
        node.memory.clear();
        node.copied.clear();
        node.copies_until_ms = 0;
        if let Some(running) = &mut node.running {
            running.copies.forget_part();
            running.table = None;
        }
    }

    fn beaten(&mut self, id: NodeId, sent_ms: u64, told: Told) {
        let Some(running) = &mut self.node(id).running else { return };
        match told {
            Some(Ok(Reply::Beat { lease_ms, .. })) => {
                // An eighth is left to clocks that run at different speeds.
                running.lease_until_ms = running.lease_until_ms.max(sent_ms + lease_ms - lease_ms / 8);
            }
            Some(Err(_)) if running.stage == Stage::Up => {
                self.node(id).incarnation += 1;
                self.join(id);
            }
            _ => {}
        }
    }

    /// Learns of the region, and makes the part have exactly the pages that lie here.
    fn laid_out(&mut self, id: NodeId, told: Told) {
        let Some(Ok(Reply::Pages { base, parts, moved, .. })) = told else { return };
        if self.node(id).table().is_some() {
            return;
        }
        let numbers: Vec<_> = (0..PAGES).map(|page| self.number(page)).collect();
        let own_part = self.node(id).part;
        let is_ours = parts.iter().any(|(home, _)| home.node == id && Some(home.epoch) == own_part);
        let mut words = [Word::Unknown; PAGES];
        for (word, number) in words.iter_mut().zip(&numbers) {
            let moved =
                moved.iter().find(|moved| moved.page == *number).map(|moved| (moved.node, moved.epoch));
            let based = hinterland_directory::spread(*number, base.len()).map(|place| base[place]);
            let Some((node, epoch)) = moved.or(based) else { continue };
            let is_there = parts.iter().any(|(home, _)| home.node == node && home.epoch <= epoch);
            match (is_there, node == id) {
                (true, true) if is_ours => *word = Word::Here(epoch),
                (true, false) => *word = Word::At(node),
                _ => {}
            }
        }
        self.settle_pages(id, words);
    }

    fn settle_pages(&mut self, id: NodeId, words: [Word; PAGES]) {
        let held: Vec<_> = self.node(id).memory.keys().copied().collect();
        for page in held.into_iter().filter(|page| !matches!(words[*page], Word::Here(_))) {
            if let Err(text) = self.may_go(id, page) {
                self.fail(text);
            }
            self.node(id).memory.remove(&page);
        }
        for page in (0..PAGES).filter(|page| matches!(words[*page], Word::Here(_))) {
            if !self.node(id).memory.contains_key(&page) {
                self.fail(format!("node {} has page {page}, whose memory is gone", id.0));
            }
        }
        if let Some(running) = &mut self.node(id).running {
            running.table = Some(Table { words, moves: BTreeMap::new() });
        }
        // No copy of an earlier life counts any more.
        self.node(id).has_shared = false;
        self.reach(id, None, "pages-found");
    }

    /// A broken life serves what it finds in its memory, as if nobody could have taken it meanwhile.
    pub(super) fn serve_early(&mut self, id: NodeId) {
        if self.broken != Some(BrokenMoveRule::ServesBeforeJoin) {
            return;
        }
        let mut words = [Word::Unknown; PAGES];
        for page in self.node(id).memory.keys() {
            words[*page] = Word::Here(Epoch(0));
        }
        if let Some(running) = &mut self.node(id).running {
            running.table = Some(Table { words, moves: BTreeMap::new() });
        }
    }

    /// Whether the node believes that the directory keeps its place.
    pub(super) fn holds_lease(&mut self, id: NodeId) -> bool {
        let (clock_ms, is_embedded) = (self.clock_ms(id), self.directory_at == Some(id));
        let believes = self.broken == Some(BrokenMoveRule::BelievesItsLease);
        let Some(running) = &self.node(id).running else { return false };
        is_embedded || believes || clock_ms < running.lease_until_ms
    }
}
