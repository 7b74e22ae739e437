//! One folder's entries, made out of sorted object names.

use crate::source::{Source, SourceError};
use crate::tree::join;
use hinterland_proto::control::{ObjectInfo, ObjectState};
use hinterland_types::ObjectName;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Names asked for at once: the pool's own limit.
const PAGE_NAMES: u32 = 1000;
/// Sorts behind every name of a folder that people make, so that a listing can jump over the folder.
const LAST_CHARACTER: char = char::MAX;

/// One entry of a folder.
#[derive(Clone, Debug)]
pub(crate) enum Child {
    /// Some object's name goes on behind this component.
    Folder,
    /// A sealed object.
    File(Arc<ObjectInfo>),
}

/// The entries of the folder at `path`, sorted by name. Objects that are not sealed are left out. Where
/// an object and a folder have one name, the object is shown.
///
/// Takes one request to the pool for each 1000 objects right in the folder and at most one more for each
/// folder in it, however many objects that one holds.
///
/// # Errors
/// [`SourceError`] of the pool.
pub(crate) fn children(source: &dyn Source, path: &str) -> Result<BTreeMap<String, Child>, SourceError> {
    let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
    let mut found = BTreeMap::new();
    let mut after: Option<ObjectName> = None;
    loop {
        let (objects, more) = source.list(&prefix, after.as_ref(), PAGE_NAMES)?;
        let Some(last) = objects.last().map(|info| info.name.clone()) else { return Ok(found) };
        for info in objects {
            add(&mut found, &prefix, info);
        }
        if !more {
            return Ok(found);
        }
        after = Some(behind(&prefix, last));
    }
}

/// Whether any object's name goes on behind `path`.
///
/// # Errors
/// [`SourceError`] of the pool.
pub(crate) fn is_folder(source: &dyn Source, path: &str) -> Result<bool, SourceError> {
    Ok(!source.list(&format!("{path}/"), None, 1)?.0.is_empty())
}

fn add(found: &mut BTreeMap<String, Child>, prefix: &str, info: ObjectInfo) {
    let Some(rest) = info.name.as_str().strip_prefix(prefix) else { return };
    match rest.split_once('/') {
        Some((component, _)) => {
            found.entry(component.to_owned()).or_insert(Child::Folder);
        }
        None if info.state == ObjectState::Sealed => {
            found.insert(rest.to_owned(), Child::File(Arc::new(info)));
        }
        None => {}
    }
}

/// Where the next page starts: behind the last name, or behind the whole folder that it lies in.
fn behind(prefix: &str, last: ObjectName) -> ObjectName {
    let component = last.as_str().strip_prefix(prefix).and_then(|rest| rest.split_once('/'));
    let Some((component, _)) = component else { return last };
    let folder = format!("{prefix}{component}");
    ObjectName::parse(&join(&folder, &LAST_CHARACTER.to_string())).unwrap_or(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::tests::{Names, object};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn shown(names: &[String], path: &str) -> BTreeSet<String> {
        let objects = names.iter().enumerate().map(|(i, name)| object(i as u64 + 2, name, 1)).collect();
        let children = children(&Names(objects), path).unwrap();
        children
            .into_iter()
            .map(|(name, child)| if matches!(child, Child::Folder) { format!("{name}/") } else { name })
            .collect()
    }

    fn strings(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_component_is_one_folder_however_many_objects_it_holds() {
        let mut names: Vec<String> = (0..2500).map(|i| format!("many/{i:04}")).collect();
        names.extend(strings(&["a", "many.txt", "z/y/x"]));
        assert_eq!(shown(&names, ""), BTreeSet::from(["a", "many/", "many.txt", "z/"].map(String::from)));
        assert_eq!(shown(&names, "many").len(), 2500);
        assert_eq!(shown(&names, "z"), BTreeSet::from(["y/".to_owned()]));
    }

    #[test]
    fn an_object_hides_a_folder_of_its_name() {
        assert_eq!(shown(&strings(&["a", "a/b"]), ""), BTreeSet::from(["a".to_owned()]));
    }

    #[test]
    fn an_object_that_is_not_sealed_is_not_shown() {
        let mut region = object(2, "region", 1);
        region.state = ObjectState::Mutable;
        assert!(children(&Names(vec![region]), "").unwrap().is_empty());
    }

    #[test]
    fn a_folder_is_there_only_with_a_name_behind_it() {
        let names = Names(vec![object(2, "ab/c", 1)]);
        assert!(is_folder(&names, "ab").unwrap());
        assert!(!is_folder(&names, "a").unwrap());
    }

    proptest! {
        /// Model: the first component of every name below the folder.
        #[test]
        fn a_listing_has_the_first_component_of_every_name(
            names in proptest::collection::btree_set("[ab]{1,2}(/[ab]{1,2}){0,2}", 0..40),
        ) {
            let names: Vec<String> = names.into_iter().collect();
            let mut files = BTreeSet::new();
            let mut folders = BTreeSet::new();
            for name in &names {
                match name.split_once('/') {
                    Some((component, _)) => folders.insert(component.to_owned()),
                    None => files.insert(name.clone()),
                };
            }
            let expected: BTreeSet<String> = folders
                .difference(&files)
                .map(|folder| format!("{folder}/"))
                .chain(files.iter().cloned())
                .collect();
            prop_assert_eq!(shown(&names, ""), expected);
        }
    }
}
