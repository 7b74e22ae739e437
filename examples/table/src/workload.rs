//! The workloads A to F of YCSB: which operation comes next, and on which record.
//!
//! Records are numbered from 0. Popularity is uniform or zipfian with the constant 0.99; popular records are spread over all
//! numbers by a hash, but for D, whose latest records are the popular ones. The workloads are described at
//! <https://github.com/brianfrankcooper/YCSB/wiki/Core-Workloads>.

use xxhash_rust::xxh3::xxh3_64;

/// How skewed YCSB's zipfian workloads are.
const THETA: f64 = 0.99;
/// Longest scan of workload E.
const SCAN_MAX: u64 = 100;

/// One of the six.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Workload {
    /// Half reads, half updates
    A,
    /// 95 % reads, 5 % updates
    B,
    /// Reads
    C,
    /// 95 % reads of the latest, 5 % inserts
    D,
    /// 95 % scans, 5 % inserts
    E,
    /// Half reads, half read-modify-writes
    F,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Read a record.
    Read(u64),
    /// Write a record that is there.
    Update(u64),
    /// Write a record that is not there yet.
    Insert(u64),
    /// Read so many records from one on.
    Scan(u64, u64),
    /// Read a record and write it.
    Modify(u64),
}

/// A source of operations; the same seed gives the same.
#[derive(Debug)]
pub struct Operations {
    workload: Workload,
    random: u64,
    zipf: Option<Zipf>,
    /// Records that were there at the start.
    loaded: u64,
    inserted: u64,
    /// Which of `parts` sources this is: each inserts records of its own.
    part: u64,
    parts: u64,
}

impl Operations {
    /// Operations on `records` records, as one of several sources.
    pub fn new(workload: Workload, records: u64, is_uniform: bool, (part, parts): (u64, u64)) -> Self {
        let zipf = (!is_uniform).then(|| Zipf::new(records));
        let random = xxh3_64(&part.to_le_bytes()) | 1;
        Self { workload, random, zipf, loaded: records, inserted: 0, part, parts }
    }

    /// The next operation.
    pub fn draw(&mut self) -> Operation {
        let chance = self.random() % 100;
        match self.workload {
            Workload::A if chance < 50 => Operation::Update(self.popular()),
            Workload::B if chance < 5 => Operation::Update(self.popular()),
            Workload::D | Workload::E if chance < 5 => self.insert(),
            Workload::D => Operation::Read(self.latest()),
            Workload::E => {
                let count = self.random() % SCAN_MAX + 1;
                Operation::Scan(self.popular(), count)
            }
            Workload::F if chance < 50 => Operation::Modify(self.popular()),
            _ => Operation::Read(self.popular()),
        }
    }

    fn insert(&mut self) -> Operation {
        self.inserted += 1;
        Operation::Insert(self.number(self.inserted - 1))
    }

    /// The number of an inserted record.
    fn number(&self, inserted: u64) -> u64 {
        self.loaded + inserted * self.parts + self.part
    }

    fn popular(&mut self) -> u64 {
        let random = self.random();
        match &self.zipf {
            Some(zipf) => xxh3_64(&zipf.rank(unit(random)).to_le_bytes()) % self.loaded,
            None => random % self.loaded,
        }
    }

    /// One of the latest: of those that this source has inserted, then of those that were there.
    fn latest(&mut self) -> u64 {
        let random = self.random();
        let back = self.zipf.as_ref().map_or(random % self.loaded, |zipf| zipf.rank(unit(random)));
        match self.inserted.checked_sub(back + 1) {
            Some(inserted) => self.number(inserted),
            None => self.loaded - 1 - (back - self.inserted).min(self.loaded - 1),
        }
    }

    /// xorshift64*: quick, and random enough for popularity.
    fn random(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }
}

/// A number of 48 random bits between 0 and 1.
fn unit(random: u64) -> f64 {
    random as f64 / (1_u64 << 48) as f64
}

/// Ranks with zipfian popularity, by the method of Gray et al. (SIGMOD 1994) that YCSB uses.
#[derive(Debug)]
struct Zipf {
    count: u64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    fn new(count: u64) -> Self {
        let zeta = |count: u64| (1..=count).map(|rank| (rank as f64).powf(-THETA)).sum::<f64>();
        let all = zeta(count);
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - THETA)) / (1.0 - zeta(2) / all);
        Self { count, zeta: all, alpha: 1.0 / (1.0 - THETA), eta }
    }

    fn rank(&self, unit: f64) -> u64 {
        let scaled = unit * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5_f64.powf(THETA) {
            return 1;
        }
        let rank = self.count as f64 * (self.eta * unit - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.count - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(workload: Workload) -> [usize; 5] {
        let mut operations = Operations::new(workload, 1000, false, (1, 2));
        let mut shares = [0; 5];
        for _ in 0..10_000 {
            let (kind, record) = match operations.draw() {
                Operation::Read(record) => (0, record),
                Operation::Update(record) => (1, record),
                Operation::Insert(record) => (2, record),
                Operation::Scan(record, _) => (3, record),
                Operation::Modify(record) => (4, record),
            };
            shares[kind] += 1;
            let is_new = record >= 1000;
            assert!(if kind == 2 { is_new && record % 2 == 1 } else { !is_new || workload == Workload::D });
        }
        shares.map(|count| (count + 50) / 100)
    }

    #[test]
    fn each_workload_has_its_mix() {
        for (workload, expected) in [
            (Workload::A, [50, 50, 0, 0, 0]),
            (Workload::B, [95, 5, 0, 0, 0]),
            (Workload::C, [100, 0, 0, 0, 0]),
            (Workload::D, [95, 0, 5, 0, 0]),
            (Workload::E, [0, 0, 5, 95, 0]),
            (Workload::F, [50, 0, 0, 0, 50]),
        ] {
            let found = shares(workload);
            assert!(
                found.iter().zip(expected).all(|(found, expected)| found.abs_diff(expected) <= 2),
                "{workload:?}: {found:?}"
            );
        }
    }

    #[test]
    fn the_most_popular_record_has_the_share_that_the_distribution_gives_it() {
        let mut operations = Operations::new(Workload::C, 1000, false, (0, 1));
        let mut counts = vec![0_u32; 1000];
        for _ in 0..100_000 {
            let Operation::Read(record) = operations.draw() else { panic!("C only reads") };
            counts[record as usize] += 1;
        }
        let zeta: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-THETA)).sum();
        let most = f64::from(*counts.iter().max().unwrap()) / 100_000.0;
        // Ranks that hash to the same record add up, hence the room above.
        assert!(most > 0.9 / zeta && most < 1.6 / zeta, "{most} and {}", 1.0 / zeta);
    }
}
