//! Greetings that nobody should send, and threads that fail: the run goes on, or ends with a word.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use super::*;
use crate::store::{Packed, Stores};
use crate::{Budget, Watch};
use hinterland_os::userfault::Features;
use hinterland_os::{Mapping, PageKind};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Command;

/// How long an answer may take: it comes at once, or never.
const ANSWER_MAX: Duration = Duration::from_secs(20);
const UNIT: u64 = 64 << 10;
/// Says to a second process of this test that it is the second.
const SECOND: &str = "FAR_THREAD_FAILS";

fn supervised(name: &str) -> (Supervisor, PathBuf) {
    let folder = std::env::temp_dir().join(format!("hl-session-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let options = Options {
        budget: Budget::Bytes(1 << 30),
        unit_bytes: UNIT,
        stores: Arc::new(Stores::new(vec![Box::new(Packed::new(1 << 30))], 1)),
        ahead: false,
        service: crate::Service::default(),
        watch: Watch::Nothing,
    };
    (Supervisor::start(&folder.join("far.sock"), options).unwrap(), folder)
}

fn connect(folder: &Path) -> UnixStream {
    let stream = UnixStream::connect(&folder.join("far.sock"), ANSWER_MAX).unwrap();
    stream.set_receive_timeout(Some(ANSWER_MAX)).unwrap();
    stream
}

#[test]
fn a_staging_area_that_no_unit_fits_into_is_refused() {
    let Ok(faults) = Userfault::open(Features::WRITE_PROTECT) else {
        return eprintln!("not run: no userfaultfd here");
    };
    let (supervisor, folder) = supervised("staging");
    let probe = Mapping::anonymous(PAGE as usize, false).unwrap();
    let page = MemoryFile::anonymous("page", PAGE, PageKind::Base4K).unwrap().duplicate().unwrap();
    let greeting = connect(&folder);
    let hello = Message::new(Kind::Hello, [0, probe.address(), 1]);
    greeting.send_all(&hello.to_bytes(), &[page.as_fd(), faults.as_fd()]).unwrap();
    let mut answer = [0; wire::BYTES];
    greeting.receive_exact(&mut answer, &mut Vec::new()).unwrap();
    assert_eq!(Message::parse(&answer), Some(Message::new(Kind::Done, [0; 3])));
    let there = 1 << 30;
    for (address, bytes) in [
        (there, PAGE),
        (there + 1, 4 << 20),
        (there, 0),
        (ADDRESS_MAX, 4 << 20),
        (u64::MAX - PAGE + 1, 4 << 20),
    ] {
        let mover = connect(&folder);
        mover.send_all(&Message::new(Kind::Mover, [0, address, bytes]).to_bytes(), &[]).unwrap();
        let received = mover.receive(&mut answer, &mut Vec::new()).unwrap();
        assert_eq!(received, 0, "{bytes} bytes at {address:#x} are taken");
    }
    supervisor.finish();
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_greeting_with_a_place_that_no_program_has_is_refused() {
    let (supervisor, folder) = supervised("probe");
    for probe in [u64::MAX - PAGE + 1, 1, ADDRESS_MAX] {
        let greeting = connect(&folder);
        greeting.send_all(&Message::new(Kind::Hello, [0, probe, 1]).to_bytes(), &[]).unwrap();
        assert_eq!(greeting.receive(&mut [0; wire::BYTES], &mut Vec::new()).unwrap(), 0);
    }
    supervisor.finish();
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_message_that_comes_in_parts_keeps_nobody_waiting_and_is_heard_when_it_is_whole() {
    let (supervisor, folder) = supervised("parts");
    let (slow, other) = (connect(&folder), connect(&folder));
    let register = Message::new(Kind::Register, [0, 1 << 30, PAGE]).to_bytes();
    let mut answer = [0; wire::BYTES];
    for part in register.chunks(5) {
        slow.send_all(part, &[]).unwrap();
        // Whoever asks behind it is answered before the rest has come.
        other.send_all(&register, &[]).unwrap();
        other.receive_exact(&mut answer, &mut Vec::new()).unwrap();
        assert_eq!(Message::parse(&answer), Some(Message::new(Kind::Done, [0; 3])));
    }
    slow.receive_exact(&mut answer, &mut Vec::new()).unwrap();
    assert_eq!(Message::parse(&answer), Some(Message::new(Kind::Done, [0; 3])));
    // With more descriptors than any message has, it is none.
    let bell = EventCounter::new().unwrap();
    for byte in &register[..MESSAGE_DESCRIPTORS + 1] {
        slow.send_all(&[*byte], &[bell.as_fd()]).unwrap();
    }
    assert_eq!(slow.receive(&mut answer, &mut Vec::new()).unwrap_or(0), 0);
    supervisor.finish();
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_thread_that_fails_ends_the_whole_run_and_says_so() {
    if std::env::var_os(SECOND).is_some() {
        let thread = spawn("far-evict", None, || panic!("a defect")).unwrap();
        let _ = thread.join();
        std::process::exit(0);
    }
    let name = "session::tests::a_thread_that_fails_ends_the_whole_run_and_says_so";
    let mut second = Command::new(std::env::current_exe().unwrap());
    let ended = second.args(["--exact", name, "--nocapture"]).env(SECOND, "1").output().unwrap();
    const SIGABRT: i32 = 6;
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.signal(), Some(SIGABRT), "{said}");
    assert!(said.contains("far-evict") && said.contains("hint:"), "{said}");
}

#[test]
fn changes_of_one_read_are_taken_in_before_its_faults_and_in_order() {
    let fault = |address| {
        let fault = hinterland_os::userfault::Fault {
            address,
            write: false,
            write_protect: false,
            minor: false,
            thread: 0,
        };
        Event::Fault(fault)
    };
    let mut events =
        [fault(1), Event::Unmap { start: 2, end: 3 }, fault(4), Event::Remove { start: 5, end: 6 }];
    changes_first(&mut events);
    let places: Vec<u64> = events
        .iter()
        .map(|event| match event {
            Event::Fault(fault) => fault.address,
            Event::Unmap { start, .. } | Event::Remove { start, .. } => *start,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(places, [2, 5, 1, 4]);
}
