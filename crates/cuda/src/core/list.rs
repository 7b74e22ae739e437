//! A list of commands, as it was captured or put together: frames one after the other, and beside each what only this side knows.

use std::collections::{BTreeSet, HashMap};
use std::ffi::c_void;

use hinterland_proto::gpu::command::{
    BlasCall, BlasGemm, BlasGemmPointers, BlasSet, CopyRows, CopyWithin, EventRecord, Fill, FillRows, Launch,
    StreamWait, launch_flags,
};
use hinterland_proto::gpu::{GRAPH_BYTES_MAX, Message};

use super::event::EXTERNAL;
use super::graph::places_in;
use super::inbox::Destination;
use super::node::{NodeKind, Piece};
use super::outbox::Tail;
use crate::code::{Code, INVALID_VALUE, NO_MEMORY};

/// A frame of a list starts with the length of its body and its word.
pub const HEAD: usize = 8;

/// A copy whose one end is memory of the program, that each launch reads or writes anew.
#[derive(Debug, Clone, Copy)]
pub enum HostCopy {
    /// From there to a device.
    In(Destination),
    /// From a device to there.
    Out(Destination),
}

impl HostCopy {
    /// The rows in the program's memory.
    #[must_use]
    pub fn rows(&self) -> &Destination {
        match self {
            Self::In(rows) | Self::Out(rows) => rows,
        }
    }
}

/// `cudaHostFn_t`
pub type HostFunction = unsafe extern "C" fn(*mut c_void);

/// A function of the program that is called between two commands of a list, and its argument. The node never hears of it.
#[derive(Debug, Clone, Copy)]
pub struct HostCall {
    /// The function.
    pub function: HostFunction,
    /// Its argument, an address of the program's.
    pub data: usize,
}

impl HostCall {
    /// What stands in its place in a list: no command has this number.
    pub const WORD: u32 = u32::MAX;
}

impl Message for HostCall {
    const NUMBER: u32 = Self::WORD;
    const FIELD_BYTES: usize = 0;
    fn write(&self, _body: &mut [u8]) {}
}

/// What a list is made of where functions are called in it.
#[derive(Debug)]
pub enum Run {
    /// Commands that nothing is called between.
    Commands(List),
    /// A function behind all that is before it.
    Call(HostCall),
}

/// A command of a list.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Where its frame begins.
    pub at: usize,
    /// Its stream.
    pub stream: u32,
    /// The program's end, if it has one.
    pub copy: Option<HostCopy>,
    /// The function that is called here, where it is no command.
    pub call: Option<HostCall>,
}

/// What a launch has besides its parameters, and a node of a graph keeps when it is given others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchAttributes {
    /// [`launch_flags`].
    pub flags: u32,
    /// Groups of a cluster, zeros for none.
    pub cluster: [u32; 3],
}

/// A list of commands.
#[derive(Debug, Clone, Default)]
pub struct List {
    /// Frames.
    pub bytes: Vec<u8>,
    /// One for each frame.
    pub entries: Vec<Entry>,
}

impl List {
    /// Appends a command with a tail of `bytes` bytes.
    ///
    /// # Errors
    /// The list would be longer than a graph may be; it is as before.
    pub fn push<M: Message>(
        &mut self,
        stream: u32,
        copy: Option<HostCopy>,
        message: &M,
        bytes: usize,
        fill: impl FnOnce(&mut Tail<'_>),
    ) -> Result<(), Code> {
        let body = M::FIELD_BYTES + bytes;
        let at = self.bytes.len();
        let end = at + HEAD + body.next_multiple_of(8);
        if end as u64 > GRAPH_BYTES_MAX {
            return Err(NO_MEMORY);
        }
        self.bytes.resize(end, 0);
        let place = &mut self.bytes[at..];
        // A body is shorter than a graph may be, which fits.
        place[..4].copy_from_slice(&(body as u32).to_le_bytes());
        place[4..HEAD].copy_from_slice(&M::NUMBER.to_le_bytes());
        message.write(&mut place[HEAD..]);
        fill(&mut Tail::of_list(&mut place[HEAD + M::FIELD_BYTES..HEAD + body]));
        self.entries.push(Entry { at, stream, copy, call: None });
        Ok(())
    }

    /// Appends a function that is called when all before it is done, and before all that is behind it.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn push_call(&mut self, stream: u32, call: HostCall) -> Result<(), Code> {
        self.push(stream, None, &call, 0, |_| ())?;
        if let Some(entry) = self.entries.last_mut() {
            entry.call = Some(call);
        }
        Ok(())
    }

    /// Has what follows in a stream wait for what is in front of it in another.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn switch(&mut self, event: u32, from: u32, to: u32) -> Result<(), Code> {
        let nothing = |_: &mut Tail<'_>| ();
        self.push(from, None, &EventRecord { event, stream: from, flags: 0 }, 0, nothing)?;
        self.push(to, None, &StreamWait { stream: to, event, flags: 0 }, 0, nothing)
    }

    /// Whether it is more than one list to the node: functions are called in it, or a copy to a device begins where bytes land that an earlier one brings, which
    /// are not there when the list is launched.
    #[must_use]
    pub fn has_steps(&self) -> bool {
        let mut landed: Vec<(usize, usize)> = Vec::new();
        self.entries.iter().any(|entry| match &entry.copy {
            _ if entry.call.is_some() => true,
            Some(HostCopy::Out(to)) => {
                landed.push(to.range());
                false
            }
            Some(HostCopy::In(from)) => {
                let (start, end) = from.range();
                landed.iter().any(|place| place.0 < end && start < place.1)
            }
            None => false,
        })
    }

    /// The runs of commands between the functions that are called, and in front of copies to a device of what the commands before them bring. Each command of a
    /// run waits for the one before it, the first one for the launch, and the end of the launch for the last one.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn runs(&self, origin: u32, event: u32) -> Result<Vec<Run>, Code> {
        let (mut runs, mut run, mut lane) = (Vec::new(), Self::default(), origin);
        let finish = |run: &mut Self, lane: &mut u32, runs: &mut Vec<Run>| -> Result<(), Code> {
            let lane = std::mem::replace(lane, origin);
            if lane != origin {
                run.switch(event, lane, origin)?;
            }
            if !run.entries.is_empty() {
                runs.push(Run::Commands(std::mem::take(run)));
            }
            Ok(())
        };
        for (index, entry) in self.entries.iter().enumerate() {
            if let Some(call) = entry.call {
                finish(&mut run, &mut lane, &mut runs)?;
                runs.push(Run::Call(call));
                continue;
            }
            if self.is_edge(index) {
                continue;
            }
            if let Some(HostCopy::In(from)) = &entry.copy
                && run.lands_in(from)
            {
                finish(&mut run, &mut lane, &mut runs)?;
            }
            if entry.stream != lane {
                run.switch(event, lane, entry.stream)?;
                lane = entry.stream;
            }
            run.push_frame(self, index);
        }
        finish(&mut run, &mut lane, &mut runs)?;
        Ok(runs)
    }

    /// What the nodes do that are made of a list as it was captured.
    pub(super) fn kinds(&self) -> impl Iterator<Item = NodeKind> {
        let is_node = |index: &usize| !self.is_edge(*index) && self.frame(*index).0 != BlasSet::WORD;
        (0..self.entries.len()).filter(is_node).map(|index| NodeKind::of_word(self.frame(index).0))
    }

    /// Whether a command does nothing but have commands of the list wait for others.
    fn is_edge(&self, index: usize) -> bool {
        match self.frame(index) {
            (EventRecord::WORD, body) => EventRecord::take(body).flags & EXTERNAL == 0,
            (StreamWait::WORD, body) => StreamWait::take(body).flags & EXTERNAL == 0,
            _ => false,
        }
    }

    /// The commands of some nodes, whose entries are in these pieces, or are those of a list as it was captured; who waits for whom is none of them.
    pub(super) fn commands_of(&self, pieces: Option<&[Piece]>, nodes: &BTreeSet<usize>) -> BTreeSet<usize> {
        places_in(self, pieces)
            .into_iter()
            .filter(|(node, _)| nodes.contains(node))
            .flat_map(|(_, entries)| entries)
            .filter(|entry| !self.is_edge(*entry))
            .collect()
    }

    /// The list without some commands, and without what handles are set to for them.
    pub(super) fn without(&self, mut off: BTreeSet<usize>) -> Self {
        self.take_settings(&mut off);
        let mut left = Self::default();
        let stay = (0..self.entries.len()).filter(|entry| !off.contains(entry));
        stay.for_each(|entry| left.push_frame(self, entry));
        left
    }

    /// Whether the node can leave a command of an instance out, or do another one of its kind in its place.
    pub(super) fn is_apart(&self, entry: usize) -> bool {
        matches!(
            self.frame(entry).0,
            Launch::WORD | Fill::WORD | FillRows::WORD | CopyWithin::WORD | CopyRows::WORD
        )
    }

    /// Where memory begins that a fill or a copy within devices names, and how many bytes it is.
    pub(super) fn ranges_at(&self, entry: usize) -> Vec<(u64, u64)> {
        let rows = |start, pitch: u64, width: u64, rows: u64| {
            let bytes = pitch.saturating_mul(rows.saturating_sub(1)).saturating_add(width);
            (start, if rows == 0 || width == 0 { 0 } else { bytes })
        };
        match self.frame(entry) {
            (Fill::WORD, body) => {
                let Fill { element, address, count, .. } = Fill::take(body);
                vec![(address, count.saturating_mul(u64::from(element)))]
            }
            (FillRows::WORD, body) => {
                let all = FillRows::take(body);
                vec![rows(all.address, all.pitch, all.count.saturating_mul(u64::from(all.element)), all.rows)]
            }
            (CopyWithin::WORD, body) => {
                let CopyWithin { to, from, bytes, .. } = CopyWithin::take(body);
                vec![(to, bytes), (from, bytes)]
            }
            (CopyRows::WORD, body) => {
                let all = CopyRows::take(body);
                [(all.to, all.to_pitch), (all.from, all.from_pitch)]
                    .map(|(start, pitch)| rows(start, pitch, all.width, all.rows))
                    .to_vec()
            }
            _ => Vec::new(),
        }
    }

    /// The commands in which another list differs from this one, if the node can do those in the place of these, and they are no more than `most`.
    pub(super) fn changes_to(&self, to: &Self, most: usize) -> Option<Vec<usize>> {
        if self.entries.len() != to.entries.len() {
            return None;
        }
        let mut changes = Vec::new();
        for entry in 0..self.entries.len() {
            if self.whole_frame(entry) == to.whole_frame(entry) {
                continue;
            }
            let is_like = self.frame(entry).0 == to.frame(entry).0
                && self.is_apart(entry)
                && self.entries[entry].stream == to.entries[entry].stream
                && self.launch_attributes_at(entry) == to.launch_attributes_at(entry);
            if !is_like || changes.len() == most {
                return None;
            }
            changes.push(entry);
        }
        Some(changes)
    }

    /// Takes settings of handles to commands that are left out, if those are what they are for: a handle's settings are for its next product.
    pub(super) fn take_settings(&self, off: &mut BTreeSet<usize>) {
        let mut is_next_off = HashMap::new();
        for entry in (0..self.entries.len()).rev() {
            match self.frame(entry) {
                (BlasSet::WORD, body) if is_next_off.get(&body[..4]) == Some(&true) => {
                    off.insert(entry);
                }
                (BlasGemm::WORD | BlasGemmPointers::WORD | BlasCall::WORD, body) => {
                    is_next_off.insert(&body[..4], off.contains(&entry));
                }
                _ => {}
            }
        }
    }

    /// Word and body of a command.
    #[must_use]
    pub fn frame(&self, index: usize) -> (u32, &[u8]) {
        let frame = self.whole_frame(index);
        let number = |part: &[u8]| part.iter().rev().fold(0_u32, |sum, byte| sum << 8 | u32::from(*byte));
        let body = number(&frame[..4]) as usize;
        (number(&frame[4..HEAD]), &frame[HEAD..HEAD + body])
    }

    /// All bytes of a command.
    #[must_use]
    pub fn whole_frame(&self, index: usize) -> &[u8] {
        let start = self.entries[index].at;
        let end = self.entries.get(index + 1).map_or(self.bytes.len(), |next| next.at);
        &self.bytes[start..end]
    }

    /// Appends a command of another list.
    pub fn push_frame(&mut self, other: &Self, index: usize) {
        self.push_frame_in(other, index, other.entries[index].stream);
    }

    /// The same, and says which stream it is of: functions have none of their own.
    pub fn push_frame_in(&mut self, other: &Self, index: usize, stream: u32) {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(other.whole_frame(index));
        self.entries.push(Entry { at, stream, ..other.entries[index] });
    }

    /// Appends a command of another list that the node can do in the place of another one, in a stream.
    pub(super) fn push_apart(&mut self, other: &Self, index: usize, stream: u32) {
        /// Where the stream stands in a body: behind the function in that of a launch, first in all others.
        const OF_LAUNCH: usize = 4;
        self.push_frame_in(other, index, stream);
        let at = self.entries[self.entries.len() - 1].at + HEAD;
        let at = if other.frame(index).0 == Launch::WORD { at + OF_LAUNCH } else { at };
        self.bytes[at..at + 4].copy_from_slice(&stream.to_le_bytes());
    }

    /// The parameters of the launch that this list is.
    #[must_use]
    pub fn launch_block(&self) -> &[u8] {
        if self.entries.is_empty() {
            return &[];
        }
        self.frame(0).1.get(Launch::BYTES..).unwrap_or_default()
    }

    /// The kernel of a command that is a launch.
    pub(super) fn kernel_at(&self, index: usize) -> Option<u32> {
        match self.frame(index) {
            (Launch::WORD, body) => Some(Launch::take(body).function),
            _ => None,
        }
    }

    /// Flags and clusters of a command that is a launch.
    #[must_use]
    pub fn launch_attributes_at(&self, index: usize) -> Option<LaunchAttributes> {
        match self.frame(index) {
            (Launch::WORD, body) => {
                let Launch { flags, cluster, .. } = Launch::take(body);
                Some(LaunchAttributes { flags, cluster })
            }
            _ => None,
        }
    }

    /// Has the launch that this list is be made with these flags and clusters.
    ///
    /// # Errors
    /// Its groups do not make whole clusters.
    pub fn set_launch_attributes(&mut self, attributes: LaunchAttributes) -> Result<(), Code> {
        let LaunchAttributes { flags, cluster } = attributes;
        let mut places = 0..self.entries.len();
        let Some(place) = places.find(|index| self.frame(*index).0 == Launch::WORD) else { return Ok(()) };
        let body = self.entries[place].at + HEAD;
        let launch = Launch { flags, cluster, ..Launch::take(&self.bytes[body..]) };
        let is_whole =
            cluster.iter().zip(launch.grid).all(|(part, all)| *part > 0 && all.is_multiple_of(*part));
        if flags & launch_flags::CLUSTER != 0 && !is_whole {
            return Err(INVALID_VALUE);
        }
        launch.write(&mut self.bytes[body..]);
        Ok(())
    }

    /// Events that are recorded for others.
    #[must_use]
    pub fn records(&self) -> Vec<u32> {
        let record = |index| match self.frame(index) {
            (EventRecord::WORD, body) => Some(EventRecord::take(body)),
            _ => None,
        };
        (0..self.entries.len())
            .filter_map(record)
            .filter(|record| record.flags & EXTERNAL != 0)
            .map(|record| record.event)
            .collect()
    }

    /// Handles of cuBLAS that it names.
    pub(super) fn handles(&self) -> BTreeSet<u32> {
        let handle = |index| match self.frame(index) {
            (BlasSet::WORD, body) => Some(BlasSet::take(body).handle),
            (BlasGemm::WORD, body) => Some(BlasGemm::take(body).handle),
            (BlasGemmPointers::WORD, body) => Some(BlasGemmPointers::take(body).handle),
            (BlasCall::WORD, body) => Some(BlasCall::take(body).handle),
            _ => None,
        };
        (0..self.entries.len()).filter_map(handle).collect()
    }

    /// Events of others that it records or waits for.
    pub(super) fn events(&self) -> BTreeSet<u32> {
        let event = |index| match self.frame(index) {
            (EventRecord::WORD, body) => Some(EventRecord::take(body)).map(|one| (one.event, one.flags)),
            (StreamWait::WORD, body) => Some(StreamWait::take(body)).map(|one| (one.event, one.flags)),
            _ => None,
        };
        let all = (0..self.entries.len()).filter_map(event);
        all.filter(|(_, flags)| flags & EXTERNAL != 0).map(|(event, _)| event).collect()
    }

    /// Copies with the program's memory, in order.
    #[must_use]
    pub fn copies(&self) -> Vec<HostCopy> {
        self.entries.iter().filter_map(|entry| entry.copy).collect()
    }

    /// Whether bytes that come out of this list land where a copy begins.
    fn lands_in(&self, from: &Destination) -> bool {
        let (start, end) = from.range();
        self.entries.iter().any(|entry| match &entry.copy {
            Some(HostCopy::Out(to)) => to.range().0 < end && start < to.range().1,
            _ => false,
        })
    }
}
