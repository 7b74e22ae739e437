//! A store that is put back from an older copy: no object that a node holds is deleted for it, in whatever order the nodes come.
#![allow(clippy::unwrap_used)] // a test says by its panic where it failed

use hinterland_directory::{
    Command, ContentDigest, Departure, Directory, DirectoryError, FORMER_POOLS_MAX, FormerPool, Found, Held,
    MemberInfo, NotAdopted, Placement, Record, Reply, Settings, Writer,
};
use hinterland_types::{Epoch, NodeId, ObjectId, ObjectName, RackName};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const MIB: u64 = 1 << 20;
const NODES: u64 = 3;

/// A directory, its store, and what is really on each node.
#[derive(Clone)]
struct World {
    directory: Directory,
    store: Vec<Record>,
    nodes: BTreeMap<NodeId, BTreeMap<ObjectId, Found>>,
    /// Nodes that are not running.
    away: BTreeSet<NodeId>,
    incarnation: u64,
    puts: u64,
    /// Puts that go on, with what each home will have of them.
    going_on: Vec<Vec<(NodeId, Found)>>,
}

impl World {
    fn new() -> Self {
        let directory = Directory::recover(Settings::default(), 0, Vec::new()).unwrap();
        let nodes = (1..=NODES).map(|node| (NodeId(node), BTreeMap::new())).collect();
        let away = BTreeSet::new();
        let (store, going_on) = (Vec::new(), Vec::new());
        let mut world = Self { directory, store, nodes, away, incarnation: 1, puts: 0, going_on };
        for node in 1..=NODES {
            assert_eq!(world.come(NodeId(node), false), Come::Up);
        }
        world
    }

    fn ask(&mut self, command: &Command) -> Result<Reply, DirectoryError> {
        let (reply, mutations) = self.directory.apply(0, command)?;
        self.directory.check().unwrap();
        for mutation in mutations {
            self.store.retain(|record| (record.table, &record.key) != (mutation.table, &mutation.key));
            let value = mutation.value;
            self.store.extend(value.map(|value| Record { table: mutation.table, key: mutation.key, value }));
        }
        let again = Directory::recover(Settings::default(), 0, self.store.clone()).unwrap();
        assert!(again.same_records(&self.directory), "what is stored is what is known");
        Ok(reply)
    }

    /// Puts an object whose digest says which put it was.
    fn put(&mut self, name: &ObjectName, copies: u8) {
        self.put_and(name, copies);
    }

    /// The same; gives the store as it was while the put was going on.
    fn put_and(&mut self, name: &ObjectName, copies: u8) -> Vec<Record> {
        let is_begun = self.begin(name, copies);
        let between = self.store.clone();
        assert!(!is_begun || self.end(self.going_on.len() - 1), "what was just begun ends well");
        between
    }

    /// Begins a put, from the first node that runs; whether it is not refused.
    fn begin(&mut self, name: &ObjectName, copies: u8) -> bool {
        self.puts += 1;
        let Some(node) = self.nodes.keys().copied().find(|node| !self.away.contains(node)) else {
            return false;
        };
        let writer = Writer { node, incarnation: self.incarnation, token: self.puts };
        let (size, placement) = (Some(MIB), Placement::Policy);
        let command = Command::Reserve { name: name.clone(), size, copies, placement, writer };
        let Ok(Reply::Reserved { object, homes }) = self.ask(&command) else { return false };
        let mut digest = ContentDigest::default();
        digest.0[..8].copy_from_slice(&self.puts.to_le_bytes());
        let found = |epoch| Found {
            object,
            epoch,
            name: name.clone(),
            as_of: epoch,
            bytes: MIB,
            digest: Some(digest),
        };
        self.going_on.push(homes.iter().map(|home| (home.node, found(home.epoch))).collect());
        true
    }

    /// Ends a put that goes on; whether it ended well.
    fn end(&mut self, place: usize) -> bool {
        let copies = self.going_on.remove(place);
        let (object, digest) = (copies[0].1.object, copies[0].1.digest.unwrap());
        let homes = copies.iter().map(|(node, _)| *node).collect();
        let is_sealed = self.ask(&Command::Seal { object, size: MIB, digest, homes }).is_ok();
        for (node, found) in copies.into_iter().filter(|_| is_sealed) {
            self.nodes.get_mut(&node).unwrap().insert(object, found);
        }
        is_sealed
    }

    /// Makes a copy on another node, and loses the first of those that there were.
    fn move_to(&mut self, name: &ObjectName, node: NodeId) {
        if let Some((object, first, epoch)) = self.copy_to(name, node) {
            self.forget(first, object, epoch);
        }
    }

    /// Makes a copy on another node; the object, and the first of those that there were.
    fn copy_to(&mut self, name: &ObjectName, node: NodeId) -> Option<(ObjectId, NodeId, Epoch)> {
        let Ok(Reply::Object(info)) = self.ask(&Command::Lookup { name: name.clone() }) else { return None };
        let (object, incarnation) = (info.object, self.incarnation);
        let (Some(first), Some(digest)) = (info.homes.first(), info.digest) else { return None };
        if info.homes.iter().any(|home| home.node == node) || self.away.contains(&node) {
            return None;
        }
        let copying = Command::AddReplica { object, node, incarnation };
        let Ok(Reply::Copying { epoch, .. }) = self.ask(&copying) else { return None };
        self.ask(&Command::ReplicaAdded { object, node, incarnation, epoch, digest }).unwrap();
        let copy = Found { epoch, as_of: epoch, ..self.nodes[&first.node][&object].clone() };
        self.nodes.get_mut(&node).unwrap().insert(object, copy);
        Some((object, first.node, first.epoch))
    }

    /// A node that runs ends: for a while, or for good with all that it holds.
    fn go(&mut self, node: NodeId, departure: Departure) {
        let incarnation = self.incarnation;
        if self.away.contains(&node) || self.ask(&Command::Leave { node, incarnation, departure }).is_err() {
            return;
        }
        self.away.insert(node);
        if departure != Departure::ComesBack {
            self.nodes.get_mut(&node).unwrap().clear();
        }
    }

    /// A node that was away comes back; one that is killed lets go of nothing, although the directory has said so.
    fn back(&mut self, node: NodeId, is_killed: bool) {
        if !self.away.contains(&node) {
            return;
        }
        // Its life is another one: so are those of the others, each with what it holds.
        self.incarnation += 1;
        for other in self.nodes.keys().copied().filter(|other| !self.away.contains(other)).collect::<Vec<_>>()
        {
            assert_eq!(self.come(other, false), Come::Up);
        }
        assert_eq!(self.come_and(node, false, is_killed), Come::Up);
        if is_killed {
            self.go(node, Departure::ComesBack);
        }
    }

    /// Makes the copies that objects lack.
    fn repair(&mut self) {
        let Ok(Reply::Repairs { repairs, .. }) =
            self.ask(&Command::RepairList { after: ObjectId(0), limit: 64 })
        else {
            return;
        };
        for repair in repairs {
            let Ok(Reply::Object(info)) = self.ask(&Command::LookupObject { object: repair.object }) else {
                continue;
            };
            if let Some(target) = repair.target {
                self.copy_to(&info.name, target);
            }
        }
    }

    fn remove(&mut self, name: &ObjectName) {
        let Ok(Reply::Removed { object, homes }) =
            self.ask(&Command::Remove { name: name.clone(), object: None })
        else {
            return;
        };
        for home in homes {
            self.forget(home.node, object, home.epoch);
        }
    }

    fn forget(&mut self, node: NodeId, object: ObjectId, epoch: Epoch) {
        if self.away.contains(&node) {
            return;
        }
        self.nodes.get_mut(&node).unwrap().remove(&object);
        let incarnation = self.incarnation;
        self.ask(&Command::Forget { object, node, incarnation, epoch }).unwrap();
    }

    /// All members beat that the directory has heard of, or takes for running, and do what it asks for. Of puts they know nothing any more.
    fn beat(&mut self) {
        let Ok(Reply::Members(members)) = self.ask(&Command::Members) else { panic!("no members") };
        for MemberInfo { node, incarnation, .. } in members {
            let beat = Command::Heartbeat { node, incarnation, used_bytes: 0 };
            let Ok(Reply::Beat { forget, writing, .. }) = self.ask(&beat) else { continue };
            for (object, epoch) in forget {
                let held = self.nodes.get_mut(&node).unwrap();
                held.retain(|_, found| (found.object, found.epoch) != (object, epoch));
                self.ask(&Command::Forget { object, node, incarnation, epoch }).unwrap();
            }
            for (object, _) in writing {
                self.ask(&Command::Abort { object }).unwrap();
            }
        }
    }

    /// All members come again in the next life, with what they hold.
    fn put_back(&mut self, store: Vec<Record>) {
        self.directory = Directory::recover(Settings::default(), 0, store.clone()).unwrap();
        self.store = store;
        self.incarnation += 1;
    }

    /// A node joins, and has not said yet what it holds; its life.
    fn join(&mut self, node: NodeId) -> u64 {
        let rack = RackName::parse("a").unwrap();
        let (address, incarnation) = (format!("h:{}", node.0), self.incarnation);
        self.ask(&Command::Join { name: None, node, rack, address, capacity_bytes: 1 << 30, incarnation })
            .unwrap();
        incarnation
    }

    /// A node joins and says what it holds, as `hinterland node` does.
    fn come(&mut self, node: NodeId, adopt: bool) -> Come {
        self.come_and(node, adopt, false)
    }

    /// The same of one that is killed as soon as it has said it.
    fn come_and(&mut self, node: NodeId, adopt: bool, is_killed: bool) -> Come {
        self.away.remove(&node);
        let incarnation = self.join(node);
        let mut found: Vec<Found> = self.nodes[&node].values().cloned().collect();
        let mut newer = Vec::new();
        loop {
            let objects = found.iter().map(held).collect();
            let after = ObjectId(0);
            match self.ask(&Command::NodeObjects { node, incarnation, after, objects, more: false }).unwrap()
            {
                Reply::Reconciled { up, .. } if is_killed => {
                    assert!(up);
                    return Come::Up;
                }
                Reply::Reconciled { delete, up } => {
                    assert!(up);
                    for (object, epoch) in delete {
                        self.forget(node, object, epoch);
                    }
                    break;
                }
                Reply::KnowsLess { .. } if !adopt => return Come::Refused,
                Reply::KnowsLess { objects } => {
                    assert!(!objects.is_empty());
                    newer.extend(found.extract_if(.., |found| objects.binary_search(&found.object).is_ok()));
                }
                other => panic!("{other:?}"),
            }
        }
        if newer.is_empty() {
            return Come::Up;
        }
        let Reply::Adopted { refused, .. } =
            self.ask(&Command::Adopt { node, incarnation, found: newer, former: Vec::new() }).unwrap()
        else {
            panic!("not adopted")
        };
        for (object, _) in &refused {
            self.nodes.get_mut(&node).unwrap().remove(object);
        }
        Come::Adopted(refused)
    }

    /// The put of each object of which some node has the bytes.
    fn bytes(&self) -> BTreeMap<ObjectId, ContentDigest> {
        let copies = self.nodes.values().flat_map(BTreeMap::values);
        copies.filter_map(|found| Some((found.object, found.digest?))).collect()
    }

    /// The objects that the directory has, of which some home has the bytes.
    fn whole(&mut self) -> BTreeMap<ObjectId, ContentDigest> {
        let there = self.bytes();
        there.into_iter().filter(|(object, digest)| self.can_read(*object, *digest)).collect()
    }

    /// Whether the directory leads to a node that has these bytes.
    fn can_read(&mut self, object: ObjectId, digest: ContentDigest) -> bool {
        let Ok(Reply::Object(info)) = self.ask(&Command::LookupObject { object }) else { return false };
        let has =
            |node: &NodeId| self.nodes[node].get(&object).is_some_and(|found| found.digest == Some(digest));
        info.digest == Some(digest) && info.homes.iter().any(|home| has(&home.node))
    }

    fn digest_of(&mut self, object: ObjectId) -> Option<ContentDigest> {
        match self.ask(&Command::LookupObject { object }) {
            Ok(Reply::Object(info)) if !info.homes.is_empty() => info.digest,
            _ => None,
        }
    }
}

#[derive(PartialEq, Debug)]
enum Come {
    Up,
    Refused,
    Adopted(Vec<(ObjectId, NotAdopted)>),
}

fn held(found: &Found) -> Held {
    Held { object: found.object, epoch: found.epoch, digest: found.digest }
}

fn name(number: u8) -> ObjectName {
    ObjectName::parse(["a", "a/b", "c", "d", "recovered"][usize::from(number) % 5]).unwrap()
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8, u8),
    Begin(u8, u8),
    End(u8),
    Remove(u8),
    Move(u8, u64),
    Go(u64, Departure),
    Back(u64, bool),
    Repair,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let put = (any::<u8>(), 1..=2u8).prop_map(|(name, copies)| Step::Put(name, copies));
    let remove = any::<u8>().prop_map(Step::Remove);
    let moved = (any::<u8>(), 1..=NODES).prop_map(|(name, node)| Step::Move(name, node));
    prop::collection::vec(prop_oneof![3 => put, 2 => remove, 2 => moved], 0..10)
}

/// The same with nodes that go and come back, for good or killed on the way.
fn steps_of_nodes() -> impl Strategy<Value = Vec<Step>> {
    let put = (any::<u8>(), 1..=2u8).prop_map(|(name, copies)| Step::Put(name, copies));
    let remove = any::<u8>().prop_map(Step::Remove);
    let moved = (any::<u8>(), 1..=NODES).prop_map(|(name, node)| Step::Move(name, node));
    let departures = [Departure::ComesBack, Departure::Gone, Departure::GoneWithLastCopies];
    let go = (1..=NODES, prop::sample::select(departures.to_vec()));
    let go = go.prop_map(|(node, departure)| Step::Go(node, departure));
    let back = (1..=NODES, any::<bool>()).prop_map(|(node, is_killed)| Step::Back(node, is_killed));
    let step = prop_oneof![3 => put, 1 => remove, 2 => moved, 3 => go, 3 => back, 2 => Just(Step::Repair)];
    prop::collection::vec(step, 0..14)
}

/// The same with puts that go on over other steps.
fn steps_of_puts() -> impl Strategy<Value = Vec<Step>> {
    let begin = (any::<u8>(), 1..=2u8).prop_map(|(name, copies)| Step::Begin(name, copies));
    let end = any::<u8>().prop_map(Step::End);
    (steps_of_nodes(), prop::collection::vec((any::<prop::sample::Index>(), prop_oneof![begin, end]), 0..8))
        .prop_map(|(mut steps, puts)| {
            for (place, put) in puts {
                steps.insert(place.index(steps.len() + 1), put);
            }
            steps
        })
}

fn run(world: &mut World, steps: &[Step]) {
    for step in steps {
        match step {
            Step::Put(number, copies) => world.put(&name(*number), *copies),
            Step::Begin(number, copies) => drop(world.begin(&name(*number), *copies)),
            Step::End(_) if world.going_on.is_empty() => {}
            Step::End(place) => drop(world.end(usize::from(*place) % world.going_on.len())),
            Step::Remove(number) => world.remove(&name(*number)),
            Step::Move(number, node) => world.move_to(&name(*number), NodeId(*node)),
            Step::Go(node, departure) => world.go(NodeId(*node), *departure),
            Step::Back(node, is_killed) => world.back(NodeId(*node), *is_killed),
            Step::Repair => world.repair(),
        }
    }
}

/// All come, and once more, with what goes on there: what was there can be read after either.
fn all_is_there(
    world: &mut World,
    order: &[u64],
    there: &BTreeMap<ObjectId, ContentDigest>,
) -> Result<(), TestCaseError> {
    for node in order {
        prop_assert_ne!(world.come(NodeId(*node), true), Come::Refused);
    }
    for (object, digest) in there {
        prop_assert!(world.can_read(*object, *digest), "{} after all have come", object);
    }
    for node in order {
        world.incarnation += 1;
        world.come(NodeId(*node), true);
        world.repair();
    }
    for (object, digest) in there {
        prop_assert!(world.can_read(*object, *digest), "{} after another start of each", object);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_store_that_is_put_back_loses_nothing_that_a_node_holds(
        before in steps(),
        after in steps(),
        order in Just(vec![1, 2, 3]).prop_shuffle(),
        tried in prop::collection::vec(1..=NODES, 0..4),
        lost in any::<bool>(),
    ) {
        let mut world = World::new();
        run(&mut world, &before);
        let old = if lost { Vec::new() } else { world.store.clone() };
        run(&mut world, &after);
        let there = world.bytes();
        world.put_back(old);
        // Some are started as ever first, which deletes nothing of what the directory does not know.
        for node in tried {
            world.come(NodeId(node), false);
            world.incarnation += 1;
        }
        for node in order {
            prop_assert_ne!(world.come(NodeId(node), true), Come::Refused);
        }
        prop_assert_eq!(world.bytes(), there.clone());
        for (object, digest) in there {
            prop_assert_eq!(world.digest_of(object), Some(digest), "{}", object);
        }
        // And it goes on as ever: numbers are not given twice, and a further start adopts nothing.
        world.put(&ObjectName::parse("later").unwrap(), 1);
        world.incarnation += 1;
        for node in 1..=NODES {
            prop_assert_eq!(world.come(NodeId(node), false), Come::Up);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn what_the_lost_store_led_to_is_led_to_again_whoever_was_away_or_killed(
        before in steps_of_nodes(),
        after in steps_of_nodes(),
        starts in prop::collection::vec((1..=NODES, any::<bool>(), any::<bool>()), 0..6),
        order in Just(vec![1, 2, 3]).prop_shuffle(),
    ) {
        let mut world = World::new();
        run(&mut world, &before);
        let old = world.store.clone();
        run(&mut world, &after);
        let there = world.whole();
        world.put_back(old);
        for (node, adopt, is_killed) in starts {
            world.come_and(NodeId(node), adopt, is_killed);
            world.incarnation += 1;
        }
        all_is_there(&mut world, &order, &there)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn a_put_that_was_going_on_when_the_store_was_copied_is_led_to_again_if_evidence_comes_first(
        before in steps_of_puts(),
        after in steps_of_puts(),
        starts in prop::collection::vec((1..=NODES, any::<bool>(), any::<bool>()), 0..6),
        order in Just(vec![1, 2, 3]).prop_shuffle(),
        beats in any::<[bool; 2]>(),
    ) {
        let mut world = World::new();
        run(&mut world, &before);
        let old = world.store.clone();
        run(&mut world, &after);
        let there = world.whole();
        world.put_back(old);
        // Without any nobody knows that the store is older.
        let is_refused = |node: &u64| world.clone().come(NodeId(*node), false) == Come::Refused;
        let Some(bearer) = order.iter().copied().find(is_refused) else { return Ok(()) };
        world.come(NodeId(bearer), false);
        world.incarnation += 1;
        // Some run on.
        beats[0].then(|| world.beat());
        for (node, adopt, is_killed) in starts {
            world.come_and(NodeId(node), adopt, is_killed);
            world.incarnation += 1;
            beats[1].then(|| world.beat());
        }
        all_is_there(&mut world, &order, &there)?;
    }
}

#[test]
fn a_copy_beside_those_that_were_asked_for_goes_without_a_question_where_those_are_sure() {
    let mut world = World::new();
    world.put(&name(0), 1);
    let (object, digest) = world.bytes().pop_first().unwrap();
    let (home, other, third) = home_and_others(&world);
    let old = world.store.clone();
    world.copy_to(&name(0), other).unwrap();
    world.put(&name(2), 1);
    world.move_to(&name(2), third);
    world.put_back(old);
    // A later epoch than that of the copy is shown first.
    assert_eq!(world.come(third, true), Come::Adopted(Vec::new()));
    // Who has the copy that was asked for stands in the store alone so far: nobody knows whether it has it still.
    assert_eq!(world.come(other, false), Come::Refused);
    world.incarnation += 1;
    assert_eq!(world.come(home, false), Come::Up);
    assert_eq!(world.come_and(other, false, true), Come::Up, "killed before it let go of it");
    assert!(world.nodes[&other].contains_key(&object));
    world.incarnation += 1;
    assert_eq!(world.come(home, false), Come::Up);
    assert_eq!(world.come(other, false), Come::Up);
    assert!(!world.nodes[&other].contains_key(&object), "it is let go of");
    assert!(world.can_read(object, digest));
    // Other bytes under its number do not pass.
    let wrong = Found { digest: Some(ContentDigest([9; 32])), ..world.nodes[&home][&object].clone() };
    let epoch = Epoch(wrong.epoch.0 + 1);
    world.nodes.get_mut(&other).unwrap().insert(object, Found { epoch, ..wrong });
    world.incarnation += 1;
    assert_eq!(world.come(home, false), Come::Up);
    assert_eq!(world.come(other, false), Come::Refused);
}

#[test]
fn a_put_that_was_going_on_when_the_older_store_was_copied_and_ended_well_is_kept() {
    for (is_bearer, runs_on) in [(true, false), (false, false), (false, true)] {
        let mut world = World::new();
        let old = world.put_and(&name(0), 1);
        let (object, digest) = world.bytes().pop_first().unwrap();
        let (home, other, _) = home_and_others(&world);
        // Something later is on the same node, or on another one, which comes first.
        world.put(&name(2), 1);
        let bearer = if is_bearer { home } else { other };
        world.move_to(&name(2), other);
        if is_bearer {
            world.move_to(&name(2), home);
        }
        world.put_back(old);
        assert_eq!(world.come(bearer, true), Come::Adopted(Vec::new()), "{is_bearer}");
        if runs_on {
            // The node that put it has not been started again, and has no such put any more.
            world.ask(&Command::Abort { object }).unwrap();
        }
        if !is_bearer {
            assert_eq!(world.come(home, false), Come::Refused);
            world.incarnation += 1;
            assert_eq!(world.come(home, true), Come::Adopted(Vec::new()));
        }
        assert!(world.can_read(object, digest), "{is_bearer} {runs_on}");
    }
}

/// The first home of what was put, and the two other nodes.
fn home_and_others(world: &World) -> (NodeId, NodeId, NodeId) {
    let home = *world.nodes.iter().find(|(_, held)| !held.is_empty()).unwrap().0;
    (home, NodeId(home.0 % NODES + 1), NodeId((home.0 + 1) % NODES + 1))
}

#[test]
fn a_copy_elsewhere_of_a_put_that_goes_on_or_was_given_up_in_an_older_store_is_kept() {
    for (is_first, is_given_up) in [(false, true), (true, true), (false, false), (true, false)] {
        let mut world = World::new();
        let old = world.put_and(&name(0), 1);
        let (object, digest) = world.bytes().pop_first().unwrap();
        let (_, other, third) = home_and_others(&world);
        // It ended well, another node has a copy, and the first one is gone.
        world.move_to(&name(0), other);
        world.put(&name(2), 1);
        world.move_to(&name(2), third);
        world.put_back(old);
        // Its home is lost. Its writer has not come yet, or does not know it any more, and says so before there is any evidence.
        if is_given_up {
            world.ask(&Command::Abort { object }).unwrap();
        }
        if !is_first {
            assert_eq!(world.come(third, true), Come::Adopted(Vec::new()));
        }
        assert_eq!(world.come(other, false), Come::Refused, "{is_first} {is_given_up}");
        world.incarnation += 1;
        assert_eq!(world.come(other, true), Come::Adopted(Vec::new()), "{is_first} {is_given_up}");
        assert!(world.can_read(object, digest), "{is_first} {is_given_up}");
    }
}

#[test]
fn a_put_that_goes_on_in_an_older_store_is_asked_about_before_its_writer_comes() {
    let mut world = World::new();
    let old = world.put_and(&name(0), 2);
    let (object, digest) = world.bytes().pop_first().unwrap();
    let (writer, other, third) = home_and_others(&world);
    assert!(writer == NodeId(1) && world.nodes[&other].contains_key(&object));
    world.put(&name(2), 1);
    world.move_to(&name(2), third);
    world.put_back(old);
    assert_eq!(world.come(third, true), Come::Adopted(Vec::new()));
    // Its writer would give it up, and the other home would hear nothing of it before its next start.
    assert_eq!(world.come(other, false), Come::Refused);
    world.incarnation += 1;
    assert_eq!(world.come(other, true), Come::Adopted(Vec::new()));
    assert!(world.can_read(object, digest));
    assert_eq!(world.come(writer, true), Come::Adopted(Vec::new()));
    assert!(world.can_read(object, digest));
}

#[test]
fn a_put_that_was_given_up_and_may_have_ended_well_is_not_let_go_of_with_a_heartbeat() {
    for is_in_list in [true, false] {
        let mut world = World::new();
        let old = world.put_and(&name(0), 1);
        let (object, _) = world.bytes().pop_first().unwrap();
        let (home, _, third) = home_and_others(&world);
        world.put(&name(2), 1);
        let later = *world.bytes().keys().next_back().unwrap();
        world.move_to(&name(2), if is_in_list { home } else { third });
        world.put_back(old);
        let incarnation = world.join(home);
        // Its node has joined, which gives it up; what else is held, there or elsewhere, tells that the store is older.
        let (teller, named) = if is_in_list { (home, vec![object, later]) } else { (third, vec![later]) };
        if !is_in_list {
            assert_eq!(world.come(third, false), Come::Refused);
        }
        let objects = world.nodes[&teller].values().map(held).collect();
        let show = Command::ShowHeld { node: teller, incarnation, objects };
        assert_eq!(world.ask(&show), Ok(Reply::KnowsLess { objects: named }));
        let beat = Command::Heartbeat { node: home, incarnation, used_bytes: 0 };
        let Ok(Reply::Beat { forget, .. }) = world.ask(&beat) else { panic!("no beat") };
        assert_eq!(forget, Vec::new(), "{is_in_list}");
        assert_eq!(world.come(home, false), Come::Refused);
    }
}

#[test]
fn what_was_removed_stays_so_although_a_put_of_a_lower_number_is_in_doubt() {
    let mut world = World::new();
    let writer = Writer { node: NodeId(1), incarnation: world.incarnation, token: 90 };
    let (size, placement) = (Some(MIB), Placement::Policy);
    let reserve = Command::Reserve { name: name(0), size, copies: 1, placement, writer };
    let Ok(Reply::Reserved { object: going_on, .. }) = world.ask(&reserve) else { panic!("no put") };
    world.put(&name(2), 1);
    let (removed, _) = world.bytes().pop_first().unwrap();
    let (home, _, third) = home_and_others(&world);
    let old = world.store.clone();
    world.put(&name(3), 1);
    world.move_to(&name(3), third);
    world.put_back(old);
    assert_eq!(world.come(third, true), Come::Adopted(Vec::new()));
    world.ask(&Command::Abort { object: going_on }).unwrap();
    assert_eq!(world.come(home, false), Come::Up);
    // It is given up as lost, what it held is removed, and then it is found again.
    let (incarnation, departure) = (world.incarnation, Departure::GoneWithLastCopies);
    world.ask(&Command::Leave { node: home, incarnation, departure }).unwrap();
    world.remove(&name(2));
    world.incarnation += 1;
    assert_eq!(world.come(home, false), Come::Up);
    assert!(!world.nodes[&home].contains_key(&removed));
    // The put is asked about all the same.
    let found = Found { object: going_on, ..world.nodes[&third].values().next().unwrap().clone() };
    world.nodes.get_mut(&home).unwrap().insert(going_on, found);
    world.incarnation += 1;
    assert_eq!(world.come(home, false), Come::Refused);
}

#[test]
fn evidence_that_shows_no_later_epoch_keeps_puts_that_were_given_up_as_well() {
    for is_number in [true, false] {
        let mut world = World::new();
        world.put(&name(2), 1);
        let (known, _) = world.bytes().pop_first().unwrap();
        let old = world.put_and(&name(0), 1);
        let (object, digest) = world.bytes().pop_last().unwrap();
        let (home, other, _) = home_and_others(&world);
        assert!(world.nodes[&home].contains_key(&object), "on the same node");
        world.put_back(old);
        // A number that was not given under an epoch that was, or other bytes under a number that was.
        let known = world.nodes[&home][&known].clone();
        let evidence = if is_number {
            Found { object: ObjectId(90), ..known }
        } else {
            Found { digest: Some(ContentDigest([9; 32])), ..known }
        };
        world.nodes.get_mut(&other).unwrap().insert(evidence.object, evidence);
        world.incarnation += 1;
        assert_eq!(world.come(other, false), Come::Refused, "{is_number}");
        // It gives the put up.
        world.incarnation += 1;
        assert_eq!(world.come(home, false), Come::Refused, "{is_number}");
        assert!(world.nodes[&home].contains_key(&object), "{is_number}");
        world.incarnation += 1;
        assert_eq!(world.come(home, true), Come::Adopted(Vec::new()), "{is_number}");
        assert!(world.can_read(object, digest), "{is_number}");
    }
}

#[test]
fn an_object_that_the_older_store_knows_is_wanted_as_often_as_before() {
    let mut world = World::new();
    world.put(&name(0), 1);
    let object = *world.bytes().keys().next().unwrap();
    let (home, other, _) = home_and_others(&world);
    let old = world.store.clone();
    world.copy_to(&name(0), other).unwrap();
    world.put_back(old);
    assert_eq!(world.come(home, false), Come::Up);
    assert_eq!(world.come(other, true), Come::Adopted(Vec::new()));
    let Ok(Reply::Object(info)) = world.ask(&Command::LookupObject { object }) else { panic!("gone") };
    assert_eq!((info.copies, info.homes.len()), (1, 2));
}

#[test]
fn a_copy_is_not_one_too_many_beside_one_that_stands_in_an_older_store_alone() {
    let mut world = World::new();
    world.put(&name(0), 1);
    let (object, digest) = world.bytes().pop_first().unwrap();
    let (home, other, _) = home_and_others(&world);
    // Its home goes while there is another copy, as one that was made for it.
    world.copy_to(&name(0), other).unwrap();
    world.go(home, Departure::ComesBack);
    let old = world.store.clone();
    // Then that one is gone for good, and the home comes back: it has the only copy.
    world.go(other, Departure::GoneWithLastCopies);
    world.back(home, false);
    world.put_back(old);
    assert_eq!(world.come(home, false), Come::Up);
    assert_eq!(world.come(other, false), Come::Up);
    assert!(world.can_read(object, digest));
}

#[test]
fn a_copy_that_was_made_since_is_kept_although_another_node_has_shown_later_epochs_before() {
    let mut world = World::new();
    world.put(&name(0), 1);
    let old = world.store.clone();
    world.move_to(&name(0), NodeId(2));
    world.put(&name(2), 1);
    world.move_to(&name(2), NodeId(3));
    let there = world.bytes();
    world.put_back(old);
    assert_eq!(world.come(NodeId(3), true), Come::Adopted(Vec::new()));
    // What is made here meanwhile, as a copy that was missing, is told from it, too.
    world.put(&name(3), 2);
    assert_eq!(world.come(NodeId(2), false), Come::Refused);
    world.incarnation += 1;
    assert_eq!(world.come(NodeId(2), true), Come::Adopted(Vec::new()));
    assert_eq!(world.come(NodeId(1), false), Come::Up);
    for (object, digest) in there {
        assert_eq!(world.digest_of(object), Some(digest), "{object}");
    }
}

#[test]
fn an_object_whose_name_is_taken_comes_back_beside_it() {
    let mut world = World::new();
    world.put(&name(2), 1);
    let old = world.store.clone();
    // The older one goes to another name, and a newer one has its name.
    let kept = *world.bytes().keys().next().unwrap();
    let moved = ObjectName::parse("moved").unwrap();
    let target = hinterland_directory::OnTarget::Refuse;
    world.ask(&Command::Rename { from: name(2), to: moved, object: kept, target }).unwrap();
    world.put(&name(2), 1);
    let newer = *world.bytes().keys().next_back().unwrap();
    world.put_back(old);
    for node in 1..=NODES {
        assert_ne!(world.come(NodeId(node), true), Come::Refused);
    }
    let mut name_of = |object| match world.ask(&Command::LookupObject { object }) {
        Ok(Reply::Object(info)) => info.name.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(name_of(kept), "c", "as the older store has it");
    assert_eq!(name_of(newer), format!("recovered/{}", newer.0));
}

#[test]
fn of_two_that_one_node_has_of_one_name_the_last_that_was_put_has_it() {
    let mut world = World::new();
    let found = |number: u64| {
        let digest = Some(ContentDigest([number as u8; 32]));
        let epoch = Epoch(number);
        Found { object: ObjectId(number), epoch, name: name(2), as_of: epoch, bytes: MIB, digest }
    };
    let command = Command::Adopt {
        node: NodeId(1),
        incarnation: world.incarnation,
        found: vec![found(1007), found(1009)],
        former: Vec::new(),
    };
    let answer = world.ask(&command).unwrap();
    let Reply::Adopted { taken, refused } = answer else { panic!("{answer:?}") };
    assert!(refused.is_empty(), "{refused:?}");
    let beside = ObjectName::parse("recovered/1007").unwrap();
    assert_eq!(taken, vec![(ObjectId(1007), beside), (ObjectId(1009), name(2))]);
}

#[test]
fn regions_and_numbers_that_were_given_twice_are_refused_by_name() {
    let mut world = World::new();
    let old = world.store.clone();
    world.put(&name(0), 1);
    let (object, node) = (ObjectId(16), NodeId(1));
    let found = world.nodes[&node][&object].clone();
    world.put_back(old);
    // Nobody with evidence has come, so the number is given to another object.
    world.nodes.get_mut(&node).unwrap().clear();
    for node in 1..=NODES {
        assert_eq!(world.come(NodeId(node), false), Come::Up);
    }
    world.put(&name(3), 1);
    assert_eq!(world.nodes[&node].keys().next(), Some(&object), "the same number");
    let region = Found { object: ObjectId(90), epoch: Epoch(90), digest: None, ..found.clone() };
    let there = NodeId(2);
    world.nodes.get_mut(&there).unwrap().extend([(object, found), (region.object, region)]);
    world.incarnation += 1;
    assert_eq!(world.come(there, false), Come::Refused);
    let refused = vec![(object, NotAdopted::NumberTaken), (ObjectId(90), NotAdopted::Region)];
    world.incarnation += 1;
    assert_eq!(world.come(there, true), Come::Adopted(refused));
}

#[test]
fn a_member_that_shows_some_of_what_it_holds_has_not_told_all() {
    let mut world = World::new();
    world.put(&name(0), 3);
    world.put(&name(2), 3);
    let node = NodeId(1);
    let all: Vec<Held> = world.nodes[&node].values().map(held).collect();
    assert_eq!(all.len(), 2);
    world.incarnation += 1;
    let incarnation = world.join(node);
    let show = |objects: &[Held]| Command::ShowHeld { node, incarnation, objects: objects.to_vec() };
    let before = world.store.clone();
    assert_eq!(world.ask(&show(&all[1..])), Ok(Reply::Shown { up: false }));
    assert_eq!(world.store, before, "nothing is lost, and it does not come up");
    // One that goes back is noticed by it all the same.
    let later = Held { object: ObjectId(90), ..all[1] };
    assert_eq!(world.ask(&show(&[later])), Ok(Reply::KnowsLess { objects: vec![later.object] }));
    let told =
        Command::NodeObjects { node, incarnation, after: ObjectId(0), objects: all.clone(), more: false };
    assert_eq!(world.ask(&told), Ok(Reply::Reconciled { delete: Vec::new(), up: true }));
    assert_eq!(world.ask(&show(&all[1..])), Ok(Reply::Shown { up: true }));
    let swapped = show(&[all[1], all[0]]);
    assert!(matches!(world.ask(&swapped), Err(DirectoryError::ListOutOfOrder { .. })));
    let many = vec![all[0]; hinterland_directory::HELD_MAX + 1];
    assert!(matches!(world.ask(&show(&many)), Err(DirectoryError::ListOutOfOrder { .. })));
    let stale = Command::ShowHeld { node, incarnation: 1, objects: all };
    assert!(matches!(world.ask(&stale), Err(DirectoryError::StaleIncarnation { .. })));
}

#[test]
fn numbers_that_no_directory_has_given_are_refused_and_use_up_nothing() {
    let mut world = World::new();
    let (node, incarnation) = (NodeId(1), world.incarnation);
    let digest = Some(ContentDigest::default());
    let (object, epoch, bytes) = (ObjectId(16), Epoch(1), MIB);
    let good = Found { object, epoch, name: name(0), as_of: epoch, bytes, digest };
    let numbers = [(0, 1), (1, 1), (15, 1), (1 << 61, 1), (u64::MAX, 1), (16, 1 << 61), (16, u64::MAX)];
    for (object, epoch) in numbers {
        let found = Found { object: ObjectId(object), epoch: Epoch(epoch), ..good.clone() };
        let refused = DirectoryError::BadNumber { node, object: found.object, epoch: found.epoch };
        let command = Command::Adopt { node, incarnation, found: vec![found.clone()], former: Vec::new() };
        assert_eq!(world.ask(&command), Err(refused.clone()), "{object} {epoch}");
        if object > 0 {
            let (after, objects) = (ObjectId(0), vec![held(&found)]);
            let command = Command::NodeObjects { node, incarnation, after, objects, more: false };
            assert_eq!(world.ask(&command), Err(refused), "{object} {epoch}");
        }
    }
    // The largest that is believed leaves more numbers than anybody can use.
    let last = Found { object: ObjectId((1 << 61) - 1), epoch: Epoch((1 << 61) - 1), ..good };
    let Ok(Reply::Adopted { taken, .. }) =
        world.ask(&Command::Adopt { node, incarnation, found: vec![last], former: Vec::new() })
    else {
        panic!("not adopted")
    };
    assert_eq!(taken.len(), 1);
    world.put(&name(2), 2);
    world.put(&name(3), 1);
}

#[test]
fn the_pools_that_objects_were_in_before_are_remembered_with_the_last_object_of_each() {
    let mut world = World::new();
    let incarnation = world.incarnation;
    let former = |pool, last| FormerPool { pool, last: ObjectId(last) };
    let adopt = |node, former| Command::Adopt { node: NodeId(node), incarnation, found: Vec::new(), former };
    assert_eq!(world.ask(&Command::FormerPools), Ok(Reply::FormerPools(Vec::new())));
    world.ask(&adopt(1, vec![former(7, 40), former(u128::MAX, 90)])).unwrap();
    world.ask(&adopt(2, vec![former(7, 60)])).unwrap();
    world.ask(&adopt(3, vec![former(7, 50)])).unwrap();
    let all = vec![former(7, 60), former(u128::MAX, 90)];
    assert_eq!(world.ask(&Command::FormerPools), Ok(Reply::FormerPools(all.clone())));
    // Nodes keep them beside the bytes, so that they outlive this directory, too.
    let asked = Command::HeldNames { node: NodeId(2), as_of: Epoch(0), after: None };
    let answer = world.ask(&asked).unwrap();
    assert!(matches!(&answer, Reply::HeldNames { former, .. } if *former == all), "{answer:?}");
    let many = (0..FORMER_POOLS_MAX as u128).map(|pool| former(1000 + pool, 16)).collect();
    assert!(matches!(world.ask(&adopt(1, many)), Err(DirectoryError::TooManyFormerPools { .. })));
    assert!(matches!(world.ask(&adopt(1, vec![former(8, 1 << 61)])), Err(DirectoryError::BadNumber { .. })));
    assert_eq!(world.ask(&Command::FormerPools), Ok(Reply::FormerPools(all)));
}
