//! Budget of one cached object: what the sessions that use it asked for, and what the last ones did.

use hinterland_types::SessionId;
use std::collections::HashMap;

/// What sessions asked for.
#[derive(Debug, Default)]
pub struct Budgets {
    asked: HashMap<SessionId, Option<u64>>,
    /// What held when the last session left.
    left: Option<u64>,
}

impl Budgets {
    /// A session uses the object and asks for so many bytes at the most; `None`: it does not mind.
    pub fn insert(&mut self, session: SessionId, bytes: Option<u64>) {
        self.asked.insert(session, bytes);
    }

    /// A session uses the object no longer.
    pub fn remove(&mut self, session: SessionId) {
        let before = self.asked();
        if self.asked.remove(&session).is_some() && self.asked.is_empty() {
            self.left = before;
        }
    }

    /// What holds for fills: as [`asked`](Self::asked) says, and while nobody uses the object what it said of those who did last. What
    /// they had fetched ahead may still be on its way, and is not to take more than they were allowed.
    pub fn bytes(&self) -> Option<u64> {
        if self.asked.is_empty() { self.left } else { self.asked() }
    }

    /// The largest that a session asked for, if all that use the object asked.
    pub fn asked(&self) -> Option<u64> {
        self.asked.values().copied().collect::<Option<Vec<u64>>>()?.into_iter().max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SessionId = SessionId(1);
    const B: SessionId = SessionId(2);

    #[test]
    fn the_largest_holds_unless_somebody_does_not_mind() {
        let mut budgets = Budgets::default();
        assert_eq!(budgets.bytes(), None);
        budgets.insert(A, Some(1));
        budgets.insert(B, Some(3));
        assert_eq!(budgets.bytes(), Some(3));
        budgets.insert(A, None);
        assert_eq!(budgets.bytes(), None);
        budgets.remove(A);
        assert_eq!(budgets.bytes(), Some(3));
    }

    #[test]
    fn what_is_still_on_its_way_keeps_to_the_budget_of_the_last_who_left() {
        let mut budgets = Budgets::default();
        budgets.insert(A, Some(3));
        budgets.insert(B, Some(5));
        budgets.remove(B);
        budgets.remove(A);
        budgets.remove(A);
        budgets.remove(B);
        assert_eq!((budgets.bytes(), budgets.asked()), (Some(3), None));
        budgets.insert(B, None);
        assert_eq!(budgets.bytes(), None);
    }
}
