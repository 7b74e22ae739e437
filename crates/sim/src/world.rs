//! The event loop: virtual time, deliveries, faults, and the checks that follow every step.

use crate::chaos::{CHAOS_MS, END_MS, Event, NAMES, Plan};
use crate::directory_host::DirectoryHost;
use crate::message::{Address, Message};
use crate::network::Network;
use crate::node::{Node, NodeConfig, PutOrder};
use crate::random::Random;
use crate::truth::{Fact, Truth};
use crate::{BrokenRule, Outbox, Report};
use hinterland_directory::{Placement, Settings};
use hinterland_types::limits::CHECKSUM_BLOCK_BYTES;
use hinterland_types::{NodeId, ObjectId, ObjectName, RackName};
use std::collections::{BTreeMap, BTreeSet};

/// Milliseconds after which a directory that died in a write is started again.
const DIRECTORY_BACK_MS: u64 = 300;
/// How many of the directory's changes lie between two checks of all its rules.
const CHECK_EVERY: u64 = 20;

enum Step {
    Deliver(Address, Address, Message),
    Happen(Event),
    WakeNode(NodeId),
    StartNode(NodeId),
    StartDirectory,
    Tick,
    Heal,
    FinalGets,
    End,
}

pub(crate) struct World {
    now_ms: u64,
    /// By time, then in the order in which they were planned.
    queue: BTreeMap<(u64, u64), Step>,
    next_step: u64,
    random: Random,
    network: Network,
    pub(crate) directory: DirectoryHost,
    directory_sleeps_ms: u64,
    /// Of the directory, then of each node.
    clocks: Vec<(u64, u64)>,
    /// Until when hosts are stopped.
    paused: BTreeMap<NodeId, u64>,
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    /// Nodes that never come back.
    pub(crate) gone: BTreeSet<NodeId>,
    /// When a wake of each node is already planned.
    wakes: BTreeMap<NodeId, BTreeSet<u64>>,
    pub(crate) truth: Truth,
    next_put: u64,
    pub(crate) largest_object: u64,
    step_count: u64,
    /// What happened, if somebody wants to read it.
    trace: Option<Vec<String>>,
}

impl World {
    pub(crate) fn new(seed: u64, broken: Option<BrokenRule>, traced: bool) -> Self {
        let mut random = Random::new(seed);
        let plan = Plan::draw(&mut random);
        let settings = Settings::default();
        let mut world = Self {
            now_ms: 0,
            queue: BTreeMap::new(),
            next_step: 0,
            random,
            network: Network::new(plan.weather),
            directory: DirectoryHost::new(settings, broken),
            directory_sleeps_ms: 0,
            clocks: plan.clocks,
            paused: BTreeMap::new(),
            nodes: BTreeMap::new(),
            gone: BTreeSet::new(),
            wakes: BTreeMap::new(),
            truth: Truth::default(),
            next_put: 1,
            largest_object: 0,
            step_count: 0,
            trace: traced.then(Vec::new),
        };
        world.schedule(0, Step::StartDirectory);
        for (id, capacity_bytes) in (1..).map(NodeId).zip(&plan.capacity_bytes) {
            let rack = rack_name((id.0 % plan.rack_count) as usize);
            let config = NodeConfig { id, rack, capacity_bytes: *capacity_bytes, settings, broken };
            world.nodes.insert(id, Node::new(config));
            world.schedule(id.0, Step::StartNode(id));
        }
        for (at_ms, event) in plan.events {
            world.schedule(at_ms, Step::Happen(event));
        }
        world.schedule(settings.tick_ms(), Step::Tick);
        world.schedule(CHAOS_MS + plan.later_ms, Step::Heal);
        world.schedule(END_MS + plan.later_ms - 6000, Step::FinalGets);
        world.schedule(END_MS + plan.later_ms, Step::End);
        world
    }

    /// Runs to the end; an error is a promise that was not kept.
    pub(crate) fn run(&mut self) -> Result<Report, String> {
        while let Some(((at_ms, _), step)) = self.queue.pop_first() {
            self.now_ms = at_ms;
            self.step_count += 1;
            if matches!(step, Step::End) {
                break;
            }
            self.step(step)?;
        }
        self.settled(self.clock_of_directory())?;
        Ok(Report {
            steps: self.step_count,
            puts_done: self.truth.done_count,
            gets_found: self.truth.found_count,
            removes: self.truth.remove_count,
            copies_lost: self.truth.lost_count,
        })
    }

    pub(crate) fn take_trace(&mut self) -> Vec<String> {
        self.trace.take().unwrap_or_default()
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>6} ms  {}", self.now_ms, text()));
        }
    }

    fn schedule(&mut self, at_ms: u64, step: Step) {
        self.queue.insert((at_ms, self.next_step), step);
        self.next_step += 1;
    }

    fn step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Deliver(from, to, message) => self.deliver(from, to, message),
            Step::Happen(event) => self.happen(event),
            Step::WakeNode(id) => {
                self.wakes.entry(id).or_default().remove(&self.now_ms);
                if let Some(until_ms) = self.paused_until(id) {
                    if self.wakes.entry(id).or_default().insert(until_ms) {
                        self.schedule(until_ms, Step::WakeNode(id));
                    }
                    return Ok(());
                }
                let clock_ms = self.clock_ms(id);
                self.with_node(id, |node, outbox| node.wake(clock_ms, outbox))
            }
            Step::StartNode(id) => {
                if let Some(until_ms) = self.paused_until(id) {
                    self.schedule(until_ms, Step::StartNode(id));
                    return Ok(());
                }
                let clock_ms = self.clock_ms(id);
                let gone = self.gone.contains(&id);
                self.with_node(id, |node, outbox| {
                    if !node.is_running() && !gone {
                        node.start(clock_ms, outbox);
                    }
                })
            }
            Step::StartDirectory => self.start_directory(),
            Step::Tick => {
                let now_ms = self.now_ms;
                self.schedule(now_ms + self.directory.settings().tick_ms(), Step::Tick);
                if self.directory.is_running() && self.directory_sleeps_ms <= now_ms {
                    let alive = self.directory.tick(self.clock_of_directory());
                    self.directory_died(alive);
                }
                Ok(())
            }
            Step::Heal => self.heal(),
            Step::FinalGets => self.final_gets(),
            Step::End => Ok(()),
        }
    }

    fn start_directory(&mut self) -> Result<(), String> {
        if self.directory.is_running() {
            return Ok(());
        }
        self.note(|| "directory starts".to_owned());
        self.directory.start(self.clock_of_directory())?;
        self.directory.check()
    }

    fn directory_died(&mut self, alive: bool) {
        if !alive {
            self.note(|| "directory died in a write".to_owned());
            self.schedule(self.now_ms + DIRECTORY_BACK_MS, Step::StartDirectory);
        }
    }

    fn deliver(&mut self, from: Address, to: Address, message: Message) -> Result<(), String> {
        let now_ms = self.now_ms;
        match to {
            Address::Node(id) => {
                if let Some(until_ms) = self.paused_until(id) {
                    self.schedule(until_ms, Step::Deliver(from, to, message));
                    return Ok(());
                }
                if self.nodes[&id].is_running() {
                    self.note(|| format!("{from:?} -> {to:?}: {message:?}"));
                }
                let clock_ms = self.clock_ms(id);
                self.with_node(id, |node, outbox| node.receive(clock_ms, from, message, outbox))
            }
            Address::Directory if self.directory_sleeps_ms > now_ms => {
                self.schedule(self.directory_sleeps_ms, Step::Deliver(from, to, message));
                Ok(())
            }
            Address::Directory => {
                let Message::Ask(ticket, command) = message else { return Ok(()) };
                if !self.directory.is_running() {
                    return Ok(());
                }
                self.note(|| format!("{from:?} -> directory: {command:?}"));
                let mut outbox = Outbox::new(to, self.trace.is_some());
                let alive =
                    self.directory.receive(self.clock_of_directory(), from, ticket, &command, &mut outbox);
                self.directory_died(alive);
                if self.step_count.is_multiple_of(CHECK_EVERY) {
                    self.directory.check()?;
                }
                self.drain(outbox)
            }
        }
    }

    fn paused_until(&self, id: NodeId) -> Option<u64> {
        self.paused.get(&id).copied().filter(|until_ms| *until_ms > self.now_ms)
    }

    /// What the clock of a node says.
    fn clock_ms(&self, id: NodeId) -> u64 {
        let (speed, offset_ms) = self.clocks[id.0 as usize];
        offset_ms + self.now_ms * speed / 1000
    }

    /// When the clock of a node says so.
    fn time_of(&self, id: NodeId, clock_ms: u64) -> u64 {
        let (speed, offset_ms) = self.clocks[id.0 as usize];
        (clock_ms.saturating_sub(offset_ms) * 1000).div_ceil(speed)
    }

    fn clock_of_directory(&self) -> u64 {
        let (speed, offset_ms) = self.clocks[0];
        offset_ms + self.now_ms * speed / 1000
    }

    fn with_node(&mut self, id: NodeId, act: impl FnOnce(&mut Node, &mut Outbox)) -> Result<(), String> {
        let mut outbox = Outbox::new(Address::Node(id), self.trace.is_some());
        let Some(node) = self.nodes.get_mut(&id) else { return Ok(()) };
        act(node, &mut outbox);
        if let Some(deadline_ms) = node.deadline_ms() {
            let at_ms = self.time_of(id, deadline_ms).max(self.now_ms + 1);
            if self.wakes.entry(id).or_default().insert(at_ms) {
                self.schedule(at_ms, Step::WakeNode(id));
            }
        }
        self.drain(outbox)
    }

    fn drain(&mut self, outbox: Outbox) -> Result<(), String> {
        for note in outbox.notes {
            self.note(|| note);
        }
        for fact in outbox.facts {
            self.note(|| format!("{:?}: {fact:?}", outbox.from));
            if let Fact::Reserved(_, object) = &fact {
                self.largest_object = self.largest_object.max(object.0);
            }
            let good_copies = match &fact {
                Fact::Deleted(object) => self.good_copies(*object),
                _ => 0,
            };
            self.truth.learn(&fact, good_copies)?;
        }
        for (to, message) in outbox.messages {
            for at_ms in self.network.arrivals(self.now_ms, outbox.from, to, &mut self.random) {
                self.schedule(at_ms, Step::Deliver(outbox.from, to, message.clone()));
            }
        }
        Ok(())
    }

    /// Sealed copies with the right content, also on nodes that are down.
    fn good_copies(&self, object: ObjectId) -> usize {
        let Some(content) = self.truth.content(object) else { return 0 };
        self.nodes.values().filter(|node| node.holds_good(object, &content)).count()
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        let user = match &event {
            Event::Put { node, .. }
            | Event::Cancel { node }
            | Event::Get { node, .. }
            | Event::Remove { node, .. }
            | Event::Stop { node, .. }
            | Event::Spoil { node } => Some(*node),
            _ => None,
        };
        if let Some(until_ms) = user.and_then(|id| self.paused_until(id)) {
            self.schedule(until_ms, Step::Happen(event));
            return Ok(());
        }
        self.note(|| format!("{event:?}"));
        match event {
            Event::Put { node, name, blocks, tail, stream, copies, rack } => {
                let put = self.next_put;
                self.next_put += 1;
                // The last block may be short.
                let bytes = (blocks * CHECKSUM_BLOCK_BYTES).saturating_sub(tail * 100);
                let placement = rack.map_or(Placement::Policy, |rack| Placement::Rack(rack_name(rack)));
                let name = object_name(name);
                let order = PutOrder { put, name: name.clone(), bytes, stream, copies, placement };
                self.truth.begin_put(put, name, blocks, copies);
                let clock_ms = self.clock_ms(node);
                return self.with_node(node, |node, outbox| node.put(clock_ms, order, outbox));
            }
            Event::Cancel { node } => {
                let clock_ms = self.clock_ms(node);
                return self.with_node(node, |node, outbox| node.cancel_a_put(clock_ms, outbox));
            }
            Event::Get { node, name } => return self.get(node, &object_name(name)),
            Event::Remove { node, name } => {
                let clock_ms = self.clock_ms(node);
                return self.with_node(node, |node, outbox| node.remove(clock_ms, object_name(name), outbox));
            }
            Event::Crash { node, loses_memory, back_ms } => {
                self.crash(node, loses_memory);
                self.schedule(back_ms, Step::StartNode(node));
            }
            Event::Die { node } => {
                self.crash(node, true);
                self.gone.insert(node);
            }
            Event::Stop { node, back_ms } => {
                self.with_node(node, |node, outbox| node.leave(outbox))?;
                self.crash(node, false);
                self.schedule(back_ms, Step::StartNode(node));
            }
            Event::Cut { inside, outward: None, until_ms } => self.network.cut(inside, until_ms),
            Event::Cut { inside, outward: Some(is_outward), until_ms } => {
                self.network.cut_one_way(inside, is_outward, until_ms);
            }
            Event::Pause { node, until_ms } => {
                let paused = self.paused.entry(node).or_default();
                *paused = until_ms.max(*paused);
            }
            Event::CrashDirectory { back_ms } => {
                self.directory.crash();
                self.schedule(back_ms, Step::StartDirectory);
            }
            Event::ArmStore(fault) => self.directory.arm(fault),
            Event::SleepDirectory { until_ms } => self.directory_sleeps_ms = until_ms,
            Event::Rot { node, choice } => self.rot(node, choice),
            Event::Spoil { node } => return self.with_node(node, |node, _| node.spoil_next_write()),
        }
        Ok(())
    }

    fn get(&mut self, node: NodeId, name: &ObjectName) -> Result<(), String> {
        let (clock_ms, expected) = (self.clock_ms(node), self.truth.acknowledged(name));
        self.with_node(node, |node, outbox| node.get(clock_ms, name.clone(), expected, outbox))
    }

    fn crash(&mut self, id: NodeId, loses_memory: bool) {
        let good = |object: &ObjectId, node: &Node, truth: &Truth| {
            truth.content(*object).is_some_and(|content| node.holds_good(*object, &content))
        };
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let held: Vec<_> = node.held().into_iter().map(|(object, _)| object).collect();
        let was_good: Vec<_> = held.into_iter().filter(|object| good(object, node, &self.truth)).collect();
        let lost = node.crash(loses_memory);
        for object in was_good.iter().filter(|object| lost.contains(object)) {
            self.truth.lose_copy(*object);
        }
    }

    fn rot(&mut self, id: NodeId, choice: u64) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if let Some(object) = node.rot(choice) {
            self.note(|| format!("{object} rots on {id}"));
            self.truth.lose_copy(object);
        }
    }

    /// No more faults: all come back.
    fn heal(&mut self) -> Result<(), String> {
        self.note(|| "all faults end".to_owned());
        self.network.calm();
        self.directory.disarm();
        self.directory_sleeps_ms = 0;
        self.paused.clear();
        self.start_directory()?;
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.schedule(self.now_ms + 100, Step::StartNode(id));
        }
        Ok(())
    }

    /// Every node reads every name.
    fn final_gets(&mut self) -> Result<(), String> {
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            for name in 0..NAMES.len() {
                self.get(id, &object_name(name))?;
            }
        }
        Ok(())
    }
}

pub(crate) fn object_name(place: usize) -> ObjectName {
    ObjectName::parse(NAMES[place % NAMES.len()]).expect("the names of the simulator are names") // constants
}

fn rack_name(place: usize) -> RackName {
    RackName::parse(&format!("rack-{place}")).expect("letters, a hyphen and digits are a rack's name") // always
}
