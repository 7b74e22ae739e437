//! Two racks, pages that each may move, and what is local in the end: skewed, uniform, symmetric and shifting use.

use hinterland_policy::heat::{Heat, HeatRules, HeatSettings, HeatTable, Moves, Room};
use hinterland_types::PageNumber;
use std::time::Duration;

const PAGES: usize = 1000;
/// A rack has room for this many of them.
const ROOM: usize = 550;
/// Accesses of a rack in one step.
const STEP_ACCESSES: usize = 200;
const STEP: Duration = Duration::from_millis(20);
/// A minute.
const STEPS: usize = 3000;
/// Thresholds that are tried.
const HPS: [f64; 4] = [1.0, 2.0, 4.0, 8.0];
/// Pages looked at for a victim.
const CANDIDATES: usize = 32;

/// Seeded numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn shuffled(&mut self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..PAGES).collect();
        for last in (1..PAGES).rev() {
            order.swap(last, self.below(last + 1));
        }
        order
    }
}

/// How pages are drawn: by rank, each as often as `weights` say.
struct Use {
    /// Weights of ranks, summed up.
    sums: Vec<f64>,
    /// The page of each rank, by rack.
    pages: [Vec<usize>; 2],
}

impl Use {
    fn zipfian(random: &mut Random) -> Self {
        let mut sum = 0.0;
        let weight = |rank| {
            sum += 1.0 / f64::powf(rank as f64 + 1.0, 0.99);
            sum
        };
        Self { sums: (0..PAGES).map(weight).collect(), pages: [random.shuffled(), random.shuffled()] }
    }

    fn symmetric(random: &mut Random) -> Self {
        let one = Self::zipfian(random);
        Self { pages: [one.pages[0].clone(), one.pages[0].clone()], ..one }
    }

    fn uniform(random: &mut Random) -> Self {
        let sums = (1..=PAGES).map(|rank| rank as f64).collect();
        Self { sums, pages: [random.shuffled(), random.shuffled()] }
    }

    fn draw(&self, rack: usize, random: &mut Random) -> usize {
        let drawn = random.next() as f64 / u64::MAX as f64 * self.sums[PAGES - 1];
        self.pages[rack][self.sums.partition_point(|&sum| sum < drawn).min(PAGES - 1)]
    }
}

/// Two racks over one set of pages.
struct Racks {
    rules: HeatRules,
    home: Vec<usize>,
    resident: [usize; 2],
    tables: [HeatTable; 2],
    moves: [Moves; 2],
    moved: usize,
    /// How often each page moved.
    moved_of: Vec<usize>,
    /// Local accesses of each quarter of a run, and all.
    local: [usize; 4],
}

impl Racks {
    fn new(settings: HeatSettings) -> Self {
        let rules = HeatRules::new(settings).expect("the settings of this test are valid");
        Self {
            rules,
            home: (0..PAGES).map(|page| page % 2).collect(),
            resident: [PAGES / 2; 2],
            tables: [HeatTable::new(rules), HeatTable::new(rules)],
            moves: [Moves::new(rules), Moves::new(rules)],
            moved: 0,
            moved_of: vec![0; PAGES],
            local: [0; 4],
        }
    }

    fn run(&mut self, used: &Use, from_s: u64, random: &mut Random) {
        self.local = [0; 4];
        let mut counts = vec![[0u64; 2]; PAGES];
        for step in 0..STEPS {
            let now = Duration::from_secs(from_s) + STEP * step as u32;
            for rack in 0..2 {
                let mut touched = Vec::new();
                for _ in 0..STEP_ACCESSES {
                    let page = used.draw(rack, random);
                    self.local[step * 4 / STEPS] += usize::from(self.home[page] == rack);
                    if counts[page] == [0, 0] {
                        touched.push(page);
                    }
                    counts[page][usize::from(random.below(2) == 0)] += 1;
                }
                for page in touched {
                    let [reads, writes] = std::mem::take(&mut counts[page]);
                    let heat = self.tables[rack].record(number(page), reads, writes, now);
                    self.consider(rack, page, heat, now, random);
                }
            }
        }
    }

    /// What the node of `rack` does after it has counted accesses to a page.
    fn consider(&mut self, rack: usize, page: usize, wanting: Heat, now: Duration, random: &mut Random) {
        let home = self.home[page];
        if home == rack || !self.rules.decide(wanting, Heat::ZERO, Room::Free).is_pull() {
            return;
        }
        let victim = if self.resident[rack] < ROOM { None } else { self.victim(rack, now, random) };
        let room = victim.map_or(Room::Free, |(_, heat)| Room::Victim(heat));
        if self.moves[rack].begin(number(page), now).is_err() {
            return;
        }
        let at_home = self.tables[home].heat(number(page), now);
        let goes = self.rules.decide(wanting, at_home, room).is_pull()
            && self.moves[home].begin(number(page), now).is_ok();
        if goes {
            if let Some((victim, _)) = victim {
                self.home[victim] = home;
                self.moved += 1;
                self.moved_of[victim] += 1;
            } else {
                self.resident[rack] += 1;
                self.resident[home] -= 1;
            }
            self.home[page] = rack;
            self.moved += 1;
            self.moved_of[page] += 1;
        }
        self.moves[rack].end(number(page), goes, now);
        self.moves[home].end(number(page), goes, now);
    }

    fn victim(&self, rack: usize, now: Duration, random: &mut Random) -> Option<(usize, Heat)> {
        let candidates: Vec<PageNumber> = std::iter::repeat_with(|| random.below(PAGES))
            .filter(|&page| self.home[page] == rack)
            .take(CANDIDATES)
            .map(number)
            .collect();
        let found = self.tables[rack].coldest_of(candidates, now)?;
        Some((found.0.raw() as usize, found.1))
    }

    /// Local accesses of a quarter, in percent.
    fn local_percent(&self, quarter: usize) -> f64 {
        self.local[quarter] as f64 * 100.0 / (STEPS * STEP_ACCESSES * 2 / 4) as f64
    }
}

fn number(page: usize) -> PageNumber {
    PageNumber::new(page as u32).expect("this test has few pages")
}

fn threshold(threshold: f64) -> HeatSettings {
    HeatSettings { threshold, ..HeatSettings::default() }
}

fn after_a_minute(make: fn(&mut Random) -> Use, settings: HeatSettings, name: &str) -> Racks {
    let mut random = Random(7);
    let used = make(&mut random);
    let mut racks = Racks::new(settings);
    racks.run(&used, 0, &mut random);
    println!(
        "{name:>9} Hp {:>2}: {:>5} moves, local {:.1} % in the last quarter",
        settings.threshold,
        racks.moved,
        racks.local_percent(3)
    );
    racks
}

#[test]
fn skewed_use_becomes_local_and_higher_thresholds_move_less() {
    let mut moved_before = usize::MAX;
    for hp in HPS {
        let racks = after_a_minute(Use::zipfian, threshold(hp), "zipfian");
        assert!(racks.local_percent(3) > 75.0, "{:?} local of {}", racks.local, STEPS * STEP_ACCESSES * 2);
        assert!(racks.moved < moved_before, "Hp {hp}: {} moves", racks.moved);
        moved_before = racks.moved;
    }
    let off = after_a_minute(Use::zipfian, HeatSettings { moves: false, ..threshold(4.0) }, "off");
    assert_eq!(off.moved, 0);
    assert!((40.0..60.0).contains(&off.local_percent(3)), "{:?}", off.local);
}

#[test]
fn uniform_use_moves_next_to_nothing() {
    for hp in HPS {
        let racks = after_a_minute(Use::uniform, threshold(hp), "uniform");
        assert!(racks.moved <= PAGES / 200, "Hp {hp}: {} moves", racks.moved);
        assert!((45.0..55.0).contains(&racks.local_percent(3)), "{:?}", racks.local);
    }
}

#[test]
fn two_racks_that_want_the_same_pages_do_not_pass_them_back_and_forth() {
    for hp in HPS {
        let racks = after_a_minute(Use::symmetric, threshold(hp), "symmetric");
        assert!(racks.moved <= PAGES / 200, "Hp {hp}: {} moves", racks.moved);
        assert!(racks.moved_of.iter().all(|&times| times <= 1), "{:?}", racks.moved_of);
    }
    // Without the lead, the rest and the price of a move they do: the rules above are what prevents it.
    let none = HeatSettings { lead: 1.0, rest: Duration::ZERO, accesses_per_move: 1, ..threshold(1.0) };
    let racks = after_a_minute(Use::symmetric, none, "no lead");
    assert!(racks.moved_of.iter().any(|&times| times > 5), "{:?}", racks.moved_of);
}

#[test]
fn pages_follow_when_use_shifts() {
    let mut random = Random(11);
    let mut racks = Racks::new(threshold(4.0));
    let first = Use::zipfian(&mut random);
    racks.run(&first, 0, &mut random);
    let settled = racks.local_percent(3);
    let second = Use::zipfian(&mut random);
    racks.run(&second, 60, &mut random);
    let (shifted, followed) = (racks.local_percent(0), racks.local_percent(3));
    println!("local {settled:.1} %, after the shift {shifted:.1} %, then {followed:.1} %");
    assert!(followed > settled - 5.0 && followed > 75.0, "{settled} then {shifted} then {followed}");
}

#[test]
fn the_same_seed_gives_the_same_moves() {
    let run = || {
        let mut random = Random(3);
        let used = Use::zipfian(&mut random);
        let mut racks = Racks::new(threshold(2.0));
        racks.run(&used, 0, &mut random);
        (racks.moved, racks.home, racks.local)
    };
    assert_eq!(run(), run());
}
