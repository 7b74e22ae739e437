//! The device in software as a [`Device`]: commands become tasks.
//!
//! What waits for nothing and is short is done at once, in the thread that reads commands: a copy into staging would cost as much as the
//! copy. Everything else is a task of the [`Engine`].

use super::engine::{Action, Engine, TaskId};
use super::facts;
use super::faults::{Faults, Kind, is_sticky};
use super::kernels::Programs;
use super::lanes::Lanes;
use super::options::{Kernels, SoftwareOptions};
use super::space::{GRANULARITY, Space, WINDOW_BYTES};
use super::variables::{OWN_BYTES, Variables};
use super::{blas, linear, lt, space::View};
use crate::body::Body;
use crate::device::{At, Device, Done, Facts, MarkOf, Tensor};
use crate::failure::{Failure, number};
use crate::graph::{Content, Graph};
use crate::outbox::Outbox;
use crate::pooled::{ObjectBytes, in_pieces};
use crate::work::{Launch, Rows, Work};
use hinterland_os::OsError;
use hinterland_os::clock::monotonic_ns;
use hinterland_proto::gpu::command::{AskClusters, AskOccupancy, AskTensorMap, launch_flags};
use hinterland_proto::gpu::{FunctionFacts, LtProduct};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

/// A copy out of more bytes is a task, so that the next command is read meanwhile.
const AT_ONCE_BYTES_MAX: u64 = 256 << 10;
/// `CU_EVENT_DISABLE_TIMING`.
const WITHOUT_TIME: u32 = 2;
/// The property of a cuBLAS handle that says where factors lie.
const POINTER_MODE: u32 = 4;

/// What tasks need, in whatever thread.
struct Context {
    space: Space,
    outbox: Arc<Outbox>,
    faults: Faults,
    delay: Duration,
    /// The error of each device that is of no more use, or 0.
    broken: Vec<AtomicI32>,
}

/// What a piece of work is, for its failure.
#[derive(Clone, Copy)]
struct Job {
    device: u32,
    command: u64,
    kind: Kind,
    /// The copy out that somebody waits for.
    transfer: Option<u32>,
}

impl Context {
    fn broken(&self, device: u32) -> i32 {
        // Acquire: pairs with the Release in `fail`; whoever sees the error comes after its fault was sent.
        self.broken.get(device as usize).map_or(0, |error| error.load(Ordering::Acquire))
    }

    fn any_broken(&self) -> i32 {
        (0..self.broken.len()).map(|device| self.broken(device as u32)).find(|error| *error != 0).unwrap_or(0)
    }

    /// Does a piece of work, unless its device is of no more use.
    fn perform(&self, job: Job, work: impl FnOnce(&View) -> Result<(), Failure>) {
        if !self.delay.is_zero() {
            std::thread::sleep(self.delay);
        }
        let broken = self.broken(job.device);
        if broken != 0 {
            if let Some(transfer) = job.transfer {
                self.outbox.no_bytes(transfer, broken);
            }
            return;
        }
        let outcome = self.faults.count(job.kind).and_then(|()| work(&self.space.view()));
        if let Err(failure) = outcome {
            self.fail(job, failure);
        }
    }

    fn fail(&self, job: Job, failure: Failure) {
        // What a kernel does wrong ends the context of the device, as with the driver.
        let failure =
            if job.kind == Kind::Launch && is_sticky(failure.error) { failure.sticky() } else { failure };
        self.outbox.fault(job.command, &failure);
        if let Some(transfer) = job.transfer {
            self.outbox.no_bytes(transfer, failure.error);
        }
        if failure.is_sticky
            && let Some(broken) = self.broken.get(job.device as usize)
        {
            // The first error stays. Release: pairs with the Acquire in `broken`.
            let _ = broken.compare_exchange(0, failure.error, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// A record of an event.
#[derive(Clone, Default)]
struct Recorded {
    task: TaskId,
    /// When it was done, in nanoseconds.
    at: Arc<AtomicU64>,
}

struct Event {
    has_time: bool,
    recorded: Option<Recorded>,
}

/// One launch of a graph: its streams are lanes of their own that begin behind one task.
struct Replay {
    start: TaskId,
    tails: HashMap<u32, TaskId>,
    events: HashMap<u32, TaskId>,
    /// Handles of cuBLAS whose next product takes pointers, as the list says.
    takes_pointers: HashSet<u32>,
    device: u32,
}

/// The devices of a session, in software.
pub struct SoftwareMachine {
    options: SoftwareOptions,
    grants: Vec<u64>,
    context: Arc<Context>,
    engine: Engine,
    lanes: Lanes,
    programs: Programs,
    events: HashMap<u32, Event>,
    /// The end of each instance's last launch: two launches of one never overlap.
    execs: HashMap<u32, TaskId>,
    /// Whether a cuBLAS handle takes factors from device memory.
    handles: HashMap<u32, bool>,
    variables: Variables,
    done: Done,
    waits: Vec<TaskId>,
    /// Ranges that a task is to take the memory of.
    unmapping: Vec<(Range<u64>, TaskId)>,
}

impl SoftwareMachine {
    /// Devices as the options say, of which the session may use so many bytes of each.
    ///
    /// # Errors
    /// There are no addresses for the window.
    pub fn new(options: SoftwareOptions, grants: &[u64], outbox: Arc<Outbox>) -> Result<Self, OsError> {
        let space = Space::new()?;
        let variables = Variables::new(&space, options.memory_bytes);
        let context = Arc::new(Context {
            space,
            outbox,
            faults: Faults::new(&options.faults),
            delay: options.delay,
            broken: (0..options.devices).map(|_| AtomicI32::new(0)).collect(),
        });
        Ok(Self {
            grants: grants.to_vec(),
            context,
            engine: Engine::start(options.threads),
            lanes: Lanes::new(options.devices),
            programs: Programs::new(options.kernels),
            events: HashMap::new(),
            execs: HashMap::new(),
            handles: HashMap::new(),
            variables,
            done: Done::default(),
            waits: Vec::new(),
            unmapping: Vec::new(),
            options,
        })
    }

    /// Finds what the next task of a stream waits for; whether that is nothing.
    fn gather(&mut self, stream: u32, replay: Option<&Replay>) -> bool {
        match replay {
            None => self.lanes.waits(stream, &mut self.waits),
            Some(replay) => {
                self.waits.clear();
                let tail = replay.tails.get(&stream).copied().unwrap_or(replay.start);
                self.waits.extend([tail].iter().filter(|task| **task != 0));
            }
        }
        self.engine.retain_open(&mut self.waits);
        self.waits.is_empty()
    }

    fn follow(&mut self, stream: u32, replay: Option<&mut Replay>, task: TaskId) {
        match replay {
            None => self.lanes.follow(stream, task),
            Some(replay) => drop(replay.tails.insert(stream, task)),
        }
    }

    /// Puts an action behind what was gathered, as the last of its stream.
    fn queue(
        &mut self,
        stream: u32,
        replay: Option<&mut Replay>,
        staged_bytes: usize,
        action: Option<Action>,
    ) {
        let task = self.engine.submit(&self.waits, action, staged_bytes);
        self.follow(stream, replay, task);
    }

    /// Puts work behind what was gathered.
    fn queue_job(
        &mut self,
        stream: u32,
        replay: Option<&mut Replay>,
        job: Job,
        staged_bytes: usize,
        work: impl FnOnce(&View) -> Result<(), Failure> + Send + 'static,
    ) {
        let context = Arc::clone(&self.context);
        let action: Action = Box::new(move || context.perform(job, work));
        self.queue(stream, replay, staged_bytes, Some(action));
    }

    /// Whether short work that waits for nothing may be done by the thread that reads commands.
    const fn may_be_at_once(&self) -> bool {
        self.options.delay.is_zero()
    }

    fn device_of(&self, stream: u32, replay: Option<&Replay>) -> u32 {
        replay.map_or_else(|| self.lanes.device(stream), |replay| replay.device)
    }

    fn perform(&mut self, at: At, replay: Option<&mut Replay>, work: Work<'_>) -> Result<(), Failure> {
        let stream = at.stream;
        let device = self.device_of(stream, replay.as_deref());
        let job = |kind| Job { device, command: at.command, kind, transfer: None };
        match work {
            Work::Launch(launch) => return self.launch(at, replay, launch),
            Work::CopyIn { to, bytes } => self.copy_in(stream, replay, job(Kind::CopyIn), to, bytes),
            Work::CopyOut { from, transfer } => {
                self.copy_out(stream, replay, job(Kind::CopyOut), from, transfer);
            }
            // In a launch it has its bytes.
            Work::CopyInAtLaunch { .. } => return Err(Failure::value("a copy has no bytes")),
            Work::CopyWithin { to, from } => {
                self.within(stream, replay, job(Kind::CopyWithin), to, move |view| view.copy_rows(to, from));
            }
            Work::Fill { to, element, value } => {
                self.within(stream, replay, job(Kind::CopyWithin), to, move |view| {
                    view.fill(to, element, value)
                });
            }
            Work::Record { event, is_external } => self.record(stream, replay, event, is_external),
            Work::Wait { event, is_external } => self.wait(stream, replay, event, is_external),
            Work::BlasSet(set) => {
                if set.property == POINTER_MODE {
                    match replay {
                        // In a list it holds for what comes next.
                        Some(replay) if set.value != 0 => drop(replay.takes_pointers.insert(set.handle)),
                        Some(_) => {}
                        None => drop(self.handles.insert(set.handle, set.value != 0)),
                    }
                }
            }
            Work::Gemm(gemm) => {
                let (in_memory, replay) = self.takes_pointers(gemm.handle, replay);
                self.blas(stream, replay, job(Kind::Blas), move |view| blas::gemm(view, &gemm, in_memory));
            }
            Work::GemmPointers(gemm) => {
                let (in_memory, replay) = self.takes_pointers(gemm.handle, replay);
                self.blas(stream, replay, job(Kind::Blas), move |view| {
                    blas::gemm_pointers(view, &gemm, in_memory)
                });
            }
            Work::LtMatmul(_) if self.options.kernels == Kernels::None => {}
            Work::BlasCall(call) => {
                let (_, replay) = self.takes_pointers(call.handle, replay);
                self.blas(stream, replay, job(Kind::Blas), move |view| linear::call(view, &call));
            }
            Work::LtMatmul(text) => {
                let product: LtProduct = postcard::from_bytes(&text.to_vec()).map_err(|error| {
                    Failure::blas_value(format!("a product of cuBLASLt makes no sense: {error}"))
                })?;
                self.blas(stream, replay, job(Kind::Blas), move |view| lt::matmul(view, &product));
            }
        }
        Ok(())
    }

    /// Whether a cuBLAS handle takes factors from device memory: as it is set, or as the list says of what comes next.
    fn takes_pointers<'list>(
        &self,
        handle: u32,
        replay: Option<&'list mut Replay>,
    ) -> (bool, Option<&'list mut Replay>) {
        match replay {
            Some(replay) => (replay.takes_pointers.remove(&handle), Some(replay)),
            None => (self.handles.get(&handle).copied().unwrap_or(false), None),
        }
    }

    fn copy_in(&mut self, stream: u32, replay: Option<&mut Replay>, job: Job, to: Rows, bytes: Body<'_>) {
        self.done.bytes_in += bytes.bytes() as u64;
        if self.gather(stream, replay.as_deref()) && self.may_be_at_once() {
            return self.context.perform(job, |view| view.write_rows(to, bytes));
        }
        let staged = bytes.to_vec();
        self.queue_job(stream, replay, job, staged.len(), move |view| {
            view.write_rows(to, Body::Own(&staged))
        });
    }

    /// A copy or a fill within the memory.
    fn within(
        &mut self,
        stream: u32,
        replay: Option<&mut Replay>,
        job: Job,
        to: Rows,
        work: impl FnOnce(&View) -> Result<(), Failure> + Send + 'static,
    ) {
        let is_clear = self.gather(stream, replay.as_deref());
        if is_clear && self.may_be_at_once() && to.bytes() <= AT_ONCE_BYTES_MAX {
            return self.context.perform(job, work);
        }
        self.queue_job(stream, replay, job, 0, work);
    }

    fn wait(&mut self, stream: u32, replay: Option<&mut Replay>, event: u32, is_external: bool) {
        let local = replay.as_deref().filter(|_| !is_external);
        let local = local.and_then(|replay| replay.events.get(&event).copied());
        let global = || self.events.get(&event)?.recorded.as_ref().map(|recorded| recorded.task);
        let Some(task) = local.or_else(global).filter(|task| *task != 0) else { return };
        self.gather(stream, replay.as_deref());
        if !self.waits.contains(&task) {
            self.waits.push(task);
        }
        self.queue(stream, replay, 0, None);
    }

    fn copy_out(&mut self, stream: u32, replay: Option<&mut Replay>, job: Job, from: Rows, transfer: u32) {
        self.done.bytes_out += from.bytes();
        let job = Job { transfer: Some(transfer), ..job };
        let is_clear = self.gather(stream, replay.as_deref());
        if is_clear
            && self.may_be_at_once()
            && from.bytes() <= AT_ONCE_BYTES_MAX
            && self.context.outbox.is_clear()
        {
            let outbox = &self.context.outbox;
            return self.context.perform(job, |view| send_rows(view, outbox, from, transfer));
        }
        let outbox = Arc::clone(&self.context.outbox);
        self.queue_job(stream, replay, job, 0, move |view| send_rows(view, &outbox, from, transfer));
    }

    fn record(&mut self, stream: u32, replay: Option<&mut Replay>, event: u32, is_external: bool) {
        let is_clear = self.gather(stream, replay.as_deref());
        match replay {
            Some(replay) if !is_external => {
                // Only waits of the same launch see it.
                let tail = self.waits.first().copied().unwrap_or(0);
                replay.events.insert(event, tail);
            }
            replay => {
                let Some(known) = self.events.get_mut(&event) else { return };
                let recorded = Recorded::default();
                let at = Arc::clone(&recorded.at);
                known.recorded = Some(recorded);
                let has_time = known.has_time;
                // Release: pairs with the Acquire of whoever asks for the time.
                let stamp = move || at.store(monotonic_ns(), Ordering::Release);
                let mut task = 0;
                if is_clear {
                    stamp();
                } else {
                    let action: Option<Action> = if has_time { Some(Box::new(stamp)) } else { None };
                    task = self.engine.submit(&self.waits, action, 0);
                    self.follow(stream, replay, task);
                }
                if let Some(Event { recorded: Some(recorded), .. }) = self.events.get_mut(&event) {
                    recorded.task = task;
                }
            }
        }
    }

    fn blas(
        &mut self,
        stream: u32,
        replay: Option<&mut Replay>,
        job: Job,
        work: impl FnOnce(&View) -> Result<(), Failure> + Send + 'static,
    ) {
        self.done.launches += 1;
        if self.options.kernels == Kernels::None {
            return self.no_operation(stream, replay, job);
        }
        self.gather(stream, replay.as_deref());
        self.queue_job(stream, replay, job, 0, work);
    }

    fn launch(&mut self, at: At, replay: Option<&mut Replay>, launch: Launch<'_>) -> Result<(), Failure> {
        let fields = &launch.fields;
        let kernel = self.programs.kernel(fields.function)?;
        let threads: u32 = fields.block.iter().product();
        if threads > kernel.threads_max {
            let words =
                format!("{threads} threads of a group, and the kernel has at most {}", kernel.threads_max);
            return Err(Failure::value(words));
        }
        if i64::from(fields.shared) > i64::from(kernel.facts.dynamic_shared_max) {
            let words = format!(
                "{} bytes of dynamic shared memory, and the kernel may have {}",
                fields.shared, kernel.facts.dynamic_shared_max
            );
            return Err(Failure::value(words));
        }
        if fields.flags & launch_flags::COOPERATIVE != 0 {
            let groups: u64 = fields.grid.iter().map(|size| u64::from(*size)).fold(1, u64::saturating_mul);
            let fit = facts::occupancy(&kernel.facts, threads, fields.shared.into()) * facts::MULTIPROCESSORS;
            if groups > u64::from(fit) {
                let words = format!("{groups} groups of a cooperative launch, of which {fit} fit at once");
                return Err(Failure::new(number::COOPERATIVE_TOO_LARGE, words));
            }
        }
        self.done.launches += 1;
        let device = self.device_of(at.stream, replay.as_deref());
        let job = Job { device, command: at.command, kind: Kind::Launch, transfer: None };
        if self.options.kernels == Kernels::None {
            self.no_operation(at.stream, replay, job);
            return Ok(());
        }
        let kernel = Arc::clone(kernel);
        let (fields, parameters) = (launch.fields, launch.parameters.to_vec());
        self.gather(at.stream, replay.as_deref());
        let outbox = Arc::clone(&self.context.outbox);
        self.queue_job(at.stream, replay, job, parameters.len(), move |view| {
            kernel.run(view, &outbox, &fields, &parameters)
        });
        Ok(())
    }

    /// Says that no bytes come for the names of a launch from the `from`-th on.
    fn send_none(&self, content: &Content, from: usize, error: i32) {
        for transfer in content.transfers.iter().skip(from) {
            self.context.outbox.no_bytes(*transfer, error);
        }
    }

    /// A kernel that does nothing: it costs nothing either, but where tests ask for a delay or a failure.
    fn no_operation(&mut self, stream: u32, replay: Option<&mut Replay>, job: Job) {
        if self.options.delay.is_zero() && self.options.faults.is_empty() {
            return;
        }
        self.gather(stream, replay.as_deref());
        self.queue_job(stream, replay, job, 0, |_| Ok(()));
    }

    /// Takes memory away behind all work; the task that does it, or 0 where nothing is waited for.
    fn unmap_behind_all(
        context: &Arc<Context>,
        engine: &Engine,
        lanes: &Lanes,
        waits: &mut Vec<TaskId>,
        address: u64,
    ) -> TaskId {
        lanes.all(None, waits);
        engine.retain_open(waits);
        if waits.is_empty() {
            context.space.unmap(address);
            return 0;
        }
        let context = Arc::clone(context);
        let action: Action = Box::new(move || context.space.unmap(address));
        engine.submit(waits, Some(action), 0)
    }

    fn forget_variables(&mut self, module: u32) {
        let Self { context, engine, lanes, waits, variables, .. } = self;
        variables.forget(module, |address| Self::unmap_behind_all(context, engine, lanes, waits, address));
    }
}

/// Copies rows to the program.
fn send_rows(view: &View, outbox: &Outbox, from: Rows, transfer: u32) -> Result<(), Failure> {
    view.read_rows(from, outbox.piece_bytes(), |offset, piece| outbox.bytes(transfer, offset, piece))
}

impl Device for SoftwareMachine {
    fn facts(&self) -> Facts {
        Facts {
            driver: facts::DRIVER,
            blas: facts::BLAS,
            window: self.context.space.start(),
            window_bytes: WINDOW_BYTES - OWN_BYTES,
            granularity: GRANULARITY,
            devices: (0..self.options.devices)
                .map(|device| {
                    let grant = self.grants.get(device as usize).copied().unwrap_or(0);
                    facts::device(&self.options, device, grant)
                })
                .collect(),
        }
    }

    fn map(&mut self, device: u32, address: u64, bytes: u64, command: u64) -> Result<(), Failure> {
        self.context.faults.count(Kind::Map)?;
        // The range may still have the memory that an earlier command gave back.
        let is_there = |range: &Range<u64>| range.start < address + bytes && address < range.end;
        let before = self.unmapping.iter().filter(|(range, _)| is_there(range)).map(|(_, task)| *task);
        self.waits.clear();
        self.waits.extend(before);
        self.engine.retain_open(&mut self.waits);
        if self.waits.is_empty() {
            return self.context.space.map(address, bytes);
        }
        let context = Arc::clone(&self.context);
        let job = Job { device, command, kind: Kind::Map, transfer: None };
        let action: Action = Box::new(move || {
            if let Err(failure) = context.space.map(address, bytes) {
                context.fail(job, failure);
            }
        });
        let mapped = self.engine.submit(&self.waits, Some(action), 0);
        // What comes later is behind the fence before, too, which memory need not wait for.
        let fence = self.engine.submit(&[mapped, self.lanes.last_fence()], None, 0);
        self.lanes.fence(fence);
        Ok(())
    }

    fn unmap(&mut self, address: u64, bytes: u64, _: u64) -> Result<(), Failure> {
        let Self { context, engine, lanes, waits, unmapping, .. } = self;
        let task = Self::unmap_behind_all(context, engine, lanes, waits, address);
        let mut open: Vec<TaskId> = unmapping.iter().map(|(_, task)| *task).collect();
        engine.retain_open(&mut open);
        unmapping.retain(|(_, task)| open.contains(task));
        if task != 0 {
            unmapping.push((address..address + bytes, task));
        }
        Ok(())
    }

    fn load(&mut self, module: u32, _: u32, image: &[u8]) -> Result<(), Failure> {
        self.context.faults.count(Kind::Load)?;
        let Self { programs, context, engine, variables, .. } = self;
        let place = |bytes| variables.take(&context.space, engine, module, bytes);
        let write = |address: u64, part: &[u8]| context.space.view().write(address, part);
        let outcome = programs.load(module, image, place, write);
        if outcome.is_err() {
            self.forget_variables(module);
        }
        outcome
    }

    fn drop_module(&mut self, module: u32) {
        self.programs.drop_module(module);
        self.forget_variables(module);
    }

    fn function(&mut self, function: u32, module: u32, name: &str) -> Result<Option<usize>, Failure> {
        self.programs.function(function, module, name).map(Some)
    }

    fn drop_function(&mut self, function: u32) {
        self.programs.drop_function(function);
    }

    fn set_attribute(&mut self, function: u32, attribute: i32, value: i32) -> Result<(), Failure> {
        self.programs.set_attribute(function, attribute, value)
    }

    fn make_stream(&mut self, stream: u32, device: u32, is_apart: bool, _: i32) -> Result<(), Failure> {
        self.lanes.make(stream, device, is_apart);
        Ok(())
    }

    fn drop_stream(&mut self, stream: u32) {
        self.lanes.remove(stream, &self.engine);
    }

    fn make_event(&mut self, event: u32, _: u32, flags: u32) -> Result<(), Failure> {
        self.events.insert(event, Event { has_time: flags & WITHOUT_TIME == 0, recorded: None });
        Ok(())
    }

    fn drop_event(&mut self, event: u32) {
        self.events.remove(&event);
    }

    fn make_blas(&mut self, handle: u32, _: u32) -> Result<(), Failure> {
        self.handles.insert(handle, false);
        Ok(())
    }

    fn drop_blas(&mut self, handle: u32) {
        self.handles.remove(&handle);
    }

    fn submit(&mut self, at: At, work: Work<'_>) -> Result<(), Failure> {
        self.perform(at, None, work)
    }

    fn fence(&mut self, at: At) -> Result<(), Failure> {
        if !self.gather(at.stream, None) {
            let task = self.engine.submit(&self.waits, None, 0);
            self.lanes.fence(task);
        }
        Ok(())
    }

    fn mark(&mut self, mark: u64, of: MarkOf) -> Result<(), Failure> {
        let device = match of {
            MarkOf::Stream(stream) => {
                self.gather(stream, None);
                Some(self.lanes.device(stream))
            }
            MarkOf::Device(device) => {
                self.lanes.all(Some(device), &mut self.waits);
                Some(device)
            }
            MarkOf::Event(event) => {
                self.waits.clear();
                let recorded = self.events.get(&event).and_then(|event| event.recorded.as_ref());
                self.waits.extend(recorded.map(|recorded| recorded.task).filter(|task| *task != 0));
                None
            }
        };
        self.engine.retain_open(&mut self.waits);
        let context = Arc::clone(&self.context);
        let action = move || {
            let error = device.map_or_else(|| context.any_broken(), |device| context.broken(device));
            context.outbox.reached(mark, error);
        };
        if self.waits.is_empty() {
            action();
        } else {
            self.engine.submit(&self.waits, Some(Box::new(action)), 0);
        }
        Ok(())
    }

    fn elapsed(&mut self, question: u32, start: u32, end: u32) -> Result<(), Failure> {
        let record = |event: u32| -> Result<Recorded, Failure> {
            let known = self.events.get(&event).filter(|event| event.has_time);
            known
                .and_then(|event| event.recorded.clone())
                .ok_or_else(|| Failure::new(number::INVALID_HANDLE, format!("event {event} has no time")))
        };
        let (start, end) = (record(start)?, record(end)?);
        self.waits.clear();
        self.waits.extend([start.task, end.task].iter().filter(|task| **task != 0));
        self.engine.retain_open(&mut self.waits);
        let outbox = Arc::clone(&self.context.outbox);
        let action = move || {
            // Acquire: pairs with the Release of the record, which was done before.
            let (from, to) = (start.at.load(Ordering::Acquire), end.at.load(Ordering::Acquire));
            let nanoseconds = to as f64 - from as f64;
            outbox.answer(question, Ok(((nanoseconds / 1e6) as f32).to_bits().to_le_bytes().to_vec()));
        };
        if self.waits.is_empty() {
            action();
        } else {
            self.engine.submit(&self.waits, Some(Box::new(action)), 0);
        }
        Ok(())
    }

    fn instantiate(&mut self, exec: u32, _: &Graph) -> Result<(), Failure> {
        self.execs.insert(exec, 0);
        Ok(())
    }

    // A launch is told what the graph says by then.
    fn update(&mut self, _: u32, _: &Graph) -> Result<(), Failure> {
        Ok(())
    }

    fn change_step(&mut self, _: u32, _: &Graph, _: usize) -> Result<(), Failure> {
        Ok(())
    }

    fn drop_exec(&mut self, exec: u32) {
        self.execs.remove(&exec);
    }

    fn launch_graph(&mut self, exec: u32, graph: &Graph, at: At, content: &Content) -> Result<(), Failure> {
        let Some(last) = self.execs.get(&exec).copied() else {
            self.send_none(content, 0, number::INVALID_HANDLE);
            return Err(Failure::unknown("instance of a graph", exec));
        };
        self.gather(at.stream, None);
        if last != 0 && !self.waits.contains(&last) {
            self.waits.push(last);
        }
        let start = self.engine.submit(&self.waits, None, 0);
        let device = self.lanes.device(at.stream);
        let (tails, events, takes_pointers) = (HashMap::new(), HashMap::new(), HashSet::new());
        let mut replay = Replay { start, tails, events, takes_pointers, device };
        let (mut outcome, mut named) = (Ok(()), 0);
        for (stream, work) in graph.work_with(content) {
            named += usize::from(matches!(work, Work::CopyOut { .. }));
            outcome = self.perform(At { stream, ..at }, Some(&mut replay), work);
            if let Err(failure) = &outcome {
                self.send_none(content, named, failure.error);
                break;
            }
        }
        self.waits.clear();
        self.waits.extend(replay.tails.values().copied().chain([start]).filter(|task| *task != 0));
        let end = self.engine.submit(&self.waits, None, 0);
        self.lanes.follow(at.stream, end);
        if let Some(known) = self.execs.get_mut(&exec) {
            *known = end;
        }
        outcome
    }

    fn function_facts(&mut self, function: u32) -> Result<FunctionFacts, Failure> {
        self.programs.kernel(function).map(|kernel| kernel.facts)
    }

    fn occupancy(&mut self, ask: &AskOccupancy) -> Result<u32, Failure> {
        let kernel = self.programs.kernel(ask.function)?;
        Ok(facts::occupancy(&kernel.facts, ask.threads, ask.shared))
    }

    fn tensor_map(&mut self, _: &AskTensorMap, _: &Tensor) -> Result<[u8; 128], Failure> {
        Err(Failure::unsupported("what tensor maps look like is known to the driver alone"))
    }

    fn clusters(&mut self, ask: &AskClusters) -> Result<u32, Failure> {
        let kernel = self.programs.kernel(ask.function)?;
        // Looked at before: at most 1024.
        let threads = ask.block.iter().product();
        let groups = facts::occupancy(&kernel.facts, threads, ask.shared.into()) * facts::MULTIPROCESSORS;
        let of_cluster = ask.cluster.iter().fold(1_u32, |all, size| all.saturating_mul(*size)).max(1);
        Ok(groups / of_cluster)
    }

    fn symbol(&mut self, module: u32, name: &str) -> Result<(u64, u64), Failure> {
        let Self { programs, context, engine, variables, .. } = self;
        programs.symbol(module, name, |bytes| variables.take(&context.space, engine, module, bytes))
    }

    fn copy_pooled(
        &mut self,
        at: At,
        to: Rows,
        object: Arc<dyn ObjectBytes>,
        offset: u64,
    ) -> Result<(), Failure> {
        self.done.bytes_in += to.bytes();
        let device = self.lanes.device(at.stream);
        let job = Job { device, command: at.command, kind: Kind::CopyIn, transfer: None };
        self.gather(at.stream, None);
        // Always a task: who reads commands does not wait for a pool.
        self.queue_job(at.stream, None, job, 0, move |view| {
            in_pieces(&object, offset, to.bytes(), |at, piece| view.write(to.address + at, piece))
        });
        Ok(())
    }

    fn done(&self) -> Done {
        self.done
    }
}
