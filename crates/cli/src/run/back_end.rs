//! Back ends of far memory as people name them.

use super::far::refused;
use crate::failure::Failure;
use crate::size::{Size, exact, human};
use hinterland_far::control::{Understand, Wanted};
use hinterland_far::store::{Codec, Disk, Packed, Pooled, Store};
use hinterland_os::OsError;
use hinterland_pool::Pool;
use hinterland_types::RackName;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Room of a file that has no size with it.
const DISK_BYTES: u64 = 16 << 30;
/// The least that is room: below it nobody wants a back end, and most likely a unit was left out.
const ROOM_BYTES_MIN: u64 = 1 << 20;

/// What a byte of a disk costs, in bytes of memory: a twentieth, which is an assumption.
const DISK_COST: f64 = 0.05;
/// What a byte of the pool costs: an assumption, too: it is memory that lies idle on another machine, or in another process.
const POOL_COST: f64 = 0.5;

/// A back end that was named, and how much it may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackEnd {
    place: Place,
    room_bytes: u64,
    /// Whether compressed memory stops where this host would have hardly any left.
    spares_host: bool,
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

    /// Whether content takes as much as it is long there, however short it is.
    pub const fn is_exact(&self) -> bool {
        matches!(self.place, Place::Packed(_))
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
            format!("{}@{}", self.name(), exact(self.room_bytes))
        }
    }

    /// The same with so much room.
    pub fn with_room(&self, room_bytes: u64) -> Self {
        Self { room_bytes, ..self.clone() }
    }

    /// The same, which stops where this host would have hardly any memory left. A program then keeps more than its budget; a swap
    /// device has no such way out, and is of use just when memory is short.
    pub fn sparing(&self) -> Self {
        Self { spares_host: true, ..self.clone() }
    }

    /// How it compresses, if it does.
    const fn codec(&self) -> Option<Codec> {
        match self.place {
            Place::Packed(codec) => Some(codec),
            Place::Disk(_) | Place::Pool(_) => None,
        }
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
            Place::Packed(codec) if self.spares_host => {
                Box::new(Packed::of(*codec, self.room_bytes).sparing())
            }
            Place::Packed(codec) => Box::new(Packed::of(*codec, self.room_bytes)),
            Place::Disk(path) => {
                let opened = Disk::open(path, self.room_bytes, unit_bytes);
                Box::new(opened.map_err(|error| disk_failure(&error, path, self.room_bytes))?)
            }
            Place::Pool(rack) => {
                // A session of its own: what it holds goes with it.
                let pool = Pool::connect(Some(socket))?;
                Box::new(Pooled::open(pool, rack.clone(), self.room_bytes, unit_bytes)?)
            }
        })
    }
}

/// Why a folder of a disk cannot be had. Whoever named no size never asked for as much as there is no room for.
fn disk_failure(error: &OsError, path: &Path, room_bytes: u64) -> Failure {
    let OsError::System { source, .. } = error else { return refused(error) };
    let is_room =
        matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge);
    if !is_room {
        return refused(error);
    }
    Failure::new(
        format!("there is no room for {} of far memory in {}: {source}", human(room_bytes), path.display()),
        format!("say how much it may take, as in --far ssd:{}@2G, or make room there", path.display()),
    )
}

/// Makes back ends for a run with such units of words; `socket` is the node's.
pub fn understand(unit_bytes: u64, socket: PathBuf) -> Box<Understand> {
    Box::new(move |word| {
        let known = back_end(word)?.sparing();
        let (name, room_bytes, codec, socket) =
            (known.name(), known.room_bytes, known.codec(), socket.clone());
        let open = move || {
            known
                .open(unit_bytes, &socket)
                .map_err(|failure| format!("{} (hint: {})", failure.text, failure.hint))
        };
        Ok(Wanted { name, room_bytes, is_sized: word.contains('@'), codec, open: Box::new(open) })
    })
}

/// Which of these back ends fail together although each byte is to be in so many of them, in words, if there are such; `own_rack` asks
/// for the rack of this host.
pub fn same_fate(
    far: &[BackEnd],
    copies: usize,
    own_rack: impl FnOnce() -> Option<RackName>,
) -> Option<String> {
    let pools = far.iter().filter(|one| matches!(one.place, Place::Pool(_))).count();
    let asks = copies > 1 && pools > 1 && far.iter().any(|one| one.place == Place::Pool(None));
    let own_rack = if asks { own_rack() } else { None };
    let (mut disks, mut racks) =
        (BTreeMap::<u64, Vec<String>>::new(), BTreeMap::<String, Vec<String>>::new());
    for one in far {
        match &one.place {
            Place::Packed(_) => {}
            Place::Disk(path) => {
                let Ok(folder) = path.metadata() else { continue };
                disks.entry(folder.dev()).or_default().push(one.name());
            }
            Place::Pool(rack) => {
                let rack = rack.as_ref().or(own_rack.as_ref()).map_or_else(String::new, RackName::to_string);
                racks.entry(rack).or_default().push(one.name());
            }
        }
    }
    let disks = disks.into_values().map(|names| (names, "disk"));
    let racks = racks.into_values().map(|names| (names, "rack"));
    // Where copies are more than those that fail together, one is elsewhere.
    let (names, what) = disks.chain(racks).find(|(names, _)| copies > 1 && names.len() >= copies)?;
    Some(format!(
        "{} are on one {what}: when it fails, bytes whose copies all lie there are lost (hint: name back ends of different {what}s)",
        names.join(" and ")
    ))
}

/// Reads `NAME` or `NAME@SIZE`.
///
/// # Errors
/// Words with a hint.
pub fn back_end(text: &str) -> Result<BackEnd, String> {
    let (name, size) = match text.rsplit_once('@') {
        Some((name, size)) => {
            let size: Size = size.parse().map_err(|error: crate::size::SizeError| error.to_string())?;
            if size.bytes < ROOM_BYTES_MIN {
                return Err(format!(
                    "{size} is too little for a back end (hint: at least 1M, as in {name}@2G)"
                ));
            }
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
    Ok(BackEnd { place, room_bytes: size.unwrap_or(all), spares_host: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_ends_are_words_with_a_place_and_a_size() {
        let of = |place, room_bytes| BackEnd { place, room_bytes, spares_host: false };
        let disk = |room_bytes| of(Place::Disk(PathBuf::from("/tmp")), room_bytes);
        assert_eq!(back_end("lz4").unwrap().place, Place::Packed(Codec::Lz4));
        let zstd = of(Place::Packed(Codec::Zstd), 1 << 30);
        assert_eq!(back_end("zstd@1G"), Ok(zstd));
        assert_eq!(back_end("ssd:/tmp"), Ok(disk(DISK_BYTES)));
        assert_eq!(back_end("ssd:/tmp@1G"), Ok(disk(1 << 30)));
        assert_eq!(back_end("pool").unwrap().place, Place::Pool(None));
        let rack = RackName::parse("east").unwrap();
        let east = of(Place::Pool(Some(rack)), 2 << 30);
        assert_eq!(back_end("pool:east@2G"), Ok(east));
        assert_eq!(back_end("ssd:/tmp@4G").unwrap().words(), "ssd:/tmp@4G");
        for bad in ["", "ssd:", "tape:/dev/st0", "ssd:/tmp@much", "ssd:/tmp@32", "pool:", "pool:a b", "lz4:9"]
        {
            assert!(back_end(bad).unwrap_err().contains("hint:"), "{bad}");
        }
    }

    #[test]
    fn a_disk_without_the_room_says_how_to_ask_for_less() {
        let folder = std::env::temp_dir();
        let far = back_end(&format!("ssd:{}@60T", folder.display())).unwrap();
        let Err(refused) = far.open(64 << 10, Path::new("")) else { panic!("60 TiB are there") };
        assert!(refused.text.contains("no room for 60.0 TiB"), "{}", refused.text);
        assert!(refused.hint.contains(&format!("ssd:{}@2G", folder.display())), "{}", refused.hint);
        for name in ["lz4", "zstd", "ssd:/tmp", "pool", "pool:east"] {
            assert_eq!(back_end(&format!("{name}@1G")).unwrap().name(), name);
        }
    }

    #[test]
    fn copies_that_would_fail_together_are_told() {
        let folder = std::env::temp_dir().join(format!("hl-fate-{}", std::process::id()));
        let names = ["a", "b"].map(|name| folder.join(name));
        names.iter().for_each(|name| std::fs::create_dir_all(name).unwrap());
        let [a, b] = names.map(|name| format!("ssd:{}", name.display()));
        let told = |words: &[&str], copies| {
            let far: Vec<BackEnd> = words.iter().map(|word| back_end(word).unwrap()).collect();
            same_fate(&far, copies, || RackName::parse("east").ok())
        };
        let disks = told(&[&a, "lz4", &b], 2).unwrap();
        assert!(
            disks.contains(&format!("{a} and {b} are on one disk")) && disks.contains("hint:"),
            "{disks}"
        );
        assert!(told(&["pool", "pool:east"], 2).unwrap().contains("pool and pool:east are on one rack"));
        for (words, copies) in [
            (&[&*a, &b][..], 1),
            (&[&a, &b, "lz4"], 3),
            (&[&a, "lz4"], 2),
            (&[&a, "ssd:/proc"], 2),
            (&["pool", "pool:west"], 2),
            (&["pool:east", "pool:west"], 2),
            (&["lz4", "zstd"], 2),
        ] {
            assert_eq!(told(words, copies), None, "{words:?}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
