//! The model of etcd: leases, one key for who leads, one for the last mark, and the directory's records.

use crate::failover::BrokenLeaderRule;
use hinterland_directory::{Mutation, Record, Table};
use std::collections::BTreeMap;

/// What is asked of the store.
#[derive(Clone, Debug)]
pub(super) enum Question {
    /// Whether somebody leads.
    Leader,
    /// A lease.
    Grant,
    /// The lease again from now on.
    Renew(u64),
    /// To lead under a lease.
    Stand(u64),
    /// All records.
    Load,
    /// Changes of a reign, behind a mark, leaving another.
    Commit { reign: u64, behind: (u64, u64), mark: (u64, u64), mutations: Vec<Mutation> },
}

/// What the store answers.
#[derive(Clone, Debug)]
pub(super) enum Said {
    Leader(bool),
    Granted(u64),
    Renewed(bool),
    /// The reign, if nobody leads.
    Stood(Option<u64>),
    Records(Vec<Record>),
    /// Whether the changes are there.
    Committed(bool),
}

#[derive(Default)]
pub(super) struct Store {
    pub(super) records: BTreeMap<(Table, Vec<u8>), Vec<u8>>,
    leases: BTreeMap<u64, u64>,
    /// Lease and reign of who leads.
    leader: Option<(u64, u64)>,
    mark: (u64, u64),
    next: u64,
    pub(super) reigns: u64,
    pub(super) fenced: u64,
}

impl Store {
    /// Milliseconds that a lease lasts.
    pub(super) const TTL_MS: u64 = 2000;

    /// The store itself was away: leases go on for a whole time.
    pub(super) fn wake(&mut self, now_ms: u64) {
        self.leases.values_mut().for_each(|until_ms| *until_ms = now_ms + Self::TTL_MS);
    }

    /// Leases run out.
    fn expire(&mut self, now_ms: u64) {
        self.leases.retain(|_, until_ms| *until_ms > now_ms);
        self.leader = self.leader.filter(|(lease, _)| self.leases.contains_key(lease));
    }

    pub(super) fn answer(
        &mut self,
        now_ms: u64,
        question: Question,
        broken: Option<BrokenLeaderRule>,
    ) -> Said {
        self.expire(now_ms);
        match question {
            Question::Leader => Said::Leader(self.leader.is_some()),
            Question::Grant => {
                self.next += 1;
                self.leases.insert(self.next, now_ms + Self::TTL_MS);
                Said::Granted(self.next)
            }
            Question::Renew(lease) => {
                let there = self.leases.get_mut(&lease).map(|until_ms| *until_ms = now_ms + Self::TTL_MS);
                Said::Renewed(there.is_some())
            }
            Question::Stand(lease) => {
                if self.leader.is_some() || !self.leases.contains_key(&lease) {
                    return Said::Stood(None);
                }
                self.next += 1;
                self.reigns += 1;
                self.leader = Some((lease, self.next));
                self.mark = (self.next, 0);
                Said::Stood(Some(self.next))
            }
            Question::Load => {
                let record = |((table, key), value): (&(Table, Vec<u8>), &Vec<u8>)| Record {
                    table: *table,
                    key: key.clone(),
                    value: value.clone(),
                };
                Said::Records(self.records.iter().map(record).collect())
            }
            Question::Commit { reign, behind, mark, mutations } => {
                let leads = self.leader.is_some_and(|(_, leader)| leader == reign);
                let fence = leads || broken == Some(BrokenLeaderRule::NoFence);
                let order = self.mark == behind || broken == Some(BrokenLeaderRule::NoMark);
                // Without the look at who leads, the mark alone must not stop the old leader either.
                let order = order || (broken == Some(BrokenLeaderRule::NoFence) && !leads);
                if !(fence && order) {
                    self.fenced += u64::from(self.mark != mark);
                    return Said::Committed(self.mark == mark);
                }
                self.write(mutations);
                self.mark = mark;
                Said::Committed(true)
            }
        }
    }

    /// Writes without looking.
    pub(super) fn write(&mut self, mutations: Vec<Mutation>) {
        for mutation in mutations {
            match mutation.value {
                Some(value) => drop(self.records.insert((mutation.table, mutation.key), value)),
                None => drop(self.records.remove(&(mutation.table, mutation.key))),
            }
        }
    }
}
