//! Options of `far-apps`.

use crate::failure::Failure;
use std::path::PathBuf;

/// Hundredths of its own memory that a program may have on this host.
const PERCENTS: [u8; 4] = [90, 70, 50, 30];
/// The same for `--quick`.
const PERCENTS_QUICK: [u8; 1] = [50];
/// One workload of each kind: HPC, graph, AI.
const QUICK: [&str; 3] = ["sort", "pagerank", "kmeans"];
const SCALE_QUICK: f64 = 0.2;

/// Options of `far-apps`; no other bench takes one.
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "far-apps")]
pub struct AppsOptions {
    /// One of `bench/far/workloads.py --list`, so many times as large; may be given several times [default: all, with --quick three]
    #[arg(long = "workload", value_name = "NAME[=SCALE]", value_parser = chosen)]
    workloads: Vec<Chosen>,
    /// Shares of its own memory that a program may have on this host, with commas between [default: 90%,70%,50%,30%, with --quick 50%]
    #[arg(long = "shares", value_name = "PERCENT,...", value_delimiter = ',', value_parser = percent)]
    percents: Vec<u8>,
    /// The size of workloads without one of their own; 1 needs 150 to 300 MiB [default: 1, with --quick 0.2]
    #[arg(long, value_name = "TIMES", value_parser = scale)]
    scale: Option<f64>,
    /// The `hinterland` whose far memory is measured, its library beside it [default: this one]
    #[arg(long, value_name = "PATH")]
    pub program: Option<PathBuf>,
}

/// A workload, and its size if it has one of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    name: String,
    scale: Option<f64>,
}

/// A workload to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// As `workloads.py` calls it.
    pub name: String,
    /// Its size.
    pub scale: f64,
}

impl AppsOptions {
    /// Whether any was given.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }

    /// What to measure, of the workloads that there are.
    ///
    /// # Errors
    /// [`Failure`] for a workload that is none.
    pub fn works(&self, known: &[String], quick: bool) -> Result<Vec<Work>, Failure> {
        let scale = self.scale.unwrap_or(if quick { SCALE_QUICK } else { 1.0 });
        let work = |name: &str, own: Option<f64>| Work { name: name.to_owned(), scale: own.unwrap_or(scale) };
        if self.workloads.is_empty() {
            let wanted = known.iter().filter(|name| !quick || QUICK.contains(&name.as_str()));
            return Ok(wanted.map(|name| work(name, None)).collect());
        }
        if let Some(other) = self.workloads.iter().find(|chosen| !known.contains(&chosen.name)) {
            let text = format!("there is no workload {:?}", other.name);
            return Err(Failure::usage(text, format!("the workloads are: {}", known.join(", "))));
        }
        Ok(self.workloads.iter().map(|chosen| work(&chosen.name, chosen.scale)).collect())
    }

    /// Hundredths of the program's own memory.
    pub fn percents(&self, quick: bool) -> Vec<u8> {
        match (self.percents.is_empty(), quick) {
            (false, _) => self.percents.clone(),
            (true, false) => PERCENTS.to_vec(),
            (true, true) => PERCENTS_QUICK.to_vec(),
        }
    }
}

fn chosen(text: &str) -> Result<Chosen, String> {
    let (name, own) = match text.split_once('=') {
        Some((name, own)) => (name, Some(scale(own)?)),
        None => (text, None),
    };
    Ok(Chosen { name: name.to_owned(), scale: own })
}

fn percent(text: &str) -> Result<u8, String> {
    match text.trim_end_matches('%').parse() {
        Ok(percent @ 1..=100) => Ok(percent),
        _ => Err(format!("{text} is no share (hint: 1% to 100%)")),
    }
}

fn scale(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(scale) if (0.01..=1000.0).contains(&scale) => Ok(scale),
        _ => Err(format!("{text} is no size of a workload (hint: 0.01 to 1000)")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_has_its_own_size_or_that_of_all() {
        let known = ["sort", "kmeans", "pagerank", "fft"].map(str::to_owned);
        let options = AppsOptions {
            workloads: vec![chosen("fft=2.5").unwrap(), chosen("sort").unwrap()],
            scale: Some(0.5),
            ..AppsOptions::default()
        };
        let works = options.works(&known, true).unwrap();
        assert_eq!(works.iter().map(|work| work.scale).collect::<Vec<_>>(), [2.5, 0.5]);
        let quick = AppsOptions::default().works(&known, true).unwrap();
        let names: Vec<&str> = quick.iter().map(|work| work.name.as_str()).collect();
        assert_eq!(names, ["sort", "kmeans", "pagerank"]);
        assert_eq!(AppsOptions::default().works(&known, false).unwrap().len(), known.len());
        let wrong = AppsOptions { workloads: vec![chosen("chess").unwrap()], ..AppsOptions::default() };
        assert!(wrong.works(&known, false).unwrap_err().hint.contains("sort, kmeans"));
    }

    #[test]
    fn what_is_no_share_or_size_is_told() {
        assert_eq!((percent("50"), percent("30%")), (Ok(50), Ok(30)));
        for bad in ["0", "101%", "half", ""] {
            assert!(percent(bad).unwrap_err().contains("hint:"), "{bad}");
        }
        for bad in ["sort=", "sort=0", "sort=nan", "sort=-1"] {
            assert!(chosen(bad).unwrap_err().contains("hint:"), "{bad}");
        }
    }
}
