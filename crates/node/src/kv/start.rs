//! Making the stores of a node: anew, or out of what the node before it has left.

use super::behind::{Behind, KvWatermarks};
use super::disk::{DiskTier, KvDisk};
use super::files::{Files, KvFolders, Left, mapped};
use super::removals::Removals;
use super::spaces::{self, Spaces};
use super::users::Users;
use super::{KvStores, State, UserStore, racks};
use crate::options::NodeOptions;
use crate::refused::{Refused, errno};
use hinterland_kv::{Geometry, Limits, Owned, Point, Restored, Restoring, Store, View, settle};
use hinterland_os::Coherence;
use hinterland_policy::EvictionKind;
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

/// How stores are made.
#[derive(Clone)]
pub(super) struct Plan {
    pub capacity_bytes: u64,
    pub order: EvictionKind,
    pub disk: Option<KvDisk>,
    pub coherence: Coherence,
    /// Where files lie that outlive a node.
    pub folders: KvFolders,
    /// Whether this node makes some.
    pub keeps: bool,
    /// Whether readers check what they copy.
    pub verifies: bool,
    /// Whether writers take checksums while they copy.
    pub writers_sum: bool,
    pub watermarks: Option<KvWatermarks>,
}

/// What a store begins with.
struct Begun {
    files: Files,
    books: Owned,
    store: Store<Owned>,
    namespaces: Spaces,
    restored: Restored,
    /// Whether the list of namespaces is this node's.
    has_list: bool,
}

impl KvStores {
    /// Stores as a node is told to have, and those that the node before it has left; what became of these, in words.
    pub fn start(options: &NodeOptions, folders: KvFolders) -> (Self, Vec<String>) {
        let plan = Plan {
            capacity_bytes: options.kv_capacity_bytes,
            order: options.eviction,
            disk: options.kv_disk.clone(),
            coherence: options.coherence,
            folders,
            keeps: options.kv_keep,
            verifies: options.kv_verify,
            writers_sum: options.kv_writers_sum,
            watermarks: options.kv_watermarks.filter(|_| options.kv_disk.is_some()),
        };
        let stores = Self { plan, users: Users::default(), is_ending: AtomicBool::new(false) };
        let mut messages = Vec::new();
        for user in stores.plan.folders.users() {
            stores.start_user(user, &mut messages);
        }
        (stores, messages)
    }

    fn start_user(&self, user: u32, messages: &mut Vec<String>) {
        if !self.plan.keeps {
            messages
                .push(format!("KV blocks of user {user} are dropped: this node keeps none (--kv-keep off)"));
            return self.plan.drop_left(user);
        }
        match UserStore::new(user, &self.plan) {
            Ok((store, words)) => {
                messages.extend(words);
                let store = Arc::new(store);
                store.start_behind();
                self.users.insert(user, store);
            }
            Err(refused) => {
                messages.push(format!("KV blocks of user {user} are dropped: {refused}"));
                self.plan.drop_left(user);
            }
        }
    }
}

impl Plan {
    /// Drops what a node has left of a user. Where there is a disk, it stays known whose blocks were replaced: until the disk has noted that,
    /// it has old ones.
    pub fn drop_left(&self, user: u32) {
        let replaced = if self.disk.is_some() { self.replaced(user) } else { Spaces::new() };
        if replaced.is_empty() {
            return self.folders.remove(user);
        }
        // One that cannot be written stays as it was, with more in it.
        let _ = spaces::save(&self.folders.spaces(user), &replaced);
        self.folders.remove_files(user);
    }

    /// Namespaces whose blocks were replaced, of those that a node of before has listed: the disk may have the old ones, whatever became of
    /// the memory.
    fn replaced(&self, user: u32) -> Spaces {
        spaces::replaced(&spaces::load(&self.folders.spaces(user)).unwrap_or_default())
    }
}

impl UserStore {
    /// The store of a user, and what is to be said about it.
    pub(super) fn new(user: u32, plan: &Plan) -> Result<(Self, Vec<String>), Refused> {
        let geometry = Store::<Owned>::geometry_for(plan.capacity_bytes)
            .with_coherence(plan.coherence)
            .with_verify(plan.verifies)
            .with_sums(plan.writers_sum);
        if geometry.blocks_bytes() == 0 {
            let text = format!(
                "this node lends {} bytes for KV blocks, less than one chunk (hint: start it with --kv-capacity 1G)",
                plan.capacity_bytes
            );
            return Err(Refused::new(errno::ENOSPC, text));
        }
        let mut messages = Vec::new();
        let Begun { files, books, mut store, namespaces, restored, has_list } =
            begin(user, plan, geometry, &mut messages)?;
        let Files { books: books_file, blocks, touches, are_kept } = &files;
        let view = View::map_guarded(books_file, blocks, touches)
            .map_err(|error| Refused::new(errno::EIO, error.to_string()))?;
        let view = Arc::new(view);
        let touched = Owned::new(mapped(touches)?, plan.coherence)?;
        if *are_kept {
            store.sum_behind();
        }
        if plan.verifies {
            let view = Arc::clone(&view);
            store.sum_before(Box::new(move |offset, bytes| view.sum(offset, bytes)));
        }
        let (disk, disk_refusal) = open_disk(plan, user, &mut store, &view, &namespaces);
        files.seal()?;
        let is_listed = has_list && (*are_kept || plan.disk.is_some());
        let spaces_path = is_listed.then(|| plan.folders.spaces(user));
        let store = Self {
            user,
            pages: blocks.kind(),
            books,
            touched,
            view,
            tally: racks::Tally::default(),
            disk,
            disk_refusal,
            spaces_path,
            restored,
            order: plan.order,
            verifies: plan.verifies,
            looks_ahead: std::env::var_os("HINTERLAND_NO_LOOKAHEAD").is_none_or(|value| value != "1"),
            watermarks: plan.watermarks,
            behind: Behind::default(),
            state: Mutex::new(State {
                store,
                namespaces,
                clears: 0,
                closed: HashMap::new(),
                removals: Removals::default(),
            }),
            files,
        };
        if let Some(path) = &store.spaces_path
            && let Err(error) = store.write_spaces(path, &store.lock().namespaces)
        {
            messages.push(format!("{}: {error}: KV blocks will not outlive this node", path.display()));
        }
        Ok((store, messages))
    }
}

/// What the node before this one has left, or empty files.
fn begin(user: u32, plan: &Plan, geometry: Geometry, messages: &mut Vec<String>) -> Result<Begun, Refused> {
    let folders = &plan.folders;
    if !plan.keeps {
        return begin_anew(Files::anonymous(&geometry)?, plan.replaced(user), plan, geometry);
    }
    match folders.take(user, &geometry) {
        Left::Whole(files) => match spaces::load(&folders.spaces(user)) {
            Ok(namespaces) => return restore(user, files, namespaces, plan, geometry, messages),
            Err(damaged) => messages.push(format!("KV blocks of user {user} are dropped: {damaged}")),
        },
        Left::Unfit(reason) => messages.push(format!("KV blocks of user {user} are dropped: {reason}")),
        Left::InUse => {
            messages.push(format!(
                "KV blocks of user {user} will not outlive this node: another one uses their files (hint: give each node a --state of its own)"
            ));
            let begun = begin_anew(Files::anonymous(&geometry)?, Spaces::new(), plan, geometry)?;
            return Ok(Begun { has_list: false, ..begun });
        }
        Left::Nothing => {}
    }
    let namespaces = plan.replaced(user);
    match folders.make(user, &geometry) {
        Ok(files) => begin_anew(files, namespaces, plan, geometry),
        Err(error) => {
            messages.push(format!("KV blocks of user {user} will not outlive this node: {error}"));
            begin_anew(Files::anonymous(&geometry)?, namespaces, plan, geometry)
        }
    }
}

/// An empty store.
fn begin_anew(files: Files, namespaces: Spaces, plan: &Plan, geometry: Geometry) -> Result<Begun, Refused> {
    settle(&Owned::new(mapped(&files.touches)?, plan.coherence)?, Point::NewTouches);
    settle(&Owned::new(mapped(&files.blocks)?, plan.coherence)?, Point::NewBlocks);
    let books = Owned::new(mapped(&files.books)?, plan.coherence)?;
    let store = Store::new(books.clone(), geometry, plan.order);
    Ok(Begun { files, books, store, namespaces, restored: Restored::default(), has_list: true })
}

/// The store that the node before this one has left.
fn restore(
    user: u32,
    files: Files,
    mut namespaces: Spaces,
    plan: &Plan,
    geometry: Geometry,
    messages: &mut Vec<String>,
) -> Result<Begun, Refused> {
    let books = Owned::new(mapped(&files.books)?, plan.coherence)?;
    let limits = spaces::limits_of(&namespaces);
    let mut is_held = |mark| files.is_held(mark);
    let mut restoring = Restoring { namespaces: &limits, is_held: &mut is_held };
    let (mut store, restored) = Store::restore(books.clone(), geometry, plan.order, &mut restoring);
    // What nobody has blocks in and nothing is set for is forgotten. Of blocks that were replaced the disk may have the old ones: the node
    // before may have been killed before it had noted that there.
    namespaces.retain(|number, known| {
        let number = hinterland_kv::Namespace(*number);
        let is_set = known.limits != Limits::default() || known.is_memory_only;
        is_set || store.space(number).blocks > 0
    });
    for (number, known) in &namespaces {
        store.set_limits(hinterland_kv::Namespace(*number), known.limits);
    }
    messages.push(format!(
        "KV blocks of user {user}: {} are here again, {} were not whole, {} slots may still be written by programs of before",
        restored.blocks, restored.dropped, restored.abandoned
    ));
    Ok(Begun { files, books, store, namespaces, restored, has_list: true })
}

/// A disk that cannot be used makes misses of hits, and nothing else.
fn open_disk(
    plan: &Plan,
    user: u32,
    store: &mut Store<Owned>,
    view: &Arc<View>,
    namespaces: &Spaces,
) -> (Option<Arc<DiskTier>>, Option<String>) {
    match plan.disk.as_ref().map(|disk| DiskTier::open(disk, user)).transpose() {
        Ok(disk) => {
            if let Some(tier) = &disk {
                for (number, known) in namespaces {
                    if known.is_memory_only {
                        tier.forbid(*number, known.fingerprint);
                    } else {
                        tier.know(*number, known.fingerprint);
                    }
                }
                let (tier, view) = (Arc::clone(tier), Arc::clone(view));
                store.set_keeper(Box::new(move |leaving| tier.stage(&view, leaving)));
            }
            (disk, None)
        }
        Err(refused) => {
            tracing::error!(%refused, "KV blocks that leave the memory are lost");
            (None, Some(refused.text))
        }
    }
}
