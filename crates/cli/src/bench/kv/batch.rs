//! `kv-batch`: many blocks at once, read and written.

use super::{BATCH, MOONCAKE, OTHERS, Peer, Scene, key};
use crate::bench::case::Case;
use crate::bench::report::{Better, Row};
use crate::bench::{Bench, Setting};
use crate::failure::Failure;
use hinterland_pool::Stored;
use std::cell::RefCell;

/// The bench.
pub struct KvBatch;

impl Bench for KvBatch {
    fn name(&self) -> &'static str {
        "kv-batch"
    }

    fn subject(&self) -> &'static str {
        "128 KV blocks of 64 KiB of this rack at once, read and written"
    }

    fn switches(&self) -> &'static [&'static str] {
        &["HINTERLAND_NO_STREAMING=1", "HINTERLAND_NO_FOLDING=1"]
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let bytes = 64 << 10;
        let ground = super::ground(setting)?;
        let scene = Scene::new(setting, &ground)?;
        let blocks = scene.fill(bytes)?;
        let mut peer = Peer::start(&ground);
        peer.fill(bytes, blocks);
        let batches = if setting.quick { 4 } else { 40 };
        let rate = |microseconds: f64| (BATCH * bytes) as f64 / microseconds / 1e3;
        let (mut into, plain) = (vec![0; BATCH * bytes], RefCell::new(vec![0; BATCH * bytes]));
        let from = vec![3; BATCH * bytes];
        (setting.say)("kv-batch: get");
        let get = Case::new("get", "GB/s", Better::Higher, || {
            let took = scene.time(batches, blocks - BATCH, |first| {
                into.chunks_mut(bytes)
                    .enumerate()
                    .try_for_each(|(index, piece)| scene.get(first + index, &mut [piece]))
            })?;
            Ok(rate(took))
        })
        .limit("plain copies", || scene.plain_batches(batches, blocks, &mut plain.borrow_mut()).map(rate))
        .peer_or_why(MOONCAKE, peer.ask(format!("batch {bytes} {BATCH} {batches}")))
        .measure(setting.rounds);
        let process = Case::new("get-process", "GB/s", Better::Higher, || {
            let question = format!("batch {bytes} {BATCH} {batches} {blocks}");
            Ok(rate(scene.process.borrow_mut().figure(&question)?))
        })
        .limit("plain copies", || scene.plain_batches(batches, blocks, &mut plain.borrow_mut()).map(rate))
        .measure(setting.rounds);
        (setting.say)("kv-batch: put");
        let next = RefCell::new(OTHERS);
        let put = Case::new("put", "GB/s", Better::Higher, || {
            let took = scene.time(batches, 1, |_| {
                let first = next.replace_with(|first| *first + BATCH);
                let names: Vec<[u8; 32]> = (first..first + BATCH).map(key).collect();
                let pieces: Vec<[&[u8]; 1]> = from.chunks(bytes).map(|piece| [piece]).collect();
                let blocks: Vec<(&[u8], &[&[u8]])> =
                    names.iter().zip(&pieces).map(|(name, piece)| (&name[..], &piece[..])).collect();
                written(&scene.writer.put(&blocks)?)
            })?;
            Ok(rate(took))
        })
        .limit("plain copies", || {
            let slice = scene.memory.0.slice();
            let took = scene.time(batches, blocks - BATCH, |first| {
                from.chunks(bytes)
                    .enumerate()
                    .try_for_each(|(index, piece)| Ok(slice.write_at((first + index) * bytes, piece)?))
            })?;
            Ok(rate(took))
        })
        .peer_or_why(MOONCAKE, peer.ask(format!("put {bytes} {BATCH} {}", batches / 8 + 1)))
        .measure(setting.rounds);
        Ok(vec![get, process, put])
    }
}

impl Scene {
    /// Microseconds of a batch that is copied out of plain memory.
    fn plain_batches(&self, batches: usize, blocks: usize, into: &mut [u8]) -> Result<f64, Failure> {
        let bytes = into.len() / BATCH;
        self.time(batches, blocks - BATCH, |first| {
            into.chunks_mut(bytes)
                .enumerate()
                .try_for_each(|(index, piece)| self.memory.copy(first + index, piece))
        })
    }
}

fn written(outcomes: &[Stored]) -> Result<(), Failure> {
    match outcomes.iter().find(|outcome| **outcome != Stored::Written) {
        None => Ok(()),
        Some(outcome) => Err(Failure::new(format!("a block was not written: {outcome:?}"), "report this")),
    }
}
