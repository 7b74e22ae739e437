//! Graphs as they come in, edits of graphs, and instances.

use super::{Executor, Names};
use crate::body::Body;
use crate::device::{At, Device};
use crate::failure::{Failure, number};
use crate::graph::{Content, Graph};
use crate::work::Work;
use hinterland_proto::gpu::command::{
    Graph as GraphCommand, GraphChange, GraphDestroy, GraphExecDestroy, GraphInstantiate, GraphLaunch,
    GraphPart, GraphSwitch, GraphUpdate, LaunchContent,
};
use hinterland_proto::gpu::{GRAPH_BYTES_MAX, apply_edits};
use std::collections::HashMap;
use std::sync::Arc;

/// Most graphs of a session, and most instances.
const GRAPHS_MAX: usize = 1 << 16;
/// Most bytes of all lists of a session and of what is known of their commands. An instance has its list once more: it outlives its graph.
const LISTS_BYTES_MAX: u64 = 1 << 30;

#[derive(Debug)]
struct Arriving {
    command: GraphCommand,
    sent: Vec<u8>,
}

/// What was sent for a launch: names first.
#[derive(Debug, Default)]
struct Sent {
    transfers: u32,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct Exec {
    graph: Arc<Graph>,
    /// What the names and the memory were when its commands were last looked at.
    checked: Option<(u64, u64)>,
    /// Whether the last update was refused: what the client says of it is meant for a list that it does not have.
    is_behind: bool,
}

impl Exec {
    /// # Errors
    /// Its last update was refused.
    fn check_current(&self, name: u32) -> Result<(), Failure> {
        if !self.is_behind {
            return Ok(());
        }
        let words =
            format!("instance of a graph {name} could not be updated (hint: instantiate the graph again)");
        Err(Failure::new(number::INVALID_HANDLE, words))
    }
}

/// Graphs, those on their way, and instances.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    arriving: HashMap<u32, Arriving>,
    graphs: HashMap<u32, Arc<Graph>>,
    bytes: u64,
    execs: HashMap<u32, Exec>,
    /// What is on its way for the next launch of instances.
    contents: HashMap<u32, Sent>,
    contents_bytes: u64,
    /// Counts names that were taken away.
    pub(super) epoch: u64,
}

impl Graphs {
    /// # Errors
    /// With one more graph, or instance of one, there would be too many bytes.
    fn room_for(&self, graph: &Graph) -> Result<(), Failure> {
        let bytes = graph.held_bytes();
        if self.bytes + bytes > LISTS_BYTES_MAX {
            let words = format!("a graph, or an instance of one, that takes {bytes} bytes is too large");
            return Err(Failure::value(words));
        }
        Ok(())
    }

    fn keep_exec(&mut self, name: u32, exec: Exec) {
        self.bytes += exec.graph.held_bytes();
        self.execs.insert(name, exec);
    }

    fn take_exec(&mut self, name: u32) -> Result<Exec, Failure> {
        let exec = self.execs.remove(&name).ok_or_else(|| Failure::unknown("instance of a graph", name))?;
        self.bytes -= exec.graph.held_bytes();
        Ok(exec)
    }

    fn known(&self, graph: u32) -> Result<&Arc<Graph>, Failure> {
        self.graphs.get(&graph).ok_or_else(|| Failure::unknown("graph", graph))
    }
}

impl<D: Device> Executor<D> {
    pub(super) fn graph(&mut self, command: &GraphCommand) -> Result<(), Failure> {
        let graphs = &mut self.graphs;
        if graphs.graphs.contains_key(&command.graph) || graphs.arriving.contains_key(&command.graph) {
            return Err(Failure::twice("graph", command.graph));
        }
        if graphs.graphs.len() + graphs.arriving.len() >= GRAPHS_MAX {
            return Err(Failure::too_many("graphs", GRAPHS_MAX));
        }
        let whole = command.bytes.max(command.sent);
        if whole > GRAPH_BYTES_MAX || graphs.bytes + whole > LISTS_BYTES_MAX {
            return Err(Failure::value(format!("a graph of {whole} bytes is too large")));
        }
        if command.base == 0 && command.sent != command.bytes {
            let words = format!("a graph of {} bytes comes as {}", command.bytes, command.sent);
            return Err(Failure::value(words));
        }
        if command.base != 0 && graphs.known(command.base)?.list().len() as u64 != command.bytes {
            return Err(Failure::value("edits of a graph make one of another length"));
        }
        self.known_device(command.flags)?;
        self.graphs.bytes += whole;
        self.graphs.arriving.insert(command.graph, Arriving { command: *command, sent: Vec::new() });
        if command.sent == 0 { self.finish_graph(command.graph) } else { Ok(()) }
    }

    pub(super) fn graph_part(&mut self, command: &GraphPart, body: Body<'_>) -> Result<(), Failure> {
        let arriving = self
            .graphs
            .arriving
            .get_mut(&command.graph)
            .ok_or_else(|| Failure::unknown("graph on its way", command.graph))?;
        let part = body.tail(GraphPart::BYTES);
        let together = (arriving.sent.len() + part.bytes()) as u64;
        if together > arriving.command.sent {
            let words = format!("a graph of {} bytes came as {together}", arriving.command.sent);
            self.forget_arriving(command.graph);
            return Err(Failure::value(words));
        }
        part.append_to(&mut arriving.sent);
        if together == arriving.command.sent { self.finish_graph(command.graph) } else { Ok(()) }
    }

    fn forget_arriving(&mut self, graph: u32) -> Option<Arriving> {
        let arriving = self.graphs.arriving.remove(&graph)?;
        self.graphs.bytes -= arriving.command.bytes.max(arriving.command.sent);
        Some(arriving)
    }

    fn finish_graph(&mut self, name: u32) -> Result<(), Failure> {
        let Some(Arriving { command, sent }) = self.forget_arriving(name) else { return Ok(()) };
        let list = if command.base == 0 {
            sent
        } else {
            let mut list = self.graphs.known(command.base)?.list().to_vec();
            apply_edits(&mut list, &sent).map_err(|bad| Failure::value(bad.to_string()))?;
            list
        };
        let handles = &self.handles;
        let origin = (command.stream, command.flags);
        let graph = Graph::read(list, origin, |handle| Some(handles.get(&handle)?.stream))?;
        self.check_graph(&graph, Names::Outside)?;
        self.graphs.room_for(&graph)?;
        self.graphs.bytes += graph.held_bytes();
        self.graphs.graphs.insert(name, Arc::new(graph));
        Ok(())
    }

    /// Everything about the commands of a graph.
    fn check_graph(&self, graph: &Graph, names: Names) -> Result<(), Failure> {
        for (index, _, work) in graph.all_work().filter(|(index, ..)| !graph.is_off(*index)) {
            self.check(&work, names).map_err(|failure| {
                let words = format!("command {index} of a graph: {}", failure.words);
                Failure { words, ..failure }
            })?;
        }
        Ok(())
    }

    pub(super) fn graph_destroy(&mut self, command: &GraphDestroy) -> Result<(), Failure> {
        if self.forget_arriving(command.graph).is_some() {
            return Ok(());
        }
        let graph = self.graphs.graphs.remove(&command.graph);
        let graph = graph.ok_or_else(|| Failure::unknown("graph", command.graph))?;
        self.graphs.bytes -= graph.held_bytes();
        Ok(())
    }

    pub(super) fn graph_instantiate(&mut self, command: &GraphInstantiate) -> Result<(), Failure> {
        let graph = Arc::clone(self.graphs.known(command.graph)?);
        if self.graphs.execs.contains_key(&command.exec) {
            return Err(Failure::twice("instance of a graph", command.exec));
        }
        if self.graphs.execs.len() >= GRAPHS_MAX {
            return Err(Failure::too_many("instances of graphs", GRAPHS_MAX));
        }
        self.graphs.room_for(&graph)?;
        self.check_graph(&graph, Names::None)?;
        self.device.instantiate(command.exec, &graph)?;
        let checked = Some(self.epochs());
        self.graphs.keep_exec(command.exec, Exec { graph, checked, is_behind: false });
        Ok(())
    }

    pub(super) fn graph_update(&mut self, command: &GraphUpdate) -> Result<(), Failure> {
        let before = self.graphs.take_exec(command.exec)?;
        let updated = self.updated(command);
        let (exec, outcome) = match updated {
            Ok(exec) => (exec, Ok(())),
            Err(failure) => (Exec { is_behind: true, ..before }, Err(failure)),
        };
        self.graphs.keep_exec(command.exec, exec);
        outcome
    }

    fn updated(&mut self, command: &GraphUpdate) -> Result<Exec, Failure> {
        let graph = Arc::clone(self.graphs.known(command.graph)?);
        self.graphs.room_for(&graph)?;
        self.check_graph(&graph, Names::None)?;
        self.device.update(command.exec, &graph)?;
        Ok(Exec { graph, checked: Some(self.epochs()), is_behind: false })
    }

    pub(super) fn graph_switch(&mut self, command: &GraphSwitch) -> Result<(), Failure> {
        let step = command.step as usize;
        self.change_step(command.exec, step, false, |graph| graph.switch(step, command.is_on != 0))
    }

    pub(super) fn graph_change(&mut self, command: &GraphChange, body: Body<'_>) -> Result<(), Failure> {
        let (step, body) = (command.step as usize, body.tail(GraphChange::BYTES).to_vec());
        self.change_step(command.exec, step, true, |graph| graph.change(step, command.word, &body))
    }

    /// Changes a command of an instance alone. An instance that cannot be changed so is none any more: launches of it would do what the client does not mean.
    /// The driver is given the parameters of another kernel at once, also where launches leave it out.
    fn change_step(
        &mut self,
        name: u32,
        step: usize,
        is_other: bool,
        change: impl FnOnce(&mut Graph) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.graphs.execs.get(&name).map_or(Ok(()), |exec| exec.check_current(name))?;
        let mut exec = self.graphs.take_exec(name)?;
        let outcome = change(Arc::make_mut(&mut exec.graph))
            .and_then(|()| match exec.graph.work_at(step) {
                Some((_, work))
                    if !exec.graph.is_off(step) || is_other && matches!(work, Work::Launch(_)) =>
                {
                    self.check(&work, Names::None)
                }
                _ => Ok(()),
            })
            .and_then(|()| self.graphs.room_for(&exec.graph))
            .and_then(|()| self.device.change_step(name, &exec.graph, step));
        match &outcome {
            Ok(()) => self.graphs.keep_exec(name, exec),
            Err(_) => self.device.drop_exec(name),
        }
        outcome
    }

    pub(super) fn graph_exec_destroy(&mut self, command: &GraphExecDestroy) -> Result<(), Failure> {
        self.graphs.take_exec(command.exec)?;
        self.device.drop_exec(command.exec);
        Ok(())
    }

    pub(super) fn launch_content(&mut self, command: &LaunchContent, body: Body<'_>) -> Result<(), Failure> {
        let part = body.tail(LaunchContent::BYTES);
        let together = self.graphs.contents_bytes + part.bytes() as u64;
        if together > LISTS_BYTES_MAX || self.graphs.contents.len() > GRAPHS_MAX {
            let content = self.take_content(command.exec);
            self.tell_none(&content, number::OUT_OF_MEMORY);
            let words = format!("{together} bytes are too many for launches of graphs");
            return Err(Failure::new(number::OUT_OF_MEMORY, words));
        }
        self.graphs.contents_bytes = together;
        let sent = self.graphs.contents.entry(command.exec).or_default();
        sent.transfers = command.transfers;
        part.append_to(&mut sent.bytes);
        Ok(())
    }

    fn take_content(&mut self, exec: u32) -> Content {
        let Some(sent) = self.graphs.contents.remove(&exec) else { return Content::default() };
        self.graphs.contents_bytes -= sent.bytes.len() as u64;
        Content::read(&sent.bytes, sent.transfers)
    }

    /// Nothing comes for the names of a launch.
    fn tell_none(&self, content: &Content, error: i32) {
        content.transfers.iter().for_each(|transfer| self.outbox.no_bytes(*transfer, error));
    }

    pub(super) fn graph_launch(&mut self, command: &GraphLaunch) -> Result<(), Failure> {
        let content = self.take_content(command.exec);
        if let Err(failure) = self.check_launch(command, &content) {
            // Whoever waits for bytes finds the reason in front.
            self.tell(&failure);
            self.tell_none(&content, failure.error);
            return Ok(());
        }
        // It was looked at.
        let Some(exec) = self.graphs.execs.get(&command.exec) else { return Ok(()) };
        exec.graph.records.iter().for_each(|event| self.streams.note_record(*event));
        let at = At { stream: command.stream, command: self.count };
        self.device.launch_graph(command.exec, &exec.graph, at, &content)
    }

    fn check_launch(&mut self, command: &GraphLaunch, content: &Content) -> Result<(), Failure> {
        self.streams.known(command.stream)?;
        let epochs = self.epochs();
        let exec = self.graphs.execs.get(&command.exec);
        let exec = exec.ok_or_else(|| Failure::unknown("instance of a graph", command.exec))?;
        exec.check_current(command.exec)?;
        content.check(exec.graph.needs())?;
        if exec.checked != Some(epochs) {
            // A kernel may be gone, and memory taken back.
            self.check_graph(&exec.graph, Names::None)?;
            if let Some(exec) = self.graphs.execs.get_mut(&command.exec) {
                exec.checked = Some(epochs);
            }
        }
        Ok(())
    }

    const fn epochs(&self) -> (u64, u64) {
        (self.graphs.epoch, self.memory.epoch)
    }
}
