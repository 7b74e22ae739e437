//! Content that one or more back ends have, wherever it moves.

use super::member::{Held, Life, Member};
use super::{Place, StoreError, Stores};
use hinterland_farplan::Shared;
use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

/// Content that one or more back ends have. The last holder of it frees it.
#[derive(Clone)]
pub struct Copy(pub(super) Arc<Content>);

/// Where content is. Whoever reads a place holds the lock meanwhile, so that it is freed by nobody; it is the content's own, and
/// only one who moves the content ever waits for it.
pub(super) struct Content {
    pub(super) stores: Arc<Stores>,
    /// By which the registry knows it; `None` for what nobody has.
    pub(super) number: Option<NonZeroU64>,
    places: RwLock<Places>,
    bytes: u32,
    check: u64,
}

#[derive(Default)]
pub(super) struct Places {
    pub(super) at: Held,
    pub(super) kept: Kept,
}

/// Content that is in no back end.
#[derive(Default)]
pub(super) enum Kept {
    #[default]
    Not,
    /// It is about to be put into some; this part of a buffer meanwhile.
    Pending(Arc<Vec<u8>>, Range<u32>),
    /// None took it.
    Stranded(Box<[u8]>),
}

impl Kept {
    pub(super) fn content(&self) -> Option<&[u8]> {
        match self {
            Self::Not => None,
            Self::Pending(buffer, range) => buffer.get(range.start as usize..range.end as usize),
            Self::Stranded(content) => Some(content),
        }
    }

    pub(super) const fn is_stranded(&self) -> bool {
        matches!(self, Self::Stranded(_))
    }
}

impl Shared for Copy {
    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Copy {
    /// What no other content has as long as somebody holds this one.
    pub(crate) fn key(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Whether somebody else holds it, too.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.0.bytes as usize
    }

    /// Content of so many bytes that nobody has: reading it is an error.
    pub fn lost(stores: &Arc<Stores>, bytes: usize) -> Self {
        Self(Arc::new(Content {
            stores: Arc::clone(stores),
            number: None,
            places: RwLock::default(),
            bytes: bytes as u32,
            check: 0,
        }))
    }

    /// Whether no back end took it.
    pub fn is_stranded(&self) -> bool {
        self.0.places().kept.is_stranded()
    }

    /// Whether it is still in this process, and no back end has to be asked.
    pub fn is_here(&self) -> bool {
        self.0.places().kept.content().is_some()
    }

    /// Whether whoever reads it sleeps meanwhile.
    pub fn sleeps(&self) -> bool {
        let places = self.0.places();
        places.kept.content().is_none() && places.at.first().is_some_and(|(member, _)| member.sleeps())
    }

    /// Reads it from a back end that has it whole: bytes that do not check are never returned.
    ///
    /// # Errors
    /// The last refusal if none has it.
    pub fn read(&self, content: &mut [u8]) -> Result<(), StoreError> {
        self.0.read(content)
    }
}

impl Content {
    pub(super) fn new(stores: &Arc<Stores>, number: NonZeroU64, content: &[u8], places: Places) -> Self {
        Self {
            stores: Arc::clone(stores),
            number: Some(number),
            places: RwLock::new(places),
            // At most 2 MiB.
            bytes: content.len() as u32,
            check: xxh3_64(content),
        }
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes as usize
    }

    pub(super) fn places(&self) -> RwLockReadGuard<'_, Places> {
        self.places.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn places_mut(&self) -> RwLockWriteGuard<'_, Places> {
        self.places.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn read(&self, content: &mut [u8]) -> Result<(), StoreError> {
        let places = self.places();
        if let Some(kept) = places.kept.content() {
            content.copy_from_slice(kept);
            return Ok(());
        }
        let mut refusal = None;
        for index in order(&places.at, content.len()) {
            let (member, place) = &places.at[index];
            match member.get(*place, content) {
                Ok(()) if xxh3_64(content) == self.check => {
                    member.count_got(content.len());
                    return Ok(());
                }
                Ok(()) => {
                    let name = member.name().to_owned();
                    let reason = "the bytes that came back are not those that were put".to_owned();
                    refusal = Some(StoreError::Failed { name, reason });
                }
                Err(error) => refusal = Some(error),
            }
            if let Some(refusal) = &refusal {
                self.stores.give_up(member, refusal);
            }
        }
        Err(refusal.unwrap_or_else(|| StoreError::Failed {
            name: "far memory".to_owned(),
            reason: "nobody has the content".to_owned(),
        }))
    }
}

/// Reads contents into a buffer of just their length, one behind the other, each back end asked once for all that it alone has. `None` for what
/// nobody has.
pub(super) fn read_all<'buffer>(
    contents: &[&Content],
    mut buffer: &'buffer mut [u8],
) -> Vec<Option<&'buffer [u8]>> {
    let mut parts = Vec::with_capacity(contents.len());
    for content in contents {
        let (part, rest) = buffer.split_at_mut(content.bytes());
        buffer = rest;
        parts.push(Some(part));
    }
    let places: Vec<_> = contents.iter().map(|content| content.places()).collect();
    let mut by_member: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (index, places) in places.iter().enumerate() {
        if let ([(member, _)], None) = (&places.at[..], places.kept.content()) {
            by_member.entry(Arc::as_ptr(member).addr()).or_default().push(index);
        }
    }
    let mut is_read = vec![false; contents.len()];
    for indices in by_member.values() {
        let Some((member, _)) = indices.first().and_then(|index| places[*index].at.first()) else { continue };
        let mut wanted: Vec<(Place, &mut [u8])> = indices
            .iter()
            .filter_map(|index| Some((places[*index].at.first()?.1, parts[*index].take()?)))
            .collect();
        let results = member.get_all(&mut wanted);
        for ((index, result), (_, part)) in indices.iter().zip(results).zip(wanted) {
            if result.is_ok() && xxh3_64(part) == contents[*index].check {
                member.count_got(part.len());
                is_read[*index] = true;
            }
            parts[*index] = Some(part);
        }
    }
    drop(places);
    // What was refused is asked for again, alone, so that who failed is given up; and what has several places, or none.
    let asked = parts.into_iter().zip(contents).zip(is_read).map(|((part, content), is_read)| {
        let part = part?;
        (is_read || content.read(part).is_ok()).then_some(&*part)
    });
    asked.collect()
}

/// In which order places are asked: what failed last, else who will be done first.
pub(super) fn order(places: &[(Arc<Member>, Place)], bytes: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..places.len()).collect();
    if places.len() > 1 {
        let now = Instant::now();
        let due = |index: &usize| {
            let member = &places[*index].0;
            let seconds = (member.meter.in_flight_bytes() + bytes as u64) as f64 / member.meter.speed(now);
            // Whole nanoseconds: they compare without exceptions.
            (member.life() == Life::Failed, (seconds * 1e9) as u64)
        };
        order.sort_by_cached_key(due);
    }
    order
}

impl Drop for Content {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        self.stores.forget(number.get());
        let bytes = self.bytes as usize;
        let places = self.places.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (member, place) in places.at.drain(..) {
            member.free(place, bytes);
        }
        if places.kept.is_stranded() {
            // Relaxed: a limit, which guards no other memory.
            self.stores.stranded_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Copy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = self.0.places();
        let names: Vec<&str> = places.at.iter().map(|(member, _)| member.name()).collect();
        write!(f, "Copy({} bytes in {names:?})", self.0.bytes)
    }
}
