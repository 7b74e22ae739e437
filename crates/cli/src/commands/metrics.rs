//! `hinterland metrics`: counters in the text form of Prometheus, printed once or served.

use crate::context::Context;
use crate::failure::Failure;
use crate::shapes::Members;
use hinterland_os::poll::{SignalWatch, wait_readable};
use hinterland_pool::Pool;
use hinterland_proto::control::{KvDiskStatus, KvKeptStatus, KvStatus, NodeStatus};
use hinterland_types::NodeName;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Longest time that a client may take for each part of its request, and the node for each answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Clients that are answered at once; more are told to come again.
const CLIENTS_MAX: usize = 16;
/// Longest request that is read.
const REQUEST_BYTES_MAX: usize = 8 << 10;

/// Where they go.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
While the directory does not answer there is no `hinterland_member_up`, a comment says why, and `hinterland_members_known` \
is 0.")]
pub struct Arguments {
    /// Serve them at http://ADDRESS/metrics until interrupted, in place of printing them once
    #[arg(long, value_name = "HOST:PORT", value_parser = super::node::address)]
    listen: Option<SocketAddr>,
}

/// Prints or serves the counters of the node.
///
/// # Errors
/// [`Failure`] if no node answers, or the address is taken.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let Some(address) = arguments.listen else {
        context.output.data(collect(&context.pool_to_look()?)?.trim_end())?;
        return Ok(ExitCode::SUCCESS);
    };
    let signals = SignalWatch::new()?;
    let listener = TcpListener::bind(address).map_err(|error| {
        let text = format!("cannot listen on {address}: {error}");
        Failure::new(text, "choose another port, or end what listens there")
    })?;
    let failed = |error: std::io::Error| Failure::new(format!("the listener broke: {error}"), "start again");
    listener.set_nonblocking(true).map_err(failed)?;
    let serving = format!("serving http://{}/metrics", listener.local_addr().map_err(failed)?);
    context.output.say(&serving);
    context.tell_ready(&serving);
    let clients = Arc::new(());
    // Between two requests for a second at most: `wait_readable` watches one descriptor.
    while !wait_readable(&signals, Some(Duration::from_millis(20)))? {
        while let Ok((stream, _)) = listener.accept() {
            // A client that goes away is its own affair; a node that does is told to the next one.
            let _ = serve(stream, context, &clients);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Answers on a thread of its own: a client that says nothing, or a node that does, holds up nobody else. `clients` counts them.
fn serve(mut stream: TcpStream, context: &Context, clients: &Arc<()>) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    if Arc::strong_count(clients) > CLIENTS_MAX {
        stream.set_write_timeout(Some(PATIENCE))?;
        return say(&mut stream, "503 Service Unavailable", "too many ask at once: come again\n");
    }
    let (context, client) = (context.clone(), Arc::clone(clients));
    std::thread::Builder::new().name("metrics".to_owned()).spawn(move || {
        let _client = client;
        // As above.
        let _ = answer(stream, &context);
    })?;
    Ok(())
}

fn answer(mut stream: TcpStream, context: &Context) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = Vec::new();
    let mut piece = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = stream.read(&mut piece)?;
        if count == 0 || request.len() + count > REQUEST_BYTES_MAX {
            return Ok(());
        }
        request.extend_from_slice(&piece[..count]);
    }
    let (status, body) = if !asks_for_counters(&request) {
        ("404 Not Found", "only GET /metrics is served\n".to_owned())
    } else {
        match context.pool_to_watch(PATIENCE).and_then(|pool| collect(&pool)) {
            Ok(text) => ("200 OK", text),
            Err(failure) => ("503 Service Unavailable", format!("{}\n", failure.json())),
        }
    };
    say(&mut stream, status, &body)
}

/// Whether a request names the one path that is served, with or without a query.
fn asks_for_counters(request: &[u8]) -> bool {
    let behind = request.strip_prefix(b"GET /metrics").and_then(|behind| behind.first());
    matches!(behind, Some(b' ' | b'?'))
}

fn say(stream: &mut TcpStream, status: &str, body: &str) -> std::io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

fn collect(pool: &Pool) -> Result<String, Failure> {
    let status = pool.status()?;
    let members = pool.members().map_err(|error| error.to_string());
    Ok(text(&status, &members, &pool.kv_status()?))
}

/// One family of values.
struct Family<'text> {
    text: &'text mut String,
    name: &'static str,
}

impl<'text> Family<'text> {
    fn begin(text: &'text mut String, name: &'static str, kind: &str, help: &str) -> Self {
        // Writing into a string cannot fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        Self { text, name }
    }

    fn add(&mut self, labels: &[(&str, &str)], value: u64) {
        let labels: Vec<String> =
            labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        // As above.
        let _ = writeln!(self.text, "{}{labels} {value}", self.name);
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn text(status: &NodeStatus, members: &Members, stores: &[KvStatus]) -> String {
    let mut text = String::new();
    let node = [("node", status.name.as_str()), ("rack", status.rack.as_str())];
    let mut one = |name, kind: &str, help: &str, value| {
        Family::begin(&mut text, name, kind, help).add(&node, value);
    };
    one("hinterland_uptime_seconds", "gauge", "Time since the node started.", status.uptime_s);
    one("hinterland_memory_capacity_bytes", "gauge", "Memory that the node lends.", status.capacity_bytes);
    one("hinterland_memory_used_bytes", "gauge", "Memory that objects hold.", status.used_bytes);
    one(
        "hinterland_cache_budget_bytes",
        "gauge",
        "Budget for parts of other racks' objects.",
        status.cache_budget_bytes,
    );
    one("hinterland_cache_bytes", "gauge", "Bytes of other racks' objects on this host.", status.cache_bytes);
    one("hinterland_sessions", "gauge", "Sessions of programs.", status.sessions.into());
    let counters = &status.counters;
    let mut count = |name, help: &str, value| one(name, "counter", help, value);
    count(
        "hinterland_network_received_bytes_total",
        "Bytes from other nodes.",
        counters.network_received_bytes,
    );
    count("hinterland_network_sent_bytes_total", "Bytes to other nodes.", counters.network_sent_bytes);
    count("hinterland_faults_total", "Page faults served.", counters.faults);
    count("hinterland_demand_fills_total", "Units filled because they were touched.", counters.demand_fills);
    count("hinterland_demand_fill_microseconds_total", "Time of those fills.", counters.demand_fill_us);
    count("hinterland_prefetch_fills_total", "Units filled ahead of a touch.", counters.prefetch_fills);
    count("hinterland_evictions_total", "Units evicted.", counters.evictions);
    count("hinterland_checksum_failures_total", "Blocks that arrived wrong.", counters.checksum_failures);
    count("hinterland_failovers_total", "Fetches that went to another replica.", counters.failovers);
    count("hinterland_lost_faults_total", "Faults that ended in SIGBUS.", counters.poisoned_faults);
    count("hinterland_copies_made_total", "Lost copies made again.", counters.copies_made);
    count("hinterland_copied_bytes_total", "Bytes of those copies.", counters.copied_bytes);
    let (made, dropped) = (counters.heat_copies_made, counters.heat_copies_dropped);
    count("hinterland_heat_copies_made_total", "Copies made because this rack reads a lot.", made);
    count("hinterland_heat_copies_dropped_total", "Such copies that went.", dropped);
    count("hinterland_ring_requests_total", "Requests over rings.", counters.ring_requests);
    members_text(&mut text, &node, members);
    kv_text(&mut text, stores);
    text
}

fn members_text(text: &mut String, node: &[(&str, &str)], members: &Members) {
    let help = "Whether the directory has told the node who its members are.";
    Family::begin(text, "hinterland_members_known", "gauge", help).add(node, members.is_ok().into());
    if let Err(trouble) = members {
        // A comment, on one line whatever the reason is. Writing into a string cannot fail.
        let _ = writeln!(text, "# members are not known: {}", trouble.replace(['\n', '\r'], " "));
    }
    let help = "Whether the member's lease is alive.";
    let mut up = Family::begin(text, "hinterland_member_up", "gauge", help);
    for member in members.iter().flatten() {
        let (node, rack) = (member.node.to_string(), member.rack.to_string());
        let name = member.name.as_ref().map_or("", NodeName::as_str);
        up.add(&[("member", &node), ("name", name), ("rack", &rack)], member.up.into());
    }
}

fn disk_text(text: &mut String, stores: &[KvStatus]) {
    type ReadDisk = fn(&KvDiskStatus) -> u64;
    let of_disk: [(&'static str, &str, &str, ReadDisk); 7] = [
        ("hinterland_kv_disk_capacity_bytes", "gauge", "Bytes of the disk tier.", |disk| disk.capacity_bytes),
        ("hinterland_kv_disk_bytes", "gauge", "Bytes of it that blocks take.", |disk| disk.bytes),
        ("hinterland_kv_disk_written_bytes_total", "counter", "Bytes written.", |disk| disk.written_bytes),
        ("hinterland_kv_disk_read_bytes_total", "counter", "Bytes brought back.", |disk| disk.read_bytes),
        ("hinterland_kv_disk_lost_blocks_total", "counter", "Evicted and not written.", |disk| {
            disk.lost_blocks
        }),
        ("hinterland_kv_disk_failures_total", "counter", "Transfers that failed.", |disk| disk.failures),
        ("hinterland_kv_disk_checksum_failures_total", "counter", "Blocks read wrong.", |disk| {
            disk.checksum_failures
        }),
    ];
    for (name, kind, help, read) in of_disk {
        let mut family = Family::begin(text, name, kind, help);
        for store in stores {
            if let Some(disk) = &store.disk {
                family.add(&[("user", &store.user.to_string())], read(disk));
            }
        }
    }
}

fn kept_text(text: &mut String, stores: &[KvStatus]) {
    type ReadKept = fn(&KvKeptStatus) -> u64;
    let of_kept: [(&'static str, &str, &str, ReadKept); 7] = [
        (
            "hinterland_kv_restored_blocks",
            "gauge",
            "Blocks that the node before this one had left.",
            |kept| kept.restored_blocks,
        ),
        ("hinterland_kv_dropped_blocks", "gauge", "Of what it had left, what was not whole.", |kept| {
            kept.dropped_blocks
        }),
        ("hinterland_kv_unchecked_blocks", "gauge", "Blocks of before that are not checked yet.", |kept| {
            kept.unchecked_blocks
        }),
        (
            "hinterland_kv_abandoned_slots",
            "gauge",
            "Slots that programs of before may still write.",
            |kept| kept.abandoned_slots,
        ),
        ("hinterland_kv_unsummed_blocks", "gauge", "Blocks that a killed node would lose.", |kept| {
            kept.unsummed_blocks
        }),
        ("hinterland_kv_damaged_blocks_total", "counter", "Blocks whose bytes had changed.", |kept| {
            kept.damaged_blocks
        }),
        (
            "hinterland_kv_evicted_ahead_blocks_total",
            "counter",
            "Evictions that nobody waited for.",
            |kept| kept.evictions_ahead,
        ),
    ];
    for (name, kind, help, read) in of_kept {
        let mut family = Family::begin(text, name, kind, help);
        for store in stores {
            family.add(&[("user", &store.user.to_string())], read(&store.kept));
        }
    }
}

fn kv_text(text: &mut String, stores: &[KvStatus]) {
    type Read = fn(&KvStatus) -> u64;
    let of_store: [(&'static str, &str, &str, Read); 11] = [
        ("hinterland_kv_capacity_bytes", "gauge", "Memory for KV blocks.", |store| store.capacity_bytes),
        ("hinterland_kv_reserved_blocks", "gauge", "Blocks that are being written.", |store| store.reserved),
        ("hinterland_kv_pinned_bytes", "gauge", "Memory of pinned blocks.", |store| store.pinned_bytes),
        ("hinterland_kv_evicted_blocks_total", "counter", "Blocks evicted.", |store| store.evictions),
        ("hinterland_kv_asked_nodes", "gauge", "Other nodes that are asked for blocks.", |store| {
            store.racks.nodes.into()
        }),
        ("hinterland_kv_resting_nodes", "gauge", "Other nodes that are left alone for a while.", |store| {
            store.racks.resting.into()
        }),
        ("hinterland_kv_received_blocks_total", "counter", "Blocks of other nodes brought here.", |store| {
            store.racks.hits
        }),
        ("hinterland_kv_received_bytes_total", "counter", "Their bytes.", |store| store.racks.bytes),
        ("hinterland_kv_remote_misses_total", "counter", "Blocks that no other node gave.", |store| {
            store.racks.misses
        }),
        ("hinterland_kv_checksum_failures_total", "counter", "Blocks that arrived wrong.", |store| {
            store.racks.checksum_failures
        }),
        ("hinterland_kv_sent_bytes_total", "counter", "Bytes of blocks for other nodes.", |store| {
            store.racks.sent_bytes
        }),
    ];
    for (name, kind, help, read) in of_store {
        let mut family = Family::begin(text, name, kind, help);
        for store in stores {
            family.add(&[("user", &store.user.to_string())], read(store));
        }
    }
    disk_text(text, stores);
    kept_text(text, stores);
    type ReadSpace = fn(&hinterland_proto::control::KvNamespaceStatus) -> u64;
    let of_space: [(&'static str, &str, &str, ReadSpace); 9] = [
        ("hinterland_kv_blocks", "gauge", "KV blocks stored.", |space| space.blocks),
        ("hinterland_kv_bytes", "gauge", "Their bytes.", |space| space.bytes),
        ("hinterland_kv_slot_bytes", "gauge", "Memory that they take.", |space| space.slot_bytes),
        ("hinterland_kv_namespace_evicted_blocks_total", "counter", "Blocks evicted.", |space| {
            space.evictions
        }),
        ("hinterland_kv_asked_keys_total", "counter", "Keys that were looked up.", |space| space.asked),
        ("hinterland_kv_found_keys_total", "counter", "Of those, keys that were there.", |space| space.found),
        ("hinterland_kv_gets_total", "counter", "Blocks that were to be read.", |space| space.gets),
        ("hinterland_kv_got_total", "counter", "Of those, blocks that were.", |space| space.got),
        ("hinterland_kv_read_bytes_total", "counter", "Bytes that readers copied.", |space| space.read_bytes),
    ];
    for (name, kind, help, read) in of_space {
        let mut family = Family::begin(text, name, kind, help);
        for store in stores {
            for space in &store.namespaces {
                let number = format!("{:016x}", space.namespace);
                let labels =
                    [("user", &*store.user.to_string()), ("namespace", &number), ("label", &space.label)];
                family.add(&labels, read(space));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::samples::{members, node};

    #[test]
    fn each_family_has_a_type_and_each_value_its_labels() {
        let text = text(&node(), &Ok(members()), &[]);
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<u64>().is_ok(), "{line}");
            let family = name.split('{').next().unwrap();
            assert!(text.contains(&format!("# TYPE {family} ")), "{line}");
            assert!(
                !family.ends_with("_total") || text.contains(&format!("# TYPE {family} counter")),
                "{line}"
            );
        }
        assert!(text.contains("hinterland_member_up{member="), "{text}");
    }

    #[test]
    fn a_node_whose_directory_is_away_has_its_own_values_and_the_reason() {
        let text = text(&node(), &Err("nobody\nlistens".to_owned()), &[]);
        let own = |name: &str| text.lines().find(|line| line.starts_with(&format!("{name}{{"))).unwrap();
        assert!(own("hinterland_sessions").ends_with(" 2"), "{text}");
        assert!(own("hinterland_members_known").ends_with(" 0"), "{text}");
        assert!(text.contains("\n# members are not known: nobody listens\n"), "{text}");
        assert!(!text.contains("hinterland_member_up{"), "{text}");
    }

    #[test]
    fn one_path_is_served_with_any_query() {
        for line in ["GET /metrics HTTP/1.1", "GET /metrics?name=x HTTP/1.1"] {
            assert!(asks_for_counters(line.as_bytes()), "{line}");
        }
        for line in [
            "GET /metricsanything HTTP/1.1",
            "GET /metrics/x HTTP/1.1",
            "GET / HTTP/1.1",
            "POST /metrics HTTP/1.1",
        ] {
            assert!(!asks_for_counters(line.as_bytes()), "{line}");
        }
    }

    #[test]
    fn labels_with_quotes_and_line_ends_stay_one_value() {
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
