//! A node that is not there, for all who wait until it is started again.

use hinterland_pool::PoolError;
use std::io::ErrorKind;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Pause between attempts to reach a node that died: short against the time that it takes to start.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// For how long the node has been away. All who ask wait until the same moment, so that nobody waits once for each of many files.
pub(crate) struct Absence {
    grace: Duration,
    times: Mutex<Option<Times>>,
}

/// When an attempt failed first, and last.
#[derive(Clone, Copy)]
struct Times {
    first: Instant,
    last: Instant,
}

impl Absence {
    /// A node that is there, and is waited for as long when it is not.
    pub(crate) const fn new(grace: Duration) -> Self {
        Self { grace, times: Mutex::new(None) }
    }

    /// Tries until the node answers, or has been away for the grace time.
    ///
    /// # Errors
    /// What the node says, or why it cannot be asked.
    pub(crate) fn outlast<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, PoolError>,
    ) -> Result<T, PoolError> {
        loop {
            match attempt() {
                Err(error) if is_away(&error) => {
                    if !self.is_borne(&error, Instant::now()) {
                        return Err(error);
                    }
                    std::thread::sleep(RETRY_PAUSE);
                }
                answered => {
                    if self.times().take().is_some() {
                        tracing::warn!("the node answers again");
                    }
                    return answered;
                }
            }
        }
    }

    /// Notes that an attempt has failed; whether another one is to follow. What was not asked for as long as it would be waited for is a new absence: the
    /// node may have been there meanwhile.
    fn is_borne(&self, error: &PoolError, now: Instant) -> bool {
        let mut times = self.times();
        let known = times.filter(|times| now.saturating_duration_since(times.last) <= self.grace);
        if known.is_none() && !self.grace.is_zero() {
            tracing::warn!("whoever uses files waits up to {} s for the node: {error}", self.grace.as_secs());
        }
        let first = known.map_or(now, |times| times.first);
        *times = Some(Times { first, last: now });
        now.saturating_duration_since(first) < self.grace
    }

    fn times(&self) -> MutexGuard<'_, Option<Times>> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the connection is at fault and not the question. One on which a part of an answer was lost has no frame where it looks for one.
pub(crate) fn is_lost(error: &PoolError) -> bool {
    matches!(error, PoolError::Closed | PoolError::Os(_) | PoolError::Frame(_))
}

/// Whether the node is dead, and may be started again.
fn is_away(error: &PoolError) -> bool {
    match error {
        // Whoever may not use the socket, or has no descriptors left, is told at once.
        PoolError::NoNode { source, .. } => matches!(
            source.kind(),
            ErrorKind::NotFound | ErrorKind::ConnectionRefused | ErrorKind::TimedOut | ErrorKind::WouldBlock
        ),
        PoolError::Silent(_) => true,
        // An answer of which this process could not take the descriptors: it has no room for more.
        PoolError::Os(error) => error.errno().is_some(),
        other => is_lost(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const GRACE: Duration = Duration::from_secs(15);

    #[test]
    fn all_wait_until_one_moment_and_anew_when_nobody_has_asked_for_long() {
        let (absence, begun) = (Absence::new(GRACE), Instant::now());
        let mut expected = true;
        for second in 0..40 {
            expected = expected && second < GRACE.as_secs();
            let now = begun + Duration::from_secs(second);
            assert_eq!(absence.is_borne(&PoolError::Closed, now), expected, "after {second} s");
        }
        assert!(absence.is_borne(&PoolError::Closed, begun + Duration::from_secs(100)));
    }

    #[test]
    fn a_node_that_comes_back_is_waited_for_and_one_that_refuses_is_not() {
        let absence = Absence::new(GRACE);
        let attempts = Cell::new(0);
        let answer = absence.outlast(|| {
            attempts.set(attempts.get() + 1);
            if attempts.get() < 3 { Err(PoolError::Closed) } else { Ok(attempts.get()) }
        });
        assert_eq!(answer.unwrap(), 3);
        let refused = || Err::<(), _>(PoolError::Refused { code: 2, text: "there is none".to_owned() });
        assert_eq!(absence.outlast(refused).unwrap_err().code(), 2);
        assert_eq!(
            Absence::new(Duration::ZERO).outlast(|| Err::<(), _>(PoolError::Closed)).unwrap_err().code(),
            107
        );
    }
}
