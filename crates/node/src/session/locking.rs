//! What a session asks about locks, and accesses under them.

use super::{Session, kept};
use crate::core::Core;
use crate::locks::{self, Wish};
use crate::refused::{Refused, errno};
use hinterland_proto::control::{LOCKS_KEPT_MAX, LockMode, Reply, Request};
use hinterland_types::limits::CONTROL_BYTES_MAX;
use hinterland_types::{ByteRange, GlobalAddress, Handle, Rights};

impl Session {
    pub(super) fn answer_about_locks(&self, core: &Core, request: Request) -> Result<Reply, Refused> {
        match request {
            Request::Lock { address, mode, wait_ms } => {
                self.needs_host("wait for a lock")?;
                // Who only tries is told what the lock's home says of it, which may be in another rack.
                let wish = Wish { queue: wait_ms > 0, ..self.wish(address, mode) };
                core.locks.lock(core, &wish, wait_ms, &|| self.is_connected())?;
                Ok(Reply::Done)
            }
            Request::LockWait { address, mode, upgrade, queue, wait_ms } => {
                self.needs_host("wait for a lock")?;
                let wish = Wish { upgrade, queue, stay: queue, ..self.wish(address, mode) };
                core.locks.lock(core, &wish, wait_ms, &|| self.is_connected())
            }
            Request::GuardLock { address, bytes, mode, upgrade, queue, wait_ms } => {
                self.needs_host("hold a guard")?;
                if address.raw().checked_add(bytes).and_then(|end| GlobalAddress::new(end).ok()).is_none() {
                    return Err(Refused::new(
                        errno::EINVAL,
                        "a guard's range ends behind the pool's addresses",
                    ));
                }
                let wish = Wish { bytes, upgrade, queue, stay: queue, ..self.wish(address, mode) };
                core.locks.guard(core, &wish, wait_ms, &|| self.is_connected())
            }
            Request::KeepLocks { locks } if locks.len() > LOCKS_KEPT_MAX => {
                let text = format!(
                    "{} locks at once, {LOCKS_KEPT_MAX} at the most (hint: ask in parts)",
                    locks.len()
                );
                Err(Refused::new(errno::EINVAL, text))
            }
            Request::KeepLocks { locks } => Ok(core.locks.keep(self.id, &locks)),
            Request::ListLocks => Ok(Reply::Locks(core.locks.list(core)?)),
            Request::LockState { address } => core.locks.state(self.id, address),
            Request::Unlock { address } => self.unlock(core, address, true),
            Request::UnlockAs { address, clean } => self.unlock(core, address, clean),
            Request::WriteLocked { handle, lock, fence, runs, bytes } => {
                self.write_locked(core, handle, (lock, fence), &runs, &bytes)
            }
            Request::ReadLocked { handle, lock, fence, range } => {
                if range.bytes() > CONTROL_BYTES_MAX as u64 {
                    let text = format!(
                        "{} bytes are over the limit of an answer (hint: ask for fewer)",
                        range.bytes()
                    );
                    return Err(Refused::new(errno::EINVAL, text));
                }
                let slice = self.resolve(handle, range, Rights::READ)?;
                let mut bytes = vec![0; slice.len()];
                let passing = core.locks.pass(core, lock, fence)?;
                slice.copy_out(0, &mut bytes);
                drop(passing);
                kept(&slice)?;
                Ok(Reply::Bytes(bytes))
            }
            other => Err(Refused::new(errno::EINVAL, format!("{other:?} is not about locks"))),
        }
    }

    fn unlock(&self, core: &Core, address: GlobalAddress, clean: bool) -> Result<Reply, Refused> {
        core.locks.unlock(core, self.id, address, clean)?;
        Ok(Reply::Done)
    }

    /// What this session wants of a lock: to wait in the queue, and to leave it in the end.
    fn wish(&self, address: GlobalAddress, mode: LockMode) -> Wish {
        let credentials = self.socket.as_ref().and_then(|socket| socket.peer_credentials().ok());
        let pid = credentials.map_or(0, |credentials| credentials.process.unsigned_abs());
        let mode = locks::mode(mode);
        Wish { session: self.id, pid, address, bytes: 0, mode, upgrade: false, queue: true, stay: false }
    }

    /// Writes under a lock: all of it while the fence counts, or nothing.
    fn write_locked(
        &self,
        core: &Core,
        handle: Handle,
        (lock, fence): (GlobalAddress, u64),
        runs: &[ByteRange],
        mut bytes: &[u8],
    ) -> Result<Reply, Refused> {
        let total: u64 = runs.iter().fold(0, |sum, run| sum.saturating_add(run.bytes()));
        if total != bytes.len() as u64 {
            let text = "the runs and the bytes of a write have different lengths";
            return Err(Refused::new(errno::EINVAL, text));
        }
        let slices = runs
            .iter()
            .map(|run| self.resolve(handle, *run, Rights::WRITE))
            .collect::<Result<Vec<_>, _>>()?;
        let passing = core.locks.pass(core, lock, fence)?;
        for slice in &slices {
            let (now, later) = bytes.split_at(slice.len());
            if slice.copy_in(0, now) != now.len() {
                return Err(Refused::new(errno::EACCES, "the memory is read-only"));
            }
            bytes = later;
        }
        drop(passing);
        slices.iter().try_for_each(kept)?;
        Ok(Reply::Done)
    }
}
