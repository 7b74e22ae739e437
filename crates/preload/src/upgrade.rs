//! Turning a call of `mmap` on a file of the pool into a mapped region.

use crate::{far, mounts, speech};
use hinterland_proto::control::Advice;
use hinterland_region::system::MapCall;
use hinterland_region::{Access, Address, MapOptions, Options, Region, RegionError, Regions, process};
use hinterland_types::ObjectId;
use hinterland_types::limits::BASE_PAGE_BYTES;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicPtr, Ordering};

/// What is asked of a mapping that pool memory cannot give.
const FLAGS_LEFT_ALONE: i32 =
    libc::MAP_32BIT | libc::MAP_GROWSDOWN | libc::MAP_HUGETLB | libc::MAP_SYNC | libc::MAP_FIXED_NOREPLACE;

/// The region that the program gets in place of what it asked for; `None` to let the kernel map the file.
pub(crate) fn upgrade(call: &MapCall, object: ObjectId) -> Option<u64> {
    let access = match access(call) {
        Ok(access) => access,
        Err(why) => {
            speech::left_alone(object, why);
            return None;
        }
    };
    // A defect of ours must not end the program: it has the kernel's mapping to fall back on.
    let mapped = catch_unwind(AssertUnwindSafe(|| map(call, object, access))).ok()?;
    match mapped {
        Ok(address) => Some(address),
        Err(error) => {
            speech::fell_back(object, &error);
            None
        }
    }
}

fn access(call: &MapCall) -> Result<Access, &'static str> {
    let writes = call.protection & libc::PROT_WRITE != 0;
    if call.protection & libc::PROT_EXEC != 0 {
        return Err("it is to be executed");
    }
    let fixed = call.flags & libc::MAP_FIXED != 0;
    let aligned = |number: u64| number.is_multiple_of(BASE_PAGE_BYTES);
    let sound = call.bytes > 0 && aligned(call.offset) && (!fixed || aligned(call.address));
    if call.flags & FLAGS_LEFT_ALONE != 0 || !sound {
        return Err("the mapping has flags or an offset that only the kernel copes with");
    }
    // SAFETY: plain values.
    let mode = unsafe { libc::fcntl(call.descriptor, libc::F_GETFL) };
    if mode & libc::O_PATH != 0 || mode & libc::O_ACCMODE == libc::O_WRONLY {
        return Err("its descriptor is not for reading");
    }
    match (call.flags & libc::MAP_TYPE, writes) {
        (libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE, false) => Ok(Access::Read),
        (libc::MAP_PRIVATE, false) => Ok(Access::PrivateRead),
        (libc::MAP_PRIVATE, true) => Ok(Access::PrivateWrite),
        (libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE, true) => {
            if mode & libc::O_ACCMODE == libc::O_RDWR {
                Ok(Access::SharedWrite)
            } else {
                Err("its descriptor is not for writing")
            }
        }
        _ => Err("the mapping is of an unknown type"),
    }
}

fn map(call: &MapCall, object: ObjectId, access: Access) -> Result<u64, RegionError> {
    let address = if call.flags & libc::MAP_FIXED != 0 {
        Address::Fixed(call.address)
    } else if mounts::is_on(c"HINTERLAND_NO_SYMMETRIC") {
        Address::Anywhere
    } else {
        Address::Symmetric
    };
    let options =
        MapOptions { offset: call.offset, bytes: Some(call.bytes), address, access, beyond_end: true };
    let region = regions()?.map(object, options)?;
    speech::upgraded(&region);
    Ok(settle(call, region))
}

/// Does what else the call asked for, and leaves the memory to the program.
fn settle(call: &MapCall, region: Region) -> u64 {
    let address = region.leak().addr().get() as u64;
    if call.protection == libc::PROT_NONE {
        // Kept as memory that is protected later. If the kernel refuses, the program can read it too early.
        let _ = process::protect(address, call.bytes, libc::PROT_NONE);
    }
    if call.flags & libc::MAP_POPULATE != 0 {
        will_need(address, call.bytes);
    }
    if call.flags & libc::MAP_LOCKED != 0 {
        // SAFETY: the range was just mapped. MAP_LOCKED does not promise that locking works.
        unsafe { libc::syscall(libc::SYS_mlock, address, call.bytes) };
    }
    address
}

/// Has the node fill a range ahead, as far as its budget goes.
pub(crate) fn will_need(address: u64, bytes: u64) {
    if !mounts::is_on(c"HINTERLAND_NO_PREFETCH") {
        process::hint(address, bytes, Advice::WillNeed);
    }
}

/// The connection of this process, made at the first use.
///
/// There is no lock in it: a child forked while another thread connects would find the lock taken for ever. Two threads
/// that connect at once make two connections, of which one is closed again.
fn regions() -> Result<&'static Regions, RegionError> {
    static REGIONS: AtomicPtr<Regions> = AtomicPtr::new(std::ptr::null_mut());
    // Acquire: pairs with the Release of the exchange below.
    let known = REGIONS.load(Ordering::Acquire);
    // SAFETY: a pointer that is not null came from a box that is never freed.
    if let Some(known) = unsafe { known.as_ref() } {
        return Ok(known);
    }
    let fresh = Box::into_raw(Box::new(Regions::connect(&Options::from_environment())?));
    match REGIONS.compare_exchange(std::ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: as above.
        Ok(_) => Ok(unsafe { &*fresh }),
        Err(known) => {
            // SAFETY: nobody else has seen this box; the other pointer is as above.
            unsafe {
                drop(Box::from_raw(fresh));
                Ok(&*known)
            }
        }
    }
}

/// The kernel's own mapping. With a fixed address, whatever the pool had there is forgotten.
pub(crate) fn kernel_map(call: MapCall) -> std::io::Result<u64> {
    let map = || far::map(call);
    let replaces = call.flags & libc::MAP_FIXED != 0 && call.flags & libc::MAP_FIXED_NOREPLACE == 0;
    if replaces { process::replace(call.address, call.bytes, map) } else { map() }
}
