//! The JSON of objects, members and nodes. Identifiers are words, because they do not fit the numbers of JSON.

use hinterland_proto::control::{
    CacheStatus, DirectoryLeader, Home, MemberInfo, NodeStatus, ObjectInfo, ObjectState, PagesOn, Problem,
};
use hinterland_types::{NodeId, NodeName};
use serde_json::{Value, json};
use std::fmt::Write;

/// Bytes as lower-case hexadecimal digits.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The state of an object in one word.
pub fn state(state: ObjectState) -> &'static str {
    match state {
        ObjectState::Writing => "writing",
        ObjectState::Sealed => "sealed",
        ObjectState::Mutable => "mutable",
    }
}

/// An object.
pub fn object(info: &ObjectInfo) -> Value {
    let sealed = info.state == ObjectState::Sealed;
    json!({
        "name": info.name.as_str(),
        "object": info.object.0,
        "state": state(info.state),
        "bytes": info.bytes,
        "address": info.address.map(|address| address.to_string()),
        "copies": info.copies,
        "digest": sealed.then(|| hexadecimal(&info.digest)),
        "homes": info.homes.iter().map(home).collect::<Vec<_>>(),
    })
}

fn home(home: &Home) -> Value {
    json!({
        "node": home.node.to_string(),
        "rack": home.rack.as_str(),
        "address": home.address,
        "up": home.up,
        "heat": home.heat,
    })
}

/// Whether it is written in place.
pub fn is_region(info: &ObjectInfo) -> bool {
    info.state == ObjectState::Mutable
}

/// A region with where its pages lie.
pub fn region(info: &ObjectInfo, pages: &[PagesOn]) -> Value {
    let mut shape = object(info);
    let on = |on: &PagesOn| {
        json!({
            "node": on.home.as_ref().map(|home| home.node.to_string()),
            "rack": on.home.as_ref().map(|home| home.rack.as_str().to_owned()),
            "up": on.home.as_ref().is_some_and(|home| home.up),
            "pages": on.pages,
            "moved": on.moved,
        })
    };
    shape["pages"] = Value::Array(pages.iter().map(on).collect());
    shape
}

/// Where pages of a region lie, a line for each node.
pub fn page_lines(pages: &[PagesOn], members: &[MemberInfo]) -> Vec<String> {
    let line = |on: &PagesOn| {
        let place = match &on.home {
            Some(home) => {
                let state = if home.up { "up" } else { "down" };
                format!("on {} in rack {}, {state}", called(home.node, members), home.rack)
            }
            None => "lost with their node".to_owned(),
        };
        let moved = if on.moved > 0 { format!("; {} moved there", on.moved) } else { String::new() };
        format!("pages    {} {place}{moved}", on.pages)
    };
    pages.iter().map(line).collect()
}

/// A member of the pool.
pub fn member(member: &MemberInfo) -> Value {
    json!({
        "node": member.node.to_string(),
        "name": member.name.as_ref().map(NodeName::as_str),
        "rack": member.rack.as_str(),
        "address": member.address,
        "up": member.up,
        "capacity_bytes": member.capacity_bytes,
        "used_bytes": member.used_bytes,
    })
}

/// What a node is called, as far as members are known.
pub fn called(node: NodeId, members: &[MemberInfo]) -> String {
    members.iter().find(|member| member.node == node).map_or_else(|| node.to_string(), MemberInfo::called)
}

/// The members of a pool, or why they are not known.
pub type Members = Result<Vec<MemberInfo>, String>;

/// A node with the members of its pool.
pub fn status(status: &NodeStatus, members: &Members) -> Value {
    json!({
        "node": status.node.to_string(),
        "name": status.name,
        "rack": status.rack.as_str(),
        "address": status.address,
        "directory": status.directory,
        "directory_in": status.shared.as_ref().map(|shared| &shared.place),
        "leader": status.shared.as_ref().and_then(|shared| shared.leader.as_ref()).map(leader),
        "directory_trouble": status.shared.as_ref().and_then(|shared| shared.trouble.as_ref()),
        "pid": status.pid,
        "uptime_s": status.uptime_s,
        "capacity_bytes": status.capacity_bytes,
        "used_bytes": status.used_bytes,
        "cache_budget_bytes": status.cache_budget_bytes,
        "cache_bytes": status.cache_bytes,
        "backing": status.backing,
        "sessions": status.sessions,
        "counters": serde_json::to_value(status.counters).unwrap_or_default(),
        "caches": status.caches.iter().map(cache).collect::<Vec<_>>(),
        "caches_left_out": status.caches_left_out,
        "problems": status.problems.iter().map(problem).collect::<Vec<_>>(),
        // Not an empty list: whoever asks whether all of them are up would be told so.
        "members": members.as_ref().ok().map(|members| members.iter().map(member).collect::<Vec<_>>()),
        "members_trouble": members.as_ref().err(),
    })
}

fn leader(leader: &DirectoryLeader) -> Value {
    json!({
        "node": leader.node.to_string(),
        "name": leader.name,
        "address": leader.address,
        "since_ms": leader.since_ms,
        "term": leader.term,
    })
}

fn cache(cache: &CacheStatus) -> Value {
    json!({
        "name": cache.name,
        "bytes": cache.bytes,
        "resident_bytes": cache.resident_bytes,
        "budget_bytes": cache.budget_bytes,
        "units": cache.units,
        "resident_units": cache.resident_units,
        "mappings": cache.mappings,
        "pages": cache.pages,
    })
}

fn problem(problem: &Problem) -> Value {
    json!({ "at_ms": problem.at_ms, "text": problem.text })
}

/// Pools made up for tests.
#[cfg(test)]
pub mod samples {
    use super::*;
    use hinterland_proto::control::Counters;
    use hinterland_types::{NodeId, ObjectId, ObjectName, RackName};

    /// A sealed object with one home.
    pub fn sealed() -> ObjectInfo {
        ObjectInfo {
            object: ObjectId(42),
            name: ObjectName::parse("models/small.gguf").unwrap(),
            state: ObjectState::Sealed,
            bytes: 145 << 20,
            address: None,
            copies: 1,
            homes: vec![Home {
                node: NodeId(7),
                rack: RackName::parse("b").unwrap(),
                address: "127.0.0.1:7401".to_owned(),
                up: true,
                heat: false,
            }],
            digest: [0xab; 32],
        }
    }

    /// Two members, the second one down.
    pub fn members() -> Vec<MemberInfo> {
        let member = |node, rack, up: bool, used_bytes| MemberInfo {
            node: NodeId(node),
            name: up.then(|| NodeName::parse("first").unwrap()),
            rack: RackName::parse(rack).unwrap(),
            address: format!("127.0.0.1:740{node}"),
            up,
            capacity_bytes: 1 << 30,
            used_bytes,
        };
        vec![member(1, "a", true, 256 << 20), member(2, "b", false, 0)]
    }

    /// A node with one cache and one problem.
    pub fn node() -> NodeStatus {
        NodeStatus {
            node: NodeId(1),
            name: "a".to_owned(),
            rack: RackName::parse("a").unwrap(),
            address: "127.0.0.1:7401".to_owned(),
            directory: true,
            shared: None,
            pid: 4711,
            uptime_s: 3723,
            capacity_bytes: 1 << 30,
            used_bytes: 256 << 20,
            cache_budget_bytes: 2 << 30,
            cache_bytes: 64 << 20,
            backing: "4 KiB pages".to_owned(),
            sessions: 2,
            counters: Counters::default(),
            caches: vec![CacheStatus {
                name: "models/small.gguf".to_owned(),
                bytes: 145 << 20,
                resident_bytes: 64 << 20,
                budget_bytes: Some(100 << 20),
                units: 73,
                resident_units: 32,
                mappings: 2,
                pages: "huge".to_owned(),
            }],
            caches_left_out: 0,
            problems: vec![Problem {
                at_ms: 1_000,
                text: "rack c does not answer (hint: start its node)".to_owned(),
            }],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::samples::{members, node, sealed};
    use super::*;

    #[test]
    fn an_object_shows_its_digest_only_when_it_is_sealed() {
        let mut info = sealed();
        assert_eq!(object(&info)["digest"].as_str().unwrap().len(), 64);
        assert_eq!(object(&info)["homes"][0]["node"], "node-7");
        info.state = ObjectState::Mutable;
        assert!(object(&info)["digest"].is_null());
    }

    #[test]
    fn counters_of_a_node_are_numbers_under_their_names() {
        let value = status(&node(), &Ok(members()));
        assert_eq!(value["counters"]["network_received_bytes"], 0);
        assert_eq!(value["members"][1]["up"], false);
        assert_eq!(value["caches"][0]["resident_units"], 32);
        assert_eq!(value["caches_left_out"], 0);
        assert!(value["members_trouble"].is_null());
    }

    #[test]
    fn members_that_are_not_known_are_null_and_the_reason_is_told() {
        let value = status(&node(), &Err("nobody listens".to_owned()));
        assert!(value["members"].is_null());
        assert_eq!(value["members_trouble"], "nobody listens");
    }
}
