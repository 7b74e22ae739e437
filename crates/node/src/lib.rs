//! Memory node and rack daemon; hosts an embedded directory by default.
#![forbid(unsafe_code)]

pub mod capability;
pub mod locks;
