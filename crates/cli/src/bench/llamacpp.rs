//! `llamacpp-ttft`: the time to the first token of a prompt that another llama-server of this host has computed.

use super::case;
use super::ground::{Ground, NodePlan};
use super::report::{Better, Row};
use super::rounds::{Samples, Way, in_turn};
use super::worker::Worker;
use super::{Bench, Setting};
use crate::failure::Failure;
use std::cell::RefCell;
use std::path::Path;
use std::process::{Command, Stdio};

/// Prompts of so many blocks of 128 tokens and one token: all but one of their tokens can be had.
const PROMPTS: [(&str, u64); 2] = [("1k", 1025), ("4k", 4097)];
/// The same for a run that shows no more than that the bench works.
const PROMPTS_QUICK: [(&str, u64); 2] = [("256", 257), ("512", 513)];
/// Prompts of each length that are computed cold; they are then had again and again.
const COLD: usize = 3;
/// Memory for blocks: those of all prompts, 23,040 bytes a token, and as much again.
const KV_BYTES: u64 = 1 << 30;
/// What `./demo --prepare` installs.
const PREPARED: [&str; 2] = [".cache/demo-venv/bin/python", ".cache/models/smollm2-135m.gguf"];
const HINT: &str =
    "`./demo --prepare` and `python/build.sh --release` make it, once; run the bench in the source tree";

/// The bench.
pub struct LlamacppTtft;

impl Bench for LlamacppTtft {
    fn name(&self) -> &'static str {
        "llamacpp-ttft"
    }

    fn subject(&self) -> &'static str {
        "the first token of a prompt that another llama-server has computed: from the pool, cold, from the own slot"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        for path in PREPARED {
            super::prepared::file(Path::new(path))
                .map_err(|failure| Failure { hint: HINT.to_owned(), ..failure })?;
        }
        let ground = Ground::new(setting, KV_BYTES + (128 << 20))?;
        let node = ground.node(NodePlan {
            name: "llama",
            capacity_bytes: 64 << 20,
            cache_bytes: 64 << 20,
            more: &["--kv-capacity", "1G"],
            ..NodePlan::default()
        })?;
        // Not made canonical: that would lead past the packages of the environment.
        let mut command = Command::new(PREPARED[0]);
        command.arg("bench/llamacpp/ttft.py").arg(&node.socket).stderr(Stdio::null());
        (setting.say)("llamacpp-ttft: starting three servers");
        let worker = RefCell::new(Worker::start("the driver of llama-servers", command)?);
        let mut rows = Vec::new();
        for (name, tokens) in if setting.quick { PROMPTS_QUICK } else { PROMPTS } {
            (setting.say)(&format!("llamacpp-ttft: {name}"));
            rows.extend(of_length(setting, &worker, name, tokens)?);
        }
        Ok(rows)
    }
}

/// The rows of one length of prompt.
fn of_length(
    setting: &Setting,
    worker: &RefCell<Worker>,
    name: &str,
    tokens: u64,
) -> Result<Vec<Row>, Failure> {
    let ask = |way: &str, number: usize| worker.borrow_mut().figure(&format!("{way} {tokens} {number}"));
    let rounds = setting.rounds.max(1);
    let count = COLD.min(rounds);
    let mut cold = Samples::default();
    for number in 0..count {
        cold.add(ask("cold", number)?);
    }
    let mut taken: [Samples; 3] = std::array::from_fn(|_| Samples::default());
    // The first round is thrown away.
    for round in 0..=rounds {
        let number = round % count;
        // The own slot has what the pool brought just before.
        let mut ways: [Way<'_>; 3] = [
            Box::new(|| ask("pool", number)),
            Box::new(|| ask("own", number)),
            Box::new(|| ask("file", number)),
        ];
        let figures = in_turn(1, &mut ways)?;
        if round > 0 {
            for (samples, figure) in taken.iter_mut().zip(figures) {
                samples.add(figure.median().unwrap_or(f64::NAN));
            }
        }
    }
    Ok(rows(name, &cold, &taken))
}

/// Ours beside the limit, and every other figure in a row of its own.
fn rows(name: &str, cold: &Samples, [pool, own, file]: &[Samples; 3]) -> Vec<Row> {
    let mut row = plain(format!("{name}-pool"), pool);
    row.limit = file.median();
    row.limit_name =
        Some("the same prompt restored by llama-server alone, from a file in a tmpfs".to_owned());
    vec![row, plain(format!("{name}-own-slot"), own), plain(format!("{name}-cold"), cold)]
}

fn plain(case: String, samples: &Samples) -> Row {
    case::row(case, "ms", Better::Lower, std::slice::from_ref(samples), [None, None], None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_stands_beside_the_restore_of_a_file() {
        let samples = |value: f64| {
            let mut samples = Samples::default();
            samples.add(value);
            samples
        };
        let rows = rows("1k", &samples(900.0), &[samples(30.0), samples(9.0), samples(25.0)]);
        let cases: Vec<&str> = rows.iter().map(|row| row.case.as_str()).collect();
        assert_eq!(cases, ["1k-pool", "1k-own-slot", "1k-cold"]);
        assert_eq!((rows[0].ours, rows[0].limit, rows[0].peer), (Some(30.0), Some(25.0), None));
    }
}
