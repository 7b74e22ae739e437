//! What kind of file a program is: whether the library that makes memory far can be put before it.

use hinterland_os::process::{effective_group, effective_user};
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The bit of a program that runs as its owner.
const SET_USER: u32 = 0o4000;
/// The bits of one that runs as its group: without the right of the group to run it, the kernel does not.
const SET_GROUP: u32 = 0o2010;
/// Interpreters of interpreters, as the kernel follows them.
const SCRIPTS_MAX: u32 = 4;
/// Segments of a program: more are a damaged file.
const SEGMENTS_MAX: u64 = 256;
/// Entries of the table that names a program's libraries.
const ENTRIES_MAX: usize = 4096;
const LOADER: u64 = 3;
const DYNAMIC: u64 = 2;
const NEEDED: u64 = 1;
/// What is said of a program without a loader.
/// What is said of a program that is linked statically: what it starts may have libraries put before it all the same.
pub const STATIC: &str = "is statically linked, so no library can be put before it";

/// Why a program cannot have far memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Whether the loader leaves every library away that is to be put before it, and says nothing.
    pub is_silent: bool,
    /// The file: of a script, that of its interpreter.
    pub path: PathBuf,
    /// What is wrong with it, as the rest of a sentence that its path begins.
    pub text: &'static str,
    /// What to do.
    pub hint: &'static str,
}

/// Whether the library cannot be put before the program in this file, or the program would go past it; of a script, the one that
/// runs it. A file that is not there or not understood is no refusal: whoever starts it tells.
pub fn refusal(path: &Path) -> Option<Refusal> {
    refusal_of(path.to_owned(), open(path)?)
}

/// The same of an open file, which was opened as `path`.
pub(crate) fn refusal_of(mut path: PathBuf, mut file: File) -> Option<Refusal> {
    for _ in 0..SCRIPTS_MAX {
        if file.metadata().is_ok_and(|data| changes_user(&data)) {
            let text = "runs as another user, so no library may be put before it";
            return Some(Refusal {
                is_silent: true,
                path,
                text,
                hint: "run it as that user without the set-id bit, or without --local",
            });
        }
        let mut head = Vec::new();
        (&mut file).take(4096).read_to_end(&mut head).ok()?;
        let Some(interpreter) = interpreter(&head) else {
            let (text, hint) = kind_of(&mut file, &head)?;
            return Some(Refusal { is_silent: text == STATIC, path, text, hint });
        };
        file = open(&interpreter)?;
        path = interpreter;
    }
    None
}

/// Whether a program runs as another user or group than this process: the loader then leaves libraries of its user out.
fn changes_user(data: &Metadata) -> bool {
    let mode = data.permissions().mode();
    mode & SET_USER != 0 && data.uid() != effective_user()
        || mode & SET_GROUP == SET_GROUP && data.gid() != effective_group()
}

/// Opens a file, and nothing that might keep the caller, as a pipe without a writer does.
fn open(path: &Path) -> Option<File> {
    std::fs::metadata(path).is_ok_and(|data| data.is_file()).then(|| File::open(path).ok())?
}

/// The file of a program, as a shell finds it.
pub fn find(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name));
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// What the first line of a script names, as the kernel reads it: without the options, and with whatever invisible stands there.
pub fn named_interpreter(path: &Path) -> Option<PathBuf> {
    let mut head = Vec::new();
    open(path)?.take(4096).read_to_end(&mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let name = line.split(|byte| matches!(byte, b' ' | b'\t')).find(|word| !word.is_empty())?;
    Some(PathBuf::from(OsStr::from_bytes(name)))
}

/// The program that runs a script.
fn interpreter(head: &[u8]) -> Option<PathBuf> {
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let program = Path::new(OsStr::from_bytes(words.next()?)).to_owned();
    if program.file_name() == Some(OsStr::new("env")) {
        // Options of `env` are not looked through.
        let name = words.find(|word| *word != b"-S").map(|word| OsString::from(OsStr::from_bytes(word)));
        return name.and_then(|name| find(&name)).or(Some(program));
    }
    Some(program)
}

/// Why a program file cannot have far memory, and what to do.
fn kind_of(file: &mut (impl Read + Seek), head: &[u8]) -> Option<(&'static str, &'static str)> {
    const GO_ON: &str = "run it without --local";
    if head.starts_with(b"\x7fELF\x01") {
        return Some(("is a 32-bit program, and far memory is for those with 64 bits", GO_ON));
    }
    let segments = segments(head)?;
    let of_kind = |kind: u64| segments.iter().find(|segment| segment.kind == kind);
    let Some(loader) = of_kind(LOADER) else {
        return Some((STATIC, "link it dynamically, or run it without --local"));
    };
    let loader = read(file, loader)?;
    if loader.windows(7).any(|part| part == b"ld-musl") {
        return Some(("is linked with musl, and far memory needs the GNU C library", GO_ON));
    }
    // Who needs no library makes its system calls itself, as Go does.
    let dynamic = read(file, of_kind(DYNAMIC)?)?;
    let tags = dynamic.as_chunks::<16>().0.iter().take(ENTRIES_MAX).map(|entry| word(entry, 0, 8));
    if !tags.into_iter().any(|tag| tag == Some(NEEDED)) {
        return Some((
            "uses no C library and asks the kernel for memory itself, so its memory cannot be far",
            "build it with the C library (Go: with cgo), or run it without --local",
        ));
    }
    None
}

struct Segment {
    kind: u64,
    at: u64,
    bytes: u64,
}

/// The segments of a 64-bit program; `None` for anything else and for a table that is cut off, which tells nothing.
fn segments(head: &[u8]) -> Option<Vec<Segment>> {
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (table, size, count) = (word(head, 32, 8)?, word(head, 54, 2)?, word(head, 56, 2)?);
    if count == 0 || count > SEGMENTS_MAX {
        return None;
    }
    let segment = |index: u64| {
        let at = usize::try_from(table.checked_add(index * size)?).ok()?;
        Some(Segment {
            kind: word(head, at, 4)?,
            at: word(head, at.checked_add(8)?, 8)?,
            bytes: word(head, at.checked_add(32)?, 8)?,
        })
    };
    (0..count).map(segment).collect()
}

fn read(file: &mut (impl Read + Seek), segment: &Segment) -> Option<Vec<u8>> {
    const BYTES_MAX: u64 = (ENTRIES_MAX * 16) as u64;
    let mut content = Vec::new();
    file.seek(SeekFrom::Start(segment.at)).ok()?;
    file.take(segment.bytes.min(BYTES_MAX)).read_to_end(&mut content).ok()?;
    Some(content)
}

/// A little-endian number.
fn word(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let part = bytes.get(at..at.checked_add(length)?)?;
    Some(part.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    /// This program, and where the kind of a segment of it is told.
    fn own(kind: u64) -> (Vec<u8>, usize) {
        let whole = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let table = usize::try_from(word(&whole, 32, 8).unwrap()).unwrap();
        let count = usize::try_from(word(&whole, 56, 2).unwrap()).unwrap();
        let at = (0..count).map(|index| table + index * 56).find(|at| word(&whole, *at, 4) == Some(kind));
        (whole, at.unwrap())
    }

    fn said(whole: &[u8]) -> Option<&'static str> {
        kind_of(&mut Cursor::new(whole), &whole[..whole.len().min(4096)]).map(|(text, _)| text)
    }

    #[test]
    fn a_program_without_a_loader_is_static() {
        let (mut whole, at) = own(LOADER);
        assert_eq!(said(&whole), None);
        whole[at] = 0;
        assert!(said(&whole).unwrap().contains("statically"));
    }

    #[test]
    fn a_program_that_needs_no_library_goes_past_them() {
        let (mut whole, at) = own(DYNAMIC);
        let table = usize::try_from(word(&whole, at + 8, 8).unwrap()).unwrap();
        let bytes = usize::try_from(word(&whole, at + 32, 8).unwrap()).unwrap();
        for entry in whole[table..table + bytes].as_chunks_mut::<16>().0 {
            if entry[0] == 1 && entry[1..8] == [0; 7] {
                entry[0] = 30;
            }
        }
        assert!(said(&whole).unwrap().contains("itself"));
    }

    #[test]
    fn files_that_are_cut_or_no_programs_are_not_refused() {
        let (whole, _) = own(LOADER);
        for cut in 0..200 {
            assert_eq!(said(&whole[..cut]), None, "{cut}");
        }
        assert_eq!(said(b"no program"), None);
        assert!(said(b"\x7fELF\x01\x01").unwrap().contains("32-bit"));
    }

    #[test]
    fn what_is_no_file_is_left_to_who_starts_it_and_keeps_nobody() {
        let path = std::env::temp_dir().join(format!("hinterland-program-{}", std::process::id()));
        let made = std::process::Command::new("mkfifo").args(["-m", "755"]).arg(&path).status();
        assert!(made.unwrap().success());
        let script = path.with_extension("sh");
        std::fs::write(&script, format!("#!{}\n", path.display())).unwrap();
        assert_eq!((refusal(&path), refusal(&script)), (None, None));
        assert_eq!(refusal(Path::new("/dev/tty")), None);
        std::fs::remove_file(&path).unwrap();
        std::fs::remove_file(&script).unwrap();
    }

    #[test]
    fn scripts_name_their_interpreters() {
        assert_eq!(interpreter(b"#!/bin/sh -e\n"), Some(PathBuf::from("/bin/sh")));
        assert_eq!(interpreter(b"#! /usr/bin/env sh\n"), find(OsStr::new("sh")));
        assert_eq!(interpreter(b"\x7fELF"), None);
        assert_eq!(interpreter(b"#!"), None);
    }
}
