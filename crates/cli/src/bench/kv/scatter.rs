//! `kv-scatter` and `kv-sparse`: one block into many pieces.

use super::{MOONCAKE, Peer, Scene, key};
use crate::bench::case::Case;
use crate::bench::report::{Better, Row};
use crate::bench::{Bench, Setting};
use crate::failure::Failure;
use hinterland_pool::{Run, Scatter};
use std::cell::RefCell;

/// Pieces of many tokens.
pub struct KvScatter;

/// Pieces of a few numbers, as sparse attention wants them.
pub struct KvSparse;

impl Bench for KvScatter {
    fn name(&self) -> &'static str {
        "kv-scatter"
    }

    fn subject(&self) -> &'static str {
        "one KV block of this rack into many pieces"
    }

    fn switches(&self) -> &'static [&'static str] {
        &["HINTERLAND_NO_STREAMING=1"]
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        rows(setting, self.name(), &[("256x4KiB", 256, 4 << 10), ("128x20KiB", 128, 20 << 10)])
    }
}

impl Bench for KvSparse {
    fn name(&self) -> &'static str {
        "kv-sparse"
    }

    fn subject(&self) -> &'static str {
        "one KV block of this rack into 1024 pieces of 160 bytes"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        rows(setting, self.name(), &[("1024x160B", 1024, 160)])
    }
}

/// Rows of cases: a name, pieces, and the bytes of each.
fn rows(setting: &Setting, bench: &str, cases: &[(&str, usize, usize)]) -> Result<Vec<Row>, Failure> {
    let ground = super::ground(setting)?;
    let scene = Scene::new(setting, &ground)?;
    let mut peer = Peer::start(&ground);
    let mut rows = Vec::new();
    for &(name, pieces, piece) in cases {
        (setting.say)(&format!("{bench}: {name}"));
        let bytes = pieces * piece;
        let blocks = scene.fill(bytes)?;
        peer.fill(bytes, blocks);
        let count = if setting.quick { 8 } else { 200 };
        // Every other piece, as the blocks of an engine lie.
        let [into, plain, memory] = [0, 1, 2].map(|_| RefCell::new(vec![0; 2 * bytes]));
        let limit = || {
            let mut plain = plain.borrow_mut();
            scene.time(count, blocks, |place| {
                let slice = scene.memory.0.slice();
                for (index, pair) in plain.chunks_mut(2 * piece).enumerate() {
                    slice.read_at(place * bytes + index * piece, &mut pair[..piece])?;
                }
                Ok(())
            })
        };
        let case = Case::new(name, "us", Better::Lower, || {
            let mut into = into.borrow_mut();
            scene.time(count, blocks, |number| {
                let mut parts: Vec<&mut [u8]> =
                    into.chunks_mut(2 * piece).map(|pair| &mut pair[..piece]).collect();
                scene.get(number, &mut parts)
            })
        })
        .limit("plain copies of the pieces", limit)
        .peer_or_why(MOONCAKE, peer.ask(format!("scatter {pieces} {piece} {}", count / 8 + 1)));
        rows.push(case.measure(setting.rounds));
        let runs = [Run { start: 0, bytes: piece, stride: 2 * piece as isize, count: pieces }];
        let case = Case::new(format!("{name}-run"), "us", Better::Lower, || {
            let mut memory = memory.borrow_mut();
            scene.time(count, blocks, |number| {
                let mut scatter = Scatter::within(&mut memory, &runs)?;
                match scene.reader.get_runs(&key(number), 0, &mut scatter)? {
                    Some(_) => Ok(()),
                    None => Err(Failure::new(format!("block {number} is not there"), "report this")),
                }
            })
        })
        .limit("plain copies of the pieces", limit);
        rows.push(case.measure(setting.rounds));
    }
    Ok(rows)
}
