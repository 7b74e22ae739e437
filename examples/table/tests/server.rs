//! A table for Redis clients: what one of them may ask for at once.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use hinterland_resp::Value;
use hinterland_resp::request::encode;
use hinterland_table::{ProcessMemory, Table, server};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

fn connect() -> TcpStream {
    const BYTES: u64 = 4 << 20;
    let table = Arc::new(Table::create(ProcessMemory::new(BYTES), BYTES).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // It ends with the process.
    std::thread::spawn(move || server::serve(&listener, &table));
    TcpStream::connect(address).unwrap()
}

/// Sends requests at once and reads as many replies.
fn ask(stream: &mut TcpStream, requests: &[&[&[u8]]]) -> Vec<Value> {
    let mut bytes = Vec::new();
    requests.iter().for_each(|words| encode(words, &mut bytes));
    stream.write_all(&bytes).unwrap();
    let (mut replies, mut came, mut piece) = (Vec::new(), Vec::new(), vec![0; 1 << 20]);
    while replies.len() < requests.len() {
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "closed after {} replies", replies.len());
        came.extend_from_slice(&piece[..count]);
        while let Some((value, length)) = Value::parse(&came).unwrap() {
            came.drain(..length);
            replies.push(value);
        }
    }
    replies
}

#[test]
fn a_client_that_asks_for_more_than_there_is_memory_is_refused_and_goes_on() {
    let mut stream = connect();
    let value = vec![7; 200 << 10];
    assert_eq!(ask(&mut stream, &[&[b"SET", b"k", &value]]), [Value::Simple(b"OK".to_vec())]);
    // 200 MB, of a request of some KB.
    let many: Vec<&[u8]> = std::iter::once(&b"MGET"[..]).chain([&b"k"[..]; 1000]).collect();
    let there = Value::Bulk(value.clone());
    let replies = ask(&mut stream, &[&many, &[b"MGET", b"k", b"none", b"k"], &[b"GET", b"k"]]);
    assert!(matches!(&replies[0], Value::Error(text) if text.ends_with(b"(hint: ask for fewer at once)")));
    assert_eq!(replies[1..], [Value::Array(vec![there.clone(), Value::Nil, there.clone()]), there]);
}

#[test]
fn all_values_of_a_long_list_and_of_many_requests_are_answered() {
    let mut stream = connect();
    let value = vec![9; 10 << 10];
    assert_eq!(ask(&mut stream, &[&[b"SET", b"k", &value]]), [Value::Simple(b"OK".to_vec())]);
    let many: Vec<&[u8]> = std::iter::once(&b"MGET"[..]).chain([&b"k"[..]; 1000]).collect();
    let all = vec![Value::Bulk(value.clone()); 1000];
    assert_eq!(ask(&mut stream, &[&many]), [Value::Array(all.clone())]);
    let requests: Vec<&[&[u8]]> = vec![&[b"GET", b"k"]; 1000];
    assert_eq!(ask(&mut stream, &requests), all);
}
