//! The copy kernel, loaded into a GPU, and the tables by which it is told what to copy.

use crate::compiler::{Compiler, KERNEL_NAME};
use crate::driver::{EVENT_WITHOUT_TIME, Handle};
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::launch::Launch;
use crate::memory::{DeviceMemory, Registered};
use crate::stream::StreamHandle;
use std::ffi::{c_uint, c_void};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes that a warp copies at once, as in the kernel.
const TILE_BYTES: u64 = 4096;
/// Threads of a group, as in the kernel, and the warps that they are.
const GROUP_THREADS: c_uint = 256;
const GROUP_WARPS: u64 = 8;
/// Bytes of a piece in the table, as in the kernel.
const PIECE_BYTES: usize = 48;
/// Most pieces of a launch: a table of 48 MiB.
const PIECES_MAX: usize = 1 << 20;
/// Smallest table, enough for 1365 pieces.
const TABLE_BYTES_MIN: usize = 64 << 10;
/// Most tables that wait for the next launch.
const SPARE_MAX: usize = 16;

/// Which way a batch goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From fragments to bytes without gaps.
    Gather,
    /// From bytes without gaps to fragments.
    Scatter,
}

/// Fragments of equal length at equal distances on one side, and as many bytes without gaps on the other; addresses of the
/// GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The bytes without gaps.
    pub linear: u64,
    /// The first fragment.
    pub start: u64,
    /// From the start of a fragment to the start of the next one, in bytes.
    pub stride: i64,
    /// Bytes of a fragment.
    pub bytes: u64,
    /// Fragments.
    pub count: u64,
}

/// The kernel of one GPU. Any thread may use it.
pub struct Copier {
    gpu: Arc<Gpu>,
    module: Handle,
    kernel: Handle,
    spare: Mutex<Vec<Tables>>,
}

/// What the kernel reads its pieces from, and the event behind it.
pub(crate) struct Tables {
    host: Registered,
    device: DeviceMemory,
    pub(crate) event: Handle,
}

impl Copier {
    /// Compiles and loads the kernel; `compiler` is where NVRTC is tried first. It takes some tenths of a second.
    ///
    /// # Errors
    /// [`GpuError::NoCompiler`], [`GpuError::Compile`], [`GpuError::Driver`].
    pub fn new(gpu: &Arc<Gpu>, compiler: Option<&Path>) -> Result<Arc<Self>, GpuError> {
        let compiled = Compiler::load(compiler)?.compile(gpu.capability())?;
        let _entered = gpu.enter()?;
        let (mut module, mut kernel) = (0, 0);
        // SAFETY: the image is a whole program that the compiler made; the place is ours.
        let code = unsafe { (gpu.driver.call.module_load)(&mut module, compiled.image.as_ptr().cast()) };
        gpu.driver.check("loading the copy kernel", code)?;
        // SAFETY: the module was loaded a moment ago; the name is a string.
        let code = unsafe { (gpu.driver.call.module_function)(&mut kernel, module, KERNEL_NAME.as_ptr()) };
        // Made first, so that a failure unloads.
        let copier = Self { gpu: Arc::clone(gpu), module, kernel, spare: Mutex::default() };
        gpu.driver.check("finding the copy kernel", code)?;
        Ok(Arc::new(copier))
    }

    /// The GPU.
    pub const fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Puts copies of pieces on a stream, in one launch, and does not wait; `kept` lives until they are done.
    ///
    /// Fragments that overlap where bytes go to get any mixture.
    ///
    /// # Errors
    /// [`GpuError::Driver`]; [`GpuError::Outside`] for more than 2^20 pieces. Nothing is under way then.
    ///
    /// # Safety
    /// Until they are done, the GPU may read the one side of every piece, and write the other, which nobody else uses; the
    /// stream is one of this GPU's context, and lives.
    pub unsafe fn copy<K>(
        self: &Arc<Self>,
        direction: Direction,
        pieces: &[Piece],
        stream: StreamHandle,
        kept: K,
    ) -> Result<Launch<K>, GpuError> {
        let (table, tiles) = table(pieces)?;
        if tiles == 0 {
            return Ok(Launch::done(self, kept));
        }
        let _entered = self.gpu.enter()?;
        let tables = self.tables(table.len())?;
        let driver = &self.gpu.driver;
        let outside = |_| GpuError::Outside { offset: 0, bytes: table.len(), limit: tables.device.len() };
        tables.host.memory().write_at(0, &table).map_err(outside)?;
        let mut arguments: [u64; 4] = [
            tables.device.address(0, table.len())?,
            (table.len() / PIECE_BYTES) as u64,
            tiles,
            u64::from(direction == Direction::Scatter),
        ];
        let mut places = arguments.each_mut().map(|argument| (&raw mut *argument).cast::<c_void>());
        let groups = tiles.div_ceil(GROUP_WARPS).min(u64::from(self.gpu.multiprocessors()));
        // From here on something may be under way, so the launch is made first: dropped at a failure, it waits.
        let mut launch = Launch::begun(self, tables, stream, kept);
        let tables = launch.tables();
        let host = tables.host.memory().as_ptr();
        // SAFETY: both ranges are as long as the table, and are neither freed nor written before the launch is done.
        let code = unsafe { (driver.call.copy_in_on)(arguments[0], host.cast(), table.len(), stream.0) };
        driver.check("copying the table of a batch", code)?;
        // SAFETY: the kernel takes four numbers of 8 bytes; the caller promises what the table's pieces name, and the stream.
        let code = unsafe {
            let none = std::ptr::null_mut();
            // Fits: a GPU's processors are fewer than 2^31.
            let groups = groups as c_uint;
            (driver.call.launch)(
                self.kernel,
                groups,
                1,
                1,
                GROUP_THREADS,
                1,
                1,
                0,
                stream.0,
                places.as_mut_ptr(),
                none,
            )
        };
        driver.check("launching the copy kernel", code)?;
        // SAFETY: event and stream live.
        let code = unsafe { (driver.call.event_record)(tables.event, stream.0) };
        driver.check("recording the end of a batch", code)?;
        launch.recorded();
        Ok(launch)
    }

    /// Tables with room for as many bytes: spare ones, or new ones.
    fn tables(&self, bytes: usize) -> Result<Tables, GpuError> {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = spare.iter().position(|tables| tables.device.len() >= bytes) {
            return Ok(spare.swap_remove(at));
        }
        drop(spare);
        let room = bytes.next_power_of_two().max(TABLE_BYTES_MIN);
        let (host, device) = (Registered::anonymous(&self.gpu, room)?, DeviceMemory::new(&self.gpu, room)?);
        let mut event = 0;
        // SAFETY: the place is ours; the event is destroyed on drop.
        let code = unsafe { (self.gpu.driver.call.event_create)(&mut event, EVENT_WITHOUT_TIME) };
        self.gpu.driver.check("making an event", code)?;
        Ok(Tables { host, device, event })
    }

    /// Takes back tables that nothing uses any more.
    pub(crate) fn give_back(&self, tables: Tables) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < SPARE_MAX {
            spare.push(tables);
        }
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        if let Ok(_entered) = self.gpu.enter() {
            // SAFETY: it was loaded once, and launches hold this value until they are done.
            unsafe { (self.gpu.driver.call.module_unload)(self.module) };
        }
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        if let Ok(_entered) = self.host.gpu().enter() {
            // SAFETY: it was made once.
            unsafe { (self.host.gpu().driver.call.event_destroy)(self.event) };
        }
    }
}

/// The table of pieces, as the kernel reads it, and the tiles of all.
fn table(pieces: &[Piece]) -> Result<(Vec<u8>, u64), GpuError> {
    let whole = || pieces.iter().filter(|piece| piece.bytes > 0 && piece.count > 0);
    let count = whole().count();
    if count > PIECES_MAX {
        return Err(GpuError::Outside { offset: 0, bytes: count, limit: PIECES_MAX });
    }
    let mut table = Vec::with_capacity(count * PIECE_BYTES);
    let mut tiles: u64 = 0;
    for piece in whole() {
        let Piece { linear, start, stride, bytes, count } = *piece;
        for word in [linear, start, stride.cast_unsigned(), bytes, count, tiles] {
            table.extend_from_slice(&word.to_ne_bytes());
        }
        // Pieces that lie in memory have fewer tiles than that has bytes.
        tiles = tiles.saturating_add(bytes.div_ceil(TILE_BYTES).saturating_mul(count));
    }
    Ok((table, tiles))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_counts_the_tiles_before_each_piece_and_leaves_out_empty_ones() {
        let piece = |bytes, count| Piece { linear: 1, start: 2, stride: -3, bytes, count };
        let (bytes, tiles) = table(&[piece(4096, 2), piece(0, 5), piece(4097, 3), piece(1, 1)]).unwrap();
        assert_eq!((bytes.len(), tiles), (3 * PIECE_BYTES, 2 + 6 + 1));
        let word = |at: usize| u64::from_ne_bytes(bytes[at * 8..at * 8 + 8].try_into().unwrap());
        assert_eq!([word(5), word(11), word(17)], [0, 2, 8]);
        assert_eq!([word(0), word(1), word(2), word(3), word(4)], [1, 2, 3_u64.wrapping_neg(), 4096, 2]);
        assert_eq!(table(&[]).unwrap().1, 0);
    }
}
