//! The generated reference: asks the built `hinterland` binary to describe itself into docs/reference.

use std::path::Path;
use std::process::Command;

/// Where the binary may lie, the quicker one to build first.
const BINARIES: &[&str] = &["target/debug/hinterland", "target/release/hinterland"];

/// Writes the reference.
///
/// # Errors
/// A sentence when the binary is not built or refuses.
pub fn write(root: &Path) -> Result<(), String> {
    let binary = BINARIES.iter().map(|path| root.join(path)).find(|path| path.exists());
    let binary = binary.ok_or("no hinterland binary (hint: cargo build -p hinterland-cli)")?;
    let output = root.join("docs/reference");
    let status = Command::new(&binary)
        .args(["generate", "reference"])
        .arg(&output)
        .status()
        .map_err(|error| format!("cannot run {}: {error}", binary.display()))?;
    if status.success() {
        println!("docs: wrote {}", output.display());
        Ok(())
    } else {
        Err(format!("{} generate reference failed: {status}", binary.display()))
    }
}
