//! Asks the node for `hinterland top` beside the picture: a node or a directory that hangs holds up neither that nor ctrl-C.

use crate::context::Context;
use crate::failure::Failure;
use crate::shapes::Members;
use hinterland_os::poll::{EventCounter, Interest, Poller, SignalWatch};
use hinterland_pool::{Pool, PoolError};
use hinterland_proto::control::{MemberInfo, NodeStatus};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Token of a signal that ends the watch.
const SIGNAL: u64 = 0;
/// Token of an answer.
const ANSWER: u64 = 1;

/// What the pool was at one moment.
pub struct Sample {
    /// When.
    pub at: Instant,
    /// The node.
    pub status: NodeStatus,
    /// The members of its pool.
    pub members: Members,
}

/// What a look at the node has shown.
pub enum Look {
    /// It answers.
    Seen(Box<Sample>),
    /// It does not, and why.
    Unseen(Failure),
    /// A signal is to end the watch.
    Interrupted,
}

/// A node that is looked at again and again, and may end and start meanwhile.
pub struct Watch {
    poller: Poller,
    answered: Arc<EventCounter>,
    status: Asker<NodeStatus, PoolError>,
    members: Asker<Vec<MemberInfo>, PoolError>,
}

impl Watch {
    /// Begins to watch the node of the context. `signals` must outlive it.
    ///
    /// # Errors
    /// [`Failure`] without threads or descriptors left.
    pub fn start(context: &Context, signals: &SignalWatch) -> Result<Self, Failure> {
        let (poller, answered) = (Poller::new()?, Arc::new(EventCounter::new()?));
        poller.add(signals, SIGNAL, Interest::READ)?;
        poller.add(&*answered, ANSWER, Interest::READ)?;
        let status = Asker::start(&answered, of_node(context, Pool::status))?;
        // With a session of its own: the directory may take long, and the node answers for itself meanwhile.
        let members = Asker::start(&answered, of_node(context, Pool::members))?;
        Ok(Self { poller, answered, status, members })
    }

    /// Asks, and waits for the answers, for no longer than `patience` if there is one. An answer to an earlier question that is
    /// still to come is not waited for.
    ///
    /// # Errors
    /// [`Failure`] if the system cannot wait.
    pub fn look(&mut self, patience: Option<Duration>) -> Result<Look, Failure> {
        let deadline = patience.map(|patience| Instant::now() + patience);
        self.status.ask();
        let waits_for_members = self.members.ask();
        let (mut status, mut members, mut ready) = (None, None, Vec::new());
        loop {
            status = status.or_else(|| self.status.answer());
            members = members.or_else(|| self.members.answer());
            let is_done = match &status {
                Some(Ok(_)) => members.is_some() || !waits_for_members,
                Some(Err(_)) => true,
                None => false,
            };
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if is_done || left.is_some_and(|left| left.is_zero()) {
                break;
            }
            self.poller.wait(&mut ready, left)?;
            if ready.iter().any(|one| one.token == SIGNAL) {
                return Ok(Look::Interrupted);
            }
            self.answered.take();
        }
        Ok(match status {
            Some(Ok(status)) => {
                let members = match members {
                    Some(known) => known.map_err(|error| error.to_string()),
                    None => Err(format!("the directory has not answered for {} s", self.members.waited_s())),
                };
                Look::Seen(Box::new(Sample { at: Instant::now(), status, members }))
            }
            Some(Err(error)) => Look::Unseen(error.into()),
            None => Look::Unseen(Failure::new(
                format!("the node has not answered for {} s", self.status.waited_s()),
                "it may be stopped, or very busy: `hinterland doctor` on its host tells more",
            )),
        })
    }
}

/// A thread that asks one question, over and over.
pub struct Asker<T, E> {
    questions: Sender<()>,
    answers: Receiver<Result<T, E>>,
    /// Since when an answer is to come.
    asked: Option<Instant>,
}

impl<T: Send + 'static, E: Send + 'static> Asker<T, E> {
    /// Starts the thread, which raises `answered` with each answer.
    ///
    /// # Errors
    /// [`Failure`] without threads left.
    pub fn start(
        answered: &Arc<EventCounter>,
        mut question: impl FnMut() -> Result<T, E> + Send + 'static,
    ) -> Result<Self, Failure> {
        let (questions, asked) = channel();
        let (answer, answers) = channel();
        let answered = Arc::clone(answered);
        let serve = move || {
            while asked.recv().is_ok() {
                if answer.send(question()).is_err() {
                    return;
                }
                answered.raise();
            }
        };
        let thread = std::thread::Builder::new().name("asks".to_owned()).spawn(serve);
        thread.map(|_| Self { questions, answers, asked: None }).map_err(|error| {
            Failure::new(format!("a thread cannot be started: {error}"), "end programs, or raise `ulimit -u`")
        })
    }

    /// Asks, unless an answer is still to come; whether it did.
    pub fn ask(&mut self) -> bool {
        let asks = self.asked.is_none();
        // A thread that is gone has met a defect, and then no answer ever comes, which is told.
        if asks && self.questions.send(()).is_ok() {
            self.asked = Some(Instant::now());
        }
        asks
    }

    /// The answer, if it has come.
    pub fn answer(&mut self) -> Option<Result<T, E>> {
        let answer = self.answers.try_recv().ok()?;
        self.asked = None;
        Some(answer)
    }

    /// For how long an answer is waited for, in seconds.
    pub fn waited_s(&self) -> u64 {
        self.asked.map_or(0, |asked| asked.elapsed().as_secs())
    }
}

/// A question to the node of the context.
fn of_node<T>(
    context: &Context,
    question: fn(&Pool) -> Result<T, PoolError>,
) -> impl FnMut() -> Result<T, PoolError> + Send + 'static
where
    T: 'static,
{
    let (socket, mut pool) = (context.socket(), None);
    move || ask(&mut pool, || Pool::connect(Some(&socket)), question)
}

/// Asks over the connection that is there, or over a fresh one if the node has ended that one, as by a restart.
fn ask<P, T>(
    pool: &mut Option<P>,
    connect: impl Fn() -> Result<P, PoolError>,
    question: fn(&P) -> Result<T, PoolError>,
) -> Result<T, PoolError> {
    if let Some(known) = pool {
        match question(known) {
            Err(PoolError::Refused { code, text }) => return Err(PoolError::Refused { code, text }),
            Ok(answer) => return Ok(answer),
            Err(_) => *pool = None,
        }
    }
    question(pool.insert(connect()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A connection that answers so many questions.
    struct Line(Cell<u32>);

    fn question(line: &Line) -> Result<u32, PoolError> {
        match line.0.get() {
            0 => Err(PoolError::Closed),
            left => {
                line.0.set(left - 1);
                Ok(left)
            }
        }
    }

    #[test]
    fn a_node_that_has_started_again_is_asked_over_a_fresh_connection() {
        let mut line = None;
        let connect = || Ok(Line(Cell::new(2)));
        for expected in [2, 1, 2] {
            assert_eq!(ask(&mut line, connect, question).unwrap(), expected);
        }
        line = Some(Line(Cell::new(0)));
        let nobody =
            || Err(PoolError::NoNode { socket: "/x".into(), source: std::io::ErrorKind::NotFound.into() });
        assert!(matches!(ask(&mut line, nobody, question), Err(PoolError::NoNode { .. })));
        assert_eq!(ask(&mut line, connect, question).unwrap(), 2);
    }

    #[test]
    fn a_question_that_is_refused_keeps_its_connection() {
        let mut line = Some(Line(Cell::new(1)));
        let refuses = |_: &Line| -> Result<(), _> {
            Err(PoolError::Refused { code: 5, text: "the directory is away".to_owned() })
        };
        let never = || -> Result<Line, PoolError> { panic!("it is not needed") };
        assert!(ask(&mut line, never, refuses).is_err());
        assert!(line.is_some());
    }
}
