//! How a run is at a moment, as plain data.

use super::About;
use crate::engine::{Budget, Engine};
use crate::store::{Life, MemberState};
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// How a run is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// What people know it by.
    pub about: About,
    /// The process that holds the program's far memory (`hinterland run`).
    pub supervisor: u32,
    /// The processes of the program, the first one first.
    pub processes: Vec<i32>,
    /// When it began, milliseconds since 1970.
    pub started_ms: u64,
    /// Seconds that it runs.
    pub uptime_s: f64,
    /// What was asked for.
    pub budget: Budget,
    /// Bytes that the program may have resident, all of its memory included.
    pub budget_bytes: u64,
    /// Bytes that it has resident, all of its memory included.
    pub resident_bytes: u64,
    /// Of these, bytes that cannot leave: libraries, stacks, small memory, what is locked.
    pub fixed_bytes: u64,
    /// Bytes that are far.
    pub far_bytes: u64,
    /// Bytes that move at once.
    pub unit_bytes: u64,
    /// In how many back ends each byte is kept, or will be.
    pub copies: usize,
    /// Some bytes may be kept in fewer or more than that.
    #[serde(default)]
    pub is_uneven: bool,
    /// Page faults served.
    pub faults: u64,
    /// Faults that wait at this moment.
    pub waiting: usize,
    /// Seconds that faults waited in the supervisor, all threads together.
    pub stall_s: f64,
    /// The longest wait of one fault since the start or the last change of settings, in seconds.
    pub stall_s_max: f64,
    /// Bytes by which the budget is short: with so many more, nine of ten of the latest faults for what was far would not have been. None where there were few.
    #[serde(default)]
    pub short_bytes: Option<u64>,
    /// Bytes brought back.
    pub fetched_bytes: u64,
    /// Bytes taken out and written.
    pub evicted_bytes: u64,
    /// Bytes taken out without a write.
    pub dropped_bytes: u64,
    /// Nothing more can leave although more than the budget is resident.
    pub is_stuck: bool,
    /// Content that no back end could give back.
    pub lost_bytes: u64,
    /// Back ends.
    pub back_ends: Vec<BackEndStatus>,
}

/// How a back end of a run is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BackEndStatus {
    /// Its name.
    pub name: String,
    /// `active`; `retired` or `failed` while what it has moves to others; `gone` when it has nothing any more.
    pub life: String,
    /// Bytes of content that went in.
    pub out_bytes: u64,
    /// Bytes of content that came back.
    pub in_bytes: u64,
    /// Bytes of content that are there.
    pub held_bytes: u64,
    /// Bytes a second of late, puts and gets together.
    pub speed_bytes_s: f64,
    /// Seconds that it takes of late to put content, the time of several at once divided by their number; 0 before the first.
    #[serde(default)]
    pub put_s: f64,
    /// The same for getting content back.
    #[serde(default)]
    pub get_s: f64,
    /// Bytes of this host's memory that it takes.
    #[serde(default)]
    pub memory_bytes: u64,
    /// Most bytes that it takes; what compresses counts what comes out. None without a limit.
    #[serde(default)]
    pub limit_bytes: Option<u64>,
}

impl Status {
    pub(crate) fn of(engine: &Engine, about: &About, started_ms: u64, began: Instant) -> Self {
        let mut known = engine.lock();
        engine.look(&mut known);
        let tables = known.resident_bytes();
        let fixed: u64 = known.spaces.values().map(|space| space.other_bytes).sum();
        let counters = known.counters;
        let budget = known.budget;
        let room = engine.room_bytes(&known);
        let mut status = Self {
            about: about.clone(),
            supervisor: std::process::id(),
            processes: known.processes(),
            started_ms,
            uptime_s: began.elapsed().as_secs_f64(),
            budget,
            budget_bytes: match budget {
                Budget::Bytes(bytes) => bytes,
                Budget::Percent(_) => room + fixed,
            },
            resident_bytes: tables + fixed,
            fixed_bytes: fixed,
            far_bytes: known.far_bytes(),
            unit_bytes: engine.unit_bytes,
            faults: counters.faults,
            waiting: known.waiting.len(),
            stall_s: counters.stall_ns as f64 / 1e9,
            stall_s_max: counters.stall_ns_max as f64 / 1e9,
            short_bytes: known.enough.more_bytes(known.far_bytes()),
            fetched_bytes: counters.fetched_bytes,
            evicted_bytes: counters.evicted_bytes,
            dropped_bytes: counters.clean_bytes + counters.zero_evicted_bytes,
            is_stuck: known.is_stuck,
            ..Self::default()
        };
        drop(known);
        // Relaxed: numbers for people.
        status.lost_bytes = engine.lost_bytes.load(Ordering::Relaxed);
        status.copies = engine.stores.copies();
        status.is_uneven = !engine.stores.is_even();
        status.back_ends = engine.stores.members().into_iter().map(BackEndStatus::from).collect();
        status
    }
}

impl From<MemberState> for BackEndStatus {
    fn from(member: MemberState) -> Self {
        let life = match member.life {
            Life::Active => "active",
            Life::Retired => "retired",
            Life::Failed => "failed",
            Life::Gone => "gone",
        };
        Self {
            name: member.name,
            life: life.to_owned(),
            out_bytes: member.put_bytes,
            in_bytes: member.got_bytes,
            held_bytes: member.held_bytes,
            speed_bytes_s: member.speed_bytes_s,
            put_s: member.put_s,
            get_s: member.get_s,
            memory_bytes: member.memory_bytes,
            limit_bytes: (member.limit_bytes < u64::MAX / 2).then_some(member.limit_bytes),
        }
    }
}
