//! Real processes: a channel is handed over to a child, and a child is killed at any moment.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod ground;
#[path = "../../proto/tests/mutate/mod.rs"]
#[allow(dead_code, reason = "other targets use the rest")]
mod mutate;

use ground::{End, Folder, LONG, body, meet, node, send, take};
use hinterland_channel::{Address, Channel, ChannelOptions, Handover, Listener, inherit};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The argument of a child of this test, which is the same program.
const CHILD: &str = "CHANNEL_TEST_HANDOVER";

/// Starts a child that has this end of a channel.
fn hand_over(channel: Channel) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "a_child_that_echoes", "--nocapture"]).stdout(Stdio::null());
    let handover = Handover::new(channel).unwrap();
    let text = handover.pass_to(&mut command);
    command.env(CHILD, text).spawn().unwrap()
}

/// Reached as a child process: answers each frame with the next word and the same body, until the other side is gone.
#[test]
fn a_child_that_echoes() {
    let Ok(text) = std::env::var(CHILD) else { return };
    let (mut sender, mut receiver) = inherit(&text).unwrap().split().unwrap();
    loop {
        match take(&mut receiver).and_then(|(word, bytes)| send(&mut sender, word + 1, &bytes)) {
            Ok(()) => sender.flush().unwrap_or(()),
            Err(error) => {
                assert!(error.is_over(), "{error}");
                return;
            }
        }
    }
}

fn listeners(folder: &Folder) -> [Listener; 2] {
    let tcp: Address = "tcp:127.0.0.1:0".parse().unwrap();
    [folder.address(), tcp]
        .map(|address| Listener::bind(&address, node(None), ChannelOptions::default()).unwrap())
}

#[test]
fn a_child_takes_a_channel_over_and_finds_what_was_sent_before() {
    let folder = Folder::new("handed");
    for listener in listeners(&folder) {
        for client_is_child in [false, true] {
            let (ours, theirs) = meet(&listener, &listener.address(), ChannelOptions::default());
            let (kept, given) = if client_is_child { (theirs, ours) } else { (ours, theirs) };
            let (mut sender, mut receiver) = kept.split().unwrap();
            for number in 0..10 {
                send(&mut sender, number, &body(number, 500)).unwrap();
            }
            let mut child = hand_over(given);
            for number in 10..1000 {
                send(&mut sender, number, &body(number, number as usize * 7)).unwrap();
                let expected = number - 10;
                let bytes = if expected < 10 { 500 } else { expected as usize * 7 };
                assert_eq!(take(&mut receiver).unwrap(), (expected + 1, body(expected, bytes)));
            }
            drop((sender, receiver));
            assert!(child.wait().unwrap().success());
        }
    }
}

/// Sends and takes until the other side is gone; how many answers came.
fn converse((mut sender, mut receiver): End) -> u32 {
    std::thread::scope(|scope| {
        let taken = scope.spawn(move || {
            for number in 0.. {
                match take(&mut receiver) {
                    Ok((word, bytes)) => {
                        assert!(
                            word == number + 1 && bytes == body(number, number as usize % 3000),
                            "frame {number}"
                        );
                    }
                    Err(error) => {
                        assert!(error.is_over(), "{error}");
                        return number;
                    }
                }
            }
            0
        });
        for number in 0.. {
            if let Err(error) = send(&mut sender, number, &body(number, number as usize % 3000)) {
                assert!(error.is_over(), "{error}");
                break;
            }
        }
        taken.join().unwrap()
    })
}

#[test]
fn a_child_that_is_killed_at_any_moment_leaves_nobody_waiting() {
    let folder = Folder::new("killed");
    let mut random = mutate::Random::new(1);
    let mut answers = 0;
    for listener in listeners(&folder) {
        for round in 0..24 {
            let (ours, theirs) = meet(&listener, &listener.address(), ChannelOptions::default());
            let (kept, given) = if round % 2 == 0 { (theirs, ours) } else { (ours, theirs) };
            let mut child = hand_over(given);
            let conversation = std::thread::spawn(move || converse(kept.split().unwrap()));
            std::thread::sleep(Duration::from_micros(random.below(20_000) as u64));
            child.kill().unwrap();
            let start = Instant::now();
            child.wait().unwrap();
            answers += conversation.join().unwrap();
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "the end of the child was not noticed promptly"
            );
        }
    }
    assert!(answers > 0, "no child lived long enough to answer");
}

#[test]
fn a_child_that_does_nothing_and_dies_wakes_who_sleeps() {
    let folder = Folder::new("idle");
    for listener in listeners(&folder) {
        let (ours, theirs) = meet(&listener, &listener.address(), ChannelOptions::default());
        let mut child = hand_over(theirs);
        let (_sender, mut receiver) = ours.split().unwrap();
        let sleeper = std::thread::spawn(move || receiver.wait(LONG).map(drop));
        std::thread::sleep(Duration::from_millis(30));
        child.kill().unwrap();
        child.wait().unwrap();
        let error = sleeper.join().unwrap().unwrap_err();
        assert!(error.is_over(), "{error}");
    }
}
