//! Files that are being written: hidden until they are whole.
//!
//! A file is published when the program that made it closes its only descriptor and has no children that could have another:
//! then `close` hears of it. Otherwise it is published when the last descriptor is closed anywhere, which the kernel tells by
//! `release`, and lets nobody wait for it; so whoever asks for a name that somebody has begun to close waits instead. A
//! program that is killed while it writes leaves nothing: each of its descriptors is closed with a `flush`, and what makes
//! that request is ending by a signal.

use crate::source::{NewObject, Source, SourceError};
use crate::writer::Writer;
use hinterland_proto::control::{ObjectInfo, ObjectState};
use hinterland_types::ObjectName;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a name that is being closed is waited for until the kernel says that nobody has it open: another process may
/// go on writing.
const CLOSING_WAIT_MAX: Duration = Duration::from_millis(500);
/// Bytes of a hole that are written at once.
const HOLE_BYTES: usize = 64 << 10;
const EIO: i32 = 5;
const EOPNOTSUPP: i32 = 95;

enum State {
    Writing(Box<dyn NewObject>),
    /// Its publication is under way.
    Sealing,
    /// Nothing comes of it any more; why is for everybody who still writes.
    Failed(i32),
}

struct Inner {
    state: State,
    bytes: u64,
    maker: Writer,
    writer: Writer,
    /// Whether its writer has closed a descriptor, and when.
    closing: Option<Instant>,
}

/// One file that is being written.
pub(crate) struct Draft {
    name: ObjectName,
    inner: Mutex<Inner>,
}

/// All of them, by inode number.
#[derive(Default)]
pub(crate) struct Drafts {
    by_inode: Mutex<HashMap<u64, Arc<Draft>>>,
    changed: Condvar,
}

impl Drafts {
    /// Begins a file for the process of `thread`.
    ///
    /// # Errors
    /// [`SourceError`] if the name is taken.
    pub(crate) fn begin(
        &self,
        source: &dyn Source,
        name: &ObjectName,
        thread: u32,
    ) -> Result<ObjectInfo, SourceError> {
        let new = source.create(name)?;
        let info = ObjectInfo {
            object: new.object(),
            name: name.clone(),
            state: ObjectState::Writing,
            bytes: 0,
            address: None,
            copies: 1,
            homes: Vec::new(),
            digest: [0; 32],
        };
        let maker = Writer::of(thread);
        let inner = Inner { state: State::Writing(new), bytes: 0, maker, writer: maker, closing: None };
        let draft = Arc::new(Draft { name: name.clone(), inner: Mutex::new(inner) });
        self.lock().insert(info.object.0, draft);
        Ok(info)
    }

    /// A file that is being written.
    pub(crate) fn find(&self, inode: u64) -> Option<Arc<Draft>> {
        self.lock().get(&inode).cloned()
    }

    /// Publishes a file that nobody has open any more; nothing if it failed before.
    ///
    /// # Errors
    /// [`SourceError`]; nothing is left behind then.
    pub(crate) fn publish(&self, inode: u64) -> Option<Result<ObjectInfo, SourceError>> {
        let draft = self.find(inode)?;
        let state = std::mem::replace(&mut draft.lock().state, State::Sealing);
        let outcome = match state {
            State::Writing(new) => Some(new.seal()),
            State::Sealing | State::Failed(_) => None,
        };
        self.lock().remove(&inode);
        self.changed.notify_all();
        outcome
    }

    /// Waits while a name, or any name that starts with it and `/`, is about to be published.
    pub(crate) fn wait_for(&self, path: &str) {
        let mut drafts = self.lock();
        loop {
            let until =
                drafts.values().filter(|draft| draft.is_at(path)).filter_map(|draft| draft.ready_by()).max();
            let Some(left) = until.map(|until| until.saturating_duration_since(Instant::now())) else {
                return;
            };
            if left.is_zero() {
                return;
            }
            drafts = self.changed.wait_timeout(drafts, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Draft>>> {
        self.by_inode.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Draft {
    /// Bytes written so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    /// Takes bytes at an offset that is not before the end. What lies between is zeros.
    ///
    /// # Errors
    /// [`SourceError`]; nothing comes of the file then, and its room is free.
    pub(crate) fn write(&self, thread: u32, offset: u64, data: &[u8]) -> Result<(), SourceError> {
        let mut inner = self.lock();
        inner.closing = None;
        if !data.is_empty() {
            inner.writer = Writer::of(thread);
        }
        let written = inner.extend(&self.name, offset).and_then(|()| inner.append(data));
        if let Err(error) = &written {
            inner.state = State::Failed(error.code);
        }
        written
    }

    /// Makes the file longer with zeros, or leaves it as it is.
    ///
    /// # Errors
    /// As [`write`](Self::write); `EOPNOTSUPP` for a shorter one.
    pub(crate) fn resize(&self, thread: u32, bytes: u64) -> Result<(), SourceError> {
        self.write(thread, bytes, &[])
    }

    /// A descriptor was closed; whether it was certainly the last one. If a signal ends the process that wrote, nothing comes
    /// of the file.
    ///
    /// # Errors
    /// [`SourceError`] with what went wrong before, so that the program which closes hears of it.
    pub(crate) fn flush(&self, thread: u32, inode: u64) -> Result<bool, SourceError> {
        let who = Writer::of(thread);
        let killed = Writer::is_killed(thread);
        let mut inner = self.lock();
        match &inner.state {
            State::Failed(code) => Err(failed(&self.name, *code)),
            State::Writing(_) if killed && who == inner.writer => {
                inner.state = State::Failed(EIO);
                tracing::info!("{} was not published: its writer was killed", self.name);
                Ok(false)
            }
            State::Writing(new) if new.is_lost() => {
                inner.state = State::Failed(EIO);
                Err(failed(&self.name, EIO))
            }
            State::Writing(_) | State::Sealing => {
                inner.closing = Some(Instant::now());
                Ok(!killed && who == inner.maker && who.is_alone_without(inode))
            }
        }
    }

    fn is_at(&self, path: &str) -> bool {
        let name = self.name.as_str();
        name == path || path.is_empty() || name.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'))
    }

    /// When at the latest it is published, as far as can be told; nothing if nobody has begun to close it.
    fn ready_by(&self) -> Option<Instant> {
        // Whoever holds it is writing.
        let inner = self.inner.try_lock().ok()?;
        match inner.state {
            State::Failed(_) => None,
            State::Sealing => Some(Instant::now() + CLOSING_WAIT_MAX),
            State::Writing(_) => inner.closing.map(|since| since + CLOSING_WAIT_MAX),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn extend(&mut self, name: &ObjectName, offset: u64) -> Result<(), SourceError> {
        if offset < self.bytes {
            let text = format!(
                "{name} was written at {offset}, before its end at {} (hint: files are written from their start to their end; write a file elsewhere and copy it)",
                self.bytes
            );
            return Err(SourceError { code: EOPNOTSUPP, text });
        }
        let zeros = [0; HOLE_BYTES];
        while self.bytes < offset {
            let count = usize::try_from(offset - self.bytes).unwrap_or(usize::MAX).min(HOLE_BYTES);
            self.append(&zeros[..count])?;
        }
        Ok(())
    }

    fn append(&mut self, data: &[u8]) -> Result<(), SourceError> {
        match &mut self.state {
            State::Writing(new) => new.write(data)?,
            State::Failed(code) => {
                let text = "it had failed before (hint: write it anew)".to_owned();
                return Err(SourceError { code: *code, text });
            }
            State::Sealing => {
                let text = "it is published already (hint: close it last)".to_owned();
                return Err(SourceError { code: EIO, text });
            }
        }
        self.bytes += data.len() as u64;
        Ok(())
    }
}

fn failed(name: &ObjectName, code: i32) -> SourceError {
    SourceError { code, text: format!("{name} was not published (hint: write it anew)") }
}
