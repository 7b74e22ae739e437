//! Has what unwinds a panic linked into the library: as a library of its own the loader would look for it, map it and
//! relocate it in each process that a program starts, which takes it as long as this one.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Where the linker's own compiler does not say, it is a library of its own.
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let Ok(found) = Command::new(compiler).arg("-print-file-name=libgcc_eh.a").output() else { return };
    let Ok(path) = String::from_utf8(found.stdout) else { return };
    if let Some(folder) = Path::new(path.trim()).parent().filter(|folder| folder.is_absolute()) {
        println!("cargo:rustc-link-search=native={}", folder.display());
        println!("cargo:rustc-link-lib=static:+whole-archive=gcc_eh");
    }
}
