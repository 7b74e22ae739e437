//! Reads the commands of one session, checks everything about them, and has a device do them.

mod graphs;
mod memory;
mod modules;
mod pooled;
mod questions;
mod streams;

use crate::body::Body;
use crate::device::{At, Device};
use crate::failure::Failure;
use crate::graph::name_of;
use crate::outbox::Outbox;
use crate::store::ImageStore;
use crate::work::{Place, Rows, Work, work_of};
use graphs::Graphs;
use hinterland_proto::gpu::command::{Command, launch_flags};
use hinterland_proto::gpu::{DEFAULT_STREAMS, PARAMETER_BYTES_MAX};
use memory::Memory;
use modules::Modules;
use pooled::Pooled;
use std::collections::HashMap;
use std::sync::Arc;
use streams::Streams;

/// Longest head of a command: all fields of the longest one.
const HEAD_BYTES_MAX: usize = 256;
/// Groups of a grid, by dimension.
const GRID_MAX: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
/// Threads of a group, by dimension.
const BLOCK_MAX: [u32; 3] = [1024, 1024, 64];
/// Threads of a group.
const THREADS_MAX: u64 = 1024;
/// Groups of a cluster.
const CLUSTER_MAX: u64 = 16;
/// Handles of cuBLAS.
const HANDLES_MAX: usize = 4096;

/// The setting of a handle that gives it memory to work in.
const BLAS_WORKSPACE: u32 = 3;

/// What a handle of cuBLAS is to the executor.
#[derive(Debug, Clone, Copy)]
struct Handle {
    device: u32,
    stream: u32,
}

/// Which names of a piece of work have to exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Names {
    /// All.
    All,
    /// Those that reach out of the graph that the work stands in, as it is defined: events of others, and handles. Its streams and its own events
    /// only say what waits for what, and a program may have ended them since the capture.
    Outside,
    /// None: what a graph needs of them it has kept.
    None,
}

/// Who says how much memory a session may have.
pub trait Grants: Send {
    /// Asks for `wanted` bytes of a device in all, or for what there is if that is at least `least`. The bytes that the session may have
    /// from now on, and those that could be added; nothing if nobody can be asked.
    fn ask(&mut self, device: u32, least: u64, wanted: u64) -> Option<(u64, u64)>;
}

/// What was given at the start stays.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoGrants;

impl Grants for NoGrants {
    fn ask(&mut self, _: u32, _: u64, _: u64) -> Option<(u64, u64)> {
        None
    }
}

/// The commands of one session.
pub struct Executor<D> {
    device: D,
    outbox: Arc<Outbox>,
    grants: Box<dyn Grants>,
    devices: u32,
    count: u64,
    memory: Memory,
    modules: Modules,
    streams: Streams,
    graphs: Graphs,
    handles: HashMap<u32, Handle>,
    pooled: Pooled,
}

impl<D: Device> Executor<D> {
    /// A session that has nothing yet.
    pub fn new(device: D, outbox: Arc<Outbox>, images: Box<dyn ImageStore>, grants: Box<dyn Grants>) -> Self {
        let facts = device.facts();
        let devices = u32::try_from(facts.devices.len()).unwrap_or(u32::MAX).min(DEFAULT_STREAMS);
        Self {
            memory: Memory::new(&facts),
            modules: Modules::new(images),
            streams: Streams::new(devices),
            graphs: Graphs::default(),
            handles: HashMap::new(),
            pooled: Pooled::default(),
            devices,
            count: 0,
            device,
            outbox,
            grants,
        }
    }

    /// Does one command, counted from 1; what fails is told.
    pub fn command(&mut self, word: u32, body: Body<'_>) {
        self.count += 1;
        let mut head = [0; HEAD_BYTES_MAX];
        let head = &mut head[..body.bytes().min(HEAD_BYTES_MAX)];
        body.read(head);
        let outcome = Command::read(word, head, body.bytes())
            .map_err(|bad| Failure::value(bad.to_string()))
            .and_then(|command| self.perform(command, body));
        if let Err(failure) = outcome {
            self.tell(&failure);
        }
    }

    /// Says that the present command failed.
    fn tell(&self, failure: &Failure) {
        tracing::debug!(command = self.count, "{failure}");
        self.outbox.fault(self.count, failure);
    }

    /// How many commands there were.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The device, for what it counts.
    pub const fn device(&self) -> &D {
        &self.device
    }

    /// Bytes of memory that are mapped.
    pub fn mapped_bytes(&self) -> u64 {
        self.memory.mapped_bytes()
    }

    fn perform(&mut self, command: Command, body: Body<'_>) -> Result<(), Failure> {
        match command {
            Command::MapMemory(c) => self.map_memory(&c),
            Command::UnmapMemory(c) => self.unmap_memory(&c),
            Command::Module(c) => self.module(&c),
            Command::ModulePart(c) => self.module_part(&c, body),
            Command::Function(c) => self.function(&c, body),
            Command::FunctionAttribute(c) => self.function_attribute(&c),
            Command::ModuleDrop(c) => self.module_drop(&c),
            Command::StreamCreate(c) => self.stream_create(&c),
            Command::StreamDestroy(c) => self.stream_destroy(&c),
            Command::EventCreate(c) => self.event_create(&c),
            Command::EventDestroy(c) => self.event_destroy(&c),
            Command::Fence(c) => self.fence(&c),
            Command::MarkStream(c) => self.mark_stream(&c),
            Command::MarkEvent(c) => self.mark_event(&c),
            Command::MarkDevice(c) => self.mark_device(&c),
            Command::EventElapsed(c) => self.event_elapsed(&c),
            Command::Graph(c) => self.graph(&c),
            Command::GraphPart(c) => self.graph_part(&c, body),
            Command::GraphDestroy(c) => self.graph_destroy(&c),
            Command::GraphInstantiate(c) => self.graph_instantiate(&c),
            Command::GraphUpdate(c) => self.graph_update(&c),
            Command::GraphSwitch(c) => self.graph_switch(&c),
            Command::GraphChange(c) => self.graph_change(&c, body),
            Command::GraphExecDestroy(c) => self.graph_exec_destroy(&c),
            Command::GraphLaunch(c) => self.graph_launch(&c),
            Command::LaunchContent(c) => self.launch_content(&c, body),
            Command::AskFunction(c) => self.ask_function(&c),
            Command::AskOccupancy(c) => self.ask_occupancy(&c),
            Command::AskSymbol(c) => self.ask_symbol(&c, body),
            Command::AskGrant(c) => self.ask_grant(&c),
            Command::AskClusters(c) => self.ask_clusters(&c),
            Command::AskTensorMap(c) => self.ask_tensor_map(&c, body),
            Command::AskPooled(c) => self.ask_pooled(&c),
            Command::CopyPooled(c) => self.copy_pooled(&c),
            Command::BlasCreate(c) => self.blas_create(c.handle, c.device),
            Command::BlasDestroy(c) => self.blas_destroy(c.handle),
            other => self.stream_work(other, body),
        }
    }

    /// A command that is work of a stream.
    fn stream_work(&mut self, command: Command, body: Body<'_>) -> Result<(), Failure> {
        let transfer = match command {
            Command::CopyOut(c) => Some(c.transfer),
            Command::CopyOutRows(c) => Some(c.transfer),
            _ => None,
        };
        let outcome = self.submit(command, body);
        if let (Err(failure), Some(transfer)) = (&outcome, transfer) {
            // Whoever waits for the bytes is told as well, and finds the reason in front.
            self.tell(failure);
            self.outbox.no_bytes(transfer, failure.error);
            return Ok(());
        }
        outcome
    }

    fn submit(&mut self, command: Command, body: Body<'_>) -> Result<(), Failure> {
        let Some((place, work)) = work_of(command, body)? else {
            return Err(Failure::unsupported(format!("{} is no command of its own", name_of(command))));
        };
        if let Work::CopyInAtLaunch { .. } = work {
            return Err(Failure::unsupported(format!("{} stands in graphs only", name_of(command))));
        }
        let stream = self.stream_of(place)?;
        self.streams.known(stream)?;
        self.check(&work, Names::All)?;
        if let Work::BlasSet(set) = work {
            self.note_blas(&set)?;
        }
        if let Work::Record { event, .. } = work {
            self.streams.note_record(event);
        }
        self.device.submit(At { stream, command: self.count }, work)
    }

    fn stream_of(&self, place: Place) -> Result<u32, Failure> {
        match place {
            Place::Stream(stream) => Ok(stream),
            Place::Handle(handle) => self.handle(handle).map(|known| known.stream),
        }
    }

    /// Everything about a piece of work but its stream and its shape, which [`work_of`] has looked at.
    fn check(&self, work: &Work<'_>, names: Names) -> Result<(), Failure> {
        let with_handles = names != Names::None;
        match work {
            Work::Launch(launch) => {
                let fields = &launch.fields;
                check_geometry(fields.grid, fields.block)?;
                if fields.flags & launch_flags::CLUSTER != 0 {
                    check_cluster(fields.grid, fields.cluster)?;
                }
                let given = launch.parameters.bytes();
                let taken = self.modules.parameter_bytes(fields.function)?;
                if given > PARAMETER_BYTES_MAX || taken.is_some_and(|taken| given < taken) {
                    let taken = taken.unwrap_or(PARAMETER_BYTES_MAX);
                    let words = format!("a kernel that takes {taken} bytes of parameters was given {given}");
                    return Err(Failure::value(words));
                }
                Ok(())
            }
            Work::CopyIn { to, .. } | Work::CopyInAtLaunch { to } => self.memory.check(to),
            Work::CopyOut { from, .. } => self.memory.check(from),
            Work::CopyWithin { to, from } => {
                self.memory.check(to)?;
                self.memory.check(from)
            }
            Work::Fill { to, .. } => self.memory.check(to),
            Work::Record { event, is_external } | Work::Wait { event, is_external }
                if names == Names::All || (names == Names::Outside && *is_external) =>
            {
                self.streams.known_event(*event)
            }
            Work::Record { .. } | Work::Wait { .. } => Ok(()),
            Work::BlasSet(set) => {
                if with_handles {
                    self.known_handle(set.handle)?;
                }
                if set.property != BLAS_WORKSPACE || set.more == 0 {
                    return Ok(());
                }
                self.memory.check(&Rows::new(set.value, 0, set.more, 1)?)
            }
            Work::Gemm(gemm) => {
                if with_handles {
                    self.known_handle(gemm.handle)?;
                }
                self.check_gemm(gemm)
            }
            Work::GemmPointers(gemm) => {
                if with_handles {
                    self.known_handle(gemm.handle)?;
                }
                check_sizes([gemm.m, gemm.n, gemm.k], gemm.count)?;
                for array in [gemm.a, gemm.b, gemm.c] {
                    self.memory.check(&pointers(array, gemm.count)?)?;
                }
                Ok(())
            }
            // What its places are depends on the function: the device looks at them.
            Work::BlasCall(call) => {
                if with_handles {
                    self.known_handle(call.handle)?;
                }
                check_sizes([call.m, call.n, call.k], call.count)
            }
            Work::LtMatmul(_) => Ok(()),
        }
    }

    fn handle(&self, handle: u32) -> Result<Handle, Failure> {
        self.handles.get(&handle).copied().ok_or_else(|| Failure::unknown("cuBLAS handle", handle))
    }

    fn known_handle(&self, handle: u32) -> Result<(), Failure> {
        self.handle(handle).map(drop)
    }

    fn known_device(&self, device: u32) -> Result<(), Failure> {
        if device < self.devices {
            return Ok(());
        }
        let words = format!("there is no device {device}: this session has {}", self.devices);
        Err(Failure::new(crate::failure::number::INVALID_DEVICE, words))
    }

    fn blas_create(&mut self, handle: u32, device: u32) -> Result<(), Failure> {
        self.known_device(device)?;
        if self.handles.contains_key(&handle) {
            return Err(Failure::twice("cuBLAS handle", handle));
        }
        if self.handles.len() >= HANDLES_MAX {
            return Err(Failure::too_many("cuBLAS handles", HANDLES_MAX));
        }
        self.device.make_blas(handle, device)?;
        self.handles.insert(handle, Handle { device, stream: device });
        Ok(())
    }

    fn blas_destroy(&mut self, handle: u32) -> Result<(), Failure> {
        self.handles.remove(&handle).ok_or_else(|| Failure::unknown("cuBLAS handle", handle))?;
        self.device.drop_blas(handle);
        Ok(())
    }

    fn note_blas(&mut self, set: &hinterland_proto::gpu::command::BlasSet) -> Result<(), Failure> {
        const STREAM: u32 = 1;
        const PROPERTY_MAX: u32 = 5;
        match set.property {
            STREAM => {
                let stream = u32::try_from(set.value).unwrap_or(u32::MAX);
                let device = self.handle(set.handle)?.device;
                if self.streams.device_of(stream)? != device {
                    return Err(Failure::value(format!("stream {stream} is of another device")));
                }
                self.handles.insert(set.handle, Handle { device, stream });
                Ok(())
            }
            2..=PROPERTY_MAX => Ok(()),
            other => Err(Failure::blas_unsupported(format!("a cuBLAS handle has no property {other}"))),
        }
    }

    fn check_gemm(&self, gemm: &hinterland_proto::gpu::command::BlasGemm) -> Result<(), Failure> {
        check_sizes([gemm.m, gemm.n, gemm.k], gemm.count)?;
        let (m, n, k) = (gemm.m, gemm.n, gemm.k);
        let shape = |transpose: u32, rows: i64, columns: i64| {
            if transpose == 0 { (rows, columns) } else { (columns, rows) }
        };
        let (a, b) = (shape(gemm.transpose_a, m, k), shape(gemm.transpose_b, k, n));
        for (matrix, kind, (rows, columns), lead, stride) in [
            (gemm.a, gemm.a_type, a, gemm.a_lead, gemm.a_stride),
            (gemm.b, gemm.b_type, b, gemm.b_lead, gemm.b_stride),
            (gemm.c, gemm.c_type, (m, n), gemm.c_lead, gemm.c_stride),
        ] {
            self.memory.check(&matrices(matrix, kind, [rows, columns], lead, stride, gemm.count)?)?;
        }
        Ok(())
    }
}

/// Bytes of an element by cuBLAS's number of its type.
pub fn element_bytes(kind: u32) -> Result<u64, Failure> {
    match kind {
        0 | 10 | 12 => Ok(4),
        1 | 4 | 5 => Ok(8),
        2 | 14 | 20 | 22 => Ok(2),
        3 | 8 | 28 | 29 => Ok(1),
        6 | 7 => Ok(4),
        9 | 15 => Ok(4),
        other => Err(Failure::blas_unsupported(format!("elements of type {other} are not known"))),
    }
}

/// The memory of some matrices that lie `stride` elements apart.
fn matrices(
    address: u64,
    kind: u32,
    [rows, columns]: [i64; 2],
    lead: i64,
    stride: i64,
    count: i64,
) -> Result<Rows, Failure> {
    if rows == 0 || columns == 0 || count == 0 {
        return Ok(Rows::one(address, 0));
    }
    if lead < rows || stride < 0 {
        let words =
            format!("a matrix of {rows} rows has a leading dimension of {lead}, and a stride of {stride}");
        return Err(Failure::blas_value(words));
    }
    let too_large = || Failure::blas_value("a matrix ends beyond all addresses");
    let elements = (columns - 1)
        .checked_mul(lead)
        .and_then(|all| all.checked_add(rows))
        .and_then(|one| (count - 1).checked_mul(stride)?.checked_add(one))
        .and_then(|all| u64::try_from(all).ok())
        .ok_or_else(too_large)?;
    let bytes = elements.checked_mul(element_bytes(kind)?).ok_or_else(too_large)?;
    Rows::new(address, 0, bytes, 1)
}

/// The memory of an array of addresses.
fn pointers(address: u64, count: i64) -> Result<Rows, Failure> {
    let bytes = u64::try_from(count).ok().and_then(|count| count.checked_mul(8));
    let bytes = bytes.ok_or_else(|| Failure::blas_value(format!("{count} is no count of matrices")))?;
    Rows::new(address, 0, bytes, 1)
}

fn check_sizes(sizes: [i64; 3], count: i64) -> Result<(), Failure> {
    if sizes.iter().chain([&count]).any(|size| *size < 0 || *size > i64::from(i32::MAX)) {
        return Err(Failure::blas_value(format!("{count} matrices of {sizes:?} are none")));
    }
    Ok(())
}

fn check_geometry(grid: [u32; 3], block: [u32; 3]) -> Result<(), Failure> {
    let fits = |sizes: [u32; 3], most: [u32; 3]| {
        sizes.iter().zip(most).all(|(size, most)| (1..=most).contains(size))
    };
    let threads: u64 = block.iter().map(|size| u64::from(*size)).product();
    if fits(grid, GRID_MAX) && fits(block, BLOCK_MAX) && threads <= THREADS_MAX {
        return Ok(());
    }
    Err(Failure::value(format!("a grid of {grid:?} groups of {block:?} threads is out of range")))
}

fn check_cluster(grid: [u32; 3], cluster: [u32; 3]) -> Result<(), Failure> {
    let groups = cluster.iter().map(|size| u64::from(*size)).fold(1, u64::saturating_mul);
    let divides = cluster.iter().zip(grid).all(|(size, groups)| *size > 0 && groups.is_multiple_of(*size));
    if divides && groups <= CLUSTER_MAX {
        return Ok(());
    }
    Err(Failure::value(format!("a grid of {grid:?} groups cannot be made of clusters of {cluster:?}")))
}
