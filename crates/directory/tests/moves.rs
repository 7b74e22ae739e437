//! Pages of regions against a plain model: random moves, ends of moves and of nodes; after each a crash.
#![allow(clippy::unwrap_used)] // a test says by its panic where it failed

use hinterland_directory::{
    Command, Directory, DirectoryError, Held, Mutation, ObjectState, PageHome, Placement, Record, Reply,
    Settings, Table, Writer,
};
use hinterland_types::limits::PAGE_BYTES;
use hinterland_types::{Epoch, NodeId, ObjectId, ObjectName, PageNumber, RackName};
use proptest::prelude::*;
use std::collections::BTreeMap;

const NODES: u64 = 4;
const PAGES: u32 = 12;

struct Pool {
    directory: Directory,
    store: BTreeMap<(Table, Vec<u8>), Vec<u8>>,
    incarnations: BTreeMap<u64, u64>,
}

impl Pool {
    fn new(capacity_pages: u64) -> Self {
        let directory = Directory::recover(Settings::default(), 0, Vec::new()).unwrap();
        let mut pool = Self { directory, store: BTreeMap::new(), incarnations: BTreeMap::new() };
        (1..=NODES).for_each(|node| pool.join(node, capacity_pages, Vec::new()));
        pool
    }

    fn ask(&mut self, command: &Command) -> Result<Reply, DirectoryError> {
        let (reply, mutations) = self.directory.apply(0, command)?;
        for Mutation { table, key, value } in mutations {
            match value {
                Some(value) => self.store.insert((table, key), value),
                None => self.store.remove(&(table, key)),
            };
        }
        self.directory.check().unwrap();
        let records = self.store.iter();
        let records = records.map(|((table, key), value)| Record {
            table: *table,
            key: key.clone(),
            value: value.clone(),
        });
        let recovered = Directory::recover(Settings::default(), 0, records).unwrap();
        assert!(recovered.same_records(&self.directory), "a crash behind {command:?}");
        Ok(reply)
    }

    fn join(&mut self, node: u64, capacity_pages: u64, objects: Vec<Held>) {
        let incarnation = self.incarnations.entry(node).or_default();
        *incarnation += 1;
        let (incarnation, rack) = (*incarnation, RackName::parse(&format!("r{node}")).unwrap());
        let (address, capacity_bytes) = (format!("h:{node}"), capacity_pages * PAGE_BYTES);
        let node = NodeId(node);
        self.ask(&Command::Join { name: None, node, rack, address, capacity_bytes, incarnation }).unwrap();
        let after = ObjectId(0);
        self.ask(&Command::NodeObjects { node, incarnation, after, objects, more: false }).unwrap();
    }

    fn create(&mut self, name: &str, pages: u32, placement: Placement) -> ObjectId {
        let (name, size) = (ObjectName::parse(name).unwrap(), u64::from(pages) * PAGE_BYTES);
        let command = Command::CreateRegion { name, size, placement, local: NodeId(1) };
        let Reply::Reserved { object, .. } = self.ask(&command).unwrap() else { panic!() };
        object
    }

    fn first(&mut self, object: ObjectId) -> PageNumber {
        let Reply::Object(info) = self.ask(&Command::LookupObject { object }).unwrap() else { panic!() };
        info.pages.unwrap().first()
    }

    fn home(&mut self, page: PageNumber) -> PageHome {
        match self.ask(&Command::LookupHome { page }) {
            Ok(Reply::PageHome(home)) => home,
            other => panic!("{other:?}"),
        }
    }

    fn begin(&mut self, page: PageNumber, to: u64) -> Result<Epoch, DirectoryError> {
        let incarnation = self.incarnations[&to];
        match self.ask(&Command::BeginMove { page, to: NodeId(to), incarnation })? {
            Reply::Move { epoch, .. } => Ok(epoch),
            other => panic!("{other:?}"),
        }
    }

    fn commit(&mut self, page: PageNumber, to: u64, epoch: Epoch) -> Result<Reply, DirectoryError> {
        let incarnation = self.incarnations[&to];
        self.ask(&Command::CommitMove { page, to: NodeId(to), incarnation, epoch })
    }

    fn held(&mut self, object: ObjectId, node: u64) -> Vec<Held> {
        let Reply::Pages { parts, .. } = self.ask(&Command::PageHomes { object, after: None }).unwrap()
        else {
            panic!()
        };
        let ours = parts.iter().filter(|(home, _)| home.node == NodeId(node));
        ours.map(|(home, _)| Held { object, epoch: home.epoch, digest: None }).collect()
    }

    /// Pages by node, as the answer that lists them says.
    fn listed(&mut self, object: ObjectId) -> Vec<Option<u64>> {
        let first = self.first(object);
        let Reply::Pages { base, parts, moved, more } =
            self.ask(&Command::PageHomes { object, after: None }).unwrap()
        else {
            panic!()
        };
        assert!(!more);
        let pages = (0..PAGES).map(|index| PageNumber::new(first.raw() + index).unwrap());
        let home = |page| {
            let moved = moved.iter().find(|m| m.page == page).map(|m| (m.node, m.epoch));
            let based = hinterland_directory::spread(page, base.len()).map(|place| base[place]);
            let (node, epoch) = moved.or(based)?;
            parts.iter().find(|(part, _)| part.node == node && part.epoch <= epoch).map(|_| node.0)
        };
        pages.map(home).collect()
    }
}

fn node_of(home: &PageHome) -> Option<u64> {
    home.home.as_ref().map(|home| home.node.0)
}

#[test]
fn a_region_is_spread_over_all_nodes_and_each_is_charged_for_its_pages() {
    let mut pool = Pool::new(64);
    let object = pool.create("spread", PAGES, Placement::Spread);
    let homes = pool.listed(object);
    assert!((1..=NODES).all(|node| homes.contains(&Some(node))), "{homes:?}");
    let Reply::Members(members) = pool.ask(&Command::Members).unwrap() else { panic!() };
    for member in members {
        let pages = homes.iter().filter(|home| **home == Some(member.node.0)).count() as u64;
        assert_eq!(member.reserved_bytes, pages * PAGE_BYTES);
    }
}

#[test]
fn a_region_is_seen_when_its_memory_is_there_and_goes_with_the_node_that_makes_it() {
    let mut pool = Pool::new(8);
    let name = ObjectName::parse("r").unwrap();
    let writer = |pool: &Pool, token| Writer { node: NodeId(2), incarnation: pool.incarnations[&2], token };
    let make = |writer| {
        let (name, size) = (ObjectName::parse("r").unwrap(), 6 * PAGE_BYTES);
        Command::MakeRegion { name, size, placement: Placement::Spread, writer }
    };
    let lookup = Command::Lookup { name: name.clone() };
    let list = Command::List { prefix: String::new(), after: None, limit: 9 };
    let being_made = DirectoryError::NameBeingMade { name: name.clone(), node: NodeId(2) };
    for is_killed in [true, false] {
        let first = writer(&pool, 1);
        let Reply::Reserved { object, homes } = pool.ask(&make(first)).unwrap() else { panic!() };
        let again = pool.ask(&make(first));
        assert_eq!(again, Ok(Reply::Reserved { object, homes }), "a repeated request");
        let page = pool.first(object);
        assert_eq!(pool.room(), 6 * PAGE_BYTES);
        assert_eq!(pool.ask(&lookup), Err(being_made.clone()));
        assert_eq!(pool.ask(&Command::Remove { name: name.clone(), object: None }), Err(being_made.clone()));
        let second = writer(&pool, 2);
        assert_eq!(pool.ask(&make(second)), Err(being_made.clone()));
        assert_eq!(pool.ask(&Command::LookupPage { page }), Err(DirectoryError::UnownedPage { page }));
        assert_eq!(pool.ask(&list), Ok(Reply::List { objects: Vec::new(), more: false }));
        assert!((1..=NODES).all(|node| pool.begin(page, node).is_err()), "nothing of it moves");
        if is_killed {
            // Its next life knows nothing of it, and holds nothing.
            pool.join(2, 8, Vec::new());
        } else {
            pool.ask(&Command::Abort { object }).unwrap();
        }
        assert_eq!(pool.ask(&lookup), Err(DirectoryError::UnknownName { name: name.clone() }));
        assert!(pool.ask(&Command::ShowRegion { object }).is_err());
        for node in 1..=NODES {
            for held in pool.held_or_gone(object, node) {
                let (node, incarnation) = (NodeId(node), pool.incarnations[&node]);
                pool.ask(&Command::Forget { object, node, incarnation, epoch: held.epoch }).unwrap();
            }
        }
        assert_eq!(pool.room(), 0, "room is kept by nobody");
    }
    let third = writer(&pool, 3);
    let Reply::Reserved { object, .. } = pool.ask(&make(third)).unwrap() else { panic!() };
    for _ in 0..2 {
        let Reply::Object(info) = pool.ask(&Command::ShowRegion { object }).unwrap() else { panic!() };
        assert_eq!((info.state, info.name.clone()), (ObjectState::Mutable, name.clone()));
    }
    let page = pool.first(object);
    assert!(pool.ask(&lookup).is_ok() && pool.ask(&Command::LookupPage { page }).is_ok());
    let held = pool.held(object, 2);
    pool.join(2, 8, held);
    assert!(pool.ask(&lookup).is_ok(), "it is nobody's any more");
}

#[test]
fn a_region_is_not_shown_when_a_home_has_lost_its_part_in_the_meantime() {
    let mut pool = Pool::new(8);
    let (name, size) = (ObjectName::parse("r").unwrap(), 6 * PAGE_BYTES);
    let writer = Writer { node: NodeId(2), incarnation: pool.incarnations[&2], token: 1 };
    let make = Command::MakeRegion { name, size, placement: Placement::Spread, writer };
    let Reply::Reserved { object, .. } = pool.ask(&make).unwrap() else { panic!() };
    pool.join(3, 8, Vec::new());
    let refused = pool.ask(&Command::ShowRegion { object });
    assert_eq!(refused, Err(DirectoryError::HomeMissing { object, node: NodeId(3) }));
    pool.ask(&Command::Abort { object }).unwrap();
}

#[test]
fn a_node_without_room_gets_no_share_and_a_region_without_any_room_is_refused() {
    let mut pool = Pool::new(4);
    pool.create("one", 4, Placement::Rack(RackName::parse("r2").unwrap()));
    let object = pool.create("spread", 9, Placement::Spread);
    let Reply::Pages { base, .. } = pool.ask(&Command::PageHomes { object, after: None }).unwrap() else {
        panic!()
    };
    assert!(!base.iter().any(|(node, _)| *node == NodeId(2)), "{base:?}");
    let (name, placement) = (ObjectName::parse("big").unwrap(), Placement::Spread);
    let command = Command::CreateRegion { name, size: 40 * PAGE_BYTES, placement, local: NodeId(1) };
    assert!(matches!(pool.ask(&command), Err(DirectoryError::NotEnoughRoom { .. })));
}

#[test]
fn what_was_cancelled_is_never_committed_and_what_was_committed_is_not_taken_back() {
    let mut pool = Pool::new(64);
    let object = pool.create("r", PAGES, Placement::Rack(RackName::parse("r1").unwrap()));
    let page = pool.first(object);
    let first = pool.begin(page, 2).unwrap();
    assert!(matches!(pool.begin(page, 3), Err(DirectoryError::PageMoving { .. })));
    pool.ask(&Command::CancelMove { page, epoch: first }).unwrap();
    assert!(matches!(pool.commit(page, 2, first), Err(DirectoryError::MoveOver { .. })));
    assert_eq!(node_of(&pool.home(page)), Some(1));
    let second = pool.begin(page, 3).unwrap();
    pool.ask(&Command::CancelMove { page, epoch: first }).unwrap();
    pool.commit(page, 3, second).unwrap();
    pool.commit(page, 3, second).unwrap();
    pool.ask(&Command::CancelMove { page, epoch: second }).unwrap();
    assert_eq!(node_of(&pool.home(page)), Some(3));
    assert!(matches!(pool.begin(page, 3), Err(DirectoryError::PageAtHome { .. })));
}

#[test]
fn a_move_that_is_begun_twice_is_one_move() {
    let mut pool = Pool::new(2);
    let object = pool.create("r", 2, Placement::Rack(RackName::parse("r1").unwrap()));
    let page = pool.first(object);
    let room = pool.room();
    let epoch = pool.begin(page, 2).unwrap();
    assert_eq!(
        pool.begin(page, 2),
        Ok(epoch),
        "whichever of the two answers is heard, the other is of the same move"
    );
    pool.ask(&Command::CancelMove { page, epoch }).unwrap();
    assert_eq!(pool.room(), room, "nothing is left of either");
    let later = pool.begin(page, 3).unwrap();
    assert!(later > epoch);
    pool.commit(page, 3, later).unwrap();
}

#[test]
fn a_home_that_begins_another_life_ends_its_moves() {
    let mut pool = Pool::new(64);
    let object = pool.create("r", PAGES, Placement::Rack(RackName::parse("r1").unwrap()));
    let page = pool.first(object);
    let epoch = pool.begin(page, 2).unwrap();
    let held = pool.held(object, 1);
    pool.join(1, 64, held);
    assert!(matches!(pool.commit(page, 2, epoch), Err(DirectoryError::MoveOver { .. })));
    assert_eq!(node_of(&pool.home(page)), Some(1));
}

#[test]
fn pages_of_a_part_that_is_gone_are_lost_and_never_read_as_zeros() {
    let mut pool = Pool::new(64);
    let object = pool.create("r", PAGES, Placement::Rack(RackName::parse("r1").unwrap()));
    let first = pool.first(object);
    let other = PageNumber::new(first.raw() + 1).unwrap();
    let epoch = pool.begin(first, 2).unwrap();
    pool.commit(first, 2, epoch).unwrap();
    pool.join(2, 64, Vec::new());
    assert_eq!(node_of(&pool.home(first)), None);
    assert!(matches!(pool.begin(first, 1), Err(DirectoryError::PageLost { .. })));
    let epoch = pool.begin(other, 2).unwrap();
    pool.commit(other, 2, epoch).unwrap();
    assert_eq!((node_of(&pool.home(first)), node_of(&pool.home(other))), (None, Some(2)));
}

#[test]
fn a_store_of_a_format_before_is_read_and_written_on() {
    for format in [1, 2] {
        let mut pool = Pool::new(64);
        let object = pool.create("old", PAGES, Placement::Policy);
        let key = (Table::Meta, b"meta".to_vec());
        let mut meta = pool.store[&key].clone();
        assert_eq!(meta[0], 3);
        meta[0] = format;
        pool.store.insert(key.clone(), meta);
        let records = pool.store.iter().map(|((table, key), value)| Record {
            table: *table,
            key: key.clone(),
            value: value.clone(),
        });
        pool.directory = Directory::recover(Settings::default(), 0, records).unwrap();
        let held = pool.held(object, 1);
        assert_eq!(pool.listed(object), vec![Some(1); PAGES as usize]);
        pool.join(1, 64, held);
        assert_eq!(pool.store[&key][0], 3);
    }
}

/// One thing that happens: a move begins, ends, or a node begins another life with or without its parts.
#[derive(Clone, Copy, Debug)]
enum Step {
    Begin(u32, u64),
    Commit(u32),
    Cancel(u32),
    Restart(u64),
    Lose(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..PAGES, 1..=NODES).prop_map(|(page, node)| Step::Begin(page, node)),
        6 => (0..PAGES).prop_map(Step::Commit),
        2 => (0..PAGES).prop_map(Step::Cancel),
        1 => (1..=NODES).prop_map(Step::Restart),
        1 => (1..=NODES).prop_map(Step::Lose),
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn every_page_is_where_the_last_commit_put_it(steps in steps(), is_spread: bool) {
        let mut pool = Pool::new(9);
        let placement = if is_spread { Placement::Spread } else { Placement::Rack(RackName::parse("r1").unwrap()) };
        let object = pool.create("r", 6, placement);
        let first = pool.first(object).raw();
        let page = |index: u32| PageNumber::new(first + index % 6).unwrap();
        let mut homes: BTreeMap<PageNumber, Option<u64>> =
            (0..6).map(page).map(|page| (page, node_of(&pool.home(page)))).collect();
        let mut going: BTreeMap<PageNumber, (u64, Epoch)> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Begin(index, node) => {
                    let page = page(index);
                    let others = going.get(&page).is_some_and(|(to, _)| *to != node);
                    let allowed = homes[&page].is_some_and(|home| home != node) && !others;
                    match pool.begin(page, node) {
                        Ok(epoch) => {
                            prop_assert!(allowed);
                            going.insert(page, (node, epoch));
                        }
                        Err(DirectoryError::NotEnoughRoom { .. }) => { going.remove(&page); }
                        Err(_) => prop_assert!(!allowed),
                    }

                }
                Step::Commit(index) => {
                    let Some((node, epoch)) = going.remove(&page(index)) else { continue };
                    pool.commit(page(index), node, epoch).unwrap();
                    homes.insert(page(index), Some(node));
                }
                Step::Cancel(index) => {
                    let Some((node, epoch)) = going.remove(&page(index)) else { continue };
                    pool.ask(&Command::CancelMove { page: page(index), epoch }).unwrap();
                    prop_assert!(pool.commit(page(index), node, epoch).is_err());
                }
                Step::Restart(node) | Step::Lose(node) => {
                    let keeps = matches!(step, Step::Restart(_));
                    let held = if keeps { pool.held(object, node) } else { Vec::new() };
                    pool.join(node, 9, held);
                    let over: Vec<_> = going.iter()
                        .filter(|(page, (to, _))| *to == node || homes[*page] == Some(node))
                        .map(|(page, going)| (*page, *going)).collect();
                    for (page, (to, epoch)) in over {
                        going.remove(&page);
                        prop_assert!(pool.commit(page, to, epoch).is_err());
                    }
                    homes.values_mut().filter(|home| !keeps && **home == Some(node)).for_each(|home| *home = None);
                }
            }
            for (page, home) in &homes {
                prop_assert_eq!(node_of(&pool.home(*page)), *home);
            }
        }
        let name = ObjectName::parse("r").unwrap();
        pool.ask(&Command::Remove { name, object: None }).unwrap();
        for node in 1..=NODES {
            for held in pool.held_or_gone(object, node) {
                let incarnation = pool.incarnations[&node];
                pool.ask(&Command::Forget { object, node: NodeId(node), incarnation, epoch: held.epoch }).unwrap();
            }
        }
        prop_assert!(pool.store.keys().all(|(table, _)| !matches!(table, Table::Regions | Table::Homes | Table::Moves)));
    }
}

impl Pool {
    /// Bytes that are reserved on all nodes.
    fn room(&mut self) -> u64 {
        let Reply::Members(members) = self.ask(&Command::Members).unwrap() else { panic!() };
        members.iter().map(|member| member.reserved_bytes).sum()
    }

    fn held_or_gone(&mut self, object: ObjectId, node: u64) -> Vec<Held> {
        match self.directory.plan(0, &Command::PageHomes { object, after: None }) {
            Ok(_) => self.held(object, node),
            Err(_) => Vec::new(),
        }
    }
}
