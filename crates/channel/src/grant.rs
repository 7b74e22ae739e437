//! What follows the handshake within a host: the GPU node hands the file and the second socket over.

use crate::channel::Channel;
use crate::error::ChannelError;
use crate::memory::{ChannelFile, Rings, Side};
use hinterland_os::OsError;
use hinterland_os::socket::UnixStream;
use std::os::fd::AsFd;
use std::time::Instant;

/// The bytes that the descriptors come with.
const GRANT: [u8; 8] = *b"HLGRANT1";

/// Makes the file of a channel and hands it to the client at the other end.
pub(crate) fn give(connection: UnixStream, rings: Rings) -> Result<Channel, ChannelError> {
    let file = ChannelFile::create(rings)?;
    let (outward, theirs) = UnixStream::pair()?;
    let theirs = std::os::fd::OwnedFd::from(theirs);
    let duplicate = file.duplicate()?;
    connection.send_all(&GRANT, &[duplicate.as_fd(), theirs.as_fd()])?;
    Ok(Channel::shared(file, Side::Maker, outward, connection))
}

/// Takes what the GPU node hands over, and believes nothing of it.
pub(crate) fn take(
    connection: UnixStream,
    address: &str,
    deadline: Instant,
) -> Result<Channel, ChannelError> {
    let failed = |reason: String| ChannelError::Connect { address: address.to_owned(), reason };
    let mut bytes = [0; GRANT.len()];
    let mut filled = 0;
    let mut descriptors = Vec::new();
    while filled < bytes.len() {
        if Instant::now() >= deadline {
            return Err(failed("it hands no channel over".to_owned()));
        }
        match connection.receive(&mut bytes[filled..], &mut descriptors) {
            Ok(0) => return Err(failed("it went away before it handed a channel over".to_owned())),
            Ok(more) => filled += more,
            Err(error) if error.is_would_block() => {}
            Err(error) => return Err(failed(error.to_string())),
        }
    }
    let count = descriptors.len();
    let Ok([file, socket]) = <[_; 2]>::try_from(descriptors) else {
        return Err(failed(format!("it handed {count} descriptors over in place of 2")));
    };
    if bytes != GRANT {
        return Err(failed("what it handed over is no channel".to_owned()));
    }
    let inward = UnixStream::from_descriptor(socket);
    // Only a socket of this kind has such; it closes with the peer, and a descriptor of another kind might not.
    inward
        .peer_credentials()
        .map_err(|error: OsError| failed(format!("its second socket is none: {error}")))?;
    Ok(Channel::shared(ChannelFile::open(file)?, Side::Taker, connection, inward))
}
