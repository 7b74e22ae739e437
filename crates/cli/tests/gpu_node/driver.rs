//! What the node makes of what only a driver knows or does: with the one that stands in for it.

use super::{ADD_PARAMETERS, Client, Node, PIECE, add, load_module, name_add, stand_in};
use hinterland_proto::gpu::answer::{Answer, AnswerMessage, Bytes, Fault, Reached};
use hinterland_proto::gpu::command::{
    AskTensorMap, BlasCreate, BlasGemm, BlasSet, CopyIn, CopyOut, EventCreate, EventDestroy, EventRecord,
    Fill, Function, Graph, GraphChange, GraphExecDestroy, GraphInstantiate, GraphLaunch, GraphPart,
    GraphSwitch, GraphUpdate, Launch, MapMemory, MarkEvent, MarkStream, ModuleDrop, StreamCreate,
    UnmapMemory,
};

#[test]
fn tensor_maps_come_from_the_driver_behind_the_node() {
    let driver = stand_in();
    let node = Node::with_driver("tensors", &["--device", "cuda"], &driver, "");
    let mut client = Client::open(node.unix(), 0).unwrap();
    std::fs::remove_file(&driver).unwrap();
    let address = client.map(1);
    let mut ask = AskTensorMap {
        question: 1,
        device: 0,
        address,
        element: 7,
        rank: 2,
        interleave: 1,
        swizzle: 2,
        promotion: 3,
        fill: 1,
    };
    let longs = [640_u64, 480, 2560];
    let shorts = [64_u32, 32, 1, 2];
    let tail: Vec<u8> = longs
        .iter()
        .flat_map(|one| one.to_le_bytes())
        .chain(shorts.iter().flat_map(|one| one.to_le_bytes()))
        .collect();
    client.send::<{ AskTensorMap::BYTES }>(AskTensorMap::WORD, |body| ask.put(body), &tail);
    let (message, bytes) = client.next().unwrap();
    assert_eq!(message, AnswerMessage::Answer(Answer { question: 1, error: 0 }));
    let wanted = [7, 2, address, 480, 2560, 32, 2, 1, 2, 3, 1, 0, 0, 0, 0, 0];
    assert_eq!(bytes, wanted.iter().flat_map(|one: &u64| one.to_le_bytes()).collect::<Vec<u8>>());
    // What the driver refuses.
    ask.element = 99;
    client.send::<{ AskTensorMap::BYTES }>(AskTensorMap::WORD, |body| ask.put(body), &tail);
    assert_eq!(client.next().unwrap().0, AnswerMessage::Answer(Answer { question: 1, error: 1 }));
}

#[test]
fn copies_that_the_driver_refuses_leave_memory_for_others_to_pass_through() {
    // More than there are pieces of staging.
    const TIMES: u32 = 300;
    for what in ["copies", "records"] {
        let driver = stand_in();
        let node = Node::with_driver(what, &["--device", "cuda"], &driver, what);
        let mut client = Client::open(node.unix(), 0).unwrap();
        std::fs::remove_file(&driver).unwrap();
        let address = client.map(1);
        for _ in 0..TIMES {
            let copy = CopyIn { stream: 0, flags: 0, address };
            client.send::<{ CopyIn::BYTES }>(CopyIn::WORD, |body| copy.put(body), &[7; 8]);
            let (fault, _) = client.next().unwrap();
            assert!(matches!(fault, AnswerMessage::Fault(Fault { error: 2, sticky: 0, .. })), "{fault:?}");
        }
        for transfer in 1..=TIMES {
            send!(client, CopyOut { stream: 0, transfer, address, bytes: 8 });
            let (fault, _) = client.next().unwrap();
            assert!(matches!(fault, AnswerMessage::Fault(Fault { error: 2, sticky: 0, .. })), "{fault:?}");
            let none = AnswerMessage::Bytes(Bytes { transfer, error: 2, offset: 0 });
            assert_eq!(client.next().unwrap().0, none);
        }
    }
}

#[test]
fn a_mark_of_an_event_waits_for_the_record_that_it_saw_and_for_no_later_one() {
    let driver = stand_in();
    let node = Node::with_driver("recorded-again", &["--device", "cuda"], &driver, "");
    let mut client = Client::open(node.unix(), 0).unwrap();
    std::fs::remove_file(&driver).unwrap();
    let address = client.map(1);
    name_add(&mut client);
    let function = Function { function: 2, module: 1 };
    client.send::<{ Function::BYTES }>(Function::WORD, |body| function.put(body), b"await");
    for stream in 20..23 {
        send!(client, StreamCreate { stream, device: 0, flags: 1, priority: 0 });
    }
    send!(client, EventCreate { event: 5, device: 0, flags: 2 });
    let word = |client: &mut Client, place: u64, value: u32| {
        let copy = CopyIn { stream: 22, flags: 0, address: address + 4 * place };
        client.send::<{ CopyIn::BYTES }>(CopyIn::WORD, |body| copy.put(body), &value.to_le_bytes());
    };
    for round in 1..=3 {
        // Each record stands behind a kernel that waits for a word.
        for place in 0..2 {
            let stream = 20 + place as u32;
            let launch = Launch { function: 2, ..add(stream) };
            let given = [
                &(address + 4 * place).to_le_bytes()[..],
                &1_u32.to_le_bytes(),
                &(round as u32).to_le_bytes(),
            ];
            client.send::<{ Launch::BYTES }>(Launch::WORD, |body| launch.put(body), &given.concat());
            send!(client, EventRecord { event: 5, stream, flags: 0 });
            send!(client, MarkEvent { mark: 10 * round + place, event: 5 });
        }
        for place in 0..2 {
            word(&mut client, place, round as u32);
            let reached = AnswerMessage::Reached(Reached { mark: 10 * round + place, error: 0 });
            assert_eq!(client.next().unwrap().0, reached);
        }
    }
    // One that ends while somebody waits for it is waited for.
    let launch = Launch { function: 2, ..add(20) };
    let given = [&address.to_le_bytes()[..], &1_u32.to_le_bytes(), &9_u32.to_le_bytes()].concat();
    client.send::<{ Launch::BYTES }>(Launch::WORD, |body| launch.put(body), &given);
    send!(client, EventRecord { event: 5, stream: 20, flags: 0 });
    send!(client, MarkEvent { mark: 50, event: 5 });
    send!(client, EventDestroy { event: 5 });
    word(&mut client, 0, 9);
    assert_eq!(client.next().unwrap().0, AnswerMessage::Reached(Reached { mark: 50, error: 0 }));
    client.settle();
}

/// Maps a piece of memory, the `place`-th of the window; where it begins.
fn map_piece(client: &mut Client, place: u64) -> u64 {
    let address = client.welcome.window + place * PIECE;
    send!(client, MapMemory { device: 0, flags: 0, address, bytes: PIECE });
    address
}

/// Has the stand-in's kernel wait for a word at an address.
fn await_word(client: &mut Client, stream: u32, address: u64, word: u32) {
    let launch = Launch { function: 2, ..add(stream) };
    let given = [&address.to_le_bytes()[..], &1_u32.to_le_bytes(), &word.to_le_bytes()].concat();
    client.send::<{ Launch::BYTES }>(Launch::WORD, |body| launch.put(body), &given);
}

#[test]
fn memory_is_mapped_while_other_memory_waits_for_a_kernel_to_end() {
    // Where no third piece is left, what waits is what is waited for.
    for lacks in ["", "memory"] {
        let driver = stand_in();
        let node = Node::with_driver("mapped", &["--device", "cuda"], &driver, lacks);
        let mut client = Client::open(node.unix(), 0).unwrap();
        std::fs::remove_file(&driver).unwrap();
        client.grant(0, 8 * PIECE);
        let word = map_piece(&mut client, 0);
        let waits = map_piece(&mut client, 1);
        name_add(&mut client);
        let function = Function { function: 2, module: 1 };
        client.send::<{ Function::BYTES }>(Function::WORD, |body| function.put(body), b"await");
        for stream in 20..22 {
            send!(client, StreamCreate { stream, device: 0, flags: 1, priority: 0 });
        }
        await_word(&mut client, 20, word, 5);
        send!(client, UnmapMemory { address: waits, bytes: PIECE });
        let copy = CopyIn { stream: 21, flags: 0, address: word };
        let end = |client: &mut Client| {
            client.send::<{ CopyIn::BYTES }>(CopyIn::WORD, |body| copy.put(body), &5_u32.to_le_bytes());
        };
        if lacks == "memory" {
            end(&mut client);
        }
        let other = map_piece(&mut client, 2);
        if lacks.is_empty() {
            end(&mut client);
        }
        send!(client, MarkStream { mark: 3, stream: 20 });
        assert_eq!(client.next().unwrap().0, AnswerMessage::Reached(Reached { mark: 3, error: 0 }));
        // The same addresses have other memory, and never both.
        let again = map_piece(&mut client, 1);
        if lacks == "memory" {
            let (fault, _) = client.next().unwrap();
            assert!(matches!(fault, AnswerMessage::Fault(Fault { error: 2, sticky: 0, .. })), "{fault:?}");
            continue;
        }
        for (transfer, address) in [(1, other), (2, again)] {
            send!(client, CopyOut { stream: 21, transfer, address, bytes: 1 });
            assert_eq!(
                client.next().unwrap(),
                (AnswerMessage::Bytes(Bytes { transfer, error: 0, offset: 0 }), vec![0])
            );
        }
    }
}

/// Two times three times a factor, of which all lie at an address, to a place there.
fn product(address: u64, place: u64, factors: [u64; 2]) -> BlasGemm {
    let value = |word: u64| {
        let mut value = [0; 16];
        value[..8].copy_from_slice(&word.to_le_bytes());
        value
    };
    let ([alpha, beta], kind) = (factors.map(value), 0);
    BlasGemm {
        handle: 1,
        transpose_a: 0,
        transpose_b: 0,
        compute: 68,
        m: 1,
        n: 1,
        k: 1,
        a: address,
        a_type: kind,
        b_type: kind,
        a_lead: 1,
        a_stride: 0,
        b: address + 4,
        b_lead: 1,
        b_stride: 0,
        c: address + place,
        c_type: kind,
        algorithm: -1,
        c_lead: 1,
        c_stride: 0,
        count: 1,
        alpha,
        beta,
    }
}

/// Appends a command to a list.
macro_rules! listed {
    ($list:ident, $command:expr, $kind:ident) => {{
        $list.extend((<$kind>::BYTES as u32).to_le_bytes());
        $list.extend(<$kind>::WORD.to_le_bytes());
        let mut body = [0; <$kind>::BYTES];
        $command.put(&mut body);
        $list.extend(body);
        $list.resize($list.len().next_multiple_of(8), 0);
    }};
}

#[test]
fn products_work_in_the_memory_that_their_handle_was_given_last_and_in_none_once_its_stream_is_set() {
    let driver = stand_in();
    let node = Node::with_driver("blas-workspace", &["--device", "cuda"], &driver, "");
    let mut client = Client::open(node.unix(), 0).unwrap();
    let address = client.map(1);
    let workspace = address + 256;
    send!(client, BlasCreate { handle: 1, device: 0 });
    for stream in [20, 21] {
        send!(client, StreamCreate { stream, device: 0, flags: 1, priority: 0 });
    }
    let copy = CopyIn { stream: 20, flags: 0, address };
    client.send::<{ CopyIn::BYTES }>(CopyIn::WORD, |body| copy.put(body), &[0; 512]);
    let own = BlasSet { handle: 1, property: 1, value: 20, more: 0 };
    let given = BlasSet { handle: 1, property: 3, value: workspace, more: 256 };
    let one = product(address, 16, [u64::from(1_f32.to_bits()), 0]);
    // A graph whose product works in that memory, and one whose product does not.
    let (mut with, mut without) = (Vec::new(), Vec::new());
    listed!(with, own, BlasSet);
    listed!(with, given, BlasSet);
    listed!(with, one, BlasGemm);
    listed!(without, own, BlasSet);
    listed!(without, one, BlasGemm);
    let told = |client: &mut Client, set: BlasSet| {
        client.send::<{ BlasSet::BYTES }>(BlasSet::WORD, |body| set.put(body), &[]);
    };
    let multiplied = |client: &mut Client| {
        client.send::<{ BlasGemm::BYTES }>(BlasGemm::WORD, |body| one.put(body), &[]);
    };
    let seen = |client: &mut Client, transfer: u32| {
        send!(client, CopyOut { stream: 20, transfer, address: workspace, bytes: 4 });
        let (message, tail) = client.next().unwrap();
        let words = String::from_utf8_lossy(&tail).into_owned();
        assert_eq!(message, AnswerMessage::Bytes(Bytes { transfer, error: 0, offset: 0 }), "{words}");
        f32::from_le_bytes(tail.try_into().unwrap())
    };
    told(&mut client, own);
    multiplied(&mut client);
    assert_eq!(seen(&mut client, 1), 0.0);
    told(&mut client, given);
    multiplied(&mut client);
    multiplied(&mut client);
    assert_eq!(seen(&mut client, 2), 2.0);
    for (graph, list) in [(1, &without), (2, &with)] {
        let bytes = list.len() as u64;
        send!(client, Graph { graph, base: 0, stream: 20, flags: 0, bytes, sent: bytes });
        client.send::<{ GraphPart::BYTES }>(GraphPart::WORD, |body| GraphPart { graph }.put(body), list);
        send!(client, GraphInstantiate { exec: graph, graph, flags: 0 });
        send!(client, GraphLaunch { exec: graph, stream: 20 });
        assert_eq!(seen(&mut client, 2 + graph), 1.0 + graph as f32);
    }
    multiplied(&mut client);
    assert_eq!(seen(&mut client, 5), 4.0);
    told(&mut client, BlasSet { value: 21, ..own });
    multiplied(&mut client);
    told(&mut client, BlasSet { value: 21, ..own });
    told(&mut client, given);
    multiplied(&mut client);
    send!(client, MarkStream { mark: 7, stream: 21 });
    assert_eq!(client.next().unwrap().0, AnswerMessage::Reached(Reached { mark: 7, error: 0 }));
    assert_eq!(seen(&mut client, 6), 5.0);
    told(&mut client, own);
    multiplied(&mut client);
    assert_eq!(seen(&mut client, 7), 5.0);
    std::fs::remove_file(&driver).unwrap();
}

#[test]
fn products_in_graphs_are_as_their_list_says_and_leave_the_handle_as_it_is_set() {
    let driver = stand_in();
    let node = Node::with_driver("blas-modes", &["--device", "cuda"], &driver, "");
    let mut client = Client::open(node.unix(), 0).unwrap();
    let address = client.map(1);
    send!(client, BlasCreate { handle: 1, device: 0 });
    send!(client, StreamCreate { stream: 20, device: 0, flags: 1, priority: 0 });
    let (of_host, of_device) = ([u64::from(1_f32.to_bits()), 0], [address + 8, address + 12]);
    let mut list = Vec::new();
    let set = |property, value| BlasSet { handle: 1, property, value, more: 0 };
    listed!(list, set(1, 20), BlasSet);
    listed!(list, set(4, 1), BlasSet);
    listed!(list, product(address, 16, of_device), BlasGemm);
    listed!(list, set(1, 20), BlasSet);
    listed!(list, product(address, 20, of_host), BlasGemm);
    let numbers: Vec<u8> = [2_f32, 3.0, 10.0, 0.0].into_iter().flat_map(f32::to_le_bytes).collect();
    let copy = CopyIn { stream: 20, flags: 0, address };
    client.send::<{ CopyIn::BYTES }>(CopyIn::WORD, |body| copy.put(body), &numbers);
    // The stand-in looks at factors when it is called.
    send!(client, MarkStream { mark: 7, stream: 20 });
    assert_eq!(client.next().unwrap().0, AnswerMessage::Reached(Reached { mark: 7, error: 0 }));
    let direct = |client: &mut Client, place: u64, factors| {
        let product = product(address, place, factors);
        client.send::<{ BlasGemm::BYTES }>(BlasGemm::WORD, |body| product.put(body), &[]);
    };
    let bytes = list.len() as u64;
    client.send::<{ BlasSet::BYTES }>(BlasSet::WORD, |body| set(1, 20).put(body), &[]);
    send!(client, Graph { graph: 1, base: 0, stream: 20, flags: 0, bytes, sent: bytes });
    client.send::<{ GraphPart::BYTES }>(GraphPart::WORD, |body| GraphPart { graph: 1 }.put(body), &list);
    send!(client, GraphInstantiate { exec: 1, graph: 1, flags: 0 });
    direct(&mut client, 24, of_host);
    client.send::<{ BlasSet::BYTES }>(BlasSet::WORD, |body| set(4, 1).put(body), &[]);
    send!(client, GraphUpdate { exec: 1, graph: 1 });
    direct(&mut client, 28, of_device);
    send!(client, GraphLaunch { exec: 1, stream: 20 });
    send!(client, CopyOut { stream: 20, transfer: 3, address: address + 16, bytes: 16 });
    let (message, tail) = client.next().unwrap();
    let words = String::from_utf8_lossy(&tail).into_owned();
    assert_eq!(message, AnswerMessage::Bytes(Bytes { transfer: 3, error: 0, offset: 0 }), "{words}");
    let seen: Vec<f32> = tail.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect();
    assert_eq!(seen, [60.0, 6.0, 6.0, 60.0]);
    std::fs::remove_file(&driver).unwrap();
}

/// A launch of the kernel that adds a value to one number.
fn adding(address: u64, value: u32) -> Vec<u8> {
    let mut body = vec![0; Launch::BYTES];
    add(20).put(&mut body);
    body.extend([&address.to_le_bytes()[..], &1_u32.to_le_bytes(), &value.to_le_bytes()].concat());
    body
}

/// An instance, of number 1, of a list of stream 20 that adds 1, 10 and 100 to the word at an address.
fn instance_of_three(client: &mut Client, address: u64) {
    send!(client, StreamCreate { stream: 20, device: 0, flags: 1, priority: 0 });
    let mut list = Vec::new();
    for value in [1, 10, 100] {
        let body = adding(address, value);
        list.extend((body.len() as u32).to_le_bytes());
        list.extend(Launch::WORD.to_le_bytes());
        list.extend(&body);
        list.resize(list.len().next_multiple_of(8), 0);
    }
    let bytes = list.len() as u64;
    send!(client, Graph { graph: 1, base: 0, stream: 20, flags: 0, bytes, sent: bytes });
    client.send::<{ GraphPart::BYTES }>(GraphPart::WORD, |body| GraphPart { graph: 1 }.put(body), &list);
    send!(client, GraphInstantiate { exec: 1, graph: 1, flags: 0 });
}

#[test]
fn nodes_of_an_instance_are_switched_and_changed_in_the_instance_that_there_is() {
    // There is one instance and no second; nodes cannot be switched, and instances are made anew, 16 at most; both can be.
    for lacks in ["instances", "switches", ""] {
        let driver = stand_in();
        let node = Node::with_driver(&format!("nodes-{lacks}"), &["--device", "cuda"], &driver, lacks);
        let mut client = Client::open(node.unix(), 0).unwrap();
        std::fs::remove_file(&driver).unwrap();
        let address = client.map(1);
        name_add(&mut client);
        instance_of_three(&mut client, address);
        let mut transfer = 0;
        let mut added = |client: &mut Client| {
            transfer += 1;
            let copy = CopyIn { stream: 20, flags: 0, address };
            client.send::<{ CopyIn::BYTES }>(CopyIn::WORD, |body| copy.put(body), &[0; 4]);
            send!(client, GraphLaunch { exec: 1, stream: 20 });
            send!(client, CopyOut { stream: 20, transfer, address, bytes: 4 });
            let (message, tail) = client.next().unwrap();
            let words = String::from_utf8_lossy(&tail).into_owned();
            assert_eq!(message, AnswerMessage::Bytes(Bytes { transfer, error: 0, offset: 0 }), "{words}");
            u32::from_le_bytes(tail.try_into().unwrap())
        };
        assert_eq!(added(&mut client), 111);
        send!(client, GraphSwitch { exec: 1, step: 1, is_on: 0 });
        assert_eq!(added(&mut client), 101, "{lacks}");
        let change = GraphChange { exec: 1, step: 1, word: Launch::WORD };
        let with = adding(address, 20);
        client.send::<{ GraphChange::BYTES }>(GraphChange::WORD, |body| change.put(body), &with);
        send!(client, GraphSwitch { exec: 1, step: 0, is_on: 0 });
        assert_eq!(added(&mut client), 100, "{lacks}");
        send!(client, GraphSwitch { exec: 1, step: 1, is_on: 1 });
        assert_eq!(added(&mut client), 120, "{lacks}");
        if lacks != "instances" {
            send!(client, GraphUpdate { exec: 1, graph: 1 });
            assert_eq!(added(&mut client), 111, "{lacks}");
            send!(client, GraphSwitch { exec: 1, step: 2, is_on: 0 });
            assert_eq!(added(&mut client), 11, "{lacks}");
            // However many come before a launch, there is one instance more, and one to try.
            for is_on in [1, 0].repeat(16) {
                send!(client, GraphSwitch { exec: 1, step: 0, is_on });
            }
            send!(client, GraphSwitch { exec: 1, step: 2, is_on: 1 });
            assert_eq!(added(&mut client), 110, "{lacks}");
        }
    }
}

#[test]
fn nodes_that_were_switched_in_vain_are_switched_back() {
    let driver = stand_in();
    let node = Node::with_driver("second", &["--device", "cuda"], &driver, "second-switch");
    let mut client = Client::open(node.unix(), 0).unwrap();
    std::fs::remove_file(&driver).unwrap();
    let address = client.map(1);
    name_add(&mut client);
    instance_of_three(&mut client, address);
    let copy = CopyIn { stream: 20, flags: 0, address };
    client.send::<{ CopyIn::BYTES }>(CopyIn::WORD, |body| copy.put(body), &[0; 4]);
    // The first is switched and the second is not, and there is no other instance.
    for step in [1, 0] {
        send!(client, GraphSwitch { exec: 1, step, is_on: 0 });
    }
    send!(client, GraphLaunch { exec: 1, stream: 20 });
    let (fault, _) = client.next().unwrap();
    assert!(matches!(fault, AnswerMessage::Fault(Fault { error: 2, sticky: 0, .. })), "{fault:?}");
    for step in [1, 0] {
        send!(client, GraphSwitch { exec: 1, step, is_on: 1 });
    }
    send!(client, GraphLaunch { exec: 1, stream: 20 });
    send!(client, CopyOut { stream: 20, transfer: 1, address, bytes: 4 });
    let (message, tail) = client.next().unwrap();
    assert_eq!(message, AnswerMessage::Bytes(Bytes { transfer: 1, error: 0, offset: 0 }));
    assert_eq!(tail, 111_u32.to_le_bytes());
}

#[test]
fn an_instance_goes_on_when_what_it_leaves_out_has_gone() {
    // What has gone is missing, or has left its name to a kernel that takes more parameters.
    for (lacks, is_other) in [("switches", false), ("", false), ("", true)] {
        let driver = stand_in();
        let name = format!("gone-{lacks}-{is_other}");
        let node = Node::with_driver(&name, &["--device", "cuda"], &driver, lacks);
        let mut client = Client::open(node.unix(), 0).unwrap();
        std::fs::remove_file(&driver).unwrap();
        let address = client.map(1);
        name_add(&mut client);
        send!(client, StreamCreate { stream: 20, device: 0, flags: 1, priority: 0 });
        let fill = |value| {
            let mut body = vec![0; Fill::BYTES];
            Fill { stream: 20, element: 1, address, count: 2, value }.put(&mut body);
            body
        };
        let mut list = Vec::new();
        for (word, body) in [(Fill::WORD, fill(5)), (Launch::WORD, adding(address, 1))] {
            list.extend((body.len() as u32).to_le_bytes());
            list.extend(word.to_le_bytes());
            list.extend(&body);
            list.resize(list.len().next_multiple_of(8), 0);
        }
        let bytes = list.len() as u64;
        send!(client, Graph { graph: 1, base: 0, stream: 20, flags: 0, bytes, sent: bytes });
        client.send::<{ GraphPart::BYTES }>(GraphPart::WORD, |body| GraphPart { graph: 1 }.put(body), &list);
        send!(client, GraphInstantiate { exec: 1, graph: 1, flags: 0 });
        send!(client, ModuleDrop { module: 1 });
        if is_other {
            load_module(&mut client, ADD_PARAMETERS);
            let function = Function { function: 1, module: 1 };
            let name = b"hinterland_copy";
            client.send::<{ Function::BYTES }>(Function::WORD, |body| function.put(body), name);
        }
        send!(client, GraphSwitch { exec: 1, step: 1, is_on: 0 });
        let change = GraphChange { exec: 1, step: 0, word: Fill::WORD };
        client.send::<{ GraphChange::BYTES }>(GraphChange::WORD, |body| change.put(body), &fill(6));
        send!(client, GraphLaunch { exec: 1, stream: 20 });
        send!(client, CopyOut { stream: 20, transfer: 1, address, bytes: 2 });
        let (message, tail) = client.next().unwrap();
        let words = String::from_utf8_lossy(&tail).into_owned();
        assert_eq!(message, AnswerMessage::Bytes(Bytes { transfer: 1, error: 0, offset: 0 }), "{words}");
        assert_eq!(tail, [6, 6], "{lacks}");
    }
}

#[test]
fn copies_that_lists_bring_themselves_take_so_much_of_the_hosts_memory_and_no_more() {
    const LARGE: usize = 32 << 20;
    let driver = stand_in();
    let node = Node::with_driver("pinned", &["--device", "cuda"], &driver, "");
    let mut client = Client::open(node.unix(), 0).unwrap();
    std::fs::remove_file(&driver).unwrap();
    client.grant(0, LARGE as u64);
    let address = client.welcome.window;
    send!(client, MapMemory { device: 0, flags: 0, address, bytes: LARGE as u64 });
    let mut list = Vec::new();
    list.extend(((CopyIn::BYTES + LARGE) as u32).to_le_bytes());
    list.extend(CopyIn::WORD.to_le_bytes());
    let mut body = [0; CopyIn::BYTES];
    CopyIn { stream: 0, flags: 0, address }.put(&mut body);
    list.extend(body);
    list.resize(list.len() + LARGE, 5);
    let bytes = list.len() as u64;
    send!(client, Graph { graph: 1, base: 0, stream: 0, flags: 0, bytes, sent: bytes });
    for part in list.chunks(60_000) {
        client.send::<{ GraphPart::BYTES }>(GraphPart::WORD, |body| GraphPart { graph: 1 }.put(body), part);
    }
    send!(client, GraphInstantiate { exec: 1, graph: 1, flags: 0 });
    for _ in 0..7 {
        send!(client, GraphUpdate { exec: 1, graph: 1 });
    }
    client.settle();
    send!(client, GraphUpdate { exec: 1, graph: 1 });
    let (fault, words) = client.next().unwrap();
    assert!(matches!(fault, AnswerMessage::Fault(Fault { error: 2, sticky: 0, .. })), "{fault:?}");
    assert!(String::from_utf8_lossy(&words).contains("bring"), "{}", String::from_utf8_lossy(&words));
    // What was is not launched in the place of what was meant.
    send!(client, GraphLaunch { exec: 1, stream: 0 });
    send!(client, CopyOut { stream: 0, transfer: 1, address, bytes: 2 });
    let (fault, _) = client.next().unwrap();
    assert!(matches!(fault, AnswerMessage::Fault(Fault { error: 400, sticky: 0, .. })), "{fault:?}");
    let none = (AnswerMessage::Bytes(Bytes { transfer: 1, error: 0, offset: 0 }), vec![0; 2]);
    assert_eq!(client.next().unwrap(), none);
}

#[test]
fn what_copies_of_instances_pass_through_is_bounded_for_all_of_a_session() {
    const LARGE: u64 = 32 << 20;
    let driver = stand_in();
    let node = Node::with_driver("passages", &["--device", "cuda"], &driver, "");
    let mut client = Client::open(node.unix(), 0).unwrap();
    std::fs::remove_file(&driver).unwrap();
    client.grant(0, LARGE);
    let address = client.welcome.window;
    send!(client, MapMemory { device: 0, flags: 0, address, bytes: LARGE });
    // Half of what one graph may copy to the program, and all of it: 256 MiB.
    for (graph, copies) in [(1, 4), (2, 8)] {
        let mut list = Vec::new();
        for _ in 0..copies {
            listed!(list, CopyOut { stream: 0, transfer: 0, address, bytes: LARGE }, CopyOut);
        }
        let bytes = list.len() as u64;
        send!(client, Graph { graph, base: 0, stream: 0, flags: 0, bytes, sent: bytes });
        client.send::<{ GraphPart::BYTES }>(GraphPart::WORD, |body| GraphPart { graph }.put(body), &list);
    }
    for exec in 1..=16 {
        send!(client, GraphInstantiate { exec, graph: 1, flags: 0 });
    }
    client.settle();
    send!(client, GraphInstantiate { exec: 17, graph: 1, flags: 0 });
    let (fault, words) = client.next().unwrap();
    assert!(matches!(fault, AnswerMessage::Fault(Fault { error: 2, sticky: 0, .. })), "{fault:?}");
    assert!(String::from_utf8_lossy(&words).contains("pass through"), "{}", String::from_utf8_lossy(&words));
    // One that ends leaves its memory to the next.
    send!(client, GraphExecDestroy { exec: 3 });
    send!(client, GraphInstantiate { exec: 17, graph: 1, flags: 0 });
    client.settle();
    // Also to one that needs more than any of them.
    for exec in [1, 2] {
        send!(client, GraphExecDestroy { exec });
    }
    send!(client, GraphInstantiate { exec: 18, graph: 2, flags: 0 });
    client.settle();
}
