//! Back ends of far memory as people name them.

use super::far::refused;
use crate::failure::Failure;
use crate::size::Size;
use hinterland_far::control::{Understand, Wanted};
use hinterland_far::store::{Codec, Disk, Packed, Pooled, Store};
use hinterland_pool::Pool;
use hinterland_types::RackName;
use std::path::{Path, PathBuf};

/// Room of a file that has no size with it.
const DISK_BYTES: u64 = 16 << 30;

/// What a byte of a disk costs, in bytes of memory: a twentieth, which is an assumption.
const DISK_COST: f64 = 0.05;
/// What a byte of the pool costs: an assumption, too: it is memory that lies idle on another machine, or in another process.
const POOL_COST: f64 = 0.5;

/// A back end that was named, and how much it may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackEnd {
    place: Place,
    room_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Packed(Codec),
    Disk(PathBuf),
    /// Memory of the pool: of this rack unless one is named.
    Pool(Option<RackName>),
}

impl BackEnd {
    /// The room that it has for content.
    pub const fn room_bytes(&self) -> u64 {
        self.room_bytes
    }

    /// Whether each access takes tens of microseconds, however little it is for.
    pub const fn is_slow(&self) -> bool {
        matches!(self.place, Place::Disk(_) | Place::Pool(Some(_)))
    }

    /// What it is called when it is open.
    pub fn name(&self) -> String {
        match &self.place {
            Place::Packed(Codec::Lz4) => "lz4".to_owned(),
            Place::Packed(Codec::Zstd) => "zstd".to_owned(),
            Place::Disk(path) => format!("ssd:{}", path.display()),
            Place::Pool(None) => "pool".to_owned(),
            Place::Pool(Some(rack)) => format!("pool:{rack}"),
        }
    }

    /// Its words, as `--far` takes them.
    pub fn words(&self) -> String {
        if self.room_bytes == u64::MAX / 2 {
            self.name()
        } else {
            format!("{}@{}", self.name(), self.room_bytes)
        }
    }

    /// The same with so much room.
    pub fn with_room(&self, room_bytes: u64) -> Self {
        Self { place: self.place.clone(), room_bytes }
    }

    /// What a byte of content costs there, in bytes of this host's memory, for content that compresses so well.
    pub fn cost(&self, compression: f64) -> f64 {
        match &self.place {
            Place::Packed(_) => 1.0 / compression.max(1.0),
            Place::Disk(_) => DISK_COST,
            Place::Pool(_) => POOL_COST,
        }
    }

    /// Opens it, for content of at most `unit_bytes` bytes each; `socket` is the node's.
    ///
    /// # Errors
    /// [`Failure`] if it cannot be had.
    pub fn open(&self, unit_bytes: u64, socket: &Path) -> Result<Box<dyn Store>, Failure> {
        Ok(match &self.place {
            Place::Packed(codec) => Box::new(Packed::of(*codec, self.room_bytes)),
            Place::Disk(path) => {
                Box::new(Disk::open(path, self.room_bytes, unit_bytes).map_err(|error| refused(&error))?)
            }
            Place::Pool(rack) => {
                // A session of its own: what it holds goes with it.
                let pool = Pool::connect(Some(socket))?;
                Box::new(Pooled::open(pool, rack.clone(), self.room_bytes, unit_bytes)?)
            }
        })
    }
}

/// Makes back ends for a run with such units of words; `socket` is the node's.
pub fn understand(unit_bytes: u64, socket: PathBuf) -> Box<Understand> {
    Box::new(move |word| {
        let known = back_end(word)?;
        let (name, room_bytes, socket) = (known.name(), known.room_bytes, socket.clone());
        let open = move || {
            known
                .open(unit_bytes, &socket)
                .map_err(|failure| format!("{} (hint: {})", failure.text, failure.hint))
        };
        Ok(Wanted { name, room_bytes, open: Box::new(open) })
    })
}

/// Reads `NAME` or `NAME@SIZE`.
///
/// # Errors
/// Words with a hint.
pub fn back_end(text: &str) -> Result<BackEnd, String> {
    let (name, size) = match text.rsplit_once('@') {
        Some((name, size)) => {
            let size: Size = size.parse().map_err(|error: crate::size::SizeError| error.to_string())?;
            (name, Some(size.bytes))
        }
        None => (text, None),
    };
    let place = match name.split_once(':') {
        None if name == "lz4" => Place::Packed(Codec::Lz4),
        None if name == "zstd" => Place::Packed(Codec::Zstd),
        None if name == "pool" => Place::Pool(None),
        Some(("pool", rack)) => Place::Pool(Some(
            RackName::parse(rack)
                .map_err(|error| format!("{error} (hint: `hinterland status` shows the racks)"))?,
        )),
        Some(("ssd", path)) if !path.is_empty() => Place::Disk(Path::new(path).to_owned()),
        _ => {
            return Err(format!(
                "{text} is no back end (hint: lz4, zstd, ssd:PATH, pool or pool:RACK, each also with @SIZE behind it)"
            ));
        }
    };
    let all = if matches!(place, Place::Disk(_)) { DISK_BYTES } else { u64::MAX / 2 };
    Ok(BackEnd { place, room_bytes: size.unwrap_or(all) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_ends_are_words_with_a_place_and_a_size() {
        let disk = |room_bytes| BackEnd { place: Place::Disk(PathBuf::from("/tmp")), room_bytes };
        assert_eq!(back_end("lz4").unwrap().place, Place::Packed(Codec::Lz4));
        let zstd = BackEnd { place: Place::Packed(Codec::Zstd), room_bytes: 1 << 30 };
        assert_eq!(back_end("zstd@1G"), Ok(zstd));
        assert_eq!(back_end("ssd:/tmp"), Ok(disk(DISK_BYTES)));
        assert_eq!(back_end("ssd:/tmp@1G"), Ok(disk(1 << 30)));
        assert_eq!(back_end("pool").unwrap().place, Place::Pool(None));
        let rack = RackName::parse("east").unwrap();
        let east = BackEnd { place: Place::Pool(Some(rack)), room_bytes: 2 << 30 };
        assert_eq!(back_end("pool:east@2G"), Ok(east));
        for bad in ["", "ssd:", "tape:/dev/st0", "ssd:/tmp@much", "pool:", "pool:a b", "lz4:9"] {
            assert!(back_end(bad).unwrap_err().contains("hint:"), "{bad}");
        }
        for name in ["lz4", "zstd", "ssd:/tmp", "pool", "pool:east"] {
            assert_eq!(back_end(&format!("{name}@1G")).unwrap().name(), name);
        }
    }
}
