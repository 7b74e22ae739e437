//! Both rings of a session: one for requests that stay in the rack, one for those that may take long.

use crate::session::unexpected;
use crate::{Pool, PoolError};
use hinterland_fabric::Endpoint;
use hinterland_fabric::shm::{FarEndpoint, ShmEndpoint};
use hinterland_proto::control::{Reply, Request, decode, encode};
use std::time::Duration;

/// How long a call may take: as long as any operation that other nodes are asked for.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Room for an answer; what may be longer (listings) is asked for with more.
const ROOM_BYTES: usize = 4096;
/// Room for answers with lists.
const LONG_ROOM_BYTES: usize = 256 << 10;

/// Calls without a system call each; may be used by many threads at once.
///
/// A request that the node answers by itself goes over the near ring, one that may make it ask other nodes, or wait for
/// somebody, over the far ring. With `HINTERLAND_SINGLE_RING=1` all go over the near ring, each in its turn.
pub struct Rings {
    near: ShmEndpoint,
    far: Option<FarEndpoint>,
}

impl Rings {
    pub(crate) fn open(pool: &Pool) -> Result<Self, PoolError> {
        let is_single = std::env::var_os("HINTERLAND_SINGLE_RING").is_some_and(|value| value == "1");
        let far = if is_single { None } else { Some(open_far(pool)?) };
        Ok(Self { near: pool.ring()?, far })
    }

    /// The same with everything on the near ring, to show what the far one is for.
    ///
    /// # Errors
    /// As [`Pool::rings`].
    pub fn open_single(pool: &Pool) -> Result<Self, PoolError> {
        Ok(Self { near: pool.ring()?, far: None })
    }

    /// Asks the node, and waits for its answer. What needs a descriptor is refused.
    ///
    /// # Errors
    /// [`PoolError::Refused`] with the node's words; [`PoolError::Fabric`] if the ring is too small for the answer, or broken.
    pub fn call(&self, request: &Request) -> Result<Reply, PoolError> {
        let body = encode(request)?;
        let answer = match &self.far {
            Some(far) if request.may_take_long() => {
                let has_list = matches!(request, Request::List { .. } | Request::Members);
                let room = if has_list { LONG_ROOM_BYTES } else { ROOM_BYTES };
                far.call_within(&body, room, TIMEOUT)?
            }
            _ => self.near.call_within(&body, TIMEOUT)?,
        };
        match decode(&answer)? {
            Reply::Error { code, text } => Err(PoolError::Refused { code, text }),
            reply => Ok(reply),
        }
    }

    /// The near ring.
    pub const fn near(&self) -> &ShmEndpoint {
        &self.near
    }

    /// The far ring, if there is one.
    pub const fn far(&self) -> Option<&FarEndpoint> {
        self.far.as_ref()
    }
}

fn open_far(pool: &Pool) -> Result<FarEndpoint, PoolError> {
    match pool.session().call_with(&Request::OpenFarRing, &[])? {
        (Reply::FarRingOpened { slots, data_bytes }, mut descriptors) if descriptors.len() == 1 => {
            // The length was just checked.
            let descriptor = descriptors.remove(0);
            Ok(FarEndpoint::open(pool.session().node(), descriptor, slots, data_bytes)?)
        }
        (other, _) => Err(unexpected("FarRingOpened with a descriptor", &other)),
    }
}
