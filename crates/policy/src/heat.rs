//! Which pages of mutable regions move to the rack that uses them, which are cached there, and which stay.
//!
//! The idea is that of paper 004, section 5.3. A page of a region has one home; an access from its own rack
//! costs nanoseconds, from another a round trip. So each rack counts what it asks of each page, and pulls a
//! page that it uses much more than the page's home does.
//!
//! ```text
//!  counts of programs      HeatTable::record     rack that wants the page
//!  ---------------------->  (one per rack)   ---> HeatRules::decide with home = ZERO: worth asking?
//!                                                 Moves::begin: not moving, not resting, in the budget?
//!                                                      | asks, with its own heat and its victim's
//!                                                      v
//!                                                 rack that has the page
//!                                                 HeatRules::decide with its own heat
//!                                                 Moves::begin: nobody else is taking it?
//!                                                      | Pull, Cache or Leave
//!                                                      v
//!                                                 both: Moves::end
//! ```
//!
//! Nothing here has a clock or does anything: `now` is the time since any fixed moment, the same for all
//! calls on one structure, and never compared between racks. Heats cross racks as whole numbers.
//!
//! # What heat is
//!
//! *Accesses that still count*: each access counts 1 when it happens and e^(-lambda t) after t seconds. A page
//! that is accessed `r` times a second for long has a heat of `r / lambda`: with lambda = 0.04 per second, what
//! it got in the last 25 s. Who got none for the *lifetime* (100 s) starts again at 0. The paper multiplies by the
//! factor for the last gap only and keeps the counters whole; then a page that is touched once a minute gets
//! hot in the end, and a rack that used a page for an hour keeps it for an hour after it stopped. Decaying the counters
//! themselves costs the same and forgets. A batch of n accesses counts as n accesses at its moment; who counts one
//! access in k by sampling records k for it.
//!
//! Of one thread at most [`HeatSettings::thread_accesses_per_s`] accesses (25,000) count in a second, which nearly every thread makes that
//! waits for another rack each time. A thread that finds its pages near makes a hundred times more. Counted as they are, they would say
//! how quick the thread is and not what it would lose: of two racks that use the same pages alike, the one with a few more would be quicker, look
//! as if it used all of them more, and have them all in the end, as a test shows.
//!
//! # What the threshold is in
//!
//! The paper counts messages, and calls a page hot at 4. A move of a page of 2 MiB costs what some dozens
//! of accesses to another rack cost, so a page is worth its move only after that many. The threshold is therefore in
//! *moves*: [`HeatSettings::accesses_per_move`] accesses (64) are one. At the default threshold of 4 a page moves when
//! the accesses that the move spares, in the 25 s that count, cost four times the move. With `accesses_per_move: 1`
//! the threshold is the paper's.
//!
//! # Why pages do not go back and forth
//!
//! A move must pay: the wanting rack's heat, less the home's and less that of the page which must leave for it,
//! exceeds the threshold. And it must be clear: the wanting rack's heat is at least [`HeatSettings::lead`] times the
//! other two together, so noise around equal heats decides nothing. What moved rests for [`HeatSettings::rest`].
//!
//! ```
//! use hinterland_policy::heat::{Decision, Heat, HeatRules, HeatSettings, HeatTable, Moves, Room};
//! use hinterland_types::PageNumber;
//! use std::time::Duration;
//!
//! let rules = HeatRules::new(HeatSettings::default()).unwrap();
//! let (mut table, mut moves) = (HeatTable::new(rules), Moves::new(rules));
//! let (page, now) = (PageNumber::new(7).unwrap(), Duration::from_secs(3));
//!
//! // The rack that wants: a batch of counts came in.
//! let wanting = table.record(page, 900, 100, now);
//! if rules.decide(wanting, Heat::ZERO, Room::Free).is_pull() && moves.begin(page, now).is_ok() {
//!     // The home, asked for the page with this heat, adds its own to the question.
//!     let home = Heat { reads: 12, writes: 0 };
//!     let decision = rules.decide(wanting, home, Room::Free);
//!     assert_eq!(decision, Decision::Pull { gain: 988 });
//!     moves.end(page, decision.is_pull(), now);
//! }
//! ```

mod decision;
mod moves;
mod settings;
mod table;

#[cfg(test)]
mod tests;

pub use decision::{Decision, Heat, Room, Why};
pub use moves::Moves;
pub use settings::{HeatRules, HeatSettings, HeatSettingsError};
pub use table::HeatTable;
