//! Control messages: what a session asks of a node, and what a node asks of another.
//!
//! They travel as the bodies of `Call` and `Reply` frames, encoded with postcard. A descriptor that
//! belongs to a reply goes beside it over the unix socket and is named in the reply's documentation.

mod kv;
mod locks;
mod message;
mod notice;
mod object;
mod pages;
mod peer;
mod status;

pub use kv::{
    KV_KEYS_MAX, KvBlock, KvDiskStatus, KvEvent, KvExpects, KvHeld, KvInspected, KvKeptStatus, KvKey,
    KvNamespaceStatus, KvParent, KvPlace, KvRacksStatus, KvReply, KvRequest, KvSeen, KvSlot, KvStatus,
    KvSwap, KvSwapped,
};
pub use locks::{LOCKS_KEPT_MAX, LockInfo, LockMode, LockPerson, LockTable};
pub use message::{Advice, AllocationKind, Copies, Mapped, Opened, PutStarted, PutTarget, Reply, Request};
pub use notice::{Notice, NoticeReply, ProbeRange};
pub use object::{Home, Mending, ObjectInfo, ObjectState, Placement, RenameTarget};
pub use pages::{HotPage, PageHeat, PagesOn, PagesOpened};
pub use peer::{PeerReply, PeerRequest};
pub use status::{CacheStatus, Counters, DirectoryLeader, MemberInfo, NodeStatus, Problem, SharedDirectory};

use hinterland_types::limits::CONTROL_BYTES_MAX;
use serde::{Serialize, de::DeserializeOwned};

/// A control message that cannot be encoded or understood.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone)]
pub enum ControlError {
    /// The message is longer than a control message may be.
    #[error(
        "a control message of {bytes} bytes is over the limit of {CONTROL_BYTES_MAX} (hint: ask for fewer entries at once)"
    )]
    TooLong {
        /// Bytes of the message.
        bytes: usize,
    },
    /// The bytes are no message of this version.
    #[error(
        "a control message cannot be understood: {reason} (hint: both sides must be of the same release)"
    )]
    Malformed {
        /// What the decoder said.
        reason: String,
    },
}

/// Encodes a message.
///
/// # Errors
/// [`ControlError::TooLong`] above [`CONTROL_BYTES_MAX`].
pub fn encode<M: Serialize>(message: &M) -> Result<Vec<u8>, ControlError> {
    let bytes = postcard::to_stdvec(message)
        .map_err(|error| ControlError::Malformed { reason: error.to_string() })?;
    if bytes.len() > CONTROL_BYTES_MAX as usize {
        return Err(ControlError::TooLong { bytes: bytes.len() });
    }
    Ok(bytes)
}

/// Decodes a message; every byte must be used.
///
/// # Errors
/// [`ControlError`] if the bytes are too many or no message.
pub fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Result<M, ControlError> {
    if bytes.len() > CONTROL_BYTES_MAX as usize {
        return Err(ControlError::TooLong { bytes: bytes.len() });
    }
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(ControlError::Malformed { reason: format!("{} bytes left over", rest.len()) }),
        Err(error) => Err(ControlError::Malformed { reason: error.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_message_with_bytes_left_over_is_refused() {
        let mut bytes = encode(&Request::Ping).unwrap();
        assert_eq!(decode::<Request>(&bytes), Ok(Request::Ping));
        bytes.push(0);
        assert!(matches!(decode::<Request>(&bytes), Err(ControlError::Malformed { .. })));
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic_the_decoder(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = decode::<Request>(&bytes);
            let _ = decode::<Reply>(&bytes);
            let _ = decode::<PeerRequest>(&bytes);
            let _ = decode::<Notice>(&bytes);
        }
    }
}
