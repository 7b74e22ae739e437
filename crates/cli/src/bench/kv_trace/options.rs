//! What `kv-trace` is told on the command line, and what comes of it: blocks, their bytes, the size of the store.

use super::requests::Trace;
use super::synthetic;
use crate::failure::Failure;
use crate::size::Size;
use hinterland_kv::{BLOCK_BYTES_MAX, Store};
use hinterland_policy::EvictionKind;
use std::path::PathBuf;

/// Options of `kv-trace`; no other bench takes one.
#[derive(clap::Args, Clone, PartialEq, Debug, Default)]
#[command(next_help_heading = "kv-trace")]
pub struct TraceOptions {
    /// Requests to replay, a JSON object with `timestamp` and `hash_ids` a line [default: made up, always the same]
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Only the first N requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    requests: Option<u32>,
    /// Requests at their times, so many times as fast [default: as fast as they are answered]
    #[arg(long, value_name = "TIMES", value_parser = speed)]
    speed: Option<f64>,
    /// Processes that send them [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    clients: Option<u8>,
    /// Memory for blocks [default: a tenth of the bytes of all blocks]
    #[arg(long, value_name = "SIZE")]
    capacity: Option<Size>,
    /// Orders in which blocks leave, with commas between [default: all]
    #[arg(long, value_name = "ORDERS", value_delimiter = ',')]
    eviction: Vec<EvictionKind>,
    /// Bytes of a block of 512 tokens, a part of what a model has, so that it fits here [default: 64K]
    #[arg(long, value_name = "SIZE", conflicts_with = "model")]
    block_bytes: Option<Size>,
    /// All bytes that this model has for 512 tokens, in blocks of fewer tokens if they are more than 4 MiB
    #[arg(long, value_enum)]
    model: Option<Model>,
    /// Move no bytes: compute hit rates of every order, at a 20th, a 10th and a 4th of all blocks
    #[arg(long)]
    pub simulate: bool,
}

/// Models by the bytes that a token takes in their KV cache of 16-bit numbers.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Model {
    // 32 layers, keys and values of 8 heads of 128
    #[value(name = "llama3-8b")]
    Llama3_8b,
    // 80 layers, keys and values of 8 heads of 128
    #[value(name = "llama3-70b")]
    Llama3_70b,
    // 28 layers, keys and values of 8 heads of 128
    #[value(name = "qwen3-0.6b")]
    Qwen3_06b,
    // 61 layers of 576 latent numbers
    #[value(name = "deepseek-v3")]
    DeepseekV3,
    // 30 layers, keys and values of 3 heads of 64
    #[value(name = "smollm2-135m")]
    Smollm2_135m,
}

impl Model {
    const fn token_bytes(self) -> u64 {
        match self {
            Self::Llama3_8b => 32 * 2 * 8 * 128 * 2,
            Self::Llama3_70b => 80 * 2 * 8 * 128 * 2,
            Self::Qwen3_06b => 28 * 2 * 8 * 128 * 2,
            Self::DeepseekV3 => 61 * 576 * 2,
            Self::Smollm2_135m => 30 * 2 * 3 * 64 * 2,
        }
    }

    /// Blocks for 512 tokens, and the bytes of each.
    const fn blocks(self) -> (u32, u64) {
        let whole = self.token_bytes() * TRACE_BLOCK_TOKENS;
        let parts = whole.div_ceil(BLOCK_BYTES_MAX).next_power_of_two();
        // At most 64.
        (parts as u32, whole / parts)
    }
}

/// Tokens of a block of the traces.
const TRACE_BLOCK_TOKENS: u64 = 512;
/// Bytes of a block, unless told otherwise: a thousandth of what a model of 8 billion parameters has for 512 tokens.
const BLOCK_BYTES: u64 = 64 << 10;
const CLIENTS: u8 = 4;
/// Requests of the trace that is made up.
const SYNTHETIC_REQUESTS: u32 = 4000;
const QUICK_REQUESTS: u32 = 400;
const SEED: u64 = 1;
/// The store holds one block in so many.
const CAPACITY_SHARE: u64 = 10;

/// What is replayed, and on what.
pub struct Plan {
    /// The requests.
    pub trace: Trace,
    /// Where they are from, in words.
    pub source: String,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Bytes for blocks, as many as a store of ours uses when it is told so.
    pub capacity_bytes: u64,
    /// Processes.
    pub clients: usize,
    /// Orders to compare.
    pub orders: Vec<EvictionKind>,
    /// How many times as fast as recorded; none for as fast as can be.
    pub speed: Option<f64>,
}

impl TraceOptions {
    /// Whether any was given.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }

    /// Reads or makes the trace and works out sizes.
    ///
    /// # Errors
    /// [`Failure`] if the file is none, or a block cannot be so large.
    pub fn plan(&self, quick: bool) -> Result<Plan, Failure> {
        let (mut trace, source) = self.requests(quick)?;
        let mut block_bytes = self.block_bytes.map_or(BLOCK_BYTES, |size| size.bytes);
        if let Some(model) = self.model {
            let (parts, bytes) = model.blocks();
            trace = trace.cut(parts)?;
            block_bytes = bytes;
        }
        if !(64..=BLOCK_BYTES_MAX).contains(&block_bytes) || !block_bytes.is_multiple_of(8) {
            let text = format!("a block of {block_bytes} bytes cannot be replayed");
            return Err(Failure::usage(text, "64 to 4M, a multiple of 8: --block-bytes 64K"));
        }
        let tenth = trace.unique().div_ceil(CAPACITY_SHARE) * block_bytes;
        let wanted = self.capacity.map_or_else(|| tenth.max(CAPACITY_BYTES_MIN), |size| size.bytes);
        let capacity_bytes = Store::<Unused>::geometry_for(wanted).blocks_bytes();
        if capacity_bytes == 0 {
            let text = format!("{wanted} bytes are too few for a store");
            return Err(Failure::usage(text, "use 4M or more: --capacity 64M"));
        }
        let orders =
            if self.eviction.is_empty() { EvictionKind::ALL.to_vec() } else { self.eviction.clone() };
        let clients = usize::from(self.clients.unwrap_or(CLIENTS));
        Ok(Plan { trace, source, block_bytes, capacity_bytes, clients, orders, speed: self.speed })
    }

    fn requests(&self, quick: bool) -> Result<(Trace, String), Failure> {
        let given = self.requests.or(quick.then_some(QUICK_REQUESTS));
        match &self.trace {
            Some(path) => {
                let trace = Trace::read(path, given.map_or(usize::MAX, |count| count as usize))?;
                let name = path.file_name().unwrap_or(path.as_os_str()).display().to_string();
                Ok((trace, name))
            }
            None => {
                let count = given.unwrap_or(SYNTHETIC_REQUESTS) as usize;
                Ok((synthetic::trace(count, SEED), format!("a trace made up of seed {SEED}")))
            }
        }
    }
}

/// The smallest store, unless told otherwise: the peer takes no less.
const CAPACITY_BYTES_MIN: u64 = 16 << 20;

/// Books that nobody keeps: only to ask how a store divides its bytes.
struct Unused;

impl hinterland_kv::Words for Unused {
    fn load(&self, _: usize) -> u64 {
        0
    }

    fn store(&self, _: usize, _: u64) {}
}

fn speed(text: &str) -> Result<f64, String> {
    let given = text.parse().ok().filter(|speed| (0.001..=1e6).contains(speed));
    given.ok_or_else(|| format!("{text:?} is no speed (hint: 1 as recorded, 10 for ten times as fast)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_every_model_fit_and_hold_all_of_512_tokens() {
        for model in
            [Model::Llama3_8b, Model::Llama3_70b, Model::Qwen3_06b, Model::DeepseekV3, Model::Smollm2_135m]
        {
            let (parts, bytes) = model.blocks();
            assert!(bytes <= BLOCK_BYTES_MAX && bytes.is_multiple_of(8), "{model:?}: {bytes}");
            assert_eq!(u64::from(parts) * bytes, model.token_bytes() * TRACE_BLOCK_TOKENS, "{model:?}");
        }
        assert_eq!(Model::Llama3_8b.blocks(), (16, 4 << 20));
    }

    #[test]
    fn a_store_of_a_tenth_is_what_is_left_unsaid() {
        let plan = TraceOptions::default().plan(false).unwrap();
        let all = plan.trace.unique() * plan.block_bytes;
        assert!((all / 11..=all / 9).contains(&plan.capacity_bytes), "{} of {all}", plan.capacity_bytes);
        assert_eq!(plan.orders.len(), EvictionKind::ALL.len());
    }

    #[test]
    fn sizes_that_make_no_sense_are_refused() {
        let with = |bytes| TraceOptions { block_bytes: Some(Size { bytes }), ..TraceOptions::default() };
        for bytes in [0, 8, 100, 5 << 20] {
            assert!(with(bytes).plan(true).is_err(), "{bytes}");
        }
        let small = TraceOptions { capacity: Some(Size { bytes: 1 << 20 }), ..TraceOptions::default() };
        assert!(small.plan(true).err().unwrap().hint.contains("--capacity"));
        assert!(speed("0").is_err() && speed("nan").is_err() && speed("1").is_ok());
    }
}
