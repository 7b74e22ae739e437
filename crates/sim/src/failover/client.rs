//! A client: one command after another on names of its own, asked again until somebody answers, and the judge of the answers.

use crate::failover::BrokenLeaderRule;
use crate::failover::host::Told;
use crate::random::Random;
use hinterland_directory::{Command, DirectoryError, Placement, Reply, RequestId};
use hinterland_types::{NodeId, ObjectName};
use std::collections::BTreeMap;

/// After how long another host is asked, in milliseconds.
const NEXT_MS: u64 = 250;
/// After how long a command is given up.
const PATIENCE_MS: u64 = 5000;
/// Names of one client: few, so that a command done late or twice meets its successor.
const NAMES: u64 = 4;

/// What must be true of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Known {
    There,
    Gone,
    /// A command on it was given up.
    Unknown,
}

/// A command on its way.
struct Going {
    name: u64,
    command: Command,
    id: Option<RequestId>,
    begun_ms: u64,
    asked_ms: u64,
    times: u64,
}

pub(super) struct Client {
    pub(super) node: NodeId,
    names: BTreeMap<u64, Known>,
    going: Option<Going>,
    number: u64,
    attempt: u64,
    host: u64,
    rest_until_ms: u64,
    broken: Option<BrokenLeaderRule>,
    pub(super) answered: u64,
    pub(super) repeated: u64,
    pub(super) unknown: u64,
}

impl Client {
    pub(super) fn new(node: NodeId, broken: Option<BrokenLeaderRule>) -> Self {
        let names = (0..NAMES).map(|name| (name, Known::Gone)).collect();
        Self {
            node,
            names,
            going: None,
            number: 0,
            attempt: 0,
            host: node.0,
            rest_until_ms: 0,
            broken,
            answered: 0,
            repeated: 0,
            unknown: 0,
        }
    }

    fn name(&self, name: u64) -> ObjectName {
        // Letters and digits: always a name.
        ObjectName::parse(&format!("client{}/{name}", self.node.0)).expect("letters and digits")
    }

    /// All names, and what must be true of them.
    pub(super) fn names(&self) -> impl Iterator<Item = (ObjectName, Known)> + '_ {
        self.names.iter().map(|(name, known)| (self.name(*name), *known))
    }

    /// Whether it waits for an answer.
    pub(super) const fn is_busy(&self) -> bool {
        self.going.is_some()
    }

    /// What to ask now: which attempt, of which host, what.
    pub(super) fn wake(
        &mut self,
        now_ms: u64,
        hosts: u64,
        may_begin: bool,
        random: &mut Random,
    ) -> Option<(u64, u64, Option<RequestId>, Command)> {
        if self.going.is_none() && may_begin && now_ms >= self.rest_until_ms {
            self.begin(now_ms, random);
            if matches!(self.going, Some(Going { command: Command::Lookup { .. }, .. })) {
                // Whoever may have led before must not answer it.
                self.host = random.below(hosts);
            }
        }
        let going = self.going.as_mut()?;
        if now_ms >= going.begun_ms + PATIENCE_MS {
            self.unknown += 1;
            self.names.insert(going.name, Known::Unknown);
            self.going = None;
            return None;
        }
        if now_ms < going.asked_ms {
            return None;
        }
        self.repeated += u64::from(going.times == 1);
        going.times += 1;
        going.asked_ms = now_ms + NEXT_MS;
        self.attempt += 1;
        self.host = (self.host + u64::from(going.times > 1)) % hosts;
        Some((self.attempt, self.host, going.id, going.command.clone()))
    }

    fn begin(&mut self, now_ms: u64, random: &mut Random) {
        let name = random.below(NAMES);
        let path = self.name(name);
        let command = match (self.names[&name], random.below(3)) {
            (_, 0) => Command::Lookup { name: path },
            (Known::There, _) => Command::Remove { name: path, object: None },
            (Known::Gone, _) => {
                let placement = Placement::Policy;
                Command::CreateRegion { name: path, size: 4096, placement, local: self.node }
            }
            // Nobody knows what is to be expected of it.
            (Known::Unknown, _) => return,
        };
        self.number += 1;
        let numbered = command.is_asked_once() && self.broken != Some(BrokenLeaderRule::NoNumbers);
        let id = RequestId { node: self.node, slot: 0, incarnation: 1, number: self.number };
        let id = numbered.then_some(id);
        self.going = Some(Going { name, command, id, begun_ms: now_ms, asked_ms: now_ms, times: 0 });
    }

    /// Somebody has answered.
    pub(super) fn told(
        &mut self,
        now_ms: u64,
        attempt: u64,
        told: Told,
        random: &mut Random,
    ) -> Result<(), String> {
        let Some(going) = &mut self.going else { return Ok(()) };
        let Some(outcome) = told else {
            // It does not lead: the next one, after a moment.
            if attempt == self.attempt {
                going.asked_ms = now_ms + 20;
            }
            return Ok(());
        };
        if self.attempt - attempt >= going.times {
            // An answer to a command before this one.
            return Ok(());
        }
        let known = self.names[&going.name];
        let next = judge(&going.command, known, &outcome).map_err(|why| {
            format!("{:?} asked {} times of a name {known:?}: {why}", going.command, going.times)
        })?;
        self.names.insert(going.name, next);
        self.going = None;
        self.answered += 1;
        self.rest_until_ms = now_ms + random.below(150);
        Ok(())
    }
}

/// What is true of a name after an answer; an error if the answer cannot be.
fn judge(command: &Command, known: Known, outcome: &Result<Reply, DirectoryError>) -> Result<Known, String> {
    let is_unknown = |error: &DirectoryError| {
        matches!(error, DirectoryError::UnknownName { .. } | DirectoryError::UnknownObject { .. })
    };
    match (command, known, outcome) {
        (_, Known::Unknown, _) => Ok(Known::Unknown),
        (Command::Lookup { .. }, Known::There, Ok(_)) => Ok(known),
        (Command::Lookup { .. }, Known::Gone, Err(error)) if is_unknown(error) => Ok(known),
        (Command::CreateRegion { .. }, Known::Gone, Ok(_)) => Ok(Known::There),
        (Command::Remove { .. }, Known::There, Ok(_)) => Ok(Known::Gone),
        (_, _, Ok(reply)) => Err(format!("the answer was {reply:?}")),
        (_, _, Err(error)) => Err(format!("the answer was: {error}")),
    }
}
