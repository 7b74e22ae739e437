//! Options of the benches of far memory.

use crate::failure::Failure;
use crate::size::Size;

/// The memory of the program, and how much of it may be local; the second for `--quick`.
const SIZES: [(u64, u64); 2] = [(4 << 30, 2 << 30), (256 << 20, 128 << 20)];
/// Less is less than a program may have with all that it loads.
const LOCAL_BYTES_MIN: u64 = 64 << 20;

/// Options of `far-scan`, `far-random` and `far-switch`.
#[derive(clap::Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "far-scan, far-random and far-switch")]
pub struct FarOptions {
    /// Memory of the program [default: 4G, with --quick 256M]
    #[arg(long, value_name = "SIZE")]
    set: Option<Size>,
    /// How much of it may be local, or outside of swap [default: half]
    #[arg(long, value_name = "SIZE")]
    local: Option<Size>,
}

impl FarOptions {
    /// Whether any was given.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }

    /// Bytes of the program's memory, and how many of them may be local.
    ///
    /// # Errors
    /// [`Failure`] for sizes with which nothing would be far.
    pub fn sizes(&self, quick: bool) -> Result<(u64, u64), Failure> {
        let bytes = self.set.map_or(SIZES[usize::from(quick)].0, |set| set.bytes);
        let local = self.local.map_or(bytes / 2, |local| local.bytes);
        if local < LOCAL_BYTES_MIN || bytes <= local {
            let text = format!("a set of {bytes} bytes with {local} of them local measures nothing");
            return Err(Failure::usage(text, "--local 64M or more, and --set larger than that"));
        }
        Ok((bytes, local))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_set_is_local_unless_told() {
        let size = |text: &str| Some(text.parse().unwrap());
        assert_eq!(FarOptions::default().sizes(false).ok(), Some((4 << 30, 2 << 30)));
        let both = FarOptions { set: size("1G"), local: size("256M") };
        assert_eq!(both.sizes(true).ok(), Some((1 << 30, 256 << 20)));
        for (set, local) in [("64M", "64M"), ("1G", "1M"), ("100M", "200M")] {
            assert!(FarOptions { set: size(set), local: size(local) }.sizes(false).is_err());
        }
    }
}
