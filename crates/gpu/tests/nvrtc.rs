//! The real compiler takes the kernel's source, where it is installed: `tests/nvrtc FOLDER` installs it without a GPU.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

use hinterland_gpu::{Compiled, Compiler};
use std::path::{Path, PathBuf};

/// The library that `tests/nvrtc` has put into the tree.
fn installed() -> Option<PathBuf> {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(tree.join(".cache/nvrtc/library")).ok()?;
    Some(PathBuf::from(text.trim()))
}

fn text(compiled: &Compiled) -> String {
    String::from_utf8_lossy(&compiled.image).into_owned()
}

#[test]
fn the_kernel_compiles_for_the_gpus_it_is_meant_for() {
    let Some(library) = installed() else {
        eprintln!("skipped: NVRTC is not installed (hint: tests/nvrtc .cache/nvrtc)");
        return;
    };
    let compiler = Compiler::load(Some(&library)).unwrap();
    for capability in [(8, 0), (9, 0)] {
        let assembly = compiler.assembly(capability).unwrap();
        let words = text(&assembly);
        assert!(assembly.is_assembly && words.contains(".visible .entry hinterland_copy("), "{words}");
        assert!(words.contains(&format!(".target sm_{}{}", capability.0, capability.1)));
        // Eight loads of 16 bytes past the caches, and as wide stores.
        assert!(words.matches("ld.global.cv.v4.u32").count() >= 8, "{words}");
        assert!(words.matches("v4.u32").count() + words.matches("v4.b32").count() >= 16, "{words}");
        let machine_code = compiler.compile(capability).unwrap();
        assert!(!machine_code.is_assembly && machine_code.image.starts_with(b"\x7fELF"));
    }
}

#[test]
fn a_gpu_that_the_compiler_does_not_know_gets_assembly_of_an_older_one() {
    let Some(library) = installed() else { return };
    let compiler = Compiler::load(Some(&library)).unwrap();
    let compiled = compiler.compile((99, 0)).unwrap();
    assert!(compiled.is_assembly && text(&compiled).contains(".target sm_"));
    let refused = compiler.compile((1, 0)).err().unwrap().to_string();
    assert!(refused.contains("later GPUs only") && refused.contains("hint:"), "{refused}");
}
