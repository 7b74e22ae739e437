//! Events: points in streams that the program names, and how much is known of them here.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hinterland_proto::gpu::command::{
    EventCreate, EventDestroy, EventElapsed, EventRecord, MarkEvent, StreamWait,
};

use super::context::Owner;
use super::inbox::{Pending, Target};
use super::outbox::Effect;
use super::session::Session;
use super::stream::Stream;
use crate::code::{CAPTURE_ISOLATION, CAPTURED_EVENT, Code, INVALID_HANDLE, INVALID_VALUE, NOT_READY};

/// Flag of a record or wait that stands in a graph and is seen, or done, outside of it.
pub const EXTERNAL: u32 = 1;
/// Flag of an event that takes no time.
pub const WITHOUT_TIME: u32 = 2;

/// The last record of an event.
#[derive(Debug, Default)]
struct Record {
    /// In which stream, and behind which command.
    place: Option<(Arc<Stream>, u64)>,
    /// Whether that command is the launch of a graph which goes on behind the record.
    is_inside: bool,
    /// The capture that it was recorded in, or 0.
    capture: u32,
    /// A mark that was sent for it.
    mark: Option<Arc<Pending>>,
}

/// An event.
#[derive(Debug)]
pub struct Event {
    /// Its name at the node.
    pub number: u32,
    /// Its device and context.
    pub owner: Owner,
    /// The program's flags.
    pub flags: u32,
    record: Mutex<Record>,
}

impl Event {
    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// # Errors
/// There are no such flags, or they are for a capture that there is none of.
fn check_flags(stream: &Stream, flags: u32) -> Result<(), Code> {
    match flags {
        0 => Ok(()),
        EXTERNAL if stream.is_captured() => Ok(()),
        _ => Err(INVALID_VALUE),
    }
}

impl Session {
    /// Makes an event.
    ///
    /// # Errors
    /// The node is gone.
    pub fn create_event(&self, owner: Owner, flags: u32) -> Result<Arc<Event>, Code> {
        self.events.add(|number| {
            self.send(&EventCreate { event: number, device: owner.device, flags })?;
            Ok(Event { number, owner, flags, record: Mutex::default() })
        })
    }

    /// Ends an event.
    ///
    /// # Errors
    /// There is none, or the node is gone.
    pub fn destroy_event(&self, number: u32) -> Result<(), Code> {
        self.events.remove(number)?;
        self.send(&EventDestroy { event: number }).map(drop)
    }

    /// Ends all events of a context, but for the one by which commands of two streams of a graph wait, which is nobody's.
    ///
    /// # Errors
    /// The node is gone.
    pub(super) fn destroy_events_of(&self, owner: Owner) -> Result<(), Code> {
        let kept = *self.captures.edge.lock().unwrap_or_else(PoisonError::into_inner);
        let all = self.events.all();
        all.iter()
            .filter(|event| event.owner == owner && Some(event.number) != kept)
            .try_for_each(|event| self.destroy_event(event.number))
    }

    /// Records an event behind the work of a stream.
    ///
    /// # Errors
    /// The event is of another context, the flags say that it is for others and nothing is being captured, the capture failed before, or the node is gone.
    pub fn record_event(&self, event: &Event, stream: &Arc<Stream>, flags: u32) -> Result<(), Code> {
        if event.owner != stream.owner {
            return Err(INVALID_HANDLE);
        }
        check_flags(stream, flags)?;
        if flags == EXTERNAL {
            // What is known of the event is as before: it is each launch of the graph that records it.
            let message = EventRecord { event: event.number, stream: stream.number, flags };
            return self.issue(stream, Effect::Visible, &message, 0, |_| ()).map(drop);
        }
        let capture = stream.capture.load(std::sync::atomic::Ordering::Relaxed);
        if capture == 0 {
            // Before others are kept from the event.
            self.wait_callbacks(stream)?;
        }
        let mut record = event.record();
        let message = EventRecord { event: event.number, stream: stream.number, flags };
        let command = self.issue(stream, Effect::Visible, &message, 0, |_| ())?;
        let place = (capture == 0).then(|| (stream.clone(), command));
        *record = Record { place, is_inside: false, capture, mark: None };
        Ok(())
    }

    /// Makes a stream wait for an event.
    ///
    /// # Errors
    /// The event and the stream belong to two captures, the flags are as they cannot be, or the node is gone.
    pub fn wait_event(&self, stream: &Arc<Stream>, event: &Event, flags: u32) -> Result<(), Code> {
        check_flags(stream, flags)?;
        let capture = event.record().capture;
        if flags == EXTERNAL {
            // Nothing of the capture is waited for.
        } else if capture != 0 {
            self.join_capture(stream, capture)?;
        } else if stream.is_captured() {
            // Nothing outside a capture can be waited for inside.
            self.invalidate_capture(stream);
            return Err(CAPTURE_ISOLATION);
        }
        let message = StreamWait { stream: stream.number, event: event.number, flags };
        self.issue(stream, Effect::Visible, &message, 0, |_| ()).map(drop)
    }

    /// Notes that a launch of a graph records events for others: each is done when the launch is, or when the node says so.
    pub(super) fn note_records(&self, events: &[u32], stream: &Arc<Stream>, command: u64) {
        for number in events {
            // The program may have ended one that it does not ask for any more.
            if let Ok(event) = self.events.get(*number) {
                *event.record() = Record {
                    place: Some((stream.clone(), command)),
                    is_inside: true,
                    capture: 0,
                    mark: None,
                };
            }
        }
    }

    /// Whether the last record of an event is done; asks the node, without waiting, once a record.
    ///
    /// # Errors
    /// It was recorded in a capture, which that ends; a fault of the device; the node is gone.
    pub fn is_event_done(&self, event: &Event) -> Result<bool, Code> {
        self.inbox.drain()?;
        match self.event_mark(event)?.map(|mark| mark.state()) {
            Some(None) => Ok(false),
            None | Some(Some(0)) => self.surface().map(|()| true),
            Some(Some(error)) => Err(error),
        }
    }

    /// Returns when the last record of an event is done.
    ///
    /// # Errors
    /// As [`is_event_done`](Self::is_event_done).
    pub fn synchronize_event(&self, event: &Event) -> Result<(), Code> {
        self.inbox.drain()?;
        match self.event_mark(event)? {
            None => self.surface(),
            Some(mark) => {
                self.wait_mark(&mark)?;
                self.surface()
            }
        }
    }

    /// The mark that tells when the event is done; none if it is.
    fn event_mark(&self, event: &Event) -> Result<Option<Arc<Pending>>, Code> {
        let mut record = event.record();
        if record.capture != 0 {
            self.invalidate_capture_number(record.capture);
            return Err(CAPTURED_EVENT);
        }
        let Some((stream, command)) = record.place.clone() else { return Ok(None) };
        if stream.has_reached(command) {
            return self.surface().map(|()| None);
        }
        if record.mark.is_none() {
            // What comes behind it in the same command is not done with it.
            let done = if record.is_inside { command - 1 } else { command };
            let (mark, pending) = self.inbox.expect(Target::Mark(vec![(stream, done)]));
            self.send(&MarkEvent { mark, event: event.number })?;
            record.mark = Some(pending);
        }
        Ok(record.mark.clone())
    }

    /// Milliseconds between two events.
    ///
    /// # Errors
    /// One takes no time, was never recorded, or is not done yet.
    pub fn elapsed(&self, start: &Event, end: &Event) -> Result<f32, Code> {
        if (start.flags | end.flags) & WITHOUT_TIME != 0 {
            return Err(INVALID_HANDLE);
        }
        if start.owner.device != end.owner.device {
            return Err(INVALID_HANDLE);
        }
        for event in [start, end] {
            if event.record().place.is_none() {
                return Err(INVALID_HANDLE);
            }
            if !self.is_event_done(event)? {
                return Err(NOT_READY);
            }
        }
        let answer =
            self.ask(&[], |question| EventElapsed { question, start: start.number, end: end.number })?;
        answer.try_into().map(f32::from_le_bytes).map_err(|_| INVALID_VALUE)
    }
}
