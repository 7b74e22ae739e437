//! Reads of many ranges: what is on this host is copied at once, the rest is sorted by its home and fetched in as few operations as
//! it fits in.

use super::{Attempt, Buffer, Piece, RegionPages, is_unsettled, pieces, runs};
use crate::{Pool, PoolError};
use hinterland_fabric::{Destination, Endpoint};
use hinterland_proto::control::Opened;
use hinterland_types::ByteRange;
use std::collections::BTreeMap;
use std::io::IoSliceMut;

/// How many refusals of one home are answered with two halves each: enough to find three pages that have moved among a thousand. Where more
/// have moved, most messages would be refused.
const REFUSALS_MAX: u32 = 32;

/// What of one read lies in one page, and where its bytes go.
pub(crate) struct Load<'a> {
    /// Which of many reads it belongs to.
    pub(crate) number: usize,
    piece: Piece,
    into: &'a mut [u8],
}

/// Loads by the place of their home in the region's list of homes.
pub(crate) type LoadsByHome<'a> = BTreeMap<usize, Vec<Load<'a>>>;

impl RegionPages {
    /// Copies what of a range is on this host, and puts the rest with the loads of its home. False if that is to be read by itself,
    /// because a page is on the move or for an error.
    pub(crate) fn read_or_defer<'a>(
        &self,
        (pool, opened): (&Pool, &Opened),
        number: usize,
        offset: u64,
        mut into: &'a mut [u8],
        elsewhere: &mut LoadsByHome<'a>,
    ) -> bool {
        let is_sound =
            self.check_process().is_ok() && ByteRange::within(offset, into.len() as u64, self.bytes).is_ok();
        is_sound
            && pieces(offset, into.len()).into_iter().all(|piece| {
                let (now, later) = std::mem::take(&mut into).split_at_mut(piece.bytes);
                into = later;
                let piece = Piece { done: 0, ..piece };
                match self.here(pool, opened, piece, &mut Buffer::Into(now)) {
                    Ok(Attempt::Done(())) => true,
                    Ok(Attempt::At(home)) => {
                        elsewhere.entry(home).or_default().push(Load { number, piece, into: now });
                        true
                    }
                    Ok(Attempt::Unsettled) | Err(_) => false,
                }
            })
    }

    /// Tells the node of accesses, and puts loads in the order of their pages.
    pub(crate) fn prepare(&self, loads: &mut [Load<'_>]) {
        loads.sort_by_key(|load| load.piece.offset);
        let Some(slots) = &self.slots else { return };
        for of_page in loads.chunk_by(|one, next| one.piece.index == next.piece.index) {
            // A slot keeps few samples until its node has read them: one for each page is enough.
            let weight = u16::try_from(of_page.len()).unwrap_or(u16::MAX);
            if let Some(page) = self.page(of_page[0].piece.index) {
                slots.with(|slot| slot.sample(page, false, weight));
            }
        }
    }

    /// Makes loads of one home, which are in the order of their pages, in one operation. Returns the numbers of the reads that it did not
    /// do: those are to be made by themselves.
    pub(crate) fn fetch(
        &self,
        (pool, opened): (&Pool, &Opened),
        home: usize,
        loads: &mut [Load<'_>],
    ) -> Vec<usize> {
        self.fetch_or_halve((pool, opened), home, loads, &mut 0)
    }

    /// A home refuses all of an operation if one of its pages is not there: the others are found by halving.
    fn fetch_or_halve(
        &self,
        (pool, opened): (&Pool, &Opened),
        home: usize,
        loads: &mut [Load<'_>],
        refusals: &mut u32,
    ) -> Vec<usize> {
        let Err(error) = self.fetch_once((pool, opened), home, loads) else { return Vec::new() };
        *refusals += 1;
        let pages = [loads.first(), loads.last()].map(|load| load.map(|load| load.piece.index));
        if !is_unsettled(&error) || pages[0] == pages[1] || *refusals > REFUSALS_MAX {
            return loads.iter().map(|load| load.number).collect();
        }
        let (front, back) = loads.split_at_mut(loads.len() / 2);
        let mut left = self.fetch_or_halve((pool, opened), home, front, refusals);
        left.extend(self.fetch_or_halve((pool, opened), home, back, refusals));
        left
    }

    fn fetch_once(
        &self,
        (pool, opened): (&Pool, &Opened),
        home: usize,
        loads: &mut [Load<'_>],
    ) -> Result<(), PoolError> {
        let attached = self.attach(pool, opened, home)?;
        let runs = runs(loads.iter().map(|load| load.piece))?;
        let mut parts: Vec<_> = loads.iter_mut().map(|load| IoSliceMut::new(load.into)).collect();
        let done = attached.endpoint.read_to(attached.handle, &runs, Destination::scattered(&mut parts));
        done.map_err(|error| self.failed(pool, &attached, error))
    }
}
