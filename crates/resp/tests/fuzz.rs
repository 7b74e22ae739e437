//! Whatever bytes come, and however they are cut, parsing ends in requests or an error: never a panic, never more than came.
//!
//! `HINTERLAND_FUZZ_SECONDS=60 cargo test --release -p hinterland-resp --test fuzz` runs each target for a minute.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[path = "../../proto/tests/mutate/mod.rs"]
mod mutate;

use hinterland_resp::request::encode;
use hinterland_resp::{
    Limits, Parsed, ProtocolError, RequestParser, Value, command, float, glob, inline, number,
};
use mutate::{Random, fuzz};

type Requests = (Vec<Vec<Vec<u8>>>, Result<usize, ProtocolError>);

/// All requests of some bytes that come in pieces; what is left at the end, or why it ended.
fn parse_all(bytes: &[u8], limits: &Limits, mut cut: impl FnMut(usize) -> usize) -> Requests {
    let (mut parser, mut requests) = (RequestParser::default(), Vec::new());
    let (mut start, mut end) = (0, 0);
    loop {
        match parser.parse(&bytes[start..end], limits) {
            Ok(Parsed::Request(length)) => {
                assert!((1..=end - start).contains(&length));
                let words = parser.arguments(&bytes[start..end]);
                let owned: Vec<Vec<u8>> = words.from(0).map(<[u8]>::to_vec).collect();
                for (index, word) in owned.iter().enumerate() {
                    assert_eq!(words.get(index), word);
                    if let Some(place) = words.place(index) {
                        assert_eq!(&bytes[start..end][place], word);
                    }
                }
                requests.push(owned);
                start += length;
            }
            Ok(Parsed::More(least)) if end == bytes.len() => {
                assert!(least > end - start);
                return (requests, Ok(end - start));
            }
            Ok(Parsed::More(least)) => {
                assert!(least > end - start, "it waits for what is there");
                end += cut(bytes.len() - end).clamp(1, bytes.len() - end);
            }
            Err(error) => return (requests, Err(error)),
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let mut stream = Vec::new();
    encode(&[b"SET", b"key", &[7; 300], b"EX", b"100"], &mut stream);
    encode(&[b"MGET", b"", b"\r\n"], &mut stream);
    stream.extend_from_slice(b"PING\r\nSET 'a b' \"\\x00\\n\"\n*0\r\n\r\n");
    encode(&[b"GET", b"key"], &mut stream);
    let mut replies = Vec::new();
    let pair = (Value::Bulk(b"k".to_vec()), Value::Integer(-5));
    Value::Array(vec![Value::Simple(b"OK".to_vec()), Value::Map(vec![pair]), Value::Nil])
        .encode(&mut replies);
    vec![stream, b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n".to_vec(), b"*1\r\n$4\r\nPING\r\n".repeat(20), replies]
}

#[test]
fn fuzz_requests_are_the_same_however_they_are_cut() {
    fuzz(&seeds(), |random: &mut Random, bytes| {
        for limits in [Limits::KNOWN, Limits::STRANGER] {
            let whole = parse_all(&bytes, &limits, |rest| rest);
            let cut = parse_all(&bytes, &limits, |rest| 1 + random.below(rest.min(40)));
            assert_eq!(whole, cut);
            let each = parse_all(&bytes, &limits, |_| 1);
            assert_eq!(whole, each);
            for words in whole.0 {
                assert!(words.len() <= limits.arguments_max);
                let mut again = Vec::new();
                encode(&words.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut again);
                assert_eq!(parse_all(&again, &Limits::KNOWN, |rest| rest), (vec![words], Ok(0)));
            }
        }
    });
}

#[test]
fn fuzz_replies_are_values_or_errors() {
    fuzz(&seeds(), |_, bytes| {
        if let Ok(Some((value, length))) = Value::parse(&bytes) {
            assert!(length <= bytes.len());
            let mut again = Vec::new();
            value.encode(&mut again);
            assert_eq!(Value::parse(&again), Ok(Some((value, again.len()))));
        }
    });
}

#[test]
fn fuzz_words_patterns_and_numbers_end() {
    let seeds = [
        b"h[a-c]*\\x?llo".to_vec(),
        b"-922337203685477580".to_vec(),
        b"get 'a\\'' \"\\xff\"".to_vec(),
        b"-0x1.8p-3".to_vec(),
        b"12.5e-400".to_vec(),
    ];
    fuzz(&seeds, |random, bytes| {
        let (pattern, name) = bytes.split_at(random.below(bytes.len() + 1).min(200));
        let name = &name[..name.len().min(200)];
        if pattern.iter().all(|byte| !b"*?[\\".contains(byte)) {
            assert_eq!(glob::fits(pattern, name), pattern == name);
        } else {
            glob::fits(pattern, name);
        }
        assert!(glob::fits(b"*", &bytes));
        if let Some(value) = number::parse(&bytes) {
            assert_eq!(value.to_string().as_bytes(), bytes);
        }
        if let Some(number) = float::Float::parse(&bytes) {
            let mut text = Vec::new();
            number.push(&mut text);
            assert!(float::Float::parse(&text).is_some(), "{}", text.escape_ascii());
        }
        let (mut owned, mut words) = (Vec::new(), Vec::new());
        if inline::split(&bytes, &mut owned, &mut words).is_some() {
            assert!(owned.len() <= bytes.len() && words.iter().all(|word| word.end <= owned.len()));
        }
        command::find(&bytes);
    });
}
