//! What the tests run: cargo builds for a test only what the test is linked with.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The folder of the binaries, with the command and the preloaded library built.
///
/// `HINTERLAND_BUILT` says that this was done: `./check` builds everything once, with the features of all.
pub fn built() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        let folder = test.ancestors().nth(2).unwrap().to_path_buf();
        if std::env::var_os("HINTERLAND_BUILT").is_none() {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["build", "--quiet", "--offline", "-p", "hinterland-preload", "-p", "hinterland-cli"]);
            cargo.arg("--target-dir").arg(folder.parent().unwrap());
            if folder.ends_with("release") {
                cargo.arg("--release");
            }
            let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
            assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        }
        folder
    })
}

/// The C program of the behaviours, compiled into that folder under a name, with more words for the compiler.
pub fn compile(name: &str, more: &[&str]) -> PathBuf {
    let program = built().join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/behaviours.c");
    let mut command = Command::new("cc");
    command.args(["-O1", "-Wall", "-o"]).arg(&program).arg(source).args(more).args(["-lpthread", "-ldl"]);
    let compiled = command.output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    program
}
