//! Threads of which one runs at a time: at each step a seed decides whether another goes on.

use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex};

/// Steps between two changes on average.
const STEPS: u64 = 6;

thread_local! {
    static ME: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Whose turn it is.
pub struct Baton {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    turn: usize,
    runs: Vec<bool>,
    chance: u64,
}

impl Baton {
    /// For so many threads, of which the first begins.
    pub fn new(count: usize, seed: u64) -> Arc<Self> {
        let state =
            State { turn: 0, runs: vec![true; count], chance: seed.wrapping_mul(0x5851_f42d_4c95_7f2d) + 1 };
        Arc::new(Self { state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Runs a thread's work in its turns.
    pub fn turn<T>(&self, me: usize, work: impl FnOnce() -> T) -> T {
        ME.set(Some(me));
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| state.turn != me).unwrap());
        // A panic must not leave the other waiting.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        let mut state = self.state.lock().unwrap();
        state.runs[me] = false;
        if let Some(next) = state.runs.iter().position(|runs| *runs) {
            state.turn = next;
        }
        self.changed.notify_all();
        drop(state);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// A step of whoever runs; threads that have no turns pass.
    pub fn step(&self) {
        self.pause(STEPS);
    }

    /// Lets another run.
    pub fn yield_now(&self) {
        self.pause(1);
    }

    /// A number below `limit`.
    pub fn below(&self, limit: u64) -> u64 {
        self.state.lock().unwrap().below(limit)
    }

    fn pause(&self, steps: u64) {
        let Some(me) = ME.get() else { return };
        let mut state = self.state.lock().unwrap();
        if state.below(steps) != 0 {
            return;
        }
        let others: Vec<usize> =
            (0..state.runs.len()).filter(|&other| other != me && state.runs[other]).collect();
        if others.is_empty() {
            return;
        }
        state.turn = others[state.below(others.len() as u64) as usize];
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| state.turn != me).unwrap());
    }
}

impl State {
    fn below(&mut self, limit: u64) -> u64 {
        self.chance =
            self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.chance >> 33) % limit
    }
}
