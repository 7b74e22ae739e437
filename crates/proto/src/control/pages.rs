//! What messages say of pages of regions: where they are, and how hot.

use super::object::Home;
use hinterland_types::{GlobalAddress, ObjectName};
use serde::{Deserialize, Serialize};

/// The pages of a region as a session sees them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PagesOpened {
    /// Address of the first page.
    pub first: GlobalAddress,
    /// Size of the region.
    pub bytes: u64,
    /// The homes that words name by their place.
    pub homes: Vec<Home>,
    /// Length of the file of the part that the node has, if it has one; then a second descriptor came.
    pub part_bytes: Option<u64>,
}

/// Accesses of a rack to a page that still count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PageHeat {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// The same of the page that must leave for it, if one must: reads and writes.
    pub victim: Option<(u64, u64)>,
}

/// Pages of a region on one node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PagesOn {
    /// The node; `None` for pages that are lost.
    pub home: Option<Home>,
    /// How many.
    pub pages: u64,
    /// How many of them have moved there.
    pub moved: u64,
}

/// A page of a region, as one rack uses it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HotPage {
    /// The region.
    pub name: ObjectName,
    /// Which page of it, from 0.
    pub index: u32,
    /// Reads by programs of the rack that still count.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Whether the node has the page.
    pub here: bool,
    /// Whether other nodes have copies of the page, which is here, or this node has a copy of a page that lies elsewhere.
    pub copied: bool,
    /// Where it lies otherwise, if that is known.
    pub home: Option<Home>,
}
