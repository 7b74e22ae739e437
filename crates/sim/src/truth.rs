//! What users were told, and whether it is true: the judge of a run.

use crate::random::mix;
use hinterland_types::{ObjectId, ObjectName};
use std::collections::BTreeMap;

/// Content of one checksum block of what a put wrote; it is its own checksum.
pub fn block_of(put: u64, block: u64) -> u32 {
    // Never 0, which stands for a hole; the upper bits are as random as the lower ones.
    (mix(put << 20 | block) as u32) | 1
}

/// How a put ended for its user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// Not yet, or the user's process died with it.
    Open,
    /// It is there.
    Done,
    /// It is not there and never was.
    Undone,
    /// The user knows that it is not known.
    Unknown,
}

#[derive(Debug)]
struct PutFact {
    name: ObjectName,
    block_count: u64,
    copies: u32,
    end: End,
    remove_begun: bool,
    /// Good copies that vanished with a node's memory or rotted.
    losses: u32,
}

/// What a get found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// These blocks.
    Content(ObjectId, Vec<u32>),
    /// The directory says that there is no such name.
    Nothing,
    /// The object's homes, or the directory, cannot be reached.
    Unreachable(String),
}

/// Something that a user or a node saw.
#[derive(Clone, Debug)]
pub enum Fact {
    /// The directory gave this put an object.
    Reserved(u64, ObjectId),
    /// A put's user was told that it is done.
    Done(u64),
    /// A put's user was told that it failed: undone, or not known.
    Failed(u64, bool),
    /// A user asked to remove the object; from here on it may be gone.
    RemoveBegun(ObjectId),
    /// A get ended. It knew when it began that this put had been acknowledged.
    Got(ObjectName, Option<u64>, Found),
    /// A node deleted a good copy because it was told to.
    Deleted(ObjectId),
}

/// All that users were told.
#[derive(Debug, Default)]
pub struct Truth {
    puts: BTreeMap<u64, PutFact>,
    objects: BTreeMap<ObjectId, u64>,
    /// Puts acknowledged, gets that found content, removes begun: a run without any tests nothing.
    pub(crate) done_count: u64,
    pub(crate) found_count: u64,
    pub(crate) remove_count: u64,
    pub(crate) lost_count: u64,
}

impl Truth {
    pub(crate) fn begin_put(&mut self, put: u64, name: ObjectName, block_count: u64, copies: u8) {
        let copies = u32::from(copies);
        let fact = PutFact { name, block_count, copies, end: End::Open, remove_begun: false, losses: 0 };
        self.puts.insert(put, fact);
    }

    /// The put that everybody must find under this name from now on, until a remove begins.
    pub(crate) fn acknowledged(&self, name: &ObjectName) -> Option<u64> {
        let mut there = self.puts.iter().filter(|(_, fact)| fact.name == *name && fact.is_there());
        there.next().map(|(put, _)| *put)
    }

    /// What the object's blocks must be, whoever holds it.
    pub(crate) fn content(&self, object: ObjectId) -> Option<Vec<u32>> {
        let put = self.objects.get(&object)?;
        Some((0..self.puts[put].block_count).map(|block| block_of(*put, block)).collect())
    }

    /// A good copy vanished with a node's memory or rotted.
    pub(crate) fn lose_copy(&mut self, object: ObjectId) {
        if let Some(fact) = self.objects.get(&object).and_then(|put| self.puts.get_mut(put)) {
            fact.losses += 1;
            self.lost_count += 1;
        }
    }

    /// Takes what somebody saw; `good_copies` are those of the object that the fact is about.
    pub(crate) fn learn(&mut self, fact: &Fact, good_copies: usize) -> Result<(), String> {
        match fact {
            Fact::Reserved(put, object) => {
                self.objects.insert(*object, *put);
            }
            Fact::Done(put) => return self.done(*put),
            Fact::Failed(put, undone) => {
                if let Some(fact) = self.puts.get_mut(put) {
                    fact.end = if *undone { End::Undone } else { End::Unknown };
                }
            }
            Fact::RemoveBegun(object) => {
                self.remove_count += 1;
                if let Some(fact) = self.objects.get(object).and_then(|put| self.puts.get_mut(put)) {
                    fact.remove_begun = true;
                }
            }
            Fact::Got(name, expected, found) => return self.got(name, *expected, found),
            Fact::Deleted(object) => {
                let put = self.objects.get(object).and_then(|put| self.puts.get(put));
                if let Some(fact) = put.filter(|fact| fact.is_there() && fact.losses < fact.copies)
                    && good_copies == 0
                {
                    return Err(format!("the last copy of {object} ({}) was deleted on purpose", fact.name));
                }
            }
        }
        Ok(())
    }

    fn done(&mut self, put: u64) -> Result<(), String> {
        let Some(name) = self.puts.get(&put).map(|fact| fact.name.clone()) else { return Ok(()) };
        if let Some(other) = self.acknowledged(&name) {
            return Err(format!("put {put} and put {other} were both acknowledged as {name}"));
        }
        self.done_count += 1;
        if let Some(fact) = self.puts.get_mut(&put) {
            fact.end = End::Done;
        }
        Ok(())
    }

    fn got(&mut self, name: &ObjectName, expected: Option<u64>, found: &Found) -> Result<(), String> {
        match found {
            Found::Content(object, blocks) => {
                let Some(put) = self.objects.get(object) else {
                    return Err(format!("{name} leads to {object}, which nobody put"));
                };
                let fact = &self.puts[put];
                if fact.name != *name {
                    return Err(format!("{name} gave the content of {}", fact.name));
                }
                if self.content(*object).as_ref() != Some(blocks) {
                    return Err(format!("{name} gave bytes of {object} that were not put: {blocks:x?}"));
                }
                if fact.end == End::Undone && !fact.remove_begun {
                    return Err(format!("put {put} of {name} was told to be undone, but it can be read"));
                }
                self.found_count += 1;
                Ok(())
            }
            Found::Nothing => match expected.filter(|put| self.puts[put].is_there()) {
                Some(put) => Err(format!("{name} is said not to exist, but put {put} was acknowledged")),
                None => Ok(()),
            },
            Found::Unreachable(_) => Ok(()),
        }
    }

    /// At the end, when all nodes are up and calm: what was acknowledged must be readable, unless as many
    /// nodes lost their copy as there were copies.
    pub(crate) fn must_be_readable(&self, name: &ObjectName) -> bool {
        let put = self.acknowledged(name).and_then(|put| self.puts.get(&put));
        put.is_some_and(|fact| fact.losses < fact.copies)
    }
}

impl PutFact {
    fn is_there(&self) -> bool {
        self.end == End::Done && !self.remove_begun
    }
}
