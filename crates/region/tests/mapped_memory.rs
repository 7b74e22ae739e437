//! Memory of mapped objects against a node that is real in all but its objects: faults, parts, notices, forks, deaths.

// A failure in a function that a test calls is a failed test.
#![allow(clippy::unwrap_used)]

mod stub_node;

use hinterland_proto::control::Advice;
use hinterland_region::{Access, MapOptions, Options, Region, RegionError, Regions, process};
use hinterland_types::{ByteRange, ObjectId, ObjectName};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use stub_node::{StubNode, address_of, byte_of};

const MIB: u64 = 1 << 20;

#[test]
fn stub_node_main() {
    stub_node::run_if_asked();
}

struct Setup {
    node: StubNode,
    regions: Regions,
    object: u64,
    socket: PathBuf,
}

fn new_object() -> u64 {
    static OBJECTS: AtomicU64 = AtomicU64::new(1);
    OBJECTS.fetch_add(1, Ordering::SeqCst)
}

/// A node with one object, and a connection to it.
fn setup(bytes: u64, kind: &str, grace_ms: u64) -> Setup {
    let object = new_object();
    let socket = std::env::temp_dir().join(format!("hinterland-region-{}-{object}.sock", std::process::id()));
    let mut node = StubNode::start("stub_node_main", &socket);
    node.add(object, bytes, kind);
    let options = Options {
        socket: Some(socket.clone()),
        grace: Duration::from_millis(grace_ms),
        ..Options::default()
    };
    let regions = Regions::connect(&options).unwrap();
    Setup { node, regions, object, socket }
}

impl Setup {
    fn map(&self, options: MapOptions) -> Region {
        self.regions.map(ObjectId(self.object), options).unwrap()
    }

    /// The node comes back, with the object or without.
    fn restart(&mut self, bytes: Option<u64>) {
        self.restart_with(&bytes.map(|bytes| format!("{} {bytes} base", self.object)).unwrap_or_default());
    }

    /// The node comes back with these objects.
    fn restart_with(&mut self, objects: &str) {
        self.node = StubNode::start_with("stub_node_main", &self.socket, objects);
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn load(region: &Region, at: u64) -> u8 {
    // SAFETY: the tests ask only for bytes of the region.
    unsafe { region.pointer().as_ptr().add(at as usize).read_volatile() }
}

fn store(region: &Region, at: u64, value: u8) {
    // SAFETY: as in `load`, on regions mapped for writing.
    unsafe { region.pointer().as_ptr().add(at as usize).write_volatile(value) }
}

/// Compares a byte of every page, and returns the offset of the first that is wrong.
fn first_wrong(region: &Region, object: u64) -> Option<u64> {
    let start = region.range().offset();
    (0..region.bytes()).step_by(4096).find(|at| load(region, *at) != byte_of(object, start + at))
}

/// Whether the kernel can read a byte for us: where a load would be a signal, it says so.
fn is_readable(pointer: *const u8) -> bool {
    let mut pipe = [0; 2];
    // SAFETY: the kernel writes two descriptors, and checks the pointer.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        let written = libc::write(pipe[1], pointer.cast(), 1);
        libc::close(pipe[0]);
        libc::close(pipe[1]);
        written == 1
    }
}

/// What the first program answers that was connected: children that other tests fork connect for a while too.
fn order_first(node: &mut StubNode, text: &str) -> String {
    let answers = node.order(text);
    let end = answers.find("}, ").map_or(answers.len() - 1, |end| end + 1);
    answers[1..end].to_owned()
}

/// Runs a check in a forked child; true if it held.
fn in_child(check: impl FnOnce() -> bool) -> bool {
    wait_for(fork(check)) == 0
}

fn fork(check: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: the child runs the check and ends without returning.
    match unsafe { libc::fork() } {
        0 => {
            let held = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).unwrap_or_else(|why| {
                let why = why.downcast_ref::<String>().map_or("no word of why", String::as_str);
                // What a child prints is kept for the test, and ends with the child.
                // SAFETY: writes the bytes of a string.
                unsafe { libc::write(2, why.as_ptr().cast(), why.len()) };
                false
            });
            // SAFETY: ends the child without the handlers of the test program.
            unsafe { libc::_exit(i32::from(!held)) }
        }
        child => child,
    }
}

/// The wait status of a child; one that does not end in 20 seconds is killed.
fn wait_for(child: libc::pid_t) -> i32 {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut status = 0;
    // SAFETY: the child is ours; the kernel writes the status.
    unsafe {
        while libc::waitpid(child, &mut status, libc::WNOHANG) == 0 {
            if Instant::now() > deadline {
                libc::kill(child, libc::SIGKILL);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    status
}

#[test]
fn an_object_of_another_rack_reads_right_at_its_place_in_the_window() {
    let mut setup = setup(3 * MIB + 100, "base", 1000);
    let region = setup.map(MapOptions::default());
    assert!(region.is_armed() && region.is_symmetric());
    assert_eq!(region.pointer().addr().get() as u64, address_of(setup.object).window_pointer());
    assert_eq!(region.bytes(), 3 * MIB + 100);
    assert_eq!(setup.node.fills(), 0);
    assert_eq!(load(&region, 5), byte_of(setup.object, 5));
    assert_eq!(setup.node.fills(), 1);
    assert_eq!(first_wrong(&region, setup.object), None);
    assert_eq!(setup.node.fills(), 49);
}

#[test]
fn a_system_call_may_read_what_is_not_there_yet() {
    let setup = setup(MIB, "base", 1000);
    let region = setup.map(MapOptions::default());
    assert!(is_readable(region.pointer().as_ptr()));
    let locked = 4 * 4096;
    // SAFETY: the range is mapped.
    assert_eq!(unsafe { libc::mlock(region.pointer().as_ptr().cast(), locked) }, 0);
}

#[test]
fn an_object_of_this_rack_needs_no_faults_and_outlives_the_node() {
    let mut setup = setup(MIB, "local", 100);
    let region = setup.map(MapOptions::default());
    assert!(!region.is_armed() && region.is_symmetric());
    setup.node.kill();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(first_wrong(&region, setup.object), None);
    assert!(in_child(|| first_wrong(&region, setup.object).is_none()));
}

#[test]
fn a_second_mapping_goes_elsewhere_and_shows_the_same_bytes() {
    let mut setup = setup(MIB, "base", 1000);
    let first = setup.map(MapOptions::default());
    let second = setup
        .regions
        .map(ObjectName::parse(&format!("object-{}", setup.object)).unwrap(), MapOptions::default());
    let second = second.unwrap();
    assert!(first.is_symmetric() && !second.is_symmetric());
    assert_eq!(first_wrong(&first, setup.object), None);
    assert_eq!(first_wrong(&second, setup.object), None);
    assert_eq!(setup.node.fills(), 16, "one fill serves both");
}

#[test]
fn a_part_may_begin_at_any_byte() {
    let setup = setup(MIB, "base", 1000);
    let region = setup.map(MapOptions { offset: 70_001, bytes: Some(9000), ..MapOptions::default() });
    assert!(region.is_symmetric());
    for at in [0, 1, 4095, 8999] {
        assert_eq!(load(&region, at), byte_of(setup.object, 70_001 + at));
    }
    let refused = setup
        .regions
        .map(ObjectId(setup.object), MapOptions { offset: MIB - 1, bytes: Some(2), ..MapOptions::default() });
    assert!(matches!(refused, Err(RegionError::Range(_))));
}

#[test]
fn behind_the_end_the_last_page_is_zero_and_the_next_is_sigbus() {
    let setup = setup(5000, "base", 1000);
    let options = MapOptions { bytes: Some(3 * 4096), beyond_end: true, ..MapOptions::default() };
    let region = setup.map(options);
    assert_eq!(load(&region, 4999), byte_of(setup.object, 4999));
    assert_eq!(load(&region, 5000), 0);
    assert_eq!(load(&region, 8191), 0);
    assert!(!is_readable(region.pointer().as_ptr().wrapping_add(8192)));
    let touch = fork(|| load(&region, 8192) == 0);
    assert_eq!(wait_for(touch), libc::SIGBUS);
}

#[test]
fn an_evicted_page_comes_back_with_the_same_bytes() {
    let mut setup = setup(MIB, "base", 1000);
    let region = setup.map(MapOptions::default());
    assert_eq!(first_wrong(&region, setup.object), None);
    assert_eq!(setup.node.order(&format!("evict {}", setup.object)), "done");
    assert_eq!(first_wrong(&region, setup.object), None);
    assert_eq!(setup.node.fills(), 32);
}

#[test]
fn unmapping_a_part_leaves_the_rest_served() {
    let mut setup = setup(MIB, "base", 1000);
    let region = setup.map(MapOptions::default());
    let start = region.pointer().addr().get() as u64;
    assert!(process::unmap(start + 8192, 4096).unwrap().is_ok());
    assert!(process::unmap(start + 8192, 4096).is_none());
    assert_eq!(process::share(start, MIB), process::Share::Part);
    assert_eq!(process::share(start, 8192), process::Share::Whole);
    assert!(!is_readable(region.pointer().as_ptr().wrapping_add(8192)));
    assert_eq!(load(&region, 4096), byte_of(setup.object, 4096));
    assert_eq!(load(&region, MIB - 1), byte_of(setup.object, MIB - 1));
    assert_eq!(setup.node.order("requests").matches("Unregister").count(), 0);
    assert!(process::unmap(start, MIB).unwrap().is_ok());
    assert_eq!(setup.node.order("requests").matches("Unregister").count(), 1);
    drop(region);
    assert_eq!(setup.node.order("requests"), "");
}

#[test]
fn a_shared_mapping_cannot_be_made_writable_and_a_private_one_can() {
    let mut setup = setup(MIB, "base", 1000);
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let shared = setup.map(MapOptions::default());
    let address = shared.pointer().addr().get() as u64;
    let refused = process::protect(address, 4096, both).unwrap().unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EACCES));
    assert!(process::protect(address, 4096, libc::PROT_NONE).unwrap().is_ok());
    assert!(!is_readable(shared.pointer().as_ptr()));
    let private = setup.map(MapOptions { access: Access::PrivateWrite, ..MapOptions::default() });
    store(&private, 70_000, 3);
    assert_eq!(load(&private, 70_000), 3);
    assert_eq!(load(&private, 70_001), byte_of(setup.object, 70_001));
    assert_eq!(load(&shared, 70_000), byte_of(setup.object, 70_000));
    setup.node.order(&format!("evict {}", setup.object));
    assert_eq!(load(&private, 70_000), 3, "a private page is not the node's to evict");
}

#[test]
fn the_node_learns_which_ranges_are_touched_and_cannot_ask_about_others() {
    let mut setup = setup(MIB, "base", 1000);
    let region = setup.map(MapOptions { access: Access::PrivateWrite, ..MapOptions::default() });
    let start = region.pointer().addr().get() as u64;
    assert_eq!(
        order_first(&mut setup.node, &format!("touched {start} 65536")),
        "Touched { id: 8, touched: [false] }"
    );
    load(&region, 0);
    assert_eq!(
        order_first(&mut setup.node, &format!("touched {start} 65536")),
        "Touched { id: 8, touched: [true] }"
    );
    assert_eq!(order_first(&mut setup.node, &format!("unmap {start} 65536")), "Seen { id: 7 }");
    assert_eq!(
        order_first(&mut setup.node, &format!("touched {start} 65536")),
        "Touched { id: 8, touched: [false] }"
    );
    assert_eq!(load(&region, 0), byte_of(setup.object, 0));
    assert_eq!(setup.node.fills(), 1, "the data stayed");
    store(&region, 1, 200);
    order_first(&mut setup.node, &format!("unmap {start} 65536"));
    assert_eq!(load(&region, 1), 200, "what the program wrote stays");
    let own = vec![9u8; 1 << 16];
    let order = format!("unmap {} {}", own.as_ptr().addr() & !4095, own.len());
    assert_eq!(order_first(&mut setup.node, &order), "Seen { id: 7 }");
    assert!(own.iter().all(|byte| *byte == 9));
    assert_eq!(
        order_first(&mut setup.node, &format!("unmap {} {}", u64::MAX - 4095, 8192)),
        "Seen { id: 7 }"
    );
    assert_eq!(order_first(&mut setup.node, "lost a test says so"), "Seen { id: 0 }");
}

#[test]
fn advice_reaches_the_node_as_a_range_of_the_object() {
    let mut setup = setup(MIB, "base", 1000);
    let region = setup.map(MapOptions { offset: 8192, ..MapOptions::default() });
    region.advise(ByteRange::new(4096, 8192).unwrap(), Advice::WillNeed).unwrap();
    assert!(setup.node.order("requests").contains(
        "Advise { handle: Handle(0), range: ByteRange { offset: 12288, bytes: 8192 }, advice: WillNeed }"
    ));
    assert!(region.advise(ByteRange::new(MIB, 1).unwrap(), Advice::Normal).is_err());
}

#[test]
fn a_restarted_node_brings_back_memory_that_threads_wait_for() {
    let mut setup = setup(4 * MIB, "base", 10_000);
    let region = Arc::new(setup.map(MapOptions { access: Access::PrivateWrite, ..MapOptions::default() }));
    let start = region.pointer().addr().get() as u64;
    assert!(process::unmap(start + 2 * MIB, 4096).unwrap().is_ok());
    assert_eq!(load(&region, 0), byte_of(setup.object, 0));
    store(&region, 3 * MIB, 77);
    setup.node.kill();
    let touch = |at: u64| {
        let region = Arc::clone(&region);
        std::thread::spawn(move || load(&region, at))
    };
    let waiting: Vec<_> =
        (0..8).map(|index| (index * 262_144 + 65_536, touch(index * 262_144 + 65_536))).collect();
    std::thread::sleep(Duration::from_millis(200));
    assert!(waiting.iter().all(|(_, thread)| !thread.is_finished()), "nothing is read while no node serves");
    setup.restart(Some(4 * MIB));
    for (at, thread) in waiting {
        assert_eq!(thread.join().unwrap(), byte_of(setup.object, at), "{at}");
    }
    assert_eq!(load(&region, 3 * MIB), 77, "what the program wrote is not lost with the node");
    assert_eq!(load(&region, 3 * MIB + 1), byte_of(setup.object, 3 * MIB + 1));
    assert!(!is_readable(region.pointer().as_ptr().wrapping_add(2 << 20)));
    for at in (0..4 * MIB).step_by(4096).filter(|at| *at != 2 * MIB && *at != 3 * MIB) {
        assert_eq!(load(&region, at), byte_of(setup.object, at), "{at}");
    }
    setup.node.kill();
    setup.restart(Some(4 * MIB));
    assert_eq!(load(&region, 4 * MIB - 1), byte_of(setup.object, 4 * MIB - 1), "and a second time");
    assert_eq!(load(&region, 3 * MIB), 77);
}

#[test]
fn writers_and_readers_see_no_wrong_byte_while_nodes_come_and_go() {
    let mut setup = setup(2 * MIB, "base", 20_000);
    let region = Arc::new(setup.map(MapOptions { access: Access::PrivateWrite, ..MapOptions::default() }));
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let object = setup.object;
    let threads: Vec<_> = (0..3u64)
        .map(|thread| {
            let (region, stop) = (Arc::clone(&region), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut rounds = 0u64;
                while !stop.load(Ordering::SeqCst) {
                    for page in 0..512u64 {
                        let at = page * 4096;
                        assert_eq!(load(&region, at + 9), byte_of(object, at + 9), "page {page}");
                        if page % 8 == thread {
                            let value = rounds as u8;
                            store(&region, at + 100 + thread, value);
                            assert_eq!(load(&region, at + 100 + thread), value, "page {page}");
                        }
                    }
                    rounds += 1;
                }
                rounds
            })
        })
        .collect();
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(60));
        setup.node.kill();
        setup.restart(Some(2 * MIB));
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(10));
            setup.node.order(&format!("evict {object}"));
        }
    }
    stop.store(true, Ordering::SeqCst);
    for thread in threads {
        assert!(thread.join().unwrap() > 0);
    }
}

#[test]
fn memory_of_a_node_that_stays_away_is_sigbus_after_the_grace_time() {
    let mut setup = setup(MIB, "base", 300);
    let region = Arc::new(setup.map(MapOptions::default()));
    assert_eq!(load(&region, 0), byte_of(setup.object, 0));
    setup.node.kill();
    let waiting = {
        let region = Arc::clone(&region);
        std::thread::spawn(move || is_readable(region.pointer().as_ptr().wrapping_add(65_536)))
    };
    assert!(!waiting.join().unwrap(), "a system call fails in place of waiting for ever");
    assert!(!is_readable(region.pointer().as_ptr()), "what was filled is given up too");
    let touch = fork(|| load(&region, 0) == 0);
    assert_eq!(wait_for(touch), libc::SIGBUS);
    assert!(setup.regions.map(ObjectId(setup.object), MapOptions::default()).is_err());
    setup.restart(Some(MIB));
    let again = setup.map(MapOptions::default());
    assert_eq!(first_wrong(&again, setup.object), None, "new mappings work with the new node");
}

#[test]
fn an_object_that_changed_while_the_node_was_away_is_sigbus() {
    let mut setup = setup(MIB, "base", 500);
    let region = setup.map(MapOptions::default());
    setup.node.kill();
    setup.restart(Some(2 * MIB));
    assert!(!is_readable(region.pointer().as_ptr()));
}

/// A second object of the same node, mapped so that the program may change it.
fn second(setup: &mut Setup) -> (u64, Region) {
    let object = new_object();
    setup.node.add(object, MIB, "base");
    let options = MapOptions { access: Access::PrivateWrite, ..MapOptions::default() };
    (object, setup.regions.map(ObjectId(object), options).unwrap())
}

#[test]
fn an_object_that_is_gone_after_a_restart_is_sigbus_at_once_and_costs_no_other() {
    let mut setup = setup(MIB, "base", 20_000);
    let region = setup.map(MapOptions::default());
    let (_, gone) = second(&mut setup);
    setup.node.kill();
    let started = Instant::now();
    setup.restart(Some(MIB));
    assert_eq!(first_wrong(&region, setup.object), None);
    assert!(!is_readable(gone.pointer().as_ptr()));
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert!(in_child(
        || first_wrong(&region, setup.object).is_none() && !is_readable(gone.pointer().as_ptr())
    ));
}

#[test]
fn an_object_that_is_removed_costs_a_child_no_other() {
    let mut setup = setup(MIB, "base", 20_000);
    let region = setup.map(MapOptions::default());
    let (object, gone) = second(&mut setup);
    assert_eq!(first_wrong(&gone, object), None);
    setup.node.order(&format!("remove {object}"));
    let started = Instant::now();
    assert!(in_child(
        || first_wrong(&region, setup.object).is_none() && !is_readable(gone.pointer().as_ptr())
    ));
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert_eq!(first_wrong(&gone, object), None, "the parent keeps it");
}

#[test]
fn an_object_that_cannot_be_had_yet_comes_back_later_with_what_was_written() {
    let mut setup = setup(MIB, "base", 30_000);
    let region = setup.map(MapOptions::default());
    let (object, late) = second(&mut setup);
    let late = Arc::new(late);
    store(&late, 9, 33);
    let both = |setup: &Setup, kind: &str| format!("{} {MIB} base,{object} {MIB} {kind}", setup.object);
    // The second time, the node dies while it waits.
    for _ in 0..2 {
        setup.node.kill();
        let objects = both(&setup, "homeless");
        setup.restart_with(&objects);
        assert_eq!(first_wrong(&region, setup.object), None);
        let other = setup.map(MapOptions::default());
        assert_eq!(first_wrong(&other, setup.object), None, "what is mapped meanwhile is served");
    }
    let touching = {
        let late = Arc::clone(&late);
        std::thread::spawn(move || (load(&late, 70_000), load(&late, 9)))
    };
    std::thread::sleep(Duration::from_millis(300));
    assert!(!touching.is_finished(), "nothing is read while no node serves");
    setup.node.add(object, MIB, "base");
    assert_eq!(touching.join().unwrap(), (byte_of(object, 70_000), 33));
    assert!(in_child(|| load(&late, 9) == 33 && load(&late, 10) == byte_of(object, 10)));
    setup.node.order(&format!("evict {object}"));
    assert_eq!(load(&late, 200_000), byte_of(object, 200_000));
    assert_eq!(load(&late, 9), 33);
}

#[test]
fn an_object_that_cannot_be_had_in_time_is_sigbus_and_the_others_stay() {
    let mut setup = setup(MIB, "base", 3000);
    let region = setup.map(MapOptions::default());
    let (object, late) = second(&mut setup);
    setup.node.kill();
    let objects = format!("{} {MIB} base,{object} {MIB} homeless", setup.object);
    setup.restart_with(&objects);
    assert_eq!(load(&region, 70_000), byte_of(setup.object, 70_000));
    assert!(!is_readable(late.pointer().as_ptr()));
    assert_eq!(first_wrong(&region, setup.object), None);
    setup.node.kill();
    let objects = format!("{} {MIB} base", setup.object);
    setup.restart_with(&objects);
    assert_eq!(first_wrong(&region, setup.object), None);
}

#[test]
fn a_child_has_the_memory_anew_with_what_the_parent_wrote() {
    let mut setup = setup(2 * MIB, "base", 5000);
    let object = setup.object;
    let private = setup.map(MapOptions { access: Access::PrivateWrite, ..MapOptions::default() });
    let shared = setup.map(MapOptions::default());
    store(&private, 4096, 5);
    store(&private, MIB, 6);
    let status = wait_for(fork(|| {
        let bytes = [4096, MIB, 4097].map(|at| load(&private, at));
        assert_eq!(bytes, [5, 6, byte_of(object, 4097)], "in the child");
        store(&private, 8192, 7);
        // A child of the child, at a time when the first may still be at it.
        let grand = wait_for(fork(|| {
            assert_eq!([8192, 4096].map(|at| load(&private, at)), [7, 5], "in the child of the child");
            assert_eq!(first_wrong(&shared, object), None, "in the child of the child");
            true
        }));
        assert_eq!(grand, 0, "the wait status of the child of the child");
        assert_eq!(first_wrong(&shared, object), None, "in the child");
        true
    }));
    assert_eq!(status, 0, "the wait status of the child");
    assert_eq!(load(&private, 8192), byte_of(object, 8192));
    assert_eq!(load(&private, 4096), 5);
    setup.node.order("fills");
}

#[test]
fn forks_work_while_other_threads_map_unmap_and_read() {
    let setup = setup(MIB, "base", 5000);
    let region = setup.map(MapOptions::default());
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let (regions, stop, object) = (setup.regions.clone(), Arc::clone(&stop), setup.object);
            std::thread::spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let own = regions.map(ObjectId(object), MapOptions::default()).unwrap();
                    assert_eq!(load(&own, 65_537), byte_of(object, 65_537));
                    std::hint::black_box(vec![1u8; 300_000]);
                }
            })
        })
        .collect();
    for _ in 0..25 {
        assert!(in_child(|| {
            first_wrong(&region, setup.object).is_none()
                && setup
                    .regions
                    .map(ObjectId(setup.object), MapOptions::default())
                    .is_ok_and(|own| first_wrong(&own, setup.object).is_none())
        }));
    }
    stop.store(true, Ordering::SeqCst);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn pages_of_2_mib_are_served_unmapped_and_brought_back() {
    let pages = hinterland_os::MemoryFile::anonymous("probe", 32 * MIB, hinterland_os::PageKind::Huge2M);
    if !pages.is_ok_and(|file| file.allocate(0, 32 * MIB).is_ok()) {
        eprintln!("not run: 16 huge pages cannot be had (hint: sysctl vm.nr_overcommit_hugepages=64)");
        return;
    }
    let mut setup = setup(7 * MIB, "huge", 10_000);
    let object = setup.object;
    let region = setup.map(MapOptions { offset: 4096, bytes: Some(6 * MIB), ..MapOptions::default() });
    assert!(region.is_symmetric());
    assert_eq!(first_wrong(&region, object), None);
    setup.node.order(&format!("evict {object}"));
    assert_eq!(first_wrong(&region, object), None);
    let start = region.pointer().addr().get() as u64;
    let probe =
        |node: &mut StubNode, what: &str| order_first(node, &format!("{what} {} {}", start - 4096, 2 * MIB));
    assert_eq!(probe(&mut setup.node, "touched"), "Touched { id: 8, touched: [true] }");
    assert_eq!(probe(&mut setup.node, "unmap"), "Seen { id: 7 }");
    assert_eq!(probe(&mut setup.node, "touched"), "Touched { id: 8, touched: [false] }");
    assert_eq!(load(&region, 0), byte_of(object, 4096));
    assert!(process::unmap(start, MIB).unwrap().is_ok());
    assert!(process::unmap(start, MIB).unwrap().is_ok(), "a second time does no harm");
    assert_eq!(process::share(start, MIB), process::Share::None);
    assert_eq!(load(&region, MIB), byte_of(object, MIB + 4096), "the rest of a page stays");
    assert!(process::unmap(start + MIB, 2 * MIB).unwrap().is_ok());
    assert!(!is_readable(region.pointer().as_ptr()));
    assert_eq!(load(&region, 4 * MIB), byte_of(object, 4 * MIB + 4096));
    let refused = process::protect(start + 4 * MIB, 4096, libc::PROT_READ | libc::PROT_WRITE);
    assert_eq!(refused.unwrap().unwrap_err().raw_os_error(), Some(libc::EACCES));
    let private = MapOptions { access: Access::PrivateWrite, ..MapOptions::default() };
    assert!(matches!(setup.regions.map(ObjectId(object), private), Err(RegionError::PrivateHuge { .. })));
    let right = |at: u64| load(&region, at) == byte_of(object, at + 4096);
    assert!(in_child(|| right(3 * MIB) && right(6 * MIB - 1)));
    setup.node.kill();
    setup.restart_with(&format!("{object} {} huge", 7 * MIB));
    assert!(right(3 * MIB) && right(6 * MIB - 1));
    assert!(!is_readable(region.pointer().as_ptr()));
}

#[test]
fn what_the_child_of_a_dead_node_touches_is_sigbus_and_no_hang() {
    let mut setup = setup(MIB, "base", 400);
    let region = setup.map(MapOptions::default());
    setup.node.kill();
    let touch = fork(|| load(&region, 0) == 0);
    assert_eq!(wait_for(touch), libc::SIGBUS);
}

#[test]
fn a_name_that_is_not_there_is_refused_with_the_words_of_the_node() {
    let setup = setup(MIB, "base", 400);
    let refused = setup.regions.map(ObjectName::parse("object-0").unwrap(), MapOptions::default());
    let error = refused.err().unwrap();
    assert_eq!(error.code(), 2);
    assert!(error.to_string().contains("hint"));
    let nowhere = Options { socket: Some("/nonexistent/node.sock".into()), ..Options::default() };
    assert!(matches!(Regions::connect(&nowhere), Err(RegionError::Pool(_))));
}
