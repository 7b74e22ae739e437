//! Random steps over a few nodes, names and objects, so that they often meet.

use super::plain::Plain;
use hinterland_directory::{Command, ContentDigest, Departure, Held, Placement, Writer};
use hinterland_types::{Epoch, NodeId, ObjectId, ObjectName, RackName};
use proptest::prelude::*;

/// Names of which some cannot stand beside others.
pub const NAMES: [&str; 5] = ["a", "a/b", "a-c", "d/e", "f"];
const SIZES: [u64; 7] = [0, 1, 5000, 2 << 20, (3 << 20) + 1, 9 << 20, 1 << 30];

/// Numbers are taken modulo what there is when the step is made.
#[derive(Clone, Debug)]
pub enum Step {
    Join { node: u8, raise: bool, capacity: u8 },
    Restart { node: u8, keep: u8 },
    Beat { node: u8, old: bool },
    Report { node: u8, keep: u8, cut: bool, old: bool },
    Show { node: u8, keep: u8, old: bool },
    Leave { node: u8, departure: u8 },
    Reserve { node: u8, name: u8, size: u8, stream: bool, copies: u8, rack: Option<u8>, token: u8 },
    Grow { object: u8, size: u8 },
    Seal { object: u8, size: u8, fewer: bool, wrong: bool },
    Abort { object: u8 },
    Region { node: u8, name: u8, size: u8 },
    Remove { name: u8, object: Option<u8> },
    Forget { object: u8, home: u8, old: bool },
    AddReplica { object: u8, node: u8 },
    ReplicaAdded { object: u8, home: u8, wrong: bool, old: bool },
    AddHeatCopy { object: u8, node: u8 },
    DropHeatCopy { object: u8, home: u8, old: bool },
}

pub fn step() -> impl Strategy<Value = Step> {
    let byte = any::<u8>;
    let flag = || prop::bool::weighted(0.15);
    prop_oneof![
        2 => (byte(), any::<bool>(), byte()).prop_map(|(node, raise, capacity)| Step::Join { node, raise, capacity }),
        4 => (byte(), byte()).prop_map(|(node, keep)| Step::Restart { node, keep }),
        6 => (byte(), flag()).prop_map(|(node, old)| Step::Beat { node, old }),
        4 => (byte(), byte(), flag(), flag())
            .prop_map(|(node, keep, cut, old)| Step::Report { node, keep, cut, old }),
        3 => (byte(), byte(), flag()).prop_map(|(node, keep, old)| Step::Show { node, keep, old }),
        1 => (byte(), byte()).prop_map(|(node, departure)| Step::Leave { node, departure }),
        6 => (byte(), byte(), byte(), flag(), byte(), prop::option::weighted(0.3, byte()), byte()).prop_map(
            |(node, name, size, stream, copies, rack, token)| Step::Reserve {
                node, name, size, stream, copies, rack, token
            }
        ),
        1 => (byte(), byte()).prop_map(|(object, size)| Step::Grow { object, size }),
        6 => (byte(), byte(), flag(), flag())
            .prop_map(|(object, size, fewer, wrong)| Step::Seal { object, size, fewer, wrong }),
        1 => byte().prop_map(|object| Step::Abort { object }),
        1 => (byte(), byte(), byte()).prop_map(|(node, name, size)| Step::Region { node, name, size }),
        2 => (byte(), prop::option::of(byte())).prop_map(|(name, object)| Step::Remove { name, object }),
        4 => (byte(), byte(), flag()).prop_map(|(object, home, old)| Step::Forget { object, home, old }),
        2 => (byte(), byte()).prop_map(|(object, node)| Step::AddReplica { object, node }),
        2 => (byte(), byte()).prop_map(|(object, node)| Step::AddHeatCopy { object, node }),
        2 => (byte(), byte(), flag()).prop_map(|(object, home, old)| Step::DropHeatCopy { object, home, old }),
        3 => (byte(), byte(), flag(), flag())
            .prop_map(|(object, home, wrong, old)| Step::ReplicaAdded { object, home, wrong, old }),
    ]
}

/// Two nodes that are up, so that most runs get somewhere.
pub fn start() -> impl Strategy<Value = Vec<(u8, Step)>> {
    Just((0..3).flat_map(join_and_report).collect())
}

fn join_and_report(node: u8) -> [(u8, Step); 2] {
    let report = Step::Report { node, keep: 255, cut: false, old: false };
    [(0, Step::Join { node, raise: true, capacity: 204 + node }), (0, report)]
}

fn node_of(number: u8) -> NodeId {
    NodeId(u64::from(number % 4) + 1)
}

fn name_of(number: u8) -> ObjectName {
    ObjectName::parse(NAMES[usize::from(number) % NAMES.len()]).unwrap()
}

fn rack_of(node: NodeId) -> RackName {
    RackName::parse(if node.0.is_multiple_of(2) { "even" } else { "odd" }).unwrap()
}

fn size_of(number: u8) -> u64 {
    SIZES[usize::from(number) % SIZES.len()]
}

/// Digest of the right content of an object, or of another.
pub fn digest(object: ObjectId, wrong: bool) -> ContentDigest {
    let mut bytes = [u8::from(wrong); 32];
    bytes[..8].copy_from_slice(&object.0.to_le_bytes());
    ContentDigest(bytes)
}

impl Step {
    pub fn commands(&self, plain: &Plain) -> Vec<Command> {
        match self {
            Step::Restart { node, keep } => {
                let join = Step::Join { node: *node, raise: true, capacity: 204 + node % 4 }.command(plain);
                let Command::NodeObjects { node, objects, .. } =
                    report(plain, node_of(*node), *keep, false, false)
                else {
                    unreachable!("a report is a list")
                };
                let incarnation = plain.incarnation(node) + 1;
                let after = ObjectId(0);
                vec![join, Command::NodeObjects { node, incarnation, after, objects, more: false }]
            }
            step => vec![step.command(plain)],
        }
    }

    fn command(&self, plain: &Plain) -> Command {
        match self.clone() {
            Step::Join { node, raise, capacity } => {
                let node = node_of(node);
                Command::Join {
                    name: None,
                    node,
                    rack: rack_of(node),
                    address: format!("host-{}:7400", node.0),
                    capacity_bytes: u64::from(capacity % 8) * (3 << 20),
                    incarnation: plain.incarnation(node) + u64::from(raise),
                }
            }
            Step::Restart { .. } => unreachable!("a restart is two commands"),
            Step::Beat { node, old } => {
                let node = node_of(node);
                Command::Heartbeat { node, incarnation: life(plain, node, old), used_bytes: 5 }
            }
            Step::Report { node, keep, cut, old } => report(plain, node_of(node), keep, cut, old),
            Step::Show { node, keep, old } => {
                let node = node_of(node);
                let (incarnation, objects) = (life(plain, node, old), some_held(plain, node, keep));
                Command::ShowHeld { node, incarnation, objects }
            }
            Step::Leave { node, departure } => {
                let departures = [Departure::ComesBack, Departure::Gone, Departure::GoneWithLastCopies];
                let departure = departures[usize::from(departure) % 3];
                let node = node_of(node);
                Command::Leave { node, incarnation: life(plain, node, false), departure }
            }
            Step::Reserve { node, name, size, stream, copies, rack, token } => {
                let node = node_of(node);
                let incarnation = life(plain, node, false);
                let placement = match rack {
                    Some(number) => Placement::Rack(rack_of(node_of(number))),
                    None => Placement::Policy,
                };
                let writer = Writer { node, incarnation, token: u64::from(token % 2) };
                let size = (!stream).then(|| size_of(size));
                Command::Reserve { name: name_of(name), size, copies: copies % 4, placement, writer }
            }
            Step::Grow { object, size } => {
                Command::Grow { object: plain.some_object(object), bytes: size_of(size) }
            }
            Step::Seal { object, size, fewer, wrong } => seal(plain, object, size, fewer, wrong),
            Step::Abort { object } => Command::Abort { object: plain.some_object(object) },
            Step::Region { node, name, size } => Command::CreateRegion {
                name: name_of(name),
                size: size_of(size),
                placement: Placement::Policy,
                local: node_of(node),
            },
            Step::Remove { name, object } => {
                let object = object.map(|number| plain.some_object(number));
                Command::Remove { name: name_of(name), object }
            }
            Step::Forget { object, home, old } => {
                let (object, node, epoch) = copy_of(plain, object, home, old);
                Command::Forget { object, node, incarnation: life(plain, node, false), epoch }
            }
            step => step.copies_command(plain),
        }
    }

    fn copies_command(self, plain: &Plain) -> Command {
        match self {
            Step::AddReplica { object, node } => {
                let node = node_of(node);
                let incarnation = life(plain, node, false);
                Command::AddReplica { object: plain.some_object(object), node, incarnation }
            }
            Step::AddHeatCopy { object, node } => {
                let node = node_of(node);
                let incarnation = life(plain, node, false);
                Command::AddHeatCopy { object: plain.some_object(object), node, incarnation }
            }
            Step::DropHeatCopy { object, home, old } => {
                let (object, node, epoch) = copy_of(plain, object, home, old);
                Command::DropHeatCopy { object, node, incarnation: life(plain, node, false), epoch }
            }
            Step::ReplicaAdded { object, home, wrong, old } => {
                let (object, node, epoch) = copy_of(plain, object, home, old);
                let incarnation = life(plain, node, false);
                Command::ReplicaAdded { object, node, incarnation, epoch, digest: digest(object, wrong) }
            }
            other => unreachable!("{other:?} is about no copy"),
        }
    }
}

fn life(plain: &Plain, node: NodeId, old: bool) -> u64 {
    plain.incarnation(node).saturating_sub(u64::from(old))
}

/// A copy that exists, or one of an epoch before.
fn copy_of(plain: &Plain, object: u8, home: u8, old: bool) -> (ObjectId, NodeId, Epoch) {
    let id = plain.some_object(object);
    let homes: Vec<_> = plain.objects.get(&id).map(|o| o.homes.iter().collect()).unwrap_or_default();
    match homes.get(usize::from(home) % homes.len().max(1)) {
        Some((node, copy)) => (id, **node, Epoch(copy.epoch.0 - u64::from(old))),
        None => (id, node_of(home), Epoch(0)),
    }
}

fn seal(plain: &Plain, object: u8, size: u8, fewer: bool, wrong: bool) -> Command {
    let object = plain.some_object(object);
    let known = plain.objects.get(&object);
    let mut homes: Vec<_> = known.map(|o| o.homes.keys().copied().collect()).unwrap_or_default();
    if fewer {
        homes.pop();
    }
    // Mostly what was reserved, sometimes something else.
    let reserved = known.map_or(0, |o| o.bytes);
    let size = if size < 200 { reserved } else { size_of(size) };
    Command::Seal { object, size, digest: digest(object, wrong), homes }
}

/// The next part of the list of what the node says that it holds.
fn report(plain: &Plain, node: NodeId, keep: u8, cut: bool, old: bool) -> Command {
    let mut objects = some_held(plain, node, keep);
    let after = plain.members.get(&node).map_or(ObjectId(0), |member| member.through);
    objects.retain(|held| held.object > after);
    let more = cut && objects.len() > 1;
    if more {
        objects.truncate(1);
    }
    Command::NodeObjects { node, incarnation: life(plain, node, old), after, objects, more }
}

/// Some of the copies that the node should hold, and now and then one that nobody knows.
fn some_held(plain: &Plain, node: NodeId, keep: u8) -> Vec<Held> {
    let recorded =
        plain.objects.iter().filter_map(|(id, object)| Some((*id, object, *object.homes.get(&node)?)));
    let kept = recorded.filter(|(id, ..)| keep > 128 || (u64::from(keep) >> (id.0 % 7)) & 1 == 1);
    let mut objects: Vec<_> = kept
        .map(|(object, known, copy)| Held {
            object,
            epoch: copy.epoch,
            digest: (!known.mutable && (copy.complete || keep.is_multiple_of(2)))
                .then(|| digest(object, false)),
        })
        .collect();
    if keep.is_multiple_of(5) {
        objects.extend(plain.gone().map(|object| Held { object, epoch: Epoch(1), digest: None }));
        objects.sort_unstable_by_key(|held| held.object);
    }
    objects
}
