//! Devices and ports of this host: which there are, what they are called on the network, and an opened one.

use super::abi::{Context, Library, PortAttributes, library};
use hinterland_proto::verbs::{PortAddress, PortKind};
use std::ffi::CStr;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Ports of one host that are used: more of them than this, and a message about them would grow without use.
pub(super) const PORTS_MAX: usize = 8;
/// Where the kernel shows devices.
const DEVICES: &str = "/sys/class/infiniband";
/// State of a port that carries data.
const ACTIVE: i32 = 4;
const ETHERNET: u8 = 2;

/// An opened device.
pub(super) struct Device {
    pub context: *mut Context,
    pub library: &'static Library,
    pub name: String,
}

// SAFETY: the library's functions may be called from any thread; the context is closed once, by `drop`.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: opened by `open` and closed here only; everything made of it holds an `Arc` of this.
        unsafe { (self.library.close_device)(self.context) };
    }
}

/// A port that carries data, and its address on the network.
#[derive(Clone)]
pub(super) struct Port {
    pub device: Arc<Device>,
    pub number: u8,
    pub gid_index: u8,
    pub address: PortAddress,
}

/// What a port is called on its host. It stays the same when the device goes and comes back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PortName {
    pub device: String,
    pub number: u8,
}

impl Port {
    pub fn name(&self) -> PortName {
        PortName { device: self.device.name.clone(), number: self.number }
    }

    /// Whether the opened device still is the one that the system knows, at the address that it had.
    pub fn holds(&self) -> bool {
        describe(&self.device, self.number)
            .is_some_and(|port| port.address == self.address && port.gid_index == self.gid_index)
    }
}

/// Opens every device with a port that carries data.
///
/// # Errors
/// Why there is none, in words.
pub(super) fn open_ports(wanted: &[String]) -> Result<Vec<Port>, String> {
    let library = library()?;
    let mut ports = Vec::new();
    for device in open_devices(library, wanted)? {
        let device = Arc::new(device);
        for number in port_numbers(&device.name) {
            if let Some(port) = describe(&device, number)
                && ports.len() < PORTS_MAX
            {
                ports.push(port);
            }
        }
    }
    if ports.is_empty() {
        return Err("no RDMA device of this host has an active port with an address".to_owned());
    }
    Ok(ports)
}

fn open_devices(library: &'static Library, wanted: &[String]) -> Result<Vec<Device>, String> {
    let mut count = 0;
    // SAFETY: `count` is live.
    let list = unsafe { (library.get_device_list)(&raw mut count) };
    if list.is_null() {
        return Err(format!("no list of RDMA devices: {}", io::Error::last_os_error()));
    }
    let mut devices = Vec::new();
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` devices.
        let device = unsafe { *list.add(index) };
        // SAFETY: a device of the list has a name that ends in a zero byte.
        let name =
            unsafe { CStr::from_ptr((library.get_device_name)(device)) }.to_string_lossy().into_owned();
        if !wanted.is_empty() && !wanted.contains(&name) {
            continue;
        }
        // SAFETY: a device of a list that is not yet freed.
        let context = unsafe { (library.open_device)(device) };
        if !context.is_null() {
            devices.push(Device { context, library, name });
        }
    }
    // SAFETY: the list came from this library and is not used any more; opened devices stay.
    unsafe { (library.free_device_list)(list) };
    Ok(devices)
}

/// What can be said of a port now, `None` if it carries no data or has no address.
fn describe(device: &Arc<Device>, number: u8) -> Option<Port> {
    let mut attributes = PortAttributes::zeroed();
    // SAFETY: an open context, and room for the attributes of every release.
    let result = unsafe { (device.library.query_port)(device.context, number, &raw mut attributes) };
    if result != 0 || attributes.state != ACTIVE {
        return None;
    }
    let (gid_index, kind, gid) = best_gid(&device.name, number, attributes.link_layer == ETHERNET)?;
    let mtu = u8::try_from(attributes.mtu).ok().filter(|mtu| (1..=5).contains(mtu))?;
    let address = PortAddress { kind, gid, lid: attributes.lid, mtu };
    Some(Port { device: Arc::clone(device), number, gid_index, address })
}

fn port_numbers(device: &str) -> Vec<u8> {
    let Ok(entries) = fs::read_dir(Path::new(DEVICES).join(device).join("ports")) else { return Vec::new() };
    let mut numbers: Vec<u8> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

/// The address that reaches furthest: one with an IPv4 address of RoCE v2 first, the one of the link alone last.
fn best_gid(device: &str, port: u8, ethernet: bool) -> Option<(u8, PortKind, [u8; 16])> {
    let found = gids(device, port).into_iter().map(|(index, gid, kind)| {
        let kind = match (ethernet, kind.as_str()) {
            (false, _) => PortKind::InfiniBand,
            (true, "RoCE v2") => PortKind::RoceV2,
            (true, _) => PortKind::RoceV1,
        };
        let rank = match kind {
            PortKind::InfiniBand => 3,
            PortKind::RoceV2 if is_v4(&gid) => 4,
            PortKind::RoceV2 if gid[0] != 0xfe => 3,
            PortKind::RoceV2 => 2,
            PortKind::RoceV1 => 1,
        };
        (rank, index, kind, gid)
    });
    // The lowest index among the best.
    found
        .max_by_key(|(rank, index, _, _)| (*rank, std::cmp::Reverse(*index)))
        .map(|(_, index, kind, gid)| (index, kind, gid))
}

/// Whether an address stands for an IPv4 address.
pub(super) fn is_v4(gid: &[u8; 16]) -> bool {
    gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]
}

/// The addresses of a port that are set, with their index and kind.
fn gids(device: &str, port: u8) -> Vec<(u8, [u8; 16], String)> {
    let folder = Path::new(DEVICES).join(device).join(format!("ports/{port}"));
    let read = |path: std::path::PathBuf| fs::read_to_string(path).map(|text| text.trim().to_owned());
    (0..=u8::MAX)
        .map_while(|index| read(folder.join(format!("gids/{index}"))).ok().map(|text| (index, text)))
        .filter_map(|(index, text)| {
            let gid = parse_gid(&text).filter(|gid| *gid != [0; 16])?;
            Some((index, gid, read(folder.join(format!("gid_attrs/types/{index}"))).unwrap_or_default()))
        })
        .collect()
}

/// Whether devices read an aligned word of memory whole while a processor stores it. Real ones do: they read lines. A driver
/// that copies by a processor need not, unless that is the only one and so not storing meanwhile.
pub(super) fn reads_whole_words(ports: &[Port]) -> bool {
    let one_processor =
        || fs::read_to_string("/sys/devices/system/cpu/online").is_ok_and(|online| online.trim() == "0");
    ports.iter().all(|port| !is_software(&Path::new(DEVICES).join(&port.device.name))) || one_processor()
}

/// Whether a device is a driver alone: soft-RoCE names the card that it stands on, and none has a device of the bus.
fn is_software(folder: &Path) -> bool {
    folder.join("parent").exists() || !folder.join("device").exists()
}

fn parse_gid(text: &str) -> Option<[u8; 16]> {
    text.parse::<std::net::Ipv6Addr>().ok().map(|address| address.octets())
}

/// One device as people see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceReport {
    /// Its name.
    pub name: String,
    /// Each port: number, state in the kernel's words, and addresses with their kinds.
    pub ports: Vec<(u8, String, Vec<String>)>,
}

/// What the kernel shows of this host's RDMA devices, without the library.
pub fn devices() -> Vec<DeviceReport> {
    let Ok(entries) = fs::read_dir(DEVICES) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    let report = |name: String| {
        let ports = port_numbers(&name).into_iter().map(|port| {
            let state =
                fs::read_to_string(Path::new(DEVICES).join(&name).join(format!("ports/{port}/state")));
            let state = state.unwrap_or_default().trim().to_owned();
            let addresses = gids(&name, port)
                .into_iter()
                .map(|(index, gid, kind)| format!("{index} {} {kind}", std::net::Ipv6Addr::from(gid)));
            (port, state, addresses.collect())
        });
        DeviceReport { ports: ports.collect(), name }
    };
    names.into_iter().map(report).collect()
}

/// Whether the library of RDMA can be loaded; the text says why not.
///
/// # Errors
/// The words of the loader.
pub fn loadable() -> Result<(), String> {
    library().map(|_| ())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn addresses_are_read_as_the_kernel_writes_them() {
        let gid = parse_gid("0000:0000:0000:0000:0000:ffff:0a00:0001").unwrap();
        assert!(is_v4(&gid) && gid[12..] == [10, 0, 0, 1]);
        assert!(!is_v4(&parse_gid("fe80:0000:0000:0000:5054:00ff:fe00:0001").unwrap()));
        assert!(parse_gid("nothing").is_none() && parse_gid("").is_none());
    }
}
