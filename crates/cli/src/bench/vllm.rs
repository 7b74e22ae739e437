//! `vllm-ttft`: the time to the first token of a prompt that another vLLM engine of this host has computed.
//!
//! A pair of engines for each way of sharing, one pair after the other: two of them fill the memory of a small machine.
//! What is compared with is taken in the pair that it belongs to, in turn.

use super::case;
use super::ground::{Ground, NodePlan};
use super::report::{Better, Row};
use super::rounds::{Samples, Way, in_turn};
use super::worker::Worker;
use super::{Bench, Setting};
use crate::failure::Failure;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Prompts of so many blocks of 128 tokens and one token: all but one of their tokens can be had.
const PROMPTS: [(&str, u64); 2] = [("2k", 2049), ("4k", 4097)];
/// The same for a run that shows no more than that the bench works.
const PROMPTS_QUICK: [(&str, u64); 2] = [("512", 513), ("1k", 1025)];
/// Memory for blocks: those of the prompts of one length, 28 layers of 512 KiB for each 128 tokens, and as much again; in numbers of 16 bits.
const KV_GIB: u64 = 3;
/// Ways to share, as `ttft.py` calls them, ours first.
const WAYS: [(&str, &str); 3] = [
    ("hinterland", "Hinterland"),
    ("file", "a file in a tmpfs for each block"),
    ("mooncake", "MooncakeStoreConnector, a store process of this host, TCP"),
];
/// Prompts of each length that are computed cold; the others are read again and again.
const COLD: usize = 3;
/// What bytes may cost more than a plain copy of them.
const COPY_ALLOWANCE: f64 = 1.2;
/// What `bench/vllm/prepare.sh` makes.
const PREPARED: &str = ".cache/vllm/installed";
const HINT: &str = "bench/vllm/prepare.sh --peers makes it, once; run the bench in the source tree";

/// The bench.
pub struct VllmTtft;

/// Milliseconds of one length of prompt, by one way of sharing.
struct Found {
    cold: Samples,
    pool: Samples,
    own: Samples,
    copy: Samples,
}

impl Bench for VllmTtft {
    fn name(&self) -> &'static str {
        "vllm-ttft"
    }

    fn subject(&self) -> &'static str {
        "the first token of a prompt that another vLLM engine has computed: from the pool, cold, from the own cache"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let missing = |failure: Failure| Failure { hint: HINT.to_owned(), ..failure };
        super::prepared::file(Path::new(PREPARED)).map_err(missing)?;
        let ground = Ground::new(setting, (kv_gib() << 30) + (128 << 20))?;
        let (model, prompts) = if setting.quick { ("tiny", PROMPTS_QUICK) } else { ("q06", PROMPTS) };
        let mut by_way = Vec::new();
        for (way, _) in WAYS {
            (setting.say)(&format!("vllm-ttft: starting two engines, {way}"));
            by_way.push(pair(setting, &ground, way, model, &prompts));
        }
        Ok(rows(&prompts, by_way))
    }
}

/// GiB of memory for blocks: `bench/vllm/engine.py` has numbers of 32 bits where the processor has no AVX-512.
fn kv_gib() -> u64 {
    #[cfg(target_arch = "x86_64")]
    if !std::is_x86_feature_detected!("avx512f") {
        return 2 * KV_GIB;
    }
    KV_GIB
}

/// Measures one way of sharing, for each length of prompt.
fn pair(
    setting: &Setting,
    ground: &Ground,
    way: &str,
    model: &str,
    prompts: &[(&str, u64)],
) -> Result<Vec<Found>, Failure> {
    let node = (way == "hinterland").then(|| {
        ground.node(NodePlan {
            name: "vllm",
            capacity_bytes: 64 << 20,
            cache_bytes: 64 << 20,
            more: &["--kv-capacity", &format!("{}G", kv_gib())],
            ..NodePlan::default()
        })
    });
    let node = node.transpose()?;
    let socket = node.as_ref().map_or_else(PathBuf::new, |node| node.socket.clone());
    // Not made canonical: that would lead past the packages of the environment.
    let mut command = Command::new(".cache/vllm/venv/bin/python");
    command.args(["bench/vllm/ttft.py", way, model]).arg(socket).stderr(Stdio::null());
    let worker = RefCell::new(Worker::start("a pair of vLLM engines", command)?);
    let ask = |line: String| worker.borrow_mut().figure(&line);
    let rounds = setting.rounds.max(1);
    let mut found = Vec::new();
    for (name, tokens) in prompts {
        (setting.say)(&format!("vllm-ttft: {name}, {way}"));
        let mut cold = Samples::default();
        for number in 0..COLD.min(rounds) {
            cold.add(ask(format!("cold {tokens} {number}"))?);
        }
        let next = RefCell::new(0);
        let number = || next.replace_with(|number| (*number + 1) % COLD.min(rounds));
        let mut samples = Vec::new();
        // The own cache is what the round before has left there: each prompt is had from the pool, then from it.
        for thrown_away in [true, false] {
            let current = RefCell::new(0);
            let mut ways: [Way<'_>; 2] = [
                Box::new(|| {
                    *current.borrow_mut() = number();
                    ask(format!("pool {tokens} {}", current.borrow()))
                }),
                Box::new(|| ask(format!("copy {tokens}"))),
            ];
            let mut own = Samples::default();
            let mut taken = vec![Samples::default(); 2];
            for _ in 0..if thrown_away { 1 } else { rounds } {
                for (samples, round) in taken.iter_mut().zip(in_turn(1, &mut ways)?) {
                    samples.add(round.median().unwrap_or(f64::NAN));
                }
                own.add(ask(format!("own {tokens} {}", current.borrow()))?);
            }
            taken.push(own);
            samples = taken;
        }
        let [pool, copy, own] = <[Samples; 3]>::try_from(samples)
            .map_err(|_| Failure::new("a figure is missing", "report this"))?;
        found.push(Found { cold, pool, own, copy });
    }
    Ok(found)
}

/// For each length: ours beside the limit and the best of the others, and every other figure in a row of its own.
fn rows(prompts: &[(&str, u64)], by_way: Vec<Result<Vec<Found>, Failure>>) -> Vec<Row> {
    let mut rows = Vec::new();
    for (place, (name, _)) in prompts.iter().enumerate() {
        let of = |way: usize| by_way[way].as_ref().map(|found| &found[place]);
        let best = (1..WAYS.len())
            .filter_map(|way| Some((WAYS[way].1, of(way).ok()?.pool.median()?)))
            .min_by(|a, b| a.1.total_cmp(&b.1));
        match of(0) {
            Ok(ours) => {
                let mut row = plain(format!("{name}-pool"), &ours.pool);
                row.limit =
                    ours.own.median().zip(ours.copy.median()).map(|(own, copy)| own + COPY_ALLOWANCE * copy);
                row.limit_name = Some(format!(
                    "own prefix cache and {COPY_ALLOWANCE} x a plain copy of the bytes, one thread"
                ));
                (row.peer, row.peer_name) =
                    (best.map(|best| best.1), best.map(|best| format!("best: {}", best.0)));
                rows.push(row);
                rows.push(plain(format!("{name}-own-cache"), &ours.own));
                rows.push(plain(format!("{name}-cold"), &ours.cold));
                rows.push(plain(format!("{name}-copy"), &ours.copy));
            }
            Err(failure) => rows.push(absent(format!("{name}-pool"), failure)),
        }
        for (way, (word, _)) in WAYS.iter().enumerate().skip(1) {
            let case = format!("{name}-{word}");
            rows.push(
                of(way)
                    .map_or_else(|failure| absent(case.clone(), failure), |found| plain(&case, &found.pool)),
            );
        }
    }
    rows
}

fn plain(case: impl Into<String>, samples: &Samples) -> Row {
    case::row(case, "ms", Better::Lower, std::slice::from_ref(samples), [None, None], None)
}

fn absent(case: impl Into<String>, failure: &Failure) -> Row {
    Row::absent(case, "ms", Better::Lower, format!("{} (hint: {})", failure.text, failure.hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(value: f64) -> Samples {
        let mut samples = Samples::default();
        samples.add(value);
        samples
    }

    fn found(pool: f64) -> Vec<Found> {
        let one =
            || Found { cold: samples(900.0), pool: samples(pool), own: samples(60.0), copy: samples(10.0) };
        vec![one(), one()]
    }

    #[test]
    fn a_way_that_failed_is_a_row_that_says_why_and_no_peer() {
        let by_way = vec![Ok(found(70.0)), Ok(found(100.0)), Err(Failure::new("no store", "install it"))];
        let rows = rows(&PROMPTS, by_way);
        let row = &rows[0];
        assert_eq!(
            (row.case.as_str(), row.ours, row.limit, row.peer),
            ("2k-pool", Some(70.0), Some(72.0), Some(100.0))
        );
        let cases: Vec<&str> = rows.iter().map(|row| row.case.as_str()).collect();
        assert_eq!(cases[..6], ["2k-pool", "2k-own-cache", "2k-cold", "2k-copy", "2k-file", "2k-mooncake"]);
        assert_eq!((rows[5].ours, rows[5].why.as_deref()), (None, Some("no store (hint: install it)")));
    }
}
