//! The channel on which a node tells a program something unasked, and hears its answer.

use crate::refused::{Refused, errno};
use hinterland_os::poll::wait_readable;
use hinterland_os::socket::UnixStream;
use hinterland_proto::control::{Notice, NoticeReply, ProbeRange, decode, encode};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a program may take to answer. One that is stopped must not hold up others for longer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(250);
/// How long a program that has not answered is asked nothing that can do without an answer.
const REST: Duration = Duration::from_secs(1);
/// Longest answer: one byte a probed range and a little more.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Bytes in front of an answer, which say how long it is.
const LENGTH_BYTES: usize = 4;

/// The node's end of a channel.
pub struct NoticeChannel {
    line: Mutex<Line>,
}

/// At most one notice is without an answer: nothing is sent before it has come.
struct Line {
    stream: UnixStream,
    next: u64,
    /// What has come of an answer.
    incoming: Vec<u8>,
    /// The notice whose answer did not come in time and is still to come.
    owed: Option<Owed>,
    /// Bytes were lost, or the program lies: the line is not used again.
    is_broken: bool,
}

#[derive(Clone, Copy)]
struct Owed {
    id: u64,
    since: Instant,
}

impl NoticeChannel {
    /// Makes a channel; returns the program's end too.
    ///
    /// # Errors
    /// [`Refused`] without descriptors left.
    pub fn open() -> Result<(Self, OwnedFd), Refused> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_send_timeout(Some(ANSWER_TIMEOUT))?;
        let line = Line { stream: ours, next: 1, incoming: Vec::new(), owed: None, is_broken: false };
        Ok((Self { line: Mutex::new(line) }, theirs.into()))
    }

    /// Lets the program print why memory is lost, before the SIGBUS.
    pub fn lost(&self, text: &str) {
        // Nobody asks again with these words, so an answer that is late is waited for each time: there are no more of them
        // than threads that touch lost memory. A program that does not answer gets its SIGBUS without a text.
        let _ = self.lock().ask(ANSWER_TIMEOUT, |_| Notice::Lost { text: text.to_owned() });
    }

    /// Lets the program drop the page-table entries of ranges.
    ///
    /// # Errors
    /// [`Refused`] if it does not answer.
    pub fn unmap(&self, ranges: Vec<ProbeRange>) -> Result<(), Refused> {
        self.probe(|id| Notice::Unmap { id, ranges }).map(drop)
    }

    /// Which ranges the program has touched since.
    ///
    /// # Errors
    /// [`Refused`] if it does not answer, or with another number of answers.
    pub fn touched(&self, ranges: Vec<ProbeRange>) -> Result<Vec<bool>, Refused> {
        let count = ranges.len();
        match self.probe(|id| Notice::Touched { id, ranges })? {
            NoticeReply::Touched { touched, .. } if touched.len() == count => Ok(touched),
            _ => Err(Refused::new(errno::EIO, "a program answered a probe with something else")),
        }
    }

    /// Asks a program that answers, or one that has had a rest since it did not.
    fn probe(&self, notice: impl FnOnce(u64) -> Notice) -> Result<NoticeReply, Refused> {
        let mut line = self.lock();
        let rests = line.owed.is_some_and(|owed| owed.since.elapsed() < REST);
        line.ask(if rests { Duration::ZERO } else { ANSWER_TIMEOUT }, notice)
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    /// Sends a notice and waits for its answer; before, for the answer to an earlier one that is late, for no longer than
    /// `patience`.
    fn ask(
        &mut self,
        patience: Duration,
        notice: impl FnOnce(u64) -> Notice,
    ) -> Result<NoticeReply, Refused> {
        if self.is_broken {
            return Err(Refused::new(errno::ETIMEDOUT, "a program has stopped answering notices"));
        }
        if let Some(owed) = self.owed {
            // It answers a question that nobody has any more.
            self.answer_to(owed.id, patience)?;
        }
        let id = self.next;
        self.next += 1;
        let body = encode(&notice(id))?;
        // A control message is at most 1 MiB: the cast loses nothing.
        let mut message = (body.len() as u32).to_le_bytes().to_vec();
        message.extend_from_slice(&body);
        // What has gone in part cannot be taken back.
        self.stream.send_all(&message, &[]).inspect_err(|_| self.is_broken = true)?;
        self.answer_to(id, ANSWER_TIMEOUT)
    }

    /// The answer to the notice that was sent last. One that does not come in time is owed from then on.
    fn answer_to(&mut self, id: u64, within: Duration) -> Result<NoticeReply, Refused> {
        match self.receive(within) {
            Ok(Some(answer)) if belongs_to(&answer, id) => {
                self.owed = None;
                Ok(answer)
            }
            Ok(Some(_)) => {
                self.is_broken = true;
                Err(Refused::new(errno::EIO, "a program answered another notice than the one it was sent"))
            }
            Ok(None) => {
                // A look without waiting does not make the rest any longer.
                if self.owed.is_none() || !within.is_zero() {
                    self.owed = Some(Owed { id, since: Instant::now() });
                }
                Err(Refused::new(errno::ETIMEDOUT, "a program does not answer a notice in time"))
            }
            Err(refused) => {
                self.is_broken = true;
                Err(refused)
            }
        }
    }

    /// The next answer, if all of it comes in time; what comes of it later is not lost.
    fn receive(&mut self, within: Duration) -> Result<Option<NoticeReply>, Refused> {
        let deadline = Instant::now() + within;
        loop {
            let due = match self.incoming.first_chunk::<LENGTH_BYTES>() {
                None => LENGTH_BYTES,
                Some(length) => {
                    let length = u32::from_le_bytes(*length) as usize;
                    if length > ANSWER_BYTES_MAX {
                        let text = format!("a program announced an answer of {length} bytes");
                        return Err(Refused::new(errno::EIO, text));
                    }
                    LENGTH_BYTES + length
                }
            };
            if self.incoming.len() == due && due > LENGTH_BYTES {
                let answer = decode(&self.incoming[LENGTH_BYTES..])?;
                self.incoming.clear();
                return Ok(Some(answer));
            }
            if !wait_readable(&self.stream, Some(deadline.saturating_duration_since(Instant::now())))? {
                return Ok(None);
            }
            self.take(due)?;
        }
    }

    /// Takes what is there of the first `due` bytes of an answer.
    fn take(&mut self, due: usize) -> Result<(), Refused> {
        let known = self.incoming.len();
        self.incoming.resize(due, 0);
        // Descriptors that come along are closed at once.
        let received = self.stream.receive_now(&mut self.incoming[known..], &mut Vec::new());
        self.incoming.truncate(known + received.as_ref().map_or(0, |count| *count));
        match received {
            Ok(0) => {
                Err(Refused::new(errno::EIO, "a program has ended its channel, or sent an empty answer"))
            }
            Err(error) if !error.is_would_block() => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// Whether an answer can be the one to this notice: a loss is seen without a number.
const fn belongs_to(answer: &NoticeReply, id: u64) -> bool {
    let (NoticeReply::Seen { id: echo } | NoticeReply::Touched { id: echo, .. }) = answer;
    *echo == id || *echo == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hear(stream: &UnixStream) -> Notice {
        let mut none = Vec::new();
        let mut length = [0; 4];
        stream.receive_exact(&mut length, &mut none).unwrap();
        let mut body = vec![0; u32::from_le_bytes(length) as usize];
        stream.receive_exact(&mut body, &mut none).unwrap();
        decode(&body).unwrap()
    }

    fn frame(reply: &NoticeReply) -> Vec<u8> {
        let bytes = encode(reply).unwrap();
        [&(bytes.len() as u32).to_le_bytes()[..], &bytes].concat()
    }

    fn answer_once(theirs: OwnedFd, reply: NoticeReply) -> std::thread::JoinHandle<Notice> {
        std::thread::spawn(move || {
            let stream = UnixStream::from_descriptor(theirs);
            let heard = hear(&stream);
            stream.send_all(&frame(&reply), &[]).unwrap();
            heard
        })
    }

    fn range() -> Vec<ProbeRange> {
        vec![ProbeRange { pointer: 4096, bytes: 4096 }]
    }

    #[test]
    fn a_program_answers_what_it_touched() {
        let (channel, theirs) = NoticeChannel::open().unwrap();
        let program = answer_once(theirs, NoticeReply::Touched { id: 1, touched: vec![true, false] });
        let ranges = vec![ProbeRange { pointer: 4096, bytes: 4096 }; 2];
        assert_eq!(channel.touched(ranges).unwrap(), [true, false]);
        assert!(matches!(program.join().unwrap(), Notice::Touched { id: 1, .. }));
    }

    #[test]
    fn a_program_that_does_not_answer_is_not_asked_again() {
        let (channel, _theirs) = NoticeChannel::open().unwrap();
        assert!(channel.unmap(Vec::new()).is_err());
        let before = std::time::Instant::now();
        assert!(channel.unmap(Vec::new()).is_err());
        assert!(before.elapsed() < ANSWER_TIMEOUT);
    }

    #[test]
    fn a_lying_answer_breaks_the_line() {
        let (channel, theirs) = NoticeChannel::open().unwrap();
        let program = answer_once(theirs, NoticeReply::Touched { id: 1, touched: vec![true; 9] });
        assert!(channel.touched(vec![ProbeRange { pointer: 0, bytes: 1 }]).is_err());
        program.join().unwrap();
    }

    #[test]
    fn a_late_answer_is_skipped_and_the_next_notice_is_heard() {
        let (channel, theirs) = NoticeChannel::open().unwrap();
        let program = std::thread::spawn(move || {
            let stream = UnixStream::from_descriptor(theirs);
            assert!(matches!(hear(&stream), Notice::Touched { id: 1, .. }));
            let late = frame(&NoticeReply::Touched { id: 1, touched: vec![true] });
            // One part of it in time, and the rest too late.
            stream.send_all(&late[..5], &[]).unwrap();
            std::thread::sleep(ANSWER_TIMEOUT * 3 / 2);
            stream.send_all(&late[5..], &[]).unwrap();
            let Notice::Lost { text } = hear(&stream) else { panic!("a loss was to be told") };
            stream.send_all(&frame(&NoticeReply::Seen { id: 0 }), &[]).unwrap();
            let Notice::Touched { id, .. } = hear(&stream) else { panic!("a probe was to be sent") };
            stream.send_all(&frame(&NoticeReply::Touched { id, touched: vec![false] }), &[]).unwrap();
            text
        });
        assert!(channel.touched(range()).is_err());
        channel.lost("all homes are gone");
        assert_eq!(channel.touched(range()).unwrap(), [false]);
        assert_eq!(program.join().unwrap(), "all homes are gone");
    }

    #[test]
    fn a_program_that_was_stopped_is_asked_again_after_a_rest() {
        let (channel, theirs) = NoticeChannel::open().unwrap();
        assert!(channel.unmap(range()).is_err());
        std::thread::sleep(REST);
        let program = std::thread::spawn(move || {
            let stream = UnixStream::from_descriptor(theirs);
            for expected in 1..=2 {
                let Notice::Unmap { id, .. } = hear(&stream) else { panic!("another notice") };
                assert_eq!(id, expected);
                stream.send_all(&frame(&NoticeReply::Seen { id }), &[]).unwrap();
            }
        });
        channel.unmap(range()).unwrap();
        program.join().unwrap();
    }

    #[test]
    fn a_stopped_program_holds_no_more_than_one_notice() {
        let (channel, theirs) = NoticeChannel::open().unwrap();
        assert!(channel.unmap(range()).is_err());
        for _ in 0..3 {
            channel.lost("again");
        }
        let stream = UnixStream::from_descriptor(theirs);
        assert!(matches!(hear(&stream), Notice::Unmap { id: 1, .. }));
        assert!(!wait_readable(&stream, Some(Duration::ZERO)).unwrap());
    }

    #[test]
    fn an_answer_to_another_notice_breaks_the_line() {
        let (channel, theirs) = NoticeChannel::open().unwrap();
        let program = answer_once(theirs, NoticeReply::Seen { id: 7 });
        assert!(channel.unmap(range()).is_err());
        program.join().unwrap();
        assert!(channel.lock().is_broken);
    }
}
