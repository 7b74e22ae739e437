//! What the executor needs of devices; the device in software and the driver's devices stand behind it.

use crate::failure::Failure;
use crate::graph::{Content, Graph};
use crate::pooled::ObjectBytes;
use crate::work::{Rows, Work};
use hinterland_proto::gpu::command::{AskClusters, AskOccupancy, AskTensorMap};
use hinterland_proto::gpu::{DeviceFacts, FunctionFacts};
use std::sync::Arc;

/// Where work goes: its stream, and the command that sent it, for the fault that may come of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At {
    /// The stream.
    pub stream: u32,
    /// The command's count.
    pub command: u64,
}

/// What a mark waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkOf {
    /// The work of a stream so far.
    Stream(u32),
    /// The last record of an event.
    Event(u32),
    /// All work of a device so far.
    Device(u32),
}

/// What the devices of a session are, together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Version of the driver, as `cuDriverGetVersion` has it.
    pub driver: i32,
    /// Version of cuBLAS, as `cublasGetVersion` has it.
    pub blas: i32,
    /// First address of the window.
    pub window: u64,
    /// Length of the window in bytes.
    pub window_bytes: u64,
    /// What addresses and lengths of mapped memory are multiples of.
    pub granularity: u64,
    /// The devices.
    pub devices: Vec<DeviceFacts>,
}

/// Sizes of a tensor and of its tiles, by direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Elements of the tensor.
    pub sizes: Vec<u64>,
    /// Bytes from one to the next, in all directions but the first.
    pub strides: Vec<u64>,
    /// Elements of a tile.
    pub tile: Vec<u32>,
    /// Elements from one of a tile to the next.
    pub steps: Vec<u32>,
}

impl Tensor {
    /// Directions of a tensor at most.
    const RANK_MAX: u32 = 5;

    /// Reads what a question has in its tail.
    ///
    /// # Errors
    /// It is no tensor of this rank.
    pub fn read(rank: u32, tail: &[u8]) -> Result<Self, Failure> {
        let count = rank as usize;
        if !(1..=Self::RANK_MAX).contains(&rank) || tail.len() != 24 * count - 8 {
            let words = format!("{} bytes are no tensor of {rank} directions", tail.len());
            return Err(Failure::value(words));
        }
        let (long, short) = tail.split_at(16 * count - 8);
        let long: Vec<u64> = long.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        let short: Vec<u32> = short.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let ((sizes, strides), (tile, steps)) = (long.split_at(count), short.split_at(count));
        let (sizes, strides) = (sizes.to_vec(), strides.to_vec());
        Ok(Self { sizes, strides, tile: tile.to_vec(), steps: steps.to_vec() })
    }
}

/// How much was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Done {
    /// Kernels launched, those of graphs among them.
    pub launches: u64,
    /// Bytes copied to devices.
    pub bytes_in: u64,
    /// Bytes copied to the program.
    pub bytes_out: u64,
}

/// The devices of one session.
///
/// Names are the client's. The executor has looked at them before: what is made has a name that nothing of its kind had, what is used
/// exists, ranges of memory lie within what was mapped, and numbers are in their ranges. Nothing here waits for work of a device, but where
/// more is open than an implementation wants to hold. What work brings about later (bytes, marks, answers, faults) goes to the
/// session's [`Outbox`](crate::outbox::Outbox), which the implementation got when it was made: bytes of a copy before any mark behind it.
pub trait Device {
    /// What the devices are.
    fn facts(&self) -> Facts;
    /// Backs a range of the window with memory of a device.
    ///
    /// # Errors
    /// The device has no memory left; this may also come as a fault later.
    fn map(&mut self, device: u32, address: u64, bytes: u64, command: u64) -> Result<(), Failure>;
    /// Takes a range back that was mapped, after all work that was sent before; whatever is sent later comes after it.
    ///
    /// # Errors
    /// The driver's.
    fn unmap(&mut self, address: u64, bytes: u64, command: u64) -> Result<(), Failure>;
    /// Loads a fat binary.
    ///
    /// # Errors
    /// It is none, or has nothing for the device.
    fn load(&mut self, module: u32, device: u32, image: &[u8]) -> Result<(), Failure>;
    /// Forgets a module; work that uses it is still done.
    fn drop_module(&mut self, module: u32);
    /// Finds a kernel; how many bytes of parameters it takes, if that is known.
    ///
    /// # Errors
    /// The module has none of this name.
    fn function(&mut self, function: u32, module: u32, name: &str) -> Result<Option<usize>, Failure>;
    /// Forgets a kernel.
    fn drop_function(&mut self, function: u32);
    /// Sets an attribute of a kernel, by the driver's number.
    ///
    /// # Errors
    /// The attribute cannot be set, or not to this.
    fn set_attribute(&mut self, function: u32, attribute: i32, value: i32) -> Result<(), Failure>;
    /// Makes a stream.
    ///
    /// # Errors
    /// The driver's.
    fn make_stream(&mut self, stream: u32, device: u32, is_apart: bool, priority: i32)
    -> Result<(), Failure>;
    /// Ends a stream when its work is done.
    fn drop_stream(&mut self, stream: u32);
    /// Makes an event.
    ///
    /// # Errors
    /// The driver's.
    fn make_event(&mut self, event: u32, device: u32, flags: u32) -> Result<(), Failure>;
    /// Ends an event.
    fn drop_event(&mut self, event: u32);
    /// Makes a handle of cuBLAS.
    ///
    /// # Errors
    /// cuBLAS's.
    fn make_blas(&mut self, handle: u32, device: u32) -> Result<(), Failure>;
    /// Ends a handle of cuBLAS.
    fn drop_blas(&mut self, handle: u32);
    /// Puts work behind that of a stream.
    ///
    /// # Errors
    /// The device refuses it at once.
    fn submit(&mut self, at: At, work: Work<'_>) -> Result<(), Failure>;
    /// Makes whatever is sent later, for any stream, wait for the work of this one so far.
    ///
    /// # Errors
    /// The driver's.
    fn fence(&mut self, at: At) -> Result<(), Failure>;
    /// Has `Reached` sent when something is done.
    ///
    /// # Errors
    /// The driver's.
    fn mark(&mut self, mark: u64, of: MarkOf) -> Result<(), Failure>;
    /// Answers a question with the milliseconds between two events, when both are done.
    ///
    /// # Errors
    /// One was not recorded, or has no time.
    fn elapsed(&mut self, question: u32, start: u32, end: u32) -> Result<(), Failure>;
    /// Makes a graph ready to be launched.
    ///
    /// # Errors
    /// The driver's.
    fn instantiate(&mut self, exec: u32, graph: &Graph) -> Result<(), Failure>;
    /// Makes an instance do what another graph says.
    ///
    /// # Errors
    /// The driver's.
    fn update(&mut self, exec: u32, graph: &Graph) -> Result<(), Failure>;
    /// Makes an instance do what its graph says since a command of it has changed, or is left out, or done again.
    ///
    /// # Errors
    /// The driver's; the instance is dropped then.
    fn change_step(&mut self, exec: u32, graph: &Graph, step: usize) -> Result<(), Failure>;
    /// Ends an instance; a launch of it that runs goes on.
    fn drop_exec(&mut self, exec: u32);
    /// Puts an instance of a graph behind the work of a stream. The content is as long as the graph's [`Needs`](crate::graph::Needs) say, and each of its names gets its bytes
    /// or an error, also when this fails.
    ///
    /// # Errors
    /// The device refuses it at once.
    fn launch_graph(&mut self, exec: u32, graph: &Graph, at: At, content: &Content) -> Result<(), Failure>;
    /// What is known of a kernel.
    ///
    /// # Errors
    /// The driver's.
    fn function_facts(&mut self, function: u32) -> Result<FunctionFacts, Failure>;
    /// How many groups of a kernel a multiprocessor holds.
    ///
    /// # Errors
    /// The driver's.
    fn occupancy(&mut self, ask: &AskOccupancy) -> Result<u32, Failure>;
    /// How many groups of a cooperative or clustered launch fit.
    ///
    /// # Errors
    /// The driver's.
    fn clusters(&mut self, ask: &AskClusters) -> Result<u32, Failure>;
    /// The bytes by which kernels copy tiles of a tensor.
    ///
    /// # Errors
    /// The driver's; there is none.
    fn tensor_map(&mut self, ask: &AskTensorMap, tensor: &Tensor) -> Result<[u8; 128], Failure>;
    /// Where a variable of a module lies, and its length.
    ///
    /// # Errors
    /// The module has none of this name.
    fn symbol(&mut self, module: u32, name: &str) -> Result<(u64, u64), Failure>;
    /// Copies bytes of an object of a pool, from `offset` on, in the order of a stream.
    ///
    /// # Errors
    /// The bytes are lost, or the device refuses; this may also come as a fault later.
    fn copy_pooled(
        &mut self,
        at: At,
        to: Rows,
        object: Arc<dyn ObjectBytes>,
        offset: u64,
    ) -> Result<(), Failure>;
    /// How much was done so far.
    fn done(&self) -> Done;
}

macro_rules! forward {
    ($(fn $name:ident(&mut self $(, $argument:ident: $kind:ty)*) $(-> $result:ty)?;)*) => {
        $(fn $name(&mut self $(, $argument: $kind)*) $(-> $result)? {
            (**self).$name($($argument),*)
        })*
    };
}

impl Device for Box<dyn Device> {
    fn facts(&self) -> Facts {
        (**self).facts()
    }

    fn done(&self) -> Done {
        (**self).done()
    }

    forward! {
        fn map(&mut self, device: u32, address: u64, bytes: u64, command: u64) -> Result<(), Failure>;
        fn unmap(&mut self, address: u64, bytes: u64, command: u64) -> Result<(), Failure>;
        fn load(&mut self, module: u32, device: u32, image: &[u8]) -> Result<(), Failure>;
        fn drop_module(&mut self, module: u32);
        fn function(&mut self, function: u32, module: u32, name: &str) -> Result<Option<usize>, Failure>;
        fn drop_function(&mut self, function: u32);
        fn set_attribute(&mut self, function: u32, attribute: i32, value: i32) -> Result<(), Failure>;
        fn make_stream(&mut self, stream: u32, device: u32, is_apart: bool, priority: i32) -> Result<(), Failure>;
        fn drop_stream(&mut self, stream: u32);
        fn make_event(&mut self, event: u32, device: u32, flags: u32) -> Result<(), Failure>;
        fn drop_event(&mut self, event: u32);
        fn make_blas(&mut self, handle: u32, device: u32) -> Result<(), Failure>;
        fn drop_blas(&mut self, handle: u32);
        fn submit(&mut self, at: At, work: Work<'_>) -> Result<(), Failure>;
        fn fence(&mut self, at: At) -> Result<(), Failure>;
        fn mark(&mut self, mark: u64, of: MarkOf) -> Result<(), Failure>;
        fn elapsed(&mut self, question: u32, start: u32, end: u32) -> Result<(), Failure>;
        fn instantiate(&mut self, exec: u32, graph: &Graph) -> Result<(), Failure>;
        fn update(&mut self, exec: u32, graph: &Graph) -> Result<(), Failure>;
        fn change_step(&mut self, exec: u32, graph: &Graph, step: usize) -> Result<(), Failure>;
        fn drop_exec(&mut self, exec: u32);
        fn launch_graph(&mut self, exec: u32, graph: &Graph, at: At, content: &Content) -> Result<(), Failure>;
        fn function_facts(&mut self, function: u32) -> Result<FunctionFacts, Failure>;
        fn occupancy(&mut self, ask: &AskOccupancy) -> Result<u32, Failure>;
        fn clusters(&mut self, ask: &AskClusters) -> Result<u32, Failure>;
        fn tensor_map(&mut self, ask: &AskTensorMap, tensor: &Tensor) -> Result<[u8; 128], Failure>;
        fn symbol(&mut self, module: u32, name: &str) -> Result<(u64, u64), Failure>;
        fn copy_pooled(&mut self, at: At, to: Rows, object: Arc<dyn ObjectBytes>, offset: u64) -> Result<(), Failure>;
    }
}
