//! The calls of the header, as a C program makes them.

use crate::racks::Racks;
use hinterland::*;
use std::ffi::{CStr, CString, c_int, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};

/// A pool that is closed with the test.
struct Opened(*mut PoolHandle);

impl Opened {
    fn new(racks: &Racks, node: &str) -> Self {
        let mut pool = null_mut();
        // SAFETY: a string and a place.
        assert_eq!(unsafe { hl_open(racks.socket(node).as_ptr(), &mut pool) }, 0, "{}", words());
        Self(pool)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: it was opened once, and this is its last use.
        assert_eq!(unsafe { hl_close(self.0) }, 0);
    }
}

fn words() -> String {
    // SAFETY: the words of this thread.
    unsafe { CStr::from_ptr(hl_last_error()) }.to_str().unwrap().to_owned()
}

fn refused(status: c_int, code: c_int, word: &str) {
    assert_eq!(status, -code, "{}", words());
    assert!(words().contains(word) && words().contains("hint: "), "{}", words());
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index * 7 + index / 256) as u8).collect()
}

#[test]
fn null_and_nonsense_are_refused_with_words() {
    let racks = Racks::start();
    let opened = Opened::new(&racks, "a");
    let pool = opened.0;
    let (mut address, mut object) = (0, ObjectRecord::default());
    // SAFETY: the functions are promised nothing that is not so: null is allowed everywhere.
    unsafe {
        refused(hl_open(null(), null_mut()), libc_errno::EINVAL, "NULL");
        let mut none = null_mut();
        refused(hl_open(c"/nowhere/socket".as_ptr(), &mut none), libc_errno::ENOTCONN, "hinterland up");
        assert!(none.is_null());
        refused(hl_alloc(null_mut(), 64, &mut address), libc_errno::EINVAL, "hl_open");
        refused(hl_alloc(pool, 64, null_mut()), libc_errno::EINVAL, "NULL");
        refused(hl_stat(pool, null(), &mut object), libc_errno::EINVAL, "NULL");
        refused(hl_stat(pool, c"".as_ptr(), &mut object), libc_errno::EINVAL, "empty");
        refused(hl_stat(pool, c"a/../b".as_ptr(), &mut object), libc_errno::EINVAL, "..");
        refused(hl_stat(pool, c"\xff".as_ptr(), &mut object), libc_errno::EINVAL, "UTF-8");
        let long = CString::new("x".repeat(4096)).unwrap();
        refused(hl_stat(pool, long.as_ptr(), &mut object), libc_errno::ENAMETOOLONG, "4096");
        refused(hl_stat(pool, c"nobody".as_ptr(), &mut object), libc_errno::ENOENT, "nobody");
        refused(hl_read(pool, 1 << 46, null_mut(), 0), libc_errno::EINVAL, "46 bits");
        refused(hl_read(pool, 4096, null_mut(), 8), libc_errno::EINVAL, "NULL");
        refused(hl_write(pool, 4096, [0u8; 1].as_ptr().cast(), usize::MAX), libc_errno::EINVAL, "cannot be");
        refused(hl_free(pool, 4096), libc_errno::EINVAL, "hint");
        refused(hl_unlock(pool, 4096), libc_errno::EINVAL, "no lock");
        refused(hl_unmap(pool, null()), libc_errno::EINVAL, "hl_map");
        refused(hl_advise(pool, null(), 0, 1, 9), libc_errno::EINVAL, "HL_ADVICE");
        refused(
            hl_put_file(pool, c"x".as_ptr(), c"/nowhere".as_ptr(), null()),
            libc_errno::ENOENT,
            "/nowhere",
        );
        assert_eq!(hl_close(null_mut()), 0);
    }
}

/// The numbers that the tests compare with.
mod libc_errno {
    pub use libc::{
        EACCES, ECANCELED, EEXIST, EINVAL, ENAMETOOLONG, ENOENT, ENOSPC, ENOTCONN, ENOTSUP, ETIMEDOUT,
    };
}

#[test]
fn an_object_goes_into_the_other_rack_and_comes_back_by_every_way() {
    let racks = Racks::start();
    let opened = Opened::new(&racks, "a");
    let pool = opened.0;
    let bytes = pattern((3 << 20) + 77);
    let file = racks.folder().join("file");
    std::fs::write(&file, &bytes).unwrap();
    let file = CString::new(file.to_str().unwrap()).unwrap();
    let options =
        PutOptionsRecord { copies: 0, reserved: 0, rack: c"b".as_ptr(), progress: None, context: null_mut() };
    // SAFETY: every pointer is null or leads to what the function takes.
    unsafe {
        let name = c"models/far".as_ptr();
        assert_eq!(hl_put_file(pool, name, file.as_ptr(), &options), 0, "{}", words());
        refused(hl_put_file(pool, name, file.as_ptr(), null()), libc_errno::EEXIST, "models/far");
        let mut object = ObjectRecord::default();
        assert_eq!(hl_stat(pool, name, &mut object), 0);
        assert_eq!((object.bytes, object.state, object.homes_up), (bytes.len() as u64, HL_SEALED, 1));

        let mut found = vec![0u8; 5000];
        let offset = bytes.len() - found.len();
        assert_eq!(hl_get(pool, name, offset as u64, found.as_mut_ptr().cast(), found.len()), 0);
        assert!(found == bytes[offset..]);
        refused(
            hl_get(pool, name, 1 + offset as u64, found.as_mut_ptr().cast(), found.len()),
            libc_errno::EINVAL,
            "ends behind",
        );
        let at = object.address + offset as u64;
        assert_eq!(hl_read(pool, at, found.as_mut_ptr().cast(), found.len()), 0, "{}", words());
        assert!(found == bytes[offset..]);
        refused(hl_write(pool, at, found.as_ptr().cast(), 1), libc_errno::EACCES, "sealed");

        let (mut memory, mut mapped) = (null(), 0);
        assert_eq!(hl_map(pool, name, &mut memory, &mut mapped), 0, "{}", words());
        assert_eq!(mapped, bytes.len() as u64);
        assert_eq!(hl_advise(pool, memory, 0, mapped, HL_ADVICE_WILL_NEED), 0);
        refused(hl_advise(pool, memory, 1, mapped, HL_ADVICE_WILL_NEED), libc_errno::EINVAL, "ends behind");
        assert!(std::slice::from_raw_parts(memory.cast::<u8>(), bytes.len()) == &bytes[..]);
        assert_eq!(hl_unmap(pool, memory), 0);
        refused(hl_unmap(pool, memory), libc_errno::EINVAL, "once");
        assert_eq!(hl_remove(pool, name), 0);
        refused(hl_remove(pool, name), libc_errno::ENOENT, "models/far");
    }
}

#[test]
fn a_region_is_shared_by_address_and_by_pointer() {
    let racks = Racks::start();
    let (one, other) = (Opened::new(&racks, "a"), Opened::new(&racks, "a"));
    // SAFETY: every pointer is null or leads to what the function takes.
    unsafe {
        let name = c"shared".as_ptr();
        let mut address = 0;
        assert_eq!(hl_create_region(one.0, name, 1 << 20, null(), &mut address), 0, "{}", words());
        refused(hl_create_region(one.0, name, 4096, null(), &mut address), libc_errno::EEXIST, "shared");
        refused(
            hl_create_region(one.0, c"big".as_ptr(), 1 << 40, null(), &mut address),
            libc_errno::ENOSPC,
            "hint",
        );
        let (mut memory, mut bytes) = (null_mut(), 0);
        assert_eq!(hl_map_region(other.0, name, &mut memory, &mut bytes), 0, "{}", words());
        assert!(bytes >= 1 << 20);
        let text = *b"by address";
        assert_eq!(hl_write(one.0, address + 100, text.as_ptr().cast(), text.len()), 0);
        let seen = memory.cast::<u8>().add(100);
        assert_eq!(std::slice::from_raw_parts(seen, text.len()), text);
        seen.write_volatile(b'B');
        let mut found = [0u8; 10];
        assert_eq!(hl_read(one.0, address + 100, found.as_mut_ptr().cast(), found.len()), 0);
        assert_eq!(&found, b"By address");

        let far = c"far".as_ptr();
        assert_eq!(hl_create_region(one.0, far, 1 << 20, c"b".as_ptr(), &mut address), 0);
        assert_eq!(hl_write(one.0, address, text.as_ptr().cast(), text.len()), 0, "{}", words());
        assert_eq!(hl_read(other.0, address, found.as_mut_ptr().cast(), found.len()), 0);
        assert_eq!(found, text);
        refused(hl_map_region(one.0, far, &mut memory, &mut bytes), libc_errno::ENOTSUP, "another rack");
        let sealed = c"sealed".as_ptr();
        assert_eq!(hl_put_buffer(one.0, sealed, text.as_ptr().cast(), text.len(), null()), 0, "{}", words());
        refused(
            hl_map_region(one.0, sealed, &mut memory, &mut bytes),
            libc_errno::EACCES,
            "sealed is sealed",
        );
        assert!(words().contains("hint: map it with hl_map"), "{}", words());
    }
}

#[test]
fn allocations_and_locks_belong_to_the_pool_that_made_them() {
    let racks = Racks::start();
    let other = Opened::new(&racks, "a");
    // SAFETY: every pointer is null or leads to what the function takes.
    unsafe {
        let (mut own, mut kept) = (0, 0);
        {
            let one = Opened::new(&racks, "a");
            assert_eq!(hl_alloc(one.0, 100, &mut own), 0, "{}", words());
            assert_eq!(hl_alloc_kept(one.0, 100, &mut kept), 0);
            assert_eq!((own % 16, kept % 16), (0, 0));
            assert_eq!(hl_wlock(one.0, own, 0), 0);
            refused(hl_wlock(one.0, own, 0), libc_errno::EINVAL, "already");
            refused(hl_rlock(other.0, own, 30), libc_errno::ETIMEDOUT, "30 ms");
            refused(hl_free(other.0, own), libc_errno::EACCES, "another session");
            assert_eq!(hl_write(one.0, kept, b"kept".as_ptr().cast(), 4), 0);
        }
        // The pool is closed: the lock comes free without anybody's doing.
        assert_eq!(hl_rlock(other.0, own, 10_000), 0, "{}", words());
        assert_eq!(hl_unlock(other.0, own), 0);
        let mut found = [0u8; 4];
        assert_eq!(hl_read(other.0, kept, found.as_mut_ptr().cast(), 4), 0);
        assert_eq!(&found, b"kept");
        assert_eq!(hl_free(other.0, kept), 0);
        refused(hl_free(other.0, own), libc_errno::EINVAL, "nothing was allocated");
    }
}

#[test]
fn guards_cover_a_range_and_exclude_other_pools() {
    let racks = Racks::start();
    let (near, far) = (Opened::new(&racks, "a"), Opened::new(&racks, "b"));
    let mut address = 0;
    let (mut reader, mut writer) = (std::ptr::null_mut(), std::ptr::null_mut());
    let mut found = [0u8; 5];
    // SAFETY: every pointer is null or leads to what the function takes.
    unsafe {
        assert_eq!(hl_create_spread(near.0, c"spread".as_ptr(), 8 << 20, &mut address), 0, "{}", words());
        assert_eq!(hl_guard_write(near.0, address, 4096, 10_000, &mut writer), 0, "{}", words());
        assert_eq!(hl_guard_store(writer, 100, b"guard".as_ptr().cast(), 5), 0, "{}", words());
        refused(hl_guard_store(writer, 4093, b"guard".as_ptr().cast(), 5), libc_errno::EINVAL, "range");
        refused(hl_guard_read(far.0, address, 4096, 30, &mut reader), libc_errno::ETIMEDOUT, "hint:");
        refused(hl_guard_upgrade(writer, 0), libc_errno::EINVAL, "already");
        assert_eq!(hl_guard_flush(writer), 0);
        let (mut first, mut second) = (0, 0);
        assert_eq!(hl_guard_fence(writer, &mut first), 0);
        assert_eq!(hl_guard_unlock(writer), 0, "{}", words());
        assert_eq!(hl_guard_read(far.0, address, 4096, 10_000, &mut reader), 0, "{}", words());
        assert_eq!(hl_guard_load(reader, 100, found.as_mut_ptr().cast(), 5), 0, "{}", words());
        assert_eq!(&found, b"guard");
        refused(hl_guard_store(reader, 0, b"x".as_ptr().cast(), 1), libc_errno::EACCES, "hl_guard_upgrade");
        assert_eq!(hl_guard_upgrade(reader, 10_000), 0, "{}", words());
        assert_eq!(hl_guard_store(reader, 100, b"GUARD".as_ptr().cast(), 5), 0, "{}", words());
        assert_eq!(hl_guard_fence(reader, &mut second), 0);
        assert!(second > first);
        assert_eq!(hl_guard_unlock(reader), 0, "{}", words());
        assert_eq!(hl_read(near.0, address + 100, found.as_mut_ptr().cast(), 5), 0);
        assert_eq!(&found, b"GUARD");
        assert_eq!(hl_guard_unlock(std::ptr::null_mut()), 0);
        refused(hl_guard_flush(std::ptr::null_mut()), libc_errno::EINVAL, "NULL");
    }
}

#[test]
fn handles_are_made_weaker_for_parts_of_a_program_and_revoked() {
    let racks = Racks::start();
    let opened = Opened::new(&racks, "a");
    let pool = opened.0;
    let bytes = pattern(200_000);
    let mut address = 0;
    for (name, rack) in [(c"sealed/near", c"a"), (c"sealed/far", c"b")] {
        let options = PutOptionsRecord {
            copies: 0,
            reserved: 0,
            rack: rack.as_ptr(),
            progress: None,
            context: null_mut(),
        };
        // SAFETY: every pointer is null or leads to what the function takes.
        unsafe {
            let put = hl_put_buffer(pool, name.as_ptr(), bytes.as_ptr().cast(), bytes.len(), &options);
            assert_eq!(put, 0, "{}", words());
            revoke_one(pool, name, HL_READ, &bytes[4096..4104]);
        }
    }
    for (name, rack) in [(c"region/near", c"a"), (c"region/far", c"b")] {
        // SAFETY: as above.
        unsafe {
            let made = hl_create_region(pool, name.as_ptr(), 2 << 20, rack.as_ptr(), &mut address);
            assert_eq!(made, 0, "{}", words());
            let text = *b"12345678";
            assert_eq!(hl_write(pool, address + 4096, text.as_ptr().cast(), text.len()), 0, "{}", words());
            revoke_one(pool, name, HL_READ | HL_WRITE, &text);
        }
    }
}

/// Makes handles of one to all of an object, each weaker than the one before, uses them, and revokes the second.
///
/// # Safety
/// The pool is open.
unsafe fn revoke_one(pool: *mut PoolHandle, name: &CStr, rights: u32, right: &[u8]) {
    let [mut whole, mut parent, mut child, mut other] = [null_mut(); 4];
    let mut found = [0xaa_u8; 8];
    let into = found.as_mut_ptr().cast::<c_void>();
    // SAFETY: every pointer is null or leads to what the function takes.
    unsafe {
        assert_eq!(hl_handle_open(pool, name.as_ptr(), rights, &mut whole), 0, "{}", words());
        assert_eq!(hl_handle_diminish(whole, rights, 0, 8192, &mut parent), 0, "{}", words());
        assert_eq!(hl_handle_diminish(parent, HL_READ, 4096, 8, &mut child), 0, "{}", words());
        refused(hl_handle_read(child, 4095, into, 8), libc::EINVAL, "4096 to 4104");
        refused(hl_handle_read(child, 4096, into, 9), libc::EINVAL, "4096 to 4104");
        refused(hl_handle_read(whole, u64::MAX, into, 8), libc::EINVAL, "overflows");
        refused(hl_handle_write(child, 4096, into, 8), libc::EACCES, "HL_WRITE");
        refused(hl_handle_diminish(child, HL_READ, 0, 8, &mut other), libc::EINVAL, "4096 to 4104");
        refused(hl_handle_diminish(child, HL_READ | HL_WRITE, 4096, 8, &mut other), libc::EACCES, "r---");
        refused(hl_handle_diminish(child, 0, 4096, 8, &mut other), libc::EINVAL, "HL_READ");
        assert!(other.is_null() && found == [0xaa; 8], "what was refused has done nothing");
        assert_eq!(hl_handle_read(child, 4096, into, 8), 0, "{}", words());
        assert_eq!(found, right);
        if rights == HL_READ {
            refused(
                hl_handle_open(pool, name.as_ptr(), HL_WRITE, &mut other),
                libc::EACCES,
                "hint: open it for reading",
            );
            let both = HL_READ | HL_WRITE;
            refused(hl_handle_open(pool, name.as_ptr(), both, &mut other), libc::EACCES, "with HL_READ");
        } else {
            assert_eq!(hl_handle_write(parent, 4096, into, 8), 0, "{}", words());
            refused(hl_handle_write(parent, 8190, into, 8), libc::EINVAL, "0 to 8192");
        }
        assert_eq!(hl_handle_revoke(parent), 0, "{}", words());
        found = [0xaa; 8];
        for handle in [parent, child] {
            refused(hl_handle_read(handle, 4096, into, 8), libc::EBADF, "revoked");
            refused(hl_handle_diminish(handle, HL_READ, 4096, 8, &mut other), libc::EBADF, "revoked");
            assert_eq!(hl_handle_revoke(handle), 0, "{}", words());
        }
        assert_eq!(found, [0xaa; 8], "no byte comes after that");
        assert_eq!(hl_handle_diminish(whole, HL_READ, 4096, 8, &mut other), 0, "{}", words());
        for handle in [whole, parent, child] {
            assert_eq!(hl_handle_close(handle), 0);
        }
        // It lives on, whatever has been closed.
        assert_eq!(hl_handle_read(other, 4096, into, 8), 0, "{}", words());
        assert_eq!(found, right);
        assert_eq!(hl_handle_close(other), 0);
        assert_eq!(hl_handle_close(null_mut()), 0);
        refused(hl_handle_revoke(null_mut()), libc::EINVAL, "hl_handle_open");
    }
}

#[test]
fn a_handle_for_writing_alone_writes_and_does_not_read() {
    let racks = Racks::start();
    let opened = Opened::new(&racks, "a");
    let pool = opened.0;
    let (text, mut found) = (*b"12345678", [0xaa_u8; 8]);
    let into = found.as_mut_ptr().cast::<c_void>();
    for (name, rack) in [(c"write/near", c"a"), (c"write/far", c"b")] {
        let [mut whole, mut part, mut other] = [null_mut(); 3];
        let mut address = 0;
        // SAFETY: every pointer is null or leads to what the function takes.
        unsafe {
            let made = hl_create_region(pool, name.as_ptr(), 8192, rack.as_ptr(), &mut address);
            assert_eq!(made, 0, "{}", words());
            assert_eq!(hl_handle_open(pool, name.as_ptr(), HL_WRITE, &mut whole), 0, "{}", words());
            refused(hl_handle_read(whole, 0, into, 8), libc::EACCES, "r---");
            refused(hl_handle_diminish(whole, HL_READ, 0, 8, &mut other), libc::EACCES, "r---");
            assert_eq!(hl_handle_write(whole, 0, text.as_ptr().cast(), 8), 0, "{}", words());
            assert_eq!(hl_handle_diminish(whole, HL_WRITE, 4096, 8, &mut part), 0, "{}", words());
            refused(hl_handle_write(part, 0, text.as_ptr().cast(), 8), libc::EINVAL, "4096 to 4104");
            assert_eq!(hl_handle_write(part, 4096, text.as_ptr().cast(), 8), 0, "{}", words());
            assert_eq!(found, [0xaa; 8]);
            for offset in [0, 4096] {
                assert_eq!(hl_read(pool, address + offset, into, 8), 0, "{}", words());
                assert_eq!(std::mem::replace(&mut found, [0xaa; 8]), text);
            }
            assert_eq!(hl_handle_revoke(whole), 0, "{}", words());
            refused(hl_handle_write(part, 4096, text.as_ptr().cast(), 8), libc::EBADF, "revoked");
            assert_eq!((hl_handle_close(part), hl_handle_close(whole)), (0, 0));
        }
    }
}

#[test]
fn a_put_that_is_given_up_leaves_nothing() {
    unsafe extern "C" fn stop_late(context: *mut c_void, done: u64, total: u64) -> c_int {
        assert!(done <= total);
        // SAFETY: the test handed over its counter.
        let calls = unsafe { &mut *context.cast::<u32>() };
        *calls += 1;
        c_int::from(*calls == 2)
    }
    let racks = Racks::start();
    let opened = Opened::new(&racks, "a");
    let bytes = pattern(12 << 20);
    let mut calls = 0u32;
    let options = PutOptionsRecord {
        copies: 2,
        reserved: 0,
        rack: null(),
        progress: Some(stop_late),
        context: (&raw mut calls).cast(),
    };
    // SAFETY: every pointer leads to what the function takes.
    unsafe {
        let (pool, name) = (opened.0, c"half".as_ptr());
        let put = || hl_put_buffer(pool, name, bytes.as_ptr().cast(), bytes.len(), &options);
        refused(put(), libc_errno::ECANCELED, "`progress` has given up");
        let mut object = ObjectRecord::default();
        refused(hl_stat(pool, name, &mut object), libc_errno::ENOENT, "half");
        assert_eq!(put(), 0, "{}", words());
        assert_eq!(hl_stat(pool, name, &mut object), 0);
        assert_eq!((object.copies, object.homes), (2, 2));
        let options = PutOptionsRecord { reserved: 1, ..options };
        refused(hl_put_buffer(pool, name, null(), 0, &options), libc_errno::EINVAL, "reserved");
    }
}

#[test]
fn an_object_without_bytes_is_put_and_not_mapped() {
    let racks = Racks::start();
    let opened = Opened::new(&racks, "a");
    // SAFETY: every pointer is null or leads to what the function takes.
    unsafe {
        let (pool, name) = (opened.0, c"empty".as_ptr());
        assert_eq!(hl_put_buffer(pool, name, null(), 0, null()), 0, "{}", words());
        assert_eq!(hl_get(pool, name, 0, null_mut(), 0), 0, "{}", words());
        let (mut memory, mut bytes) = (null(), 0);
        refused(hl_map(pool, name, &mut memory, &mut bytes), libc_errno::EINVAL, "no bytes");
    }
}

#[test]
fn a_forked_child_reads_what_is_mapped_and_opens_a_pool_of_its_own() {
    let racks = Racks::start();
    let opened = Opened::new(&racks, "a");
    let bytes = pattern(1 << 20);
    let socket = racks.socket("a");
    // SAFETY: every pointer is null or leads to what the function takes; the child only calls the library and ends.
    unsafe {
        let mut mapped = [null(); 2];
        for (index, (name, rack)) in [(c"near", c"a"), (c"far", c"b")].into_iter().enumerate() {
            let options = PutOptionsRecord {
                copies: 1,
                reserved: 0,
                rack: rack.as_ptr(),
                progress: None,
                context: null_mut(),
            };
            let put = hl_put_buffer(opened.0, name.as_ptr(), bytes.as_ptr().cast(), bytes.len(), &options);
            assert_eq!(put, 0, "{}", words());
            let mut length = 0;
            assert_eq!(hl_map(opened.0, name.as_ptr(), &mut mapped[index], &mut length), 0, "{}", words());
        }
        let child = libc::fork();
        if child == 0 {
            let same = |memory: &*const c_void| {
                std::slice::from_raw_parts(memory.cast::<u8>(), bytes.len()) == &bytes[..]
            };
            let mut own = null_mut();
            let mut found = [0u8; 16];
            let step = if !mapped.iter().all(same) {
                1
            } else if hl_remove(opened.0, c"near".as_ptr()) != -libc::ENOTCONN {
                2
            } else if hl_close(opened.0) != 0 {
                3
            } else if hl_open(socket.as_ptr(), &mut own) != 0 {
                4
            } else if hl_get(own, c"far".as_ptr(), 16, found.as_mut_ptr().cast(), 16) != 0 {
                5
            } else {
                c_int::from(found != bytes[16..32]) * 6
            };
            libc::_exit(step);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert_eq!(status, 0, "step {} of the child", libc::WEXITSTATUS(status));
        let mut object = ObjectRecord::default();
        assert_eq!(hl_stat(opened.0, c"near".as_ptr(), &mut object), 0, "the parent's session is whole");
        assert!(Path::new(socket.to_str().unwrap()).exists());
    }
}

#[test]
fn a_closed_pool_keeps_no_locks_whatever_is_still_open_but_what_a_guard_has_buffered() {
    let racks = Racks::start();
    let other = Opened::new(&racks, "a");
    let (mut address, mut left, mut found) = (0, null_mut(), [0_u8; 5]);
    let (mut closed, mut guard) = (null_mut(), null_mut());
    // SAFETY: every pointer is null or leads to what the function takes.
    unsafe {
        assert_eq!(hl_open(racks.socket("a").as_ptr(), &mut closed), 0, "{}", words());
        assert_eq!(
            hl_create_region(closed, c"kept".as_ptr(), 1 << 20, null(), &mut address),
            0,
            "{}",
            words()
        );
        assert_eq!(hl_handle_open(closed, c"kept".as_ptr(), HL_READ, &mut left), 0, "{}", words());
        assert_eq!(hl_wlock(closed, address, 10_000), 0, "{}", words());
        assert_eq!(hl_close(closed), 0);
        assert_eq!(hl_wlock(other.0, address, 30_000), 0, "{}", words());
        assert_eq!(hl_unlock(other.0, address), 0);
        assert_eq!(hl_handle_close(left), 0);

        assert_eq!(hl_open(racks.socket("a").as_ptr(), &mut closed), 0, "{}", words());
        assert_eq!(hl_guard_write(closed, address, 4096, 10_000, &mut guard), 0, "{}", words());
        assert_eq!(hl_guard_store(guard, 0, b"later".as_ptr().cast(), 5), 0, "{}", words());
        assert_eq!(hl_close(closed), 0);
        assert_eq!(hl_guard_unlock(guard), 0, "{}", words());
        assert_eq!(hl_read(other.0, address, found.as_mut_ptr().cast(), 5), 0, "{}", words());
        assert_eq!(hl_wlock(other.0, address, 30_000), 0, "{}", words());
    }
    assert_eq!(&found, b"later");
}
