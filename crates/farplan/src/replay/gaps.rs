//! What a traced program itself took between its touches.

use crate::trace::{Kind, Trace};
use std::collections::HashMap;

/// Of a hundred gaps between faults of a kind, those that were nothing but the fault itself.
const IDLE_GAPS_PERCENT: usize = 5;

/// What the program itself took between touches.
#[derive(Clone, Debug, PartialEq)]
pub struct Gaps {
    pub(super) each: Vec<f64>,
}

impl Gaps {
    /// Takes out of the times between touches what the faults of the trace took.
    ///
    /// Where the program's own processor time is known and less than the time that went by, the gaps are scaled to it:
    /// a busy machine makes gaps longer, never that time.
    pub fn of(trace: &Trace) -> Self {
        let mut before = 0;
        let mut by_kind: HashMap<(Kind, bool), Vec<u64>> = HashMap::new();
        let mut raw = Vec::new();
        for record in trace.touches() {
            let gap = record.time_ns.saturating_sub(before);
            before = record.time_ns;
            by_kind.entry((record.kind, record.is_store())).or_default().push(gap);
            raw.push((gap, (record.kind, record.is_store())));
        }
        let idle: HashMap<(Kind, bool), u64> = by_kind
            .into_iter()
            .map(|(key, mut gaps)| {
                gaps.sort_unstable();
                (key, gaps[gaps.len() * IDLE_GAPS_PERCENT / 100])
            })
            .collect();
        let mut each: Vec<f64> = raw
            .iter()
            .map(|(gap, key)| gap.saturating_sub(idle.get(key).copied().unwrap_or(0)) as f64)
            .collect();
        // What follows the last touch is the program's own.
        each.push(trace.time_ns.saturating_sub(before) as f64);
        let mut gaps = Self { each };
        if let Some(user_ns) = trace.last(Kind::Usage).map(|record| record.time_ns as f64)
            && user_ns < trace.time_ns as f64
        {
            gaps.scale_to(user_ns);
        }
        gaps
    }

    /// All of them together.
    pub fn sum_ns(&self) -> f64 {
        self.each.iter().sum()
    }

    fn scale_to(&mut self, sum_ns: f64) {
        // A little for each touch, so that regular programs, whose gaps are all alike, keep their order in time.
        let least = sum_ns / self.each.len().max(1) as f64 / 10.0;
        for gap in &mut self.each {
            *gap += least;
        }
        let factor = sum_ns / self.sum_ns().max(1.0);
        for gap in &mut self.each {
            *gap *= factor;
        }
    }
}
