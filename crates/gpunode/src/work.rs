//! Work of a stream: what a command asks of a device, as values whose shape has been checked.

use crate::body::Body;
use crate::failure::Failure;
use hinterland_proto::gpu::command::{self, Command};

/// Rows of bytes in device memory; one row if they are not rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// Where the first one begins.
    pub address: u64,
    /// Bytes from the start of a row to the start of the next.
    pub pitch: u64,
    /// Bytes of a row.
    pub width: u64,
    /// How many.
    pub rows: u64,
}

impl Rows {
    /// One row.
    pub const fn one(address: u64, bytes: u64) -> Self {
        Self { address, pitch: bytes, width: bytes, rows: 1 }
    }

    /// Rows, if they do not overlap and lie within 64 bits of addresses.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn new(address: u64, pitch: u64, width: u64, rows: u64) -> Result<Self, Failure> {
        let rows = Self { address, pitch, width, rows };
        if rows.rows > 1 && pitch < width {
            return Err(Failure::value(format!("rows of {width} bytes begin every {pitch} bytes")));
        }
        match rows.span().and_then(|bytes| address.checked_add(bytes)) {
            Some(_) => Ok(rows),
            None => Err(Failure::value(format!(
                "{} rows of {width} bytes from {address:#x} end beyond all addresses",
                rows.rows
            ))),
        }
    }

    /// Bytes from the first to the last one of all rows.
    pub fn span(&self) -> Option<u64> {
        if self.rows == 0 || self.width == 0 {
            return Some(0);
        }
        (self.rows - 1).checked_mul(self.pitch)?.checked_add(self.width)
    }

    /// Bytes of all rows without what lies between them.
    pub const fn bytes(&self) -> u64 {
        // At most the span, which fits.
        self.rows.saturating_mul(self.width)
    }

    /// Where each row begins.
    pub fn starts(self) -> impl Iterator<Item = u64> {
        let rows = if self.width == 0 { 0 } else { self.rows };
        (0..rows).map(move |row| self.address + row * self.pitch)
    }
}

/// A launch of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'body> {
    /// What the fields say.
    pub fields: command::Launch,
    /// The block of parameters.
    pub parameters: Body<'body>,
}

/// Work of a stream.
#[derive(Clone, Copy, Debug)]
pub enum Work<'body> {
    /// A kernel.
    Launch(Launch<'body>),
    /// Bytes to a device.
    CopyIn {
        /// Where they go.
        to: Rows,
        /// As many as the rows have.
        bytes: Body<'body>,
    },
    /// Bytes to a device that come with each launch of the graph that this stands in.
    CopyInAtLaunch {
        /// Where they go.
        to: Rows,
    },
    /// Bytes to the program.
    CopyOut {
        /// Where they lie.
        from: Rows,
        /// What the program calls them.
        transfer: u32,
    },
    /// Bytes within the session's devices.
    CopyWithin {
        /// Where they go.
        to: Rows,
        /// Where they lie; as wide and as many as `to`.
        from: Rows,
    },
    /// One value to many places.
    Fill {
        /// The places.
        to: Rows,
        /// Bytes of an element: 1, 2 or 4.
        element: u32,
        /// The value, in its low bytes.
        value: u32,
    },
    /// An event.
    Record {
        /// Its name.
        event: u32,
        /// Whether a record of a graph reaches out of it.
        is_external: bool,
    },
    /// A wait for an event.
    Wait {
        /// Its name.
        event: u32,
        /// Whether a wait of a graph is for a record outside of it.
        is_external: bool,
    },
    /// A setting of a cuBLAS handle.
    BlasSet(command::BlasSet),
    /// A product of matrices.
    Gemm(command::BlasGemm),
    /// Products of many matrices.
    GemmPointers(command::BlasGemmPointers),
    /// Another function of cuBLAS.
    BlasCall(command::BlasCall),
    /// `cublasLtMatmul`, described in postcard's form.
    LtMatmul(Body<'body>),
}

/// Which stream a piece of work goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A stream by its name.
    Stream(u32),
    /// The stream of a cuBLAS handle.
    Handle(u32),
}

/// `cudaEventRecordExternal` and `cudaEventWaitExternal`: of a graph, and seen or done outside of it.
const EXTERNAL: u32 = 1;

/// A command as work of a stream, and which stream; nothing if it is no such command.
///
/// # Errors
/// Its fields do not agree with each other or with the length of its tail.
pub fn work_of(command: Command, body: Body<'_>) -> Result<Option<(Place, Work<'_>)>, Failure> {
    let (stream, work) = match command {
        Command::Launch(fields) => {
            let parameters = body.tail(command::Launch::BYTES);
            (fields.stream, Work::Launch(Launch { fields, parameters }))
        }
        Command::CopyIn(c) => {
            let bytes = body.tail(command::CopyIn::BYTES);
            (c.stream, Work::CopyIn { to: Rows::new(c.address, 0, bytes.bytes() as u64, 1)?, bytes })
        }
        Command::CopyInRows(c) => {
            let bytes = body.tail(command::CopyInRows::BYTES);
            let to = Rows::new(c.address, c.pitch, c.width, c.rows)?;
            if c.width.checked_mul(c.rows) != Some(bytes.bytes() as u64) {
                let words = format!("{} rows of {} bytes came as {} bytes", c.rows, c.width, bytes.bytes());
                return Err(Failure::value(words));
            }
            (c.stream, Work::CopyIn { to, bytes })
        }
        Command::CopyInAtLaunch(c) => {
            (c.stream, Work::CopyInAtLaunch { to: Rows::new(c.address, c.pitch, c.width, c.rows)? })
        }
        Command::CopyOut(c) => {
            (c.stream, Work::CopyOut { from: Rows::new(c.address, 0, c.bytes, 1)?, transfer: c.transfer })
        }
        Command::CopyOutRows(c) => {
            let from = Rows::new(c.address, c.pitch, c.width, c.rows)?;
            (c.stream, Work::CopyOut { from, transfer: c.transfer })
        }
        Command::CopyWithin(c) => {
            let (to, from) = (Rows::new(c.to, 0, c.bytes, 1)?, Rows::new(c.from, 0, c.bytes, 1)?);
            (c.stream, Work::CopyWithin { to, from })
        }
        Command::CopyRows(c) => {
            let to = Rows::new(c.to, c.to_pitch, c.width, c.rows)?;
            (c.stream, Work::CopyWithin { to, from: Rows::new(c.from, c.from_pitch, c.width, c.rows)? })
        }
        Command::Fill(c) => (c.stream, fill(c.element, c.address, 0, c.count, 1, c.value)?),
        Command::FillRows(c) => (c.stream, fill(c.element, c.address, c.pitch, c.count, c.rows, c.value)?),
        Command::EventRecord(c) => {
            (c.stream, Work::Record { event: c.event, is_external: c.flags & EXTERNAL != 0 })
        }
        Command::StreamWait(c) => {
            (c.stream, Work::Wait { event: c.event, is_external: c.flags & EXTERNAL != 0 })
        }
        Command::BlasSet(c) => return Ok(Some((Place::Handle(c.handle), Work::BlasSet(c)))),
        Command::BlasGemm(c) => return Ok(Some((Place::Handle(c.handle), Work::Gemm(c)))),
        Command::BlasGemmPointers(c) => {
            return Ok(Some((Place::Handle(c.handle), Work::GemmPointers(c))));
        }
        Command::BlasCall(c) => return Ok(Some((Place::Handle(c.handle), Work::BlasCall(c)))),
        Command::LtMatmul(c) => (c.stream, Work::LtMatmul(body.tail(command::LtMatmul::BYTES))),
        _ => return Ok(None),
    };
    Ok(Some((Place::Stream(stream), work)))
}

fn fill(
    element: u32,
    address: u64,
    pitch: u64,
    count: u64,
    rows: u64,
    value: u32,
) -> Result<Work<'static>, Failure> {
    if !matches!(element, 1 | 2 | 4) {
        return Err(Failure::value(format!("elements of {element} bytes cannot be filled: 1, 2 or 4 can")));
    }
    let bytes = u64::from(element);
    let Some(width) = count.checked_mul(bytes) else {
        return Err(Failure::value(format!("{count} elements of {element} bytes are too many")));
    };
    if !address.is_multiple_of(bytes) || (rows > 1 && !pitch.is_multiple_of(bytes)) {
        return Err(Failure::value(format!("{address:#x} is no address of elements of {element} bytes")));
    }
    Ok(Work::Fill { to: Rows::new(address, pitch, width, rows)?, element, value })
}
