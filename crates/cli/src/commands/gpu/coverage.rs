//! `hinterland gpu coverage`: which functions of CUDA a program calls, and which of them are missing.

use super::imports::{self, Imports};
use crate::context::Context;
use crate::failure::Failure;
use crate::table::{Align, Table};
use hinterland_cudanames::Library;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Files that are looked at with `--deep`: more than any program has libraries of its own.
const FILES_MAX: usize = 2000;

/// What to look at.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Exit status: 0 if all is there, 1 if something is missing.

Functions that a program looks up while it runs (dlsym, cuGetProcAddress) are not seen. One that is missing is named once on standard error when it is called, and returns \"not supported\"; cuGetProcAddress does not find it, and names it with HINTERLAND_VERBOSE=1.")]
pub struct Arguments {
    /// A program or a library
    program: PathBuf,
    /// Look at the libraries that it needs too, and at those in its folder
    #[arg(long)]
    deep: bool,
}

/// A function or a library that is missing.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Missing {
    library: String,
    function: Option<String>,
    why: &'static str,
}

const NOT_DONE: &str = "returns \"not supported\"";
const UNKNOWN: &str = "the program does not start";
const OTHER_LIBRARY: &str = "nothing stands in for it";
const OTHER_VERSION: &str = "only CUDA 13 is stood in for";
const INSIDE: &str = "the runtime is linked into the program";

/// Lists what is called and what is missing: tables, or a JSON object.
///
/// # Errors
/// [`Failure`] when the program cannot be read.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let first = imports::read(&arguments.program)?;
    let mut files = vec![(arguments.program.clone(), first)];
    if arguments.deep {
        add_others(&mut files);
    }
    let mut missing: BTreeMap<Missing, BTreeSet<&Path>> = BTreeMap::new();
    for (path, found) in &files {
        for missed in missing_of(found) {
            missing.entry(missed).or_default().insert(path);
        }
    }
    if context.output.json {
        context.output.json(&value(&files, &missing))?;
    } else if files.iter().any(|(_, found)| concerns(found)) {
        context.output.data(text(&files, &missing))?;
        notes(&files, context);
    } else {
        context.output.say("nothing of CUDA is called (with --deep, its libraries are looked at too)");
    }
    Ok(if missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Adds the libraries that the program needs, those that they need, and those beside it, each once.
fn add_others(files: &mut Vec<(PathBuf, Imports)>) {
    let mut seen: BTreeSet<PathBuf> = files.iter().filter_map(|(path, _)| path.canonicalize().ok()).collect();
    let own = files[0].0.canonicalize().ok().and_then(|path| path.parent().map(Path::to_path_buf));
    let asked = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let asked: Vec<PathBuf> = std::env::split_paths(&asked).filter(|path| path.is_absolute()).collect();
    let mut waiting: Vec<PathBuf> = own.iter().flat_map(|folder| neighbours(folder)).collect();
    let mut next = 0;
    while next < files.len() && files.len() < FILES_MAX {
        let found = &files[next].1;
        let folders = || found.folders.iter().chain(&asked).chain(&own);
        let needed = found.needed.iter().filter(|name| !imports::is_of_cuda(name));
        waiting.extend(
            needed.filter_map(|name| folders().map(|folder| folder.join(name)).find(|path| path.is_file())),
        );
        for path in waiting.drain(..) {
            let is_new = path.canonicalize().is_ok_and(|path| seen.insert(path));
            // What is beside a program and no library of this machine is not its concern.
            if let (true, Ok(found)) = (is_new, imports::read(&path)) {
                files.push((path, found));
            }
        }
        next += 1;
    }
}

/// Files of a folder that are named like libraries or extension modules, and are none of CUDA's.
fn neighbours(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let is_library = |path: &PathBuf| {
        // A link for the linker, `libcudart.so`, has the name of what it leads to.
        let real = path.canonicalize().unwrap_or_else(|_| path.clone());
        let name = real.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_named = name.ends_with(".so") || name.contains(".so.") || name.ends_with(".node");
        is_named && !imports::is_of_cuda(&name)
    };
    let mut found: Vec<PathBuf> =
        entries.take(FILES_MAX).flatten().map(|entry| entry.path()).filter(is_library).collect();
    found.sort();
    found
}

fn missing_of(found: &Imports) -> Vec<Missing> {
    let mut missing = Vec::new();
    for (file, names) in &found.functions {
        let Some(library) = Library::of_file(file) else { continue };
        for name in names {
            let why = match library.symbol(name) {
                Some(symbol) if symbol.is_there => continue,
                Some(_) => NOT_DONE,
                None => UNKNOWN,
            };
            missing.push(Missing { library: file.clone(), function: Some(name.clone()), why });
        }
    }
    let whole = |library: &String, why| Missing { library: library.clone(), function: None, why };
    for other in &found.others {
        let is_ours = found.functions.contains_key(other) || imports::is_other_version(other);
        missing.push(whole(other, if is_ours { OTHER_VERSION } else { OTHER_LIBRARY }));
    }
    if found.has_runtime_inside {
        missing.push(whole(&"libcudart.so.13".to_string(), INSIDE));
    }
    missing
}

fn value(files: &[(PathBuf, Imports)], missing: &BTreeMap<Missing, BTreeSet<&Path>>) -> Value {
    let file = |(path, found): &(PathBuf, Imports)| {
        json!({
            "file": path,
            "functions": found.functions,
            "may_load": found.may_load,
            "runtime_inside": found.has_runtime_inside,
        })
    };
    let missed = |(missed, paths): (&Missing, &BTreeSet<&Path>)| json!({ "library": missed.library, "function": missed.function, "why": missed.why, "files": paths });
    json!({
        "files": files.iter().filter(|(_, found)| concerns(found)).map(file).collect::<Vec<_>>(),
        "missing": missing.iter().map(missed).collect::<Vec<_>>(),
    })
}

/// Whether a file has anything to do with CUDA.
fn concerns(found: &Imports) -> bool {
    !found.functions.is_empty()
        || !found.others.is_empty()
        || !found.may_load.is_empty()
        || found.has_runtime_inside
}

fn text(files: &[(PathBuf, Imports)], missing: &BTreeMap<Missing, BTreeSet<&Path>>) -> String {
    let right = Align::Right;
    let mut table =
        Table::new(&[("LIBRARY", Align::Left), ("CALLED", right), ("MISSING", right), ("BY", Align::Left)]);
    for (path, found) in files {
        for (library, names) in &found.functions {
            let is_missed = |name: &&String| {
                Library::of_file(library).and_then(|it| it.symbol(name)).is_none_or(|symbol| !symbol.is_there)
            };
            let missed = names.iter().filter(is_missed).count();
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
            table.row([library.clone(), names.len().to_string(), missed.to_string(), name]);
        }
    }
    let mut parts = Vec::new();
    if files.iter().any(|(_, found)| !found.functions.is_empty()) {
        parts.push(table.text());
    }
    if !missing.is_empty() {
        let mut table = Table::new(&[("MISSING", Align::Left), ("OF", Align::Left), ("THEN", Align::Left)]);
        for missed in missing.keys() {
            let function = missed.function.clone().unwrap_or_else(|| "all of it".to_string());
            table.row([function, missed.library.clone(), missed.why.to_string()]);
        }
        parts.push(table.text());
    }
    parts.join("\n\n")
}

/// What a table cannot say.
fn notes(files: &[(PathBuf, Imports)], context: &Context) {
    for (path, found) in files {
        if found.has_runtime_inside {
            context.output.warn(runtime_inside(path));
        }
        for library in &found.may_load {
            context.output.say(format_args!(
                "{} names {library} and may load it while it runs; what it looks up then is not seen",
                path.display()
            ));
        }
    }
}

fn runtime_inside(path: &Path) -> String {
    format!(
        "{} has the CUDA runtime linked into it, so that nothing can stand in for it: its calls return cudaErrorCallRequiresNewerDriver (hint: \
         build it with `nvcc -cudart shared`, or with CMAKE_CUDA_RUNTIME_LIBRARY=Shared)",
        path.display()
    )
}

/// Warns of a program that is about to be started and whose calls nothing can stand in for. What is no ELF file is left to the kernel.
pub fn warn_of_runtime_inside(program: &OsStr, context: &Context) {
    let Some(path) = path_of(program) else { return };
    if imports::read(&path).is_ok_and(|found| found.has_runtime_inside) {
        context.output.warn(runtime_inside(&path));
    }
}

/// The file of a program as the kernel finds it: by its path, or by its name in a folder of PATH.
fn path_of(program: &OsStr) -> Option<PathBuf> {
    if program.as_encoded_bytes().contains(&b'/') {
        return Some(PathBuf::from(program));
    }
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| path.is_file())
}
