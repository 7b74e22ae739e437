//! The file that both ends of a channel map: its header, the words of two directions, and their rings.
//!
//! `docs/internals/channel.md` has it byte by byte.

use crate::error::ChannelError;
use crate::frame_bytes;
use crate::lane::LaneWords;
use crate::network::parcel::PARCEL_BYTES_MAX;
use hinterland_os::{MapOptions, Mapping, MemoryFile, OsError, PageKind, Seals, SharedSlice};
use hinterland_types::limits::FRAME_BODY_BYTES_MAX;
use std::os::fd::OwnedFd;
use std::sync::Arc;

const MAGIC: u64 = u64::from_le_bytes(*b"HLCHAN01");
/// The version of the file and of what passes through it.
pub(crate) const VERSION: u32 = 1;
/// Bytes before the first ring: a page, so that rings can be mapped by themselves.
const WORDS_BYTES: usize = 4096;
/// Where the words of the directions begin: from the maker, then from the taker.
const LANE_OFFSETS: [usize; 2] = [512, 1024];

/// Smallest ring.
pub const RING_BYTES_MIN: usize = 64 << 10;
/// Smallest ring over a network: two parcels fit into each half.
const NETWORK_RING_BYTES_MIN: usize = 4 * PARCEL_BYTES_MAX;
/// Largest ring.
pub const RING_BYTES_MAX: usize = 1 << 30;
/// Largest body in any channel: that of any frame between two processes of Hinterland, as handshakes agree on it.
pub const BODY_BYTES_MAX: usize = FRAME_BODY_BYTES_MAX as usize;

/// The start of the file.
#[repr(C)]
struct Header {
    magic: u64,
    version: u32,
    body_bytes_max: u32,
    from_maker_bytes: u64,
    from_taker_bytes: u64,
}

const _: () = {
    assert!(size_of::<Header>() == 32);
    assert!(
        size_of::<Header>() <= LANE_OFFSETS[0] && LANE_OFFSETS[1] - LANE_OFFSETS[0] == size_of::<LaneWords>()
    );
    assert!(LANE_OFFSETS[1] + size_of::<LaneWords>() <= WORDS_BYTES);
};

/// How large the rings of a channel are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rings {
    /// Bytes of each of the two rings, a power of two from [`RING_BYTES_MIN`] to [`RING_BYTES_MAX`]. Memory is taken page
    /// by page as it is first used.
    pub ring_bytes: usize,
    /// Most bytes of a body; a frame takes at most half of a ring.
    pub body_bytes_max: usize,
}

impl Default for Rings {
    /// Bodies of up to 1 MiB, eight of which fit into a ring.
    fn default() -> Self {
        Self { ring_bytes: 8 << 20, body_bytes_max: 1 << 20 }
    }
}

impl Rings {
    /// Checks both lengths.
    ///
    /// # Errors
    /// [`ChannelError::BadOption`].
    pub fn check(self) -> Result<Self, ChannelError> {
        let Self { ring_bytes, body_bytes_max } = self;
        if !ring_bytes.is_power_of_two() || !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&ring_bytes) {
            let hint = "a power of two from 64 KiB to 1 GiB";
            return Err(ChannelError::BadOption { what: "a ring", value: ring_bytes, hint });
        }
        if body_bytes_max == 0
            || body_bytes_max > BODY_BYTES_MAX
            || frame_bytes(body_bytes_max) > ring_bytes / 2
        {
            let hint = "1 byte to 4 MiB, and at most half of a ring with its header";
            return Err(ChannelError::BadOption { what: "a longest body", value: body_bytes_max, hint });
        }
        Ok(self)
    }

    /// The rings of a connection whose bodies have up to so many bytes: as they are, or larger if they have to hold a whole
    /// parcel behind a frame that is not whole.
    pub(crate) fn over_network(self, body_bytes_max: usize) -> Result<Self, ChannelError> {
        let least = (2 * frame_bytes(body_bytes_max.min(BODY_BYTES_MAX))).max(NETWORK_RING_BYTES_MIN);
        let ring_bytes = self.ring_bytes.max(least.next_power_of_two());
        Self { ring_bytes, body_bytes_max }.check()
    }

    fn file_bytes(self) -> u64 {
        WORDS_BYTES as u64 + 2 * self.ring_bytes as u64
    }
}

/// Which end of the file a process has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// It made the file.
    Maker,
    /// It was handed the file.
    Taker,
}

/// A direction as one process has it mapped.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    words: SharedSlice,
    offset: usize,
    /// The ring, mapped twice in a row.
    pub ring: SharedSlice,
    pub ring_bytes: usize,
}

impl Lane {
    /// A direction in memory that no other process ever sees.
    pub fn private(ring_bytes: usize) -> Result<Self, OsError> {
        let bytes = (WORDS_BYTES + ring_bytes) as u64;
        let file = MemoryFile::anonymous("hinterland-channel-own", bytes, PageKind::Base4K)?;
        let options = MapOptions { write: true, ..MapOptions::default() };
        let words = Arc::new(file.map(0, WORDS_BYTES, options)?).slice();
        let ring = Arc::new(Mapping::map_twice(&file, WORDS_BYTES as u64, ring_bytes, true)?).slice();
        Ok(Self { words, offset: LANE_OFFSETS[0], ring, ring_bytes })
    }

    /// The shared words.
    #[inline]
    pub fn words(&self) -> &LaneWords {
        // SAFETY: `map` made the mapping of WORDS_BYTES bytes, writable and page-aligned, and the offset is one of
        // LANE_OFFSETS, whose LaneWords lie within it. The borrow of self keeps the mapping. LaneWords holds atomics and
        // bytes that nobody reads, for which any value is valid.
        unsafe { &*self.words.as_ptr().add(self.offset).cast() }
    }
}

/// The file of a channel.
#[derive(Debug)]
pub(crate) struct ChannelFile {
    file: MemoryFile,
    rings: Rings,
}

impl ChannelFile {
    /// Makes a file in which nothing was sent. Its length is fixed for everybody.
    pub fn create(rings: Rings) -> Result<Self, ChannelError> {
        let rings = rings.check()?;
        let file = MemoryFile::anonymous("hinterland-channel", rings.file_bytes(), PageKind::Base4K)?;
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            // Checked to be at most BODY_BYTES_MAX.
            body_bytes_max: rings.body_bytes_max as u32,
            from_maker_bytes: rings.ring_bytes as u64,
            from_taker_bytes: rings.ring_bytes as u64,
        };
        let mut bytes = Vec::with_capacity(size_of::<Header>());
        bytes.extend_from_slice(&header.magic.to_le_bytes());
        bytes.extend_from_slice(&header.version.to_le_bytes());
        bytes.extend_from_slice(&header.body_bytes_max.to_le_bytes());
        bytes.extend_from_slice(&header.from_maker_bytes.to_le_bytes());
        bytes.extend_from_slice(&header.from_taker_bytes.to_le_bytes());
        file.write_at(0, &bytes)?;
        file.add_seals(Seals::FIXED_LENGTH)?;
        Ok(Self { file, rings })
    }

    /// Takes the file that a peer handed over, and believes nothing that it has not checked.
    pub fn open(descriptor: OwnedFd) -> Result<Self, ChannelError> {
        let foreign = |reason: String| ChannelError::Broken { reason };
        let file = MemoryFile::from_descriptor(descriptor)?;
        let seals =
            file.seals().map_err(|_| foreign("the file of the channel is no memory file".to_owned()))?;
        if !seals.shrink || !seals.grow {
            return Err(foreign("the file of the channel may change its length".to_owned()));
        }
        if file.len() < WORDS_BYTES as u64 {
            return Err(foreign(format!("the file of the channel has {} bytes", file.len())));
        }
        let mut bytes = [0; size_of::<Header>()];
        file.read_at(0, &mut bytes)?;
        let header = Header::parse(&bytes);
        if header.magic != MAGIC || header.version != VERSION {
            let Header { magic, version, .. } = header;
            return Err(foreign(format!(
                "its file has magic {magic:#x}, version {version} (here {VERSION})"
            )));
        }
        let length = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let rings = Rings {
            ring_bytes: length(header.from_maker_bytes),
            body_bytes_max: header.body_bytes_max as usize,
        };
        let checked = rings.check().map_err(|error| foreign(format!("its file says {error}")))?;
        if header.from_taker_bytes != header.from_maker_bytes || file.len() != checked.file_bytes() {
            return Err(foreign(format!("its file of {} bytes says rings of {rings:?}", file.len())));
        }
        Ok(Self { file, rings: checked })
    }

    /// The lengths, checked.
    pub fn rings(&self) -> Rings {
        self.rings
    }

    /// Maps both directions: the one that this side sends in, and the one that it receives from.
    pub fn map(&self, side: Side) -> Result<(Lane, Lane), OsError> {
        let options = MapOptions { write: true, ..MapOptions::default() };
        let words = Arc::new(self.file.map(0, WORDS_BYTES, options)?).slice();
        let lane = |index: usize| -> Result<Lane, OsError> {
            let ring_bytes = self.rings.ring_bytes;
            let start = (WORDS_BYTES + index * ring_bytes) as u64;
            let ring = Arc::new(Mapping::map_twice(&self.file, start, ring_bytes, true)?).slice();
            Ok(Lane { words: words.clone(), offset: LANE_OFFSETS[index], ring, ring_bytes })
        };
        let (from_maker, from_taker) = (lane(0)?, lane(1)?);
        Ok(match side {
            Side::Maker => (from_maker, from_taker),
            Side::Taker => (from_taker, from_maker),
        })
    }

    /// A second descriptor of the file, for handing it over.
    pub fn duplicate(&self) -> Result<OwnedFd, OsError> {
        self.file.duplicate()
    }
}

impl Header {
    fn parse(bytes: &[u8; size_of::<Self>()]) -> Self {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |index: usize| u64::from_le_bytes(words[index]);
        Self {
            magic: word(0),
            version: word(1) as u32,
            body_bytes_max: (word(1) >> 32) as u32,
            from_maker_bytes: word(2),
            from_taker_bytes: word(3),
        }
    }
}
