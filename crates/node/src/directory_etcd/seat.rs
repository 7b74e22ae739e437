//! A host that leads: many threads ask, one of them writes what all of them changed.

use crate::directory_etcd::store::{CommitError, Fence};
use crate::fault_point;
use hinterland_directory::{Command, Directory, DirectoryError, Ended, Reign, Reply, RequestId, Standing};
use hinterland_os::clock;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often a waiting thread looks whether the time of the reign is over.
const LOOK: Duration = Duration::from_millis(50);

/// Why the leader gives no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NoAnswer {
    /// Nothing has changed, and it would not help to ask again.
    NotWritten(String),
    /// It may not lead any more: another may, and whether the command was carried out is not known.
    NotLeading(String),
}

/// A host that leads.
pub struct Seat {
    reign: Mutex<Reign>,
    fence: Arc<Mutex<Fence>>,
    changed: Condvar,
}

impl Seat {
    /// Leads with what was loaded, believed until a time of [`clock::boot_ms`].
    pub fn new(directory: Directory, fence: Arc<Mutex<Fence>>, believed_until_ms: u64) -> Self {
        Self { reign: Mutex::new(Reign::new(directory, believed_until_ms)), fence, changed: Condvar::new() }
    }

    fn reign(&self) -> MutexGuard<'_, Reign> {
        self.reign.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lease was renewed by a request sent at `sent_ms`.
    pub fn renewed(&self, sent_ms: u64, lease_ms: u64) {
        self.reign().renewed(sent_ms, lease_ms);
    }

    /// Whether nobody else can lead now.
    pub fn is_believed(&self) -> bool {
        self.reign().is_believed(clock::boot_ms())
    }

    /// Why the reign is over, if it is.
    pub fn ended(&self) -> Option<Ended> {
        self.reign().ended().cloned()
    }

    /// The reign is over.
    pub fn end(&self, why: &str) {
        self.reign().end(Ended::Over(why.to_owned()));
        self.changed.notify_all();
    }

    /// Answers a command; when it returns, what the answer saw is durable.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub fn apply(
        &self,
        id: Option<RequestId>,
        command: &Command,
    ) -> Result<Result<Reply, DirectoryError>, NoAnswer> {
        let cut_off = || {
            let text = "this host led the directory and has lost touch with etcd, so another may lead; it answers nothing";
            NoAnswer::NotLeading(text.to_owned())
        };
        let mut reign = self.reign();
        let judged = match reign.judge(clock::boot_ms(), id, command) {
            Some(judged) => judged,
            None => return Err(reign.ended().cloned().map_or_else(cut_off, no_answer)),
        };
        loop {
            match reign.standing(clock::boot_ms(), &judged) {
                Standing::Answer => return Ok(judged.outcome),
                Standing::CutOff => return Err(cut_off()),
                Standing::Ended(ended) => return Err(no_answer(ended)),
                Standing::Wait => {}
            }
            reign = match reign.begin_write() {
                Some(batch) => {
                    drop(reign);
                    self.write(batch.mutations);
                    self.reign()
                }
                None => self.changed.wait_timeout(reign, LOOK).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }

    fn write(&self, mutations: Vec<hinterland_directory::Mutation>) {
        fault_point::reach("directory-planned");
        let outcome = {
            let mut fence = self.fence.lock().unwrap_or_else(PoisonError::into_inner);
            fence.write(mutations, &|| self.is_believed())
        };
        match outcome {
            Ok(()) => {
                fault_point::reach("directory-durable");
                self.reign().written();
            }
            Err(CommitError::NotWritten(why)) => self.reign().end(Ended::NotWritten(why)),
            Err(CommitError::Over(why)) => self.reign().end(Ended::Over(why)),
        }
        self.changed.notify_all();
    }
}

fn no_answer(ended: Ended) -> NoAnswer {
    match ended {
        Ended::NotWritten(why) => NoAnswer::NotWritten(why),
        Ended::Over(why) => NoAnswer::NotLeading(why),
    }
}
