//! What the directory promises, one promise a test.
#![allow(clippy::unwrap_used)] // a test says by its panic where it failed

use hinterland_directory::{
    Command, ContentDigest, Departure, Directory, DirectoryError, Held, ObjectInfo, ObjectState, OnTarget,
    Placement, Reply, Settings, Writer,
};
use hinterland_types::{Epoch, NodeId, ObjectId, ObjectName, PageNumber, RackName};

const MIB: u64 = 1 << 20;

struct Pool {
    directory: Directory,
    now_ms: u64,
    checking: bool,
}

impl Pool {
    /// Nodes 1, 2, ... with these racks and capacities, all up.
    fn with(nodes: &[(&str, u64)]) -> Self {
        let directory = Directory::recover(Settings::default(), 0, std::iter::empty()).unwrap();
        let mut pool = Self { directory, now_ms: 0, checking: true };
        for (node, (rack, capacity_bytes)) in (1..).zip(nodes) {
            pool.join(node, rack, *capacity_bytes, 1).unwrap();
            pool.report(node, 1, vec![]).unwrap();
        }
        pool
    }

    fn ask(&mut self, command: Command) -> Result<Reply, DirectoryError> {
        let bytes = postcard::to_allocvec(&command).unwrap();
        assert_eq!(postcard::from_bytes::<Command>(&bytes).unwrap(), command);
        let (reply, _) = self.directory.apply(self.now_ms, &command)?;
        if self.checking {
            self.directory.check().unwrap();
        }
        let bytes = postcard::to_allocvec(&reply).unwrap();
        assert_eq!(postcard::from_bytes::<Reply>(&bytes).unwrap(), reply);
        Ok(reply)
    }

    fn join(
        &mut self,
        node: u64,
        rack: &str,
        capacity_bytes: u64,
        incarnation: u64,
    ) -> Result<Reply, DirectoryError> {
        let rack = RackName::parse(rack).unwrap();
        let address = format!("10.0.0.{node}:7400");
        self.ask(Command::Join { name: None, node: NodeId(node), rack, address, capacity_bytes, incarnation })
    }

    fn report(&mut self, node: u64, incarnation: u64, objects: Vec<Held>) -> Result<Reply, DirectoryError> {
        let after = ObjectId(0);
        self.ask(Command::NodeObjects { node: NodeId(node), incarnation, after, objects, more: false })
    }

    fn beat(&mut self, node: u64, incarnation: u64) -> Result<Reply, DirectoryError> {
        self.ask(Command::Heartbeat { node: NodeId(node), incarnation, used_bytes: 0 })
    }

    /// Time passes while these nodes send heartbeats and the directory ticks.
    fn wait(&mut self, time_ms: u64, alive: &[u64]) {
        for _ in 0..time_ms / 250 {
            self.now_ms += 250;
            self.ask(Command::Tick).unwrap();
            for node in alive {
                self.beat(*node, 1).unwrap();
            }
        }
    }

    fn reserve(
        &mut self,
        text: &str,
        size: u64,
        copies: u8,
        placement: Placement,
    ) -> Result<(ObjectId, Vec<u64>), DirectoryError> {
        let writer = Writer { node: NodeId(1), incarnation: 1, token: 7 };
        let command = Command::Reserve { name: name(text), size: Some(size), copies, placement, writer };
        match self.ask(command)? {
            Reply::Reserved { object, homes } => Ok((object, homes.iter().map(|home| home.node.0).collect())),
            other => panic!("{other:?}"),
        }
    }

    fn put(&mut self, text: &str, size: u64, copies: u8) -> (ObjectId, Vec<u64>) {
        let (object, homes) = self.reserve(text, size, copies, Placement::Policy).unwrap();
        let nodes = homes.iter().map(|node| NodeId(*node)).collect();
        self.ask(Command::Seal { object, size, digest: ContentDigest([1; 32]), homes: nodes }).unwrap();
        (object, homes)
    }

    fn add_heat_copy(&mut self, object: ObjectId, node: u64) -> Result<Epoch, DirectoryError> {
        match self.ask(Command::AddHeatCopy { object, node: NodeId(node), incarnation: 1 })? {
            Reply::Copying { epoch, .. } => Ok(epoch),
            other => panic!("{other:?}"),
        }
    }

    fn look(&mut self, object: ObjectId) -> ObjectInfo {
        match self.ask(Command::LookupObject { object }) {
            Ok(Reply::Object(info)) => info,
            other => panic!("{other:?}"),
        }
    }

    fn held(&mut self, object: ObjectId, node: u64) -> Held {
        let info = self.look(object);
        let home = info.homes.iter().chain(&info.homes_down).find(|home| home.node.0 == node).unwrap();
        Held { object, epoch: home.epoch, digest: info.digest }
    }
}

fn name(text: &str) -> ObjectName {
    ObjectName::parse(text).unwrap()
}

fn rack(text: &str) -> Placement {
    Placement::Rack(RackName::parse(text).unwrap())
}

#[test]
fn the_first_copy_is_local_and_the_next_in_another_rack() {
    let mut pool = Pool::with(&[("a", 64 * MIB), ("a", 640 * MIB), ("b", 64 * MIB)]);
    assert_eq!(pool.put("m", 8 * MIB, 1).1, [1]);
    assert_eq!(pool.put("n", 8 * MIB, 2).1, [1, 3]);
    assert_eq!(pool.put("o", 8 * MIB, 3).1, [1, 3, 2]);
}

#[test]
fn a_full_local_node_gives_way_to_the_rack_with_most_room() {
    let mut pool = Pool::with(&[("a", 8 * MIB), ("b", 64 * MIB), ("c", 40 * MIB), ("c", 40 * MIB)]);
    pool.put("m", 8 * MIB, 1);
    assert_eq!(pool.put("n", 2 * MIB, 1).1, [3]);
}

#[test]
fn a_named_rack_gets_the_first_copy() {
    let mut pool = Pool::with(&[("a", 64 * MIB), ("b", 64 * MIB)]);
    assert_eq!(pool.reserve("m", MIB, 2, rack("b")).unwrap().1, [2, 1]);
    let error = pool.reserve("n", MIB, 1, rack("c")).unwrap_err();
    assert!(error.to_string().contains("a, b"), "{error}");
}

#[test]
fn an_object_larger_than_the_pool_is_refused_before_a_byte_moves() {
    let mut pool = Pool::with(&[("a", 64 * MIB), ("b", 128 * MIB)]);
    let error = pool.reserve("m", 200 * MIB, 1, Placement::Policy).unwrap_err();
    assert!(matches!(error, DirectoryError::LargerThanPool { .. }));
    assert!(error.to_string().contains("(hint: start one with a larger --capacity; "), "{error}");
    let text = error.to_string();
    assert!(text.contains("128.00 MiB of 128.00 MiB free on node-2 in rack b"), "{text}");
    assert!(text.contains("200.00 MiB"), "{text}");
    assert!(pool.ask(Command::Lookup { name: name("m") }).is_err());
    assert_eq!(pool.put("m", 100 * MIB, 1).1, [2]);
}

#[test]
fn too_many_copies_or_too_few_nodes_are_refused() {
    let mut pool = Pool::with(&[("a", 64 * MIB), ("b", 64 * MIB)]);
    let refused = |e: Result<_, _>| e.map(|_: (ObjectId, Vec<u64>)| ()).unwrap_err();
    assert_eq!(
        refused(pool.reserve("m", 1, 3, Placement::Policy)),
        DirectoryError::NotEnoughNodes { copies: 3, nodes: 2 }
    );
    assert_eq!(refused(pool.reserve("m", 1, 0, Placement::Policy)), DirectoryError::BadCopies { copies: 0 });
    assert_eq!(refused(pool.reserve("m", 1, 9, Placement::Policy)), DirectoryError::BadCopies { copies: 9 });
    let mut empty = Pool::with(&[("a", 0)]);
    assert_eq!(refused(empty.reserve("m", 1, 1, Placement::Policy)), DirectoryError::NoNodes);
}

#[test]
fn the_second_of_two_writers_of_one_name_is_refused() {
    let mut pool = Pool::with(&[("a", 64 * MIB), ("b", 64 * MIB)]);
    let (object, _) = pool.reserve("m", MIB, 1, Placement::Policy).unwrap();
    assert_eq!(pool.reserve("m", MIB, 1, Placement::Policy).unwrap().0, object, "a repeated request");
    let writer = Writer { node: NodeId(2), incarnation: 1, token: 7 };
    let command =
        Command::Reserve { name: name("m"), size: None, copies: 1, placement: Placement::Policy, writer };
    assert_eq!(pool.ask(command), Err(DirectoryError::NameBeingWritten { name: name("m"), node: NodeId(1) }));
}

#[test]
fn an_object_and_a_folder_cannot_have_one_name() {
    let mut pool = Pool::with(&[("a", 64 * MIB)]);
    pool.put("models/x", 1, 1);
    pool.put("models-x", 1, 1);
    for bad in ["models", "models/x/y"] {
        let error = pool.reserve(bad, 1, 1, Placement::Policy).unwrap_err();
        assert!(matches!(error, DirectoryError::NameIsFolder { .. }), "{bad}: {error}");
    }
    pool.put("models/y", 1, 1);
}

#[test]
fn what_a_writer_left_behind_vanishes_with_its_lease() {
    let mut pool = Pool::with(&[("a", 64 * MIB), ("b", 64 * MIB)]);
    let (object, homes) = pool.reserve("m", 8 * MIB, 1, rack("b")).unwrap();
    assert_eq!(homes, [2]);
    pool.wait(3000, &[2]);
    assert_eq!(pool.look(object).state, ObjectState::Removing);
    let Ok(Reply::Beat { forget, .. }) = pool.beat(2, 1) else { panic!() };
    let [(told, epoch)] = forget[..] else { panic!("{forget:?}") };
    assert_eq!(told, object);
    pool.ask(Command::Forget { object, node: NodeId(2), incarnation: 1, epoch }).unwrap();
    assert!(matches!(pool.ask(Command::LookupObject { object }), Err(DirectoryError::UnknownObject { .. })));
    assert!(matches!(pool.beat(1, 1), Err(DirectoryError::LeaseExpired { .. })));
}

#[test]
fn a_message_of_an_earlier_life_is_refused() {
    let mut pool = Pool::with(&[("a", 64 * MIB), ("b", 64 * MIB)]);
    let (object, _) = pool.put("m", 1, 1);
    let epoch = pool.held(object, 1).epoch;
    pool.join(1, "a", 64 * MIB, 2).unwrap();
    let stale = DirectoryError::StaleIncarnation { node: NodeId(1), given: 1, known: 2 };
    assert_eq!(pool.beat(1, 1), Err(stale.clone()));
    assert_eq!(pool.report(1, 1, vec![]), Err(stale.clone()));
    assert_eq!(
        pool.ask(Command::Forget { object, node: NodeId(1), incarnation: 1, epoch }),
        Err(stale.clone())
    );
    assert_eq!(pool.join(1, "a", 64 * MIB, 1), Err(stale));
}

#[test]
fn nobody_takes_the_last_numbers_of_lives_from_the_node_that_needs_them_next() {
    const FAR: u64 = 1 << 62;
    let mut pool = Pool::with(&[("a", 64 * MIB), ("b", 64 * MIB)]);
    // Of a member, and of a number that has not come yet.
    for node in [1, 3] {
        for given in [FAR, u64::MAX - 1, u64::MAX] {
            let refused = DirectoryError::BadIncarnation { node: NodeId(node), given };
            assert_eq!(pool.join(node, "a", 64 * MIB, given), Err(refused));
        }
    }
    // Whoever comes as far as one may is followed, life by life, by as many as anybody can have.
    pool.join(1, "a", 64 * MIB, FAR - 1).unwrap();
    for incarnation in [FAR, FAR + 1] {
        pool.join(1, "a", 64 * MIB, incarnation).unwrap();
        pool.report(1, incarnation, vec![]).unwrap();
        pool.beat(1, incarnation).unwrap();
    }
    let given = FAR + 3;
    assert_eq!(
        pool.join(1, "a", 64 * MIB, given),
        Err(DirectoryError::BadIncarnation { node: NodeId(1), given })
    );
}

#[test]
fn a_restarted_node_serves_again_only_what_it_still_holds() {
    let mut pool = Pool::with(&[("a", 64 * MIB), ("b", 64 * MIB)]);
    let (kept, _) = pool.put("kept", MIB, 2);
    let (lost, _) = pool.put("lost", MIB, 2);
    let held = pool.held(kept, 1);
    let damaged = Held { digest: Some(ContentDigest([9; 32])), ..pool.held(lost, 1) };
    let (gone, _) = pool.put("gone", MIB, 1);
    let orphan = pool.held(gone, 1);
    pool.ask(Command::Remove { name: name("gone"), object: None }).unwrap();
    pool.ask(Command::Forget { object: gone, node: NodeId(1), incarnation: 1, epoch: orphan.epoch }).unwrap();
    pool.join(1, "a", 64 * MIB, 2).unwrap();
    assert_eq!(pool.look(kept).homes.len(), 1, "not before it has said what it holds");
    let reply = pool.report(1, 2, vec![held, damaged, orphan]).unwrap();
    let delete = vec![(lost, damaged.epoch), (gone, orphan.epoch)];
    assert_eq!(reply, Reply::Reconciled { delete, up: true });
    assert_eq!(pool.look(kept).homes.len(), 2);
    assert_eq!(pool.look(lost).homes.iter().map(|home| home.node.0).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_list_in_parts_must_be_whole() {
    let mut pool = Pool::with(&[("a", 64 * MIB)]);
    let ids: Vec<_> = ["x", "y", "z"].iter().map(|text| pool.put(text, 1, 1).0).collect();
    let held: Vec<_> = ids.iter().map(|id| pool.held(*id, 1)).collect();
    pool.join(1, "a", 64 * MIB, 2).unwrap();
    let mut part = |after, objects, more| {
        pool.ask(Command::NodeObjects { node: NodeId(1), incarnation: 2, after, objects, more })
    };
    assert!(part(ids[0], vec![held[1]], false).is_err(), "the first part is missing");
    assert!(part(ObjectId(0), vec![held[1], held[0]], false).is_err(), "not ascending");
    assert!(part(ObjectId(0), vec![], true).is_err(), "no end");
    assert!(matches!(part(ObjectId(0), vec![held[0]], true), Ok(Reply::Reconciled { up: false, .. })));
    assert!(part(ObjectId(0), vec![held[0]], true).is_err(), "twice");
    assert!(matches!(part(ids[0], held[1..].to_vec(), false), Ok(Reply::Reconciled { up: true, .. })));
    assert!(ids.iter().all(|id| pool.look(*id).homes.len() == 1));
}

#[test]
fn a_copy_too_many_is_deleted_when_its_node_returns() {
    let mut pool = Pool::with(&[("a", 64 * MIB), ("b", 64 * MIB), ("c", 64 * MIB)]);
    let (object, homes) = pool.put("m", MIB, 2);
    assert_eq!(homes, [1, 2]);
    let held = pool.held(object, 2);
    pool.ask(Command::Leave { node: NodeId(2), incarnation: 1, departure: Departure::ComesBack }).unwrap();
    let Ok(Reply::Repairs { repairs, more: false, .. }) =
        pool.ask(Command::RepairList { after: ObjectId(0), limit: 9 })
    else {
        panic!()
    };
    assert_eq!((repairs[0].live, repairs[0].copies, repairs[0].target), (1, 2, Some(NodeId(3))));
    let copying = pool.ask(Command::AddReplica { object, node: NodeId(3), incarnation: 1 }).unwrap();
    let Reply::Copying { epoch, object: info } = copying else { panic!() };
    assert_eq!(info.homes.len(), 1, "a copy in the making is not read");
    let done = |digest| Command::ReplicaAdded { object, node: NodeId(3), incarnation: 1, epoch, digest };
    assert_eq!(pool.ask(done(ContentDigest([2; 32]))), Err(DirectoryError::WrongContent { object }));
    pool.ask(done(ContentDigest([1; 32]))).unwrap();
    pool.join(2, "b", 64 * MIB, 2).unwrap();
    let reply = pool.report(2, 2, vec![held]).unwrap();
    assert_eq!(reply, Reply::Reconciled { delete: vec![(object, held.epoch)], up: true });
    assert_eq!(pool.look(object).homes.iter().map(|home| home.node.0).collect::<Vec<_>>(), [1, 3]);
}

/// Object `m` with one home on node 1 in rack a, and a whole heat copy on node 2 in rack b.
fn with_heat_copy(nodes: &[(&str, u64)], copies: u8) -> (Pool, ObjectId, Epoch) {
    let mut pool = Pool::with(nodes);
    let (object, _) = pool.put("m", MIB, copies);
    let epoch = pool.add_heat_copy(object, 2).unwrap();
    let digest = ContentDigest([1; 32]);
    pool.ask(Command::ReplicaAdded { object, node: NodeId(2), incarnation: 1, epoch, digest }).unwrap();
    (pool, object, epoch)
}

fn drop_heat_copy(object: ObjectId, node: u64, epoch: Epoch) -> Command {
    Command::DropHeatCopy { object, node: NodeId(node), incarnation: 1, epoch }
}

#[test]
fn a_heat_copy_is_read_but_takes_no_room_and_counts_for_nothing() {
    let (mut pool, object, epoch) = with_heat_copy(&[("a", 64 * MIB), ("b", 64 * MIB), ("b", 64 * MIB)], 1);
    assert_eq!(pool.look(object).homes.iter().map(|home| home.node.0).collect::<Vec<_>>(), [1, 2]);
    let Ok(Reply::Members(members)) = pool.ask(Command::Members) else { panic!() };
    assert_eq!(members.iter().map(|member| member.reserved_bytes).collect::<Vec<_>>(), [MIB, 0, 0]);
    let copies = vec![(object, epoch)];
    let asked = Command::HeatCopies { node: NodeId(2), after: ObjectId(0) };
    assert_eq!(pool.ask(asked), Ok(Reply::HeatCopies { copies, more: false }));
    let homes = Command::HeatHomes { objects: vec![object, ObjectId(99)] };
    assert_eq!(pool.ask(homes), Ok(Reply::HeatHomes(vec![(object, NodeId(2))])));
    // One in a rack is enough, and a rack that has the object needs none.
    let near = |node| Err(DirectoryError::CopyNear { object, node: NodeId(node) });
    assert_eq!(pool.add_heat_copy(object, 3), near(2));
    assert!(matches!(pool.add_heat_copy(object, 1), Err(DirectoryError::AlreadyHome { .. })));
    pool.ask(drop_heat_copy(object, 2, epoch)).unwrap();
    assert_eq!(pool.look(object).homes.len(), 1);
    assert_eq!(pool.ask(drop_heat_copy(object, 2, epoch)), Ok(Reply::Forgotten), "asked again");
}

#[test]
fn a_heat_copy_stays_while_no_other_copy_is_up_and_then_becomes_the_one_that_is_lacking() {
    let (mut pool, object, epoch) = with_heat_copy(&[("a", 64 * MIB), ("b", 64 * MIB)], 1);
    let home = pool.held(object, 1);
    pool.ask(Command::Leave { node: NodeId(1), incarnation: 1, departure: Departure::ComesBack }).unwrap();
    let last = Err(DirectoryError::LastCopy { object, node: NodeId(2) });
    assert_eq!(pool.ask(drop_heat_copy(object, 2, epoch)), last);
    let list = Command::RepairList { after: ObjectId(0), limit: 9 };
    let Ok(Reply::Repairs { repairs, .. }) = pool.ask(list) else { panic!() };
    assert_eq!((repairs[0].live, repairs[0].copies, repairs[0].target), (0, 1, Some(NodeId(2))));
    let keep = Command::AddReplica { object, node: NodeId(2), incarnation: 1 };
    assert_eq!(pool.ask(keep), Ok(Reply::ReplicaAdded), "nothing has to be fetched");
    let wanted = Err(DirectoryError::CopyIsWanted { object, node: NodeId(2) });
    assert_eq!(pool.ask(drop_heat_copy(object, 2, epoch)), wanted);
    let Ok(Reply::Members(members)) = pool.ask(Command::Members) else { panic!() };
    assert_eq!(members[1].reserved_bytes, MIB, "it is charged like any other");
    // The home that comes back has one too many.
    pool.join(1, "a", 64 * MIB, 2).unwrap();
    let reply = pool.report(1, 2, vec![home]).unwrap();
    assert_eq!(reply, Reply::Reconciled { delete: vec![(object, home.epoch)], up: true });
}

#[test]
fn a_heat_copy_comes_back_with_its_node_and_goes_with_its_object() {
    let (mut pool, object, epoch) = with_heat_copy(&[("a", 64 * MIB), ("b", 64 * MIB)], 1);
    let held = pool.held(object, 2);
    pool.join(2, "b", 64 * MIB, 2).unwrap();
    assert_eq!(pool.look(object).homes.len(), 1);
    assert_eq!(pool.report(2, 2, vec![held]).unwrap(), Reply::Reconciled { delete: vec![], up: true });
    assert_eq!(pool.look(object).homes.len(), 2);
    pool.ask(Command::Remove { name: name("m"), object: Some(object) }).unwrap();
    let Ok(Reply::Beat { forget, .. }) = pool.beat(2, 2) else { panic!() };
    assert_eq!(forget, [(object, epoch)]);
}

#[test]
fn what_lacks_a_copy_is_not_said_to_be_whole_because_of_a_heat_copy() {
    let (mut pool, object, _) = with_heat_copy(&[("a", 64 * MIB), ("b", 64 * MIB), ("c", 64 * MIB)], 1);
    let (other, homes) = pool.put("other", MIB, 2);
    let epoch = pool.add_heat_copy(other, (1..=3).find(|node| !homes.contains(node)).unwrap()).unwrap();
    assert!(epoch > Epoch(0));
    pool.ask(Command::Leave { node: NodeId(homes[1]), incarnation: 1, departure: Departure::ComesBack })
        .unwrap();
    let list = Command::RepairList { after: ObjectId(0), limit: 9 };
    let Ok(Reply::Repairs { repairs, .. }) = pool.ask(list) else { panic!() };
    let lacking = repairs.iter().find(|repair| repair.object == other).unwrap();
    assert_eq!((lacking.live, lacking.target), (1, None), "who is making a heat copy makes no other");
    assert!(repairs.iter().all(|repair| repair.object != object || homes[1] == 1));
}

#[test]
fn a_late_forget_does_not_reach_a_later_copy() {
    let mut pool = Pool::with(&[("a", 64 * MIB), ("b", 64 * MIB)]);
    let (object, _) = pool.put("m", MIB, 1);
    let add = || Command::AddReplica { object, node: NodeId(2), incarnation: 1 };
    let Ok(Reply::Copying { epoch: first, .. }) = pool.ask(add()) else { panic!() };
    let forget = Command::Forget { object, node: NodeId(2), incarnation: 1, epoch: first };
    pool.ask(forget.clone()).unwrap();
    let Ok(Reply::Copying { epoch, .. }) = pool.ask(add()) else { panic!() };
    let digest = ContentDigest([1; 32]);
    let added = |epoch| Command::ReplicaAdded { object, node: NodeId(2), incarnation: 1, epoch, digest };
    assert!(matches!(pool.ask(added(first)), Err(DirectoryError::StaleCopy { .. })));
    pool.ask(added(epoch)).unwrap();
    pool.ask(forget).unwrap();
    assert_eq!(pool.look(object).homes.len(), 2);
}

#[test]
fn a_late_abort_does_not_undo_a_seal() {
    let mut pool = Pool::with(&[("a", 64 * MIB)]);
    let (object, _) = pool.put("m", MIB, 1);
    assert!(matches!(pool.ask(Command::Abort { object }), Ok(Reply::AlreadySealed { .. })));
    assert_eq!(pool.look(object).state, ObjectState::Sealed);
}

#[test]
fn a_repeated_remove_spares_the_successor_of_the_name() {
    let mut pool = Pool::with(&[("a", 64 * MIB)]);
    let (old, _) = pool.put("m", MIB, 1);
    let remove = || Command::Remove { name: name("m"), object: Some(old) };
    pool.ask(remove()).unwrap();
    let (new, _) = pool.put("m", MIB, 1);
    assert_ne!(old, new);
    assert!(matches!(pool.ask(remove()), Ok(Reply::Removed { object, .. }) if object == old));
    assert_eq!(pool.look(new).state, ObjectState::Sealed);
}

#[test]
fn addresses_are_not_reused_before_every_home_has_let_go() {
    let mut pool = Pool::with(&[("a", 64 * MIB)]);
    let (old, _) = pool.put("m", 4 * MIB, 1);
    let (pages, epoch) = (pool.look(old).pages.unwrap(), pool.held(old, 1).epoch);
    assert_eq!((pages.first().raw(), pages.count()), (1, 2));
    pool.ask(Command::Remove { name: name("m"), object: None }).unwrap();
    let (new, _) = pool.put("m", 4 * MIB, 1);
    assert_ne!(pool.look(new).pages, Some(pages));
    pool.ask(Command::Forget { object: old, node: NodeId(1), incarnation: 1, epoch }).unwrap();
    let (third, _) = pool.put("n", 4 * MIB, 1);
    assert_eq!(pool.look(third).pages, Some(pages));
    let page = PageNumber::new(2).unwrap();
    assert!(
        matches!(pool.ask(Command::LookupPage { page }), Ok(Reply::Object(info)) if info.object == third)
    );
    assert!(pool.ask(Command::LookupPage { page: PageNumber::new(9).unwrap() }).is_err());
}

#[test]
fn a_seal_needs_every_home_and_every_home_up() {
    let mut pool = Pool::with(&[("a", 64 * MIB), ("b", 64 * MIB)]);
    let (object, _) = pool.reserve("m", MIB, 2, Placement::Policy).unwrap();
    let seal = |size, homes: &[u64]| {
        let homes = homes.iter().map(|node| NodeId(*node)).collect();
        Command::Seal { object, size, digest: ContentDigest([1; 32]), homes }
    };
    assert!(matches!(pool.ask(seal(MIB, &[1])), Err(DirectoryError::HomeMissing { node: NodeId(2), .. })));
    assert!(matches!(
        pool.ask(seal(MIB, &[1, 2, 3])),
        Err(DirectoryError::HomeMissing { node: NodeId(3), .. })
    ));
    assert!(matches!(pool.ask(seal(MIB + 1, &[1, 2])), Err(DirectoryError::MoreThanReserved { .. })));
    pool.ask(Command::Leave { node: NodeId(2), incarnation: 1, departure: Departure::ComesBack }).unwrap();
    assert!(matches!(pool.ask(seal(MIB, &[1, 2])), Err(DirectoryError::HomeMissing { node: NodeId(2), .. })));
}

#[test]
fn a_stream_grows_until_there_is_no_room() {
    let mut pool = Pool::with(&[("a", 64 * MIB)]);
    let writer = Writer { node: NodeId(1), incarnation: 1, token: 1 };
    let (size, placement) = (None, Placement::Policy);
    let command = Command::Reserve { name: name("s"), size, copies: 1, placement, writer };
    let Ok(Reply::Reserved { object, .. }) = pool.ask(command) else { panic!() };
    assert_eq!(pool.ask(Command::Grow { object, bytes: 60 * MIB }), Ok(Reply::Grown { bytes: 60 * MIB }));
    assert_eq!(pool.ask(Command::Grow { object, bytes: 10 * MIB }), Ok(Reply::Grown { bytes: 60 * MIB }));
    let error = pool.ask(Command::Grow { object, bytes: 65 * MIB }).unwrap_err();
    assert!(error.to_string().contains("4.00 MiB of 64.00 MiB free"), "{error}");
    assert_eq!(pool.ask(Command::Grow { object, bytes: 64 * MIB }), Ok(Reply::Grown { bytes: 64 * MIB }));
}

#[test]
fn the_last_copy_does_not_leave_by_mistake() {
    let mut pool = Pool::with(&[("a", 64 * MIB), ("b", 64 * MIB)]);
    let (object, _) = pool.put("m", MIB, 1);
    let leave = |departure| Command::Leave { node: NodeId(1), incarnation: 1, departure };
    let error = pool.ask(leave(Departure::Gone)).unwrap_err();
    assert_eq!(error, DirectoryError::LastCopies { node: NodeId(1), objects: 1, first: name("m") });
    assert!(error.to_string().starts_with("node-1 has the only live copy of m (hint: "), "{error}");
    let error = DirectoryError::LastCopies { node: NodeId(1), objects: 3, first: name("m") };
    assert!(
        error.to_string().starts_with("node-1 has the only live copies of 3 objects, m is one (hint: "),
        "{error}"
    );
    assert_eq!(pool.ask(leave(Departure::GoneWithLastCopies)), Ok(Reply::Left { lost: vec![object] }));
    let info = pool.look(object);
    assert!(info.homes.is_empty() && info.homes_down.is_empty());
    pool.ask(Command::Remove { name: name("m"), object: None }).unwrap();
    assert!(pool.ask(Command::LookupObject { object }).is_err());
}

#[test]
fn a_directory_that_was_stopped_blames_no_member() {
    let mut pool = Pool::with(&[("a", 64 * MIB)]);
    pool.now_ms += 60_000;
    assert_eq!(pool.ask(Command::Tick), Ok(Reply::Ticked { down: vec![] }));
    pool.beat(1, 1).unwrap();
    pool.wait(2750, &[]);
    assert_eq!(pool.ask(Command::Tick), Ok(Reply::Ticked { down: vec![] }));
    pool.now_ms += 250;
    assert_eq!(pool.ask(Command::Tick), Ok(Reply::Ticked { down: vec![NodeId(1)] }));
}

#[test]
fn an_address_that_nobody_can_reach_is_refused() {
    let mut pool = Pool::with(&[]);
    for bad in
        ["", "host", ":7400", "host:", "host:0", "host:99999", "ho st:1", &format!("{}:1", "h".repeat(300))]
    {
        let (rack, address) = (RackName::parse("a").unwrap(), bad.to_owned());
        let join =
            Command::Join { name: None, node: NodeId(1), rack, address, capacity_bytes: 1, incarnation: 1 };
        assert!(matches!(pool.ask(join), Err(DirectoryError::BadAddress { .. })), "{bad}");
    }
    assert!(matches!(pool.join(1, "a", u64::MAX, 1), Err(DirectoryError::BadCapacity { .. })));
}

#[test]
fn a_list_goes_on_where_it_stopped() {
    let mut pool = Pool::with(&[("a", 64 * MIB)]);
    for text in ["a/1", "a/2", "a-b", "b", "a/3"] {
        pool.put(text, 1, 1);
    }
    let mut list = |prefix: &str, after: Option<&str>, limit| {
        let command = Command::List { prefix: prefix.to_owned(), after: after.map(name), limit };
        let Ok(Reply::List { objects, more }) = pool.ask(command) else { panic!() };
        (objects.iter().map(|info| info.name.to_string()).collect::<Vec<_>>().join(" "), more)
    };
    assert_eq!(list("", None, 9), ("a-b a/1 a/2 a/3 b".to_owned(), false));
    assert_eq!(list("a/", None, 2), ("a/1 a/2".to_owned(), true));
    assert_eq!(list("a/", Some("a/2"), 2), ("a/3".to_owned(), false));
    assert_eq!(list("a/", Some("0"), 1), ("a/1".to_owned(), true));
    assert_eq!(list("zzz", None, 2), (String::new(), false));
}

#[test]
fn a_long_list_fits_in_a_control_message() {
    let mut pool = Pool::with(&[("a", 64 * MIB)]);
    let folder = format!("{}/{}/{}/{}", "x".repeat(255), "y".repeat(255), "z".repeat(255), "w".repeat(240));
    pool.checking = false; // the check after each command would take most of the time
    (0..900).for_each(|number| drop(pool.put(&format!("{folder}/{number}"), 1, 1)));
    let command = Command::List { prefix: String::new(), after: None, limit: 5000 };
    let reply = pool.ask(command).unwrap();
    assert!(matches!(&reply, Reply::List { objects, more: true } if objects.len() > 500));
    let bytes = postcard::to_allocvec(&reply).unwrap().len();
    assert!(bytes < hinterland_types::limits::CONTROL_BYTES_MAX as usize, "{bytes}");
}

#[test]
fn a_list_of_repairs_goes_on_where_it_stopped() {
    let mut pool = Pool::with(&[("a", 64 * MIB), ("b", 64 * MIB)]);
    let ids: Vec<_> = ["x", "y", "z"].iter().map(|text| pool.put(text, 1, 2).0).collect();
    pool.ask(Command::Leave { node: NodeId(2), incarnation: 1, departure: Departure::ComesBack }).unwrap();
    let mut list = |after| {
        let Ok(Reply::Repairs { repairs, through, more }) = pool.ask(Command::RepairList { after, limit: 2 })
        else {
            panic!()
        };
        (repairs.iter().map(|repair| repair.object).collect::<Vec<_>>(), through, more)
    };
    assert_eq!(list(ObjectId(0)), (vec![ids[0], ids[1]], ids[1], true));
    assert_eq!(list(ids[1]), (vec![ids[2]], ids[2], false));
    assert_eq!(list(ids[2]), (vec![], ids[2], false));
}

impl Pool {
    fn named(&mut self, text: &str) -> Option<ObjectId> {
        match self.ask(Command::Lookup { name: name(text) }) {
            Ok(Reply::Object(info)) => Some(info.object),
            _ => None,
        }
    }

    fn rename(
        &mut self,
        from: &str,
        to: &str,
        object: ObjectId,
        target: OnTarget,
    ) -> Result<Option<ObjectId>, DirectoryError> {
        match self.ask(Command::Rename { from: name(from), to: name(to), object, target })? {
            Reply::Renamed { removed, .. } => Ok(removed),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_renamed_object_is_found_by_its_name_only_and_what_it_replaces_is_removed() {
    let mut pool = Pool::with(&[("a", 64 * MIB)]);
    let (one, other) = (pool.put("one", MIB, 1).0, pool.put("other", MIB, 1).0);
    assert_eq!(pool.rename("one", "new", one, OnTarget::Refuse), Ok(None));
    assert_eq!((pool.named("one"), pool.named("new")), (None, Some(one)));
    // The same request again, and one that is late.
    assert_eq!(pool.rename("one", "new", one, OnTarget::Refuse), Ok(None));
    assert!(matches!(
        pool.rename("one", "x", one, OnTarget::Replace),
        Err(DirectoryError::UnknownName { .. })
    ));
    assert!(matches!(
        pool.rename("new", "other", one, OnTarget::Refuse),
        Err(DirectoryError::NameTaken { object, .. }) if object == other
    ));
    assert_eq!(pool.rename("new", "other", one, OnTarget::Replace), Ok(Some(other)));
    assert_eq!((pool.named("new"), pool.named("other")), (None, Some(one)));
}

#[test]
fn two_names_are_exchanged_in_one_step_and_only_if_they_are_those_two() {
    let mut pool = Pool::with(&[("a", 64 * MIB)]);
    let (one, other) = (pool.put("d/one", MIB, 1).0, pool.put("other", MIB, 1).0);
    assert_eq!(pool.rename("d/one", "other", one, OnTarget::Exchange(other)), Ok(None));
    assert_eq!((pool.named("d/one"), pool.named("other")), (Some(other), Some(one)));
    assert!(pool.rename("d/one", "other", other, OnTarget::Exchange(other)).is_err());
    assert!(pool.rename("d/one", "none", other, OnTarget::Exchange(one)).is_err());
}

#[test]
fn a_folder_takes_all_below_it_along_and_what_is_being_written_stays() {
    let mut pool = Pool::with(&[("a", 64 * MIB)]);
    let (one, two) = (pool.put("d/one", MIB, 1).0, pool.put("d/e/two", MIB, 1).0);
    let beside = pool.put("d.txt", MIB, 1).0;
    let writing = pool.reserve("d/writing", MIB, 1, Placement::Policy).unwrap().0;
    let rename = |from, to| Command::RenameFolder { from: name(from), to: name(to), object: Some(one) };
    assert!(matches!(pool.ask(rename("d", "d/e/f")), Err(DirectoryError::NameIsFolder { .. })));
    assert!(matches!(pool.ask(rename("d", "d.txt")), Err(DirectoryError::NameTaken { .. })));
    pool.ask(rename("d", "x/y")).unwrap();
    assert_eq!((pool.named("x/y/one"), pool.named("x/y/e/two")), (Some(one), Some(two)));
    assert_eq!((pool.named("d/one"), pool.named("d.txt")), (None, Some(beside)));
    assert_eq!(pool.look(writing).name, name("d/writing"));
    assert!(matches!(pool.ask(rename("none", "z")), Err(DirectoryError::UnknownName { .. })));
}

#[test]
fn a_folder_that_is_renamed_twice_by_one_request_is_renamed_once() {
    let mut pool = Pool::with(&[("a", 64 * MIB)]);
    let (one, two) = (pool.put("d/one", MIB, 1).0, pool.put("d/e/two", MIB, 1).0);
    let rename = |object| Command::RenameFolder { from: name("d"), to: name("x"), object: Some(object) };
    let first = pool.ask(rename(one));
    assert!(matches!(first, Ok(Reply::Renamed { .. })), "{first:?}");
    assert_eq!(pool.ask(rename(one)), first, "its answer was lost, and it is asked again");
    assert_eq!((pool.named("x/one"), pool.named("x/e/two")), (Some(one), Some(two)));
    // A later folder of the same name is another one, and its objects stay where they are.
    let later = pool.put("d/later", MIB, 1).0;
    assert!(matches!(pool.ask(rename(one)), Err(DirectoryError::NameIsFolder { .. })));
    assert_eq!(pool.named("d/later"), Some(later));
    // As does one of which nothing lies below the other name.
    pool.ask(Command::Rename {
        from: name("d/later"),
        to: name("y"),
        object: later,
        target: OnTarget::Refuse,
    })
    .unwrap();
    assert!(pool.ask(rename(later)).is_err());
    let unknown = Command::RenameFolder { from: name("d"), to: name("z"), object: None };
    assert!(matches!(pool.ask(unknown), Err(DirectoryError::UnknownName { .. })));
}

#[test]
fn a_put_is_published_over_what_has_the_name_in_one_step() {
    let mut pool = Pool::with(&[("a", 64 * MIB)]);
    let old = pool.put("m", MIB, 1).0;
    let (new, homes) = pool.reserve("hidden", MIB, 1, Placement::Policy).unwrap();
    let homes: Vec<_> = homes.iter().map(|node| NodeId(*node)).collect();
    let publish = |digest| Command::Publish {
        object: new,
        size: MIB,
        digest: ContentDigest([digest; 32]),
        homes: homes.clone(),
        name: name("m"),
    };
    assert!(matches!(
        pool.ask(publish(1)),
        Ok(Reply::Renamed { removed: Some(object), homes }) if object == old && homes.len() == 1
    ));
    assert_eq!((pool.named("m"), pool.named("hidden")), (Some(new), None));
    assert!(matches!(pool.ask(publish(1)), Ok(Reply::Renamed { removed: None, .. })));
    assert!(pool.ask(publish(2)).is_err());
}

#[test]
fn a_put_is_not_published_over_a_region() {
    let mut pool = Pool::with(&[("a", 64 * MIB)]);
    let (new, homes) = pool.reserve("hidden", MIB, 1, Placement::Policy).unwrap();
    let make =
        Command::CreateRegion { name: name("m"), size: MIB, placement: Placement::Policy, local: NodeId(1) };
    let Ok(Reply::Reserved { object: region, .. }) = pool.ask(make) else { panic!() };
    let publish = Command::Publish {
        object: new,
        size: MIB,
        digest: ContentDigest([1; 32]),
        homes: homes.iter().map(|node| NodeId(*node)).collect(),
        name: name("m"),
    };
    let refused = pool.ask(publish).unwrap_err();
    assert_eq!(refused, DirectoryError::NameTaken { name: name("m"), object: region });
    assert_eq!(pool.named("m"), Some(region));
}

#[test]
fn what_is_renamed_does_not_replace_a_region() {
    let mut pool = Pool::with(&[("a", 64 * MIB)]);
    let one = pool.put("one", MIB, 1).0;
    let make =
        Command::CreateRegion { name: name("m"), size: MIB, placement: Placement::Policy, local: NodeId(1) };
    let Ok(Reply::Reserved { object: region, .. }) = pool.ask(make) else { panic!() };
    let refused = pool.rename("one", "m", one, OnTarget::Replace).unwrap_err();
    assert_eq!(refused, DirectoryError::NameTaken { name: name("m"), object: region });
    assert_eq!((pool.named("one"), pool.named("m")), (Some(one), Some(region)));
}

#[test]
fn copies_that_died_are_given_to_many_nodes_in_racks_without_one() {
    let nodes: Vec<(&str, u64)> = (0..12).map(|node| (["a", "b", "c", "d"][node / 3], 64 * MIB)).collect();
    let mut pool = Pool::with(&nodes);
    let objects: Vec<_> = (0..24).map(|number| pool.put(&format!("m{number}"), MIB, 2)).collect();
    let list = |pool: &mut Pool, after| match pool.ask(Command::RepairList { after, limit: 64 }) {
        Ok(Reply::Repairs { repairs, more: false, .. }) => repairs,
        other => panic!("{other:?}"),
    };
    assert_eq!(list(&mut pool, ObjectId(0)), [], "all are whole");
    pool.ask(Command::Leave { node: NodeId(1), incarnation: 1, departure: Departure::ComesBack }).unwrap();
    let repairs = list(&mut pool, ObjectId(0));
    let died: Vec<_> = objects.iter().filter(|(_, homes)| homes.contains(&1)).collect();
    assert_eq!(repairs.len(), died.len(), "every object with a copy there, and no other");
    let mut targets: Vec<_> = repairs.iter().map(|repair| repair.target.unwrap().0).collect();
    for (repair, (object, homes)) in repairs.iter().zip(died) {
        let rack = |node: u64| (node - 1) / 3;
        assert_eq!(repair.object, *object);
        let left = homes.iter().find(|home| **home != 1).unwrap();
        assert_ne!(rack(repair.target.unwrap().0), rack(*left), "another rack than the copy that is left");
    }
    targets.sort_unstable();
    targets.dedup();
    assert!(targets.len() > 4, "one node does not make all of them: {targets:?}");
    assert_eq!(list(&mut pool, objects[23].0), [], "nothing is behind the last");
    // A home that is gone for good leaves an object that lacks a copy wherever its homes are.
    pool.ask(Command::Leave { node: NodeId(1), incarnation: 1, departure: Departure::Gone }).unwrap();
    assert_eq!(list(&mut pool, ObjectId(0)).len(), repairs.len());
}
