//! The pool: sessions, objects, memory by address, locks.

use crate::buffer::Bytes;
use crate::failure::{Failure, errno};
use crate::guard::{Guard, Held, seconds};
use crate::kv::KvCache;
use crate::mapping::Mapping;
use crate::number::{count, whole};
use crate::object::Object;
use crate::own::Own;
use crate::records::{Member, NodeStatus, ObjectInfo, VerifiedRecord};
use crate::source::{Source, Watched};
use hinterland_pool::{GuardOptions, Pool as Client, PutOptions};
use hinterland_proto::control::{self, AllocationKind, LockMode, Placement};
use hinterland_region::{Access, MapOptions, RegionError, Regions};
use hinterland_types::limits::COPIES_MAX;
use hinterland_types::{GlobalAddress, ObjectName, RackName, Rights};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Reads by address from this size on look whether they can be before memory is made for them, all of which the interpreter touches.
const CHECKED_BYTES_MIN: usize = 1 << 20;

/// A connection to the pool; `python/hinterland` gives it its records.
#[pyclass(frozen, subclass, module = "hinterland")]
pub(crate) struct Pool {
    /// Shared with what was opened through it, which is of no use once it is closed.
    connected: Arc<Own<Connected>>,
}

/// A session, which ends with this, whatever still knows of it: that of a closed pool must keep no locks.
pub(crate) struct Connected {
    client: Client,
    /// Connected at the first mapping.
    regions: Mutex<Option<Regions>>,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.client.session().end();
    }
}

impl Connected {
    fn regions(&self) -> Result<Regions, Failure> {
        let mut regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(regions) = &*regions {
            return Ok(regions.clone());
        }
        Ok(regions.insert(Regions::new(self.client.session())?).clone())
    }
}

impl Pool {
    /// Runs a call on the pool while other threads of the interpreter run.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Connected) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        let connected = self.connected.value()?;
        let result = py.detach(move || {
            let result = call(&connected);
            // If the pool was closed meanwhile, this ends the session.
            drop(connected);
            result
        });
        Ok(result?)
    }
}

#[pymethods]
impl Pool {
    #[new]
    #[pyo3(signature = (socket = None))]
    fn new(py: Python<'_>, socket: Option<PathBuf>) -> PyResult<Self> {
        let client = py.detach(|| Client::connect(socket.as_deref()).map_err(Failure::from))?;
        let connected = Connected { client, regions: Mutex::default() };
        Ok(Self { connected: Arc::new(Own::new("Pool", connected)) })
    }

    /// Ends the session. What is mapped stays mapped.
    fn close(&self, py: Python<'_>) {
        let connected = self.connected.take();
        py.detach(|| drop(connected));
    }

    /// The socket of the node.
    #[getter]
    fn socket(&self) -> PyResult<PathBuf> {
        Ok(self.connected.value()?.client.session().socket().to_path_buf())
    }

    /// Puts bytes, a file by its path, or a file object.
    #[pyo3(signature = (name, source, copies = 1, rack = None, progress = None))]
    fn put(
        &self,
        py: Python<'_>,
        name: &str,
        source: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = whole::<1, { COPIES_MAX as u64 }, u8>)] copies: u8,
        rack: Option<&str>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<ObjectInfo> {
        let name = object_name(name)?;
        let placement = rack_name(rack)?.map_or(Placement::Policy, Placement::Rack);
        let source = Source::of(source)?;
        let info = self.with(py, move |connected| {
            let (mut reader, bytes) = source.open()?;
            let watched = Watched::new(progress, bytes);
            let options = PutOptions { bytes, copies, placement };
            let mut reader = watched.reader(&mut *reader);
            let mut report = |done| watched.report(done);
            Ok(connected.client.put(&mut reader, &name, &options, &mut report)?)
        })?;
        Ok(ObjectInfo::new(py, info))
    }

    /// All bytes of an object.
    fn get<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyBytes>> {
        let name = object_name(name)?;
        // Held until all of it is there, also if the pool is closed meanwhile.
        let connected = self.connected.value()?;
        let opened = py.detach(|| connected.client.open_object(&name).map_err(Failure::from))?;
        // An object fits the address space; memory for it may lack.
        let read = PyBytes::new_with(py, opened.info().bytes as usize, |into| {
            Ok(py.detach(|| opened.read_at(0, into).map_err(Failure::from))?)
        });
        py.detach(move || drop((opened, connected)));
        read
    }

    /// Opens an object for reads at any offset, or a region also for writes.
    #[pyo3(signature = (name, writable = false))]
    fn open(&self, py: Python<'_>, name: &str, writable: bool) -> PyResult<Object> {
        let name = object_name(name)?;
        let rights = if writable { Rights::READ | Rights::WRITE } else { Rights::READ };
        let opened = self.with(py, |connected| {
            let opened = connected.client.open(&name, rights)?;
            if writable && opened.info().state == control::ObjectState::Sealed {
                return Err(sealed(&name));
            }
            Ok(opened)
        })?;
        Ok(Object::new(opened, Arc::clone(&self.connected)))
    }

    /// Maps an object for reading, or a region of this rack also for writing.
    #[pyo3(signature = (name, writable = false))]
    fn map(&self, py: Python<'_>, name: &str, writable: bool) -> PyResult<Mapping> {
        let name = object_name(name)?;
        let access = if writable { Access::SharedWrite } else { Access::Read };
        let region = self.with(py, |connected| {
            let options = MapOptions { access, ..MapOptions::default() };
            match connected.regions()?.map(name.clone(), options) {
                Ok(region) => Ok(Some(region)),
                // The only part that a whole object can lack is a first byte.
                Err(RegionError::Range(_)) => Ok(None),
                Err(error) if writable && error.code() == errno::EACCES => Err(sealed(&name)),
                Err(error) => Err(error.into()),
            }
        })?;
        Ok(Mapping::new(name.into(), region, writable))
    }

    /// Opens the KV blocks of engines that agree on a fingerprint.
    #[pyo3(signature = (fingerprint, within = None))]
    fn kv(&self, py: Python<'_>, fingerprint: &str, within: Option<f64>) -> PyResult<KvCache> {
        let within = within.map(seconds).transpose()?;
        let client = self.with(py, |connected| {
            Ok(match within {
                Some(within) => connected.client.kv_within(fingerprint, within)?,
                None => connected.client.kv(fingerprint)?,
            })
        })?;
        Ok(KvCache::new(client, fingerprint))
    }

    /// What is known of an object.
    fn stat(&self, py: Python<'_>, name: &str) -> PyResult<ObjectInfo> {
        let name = object_name(name)?;
        let info = self.with(py, |connected| Ok(connected.client.stat(&name)?))?;
        Ok(ObjectInfo::new(py, info))
    }

    /// All objects whose name starts with `prefix`.
    #[pyo3(signature = (prefix = ""))]
    fn list(&self, py: Python<'_>, prefix: &str) -> PyResult<Vec<ObjectInfo>> {
        let all = self.with(py, |connected| Ok(connected.client.list(prefix)?))?;
        Ok(all.into_iter().map(|info| ObjectInfo::new(py, info)).collect())
    }

    /// Removes an object.
    fn remove(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let name = object_name(name)?;
        self.with(py, |connected| Ok(connected.client.remove(&name)?))
    }

    /// Compares every copy with its checksums.
    fn verify(&self, py: Python<'_>, name: &str) -> PyResult<VerifiedRecord> {
        let name = object_name(name)?;
        self.with(py, |connected| Ok(connected.client.verify(&name)?)).map(VerifiedRecord::from)
    }

    /// What the node of this host says of itself.
    fn status(&self, py: Python<'_>) -> PyResult<NodeStatus> {
        self.with(py, |connected| Ok(connected.client.status()?)).map(NodeStatus::from)
    }

    /// All members of the pool.
    fn members(&self, py: Python<'_>) -> PyResult<Vec<Member>> {
        let members = self.with(py, |connected| Ok(connected.client.members()?))?;
        Ok(members.into_iter().map(Member::from).collect())
    }

    /// Makes a region of zeros, in one rack or spread over all nodes with room.
    #[pyo3(signature = (name, bytes, rack = None, spread = false))]
    fn create_region(
        &self,
        py: Python<'_>,
        name: &str,
        #[pyo3(from_py_with = count)] bytes: u64,
        rack: Option<&str>,
        spread: bool,
    ) -> PyResult<ObjectInfo> {
        let (name, rack) = (object_name(name)?, rack_name(rack)?);
        if spread && rack.is_some() {
            let text = "a region that is spread lies in no rack of its own (hint: give `rack` or `spread`)";
            return Err(Failure::argument(text.to_owned()).into());
        }
        let info = self.with(py, |connected| {
            if spread {
                return Ok(connected.client.create_spread(&name, bytes)?);
            }
            Ok(connected.client.create_region(&name, bytes, rack)?)
        })?;
        Ok(ObjectInfo::new(py, info))
    }

    /// Locks an address for reading with others, with a range from there on.
    fn read_guard(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = count)] address: u64,
        #[pyo3(from_py_with = count)] bytes: u64,
        wait: f64,
    ) -> PyResult<Guard> {
        let (first, options) = (global(address)?, guard_options(wait)?);
        let connected = self.connected.value()?;
        let held = self.with(py, |connected| Ok(connected.client.rlock(first, bytes, &options)?))?;
        Ok(Guard::new(Held::Read(held), connected, address, bytes))
    }

    /// Locks an address for writing, alone, with a range from there on.
    fn write_guard(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = count)] address: u64,
        #[pyo3(from_py_with = count)] bytes: u64,
        wait: f64,
    ) -> PyResult<Guard> {
        let (first, options) = (global(address)?, guard_options(wait)?);
        let connected = self.connected.value()?;
        let held = self.with(py, |connected| Ok(connected.client.wlock(first, bytes, &options)?))?;
        Ok(Guard::new(Held::Write(held), connected, address, bytes))
    }

    /// Allocates memory of this rack; returns its address.
    #[pyo3(signature = (bytes, kept = false))]
    fn alloc(&self, py: Python<'_>, #[pyo3(from_py_with = count)] bytes: u64, kept: bool) -> PyResult<u64> {
        let kind = if kept { AllocationKind::Kept } else { AllocationKind::Session };
        let (address, _) = self.with(py, |connected| Ok(connected.client.allocate(bytes, kind)?))?;
        Ok(address.raw())
    }

    /// Frees an allocation.
    fn free(&self, py: Python<'_>, #[pyo3(from_py_with = count)] address: u64) -> PyResult<()> {
        let address = global(address)?;
        self.with(py, |connected| Ok(connected.client.free(address)?))
    }

    /// Reads bytes at an address of any rack.
    fn read<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = count)] address: u64,
        #[pyo3(from_py_with = whole::<0, { isize::MAX as u64 }, usize>)] bytes: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let address = global(address)?;
        if bytes > CHECKED_BYTES_MIN {
            self.with(py, |connected| Ok(connected.client.check_range(address, bytes)?))?;
        }
        PyBytes::new_with(py, bytes, |into| {
            self.with(py, |connected| Ok(connected.client.read(address, into)?))
        })
    }

    /// Fills a writable buffer with the bytes at an address of any rack.
    fn read_into(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = count)] address: u64,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let address = global(address)?;
        let mut into = Bytes::writable(buffer)?;
        self.with(py, |connected| {
            Ok(into.fill_from(address.raw(), |into| connected.client.read(address, into))?)
        })
    }

    /// Writes bytes at an address of any rack.
    fn write(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = count)] address: u64,
        data: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let address = global(address)?;
        let from = Bytes::of(data)?;
        self.with(py, |connected| Ok(connected.client.write(address, &from.apart_from(address.raw()))?))
    }

    /// Takes a lock: `mode` is "read" or "write", `wait` is in seconds.
    fn lock(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = count)] address: u64,
        mode: &str,
        wait: f64,
    ) -> PyResult<()> {
        let address = global(address)?;
        let mode = match mode {
            "read" => LockMode::Read,
            "write" => LockMode::Write,
            other => {
                let text = format!("{other:?} is no way to lock (hint: \"read\" or \"write\")");
                return Err(PyValueError::new_err(text));
            }
        };
        let wait = seconds(wait)?;
        self.with(py, |connected| Ok(connected.client.lock_within(address, mode, wait)?))
    }

    /// Gives a lock back.
    fn unlock(&self, py: Python<'_>, #[pyo3(from_py_with = count)] address: u64) -> PyResult<()> {
        let address = global(address)?;
        self.with(py, |connected| Ok(connected.client.unlock(address)?))
    }

    fn __reduce__(&self) -> PyResult<()> {
        let text = "a Pool is a session of one process (hint: open one in the other process)";
        Err(PyTypeError::new_err(text))
    }
}

fn object_name(text: &str) -> Result<ObjectName, Failure> {
    Ok(ObjectName::parse(text)?)
}

fn rack_name(text: Option<&str>) -> Result<Option<RackName>, Failure> {
    Ok(text.map(RackName::parse).transpose()?)
}

fn global(address: u64) -> Result<GlobalAddress, Failure> {
    Ok(GlobalAddress::new(address)?)
}

fn guard_options(wait: f64) -> Result<GuardOptions, Failure> {
    Ok(GuardOptions { wait: seconds(wait)?, ..GuardOptions::default() })
}

fn sealed(name: &ObjectName) -> Failure {
    let text = format!("{name} is sealed: it can be read and nothing else (hint: put a new object)");
    Failure::Refused(errno::EACCES, text)
}
