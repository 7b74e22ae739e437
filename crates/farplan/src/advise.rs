//! The setting that suits a program: every candidate is played against its trace, and back ends are ranked by what their cost buys.

use crate::PAGE;
use crate::features::{Features, UNITS};
use crate::replay::{Costs, Gaps, Prediction, Setting, Speed, Unit, footprint_pages, replay, room_bytes};
use crate::trace::{Header, Trace};
use crate::width::WIDTH;

/// Shares of the program's memory, in hundredths, that are tried for the least local memory.
const LOCAL_PERCENTS: [u64; 9] = [10, 20, 30, 40, 50, 60, 70, 80, 90];
/// Back ends that may be used together; each doubles the settings.
const BACK_ENDS_MAX: usize = 4;
/// Threads that read, and as many that write, that are tried.
pub const WIDTHS: [usize; 5] = [1, WIDTH, 4, 8, 16];
/// What another width than the usual one must gain, of the time: threads cost more than the model knows.
const WIDTH_GAIN_MIN: f64 = 0.02;
/// What a sequence needs before fetching ahead is called its reason.
const SEQUENTIAL_MIN: f64 = 0.5;

/// What the best setting is the best by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Goal {
    /// Speed over cost of memory: the paper's memory effectiveness improvement.
    #[default]
    Effect,
    /// Run time alone.
    Time,
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Wishes {
    /// Local memory; `None` for half of what the program touches.
    pub local_bytes: Option<u64>,
    /// Run time over that without far memory that is still good.
    pub slowdown_max: f64,
    /// The back ends that there are.
    pub speeds: Vec<Speed>,
    /// What the engine's steps cost.
    pub costs: Costs,
    /// What counts.
    pub goal: Goal,
}

/// A setting and what it would give.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The setting.
    pub setting: Setting,
    /// What it would give.
    pub told: Prediction,
}

/// Back ends and what they bring for what they cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Effect {
    /// Which of the speeds, together.
    pub back_ends: Vec<usize>,
    /// Seconds with the unit and the prefetch that suit best.
    pub time_s: f64,
    /// Cost of the memory, here and far, over that of having all of it here.
    pub cost: f64,
    /// How often faster than the slowest back ends, over the cost: memory effectiveness improvement.
    pub mei: f64,
}

/// What is advised.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// Features of the program.
    pub features: Features,
    /// Local memory that all choices have.
    pub local_bytes: u64,
    /// Every setting, the quickest first.
    pub choices: Vec<Choice>,
    /// Back ends, those with the highest effect first.
    pub effects: Vec<Effect>,
    /// The recommended setting.
    pub best: Choice,
    /// The least local memory with which the best unit and back ends keep within the slowdown asked for.
    pub local_bytes_least: Option<u64>,
    /// Why, in sentences.
    pub why: Vec<String>,
}

/// Advises on a program by its trace. `None` if there is no back end.
pub fn advise(trace: &Trace, wishes: &Wishes) -> Option<Advice> {
    let gaps = Gaps::of(trace);
    let features = Features::of(trace);
    let footprint = footprint_pages(trace) * PAGE;
    let local_bytes = wishes.local_bytes.unwrap_or_else(|| local_for(trace, footprint / 2));
    let played = |setting: Setting| {
        let told = replay(trace, &gaps, &setting, &wishes.speeds, &wishes.costs);
        Choice { setting, told }
    };
    let mut choices = Vec::new();
    for back_ends in sets(wishes.speeds.len()) {
        for unit in units(&back_ends, &wishes.speeds) {
            let with =
                |ahead| Setting { local_bytes, unit, ahead, width: WIDTH, back_ends: back_ends.clone() };
            let both = [true, false].map(|ahead| played(with(ahead)));
            // The width is tried with the better of both.
            let better = usize::from(both[1].told.time_s < both[0].told.time_s);
            let other_widths = WIDTHS.into_iter().filter(|width| *width != WIDTH);
            let others = other_widths.map(|width| played(Setting { width, ..both[better].setting.clone() }));
            choices.extend(others);
            choices.extend(both);
        }
    }
    choices.sort_by(|a, b| a.told.time_s.total_cmp(&b.told.time_s));
    let effects = effects(&choices, &wishes.speeds, footprint);
    let wanted = match wishes.goal {
        Goal::Time => None,
        Goal::Effect => effects.first().map(|effect| &effect.back_ends),
    };
    let suits = |choice: &&Choice| wanted.is_none_or(|wanted| choice.setting.back_ends == *wanted);
    let best = calmest(choices.iter().find(suits)?, &choices).clone();
    let least = LOCAL_PERCENTS.into_iter().map(|percent| local_for(trace, footprint / 100 * percent));
    let local_bytes_least = least.clone().find(|local_bytes| {
        let told = played(Setting { local_bytes: *local_bytes, ..best.setting.clone() }).told;
        told.time_s <= told.plain_s * wishes.slowdown_max
    });
    let mut why = why(&features, &best, &choices, &effects, wishes);
    why.extend(doubts(trace, &best.setting, footprint));
    Some(Advice { features, local_bytes, choices, effects, best, local_bytes_least, why })
}

/// `--local` with which so many bytes of what is under service can be here.
pub fn local_for(trace: &Trace, bytes: u64) -> u64 {
    let asked = 1 << 50;
    // What the model keeps back from any budget.
    bytes.max(room_bytes(trace, 0)) + (asked - room_bytes(trace, asked))
}

/// What may move at once with these back ends.
fn units(back_ends: &[usize], speeds: &[Speed]) -> Vec<Unit> {
    let can_fit = back_ends.iter().filter_map(|index| speeds.get(*index)).all(|speed| speed.is_exact);
    UNITS.into_iter().map(Unit::Bytes).chain(can_fit.then_some(Unit::Fitted)).collect()
}

/// Of the settings that differ from a good one in nothing but the width and are about as quick, the usual one, else the narrowest.
pub fn calmest<'choice>(good: &'choice Choice, choices: &'choice [Choice]) -> &'choice Choice {
    let Choice { setting, told } = good;
    let is_as_good = |other: &&Choice| {
        let same = Setting { width: setting.width, ..other.setting.clone() };
        same == *setting && other.told.time_s * (1.0 - WIDTH_GAIN_MIN) <= told.time_s
    };
    let rank = |choice: &&Choice| (choice.setting.width != WIDTH, choice.setting.width);
    choices.iter().filter(is_as_good).min_by_key(rank).unwrap_or(good)
}

/// All sets of back ends, small ones first.
fn sets(count: usize) -> Vec<Vec<usize>> {
    let count = count.min(BACK_ENDS_MAX);
    let mut sets: Vec<Vec<usize>> =
        (1u32..1 << count).map(|bits| (0..count).filter(|index| bits & 1 << index != 0).collect()).collect();
    sets.sort_by_key(Vec::len);
    sets
}

fn effects(choices: &[Choice], speeds: &[Speed], footprint: u64) -> Vec<Effect> {
    // Sorted by time: the first of each set is its best.
    let mut effects: Vec<Effect> = Vec::new();
    for choice in choices {
        let back_ends = &choice.setting.back_ends;
        if effects.iter().any(|effect| effect.back_ends == *back_ends) {
            continue;
        }
        let price =
            back_ends.iter().filter_map(|index| speeds.get(*index)).map(|speed| speed.cost).sum::<f64>()
                / back_ends.len().max(1) as f64;
        let far = choice.told.far_bytes_max.min(footprint) as f64 / footprint.max(1) as f64;
        let cost = (1.0 - far + far * price).max(0.01);
        effects.push(Effect { back_ends: back_ends.clone(), time_s: choice.told.time_s, cost, mei: 0.0 });
    }
    let slowest = effects.iter().map(|effect| effect.time_s).fold(0.0, f64::max);
    for effect in &mut effects {
        effect.mei = slowest / effect.time_s.max(1e-9) / effect.cost;
    }
    effects.sort_by(|a, b| b.mei.total_cmp(&a.mei));
    effects
}

fn why(
    features: &Features,
    best: &Choice,
    choices: &[Choice],
    effects: &[Effect],
    wishes: &Wishes,
) -> Vec<String> {
    let names = |back_ends: &[usize]| {
        let names: Vec<&str> =
            back_ends.iter().filter_map(|index| Some(wishes.speeds.get(*index)?.name.as_str())).collect();
        names.join(",")
    };
    let kib = |bytes: u64| bytes >> 10;
    let percent = |share: f64| (share * 100.0).round();
    let unit = best.setting.unit.bytes();
    if best.told.faults == 0 {
        return vec!["all of the program's memory fits, so that nothing is far".to_owned()];
    }
    let mut why = vec![format!(
        "{} {} KiB: {} of 100 pages of such a unit are touched while it is here, and {} of 100 of one of 2 MiB",
        if best.setting.unit == Unit::Fitted { "units as each place uses them, up to" } else { "unit" },
        kib(unit),
        percent(features.use_of(unit)),
        percent(features.use_of(2 << 20)),
    )];
    let beside = |setting: Setting| choices.iter().find(|choice| choice.setting == setting);
    let same = &best.setting;
    if let Some(other) = beside(Setting { ahead: !same.ahead, ..same.clone() })
        .or_else(|| beside(Setting { ahead: !same.ahead, width: WIDTH, ..same.clone() }))
    {
        why.push(format!(
            "fetching ahead {}: {} of 100 touches are in order{}; {:.2} s against {:.2} s",
            if best.setting.ahead { "on" } else { "off" },
            percent(features.sequential_ratio),
            if features.sequential_ratio >= SEQUENTIAL_MIN { ", in long runs" } else { "" },
            best.told.time_s,
            other.told.time_s,
        ));
    }
    why.extend(why_so_wide(best, choices));
    if let Some(effect) = effects.iter().find(|effect| effect.back_ends == best.setting.back_ends) {
        why.push(format!(
            "back ends {}: memory costs {} of 100 of having all of it here, effect {:.2}",
            names(&effect.back_ends),
            percent(effect.cost),
            effect.mei,
        ));
    }
    why.push(format!(
        "{} of 100 of the memory has 80 of 100 touches that were seen: what local memory should hold at least",
        percent(features.hot_ratio)
    ));
    why
}

/// What other widths would give.
fn why_so_wide(best: &Choice, choices: &[Choice]) -> Option<String> {
    let width = best.setting.width;
    let same = |choice: &&Choice| Setting { width, ..choice.setting.clone() } == best.setting;
    let mut others: Vec<&Choice> = choices.iter().filter(same).collect();
    others.sort_by_key(|choice| choice.setting.width);
    let each = |choice: &&Choice| format!("{:.2} s with {}", choice.told.time_s, choice.setting.width);
    let told: Vec<String> = others.iter().map(each).collect();
    (told.len() > 1).then(|| format!("width {width}, threads that read and that write: {}", told.join(", ")))
}

/// What the trace cannot tell of a setting.
fn doubts(trace: &Trace, setting: &Setting, footprint: u64) -> Vec<String> {
    let Header { unit_bytes, window_bytes, window_percent } = trace.header;
    // What a file says may be anything.
    let window = window_bytes.max((footprint / 100).saturating_mul(window_percent));
    let mut doubts = Vec::new();
    if setting.local_bytes < window {
        doubts.push(format!(
            "more will miss than is told: the trace saw nothing of what the program did within {} MiB, and less than that is to be here",
            window >> 20
        ));
    }
    if unit_bytes > PAGE && setting.unit.bytes() <= unit_bytes {
        doubts.push(format!(
            "the trace tells no less than {} KiB apart: whether smaller units suit is seen in one of `hinterland trace`",
            unit_bytes >> 10
        ));
    }
    doubts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::tests::trace_of;

    fn wishes(goal: Goal) -> Wishes {
        let speed = |name: &str, once, kib, cost| Speed {
            name: name.to_owned(),
            get_ns: once,
            get_kib_ns: kib,
            put_ns: once,
            put_kib_ns: kib,
            cost,
            ..Speed::default()
        };
        let speeds = vec![speed("near", 1000.0, 100.0, 0.9), speed("wide", 80_000.0, 900.0, 0.02)];
        Wishes { local_bytes: None, slowdown_max: 1.5, speeds, costs: Costs::default(), goal }
    }

    fn scan() -> crate::trace::Trace {
        trace_of(&(0..16_384).cycle().take(3 * 16_384).collect::<Vec<u64>>(), |_| false)
    }

    fn random() -> crate::trace::Trace {
        let mut state = 7u64;
        let mut pages: Vec<u64> = (0..16_384).collect();
        pages.extend((0..20_000).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % 16_384
        }));
        trace_of(&pages, |_| false)
    }

    #[test]
    fn a_scan_gets_large_units_and_a_random_reader_the_smallest() {
        let of = |trace| advise(trace, &wishes(Goal::Time)).unwrap();
        let (scan, random) = (of(&scan()), of(&random()));
        assert!(scan.best.setting.unit.bytes() >= 64 << 10, "{:?}", scan.best);
        assert!(random.best.setting.unit.bytes() <= 16 << 10, "{:?}", random.best);
        assert_eq!(scan.choices.len(), 3 * 5 * (2 + 4));
        assert!(scan.choices.is_sorted_by(|a, b| a.told.time_s <= b.told.time_s));
        assert!(scan.why.len() >= 3);
    }

    #[test]
    fn the_quick_back_end_wins_by_time_and_a_cheap_one_where_far_memory_is_hardly_used() {
        let random = advise(&random(), &wishes(Goal::Time)).unwrap();
        assert_eq!(random.best.setting.back_ends, [0]);
        // A program that touches its memory once, and computes a minute: what is far is never wanted again.
        let mut once = trace_of(&(0..16_384).collect::<Vec<u64>>(), |_| true);
        once.time_ns = 60_000_000_000;
        let once = advise(&once, &wishes(Goal::Effect)).unwrap();
        assert_eq!(once.best.setting.back_ends, [1], "{:?}", once.effects);
    }

    #[test]
    fn a_scan_over_a_wide_disk_gets_a_width_and_one_that_gains_nothing_keeps_the_usual_one() {
        let disk = |together| Speed {
            get_ns: 100_000.0,
            get_kib_ns: 3_000.0,
            put_ns: 100_000.0,
            put_kib_ns: 3_000.0,
            get_together: together,
            put_together: together,
            sleeps: true,
            ..Speed::default()
        };
        let of = |speed| advise(&scan(), &Wishes { speeds: vec![speed], ..wishes(Goal::Time) }).unwrap();
        let (wide, narrow) = (of(disk(16.0)), of(disk(1.0)));
        assert!(wide.best.setting.width > WIDTH, "{:?}", wide.best);
        assert!(wide.why.iter().any(|why| why.starts_with("width ")), "{:?}", wide.why);
        assert_eq!(narrow.best.setting.width, WIDTH);
        // The narrowest of those that are as good.
        let choice = |width, time_s| Choice {
            setting: Setting { width, ..wide.best.setting.clone() },
            told: Prediction { time_s, ..Prediction::default() },
        };
        let choices = [choice(16, 1.0), choice(8, 1.01), choice(4, 1.1), choice(WIDTH, 1.5)];
        assert_eq!(calmest(&choices[0], &choices).setting.width, 8);
        let choices = [choice(1, 1.0), choice(WIDTH, 1.01)];
        assert_eq!(calmest(&choices[0], &choices).setting.width, WIDTH);
    }

    #[test]
    fn units_are_fitted_where_that_is_best_and_every_back_end_is_exact() {
        // One page of each block of four, at random, and then all of them in order.
        let mut state = 7u64;
        let mut pages: Vec<u64> = (0..32_768).collect();
        pages.extend((0..100_000).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % 4096 * 4
        }));
        pages.extend((16_384..32_768).cycle().take(4 * 16_384));
        let trace = trace_of(&pages, |_| true);
        let exact = |is_exact| {
            let speeds = wishes(Goal::Time).speeds.into_iter();
            let speeds = speeds.map(|speed| Speed { is_exact, ..speed }).take(1).collect();
            let local_bytes = Some(60 << 20);
            advise(&trace, &Wishes { speeds, local_bytes, ..wishes(Goal::Time) }).unwrap()
        };
        let is_fitted = |choice: &&Choice| choice.setting.unit == Unit::Fitted;
        let (fitted, fixed) = (exact(true), exact(false));
        assert_eq!(fixed.choices.iter().filter(is_fitted).count(), 0);
        assert_eq!(fitted.best.setting.unit, Unit::Fitted, "{:?}", &fitted.choices[..9]);
        assert!(fitted.best.told.time_s < fixed.best.told.time_s);
        assert!(fitted.why[0].contains("as each place uses them"), "{:?}", fitted.why);
    }

    #[test]
    fn what_the_trace_of_a_run_could_not_see_is_told() {
        let told = |header: Header| {
            let trace = Trace { header, ..random() };
            let footprint = footprint_pages(&trace) * PAGE;
            doubts(
                &trace,
                &Setting {
                    local_bytes: 32 << 20,
                    unit: Unit::Bytes(16 << 10),
                    ahead: true,
                    width: WIDTH,
                    back_ends: vec![0],
                },
                footprint,
            )
        };
        let fine = Header { unit_bytes: PAGE, window_bytes: 32 << 20, window_percent: 0 };
        assert!(told(fine).is_empty());
        // Half of 64 MiB is here, and 60 hundredths were in sight.
        let share = told(Header { window_bytes: 0, window_percent: 60, ..fine });
        assert!(share.len() == 1 && share[0].contains("within 38 MiB"), "{share:?}");
        let coarse = told(Header { unit_bytes: 64 << 10, ..fine });
        assert!(coarse.len() == 1 && coarse[0].contains("64 KiB apart"), "{coarse:?}");
    }

    #[test]
    fn a_trace_that_says_more_than_can_be_is_played_as_another() {
        use crate::trace::{Kind, Record};
        let most = |kind: Kind| Record {
            time_ns: u64::MAX,
            address: u64::MAX,
            kind,
            space: u8::MAX,
            flags: u16::MAX,
            amount: u32::MAX,
        };
        let wide = Header { unit_bytes: PAGE, window_bytes: u64::MAX, window_percent: u64::MAX };
        for kind in
            [Kind::First, Kind::Again, Kind::Write, Kind::Drop, Kind::Census, Kind::Usage, Kind::Content]
        {
            for at in [0, 100] {
                let mut trace = trace_of(&(0..512).collect::<Vec<u64>>(), |_| true);
                trace.header = wide;
                trace.time_ns = u64::MAX;
                trace.records.insert(at, most(kind));
                let advice = advise(&trace, &wishes(Goal::Effect)).unwrap();
                assert!(advice.choices.iter().all(|choice| !choice.told.time_s.is_nan()), "{kind:?}");
            }
        }
    }

    #[test]
    fn effects_are_speed_over_cost() {
        let advice = advise(&random(), &wishes(Goal::Effect)).unwrap();
        let slowest = advice.effects.iter().map(|effect| effect.time_s).fold(0.0, f64::max);
        for effect in &advice.effects {
            assert!((effect.mei - slowest / effect.time_s / effect.cost).abs() < 1e-9);
        }
        assert!(advice.effects.is_sorted_by(|a, b| a.mei >= b.mei));
        assert_eq!(advice.best.setting.back_ends, advice.effects[0].back_ends);
    }

    #[test]
    fn less_local_memory_is_enough_for_who_bears_more() {
        let patient = Wishes { slowdown_max: 1000.0, ..wishes(Goal::Time) };
        let strict = Wishes { slowdown_max: 1.01, ..wishes(Goal::Time) };
        let patient = advise(&random(), &patient).unwrap().local_bytes_least.unwrap();
        let strict = advise(&random(), &strict).unwrap().local_bytes_least.unwrap_or(u64::MAX);
        assert!(patient < strict, "{patient} {strict}");
        assert_eq!(advise(&random(), &Wishes { speeds: Vec::new(), ..wishes(Goal::Time) }), None);
    }
}
