//! Copies of pages for reading: `share`, `recall`, `keep` of `node`'s `regions/sharing.rs` at the home, `copy_page`, `give_back`,
//! `tend_copies` of `regions/copies.rs` at the reader, one message at a time.

use super::BrokenMoveRule;
use super::home::FREEZE_WAIT_MS;
use super::node::{Content, Letter, Word, sum_of};
use super::world::{CALL_MS, WORDS, World};
use hinterland_types::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// How long copies count from the moment at which their home last heard of the node that has them, in milliseconds.
const COPY_LEASE_MS: u64 = 2000;
/// How long they count for the node itself, from the moment at which it asked.
const COUNTS_MS: u64 = COPY_LEASE_MS / 8 * 7;
/// How often homes are told that their copies are still read.
const KEEP_EVERY_MS: u64 = COPY_LEASE_MS / 5;

/// What a life of a node knows of copies.
#[derive(Default)]
pub(super) struct Copies {
    /// As a home: the nodes that were given copies, and the pages.
    readers: BTreeMap<NodeId, Reader>,
    shares: BTreeMap<usize, Share>,
    /// Until when copies of an earlier life may count: nothing is served before.
    pub quiet_until_ms: u64,
    /// As a reader: the homes, and the pages.
    sources: BTreeMap<NodeId, Source>,
    pages: BTreeMap<usize, PageCopy>,
    /// Copies that are wanted back and that a thread is in.
    wanted: Vec<WantedBack>,
    kept_ms: u64,
}

/// A home that waits for a copy.
struct WantedBack {
    home: NodeId,
    call: u64,
    page: usize,
    until_ms: u64,
}

/// A node that has copies of pages of this one.
#[derive(Clone, Copy)]
struct Reader {
    term: u64,
    heard_ms: u64,
    is_void: bool,
}

/// A page of which others have copies.
#[derive(Default)]
struct Share {
    nodes: BTreeSet<NodeId>,
    /// Whom the copies are being taken back from.
    recall: Option<BTreeMap<NodeId, Recalled>>,
}

#[derive(Clone, Copy)]
struct Recalled {
    call: u64,
    term: u64,
    /// Until when the node is waited for to say so; after that its lease is.
    until_ms: u64,
}

/// A home of which this node has copies.
#[derive(Clone, Copy)]
struct Source {
    term: u64,
    until_ms: u64,
}

#[derive(Clone, Copy)]
struct PageCopy {
    home: NodeId,
    term: u64,
    stage: Stage,
    call: u64,
    asked_ms: u64,
    until_ms: u64,
    sum: u64,
    content: Content,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Coming,
    /// On its way, and taken back.
    Void,
    Here,
    Leaving {
        until_ms: u64,
    },
}

impl Copies {
    /// Whether other nodes have copies of a page that is here.
    fn is_shared(&self, page: usize) -> bool {
        self.shares.contains_key(&page)
    }

    /// The pages of which other nodes have copies.
    pub fn shared_pages(&self) -> BTreeSet<usize> {
        self.shares.keys().copied().collect()
    }

    /// The part is gone, and with it all that was known of its pages.
    pub fn forget_part(&mut self) {
        self.shares.clear();
        self.pages.clear();
    }

    /// Until when all copies of the region count.
    fn until_ms(&self) -> u64 {
        let until = self.pages.values().filter_map(|copy| match copy.stage {
            Stage::Coming | Stage::Void => None,
            Stage::Here => Some(self.counts_until_ms(copy)),
            Stage::Leaving { until_ms } => Some(until_ms),
        });
        until.min().unwrap_or(0)
    }

    fn counts_until_ms(&self, copy: &PageCopy) -> u64 {
        let source = self.sources.get(&copy.home).filter(|source| source.term == copy.term);
        source.map_or(0, |source| source.until_ms)
    }
}

/// The side of the home.
impl World {
    fn copies(&mut self, id: NodeId) -> Option<&mut Copies> {
        self.node(id).running.as_mut().map(|running| &mut running.copies)
    }

    /// A life begins: it serves nothing while copies may count that an earlier one has given.
    pub(super) fn be_quiet(&mut self, id: NodeId) {
        let clock_ms = self.clock_ms(id);
        let waits = self.node(id).has_shared && self.broken != Some(BrokenMoveRule::ForgetsReaders);
        if let Some(copies) = self.copies(id).filter(|_| waits) {
            copies.quiet_until_ms = clock_ms + COPY_LEASE_MS;
        }
    }

    /// Whether a write of a page has to wait until copies of it were taken back, which is begun.
    pub(super) fn must_recall(&mut self, id: NodeId, page: usize) -> bool {
        if self.broken == Some(BrokenMoveRule::WritesShared) {
            return false;
        }
        let is_shared = self.is_shared(id, page);
        if is_shared {
            self.recall(id, page);
        }
        is_shared
    }

    /// Whether other nodes have copies of a page that is here; also if the life that said so is dead.
    pub(super) fn is_shared(&mut self, id: NodeId, page: usize) -> bool {
        let node = self.node(id);
        let known = node.running.as_ref().map(|running| running.copies.is_shared(page));
        known.unwrap_or_else(|| node.stale_shares.contains(&page))
    }

    /// Another node wants a copy of a page.
    pub(super) fn share(&mut self, id: NodeId, from: NodeId, call: u64, page: usize) {
        let term = self.give(id, from, page);
        let sum = self.node(id).memory.get(&page).map(sum_of);
        let (Some(term), Some(sum)) = (term, sum) else {
            return self.post(id, from, Letter::Refused { call });
        };
        self.note(|| format!("node {} shares page {page} with node {} under {term}", id.0, from.0));
        if self.reach(id, Some(from), "home-page-shared") {
            self.post(id, from, Letter::Shared { call, sum, term });
        }
    }

    /// Notes that a node has a copy, if that can be; the term.
    fn give(&mut self, id: NodeId, to: NodeId, page: usize) -> Option<u64> {
        let (clock_ms, fresh) = (self.clock_ms(id), self.next_call());
        let node = self.node(id);
        let is_still = node.table().is_some_and(|table| !table.moves.contains_key(&page));
        let is_here = matches!(node.word(page), Word::Here(_));
        let is_used = node.is_pinned() || node.is_in_use(page);
        let copies = &mut node.running.as_mut()?.copies;
        let is_shared = copies.is_shared(page);
        if !is_still || !is_here || is_used && !is_shared {
            return None;
        }
        if copies.shares.get(&page).is_some_and(|share| share.recall.is_some()) {
            return None;
        }
        let known = copies.readers.get(&to).filter(|known| clock_ms < known.heard_ms + COPY_LEASE_MS);
        if known.is_some_and(|known| known.is_void) {
            return None;
        }
        let term = known.map_or(fresh, |known| known.term);
        copies.readers.insert(to, Reader { term, heard_ms: clock_ms, is_void: false });
        copies.shares.entry(page).or_default().nodes.insert(to);
        node.has_shared = true;
        Some(term)
    }

    /// Begins to take back every copy of a page.
    pub(super) fn recall(&mut self, id: NodeId, page: usize) {
        let clock_ms = self.clock_ms(id);
        let Some(share) = self.copies(id).and_then(|copies| copies.shares.get(&page)) else { return };
        if share.recall.is_some() {
            return;
        }
        let nodes: Vec<NodeId> = share.nodes.iter().copied().collect();
        let mut recall = BTreeMap::new();
        for node in &nodes {
            let call = self.next_call();
            let reader = self.copies(id).and_then(|copies| copies.readers.get(node).copied());
            let Some(reader) = reader else { continue };
            let until_ms = if reader.is_void { clock_ms } else { reader.heard_ms + COPY_LEASE_MS };
            recall.insert(*node, Recalled { call, term: reader.term, until_ms });
        }
        let calls: Vec<_> = recall.iter().map(|(node, recalled)| (*node, recalled.call)).collect();
        if let Some(share) = self.copies(id).and_then(|copies| copies.shares.get_mut(&page)) {
            share.recall = Some(recall);
        }
        if self.reach(id, nodes.first().copied(), "home-recall-begun") {
            for (node, call) in calls {
                self.post(id, node, Letter::Unshare { call, page });
            }
        }
    }

    /// A node has dropped its copy, or says that it cannot.
    pub(super) fn recalled(&mut self, id: NodeId, from: NodeId, call: u64, is_gone: bool) {
        let Some(copies) = self.copies(id) else { return };
        for share in copies.shares.values_mut() {
            let Some(recall) = &mut share.recall else { continue };
            match recall.get_mut(&from).filter(|recalled| recalled.call == call) {
                Some(_) if is_gone => drop(recall.remove(&from)),
                Some(recalled) => recalled.until_ms = 0,
                None => {}
            }
        }
        self.end_recalls(id);
    }

    /// Lets pages be written whose copies are gone or do not count any more.
    fn end_recalls(&mut self, id: NodeId) {
        let clock_ms = self.clock_ms(id);
        let Some(copies) = self.copies(id) else { return };
        let (readers, mut over) = (&mut copies.readers, Vec::new());
        for (page, share) in &mut copies.shares {
            let Some(recall) = &mut share.recall else { continue };
            recall.retain(|node, recalled| {
                let reader = readers.get_mut(node).filter(|reader| reader.term == recalled.term);
                let Some(reader) = reader else { return false };
                if clock_ms >= recalled.until_ms {
                    // Nothing lengthens its lease any more.
                    reader.is_void = true;
                }
                !reader.is_void || clock_ms < reader.heard_ms + COPY_LEASE_MS
            });
            if recall.is_empty() {
                over.push(*page);
            }
        }
        for page in over {
            self.note(|| format!("page {page} is shared by node {} no more", id.0));
            if let Some(copies) = self.copies(id) {
                copies.shares.remove(&page);
            }
            self.report.recalled += 1;
            if !self.reach(id, None, "home-recalled") {
                return;
            }
        }
    }

    /// A node says that it still has copies.
    pub(super) fn keep(&mut self, id: NodeId, from: NodeId, term: u64, asked_ms: u64) {
        let clock_ms = self.clock_ms(id);
        let Some(copies) = self.copies(id) else { return };
        let is_known = |reader: &&mut Reader| {
            reader.term == term && !reader.is_void && clock_ms < reader.heard_ms + COPY_LEASE_MS
        };
        let reader = copies.readers.get_mut(&from).filter(is_known);
        let is_kept = reader.map(|reader| reader.heard_ms = clock_ms).is_some();
        self.post(id, from, Letter::Kept { term, asked_ms, is_kept });
    }
}

/// The side of the reader.
impl World {
    /// Asks for a copy of a page of another node.
    pub(super) fn ask_for_copy(&mut self, id: NodeId, page: usize, home: NodeId) {
        let (clock_ms, call) = (self.clock_ms(id), self.next_call());
        let Some(table) = self.node(id).table() else { return };
        if table.moves.contains_key(&page) || table.words[page] != Word::At(home) {
            return;
        }
        let Some(copies) = self.copies(id).filter(|copies| !copies.pages.contains_key(&page)) else { return };
        let copy = PageCopy {
            home,
            term: 0,
            stage: Stage::Coming,
            call,
            asked_ms: clock_ms,
            until_ms: clock_ms + CALL_MS,
            sum: 0,
            content: [0; WORDS],
        };
        copies.pages.insert(page, copy);
        self.post(id, home, Letter::Share { call, page });
    }

    /// Whether memory of a page is used for a copy.
    pub(super) fn has_copy(&mut self, id: NodeId, page: usize) -> bool {
        self.copies(id).is_some_and(|copies| copies.pages.contains_key(&page))
    }

    /// The home has no copy to give.
    pub(super) fn copy_refused(&mut self, id: NodeId, call: u64) {
        if let Some((page, _)) = self.copy_of_call(id, call) {
            self.forget_copy(id, page);
        }
    }

    /// The copy that is waited for with a call.
    fn copy_of_call(&mut self, id: NodeId, call: u64) -> Option<(usize, &mut PageCopy)> {
        let pages = &mut self.copies(id)?.pages;
        let is_it = |copy: &PageCopy| copy.call == call && matches!(copy.stage, Stage::Coming | Stage::Void);
        pages.iter_mut().find(|(_, copy)| is_it(copy)).map(|(page, copy)| (*page, copy))
    }

    /// A copy does not come.
    fn forget_copy(&mut self, id: NodeId, page: usize) {
        if let Some(copies) = self.copies(id) {
            copies.pages.remove(&page);
        }
    }

    /// The home has noted that this node has a copy.
    pub(super) fn shared(&mut self, id: NodeId, call: u64, sum: u64, term: u64) {
        let Some((page, copy)) = self.copy_of_call(id, call) else { return };
        copy.sum = sum;
        let (home, asked_ms) = (copy.home, copy.asked_ms);
        if !self.reach(id, Some(home), "copy-granted") {
            return;
        }
        if !self.begin_term(id, home, term, asked_ms) {
            return self.forget_copy(id, page);
        }
        if let Some(copy) = self.copies(id).and_then(|copies| copies.pages.get_mut(&page)) {
            copy.term = term;
        }
        self.ask_for_word(id, page, 0);
    }

    fn ask_for_word(&mut self, id: NodeId, page: usize, word: usize) {
        let (clock_ms, call) = (self.clock_ms(id), self.next_call());
        let Some(copy) = self.copies(id).and_then(|copies| copies.pages.get_mut(&page)) else { return };
        (copy.call, copy.until_ms) = (call, clock_ms + CALL_MS);
        let home = copy.home;
        self.post(id, home, Letter::Copy { call, page, word });
    }

    /// From when copies count whose home was asked then: it may have heard of it at once.
    fn counts_from_ms(&self, id: NodeId, asked_ms: u64) -> u64 {
        match self.broken {
            Some(BrokenMoveRule::CountsFromTheAnswer) => self.clock_ms(id),
            _ => asked_ms,
        }
    }

    /// A home has answered under a term: copies of an earlier one are void. Whether none is read any more.
    fn begin_term(&mut self, id: NodeId, home: NodeId, term: u64, asked_ms: u64) -> bool {
        let asked_ms = self.counts_from_ms(id, asked_ms);
        let before = self.copies(id).and_then(|copies| copies.sources.get(&home).copied());
        if before.is_some_and(|before| before.term != term) && !self.drop_copies_of(id, home) {
            return false;
        }
        let Some(copies) = self.copies(id) else { return false };
        let known = before.filter(|before| before.term == term).map_or(0, |before| before.until_ms);
        let until_ms = known.max(asked_ms + COUNTS_MS);
        copies.sources.insert(home, Source { term, until_ms });
        true
    }

    /// A word of a page that is copied; whether it was waited for here.
    pub(super) fn copy_came(&mut self, id: NodeId, call: u64, word: usize, value: u64) -> bool {
        let Some((page, copy)) = self.copy_of_call(id, call) else { return false };
        copy.content[word] = value;
        if word + 1 < WORDS {
            self.ask_for_word(id, page, word + 1);
            return true;
        }
        let copy = *copy;
        if !self.reach(id, Some(copy.home), "copy-arrived") {
            return true;
        }
        let word = self.node(id).word(page);
        if sum_of(&copy.content) != copy.sum || copy.stage != Stage::Coming || word != Word::At(copy.home) {
            self.forget_copy(id, page);
            return true;
        }
        self.node(id).copied.insert(page, copy.content);
        if let Some(copy) = self.copies(id).and_then(|copies| copies.pages.get_mut(&page)) {
            copy.stage = Stage::Here;
        }
        self.set_until(id);
        if let Some(table) = self.node(id).table() {
            table.words[page] = Word::Copy(copy.home);
        }
        self.report.copied += 1;
        self.note(|| format!("node {} has a copy of page {page}", id.0));
        self.reach(id, Some(copy.home), "copy-shown");
        true
    }

    /// Says behind the words until when all copies count.
    fn set_until(&mut self, id: NodeId) {
        let until_ms = self.copies(id).map_or(0, |copies| copies.until_ms());
        self.node(id).copies_until_ms = until_ms;
    }

    /// The home wants a copy back.
    pub(super) fn unshare(&mut self, id: NodeId, from: NodeId, call: u64, page: usize) {
        let until_ms = self.clock_ms(id) + FREEZE_WAIT_MS;
        self.give_wanted_back(id, WantedBack { home: from, call, page, until_ms });
    }

    /// Gives a copy back, or waits for who is in it, but not for ever.
    fn give_wanted_back(&mut self, id: NodeId, wanted: WantedBack) {
        let letter = if self.give_back(id, wanted.page) {
            Letter::Unshared { call: wanted.call }
        } else if self.clock_ms(id) >= wanted.until_ms {
            Letter::Refused { call: wanted.call }
        } else {
            // Who has died meanwhile waits for nobody.
            return self.copies(id).map_or((), |copies| copies.wanted.push(wanted));
        };
        self.post(id, wanted.home, letter);
    }

    /// Lets nobody read a copy any more; whether nobody does.
    pub(super) fn give_back(&mut self, id: NodeId, page: usize) -> bool {
        self.note(|| format!("node {} is to have no copy of page {page}", id.0));
        let Some(copies) = self.copies(id) else { return false };
        let Some(mut copy) = copies.pages.get(&page).copied() else { return true };
        match copy.stage {
            Stage::Coming | Stage::Void => copy.stage = Stage::Void,
            Stage::Here => copy.stage = Stage::Leaving { until_ms: copies.counts_until_ms(&copy) },
            Stage::Leaving { .. } => {}
        }
        copies.pages.insert(page, copy);
        if copy.stage == Stage::Void {
            return true;
        }
        if let Some(table) = self.node(id).table()
            && matches!(table.words[page], Word::Copy(_))
        {
            table.words[page] = Word::At(copy.home);
        }
        if !self.reach(id, Some(copy.home), "copy-hidden") || self.node(id).is_in_use(page) {
            return false;
        }
        self.node(id).copied.remove(&page);
        self.forget_copy(id, page);
        self.set_until(id);
        self.reach(id, Some(copy.home), "copy-gone")
    }

    /// Drops all copies of pages of a node; whether nobody reads one any more.
    fn drop_copies_of(&mut self, id: NodeId, home: NodeId) -> bool {
        let Some(copies) = self.copies(id) else { return false };
        let is_theirs =
            |copy: &PageCopy| copy.home == home && !matches!(copy.stage, Stage::Coming | Stage::Void);
        let pages = copies.pages.iter().filter(|(_, copy)| is_theirs(copy));
        let pages: Vec<usize> = pages.map(|(page, _)| *page).collect();
        // All of them, also behind one that somebody reads.
        let mut is_done = true;
        for page in pages {
            is_done &= self.give_back(id, page);
        }
        is_done
    }

    /// A home has answered that copies count, or that they do not.
    pub(super) fn kept(&mut self, id: NodeId, from: NodeId, (term, asked_ms): (u64, u64), is_kept: bool) {
        let asked_ms = self.counts_from_ms(id, asked_ms);
        let Some(source) = self.copies(id).and_then(|copies| copies.sources.get_mut(&from)) else { return };
        if source.term != term {
            return;
        }
        if is_kept {
            source.until_ms = source.until_ms.max(asked_ms + COUNTS_MS);
            self.set_until(id);
        } else {
            self.drop_copies_of(id, from);
        }
    }

    /// Copies that wait for somebody, at the home and at the reader.
    pub(super) fn wake_copies(&mut self, id: NodeId) {
        let clock_ms = self.clock_ms(id);
        self.end_recalls(id);
        for wanted in self.copies(id).map(|copies| std::mem::take(&mut copies.wanted)).unwrap_or_default() {
            self.give_wanted_back(id, wanted);
        }
        let Some(copies) = self.copies(id) else { return };
        copies.pages.retain(|_, copy| {
            !matches!(copy.stage, Stage::Coming | Stage::Void) || clock_ms <= copy.until_ms
        });
        if clock_ms < copies.kept_ms + KEEP_EVERY_MS {
            return;
        }
        copies.kept_ms = clock_ms;
        let used: BTreeSet<NodeId> = copies.pages.values().map(|copy| copy.home).collect();
        copies.sources.retain(|home, _| used.contains(home));
        let sources: Vec<_> = copies.sources.iter().map(|(home, source)| (*home, *source)).collect();
        let is_leaving = |copy: &PageCopy| matches!(copy.stage, Stage::Leaving { .. });
        let leaving = copies.pages.iter().filter(|(_, copy)| is_leaving(copy));
        let leaving: Vec<usize> = leaving.map(|(page, _)| *page).collect();
        for (home, source) in sources {
            if clock_ms > source.until_ms {
                self.drop_copies_of(id, home);
            } else {
                self.post(id, home, Letter::Keep { term: source.term, asked_ms: clock_ms });
            }
        }
        for page in leaving {
            self.give_back(id, page);
        }
        if self.node(id).running.is_some() {
            self.set_until(id);
        }
    }
}
