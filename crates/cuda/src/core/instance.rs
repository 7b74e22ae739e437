//! Graphs as the node knows them, and instances of them: sent, launched with what the program's memory has at that moment, ended.
//!
//! The node knows nothing of functions of the program. A graph that calls some is as many lists to it as there are runs of commands between them, each with an
//! instance of its own, and a launch puts all of them into the stream in turn. So is a graph that copies to a device what it has copied out of one.
//!
//! Relaxed throughout: what a program does with one graph in two threads at once has no order, and all lists lie under locks.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hinterland_proto::gpu::command::{
    Graph as GraphCommand, GraphChange, GraphDestroy, GraphExecDestroy, GraphInstantiate, GraphLaunch,
    GraphPart, GraphSwitch, GraphUpdate, LaunchContent, MarkDevice,
};
use hinterland_proto::gpu::write_edits;

mod named;

use named::Named;

use super::callback::is_caller;
use super::context::Owner;
use super::graph::Graph;
use super::graph_memory::GraphMemory;
use super::handle::Table;
use super::inbox::{Destination, Target};
use super::list::{HostCall, HostCopy, List, Run};
use super::node::{Node, Nodes, Piece};
use super::outbox::Effect;
use super::session::Session;
use super::stream::Stream;
use super::user_object::UserObject;
use crate::code::{Code, INVALID_HANDLE, INVALID_VALUE, NOT_PERMITTED};

/// Graphs whose lists both sides keep, so that a new one can be sent as what differs.
const BASES_MAX: usize = 8;

/// Most commands that are changed one by one: of more, a list that differs in them is sent, which is one message and read as one.
const CHANGES_MAX: usize = 16;

/// Where a list comes from.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// The program's graph that it was made of.
    pub(super) graph: u32,
    /// The stream that its capture began in, or another one of its device.
    pub(super) origin: u32,
    /// Its device and context.
    pub(super) owner: Owner,
}

impl Place {
    pub(super) fn of(graph: &Graph, origin: u32) -> Self {
        Self { graph: graph.number, origin, owner: graph.owner }
    }
}

/// A list as it is sent, under a name of its own.
#[derive(Debug)]
struct Part {
    number: u32,
    place: Place,
    list: Arc<List>,
    copies: Vec<HostCopy>,
    /// Events that each launch records for others.
    records: Vec<u32>,
    was_sent: AtomicBool,
    /// The last command that it was sent with, by its count: one that the node refuses is one whose last command it refuses.
    sent_with: AtomicU64,
    was_dropped: AtomicBool,
}

/// What a launch does, one behind the other.
#[derive(Debug)]
enum Step {
    Launch(Arc<Part>),
    Call(HostCall),
}

/// What a graph does.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) place: Place,
    /// All commands, those of nodes that are switched off among them.
    pub(super) list: Arc<List>,
    pub(super) nodes: Nodes,
    /// Where nodes of the graph are in the list, if it is not the list as it was captured.
    pub(super) pieces: Option<Vec<Piece>>,
    /// Nodes that are switched off, by how many are in front of each.
    pub(super) off: BTreeSet<usize>,
    /// What each launch allocates and frees.
    pub(super) memory: GraphMemory,
    /// Objects of the program that are there as long as this is.
    pub(super) objects: Vec<Arc<UserObject>>,
}

impl Source {
    /// The commands of nodes that are switched off.
    fn commands_off(&self) -> BTreeSet<usize> {
        if self.off.is_empty() {
            return BTreeSet::new();
        }
        let nodes = self.off.iter().filter_map(|rank| self.nodes.at(*rank)).collect();
        self.list.commands_of(self.pieces.as_deref(), &nodes)
    }

    /// The commands that a launch does.
    fn done(&self) -> Arc<List> {
        match self.commands_off() {
            off if off.is_empty() => self.list.clone(),
            off => Arc::new(self.list.without(off)),
        }
    }

    /// The list that the node is sent, and which commands of it launches leave out: those that it does not leave out are not in the list.
    fn sent(&self) -> (Arc<List>, BTreeSet<usize>) {
        let off = self.commands_off();
        if off.is_empty() {
            return (self.list.clone(), off);
        }
        if self.list.has_steps() || !off.iter().all(|entry| self.list.is_apart(*entry)) {
            return (Arc::new(self.list.without(off)), BTreeSet::new());
        }
        (self.list.clone(), off)
    }
}

/// All that a graph does, as it was when it was made ready.
#[derive(Debug)]
pub struct Definition {
    pub(super) source: Source,
    steps: Vec<Step>,
    /// Commands of its one list that launches leave out.
    off: BTreeSet<usize>,
    /// Whether it is an instance's alone, and no graph has it.
    is_own: bool,
}

impl Definition {
    /// Whether it is more to the node than one list: launches of it call functions, or wait for bytes.
    fn is_split(&self) -> bool {
        !matches!(self.steps[..], [Step::Launch(_)])
    }

    /// The commands that a launch does.
    pub(super) fn done(&self) -> Arc<List> {
        self.source.done()
    }

    /// What is to be changed in an instance at the node that does this for it to do another one: commands, and the switches of such. Nothing if it takes another
    /// list.
    fn changes_to(&self, other: &Self) -> Option<(Vec<usize>, Vec<usize>)> {
        let ([Step::Launch(from)], [Step::Launch(to)]) = (&self.steps[..], &other.steps[..]) else {
            return None;
        };
        let origin = |part: &Part| (part.place.origin, part.place.owner.device);
        if origin(from) != origin(to) {
            return None;
        }
        let changed = if Arc::ptr_eq(&from.list, &to.list) {
            Vec::new()
        } else {
            from.list.changes_to(&to.list, CHANGES_MAX)?
        };
        Some((changed, self.off.symmetric_difference(&other.off).copied().collect()))
    }

    fn parts(&self) -> impl Iterator<Item = &Arc<Part>> {
        self.steps.iter().filter_map(|step| match step {
            Step::Launch(part) => Some(part),
            Step::Call(_) => None,
        })
    }
}

/// An instance.
#[derive(Debug)]
pub struct Instance {
    flags: u64,
    /// What it does; nothing when it has ended.
    does: Mutex<Option<Does>>,
    /// The last launch. Locked as long as one is made, so that what it needs is not mixed with that of another one; whoever changes or ends the instance
    /// meanwhile does not wait, as the functions that the launch calls may wait for that.
    last: Mutex<Option<Last>>,
}

/// What an instance does.
#[derive(Debug)]
pub(super) struct Does {
    /// What launches are to do.
    wanted: Arc<Definition>,
    /// What the node has, which is told with the next launch.
    made: Arc<Made>,
    /// The graph that it was instantiated from, and the nodes which that had then: programs name those.
    graph: u32,
    nodes: Nodes,
}

impl Does {
    /// What launches are to do.
    pub(super) fn definition(&self) -> &Arc<Definition> {
        &self.wanted
    }

    /// How many nodes of the instance are in front of a node of a graph.
    ///
    /// # Errors
    /// The instance has no such node.
    pub(super) fn rank(&self, graph: u32, index: usize) -> Result<usize, Code> {
        self.nodes.rank(index).filter(|_| self.graph == graph).ok_or(INVALID_VALUE)
    }
}

/// A definition, ready to be launched. A launch has it until it is over, whatever the instance does by then.
#[derive(Debug)]
struct Made {
    definition: Arc<Definition>,
    /// An instance of each of its parts.
    names: Vec<Named>,
    /// How many the instance had before.
    serial: u64,
}

/// A launch.
#[derive(Debug)]
struct Last {
    stream: Arc<Stream>,
    is_split: bool,
    /// That of what it had.
    serial: u64,
}

/// # Errors
/// A function of the program calls this: the launch that it is of may have what is locked, until the function has returned.
fn locked<T>(of: &Mutex<T>) -> Result<MutexGuard<'_, T>, Code> {
    if is_caller() {
        return Err(NOT_PERMITTED);
    }
    Ok(of.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Instance {
    /// Calls `work` with what it does.
    ///
    /// # Errors
    /// As [`locked`], it has ended, or what `work` says.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Does) -> Result<T, Code>) -> Result<T, Code> {
        work(locked(&self.does)?.as_mut().ok_or(INVALID_HANDLE)?)
    }
}

/// Definitions and instances of a session.
#[derive(Debug)]
pub struct Instances {
    /// The name of the next list, and that of the next instance, at the node.
    next: AtomicU32,
    next_exec: AtomicU32,
    bases: Mutex<VecDeque<Arc<Part>>>,
    pub(super) execs: Table<Instance>,
}

impl Instances {
    pub(super) fn new() -> Self {
        Self {
            next: AtomicU32::new(1),
            next_exec: AtomicU32::new(1),
            bases: Mutex::default(),
            execs: Table::new(1),
        }
    }

    /// Names a list.
    fn part(&self, place: &Place, list: Arc<List>) -> Step {
        Step::Launch(Arc::new(Part {
            number: self.next.fetch_add(1, Ordering::Relaxed),
            place: *place,
            copies: list.copies(),
            records: list.records(),
            list,
            was_sent: AtomicBool::new(false),
            sent_with: AtomicU64::new(0),
            was_dropped: AtomicBool::new(false),
        }))
    }
}

impl Session {
    /// Names the lists that a list becomes for the node: itself, or the runs of commands between the functions that are called in it, and in front of copies to
    /// a device of what came out of one.
    ///
    /// # Errors
    /// A run is too long for a graph, or the node is gone.
    pub(super) fn define(&self, source: Source, is_own: bool) -> Result<Arc<Definition>, Code> {
        let place = &source.place;
        let (done, off) =
            if self.without.graph_edits { (source.done(), BTreeSet::new()) } else { source.sent() };
        let steps = if done.has_steps() {
            let step = |run| match run {
                Run::Commands(list) => self.instances.part(place, Arc::new(list)),
                Run::Call(call) => Step::Call(call),
            };
            done.runs(place.origin, self.edge_event()?)?.into_iter().map(step).collect()
        } else {
            vec![self.instances.part(place, done.clone())]
        };
        Ok(Arc::new(Definition { source, steps, off, is_own }))
    }

    /// Whether the node will take what it has to know of a definition, if it does not know it yet: it takes no list that names a handle of cuBLAS or an event of
    /// others which has gone.
    ///
    /// # Errors
    /// One has gone.
    fn check_names(&self, graph: &Definition) -> Result<(), Code> {
        let mut unsent = graph.parts().filter(|part| !self.has_part(part));
        unsent.try_for_each(|part| {
            part.list.handles().into_iter().try_for_each(|handle| self.blas.known(handle))?;
            part.list.events().into_iter().try_for_each(|event| self.events.get(event).map(drop))
        })
    }

    /// Sends what the node has to know of a definition, once.
    ///
    /// # Errors
    /// As [`check_names`](Self::check_names), or the node is gone.
    fn send_definition(&self, graph: &Definition) -> Result<(), Code> {
        self.check_names(graph)?;
        graph.parts().try_for_each(|part| self.send_part(part))
    }

    /// Whether the node has a list: it was sent, and neither refused nor ended. None is sent as what differs from another one, and each is sent anew when it is
    /// needed again.
    fn has_part(&self, part: &Part) -> bool {
        part.was_sent.load(Ordering::Relaxed)
            && !self.inbox.is_refused(part.sent_with.load(Ordering::Relaxed))
    }

    /// Sends a list, once: as a whole, or as what differs from one that the node has.
    fn send_part(&self, graph: &Arc<Part>) -> Result<(), Code> {
        let mut bases = self.instances.bases.lock().unwrap_or_else(PoisonError::into_inner);
        self.inbox.drain()?;
        bases.retain(|base| self.has_part(base));
        if self.has_part(graph) {
            return Ok(());
        }
        let mut edits = Vec::new();
        let base = bases.iter().rev().find(|base| {
            edits.clear();
            !self.without.graph_edits
                && write_edits(&base.list.bytes, &graph.list.bytes, &mut edits)
                && edits.len() < graph.list.bytes.len()
        });
        let (base, bytes) = match base {
            Some(base) => (base.number, &edits),
            None => (0, &graph.list.bytes),
        };
        let mut last = self.send(&GraphCommand {
            graph: graph.number,
            base,
            stream: graph.place.origin,
            flags: graph.place.owner.device,
            bytes: graph.list.bytes.len() as u64,
            sent: bytes.len() as u64,
        })?;
        for part in bytes.chunks(self.tail_max(GraphPart::BYTES)) {
            let message = GraphPart { graph: graph.number };
            last = self.send_with_tail(&message, part.len(), |tail| tail.put(0, part))?;
        }
        graph.sent_with.store(last, Ordering::Relaxed);
        graph.was_sent.store(true, Ordering::Relaxed);
        bases.push_back(graph.clone());
        if bases.len() > BASES_MAX
            && let Some(old) = bases.pop_front()
            && old.was_dropped.load(Ordering::Relaxed)
        {
            self.end_part(&old)?;
        }
        Ok(())
    }

    /// Has the node forget a list. An instance whose update was refused may need it once more, and it is sent anew then.
    fn end_part(&self, part: &Part) -> Result<(), Code> {
        part.was_sent.store(false, Ordering::Relaxed);
        self.send(&GraphDestroy { graph: part.number }).map(drop)
    }

    /// A definition is needed no more.
    ///
    /// # Errors
    /// The node is gone.
    pub(super) fn drop_definition(&self, graph: &Definition) -> Result<(), Code> {
        graph.parts().try_for_each(|part| self.drop_part(part))
    }

    fn drop_part(&self, graph: &Part) -> Result<(), Code> {
        let bases = self.instances.bases.lock().unwrap_or_else(PoisonError::into_inner);
        if graph.was_dropped.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        // A base lives on at the node until another takes its place.
        if self.has_part(graph) && !bases.iter().any(|base| base.number == graph.number) {
            self.end_part(graph)?;
        }
        Ok(())
    }

    /// Makes a definition ready to be launched; returns the name of the instance.
    ///
    /// # Errors
    /// The node is gone.
    pub(super) fn instantiate_definition(&self, graph: &Arc<Definition>, flags: u64) -> Result<u32, Code> {
        self.send_definition(graph)?;
        let mut name = 0;
        self.instances.execs.add(|number| {
            name = number;
            let names = self.instantiate_parts(graph, flags)?;
            let made = Arc::new(Made { definition: graph.clone(), names, serial: 0 });
            let Source { place, nodes, memory, .. } = &graph.source;
            self.hold(memory);
            self.hold(memory);
            let does = Does { wanted: graph.clone(), made, graph: place.graph, nodes: nodes.clone() };
            Ok(Instance { flags, does: Mutex::new(Some(does)), last: Mutex::default() })
        })?;
        Ok(name)
    }

    fn instantiate_parts(&self, graph: &Definition, flags: u64) -> Result<Vec<Named>, Code> {
        graph.parts().map(|part| self.instantiate_part(part, flags)).collect()
    }

    fn instantiate_part(&self, part: &Part, flags: u64) -> Result<Named, Code> {
        let exec = self.instances.next_exec.fetch_add(1, Ordering::Relaxed);
        let listed = self.send(&GraphInstantiate { exec, graph: part.number, flags })?;
        Ok(Named::new(exec, listed))
    }

    /// Whether the node has an instance by this name, as far as its answers were read.
    fn has_exec(&self, named: &Named) -> bool {
        named.is_there(|command| self.inbox.is_refused(command))
    }

    /// Makes an instance do what a graph does, from the next launch on. What is switched off stays so if the graph has as many nodes as it had, of the same
    /// kinds; else nothing is, and the nodes of the instance are those of the graph from then on.
    ///
    /// # Errors
    /// There is no such instance, a function of the program calls this, it names what has gone, or the node is gone.
    pub(super) fn update_instance(&self, exec: u32, graph: &Arc<Definition>) -> Result<(), Code> {
        let exec = self.instances.execs.get(exec)?;
        // What it says of an update before: that one is then made again.
        self.inbox.drain()?;
        exec.with(|does| {
            let Source { place, nodes, .. } = &graph.source;
            let off = &does.wanted.source.off;
            if !does.nodes.are_like(nodes) {
                self.want(does, graph.clone())?;
                (does.graph, does.nodes) = (place.graph, nodes.clone());
            } else if off.is_empty() {
                self.want(does, graph.clone())?;
            } else {
                let off = off.clone();
                self.change_instance(does, Source { off, ..graph.source.clone() })?;
            }
            self.make_ready(does, exec.flags)
        })
    }

    /// Calls `work` with what an instance does.
    ///
    /// # Errors
    /// There is no such instance, a function of the program calls this, or what `work` says.
    pub(super) fn with_instance<T>(
        &self,
        exec: u32,
        work: impl FnOnce(&mut Does) -> Result<T, Code>,
    ) -> Result<T, Code> {
        self.instances.execs.get(exec)?.with(work)
    }

    /// Has launches of an instance do what no graph does. The node hears of it with the next one: the program may change it several times before, and what the
    /// node would say of a list between two changes is nobody's concern.
    ///
    /// # Errors
    /// It names what has gone, a run is too long for a graph, or the node is gone.
    pub(super) fn change_instance(&self, does: &mut Does, to: Source) -> Result<(), Code> {
        self.want(does, self.define(to, true)?)
    }

    fn want(&self, does: &mut Does, wanted: Arc<Definition>) -> Result<(), Code> {
        // What the node has of it goes on with names that have gone.
        let is_there = || !self.without.graph_edits && does.made.definition.changes_to(&wanted).is_some();
        self.check_names(&wanted).or_else(|gone| if is_there() { Ok(()) } else { Err(gone) })?;
        self.hold(&wanted.source.memory);
        let before = std::mem::replace(&mut does.wanted, wanted);
        self.release(&before.source.memory)
    }

    /// Has the node know what an instance is to do.
    pub(super) fn make_ready(&self, does: &mut Does, flags: u64) -> Result<(), Code> {
        let is_refused = does.made.names.iter().any(|named| self.inbox.is_refused(named.last()));
        if Arc::ptr_eq(&does.wanted, &does.made.definition) && !is_refused {
            return Ok(());
        }
        let mut definition = does.wanted.clone();
        // A launch by another thread goes on with what it has.
        let made = Arc::get_mut(&mut does.made);
        let names = match made.map(|made| (made.definition.changes_to(&definition), made)) {
            Some((Some((changed, switched)), made)) if !self.without.graph_edits && !is_refused => {
                let mut names = std::mem::take(&mut made.names);
                let part = definition.parts().next();
                if let (Some(part), [named]) = (part, &mut names[..]) {
                    self.send_changes(named, part, &changed)?;
                    self.send_switches(named, &definition, switched)?;
                }
                names
            }
            other => {
                if self.has_lost(&definition) {
                    definition = self.without_off(&definition);
                    does.wanted = definition.clone();
                }
                self.send_definition(&definition)?;
                let mut names = match other {
                    Some((_, made)) => {
                        self.update_parts(std::mem::take(&mut made.names), &definition, flags)?
                    }
                    None => self.instantiate_parts(&definition, flags)?,
                };
                if definition.is_own {
                    self.drop_definition(&definition)?;
                }
                names.iter_mut().try_for_each(|named| {
                    self.send_switches(named, &definition, definition.off.iter().copied())
                })?;
                names
            }
        };
        self.hold(&definition.source.memory);
        let made = Arc::new(Made { definition, names, serial: does.made.serial + 1 });
        self.let_go(std::mem::replace(&mut does.made, made))
    }

    /// Whether a command that launches leave out names memory or a kernel that has gone: the node would refuse the list that has it.
    fn has_lost(&self, definition: &Definition) -> bool {
        let has_range = |(start, bytes)| bytes == 0 || self.check_range(start, bytes).is_ok();
        let is_there = |list: &List, entry: usize| {
            list.kernel_at(entry).is_none_or(|kernel| self.has_kernel(kernel))
                && list.ranges_at(entry).into_iter().all(has_range)
        };
        definition.parts().any(|part| definition.off.iter().any(|entry| !is_there(&part.list, *entry)))
    }

    /// The same with a list that does not have what launches leave out.
    fn without_off(&self, definition: &Definition) -> Arc<Definition> {
        let source = definition.source.clone();
        // Commands are left out of one list alone.
        let steps = vec![self.instances.part(&source.place, source.done())];
        Arc::new(Definition { source, steps, off: BTreeSet::new(), is_own: true })
    }

    /// Has an instance at the node do commands of a list in the place of those that it has.
    fn send_changes(&self, named: &mut Named, to: &Part, commands: &[usize]) -> Result<(), Code> {
        for entry in commands {
            let (word, body) = to.list.frame(*entry);
            // A list has fewer commands than that.
            let message = GraphChange { exec: named.exec, step: *entry as u32, word };
            named.changed(self.send_with_tail(&message, body.len(), |tail| tail.put(0, body))?);
        }
        Ok(())
    }

    /// Has an instance at the node leave commands out, or do them, as a definition says.
    fn send_switches(
        &self,
        named: &mut Named,
        to: &Definition,
        commands: impl IntoIterator<Item = usize>,
    ) -> Result<(), Code> {
        for entry in commands {
            let is_on = u32::from(!to.off.contains(&entry));
            // As above.
            named.changed(self.send(&GraphSwitch { exec: named.exec, step: entry as u32, is_on })?);
        }
        Ok(())
    }

    /// Has instances at the node do what the parts of a definition say, and makes or ends some if these are more or fewer.
    fn update_parts(&self, had: Vec<Named>, graph: &Definition, flags: u64) -> Result<Vec<Named>, Code> {
        let mut had = had.into_iter().filter(|named| self.has_exec(named));
        let mut names = Vec::new();
        for part in graph.parts() {
            names.push(match had.next() {
                Some(mut named) => {
                    let is_known = self.inbox.is_refused(named.last());
                    named
                        .updated(self.send(&GraphUpdate { exec: named.exec, graph: part.number })?, is_known);
                    named
                }
                None => self.instantiate_part(part, flags)?,
            });
        }
        had.try_for_each(|named| self.send(&GraphExecDestroy { exec: named.exec }).map(drop))?;
        Ok(names)
    }

    /// An instance or a launch has no more use for this: the last one ends it.
    fn let_go(&self, made: Arc<Made>) -> Result<(), Code> {
        let Some(made) = Arc::into_inner(made) else { return Ok(()) };
        let there = made.names.iter().filter(|named| self.has_exec(named));
        there.map(|named| named.exec).try_for_each(|exec| self.send(&GraphExecDestroy { exec }).map(drop))?;
        self.release(&made.definition.source.memory)
    }

    /// Whether there is such an instance.
    ///
    /// # Errors
    /// There is none (any more).
    pub fn known_exec(&self, exec: u32) -> Result<(), Code> {
        self.instances.execs.get(exec).map(drop)
    }

    /// Ends an instance.
    ///
    /// # Errors
    /// There is no such instance, a function of the program calls this, or the node is gone.
    pub fn destroy_exec(&self, exec: u32) -> Result<(), Code> {
        if is_caller() {
            return Err(NOT_PERMITTED);
        }
        let gone = self.instances.execs.remove(exec)?;
        let does = locked(&gone.does)?.take();
        let Some(does) = does else { return Ok(()) };
        self.release(&does.wanted.source.memory).and(self.let_go(does.made))
    }

    /// Ends all instances of a context, and has the node forget lists of it that are no graph's any more.
    ///
    /// # Errors
    /// The node is gone.
    pub(super) fn destroy_execs_of(&self, owner: Owner) -> Result<(), Code> {
        for (number, exec) in self.instances.execs.numbered() {
            let is_meant = locked(&exec.does)?
                .as_ref()
                .is_some_and(|does| does.definition().source.place.owner == owner);
            if is_meant {
                self.destroy_exec(number)?;
            }
        }
        let mut bases = self.instances.bases.lock().unwrap_or_else(PoisonError::into_inner);
        let is_meant = |base: &Part| base.place.owner == owner && base.was_dropped.load(Ordering::Relaxed);
        for base in bases.iter().filter(|base| is_meant(base)) {
            self.end_part(base)?;
        }
        bases.retain(|base| !is_meant(base));
        Ok(())
    }

    /// Launches an instance. Its copies to devices take what the program's memory has now, or when the last function before them has returned, for which this
    /// waits; bytes of those to the program are there when the stream has been synchronised, or the next function is called. A launch that is captured becomes
    /// a node with all that the instance does now.
    ///
    /// # Errors
    /// There is no such instance, it was changed and names what has gone since, the capture of the stream has failed, this is called by a function of a stream, or
    /// the node is gone.
    pub fn launch_exec(&'static self, exec: u32, stream: &Arc<Stream>) -> Result<(), Code> {
        let exec = self.instances.execs.get(exec)?;
        if stream.is_captured() {
            let does = exec.with(|does| Ok(does.definition().clone()))?;
            let graph = self.captured_graph(stream)?.ok_or(INVALID_VALUE)?;
            return self.add_captured(&graph, stream.number, Node::child(&does));
        }
        self.check_default(stream)?;
        self.wait_callbacks(stream)?;
        let mut last = locked(&exec.last)?;
        let made = exec.with(|does| {
            self.make_ready(does, exec.flags)?;
            Ok(does.made.clone())
        })?;
        let launched =
            self.order_launch(&mut last, &made, stream).and_then(|()| self.launch_made(&made, stream));
        let gone = self.let_go(made);
        launched.and(gone)
    }

    /// Puts the steps of a launch into a stream. From the first one on it goes on whatever another thread begins meanwhile: half a launch would be none of the
    /// program's, and bytes that it names would be waited for that nobody brings.
    fn launch_made(&'static self, made: &Made, stream: &Arc<Stream>) -> Result<(), Code> {
        // The stream is not done, nor another thread's, between two steps.
        let launching = made.definition.is_split().then(|| self.begin_launch(stream)).transpose()?;
        let mut names = made.names.iter();
        for step in &made.definition.steps {
            match step {
                Step::Launch(part) => {
                    // There is one for each.
                    let named = names.next().ok_or(INVALID_VALUE)?;
                    self.launch_part(named.exec, part, stream)?;
                }
                Step::Call(call) => self.call_begun(stream, call.call())?,
            }
        }
        drop(launching);
        let memory = &made.definition.source.memory;
        if memory.is_none() { Ok(()) } else { self.note_launched(memory) }
    }

    /// Has a launch be behind the one before it, which CUDA promises also where that was in another stream. The node sees to it for one list that has not changed,
    /// as its driver knows one instance then; else this waits.
    fn order_launch(&self, last: &mut Option<Last>, made: &Made, stream: &Arc<Stream>) -> Result<(), Code> {
        let (is_split, serial) = (made.definition.is_split(), made.serial);
        if let Some(last) = last
            && !Arc::ptr_eq(&last.stream, stream)
            && (is_split || last.is_split || last.serial != serial)
        {
            self.wait_callbacks(&last.stream)?;
            self.wait_end(&last.stream)?;
        }
        let is_like = |last: &Last| {
            Arc::ptr_eq(&last.stream, stream) && last.is_split == is_split && last.serial == serial
        };
        if !last.as_ref().is_some_and(is_like) {
            *last = Some(Last { stream: stream.clone(), is_split, serial });
        }
        Ok(())
    }

    /// Waits for the work of a stream that may have been ended meanwhile.
    fn wait_end(&self, stream: &Arc<Stream>) -> Result<(), Code> {
        let device = stream.owner.device;
        let end = if stream.is_destroyed() {
            // The node may know it no more.
            Some(self.mark(&[], |mark| MarkDevice { mark, device })?)
        } else {
            self.end_of_work(stream)?
        };
        end.map_or(Ok(()), |end| self.wait_mark(&end))
    }

    fn launch_part(&self, exec: u32, part: &Part, stream: &Arc<Stream>) -> Result<(), Code> {
        // They may write what the commands copy from.
        self.wait_callbacks(stream)?;
        if !part.copies.is_empty() {
            self.wait_sources(&part.copies)?;
            self.send_content(exec, &part.copies, stream)?;
        }
        let message = GraphLaunch { exec, stream: stream.number };
        let command = self.issue_begun(stream, Effect::Visible, &message, 0, |_| ())?;
        self.note_records(&part.records, stream, command);
        Ok(())
    }

    /// Sends what copies of a graph need: names of those to the program, and bytes of the others.
    fn send_content(&self, exec: u32, copies: &[HostCopy], stream: &Arc<Stream>) -> Result<(), Code> {
        let mut content = Vec::new();
        for copy in copies {
            if let HostCopy::Out(place) = copy {
                // The stream has come no further when the bytes are there: the graph goes on.
                let (number, pending) =
                    self.inbox.expect(Target::Bytes(*place, stream.clone(), AtomicU64::new(0)));
                self.landing.add(pending, place);
                // Names of the inbox are counted in 32 bits.
                content.extend_from_slice(&(number as u32).to_le_bytes());
            }
        }
        let transfers = (content.len() / 4) as u32;
        let message = LaunchContent { exec, transfers };
        let part_max = self.tail_max(LaunchContent::BYTES);
        let send = |part: &[u8]| self.send_with_tail(&message, part.len(), |tail| tail.put(0, part));
        for copy in copies {
            if let HostCopy::In(place) = copy {
                append_rows(&mut content, place);
            }
            while content.len() >= part_max {
                send(&content[..part_max])?;
                content.drain(..part_max);
            }
        }
        if !content.is_empty() {
            send(&content)?;
        }
        Ok(())
    }

    /// Waits for bytes that a graph's copies to devices read and that are still to land.
    ///
    /// # Errors
    /// They do not come.
    fn wait_sources(&self, copies: &[HostCopy]) -> Result<(), Code> {
        copies.iter().try_for_each(|copy| match copy {
            HostCopy::In(place) => self.wait_landing(place.range()),
            HostCopy::Out(_) => Ok(()),
        })
    }
}

/// Appends the rows of the program's memory without what lies between them.
fn append_rows(to: &mut Vec<u8>, place: &Destination) {
    for row in 0..place.bytes / place.width.max(1) {
        let start = std::ptr::with_exposed_provenance::<u8>(place.start + row * place.pitch);
        // SAFETY: the program gave these rows to a copy in a graph, which it keeps as long as it launches the graph.
        to.extend_from_slice(unsafe { std::slice::from_raw_parts(start, place.width) });
    }
}
