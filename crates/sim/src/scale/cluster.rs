//! The cluster: how it is set up, and the loop that takes one event after the other.

use super::figures::{RecoveryFigures, ScaleFigures};
use super::host::Host;
use super::member::Member;
use super::plan::{ScaleError, ScalePlan, Workload};
use super::workload::{Draw, shuffled};
use crate::random::Random;
use hinterland_directory::{
    Command, ContentDigest, Directory, DirectoryError, Held, Placement, Reply, Writer, spread,
};
use hinterland_policy::heat::{Heat, HeatRules};
use hinterland_types::limits::PAGE_BYTES;
use hinterland_types::{NodeId, ObjectId, ObjectName, PageNumber, RackName};
use std::collections::BTreeMap;
use std::time::Duration;

/// How often a node sums up samples: `PACE` of the node.
pub(super) const PACE: Duration = Duration::from_millis(10);
/// How long a recovery is waited for.
const RECOVERY_MAX: Duration = Duration::from_secs(1800);
/// How skewed draws are.
const SKEW: f64 = 0.99;

/// Something that happens to a node, or to all.
#[derive(Debug)]
pub(super) enum Event {
    /// Programs run for a hundredth of a second, and the node looks at their samples.
    Round(usize),
    Beat(usize),
    Tick,
    /// A command arrives at the directory.
    Asked(usize, Command, Purpose),
    /// Its answer arrives at the node.
    Answered(usize, Purpose, Box<Result<Reply, DirectoryError>>),
    /// A node asks the home of the page that it pulls: to freeze it, or only whether it would.
    AtHome {
        node: usize,
        freezes: bool,
    },
    HomeAllows(usize),
    HomeRefuses(usize),
    /// All bytes of the page are there.
    Copied(usize),
    /// The home of before hears that the page has moved: page, and its count of moves.
    Moved(usize, u32, u32),
    RepairPass(usize),
    /// A copy of an object is there.
    Fetched(usize),
    RackDies,
    ProgramsShift,
    ProgramsEnd,
}

/// What a command is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    Nothing,
    Beat,
    Join,
    List,
    BeginMove,
    CommitMove,
    CancelMove,
    RepairList,
    AddReplica,
    ReplicaAdded,
}

/// A region and where its pages stand in the lists of the simulation.
pub(super) struct Region {
    pub(super) object: ObjectId,
    pub(super) first: u32,
    pub(super) count: u32,
}

/// Everything.
pub(super) struct Cluster<'run> {
    pub(super) plan: &'run ScalePlan,
    pub(super) rules: HeatRules,
    pub(super) host: Host<'run>,
    pub(super) members: Vec<Member>,
    pub(super) regions: Vec<Region>,
    pub(super) page_numbers: Vec<PageNumber>,
    /// For each page: the place of its home, how often it has moved, and if it is frozen who waits since when.
    pub(super) page_homes: Vec<u16>,
    pub(super) page_moves: Vec<u32>,
    pub(super) frozen: Vec<Option<Vec<(usize, Duration)>>>,
    /// Homes of each object when it was put.
    pub(super) objects: BTreeMap<ObjectId, Vec<NodeId>>,
    pub(super) draw_shared: Draw,
    pub(super) draw_own: Draw,
    pub(super) order: Vec<u32>,
    pub(super) shift: u32,
    pub(super) now: Duration,
    queue: BTreeMap<(Duration, u64), Event>,
    next_event: u64,
    pub(super) figures: ScaleFigures,
    pub(super) operation_ns: u64,
    pub(super) messages: u64,
    pub(super) recovery: Option<RecoveryFigures>,
    pub(super) making: u64,
    pub(super) has_ended: bool,
}

impl<'run> Cluster<'run> {
    pub(super) fn new(plan: &'run ScalePlan, clock_ns: &'run dyn Fn() -> u64) -> Result<Self, ScaleError> {
        let rules = HeatRules::new(plan.heat)?;
        let directory = Directory::recover(Host::settings(), 0, std::iter::empty())
            .map_err(|error| ScaleError::Unsound(error.to_string()))?;
        let mut random = Random::new(plan.seed);
        let pages = plan.nodes * plan.pages_per_node;
        let draw_shared = match plan.workload {
            Workload::Uniform | Workload::Script(_) => Draw::uniform(pages),
            Workload::Zipfian => Draw::zipfian(pages, SKEW),
            Workload::Tenants | Workload::Shifting => Draw::zipfian(plan.nodes, SKEW),
        };
        let shared = if has_tenants(&plan.workload) { plan.nodes } else { pages };
        let member = |place: u32| {
            // The first rack has the first nodes.
            let rack = u64::from(place) * u64::from(plan.racks) / u64::from(plan.nodes);
            // At most the number of racks, which is 32 bits.
            Member::new(NodeId(u64::from(place) + 1), rack as u32, rules, plan.threads, plan.seed)
        };
        let mut cluster = Self {
            plan,
            rules,
            host: Host::new(directory, plan.costs, clock_ns),
            members: (0..plan.nodes).map(member).collect(),
            regions: Vec::new(),
            page_numbers: Vec::new(),
            page_homes: Vec::new(),
            page_moves: Vec::new(),
            frozen: Vec::new(),
            objects: BTreeMap::new(),
            draw_shared,
            draw_own: Draw::zipfian(plan.pages_per_node, SKEW),
            order: shuffled(shared, &mut random),
            shift: 0,
            now: Duration::ZERO,
            queue: BTreeMap::new(),
            next_event: 0,
            figures: ScaleFigures::default(),
            operation_ns: 0,
            messages: 0,
            recovery: None,
            making: 0,
            has_ended: false,
        };
        cluster.join_all()?;
        cluster.make_regions(shared)?;
        cluster.put_objects()?;
        let (pages, regions) = (cluster.page_numbers.len(), cluster.regions.len());
        for member in &mut cluster.members {
            member.known = vec![0; pages];
            member.opened = vec![false; regions];
        }
        cluster.schedule_all(&mut random);
        cluster.host.forget_counts();
        Ok(cluster)
    }

    fn join_all(&mut self) -> Result<(), ScaleError> {
        for member in &self.members {
            let name = format!("rack-{}", member.rack);
            let rack = RackName::parse(&name).map_err(|error| ScaleError::Unsound(error.to_string()))?;
            self.host.prepare(&Command::Join {
                name: None,
                node: member.id,
                rack,
                address: address(member.id),
                capacity_bytes: self.plan.capacity_bytes,
                incarnation: 1,
            })?;
            self.host.prepare(&Command::NodeObjects {
                node: member.id,
                incarnation: 1,
                after: ObjectId(0),
                objects: Vec::new(),
                more: false,
            })?;
        }
        Ok(())
    }

    /// The region of all first, then that of each node.
    fn make_regions(&mut self, shared: u32) -> Result<(), ScaleError> {
        let is_script = matches!(self.plan.workload, Workload::Script(_));
        let placement = if is_script { Placement::Policy } else { Placement::Spread };
        self.make_region("all", shared, placement, NodeId(1))?;
        if has_tenants(&self.plan.workload) {
            for node in 0..self.plan.nodes {
                let home = (node + self.nodes_of_a_rack()) % self.plan.nodes;
                let home = self.members[home as usize].id;
                let name = format!("own/{node}");
                self.make_region(&name, self.plan.pages_per_node, Placement::Policy, home)?;
            }
        }
        Ok(())
    }

    fn make_region(
        &mut self,
        name: &str,
        count: u32,
        placement: Placement,
        local: NodeId,
    ) -> Result<(), ScaleError> {
        let size = u64::from(count) * PAGE_BYTES;
        let made =
            self.host.prepare(&Command::CreateRegion { name: object_name(name)?, size, placement, local })?;
        let Reply::Reserved { object, homes } = made else { return Err(confused()) };
        let Reply::Object(info) = self.host.prepare(&Command::LookupObject { object })? else {
            return Err(confused());
        };
        let run = info.pages.ok_or_else(confused)?;
        // A pool has fewer pages than 2^32.
        let first = self.page_numbers.len() as u32;
        for page in run.iter() {
            let home = spread(page, homes.len()).and_then(|place| homes.get(place)).ok_or_else(confused)?;
            self.page_numbers.push(page);
            self.page_homes.push(place_of(home.node) as u16);
        }
        self.page_moves.resize(self.page_numbers.len(), 0);
        self.frozen.resize(self.page_numbers.len(), None);
        for home in homes {
            self.members[place_of(home.node)].held.insert(object, (home.epoch, None));
        }
        self.regions.push(Region { object, first, count });
        Ok(())
    }

    fn put_objects(&mut self) -> Result<(), ScaleError> {
        let size = self.plan.object_bytes;
        for number in 0..self.plan.objects_per_node {
            for place in 0..self.members.len() {
                let node = self.members[place].id;
                let writer = Writer { node, incarnation: 1, token: u64::from(number) };
                let reserve = Command::Reserve {
                    name: object_name(&format!("objects/{}/{number}", node.0))?,
                    size: Some(size),
                    copies: self.plan.copies,
                    placement: Placement::Policy,
                    writer,
                };
                let Reply::Reserved { object, homes } = self.host.prepare(&reserve)? else {
                    return Err(confused());
                };
                let nodes: Vec<NodeId> = homes.iter().map(|home| home.node).collect();
                let digest = ContentDigest::default();
                self.host.prepare(&Command::Seal { object, size, digest, homes: nodes.clone() })?;
                for home in &homes {
                    self.members[place_of(home.node)].held.insert(object, (home.epoch, Some(digest)));
                }
                self.objects.insert(object, nodes);
            }
        }
        Ok(())
    }

    /// Rounds, heartbeats and looks for lost copies, each node at a moment of its own.
    fn schedule_all(&mut self, random: &mut Random) {
        let within = |most: Duration, random: &mut Random| {
            Duration::from_nanos(random.below(most.as_nanos().max(1) as u64))
        };
        let lease = Duration::from_millis(Host::settings().lease_ms);
        for node in 0..self.members.len() {
            self.schedule(PACE + within(PACE, random), Event::Round(node));
            self.schedule(within(lease / 3, random), Event::Beat(node));
            let idle = super::repairing::idle_pause(self.plan);
            self.schedule(within(idle, random), Event::RepairPass(node));
        }
        self.schedule(Duration::from_millis(Host::settings().tick_ms()), Event::Tick);
        self.schedule(self.plan.time, Event::ProgramsEnd);
        if let Some(at) = self.plan.rack_dies {
            self.schedule(at, Event::RackDies);
        }
        if self.plan.workload == Workload::Shifting {
            self.schedule(self.plan.time / 3, Event::ProgramsShift);
            self.schedule(self.plan.time * 2 / 3, Event::ProgramsShift);
        }
    }

    pub(super) fn schedule(&mut self, at: Duration, event: Event) {
        self.queue.insert((at, self.next_event), event);
        self.next_event += 1;
    }

    pub(super) fn after(&mut self, wait: Duration, event: Event) {
        self.schedule(self.now + wait, event);
    }

    /// Sends a command to the directory.
    pub(super) fn ask(&mut self, node: usize, command: Command, purpose: Purpose) {
        self.messages += 2;
        self.after(self.plan.costs.way(), Event::Asked(node, command, purpose));
    }

    pub(super) fn run(mut self) -> Result<ScaleFigures, ScaleError> {
        while let Some(((at, _), event)) = self.queue.pop_first() {
            self.now = at;
            if self.is_over() {
                break;
            }
            self.happen(event);
        }
        self.host.check().map_err(ScaleError::Unsound)?;
        self.figures.recovery = self.recovery.take().map(|mut recovery| {
            let (begin, commands) = (self.plan.rack_dies.unwrap_or_default(), self.command_count());
            let passed = (self.now - self.plan.time.max(begin)).as_secs_f64();
            recovery.commands_per_s = if passed > 0.0 { commands as f64 / passed } else { 0.0 };
            recovery
        });
        Ok(self.figures)
    }

    fn is_over(&self) -> bool {
        let end = self.plan.rack_dies.map_or(Duration::ZERO, |at| at + RECOVERY_MAX);
        let is_whole = self.plan.rack_dies.is_none()
            || self
                .recovery
                .as_ref()
                .is_some_and(|recovery| recovery.noticed_s > 0.0 && recovery.copies_made >= recovery.copies);
        self.has_ended && (is_whole || self.now > end)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Round(node) => self.round(node),
            Event::Beat(node) => self.beat(node),
            Event::Tick => {
                self.after(Duration::from_millis(Host::settings().tick_ms()), Event::Tick);
                self.at_directory(None, &Command::Tick, Purpose::Nothing);
            }
            Event::Asked(node, command, purpose) => self.at_directory(Some(node), &command, purpose),
            Event::Answered(node, purpose, answer) => self.answered(node, purpose, *answer),
            Event::AtHome { node, freezes } => self.at_home(node, freezes),
            Event::HomeAllows(node) => self.begin_move(node),
            Event::HomeRefuses(node) => self.home_refuses(node),
            Event::Copied(node) if self.members[node].alive => self.commit_move(node),
            Event::Copied(_) => {}
            Event::Moved(node, page, count) => self.moved(node, page, count),
            Event::RepairPass(node) => self.repair_pass(node),
            Event::Fetched(node) => self.fetched(node),
            Event::RackDies => self.rack_dies(),
            Event::ProgramsShift => self.shift += self.nodes_of_a_rack(),
            Event::ProgramsEnd => self.programs_end(),
        }
    }

    fn at_directory(&mut self, node: Option<usize>, command: &Command, purpose: Purpose) {
        // A command that was on its way is taken also if its sender has died meanwhile.
        let answered = self.host.take(self.now, command);
        self.notice_deaths();
        if let Some(node) = node {
            let at = answered.at + self.plan.costs.way();
            self.schedule(at, Event::Answered(node, purpose, Box::new(answered.answer)));
        }
    }

    fn answered(&mut self, node: usize, purpose: Purpose, answer: Result<Reply, DirectoryError>) {
        if !self.members[node].alive {
            return;
        }
        match purpose {
            Purpose::Nothing => {}
            Purpose::Beat | Purpose::Join | Purpose::List => self.member_answered(node, purpose, &answer),
            Purpose::BeginMove => self.move_begun(node, answer),
            Purpose::CommitMove => self.move_committed(node, answer.is_ok()),
            Purpose::CancelMove => self.move_cancelled(node),
            Purpose::RepairList => self.repairs_listed(node, answer),
            Purpose::AddReplica => self.replica_begun(node, answer),
            Purpose::ReplicaAdded => self.replica_added(node, answer.is_ok()),
        }
    }

    fn beat(&mut self, node: usize) {
        let member = &self.members[node];
        if !member.alive {
            return;
        }
        if member.is_up {
            let (node_id, incarnation) = (member.id, member.incarnation);
            let command = Command::Heartbeat { node: node_id, incarnation, used_bytes: 0 };
            self.ask(node, command, Purpose::Beat);
        }
        self.after(Duration::from_millis(Host::settings().lease_ms / 3), Event::Beat(node));
    }

    /// A node that lost its lease begins another life, and says what it holds.
    fn member_answered(&mut self, node: usize, purpose: Purpose, answer: &Result<Reply, DirectoryError>) {
        let member = &mut self.members[node];
        let (id, capacity_bytes) = (member.id, self.plan.capacity_bytes);
        match (purpose, answer) {
            (Purpose::List, Ok(_)) => member.is_up = true,
            (Purpose::Join, Ok(_)) => {
                let held = member.held.iter();
                let objects = held.map(|(object, (epoch, digest))| Held {
                    object: *object,
                    epoch: *epoch,
                    digest: *digest,
                });
                let command = Command::NodeObjects {
                    node: id,
                    incarnation: member.incarnation,
                    after: ObjectId(0),
                    objects: objects.collect(),
                    more: false,
                };
                self.ask(node, command, Purpose::List);
            }
            (_, Ok(_)) => {}
            // An answer to an earlier heartbeat may come after the node has begun anew.
            (Purpose::Beat, Err(_)) if !member.is_up => {}
            (_, Err(_)) => {
                member.is_up = false;
                member.incarnation += 1;
                self.figures.directory.leases_lost += 1;
                let Ok(rack) = RackName::parse(&format!("rack-{}", member.rack)) else { return };
                let incarnation = member.incarnation;
                let command = Command::Join {
                    name: None,
                    node: id,
                    rack,
                    address: address(id),
                    capacity_bytes,
                    incarnation,
                };
                self.ask(node, command, Purpose::Join);
            }
        }
    }

    fn programs_end(&mut self) {
        self.has_ended = true;
        let seconds = self.plan.time.as_secs_f64();
        let figures = &mut self.figures;
        (figures.nodes, figures.racks) = (u64::from(self.plan.nodes), u64::from(self.plan.racks));
        figures.seconds = seconds;
        let elsewhere = figures.rack + figures.away;
        figures.word_hit_rate =
            if elsewhere > 0 { 1.0 - figures.stale as f64 / elsewhere as f64 } else { 1.0 };
        let operations = figures.operations.max(1) as f64;
        figures.operation_ns = self.operation_ns as f64 / operations;
        figures.messages_per_operation =
            (self.messages + 2 * (elsewhere + figures.stale)) as f64 / operations;
        figures.moves.taken_per_s = figures.moves.taken as f64 / seconds;
        figures.moves.bytes_per_s = (figures.moves.taken * PAGE_BYTES) as f64 / seconds;
        figures.moves.network_bytes = figures.moves.taken * PAGE_BYTES + 64 * elsewhere;
        figures.moves.samples_lost = self.members.iter().map(|member| member.samples_lost).sum();
        let directory = &mut figures.directory;
        directory.kinds = self.host.kinds().clone();
        let sum =
            |of: fn(&super::figures::CommandFigures) -> u64| directory.kinds.values().map(of).sum::<u64>();
        let (commands, durable) = (sum(|kind| kind.count), sum(|kind| kind.durable));
        let measured_ns = sum(|kind| kind.measured_ns) as f64;
        let (busy, waited, waited_max) = self.host.times();
        directory.commands = commands;
        directory.commands_per_s = commands as f64 / seconds;
        directory.durable_per_s = durable as f64 / seconds;
        directory.utilisation = busy.as_secs_f64() / seconds;
        directory.wait_ms = waited.as_secs_f64() * 1e3 / commands.max(1) as f64;
        directory.wait_ms_max = waited_max.as_secs_f64() * 1e3;
        (directory.records, directory.record_bytes) = self.host.stored();
        directory.measured_ns = measured_ns / commands.max(1) as f64;
        directory.measured_processors = measured_ns / 1e9 / seconds;
        self.host.forget_counts();
    }

    fn command_count(&self) -> u64 {
        self.host.kinds().values().map(|kind| kind.count).sum()
    }

    pub(super) fn nodes_of_a_rack(&self) -> u32 {
        self.plan.nodes.div_ceil(self.plan.racks)
    }

    pub(super) fn has_tenants(&self) -> bool {
        has_tenants(&self.plan.workload)
    }

    /// What a page's home thinks of its heat.
    pub(super) fn heat_at(&self, node: usize, page: u32) -> Heat {
        self.members[node].table.heat(self.page_numbers[page as usize], self.now)
    }
}

fn has_tenants(workload: &Workload) -> bool {
    matches!(workload, Workload::Tenants | Workload::Shifting)
}

/// Where a node stands in the list of members.
pub(super) fn place_of(node: NodeId) -> usize {
    // Nodes are numbered from 1, and there are few.
    (node.0 - 1) as usize
}

fn address(node: NodeId) -> String {
    format!("10.{}.{}.{}:7400", node.0 >> 16 & 255, node.0 >> 8 & 255, node.0 & 255)
}

fn object_name(text: &str) -> Result<ObjectName, ScaleError> {
    ObjectName::parse(text).map_err(|error| ScaleError::Unsound(error.to_string()))
}

fn confused() -> ScaleError {
    ScaleError::Unsound("an answer does not belong to its command".to_owned())
}
