//! `hinterland locks`: who holds locks, and who waits for them.

use crate::context::Context;
use crate::failure::Failure;
use crate::size::human;
use crate::table::{Align, Table};
use hinterland_proto::control::{LockInfo, LockMode, LockPerson, LockTable, MemberInfo};
use hinterland_types::{NodeId, ObjectName};
use serde_json::{Value, json};
use std::process::ExitCode;

/// What to show.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
A program's lock is free when it ends, a guard's also a lease after the program stopped, and a stopped node's a \
lease after it was last heard of (LEASE). FENCE grows with every writer; what comes under a lower one is refused.")]
pub struct Arguments {
    /// Only locks of the region or object with this name
    name: Option<ObjectName>,
}

/// Lists holders and waiters by address: a table, or JSON.
///
/// # Errors
/// [`Failure`], also if there is no object with the name. A member that could not be asked is told.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let pool = context.pool_to_look()?;
    let (mut table, members) = (pool.locks()?, pool.members()?);
    if let Some(name) = &arguments.name {
        table.locks.retain(|lock| lock.object.as_ref().is_some_and(|(object, _)| object == name));
        // Of a name that is mistyped nobody holds a lock either.
        if table.locks.is_empty() {
            pool.stat(name)?;
        }
    }
    for (node, why) in &table.silent {
        context.output.say(format!("locks kept by {} are not shown: {why}", host(*node, &members)));
    }
    if table.locks.is_empty() && !context.output.json {
        let is_all = table.silent.is_empty();
        context.output.say(if is_all {
            "nobody holds a lock"
        } else {
            "nobody is known to hold another lock"
        });
        return Ok(ExitCode::SUCCESS);
    }
    context.output.either(&value(&table, &members), || text(&table, &members))?;
    Ok(ExitCode::SUCCESS)
}

const fn word(mode: LockMode) -> &'static str {
    match mode {
        LockMode::Read => "read",
        LockMode::Write => "write",
    }
}

/// The rack and the address of a node, as far as they are known.
fn host(node: NodeId, members: &[MemberInfo]) -> String {
    let found = members.iter().find(|member| member.node == node);
    found.map_or_else(|| node.to_string(), |member| format!("{} ({})", member.rack, member.address))
}

fn value(table: &LockTable, members: &[MemberInfo]) -> Value {
    let person = |person: &LockPerson| {
        let found = members.iter().find(|member| member.node == person.node);
        json!({
            "node": person.node.0,
            "rack": found.map(|member| member.rack.as_str()),
            "address": found.map(|member| member.address.as_str()),
            "session": person.session.0,
            "pid": person.pid,
            "mode": word(person.mode),
            "bytes": person.bytes,
            "for_ms": person.for_ms,
            "lease_left_ms": person.left_ms,
        })
    };
    let lock = |lock: &LockInfo| {
        json!({
            "address": lock.address.raw(),
            "region": lock.object.as_ref().map(|(name, _)| name.as_str()),
            "offset": lock.object.as_ref().map(|(_, offset)| *offset),
            "home": lock.home.0,
            "fence": lock.fence,
            "forgetting": lock.telling,
            "holders": lock.holders.iter().map(person).collect::<Vec<_>>(),
            "waiters": lock.waiters.iter().map(person).collect::<Vec<_>>(),
        })
    };
    let silent = |(node, why): &(NodeId, String)| json!({ "node": node.0, "why": why });
    json!({
        "locks": table.locks.iter().map(lock).collect::<Vec<_>>(),
        "silent": table.silent.iter().map(silent).collect::<Vec<_>>(),
    })
}

fn text(table: &LockTable, members: &[MemberInfo]) -> String {
    let mut rows = Table::new(&[
        ("REGION", Align::Left),
        ("OFFSET", Align::Right),
        ("RANGE", Align::Right),
        ("MODE", Align::Left),
        ("STATE", Align::Left),
        ("FOR", Align::Right),
        ("PROCESS", Align::Right),
        ("NODE", Align::Left),
        ("LEASE", Align::Right),
        ("FENCE", Align::Right),
    ]);
    for lock in &table.locks {
        let (name, offset) = match &lock.object {
            Some((name, offset)) => (name.to_string(), offset.to_string()),
            None => (lock.address.to_string(), String::new()),
        };
        let mut row = |person: &LockPerson, state: &str, fence: String| {
            rows.row([
                name.clone(),
                offset.clone(),
                if person.bytes == 0 { "-".to_owned() } else { human(person.bytes) },
                word(person.mode).to_owned(),
                state.to_owned(),
                seconds(person.for_ms),
                if person.pid == 0 { "?".to_owned() } else { person.pid.to_string() },
                host(person.node, members),
                seconds(person.left_ms),
                fence,
            ]);
        };
        let waits = if lock.telling > 0 { "waits for homes to forget" } else { "waits" };
        lock.holders.iter().for_each(|person| row(person, "holds", lock.fence.to_string()));
        lock.waiters.iter().for_each(|person| row(person, waits, String::new()));
    }
    rows.text()
}

fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1000, ms % 1000 / 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hinterland_types::{GlobalAddress, ObjectName, SessionId};

    fn person(pid: u32, mode: LockMode, bytes: u64) -> LockPerson {
        LockPerson { node: NodeId(2), session: SessionId(7), pid, mode, bytes, for_ms: 1250, left_ms: 2900 }
    }

    fn table() -> LockTable {
        let lock = LockInfo {
            address: GlobalAddress::new(4 << 20).unwrap(),
            object: Some((ObjectName::parse("counters").unwrap(), 64)),
            home: NodeId(1),
            fence: 12,
            telling: 0,
            holders: vec![person(4711, LockMode::Write, 4096)],
            waiters: vec![person(0, LockMode::Read, 0)],
        };
        LockTable { locks: vec![lock], silent: vec![(NodeId(3), "it is down".to_owned())] }
    }

    #[test]
    fn holders_come_before_waiters_with_what_is_known_of_them() {
        let text = text(&table(), &[]);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1][..6], ["counters", "64", "4.00", "KiB", "write", "holds"]);
        assert!(lines[1].contains(&"4711") && lines[1].last() == Some(&"12"), "{text}");
        assert_eq!(lines[2][..5], ["counters", "64", "-", "read", "waits"]);
        assert!(lines[2].contains(&"?"), "{text}");
    }

    #[test]
    fn json_has_numbers_and_who_could_not_be_asked() {
        let value = value(&table(), &[]);
        assert_eq!(value["locks"][0]["holders"][0]["lease_left_ms"], 2900);
        assert_eq!(value["locks"][0]["offset"], 64);
        assert_eq!(value["silent"][0]["why"], "it is down");
    }
}
