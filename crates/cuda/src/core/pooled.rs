//! Copies to a device of memory that is a mapped object of a pool: the object's name goes over, and the node reads the bytes by itself.
//!
//! What must be sure for that is asked anew for each copy, of the kernel ([`own_files`]): that a file of the pool lies behind
//! each address, and that the program has written none of the pages. Which object the file is was found out once, and the
//! file is kept in being, so that none other can look like it. Whenever anything is not so, the bytes are sent.
//!
//! See `docs/decisions/2026-11-22-pool-to-gpu.md`.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hinterland_os::own_files::{self, FileIdentity, FileMapping};
use hinterland_pool::{Object, Pool, PoolError, ReadPreference};
use hinterland_proto::control::ObjectState;
use hinterland_proto::gpu::command::{AskPooled, CopyPooled};
use hinterland_types::{ObjectId, ObjectName};

use super::outbox::Effect;
use super::session::{Session, is_set};
use super::stream::Stream;
use crate::code::{Code, NOT_SUPPORTED};

/// Copies of fewer bytes are sent: looking costs about as much as copying them.
pub(super) const BYTES_MIN: usize = 64 << 10;
/// Mappings that one copy may go over.
const PARTS_MAX: usize = 64;
/// Files and objects that are remembered.
const KNOWN_MAX: usize = 2048;
/// Flag of [`AskPooled`]: all of it will be wanted soon.
const ALL_SOON: u32 = 1;
/// Bytes of a page by which a file of a mount is kept.
const PAGE_BYTES: u64 = 4096;

/// Set to 1: bytes are sent also when the node could read them.
const NO_POOL_COPIES: &str = "HINTERLAND_NO_POOL_COPIES";
/// Names of objects that the node is to fetch at once, a line each. Set by `hinterland run --model`.
const MODELS: &str = "HINTERLAND_GPU_MODELS";
/// The pool whose objects the mounts of `hinterland run` show, in hexadecimal digits.
const MOUNT_POOL: &str = "HINTERLAND_MOUNT_POOL";
/// Device numbers of these mounts.
const MOUNT_DEVICE: &str = "HINTERLAND_MOUNT_DEVICE";

/// What stands before sixteen hexadecimal digits in the name of a cache file, and behind them in the name of an object's own file.
const CACHE_FILE: &str = "/memfd:hinterland-cache-";
const OWN_FILE: &str = ".bytes";
/// What the kernel puts behind the name of a file that has none any more.
const DELETED: &str = " (deleted)";

/// An object that the node reads by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Known {
    number: u32,
    bytes: u64,
}

/// How an object was found behind a mapping; neither is believed before it was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Candidate {
    /// A file of a mount, whose number is the object's.
    Mount(ObjectId),
    /// A file of the node, by its name.
    File(ObjectId),
}

#[derive(Debug, Default)]
struct Found {
    next: u32,
    objects: HashMap<ObjectId, Option<Known>>,
    files: HashMap<FileIdentity, Option<Known>>,
}

/// What is known of objects of the pool, and how much was copied by name.
#[derive(Debug)]
pub struct Pooled {
    found: Mutex<Found>,
    is_off: AtomicBool,
    mounts: Vec<u64>,
    copies: AtomicU64,
    bytes: AtomicU64,
}

impl Pooled {
    pub(super) fn new() -> Self {
        let text = std::env::var(MOUNT_DEVICE).unwrap_or_default();
        Self {
            found: Mutex::default(),
            is_off: AtomicBool::new(is_set(NO_POOL_COPIES)),
            mounts: text.split(',').filter_map(|number| number.trim().parse().ok()).collect(),
            copies: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    fn candidate(&self, mapping: &FileMapping) -> Option<Candidate> {
        if self.mounts.contains(&mapping.file.device) {
            return Some(Candidate::Mount(ObjectId(mapping.file.inode)));
        }
        object_of_name(&mapping.name).map(Candidate::File)
    }
}

/// The object that a file of a node is of, as its name says.
fn object_of_name(name: &str) -> Option<ObjectId> {
    let name = name.strip_suffix(DELETED).unwrap_or(name);
    let digits = match name.strip_prefix(CACHE_FILE) {
        Some(digits) => digits,
        None => name.rsplit_once('/')?.1.strip_suffix(OWN_FILE)?,
    };
    let is_number = digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_number { u64::from_str_radix(digits, 16).ok().map(ObjectId) } else { None }
}

impl Session {
    /// How many copies went over by name, and their bytes.
    #[must_use]
    pub fn pooled_counters(&self) -> [u64; 2] {
        // Relaxed: counts alone.
        [self.pooled.copies.load(Ordering::Relaxed), self.pooled.bytes.load(Ordering::Relaxed)]
    }

    /// Copies to a device by name, if all of the source is of objects that the node reads; whether it did.
    ///
    /// # Errors
    /// The node is gone.
    pub(super) fn copy_pooled(
        &self,
        stream: &Arc<Stream>,
        to: u64,
        from: u64,
        bytes: u64,
    ) -> Result<bool, Code> {
        // Relaxed: a switch that goes one way; who sees it late asks once more.
        if self.pooled.is_off.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let Some(parts) = self.pooled_parts(from, bytes) else { return Ok(false) };
        let mut address = to;
        for (known, offset, bytes) in parts {
            let message = CopyPooled { stream: stream.number, pooled: known.number, address, offset, bytes };
            self.issue(stream, Effect::Quiet, &message, 0, |_| ())?;
            address += bytes;
            // Relaxed: counts alone.
            self.pooled.copies.fetch_add(1, Ordering::Relaxed);
            // Relaxed: as above.
            self.pooled.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(true)
    }

    /// The source as parts of objects: which, from where on, how many bytes. Nothing if any byte of it may be another.
    fn pooled_parts(&self, from: u64, bytes: u64) -> Option<Vec<(Known, u64, u64)>> {
        let end = from.checked_add(bytes)?;
        let mut parts = Vec::new();
        let mut at = from;
        while at < end {
            let mapping = own_files::mapping_at(at).ok()??;
            // What is written to a shared mapping is written to the file, which then is none of a sealed object.
            if (mapping.is_shared && mapping.is_writable) || parts.len() == PARTS_MAX {
                return None;
            }
            let known = self.pooled_file(&mapping)?;
            let (offset, length) = (mapping.offset + (at - mapping.start), mapping.end.min(end) - at);
            if offset.checked_add(length)? > known.bytes {
                return None;
            }
            if !mapping.is_shared && !own_files::is_all_of_file(at, length).unwrap_or(false) {
                return None;
            }
            parts.push((known, offset, length));
            at += length;
        }
        Some(parts)
    }

    /// The object behind a mapping, if the node reads it.
    fn pooled_file(&self, mapping: &FileMapping) -> Option<Known> {
        let mut found = self.pooled.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = found.files.get(&mapping.file) {
            return *known;
        }
        let candidate = self.pooled.candidate(mapping)?;
        if found.files.len() >= KNOWN_MAX || found.objects.len() >= KNOWN_MAX {
            return None;
        }
        let known = match self.find_out(&mut found, mapping, candidate) {
            Ok(known) => known,
            Err(why) => {
                self.say_pooled(&format!("{}: its bytes are sent: {why}", mapping.name));
                None
            }
        };
        found.files.insert(mapping.file, known);
        known
    }

    /// Looks whether a file is what it seems to be, with the help of the node of this host, and asks the GPU's node for the object.
    fn find_out(
        &self,
        found: &mut Found,
        mapping: &FileMapping,
        candidate: Candidate,
    ) -> Result<Option<Known>, PoolError> {
        // For this question alone: a program may close any descriptor that it finds.
        let pool = connect()?;
        let (Candidate::Mount(id) | Candidate::File(id)) = candidate;
        let object = pool.open_id(id)?;
        match candidate {
            Candidate::Mount(_) => {
                if !is_pool_of_mounts(&pool) {
                    return Ok(None);
                }
                let file = own_files::open_same(mapping)?;
                let known = self.ask_pooled(found, &object, 0);
                if known.is_some() {
                    own_files::keep(&file, PAGE_BYTES)?;
                }
                Ok(known)
            }
            Candidate::File(_) => {
                let (mapped, file) = object.file()?;
                if FileIdentity::of(file.as_fd())? != mapping.file {
                    return Ok(None);
                }
                let known = self.ask_pooled(found, &object, 0);
                if known.is_some() {
                    own_files::keep(&file, mapped.page_bytes)?;
                }
                Ok(known)
            }
        }
    }

    /// Asks the GPU's node whether it reads an object by itself, once for each.
    fn ask_pooled(&self, found: &mut Found, object: &Object, flags: u32) -> Option<Known> {
        let info = object.info();
        if let Some(known) = found.objects.get(&info.object) {
            return *known;
        }
        if info.state != ObjectState::Sealed {
            return None;
        }
        let right = match object.right() {
            Ok(right) => right,
            Err(error) => {
                self.say_pooled(&format!("{}: its bytes are sent: {error}", info.name));
                return None;
            }
        };
        found.next += 1;
        let number = found.next;
        let answer = self.ask(&[], |question| AskPooled {
            question,
            pooled: number,
            flags,
            bytes: info.bytes,
            object: info.object.0,
            pool: object.session().pool().0.to_le_bytes(),
            right,
        });
        let known = match answer {
            Ok(_) => {
                self.say_pooled(&format!("{}: the GPU node reads it from the pool", info.name));
                Some(Known { number, bytes: info.bytes })
            }
            Err(error) => {
                if error == NOT_SUPPORTED {
                    // It has no pool, and will have none for this session.
                    self.pooled.is_off.store(true, Ordering::Relaxed);
                }
                self.say_pooled(&format!(
                    "{}: its bytes are sent: the GPU node does not read it (error {error}; its log says why)",
                    info.name
                ));
                None
            }
        };
        found.objects.insert(info.object, known);
        known
    }

    /// Has the GPU's node fetch the objects that `hinterland run --model` names, while the program gets ready.
    pub(super) fn fetch_models(&self) {
        let Ok(text) = std::env::var(MODELS) else { return };
        if self.pooled.is_off.load(Ordering::Relaxed) {
            return;
        }
        let mut found = self.pooled.found.lock().unwrap_or_else(PoisonError::into_inner);
        let fetch = |found: &mut Found, pool: &Pool, name: &str| -> Result<(), PoolError> {
            let Ok(name) = ObjectName::parse(name) else { return Ok(()) };
            let object = pool.open_object(&name)?;
            self.ask_pooled(found, &object, ALL_SOON);
            Ok(())
        };
        let outcome = connect().and_then(|pool| {
            text.lines().filter(|name| !name.is_empty()).try_for_each(|name| fetch(&mut found, &pool, name))
        });
        if let Err(error) = outcome {
            eprintln!("hinterland: the model is not fetched ahead: {error}");
        }
    }

    fn say_pooled(&self, words: &str) {
        if self.is_verbose {
            eprintln!("hinterland: {words}");
        }
    }
}

/// The node of this host, asked for the same units and budgets as for the mappings.
fn connect() -> Result<Pool, PoolError> {
    let pool = Pool::connect(None)?;
    let ReadPreference { budget_bytes: budget, unit_bytes: unit, .. } = ReadPreference::from_environment();
    if budget.is_some() || unit.is_some() {
        pool.prefer(budget, unit)?;
    }
    Ok(pool)
}

/// Whether the mounts show objects of this pool.
fn is_pool_of_mounts(pool: &Pool) -> bool {
    let said = std::env::var(MOUNT_POOL).ok().and_then(|text| u128::from_str_radix(&text, 16).ok());
    said == Some(pool.session().pool().0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_a_nodes_files_say_an_object() {
        let id = |name| object_of_name(name).map(|object| object.0);
        assert_eq!(id("/memfd:hinterland-cache-00000000000000ff (deleted)"), Some(255));
        assert_eq!(id("/dev/shm/hinterland-1/0000000000000011.bytes"), Some(17));
        assert_eq!(id("/dev/shm/hinterland-1/0000000000000011.bytes (deleted)"), Some(17));
        for other in [
            "",
            "/",
            "/a/b.gguf",
            "/memfd:hinterland-cache (deleted)",
            "/memfd:hinterland-cache-ff (deleted)",
            "/a/11.bytes",
            "/a/000000000000001g.bytes",
            "/a/+000000000000011.bytes",
            "0000000000000011.bytes",
        ] {
            assert_eq!(id(other), None, "{other}");
        }
    }
}
