//! The memory from which a node gives programs what they allocate: nobody takes it away while they may.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[allow(dead_code, reason = "other tests use the rest")]
mod nodes;

use hinterland_proto::control::{AllocationKind, RenameTarget};
use nodes::{Nodes, PAGE, name};

const EBUSY: i32 = 16;

#[test]
fn memory_that_programs_allocate_is_not_removed_and_given_to_a_region() {
    let mut nodes = Nodes::with("segments", 2, 64, |options| options.segment_bytes = 8 * PAGE);
    let (near, far) = (nodes.pool(1), nodes.pool(0));
    let allocate = || near.allocate(4096, AllocationKind::Session).unwrap().0;
    let mine = allocate();
    near.write(mine, &[7; 64]).unwrap();
    let segment = near.list("segments/").unwrap()[0].name.clone();
    for pool in [&near, &far] {
        for refused in [
            pool.remove(&segment),
            pool.rename(&segment, &name("mine"), RenameTarget::Refuse),
            pool.rename(&name("other"), &segment, RenameTarget::Replace),
            pool.rename_folder(&name("segments"), &name("mine")),
        ] {
            let refused = refused.unwrap_err();
            assert!(refused.code() == EBUSY && refused.to_string().contains("hint:"), "{refused}");
        }
    }
    let region = near.create_region(&name("r"), 2 * PAGE, None).unwrap().address.unwrap().raw();
    let of_region = region..region + 2 * PAGE;
    assert!(!of_region.contains(&mine.raw()) && !of_region.contains(&allocate().raw()));
    let mut found = [0; 64];
    near.read(mine, &mut found).unwrap();
    assert_eq!(found, [7; 64]);
    // Other names below the folder are as good as any, and a node that is stopped gives nothing to anybody.
    far.create_region(&name("segments/own"), PAGE, None).unwrap();
    far.remove(&name("segments/own")).unwrap();
    drop(near);
    nodes.all[1].stop();
    far.remove(&segment).unwrap();
}
