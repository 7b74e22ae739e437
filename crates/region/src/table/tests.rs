//! The interval map against a plain array of pages.

use super::*;
use proptest::prelude::*;

const PAGES: usize = 64;

/// What a page shows: source, offset, protection.
type Page = Option<(u64, u64, i32)>;

#[derive(Clone, Debug)]
enum Step {
    Insert { start: usize, pages: usize, protection: i32 },
    Cut { start: usize, pages: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step =
        (any::<bool>(), 0..PAGES, 1..16usize, 0..4i32).prop_map(|(insert, start, pages, protection)| {
            let pages = pages.min(PAGES - start);
            if insert { Step::Insert { start, pages, protection } } else { Step::Cut { start, pages } }
        });
    proptest::collection::vec(step, 1..40)
}

fn seen(table: &Table) -> Vec<Page> {
    let mut pages = vec![None; PAGES];
    for piece in table.all() {
        assert!(piece.bytes > 0);
        for page in 0..piece.bytes {
            let at = (piece.address + page) as usize;
            assert!(pages[at].is_none(), "two pieces overlap at {at}");
            pages[at] = Some((piece.source, piece.offset + page, piece.protection));
        }
    }
    pages
}

proptest! {
    #[test]
    fn the_map_shows_what_an_array_of_pages_shows(steps in steps()) {
        let mut table = Table::new();
        let mut model: Vec<Page> = vec![None; PAGES];
        for (number, step) in steps.into_iter().enumerate() {
            let (start, pages) = match step {
                Step::Insert { start, pages, .. } | Step::Cut { start, pages } => (start, pages),
            };
            let expected: Vec<Page> = model[start..start + pages].to_vec();
            let taken = match step {
                Step::Insert { protection, .. } => {
                    let source = number as u64;
                    for (index, page) in model[start..start + pages].iter_mut().enumerate() {
                        *page = Some((source, 1000 + index as u64, protection));
                    }
                    let (address, bytes) = (start as u64, pages as u64);
                    table.insert(Piece { address, bytes, offset: 1000, source, protection, copies: false })
                }
                Step::Cut { .. } => {
                    model[start..start + pages].fill(None);
                    table.cut(start as u64, (start + pages) as u64)
                }
            };
            let mut gone = vec![None; pages];
            for piece in taken {
                for page in 0..piece.bytes {
                    gone[(piece.address + page) as usize - start] =
                        Some((piece.source, piece.offset + page, piece.protection));
                }
            }
            prop_assert_eq!(gone, expected);
            prop_assert_eq!(seen(&table), model.clone());
        }
    }
}

#[test]
fn a_hole_in_the_middle_leaves_two_pieces_with_their_own_offsets() {
    let mut table = Table::new();
    let whole = Piece { address: 100, bytes: 30, offset: 7, source: 1, protection: 1, copies: false };
    table.insert(whole);
    let cut = table.cut(110, 120);
    assert_eq!(cut, [Piece { address: 110, bytes: 10, offset: 17, ..whole }]);
    let left: Vec<_> = table.all().map(|piece| (piece.address, piece.bytes, piece.offset)).collect();
    assert_eq!(left, [(100, 10, 7), (120, 10, 27)]);
    assert!(table.has_source(1));
    table.cut(0, u64::MAX);
    assert!(!table.has_source(1));
}

#[test]
fn an_empty_or_turned_range_cuts_nothing() {
    let mut table = Table::new();
    table.insert(Piece { address: 10, bytes: 10, offset: 0, source: 1, protection: 1, copies: false });
    assert!(table.cut(15, 15).is_empty());
    assert!(table.cut(16, 12).is_empty());
    assert_eq!(table.all().count(), 1);
}
