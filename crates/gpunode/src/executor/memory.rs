//! Which addresses of the window have memory, and how much of the grants is left.

use super::Executor;
use crate::device::{Device, Facts};
use crate::failure::{Failure, number};
use crate::work::Rows;
use hinterland_proto::gpu::command::{MapMemory, UnmapMemory};
use std::collections::BTreeMap;

/// Most ranges that are mapped.
const RANGES_MAX: usize = 1 << 18;

#[derive(Debug, Clone, Copy)]
struct Range {
    bytes: u64,
    device: u32,
}

#[derive(Debug, Clone, Copy)]
struct Grant {
    bytes: u64,
    used: u64,
}

/// What is mapped, by its first address.
#[derive(Debug)]
pub(super) struct Memory {
    window: u64,
    window_bytes: u64,
    granularity: u64,
    grants: Vec<Grant>,
    ranges: BTreeMap<u64, Range>,
    /// Variables of modules whose places were asked for: address, bytes and module.
    variables: BTreeMap<u64, (u64, u32)>,
    /// Counts changes that take something away.
    pub(super) epoch: u64,
}

impl Memory {
    pub(super) fn new(facts: &Facts) -> Self {
        Self {
            window: facts.window,
            window_bytes: facts.window_bytes,
            granularity: facts.granularity.max(1),
            grants: facts.devices.iter().map(|device| Grant { bytes: device.grant, used: 0 }).collect(),
            ranges: BTreeMap::new(),
            variables: BTreeMap::new(),
            epoch: 0,
        }
    }

    pub(super) fn mapped_bytes(&self) -> u64 {
        self.grants.iter().map(|grant| grant.used).sum()
    }

    /// Whether all rows lie in memory that is mapped.
    pub(super) fn check(&self, rows: &Rows) -> Result<(), Failure> {
        // Rows have a span by construction.
        let bytes = rows.span().unwrap_or(u64::MAX);
        if bytes == 0 || self.is_variable(rows.address, bytes) {
            return Ok(());
        }
        let outside = || {
            let words = format!("{bytes} bytes at {:#x} are not all memory of this session", rows.address);
            Failure::value(words)
        };
        let end = rows.address.checked_add(bytes).ok_or_else(outside)?;
        let (start, first) = self.ranges.range(..=rows.address).next_back().ok_or_else(outside)?;
        let mut covered = start + first.bytes;
        if covered <= rows.address {
            return Err(outside());
        }
        while covered < end {
            covered += self.ranges.get(&covered).ok_or_else(outside)?.bytes;
        }
        Ok(())
    }

    fn is_variable(&self, address: u64, bytes: u64) -> bool {
        let before = self.variables.range(..=address).next_back();
        before.is_some_and(|(start, (length, _))| {
            (address - start).checked_add(bytes).is_some_and(|end| end <= *length)
        })
    }

    /// A variable of a module lies there, and may be copied to and from.
    pub(super) fn note_variable(&mut self, module: u32, address: u64, bytes: u64) {
        self.variables.insert(address, (bytes, module));
    }

    /// A module is gone, and its variables with it.
    pub(super) fn forget_variables(&mut self, module: u32) {
        self.variables.retain(|_, (_, of)| *of != module);
        self.epoch += 1;
    }

    fn check_new(&self, command: &MapMemory) -> Result<u64, Failure> {
        let (address, bytes) = (command.address, command.bytes);
        let is_whole = address.is_multiple_of(self.granularity) && bytes.is_multiple_of(self.granularity);
        if bytes == 0 || !is_whole {
            let words =
                format!("{bytes} bytes at {address:#x} are not made of pieces of {} bytes", self.granularity);
            return Err(Failure::value(words));
        }
        let end = address.checked_add(bytes);
        let window_end = self.window + self.window_bytes;
        let Some(end) = end.filter(|end| address >= self.window && *end <= window_end) else {
            return Err(Failure::value(format!("{bytes} bytes at {address:#x} lie outside of the window")));
        };
        let before = self.ranges.range(..end).next_back();
        if before.is_some_and(|(start, range)| start + range.bytes > address) {
            return Err(Failure::value(format!("{bytes} bytes at {address:#x} have memory already")));
        }
        if self.ranges.len() >= RANGES_MAX {
            return Err(Failure::too_many("ranges of memory", RANGES_MAX));
        }
        Ok(end)
    }
}

impl<D: Device> Executor<D> {
    pub(super) fn map_memory(&mut self, command: &MapMemory) -> Result<(), Failure> {
        self.known_device(command.device)?;
        self.memory.check_new(command)?;
        let grant = &mut self.memory.grants[command.device as usize];
        let left = grant.bytes.saturating_sub(grant.used);
        if command.bytes > left {
            let words = format!("{} bytes are wanted, and {left} are left of the grant", command.bytes);
            return Err(Failure::new(number::OUT_OF_MEMORY, words));
        }
        self.device.map(command.device, command.address, command.bytes, self.count)?;
        grant.used += command.bytes;
        let range = Range { bytes: command.bytes, device: command.device };
        self.memory.ranges.insert(command.address, range);
        Ok(())
    }

    pub(super) fn unmap_memory(&mut self, command: &UnmapMemory) -> Result<(), Failure> {
        let Some(range) =
            self.memory.ranges.get(&command.address).filter(|range| range.bytes == command.bytes)
        else {
            let words =
                format!("{} bytes at {:#x} were not mapped as one range", command.bytes, command.address);
            return Err(Failure::value(words));
        };
        self.memory.grants[range.device as usize].used -= range.bytes;
        self.memory.ranges.remove(&command.address);
        self.memory.epoch += 1;
        self.device.unmap(command.address, command.bytes, self.count)
    }

    /// Another grant of memory of a device, as far as somebody gives it and never below what is mapped; the grant afterwards, and what
    /// could be added.
    pub(super) fn change_grant(
        &mut self,
        device: u32,
        least: u64,
        wanted: u64,
    ) -> Result<(u64, u64), Failure> {
        self.known_device(device)?;
        let grant = &mut self.memory.grants[device as usize];
        match self.grants.ask(device, least.max(grant.used), wanted.max(grant.used)) {
            Some((bytes, left)) => {
                grant.bytes = bytes;
                Ok((bytes, left))
            }
            None => Ok((grant.bytes, 0)),
        }
    }
}
