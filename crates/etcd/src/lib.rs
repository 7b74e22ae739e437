//! A blocking client of etcd, from 3.4 on: transactions, leases and watches, as the JSON that etcd answers under `/v3/`.
//!
//! It knows several addresses of one cluster and goes from one to the next when one does not answer. So a request may be
//! carried out more than once: every request that is made here must bear that, which a transaction does that compares what
//! it changes. An error says whether the request may have been carried out ([`EtcdError::is_in_doubt`]).
#![forbid(unsafe_code)]

mod client;
mod error;
mod message;
mod target;

pub use client::{Client, Lease};
pub use error::EtcdError;
pub use message::{Comparison, KeyValue, Operation, Transaction, TransactionAnswer};
pub use target::{Target, TargetError};
