//! The address that other nodes are told: chosen at the start, and whether it leads here.

use crate::core::Core;
use crate::credentials::Credentials;
use crate::directory_etcd::EtcdDirectory;
use crate::node::NodeError;
use crate::options::NodeOptions;
use hinterland_directory::{Command, Reply};
use hinterland_fabric::tcp::{ClientOptions, TcpEndpoint};
use hinterland_proto::{PoolId, Role};
use hinterland_types::NodeId;
use std::io::{Error, ErrorKind};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::time::Duration;

/// How long the node waits for an answer of its own.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long for one of a node that is perhaps not there any more.
const TWIN_PATIENCE: Duration = Duration::from_secs(2);

/// Refuses options with which others could reach the node without a key or certificates, could not reach it at all, or it would wait for itself.
pub fn check(options: &NodeOptions, has_credentials: bool) -> Result<(), NodeError> {
    let address = options.listen;
    if !has_credentials && !address.ip().is_loopback() {
        return Err(match &options.join {
            Some(join) => NodeError::OpenJoining { address, join: join.clone() },
            None => NodeError::Open { address },
        });
    }
    let told = options.advertise.clone().unwrap_or_else(|| address.to_string());
    if told.parse::<SocketAddr>().is_ok_and(|told| told.ip().is_unspecified()) {
        return Err(NodeError::Advertised { address: told });
    }
    match &options.join {
        Some(join) if *join == told => Err(NodeError::JoinsItself { address: told }),
        _ => Ok(()),
    }
}

/// Listens for other nodes, and says what address they are told.
pub fn listen(options: &NodeOptions) -> Result<(TcpListener, String), NodeError> {
    let failed = |source| NodeError::Listen { address: options.listen, source };
    let listener = TcpListener::bind(options.listen).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, options.advertise.clone().unwrap_or_else(|| address.to_string())))
}

/// What to do where it cannot be listened.
pub fn hint(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::AddrNotAvailable => {
            "no card of this host has this address: `ip address` lists those there are, 0.0.0.0:PORT stands for all; --advertise is what others are told"
        }
        ErrorKind::PermissionDenied => "ports below 1024 are for root: choose another --listen",
        _ => "is another node running there? choose another --listen",
    }
}

/// Why others may not reach the node `own`, which runs with these options, at the address that they are told; none if they do, as far as
/// can be seen from here. It takes a few seconds where nobody answers.
pub fn trouble(options: &NodeOptions, own: NodeId, told: &str) -> Option<String> {
    if let Some(join) = &options.join
        && is_of_each_host(told)
        && !is_of_this_host(join)
    {
        return Some(format!(
            "other hosts cannot reach this node at {told}: they read nothing that lies here (hint: start with --listen 0.0.0.0:7401 --advertise HOST:7401, with the name of this host)"
        ));
    }
    options.advertise.as_ref()?;
    let why = match who_answers(options, told, PATIENCE) {
        Ok(node) if node == own => return None,
        Ok(node) => format!("{node} answers there"),
        // Its own hint is for those who look for another node.
        Err(error) => error.split(" (hint: ").next().unwrap_or_default().to_owned(),
    };
    Some(format!(
        "other nodes are told {told} and do not find this one there: {why} (hint: give --advertise the name of this host and the port of --listen; all is well if only others reach it so)"
    ))
}

/// Refuses to start while a node of this number answers where the directory knows it, as the one does from whose state a copy was
/// made: the directory would take each for the other and have both drop what only the other holds. This node answers nobody yet.
pub fn refuse_twin(options: &NodeOptions, core: &Core) -> Result<(), NodeError> {
    let Reply::Members(members) = core.directory.apply(&Command::Members)? else { return Ok(()) };
    let known = members.into_iter().find(|member| member.node == core.own);
    known.map_or(Ok(()), |known| refuse_at(options, core, known.address))
}

/// The same for one that leads the directory, which this node cannot ask: it takes who leads under its own number for an earlier life
/// of its own, and waits for the end of that reign. This node must not stand for election yet.
pub fn refuse_leading_twin(
    options: &NodeOptions,
    core: &Core,
    shared: &EtcdDirectory,
) -> Result<(), NodeError> {
    // An etcd that does not answer at this moment is waited for by who asks next.
    let leader = shared.leader_in_etcd().ok().flatten().filter(|leader| leader.node == core.own);
    leader.map_or(Ok(()), |leader| refuse_at(options, core, leader.address))
}

fn refuse_at(options: &NodeOptions, core: &Core, address: String) -> Result<(), NodeError> {
    if address == core.membership.address {
        return Ok(());
    }
    match who_answers(options, &address, TWIN_PATIENCE) {
        Ok(node) if node == core.own => Err(NodeError::Twin { state: options.state.clone(), node, address }),
        Ok(_) | Err(_) => Ok(()),
    }
}

fn who_answers(options: &NodeOptions, told: &str, within: Duration) -> Result<NodeId, String> {
    let Credentials { key, tls } = Credentials::read(options).map_err(|error| error.to_string())?;
    let asking = ClientOptions {
        streams: 1,
        role: Role::Client,
        key,
        tls,
        pool: PoolId::ANY,
        timeout: within,
        ..ClientOptions::default()
    };
    TcpEndpoint::connect(told, asking).map(|endpoint| endpoint.node()).map_err(|error| error.to_string())
}

/// Whether an address leads each host to itself. A name does not: a host often knows its own as 127.0.1.1, and others do not.
fn is_of_each_host(address: &str) -> bool {
    address.starts_with("localhost:")
        || address.parse::<SocketAddr>().is_ok_and(|address| address.ip().to_canonical().is_loopback())
}

/// Whether an address, or what this host takes a name for, is its own alone.
fn is_of_this_host(address: &str) -> bool {
    address.to_socket_addrs().is_ok_and(|found| {
        let found: Vec<_> = found.collect();
        !found.is_empty() && found.iter().all(|address| address.ip().to_canonical().is_loopback())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hinterland_types::RackName;

    #[test]
    fn who_joins_another_host_is_told_that_it_hides_and_nobody_else() {
        let trouble_of = |listen: &str, advertise: Option<&str>, join: Option<&str>| {
            let rack = RackName::parse("r").unwrap();
            let mut options = NodeOptions::new(
                "n".parse().unwrap(),
                rack,
                "/nowhere".into(),
                "/nowhere".into(),
                listen.parse().unwrap(),
            );
            options.advertise = advertise.map(str::to_owned);
            options.join = join.map(str::to_owned);
            trouble(&options, NodeId(7), advertise.unwrap_or(listen)).unwrap_or_default()
        };
        for advertise in [None, Some("127.0.0.1:1"), Some("[::1]:1"), Some("localhost:1")] {
            let said = trouble_of("127.0.0.1:1", advertise, Some("192.0.2.1:1"));
            assert!(said.contains("they read nothing that lies here"), "{advertise:?}: {said}");
        }
        assert_eq!(trouble_of("127.0.0.1:1", None, Some("localhost:2")), "");
        assert_eq!(trouble_of("127.0.0.1:1", None, None), "");
        assert_eq!(trouble_of("192.0.2.2:1", None, Some("192.0.2.1:1")), "");
        let said = trouble_of("192.0.2.2:1", Some("127.0.0.1:1"), None);
        assert!(said.contains("do not find this one there: cannot connect to 127.0.0.1:1"), "{said}");
    }
}
