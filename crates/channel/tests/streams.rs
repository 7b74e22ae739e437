//! Frames of any size arrive whole, once and in order, in both directions, whoever is slow.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod ground;

use ground::{End, LONG, body, network, read_in_pieces, send, shared, small, take};
use hinterland_channel::{ChannelError, ChannelOptions, Rings, frame_bytes};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::time::Duration;

/// What a test does next.
#[derive(Clone, Debug)]
enum Step {
    Send { from_one: bool, bytes: usize, quietly: bool },
    Take { at_one: bool, count: usize, piece: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = prop_oneof![4 => 0usize..300, 1 => 4000usize..4200, 1 => 0usize..(30 << 10)];
    let step = prop_oneof![
        3 => (any::<bool>(), bytes, any::<bool>())
            .prop_map(|(from_one, bytes, quietly)| Step::Send { from_one, bytes, quietly }),
        2 => (any::<bool>(), 0usize..12, 1usize..5000)
            .prop_map(|(at_one, count, piece)| Step::Take { at_one, count, piece }),
    ];
    proptest::collection::vec(step, 1..200)
}

/// A direction as it should be: what was sent and not taken.
#[derive(Default)]
struct Model {
    frames: VecDeque<(u32, usize)>,
    bytes: usize,
    sent: u32,
}

fn run(steps: &[Step], (mut one, mut other): (End, End), ring_bytes: Option<usize>) {
    let mut models = [Model::default(), Model::default()];
    for step in steps {
        match *step {
            Step::Send { from_one, bytes, quietly } => {
                let (sender, model) =
                    if from_one { (&mut one.0, &mut models[0]) } else { (&mut other.0, &mut models[1]) };
                let number = model.sent;
                let room = sender.room(number, bytes).unwrap();
                if let Some(ring_bytes) = ring_bytes {
                    assert_eq!(room.is_some(), model.bytes + frame_bytes(bytes) <= ring_bytes);
                }
                let Some(mut room) = room else { continue };
                let text = body(number, bytes);
                let (first, second) = text.split_at(bytes / 3);
                room.append(first).unwrap();
                room.append(second).unwrap();
                assert!(room.append(&[0]).is_err());
                if quietly {
                    room.commit_quietly()
                } else {
                    room.commit()
                }
                model.frames.push_back((number, bytes));
                model.bytes += frame_bytes(bytes);
                model.sent += 1;
            }
            Step::Take { at_one, count, piece } => {
                let (receiver, sender, model) = if at_one {
                    (&mut one.1, &mut other.0, &mut models[1])
                } else {
                    (&mut other.1, &mut one.0, &mut models[0])
                };
                sender.flush().unwrap();
                for _ in 0..count {
                    let Some((number, bytes)) = model.frames.pop_front() else {
                        assert!(receiver.next().unwrap().is_none());
                        break;
                    };
                    model.bytes -= frame_bytes(bytes);
                    assert!(receiver.wait(LONG).unwrap());
                    let mut frame = receiver.next().unwrap().unwrap();
                    assert_eq!((frame.word(), frame.len()), (number, bytes));
                    let expected = body(number, bytes);
                    assert_eq!(frame.head(), &expected[..bytes.min(4096)]);
                    assert!(read_in_pieces(&frame, piece) == expected && frame.bytes() == expected);
                    assert!(frame.read_at(bytes, &mut [0]).is_err());
                }
            }
        }
    }
    one.0.flush().unwrap();
    other.0.flush().unwrap();
    for (model, receiver) in models.iter_mut().zip([&mut other.1, &mut one.1]) {
        while let Some((number, bytes)) = model.frames.pop_front() {
            assert!(receiver.wait(LONG).unwrap());
            let mut frame = receiver.next().unwrap().unwrap();
            assert_eq!(frame.word(), number);
            assert!(frame.bytes() == body(number, bytes));
        }
        assert!(receiver.next().unwrap().is_none());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn a_shared_channel_is_two_queues(steps in steps()) {
        run(&steps, shared(small()), Some(small().ring_bytes));
    }
}

/// Small rings over a network.
fn narrow() -> ChannelOptions {
    ChannelOptions { rings: small(), ..ChannelOptions::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn a_connection_is_two_queues(steps in steps()) {
        run(&steps, network(narrow()), None);
    }
}

/// Both ends send as fast as they can while they take, with frames of all sizes.
fn flood(one: End, other: End, frames: u32) {
    let sizes = |number: u32| {
        if number.is_multiple_of(97) { 20_000 + number as usize % 9000 } else { number as usize % 400 }
    };
    std::thread::scope(|scope| {
        // Halves are kept until all is done: the first that goes would end the channel.
        let mut senders = Vec::new();
        let mut receivers = Vec::new();
        for (mut sender, mut receiver) in [(one.0, other.1), (other.0, one.1)] {
            senders.push(scope.spawn(move || {
                for number in 0..frames {
                    send(&mut sender, number, &body(number, sizes(number))).unwrap();
                }
                sender
            }));
            receivers.push(scope.spawn(move || {
                for number in 0..frames {
                    let (word, bytes) = take(&mut receiver).unwrap();
                    assert!(word == number && bytes == body(number, sizes(number)), "frame {number}");
                }
                receiver
            }));
        }
        let senders: Vec<_> = senders.into_iter().map(|thread| thread.join().unwrap()).collect();
        let receivers: Vec<_> = receivers.into_iter().map(|thread| thread.join().unwrap()).collect();
        let count = |counters: hinterland_channel::Counters| (counters.frames, counters.bytes);
        for (sender, receiver) in senders.iter().zip(&receivers) {
            assert_eq!(count(sender.counters()), count(receiver.counters()));
        }
    });
}

#[test]
fn floods_in_both_directions_of_shared_memory_arrive_whole() {
    let (one, other) = shared(small());
    flood(one, other, 60_000);
}

#[test]
fn floods_in_both_directions_of_a_connection_arrive_whole() {
    let (one, other) = network(narrow());
    flood(one, other, 30_000);
}

#[test]
fn bodies_of_the_longest_kind_cross_a_connection_whole() {
    let ((mut sender, _hear), (_answer, mut receiver)) = network(ChannelOptions::default());
    let taker = std::thread::spawn(move || {
        for number in 0..40 {
            let (word, bytes) = take(&mut receiver).unwrap();
            assert!(word == number && bytes == body(number, (1 << 20) - number as usize * 3));
        }
        (receiver, _answer)
    });
    for number in 0..40 {
        send(&mut sender, number, &body(number, (1 << 20) - number as usize * 3)).unwrap();
    }
    taker.join().unwrap();
    assert!(sender.counters().transfer_bytes > 39 << 20);
}

/// A receiver that is slow: the sender waits for room, and nothing is lost.
fn trickle((mut sender, _keep): End, (_kept, mut receiver): End) {
    let taker = std::thread::spawn(move || {
        for number in 0..40 {
            std::thread::sleep(Duration::from_millis(2));
            let (word, bytes) = take(&mut receiver).unwrap();
            assert!(word == number && bytes == body(number, 20_000));
        }
        (receiver.next().map(|frame| frame.is_some()), _kept)
    });
    for number in 0..40 {
        send(&mut sender, number, &body(number, 20_000)).unwrap();
    }
    assert!(!taker.join().unwrap().0.unwrap());
}

#[test]
fn a_slow_reader_of_shared_memory_holds_its_writer_back() {
    let (one, other) = shared(small());
    trickle(one, other);
}

#[test]
fn a_slow_reader_of_a_connection_holds_its_writer_back() {
    let (one, other) = network(narrow());
    trickle(one, other);
}

#[test]
fn who_reads_nothing_stops_the_writer_and_loses_nothing() {
    let ((mut sender, _hear), (_answer, mut receiver)) = network(narrow());
    let mut sent = 0;
    // Rings and the buffers of the kernel fill up.
    while sender.wait_room(30_000, Some(std::time::Duration::from_millis(500))).unwrap() {
        sender.room(sent, 30_000).unwrap().unwrap().commit();
        sent += 1;
        assert!(sent < 100_000, "nothing holds the writer back");
    }
    for number in 0..sent {
        assert!(receiver.wait(LONG).unwrap());
        assert_eq!(receiver.next().unwrap().unwrap().word(), number);
    }
    send(&mut sender, sent, b"goes on").unwrap();
    assert_eq!(take(&mut receiver).unwrap(), (sent, b"goes on".to_vec()));
}

/// A question and its answer at a time, with pauses in which both sides fall asleep.
fn converse((mut ask, mut hear): End, (mut answer, mut listen): End) {
    let server = std::thread::spawn(move || {
        for number in 0..60 {
            assert_eq!(take(&mut listen).unwrap(), (number, body(number, 64)));
            send(&mut answer, number, &body(number + 1, 200)).unwrap();
        }
        (answer, listen)
    });
    for number in 0..60 {
        if number % 3 == 0 {
            std::thread::sleep(Duration::from_millis(3));
        }
        send(&mut ask, number, &body(number, 64)).unwrap();
        assert_eq!(take(&mut hear).unwrap(), (number, body(number + 1, 200)));
    }
    let (answer, listen) = server.join().unwrap();
    assert_eq!((ask.counters().frames, listen.counters().frames), (60, 60));
    assert_eq!(answer.counters().bytes, hear.counters().bytes);
    assert!(hear.counters().sleeps + listen.counters().sleeps > 0, "nobody slept, so nothing was tried");
}

#[test]
fn a_conversation_in_shared_memory_goes_on_after_every_sleep() {
    let (one, other) = shared(Rings::default());
    converse(one, other);
}

#[test]
fn a_conversation_over_a_connection_goes_on_after_every_sleep() {
    let (one, other) = network(ChannelOptions::default());
    converse(one, other);
}

#[test]
fn a_flush_sends_quiet_frames_as_one_message_and_wakes_nobody() {
    let ((mut sender, _hear), (_answer, mut receiver)) = network(ChannelOptions::default());
    // Until the thread that drains the ring is asleep.
    std::thread::sleep(Duration::from_millis(50));
    for number in 0..100 {
        sender.room(number, 300).unwrap().unwrap().commit_quietly();
    }
    assert_eq!(sender.counters().transfers, 0);
    sender.flush().unwrap();
    let counters = sender.counters();
    assert_eq!((counters.transfers, counters.messages, counters.wakes), (1, 1, 0), "{counters:?}");
    assert_eq!(counters.transfer_bytes, counters.bytes + 32);
    for number in 0..100 {
        assert_eq!(take(&mut receiver).unwrap().0, number);
    }
}

#[test]
fn the_first_frames_after_a_pause_are_sent_at_once_and_more_by_a_thread() {
    // On a busy machine the thread may not have fallen asleep yet, or a pause may have come between two frames.
    let mut told = Vec::new();
    for _ in 0..50 {
        let ((mut sender, _hear), (_answer, mut receiver)) = network(ChannelOptions::default());
        std::thread::sleep(Duration::from_millis(50));
        let mut seen = Vec::new();
        for number in 0..3 {
            sender.room(number, 8).unwrap().unwrap().commit();
            let counters = sender.counters();
            seen.push((counters.transfers.min(2), counters.wakes));
        }
        for number in 0..3 {
            assert_eq!(take(&mut receiver).unwrap().0, number);
        }
        if seen == [(1, 0), (2, 0), (2, 1)] {
            return;
        }
        told.push(seen);
    }
    panic!("never, but {told:?}");
}

/// Frames with pauses of any length between them, so that the reader falls asleep at any moment of the writer's.
fn doze((mut sender, _hear): End, (_answer, mut receiver): End, frames: u32) {
    let taker = std::thread::spawn(move || {
        for number in 0..frames {
            let start = std::time::Instant::now();
            assert_eq!(take(&mut receiver).unwrap().0, number);
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "frame {number} was there, and nobody was woken"
            );
        }
        (receiver.counters().sleeps, _answer)
    });
    let mut random = 1u64;
    for number in 0..frames {
        send(&mut sender, number, &[]).unwrap();
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // Mostly about as long as a spin is, and the way into a sleep.
        let pause = Duration::from_nanos((random >> 33) % [2_000, 20_000, 200_000][number as usize % 3]);
        if number % 1000 == 500 {
            // On a busy machine the reader is always behind, and sleeps only if it is given a processor.
            std::thread::sleep(Duration::from_millis(20));
        }
        let start = std::time::Instant::now();
        while start.elapsed() < pause {
            std::hint::spin_loop();
        }
    }
    let (sleeps, _answer) = taker.join().unwrap();
    assert!(sleeps > 0, "nobody slept, so nothing was tried");
}

#[test]
fn no_reader_that_falls_asleep_at_any_moment_is_left_asleep() {
    let (one, other) = shared(small());
    doze(one, other, 10_000);
    let (one, other) = network(narrow());
    doze(one, other, 10_000);
}

#[test]
#[ignore = "a soak"]
fn soak_no_reader_that_falls_asleep_at_any_moment_is_left_asleep() {
    for _ in 0..5 {
        let (one, other) = shared(small());
        doze(one, other, 50_000);
        let (one, other) = network(narrow());
        doze(one, other, 50_000);
    }
}

#[test]
fn a_delay_is_kept_by_each_direction_and_holds_no_frame_back_for_another() {
    let delay = Duration::from_millis(40);
    let options = ChannelOptions { delay_out: delay, ..ChannelOptions::default() };
    let listener = ground::tcp_listener(ChannelOptions::default());
    let (ours, theirs) = ground::meet(&listener, &listener.address(), options);
    let ((mut ask, mut hear), (mut answer, mut listen)) = (ours.split().unwrap(), theirs.split().unwrap());
    let start = std::time::Instant::now();
    for number in 0..200 {
        send(&mut ask, number, &body(number, 100)).unwrap();
    }
    let is_there = listen.wait(Some(Duration::from_millis(5))).unwrap();
    // On a busy machine the time may be over by now.
    assert!(!is_there || start.elapsed() >= delay, "seen before its time");
    for number in 0..200 {
        assert_eq!(take(&mut listen).unwrap().0, number);
    }
    assert!(start.elapsed() >= delay);
    assert!(start.elapsed() < 100 * delay, "one after the other would take 200 times as long");
    send(&mut answer, 1, b"back").unwrap();
    assert_eq!(take(&mut hear).unwrap(), (1, b"back".to_vec()));
}

#[test]
fn what_was_sent_over_a_connection_before_its_end_is_taken_before_it_is_told() {
    let ((mut sender, hear), (_answer, mut receiver)) = network(narrow());
    for number in 0..50 {
        send(&mut sender, number, &body(number, 3000)).unwrap();
    }
    drop((sender, hear));
    for number in 0..50 {
        assert_eq!(take(&mut receiver).unwrap(), (number, body(number, 3000)));
    }
    assert!(matches!(receiver.wait(LONG), Err(ChannelError::Closed)));
    assert!(matches!(receiver.next(), Err(ChannelError::Closed)));
}

#[test]
fn a_writer_and_a_reader_find_out_that_the_other_end_of_a_connection_is_gone() {
    let ((mut sender, mut hear), other) = network(narrow());
    let reader = std::thread::spawn(move || hear.wait(None).map(drop));
    std::thread::sleep(Duration::from_millis(20));
    drop(other);
    assert!(matches!(reader.join().unwrap(), Err(ChannelError::Closed)));
    // Any number of frames may still be put into the ring before the news is there, but not for ever.
    let error = loop {
        match sender.wait_room(30_000, LONG) {
            Ok(found) => assert!(found),
            Err(error) => break error,
        }
        if let Ok(Some(room)) = sender.room(0, 30_000) {
            room.commit();
        }
    };
    assert!(error.is_over(), "{error}");
}

#[test]
fn a_body_over_the_limit_is_refused_and_the_channel_goes_on() {
    let ((mut sender, _hear), (_answer, mut receiver)) = shared(small());
    let error = sender.room(1, (30 << 10) + 1).unwrap_err();
    assert!(matches!(error, ChannelError::TooLong { bytes, bytes_max } if bytes == bytes_max + 1), "{error}");
    assert!(matches!(sender.wait_room(usize::MAX, LONG), Err(ChannelError::TooLong { .. })));
    send(&mut sender, 5, b"fits").unwrap();
    assert_eq!(take(&mut receiver).unwrap(), (5, b"fits".to_vec()));
}

#[test]
fn room_that_is_not_committed_was_never_there() {
    let ((mut sender, _hear), (_answer, mut receiver)) = shared(small());
    sender.room(1, 100).unwrap().unwrap().append(&[1; 100]).unwrap();
    assert!(receiver.next().unwrap().is_none());
    send(&mut sender, 2, &[2; 50]).unwrap();
    assert_eq!(take(&mut receiver).unwrap(), (2, vec![2; 50]));
    assert!(receiver.next().unwrap().is_none());
}

#[test]
fn waits_end_when_their_time_is_over() {
    let ((mut sender, mut idle), _other) = shared(small());
    assert!(!idle.wait(Some(Duration::ZERO)).unwrap());
    assert!(!idle.wait(Some(Duration::from_millis(5))).unwrap());
    while let Some(room) = sender.room(0, 30_000).unwrap() {
        room.commit();
    }
    assert!(!sender.wait_room(30_000, Some(Duration::from_millis(5))).unwrap());
    assert!(sender.wait_room(16, Some(Duration::ZERO)).unwrap(), "a little room is left");
}

#[test]
fn quiet_commits_of_many_frames_are_one_message() {
    let ((mut sender, _hear), (_answer, mut receiver)) = shared(Rings::default());
    let taker = std::thread::spawn(move || {
        for number in 0..100 {
            assert_eq!(take(&mut receiver).unwrap().0, number);
        }
        receiver
    });
    std::thread::sleep(Duration::from_millis(20));
    for number in 0..99 {
        sender.room(number, 100).unwrap().unwrap().commit_quietly();
    }
    assert_eq!(sender.counters().messages, 0);
    sender.flush().unwrap();
    assert!(sender.counters().messages <= 1);
    send(&mut sender, 99, &[]).unwrap();
    taker.join().unwrap();
    assert!(sender.counters().messages <= 2);
}

#[test]
fn what_was_sent_before_the_end_is_taken_before_it_is_told() {
    let ((mut sender, hear), (_answer, mut receiver)) = shared(small());
    for number in 0..50 {
        send(&mut sender, number, &body(number, 300)).unwrap();
    }
    drop((sender, hear));
    for number in 0..50 {
        assert_eq!(take(&mut receiver).unwrap(), (number, body(number, 300)));
    }
    assert!(matches!(receiver.wait(LONG), Err(ChannelError::Closed)));
    assert!(matches!(receiver.next(), Err(ChannelError::Closed)));
}

#[test]
fn who_only_polls_or_writes_finds_out_that_the_other_side_is_gone() {
    let ((mut sender, mut hear), other) = shared(Rings::default());
    drop(other);
    let polled = (0..10_000).find_map(|_| hear.next().err());
    assert!(matches!(polled, Some(ChannelError::Closed)));
    assert!(matches!(sender.room(0, 8), Err(ChannelError::Closed)), "one half tells the other");
    let ((mut sender, _hear), other) = shared(Rings::default());
    drop(other);
    let written = (0..10_000).find_map(|_| sender.room(0, 8).map(|room| room.unwrap().commit()).err());
    assert!(matches!(written, Some(ChannelError::Closed)));
}

#[test]
fn sleepers_are_woken_by_the_end_of_the_other_side() {
    let ((mut sender, mut hear), other) = shared(small());
    while let Some(room) = sender.room(0, 30_000).unwrap() {
        room.commit();
    }
    let reader = std::thread::spawn(move || hear.wait(None).map(drop));
    let writer = std::thread::spawn(move || sender.wait_room(30_000, None).map(drop));
    std::thread::sleep(Duration::from_millis(20));
    drop(other);
    assert!(matches!(reader.join().unwrap(), Err(ChannelError::Closed)));
    assert!(matches!(writer.join().unwrap(), Err(ChannelError::Closed)));
}
