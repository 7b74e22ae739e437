//! `kv-get`: single blocks, read in the process that wrote them, in another one, and while others leave.

use super::evicting;
use super::{MOONCAKE, Peer, Scene};
use crate::bench::case::Case;
use crate::bench::redis::Redis;
use crate::bench::report::{Better, Row};
use crate::bench::{Bench, Setting};
use crate::failure::Failure;
use std::cell::RefCell;

/// The bench.
pub struct KvGet;

impl Bench for KvGet {
    fn name(&self) -> &'static str {
        "kv-get"
    }

    fn subject(&self) -> &'static str {
        "single KV blocks of this rack, at random"
    }

    fn switches(&self) -> &'static [&'static str] {
        &["HINTERLAND_NO_STREAMING=1"]
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let ground = super::ground(setting)?;
        let scene = Scene::new(setting, &ground)?;
        let redis = Redis::start(&ground);
        let connection = redis.as_ref().map_err(Clone::clone).and_then(Redis::over_unix).map(RefCell::new);
        let mut peer = Peer::start(&ground);
        let mut rows = Vec::new();
        for (name, bytes) in [("4KiB", 4 << 10), ("64KiB", 64 << 10), ("1MiB", 1 << 20)] {
            (setting.say)(&format!("kv-get: {name}"));
            let blocks = scene.fill(bytes)?;
            if let Ok(connection) = &connection {
                connection.borrow_mut().prepare(bytes)?;
            }
            let count = (if setting.quick { 8 << 20 } else { 512 << 20 } / bytes).min(50_000);
            let (into, plain) = (RefCell::new(vec![0; bytes]), RefCell::new(vec![0; bytes]));
            peer.fill(bytes, blocks);
            let ours = || {
                let mut into = into.borrow_mut();
                scene.time(count, blocks, |number| scene.get(number, &mut [&mut into[..]]))
            };
            let limit =
                || scene.time(count, blocks, |place| scene.memory.copy(place, &mut plain.borrow_mut()));
            let case = Case::new(name, "us", Better::Lower, ours)
                .limit("plain copy at random places", limit)
                .peer_or_why(MOONCAKE, peer.ask(format!("get {bytes} {}", count / 500 + 20)));
            rows.push(case.measure(setting.rounds));
            let case = Case::new(format!("{name}-redis"), "us", Better::Lower, ours).peer_or_why(
                "Redis GET, unix socket",
                connection
                    .as_ref()
                    .map(|connection| || connection.borrow_mut().read(bytes, count / 50 + 100)),
            );
            rows.push(case.measure(setting.rounds));
            let case = Case::new(format!("{name}-process"), "us", Better::Lower, || {
                scene.process.borrow_mut().figure(&format!("get {bytes} {count} {blocks}"))
            })
            .limit("plain copy at random places", limit);
            rows.push(case.measure(setting.rounds));
            (setting.say)(&format!("kv-get: {name} while blocks leave"));
            rows.push(evicting::row(&scene, format!("{name}-evicting"), bytes, count, setting.rounds));
        }
        Ok(rows)
    }
}
