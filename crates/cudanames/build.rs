//! Makes the libraries: lists of functions and the source of the core become assembly, and the linker's files become constants.

#[path = "build/assembly.rs"]
mod assembly;
#[path = "build/core.rs"]
mod core_functions;
#[path = "build/link.rs"]
mod link;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// A library as it is to be made.
struct Wanted {
    short: &'static str,
    /// What names of its functions start with. The longest that fits decides.
    prefixes: &'static [&'static str],
    file: &'static str,
    version: Option<&'static str>,
}

const WANTED: &[Wanted] = &[
    Wanted {
        short: "cudart",
        prefixes: &["cuda", "__cuda"],
        file: "libcudart.so.13",
        version: Some("libcudart.so.13"),
    },
    Wanted {
        short: "cublas",
        prefixes: &["cublas"],
        file: "libcublas.so.13",
        version: Some("libcublas.so.13"),
    },
    Wanted {
        short: "cublaslt",
        prefixes: &["cublasLt"],
        file: "libcublasLt.so.13",
        version: Some("libcublasLt.so.13"),
    },
    Wanted { short: "cuda", prefixes: &["cu"], file: "libcuda.so.1", version: None },
    Wanted { short: "nvml", prefixes: &["nvml"], file: "libnvidia-ml.so.1", version: None },
];

/// One line of a list.
struct Function {
    name: String,
    /// Whether it returns a status, and not a pointer or nothing.
    has_status: bool,
}

fn main() -> Result<(), String> {
    let here = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(variable("OUT_DIR")?);
    let core = here.join("../cuda/src");
    for path in [&here.join("symbols"), &here.join("build"), &here.join("build.rs"), &core] {
        println!("cargo:rerun-if-changed={}", path.display());
    }
    let there = core_functions::functions(&core)?;
    let machine = assembly::Machine::of_name(&variable("CARGO_CFG_TARGET_ARCH")?)?;
    let linker = link::Linker::new(out.clone());
    linker.stub_of_core(&assembly::core(machine, &there))?;
    let mut constants = String::from("/// All libraries.\npub const LIBRARIES: &[Library] = &[\n");
    for wanted in WANTED {
        let functions = list(&here.join(format!("symbols/{}.txt", wanted.short)), &of_core(wanted, &there))?;
        let missing = format!("hl_missing_{}", wanted.short);
        if !there.contains(&missing) {
            return Err(format!("crates/cuda has no function {missing} (hint: each library needs its own)"));
        }
        linker.library(
            wanted.file,
            wanted.version,
            &assembly::library(machine, &functions, &there, &missing),
        )?;
        describe(&mut constants, wanted, &functions, &there, &out);
    }
    constants.push_str("];\n");
    let path = out.join("libraries.rs");
    std::fs::write(&path, constants).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

fn variable(name: &str) -> Result<String, String> {
    std::env::var(name).map_err(|_| format!("cargo did not set {name}"))
}

/// Functions of the core that belong to a library by their name, whether or not a list has them.
fn of_core(wanted: &Wanted, there: &BTreeSet<String>) -> Vec<String> {
    let prefixes = || WANTED.iter().flat_map(|library| library.prefixes);
    let longest =
        |name: &str| prefixes().filter(|prefix| name.starts_with(**prefix)).max_by_key(|it| it.len());
    let names = there.iter().filter_map(|name| name.strip_prefix("hl_"));
    let is_own = |name: &&str| longest(name).is_some_and(|prefix| wanted.prefixes.contains(prefix));
    names.filter(is_own).map(str::to_string).collect()
}

/// The functions of a list and those of the core, sorted by name.
fn list(path: &Path, of_core: &[String]) -> Result<Vec<Function>, String> {
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let mut found: Vec<Function> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, has_status) = line.strip_suffix(" null").map_or((line, true), |name| (name, false));
        let is_name = name.bytes().all(|letter| letter.is_ascii_alphanumeric() || letter == b'_');
        if name.is_empty() || !is_name {
            return Err(format!("{}: {line:?} is no name", path.display()));
        }
        found.push(Function { name: name.to_string(), has_status });
    }
    found.extend(of_core.iter().map(|name| Function { name: name.clone(), has_status: true }));
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found.dedup_by(|one, other| one.name == other.name);
    Ok(found)
}

fn describe(
    constants: &mut String,
    wanted: &Wanted,
    functions: &[Function],
    there: &BTreeSet<String>,
    out: &Path,
) {
    let image = out.join(wanted.file);
    // Writing into a string does not fail.
    let _ = write!(
        constants,
        "    Library {{\n        file: {:?},\n        short: {:?},\n        version: {:?},\n        image: include_bytes!({:?}),\n        symbols: &[\n",
        wanted.file, wanted.short, wanted.version, image
    );
    for function in functions {
        let is_there = there.contains(&format!("hl_{}", function.name));
        let _ =
            writeln!(constants, "            Symbol {{ name: {:?}, is_there: {is_there} }},", function.name);
    }
    constants.push_str("        ],\n    },\n");
}
