//! Questions that change nothing.

use crate::draft::Draft;
use crate::error::DirectoryError;
use crate::lifecycle::state_of;
use crate::record::{ObjectRecord, Stage};
use crate::reply::{HomeInfo, ObjectInfo, ObjectState, Reply};
use crate::{LIST_BYTES_MAX, LIST_MAX};
use hinterland_types::{ObjectId, ObjectName, PageNumber};
use std::ops::Bound;

impl Draft<'_> {
    pub(crate) fn info(&self, id: ObjectId, object: &ObjectRecord) -> ObjectInfo {
        ObjectInfo {
            object: id,
            name: object.name.clone(),
            state: state_of(object),
            size: object.bytes,
            pages: object.pages(),
            digest: match object.stage {
                Stage::Sealed { digest, .. } => Some(digest),
                Stage::Writing { .. }
                | Stage::Mutable { .. }
                | Stage::Removing { .. }
                | Stage::Making { .. } => None,
            },
            copies: object.copies,
            homes: self.home_infos(object, |home| home.complete && self.is_up(home.node)),
            homes_down: self.home_infos(object, |home| home.complete && !self.is_up(home.node)),
        }
    }

    pub(crate) fn lookup(&self, name: &ObjectName) -> Result<Reply, DirectoryError> {
        let id = self.name_owner(name).ok_or_else(|| DirectoryError::UnknownName { name: name.clone() })?;
        let object = self.known_object(id)?;
        match object.stage {
            Stage::Writing { writer } => {
                Err(DirectoryError::NameBeingWritten { name: name.clone(), node: writer.node })
            }
            Stage::Making { writer, .. } => {
                Err(DirectoryError::NameBeingMade { name: name.clone(), node: writer.node })
            }
            _ => Ok(Reply::Object(self.info(id, object))),
        }
    }

    pub(crate) fn lookup_object(&self, id: ObjectId) -> Result<Reply, DirectoryError> {
        Ok(Reply::Object(self.info(id, self.known_object(id)?)))
    }

    pub(crate) fn lookup_page(&self, page: PageNumber) -> Result<Reply, DirectoryError> {
        let id = self.state.page_owner(page).ok_or(DirectoryError::UnownedPage { page })?;
        match self.known_object(id)?.stage {
            Stage::Making { .. } => Err(DirectoryError::UnownedPage { page }),
            _ => self.lookup_object(id),
        }
    }

    pub(crate) fn list(&self, prefix: &str, after: Option<&ObjectName>, limit: u32) -> Reply {
        let limit = limit.clamp(1, LIST_MAX) as usize;
        // The prefix without its slashes sorts before every name that starts with it.
        let first = ObjectName::parse(prefix.trim_end_matches('/')).ok();
        let bound = match (after, &first) {
            (Some(after), Some(first)) if after < first => Bound::Included(first),
            (Some(after), _) => Bound::Excluded(after),
            (None, Some(first)) => Bound::Included(first),
            (None, None) => Bound::Unbounded,
        };
        let names = self.state.names.range((bound, Bound::Unbounded));
        let near = names.take_while(|(name, _)| name.as_str() < prefix || name.as_str().starts_with(prefix));
        let wanted = near.filter(|(name, _)| name.as_str().starts_with(prefix));
        let infos = wanted.filter_map(|(_, id)| {
            let info = self.info(*id, self.object(*id)?);
            matches!(info.state, ObjectState::Sealed | ObjectState::Mutable).then_some(info)
        });
        let mut bytes = 0;
        let mut objects = Vec::new();
        let mut more = false;
        for info in infos {
            bytes += encoded_bytes_max(&info);
            more = objects.len() == limit || (bytes > LIST_BYTES_MAX && !objects.is_empty());
            if more {
                break;
            }
            objects.push(info);
        }
        Reply::List { objects, more }
    }
}

/// What the entry takes in a message at the most.
fn encoded_bytes_max(info: &ObjectInfo) -> usize {
    // Fixed fields: eight numbers of at most 10 bytes and a digest of 32.
    let homes = info.homes.iter().chain(&info.homes_down);
    let home_bytes = |home: &HomeInfo| 40 + home.rack.as_str().len() + home.address.len();
    128 + info.name.as_str().len() + homes.map(home_bytes).sum::<usize>()
}
