//! Heat against a plain model that remembers every access, and the rules that keep pages from wandering.

use super::*;
use hinterland_types::PageNumber;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

fn page(number: u32) -> PageNumber {
    PageNumber::new(number).unwrap()
}

fn rules(settings: HeatSettings) -> HeatRules {
    HeatRules::new(settings).unwrap()
}

fn reads(reads: u64) -> Heat {
    Heat { reads, writes: 0 }
}

fn writes(writes: u64) -> Heat {
    Heat { reads: 0, writes }
}

const SECOND: Duration = Duration::from_secs(1);

/// Every access of one page with its time.
#[derive(Default, Clone)]
struct Remembered(Vec<(f64, u64, u64)>);

impl Remembered {
    fn heat(&self, settings: &HeatSettings, now: f64) -> (f64, f64) {
        let lifetime = settings.lifetime.as_secs_f64();
        let (mut reads, mut writes, mut last) = (0.0, 0.0, now);
        // Youngest first, until a gap ends the life of the page.
        for &(at, read, written) in self.0.iter().rev() {
            if last - at > lifetime {
                break;
            }
            let weight = (-settings.decay_per_s * (now - at)).exp();
            reads += read as f64 * weight;
            writes += written as f64 * weight;
            last = at;
        }
        (reads, writes)
    }
}

proptest! {
    #[test]
    fn heat_is_what_a_list_of_all_accesses_gives(
        steps in proptest::collection::vec((0u32..6, 0u64..50, 0u64..50, 0u64..130_000), 1..120),
        decay in prop_oneof![Just(0.0), Just(0.04), 0.0..2.0f64],
    ) {
        let settings = HeatSettings { decay_per_s: decay, ..HeatSettings::default() };
        let mut table = HeatTable::new(rules(settings));
        let mut model: BTreeMap<u32, Remembered> = BTreeMap::new();
        let mut now = Duration::ZERO;
        for (number, reads, writes, passed_ms) in steps {
            now += Duration::from_millis(passed_ms / (1 + u64::from(number) * 40));
            table.record(page(number), reads, writes, now);
            if reads + writes > 0 {
                model.entry(number).or_default().0.push((now.as_secs_f64(), reads, writes));
            }
            for (&number, remembered) in &model {
                let (reads, writes) = remembered.heat(&settings, now.as_secs_f64());
                let heat = table.heat(page(number), now);
                prop_assert!((heat.reads as f64 - reads).abs() < 0.51, "{heat:?} {reads}");
                prop_assert!((heat.writes as f64 - writes).abs() < 0.51, "{heat:?} {writes}");
            }
        }
        prop_assert_eq!(table.len(), model.len());
    }

    #[test]
    fn a_full_table_forgets_one_of_the_coldest(
        steps in proptest::collection::vec((0u32..40, 1u64..200, 0u64..2000), 1..300),
    ) {
        let settings = HeatSettings { pages_max: 8, ..HeatSettings::default() };
        let mut table = HeatTable::new(rules(settings));
        let mut known: BTreeMap<u32, ()> = BTreeMap::new();
        let mut now = Duration::ZERO;
        for (number, count, passed_ms) in steps {
            now += Duration::from_millis(passed_ms);
            let before: BTreeMap<u32, u64> =
                known.keys().map(|&number| (number, table.heat(page(number), now).total())).collect();
            table.record(page(number), count, 0, now);
            known.insert(number, ());
            if known.len() > 8 {
                let coldest = *before.values().min().unwrap() as f64;
                let left: Vec<u32> = before
                    .keys()
                    .copied()
                    .filter(|&number| table.heat(page(number), now) == Heat::ZERO && before[&number] > 0)
                    .collect();
                for &number in &left {
                    // A step of the score is a fifth; rounding adds one.
                    prop_assert!(before[&number] as f64 <= coldest * 1.2 + 1.0, "{before:?} lost {number}");
                }
                let in_table: Vec<u32> =
                    table.hottest(usize::MAX, now).iter().map(|(page, _)| page.raw()).collect();
                known.retain(|number, ()| in_table.contains(number));
            }
            prop_assert!(table.len() <= 8);
            prop_assert_eq!(table.len(), known.len());
        }
    }

    #[test]
    fn any_numbers_of_a_peer_are_decided_on(
        numbers in proptest::array::uniform6(prop_oneof![0u64..2000, any::<u64>()]),
        room in 0u8..3,
    ) {
        let rules = rules(HeatSettings::default());
        let [a, b, c, d, e, f] = numbers;
        let (wanting, home) = (Heat { reads: a, writes: b }, Heat { reads: c, writes: d });
        let victim = Heat { reads: e, writes: f };
        let room = [Room::Free, Room::Full, Room::Victim(victim)][usize::from(room)];
        let decision = rules.decide(wanting, home, room);
        if let Decision::Pull { gain } = decision {
            prop_assert!(gain > 256 && wanting.total() > home.total());
            // The same pair of heats never moves the page back.
            prop_assert!(!rules.decide(home, wanting, Room::Free).is_pull());
        }
    }

    #[test]
    fn a_page_moves_once_at_a_time_and_the_budget_holds(
        steps in proptest::collection::vec((0u32..12, 0u8..3, 0u64..400), 1..400),
    ) {
        let settings = HeatSettings { moves_per_s: 5.0, burst: 3, ..HeatSettings::default() };
        let mut moves = Moves::new(rules(settings));
        let mut moving: Vec<u32> = Vec::new();
        let (mut now, mut moved, mut begun) = (Duration::ZERO, BTreeMap::new(), 0u32);
        for (number, action, passed_ms) in steps {
            now += Duration::from_millis(passed_ms);
            if action == 0 {
                let has_moved = number % 2 == 0;
                moves.end(page(number), has_moved, now);
                if moving.contains(&number) {
                    moving.retain(|&other| other != number);
                    begun += u32::from(has_moved);
                    moved.insert(number, now + if has_moved { settings.rest } else { settings.pause });
                }
            } else {
                match moves.begin(page(number), now) {
                    Ok(()) => {
                        prop_assert!(!moving.contains(&number));
                        prop_assert!(moved.get(&number).is_none_or(|&until| until <= now));
                        moving.push(number);
                    }
                    Err(Why::Moving) => prop_assert!(moving.contains(&number)),
                    Err(Why::Resting) => prop_assert!(moved[&number] > now),
                    Err(why) => prop_assert_eq!(why, Why::Budget),
                }
            }
            prop_assert_eq!(moves.under_way(), moving.len());
            let most = 3.0 + 5.0 * now.as_secs_f64() + 1e-6;
            prop_assert!(f64::from(begun) + moving.len() as f64 <= most);
        }
    }
}

#[test]
fn a_page_without_access_for_its_lifetime_starts_again() {
    let mut table = HeatTable::new(rules(HeatSettings::default()));
    table.record(page(1), 1_000_000, 0, SECOND);
    assert!(table.heat(page(1), SECOND * 101).total() > 18_000);
    assert_eq!(table.heat(page(1), SECOND * 102), Heat::ZERO);
    assert_eq!(table.record(page(1), 0, 1, SECOND * 102), writes(1));
}

#[test]
fn a_clock_that_went_back_does_no_harm() {
    let mut table = HeatTable::new(rules(HeatSettings::default()));
    table.record(page(1), 10, 0, SECOND * 50);
    assert_eq!(table.record(page(1), 10, 0, SECOND), reads(20));
    assert_eq!(table.heat(page(1), SECOND * 50), reads(20));
}

#[test]
fn a_steady_rate_counts_for_twenty_five_seconds() {
    let mut table = HeatTable::new(rules(HeatSettings::default()));
    for tenth in 0..5000 {
        table.record(page(1), 2, 2, Duration::from_millis(100) * tenth);
    }
    let heat = table.heat(page(1), Duration::from_secs(500)).total();
    assert!((995..=1005).contains(&heat), "40 a second are {heat}");
}

#[test]
fn the_threshold_of_four_is_four_moves() {
    let rules = rules(HeatSettings::default());
    assert_eq!(rules.decide(writes(256), Heat::ZERO, Room::Free), Decision::Leave { why: Why::Cold });
    assert_eq!(rules.decide(writes(257), Heat::ZERO, Room::Free), Decision::Pull { gain: 257 });
}

#[test]
fn equal_and_almost_equal_heats_move_nothing() {
    let rules = rules(HeatSettings::default());
    let hot_at_home = Decision::Leave { why: Why::HotAtHome };
    assert_eq!(rules.decide(writes(10_000), writes(10_000), Room::Free), hot_at_home);
    assert_eq!(rules.decide(writes(14_999), writes(10_000), Room::Free), hot_at_home);
    assert_eq!(rules.decide(writes(15_000), writes(10_000), Room::Free), Decision::Pull { gain: 5_000 });
}

#[test]
fn a_page_that_leaves_must_be_worth_less_than_the_one_that_comes() {
    let rules = rules(HeatSettings::default());
    let decide = |victim| rules.decide(writes(1000), writes(100), Room::Victim(writes(victim)));
    assert_eq!(decide(0), Decision::Pull { gain: 900 });
    assert_eq!(decide(566), Decision::Pull { gain: 334 });
    assert_eq!(decide(567), Decision::Leave { why: Why::HotVictim });
    assert_eq!(rules.decide(writes(1000), Heat::ZERO, Room::Full), Decision::Leave { why: Why::NoRoom });
}

#[test]
fn a_read_hot_page_that_stays_is_cached_and_a_written_one_is_not() {
    let rules = rules(HeatSettings::default());
    let cached = Decision::Cache { why: Why::HotAtHome };
    assert_eq!(rules.decide(reads(1000), reads(1000), Room::Free), cached);
    // What the home writes counts as well: each write takes the copies back.
    let written_at_home = Heat { reads: 1000, writes: 250 };
    assert_eq!(
        rules.decide(reads(1000), written_at_home, Room::Free),
        Decision::Leave { why: Why::HotAtHome }
    );
    assert_eq!(rules.decide(reads(1000), Heat::ZERO, Room::Full), Decision::Cache { why: Why::NoRoom });
}

#[test]
fn switches_turn_moves_and_copies_off() {
    let settings = HeatSettings { moves: false, ..HeatSettings::default() };
    let off = Decision::Cache { why: Why::Off };
    assert_eq!(rules(settings).decide(reads(1000), Heat::ZERO, Room::Free), off);
    let settings = HeatSettings { caches: false, ..settings };
    let off = Decision::Leave { why: Why::Off };
    assert_eq!(rules(settings).decide(reads(1000), Heat::ZERO, Room::Free), off);
}

#[test]
fn the_coldest_candidate_leaves_and_unknown_pages_are_coldest() {
    let mut table = HeatTable::new(rules(HeatSettings::default()));
    table.record(page(1), 50, 0, SECOND);
    table.record(page(2), 0, 20, SECOND);
    assert_eq!(table.coldest_of([page(1), page(2)], SECOND), Some((page(2), writes(20))));
    assert_eq!(table.coldest_of([page(1), page(9)], SECOND), Some((page(9), Heat::ZERO)));
    assert_eq!(table.coldest_of([], SECOND), None);
    table.forget(page(2));
    assert_eq!((table.len(), table.is_empty()), (1, false));
    assert_eq!(table.hottest(5, SECOND), [(page(1), reads(50))]);
}

#[test]
fn settings_out_of_range_say_which_and_what_is_allowed() {
    let bad = [
        HeatSettings { threshold: f64::NAN, ..HeatSettings::default() },
        HeatSettings { threshold: 0.0, ..HeatSettings::default() },
        HeatSettings { lead: 0.99, ..HeatSettings::default() },
        HeatSettings { read_share: 1.5, ..HeatSettings::default() },
        HeatSettings { moves_per_s: f64::INFINITY, ..HeatSettings::default() },
        HeatSettings { lifetime: Duration::ZERO, ..HeatSettings::default() },
        HeatSettings { lifetime: Duration::MAX, ..HeatSettings::default() },
        HeatSettings { burst: 0, ..HeatSettings::default() },
        HeatSettings { accesses_per_move: 0, ..HeatSettings::default() },
        HeatSettings { pages_max: 0, ..HeatSettings::default() },
        HeatSettings { decay_per_s: -1.0, ..HeatSettings::default() },
    ];
    for settings in bad {
        assert!(HeatRules::new(settings).is_err(), "{settings:?}");
    }
    let error = HeatRules::new(bad[2]).unwrap_err().to_string();
    assert_eq!(error, "lead of page heat is 0.99 (hint: give a number from 1 to 1000)");
}

/// Two racks, each with one thread that accesses the same pages with the same shares and waits for each access: what each makes
/// depends on how many of the pages are near it. Returns how many of the pages are in the rack that has more of them after half a minute,
/// and how many moves there were.
fn shared_alike(settings: HeatSettings) -> (usize, u64) {
    const PAGES: u32 = 60;
    const ROUND: Duration = Duration::from_millis(10);
    const NEAR_US: f64 = 0.7;
    const FAR_US: f64 = 20.0;
    let rules = rules(settings);
    // Each page has many records, of which a few are used most: the shares differ, and not by much.
    let weight = |number: u32| 1.0 + 20.0 / f64::from(1 + number.wrapping_mul(37) % PAGES);
    let all: f64 = (0..PAGES).map(weight).sum();
    let mut tables = [HeatTable::new(rules), HeatTable::new(rules)];
    let mut moves = [Moves::new(rules), Moves::new(rules)];
    // Two thirds are in one rack at first: programs do not start in the same moment.
    let mut home: Vec<usize> = (0..PAGES as usize).map(|number| usize::from(number % 3 == 0)).collect();
    let (mut moved, mut noise) = (0, 1u64);
    for round in 1..3000 {
        let now = ROUND * round;
        for rack in 0..2 {
            let time = |number: u32| if home[number as usize] == rack { NEAR_US } else { FAR_US };
            let mean_us: f64 = (0..PAGES).map(|number| weight(number) / all * time(number)).sum();
            let made = ROUND.as_secs_f64() * 1e6 / mean_us;
            let counted = made.min(rules.accesses_counted(ROUND) as f64);
            for number in 0..PAGES {
                noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let chance = (noise >> 40) as f64 / (1u64 << 24) as f64;
                let accesses = (counted * weight(number) / all + chance) as u64;
                let heat = tables[rack].record(page(number), accesses, accesses / 4, now);
                if home[number as usize] == rack || moves[rack].begin(page(number), now).is_err() {
                    continue;
                }
                let there = tables[1 - rack].heat(page(number), now);
                let is_free = moves[1 - rack].is_free(page(number), now).is_ok();
                let comes = is_free && rules.decide(heat, there, Room::Free).is_pull();
                moves[rack].end(page(number), comes, now);
                if comes {
                    home[number as usize] = rack;
                    moved += 1;
                }
            }
        }
    }
    let first = home.iter().filter(|rack| **rack == 0).count();
    (first.max(home.len() - first), moved)
}

#[test]
fn pages_that_two_racks_use_alike_do_not_gather_in_one() {
    let (most, moved) = shared_alike(HeatSettings::default());
    assert!(most <= 44 && moved < 10, "{most} of 60 pages are in one rack after {moved} moves");
    // What the limit is for.
    let settings = HeatSettings { thread_accesses_per_s: u32::MAX, ..HeatSettings::default() };
    let (most, moved) = shared_alike(settings);
    assert!(most > 55, "{most} of 60 pages are in one rack after {moved} moves");
}
