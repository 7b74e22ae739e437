//! The node as others reach it over the fabric: sessions of clients on other hosts, and of other nodes.

use crate::core::Core;
use crate::peer_service::PeerSession;
use crate::refused::Refused;
use crate::session::Session;
use hinterland_fabric::{Service, Slice};
use hinterland_proto::control::{PeerRequest, Request, decode, encode};
use hinterland_proto::{PeerHello, Refusal, RefusalCode, RemoteError, Role};
use hinterland_types::limits::SESSIONS_MAX;
use hinterland_types::{ByteRange, Handle, NodeId, Rights, SessionId};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};

/// Serves the fabric.
pub struct RemoteService {
    core: Arc<Core>,
    sessions: RwLock<HashMap<SessionId, Arc<Remote>>>,
}

enum Remote {
    Client(Arc<Session>),
    Node(NodeId, Box<PeerSession>),
}

impl RemoteService {
    /// No sessions yet.
    pub fn new(core: Arc<Core>) -> Self {
        Self { core, sessions: RwLock::default() }
    }

    fn find(&self, session: SessionId) -> Result<Arc<Remote>, Refused> {
        let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        sessions
            .get(&session)
            .cloned()
            .ok_or_else(|| Refused::new(crate::refused::errno::EBADF, format!("{session} has ended")))
    }
}

impl Service for RemoteService {
    fn opened(&self, peer: &PeerHello) -> Result<SessionId, Refusal> {
        let mut sessions = self.sessions.write().unwrap_or_else(PoisonError::into_inner);
        if sessions.len() >= SESSIONS_MAX {
            let text =
                format!("this node has {SESSIONS_MAX} sessions, the most it may have (hint: end some)");
            return Err(Refusal::new(RefusalCode::Full, text));
        }
        let id = self.core.new_session();
        let remote = match peer.role {
            Role::Client => Remote::Client(Arc::new(Session::remote(id))),
            Role::Node => Remote::Node(peer.node, Box::default()),
        };
        sessions.insert(id, Arc::new(remote));
        // Relaxed: a counter that nothing is ordered by.
        self.core.sessions.fetch_add(1, Ordering::Relaxed);
        Ok(id)
    }

    fn closed(&self, session: SessionId) {
        let removed = self.sessions.write().unwrap_or_else(PoisonError::into_inner).remove(&session);
        if let Some(remote) = removed {
            if let Remote::Client(session) = &*remote {
                session.end(&self.core);
            }
            // Relaxed: a counter that nothing is ordered by.
            self.core.sessions.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn resolve(
        &self,
        session: SessionId,
        handle: Handle,
        range: ByteRange,
        needed: Rights,
    ) -> Result<Slice, RemoteError> {
        let remote = self.find(session)?;
        let slice = match &*remote {
            Remote::Client(session) => session.resolve(handle, range, needed)?,
            Remote::Node(_, peer) => peer.resolve(handle, range, needed)?,
        };
        if !needed.allows(Rights::WRITE) {
            // Relaxed: a counter that nothing is ordered by.
            self.core.sent_bytes.fetch_add(range.bytes(), Ordering::Relaxed);
        }
        Ok(slice)
    }

    fn fetch(&self, session: SessionId, question: &[u8]) -> Result<(Handle, Slice), RemoteError> {
        let remote = self.find(session)?;
        let Remote::Client(session) = &*remote else {
            return Err(Refused::new(crate::refused::errno::ENOTSUP, "nodes attach and read").into());
        };
        let found = session.fetch(&self.core, decode::<Request>(question).map_err(Refused::from)?)?;
        // Relaxed: a counter that nothing is ordered by.
        self.core.sent_bytes.fetch_add(found.1.len() as u64, Ordering::Relaxed);
        Ok(found)
    }

    fn one_sided(
        &self,
        session: SessionId,
        handle: Handle,
        range: ByteRange,
        needed: Rights,
    ) -> Result<Option<(ByteRange, Slice)>, RemoteError> {
        let remote = self.find(session)?;
        Ok(match &*remote {
            Remote::Client(session) => session.one_sided(handle, range, needed)?,
            Remote::Node(_, peer) => peer.one_sided(handle, range, needed)?,
        })
    }

    fn call(&self, session: SessionId, body: &[u8]) -> Result<Vec<u8>, RemoteError> {
        let remote = self.find(session)?;
        let encoded = match &*remote {
            Remote::Client(session) => {
                let request = decode::<Request>(body).map_err(Refused::from)?;
                let answer = session.answer(&self.core, request, Vec::new());
                encode(&answer.map_or_else(Refused::reply, |(reply, _)| reply))
            }
            Remote::Node(peer, state) => {
                let request = decode::<PeerRequest>(body).map_err(Refused::from)?;
                encode(&state.answer(&self.core, *peer, request).unwrap_or_else(Refused::peer_reply))
            }
        };
        Ok(encoded.map_err(Refused::from)?)
    }
}
