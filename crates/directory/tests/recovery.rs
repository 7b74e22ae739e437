//! Recovery: what a damaged or contradictory store is refused for.
#![allow(clippy::unwrap_used)] // a test says by its panic where it failed

use hinterland_directory::{
    Command, ContentDigest, Contradiction, Directory, FormerPool, Held, Mutation, Placement, Record,
    RecoverError, Reply, RequestId, Settings, Table, Writer,
};
use hinterland_types::{Epoch, NodeId, NodeName, ObjectId, ObjectName, PageNumber, RackName};

const MIB: u64 = 1 << 20;
/// The first two objects of a pool.
const X: ObjectId = ObjectId(16);
const Y: ObjectId = ObjectId(17);

/// Records of a pool with one node, the sealed objects `x` (page 1) and `y` (page 2).
fn records() -> Vec<Record> {
    let mut directory = Directory::recover(Settings::default(), 0, Vec::new()).unwrap();
    let mut records: Vec<Record> = Vec::new();
    let mut apply = |command| {
        let (reply, mutations) = directory.apply(0, &command).unwrap();
        for mutation in mutations {
            records.retain(|record| (record.table, &record.key) != (mutation.table, &mutation.key));
            let value = mutation.value;
            records.extend(value.map(|value| Record { table: mutation.table, key: mutation.key, value }));
        }
        reply
    };
    let node = NodeId(3);
    let (rack, address) = (RackName::parse("a").unwrap(), "h:1".to_owned());
    apply(Command::Join { name: None, node, rack, address, capacity_bytes: 64 * MIB, incarnation: 1 });
    apply(Command::NodeObjects { node, incarnation: 1, after: ObjectId(0), objects: vec![], more: false });
    for name in ["x", "y"] {
        let name = ObjectName::parse(name).unwrap();
        let writer = Writer { node, incarnation: 1, token: 1 };
        let (size, placement) = (Some(MIB), Placement::Policy);
        let reply = apply(Command::Reserve { name, size, copies: 1, placement, writer });
        let Reply::Reserved { object, .. } = reply else { panic!() };
        let digest = ContentDigest::default();
        apply(Command::Seal { object, size: MIB, digest, homes: vec![node] });
    }
    records
}

fn recover(records: Vec<Record>) -> Result<Directory, RecoverError> {
    Directory::recover(Settings::default(), 0, records)
}

fn value(records: &mut [Record], table: Table, key: &[u8]) -> Vec<u8> {
    find(records, table, key).value.clone()
}

fn find<'a>(records: &'a mut [Record], table: Table, key: &[u8]) -> &'a mut Record {
    records.iter_mut().find(|record| record.table == table && record.key == key).unwrap()
}

fn object_key(object: ObjectId) -> Vec<u8> {
    object.0.to_be_bytes().to_vec()
}

#[test]
fn whole_records_recover() {
    assert!(recover(records()).unwrap().check().is_ok());
}

#[test]
fn two_owners_of_a_page_are_refused() {
    let mut records = records();
    let first = value(&mut records, Table::Objects, &object_key(X));
    let second = find(&mut records, Table::Objects, &object_key(Y));
    // The same record but for the name: `x` and `y` are one byte long.
    second.value = first.iter().map(|byte| if *byte == b'x' { b'y' } else { *byte }).collect();
    let error = recover(records).unwrap_err();
    assert!(
        matches!(&error, RecoverError::Contradiction(Contradiction::TwoOwners { object: Y, .. })),
        "{error}"
    );
}

#[test]
fn a_name_that_leads_to_no_object_is_refused() {
    let mut records = records();
    records.push(Record { table: Table::Names, key: b"z".to_vec(), value: vec![9] });
    let error = recover(records).unwrap_err();
    let name = ObjectName::parse("z").unwrap();
    assert_eq!(error, Contradiction::NameWithoutObject { name, object: ObjectId(9) }.into());
}

#[test]
fn an_object_whose_name_is_gone_is_refused() {
    let mut records = records();
    records.retain(|record| record.key != b"y");
    let name = ObjectName::parse("y").unwrap();
    assert_eq!(recover(records).unwrap_err(), Contradiction::ObjectWithoutName { object: Y, name }.into());
}

#[test]
fn a_name_that_leads_to_another_object_is_refused() {
    let mut records = records();
    find(&mut records, Table::Names, b"y").value = vec![16];
    assert!(matches!(
        recover(records).unwrap_err(),
        RecoverError::Contradiction(Contradiction::NameWithoutObject { .. })
    ));
}

#[test]
fn pages_and_objects_that_disagree_are_refused() {
    let mut less = records();
    less.retain(|record| record.table != Table::Pages || record.key != 2u32.to_be_bytes());
    assert_eq!(recover(less).unwrap_err(), Contradiction::OwnerWithoutPage { object: Y }.into());
    let mut more = records();
    let copy = value(&mut more, Table::Pages, &2u32.to_be_bytes());
    more.push(Record { table: Table::Pages, key: 7u32.to_be_bytes().to_vec(), value: copy });
    let page = PageNumber::new(7).unwrap();
    assert_eq!(recover(more).unwrap_err(), Contradiction::PageWithoutOwner { page, object: Y }.into());
}

#[test]
fn a_home_that_is_no_member_is_refused() {
    let mut records = records();
    records.retain(|record| record.table != Table::Members);
    assert_eq!(
        recover(records).unwrap_err(),
        Contradiction::HomeWithoutMember { object: X, node: NodeId(3) }.into()
    );
}

#[test]
fn an_id_that_would_be_given_again_is_refused() {
    let mut records = records();
    find(&mut records, Table::Meta, b"meta").value = vec![1, 17, 9];
    assert_eq!(recover(records).unwrap_err(), Contradiction::CounterBehind { object: Y }.into());
}

#[test]
fn another_format_and_a_missing_meta_record_are_refused() {
    let mut other = records();
    find(&mut other, Table::Meta, b"meta").value = vec![6, 1, 1, 1, 1];
    assert_eq!(recover(other).unwrap_err(), RecoverError::OtherFormat { found: 6 });
    let mut none = records();
    none.retain(|record| record.table != Table::Meta);
    assert_eq!(recover(none).unwrap_err(), RecoverError::NoMeta);
}

#[test]
fn a_store_of_a_later_release_is_refused_for_its_format_whatever_else_it_has() {
    let mut later = records();
    find(&mut later, Table::Meta, b"meta").value = vec![9, 1];
    // Before the format in the store's order, and with what no release of today can read.
    let unknown = |table, key: &[u8]| Record { table, key: key.to_vec(), value: vec![255; 3] };
    later.insert(0, unknown(Table::Meta, b"another"));
    later.push(unknown(Table::Objects, b"longer than a number"));
    let error = recover(later).unwrap_err();
    assert_eq!(error, RecoverError::OtherFormat { found: 9 });
    let words = error.to_string();
    assert!(words.contains("format 9") && words.contains("1 to 5"), "{words}");
    assert!(words.contains("run the release that wrote it"), "{words}");
}

/// Records of a store that a command has changed.
fn changed(records: Vec<Record>, command: &Command) -> Vec<Record> {
    let (_, mutations) = recover(records.clone()).unwrap().apply(0, command).unwrap();
    written(records, mutations)
}

fn written(mut records: Vec<Record>, mutations: Vec<Mutation>) -> Vec<Record> {
    for mutation in mutations {
        records.retain(|record| (record.table, &record.key) != (mutation.table, &mutation.key));
        let value = mutation.value;
        records.extend(value.map(|value| Record { table: mutation.table, key: mutation.key, value }));
    }
    records.sort_by(|one, other| (one.table, &one.key).cmp(&(other.table, &other.key)));
    records
}

/// Keys of the first table in the store's order, and the format.
fn meta(records: &mut [Record]) -> (Vec<String>, u8) {
    let meta = records.iter().filter(|record| record.table == Table::Meta);
    let keys = meta.map(|record| String::from_utf8(record.key.clone()).unwrap()).collect();
    (keys, value(records, Table::Meta, b"meta")[0])
}

/// A node that has an object of which this store knows nothing, and one that was in another pool.
fn evidence() -> (Command, Command) {
    let (node, incarnation) = (NodeId(3), 1);
    let held = Held { object: ObjectId(99), epoch: Epoch(99), digest: None };
    let told =
        Command::NodeObjects { node, incarnation, after: ObjectId(0), objects: vec![held], more: false };
    let former = vec![FormerPool { pool: 7, last: ObjectId(40) }];
    (told, Command::Adopt { node, incarnation, found: Vec::new(), former })
}

#[test]
fn a_store_has_the_format_that_says_which_releases_can_read_it() {
    let mut plain = records();
    assert_eq!(meta(&mut plain), (vec!["meta".to_owned()], 3));
    let (told, adopt) = evidence();
    for command in [&told, &adopt] {
        let mut newer = changed(plain.clone(), command);
        let (keys, format) = meta(&mut newer);
        assert_eq!((keys[0].as_str(), format), ("meta", 4), "{keys:?}: the format comes first");
        assert!(keys.len() > 1, "{keys:?}");
        assert!(
            recover(newer.clone()).unwrap().same_records(&recover(changed(newer, &Command::Tick)).unwrap())
        );
    }
    // What needs no later release stays as it is.
    let remove = Command::Remove { name: ObjectName::parse("x").unwrap(), object: None };
    assert_eq!(meta(&mut changed(plain, &remove)).1, 3);
}

/// A member that says what it is called joins in this life: its record and the format.
fn named(directory: &mut Directory, incarnation: u64, name: Option<&str>) -> Vec<Mutation> {
    let (rack, address) = (RackName::parse("a").unwrap(), "h:1".to_owned());
    let name = name.map(|name| NodeName::parse(name).unwrap());
    let join = Command::Join { node: NodeId(3), rack, address, capacity_bytes: 64 * MIB, incarnation, name };
    directory.apply(0, &join).unwrap().1
}

/// What members are called, by a directory.
fn names(directory: &mut Directory) -> Vec<Option<String>> {
    let Reply::Members(members) = directory.apply(0, &Command::Members).unwrap().0 else { panic!() };
    members.into_iter().map(|member| member.name.map(Into::into)).collect()
}

#[test]
fn what_members_are_called_is_kept_and_a_store_without_names_is_read_as_it_is() {
    let mut older = records();
    let mut directory = recover(older.clone()).unwrap();
    assert_eq!(names(&mut directory), [None]);
    assert_eq!(meta(&mut older).1, 3, "an older release reads it as well");
    let mut newer = older.clone();
    for mutation in named(&mut directory, 2, Some("big-1")) {
        newer.retain(|record| (record.table, &record.key) != (mutation.table, &mutation.key));
        let value = mutation.value;
        newer.extend(value.map(|value| Record { table: mutation.table, key: mutation.key, value }));
    }
    assert_eq!(meta(&mut newer).1, 5, "and this one an older release does not");
    let mut again = recover(newer.clone()).unwrap();
    assert_eq!(names(&mut again), [Some("big-1".to_owned())]);
    named(&mut again, 3, Some("big-2"));
    assert_eq!(names(&mut again), [Some("big-2".to_owned())]);
    named(&mut again, 4, None);
    assert_eq!(names(&mut again), [None], "a node of an older release has joined with its state");
    let key = NodeId(3).0.to_be_bytes();
    for bad in [b"\x02".as_slice(), b"\x01/", b"\x00", b"\x01ax"] {
        let mut broken = newer.clone();
        find(&mut broken, Table::Members, &key).value =
            [value(&mut older, Table::Members, &key), bad.to_vec()].concat();
        assert!(
            matches!(recover(broken), Err(RecoverError::Unreadable { table: Table::Members, .. })),
            "{bad:?}"
        );
    }
}

#[test]
fn a_store_with_several_runs_of_numbers_in_doubt_has_a_format_of_its_own() {
    let reserve = |name: &str| {
        let (name, writer) =
            (ObjectName::parse(name).unwrap(), Writer { node: NodeId(3), incarnation: 1, token: 2 });
        Command::Reserve { name, size: Some(MIB), copies: 1, placement: Placement::Policy, writer }
    };
    let (told, _) = evidence();
    // Of the first nobody knows how it ended, and the second goes on.
    let going_on = changed(changed(records(), &reserve("z")), &reserve("z2"));
    let newer = changed(changed(going_on, &told), &Command::Abort { object: ObjectId(18) });
    assert_eq!(value(&mut newer.clone(), Table::Meta, b"meta-doubted"), [18, 19, 20, 100]);
    assert_eq!(meta(&mut newer.clone()).1, 5);
    recover(newer.clone()).unwrap().check().unwrap();
    let told_again = changed(newer.clone(), &told);
    assert!(recover(told_again).unwrap().same_records(&recover(newer).unwrap()));
}

/// The same records as a release wrote them that had no format for them.
fn before_the_format(newer: &[Record]) -> Vec<Record> {
    let mut older = newer.to_vec();
    for record in older.iter_mut().filter(|record| record.table == Table::Meta) {
        if let Some(key) = record.key.strip_prefix(b"meta-") {
            record.key = key.to_vec();
        }
    }
    find(&mut older, Table::Meta, b"meta").value[0] = 3;
    older
}

#[test]
fn records_that_stood_before_the_format_are_read_and_go_behind_it_with_the_first_change() {
    let (told, adopt) = evidence();
    let newer = changed(changed(records(), &told), &adopt);
    let older = before_the_format(&newer);
    let mut still = changed(older.clone(), &Command::Members);
    assert_eq!(meta(&mut still).1, 3, "a question writes nothing");
    let remove = Command::Remove { name: ObjectName::parse("x").unwrap(), object: None };
    let (mut moved, expected) = (changed(older, &remove), changed(newer, &remove));
    assert_eq!(meta(&mut moved).0, ["meta", "meta-doubted", "meta-doubted-epochs", "meta-former"]);
    assert_eq!(moved, expected, "nothing else differs");
}

#[test]
fn a_request_of_which_nothing_but_its_answer_is_new_is_a_first_change_as_well() {
    let (told, adopt) = evidence();
    let newer = changed(changed(records(), &told), &adopt);
    let older = before_the_format(&newer);
    let id = RequestId { node: NodeId(3), incarnation: 1, slot: 0, number: 1 };
    let once = |records: &[Record]| {
        let plan = recover(records.to_vec()).unwrap().plan_once(0, id, &Command::Members).unwrap();
        written(records.to_vec(), plan.mutations())
    };
    let (moved, expected) = (once(&older), once(&newer));
    assert_eq!(meta(&mut moved.clone()).0, ["meta", "meta-doubted", "meta-doubted-epochs", "meta-former"]);
    assert_eq!(moved, expected, "nothing else differs");
    assert_ne!(moved, newer, "there is an answer");
}

#[test]
fn a_record_cut_short_or_too_long_is_refused_with_its_place() {
    for place in 0..records().len() {
        let mut cut = records();
        cut[place].value.pop();
        let error = recover(cut).unwrap_err();
        assert!(matches!(error, RecoverError::Unreadable { .. }), "record {place}: {error}");
        let mut long = records();
        long[place].value.push(0);
        let error = recover(long).unwrap_err();
        assert!(matches!(error, RecoverError::Unreadable { .. }), "record {place}: {error}");
        let mut key = records();
        key[place].key.push(0);
        assert!(recover(key).is_err());
    }
}

#[test]
fn a_flipped_bit_is_refused_or_harmless_and_never_a_panic() {
    for place in 0..records().len() {
        for bit in 0..records()[place].value.len() * 8 {
            let mut flipped = records();
            flipped[place].value[bit / 8] ^= 1 << (bit % 8);
            if let Ok(directory) = recover(flipped) {
                directory.check().unwrap();
            }
        }
    }
}
