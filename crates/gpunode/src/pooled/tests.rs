//! Pieces of objects: in order, whoever reads them, and no piece behind a failure.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

const BYTES: u64 = 3 * PIECE_BYTES as u64 + 77;

/// An object whose bytes follow from their place, which fails from a place on.
struct Made {
    is_here: bool,
    lost_from: u64,
    reads: AtomicUsize,
}

fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9E37_79B9) >> 11) as u8
}

impl ObjectBytes for Made {
    fn bytes(&self) -> u64 {
        BYTES
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Failure> {
        self.reads.fetch_add(1, Ordering::AcqRel);
        if offset + into.len() as u64 > self.lost_from {
            return Err(lost("gone".to_owned()));
        }
        (offset..).zip(into.iter_mut()).for_each(|(at, place)| *place = byte(at));
        Ok(())
    }

    fn is_here(&self) -> bool {
        self.is_here
    }

    fn will_need(&self, _: u64, _: u64) {}
}

fn made(is_here: bool, lost_from: u64) -> Arc<dyn ObjectBytes> {
    Arc::new(Made { is_here, lost_from, reads: AtomicUsize::new(0) })
}

#[test]
fn pieces_come_in_order_and_make_the_range() {
    for is_here in [true, false] {
        for (offset, bytes) in [(0, BYTES), (5, PIECE_BYTES as u64), (BYTES - 1, 1), (9, 0), (77, BYTES - 77)]
        {
            let mut all = Vec::new();
            in_pieces(&made(is_here, u64::MAX), offset, bytes, |at, piece| {
                assert_eq!(at, all.len() as u64);
                all.extend_from_slice(piece);
                Ok(())
            })
            .unwrap();
            assert!(all.len() as u64 == bytes && (offset..).zip(&all).all(|(at, found)| *found == byte(at)));
        }
    }
}

#[test]
fn what_is_lost_ends_the_copy_and_the_device() {
    for is_here in [true, false] {
        let mut pieces = 0;
        let lost = in_pieces(&made(is_here, 2 * PIECE_BYTES as u64), 0, BYTES, |_, _| {
            pieces += 1;
            Ok(())
        });
        let failure = lost.unwrap_err();
        assert!(failure.is_sticky && failure.error == DEVICES_UNAVAILABLE && failure.words.contains("hint:"));
        assert_eq!(pieces, 2);
    }
}

#[test]
fn a_copy_that_fails_asks_for_no_more() {
    for is_here in [true, false] {
        let object = Arc::new(Made { is_here, lost_from: u64::MAX, reads: AtomicUsize::new(0) });
        let known: Arc<dyn ObjectBytes> = object.clone();
        let failed = in_pieces(&known, 0, BYTES, |_, _| Err(Failure::value("no room")));
        assert_eq!(failed.unwrap_err().words, "no room");
        drop(known);
        // The thread that reads ahead ends, and lets go of the object.
        while Arc::strong_count(&object) > 1 {
            std::thread::yield_now();
        }
        assert!(object.reads.load(Ordering::Acquire) <= 4);
    }
}

#[test]
fn a_pool_that_does_not_answer_is_not_waited_for() {
    let wanted =
        AskPooled { question: 0, pooled: 0, flags: 0, bytes: 0, object: 9, pool: [0; 16], right: [0; 32] };
    let (hold, held) = channel::<()>();
    let silent = move |_: &AskPooled| held.recv().is_ok();
    assert_eq!(within(Duration::from_millis(20), silent, wanted), None);
    assert_eq!(within(Duration::from_secs(30), |wanted| wanted.object, wanted), Some(9));
    drop(hold);
}
