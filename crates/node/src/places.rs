//! Where a node's memory lies: objects, small objects, KV blocks.

use crate::kv::KvFolders;
use crate::leftovers::{Marked, SHARED_MEMORY, return_claim_of_before};
use crate::node::NodeError;
use crate::options::{BackingChoice, NodeOptions};
use crate::own_folder::{own_folder, refuse_folder};
use crate::state::{memory_name, own_number};
use hinterland_os::container;
use hinterland_os::probe;
use hinterland_os::{Backing, PageKind, choose_backing, huge_pages};
use hinterland_types::NodeId;
use std::fs;
use std::path::{Path, PathBuf};

/// The memory of a node, and what there is to say of it.
pub(crate) fn open_backing(options: &NodeOptions) -> Result<(Backing, Vec<String>), NodeError> {
    if let Some(nodes) = &options.numa {
        nodes.clone().choose()?;
    }
    let own = own_number(&options.state)?;
    return_claim_of_before(&shared_folder(NodeId(own)));
    let folder = options.state.join(memory_name(own));
    let wanted = options.capacity_bytes + options.cache_budget_bytes;
    let backing = match &options.backing {
        BackingChoice::Auto => choose_backing(None, &folder, wanted)?,
        BackingChoice::Pages(kind) => choose_backing(Some(*kind), &folder, wanted)?,
        BackingChoice::Folder(path) => {
            refuse_folder(path)?;
            let folder = own_folder(path, NodeId(own), &options.state.join("objects"))
                .map_err(|source| NodeError::State { path: path.clone(), source })?;
            Backing {
                kind: PageKind::Base4K,
                explanation: format!("{} in {}", kind_of_files(&folder), folder.display()),
                folder,
                mounted: false,
                overcommit_before: None,
            }
        }
    };
    if backing.kind == PageKind::TransparentHuge && options.kv_keep {
        let bytes = wanted + options.kv_capacity_bytes;
        // Room for the files and for a partial page of each. Without it KV blocks lie elsewhere.
        let _ = huge_pages::resize_huge_tmpfs(&backing.folder, bytes + bytes / 8 + (64 << 20));
    }
    let from = options.numa.as_ref().map_or_else(String::new, |nodes| format!(", of NUMA nodes {nodes}"));
    let mut messages = vec![format!("memory: {}{from}", backing.explanation)];
    if backing.kind == PageKind::Base4K && !matches!(options.backing, BackingChoice::Folder(_)) {
        // KV blocks that are not kept lie elsewhere.
        let blocks = if options.kv_keep { options.kv_capacity_bytes } else { 0 };
        messages.extend(too_small(&backing.folder, wanted + blocks));
    }
    Ok((backing, messages))
}

fn kind_of_files(folder: &Path) -> &'static str {
    if huge_pages::is_hugetlbfs(folder) { "files of huge pages" } else { "files" }
}

/// What is said where shared memory has less room than a node may take of it: it starts, and is full before it is said to be.
fn too_small(folder: &Path, bytes: u64) -> Option<String> {
    // A size of 0 is none at all.
    let room = probe::space(folder).filter(|room| (1..bytes).contains(&room.total_bytes))?;
    let mebibytes = bytes.div_ceil(1 << 20);
    let mend = if container::is_inside() {
        format!("start the container with `--shm-size {mebibytes}m`")
    } else {
        format!("as root `mount -o remount,size={mebibytes}m /dev/shm`")
    };
    Some(format!(
        "memory: of the {mebibytes} MiB that this node may take {} MiB fit in {}, and what is put beyond that is refused (hint: {mend}, or lend \
         less)",
        room.total_bytes >> 20,
        folder.display()
    ))
}

/// Marks the node's folders in shared memory, where nothing else tells whose they are. What lies in the state, which may itself lie
/// there, goes with it; and a folder of huge pages takes no mark, as it cannot be written to.
pub(crate) fn mark_folders(options: &NodeOptions, backing: &Backing) -> Result<Vec<Marked>, NodeError> {
    if matches!(options.backing, BackingChoice::Folder(_)) {
        return Ok(Vec::new());
    }
    let own = NodeId(own_number(&options.state)?);
    let mark = |folder: PathBuf| {
        Marked::new(&folder, &options.state).map_err(|source| NodeError::State { path: folder, source })
    };
    let folders = [backing.folder.clone(), small_folder(options, backing, own)?];
    let outlives =
        |folder: &PathBuf| folder.starts_with(SHARED_MEMORY) && !folder.starts_with(&options.state);
    let marked = folders.into_iter().filter(outlives).map(mark).collect::<Result<Vec<_>, _>>()?;
    if let (Some(claim), Some(folder)) = (backing.overcommit_before, marked.last()) {
        // Without the note the limit stays higher after a node that was killed: harmless.
        let _ = folder.note_claim(claim);
    }
    Ok(marked)
}

/// Where objects below a page lie: 4 KiB pages, so that they do not take 2 MiB each.
pub(crate) fn small_folder(
    options: &NodeOptions,
    backing: &Backing,
    own: NodeId,
) -> Result<PathBuf, NodeError> {
    if matches!(options.backing, BackingChoice::Folder(_)) {
        return Ok(backing.folder.clone());
    }
    let folder = shared_folder(own);
    make_folder(&folder)?;
    Ok(folder)
}

/// The node's own folder in shared memory.
fn shared_folder(own: NodeId) -> PathBuf {
    Path::new(SHARED_MEMORY).join(format!("hinterland-{:016x}", own.0))
}

/// Where KV blocks lie that outlive the node: in its memory, unless that is of small pages or somebody's folder.
pub(crate) fn kv_folders(backing: &Backing, own: NodeId) -> KvFolders {
    let books = shared_folder(own);
    let is_huge = matches!(backing.kind, PageKind::Huge2M | PageKind::TransparentHuge);
    let blocks = is_huge.then(|| backing.folder.clone()).into_iter().chain([books.clone()]).collect();
    KvFolders { blocks, books }
}

/// Makes a folder and those above it, unless they are there.
pub(crate) fn make_folder(path: &Path) -> Result<(), NodeError> {
    fs::create_dir_all(path).map_err(|source| NodeError::State { path: path.to_path_buf(), source })
}
