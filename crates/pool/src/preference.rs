//! How a program wants objects read that are not in its rack, and how long it waits for its node: as it says, or its environment.

use hinterland_types::limits::GRACE_DEFAULT;
use std::time::Duration;

/// How objects of other racks are read, and what happens while the node is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadPreference {
    /// Most bytes of each object that the host may cache; the node's own limit if none is given.
    pub budget_bytes: Option<u64>,
    /// Bytes that are fetched at once, the fault unit; chosen by the node if not given.
    pub unit_bytes: Option<u64>,
    /// How long a touch, or a read of an open file, waits for a dead node to come back before it fails.
    pub grace: Duration,
}

impl Default for ReadPreference {
    fn default() -> Self {
        Self { budget_bytes: None, unit_bytes: None, grace: GRACE_DEFAULT }
    }
}

impl ReadPreference {
    /// What the environment says: `HINTERLAND_BUDGET` and `HINTERLAND_UNIT` in bytes, `HINTERLAND_GRACE_S` in seconds.
    pub fn from_environment() -> Self {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Self {
        let number = |name| variable(name).and_then(|text| text.trim().parse::<u64>().ok());
        Self {
            budget_bytes: number("HINTERLAND_BUDGET"),
            unit_bytes: number("HINTERLAND_UNIT"),
            grace: number("HINTERLAND_GRACE_S").map_or(GRACE_DEFAULT, Duration::from_secs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_or_not_given_is_as_without_it() {
        let variable = |name: &str| match name {
            "HINTERLAND_BUDGET" => Some(" 1048576\n".to_owned()),
            "HINTERLAND_UNIT" => Some("64K".to_owned()),
            _ => None,
        };
        let preference = ReadPreference::from_variables(variable);
        assert_eq!(preference, ReadPreference { budget_bytes: Some(1 << 20), ..ReadPreference::default() });
        let graceful = ReadPreference::from_variables(|_| Some("2".to_owned()));
        assert_eq!((graceful.grace, graceful.unit_bytes), (Duration::from_secs(2), Some(2)));
    }
}
