//! An end of a channel before it is used: what it is made of, and its two halves.

use crate::error::ChannelError;
use crate::fate::Fate;
use crate::line::Line;
use crate::memory::{ChannelFile, Rings, Side};
use crate::receiver::Receiver;
use crate::sender::Sender;
use hinterland_os::socket::UnixStream;

/// One end of a channel in which this end has sent and taken nothing yet.
#[derive(Debug)]
pub struct Channel {
    file: ChannelFile,
    side: Side,
    /// The socket of the direction in which this end sends.
    outward: UnixStream,
    /// The socket of the direction from which it receives.
    inward: UnixStream,
}

impl Channel {
    /// The two halves, which different threads may use.
    ///
    /// # Errors
    /// [`ChannelError::Os`] if memory cannot be mapped.
    pub fn split(self) -> Result<(Sender, Receiver), ChannelError> {
        let (outward, inward) = self.file.map(self.side)?;
        let body_bytes_max = self.file.rings().body_bytes_max;
        let fate = Fate::default();
        let sender = Sender::new(outward, Line::new(self.outward)?, body_bytes_max, fate.clone());
        let receiver = Receiver::new(inward, Line::new(self.inward)?, body_bytes_max, fate);
        Ok((sender, receiver))
    }
}

/// Both ends of a channel in shared memory, within this process.
///
/// # Errors
/// [`ChannelError::BadOption`], [`ChannelError::Os`].
pub fn pair(rings: Rings) -> Result<(Channel, Channel), ChannelError> {
    let maker_file = ChannelFile::create(rings)?;
    let taker_file = ChannelFile::open(maker_file.duplicate()?)?;
    let (maker_out, taker_in) = UnixStream::pair()?;
    let (maker_in, taker_out) = UnixStream::pair()?;
    let maker = Channel { file: maker_file, side: Side::Maker, outward: maker_out, inward: maker_in };
    let taker = Channel { file: taker_file, side: Side::Taker, outward: taker_out, inward: taker_in };
    Ok((maker, taker))
}
