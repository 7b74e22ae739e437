//! The same copies without the kernel, to compare with: one call for each fragment, and one for all bytes.

use crate::copier::{Copier, Direction, Piece};
use crate::error::GpuError;
use crate::memory::{DeviceMemory, Registered};
use crate::stream::Stream;
use std::sync::Arc;

/// Copies between registered memory and memory of the GPU by calls of the driver.
pub struct Plain<'memory> {
    /// On the host.
    pub host: &'memory Registered,
    /// On the GPU.
    pub device: &'memory DeviceMemory,
    /// Where the calls are put.
    pub stream: &'memory Stream,
}

impl Plain<'_> {
    /// Copies fragments, each by a call, and waits; each is an offset on the host, one on the GPU, and a length.
    ///
    /// # Errors
    /// [`GpuError::Outside`], [`GpuError::Driver`].
    pub fn copy_each(
        &self,
        direction: Direction,
        fragments: impl IntoIterator<Item = (usize, usize, usize)>,
    ) -> Result<(), GpuError> {
        let gpu = self.stream.gpu();
        let entered = gpu.enter()?;
        let begun = fragments.into_iter().try_for_each(|fragment| self.begin(direction, fragment));
        drop(entered);
        // Whatever was begun uses memory that is borrowed: it is waited for in any case.
        self.stream.wait()?;
        begun
    }

    /// Copies fragments of equal length at equal distances, from the start of the GPU's memory on, through a buffer of the GPU:
    /// one call for all bytes, which lie at the start of the host's memory, and the kernel; and waits.
    ///
    /// `fragments` are the bytes of each, the distance, and how many.
    ///
    /// # Errors
    /// As [`copy_each`](Self::copy_each).
    pub fn copy_through(
        &self,
        copier: &Arc<Copier>,
        direction: Direction,
        buffer: &DeviceMemory,
        (bytes, stride, count): (usize, usize, usize),
    ) -> Result<(), GpuError> {
        let outside = || GpuError::Outside { offset: 0, bytes, limit: self.device.len() };
        let total = bytes.checked_mul(count).ok_or_else(outside)?;
        let reach = stride.checked_mul(count).and_then(|reach| reach.checked_add(bytes));
        let reach = reach.ok_or_else(outside)?.saturating_sub(stride);
        let (linear, start) = (buffer.address(0, total)?, self.device.address(0, reach)?);
        let (bytes, count) = (bytes as u64, count as u64);
        let pieces = [Piece { linear, start, stride: stride as i64, bytes, count }];
        let whole = Plain { device: buffer, ..*self };
        let entered = self.stream.gpu().enter()?;
        let stream = self.stream.handle();
        // SAFETY: both ranges were checked and are borrowed, as the stream is, until that was waited for.
        let launch = || unsafe { copier.copy(direction, &pieces, stream, ()) };
        let begun = match direction {
            Direction::Scatter => whole.begin(direction, (0, 0, total)).and_then(|()| launch()),
            Direction::Gather => {
                launch().and_then(|launch| whole.begin(direction, (0, 0, total)).map(|()| launch))
            }
        };
        drop(entered);
        self.stream.wait()?;
        begun?.wait()
    }

    fn begin(
        &self,
        direction: Direction,
        (host, device, bytes): (usize, usize, usize),
    ) -> Result<(), GpuError> {
        let outside = |_| GpuError::Outside { offset: host, bytes, limit: self.host.memory().len() };
        let part = self.host.memory().sub(host, bytes).map_err(outside)?;
        let address = self.device.address(device, bytes)?;
        let driver = &self.device.gpu().driver;
        let stream = self.stream.handle().0;
        // SAFETY: both ranges were checked, and live until the stream was waited for.
        let code = unsafe {
            match direction {
                Direction::Scatter => (driver.call.copy_in_on)(address, part.as_ptr().cast(), bytes, stream),
                Direction::Gather => (driver.call.copy_out_on)(part.as_ptr().cast(), address, bytes, stream),
            }
        };
        driver.check("copying a fragment", code)
    }
}
