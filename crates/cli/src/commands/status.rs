//! `hinterland status`: shows the node and the members of its pool.

use crate::context::Context;
use crate::failure::Failure;
use crate::shapes::{self, Members};
use crate::size::human;
use crate::table::{Align, Table};
use hinterland_proto::control::{MemberInfo, NodeStatus, SharedDirectory};
use hinterland_types::NodeName;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

/// Nothing to choose.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
The node answers for itself, and asks the directory for the members. With --json, `members` is null while they are not known, and \
`members_trouble` says why; the exit status is 0, since the node has answered.")]
pub struct Arguments {}

/// Shows a node as lines of words and a table, or as a JSON object.
///
/// # Errors
/// [`Failure`].
pub fn run(_arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let pool = context.pool_to_look()?;
    let status = pool.status()?;
    let members = pool.members().map_err(|error| error.to_string());
    context.output.either(&shapes::status(&status, &members), || words(&status, &members))?;
    Ok(ExitCode::SUCCESS)
}

fn words(status: &NodeStatus, members: &Members) -> String {
    let directory = if status.directory { role(status) } else { "" };
    let mut lines = vec![
        format!("node     {} ({}) in rack {}{directory}", status.name, status.node, status.rack),
        format!("address  {}, process {}, up {}", status.address, status.pid, duration(status.uptime_s)),
        format!(
            "memory   {} of {} used, {}",
            human(status.used_bytes),
            human(status.capacity_bytes),
            status.backing
        ),
        format!("cache    {} of {} used", human(status.cache_bytes), human(status.cache_budget_bytes)),
        format!("clients  {}", sessions(status.sessions)),
    ];
    if let Some(shared) = &status.shared {
        lines.push(format!("leader   {}", leader(shared)));
    }
    let members = match members {
        Ok(members) => member_table(members).text(),
        Err(trouble) => format!("members are not known: {trouble}"),
    };
    lines.extend([String::new(), members]);
    let mut text = lines.join("\n");
    if !status.problems.is_empty() {
        let count = status.problems.len();
        let plural = if count == 1 { "problem" } else { "problems" };
        text.push_str(&format!("\n\n{count} {plural} so far: see `hinterland doctor`"));
    }
    text
}

/// What a node is for the directory that answers for it.
pub const fn role(status: &NodeStatus) -> &'static str {
    if status.shared.is_some() { ", leads the directory" } else { ", hosts the directory" }
}

/// Who leads a directory that several nodes may host, since when, and what is wrong.
pub fn leader(shared: &SharedDirectory) -> String {
    let leader = match &shared.leader {
        // Another one may lead by now.
        Some(leader) if shared.trouble.is_some() => {
            format!("{} at {} when it was last known, term {}", leader.name, leader.address, leader.term)
        }
        Some(leader) => {
            let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
            // The clocks of two hosts differ: never less than nothing.
            let since_s = u64::try_from(now_ms).unwrap_or(u64::MAX).saturating_sub(leader.since_ms) / 1000;
            format!("{} at {}, for {}, term {}", leader.name, leader.address, duration(since_s), leader.term)
        }
        None => "nobody".to_owned(),
    };
    let trouble = shared.trouble.as_ref().map_or(String::new(), |trouble| format!("; {trouble}"));
    format!("{leader}; kept in {}{trouble}", shared.place)
}

/// The members of a pool, one a row.
pub fn member_table(members: &[MemberInfo]) -> Table {
    let mut table = Table::new(&[
        ("RACK", Align::Left),
        ("NAME", Align::Left),
        ("NODE", Align::Left),
        ("ADDRESS", Align::Left),
        ("STATE", Align::Left),
        ("USED", Align::Right),
        ("OF", Align::Right),
    ]);
    for member in members {
        table.row([
            member.rack.to_string(),
            member.name.as_ref().map_or_else(|| "?".to_owned(), NodeName::to_string),
            member.node.to_string(),
            member.address.clone(),
            if member.up { "up" } else { "down" }.to_owned(),
            human(member.used_bytes),
            human(member.capacity_bytes),
        ]);
    }
    table
}

/// Clients of a node, counted.
pub fn sessions(count: u32) -> String {
    format!("{count} {}", if count == 1 { "session" } else { "sessions" })
}

/// Seconds as people say them: the two largest units.
pub fn duration(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{minutes} min {} s", seconds % 60),
        3600..86_400 => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::samples::{members, node};
    use hinterland_proto::control::DirectoryLeader;
    use hinterland_types::NodeId;

    #[test]
    fn sessions_are_counted_as_people_count() {
        assert_eq!([0, 1, 2].map(sessions), ["0 sessions", "1 session", "2 sessions"]);
    }

    #[test]
    fn a_node_is_shown_with_its_pool_and_problems() {
        let text = words(&node(), &Ok(members()));
        assert!(text.starts_with("node     a (node-1) in rack a, hosts the directory\n"), "{text}");
        assert!(text.contains("process 4711, up 1 h 2 min"), "{text}");
        assert!(text.contains("b     ?      node-2  127.0.0.1:7402  down       0 B  1.00 GiB"), "{text}");
        assert!(text.ends_with("1 problem so far: see `hinterland doctor`"), "{text}");
    }

    #[test]
    fn a_directory_of_several_hosts_is_shown_with_who_leads_and_what_is_wrong() {
        let leader = DirectoryLeader {
            node: NodeId(2),
            name: "b".to_owned(),
            address: "127.0.0.1:7402".to_owned(),
            since_ms: u64::MAX,
            term: 3,
        };
        let shared =
            SharedDirectory { place: "etcd://h:1/p".to_owned(), leader: Some(leader), trouble: None };
        let text = words(&NodeStatus { shared: Some(shared.clone()), ..node() }, &Ok(members()));
        assert!(text.starts_with("node     a (node-1) in rack a, leads the directory\n"), "{text}");
        assert!(
            text.contains("\nleader   b at 127.0.0.1:7402, for 0 s, term 3; kept in etcd://h:1/p\n"),
            "{text}"
        );
        let trouble = Some("for 7 s, etcd is silent".to_owned());
        let away = SharedDirectory { trouble, ..shared.clone() };
        assert_eq!(
            super::leader(&away),
            "b at 127.0.0.1:7402 when it was last known, term 3; kept in etcd://h:1/p; for 7 s, etcd is silent"
        );
        let cut = SharedDirectory { leader: None, trouble: Some("etcd is silent".to_owned()), ..shared };
        assert_eq!(super::leader(&cut), "nobody; kept in etcd://h:1/p; etcd is silent");
    }

    #[test]
    fn a_node_whose_directory_is_away_is_shown_with_the_reason() {
        let text = words(&node(), &Err("nobody listens".to_owned()));
        assert!(text.starts_with("node     a (node-1) in rack a"), "{text}");
        assert!(text.contains("\n\nmembers are not known: nobody listens\n\n1 problem"), "{text}");
    }

    #[test]
    fn durations_have_two_units() {
        assert_eq!(duration(59), "59 s");
        assert_eq!(duration(61), "1 min 1 s");
        assert_eq!(duration(3 * 86_400 + 3600), "3 d 1 h");
    }
}
