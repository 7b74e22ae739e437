//! Other back ends for a program that runs: new ones at once, old ones emptied in the background.

use crate::engine::Engine;
use crate::store::{Codec, Life, MemberState, Store, Stores};
use std::sync::Arc;

/// A back end that somebody asks for by its words, not opened yet.
pub struct Wanted {
    /// What it is called when it is open.
    pub name: String,
    /// The room that it has, in bytes as it counts them.
    pub room_bytes: u64,
    /// Its words say how much room. Without, one that is in use already keeps what it has.
    pub is_sized: bool,
    /// How it compresses content, if it does: its room counts what comes out.
    pub codec: Option<Codec>,
    /// Opens it. The error ends in a hint.
    pub open: Box<dyn FnOnce() -> Result<Box<dyn Store>, String>>,
}

/// Understands the words of a back end. The error ends in a hint.
pub type Understand = dyn Fn(&str) -> Result<Wanted, String> + Send;

/// What was done and is undone where something else is refused.
#[derive(Default)]
struct Done {
    added: Vec<String>,
    /// With the sizes before.
    resized: Vec<(String, u64)>,
}

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
    has_room(stores, &wanted, copies)?;
    let mut done = Done::default();
    let changed = change(stores, wanted, copies, &mut done);
    if changed.is_err() {
        done.undo(stores);
    }
    changed?;
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

fn in_use<'members>(members: &'members [MemberState], name: &str) -> Option<&'members MemberState> {
    members.iter().find(|member| member.life == Life::Active && member.name == name)
}

/// Refuses back ends that have too little room for what is far. Where they compress, a few contents tell how well.
fn has_room(stores: &Stores, wanted: &[Wanted], copies: usize) -> Result<(), String> {
    let members = stores.members();
    let held = members.iter().map(|member| member.held_bytes).sum::<u64>();
    let held = held.saturating_mul(copies as u64) / stores.copies() as u64;
    let room = wanted.iter().fold(0u64, |sum, one| {
        let known = in_use(&members, &one.name).filter(|_| !one.is_sized);
        let bytes = known.map_or(one.room_bytes, |member| member.limit_bytes);
        // More than any memory stays more than that.
        let bytes = one.codec.map_or(bytes, |codec| (bytes as f64 * stores.compression(codec)) as u64);
        sum.saturating_add(bytes)
    });
    if room < held {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        return Err(format!(
            "{} MiB are to be far, and these back ends have room for {} MiB (hint: give them more room, or name another one beside)",
            mib(held),
            mib(room)
        ));
    }
    Ok(())
}

/// Opens what is new, gives what is in use the size that was named, and retires all others.
fn change(stores: &Arc<Stores>, wanted: Vec<Wanted>, copies: usize, done: &mut Done) -> Result<(), String> {
    let members = stores.members();
    let names: Vec<String> = wanted.iter().map(|one| one.name.clone()).collect();
    let (mut opened, mut resized) = (Vec::new(), Vec::new());
    for one in wanted {
        match in_use(&members, &one.name) {
            None => opened.push((one.name, (one.open)()?)),
            Some(member) if one.is_sized && member.limit_bytes != one.room_bytes => {
                resized.push((one.name, member.limit_bytes, one.room_bytes));
            }
            Some(_) => {}
        }
    }
    for (name, before, bytes) in resized {
        stores.resize(&name, bytes).map_err(|error| error.to_string())?;
        done.resized.push((name, before));
    }
    for (name, store) in opened {
        stores.add(store).map_err(|error| error.to_string())?;
        done.added.push(name);
    }
    stores.keep_only(&names, copies).map_err(|error| error.to_string())
}

impl Done {
    /// Leaves everything as it was.
    fn undo(self, stores: &Arc<Stores>) {
        for name in self.added {
            // Content that went there meanwhile goes to the old ones, which have room: they had it before.
            let _ = stores.retire(&name);
        }
        for (name, before) in self.resized {
            // One that has content there already stays larger, which nobody misses.
            let _ = stores.resize(&name, before);
        }
    }
}
