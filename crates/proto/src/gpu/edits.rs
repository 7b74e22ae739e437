//! A list of commands as the bytes that differ from a list before it.
//!
//! Edits are runs, one after the other: offset u32, length u32, that many bytes, and zeros up to a multiple of 8. Offsets grow and runs
//! do not overlap.

use thiserror::Error;

/// Words that are compared at once; a run goes on over equal words if few lie between two differences.
const WORD: usize = 8;
/// A run's head costs as much as this many equal bytes.
const JOIN: usize = 16;

/// Edits that do not fit their list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("edits of a graph do not fit its list at byte {0}")]
pub struct EditError(pub usize);

/// Appends to `edits` what makes `to` of `from`, two lists of one length below 4 GiB; false, and nothing appended, if their lengths differ.
#[must_use]
pub fn write_edits(from: &[u8], to: &[u8], edits: &mut Vec<u8>) -> bool {
    if from.len() != to.len() || u32::try_from(to.len()).is_err() {
        return false;
    }
    let mut at = 0;
    while let Some(start) = next_difference(from, to, at) {
        let mut end = (start + WORD).min(to.len());
        while let Some(next) = next_difference(from, to, end) {
            if next - end > JOIN {
                break;
            }
            end = (next + WORD).min(to.len());
        }
        // Both fit: the lengths were looked at above.
        edits.extend_from_slice(&(start as u32).to_le_bytes());
        edits.extend_from_slice(&((end - start) as u32).to_le_bytes());
        edits.extend_from_slice(&to[start..end]);
        edits.resize(edits.len().next_multiple_of(WORD), 0);
        at = end;
    }
    true
}

/// Start of the first word from `at` on in which the two differ.
fn next_difference(from: &[u8], to: &[u8], at: usize) -> Option<usize> {
    if at >= to.len() {
        return None;
    }
    let place = from[at..].chunks(WORD).zip(to[at..].chunks(WORD)).position(|(old, new)| old != new)?;
    Some(at + place * WORD)
}

/// Changes `list` as `edits` say.
///
/// # Errors
/// The edits are cut off, out of order, or reach beyond the list, which is then half changed and of no use.
pub fn apply_edits(list: &mut [u8], edits: &[u8]) -> Result<(), EditError> {
    let mut at = 0;
    let mut done = 0;
    while at < edits.len() {
        let Some((head, rest)) = edits[at..].split_at_checked(8) else { return Err(EditError(at)) };
        let number = |part: &[u8]| part.iter().rev().fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte));
        let (offset, length) = (number(&head[..4]), number(&head[4..]));
        let source = rest.get(..length).ok_or(EditError(at))?;
        let place = list.get_mut(offset..offset + length).ok_or(EditError(at))?;
        if offset < done || length == 0 {
            return Err(EditError(at));
        }
        place.copy_from_slice(source);
        done = offset + length;
        at += 8 + length.next_multiple_of(WORD);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn edits_make_the_new_list_of_the_old(from in proptest::collection::vec(any::<u8>(), 0..600),
                                              changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..20)) {
            let mut to = from.clone();
            for (place, byte) in changes {
                if !to.is_empty() {
                    let place = place.index(to.len());
                    to[place] = byte;
                }
            }
            let mut edits = Vec::new();
            prop_assert!(write_edits(&from, &to, &mut edits));
            let mut list = from.clone();
            apply_edits(&mut list, &edits).unwrap();
            prop_assert_eq!(list, to);
        }

        #[test]
        fn any_bytes_as_edits_are_applied_or_refused(mut list in proptest::collection::vec(any::<u8>(), 0..64),
                                                     edits in proptest::collection::vec(0_u8..32, 0..64)) {
            let _ = apply_edits(&mut list, &edits);
        }
    }

    #[test]
    fn one_changed_number_costs_a_run_of_a_word() {
        let from = vec![7; 100_000];
        let mut to = from.clone();
        to[5_000] = 8;
        let mut edits = Vec::new();
        assert!(write_edits(&from, &to, &mut edits));
        assert_eq!(edits.len(), 16);
        assert!(!write_edits(&from, &to[1..], &mut edits), "lists of two lengths have no edits");
    }
}
