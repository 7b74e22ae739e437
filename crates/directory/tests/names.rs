//! Names of objects whose directory was lost: each is that of the object of which the latest is known, in whatever order nodes come.
#![allow(clippy::unwrap_used)] // a test says by its panic where it failed

use hinterland_directory::{
    Command, ContentDigest, Directory, DirectoryError, Found, LIST_MAX, OnTarget, Placement, Reply, Settings,
    Writer,
};
use hinterland_types::{Epoch, NodeId, ObjectId, ObjectName, RackName};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const NODES: u64 = 3;
const BYTES: u64 = 5000;

fn pool() -> Directory {
    let mut directory = Directory::recover(Settings::default(), 0, []).unwrap();
    for node in (1..=NODES).map(NodeId) {
        let (rack, address) = (RackName::parse("a").unwrap(), format!("h:{}", node.0));
        let (capacity_bytes, incarnation) = (1 << 30, 1);
        ask(&mut directory, &Command::Join { name: None, node, rack, address, capacity_bytes, incarnation })
            .unwrap();
        let (after, objects) = (ObjectId(0), Vec::new());
        ask(&mut directory, &Command::NodeObjects { node, incarnation, after, objects, more: false })
            .unwrap();
    }
    directory
}

fn ask(directory: &mut Directory, command: &Command) -> Result<Reply, DirectoryError> {
    let reply = directory.apply(0, command)?.0;
    directory.check().unwrap();
    Ok(reply)
}

fn name(text: &str) -> ObjectName {
    ObjectName::parse(text).unwrap()
}

/// A copy of an object, whose node knows its name as of an epoch.
fn found(number: u64, called: &str, as_of: u64) -> Found {
    let (object, epoch) = (ObjectId(number), Epoch(number));
    let mut digest = ContentDigest::default();
    digest.0[..8].copy_from_slice(&number.to_le_bytes());
    Found { object, epoch, name: name(called), as_of: Epoch(as_of), bytes: BYTES, digest: Some(digest) }
}

fn adopt(directory: &mut Directory, node: u64, found: Vec<Found>) -> BTreeMap<u64, String> {
    let answer =
        ask(directory, &Command::Adopt { node: NodeId(node), incarnation: 1, found, former: Vec::new() })
            .unwrap();
    let Reply::Adopted { taken, refused } = answer else { panic!("{answer:?}") };
    assert!(refused.is_empty(), "{refused:?}");
    taken.into_iter().map(|(object, name)| (object.0, name.to_string())).collect()
}

fn names(directory: &mut Directory) -> BTreeMap<u64, String> {
    let asked = Command::List { prefix: String::new(), after: None, limit: LIST_MAX };
    let Ok(Reply::List { objects, .. }) = ask(directory, &asked) else { panic!("no list") };
    objects.into_iter().map(|info| (info.object.0, info.name.to_string())).collect()
}

fn expected(names: &[(u64, &str)]) -> BTreeMap<u64, String> {
    names.iter().map(|(object, name)| (*object, (*name).to_owned())).collect()
}

fn put(directory: &mut Directory, called: &str, token: u64) -> ObjectId {
    let writer = Writer { node: NodeId(1), incarnation: 1, token };
    let (size, copies, placement) = (Some(BYTES), 1, Placement::Policy);
    let reserve = Command::Reserve { name: name(called), size, copies, placement, writer };
    let Ok(Reply::Reserved { object, homes }) = ask(directory, &reserve) else { panic!("no room") };
    let homes = homes.iter().map(|home| home.node).collect();
    ask(directory, &Command::Seal { object, size: BYTES, digest: ContentDigest::default(), homes }).unwrap();
    object
}

fn rename(directory: &mut Directory, from: &str, to: &str, object: ObjectId, target: OnTarget) {
    let (from, to) = (name(from), name(to));
    ask(directory, &Command::Rename { from, to, object, target }).unwrap();
}

/// Epoch, names, objects whose names are not settled, and whether there are more.
type Told = (Epoch, BTreeMap<u64, String>, Vec<ObjectId>, bool);

fn held(directory: &mut Directory, as_of: Epoch, after: Option<ObjectId>) -> Told {
    let asked = Command::HeldNames { node: NodeId(1), as_of, after };
    let answer = ask(directory, &asked).unwrap();
    let Reply::HeldNames { as_of, names, unsettled, more, .. } = answer else { panic!("{answer:?}") };
    (as_of, names.into_iter().map(|(object, name)| (object.0, name.to_string())).collect(), unsettled, more)
}

#[test]
fn a_file_that_was_written_anew_while_its_node_was_away_is_the_new_one_whoever_comes_first() {
    let (old, new) = (found(1007, "file", 1007), found(1009, "file", 1009));
    let all = expected(&[(1007, "recovered/1007"), (1009, "file")]);
    let mut directory = pool();
    assert_eq!(adopt(&mut directory, 1, vec![old.clone()]), expected(&[(1007, "file")]));
    // The node of the later one is told what became of the earlier one.
    assert_eq!(adopt(&mut directory, 2, vec![new.clone()]), all);
    assert_eq!(names(&mut directory), all);
    let mut directory = pool();
    adopt(&mut directory, 2, vec![new]);
    assert_eq!(adopt(&mut directory, 1, vec![old]), expected(&[(1007, "recovered/1007")]));
    assert_eq!(names(&mut directory), all);
}

#[test]
fn an_older_object_that_was_renamed_in_place_of_a_newer_one_has_its_name() {
    // The second was put later, and its node was away when the first got its name.
    let (renamed, replaced) = (found(1007, "file", 1020), found(1009, "file", 1010));
    let all = expected(&[(1007, "file"), (1009, "recovered/1009")]);
    for order in [[&renamed, &replaced], [&replaced, &renamed]] {
        let mut directory = pool();
        for (node, found) in (1..).zip(order) {
            adopt(&mut directory, node, vec![found.clone()]);
        }
        assert_eq!(names(&mut directory), all);
    }
}

#[test]
fn of_two_copies_of_one_object_the_one_that_knows_more_says_its_name() {
    let (before, after) = (found(1007, "before", 1010), found(1007, "after", 1030));
    // While it had the first name nobody else had it, so this one had it earlier.
    let earlier = found(1009, "before", 1009);
    let all = expected(&[(1007, "after"), (1009, "recovered/1009")]);
    for order in [[&earlier, &before, &after], [&before, &earlier, &after], [&earlier, &after, &before]] {
        let mut directory = pool();
        for (node, found) in (1..).zip(order) {
            adopt(&mut directory, node, vec![found.clone()]);
        }
        assert_eq!(names(&mut directory), all, "{order:?}");
    }
}

#[test]
fn what_was_put_or_named_since_keeps_its_name() {
    let mut directory = pool();
    let put = put(&mut directory, "put", 1);
    adopt(&mut directory, 1, vec![found(1007, "one", 1007), found(1008, "two", 1008)]);
    rename(&mut directory, "one", "named", ObjectId(1007), OnTarget::Refuse);
    let later = vec![found(1017, "put", 2000), found(1018, "named", 2000), found(1019, "two", 2000)];
    adopt(&mut directory, 2, later);
    let all = [
        (put.0, "put"),
        (1007, "named"),
        (1008, "recovered/1008"),
        (1017, "recovered/1017"),
        (1018, "recovered/1018"),
        (1019, "two"),
    ];
    assert_eq!(names(&mut directory), expected(&all));
}

#[test]
fn epochs_that_are_given_behind_an_adoption_are_later_than_what_was_known() {
    let mut directory = pool();
    adopt(&mut directory, 1, vec![found(1007, "file", 5000)]);
    put(&mut directory, "another", 1);
    assert!(held(&mut directory, Epoch(0), None).0 > Epoch(5000));
    let bad = found(1008, "x", 1 << 61);
    let refused = DirectoryError::BadNumber { node: NodeId(1), object: bad.object, epoch: bad.as_of };
    let command = Command::Adopt { node: NodeId(1), incarnation: 1, found: vec![bad], former: Vec::new() };
    assert_eq!(ask(&mut directory, &command), Err(refused));
}

#[test]
fn a_node_is_told_of_renames_since_it_asked_and_of_all_names_where_they_are_not_remembered() {
    let mut directory = pool();
    let (one, two) = (put(&mut directory, "one", 1), put(&mut directory, "two", 2));
    let all = expected(&[(one.0, "one"), (two.0, "two")]);
    let (first, told, unsettled, more) = held(&mut directory, Epoch(0), None);
    assert_eq!((told, unsettled, more), (all.clone(), Vec::new(), false));
    rename(&mut directory, "one", "uno", one, OnTarget::Refuse);
    let (second, told, ..) = held(&mut directory, first, None);
    assert!(second > first);
    assert_eq!(told, expected(&[(one.0, "uno")]));
    // An exchange renames both, and what is removed is told as not settled until it is gone.
    rename(&mut directory, "uno", "two", one, OnTarget::Exchange(two));
    ask(&mut directory, &Command::Remove { name: name("uno"), object: Some(two) }).unwrap();
    let (third, told, unsettled, _) = held(&mut directory, second, None);
    assert_eq!((told, unsettled), (expected(&[(one.0, "two")]), vec![two]));
    // Behind an object all names are told, as they are to who knows those of an epoch that was never reached here.
    assert_eq!(held(&mut directory, third, Some(one)).1, BTreeMap::new());
    let beyond = Epoch(third.0 + 9);
    // Whoever was told does not have to keep it: the names may be those of an older store, about which somebody has to decide first.
    for _ in 0..2 {
        let (fourth, told, unsettled, more) = held(&mut directory, beyond, None);
        assert_eq!((told, unsettled, more), (expected(&[(one.0, "two")]), vec![two], false));
        assert!(fourth > beyond, "what comes is later than what an earlier store has told");
        assert_eq!(held(&mut directory, fourth, None), (fourth, BTreeMap::new(), vec![two], false));
    }
    put(&mut directory, "three", 3);
    assert!(held(&mut directory, beyond, None).0 > beyond);
    let bad = Command::HeldNames { node: NodeId(1), as_of: Epoch(u64::MAX), after: None };
    assert!(matches!(ask(&mut directory, &bad), Err(DirectoryError::BadNumber { .. })));
}

#[test]
fn a_copy_that_was_being_made_while_its_object_was_renamed_is_told_of_it() {
    let mut directory = pool();
    let object = put(&mut directory, "before", 1);
    let node = NodeId(2);
    // Heat copies are for other racks than those of the homes.
    let (rack, address) = (RackName::parse("b").unwrap(), "h:2".to_owned());
    let (capacity_bytes, incarnation) = (1 << 30, 2);
    ask(&mut directory, &Command::Join { name: None, node, rack, address, capacity_bytes, incarnation })
        .unwrap();
    let (after, objects) = (ObjectId(0), Vec::new());
    ask(&mut directory, &Command::NodeObjects { node, incarnation, after, objects, more: false }).unwrap();
    let copying = Command::AddHeatCopy { object, node, incarnation };
    let Ok(Reply::Copying { epoch, object: info }) = ask(&mut directory, &copying) else { panic!("no copy") };
    rename(&mut directory, "before", "after", object, OnTarget::Refuse);
    let asked = |as_of| Command::HeldNames { node, as_of, after: None };
    let answer = ask(&mut directory, &asked(Epoch(0))).unwrap();
    let Reply::HeldNames { as_of, names, unsettled, .. } = answer else { panic!("{answer:?}") };
    assert_eq!((names, unsettled), (Vec::new(), vec![object]));
    let digest = info.digest.unwrap();
    ask(&mut directory, &Command::ReplicaAdded { object, node, incarnation, epoch, digest }).unwrap();
    let answer = ask(&mut directory, &asked(as_of)).unwrap();
    let Reply::HeldNames { names, unsettled, .. } = answer else { panic!("{answer:?}") };
    assert_eq!((names, unsettled), (vec![(object, name("after"))], Vec::new()));
}

#[test]
fn who_knows_names_of_an_epoch_that_was_never_reached_is_told_that_they_are_older() {
    let mut directory = pool();
    put(&mut directory, "before", 1);
    let mut asked =
        |as_of| match ask(&mut directory, &Command::HeldNames { node: NodeId(1), as_of, after: None }) {
            Ok(Reply::HeldNames { as_of, names, all, older, .. }) => (as_of, names.len(), all, older),
            answer => panic!("{answer:?}"),
        };
    let (next, .., older) = asked(Epoch(1));
    assert!(!older);
    let (as_of, names, all, older) = asked(Epoch(1000));
    assert_eq!((names, all, older), (1, true, true));
    // Also of another one that asks when that has been passed.
    assert!(asked(Epoch(900)).3 && asked(Epoch(2000)).3);
    // All that is earlier than the one that was to be given next was given here.
    assert!(!asked(next).3 && asked(Epoch(next.0 + 1)).3);
    assert_eq!(asked(as_of), (as_of, 0, false, false));
}

#[test]
fn a_node_that_knows_names_of_the_last_epoch_that_is_believed_leaves_the_others_theirs() {
    let mut directory = pool();
    let object = put(&mut directory, "before", 1);
    let (as_of, ..) = held(&mut directory, Epoch((1 << 61) - 1), None);
    assert!(as_of.0 > 1 << 61, "{as_of:?}");
    rename(&mut directory, "before", "after", object, OnTarget::Refuse);
    let (as_of, told, ..) = held(&mut directory, as_of, None);
    assert_eq!(told, expected(&[(object.0, "after")]));
    let all = expected(&[(1007, "file")]);
    assert_eq!(adopt(&mut directory, 2, vec![found(1007, "file", as_of.0)]), all);
    let bad = Command::HeldNames { node: NodeId(1), as_of: Epoch(as_of.0 + (1 << 21)), after: None };
    assert!(matches!(ask(&mut directory, &bad), Err(DirectoryError::BadNumber { .. })));
}

#[test]
fn what_is_being_put_is_told_as_not_settled() {
    let mut directory = pool();
    let writer = Writer { node: NodeId(1), incarnation: 1, token: 1 };
    let (size, copies, placement) = (Some(BYTES), 1, Placement::Policy);
    let reserve = Command::Reserve { name: name("put"), size, copies, placement, writer };
    let Ok(Reply::Reserved { object, .. }) = ask(&mut directory, &reserve) else { panic!("no room") };
    let (_, told, unsettled, _) = held(&mut directory, Epoch(0), None);
    assert_eq!((told, unsettled), (BTreeMap::new(), vec![object]));
}

#[test]
fn many_names_come_in_parts() {
    let mut directory = pool();
    let count = u64::from(LIST_MAX) + 7;
    let put: BTreeSet<u64> =
        (0..count).map(|number| put(&mut directory, &format!("many/{number}"), number).0).collect();
    let (as_of, first, _, more) = held(&mut directory, Epoch(0), None);
    assert!(more);
    let last = ObjectId(*first.keys().next_back().unwrap());
    let (_, rest, _, more) = held(&mut directory, Epoch(0), Some(last));
    assert!(!more);
    assert_eq!(first.keys().chain(rest.keys()).copied().collect::<BTreeSet<_>>(), put);
    // So do renames: what the first part has no room for is found behind its last object.
    let renamed = Command::RenameFolder { from: name("many"), to: name("few"), object: None };
    ask(&mut directory, &renamed).unwrap();
    let (_, first, _, more) = held(&mut directory, as_of, None);
    assert!(more);
    let last = ObjectId(*first.keys().next_back().unwrap());
    let (_, rest, ..) = held(&mut directory, as_of, Some(last));
    assert_eq!(first.len() + rest.len(), put.len());
    assert!(first.values().chain(rest.values()).all(|name| name.starts_with("few/")));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn names_are_the_same_in_whatever_order_nodes_come(
        objects in prop::collection::vec((0..3_usize, prop::collection::vec(1000..1040_u64, NODES as usize)), 1..6),
        order in Just(vec![1, 2, 3]).prop_shuffle(),
        parts in 1..4_usize,
    ) {
        let called = |place: usize| ["a", "b/c", "d"][place];
        let number = |place: usize| 1000 + place as u64;
        let mut directory = pool();
        for node in order {
            let copies: Vec<Found> = objects.iter().enumerate()
                // Some nodes have no copy of some.
                .filter(|(_, (_, as_of))| !as_of[node as usize - 1].is_multiple_of(3))
                .map(|(place, (name, as_of))| found(number(place), called(*name), as_of[node as usize - 1]))
                .collect();
            for part in copies.chunks(parts) {
                adopt(&mut directory, node, part.to_vec());
            }
        }
        let latest = |as_of: &[u64]| as_of.iter().filter(|as_of| !as_of.is_multiple_of(3)).max().copied();
        let claims: Vec<(u64, u64, usize)> = objects.iter().enumerate()
            .filter_map(|(place, (name, as_of))| Some((latest(as_of)?, number(place), *name)))
            .collect();
        let all: BTreeMap<u64, String> = claims.iter().map(|(as_of, object, name)| {
            let best = claims.iter().filter(|(_, _, other)| other == name).max();
            let is_best = best == Some(&(*as_of, *object, *name));
            (*object, if is_best { called(*name).to_owned() } else { format!("recovered/{object}") })
        }).collect();
        prop_assert_eq!(names(&mut directory), all);
    }
}
