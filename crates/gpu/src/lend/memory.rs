//! The window of addresses, memory in it, pinned memory of the host, copies and fills.

use super::calls::{Access, Copy2D, Kind};
use super::order::Stream;
use super::{CallError, Lent};
use crate::driver::Address;
use std::ptr::NonNull;

/// `CU_MEM_ALLOCATION_TYPE_PINNED`, `CU_MEM_LOCATION_TYPE_DEVICE`.
const PINNED: i32 = 1;
const ON_DEVICE: i32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_WRITE: i32 = 3;
/// `CU_MEMORYTYPE_HOST` and `_UNIFIED`.
const HOST: u32 = 1;
const UNIFIED: u32 = 4;

/// Rows in device memory: where the first begins, bytes from one to the next, bytes of each, how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Address.
    pub address: u64,
    /// Bytes from the start of a row to that of the next.
    pub pitch: u64,
    /// Bytes of a row.
    pub width: u64,
    /// Rows.
    pub rows: u64,
}

impl Region {
    const fn bytes(&self) -> usize {
        // Whoever made it looked at the product.
        (self.width * self.rows) as usize
    }

    const fn is_plain(&self) -> bool {
        self.rows == 1 || self.pitch == self.width
    }
}

/// Memory of a device that is mapped at an address.
#[derive(Debug)]
pub struct Backing(u64);

/// Memory of a device outside of the window, for the node's own use. What is not given back ends with the process.
#[derive(Debug)]
pub struct Scratch {
    /// Where it begins.
    pub address: u64,
    /// Its length.
    pub bytes: u64,
}

/// Memory of the host that a device copies to and from by itself. It is never given back: it ends with the process.
#[derive(Debug)]
pub struct Pinned {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is memory of the process that this value alone reaches, but for copies, for which it is handed over.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Its bytes; no copy from or to them is under way.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the memory has so many bytes, was zeroed by the driver's system call, and lives as long as the process; the
        // borrow is exclusive, and copies hold the value itself.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Lent {
    fn kind(&self) -> Kind {
        Kind { kind: PINNED, handles: 0, place: ON_DEVICE, device: self.device, metadata: 0, flags: [0; 8] }
    }

    /// What lengths of mapped memory are multiples of.
    ///
    /// # Errors
    /// The driver's.
    pub fn granularity(&self) -> Result<u64, CallError> {
        let call = self.enter()?;
        let mut bytes = 0;
        // SAFETY: both places are ours.
        self.check("asking for the granularity", unsafe { (call.granularity)(&mut bytes, &self.kind(), 0) })?;
        Ok(bytes as u64)
    }

    /// Reserves addresses, at `wanted` if they are free there; where they begin.
    ///
    /// # Errors
    /// The driver's.
    pub fn reserve(&self, wanted: u64, bytes: u64) -> Result<u64, CallError> {
        let call = self.enter()?;
        let mut start: Address = 0;
        // SAFETY: the place is ours; the range is never given back.
        let code = unsafe { (call.reserve)(&mut start, bytes as usize, 0, wanted, 0) };
        self.check("reserving addresses", code)?;
        Ok(start)
    }

    /// Backs a part of the reserved addresses with memory of this device, that all devices in `others` reach, too.
    ///
    /// # Errors
    /// The driver's; out of memory among them.
    pub fn map(&self, address: u64, bytes: u64, others: &[&Self]) -> Result<Backing, CallError> {
        let call = self.enter()?;
        let mut memory = 0;
        // SAFETY: both places are ours.
        let code = unsafe { (call.create)(&mut memory, bytes as usize, &self.kind(), 0) };
        self.check("making memory", code)?;
        // SAFETY: plain values, which the driver checks.
        let mut outcome =
            self.check("mapping memory", unsafe { (call.map)(address, bytes as usize, 0, memory, 0) });
        if outcome.is_ok() {
            let access = |device| Access { place: ON_DEVICE, device, flags: READ_WRITE };
            // SAFETY: the description is ours.
            let code = unsafe { (call.set_access)(address, bytes as usize, &access(self.device), 1) };
            outcome = self.check("opening memory", code);
            for other in others.iter().filter(|other| other.device != self.device) {
                // SAFETY: likewise. A device that cannot reach it is refused when it tries.
                unsafe { (call.set_access)(address, bytes as usize, &access(other.device), 1) };
            }
            if outcome.is_err() {
                // SAFETY: it was mapped above.
                unsafe { (call.unmap)(address, bytes as usize) };
            }
        }
        if outcome.is_err() {
            // SAFETY: it was made above, and is mapped nowhere.
            unsafe { (call.release)(memory) };
        }
        outcome.map(|()| Backing(memory))
    }

    /// Takes memory back. No work that uses it is under way.
    ///
    /// # Errors
    /// The driver's.
    pub fn unmap(&self, address: u64, bytes: u64, backing: Backing) -> Result<(), CallError> {
        let call = self.enter()?;
        // SAFETY: it was mapped there with this length.
        self.check("unmapping memory", unsafe { (call.unmap)(address, bytes as usize) })?;
        // SAFETY: it was made once, and the value is gone.
        self.check("giving memory back", unsafe { (call.release)(backing.0) })
    }

    /// Makes memory of this device outside of the window.
    ///
    /// # Errors
    /// The driver's; out of memory among them.
    pub fn scratch(&self, bytes: u64) -> Result<Scratch, CallError> {
        self.enter()?;
        let mut address: Address = 0;
        // SAFETY: the place is ours.
        let code = unsafe { (self.lender.driver.call.allocate)(&mut address, bytes as usize) };
        self.check("making memory of the node's own", code)?;
        Ok(Scratch { address, bytes })
    }

    /// Gives such memory back. No work that uses it is under way; the driver may wait for other work of the device.
    ///
    /// # Errors
    /// The driver's.
    pub fn end_scratch(&self, scratch: Scratch) -> Result<(), CallError> {
        self.enter()?;
        // SAFETY: it was made once, and the value is gone.
        let code = unsafe { (self.lender.driver.call.free)(scratch.address) };
        self.check("giving memory of the node's own back", code)
    }

    /// Makes pinned memory.
    ///
    /// # Errors
    /// The driver's.
    pub fn pinned(&self, bytes: usize) -> Result<Pinned, CallError> {
        let call = self.enter()?;
        let mut start = std::ptr::null_mut();
        // SAFETY: the place is ours.
        self.check("pinning memory", unsafe { (call.host_allocate)(&mut start, bytes, 0) })?;
        let missing =
            || CallError { what: "pinning memory", code: 2, words: "no address".to_owned(), is_blas: false };
        let start: NonNull<u8> = NonNull::new(start.cast()).ok_or_else(missing)?;
        // SAFETY: the driver gave so many bytes.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Pinned { start, bytes })
    }

    /// Copies the start of pinned memory to a device. The memory is to be kept, untouched, until the stream has done it.
    ///
    /// # Errors
    /// The driver's; or the memory is too short.
    pub fn copy_in(&self, stream: &Stream, to: Region, from: &Pinned) -> Result<(), CallError> {
        self.fits(to, from)?;
        let call = self.enter()?;
        if to.is_plain() {
            // SAFETY: the memory has so many bytes, by the check; whoever calls keeps it. The driver checks the address.
            let code =
                unsafe { (call.copy_in)(to.address, from.start.as_ptr().cast(), to.bytes(), stream.handle) };
            return self.check("copying to the device", code);
        }
        let copy = Copy2D {
            from_kind: HOST,
            from_host: from.start.as_ptr().expose_provenance(),
            from_pitch: to.width as usize,
            ..rows_to(to)
        };
        // SAFETY: as above; the rows have together the bytes that were checked.
        self.check("copying rows to the device", unsafe { (call.copy_rows)(&copy, stream.handle) })
    }

    /// Copies from a device to the start of pinned memory, which is to be kept likewise.
    ///
    /// # Errors
    /// The driver's; or the memory is too short.
    pub fn copy_out(&self, stream: &Stream, to: &Pinned, from: Region) -> Result<(), CallError> {
        self.fits(from, to)?;
        let call = self.enter()?;
        if from.is_plain() {
            // SAFETY: the memory has room, by the check; whoever calls keeps it. The driver checks the address.
            let code = unsafe {
                (call.copy_out)(to.start.as_ptr().cast(), from.address, from.bytes(), stream.handle)
            };
            return self.check("copying from the device", code);
        }
        let copy = Copy2D {
            to_kind: HOST,
            to_host: to.start.as_ptr().expose_provenance(),
            to_pitch: from.width as usize,
            ..rows_from(from)
        };
        // SAFETY: as above.
        self.check("copying rows from the device", unsafe { (call.copy_rows)(&copy, stream.handle) })
    }

    /// Copies within the session's devices.
    ///
    /// # Errors
    /// The driver's.
    pub fn copy_within(&self, stream: &Stream, to: Region, from: Region) -> Result<(), CallError> {
        let call = self.enter()?;
        if to.is_plain() && from.is_plain() {
            // SAFETY: plain values, which the driver checks.
            let code = unsafe { (call.copy_within)(to.address, from.address, to.bytes(), stream.handle) };
            return self.check("copying within devices", code);
        }
        let (to, from) = (rows_to(to), rows_from(from));
        let copy = Copy2D {
            from_kind: UNIFIED,
            from_device: from.from_device,
            from_pitch: from.from_pitch,
            to_kind: UNIFIED,
            ..to
        };
        // SAFETY: the description is ours, and the driver checks it.
        self.check("copying rows within devices", unsafe { (call.copy_rows)(&copy, stream.handle) })
    }

    /// Sets elements of 1, 2 or 4 bytes.
    ///
    /// # Errors
    /// The driver's.
    pub fn fill(&self, stream: &Stream, to: Region, element: u32, value: u32) -> Result<(), CallError> {
        let call = self.enter()?;
        let (pitch, rows) = (to.pitch as usize, to.rows as usize);
        let count = (to.width / u64::from(element.max(1))) as usize;
        let (start, stream) = (to.address, stream.handle);
        // The low bytes are what is meant.
        let code = match element {
            // SAFETY: plain values, which the driver checks.
            1 => unsafe { (call.fill_8)(start, pitch, value as u8, count, rows, stream) },
            // SAFETY: likewise.
            2 => unsafe { (call.fill_16)(start, pitch, value as u16, count, rows, stream) },
            // SAFETY: likewise.
            _ => unsafe { (call.fill_32)(start, pitch, value, count, rows, stream) },
        };
        self.check("filling", code)
    }

    fn fits(&self, region: Region, memory: &Pinned) -> Result<(), CallError> {
        if region.width.checked_mul(region.rows).is_some_and(|bytes| bytes <= memory.bytes as u64) {
            return Ok(());
        }
        let words = "pinned memory is too short for it".to_owned();
        Err(CallError { what: "copying", code: 1, words, is_blas: false })
    }
}

fn rows_to(to: Region) -> Copy2D {
    Copy2D {
        to_kind: UNIFIED,
        to_device: to.address,
        to_pitch: to.pitch as usize,
        width: to.width as usize,
        rows: to.rows as usize,
        ..Copy2D::default()
    }
}

fn rows_from(from: Region) -> Copy2D {
    Copy2D {
        from_kind: UNIFIED,
        from_device: from.address,
        from_pitch: from.pitch as usize,
        width: from.width as usize,
        rows: from.rows as usize,
        ..Copy2D::default()
    }
}
