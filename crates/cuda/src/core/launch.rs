//! Launches: the block of parameters is put together from the layout that the image gives.

use std::ffi::c_void;
use std::sync::Arc;

use hinterland_fatbin::Parameter;
use hinterland_proto::gpu::command::{Launch, launch_flags};

use super::module::Kernel;
use super::outbox::{Effect, Tail};
use super::session::Session;
use super::stream::Stream;
use super::thread::Extent;
use crate::code::{Code, INVALID_CONFIGURATION, INVALID_HANDLE, INVALID_VALUE};

/// Threads of a group at most.
const THREADS_MAX: u64 = 1024;
/// Groups in each direction at most.
const GRID_MAX: Extent = [0x7fff_ffff, 65_535, 65_535];
/// Threads in each direction at most.
const BLOCK_MAX: Extent = [1024, 1024, 64];

/// How a kernel is to run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Geometry {
    /// Groups.
    pub grid: Extent,
    /// Threads of a group.
    pub block: Extent,
    /// Bytes of dynamic shared memory.
    pub shared: usize,
    /// Groups of a cluster, zeros for none.
    pub cluster: Extent,
    /// [`launch_flags`].
    pub flags: u32,
}

impl Geometry {
    /// Whether any device could do it; returns the threads of a group.
    fn check(&self) -> Result<u64, Code> {
        let fits =
            |sizes: Extent, max: Extent| sizes.iter().zip(max).all(|(size, max)| (1..=max).contains(size));
        let threads: u64 = self.block.iter().map(|size| u64::from(*size)).product();
        if !fits(self.grid, GRID_MAX) || !fits(self.block, BLOCK_MAX) || threads > THREADS_MAX {
            return Err(INVALID_CONFIGURATION);
        }
        if self.flags & launch_flags::CLUSTER != 0 && !self.is_whole(self.cluster) {
            return Err(INVALID_CONFIGURATION);
        }
        Ok(threads)
    }

    /// Whether the groups make whole clusters.
    fn is_whole(&self, cluster: Extent) -> bool {
        cluster.iter().zip(self.grid).all(|(part, all)| *part > 0 && all.is_multiple_of(*part))
    }
}

/// Where parameters come from.
#[derive(Debug, Clone, Copy)]
pub enum Parameters {
    /// An address for each of them.
    Each(*const *const c_void),
    /// All of them, laid out, so many bytes.
    Block(*const u8, usize),
}

impl Session {
    /// Launches a kernel.
    ///
    /// # Errors
    /// No device can do it, the stream is of another context, or the node is gone.
    ///
    /// # Safety
    /// The parameters are as many and as long as the image of the kernel says.
    pub unsafe fn launch(
        &self,
        kernel: &Kernel,
        stream: &Arc<Stream>,
        geometry: &Geometry,
        parameters: Parameters,
    ) -> Result<(), Code> {
        let threads = geometry.check()?;
        kernel.limits.check(threads, geometry.shared)?;
        if stream.owner.context != kernel.owner.context {
            return Err(INVALID_HANDLE);
        }
        if kernel.layout.cluster.is_some_and(|cluster| !geometry.is_whole(cluster)) {
            return Err(INVALID_CONFIGURATION);
        }
        if kernel.layout.block.is_some_and(|block| block != geometry.block) {
            return Err(INVALID_VALUE);
        }
        if geometry.flags & launch_flags::COOPERATIVE != 0 {
            self.check_cooperative(kernel, geometry)?;
        }
        let layout = &kernel.layout;
        let bytes = match parameters {
            Parameters::Block(_, bytes) if bytes < layout.parameter_bytes as usize => {
                return Err(INVALID_VALUE);
            }
            Parameters::Block(start, _) if start.is_null() && layout.parameter_bytes > 0 => {
                return Err(INVALID_VALUE);
            }
            Parameters::Each(each) if each.is_null() && !layout.parameters.is_empty() => {
                return Err(INVALID_VALUE);
            }
            _ => layout.parameter_bytes as usize,
        };
        let message = Launch {
            function: kernel.function,
            stream: stream.number,
            grid: geometry.grid,
            block: geometry.block,
            shared: u32::try_from(geometry.shared).map_err(|_| INVALID_VALUE)?,
            flags: geometry.flags,
            cluster: geometry.cluster,
        };
        self.issue(stream, Effect::Visible, &message, bytes, |tail| match parameters {
            Parameters::Block(..) if bytes == 0 => {}
            // SAFETY: the caller's promise, and the length was looked at above.
            Parameters::Block(start, _) => tail.put(0, unsafe { std::slice::from_raw_parts(start, bytes) }),
            // SAFETY: the caller's promise.
            Parameters::Each(each) => unsafe { put_each(tail, &layout.parameters, each, bytes) },
        })
        .map(drop)
    }
}

/// Writes each parameter to its place in the tail, which has `bytes` bytes, and zeros between: nothing of what lay in the channel before goes
/// out.
///
/// A parameter goes from the program into the channel by one load and one store. Put together on the stack and copied from there it
/// would take fewer instructions and more time: a long load over short stores waits until these, and so those of the command
/// before, have reached memory that the node is reading.
///
/// # Safety
/// As many addresses as the layout has parameters, and as many bytes at each.
#[inline(always)]
unsafe fn put_each(tail: &mut Tail<'_>, layout: &[Parameter], each: *const *const c_void, bytes: usize) {
    let mut end = 0;
    for (number, parameter) in layout.iter().enumerate() {
        let (start, size) = (parameter.offset as usize, parameter.size as usize);
        tail.put_zeros(end, start.saturating_sub(end));
        end = start + size;
        // SAFETY: the caller's promise.
        let value = unsafe { std::slice::from_raw_parts((*each.add(number)).cast::<u8>(), size) };
        if let Ok(value) = <[u8; 8]>::try_from(value) {
            tail.put_array(start, value);
        } else if let Ok(value) = <[u8; 4]>::try_from(value) {
            tail.put_array(start, value);
        } else {
            tail.put(start, value);
        }
    }
    tail.put_zeros(end, bytes.saturating_sub(end));
}
