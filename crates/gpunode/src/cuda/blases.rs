//! Handles of cuBLAS, and what their commands ask of it.

use super::failed;
use crate::body::Body;
use crate::failure::Failure;
use crate::work::Work;
use hinterland_gpu::lend::Lent;
use hinterland_gpu::lend::blas::{Blas, BlasHandle, Product, Setting};
use hinterland_gpu::lend::blas_call::Call;
use hinterland_gpu::lend::lt::{self, Lt};
use hinterland_gpu::lend::order::Stream;
use hinterland_proto::gpu::{LtProduct, command};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, PoisonError};

/// Settings of handles, by handle and property: a value, and for a workspace its length.
pub(super) type Settings = HashMap<(u32, u32), (u64, u64)>;
/// Properties that are modes.
const MODES: [u32; 3] = [2, POINTERS, 5];
const STREAM: u32 = 1;
const WORKSPACE: u32 = 3;
const POINTERS: u32 = 4;

/// Handles of cuBLAS by the client's names.
#[derive(Default)]
pub(super) struct Blases {
    pub(super) blas: Option<Blas>,
    pub(super) handles: HashMap<u32, BlasHandle>,
    /// Modes and workspaces as the client has set them.
    settings: Settings,
    /// cuBLASLt by device, which has an address as long as the session.
    lts: Mutex<HashMap<usize, Lt>>,
}

impl Blases {
    fn of(&self, handle: u32) -> Result<(&Blas, &BlasHandle), Failure> {
        let missing =
            || Failure::blas_unsupported("this node has no cuBLAS (hint: pip install nvidia-cublas there)");
        let blas = self.blas.as_ref().ok_or_else(missing)?;
        Ok((blas, self.handles.get(&handle).ok_or_else(|| Failure::unknown("cuBLAS handle", handle))?))
    }

    /// Sets what a handle keeps. Its stream and what it works in are told to cuBLAS in front of a product, so that one that is gone does no harm.
    pub(super) fn set(&mut self, device: &Lent, set: &command::BlasSet) -> Result<(), Failure> {
        self.of(set.handle)?;
        match set.property {
            STREAM => drop(self.settings.remove(&(set.handle, WORKSPACE))),
            property => drop(self.settings.insert((set.handle, property), (set.value, set.more))),
        }
        self.tell(device, set.handle, set.property, set.value)
    }

    /// Tells cuBLAS a mode.
    fn tell(&self, device: &Lent, handle: u32, property: u32, value: u64) -> Result<(), Failure> {
        let (blas, handle) = self.of(handle)?;
        let number = i32::try_from(value).unwrap_or(i32::MAX);
        let setting = match property {
            2 => Setting::Math(number),
            POINTERS => Setting::Pointers(number),
            5 => Setting::Atomics(number),
            _ => return Ok(()),
        };
        blas.set(device, handle, setting).map_err(failed)
    }

    /// A handle is the client's no more. It stays: ending it may wait for the device, and graphs may still use its memory.
    pub(super) fn forget(&mut self, handle: u32) {
        self.handles.remove(&handle);
        self.settings.retain(|(of, _), _| *of != handle);
    }

    /// A stream is to end.
    pub(super) fn forget_stream(&self, stream: &Stream) {
        self.handles.values().for_each(|handle| handle.forget(stream));
    }

    /// Multiplies as `cublasLtMatmul` does; the description is in postcard's form.
    pub(super) fn multiply_lt(&self, device: &Lent, stream: &Stream, text: Body<'_>) -> Result<(), Failure> {
        const POINTER_MODE: u32 = 2;
        /// Factors for each row in memory, and one by value: what came does not say which is which.
        const MIXED: u8 = 4;
        let given: LtProduct = postcard::from_bytes(&text.to_vec())
            .map_err(|error| Failure::blas_value(format!("a product of cuBLASLt makes no sense: {error}")))?;
        let mode = given.attributes.iter().find(|(number, _)| *number == POINTER_MODE);
        let mode = mode.and_then(|(_, value)| value.first()).copied().unwrap_or(0);
        if mode >= MIXED {
            return Err(Failure::blas_unsupported(format!("cublasLtMatmul has no pointer mode {mode} here")));
        }
        let lt = {
            let mut all = self.lts.lock().unwrap_or_else(PoisonError::into_inner);
            match all.entry(std::ptr::from_ref(device).addr()) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(place) => *place.insert(Lt::open(device).map_err(failed)?),
            }
        };
        let [a, b, c, d] = &given.matrices;
        let product = lt::LtProduct {
            attributes: &given.attributes,
            matrices: [a, b, c, d].map(|matrix| (matrix.address, matrix.attributes.as_slice())),
            factors: [given.alpha, given.beta],
            in_memory: mode != 0,
            workspace: (given.workspace, given.workspace_bytes),
        };
        lt.multiply(device, stream, &product).map_err(failed)
    }

    fn setting(&self, handle: u32, property: u32) -> u64 {
        self.settings.get(&(handle, property)).map_or(0, |(value, _)| *value)
    }

    /// Does something of a handle, as it is set, or, in a list, as that says: `of_list` is taken out, and what it does not say is as in a new handle.
    pub(super) fn perform(
        &self,
        device: &Lent,
        stream: &Stream,
        work: &Work<'_>,
        of_list: Option<&mut Settings>,
    ) -> Result<(), Failure> {
        let name = match work {
            Work::Gemm(c) => c.handle,
            Work::GemmPointers(c) => c.handle,
            Work::BlasCall(c) => c.handle,
            _ => return Ok(()),
        };
        let (blas, handle) = self.of(name)?;
        let place = |workspace| blas.place(device, handle, stream, workspace).map_err(failed);
        let Some(of_list) = of_list else {
            place(self.settings.get(&(name, WORKSPACE)).copied())?;
            return self.perform_as(device, work, name, self.setting(name, POINTERS) != 0);
        };
        place(of_list.remove(&(name, WORKSPACE)))?;
        let wanted =
            MODES.map(|property| (property, of_list.remove(&(name, property)).map_or(0, |(value, _)| value)));
        let other = wanted.into_iter().filter(|(property, value)| self.setting(name, *property) != *value);
        let tell = |property: u32, value: u64| self.tell(device, name, property, value);
        let mut outcome = other.clone().try_for_each(|(property, value)| tell(property, value));
        if outcome.is_ok() {
            let in_memory = wanted.iter().any(|(property, value)| *property == POINTERS && *value != 0);
            outcome = self.perform_as(device, work, name, in_memory);
        }
        let back = other.clone().try_for_each(|(property, _)| tell(property, self.setting(name, property)));
        outcome.and(back)
    }

    /// The same with factors in memory, or not.
    fn perform_as(&self, device: &Lent, work: &Work<'_>, name: u32, in_memory: bool) -> Result<(), Failure> {
        let (blas, handle) = self.of(name)?;
        // Numbers of cuBLAS are small.
        let small = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
        let done = match work {
            Work::Gemm(c) => {
                let product = Product {
                    transposes: [small(c.transpose_a), small(c.transpose_b)],
                    sizes: [c.m, c.n, c.k],
                    types: [small(c.a_type), small(c.b_type), small(c.c_type)],
                    addresses: [c.a, c.b, c.c],
                    leads: [c.a_lead, c.b_lead, c.c_lead],
                    strides: [c.a_stride, c.b_stride, c.c_stride],
                    count: c.count,
                    compute: [small(c.compute), c.algorithm],
                    factors: [c.alpha, c.beta],
                    in_memory,
                };
                blas.multiply(device, handle, &product)
            }
            Work::GemmPointers(c) => {
                let product = Product {
                    transposes: [small(c.transpose_a), small(c.transpose_b)],
                    sizes: [c.m, c.n, c.k],
                    types: [small(c.a_type), small(c.b_type), small(c.c_type)],
                    addresses: [c.a, c.b, c.c],
                    leads: [c.a_lead, c.b_lead, c.c_lead],
                    strides: [0; 3],
                    count: c.count,
                    compute: [small(c.compute), c.algorithm],
                    factors: [c.alpha, c.beta],
                    in_memory,
                };
                blas.multiply_pointers(device, handle, &product)
            }
            Work::BlasCall(c) => {
                // A result goes to memory whatever the handle's mode is.
                let wanted = c.in_memory != 0;
                blas.set(device, handle, Setting::Pointers(i32::from(wanted))).map_err(failed)?;
                let done = call_of(c).map(|call| blas.call(device, handle, &call));
                blas.set(device, handle, Setting::Pointers(i32::from(in_memory))).map_err(failed)?;
                done?
            }
            _ => Ok(()),
        };
        done.map_err(failed)
    }
}

/// A command as a call.
fn call_of(c: &command::BlasCall) -> Result<Call, Failure> {
    let known = command::blas_functions::NAMES.iter().find(|(number, _)| *number == c.function);
    let (_, name) = known
        .ok_or_else(|| Failure::blas_unsupported(format!("there is no function {} of cuBLAS", c.function)))?;
    let number = |number: i64| i32::try_from(number).map_err(|_| Failure::blas_value("a size is too large"));
    let small = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    let [first, second, third] = c.options.map(small);
    let mut info = [0; 8];
    info.copy_from_slice(&c.alpha[..8]);
    Ok(Call {
        name,
        kind: small(c.kind),
        options: [first, second, third, small(c.more)],
        sizes: [number(c.m)?, number(c.n)?, number(c.k)?, number(c.count)?],
        places: [(c.a, number(c.a_step)?), (c.b, number(c.b_step)?), (c.c, number(c.c_step)?)],
        info: u64::from_le_bytes(info),
        factors: [c.alpha, c.beta],
        in_memory: c.in_memory != 0,
    })
}
