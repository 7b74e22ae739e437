//! A program that shares memory by page faults and does what lines say, so that its pages stay as they are from one to the next.
//!
//! | line | does | answer |
//! | --- | --- | --- |
//! | `create` | makes an empty table; one of both programs is asked | `done` |
//! | `load` | writes the records of this part | `done` |
//! | `drive WORKLOAD zipfian SECONDS`, `... uniform ...` | runs a workload, as it would begin in a program that was just started | operations, seconds, faults, pages that came |
//!
//! Anything that goes wrong is answered by `error` and what it was.

use super::FaultedMemory;
use crate::drive::{self, OfTable};
use crate::table::Table;
use crate::values::Values;
use crate::workload::{Operations, Workload};
use clap::ValueEnum;
use std::error::Error;
use std::io::{self, BufRead, Write};
use std::time::Duration;

/// What is driven.
pub struct Plan {
    /// Bytes of the memory.
    pub bytes: u64,
    /// Records.
    pub records: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Which program this is of how many.
    pub part: (u64, u64),
}

/// Answers lines until there are none.
///
/// # Errors
/// [`io::Error`] of the lines or the answers.
pub fn answer(
    memory: &FaultedMemory,
    plan: &Plan,
    lines: impl BufRead,
    answers: &mut impl Write,
) -> io::Result<()> {
    for line in lines.lines() {
        match obey(memory, plan, &line?) {
            Ok(words) => writeln!(answers, "{words}")?,
            Err(error) => writeln!(answers, "error {error}")?,
        }
        answers.flush()?;
    }
    Ok(())
}

fn obey(memory: &FaultedMemory, plan: &Plan, line: &str) -> Result<String, Box<dyn Error>> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut values = Values::new(plan.value_bytes, plan.part);
    match words[..] {
        ["create"] => {
            Table::create(memory.clone(), plan.bytes)?;
            Ok("done".to_owned())
        }
        ["load"] => {
            let table = Table::open(memory.clone(), true)?;
            drive::load(&mut OfTable(&table), plan.records, &mut values)?;
            Ok("done".to_owned())
        }
        ["drive", workload, popularity @ ("zipfian" | "uniform"), seconds] => {
            let (workload, is_uniform) = (Workload::from_str(workload, true)?, popularity == "uniform");
            let time = Duration::try_from_secs_f64(seconds.parse()?)?;
            let table = Table::open(memory.clone(), true)?;
            let mut operations = Operations::new(workload, plan.records, is_uniform, plan.part);
            let before = memory.faults();
            let done = drive::drive(&mut OfTable(&table), &mut operations, &mut values, time)?;
            let after = memory.faults();
            Ok(format!(
                "{} {:.6} {} {}",
                done.operations,
                done.taken.as_secs_f64(),
                after.taken - before.taken,
                after.fetched - before.fetched
            ))
        }
        _ => Err(format!("{line:?} is nothing to do (hint: create, load, drive a zipfian 0.5)").into()),
    }
}
