//! The event loop: virtual time, messages, faults, and what must be true at the end.

use crate::failover::client::{Client, Known};
use crate::failover::host::{Host, Told, Wants};
use crate::failover::store::{Question, Said, Store};
use crate::failover::{BrokenLeaderRule, FailoverReport};
use crate::random::Random;
use hinterland_directory::{Command, Directory, RequestId, Settings, Table};
use hinterland_types::{NodeId, ObjectId, RackName};
use std::collections::BTreeMap;

const HOSTS: u64 = 3;
const CLIENTS: u64 = 4;
/// Faults happen until then.
const CHAOS_MS: u64 = 15_000;
/// No command begins behind this.
const CALM_MS: u64 = 20_000;
const END_MS: u64 = 28_000;
/// A stop that outlives every lease.
const LONG_STOP_MS: u64 = 30_000;
/// How often hosts and clients look at their clocks.
const WAKE_MS: u64 = 10;

enum Step {
    ToStore { host: u64, life: u64, call: u64, question: Question },
    FromStore { host: u64, life: u64, call: u64, said: Said },
    Ask { client: u64, attempt: u64, host: u64, id: Option<RequestId>, command: Command },
    Answer { client: u64, attempt: u64, told: Told },
    WakeHost(u64),
    WakeClient(u64),
    Fault(Fault),
}

/// Something that goes wrong.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Die {
        host: u64,
        back_ms: u64,
    },
    Stop {
        host: u64,
        until_ms: u64,
    },
    /// Nothing gets through to the store, or from it, or either.
    Cut {
        host: u64,
        until_ms: u64,
        lost: (bool, bool),
    },
    StoreAway {
        until_ms: u64,
    },
}

struct Place {
    process: Option<Host>,
    life: u64,
    calls: u64,
    back_ms: u64,
    stopped_until_ms: u64,
    /// Until when what it sends to the store is lost, and what comes from there.
    cut_until_ms: (u64, u64),
    /// Its clock: a thousandth part of its speed, and where it began.
    speed: u64,
    offset_ms: u64,
}

impl Place {
    const fn clock(&self, now_ms: u64) -> u64 {
        self.offset_ms + now_ms * self.speed / 1000
    }
}

pub(super) struct World {
    now_ms: u64,
    queue: BTreeMap<(u64, u64), Step>,
    next_step: u64,
    random: Random,
    store: Store,
    store_away_until_ms: u64,
    places: Vec<Place>,
    clients: Vec<Client>,
    lost_percent: u64,
    late_ms: u64,
    faults: u64,
    broken: Option<BrokenLeaderRule>,
    /// By how much all ends later, because a host stops for longer than everything else takes.
    later_ms: u64,
}

impl World {
    pub(super) fn new(seed: u64, broken: Option<BrokenLeaderRule>) -> Self {
        let mut random = Random::new(seed);
        let place = |random: &mut Random| Place {
            process: Some(Host::new(broken, 0)),
            life: 0,
            calls: 0,
            back_ms: 0,
            stopped_until_ms: 0,
            cut_until_ms: (0, 0),
            // Within an eighth of each other.
            speed: random.between(950, 1050),
            offset_ms: random.below(1 << 40),
        };
        let places = (0..HOSTS).map(|_| place(&mut random)).collect();
        let clients = (1..=CLIENTS).map(|node| Client::new(NodeId(node), broken)).collect();
        let mut world = Self {
            now_ms: 0,
            queue: BTreeMap::new(),
            next_step: 0,
            store: Store::default(),
            store_away_until_ms: 0,
            places,
            clients,
            lost_percent: random.below(8),
            late_ms: if random.percent(50) { 600 } else { 30 },
            faults: 0,
            broken,
            later_ms: 0,
            random,
        };
        world.furnish();
        for host in 0..HOSTS {
            world.schedule(1 + host, Step::WakeHost(host));
        }
        for client in 0..CLIENTS {
            world.schedule(1, Step::WakeClient(client));
        }
        for _ in 0..world.random.between(2, 10) {
            let at_ms = world.random.between(500, CHAOS_MS);
            let fault = world.fault(at_ms);
            world.schedule(at_ms, Step::Fault(fault));
        }
        if world.random.percent(15) {
            world.later_ms = LONG_STOP_MS;
            let (host, at_ms) = (world.random.below(HOSTS), world.random.between(500, CHAOS_MS));
            world.schedule(at_ms, Step::Fault(Fault::Stop { host, until_ms: at_ms + LONG_STOP_MS }));
        }
        world
    }

    fn chaos_ms(&self) -> u64 {
        CHAOS_MS + self.later_ms
    }

    /// The clients' nodes are members before anything begins.
    fn furnish(&mut self) {
        let settings = Settings { lease_ms: u64::MAX / 4 };
        let mut directory =
            Directory::recover(settings, 0, std::iter::empty()).expect("no record contradicts another");
        for node in (1..=CLIENTS).map(NodeId) {
            let rack = RackName::parse("r").expect("a letter is a name");
            let address = "127.0.0.1:1".to_owned();
            let join =
                Command::Join { name: None, node, rack, address, capacity_bytes: 1 << 40, incarnation: 1 };
            let held = Command::NodeObjects {
                node,
                incarnation: 1,
                after: ObjectId(0),
                objects: Vec::new(),
                more: false,
            };
            for command in [join, held] {
                let (_, mutations) = directory.apply(0, &command).expect("an empty pool takes members");
                self.store.write(mutations);
            }
        }
    }

    fn fault(&mut self, at_ms: u64) -> Fault {
        let host = self.random.below(HOSTS);
        let short = self.random.percent(30);
        let until_ms =
            at_ms + if short { self.random.between(50, 800) } else { self.random.between(800, 6000) };
        match self.random.below(10) {
            0..3 => Fault::Die { host, back_ms: until_ms },
            3..7 => Fault::Stop { host, until_ms },
            7..9 => {
                let lost = match self.random.below(10) {
                    0..2 => (true, false),
                    2..4 => (false, true),
                    _ => (true, true),
                };
                Fault::Cut { host, until_ms, lost }
            }
            _ => Fault::StoreAway { until_ms },
        }
    }

    fn schedule(&mut self, at_ms: u64, step: Step) {
        self.next_step += 1;
        self.queue.insert((at_ms, self.next_step), step);
    }

    /// Sends something: it may be lost, late, or come twice.
    fn send(&mut self, step: impl Fn() -> Step) {
        let chaos = self.now_ms < self.chaos_ms();
        let copies = if chaos && self.random.percent(self.lost_percent) { 0 } else { 1 };
        let again = u64::from(chaos && self.random.percent(self.lost_percent));
        for _ in 0..copies + again {
            let late = chaos && self.random.percent(10);
            let delay_ms =
                if late { self.random.between(1, self.late_ms + 2) } else { self.random.between(1, 8) };
            self.schedule(self.now_ms + delay_ms, step());
        }
    }

    pub(super) fn run(&mut self) -> Result<FailoverReport, String> {
        while let Some(((at_ms, _), step)) = self.queue.pop_first() {
            if at_ms >= END_MS + self.later_ms {
                break;
            }
            self.now_ms = at_ms;
            self.step(step).map_err(|why| format!("at {at_ms} ms: {why}"))?;
        }
        self.settled()?;
        let sum = |count: fn(&Client) -> u64| self.clients.iter().map(count).sum();
        Ok(FailoverReport {
            answered: sum(|client| client.answered),
            repeated: sum(|client| client.repeated),
            unknown: sum(|client| client.unknown),
            reigns: self.store.reigns,
            fenced: self.store.fenced,
            faults: self.faults,
        })
    }

    fn step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::ToStore { host, life, call, question } => {
                if self.now_ms >= self.store_away_until_ms
                    && self.now_ms >= self.places[host as usize].cut_until_ms.0
                {
                    let said = self.store.answer(self.now_ms, question, self.broken);
                    self.check_store()?;
                    self.send(|| Step::FromStore { host, life, call, said: said.clone() });
                }
                Ok(())
            }
            Step::FromStore { host, life, call, said } => {
                if self.now_ms < self.places[host as usize].cut_until_ms.1 {
                    return Ok(());
                }
                if let Some(until_ms) = self.stopped(host) {
                    self.schedule(until_ms, Step::FromStore { host, life, call, said });
                    return Ok(());
                }
                let place = &mut self.places[host as usize];
                let clock = place.clock(self.now_ms);
                let mut wants = Wants::default();
                if place.life == life
                    && let Some(process) = &mut place.process
                {
                    process.told(clock, call, said, &mut wants)?;
                }
                self.carry_out(host, wants);
                Ok(())
            }
            Step::Ask { client, attempt, host, id, command } => {
                if let Some(until_ms) = self.stopped(host) {
                    self.schedule(until_ms, Step::Ask { client, attempt, host, id, command });
                    return Ok(());
                }
                let place = &mut self.places[host as usize];
                let clock = place.clock(self.now_ms);
                let mut wants = Wants::default();
                if let Some(process) = &mut place.process {
                    process.asked(clock, (client, attempt), id, &command, &mut wants);
                }
                self.carry_out(host, wants);
                Ok(())
            }
            Step::Answer { client, attempt, told } => {
                let one = &mut self.clients[client as usize];
                one.told(self.now_ms, attempt, told, &mut self.random)
            }
            Step::WakeHost(host) => {
                self.wake_host(host);
                Ok(())
            }
            Step::WakeClient(client) => {
                self.wake_client(client);
                Ok(())
            }
            Step::Fault(fault) => {
                self.happen(fault);
                Ok(())
            }
        }
    }

    /// Until when a host is stopped, if it is.
    fn stopped(&self, host: u64) -> Option<u64> {
        Some(self.places[host as usize].stopped_until_ms).filter(|until_ms| *until_ms > self.now_ms)
    }

    fn wake_host(&mut self, host: u64) {
        if let Some(until_ms) = self.stopped(host) {
            self.schedule(until_ms, Step::WakeHost(host));
            return;
        }
        self.schedule(self.now_ms + WAKE_MS, Step::WakeHost(host));
        let place = &mut self.places[host as usize];
        if place.process.is_none() && self.now_ms >= place.back_ms {
            place.life += 1;
            place.process = Some(Host::new(self.broken, place.calls));
        }
        let clock = place.clock(self.now_ms);
        let mut wants = Wants::default();
        if let Some(process) = &mut place.process {
            process.wake(clock, &mut wants);
        }
        self.carry_out(host, wants);
    }

    fn wake_client(&mut self, client: u64) {
        self.schedule(self.now_ms + WAKE_MS, Step::WakeClient(client));
        let may_begin = self.now_ms < CALM_MS + self.later_ms;
        let asked = self.clients[client as usize].wake(self.now_ms, HOSTS, may_begin, &mut self.random);
        if let Some((attempt, host, id, command)) = asked {
            self.send(|| Step::Ask { client, attempt, host, id, command: command.clone() });
        }
    }

    fn carry_out(&mut self, host: u64, wants: Wants) {
        let life = self.places[host as usize].life;
        for (call, question) in wants.store {
            self.send(|| Step::ToStore { host, life, call, question: question.clone() });
        }
        for (client, attempt, told) in wants.clients {
            self.send(|| Step::Answer { client, attempt, told: told.clone() });
        }
    }

    fn happen(&mut self, fault: Fault) {
        self.faults += 1;
        match fault {
            Fault::Die { host, back_ms } => {
                let place = &mut self.places[host as usize];
                if let Some(process) = place.process.take() {
                    place.calls = process.next_call();
                }
                (place.back_ms, place.stopped_until_ms) = (back_ms, 0);
            }
            Fault::Stop { host, until_ms } => {
                let stopped = &mut self.places[host as usize].stopped_until_ms;
                *stopped = until_ms.max(*stopped);
            }
            Fault::Cut { host, until_ms, lost: (is_sent, is_heard) } => {
                let cut = &mut self.places[host as usize].cut_until_ms;
                (cut.0, cut.1) =
                    (if is_sent { until_ms } else { cut.0 }, if is_heard { until_ms } else { cut.1 });
            }
            Fault::StoreAway { until_ms } => {
                self.store_away_until_ms = until_ms;
                // It comes back with what it had, and leases that begin again.
                self.store.wake(until_ms);
            }
        }
    }

    /// Every now and then, and when it costs little: the records agree with each other.
    fn check_store(&mut self) -> Result<(), String> {
        if self.random.below(500) > 0 {
            return Ok(());
        }
        self.load().map(drop)
    }

    fn load(&self) -> Result<Directory, String> {
        let records = self.store.records.iter().map(|((table, key), value)| hinterland_directory::Record {
            table: *table,
            key: key.clone(),
            value: value.clone(),
        });
        let settings = Settings { lease_ms: u64::MAX / 4 };
        let directory =
            Directory::recover(settings, 0, records).map_err(|error| format!("the records: {error}"))?;
        directory.check().map_err(|error| format!("the records: {error}"))?;
        Ok(directory)
    }

    /// All is calm: everything that was acknowledged is in the store, and somebody leads.
    fn settled(&self) -> Result<(), String> {
        self.load()?;
        for client in &self.clients {
            if client.is_busy() {
                return Err(format!("{} has waited for ever", client.node));
            }
            for (name, known) in client.names() {
                let key = (Table::Names, name.as_str().as_bytes().to_vec());
                let is_there = self.store.records.contains_key(&key);
                match known {
                    Known::There if !is_there => return Err(format!("{name} was acknowledged and is lost")),
                    Known::Gone if is_there => return Err(format!("{name} was removed and is there")),
                    Known::There | Known::Gone | Known::Unknown => {}
                }
            }
        }
        Ok(())
    }
}
