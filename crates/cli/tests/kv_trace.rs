//! `hinterland bench kv-trace` from outside: real nodes, real client processes, and what it says when told nonsense.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::process::{Command, Output};

fn bench(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hinterland"));
    // Without a peer, whether there is one on this machine or not.
    command.env("HINTERLAND_BENCH_CACHE", "/nonexistent").args(["bench", "kv-trace", "--rounds", "1"]);
    command.args(words).output().unwrap()
}

fn rows(words: &[&str]) -> Vec<Value> {
    let output = bench(words);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    report["rows"].as_array().unwrap().clone()
}

fn figure(rows: &[Value], case: &str) -> f64 {
    let row = rows.iter().find(|row| row["case"] == case);
    row.unwrap_or_else(|| panic!("no {case} in {rows:?}"))["ours"].as_f64().unwrap()
}

#[test]
fn several_clients_find_what_one_store_keeps_and_no_wrong_byte() {
    let words = ["--requests", "120", "--clients", "3", "--eviction", "lru,fifo", "--capacity", "16M"];
    let rows = rows(&[&words[..], &["--block-bytes", "32K", "--quick", "--json"]].concat());
    for row in &rows[..2] {
        let (ours, limit) = (row["ours"].as_f64().unwrap(), row["limit"].as_f64().unwrap());
        assert!(ours > 1.0 && ours <= limit, "{row}");
        assert!(row["why"].as_str().unwrap().contains("bench/kv/prepare.sh"), "{row}");
    }
    assert!(figure(&rows, "requests-per-second") > 0.0);
    assert_eq!(figure(&rows, "refused"), 0.0);
}

#[test]
fn a_file_is_replayed_at_its_times_and_one_client_finds_all_that_is_to_be_found() {
    let path = std::env::temp_dir().join(format!("hl-trace-{}.jsonl", std::process::id()));
    let lines = [(0, "[1, 2]"), (100, "[1, 2, 3]"), (400, "[1, 2, 3, 4]")];
    let text: String =
        lines.map(|(at, blocks)| format!("{{\"timestamp\": {at}, \"hash_ids\": {blocks}}}\n")).concat();
    std::fs::write(&path, text).unwrap();
    let file = path.to_str().unwrap();
    let rows = rows(&["--trace", file, "--clients", "1", "--speed", "2", "--eviction", "lru", "--json"]);
    std::fs::remove_file(&path).unwrap();
    assert!((figure(&rows, "hit-rate-lru") - 100.0 * 5.0 / 9.0).abs() < 1e-9);
    // The last one comes after 200 ms.
    assert!(figure(&rows, "requests-per-second-whole") < 3.0 / 0.2);
}

#[test]
fn a_simulation_moves_no_bytes_and_has_a_row_for_each_order_and_size() {
    let rows = rows(&["--simulate", "--requests", "200", "--eviction", "s3fifo", "--json"]);
    assert_eq!(rows.len(), 3 * 3);
    assert!(figure(&rows, "10th-clairvoyant") >= figure(&rows, "10th-s3fifo"));
}

#[test]
fn what_makes_no_sense_is_refused_with_the_next_step() {
    let refused = |words: &[&str], expected: &str| {
        let output = bench(words);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(expected), "{words:?}: {text}");
    };
    refused(&["--trace", "/nonexistent.jsonl"], "check the path");
    refused(&["--trace", env!("CARGO_MANIFEST_PATH")], "Cargo.toml is no request");
    refused(&["--block-bytes", "5M"], "--block-bytes 64K");
    refused(&["--capacity", "1M"], "--capacity 64M");
    refused(&["--capacity", "100T"], "are free");
    refused(&["--speed", "0"], "hint: 1 as recorded");
    refused(&["--eviction", "random"], "is no eviction policy");
    let other = Command::new(env!("CARGO_BIN_EXE_hinterland")).args(["bench", "rpc", "--simulate"]).output();
    assert!(String::from_utf8_lossy(&other.unwrap().stderr).contains("takes no option of kv-trace"));
}
