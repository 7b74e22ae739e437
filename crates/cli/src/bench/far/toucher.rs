//! The program that is measured: it reads its own memory as it is told.

use crate::bench::report::Row;
use crate::bench::{Bench, Setting};
use crate::failure::Failure;
use hinterland_os::process;
use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

/// The worker's name.
pub const NAME: &str = "far-toucher";
const PAGE_WORDS: usize = 512;
/// Pages between two looks at the clock.
const PAGES: usize = 256;
/// Which figure of `paced` is the longest wait.
pub const LONGEST: usize = 4;
/// Time from one touch to the next of a program that has other things to do.
const PACE: Duration = Duration::from_micros(250);

/// The program that reads.
pub struct Toucher;

#[derive(Default)]
struct Memory {
    words: Vec<u64>,
    /// Page at which the next scan goes on.
    page: usize,
    state: u64,
}

impl Bench for Toucher {
    fn name(&self) -> &'static str {
        NAME
    }

    fn subject(&self) -> &'static str {
        "reads its own memory as it is told"
    }

    fn run(&self, _: &Setting) -> Result<Vec<Row>, Failure> {
        let mut memory = Memory { state: 88_172_645_463_325_252, ..Memory::default() };
        for line in std::io::stdin().lock().lines() {
            let line = line.map_err(|error| Failure::new(format!("no line: {error}"), "report this"))?;
            let answer = memory.answer(&line);
            let mut output = std::io::stdout().lock();
            writeln!(output, "{answer}")
                .and_then(|()| output.flush())
                .map_err(|error| Failure::output(&error))?;
        }
        Err(Failure { silent: true, ..Failure::new("nobody asks any more", "") })
    }
}

/// What stands at a place: half of it compresses, as in many programs.
const fn word(index: usize) -> u64 {
    if index.is_multiple_of(2) { index as u64 } else { (index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) }
}

impl Memory {
    fn answer(&mut self, line: &str) -> String {
        let (word, number) = line.split_once(' ').unwrap_or((line, ""));
        let number: u64 = number.parse().unwrap_or(0);
        let time = Duration::from_millis(number);
        match word {
            "fill" => self.fill(number as usize),
            "scan" => self.scan(time),
            "random" => self.random(time),
            "paced" => self.paced(time),
            "storm" => self.storm(time),
            _ => "error of an unknown line".to_owned(),
        }
    }

    fn fill(&mut self, bytes: usize) -> String {
        self.words = Vec::with_capacity(bytes / 8);
        self.words.extend((0..bytes / 8).map(word));
        "0".to_owned()
    }

    /// GB/s of reading in order, round and round, going on where the last call ended: a word of each cache line, and one of
    /// each page compared.
    fn scan(&mut self, time: Duration) -> String {
        let pages = self.words.as_chunks::<PAGE_WORDS>().0;
        let begun = Instant::now();
        let (mut sum, mut count) = (0u64, 0usize);
        while !count.is_multiple_of(PAGES) || begun.elapsed() < time {
            let page = self.page % pages.len().max(1);
            let Some(words) = pages.get(page) else { return "error of no memory".to_owned() };
            sum = words.iter().step_by(8).fold(sum, |sum, word| sum.wrapping_add(*word));
            if words[9] != word(page * PAGE_WORDS + 9) {
                return format!("error of a wrong word in page {page}");
            }
            self.page = page + 1;
            count += 1;
        }
        std::hint::black_box(sum);
        format!("{}", (count * PAGE_WORDS * 8) as f64 / begun.elapsed().as_secs_f64() / 1e9)
    }

    /// Compares a word at a random place.
    fn touch(&mut self) -> Result<(), String> {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let index = (self.state % (self.words.len() as u64).max(1)) as usize;
        match self.words.get(index) {
            Some(found) if *found == word(index) => Ok(()),
            Some(_) => Err(format!("error of a wrong word at {index}")),
            None => Err("error of no memory".to_owned()),
        }
    }

    /// Touches a second of random places.
    fn random(&mut self, time: Duration) -> String {
        let begun = Instant::now();
        let mut touches = 0u64;
        while !touches.is_multiple_of(64) || begun.elapsed() < time {
            if let Err(error) = self.touch() {
                return error;
            }
            touches += 1;
        }
        format!("{}", touches as f64 / begun.elapsed().as_secs_f64())
    }

    /// Microseconds of faults at random places, touched at a steady rate: 50, 99 and 99.9 percent of them take less; and how many
    /// there were, and what the longest touch took, fault or not.
    fn paced(&mut self, time: Duration) -> String {
        match self.faults(time) {
            Ok((faults, longest)) => {
                let [half, most, all] = [500, 990, 999].map(|share| at(&faults, share));
                format!("{half} {most} {all} {} {}", faults.len(), longest.as_secs_f64() * 1e6)
            }
            Err(error) => error,
        }
    }

    /// Touches random places for a time; how long each took that was a fault, the shortest first, and the longest of all touches.
    fn faults(&mut self, time: Duration) -> Result<(Vec<Duration>, Duration), String> {
        let begun = Instant::now();
        let (mut faults, mut longest) = (Vec::new(), Duration::ZERO);
        let mut next = begun;
        while begun.elapsed() < time {
            next += PACE;
            // One that comes late, because the touch before took long, comes at once.
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            let faults_before = process::thread_faults();
            let before = Instant::now();
            self.touch()?;
            let took = before.elapsed();
            longest = longest.max(took);
            if process::thread_faults() != faults_before {
                faults.push(took);
            }
        }
        faults.sort_unstable();
        Ok((faults, longest))
    }

    /// Touches a second of random places, each read, compared and written.
    fn storm(&mut self, time: Duration) -> String {
        let begun = Instant::now();
        let mut touches = 0u64;
        while !touches.is_multiple_of(64) || begun.elapsed() < time {
            if let Err(error) = self.touch() {
                return error;
            }
            let index = (self.state % (self.words.len() as u64).max(1)) as usize;
            if let Some(place) = self.words.get_mut(index) {
                // The compiler must not leave out a store of what is there.
                *std::hint::black_box(place) = word(index);
            }
            touches += 1;
        }
        format!("{}", touches as f64 / begun.elapsed().as_secs_f64())
    }
}

/// Microseconds within which so many of a thousand faults were served.
fn at(faults: &[Duration], of_thousand: usize) -> f64 {
    faults.get(faults.len() * of_thousand / 1000).map_or(0.0, Duration::as_secs_f64) * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_of_a_thousand_take_less() {
        let faults: Vec<Duration> = (1..=1000).map(Duration::from_micros).collect();
        assert_eq!([500, 990, 999].map(|share| at(&faults, share).round()), [501.0, 991.0, 1000.0]);
        assert_eq!(at(&[], 500), 0.0);
    }

    #[test]
    fn memory_is_read_and_compared() {
        let mut memory = Memory { state: 1, ..Memory::default() };
        assert!(memory.answer("scan 1").starts_with("error"));
        assert_eq!(memory.answer("fill 65536"), "0");
        for line in ["scan 1", "random 1"] {
            assert!(memory.answer(line).parse::<f64>().is_ok_and(|rate| rate > 0.0), "{line}");
        }
        assert!(memory.answer("storm 1").parse::<f64>().is_ok_and(|rate| rate > 0.0));
        assert_eq!(memory.answer("paced 1").split(' ').count(), LONGEST + 1);
        memory.words.iter_mut().for_each(|word| *word ^= 1 << 40);
        for line in ["scan 1", "random 1", "paced 1", "storm 1", "hop"] {
            assert!(memory.answer(line).starts_with("error"), "{line}");
        }
    }
}
