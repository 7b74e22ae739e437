//! The supervisor of programs with far memory: their page faults end here, their cold pages leave through here.
//!
//! A program that `hinterland run --local` starts loads a library that hands over a userfaultfd and tells of large anonymous
//! memory ([`hinterland_farplan::wire`]). This crate serves the faults ([`engine`]) and what follows them ([`ahead`], [`trend`]), reads back ends beside ([`reads`]), keeps what is resident within a budget
//! ([`evict`]), and puts the rest ([`settle`]) into back ends behind one trait ([`store`]). A socket shows it and changes it while it runs ([`control`]). Who waits for far memory instead of running is told how much more would do ([`thrash`]). Which programs cannot have far memory is in [`program`], and those that one starts all the same are told of ([`outside`]), as is what one leaves behind ([`left`]). What has come to rest gets huge pages again ([`huge`]). Runs on one host leave each other their shares of disks, links and processors ([`board`]). Faults can be recorded or learnt from ([`trace`]). Why each step is safe is in the decision on far
//! memory (docs/decisions).

mod ahead;
mod apart;
mod board;

pub mod control;
mod engine;
mod evict;
mod fault;
mod follow;
mod huge;
mod left;
mod order;
mod outside;
mod peer;
pub mod program;
mod reads;
mod release;
mod report;
mod session;
mod settle;
mod staging;
pub mod store;
mod thrash;
mod trace;
mod trend;
mod ways;
mod weighing;
mod words;

pub use engine::{Budget, Options, Service};
pub use report::{Recorder, Recording, Report};
pub use session::{FarError, Supervisor, check_rights};
pub use trace::{TraceWriter, Watch, Written};
