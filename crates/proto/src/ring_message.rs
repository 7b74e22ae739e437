//! The 56-byte bodies of ring messages: short requests that a node answers without leaving the rack.
//!
//! All integers are little-endian.
//!
//! | offset | bytes | request | response |
//! | --- | --- | --- | --- |
//! | 0 | 1 | operation: 17 ping, 18 allocate, 19 free, 20 lock, 21 unlock | operation |
//! | 1 | 1 | lock: 0 read, 1 write; allocate: 0 for the session, 1 kept | 0 |
//! | 2 | 2 | 0 | 0 |
//! | 4 | 4 | 0 | 0, or an `errno` value |
//! | 8 | 8 | address (free, lock, unlock), bytes (allocate), any (ping) | address (allocate), echo (ping) |
//! | 16 | 8 | 0 | bytes of the piece (allocate) |
//! | 24 | 32 | 0 | 0 |
//!
//! Operations start at 16, because lower first bytes are messages of the shared-memory fabric.
//! A lock over a ring is tried once and refused with `EAGAIN`-like `ETIMEDOUT` if it is taken; waiting is
//! done by asking over the socket.

use crate::control::{AllocationKind, LockMode};
use hinterland_types::GlobalAddress;

/// Bytes of a body.
pub const RING_BODY_BYTES: usize = 56;

/// A short request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingRequest {
    /// Nothing; the value comes back.
    Ping(u64),
    /// Bytes from the node's segment.
    Allocate(u64, AllocationKind),
    /// Gives them back.
    Free(GlobalAddress),
    /// Tries to take a lock.
    Lock(GlobalAddress, LockMode),
    /// Gives it back.
    Unlock(GlobalAddress),
}

/// The answer: `code` is 0 or an `errno` value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RingResponse {
    /// 0, or an `errno` value.
    pub code: i32,
    /// Address or echo.
    pub value: u64,
    /// Size of a piece.
    pub bytes: u64,
}

impl RingRequest {
    /// The body.
    pub fn to_body(self) -> [u8; RING_BODY_BYTES] {
        let (operation, mode, value) = match self {
            Self::Ping(value) => (17, 0, value),
            Self::Allocate(bytes, kind) => (18, u8::from(kind == AllocationKind::Kept), bytes),
            Self::Free(address) => (19, 0, address.raw()),
            Self::Lock(address, mode) => (20, u8::from(mode == LockMode::Write), address.raw()),
            Self::Unlock(address) => (21, 0, address.raw()),
        };
        let mut body = [0; RING_BODY_BYTES];
        body[0] = operation;
        body[1] = mode;
        body[8..16].copy_from_slice(&value.to_le_bytes());
        body
    }

    /// Reads a body; `None` if it is no request.
    pub fn parse(body: &[u8; RING_BODY_BYTES]) -> Option<Self> {
        let value = u64_at(body, 8);
        let address = || GlobalAddress::new(value).ok();
        Some(match (body[0], body[1]) {
            (17, 0) => Self::Ping(value),
            (18, 0) => Self::Allocate(value, AllocationKind::Session),
            (18, 1) => Self::Allocate(value, AllocationKind::Kept),
            (19, 0) => Self::Free(address()?),
            (20, 0) => Self::Lock(address()?, LockMode::Read),
            (20, 1) => Self::Lock(address()?, LockMode::Write),
            (21, 0) => Self::Unlock(address()?),
            _ => return None,
        })
    }
}

impl RingResponse {
    /// The body.
    pub fn to_body(self, operation: u8) -> [u8; RING_BODY_BYTES] {
        let mut body = [0; RING_BODY_BYTES];
        body[0] = operation;
        body[4..8].copy_from_slice(&self.code.to_le_bytes());
        body[8..16].copy_from_slice(&self.value.to_le_bytes());
        body[16..24].copy_from_slice(&self.bytes.to_le_bytes());
        body
    }

    /// Reads a body.
    pub fn parse(body: &[u8; RING_BODY_BYTES]) -> Self {
        let code = i32::from_le_bytes([body[4], body[5], body[6], body[7]]);
        Self { code, value: u64_at(body, 8), bytes: u64_at(body, 16) }
    }
}

fn u64_at(body: &[u8; RING_BODY_BYTES], offset: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&body[offset..offset + 8]);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_survive_their_bodies() {
        let address = GlobalAddress::new(0x3fff_ffff_ffff).unwrap();
        for request in [
            RingRequest::Ping(7),
            RingRequest::Allocate(100, AllocationKind::Kept),
            RingRequest::Free(address),
            RingRequest::Lock(address, LockMode::Write),
            RingRequest::Unlock(address),
        ] {
            assert_eq!(RingRequest::parse(&request.to_body()), Some(request));
        }
    }

    proptest! {
        #[test]
        fn random_bodies_never_panic(body in proptest::collection::vec(any::<u8>(), RING_BODY_BYTES)) {
            let body: [u8; RING_BODY_BYTES] = body.try_into().unwrap();
            let _ = RingRequest::parse(&body);
            let _ = RingResponse::parse(&body);
        }
    }
}
