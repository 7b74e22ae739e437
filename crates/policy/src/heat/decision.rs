//! The decision on one page: pull it, cache it or leave it, and why.

use super::settings::HeatRules;

/// Accesses that still count, rounded: what racks tell each other. Any numbers are safe to compare.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Heat {
    /// Reads that still count.
    pub reads: u64,
    /// Writes that still count.
    pub writes: u64,
}

/// Where a page could go in the rack that wants it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// A page fits without another leaving.
    Free,
    /// A page of this heat, in the wanting rack, must leave for it.
    Victim(Heat),
    /// No page can leave.
    Full,
}

/// What becomes of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// It moves to the rack that wants it.
    Pull {
        /// Accesses that the move spares, of those that still count.
        gain: u64,
    },
    /// It stays, and the wanting rack keeps a copy to read.
    Cache {
        /// Why it does not move.
        why: Why,
    },
    /// It stays.
    Leave {
        /// Why.
        why: Why,
    },
}

/// Why a page does not move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// Moves are switched off.
    Off,
    /// The wanting rack does not use it enough.
    Cold,
    /// Its home uses it too much.
    HotAtHome,
    /// The page that would have to leave is used too much.
    HotVictim,
    /// The wanting rack has no room, and no page that can leave.
    NoRoom,
    /// It is moving already.
    Moving,
    /// It has moved, or was refused, a short while ago.
    Resting,
    /// The wanting rack has begun as many moves as it may.
    Budget,
}

impl Why {
    /// One word for counters and traces.
    pub fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Cold => "cold",
            Self::HotAtHome => "hot-at-home",
            Self::HotVictim => "hot-victim",
            Self::NoRoom => "no-room",
            Self::Moving => "moving",
            Self::Resting => "resting",
            Self::Budget => "budget",
        }
    }
}

impl Heat {
    /// No access counts.
    pub const ZERO: Self = Self { reads: 0, writes: 0 };

    /// Reads and writes together.
    pub fn total(self) -> u64 {
        self.reads.saturating_add(self.writes)
    }

    /// Both together, as when two racks are looked at as one.
    pub fn plus(self, other: Self) -> Self {
        Self {
            reads: self.reads.saturating_add(other.reads),
            writes: self.writes.saturating_add(other.writes),
        }
    }
}

impl Decision {
    /// Whether the page stays, and a copy pays.
    pub fn is_cache(self) -> bool {
        matches!(self, Self::Cache { .. })
    }

    /// Whether the page moves.
    pub fn is_pull(self) -> bool {
        matches!(self, Self::Pull { .. })
    }
}

impl HeatRules {
    /// Decides on a page by the heat that it has in the rack that wants it and in its home.
    ///
    /// The rack that wants it calls this with [`Heat::ZERO`] for the home, to find out whether asking can be
    /// worth it. The home's answer counts: it calls this with what it was asked with, and with its own heat.
    pub fn decide(&self, wanting: Heat, home: Heat, room: Room) -> Decision {
        let settings = self.settings();
        let threshold = self.threshold_accesses();
        if wanting.total() <= threshold {
            return Decision::Leave { why: Why::Cold };
        }
        let gain = match room {
            _ if !settings.moves => Err(Why::Off),
            _ if !self.pays(wanting, home.total()) => Err(Why::HotAtHome),
            Room::Full => Err(Why::NoRoom),
            Room::Free => Ok(wanting.total() - home.total()),
            Room::Victim(victim) => {
                let lost = home.total().saturating_add(victim.total());
                if self.pays(wanting, lost) { Ok(wanting.total() - lost) } else { Err(Why::HotVictim) }
            }
        };
        match gain {
            Ok(gain) => Decision::Pull { gain },
            Err(why) if settings.caches && self.is_worth_a_copy(wanting, home) => Decision::Cache { why },
            Err(why) => Decision::Leave { why },
        }
    }

    /// Whether more than the share of Rrw of the accesses of all racks, `all`, are reads. (The paper compares reads to
    /// writes; 0.9 reads a write would cache pages whose copies are taken back at every other access.)
    pub fn is_read_hot(&self, all: Heat) -> bool {
        all.total() > self.threshold_accesses()
            && all.reads as f64 > self.settings().read_share * all.total() as f64
    }

    /// Whether a copy pays in the rack that wants it: the page is read-hot, and between two writes of anybody, each of which takes the copy
    /// back, the rack reads it more often than a copy costs.
    fn is_worth_a_copy(&self, wanting: Heat, home: Heat) -> bool {
        let all = wanting.plus(home);
        let spared = u128::from(all.writes) * u128::from(self.settings().accesses_per_move);
        self.is_read_hot(all)
            && wanting.reads > self.threshold_accesses()
            && u128::from(wanting.reads) > spared
    }

    /// Whether a gain of `wanting` is clearly above a loss of `lost` accesses; if so, it is not below it.
    fn pays(&self, wanting: Heat, lost: u64) -> bool {
        let wanting = wanting.total();
        wanting.saturating_sub(lost) > self.threshold_accesses()
            && wanting as f64 >= self.settings().lead * lost as f64
    }
}
