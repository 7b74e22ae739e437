//! Contexts that are made, filled and ended in any order, beside a plain account of what belongs to which.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::collections::BTreeSet;

use super::super::handle::Kind;
use super::super::hostile::mutate::{Random, rounds};
use super::super::hostile::with_honest_node;
use super::super::session::Session;
use super::{Context, Owner};
use crate::code::{INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE};

const PRIMARY: Owner = Owner::primary(0);

/// What belongs to a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Thing {
    Memory(u64),
    Stream(u32),
    Event(u32),
    Graph(u32),
    Pinned(u64),
}

impl Thing {
    /// Makes one; none if there is no memory left.
    fn make(random: &mut Random, session: &Session, owner: Owner) -> Option<Self> {
        Some(match random.below(6) {
            0 => Self::Stream(session.create_stream(owner, 0, 0).unwrap().number),
            1 => Self::Event(session.create_event(owner, 0).unwrap().number),
            2 => Self::Graph(session.add_graph(owner, owner.device).unwrap().number),
            3 => {
                // Memory of the program, which nobody looks into.
                let start = random.number() >> 20 << 12;
                session.add_pinned(owner, start, 4096, false, 0).ok()?;
                Self::Pinned(start)
            }
            4 => Self::Memory(session.allocate(owner, 1 + random.below(4096) as u64).ok()?),
            _ => Self::Memory(session.allocate(owner, (1 + random.below(3) as u64) << 20).ok()?),
        })
    }

    /// Whether it is there, as one that belongs to a context.
    fn is_there(self, session: &Session, owner: Owner) -> bool {
        match self {
            Self::Memory(start) => {
                session.range_around(start).is_some_and(|range| range.start == start && range.owner == owner)
            }
            Self::Stream(number) => session.streams.get(number).is_ok_and(|one| one.owner == owner),
            Self::Event(number) => session.events.get(number).is_ok_and(|one| one.owner == owner),
            Self::Graph(number) => session.graph(number).is_ok_and(|one| one.owner == owner),
            Self::Pinned(start) => session.pinned_owner(start) == Some(owner),
        }
    }
}

/// What a program has.
#[derive(Debug, Default)]
struct Account {
    there: Vec<(Owner, Vec<Thing>)>,
    gone: Vec<(Owner, Vec<Thing>)>,
}

impl Account {
    fn check(&self, session: &Session) {
        for (owner, things) in &self.there {
            assert_eq!(session.context(owner.context).unwrap().owner, *owner);
            for thing in things {
                assert!(thing.is_there(session, *owner), "{thing:?} of {owner:?} was lost");
            }
        }
        // What goes with one context is mapped apart from what stays.
        let granules = |things: &[Thing]| -> BTreeSet<u64> {
            let granule = |thing: &Thing| match thing {
                Thing::Memory(start) => Some(start / session.welcome.granularity),
                _ => None,
            };
            things.iter().filter_map(granule).collect()
        };
        let apart: Vec<_> = self.there.iter().map(|(_, things)| granules(things)).collect();
        let together: BTreeSet<u64> = apart.iter().flatten().copied().collect();
        assert_eq!(together.len(), apart.iter().map(BTreeSet::len).sum::<usize>(), "{:x?}", self.there);
        // An address is given again when there are no fresh ones.
        let again = |thing: &Thing| self.there.iter().any(|(_, things)| things.contains(thing));
        for (owner, things) in &self.gone {
            for thing in things.iter().filter(|thing| !again(thing)) {
                assert!(!thing.is_there(session, *owner), "{thing:?} of {owner:?} is still there");
            }
        }
    }

    /// Ends a context, or empties the primary one.
    fn end(&mut self, session: &Session, place: usize) {
        let owner = self.there[place].0;
        if owner.is_primary() {
            session.retain_primary(owner.device).unwrap();
            session.release_primary(owner.device).unwrap();
            assert!(!session.primary(owner.device).unwrap().is_active());
            self.gone.push((owner, std::mem::take(&mut self.there[place].1)));
            return;
        }
        session.destroy_context(owner.context).unwrap();
        assert_eq!(session.destroy_context(owner.context), Err(INVALID_CONTEXT));
        assert_eq!(session.context(owner.context).map(drop), Err(INVALID_CONTEXT));
        self.gone.push(self.there.swap_remove(place));
    }
}

#[test]
fn what_belongs_to_a_context_goes_with_it_and_nothing_else_does() {
    rounds(|random, _| {
        with_honest_node(|session| {
            let all = session.memory_left(0).unwrap();
            let mut account = Account { there: vec![(PRIMARY, Vec::new())], gone: Vec::new() };
            for _ in 0..60 {
                let place = random.below(account.there.len());
                match random.below(8) {
                    0 => account.there.push((session.create_context(0, 0).unwrap().owner, Vec::new())),
                    1 => account.end(session, place),
                    _ => {
                        let (owner, things) = &mut account.there[place];
                        things.extend(Thing::make(random, session, *owner));
                    }
                }
                account.check(session);
            }
            while account.there.len() > 1 {
                account.end(session, account.there.len() - 1);
            }
            account.end(session, 0);
            account.check(session);
            assert_eq!(session.memory_left(0).unwrap(), all, "all memory is free");
        });
    });
}

#[test]
fn no_number_of_a_context_is_given_twice_and_only_the_program_ends_what_it_made() {
    with_honest_node(|session| {
        let mut last = session.create_context(0, 4).unwrap();
        assert_eq!((last.flags(), last.owner.device), (4, 0));
        for _ in 0..100 {
            session.destroy_context(last.owner.context).unwrap();
            let next: std::sync::Arc<Context> = session.create_context(0, 0).unwrap();
            assert!(next.owner.context > last.owner.context);
            assert_ne!(Kind::Context.handle(next.owner.context), Kind::Context.handle(last.owner.context));
            last = next;
        }
        assert_eq!(session.destroy_context(PRIMARY.context), Err(INVALID_CONTEXT));
        assert_eq!(session.create_context(0, 3).map(drop), Err(INVALID_VALUE), "two ways of waiting");
        assert_eq!(session.create_context(0, 0x100).map(drop), Err(INVALID_VALUE));
        assert_eq!(session.release_primary(0), Err(INVALID_CONTEXT));
    });
}

#[test]
fn the_runtime_keeps_the_primary_context_until_a_reset() {
    with_honest_node(|session| {
        session.retain_primary(0).unwrap();
        session.begin_runtime(0).unwrap();
        let memory = session.allocate(PRIMARY, 4096).unwrap();
        session.release_primary(0).unwrap();
        assert!(Thing::Memory(memory).is_there(session, PRIMARY));
        let other = session.create_context(0, 0).unwrap().owner;
        let kept = session.allocate(other, 4096).unwrap();
        session.end_runtime(0).unwrap();
        assert!(!Thing::Memory(memory).is_there(session, PRIMARY));
        assert!(Thing::Memory(kept).is_there(session, other));
        assert!(!session.primary(0).unwrap().is_active());
    });
}

#[test]
fn an_event_is_recorded_in_streams_of_its_own_context_only() {
    with_honest_node(|session| {
        let owner = session.create_context(0, 0).unwrap().owner;
        let (stream, event) =
            (session.create_stream(owner, 0, 0).unwrap(), session.create_event(PRIMARY, 0).unwrap());
        assert_eq!(session.record_event(&event, &stream, 0), Err(INVALID_HANDLE));
        let event = session.create_event(owner, 0).unwrap();
        session.record_event(&event, &stream, 0).unwrap();
        session.synchronize_event(&event).unwrap();
    });
}
