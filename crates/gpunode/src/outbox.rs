//! What goes back to the client: sent at once where the channel has room, else kept in order until it has.

use crate::failure::Failure;
use hinterland_proto::gpu::answer::{Answer, AnswerMessage, Bytes, Fault, Printed, Reached};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes of a transfer in one frame, where the channel takes as many.
const PIECE_BYTES: usize = 1 << 20;
/// Bytes that are kept for a client that does not read; who sends more waits.
const KEPT_BYTES_MAX: usize = 64 << 20;
/// Messages that are kept likewise.
const KEPT_MESSAGES_MAX: usize = 1 << 16;
/// How long a full channel is left alone before it is looked at again, if it does not say when it has room.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The client is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone;

/// The way to the client.
pub trait Line: Send {
    /// Most bytes of one body.
    fn body_bytes_max(&self) -> usize;
    /// Sends a frame; false if there is no room for it now.
    ///
    /// # Errors
    /// The client is gone.
    fn send(&mut self, word: u32, fields: &[u8], tail: &[u8]) -> Result<bool, Gone>;
    /// Waits until there may be room for a frame of so many bytes, or for a while.
    ///
    /// # Errors
    /// The client is gone.
    fn wait(&mut self, bytes: usize, at_most: Duration) -> Result<(), Gone>;
}

/// One frame that waits for room.
#[derive(Debug)]
struct Message {
    answer: AnswerMessage,
    tail: Vec<u8>,
}

#[derive(Default)]
struct State {
    kept: VecDeque<Message>,
    kept_bytes: usize,
    /// Whether the carrier has a message in its hands.
    is_carrying: bool,
    is_gone: bool,
}

/// What goes back to the client, from all threads of a session.
pub struct Outbox {
    state: Mutex<State>,
    /// Locked by whoever holds `state` and finds nothing kept, or by the carrier alone.
    line: Mutex<Box<dyn Line>>,
    /// Something is kept, or the client is gone.
    filled: Condvar,
    /// Less is kept.
    emptied: Condvar,
    body_bytes_max: usize,
}

impl Outbox {
    /// An empty one. Somebody must [`carry`](Self::carry).
    pub fn new(line: Box<dyn Line>) -> Self {
        let body_bytes_max = line.body_bytes_max();
        let (filled, emptied) = (Condvar::new(), Condvar::new());
        Self { state: Mutex::default(), line: Mutex::new(line), filled, emptied, body_bytes_max }
    }

    /// Says that the work before a mark is done.
    pub fn reached(&self, mark: u64, error: i32) {
        self.send(AnswerMessage::Reached(Reached { mark, error }), Vec::new());
    }

    /// Most bytes of a transfer in one frame.
    pub fn piece_bytes(&self) -> usize {
        PIECE_BYTES.min(self.body_bytes_max.saturating_sub(Bytes::BYTES)).max(1)
    }

    /// Sends bytes of a transfer, at most [`piece_bytes`](Self::piece_bytes).
    pub fn bytes(&self, transfer: u32, offset: u64, bytes: Vec<u8>) {
        self.send(AnswerMessage::Bytes(Bytes { transfer, error: 0, offset }), bytes);
    }

    /// Says that no bytes of a transfer come.
    pub fn no_bytes(&self, transfer: u32, error: i32) {
        self.send(AnswerMessage::Bytes(Bytes { transfer, error, offset: 0 }), Vec::new());
    }

    /// Answers a question.
    pub fn answer(&self, question: u32, result: Result<Vec<u8>, i32>) {
        let (error, tail) = match result {
            Ok(tail) => (0, tail),
            Err(error) => (error, Vec::new()),
        };
        self.send(AnswerMessage::Answer(Answer { question, error }), tail);
    }

    /// Passes on what a kernel printed.
    pub fn printed(&self, text: &[u8]) {
        let most = self.piece_bytes();
        for part in text.chunks(most) {
            self.send(AnswerMessage::Printed(Printed { flags: 0 }), part.to_vec());
        }
    }

    /// Says that a command failed.
    pub fn fault(&self, command: u64, failure: &Failure) {
        let sticky = u32::from(failure.is_sticky);
        let head = Fault { error: failure.error, library: failure.library, sticky, command };
        self.send(AnswerMessage::Fault(head), failure.words.clone().into_bytes());
    }

    /// Sends a frame that is no answer, before there are answers.
    ///
    /// # Errors
    /// The client is gone.
    pub fn raw(&self, word: u32, body: &[u8]) -> Result<(), Gone> {
        let mut line = self.line();
        while !line.send(word, &[], body)? {
            line.wait(body.len(), LOOK_AGAIN)?;
        }
        Ok(())
    }

    /// Whether nothing is kept: the client reads as fast as it is sent to.
    pub fn is_clear(&self) -> bool {
        let state = self.lock();
        state.kept.is_empty() && !state.is_carrying
    }

    /// Whether the client is gone.
    pub fn is_gone(&self) -> bool {
        self.lock().is_gone
    }

    /// Says that the client is gone: what is kept is of no use, and nobody waits any more.
    pub fn close(&self) {
        let mut state = self.lock();
        state.is_gone = true;
        state.kept.clear();
        state.kept_bytes = 0;
        self.filled.notify_all();
        self.emptied.notify_all();
    }

    fn send(&self, answer: AnswerMessage, tail: Vec<u8>) {
        let mut state = self.lock();
        if state.is_gone {
            return;
        }
        if state.kept.is_empty() && !state.is_carrying {
            match write(self.line().as_mut(), &answer, &tail) {
                Ok(true) => return,
                Ok(false) => {}
                Err(Gone) => {
                    drop(state);
                    return self.close();
                }
            }
        }
        while !state.is_gone && (state.kept_bytes > KEPT_BYTES_MAX || state.kept.len() >= KEPT_MESSAGES_MAX) {
            state = self.emptied.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_gone {
            return;
        }
        state.kept_bytes += tail.len();
        state.kept.push_back(Message { answer, tail });
        self.filled.notify_one();
    }

    /// Sends what is kept as soon as there is room, until the client is gone: the work of a thread of its own.
    pub fn carry(&self) {
        let mut state = self.lock();
        loop {
            while state.kept.is_empty() && !state.is_gone {
                state.is_carrying = false;
                state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.is_gone {
                return;
            }
            let Some(message) = state.kept.pop_front() else { continue };
            state.is_carrying = true;
            drop(state);
            if self.carry_one(&message).is_err() {
                return self.close();
            }
            state = self.lock();
            state.kept_bytes = state.kept_bytes.saturating_sub(message.tail.len());
            self.emptied.notify_all();
        }
    }

    fn carry_one(&self, message: &Message) -> Result<(), Gone> {
        let mut line = self.line();
        while !write(line.as_mut(), &message.answer, &message.tail)? {
            line.wait(Bytes::BYTES + message.tail.len(), LOOK_AGAIN)?;
            if self.is_gone() {
                return Err(Gone);
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line(&self) -> MutexGuard<'_, Box<dyn Line>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write(line: &mut dyn Line, answer: &AnswerMessage, tail: &[u8]) -> Result<bool, Gone> {
    let mut fields = [0; 32];
    let (word, bytes) = match answer {
        AnswerMessage::Reached(message) => {
            (Reached::WORD, put(&mut fields, Reached::BYTES, |to| message.put(to)))
        }
        AnswerMessage::Bytes(message) => (Bytes::WORD, put(&mut fields, Bytes::BYTES, |to| message.put(to))),
        AnswerMessage::Answer(message) => {
            (Answer::WORD, put(&mut fields, Answer::BYTES, |to| message.put(to)))
        }
        AnswerMessage::Fault(message) => (Fault::WORD, put(&mut fields, Fault::BYTES, |to| message.put(to))),
        AnswerMessage::Printed(message) => {
            (Printed::WORD, put(&mut fields, Printed::BYTES, |to| message.put(to)))
        }
    };
    line.send(word, &fields[..bytes], tail)
}

fn put(fields: &mut [u8; 32], bytes: usize, write: impl FnOnce(&mut [u8])) -> usize {
    write(&mut fields[..bytes]);
    bytes
}
