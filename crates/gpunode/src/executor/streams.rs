//! Names of streams and events, fences and marks.

use super::Executor;
use crate::device::{At, Device, MarkOf};
use crate::failure::{Failure, number};
use hinterland_proto::gpu::DEFAULT_STREAMS;
use hinterland_proto::gpu::command::{
    EventCreate, EventDestroy, EventElapsed, Fence, MarkDevice, MarkEvent, MarkStream, StreamCreate,
    StreamDestroy,
};
use std::collections::HashMap;

/// Most streams of a session.
const STREAMS_MAX: usize = 1 << 14;
/// Most events of a session.
const EVENTS_MAX: usize = 1 << 20;
/// Flag of a stream that does not wait for the default stream.
const APART: u32 = 1;

#[derive(Debug, Clone, Copy)]
struct Event {
    is_recorded: bool,
}

/// Streams and events by their names.
#[derive(Debug)]
pub(super) struct Streams {
    devices: u32,
    streams: HashMap<u32, u32>,
    events: HashMap<u32, Event>,
}

impl Streams {
    pub(super) fn new(devices: u32) -> Self {
        Self { devices, streams: HashMap::new(), events: HashMap::new() }
    }

    pub(super) fn known(&self, stream: u32) -> Result<(), Failure> {
        self.device_of(stream).map(drop)
    }

    /// The device of a stream.
    pub(super) fn device_of(&self, stream: u32) -> Result<u32, Failure> {
        if stream < self.devices {
            return Ok(stream);
        }
        self.streams.get(&stream).copied().ok_or_else(|| Failure::unknown("stream", stream))
    }

    pub(super) fn known_event(&self, event: u32) -> Result<(), Failure> {
        if self.events.contains_key(&event) { Ok(()) } else { Err(Failure::unknown("event", event)) }
    }

    pub(super) fn note_record(&mut self, event: u32) {
        if let Some(event) = self.events.get_mut(&event) {
            event.is_recorded = true;
        }
    }
}

impl<D: Device> Executor<D> {
    pub(super) fn stream_create(&mut self, command: &StreamCreate) -> Result<(), Failure> {
        self.known_device(command.device)?;
        let streams = &mut self.streams.streams;
        if command.stream < DEFAULT_STREAMS || streams.contains_key(&command.stream) {
            return Err(Failure::twice("stream", command.stream));
        }
        if streams.len() >= STREAMS_MAX {
            return Err(Failure::too_many("streams", STREAMS_MAX));
        }
        let is_apart = command.flags & APART != 0;
        self.device.make_stream(command.stream, command.device, is_apart, command.priority)?;
        streams.insert(command.stream, command.device);
        Ok(())
    }

    pub(super) fn stream_destroy(&mut self, command: &StreamDestroy) -> Result<(), Failure> {
        if self.streams.streams.remove(&command.stream).is_none() {
            return Err(Failure::unknown("stream", command.stream));
        }
        // A handle falls back to the default stream, rather than to a name that may come again.
        for handle in self.handles.values_mut().filter(|handle| handle.stream == command.stream) {
            handle.stream = handle.device;
        }
        self.device.drop_stream(command.stream);
        Ok(())
    }

    pub(super) fn event_create(&mut self, command: &EventCreate) -> Result<(), Failure> {
        self.known_device(command.device)?;
        let events = &mut self.streams.events;
        if events.contains_key(&command.event) {
            return Err(Failure::twice("event", command.event));
        }
        if events.len() >= EVENTS_MAX {
            return Err(Failure::too_many("events", EVENTS_MAX));
        }
        self.device.make_event(command.event, command.device, command.flags)?;
        events.insert(command.event, Event { is_recorded: false });
        Ok(())
    }

    pub(super) fn event_destroy(&mut self, command: &EventDestroy) -> Result<(), Failure> {
        if self.streams.events.remove(&command.event).is_none() {
            return Err(Failure::unknown("event", command.event));
        }
        self.device.drop_event(command.event);
        Ok(())
    }

    pub(super) fn fence(&mut self, command: &Fence) -> Result<(), Failure> {
        self.streams.known(command.stream)?;
        self.device.fence(At { stream: command.stream, command: self.count })
    }

    pub(super) fn mark_stream(&mut self, command: &MarkStream) -> Result<(), Failure> {
        let known = self.streams.known(command.stream);
        self.mark(command.mark, known, MarkOf::Stream(command.stream))
    }

    pub(super) fn mark_event(&mut self, command: &MarkEvent) -> Result<(), Failure> {
        let known = self.streams.known_event(command.event);
        self.mark(command.mark, known, MarkOf::Event(command.event))
    }

    pub(super) fn mark_device(&mut self, command: &MarkDevice) -> Result<(), Failure> {
        let known = self.known_device(command.device);
        self.mark(command.mark, known, MarkOf::Device(command.device))
    }

    /// A mark is always answered: somebody waits for it.
    fn mark(&mut self, mark: u64, known: Result<(), Failure>, of: MarkOf) -> Result<(), Failure> {
        if let Err(failure) = known.and_then(|()| self.device.mark(mark, of)) {
            self.tell(&failure);
            self.outbox.reached(mark, failure.error);
        }
        Ok(())
    }

    pub(super) fn event_elapsed(&mut self, command: &EventElapsed) -> Result<(), Failure> {
        let recorded = |event: u32| match self.streams.events.get(&event) {
            Some(Event { is_recorded: true }) => Ok(()),
            Some(_) => Err(Failure::new(number::INVALID_HANDLE, format!("event {event} was never recorded"))),
            None => Err(Failure::unknown("event", event)),
        };
        let known = recorded(command.start).and_then(|()| recorded(command.end));
        let outcome = known.and_then(|()| self.device.elapsed(command.question, command.start, command.end));
        if let Err(failure) = outcome {
            self.outbox.answer(command.question, Err(failure.error));
        }
        Ok(())
    }
}
