//! The stores by user. While one is made, which takes about a second for each GiB, only who needs that one waits.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// What each user has; `S` is a store.
pub(super) struct Users<S> {
    held: Mutex<Held<S>>,
    /// One is no longer being made.
    settled: Condvar,
}

struct Held<S> {
    stores: HashMap<u32, Arc<S>>,
    making: HashSet<u32>,
}

/// One that is being made; dropping it ends that, however it went.
struct Making<'a, S> {
    users: &'a Users<S>,
    user: u32,
}

impl<S> Default for Users<S> {
    fn default() -> Self {
        let held = Held { stores: HashMap::new(), making: HashSet::new() };
        Self { held: Mutex::new(held), settled: Condvar::new() }
    }
}

impl<S> Users<S> {
    /// All stores, without those that are being made.
    pub fn all(&self) -> Vec<Arc<S>> {
        self.lock().stores.values().cloned().collect()
    }

    /// All stores, once none is being made.
    pub fn all_settled(&self) -> Vec<Arc<S>> {
        self.wait(|held| held.making.is_empty()).stores.values().cloned().collect()
    }

    /// The store of a user; none while it is being made.
    pub fn find(&self, user: u32) -> Option<Arc<S>> {
        self.lock().stores.get(&user).cloned()
    }

    /// The store of a user, once it is not being made.
    pub fn find_settled(&self, user: u32) -> Option<Arc<S>> {
        self.wait(|held| !held.making.contains(&user)).stores.get(&user).cloned()
    }

    /// Gives a user a store.
    pub fn insert(&self, user: u32, store: Arc<S>) {
        self.lock().stores.insert(user, store);
    }

    /// The store of a user if it is good. Else one is made, and who asks meanwhile waits for it; `make` is told whether there was one
    /// that is not good.
    ///
    /// # Errors
    /// Those of `make`; the next one who asks tries again.
    pub fn find_or_make<E>(
        &self,
        user: u32,
        is_good: impl Fn(&S) -> bool,
        make: impl FnOnce(bool) -> Result<Arc<S>, E>,
    ) -> Result<Arc<S>, E> {
        let mut held = self.wait(|held| !held.making.contains(&user));
        if let Some(store) = held.stores.get(&user).filter(|store| is_good(store)) {
            return Ok(Arc::clone(store));
        }
        let was_there = held.stores.remove(&user).is_some();
        held.making.insert(user);
        drop(held);
        let making = Making { users: self, user };
        let store = make(was_there)?;
        self.insert(user, Arc::clone(&store));
        drop(making);
        Ok(store)
    }

    fn wait(&self, until: impl Fn(&Held<S>) -> bool) -> MutexGuard<'_, Held<S>> {
        let waited = self.settled.wait_while(self.lock(), |held| !until(held));
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Held<S>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S> Drop for Making<'_, S> {
    fn drop(&mut self) {
        self.users.lock().making.remove(&self.user);
        self.users.settled.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const GOOD: fn(&u32) -> bool = |store| *store < 100;

    fn made(store: u32) -> impl FnOnce(bool) -> Result<Arc<u32>, ()> {
        move |_| Ok(Arc::new(store))
    }

    #[test]
    fn while_one_is_made_others_are_found_and_the_same_is_waited_for() {
        let users = Users::default();
        users.insert(2, Arc::new(20));
        let ((begun, begins), (end, ends)) = (channel(), channel());
        std::thread::scope(|scope| {
            let making = scope.spawn(|| {
                users.find_or_make(1, GOOD, move |_| {
                    begun.send(()).unwrap();
                    ends.recv().unwrap();
                    Ok::<_, ()>(Arc::new(10))
                })
            });
            begins.recv().unwrap();
            // None of these may wait: it is this thread that ends the making.
            assert_eq!((users.find(1), users.find(2).as_deref()), (None, Some(&20)));
            assert_eq!((users.all().len(), users.find_settled(2).as_deref()), (1, Some(&20)));
            assert_eq!(users.find_or_make(3, GOOD, made(30)).as_deref(), Ok(&30));
            let same = scope.spawn(|| users.find_or_make(1, GOOD, made(11)));
            let settled = scope.spawn(|| users.find_settled(1));
            let all = scope.spawn(|| users.all_settled().len());
            end.send(()).unwrap();
            assert_eq!(making.join().unwrap().as_deref(), Ok(&10));
            assert_eq!(same.join().unwrap().as_deref(), Ok(&10));
            assert_eq!(settled.join().unwrap().as_deref(), Some(&10));
            assert_eq!(all.join().unwrap(), 3);
        });
    }

    #[test]
    fn what_cannot_be_made_is_tried_again_and_what_is_not_good_is_made_anew() {
        let users = Users::default();
        assert_eq!(users.find_or_make(1, GOOD, Err::<Arc<u32>, _>), Err(false));
        assert_eq!(users.find_or_make(1, GOOD, made(100)).as_deref(), Ok(&100));
        let anew = users.find_or_make(1, GOOD, |was_there| {
            assert!(was_there && users.find(1).is_none());
            Ok::<_, ()>(Arc::new(1))
        });
        assert_eq!((anew.as_deref(), users.find(1).as_deref()), (Ok(&1), Some(&1)));
    }
}
