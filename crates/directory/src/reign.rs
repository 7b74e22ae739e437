//! The time for which one of several hosts leads: what it may answer, and what it writes in which order.
//!
//! Commands are planned one after another on the state as it will be when all before them are durable. Their changes gather in
//! a *batch* while the batch before is being written. An answer waits until what it has seen is durable, and is given only while
//! the host is sure that nobody else leads, or if the write itself has proved it. It is pure: time comes in as milliseconds of a
//! clock that never goes back, and the store is somebody else's, who writes one batch after another, each only if nobody else
//! has begun to lead.

use crate::{Command, Directory, DirectoryError, Mutation, Reply, RequestId, Table};
use std::collections::BTreeMap;

/// Why a reign is over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ended {
    /// A batch was not written, for sure: the state must be loaded again, and then the same host may go on.
    NotWritten(String),
    /// Another host leads, or may, or whether a batch was written is not known.
    Over(String),
}

/// A command that was judged; its answer is given when [`Reign::standing`] says so.
#[derive(Debug)]
#[must_use = "an answer counts only when what it saw is durable"]
pub struct Judged {
    /// The answer.
    pub outcome: Result<Reply, DirectoryError>,
    /// The batch with the last change that the answer has seen.
    batch: u64,
    /// Whether that change is its own, so that the write proves that this host led.
    proves: bool,
}

impl Judged {
    /// Whether it changes what is stored.
    pub const fn changes(&self) -> bool {
        self.proves
    }
}

/// What becomes of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It may be given.
    Answer,
    /// What it saw is not durable yet.
    Wait,
    /// It must not be given: this host may not lead any more.
    CutOff,
    /// It must not be given: the reign is over.
    Ended(Ended),
}

/// Changes that are written together; each key stands in it once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    /// Its number in the reign.
    pub number: u64,
    /// The changes.
    pub mutations: Vec<Mutation>,
}

/// A host that leads.
#[derive(Debug)]
pub struct Reign {
    directory: Directory,
    believed_until_ms: u64,
    /// Changes for the next batch.
    open: BTreeMap<(Table, Vec<u8>), Option<Vec<u8>>>,
    /// The number that the next batch will have.
    next: u64,
    is_writing: bool,
    durable: u64,
    ended: Option<Ended>,
}

impl Reign {
    /// Begins to lead with what the store has; believed until the given time.
    pub const fn new(directory: Directory, believed_until_ms: u64) -> Self {
        Self {
            directory,
            believed_until_ms,
            open: BTreeMap::new(),
            next: 1,
            is_writing: false,
            durable: 0,
            ended: None,
        }
    }

    /// The lease was renewed, asked for at `sent_ms`: an eighth of it is left to clocks that run at different speeds.
    pub fn renewed(&mut self, sent_ms: u64, lease_ms: u64) {
        self.believed_until_ms = self.believed_until_ms.max(believed_until(sent_ms, lease_ms));
    }

    /// Whether nobody else can lead at this time.
    pub const fn is_believed(&self, now_ms: u64) -> bool {
        now_ms < self.believed_until_ms
    }

    /// Why the reign is over, if it is.
    pub const fn ended(&self) -> Option<&Ended> {
        self.ended.as_ref()
    }

    /// The reign is over.
    pub fn end(&mut self, why: Ended) {
        if self.ended.is_none() {
            self.ended = Some(why);
        }
    }

    /// The state, with what is not durable yet.
    pub const fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Judges a command and takes its changes into the next batch. `None` if this host may not lead any more.
    ///
    /// No answer is kept of what need not be asked once, whoever gives it a number: it may be large, and of a form that a later release
    /// does not read.
    pub fn judge(&mut self, now_ms: u64, id: Option<RequestId>, command: &Command) -> Option<Judged> {
        if !self.is_believed(now_ms) || self.ended.is_some() {
            return None;
        }
        let plan = match id.filter(|_| command.is_asked_once()) {
            Some(id) => self.directory.plan_once(now_ms, id, command),
            None => self.directory.plan(now_ms, command),
        };
        let plan = match plan {
            Ok(plan) => plan,
            Err(error) => return Some(Judged { outcome: Err(error), batch: self.newest(), proves: false }),
        };
        let proves = !plan.is_volatile();
        for mutation in plan.mutations() {
            self.open.insert((mutation.table, mutation.key), mutation.value);
        }
        let reply = self.directory.commit(plan);
        Some(Judged { outcome: Ok(reply), batch: self.newest(), proves })
    }

    /// Whether the answer may be given.
    pub fn standing(&self, now_ms: u64, judged: &Judged) -> Standing {
        if self.durable >= judged.batch && judged.proves {
            return Standing::Answer;
        }
        if let Some(ended) = &self.ended {
            return Standing::Ended(ended.clone());
        }
        if self.durable < judged.batch {
            Standing::Wait
        } else if self.is_believed(now_ms) {
            Standing::Answer
        } else {
            Standing::CutOff
        }
    }

    /// The next batch, if there is one and none is being written.
    pub fn begin_write(&mut self) -> Option<Batch> {
        if self.is_writing || self.open.is_empty() || self.ended.is_some() {
            return None;
        }
        let open = std::mem::take(&mut self.open);
        let mutations = open.into_iter().map(|((table, key), value)| Mutation { table, key, value });
        self.is_writing = true;
        self.next += 1;
        Some(Batch { number: self.next - 1, mutations: mutations.collect() })
    }

    /// The batch that was begun last is durable.
    pub fn written(&mut self) {
        self.is_writing = false;
        self.durable = self.next - 1;
    }

    /// The newest batch with changes.
    fn newest(&self) -> u64 {
        if self.open.is_empty() { self.next - 1 } else { self.next }
    }
}

/// Until when a lease is believed that was renewed, or got, by a request sent at `sent_ms`.
pub const fn believed_until(sent_ms: u64, lease_ms: u64) -> u64 {
    sent_ms.saturating_add(lease_ms - lease_ms / 8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Placement, Settings};
    use hinterland_types::{NodeId, ObjectId, ObjectName, RackName};

    fn reign() -> Reign {
        let directory = Directory::recover(Settings::default(), 0, std::iter::empty()).unwrap();
        Reign::new(directory, 1000)
    }

    fn join() -> Command {
        let (rack, address) = (RackName::parse("a").unwrap(), "127.0.0.1:1".to_owned());
        Command::Join { name: None, node: NodeId(1), rack, address, capacity_bytes: 1 << 30, incarnation: 1 }
    }

    fn region() -> Command {
        let name = ObjectName::parse("r").unwrap();
        Command::CreateRegion { name, size: 4096, placement: Placement::Policy, local: NodeId(1) }
    }

    fn up(reign: &mut Reign) {
        let held = Command::NodeObjects {
            node: NodeId(1),
            incarnation: 1,
            after: ObjectId(0),
            objects: vec![],
            more: false,
        };
        for command in [join(), held] {
            assert!(reign.judge(1, None, &command).unwrap().outcome.is_ok());
        }
        reign.begin_write().unwrap();
        reign.written();
    }

    fn id(number: u64) -> RequestId {
        RequestId { node: NodeId(1), slot: 3, incarnation: 1, number }
    }

    #[test]
    fn an_answer_waits_for_its_own_changes_and_for_those_that_it_saw() {
        let mut reign = reign();
        let first = reign.judge(1, None, &join()).unwrap();
        let seen = reign.judge(2, None, &Command::Members).unwrap();
        assert_eq!(reign.standing(2, &first), Standing::Wait);
        assert_eq!(reign.standing(2, &seen), Standing::Wait);
        assert_eq!(reign.begin_write().unwrap().number, 1);
        assert!(reign.begin_write().is_none(), "one at a time");
        reign.written();
        assert_eq!(reign.standing(2, &first), Standing::Answer);
        assert_eq!(reign.standing(2, &seen), Standing::Answer);
    }

    #[test]
    fn a_leader_whose_time_is_over_answers_only_what_a_write_has_proved() {
        let mut reign = reign();
        let write = reign.judge(1, None, &join()).unwrap();
        let read = reign.judge(1, None, &Command::Members).unwrap();
        reign.begin_write().unwrap();
        reign.written();
        assert_eq!(reign.standing(1000, &write), Standing::Answer);
        assert_eq!(reign.standing(1000, &read), Standing::CutOff);
        assert!(reign.judge(1000, None, &Command::Members).is_none());
        reign.renewed(900, 800);
        assert_eq!(reign.standing(1599, &read), Standing::Answer);
        assert_eq!(reign.standing(1600, &read), Standing::CutOff);
    }

    #[test]
    fn nothing_is_answered_that_a_failed_write_takes_back() {
        let mut reign = reign();
        let write = reign.judge(1, None, &join()).unwrap();
        reign.begin_write().unwrap();
        reign.end(Ended::NotWritten("full".to_owned()));
        assert_eq!(reign.standing(1, &write), Standing::Ended(Ended::NotWritten("full".to_owned())));
        assert!(reign.judge(2, None, &join()).is_none());
    }

    #[test]
    fn a_request_that_comes_again_gets_the_first_answer_and_changes_nothing() {
        let mut reign = reign();
        up(&mut reign);
        let first = reign.judge(2, Some(id(1)), &region()).unwrap();
        let again = reign.judge(3, Some(id(1)), &region()).unwrap();
        assert!(first.outcome.is_ok());
        assert_eq!(first.outcome, again.outcome);
        assert_eq!(reign.standing(3, &again), Standing::Wait, "the first answer is not durable yet");
        let batch = reign.begin_write().unwrap();
        reign.written();
        assert_eq!(batch.mutations.iter().filter(|m| m.table == Table::Objects).count(), 1);
        // Without a number it is another request.
        assert!(matches!(
            reign.judge(4, None, &region()).unwrap().outcome,
            Err(DirectoryError::NameTaken { .. })
        ));
        let later = reign.judge(
            5,
            Some(id(2)),
            &Command::Remove { name: ObjectName::parse("r").unwrap(), object: None },
        );
        assert!(later.unwrap().outcome.is_ok());
        let late = reign.judge(6, Some(id(1)), &region()).unwrap();
        assert_eq!(late.outcome, Err(DirectoryError::OvertakenRequest { node: NodeId(1) }));
    }

    #[test]
    fn a_request_of_a_life_that_is_far_ahead_shuts_no_slot() {
        let mut reign = reign();
        up(&mut reign);
        for given in [3, u64::MAX] {
            let ahead = RequestId { incarnation: given, ..id(1) };
            let refused = DirectoryError::StaleIncarnation { node: NodeId(1), given, known: 1 };
            assert_eq!(reign.judge(2, Some(ahead), &region()).unwrap().outcome, Err(refused));
        }
        let stranger = RequestId { node: NodeId(2), ..id(1) };
        let refused = DirectoryError::UnknownNode { node: NodeId(2) };
        assert_eq!(reign.judge(2, Some(stranger), &region()).unwrap().outcome, Err(refused));
        assert!(reign.judge(3, Some(id(1)), &region()).unwrap().outcome.is_ok());
    }

    #[test]
    fn the_answer_of_a_question_is_not_kept() {
        let mut reign = reign();
        up(&mut reign);
        let asked = reign.judge(2, Some(id(1)), &Command::Members).unwrap();
        assert!(!asked.changes() && reign.begin_write().is_none());
        // Nor does it take the slot from what has an answer to keep.
        assert!(reign.judge(3, Some(id(1)), &region()).unwrap().changes());
    }

    #[test]
    fn answers_are_found_again_by_the_next_leader_until_their_node_is_gone() {
        let mut reign = reign();
        let mut store = BTreeMap::new();
        let mut write = |reign: &mut Reign| {
            for mutation in reign.begin_write().unwrap().mutations {
                match mutation.value {
                    Some(value) => drop(store.insert((mutation.table, mutation.key), value)),
                    None => drop(store.remove(&(mutation.table, mutation.key))),
                }
            }
            reign.written();
            store.clone()
        };
        let held = Command::NodeObjects {
            node: NodeId(1),
            incarnation: 1,
            after: ObjectId(0),
            objects: vec![],
            more: false,
        };
        for command in [join(), held] {
            assert!(reign.judge(1, None, &command).unwrap().outcome.is_ok());
        }
        let first = reign.judge(2, Some(id(1)), &region()).unwrap();
        let records = |store: BTreeMap<(Table, Vec<u8>), Vec<u8>>| {
            store.into_iter().map(|((table, key), value)| crate::Record { table, key, value })
        };
        let store = write(&mut reign);
        let next = Directory::recover(Settings::default(), 0, records(store)).unwrap();
        next.check().unwrap();
        let mut next = Reign::new(next, 1000);
        let again = next.judge(3, Some(id(1)), &region()).unwrap();
        assert_eq!(first.outcome, again.outcome);
        assert!(next.begin_write().is_none());
        let gone = Command::Leave {
            node: NodeId(1),
            incarnation: 1,
            departure: crate::Departure::GoneWithLastCopies,
        };
        assert!(next.judge(4, None, &gone).unwrap().outcome.is_ok());
        let batch = next.begin_write().unwrap();
        assert!(batch.mutations.iter().any(|m| m.table == Table::Answers && m.value.is_none()));
    }
}
