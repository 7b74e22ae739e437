//! Copies that other nodes have of pages of this one: whom they were given, and how they are taken back before a write.
//!
//! A page of which somebody has a copy is *shared*: it is read as ever, and written only after every copy was taken back. A node
//! that does not answer counts its copies as void by its own clock when a lease has passed since it last heard from here; so the write
//! waits for that at the most. What a node was given stands in this node's memory alone: the next life of it serves nothing for one
//! lease.

use crate::core::Core;
use crate::fault_point;
use crate::refused::{Refused, errno};
use crate::regions::{Region, Regions};
use hinterland_os::clock::monotonic_ns;
use hinterland_proto::checksum::crc32c;
use hinterland_proto::control::PeerRequest;
use hinterland_types::limits::PAGE_BYTES;
use hinterland_types::{ByteRange, NodeId};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long copies count from the moment at which their home last heard of the node that has them.
pub const LEASE: Duration = Duration::from_secs(2);
/// How often somebody who waits for a lease, or for another who takes copies back, looks again.
const RECALL_PAUSE: Duration = Duration::from_millis(1);
/// The file that says that a life of the node has given copies away.
const MARKER: &str = "pages-shared";

/// The nodes that have copies of pages of this one.
pub struct Readers {
    nodes: Mutex<HashMap<NodeId, Reader>>,
    terms: AtomicU64,
    marker: PathBuf,
    is_marked: AtomicBool,
    /// Until when copies of an earlier life may count.
    quiet_until: Option<Instant>,
    /// Copies that were taken back.
    pub(super) recalled: AtomicU64,
}

#[derive(Clone)]
struct Reader {
    term: u64,
    heard: Instant,
    address: String,
    /// It did not answer: nothing lengthens its lease, until that is over.
    is_void: bool,
}

/// Whom copies of the pages of one region were given.
#[derive(Default)]
pub struct Shares(Mutex<HashMap<u32, Share>>);

#[derive(Default)]
struct Share {
    nodes: Vec<NodeId>,
    is_recalled: bool,
    /// A write was refused, by somebody who may not know how to have copies taken back.
    is_wanted: bool,
}

impl Shares {
    /// Notes that somebody wants to write a page.
    pub(super) fn want(&self, index: u32) {
        if let Some(share) = self.lock().get_mut(&index) {
            share.is_wanted = true;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Share>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Readers {
    /// Nobody has a copy, but those whom an earlier life gave one.
    pub fn new(folder: &Path) -> Self {
        let marker = folder.join(MARKER);
        Self {
            nodes: Mutex::default(),
            // Another life must not use the terms of this one while they count.
            terms: AtomicU64::new(monotonic_ns()),
            quiet_until: marker.exists().then(|| Instant::now() + LEASE),
            marker,
            is_marked: AtomicBool::new(false),
            recalled: AtomicU64::new(0),
        }
    }

    /// Waits until no copy counts that an earlier life has given.
    pub fn wait_for_earlier(&self) {
        if let Some(until) = self.quiet_until {
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
            // Left behind it costs the next life a lease.
            let _ = fs::remove_file(&self.marker);
        }
    }

    /// Says, for the next life, that copies are given away.
    fn mark(&self) -> Result<(), Refused> {
        if !self.is_marked.load(Ordering::Acquire) {
            let written = fs::File::create(&self.marker).and_then(|file| file.sync_all());
            written.map_err(|error| {
                Refused::new(errno::EIO, format!("noting that pages are shared: {error}"))
            })?;
            self.is_marked.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// A node is about to get a copy; returns the term.
    fn note(&self, node: NodeId, address: &str) -> Result<u64, Refused> {
        let mut nodes = self.lock();
        let term = match nodes.get(&node) {
            Some(reader) if reader.heard.elapsed() < LEASE && reader.is_void => {
                return Err(Refused::new(
                    errno::EAGAIN,
                    "copies of before are not over yet (hint: ask again)",
                ));
            }
            Some(reader) if reader.heard.elapsed() < LEASE => reader.term,
            // Relaxed: all that counts is that no number is given twice.
            _ => self.terms.fetch_add(1, Ordering::Relaxed),
        };
        let reader = Reader { term, heard: Instant::now(), address: address.to_owned(), is_void: false };
        nodes.insert(node, reader);
        Ok(term)
    }

    /// A node says that it still has copies.
    ///
    /// # Errors
    /// [`Refused`] with `ENOENT` if they do not count any more.
    pub fn keep(&self, node: NodeId, term: u64) -> Result<(), Refused> {
        let mut nodes = self.lock();
        let known = nodes.get_mut(&node);
        let known =
            known.filter(|reader| reader.term == term && !reader.is_void && reader.heard.elapsed() < LEASE);
        let reader =
            known.ok_or_else(|| Refused::new(errno::ENOENT, "these copies do not count any more"))?;
        reader.heard = Instant::now();
        Ok(())
    }

    fn find(&self, node: NodeId) -> Option<Reader> {
        self.lock().get(&node).cloned()
    }

    fn make_void(&self, node: NodeId, term: u64) {
        if let Some(reader) = self.lock().get_mut(&node).filter(|reader| reader.term == term) {
            reader.is_void = true;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, Reader>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Regions {
    /// Lets another node have a copy of a page; returns the checksum of its bytes, and the term of the copy.
    ///
    /// # Errors
    /// [`Refused`]; then the node has none.
    pub fn share(
        &self,
        region: &Arc<Region>,
        index: u32,
        node: NodeId,
        address: &str,
    ) -> Result<(u32, u64), Refused> {
        if !self.gives_copies() {
            let text = "this node gives no copies of pages (hint: start it with --hot-share on, on a kernel with membarrier)";
            return Err(Refused::new(errno::ENOTSUP, text));
        }
        let page = region.page(index).ok_or_else(|| Refused::new(errno::EINVAL, "there is no such page"))?;
        let term = {
            let _freezing = region.moves.freezing.lock().unwrap_or_else(PoisonError::into_inner);
            let word = region.word(index);
            if region.is_moving(index) || !word.is_fit(false) {
                return Err(Refused::new(errno::EAGAIN, "the page is not here, or is being moved"));
            }
            if region.is_pinned()? {
                let text = "a program has the region mapped by plain pointers (hint: it is copied when no program has)";
                return Err(Refused::new(errno::EBUSY, text));
            }
            self.readers.mark()?;
            if !word.is_shared() {
                // Whoever writes is let finish; who begins finds the page shared.
                region.set_word(index, word.moving());
                fault_point::reach("home-page-hidden");
                if !self.wait_until_left(region, index, page) {
                    region.set_word(index, word);
                    return Err(Refused::new(errno::EBUSY, "a program stays in the page"));
                }
            }
            let given = self.give(region, index, node, address);
            region.set_word(index, if given.is_ok() { word.shared() } else { word });
            given?
        };
        fault_point::reach("home-page-shared");
        let offset = u64::from(index) * PAGE_BYTES;
        let range = ByteRange::new(offset, PAGE_BYTES.min(region.bytes - offset))
            .map_err(|error| Refused::new(errno::EINVAL, error.to_string()))?;
        // Should the page be taken back meanwhile, the node is told so, and drops what it reads.
        let bytes = region.frozen_slice(range)?;
        Ok((crc32c(&bytes.to_vec()), term))
    }

    /// Notes that a node has a copy, unless all are being taken back.
    fn give(&self, region: &Region, index: u32, node: NodeId, address: &str) -> Result<u64, Refused> {
        let mut shares = region.shares.lock();
        if shares.get(&index).is_some_and(|share| share.is_recalled) {
            return Err(Refused::new(errno::EAGAIN, "the page is about to be written"));
        }
        let term = self.readers.note(node, address)?;
        let share = shares.entry(index).or_default();
        if !share.nodes.contains(&node) {
            share.nodes.push(node);
        }
        Ok(term)
    }

    /// Takes back every copy of a page, so that it can be written. When it returns nobody reads a copy any more.
    ///
    /// # Errors
    /// None today; [`Refused`] so that callers go on with what a refusal means.
    pub fn recall(&self, core: &Core, region: &Arc<Region>, index: u32) -> Result<(), Refused> {
        loop {
            let nodes = {
                let mut shares = region.shares.lock();
                match shares.get_mut(&index) {
                    None => return Ok(()),
                    Some(share) if share.is_recalled => None,
                    Some(share) => {
                        share.is_recalled = true;
                        Some(share.nodes.clone())
                    }
                }
            };
            let Some(nodes) = nodes else {
                // Another thread is at it, for a lease at the most.
                std::thread::sleep(RECALL_PAUSE);
                continue;
            };
            fault_point::reach("home-recall-begun");
            nodes.iter().for_each(|node| self.recall_from(core, region, index, *node));
            let _freezing = region.moves.freezing.lock().unwrap_or_else(PoisonError::into_inner);
            let word = region.word(index);
            if word.is_shared() {
                region.set_word(index, word.unshared());
            }
            region.shares.lock().remove(&index);
            // Relaxed: a counter that nothing is ordered by.
            self.readers.recalled.fetch_add(nodes.len() as u64, Ordering::Relaxed);
            fault_point::reach("home-recalled");
            return Ok(());
        }
    }

    /// Has a node drop its copy, or waits until it does not count any more.
    fn recall_from(&self, core: &Core, region: &Region, index: u32, node: NodeId) {
        let Some(reader) = self.readers.find(node) else { return };
        let left = LEASE.saturating_sub(reader.heard.elapsed());
        if !reader.is_void && !left.is_zero() {
            let request = PeerRequest::PageUnshare { object: region.object, index };
            match core.peers.call_within(&reader.address, &request, left) {
                Ok(_) => return,
                Err(refused) => {
                    tracing::debug!(%refused, "a copy of page {index} of {} ends with its lease", region.name)
                }
            }
        }
        self.readers.make_void(node, reader.term);
        // Its lease may have been lengthened until just before; a later term has no copy of this page.
        while let Some(now) = self.readers.find(node).filter(|now| now.term == reader.term)
            && now.heard.elapsed() < LEASE
        {
            std::thread::sleep(RECALL_PAUSE);
        }
    }

    /// Takes back the copies of all pages of a region.
    ///
    /// # Errors
    /// As [`recall`](Self::recall).
    pub fn recall_all(&self, core: &Core, region: &Arc<Region>) -> Result<(), Refused> {
        let shared: Vec<u32> = region.shares.lock().keys().copied().collect();
        shared.into_iter().try_for_each(|index| self.recall(core, region, index))
    }

    /// Takes back copies of pages of which a write was refused. Called every now and then.
    pub fn recall_wanted(&self, core: &Core) {
        for region in self.all() {
            let wanted = region
                .shares
                .lock()
                .iter()
                .filter(|(_, share)| share.is_wanted)
                .map(|(index, _)| *index)
                .collect::<Vec<u32>>();
            for index in wanted {
                if let Err(refused) = self.recall(core, &region, index) {
                    tracing::debug!(%refused, "copies of a page are not taken back");
                }
            }
        }
    }

    /// Somebody on this host wants to write a page of which there are copies, here or elsewhere.
    ///
    /// # Errors
    /// As [`recall`](Self::recall); a home that is not reached is found out about by who looks where the page lies.
    pub fn before_write(&self, core: &Core, region: &Arc<Region>, index: u32) -> Result<(), Refused> {
        let word = region.word(index);
        if word.is_held() {
            return self.recall(core, region, index);
        }
        if let Some(home) = word.home().and_then(|place| region.homes().get(place).cloned()) {
            let request = PeerRequest::PageWrite { object: region.object, index };
            if let Err(refused) = core.peers.call_within(&home.address, &request, 2 * LEASE) {
                tracing::debug!(%refused, "the home of a page was not told that it will be written");
            }
        }
        Ok(())
    }

    /// Copies of pages that were taken back from other nodes.
    pub fn recalled(&self) -> u64 {
        // Relaxed: a counter that nothing is ordered by.
        self.readers.recalled.load(Ordering::Relaxed)
    }
}
