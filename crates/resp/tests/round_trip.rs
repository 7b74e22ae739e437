//! What is encoded is decoded again, in pieces of any length.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use hinterland_resp::request::encode;
use hinterland_resp::{Limits, Parsed, Replies, RequestParser, Value, Version};
use proptest::prelude::*;

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        (0..70_000_usize).prop_map(|length| vec![b'\r'; length])
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let line = prop::collection::vec(0x20_u8..0x7f, 0..30);
    let leaf = prop_oneof![
        line.clone().prop_map(Value::Simple),
        line.prop_map(Value::Error),
        any::<i64>().prop_map(Value::Integer),
        bytes().prop_map(Value::Bulk),
        Just(Value::Nil),
    ];
    leaf.prop_recursive(4, 30, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Set),
            prop::collection::vec((inner.clone(), inner), 0..4).prop_map(Value::Map),
        ]
    })
}

/// Writes a reply as a server does.
fn write(value: &Value, replies: &mut Replies) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    match value {
        Value::Simple(line) => replies.simple(&text(line)),
        Value::Error(line) => replies.error(&text(line)),
        Value::Integer(value) => replies.integer(*value),
        Value::Bulk(bytes) | Value::Text(bytes) => replies.bulk(bytes),
        Value::Nil => replies.nil(),
        Value::Array(values) => {
            replies.array(values.len());
            values.iter().for_each(|value| write(value, replies));
        }
        Value::Set(values) => {
            replies.set(values.len());
            values.iter().for_each(|value| write(value, replies));
        }
        Value::Map(pairs) => {
            replies.map(pairs.len());
            for (key, value) in pairs {
                write(key, replies);
                write(value, replies);
            }
        }
    }
}

proptest! {
    #[test]
    fn requests_come_back_from_pieces_of_any_length(
        requests in prop::collection::vec(prop::collection::vec(bytes(), 1..6), 1..6),
        cuts in prop::collection::vec(1..5000_usize, 1..20),
    ) {
        let mut stream = Vec::new();
        for words in &requests {
            encode(&words.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut stream);
        }
        let (mut parser, mut found, mut start, mut end) = (RequestParser::default(), Vec::new(), 0, 0);
        let mut cuts = cuts.iter().cycle();
        while found.len() < requests.len() {
            match parser.parse(&stream[start..end], &Limits::KNOWN).unwrap() {
                Parsed::Request(length) => {
                    let words = parser.arguments(&stream[start..end]);
                    found.push(words.from(0).map(<[u8]>::to_vec).collect::<Vec<_>>());
                    start += length;
                }
                Parsed::More(least) => {
                    prop_assert!(start + least <= stream.len() && least > end - start);
                    end = stream.len().min(end + cuts.next().unwrap());
                }
            }
        }
        prop_assert_eq!((found, start), (requests, stream.len()));
    }

    #[test]
    fn replies_come_back_and_their_starts_are_not_whole(value in value(), cut in any::<prop::sample::Index>()) {
        let mut replies = Replies::new(Version::Three);
        write(&value, &mut replies);
        let bytes = replies.unsent();
        prop_assert_eq!(Value::parse(bytes), Ok(Some((value.clone(), bytes.len()))));
        prop_assert_eq!(Value::parse(&bytes[..cut.index(bytes.len())]), Ok(None));
        let mut encoded = Vec::new();
        value.encode(&mut encoded);
        prop_assert_eq!(&encoded[..], bytes);
    }
}
