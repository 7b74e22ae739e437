//! Rows of what the runs took, and means over all workloads.

use super::{Case, PEERS, Took};
use crate::bench::report::{Better, Row};
use crate::bench::rounds::Samples;

/// How much slower than the best of the others does not count.
const ALLOWANCE: f64 = 1.05;
const LIMIT: &str = "all of its memory here";

/// Rows of each case, then means for each share of memory.
pub fn rows(cases: &[Case], percents: &[u8]) -> Vec<Row> {
    let mut rows: Vec<Row> = cases.iter().flat_map(of_case).collect();
    for percent in percents {
        let cases: Vec<&Case> = cases.iter().filter(|case| case.percent == *percent).collect();
        rows.extend(means(&cases, *percent));
    }
    rows
}

impl Took {
    /// Seconds, or after how many it was ended.
    fn seconds(&self) -> Option<f64> {
        self.more_than.or_else(|| self.seconds.median())
    }
}

impl Case {
    /// The quickest of the others.
    fn best(&self) -> Option<usize> {
        let seconds = self.peers.iter().map(Took::seconds).enumerate();
        let known = seconds.filter_map(|(index, seconds)| Some((index, seconds?)));
        known.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(index, _)| index)
    }

    /// How many times as fast ours is as another.
    fn speed_up(&self, peer: usize) -> Option<f64> {
        Some(self.peers[peer].seconds()? / self.ours.seconds()?)
    }
}

fn of_case(case: &Case) -> Vec<Row> {
    let name = format!("{}-{}", case.work.name, case.percent);
    let mut rows = Vec::new();
    let best = case.best();
    let mut first = time(&name, case, best);
    first.why = Some(remarks(case));
    rows.push(first);
    rows.push(cpu(format!("{name}-cpu"), case, best));
    for (index, (_, word, _)) in PEERS.iter().enumerate() {
        rows.push(time(&format!("{name}-{word}"), case, Some(index)));
        rows.push(cpu(format!("{name}-{word}-cpu"), case, Some(index)));
    }
    rows
}

/// Seconds from start to end.
fn time(name: &str, case: &Case, peer: Option<usize>) -> Row {
    let peer_name = |index: usize| {
        let more = if case.peers[index].more_than.is_some() { "more than this: " } else { "" };
        format!("{more}{}", PEERS[index].2)
    };
    Row {
        ours: case.ours.seconds(),
        spread: case.ours.seconds.spread(),
        runs: case.ours.seconds.count(),
        limit: case.plain.seconds(),
        limit_name: Some(LIMIT.to_owned()),
        peer: peer.and_then(|index| case.peers[index].seconds()),
        peer_name: peer.map(peer_name),
        why: peer.and_then(|index| case.peers[index].why.clone()),
        ..Row::new(name, "s", Better::Lower)
    }
}

/// Processor seconds.
fn cpu(name: String, case: &Case, peer: Option<usize>) -> Row {
    let peer_seconds = peer.and_then(|index| case.peers[index].cpu_seconds.median());
    Row {
        ours: case.ours.cpu_seconds.median(),
        spread: case.ours.cpu_seconds.spread(),
        runs: case.ours.cpu_seconds.count(),
        limit: case.plain.cpu_seconds.median(),
        limit_name: Some(LIMIT.to_owned()),
        peer: peer_seconds,
        peer_name: peer_seconds.and(peer).map(|index| PEERS[index].2.to_owned()),
        ..Row::new(name, "processor s", Better::Lower)
    }
}

/// What was run, and what each run said that is no figure of its row.
fn remarks(case: &Case) -> String {
    let mebibytes = |bytes: u64| bytes >> 20;
    let mut parts = vec![format!(
        "size {}, peak {} MiB, {} of them pages of files; ours is `hinterland run --local {}` with its default back end, lz4; the \
         others may have {} MiB beside the pages of files",
        case.work.scale,
        mebibytes(case.peak_bytes),
        mebibytes(case.file_bytes),
        case.local_bytes,
        mebibytes(case.local_bytes - case.file_bytes)
    )];
    let names = ["plain", "ours"].into_iter().chain(PEERS.iter().map(|peer| peer.1));
    let all = [&case.plain, &case.ours].into_iter().chain(&case.peers);
    let system = |samples: &Samples| samples.median().map(|seconds| format!("{seconds:.2}"));
    let kernel: Vec<String> = names
        .zip(all.clone())
        .filter_map(|(name, took)| Some(format!("{name} {} s", system(&took.system_seconds)?)))
        .collect();
    parts.push(format!("processor time in the kernel: {}", kernel.join(", ")));
    parts.extend(all.filter_map(|took| took.why.clone()));
    if let Some(seconds) = case.ours.more_than {
        parts.push(format!("ours was ended after {seconds:.0} s"));
    }
    if !case.ours.words.is_empty() {
        parts.push(case.ours.words.replace('\n', " "));
    }
    parts.join("; ")
}

/// Geometric means of how many times as fast ours is, and how many workloads are slower.
fn means(cases: &[&Case], percent: u8) -> Vec<Row> {
    let best: Vec<(&str, f64)> = cases
        .iter()
        .filter_map(|case| Some((case.work.name.as_str(), case.speed_up(case.best()?)?)))
        .collect();
    let mut rows = vec![mean(format!("mean-{percent}"), "the best of the others", &best)];
    for (index, (_, word, name)) in PEERS.iter().enumerate() {
        let ratios: Vec<(&str, f64)> =
            cases.iter().filter_map(|case| Some((case.work.name.as_str(), case.speed_up(index)?))).collect();
        rows.push(mean(format!("mean-{percent}-{word}"), name, &ratios));
    }
    let slower: Vec<&str> =
        best.iter().filter(|(_, ratio)| ratio * ALLOWANCE < 1.0).map(|(name, _)| *name).collect();
    let case = format!("slower-{percent}");
    let without = cases.len() - best.len();
    rows.push(Row {
        ours: Some(slower.len() as f64),
        runs: best.len(),
        limit: Some(0.0),
        why: Some(format!(
            "more than 5 % slower than the best of the others: {}; not measured: {without}",
            words(&slower)
        )),
        ..Row::new(case, "workloads", Better::Lower)
    });
    rows
}

fn words(names: &[&str]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn mean(case: String, name: &str, ratios: &[(&str, f64)]) -> Row {
    let mut samples = Samples::default();
    ratios.iter().for_each(|(_, ratio)| samples.add(*ratio));
    let sum: f64 = ratios.iter().map(|(_, ratio)| ratio.ln()).sum();
    if ratios.is_empty() {
        return Row::absent(case, "times as fast", Better::Higher, format!("no figure of {name}"));
    }
    Row {
        ours: Some((sum / ratios.len() as f64).exp()),
        spread: samples.spread(),
        runs: ratios.len(),
        peer: Some(1.0),
        peer_name: Some(name.to_owned()),
        why: Some(format!("geometric mean of {} workloads", ratios.len())),
        ..Row::new(case, "times as fast", Better::Higher)
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::Work;
    use super::*;

    fn took(seconds: f64) -> Took {
        let mut took = Took::default();
        took.seconds.add(seconds);
        took.cpu_seconds.add(seconds);
        took.system_seconds.add(0.0);
        took
    }

    fn case(name: &str, ours: f64, peers: [Took; 3]) -> Case {
        Case {
            work: Work { name: name.to_owned(), scale: 1.0 },
            percent: 50,
            peak_bytes: 100 << 20,
            file_bytes: 10 << 20,
            local_bytes: 50 << 20,
            plain: took(1.0),
            ours: took(ours),
            peers: peers.to_vec(),
        }
    }

    fn find(rows: &[Row], case: &str) -> Row {
        rows.iter().find(|row| row.case == case).unwrap().clone()
    }

    #[test]
    fn means_and_losses_are_against_the_best_of_the_others() {
        let crawl = Took { more_than: Some(80.0), ..Took::default() };
        let absent = Took { why: Some("no zswap".to_owned()), ..Took::default() };
        let cases = [
            case("sort", 2.0, [took(8.0), crawl.clone(), absent.clone()]),
            case("fft", 2.0, [took(2.0), took(1.0), absent]),
        ];
        let rows = rows(&cases, &[50]);
        for (case, mean) in [("mean-50", 2.0f64.sqrt()), ("mean-50-zram", 2.0)] {
            let found = find(&rows, case).ours.unwrap();
            assert!((found - mean).abs() < 1e-9, "{case}: {found}");
        }
        assert_eq!(find(&rows, "mean-50-zswap").ours, None);
        let slower = find(&rows, "slower-50");
        assert!(slower.ours == Some(1.0) && slower.why.unwrap().contains(": fft;"));
        let disk = find(&rows, "sort-50-disk");
        assert_eq!((disk.peer, disk.peer_name.as_deref()), (Some(80.0), Some("more than this: disk swap")));
        assert_eq!(find(&rows, "sort-50-disk-cpu").peer, None);
        assert_eq!(find(&rows, "sort-50-zswap").why.as_deref(), Some("no zswap"));
        assert_eq!(find(&rows, "fft-50").peer_name.as_deref(), Some("disk swap"));
    }
}
