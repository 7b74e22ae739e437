//! The image that a GPU takes out of a fat binary.

use crate::container::{Entry, Kind};
use crate::target::Capability;

/// The entry that a GPU of this capability takes: machine code made for it or for an older model of its generation, the
/// closest and most specific first; else the newest PTX that is not newer than the GPU.
pub fn choose<'bytes>(entries: &[Entry<'bytes>], gpu: Capability) -> Option<Entry<'bytes>> {
    let machine_code =
        entries.iter().filter(|entry| entry.kind == Kind::MachineCode && entry.target.runs_on(gpu));
    newest(machine_code).or_else(|| choose_assembly(entries, gpu))
}

/// The newest PTX that compiles for a GPU of this capability, whether or not there is machine code for it: what a device in
/// software takes.
pub fn choose_assembly<'bytes>(entries: &[Entry<'bytes>], gpu: Capability) -> Option<Entry<'bytes>> {
    newest(entries.iter().filter(|entry| entry.kind == Kind::Assembly && entry.target.compiles_for(gpu)))
}

/// The first of those that are for the newest GPU, and then most specific.
fn newest<'list, 'bytes: 'list>(
    candidates: impl Iterator<Item = &'list Entry<'bytes>>,
) -> Option<Entry<'bytes>> {
    let rank = |entry: &Entry<'_>| (entry.target.capability, entry.target.specific);
    candidates.fold(None, |best, entry| match best {
        Some(best) if rank(&best) >= rank(entry) => Some(best),
        _ => Some(*entry),
    })
}
