//! The files of the tree that rules read: what git tracks or would track.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Text beyond this is data, not something that a person wrote and reads.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// One text file.
#[derive(Debug, Clone)]
pub struct SourceFile {
    /// Path from the root, with `/` between components.
    pub path: String,
    /// The whole text.
    pub text: String,
}

impl SourceFile {
    /// The part of the name after its last dot, or nothing.
    pub fn extension(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or("");
        name.rsplit_once('.').map_or("", |(_, extension)| extension)
    }

    /// The crate that the file belongs to: `ring` for `crates/ring/src/lib.rs`.
    pub fn crate_name(&self) -> Option<&str> {
        self.path.strip_prefix("crates/")?.split('/').next()
    }

    /// Whether the file is part of what a crate builds, and not a test or a bench.
    pub fn is_product(&self) -> bool {
        let inside =
            self.crate_name().and_then(|name| self.path.strip_prefix(&format!("crates/{name}/src/")));
        inside.is_some_and(|path| !path.split(['/', '.']).any(|part| part == "tests"))
    }

    /// Where the tests at the end of a Rust file begin; beyond its end if there are none. A module of tests that is only named
    /// (`mod tests;`) lies in a file of its own.
    pub fn tests_start(&self) -> usize {
        let mut modules = self.text.match_indices("#[cfg(test)]\nmod ");
        let with_body = modules.find(|(at, opening)| {
            let rest = &self.text[at + opening.len()..];
            rest.find(['{', ';']).is_some_and(|end| rest[end..].starts_with('{'))
        });
        with_body.map_or(usize::MAX, |(at, _)| at)
    }

    /// Whether the file says of itself that a program wrote it.
    pub fn is_generated(&self) -> bool {
        self.text.lines().take(3).any(|line| line.contains("@generated"))
    }
}

/// The tree as the rules see it.
#[derive(Debug, Default)]
pub struct Tree {
    /// Where it lies.
    pub root: PathBuf,
    /// The text files.
    pub files: Vec<SourceFile>,
    /// Every path, text or not.
    pub paths: BTreeSet<String>,
    /// Whether git said which paths these are, and none is what it ignores.
    pub is_of_git: bool,
}

impl Tree {
    /// Reads every file that git tracks or that it would not ignore.
    ///
    /// # Errors
    /// A sentence when the tree can be read neither through git nor by walking.
    pub fn load(root: &Path) -> Result<Self, String> {
        let from_git = paths_from_git(root);
        let is_of_git = from_git.is_some();
        let paths = from_git.map_or_else(|| paths_from_walk(root), Ok)?;
        let mut files = Vec::new();
        for path in &paths {
            let full = root.join(path);
            let small = full.metadata().is_ok_and(|data| data.is_file() && data.len() <= TEXT_BYTES_MAX);
            if small && let Ok(text) = std::fs::read_to_string(&full) {
                files.push(SourceFile { path: path.clone(), text });
            }
        }
        Ok(Self { root: root.to_path_buf(), files, paths, is_of_git })
    }

    /// The text files with this extension.
    pub fn with_extension<'tree>(
        &'tree self,
        extension: &'tree str,
    ) -> impl Iterator<Item = &'tree SourceFile> {
        self.files.iter().filter(move |file| file.extension() == extension)
    }

    /// One text file by its path.
    pub fn file(&self, path: &str) -> Option<&SourceFile> {
        self.files.iter().find(|file| file.path == path)
    }
}

/// The root of the workspace that this program was built in.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

fn paths_from_git(root: &Path) -> Option<BTreeSet<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .ok()?;
    if !output.status.success() {
        return None;
    }
    let listing = String::from_utf8_lossy(&output.stdout).into_owned();
    let present = listing.split('\0').filter(|path| !path.is_empty() && root.join(path).exists());
    Some(present.map(str::to_string).collect())
}

/// For a tree unpacked from an archive, where there is no git to ask.
fn paths_from_walk(root: &Path) -> Result<BTreeSet<String>, String> {
    let mut found = BTreeSet::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(folder) = pending.pop() {
        let entries = std::fs::read_dir(&folder)
            .map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = entry.path();
            if path.is_dir() {
                if !["target", ".git", ".cache", "__pycache__"].contains(&name.as_str()) {
                    pending.push(path);
                }
            } else if let Ok(relative) = path.strip_prefix(root) {
                found.insert(relative.to_string_lossy().into_owned());
            }
        }
    }
    Ok(found)
}
