//! Graphs of the program: lists that were captured, under handles.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::instance::Definition;
use super::list::List;
use super::session::Session;
use crate::code::Code;

/// A graph.
#[derive(Debug)]
pub struct Graph {
    /// What its handle is made of.
    pub number: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    origin: u32,
    list: List,
    /// The list as it is sent.
    definition: Option<Arc<Definition>>,
}

impl Graph {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Commands in it.
    #[must_use]
    pub fn command_count(&self) -> usize {
        self.state().list.entries.len()
    }
}

impl Session {
    /// A graph of a list.
    ///
    /// # Errors
    /// All names were given.
    pub fn add_graph(&self, origin: u32, list: List) -> Result<Arc<Graph>, Code> {
        self.captures
            .graphs
            .add(|number| Ok(Graph { number, state: Mutex::new(State { origin, list, definition: None }) }))
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
        let definition = graph.state().definition.take();
        definition.map_or(Ok(()), |definition| self.drop_definition(&definition))
    }

    /// The graph as it is sent.
    fn definition(&self, graph: &Graph) -> Arc<Definition> {
        let mut state = graph.state();
        if let Some(definition) = &state.definition {
            return definition.clone();
        }
        let made = self.instances.define(state.origin, state.list.bytes.clone(), state.list.copies());
        state.definition.insert(made).clone()
    }

    /// Makes a graph ready to be launched; returns the name of the instance.
    ///
    /// # Errors
    /// The node is gone.
    pub fn instantiate(&self, graph: &Graph, flags: u64) -> Result<u32, Code> {
        self.instantiate_definition(&self.definition(graph), flags)
    }

    /// Makes an instance do what a graph says.
    ///
    /// # Errors
    /// There is no such instance, or the node is gone.
    pub fn update_exec(&self, exec: u32, graph: &Graph) -> Result<(), Code> {
        self.known_exec(exec)?;
        self.update_instance(exec, &self.definition(graph))
    }
}
