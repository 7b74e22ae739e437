//! Streams: what the next piece of work of each waits for.
//!
//! A *lane* is a stream, or a stream within one launch of a graph. Its tail is its last task. The default stream of a device waits for
//! all streams of that device that are not apart, and they for it.

use super::engine::{Engine, TaskId};
use std::collections::HashMap;

#[derive(Debug, Clone, Copy)]
struct Lane {
    device: u32,
    is_apart: bool,
    tail: TaskId,
}

/// The streams of a session.
#[derive(Debug)]
pub(super) struct Lanes {
    devices: u32,
    lanes: HashMap<u32, Lane>,
    /// Last tasks of streams that are gone.
    orphans: Vec<(u32, TaskId)>,
    /// What everything waits for that comes later.
    fence: TaskId,
}

impl Lanes {
    /// The default streams of some devices.
    pub(super) fn new(devices: u32) -> Self {
        let lanes = (0..devices).map(|device| (device, Lane { device, is_apart: false, tail: 0 })).collect();
        Self { devices, lanes, orphans: Vec::new(), fence: 0 }
    }

    pub(super) fn make(&mut self, stream: u32, device: u32, is_apart: bool) {
        self.lanes.insert(stream, Lane { device, is_apart, tail: 0 });
    }

    pub(super) fn remove(&mut self, stream: u32, engine: &Engine) {
        if let Some(lane) = self.lanes.remove(&stream) {
            self.orphans.push((lane.device, lane.tail));
            let mut open: Vec<TaskId> = self.orphans.iter().map(|(_, tail)| *tail).collect();
            engine.retain_open(&mut open);
            self.orphans.retain(|(_, tail)| open.contains(tail));
        }
    }

    /// The device of a stream.
    pub(super) fn device(&self, stream: u32) -> u32 {
        self.lanes.get(&stream).map_or(0, |lane| lane.device)
    }

    /// Whether a stream is a default stream.
    const fn is_default(&self, stream: u32) -> bool {
        stream < self.devices
    }

    /// Puts into `waits` what the next task of a stream waits for.
    pub(super) fn waits(&self, stream: u32, waits: &mut Vec<TaskId>) {
        waits.clear();
        let mut add = |task: TaskId| {
            if task != 0 && !waits.contains(&task) {
                waits.push(task);
            }
        };
        add(self.fence);
        let Some(lane) = self.lanes.get(&stream) else { return };
        add(lane.tail);
        if self.is_default(stream) {
            for other in self.lanes.values().filter(|other| other.device == lane.device && !other.is_apart) {
                add(other.tail);
            }
            for (device, tail) in &self.orphans {
                if *device == lane.device {
                    add(*tail);
                }
            }
        } else if !lane.is_apart
            && let Some(default) = self.lanes.get(&lane.device)
        {
            add(default.tail);
        }
    }

    /// Puts into `waits` all work of a device, or of all of them.
    pub(super) fn all(&self, device: Option<u32>, waits: &mut Vec<TaskId>) {
        waits.clear();
        let of_lanes = self.lanes.values().map(|lane| (lane.device, lane.tail));
        let all = of_lanes
            .chain(self.orphans.iter().copied())
            .filter(|(of, _)| device.is_none_or(|device| *of == device));
        waits.extend(all.map(|(_, tail)| tail).chain([self.fence]).filter(|task| *task != 0));
        waits.sort_unstable();
        waits.dedup();
    }

    /// The last task of a stream is this one.
    pub(super) fn follow(&mut self, stream: u32, task: TaskId) {
        if let Some(lane) = self.lanes.get_mut(&stream) {
            lane.tail = task;
        }
    }

    /// What everything waits for that comes now, or 0.
    pub(super) const fn last_fence(&self) -> TaskId {
        self.fence
    }

    /// Everything that comes later waits for this task.
    pub(super) const fn fence(&mut self, task: TaskId) {
        self.fence = task;
    }
}
