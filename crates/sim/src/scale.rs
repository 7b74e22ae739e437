//! Big clusters in virtual time: one directory, many nodes that use pages of regions, and the death of a rack.
//!
//! The directory is the real state machine: every command is planned and committed on it, and answered in the order of arrival by a
//! process that takes a given time for each. The heat of pages and the decision to move one are the real ones, too, one table for each node. What
//! nodes do between these (words, samples, the steps of a move, heartbeats, copies of lost objects) is written here after `node`, without its bytes.
//! Times are sums of measured costs ([`Costs`]); counts are what the rules give. One plan with one seed is one run.
//!
//! | module | subject |
//! | --- | --- |
//! | `plan` | what is simulated, and its check |
//! | `costs` | how long things take, and where each number is from |
//! | `workload` | which page an operation is about |
//! | `host` | the directory's process: a queue, and counts for each kind of command |
//! | `cluster` | set-up, the event loop |
//! | `programs` | operations: words, their misses, samples |
//! | `moving` | pages that are worth it are pulled |
//! | `repairing` | copies that died with a rack are made again |
//! | `figures` | what a run gives |
//! | [`shards`] | names over several directories by consistent hashing: logic only, no product uses it |

mod cluster;
mod costs;
mod figures;
mod host;
mod member;
mod moving;
mod plan;
mod programs;
mod repairing;
pub mod shards;
mod workload;

pub use costs::Costs;
pub use figures::{CommandFigures, DirectoryFigures, MoveFigures, RecoveryFigures, ScaleFigures};
pub use plan::{Access, RepairPace, ScaleError, ScalePlan, Workload};

/// Simulates a plan. `clock_ns` is a clock of any beginning, with which the directory's own work is measured; it changes nothing else, and
/// one that always gives 0 measures nothing.
///
/// # Errors
/// [`ScaleError`] for a plan that makes no sense, or one that the directory does not take.
pub fn simulate(plan: &ScalePlan, clock_ns: &dyn Fn() -> u64) -> Result<ScaleFigures, ScaleError> {
    plan.check()?;
    cluster::Cluster::new(plan, clock_ns)?.run()
}
