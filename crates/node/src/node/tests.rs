//! What holds for a whole node, seen from inside.

use super::*;
use crate::regions::create_near;
use hinterland_directory::{MemberState, Reply};
use hinterland_types::{Epoch, ObjectName, RackName};

const LEASE: Duration = Duration::from_secs(1);

fn options(folder: &Path, name: &str, join: Option<String>) -> NodeOptions {
    let (rack, root) = (RackName::parse(name).unwrap(), folder.join(name));
    // Nobody else is told the port.
    let listen = "127.0.0.1:0".parse().unwrap();
    let mut options =
        NodeOptions::new(name.parse().unwrap(), rack, root.join("socket"), root.join("state"), listen);
    options.backing = BackingChoice::Folder(root.join("memory"));
    options.capacity_bytes = 64 << 20;
    options.kv_capacity_bytes = 16 << 20;
    options.lease = LEASE;
    options.join = join;
    fs::create_dir_all(root.join("memory")).unwrap();
    options
}

fn state_of(node: &Node, directory: &Node) -> MemberState {
    let Ok(Reply::Members(members)) = directory.core.directory.apply(&Command::Members) else {
        panic!("no members")
    };
    members.into_iter().find(|member| member.node == node.core.own).unwrap().state
}

#[test]
fn a_node_that_waits_for_copies_of_its_life_before_keeps_its_lease() {
    let folder = std::env::temp_dir().join(format!("hl-node-{}", std::process::id()));
    let first = Node::start(options(&folder, "a", None)).unwrap();
    let options = options(&folder, "b", Some(first.core_address()));
    let second = Node::start(options.clone()).unwrap();
    let marker = second.backing.folder.join("pages-shared");
    second.stop();
    // It had given away copies of pages, which count for two of these leases.
    fs::create_dir_all(marker.parent().unwrap()).unwrap();
    fs::write(&marker, "").unwrap();
    let second = Node::start(options).unwrap();
    assert!(!marker.exists(), "or this shows nothing");
    assert_eq!(state_of(&second, &first), MemberState::Up);
    second.stop();
    first.stop();
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_region_that_was_taken_for_removed_and_is_found_again_ends_with_its_removal() {
    let folder = std::env::temp_dir().join(format!("hl-node-region-{}", std::process::id()));
    let node = Node::start(options(&folder, "a", None)).unwrap();
    let core = &node.core;
    let object = create_near(core, &ObjectName::parse("region").unwrap(), 2 << 20).unwrap().object;
    // A directory with an older store does not know it, before the newer one is put back.
    core.regions.get(core, object).unwrap().close();
    let region = core.regions.get(core, object).unwrap();
    assert!(!region.is_gone() && region.is_whole());
    core.holdings.drop_object(object);
    assert!(region.is_gone(), "programs go on with pages that are no more");
    assert!(core.regions.known(object).is_none());
    node.stop();
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn of_a_region_that_goes_while_its_part_is_made_no_other_part_is_left() {
    let folder = std::env::temp_dir().join(format!("hl-node-part-{}", std::process::id()));
    let first = Node::start(options(&folder, "a", None)).unwrap();
    let second = Node::start(options(&folder, "b", Some(first.core_address()))).unwrap();
    let object = create_near(&first.core, &ObjectName::parse("region").unwrap(), 4 << 20).unwrap().object;
    let core = &second.core;
    let incarnation = core.membership.incarnation.get();
    for round in 0..300 {
        let region = core.regions.get(core, object).unwrap();
        assert!(region.part().is_none(), "or this shows nothing");
        std::thread::scope(|scope| {
            // Two pages come at once to a node that had none, and it hears that the region is removed.
            for _ in 0..2 {
                scope.spawn(|| drop(core.regions.part_as_told(core, &region, Epoch(1 << 20), incarnation)));
            }
            scope.spawn(|| {
                while core.holdings.find(object).is_err() && region.part().is_none() {
                    std::hint::spin_loop();
                }
                core.holdings.drop_object(object);
            });
        });
        let left = core.holdings.find(object).ok();
        assert!(left.is_none(), "round {round}: a part that the directory takes for gone");
        region.close();
    }
    second.stop();
    first.stop();
    fs::remove_dir_all(folder).unwrap();
}
