//! Sessions on the device in software, driven by raw commands: each command, each refusal, and the order of things.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

mod client;

use client::{Client, PIECE, fat_binary, hello, image, list};
use hinterland_channel::{Rings, pair};
use hinterland_gpunode::session::{SessionError, serve};
use hinterland_gpunode::software::SoftwareMachine;
use hinterland_proto::gpu::answer::{AnswerMessage, Bytes, Fault, Reached};
use hinterland_proto::gpu::command::{self as c, Command, launch_flags};
use hinterland_proto::gpu::{FunctionFacts, HELLO, write_edits};

const NONE: &str = "memory=64M,kernels=none";
const PTX: &str = "\
.version 9.0
.target sm_90
.address_size 64
.visible .global .align 4 .b8 table[256];
.visible .entry add(.param .u64 add_param_0, .param .u32 add_param_1)
{
    ret;
}
";

fn copy_in(client: &mut Client, stream: u32, address: u64, bytes: &[u8]) -> u64 {
    client.with_tail(&Command::CopyIn(c::CopyIn { stream, flags: 0, address }), bytes)
}

fn copy_out(client: &mut Client, stream: u32, transfer: u32, address: u64, bytes: u64) -> u64 {
    client.send(&Command::CopyOut(c::CopyOut { stream, transfer, address, bytes }))
}

fn stream(client: &mut Client, stream: u32, flags: u32) {
    client.send(&Command::StreamCreate(c::StreamCreate { stream, device: 0, flags, priority: 0 }));
}

fn event(client: &mut Client, event: u32, flags: u32) {
    client.send(&Command::EventCreate(c::EventCreate { event, device: 0, flags }));
}

fn mark(client: &mut Client, mark: u64, stream: u32) {
    client.send(&Command::MarkStream(c::MarkStream { mark, stream }));
}

fn launch(function: u32, stream: u32) -> c::Launch {
    c::Launch { function, stream, grid: [4, 1, 1], block: [128, 1, 1], shared: 0, flags: 0, cluster: [0; 3] }
}

/// A client with a kernel of 12 bytes of parameters by the name 1.
fn with_kernel(options: &str) -> Client {
    let mut client = Client::start(options);
    client.module(1, &fat_binary(PTX));
    client.with_tail(&Command::Function(c::Function { function: 1, module: 1 }), b"add");
    client.settle();
    client
}

#[test]
fn a_welcome_says_what_the_devices_are() {
    let client = Client::start("memory=64M,devices=2,kernels=none");
    let welcome = &client.welcome;
    assert_eq!((welcome.session, welcome.devices.len()), (7, 2));
    let device = &welcome.devices[0];
    assert_eq!(
        (device.name.as_str(), device.memory, device.capability),
        ("Hinterland software device", 64 << 20, (9, 0))
    );
    assert_ne!(device.uuid, welcome.devices[1].uuid);
    assert!(!device.needs_assembly && device.attributes.contains(&(16, 132)));
    assert!(welcome.window.is_multiple_of(welcome.granularity));
}

#[test]
fn a_client_of_another_version_is_told_which_one_is_spoken() {
    let (near, far) = pair(Rings::default()).unwrap();
    let session = std::thread::spawn(move || {
        serve::<SoftwareMachine>(far, Box::new(|| None), || (), |_, _| panic!("not to be made"))
    });
    let (mut sender, mut receiver) = near.split().unwrap();
    let hello = postcard::to_stdvec(&hello(99)).unwrap();
    let mut room = sender.room(HELLO, hello.len()).unwrap().unwrap();
    room.append(&hello).unwrap();
    room.commit();
    assert!(receiver.wait(None).unwrap());
    let mut frame = receiver.next().unwrap().unwrap();
    assert_eq!(frame.word(), Fault::WORD);
    assert!(String::from_utf8_lossy(frame.bytes()).contains("speaks version 99"));
    assert!(matches!(session.join().unwrap(), Err(SessionError::Refused(_))));
}

#[test]
fn bytes_that_were_copied_in_come_back_before_the_mark_behind_them() {
    let mut client = Client::start(NONE);
    let address = client.map(3, 2);
    // Over the border of two ranges as well.
    client.map(5, 1);
    let bytes: Vec<u8> = (0..PIECE + 4096).map(|at| (at * 7 % 251) as u8).collect();
    let start = address + PIECE + 100;
    for (index, part) in bytes.chunks(300_000).enumerate() {
        copy_in(&mut client, 0, start + index as u64 * 300_000, part);
    }
    copy_out(&mut client, 0, 5, start, bytes.len() as u64);
    mark(&mut client, 17, 0);
    client.expect_bytes(5, &bytes);
    client.expect_reached(17, 0);
    copy_out(&mut client, 0, 6, start, 0);
    client.expect_bytes(6, &[]);
}

#[test]
fn rows_are_copied_with_the_gaps_between_them_left_alone() {
    let mut client = Client::start(NONE);
    let address = client.map(0, 1);
    client.send(&Command::Fill(c::Fill { stream: 0, element: 1, address, count: 64, value: 0xee }));
    let rows = c::CopyInRows { stream: 0, flags: 0, address, pitch: 8, width: 3, rows: 3 };
    client.with_tail(&Command::CopyInRows(rows), b"abcdefghi");
    copy_out(&mut client, 0, 1, address, 24);
    client.expect_bytes(1, b"abc\xee\xee\xee\xee\xeedef\xee\xee\xee\xee\xeeghi\xee\xee\xee\xee\xee");
    let within = c::CopyRows {
        stream: 0,
        flags: 0,
        to: address + 100,
        to_pitch: 4,
        from: address,
        from_pitch: 8,
        width: 3,
        rows: 3,
    };
    client.send(&Command::CopyRows(within));
    client.send(&Command::CopyOutRows(c::CopyOutRows {
        stream: 0,
        transfer: 2,
        address: address + 100,
        pitch: 4,
        width: 3,
        rows: 3,
    }));
    client.expect_bytes(2, b"abcdefghi");
    client.send(&Command::FillRows(c::FillRows {
        stream: 0,
        element: 4,
        address,
        pitch: 8,
        count: 1,
        rows: 2,
        value: 0x0403_0201,
    }));
    copy_out(&mut client, 0, 3, address, 16);
    client.expect_bytes(3, b"\x01\x02\x03\x04\xee\xee\xee\xee\x01\x02\x03\x04\xee\xee\xee\xee");
    // Both ways over itself, as if through a buffer.
    for (to, from, expected) in [(1, 0, b"\x01\x01\x02\x03\x04"), (0, 1, b"\x01\x02\x03\x04\x04")] {
        client.send(&Command::CopyWithin(c::CopyWithin {
            stream: 0,
            flags: 0,
            to: address + to,
            from: address + from,
            bytes: 4,
        }));
        copy_out(&mut client, 0, 4, address, 5);
        client.expect_bytes(4, expected);
    }
}

#[test]
fn ranges_that_are_not_all_memory_of_the_session_are_refused() {
    let mut client = Client::start(NONE);
    let address = client.map(1, 1);
    let end = address + PIECE;
    for (start, bytes) in [
        (end - 8, 9),
        (address - 1, 4),
        (0, 1),
        (u64::MAX - 2, 8),
        (address, u64::MAX),
        (client.welcome.window, 1),
    ] {
        let count = copy_out(&mut client, 0, 9, start, bytes);
        client.expect_fault(count, 1, "");
        let got = client.next();
        assert_eq!(got.message, AnswerMessage::Bytes(Bytes { transfer: 9, error: 1, offset: 0 }));
    }
    let count = copy_in(&mut client, 0, end - 2, b"abc");
    client.expect_fault(count, 1, "3 bytes at");
    let rows = c::CopyOutRows { stream: 0, transfer: 1, address, pitch: u64::MAX / 2, width: 1, rows: 4 };
    let count = client.send(&Command::CopyOutRows(rows));
    client.expect_fault(count, 1, "beyond all addresses");
    client.next();
    let overlapping = c::FillRows { stream: 0, element: 1, address, pitch: 2, count: 3, rows: 2, value: 0 };
    let count = client.send(&Command::FillRows(overlapping));
    client.expect_fault(count, 1, "begin every 2 bytes");
    let count = client.send(&Command::Fill(c::Fill { stream: 0, element: 3, address, count: 1, value: 0 }));
    client.expect_fault(count, 1, "elements of 3 bytes");
    let count = client.send(&Command::Fill(c::Fill {
        stream: 0,
        element: 4,
        address: address + 2,
        count: 1,
        value: 0,
    }));
    client.expect_fault(count, 1, "no address of elements");
    client.settle();
}

#[test]
fn memory_is_mapped_once_within_the_window_and_the_grant() {
    let mut client = Client::with_grant(NONE, 4 * PIECE);
    let address = client.map(0, 3);
    client.map(2, 1);
    let count = client.count;
    client.expect_fault(count, 1, "have memory already");
    client.map(8, 2);
    let count = client.count;
    client.expect_fault(count, 2, "are left of the grant");
    let window_end = client.welcome.window_bytes / PIECE;
    for (piece, pieces) in [(window_end, 1), (window_end - 1, 2), (0, 0)] {
        client.map(piece, pieces);
        let count = client.count;
        client.expect_fault(count, 1, "");
    }
    let unmap = |address, bytes| Command::UnmapMemory(c::UnmapMemory { address, bytes });
    let count = client.send(&unmap(address, PIECE));
    client.expect_fault(count, 1, "not mapped as one range");
    client.send(&unmap(address, 3 * PIECE));
    let count = client.send(&unmap(address, 3 * PIECE));
    client.expect_fault(count, 1, "not mapped");
    client.map(1, 4);
    client.settle();
    let map = c::MapMemory { device: 1, flags: 0, address: address + 64 * PIECE, bytes: PIECE };
    let count = client.send(&Command::MapMemory(map));
    client.expect_fault(count, 101, "no device 1");
    client.send(&Command::AskGrant(c::AskGrant { question: 4, device: 0, least: 0, wanted: 1 << 30 }));
    assert_eq!(client.expect_answer(4), Ok([4 * PIECE, 0].map(u64::to_le_bytes).concat()));
}

#[test]
fn memory_that_was_taken_back_and_given_again_is_fresh_even_behind_slow_work() {
    let mut client = Client::start("memory=8M,kernels=none,delay-us=2000");
    let address = client.map(0, 4);
    for turn in 0..4 {
        copy_in(&mut client, 0, address, b"before");
        copy_out(&mut client, 0, turn, address, 6);
        client.send(&Command::UnmapMemory(c::UnmapMemory { address, bytes: 4 * PIECE }));
        client.map(0, 4);
        copy_out(&mut client, 0, 100 + turn, address, 6);
    }
    for turn in 0..4 {
        client.expect_bytes(turn, b"before");
        client.expect_bytes(100 + turn, &[0; 6]);
    }
    client.settle();
}

/// Waits until the word at an address is 5.
const AWAIT: &str = "
.version 9.0
.target sm_90
.address_size 64

.visible .entry await(.param .u64 place)
{
    .reg .pred %p<2>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [place];
again:
    ld.volatile.global.u32 %r1, [%rd1];
    setp.ne.u32 %p1, %r1, 5;
    @%p1 bra again;
    ret;
}
";

#[test]
fn work_that_comes_behind_memory_that_is_given_back_may_end_what_that_waits_for() {
    let mut client = Client::start("memory=16M,threads=2");
    let word = client.map(0, 1);
    let (other, third) = (word + PIECE, word + 2 * PIECE);
    let map = |address| Command::MapMemory(c::MapMemory { device: 0, flags: 0, address, bytes: PIECE });
    client.send(&map(other));
    client.module(1, &fat_binary(AWAIT));
    client.with_tail(&Command::Function(c::Function { function: 1, module: 1 }), b"await");
    stream(&mut client, 20, 1);
    stream(&mut client, 21, 1);
    let fields = c::Launch { grid: [1, 1, 1], block: [1, 1, 1], ..launch(1, 20) };
    client.with_tail(&Command::Launch(fields), &word.to_le_bytes());
    client.send(&Command::UnmapMemory(c::UnmapMemory { address: other, bytes: PIECE }));
    client.send(&map(third));
    copy_in(&mut client, 21, third, b"there");
    copy_out(&mut client, 21, 1, third, 5);
    client.expect_bytes(1, b"there");
    copy_in(&mut client, 21, word, &[5, 0, 0, 0]);
    mark(&mut client, 3, 20);
    assert_eq!(client.next().message, AnswerMessage::Reached(Reached { mark: 3, error: 0 }));
    client.settle();
}

#[test]
fn names_that_nothing_has_and_names_used_twice_are_refused() {
    let mut client = with_kernel(NONE);
    let unknown: [(Command, &str); 16] = [
        (Command::StreamDestroy(c::StreamDestroy { stream: 20 }), "no stream 20"),
        (Command::StreamDestroy(c::StreamDestroy { stream: 0 }), "no stream 0"),
        (Command::EventDestroy(c::EventDestroy { event: 3 }), "no event 3"),
        (Command::EventRecord(c::EventRecord { event: 3, stream: 0, flags: 0 }), "no event 3"),
        (Command::StreamWait(c::StreamWait { stream: 0, event: 3, flags: 0 }), "no event 3"),
        (Command::Fence(c::Fence { stream: 1 }), "no stream 1"),
        (Command::ModuleDrop(c::ModuleDrop { module: 8 }), "no module 8"),
        (
            Command::FunctionAttribute(c::FunctionAttribute { function: 9, attribute: 8, value: 0 }),
            "no kernel 9",
        ),
        (Command::Launch(launch(9, 0)), "no kernel 9"),
        (Command::Launch(launch(1, 77)), "no stream 77"),
        (Command::GraphDestroy(c::GraphDestroy { graph: 5 }), "no graph 5"),
        (Command::GraphInstantiate(c::GraphInstantiate { exec: 1, graph: 5, flags: 0 }), "no graph 5"),
        (Command::GraphLaunch(c::GraphLaunch { exec: 1, stream: 0 }), "no instance of a graph 1"),
        (Command::GraphExecDestroy(c::GraphExecDestroy { exec: 1 }), "no instance of a graph 1"),
        (Command::BlasDestroy(c::BlasDestroy { handle: 1 }), "no cuBLAS handle 1"),
        (Command::BlasSet(c::BlasSet { handle: 1, property: 1, value: 0, more: 0 }), "no cuBLAS handle 1"),
    ];
    for (command, words) in unknown {
        let count = client.send(&command);
        client.expect_fault(count, 400, words);
    }
    for make in [
        Command::StreamCreate(c::StreamCreate { stream: 20, device: 0, flags: 0, priority: 0 }),
        Command::EventCreate(c::EventCreate { event: 3, device: 0, flags: 0 }),
        Command::BlasCreate(c::BlasCreate { handle: 3, device: 0 }),
    ] {
        client.send(&make);
        client.settle();
        let count = client.send(&make);
        client.expect_fault(count, 1, "already");
    }
    let count =
        client.send(&Command::StreamCreate(c::StreamCreate { stream: 15, device: 0, flags: 0, priority: 0 }));
    client.expect_fault(count, 1, "already");
    let count = client.with_tail(&Command::Function(c::Function { function: 1, module: 1 }), b"add");
    client.expect_fault(count, 1, "already");
    client.send(&Command::MarkStream(c::MarkStream { mark: 4, stream: 50 }));
    let count = client.count;
    client.expect_fault(count, 400, "no stream 50");
    client.expect_reached(4, 400);
}

#[test]
fn fat_binaries_are_taken_only_if_they_are_what_their_hash_says() {
    let mut client = Client::start(NONE);
    let good = fat_binary(PTX);
    let head = c::Module { module: 1, device: 0, bytes: good.len() as u64, hash: [3; 32] };
    client.send(&Command::Module(head));
    let count = client.with_tail(&Command::ModulePart(c::ModulePart { module: 1 }), &good);
    client.expect_fault(count, 200, "not what its hash says");
    client.send(&Command::Module(head));
    let count = client.with_tail(&Command::ModulePart(c::ModulePart { module: 1 }), &vec![0; good.len() + 1]);
    client.expect_fault(count, 1, "came as");
    let count = client.send(&Command::Module(c::Module { bytes: 0, ..head }));
    client.expect_fault(count, 500, "send its bytes");
    let count = client.send(&Command::Module(c::Module { bytes: u64::MAX, ..head }));
    client.expect_fault(count, 1, "too large");
    let count = client.module(2, b"no fat binary at all");
    client.expect_fault(count, 200, "");
    client.module(1, &good);
    let count = client.with_tail(&Command::Function(c::Function { function: 2, module: 1 }), b"subtract");
    client.expect_fault(count, 500, "no kernel \"subtract\"");
    let count = client.with_tail(&Command::Function(c::Function { function: 2, module: 1 }), b"\xff\xfe");
    client.expect_fault(count, 1, "no text");
    client.with_tail(&Command::AskSymbol(c::AskSymbol { question: 1, module: 1 }), b"table");
    let place = client.expect_answer(1).unwrap();
    assert_eq!(place[8..], 256_u64.to_le_bytes());
    client.with_tail(&Command::AskSymbol(c::AskSymbol { question: 2, module: 1 }), b"no table");
    assert_eq!(client.expect_answer(2), Err(500));
    let address = u64::from_le_bytes(place[..8].try_into().unwrap());
    copy_in(&mut client, 0, address, &[5; 256]);
    copy_out(&mut client, 0, 3, address + 250, 6);
    client.expect_bytes(3, &[5; 6]);
}

#[test]
fn an_image_without_ptx_is_taken_only_where_kernels_do_nothing() {
    let mut client = Client::start("memory=64M");
    let count = client.module(1, &image(2, b"machine code"));
    client.expect_fault(count, 209, "no PTX");
}

#[test]
fn launches_out_of_range_are_refused() {
    let mut client = with_kernel(NONE);
    let good = launch(1, 0);
    client.with_tail(&Command::Launch(good), &[0; 12]);
    client.settle();
    for (bad, words) in [
        (c::Launch { grid: [0, 1, 1], ..good }, "out of range"),
        (c::Launch { grid: [1, 65_536, 1], ..good }, "out of range"),
        (c::Launch { block: [1024, 2, 1], ..good }, "out of range"),
        (c::Launch { block: [1, 1, 65], ..good }, "out of range"),
        (c::Launch { shared: 50 << 10, ..good }, "dynamic shared memory"),
        (c::Launch { flags: launch_flags::CLUSTER, cluster: [3, 1, 1], ..good }, "clusters"),
        (c::Launch { flags: launch_flags::CLUSTER, cluster: [0, 1, 1], ..good }, "clusters"),
    ] {
        let count = client.with_tail(&Command::Launch(bad), &[0; 12]);
        client.expect_fault(count, 1, words);
    }
    let count = client.with_tail(&Command::Launch(good), &[0; 11]);
    client.expect_fault(count, 1, "12 bytes of parameters was given 11");
    let all = c::Launch { flags: launch_flags::COOPERATIVE, grid: [100_000, 1, 1], ..good };
    let count = client.with_tail(&Command::Launch(all), &[0; 12]);
    client.expect_fault(count, 720, "fit at once");
    let attribute =
        |value| Command::FunctionAttribute(c::FunctionAttribute { function: 1, attribute: 8, value });
    client.send(&attribute(100 << 10));
    client.with_tail(&Command::Launch(c::Launch { shared: 50 << 10, ..good }), &[0; 12]);
    let count = client.send(&attribute(228 << 10));
    client.expect_fault(count, 1, "more than");
    client.send(&Command::AskFunction(c::AskFunction { question: 1, function: 1 }));
    let facts: FunctionFacts = postcard::from_bytes(&client.expect_answer(1).unwrap()).unwrap();
    assert_eq!((facts.dynamic_shared_max, facts.threads_max), (100 << 10, 1024));
    client.send(&Command::AskOccupancy(c::AskOccupancy {
        question: 2,
        function: 1,
        threads: 1024,
        flags: 0,
        shared: 0,
    }));
    assert_eq!(client.expect_answer(2), Ok(2_u32.to_le_bytes().to_vec()));
    client.send(&Command::ModuleDrop(c::ModuleDrop { module: 1 }));
    let count = client.with_tail(&Command::Launch(good), &[0; 12]);
    client.expect_fault(count, 400, "no kernel 1");
}

#[test]
fn work_of_one_stream_is_in_order_and_waits_for_events_of_others() {
    let mut client = Client::start("memory=64M,kernels=none,delay-us=3000");
    let address = client.map(0, 1);
    stream(&mut client, 20, 1);
    stream(&mut client, 21, 1);
    event(&mut client, 1, 2);
    copy_in(&mut client, 20, address, b"one");
    copy_in(&mut client, 20, address, b"two");
    client.send(&Command::EventRecord(c::EventRecord { event: 1, stream: 20, flags: 0 }));
    copy_in(&mut client, 20, address + 8, b"later");
    client.send(&Command::StreamWait(c::StreamWait { stream: 21, event: 1, flags: 0 }));
    copy_out(&mut client, 21, 1, address, 3);
    mark(&mut client, 2, 21);
    client.expect_bytes(1, b"two");
    client.expect_reached(2, 0);
    client.send(&Command::MarkEvent(c::MarkEvent { mark: 3, event: 1 }));
    client.expect_reached(3, 0);
    client.send(&Command::MarkDevice(c::MarkDevice { mark: 4, device: 0 }));
    client.expect_reached(4, 0);
}

#[test]
fn the_default_stream_waits_for_streams_that_are_not_apart_and_they_for_it() {
    let mut client = Client::start("memory=64M,kernels=none,delay-us=3000");
    let address = client.map(0, 1);
    stream(&mut client, 20, 0);
    stream(&mut client, 21, 0);
    copy_in(&mut client, 20, address, b"first");
    client.send(&Command::CopyWithin(c::CopyWithin {
        stream: 0,
        flags: 0,
        to: address + 8,
        from: address,
        bytes: 5,
    }));
    copy_out(&mut client, 21, 1, address + 8, 5);
    client.expect_bytes(1, b"first");
    // The work of a stream that is gone still counts.
    copy_in(&mut client, 20, address, b"again");
    client.send(&Command::StreamDestroy(c::StreamDestroy { stream: 20 }));
    copy_out(&mut client, 0, 2, address, 5);
    client.expect_bytes(2, b"again");
}

#[test]
fn a_fence_holds_back_streams_that_are_apart() {
    let mut client = Client::start("memory=64M,kernels=none,delay-us=3000");
    let address = client.map(0, 1);
    stream(&mut client, 20, 1);
    stream(&mut client, 21, 1);
    for turn in 0..10_u8 {
        copy_in(&mut client, 20, address, &[turn; 4]);
        client.send(&Command::Fence(c::Fence { stream: 20 }));
        copy_out(&mut client, 21, turn.into(), address, 4);
        client.expect_bytes(turn.into(), &[turn; 4]);
    }
}

#[test]
fn a_fence_holds_also_behind_memory_that_is_given_again() {
    let mut client = Client::start("memory=64M,kernels=none,delay-us=30000");
    let (again, other) = (client.map(0, 1), client.map(1, 1));
    stream(&mut client, 20, 1);
    stream(&mut client, 21, 1);
    copy_in(&mut client, 20, again, &[1; 4]);
    client.send(&Command::UnmapMemory(c::UnmapMemory { address: again, bytes: PIECE }));
    for turn in 2..6 {
        copy_in(&mut client, 20, other, &[turn; 4]);
    }
    client.send(&Command::Fence(c::Fence { stream: 20 }));
    client.map(0, 1);
    copy_out(&mut client, 21, 7, other, 4);
    client.expect_bytes(7, &[5; 4]);
}

#[test]
fn time_between_events_is_answered_when_both_are_done() {
    let mut client = Client::start("memory=64M,kernels=none,delay-us=20000");
    let address = client.map(0, 1);
    for name in [1, 2] {
        event(&mut client, name, 0);
    }
    event(&mut client, 3, 2);
    let elapsed = |question, start, end| Command::EventElapsed(c::EventElapsed { question, start, end });
    client.send(&elapsed(1, 1, 2));
    assert_eq!(client.expect_answer(1), Err(400));
    client.send(&Command::EventRecord(c::EventRecord { event: 1, stream: 0, flags: 0 }));
    copy_in(&mut client, 0, address, b"slow");
    for name in [2, 3] {
        client.send(&Command::EventRecord(c::EventRecord { event: name, stream: 0, flags: 0 }));
    }
    client.send(&elapsed(2, 1, 2));
    let milliseconds =
        f32::from_bits(u32::from_le_bytes(client.expect_answer(2).unwrap().try_into().unwrap()));
    assert!(milliseconds >= 20.0, "{milliseconds}");
    client.send(&elapsed(3, 1, 3));
    assert_eq!(client.expect_answer(3), Err(400), "an event without time");
}

fn define(client: &mut Client, graph: u32, base: u32, list_bytes: usize, sent: &[u8]) -> u64 {
    let head =
        c::Graph { graph, base, stream: 20, flags: 0, bytes: list_bytes as u64, sent: sent.len() as u64 };
    let mut count = client.send(&Command::Graph(head));
    for part in sent.chunks(100) {
        count = client.with_tail(&Command::GraphPart(c::GraphPart { graph }), part);
    }
    count
}

fn launch_graph(client: &mut Client, exec: u32, stream: u32) -> u64 {
    client.send(&Command::GraphLaunch(c::GraphLaunch { exec, stream }))
}

#[test]
fn graphs_do_their_list_at_each_launch_and_what_their_edits_say() {
    for options in [NONE, "memory=64M,kernels=none,delay-us=1000"] {
        let mut client = Client::start(options);
        let address = client.map(0, 1);
        stream(&mut client, 20, 1);
        stream(&mut client, 21, 1);
        event(&mut client, 1, 2);
        event(&mut client, 2, 2);
        let copy = |to, from| {
            Command::CopyWithin(c::CopyWithin {
                stream: 20,
                flags: 0,
                to: address + to,
                from: address + from,
                bytes: 4,
            })
        };
        let old = list(&[
            (copy(4, 0), &[]),
            (Command::EventRecord(c::EventRecord { event: 1, stream: 20, flags: 0 }), &[]),
            (Command::StreamWait(c::StreamWait { stream: 21, event: 1, flags: 0 }), &[]),
            (Command::CopyIn(c::CopyIn { stream: 21, flags: 0, address }), b"next"),
            (Command::EventRecord(c::EventRecord { event: 2, stream: 21, flags: 0 }), &[]),
            (Command::StreamWait(c::StreamWait { stream: 20, event: 2, flags: 0 }), &[]),
            (copy(8, 0), &[]),
        ]);
        define(&mut client, 1, 0, old.len(), &old);
        client.send(&Command::GraphInstantiate(c::GraphInstantiate { exec: 5, graph: 1, flags: 0 }));
        // Streams and events of a capture need not outlive it.
        client.send(&Command::StreamDestroy(c::StreamDestroy { stream: 21 }));
        client.send(&Command::EventDestroy(c::EventDestroy { event: 1 }));
        copy_in(&mut client, 20, address, b"past");
        launch_graph(&mut client, 5, 20);
        copy_out(&mut client, 20, 1, address, 12);
        client.expect_bytes(1, b"nextpastnext");
        let new = list(&[
            (copy(4, 0), &[]),
            (Command::EventRecord(c::EventRecord { event: 1, stream: 20, flags: 0 }), &[]),
            (Command::StreamWait(c::StreamWait { stream: 21, event: 1, flags: 0 }), &[]),
            (Command::CopyIn(c::CopyIn { stream: 21, flags: 0, address }), b"more"),
            (Command::EventRecord(c::EventRecord { event: 2, stream: 21, flags: 0 }), &[]),
            (Command::StreamWait(c::StreamWait { stream: 20, event: 2, flags: 0 }), &[]),
            (copy(8, 0), &[]),
        ]);
        stream(&mut client, 21, 1);
        event(&mut client, 1, 2);
        let mut edits = Vec::new();
        assert!(write_edits(&old, &new, &mut edits));
        define(&mut client, 2, 1, new.len(), &edits);
        client.send(&Command::GraphDestroy(c::GraphDestroy { graph: 1 }));
        client.send(&Command::GraphUpdate(c::GraphUpdate { exec: 5, graph: 2 }));
        for _ in 0..3 {
            launch_graph(&mut client, 5, 20);
        }
        copy_out(&mut client, 20, 2, address, 12);
        mark(&mut client, 9, 20);
        client.expect_bytes(2, b"moremoremore");
        client.expect_reached(9, 0);
        client.send(&Command::GraphExecDestroy(c::GraphExecDestroy { exec: 5 }));
        let count = launch_graph(&mut client, 5, 20);
        client.expect_fault(count, 400, "no instance of a graph 5");
        client.settle();
    }
}

#[test]
fn a_graph_copies_what_comes_with_its_launch_and_brings_bytes_under_the_names_that_came() {
    for options in [NONE, "memory=64M,kernels=none,delay-us=1000"] {
        let mut client = Client::start(options);
        let address = client.map(0, 1);
        stream(&mut client, 20, 1);
        let copy = |rows| c::CopyInAtLaunch { stream: 20, flags: 0, address, pitch: 8, width: 4, rows };
        let out = |address, bytes| Command::CopyOut(c::CopyOut { stream: 20, transfer: 77, address, bytes });
        let list = list(&[
            (Command::CopyInAtLaunch(copy(2)), &[]),
            (out(address, 4), &[]),
            (
                Command::Fill(c::Fill { stream: 20, element: 1, address: address + 4, count: 4, value: 46 }),
                &[],
            ),
            (out(address, 12), &[]),
        ]);
        define(&mut client, 1, 0, list.len(), &list);
        client.send(&Command::GraphInstantiate(c::GraphInstantiate { exec: 5, graph: 1, flags: 0 }));
        let content = Command::LaunchContent(c::LaunchContent { exec: 5, transfers: 2 });
        for (names, bytes) in [([1_u32, 2], b"onlytwo."), ([3, 4], b"anything")] {
            client.with_tail(&content, &names.map(u32::to_le_bytes).concat());
            client.with_tail(&content, &bytes[..3]);
            client.with_tail(&content, &bytes[3..]);
            launch_graph(&mut client, 5, 20);
            client.expect_bytes(names[0], &bytes[..4]);
            client.expect_bytes(names[1], &[&bytes[..4], b"....", &bytes[4..]].concat());
        }
        // Too little, or nothing: refused, and who waits for bytes is told.
        client.with_tail(&content, &[[9_u32, 8].map(u32::to_le_bytes).concat(), vec![1]].concat());
        let count = launch_graph(&mut client, 5, 20);
        client.expect_fault(count, 1, "takes 8 bytes and 2 names came with 1 bytes and 2 names");
        for transfer in [9, 8] {
            let none = AnswerMessage::Bytes(Bytes { transfer, error: 1, offset: 0 });
            assert_eq!(client.next().message, none);
        }
        let count = launch_graph(&mut client, 5, 20);
        client.expect_fault(count, 1, "came with 0 bytes");
        let count = client.send(&Command::CopyInAtLaunch(copy(1)));
        client.expect_fault(count, 801, "in graphs only");
        client.settle();
    }
}

#[test]
fn graphs_of_what_may_not_stand_in_them_are_refused() {
    let mut client = Client::start(NONE);
    let address = client.map(0, 1);
    stream(&mut client, 20, 1);
    let map =
        Command::MapMemory(c::MapMemory { device: 0, flags: 0, address: address + PIECE, bytes: PIECE });
    let fill = |stream| Command::Fill(c::Fill { stream, element: 1, address, count: 1, value: 0 });
    let record = Command::EventRecord(c::EventRecord { event: 33, stream: 20, flags: 1 });
    client.send(&Command::BlasCreate(c::BlasCreate { handle: 3, device: 0 }));
    let workspace =
        |value, more| (Command::BlasSet(c::BlasSet { handle: 3, property: 3, value, more }), &[][..]);
    let cases: [(Vec<u8>, i32, &str); 7] = [
        (list(&[workspace(address, PIECE + 1)]), 1, "not all memory of this session"),
        (list(&[workspace(u64::MAX, 2)]), 1, "command 0 of a graph"),
        (list(&[(map, &[])]), 1, "MapMemory may not stand"),
        (list(&[(fill(20), &[]), (Command::Fence(c::Fence { stream: 20 }), &[])]), 1, "Fence may not stand"),
        (list(&[(fill(20), &[])])[..20].to_vec(), 1, "cut off"),
        (vec![255; 64], 1, "cut off"),
        (list(&[(record, &[])]), 400, "command 0 of a graph: there is no event 33"),
    ];
    for (bytes, error, words) in cases {
        let count = define(&mut client, 1, 0, bytes.len(), &bytes);
        client.expect_fault(count, error, words);
    }
    let good = list(&[(fill(20), &[]), workspace(address, PIECE), workspace(0, 0)]);
    let count = client.send(&Command::Graph(c::Graph {
        graph: 1,
        base: 0,
        stream: 20,
        flags: 0,
        bytes: 1 << 40,
        sent: 1 << 40,
    }));
    client.expect_fault(count, 1, "too large");
    define(&mut client, 1, 0, good.len(), &good);
    let count = define(&mut client, 2, 1, good.len(), &[200, 0, 0, 0, 8, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    client.expect_fault(count, 1, "edits of a graph do not fit");
    let count = define(&mut client, 2, 1, good.len() + 8, &[]);
    client.expect_fault(count, 1, "another length");
    client.send(&Command::GraphInstantiate(c::GraphInstantiate { exec: 1, graph: 1, flags: 0 }));
    client.send(&Command::UnmapMemory(c::UnmapMemory { address, bytes: PIECE }));
    let count = launch_graph(&mut client, 1, 20);
    client.expect_fault(count, 1, "command 0 of a graph");
    client.settle();
}

#[test]
fn a_graph_of_streams_and_events_that_have_ended_since_its_capture_is_launched() {
    let mut client = Client::start(NONE);
    let address = client.map(0, 1);
    let fill = |stream, value| Command::Fill(c::Fill { stream, element: 1, address, count: 4, value });
    let record = Command::EventRecord(c::EventRecord { event: 1, stream: 20, flags: 0 });
    let wait = Command::StreamWait(c::StreamWait { stream: 21, event: 1, flags: 0 });
    let commands = list(&[(fill(20, 3), &[]), (record, &[]), (wait, &[]), (fill(21, 4), &[])]);
    define(&mut client, 1, 0, commands.len(), &commands);
    client.send(&Command::GraphInstantiate(c::GraphInstantiate { exec: 1, graph: 1, flags: 0 }));
    launch_graph(&mut client, 1, 0);
    copy_out(&mut client, 0, 1, address, 4);
    client.expect_bytes(1, &[4; 4]);
    let many: Vec<(Command, &[u8])> = (0..=1 << 14).map(|stream| (fill(100 + stream, 0), &[][..])).collect();
    let commands = list(&many);
    let bytes = commands.len() as u64;
    let head = c::Graph { graph: 2, base: 0, stream: 20, flags: 0, bytes, sent: bytes };
    client.send(&Command::Graph(head));
    let mut count = 0;
    for part in commands.chunks(100_000) {
        count = client.with_tail(&Command::GraphPart(c::GraphPart { graph: 2 }), part);
    }
    client.expect_fault(count, 2, "at most 16384 streams in a graph");
}

#[test]
fn an_error_of_a_kernel_stays_and_every_mark_says_it() {
    let mut client = with_kernel("memory=64M,kernels=none,fault=launch:2:700");
    let address = client.map(0, 1);
    client.with_tail(&Command::Launch(launch(1, 0)), &[0; 12]);
    client.settle();
    let count = client.with_tail(&Command::Launch(launch(1, 0)), &[0; 12]);
    let got = client.next();
    assert!(
        matches!(got.message, AnswerMessage::Fault(Fault { error: 700, library: 0, sticky: 1, command }) if command == count)
    );
    mark(&mut client, 1, 0);
    client.expect_reached(1, 700);
    copy_out(&mut client, 0, 1, address, 8);
    assert_eq!(client.next().message, AnswerMessage::Bytes(Bytes { transfer: 1, error: 700, offset: 0 }));
    client.send(&Command::MarkDevice(c::MarkDevice { mark: 2, device: 0 }));
    assert_eq!(client.next().message, AnswerMessage::Reached(Reached { mark: 2, error: 700 }));
}

#[test]
fn an_error_of_a_copy_names_its_command_and_the_session_goes_on() {
    let mut client = Client::start("memory=64M,kernels=none,delay-us=500,fault=copy-out:2:999,fault=map:2:2");
    let address = client.map(0, 1);
    copy_out(&mut client, 0, 1, address, 8);
    let count = copy_out(&mut client, 0, 2, address, 8);
    mark(&mut client, 3, 0);
    client.expect_bytes(1, &[0; 8]);
    client.expect_fault(count, 999, "asks for this");
    assert_eq!(client.next().message, AnswerMessage::Bytes(Bytes { transfer: 2, error: 999, offset: 0 }));
    client.expect_reached(3, 0);
    client.map(1, 1);
    let count = client.count;
    client.expect_fault(count, 2, "asks for this");
    client.map(1, 1);
    client.settle();
}

#[test]
fn bodies_that_are_not_what_their_word_says_are_refused_one_by_one() {
    let mut client = Client::start(NONE);
    client.raw(0x1234, &[1, 2, 3]);
    client.expect_fault(1, 1, "nothing has the number");
    client.raw(c::CopyIn::WORD, &[0; 5]);
    client.expect_fault(2, 1, "5 bytes in place of 16");
    client.raw(c::Fence::WORD, &[0; 5]);
    client.expect_fault(3, 1, "5 bytes in place of 4");
    client.raw(HELLO, &[]);
    client.expect_fault(4, 1, "nothing has the number");
    client.settle();
}

#[test]
fn a_copy_out_larger_than_a_frame_comes_in_pieces_while_commands_go_on() {
    let mut client = Client::start("memory=128M,kernels=none");
    let address = client.map(0, 24);
    let bytes = 24 * PIECE;
    client.send(&Command::Fill(c::Fill {
        stream: 0,
        element: 4,
        address,
        count: bytes / 4,
        value: 0x0102_0304,
    }));
    copy_out(&mut client, 0, 1, address, bytes);
    mark(&mut client, 2, 0);
    // More than a ring has room for comes back, and commands are read all the same.
    for _ in 0..10_000 {
        client.send(&Command::Fence(c::Fence { stream: 0 }));
    }
    let expected: Vec<u8> = [4, 3, 2, 1].into_iter().cycle().take(bytes as usize).collect();
    client.expect_bytes(1, &expected);
    client.expect_reached(2, 0);
}

#[test]
fn a_tensor_map_is_asked_of_a_driver_and_a_malformed_question_is_refused() {
    let mut client = Client::start(NONE);
    let address = client.map(0, 1);
    let tail = |rank: usize| vec![1_u8; 24 * rank - 8];
    let ask = |question, device, address, rank| {
        let (element, interleave, swizzle, promotion, fill) = (7, 0, 0, 0, 0);
        let ask = c::AskTensorMap {
            question,
            device,
            address,
            element,
            rank,
            interleave,
            swizzle,
            promotion,
            fill,
        };
        Command::AskTensorMap(ask)
    };
    client.with_tail(&ask(1, 0, address, 2), &tail(2));
    assert_eq!(client.expect_answer(1), Err(801), "the device in software has none");
    for (question, device, place, rank, tail, error) in [
        (2, 0, address, 0, Vec::new(), 1),
        (3, 0, address, 6, tail(6), 1),
        (4, 0, address, u32::MAX, tail(1), 1),
        (5, 0, address, 2, tail(3), 1),
        (6, 0, address + PIECE, 2, tail(2), 1),
        (7, 9, address, 2, tail(2), 101),
    ] {
        client.with_tail(&ask(question, device, place, rank), &tail);
        assert_eq!(client.expect_answer(question), Err(error), "question {question}");
    }
}

#[path = "sessions/instances.rs"]
mod instances;
