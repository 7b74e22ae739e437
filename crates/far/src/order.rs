//! Orders to reclaim threads: which units leave a program together, and what became of each.
//!
//! A reclaim thread may be late: its program was stopped, or gets no processor. Nobody waits long for it: the order stays as it is, its units
//! on their way out, and is looked at again, while other programs are asked. An order that was given back in place of that could still be done when the
//! program goes on, behind the back of the table.

use crate::engine::Mover;
use crate::store::Copy;
use hinterland_farplan::wire::{self, Kind, Message};
use hinterland_farplan::{PAGE, Piece};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// How long an answer is waited for at once. Then it is asked whether the run is over, and whether the program still exists: where a child has its
/// connection, too, its end is not seen there.
pub(crate) const ANSWER_PATIENCE: Duration = Duration::from_millis(100);
/// A huge page, which moves in one piece.
const HUGE: u64 = 2 << 20;

/// A unit that is on its way out.
pub(crate) struct Victim {
    pub start: u64,
    pub end: u64,
    pub ticket: u64,
    pub clean: Option<Piece<Copy>>,
}

/// Units of one space that leave together.
pub(crate) struct Batch {
    pub process: i32,
    pub mover: Mover,
    pub epoch: u64,
    pub victims: Vec<Victim>,
    /// The kernel has refused to move them before.
    pub was_refused: bool,
}

/// Neighbours that are moved by one order.
pub(crate) struct Run {
    pub start: u64,
    pub bytes: u64,
    /// Where in the staging area they go.
    pub place: u64,
    /// Which of the batch they are.
    pub victims: Range<usize>,
}

/// What a reclaim thread says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Bytes moved and error number of each run.
    Moved(Vec<(u64, u64)>),
    /// Nothing, or not all, so far.
    NotYet,
    /// There will be none: the program has ended or become another one, or its reclaim thread says something else.
    Never,
}

/// A batch that a reclaim thread was told to move out.
pub(crate) struct Order {
    pub batch: Batch,
    pub runs: Vec<Run>,
    /// What has come of the answer.
    answer: Vec<u8>,
    filled: usize,
    is_sent: bool,
}

impl Order {
    /// Has the reclaim thread move a batch.
    pub(crate) fn give(batch: Batch) -> Self {
        let runs = runs(&batch.victims);
        let mut bytes = Vec::with_capacity((runs.len() + 1) * wire::BYTES);
        for run in &runs {
            bytes.extend_from_slice(&Message::new(Kind::Take, [run.start, run.bytes, run.place]).to_bytes());
        }
        bytes.extend_from_slice(&Message::new(Kind::Run, [batch.epoch, runs.len() as u64, 0]).to_bytes());
        let is_sent = batch.mover.stream.send_all(&bytes, &[]).is_ok();
        let answer = vec![0; runs.len() * wire::BYTES];
        Self { batch, runs, answer, filled: 0, is_sent }
    }

    /// Whether it is with this reclaim thread, which has room for one.
    pub(crate) fn is_with(&self, mover: &Mover) -> bool {
        Arc::ptr_eq(&self.batch.mover.stream, &mover.stream)
    }

    /// What has been answered, after a while at most if it `waits`.
    pub(crate) fn answer(&mut self, waits: bool) -> Answer {
        let mover = &self.batch.mover;
        while self.is_sent && self.filled < self.answer.len() {
            let rest = &mut self.answer[self.filled..];
            // Nobody sends descriptors here; any that come are closed.
            let received = if waits {
                mover.stream.receive(rest, &mut Vec::new())
            } else {
                mover.stream.receive_now(rest, &mut Vec::new())
            };
            match received {
                Ok(more @ 1..) => self.filled += more,
                Err(error) if error.is_would_block() && mover.pages.is_alive() => return Answer::NotYet,
                _ => return Answer::Never,
            }
        }
        if self.is_sent { self.parse() } else { Answer::Never }
    }

    fn parse(&self) -> Answer {
        let mut moved = Vec::with_capacity(self.runs.len());
        for (run, answer) in self.runs.iter().zip(self.answer.as_chunks::<{ wire::BYTES }>().0) {
            match Message::parse(answer) {
                Some(Message { kind: Kind::Taken, words: [start, done, error] }) if start == run.start => {
                    // Whole pages, and no more than were asked for, whatever a program says.
                    moved.push((done.min(run.bytes) & !(PAGE - 1), error));
                }
                // The program has changed our library's memory.
                _ => return Answer::Never,
            }
        }
        Answer::Moved(moved)
    }
}

/// Neighbours as one run each, placed so that a huge page stays one.
fn runs(victims: &[Victim]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (index, victim) in victims.iter().enumerate() {
        let bytes = victim.end - victim.start;
        if let Some(last) = runs.last_mut()
            && last.start + last.bytes == victim.start
            && victim.start % HUGE != 0
        {
            last.bytes += bytes;
            last.victims.end = index + 1;
            continue;
        }
        let place = runs.last().map_or(0, |last| last.place + last.bytes);
        runs.push(Run { start: victim.start, bytes, place, victims: index..index + 1 });
    }
    runs
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use hinterland_os::pagemap::PageMap;
    use hinterland_os::socket::UnixStream;
    use std::process::{Child, Command, Stdio};

    /// An order to a program, the other end of its connection, and the program.
    fn order() -> (Order, UnixStream, Child) {
        let program = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let (here, there) = UnixStream::pair().unwrap();
        here.set_receive_timeout(Some(Duration::from_millis(1))).unwrap();
        let pages = Arc::new(PageMap::of_process(program.id() as i32).unwrap());
        let mover = Mover { stream: Arc::new(here), pages, staging: 0, staging_bytes: 4 << 20 };
        let victim = |start: u64| Victim { start, end: start + PAGE, ticket: 1, clean: None };
        let victims = vec![victim(8 * PAGE), victim(9 * PAGE), victim(20 * PAGE)];
        let batch = Batch { process: program.id() as i32, mover, epoch: 2, victims, was_refused: false };
        (Order::give(batch), there, program)
    }

    fn end(mut program: Child) {
        drop(program.stdin.take());
        program.wait().unwrap();
    }

    #[test]
    fn an_answer_that_comes_late_and_in_parts_is_taken_whole() {
        let (mut order, there, program) = order();
        assert_eq!(order.answer(true), Answer::NotYet);
        let taken = |start: u64, pages: u64| Message::new(Kind::Taken, [start * PAGE, pages * PAGE, 0]);
        let bytes = [taken(8, 2).to_bytes(), taken(20, 9).to_bytes()].concat();
        there.send_all(&bytes[..40], &[]).unwrap();
        assert_eq!(order.answer(false), Answer::NotYet);
        there.send_all(&bytes[40..], &[]).unwrap();
        // No more than was asked for.
        assert_eq!(order.answer(false), Answer::Moved(vec![(2 * PAGE, 0), (PAGE, 0)]));
        end(program);
    }

    #[test]
    fn nobody_waits_for_a_program_that_has_ended_while_a_child_has_its_connection() {
        let (mut order, there, program) = order();
        end(program);
        assert_eq!(order.answer(true), Answer::Never);
        drop(there);
    }

    #[test]
    fn something_else_than_an_answer_is_none() {
        let (mut order, there, program) = order();
        there.send_all(&[1; 2 * wire::BYTES], &[]).unwrap();
        assert_eq!(order.answer(true), Answer::Never);
        end(program);
    }
}
