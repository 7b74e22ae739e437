//! Resets of devices: everything that a program made on one goes, and what it calls next begins anew.

use std::sync::atomic::Ordering;

use super::session::Session;
use crate::code::Code;

impl Session {
    /// Frees all that the program has of a device: its memory and that of the host that was pinned for it, streams, events, graphs, modules,
    /// pools and handles of cuBLAS. Work that was sent before is done first. The grant goes back to what was promised at the start.
    ///
    /// # Errors
    /// There is no such device, the calling thread is one that streams call functions by, a fault of work that was sent before, or the node is gone.
    pub fn reset_device(&self, device: u32) -> Result<(), Code> {
        self.device(device)?;
        self.wait_callbacks_of(device)?;
        self.abandon_captures(device);
        // Whatever the work came to, the device is reset.
        let outcome = self.synchronize_device(device);
        self.forget_all_of(device)?;
        outcome
    }

    /// How often a device was reset: whoever keeps something of it that is no name knows by that whether it is still there.
    #[must_use]
    pub fn resets(&self, device: u32) -> u32 {
        // Relaxed: what a program does with a device in one thread while it resets it in another has no order.
        self.resets.get(device as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    fn forget_all_of(&self, device: u32) -> Result<(), Code> {
        // Relaxed: as in `resets`.
        self.resets[device as usize].fetch_add(1, Ordering::Relaxed);
        self.destroy_graphs_of(device)?;
        self.destroy_execs_of(device)?;
        self.blas.destroy_all_of(self, device)?;
        self.destroy_events_of(device)?;
        self.destroy_streams_of(device)?;
        self.unload_all_of(device)?;
        self.reset_pools(device);
        for (place, reached) in self.peers.iter().enumerate() {
            let kept = if place == device as usize { 0 } else { !(1 << device) };
            // Relaxed: the bits say nothing about anything else.
            reached.fetch_and(kept, Ordering::Relaxed);
        }
        self.free_all_of(device)?;
        self.free_pinned_of(device)
    }

    /// Frees memory of the host when nothing is on its way into it any more.
    fn free_pinned_of(&self, device: u32) -> Result<(), Code> {
        for one in self.take_pinned_of(device) {
            self.wait_landing(one.range())?;
            if one.is_ours {
                let memory = std::ptr::with_exposed_provenance_mut(one.range().0);
                // SAFETY: from posix_memalign, and freed once: it was in the table.
                unsafe { libc::free(memory) };
            }
        }
        Ok(())
    }
}
