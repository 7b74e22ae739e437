//! Connections of a client to nodes of other racks.

use crate::PoolError;
use crate::session::unexpected;
use hinterland_fabric::rdma::{RdmaEndpoint, RdmaOptions};
use hinterland_fabric::tcp::{ClientOptions, Mode};
use hinterland_fabric::{Closer, Endpoint, FabricError, Lease};
use hinterland_proto::control::{Reply, Request, decode, encode};
use hinterland_proto::{NotAKey, PoolId, PoolKey, Role};
use hinterland_types::Handle;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long an operation on another node may take before the next home is asked.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Streams to each node.
const STREAMS: usize = 4;

/// All connections of one client.
pub struct Remotes {
    pool: PoolId,
    key: Option<PoolKey>,
    polling: bool,
    rdma: bool,
    endpoints: Mutex<HashMap<String, Arc<RdmaEndpoint>>>,
    closer: Arc<Closer>,
}

/// A handle at a node, and the connection that it is good for. The node is told when the last one who has it lets go.
#[derive(Clone)]
pub struct Attached {
    pub endpoint: Arc<RdmaEndpoint>,
    pub handle: Handle,
    pub address: String,
    _lease: Arc<Lease>,
}

impl Remotes {
    /// No connections yet. The key of the pool is read from the file that `HINTERLAND_KEY_FILE` names;
    /// `HINTERLAND_POLLING=1` spins for answers; `HINTERLAND_NO_RDMA=1` leaves RDMA devices alone.
    ///
    /// # Errors
    /// [`PoolError::Stream`] if the file holds no key.
    pub fn new(pool: PoolId) -> Result<Self, PoolError> {
        let key =
            std::env::var_os("HINTERLAND_KEY_FILE").map(|path| read_key(Path::new(&path))).transpose()?;
        let polling = std::env::var_os("HINTERLAND_POLLING").is_some_and(|value| value == "1");
        let rdma = std::env::var_os("HINTERLAND_NO_RDMA").is_none_or(|value| value != "1");
        // The message cannot be too long; without one the handle would stay until the connection ends.
        let closer = Closer::new(|handle| encode(&Request::Close { handle }).unwrap_or_default());
        Ok(Self { pool, key, polling, rdma, endpoints: Mutex::default(), closer })
    }

    /// The connection to `HOST:PORT`, made if there is none.
    ///
    /// # Errors
    /// [`PoolError::Fabric`].
    pub fn endpoint(&self, address: &str) -> Result<Arc<RdmaEndpoint>, PoolError> {
        let known = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner).get(address).cloned();
        if let Some(endpoint) = known {
            return Ok(endpoint);
        }
        let options = ClientOptions {
            streams: STREAMS,
            mode: if self.polling { Mode::Polling } else { Mode::Blocking },
            timeout: TIMEOUT,
            role: Role::Client,
            pool: self.pool,
            key: self.key.clone(),
            ..ClientOptions::default()
        };
        // Writes go by message: what is put must not change after it was sealed, and a region's page may move.
        let rdma = RdmaOptions { enabled: self.rdma, writes: false, ..RdmaOptions::default() };
        let endpoint = Arc::new(RdmaEndpoint::connect(address, options, rdma)?);
        let mut all = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::clone(all.entry(address.to_owned()).or_insert(endpoint)))
    }

    /// What a node has given over a connection.
    pub fn attached(&self, endpoint: Arc<RdmaEndpoint>, handle: Handle, address: &str) -> Attached {
        let of = Arc::clone(&endpoint) as Arc<dyn Endpoint>;
        Attached { endpoint, handle, address: address.to_owned(), _lease: self.closer.lease(of, handle) }
    }

    /// Drops a connection that failed.
    pub fn forget(&self, address: &str) {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner).remove(address);
    }
}

/// Asks a node over a connection.
///
/// # Errors
/// [`PoolError::Refused`] with the node's words; [`PoolError::Fabric`].
pub fn call(endpoint: &RdmaEndpoint, request: &Request) -> Result<Reply, PoolError> {
    match decode(&endpoint.call(&encode(request)?)?)? {
        Reply::Error { code, text } => Err(PoolError::Refused { code, text }),
        reply => Ok(reply),
    }
}

/// Asks for a handle.
///
/// # Errors
/// As [`call`].
pub fn call_for_handle(endpoint: &RdmaEndpoint, request: &Request) -> Result<Handle, PoolError> {
    match call(endpoint, request)? {
        Reply::Granted { handle } => Ok(handle),
        Reply::Opened(opened) => Ok(opened.handle),
        other => Err(unexpected("a handle", &other)),
    }
}

fn read_key(path: &Path) -> Result<PoolKey, PoolError> {
    let failed =
        |source| PoolError::Stream { what: format!("reading the pool key {}", path.display()), source };
    let text = std::fs::read_to_string(path).map_err(failed)?;
    text.parse().map_err(|error: NotAKey| failed(std::io::Error::new(std::io::ErrorKind::InvalidData, error)))
}

impl From<FabricError> for PoolError {
    fn from(error: FabricError) -> Self {
        Self::Fabric(Box::new(error))
    }
}
