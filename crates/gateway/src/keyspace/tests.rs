//! What another client does in the middle of a write.

use super::*;
use crate::ground;
use hinterland_node::Node;
use std::path::PathBuf;

const NAME: &str = "keyspace";
/// Too long for a block together with its head: it is one part.
static LONG: [u8; BLOCK_BYTES_MAX] = [7; BLOCK_BYTES_MAX];

struct Ground {
    root: PathBuf,
    node: Option<Node>,
    pool: Pool,
}

impl Ground {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("hl-keyspace-{name}-{}", std::process::id()));
        let node = Some(ground::node(&root));
        let pool = Pool::connect(Some(&root.join("socket"))).unwrap();
        Self { root, node, pool }
    }

    fn client(&self) -> Keyspace {
        Keyspace::open(&self.pool, NAME, 0).unwrap()
    }

    fn parts(&self) -> u64 {
        let parts = format!("{}, parts", Keyspace::fingerprint(NAME, 0));
        self.pool.kv_values(&parts).unwrap().count().unwrap()
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if let Some(node) = self.node.take() {
            node.stop();
        }
        std::fs::remove_dir_all(&self.root).unwrap();
    }
}

fn item(value: &[u8]) -> Item<'_> {
    Item { key: b"key", value, ends_ms: None, expects: Expects::Anything }
}

#[test]
fn a_value_that_is_replaced_in_the_middle_of_a_write_leaves_no_part_behind() {
    let ground = Ground::new("replaced");
    let (mut one, mut other) = (ground.client(), ground.client());
    for (before, new, between) in [
        (&LONG[..], &b"short"[..], &LONG[..]),
        (b"short", &LONG, &LONG),
        (&LONG, &LONG, b"short"),
        (&LONG, &LONG, &LONG),
        (b"short", b"other", &LONG),
        (b"short", b"", &LONG),
        (b"", b"other", &LONG),
        (b"", b"other", b""),
    ] {
        assert_eq!(one.set(&[item(before)]).unwrap(), [Replaced::Done]);
        let mut has_come = false;
        let written = one.write(&[item(new)], |values, blocks| {
            if !std::mem::replace(&mut has_come, true) {
                assert!(other.set_if(b"key", between, None, Expects::Anything).unwrap());
            }
            values.replace(blocks)
        });
        assert_eq!(written.unwrap(), [Replaced::Done]);
        assert!(one.value(b"key", 0).unwrap().is_some_and(|(_, value)| value == new));
        assert_eq!(ground.parts(), u64::from(new.len() == LONG.len()), "{} bytes in between", between.len());
    }
    assert_eq!(one.remove(&[b"key", b"key"], 0).unwrap(), 1);
    assert_eq!(ground.parts(), 0);
}

#[test]
fn writes_of_one_key_in_a_batch_stay_in_their_order_whatever_comes_in_between() {
    let ground = Ground::new("order");
    let (mut one, mut other) = (ground.client(), ground.client());
    assert_eq!(one.set(&[item(&LONG)]).unwrap(), [Replaced::Done]);
    let mut has_come = false;
    let written = one.write(&[item(b"1"), item(b"2"), item(b"3")], |values, blocks| {
        if !std::mem::replace(&mut has_come, true) {
            assert!(other.set_if(b"key", &LONG, None, Expects::Anything).unwrap());
        }
        values.replace(blocks)
    });
    assert_eq!(written.unwrap(), [Replaced::Done; 3]);
    assert!(one.value(b"key", 0).unwrap().is_some_and(|(_, value)| value == b"3"));
    assert_eq!(ground.parts(), 0);
}

#[test]
fn short_writes_of_one_key_stay_in_their_order_though_an_empty_one_looks_like_one_in_parts() {
    let ground = Ground::new("empty");
    let (mut one, mut other) = (ground.client(), ground.client());
    let mut has_come = false;
    let mut messages = 0;
    let written = one.write(&[item(b"1"), item(b""), item(b"3"), item(b""), item(b"5")], |values, blocks| {
        messages += 1;
        if !std::mem::replace(&mut has_come, true) {
            assert!(other.set_if(b"key", &LONG, None, Expects::Anything).unwrap());
        }
        values.replace(blocks)
    });
    assert_eq!((written.unwrap(), messages <= 8), (vec![Replaced::Done; 5], true), "{messages}");
    assert!(one.value(b"key", 0).unwrap().is_some_and(|(_, value)| value == b"5"));
    assert_eq!(ground.parts(), 0);
}

#[test]
fn keys_that_are_removed_while_they_are_replaced_leave_no_part_behind() {
    let ground = Ground::new("removed");
    let (mut one, mut other) = (ground.client(), ground.client());
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            for _ in 0..150 {
                assert!(one.set_if(b"key", &LONG, None, Expects::Anything).unwrap());
            }
        });
        while !writer.is_finished() {
            other.remove(&[b"key"], 0).unwrap();
        }
    });
    other.remove(&[b"key"], 0).unwrap();
    assert_eq!(ground.parts(), 0);
}

#[test]
fn parts_of_values_are_those_of_the_whole_wherever_it_lies() {
    let ground = Ground::new("part");
    let mut client = ground.client();
    let long: Vec<u8> = (0..BLOCK_BYTES_MAX * 2 + 77).map(|at| (at % 251) as u8).collect();
    let long_key = [b'k'; 100];
    for (key, value) in
        [(&b"key"[..], &long[..1000]), (&long_key, &long[..1000]), (b"key", &long), (b"key", b"")]
    {
        assert_eq!(client.set(&[Item { key, ..item(value) }]).unwrap(), [Replaced::Done]);
        let ends =
            [0, 1, 7, 999, 1000, BLOCK_BYTES_MAX - 1, BLOCK_BYTES_MAX, BLOCK_BYTES_MAX + 1, value.len()];
        for (start, end) in ends.into_iter().flat_map(|start| ends.map(|end| (start, end))) {
            let wanted = |length| {
                assert_eq!(length, value.len());
                Ok::<_, KeyError>(start..end)
            };
            let (length, part) = client.part(key, 0, wanted).unwrap().unwrap();
            let expected = value.get(start..end.min(value.len())).unwrap_or_default();
            assert!(length == value.len() && part == expected, "{start}..{end} of {length}");
        }
    }
    let refused = client.part(b"key", 0, |_| Err(KeyError::Value));
    assert!(matches!(refused, Err(KeyError::Value)));
    assert!(client.part::<KeyError>(b"none", 0, |_| unreachable!("nothing is there")).unwrap().is_none());
}

#[test]
fn a_part_of_a_value_that_has_a_hole_is_missing_as_the_whole_is() {
    let ground = Ground::new("hole");
    let mut client = ground.client();
    let long = vec![5; BLOCK_BYTES_MAX + 9];
    assert_eq!(client.set(&[item(&long)]).unwrap(), [Replaced::Done]);
    let head = client.entry_of(b"key", 0).unwrap().unwrap().head;
    let (last, _) = head.parts().last().unwrap();
    let parts = ground.pool.kv_values(&format!("{}, parts", Keyspace::fingerprint(NAME, 0))).unwrap();
    assert_eq!(parts.remove(&[&last]).unwrap(), 1);
    assert!(client.part::<KeyError>(b"key", 0, |_| Ok(0..4)).unwrap().is_none());
    assert!(client.entry_of(b"key", 0).unwrap().is_none());
}
