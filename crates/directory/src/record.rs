//! The durable records: what stands in the store, table by table.
//!
//! Keys are big-endian, values are postcard (integers are LEB128 from 128 up, an enum is the number of its
//! variant and then its fields, in the order of the types below):
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `meta` | the four bytes `meta` | format (first, so that any version can read it), next object id, next epoch |
//! | `meta` | the twelve bytes `meta-doubted` | first object id and the one behind the last, of each run: numbers that a store gave of which nothing is known here |
//! | `meta` | the nineteen bytes `meta-doubted-epochs` | first epoch and the one behind the last: epochs that a store gave, or may have given, of which nothing is known here |
//! | `meta` | the eleven bytes `meta-former` | pools that objects were in before, ascending, each with the highest number of an object that came from it; most stores have none |
//! | `members` | node id, 8 bytes | rack, address, capacity in bytes, incarnation, state; and its name, if it has given one |
//! | `objects` | object id, 8 bytes | name, copies, bytes, homes (node, epoch, a byte: see [`Home`]), stage with what belongs to it |
//! | `names` | the name, UTF-8 | object id |
//! | `pages` | first page number, 4 bytes | page count, object id |
//! | `regions` | object id, 8 bytes | base rule: nodes with the epochs of their parts; pages charged to each node |
//! | `homes` | page number, 4 bytes | object id, node, epoch: a page that is not where the base rule says |
//! | `moves` | page number, 4 bytes | object id, from node, to node, epoch, incarnation of the latter |
//! | `answers` | node id, 8 bytes, slot, 2 bytes | incarnation and number of the request, the answer; only where several hosts share a store |
//! | `claims` | object id, 8 bytes | epoch up to which the node that brought the object back knew its name; only of those that were |
//!
//! `names` and `pages` follow from `objects` and are kept so that recovery can compare them: a store in
//! which they disagree is refused. A region without a record in `regions` lies on its one home. Format 1 had
//! neither `regions` nor `homes` nor `moves`, and nothing else differs, so a store of it is read as it is. Up to format 2
//! the byte of a home was only 0 or 1: such a store is read as it is too, and an older release refuses one that may have others.
//! Format 4 is that of stores with one of the last three records of `meta`, and format 5 that of those with several runs of numbers, or a member with a name; all others are
//! written in format 3. Those three stand behind the format in the store's order: a release that does not know them refuses the format before it
//! meets them. A store of format 3 may have them without the `meta-` in front, as they were written at first.

use crate::former::FormerPools;
use crate::{ContentDigest, PageRun, Reply, Writer};
use hinterland_types::limits::{BASE_PAGE_BYTES, PAGE_BYTES};
use hinterland_types::{Epoch, NodeId, NodeName, ObjectId, ObjectName, PageNumber, RackName};
use serde::{Deserialize, Serialize};

/// Version of the records that is written where several runs of numbers are in doubt, or a member has a name.
pub(crate) const FORMAT: u32 = 5;
/// Version that is written where there is something in doubt, or pools of before, and no member has a name.
const FORMAT_DOUBTED: u32 = 4;
/// Version that is written where there is nothing of that kind: an older release reads it as well.
const FORMAT_PLAIN: u32 = 3;
/// Oldest version that can be read; what is older or newer is refused at recovery.
pub(crate) const FORMAT_OLDEST: u32 = 1;
/// First object identifier: identifiers are inode numbers in mounts, where 1 is the root.
pub(crate) const OBJECT_FIRST: u64 = 16;
/// Key of the record in [`Table::Meta`] that every store has.
pub(crate) const META_KEY: &[u8] = b"meta";
/// Key of the objects in doubt ([`Runs`]) in [`Table::Meta`]; most stores have none.
pub(crate) const DOUBTED_KEY: &[u8] = b"meta-doubted";
/// Key of the epochs in doubt (a [`Doubted`]) in [`Table::Meta`]; most stores have none.
pub(crate) const DOUBTED_EPOCHS_KEY: &[u8] = b"meta-doubted-epochs";
/// Key of the pools of before in [`Table::Meta`]; most stores have none.
pub(crate) const FORMER_KEY: &[u8] = b"meta-former";
/// What the last three keys were at first, in their order: they stand before the format, which a release that does not know them never comes to.
pub(crate) const OUTDATED_KEYS: [&[u8]; 3] = [b"doubted", b"doubted-epochs", b"former"];

/// A table of the store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Table {
    /// Format and counters, the numbers in doubt, and the pools of before: a record each.
    Meta,
    /// Node to member.
    Members,
    /// Object id to object.
    Objects,
    /// Name to object id.
    Names,
    /// First page to page count and owner.
    Pages,
    /// Object id to the base rule of a region.
    Regions,
    /// Page to the node that it has moved to.
    Homes,
    /// Page to the move that is going on.
    Moves,
    /// Node and slot to the last request that was carried out for it, with its answer.
    Answers,
    /// Object id, of one that was found, to the epoch up to which its name was known.
    Claims,
}

impl Table {
    /// All tables, in the order of the enum.
    pub const ALL: [Self; 10] = [
        Self::Meta,
        Self::Members,
        Self::Objects,
        Self::Names,
        Self::Pages,
        Self::Regions,
        Self::Homes,
        Self::Moves,
        Self::Answers,
        Self::Claims,
    ];

    /// The table's name in the store.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Meta => "meta",
            Self::Members => "members",
            Self::Objects => "objects",
            Self::Names => "names",
            Self::Pages => "pages",
            Self::Regions => "regions",
            Self::Homes => "homes",
            Self::Moves => "moves",
            Self::Answers => "answers",
            Self::Claims => "claims",
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

/// A member of the pool. What it is called stands behind the rest in the store, and only if it has said so.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MemberRecord {
    pub(crate) rack: RackName,
    pub(crate) address: String,
    pub(crate) capacity_bytes: u64,
    pub(crate) incarnation: u64,
    pub(crate) state: MemberState,
    pub(crate) name: Option<NodeName>,
}

/// What the store has of every member.
#[derive(Serialize, Deserialize)]
struct Nameless(RackName, String, u64, u64, MemberState);

impl MemberRecord {
    /// Its value in the store.
    fn encode(&self) -> Vec<u8> {
        let Self { rack, address, capacity_bytes, incarnation, state, name } = self.clone();
        let mut bytes = encode(&Nameless(rack, address, capacity_bytes, incarnation, state));
        bytes.extend(name.iter().flat_map(encode));
        bytes
    }

    /// Reads a value of the store; `None` if it is none.
    pub(crate) fn decode(value: &[u8]) -> Option<Self> {
        let (Nameless(rack, address, capacity_bytes, incarnation, state), rest) =
            postcard::take_from_bytes(value).ok()?;
        let name = match rest {
            [] => None,
            _ => match postcard::take_from_bytes(rest).ok()? {
                (name, []) => Some(name),
                _ => return None,
            },
        };
        Some(Self { rack, address, capacity_bytes, incarnation, state, name })
    }
}

/// A copy of an object on a node. In the store its two flags are one byte: bit 0 for `complete`, bit 1 for `heat`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "(NodeId, Epoch, u8)", into = "(NodeId, Epoch, u8)")]
pub struct Home {
    /// The node.
    pub node: NodeId,
    /// Given when the copy was placed, never twice: a late message about an older copy is told apart by it.
    pub epoch: Epoch,
    /// Whether the node holds all bytes; `false` while they are being written or copied there.
    pub complete: bool,
    /// Whether it is a heat copy: there because its rack reads the object a lot, beside the copies that were asked for. It counts as
    /// none of those and is charged to nobody, because its node drops it as soon as it needs the room.
    pub heat: bool,
}

/// A byte of a home that no release has written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0} is no byte of a home (hint: it was written by a later release; use that one)")]
pub struct BadHome(u8);

impl TryFrom<(NodeId, Epoch, u8)> for Home {
    type Error = BadHome;
    fn try_from((node, epoch, flags): (NodeId, Epoch, u8)) -> Result<Self, BadHome> {
        let home = Self { node, epoch, complete: flags & 1 != 0, heat: flags & 2 != 0 };
        if flags > 3 { Err(BadHome(flags)) } else { Ok(home) }
    }
}

impl From<Home> for (NodeId, Epoch, u8) {
    fn from(home: Home) -> Self {
        (home.node, home.epoch, u8::from(home.complete) | u8::from(home.heat) << 1)
    }
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
    /// A region whose memory is being made: it has its name, addresses and room, and nobody sees it.
    Making {
        /// Who makes it; it vanishes as what that one writes.
        writer: Writer,
        /// Its addresses.
        pages: PageRun,
    },
}

impl Stage {
    /// Who has to finish it.
    pub(crate) const fn writer(&self) -> Option<Writer> {
        match self {
            Self::Writing { writer } | Self::Making { writer, .. } => Some(*writer),
            Self::Sealed { .. } | Self::Mutable { .. } | Self::Removing { .. } => None,
        }
    }
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
            Stage::Sealed { pages, .. } | Stage::Mutable { pages } | Stage::Making { pages, .. } => {
                Some(pages)
            }
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

/// How a region lies: present as soon as it is on more nodes than one, or was.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct RegionRecord {
    /// The nodes over which a hash spreads its pages, with the epochs of their parts.
    pub(crate) base: Vec<(NodeId, Epoch)>,
    /// Pages that are charged to each node, ascending by node: those that it has and those that are coming.
    pub(crate) charged: Vec<(NodeId, u32)>,
}

impl RegionRecord {
    /// Where a page lies that has never moved.
    pub(crate) fn base_home(&self, page: PageNumber) -> Option<(NodeId, Epoch)> {
        self.base.get(spread(page, self.base.len())?).copied()
    }

    pub(crate) fn pages_on(&self, node: NodeId) -> u32 {
        let place = self.charged.binary_search_by_key(&node, |(other, _)| *other);
        place.map_or(0, |place| self.charged[place].1)
    }

    /// Charges a page more to a node.
    pub(crate) fn add(&mut self, node: NodeId) {
        match self.charged.binary_search_by_key(&node, |(other, _)| *other) {
            Ok(place) => self.charged[place].1 += 1,
            Err(place) => self.charged.insert(place, (node, 1)),
        }
    }

    /// Charges a page less to a node.
    pub(crate) fn take(&mut self, node: NodeId) {
        if let Ok(place) = self.charged.binary_search_by_key(&node, |(other, _)| *other) {
            self.charged[place].1 = self.charged[place].1.saturating_sub(1);
            if self.charged[place].1 == 0 {
                self.charged.remove(place);
            }
        }
    }
}

/// Which of `nodes` nodes a page of a region lies on that is spread over them: a hash of its number, so that neither a
/// sequence nor a stride falls on one node. `None` without nodes.
pub fn spread(page: PageNumber, nodes: usize) -> Option<usize> {
    // A remainder of a count fits the count's type.
    (mix(u64::from(page.raw())) % 1.max(nodes as u64)).try_into().ok().filter(|_| nodes > 0)
}

/// A number that depends on all bits of the input: the mixer of the generator that is known as splitmix64.
pub(crate) fn mix(input: u64) -> u64 {
    let mut hash = input.wrapping_add(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// Where a page lies that has moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PageHomeRecord {
    pub(crate) object: ObjectId,
    pub(crate) node: NodeId,
    pub(crate) epoch: Epoch,
}

/// A move that is going on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PageMoveRecord {
    pub(crate) object: ObjectId,
    pub(crate) from: NodeId,
    pub(crate) to: NodeId,
    /// What the page will have at its new home.
    pub(crate) epoch: Epoch,
    /// The life of the new home that asked for it.
    pub(crate) incarnation: u64,
}

/// The last request that was carried out for a slot of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct AnswerRecord {
    pub(crate) incarnation: u64,
    pub(crate) number: u64,
    pub(crate) reply: Reply,
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
        Self { format: FORMAT_PLAIN, next_object: OBJECT_FIRST, next_epoch: 1 }
    }
}

/// The version in which a store is written that has these records.
pub(crate) fn format_of(
    doubted: &Runs,
    doubted_epochs: Option<Doubted<Epoch>>,
    former: &FormerPools,
    has_names: bool,
) -> u32 {
    match doubted.0.len() {
        _ if has_names => FORMAT,
        0 if doubted_epochs.is_none() && former.is_empty() => FORMAT_PLAIN,
        0 | 1 => FORMAT_DOUBTED,
        _ => FORMAT,
    }
}

/// Numbers, of objects or epochs, that this store has not given, and that an earlier one gave, or may have given, which knew more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Doubted<T> {
    pub(crate) first: T,
    /// The one behind the last.
    pub(crate) end: T,
}

impl<T: Copy + Ord> Doubted<T> {
    pub(crate) fn contains(&self, number: T) -> bool {
        (self.first..self.end).contains(&number)
    }

    /// The smallest run that holds both. What was given here in between is recorded, or was.
    pub(crate) fn with(self, other: Self) -> Self {
        Self { first: self.first.min(other.first), end: self.end.max(other.end) }
    }
}

/// Most runs of numbers that are kept apart: some hundred bytes, which are looked through for each copy that a node names.
const RUNS_MAX: usize = 64;

/// All numbers of objects in doubt: runs, ascending, with numbers between them that are in no doubt. What is gone of those was removed here.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Runs(Vec<Doubted<ObjectId>>);

impl Runs {
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, object: ObjectId) -> bool {
        self.0.iter().any(|run| run.contains(object))
    }

    /// Adds a run. Where there are too many, the two that lie next to each other become one: about a number between them somebody is asked in
    /// vain, and nothing is lost.
    pub(crate) fn add(&mut self, run: Doubted<ObjectId>) {
        let is_apart = |other: &Doubted<ObjectId>| other.end < run.first || run.end < other.first;
        let joined = self.0.extract_if(.., |other| !is_apart(other)).fold(run, Doubted::with);
        let place = self.0.partition_point(|other| other.first < joined.first);
        self.0.insert(place, joined);
        if self.0.len() > RUNS_MAX {
            let gap = |place: &usize| self.0[place + 1].first.0 - self.0[*place].end.0;
            if let Some(place) = (0..self.0.len() - 1).min_by_key(gap) {
                let next = self.0.remove(place + 1);
                self.0[place] = self.0[place].with(next);
            }
        }
    }

    fn encode(&self) -> Vec<u8> {
        self.0.iter().flat_map(encode).collect()
    }

    /// Reads what was encoded; nothing else.
    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let mut runs: Vec<Doubted<ObjectId>> = Vec::new();
        while !bytes.is_empty() {
            let (run, rest) = postcard::take_from_bytes::<Doubted<ObjectId>>(bytes).ok()?;
            let is_behind = runs.last().is_none_or(|last| last.end < run.first);
            if !is_behind || run.first >= run.end || runs.len() == RUNS_MAX {
                return None;
            }
            runs.push(run);
            bytes = rest;
        }
        (!runs.is_empty()).then_some(Self(runs))
    }
}

/// A typed change, of which [`Mutation`] is the stored form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    Meta(MetaRecord),
    Doubted(Runs),
    DoubtedEpochs(Doubted<Epoch>),
    Former(FormerPools),
    /// What stands under this key stands under another one by now.
    Outdated(&'static [u8]),
    Member(NodeId, Option<MemberRecord>),
    Object(ObjectId, Option<ObjectRecord>),
    Name(ObjectName, Option<ObjectId>),
    Pages(PageNumber, Option<PageRecord>),
    Region(ObjectId, Option<RegionRecord>),
    PageHome(PageNumber, Option<PageHomeRecord>),
    PageMove(PageNumber, Option<PageMoveRecord>),
    Answer((NodeId, u16), Option<AnswerRecord>),
    Claim(ObjectId, Option<Epoch>),
}

impl Change {
    pub(crate) fn mutation(&self) -> Mutation {
        let (table, key, value) = match self {
            Self::Meta(meta) => (Table::Meta, META_KEY.to_vec(), Some(encode(meta))),
            Self::Doubted(doubted) => (Table::Meta, DOUBTED_KEY.to_vec(), Some(doubted.encode())),
            Self::DoubtedEpochs(doubted) => (Table::Meta, DOUBTED_EPOCHS_KEY.to_vec(), Some(encode(doubted))),
            Self::Former(former) => (Table::Meta, FORMER_KEY.to_vec(), Some(encode(former))),
            Self::Outdated(key) => (Table::Meta, key.to_vec(), None),
            Self::Member(node, member) => {
                (Table::Members, node.0.to_be_bytes().to_vec(), member.as_ref().map(MemberRecord::encode))
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
            Self::Region(id, region) => {
                (Table::Regions, id.0.to_be_bytes().to_vec(), region.as_ref().map(encode))
            }
            Self::PageHome(page, home) => {
                (Table::Homes, page.raw().to_be_bytes().to_vec(), home.as_ref().map(encode))
            }
            Self::PageMove(page, going) => {
                (Table::Moves, page.raw().to_be_bytes().to_vec(), going.as_ref().map(encode))
            }
            Self::Answer((node, slot), answer) => {
                let key = [&node.0.to_be_bytes()[..], &slot.to_be_bytes()].concat();
                (Table::Answers, key, answer.as_ref().map(encode))
            }
            Self::Claim(id, as_of) => {
                (Table::Claims, id.0.to_be_bytes().to_vec(), as_of.as_ref().map(encode))
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

    #[test]
    fn runs_that_meet_are_one_and_of_too_many_the_nearest() {
        let run = |first, end| Doubted { first: ObjectId(first), end: ObjectId(end) };
        let mut runs = Runs::default();
        for (first, end) in [(40, 50), (20, 21), (60, 70), (30, 31), (21, 22), (49, 61)] {
            runs.add(run(first, end));
        }
        assert_eq!(runs.0, [run(20, 22), run(30, 31), run(40, 70)]);
        assert_eq!(Runs::decode(&runs.encode()), Some(runs.clone()));
        runs.add(run(16, 100));
        assert_eq!(runs.0, [run(16, 100)]);
        // As format 4 has it.
        assert_eq!(runs.encode(), encode(&run(16, 100)));
        for number in 1..=RUNS_MAX as u64 {
            // The third lies next to the second.
            let first = 1000 * number - 500 * u64::from(number == 3);
            runs.add(run(first, first + 1));
        }
        assert_eq!(runs.0.len(), RUNS_MAX);
        assert_eq!(runs.0[1..4], [run(1000, 1001), run(2000, 2501), run(4000, 4001)]);
        for wrong in [&[][..], &[20, 20], &[20, 30, 30, 40], &[20, 30, 10, 15], &[20, 30, 40], &[30, 20]] {
            assert_eq!(Runs::decode(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_home_of_an_older_store_is_read_as_an_ordinary_copy() {
        #[derive(Serialize)]
        struct Before {
            node: NodeId,
            epoch: Epoch,
            complete: bool,
        }
        for complete in [false, true] {
            let before = encode(&Before { node: NodeId(300), epoch: Epoch(7), complete });
            let home = Home { node: NodeId(300), epoch: Epoch(7), complete, heat: false };
            assert_eq!(postcard::from_bytes(&before), Ok(home));
            assert_eq!(encode(&home), before);
        }
        let heat = Home { node: NodeId(300), epoch: Epoch(7), complete: true, heat: true };
        assert_eq!(postcard::from_bytes(&encode(&heat)), Ok(heat));
        assert!(postcard::from_bytes::<Home>(&encode(&(NodeId(300), Epoch(7), 4u8))).is_err());
    }
}
