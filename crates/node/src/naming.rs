//! Removing and renaming objects and folders.

use crate::core::Core;
use crate::fault_point;
use crate::put::Removed;
use crate::refused::{Refused, errno};
use crate::segment;
use hinterland_directory::{Command, DirectoryError, OnTarget, Reply};
use hinterland_proto::control::RenameTarget;
use hinterland_types::{ObjectId, ObjectName};

/// Removes a name. Homes that do not hear it now hear it with their next heartbeat.
///
/// # Errors
/// [`Refused`] if there is no such name, or programs allocate from what has it.
pub fn remove(core: &Core, name: &ObjectName) -> Result<(), Refused> {
    segment::check_unused(core, name)?;
    remove_always(core, name)
}

/// The same, whatever has the name.
///
/// # Errors
/// [`Refused`] if there is no such name.
pub fn remove_always(core: &Core, name: &ObjectName) -> Result<(), Refused> {
    // A request may be sent twice, when its connection breaks: it must not remove a successor of the same name.
    let object = core.directory.lookup(name)?.object;
    // If it is not there any more, the first of two requests was served, and every home has let go.
    remove_known(core, name, object).map(drop)
}

/// Removes one object, and no other that has its name by now.
///
/// # Errors
/// [`Refused`] with `ENOENT` if it has not that name, or programs allocate from it.
pub fn remove_object(core: &Core, name: &ObjectName, object: ObjectId) -> Result<(), Refused> {
    segment::check_unused(core, name)?;
    if remove_known(core, name, object)? {
        Ok(())
    } else {
        Err(DirectoryError::UnknownObject { object }.into())
    }
}

/// Removes one object; false if it has not that name.
fn remove_known(core: &Core, name: &ObjectName, object: ObjectId) -> Result<bool, Refused> {
    let homes = match core.directory.ask(&Command::Remove { name: name.clone(), object: Some(object) })? {
        Ok(Reply::Removed { homes, .. }) => homes,
        Err(DirectoryError::UnknownObject { .. }) => return Ok(false),
        Ok(other) => return Err(Refused::new(errno::EIO, format!("the directory answered {other:?}"))),
        Err(error) => return Err(error.into()),
    };
    fault_point::reach("remove-committed");
    let_go(core, &Removed { object, homes });
    Ok(true)
}

/// Has every home drop an object that has no name any more. Those that do not hear it now hear it with their next heartbeat.
pub fn let_go(core: &Core, removed: &Removed) {
    let object = removed.object;
    for home in &removed.homes {
        if home.node == core.own {
            core.holdings.drop_object(object);
            fault_point::reach("remove-dropped");
            core.puts.forget(object, home);
        } else if let Err(refused) = core.peers.drop_at_home(&home.address, object) {
            tracing::debug!(%refused, "a home hears of the removal with its next heartbeat");
        }
    }
}

/// Gives an object another name.
///
/// # Errors
/// [`Refused`] if there is no such name, something has the other one and is to keep it, or programs allocate from one of them.
pub fn rename(core: &Core, from: ObjectName, to: ObjectName, target: RenameTarget) -> Result<(), Refused> {
    segment::check_unused(core, &from)?;
    segment::check_unused(core, &to)?;
    // A request may be sent twice, when its connection breaks: it must not rename a successor of the same name.
    let object = core.directory.lookup(&from)?.object;
    rename_known(core, object, from, to, target)
}

/// Gives one object another name, and no other that has its name by now. One that has the other name already was renamed by an
/// earlier request.
///
/// # Errors
/// As [`rename`].
pub fn rename_object(
    core: &Core,
    object: ObjectId,
    from: ObjectName,
    to: ObjectName,
    target: RenameTarget,
) -> Result<(), Refused> {
    segment::check_unused(core, &from)?;
    segment::check_unused(core, &to)?;
    rename_known(core, object, from, to, target)
}

fn rename_known(
    core: &Core,
    object: ObjectId,
    from: ObjectName,
    to: ObjectName,
    target: RenameTarget,
) -> Result<(), Refused> {
    let target = match target {
        RenameTarget::Replace => OnTarget::Replace,
        RenameTarget::Refuse => OnTarget::Refuse,
        RenameTarget::Exchange => OnTarget::Exchange(core.directory.lookup(&to)?.object),
    };
    match core.directory.apply(&Command::Rename { from, to, object, target })? {
        Reply::Renamed { removed, homes } => {
            fault_point::reach("rename-committed");
            if let Some(object) = removed {
                let_go(core, &Removed { object, homes });
            }
            Ok(())
        }
        other => Err(Refused::new(errno::EIO, format!("the directory answered {other:?}"))),
    }
}

/// Gives everything below a folder names below another one.
///
/// # Errors
/// [`Refused`] if there is nothing below it, something has the other name or lies below it, or programs allocate from what lies there.
pub fn rename_folder(core: &Core, from: ObjectName, to: ObjectName) -> Result<(), Refused> {
    segment::check_unused(core, &from)?;
    // A request may be sent twice, when its connection breaks: the second finds this object below the other folder.
    let list = Command::List { prefix: format!("{from}/"), after: None, limit: 1 };
    let Reply::List { objects, .. } = core.directory.apply(&list)? else {
        return Err(Refused::new(
            errno::EIO,
            "the directory gave an answer that does not belong to the question",
        ));
    };
    let object = objects.first().map(|first| first.object);
    core.directory.apply(&Command::RenameFolder { from, to, object }).map(drop)
}
