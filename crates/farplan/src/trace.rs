//! Page traces: which pages of a program were touched when, as a file.
//!
//! A file is a header of 64 bytes and records of 24 bytes, all numbers little-endian; the last record is
//! [`Kind::End`]. What each kind holds stands in docs/internals/far-trace.md. The header:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | [`MAGIC`] |
//! | 8 | 4 | [`VERSION`] |
//! | 12 | 4 | [`HEADER_BYTES`] |
//! | 16 | 8 | bytes of a unit |
//! | 24 | 8 | bytes that could be in sight; 0 if a share was asked for |
//! | 32 | 8 | the share, in hundredths; 0 if bytes were asked for |
//! | 40 | 24 | zeros |
//!
//! A record:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | nanoseconds since the trace began |
//! | 8 | 8 | address |
//! | 16 | 1 | [`Kind`] |
//! | 17 | 1 | address space |
//! | 18 | 2 | flags: [`STORE`] |
//! | 20 | 4 | amount |

use crate::PAGE;

/// The first bytes of every trace.
pub const MAGIC: [u8; 8] = *b"HLFTRACE";
/// The version that is written, and the only one that is read.
pub const VERSION: u32 = 1;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 64;
/// Bytes of a record.
pub const RECORD_BYTES: usize = 24;
/// Set in a record's flags when the touch was a store.
pub const STORE: u16 = 1;
/// Start value and prime of FNV-1a over 64 bits, which sees a cut or changed file and needs no table.
const CHECK_START: u64 = 0xCBF2_9CE4_8422_2325;
const CHECK_PRIME: u64 = 0x0000_0100_0000_01B3;

/// What a record tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A page was touched for the first time.
    First = 1,
    /// A page that had been taken out of sight was touched.
    Again = 2,
    /// A page that had been read only was written.
    Write = 3,
    /// The program gave memory up: address, and the number of its pages.
    Drop = 4,
    /// What was resident: bytes that are no memory under service in `address`, pages of files in `amount`.
    Census = 5,
    /// What it took: nanoseconds of user time in `time_ns`, of system time in `address`, most threads in `amount`.
    Usage = 6,
    /// What left: bytes of content in `time_ns`, bytes that they took in the back end in `address`.
    Content = 7,
    /// The last: when, the number of records before it, and in `amount` the low half of the check.
    End = 8,
}

impl Kind {
    const fn of(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::First,
            2 => Self::Again,
            3 => Self::Write,
            4 => Self::Drop,
            5 => Self::Census,
            6 => Self::Usage,
            7 => Self::Content,
            8 => Self::End,
            _ => return None,
        })
    }

    /// Whether it is a touch of a page.
    pub const fn is_touch(self) -> bool {
        matches!(self, Self::First | Self::Again | Self::Write)
    }
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Nanoseconds since the trace began.
    pub time_ns: u64,
    /// Where; a multiple of the page in records of memory.
    pub address: u64,
    /// What.
    pub kind: Kind,
    /// Which address space, in the order in which they came.
    pub space: u8,
    /// [`STORE`] or nothing.
    pub flags: u16,
    /// Pages, or as [`Kind`] says.
    pub amount: u32,
}

impl Record {
    /// Its bytes.
    pub fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..8].copy_from_slice(&self.time_ns.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.address.to_le_bytes());
        bytes[16] = self.kind as u8;
        bytes[17] = self.space;
        bytes[18..20].copy_from_slice(&self.flags.to_le_bytes());
        bytes[20..].copy_from_slice(&self.amount.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        Some(Self {
            time_ns: word(bytes, 0),
            address: word(bytes, 8),
            kind: Kind::of(bytes[16])?,
            space: bytes[17],
            flags: u16::from_le_bytes([bytes[18], bytes[19]]),
            amount: u32::from_le_bytes([bytes[20], bytes[21], bytes[22], bytes[23]]),
        })
    }

    /// Whether the touch was a store.
    pub const fn is_store(&self) -> bool {
        self.flags & STORE != 0
    }
}

/// How a trace was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes that were taken out of sight at once, and that a touch brought back.
    pub unit_bytes: u64,
    /// Bytes that could be in sight; 0 if hundredths were asked for.
    pub window_bytes: u64,
    /// Hundredths of the program's memory that could be in sight; 0 if bytes were asked for.
    pub window_percent: u64,
}

impl Header {
    /// Its bytes.
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(HEADER_BYTES as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.unit_bytes.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.window_bytes.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.window_percent.to_le_bytes());
        bytes
    }
}

/// Why a file is no trace that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// It is something else.
    #[error("this is no page trace (hint: `hinterland trace -o FILE -- PROGRAM` makes one)")]
    Foreign,
    /// A later program wrote it.
    #[error(
        "this page trace has version {0}, and version {VERSION} is known (hint: trace again, or use the program that made it)"
    )]
    Version(u32),
    /// Its end is missing.
    #[error(
        "this page trace is cut off after {0} records (hint: it was not finished, or not copied whole; trace again)"
    )]
    Cut(usize),
    /// Its bytes are not those that were written.
    #[error("this page trace is damaged at record {0} (hint: copy it again, or trace again)")]
    Damaged(usize),
    /// It has no touch.
    #[error(
        "this page trace has no touch of memory (hint: the program has no large anonymous memory, so it needs no advice)"
    )]
    Empty,
}

/// The check over all bytes before the end, to be continued block by block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check(u64);

impl Default for Check {
    fn default() -> Self {
        Self(CHECK_START)
    }
}

impl Check {
    /// Takes in more bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(CHECK_PRIME);
        }
    }

    /// What stands in the last record.
    pub const fn value(self) -> u32 {
        (self.0 ^ (self.0 >> 32)) as u32
    }
}

/// A trace that was read whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// How it was taken.
    pub header: Header,
    /// All records but the last, in the order of time.
    pub records: Vec<Record>,
    /// Nanoseconds from the start to the end.
    pub time_ns: u64,
}

impl Trace {
    /// The trace of a file's bytes.
    ///
    /// # Errors
    /// [`TraceError`] for everything but a whole trace of this version with at least one touch.
    pub fn parse(bytes: &[u8]) -> Result<Self, TraceError> {
        if bytes.len() < MAGIC.len() || bytes[..MAGIC.len()] != MAGIC {
            return Err(TraceError::Foreign);
        }
        let Some((head, rest)) = bytes.split_at_checked(HEADER_BYTES) else { return Err(TraceError::Cut(0)) };
        let version = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        if version != VERSION {
            return Err(TraceError::Version(version));
        }
        let header = Header {
            unit_bytes: word(head, 16),
            window_bytes: word(head, 24),
            window_percent: word(head, 32),
        };
        if !header.unit_bytes.is_power_of_two() || !(PAGE..=2 << 20).contains(&header.unit_bytes) {
            return Err(TraceError::Damaged(0));
        }
        let mut check = Check::default();
        check.add(head);
        let (chunks, left) = rest.as_chunks::<RECORD_BYTES>();
        let mut records = Vec::with_capacity(chunks.len());
        for (index, chunk) in chunks.iter().enumerate() {
            let record = Record::parse(chunk).ok_or(TraceError::Damaged(index))?;
            if record.kind == Kind::End {
                let is_last = index + 1 == chunks.len() && left.is_empty();
                if !is_last || record.address != index as u64 || record.amount != check.value() {
                    return Err(TraceError::Damaged(index));
                }
                let trace = Self { header, records, time_ns: record.time_ns };
                return if trace.touches().next().is_some() { Ok(trace) } else { Err(TraceError::Empty) };
            }
            check.add(chunk);
            records.push(record);
        }
        Err(TraceError::Cut(records.len()))
    }

    /// The bytes of a file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + (self.records.len() + 1) * RECORD_BYTES);
        bytes.extend_from_slice(&self.header.to_bytes());
        for record in &self.records {
            bytes.extend_from_slice(&record.to_bytes());
        }
        let mut check = Check::default();
        check.add(&bytes);
        bytes.extend_from_slice(&end(self.time_ns, self.records.len() as u64, check).to_bytes());
        bytes
    }

    /// The touches of pages.
    pub fn touches(&self) -> impl Iterator<Item = &Record> {
        self.records.iter().filter(|record| record.kind.is_touch())
    }

    /// The last record of a kind.
    pub fn last(&self, kind: Kind) -> Option<&Record> {
        self.records.iter().rev().find(|record| record.kind == kind)
    }
}

/// The last record of a trace.
pub fn end(time_ns: u64, records: u64, check: Check) -> Record {
    Record { time_ns, address: records, kind: Kind::End, space: 0, flags: 0, amount: check.value() }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(eight)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn touch(index: u64) -> Record {
        Record { time_ns: index, address: index * PAGE, kind: Kind::First, space: 0, flags: STORE, amount: 1 }
    }

    fn trace(count: u64) -> Trace {
        let header = Header { unit_bytes: PAGE, window_bytes: 16 << 20, window_percent: 0 };
        Trace { header, records: (0..count).map(touch).collect(), time_ns: count }
    }

    #[test]
    fn a_trace_comes_back_and_every_cut_of_it_is_told() {
        let bytes = trace(5).to_bytes();
        assert_eq!(bytes.len(), 64 + 6 * 24);
        assert_eq!(Trace::parse(&bytes), Ok(trace(5)));
        for length in 0..bytes.len() {
            let error = Trace::parse(&bytes[..length]).unwrap_err();
            assert!(matches!(error, TraceError::Foreign | TraceError::Cut(_)), "{length}: {error}");
            assert!(error.to_string().contains("hint:"));
        }
    }

    #[test]
    fn other_files_and_other_versions_are_told_apart() {
        assert_eq!(Trace::parse(b"PNG and so on"), Err(TraceError::Foreign));
        let mut bytes = trace(1).to_bytes();
        bytes[8] = 9;
        assert_eq!(Trace::parse(&bytes), Err(TraceError::Version(9)));
        assert_eq!(Trace::parse(&trace(0).to_bytes()), Err(TraceError::Empty));
        let mut longer = trace(1).to_bytes();
        longer.extend_from_slice(&[0; 24]);
        assert!(matches!(Trace::parse(&longer), Err(TraceError::Damaged(_))));
    }

    proptest! {
        #[test]
        fn a_changed_byte_is_never_taken_for_the_trace(at in 0usize..64 + 4 * 24, by in 1u8..=255) {
            let mut bytes = trace(3).to_bytes();
            bytes[at] ^= by;
            // The time of the end is the only field that nothing else depends on.
            let is_end_time = (64 + 3 * 24..64 + 3 * 24 + 8).contains(&at);
            let is_end_rest = (64 + 3 * 24 + 17..64 + 3 * 24 + 20).contains(&at);
            prop_assert_eq!(Trace::parse(&bytes).is_ok(), is_end_time || is_end_rest);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut bytes = bytes;
            let _ = Trace::parse(&bytes);
            if bytes.len() > 40 {
                bytes[..8].copy_from_slice(&MAGIC);
                bytes[8..16].copy_from_slice(&[1, 0, 0, 0, 64, 0, 0, 0]);
                bytes[16..24].copy_from_slice(&PAGE.to_le_bytes());
                let _ = Trace::parse(&bytes);
            }
        }
    }
}
