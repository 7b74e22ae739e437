//! What the node makes of what only a driver knows or does: with the one that stands in for it.

use super::{Client, Node, add, name_add, stand_in};
use hinterland_proto::gpu::answer::{Answer, AnswerMessage, Bytes, Fault, Reached};
use hinterland_proto::gpu::command::{
    AskTensorMap, CopyIn, CopyOut, EventCreate, EventDestroy, EventRecord, Function, Launch, MarkEvent,
    StreamCreate,
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
