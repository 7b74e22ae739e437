//! Which devices a node serves, as the command line says it.

use crate::software::SoftwareOptions;
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
            Self::Software(options) => Ok(options.memory()),
            Self::Cuda(numbers) => crate::cuda::device_memory(numbers),
        }
    }
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
}
