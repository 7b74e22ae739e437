//! Making a region: nobody sees it before the memory of all its homes is there.
//!
//! The directory keeps name, addresses and room for whoever makes it, as for one who writes an object: when that node ends, or gives up, all of
//! it goes.

use crate::core::Core;
use crate::directory_link::describe;
use crate::fault_point;
use crate::put::placement;
use crate::refused::{Refused, errno};
use hinterland_directory::{Command, HomeInfo, Reply};
use hinterland_proto::control::{ObjectInfo, PeerRequest, Placement};
use hinterland_types::{ObjectId, ObjectName};

/// Makes a region near: in this rack, or if it has no room over all nodes that have.
///
/// # Errors
/// As [`create_region`].
pub fn create_near(core: &Core, name: &ObjectName, bytes: u64) -> Result<ObjectInfo, Refused> {
    let rack = Placement::Rack(core.membership.rack.clone());
    match create_region(core, name.clone(), bytes, rack) {
        Err(refused) if refused.code == errno::ENOSPC => {
            create_region(core, name.clone(), bytes, Placement::Spread).map_err(|_| refused)
        }
        other => other,
    }
}

/// Makes a region and the memory of its homes.
///
/// # Errors
/// [`Refused`]; nothing is left behind.
pub fn create_region(
    core: &Core,
    name: ObjectName,
    bytes: u64,
    place: Placement,
) -> Result<ObjectInfo, Refused> {
    if bytes == 0 {
        let text = format!("{name} would be a region without a byte (hint: say how large it is, as 64M)");
        return Err(Refused::new(errno::EINVAL, text));
    }
    let (object, homes) = core.puts.begin_region(&name, bytes, placement(place))?;
    fault_point::reach("region-reserved");
    let shown = make_homes(core, object, &homes, &name, bytes).and_then(|()| {
        fault_point::reach("region-homes-made");
        core.directory.apply(&Command::ShowRegion { object })
    });
    match shown {
        Ok(Reply::Object(info)) => {
            core.puts.is_over(object);
            fault_point::reach("region-shown");
            Ok(describe(&info, core.own))
        }
        Ok(other) => Err(Refused::new(errno::EIO, format!("the directory answered {other:?}"))),
        Err(refused) => {
            core.puts.abandon(object);
            Err(refused)
        }
    }
}

fn make_homes(
    core: &Core,
    object: ObjectId,
    homes: &[HomeInfo],
    name: &ObjectName,
    bytes: u64,
) -> Result<(), Refused> {
    for home in homes {
        let (epoch, name) = (home.epoch, name.clone());
        match (homes.len() > 1, home.node == core.own) {
            (true, true) => {
                core.holdings.create_part(object, epoch, name, bytes)?;
                core.regions.get(core, object)?;
            }
            (false, true) => drop(core.holdings.create_region(object, epoch, name, bytes)?),
            (true, false) => {
                core.peers.call(&home.address, &PeerRequest::HomePart { object, epoch, name, bytes })?;
            }
            (false, false) => {
                core.peers.call(&home.address, &PeerRequest::HomeRegion { object, epoch, name, bytes })?;
            }
        }
        fault_point::reach("region-home-made");
    }
    Ok(())
}
