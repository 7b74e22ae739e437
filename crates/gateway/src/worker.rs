//! One thread that serves many connections: reads, runs what is whole, writes in batches, sends.

use crate::batch::Batch;
use crate::commands::{self, Context};
use crate::connection::{Connection, End, REPLIES_BYTES_MAX, Stream};
use crate::shared::{Client, Shared};
use crate::transaction;
use hinterland_os::OsError;
use hinterland_os::poll::{EventCounter, Interest, Poller, Readiness};
use hinterland_os::socket::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a thread looks after connections that do not move.
const LOOK: Duration = Duration::from_secs(1);
/// How long a client may leave its replies unread.
const STUCK_MAX: Duration = Duration::from_secs(60);
/// Number of the mailbox in the poller.
const MAIL: u64 = u64::MAX;
/// Number of the first database's session in the poller; connections have smaller ones.
const NODES: u64 = 1 << 32;

/// Where other threads leave connections for a worker.
#[derive(Debug)]
pub struct Mailbox {
    streams: Mutex<Vec<(Stream, String)>>,
    counter: EventCounter,
    stopping: AtomicBool,
}

impl Mailbox {
    /// An empty one.
    ///
    /// # Errors
    /// [`OsError`] without descriptors left.
    pub fn new() -> Result<Self, OsError> {
        let counter = EventCounter::new()?;
        Ok(Self { streams: Mutex::default(), counter, stopping: AtomicBool::new(false) })
    }

    /// Hands over a connection and the address that it comes from.
    pub fn give(&self, stream: Stream, address: String) {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).push((stream, address));
        self.counter.raise();
    }

    /// Asks the worker to end.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.counter.raise();
    }

    /// Whether the worker was asked to end.
    pub fn is_stopping(&self) -> bool {
        // Acquire: pairs with the Release of `stop`.
        self.stopping.load(Ordering::Acquire)
    }

    fn take(&self) -> Vec<(Stream, String)> {
        self.counter.take();
        std::mem::take(&mut *self.streams.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A worker.
pub struct Worker {
    shared: Arc<Shared>,
    mailbox: Arc<Mailbox>,
    poller: Poller,
    context: Context,
    connections: Vec<Option<Box<Connection>>>,
    free: Vec<usize>,
    batch: Batch,
    /// Connections that were served in this turn.
    served: Vec<usize>,
    /// Connections whose next command runs with no other in between, each at most once.
    alone: Vec<usize>,
    /// Connections that have more to do though nothing comes, each at most once.
    again: Vec<usize>,
    /// Sockets of the sessions with the node, by database.
    nodes: Vec<Option<UnixStream>>,
}

impl Worker {
    /// A worker without connections.
    ///
    /// # Errors
    /// [`OsError`] without descriptors left.
    pub fn new(shared: Arc<Shared>, mailbox: Arc<Mailbox>) -> Result<Self, OsError> {
        let poller = Poller::new()?;
        poller.add(&mailbox.counter, MAIL, Interest::READ)?;
        Ok(Self {
            context: Context::new(Arc::clone(&shared)),
            shared,
            mailbox,
            poller,
            connections: Vec::new(),
            free: Vec::new(),
            batch: Batch::default(),
            served: Vec::new(),
            alone: Vec::new(),
            again: Vec::new(),
            nodes: Vec::new(),
        })
    }

    /// Serves until it is asked to stop.
    ///
    /// # Errors
    /// [`OsError`] of the poller.
    pub fn run(mut self) -> Result<(), OsError> {
        let mut ready: Vec<Readiness> = Vec::new();
        let mut looked = Instant::now();
        loop {
            let timeout = if self.again.is_empty() { LOOK } else { Duration::ZERO };
            self.poller.wait(&mut ready, Some(timeout))?;
            if self.mailbox.is_stopping() {
                return Ok(());
            }
            self.turn(&ready);
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                self.look_after(ready.is_empty());
            }
        }
    }

    /// Serves whoever has something to do, and sends the replies.
    fn turn(&mut self, ready: &[Readiness]) {
        self.context.look_at_clock();
        let shared = Arc::clone(&self.shared);
        let among_others = shared.gate.read().unwrap_or_else(PoisonError::into_inner);
        for index in std::mem::take(&mut self.again) {
            self.serve(index, false);
        }
        for event in ready {
            match event.token {
                MAIL => self.accept(),
                NODES.. => self.lose(event.token),
                token => self.serve(token as usize, event.readable || event.closed),
            }
        }
        self.batch.write(&mut self.context, &mut self.connections);
        drop(among_others);
        self.run_alone();
        self.finish_turn();
    }

    fn accept(&mut self) {
        for (stream, address) in self.mailbox.take() {
            let client = Client { address, version: 2, since: Some(Instant::now()), ..Client::default() };
            let Some(id) = self.shared.enter(client) else {
                let mut stream = stream;
                // Whether it arrives or not, the connection ends.
                let _ = std::io::Write::write(&mut stream, b"-ERR max number of clients reached\r\n");
                continue;
            };
            let index = self.free.pop().unwrap_or_else(|| {
                self.connections.push(None);
                self.connections.len() - 1
            });
            let connection = Box::new(Connection::new(id, stream, Arc::clone(&self.shared)));
            match self.poller.add(&connection.stream, index as u64, Interest::READ) {
                Ok(()) => self.connections[index] = Some(connection),
                Err(error) => {
                    tracing::warn!(%error, "a connection cannot be waited for");
                    self.free.push(index);
                }
            }
        }
    }

    /// The node has ended a session: what its memory holds is of the past.
    fn lose(&mut self, token: u64) {
        let database = (token - NODES) as usize;
        self.context.lose(database);
        if let Some(Some(socket)) = self.nodes.get_mut(database).map(Option::take) {
            // It is closed in a moment.
            let _ = self.poller.remove(&socket);
        }
    }

    /// Reads what a connection has, and runs what is whole. Once in a turn: what waits for the end of the turn, writes and a
    /// transaction, lies in the input, which must stay as it is, and comes before what is behind it.
    fn serve(&mut self, index: usize, is_readable: bool) {
        let Some(place) = self.connections.get_mut(index) else { return };
        let Some(mut connection) = place.take_if(|connection| !connection.is_served) else { return };
        connection.is_served = true;
        // What came is run before more is read: a client that sends on and on would fill the buffers.
        if is_readable && connection.interest.0 && !connection.has_more {
            connection.receive();
        }
        connection.has_more = loop {
            match self.step(index, &mut connection) {
                Step::Ran => {}
                Step::Idle => break false,
                Step::Full => break true,
                Step::Alone => {
                    self.alone.push(index);
                    break true;
                }
                Step::WriteFirst => {
                    self.connections[index] = Some(connection);
                    self.batch.write(&mut self.context, &mut self.connections);
                    let Some(taken) = self.connections[index].take() else { return };
                    connection = taken;
                }
            }
        };
        // Who is served behind it in this turn has so much less room.
        connection.account();
        self.context.is_counted();
        self.connections[index] = Some(connection);
        self.served.push(index);
    }

    /// Runs transactions and commands about several keys, one after the other, while no worker runs anything else.
    fn run_alone(&mut self) {
        for index in std::mem::take(&mut self.alone) {
            let Some(Some(connection)) = self.connections.get_mut(index) else { continue };
            let Ok(Some(bytes)) = connection.parse() else { continue };
            // Anything else than what `step` has found is for the next turn, in which it is found again.
            if connection.caller.end.is_some() || !transaction::runs_alone(connection) {
                continue;
            }
            let shared = Arc::clone(&self.shared);
            let _alone = shared.gate.write().unwrap_or_else(PoisonError::into_inner);
            let (words, caller, replies) = connection.request();
            if caller.pending.transaction.is_some() {
                transaction::execute(&mut self.context, caller, replies);
            } else {
                commands::run(&mut self.context, caller, words, replies);
            }
            connection.input.used(bytes);
            connection.account();
            self.context.is_counted();
        }
    }

    /// Runs the next request of a connection.
    fn step(&mut self, index: usize, connection: &mut Connection) -> Step {
        if connection.caller.end.is_some() {
            return Step::Idle;
        }
        if connection.replies.unsent().len() >= REPLIES_BYTES_MAX {
            return Step::Full;
        }
        let bytes = match connection.parse() {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Step::Idle,
            // Answers come in their order, so what waits comes before this one.
            Err(_) if connection.pending > 0 => return Step::WriteFirst,
            Err(error) => {
                connection.refuse(&format!("ERR {error}"));
                return Step::Idle;
            }
        };
        if self.batch.takes(index, connection, self.context.now_ms()) {
            connection.pending += 1;
            connection.input.used(bytes);
            self.context.count_command();
            return if self.batch.is_full() { Step::WriteFirst } else { Step::Ran };
        }
        if connection.pending > 0 {
            return Step::WriteFirst;
        }
        if transaction::runs_alone(connection) {
            return Step::Alone;
        }
        if transaction::queues(connection, bytes) {
            connection.input.used(bytes);
            return Step::Ran;
        }
        let (words, caller, replies) = connection.request();
        commands::run(&mut self.context, caller, words, replies);
        connection.input.used(bytes);
        Step::Ran
    }

    /// Sends replies, and asks the poller for what each connection waits for.
    fn finish_turn(&mut self) {
        for (database, socket) in self.context.take_opened() {
            if self.nodes.len() <= database {
                self.nodes.resize_with(database + 1, || None);
            }
            if let Err(error) = self.poller.add(&socket, NODES + database as u64, Interest::READ) {
                tracing::warn!(%error, "the end of the node would go unnoticed");
            }
            self.nodes[database] = Some(socket);
        }
        for index in std::mem::take(&mut self.served) {
            self.finish(index);
        }
    }

    fn finish(&mut self, index: usize) {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        connection.is_busy = true;
        connection.is_served = false;
        let is_sent = connection.send();
        connection.account();
        if connection.is_closed && !connection.has_more {
            connection.caller.end.get_or_insert(End::AfterReplies);
        }
        match connection.caller.end {
            Some(End::Now) => return self.drop_connection(index),
            Some(End::AfterReplies) if is_sent => return self.drop_connection(index),
            _ => {}
        }
        // What is not sent yet comes first; then there is room, and the connection is told of.
        if connection.has_more && is_sent {
            self.again.push(index);
        }
        let interest = (!connection.is_closed && is_sent && connection.caller.end.is_none(), !is_sent);
        if interest != connection.interest {
            connection.interest = interest;
            // A client that has closed is told once and not all the time: hence edges where nothing is read.
            let asked = Interest { readable: interest.0, writable: interest.1, edge: !interest.0 };
            if self.poller.modify(&connection.stream, index as u64, asked).is_err() {
                self.drop_connection(index);
            }
        }
    }

    fn drop_connection(&mut self, index: usize) {
        if let Some(connection) = self.connections.get_mut(index).and_then(Option::take) {
            // The socket is closed in a moment, and nobody else has it.
            let _ = self.poller.remove(&connection.stream);
            self.free.push(index);
        }
    }

    /// Once a second: connections that do not move, buffers and slots that nobody needs now.
    fn look_after(&mut self, is_idle: bool) {
        for index in 0..self.connections.len() {
            let Some(connection) = self.connections[index].as_deref_mut() else { continue };
            if connection.stuck_since.is_some_and(|since| since.elapsed() > STUCK_MAX) {
                self.drop_connection(index);
            } else if !std::mem::take(&mut connection.is_busy) {
                connection.rest();
            }
        }
        if is_idle {
            self.context.rest();
        }
    }
}

/// How far a step got.
enum Step {
    /// A request ran; there may be another.
    Ran,
    /// No request is whole, or none will run any more.
    Idle,
    /// There may be another, once replies are sent.
    Full,
    /// The next request runs when nothing else does.
    Alone,
    /// What waits to be written comes first.
    WriteFirst,
}

#[cfg(test)]
mod tests;
