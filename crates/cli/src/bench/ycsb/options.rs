//! Options of `ycsb`.

/// Options of `ycsb`.
#[derive(clap::Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "ycsb")]
pub struct YcsbOptions {
    /// Leave out the same table in memory that is reached by page faults
    #[arg(long)]
    pub no_page_faults: bool,
}

impl YcsbOptions {
    /// Whether any was given.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }
}
