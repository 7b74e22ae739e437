//! The one form in which a node says no: an `errno` value for programs and words for people.

use crate::capability::CapabilityError;
use crate::holdings::HoldingError;
use hinterland_directory::DirectoryError;
use hinterland_directory::locks::LockRefusal;
use hinterland_fabric::FabricError;
use hinterland_os::OsError;
use hinterland_pool::PoolError;
use hinterland_proto::control::{ControlError, PeerReply, Reply};
use hinterland_proto::{ErrorCode, HandshakeError, RefusalCode, RemoteError};

/// A request was refused or failed; nothing changed unless the text says so.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone)]
#[error("{text}")]
pub struct Refused {
    /// An `errno` value that fits.
    pub code: i32,
    /// What failed, with what, and what to do.
    pub text: String,
}

impl Refused {
    /// Says no.
    pub fn new(code: i32, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// The reply to a session.
    pub fn reply(self) -> Reply {
        Reply::Error { code: self.code, text: self.text }
    }

    /// The reply to a peer.
    pub fn peer_reply(self) -> PeerReply {
        PeerReply::Error { code: self.code, text: self.text }
    }
}

/// `errno` values that replies carry.
pub mod errno {
    /// No such name.
    pub const ENOENT: i32 = 2;
    /// Bytes are lost or wrong.
    pub const EIO: i32 = 5;
    /// Not at this moment.
    pub const EAGAIN: i32 = 11;
    /// Somebody is using it.
    pub const EBUSY: i32 = 16;
    /// It lies elsewhere.
    pub const EREMCHG: i32 = 78;
    /// No such handle.
    pub const EBADF: i32 = 9;
    /// No memory.
    pub const ENOMEM: i32 = 12;
    /// Not allowed.
    pub const EACCES: i32 = 13;
    /// Not without a right.
    pub const EPERM: i32 = 1;
    /// Nothing may be written there.
    pub const EROFS: i32 = 30;
    /// The name is taken.
    pub const EEXIST: i32 = 17;
    /// Not in one step.
    pub const EXDEV: i32 = 18;
    /// A name is too long.
    pub const ENAMETOOLONG: i32 = 36;
    /// The request makes no sense.
    pub const EINVAL: i32 = 22;
    /// Both would wait for ever.
    pub const EDEADLK: i32 = 35;
    /// Whoever held it is taken for dead.
    pub const EOWNERDEAD: i32 = 130;
    /// No room.
    pub const ENOSPC: i32 = 28;
    /// Cannot be done here.
    pub const ENOTSUP: i32 = 95;
    /// Another node leads the directory, or may.
    pub const ESTALE: i32 = 116;
    /// Waited too long.
    pub const ETIMEDOUT: i32 = 110;
    /// The other node is of another release.
    pub const EPROTO: i32 = 71;
    /// The other node does not answer.
    pub const EHOSTUNREACH: i32 = 113;
}

impl From<CapabilityError> for Refused {
    fn from(error: CapabilityError) -> Self {
        let code = match error {
            CapabilityError::Unknown(_) => errno::EBADF,
            CapabilityError::Rights { .. } => errno::EACCES,
            CapabilityError::Range { .. } => errno::EINVAL,
            CapabilityError::Full => errno::ENOSPC,
        };
        Self::new(code, error.to_string())
    }
}

impl From<HoldingError> for Refused {
    fn from(error: HoldingError) -> Self {
        let code = match error {
            HoldingError::Full { .. } => errno::ENOSPC,
            HoldingError::Absent(_) => errno::ENOENT,
            HoldingError::State { .. } => errno::EINVAL,
            HoldingError::Lent(_) | HoldingError::Written(_) => errno::EBUSY,
            HoldingError::Exists(_) => errno::EEXIST,
            HoldingError::Os(_) | HoldingError::Header { .. } => errno::EIO,
        };
        Self::new(code, error.to_string())
    }
}

impl From<LockRefusal> for Refused {
    fn from(error: LockRefusal) -> Self {
        let code = match error {
            LockRefusal::Busy => errno::ETIMEDOUT,
            LockRefusal::Held | LockRefusal::NotHeld => errno::EINVAL,
            LockRefusal::UpgradeConflict => errno::EDEADLK,
            LockRefusal::Full(_) => errno::ENOSPC,
            LockRefusal::CutOff | LockRefusal::Stranger => errno::EHOSTUNREACH,
            LockRefusal::Lost => errno::EOWNERDEAD,
            LockRefusal::Elsewhere => errno::ENOENT,
        };
        Self::new(code, error.to_string())
    }
}

impl From<DirectoryError> for Refused {
    fn from(error: DirectoryError) -> Self {
        let text = error.to_string();
        let code = match error {
            DirectoryError::UnknownName { .. }
            | DirectoryError::UnknownObject { .. }
            | DirectoryError::UnownedPage { .. } => errno::ENOENT,
            DirectoryError::NameTaken { .. }
            | DirectoryError::NameBeingWritten { .. }
            | DirectoryError::NameIsFolder { .. } => errno::EEXIST,
            DirectoryError::NameBeingMade { .. } => errno::EAGAIN,
            DirectoryError::FolderTooLarge { .. } => errno::EXDEV,
            DirectoryError::NameTooLong { .. } => errno::ENAMETOOLONG,
            DirectoryError::LargerThanPool { .. }
            | DirectoryError::NotEnoughRoom { .. }
            | DirectoryError::NotEnoughNodes { .. }
            | DirectoryError::NoAddresses { .. } => errno::ENOSPC,
            _ => errno::EINVAL,
        };
        Self::new(code, text)
    }
}

impl From<FabricError> for Refused {
    fn from(error: FabricError) -> Self {
        let code = match &error {
            // It is there: nobody is to start it again, or to wait for it.
            FabricError::Handshake { source: HandshakeError::Refused(refusal), .. }
                if refusal.code == RefusalCode::Version =>
            {
                errno::EPROTO
            }
            error if error.is_connection_lost() => errno::EHOSTUNREACH,
            _ => errno::EIO,
        };
        Self::new(code, error.to_string())
    }
}

impl From<OsError> for Refused {
    fn from(error: OsError) -> Self {
        Self::new(error.errno().unwrap_or(errno::EIO), error.to_string())
    }
}

impl From<ControlError> for Refused {
    fn from(error: ControlError) -> Self {
        Self::new(errno::EINVAL, error.to_string())
    }
}

impl From<PoolError> for Refused {
    fn from(error: PoolError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<Refused> for RemoteError {
    fn from(refused: Refused) -> Self {
        let code = match refused.code {
            errno::EBADF => ErrorCode::UNKNOWN_HANDLE,
            errno::EACCES => ErrorCode::RIGHTS,
            errno::EINVAL => ErrorCode::RANGE,
            errno::ENOTSUP => ErrorCode::UNSUPPORTED,
            errno::ENOSPC => ErrorCode::LIMIT,
            errno::EREMCHG => ErrorCode::PAGE_MOVED,
            errno::EAGAIN => ErrorCode::PAGE_MOVING,
            _ => ErrorCode::INTERNAL,
        };
        Self::new(code, refused.text)
    }
}
