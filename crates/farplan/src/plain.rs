//! Programs of which a glance tells that the loader of the GNU C library puts a preloaded library before them.
//!
//! Such a program says itself when it has memory, so nobody needs to look at its file. Everything else is looked at as a whole: what is
//! cut off or unusual here is only not plain.

/// How much of a program is looked at: its segments and the name of its loader.
pub const HEAD_BYTES: usize = 1024;
/// The first four tags of the table that names its libraries, where linkers put the names.
pub const TAGS_BYTES: usize = 64;
/// The loader of the GNU C library.
const LOADER: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";
const SEGMENT_BYTES: usize = 56;
const SEGMENT_DYNAMIC: u64 = 2;
const SEGMENT_LOADER: u64 = 3;
const X86_64: u64 = 62;
const NEEDED: [u8; 8] = 1u64.to_le_bytes();

/// Where in a program its tags begin, if its first bytes say that the loader of the GNU C library begins it.
pub fn tags_at(head: &[u8; HEAD_BYTES]) -> Option<u64> {
    // 64 bits, little-endian, with segments of the usual size.
    if !head.starts_with(b"\x7fELF\x02\x01")
        || word(head, 18, 2)? != X86_64
        || word(head, 54, 2)? != SEGMENT_BYTES as u64
    {
        return None;
    }
    let table = usize::try_from(word(head, 32, 8)?).ok()?;
    let (mut has_loader, mut tags) = (false, None);
    for index in 0..usize::try_from(word(head, 56, 2)?).ok()? {
        let at = table.checked_add(index.checked_mul(SEGMENT_BYTES)?)?;
        let (kind, place) = (word(head, at, 4)?, word(head, at.checked_add(8)?, 8)?);
        let bytes = word(head, at.checked_add(32)?, 8)?;
        match kind {
            SEGMENT_LOADER => {
                let from = usize::try_from(place).ok()?;
                let end = from.checked_add(usize::try_from(bytes).ok()?)?;
                has_loader = head.get(from..end)? == LOADER;
            }
            SEGMENT_DYNAMIC if bytes >= TAGS_BYTES as u64 => tags = Some(place),
            _ => {}
        }
    }
    tags.filter(|_| has_loader)
}

/// Whether a library is among the first tags: who needs none makes its system calls itself, as Go does.
pub fn name_a_library(tags: &[u8; TAGS_BYTES]) -> bool {
    tags.as_chunks::<16>().0.iter().any(|tag| tag[..8] == NEEDED)
}

fn word(bytes: &[u8], at: usize, count: usize) -> Option<u64> {
    let mut eight = [0; 8];
    eight[..count].copy_from_slice(bytes.get(at..at.checked_add(count)?)?);
    Some(u64::from_le_bytes(eight))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TAGS_AT: usize = 2000;

    /// A program with a loader and tags, segments in this order.
    fn program(kinds: &[u64], loader: &[u8]) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[..6].copy_from_slice(b"\x7fELF\x02\x01");
        let mut put = |at: usize, bytes: &[u8]| head[at..at + bytes.len()].copy_from_slice(bytes);
        put(18, &[62]);
        put(32, &[64]);
        put(54, &[56]);
        put(56, &[u8::try_from(kinds.len()).unwrap()]);
        for (index, kind) in kinds.iter().enumerate() {
            let at = 64 + index * SEGMENT_BYTES;
            let (place, bytes) = if *kind == SEGMENT_LOADER { (900, loader.len()) } else { (TAGS_AT, 480) };
            put(at, &kind.to_le_bytes()[..4]);
            put(at + 8, &place.to_le_bytes());
            put(at + 32, &bytes.to_le_bytes());
        }
        put(900, loader);
        head
    }

    #[test]
    fn a_program_of_the_gnu_c_library_is_plain_whatever_the_order_of_its_segments() {
        for kinds in [[6, 3, 1, 2], [2, 1, 3, 6]] {
            assert_eq!(tags_at(&program(&kinds, LOADER)), Some(TAGS_AT as u64));
        }
    }

    #[test]
    fn static_programs_those_of_other_libraries_and_what_is_no_program_are_not() {
        assert_eq!(tags_at(&program(&[1, 2], LOADER)), None, "static, placed anywhere");
        assert_eq!(tags_at(&program(&[3, 1], LOADER)), None, "nothing is loaded");
        assert_eq!(tags_at(&program(&[3, 2], b"/lib/ld-musl-x86_64.so.1\0")), None);
        for at in [0, 4, 5, 18, 54] {
            let mut other = program(&[3, 2], LOADER);
            other[at] ^= 3;
            assert_eq!(tags_at(&other), None, "{at}");
        }
        let mut many = program(&[3, 2], LOADER);
        many[57] = 255;
        assert_eq!(tags_at(&many), None, "its segments are cut off");
    }

    #[test]
    fn a_program_that_needs_no_library_is_not_plain() {
        let mut tags = [0; TAGS_BYTES];
        assert!(!name_a_library(&tags));
        tags[8] = 1;
        assert!(!name_a_library(&tags), "a value and no tag");
        tags[48] = 1;
        assert!(name_a_library(&tags));
    }

    proptest! {
        #[test]
        fn no_bytes_are_read_that_are_not_there(bytes in proptest::collection::vec(any::<u8>(), HEAD_BYTES - 6)) {
            let mut head = [0; HEAD_BYTES];
            head[..6].copy_from_slice(b"\x7fELF\x02\x01");
            head[6..].copy_from_slice(&bytes);
            head[18..20].copy_from_slice(&[62, 0]);
            head[54..56].copy_from_slice(&[56, 0]);
            let _ = tags_at(&head);
        }
    }
}
