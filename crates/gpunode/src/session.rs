//! One session: the greeting, and then commands until the client is gone.

use crate::body::Body;
use crate::device::Device;
use crate::executor::{Executor, Grants};
use crate::failure::{Failure, number};
use crate::outbox::Outbox;
use crate::pooled::ObjectStore;
use crate::store::ImageStore;
use hinterland_channel::{Channel, ChannelError, Receiver};
use hinterland_proto::gpu::{GPU_VERSION, GpuStatus, HELLO, Hello, LIST, WELCOME, Welcome};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a client may take for its greeting.
const GREETING_TIME: Duration = Duration::from_secs(10);
/// Longest greeting.
const GREETING_BYTES_MAX: usize = 64 << 10;
/// Most hashes that a client is told.
const HASHES_MAX: usize = 16 << 10;
/// How often its progress is told.
const REPORT_TIME: Duration = Duration::from_millis(100);
/// Commands after which the clock is looked at, where they come without a pause.
const COMMANDS_PER_LOOK: u32 = 1024;

/// What a session has done, as often as it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
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
    /// Who finds objects of a pool for it.
    pub objects: Box<dyn ObjectStore>,
    /// Who is told of its progress.
    pub report: Box<dyn FnMut(&Progress) + Send>,
}

/// Finds what the node does, for a client that asks for that in place of a greeting.
pub type Ask = Box<dyn Fn() -> Option<GpuStatus>>;

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

/// Serves a client until it is gone. `make` makes the devices for it, `list` finds what the node does, and `ended` is
/// called when the client is gone, before anything is taken apart.
///
/// # Errors
/// [`SessionError`]; the end of the client is none.
pub fn serve<D: Device>(
    channel: Channel,
    list: Ask,
    ended: impl FnOnce(),
    make: impl FnOnce(&Hello, &Arc<Outbox>) -> Result<(D, SessionParts), Failure>,
) -> Result<(), SessionError> {
    let (sender, mut receiver) = channel.split()?;
    let outbox = Arc::new(Outbox::new(Box::new(sender)));
    let made = greet(&mut receiver, &outbox, &list).and_then(|hello| match hello {
        Some(hello) => make(&hello, &outbox).map(Some),
        None => Ok(None),
    });
    let (device, mut parts) = match made {
        Ok(Some(made)) => made,
        Ok(None) => return Ok(()),
        Err(failure) => {
            // A fault of command 0 in place of a welcome.
            outbox.fault(0, &failure);
            return Err(SessionError::Refused(failure));
        }
    };
    let welcome = welcome(&device, &mut parts);
    let body = postcard::to_stdvec(&welcome).unwrap_or_default();
    if outbox.raw(WELCOME, &body).is_err() {
        return Ok(());
    }
    let carried = Arc::clone(&outbox);
    let carrier = std::thread::Builder::new().name("answers".to_owned()).spawn(move || carried.carry());
    let SessionParts { images, grants, objects, mut report, .. } = parts;
    let mut executor = Executor::new(device, Arc::clone(&outbox), images, grants).with_objects(objects);
    let outcome = read(&mut receiver, &mut executor, report.as_mut());
    outbox.close();
    ended();
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

/// What a client says first; nothing if it went away, or only asked what the node does.
fn greet(receiver: &mut Receiver, outbox: &Outbox, list: &Ask) -> Result<Option<Hello>, Failure> {
    loop {
        match receiver.wait(Some(GREETING_TIME)) {
            Ok(true) => {}
            Ok(false) => return Err(Failure::value("there was no greeting")),
            Err(_) => return Ok(None),
        }
        let Ok(Some(mut frame)) = receiver.next() else { return Ok(None) };
        match frame.word() {
            HELLO if frame.len() <= GREETING_BYTES_MAX => return read_hello(frame.bytes()).map(Some),
            LIST => {
                let status = list().and_then(|status| postcard::to_stdvec(&status).ok());
                let Some(body) = status else { return Ok(None) };
                if outbox.raw(LIST, &body).is_err() {
                    return Ok(None);
                }
            }
            _ => return Err(Failure::value("the first frame is no greeting")),
        }
    }
}

fn read_hello(body: &[u8]) -> Result<Hello, Failure> {
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
    postcard::from_bytes(body)
        .map_err(|error| Failure::value(format!("the greeting cannot be read: {error}")))
}

fn welcome<D: Device>(device: &D, parts: &mut SessionParts) -> Welcome {
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
    let mut unreported = 0_u32;
    let mut last = Instant::now();
    loop {
        if let Some(frame) = receiver.next()? {
            executor.command(frame.word(), Body::of(&frame));
            unreported = unreported.saturating_add(1);
            if !unreported.is_multiple_of(COMMANDS_PER_LOOK) || last.elapsed() < REPORT_TIME {
                continue;
            }
        } else {
            // Told after a pause, so that it costs nothing between two commands.
            let pause = (unreported > 0).then_some(REPORT_TIME);
            if receiver.wait(pause)? {
                continue;
            }
        }
        (unreported, last) = (0, Instant::now());
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
