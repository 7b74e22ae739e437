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
    /// Device and bytes.
    grants: Vec<(u32, u64)>,
}

/// Sessions and devices.
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
            let grant = if memory == 0 { most } else { memory.min(most) };
            if self.session_memory.is_some() && grant > device.memory - device.promised {
                let left = device.memory - device.promised;
                let words = format!(
                    "device {number} has {left} bytes left that were promised to nobody, and {grant} are wanted (hint: wait for a session to end, or ask for less)"
                );
                return Err(Failure::new(number::OUT_OF_MEMORY, words));
            }
            grants.push((*number, grant));
        }
        if self.session_memory.is_some() {
            for (number, bytes) in &grants {
                self.devices[*number as usize].promised += bytes;
            }
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
        let session = Session { status, since: Instant::now(), grants: grants.clone() };
        self.sessions.insert(self.last, session);
        Ok((self.last, grants))
    }

    /// A session is gone.
    pub(super) fn leave(&mut self, number: u64) {
        let Some(session) = self.sessions.remove(&number) else { return };
        if self.session_memory.is_some() {
            for (device, bytes) in session.grants {
                self.devices[device as usize].promised -= bytes;
            }
        }
    }

    /// More memory of a device for a session; how much of it.
    pub(super) fn more(&mut self, number: u64, device: u32, bytes: u64) -> u64 {
        let Some(session) = self.sessions.get_mut(&number) else { return 0 };
        let Some((_, granted)) = session.grants.iter_mut().find(|(of, _)| *of == device) else { return 0 };
        let known = &mut self.devices[device as usize];
        let most = self.session_memory.unwrap_or(known.memory).min(known.memory);
        let mut more = bytes.min(most.saturating_sub(*granted));
        if self.session_memory.is_some() {
            more = more.min(known.memory - known.promised);
            known.promised += more;
        }
        *granted += more;
        session.status.grant += more;
        more
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
        assert_eq!(books.more(second, 0, 1000), 10);
        assert_eq!(books.more(second, 1, 1000), 30);
        assert_eq!(books.more(second, 7, 1000), 0);
        books.leave(first);
        assert_eq!(books.more(second, 0, 1000), 20, "up to its quota");
        books.leave(second);
        assert!(books.status((0, 0)).devices.iter().all(|device| device.promised == 0));
        assert_eq!(books.enter(who(), 1, 0, &[2]).unwrap_err().error, 101);
        assert_eq!(books.enter(who(), 1, 0, &[1, 1]).unwrap_err().error, 101);
    }

    #[test]
    fn without_a_quota_sessions_share_all_memory_up_to_their_number() {
        let mut books = Books::new(vec![("one".to_owned(), 100)], None, 2);
        for _ in 0..2 {
            assert_eq!(books.enter(who(), 1, 0, &[]).unwrap().1, [(0, 100)]);
        }
        assert_eq!(books.enter(who(), 1, 0, &[]).unwrap_err().error, DEVICES_UNAVAILABLE);
    }
}
