//! `far-isolation`: how long a quiet program waits for its far memory while another one storms the same back end.

use super::swap::{Kind, Swap};
use super::{BESIDE_BYTES, far_program, filled, lender};
use crate::bench::case::row;
use crate::bench::ground::Ground;
use crate::bench::report::{Better, Row};
use crate::bench::rounds::{Samples, Way, in_turn};
use crate::bench::worker::Worker;
use crate::bench::{Bench, Setting};
use crate::failure::Failure;
use std::cell::RefCell;
use std::time::Duration;

/// Memory of each program, half of it local; the second for `--quick`.
const SIZES: [u64; 2] = [512 << 20, 64 << 20];
/// Bytes that move at once, so many as the kernel swaps; the second for `--quick`.
const UNITS: [&str; 2] = ["4K", "64K"];
/// For how long a figure is taken, in milliseconds; the second for `--quick`.
const TIMES_MS: [u64; 2] = [5000, 200];
/// How much longer the neighbour storms than the victim is looked at, in milliseconds: half of it before.
const MARGIN_MS: u64 = 400;
/// What a victim answers.
const PERCENTILES: [&str; 3] = ["p50", "p99", "p999"];
const ALONE: &str = "the same alone";

/// The bench.
pub struct FarIsolation;

impl Bench for FarIsolation {
    fn name(&self) -> &'static str {
        "far-isolation"
    }

    fn subject(&self) -> &'static str {
        "the wait for far memory of a quiet program while another one storms the same back end"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let bytes = SIZES[usize::from(setting.quick)];
        let ground = Ground::new(setting, 0)?;
        let disk = format!("ssd:{}@{}", ground.folder().display(), 2 * bytes);
        let back_ends = [
            ("lz4", "lz4", Kind::Zram, "zram swap"),
            ("pool", "pool", Kind::Zram, "zram swap"),
            ("ssd", &disk, Kind::Disk, "disk swap"),
        ];
        let local = (bytes / 2 + BESIDE_BYTES).to_string();
        let mut rows = Vec::new();
        for (name, far, kind, peer_name) in back_ends {
            // Its memory is used from the first byte on: it is there only while it is measured.
            let node = if name == "pool" { Some(lender(&ground, 2 * bytes)?) } else { None };
            let unit = UNITS[usize::from(setting.quick)];
            let words = ["--local", &local, "--far", far, "--far-unit", unit];
            let one = || far_program(setting, &ground, node.as_ref(), &words, bytes);
            let ours = [one()?, one()?];
            let peers = if setting.quick {
                Err(Failure::new(
                    "left out with --quick: on a busy disk it takes minutes",
                    "leave --quick out",
                ))
            } else {
                Swap::start(&ground, kind, 4 * bytes).and_then(|swap| swapped(setting, swap, bytes))
            };
            (setting.say)(&format!("far-isolation: {name}"));
            rows.extend(measured(setting, name, peer_name, ours, peers)?);
        }
        Ok(rows)
    }
}

/// Two programs that share the kernel's swap, each with a limit of its own; both are gone before the swap is.
struct Swapped {
    pair: [Worker; 2],
    swap: Swap,
}

fn swapped(setting: &Setting, mut swap: Swap, bytes: u64) -> Result<Swapped, Failure> {
    let mut one = || {
        let command = swap.command(&setting.program, bytes / 2 + BESIDE_BYTES)?;
        filled("a program with swap", command, bytes)
    };
    let pair = [one()?, one()?];
    Ok(Swapped { pair, swap })
}

/// Rows of one back end and its peer.
fn measured(
    setting: &Setting,
    name: &str,
    peer_name: &str,
    ours: [Worker; 2],
    peers: Result<Swapped, Failure>,
) -> Result<Vec<Row>, Failure> {
    let time_ms = TIMES_MS[usize::from(setting.quick)];
    let mut why = None;
    let mut pairs = vec![RefCell::new(ours)];
    let kept_swap = match peers {
        Ok(peers) => {
            pairs.push(RefCell::new(peers.pair));
            Some(peers.swap)
        }
        Err(failure) => {
            why = Some(failure);
            None
        }
    };
    // Alone and beside the neighbour; ours, then the peer: percentiles of each.
    let found = RefCell::new([const { [const { Vec::new() }; PERCENTILES.len()] }; 4]);
    let broken = RefCell::new(why);
    let mut ways: Vec<Way<'_>> = Vec::new();
    for (place, pair) in pairs.iter().enumerate() {
        for is_beside in [false, true] {
            let (found, broken) = (&found, &broken);
            ways.push(Box::new(move || {
                let is_peer = place > 0;
                if is_peer && broken.borrow().is_some() {
                    return Ok(f64::NAN);
                }
                let percentiles = match figures(&mut pair.borrow_mut(), is_beside, time_ms) {
                    // The kernel kills programs of a group when it finds nothing to take out in time.
                    Err(failure) if is_peer => {
                        *broken.borrow_mut() = Some(failure);
                        return Ok(f64::NAN);
                    }
                    told => told?,
                };
                let kept = &mut found.borrow_mut()[2 * place + usize::from(is_beside)];
                kept.iter_mut().zip(&percentiles).for_each(|(kept, value)| kept.push(*value));
                Ok(percentiles.first().copied().unwrap_or(f64::NAN))
            }));
        }
    }
    in_turn(1, &mut ways)?;
    found.borrow_mut().iter_mut().flatten().for_each(Vec::clear);
    in_turn(setting.rounds, &mut ways)?;
    drop(ways);
    // Programs first: what is swapped out would else have to come back.
    drop(pairs);
    drop(kept_swap);
    let why = broken.into_inner();
    let why = why.map(|failure| format!("{peer_name}: {} (hint: {})", failure.text, failure.hint));
    Ok(rows(name, peer_name, &found.into_inner(), why.as_deref()))
}

/// Microseconds of the victim's faults.
fn figures(pair: &mut [Worker; 2], is_beside: bool, time_ms: u64) -> Result<Vec<f64>, Failure> {
    let [victim, neighbour] = pair;
    let storm = format!("storm {}", time_ms + MARGIN_MS);
    if is_beside {
        neighbour.tell(&storm)?;
        std::thread::sleep(Duration::from_millis(MARGIN_MS / 2));
    }
    let figures = victim.ask(&format!("paced {time_ms}"))?;
    if is_beside {
        neighbour.heard(&storm)?;
    }
    if figures.get(PERCENTILES.len()).is_none_or(|faults| *faults == 0.0) {
        return Err(Failure::new("the victim had no faults", "see that nothing else uses its budget"));
    }
    Ok(figures)
}

/// For each percentile: beside the neighbour, and how many times of what it is alone; the peer the same way.
fn rows(
    name: &str,
    peer_name: &str,
    found: &[[Vec<f64>; PERCENTILES.len()]; 4],
    why: Option<&str>,
) -> Vec<Row> {
    let why = why.map(str::to_owned);
    let mut rows = Vec::new();
    for (index, percentile) in PERCENTILES.into_iter().enumerate() {
        let of = |place: usize| samples(found[place][index].iter().copied());
        let times = |place: usize| {
            samples(
                found[place + 1][index].iter().zip(&found[place][index]).map(|(with, alone)| with / alone),
            )
        };
        let case = format!("{name}-{percentile}");
        let peer = |words: &str| why.is_none().then(|| format!("{peer_name}{words}"));
        let us = |case, all: &[Samples], words: [Option<String>; 2]| {
            row(case, "us", Better::Lower, all, words, why.clone())
        };
        rows.push(us(format!("{case}-alone"), &[of(0), of(2)], [None, peer(", alone")]));
        rows.push(us(
            case.clone(),
            &[of(1), of(0), of(3)],
            [Some(ALONE.to_owned()), peer(", with its neighbour")],
        ));
        let words = [Some("1: no difference".to_owned()), peer(": how many times of its own")];
        let all = [times(0), samples([1.0]), times(2)];
        rows.push(row(format!("{case}-times"), "times", Better::Lower, &all, words, why.clone()));
    }
    rows
}

fn samples(values: impl IntoIterator<Item = f64>) -> Samples {
    let mut samples = Samples::default();
    values.into_iter().for_each(|value| samples.add(value));
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_what_it_was_alone_as_limit_and_the_median_of_rounds() {
        let same = |values: [f64; 3]| [(); 3].map(|()| values.to_vec());
        let found = [same([10.0, 20.0, 40.0]), same([20.0, 20.0, 40.0]), same([5.0; 3]), same([50.0; 3])];
        let told = rows("lz4", "zram swap", &found, None);
        assert_eq!(told.len(), 3 * PERCENTILES.len());
        let case = |name: &str| told.iter().find(|row| row.case == name).unwrap();
        let (alone, with) = (case("lz4-p99-alone"), case("lz4-p99"));
        assert_eq!((alone.ours, alone.limit, alone.peer), (Some(20.0), None, Some(5.0)));
        assert_eq!((with.ours, with.limit, with.peer), (Some(20.0), Some(20.0), Some(50.0)));
        let times = case("lz4-p99-times");
        assert_eq!((times.ours, times.spread, times.peer), (Some(1.0), Some([1.0, 2.0]), Some(10.0)));
    }

    #[test]
    fn without_swap_the_row_says_why() {
        let found = [const { [const { Vec::new() }; PERCENTILES.len()] }; 4];
        let told = rows("lz4", "zram swap", &found, Some("no right"));
        assert!(told.iter().all(|row| row.why.as_deref() == Some("no right") && row.peer_name.is_none()));
    }
}
