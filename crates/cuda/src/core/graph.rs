//! Graphs of the program: captured, put together node by node, or both.
//!
//! A graph has a list of what was captured into it, and nodes. Nodes of the list are made when the program first asks for them. As long as it only looks, the list
//! is sent as it was captured; once it has added or changed something, its commands are sent one by one, in an order that all
//! dependencies allow.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hinterland_proto::gpu::command::{BlasSet, EventRecord, Launch, StreamWait};

use super::context::Owner;
use super::event::EXTERNAL;
use super::graph_memory::GraphMemory;
use super::handle::Kind;
use super::instance::{Definition, Place, Source};
use super::launch::Geometry;
use super::list::{HostCall, LaunchAttributes, List};
use super::node::{Arguments, Content, Given, Hints, Node, NodeKind, Nodes, Piece};
use super::session::Session;
use super::stream::Stream;
use super::user_object::{Kept, UserObject};
use crate::code::{CAPTURE_UNSUPPORTED, Code, INVALID_VALUE, NOT_SUPPORTED};

/// Most nodes of a graph: as many as the node takes commands.
const NODES_MAX: usize = 1 << 20;

/// A graph.
#[derive(Debug)]
pub struct Graph {
    /// What its handle is made of.
    pub number: u32,
    /// Its device and context.
    pub owner: Owner,
    state: Mutex<State>,
}

/// What a graph is made of.
#[derive(Debug, Default, Clone)]
pub struct State {
    /// A stream of its device.
    pub(super) origin: u32,
    /// What was captured.
    pub(super) list: List,
    /// What it allocates and frees.
    pub(super) memory: GraphMemory,
    /// Objects of the program that the program gave it.
    pub(super) objects: Kept,
    /// Entries of the list that are nodes already.
    seen: usize,
    /// The last nodes of each stream of the capture.
    frontiers: HashMap<u32, Vec<usize>>,
    events: HashMap<u32, Vec<usize>>,
    pub(super) nodes: Vec<Node>,
    /// Whether there is more than the list.
    is_changed: bool,
    definition: Option<Arc<Definition>>,
}

/// The node with a number of a session: its graph, and which one it is there.
#[derive(Debug, Clone, Copy)]
pub struct NodePlace {
    pub(super) graph: u32,
    pub(super) index: usize,
}

impl Graph {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Makes nodes of what was captured since the last time.
    fn see(&mut self) {
        let mut front = Vec::new();
        while self.seen < self.list.entries.len() {
            let index = self.seen;
            self.seen += 1;
            let stream = self.list.entries[index].stream;
            let (word, body) = self.list.frame(index);
            match word {
                EventRecord::WORD if EventRecord::take(body).flags & EXTERNAL == 0 => {
                    let event = EventRecord::take(body).event;
                    let frontier = self.frontiers.get(&stream).cloned().unwrap_or_default();
                    self.events.insert(event, frontier);
                }
                StreamWait::WORD if StreamWait::take(body).flags & EXTERNAL == 0 => {
                    let event = StreamWait::take(body).event;
                    let more = self.events.get(&event).cloned().unwrap_or_default();
                    let frontier = self.frontiers.entry(stream).or_default();
                    frontier.extend(more);
                    frontier.sort_unstable();
                    frontier.dedup();
                }
                // A setting holds for what follows in its stream.
                BlasSet::WORD => front.push((stream, index)),
                _ => {
                    let of_stream = front.extract_if(.., |(of, _)| *of == stream);
                    let mut entries: Vec<usize> = of_stream.map(|(_, setting)| setting).collect();
                    entries.push(index);
                    let place = self.nodes.len();
                    let dependencies = self.frontiers.insert(stream, vec![place]).unwrap_or_default();
                    self.nodes.push(Node::captured(NodeKind::of_word(word), entries, dependencies));
                }
            }
        }
        if !front.is_empty()
            && let Some(Node { content: Content::Captured(entries), .. }) =
                self.nodes.iter_mut().rev().find(|node| matches!(node.content, Content::Captured(_)))
        {
            entries.extend(front.into_iter().map(|(_, setting)| setting));
        }
    }

    /// Whether the last work that was captured of each of these streams is in front of the end of one of them.
    pub(super) fn is_joined(&mut self, origin: u32, streams: &[Arc<Stream>]) -> bool {
        if streams.len() < 2 {
            return true;
        }
        self.see();
        let mut in_front = vec![false; self.nodes.len()];
        let mut to_see = self.frontiers.get(&origin).cloned().unwrap_or_default();
        while let Some(index) = to_see.pop() {
            if !std::mem::replace(&mut in_front[index], true) {
                to_see.extend_from_slice(&self.nodes[index].dependencies);
            }
        }
        let ends = streams.iter().filter_map(|stream| self.frontiers.get(&stream.number));
        ends.flatten().all(|index| in_front[*index])
    }

    /// Nodes in an order that all dependencies allow, the first ones first.
    ///
    /// # Errors
    /// They go round in a circle.
    fn order(&self) -> Result<Vec<usize>, Code> {
        let mut left: Vec<usize> = self.nodes.iter().map(|node| node.dependencies.len()).collect();
        let mut behind = vec![Vec::new(); self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            node.dependencies.iter().for_each(|before| behind[*before].push(index));
        }
        let mut ready: std::collections::BTreeSet<usize> =
            (0..self.nodes.len()).filter(|index| left[*index] == 0).collect();
        let mut order = Vec::with_capacity(self.nodes.len());
        while let Some(index) = ready.pop_first() {
            order.push(index);
            for next in &behind[index] {
                left[*next] -= 1;
                if left[*next] == 0 {
                    ready.insert(*next);
                }
            }
        }
        if order.len() < self.nodes.len() {
            return Err(INVALID_VALUE);
        }
        order.retain(|index| !self.nodes[*index].is_gone);
        Ok(order)
    }

    /// What a node does.
    #[must_use]
    pub fn kind(&self, index: usize) -> NodeKind {
        self.nodes[index].kind
    }

    /// What can be asked of a node of a kind.
    ///
    /// # Errors
    /// It is of another kind.
    pub fn given(&self, index: usize, kind: NodeKind) -> Result<&Given, Code> {
        let node = &self.nodes[index];
        if node.kind == kind { Ok(&node.given) } else { Err(INVALID_VALUE) }
    }

    /// The commands of a node.
    fn commands(&self, index: usize) -> (&List, Vec<usize>) {
        match &self.nodes[index].content {
            Content::Captured(entries) => (&self.list, entries.clone()),
            Content::Own(list) => (list, (0..list.entries.len()).collect()),
        }
    }

    /// Objects of the program that are there as long as anything is that was made of the graph.
    fn all_objects(&self) -> Vec<Arc<UserObject>> {
        let of_nodes = self.nodes.iter().filter(|node| !node.is_gone).flat_map(|node| &node.objects);
        self.objects.all().chain(of_nodes).cloned().collect()
    }

    /// Flags and clusters of the kernel that a node launches.
    pub(super) fn launch_attributes(&self, index: usize) -> Option<LaunchAttributes> {
        let (list, entries) = self.commands(index);
        entries.into_iter().find_map(|entry| list.launch_attributes_at(entry))
    }

    /// One list of all nodes, in which each command waits for the one in front of it; and where each node is there.
    fn one_by_one(&self, event: u32) -> Result<(List, Vec<Piece>), Code> {
        let (mut list, mut pieces) = (List::default(), Vec::new());
        let mut lane = self.origin;
        for index in self.order()? {
            let (own, entries) = self.commands(index);
            let mut first = None;
            for entry in entries {
                let stream = stream_in(lane, own, entry);
                if stream != lane {
                    list.switch(event, lane, stream)?;
                    lane = stream;
                }
                first.get_or_insert(list.entries.len());
                list.push_frame_in(own, entry, stream);
            }
            let first = first.unwrap_or(list.entries.len());
            pieces.push(Piece { node: index, first, count: list.entries.len() - first });
        }
        if lane != self.origin {
            list.switch(event, lane, self.origin)?;
        }
        Ok((list, pieces))
    }
}

/// The entries of a list that each node of its graph has: those of these pieces, or, of a list as it was captured, what was made a node of.
pub(super) fn places_in(list: &List, pieces: Option<&[Piece]>) -> Vec<(usize, Vec<usize>)> {
    if let Some(pieces) = pieces {
        return pieces.iter().map(|one| (one.node, (one.first..one.first + one.count).collect())).collect();
    }
    let mut state = State { list: list.clone(), ..State::default() };
    state.see();
    let entries = |(node, one): (usize, &Node)| match &one.content {
        Content::Captured(entries) => Some((node, entries.clone())),
        Content::Own(_) => None,
    };
    state.nodes.iter().enumerate().filter_map(entries).collect()
}

/// The stream of an entry that comes behind one of the stream `lane`: a function that is called is of whatever stream it comes behind.
pub(super) fn stream_in(lane: u32, list: &List, entry: usize) -> u32 {
    let entry = &list.entries[entry];
    if entry.call.is_some() { lane } else { entry.stream }
}

impl Session {
    /// An empty graph of a context; `origin` is a stream of it.
    ///
    /// # Errors
    /// All names were given.
    pub fn add_graph(&self, owner: Owner, origin: u32) -> Result<Arc<Graph>, Code> {
        let state = State { origin, ..State::default() };
        self.captures.graphs.add(|number| Ok(Graph { number, owner, state: Mutex::new(state) }))
    }

    /// The graph with a number.
    ///
    /// # Errors
    /// There is none (any more).
    pub fn graph(&self, number: u32) -> Result<Arc<Graph>, Code> {
        self.captures.graphs.get(number)
    }

    /// Ends a graph.
    ///
    /// # Errors
    /// There is none (any more), or the node is gone.
    pub fn destroy_graph(&self, number: u32) -> Result<(), Code> {
        let graph = self.captures.graphs.remove(number)?;
        let mut state = graph.state();
        for handle in state.nodes.iter().filter_map(|node| node.handle) {
            // It is there: it was given to this node.
            let _ = self.captures.nodes.remove(handle);
        }
        let dropped = self.forget_definition(&mut state);
        let objects = std::mem::take(&mut state.objects);
        let released = self.release(&std::mem::take(&mut state.memory)).and(dropped);
        drop(state);
        drop(objects);
        released
    }

    /// Ends all graphs of a context.
    ///
    /// # Errors
    /// The node is gone.
    pub(super) fn destroy_graphs_of(&self, owner: Owner) -> Result<(), Code> {
        let all = self.captures.graphs.all();
        all.iter().filter(|graph| graph.owner == owner).try_for_each(|graph| self.destroy_graph(graph.number))
    }

    /// A graph with the same nodes.
    ///
    /// # Errors
    /// All names were given.
    pub fn clone_graph(&self, graph: &Graph) -> Result<Arc<Graph>, Code> {
        let mut state = graph.state();
        state.see();
        let mut copy = State { definition: None, ..state.clone() };
        copy.nodes.iter_mut().for_each(|node| node.handle = None);
        self.hold(&copy.memory);
        let owner = graph.owner;
        self.captures.graphs.add(|number| Ok(Graph { number, owner, state: Mutex::new(copy) }))
    }

    /// Something in a graph is to be more than its list, or another list.
    fn change(&self, state: &mut State) -> Result<(), Code> {
        state.see();
        state.is_changed = true;
        self.forget_definition(state)
    }

    /// What was sent of a graph is of use to the instances that were made of it, and to no later one.
    pub(super) fn forget_definition(&self, state: &mut State) -> Result<(), Code> {
        state.definition.take().map_or(Ok(()), |definition| self.drop_definition(&definition))
    }

    /// The graph as it is sent.
    fn definition(&self, graph: &Graph) -> Result<Arc<Definition>, Code> {
        let mut state = graph.state();
        if let Some(definition) = &state.definition {
            return Ok(definition.clone());
        }
        let (place, objects) = (Place::of(graph, state.origin), state.all_objects());
        let (list, pieces, nodes) = if state.is_changed {
            // What was captured since the last look is as much of it.
            state.see();
            let (list, pieces) = state.one_by_one(self.edge_event()?)?;
            let there = state.nodes.iter().enumerate().filter(|(_, node)| !node.is_gone);
            (list, Some(pieces), Nodes::new(there.map(|(index, node)| (index, node.kind))))
        } else {
            (state.list.clone(), None, Nodes::new(state.list.kinds().enumerate()))
        };
        let (list, off, memory) = (Arc::new(list), BTreeSet::new(), state.memory.clone());
        let made = self.define(Source { place, list, nodes, pieces, off, memory, objects }, false)?;
        Ok(state.definition.insert(made).clone())
    }

    /// Makes a graph ready to be launched; returns the name of the instance.
    ///
    /// # Errors
    /// Its nodes go round in a circle, or the node is gone.
    pub fn instantiate(&self, graph: &Graph, flags: u64) -> Result<u32, Code> {
        self.instantiate_definition(&self.definition(graph)?, flags)
    }

    /// Makes an instance do what a graph says.
    ///
    /// # Errors
    /// There is no such instance; as [`instantiate`](Self::instantiate).
    pub fn update_exec(&self, exec: u32, graph: &Graph) -> Result<(), Code> {
        self.update_instance(exec, &self.definition(graph)?)
    }

    /// The handles of all nodes of a graph.
    ///
    /// # Errors
    /// All names were given.
    pub fn nodes(&self, graph: &Graph) -> Result<Vec<u32>, Code> {
        let mut state = graph.state();
        state.see();
        let count = state.nodes.len();
        (0..count)
            .filter(|index| !state.nodes[*index].is_gone)
            .collect::<Vec<_>>()
            .into_iter()
            .map(|index| self.node_handle(graph.number, &mut state, index))
            .collect()
    }

    /// How many nodes a graph has.
    #[must_use]
    pub fn node_count(&self, graph: &Graph) -> usize {
        let mut state = graph.state();
        state.see();
        state.nodes.iter().filter(|node| !node.is_gone).count()
    }

    fn node_handle(&self, graph: u32, state: &mut State, index: usize) -> Result<u32, Code> {
        if let Some(handle) = state.nodes[index].handle {
            return Ok(handle);
        }
        let mut name = 0;
        self.captures.nodes.add(|number| {
            name = number;
            Ok(NodePlace { graph, index })
        })?;
        state.nodes[index].handle = Some(name);
        Ok(name)
    }

    /// Calls `work` with the graph of a node and which one it is.
    ///
    /// # Errors
    /// There is no such node (any more), or what `work` says.
    pub fn with_node<T>(
        &self,
        node: u32,
        work: impl FnOnce(&Arc<Graph>, &mut State, usize) -> Result<T, Code>,
    ) -> Result<T, Code> {
        let place = *self.captures.nodes.get(node)?;
        let graph = self.graph(place.graph)?;
        let mut state = graph.state();
        if state.nodes.get(place.index).is_none_or(|node| node.is_gone) {
            return Err(INVALID_VALUE);
        }
        work(&graph, &mut state, place.index)
    }

    /// Which nodes of a graph these are.
    fn indices(&self, graph: &Graph, nodes: &[u32]) -> Result<Vec<usize>, Code> {
        let index = |node: &u32| {
            let place = *self.captures.nodes.get(*node)?;
            if place.graph == graph.number { Ok(place.index) } else { Err(INVALID_VALUE) }
        };
        nodes.iter().map(index).collect()
    }

    /// Adds a node behind others; returns its handle.
    ///
    /// # Errors
    /// The others are not of this graph, there are too many, or the GPU node is gone.
    pub fn add_node(&self, graph: &Graph, behind: &[u32], node: Node) -> Result<u32, Code> {
        let dependencies = self.indices(graph, behind)?;
        let mut state = graph.state();
        self.change(&mut state)?;
        if dependencies.iter().any(|index| state.nodes[*index].is_gone) || state.nodes.len() >= NODES_MAX {
            return Err(INVALID_VALUE);
        }
        let index = state.nodes.len();
        self.adopt(&mut state.memory, &node.memory);
        state.nodes.push(Node { dependencies, ..node });
        self.node_handle(graph.number, &mut state, index)
    }

    /// Adds a node behind what was captured of a stream so far.
    ///
    /// # Errors
    /// There are too many, or the GPU node is gone.
    pub(super) fn add_captured(&self, graph: &Graph, stream: u32, node: Node) -> Result<(), Code> {
        let mut state = graph.state();
        self.change(&mut state)?;
        let index = state.nodes.len();
        if index >= NODES_MAX {
            return Err(INVALID_VALUE);
        }
        let dependencies = state.frontiers.insert(stream, vec![index]).unwrap_or_default();
        self.adopt(&mut state.memory, &node.memory);
        state.nodes.push(Node { dependencies, ..node });
        Ok(())
    }

    /// Gives a node other commands.
    ///
    /// # Errors
    /// There is no such node, it is of another kind, its groups do not make the clusters that it has, or the GPU node is gone.
    pub fn change_node(&self, node: u32, mut with: Node) -> Result<(), Code> {
        self.with_node(node, |_, state, index| {
            if state.nodes[index].kind != with.kind {
                return Err(INVALID_VALUE);
            }
            if let Some(attributes) = state.launch_attributes(index) {
                with.keep_attributes(attributes)?;
            }
            self.change(state)?;
            self.adopt(&mut state.memory, &with.memory);
            let Node { handle, dependencies, hints, .. } = state.nodes[index].clone();
            state.nodes[index] = Node { handle, dependencies, hints, ..with };
            Ok(())
        })
    }

    /// What the kernel of a node is launched with besides its parameters.
    ///
    /// # Errors
    /// There is no such node, or it launches no kernel of the program.
    pub fn attributes_of_node(&self, node: u32) -> Result<(LaunchAttributes, Hints), Code> {
        self.with_node(node, |_, state, index| {
            let attributes = state.launch_attributes(index).filter(|_| state.kind(index) == NodeKind::Kernel);
            Ok((attributes.ok_or(INVALID_VALUE)?, state.nodes[index].hints.clone()))
        })
    }

    /// Has the kernel of a node be launched with other attributes.
    ///
    /// # Errors
    /// As [`attributes_of_node`](Self::attributes_of_node), its groups do not make such clusters, or the GPU node is gone.
    pub fn set_attributes_of_node(
        &self,
        node: u32,
        attributes: LaunchAttributes,
        hints: Hints,
    ) -> Result<(), Code> {
        let (before, _) = self.attributes_of_node(node)?;
        self.with_node(node, |_, state, index| {
            if attributes != before {
                let (list, entries) = state.commands(index);
                let mut own = List::default();
                entries.into_iter().for_each(|entry| own.push_frame(list, entry));
                let mut with = Node { content: Content::Own(own), ..state.nodes[index].clone() };
                with.keep_attributes(attributes)?;
                self.change(state)?;
                state.nodes[index] = with;
            }
            state.nodes[index].hints = hints;
            Ok(())
        })
    }

    /// Puts nodes behind others, or takes that back (`is_removal`).
    ///
    /// # Errors
    /// They are not of this graph, or, to be removed, not there.
    pub fn change_edges(
        &self,
        graph: &Graph,
        from: &[u32],
        to: &[u32],
        is_removal: bool,
    ) -> Result<(), Code> {
        let (from, to) = (self.indices(graph, from)?, self.indices(graph, to)?);
        let mut state = graph.state();
        self.change(&mut state)?;
        for (before, after) in from.into_iter().zip(to) {
            let dependencies = &mut state.nodes[after].dependencies;
            let place = dependencies.iter().position(|one| *one == before);
            match (place, is_removal) {
                (Some(place), true) => drop(dependencies.swap_remove(place)),
                (None, false) if before != after => dependencies.push(before),
                _ => return Err(INVALID_VALUE),
            }
        }
        Ok(())
    }

    /// Pairs of nodes, of which the second one is behind the first.
    ///
    /// # Errors
    /// All names were given.
    pub fn edges(&self, graph: &Graph) -> Result<Vec<(u32, u32)>, Code> {
        let mut state = graph.state();
        state.see();
        let mut pairs = Vec::new();
        for (index, node) in state.nodes.iter().enumerate().filter(|(_, node)| !node.is_gone) {
            pairs.extend(node.dependencies.iter().map(|before| (*before, index)));
        }
        pairs
            .into_iter()
            .map(|(before, after)| {
                let first = self.node_handle(graph.number, &mut state, before)?;
                Ok((first, self.node_handle(graph.number, &mut state, after)?))
            })
            .collect()
    }

    /// Takes a node out; what was behind it is behind nothing of it any more.
    ///
    /// # Errors
    /// There is no such node.
    pub fn destroy_node(&self, node: u32) -> Result<(), Code> {
        let objects = self.with_node(node, |_, state, index| {
            self.change(state)?;
            state.nodes[index].is_gone = true;
            state.nodes[index].dependencies.clear();
            state.nodes.iter_mut().for_each(|one| one.dependencies.retain(|before| *before != index));
            Ok(std::mem::take(&mut state.nodes[index].objects))
        })?;
        // The graph has no more use for what only this node had; they go when it is not locked any more.
        drop(objects);
        self.captures.nodes.remove(node).map(drop)
    }

    /// The node of a copy of a graph that a node of the original has become.
    ///
    /// # Errors
    /// There is none.
    pub fn node_in_clone(&self, node: u32, clone: &Graph) -> Result<u32, Code> {
        let place = *self.captures.nodes.get(node)?;
        let mut state = clone.state();
        if place.index >= state.nodes.len() || place.graph == clone.number {
            return Err(INVALID_VALUE);
        }
        self.node_handle(clone.number, &mut state, place.index)
    }

    /// What the next command of a captured stream will be behind.
    ///
    /// # Errors
    /// All names were given.
    pub fn frontier(&self, graph: &Graph, stream: u32) -> Result<Vec<u32>, Code> {
        let mut state = graph.state();
        state.see();
        let frontier = state.frontiers.get(&stream).cloned().unwrap_or_default();
        frontier.into_iter().map(|index| self.node_handle(graph.number, &mut state, index)).collect()
    }

    /// Says what the next command of a captured stream will be behind: these besides, or these alone.
    ///
    /// # Errors
    /// They are not of this graph.
    pub fn set_frontier(&self, graph: &Graph, stream: u32, nodes: &[u32], is_all: bool) -> Result<(), Code> {
        let mut more = self.indices(graph, nodes)?;
        let mut state = graph.state();
        self.change(&mut state)?;
        if is_all {
            state.memory.forget_free(stream);
        }
        let frontier = state.frontiers.entry(stream).or_default();
        if !is_all {
            more.append(frontier);
        }
        more.sort_unstable();
        more.dedup();
        *frontier = more;
        Ok(())
    }

    /// A node that does what a graph does now.
    ///
    /// # Errors
    /// As [`instantiate`](Self::instantiate).
    pub fn child_of(&self, graph: &Graph) -> Result<Node, Code> {
        self.definition(graph).map(|definition| Node::child(&definition))
    }

    /// All commands of a graph as they are sent.
    ///
    /// # Errors
    /// As [`instantiate`](Self::instantiate).
    pub fn list_of(&self, graph: &Graph) -> Result<List, Code> {
        self.definition(graph).map(|definition| List::clone(&definition.source.list))
    }

    /// The kernel that a node launches: what the program calls it, how, and with which arguments.
    ///
    /// # Errors
    /// The node is no kernel of the program's.
    pub fn kernel_of_node(&self, node: u32) -> Result<(usize, Geometry, Arc<Arguments>), Code> {
        let (captured, owner) = self.with_node(node, |graph, state, index| {
            let captured = match state.given(index, NodeKind::Kernel)? {
                Given::Kernel(function, geometry, arguments) => {
                    Err((*function, *geometry, arguments.clone()))
                }
                _ => {
                    let (list, entries) = state.commands(index);
                    let last = entries
                        .iter()
                        .map(|entry| list.frame(*entry))
                        .find(|(word, _)| *word == Launch::WORD);
                    Ok(last.map(|(_, body)| body.to_vec()).ok_or(NOT_SUPPORTED)?)
                }
            };
            Ok((captured, graph.owner))
        })?;
        let body = match captured {
            Err(given) => return Ok(given),
            Ok(body) => body,
        };
        let fields = Launch::take(&body);
        let function = self.noted_kernel(fields.function).ok_or(NOT_SUPPORTED)?;
        let named = std::ptr::with_exposed_provenance(function);
        let kernel = crate::runtime::launch::kernel(self, named, owner)?;
        let geometry = Geometry {
            grid: fields.grid,
            block: fields.block,
            shared: fields.shared as usize,
            cluster: fields.cluster,
            flags: fields.flags,
        };
        let arguments = Arc::new(Arguments::of_block(&kernel, &body[Launch::BYTES..]));
        let given = Given::Kernel(function, geometry, arguments.clone());
        self.with_node(node, |_, state, index| {
            state.nodes[index].given = given;
            Ok(())
        })?;
        Ok((function, geometry, arguments))
    }

    /// The event that a node records for others, or waits for.
    ///
    /// # Errors
    /// There is no such node, or it is of another kind.
    pub fn event_of_node(&self, node: u32, kind: NodeKind) -> Result<u32, Code> {
        self.with_node(node, |_, state, index| {
            if state.kind(index) != kind {
                return Err(INVALID_VALUE);
            }
            let (list, entries) = state.commands(index);
            let event = |entry: &usize| match list.frame(*entry) {
                (EventRecord::WORD, body) => Some(EventRecord::take(body).event),
                (StreamWait::WORD, body) => Some(StreamWait::take(body).event),
                _ => None,
            };
            entries.iter().find_map(event).ok_or(INVALID_VALUE)
        })
    }

    /// The function that a node calls.
    ///
    /// # Errors
    /// There is no such node, or it is of another kind.
    pub fn call_of_node(&self, node: u32) -> Result<HostCall, Code> {
        self.with_node(node, |_, state, index| {
            let (list, entries) = state.commands(index);
            let is_host = state.kind(index) == NodeKind::Host;
            entries
                .iter()
                .filter(|_| is_host)
                .find_map(|entry| list.entries[*entry].call)
                .ok_or(INVALID_VALUE)
        })
    }

    /// The event that commands of two streams of a graph wait by.
    pub(super) fn edge_event(&self) -> Result<u32, Code> {
        let mut event = self.captures.edge.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(event) = *event {
            return Ok(event);
        }
        let made = self.create_event(Owner::primary(0), super::event::WITHOUT_TIME)?.number;
        Ok(*event.insert(made))
    }

    /// The commands that `work` would send in a context, as a list.
    ///
    /// # Errors
    /// What `work` says.
    pub fn commands_of(
        &self,
        owner: Owner,
        work: impl FnOnce(&Arc<super::stream::Stream>) -> Result<(), Code>,
    ) -> Result<List, Code> {
        let (stream, graph) = self.begin_hidden_capture(owner)?;
        let done = work(&stream);
        self.end_hidden_capture(&stream);
        self.captures.graphs.remove(graph.number)?;
        // What no capture can hold, no node can.
        done.map_err(|code| if code == CAPTURE_UNSUPPORTED { NOT_SUPPORTED } else { code })?;
        let list = std::mem::take(&mut graph.state().list);
        Ok(list)
    }
}

/// The number of a node's handle.
///
/// # Errors
/// It is something else.
pub fn node_number(handle: *const std::ffi::c_void) -> Result<u32, Code> {
    Kind::Node.of(handle)
}
