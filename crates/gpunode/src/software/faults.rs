//! Failures that tests ask for: the N-th piece of work of a kind ends with an error.

use crate::failure::{Failure, number};
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

/// A kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Kernels.
    Launch,
    /// Copies to a device.
    CopyIn,
    /// Copies to the program.
    CopyOut,
    /// Copies within devices, and fills.
    CopyWithin,
    /// cuBLAS.
    Blas,
    /// Memory that is mapped.
    Map,
    /// Modules that are loaded.
    Load,
}

/// Kinds by their names.
const KINDS: [(&str, Kind); 7] = [
    ("launch", Kind::Launch),
    ("copy-in", Kind::CopyIn),
    ("copy-out", Kind::CopyOut),
    ("copy-within", Kind::CopyWithin),
    ("blas", Kind::Blas),
    ("map", Kind::Map),
    ("load", Kind::Load),
];

/// One failure that is asked for, as `launch:3:700`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultPlan {
    kind: Kind,
    at: u64,
    error: i32,
}

impl FromStr for FaultPlan {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        const HINT: &str = "KIND:COUNT:ERROR, such as launch:3:700; kinds are launch, copy-in, copy-out, copy-within, blas, map and load";
        let mut parts = text.split(':');
        let mut next = || parts.next().ok_or(HINT);
        let (name, at, error) = (next()?, next()?, next()?);
        let kind = KINDS.iter().find(|(known, _)| *known == name).ok_or(HINT)?.1;
        let at = at.parse().ok().filter(|at| *at > 0).ok_or(HINT)?;
        let error = error.parse().ok().filter(|error| *error > 0).ok_or(HINT)?;
        if parts.next().is_some() { Err(HINT) } else { Ok(Self { kind, at, error }) }
    }
}

impl fmt::Display for FaultPlan {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = KINDS.iter().find(|(_, kind)| *kind == self.kind).map_or("", |(name, _)| name);
        write!(out, "{name}:{}:{}", self.at, self.error)
    }
}

/// The failures that are asked for, and how far each has been counted.
#[derive(Debug)]
pub(super) struct Faults(Vec<(FaultPlan, AtomicU64)>);

impl Faults {
    pub(super) fn new(plans: &[FaultPlan]) -> Self {
        Self(plans.iter().map(|plan| (*plan, AtomicU64::new(0))).collect())
    }

    /// Counts a piece of work; the failure that it should have.
    pub(super) fn count(&self, kind: Kind) -> Result<(), Failure> {
        for (plan, count) in self.0.iter().filter(|(plan, _)| plan.kind == kind) {
            // Relaxed: a count alone.
            if count.fetch_add(1, Ordering::Relaxed) + 1 == plan.at {
                let failure = Failure::new(plan.error, format!("the option `fault={plan}` asks for this"));
                return Err(if is_sticky(plan.error) { failure.sticky() } else { failure });
            }
        }
        Ok(())
    }
}

/// Whether nothing works any more after an error of a kernel.
pub(crate) const fn is_sticky(error: i32) -> bool {
    matches!(error, number::ILLEGAL_ADDRESS | 702 | 710 | 714..=719)
}
