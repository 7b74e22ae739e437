//! Reads of many addresses at once.
//!
//! A part that cannot be read together with others is read by itself, and so has the guarantees and the errors of a single read: one of
//! which a page has moved, one that crosses from one object to the next, one of a sealed object, and one that failed.

use crate::address::Entry;
use crate::region::{Load, LoadsByHome, RegionPages};
use crate::{Pool, PoolError};
use hinterland_types::{GlobalAddress, Rights};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Threads that wait for homes, with the calling one: a thread takes about as long to start as a home to answer, so that more of
/// them bring little.
const THREADS_MAX: usize = 8;

/// One of many reads failed. The buffers of all parts hold bytes of no meaning then.
#[derive(Debug, thiserror::Error)]
#[error("part {part}: {error}")]
pub struct PartFailed {
    /// The place of the part in the list, from 0.
    pub part: usize,
    /// What a read of this part alone says.
    #[source]
    pub error: PoolError,
}

/// The parts that lie in one region.
struct Share<'a> {
    entry: Arc<Entry>,
    pages: Arc<RegionPages>,
    elsewhere: LoadsByHome<'a>,
}

/// The loads of one region and one home.
struct Errand<'a> {
    entry: Arc<Entry>,
    pages: Arc<RegionPages>,
    home: usize,
    loads: Vec<Load<'a>>,
    /// Reads that are not done: all of them, until the home has answered.
    left: Vec<usize>,
}

impl Pool {
    /// Fills each buffer with the bytes at its address, as [`read`](Self::read) does for one. What this host holds is copied by loads.
    /// Parts of regions that lie on another node come in one message, which takes 1000 of them and 256 KiB; more take several, of which the
    /// next are sent before the first is answered. All nodes are asked at once. Parts may overlap, and be as many and as long as memory
    /// allows; they are not read at one moment. Parts of sealed objects in another rack, and those that cross from one object to the
    /// next, are read one by one.
    ///
    /// # Errors
    /// [`PartFailed`] with the first part that failed, and the error that [`read`](Self::read) has for it.
    ///
    /// ```no_run
    /// # use hinterland_pool::Pool;
    /// # use hinterland_types::GlobalAddress;
    /// # let pool = Pool::connect(None)?;
    /// # let places = [GlobalAddress::new(1 << 40).unwrap(); 2];
    /// let (mut first, mut second) = ([0; 64], [0; 128]);
    /// pool.read_many(&mut [(places[0], &mut first), (places[1], &mut second)])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_many(&self, parts: &mut [(GlobalAddress, &mut [u8])]) -> Result<(), PartFailed> {
        for part in self.read_together(parts) {
            let (address, into) = &mut parts[part];
            self.read(*address, into).map_err(|error| PartFailed { part, error })?;
        }
        Ok(())
    }

    /// Reads what can be read together; the places of the other parts, in order.
    fn read_together(&self, parts: &mut [(GlobalAddress, &mut [u8])]) -> Vec<usize> {
        let mut left = Vec::new();
        let mut shares: BTreeMap<u64, Share<'_>> = BTreeMap::new();
        for (number, (address, into)) in parts.iter_mut().enumerate() {
            let is_done = into.is_empty()
                || self.read_at_once(*address, into)
                || self.share(number, address.raw(), into, &mut shares);
            if !is_done {
                left.push(number);
            }
        }
        let mut errands = Vec::new();
        for share in shares.into_values() {
            self.take_in_hand(&share.entry);
            for (home, mut loads) in share.elsewhere {
                share.pages.prepare(&mut loads);
                let numbers = loads.iter().map(|load| load.number).collect();
                let (entry, pages) = (Arc::clone(&share.entry), Arc::clone(&share.pages));
                errands.push(Errand { entry, pages, home, loads, left: numbers });
            }
        }
        self.run(&mut errands);
        left.extend(errands.into_iter().flat_map(|errand| errand.left));
        // A part that crosses the end of a page is there for each of them.
        left.sort_unstable();
        left.dedup();
        left
    }

    /// Reads what of a part is on this host, and puts the rest with what is to be fetched; false if it is to be read by itself.
    fn share<'a>(
        &self,
        number: usize,
        address: u64,
        into: &'a mut [u8],
        shares: &mut BTreeMap<u64, Share<'a>>,
    ) -> bool {
        let known = shares.range(..=address).next_back().filter(|(_, share)| share.entry.covers(address));
        let first = match known {
            Some((first, _)) => *first,
            None => {
                let Ok(entry) = self.entry(address, Rights::READ) else { return false };
                let Ok(Some(pages)) = entry.object.pages().map(|pages| pages.cloned()) else { return false };
                let first = entry.first;
                if shares.contains_key(&first) {
                    // Another object has come in the place of one that has parts already.
                    return false;
                }
                shares.insert(first, Share { entry, pages, elsewhere: BTreeMap::new() });
                first
            }
        };
        let Some(share) = shares.get_mut(&first) else { return false };
        let offset = address - first;
        if into.len() as u64 > share.entry.bytes - offset {
            return false;
        }
        let opened = share.entry.object.opened();
        share.pages.read_or_defer((self, opened), number, offset, into, &mut share.elsewhere)
    }

    /// Runs all errands at once.
    fn run(&self, errands: &mut [Errand<'_>]) {
        let (own, others) = errands.split_at_mut(errands.len().div_ceil(THREADS_MAX));
        if others.is_empty() {
            return own.iter_mut().for_each(|errand| errand.run(self));
        }
        let each = others.len().div_ceil(THREADS_MAX - 1);
        std::thread::scope(|scope| {
            let mut helpers = Vec::with_capacity(THREADS_MAX - 1);
            for some in others.chunks_mut(each) {
                let help = || some.iter_mut().for_each(|errand| errand.run(self));
                // What no thread does is read part by part.
                helpers.extend(std::thread::Builder::new().spawn_scoped(scope, help));
            }
            own.iter_mut().for_each(|errand| errand.run(self));
            // As above, if one has panicked.
            helpers.into_iter().for_each(|helper| drop(helper.join()));
        });
    }
}

impl Errand<'_> {
    fn run(&mut self, pool: &Pool) {
        self.left = self.pages.fetch((pool, self.entry.object.opened()), self.home, &mut self.loads);
    }
}
