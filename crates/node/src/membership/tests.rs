//! What a node keeps of its membership while it does what the directory asks for.

use super::*;
use crate::peers::{PeerIdentity, Peers};
use crate::put::NewPut;
use crate::repair::RepairOptions;
use hinterland_directory::{Directory, MemberState, ObjectState, Placement, Settings, Writer};
use hinterland_fabric::rdma::RdmaOptions;
use hinterland_fabric::tcp::{Server, ServerOptions};
use hinterland_fabric::{Service, Slice};
use hinterland_proto::control::{PeerReply, PeerRequest, decode, encode};
use hinterland_proto::{ErrorCode, PeerHello, PoolId, Refusal, RemoteError};
use hinterland_types::{ByteRange, Handle, ObjectName, Rights, SessionId};
use std::fs;
use std::net::TcpListener;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The lease in milliseconds.
const LEASE_MS: u64 = 800;
/// How long a directory with a slow disk takes to forget a copy. Many more of them than this in a lease are forgotten.
const FORGET_MS: u64 = 10;
const OBJECTS: u64 = 2 * LEASE_MS / FORGET_MS;

/// A directory on a disk that takes its time to forget copies. No other time passes for it, so that a test that is held up says nothing
/// else.
struct SlowDisk {
    state: Mutex<(Directory, u64)>,
    /// What comes from somebody else right behind the next heartbeat.
    behind_beat: Mutex<Option<Command>>,
    /// Heartbeats that came.
    beats: AtomicU64,
    /// Whether what nodes say that they hold is lost on its way.
    loses_lists: AtomicBool,
    /// Lists of that kind that came.
    lists: AtomicU64,
    /// Times that somebody offered what the directory does not know.
    adoptions: AtomicU64,
    /// What it says to the next ones in place of what is so.
    lies: Mutex<Vec<Reply>>,
}

impl SlowDisk {
    fn new() -> Self {
        let settings = Settings { lease_ms: LEASE_MS };
        let directory = Directory::recover(settings, 0, []).unwrap();
        let (behind_beat, beats, loses_lists) = (Mutex::default(), AtomicU64::new(0), AtomicBool::new(false));
        let (lists, adoptions, lies) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::default());
        Self { state: Mutex::new((directory, 0)), behind_beat, beats, loses_lists, lists, adoptions, lies }
    }

    fn ask(&self, command: &Command) -> Result<Reply, DirectoryError> {
        let mut state = self.state.lock().unwrap();
        let (directory, now_ms) = &mut *state;
        if matches!(command, Command::Forget { .. }) {
            std::thread::sleep(Duration::from_millis(FORGET_MS));
            *now_ms += FORGET_MS;
        }
        directory.apply(*now_ms, command).map(|(reply, _)| reply)
    }

    /// A region of this node that was removed, of which the node has not heard yet.
    fn removed(&self, node: NodeId, number: u64) -> (ObjectId, Epoch, ObjectName) {
        let name = ObjectName::parse(&format!("o{number}")).unwrap();
        let command = Command::CreateRegion {
            name: name.clone(),
            size: 4096,
            placement: Placement::Policy,
            local: node,
        };
        let Reply::Reserved { object, homes } = self.ask(&command).unwrap() else { panic!("no region") };
        self.ask(&Command::Remove { name: name.clone(), object: Some(object) }).unwrap();
        (object, homes[0].epoch, name)
    }

    /// Lets the time pass. A node that keeps its lease is heard of in each half of one, however busy the machine is.
    fn go_on_for_longer_than_a_lease(&self) {
        for _ in 0..3 {
            let before = self.beats.load(Ordering::SeqCst);
            let until = Instant::now() + Duration::from_secs(10);
            while self.beats.load(Ordering::SeqCst) == before && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            self.state.lock().unwrap().1 += LEASE_MS / 2;
            self.ask(&Command::Tick).unwrap();
        }
    }

    fn state(&self, node: NodeId) -> (MemberState, u64, u64) {
        let Reply::Members(members) = self.ask(&Command::Members).unwrap() else { panic!("no members") };
        let member = members.into_iter().find(|member| member.node == node).unwrap();
        (member.state, member.incarnation, member.object_count)
    }
}

impl Service for SlowDisk {
    fn opened(&self, _: &PeerHello) -> Result<SessionId, Refusal> {
        Ok(SessionId(1))
    }

    fn closed(&self, _: SessionId) {}

    fn resolve(&self, _: SessionId, _: Handle, _: ByteRange, _: Rights) -> Result<Slice, RemoteError> {
        Ok(Slice::copied(&[]))
    }

    fn call(&self, _: SessionId, body: &[u8]) -> Result<Vec<u8>, RemoteError> {
        let Ok(PeerRequest::Directory(command)) = decode(body) else { panic!("another question") };
        let command = decode(&command).unwrap();
        self.lists.fetch_add(u64::from(matches!(command, Command::NodeObjects { .. })), Ordering::SeqCst);
        self.adoptions.fetch_add(u64::from(matches!(command, Command::Adopt { .. })), Ordering::SeqCst);
        if matches!(command, Command::NodeObjects { .. }) && self.loses_lists.load(Ordering::SeqCst) {
            return Err(RemoteError::new(ErrorCode::INTERNAL, "it is lost"));
        }
        if let Command::NodeObjects { .. } = command
            && let Some(lie) = self.lies.lock().unwrap().pop()
        {
            let answer: EncodedAnswer = Ok(lie);
            return Ok(encode(&PeerReply::Directory(encode(&answer).unwrap())).unwrap());
        }
        let answer = self.ask(&command);
        self.beats.fetch_add(u64::from(matches!(command, Command::Heartbeat { .. })), Ordering::SeqCst);
        if let Command::Heartbeat { .. } = command
            && let Some(behind) = self.behind_beat.lock().unwrap().take()
        {
            self.ask(&behind).unwrap();
        }
        Ok(encode(&PeerReply::Directory(encode(&answer).unwrap())).unwrap())
    }
}

/// A node that is a member of such a directory.
struct Member {
    membership: Membership,
    directory: Arc<DirectoryLink>,
    holdings: Arc<Holdings>,
    puts: Puts,
    repairs: Repairs,
    folder: Folder,
    _server: Server,
}

/// A folder that goes with its test.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // What a test leaves that has failed is no second failure.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A directory and its one member, which has joined and holds nothing; each test has a folder of its own name.
fn joined(test: &str) -> (Arc<SlowDisk>, Member) {
    let disk = Arc::new(SlowDisk::new());
    let folder = std::env::temp_dir().join(format!("hl-membership-{test}-{}", std::process::id()));
    let member = Member::new(&disk, Folder(folder));
    member.membership.join(&member.directory, &member.holdings).unwrap();
    (disk, member)
}

impl Member {
    fn new(disk: &Arc<SlowDisk>, folder: Folder) -> Self {
        let (node, pool) = (NodeId(2), PoolId(7));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let options = ServerOptions { node: NodeId(1), pool, ..ServerOptions::default() };
        let server = Server::start(listener, Arc::clone(disk) as Arc<dyn Service>, options).unwrap();
        let peers = Arc::new(Peers::new(PeerIdentity {
            node,
            pool,
            credentials: crate::credentials::Credentials::default(),
            streams: 1,
            timeout: Duration::from_secs(60),
            rdma: RdmaOptions { enabled: false, ..RdmaOptions::default() },
        }));
        let address = server.address().to_string();
        let directory = Arc::new(DirectoryLink::Remote { peers: Arc::clone(&peers), address });
        let root = &folder.0;
        fs::create_dir_all(root.join("memory")).unwrap();
        let (holdings, _) =
            Holdings::open(&root.join("memory"), None, &root.join("state"), 64 << 20).unwrap();
        let (holdings, incarnation) = (Arc::new(holdings), Incarnation::fresh());
        let rack = RackName::parse("a").unwrap();
        let listen = "127.0.0.1:0".parse().unwrap();
        let options =
            NodeOptions::new("a".parse().unwrap(), rack, root.join("socket"), root.join("state"), listen);
        let address = "127.0.0.1:1".to_owned();
        let membership = Membership::new(&options, node, address, incarnation.clone(), Adoption::Refused);
        let links = (Arc::clone(&directory), Arc::clone(&peers), Arc::clone(&holdings));
        let repairs = Repairs::new(RepairOptions::default(), node, incarnation.clone(), links);
        let puts = Puts::new(node, incarnation, Arc::clone(&directory), peers, Arc::clone(&holdings));
        Self { membership, directory, holdings, puts, repairs, folder, _server: server }
    }

    fn beat(&self) {
        self.try_beat().unwrap();
    }

    fn try_beat(&self) -> Result<u64, Refused> {
        let Self { membership, directory, holdings, puts, repairs, .. } = self;
        membership.heartbeat(directory, holdings, puts, repairs)
    }

    /// The directory hears no more of it in this life.
    fn is_lost(&self, disk: &SlowDisk) {
        let (node, incarnation) = (self.membership.node, self.membership.incarnation.get());
        disk.ask(&Command::Leave { node, incarnation, departure: Departure::ComesBack }).unwrap();
    }

    /// It has a file and a region that the directory has lost, and a file is in the way of the folder that regions are saved in: what was put
    /// is taken in all the same. The object, and the path.
    fn adopts_in_part(&mut self, disk: &SlowDisk) -> (ObjectId, PathBuf) {
        self.membership.adoption = Adoption::Newer;
        let region = ObjectName::parse("region").unwrap();
        self.holdings.create_region(ObjectId(1000), Epoch(1000), region, 4096).unwrap();
        let old = disk.state.lock().unwrap().0.clone();
        let object = self.put("file");
        disk.state.lock().unwrap().0 = old;
        self.is_lost(disk);
        let folder = rescued(&self.folder.0.join("state"));
        fs::write(&folder, "").unwrap();
        (object, folder)
    }

    fn region(&self, disk: &SlowDisk, name: &str) {
        let name = ObjectName::parse(name).unwrap();
        let (size, local) = (4096, self.membership.node);
        let command = Command::CreateRegion { name: name.clone(), size, placement: Placement::Policy, local };
        let Reply::Reserved { object, homes } = disk.ask(&command).unwrap() else { panic!("no region") };
        self.holdings.create_region(object, homes[0].epoch, name, size).unwrap();
    }

    /// Puts an object; its number.
    fn put(&self, name: &str) -> ObjectId {
        let (object, digest) = self.put_almost(name);
        self.puts.seal(object, 4096, digest).unwrap();
        object
    }

    /// The same up to the directory's word: the copy here is whole. Its number and digest.
    fn put_almost(&self, name: &str) -> (ObjectId, [u8; 32]) {
        let (name, placement) =
            (ObjectName::parse(name).unwrap(), hinterland_proto::control::Placement::Policy);
        let new = NewPut { user: 1000, name, bytes: Some(4096), copies: 1, placement };
        let object = self.puts.begin(new).unwrap().object;
        (object, self.holdings.seal(object, 4096).unwrap())
    }
}

#[test]
fn a_node_that_lets_go_of_many_objects_keeps_its_lease() {
    let (disk, member) = joined("many");
    let node = member.membership.node;
    let first = disk.state(node);

    // They were removed while it did not answer.
    for number in 0..OBJECTS {
        disk.removed(node, number);
    }
    member.beat();
    assert_eq!(disk.state(node), first, "after a heartbeat");

    // They were removed while it was away, and it holds them.
    for number in OBJECTS..2 * OBJECTS {
        let (object, epoch, name) = disk.removed(node, number);
        member.holdings.create_region(object, epoch, name, 4096).unwrap();
    }
    disk.ask(&Command::Leave { node, incarnation: first.1, departure: Departure::ComesBack }).unwrap();
    member.beat();
    let (state, incarnation, objects) = disk.state(node);
    assert_eq!((state, objects), (MemberState::Up, 0), "after it has joined again");
    assert_eq!(incarnation, member.membership.incarnation.get());
    assert!(member.holdings.all().is_empty());
}

#[test]
fn a_node_that_lets_go_of_what_takes_longer_than_a_lease_keeps_its_lease() {
    let (disk, member) = joined("large");
    let node = member.membership.node;
    let first = disk.state(node);
    let (object, epoch, name) = disk.removed(node, 1);
    member.holdings.create_region(object, epoch, name, 4096).unwrap();
    let clock = Arc::clone(&disk);
    member.holdings.when_region_goes(Box::new(move || clock.go_on_for_longer_than_a_lease()));
    member.beat();
    assert_eq!(disk.state(node), (first.0, first.1, 0));
    assert!(member.holdings.all().is_empty());
}

#[test]
fn a_node_that_saves_what_takes_longer_than_a_lease_keeps_its_lease() {
    let (disk, member) = joined("saved");
    let node = member.membership.node;
    let first = disk.state(node);
    // Regions are not taken in again.
    let (object, epoch) = (ObjectId(1000), Epoch(1000));
    member.holdings.create_region(object, epoch, ObjectName::parse("region").unwrap(), 4096).unwrap();
    // A disk that takes its time: whoever writes to a pipe waits for a reader.
    let disk_folder = rescued(&member.folder.0.join("state"));
    fs::create_dir_all(&disk_folder).unwrap();
    let pipe = disk_folder.join("1000-region.partial");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let clock = Arc::clone(&disk);
    let reader = std::thread::spawn(move || {
        clock.go_on_for_longer_than_a_lease();
        fs::File::open(pipe).unwrap()
    });
    let mut pace = Pace::begun(clock::boot_ms(), LEASE_MS);
    let refused =
        member.membership.adopt(Adoption::Newer, &mut pace, &member.directory, &member.holdings, &[object]);
    assert_eq!(refused.unwrap_err().code, errno::EIO, "a pipe is no file");
    reader.join().unwrap();
    assert_eq!(disk.state(node), first);
    assert_eq!(member.holdings.all().len(), 1, "it was not let go of");
}

#[test]
fn what_is_made_while_a_heartbeat_is_answered_is_no_failure_of_it() {
    let (disk, member) = joined("made");
    let (node, incarnation) = (member.membership.node, member.membership.incarnation.clone());
    let writer = |token| Writer { node, incarnation: incarnation.get(), token };
    let make = |name: &str, token| {
        let (name, size, placement) = (ObjectName::parse(name).unwrap(), 4096, Placement::Policy);
        let command = Command::MakeRegion { name, size, placement, writer: writer(token) };
        let Reply::Reserved { object, .. } = disk.ask(&command).unwrap() else { panic!("no region") };
        object
    };
    // The session that makes it hears that it is there before the answer to the heartbeat comes, which names it as one in the making.
    let made = make("made", 1);
    let given_up = make("given-up", 2);
    *disk.behind_beat.lock().unwrap() = Some(Command::ShowRegion { object: made });
    member.beat();
    let state = |object| disk.ask(&Command::LookupObject { object });
    assert!(matches!(state(made), Ok(Reply::Object(info)) if info.state == ObjectState::Mutable));
    assert!(!matches!(state(given_up), Ok(Reply::Object(info)) if info.state == ObjectState::Making));
}

#[test]
fn a_put_exchanges_its_name_with_another_one_of_its_user_alone() {
    let (disk, member) = joined("names");
    let begin = |user, name: &str| {
        let (name, placement) =
            (ObjectName::parse(name).unwrap(), hinterland_proto::control::Placement::Policy);
        let new = NewPut { user, name: name.clone(), bytes: Some(4096), copies: 1, placement };
        (member.puts.begin(new).unwrap().object, name)
    };
    let name_of = |object| {
        let Ok(Reply::Object(info)) = disk.ask(&Command::LookupObject { object }) else { panic!("no put") };
        info.name
    };
    let (mine, hidden) = begin(1000, "mine");
    let (wanted, name) = begin(1000, "file");
    let (theirs, their_name) = begin(1001, "theirs");
    let exchange = |user, one: (ObjectId, &ObjectName), other: (ObjectId, &ObjectName)| {
        member.puts.exchange(user, (one.0, one.1.clone()), (other.0, other.1.clone()))
    };
    for (user, one, other) in [
        (1000, (mine, &hidden), (theirs, &their_name)),
        (1001, (mine, &hidden), (theirs, &their_name)),
        (1001, (mine, &hidden), (wanted, &name)),
    ] {
        assert_eq!(exchange(user, one, other).unwrap_err().code, errno::EACCES);
    }
    let region = ObjectName::parse("region").unwrap();
    let (made, _) = member.puts.begin_region(&region, 4096, Placement::Policy).unwrap();
    let refused = exchange(1000, (mine, &hidden), (made, &region)).unwrap_err();
    assert!(refused.text.contains("is a region that is being made"), "{refused}");
    exchange(1000, (mine, &hidden), (wanted, &name)).unwrap();
    for (name, object) in [(name, mine), (hidden, wanted), (their_name, theirs)] {
        assert_eq!(name_of(object), name);
    }
}

#[test]
fn a_node_whose_list_was_not_heard_shows_nothing_and_joins_anew() {
    let (disk, member) = joined("unheard");
    let node = member.membership.node;
    member.region(&disk, "one");
    member.region(&disk, "two");
    member.is_lost(&disk);
    disk.loses_lists.store(true, Ordering::SeqCst);
    assert!(member.try_beat().is_err());
    let (state, _, objects) = disk.state(node);
    assert!(matches!(state, MemberState::Joining { .. }), "{state:?}");
    assert_eq!(objects, 2);
    disk.loses_lists.store(false, Ordering::SeqCst);
    // The newest is not all that there is.
    assert_eq!(member.membership.show_newest(&member.directory, &member.holdings), None);
    assert!(member.membership.hear_names(&member.directory, &member.holdings).is_err());
    assert_eq!((disk.state(node).0, disk.state(node).2), (state, 2));
    member.beat();
    assert_eq!((disk.state(node).0, disk.state(node).2), (MemberState::Up, 2));
    assert_eq!(member.holdings.all().len(), 2);
}

#[test]
fn a_node_that_is_refused_for_what_it_holds_says_it_again_ever_less_often() {
    let (disk, member) = joined("refused");
    let node = member.membership.node;
    member.region(&disk, "known");
    let newest = disk.state.lock().unwrap().0.clone();
    let unknown = ObjectName::parse("unknown").unwrap();
    member.holdings.create_region(ObjectId(1000), Epoch(1000), unknown, 4096).unwrap();
    member.is_lost(&disk);
    let before = disk.lists.load(Ordering::SeqCst);
    for _ in 0..40 {
        assert_eq!(member.try_beat().unwrap_err().code, errno::ESTALE);
        assert_eq!(member.membership.show_newest(&member.directory, &member.holdings), None);
        let (state, _, objects) = disk.state(node);
        assert!(matches!(state, MemberState::Joining { .. }), "{state:?}");
        assert_eq!((objects, member.holdings.all().len()), (1, 2));
    }
    // Behind 4, 8 and 16 others.
    assert_eq!(disk.lists.load(Ordering::SeqCst) - before, 4);
    // A directory that has another store is told at once.
    disk.state.lock().unwrap().0 = newest;
    member.holdings.drop_object(ObjectId(1000));
    member.beat();
    assert_eq!((disk.state(node).0, disk.state(node).2), (MemberState::Up, 1));
}

#[test]
fn a_member_that_is_still_joining_in_the_directorys_store_joins_anew() {
    let (disk, member) = joined("joining");
    let node = member.membership.node;
    member.region(&disk, "one");
    member.region(&disk, "two");
    member.is_lost(&disk);
    // The store is put back as it was before the list was heard.
    disk.loses_lists.store(true, Ordering::SeqCst);
    assert!(member.try_beat().is_err());
    disk.loses_lists.store(false, Ordering::SeqCst);
    let old = disk.state.lock().unwrap().0.clone();
    member.beat();
    disk.state.lock().unwrap().0 = old;
    let rack = RackName::parse("a").unwrap();
    let (address, incarnation) = ("127.0.0.1:1".to_owned(), member.membership.incarnation.get());
    disk.ask(&Command::Join { name: None, node, rack, address, capacity_bytes: 64 << 20, incarnation })
        .unwrap();
    member.beat();
    assert_eq!(member.membership.show_newest(&member.directory, &member.holdings), None);
    assert_eq!(disk.state(node).2, 2);
    member.beat();
    assert_eq!((disk.state(node).0, disk.state(node).2), (MemberState::Up, 2));
    assert_eq!(member.holdings.all().len(), 2);
}

#[test]
fn a_long_list_is_judged_by_what_its_last_part_tells() {
    let (disk, mut member) = joined("long");
    let node = member.membership.node;
    // The store is copied while a put is going on, which ends well, and is put back when more has been put.
    let (going_on, digest) = member.put_almost("one");
    let old = disk.state.lock().unwrap().0.clone();
    member.puts.seal(going_on, 4096, digest).unwrap();
    let later = member.put("two");
    disk.state.lock().unwrap().0 = old;
    member.is_lost(&disk);
    member.membership.part = 1;
    assert_eq!(member.try_beat().unwrap_err().code, errno::ESTALE);
    assert!(matches!(disk.state(node).0, MemberState::Joining { .. }));
    for adoption in [Adoption::Refused, Adoption::Newer] {
        for object in [going_on, later] {
            assert!(member.holdings.find(object).is_ok_and(|holding| holding.is_sealed()), "{object}");
        }
        // Started again.
        member.membership.adoption = adoption;
        member.membership.incarnation.raise_above(member.membership.incarnation.get());
        let _ = member.membership.join(&member.directory, &member.holdings);
    }
    assert_eq!((disk.state(node).0, disk.state(node).2), (MemberState::Up, 2));
    assert_eq!(member.holdings.all().len(), 2);
}

#[test]
fn a_directory_that_does_not_know_what_it_was_not_told_is_refused() {
    let (disk, mut member) = joined("lies");
    ["one", "two", "three"].iter().for_each(|name| member.region(&disk, name));
    let all: Vec<ObjectId> = member.holdings.all().iter().map(|holding| holding.object).collect();
    (member.membership.part, member.membership.adoption) = (1, Adoption::Newer);
    let heard = || Reply::Reconciled { delete: Vec::new(), up: false };
    let unknown = |objects: &[ObjectId]| Reply::KnowsLess { objects: objects.to_vec() };
    // Of parts before, of none, and of nothing at all. The last is said first.
    let lies =
        [vec![unknown(&all[..2]), heard(), heard()], vec![unknown(&[ObjectId(999)])], vec![unknown(&[])]];
    for lie in lies {
        *disk.lies.lock().unwrap() = lie;
        member.membership.incarnation.raise_above(member.membership.incarnation.get());
        let refused = member.membership.join(&member.directory, &member.holdings).unwrap_err();
        assert_eq!(refused.code, errno::EIO, "{refused}");
        assert_eq!(member.holdings.all().len(), 3);
    }
    member.beat();
    assert_eq!(disk.state(member.membership.node).2, 3);
}

#[test]
fn names_that_went_back_are_said_also_where_they_were_not_heard_to_the_end_at_first() {
    let (disk, member) = joined("went-back");
    let object = member.put("before");
    let hear = || member.membership.hear_names(&member.directory, &member.holdings);
    assert_eq!(hear(), Ok(None));
    let old = disk.state.lock().unwrap().0.clone();
    let [from, to] = ["before", "after"].map(|name| ObjectName::parse(name).unwrap());
    let target = hinterland_directory::OnTarget::Refuse;
    disk.ask(&Command::Rename { from, to, object, target }).unwrap();
    assert_eq!(hear(), Ok(None));
    disk.state.lock().unwrap().0 = old;
    // Its headers take the names, and the file that says as of when they are known is not written.
    let in_the_way = member.folder.0.join("state/names.new");
    fs::create_dir(&in_the_way).unwrap();
    assert_eq!(hear().unwrap_err().code, errno::EIO);
    fs::remove_dir(in_the_way).unwrap();
    let words = hear().unwrap().unwrap_or_default();
    assert!(
        words.contains("of 1 of its objects it has another one, such as before in place of after;"),
        "{words}"
    );
    assert_eq!(hear(), Ok(None));
}

#[test]
fn what_is_not_adopted_because_a_disk_takes_nothing_is_adopted_as_soon_as_it_does() {
    let (disk, mut member) = joined("again");
    let (object, folder) = member.adopts_in_part(&disk);
    let refused = member.try_beat().unwrap_err();
    assert!(
        refused.text.starts_with("the directory does not have all again")
            && refused.text.contains("tried again"),
        "{refused}"
    );
    let state = disk.state(member.membership.node);
    assert_eq!((state.0, state.2), (MemberState::Up, 1));
    // It keeps its place meanwhile, and says why.
    let failed = (0..40).map(|_| member.try_beat().unwrap_err()).filter(|again| *again == refused);
    assert_eq!(failed.count(), 40);
    assert_eq!(member.membership.show_newest(&member.directory, &member.holdings), None);
    assert_eq!(disk.adoptions.load(Ordering::SeqCst), 4, "behind 4, 8 and 16 heartbeats");
    fs::remove_file(&folder).unwrap();
    let beats = (0..64).find(|_| member.try_beat().is_ok());
    assert!(beats.is_some(), "it is never tried again");
    assert_eq!(disk.state(member.membership.node), state);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    assert!(member.holdings.find(object).is_ok() && member.holdings.all().len() == 1);
    let adoptions = disk.adoptions.load(Ordering::SeqCst);
    (0..70).for_each(|_| member.beat());
    assert_eq!(disk.adoptions.load(Ordering::SeqCst), adoptions, "nothing is left");
}

#[test]
fn what_is_copied_here_anew_while_the_rest_waits_to_be_adopted_is_left_alone() {
    let (disk, mut member) = joined("anew");
    let (object, folder) = member.adopts_in_part(&disk);
    member.try_beat().unwrap_err();
    // The copy was taken away since, and the next one is on its way.
    member.holdings.drop_object(object);
    let copy = member
        .holdings
        .create(object, Epoch(2000), ObjectName::parse("file").unwrap(), 4096, [1; 16])
        .unwrap();
    fs::remove_file(&folder).unwrap();
    assert!((0..64).any(|_| member.try_beat().is_ok()), "it is never tried again");
    assert!(copy.is_writing() && member.holdings.find(object).is_ok_and(|here| Arc::ptr_eq(&here, &copy)));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "the region alone");
}

/// Says, in the life of another machine, until when the lease is believed.
const LEASE_UNTIL: &str = "LEASE_UNTIL_MS";

/// Whether a process believes in a lease whose clock is ahead of this one's by so many seconds, as after a suspension of that length: a
/// namespace of its own has such a clock, and the other clock, which stands still meanwhile, as it is here. None where it cannot be made.
fn is_believed_after(seconds: u64, lease: &LeaseClock) -> Option<bool> {
    let mut command = std::process::Command::new("unshare");
    command.args(["--user", "--map-root-user", "--time", "--boottime", &seconds.to_string()]);
    if !command.arg("true").status().is_ok_and(|status| status.success()) {
        return None;
    }
    let mut command = std::process::Command::new("unshare");
    command.args(["--user", "--map-root-user", "--time", "--boottime", &seconds.to_string()]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", "--ignored", "membership::tests::a_lease_of_another_process_is_believed"]);
    command.env(LEASE_UNTIL, lease.0.load(Ordering::Acquire).to_string());
    Some(command.output().unwrap().status.success())
}

#[test]
#[ignore = "a part of the next one"]
fn a_lease_of_another_process_is_believed() {
    let until_ms = std::env::var(LEASE_UNTIL).unwrap().parse().unwrap();
    assert!(LeaseClock(Arc::new(AtomicU64::new(until_ms))).is_held());
}

#[test]
fn a_lease_is_over_when_the_machine_was_suspended_for_longer() {
    const HOUR: u64 = 3600;
    let lease = LeaseClock::default();
    lease.renewed(clock::boot_ms(), 1000 * HOUR);
    let Some(is_believed) = is_believed_after(0, &lease) else {
        eprintln!("skipped: this machine makes no namespaces with a time of their own");
        return;
    };
    assert!(is_believed, "or this shows nothing");
    assert_eq!(is_believed_after(2 * HOUR, &lease), Some(false));
}
