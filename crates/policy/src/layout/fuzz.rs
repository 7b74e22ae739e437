//! The promise of the header parser, written so that a fuzzer can call it.

use super::{Parsed, Preference, parse_prefix, plan};

/// Parses `data` as the start of objects of several sizes and checks what must hold for any bytes.
///
/// # Panics
/// If the parser asks for bytes that it has or that are not there, or a layout does not make a plan.
pub fn fuzz_header(data: &[u8]) {
    let known = data.len() as u64;
    for object_bytes in [known, known + 4096, 1 << 32, 1 << 40] {
        match parse_prefix(data, object_bytes) {
            Parsed::NeedMore(bytes) => assert!(bytes > known && bytes <= object_bytes),
            Parsed::Layout(layout) => {
                assert!(layout.pieces.is_sorted_by(|a, b| a.range.end() <= b.range.offset()));
                let map = plan(Some(&layout), object_bytes, &Preference::default());
                // Every layout that the parser returns can be planned: that is the promise under test.
                let map = map.expect("a parsed layout makes a plan");
                let sum: u64 = (0..map.count().min(1 << 16)).map(|unit| map.range(unit).bytes()).sum();
                assert!(map.count() > 1 << 16 || sum == object_bytes);
            }
            Parsed::NotThis | Parsed::Bad(_) => {}
        }
    }
}
