//! What is fetched together with a unit that faulted.

use hinterland_policy::UnitMap;
use hinterland_proto::control::Advice;

/// Switches of [`Ahead`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AheadSwitches {
    /// The rest of an expert.
    pub group: bool,
    /// Units in order.
    pub sequential: bool,
}

impl Default for AheadSwitches {
    fn default() -> Self {
        Self { group: true, sequential: true }
    }
}

/// Decides what to fetch ahead.
pub struct Ahead {
    switches: AheadSwitches,
    last: Option<u32>,
    window: u32,
    advice: Advice,
}

impl Ahead {
    /// Nothing has been touched.
    pub const fn new(switches: AheadSwitches) -> Self {
        Self { switches, last: None, window: 0, advice: Advice::Normal }
    }

    /// A unit faulted; returns the units to fetch as well.
    pub fn fault(&mut self, unit: u32, units: &UnitMap) -> Vec<u32> {
        let mut ahead: Vec<u32> = Vec::new();
        if self.switches.group
            && let Some(group) = units.group_of(unit)
        {
            ahead.extend(units.group(group).iter().copied().filter(|&other| other != unit));
        }
        let follows = self.last.is_some_and(|last| unit > last && unit - last <= self.window.max(1));
        self.last = Some(unit);
        self.window = if follows { (self.window * 2).clamp(2, 16) } else { 0 };
        if self.switches.sequential && self.advice != Advice::Random && follows {
            ahead.extend((unit + 1..=unit + self.window).filter(|&next| next < units.count()));
        }
        ahead
    }

    /// What a program expects.
    pub const fn advise(&mut self, advice: Advice) {
        self.advice = advice;
    }
}
