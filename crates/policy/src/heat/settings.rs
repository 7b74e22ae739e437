//! Parameters of page heat, and the check that makes rules of them.

use std::time::Duration;

/// Switches and parameters; the default has the paper's values where the paper has any.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HeatSettings {
    /// Whether any page is ever moved.
    pub moves: bool,
    /// Whether pages that are mostly read are cached where a move is refused.
    pub caches: bool,
    /// Tl: a page without an access for longer starts again at heat 0.
    pub lifetime: Duration,
    /// Lambda: how fast accesses stop counting, per second, 0 to 1000.
    pub decay_per_s: f64,
    /// Hp: what a move must gain, in moves; above 0.
    pub threshold: f64,
    /// Accesses to another rack that cost what moving a page costs, at least 1.
    pub accesses_per_move: u32,
    /// Accesses of one thread that count in a second, at least 1: a thread whose pages are near makes many times more than one that waits
    /// for each, and would draw all others to it.
    pub thread_accesses_per_s: u32,
    /// Rrw: a page is read-hot if more than this share of its accesses are reads, 0 to 1.
    pub read_share: f64,
    /// How many times the heat of home and victim the wanting rack must have, 1 to 1000.
    pub lead: f64,
    /// For how long a page that moved stays where it is.
    pub rest: Duration,
    /// For how long nobody asks again for a page that was refused.
    pub pause: Duration,
    /// Moves that a rack begins in a second, over time; above 0.
    pub moves_per_s: f64,
    /// Moves that it may begin at once after a quiet time, at least 1.
    pub burst: u32,
    /// Pages of which heat is kept, 1 to 2^25; beyond, the coldest is forgotten. About 100 bytes each.
    pub pages_max: u32,
}

impl Default for HeatSettings {
    fn default() -> Self {
        Self {
            moves: true,
            caches: true,
            lifetime: Duration::from_secs(100),
            decay_per_s: 0.04,
            threshold: 4.0,
            accesses_per_move: 64,
            thread_accesses_per_s: 25_000,
            read_share: 0.9,
            lead: 1.5,
            rest: Duration::from_secs(10),
            pause: Duration::from_secs(1),
            moves_per_s: 100.0,
            burst: 32,
            pages_max: 1 << 16,
        }
    }
}

/// A parameter that no rules can be made of.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
#[error("{name} of page heat is {value} (hint: give a number from {least} to {most})")]
pub struct HeatSettingsError {
    /// The parameter.
    pub name: &'static str,
    /// What it is.
    pub value: f64,
    /// The least that is allowed.
    pub least: f64,
    /// The most that is allowed.
    pub most: f64,
}

/// Settings that were checked.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HeatRules(HeatSettings);

/// Most accesses that a heat can count: sums of two stay far from the end of a `u64`.
pub(super) const ACCESSES_MAX: f64 = 1e15;
/// The smallest number that is told from 0.
const LEAST: f64 = 1e-6;

impl HeatRules {
    /// Checks `settings`.
    ///
    /// # Errors
    /// [`HeatSettingsError`] names the first parameter that is outside its limits.
    pub fn new(settings: HeatSettings) -> Result<Self, HeatSettingsError> {
        let year_s = 365.0 * 86400.0;
        let limits = [
            ("lifetime (s)", settings.lifetime.as_secs_f64(), LEAST, year_s),
            ("decay per second", settings.decay_per_s, 0.0, 1000.0),
            ("threshold", settings.threshold, LEAST, 1e9),
            ("accesses a move", f64::from(settings.accesses_per_move), 1.0, f64::from(u32::MAX)),
            ("accesses of a thread", f64::from(settings.thread_accesses_per_s), 1.0, f64::from(u32::MAX)),
            ("read share", settings.read_share, 0.0, 1.0),
            ("lead", settings.lead, 1.0, 1000.0),
            ("rest (s)", settings.rest.as_secs_f64(), 0.0, year_s),
            ("pause (s)", settings.pause.as_secs_f64(), 0.0, year_s),
            ("moves per second", settings.moves_per_s, LEAST, 1e9),
            ("burst", f64::from(settings.burst), 1.0, 1e9),
            ("number of pages", f64::from(settings.pages_max), 1.0, f64::from(1u32 << 25)),
        ];
        for (name, value, least, most) in limits {
            // Not a number is in no range.
            if !(least..=most).contains(&value) {
                return Err(HeatSettingsError { name, value, least, most });
            }
        }
        Ok(Self(settings))
    }

    /// What was checked.
    pub fn settings(&self) -> &HeatSettings {
        &self.0
    }

    /// Accesses of one thread that count of what it made in `passed`, at least 1.
    pub fn accesses_counted(&self, passed: Duration) -> u64 {
        // A positive number below 2^63, for any time that a machine is up.
        ((f64::from(self.0.thread_accesses_per_s) * passed.as_secs_f64()).min(ACCESSES_MAX) as u64).max(1)
    }

    /// What a move must gain, in accesses.
    pub(super) fn threshold_accesses(&self) -> u64 {
        // A positive number below 2^63: the limits see to it.
        (self.0.threshold * f64::from(self.0.accesses_per_move)).min(ACCESSES_MAX) as u64
    }

    /// The share of accesses that still count after `passed`; 0 once the lifetime is over.
    pub(super) fn share_left(&self, passed: Duration) -> f64 {
        if passed > self.0.lifetime { 0.0 } else { (-self.0.decay_per_s * passed.as_secs_f64()).exp() }
    }
}
