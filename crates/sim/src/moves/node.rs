//! A node of the simulation of moves: what a process of it knows, and the memory and programs that outlive it.

use super::copies::Copies;
use super::program::Program;
use super::taker::Coming;
use super::world::{NODES, PAGES, PROGRAMS, WORDS};
use crate::message::Ticket;
use hinterland_directory::locks::{Fence, Fences, LockAnswer, LockAsk, LockHolder, LockHome, LockRequest};
use hinterland_directory::{Command, DirectoryError, Reply};
use hinterland_policy::heat::{Heat, HeatRules, HeatTable, Moves};
use hinterland_types::{Epoch, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// The words of a page that programs use: the first under a lock, the second without.
pub(super) type Content = [u64; WORDS];

/// What a node says of a page to its programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Word {
    Unknown,
    Here(Epoch),
    Moving(Epoch),
    At(NodeId),
    /// It is there, and a copy here may be read.
    Copy(NodeId),
}

/// What nodes send each other, and the directory.
#[derive(Clone, Debug)]
pub(super) enum Letter {
    Ask(Ticket, Command),
    Answer(Ticket, Result<Reply, DirectoryError>),
    /// Whether a page might come, with the heat that it has where it is wanted.
    Wanted {
        call: u64,
        page: usize,
        heat: Heat,
    },
    Allowed {
        call: u64,
    },
    Freeze {
        call: u64,
        page: usize,
        epoch: Epoch,
        heat: Option<Heat>,
    },
    Frozen {
        call: u64,
        sum: u64,
    },
    /// One word of a frozen page: a page does not travel in one piece.
    Copy {
        call: u64,
        page: usize,
        word: usize,
    },
    Copied {
        call: u64,
        word: usize,
        value: u64,
    },
    /// A copy of a page is wanted, given, wanted back, and gone.
    Share {
        call: u64,
        page: usize,
    },
    Shared {
        call: u64,
        sum: u64,
        term: u64,
    },
    Unshare {
        call: u64,
        page: usize,
    },
    Unshared {
        call: u64,
    },
    /// The copies that were given under a term are still read.
    Keep {
        term: u64,
        asked_ms: u64,
    },
    Kept {
        term: u64,
        asked_ms: u64,
        is_kept: bool,
    },
    Refused {
        call: u64,
    },
    Moved {
        page: usize,
        epoch: Epoch,
    },
    /// An order to take a page.
    Take {
        page: usize,
    },
    LockAsk {
        life: u64,
        ask: LockAsk,
        echo: Echo,
    },
    LockAnswer {
        life: u64,
        answer: LockAnswer,
        echo: Echo,
    },
    Tell {
        page: usize,
        number: u64,
        life: u64,
    },
    Told {
        page: usize,
        number: u64,
        life: u64,
    },
    Access(Access),
    Done {
        access: u64,
        outcome: Outcome,
    },
}

/// An access to a word of a page of another node; writes if there is a value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub number: u64,
    pub from: NodeId,
    pub page: usize,
    pub word: usize,
    pub fence: Option<Fence>,
    pub write: Option<u64>,
    /// How often the home has waited for programs of its host.
    pub tries: u8,
}

/// What came of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Value(u64),
    /// Nothing was done: the page is elsewhere, or moving.
    Moved,
    /// Nothing was done: the fence counts no more, or nobody can say.
    Old,
    /// Nothing was done: the node is cut off from the directory.
    CutOff,
}

/// What the asker of a lock home wants to know when the answer comes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Echo {
    Wish { request: LockRequest, sent_ms: u64 },
    Renewal { number: u64, sent_ms: u64 },
    Check { number: u64, sent_ms: u64 },
}

/// What the directory was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    Join,
    Report,
    Beat {
        sent_ms: u64,
    },
    Layout,
    /// A taker begins, commits, or takes an intent back.
    Begin(usize),
    Commit(usize, Epoch),
    End(usize, Epoch),
    /// A home asks about a page that is frozen.
    Settle(usize, Epoch),
    /// A program did not find a page.
    Find(usize),
}

/// A question to the directory.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub purpose: Purpose,
    /// Until when an answer is waited for.
    pub until_ms: u64,
    /// What is asked once more, over another connection, when there is none.
    pub again: Option<Command>,
}

/// A move that a node takes part in.
#[derive(Clone, Debug)]
pub(super) enum Move {
    Leaving(Leaving),
    Coming(Coming),
}

/// A page that is frozen, or will be when nobody is in it.
#[derive(Clone, Debug)]
pub(super) struct Leaving {
    pub epoch: Epoch,
    pub since_ms: u64,
    /// Until when threads that are in the page are waited for; `None` once none is.
    pub wait_until_ms: Option<u64>,
    /// Who waits for it to be frozen.
    pub askers: Vec<(NodeId, u64)>,
    pub is_settling: bool,
}

/// What a node knows of the region.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub words: [Word; PAGES],
    pub moves: BTreeMap<usize, Move>,
}

/// How far a process is with the directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Joining,
    Reporting,
    Up,
}

/// What a life of a node knows.
pub(super) struct Running {
    pub stage: Stage,
    /// The directory has taken a report of this life.
    pub has_joined: bool,
    pub lease_until_ms: u64,
    pub beat_ms: u64,
    pub retry_ms: u64,
    /// Questions to the directory.
    pub asks: BTreeMap<u64, Asked>,
    pub table: Option<Table>,
    pub heat: HeatTable,
    pub budget: Moves,
    /// Pages whose homes were asked whether they might come.
    pub wanted: BTreeMap<usize, (u64, u64, Heat)>,
    pub home: LockHome,
    pub holder: LockHolder,
    pub fences: Fences,
    pub pending: BTreeMap<u64, Access>,
    pub renewed_ms: u64,
    pub copies: Copies,
    /// It dies when it has passed so many more steps.
    pub fuse: Option<u64>,
}

/// A node, also while it is down.
pub(super) struct Node {
    pub id: NodeId,
    pub running: Option<Running>,
    /// Thousandths of the speed of time at which its clock runs.
    pub speed: u64,
    pub offset_ms: u64,
    pub stopped_until_ms: u64,
    pub lives: u64,
    pub incarnation: u64,
    /// Fences below this one may have been given: on its disk.
    pub durable: Option<Fence>,
    /// The part of the region: its epoch, and its pages, in files that outlive the process.
    pub part: Option<Epoch>,
    pub memory: BTreeMap<usize, Content>,
    /// Copies of pages of others, in the same files, and until when programs believe them.
    pub copied: BTreeMap<usize, Content>,
    pub copies_until_ms: u64,
    /// Whether a life has given copies away: on its disk.
    pub has_shared: bool,
    /// What the last life has told programs, until the next one begins.
    pub stale_words: Option<[Word; PAGES]>,
    /// Of those, the pages of which it said that others have copies.
    pub stale_shares: BTreeSet<usize>,
    pub programs: Vec<Program>,
}

impl Node {
    pub fn new(id: NodeId, speed: u64, offset_ms: u64) -> Self {
        Self {
            id,
            running: None,
            speed,
            offset_ms,
            stopped_until_ms: 0,
            lives: 0,
            incarnation: 1,
            durable: None,
            part: None,
            memory: BTreeMap::new(),
            copied: BTreeMap::new(),
            copies_until_ms: 0,
            has_shared: false,
            stale_words: None,
            stale_shares: BTreeSet::new(),
            programs: (0..PROGRAMS).map(|_| Program::new(offset_ms)).collect(),
        }
    }

    pub fn clock_ms(&self, now_ms: u64) -> u64 {
        self.offset_ms + now_ms * self.speed / 1000
    }

    pub fn start(
        &mut self,
        clock_ms: u64,
        settings: hinterland_directory::locks::LockSettings,
        rules: HeatRules,
    ) {
        self.lives += 1;
        self.incarnation += 1;
        self.stale_words = None;
        self.stale_shares.clear();
        // Words of the life before are made to say nothing, and memory of its copies is given back.
        self.copies_until_ms = 0;
        self.copied.clear();
        self.running = Some(Running {
            stage: Stage::Joining,
            has_joined: false,
            lease_until_ms: 0,
            beat_ms: 0,
            retry_ms: 0,
            asks: BTreeMap::new(),
            table: None,
            heat: HeatTable::new(rules),
            budget: Moves::new(rules),
            wanted: BTreeMap::new(),
            home: LockHome::new(self.id, settings, self.durable, clock_ms),
            holder: LockHolder::new(settings.lease_ms),
            fences: Fences::default(),
            pending: BTreeMap::new(),
            renewed_ms: 0,
            copies: Copies::default(),
            fuse: None,
        });
    }

    /// The words and moves of this life, if it knows the region.
    pub fn table(&mut self) -> Option<&mut Table> {
        self.running.as_mut()?.table.as_mut()
    }

    pub fn word(&self, page: usize) -> Word {
        let table = self.running.as_ref().and_then(|running| running.table.as_ref());
        table.map_or(Word::Unknown, |table| table.words[page])
    }
}

/// The sum over a page that its home says and its taker compares.
pub(super) fn sum_of(content: &Content) -> u64 {
    content.iter().fold(1, |sum, value| crate::random::mix(sum ^ value))
}

/// Where the lock on the first word of a page is kept: it never moves.
pub(super) const fn lock_home(page: usize) -> NodeId {
    NodeId(page as u64 % NODES + 1)
}
