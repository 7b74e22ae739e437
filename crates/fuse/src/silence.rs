//! A node that is asked and does not answer: whoever uses files waits for it, and the log says for what.

use hinterland_os::process;
use hinterland_pool::{Pool, Silence};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a question may have no answer before that is said.
const SAID_AFTER: Duration = Duration::from_secs(5);
/// How often it is looked whether one has none.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Questions that have no answer yet.
#[derive(Default)]
pub(crate) struct Questions {
    asked: Mutex<Asked>,
    ended: Condvar,
    /// The node's process, as the last session knew it.
    process: AtomicI32,
}

#[derive(Default)]
struct Asked {
    begun: BTreeMap<u64, Instant>,
    count: u64,
    is_said: bool,
    is_over: bool,
}

/// One question, until it is dropped.
pub(crate) struct Question<'questions> {
    all: &'questions Questions,
    number: u64,
}

/// Looks after the questions as long as it lives.
pub(crate) struct Watch(Arc<Questions>);

impl Questions {
    /// Notes which process a new session leads to.
    pub(crate) fn go_to(&self, pool: &Pool) {
        let process = pool.session().watch().and_then(|socket| Ok(socket.peer_credentials()?.process));
        // Relaxed: for people to read.
        self.process.store(process.unwrap_or_default(), Ordering::Relaxed);
    }

    /// Notes that the node is asked.
    pub(crate) fn begin(&self) -> Question<'_> {
        let mut asked = self.lock();
        let number = asked.count;
        asked.count += 1;
        asked.begun.insert(number, Instant::now());
        Question { all: self, number }
    }

    /// Says what is waited for, once for each time that it lasts.
    fn follow(&self) {
        let mut asked = self.lock();
        while !asked.is_over {
            let waited = asked.begun.values().next().map(|begun| begun.elapsed());
            if let Some(waited) = waited.filter(|waited| *waited >= SAID_AFTER && !asked.is_said) {
                asked.is_said = self.say(waited);
            }
            let looked = self.ended.wait_timeout(asked, LOOK_EVERY);
            asked = looked.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether there is anything to be said: a process that has gone is said to be away.
    fn say(&self, waited: Duration) -> bool {
        // Relaxed: as above.
        let process = self.process.load(Ordering::Relaxed);
        let status = process::text_of(format!("/proc/{process}/stat")).unwrap_or_default();
        if process > 0 && status.is_empty() {
            return false;
        }
        let state = status.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        let silence = Silence { waited, process, is_stopped: matches!(state, Some('T' | 't')) };
        tracing::warn!("whoever uses files waits: {silence} (hint: {})", silence.hint());
        true
    }

    fn lock(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        let mut asked = self.all.lock();
        asked.begun.remove(&self.number);
        if asked.is_said && asked.begun.is_empty() {
            asked.is_said = false;
            tracing::warn!("the node answers again");
        }
    }
}

impl Watch {
    /// Looks after them; without a thread for that nothing is said.
    pub(crate) fn over(questions: &Arc<Questions>) -> Self {
        let watched = Arc::clone(questions);
        let thread = thread::Builder::new().name("silence".to_owned()).spawn(move || watched.follow());
        if let Err(error) = thread {
            tracing::debug!("nothing will be said of a node that is silent: {error}");
        }
        Self(Arc::clone(questions))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Self(questions) = self;
        questions.lock().is_over = true;
        questions.ended.notify_all();
    }
}
