//! Benches: each measures ours, the limit of the machine and a peer, in turn and in one process tree.
//!
//! | module | subject |
//! | --- | --- |
//! | [`report`] | what a bench prints: rows, and the machine that they were taken on |
//! | [`rounds`] | taking figures in turn; medians and spreads |
//! | [`plot`] | bars of a report as a picture |
//! | [`switches`] | the same bench without one optimisation after the other |
//! | [`case`] | one case: its figures and its row |
//! | [`ground`] | folder, huge pages and nodes of a bench, and putting all of it back |
//! | [`worker`] | processes that answer lines with figures |
//! | [`content`] | bytes to measure with |
//! | [`redis`], [`mooncake`] | peers |
//! | [`prepared`] | models and programs that are made once |
//! | [`trace`] | which experts a text uses |
//! | [`kv_trace`] | a trace of requests, replayed |
//!
//! A bench is a module of its own that implements [`Bench`], and stands in [`BENCHES`].

mod apart;
pub mod case;
pub mod content;
mod directory;
pub mod experts;
pub mod far;
pub mod far_apps;
mod far_stripe;
mod fault;
mod fs;
mod gpu_calls;
mod gpu_load;
pub mod ground;
mod hot;
mod kv;
mod kv_gpu;
mod kv_racks;
mod kv_rpc;
pub mod kv_trace;
mod link;
mod llamacpp;
mod load;
pub mod mooncake;
pub mod plot;
pub mod prepared;
mod rack_rw;
mod read;
mod reader;
pub mod redis;
pub mod report;
mod resp;
mod rings;
pub mod rounds;
mod rpc;
mod rpc_adaptive;
mod scan;
mod swap_device;
pub mod switches;
mod tls;
pub mod trace;
mod vllm;
pub mod worker;
mod write_buffer;
pub mod ycsb;

use crate::failure::Failure;
use clap::builder::{PossibleValue, PossibleValuesParser};
use experts::ExpertsOptions;
use far::options::FarOptions;
use far_apps::options::AppsOptions;
use kv_trace::options::TraceOptions;
use report::Row;
use std::path::PathBuf;
use ycsb::options::YcsbOptions;

/// Every bench, in the order of `hinterland bench list`.
pub const BENCHES: &[&dyn Bench] = &[
    &rpc::Rpc,
    &rings::Rings,
    &rpc_adaptive::RpcAdaptive,
    &read::Read,
    &scan::Scan,
    &fault::Fault,
    &load::Load,
    &fs::Fs,
    &experts::Experts,
    &kv::KvGet,
    &kv::KvBatch,
    &kv::KvScatter,
    &kv::KvSparse,
    &kv::KvLookup,
    &kv_rpc::KvRpc,
    &kv_racks::KvRacks,
    &kv_gpu::KvGpuBench,
    &kv_trace::KvTrace,
    &gpu_calls::GpuCalls,
    &gpu_load::GpuLoad,
    &rack_rw::RackRw,
    &tls::UnderTls,
    &write_buffer::WriteBuffer,
    &hot::Hot,
    &directory::DirectoryBench,
    &resp::Resp,
    &ycsb::Ycsb,
    &far::FarScan,
    &far::FarRandom,
    &far_stripe::FarStripe,
    &far::overhead::FarOverhead,
    &far::isolation::FarIsolation,
    &far::switch::FarSwitch,
    &far::tune::FarTune,
    &far_apps::FarApps,
    &swap_device::SwapDevice,
    &vllm::VllmTtft,
    &llamacpp::LlamacppTtft,
];

/// Parts of benches that run as processes of their own; no list shows them.
const WORKERS: &[&dyn Bench] = &[
    &reader::Reader,
    &far::toucher::Toucher,
    &kv::KvReader,
    &kv_rpc::KvRpcAnswerer,
    &rack_rw::rdma::RackRwPeer,
    &kv_trace::client::Client,
    &gpu_calls::answerer::Answerer,
];

/// What a bench is told.
pub struct Setting {
    /// How often each figure is taken.
    pub rounds: usize,
    /// Small sizes, so that it ends within seconds: it shows that the bench works, and no figure to quote.
    pub quick: bool,
    /// Optimisations that its nodes go without, as `hinterland node --without` calls them.
    pub without: Vec<String>,
    /// The `hinterland` program, to start nodes with.
    pub program: PathBuf,
    /// Options of `kv-trace`.
    pub trace: TraceOptions,
    /// Options of the benches of far memory.
    pub far: FarOptions,
    /// Options of `far-apps`.
    pub apps: AppsOptions,
    /// Options of `experts`.
    pub experts: ExpertsOptions,
    /// Options of `ycsb`.
    pub ycsb: YcsbOptions,
    /// Says what is being done, in words.
    pub say: Box<dyn Fn(&str)>,
}

/// One bench.
pub trait Bench: Sync {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// What it measures, in one line.
    fn subject(&self) -> &'static str;

    /// The optimisations whose worth it shows: names of `hinterland node --without`, or variables with their value, as `NAME=1`.
    fn switches(&self) -> &'static [&'static str] {
        &[]
    }

    /// Measures. A case whose figure cannot be taken is a row that says why.
    ///
    /// # Errors
    /// [`Failure`] when nothing can be measured at all.
    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure>;
}

/// The word in the place of a bench's name that shows which there are.
pub const LIST: &str = "list";

/// What can be written in the place of a bench's name: who mistypes one is told the nearest. Of workers, which no person starts, nothing is
/// said.
pub fn names() -> PossibleValuesParser {
    let shown = BENCHES.iter().map(|bench| PossibleValue::new(bench.name()).help(bench.subject()));
    let hidden = WORKERS.iter().map(|bench| PossibleValue::new(bench.name()).hide(true));
    PossibleValuesParser::new(shown.chain(hidden).chain([PossibleValue::new(LIST)]))
}

/// The bench of this name.
///
/// # Errors
/// [`Failure`] with the names that there are.
pub fn find<'benches>(benches: &[&'benches dyn Bench], name: &str) -> Result<&'benches dyn Bench, Failure> {
    benches.iter().chain(WORKERS).find(|bench| bench.name() == name).copied().ok_or_else(|| {
        let names: Vec<&str> = benches.iter().map(|bench| bench.name()).collect();
        let known = if names.is_empty() { "this build has none".to_owned() } else { names.join(", ") };
        Failure::usage(format!("there is no bench {name:?}"), format!("the benches are: {known}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Bench for Nothing {
        fn name(&self) -> &'static str {
            "nothing"
        }
        fn subject(&self) -> &'static str {
            "the time that nothing takes"
        }
        fn run(&self, _: &Setting) -> Result<Vec<Row>, Failure> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn a_bench_is_found_by_its_name_and_the_others_are_told() {
        assert_eq!(find(&[&Nothing], "nothing").ok().map(Bench::name), Some("nothing"));
        let failure = find(&[&Nothing], "all").err().unwrap();
        assert_eq!(failure.hint, "the benches are: nothing");
        assert_eq!(failure.exit, crate::failure::Exit::Usage);
    }

    #[test]
    fn no_two_benches_have_one_name() {
        let mut names: Vec<&str> = BENCHES.iter().chain(WORKERS).map(|bench| bench.name()).collect();
        names.push(LIST);
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "`list` is no name for a bench either");
    }
}
