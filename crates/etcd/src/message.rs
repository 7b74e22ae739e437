//! What is asked of etcd and what it answers, as JSON: bytes in base64, numbers as texts.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// A key with its value.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeyValue {
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// The revision at which the key was made; another one each time that it is made anew.
    pub create_revision: i64,
    /// The revision of the last change.
    pub mod_revision: i64,
    /// How often it was written since it was made; 1 at first.
    pub version: i64,
}

/// What must be true for a transaction to be carried out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Comparison {
    /// The key was made at this revision; 0: it does not exist.
    CreatedAt(Vec<u8>, i64),
    /// The key has this value.
    Value(Vec<u8>, Vec<u8>),
}

/// Part of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Writes a key; with a lease it goes when the lease ends.
    Put {
        /// The key; at most once in one transaction.
        key: Vec<u8>,
        /// The value.
        value: Vec<u8>,
        /// The lease; 0: none.
        lease: i64,
    },
    /// Deletes a key, or nothing.
    Delete(Vec<u8>),
    /// Deletes all keys that begin so.
    DeletePrefix(Vec<u8>),
    /// Reads a key.
    Get(Vec<u8>),
}

/// Comparisons, and what is done if all of them hold, or else.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Transaction {
    /// What must be true.
    pub compare: Vec<Comparison>,
    /// Done if it is.
    pub success: Vec<Operation>,
    /// Done if it is not.
    pub failure: Vec<Operation>,
}

/// What became of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TransactionAnswer {
    /// Whether all comparisons held.
    pub succeeded: bool,
    /// The revision behind it.
    pub revision: i64,
    /// One entry for each [`Operation::Get`], in order: what was there.
    pub found: Vec<Option<KeyValue>>,
}

/// The key behind all keys that begin so.
pub(crate) fn range_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if let Some(next) = last.checked_add(1) {
            end.push(next);
            return end;
        }
    }
    // All keys.
    vec![0]
}

pub(crate) fn text(bytes: &[u8]) -> Value {
    Value::String(STANDARD.encode(bytes))
}

/// A number, which etcd writes as a text and leaves out when it is 0.
pub(crate) fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Null => Some(0),
        Value::Number(number) => number.as_i64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

pub(crate) fn bytes(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::Null => Some(Vec::new()),
        Value::String(text) => STANDARD.decode(text).ok(),
        _ => None,
    }
}

pub(crate) fn key_value(value: &Value) -> Option<KeyValue> {
    Some(KeyValue {
        key: bytes(&value["key"])?,
        value: bytes(&value["value"])?,
        create_revision: number(&value["create_revision"])?,
        mod_revision: number(&value["mod_revision"])?,
        version: number(&value["version"])?,
    })
}

/// The keys of an answer to a range.
pub(crate) fn key_values(answer: &Value) -> Option<Vec<KeyValue>> {
    match &answer["kvs"] {
        Value::Null => Some(Vec::new()),
        Value::Array(found) => found.iter().map(key_value).collect(),
        _ => None,
    }
}

impl Transaction {
    pub(crate) fn json(&self) -> Value {
        let all = |operations: &[Operation]| operations.iter().map(operation).collect::<Vec<_>>();
        json!({
            "compare": self.compare.iter().map(comparison).collect::<Vec<_>>(),
            "success": all(&self.success),
            "failure": all(&self.failure),
        })
    }

    /// Reads the answer; `None` if it is none.
    pub(crate) fn answer(&self, answer: &Value) -> Option<TransactionAnswer> {
        let succeeded = match &answer["succeeded"] {
            Value::Null => false,
            Value::Bool(succeeded) => *succeeded,
            _ => return None,
        };
        let asked = if succeeded { &self.success } else { &self.failure };
        let nothing = Vec::new();
        let answers = answer["responses"].as_array().unwrap_or(&nothing);
        if answers.len() != asked.len() {
            return None;
        }
        let mut found = Vec::new();
        for (operation, answer) in asked.iter().zip(answers) {
            if matches!(operation, Operation::Get(_)) {
                found.push(key_values(&answer["response_range"])?.into_iter().next());
            }
        }
        Some(TransactionAnswer { succeeded, revision: number(&answer["header"]["revision"])?, found })
    }
}

fn comparison(comparison: &Comparison) -> Value {
    match comparison {
        Comparison::CreatedAt(key, revision) => {
            json!({"key": text(key), "target": "CREATE", "result": "EQUAL", "create_revision": revision.to_string()})
        }
        Comparison::Value(key, value) => {
            json!({"key": text(key), "target": "VALUE", "result": "EQUAL", "value": text(value)})
        }
    }
}

fn operation(operation: &Operation) -> Value {
    match operation {
        Operation::Put { key, value, lease } => {
            json!({"request_put": {"key": text(key), "value": text(value), "lease": lease.to_string()}})
        }
        Operation::Delete(key) => json!({"request_delete_range": {"key": text(key)}}),
        Operation::DeletePrefix(prefix) => {
            json!({"request_delete_range": {"key": text(prefix), "range_end": text(&range_end(prefix))}})
        }
        Operation::Get(key) => json!({"request_range": {"key": text(key)}}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_end_of_a_prefix_is_the_next_key() {
        assert_eq!(range_end(b"a/"), b"a0");
        assert_eq!(range_end(&[7, 0xff]), [8]);
        assert_eq!(range_end(&[0xff, 0xff]), [0]);
    }

    #[test]
    fn an_answer_is_read_with_what_etcd_leaves_out() {
        let transaction = Transaction {
            success: vec![Operation::Delete(b"x".to_vec()), Operation::Get(b"k".to_vec())],
            ..Transaction::default()
        };
        let answer = json!({"header": {"revision": "7"}, "succeeded": true, "responses": [
            {"response_delete_range": {}},
            {"response_range": {"kvs": [{"key": "aw==", "create_revision": "5", "version": "2"}]}},
        ]});
        let answer = transaction.answer(&answer).unwrap();
        let found = answer.found[0].as_ref().unwrap();
        assert!(
            answer.succeeded && answer.revision == 7 && found.create_revision == 5 && found.value.is_empty()
        );
    }

    proptest! {
        #[test]
        fn random_answers_are_read_or_refused(text in "[\\[\\]{}:,\"a-z0-9=_]{0,200}") {
            let transaction = Transaction { failure: vec![Operation::Get(b"k".to_vec())], ..Transaction::default() };
            if let Ok(value) = serde_json::from_str::<Value>(&text) {
                let _ = transaction.answer(&value);
                let _ = key_values(&value);
            }
        }

        #[test]
        fn mutated_answers_are_read_or_refused(place in any::<usize>(), byte in any::<u8>()) {
            let transaction = Transaction { success: vec![Operation::Get(b"k".to_vec())], ..Transaction::default() };
            let mut text = br#"{"header":{"revision":"7"},"succeeded":true,"responses":[{"response_range":{"kvs":[{"key":"aw==","create_revision":"5","value":"AAA="}]}}]}"#.to_vec();
            let place = place % text.len();
            text[place] = byte;
            if let Ok(value) = serde_json::from_slice::<Value>(&text) {
                let _ = transaction.answer(&value);
            }
        }
    }
}
