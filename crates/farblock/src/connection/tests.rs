//! Hostile clients: whatever they send, the server ends or answers, keeps little, and does what an honest one wrote.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

use super::*;
use crate::blocks::Shape;
use hinterland_far::store::{Packed, Stores};
use proptest::prelude::*;
use std::io::Cursor;
use std::sync::Arc;

const DEVICE_BYTES: u64 = 64 * 4096;

/// What a client sends, and what it is sent.
struct Script {
    input: Cursor<Vec<u8>>,
    output: Vec<u8>,
}

impl Read for Script {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.input.read(bytes)
    }
}

impl Write for Script {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn device() -> Blocks {
    let stores = Arc::new(Stores::new(vec![Box::new(Packed::new(u64::MAX / 2))], 1));
    Blocks::new(stores, Shape { bytes: DEVICE_BYTES, unit_bytes: 16384, keeps_recent: true })
}

/// What the server sent, how the handshake went, and how requests ended.
type Outcome = (Vec<u8>, Result<bool, End>, Option<Result<(), End>>);

fn run(device: &Blocks, input: Vec<u8>) -> Outcome {
    let tally = Tally::default();
    let script = Script { input: Cursor::new(input), output: Vec::new() };
    let service = Service { device, description: "test", tally: &tally };
    let mut connection = Connection::new(script, service);
    let greeted = connection.greet();
    let served = matches!(greeted, Ok(true)).then(|| connection.serve());
    (connection.stream().output.clone(), greeted, served)
}

fn agreed() -> Vec<u8> {
    let mut bytes = 3u32.to_be_bytes().to_vec();
    bytes.extend(wire::option(wire::option::GO, &wire::info_payload(b"", &[info::BLOCK_SIZE])));
    bytes
}

fn request(command: Command, offset: u64, bytes: u32) -> Vec<u8> {
    Request { command, has_wrong_flags: false, cookie: 7, offset, bytes }.encode().to_vec()
}

/// The error number of the last reply.
fn last_error(output: &[u8]) -> u32 {
    let at = output.len() - wire::REPLY_BYTES;
    wire::parse_reply(output[at..].try_into().unwrap()).unwrap().1
}

#[test]
fn requests_that_make_no_sense_are_refused_and_the_next_one_is_served() {
    let device = device();
    let page = vec![9u8; 4096];
    let mut cases = vec![
        (request(Command::Read, 1, 4096), 22),
        (request(Command::Read, 0, 100), 22),
        (request(Command::Read, DEVICE_BYTES, 4096), 22),
        (request(Command::Read, u64::MAX - 4095, 4096), 22),
        (request(Command::Trim, 0, u32::MAX), 22),
        (request(Command::Zero, 4096, DEVICE_BYTES as u32), 28),
        (request(Command::Unknown, 0, 0), 22),
        ([request(Command::Write, DEVICE_BYTES, 4096), page.clone()].concat(), 28),
        ([request(Command::Write, 10, 4096), page.clone()].concat(), 22),
        ([request(Command::Write, u64::MAX - 4095, 4096), page.clone()].concat(), 28),
    ];
    let mut flagged = [request(Command::Write, 0, 4096), page.clone()].concat();
    flagged[5] = 1;
    cases.push((flagged, 22));
    for (case, error) in cases {
        let good = [request(Command::Write, 8192, 4096), page.clone()].concat();
        let (output, _, served) = run(&device, [agreed(), case.clone()].concat());
        assert!(matches!(served, Some(Ok(()))), "{case:?}");
        assert_eq!(last_error(&output), error, "{:?}", &case[..28]);
        let (output, _, _) = run(&device, [agreed(), case, good].concat());
        assert_eq!(last_error(&output), 0);
    }
    let mut read = vec![0; 4096];
    device.read(8192, &mut read).unwrap();
    assert_eq!(read, page);
    device.read(0, &mut read).unwrap();
    assert!(read.iter().all(|byte| *byte == 0), "a refused write wrote");
}

#[test]
fn a_client_that_goes_away_in_the_middle_of_a_write_has_written_nothing_of_that_part() {
    let device = device();
    let cut = [agreed(), request(Command::Write, 0, 8192), vec![1; 5000]].concat();
    assert!(matches!(run(&device, cut).2, Some(Err(End::Io))));
    let mut read = vec![1; 8192];
    device.read(0, &mut read).unwrap();
    assert!(read.iter().all(|byte| *byte == 0));
}

#[test]
fn names_lists_and_the_old_way_in_are_answered() {
    let device = device();
    let mut words = 3u32.to_be_bytes().to_vec();
    words.extend(wire::option(wire::option::LIST, b""));
    words.extend(wire::option(5, b""));
    words.extend(wire::option(wire::option::GO, &wire::info_payload(b"other", &[])));
    words.extend(wire::option(wire::option::LIST, &[0; 9000]));
    words.extend(wire::option(wire::option::EXPORT_NAME, EXPORT.as_bytes()));
    words.extend(request(Command::Flush, 0, 0));
    let (output, greeted, _) = run(&device, words);
    assert!(matches!(greeted, Ok(true)), "{greeted:?}");
    assert_eq!(last_error(&output), 0);
    for kind in [answer::SERVER, answer::ACK, answer::UNSUPPORTED, answer::NO_EXPORT, answer::TOO_BIG] {
        assert!(output.windows(4).any(|word| word == kind.to_be_bytes()), "{kind:x}");
    }
    // Without the flag, zeros follow the old way in.
    let old = [1u32.to_be_bytes().to_vec(), wire::option(wire::option::EXPORT_NAME, b"")].concat();
    assert_eq!(run(&device, old).0.len(), 18 + 10 + 124);
}

#[test]
fn what_no_honest_client_says_ends_the_connection() {
    let device = device();
    let long = [agreed(), request(Command::Write, 0, u32::MAX)].concat();
    assert!(matches!(run(&device, long).2, Some(Err(End::Broken(_)))));
    let noise = [agreed(), vec![0xAA; 28]].concat();
    assert!(matches!(run(&device, noise).2, Some(Err(End::Broken(_)))));
    for first in [0u32, 4, u32::MAX] {
        assert!(matches!(run(&device, first.to_be_bytes().to_vec()).1, Err(End::Broken(_))), "{first}");
    }
    let endless = [3u32.to_be_bytes().to_vec(), wire::option(99, b"").repeat(1000)].concat();
    assert!(matches!(run(&device, endless).1, Err(End::Broken(_))));
    let unknown = [3u32.to_be_bytes().to_vec(), wire::option(wire::option::EXPORT_NAME, b"x")].concat();
    assert!(matches!(run(&device, unknown).1, Err(End::Broken(_))));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_end(
        has_agreed in any::<bool>(),
        parts in proptest::collection::vec(
            prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..80),
                (0u32..12, proptest::collection::vec(any::<u8>(), 0..40)).prop_map(|(kind, payload)| wire::option(kind, &payload)),
                (0usize..7, any::<u16>(), 0u64..DEVICE_BYTES * 2, 0u32..20000).prop_map(|(command, flags, offset, bytes)| {
                    let commands = [Command::Read, Command::Write, Command::Flush, Command::Trim, Command::Zero, Command::Unknown,
                        Command::Disconnect];
                    let mut request = request(commands[command], offset & !511, bytes & !511);
                    request[4..6].copy_from_slice(&(flags & 0x13).to_be_bytes());
                    request
                }),
            ],
            0..20,
        ),
    ) {
        let device = device();
        let before = if has_agreed { agreed() } else { 3u32.to_be_bytes().to_vec() };
        // It returns, whatever they are: bytes that end in the middle are a client that goes away.
        let (output, _, _) = run(&device, [before, parts.concat()].concat());
        prop_assert!(output.len() >= 18);
        prop_assert!(device.report().live_bytes <= DEVICE_BYTES);
    }
}
