//! What the file system needs of a pool: names, bytes and room.

use hinterland_proto::PoolId;
use hinterland_proto::control::{FormerPool, ObjectInfo, RenameTarget};
use hinterland_types::{ObjectId, ObjectName, RackName};
use std::fs::File;

/// Why a pool could not answer.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{text}")]
pub struct SourceError {
    /// An `errno` value for the program that asked.
    pub code: i32,
    /// What failed, with what, and what to do; it goes to the log.
    pub text: String,
}

/// Room in the pool, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Space {
    /// What the members lend.
    pub capacity_bytes: u64,
    /// What objects hold.
    pub used_bytes: u64,
}

/// A place to read an object's bytes from.
pub trait ReadAt: Send + Sync {
    /// Fills the whole buffer from `offset`; the range lies within the object.
    ///
    /// # Errors
    /// [`SourceError`] when no copy of the object can be read; the buffer's content is then undefined.
    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError>;
}

/// How an object's bytes are reached.
pub enum Contents {
    /// The object's own file, whole and immutable. Never a cache file: those lose pages.
    OwnFile(File),
    /// Anything else.
    Remote(Box<dyn ReadAt>),
}

/// Where an object is to lie; what is not said is the pool's choice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Placing {
    /// Whole copies, on distinct nodes.
    pub copies: Option<u8>,
    /// The rack of the first one.
    pub rack: Option<RackName>,
}

/// An object that is being written. Dropping it gives up its name and its room; so does the end of this process.
pub trait NewObject: Send {
    /// The identifier that it has and keeps.
    fn object(&self) -> ObjectId;

    /// Takes the bytes that follow.
    ///
    /// # Errors
    /// [`SourceError`], `ENOSPC` if there is no room; then nothing but dropping it makes sense.
    fn write(&mut self, bytes: &[u8]) -> Result<(), SourceError>;

    /// Reads back what was written.
    ///
    /// # Errors
    /// [`SourceError`] if no home answers.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError>;

    /// Gives back the name that it has taken and takes another one.
    ///
    /// # Errors
    /// [`SourceError`]; it has its name still.
    fn rename(&mut self, from: &ObjectName, to: &ObjectName) -> Result<(), SourceError>;

    /// Takes the name that another one has taken, which gets the one of this: neither is free at any moment.
    ///
    /// # Errors
    /// [`SourceError`]; each has its name still.
    fn exchange_names(
        &mut self,
        from: &ObjectName,
        other: ObjectId,
        to: &ObjectName,
    ) -> Result<(), SourceError>;

    /// Starts again at the first byte; the room stays.
    fn rewind(&mut self);

    /// Makes sure that there is room for so many bytes.
    ///
    /// # Errors
    /// [`SourceError`], `ENOSPC` if there is none.
    fn reserve(&mut self, bytes: u64) -> Result<(), SourceError>;

    /// Whether the pool can no longer be reached, as far as is known without asking it.
    fn is_lost(&self) -> bool;

    /// Makes it visible, whole, under a name that it need not have taken. What has the name is removed in the same moment.
    ///
    /// # Errors
    /// [`SourceError`]; nothing is left behind then, and what has the name keeps it.
    fn publish(self: Box<Self>, name: &ObjectName) -> Result<ObjectInfo, SourceError>;
}

/// A pool as the file system sees it.
pub trait Source: Send + Sync + 'static {
    /// Which pool it is.
    fn pool(&self) -> PoolId;

    /// The pools that objects of this one were in before.
    ///
    /// # Errors
    /// [`SourceError`] when the pool cannot tell.
    fn former_pools(&self) -> Result<Vec<FormerPool>, SourceError> {
        Ok(Vec::new())
    }

    /// The object of this name, if there is one.
    ///
    /// # Errors
    /// [`SourceError`] when the pool cannot tell.
    fn stat(&self, name: &ObjectName) -> Result<Option<ObjectInfo>, SourceError>;

    /// Objects whose names start with `prefix` and sort behind `after`, at most `limit` of them and sorted
    /// by name, and whether there are more.
    ///
    /// # Errors
    /// [`SourceError`] when the pool cannot tell.
    fn list(
        &self,
        prefix: &str,
        after: Option<&ObjectName>,
        limit: u32,
    ) -> Result<(Vec<ObjectInfo>, bool), SourceError>;

    /// Opens an object for reading. Its bytes stay readable until the result is dropped, even if the
    /// object is removed meanwhile.
    ///
    /// # Errors
    /// [`SourceError`] when it cannot be opened.
    fn open(&self, info: &ObjectInfo) -> Result<Contents, SourceError>;

    /// Room in the whole pool.
    ///
    /// # Errors
    /// [`SourceError`] when the pool cannot tell.
    fn space(&self) -> Result<Space, SourceError>;

    /// Takes a name for an object that is to be written.
    ///
    /// # Errors
    /// [`SourceError`], `EEXIST` if the name is taken; `EROFS` of a source that only reads.
    fn create(&self, name: &ObjectName, _placing: &Placing) -> Result<Box<dyn NewObject>, SourceError> {
        Err(read_only(name))
    }

    /// As [`create`](Self::create), where there is room for so many bytes.
    ///
    /// # Errors
    /// As [`create`](Self::create); `ENOSPC` if that is nowhere.
    fn create_with_room(
        &self,
        name: &ObjectName,
        placing: &Placing,
        bytes: u64,
    ) -> Result<Box<dyn NewObject>, SourceError> {
        let mut put = self.create(name, placing)?;
        put.reserve(bytes)?;
        Ok(put)
    }

    /// Gives an object another name, in one step, and no other object that has its name by then.
    ///
    /// # Errors
    /// [`SourceError`], `ENOENT` if it has not that name, `EEXIST` if something has the other one and is to keep it;
    /// `EROFS` of a source that only reads.
    fn rename(
        &self,
        _object: ObjectId,
        from: &ObjectName,
        _to: &ObjectName,
        _target: RenameTarget,
    ) -> Result<(), SourceError> {
        Err(read_only(from))
    }

    /// Renames all objects below a folder, in one step. Nothing may have the other name.
    ///
    /// # Errors
    /// As [`rename`](Self::rename); `ENOENT` if nothing lies below it.
    fn rename_folder(&self, from: &ObjectName, _to: &ObjectName) -> Result<(), SourceError> {
        Err(read_only(from))
    }

    /// Removes an object, and no other that has its name by then; who has it open keeps reading.
    ///
    /// # Errors
    /// [`SourceError`], `ENOENT` if it has not that name; `EROFS` of a source that only reads.
    fn remove(&self, name: &ObjectName, _object: ObjectId) -> Result<(), SourceError> {
        Err(read_only(name))
    }
}

fn read_only(name: &ObjectName) -> SourceError {
    const EROFS: i32 = 30;
    let text = format!("{name} lies in a pool that is only read (hint: mount it with --writable)");
    SourceError { code: EROFS, text }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use hinterland_proto::control::ObjectState;
    use hinterland_types::ObjectId;

    /// A sealed object without homes.
    pub(crate) fn object(id: u64, name: &str, bytes: u64) -> ObjectInfo {
        ObjectInfo {
            object: ObjectId(id),
            name: ObjectName::parse(name).unwrap(),
            state: ObjectState::Sealed,
            bytes,
            address: None,
            copies: 1,
            homes: Vec::new(),
            digest: [0; 32],
        }
    }

    /// A source of names only.
    pub(crate) struct Names(pub(crate) Vec<ObjectInfo>);

    impl Source for Names {
        fn pool(&self) -> PoolId {
            PoolId(1)
        }

        fn stat(&self, name: &ObjectName) -> Result<Option<ObjectInfo>, SourceError> {
            Ok(self.0.iter().find(|info| info.name == *name).cloned())
        }

        fn list(
            &self,
            prefix: &str,
            after: Option<&ObjectName>,
            limit: u32,
        ) -> Result<(Vec<ObjectInfo>, bool), SourceError> {
            let mut found: Vec<ObjectInfo> = self
                .0
                .iter()
                .filter(|info| info.name.as_str().starts_with(prefix))
                .filter(|info| after.is_none_or(|after| info.name > *after))
                .cloned()
                .collect();
            found.sort_by(|a, b| a.name.cmp(&b.name));
            let more = found.len() > limit as usize;
            found.truncate(limit as usize);
            Ok((found, more))
        }

        fn open(&self, info: &ObjectInfo) -> Result<Contents, SourceError> {
            Err(SourceError { code: 5, text: format!("{} has no bytes", info.name) })
        }

        fn space(&self) -> Result<Space, SourceError> {
            Ok(Space::default())
        }
    }
}
