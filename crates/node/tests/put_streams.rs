//! Puts of unknown size: the room that they take while they are written, with much room in the node and with hardly any.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[allow(dead_code, reason = "other tests use the rest")]
mod nodes;

use hinterland_pool::{Pool, PutOptions};
use nodes::{Nodes, PAGE, name, pattern};

const KIBIBYTE: u64 = 1 << 10;

fn used(pool: &Pool) -> u64 {
    pool.status().unwrap().used_bytes
}

#[test]
fn a_small_stream_takes_little_room_and_a_large_one_what_it_needs() {
    let nodes = Nodes::with("stream", 1, 16, |_| {});
    let pool = nodes.pools().remove(0);
    let before = used(&pool);
    let bytes = pattern(7, 5 * PAGE as usize + 3);
    let mut room = Vec::new();
    let mut writer = pool.put_writer(&name("grows"), &PutOptions::default()).unwrap();
    let mut written = 0;
    for end in [10, 64 * KIBIBYTE, 100 * KIBIBYTE, 300 * KIBIBYTE, 3 * PAGE, bytes.len() as u64] {
        writer.write(&bytes[written as usize..end as usize]).unwrap();
        written = end;
        room.push(used(&pool) - before);
    }
    // At most twice what is there, in small pages up to 2 MiB and in large ones above.
    assert_eq!(room[..4], [64 * KIBIBYTE, 64 * KIBIBYTE, 200 * KIBIBYTE, 600 * KIBIBYTE]);
    assert_eq!(room[4..], [6 * PAGE, 6 * PAGE]);
    let info = writer.seal().unwrap();
    let mut found = vec![0; bytes.len()];
    pool.open_object(&info.name).unwrap().read_at(0, &mut found).unwrap();
    assert!(found == bytes);
    assert_eq!(used(&pool) - before, 6 * PAGE);
    // What a small one did not need is free again with its seal.
    let mut writer = pool.put_writer(&name("small"), &PutOptions::default()).unwrap();
    writer.write(b"few bytes").unwrap();
    writer.seal().unwrap();
    assert_eq!(used(&pool) - before, 6 * PAGE + 4 * KIBIBYTE);
}

#[test]
fn a_stream_that_fits_is_put_into_a_node_without_room_for_more() {
    let nodes = Nodes::with("narrow", 1, 2, |options| options.segment_bytes = 0);
    let pool = nodes.pools().remove(0);
    let options = PutOptions { bytes: Some(PAGE), ..PutOptions::default() };
    let bytes = pattern(1, 2 * PAGE as usize);
    pool.put(&mut &bytes[..PAGE as usize], &name("large"), &options, &mut |_| {}).unwrap();
    let left = PAGE - 12 * KIBIBYTE;
    let options = PutOptions { bytes: Some(left), ..PutOptions::default() };
    pool.put(&mut &bytes[..left as usize], &name("nearly"), &options, &mut |_| {}).unwrap();
    let put = |name_of: &str, count: u64| {
        pool.put(&mut &bytes[..count as usize], &name(name_of), &PutOptions::default(), &mut |_| {})
    };
    put("fits", 8 * KIBIBYTE).unwrap();
    put("fits, too", 1).unwrap();
    let refused = put("does not", 1).unwrap_err().to_string();
    assert!(refused.contains("room"), "{refused}");
}
