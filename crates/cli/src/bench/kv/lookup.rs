//! `kv-lookup`: keys that are only looked up.

use super::{Chance, MOONCAKE, Peer, SET_BYTES, Scene, key};
use crate::bench::case::Case;
use crate::bench::report::{Better, Row};
use crate::bench::{Bench, Setting};
use crate::failure::Failure;
use std::cell::RefCell;

/// The bench.
pub struct KvLookup;

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

impl Bench for KvLookup {
    fn name(&self) -> &'static str {
        "kv-lookup"
    }

    fn subject(&self) -> &'static str {
        "keys of KV blocks of this rack that are looked up, no byte read"
    }

    fn switches(&self) -> &'static [&'static str] {
        &["HINTERLAND_NO_LOOKAHEAD=1"]
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let ground = super::ground(setting)?;
        let scene = Scene::new(setting, &ground)?;
        let blocks = scene.fill(4 << 10)?;
        let mut peer = Peer::start(&ground);
        peer.fill(4 << 10, blocks);
        let lines = RefCell::new(Chance(2));
        let mut rows = Vec::new();
        for keys in [1, 64, 1000] {
            let count = (if setting.quick { 10_000 } else { 1_000_000 }) / keys;
            let case = Case::new(format!("{keys}-keys"), "us", Better::Lower, || {
                scene.time(count, blocks - keys, |first| {
                    let names: Vec<[u8; 32]> = (first..first + keys).map(key).collect();
                    let names: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
                    match scene.reader.match_prefix(&names)? {
                        found if found == keys => Ok(()),
                        found => {
                            Err(Failure::new(format!("{found} of {keys} keys are there"), "report this"))
                        }
                    }
                })
            })
            .limit("as many cache lines at random", || {
                let mut word = [0; 8];
                scene.time(count, 1, |_| {
                    let mut chance = lines.borrow_mut();
                    (0..keys).try_for_each(|_| {
                        let line = chance.below(SET_BYTES / LINE_BYTES);
                        Ok(scene.memory.0.slice().read_at(line * LINE_BYTES, &mut word)?)
                    })
                })
            })
            .peer_or_why(MOONCAKE, peer.ask(format!("lookup {keys} {}", count / 500 + 20)));
            rows.push(case.measure(setting.rounds));
        }
        Ok(rows)
    }
}
