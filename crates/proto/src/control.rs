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
    KV_KEYS_MAX, KV_SPACES_AT_ONCE, KvBlock, KvDiskStatus, KvEvent, KvExpects, KvHeld, KvInspected,
    KvKeptStatus, KvKey, KvNamespaceStatus, KvParent, KvPlace, KvRacksStatus, KvReply, KvRequest, KvSeen,
    KvSlot, KvStatus, KvSwap, KvSwapped,
};
pub use locks::{LOCKS_KEPT_MAX, LockInfo, LockMode, LockPerson, LockTable};
pub use message::{Advice, AllocationKind, Copies, Mapped, Opened, PutStarted, PutTarget, Reply, Request};
pub use notice::{Notice, NoticeReply, ProbeRange};
pub use object::{FormerPool, Home, Mending, ObjectInfo, ObjectState, Placement, RenameTarget};
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
    use hinterland_types::{ByteRange, GlobalAddress, Handle, PageNumber, Rights};
    use proptest::prelude::*;

    #[test]
    fn a_message_with_bytes_left_over_is_refused() {
        let mut bytes = encode(&Request::Ping).unwrap();
        assert_eq!(decode::<Request>(&bytes), Ok(Request::Ping));
        bytes.push(0);
        assert!(matches!(decode::<Request>(&bytes), Err(ControlError::Malformed { .. })));
    }

    /// The bytes of a message that ends in `zeros` numbers that are 0, with others in their place.
    fn ending_in(message: &Request, zeros: usize, numbers: &[u64]) -> Vec<u8> {
        let mut bytes = encode(message).unwrap();
        assert_eq!(bytes.split_off(bytes.len() - zeros), vec![0; zeros]);
        numbers.iter().for_each(|number| bytes.extend(postcard::to_allocvec(number).unwrap()));
        bytes
    }

    #[test]
    fn numbers_that_their_types_do_not_allow_are_no_message() {
        let (handle, rights, range) = (Handle(0), Rights::READ, ByteRange::default());
        let diminish = Request::Diminish { handle, rights, range };
        let whole = decode::<Request>(&ending_in(&diminish, 2, &[1, u64::MAX - 1]));
        let range = ByteRange::new(1, u64::MAX - 1).unwrap();
        assert_eq!(whole, Ok(Request::Diminish { handle, rights, range }));
        for (offset, bytes) in [(1, u64::MAX), (u64::MAX, 1), (100, u64::MAX - 50)] {
            let said = decode::<Request>(&ending_in(&diminish, 2, &[offset, bytes]));
            assert!(matches!(said, Err(ControlError::Malformed { .. })), "{said:?}");
        }
        let resolve = Request::Resolve { address: GlobalAddress::default() };
        let last = GlobalAddress::new((1 << 46) - 1).unwrap();
        let said = decode::<Request>(&ending_in(&resolve, 1, &[last.raw()]));
        assert_eq!(said, Ok(Request::Resolve { address: last }));
        // The second has a page of the pool once its highest bits are dropped.
        for raw in [1 << 46, 1 << 53 | 1 << 21, u64::MAX] {
            let said = decode::<Request>(&ending_in(&resolve, 1, &[raw]));
            assert!(matches!(said, Err(ControlError::Malformed { .. })), "{said:?}");
        }
        let page = |raw: u32| postcard::from_bytes::<PageNumber>(&postcard::to_allocvec(&raw).unwrap());
        assert_eq!(page(PageNumber::COUNT - 1), Ok(PageNumber::new(PageNumber::COUNT - 1).unwrap()));
        assert!(page(PageNumber::COUNT).is_err());
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
