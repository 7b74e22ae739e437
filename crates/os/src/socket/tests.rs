//! Tests of sockets and of the descriptors that they carry.

use super::*;
use crate::memory_file::{MemoryFile, PageKind};

fn folder_path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("hinterland-{name}-{}", std::process::id()))
}

#[test]
fn descriptors_arrive_with_their_bytes_and_are_closed_on_exec() {
    let path = folder_path("listen");
    let listener = UnixListener::bind(&path).unwrap();
    let client = UnixStream::connect(&path, Duration::from_secs(1)).unwrap();
    let server = listener.accept(Some(Duration::from_secs(1))).unwrap().unwrap();
    assert_eq!(server.peer_credentials().unwrap().process, std::process::id() as i32);
    let file = MemoryFile::anonymous("handed", 4096, PageKind::Base4K).unwrap();
    file.write_at(5, b"through").unwrap();
    server.send_all(b"here it is", &[file.as_fd(), listener.as_fd()]).unwrap();
    let (mut text, mut descriptors) = ([0; 10], Vec::new());
    client.receive_exact(&mut text, &mut descriptors).unwrap();
    assert_eq!((&text, descriptors.len()), (b"here it is", 2));
    // SAFETY: plain values.
    let flags = unsafe { libc::fcntl(descriptors[0].as_raw_fd(), libc::F_GETFD) };
    assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    let got = MemoryFile::from_descriptor(descriptors.swap_remove(0)).unwrap();
    let mut bytes = [0; 7];
    got.read_at(5, &mut bytes).unwrap();
    assert_eq!(&bytes, b"through");
    drop(server);
    assert_eq!(client.receive(&mut text, &mut descriptors).unwrap(), 0);
    drop(listener);
    assert!(!path.exists());
}

#[test]
fn a_closed_listener_wakes_who_waits_and_lets_nobody_connect() {
    let path = folder_path("closed");
    let listener = UnixListener::bind(&path).unwrap();
    let closer = listener.closer().unwrap();
    std::thread::scope(|scope| {
        // Without end: only the closer can end it.
        let waiting = scope.spawn(|| listener.accept(None).unwrap().is_none());
        std::thread::sleep(Duration::from_millis(20));
        closer.close();
        assert!(waiting.join().unwrap());
    });
    assert!(listener.accept(None).unwrap().is_none());
    assert!(UnixStream::connect(&path, Duration::from_millis(100)).is_err());
}

#[test]
fn a_listener_that_ends_leaves_the_socket_of_the_next_one_alone() {
    let path = folder_path("next");
    let ending = UnixListener::bind(&path).unwrap();
    ending.closer().unwrap().close();
    // It refuses, so it counts as gone.
    let next = UnixListener::bind(&path).unwrap();
    drop(ending);
    assert!(UnixStream::connect(&path, Duration::from_millis(100)).is_ok());
    drop(next);
    assert!(!path.exists());
}

#[test]
fn more_descriptors_than_allowed_are_refused_on_both_sides_and_none_leaks() {
    let (one, other) = UnixStream::pair().unwrap();
    let many = vec![one.as_fd(); DESCRIPTORS_MAX + 1];
    assert!(matches!(one.send(b"x", &many), Err(OsError::Refused { .. })));
    assert!(matches!(one.send(b"", &many[..1]), Err(OsError::Refused { .. })));
    let before = open_descriptors();
    send_without_limit(&one, &many);
    let mut descriptors = Vec::new();
    assert!(matches!(other.receive(&mut [0; 8], &mut descriptors), Err(OsError::Refused { .. })));
    assert!(descriptors.is_empty());
    assert!(open_descriptors() <= before + 8, "other tests of this process open a few at the same time");
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// What a hostile peer does: as many descriptors as the kernel takes.
fn send_without_limit(stream: &UnixStream, descriptors: &[BorrowedFd<'_>]) {
    let mut space = [0u64; 32];
    let mut byte = 1u8;
    let mut vector = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let payload = size_of_val(descriptors) as u32;
    // SAFETY: all-zero is valid; the control data has room for 60 descriptors, of which fewer are written.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut vector;
        message.msg_iovlen = 1;
        message.msg_control = space.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(payload) as usize;
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(payload) as usize;
        for (index, descriptor) in descriptors.iter().enumerate() {
            libc::CMSG_DATA(header).cast::<i32>().add(index).write_unaligned(descriptor.as_raw_fd());
        }
        assert_eq!(libc::sendmsg(stream.as_fd().as_raw_fd(), &message, 0), 1);
    }
}

#[test]
fn a_socket_left_behind_is_replaced_and_one_in_use_is_not() {
    let path = folder_path("stale");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let listener = UnixListener::bind(&path).unwrap();
    assert_eq!(UnixListener::bind(&path).unwrap_err().errno(), Some(libc::EADDRINUSE));
    drop(listener);
    let nobody = UnixStream::connect(&path, Duration::from_millis(10)).unwrap_err();
    assert_eq!(nobody.errno(), Some(libc::ENOENT));
    assert!(UnixListener::bind(Path::new(&"x".repeat(108))).is_err());
}

#[test]
fn a_file_in_the_place_of_a_socket_stays() {
    let path = folder_path("no-socket");
    std::fs::write(&path, "somebody's").unwrap();
    let refused = UnixListener::bind(&path).unwrap_err().to_string();
    assert!(refused.contains("no socket"), "{refused}");
    assert_eq!(std::fs::read(&path).unwrap(), b"somebody's");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_folder_that_is_missing_is_named_and_not_made() {
    let folder = folder_path("mistyped");
    let refused = UnixListener::bind(&folder.join("node.sock")).unwrap_err();
    assert_eq!(refused.errno(), Some(libc::ENOENT));
    let hint = format!("`mkdir -p {}`", folder.display());
    assert!(refused.to_string().contains(&hint) && !folder.exists(), "{refused}");
}

#[test]
fn a_socket_whose_listener_does_not_take_connections_is_not_replaced() {
    let path = folder_path("full");
    let listener = UnixListener::bind(&path).unwrap();
    // SAFETY: plain values.
    assert_eq!(unsafe { libc::listen(listener.as_fd().as_raw_fd(), 0) }, 0);
    let waiting: Vec<_> =
        std::iter::from_fn(|| UnixStream::connect(&path, Duration::from_millis(10)).ok()).take(9).collect();
    assert!(waiting.len() < 9, "the queue is full");
    assert_eq!(UnixListener::bind(&path).unwrap_err().errno(), Some(libc::EADDRINUSE));
    assert!(path.exists());
}

#[test]
fn waiting_for_a_silent_peer_ends() {
    let path = folder_path("silent");
    let listener = UnixListener::bind(&path).unwrap();
    assert!(listener.accept(Some(Duration::ZERO)).unwrap().is_none());
    let (one, other) = UnixStream::pair().unwrap();
    one.set_receive_timeout(Some(Duration::from_millis(5))).unwrap();
    assert!(one.receive(&mut [0; 1], &mut Vec::new()).unwrap_err().is_would_block());
    other.set_nonblocking(true).unwrap();
    assert!(other.receive(&mut [0; 1], &mut Vec::new()).unwrap_err().is_would_block());
    one.shutdown();
    assert_eq!(other.receive(&mut [0; 1], &mut Vec::new()).unwrap(), 0);
    assert_eq!(other.send(b"x", &[]).unwrap_err().errno(), Some(libc::EPIPE));
}

#[test]
fn a_socket_lets_in_its_user_or_a_group() {
    use std::os::unix::fs::MetadataExt;
    let folder = std::env::temp_dir().join(format!("hinterland-let-in-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("node.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let mode = || std::fs::metadata(&path).unwrap().mode() & 0o777;
    listener.let_in(None).unwrap();
    assert_eq!(mode(), 0o600);
    let own = std::fs::metadata(&path).unwrap().gid();
    listener.let_in(Some(own)).unwrap();
    assert_eq!((mode(), std::fs::metadata(&path).unwrap().gid()), (0o660, own));
    drop(listener);
    std::fs::remove_dir(&folder).unwrap();
}

#[test]
fn of_several_who_find_an_abandoned_socket_at_once_one_listens_and_is_reached() {
    let path = folder_path("raced");
    let way = |is_ours: bool| -> Option<(Option<UnixListener>, Option<std::os::unix::net::UnixListener>)> {
        if is_ours {
            return UnixListener::bind(&path).ok().map(|listener| (Some(listener), None));
        }
        let _alone = make_way(&path).ok()?;
        std::os::unix::net::UnixListener::bind(&path).ok().map(|listener| (None, Some(listener)))
    };
    for _ in 0..200 {
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let at_once = std::sync::Barrier::new(4);
        let begin = &|number| {
            at_once.wait();
            way(number % 2 == 0)
        };
        let listening: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|number| scope.spawn(move || begin(number))).collect();
            threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(listening.len(), 1);
        UnixStream::connect(&path, Duration::from_secs(5)).unwrap();
        drop(listening);
        // The standard library's leaves its file.
        let _ = std::fs::remove_file(&path);
    }
}

#[test]
fn a_path_is_freed_of_an_abandoned_socket_and_of_nothing_else() {
    let path = folder_path("way");
    drop(make_way(&path).unwrap());
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    drop(make_way(&path).unwrap());
    assert!(!path.exists());
    let listener = UnixListener::bind(&path).unwrap();
    assert_eq!(make_way(&path).unwrap_err().errno(), Some(libc::EADDRINUSE));
    drop(listener);
    std::fs::write(&path, b"kept").unwrap();
    assert!(make_way(&path).unwrap_err().to_string().contains("is there already and no socket"));
    assert_eq!(std::fs::read(&path).unwrap(), b"kept");
    std::fs::remove_file(&path).unwrap();
}
