//! Which home a reader asks: one in its own rack, although the directory names another first.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[allow(dead_code, reason = "other tests use the rest")]
mod nodes;

use hinterland_pool::{Pool, PutOptions};
use hinterland_types::RackName;
use nodes::{Nodes, PAGE, name, pattern};

/// Bytes that a node has sent to others.
fn sent(pool: &Pool) -> u64 {
    pool.status().unwrap().counters.network_sent_bytes
}

#[test]
fn a_reader_asks_the_home_in_its_rack_first() {
    // One node of a rack of its own; two of another rack, of which the second has room for nothing.
    let nodes = Nodes::with("near", 3, 16, |options| {
        if options.name.as_str() != "r0" {
            options.rack = RackName::parse("near").unwrap();
        }
        if options.name.as_str() == "r2" {
            options.capacity_bytes = PAGE;
        }
    });
    let pools = nodes.pools();
    let bytes = pattern(3, 3 * PAGE as usize);
    let options = PutOptions { copies: 2, ..PutOptions::default() };
    pools[0].put(&mut &bytes[..], &name("twice"), &options, &mut |_| {}).unwrap();
    let near = pools[1].status().unwrap().node;
    let far = pools[0].status().unwrap().node;
    let homes = |pool: &Pool| -> Vec<_> {
        pool.stat(&name("twice")).unwrap().homes.iter().map(|home| home.node).collect()
    };
    assert_eq!(homes(&pools[0]), [far, near]);
    assert_eq!(homes(&pools[2]), [near, far]);

    let before = [sent(&pools[0]), sent(&pools[1])];
    let object = pools[2].open_object(&name("twice")).unwrap();
    // A node of the same rack is another node all the same: its memory is not mapped.
    assert!(!object.is_local());
    let mut found = vec![0; bytes.len()];
    object.read_at(0, &mut found).unwrap();
    assert!(found == bytes);
    assert!(sent(&pools[1]) - before[1] >= bytes.len() as u64);
    assert!(sent(&pools[0]) - before[0] < PAGE);
}
