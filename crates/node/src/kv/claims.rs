//! Claims: a block that one session is fetching is fetched by no other, which waits for it instead.

use hinterland_kv::{BlockKey, Namespace};
use std::collections::HashSet;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

/// A block of a user.
pub(super) type Claim = (u32, Namespace, BlockKey);

/// What is being fetched.
#[derive(Default)]
pub(super) struct Claims {
    going: Mutex<HashSet<Claim>>,
    ended: Condvar,
}

/// Blocks that one fetch has claimed; they are free again when it is dropped, in whatever way it ended.
pub(super) struct Claimed<'claims> {
    claims: &'claims Claims,
    /// Which.
    pub blocks: Vec<Claim>,
}

impl Claims {
    /// Claims those that nobody fetches; the others are left in the second list.
    pub(super) fn claim(&self, wanted: impl Iterator<Item = Claim>) -> (Claimed<'_>, Vec<Claim>) {
        let mut going = self.going.lock().unwrap_or_else(PoisonError::into_inner);
        let (blocks, others) = wanted.partition(|claim| going.insert(*claim));
        (Claimed { claims: self, blocks }, others)
    }

    /// Waits until nobody fetches any of these, but not beyond `until`.
    pub(super) fn wait(&self, blocks: &[Claim], until: Instant) {
        let mut going = self.going.lock().unwrap_or_else(PoisonError::into_inner);
        while blocks.iter().any(|claim| going.contains(claim)) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            going = self.ended.wait_timeout(going, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        let mut going = self.claims.going.lock().unwrap_or_else(PoisonError::into_inner);
        for claim in &self.blocks {
            going.remove(claim);
        }
        drop(going);
        self.claims.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn claim(name: &[u8]) -> Claim {
        (1, Namespace(2), BlockKey::new(name).unwrap())
    }

    #[test]
    fn what_is_claimed_is_claimed_once_until_it_is_dropped() {
        let claims = Claims::default();
        let (first, left) = claims.claim([claim(b"a"), claim(b"b"), claim(b"a")].into_iter());
        assert_eq!((first.blocks.len(), left.len()), (2, 1));
        let (second, left) = claims.claim([claim(b"b"), claim(b"c")].into_iter());
        assert_eq!((second.blocks.as_slice(), left.as_slice()), (&[claim(b"c")][..], &[claim(b"b")][..]));
        drop(first);
        assert_eq!(claims.claim([claim(b"a"), claim(b"c")].into_iter()).0.blocks, [claim(b"a")]);
    }

    #[test]
    fn who_waits_goes_on_when_the_claim_ends_or_the_time_does() {
        let claims = Claims::default();
        let (held, _) = claims.claim([claim(b"a")].into_iter());
        claims.wait(&[claim(b"a")], Instant::now() + Duration::from_millis(1));
        std::thread::scope(|scope| {
            let waiting =
                scope.spawn(|| claims.wait(&[claim(b"a")], Instant::now() + Duration::from_secs(60)));
            drop(held);
            waiting.join().unwrap();
        });
    }
}
