//! One file that is being written: its bytes, who has it open, and what is to become of it.

use crate::contents::Contents;
use crate::open_files::OpenFile;
use crate::source::{NewObject, Placing, Source, SourceError};
use crate::writer::{Closer, Writer};
use hinterland_proto::control::ObjectInfo;
use hinterland_types::limits::OBJECT_BYTES_MAX;
use hinterland_types::{DRAFTS_FOLDER, ObjectId, ObjectName};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How long a draft waits for the program that it was made for to open it.
const UNCLAIMED_MAX: Duration = Duration::from_secs(5);

/// How long it is not published for somebody who was told to look its name up again: far longer than the kernel takes for that. A program that is killed
/// meanwhile never comes.
const COMES_WITHIN: Duration = Duration::from_secs(1);

/// What is to become of a file.
pub(crate) enum Fate {
    /// It is being written.
    Open,
    /// It is this object.
    Published(Arc<ObjectInfo>),
    /// Nothing comes of it any more; the error is for everybody who still uses it.
    Failed(i32),
}

/// A file that is being written, under the lock of its [`Draft`].
pub(crate) struct Inner {
    /// Its name; none once it was removed.
    pub(crate) name: Option<ObjectName>,
    pub(crate) contents: Contents,
    /// The room for it in the pool, from the first change on.
    pub(crate) put: Option<Box<dyn NewObject>>,
    /// The name that the put took.
    pub(crate) taken: Option<ObjectName>,
    pub(crate) placing: Placing,
    pub(crate) fate: Fate,
    /// Whether it is not what it was when it was opened.
    pub(crate) changed: bool,
    /// The object that it was, if it was one.
    pub(crate) before: Option<Arc<ObjectInfo>>,
    /// The object whose name it was given: that is in the pool until this is closed, and nobody here sees it.
    pub(crate) covers: Option<ObjectId>,
    maker: Writer,
    writer: Writer,
    /// Open handles, and those of them for writing.
    pub(crate) handles: u64,
    pub(crate) writers: u64,
    /// How often it was opened for writing, and whether its maker alone has done so.
    opens: u64,
    is_of_maker: bool,
    /// Threads that are to open it for writing: it was made of an object for them.
    awaited: Vec<(u32, Instant)>,
    /// Whether a descriptor of it was ever closed. The kernel says so before it says that a handle is used no longer, unless the program
    /// was killed while it was opening the file.
    was_closed: bool,
    /// Whether that was after the last descriptor was opened and a program has written last.
    is_closed: bool,
    /// Whether it is forgotten, so that nobody opens it who had found it just before.
    pub(crate) has_ended: bool,
    made: Instant,
}

/// One file that is being written.
pub(crate) struct Draft {
    /// Its inode number.
    pub(crate) inode: u64,
    inner: Mutex<Inner>,
}

impl Draft {
    /// A new file, made by a thread's process, whose put has begun.
    pub(crate) fn new(
        inode: u64,
        name: &ObjectName,
        taken: ObjectName,
        put: Box<dyn NewObject>,
        placing: Placing,
        thread: u32,
    ) -> Self {
        let mut inner = Inner::of(name, Contents::empty(), thread);
        (inner.put, inner.taken, inner.placing, inner.changed) = (Some(put), Some(taken), placing, true);
        Self { inode, inner: Mutex::new(inner) }
    }

    /// An object that a thread's process is to write.
    pub(crate) fn reopened(inode: u64, info: Arc<ObjectInfo>, file: OpenFile, thread: u32) -> Self {
        let mut inner = Inner::of(&info.name, Contents::of(file, info.bytes), thread);
        let rack = info.homes.first().map(|home| home.rack.clone());
        inner.placing = Placing { copies: Some(info.copies), rack };
        inner.before = Some(info);
        Self { inode, inner: Mutex::new(inner) }
    }

    /// The file, unless somebody is using it at this moment.
    pub(crate) fn inner_if_free(&self) -> Option<MutexGuard<'_, Inner>> {
        match self.inner.try_lock() {
            Ok(inner) => Some(inner),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The file, for one request.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who may have a file open for writing as it is published.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Access {
    /// Nobody.
    None,
    /// Handles that are being closed: it was opened so often for writing, and not since.
    OpenedTimes(u64),
}

/// The process that wrote a file last.
#[derive(Clone, Copy)]
pub(crate) struct LastWriter {
    writer: Writer,
    was_closed: bool,
}

impl LastWriter {
    /// Whether a signal has ended it. A process that has gone without closing the file once was killed before it had it. It is asked without the lock
    /// of the file: the process may wait for that.
    pub(crate) fn was_killed(self) -> bool {
        self.writer.was_killed() || !(self.was_closed || self.writer.is_there())
    }
}

/// What is said in place of the name of a file that was removed, and is open still.
const NAMELESS: &str = "a file without a name";

impl Inner {
    /// Its name, for people.
    pub(crate) fn shown(&self) -> &str {
        self.name.as_ref().map_or(NAMELESS, ObjectName::as_str)
    }

    fn of(name: &ObjectName, contents: Contents, thread: u32) -> Self {
        let maker = Writer::of(thread);
        Self {
            name: Some(name.clone()),
            contents,
            put: None,
            taken: None,
            placing: Placing::default(),
            fate: Fate::Open,
            changed: false,
            before: None,
            covers: None,
            maker,
            writer: maker,
            handles: 0,
            writers: 0,
            opens: 0,
            is_of_maker: true,
            awaited: Vec::new(),
            was_closed: false,
            is_closed: false,
            has_ended: false,
            made: Instant::now(),
        }
    }

    /// Whether nobody uses it and nothing would be lost without it.
    pub(crate) fn is_idle(&self) -> bool {
        let is_over = !matches!(self.fate, Fate::Open) || self.name.is_none();
        let is_unclaimed = !self.changed && self.made.elapsed() > UNCLAIMED_MAX;
        self.handles == 0 && (is_over || is_unclaimed)
    }

    /// Whether nothing comes of it any more.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.fate, Fate::Failed(_))
    }

    /// Whether it is not being written any more.
    pub(crate) fn is_over(&self) -> bool {
        !matches!(self.fate, Fate::Open)
    }

    /// Whether it is to be published, and perhaps only the kernel has to say so still.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed && self.changed && self.name.is_some() && !self.is_over()
    }

    /// Whether the pool has all its bytes.
    pub(crate) fn is_pushed(&self) -> bool {
        self.is_over() || self.contents.is_pushed()
    }

    /// What is known of it, as of an object, unless it has failed.
    pub(crate) fn describe_unless_failed(&self, inode: u64) -> Option<ObjectInfo> {
        if let Fate::Published(info) = &self.fate {
            return Some(ObjectInfo::clone(info));
        }
        if self.has_failed() { None } else { self.describe(inode) }
    }

    /// How many bytes it has.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.fate {
            Fate::Published(info) => info.bytes,
            _ => self.contents.bytes(),
        }
    }

    /// A thread was told to look the name up once more, to find this and write it. Until then it does not end when others close it.
    pub(crate) fn expect(&mut self, thread: u32) {
        self.made = Instant::now();
        // Whoever never came is forgotten here: a file has few writers.
        self.awaited.retain(|(other, told)| *other != thread && told.elapsed() < UNCLAIMED_MAX);
        self.awaited.push((thread, self.made));
    }

    /// Whether somebody who is to write it has not come yet. It is not published before: they would find an object once more, and the kernel looks
    /// a name up again only once.
    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited.iter().any(|(_, told)| told.elapsed() < COMES_WITHIN)
    }

    /// A thread has come that may have been told to look the name up again.
    pub(crate) fn has_come(&mut self, thread: u32) {
        self.awaited.retain(|(other, _)| *other != thread);
    }

    /// Whether it ends as nobody has it open any more: it is an object, or to be none.
    pub(crate) fn is_to_end(&self) -> bool {
        let is_awaited = self.awaited.iter().any(|(_, told)| told.elapsed() < UNCLAIMED_MAX);
        self.handles == 0 && (self.is_over() || self.name.is_none() || !(self.changed || is_awaited))
    }

    /// Counts a handle; `writes` if it is for writing.
    pub(crate) fn open(&mut self, thread: u32, writes: bool) {
        self.handles += 1;
        self.writers += u64::from(writes);
        self.is_closed &= !writes;
        if writes {
            self.opens += 1;
            self.has_come(thread);
            let opener = Writer::of(thread);
            if self.writers == 1 && !self.changed {
                (self.maker, self.writer, self.is_of_maker) = (opener, opener, true);
            }
            self.is_of_maker &= opener == self.maker;
        }
    }

    /// Whether it is to be published, and nobody can write it but by such access.
    pub(crate) fn is_to_publish(&self, access: Access) -> bool {
        let is_closed = match access {
            Access::None => self.writers == 0,
            Access::OpenedTimes(opens) => self.opens == opens,
        };
        is_closed && self.name.is_some()
    }

    /// Reads within the file; how many bytes there were.
    ///
    /// # Errors
    /// [`SourceError`] if they cannot be had, or nothing comes of the file any more.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize, SourceError> {
        self.check()?;
        let left = usize::try_from(self.contents.bytes().saturating_sub(offset)).unwrap_or(usize::MAX);
        let count = into.len().min(left);
        self.contents.read(self.put.as_deref(), offset, &mut into[..count])?;
        Ok(count)
    }

    /// Writes anywhere. After an error nothing comes of the file any more.
    ///
    /// # Errors
    /// [`SourceError`], `ENOSPC` without room.
    pub(crate) fn write(&mut self, source: &dyn Source, offset: u64, data: &[u8]) -> Result<(), SourceError> {
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= OBJECT_BYTES_MAX);
        let end = end.ok_or_else(|| too_large(offset))?;
        self.change(source, |inner, source| {
            inner.make_room(source, end)?;
            inner.contents.write(inner.put.as_deref_mut(), offset, data)?;
            match &mut inner.put {
                Some(put) if inner.name.is_some() => inner.contents.drain(&mut **put),
                _ => Ok(()),
            }
        })
    }

    /// Makes it shorter, or longer with zeros.
    ///
    /// # Errors
    /// As [`write`](Self::write); without room the file stays as it is.
    pub(crate) fn resize(&mut self, source: &dyn Source, bytes: u64) -> Result<(), SourceError> {
        if bytes > OBJECT_BYTES_MAX {
            return Err(too_large(bytes));
        }
        if bytes == self.contents.bytes() {
            return self.check();
        }
        if bytes > self.contents.bytes() {
            self.check()?;
            self.make_room(source, bytes)?;
        }
        self.change(source, |inner, source| {
            inner.make_room(source, bytes)?;
            inner.contents.resize(inner.put.as_deref_mut(), bytes)
        })
    }

    /// Makes a range within the file zeros.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub(crate) fn blank(&mut self, source: &dyn Source, offset: u64, bytes: u64) -> Result<(), SourceError> {
        self.change(source, |inner, source| {
            inner.make_room(source, inner.contents.bytes())?;
            inner.contents.blank(inner.put.as_deref_mut(), offset, bytes)
        })
    }

    /// It was published, and is written on from the object, or from what is here; without a name if it was removed since.
    pub(crate) fn go_on(&mut self, info: &Arc<ObjectInfo>, file: Option<OpenFile>, has_name: bool) {
        if let Some(file) = file {
            self.contents = Contents::of(file, info.bytes);
        }
        self.name = has_name.then(|| info.name.clone());
        self.before = has_name.then(|| Arc::clone(info));
        (self.put, self.taken, self.covers) = (None, None, None);
        (self.fate, self.is_closed) = (Fate::Open, false);
    }

    /// Notes who wrote, if a program did and not the kernel by itself.
    pub(crate) fn written_by(&mut self, thread: u32) {
        self.writer = Writer::of(thread);
        self.is_closed = false;
    }

    /// Whether anything can still come of it.
    ///
    /// # Errors
    /// [`SourceError`] with the error that it failed with.
    pub(crate) fn check(&self) -> Result<(), SourceError> {
        match self.fate {
            Fate::Failed(code) => Err(failed(self.name.as_ref(), code)),
            Fate::Open if self.put.as_ref().is_some_and(|put| put.is_lost()) => {
                Err(failed(self.name.as_ref(), nix::libc::EIO))
            }
            _ => Ok(()),
        }
    }

    /// Notes that nothing comes of it.
    pub(crate) fn fail(&mut self, code: i32) {
        if let Fate::Open = self.fate {
            self.fate = Fate::Failed(code);
            self.put = None;
        }
    }

    /// A descriptor for writing was closed. If a signal ends the process that wrote, nothing comes of the file. Otherwise how it can still be written, if that was
    /// the last way to it unless that process, or one that descends from it, has another.
    ///
    /// # Errors
    /// [`SourceError`] with what went wrong before, so that the program which closes hears of it.
    pub(crate) fn flush(&mut self, closer: &Closer) -> Result<Option<Access>, SourceError> {
        (self.was_closed, self.is_closed) = (true, true);
        if let Err(error) = self.check() {
            self.fail(error.code);
            return Err(error);
        }
        if closer.is_killed && closer.writer == self.writer && self.changed {
            self.note_killed();
        }
        let is_open = matches!(self.fate, Fate::Open);
        // Handles of the same process may be closed as well, and the kernel has not said so yet.
        let may_be_last = !closer.is_killed && self.is_of_maker && closer.writer == self.maker;
        Ok((is_open && may_be_last).then_some(Access::OpenedTimes(self.opens)))
    }

    /// Who wrote last, now that nobody writes any more, if it matters whether a signal has ended that process.
    pub(crate) fn last_writer(&self) -> Option<LastWriter> {
        let matters = matches!(self.fate, Fate::Open) && self.changed;
        matters.then_some(LastWriter { writer: self.writer, was_closed: self.was_closed })
    }

    /// Notes that the process which wrote last was killed.
    pub(crate) fn writer_was_killed(&mut self) {
        if matches!(self.fate, Fate::Open) && self.changed {
            self.note_killed();
        }
    }

    fn note_killed(&mut self) {
        if let Some(name) = &self.name {
            tracing::info!("{name} was not published: its writer was killed");
        }
        self.fail(nix::libc::EIO);
    }

    /// Gives it another name. The one that its put has taken is free then.
    ///
    /// # Errors
    /// [`SourceError`] of the pool; it has its name still.
    pub(crate) fn rename(&mut self, name: &ObjectName) -> Result<(), SourceError> {
        self.yield_name()?;
        self.name = Some(name.clone());
        Ok(())
    }

    /// Has its put take a name in the pool that it is to have, and nothing else may have. It has its name still.
    ///
    /// # Errors
    /// [`SourceError`] of the pool, `EEXIST` if something has the name.
    pub(crate) fn claim(&mut self, name: &ObjectName) -> Result<(), SourceError> {
        if let (Some(put), Some(taken)) = (&mut self.put, &self.taken) {
            put.rename(taken, name)?;
            self.taken = Some(name.clone());
        }
        Ok(())
    }

    /// Has its put give back its name in the pool, so that another file can have it.
    ///
    /// # Errors
    /// [`SourceError`] of the pool; the put has the name still.
    pub(crate) fn yield_name(&mut self) -> Result<(), SourceError> {
        if let (Some(put), Some(taken)) = (&mut self.put, &self.taken)
            && Some(taken) == self.name.as_ref()
        {
            let hidden = hidden_name()?;
            put.rename(taken, &hidden)?;
            self.taken = Some(hidden);
        }
        Ok(())
    }

    /// The object in the pool that has its name, as far as it took that itself.
    pub(crate) fn covered(&self) -> Option<ObjectId> {
        self.before.as_ref().map(|before| before.object).or(self.covers)
    }

    /// Forgets the name, which its put has yielded. The room is free again unless bytes of the file lie there.
    pub(crate) fn remove_name(&mut self) {
        self.name = None;
        if !self.contents.needs_pool() {
            (self.put, self.taken) = (None, None);
        }
    }

    /// Begins the put anew, elsewhere or with other copies.
    ///
    /// # Errors
    /// [`SourceError`]; `EBUSY` if bytes were written.
    pub(crate) fn place(&mut self, source: &dyn Source, placing: Placing) -> Result<(), SourceError> {
        self.check()?;
        if self.contents.bytes() > 0 && (self.changed || self.put.is_some()) {
            let text = "where a file lies is decided before its first byte (hint: set the attribute on an empty file or on the folder)";
            return Err(SourceError { code: nix::libc::EBUSY, text: text.to_owned() });
        }
        if self.put.is_none() {
            self.placing = placing;
            return Ok(());
        }
        let hidden = hidden_name()?;
        let put = source.create(&hidden, &placing)?;
        (self.put, self.taken, self.placing) = (Some(put), Some(hidden), placing);
        Ok(())
    }

    /// Hands all bytes to the pool, so that only the name is left to be given.
    ///
    /// # Errors
    /// [`SourceError`] of the pool; nothing comes of the file then.
    pub(crate) fn push(&mut self, source: &dyn Source) -> Result<(), SourceError> {
        self.change(source, |inner, source| {
            inner.make_room(source, inner.contents.bytes())?;
            match &mut inner.put {
                Some(put) => inner.contents.push(&mut **put),
                None => Ok(()),
            }
        })
    }

    /// Makes it an object under its name, whole.
    ///
    /// # Errors
    /// [`SourceError`] of the pool; nothing comes of the file then.
    pub(crate) fn publish(&mut self) -> Result<Option<Arc<ObjectInfo>>, SourceError> {
        let (Fate::Open, Some(name), Some(put)) = (&self.fate, self.name.clone(), self.put.take()) else {
            return Ok(None);
        };
        match put.publish(&name) {
            Ok(info) => {
                let info = Arc::new(info);
                self.fate = Fate::Published(info.clone());
                Ok(Some(info))
            }
            Err(error) => {
                self.fail(error.code);
                Err(error)
            }
        }
    }

    fn change(
        &mut self,
        source: &dyn Source,
        how: impl FnOnce(&mut Self, &dyn Source) -> Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        if let Fate::Published(_) = self.fate {
            let text = "it is published already (hint: close it last)".to_owned();
            return Err(SourceError { code: nix::libc::EIO, text });
        }
        let outcome = self.check().and_then(|()| {
            self.changed = true;
            how(self, source)
        });
        if let Err(error) = &outcome {
            self.fail(error.code);
        }
        outcome
    }

    /// Sees that the pool has room for so many bytes, so that a full pool is told to whoever writes.
    fn make_room(&mut self, source: &dyn Source, bytes: u64) -> Result<(), SourceError> {
        if self.name.is_none() {
            return Ok(());
        }
        if self.put.is_none() {
            let hidden = hidden_name()?;
            self.put = Some(source.create(&hidden, &self.placing)?);
            self.taken = Some(hidden);
        }
        match self.put.as_mut().map(|put| put.reserve(bytes)) {
            // Where it began is no more room. Elsewhere there may be.
            Some(Err(full)) if full.code == nix::libc::ENOSPC => {
                self.go_elsewhere(source, bytes).map_err(|error| match error.code {
                    nix::libc::ENOSPC => full,
                    _ => error,
                })
            }
            Some(reserved) => reserved,
            None => Ok(()),
        }
    }

    /// Begins the put anew where there is room for so many bytes. What the pool has of the file already goes there too.
    fn go_elsewhere(&mut self, source: &dyn Source, bytes: u64) -> Result<(), SourceError> {
        let mut taken = hidden_name()?;
        let mut there = source.create_with_room(&taken, &self.placing, bytes)?;
        if let Some(here) = &self.put {
            self.contents.hand_over(&**here, &mut *there)?;
            if let Some(name) = self.taken.as_ref().filter(|taken| Some(*taken) == self.name.as_ref()) {
                // In one step: another host that took the name in between would be told that it has made the file, and lose it to this one.
                there.exchange_names(&taken, here.object(), name)?;
                taken = name.clone();
            }
        }
        tracing::info!("{} goes on elsewhere: where it began is no more room", self.shown());
        (self.put, self.taken) = (Some(there), Some(taken));
        Ok(())
    }

    /// What is known of it, as of an object.
    pub(crate) fn describe(&self, inode: u64) -> Option<ObjectInfo> {
        use hinterland_proto::control::ObjectState;
        Some(ObjectInfo {
            object: ObjectId(inode),
            name: self.name.clone()?,
            state: ObjectState::Writing,
            bytes: self.bytes(),
            address: None,
            copies: self.placing.copies.unwrap_or(1),
            homes: Vec::new(),
            digest: [0; 32],
        })
    }
}

/// A name for a put whose file has a name that something else still has. No object ever has it.
pub(crate) fn hidden_name() -> Result<ObjectName, SourceError> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only the uniqueness of the number matters.
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let random = hinterland_pool::local::random()
        .map_err(|error| SourceError { code: nix::libc::EIO, text: error.to_string() })?;
    let random = u128::from_le_bytes(random);
    ObjectName::parse(&format!("{DRAFTS_FOLDER}{random:032x}-{count}"))
        .map_err(|error| SourceError { code: nix::libc::EIO, text: error.to_string() })
}

fn failed(name: Option<&ObjectName>, code: i32) -> SourceError {
    let name = name.map_or(NAMELESS, ObjectName::as_str);
    SourceError { code, text: format!("{name} was not published (hint: write it anew)") }
}

fn too_large(bytes: u64) -> SourceError {
    let text = format!("{bytes} bytes are more than an object may have (hint: split it)");
    SourceError { code: nix::libc::EFBIG, text }
}
