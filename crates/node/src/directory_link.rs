//! How a node reaches the directory: in its own process, or at the node that hosts it.

use crate::directory_etcd::EtcdDirectory;
use crate::directory_host::{DirectoryHost, DirectoryHostError};
use crate::peers::{Peers, Way};
use crate::refused::{Refused, errno};
use hinterland_directory::{Command, DirectoryError, HomeInfo, ObjectInfo, Reply};
use hinterland_proto::control::{self, Home, PeerReply, PeerRequest};
use hinterland_types::{GlobalAddress, NodeId, ObjectId, ObjectName, PageNumber, RackName};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a region of a name is waited for that is being made: its homes make empty files.
const MAKING_WAIT: Duration = Duration::from_secs(3);
/// How often it is asked for.
const MAKING_PAUSE: Duration = Duration::from_millis(10);

/// How long a directory is waited for by who only looks: people watch.
const GLANCE: Duration = Duration::from_secs(2);

/// The way to the directory.
pub enum DirectoryLink {
    /// This node hosts it.
    Embedded(Arc<DirectoryHost>),
    /// Another node hosts it, at this `HOST:PORT`.
    Remote {
        /// Connections to other nodes.
        peers: Arc<Peers>,
        /// Where the directory is.
        address: String,
    },
    /// Several nodes may host it, and keep it in etcd.
    Etcd(Arc<EtcdDirectory>),
}

/// What an encoded directory command comes back as.
pub type EncodedAnswer = Result<Reply, DirectoryError>;

impl DirectoryLink {
    /// Asks the directory.
    ///
    /// # Errors
    /// [`Refused`] with the directory's words, or that it cannot be reached.
    pub fn apply(&self, command: &Command) -> Result<Reply, Refused> {
        self.ask(command)?.map_err(Refused::from)
    }

    /// Asks the directory, keeping its own error apart from those of the way to it.
    ///
    /// # Errors
    /// [`Refused`] if the directory could not be asked.
    pub fn ask(&self, command: &Command) -> Result<EncodedAnswer, Refused> {
        self.ask_with(command, |peers, address, request| match Way::of(command) {
            Way::Beats => peers.beat(address, request),
            Way::Common => peers.call(address, request),
        })
    }

    /// As [`apply`](Self::apply) for who would rather know soon that the directory does not answer: one that another node hosts is
    /// waited for no longer than [`GLANCE`], and for as long as it takes to connect.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn apply_soon(&self, command: &Command) -> Result<Reply, Refused> {
        let soon =
            |peers: &Peers, address: &str, request: &PeerRequest| peers.call_within(address, request, GLANCE);
        self.ask_with(command, soon)?.map_err(Refused::from)
    }

    fn ask_with(
        &self,
        command: &Command,
        call: impl FnOnce(&Peers, &str, &PeerRequest) -> Result<PeerReply, Refused>,
    ) -> Result<EncodedAnswer, Refused> {
        match self {
            Self::Embedded(host) => answer(host, command),
            Self::Etcd(shared) => shared.ask(command),
            Self::Remote { peers, address } => {
                let body = control::encode(command)?;
                let answer = call(peers, address, &PeerRequest::Directory(body));
                match answer.map_err(|refused| unanswered(refused, address))? {
                    PeerReply::Directory(bytes) => Ok(control::decode(&bytes)?),
                    other => Err(Refused::new(errno::EIO, format!("the directory answered {other:?}"))),
                }
            }
        }
    }

    /// Asks about a name; while somebody makes a region of that name, waits for what comes of it.
    ///
    /// # Errors
    /// [`Refused`], with `EAGAIN` if that takes long.
    pub fn ask_when_made(&self, command: &Command) -> Result<Reply, Refused> {
        let started = Instant::now();
        loop {
            match self.ask(command)? {
                Err(DirectoryError::NameBeingMade { .. }) if started.elapsed() < MAKING_WAIT => {
                    std::thread::sleep(MAKING_PAUSE);
                }
                answer => return answer.map_err(Refused::from),
            }
        }
    }

    /// The object of a name.
    ///
    /// # Errors
    /// [`Refused`] if there is none.
    pub fn lookup(&self, name: &ObjectName) -> Result<ObjectInfo, Refused> {
        object(self.ask_when_made(&Command::Lookup { name: name.clone() })?)
    }

    /// The object of an identifier.
    ///
    /// # Errors
    /// [`Refused`] if there is none.
    pub fn lookup_object(&self, id: ObjectId) -> Result<ObjectInfo, Refused> {
        object(self.apply(&Command::LookupObject { object: id })?)
    }

    /// The object that owns a page.
    ///
    /// # Errors
    /// [`Refused`] if nobody does.
    pub fn lookup_page(&self, page: PageNumber) -> Result<ObjectInfo, Refused> {
        object(self.apply(&Command::LookupPage { page })?)
    }

    /// Whether this node alone hosts the directory.
    pub const fn is_embedded(&self) -> bool {
        matches!(self, Self::Embedded(_))
    }

    /// Whether this node answers for the directory at this moment.
    pub fn answers_here(&self) -> bool {
        match self {
            Self::Embedded(_) => true,
            Self::Remote { .. } => false,
            Self::Etcd(shared) => shared.leads(),
        }
    }

    /// The directory that several nodes may host, if it is one.
    pub const fn shared(&self) -> Option<&Arc<EtcdDirectory>> {
        match self {
            Self::Etcd(shared) => Some(shared),
            Self::Embedded(_) | Self::Remote { .. } => None,
        }
    }
}

/// What is said where the node that hosts the directory does not answer, or takes no question: who reads an object next to them would not
/// think of it.
fn unanswered(refused: Refused, address: &str) -> Refused {
    if refused.code == errno::EPROTO {
        return Refused::new(errno::EPROTO, format!("the directory is of another release: {refused}"));
    }
    if refused.code != errno::EHOSTUNREACH {
        return refused;
    }
    // Its own hint is for those who look for another node.
    let why = refused.text.split(" (hint: ").next().unwrap_or_default();
    let text = format!(
        "the directory does not answer: {why} (hint: start the node at {address} again, on its state; meanwhile nobody finds, makes or removes a name, and what is mapped stays readable)"
    );
    Refused::new(errno::EHOSTUNREACH, text)
}

/// Answers a command on the host; an error of the store is an error of the way.
///
/// # Errors
/// [`Refused`] if the store failed.
pub fn answer(host: &DirectoryHost, command: &Command) -> Result<EncodedAnswer, Refused> {
    match host.apply(command) {
        Ok(reply) => Ok(Ok(reply)),
        Err(DirectoryHostError::Refused(error)) => Ok(Err(error)),
        Err(error) => Err(Refused::new(errno::EIO, error.to_string())),
    }
}

/// The directory's description of an object as readers of a rack see it: this node's copy first, then those of its rack, then the
/// others; those of nodes that are down last. Readers ask homes in this order.
pub fn describe_near(info: &ObjectInfo, own: NodeId, rack: &RackName) -> control::ObjectInfo {
    let mut described = describe(info, own);
    described.homes.sort_by_key(|home| (home.node != own, !home.up, home.rack != *rack));
    described
}

/// The directory's description of an object, this node's copy first.
pub fn describe(info: &ObjectInfo, own: NodeId) -> control::ObjectInfo {
    use hinterland_directory::ObjectState as Stage;
    let home = |up: bool| {
        move |home: &HomeInfo| Home {
            node: home.node,
            rack: home.rack.clone(),
            address: home.address.clone(),
            up,
            heat: false,
        }
    };
    let mut homes: Vec<Home> =
        info.homes.iter().map(home(true)).chain(info.homes_down.iter().map(home(false))).collect();
    homes.sort_by_key(|home| home.node != own);
    control::ObjectInfo {
        object: info.object,
        name: info.name.clone(),
        state: match info.state {
            Stage::Writing | Stage::Making | Stage::Removing => control::ObjectState::Writing,
            Stage::Sealed => control::ObjectState::Sealed,
            Stage::Mutable => control::ObjectState::Mutable,
        },
        bytes: info.size,
        address: info.pages.map(first_address),
        copies: info.copies,
        homes,
        digest: info.digest.map_or([0; 32], |digest| digest.0),
    }
}

fn first_address(pages: hinterland_directory::PageRun) -> GlobalAddress {
    pages.first().address()
}

fn object(reply: Reply) -> Result<ObjectInfo, Refused> {
    match reply {
        Reply::Object(info) => Ok(info),
        other => Err(Refused::new(errno::EIO, format!("the directory answered {other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hinterland_directory::ObjectState;
    use hinterland_fabric::FabricError;
    use hinterland_proto::{HandshakeError, Refusal, RefusalCode};
    use hinterland_types::Epoch;

    fn home(node: u64, rack: &str) -> HomeInfo {
        let rack = RackName::parse(rack).unwrap();
        HomeInfo { node: NodeId(node), rack, address: "127.0.0.1:1".to_owned(), epoch: Epoch(1) }
    }

    #[test]
    fn a_directory_of_another_release_is_said_to_be_that_and_not_to_be_silent() {
        let refused = |code| {
            let refusal = Refusal::new(code, "versions 1 to 1 and 2 to 2 (hint: upgrade this node)");
            let source = HandshakeError::Refused(refusal);
            unanswered(FabricError::Handshake { address: "h:1".to_owned(), source }.into(), "h:1")
        };
        let text = refused(RefusalCode::Version).text;
        assert!(text.starts_with("the directory is of another release: handshake with h:1 failed"), "{text}");
        assert!(text.contains("upgrade this node") && !text.contains("start the node"), "{text}");
        let text = refused(RefusalCode::Stopping).text;
        assert!(text.contains("start the node at h:1 again"), "{text}");
    }

    #[test]
    fn homes_are_told_by_how_near_they_are_to_the_reader() {
        let info = ObjectInfo {
            object: ObjectId(1),
            name: ObjectName::parse("o").unwrap(),
            state: ObjectState::Sealed,
            size: 1,
            pages: None,
            digest: None,
            copies: 6,
            homes: vec![home(1, "a"), home(2, "b"), home(3, "a"), home(4, "b")],
            homes_down: vec![home(5, "b"), home(6, "a")],
        };
        let nodes = |own, rack: &str| -> Vec<u64> {
            let told = describe_near(&info, NodeId(own), &RackName::parse(rack).unwrap());
            told.homes.iter().map(|home| home.node.0).collect()
        };
        assert_eq!(nodes(9, "b"), [2, 4, 1, 3, 5, 6]);
        assert_eq!(nodes(9, "c"), [1, 2, 3, 4, 5, 6]);
        assert_eq!(nodes(3, "a"), [3, 1, 2, 4, 6, 5]);
        // Its own memory is there, whatever the directory thinks of its lease.
        assert_eq!(nodes(6, "a"), [6, 1, 3, 2, 4, 5]);
    }
}
