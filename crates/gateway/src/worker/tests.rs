//! A worker whose turns the test makes: it is known what comes between two of them.

use super::*;
use crate::ground;
use crate::server::ServerOptions;
use hinterland_node::Node;
use hinterland_resp::Value;
use hinterland_resp::request::encode;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseResult, TestRunner};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// Turns in which nothing comes after which nothing will.
const QUIET_TURNS: usize = 3;

struct Ground {
    root: PathBuf,
    node: Option<Node>,
    worker: Worker,
}

impl Ground {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("hl-worker-{name}-{}", std::process::id()));
        let node = Some(ground::node(&root));
        let options = ServerOptions {
            listen: Vec::new(),
            socket: root.join("socket"),
            namespace: name.to_owned(),
            password: None,
            databases: 1,
            threads: 1,
            clients_max: 10,
            buffers_bytes: 64 << 20,
        };
        let shared = Arc::new(Shared::new(options, 0));
        let worker = Worker::new(shared, Arc::new(Mailbox::new().unwrap())).unwrap();
        Self { root, node, worker }
    }

    fn connect(&mut self) -> Client {
        let (stream, own) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        own.set_nonblocking(true).unwrap();
        self.worker.mailbox.give(Stream::Unix(own), "test".to_owned());
        self.turn();
        Client { stream, came: Vec::new(), is_over: false }
    }

    /// A turn with all that is ready now.
    fn turn(&mut self) {
        let mut ready = Vec::new();
        self.worker.poller.wait(&mut ready, Some(Duration::ZERO)).unwrap();
        self.worker.turn(&ready);
    }

    /// Turns until nothing comes any more; all replies.
    fn finish(&mut self, client: &mut Client) -> Vec<Value> {
        let mut quiet = 0;
        while quiet < QUIET_TURNS && !client.is_over {
            self.turn();
            let has_more = !self.worker.again.is_empty();
            quiet = if client.read(usize::MAX) > 0 || has_more { 0 } else { quiet + 1 };
        }
        client.replies()
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if let Some(node) = self.node.take() {
            node.stop();
        }
        std::fs::remove_dir_all(&self.root).unwrap();
    }
}

/// The other end of a connection.
struct Client {
    stream: UnixStream,
    came: Vec<u8>,
    is_over: bool,
}

impl Client {
    /// Reads what is there, up to `most` bytes; how many came.
    fn read(&mut self, most: usize) -> usize {
        let (mut piece, mut count) = (vec![0; 64 << 10], 0);
        while count < most {
            let room = piece.len().min(most - count);
            match self.stream.read(&mut piece[..room]) {
                Ok(0) => {
                    self.is_over = true;
                    break;
                }
                Ok(bytes) => {
                    self.came.extend_from_slice(&piece[..bytes]);
                    count += bytes;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        count
    }

    fn replies(&mut self) -> Vec<Value> {
        let mut replies = Vec::new();
        while let Some((value, length)) = Value::parse(&self.came).unwrap() {
            self.came.drain(..length);
            replies.push(value);
        }
        replies
    }
}

/// A command on integers.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Set(u8, i64),
    Incr(u8),
    Get(u8),
}

fn ok() -> Value {
    Value::Simple(b"OK".to_vec())
}

impl Ask {
    fn encode(self, into: &mut Vec<u8>) {
        let (Self::Set(key, _) | Self::Incr(key) | Self::Get(key)) = self;
        let key = format!("key {key}");
        match self {
            Self::Set(_, value) => encode(&[b"SET", key.as_bytes(), value.to_string().as_bytes()], into),
            Self::Incr(_) => encode(&[b"INCR", key.as_bytes()], into),
            Self::Get(_) => encode(&[b"GET", key.as_bytes()], into),
        }
    }

    fn answer(self, model: &mut HashMap<u8, i64>) -> Value {
        match self {
            Self::Set(key, value) => {
                model.insert(key, value);
                ok()
            }
            Self::Incr(key) => {
                let value = model.entry(key).or_default();
                *value += 1;
                Value::Integer(*value)
            }
            Self::Get(key) => {
                model.get(&key).map_or(Value::Nil, |value| Value::Bulk(value.to_string().into_bytes()))
            }
        }
    }
}

fn ask() -> impl Strategy<Value = Ask> {
    prop_oneof![
        (0..4_u8, any::<i32>()).prop_map(|(key, value)| Ask::Set(key, i64::from(value))),
        (0..4_u8).prop_map(Ask::Incr),
        (0..4_u8).prop_map(Ask::Get),
    ]
}

/// Commands that come at once: as a transaction, or as they are.
type Group = (bool, Vec<Ask>);

/// The bytes of all, and the right replies.
fn script(groups: &[Group]) -> (Vec<u8>, Vec<Value>) {
    let (mut bytes, mut right) = (Vec::new(), Vec::new());
    let mut model = HashMap::new();
    encode(&[b"FLUSHALL"], &mut bytes);
    right.push(ok());
    for (is_transaction, asks) in groups {
        if *is_transaction {
            encode(&[b"MULTI"], &mut bytes);
            right.push(ok());
        }
        asks.iter().for_each(|ask| ask.encode(&mut bytes));
        let answers: Vec<Value> = asks.iter().map(|ask| ask.answer(&mut model)).collect();
        if *is_transaction {
            encode(&[b"EXEC"], &mut bytes);
            right.extend(asks.iter().map(|_| Value::Simple(b"QUEUED".to_vec())));
            right.push(Value::Array(answers));
        } else {
            right.extend(answers);
        }
    }
    (bytes, right)
}

/// Sends all bytes, with turns when the socket is full: single bytes fill it with a few hundred.
fn send(ground: &mut Ground, client: &mut Client, bytes: &[u8]) {
    let mut rest = bytes;
    while !rest.is_empty() {
        match client.stream.write(rest) {
            Ok(sent) => rest = &rest[sent..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => ground.turn(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Sends bytes in pieces with turns in between, and compares all replies.
fn check(ground: &mut Ground, groups: &[Group], cuts: &[(usize, usize)]) -> TestCaseResult {
    let (bytes, right) = script(groups);
    let mut client = ground.connect();
    let (mut rest, mut cuts) = (&bytes[..], cuts.iter().cycle());
    while !rest.is_empty() {
        let (length, turns) = *cuts.next().unwrap();
        let (piece, behind) = rest.split_at(length.min(rest.len()));
        send(ground, &mut client, piece);
        (0..turns).for_each(|_| ground.turn());
        rest = behind;
    }
    prop_assert_eq!(ground.finish(&mut client), right);
    client.stream.shutdown(Shutdown::Both).unwrap();
    ground.turn();
    Ok(())
}

#[test]
fn pipelined_transactions_of_any_cut_are_answered_once_each_and_in_their_order() {
    let mut ground = Ground::new("cuts");
    let group = (any::<bool>(), prop::collection::vec(ask(), 0..5));
    let groups = prop::collection::vec(group, 1..30);
    let cuts = prop::collection::vec((1..400_usize, 0..3_usize), 1..20);
    let config = Config { cases: 200, failure_persistence: None, ..Config::default() };
    let ground = std::cell::RefCell::new(&mut ground);
    TestRunner::new(config)
        .run(&(groups, cuts), |(groups, cuts)| check(&mut ground.borrow_mut(), &groups, &cuts))
        .unwrap();
}

#[test]
fn single_bytes_that_fill_the_socket_are_answered() {
    let mut ground = Ground::new("bytes");
    check(&mut ground, &transactions(30), &[(1, 0)]).unwrap();
}

/// The transactions that one test after the other puts behind each other.
fn transactions(count: usize) -> Vec<Group> {
    (0..count).map(|number| (true, vec![Ask::Set(1, number as i64), Ask::Incr(1), Ask::Get(1)])).collect()
}

#[test]
fn what_comes_while_a_transaction_waits_neither_takes_its_place_nor_changes_writes_before_it() {
    let mut ground = Ground::new("waits");
    let mut groups = transactions(2);
    groups.push((false, vec![Ask::Set(2, 11), Ask::Set(3, 12)]));
    groups.extend(transactions(2));
    groups.push((false, vec![Ask::Get(2), Ask::Get(3), Ask::Set(2, 13), Ask::Get(2)]));
    let (bytes, _) = script(&groups);
    for cut in 1..bytes.len() {
        for turns in 1..3 {
            check(&mut ground, &groups, &[(cut, turns), (bytes.len(), 0)]).unwrap();
        }
    }
}

#[test]
fn a_client_that_closes_behind_its_transactions_gets_all_replies() {
    let mut ground = Ground::new("closes");
    let (bytes, right) = script(&transactions(20));
    for turns in 0..3 {
        let mut client = ground.connect();
        client.stream.write_all(&bytes).unwrap();
        (0..turns).for_each(|_| ground.turn());
        client.stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(ground.finish(&mut client), right);
        assert!(client.is_over);
    }
}

#[test]
fn a_client_that_closes_and_reads_slowly_gets_all_replies() {
    const GETS: usize = 800;
    let mut ground = Ground::new("slow");
    let (value, mut bytes) = (vec![b'v'; 20_000], Vec::new());
    encode(&[b"SET", b"k", &value], &mut bytes);
    let mut writer = ground.connect();
    writer.stream.write_all(&bytes).unwrap();
    assert_eq!(ground.finish(&mut writer), [ok()]);
    bytes.clear();
    (0..GETS).for_each(|_| encode(&[b"GET", b"k"], &mut bytes));
    encode(&[b"ECHO", &[b'e'; 362]], &mut bytes);
    assert_eq!(bytes.len(), 16 << 10, "as much as the first read takes: the second one finds the end");
    let mut client = ground.connect();
    client.stream.write_all(&bytes).unwrap();
    client.stream.shutdown(Shutdown::Write).unwrap();
    let mut quiet = 0;
    while !client.is_over && quiet < QUIET_TURNS {
        ground.turn();
        quiet = if client.read(70_000) > 0 { 0 } else { quiet + 1 };
    }
    let replies = client.replies();
    assert!(client.is_over && replies.len() == GETS + 1, "{} of {GETS}", replies.len());
    assert!(replies[..GETS].iter().all(|reply| *reply == Value::Bulk(value.clone())));
}

#[test]
fn a_client_that_sends_transactions_on_and_on_fills_no_buffers() {
    const TURNS: usize = 300;
    let mut ground = Ground::new("endless");
    let mut client = ground.connect();
    let (bytes, _) = script(&transactions(1000));
    let (mut sent, mut taken) = (0, 0);
    for _ in 0..TURNS {
        while let Ok(count) = client.stream.write(&bytes[sent % bytes.len()..]) {
            sent += count;
        }
        ground.turn();
        taken += client.read(usize::MAX);
    }
    assert!(taken > TURNS && !client.is_over);
    let buffers = ground.worker.shared.buffer_bytes();
    assert!(buffers < 2 << 20, "{buffers} bytes");
}

#[test]
fn clients_that_ask_in_the_same_turn_share_the_room_for_replies() {
    const VALUE_BYTES: usize = 3 << 20;
    let mut ground = Ground::new("together");
    let mut clients: Vec<Client> = (0..10).map(|_| ground.connect()).collect();
    let mut bytes = Vec::new();
    encode(&[b"SETRANGE", b"k", (VALUE_BYTES - 1).to_string().as_bytes(), b"x"], &mut bytes);
    clients[0].stream.write_all(&bytes).unwrap();
    assert_eq!(ground.finish(&mut clients[0]), [Value::Integer(VALUE_BYTES as i64)]);
    bytes.clear();
    // Together they ask for 90 MiB, and the buffers have 64.
    encode(&[b"MGET", b"k", b"k", b"k"], &mut bytes);
    for client in &mut clients {
        client.stream.write_all(&bytes).unwrap();
    }
    ground.turn();
    let buffers = ground.worker.shared.buffer_bytes();
    assert!(buffers <= 64 << 20, "{buffers} bytes");
    let replies: Vec<Value> = clients.iter_mut().flat_map(|client| ground.finish(client)).collect();
    let refused = replies
        .iter()
        .filter(|reply| matches!(reply, Value::Error(text) if text.starts_with(b"OOM")))
        .count();
    assert!(replies.len() == 10 && (1..8).contains(&refused), "{refused} of {} refused", replies.len());
}
