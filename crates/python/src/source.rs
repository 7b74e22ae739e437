//! Where a put takes its bytes from: memory, a path or a file object; and how the program hears of it and stops it.

use crate::buffer::{Bytes, BytesReader};
use crate::failure::Failure;
use crate::program;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyString;
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How often a put looks whether the program was interrupted.
const SIGNALS_PAUSE: Duration = Duration::from_millis(100);

/// Where the bytes come from.
pub(crate) enum Source {
    /// Memory of an object.
    Memory(Bytes),
    /// A file of this name.
    Path(PathBuf),
    /// An object with `read(size)`.
    Stream(Py<PyAny>),
}

impl Source {
    /// What an argument of the program is.
    ///
    /// # Errors
    /// `TypeError` for anything else.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyString>() || object.hasattr("__fspath__")? {
            return Ok(Self::Path(object.extract()?));
        }
        match Bytes::of(object) {
            Ok(bytes) => Ok(Self::Memory(bytes)),
            Err(error) if !error.is_instance_of::<PyTypeError>(object.py()) => Err(error),
            Err(_) if object.hasattr("read")? => Ok(Self::Stream(object.clone().unbind())),
            Err(_) => {
                let kind = object.get_type().name()?;
                let text = format!(
                    "cannot put a {kind} (hint: pass bytes, an array, a path, or a file opened with 'rb')"
                );
                Err(PyTypeError::new_err(text))
            }
        }
    }

    /// The bytes and, if it is known, how many they are.
    ///
    /// # Errors
    /// [`Failure::Refused`] if the file cannot be opened.
    pub(crate) fn open(self) -> Result<(Box<dyn Read>, Option<u64>), Failure> {
        match self {
            Self::Memory(bytes) => {
                let total = bytes.len() as u64;
                Ok((Box::new(BytesReader::new(bytes)), Some(total)))
            }
            Self::Path(path) => {
                let failed = |source: io::Error| {
                    let text = format!("{}: {source} (hint: check the path and its rights)", path.display());
                    Failure::Refused(source.raw_os_error().unwrap_or(5), text)
                };
                let file = File::open(&path).map_err(failed)?;
                let metadata = file.metadata().map_err(failed)?;
                let total = metadata.is_file().then_some(metadata.len());
                Ok((Box::new(file), total))
            }
            Self::Stream(object) => Ok((Box::new(Stream(object)), None)),
        }
    }
}

/// A file object of the program.
struct Stream(Py<PyAny>);

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Python::attach(|py| {
            let read = program::call(&self.0.bind(py).getattr("read")?, (into.len(),))?;
            if read.is_instance_of::<PyString>() {
                return Err(PyTypeError::new_err("the file gives text (hint: open it with 'rb')"));
            }
            let bytes = Bytes::of(&read)?;
            if bytes.len() > into.len() {
                return Err(PyTypeError::new_err("read() gave more bytes than it was asked for"));
            }
            into[..bytes.len()].copy_from_slice(bytes.as_slice());
            Ok(bytes.len())
        })
        .map_err(io::Error::other)
    }
}

/// Calls the program's `progress`, and ends the put when that raises or the program is interrupted.
pub(crate) struct Watched {
    progress: Option<Py<PyAny>>,
    total: Option<u64>,
    raised: RefCell<Option<PyErr>>,
    looked: std::cell::Cell<Instant>,
}

impl Watched {
    /// Nothing was put yet.
    pub(crate) fn new(progress: Option<Py<PyAny>>, total: Option<u64>) -> Self {
        Self { progress, total, raised: RefCell::new(None), looked: std::cell::Cell::new(Instant::now()) }
    }

    /// `done` bytes were put.
    pub(crate) fn report(&self, done: u64) {
        let Some(progress) = &self.progress else { return };
        let called = Python::attach(|py| program::call(progress.bind(py), (done, self.total)).map(drop));
        if let Err(error) = called {
            self.raised.replace(Some(error));
        }
    }

    /// The reader, which fails once the program has had enough.
    pub(crate) fn reader<'a>(&'a self, reader: &'a mut dyn Read) -> impl Read + 'a {
        WatchedReader { watched: self, reader }
    }

    /// What the program raised: in `progress`, or by a signal, which is looked for now and then, or at once.
    fn look(&self, at_once: bool) -> Result<(), PyErr> {
        if let Some(error) = self.raised.take() {
            return Err(error);
        }
        if at_once || self.looked.get().elapsed() >= SIGNALS_PAUSE {
            self.looked.set(Instant::now());
            Python::attach(|py| py.check_signals())?;
        }
        Ok(())
    }
}

struct WatchedReader<'a> {
    watched: &'a Watched,
    reader: &'a mut dyn Read,
}

impl Read for WatchedReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.watched.look(false).map_err(io::Error::other)?;
        self.reader.read(into).or_else(|error| {
            // A signal came while the source was waited for; who reads tries again.
            let is_interrupted = error.kind() == io::ErrorKind::Interrupted;
            self.watched.look(is_interrupted).map_err(io::Error::other)?;
            Err(error)
        })
    }
}
