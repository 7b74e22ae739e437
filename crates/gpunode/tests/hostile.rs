//! A client that sends anything: valid shapes with hostile numbers, and bytes of no shape. The session answers, and goes on.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

mod client;

use client::{Client, PIECE, fat_binary};
use hinterland_proto::gpu::answer::{AnswerMessage, Reached};
use hinterland_proto::gpu::command::{self as c, Command};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const PTX: &str =
    ".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry one(.param .u64 a) { ret; }\n";

/// A number that a command might have in a field: small names, sizes, addresses near what is mapped, and the ends of 64 bits.
fn number(window: u64) -> impl Strategy<Value = u64> + Clone {
    prop_oneof![
        4 => 0_u64..24,
        2 => (0_u64..4 * PIECE).prop_map(move |at| window + at),
        1 => (0_u64..4).prop_map(move |piece| window + piece * PIECE),
        1 => (0_u64..4).prop_map(|piece| piece * PIECE),
        1 => Just(u64::MAX),
        1 => Just(1 << 63),
        1 => Just(i64::MAX as u64),
        1 => any::<u64>(),
        1 => 0_u64..100_000,
    ]
}

/// A command of any kind, whose fields are drawn one by one.
fn command(window: u64) -> impl Strategy<Value = (u32, Vec<u8>)> {
    let layouts = Command::layouts();
    let number = number(window);
    (
        0..layouts.len(),
        proptest::collection::vec(number, 32),
        proptest::collection::vec(any::<u8>(), 0..200),
        0..20_u8,
    )
        .prop_map(move |(index, numbers, tail, way)| {
            let layout = &layouts[index];
            let mut body = Vec::new();
            for ((_, kind), number) in layout.fields.iter().zip(numbers) {
                let bytes = number.to_le_bytes();
                match *kind {
                    "u32" | "i32" => body.extend(&bytes[..4]),
                    "3 x u32" => body.extend([&[1, 0, 0, 0], &bytes[..4], &[1, 0, 0, 0]].concat()),
                    "16 bytes" => body.extend([bytes, bytes].concat()),
                    "32 bytes" => body.extend([bytes, bytes, bytes, bytes].concat()),
                    _ => body.extend(bytes),
                }
            }
            assert_eq!(body.len(), layout.bytes, "{}", layout.name);
            if layout.has_tail {
                body.extend(tail);
            }
            match way {
                0 => body.truncate(body.len() / 2),
                1 => body.push(0),
                _ => {}
            }
            (layout.word, body)
        })
}

fn survives(options: &str, cases: u32) {
    let window = Client::start(options).welcome.window;
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let commands = proptest::collection::vec(command(window), 1..200);
    runner
        .run(&commands, |commands| {
            let mut client = Client::start(options);
            client.map(0, 2);
            client.module(1, &fat_binary(PTX));
            client.with_tail(&Command::Function(c::Function { function: 1, module: 1 }), b"one");
            for stream in 16..19 {
                let stream = c::StreamCreate { stream, device: 0, flags: stream & 1, priority: 0 };
                client.send(&Command::StreamCreate(stream));
                client.send(&Command::EventCreate(c::EventCreate {
                    event: stream.stream - 15,
                    device: 0,
                    flags: 0,
                }));
            }
            client.send(&Command::BlasCreate(c::BlasCreate { handle: 1, device: 0 }));
            for (word, body) in commands {
                client.raw(word, &body);
            }
            let mark = c::MarkDevice { mark: 77_777_777, device: 0 };
            client.send(&Command::MarkDevice(mark));
            loop {
                if let AnswerMessage::Reached(Reached { mark: 77_777_777, .. }) = client.next().message {
                    return Ok(());
                }
            }
        })
        .unwrap();
}

#[test]
fn a_session_survives_whatever_is_sent() {
    survives("memory=16M,kernels=none", 60);
}

#[test]
fn a_session_with_slow_work_survives_whatever_is_sent() {
    survives("memory=16M,delay-us=20", 20);
}

#[test]
#[ignore = "minutes: ./check --full"]
fn soak_sessions_survive_whatever_is_sent() {
    survives("memory=16M,kernels=none", 5000);
    survives("memory=16M,delay-us=20", 1000);
}
