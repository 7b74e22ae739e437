//! Memory of the host that a GPU reaches by itself, and memory of a GPU.

use crate::driver::{Address, READ_ONLY_REGISTER, REGISTER_MAPPED, REGISTER_PORTABLE, REGISTER_READ_ONLY};
use crate::error::GpuError;
use crate::gpu::Gpu;
use hinterland_os::{Mapping, OsError, SharedSlice};
use std::sync::Arc;

const NOT_SUPPORTED: i32 = 801;
const NOT_PERMITTED: i32 = 800;

/// Memory of the host, mapped by this process, that the GPU reads and writes at an address of its own. Its pages stay where
/// they are until this is dropped, and so does the mapping.
pub struct Registered {
    gpu: Arc<Gpu>,
    memory: SharedSlice,
    address: Address,
}

impl Registered {
    /// Registers memory; read-only if it is mapped so. It takes time in proportion to its length: all pages are looked up.
    ///
    /// # Errors
    /// [`GpuError::Registration`].
    pub fn new(gpu: &Arc<Gpu>, memory: SharedSlice) -> Result<Self, GpuError> {
        let refused = |code, hint| {
            let (name, words) = gpu.driver.words(code);
            let (bytes, device) = (memory.len(), gpu.name().to_owned());
            GpuError::Registration { bytes, device, words: format!("{name}: {words}"), hint }
        };
        let mut flags = REGISTER_PORTABLE | REGISTER_MAPPED;
        if !memory.is_writable() {
            if gpu.driver.attribute(gpu.device(), READ_ONLY_REGISTER)? == 0 {
                let hint = "this GPU registers only memory that may be written: map it so";
                return Err(refused(NOT_SUPPORTED, hint));
            }
            flags |= REGISTER_READ_ONLY;
        }
        let _entered = gpu.enter()?;
        let call = &gpu.driver.call;
        // SAFETY: the range is mapped, and stays so until it is unregistered on drop, as `memory` is dropped after that.
        let code = unsafe { (call.host_register)(memory.as_ptr().cast(), memory.len(), flags) };
        match code {
            0 => {}
            NOT_SUPPORTED | NOT_PERMITTED => {
                let hint = "in a container or virtual machine, allow it to lock memory: `ulimit -l unlimited`; on WSL it is not possible";
                return Err(refused(code, hint));
            }
            _ => {
                let hint = "allow the program to lock memory (`ulimit -l unlimited`), or give the node a smaller --kv-capacity";
                return Err(refused(code, hint));
            }
        }
        let mut address = 0;
        // SAFETY: the range is registered; the place is ours.
        let code = unsafe { (call.host_address)(&mut address, memory.as_ptr().cast(), 0) };
        // Made first, so that a failure unregisters.
        let registered = Self { gpu: Arc::clone(gpu), memory: memory.clone(), address };
        gpu.driver.check("asking for the GPU's address of registered memory", code)?;
        Ok(registered)
    }

    /// New memory of the host, registered.
    ///
    /// # Errors
    /// [`GpuError::Memory`], [`GpuError::Registration`].
    pub fn anonymous(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self, GpuError> {
        let mapped = Mapping::anonymous(bytes.max(1), bytes >= hinterland_os::HUGE_PAGE_BYTES);
        let mapping = mapped.map_err(|error: OsError| GpuError::Memory { words: error.to_string() })?;
        Self::new(gpu, Arc::new(mapping).slice())
    }

    /// The memory, for the host.
    pub const fn memory(&self) -> &SharedSlice {
        &self.memory
    }

    /// The GPU that it is registered with.
    pub const fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// The GPU's address of a part.
    ///
    /// # Errors
    /// [`GpuError::Outside`].
    pub fn address(&self, offset: usize, bytes: usize) -> Result<u64, GpuError> {
        part(self.address, self.memory.len(), offset, bytes)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // Without the context there is nothing registered any more.
        if let Ok(_entered) = self.gpu.enter() {
            // SAFETY: it was registered once; launches that use it hold this value until they are done.
            unsafe { (self.gpu.driver.call.host_unregister)(self.memory.as_ptr().cast()) };
        }
    }
}

/// Memory of a GPU.
pub struct DeviceMemory {
    gpu: Arc<Gpu>,
    address: Address,
    bytes: usize,
}

impl DeviceMemory {
    /// Takes memory of a GPU; what is in it is anything.
    ///
    /// # Errors
    /// [`GpuError::Driver`] if there is not as much.
    pub fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self, GpuError> {
        let _entered = gpu.enter()?;
        let mut address = 0;
        // SAFETY: the place is ours; the memory is given back on drop.
        let code = unsafe { (gpu.driver.call.allocate)(&mut address, bytes.max(1)) };
        gpu.driver.check("taking memory of the GPU", code)?;
        Ok(Self { gpu: Arc::clone(gpu), address, bytes })
    }

    /// Length in bytes.
    pub const fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The GPU's address of a part.
    ///
    /// # Errors
    /// [`GpuError::Outside`].
    pub fn address(&self, offset: usize, bytes: usize) -> Result<u64, GpuError> {
        part(self.address, self.bytes, offset, bytes)
    }

    /// Copies bytes in, and waits.
    ///
    /// # Errors
    /// [`GpuError::Outside`], [`GpuError::Driver`].
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), GpuError> {
        let to = self.address(offset, from.len())?;
        let _entered = self.gpu.enter()?;
        // SAFETY: the range was checked; the call returns when the bytes were read.
        let code = unsafe { (self.gpu.driver.call.copy_in)(to, from.as_ptr().cast(), from.len()) };
        self.gpu.driver.check("copying to the GPU", code)
    }

    /// Copies bytes out, and waits.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), GpuError> {
        let from = self.address(offset, into.len())?;
        let _entered = self.gpu.enter()?;
        // SAFETY: the range was checked; the call returns when the bytes are there.
        let code = unsafe { (self.gpu.driver.call.copy_out)(into.as_mut_ptr().cast(), from, into.len()) };
        self.gpu.driver.check("copying from the GPU", code)
    }

    pub(crate) const fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Ok(_entered) = self.gpu.enter() {
            // SAFETY: it was taken once, and launches that use it hold it until they are done.
            unsafe { (self.gpu.driver.call.free)(self.address) };
        }
    }
}

fn part(first: Address, limit: usize, offset: usize, bytes: usize) -> Result<u64, GpuError> {
    let fits = offset.checked_add(bytes).is_some_and(|end| end <= limit);
    if fits { Ok(first + offset as u64) } else { Err(GpuError::Outside { offset, bytes, limit }) }
}
