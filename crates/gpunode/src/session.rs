//! One session: the greeting, and then commands until the client is gone.

use crate::body::Body;
use crate::device::Device;
use crate::executor::{Executor, Grants};
use crate::failure::{Failure, number};
use crate::outbox::Outbox;
use crate::store::ImageStore;
use hinterland_channel::{Channel, ChannelError, Receiver};
use hinterland_proto::gpu::{GPU_VERSION, HELLO, Hello, WELCOME, Welcome};
use std::sync::Arc;
use std::time::Duration;

/// How long a client may take for its greeting.
const GREETING_TIME: Duration = Duration::from_secs(10);
/// Longest greeting.
const GREETING_BYTES_MAX: usize = 64 << 10;
/// Most hashes that a client is told.
const HASHES_MAX: usize = 16 << 10;
/// Commands after which counters are told, where they come without a pause.
const COMMANDS_PER_REPORT: u32 = 1024;

/// What a session has done, as often as it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Commands read.
    pub commands: u64,
    /// Kernels launched.
    pub launches: u64,
    /// Bytes copied to devices.
    pub bytes_in: u64,
    /// Bytes copied to the program.
    pub bytes_out: u64,
    /// Bytes of memory that are mapped.
    pub memory_bytes: u64,
}

/// What a session is besides its devices.
pub struct SessionParts {
    /// Its number.
    pub number: u64,
    /// Fat binaries that outlive it.
    pub images: Box<dyn ImageStore>,
    /// Who gives it more memory.
    pub grants: Box<dyn Grants>,
    /// Who is told of its progress.
    pub report: Box<dyn FnMut(&Progress) + Send>,
}

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The channel failed, other than by the client's end.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The client was refused.
    #[error("a client was refused: {0} (hint: its own message says the same)")]
    Refused(Failure),
}

/// Serves a client until it is gone. `make` makes the devices for it.
///
/// # Errors
/// [`SessionError`]; the end of the client is none.
pub fn serve<D: Device>(
    channel: Channel,
    make: impl FnOnce(&Hello, &Arc<Outbox>) -> Result<(D, SessionParts), Failure>,
) -> Result<(), SessionError> {
    let (sender, mut receiver) = channel.split()?;
    let outbox = Arc::new(Outbox::new(Box::new(sender)));
    let made = greet(&mut receiver).and_then(|hello| match hello {
        Some(hello) => make(&hello, &outbox).map(Some),
        None => Ok(None),
    });
    let (device, parts) = match made {
        Ok(Some(made)) => made,
        Ok(None) => return Ok(()),
        Err(failure) => {
            // A fault of command 0 in place of a welcome.
            outbox.fault(0, &failure);
            return Err(SessionError::Refused(failure));
        }
    };
    let welcome = welcome(&device, &parts);
    let body = postcard::to_stdvec(&welcome).unwrap_or_default();
    if outbox.raw(WELCOME, &body).is_err() {
        return Ok(());
    }
    let carried = Arc::clone(&outbox);
    let carrier = std::thread::Builder::new().name("answers".to_owned()).spawn(move || carried.carry());
    let SessionParts { images, grants, mut report, .. } = parts;
    let mut executor = Executor::new(device, Arc::clone(&outbox), images, grants);
    let outcome = read(&mut receiver, &mut executor, report.as_mut());
    outbox.close();
    drop(executor);
    if let Ok(carrier) = carrier {
        // A thread that panicked has said so.
        let _ = carrier.join();
    }
    match outcome {
        Err(ChannelError::Closed) | Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// What a client says first; nothing if it went away.
fn greet(receiver: &mut Receiver) -> Result<Option<Hello>, Failure> {
    match receiver.wait(Some(GREETING_TIME)) {
        Ok(true) => {}
        Ok(false) => return Err(Failure::value("there was no greeting")),
        Err(_) => return Ok(None),
    }
    let Ok(Some(mut frame)) = receiver.next() else { return Ok(None) };
    if frame.word() != HELLO || frame.len() > GREETING_BYTES_MAX {
        return Err(Failure::value("the first frame is no greeting"));
    }
    let body = frame.bytes();
    // Only the version can be read for sure: it comes first in all of them.
    let version = postcard::take_from_bytes::<u32>(body).map(|(version, _)| version);
    if let Ok(version) = version
        && version != GPU_VERSION
    {
        let words = format!(
            "the client speaks version {version}, and this node {GPU_VERSION} (hint: install the same version of hinterland on both sides)"
        );
        return Err(Failure::new(number::NOT_SUPPORTED, words));
    }
    match postcard::from_bytes(body) {
        Ok(hello) => Ok(Some(hello)),
        Err(error) => Err(Failure::value(format!("the greeting cannot be read: {error}"))),
    }
}

fn welcome<D: Device>(device: &D, parts: &SessionParts) -> Welcome {
    let facts = device.facts();
    let mut modules = parts.images.hashes();
    modules.truncate(HASHES_MAX);
    Welcome {
        version: GPU_VERSION,
        session: parts.number,
        driver: facts.driver,
        blas: facts.blas,
        window: facts.window,
        window_bytes: facts.window_bytes,
        granularity: facts.granularity,
        devices: facts.devices,
        modules,
    }
}

fn read<D: Device>(
    receiver: &mut Receiver,
    executor: &mut Executor<D>,
    report: &mut (dyn FnMut(&Progress) + Send),
) -> Result<(), ChannelError> {
    let mut unreported = 0;
    loop {
        if let Some(frame) = receiver.next()? {
            executor.command(frame.word(), Body::of(&frame));
            unreported += 1;
            if unreported < COMMANDS_PER_REPORT {
                continue;
            }
        } else if unreported == 0 {
            receiver.wait(None)?;
            continue;
        }
        unreported = 0;
        report(&progress(executor));
    }
}

fn progress<D: Device>(executor: &Executor<D>) -> Progress {
    let done = executor.device().done();
    Progress {
        commands: executor.count(),
        launches: done.launches,
        bytes_in: done.bytes_in,
        bytes_out: done.bytes_out,
        memory_bytes: executor.mapped_bytes(),
    }
}
