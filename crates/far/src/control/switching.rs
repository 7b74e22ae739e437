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

/// Makes these the back ends of a run (without any, those that it has stay), with each byte in so many of them. All that can be refused
/// is tried before anything of the old ones is changed.
pub(super) fn switch(
    engine: &Engine,
    understand: &Understand,
    words: &[String],
    copies: Option<u8>,
) -> Result<(), String> {
    let stores = &engine.stores;
    if words.is_empty() && copies.is_none() {
        return Err("neither back ends nor a number of copies are named (hint: name some)".to_owned());
    }
    let copies = copies.map_or(stores.copies(), usize::from).max(1);
    if words.is_empty() {
        let active = stores.members().iter().filter(|member| member.life == Life::Active).count();
        enough(active, copies)?;
        stores.set_copies(copies);
        engine.lock().counters.stall_ns_max = 0;
        return Ok(());
    }
    let mut wanted: Vec<Wanted> = Vec::new();
    for word in words {
        let one = understand(word)?;
        if wanted.iter().any(|other| other.name == one.name) {
            return Err(format!("{} is named twice (hint: name each back end once)", one.name));
        }
        wanted.push(one);
    }
    enough(wanted.len(), copies)?;
    let before = stores.members();
    let active = || before.iter().filter(|member| member.life == Life::Active);
    let held = before.iter().map(|member| member.held_bytes).sum::<u64>();
    let held = held.saturating_mul(copies as u64) / stores.copies() as u64;
    let room = wanted.iter().fold(0u64, |sum, one| sum.saturating_add(one.room_bytes));
    if room < held {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        return Err(format!(
            "{} MiB are to be far, and these back ends have room for {} MiB (hint: give them more room, or name another one beside)",
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
    stores.set_copies(copies);
    for name in old {
        stores.retire(&name).map_err(|error| error.to_string())?;
    }
    engine.lock().counters.stall_ns_max = 0;
    Ok(())
}

fn enough(back_ends: usize, copies: usize) -> Result<(), String> {
    if back_ends < copies {
        return Err(format!(
            "{copies} copies of each byte need as many back ends, and there would be {back_ends} (hint: name more with --far, or ask for \
             fewer with --copies)"
        ));
    }
    Ok(())
}
