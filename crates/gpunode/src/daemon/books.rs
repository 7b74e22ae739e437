//! Who is there, and what memory was promised to whom.

use super::Progress;
use crate::failure::{Failure, number};
use hinterland_proto::gpu::{DeviceStatus, GPU_VERSION, GpuStatus, SessionStatus};
use std::collections::BTreeMap;
use std::time::Instant;

/// CUDA's number for devices that are not to be had.
const DEVICES_UNAVAILABLE: i32 = 46;

#[derive(Debug)]
struct Device {
    name: String,
    memory: u64,
    promised: u64,
}

#[derive(Debug)]
struct Session {
    status: SessionStatus,
    since: Instant,
    grants: Vec<Grant>,
}

/// What a session may have of a device.
#[derive(Debug, Clone, Copy)]
struct Grant {
    device: u32,
    bytes: u64,
    /// What it was promised when it came, and keeps.
    kept: u64,
}

/// Sessions and devices. What was promised of a device is never more than it has.
#[derive(Debug)]
pub(super) struct Books {
    devices: Vec<Device>,
    session_memory: Option<u64>,
    sessions_max: usize,
    sessions: BTreeMap<u64, Session>,
    last: u64,
}

impl Books {
    /// Devices by name and memory.
    pub(super) fn new(devices: Vec<(String, u64)>, session_memory: Option<u64>, sessions_max: usize) -> Self {
        let devices =
            devices.into_iter().map(|(name, memory)| Device { name, memory, promised: 0 }).collect();
        Self { devices, session_memory, sessions_max, sessions: BTreeMap::new(), last: 0 }
    }

    /// A client has come: the session's number, and its devices with what it may use of each.
    pub(super) fn enter(
        &mut self,
        (program, host, process): (String, String, u32),
        session_process: u32,
        memory: u64,
        wanted: &[u32],
    ) -> Result<(u64, Vec<(u32, u64)>), Failure> {
        if self.sessions.len() >= self.sessions_max {
            let words = format!(
                "this node serves {} sessions already (hint: wait for one to end, or start it with a higher --sessions)",
                self.sessions.len()
            );
            return Err(Failure::new(DEVICES_UNAVAILABLE, words));
        }
        let all: Vec<u32> = (0..self.devices.len() as u32).collect();
        let wanted = if wanted.is_empty() { &all[..] } else { wanted };
        let mut grants: Vec<(u32, u64)> = Vec::new();
        for number in wanted {
            let known = self.devices.get(*number as usize);
            let Some(device) = known.filter(|_| grants.iter().all(|(other, _)| other != number)) else {
                let words =
                    format!("there is no device {number} to be had: this node has {}", self.devices.len());
                return Err(Failure::new(number::INVALID_DEVICE, words));
            };
            let most = self.session_memory.unwrap_or(device.memory).min(device.memory);
            let bytes = match (memory, self.session_memory) {
                // It asks when it needs something.
                (0, None) => 0,
                (0, Some(_)) => most,
                (wanted, _) => wanted.min(most),
            };
            if bytes > device.memory - device.promised {
                let left = device.memory - device.promised;
                let words = format!(
                    "device {number} has {left} bytes left that were promised to nobody, and {bytes} are wanted (hint: wait for a session to end, or ask for less)"
                );
                return Err(Failure::new(number::OUT_OF_MEMORY, words));
            }
            grants.push((*number, bytes));
        }
        for (number, bytes) in &grants {
            self.devices[*number as usize].promised += bytes;
        }
        self.last += 1;
        let grant = grants.iter().map(|(_, bytes)| bytes).sum();
        let status = SessionStatus {
            session: self.last,
            program,
            host,
            process,
            session_process,
            seconds: 0,
            memory: 0,
            grant,
            commands: 0,
            launches: 0,
            bytes_in: 0,
            bytes_out: 0,
        };
        let kept = |(device, bytes): &(u32, u64)| Grant { device: *device, bytes: *bytes, kept: *bytes };
        let kept = grants.iter().map(kept).collect();
        let session = Session { status, since: Instant::now(), grants: kept };
        self.sessions.insert(self.last, session);
        Ok((self.last, grants))
    }

    /// A session is gone.
    pub(super) fn leave(&mut self, number: u64) {
        let Some(session) = self.sessions.remove(&number) else { return };
        for grant in session.grants {
            self.devices[grant.device as usize].promised -= grant.bytes;
        }
    }

    /// Another grant of a device for a session: `wanted` bytes in all, or what there is if that is at least `least`. The grant, and what
    /// could be added to it now.
    pub(super) fn change(&mut self, number: u64, device: u32, least: u64, wanted: u64) -> (u64, u64) {
        let Some(session) = self.sessions.get_mut(&number) else { return (0, 0) };
        let Some(grant) = session.grants.iter_mut().find(|grant| grant.device == device) else {
            return (0, 0);
        };
        let known = &mut self.devices[device as usize];
        let quota = self.session_memory.unwrap_or(known.memory).min(known.memory);
        let others = known.promised - grant.bytes;
        let most = quota.min(known.memory - others);
        let bytes = match wanted.max(grant.kept) {
            wanted if wanted <= most => wanted,
            _ if least <= most => most,
            _ => grant.bytes,
        };
        known.promised = others + bytes;
        session.status.grant = session.status.grant - grant.bytes + bytes;
        grant.bytes = bytes;
        (bytes, most - bytes)
    }

    /// How far a session is.
    pub(super) fn progress(&mut self, number: u64, progress: &Progress) {
        if let Some(Session { status, .. }) = self.sessions.get_mut(&number) {
            status.memory = progress.memory_bytes;
            status.commands = progress.commands;
            status.launches = progress.launches;
            status.bytes_in = progress.bytes_in;
            status.bytes_out = progress.bytes_out;
        }
    }

    /// All of it, with the fat binaries and their bytes.
    pub(super) fn status(&self, (images, image_bytes): (u64, u64)) -> GpuStatus {
        let device = |device: &Device| DeviceStatus {
            name: device.name.clone(),
            memory: device.memory,
            promised: device.promised,
        };
        let session = |session: &Session| SessionStatus {
            seconds: session.since.elapsed().as_secs(),
            ..session.status.clone()
        };
        GpuStatus {
            version: GPU_VERSION,
            devices: self.devices.iter().map(device).collect(),
            sessions: self.sessions.values().map(session).collect(),
            sessions_total: self.last,
            images,
            image_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who() -> (String, String, u32) {
        ("program".to_owned(), "host".to_owned(), 5)
    }

    #[test]
    fn a_quota_is_kept_and_given_back() {
        let mut books = Books::new(vec![("one".to_owned(), 100), ("two".to_owned(), 100)], Some(60), 3);
        let (first, grants) = books.enter(who(), 1, 0, &[0]).unwrap();
        assert_eq!(grants, [(0, 60)]);
        assert_eq!(books.enter(who(), 1, 0, &[0]).unwrap_err().error, 2, "40 bytes are left");
        let (second, grants) = books.enter(who(), 1, 30, &[]).unwrap();
        assert_eq!(grants, [(0, 30), (1, 30)]);
        assert_eq!(books.change(second, 0, 31, 1000), (40, 0), "what the other leaves");
        assert_eq!(books.change(second, 1, 31, 1000), (60, 0), "its quota");
        assert_eq!(books.change(second, 1, 61, 1000), (60, 0), "there is not as much as it needs");
        assert_eq!(books.change(second, 1, 0, 0), (30, 30), "it keeps what it was promised");
        assert_eq!(books.change(second, 7, 0, 1000), (0, 0));
        books.leave(first);
        assert_eq!(books.change(second, 0, 0, 1000), (60, 0), "up to its quota");
        books.leave(second);
        assert!(books.status((0, 0)).devices.iter().all(|device| device.promised == 0));
        assert_eq!(books.enter(who(), 1, 0, &[2]).unwrap_err().error, 101);
        assert_eq!(books.enter(who(), 1, 0, &[1, 1]).unwrap_err().error, 101);
    }

    #[test]
    fn without_a_quota_sessions_have_together_what_the_device_has() {
        let mut books = Books::new(vec![("one".to_owned(), 100)], None, 2);
        let (first, grants) = books.enter(who(), 1, 0, &[]).unwrap();
        assert_eq!(grants, [(0, 0)]);
        let (second, grants) = books.enter(who(), 1, 10, &[]).unwrap();
        assert_eq!(grants, [(0, 10)]);
        assert_eq!(books.enter(who(), 1, 0, &[]).unwrap_err().error, DEVICES_UNAVAILABLE);
        assert_eq!(books.change(first, 0, 70, 80), (80, 10));
        assert_eq!(books.change(second, 0, 25, 40), (10, 10), "less than it needs is nothing");
        assert_eq!(books.change(second, 0, 15, 40), (20, 0));
        assert_eq!(books.status((0, 0)).devices[0].promised, 100);
        assert_eq!(books.change(first, 0, 0, 30), (30, 50), "given back");
        assert_eq!(books.change(second, 0, 70, 70), (70, 0));
        assert_eq!(books.enter(who(), 1, 1, &[]).unwrap_err().error, DEVICES_UNAVAILABLE);
        books.leave(second);
        assert_eq!(books.enter(who(), 1, 71, &[]).unwrap_err().error, number::OUT_OF_MEMORY);
        books.leave(first);
        let status = books.status((0, 0));
        assert_eq!((status.devices[0].promised, status.sessions.len()), (0, 0));
    }
}
