//! Rebuilds the state from the records of the store, and refuses records that contradict each other.

use crate::error::{Contradiction, RecoverError};
use crate::former::FormerPools;
use crate::record::{
    DOUBTED_EPOCHS_KEY, DOUBTED_KEY, Doubted, FORMAT, FORMAT_OLDEST, FORMER_KEY, META_KEY, MetaRecord,
    OUTDATED_KEYS, Record, Runs, Table, format_of,
};
use crate::state::State;
use hinterland_types::limits::OBJECT_BYTES_MAX;
use hinterland_types::{Epoch, NodeId, ObjectId, ObjectName, PageNumber};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;

use crate::record::{
    AnswerRecord, MemberRecord, ObjectRecord, PageHomeRecord, PageMoveRecord, PageRecord, RegionRecord,
};

/// The tables as they stand in the store, before they are compared with each other.
#[derive(Default)]
struct Tables {
    meta: Option<MetaRecord>,
    doubted: Runs,
    doubted_epochs: Option<Doubted<Epoch>>,
    former: FormerPools,
    outdated: bool,
    members: BTreeMap<NodeId, MemberRecord>,
    objects: BTreeMap<ObjectId, ObjectRecord>,
    names: BTreeMap<ObjectName, ObjectId>,
    pages: BTreeMap<PageNumber, PageRecord>,
    regions: BTreeMap<ObjectId, RegionRecord>,
    homes: BTreeMap<PageNumber, PageHomeRecord>,
    moves: BTreeMap<PageNumber, PageMoveRecord>,
    answers: BTreeMap<(NodeId, u16), AnswerRecord>,
    claims: BTreeMap<ObjectId, Epoch>,
}

/// Rebuilds the state; no record at all is the state of a pool that has just begun.
pub(crate) fn recover(records: impl IntoIterator<Item = Record>) -> Result<State, RecoverError> {
    let records: Vec<Record> = records.into_iter().collect();
    let mut state = State::empty();
    if records.is_empty() {
        return Ok(state);
    }
    check_format(&records)?;
    let mut tables = Tables::default();
    records.iter().try_for_each(|record| read(&mut tables, record))?;
    state.meta = tables.meta.ok_or(RecoverError::NoMeta)?;
    state.doubted = tables.doubted;
    state.doubted_epochs = tables.doubted_epochs;
    state.former = tables.former;
    state.outdated = tables.outdated;
    // A meta record of an older format is written anew with the first change.
    let has_names = tables.members.values().any(|member| member.name.is_some());
    let format = format_of(&state.doubted, state.doubted_epochs, &state.former, has_names);
    state.stored = state.meta.format == format;
    state.meta.format = format;
    state.members = tables.members;
    state.regions = tables.regions;
    state.page_homes = tables.homes;
    state.page_moves = tables.moves;
    state.answers = tables.answers;
    for (id, object) in tables.objects {
        state.put_in(id, object)?;
    }
    // A release that does not know the table leaves the claims of what it removes.
    state.claims = tables.claims;
    state.claims.retain(|id, _| state.objects.get(id).is_some_and(ObjectRecord::claims_name));
    compare_names(&state, &tables.names)?;
    compare_pages(&state, &tables.pages)?;
    state.check_objects()?;
    Ok(state)
}

/// Refuses a format of which nothing is known, before anything else of the store is looked at: of a later release's records nothing can be said.
fn check_format(records: &[Record]) -> Result<(), RecoverError> {
    let is_meta = |record: &&Record| record.table == Table::Meta && record.key == META_KEY;
    check_format_of(records.iter().find(is_meta).ok_or(RecoverError::NoMeta)?)
}

/// The same by the record that says it.
pub(crate) fn check_format_of(meta: &Record) -> Result<(), RecoverError> {
    // It comes first in the record in every format, so it can be read alone.
    match postcard::take_from_bytes::<u32>(&meta.value) {
        Ok((found, _)) if (FORMAT_OLDEST..=FORMAT).contains(&found) => Ok(()),
        Ok((found, _)) => Err(RecoverError::OtherFormat { found }),
        Err(_) => Err(RecoverError::Unreadable { table: meta.table, key: meta.key.clone() }),
    }
}

fn read(tables: &mut Tables, record: &Record) -> Result<(), RecoverError> {
    let unreadable = || RecoverError::Unreadable { table: record.table, key: record.key.clone() };
    match record.table {
        Table::Meta => read_meta(tables, record)?,
        Table::Members => {
            let member = MemberRecord::decode(&record.value).ok_or_else(unreadable)?;
            tables.members.insert(NodeId(number(record)?), member);
        }
        Table::Objects => {
            let object: ObjectRecord = value(record)?;
            if object.bytes > OBJECT_BYTES_MAX {
                return Err(unreadable());
            }
            tables.objects.insert(ObjectId(number(record)?), object);
        }
        Table::Names => {
            let name = std::str::from_utf8(&record.key).ok().and_then(|text| ObjectName::parse(text).ok());
            tables.names.insert(name.ok_or_else(unreadable)?, value(record)?);
        }
        Table::Pages => {
            tables.pages.insert(page(record)?, value(record)?);
        }
        Table::Regions => {
            tables.regions.insert(ObjectId(number(record)?), value(record)?);
        }
        Table::Homes => {
            tables.homes.insert(page(record)?, value(record)?);
        }
        Table::Moves => {
            tables.moves.insert(page(record)?, value(record)?);
        }
        Table::Answers => {
            tables.answers.insert(slot(record)?, value(record)?);
        }
        Table::Claims => {
            tables.claims.insert(ObjectId(number(record)?), value(record)?);
        }
    }
    Ok(())
}

fn read_meta(tables: &mut Tables, record: &Record) -> Result<(), RecoverError> {
    let unreadable = || RecoverError::Unreadable { table: record.table, key: record.key.clone() };
    let outdated = OUTDATED_KEYS.iter().position(|key| *key == record.key);
    tables.outdated |= outdated.is_some();
    let key = match outdated {
        Some(place) => [DOUBTED_KEY, DOUBTED_EPOCHS_KEY, FORMER_KEY][place],
        None => record.key.as_slice(),
    };
    match key {
        META_KEY => tables.meta = Some(value(record)?),
        DOUBTED_KEY => tables.doubted = Runs::decode(&record.value).ok_or_else(unreadable)?,
        DOUBTED_EPOCHS_KEY => tables.doubted_epochs = Some(value(record)?),
        FORMER_KEY => tables.former = value(record)?,
        _ => return Err(unreadable()),
    }
    Ok(())
}

fn number(record: &Record) -> Result<u64, RecoverError> {
    let bytes = <[u8; 8]>::try_from(record.key.as_slice())
        .map_err(|_| RecoverError::Unreadable { table: record.table, key: record.key.clone() })?;
    Ok(u64::from_be_bytes(bytes))
}

fn slot(record: &Record) -> Result<(NodeId, u16), RecoverError> {
    let unreadable = || RecoverError::Unreadable { table: record.table, key: record.key.clone() };
    let (node, slot) = record.key.split_first_chunk::<8>().ok_or_else(unreadable)?;
    let slot = <[u8; 2]>::try_from(slot).map_err(|_| unreadable())?;
    Ok((NodeId(u64::from_be_bytes(*node)), u16::from_be_bytes(slot)))
}

fn page(record: &Record) -> Result<PageNumber, RecoverError> {
    let bytes = <[u8; 4]>::try_from(record.key.as_slice()).ok();
    bytes
        .and_then(|bytes| PageNumber::new(u32::from_be_bytes(bytes)))
        .ok_or_else(|| RecoverError::Unreadable { table: record.table, key: record.key.clone() })
}

fn value<T: DeserializeOwned>(record: &Record) -> Result<T, RecoverError> {
    let unreadable = || RecoverError::Unreadable { table: record.table, key: record.key.clone() };
    match postcard::take_from_bytes(&record.value) {
        Ok((value, [])) => Ok(value),
        _ => Err(unreadable()),
    }
}

fn compare_names(state: &State, names: &BTreeMap<ObjectName, ObjectId>) -> Result<(), Contradiction> {
    for (name, object) in names {
        let has_it = |id| state.objects.get(id).is_some_and(|o| o.claims_name() && o.name == *name);
        if !has_it(object) {
            return Err(Contradiction::NameWithoutObject { name: name.clone(), object: *object });
        }
    }
    let nameless = state.objects.iter().find(|(id, o)| o.claims_name() && names.get(&o.name) != Some(id));
    match nameless {
        Some((id, object)) => {
            Err(Contradiction::ObjectWithoutName { object: *id, name: object.name.clone() })
        }
        None => Ok(()),
    }
}

fn compare_pages(state: &State, pages: &BTreeMap<PageNumber, PageRecord>) -> Result<(), Contradiction> {
    if let Some((page, owner)) = pages.iter().find(|(page, owner)| state.pages.get(page) != Some(owner)) {
        return Err(Contradiction::PageWithoutOwner { page: *page, object: owner.object });
    }
    match state.pages.iter().find(|(page, _)| !pages.contains_key(page)) {
        Some((_, owner)) => Err(Contradiction::OwnerWithoutPage { object: owner.object }),
        None => Ok(()),
    }
}
