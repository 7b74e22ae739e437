//! Symbolic links: objects of one size that say where they lead, and that they are links.
//!
//! A pool keeps names and bytes, so a link is an object like any other, and is listed, renamed and removed as one. Only objects of
//! [`LINK_BYTES`] have to be read to tell what they are. Their bytes hold a mark that is made of the pool, the object and where it leads:
//! who may choose the bytes of a file, and not more, makes no link of it, and a copy of the bytes of a link is a file.

use crate::draft::hidden_name;
use crate::filesystem::{Found, PoolFiles, logged};
use crate::open_files::OpenFile;
use crate::opening::Opening;
use crate::source::SourceError;
use crate::tree::{Entry, inode_of};
use fuser::{Errno, INodeNo};
use hinterland_proto::PoolId;
use hinterland_proto::control::{FormerPool, ObjectInfo};
use hinterland_types::ObjectId;
use nix::libc;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// What a link's bytes start with, for people who look at them.
const HEADER: &[u8] = b"Hinterland symbolic link\n";
/// The mark, in hexadecimal digits, with the end of its line.
const MARK_BYTES: usize = 65;
/// The longest path that Linux takes: where a link may lead.
const TARGET_BYTES_MAX: usize = 4095;
/// How many bytes each link has: room for the longest, and a number that few files have by chance.
pub(crate) const LINK_BYTES: u64 = 4219;
const _: () = assert!(HEADER.len() + MARK_BYTES + TARGET_BYTES_MAX < LINK_BYTES as usize);
/// What the marks of links are told from other digests by.
const MARK_CONTEXT: &str = "hinterland 2026-11-30 mark of a symbolic link";

/// The bytes of a link; nothing if they cannot say where it leads.
fn encoded(pool: PoolId, object: ObjectId, target: &[u8]) -> Option<Vec<u8>> {
    if target.is_empty() || target.len() > TARGET_BYTES_MAX || target.contains(&0) {
        return None;
    }
    let mut bytes = HEADER.to_vec();
    bytes.extend_from_slice(mark(pool, object, target).to_hex().as_bytes());
    bytes.push(b'\n');
    bytes.extend_from_slice(target);
    bytes.resize(LINK_BYTES as usize, 0);
    Some(bytes)
}

/// Where an object leads by its bytes; nothing if it is no link.
fn decoded(pool: PoolId, object: ObjectId, bytes: &[u8]) -> Option<&[u8]> {
    let target = bytes.get(HEADER.len() + MARK_BYTES..)?;
    let target = &target[..target.iter().position(|byte| *byte == 0)?];
    (encoded(pool, object, target)? == bytes).then_some(target)
}

fn mark(pool: PoolId, object: ObjectId, target: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_derive_key(MARK_CONTEXT);
    hasher.update(&pool.0.to_le_bytes()).update(&object.0.to_le_bytes()).update(target);
    hasher.finalize()
}

impl PoolFiles {
    /// Makes a link, whole, and only where nothing has the name.
    pub(crate) fn make_link(
        &self,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        opening: &Opening<'_>,
    ) -> Result<Found, Errno> {
        let path = self.path(parent, name)?;
        let name = self.new_name(&path)?;
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let said = |error: SourceError| logged("linking", &path, &error);
        let hidden = hidden_name().map_err(said)?;
        let mut put = self.source.create(&hidden, &self.remembered.placing(folder)).map_err(said)?;
        let target = target.as_os_str().as_bytes();
        let bytes = encoded(self.source.pool(), put.object(), target).ok_or(Errno::ENAMETOOLONG)?;
        put.write(&bytes).map_err(said)?;
        let _names = self.names();
        match self.drafts.at(&path) {
            Some(draft) if !draft.lock().has_failed() => return Err(Errno::EEXIST),
            Some(failed) => self.drafts.remove_name(&path, failed.inode),
            None => {}
        }
        put.rename(&hidden, &name).map_err(|error| match error.code {
            libc::EEXIST => Errno::EEXIST,
            _ => said(error),
        })?;
        let info = put.publish(&name).map_err(said)?;
        self.remembered.set_file(info.object.0, opening.marks());
        self.touch_folder(folder);
        self.enter_link(&info, target.into()).ok_or(Errno::EIO)
    }

    /// Where a link leads.
    pub(crate) fn read_link(&self, inode: INodeNo) -> Result<Arc<[u8]>, Errno> {
        match self.entry(inode)? {
            Entry::Link(target) => Ok(target),
            Entry::File(_) | Entry::Folder(_) => Err(Errno::EINVAL),
        }
    }

    /// Where an object leads; nothing if it is no link.
    ///
    /// # Errors
    /// [`SourceError`] if its bytes cannot be read, `ENOENT` if it has just gone.
    pub(crate) fn target(&self, info: &ObjectInfo) -> Result<Option<Arc<[u8]>>, SourceError> {
        if info.bytes != LINK_BYTES {
            return Ok(None);
        }
        // Objects never change.
        if let Some(Entry::Link(target)) = inode_of(info).and_then(|inode| self.tree().entry(inode)) {
            return Ok(Some(target));
        }
        self.source.open(info).and_then(|file| self.target_in(info, &OpenFile::plain(file)))
    }

    /// The same of an object that is open.
    pub(crate) fn target_in(
        &self,
        info: &ObjectInfo,
        file: &OpenFile,
    ) -> Result<Option<Arc<[u8]>>, SourceError> {
        if info.bytes != LINK_BYTES {
            return Ok(None);
        }
        let mut bytes = vec![0; LINK_BYTES as usize];
        file.read_exact_at(0, &mut bytes)?;
        Ok(self.target_of(info.object, &bytes)?.map(Arc::from))
    }

    /// Where an object leads by its bytes. One that was brought here from a pool that is no more has the mark of that one.
    fn target_of<'bytes>(
        &self,
        object: ObjectId,
        bytes: &'bytes [u8],
    ) -> Result<Option<&'bytes [u8]>, SourceError> {
        let found = decoded(self.source.pool(), object, bytes);
        // What does not say that it is a link is none in any pool.
        if found.is_some() || !bytes.starts_with(HEADER) {
            return Ok(found);
        }
        if let Some(found) = self.former_pools.target(object, bytes) {
            return Ok(Some(found));
        }
        // Nodes may have brought more since.
        self.former_pools.learn(self.source.former_pools()?);
        Ok(self.former_pools.target(object, bytes))
    }
}

/// The pools that objects were in before, as far as was heard.
#[derive(Default)]
pub(crate) struct FormerPools(Mutex<Vec<FormerPool>>);

impl FormerPools {
    fn learn(&self, known: Vec<FormerPool>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = known;
    }

    /// Where an object of one of them leads. No object that was made here later is: who knows bytes of links of before could choose them.
    fn target<'bytes>(&self, object: ObjectId, bytes: &'bytes [u8]) -> Option<&'bytes [u8]> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut candidates = known.iter().filter(|former| object <= former.last);
        candidates.find_map(|former| decoded(former.pool, object, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const POOL: PoolId = PoolId(7);
    const OBJECT: ObjectId = ObjectId(9);

    #[test]
    fn only_what_can_be_a_path_is_where_a_link_leads() {
        for target in [&b""[..], b"a\0b", &[b'x'; TARGET_BYTES_MAX + 1]] {
            assert_eq!(encoded(POOL, OBJECT, target), None);
        }
        assert!(encoded(POOL, OBJECT, &[b'x'; TARGET_BYTES_MAX]).is_some());
    }

    #[test]
    fn the_bytes_of_a_link_are_one_in_no_other_object_and_no_other_pool() {
        let bytes = encoded(POOL, OBJECT, b"../there").unwrap();
        assert_eq!(decoded(POOL, OBJECT, &bytes), Some(&b"../there"[..]));
        assert_eq!(decoded(PoolId(8), OBJECT, &bytes), None);
        assert_eq!(decoded(POOL, ObjectId(10), &bytes), None);
    }

    #[test]
    fn a_link_of_a_pool_of_before_is_one_up_to_the_last_object_that_came_from_there() {
        let bytes = encoded(POOL, OBJECT, b"../there").unwrap();
        let pools = FormerPools::default();
        assert_eq!(pools.target(OBJECT, &bytes), None);
        let of = |pool, last| FormerPool { pool: PoolId(pool), last: ObjectId(last) };
        pools.learn(vec![of(5, 100), of(7, 9)]);
        assert_eq!(pools.target(OBJECT, &bytes), Some(&b"../there"[..]));
        pools.learn(vec![of(5, 100), of(7, 8)]);
        assert_eq!(pools.target(OBJECT, &bytes), None);
    }

    proptest! {
        #[test]
        fn a_link_leads_where_it_was_made_to_lead(target in proptest::collection::vec(1u8.., 1..=TARGET_BYTES_MAX)) {
            let bytes = encoded(POOL, OBJECT, &target).unwrap();
            prop_assert_eq!(bytes.len() as u64, LINK_BYTES);
            prop_assert_eq!(decoded(POOL, OBJECT, &bytes), Some(&target[..]));
        }

        #[test]
        fn one_other_byte_makes_it_a_file(at in 0..LINK_BYTES as usize, other in 1u8..) {
            let mut bytes = encoded(POOL, OBJECT, b"there").unwrap();
            bytes[at] ^= other;
            prop_assert_eq!(decoded(POOL, OBJECT, &bytes), None);
        }

        #[test]
        fn no_bytes_make_it_fail(bytes in proptest::collection::vec(any::<u8>(), 0..5000)) {
            prop_assert_eq!(decoded(POOL, OBJECT, &bytes), None);
        }
    }
}
