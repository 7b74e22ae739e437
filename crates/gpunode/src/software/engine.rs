//! What waits for what, and the threads that do what waits for nothing.
//!
//! Each piece of work is a *task* with a number. A task names those that it waits for; one that waits for none is done by a thread.
//! Tasks without anything to do join others. All of stream order, events, fences and barriers is made of this one relation.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Tasks that are open before the next one waits.
const OPEN_MAX: usize = 1 << 16;
/// Bytes of copies that wait in memory of the node before the next one waits.
const STAGED_BYTES_MAX: usize = 256 << 20;

/// The number of a task; 0 is one that was done at once.
pub(super) type TaskId = u64;

/// What a task does.
pub(super) type Action = Box<dyn FnOnce() + Send>;

struct Task {
    waits: usize,
    dependents: Vec<TaskId>,
    action: Option<Action>,
    staged_bytes: usize,
}

#[derive(Default)]
struct State {
    last: TaskId,
    open: HashMap<TaskId, Task>,
    ready: VecDeque<TaskId>,
    staged_bytes: usize,
    is_stopping: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    ready: Condvar,
    fewer: Condvar,
}

/// The tasks of a session and the threads that do them. Dropping it forgets tasks that no thread has begun.
pub(super) struct Engine {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Engine {
    /// Starts `count` threads.
    pub(super) fn start(count: usize) -> Self {
        let shared = Arc::new(Shared::default());
        let threads = (0..count.max(1))
            .filter_map(|_| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new().name("device".to_owned()).spawn(move || work(&shared)).ok()
            })
            .collect();
        Self { shared, threads }
    }

    /// Leaves in `waits` only tasks that are not done.
    pub(super) fn retain_open(&self, waits: &mut Vec<TaskId>) {
        if waits.is_empty() {
            return;
        }
        let state = lock(&self.shared);
        waits.retain(|task| state.open.contains_key(task));
    }

    /// A task behind others. `staged_bytes` is the memory that its action holds. Waits while too much is open.
    pub(super) fn submit(&self, waits: &[TaskId], action: Option<Action>, staged_bytes: usize) -> TaskId {
        let mut state = lock(&self.shared);
        while state.open.len() >= OPEN_MAX
            || (state.staged_bytes > 0 && state.staged_bytes + staged_bytes > STAGED_BYTES_MAX)
        {
            state = self.shared.fewer.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let id = state.last + 1;
        let mut count = 0;
        for wait in waits {
            if let Some(task) = state.open.get_mut(wait) {
                task.dependents.push(id);
                count += 1;
            }
        }
        if count == 0 && action.is_none() {
            return 0;
        }
        state.last = id;
        state.staged_bytes += staged_bytes;
        state.open.insert(id, Task { waits: count, dependents: Vec::new(), action, staged_bytes });
        if count == 0 {
            state.ready.push_back(id);
            self.shared.ready.notify_one();
        }
        id
    }

    /// Whether nothing is open.
    #[cfg(test)]
    fn is_idle(&self) -> bool {
        lock(&self.shared).open.is_empty()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        {
            let mut state = lock(&self.shared);
            state.is_stopping = true;
            state.ready.clear();
        }
        self.shared.ready.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

fn lock(shared: &Shared) -> MutexGuard<'_, State> {
    shared.state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The life of a thread.
fn work(shared: &Shared) {
    let mut state = lock(shared);
    loop {
        while state.ready.is_empty() && !state.is_stopping {
            state = shared.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_stopping {
            return;
        }
        let Some(id) = state.ready.pop_front() else { continue };
        let action = state.open.get_mut(&id).and_then(|task| task.action.take());
        drop(state);
        if let Some(action) = action {
            action();
        }
        state = lock(shared);
        finish(shared, &mut state, id);
    }
}

/// A task is done: those that waited for it alone are next.
fn finish(shared: &Shared, state: &mut State, id: TaskId) {
    let mut done = vec![id];
    let mut begun = 0;
    while let Some(id) = done.pop() {
        let Some(task) = state.open.remove(&id) else { continue };
        state.staged_bytes -= task.staged_bytes;
        for dependent in task.dependents {
            let Some(next) = state.open.get_mut(&dependent) else { continue };
            next.waits -= 1;
            if next.waits > 0 {
                continue;
            }
            if next.action.is_some() {
                state.ready.push_back(dependent);
                begun += 1;
            } else {
                done.push(dependent);
            }
        }
    }
    // This thread takes one of them itself.
    for _ in 1..begun {
        shared.ready.notify_one();
    }
    shared.fewer.notify_all();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn a_task_begins_after_all_that_it_waits_for() {
        let engine = Engine::start(4);
        let (sender, receiver) = mpsc::channel();
        let say = |number: u32, pause: u64| -> Option<Action> {
            let sender = sender.clone();
            Some(Box::new(move || {
                std::thread::sleep(Duration::from_millis(pause));
                sender.send(number).unwrap();
            }))
        };
        let one = engine.submit(&[], say(1, 20), 0);
        let two = engine.submit(&[one], say(2, 5), 0);
        let join = engine.submit(&[one, two], None, 0);
        engine.submit(&[join, 0, 99], say(3, 0), 0);
        let order: Vec<u32> =
            (0..3).map(|_| receiver.recv_timeout(Duration::from_secs(10)).unwrap()).collect();
        assert_eq!(order, [1, 2, 3]);
        while !engine.is_idle() {
            std::thread::yield_now();
        }
        assert_eq!(engine.submit(&[one, join], None, 0), 0, "a join of what is done is done");
    }

    #[test]
    fn too_many_staged_bytes_wait_until_some_are_gone() {
        let engine = Engine::start(1);
        for _ in 0..8 {
            engine.submit(
                &[],
                Some(Box::new(|| std::thread::sleep(Duration::from_millis(1)))),
                STAGED_BYTES_MAX / 2,
            );
        }
        assert!(lock(&engine.shared).staged_bytes <= STAGED_BYTES_MAX);
    }
}
