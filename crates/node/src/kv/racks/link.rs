//! The connection to one other node for KV blocks: made in the background, lent out stream by stream, left alone after a failure.

use hinterland_directory::MemberInfo;
use hinterland_fabric::rdma::{RdmaEndpoint, RdmaOptions};
use hinterland_fabric::tcp::ClientOptions;
use hinterland_fabric::{Endpoint, FabricError, Queue};
use hinterland_types::NodeId;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Streams of a connection that are lent at once: with the connection's own they stay below what a session may have.
const LANES_MAX: usize = 4;

/// The connection to one node.
pub(super) struct Link {
    /// The node.
    pub node: NodeId,
    /// Its name, if it has one, and its number.
    called: String,
    address: String,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Default)]
struct State {
    endpoint: Option<Arc<RdmaEndpoint>>,
    /// Counts connections: a lane of an earlier one is of no use.
    life: u64,
    idle: Vec<Box<dyn Queue>>,
    /// Lanes of this life, idle and lent.
    lanes: usize,
    /// Who waits for one.
    waiting: usize,
    rests_until: Option<Instant>,
}

/// One stream, lent to one thread. Dropped without [`give_back`](Self::give_back) it is closed, and nothing that was asked on it
/// moves any more.
pub(super) struct Lane {
    link: Arc<Link>,
    queue: Option<Box<dyn Queue>>,
    /// Which connection it belongs to: handles mean nothing on another.
    pub life: u64,
}

impl Link {
    /// No connection yet.
    pub(super) fn new(member: MemberInfo) -> Self {
        let (node, called, address) = (member.node, member.called(), member.address);
        Self { node, called, address, state: Mutex::default(), freed: Condvar::new() }
    }

    /// Whether it leads to this node at this address.
    pub(super) fn leads_to(&self, node: NodeId, address: &str) -> bool {
        self.node == node && self.address == address
    }

    /// Connects, if there is no connection and it is not resting. May take as long as the options say.
    pub(super) fn connect(&self, options: ClientOptions, rdma: RdmaOptions) {
        if self.is_usable() || self.is_resting() {
            return;
        }
        let made = RdmaEndpoint::connect(&*self.address, options, rdma).and_then(|endpoint| {
            // The first stream to lend is opened here too, so that the first who asks need not wait for it.
            let queue = endpoint.queue(1)?;
            Ok((endpoint, queue))
        });
        match made {
            Ok((endpoint, queue)) if endpoint.node() == self.node => {
                let mut state = self.lock();
                state.endpoint = Some(Arc::new(endpoint));
                state.idle.push(queue);
                state.lanes = 1;
            }
            Ok((endpoint, _)) => {
                tracing::debug!(asked = %self.node, answers = %endpoint.node(), "another node")
            }
            Err(error) => tracing::debug!(node = self.called, %error, "no connection for KV blocks"),
        }
    }

    /// Whether there is a connection.
    pub(super) fn is_usable(&self) -> bool {
        self.lock().endpoint.is_some()
    }

    /// Whether it is left alone after a failure.
    pub(super) fn is_resting(&self) -> bool {
        self.lock().rests_until.is_some_and(|until| Instant::now() < until)
    }

    /// A stream; `None` without a connection, or if all are lent until `until`.
    pub(super) fn lane(self: &Arc<Self>, until: Instant) -> Option<Lane> {
        let mut state = self.lock();
        loop {
            let endpoint = Arc::clone(state.endpoint.as_ref()?);
            let life = state.life;
            if let Some(queue) = state.idle.pop() {
                return Some(Lane { link: Arc::clone(self), queue: Some(queue), life });
            }
            if state.lanes < LANES_MAX {
                state.lanes += 1;
                drop(state);
                let mut lane = Lane { link: Arc::clone(self), queue: None, life };
                return match endpoint.queue(1) {
                    Ok(queue) => {
                        lane.queue = Some(queue);
                        Some(lane)
                    }
                    Err(error) => {
                        tracing::debug!(node = self.called, %error, "no further stream for KV blocks");
                        self.fail(life, Duration::ZERO);
                        None
                    }
                };
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            state.waiting += 1;
            state = self.freed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            state.waiting -= 1;
        }
    }

    /// One more stream for who has one: only if nobody waits, and one is left for others.
    pub(super) fn spare_lane(self: &Arc<Self>) -> Option<Lane> {
        let state = self.lock();
        let lent = state.lanes - state.idle.len();
        let is_spare = state.waiting == 0 && lent + 1 < LANES_MAX;
        drop(state);
        // Somebody else may be quicker; then there is none.
        if is_spare { self.lane(Instant::now()) } else { None }
    }

    /// The node did not do what it should: the connection is closed, and made anew after `rest`.
    pub(super) fn fail(&self, life: u64, rest: Duration) {
        let mut state = self.lock();
        if state.life == life {
            *state = State {
                life: life + 1,
                waiting: state.waiting,
                rests_until: Some(Instant::now() + rest),
                ..State::default()
            };
        }
        drop(state);
        self.freed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lane {
    /// The stream.
    pub(super) fn queue(&mut self) -> Result<&mut dyn Queue, FabricError> {
        match &mut self.queue {
            Some(queue) => Ok(&mut **queue),
            None => Err(FabricError::Unsupported { what: "use a stream that was given back" }),
        }
    }

    /// The node at the other end.
    pub(super) fn node(&self) -> NodeId {
        self.link.node
    }

    /// The same for people.
    pub(super) fn called(&self) -> &str {
        &self.link.called
    }

    /// The connection that it belongs to.
    pub(super) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Lets others use it. What still waits for an answer is not answered: then it is closed instead.
    pub(super) fn give_back(mut self) {
        let Some(queue) = self.queue.take_if(|queue| queue.in_flight() == 0) else { return };
        let mut state = self.link.lock();
        if state.life == self.life {
            state.idle.push(queue);
            // It is lent no longer, and must not be counted off when this lane is dropped.
            state.lanes += 1;
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // Closed before its place is free, so that the other end never sees more than `LANES_MAX`.
        self.queue = None;
        let mut state = self.link.lock();
        if state.life == self.life {
            state.lanes -= 1;
        }
        drop(state);
        self.link.freed.notify_one();
    }
}
