//! What a program or library wants of CUDA, out of its ELF file.

use crate::failure::Failure;
use hinterland_cudanames::{LIBRARIES, Library, owner};
use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn, FileHeader, Sym};
use object::{LittleEndian, Object, ObjectSection, ObjectSymbol};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

type Header = FileHeader64<LittleEndian>;
type ElfFile<'bytes> = object::read::elf::ElfFile64<'bytes, LittleEndian>;

const ENDIAN: LittleEndian = LittleEndian;
/// Sections that a compiler of CUDA puts its code into.
const CODE_SECTIONS: [&str; 2] = [".nv_fatbin", ".nvFatBinSegment"];
/// What every program with GPU code calls first.
const REGISTER: &str = "__cudaRegisterFatBinary";
/// A text that is in every runtime of CUDA, and what follows on it there: other files may name it.
const RUNTIME_TEXT: (&[u8], u8) = (b"/cudart.shm.", b'%');
/// Starts of names of libraries that belong to CUDA and work on a GPU of this machine only.
const OTHERS: &[&str] = &[
    "libcublasXt",
    "libcudadevrt",
    "libcudnn",
    "libcufft",
    "libcupti",
    "libcufile",
    "libcurand",
    "libcusolver",
    "libcusparse",
    "libcutensor",
    "libnccl",
    "libnppc",
    "libnvblas",
    "libnvjpeg",
    "libnvshmem",
    "libnvinfer",
];

/// How each ELF file begins.
const MAGIC: &[u8] = b"\x7fELF";
/// Bytes of a file at most: more than any library has, and few enough to be held.
const FILE_BYTES_MAX: u64 = 4 << 30;
/// What to name in place of something else.
const PROGRAM: &str = "name a program or a library for 64-bit Linux";

/// What one file wants.
#[derive(Debug, Default)]
pub struct Imports {
    /// Functions by the file name of their library, as the file names it: `libcudart.so.13`.
    pub functions: BTreeMap<String, BTreeSet<String>>,
    /// Libraries of CUDA that nothing stands in for.
    pub others: BTreeSet<String>,
    /// Libraries that stand in its data by name: it may load them while it runs, and what it asks of them then is not seen.
    pub may_load: BTreeSet<String>,
    /// Whether the runtime was linked into it.
    pub has_runtime_inside: bool,
    /// All libraries that its loader will look for.
    pub needed: Vec<String>,
    /// Folders that it wants them to be looked for in, with its own folder in place of `$ORIGIN`.
    pub folders: Vec<PathBuf>,
}

/// Reads a file.
///
/// # Errors
/// [`Failure`] when it is not there, or no ELF file of this kind of machine.
pub fn read(path: &Path) -> Result<Imports, Failure> {
    let failed = |error| Failure::file("reading", path, &error);
    // Looked at before it is opened: a pipe that nobody writes to would be waited for.
    let about = std::fs::metadata(path).map_err(failed)?;
    let refused = |reason: &str, hint| {
        Failure::new(format!("{} is no ELF file that can be read: {reason}", path.display()), hint)
    };
    if !about.is_file() && !about.is_dir() {
        return Err(refused("it is a device, a pipe or a socket", PROGRAM));
    }
    if about.is_file() && about.len() == 0 {
        // Some of /proc say so, and have no end.
        return Err(refused("it is empty", PROGRAM));
    }
    if about.len() > FILE_BYTES_MAX {
        return Err(refused(
            &format!("it has {} bytes, and {FILE_BYTES_MAX} is the most", about.len()),
            PROGRAM,
        ));
    }
    let (mut file, mut bytes) = (File::open(path).map_err(failed)?, Vec::new());
    // What does not begin like one is not read to its end, which some have none of.
    file.by_ref().take(MAGIC.len() as u64).read_to_end(&mut bytes).map_err(failed)?;
    if bytes == MAGIC {
        bytes.reserve(usize::try_from(about.len()).unwrap_or(0));
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
    }
    of_bytes(&bytes, path.parent().unwrap_or(Path::new("."))).map_err(|reason| {
        let hint = if bytes.starts_with(b"#!") {
            "it is a script: name the program that runs it, or the library that it loads"
        } else {
            PROGRAM
        };
        refused(&reason, hint)
    })
}

fn of_bytes(bytes: &[u8], folder: &Path) -> Result<Imports, String> {
    let wrong = |error: object::Error| error.to_string();
    if !bytes.starts_with(MAGIC) {
        return Err("it does not start like one".to_string());
    }
    let file = ElfFile::parse(bytes).map_err(wrong)?;
    let machine = file.elf_header().e_machine(ENDIAN);
    if ![elf::EM_X86_64, elf::EM_AARCH64].contains(&machine) {
        return Err(format!("it is for machine {machine}"));
    }
    let mut found = Imports::default();
    dynamic(bytes, folder, &mut found).map_err(wrong)?;
    let is_other = |file: &&String| is_of_cuda(file) && Library::of_file(file).is_none();
    found.others = found.needed.iter().filter(is_other).cloned().collect();
    functions(bytes, &mut found).map_err(wrong)?;
    found.has_runtime_inside = has_runtime_inside(&file, &found);
    if let Some(data) = file.section_by_name(".rodata").and_then(|section| section.data().ok()) {
        let names = LIBRARIES.iter().map(|library| library.file);
        let is_named = |name: &&str| memchr::memmem::find(data, name.as_bytes()).is_some();
        let not_needed = |name: &&str| !found.needed.iter().any(|needed| needed == name);
        found.may_load = names.filter(not_needed).filter(is_named).map(str::to_string).collect();
    }
    Ok(found)
}

/// Whether a library has one of CUDA's names: those that we stand in for, in any version, and those that we do not.
pub fn is_of_cuda(file: &str) -> bool {
    let is_other = OTHERS.iter().any(|start| file.starts_with(start));
    is_other || Library::of_file(file).is_some() || is_other_version(file)
}

/// Whether a library has the name of one of ours, but for another version of CUDA.
pub fn is_other_version(file: &str) -> bool {
    let stem = |file: &str| file.split_once(".so").map(|(stem, _)| stem.to_string());
    Library::of_file(file).is_none() && LIBRARIES.iter().any(|library| stem(library.file) == stem(file))
}

/// Libraries and folders out of the dynamic section.
fn dynamic(bytes: &[u8], folder: &Path, found: &mut Imports) -> object::Result<()> {
    let sections = Header::parse(bytes)?.sections(ENDIAN, bytes)?;
    let Some((entries, link)) = sections.dynamic(ENDIAN, bytes)? else { return Ok(()) };
    let strings = sections.strings(ENDIAN, bytes, link)?;
    for entry in entries {
        let text = || Ok(String::from_utf8_lossy(entry.string(ENDIAN, strings)?).into_owned());
        match entry.tag32(ENDIAN) {
            Some(elf::DT_NEEDED) => found.needed.push(text()?),
            Some(elf::DT_RPATH | elf::DT_RUNPATH) => {
                let origin = folder.to_string_lossy();
                let all = text()?.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin);
                found.folders.extend(all.split(':').filter(|part| !part.is_empty()).map(PathBuf::from));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Imported functions of CUDA. A symbol's version names its library; without one it belongs to the library that has its name.
fn functions(bytes: &[u8], found: &mut Imports) -> object::Result<()> {
    let sections = Header::parse(bytes)?.sections(ENDIAN, bytes)?;
    let symbols = sections.symbols(ENDIAN, bytes, elf::SHT_DYNSYM)?;
    let versions = sections.versions(ENDIAN, bytes)?;
    for (index, symbol) in symbols.enumerate() {
        let name = String::from_utf8_lossy(symbols.symbol_name(ENDIAN, symbol)?).into_owned();
        if symbol.st_shndx(ENDIAN) != elf::SHN_UNDEF || name.is_empty() {
            continue;
        }
        let version = match &versions {
            Some(versions) => versions.version(versions.version_index(ENDIAN, index))?,
            None => None,
        };
        let version = version.map(|version| String::from_utf8_lossy(version.name()).into_owned());
        let library = match version {
            Some(version) => {
                (Library::of_file(&version).is_some() || is_other_version(&version)).then_some(version)
            }
            None => library_without_version(&name, &found.needed),
        };
        if let Some(library) = library {
            found.functions.entry(library).or_default().insert(name);
        }
    }
    Ok(())
}

fn library_without_version(name: &str, needed: &[String]) -> Option<String> {
    if let Some(library) = owner(name) {
        return Some(library.file.to_string());
    }
    let starts = |start: &str| {
        name.strip_prefix(start)
            .is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_uppercase()))
    };
    let is_needed = |file: &str| needed.iter().any(|needed| needed == file);
    let unknown = [("cu", "libcuda.so.1"), ("nvml", "libnvidia-ml.so.1")];
    unknown
        .into_iter()
        .find(|(start, file)| starts(start) && is_needed(file))
        .map(|(_, file)| file.to_string())
}

/// The runtime is inside if its functions are defined there, if there is GPU code that nothing outside could register, or if its
/// texts are there, which stay when symbols are stripped.
fn has_runtime_inside(file: &ElfFile<'_>, found: &Imports) -> bool {
    let defined = |symbol: object::read::elf::ElfSymbol64<'_, '_, LittleEndian>| {
        symbol.name() == Ok(REGISTER) && !symbol.is_undefined()
    };
    let is_defined = file.symbols().chain(file.dynamic_symbols()).any(defined);
    let is_imported = found.functions.values().any(|names| names.contains(REGISTER));
    let has_code = CODE_SECTIONS.iter().any(|name| file.section_by_name(name).is_some());
    // The vendor's own runtime defines the function for others, and has no code that it registers.
    let is_runtime = file.dynamic_symbols().any(defined) && !has_code;
    ((is_defined || !is_imported) && has_code) || (!is_runtime && has_runtime_text(file))
}

fn has_runtime_text(file: &ElfFile<'_>) -> bool {
    let (text, next) = RUNTIME_TEXT;
    let data = file.section_by_name(".rodata").and_then(|section| section.data().ok()).unwrap_or_default();
    memchr::memmem::find_iter(data, text).any(|at| data.get(at + text.len()) == Some(&next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_of_other_versions_are_known_by_their_stem() {
        assert!(is_other_version("libcudart.so.12") && is_other_version("libcublasLt.so.11"));
        assert!(!is_other_version("libcudart.so.13") && !is_other_version("libcudart_static.so.1"));
        assert!(!is_other_version("libc.so.6"));
    }

    #[test]
    fn unknown_functions_of_the_driver_belong_to_it_only_if_it_is_needed() {
        let needed = ["libcuda.so.1".to_string()];
        assert_eq!(library_without_version("cuInit", &[]).as_deref(), Some("libcuda.so.1"));
        assert_eq!(library_without_version("cuNotYetKnown", &needed).as_deref(), Some("libcuda.so.1"));
        assert_eq!(library_without_version("cuNotYetKnown", &[]), None);
        assert_eq!(library_without_version("custom", &needed), None);
    }

    #[test]
    fn files_that_are_cut_off_are_refused_and_never_panic() {
        let image = LIBRARIES[0].image;
        assert!(of_bytes(image, Path::new("/")).is_ok());
        for length in (0..image.len()).step_by(97) {
            let _ = of_bytes(&image[..length], Path::new("/"));
        }
        let mut bytes = image.to_vec();
        for at in 0..2000 {
            let before = bytes[at];
            bytes[at] = before.wrapping_add(0x5b);
            let _ = of_bytes(&bytes, Path::new("/"));
            bytes[at] = before;
        }
        assert!(of_bytes(b"#!/bin/sh\n", Path::new("/")).is_err());
    }
}
