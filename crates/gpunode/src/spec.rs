//! Which devices a node serves, as the command line says it.

use crate::software::SoftwareOptions;
use hinterland_os::probe::memory_total_bytes;
use hinterland_types::size::human;
use std::fmt;
use std::str::FromStr;

/// Most devices of a node.
const DEVICES_MAX: usize = 16;

/// The devices of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceSpec {
    /// Devices in software.
    Software(SoftwareOptions),
    /// The driver's devices by their numbers; all of them if there are none here.
    Cuda(Vec<u32>),
}

impl DeviceSpec {
    /// Name and memory in bytes of each device.
    ///
    /// # Errors
    /// A sentence that says why there are none, and what to do.
    pub fn memory(&self) -> Result<Vec<(String, u64)>, String> {
        match self {
            Self::Software(options) => {
                let memory = options.memory();
                refuse_above(memory_total_bytes(), &memory)?;
                Ok(memory)
            }
            Self::Cuda(numbers) => crate::cuda::device_memory(numbers),
        }
    }
}

/// Refuses devices in software that have more memory together than the machine: programs would be promised what is not there.
fn refuse_above(total: u64, devices: &[(String, u64)]) -> Result<(), String> {
    let sum = devices.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    if sum <= total {
        return Ok(());
    }
    // Half of the machine for all of them.
    let each_mebibytes = (total / 2 / devices.len().max(1) as u64) >> 20;
    Err(format!(
        "devices in software with {} are wanted, and this machine has {} of memory (hint: ask for less, as in \
         software:memory={each_mebibytes}M)",
        human(sum),
        human(total)
    ))
}

impl FromStr for DeviceSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        match kind {
            "software" => rest.parse().map(Self::Software),
            "cuda" => {
                let numbers: Result<Vec<u32>, _> =
                    rest.split(',').filter(|number| !number.is_empty()).map(str::parse).collect();
                match numbers {
                    Ok(numbers) if numbers.len() <= DEVICES_MAX => Ok(Self::Cuda(numbers)),
                    _ => Err(format!("{rest:?} are no devices (hint: cuda, or cuda:0,1)")),
                }
            }
            _ => Err(format!(
                "{text:?} is no device (hint: cuda, cuda:0,1, software, or software:memory=2G,kernels=none)"
            )),
        }
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Software(options) => write!(out, "software:{options}"),
            Self::Cuda(numbers) => {
                let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
                write!(out, "cuda:{}", numbers.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_as_they_are_written() {
        for text in [
            "cuda:",
            "cuda:0,3",
            "software:memory=1048576,devices=1,kernels=none,capability=9.0,delay-us=0,threads=4",
        ] {
            assert_eq!(text.parse::<DeviceSpec>().unwrap().to_string(), text);
        }
        assert_eq!("cuda".parse(), Ok(DeviceSpec::Cuda(Vec::new())));
        for bad in ["", "gpu", "cuda:x", "software:x", "cuda:-1"] {
            assert!(bad.parse::<DeviceSpec>().unwrap_err().contains("(hint: "), "{bad}");
        }
    }

    #[test]
    fn more_memory_than_the_machine_has_is_refused() {
        let large: DeviceSpec = "software:memory=200000G".parse().unwrap();
        let refused = large.memory().unwrap_err();
        assert!(refused.contains("195 TiB") && refused.contains("(hint: "), "{refused}");
        let two = vec![("a".to_owned(), 3 << 30), ("b".to_owned(), 2 << 30)];
        assert!(refuse_above(5 << 30, &two).is_ok() && refuse_above((5 << 30) - 1, &two).is_err());
        assert!(refuse_above(1 << 30, &two).unwrap_err().contains("software:memory=256M)"));
    }
}
