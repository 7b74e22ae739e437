//! What a device is like, as the command line says it: `software:memory=2G,kernels=none`.

use super::facts::CAPABILITY;
use super::faults::FaultPlan;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// What programs are told that the device is.
pub(super) const NAME: &str = "Hinterland software device";

/// The least memory of a device: less is most likely a size without its unit.
const MEMORY_BYTES_MIN: u64 = 1 << 20;

/// What the kernels of programs do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kernels {
    /// What their PTX says.
    #[default]
    Ptx,
    /// Nothing: launches and products are counted. For counting calls, never for results.
    None,
}

/// What the device in software is like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SoftwareOptions {
    /// Memory of each device in bytes.
    pub memory_bytes: u64,
    /// How many devices.
    pub devices: u32,
    /// What kernels do.
    pub kernels: Kernels,
    /// Compute capability: which code programs choose for it.
    pub capability: (u32, u32),
    /// What each piece of work takes at least.
    pub delay: Duration,
    /// Threads that work.
    pub threads: usize,
    /// Failures that tests ask for.
    pub faults: Vec<FaultPlan>,
}

impl Default for SoftwareOptions {
    fn default() -> Self {
        Self {
            memory_bytes: 2 << 30,
            devices: 1,
            kernels: Kernels::Ptx,
            capability: CAPABILITY,
            delay: Duration::ZERO,
            threads: 4,
            faults: Vec::new(),
        }
    }
}

impl SoftwareOptions {
    /// Name and memory in bytes of each device.
    pub fn memory(&self) -> Vec<(String, u64)> {
        (0..self.devices).map(|_| (NAME.to_owned(), self.memory_bytes)).collect()
    }
}

impl FromStr for SoftwareOptions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut options = Self::default();
        for item in text.split(',').filter(|item| !item.is_empty()) {
            let (key, value) = item.split_once('=').ok_or_else(|| refuse(item, "KEY=VALUE"))?;
            match key {
                "memory" => {
                    let size = bytes(value).filter(|size| *size >= MEMORY_BYTES_MIN);
                    options.memory_bytes = size.ok_or_else(|| refuse(item, "a size from 1M such as 2G"))?;
                }
                "devices" => options.devices = number(value, 1, 8).ok_or_else(|| refuse(item, "1 to 8"))?,
                "kernels" => {
                    options.kernels = match value {
                        "ptx" => Kernels::Ptx,
                        "none" => Kernels::None,
                        _ => return Err(refuse(item, "ptx or none")),
                    }
                }
                "capability" => {
                    let numbers = value
                        .split_once('.')
                        .map(|(major, minor)| (number(major, 1, 99), number(minor, 0, 9)));
                    let Some((Some(major), Some(minor))) = numbers else {
                        return Err(refuse(item, "two numbers such as 9.0"));
                    };
                    options.capability = (major, minor);
                }
                "delay-us" => {
                    let delay = number(value, 0, 10_000_000).ok_or_else(|| refuse(item, "0 to 10000000"))?;
                    options.delay = Duration::from_micros(u64::from(delay));
                }
                "threads" => {
                    options.threads = number(value, 1, 64).ok_or_else(|| refuse(item, "1 to 64"))? as usize;
                }
                "fault" => options.faults.push(value.parse().map_err(|why: &str| refuse(item, why))?),
                _ => {
                    return Err(refuse(
                        item,
                        "memory, devices, kernels, capability, delay-us, threads or fault",
                    ));
                }
            }
        }
        Ok(options)
    }
}

impl fmt::Display for SoftwareOptions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kernels = match self.kernels {
            Kernels::Ptx => "ptx",
            Kernels::None => "none",
        };
        let delay = self.delay.as_micros();
        let Self { memory_bytes, devices, threads, capability: (major, minor), .. } = self;
        write!(
            out,
            "memory={memory_bytes},devices={devices},kernels={kernels},capability={major}.{minor},delay-us={delay},threads={threads}"
        )?;
        self.faults.iter().try_for_each(|fault| write!(out, ",fault={fault}"))
    }
}

fn refuse(item: &str, hint: &str) -> String {
    format!("{item:?} is no option of a device (hint: {hint})")
}

fn number(text: &str, least: u32, most: u32) -> Option<u32> {
    text.parse().ok().filter(|number| (least..=most).contains(number))
}

/// A size: a number and K, M, G or T, which are powers of 1024.
fn bytes(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()?.to_ascii_uppercase() {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        b'T' => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_as_they_are_written() {
        let text = "memory=3G,devices=2,kernels=none,capability=8.6,delay-us=15,threads=3,fault=launch:2:700";
        let options: SoftwareOptions = text.parse().unwrap();
        assert_eq!((options.memory_bytes, options.devices, options.kernels), (3 << 30, 2, Kernels::None));
        assert_eq!(options.to_string().parse(), Ok(options));
        assert_eq!("".parse(), Ok(SoftwareOptions::default()));
    }

    #[test]
    fn what_is_no_option_says_what_is_one() {
        for bad in [
            "memory",
            "memory=0",
            "memory=2",
            "memory=2X",
            "memory=é",
            "devices=9",
            "kernels=all",
            "capability=9",
            "speed=1",
            "fault=launch:0:1",
        ] {
            assert!(bad.parse::<SoftwareOptions>().unwrap_err().contains("hint: "), "{bad}");
        }
    }
}
