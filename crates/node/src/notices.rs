//! The channel on which a node tells a program something unasked, and hears its answer.

use crate::refused::{Refused, errno};
use hinterland_os::socket::UnixStream;
use hinterland_proto::control::{Notice, NoticeReply, ProbeRange, decode, encode};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long a program may take to answer. One that is stopped must not hold up others for longer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(250);
/// Longest answer: one byte a probed range and a little more.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The node's end of a channel.
pub struct NoticeChannel {
    stream: Mutex<Line>,
}

struct Line {
    stream: UnixStream,
    next: u64,
    /// After a timeout an answer may still come and would be taken for the next one: the line is not used again.
    broken: bool,
}

impl NoticeChannel {
    /// Makes a channel; returns the program's end too.
    ///
    /// # Errors
    /// [`Refused`] without descriptors left.
    pub fn open() -> Result<(Self, OwnedFd), Refused> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_receive_timeout(Some(ANSWER_TIMEOUT))?;
        ours.set_send_timeout(Some(ANSWER_TIMEOUT))?;
        let line = Line { stream: ours, next: 1, broken: false };
        Ok((Self { stream: Mutex::new(line) }, theirs.into()))
    }

    /// Lets the program print why memory is lost, before the SIGBUS.
    pub fn lost(&self, text: &str) {
        // A program that does not answer gets its SIGBUS without a text.
        let _ = self.ask(|_| Notice::Lost { text: text.to_owned() });
    }

    /// Lets the program drop the page-table entries of ranges.
    ///
    /// # Errors
    /// [`Refused`] if it does not answer.
    pub fn unmap(&self, ranges: Vec<ProbeRange>) -> Result<(), Refused> {
        self.ask(|id| Notice::Unmap { id, ranges }).map(drop)
    }

    /// Which ranges the program has touched since.
    ///
    /// # Errors
    /// [`Refused`] if it does not answer, or with another number of answers.
    pub fn touched(&self, ranges: Vec<ProbeRange>) -> Result<Vec<bool>, Refused> {
        let count = ranges.len();
        match self.ask(|id| Notice::Touched { id, ranges })? {
            NoticeReply::Touched { touched, .. } if touched.len() == count => Ok(touched),
            _ => Err(Refused::new(errno::EIO, "a program answered a probe with something else")),
        }
    }

    fn ask(&self, notice: impl FnOnce(u64) -> Notice) -> Result<NoticeReply, Refused> {
        let mut line = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        if line.broken {
            return Err(Refused::new(errno::ETIMEDOUT, "a program has stopped answering notices"));
        }
        let id = line.next;
        line.next += 1;
        let answer = line.exchange(&notice(id));
        line.broken |= answer.is_err();
        let answer = answer?;
        match &answer {
            NoticeReply::Seen { id: echo } | NoticeReply::Touched { id: echo, .. }
                if *echo == id || *echo == 0 =>
            {
                Ok(answer)
            }
            _ => {
                line.broken = true;
                Err(Refused::new(errno::EIO, "a program answered another notice than the one it was sent"))
            }
        }
    }
}

impl Line {
    fn exchange(&mut self, notice: &Notice) -> Result<NoticeReply, Refused> {
        let body = encode(notice)?;
        // A control message is at most 1 MiB: the cast loses nothing.
        let mut message = (body.len() as u32).to_le_bytes().to_vec();
        message.extend_from_slice(&body);
        self.stream.send_all(&message, &[])?;
        let mut length = [0; 4];
        let mut none = Vec::new();
        self.stream.receive_exact(&mut length, &mut none)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > ANSWER_BYTES_MAX {
            return Err(Refused::new(errno::EIO, format!("a program announced an answer of {length} bytes")));
        }
        let mut body = vec![0; length];
        self.stream.receive_exact(&mut body, &mut none)?;
        Ok(decode(&body)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer_once(theirs: OwnedFd, reply: NoticeReply) -> std::thread::JoinHandle<Notice> {
        std::thread::spawn(move || {
            let stream = UnixStream::from_descriptor(theirs);
            let mut none = Vec::new();
            let mut length = [0; 4];
            stream.receive_exact(&mut length, &mut none).unwrap();
            let mut body = vec![0; u32::from_le_bytes(length) as usize];
            stream.receive_exact(&mut body, &mut none).unwrap();
            let bytes = encode(&reply).unwrap();
            stream.send_all(&(bytes.len() as u32).to_le_bytes(), &[]).unwrap();
            stream.send_all(&bytes, &[]).unwrap();
            decode(&body).unwrap()
        })
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
}
