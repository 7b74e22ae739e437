//! Handing a channel over to a child process, before anything was sent or taken.

use crate::channel::{Channel, Means, Network};
use crate::error::ChannelError;
use crate::memory::{ChannelFile, Rings, Side};
use hinterland_os::socket::UnixStream;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

/// First word of every state, with the version of all that follows.
const MARK: &str = "channel-1";
/// Most descriptors of a channel.
const DESCRIPTORS_MAX: usize = 3;

impl Channel {
    /// Takes the channel apart: its descriptors in their order, and what else there is to know about it, as a short text
    /// of letters, digits, spaces and hyphens. [`from_descriptors`](Self::from_descriptors) makes it whole again.
    ///
    /// # Errors
    /// [`ChannelError::Os`] without descriptors left.
    pub fn into_descriptors(self) -> Result<(Vec<OwnedFd>, String), ChannelError> {
        match self.into_means() {
            Means::Shared { file, side, outward, inward } => {
                let side = match side {
                    Side::Maker => "maker",
                    Side::Taker => "taker",
                };
                let descriptors = vec![file.duplicate()?, outward.into(), inward.into()];
                Ok((descriptors, format!("{MARK} shared {side}")))
            }
            Means::Network { stream, network } => {
                let Network { rings, send_sequence, receive_sequence, silence_max, delay_out, delay_in } =
                    network;
                let Rings { ring_bytes, body_bytes_max } = rings;
                let [silence, delay_out, delay_in] =
                    [silence_max, delay_out, delay_in].map(|time| time.as_nanos());
                let state = format!(
                    "{MARK} network {ring_bytes} {body_bytes_max} {send_sequence} {receive_sequence} \
                     {silence} {delay_out} {delay_in}"
                );
                Ok((vec![stream.into()], state))
            }
        }
    }

    /// The channel that another process took apart.
    ///
    /// # Errors
    /// [`ChannelError::NoHandover`], [`ChannelError::Broken`], [`ChannelError::Os`].
    pub fn from_descriptors(descriptors: Vec<OwnedFd>, state: &str) -> Result<Self, ChannelError> {
        let bad = || no_handover(format!("{} descriptors with state {state:?}", descriptors.len()));
        let words: Vec<&str> = state.split(' ').collect();
        match words.as_slice() {
            [MARK, "shared", side @ ("maker" | "taker")] => {
                let side = if *side == "maker" { Side::Maker } else { Side::Taker };
                let count = descriptors.len();
                let [file, outward, inward] = <[OwnedFd; 3]>::try_from(descriptors)
                    .map_err(|_| no_handover(format!("{count} descriptors in place of 3")))?;
                let [outward, inward] = [outward, inward].map(UnixStream::from_descriptor);
                Ok(Self::shared(ChannelFile::open(file)?, side, outward, inward))
            }
            [MARK, "network", numbers @ ..] if descriptors.len() == 1 => {
                let numbers: Option<Vec<u64>> = numbers.iter().map(|word| word.parse().ok()).collect();
                let Some(&[ring, body, send_sequence, receive_sequence, silence, delay_out, delay_in]) =
                    numbers.as_deref()
                else {
                    return Err(bad());
                };
                let length = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
                let rings = Rings { ring_bytes: length(ring), body_bytes_max: length(body) }.check()?;
                let [silence_max, delay_out, delay_in] =
                    [silence, delay_out, delay_in].map(Duration::from_nanos);
                let network =
                    Network { rings, send_sequence, receive_sequence, silence_max, delay_out, delay_in };
                let stream = descriptors.into_iter().map(TcpStream::from).next();
                stream
                    .map(|stream| Self::network(stream, network))
                    .ok_or_else(|| no_handover(state.to_owned()))
            }
            _ => Err(bad()),
        }
    }
}

/// A channel on its way into a child process.
#[derive(Debug)]
pub struct Handover {
    descriptors: Vec<OwnedFd>,
    state: String,
}

impl Handover {
    /// Takes a channel apart for a child.
    ///
    /// # Errors
    /// As [`Channel::into_descriptors`].
    pub fn new(channel: Channel) -> Result<Self, ChannelError> {
        let (descriptors, state) = channel.into_descriptors()?;
        Ok(Self { descriptors, state })
    }

    /// Has the child inherit the descriptors, and no other child that is started meanwhile. Returns the text to give to it, as
    /// an argument say, from which [`inherit`] makes the channel. Keep this value until the child is spawned, and drop it
    /// then: as long as it lives, the client does not notice the end of the child.
    pub fn pass_to(&self, command: &mut Command) -> String {
        let numbers: Vec<RawFd> = self.descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let list: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        let mut fixed = [-1; DESCRIPTORS_MAX];
        for (to, from) in fixed.iter_mut().zip(numbers) {
            *to = from;
        }
        let keep_open = move || {
            for number in fixed.into_iter().filter(|&number| number >= 0) {
                // SAFETY: plain values; a descriptor that is not open is refused.
                if unsafe { libc::fcntl(number, libc::F_SETFD, 0) } < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        };
        // SAFETY: between fork and exec the closure makes system calls only, on numbers that it holds by value.
        unsafe { command.pre_exec(keep_open) };
        format!("{} {}", list.join(","), self.state)
    }
}

/// The channel that the parent of this process handed over with [`Handover::pass_to`]; `text` is what it returned. Call
/// it once.
///
/// # Errors
/// [`ChannelError::NoHandover`] for another text, or descriptors that are not open; as
/// [`Channel::from_descriptors`].
pub fn inherit(text: &str) -> Result<Channel, ChannelError> {
    let bad = || no_handover(format!("{text:?}"));
    let (list, state) = text.split_once(' ').ok_or_else(bad)?;
    let numbers: Option<Vec<RawFd>> = list.split(',').map(|number| number.parse().ok()).collect();
    let numbers = numbers.filter(|numbers| numbers.len() <= DESCRIPTORS_MAX).ok_or_else(bad)?;
    for (index, &number) in numbers.iter().enumerate() {
        if number <= libc::STDERR_FILENO || numbers[..index].contains(&number) {
            return Err(bad());
        }
        // SAFETY: plain values; a number that is no open descriptor is refused. Children of ours inherit it no more.
        let result = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
        if result < 0 {
            return Err(no_handover(format!("descriptor {number} is not open")));
        }
    }
    // SAFETY: the descriptors are open, and by the contract of this function they were passed to this process for this
    // one call.
    let descriptors = numbers.into_iter().map(|number| unsafe { OwnedFd::from_raw_fd(number) }).collect();
    Channel::from_descriptors(descriptors, state)
}

fn no_handover(reason: String) -> ChannelError {
    ChannelError::NoHandover { reason }
}
