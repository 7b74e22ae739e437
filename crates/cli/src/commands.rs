//! One module a command: its arguments and what it does.

pub mod batch;
pub mod bench;
pub mod completions;
pub mod doctor;
pub mod far;
pub mod generate;
pub mod get;
pub mod gpu;
pub mod kv;
pub mod locks;
pub mod ls;
pub mod metrics;
pub mod mount;
pub mod node;
pub mod put;
pub mod region;
pub mod resp;
pub mod rm;
pub mod run;
pub mod simulate;
pub mod stat;
pub mod status;
pub mod switch;
pub mod top;
pub mod up;
pub mod verify;
