//! Named steps at which a test can kill a node or a program, to show that no step leaves anything broken behind.
//!
//! This exists for tests. `HINTERLAND_FAULT_POINT=count` says every step on standard error as it is reached;
//! `HINTERLAND_FAULT_POINT=NAME:N` ends the process with SIGKILL when the step NAME is reached for the N-th time.
//! Without the variable a step costs one load.

use crate::process::ProcessHandle;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// What the variable asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Plan {
    /// Say each step.
    Count,
    /// End the process here.
    Kill { name: String, at: u64 },
}

/// The step `name` has been reached.
pub fn reach(name: &'static str) {
    // Relaxed: the state is a hint, and whoever misses it reads the environment as everybody does.
    if STATE.load(Ordering::Relaxed) != OFF {
        reach_slowly(name);
    }
}

#[cold]
fn reach_slowly(name: &'static str) {
    static PLAN: OnceLock<Option<Plan>> = OnceLock::new();
    static REACHED: Mutex<Option<HashMap<&'static str, u64>>> = Mutex::new(None);
    let plan = PLAN.get_or_init(|| std::env::var("HINTERLAND_FAULT_POINT").ok().as_deref().and_then(parse));
    // Relaxed: see `reach`.
    STATE.store(if plan.is_some() { ON } else { OFF }, Ordering::Relaxed);
    let Some(plan) = plan else { return };
    let mut reached = REACHED.lock().unwrap_or_else(PoisonError::into_inner);
    let times = reached.get_or_insert_default().entry(name).or_default();
    *times += 1;
    match plan {
        Plan::Count => eprintln!("fault-point {name}:{times}"),
        Plan::Kill { name: wanted, at } if wanted == name && at == times => die(),
        Plan::Kill { .. } => {}
    }
}

/// No destructor runs, no buffer is flushed, no thread gets any further than it is.
fn die() -> ! {
    const SIGKILL: i32 = 9;
    // The number of a process fits the kernel's own type. If the signal is refused, `abort` is as sudden.
    let _ = ProcessHandle::open(std::process::id() as i32).and_then(|own| own.signal(SIGKILL));
    std::process::abort()
}

fn parse(text: &str) -> Option<Plan> {
    if text == "count" {
        return Some(Plan::Count);
    }
    let (name, at) = text.rsplit_once(':')?;
    Some(Plan::Kill { name: name.to_owned(), at: at.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_names_a_step_and_a_time() {
        assert_eq!(parse("count"), Some(Plan::Count));
        assert_eq!(parse("put-reserved:3"), Some(Plan::Kill { name: "put-reserved".to_owned(), at: 3 }));
        assert_eq!(parse("put-reserved"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn nothing_happens_without_the_variable() {
        for _ in 0..1000 {
            reach("a step of no plan");
        }
        assert_eq!(STATE.load(Ordering::Relaxed), OFF);
    }
}
