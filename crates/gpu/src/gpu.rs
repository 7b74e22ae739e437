//! A GPU: its context, in which everything else is made.

use crate::driver::{
    CAN_MAP_HOST_MEMORY, CAPABILITY_MAJOR, CAPABILITY_MINOR, Driver, Handle, MEMORY_TYPE, MULTIPROCESSORS,
};
use crate::error::GpuError;
use std::ffi::{CStr, c_int};
use std::path::Path;
use std::sync::Arc;

/// Longest name of a GPU.
const NAME_BYTES_MAX: usize = 256;

/// A GPU in the context of this program. Any thread may use it.
pub struct Gpu {
    pub(crate) driver: Driver,
    context: Handle,
    device: c_int,
    is_retained: bool,
    name: String,
    capability: (i32, i32),
    multiprocessors: u32,
}

/// The context is current on this thread until this is dropped.
pub(crate) struct Entered<'gpu>(&'gpu Gpu);

impl Gpu {
    /// The GPU of the context that is current on this thread, if it is the one that is asked for or none is; else GPU
    /// `device` (0), in the context that the CUDA runtime and PyTorch use. `driver` is the library to load, if not the
    /// machine's; the environment goes before both.
    ///
    /// # Errors
    /// [`GpuError::NoDriver`], [`GpuError::OldDriver`], [`GpuError::NoDevice`], or the driver's own.
    pub fn open(device: Option<usize>, driver: Option<&Path>) -> Result<Arc<Self>, GpuError> {
        let driver = Driver::load(driver)?;
        let call = &driver.call;
        let mut context = 0;
        // SAFETY: the place is ours.
        driver.check("asking for the context", unsafe { (call.context_current)(&mut context) })?;
        if context != 0 {
            let mut current = 0;
            // SAFETY: the place is ours.
            driver.check("asking for the GPU", unsafe { (call.context_device)(&mut current) })?;
            if device.is_none_or(|device| usize::try_from(current) == Ok(device)) {
                return Self::of(driver, context, current, false);
            }
        }
        let (number, mut count) = (device.unwrap_or(0), 0);
        // SAFETY: the place is ours.
        driver.check("counting GPUs", unsafe { (call.device_count)(&mut count) })?;
        let count = usize::try_from(count).unwrap_or(0);
        let absent = GpuError::NoDevice { wanted: number, count };
        let number = c_int::try_from(number).ok().filter(|_| number < count).ok_or(absent)?;
        let mut found = 0;
        // SAFETY: the place is ours.
        driver.check("finding the GPU", unsafe { (call.device)(&mut found, number) })?;
        // SAFETY: the place is ours; the context is given back on drop.
        let code = unsafe { (call.primary_retain)(&mut context, found) };
        driver.check("making a context on the GPU", code)?;
        Self::of(driver, context, found, true)
    }

    fn of(driver: Driver, context: Handle, device: c_int, is_retained: bool) -> Result<Arc<Self>, GpuError> {
        // Made first, so that a failure gives the context back.
        let mut gpu = Self {
            driver,
            context,
            device,
            is_retained,
            name: String::new(),
            capability: (0, 0),
            multiprocessors: 1,
        };
        let mut name = [0_u8; NAME_BYTES_MAX];
        // SAFETY: there is room for as many bytes as are told.
        let code =
            unsafe { (driver.call.device_name)(name.as_mut_ptr().cast(), NAME_BYTES_MAX as c_int, device) };
        driver.check("asking for the GPU's name", code)?;
        gpu.name = CStr::from_bytes_until_nul(&name)
            .map_or_else(|_| String::new(), |name| name.to_string_lossy().into_owned());
        gpu.capability =
            (driver.attribute(device, CAPABILITY_MAJOR)?, driver.attribute(device, CAPABILITY_MINOR)?);
        gpu.multiprocessors = u32::try_from(driver.attribute(device, MULTIPROCESSORS)?).unwrap_or(1).max(1);
        if driver.attribute(device, CAN_MAP_HOST_MEMORY)? == 0 {
            return Err(GpuError::Registration {
                bytes: 0,
                device: gpu.name.clone(),
                words: "it cannot map host memory".to_owned(),
                hint: "use another GPU, or copy through memory of the program",
            });
        }
        Ok(Arc::new(gpu))
    }

    /// What it is called, such as `NVIDIA H100 80GB HBM3`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its compute capability, major and minor.
    pub const fn capability(&self) -> (i32, i32) {
        self.capability
    }

    /// The CUDA version of the driver, as `13.0`.
    pub fn driver_version(&self) -> String {
        format!("{}.{}", self.driver.version.0, self.driver.version.1)
    }

    /// Its processors, each of which runs many threads.
    pub const fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// Whether this is no GPU but what the tests put in its place: no figure of it says anything.
    pub const fn is_stand_in(&self) -> bool {
        self.driver.is_stand_in
    }

    /// Whether the GPU reaches an address by itself: memory of a GPU, or registered memory of the host.
    ///
    /// # Errors
    /// [`GpuError::Address`] if not.
    pub fn check_address(&self, address: u64) -> Result<(), GpuError> {
        let _entered = self.enter()?;
        self.check_address_entered(address)
    }

    /// As [`check_address`](Self::check_address), for each of many.
    ///
    /// # Errors
    /// As there.
    pub fn check_addresses(&self, addresses: impl IntoIterator<Item = u64>) -> Result<(), GpuError> {
        let _entered = self.enter()?;
        addresses.into_iter().try_for_each(|address| self.check_address_entered(address))
    }

    fn check_address_entered(&self, address: u64) -> Result<(), GpuError> {
        let mut kind: std::ffi::c_uint = 0;
        // SAFETY: the place is ours and has the type that this attribute asks for; any address may be asked about.
        let code =
            unsafe { (self.driver.call.pointer_attribute)((&raw mut kind).cast(), MEMORY_TYPE, address) };
        if code == 0 { Ok(()) } else { Err(GpuError::Address { address }) }
    }

    pub(crate) const fn device(&self) -> c_int {
        self.device
    }

    /// Makes the context current on this thread.
    pub(crate) fn enter(&self) -> Result<Entered<'_>, GpuError> {
        // SAFETY: the context was current or retained when this was made.
        let code = unsafe { (self.driver.call.context_push)(self.context) };
        self.driver.check("entering the GPU's context", code)?;
        Ok(Entered(self))
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut context = 0;
        // SAFETY: the place is ours; what is taken is what `enter` has put there.
        unsafe { (self.0.driver.call.context_pop)(&mut context) };
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if self.is_retained {
            // SAFETY: it was retained once, and is given back once. There is nothing to be done about a failure.
            unsafe { (self.driver.call.primary_release)(self.device) };
        }
    }
}
