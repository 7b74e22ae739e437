//! The namespaces of a store, as a file: what a node that comes later must know to name its blocks.
//!
//! Text: a line for each namespace (fingerprint in hexadecimal digits, number among the counters, quota or `-`, priority,
//! label), and a last line with the crc32c of those before. `memory` stands before those of which nothing may go to a disk.

use super::OpenedSpace;
use crate::fault_point;
use hinterland_kv::{COUNTED_MAX, Limits, Namespace};
use hinterland_proto::checksum::crc32c;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

/// A namespace that was opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Known {
    pub fingerprint: [u8; 32],
    pub label: String,
    /// Its number among the counters.
    pub counters: u32,
    pub limits: Limits,
    /// Its blocks are replaced in memory, and never written to a disk.
    pub is_memory_only: bool,
    /// Each handle to it has one of these.
    pub uses: Arc<()>,
}

impl Known {
    /// What a session gets that opens it.
    pub fn opened(&self, number: u64) -> OpenedSpace {
        OpenedSpace { namespace: Namespace(number), counters: self.counters, uses: Arc::clone(&self.uses) }
    }

    /// Whether a session has it open, something is set for it, blocks of it were replaced, which a disk may not have noted yet, or it has a
    /// number of its own among the counters, which the next one that gets the number would go on with.
    pub fn is_needed(&self) -> bool {
        let is_counted_apart = self.counters < COUNTED_MAX - 1;
        let is_set = self.limits != Limits::default() || self.is_memory_only;
        Arc::strong_count(&self.uses) > 1 || is_set || is_counted_apart
    }
}

/// What stands before a namespace of which nothing may go to a disk.
const MEMORY_ONLY: &str = "memory ";

/// Namespaces, by number.
pub(super) type Spaces = BTreeMap<u64, Known>;

/// Why a list cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the list of namespaces is damaged")]
pub(super) struct Damaged;

/// What is set for each, for the blocks that a node of before has left.
pub(super) fn limits_of(spaces: &Spaces) -> HashMap<Namespace, Limits> {
    spaces.iter().map(|(number, known)| (Namespace(*number), known.limits)).collect()
}

/// Those whose blocks were replaced, with nothing that is set for them: a disk may have old ones.
pub(super) fn replaced(spaces: &Spaces) -> Spaces {
    let of = |known: &Known| Known { limits: Limits::default(), ..known.clone() };
    spaces
        .iter()
        .filter(|(_, known)| known.is_memory_only)
        .map(|(number, known)| (*number, of(known)))
        .collect()
}

/// The lowest number among the counters that nobody has; the last one is that of all that come late.
pub(super) fn free_counter(spaces: &Spaces) -> u32 {
    let taken: Vec<u32> = spaces.values().map(|known| known.counters).collect();
    (0..COUNTED_MAX - 1).find(|number| !taken.contains(number)).unwrap_or(COUNTED_MAX - 1)
}

/// Writes the list beside its place and renames it into place.
pub(super) fn save(path: &Path, spaces: &Spaces) -> io::Result<()> {
    let draft = path.with_extension("spaces-draft");
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(text(spaces).as_bytes())?;
    fault_point::reach("kv-spaces-drafted");
    fs::rename(&draft, path)
}

/// Reads a list.
pub(super) fn load(path: &Path) -> Result<Spaces, Damaged> {
    let bytes = fs::read(path).map_err(|_| Damaged)?;
    parse(&bytes).ok_or(Damaged)
}

fn text(spaces: &Spaces) -> String {
    let mut text = String::new();
    for known in spaces.values() {
        let fingerprint: String = known.fingerprint.iter().map(|byte| format!("{byte:02x}")).collect();
        let quota = known.limits.quota_bytes.map_or_else(|| "-".to_owned(), |quota| quota.to_string());
        let label = known.label.escape_default();
        let only = if known.is_memory_only { MEMORY_ONLY } else { "" };
        let (counters, priority) = (known.counters, known.limits.priority);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{only}{fingerprint} {counters} {quota} {priority} {label}");
    }
    let sum = crc32c(text.as_bytes());
    // As above.
    let _ = writeln!(text, "{sum:08x}");
    text
}

fn parse(bytes: &[u8]) -> Option<Spaces> {
    let lines = bytes.strip_suffix(b"\n")?;
    let start = lines.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    let (body, sum) = lines.split_at(start);
    let sum = u32::from_str_radix(std::str::from_utf8(sum).ok()?, 16).ok()?;
    if sum != crc32c(body) {
        return None;
    }
    std::str::from_utf8(body).ok()?.lines().map(known).collect()
}

fn known(line: &str) -> Option<(u64, Known)> {
    let (is_memory_only, line) = match line.strip_prefix(MEMORY_ONLY) {
        Some(rest) => (true, rest),
        None => (false, line),
    };
    let mut words = line.splitn(5, ' ');
    let digits = words.next().filter(|digits| digits.len() == 64 && digits.is_ascii())?;
    let mut fingerprint = [0; 32];
    for (index, byte) in fingerprint.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[index * 2..index * 2 + 2], 16).ok()?;
    }
    let counters = words.next()?.parse().ok().filter(|number| *number < COUNTED_MAX)?;
    let quota_bytes = match words.next()? {
        "-" => None,
        digits => Some(digits.parse().ok()?),
    };
    let priority = words.next()?.parse().ok()?;
    let label = unescaped(words.next()?)?;
    let limits = Limits { quota_bytes, priority };
    let known = Known { fingerprint, label, counters, limits, is_memory_only, uses: Arc::default() };
    Some((Namespace::of(&fingerprint).0, known))
}

/// The reverse of `escape_default`.
fn unescaped(text: &str) -> Option<String> {
    let mut letters = text.chars();
    let mut label = String::new();
    while let Some(letter) = letters.next() {
        label.push(match letter {
            '\\' => match letters.next()? {
                't' => '\t',
                'r' => '\r',
                'n' => '\n',
                'u' => {
                    let digits: String = letters.by_ref().skip(1).take_while(|digit| *digit != '}').collect();
                    char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?
                }
                other => other,
            },
            other => other,
        });
    }
    Some(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spaces() -> Spaces {
        let labels = ["", "model", "two words\nand \"more\" \\ {}", "große Modelle \u{1f600}"];
        (0..4_u8)
            .map(|number| {
                let fingerprint = [number; 32];
                let quota_bytes = (number > 1).then_some(u64::from(number) << 40);
                let limits = Limits { quota_bytes, priority: number };
                let label = labels[usize::from(number)].to_owned();
                let counters = u32::from(number) * 21;
                let is_memory_only = number % 2 == 1;
                let known =
                    Known { fingerprint, label, counters, limits, is_memory_only, uses: Arc::default() };
                (Namespace::of(&fingerprint).0, known)
            })
            .collect()
    }

    #[test]
    fn a_list_comes_back_as_it_was() {
        assert_eq!(parse(text(&spaces()).as_bytes()), Some(spaces()));
        assert_eq!(parse(text(&Spaces::new()).as_bytes()), Some(Spaces::new()));
    }

    #[test]
    fn a_list_with_any_flipped_bit_or_cut_off_anywhere_is_damaged() {
        let whole = text(&spaces()).into_bytes();
        for at in 0..whole.len() {
            assert_eq!(parse(&whole[..at]), None, "{at}");
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            assert_eq!(parse(&flipped), None, "{at}");
        }
    }

    #[test]
    fn counters_are_given_once_as_long_as_there_are_any() {
        let mut spaces = spaces();
        assert_eq!(free_counter(&spaces), 1);
        for number in 0..100_u64 {
            let counters = free_counter(&spaces);
            let (label, limits) = (String::new(), Limits::default());
            let known = Known {
                fingerprint: [9; 32],
                label,
                counters,
                limits,
                is_memory_only: false,
                uses: Arc::default(),
            };
            spaces.insert(number, known);
        }
        let mut taken: Vec<u32> = spaces.values().map(|known| known.counters).collect();
        taken.sort_unstable();
        taken.dedup();
        assert_eq!((taken.len() as u32, free_counter(&spaces)), (COUNTED_MAX, COUNTED_MAX - 1));
    }

    #[test]
    fn what_is_open_or_set_or_replaced_is_needed() {
        let known = |is_memory_only| Known {
            fingerprint: [9; 32],
            label: String::new(),
            counters: COUNTED_MAX - 1,
            limits: Limits::default(),
            is_memory_only,
            uses: Arc::default(),
        };
        let opened = known(false);
        let handle = opened.opened(1);
        assert!(opened.is_needed());
        drop(handle);
        assert_eq!((opened.is_needed(), known(true).is_needed()), (false, true));
    }
}
