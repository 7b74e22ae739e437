//! The libraries that stand in for CUDA's, in a folder of their own for as long as a program runs.

use super::cuda;
use super::temporary::TemporaryFolder;
use crate::failure::Failure;
use hinterland_channel::{Address, ChannelError};
use hinterland_cudanames::CORE_FILE;
use hinterland_gpunode::inquiry::Inquiry;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The folder with the libraries; it goes when this is dropped.
#[derive(Debug)]
pub struct Libraries {
    folder: TemporaryFolder,
    paths: Vec<PathBuf>,
}

impl Libraries {
    /// Writes the libraries into a new folder that nobody else may change.
    ///
    /// # Errors
    /// [`Failure`] when the core is not found or nothing can be written.
    pub fn write() -> Result<Self, Failure> {
        let core = cuda::find_core()?;
        let mut libraries = Self { folder: TemporaryFolder::make("cuda")?, paths: Vec::new() };
        libraries.paths = cuda::write_libraries(libraries.folder.path(), &core)?;
        // Whoever needs the core asks for it by name.
        libraries.paths.retain(|path| !path.ends_with(CORE_FILE));
        Ok(libraries)
    }

    /// All of them, for `LD_PRELOAD`: a program whose own search path names CUDA's libraries first gets ours nevertheless.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// `LD_LIBRARY_PATH` with the folder in front, for programs that load by name.
    pub fn search_path(&self) -> OsString {
        let mut value = self.folder.path().as_os_str().to_owned();
        if let Some(before) = std::env::var_os("LD_LIBRARY_PATH").filter(|before| !before.is_empty()) {
            value.push(":");
            value.push(before);
        }
        value
    }
}

/// The variable that names the file with the key of a node on another host.
const KEY_FILE_VARIABLE: &str = "HINTERLAND_KEY_FILE";

/// Asks a GPU node something, with the key that the program will have: a program whose node does not answer would only find that it has
/// no device.
///
/// # Errors
/// [`Failure`] with exit status 3 if no node answers.
pub fn check(node: &str) -> Result<(), Failure> {
    let address: Address = node.parse().map_err(|error: ChannelError| Failure::of(&error))?;
    // An empty variable is as good as none, as for the program.
    let named = std::env::var_os(KEY_FILE_VARIABLE).filter(|path| !path.is_empty());
    let key = named.map(|path| hinterland_node::read_key(Path::new(&path))).transpose();
    let key = key.map_err(|error| Failure::of(&error))?;
    Inquiry::open(&address, key)?.ask()?;
    Ok(())
}

/// What a program is told of its GPU node.
pub fn variables(node: &str, memory: Option<u64>, libraries: &Libraries) -> Vec<(&'static str, OsString)> {
    let mut variables = vec![("HINTERLAND_GPU", node.into()), ("LD_LIBRARY_PATH", libraries.search_path())];
    if let Some(bytes) = memory {
        variables.push(("HINTERLAND_GPU_MEMORY", bytes.to_string().into()));
    }
    variables
}

/// An address as `run --gpu` takes it.
pub fn address(text: &str) -> Result<String, String> {
    node_address(text).map(|address| address.to_string())
}

/// An address of a GPU node as people write it: that of a channel, a path, or a host and a port.
pub fn node_address(text: &str) -> Result<Address, String> {
    let full = match text {
        _ if text.starts_with("unix:") || text.starts_with("tcp:") => text.to_owned(),
        _ if text.contains('/') => {
            format!("unix:{}", std::path::absolute(Path::new(text)).unwrap_or_default().display())
        }
        _ => format!("tcp:{text}"),
    };
    full.parse().map_err(|_: ChannelError| {
        format!(
            "{text} is no address (hint: unix:/run/gpu.sock, tcp:HOST:PORT, or either without the first word)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_need_no_first_word() {
        assert_eq!(address("unix:/a/b"), Ok("unix:/a/b".to_owned()));
        assert_eq!(address("/a/b"), Ok("unix:/a/b".to_owned()));
        assert_eq!(address("gpu-node:7070"), Ok("tcp:gpu-node:7070".to_owned()));
        assert!(address("gpu-node").unwrap_err().contains("hint:"));
    }
}
