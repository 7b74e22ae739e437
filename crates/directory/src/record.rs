//! The durable records: what stands in the store, table by table.
//!
//! Keys are big-endian, values are postcard (integers are LEB128 from 128 up, an enum is the number of its
//! variant and then its fields, in the order of the types below):
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `meta` | the four bytes `meta` | format (first, so that any version can read it), next object id, next epoch |
//! | `members` | node id, 8 bytes | rack, address, capacity in bytes, incarnation, state |
//! | `objects` | object id, 8 bytes | name, copies, bytes, homes (node, epoch, complete), stage with what belongs to it |
//! | `names` | the name, UTF-8 | object id |
//! | `pages` | first page number, 4 bytes | page count, object id |
//!
//! `names` and `pages` follow from `objects` and are kept so that recovery can compare them: a store in
//! which they disagree is refused.

use crate::{ContentDigest, PageRun, Writer};
use hinterland_types::limits::{BASE_PAGE_BYTES, PAGE_BYTES};
use hinterland_types::{Epoch, NodeId, ObjectId, ObjectName, PageNumber, RackName};
use serde::{Deserialize, Serialize};

/// Version of the records; another one is refused at recovery.
pub(crate) const FORMAT: u32 = 1;
/// First object identifier: identifiers are inode numbers in mounts, where 1 is the root.
const OBJECT_FIRST: u64 = 16;
/// Key of the only record in [`Table::Meta`].
pub(crate) const META_KEY: &[u8] = b"meta";

/// A table of the store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Table {
    /// Format and counters: one record.
    Meta,
    /// Node to member.
    Members,
    /// Object id to object.
    Objects,
    /// Name to object id.
    Names,
    /// First page to page count and owner.
    Pages,
}

impl Table {
    /// All tables, in the order of the enum.
    pub const ALL: [Self; 5] = [Self::Meta, Self::Members, Self::Objects, Self::Names, Self::Pages];

    /// The table's name in the store.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Meta => "meta",
            Self::Members => "members",
            Self::Objects => "objects",
            Self::Names => "names",
            Self::Pages => "pages",
        }
    }
}

/// One change of the store. Keys of numbers are big-endian, so that the store's order is theirs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mutation {
    /// The table.
    pub table: Table,
    /// The key.
    pub key: Vec<u8>,
    /// The value to put, or `None` to delete the key.
    pub value: Option<Vec<u8>>,
}

/// One key and value of the store, as recovery reads it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The table.
    pub table: Table,
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
}

/// Whether a member serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MemberState {
    /// It has joined and said what it holds up to this object; it serves nothing yet.
    Joining {
        /// The last object that its list has covered.
        through: ObjectId,
    },
    /// It serves.
    Up,
    /// Its lease ran out or it left for a while; its copies are remembered.
    Down,
}

/// A member of the pool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct MemberRecord {
    pub(crate) rack: RackName,
    pub(crate) address: String,
    pub(crate) capacity_bytes: u64,
    pub(crate) incarnation: u64,
    pub(crate) state: MemberState,
}

/// A copy of an object on a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Home {
    /// The node.
    pub node: NodeId,
    /// Given when the copy was placed, never twice: a late message about an older copy is told apart by it.
    pub epoch: Epoch,
    /// Whether the node holds all bytes; `false` while they are being written or copied there.
    pub complete: bool,
}

/// Where an object is in its life, with what belongs to that stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Stage {
    /// A put is going on.
    Writing {
        /// Who writes.
        writer: Writer,
    },
    /// Complete.
    Sealed {
        /// Digest of the content.
        digest: ContentDigest,
        /// Its addresses.
        pages: PageRun,
    },
    /// Written in place.
    Mutable {
        /// Its addresses.
        pages: PageRun,
    },
    /// Removed or aborted; addresses are kept until every home has let go.
    Removing {
        /// The addresses that it had.
        pages: Option<PageRun>,
    },
}

/// An object in any stage of its life.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ObjectRecord {
    pub(crate) name: ObjectName,
    /// Copies that were asked for.
    pub(crate) copies: u8,
    /// Size; while it is being written, the bytes reserved.
    pub(crate) bytes: u64,
    pub(crate) homes: Vec<Home>,
    pub(crate) stage: Stage,
}

impl ObjectRecord {
    /// Whether the name leads here.
    pub(crate) fn claims_name(&self) -> bool {
        !matches!(self.stage, Stage::Removing { .. })
    }

    /// The addresses that nobody else may have.
    pub(crate) fn pages(&self) -> Option<PageRun> {
        match self.stage {
            Stage::Writing { .. } => None,
            Stage::Sealed { pages, .. } | Stage::Mutable { pages } => Some(pages),
            Stage::Removing { pages } => pages,
        }
    }

    pub(crate) fn home(&self, node: NodeId) -> Option<&Home> {
        self.homes.iter().find(|home| home.node == node)
    }
}

/// Owner of a run of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PageRecord {
    pub(crate) count: u32,
    pub(crate) object: ObjectId,
}

/// Format and counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct MetaRecord {
    pub(crate) format: u32,
    pub(crate) next_object: u64,
    pub(crate) next_epoch: u64,
}

impl Default for MetaRecord {
    fn default() -> Self {
        // Identifiers below the first are never given: 0 means "before the first" in lists.
        Self { format: FORMAT, next_object: OBJECT_FIRST, next_epoch: 1 }
    }
}

/// A typed change, of which [`Mutation`] is the stored form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    Meta(MetaRecord),
    Member(NodeId, Option<MemberRecord>),
    Object(ObjectId, Option<ObjectRecord>),
    Name(ObjectName, Option<ObjectId>),
    Pages(PageNumber, Option<PageRecord>),
}

impl Change {
    pub(crate) fn mutation(&self) -> Mutation {
        let (table, key, value) = match self {
            Self::Meta(meta) => (Table::Meta, META_KEY.to_vec(), Some(encode(meta))),
            Self::Member(node, member) => {
                (Table::Members, node.0.to_be_bytes().to_vec(), member.as_ref().map(encode))
            }
            Self::Object(id, object) => {
                (Table::Objects, id.0.to_be_bytes().to_vec(), object.as_ref().map(encode))
            }
            Self::Name(name, id) => {
                (Table::Names, name.as_str().as_bytes().to_vec(), id.as_ref().map(encode))
            }
            Self::Pages(first, owner) => {
                (Table::Pages, first.raw().to_be_bytes().to_vec(), owner.as_ref().map(encode))
            }
        };
        Mutation { table, key, value }
    }
}

fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_allocvec(value).expect("plain records in memory always encode") // no I/O and no map or length is unknown
}

/// Bytes that a node sets aside for an object of this size.
///
/// From 2 MiB up an object is a file of its own in whole pages; below, it lies in slabs of 4 KiB pieces.
pub const fn charged_bytes(size: u64) -> u64 {
    let unit = if size < PAGE_BYTES { BASE_PAGE_BYTES } else { PAGE_BYTES };
    size.div_ceil(unit).saturating_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_objects_are_charged_in_base_pages_and_large_ones_in_pages() {
        assert_eq!(charged_bytes(0), 0);
        assert_eq!(charged_bytes(1), 4096);
        assert_eq!(charged_bytes(PAGE_BYTES - 1), PAGE_BYTES);
        assert_eq!(charged_bytes(PAGE_BYTES), PAGE_BYTES);
        assert_eq!(charged_bytes(PAGE_BYTES + 1), 2 * PAGE_BYTES);
    }
}
