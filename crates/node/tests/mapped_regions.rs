//! Regions that programs map by plain pointers while other racks use their pages.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[allow(dead_code, reason = "other tests use the rest")]
mod nodes;

use hinterland_types::{GlobalAddress, Rights};
use nodes::{Nodes, PAGE, name};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn at(first: GlobalAddress, offset: u64) -> GlobalAddress {
    first.checked_add(offset).unwrap()
}

#[test]
fn a_region_is_mapped_while_others_ask_for_copies_of_its_pages() {
    let nodes = Nodes::new("mapping", 2, 40);
    let first = nodes.region(0, 16);
    let stop = AtomicBool::new(false);
    let copies = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (nodes, stop, copies) = (&nodes, &stop, &copies);
        scope.spawn(move || {
            let user = nodes.all[1].pool();
            for page in (0..16).cycle() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                copies
                    .fetch_add(u64::from(user.copy_page(at(first, page * PAGE)).is_ok()), Ordering::Relaxed);
            }
        });
        let home = nodes.all[0].pool();
        let failed = (0..60).find_map(|_| {
            let before = copies.load(Ordering::Relaxed);
            let object = home.open(&name("region-0"), Rights::READ | Rights::WRITE).unwrap();
            let failed = object.memory().err();
            drop(object);
            let until = Instant::now() + Duration::from_millis(500);
            while failed.is_none() && copies.load(Ordering::Relaxed) < before + 8 && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            failed
        });
        stop.store(true, Ordering::Relaxed);
        assert!(failed.is_none(), "{}", failed.unwrap());
    });
    assert!(copies.load(Ordering::Relaxed) > 20);
}
