//! Fences, of the machine or of the model checker.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{Ordering, fence};
