//! The real compiler's fat binaries are read, where it is installed: its path stands in `.cache/cuda/nvcc`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

use hinterland_fatbin::{
    Capability, Compression, Entry, Kernels, Kind, Specific, Variable, choose, entries, repack,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

fn installed() -> Option<PathBuf> {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = std::fs::read_to_string(tree.join(".cache/cuda/nvcc")).ok();
    if path.is_none() {
        eprintln!("skipped: nvcc is not installed (hint: tests/cuda-toolchain .cache/cuda)");
    }
    path.map(|path| PathBuf::from(path.trim()))
}

/// A fat binary of the kernels for these targets, each as machine code and as PTX.
fn compile(nvcc: &Path, mode: &str, targets: &[&str], more: &[&str]) -> Vec<u8> {
    compile_source(nvcc, "kernels", mode, targets, more)
}

fn compile_source(nvcc: &Path, source: &str, mode: &str, targets: &[&str], more: &[&str]) -> Vec<u8> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{source}.cu"));
    let test = std::thread::current().name().unwrap_or("a test").to_string();
    let name = format!("{test}-{mode}.fatbin");
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut command = Command::new(nvcc);
    command.arg("-fatbin").arg(format!("-compress-mode={mode}")).args(more);
    for target in targets {
        command.arg("-gencode").arg(format!("arch=compute_{target},code=[sm_{target},compute_{target}]"));
    }
    let output = command.arg(source).arg("-o").arg(&made).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read(made).unwrap()
}

type Layouts = BTreeMap<String, Vec<(u32, u32)>>;

fn layouts(found: &Kernels) -> Layouts {
    let pairs = found.kernels.iter().map(|kernel| {
        let parameters = kernel.parameters.iter().map(|it| (it.offset, it.size)).collect();
        (kernel.name.clone(), parameters)
    });
    pairs.collect()
}

fn variables(found: &Kernels) -> BTreeMap<String, Variable> {
    found.variables.iter().map(|variable| (variable.name.clone(), variable.clone())).collect()
}

fn read(entry: &Entry<'_>) -> Kernels {
    Kernels::of_image(&entry.image().unwrap()).unwrap()
}

#[test]
fn machine_code_and_assembly_of_one_source_have_the_same_layouts() {
    let Some(nvcc) = installed() else { return };
    let bytes = compile(&nvcc, "size", &["75", "80", "90", "100", "120"], &[]);
    let all = entries(&bytes).unwrap();
    assert_eq!(all.len(), 10);
    for pair in all.chunks(2) {
        let (one, other) = (read(&pair[0]), read(&pair[1]));
        assert_ne!(pair[0].kind, pair[1].kind);
        assert_eq!(one.target.unwrap(), pair[0].target);
        assert_eq!(other.target.unwrap(), pair[1].target);
        assert_eq!(layouts(&one), layouts(&other), "{}", pair[0].target);
        assert_eq!(variables(&one), variables(&other), "{}", pair[0].target);
        let has_clusters = pair[0].target.capability >= Capability::new(9, 0);
        assert_eq!(one.kernels.len(), if has_clusters { 12 } else { 11 });
        for kernel in &one.kernels {
            let twin = other.kernel(&kernel.name).unwrap();
            assert_eq!(kernel.parameter_bytes, twin.parameter_bytes, "{}", kernel.name);
            assert_eq!(kernel.threads_max, twin.threads_max, "{}", kernel.name);
            assert_eq!(kernel.cluster, twin.cluster, "{}", kernel.name);
            assert_eq!(kernel.static_shared_bytes, twin.static_shared_bytes, "{}", kernel.name);
        }
    }
}

#[test]
fn layouts_and_sizes_are_those_of_the_source() {
    let Some(nvcc) = installed() else { return };
    let bytes = compile(&nvcc, "size", &["75", "80", "90", "100", "120"], &[]);
    for entry in entries(&bytes).unwrap() {
        let found = read(&entry);
        let layouts = layouts(&found);
        assert_eq!(layouts["saxpy"], [(0, 4), (4, 4), (8, 8), (16, 8)]);
        assert_eq!(layouts["nothing"], []);
        assert_eq!(layouts["big"], [(0, 4800), (4800, 8)]);
        let mixed = [
            (0, 1),
            (8, 16),
            (24, 2),
            (32, 32),
            (64, 1),
            (72, 8),
            (80, 3),
            (84, 2),
            (88, 12),
            (112, 16),
            (128, 8),
        ];
        assert_eq!(layouts["mixed"], mixed);
        assert_eq!(layouts["empties"], [(0, 1), (8, 8), (16, 1), (17, 1)]);
        assert_eq!(layouts["_Z9templatedIfLi3EEvPT_S0_Ph"], [(0, 8), (8, 4), (16, 8)]);
        let kernel = |name| found.kernel(name).unwrap();
        assert_eq!((kernel("bounded").threads_max, kernel("saxpy").threads_max), (Some(128), None));
        assert_eq!(kernel("bounded").static_shared_bytes, Some(1024));
        assert_eq!(kernel("dynamic").static_shared_bytes, Some(0));
        let sizes: BTreeMap<_, _> = found.variables.iter().map(|it| (it.name.as_str(), it.size)).collect();
        assert_eq!((sizes["counter"], sizes["table"], sizes["weights"]), (4, 4000, 128));
        assert_eq!((sizes["filled"], sizes["managed"], sizes["hidden"]), (20, 4, 6));
        assert!(found.variable("managed").unwrap().is_managed);
        if entry.kind == Kind::MachineCode {
            assert!(kernel("local").local_bytes >= Some(400), "{:?}", kernel("local"));
            assert!(kernel("saxpy").registers >= Some(4), "{:?}", kernel("saxpy"));
        }
    }
}

#[test]
fn each_compression_unpacks_to_the_same_images() {
    let Some(nvcc) = installed() else { return };
    let images = |mode, wanted: Compression| -> Vec<Vec<u8>> {
        let bytes = compile(&nvcc, mode, &["90"], &[]);
        let all = entries(&bytes).unwrap();
        assert!(all.iter().any(|entry| entry.compression == wanted), "{mode}: {all:?}");
        all.iter().map(|entry| entry.image().unwrap().into_owned()).collect()
    };
    let plain = images("none", Compression::None);
    assert_eq!(plain, images("size", Compression::Zstandard));
    assert_eq!(plain, images("balance", Compression::Zstandard));
    assert_eq!(plain, images("speed", Compression::Lz4));
}

#[test]
fn letters_behind_a_capability_are_read_and_obeyed() {
    let Some(nvcc) = installed() else { return };
    let bytes = compile(&nvcc, "size", &["90a", "100f", "120a"], &[]);
    let all = entries(&bytes).unwrap();
    let told: Vec<_> = all.iter().map(|entry| entry.target.to_string()).collect();
    assert_eq!(told, ["sm_90a", "sm_90a", "sm_100f", "sm_100f", "sm_120a", "sm_120a"]);
    for entry in all.iter().filter(|entry| entry.kind == Kind::Assembly) {
        assert_eq!(read(entry).target.unwrap(), entry.target);
    }
    let taken = |major, minor| choose(&all, Capability::new(major, minor)).map(|entry| entry.target.specific);
    assert_eq!(taken(9, 0), Some(Specific::Architecture));
    assert_eq!(taken(10, 3), Some(Specific::Family));
    assert_eq!((taken(8, 9), taken(12, 1)), (None, None));
    let chosen = choose(&all, Capability::new(9, 0)).unwrap();
    let small = repack(&[chosen]);
    assert_eq!(layouts(&read(&entries(&small).unwrap()[0])), layouts(&read(&chosen)));
}

#[test]
fn relocatable_code_with_debugging_is_read_too() {
    let Some(nvcc) = installed() else { return };
    let bytes = compile(&nvcc, "size", &["90"], &["-rdc=true", "-G"]);
    for entry in entries(&bytes).unwrap() {
        let layouts = layouts(&read(&entry));
        assert_eq!(layouts["saxpy"], [(0, 4), (4, 4), (8, 8), (16, 8)]);
        assert_eq!(layouts["big"], [(0, 4800), (4800, 8)]);
    }
}

/// Machine code aligns a parameter by its address in the memory of constants, where parameters do not start at the same place on all
/// GPUs; so an alignment above 16 puts them elsewhere.
#[test]
fn parameters_of_more_alignment_lie_where_each_image_says() {
    let Some(nvcc) = installed() else { return };
    let bytes = compile_source(&nvcc, "aligned", "size", &["80", "90", "100"], &[]);
    for entry in entries(&bytes).unwrap() {
        let found = read(&entry);
        let line = found.kernel("line").unwrap();
        let places: Vec<u32> = line.parameters.iter().map(|parameter| parameter.offset).collect();
        let (start, wanted) = match (entry.kind, entry.target.capability.major) {
            (Kind::Assembly, _) => (None, [0, 64, 128]),
            (_, 8) => (Some(0x160), [0, 32, 96]),
            (_, 9) => (Some(0x210), [0, 48, 112]),
            _ => (Some(0x380), [0, 64, 128]),
        };
        assert_eq!((&places[..], line.parameters_start), (&wanted[..], start), "{}", entry.target);
        assert_eq!(line.parameters[1].size, 64);
        let alignments = if entry.kind == Kind::Assembly { vec![4, 64, 8] } else { Vec::new() };
        assert_eq!(line.parameter_alignments, alignments, "{}", entry.target);
        if let Some(start) = start {
            let assembly = entries(&bytes).unwrap();
            let twin = assembly.iter().find(|it| it.kind == Kind::Assembly).unwrap();
            for kernel in &read(twin).kernels {
                let parameters = kernel.parameters_at(start);
                assert_eq!(parameters, found.kernel(&kernel.name).unwrap().parameters, "{}", kernel.name);
            }
        }
    }
}
