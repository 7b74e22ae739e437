//! What comes back from the node: marks that were reached, bytes, answers and faults.
//!
//! Nobody reads in the background. Whoever waits reads, for everybody; others that wait meanwhile sleep until the reader has
//! got something or has gone.
//!
//! Relaxed where nothing else is said: numbers that only their own cell tells of, or that are written with the receiver locked.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use hinterland_channel::{Frame, Receiver};
use hinterland_proto::gpu::answer::{AnswerMessage, library};

use super::handle::NumberMap;
use super::stream::Stream;
use crate::code::{Code, UNAVAILABLE, UNKNOWN};

/// State of something that has not come yet.
const OPEN: Code = Code::MIN;
/// How long a thread sleeps at most before it looks whether the node is still there.
const PATIENCE: Duration = Duration::from_millis(100);
/// Most runs of commands that the node refused which are remembered. What is forgotten costs further refusals, and is found by those.
const REFUSED_MAX: usize = 64;
/// Longest text of a fault that is read.
const TEXT_MAX: usize = 4096;

/// Where bytes go in the program's memory: rows of `width` bytes, `pitch` bytes apart.
#[derive(Debug, Clone, Copy)]
pub struct Destination {
    /// First byte.
    pub start: usize,
    /// Bytes of a row.
    pub width: usize,
    /// From one row to the next.
    pub pitch: usize,
    /// Bytes of all rows.
    pub bytes: usize,
}

impl Destination {
    /// The first byte, and the one behind the last.
    #[must_use]
    pub fn range(&self) -> (usize, usize) {
        let rows = self.bytes / self.width.max(1);
        (self.start, self.start + rows.saturating_sub(1) * self.pitch + self.width.min(self.bytes))
    }
}

/// What is expected.
#[derive(Debug)]
pub enum Target {
    /// A mark behind which these streams have come that far.
    Mark(Vec<(Arc<Stream>, u64)>),
    /// Bytes, and then this stream has come that far.
    Bytes(Destination, Arc<Stream>, AtomicU64),
    /// An answer.
    Question,
}

/// Something that is expected from the node.
#[derive(Debug)]
pub struct Pending {
    state: AtomicI32,
    target: Target,
    got: AtomicU64,
    answer: Mutex<Vec<u8>>,
}

impl Pending {
    /// The error that came, or 0, once it has come.
    #[must_use]
    pub fn state(&self) -> Option<Code> {
        // Acquire: pairs with the store in `settle`; what came with it is then seen.
        match self.state.load(Ordering::Acquire) {
            OPEN => None,
            state => Some(state),
        }
    }

    fn settle(&self, error: Code) {
        self.state.store(error, Ordering::Release);
    }

    /// What it is, for people.
    pub(super) fn kind(&self) -> &'static str {
        match &self.target {
            Target::Mark(_) => "a mark",
            Target::Bytes(..) => "bytes into memory that is not pinned",
            Target::Question => "an answer",
        }
    }

    /// Says which command brings the bytes.
    pub(super) fn set_command(&self, command: u64) {
        if let Target::Bytes(_, _, end) = &self.target {
            end.store(command, Ordering::Relaxed);
        }
    }

    /// The bytes of an answer.
    pub(super) fn take_answer(&self) -> Vec<u8> {
        std::mem::take(&mut self.answer.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Everything that has come or is expected.
#[derive(Debug)]
pub struct Inbox {
    receiver: Mutex<Receiver>,
    pending: Mutex<(u32, NumberMap<u64, Arc<Pending>>)>,
    turn: Mutex<usize>,
    turned: Condvar,
    /// A fault after which the device is of no use.
    sticky: AtomicI32,
    /// A fault that is told once.
    once: AtomicI32,
    /// Commands that the node refused, by their count.
    refused: Mutex<VecDeque<RangeInclusive<u64>>>,
    has_spoken: AtomicBool,
    /// Times that a thread waited for the node.
    waits: AtomicU64,
}

impl Inbox {
    pub(super) fn new(receiver: Receiver) -> Self {
        Self {
            receiver: Mutex::new(receiver),
            pending: Mutex::new((1, NumberMap::default())),
            turn: Mutex::new(0),
            turned: Condvar::new(),
            sticky: AtomicI32::new(0),
            once: AtomicI32::new(0),
            refused: Mutex::default(),
            has_spoken: AtomicBool::new(false),
            waits: AtomicU64::new(0),
        }
    }

    /// Names something that is expected.
    pub(super) fn expect(&self, target: Target) -> (u64, Arc<Pending>) {
        let pending = Arc::new(Pending {
            state: AtomicI32::new(OPEN),
            target,
            got: AtomicU64::new(0),
            answer: Mutex::new(Vec::new()),
        });
        let mut all = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let mut number = all.0;
        // 0 is no name, and names that are still expected are passed over when the count has gone round.
        while number == 0 || all.1.contains_key(&u64::from(number)) {
            number = number.wrapping_add(1);
        }
        all.0 = number.wrapping_add(1);
        all.1.insert(u64::from(number), pending.clone());
        (u64::from(number), pending)
    }

    /// How often a thread waited for the node so far.
    pub(super) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// The fault after which nothing works any more, or 0.
    pub(super) fn sticky(&self) -> Code {
        self.sticky.load(Ordering::Relaxed)
    }

    /// A fault that is to be told now: the sticky one, or once one that is not.
    pub(super) fn surface(&self) -> Result<(), Code> {
        match self.sticky() {
            0 => {}
            error => return Err(error),
        }
        if self.once.load(Ordering::Relaxed) != 0 {
            match self.once.swap(0, Ordering::Relaxed) {
                0 => {}
                error => return Err(error),
            }
        }
        Ok(())
    }

    /// A fault that is told once was told.
    pub(super) fn note_told(&self, error: Code) {
        let _ = self.once.compare_exchange(error, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The channel is of no use any more.
    pub(super) fn lose(&self, why: &dyn std::fmt::Display) -> Code {
        if !self.has_spoken.swap(true, Ordering::Relaxed) {
            eprintln!(
                "hinterland: the GPU node is gone: {why} (hint: start the program again when `hinterland gpu ls` answers)"
            );
        }
        let _ = self.sticky.compare_exchange(0, UNAVAILABLE, Ordering::Relaxed, Ordering::Relaxed);
        UNAVAILABLE
    }

    /// Takes what has come, if nobody else is at it.
    ///
    /// # Errors
    /// The node is gone.
    pub fn drain(&self) -> Result<(), Code> {
        match self.receiver.try_lock() {
            Ok(mut receiver) => self.take_all(&mut receiver),
            Err(TryLockError::WouldBlock) => Ok(()),
            Err(TryLockError::Poisoned(poisoned)) => self.take_all(&mut poisoned.into_inner()),
        }
    }

    /// Waits until something expected has come, and returns its error or 0.
    ///
    /// # Errors
    /// The node is gone.
    pub(super) fn wait(&self, pending: &Pending) -> Result<Code, Code> {
        if pending.state().is_none() {
            self.waits.fetch_add(1, Ordering::Relaxed);
        }
        loop {
            if let Some(state) = pending.state() {
                return Ok(state);
            }
            match self.receiver.try_lock() {
                Ok(receiver) => self.lead(receiver, pending)?,
                Err(TryLockError::Poisoned(poisoned)) => self.lead(poisoned.into_inner(), pending)?,
                Err(TryLockError::WouldBlock) => self.follow(pending)?,
            }
        }
    }

    /// Reads for everybody until `pending` has come.
    fn lead(&self, mut receiver: MutexGuard<'_, Receiver>, pending: &Pending) -> Result<(), Code> {
        let result = loop {
            if let Err(error) = self.take_all(&mut receiver) {
                break Err(error);
            }
            if pending.state().is_some() {
                break Ok(());
            }
            if let Err(error) = receiver.wait(Some(PATIENCE)) {
                // What was sent before the end still counts.
                let _ = self.take_all(&mut receiver);
                break if pending.state().is_some() { Ok(()) } else { Err(self.lose(&error)) };
            }
        };
        drop(receiver);
        self.tell_followers();
        result
    }

    fn follow(&self, pending: &Pending) -> Result<(), Code> {
        let mut followers = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // Under this lock: a leader that goes tells followers under it, after it has let go of the receiver.
        if pending.state().is_some() || !matches!(self.receiver.try_lock(), Err(TryLockError::WouldBlock)) {
            return Ok(());
        }
        if self.sticky() == UNAVAILABLE {
            return Err(UNAVAILABLE);
        }
        *followers += 1;
        let (mut followers, _) =
            self.turned.wait_timeout(followers, PATIENCE).unwrap_or_else(PoisonError::into_inner);
        *followers -= 1;
        Ok(())
    }

    fn tell_followers(&self) {
        let followers = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if *followers > 0 {
            self.turned.notify_all();
        }
    }

    fn take_all(&self, receiver: &mut Receiver) -> Result<(), Code> {
        let mut some = false;
        loop {
            match receiver.next() {
                Ok(Some(frame)) => {
                    some = true;
                    self.take(&frame).map_err(|why| self.lose(&why))?;
                }
                Ok(None) => break,
                Err(error) => return Err(self.lose(&error)),
            }
        }
        if some {
            self.tell_followers();
        }
        Ok(())
    }

    /// Gives up bytes that are expected: when this returns, none of them is written any more.
    pub(super) fn abandon(&self, pending: &Arc<Pending>) {
        // With the receiver locked nobody is in the middle of writing.
        let receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner);
        self.pending
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .1
            .retain(|_, one| !Arc::ptr_eq(one, pending));
        drop(receiver);
    }

    fn find(&self, number: u64) -> Option<Arc<Pending>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).1.get(&number).cloned()
    }

    fn forget(&self, number: u64) -> Option<Arc<Pending>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).1.remove(&number)
    }

    fn take(&self, frame: &Frame<'_>) -> Result<(), String> {
        let fields = AnswerMessage::field_bytes(frame.word()).map_err(|error| error.to_string())?;
        let answer = AnswerMessage::read(frame.word(), frame.head(), frame.len())
            .map_err(|error| error.to_string())?;
        match answer {
            AnswerMessage::Reached(reached) => {
                let pending = self.forget(reached.mark).ok_or("a mark was reached that nobody set")?;
                if let Target::Mark(ends) = &pending.target {
                    ends.iter().for_each(|(stream, end)| stream.reach(*end));
                }
                pending.settle(reached.error);
            }
            AnswerMessage::Bytes(bytes) => {
                self.take_bytes(bytes.transfer, bytes.error, bytes.offset, frame, fields)?
            }
            AnswerMessage::Answer(answer) => {
                let pending = self.forget(u64::from(answer.question)).ok_or("an answer to no question")?;
                let mut tail = vec![0; frame.len() - fields];
                frame.read_at(fields, &mut tail).map_err(|error| error.to_string())?;
                *pending.answer.lock().unwrap_or_else(PoisonError::into_inner) = tail;
                pending.settle(answer.error);
            }
            AnswerMessage::Printed(_) => {
                let mut text = vec![0; frame.len() - fields];
                frame.read_at(fields, &mut text).map_err(|error| error.to_string())?;
                print(&text);
            }
            AnswerMessage::Fault(fault) => {
                let mut text = vec![0; (frame.len() - fields).min(TEXT_MAX)];
                frame.read_at(fields, &mut text).map_err(|error| error.to_string())?;
                self.note_refused(fault.command);
                self.take_fault(
                    fault.error,
                    fault.library,
                    fault.sticky != 0,
                    &String::from_utf8_lossy(&text),
                );
            }
        }
        Ok(())
    }

    fn take_bytes(
        &self,
        transfer: u32,
        error: i32,
        offset: u64,
        frame: &Frame<'_>,
        head: usize,
    ) -> Result<(), String> {
        let number = u64::from(transfer);
        let Some(pending) = self.find(number) else {
            // Given up when the node was lost, or a mistake of the node's.
            return if self.sticky() == UNAVAILABLE {
                Ok(())
            } else {
                Err("bytes came that nobody asked for".into())
            };
        };
        let Target::Bytes(place, stream, end) = &pending.target else {
            return Err("bytes came for something else".into());
        };
        if error != 0 {
            self.forget(number);
            pending.settle(error);
            return Ok(());
        }
        let got = pending.got.load(Ordering::Relaxed);
        let bytes = frame.len() - head;
        // In order and never more than was asked: nothing is written beyond the program's buffer.
        if offset != got || bytes as u64 > place.bytes as u64 - got {
            return Err(format!("bytes {offset}+{bytes} of a transfer of {} came after {got}", place.bytes));
        }
        let mut at = got as usize;
        let mut from = head;
        while from < frame.len() {
            let (row, column) = (at / place.width, at % place.width);
            let run = (place.width - column).min(frame.len() - from);
            let to = std::ptr::with_exposed_provenance_mut::<u8>(place.start + row * place.pitch + column);
            // SAFETY: the program gave the destination to a copy that is not over, and the run lies in a row of it.
            unsafe { frame.copy_to_address(from, to, run) }.map_err(|error| error.to_string())?;
            at += run;
            from += run;
        }
        pending.got.store(at as u64, Ordering::Relaxed);
        if at == place.bytes {
            self.forget(number);
            stream.reach(end.load(Ordering::Relaxed));
            pending.settle(0);
        }
        Ok(())
    }

    fn note_refused(&self, command: u64) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = refused.back_mut().filter(|last| last.end().checked_add(1) == Some(command)) {
            *last = *last.start()..=command;
            return;
        }
        if refused.len() == REFUSED_MAX {
            refused.pop_front();
        }
        refused.push_back(command..=command);
    }

    /// Whether the node has said that it refused a command, as far as that was read and is remembered.
    pub(super) fn is_refused(&self, command: u64) -> bool {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.iter().any(|run| run.contains(&command))
    }

    fn take_fault(&self, error: Code, from: u32, sticky: bool, text: &str) {
        // A node does not get to steer the terminal.
        let text: String = text.chars().map(|one| if one.is_control() { ' ' } else { one }).collect();
        eprintln!("hinterland: the GPU node says: {text}");
        let error = match from {
            library::DRIVER if error > 0 => error,
            _ => UNKNOWN,
        };
        let place = if sticky { &self.sticky } else { &self.once };
        let _ = place.compare_exchange(0, error, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Writes to the program's standard output, through the same buffer as the program itself.
fn print(text: &[u8]) {
    unsafe extern "C" {
        /// C's own.
        static stdout: *mut libc::FILE;
    }
    // SAFETY: the stream is the library's, which reads as many bytes as it is told; nobody is told of a standard output that is closed.
    unsafe { libc::fwrite(text.as_ptr().cast(), 1, text.len(), stdout) };
}
