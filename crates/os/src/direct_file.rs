//! Files of a disk, read and written past the page cache, many transfers at once.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use io_uring::{IoUring, opcode, types};

use crate::error::{OsError, check};
use crate::mapping::Mapping;

/// Offsets, lengths and addresses of transfers are multiples of this many bytes.
pub const DIRECT_BYTES: usize = 4096;
/// Transfers of one batch that are under way at once.
const DEPTH: u32 = 32;
/// Batches, each of a thread of its own, that are under way at once.
const RINGS: usize = 8;

/// Zeroed memory of whole pages for transfers.
#[derive(Debug)]
pub struct DirectBuffer {
    memory: Arc<Mapping>,
}

impl DirectBuffer {
    /// Memory of `bytes` bytes, rounded up to [`DIRECT_BYTES`].
    ///
    /// # Errors
    /// The refusal of `mmap`.
    pub fn new(bytes: usize) -> Result<Self, OsError> {
        let bytes = bytes.max(1).next_multiple_of(DIRECT_BYTES);
        Ok(Self { memory: Arc::new(Mapping::anonymous(bytes, false)?) })
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: private memory of this value, mapped for its length; `&self` allows no writes to it.
        unsafe { std::slice::from_raw_parts(self.memory.start().as_ptr(), self.memory.len()) }
    }

    /// Its bytes, to change them.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` is the only way to it.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start().as_ptr(), self.memory.len()) }
    }
}

/// One transfer.
#[derive(Debug)]
pub enum Transfer<'bytes> {
    /// Fills bytes from an offset of the file.
    Read(u64, &'bytes mut [u8]),
    /// Writes bytes at an offset of the file.
    Write(u64, &'bytes [u8]),
}

impl Transfer<'_> {
    fn bytes(&self) -> usize {
        match self {
            Self::Read(_, bytes) => bytes.len(),
            Self::Write(_, bytes) => bytes.len(),
        }
    }

    /// The entry of the rest behind `done` bytes.
    fn entry(&mut self, file: RawFd, done: usize) -> io_uring::squeue::Entry {
        // A transfer is at most a few megabytes: the casts lose nothing.
        match self {
            Self::Read(offset, bytes) => {
                let rest = &mut bytes[done..];
                opcode::Read::new(types::Fd(file), rest.as_mut_ptr(), rest.len() as u32)
                    .offset(*offset + done as u64)
                    .build()
            }
            Self::Write(offset, bytes) => {
                let rest = &bytes[done..];
                opcode::Write::new(types::Fd(file), rest.as_ptr(), rest.len() as u32)
                    .offset(*offset + done as u64)
                    .build()
            }
        }
    }

    /// Without io_uring.
    fn run(&mut self, file: &File) -> io::Result<()> {
        match self {
            Self::Read(offset, bytes) => file.read_exact_at(bytes, *offset),
            Self::Write(offset, bytes) => file.write_all_at(bytes, *offset),
        }
    }
}

/// A file of fixed size.
pub struct DirectFile {
    file: File,
    path: PathBuf,
    bytes: AtomicU64,
    is_direct: bool,
    /// One batch at a time each; made when all before it are in use. None where the kernel has no io_uring.
    rings: [OnceLock<Option<Mutex<IoUring>>>; RINGS],
}

impl std::fmt::Debug for DirectFile {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "DirectFile({}, {} bytes)", self.path.display(), self.len())
    }
}

impl DirectFile {
    /// Opens or makes a file of `bytes` bytes, all of which the disk has set aside.
    ///
    /// # Errors
    /// The refusal of `open` or `fallocate`: `ENOSPC` if there is no room.
    pub fn open(path: &Path, bytes: u64) -> Result<Self, OsError> {
        let (file, is_direct) = open_directly(path, |flags| {
            let mut options = options(flags | libc::O_NOFOLLOW);
            options.create(true).truncate(false).open(path)
        })?;
        Self::of(file, path, bytes, is_direct)
    }

    /// Makes a file of `bytes` bytes in a folder that has no name, so that nobody else can open it, and nothing stays of it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn unnamed(folder: &Path, bytes: u64) -> Result<Self, OsError> {
        let unnamed = open_directly(folder, |flags| options(flags | libc::O_TMPFILE).open(folder));
        let (file, is_direct) = match unnamed {
            // A file system without it (NFS), or a kernel that takes the folder for the file.
            Err(error) if matches!(error.errno(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::ENOENT)) => {
                let path = folder.join(format!(".hinterland-far-{}", std::process::id()));
                // What has this name already is somebody else's: it stays, and refuses ours.
                let opened = open_directly(&path, |flags| options(flags).create_new(true).open(&path))?;
                std::fs::remove_file(&path)
                    .map_err(|error| OsError::system("unlink", path.display().to_string(), error))?;
                opened
            }
            other => other?,
        };
        Self::of(file, folder, bytes, is_direct)
    }

    fn of(file: File, path: &Path, bytes: u64, is_direct: bool) -> Result<Self, OsError> {
        set_length(&file, path, bytes)?;
        let bytes = AtomicU64::new(bytes);
        let file = Self { file, path: path.to_owned(), bytes, is_direct, rings: Default::default() };
        file.ring_at(0);
        Ok(file)
    }

    /// Makes it longer, all of which the disk has set aside, or shorter. One thread at a time does that.
    ///
    /// # Errors
    /// As [`open`](Self::open); the length is as before then.
    pub fn resize(&self, bytes: u64) -> Result<(), OsError> {
        set_length(&self.file, &self.path, bytes).inspect_err(|_| {
            // What was set aside before the disk was full goes back; the refusal is told in any case.
            let _ = self.file.set_len(self.len());
        })?;
        self.bytes.store(bytes, Ordering::Relaxed); // Relaxed: a number, which guards no other memory.
        Ok(())
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed) // Relaxed: as above.
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether transfers go past the page cache.
    pub const fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Whether transfers of a batch go on at the same time.
    pub fn has_ring(&self) -> bool {
        self.ring_at(0).is_some()
    }

    fn ring_at(&self, index: usize) -> Option<&Mutex<IoUring>> {
        self.rings[index].get_or_init(|| IoUring::new(DEPTH).ok().map(Mutex::new)).as_ref()
    }

    /// A ring that nobody uses, or else the last one when its turn comes.
    fn ring(&self) -> Option<MutexGuard<'_, IoUring>> {
        let mut last = self.ring_at(0)?;
        for index in 0..RINGS {
            let Some(ring) = self.ring_at(index) else { break };
            last = ring;
            if let Ok(free) = ring.try_lock() {
                return Some(free);
            }
        }
        Some(last.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Locks the file against other processes until this value is dropped.
    ///
    /// # Errors
    /// `EWOULDBLOCK` if another one has it.
    pub fn lock(&self) -> Result<(), OsError> {
        // SAFETY: plain values.
        let result = unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
        check(result, "flock", || self.path.display().to_string())
            .map(drop)
            .map_err(|error| error.with_hint("another node uses this file: give each its own folder"))
    }

    /// Does transfers in any order; one result each. Offsets and lengths are multiples of [`DIRECT_BYTES`].
    pub fn transfer(&self, transfers: &mut [Transfer<'_>]) -> Vec<io::Result<()>> {
        let Some(mut ring) = self.ring() else {
            return transfers.iter_mut().map(|transfer| transfer.run(&self.file)).collect();
        };
        let mut results: Vec<io::Result<()>> = Vec::with_capacity(transfers.len());
        results.resize_with(transfers.len(), || Ok(()));
        let mut done = vec![0; transfers.len()];
        let mut waiting: Vec<usize> = (0..transfers.len()).rev().collect();
        let mut under_way = 0;
        while under_way > 0 || !waiting.is_empty() {
            while under_way < DEPTH as usize
                && let Some(index) = waiting.pop()
            {
                let entry =
                    transfers[index].entry(self.file.as_raw_fd(), done[index]).user_data(index as u64);
                // SAFETY: the bytes are borrowed until this function returns, which is after all have completed.
                let is_full = unsafe { ring.submission().push(&entry) }.is_err();
                if is_full {
                    waiting.push(index);
                    break;
                }
                under_way += 1;
            }
            if let Err(error) = ring.submit_and_wait(1) {
                match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // The kernel is short of something: what is under way completes meanwhile.
                    Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) => std::thread::yield_now(),
                    // A ring that this process made and owns is never refused otherwise. The kernel may still have some of
                    // the bytes: to return them would be to lose control of them.
                    _ => std::process::abort(),
                }
            }
            let completed: Vec<(usize, i32)> =
                ring.completion().map(|entry| (entry.user_data() as usize, entry.result())).collect();
            for (index, result) in completed {
                under_way -= 1;
                match usize::try_from(result) {
                    Ok(0) => results[index] = Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(some) => {
                        done[index] += some;
                        if done[index] < transfers[index].bytes() {
                            waiting.push(index);
                        }
                    }
                    Err(_) if -result == libc::EINTR || -result == libc::EAGAIN => waiting.push(index),
                    Err(_) => results[index] = Err(io::Error::from_raw_os_error(-result)),
                }
            }
        }
        results
    }
}

/// Gives a file a length, and has the disk set all of it aside.
fn set_length(file: &File, path: &Path, bytes: u64) -> Result<(), OsError> {
    let length = libc::off_t::try_from(bytes).map_err(|_| OsError::OutOfBounds {
        offset: 0,
        bytes,
        limit: libc::off_t::MAX as u64,
    })?;
    file.set_len(bytes).map_err(|error| OsError::system("ftruncate", path.display().to_string(), error))?;
    // SAFETY: plain values.
    let result = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) };
    if result != 0 {
        let source = io::Error::from_raw_os_error(result);
        let subject = format!("{} to {bytes} bytes", path.display());
        return Err(OsError::system("fallocate", subject, source));
    }
    Ok(())
}

/// Files for reading and writing, of this user alone.
fn options(flags: i32) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(flags);
    options
}

/// Opens past the page cache if the file system can do that, and says whether it does.
fn open_directly(path: &Path, open: impl Fn(i32) -> io::Result<File>) -> Result<(File, bool), OsError> {
    let refused = |error| OsError::system("open", path.display().to_string(), error);
    match open(libc::O_DIRECT) {
        Ok(file) => Ok((file, true)),
        // A file system without it, as tmpfs was for long.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            open(0).map(|file| (file, false)).map_err(refused)
        }
        Err(error) => Err(refused(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(seed: u64, bytes: &mut [u8]) {
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = (seed.wrapping_mul(31).wrapping_add(index as u64) % 251) as u8;
        }
    }

    fn round_trip(file: &DirectFile) {
        let mut buffers: Vec<DirectBuffer> =
            (0..100).map(|_| DirectBuffer::new(3 * DIRECT_BYTES).unwrap()).collect();
        for (seed, buffer) in buffers.iter_mut().enumerate() {
            pattern(seed as u64, buffer.bytes_mut());
        }
        let place = |index: usize| (index * 3 * DIRECT_BYTES) as u64;
        let mut writes: Vec<Transfer<'_>> = buffers
            .iter()
            .enumerate()
            .map(|(index, buffer)| Transfer::Write(place(index), buffer.bytes()))
            .collect();
        assert!(file.transfer(&mut writes).iter().all(Result::is_ok));
        let mut back: Vec<DirectBuffer> =
            (0..100).map(|_| DirectBuffer::new(3 * DIRECT_BYTES).unwrap()).collect();
        let mut reads: Vec<Transfer<'_>> = back
            .iter_mut()
            .enumerate()
            .map(|(index, buffer)| Transfer::Read(place(index), buffer.bytes_mut()))
            .collect();
        assert!(file.transfer(&mut reads).iter().all(Result::is_ok));
        assert!(buffers.iter().zip(&back).all(|(one, other)| one.bytes() == other.bytes()));
    }

    #[test]
    fn what_is_written_at_once_is_read_at_once_with_and_without_a_ring() {
        let path = std::env::temp_dir().join(format!("hl-direct-{}", std::process::id()));
        let mut file = DirectFile::open(&path, 2 << 20).unwrap();
        file.lock().unwrap();
        round_trip(&file);
        // More threads than rings, each in a part of the file of its own.
        let many = DirectFile::open(&path, 16 << 20).unwrap();
        std::thread::scope(|scope| {
            for part in 0..12u64 {
                let many = &many;
                scope.spawn(move || {
                    let mut buffer = DirectBuffer::new(1 << 20).unwrap();
                    for round in 0..4 {
                        pattern(part * 7 + round, buffer.bytes_mut());
                        let wrote = many.transfer(&mut [Transfer::Write(part << 20, buffer.bytes())]);
                        assert!(wrote.iter().all(Result::is_ok));
                        let mut back = DirectBuffer::new(1 << 20).unwrap();
                        let read = many.transfer(&mut [Transfer::Read(part << 20, back.bytes_mut())]);
                        assert!(read.iter().all(Result::is_ok) && back.bytes() == buffer.bytes());
                    }
                });
            }
        });
        drop(many);
        let other = DirectFile::open(&path, 2 << 20).unwrap();
        assert!(other.lock().unwrap_err().to_string().contains("own folder"));
        file.rings = std::array::from_fn(|_| OnceLock::from(None));
        round_trip(&file);
        drop(file);
        other.lock().unwrap();
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_file_without_a_name_is_seen_by_nobody_else() {
        let folder = std::env::temp_dir().join(format!("hl-unnamed-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        // What a name that can be guessed would have opened.
        let guessed = folder.join(format!(".hinterland-far-{}", std::process::id()));
        std::fs::write(&guessed, b"of somebody else").unwrap();
        let file = DirectFile::unnamed(&folder, 2 << 20).unwrap();
        round_trip(&file);
        assert_eq!(std::fs::read(&guessed).unwrap(), b"of somebody else");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        assert!(DirectFile::unnamed(&folder.join("missing"), 4096).is_err());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_gets_another_length_and_keeps_it_where_there_is_no_room() {
        let file = DirectFile::unnamed(&std::env::temp_dir(), 1 << 20).unwrap();
        file.resize(2 << 20).unwrap();
        round_trip(&file);
        assert!(file.resize(1 << 55).unwrap_err().to_string().contains("hint:"));
        assert_eq!((file.len(), file.file.metadata().unwrap().len()), (2 << 20, 2 << 20));
        file.resize(1 << 20).unwrap();
        assert_eq!((file.len(), file.file.metadata().unwrap().len()), (1 << 20, 1 << 20));
    }

    #[test]
    fn transfers_outside_fail_and_those_beside_them_do_not() {
        let path = std::env::temp_dir().join(format!("hl-direct-end-{}", std::process::id()));
        let file = DirectFile::open(&path, 1 << 20).unwrap();
        let (mut inside, mut outside) = (DirectBuffer::new(4096).unwrap(), DirectBuffer::new(4096).unwrap());
        let mut transfers =
            [Transfer::Read(0, inside.bytes_mut()), Transfer::Read(1 << 20, outside.bytes_mut())];
        let results = file.transfer(&mut transfers);
        assert!(results[0].is_ok() && results[1].is_err(), "{results:?}");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_disk_without_room_says_so_at_the_start() {
        let path = std::env::temp_dir().join(format!("hl-direct-full-{}", std::process::id()));
        let error = DirectFile::open(&path, 1 << 55).unwrap_err();
        assert!(error.to_string().contains("hint:"), "{error}");
        std::fs::remove_file(path).unwrap();
    }
}
