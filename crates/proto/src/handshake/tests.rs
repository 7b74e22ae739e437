//! Handshakes between good, old, foreign, lying and eavesdropping peers.

use super::message::{CONFIRM, HELLO, PREFIX_BYTES, READY, WELCOME, encode, seal};
use super::*;
use hinterland_types::limits::FRAME_BODY_BYTES_MAX;
use proptest::prelude::*;

const POOL: PoolId = PoolId(0x1234_5678);
const NODE: NodeId = NodeId(42);
const SECRET: [u8; 32] = [9; 32];

fn client_identity(key: Option<PoolKey>) -> ClientIdentity {
    let features = Features(0b110);
    ClientIdentity { role: Role::Client, node: NodeId(0), pool: POOL, key, features, join: None }
}

fn server_identity(key: Option<PoolKey>) -> ServerIdentity {
    let limits = PeerLimits { body_bytes_max: FRAME_BODY_BYTES_MAX, runs_max: 1024, streams_max: 8 };
    ServerIdentity { node: NODE, pool: POOL, key, features: Features(0b011), limits }
}

fn key(byte: u8) -> Option<PoolKey> {
    Some(PoolKey([byte; 32]))
}

fn client(identity: ClientIdentity) -> (ClientHandshake, Vec<u8>) {
    ClientHandshake::new(identity, [1; 32])
}

fn server(identity: ServerIdentity) -> ServerHandshake {
    ServerHandshake::new(identity, [2; 32])
}

fn refused(step: ServerStep) -> (Vec<u8>, Refusal) {
    match step {
        ServerStep::Refuse { bytes, refusal } => (bytes, refusal),
        other => panic!("not refused: {other:?}"),
    }
}

fn sent(step: ServerStep) -> Vec<u8> {
    match step {
        ServerStep::Send(bytes) => bytes,
        other => panic!("nothing to send: {other:?}"),
    }
}

fn client_sends(machine: &mut ClientHandshake, input: &[u8]) -> Vec<u8> {
    match machine.receive(input) {
        Ok((taken, ClientStep::Send(bytes))) if taken == input.len() => bytes,
        other => panic!("nothing to send: {other:?}"),
    }
}

/// Plays a whole handshake, `piece` bytes at a time.
fn play(
    from: ClientIdentity,
    to: ServerIdentity,
    piece: usize,
) -> Result<(Established, Established, PeerHello), HandshakeError> {
    let (mut client, mut to_server) = client(from);
    let mut server = Some(server(to));
    let mut hello = None;
    let mut served = None;
    for _ in 0..8 {
        let mut to_client = Vec::new();
        for part in to_server.chunks(piece) {
            let Some(machine) = server.as_mut() else { break };
            let (taken, step) = machine.receive(part);
            assert_eq!(taken, part.len());
            match step {
                ServerStep::Wait => {}
                ServerStep::Send(bytes) => to_client.extend(bytes),
                ServerStep::Authenticated(peer) => {
                    let machine = server.take().unwrap();
                    let (bytes, established) = machine.ready(SessionId(77), SECRET);
                    to_client.extend(bytes);
                    (hello, served) = (Some(peer), Some(established));
                }
                ServerStep::Refuse { bytes, .. } => {
                    to_client.extend(bytes);
                    server = None;
                }
            }
        }
        to_server.clear();
        for part in to_client.chunks(piece) {
            match client.receive(part)? {
                (taken, ClientStep::Wait) => assert_eq!(taken, part.len()),
                (taken, ClientStep::Send(bytes)) => {
                    assert_eq!(taken, part.len());
                    to_server.extend(bytes);
                }
                (_, ClientStep::Done(established)) => {
                    return Ok((established, served.unwrap(), hello.unwrap()));
                }
            }
        }
    }
    panic!("the handshake does not end");
}

#[test]
fn both_sides_agree_on_everything() {
    for (key_of_both, piece) in [(None, 4096), (key(3), 4096), (None, 1), (key(3), 7)] {
        let (ours, theirs, hello) =
            play(client_identity(key_of_both.clone()), server_identity(key_of_both.clone()), piece).unwrap();
        assert_eq!((ours.version, ours.node, ours.pool), (PROTOCOL_VERSION, NODE, POOL));
        assert_eq!(ours.ticket, Ticket { session: SessionId(77), secret: SECRET });
        assert_eq!(ours.ticket, theirs.ticket);
        assert_eq!((ours.features, theirs.features), (Features(0b010), Features(0b010)));
        assert_eq!(ours.send_sequence, theirs.receive_sequence);
        assert_eq!(ours.receive_sequence, theirs.send_sequence);
        assert_ne!(ours.send_sequence, ours.receive_sequence);
        assert_eq!(hello.keyed, key_of_both.is_some());
        assert_eq!(ours.limits, theirs.limits);
    }
}

#[test]
fn two_connections_have_different_sequences() {
    let sequence = |nonce: u8| {
        let (mut client, hello) = ClientHandshake::new(client_identity(None), [nonce; 32]);
        let mut server = server(server_identity(None));
        let confirm = client_sends(&mut client, &sent(server.receive(&hello).1));
        server.receive(&confirm);
        server.ready(SessionId(1), SECRET).1.send_sequence
    };
    assert_ne!(sequence(10), sequence(11));
}

#[test]
fn a_client_joins_with_its_ticket() {
    let mut identity = client_identity(None);
    let ticket = Ticket { session: SessionId(5), secret: [8; 32] };
    identity.join = Some(ticket.clone());
    let (_, _, hello) = play(identity, server_identity(None), 4096).unwrap();
    assert_eq!(hello.join, Some(ticket));
}

#[test]
fn versions_without_overlap_are_refused_with_both_ranges() {
    let own = PROTOCOL_VERSION;
    // The release before may have one request more or less, and fields that are none here: it is refused, and not misread.
    for (low, high, upgrade) in
        [(own + 1, 9, "this node"), (0, 0, "the client"), (1, own - 1, "the client"), (7, 3, "this node")]
    {
        let (_, mut hello) = client(client_identity(None));
        hello[8..10].copy_from_slice(&low.to_le_bytes());
        hello[10..12].copy_from_slice(&high.to_le_bytes());
        seal(&mut hello);
        let (bytes, refusal) = refused(server(server_identity(None)).receive(&hello).1);
        assert_eq!(refusal.code, RefusalCode::Version);
        let both = format!("versions {low} to {high}, this node {own} to {own}");
        assert!(refusal.text.contains(&both), "{refusal}");
        assert!(refusal.text.contains(&format!("upgrade {upgrade}")), "{refusal}");
        let (mut machine, _) = client(client_identity(None));
        assert_eq!(machine.receive(&bytes), Err(HandshakeError::Refused(refusal)));
    }
}

#[test]
fn a_server_of_other_versions_is_spoken_of_as_the_other_side() {
    let own = PROTOCOL_VERSION;
    for (low, high, upgrade) in [(own + 1, 9, "this side"), (1, own - 1, "that node")] {
        let mut bytes = Refusal::new(RefusalCode::Version, "upgrade this node").to_bytes();
        bytes[8..10].copy_from_slice(&low.to_le_bytes());
        bytes[10..12].copy_from_slice(&high.to_le_bytes());
        seal(&mut bytes);
        let error = client(client_identity(None)).0.receive(&bytes).unwrap_err().to_string();
        let both = format!("it speaks versions {low} to {high}, this side {own} to {own}");
        assert!(error.contains(&both) && error.contains(&format!("upgrade {upgrade}")), "{error}");
    }
}

#[test]
fn a_later_version_may_say_more_and_is_understood() {
    let (_, mut hello) = client(client_identity(None));
    hello.extend_from_slice(&[7; 100]);
    hello[6..8].copy_from_slice(&228u16.to_le_bytes());
    hello[10..12].copy_from_slice(&9u16.to_le_bytes());
    seal(&mut hello);
    let welcome = sent(server(server_identity(None)).receive(&hello).1);
    assert_eq!(welcome[PREFIX_BYTES + 32..PREFIX_BYTES + 34], PROTOCOL_VERSION.to_le_bytes());
}

#[test]
fn an_http_client_gets_an_http_answer() {
    let (taken, step) = server(server_identity(None)).receive(b"GET / HTTP/1.1\r\n\r\n");
    assert!(taken <= 18);
    let (bytes, refusal) = refused(step);
    let text = String::from_utf8(bytes).unwrap();
    assert!(text.starts_with("HTTP/1.0 400 "), "{text}");
    assert!(text.contains("Hinterland protocol"), "{text}");
    assert_eq!(refusal.code, RefusalCode::Foreign);
}

#[test]
fn foreign_peers_get_a_line_of_text_at_their_first_wrong_byte() {
    for start in [&b"\x16\x03\x01"[..], b"HNTX", b"hello\n", b"\0"] {
        let (bytes, _) = refused(server(server_identity(None)).receive(start).1);
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.contains("Hinterland protocol"), "{start:?} got {text}");
    }
    assert_eq!(server(server_identity(None)).receive(b"HNT").1, ServerStep::Wait);
}

#[test]
fn a_client_names_what_a_foreign_server_said() {
    let (mut machine, _) = client(client_identity(None));
    let error = machine.receive(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap_err();
    assert!(error.to_string().contains("SSH-2.0-OpenSSH_9.2"), "{error}");
    assert!(matches!(error, HandshakeError::Foreign { .. }));
}

#[test]
fn another_pool_is_refused_by_name() {
    let mut identity = client_identity(None);
    identity.pool = PoolId(99);
    let error = play(identity.clone(), server_identity(None), 4096).unwrap_err();
    assert!(matches!(&error, HandshakeError::Refused(r) if r.code == RefusalCode::Pool), "{error}");
    identity.pool = PoolId::ANY;
    assert!(play(identity.clone(), server_identity(None), 4096).is_ok());
    identity.role = Role::Node;
    assert!(play(identity, server_identity(None), 4096).is_err());
}

#[test]
fn a_client_does_not_take_a_server_of_another_pool() {
    let mut to = server_identity(None);
    to.pool = PoolId(99);
    let (mut machine, mut hello) = client(client_identity(None));
    // The server is lied to, and so answers.
    hello[40..56].copy_from_slice(&99u128.to_le_bytes());
    seal(&mut hello);
    let welcome = sent(server(to).receive(&hello).1);
    let expected = HandshakeError::Pool { found: PoolId(99), expected: POOL };
    assert_eq!(machine.receive(&welcome), Err(expected));
}

#[test]
fn keys_must_be_on_both_sides_and_the_same() {
    let code = |ours: Option<PoolKey>, theirs: Option<PoolKey>| match play(
        client_identity(ours),
        server_identity(theirs),
        4096,
    ) {
        Err(HandshakeError::Refused(refusal)) => refusal.code,
        other => panic!("{other:?}"),
    };
    assert_eq!(code(None, key(1)), RefusalCode::KeyNeeded);
    assert_eq!(code(key(1), None), RefusalCode::KeyUnknown);
    // The server proves itself first, so the client notices a wrong key.
    let error = play(client_identity(key(1)), server_identity(key(2)), 4096).unwrap_err();
    assert_eq!(error, HandshakeError::WrongKey { node: NODE });
}

#[test]
fn a_client_without_the_right_key_is_refused_even_if_it_ignores_the_servers_proof() {
    let (_, hello) = client(client_identity(key(1)));
    let mut machine = server(server_identity(key(2)));
    let welcome = sent(machine.receive(&hello).1);
    let transcript = [hello, welcome].concat();
    let forged = encode(CONFIRM, &proof(key(1).as_ref(), Side::Client, &transcript));
    let (_, refusal) = refused(machine.receive(&forged).1);
    assert_eq!(refusal.code, RefusalCode::KeyWrong);
}

#[test]
fn a_recorded_proof_does_not_open_a_second_connection() {
    let (mut machine, hello) = client(client_identity(key(1)));
    let mut first = ServerHandshake::new(server_identity(key(1)), [20; 32]);
    let confirm = client_sends(&mut machine, &sent(first.receive(&hello).1));
    assert!(matches!(first.receive(&confirm).1, ServerStep::Authenticated(_)));
    let mut second = ServerHandshake::new(server_identity(key(1)), [21; 32]);
    sent(second.receive(&hello).1);
    let (_, refusal) = refused(second.receive(&confirm).1);
    assert_eq!(refusal.code, RefusalCode::KeyWrong);
}

#[test]
fn a_proof_cannot_be_reflected_to_the_side_that_made_it() {
    let (_, hello) = client(client_identity(key(1)));
    let mut machine = server(server_identity(key(1)));
    let welcome = sent(machine.receive(&hello).1);
    let reflected = encode(CONFIRM, &welcome[welcome.len() - 32..]);
    let (_, refusal) = refused(machine.receive(&reflected).1);
    assert_eq!(refusal.code, RefusalCode::KeyWrong);
}

#[test]
fn a_node_that_is_led_back_to_itself_notices() {
    let mut identity = client_identity(key(1));
    identity.role = Role::Node;
    identity.node = NODE;
    let error = play(identity, server_identity(key(1)), 4096).unwrap_err();
    assert_eq!(error, HandshakeError::Reflected { node: NODE });
}

#[test]
fn a_changed_welcome_is_noticed_by_who_has_the_key() {
    let (mut machine, hello) = client(client_identity(key(1)));
    let mut welcome = sent(server(server_identity(key(1))).receive(&hello).1);
    welcome[56] ^= 1;
    seal(&mut welcome);
    assert_eq!(machine.receive(&welcome), Err(HandshakeError::WrongKey { node: NODE }));
}

#[test]
fn messages_out_of_turn_are_refused() {
    for kind in [WELCOME, CONFIRM, READY] {
        let (_, refusal) = refused(server(server_identity(None)).receive(&encode(kind, &[0; 120])).1);
        assert_eq!(refusal.code, RefusalCode::Malformed);
    }
    for kind in [HELLO, CONFIRM, READY] {
        let (mut machine, _) = client(client_identity(None));
        assert!(matches!(machine.receive(&encode(kind, &[0; 120])), Err(HandshakeError::Malformed { .. })));
    }
    let mut machine = server(server_identity(None));
    let (_, hello) = client(client_identity(None));
    sent(machine.receive(&hello).1);
    assert_eq!(refused(machine.receive(&hello).1).1.code, RefusalCode::Malformed);
    assert_eq!(refused(machine.receive(&hello).1).1.code, RefusalCode::Malformed);
}

#[test]
fn a_server_that_chooses_an_unknown_version_is_left() {
    let (mut machine, hello) = client(client_identity(None));
    let mut welcome = sent(server(server_identity(None)).receive(&hello).1);
    welcome[48..50].copy_from_slice(&9u16.to_le_bytes());
    seal(&mut welcome);
    assert_eq!(machine.receive(&welcome), Err(HandshakeError::Version { chosen: 9 }));
}

#[test]
fn absurd_limits_of_a_server_are_clamped() {
    let mut to = server_identity(None);
    to.limits = PeerLimits { body_bytes_max: u32::MAX, runs_max: 0, streams_max: u32::MAX };
    let (ours, _, _) = play(client_identity(None), to, 4096).unwrap();
    let expected = PeerLimits { body_bytes_max: FRAME_BODY_BYTES_MAX, runs_max: 1, streams_max: 8 };
    assert_eq!(ours.limits, expected);
}

#[test]
fn the_text_of_a_refusal_is_cut_and_safe_to_print() {
    let long = format!("\x1b[31m{}", "ü".repeat(400));
    let bytes = Refusal::new(RefusalCode::Denied, long).to_bytes();
    assert!(bytes.len() <= 24 + 512);
    let (mut machine, _) = client(client_identity(None));
    match machine.receive(&bytes) {
        Err(HandshakeError::Refused(refusal)) => {
            assert!(refusal.text.starts_with(" [31mü") && !refusal.text.contains('\u{fffd}'));
        }
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn random_bytes_never_open_a_server(bytes in prop::collection::vec(any::<u8>(), 1..1500)) {
        let (taken, step) = server(server_identity(None)).receive(&bytes);
        prop_assert!(taken <= bytes.len());
        prop_assert!(!matches!(step, ServerStep::Authenticated(_) | ServerStep::Send(_)));
    }

    #[test]
    fn a_flipped_bit_of_a_hello_is_refused(place in 0usize..128, bit in 0u8..8) {
        let (_, mut hello) = client(client_identity(None));
        hello[place] ^= 1 << bit;
        let step = server(server_identity(None)).receive(&hello).1;
        prop_assert!(matches!(step, ServerStep::Refuse { .. } | ServerStep::Wait), "{:?}", step);
    }

    #[test]
    fn a_flipped_bit_of_a_welcome_is_noticed(place in 0usize..136, bit in 0u8..8) {
        let (mut machine, hello) = client(client_identity(None));
        let mut welcome = sent(server(server_identity(None)).receive(&hello).1);
        welcome[place] ^= 1 << bit;
        prop_assert!(matches!(machine.receive(&welcome), Err(_) | Ok((_, ClientStep::Wait))));
    }

    #[test]
    fn sealed_hellos_of_any_content_never_panic(
        body in prop::collection::vec(any::<u8>(), 0..300),
        keyed in any::<bool>(),
    ) {
        let mut machine = server(server_identity(keyed.then_some(PoolKey([1; 32]))));
        let _ = machine.receive(&encode(HELLO, &body));
        let _ = machine.receive(&encode(CONFIRM, &body));
    }
}
