//! Capabilities of GPUs, and which GPUs an image is for.

use std::fmt;

/// What a GPU can do, as two numbers: 9.0 for an H100. Ordered by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Capability {
    /// The generation.
    pub major: u32,
    /// The model within it.
    pub minor: u32,
}

impl Capability {
    /// A capability of two numbers.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// From the number that compilers write: 90 is 9.0 and 121 is 12.1.
    pub const fn of_number(number: u32) -> Self {
        Self { major: number / 10, minor: number % 10 }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.major, self.minor)
    }
}

/// How closely an image is bound to a capability: the letter behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Specific {
    /// No letter: later GPUs take it too.
    #[default]
    No,
    /// `f`: GPUs of the same generation that are not older.
    Family,
    /// `a`: this capability and no other.
    Architecture,
}

/// The GPUs that an image was made for: `sm_90a` is 9.0 with [`Specific::Architecture`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The oldest GPU that takes it.
    pub capability: Capability,
    /// The letter.
    pub specific: Specific,
}

/// GPUs that are a part of a larger chip: machine code for them and for the others of their generation is not exchangeable.
const INTEGRATED: &[Capability] = &[
    Capability::new(5, 3),
    Capability::new(6, 2),
    Capability::new(7, 2),
    Capability::new(8, 7),
    Capability::new(10, 1),
    Capability::new(11, 0),
];

impl Target {
    /// From a name like `sm_90a` or `compute_120f`; nothing for other words.
    pub fn of_name(name: &str) -> Option<Self> {
        let number = name.strip_prefix("sm_").or_else(|| name.strip_prefix("compute_"))?;
        let (digits, specific) = match number.as_bytes().last()? {
            b'a' => (&number[..number.len() - 1], Specific::Architecture),
            b'f' => (&number[..number.len() - 1], Specific::Family),
            _ => (number, Specific::No),
        };
        let is_number =
            (2..=4).contains(&digits.len()) && digits.bytes().all(|letter| letter.is_ascii_digit());
        let number = is_number.then(|| digits.parse().ok()).flatten()?;
        Some(Self { capability: Capability::of_number(number), specific })
    }

    /// Whether a GPU runs machine code for this target.
    pub fn runs_on(&self, gpu: Capability) -> bool {
        let same_generation = self.capability.major == gpu.major && self.capability.minor <= gpu.minor;
        let integrated = |capability| INTEGRATED.contains(capability);
        match self.specific {
            Specific::Architecture => self.capability == gpu,
            Specific::Family => same_generation,
            Specific::No if integrated(&self.capability) || integrated(&gpu) => self.capability == gpu,
            Specific::No => same_generation,
        }
    }

    /// Whether a driver compiles PTX for this target for a GPU.
    pub fn compiles_for(&self, gpu: Capability) -> bool {
        match self.specific {
            Specific::Architecture => self.capability == gpu,
            Specific::Family => self.capability.major == gpu.major && self.capability.minor <= gpu.minor,
            Specific::No => self.capability <= gpu,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self.specific {
            Specific::No => "",
            Specific::Family => "f",
            Specific::Architecture => "a",
        };
        write!(out, "sm_{}{}{letter}", self.capability.major, self.capability.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_targets_and_back() {
        for name in ["sm_75", "sm_90a", "sm_100f", "sm_121"] {
            assert_eq!(Target::of_name(name).map(|target| target.to_string()).as_deref(), Some(name));
        }
        assert_eq!(
            Target::of_name("compute_103").map(|target| target.capability),
            Some(Capability::new(10, 3))
        );
        for name in ["", "sm_", "sm_a", "sm_+90", "sm_9", "sm_99999", "texmode_independent", "sm_9é"] {
            assert_eq!(Target::of_name(name), None, "{name}");
        }
    }

    #[test]
    fn machine_code_runs_on_its_generation_only() {
        let runs = |name, major, minor| {
            Target::of_name(name).is_some_and(|it| it.runs_on(Capability::new(major, minor)))
        };
        assert!(runs("sm_80", 8, 9) && runs("sm_86", 8, 6));
        assert!(!runs("sm_89", 8, 6) && !runs("sm_80", 9, 0) && !runs("sm_90", 8, 9));
        assert!(runs("sm_90a", 9, 0) && runs("sm_100f", 10, 3) && !runs("sm_100a", 10, 3));
        assert!(!runs("sm_80", 8, 7) && runs("sm_87", 8, 7) && !runs("sm_87", 8, 9));
    }

    #[test]
    fn assembly_compiles_for_whatever_is_not_older() {
        let compiles = |name, major, minor| {
            Target::of_name(name).is_some_and(|it| it.compiles_for(Capability::new(major, minor)))
        };
        assert!(compiles("compute_75", 12, 0) && compiles("compute_90", 9, 0));
        assert!(!compiles("compute_90", 8, 9) && !compiles("compute_90a", 10, 0));
        assert!(compiles("compute_100f", 10, 3) && !compiles("compute_100f", 12, 0));
    }
}
