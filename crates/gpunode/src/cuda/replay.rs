//! A captured list put under the driver's capture: its streams and events become streams and events of our own.

use super::blases::{Blases, Settings};
use super::failed;
use super::machine::OneEvent;
use super::programs::Programs;
use super::shapes::{region, shape};
use crate::failure::{Failure, number};
use crate::graph::Graph;
use crate::work::{Rows, Work};
use hinterland_gpu::lend::Lent;
use hinterland_gpu::lend::memory::Pinned;
use hinterland_gpu::lend::order::{Captured, Event, GraphNode, Stream};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Most bytes that copies of all lists of a session bring themselves, for each device: they stay in memory of the host until the session ends. Clients have copies
/// take them at each launch.
const PINNED_BYTES_MAX: u64 = 256 << 20;

/// Streams that captures use, made once and used by one capture after the other.
#[derive(Default)]
pub(super) struct CaptureStreams {
    free: Vec<Stream>,
    /// Bytes of copies to the device that lists brought themselves, which are never given back.
    pinned_bytes: u64,
}

impl CaptureStreams {
    /// # Errors
    /// With what copies of a list bring, there would be too many bytes.
    fn take_room(&mut self, graph: &Graph) -> Result<(), Failure> {
        let bytes = |work: Work<'_>| match work {
            Work::CopyIn { bytes, .. } => bytes.bytes() as u64,
            _ => 0,
        };
        let together = self.pinned_bytes + graph.all_work().map(|(.., work)| bytes(work)).sum::<u64>();
        if together > PINNED_BYTES_MAX {
            let words = format!(
                "copies of graphs bring {together} bytes by themselves, and at most {PINNED_BYTES_MAX} can be"
            );
            return Err(Failure::new(number::OUT_OF_MEMORY, words));
        }
        self.pinned_bytes = together;
        Ok(())
    }
}

/// Where copies between device and program pass: the next address of those to the device, and of those from it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Passage {
    pub(super) next_in: u64,
    pub(super) next_out: u64,
}

impl Passage {
    /// As many bytes as rows have, without gaps, at the next address.
    fn take(next: &mut u64, rows: Rows) -> Rows {
        let place = Rows { address: *next, pitch: rows.width, ..rows };
        *next += rows.bytes();
        place
    }
}

/// What is to be kept as long as the graph is.
#[derive(Default)]
pub(super) struct Kept {
    /// What copies to the device take their bytes from.
    pieces: Vec<Pinned>,
    /// Events that others know.
    events: Vec<Arc<Event>>,
}

impl Kept {
    pub(super) fn extend(&mut self, other: Self) {
        self.pieces.extend(other.pieces);
        for event in other.events {
            if !self.events.iter().any(|known| Arc::ptr_eq(known, &event)) {
                self.events.push(event);
            }
        }
    }
}

/// What is to be captured.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'graph> {
    pub(super) graph: &'graph Graph,
    /// Whether commands are captured that launches leave out.
    pub(super) has_off: bool,
    pub(super) passage: Passage,
}

/// What was captured.
pub(super) struct Capture {
    pub(super) captured: Captured,
    /// What is to be kept as long as what comes of it.
    pub(super) kept: Kept,
    /// The node of each command that can be changed by itself.
    pub(super) nodes: Vec<Option<GraphNode>>,
}

/// A capture on its way.
struct Replay<'machine> {
    device: &'machine Lent,
    programs: &'machine Programs,
    blases: &'machine Blases,
    wanted: Wanted<'machine>,
    streams: HashMap<u32, Stream>,
    events: HashMap<u32, Event>,
    /// The session's, which records and waits for others name.
    outside: &'machine HashMap<u32, OneEvent>,
    kept: Kept,
    nodes: Vec<Option<GraphNode>>,
    parameters: Vec<u8>,
    passage: Passage,
    /// What the list says of cuBLAS handles, each for what comes next of the handle.
    settings: Settings,
}

/// Captures a list.
pub(super) fn capture(
    device: &Lent,
    programs: &Programs,
    blases: &Blases,
    spare: &mut CaptureStreams,
    outside: &HashMap<u32, OneEvent>,
    wanted: Wanted<'_>,
) -> Result<Capture, Failure> {
    spare.take_room(wanted.graph)?;
    let mut streams = HashMap::new();
    for name in wanted.graph.all_work().map(|(_, stream, _)| stream).chain([wanted.graph.stream]) {
        if let Entry::Vacant(place) = streams.entry(name) {
            place.insert(match spare.free.pop() {
                Some(own) => own,
                None => device.stream(true, 0).map_err(failed)?,
            });
        }
    }
    let mut replay = Replay {
        device,
        programs,
        blases,
        wanted,
        streams,
        events: HashMap::new(),
        outside,
        kept: Kept::default(),
        nodes: vec![None; wanted.graph.len()],
        parameters: Vec::new(),
        passage: wanted.passage,
        settings: Settings::new(),
    };
    let captured = replay.run();
    let Replay { streams, events, kept, nodes, .. } = replay;
    spare.free.extend(streams.into_values());
    for event in events.into_values() {
        device.end_event(event);
    }
    captured.map(|captured| Capture { captured, kept, nodes })
}

impl Replay<'_> {
    fn run(&mut self) -> Result<Captured, Failure> {
        let Wanted { graph, has_off, .. } = self.wanted;
        let origin = self.stream(graph.stream)?;
        self.device.begin_capture(origin).map_err(failed)?;
        let mut outcome = Ok(());
        for (step, stream, work) in graph.all_work().filter(|(step, ..)| has_off || !graph.is_off(*step)) {
            let is_one = matches!(work, Work::Launch(_) | Work::Fill { .. } | Work::CopyWithin { .. });
            outcome = self.step(stream, work);
            if outcome.is_err() {
                break;
            }
            if is_one {
                self.nodes[step] = self.device.last_node(self.stream(stream)?);
            }
        }
        // Ended in any case: the stream would stay of no use.
        let captured = self.device.end_capture(self.stream(graph.stream)?).map_err(failed);
        match (outcome, captured) {
            (Ok(()), captured) => captured,
            (Err(failure), captured) => {
                captured.into_iter().for_each(|part| self.device.end_graph(part));
                Err(failure)
            }
        }
    }

    fn stream(&self, stream: u32) -> Result<&Stream, Failure> {
        self.streams.get(&stream).ok_or_else(|| Failure::unknown("stream", stream))
    }

    /// An event of the session, kept as long as what comes of the capture.
    fn outside(&mut self, event: u32) -> Result<Arc<Event>, Failure> {
        let known = self.outside.get(&event).ok_or_else(|| Failure::unknown("event", event))?;
        known.is_of_graphs.set(true);
        self.kept.events.push(Arc::clone(&known.event));
        Ok(Arc::clone(&known.event))
    }

    fn step(&mut self, name: u32, work: Work<'_>) -> Result<(), Failure> {
        let device = self.device;
        match work {
            Work::Launch(launch) => {
                let kernel = self.programs.kernel_given(launch.fields.function, launch.parameters.bytes())?;
                self.parameters.clear();
                launch.parameters.append_to(&mut self.parameters);
                let shape = shape(&launch.fields);
                device.launch(kernel, self.stream(name)?, &shape, &self.parameters).map_err(failed)
            }
            Work::CopyIn { to, bytes } => {
                let mut piece = device.pinned(bytes.bytes().max(1)).map_err(failed)?;
                bytes.read(piece.bytes());
                let copied = device.copy_in(self.stream(name)?, region(to), &piece).map_err(failed);
                self.kept.pieces.push(piece);
                copied
            }
            Work::CopyInAtLaunch { to } => {
                let from = Passage::take(&mut self.passage.next_in, to);
                device.copy_within(self.stream(name)?, region(to), region(from)).map_err(failed)
            }
            Work::CopyOut { from, .. } => {
                let to = Passage::take(&mut self.passage.next_out, from);
                device.copy_within(self.stream(name)?, region(to), region(from)).map_err(failed)
            }
            Work::CopyWithin { to, from } => {
                device.copy_within(self.stream(name)?, region(to), region(from)).map_err(failed)
            }
            Work::Fill { to, element, value } => {
                device.fill(self.stream(name)?, region(to), element, value).map_err(failed)
            }
            Work::Record { event, is_external: true } => {
                let event = self.outside(event)?;
                device.record_for_others(&event, self.stream(name)?).map_err(failed)
            }
            Work::Wait { event, is_external: true } => {
                let event = self.outside(event)?;
                device.wait_for_others(self.stream(name)?, &event).map_err(failed)
            }
            Work::Record { event, .. } => {
                let made = device.event(false).map_err(failed)?;
                device.record(&made, self.stream(name)?).map_err(failed)?;
                if let Some(before) = self.events.insert(event, made) {
                    device.end_event(before);
                }
                Ok(())
            }
            Work::Wait { event, .. } => match self.events.get(&event) {
                Some(event) => device.wait(self.stream(name)?, event).map_err(failed),
                // Recorded outside: what was before the launch is done before it anyway, in its stream.
                None => Ok(()),
            },
            Work::BlasSet(set) => {
                self.settings.insert((set.handle, set.property), (set.value, set.more));
                Ok(())
            }
            Work::Gemm(_) | Work::GemmPointers(_) | Work::BlasCall(_) => {
                let mut settings = std::mem::take(&mut self.settings);
                let performed = self.blases.perform(device, self.stream(name)?, &work, Some(&mut settings));
                self.settings = settings;
                performed
            }
            Work::LtMatmul(text) => self.blases.multiply_lt(device, self.stream(name)?, text),
        }
    }
}
