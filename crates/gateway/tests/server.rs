//! A server on a node of the same process: requests as bytes, and what another writer of the same keys sees.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod ground;

use hinterland_gateway::{Listen, Server, ServerError, ServerOptions};
use hinterland_node::Node;
use hinterland_pool::{Expects, Pool, Replaced, Replacement};
use hinterland_resp::Value;
use hinterland_resp::request::encode;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Barrier;

struct Ground {
    root: PathBuf,
    node: Option<Node>,
}

impl Ground {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("hl-resp-{name}-{}", std::process::id()));
        Self { node: Some(ground::node(&root)), root }
    }

    fn options(&self) -> ServerOptions {
        ServerOptions {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            socket: self.root.join("socket"),
            namespace: "tests".to_owned(),
            password: None,
            databases: 2,
            threads: 1,
            clients_max: 10,
            buffers_bytes: 64 << 20,
        }
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

fn connect(server: &Server) -> TcpStream {
    match &server.addresses()[0] {
        Listen::Tcp(address) => TcpStream::connect(address).unwrap(),
        other => panic!("{other}"),
    }
}

/// Sends requests at once and reads as many replies.
fn ask(stream: &mut TcpStream, requests: &[&[&[u8]]]) -> Vec<Value> {
    let mut bytes = Vec::new();
    requests.iter().for_each(|words| encode(words, &mut bytes));
    stream.write_all(&bytes).unwrap();
    let (mut replies, mut came) = (Vec::new(), Vec::new());
    while replies.len() < requests.len() {
        while let Some((value, length)) = Value::parse(&came).unwrap() {
            came.drain(..length);
            replies.push(value);
        }
        if replies.len() < requests.len() {
            let mut piece = vec![0; 1 << 20];
            let count = stream.read(&mut piece).unwrap();
            assert!(count > 0, "closed after {replies:?}");
            came.extend_from_slice(&piece[..count]);
        }
    }
    replies
}

fn ok() -> Value {
    Value::Simple(b"OK".to_vec())
}

#[test]
fn a_transaction_that_watches_a_key_of_a_node_that_has_gone_does_nothing() {
    let mut ground = Ground::new("watch");
    let server = Server::start(ground.options()).unwrap();
    let (mut stream, mut other) = (connect(&server), connect(&server));
    assert_eq!(ask(&mut stream, &[&[b"SET", b"k", b"old"], &[b"WATCH", b"k"]]), [ok(), ok()]);
    ground.node.take().unwrap().stop();
    // It keeps no blocks, and gives the next value the place and the number that the old one had.
    ground.node = Some(ground::node(&ground.root));
    while ask(&mut other, &[&[b"SET", b"k", b"new"]]) != [ok()] {}
    let replies =
        ask(&mut stream, &[&[b"MULTI"], &[b"SET", b"k", b"seen: old"], &[b"EXEC"], &[b"GET", b"k"]]);
    assert_eq!(replies[2..], [Value::Nil, Value::Bulk(b"new".to_vec())]);
}

#[test]
fn writes_and_reads_of_a_pipeline_happen_in_their_order() {
    let ground = Ground::new("order");
    let server = Server::start(ground.options()).unwrap();
    let mut stream = connect(&server);
    let replies = ask(
        &mut stream,
        &[
            &[b"SET", b"k", b"1"],
            &[b"SET", b"k", b"2"],
            &[b"GET", b"k"],
            &[b"SET", b"k", b"3"],
            &[b"INCR", b"k"],
        ],
    );
    assert_eq!(replies, [ok(), ok(), Value::Bulk(b"2".to_vec()), ok(), Value::Integer(4)]);
    let replies = ask(&mut stream, &[&[b"SELECT", b"1"], &[b"GET", b"k"], &[b"SELECT", b"0"], &[b"DBSIZE"]]);
    assert_eq!(replies, [ok(), Value::Nil, ok(), Value::Integer(1)]);
}

#[test]
fn the_databases_of_a_namespace_with_a_long_name_are_counted_and_emptied() {
    let ground = Ground::new("long");
    let server = Server::start(ServerOptions { namespace: "n".repeat(300), ..ground.options() }).unwrap();
    let mut stream = connect(&server);
    let both: [&[&[u8]]; 3] = [&[b"SET", b"k", b"v"], &[b"SELECT", b"1"], &[b"MSET", b"a", b"1", b"b", b"2"]];
    assert_eq!(ask(&mut stream, &both), [ok(), ok(), ok()]);
    let counted = |replies: &[Value]| match &replies[0] {
        Value::Bulk(text) => String::from_utf8_lossy(text).into_owned(),
        other => panic!("{other:?}"),
    };
    let text = counted(&ask(&mut stream, &[&[b"INFO", b"keyspace"]]));
    assert!(text.contains("db0:keys=1,") && text.contains("db1:keys=2,"), "{text}");
    let replies = ask(
        &mut stream,
        &[&[b"FLUSHALL"], &[b"DBSIZE"], &[b"GET", b"a"], &[b"SELECT", b"0"], &[b"GET", b"k"]],
    );
    assert_eq!(replies, [ok(), Value::Integer(0), Value::Nil, ok(), Value::Nil]);
    assert_eq!(counted(&ask(&mut stream, &[&[b"INFO", b"keyspace"]])), "# Keyspace\r\n");
}

#[test]
fn blocks_that_are_no_values_are_misses_and_can_be_replaced() {
    let ground = Ground::new("foreign");
    let server = Server::start(ground.options()).unwrap();
    let mut stream = connect(&server);
    let fingerprint = "values of Redis clients, form 1, namespace tests, database 0";
    let mut values =
        Pool::connect(Some(&ground.root.join("socket"))).unwrap().kv_values(fingerprint).unwrap();
    for bytes in [&b"x"[..], &[0; 64], &[0xff; 200]] {
        let block = Replacement { key: b"k", pieces: &[bytes], expects: Expects::Anything };
        assert_eq!(values.replace(&[block]).unwrap(), [Replaced::Done]);
        let replies = ask(&mut stream, &[&[b"GET", b"k"], &[b"EXISTS", b"k"], &[b"KEYS", b"*"]]);
        assert_eq!(replies, [Value::Nil, Value::Integer(0), Value::Array(vec![])]);
        let replies = ask(&mut stream, &[&[b"SET", b"k", b"v"], &[b"GET", b"k"]]);
        assert_eq!(replies, [ok(), Value::Bulk(b"v".to_vec())]);
    }
}

#[test]
fn a_swap_that_expects_another_block_changes_nothing() {
    let ground = Ground::new("expects");
    let pool = Pool::connect(Some(&ground.root.join("socket"))).unwrap();
    let (mut one, mut two) = (pool.kv_values("v").unwrap(), pool.kv_values("v").unwrap());
    let block = |pieces, expects| Replacement { key: b"k", pieces, expects };
    assert_eq!(one.replace(&[block(&[b"1"], Expects::Nothing)]).unwrap(), [Replaced::Done]);
    let seen = two.find(b"k").unwrap().unwrap();
    assert_eq!(two.replace(&[block(&[b"2"], Expects::Nothing)]).unwrap(), [Replaced::Changed]);
    assert_eq!(one.replace(&[block(&[b"3"], Expects::Block(seen))]).unwrap(), [Replaced::Done]);
    assert_eq!(two.replace(&[block(&[b"4"], Expects::Block(seen))]).unwrap(), [Replaced::Changed]);
    assert_eq!(two.remove_found(&[(b"k", seen)]).unwrap(), 0);
    assert!(!two.read(&seen, &mut [&mut [0]]), "it was replaced");
    let mut value = [0];
    assert!(two.read(&two.find(b"k").unwrap().unwrap(), &mut [&mut value]) && value == *b"3");
    assert!(one.replace(&[block(&[b""], Expects::Anything)]).is_err(), "a block has a byte at least");
}

#[test]
fn a_swap_of_several_happens_whole_or_not_at_all() {
    let ground = Ground::new("several");
    let pool = Pool::connect(Some(&ground.root.join("socket"))).unwrap();
    let (mut one, mut two) = (pool.kv_values("v").unwrap(), pool.kv_values("v").unwrap());
    let large = vec![7; 4 << 20];
    let large = [&large[..]];
    let block = |key, pieces, expects| Replacement { key, pieces, expects };
    let keys = |values: &hinterland_pool::KvValues| {
        let mut keys = values.list(0, 100).unwrap().0;
        keys.sort();
        keys
    };
    let both = [block(b"a", &[b"1"], Expects::Nothing), block(b"b", &[b"2"], Expects::Nothing)];
    assert_eq!(one.replace_all(&both, &[], false).unwrap(), Replaced::Done);
    let (a, b) = (two.find(b"a").unwrap().unwrap(), two.find(b"b").unwrap().unwrap());
    let some = [block(b"c", &[b"3"], Expects::Nothing), block(b"b", &[b"4"], Expects::Nothing)];
    assert_eq!(two.replace_all(&some, &[], false).unwrap(), Replaced::Changed);
    let twice = [block(b"c", &[b"3"], Expects::Nothing), block(b"c", &[b"4"], Expects::Nothing)];
    assert_eq!(
        two.replace_all(&twice, &[], false).unwrap(),
        Replaced::Changed,
        "a key must not be there twice"
    );
    assert_eq!(keys(&one), [b"a", b"b"]);
    let moved = [block(b"c", &[b"1"], Expects::Anything)];
    assert_eq!(two.replace_all(&moved, &[(b"a", a)], false).unwrap(), Replaced::Done);
    assert_eq!(keys(&one), [b"a", b"b", b"c"], "what was only looked at stays");
    assert_eq!(two.replace_all(&moved, &[(b"b", a)], true).unwrap(), Replaced::Changed);
    assert_eq!(two.replace_all(&moved, &[(b"a", a), (b"b", b)], true).unwrap(), Replaced::Done);
    assert_eq!(
        two.replace_all(&moved, &[(b"a", a)], true).unwrap(),
        Replaced::Changed,
        "it is not there any more"
    );
    assert_eq!(keys(&one), [b"c"]);
    let many = vec![block(b"d", &[b"5"], Expects::Anything); hinterland_pool::TOGETHER_MAX + 1];
    assert!(one.replace_all(&many, &[], false).is_err());
    assert_eq!(keys(&one), [b"c"]);
    // What was given back while nothing happened can be taken again.
    for _ in 0..100 {
        let outcome = one.replace_all(&[block(b"e", &large, Expects::Block(a))], &[], false);
        assert_eq!(outcome.unwrap(), Replaced::Changed);
    }
}

#[test]
fn a_command_about_several_keys_keeps_its_place_among_others() {
    let ground = Ground::new("place");
    let server = Server::start(ground.options()).unwrap();
    let mut stream = connect(&server);
    let requests: &[&[&[u8]]] = &[
        &[b"SET", b"a", b"1"],
        &[b"RENAME", b"a", b"b"],
        &[b"SET", b"a", b"2"],
        &[b"MSETNX", b"c", b"3", b"d", b"4"],
        &[b"MULTI"],
        &[b"COPY", b"c", b"a", b"REPLACE"],
        &[b"EXEC"],
        &[b"MGET", b"a", b"b", b"d"],
        &[b"RENAME", b"a"],
    ];
    let bulk = |text: &[u8]| Value::Bulk(text.to_vec());
    let replies = ask(&mut stream, requests);
    let queued = Value::Simple(b"QUEUED".to_vec());
    assert_eq!(replies[..5], [ok(), ok(), ok(), Value::Integer(1), ok()]);
    assert_eq!(replies[5..7], [queued, Value::Array(vec![Value::Integer(1)])]);
    assert_eq!(replies[7], Value::Array(vec![bulk(b"3"), bulk(b"1"), bulk(b"4")]));
    assert_eq!(replies[8], Value::Error(b"ERR wrong number of arguments for 'rename' command".to_vec()));
}

/// What `EXEC` answers to commands that were queued after `MULTI`.
fn transaction(stream: &mut TcpStream, requests: &[&[&[u8]]]) -> Vec<Value> {
    let mut all: Vec<&[&[u8]]> = vec![&[b"MULTI"]];
    all.extend(requests);
    all.push(&[b"EXEC"]);
    match ask(stream, &all).pop() {
        Some(Value::Array(replies)) => replies,
        other => panic!("{other:?}"),
    }
}

#[test]
fn replies_that_go_out_together_have_room_in_the_buffers() {
    let ground = Ground::new("room");
    let value = vec![b'v'; 60_000];
    let commands: &[(usize, &[&[u8]])] = &[
        (200, &[b"GET", b"k"]),
        (200, &[b"GETRANGE", b"k", b"0", b"-1"]),
        (200, &[b"GETEX", b"k", b"PX", b"1000000"]),
        (1000, &[b"COMMAND"]),
    ];
    for (count, words) in commands {
        let options = ServerOptions { buffers_bytes: 4 << 20, ..ground.options() };
        let server = Server::start(options).unwrap();
        let mut stream = connect(&server);
        assert_eq!(ask(&mut stream, &[&[b"SET", b"k", &value]]), [ok()]);
        let replies = transaction(&mut stream, &vec![*words; *count]);
        assert!(replies.len() == *count && !matches!(replies[0], Value::Error(_)), "{:?}", replies[0]);
        let mut bytes = Vec::new();
        replies.iter().for_each(|reply| reply.encode(&mut bytes));
        assert!(bytes.len() < 5 << 20, "{} bytes to {}", bytes.len(), words[0].escape_ascii());
    }
    let server = Server::start(ServerOptions { buffers_bytes: 4 << 20, ..ground.options() }).unwrap();
    let words = [vec![&b"MGET"[..]], vec![&b"k"[..]; 200]].concat();
    let replies = ask(&mut connect(&server), &[&words]);
    assert!(matches!(replies[0], Value::Error(_)), "one command has no more room than several");
}

#[test]
fn a_value_that_has_no_room_among_the_replies_is_neither_removed_nor_replaced() {
    let ground = Ground::new("kept");
    let value = vec![b'v'; 2 << 20];
    let commands: &[&dyn Fn(&'static [u8]) -> Vec<&'static [u8]>] = &[
        &|key| vec![b"GETDEL", key],
        &|key| vec![b"GETSET", key, b"new"],
        &|key| vec![b"SET", key, b"new", b"GET"],
        &|key| vec![b"GETEX", key, b"PXAT", b"1"],
    ];
    for command in commands {
        let options = ServerOptions { buffers_bytes: 7 << 20, ..ground.options() };
        let server = Server::start(options).unwrap();
        let mut stream = connect(&server);
        let keys: [&'static [u8]; 4] = [b"a", b"b", b"c", b"d"];
        for key in keys {
            assert_eq!(ask(&mut stream, &[&[b"SET", key, &value]]), [ok()]);
        }
        let requests = keys.map(command);
        let replies = transaction(&mut stream, &requests.each_ref().map(Vec::as_slice));
        assert!(replies[0] == Value::Bulk(value.clone()) && matches!(replies[3], Value::Error(_)));
        for (key, reply) in keys.iter().zip(replies) {
            let length = ask(&mut connect(&server), &[&[b"STRLEN", key]]).remove(0);
            let is_whole = length == Value::Integer(value.len() as i64);
            assert_eq!(is_whole, matches!(reply, Value::Error(_)), "{length:?}");
        }
    }
}

#[test]
fn parts_of_values_that_nobody_can_read_do_not_stay() {
    let ground = Ground::new("parts");
    let server = Server::start(ground.options()).unwrap();
    let mut stream = connect(&server);
    let (one, two, long) = (vec![1; 5 << 20], vec![2; 5 << 20], vec![b'k'; 70_000]);
    // The last value of a key counts, as with Redis.
    assert_eq!(ask(&mut stream, &[&[b"MSET", b"k", &one, b"k", &two]]), [ok()]);
    assert_eq!(ask(&mut stream, &[&[b"GET", b"k"]]), [Value::Bulk(two)]);
    assert_eq!(ask(&mut stream, &[&[b"DEL", b"k"]]), [Value::Integer(1)]);
    assert_eq!(used_bytes(&server), 0, "the first one of a key that is named twice");
    let replies = ask(&mut stream, &[&[b"MSET", b"k", &one, &long, b"v"], &[b"DBSIZE"]]);
    assert!(matches!(replies[0], Value::Error(_)) && replies[1] == Value::Integer(0), "{:?}", replies[1]);
    assert_eq!(used_bytes(&server), 0, "those before a key that is too long");
}

#[test]
fn the_words_of_a_request_count_among_the_buffers_and_go_when_it_is_over() {
    let ground = Ground::new("words");
    let server = Server::start(ServerOptions { buffers_bytes: 12 << 20, ..ground.options() }).unwrap();
    let mut stream = connect(&server);
    let mget = |keys: usize| [vec![&b"MGET"[..]], vec![&b""[..]; keys]].concat();
    let words = mget(100_000);
    let replies = ask(&mut stream, &[&words]);
    assert!(matches!(&replies[0], Value::Array(values) if values.len() == 100_000));
    assert!(of_memory(&server, "buffers_bytes") >= 100_000 * 16, "each word is a range of two numbers");
    while of_memory(&server, "buffers_bytes") > 100_000 {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let mut request = Vec::new();
    encode(&mget(1_000_000), &mut request);
    // The server may close while more is on its way.
    let _ = stream.write_all(&request);
    let mut answer = [0; 4];
    assert!(stream.read_exact(&mut answer).is_err() || answer == *b"-OOM", "{}", answer.escape_ascii());
}

#[test]
fn a_client_that_is_quiet_is_asked_whether_it_is_there() {
    let ground = Ground::new("quiet");
    let server = Server::start(ground.options()).unwrap();
    let mut stream = connect(&server);
    assert_eq!(ask(&mut stream, &[&[b"PING"]]), [Value::Simple(b"PONG".to_vec())]);
    let ends = |end: std::net::SocketAddr| format!(":{:04X}", end.port());
    let (own, other) = (ends(stream.peer_addr().unwrap()), ends(stream.local_addr().unwrap()));
    // A host that was switched off would stay a client for ever. The kernel shows the timer of the next question as 2.
    let is_timed = || {
        let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        let mut lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let line = lines.find(|line| line[1].ends_with(&own) && line[2].ends_with(&other)).unwrap();
        line[5].starts_with("02:")
    };
    // While a reply is not acknowledged its own timer is shown.
    assert!((0..200).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        is_timed()
    }));
}

/// Bytes of all blocks of the node.
fn used_bytes(server: &Server) -> u64 {
    of_memory(server, "used_memory")
}

/// A number of `INFO memory`.
fn of_memory(server: &Server, name: &str) -> u64 {
    let Value::Bulk(text) = ask(&mut connect(server), &[&[b"INFO", b"memory"]]).remove(0) else {
        panic!("no text")
    };
    let text = String::from_utf8(text).unwrap();
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(key, _)| *key == name).unwrap().1.parse().unwrap()
}

#[test]
fn an_address_of_other_hosts_is_refused_without_a_password() {
    let ground = Ground::new("open");
    let listen = vec!["0.0.0.0:0".parse().unwrap()];
    let refused = Server::start(ServerOptions { listen, ..ground.options() });
    assert!(matches!(refused.err(), Some(ServerError::Listen(_))));
}

#[test]
fn a_file_at_the_path_of_a_unix_socket_stays() {
    let root = std::env::temp_dir().join(format!("hl-resp-file-{}", std::process::id()));
    std::fs::create_dir(&root).unwrap();
    let ground = Ground { root, node: None };
    let path = ground.root.join("file");
    std::fs::write(&path, b"kept").unwrap();
    let options = ServerOptions { listen: vec![Listen::Unix(path.clone())], ..ground.options() };
    let refusal = Server::start(options).err().unwrap();
    assert!(refusal.to_string().contains("is there already and no socket"), "{refusal}");
    assert_eq!(std::fs::read(&path).unwrap(), b"kept");
}

#[test]
fn a_server_that_ends_leaves_the_socket_of_the_next_one_alone() {
    let ground = Ground::new("next");
    let path = ground.root.join("resp");
    let start = || {
        let listen = vec!["127.0.0.1:0".parse().unwrap(), Listen::Unix(path.clone())];
        Server::start(ServerOptions { listen, ..ground.options() }).unwrap()
    };
    let first = start();
    std::fs::remove_file(&path).unwrap();
    let next = start();
    drop(first);
    let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
    stream.write_all(b"PING\r\n").unwrap();
    let mut reply = [0; 7];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+PONG\r\n");
    drop(next);
    assert!(!path.exists());
}

#[test]
fn who_connects_after_a_thread_has_failed_is_served() {
    let ground = Ground::new("failed");
    // Without any database a key is a defect of ours.
    let server = Server::start(ServerOptions { databases: 0, ..ground.options() }).unwrap();
    let mut last = connect(&server);
    let mut bytes = Vec::new();
    encode(&[b"GET", b"key"], &mut bytes);
    last.write_all(&bytes).unwrap();
    assert_eq!(last.read(&mut [0]).unwrap(), 0, "its connection ends");
    let mut next = connect(&server);
    next.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    assert_eq!(ask(&mut next, &[&[b"PING"]]), [Value::Simple(b"PONG".to_vec())]);
}

#[test]
fn threads_that_append_large_values_at_the_same_moment_share_the_buffers() {
    for words in [&[b"GET", &b"k"[..]][..], &[b"GETRANGE", b"k", b"0", b"-1"], &[b"GETEX", b"k", b"PERSIST"]]
    {
        at_the_same_moment(words);
    }
}

fn at_the_same_moment(words: &[&[u8]]) {
    let ground = Ground::new(&format!("threads-{}", words[0].escape_ascii()));
    let mut request = Vec::new();
    encode(words, &mut request);
    let filling = Server::start(ground.options()).unwrap();
    assert_eq!(ask(&mut connect(&filling), &[&[b"SET", b"k", &vec![b'v'; 9 << 20]]]), [ok()]);
    drop(filling);
    for round in 0..20 {
        let options = ServerOptions { threads: 4, buffers_bytes: 12 << 20, ..ground.options() };
        let server = Server::start(options).unwrap();
        let streams: Vec<TcpStream> = (0..4).map(|_| connect(&server)).collect();
        for mut stream in &streams {
            // Each thread has its memory of the node then, and is about to sleep.
            stream.write_all(b"*2\r\n$3\r\nGET\r\n$4\r\nnone\r\n").unwrap();
            stream.read_exact(&mut [0; 5]).unwrap();
        }
        let barrier = Barrier::new(4);
        let ask = |mut stream: &TcpStream| {
            barrier.wait();
            stream.write_all(&request).unwrap();
            // Nobody reads the rest, so the buffers have it until the end.
            let mut first = [0];
            stream.read_exact(&mut first).unwrap();
            first == *b"$"
        };
        let there = std::thread::scope(|scope| {
            let asked: Vec<_> = streams.iter().map(|stream| scope.spawn(|| ask(stream))).collect();
            asked.into_iter().map(|asked| asked.join().unwrap()).filter(|is_there| *is_there).count()
        });
        assert!(there <= 1, "round {round}: {there} values of 9 MiB in buffers of 12, of {words:?}");
    }
}
