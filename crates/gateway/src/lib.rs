//! KV blocks for Redis clients: a server that keeps their values in the pool.
//!
//! | module | subject |
//! | --- | --- |
//! | [`server`], [`listen`] | threads, sockets, and who may connect |
//! | [`worker`], [`connection`], [`batch`] | many connections on one thread; writes of all of them in one message |
//! | [`commands`], [`transaction`] | what each command does, and several of them as one |
//! | [`keyspace`], [`head`] | values of one database in KV blocks |
//!
//! `docs/decisions/2026-11-22-redis-clients.md` says why it is built so.
#![forbid(unsafe_code)]

mod batch;
mod commands;
mod connection;
mod head;
mod keyspace;
mod listen;
mod server;
mod shared;
mod transaction;
mod worker;

#[cfg(test)]
#[path = "../tests/ground/mod.rs"]
mod ground;

pub use listen::{Listen, ListenError};
pub use server::{Server, ServerError, ServerOptions};
