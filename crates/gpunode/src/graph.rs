//! A captured list of commands, read once and checked.

use crate::body::Body;
use crate::failure::Failure;
use crate::work::{Place, Work, work_of};
use hinterland_proto::gpu::GRAPH_BYTES_MAX;
use hinterland_proto::gpu::command::Command;
use std::collections::{HashMap, HashSet};

/// Bytes in front of a command of a list: the length of its body and its word.
const HEAD_BYTES: usize = 8;
/// Most commands of a list.
pub const STEPS_MAX: usize = 1 << 20;
/// Most streams of a list.
const STREAMS_MAX: usize = 1 << 14;
/// The setting of a cuBLAS handle that names its stream.
const BLAS_STREAM: u32 = 1;

/// One command of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    command: Command,
    body: usize,
    bytes: usize,
    /// How many there is room for, so that bodies of one length and another can take turns.
    room: usize,
    stream: u32,
    /// Whether launches leave it out.
    is_off: bool,
}

/// What each launch of a list needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    /// Bytes of copies to devices that come with the launch.
    pub bytes: u64,
    /// Copies to the program, each of which has a name.
    pub transfers: usize,
    /// Bytes that these bring.
    pub bytes_out: u64,
}

impl Needs {
    fn add(&mut self, work: &Work<'_>) -> Result<(), Failure> {
        match work {
            Work::CopyInAtLaunch { to } => self.bytes = self.bytes.saturating_add(to.bytes()),
            Work::CopyOut { from, .. } => {
                self.transfers += 1;
                self.bytes_out = self.bytes_out.saturating_add(from.bytes());
            }
            _ => {}
        }
        if self.bytes > GRAPH_BYTES_MAX || self.bytes_out > GRAPH_BYTES_MAX {
            return Err(Failure::value(format!(
                "a graph copies more than {GRAPH_BYTES_MAX} bytes between device and program"
            )));
        }
        Ok(())
    }

    /// Whether a launch needs nothing.
    pub const fn is_nothing(&self) -> bool {
        self.bytes == 0 && self.transfers == 0
    }
}

/// What came with a launch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Content {
    /// Names of copies to the program.
    pub transfers: Vec<u32>,
    /// Bytes of copies to devices.
    pub bytes: Vec<u8>,
}

impl Content {
    /// Reads what was sent: names and bytes.
    pub fn read(sent: &[u8], transfers: u32) -> Self {
        let names = (transfers as usize).saturating_mul(4).min(sent.len());
        let (names, bytes) = sent.split_at(names);
        let name = |four: &[u8; 4]| u32::from_le_bytes(*four);
        Self { transfers: names.as_chunks::<4>().0.iter().map(name).collect(), bytes: bytes.to_vec() }
    }

    /// Whether it is what a list needs.
    ///
    /// # Errors
    /// It is not.
    pub fn check(&self, needs: &Needs) -> Result<(), Failure> {
        if self.bytes.len() as u64 == needs.bytes && self.transfers.len() == needs.transfers {
            return Ok(());
        }
        Err(Failure::value(format!(
            "a launch of a graph that takes {} bytes and {} names came with {} bytes and {} names",
            needs.bytes,
            needs.transfers,
            self.bytes.len(),
            self.transfers.len()
        )))
    }
}

/// A captured list of commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Graph {
    list: Vec<u8>,
    steps: Vec<Step>,
    /// Where the capture began.
    pub stream: u32,
    /// The device of that stream.
    pub device: u32,
    launches: u64,
    needs: Needs,
    /// Events that a launch records for others.
    pub records: Vec<u32>,
}

impl Graph {
    /// Reads a list, of a capture that began in a stream of a device. `handle_stream` has the stream of a cuBLAS handle as it is when the list begins.
    ///
    /// # Errors
    /// A command that is cut off, or that may not stand in a list; there are too many of something.
    pub fn read(
        list: Vec<u8>,
        (stream, device): (u32, u32),
        handle_stream: impl Fn(u32) -> Option<u32>,
    ) -> Result<Self, Failure> {
        let mut steps = Vec::new();
        let (mut moved, mut streams) = (HashMap::<u32, u32>::new(), HashSet::new());
        let (mut needs, mut records) = (Needs::default(), Vec::new());
        let mut at = 0;
        while at < list.len() {
            let step = read_step(&list, at)?;
            let body = Body::Own(&list[step.body..step.body + step.bytes]);
            let (place, work) = work_of(step.command, body)?.ok_or_else(|| {
                Failure::value(format!("{} may not stand in a graph", name_of(step.command)))
            })?;
            let of_step = match place {
                Place::Stream(stream) => stream,
                Place::Handle(handle) => {
                    let of_handle = moved.get(&handle).copied().or_else(|| handle_stream(handle));
                    of_handle.ok_or_else(|| Failure::unknown("cuBLAS handle", handle))?
                }
            };
            if let Work::BlasSet(set) = work
                && set.property == BLAS_STREAM
            {
                let stream = u32::try_from(set.value)
                    .map_err(|_| Failure::value(format!("{:#x} is no stream", set.value)))?;
                moved.insert(set.handle, stream);
            }
            needs.add(&work)?;
            if let Work::Record { event, is_external: true } = work {
                records.push(event);
            }
            if steps.len() == STEPS_MAX {
                return Err(Failure::too_many("commands in a graph", STEPS_MAX));
            }
            if streams.insert(of_step) && streams.len() > STREAMS_MAX {
                return Err(Failure::too_many("streams in a graph", STREAMS_MAX));
            }
            steps.push(Step { stream: of_step, ..step });
            at = step.body + step.bytes.next_multiple_of(HEAD_BYTES);
        }
        let launches = steps.iter().filter(|step| matches!(step.command, Command::Launch(_))).count() as u64;
        Ok(Self { list, steps, stream, device, launches, needs, records })
    }

    /// The bytes of the list.
    pub fn list(&self) -> &[u8] {
        &self.list
    }

    /// The bytes that it takes here: a short command takes more than its bytes in the list.
    pub fn held_bytes(&self) -> u64 {
        (self.list.len() + self.steps.len() * size_of::<Step>()) as u64
    }

    /// How many commands it has.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// How many kernels it launches.
    pub const fn launches(&self) -> u64 {
        self.launches
    }

    /// Has launches leave a command out, or do it.
    ///
    /// # Errors
    /// It is none that can be left out by itself; the graph is as it was.
    pub fn switch(&mut self, step: usize, is_on: bool) -> Result<(), Failure> {
        let known = self.steps.get_mut(step).filter(|known| is_apart(known.command));
        let known = known.ok_or_else(|| cannot_change(step))?;
        if known.is_off == is_on && matches!(known.command, Command::Launch(_)) {
            self.launches = if is_on { self.launches + 1 } else { self.launches - 1 };
        }
        known.is_off = !is_on;
        Ok(())
    }

    /// Has launches do another command in the place of one.
    ///
    /// # Errors
    /// It is none that can be left out by itself, or the other one is not of its kind; the list would be longer than a graph may be. The graph is as it was.
    pub fn change(&mut self, step: usize, word: u32, body: &[u8]) -> Result<(), Failure> {
        let known = self.steps.get_mut(step).filter(|known| is_apart(known.command));
        let known = known.ok_or_else(|| cannot_change(step))?;
        let command = Command::read(word, body, body.len()).map_err(|bad| Failure::value(bad.to_string()))?;
        let place = work_of(command, Body::Own(body))?.map(|(place, _)| place);
        if place != Some(Place::Stream(known.stream)) || !is_like(known.command, command) {
            return Err(cannot_change(step));
        }
        if body.len() > known.room {
            // Behind all others, and the place that it had is lost.
            if (self.list.len() + body.len()) as u64 > GRAPH_BYTES_MAX {
                return Err(Failure::value(format!(
                    "a graph of more than {GRAPH_BYTES_MAX} bytes is too large"
                )));
            }
            (known.body, known.room) = (self.list.len(), body.len().next_multiple_of(HEAD_BYTES));
            self.list.resize(known.body + known.room, 0);
        }
        self.list[known.body..known.body + body.len()].copy_from_slice(body);
        (known.command, known.bytes) = (command, body.len());
        Ok(())
    }

    /// Whether launches leave a command out.
    pub fn is_off(&self, step: usize) -> bool {
        self.steps.get(step).is_some_and(|known| known.is_off)
    }

    /// The commands that launches leave out.
    pub fn off(&self) -> impl Iterator<Item = usize> {
        (0..self.steps.len()).filter(|step| self.is_off(*step))
    }

    /// What each launch needs.
    pub const fn needs(&self) -> &Needs {
        &self.needs
    }

    /// The work of each command and its stream, in a launch that came with this content.
    pub fn work_with<'all>(&'all self, content: &'all Content) -> impl Iterator<Item = (u32, Work<'all>)> {
        let (mut at, mut names) = (0, content.transfers.iter());
        self.work().map(move |(stream, work)| {
            let work = match work {
                Work::CopyInAtLaunch { to } => {
                    // The content was compared with the needs.
                    let bytes = Body::Own(&content.bytes).part(at, to.bytes() as usize);
                    at += bytes.bytes();
                    Work::CopyIn { to, bytes }
                }
                Work::CopyOut { from, transfer } => {
                    Work::CopyOut { from, transfer: names.next().copied().unwrap_or(transfer) }
                }
                other => other,
            };
            (stream, work)
        })
    }

    /// The work of each command that a launch does, and its stream.
    pub fn work(&self) -> impl Iterator<Item = (u32, Work<'_>)> {
        let all = self.all_work().filter(|(step, ..)| !self.is_off(*step));
        all.map(|(_, stream, work)| (stream, work))
    }

    /// Each command by how many are in front of it, its stream and its work, those that launches leave out among them.
    pub fn all_work(&self) -> impl Iterator<Item = (usize, u32, Work<'_>)> {
        (0..self.steps.len()).filter_map(|step| {
            let (stream, work) = self.work_at(step)?;
            Some((step, stream, work))
        })
    }

    /// The stream and the work of a command.
    pub fn work_at(&self, step: usize) -> Option<(u32, Work<'_>)> {
        let step = self.steps.get(step)?;
        let body = Body::Own(&self.list[step.body..step.body + step.bytes]);
        // Each was looked at when the list was read.
        let (_, work) = work_of(step.command, body).ok()??;
        Some((step.stream, work))
    }
}

/// Whether a command says nothing that the ones behind it depend on, and needs nothing at a launch.
const fn is_apart(command: Command) -> bool {
    matches!(
        command,
        Command::Launch(_)
            | Command::Fill(_)
            | Command::FillRows(_)
            | Command::CopyWithin(_)
            | Command::CopyRows(_)
    )
}

/// Whether one command can stand in the place of the other.
fn is_like(one: Command, other: Command) -> bool {
    match (one, other) {
        (Command::Launch(one), Command::Launch(other)) => {
            (one.flags, one.cluster) == (other.flags, other.cluster)
        }
        _ => std::mem::discriminant(&one) == std::mem::discriminant(&other),
    }
}

fn cannot_change(step: usize) -> Failure {
    Failure::value(format!("command {step} of an instance of a graph cannot be changed so"))
}

fn read_step(list: &[u8], at: usize) -> Result<Step, Failure> {
    let cut = || Failure::value(format!("a graph is cut off at byte {at}"));
    let head = list.get(at..at + HEAD_BYTES).ok_or_else(cut)?;
    let number = |part: &[u8]| part.iter().rev().fold(0_u32, |sum, byte| sum << 8 | u32::from(*byte));
    let (bytes, word) = (number(&head[..4]) as usize, number(&head[4..]));
    let start = at + HEAD_BYTES;
    let padded = bytes.next_multiple_of(HEAD_BYTES);
    let body = list.get(start..start + padded).ok_or_else(cut)?;
    let command =
        Command::read(word, &body[..bytes], bytes).map_err(|bad| Failure::value(bad.to_string()))?;
    Ok(Step { command, body: start, bytes, room: padded, stream: 0, is_off: false })
}

/// The name of a command, for words.
pub fn name_of(command: Command) -> String {
    let text = format!("{command:?}");
    text.split(['(', ' ']).next().unwrap_or_default().to_owned()
}
