//! Pages of a cache file that vanish, whoever takes them: readers never get zeros for them. Alone in its process: other tests have cache files of the same names.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[path = "kv_racks/pair.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod pair;

use hinterland_os::MemoryFile;
use hinterland_pool::PutOptions;
use hinterland_types::ObjectName;
use pair::{Pair, put_object, read_object};

/// Punches all pages out of the cache files of an object behind their node's back.
fn take_pages(object: u64) {
    let name = format!("memfd:hinterland-cache-{object:016x}");
    let is_it = |path: &std::path::Path| {
        std::fs::read_link(path).is_ok_and(|target| target.to_string_lossy().contains(&name))
    };
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> = entries.filter(|path| is_it(path)).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let file = std::fs::File::options().read(true).write(true).open(&files[0]).unwrap();
    let file = MemoryFile::from_descriptor(file.into()).unwrap();
    file.punch(0, file.len()).unwrap();
}

#[test]
fn a_reader_never_gets_zeros_for_pages_that_vanished() {
    let pair = Pair::new("vanished", 8 << 20);
    let (home, pool) = (pair.a.pool(), pair.b.pool());
    for (name, bytes) in [("tiny", 100), ("small", 70_000), ("huge", 3 << 20)] {
        put_object(&home, name, bytes);
        read_object(&pool, name, bytes);
        let object = pool.stat(&ObjectName::parse(name).unwrap()).unwrap().object.0;
        for _ in 0..3 {
            take_pages(object);
            read_object(&pool, name, bytes);
        }
    }
    // What is zeros stays what it is.
    let zeros = vec![0; 300_000];
    let name = ObjectName::parse("zeros").unwrap();
    home.put(&mut &zeros[..], &name, &PutOptions::default(), &mut |_| {}).unwrap();
    let mut into = vec![1; zeros.len()];
    pool.open_object(&name).unwrap().read_cached(0, &mut into).unwrap();
    assert_eq!(into, zeros);
}
