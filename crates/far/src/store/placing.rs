//! Which back ends take content: those that will be done first, in proportion to their speed.

use super::copy::{Kept, Places};
use super::member::{Held, Life, Member};
use super::stores::Stores;
use super::{Place, StoreError};
use crate::words::say;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

/// How far a back end may be ahead of its share, or behind it, in contents: more, and threads would wait for one back end while
/// another is idle.
const SHARE_MAX: f64 = 2.0;

/// Content to be put, and where it is already.
pub(super) struct Placing<'content> {
    pub(super) content: &'content [u8],
    pub(super) places: Held,
    /// Why it is in fewer places than it should be.
    pub(super) refusal: Option<StoreError>,
}

impl<'content> Placing<'content> {
    pub(super) const fn new(content: &'content [u8], places: Held) -> Self {
        Self { content, places, refusal: None }
    }

    fn is_in(&self, member: &Arc<Member>) -> bool {
        self.places.iter().any(|(other, _)| Arc::ptr_eq(other, member))
    }
}

impl Stores {
    /// What new content is kept in: these places, or this process if no back end took it.
    pub(super) fn kept(&self, at: Held, content: &[u8], refusal: Option<&StoreError>) -> Places {
        let mut places = Places { at, ..Places::default() };
        if places.at.is_empty() {
            places.kept = Kept::Stranded(content.into());
            // Relaxed: a limit, which guards no other memory.
            self.stranded_bytes.fetch_add(content.len() as u64, Ordering::Relaxed);
        } else if let Some(refusal) = refusal {
            self.say_fewer(refusal);
        }
        places
    }

    /// Puts content into back ends that do not have it, until it is in as many as were asked for.
    pub(super) fn place(self: &Arc<Self>, placing: &mut Placing<'_>) {
        let Placing { content, places, refusal } = placing;
        let members = self.in_use();
        let mut left: Vec<&Arc<Member>> = members.iter().collect();
        left.retain(|member| places.iter().all(|(other, _)| !Arc::ptr_eq(other, member)));
        while !self.is_enough(places)
            && let Some(index) = self.choose(&left, content.len())
        {
            let member = left.swap_remove(index);
            match member.put(content, Life::Active) {
                Ok(place) => places.push((Arc::clone(member), place)),
                Err(error) => {
                    self.give_up(member, &error);
                    *refusal = Some(error);
                }
            }
        }
        if places.is_empty() {
            // Better in a back end that has failed before than in nobody's.
            for member in left.iter().filter(|member| member.life() == Life::Failed && member.is_probed()) {
                member.meter.begin(content.len(), Instant::now());
                if let Ok(place) = member.put(content, Life::Failed) {
                    places.push((Arc::clone(member), place));
                    break;
                }
            }
        }
        *refusal =
            if self.is_enough(places) { None } else { refusal.take().or_else(|| Some(self.too_few())) };
    }

    /// Puts several contents, as [`place`](Self::place) does each; together where they all can go to the same back end.
    pub(super) fn place_all(self: &Arc<Self>, placings: &mut [Placing<'_>]) {
        let members = self.in_use();
        let mut left: Vec<&Arc<Member>> = members.iter().collect();
        left.retain(|member| placings.iter().all(|placing| !placing.is_in(member)));
        while placings.len() > 1 {
            let mut short: Vec<&mut Placing<'_>> =
                placings.iter_mut().filter(|placing| !self.is_enough(&placing.places)).collect();
            let bytes = short.iter().map(|placing| placing.content.len()).sum();
            let Some(index) = (!short.is_empty()).then(|| self.choose(&left, bytes)).flatten() else { break };
            let member = left.swap_remove(index);
            let contents: Vec<&[u8]> = short.iter().map(|placing| placing.content).collect();
            let results = member.put_all(&contents, Life::Active);
            for (placing, result) in short.iter_mut().zip(results) {
                match result {
                    Ok(place) => placing.places.push((Arc::clone(member), place)),
                    Err(error) => {
                        self.give_up(member, &error);
                        placing.refusal = Some(error);
                    }
                }
            }
        }
        for placing in placings {
            if self.is_enough(&placing.places) {
                // By another one than the one that refused.
                placing.refusal = None;
            } else {
                // One alone, what nobody took with the others, and what is in different back ends already.
                self.place(placing);
            }
        }
    }

    /// The back end that shall take content next: of those with room, the one that will be done first, where whoever is behind its
    /// share counts as quicker. Alone, content is so spread in proportion to speed; at once, nobody waits for the slowest.
    fn choose(&self, members: &[&Arc<Member>], bytes: usize) -> Option<usize> {
        let now = Instant::now();
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        let active = || members.iter().enumerate().filter(|(_, member)| member.life() == Life::Active);
        let speeds: Vec<f64> = members.iter().map(|member| member.meter.speed(now)).collect();
        let key = |member: &Arc<Member>| Arc::as_ptr(member) as usize;
        let due = |index: usize| {
            let member = members[index];
            let ahead = shares.get(&key(member)).copied().unwrap_or(0.0);
            let queue = member.meter.in_flight_bytes() as f64;
            (member.is_full(), (queue + bytes as f64 + ahead) / speeds[index])
        };
        let chosen = active()
            .map(|(index, _)| (due(index), index))
            .min_by(|((full, due), _), ((other_full, other), _)| {
                full.cmp(other_full).then(due.total_cmp(other))
            })
            .map(|(_, index)| index)?;
        let sum: f64 = active().map(|(index, _)| speeds[index]).sum();
        for (index, member) in active() {
            let share = bytes as f64 * speeds[index] / sum;
            let ahead = shares.entry(key(member)).or_default();
            *ahead += if index == chosen { bytes as f64 - share } else { -share };
            *ahead = ahead.clamp(-SHARE_MAX * bytes as f64, SHARE_MAX * bytes as f64);
        }
        members[chosen].meter.begin(bytes, now);
        Some(chosen)
    }

    /// Says once that content has fewer copies than were asked for.
    pub(super) fn say_fewer(&self, refusal: &StoreError) {
        // Relaxed: guards nothing but a sentence.
        if !self.has_said_fewer.swap(true, Ordering::Relaxed) {
            say(format_args!("far memory keeps fewer copies than were asked for: {refusal}"));
        }
    }

    fn too_few(&self) -> StoreError {
        StoreError::Failed {
            name: "far memory".to_owned(),
            reason: format!("fewer than {} back ends are in use and have room", self.copies()),
        }
    }

    /// Whether content in these places needs no other one.
    pub(super) fn is_enough(&self, places: &[(Arc<Member>, Place)]) -> bool {
        places.iter().filter(|(member, _)| member.life() == Life::Active).count() >= self.copies()
    }

    /// Whether a back end may have room for content that is in these places.
    pub(super) fn has_room_beside(&self, places: &[(Arc<Member>, Place)]) -> bool {
        self.in_use().iter().any(|member| {
            let is_other = places.iter().all(|(other, _)| !Arc::ptr_eq(other, member));
            is_other && member.life() == Life::Active && !member.is_full()
        })
    }
}
