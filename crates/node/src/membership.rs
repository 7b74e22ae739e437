//! Membership: joining the directory, saying what is held, renewing the lease, letting go of what it asks for.

use crate::directory_link::DirectoryLink;
use crate::fault_point;
use crate::holdings::Holdings;
use crate::put::Puts;
use crate::refused::{Refused, errno};
use crate::repair::Repairs;
use hinterland_directory::{Command, ContentDigest, Departure, DirectoryError, HELD_MAX, Held, Reply};
use hinterland_os::clock;
use hinterland_types::{Epoch, NodeId, ObjectId, RackName};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Which life of the node this is; larger than in every earlier one.
#[derive(Clone, Debug)]
pub struct Incarnation(Arc<AtomicU64>);

impl Incarnation {
    /// The wall clock, which a restart finds further on.
    pub fn fresh() -> Self {
        Self(Arc::new(AtomicU64::new(clock::wall_ms())))
    }

    /// Its number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn raise_above(&self, known: u64) {
        self.0.fetch_max(known.saturating_add(1), Ordering::AcqRel);
    }
}

/// What the directory knows a node by.
#[derive(Clone, Debug)]
pub struct Membership {
    /// The node.
    pub node: NodeId,
    /// Its rack.
    pub rack: RackName,
    /// `HOST:PORT` of its fabric.
    pub address: String,
    /// This life.
    pub incarnation: Incarnation,
    /// Until when the lease counts.
    pub lease: LeaseClock,
}

/// Until when the directory keeps this node's place, by the own clock.
#[derive(Clone, Debug, Default)]
pub struct LeaseClock(Arc<AtomicU64>);

impl LeaseClock {
    /// Whether it does now.
    pub fn is_held(&self) -> bool {
        clock::monotonic_ns() / 1_000_000 < self.0.load(Ordering::Acquire)
    }

    /// The directory has renewed it, asked at `sent_ms`. An eighth is left to clocks that run at different speeds.
    fn renewed(&self, sent_ms: u64, lease_ms: u64) {
        self.0.fetch_max(sent_ms + lease_ms - lease_ms / 8, Ordering::AcqRel);
    }
}

impl Membership {
    /// A node that the directory has not heard of in this life.
    pub fn new(node: NodeId, rack: RackName, address: String, incarnation: Incarnation) -> Self {
        Self { node, rack, address, incarnation, lease: LeaseClock::default() }
    }

    /// Joins, says what is held, and drops what the directory does not want; returns the lease in milliseconds.
    ///
    /// # Errors
    /// [`Refused`] if the directory cannot be reached or does not take the node.
    pub fn join(&self, directory: &DirectoryLink, holdings: &Holdings) -> Result<u64, Refused> {
        let lease_ms = loop {
            let sent_ms = clock::monotonic_ns() / 1_000_000;
            let command = Command::Join {
                node: self.node,
                rack: self.rack.clone(),
                address: self.address.clone(),
                capacity_bytes: holdings.capacity_bytes(),
                incarnation: self.incarnation.get(),
            };
            match directory.ask(&command)? {
                Ok(Reply::Joined { lease_ms }) => {
                    self.lease.renewed(sent_ms, lease_ms);
                    break lease_ms;
                }
                Err(DirectoryError::StaleIncarnation { known, .. }) => self.incarnation.raise_above(known),
                Ok(other) => {
                    return Err(Refused::new(errno::EIO, format!("the directory answered {other:?}")));
                }
                Err(error) => return Err(error.into()),
            }
        };
        fault_point::reach("joined");
        self.report(directory, holdings)?;
        Ok(lease_ms)
    }

    /// Renews the lease; joins again if it had run out. Returns the lease in milliseconds.
    ///
    /// # Errors
    /// [`Refused`] if the directory cannot be reached.
    pub fn heartbeat(
        &self,
        directory: &DirectoryLink,
        holdings: &Holdings,
        puts: &Puts,
        repairs: &Repairs,
    ) -> Result<u64, Refused> {
        let sent_ms = clock::monotonic_ns() / 1_000_000;
        let command = Command::Heartbeat {
            node: self.node,
            incarnation: self.incarnation.get(),
            used_bytes: holdings.used_bytes(),
        };
        match directory.ask(&command)? {
            Ok(Reply::Beat { lease_ms, forget, copying, writing }) => {
                self.lease.renewed(sent_ms, lease_ms);
                for (object, epoch) in forget {
                    self.let_go(directory, holdings, object, epoch);
                }
                repairs.reconcile(&copying);
                for (object, token) in writing {
                    if !puts.knows(token) {
                        // Nobody goes on with it: its session ended while the directory was away.
                        directory.apply(&Command::Abort { object })?;
                    }
                }
                Ok(lease_ms)
            }
            Ok(other) => Err(Refused::new(errno::EIO, format!("the directory answered {other:?}"))),
            Err(
                DirectoryError::LeaseExpired { .. }
                | DirectoryError::UnknownNode { .. }
                | DirectoryError::NotReady { .. }
                | DirectoryError::StaleIncarnation { .. },
            ) => {
                self.incarnation.raise_above(self.incarnation.get());
                self.join(directory, holdings)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Says that the node goes for a while; its copies are remembered.
    pub fn leave(&self, directory: &DirectoryLink) {
        let command = Command::Leave {
            node: self.node,
            incarnation: self.incarnation.get(),
            departure: Departure::ComesBack,
        };
        if let Err(refused) = directory.apply(&command) {
            tracing::debug!(%refused, "the directory notices by the lease");
        }
    }

    fn report(&self, directory: &DirectoryLink, holdings: &Holdings) -> Result<(), Refused> {
        let held: Vec<Held> = holdings
            .all()
            .into_iter()
            .filter(|holding| !holding.is_writing())
            .map(|holding| Held {
                object: holding.object,
                epoch: holding.epoch(),
                digest: holding.is_sealed().then(|| ContentDigest(holding.digest())),
            })
            .collect();
        let mut after = ObjectId(0);
        let mut rest = held.as_slice();
        loop {
            let (part, later) = rest.split_at(rest.len().min(HELD_MAX));
            let command = Command::NodeObjects {
                node: self.node,
                incarnation: self.incarnation.get(),
                after,
                objects: part.to_vec(),
                more: !later.is_empty(),
            };
            let Reply::Reconciled { delete, .. } = directory.apply(&command)? else {
                return Err(Refused::new(errno::EIO, "the directory did not say what to delete"));
            };
            for (object, epoch) in delete {
                self.let_go(directory, holdings, object, epoch);
            }
            if later.is_empty() {
                return Ok(());
            }
            after = part.last().map_or(after, |held| held.object);
            rest = later;
        }
    }

    fn let_go(&self, directory: &DirectoryLink, holdings: &Holdings, object: ObjectId, epoch: Epoch) {
        // An object of another epoch is a newer copy, which stays.
        if holdings.find(object).is_ok_and(|holding| holding.epoch() == epoch) {
            holdings.drop_object(object);
        }
        fault_point::reach("let-go-dropped");
        let command = Command::Forget { object, node: self.node, incarnation: self.incarnation.get(), epoch };
        if let Err(refused) = directory.apply(&command) {
            tracing::debug!(%refused, "the directory asks again with the next heartbeat");
        }
    }
}
