//! Which block leaves next: an order of eviction for each group of namespaces, lowest priority first.
//!
//! Only blocks without a child are in an order, so that no block leaves before those that are of no use without it. A group is
//! all namespaces of one priority, or one namespace that has a quota. Orders know blocks by the hash of their key, not by
//! their slot: a ghost list must know a block that comes back, wherever it lies then.

use foldhash::HashMap;
use hinterland_policy::eviction::UnitKey;
use hinterland_policy::{Eviction, EvictionKind};
use std::collections::hash_map::Entry;

/// Namespaces that share an order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub(crate) enum Group {
    /// All of a priority without a quota.
    Shared(u8),
    /// One with a quota: its priority and number.
    Own(u8, u64),
}

impl Group {
    const fn priority(self) -> u8 {
        match self {
            Self::Shared(priority) | Self::Own(priority, _) => priority,
        }
    }
}

struct Order {
    policy: Box<dyn Eviction>,
    slots: HashMap<UnitKey, u32>,
    /// The parent of the block that left last, if that has no child any more.
    next: Option<UnitKey>,
}

/// The orders of a store.
pub(crate) struct Orders {
    kind: EvictionKind,
    groups: HashMap<Group, Order>,
}

impl Orders {
    pub(crate) fn new(kind: EvictionKind) -> Self {
        Self { kind, groups: HashMap::default() }
    }

    /// Adds a block that has no child. False if another one of the group has its hash: then it cannot leave, so it must
    /// not stay.
    #[must_use]
    pub(crate) fn insert(&mut self, group: Group, hash: u64, slot: u32, bytes: u64) -> bool {
        self.put(group, hash, slot, bytes, None)
    }

    /// The same for a block that comes in place of `old`, which has its hash and leaves the order if it is in it.
    #[must_use]
    pub(crate) fn put(&mut self, group: Group, hash: u64, slot: u32, bytes: u64, old: Option<u32>) -> bool {
        let order = self.order(group);
        let unit = unit(hash);
        // Its turn was that of the block that had the key before.
        order.next = order.next.filter(|&next| next != unit);
        match order.slots.entry(unit) {
            Entry::Vacant(place) => _ = place.insert(slot),
            Entry::Occupied(mut place) if Some(*place.get()) == old => {
                place.insert(slot);
                order.policy.renew(unit, bytes);
                return true;
            }
            Entry::Occupied(place) if *place.get() == slot => {}
            Entry::Occupied(_) => return false,
        }
        order.policy.insert(unit, bytes);
        true
    }

    /// Loads what the next step about a block of the hash looks at; what it returns means nothing.
    pub(crate) fn load(&self, group: Group, hash: u64) -> u64 {
        let Some(order) = self.groups.get(&group) else { return 0 };
        let slot = order.slots.get(&unit(hash)).copied();
        u64::from(slot.unwrap_or_default()) ^ order.policy.load(unit(hash))
    }

    /// Takes a block out that got a child or is gone.
    pub(crate) fn remove(&mut self, group: Group, hash: u64, slot: u32) {
        let Some(order) = self.groups.get_mut(&group) else { return };
        let unit = unit(hash);
        if order.slots.get(&unit) == Some(&slot) {
            order.slots.remove(&unit);
            order.policy.remove(unit);
            if order.slots.is_empty() && matches!(group, Group::Own(..)) {
                self.groups.remove(&group);
            }
        }
    }

    /// The block of the hash is to leave next, if nobody has read it: its last child has just left.
    pub(crate) fn is_next(&mut self, group: Group, hash: u64) {
        if let Some(order) = self.groups.get_mut(&group) {
            order.next = Some(unit(hash));
        }
    }

    /// Takes the slot whose turn it is, of those that are free to leave, out of the order of a group.
    pub(crate) fn victim(&mut self, group: Group, is_free: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        let order = self.groups.get_mut(&group)?;
        let (slots, policy) = (&mut order.slots, &mut order.policy);
        let mut may_leave = |unit: UnitKey| slots.get(&unit).is_some_and(|&slot| is_free(slot));
        let unit = match order.next.take().filter(|&unit| may_leave(unit)) {
            Some(unit) => {
                policy.remove(unit);
                unit
            }
            None => {
                let mut victims = Vec::with_capacity(1);
                policy.victims(1, &mut may_leave, &mut victims);
                victims.pop()?
            }
        };
        slots.remove(&unit)
    }

    /// Gives a victim another round: it was read. The order that it was taken out of may have ended since with its last block.
    pub(crate) fn again(&mut self, group: Group, hash: u64, slot: u32, bytes: u64) {
        let order = self.order(group);
        order.slots.insert(unit(hash), slot);
        order.policy.insert(unit(hash), bytes);
        order.policy.touch(unit(hash));
    }

    /// The order of a group, which begins with its first block.
    fn order(&mut self, group: Group) -> &mut Order {
        let kind = self.kind;
        self.groups.entry(group).or_insert_with(|| Order {
            policy: kind.build(),
            slots: HashMap::default(),
            next: None,
        })
    }

    /// Groups that have a block which could leave, in the order in which they give: the lowest priority first, and of those
    /// the one with the most bytes.
    pub(crate) fn givers(&self) -> Vec<Group> {
        let mut groups: Vec<(u8, std::cmp::Reverse<u64>, Group)> = self
            .groups
            .iter()
            .filter(|(_, order)| !order.slots.is_empty())
            .map(|(&group, order)| (group.priority(), std::cmp::Reverse(order.policy.bytes()), group))
            .collect();
        groups.sort_unstable();
        groups.into_iter().map(|(_, _, group)| group).collect()
    }
}

const fn unit(hash: u64) -> UnitKey {
    // The two halves.
    UnitKey { object: (hash >> 32) as u32, unit: hash as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_turn_of_a_block_is_not_that_of_the_one_that_comes_in_its_place() {
        for kind in EvictionKind::ALL {
            let group = Group::Shared(1);
            let mut orders = Orders::new(kind);
            for (hash, slot) in [(1, 10), (2, 20)] {
                assert!(orders.insert(group, hash, slot, 64), "{kind}");
            }
            orders.is_next(group, 1);
            assert!(orders.put(group, 1, 11, 64, Some(10)), "{kind}");
            assert_eq!(orders.victim(group, &mut |_| true), Some(20), "{kind}");
        }
    }

    #[test]
    fn a_block_that_comes_in_place_of_another_is_the_youngest_and_leaves_once() {
        for kind in EvictionKind::ALL {
            let group = Group::Own(1, 7);
            let mut orders = Orders::new(kind);
            for (hash, slot) in [(1, 10), (2, 20)] {
                assert!(orders.insert(group, hash, slot, 64), "{kind}");
            }
            assert!(orders.put(group, 1, 11, 128, Some(10)), "{kind}: in place of its own");
            assert!(!orders.insert(group, 1, 12, 64), "{kind}: of the same hash");
            assert!(!orders.put(group, 1, 12, 64, Some(10)), "{kind}: in place of one that is gone");
            orders.remove(group, 1, 10);
            assert_eq!(orders.groups[&group].policy.bytes(), 192, "{kind}");
            let left: Vec<u32> = std::iter::from_fn(|| orders.victim(group, &mut |_| true)).collect();
            assert_eq!(left, [20, 11], "{kind}");
            assert!(orders.put(group, 3, 30, 64, Some(31)), "{kind}: in place of one that is in no order");
        }
    }
}
