//! What the library says on stderr: once why mapping is slower than it could be, and with `HINTERLAND_VERBOSE` all.

use crate::mounts::is_on;
use hinterland_region::{Region, RegionError};
use hinterland_types::ObjectId;
use std::sync::atomic::{AtomicBool, Ordering};

static SAID: AtomicBool = AtomicBool::new(false);

/// A file of the pool is mapped by the kernel, through FUSE, because of an error.
pub(crate) fn fell_back(object: ObjectId, error: &RegionError) {
    // Relaxed: guards nothing but a sentence.
    if !SAID.swap(true, Ordering::Relaxed) || is_on(c"HINTERLAND_VERBOSE") {
        hinterland_region::system::say(&format!(
            "{object} is mapped through the mount, which is slower: {error}"
        ));
    }
}

/// A file of the pool is mapped by the kernel because of what the program wants of it.
pub(crate) fn left_alone(object: ObjectId, why: &str) {
    if is_on(c"HINTERLAND_VERBOSE") {
        hinterland_region::system::say(&format!("{object} is left to the mount: {why}"));
    }
}

/// A file of the pool became memory of the pool.
pub(crate) fn upgraded(region: &Region) {
    if is_on(c"HINTERLAND_VERBOSE") {
        let source = if region.is_armed() { "another rack, on fault" } else { "this host" };
        let (name, pointer) = (&region.info().name, region.pointer());
        let bytes = region.bytes();
        hinterland_region::system::say(&format!("{name}: {bytes} bytes at {pointer:p} from {source}"));
    }
}
