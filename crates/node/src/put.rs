//! Puts: room at the directory and at every home, seal at every home, then the name; or nothing at all.

use crate::directory_link::DirectoryLink;
use crate::fault_point;
use crate::holdings::Holdings;
use crate::membership::Incarnation;
use crate::peers::Peers;
use crate::refused::{Refused, errno};
use hinterland_directory::{
    Command, ContentDigest, HomeInfo, MemberState, OnTarget, Placement, Reply, Writer,
};
use hinterland_proto::control::{self, Home, ObjectInfo, ObjectState, PeerReply, PeerRequest};
use hinterland_types::{NodeId, ObjectId, ObjectName};
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often the directory is asked whether a home is up that does not answer.
const LOOK: Duration = Duration::from_secs(1);

/// Runs the puts of this node's sessions.
pub struct Puts {
    own: NodeId,
    incarnation: Incarnation,
    directory: Arc<DirectoryLink>,
    peers: Arc<Peers>,
    holdings: Arc<Holdings>,
    next_token: AtomicU64,
    running: Mutex<HashMap<ObjectId, Running>>,
    /// Tokens of puts of which the directory may know and this node not yet.
    starting: Mutex<HashSet<u64>>,
}

#[derive(Clone)]
struct Running {
    token: u64,
    /// Whose sessions may take its name for another put of theirs; a region that is being made is nobody's.
    user: Option<u32>,
    name: ObjectName,
    homes: Vec<HomeInfo>,
}

/// A put that has begun.
pub struct Begun {
    /// The object.
    pub object: ObjectId,
    /// Its homes and the secret that lets a writer attach to each.
    pub homes: Vec<Home>,
    /// The secret.
    pub ticket: [u8; 16],
}

/// An object that lost its name to another.
pub struct Removed {
    /// The object.
    pub object: ObjectId,
    /// Homes that may let go of it.
    pub homes: Vec<HomeInfo>,
}

/// What a session wants to put.
pub struct NewPut {
    /// User id of the program that puts it.
    pub user: u32,
    /// Name.
    pub name: ObjectName,
    /// Size, if it is known.
    pub bytes: Option<u64>,
    /// Copies.
    pub copies: u8,
    /// Where.
    pub placement: control::Placement,
}

impl Puts {
    /// No puts yet.
    pub fn new(
        own: NodeId,
        incarnation: Incarnation,
        directory: Arc<DirectoryLink>,
        peers: Arc<Peers>,
        holdings: Arc<Holdings>,
    ) -> Self {
        Self {
            own,
            incarnation,
            directory,
            peers,
            holdings,
            next_token: AtomicU64::new(1),
            running: Mutex::default(),
            starting: Mutex::default(),
        }
    }

    /// Takes the name, and room at every home.
    ///
    /// # Errors
    /// [`Refused`]; nothing is left behind.
    pub fn begin(&self, new: NewPut) -> Result<Begun, Refused> {
        let token = self.next_token.fetch_add(1, Ordering::AcqRel);
        let writer = Writer { node: self.own, incarnation: self.incarnation.get(), token };
        let command = Command::Reserve {
            name: new.name.clone(),
            size: new.bytes,
            copies: new.copies,
            placement: placement(new.placement.clone()),
            writer,
        };
        // The token is known before the directory hears of it, so that a heartbeat does not end it as forgotten.
        self.starting().insert(token);
        let reserved = self.directory.apply(&command);
        if let Ok(Reply::Reserved { object, homes }) = &reserved {
            let (user, name) = (Some(new.user), new.name.clone());
            let running = Running { token, user, name, homes: homes.clone() };
            self.lock().insert(*object, running);
        }
        self.starting().remove(&token);
        let Reply::Reserved { object, homes } = reserved? else { return Err(confused()) };
        fault_point::reach("put-reserved");
        let ticket = hinterland_pool::local::random().map_err(Refused::from)?;
        for home in &homes {
            if let Err(refused) = self.make_room(home, object, &new, ticket) {
                self.abandon(object);
                return Err(refused);
            }
            fault_point::reach("put-room-made");
        }
        let homes = homes.into_iter().map(up).collect();
        Ok(Begun { object, homes, ticket })
    }

    /// Takes name, addresses and room for a region that nobody sees yet. While somebody else makes one of that name, waits for what comes
    /// of it.
    ///
    /// # Errors
    /// [`Refused`]; nothing is left behind.
    pub fn begin_region(
        &self,
        name: &ObjectName,
        bytes: u64,
        placement: Placement,
    ) -> Result<(ObjectId, Vec<HomeInfo>), Refused> {
        let token = self.next_token.fetch_add(1, Ordering::AcqRel);
        let writer = Writer { node: self.own, incarnation: self.incarnation.get(), token };
        let command = Command::MakeRegion { name: name.clone(), size: bytes, placement, writer };
        // As in `begin`.
        self.starting().insert(token);
        let reserved = self.directory.ask_when_made(&command);
        if let Ok(Reply::Reserved { object, homes }) = &reserved {
            let (name, homes) = (name.clone(), homes.clone());
            self.lock().insert(*object, Running { token, user: None, name, homes });
        }
        self.starting().remove(&token);
        let Reply::Reserved { object, homes } = reserved? else { return Err(confused()) };
        Ok((object, homes))
    }

    /// What was made is there for others: it is no put of this node any more.
    pub fn is_over(&self, object: ObjectId) {
        self.lock().remove(&object);
    }

    /// Gives the object that is put another name.
    ///
    /// # Errors
    /// [`Refused`]; it keeps the name that it had.
    pub fn rename(&self, object: ObjectId, from: ObjectName, to: ObjectName) -> Result<(), Refused> {
        self.directory.apply(&Command::Rename { from, to: to.clone(), object, target: OnTarget::Refuse })?;
        if let Some(running) = self.lock().get_mut(&object) {
            running.name = to;
        }
        Ok(())
    }

    /// Has two objects that are put exchange their names, in one step. Both are put by one user: a program may have a session for each.
    ///
    /// # Errors
    /// [`Refused`], with `EACCES` if another user puts one of them; each keeps the name that it had.
    pub fn exchange(
        &self,
        user: u32,
        (object, from): (ObjectId, ObjectName),
        (other, to): (ObjectId, ObjectName),
    ) -> Result<(), Refused> {
        for put in [object, other] {
            let why = match self.find(put)?.user {
                Some(whose) if whose == user => continue,
                Some(_) => "is put by another user",
                None => "is a region that is being made",
            };
            let hint = "a put exchanges its name with another one of the same user";
            return Err(Refused::new(errno::EACCES, format!("{put} {why} (hint: {hint})")));
        }
        let target = OnTarget::Exchange(other);
        self.directory.apply(&Command::Rename { from: from.clone(), to: to.clone(), object, target })?;
        let mut all = self.lock();
        for (object, name) in [(object, to), (other, from)] {
            if let Some(running) = all.get_mut(&object) {
                running.name = name;
            }
        }
        Ok(())
    }

    /// Gives a stream more room at every home.
    ///
    /// # Errors
    /// [`Refused`]; the put can be tried again or abandoned.
    pub fn grow(&self, object: ObjectId, bytes: u64) -> Result<(), Refused> {
        let running = self.find(object)?;
        self.directory.apply(&Command::Grow { object, bytes })?;
        fault_point::reach("put-grow-reserved");
        for home in &running.homes {
            if home.node == self.own {
                self.holdings.grow(object, bytes)?;
            } else {
                self.ask_home(home, &PeerRequest::HomeGrow { object, bytes })?;
            }
        }
        Ok(())
    }

    /// Compares what every home holds with the writer's digest, then makes the name visible. When it returns, the
    /// object is durable in the directory and sealed at every home.
    ///
    /// # Errors
    /// [`Refused`]; the put is abandoned.
    pub fn seal(&self, object: ObjectId, bytes: u64, digest: [u8; 32]) -> Result<ObjectInfo, Refused> {
        self.finish(object, bytes, digest, None).map(|(info, _)| info)
    }

    /// As [`seal`](Self::seal) under a name that may be another than the one that was taken. Also returns the object that had the
    /// name, with its homes.
    ///
    /// # Errors
    /// [`Refused`]; the put is abandoned, and the object that has the name stays.
    pub fn publish(
        &self,
        object: ObjectId,
        bytes: u64,
        digest: [u8; 32],
        name: ObjectName,
    ) -> Result<(ObjectInfo, Option<Removed>), Refused> {
        self.finish(object, bytes, digest, Some(name))
    }

    fn finish(
        &self,
        object: ObjectId,
        bytes: u64,
        digest: [u8; 32],
        name: Option<ObjectName>,
    ) -> Result<(ObjectInfo, Option<Removed>), Refused> {
        let mut running = self.find(object)?;
        if let Some(name) = &name {
            running.name.clone_from(name);
        }
        let result = self.seal_homes(&running, (object, bytes), digest, name.as_ref()).and_then(|()| {
            fault_point::reach("put-homes-sealed");
            let homes = running.homes.iter().map(|home| home.node).collect();
            let (size, digest) = (bytes, ContentDigest(digest));
            self.directory.apply(&match name {
                None => Command::Seal { object, size, digest, homes },
                Some(name) => Command::Publish { object, size, digest, homes, name },
            })
        });
        match result {
            Ok(reply) => {
                fault_point::reach("put-sealed");
                self.lock().remove(&object);
                Ok(self.sealed(running, object, bytes, digest, reply))
            }
            Err(refused) => {
                self.abandon(object);
                Err(refused)
            }
        }
    }

    /// The object as it is after a seal that succeeded, and which object lost its name to it. Nothing that fails from here on makes
    /// the put fail: the object stays.
    fn sealed(
        &self,
        running: Running,
        object: ObjectId,
        bytes: u64,
        digest: [u8; 32],
        reply: Reply,
    ) -> (ObjectInfo, Option<Removed>) {
        let (address, removed) = match reply {
            Reply::Sealed { pages } => (Some(pages.first().address()), None),
            // Only the directory knows the pages. Without its answer the object is told without its address.
            reply => {
                let pages = self.directory.lookup_object(object).ok().and_then(|found| found.pages);
                let removed = match reply {
                    Reply::Renamed { removed: Some(object), homes } => Some(Removed { object, homes }),
                    _ => None,
                };
                (pages.map(|pages| pages.first().address()), removed)
            }
        };
        let mut homes: Vec<Home> = running.homes.into_iter().map(up).collect();
        homes.sort_by_key(|home| home.node != self.own);
        let info = ObjectInfo {
            object,
            name: running.name,
            state: ObjectState::Sealed,
            bytes,
            address,
            // A put is sealed at all of its homes or not at all, and a pool has at most 255 copies of anything.
            copies: u8::try_from(homes.len()).unwrap_or(u8::MAX),
            homes,
            digest,
        };
        (info, removed)
    }

    /// Gives everything back. Homes that do not hear it now hear it with their next heartbeat.
    pub fn abandon(&self, object: ObjectId) {
        let Some(running) = self.lock().remove(&object) else { return };
        match self.directory.apply(&Command::Abort { object }) {
            // The seal had gone through although its answer was lost: the object stays.
            Ok(Reply::AlreadySealed { .. }) => return,
            Ok(_) => {}
            Err(refused) => {
                // Perhaps it was sealed and only the answer was lost: then no home may drop its bytes. A later heartbeat
                // tells what became of it.
                tracing::warn!(%refused, "a put is given up when the directory is back");
                return;
            }
        }
        fault_point::reach("put-aborted");
        for home in &running.homes {
            if home.node == self.own {
                self.holdings.drop_object(object);
                self.forget(object, home);
            } else if let Err(refused) = self.peers.drop_at_home(&home.address, object) {
                tracing::debug!(%refused, "a home hears of the abandoned put with its next heartbeat");
            }
        }
    }

    /// Whether a put with this token is going on here.
    pub fn knows(&self, token: u64) -> bool {
        self.starting().contains(&token) || self.lock().values().any(|running| running.token == token)
    }

    /// Tells the directory that this node has let go of a copy.
    pub fn forget(&self, object: ObjectId, home: &HomeInfo) {
        let incarnation = self.incarnation.get();
        let command = Command::Forget { object, node: self.own, incarnation, epoch: home.epoch };
        if let Err(refused) = self.directory.apply(&command) {
            tracing::debug!(%refused, "the directory asks again with the next heartbeat");
        }
    }

    fn make_room(
        &self,
        home: &HomeInfo,
        object: ObjectId,
        new: &NewPut,
        ticket: [u8; 16],
    ) -> Result<(), Refused> {
        let name = new.name.clone();
        if home.node == self.own {
            self.holdings.create(object, home.epoch, name, new.bytes.unwrap_or(0), ticket)?;
            return Ok(());
        }
        let request = PeerRequest::HomeCreate { object, epoch: home.epoch, name, bytes: new.bytes, ticket };
        self.ask_home(home, &request).map(drop)
    }

    /// Asks another node for its part of a put, for as long as the directory counts on it: one that is only slow renews its lease
    /// meanwhile, and one whose lease has run out has lost what is not sealed.
    fn ask_home(&self, home: &HomeInfo, request: &PeerRequest) -> Result<PeerReply, Refused> {
        let (looked, is_down) = (Cell::new(Instant::now()), Cell::new(false));
        let goes_on = || {
            if !is_down.get() && looked.get().elapsed() >= LOOK {
                is_down.set(self.is_down(home.node));
                looked.set(Instant::now());
            }
            !is_down.get()
        };
        self.peers.call_home(&home.address, request, &goes_on).map_err(|refused| match is_down.get() {
            true => went_down(home),
            false => refused,
        })
    }

    /// Whether the directory says that a node is down.
    fn is_down(&self, node: NodeId) -> bool {
        // One that does not answer says nothing.
        let Ok(Reply::Members(members)) = self.directory.apply_soon(&Command::Members) else { return false };
        members.iter().all(|member| member.node != node || member.state == MemberState::Down)
    }

    fn seal_homes(
        &self,
        running: &Running,
        (object, bytes): (ObjectId, u64),
        expected: [u8; 32],
        name: Option<&ObjectName>,
    ) -> Result<(), Refused> {
        for home in &running.homes {
            let found = if home.node == self.own {
                self.holdings.seal_as(object, bytes, name)?
            } else {
                let request = match name.cloned() {
                    Some(name) => PeerRequest::HomeSealAs { object, bytes, name },
                    None => PeerRequest::HomeSeal { object, bytes },
                };
                match self.ask_home(home, &request)? {
                    PeerReply::Sealed { digest } => digest,
                    _ => return Err(confused()),
                }
            };
            if found != expected {
                let text = format!(
                    "{} holds other bytes than were sent (hint: put it again; if it happens again, suspect memory or network)",
                    home.node
                );
                return Err(Refused::new(errno::EIO, text));
            }
        }
        Ok(())
    }

    fn find(&self, object: ObjectId) -> Result<Running, Refused> {
        self.lock().get(&object).cloned().ok_or_else(|| {
            Refused::new(errno::EINVAL, format!("no put of {object} is going on here (hint: begin again)"))
        })
    }

    fn starting(&self) -> std::sync::MutexGuard<'_, HashSet<u64>> {
        self.starting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ObjectId, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The directory's form of a placement.
pub fn placement(placement: control::Placement) -> Placement {
    match placement {
        control::Placement::Policy => Placement::Policy,
        control::Placement::Rack(rack) => Placement::Rack(rack),
        control::Placement::Spread => Placement::Spread,
    }
}

/// A home that has just answered, for people and programs.
fn up(home: HomeInfo) -> Home {
    Home { node: home.node, rack: home.rack, address: home.address, up: true, heat: false }
}

fn went_down(home: &HomeInfo) -> Refused {
    let text = format!(
        "{} at {} in rack {}, which takes the bytes, is down: it has not answered for its lease (hint: is it stopped, dead or cut off? put it again; --rack names another rack)",
        home.node, home.address, home.rack
    );
    Refused::new(errno::EHOSTUNREACH, text)
}

fn confused() -> Refused {
    Refused::new(
        errno::EIO,
        "an answer does not belong to its question (hint: run the same release on all nodes)",
    )
}
