//! The event loop of the simulation of moves: virtual time, deliveries, wakes and faults.

use super::book::Book;
use super::directory::DIRECTORY_BACK_MS;
use super::node::{Access, Letter, Node, Stage, Word};
use super::program::{Doing, Program};
use super::{BrokenMoveRule, CrashAt, MoveReport};
use crate::directory_host::DirectoryHost;
use crate::history::Act;
use crate::message::{Address, Ticket};
use crate::network::{Network, Weather};
use crate::random::Random;
use hinterland_directory::locks::LockSettings;
use hinterland_directory::{Command, Placement, Reply, Settings};
use hinterland_policy::heat::{HeatRules, HeatSettings};
use hinterland_types::limits::PAGE_BYTES;
use hinterland_types::{GlobalAddress, NodeId, ObjectId, ObjectName, PageNumber, RackName};
use std::collections::BTreeMap;
use std::time::Duration;

pub(super) const NODES: u64 = 4;
pub(super) const PAGES: usize = 4;
pub(super) const WORDS: usize = 2;
pub(super) const PROGRAMS: usize = 2;
/// How often a node looks at its clock, in milliseconds.
const WAKE_MS: u64 = 10;
/// How long a program waits for a home, and how long it tries in all.
pub(super) const ACCESS_MS: u64 = 400;
pub(super) const PATIENCE_MS: u64 = 6000;
/// How long a taker waits for a home.
pub(super) const CALL_MS: u64 = 1200;
/// The lease of members.
pub(super) const LEASE_MS: u64 = 3000;
pub(super) const LOCKS: LockSettings =
    LockSettings { lease_ms: 1200, lease_before_ms: 0, fence_step: 8, claims_per_node_max: 64, idle_max: 2 };

/// When faults end, programs begin nothing more, they read everything, and the run ends; in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub calm_ms: u64,
    quiet_ms: u64,
    last_ms: u64,
    end_ms: u64,
}

/// Threads stay in pages for up to 3 s until all is quiet, also when faults are over: a lock may be that long in coming, and again.
const LONG: Times = Times { calm_ms: 45_000, quiet_ms: 54_000, last_ms: 57_500, end_ms: 63_000 };
const SHORT: Times = Times { calm_ms: 6000, quiet_ms: 14_500, last_ms: 19_000, end_ms: 26_500 };

pub(super) enum Step {
    Deliver(Address, Address, Letter),
    Wake(NodeId),
    Start(NodeId),
    /// The thread of a program comes to its load or store.
    Finish(NodeId, usize, u64),
    /// A home looks again whether an access may be let through.
    Again(NodeId, u64, Access),
    /// What a connection has lost is sent again, as long as the asker waits.
    Resend(Address, Address, Letter),
    /// A question that reached the directory while it was stopped.
    Held(NodeId, Ticket, Command),
    StartDirectory,
    Tick,
    Fault,
    Calm,
    LastReads,
}

pub(super) struct World {
    pub now_ms: u64,
    queue: BTreeMap<(u64, u64), Step>,
    next_step: u64,
    /// Counts what happens: the time in which histories are told.
    pub stamp: u64,
    pub random: Random,
    pub network: Network,
    pub directory: DirectoryHost,
    /// The node whose process is the directory, too.
    pub directory_at: Option<NodeId>,
    pub directory_sleeps_ms: u64,
    directory_speed: u64,
    pub nodes: Vec<Node>,
    pub books: Vec<Book>,
    pub rules: HeatRules,
    pub capacity_pages: u64,
    pub object: ObjectId,
    /// The number of the region's first page.
    pub first: u32,
    pub broken: Option<BrokenMoveRule>,
    /// Whether programs look at the clock also before they ask a home.
    pub is_careful: bool,
    /// Whether nodes have copies of pages of others: a home that has given some rests for a lease when it starts again.
    pub has_copies: bool,
    pub report: MoveReport,
    pub times: Times,
    pub crash: Option<CrashAt>,
    /// Whether there are no faults but that one.
    pub is_calm: bool,
    pub step_count: u64,
    /// Nodes that are cut off from the directory, and until when.
    pub cut: Option<(u64, u64)>,
    pub last_locked: [u64; NODES as usize],
    /// When the directory last heard of each node.
    pub renewed_ms: [u64; NODES as usize],
    pub before_commit: Option<Option<NodeId>>,
    pub answered: u64,
    favourites: [usize; NODES as usize],
    next_number: u64,
    unkept: Option<String>,
    trace: Option<Vec<String>>,
}

fn rules() -> HeatRules {
    let settings = HeatSettings {
        caches: false,
        lifetime: Duration::from_secs(3),
        decay_per_s: 1.0,
        accesses_per_move: 1,
        threshold: 2.0,
        rest: Duration::from_millis(250),
        pause: Duration::from_millis(100),
        ..HeatSettings::default()
    };
    HeatRules::new(settings).expect("every number is within its limits")
}

impl World {
    /// A run with faults.
    pub fn new(seed: u64, broken: Option<BrokenMoveRule>, is_traced: bool) -> Self {
        let mut random = Random::new(seed);
        let weather = Weather {
            lost_percent: random.below(8),
            repeated_percent: random.below(12),
            late_percent: random.below(20),
            late_ms: if random.percent(50) { random.between(5, 300) } else { random.between(300, 4500) },
        };
        let mut world = Self::furnished(random, weather, broken, LONG);
        world.trace = is_traced.then(Vec::new);
        let mut at_ms = 0;
        while at_ms < LONG.calm_ms - 2000 {
            at_ms += world.random.between(200, 3500);
            world.schedule(at_ms, Step::Fault);
        }
        world
    }

    /// A run without faults but for one crash; every other seed has copies of pages.
    pub fn calm(seed: u64, broken: Option<BrokenMoveRule>, crash: Option<CrashAt>) -> Self {
        let mut world = Self::furnished(Random::new(seed), Weather::CALM, broken, SHORT);
        (world.crash, world.is_calm, world.has_copies) = (crash, true, seed % 2 == 1);
        world
    }

    fn furnished(mut random: Random, weather: Weather, broken: Option<BrokenMoveRule>, times: Times) -> Self {
        let node = |id, random: &mut Random| {
            // At most an eighth apart, as far as leases allow.
            Node::new(NodeId(id), random.between(945, 1055), random.below(1_000_000))
        };
        let nodes = (1..=NODES).map(|id| node(id, &mut random)).collect();
        let settings = Settings { lease_ms: LEASE_MS };
        let mut world = Self {
            now_ms: 0,
            queue: BTreeMap::new(),
            next_step: 0,
            stamp: 0,
            network: Network::new(weather),
            directory: DirectoryHost::new(settings, None),
            directory_at: random.percent(50).then(|| NodeId(random.between(1, NODES + 1))),
            directory_sleeps_ms: 0,
            directory_speed: random.between(945, 1055),
            nodes,
            books: vec![Book::default(); PAGES * WORDS],
            rules: rules(),
            capacity_pages: random.between(4, 9),
            object: ObjectId(0),
            first: 0,
            broken,
            is_careful: random.percent(50),
            // Whoever looks for a broken rule needs runs that have much of what it is about.
            has_copies: broken.map_or(random.percent(50), BrokenMoveRule::is_of_copies),
            report: MoveReport::default(),
            times,
            crash: None,
            is_calm: false,
            step_count: 0,
            cut: None,
            last_locked: [0; NODES as usize],
            renewed_ms: [0; NODES as usize],
            before_commit: None,
            answered: 0,
            favourites: [0; NODES as usize],
            next_number: 1,
            unkept: None,
            trace: None,
            random,
        };
        world.furnish();
        world
    }

    /// The nodes are members, and have a region, before anything begins.
    fn furnish(&mut self) {
        self.directory.start(0).expect("nothing contradicts nothing");
        for node in Self::ids() {
            let join = self.join_command(node);
            self.tell_directory(&join);
            let (objects, after) = (Vec::new(), ObjectId(0));
            self.tell_directory(&Command::NodeObjects { node, incarnation: 1, after, objects, more: false });
        }
        let name = ObjectName::parse("region").expect("letters are a name");
        let on_one = NodeId(self.random.between(1, NODES + 1));
        // In half of the runs all begins on one node, and the others make their parts when they take a page.
        let placement = match self.random.percent(50) {
            true => Placement::Spread,
            false => Placement::Rack(rack_of(on_one)),
        };
        let (size, local) = (PAGES as u64 * PAGE_BYTES, NodeId(1));
        let made = self.tell_directory(&Command::CreateRegion { name, size, placement, local });
        let Some(Reply::Reserved { object, homes }) = made else { return };
        self.object = object;
        for home in &homes {
            self.node(home.node).part = Some(home.epoch);
        }
        if let Some(Reply::Object(info)) = self.tell_directory(&Command::LookupObject { object }) {
            self.first = info.pages.map_or(0, |pages| pages.first().raw());
        }
        for page in 0..PAGES {
            if let Some(Some(home)) = self.home_of(page) {
                self.node(home).memory.insert(page, [0; WORDS]);
            }
        }
        for (id, offset) in Self::ids().zip([0, 3, 5, 7]) {
            self.schedule(0, Step::Start(id));
            self.schedule(1 + offset, Step::Wake(id));
        }
        self.schedule(LEASE_MS / 4, Step::Tick);
        self.schedule(self.times.calm_ms, Step::Calm);
        self.schedule(self.times.last_ms, Step::LastReads);
    }

    /// Asks the directory without the network, before the run begins.
    fn tell_directory(&mut self, command: &Command) -> Option<Reply> {
        let ticket = Ticket { life: 0, task: 0, part: 0 };
        let mut outbox = crate::Outbox::new(Address::Directory, false);
        self.directory.receive(0, Address::Directory, ticket, command, &mut outbox);
        match outbox.messages.pop() {
            Some((_, crate::message::Message::Answer(_, Ok(reply)))) => Some(reply),
            other => {
                self.fail(format!("the directory answered {other:?} to {command:?}"));
                None
            }
        }
    }

    pub fn run(&mut self) -> Result<MoveReport, String> {
        while let Some(((at_ms, _), step)) = self.queue.pop_first() {
            if at_ms > self.times.end_ms {
                break;
            }
            self.now_ms = at_ms;
            self.stamp += 1;
            self.step(step);
            self.check_owners();
            if let Some(reason) = self.unkept.take() {
                return Err(format!("at {at_ms} ms: {reason}"));
            }
        }
        self.settled()?;
        Ok(std::mem::take(&mut self.report))
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Deliver(from, to, letter) => self.arrive_at(from, to, letter),
            Step::Wake(id) => {
                if let Some(until_ms) = self.stopped(id) {
                    self.schedule(until_ms + 1, Step::Wake(id));
                } else {
                    self.schedule(self.now_ms + WAKE_MS, Step::Wake(id));
                    self.wake(id);
                }
            }
            Step::Start(id) => match self.stopped(id) {
                Some(until_ms) => self.schedule(until_ms + 1, Step::Start(id)),
                None => self.start(id),
            },
            Step::Finish(id, index, number) => match self.stopped(id) {
                Some(until_ms) => self.schedule(until_ms + 1, Step::Finish(id, index, number)),
                None => self.finish(id, index, number),
            },
            Step::Again(id, life, access) => match self.stopped(id) {
                Some(until_ms) => self.schedule(until_ms + 1, Step::Again(id, life, access)),
                None if self.node(id).lives == life && self.node(id).running.is_some() => {
                    self.access(id, access)
                }
                None => {}
            },
            Step::Resend(from, to, letter) => self.send(from, to, letter),
            Step::Held(from, ticket, command) => match self.directory_sleeps() {
                until_ms if until_ms > self.now_ms => {
                    self.schedule(until_ms, Step::Held(from, ticket, command));
                }
                _ => self.directory_asked(from, ticket, &command),
            },
            Step::StartDirectory => self.start_directory(),
            Step::Tick => {
                self.schedule(self.now_ms + LEASE_MS / 4, Step::Tick);
                if self.directory.is_running() && self.directory_sleeps() <= self.now_ms {
                    let clock_ms = self.directory_clock();
                    if !self.directory.tick(clock_ms) {
                        self.directory_down();
                    }
                }
            }
            Step::Fault if self.now_ms < self.times.calm_ms => self.fault(),
            Step::Fault => {}
            Step::Calm => self.end_faults(),
            Step::LastReads => {
                for node in &mut self.nodes {
                    let words = (0..PAGES).flat_map(|page| (0..WORDS).map(move |word| (page, word)));
                    node.programs[0].last_reads = words.collect();
                }
            }
        }
    }

    fn start(&mut self, id: NodeId) {
        let clock_ms = self.clock_ms(id);
        let rules = self.rules;
        if self.node(id).running.is_none() {
            self.node(id).start(clock_ms, LOCKS, rules);
            self.be_quiet(id);
            self.note(|| format!("node {} starts", id.0));
            self.serve_early(id);
            self.act(id);
        }
    }

    fn start_directory(&mut self) {
        if let Some(id) = self.directory_at
            && let Some(until_ms) = self.stopped(id)
        {
            return self.schedule(until_ms + 1, Step::StartDirectory);
        }
        let clock_ms = self.directory_clock();
        if !self.directory.is_running() {
            self.note(|| "the directory starts".to_owned());
            if let Err(text) = self.directory.start(clock_ms).and_then(|()| self.directory.check()) {
                self.fail(text);
            }
        }
    }

    fn arrive_at(&mut self, from: Address, to: Address, letter: Letter) {
        if let (Address::Node(from), Address::Directory, Letter::Ask(ticket, command)) = (from, to, &letter) {
            // A question that was given up does not arrive later, unless it is there already.
            if self.directory_at == Some(from) && self.stopped(from).is_none() {
                // It is asked by a call.
                return self.directory_asked(from, *ticket, command);
            }
            if self.is_waited_for(from, *ticket) {
                let at_ms = self.directory_sleeps().max(self.now_ms) + self.random.below(2);
                self.schedule(at_ms, Step::Held(from, *ticket, command.clone()));
            }
            return;
        }
        let Address::Node(id) = to else { return };
        if let Some(until_ms) = self.stopped(id) {
            let jitter = self.random.below(5);
            return self.schedule(until_ms + jitter, Step::Deliver(from, to, letter));
        }
        match (from, to, letter) {
            (Address::Directory, Address::Node(id), Letter::Answer(ticket, answer)) => {
                let node = self.node(id);
                if node.lives != ticket.life {
                    return;
                }
                let Some(running) = &mut node.running else { return };
                let asked = running.asks.remove(&ticket.task);
                if let Some(asked) = asked {
                    self.told(id, asked.purpose, Some(answer));
                }
            }
            (Address::Node(from), Address::Node(id), letter) => self.deliver(from, id, letter),
            _ => {}
        }
    }

    fn deliver(&mut self, from: NodeId, id: NodeId, letter: Letter) {
        if let Letter::Done { access, outcome } = letter {
            // The connection is the program's own.
            return self.answered_access(id, access, outcome);
        }
        if self.node(id).running.is_none() {
            return;
        }
        match letter {
            Letter::Wanted { call, page, heat } => {
                let is_here = matches!(self.node(id).word(page), Word::Here(_));
                let letter = match is_here && self.allows(id, page, Some(heat)) {
                    true => Letter::Allowed { call },
                    false => Letter::Refused { call },
                };
                self.post(id, from, letter);
            }
            Letter::Allowed { call } => self.allowed(id, call),
            Letter::Freeze { call, page, epoch, heat } => self.freeze(id, from, call, (page, epoch), heat),
            Letter::Frozen { call, sum } => self.frozen(id, call, sum),
            Letter::Copy { call, page, word } => self.copy(id, from, call, (page, word)),
            Letter::Copied { call, word, value } => self.copied(id, call, word, value),
            Letter::Refused { call } => {
                self.home_refused(id, call);
                self.copy_refused(id, call);
                self.recalled(id, from, call, false);
            }
            Letter::Share { call, page } => self.share(id, from, call, page),
            Letter::Shared { call, sum, term } => self.shared(id, call, sum, term),
            Letter::Unshare { call, page } => self.unshare(id, from, call, page),
            Letter::Unshared { call } => self.recalled(id, from, call, true),
            Letter::Keep { term, asked_ms } => self.keep(id, from, term, asked_ms),
            Letter::Kept { term, asked_ms, is_kept } => self.kept(id, from, (term, asked_ms), is_kept),
            Letter::Moved { page, epoch } => self.moved(id, page, epoch),
            Letter::Take { page } => {
                self.pull(id, page, None);
            }
            Letter::LockAsk { life, ask, echo } => self.lock_asked(id, from, life, &ask, echo),
            Letter::LockAnswer { life, answer, echo } => self.lock_answered(id, from, life, &answer, echo),
            Letter::Tell { page, number, life } => self.forget_lock(id, from, (page, number, life)),
            Letter::Told { page, number, life } => self.lock_forgotten(id, from, (page, number, life)),
            Letter::Access(access) => self.access(id, access),
            Letter::Ask(..) | Letter::Answer(..) | Letter::Done { .. } => {}
        }
    }

    fn wake(&mut self, id: NodeId) {
        if self.node(id).running.is_some() {
            self.wake_member(id);
            self.wake_taker(id);
            self.wake_home(id);
            self.wake_copies(id);
            self.wake_locks(id);
            self.order(id);
        }
        for index in 0..PROGRAMS {
            self.program(id, index);
        }
    }

    /// Now and then somebody orders a node to take a page.
    fn order(&mut self, id: NodeId) {
        if !self.is_quiet() && self.random.below(400) == 0 {
            let (to, page) =
                (NodeId(self.random.between(1, NODES + 1)), self.random.below(PAGES as u64) as usize);
            self.post(id, to, Letter::Take { page });
        }
    }

    fn program(&mut self, id: NodeId, index: usize) {
        let clock_ms = self.clock_ms(id);
        let program: &Program = &self.node(id).programs[index];
        match program.doing {
            _ if program.going.is_some() => self.look(id, index),
            Doing::Resting { until_ms } if clock_ms >= until_ms => self.begin(id, index),
            Doing::Resting { .. } => {}
            Doing::Locking { until_ms } => self.locking(id, index, until_ms),
            Doing::Holding => self.hold(id, index),
            Doing::Plain => self.node(id).programs[index].doing = Doing::Resting { until_ms: clock_ms },
        }
    }

    fn begin(&mut self, id: NodeId, index: usize) {
        let stamp = self.stamp;
        if let Some((page, word)) = self.node(id).programs[index].last_reads.last().copied() {
            let program = &mut self.node(id).programs[index];
            (program.page, program.doing) = (page, Doing::Plain);
            return self.begin_access(id, index, word, Act::Read(0), stamp);
        }
        if self.is_quiet() {
            return;
        }
        let any = self.random.below(PAGES as u64) as usize;
        let place = id.0 as usize - 1;
        if self.random.percent(4) {
            self.favourites[place] = any;
        }
        let page = if self.random.percent(65) { self.favourites[place] } else { any };
        let is_up = self.node(id).running.as_ref().is_some_and(|running| running.stage == Stage::Up);
        if is_up && self.random.percent(45) {
            return self.begin_lock(id, index, page);
        }
        let value = self.next_value();
        let writes_percent = if self.has_copies { 20 } else { 45 };
        let act = if self.random.percent(writes_percent) { Act::Write(value) } else { Act::Read(0) };
        let program = &mut self.node(id).programs[index];
        (program.page, program.doing) = (page, Doing::Plain);
        self.begin_access(id, index, 1, act, stamp);
    }

    /// The directory goes on before its time, with what it finds before anything else.
    pub fn hurry_held(&mut self) {
        let is_held = |(key, step): (&(u64, u64), &Step)| matches!(step, Step::Held(..)).then_some(*key);
        for key in self.queue.iter().filter_map(is_held).collect::<Vec<_>>() {
            if let Some(step) = self.queue.remove(&key) {
                self.schedule(self.now_ms, step);
            }
        }
    }

    pub fn schedule(&mut self, at_ms: u64, step: Step) {
        self.next_step += 1;
        self.queue.insert((at_ms.max(self.now_ms), self.next_step), step);
    }

    pub fn post(&mut self, from: NodeId, to: NodeId, letter: Letter) {
        self.send(Address::Node(from), Address::Node(to), letter);
    }

    pub fn send(&mut self, from: Address, to: Address, letter: Letter) {
        let host = |address| match address {
            Address::Directory => self.directory_at,
            Address::Node(id) => Some(id),
        };
        if host(from) == host(to) && host(from).is_some() {
            return self.schedule(self.now_ms, Step::Deliver(from, to, letter));
        }
        let mut arrivals = self.network.arrivals(self.now_ms, from, to, &mut self.random);
        if matches!(letter, Letter::Access(_) | Letter::Done { .. } | Letter::Ask(..) | Letter::Answer(..)) {
            // A connection delivers once or breaks; what may be asked twice is asked by a connection of its own.
            arrivals.truncate(1);
        }
        let ticket = match (&letter, from, to) {
            (Letter::Ask(ticket, _), Address::Node(asker), _)
            | (Letter::Answer(ticket, _), _, Address::Node(asker)) => Some((asker, *ticket)),
            _ => None,
        };
        if let Some((asker, ticket)) = ticket.filter(|_| arrivals.is_empty())
            && self.is_waited_for(asker, ticket)
        {
            let at_ms = self.now_ms + self.random.between(100, 1500);
            return self.schedule(at_ms, Step::Resend(from, to, letter));
        }
        for at_ms in arrivals {
            self.schedule(at_ms, Step::Deliver(from, to, letter.clone()));
        }
    }

    /// Whether a node still waits for the answer to a question.
    fn is_waited_for(&self, id: NodeId, ticket: Ticket) -> bool {
        let node = &self.nodes[id.0 as usize - 1];
        let running = node.running.as_ref().filter(|_| node.lives == ticket.life);
        running.is_some_and(|running| running.asks.contains_key(&ticket.task))
    }

    pub fn node(&mut self, id: NodeId) -> &mut Node {
        // Ids are 1 to 4.
        &mut self.nodes[id.0 as usize - 1]
    }

    pub fn stopped(&self, id: NodeId) -> Option<u64> {
        Some(self.nodes[id.0 as usize - 1].stopped_until_ms).filter(|until_ms| *until_ms > self.now_ms)
    }

    /// Until when the directory's process does not run, because it or its host is stopped.
    fn directory_sleeps(&self) -> u64 {
        let host_ms = self.directory_at.and_then(|id| self.stopped(id)).unwrap_or(0);
        self.directory_sleeps_ms.max(host_ms)
    }

    pub fn clock_ms(&self, id: NodeId) -> u64 {
        self.nodes[id.0 as usize - 1].clock_ms(self.now_ms)
    }

    pub fn clock(&self, id: NodeId) -> Duration {
        Duration::from_millis(self.clock_ms(id))
    }

    pub fn directory_clock(&self) -> u64 {
        self.now_ms * self.directory_speed / 1000
    }

    pub fn is_quiet(&self) -> bool {
        self.now_ms >= self.times.quiet_ms
    }

    /// How long an answer of the directory is waited for.
    pub fn patience_ms(&mut self) -> u64 {
        let most_ms = if self.random.percent(50) { DIRECTORY_BACK_MS.1 } else { 4 * LEASE_MS };
        self.random.between(800, most_ms)
    }

    /// A page's number in the pool.
    pub fn number(&self, page: usize) -> PageNumber {
        // The region has four pages.
        PageNumber::new(self.first + page as u32).unwrap_or_default()
    }

    /// Where the lock on a page's first word is.
    pub fn lock(&self, page: usize) -> GlobalAddress {
        self.number(page).address()
    }

    pub fn next_call(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// A value that nobody else writes.
    pub fn next_value(&mut self) -> u64 {
        self.next_call()
    }

    /// A promise was not kept.
    pub fn fail(&mut self, text: String) {
        self.note(|| text.clone());
        self.unkept.get_or_insert(text);
    }

    pub fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>6} ms  {}", self.now_ms, text()));
        }
    }

    pub fn take_trace(&mut self) -> Vec<String> {
        self.trace.take().unwrap_or_default()
    }
}

/// Every node is a rack of its own.
pub(super) fn rack_of(node: NodeId) -> RackName {
    RackName::parse(&format!("r{}", node.0)).expect("a letter and a number are a name")
}
