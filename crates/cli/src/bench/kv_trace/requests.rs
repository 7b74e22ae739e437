//! A trace of requests: which blocks of their prompts each one needs, in the order in which they came.

use crate::failure::Failure;
use serde::Deserialize;
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// Blocks of one request that are accepted: a prompt of 8 million tokens.
const REQUEST_BLOCKS_MAX: usize = 1 << 14;
/// Blocks of a trace that are accepted, counted as often as they are asked for.
const TRACE_BLOCKS_MAX: usize = 1 << 26;

/// One request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// When it came, in milliseconds from the first one on.
    pub at_ms: u64,
    /// The blocks of its prompt, each after its parent. Equal numbers are equal prefixes.
    pub blocks: Vec<u32>,
}

/// A trace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Trace {
    /// Its requests, in order.
    pub requests: Vec<Request>,
}

/// A line of a file; it may say more.
#[derive(Deserialize)]
struct Line {
    timestamp: f64,
    hash_ids: Vec<u64>,
}

impl Trace {
    /// Reads the first `requests_max` requests of a file of JSON lines with `timestamp` in milliseconds and `hash_ids`.
    ///
    /// # Errors
    /// [`Failure`] if it cannot be read, or with the first line that is none.
    pub fn read(path: &Path, requests_max: usize) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(path).map_err(|error| Failure::file("reading", path, &error))?;
        Self::parse(&text, requests_max).map_err(|(line, why)| {
            let text = format!("line {line} of {} is no request: {why}", path.display());
            Failure::new(text, "each line is {\"timestamp\": MS, \"hash_ids\": [NUMBER, ...]}")
        })
    }

    fn parse(text: &str, requests_max: usize) -> Result<Self, (usize, String)> {
        let (mut numbers, mut requests, mut asked) = (HashMap::new(), Vec::new(), 0);
        let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
        for (number, line) in lines.take(requests_max) {
            let line: Line = serde_json::from_str(line).map_err(|error| (number, error.to_string()))?;
            asked += line.hash_ids.len();
            if line.hash_ids.len() > REQUEST_BLOCKS_MAX || asked > TRACE_BLOCKS_MAX {
                let why =
                    format!("more than {REQUEST_BLOCKS_MAX} blocks, or {TRACE_BLOCKS_MAX} of all lines");
                return Err((number, why));
            }
            if !(0.0..=1e15).contains(&line.timestamp) {
                return Err((number, format!("its time is {}", line.timestamp)));
            }
            // At most 2^26 numbers are given.
            let mut short = |id: u64| {
                let next = numbers.len() as u32;
                *numbers.entry(id).or_insert(next)
            };
            let blocks = line.hash_ids.into_iter().map(&mut short).collect();
            // Whole, and within 2^53.
            requests.push(Request { at_ms: line.timestamp as u64, blocks });
        }
        if requests.is_empty() {
            return Err((1, "there is nothing in the file".to_owned()));
        }
        Ok(Self { requests })
    }

    /// The same requests with each block cut into `parts` that follow each other: what an engine with smaller blocks asks.
    ///
    /// # Errors
    /// [`Failure`] if there would be too many.
    pub fn cut(self, parts: u32) -> Result<Self, Failure> {
        if self.asked().saturating_mul(u64::from(parts)) > TRACE_BLOCKS_MAX as u64 {
            let text = format!("the trace has {} blocks, too many to cut each into {parts}", self.asked());
            return Err(Failure::usage(text, "replay fewer with --requests N"));
        }
        let cut = |request: Request| Request {
            blocks: request.blocks.iter().flat_map(|block| block * parts..(block + 1) * parts).collect(),
            ..request
        };
        Ok(Self { requests: self.requests.into_iter().map(cut).collect() })
    }

    /// Blocks that are asked for, counted as often as they are.
    pub fn asked(&self) -> u64 {
        self.requests.iter().map(|request| request.blocks.len() as u64).sum()
    }

    /// Different blocks.
    pub fn unique(&self) -> u64 {
        let blocks = self.requests.iter().flat_map(|request| &request.blocks);
        blocks.collect::<HashSet<_>>().len() as u64
    }

    /// How many of the blocks asked for an unlimited cache has, from the first of a request on.
    pub fn found_by_unlimited(&self) -> u64 {
        let mut held = HashSet::new();
        let mut found = 0;
        for request in &self.requests {
            found += request.blocks.iter().take_while(|block| held.contains(*block)).count() as u64;
            held.extend(request.blocks.iter().copied());
        }
        found
    }

    /// Words for the processes that replay it, 4 bytes each, little-endian: the number of requests, where the blocks of each
    /// one end, and the blocks.
    pub fn words(&self) -> Vec<u8> {
        let mut end = 0;
        let ends = self.requests.iter().map(|request| {
            // At most 2^26 altogether.
            end += request.blocks.len() as u32;
            end
        });
        let head = std::iter::once(self.requests.len() as u32).chain(ends.collect::<Vec<_>>());
        let blocks = self.requests.iter().flat_map(|request| &request.blocks).copied();
        head.chain(blocks).flat_map(u32::to_le_bytes).collect()
    }

    /// What [`words`](Self::words) wrote, without times.
    pub fn of_words(bytes: &[u8]) -> Option<Self> {
        let words: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let (&count, rest) = words.split_first()?;
        let (ends, blocks) = rest.split_at_checked(count as usize)?;
        let mut begin = 0;
        let mut requests = Vec::with_capacity(ends.len());
        for &end in ends {
            let blocks = blocks.get(begin as usize..end as usize)?.to_vec();
            requests.push(Request { at_ms: 0, blocks });
            begin = end;
        }
        Some(Self { requests })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"timestamp": 0, "input_length": 900, "output_length": 5, "hash_ids": [7, 900]}

{"timestamp": 30, "input_length": 900, "output_length": 5, "hash_ids": [7, 3, 900]}
{"timestamp": 31.5, "hash_ids": [7, 900, 3]}
"#;

    #[test]
    fn a_file_is_read_in_order_and_its_numbers_become_small() {
        let trace = Trace::parse(TEXT, 9).unwrap();
        let request = |at_ms, blocks: &[u32]| Request { at_ms, blocks: blocks.to_vec() };
        assert_eq!(trace.requests, [request(0, &[0, 1]), request(30, &[0, 2, 1]), request(31, &[0, 1, 2])]);
        assert_eq!((trace.asked(), trace.unique()), (8, 3));
        assert_eq!(trace.found_by_unlimited(), 1 + 3);
        assert_eq!(Trace::parse(TEXT, 2).unwrap().requests.len(), 2);
    }

    #[test]
    fn a_line_that_is_no_request_is_named() {
        assert_eq!(Trace::parse("{\"timestamp\": 0, \"hash_ids\": []}\n{}\n", 9).unwrap_err().0, 2);
        assert_eq!(Trace::parse("{\"timestamp\": -1, \"hash_ids\": []}", 9).unwrap_err().0, 1);
        assert!(Trace::parse("\n\n", 9).unwrap_err().1.contains("nothing"));
        let long = format!("{{\"timestamp\": 0, \"hash_ids\": {:?}}}", vec![1; REQUEST_BLOCKS_MAX + 1]);
        assert!(Trace::parse(&long, 9).unwrap_err().1.contains("more than"));
    }

    #[test]
    fn a_cut_block_is_as_many_as_its_parts() {
        let trace = Trace::parse(TEXT, 2).unwrap().cut(3).unwrap();
        assert_eq!(trace.requests[1].blocks, [0, 1, 2, 6, 7, 8, 3, 4, 5]);
        assert_eq!((trace.asked(), trace.found_by_unlimited()), (15, 3));
        assert!(trace.cut(1 << 30).is_err());
    }

    #[test]
    fn words_bring_the_blocks_back_and_cut_off_words_nothing() {
        let mut trace = Trace::parse(TEXT, 9).unwrap();
        let words = trace.words();
        assert_eq!(Trace::of_words(&words[..words.len() - 1]), None);
        trace.requests.iter_mut().for_each(|request| request.at_ms = 0);
        assert_eq!(Trace::of_words(&words), Some(trace));
    }
}
