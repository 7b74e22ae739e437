//! An end of a channel before it is used: what it is made of, and its two halves.

use crate::error::ChannelError;
use crate::fate::Fate;
use crate::line::Line;
use crate::memory::{ChannelFile, Lane, Rings, Side};
use crate::meter::Meter;
use crate::network::intake::Intake;
use crate::network::parcel::DELAY_NS_MAX;
use crate::network::pump::Drain;
use crate::network::socket::Socket;
use crate::receiver::{Receiver, Writer};
use crate::sender::{Reader, Sender};
use hinterland_os::OsError;
use hinterland_os::socket::UnixStream;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// One end of a channel in which this end has sent and taken nothing yet. The other end may have sent already.
#[derive(Debug)]
pub struct Channel {
    means: Means,
}

/// What an end is made of.
#[derive(Debug)]
pub(crate) enum Means {
    /// A file in shared memory, and the sockets of the direction in which this end sends and of the other one.
    Shared { file: ChannelFile, side: Side, outward: UnixStream, inward: UnixStream },
    /// A connection behind its handshake.
    Network { stream: TcpStream, network: Network },
}

/// What was agreed on for a connection, and chosen for this end of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Network {
    pub rings: Rings,
    pub send_sequence: u64,
    pub receive_sequence: u64,
    pub silence_max: Duration,
    pub delay_out: Duration,
    pub delay_in: Duration,
}

impl Channel {
    pub(crate) fn shared(file: ChannelFile, side: Side, outward: UnixStream, inward: UnixStream) -> Self {
        Self { means: Means::Shared { file, side, outward, inward } }
    }

    pub(crate) fn network(stream: TcpStream, network: Network) -> Self {
        Self { means: Means::Network { stream, network } }
    }

    pub(crate) fn into_means(self) -> Means {
        self.means
    }

    /// Whether both ends are on one host, so that nothing but wake-ups needs the system.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        matches!(self.means, Means::Shared { .. })
    }

    /// Numbers of the sockets whose end tells the other side that this one is gone. They stay the same when the channel is split, for as long
    /// as either half lives: a child of a fork closes them, since it would keep the other side waiting.
    #[must_use]
    pub fn sockets(&self) -> Vec<RawFd> {
        match &self.means {
            Means::Shared { outward, inward, .. } => {
                [outward, inward].map(|socket| socket.as_fd().as_raw_fd()).to_vec()
            }
            Means::Network { stream, .. } => vec![stream.as_raw_fd()],
        }
    }

    /// The two halves, which different threads may use. Over a network this starts the thread that sends.
    ///
    /// # Errors
    /// [`ChannelError::Os`] if memory cannot be mapped, or there are no descriptors or threads left.
    pub fn split(self) -> Result<(Sender, Receiver), ChannelError> {
        match self.means {
            Means::Shared { file, side, outward, inward } => split_shared(&file, side, outward, inward),
            Means::Network { stream, network } => split_network(stream, network),
        }
    }
}

fn split_shared(
    file: &ChannelFile,
    side: Side,
    outward: UnixStream,
    inward: UnixStream,
) -> Result<(Sender, Receiver), ChannelError> {
    let (out, into) = file.map(side)?;
    let body_bytes_max = file.rings().body_bytes_max;
    let [outward, inward] = [outward, inward].map(|socket| Arc::new(Line::new(socket)));
    let fate = Fate::of(vec![Arc::clone(&outward), Arc::clone(&inward)]);
    let sender = Sender::new(out, Reader::Peer(outward), body_bytes_max, fate.clone(), Arc::default());
    let receiver = Receiver::new(into, Writer::Peer(inward), body_bytes_max, fate);
    Ok((sender, receiver))
}

fn split_network(stream: TcpStream, network: Network) -> Result<(Sender, Receiver), ChannelError> {
    let Rings { ring_bytes, body_bytes_max } = network.rings.check()?;
    let prepared = Socket::prepare(stream, network.silence_max);
    let prepared =
        prepared.map_err(|error| OsError::system("setsockopt", "the connection of a channel", error))?;
    let socket = Arc::new(prepared);
    let fate = Fate::default();
    let meter = Arc::<Meter>::default();
    let (out, into) = (Lane::private(ring_bytes)?, Lane::private(ring_bytes)?);
    let delay_ns = u32::try_from(network.delay_out.as_nanos()).unwrap_or(u32::MAX).min(DELAY_NS_MAX);
    let drain = Drain::start(
        out.clone(),
        Arc::clone(&socket),
        network.send_sequence,
        delay_ns,
        fate.clone(),
        Arc::clone(&meter),
    )?;
    let intake = Intake::new(socket, network.receive_sequence, network.delay_in);
    let sender = Sender::new(out, Reader::Drain(drain), body_bytes_max, fate.clone(), meter);
    let receiver = Receiver::new(into, Writer::Intake(Box::new(intake)), body_bytes_max, fate);
    Ok((sender, receiver))
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
    let maker = Channel::shared(maker_file, Side::Maker, maker_out, maker_in);
    Ok((maker, Channel::shared(taker_file, Side::Taker, taker_out, taker_in)))
}
