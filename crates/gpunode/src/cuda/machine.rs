//! The devices of a session, by the driver.

use super::blases::Blases;
use super::execs::Execs;
use super::failed;
use super::programs::Programs;
use super::replay::CaptureStreams;
use super::shapes::{parts, region, shape};
use super::watcher::{Pending, Shared, Watcher, What};
use crate::device::{At, Device, Done, Facts, MarkOf, Tensor};
use crate::failure::{Failure, number};
use crate::graph::{Content, Graph};
use crate::outbox::Outbox;
use crate::pooled::{ObjectBytes, in_pieces};
use crate::work::{Launch, Rows, Work};
use hinterland_gpu::lend::blas::Blas;
use hinterland_gpu::lend::memory::{Backing, Pinned};
use hinterland_gpu::lend::order::{Event, Stream};
use hinterland_gpu::lend::program::Shape;
use hinterland_gpu::lend::tensor::TensorShape;
use hinterland_gpu::lend::{Lender, Lent};
use hinterland_proto::gpu::command::{AskClusters, AskOccupancy, AskTensorMap};
use hinterland_proto::gpu::{DeviceFacts, FunctionFacts};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

/// Where the window is wanted, and its length: as on the device in software.
const WINDOW: u64 = 0x0a00_0000_0000;
const WINDOW_BYTES: u64 = 1 << 40;
/// `CU_EVENT_DISABLE_TIMING`.
const WITHOUT_TIME: u32 = 2;
/// Attributes that the node cannot keep for a program elsewhere: it maps no host memory, and has no managed memory and no pools.
const NOT_KEPT: [i32; 8] = [19, 83, 88, 89, 91, 100, 101, 115];
/// The queue of the watcher for what belongs to no stream.
const NO_STREAM: u64 = u64::MAX;

/// Name and memory of each device that a node lends.
///
/// # Errors
/// A sentence that says why there are none.
pub fn device_memory(numbers: &[u32]) -> Result<Vec<(String, u64)>, String> {
    let lender = Lender::open().map_err(|error| error.to_string())?;
    let about = |number: u32| {
        lender
            .about(number)
            .map_err(|error| format!("GPU {number}: {error} (hint: `nvidia-smi -L` lists them)"))
    };
    chosen(&lender, numbers)?
        .into_iter()
        .map(|number| about(number).map(|about| (about.name, about.memory)))
        .collect()
}

/// The numbers that are meant: all, if none are named.
fn chosen(lender: &Lender, numbers: &[u32]) -> Result<Vec<u32>, String> {
    let count = lender.count().map_err(|error| error.to_string())?;
    Ok(if numbers.is_empty() { (0..count).collect() } else { numbers.to_vec() })
}

pub(super) struct OneDevice {
    pub(super) lent: Arc<Lent>,
    facts: DeviceFacts,
    pub(super) spare: CaptureStreams,
}

pub(super) struct OneStream {
    pub(super) device: u32,
    pub(super) stream: Stream,
    /// The last fence that it waits for.
    fence: u64,
}

pub(super) struct OneEvent {
    device: u32,
    /// The watcher has it, too, while somebody waits for its last record.
    pub(super) event: Arc<Event>,
    has_time: bool,
    /// Whether graphs record it or wait for it, which know this one and no other.
    pub(super) is_of_graphs: Cell<bool>,
}

/// The devices of a session, by the driver.
pub struct CudaMachine {
    lender: Arc<Lender>,
    pub(super) outbox: Arc<Outbox>,
    pub(super) devices: Vec<OneDevice>,
    pub(super) watcher: Watcher,
    window: u64,
    granularity: u64,
    blas_version: i32,
    backings: HashMap<u64, (u32, Backing)>,
    pub(super) streams: HashMap<u32, OneStream>,
    pub(super) events: HashMap<u32, OneEvent>,
    /// Ends of streams that are gone, by device.
    orphans: Vec<(u32, Arc<Event>)>,
    pub(super) programs: Programs,
    pub(super) blases: Blases,
    pub(super) execs: Execs,
    fence: Option<Arc<Event>>,
    fences: u64,
    parameters: Vec<u8>,
    pub(super) done: Done,
}

impl CudaMachine {
    /// Devices by the node's numbers, with the bytes that the session may use of each.
    ///
    /// # Errors
    /// There is no driver, or it refuses.
    pub fn new(numbers: &[u32], granted: &[(u32, u64)], outbox: Arc<Outbox>) -> Result<Self, Failure> {
        let missing = |words: String| Failure::new(number::UNKNOWN, words);
        let lender = Lender::open().map_err(|error| missing(error.to_string()))?;
        let all = chosen(&lender, numbers).map_err(missing)?;
        let mut devices = Vec::new();
        for (number, grant) in granted {
            let own = all.get(*number as usize).copied();
            let own = own.ok_or_else(|| Failure::new(number::INVALID_DEVICE, "there is no such device"))?;
            let about = lender.about(own).map_err(failed)?;
            let lent = Arc::new(lender.lend(own).map_err(failed)?);
            let value = |wanted: i32| {
                about.attributes.iter().find(|(name, _)| *name == wanted).map_or(0, |(_, value)| *value)
            };
            let facts = DeviceFacts {
                name: about.name.clone(),
                uuid: about.uuid,
                memory: about.memory,
                grant: *grant,
                capability: (value(75).unsigned_abs(), value(76).unsigned_abs()),
                bus: about.bus.clone(),
                attributes: about
                    .attributes
                    .iter()
                    .filter(|(name, _)| !NOT_KEPT.contains(name))
                    .copied()
                    .collect(),
                peers: 0,
                needs_assembly: false,
            };
            devices.push(OneDevice { lent, facts, spare: CaptureStreams::default() });
        }
        note_peers(&mut devices);
        let Some(first) = devices.first() else {
            return Err(Failure::new(number::INVALID_DEVICE, "the session has no devices"));
        };
        let window = first.lent.reserve(WINDOW, WINDOW_BYTES).map_err(failed)?;
        let mut granularity = 1;
        for device in &devices {
            granularity = granularity.max(device.lent.granularity().map_err(failed)?);
        }
        let streams = devices.iter().enumerate().map(|(index, device)| {
            // At most the sixteen of a session.
            let name = index as u32;
            (name, OneStream { device: name, stream: device.lent.default_stream(), fence: 0 })
        });
        let streams = streams.collect();
        let watcher = Watcher::start(devices.iter().map(|one| Arc::clone(&one.lent)), Arc::clone(&outbox));
        let mut machine = Self {
            lender,
            outbox,
            devices,
            watcher,
            window,
            granularity,
            blas_version: 0,
            backings: HashMap::new(),
            streams,
            events: HashMap::new(),
            orphans: Vec::new(),
            programs: Programs::default(),
            blases: Blases::default(),
            execs: Execs::default(),
            fence: None,
            fences: 0,
            parameters: Vec::new(),
            done: Done::default(),
        };
        machine.open_blas();
        Ok(machine)
    }

    fn open_blas(&mut self) {
        match Blas::open() {
            Ok(blas) => {
                if let Ok(handle) = blas.handle(&self.devices[0].lent) {
                    self.blas_version = blas.version(&handle);
                    blas.end(&self.devices[0].lent, handle);
                }
                self.blases.blas = Some(blas);
            }
            Err(error) => tracing::warn!(
                "{error} (hint: pip install nvidia-cublas, and name its library in HINTERLAND_CUBLAS)"
            ),
        }
    }

    fn shared(&self, device: u32) -> &Arc<Shared> {
        &self.watcher.shared[device as usize]
    }

    /// The device of a stream, which waits for the last fence from here on.
    pub(super) fn ready(&mut self, name: u32) -> Result<u32, Failure> {
        let known = self.streams.get_mut(&name).ok_or_else(|| Failure::unknown("stream", name))?;
        let device = known.device;
        let shared = &self.watcher.shared[device as usize];
        if known.fence != self.fences
            && let Some(fence) = &self.fence
        {
            shared.device.wait(&known.stream, fence).map_err(failed)?;
            known.fence = self.fences;
        }
        Ok(device)
    }

    /// Records an event of ours on a stream.
    fn behind(&self, device: u32, stream: &Stream) -> Result<Arc<Event>, Failure> {
        let shared = self.shared(device);
        let event = shared.event()?;
        match shared.device.record(&event, stream) {
            Ok(()) => Ok(event),
            Err(error) => {
                shared.free(event);
                Err(failed(error))
            }
        }
    }

    /// Has something done with a piece of staging when the work of a stream so far is done.
    fn watch_piece(
        &self,
        device: u32,
        name: u32,
        piece: Pinned,
        what: impl FnOnce(Pinned) -> What,
    ) -> Result<(), Failure> {
        let shared = self.shared(device);
        match self.stream(name).and_then(|stream| self.behind(device, stream)) {
            Ok(event) => {
                shared.watch_for(u64::from(name), Pending { event, is_own: true, what: what(piece) });
                Ok(())
            }
            Err(failure) => {
                // The device may still copy from it or to it.
                shared.staging.lose(piece);
                Err(failure)
            }
        }
    }

    /// A stream by the client's name.
    pub(super) fn stream(&self, name: u32) -> Result<&Stream, Failure> {
        let known = self.streams.get(&name).ok_or_else(|| Failure::unknown("stream", name))?;
        Ok(&known.stream)
    }

    /// An event of a device behind all of its work, or behind that of all devices: any of them may use memory of this one.
    fn behind_all(&mut self, device: u32, of_all: bool) -> Result<Arc<Event>, Failure> {
        let lent = Arc::clone(&self.devices[device as usize].lent);
        let joint = lent.stream(true, 0).map_err(failed)?;
        for known in self.streams.values().filter(|known| of_all || known.device == device) {
            let event = self.behind(known.device, &known.stream)?;
            lent.wait(&joint, &event).map_err(failed)?;
            // What waits for its record does so whatever it is used for next.
            self.shared(known.device).free(event);
        }
        for (_, event) in self.orphans.iter().filter(|(of, _)| of_all || *of == device) {
            lent.wait(&joint, event).map_err(failed)?;
        }
        let last = self.behind(device, &joint)?;
        lent.end_stream(joint);
        Ok(last)
    }

    /// Remembers the work of a stream that ends.
    fn keep_end(&mut self, known: &OneStream) {
        let Self { watcher, orphans, .. } = self;
        orphans.retain(|(of, event)| {
            let shared = &watcher.shared[*of as usize];
            let is_done = shared.device.is_done(event).unwrap_or(true);
            if is_done {
                shared.free(Arc::clone(event));
            }
            !is_done
        });
        if let Ok(event) = self.behind(known.device, &known.stream) {
            self.orphans.push((known.device, event));
        }
    }

    pub(super) fn copy_in(
        &mut self,
        name: u32,
        to: Rows,
        bytes: crate::body::Body<'_>,
    ) -> Result<(), Failure> {
        self.done.bytes_in += bytes.bytes() as u64;
        let device = self.ready(name)?;
        let lent = Arc::clone(&self.devices[device as usize].lent);
        let mut rest = bytes;
        // A frame is no longer than a piece, but for a few bytes of fields; rows wider than a piece go one by one.
        for part in parts(to) {
            let mut piece = self.shared(device).staging.take(&lent).map_err(failed)?;
            let length = (part.width * part.rows) as usize;
            rest.read(&mut piece.bytes()[..length]);
            rest = rest.tail(length);
            let begun = self
                .stream(name)
                .and_then(|stream| lent.copy_in(stream, region(part), &piece).map_err(failed));
            if let Err(failure) = begun {
                // Nothing was begun that would use it.
                self.shared(device).staging.put(piece);
                return Err(failure);
            }
            self.watch_piece(device, name, piece, What::Free)?;
        }
        Ok(())
    }

    pub(super) fn copy_out(&mut self, name: u32, from: Rows, transfer: u32) -> Result<(), Failure> {
        self.done.bytes_out += from.bytes();
        self.watcher.begin(transfer);
        let device = self.ready(name)?;
        let lent = Arc::clone(&self.devices[device as usize].lent);
        let mut offset = 0;
        let mut all = parts(from);
        if all.is_empty() {
            all.push(Rows::one(from.address, 0));
        }
        for part in all {
            let piece = self.shared(device).staging.take(&lent).map_err(failed)?;
            let bytes = (part.width * part.rows) as usize;
            let begun = self.stream(name).and_then(|stream| {
                if bytes == 0 {
                    return Ok(());
                }
                lent.copy_out(stream, &piece, region(part)).map_err(failed)
            });
            if let Err(failure) = begun {
                // As above.
                self.shared(device).staging.put(piece);
                return Err(failure);
            }
            let told = |piece| What::Bytes { transfer, offset, piece, bytes };
            self.watch_piece(device, name, piece, told)?;
            offset += bytes as u64;
        }
        Ok(())
    }

    /// An event is to be recorded again. Whoever waits for its last record goes on to wait for that one, and the name gets another event.
    fn leave_to_who_waits(&mut self, event: u32) -> Result<(), Failure> {
        let known = self.events.get_mut(&event).ok_or_else(|| Failure::unknown("event", event))?;
        if Arc::strong_count(&known.event) == 1 || known.is_of_graphs.get() {
            return Ok(());
        }
        let lent = &self.devices[known.device as usize].lent;
        let fresh = Arc::new(lent.event(known.has_time).map_err(failed)?);
        if let Some(before) = Arc::into_inner(std::mem::replace(&mut known.event, fresh)) {
            // Nobody waits any more.
            lent.end_event(before);
        }
        Ok(())
    }

    fn launch(&mut self, name: u32, launch: Launch<'_>) -> Result<(), Failure> {
        let kernel = self.programs.kernel(launch.fields.function)?;
        let device = self.ready(name)?;
        self.parameters.clear();
        launch.parameters.append_to(&mut self.parameters);
        let known = self.streams.get(&name).ok_or_else(|| Failure::unknown("stream", name))?;
        let shape = shape(&launch.fields);
        self.devices[device as usize]
            .lent
            .launch(kernel, &known.stream, &shape, &self.parameters)
            .map_err(failed)?;
        self.done.launches += 1;
        Ok(())
    }

    fn perform(&mut self, at: At, work: Work<'_>) -> Result<(), Failure> {
        let name = at.stream;
        match work {
            Work::Launch(launch) => return self.launch(name, launch),
            Work::CopyIn { to, bytes } => return self.copy_in(name, to, bytes),
            Work::CopyOut { from, transfer } => return self.copy_out(name, from, transfer),
            _ => {}
        }
        let device = self.ready(name)?;
        if let Work::Record { event, .. } = work {
            self.leave_to_who_waits(event)?;
        }
        let lent = &self.devices[device as usize].lent;
        let known = self.streams.get(&name).ok_or_else(|| Failure::unknown("stream", name))?;
        match work {
            Work::CopyWithin { to, from } => {
                lent.copy_within(&known.stream, region(to), region(from)).map_err(failed)
            }
            Work::Fill { to, element, value } => {
                lent.fill(&known.stream, region(to), element, value).map_err(failed)
            }
            Work::Record { event, .. } => {
                let event = self.events.get(&event).ok_or_else(|| Failure::unknown("event", event))?;
                lent.record(&event.event, &known.stream).map_err(failed)
            }
            Work::Wait { event, .. } => {
                let event = self.events.get(&event).ok_or_else(|| Failure::unknown("event", event))?;
                lent.wait(&known.stream, &event.event).map_err(failed)
            }
            Work::BlasSet(set) => self.blases.set(lent, &set),
            Work::Gemm(_) | Work::GemmPointers(_) | Work::BlasCall(_) => {
                self.done.launches += 1;
                self.blases.perform(lent, &known.stream, &work, None)
            }
            Work::LtMatmul(text) => {
                self.done.launches += 1;
                self.blases.multiply_lt(lent, &known.stream, text)
            }
            Work::Launch(_) | Work::CopyIn { .. } | Work::CopyOut { .. } | Work::CopyInAtLaunch { .. } => {
                Ok(())
            }
        }
    }

    /// The error of a stream's device that is of no more use, or 0.
    fn broken(&self, stream: u32) -> i32 {
        self.streams.get(&stream).map_or(0, |known| self.shared(known.device).broken())
    }

    /// Notes a failure that ends the use of a device.
    fn note(&self, device: u32, outcome: Result<(), Failure>) -> Result<(), Failure> {
        if let Err(failure) = &outcome {
            self.shared(device).break_for(failure);
        }
        outcome
    }
}

/// Asks the driver which devices reach which.
fn note_peers(devices: &mut [OneDevice]) {
    let all: Vec<Arc<Lent>> = devices.iter().map(|device| Arc::clone(&device.lent)).collect();
    for device in devices {
        let reached = all.iter().enumerate().filter(|(_, other)| device.lent.reaches(other));
        device.facts.peers = reached.fold(0, |bits, (index, _)| bits | 1 << index);
    }
}

impl Device for CudaMachine {
    fn facts(&self) -> Facts {
        Facts {
            driver: self.lender.version(),
            blas: self.blas_version,
            window: self.window,
            window_bytes: WINDOW_BYTES,
            granularity: self.granularity,
            devices: self.devices.iter().map(|device| device.facts.clone()).collect(),
        }
    }

    fn map(&mut self, device: u32, address: u64, bytes: u64, _: u64) -> Result<(), Failure> {
        // The range may have memory that is to be unmapped. Other ranges are not waited for: the work behind which they go may need commands that come later.
        let (range, whole) = (address..address + bytes, 0..u64::MAX);
        self.watcher.shared.iter().for_each(|shared| shared.wait_for_unmapping(&range));
        let all: Vec<&Lent> = self.devices.iter().map(|one| one.lent.as_ref()).collect();
        let map = || all[device as usize].map(address, bytes, &all).map_err(failed);
        // The memory that is missing may be what is to be unmapped, and may be there when it has been looked for in vain.
        let may_come = self.watcher.shared.iter().any(|shared| shared.is_unmapping(&whole));
        let backing = match map() {
            Err(failure) if may_come && failure.error == number::OUT_OF_MEMORY => {
                self.watcher.shared.iter().for_each(|shared| shared.wait_for_unmapping(&whole));
                map()?
            }
            outcome => outcome?,
        };
        self.backings.insert(address, (device, backing));
        Ok(())
    }

    fn unmap(&mut self, address: u64, bytes: u64, _: u64) -> Result<(), Failure> {
        let Some((device, backing)) = self.backings.remove(&address) else {
            return Err(Failure::value(format!("nothing is mapped at {address:#x}")));
        };
        let event = self.behind_all(device, true)?;
        let what = What::Unmap { address, bytes, backing };
        self.shared(device).watch_for(NO_STREAM, Pending { event, is_own: true, what });
        Ok(())
    }

    fn load(&mut self, module: u32, device: u32, image: &[u8]) -> Result<(), Failure> {
        self.programs.load(module, device, image, &self.devices[device as usize].lent)
    }

    fn drop_module(&mut self, module: u32) {
        self.programs.drop_module(module);
    }

    fn function(&mut self, function: u32, module: u32, name: &str) -> Result<Option<usize>, Failure> {
        let device = self.programs.device_of(module)?;
        self.programs.function(function, module, name, &self.devices[device as usize].lent)
    }

    fn drop_function(&mut self, function: u32) {
        self.programs.drop_function(function);
    }

    fn set_attribute(&mut self, function: u32, attribute: i32, value: i32) -> Result<(), Failure> {
        let (device, kernel) = self.programs.placed(function)?;
        self.devices[device as usize].lent.set_kernel_attribute(kernel, attribute, value).map_err(failed)
    }

    fn make_stream(
        &mut self,
        stream: u32,
        device: u32,
        is_apart: bool,
        priority: i32,
    ) -> Result<(), Failure> {
        let made = self.devices[device as usize].lent.stream(is_apart, priority).map_err(failed)?;
        self.streams.insert(stream, OneStream { device, stream: made, fence: 0 });
        Ok(())
    }

    fn drop_stream(&mut self, stream: u32) {
        if let Some(known) = self.streams.remove(&stream) {
            self.blases.forget_stream(&known.stream);
            self.keep_end(&known);
            self.devices[known.device as usize].lent.end_stream(known.stream);
        }
    }

    fn make_event(&mut self, event: u32, device: u32, flags: u32) -> Result<(), Failure> {
        let has_time = flags & WITHOUT_TIME == 0;
        let made = Arc::new(self.devices[device as usize].lent.event(has_time).map_err(failed)?);
        let is_of_graphs = Cell::new(false);
        self.events.insert(event, OneEvent { device, event: made, has_time, is_of_graphs });
        Ok(())
    }

    fn drop_event(&mut self, event: u32) {
        // The watcher ends it if somebody still waits for it. That of a graph stays; the process ends with the session.
        if let Some(known) = self.events.remove(&event)
            && let Some(event) = Arc::into_inner(known.event)
        {
            self.devices[known.device as usize].lent.end_event(event);
        }
    }

    fn make_blas(&mut self, handle: u32, device: u32) -> Result<(), Failure> {
        let missing = || Failure::blas(1, "this node has no cuBLAS (hint: pip install nvidia-cublas there)");
        let blas = self.blases.blas.ok_or_else(missing)?;
        let made = blas.handle(&self.devices[device as usize].lent).map_err(failed)?;
        self.blases.handles.insert(handle, made);
        Ok(())
    }

    fn drop_blas(&mut self, handle: u32) {
        self.blases.forget(handle);
    }

    fn submit(&mut self, at: At, work: Work<'_>) -> Result<(), Failure> {
        let broken = self.broken(at.stream);
        if broken != 0 {
            // Its fault was told; nothing is done any more.
            if let Work::CopyOut { transfer, .. } = work {
                self.outbox.no_bytes(transfer, broken);
            }
            return Ok(());
        }
        let device = self.streams.get(&at.stream).map_or(0, |known| known.device);
        let transfer = if let Work::CopyOut { transfer, .. } = work { Some(transfer) } else { None };
        let outcome = self.perform(at, work);
        let outcome = self.note(device, outcome);
        if let (Err(failure), Some(transfer)) = (&outcome, transfer)
            && !self.watcher.refuse(transfer)
        {
            // A part of it that was under way has told already that no bytes come.
            self.outbox.fault(at.command, failure);
            return Ok(());
        }
        outcome
    }

    fn fence(&mut self, at: At) -> Result<(), Failure> {
        if self.broken(at.stream) != 0 {
            return Ok(());
        }
        let device = self.ready(at.stream)?;
        let known = self.streams.get(&at.stream).ok_or_else(|| Failure::unknown("stream", at.stream))?;
        let event = self.devices[device as usize].lent.event(false).map_err(failed)?;
        self.devices[device as usize].lent.record(&event, &known.stream).map_err(failed)?;
        if let Some(before) = self.fence.replace(Arc::new(event))
            && let Ok(before) = Arc::try_unwrap(before)
        {
            self.devices[device as usize].lent.end_event(before);
        }
        self.fences += 1;
        // Its own work is behind the fence by its order, and carries on what it waited for.
        if let Some(known) = self.streams.get_mut(&at.stream) {
            known.fence = self.fences;
        }
        Ok(())
    }

    fn mark(&mut self, mark: u64, of: MarkOf) -> Result<(), Failure> {
        let (device, queue) = match of {
            MarkOf::Stream(stream) => {
                (self.streams.get(&stream).map_or(0, |known| known.device), u64::from(stream))
            }
            MarkOf::Event(event) => {
                (self.events.get(&event).map_or(0, |known| known.device), NO_STREAM - 1 - mark % 1024)
            }
            MarkOf::Device(device) => (device, NO_STREAM),
        };
        let broken = self.shared(device).broken();
        if broken != 0 {
            self.outbox.reached(mark, broken);
            return Ok(());
        }
        let (event, is_own) = match of {
            MarkOf::Stream(stream) => {
                self.ready(stream)?;
                let known = self.streams.get(&stream).ok_or_else(|| Failure::unknown("stream", stream))?;
                (self.behind(device, &known.stream)?, true)
            }
            MarkOf::Event(event) => {
                let known = self.events.get(&event).ok_or_else(|| Failure::unknown("event", event))?;
                (Arc::clone(&known.event), false)
            }
            MarkOf::Device(device) => (self.behind_all(device, false)?, true),
        };
        self.shared(device).watch_for(queue, Pending { event, is_own, what: What::Mark(mark) });
        Ok(())
    }

    fn elapsed(&mut self, question: u32, start: u32, end: u32) -> Result<(), Failure> {
        let timed = |event: u32| {
            let known = self.events.get(&event).filter(|known| known.has_time);
            known.ok_or_else(|| Failure::new(number::INVALID_HANDLE, format!("event {event} has no time")))
        };
        let (start, end) = (timed(start)?, timed(end)?);
        let device = end.device;
        let what = What::Elapsed { question, start: Arc::clone(&start.event), end: Arc::clone(&end.event) };
        let pending = Pending { event: Arc::clone(&end.event), is_own: false, what };
        self.shared(device).watch_for(NO_STREAM - 2 - u64::from(question % 1024), pending);
        Ok(())
    }

    fn instantiate(&mut self, exec: u32, graph: &Graph) -> Result<(), Failure> {
        self.make_exec(exec, graph)
    }

    fn update(&mut self, exec: u32, graph: &Graph) -> Result<(), Failure> {
        self.change_exec(exec, graph, false)
    }

    fn change_step(&mut self, exec: u32, graph: &Graph, step: usize) -> Result<(), Failure> {
        self.change_exec_step(exec, graph, step)
    }

    fn drop_exec(&mut self, exec: u32) {
        self.end_exec(exec);
    }

    fn launch_graph(&mut self, exec: u32, graph: &Graph, at: At, content: &Content) -> Result<(), Failure> {
        let broken = self.broken(at.stream);
        if broken != 0 {
            content.transfers.iter().for_each(|transfer| self.outbox.no_bytes(*transfer, broken));
            return Ok(());
        }
        let device = self.streams.get(&at.stream).map_or(0, |known| known.device);
        let outcome = self.launch_exec(exec, graph, at.stream, content);
        self.note(device, outcome)
    }

    fn function_facts(&mut self, function: u32) -> Result<FunctionFacts, Failure> {
        let (device, kernel) = self.programs.placed(function)?;
        let lent = &self.devices[device as usize].lent;
        let ask = |attribute: i32| lent.kernel_attribute(kernel, attribute).map_err(failed);
        let bytes = |attribute: i32| ask(attribute).map(|value| u64::try_from(value).unwrap_or(0));
        Ok(FunctionFacts {
            threads_max: ask(0)?,
            shared: bytes(1)?,
            constant: bytes(2)?,
            local: bytes(3)?,
            registers: ask(4)?,
            ptx: ask(5)?,
            binary: ask(6)?,
            dynamic_shared_max: ask(8)?,
            carveout: ask(9)?,
        })
    }

    fn occupancy(&mut self, ask: &AskOccupancy) -> Result<u32, Failure> {
        let (device, kernel) = self.programs.placed(ask.function)?;
        let lent = &self.devices[device as usize].lent;
        lent.occupancy(kernel, ask.threads, ask.shared, ask.flags).map_err(failed)
    }

    fn tensor_map(&mut self, ask: &AskTensorMap, tensor: &Tensor) -> Result<[u8; 128], Failure> {
        let shape = TensorShape {
            address: ask.address,
            element: ask.element,
            sizes: &tensor.sizes,
            strides: &tensor.strides,
            tile: &tensor.tile,
            steps: &tensor.steps,
            interleave: ask.interleave,
            swizzle: ask.swizzle,
            promotion: ask.promotion,
            fill: ask.fill,
        };
        self.devices[ask.device as usize].lent.tensor_map(&shape).map_err(failed)
    }

    fn clusters(&mut self, ask: &AskClusters) -> Result<u32, Failure> {
        let (device, kernel) = self.programs.placed(ask.function)?;
        let has_cluster = ask.cluster.iter().all(|size| *size > 0);
        let shape = Shape {
            grid: ask.grid,
            block: ask.block,
            shared: ask.shared,
            cluster: has_cluster.then_some(ask.cluster),
            is_cooperative: false,
            is_programmatic: false,
        };
        self.devices[device as usize].lent.clusters(kernel, &shape).map_err(failed)
    }

    fn symbol(&mut self, module: u32, name: &str) -> Result<(u64, u64), Failure> {
        let (device, module) = self.programs.module(module)?;
        self.devices[device as usize].lent.variable(module, name).map_err(failed)
    }

    fn copy_pooled(
        &mut self,
        at: At,
        to: Rows,
        object: Arc<dyn ObjectBytes>,
        offset: u64,
    ) -> Result<(), Failure> {
        if self.broken(at.stream) != 0 {
            return Ok(());
        }
        let device = self.streams.get(&at.stream).map_or(0, |known| known.device);
        // Each piece is read while the device copies the ones before it.
        let outcome = in_pieces(&object, offset, to.bytes(), |done, piece| {
            let part = Rows::one(to.address + done, piece.len() as u64);
            self.copy_in(at.stream, part, crate::body::Body::Own(piece))
        });
        self.note(device, outcome)
    }

    fn done(&self) -> Done {
        self.done
    }
}
