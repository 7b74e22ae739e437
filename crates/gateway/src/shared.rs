//! What all threads of a server share: who is connected, what is counted, and what the buffers take.

use crate::server::ServerOptions;
use std::collections::BTreeMap;
use std::sync::RwLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// What is known of a connection.
#[derive(Clone, Debug, Default)]
pub struct Client {
    /// Who it comes from.
    pub address: String,
    /// What it calls itself.
    pub name: String,
    /// Its library and the library's version.
    pub library: (String, String),
    /// Its database.
    pub database: usize,
    /// 2 or 3.
    pub version: u8,
    /// When it came.
    pub since: Option<Instant>,
}

impl Client {
    /// A line as `CLIENT LIST` has it.
    pub fn line(&self, id: u64) -> String {
        let age = self.since.map_or(0, |since| since.elapsed().as_secs());
        format!(
            "id={id} addr={} name={} age={age} db={} flags=N resp={} lib-name={} lib-ver={} user=default\n",
            self.address, self.name, self.database, self.version, self.library.0, self.library.1
        )
    }
}

/// Counters for `INFO`. Relaxed throughout: nothing is ordered by them.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections that came.
    pub connections: AtomicU64,
    /// Connections that were turned away.
    pub rejected: AtomicU64,
    /// Commands that ran.
    pub commands: AtomicU64,
    /// Keys that were read and there.
    pub hits: AtomicU64,
    /// Keys that were read and not there.
    pub misses: AtomicU64,
}

impl Counters {
    /// Adds to a counter.
    pub fn add(counter: &AtomicU64, count: u64) {
        // Relaxed: see above.
        counter.fetch_add(count, Ordering::Relaxed);
    }

    /// Reads a counter.
    pub fn read(counter: &AtomicU64) -> u64 {
        // Relaxed: see above.
        counter.load(Ordering::Relaxed)
    }
}

/// What all threads share.
#[derive(Debug)]
pub struct Shared {
    /// How the server was started.
    pub options: ServerOptions,
    /// Hash of the password: comparing hashes takes as long for any password.
    pub password: Option<blake3::Hash>,
    /// Counters.
    pub counters: Counters,
    /// When it was started.
    pub since: Instant,
    /// The port that it listens at, or 0.
    pub port: u16,
    /// Held for reading while commands run, and by a transaction alone.
    pub gate: RwLock<()>,
    clients: Mutex<BTreeMap<u64, Client>>,
    next: AtomicU64,
    buffers: AtomicUsize,
}

impl Shared {
    /// With nobody connected.
    pub fn new(options: ServerOptions, port: u16) -> Self {
        let password = options.password.as_ref().map(|password| blake3::hash(password.as_bytes()));
        Self {
            options,
            password,
            counters: Counters::default(),
            since: Instant::now(),
            port,
            gate: RwLock::default(),
            clients: Mutex::default(),
            next: AtomicU64::new(1),
            buffers: AtomicUsize::new(0),
        }
    }

    /// A number for a connection that came; `None` if there are too many.
    pub fn enter(&self, client: Client) -> Option<u64> {
        let mut clients = self.clients();
        if clients.len() >= self.options.clients_max {
            Counters::add(&self.counters.rejected, 1);
            return None;
        }
        // Relaxed: a number, under a lock.
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        clients.insert(id, client);
        Counters::add(&self.counters.connections, 1);
        Some(id)
    }

    /// A connection has ended.
    pub fn leave(&self, id: u64) {
        self.clients().remove(&id);
    }

    /// Changes what is known of a connection.
    pub fn update(&self, id: u64, change: impl FnOnce(&mut Client)) {
        if let Some(client) = self.clients().get_mut(&id) {
            change(client);
        }
    }

    /// Who is connected.
    pub fn clients(&self) -> MutexGuard<'_, BTreeMap<u64, Client>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer that took `before` bytes takes `after`.
    pub fn buffer(&self, before: usize, after: usize) {
        // Relaxed: a sum that is compared with a limit, and nothing is ordered by it.
        if after >= before {
            self.buffers.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.buffers.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    /// Bytes that all buffers take.
    pub fn buffer_bytes(&self) -> usize {
        // Relaxed: as above.
        self.buffers.load(Ordering::Relaxed)
    }

    /// Counts bytes that a buffer is about to take beyond what is counted, and others that it has taken and are not counted yet, if all of
    /// them have room; whether they do.
    pub fn reserve(&self, bytes: usize, uncounted: usize) -> bool {
        let reserved = |taken: usize| {
            let total = taken.checked_add(bytes)?;
            (total.checked_add(uncounted)? <= self.options.buffers_bytes).then_some(total)
        };
        // Relaxed: as above.
        self.buffers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserved).is_ok()
    }

    /// Bytes that buffers may take beyond what they do.
    pub fn room(&self) -> usize {
        self.options.buffers_bytes.saturating_sub(self.buffer_bytes())
    }
}
