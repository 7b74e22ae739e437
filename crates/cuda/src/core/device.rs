//! Copies and fills between the program's memory and a device's.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use hinterland_proto::gpu::command::{
    CopyIn, CopyInAtLaunch, CopyInRows, CopyOut, CopyOutRows, CopyRows, CopyWithin, Fill, FillRows,
};

use super::inbox::{Destination, Pending, Target};
use super::list::HostCopy;
use super::outbox::Effect;
use super::pooled::BYTES_MIN;
use super::session::Session;
use super::stream::Stream;
use crate::code::{CAPTURE_UNSUPPORTED, Code, INVALID_PITCH, INVALID_VALUE};

/// A rectangle of bytes: `rows` rows of `width` bytes, from one to the next `pitch` bytes.
#[derive(Debug, Clone, Copy)]
pub struct Rows {
    /// First byte.
    pub start: u64,
    /// From one row to the next.
    pub pitch: u64,
}

impl Rows {
    /// Bytes from the first to the last one of a rectangle.
    fn span(self, width: u64, rows: u64) -> Result<u64, Code> {
        if rows == 0 || width == 0 {
            return Ok(0);
        }
        if self.pitch < width && rows > 1 {
            return Err(INVALID_PITCH);
        }
        self.pitch.checked_mul(rows - 1).and_then(|bytes| bytes.checked_add(width)).ok_or(INVALID_VALUE)
    }
}

impl Session {
    /// Copies between any two places; bytes from a device are there when the stream has been synchronised, or, for memory that is not pinned,
    /// at once.
    ///
    /// # Errors
    /// A range of a device does not exist; the capture of the stream does not allow it; the node is gone.
    pub fn copy(
        &self,
        stream: &Arc<Stream>,
        to: *mut c_void,
        from: *const c_void,
        bytes: usize,
    ) -> Result<(), Code> {
        if bytes == 0 {
            return Ok(());
        }
        let (to_address, from_address) = (to.expose_provenance() as u64, from.expose_provenance() as u64);
        match (self.is_device_address(to_address), self.is_device_address(from_address)) {
            (true, true) => {
                self.check_range(to_address, bytes as u64)?;
                self.check_range(from_address, bytes as u64)?;
                let message = CopyWithin {
                    stream: stream.number,
                    flags: 0,
                    to: to_address,
                    from: from_address,
                    bytes: bytes as u64,
                };
                self.issue(stream, Effect::Visible, &message, 0, |_| ()).map(drop)
            }
            (true, false) => self.copy_in(stream, to_address, from, bytes),
            (false, true) => self.copy_out(stream, to, from_address, bytes),
            (false, false) => self.copy_here(stream, to, from, bytes),
        }
    }

    /// Copies to a device: the bytes are taken now.
    fn copy_in(&self, stream: &Arc<Stream>, to: u64, from: *const c_void, bytes: usize) -> Result<(), Code> {
        self.check_range(to, bytes as u64)?;
        if from.is_null() {
            return Err(INVALID_VALUE);
        }
        let source = Destination { start: from.addr(), width: bytes, pitch: bytes, bytes };
        if stream.is_captured() {
            let to = Rows { start: to, pitch: bytes as u64 };
            return self.capture_in(stream, to, source);
        }
        self.wait_callbacks(stream)?;
        self.wait_landing(source.range())?;
        if bytes >= BYTES_MIN
            && self.copy_pooled(stream, to, from.expose_provenance() as u64, bytes as u64)?
        {
            return Ok(());
        }
        let part_max = self.tail_max(CopyIn::BYTES) & !4095;
        let mut at = 0;
        while at < bytes {
            let part = (bytes - at).min(part_max);
            let message = CopyIn { stream: stream.number, flags: 0, address: to + at as u64 };
            // SAFETY: the program gave `bytes` bytes to be read, and may change them when this call is over.
            let source = unsafe { std::slice::from_raw_parts(from.cast::<u8>().add(at), part) };
            self.issue(stream, Effect::Quiet, &message, part, |tail| tail.put(0, source))?;
            at += part;
        }
        Ok(())
    }

    /// Copies from a device.
    fn copy_out(&self, stream: &Arc<Stream>, to: *mut c_void, from: u64, bytes: usize) -> Result<(), Code> {
        self.check_range(from, bytes as u64)?;
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        let place = Destination { start: to.addr(), width: bytes, pitch: bytes, bytes };
        if stream.is_captured() {
            let message = CopyOut { stream: stream.number, transfer: 0, address: from, bytes: bytes as u64 };
            return self.capture_copy(stream, HostCopy::Out(place), &message);
        }
        let pending = self.expect_bytes(stream, place, |transfer| CopyOut {
            stream: stream.number,
            transfer,
            address: from,
            bytes: bytes as u64,
        })?;
        if self.is_pinned(to.addr() as u64, bytes as u64) {
            self.landing.add(pending, &place);
            return Ok(());
        }
        self.wait_bytes(&pending)
    }

    /// Captures a copy of rows to a device, which reads the program's memory at each launch.
    fn capture_in(&self, stream: &Arc<Stream>, to: Rows, from: Destination) -> Result<(), Code> {
        let message = CopyInAtLaunch {
            stream: stream.number,
            flags: 0,
            address: to.start,
            pitch: to.pitch,
            width: from.width as u64,
            rows: (from.bytes / from.width) as u64,
        };
        self.capture_copy(stream, HostCopy::In(from), &message)
    }

    /// Sends a copy out and says where its bytes go.
    fn expect_bytes<M: hinterland_proto::gpu::Message>(
        &self,
        stream: &Arc<Stream>,
        place: Destination,
        message: impl FnOnce(u32) -> M,
    ) -> Result<Arc<Pending>, Code> {
        // The end is not known before the command is sent, and the bytes cannot come before that.
        let (number, pending) = self.inbox.expect(Target::Bytes(place, stream.clone(), AtomicU64::new(0)));
        let issued = self.issue(stream, Effect::Visible, &message(number as u32), 0, |_| ());
        let command = issued.inspect_err(|_| self.inbox.abandon(&pending))?;
        pending.set_command(command);
        Ok(pending)
    }

    /// Waits for bytes into memory that the program may use for something else when the call is over.
    fn wait_bytes(&self, pending: &Arc<Pending>) -> Result<(), Code> {
        self.wait_mark(pending).inspect_err(|error| match pending.state() {
            // The fault of this copy, which came in front of that, is told by this call.
            Some(_) => self.inbox.note_told(*error),
            None => self.inbox.abandon(pending),
        })
    }

    /// Copies within the program, in the order of the stream.
    fn copy_here(
        &self,
        stream: &Arc<Stream>,
        to: *mut c_void,
        from: *const c_void,
        bytes: usize,
    ) -> Result<(), Code> {
        if to.is_null() || from.is_null() {
            return Err(INVALID_VALUE);
        }
        self.refuse_capture(stream)?;
        self.synchronize_stream(stream)?;
        // SAFETY: the program gave both ranges to a copy.
        unsafe { std::ptr::copy(from.cast::<u8>(), to.cast::<u8>(), bytes) };
        Ok(())
    }

    /// A graph would have to copy within the program's memory at each launch.
    fn refuse_capture(&self, stream: &Stream) -> Result<(), Code> {
        if stream.is_captured() {
            eprintln!(
                "hinterland: a graph cannot copy within the program's memory (hint: memcpy between launches)"
            );
            self.invalidate_capture(stream);
            return Err(CAPTURE_UNSUPPORTED);
        }
        Ok(())
    }

    /// Copies a rectangle between any two places.
    ///
    /// # Errors
    /// As [`copy`](Self::copy); a pitch is shorter than a row.
    pub fn copy_rows(
        &self,
        stream: &Arc<Stream>,
        to: Rows,
        from: Rows,
        width: u64,
        rows: u64,
    ) -> Result<(), Code> {
        if width == 0 || rows == 0 {
            return Ok(());
        }
        let (to_span, from_span) = (to.span(width, rows)?, from.span(width, rows)?);
        match (self.is_device_address(to.start), self.is_device_address(from.start)) {
            (true, true) => {
                self.check_range(to.start, to_span)?;
                self.check_range(from.start, from_span)?;
                let message = CopyRows {
                    stream: stream.number,
                    flags: 0,
                    to: to.start,
                    to_pitch: to.pitch,
                    from: from.start,
                    from_pitch: from.pitch,
                    width,
                    rows,
                };
                self.issue(stream, Effect::Visible, &message, 0, |_| ()).map(drop)
            }
            (true, false) => {
                self.check_range(to.start, to_span)?;
                self.copy_rows_in(stream, to, from, width as usize, rows)
            }
            (false, true) => {
                self.check_range(from.start, from_span)?;
                self.copy_rows_out(stream, to, from, width, rows)
            }
            (false, false) => {
                for row in 0..rows {
                    let source = std::ptr::with_exposed_provenance((from.start + row * from.pitch) as usize);
                    let place = std::ptr::with_exposed_provenance_mut((to.start + row * to.pitch) as usize);
                    self.copy_here(stream, place, source, width as usize)?;
                }
                Ok(())
            }
        }
    }

    fn copy_rows_in(
        &self,
        stream: &Arc<Stream>,
        to: Rows,
        from: Rows,
        width: usize,
        rows: u64,
    ) -> Result<(), Code> {
        let bytes = width.checked_mul(rows as usize).ok_or(INVALID_VALUE)?;
        let source = Destination { start: from.start as usize, width, pitch: from.pitch as usize, bytes };
        if stream.is_captured() {
            return self.capture_in(stream, to, source);
        }
        self.wait_callbacks(stream)?;
        self.wait_landing(source.range())?;
        let tail_max = self.tail_max(CopyInRows::BYTES);
        let row_of =
            |row: u64| std::ptr::with_exposed_provenance::<u8>((from.start + row * from.pitch) as usize);
        if width > tail_max {
            return (0..rows).try_for_each(|row| {
                self.copy_in(stream, to.start + row * to.pitch, row_of(row).cast(), width)
            });
        }
        let together = (tail_max / width) as u64;
        let mut row = 0;
        while row < rows {
            let some = together.min(rows - row);
            let message = CopyInRows {
                stream: stream.number,
                flags: 0,
                address: to.start + row * to.pitch,
                pitch: to.pitch,
                width: width as u64,
                rows: some,
            };
            self.issue(stream, Effect::Quiet, &message, width * some as usize, |tail| {
                for number in 0..some {
                    // SAFETY: the program gave these rows to be read, and may change them when this call is over.
                    let source = unsafe { std::slice::from_raw_parts(row_of(row + number), width) };
                    tail.put(number as usize * width, source);
                }
            })?;
            row += some;
        }
        Ok(())
    }

    fn copy_rows_out(
        &self,
        stream: &Arc<Stream>,
        to: Rows,
        from: Rows,
        width: u64,
        rows: u64,
    ) -> Result<(), Code> {
        let bytes = width.checked_mul(rows).ok_or(INVALID_VALUE)? as usize;
        let place =
            Destination { start: to.start as usize, width: width as usize, pitch: to.pitch as usize, bytes };
        let (stream_name, address, pitch) = (stream.number, from.start, from.pitch);
        let message = |transfer| CopyOutRows { stream: stream_name, transfer, address, pitch, width, rows };
        if stream.is_captured() {
            return self.capture_copy(stream, HostCopy::Out(place), &message(0));
        }
        let pending = self.expect_bytes(stream, place, message)?;
        if self.is_pinned(to.start, to.span(width, rows)?) {
            self.landing.add(pending, &place);
            return Ok(());
        }
        self.wait_bytes(&pending)
    }

    /// Sets elements of 1, 2 or 4 bytes.
    ///
    /// # Errors
    /// The range does not exist, or the node is gone.
    pub fn fill(
        &self,
        stream: &Arc<Stream>,
        address: u64,
        element: u32,
        value: u32,
        count: u64,
    ) -> Result<(), Code> {
        if count == 0 {
            return Ok(());
        }
        let bytes = count.checked_mul(u64::from(element)).ok_or(INVALID_VALUE)?;
        if !address.is_multiple_of(u64::from(element)) {
            return Err(INVALID_VALUE);
        }
        if let Err(code) = self.check_range(address, bytes) {
            let place = Rows { start: address, pitch: bytes };
            return self.fill_pinned(
                stream,
                place,
                &value.to_le_bytes()[..element as usize],
                (bytes, 1),
                code,
            );
        }
        let message = Fill { stream: stream.number, element, address, count, value };
        self.issue(stream, Effect::Quiet, &message, 0, |_| ()).map(drop)
    }

    /// Sets elements of a rectangle.
    ///
    /// # Errors
    /// As [`fill`](Self::fill).
    pub fn fill_rows(
        &self,
        stream: &Arc<Stream>,
        place: Rows,
        element: u32,
        value: u32,
        count: u64,
        rows: u64,
    ) -> Result<(), Code> {
        let width = count.checked_mul(u64::from(element)).ok_or(INVALID_VALUE)?;
        // Only copies have an error of their own for that.
        let span = place.span(width, rows).map_err(|_| INVALID_VALUE)?;
        if span == 0 {
            return Ok(());
        }
        let is_whole = |bytes: u64| bytes.is_multiple_of(u64::from(element));
        if !is_whole(place.start) || (rows > 1 && !is_whole(place.pitch)) {
            return Err(INVALID_VALUE);
        }
        if let Err(code) = self.check_range(place.start, span) {
            return self.fill_pinned(
                stream,
                place,
                &value.to_le_bytes()[..element as usize],
                (width, rows),
                code,
            );
        }
        let message = FillRows {
            stream: stream.number,
            element,
            address: place.start,
            pitch: place.pitch,
            count,
            rows,
            value,
        };
        self.issue(stream, Effect::Quiet, &message, 0, |_| ()).map(drop)
    }

    /// Sets elements of rows of pinned memory of the program, when the work of the stream so far is done: CUDA, too, returns from such a fill when it
    /// is done. `otherwise` is the error for other memory, and in a graph, which would have to do it at each launch.
    fn fill_pinned(
        &self,
        stream: &Arc<Stream>,
        place: Rows,
        element: &[u8],
        (width, rows): (u64, u64),
        otherwise: Code,
    ) -> Result<(), Code> {
        if stream.is_captured() || !self.is_pinned(place.start, place.span(width, rows)?) {
            return Err(otherwise);
        }
        self.synchronize_stream(stream)?;
        for row in 0..rows {
            let start =
                std::ptr::with_exposed_provenance_mut::<u8>((place.start + row * place.pitch) as usize);
            // SAFETY: the program pinned all of the rows and has them filled, and what the stream brought into them is there.
            let bytes = unsafe { std::slice::from_raw_parts_mut(start, width as usize) };
            bytes.chunks_exact_mut(element.len()).for_each(|place| place.copy_from_slice(element));
        }
        Ok(())
    }
}
