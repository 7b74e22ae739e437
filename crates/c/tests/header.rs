//! The header and the code say the same: every function has the prototype that `include/hinterland.h` declares, every
//! record the same layout, every constant the same value.

// A failure in a function that a test calls is a failed test.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::{align_of, offset_of, size_of};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn header() -> String {
    std::fs::read_to_string(tree().join("include/hinterland.h")).unwrap()
}

/// Compiles C against the header; returns what the compiler complained about.
fn complaints(source: &str) -> String {
    let mut compiler = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I"])
        .arg(tree().join("include"))
        .args(["-x", "c", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    compiler.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    let output = compiler.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.success(), text.is_empty(), "{text}");
    text
}

/// A function of the library: its name, and its C type as `RESULT (PARAMETERS)`.
struct Exported {
    name: String,
    kind: String,
}

/// Reads the exported functions from the source of the library.
fn exported() -> Vec<Exported> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        for piece in text.split("#[unsafe(no_mangle)]").skip(1) {
            let (_, piece) = piece.split_once("extern \"C\" fn ").unwrap();
            let (name, piece) = piece.split_once('(').unwrap();
            let (parameters, piece) = piece.split_once(')').unwrap();
            let (_, result) = piece.split_once('{').unwrap().0.split_once("->").unwrap();
            let types: Vec<String> = parameters
                .split(',')
                .filter_map(|parameter| parameter.split_once(": "))
                .map(|(name, kind)| c_type(name.trim(), kind.trim()))
                .collect();
            let parameters = if types.is_empty() { "void".to_owned() } else { types.join(", ") };
            let kind = format!("{} ({parameters})", c_type("", result.trim()));
            found.push(Exported { name: name.to_owned(), kind });
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found
}

fn c_type(name: &str, kind: &str) -> String {
    if let Some(target) = kind.strip_prefix("*mut *const ") {
        return format!("const {} **", plain(target));
    }
    if let Some(target) = kind.strip_prefix("*mut *mut ") {
        return format!("{} **", plain(target));
    }
    if let Some(target) = kind.strip_prefix("*const ") {
        return format!("const {} *", plain(target));
    }
    if let Some(target) = kind.strip_prefix("*mut ") {
        let target = if name == "address" { "hl_address" } else { plain(target) };
        return format!("{target} *");
    }
    if name == "address" { "hl_address".to_owned() } else { plain(kind).to_owned() }
}

fn plain(kind: &str) -> &str {
    match kind {
        "c_char" => "char",
        "c_int" => "int",
        "c_void" => "void",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "usize" => "size_t",
        "PoolHandle" => "hl_pool",
        "ObjectRecord" => "hl_object",
        "PutOptionsRecord" => "hl_put_options",
        "GuardHandle" => "hl_guard",
        "ObjectHandle" => "hl_handle",
        "KvHandle" => "hl_kv",
        "QueueHandle" => "hl_kv_queue",
        "GpuHandle" => "hl_kv_gpu",
        "TransferHandle" => "hl_kv_transfer",
        "BlockRecord" => "hl_block",
        "CompletionRecord" => "hl_completion",
        "u8" => "uint8_t",
        other => panic!("{other} has no form in C"),
    }
}

#[test]
fn every_function_has_the_prototype_of_the_header() {
    let functions = exported();
    assert!(functions.len() > 20, "the source was not understood");
    let mut source = "#include \"hinterland.h\"\n".to_owned();
    for Exported { name, kind } in &functions {
        writeln!(
            source,
            "_Static_assert(__builtin_types_compatible_p(__typeof__({name}), {kind}), \"{name}\");"
        )
        .unwrap();
    }
    assert_eq!(complaints(&source), "");
    let wrong = source.replace("int (hl_pool *, hl_address, uint32_t)", "int (hl_pool *, hl_address, int)");
    assert!(complaints(&wrong).contains("hl_rlock"), "a wrong prototype must be noticed");
}

#[test]
fn the_header_declares_nothing_that_the_library_lacks() {
    let header = header();
    let declared: BTreeSet<&str> = header
        .lines()
        .filter(|line| line.starts_with("int ") || line.starts_with("const char *"))
        .filter_map(|line| line.split_once('('))
        .filter_map(|(before, _)| before.rsplit([' ', '*']).next())
        .collect();
    let functions = exported();
    let exported: BTreeSet<&str> = functions.iter().map(|function| function.name.as_str()).collect();
    assert_eq!(declared, exported);
}

#[test]
fn records_have_the_layout_of_the_header() {
    use hinterland::{BlockRecord as Block, CompletionRecord as Completion, RunRecord as Run};
    use hinterland::{ObjectRecord as Object, PutOptionsRecord as Options};
    let mut source = "#include \"hinterland.h\"\n".to_owned();
    let mut check = |expression: String, value: usize| {
        writeln!(source, "_Static_assert({expression} == {value}, \"{expression}\");").unwrap();
    };
    check("sizeof(hl_object)".to_owned(), size_of::<Object>());
    check("_Alignof(hl_object)".to_owned(), align_of::<Object>());
    check("sizeof(hl_put_options)".to_owned(), size_of::<Options>());
    check("_Alignof(hl_put_options)".to_owned(), align_of::<Options>());
    check("sizeof(hl_run)".to_owned(), size_of::<Run>());
    check("sizeof(hl_block)".to_owned(), size_of::<Block>());
    check("sizeof(hl_completion)".to_owned(), size_of::<Completion>());
    macro_rules! fields {
        ($c:literal, $record:ty, $($field:ident),*) => {
            $(check(
                format!("offsetof({}, {})", $c, stringify!($field)),
                offset_of!($record, $field),
            );)*
        };
    }
    fields!("hl_object", Object, bytes, address, object, state, copies, homes, homes_up, digest);
    fields!("hl_put_options", Options, copies, reserved, rack, progress, context);
    fields!("hl_run", Run, start, bytes, stride, count);
    fields!("hl_block", Block, key, key_bytes, runs, run_count);
    fields!("hl_completion", Completion, batch, status, reserved);
    check("HL_KV_GET".to_owned(), hinterland::HL_KV_GET as usize);
    check("HL_KV_PUT".to_owned(), hinterland::HL_KV_PUT as usize);
    check("HL_KV_EXISTS".to_owned(), hinterland::HL_KV_EXISTS as usize);
    check("HL_KV_REMOVE".to_owned(), hinterland::HL_KV_REMOVE as usize);
    check("HL_READ".to_owned(), hinterland::HL_READ as usize);
    check("HL_WRITE".to_owned(), hinterland::HL_WRITE as usize);
    check("HL_SEALED".to_owned(), hinterland::HL_SEALED as usize);
    check("HL_WRITABLE".to_owned(), hinterland::HL_WRITABLE as usize);
    check("HL_ADVICE_NORMAL".to_owned(), hinterland::HL_ADVICE_NORMAL as usize);
    check("HL_ADVICE_RANDOM".to_owned(), hinterland::HL_ADVICE_RANDOM as usize);
    check("HL_ADVICE_SEQUENTIAL".to_owned(), hinterland::HL_ADVICE_SEQUENTIAL as usize);
    check("HL_ADVICE_WILL_NEED".to_owned(), hinterland::HL_ADVICE_WILL_NEED as usize);
    assert_eq!(complaints(&source), "");
}
