//! Other back ends for a program that runs: new ones at once, old ones emptied in the background.

use crate::engine::Engine;
use crate::store::{Life, Store};

/// A back end that somebody asks for by its words, not opened yet.
pub struct Wanted {
    /// What it is called when it is open.
    pub name: String,
    /// The room that it has for content.
    pub room_bytes: u64,
    /// Opens it. The error ends in a hint.
    pub open: Box<dyn FnOnce() -> Result<Box<dyn Store>, String>>,
}

/// Understands the words of a back end. The error ends in a hint.
pub type Understand = dyn Fn(&str) -> Result<Wanted, String> + Send;

/// Makes these the back ends of a run. All that can be refused is tried before anything of the old ones is changed.
pub(super) fn switch(engine: &Engine, understand: &Understand, words: &[String]) -> Result<(), String> {
    let stores = &engine.stores;
    let mut wanted: Vec<Wanted> = Vec::new();
    for word in words {
        let one = understand(word)?;
        if wanted.iter().any(|other| other.name == one.name) {
            return Err(format!("{} is named twice (hint: name each back end once)", one.name));
        }
        wanted.push(one);
    }
    if wanted.len() < stores.copies() {
        return Err(format!(
            "each byte is kept in {} back ends, and {} are named (hint: name more)",
            stores.copies(),
            wanted.len()
        ));
    }
    let before = stores.members();
    let active = || before.iter().filter(|member| member.life == Life::Active);
    let held = before.iter().map(|member| member.held_bytes).sum::<u64>();
    let room = wanted.iter().fold(0u64, |sum, one| sum.saturating_add(one.room_bytes));
    if room < held {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        return Err(format!(
            "{} MiB are far, and these back ends have room for {} MiB (hint: give them more room, or name another one beside)",
            mib(held),
            mib(room)
        ));
    }
    let old: Vec<String> = active()
        .map(|member| member.name.clone())
        .filter(|name| wanted.iter().all(|one| one.name != *name))
        .collect();
    let mut opened = Vec::new();
    for one in wanted {
        if active().all(|member| member.name != one.name) {
            opened.push((one.name, (one.open)()?));
        }
    }
    let mut added: Vec<String> = Vec::new();
    for (name, store) in opened {
        if let Err(error) = stores.add(store) {
            for name in added {
                // Content that went there meanwhile goes to the old ones, which have room: they had it before.
                let _ = stores.retire(&name);
            }
            return Err(error.to_string());
        }
        added.push(name);
    }
    for name in old {
        stores.retire(&name).map_err(|error| error.to_string())?;
    }
    engine.lock().counters.stall_ns_max = 0;
    Ok(())
}
