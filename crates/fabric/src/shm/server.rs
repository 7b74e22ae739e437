//! The answering side of a ring session.

use super::{Area, SHORT_FORM_MIN, os_failed};
use crate::error::FabricError;
use crate::service::Service;
use hinterland_proto::{ErrorCode, RemoteError};
use hinterland_ring::{Body, Request, Responder};
use hinterland_types::SessionId;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Requests that are taken at once.
const BATCH: usize = 64;
/// Requests after which a server that has not slept looks whether it should end: a peer that asks on and on may not keep it. The look
/// costs nothing beside so many.
const TURN: usize = 1024;
/// How often a sleeping server looks whether it should end.
const PAUSE: Duration = Duration::from_millis(200);

/// One session's ring, ready to be served by one thread.
pub struct ShmServer {
    area: Area,
    responder: Responder,
    requests: Vec<Request>,
    body: Vec<u8>,
}

impl ShmServer {
    /// Makes a ring; the descriptor is for the other side.
    ///
    /// # Errors
    /// [`FabricError::System`] without memory or descriptors.
    pub fn new() -> Result<(Self, OwnedFd), FabricError> {
        let (area, file) = Area::make()?;
        let responder = Responder::new(area.session(true)?);
        let descriptor = file.duplicate().map_err(os_failed)?;
        Ok((Self { area, responder, requests: Vec::with_capacity(BATCH), body: Vec::new() }, descriptor))
    }

    /// Waits for requests (spinning first) and answers all that are there, but no more than fill a turn; returns how many, or `None`
    /// once the peer cannot be believed any more. Bodies whose first byte is [`SHORT_FORM_MIN`] or more are not messages: `short`
    /// answers them, without a copy or an allocation.
    pub fn serve(
        &mut self,
        service: &dyn Service,
        session: SessionId,
        short: &mut dyn FnMut(&Body) -> Body,
    ) -> Option<usize> {
        if !self.responder.wait(PAUSE) {
            return Some(0);
        }
        let mut answered = 0;
        loop {
            self.requests.clear();
            if answered >= TURN || self.responder.drain(&mut self.requests, BATCH) == 0 {
                self.responder.flush();
                return Some(answered);
            }
            for index in 0..self.requests.len() {
                let Request { tag, body } = self.requests[index];
                if body[0] >= SHORT_FORM_MIN {
                    self.responder.respond(tag, &short(&body)).ok()?;
                    continue;
                }
                let (cell, _) = self.area.take(&body, &mut self.body)?;
                let (bytes, is_error) = match service.call(session, &self.body) {
                    Ok(reply) => (reply, false),
                    Err(error) => (error.to_body(), true),
                };
                let answer = self.area.put(cell, &bytes, is_error).or_else(|| {
                    let text = format!("the answer has {} bytes (hint: ask over the socket)", bytes.len());
                    self.area.put(cell, &RemoteError::new(ErrorCode::LIMIT, text).to_body(), true)
                })?;
                self.responder.respond(tag, &answer).ok()?;
            }
            answered += self.requests.len();
        }
    }
}

/// Serves a ring until `ended` says so or the peer cannot be believed; `count` hears how many were answered.
pub fn serve_until(
    mut server: ShmServer,
    service: &dyn Service,
    session: SessionId,
    short: &mut dyn FnMut(&Body) -> Body,
    mut ended: impl FnMut() -> bool,
    mut count: impl FnMut(usize),
) {
    while !ended() {
        match server.serve(service, session, short) {
            Some(0) => {}
            Some(answered) => count(answered),
            None => return,
        }
    }
}
