//! Nodes of graphs: commands, what they are behind, and what the program gave or can ask of them.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;

use hinterland_proto::gpu::command::{
    BlasCall, BlasGemm, BlasGemmPointers, EventRecord, Fill, FillRows, Launch, LtMatmul, StreamWait,
};

use super::graph_memory::GraphMemory;
use super::instance::Definition;
use super::launch::Geometry;
use super::list::{HostCall, LaunchAttributes, List};
use super::module::Kernel;
use super::user_object::UserObject;
use crate::code::Code;

/// What a node does, by `cudaGraphNodeType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum NodeKind {
    /// A kernel, or a function of cuBLAS.
    Kernel = 0,
    /// A copy.
    Copy = 1,
    /// A fill.
    Fill = 2,
    /// A function of the program.
    Host = 3,
    /// The nodes of another graph.
    Graph = 4,
    /// Nothing, for others to be behind.
    Empty = 5,
    /// A wait for an event that others record.
    Wait = 6,
    /// A record of an event that others see.
    Record = 7,
}

impl NodeKind {
    /// The kind of a command that was captured.
    pub(super) fn of_word(word: u32) -> Self {
        match word {
            Launch::WORD | BlasGemm::WORD | BlasGemmPointers::WORD | BlasCall::WORD | LtMatmul::WORD => {
                Self::Kernel
            }
            Fill::WORD | FillRows::WORD => Self::Fill,
            HostCall::WORD => Self::Host,
            EventRecord::WORD => Self::Record,
            StreamWait::WORD => Self::Wait,
            _ => Self::Copy,
        }
    }
}

/// Where the commands of a node are.
#[derive(Debug, Clone)]
pub enum Content {
    /// These entries of the graph's list.
    Captured(Vec<usize>),
    /// A list of its own.
    Own(List),
}

/// Arguments of a kernel: the block of them, and where in it each one lies.
#[derive(Debug)]
pub struct Arguments {
    block: Box<[u8]>,
    places: Box<[usize]>,
}

impl Arguments {
    /// The arguments of a launch, laid out as its kernel says.
    #[must_use]
    pub fn of_block(kernel: &Kernel, block: &[u8]) -> Self {
        let mut own = vec![0; block.len().max(kernel.layout.parameter_bytes as usize)].into_boxed_slice();
        own[..block.len()].copy_from_slice(block);
        let start = own.as_ptr().expose_provenance();
        let places = kernel.layout.parameters.iter().map(|one| start + one.offset as usize).collect();
        Self { block: own, places }
    }

    /// An address for each, as a program gives them to a launch; valid as long as these arguments.
    #[must_use]
    pub fn each(&self) -> *mut *mut c_void {
        debug_assert!(self.places.iter().all(|place| *place >= self.block.as_ptr().addr()));
        self.places.as_ptr().cast_mut().cast()
    }
}

/// What a program can ask of a node.
#[derive(Debug, Clone)]
pub enum Given {
    /// Nothing that was given.
    Nothing,
    /// A kernel by the address of its stub or its handle.
    Kernel(usize, Geometry, Arc<Arguments>),
    /// A structure, as it was given.
    Bytes(Vec<u8>),
}

/// Hints by their number.
pub type Hints = BTreeMap<i32, [u32; 16]>;

/// A node.
#[derive(Debug, Clone)]
pub struct Node {
    /// The number of its handle, if the program has one.
    pub(super) handle: Option<u32>,
    /// What it does.
    pub kind: NodeKind,
    /// Nodes of its graph that it is behind.
    pub(super) dependencies: Vec<usize>,
    /// Its commands.
    pub(super) content: Content,
    /// What can be asked of it.
    pub given: Given,
    /// What the graph allocates and frees whose nodes it has.
    pub(super) memory: GraphMemory,
    /// Attributes of its launch that change nothing in what it does, by `cudaLaunchAttributeID`, as they were set.
    pub(super) hints: Hints,
    /// Objects of the program that this graph keeps.
    pub(super) objects: Vec<Arc<UserObject>>,
    /// Whether the program took it out.
    pub(super) is_gone: bool,
}

impl Node {
    /// A node with a list of its own.
    #[must_use]
    pub fn own(kind: NodeKind, list: List, given: Given) -> Self {
        Self::with(kind, Content::Own(list), Vec::new(), given)
    }

    /// A node with all that another graph does, as it is sent.
    #[must_use]
    pub(super) fn child(definition: &Definition) -> Self {
        let (memory, objects) = (definition.source.memory.clone(), definition.source.objects.clone());
        Self {
            memory,
            objects,
            ..Self::own(NodeKind::Graph, List::clone(&definition.done()), Given::Nothing)
        }
    }

    /// Has the kernel be launched with the attributes of another launch: they are set apart from its parameters.
    ///
    /// # Errors
    /// Its groups do not make whole clusters.
    pub(super) fn keep_attributes(&mut self, attributes: LaunchAttributes) -> Result<(), Code> {
        if let Content::Own(list) = &mut self.content {
            list.set_launch_attributes(attributes)?;
        }
        if let Given::Kernel(_, geometry, _) = &mut self.given {
            (geometry.flags, geometry.cluster) = (attributes.flags, attributes.cluster);
        }
        Ok(())
    }

    pub(super) fn captured(kind: NodeKind, entries: Vec<usize>, dependencies: Vec<usize>) -> Self {
        Self::with(kind, Content::Captured(entries), dependencies, Given::Nothing)
    }

    fn with(kind: NodeKind, content: Content, dependencies: Vec<usize>, given: Given) -> Self {
        let (memory, hints, objects) = (GraphMemory::default(), Hints::new(), Vec::new());
        Self { handle: None, kind, dependencies, content, given, memory, hints, objects, is_gone: false }
    }
}

/// The nodes of a graph that are there, in their order: which one each is, and what it does.
#[derive(Debug, Clone)]
pub struct Nodes(Arc<[(usize, NodeKind)]>);

impl Nodes {
    /// By which one each is, the smallest first.
    pub(super) fn new(all: impl Iterator<Item = (usize, NodeKind)>) -> Self {
        Self(all.collect())
    }

    /// How many of them are in front of a node of the graph.
    pub(super) fn rank(&self, index: usize) -> Option<usize> {
        self.0.binary_search_by_key(&index, |(index, _)| *index).ok()
    }

    /// Which node of the graph has so many in front of it.
    pub(super) fn at(&self, rank: usize) -> Option<usize> {
        self.0.get(rank).map(|(index, _)| *index)
    }

    /// Whether the others are as many and do the same, whatever their numbers.
    pub(super) fn are_like(&self, others: &Self) -> bool {
        let kinds = |nodes: &Self| nodes.0.iter().map(|(_, kind)| *kind).collect::<Vec<_>>();
        self.0.len() == others.0.len() && kinds(self) == kinds(others)
    }
}

/// Where the commands of a node are in the list that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Which node of its graph.
    pub node: usize,
    /// Its first entry.
    pub first: usize,
    /// How many it has.
    pub count: usize,
}
