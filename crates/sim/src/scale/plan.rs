//! What is simulated, and the check that it can be.

use super::costs::Costs;
use hinterland_directory::DirectoryError;
use hinterland_policy::heat::{HeatRules, HeatSettings, HeatSettingsError};
use hinterland_types::limits::{COPIES_MAX, NODES_MAX, OBJECT_BYTES_MAX};
use std::time::Duration;

/// Which pages the programs of a node use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Workload {
    /// Every node uses all pages of one region alike; it is spread over all nodes.
    Uniform,
    /// Every node uses the same pages of that region most: zipfian with 0.99.
    Zipfian,
    /// Every node uses a region of its own, zipfian, which lies on a node of another rack; one operation in ten is for the region of all.
    Tenants,
    /// The same, and twice a run every program goes on at a node of another rack.
    Shifting,
    /// These accesses, one list every hundredth of a second, to a region that lies on the first node.
    Script(Vec<Vec<Access>>),
}

/// Accesses of one node to one page of the region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Place of the node, from 0.
    pub node: u32,
    /// Page of the region, from 0.
    pub page: u32,
    /// Reads and then writes.
    pub reads: u32,
    /// Writes.
    pub writes: u32,
}

/// How lost copies are made again; as `hinterland node` has it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RepairPace {
    /// How long an object has lacked copies before a node makes one.
    pub after: Duration,
    /// Bytes a second that one node fetches.
    pub bytes_per_s: f64,
}

/// A cluster, what its programs do, and for how long.
#[derive(Clone, PartialEq, Debug)]
pub struct ScalePlan {
    /// Nodes, each with its own memory.
    pub nodes: u32,
    /// Racks; nodes are divided among them evenly.
    pub racks: u32,
    /// What programs do.
    pub workload: Workload,
    /// Another seed, other draws.
    pub seed: u64,
    /// How long programs run.
    pub time: Duration,
    /// Operations of the programs of a node in a second, evenly.
    pub operations_per_s: u32,
    /// Threads among which they are divided: each keeps so many samples.
    pub threads: u32,
    /// Pages of 2 MiB for each node: of the region of all, and of its own region.
    pub pages_per_node: u32,
    /// Sealed objects for each node.
    pub objects_per_node: u32,
    /// Bytes of one.
    pub object_bytes: u64,
    /// Copies of one.
    pub copies: u8,
    /// Memory that a node lends.
    pub capacity_bytes: u64,
    /// When the last rack dies, with all that it had, if it does.
    pub rack_dies: Option<Duration>,
    /// Switches and parameters of page heat.
    pub heat: HeatSettings,
    /// Whether a node asks the home of a page before it begins the move at the directory. (The product begins first.)
    pub asks_home_first: bool,
    /// How lost copies are made again.
    pub repair: RepairPace,
    /// How long things take.
    pub costs: Costs,
}

impl Default for ScalePlan {
    fn default() -> Self {
        Self {
            nodes: 100,
            racks: 10,
            workload: Workload::Tenants,
            seed: 1,
            time: Duration::from_secs(5),
            operations_per_s: 10_000,
            threads: 4,
            pages_per_node: 4,
            objects_per_node: 20,
            object_bytes: 256 << 20,
            copies: 2,
            capacity_bytes: 64 << 30,
            rack_dies: None,
            heat: HeatSettings::default(),
            asks_home_first: false,
            repair: RepairPace { after: Duration::from_secs(30), bytes_per_s: (256 << 20) as f64 },
            costs: Costs::default(),
        }
    }
}

/// Why nothing was simulated.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum ScaleError {
    /// A number is outside its range.
    #[error("{name} is {given} (hint: give a number from {least} to {most})")]
    OutOfRange {
        /// Of what.
        name: &'static str,
        /// The number.
        given: u64,
        /// The least that is taken.
        least: u64,
        /// The most.
        most: u64,
    },
    /// A parameter of page heat is outside its limits.
    #[error(transparent)]
    Heat(#[from] HeatSettingsError),
    /// The directory refused a command of the set-up.
    #[error("the directory refused what the plan needs: {0}")]
    Refused(Box<DirectoryError>),
    /// The directory gave an answer that does not belong to the command, or a record contradicts another: a bug.
    #[error("the directory is not sound: {0} (hint: report this with the seed)")]
    Unsound(String),
}

impl From<DirectoryError> for ScaleError {
    fn from(error: DirectoryError) -> Self {
        Self::Refused(Box::new(error))
    }
}

/// Most words that all nodes together keep: four bytes each.
const WORDS_MAX: u64 = 1 << 28;
/// Latest second in which a rack dies.
const SECONDS_MAX: u64 = 3600;
/// Longest that one message, or one command, may take: the times of all that happens are added up.
const COST_US_MAX: u64 = 60_000_000;

impl ScalePlan {
    /// Checks every number.
    ///
    /// # Errors
    /// The first that is outside its range.
    pub fn check(&self) -> Result<(), ScaleError> {
        let nodes = u64::from(self.nodes);
        let pages = u64::from(self.pages_per_node);
        let dies_s = self.rack_dies.map_or(0, |at| at.as_secs());
        let micros = |cost: Duration| u64::try_from(cost.as_micros()).unwrap_or(u64::MAX);
        let ranges = [
            ("the number of nodes", nodes, 2, NODES_MAX as u64),
            ("the number of racks", u64::from(self.racks), 1, nodes),
            ("the time in milliseconds", self.time.as_millis() as u64, 10, 3_600_000),
            ("operations a second", u64::from(self.operations_per_s), 1, 10_000_000),
            ("the number of threads", u64::from(self.threads), 1, 1024),
            ("pages for each node", pages, 1, 1 << 16),
            ("words of all nodes", 2 * nodes * nodes * pages, 1, WORDS_MAX),
            ("objects for each node", u64::from(self.objects_per_node), 0, 1 << 16),
            ("bytes of an object", self.object_bytes, 1, OBJECT_BYTES_MAX),
            ("copies", u64::from(self.copies), 1, u64::from(COPIES_MAX)),
            ("the second in which a rack dies", dies_s, 0, SECONDS_MAX),
            ("microseconds of the network", micros(self.costs.wire), 0, COST_US_MAX),
            ("microseconds of a durable command", micros(self.costs.durable), 0, COST_US_MAX),
        ];
        for (name, given, least, most) in ranges {
            if !(least..=most).contains(&given) {
                return Err(ScaleError::OutOfRange { name, given, least, most });
            }
        }
        if let Workload::Script(rounds) = &self.workload {
            let all = || rounds.iter().flatten();
            let most = |of: fn(&Access) -> u32| all().map(of).max().map_or(0, u64::from);
            let node = ("a node of the script", most(|access| access.node), nodes - 1);
            let page = ("a page of the script", most(|access| access.page), nodes * pages - 1);
            for (name, given, most) in [node, page] {
                if given > most {
                    return Err(ScaleError::OutOfRange { name, given, least: 0, most });
                }
            }
        }
        HeatRules::new(self.heat).map(drop).map_err(ScaleError::from)
    }
}
