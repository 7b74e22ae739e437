//! Sessions over the unix socket: one thread each, and everything is given back when the socket closes.

use crate::core::Core;
use crate::refused::{Refused, errno};
use crate::session::{Session, kept};
use hinterland_os::process::{self, ProcessHandle};
use hinterland_os::socket::{Closer, UnixListener, UnixStream};
use hinterland_pool::PoolError;
use hinterland_pool::local::{LocalStream, random};
use hinterland_proto::control::{ControlError, Reply, Request, decode, encode};
use hinterland_proto::{FrameHeader, FrameKind, Refusal, RefusalCode, RemoteError, RunTable};
use hinterland_types::limits::SESSIONS_MAX;
use hinterland_types::{ByteRange, Rights, SessionId};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the accepting thread waits for a connection, and for descriptors when there are none left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// How long a client may take for its handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client may leave an answer unread.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// The unix socket of a node.
pub struct LocalServer {
    core: Arc<Core>,
    stopping: AtomicBool,
    closer: Closer,
    /// One descriptor of each session's socket, to end it.
    open: Mutex<HashMap<SessionId, Arc<UnixStream>>>,
}

impl LocalServer {
    /// Serves sessions from here on; the thread ends with [`stop`](Self::stop).
    ///
    /// # Errors
    /// [`Refused`] if no thread can be started.
    pub fn start(core: Arc<Core>, listener: UnixListener) -> Result<(Arc<Self>, JoinHandle<()>), Refused> {
        let closer = listener.closer().map_err(|error| Refused::new(errno::EIO, error.to_string()))?;
        let server = Self { core, stopping: AtomicBool::new(false), closer, open: Mutex::default() };
        let server = Arc::new(server);
        let accepting = Arc::clone(&server);
        let thread = std::thread::Builder::new()
            .name("sessions".to_owned())
            .spawn(move || accepting.accept(&listener))
            .map_err(|error| Refused::new(errno::EIO, error.to_string()))?;
        Ok((server, thread))
    }

    /// Ends all sessions.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.closer.close();
        self.lock().values().for_each(|socket| socket.shutdown());
    }

    fn accept(self: &Arc<Self>, listener: &UnixListener) {
        process::name_thread("sessions");
        while !self.stopping.load(Ordering::Acquire) {
            match listener.accept(Some(ACCEPT_PAUSE)) {
                Ok(Some(stream)) => {
                    let server = Arc::clone(self);
                    let spawned = std::thread::Builder::new()
                        .name("session".to_owned())
                        .stack_size(512 << 10)
                        .spawn(move || server.serve(stream));
                    if let Err(error) = spawned {
                        tracing::error!(%error, "a session was turned away: no thread for it");
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    self.core.cache.problem(&format!("sessions cannot be accepted: {error}"));
                    std::thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    fn serve(&self, stream: UnixStream) {
        let Ok(credentials) = stream.peer_credentials() else { return };
        let id = self.core.new_session();
        let limited = stream
            .set_receive_timeout(Some(HANDSHAKE_TIMEOUT))
            .and_then(|()| stream.set_send_timeout(Some(SEND_TIMEOUT)))
            .and_then(|()| stream.duplicate());
        let Ok(ending) = limited else { return };
        let is_full = self.lock().len() >= SESSIONS_MAX;
        // The socket's permissions decide who may connect: no key is asked for on the own host.
        let mut counted = None;
        let answered = LocalStream::answer(stream, self.core.identity(None), |_| {
            if is_full {
                let text =
                    format!("this node has {SESSIONS_MAX} sessions, the most it may have (hint: end some)");
                return Err(Refusal::new(RefusalCode::Full, text));
            }
            let secret = random().map_err(|error| Refusal::new(RefusalCode::Full, error.to_string()))?;
            // Before the client knows: what it asks for first counts as a session's.
            counted = Some(Counted::new(&self.core.sessions));
            Ok((id, secret))
        });
        let Ok(Some((stream, _))) = answered else { return };
        if stream.socket().set_receive_timeout(None).is_err() {
            return;
        }
        let ending = Arc::new(ending);
        self.lock().insert(id, Arc::clone(&ending));
        // Dropped after the stream, and also if an answer panics: what the session held is given back in any case.
        let open = OpenSession {
            server: self,
            session: Arc::new(Session::local(id, credentials.user, ending)),
            counted,
        };
        let mut stream = stream;
        // Without it the end of its socket is all that is seen of a program: as in a container whose processes this node does not know.
        if let Ok(program) = ProcessHandle::open(credentials.process) {
            let (core, session) = (self.core.shared(), Arc::downgrade(&open.session));
            stream.on_end_of_peer(program, move || {
                core.upgrade()
                    .zip(session.upgrade())
                    .is_some_and(|(core, session)| session.outlives_program(&core))
            });
        }
        if let Err(error) = self.converse(&mut stream, &open.session) {
            tracing::debug!(%error, process = credentials.process, "a session ended");
        }
    }

    /// Answers frames until the client goes or sends something that cannot be believed.
    fn converse(&self, stream: &mut LocalStream, session: &Arc<Session>) -> Result<(), PoolError> {
        // Kept from read to read: its pages are touched once.
        let mut bytes = Vec::new();
        loop {
            let (header, descriptors) = stream.receive_header()?;
            match header.kind {
                FrameKind::Call => self.call(stream, session, &header, descriptors)?,
                FrameKind::Read => self.read(stream, session, &header, &mut bytes)?,
                FrameKind::Write => self.write(stream, session, &header)?,
                FrameKind::Close => return Ok(()),
                other => {
                    let text = format!("{other:?} is not answered on a unix socket");
                    stream.receive_whole(&header)?;
                    send_error(stream, &header, Refused::new(errno::ENOTSUP, text))?;
                }
            }
        }
    }

    fn call(
        &self,
        stream: &mut LocalStream,
        session: &Arc<Session>,
        header: &FrameHeader,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), PoolError> {
        let body = stream.receive_whole(header)?;
        let answer = decode::<Request>(&body)
            .map_err(Refused::from)
            .and_then(|request| session.answer(&self.core, request, descriptors));
        let (reply, descriptors) =
            answer.unwrap_or_else(|refused| (self.core.told(refused).reply(), Vec::new()));
        let body = encoded(&reply)?;
        let answer = FrameHeader::new(FrameKind::Reply, header.request, body.len() as u32);
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        stream.send(answer, &[&body], &borrowed)
    }

    fn read(
        &self,
        stream: &mut LocalStream,
        session: &Session,
        header: &FrameHeader,
        body: &mut Vec<u8>,
    ) -> Result<(), PoolError> {
        let table = stream.receive_whole(header)?;
        let runs = RunTable::parse(&table)?;
        body.clear();
        for run in runs.iter() {
            if let Err(refused) = session.read(&self.core, header.handle, run, body) {
                return send_error(stream, header, self.core.told(refused));
            }
        }
        let answer = FrameHeader::new(FrameKind::ReadReply, header.request, body.len() as u32);
        stream.send(answer, &[body], &[])
    }

    fn write(
        &self,
        stream: &mut LocalStream,
        session: &Session,
        header: &FrameHeader,
    ) -> Result<(), PoolError> {
        let body = stream.receive_whole(header)?;
        let (table, mut bytes) = body.split_at(header.run_table_bytes());
        let runs = RunTable::parse(table)?;
        if bytes.len() != runs.total_bytes() as usize {
            let text = "the runs and the bytes of a write have different lengths";
            return send_error(stream, header, Refused::new(errno::EINVAL, text));
        }
        for run in runs.iter() {
            let (now, later) = bytes.split_at(run.bytes() as usize);
            if let Err(refused) = write_run(session, header, run, now) {
                return send_error(stream, header, self.core.told(refused));
            }
            bytes = later;
        }
        stream.send(FrameHeader::new(FrameKind::WriteReply, header.request, 0), &[], &[])
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<SessionId, Arc<UnixStream>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A session that is served; when it is dropped, everything that it held is given back.
struct OpenSession<'a> {
    server: &'a LocalServer,
    session: Arc<Session>,
    counted: Option<Counted<'a>>,
}

/// One of the sessions that are counted.
struct Counted<'a>(&'a AtomicU32);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Ordering::Relaxed); // Relaxed: a counter that nothing is ordered by.
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed); // Relaxed: as above.
    }
}

impl Drop for OpenSession<'_> {
    fn drop(&mut self) {
        self.session.end(&self.server.core);
        drop(self.counted.take());
        if let Some(socket) = self.server.lock().remove(&self.session.id) {
            // Others may hold it for a moment longer: the client sees the end now.
            socket.shutdown();
        }
    }
}

fn write_run(session: &Session, header: &FrameHeader, run: ByteRange, bytes: &[u8]) -> Result<(), Refused> {
    let slice = session.resolve(header.handle, run, Rights::WRITE)?;
    if slice.copy_in(0, bytes) == bytes.len() {
        return kept(&slice);
    }
    Err(Refused::new(errno::EACCES, "the memory is read-only"))
}

/// The body of a reply; where it is longer than one may be, of the refusal that says so: the session goes on.
fn encoded(reply: &Reply) -> Result<Vec<u8>, ControlError> {
    encode(reply).or_else(|error| encode(&Refused::from(error).reply()))
}

fn send_error(stream: &mut LocalStream, header: &FrameHeader, refused: Refused) -> Result<(), PoolError> {
    let body = RemoteError::from(refused).to_body();
    let answer = FrameHeader::new(FrameKind::Error, header.request, body.len() as u32);
    stream.send(answer, &[&body], &[])
}

#[cfg(test)]
mod tests {
    use super::*;
    use hinterland_types::limits::CONTROL_BYTES_MAX;

    #[test]
    fn a_reply_that_is_too_long_is_answered_in_words() {
        let reply = Reply::Error { code: 5, text: "x".repeat(CONTROL_BYTES_MAX as usize) };
        let body = encoded(&reply).unwrap();
        assert!(matches!(decode(&body).unwrap(), Reply::Error { code: errno::EINVAL, .. }));
    }
}
