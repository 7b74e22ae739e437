//! What goes with a context, or with all of a device: everything that belongs to it, and what it calls next begins anew.

use super::context::{Context, Owner};
use super::session::Session;
use crate::code::Code;

impl Session {
    /// Frees all that the program has of a device, but for what belongs to contexts that it made: memory and that of the host that was pinned for it, streams,
    /// events, graphs, modules, pools and handles of cuBLAS. Work that was sent before is done first. The grant goes back to what was promised at the
    /// start, or to what the other contexts have.
    ///
    /// # Errors
    /// There is no such device, the calling thread is one that streams call functions by, a fault of work that was sent before, or the node is gone.
    pub fn reset_device(&self, device: u32) -> Result<(), Code> {
        let primary = self.primary(device)?;
        self.wait_callbacks_of(primary.owner)?;
        let outcome = self.empty_context(primary);
        self.reset_pools(device);
        self.free_all_of(Owner::device_alone(device))?;
        outcome
    }

    /// Frees all that belongs to a context. No function that its streams call is open.
    ///
    /// # Errors
    /// A fault of work that was sent before, or the node is gone.
    pub(super) fn empty_context(&self, context: &Context) -> Result<(), Code> {
        self.abandon_captures(context.owner);
        // Whatever the work came to, what belongs to the context goes.
        let outcome = self.synchronize_context(context);
        self.forget_all_of(context)?;
        outcome
    }

    fn forget_all_of(&self, context: &Context) -> Result<(), Code> {
        let owner = context.owner;
        self.note_emptied(context);
        self.destroy_graphs_of(owner)?;
        self.destroy_execs_of(owner)?;
        self.blas.destroy_all_of(self, owner)?;
        self.destroy_events_of(owner)?;
        self.destroy_streams_of(owner)?;
        self.unload_all_of(owner)?;
        self.free_all_of(owner)?;
        self.free_pinned_of(owner)
    }

    /// Frees memory of the host when nothing is on its way into it any more.
    fn free_pinned_of(&self, owner: Owner) -> Result<(), Code> {
        for one in self.take_pinned_of(owner) {
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
