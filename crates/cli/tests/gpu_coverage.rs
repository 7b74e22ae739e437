//! `hinterland gpu coverage` on programs made by the C compiler: what they call, what is missing, and what is no program.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

use hinterland_cudanames::{LIBRARIES, Library};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder with the libraries under CUDA's names, to link against.
struct Folder {
    path: PathBuf,
}

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("coverage-{name}"));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("libraries")).unwrap();
        let write =
            |library: &Library| fs::write(path.join("libraries").join(library.file), library.image).unwrap();
        LIBRARIES.iter().for_each(write);
        Self { path }
    }

    /// Compiles C into a file of this name.
    fn compile(&self, made: &str, text: &str, arguments: &[&str]) -> PathBuf {
        let source = self.path.join(format!("{made}.c"));
        fs::write(&source, text).unwrap();
        let mut command = Command::new("cc");
        command.current_dir(&self.path).args([
            "-w",
            "-Llibraries",
            "-Wl,--unresolved-symbols=ignore-in-shared-libs",
        ]);
        let output = command.arg(source).args(["-o", made]).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        self.path.join(made)
    }

    /// A program that calls functions of CUDA.
    fn caller(&self, made: &str, functions: &[&str], arguments: &[&str]) -> PathBuf {
        let calls: Vec<String> = functions.iter().map(|name| format!("{name}();")).collect();
        let all: Vec<String> = LIBRARIES.iter().map(|library| format!("-l:{}", library.file)).collect();
        let mut words = arguments.to_vec();
        words.push("-Wl,--as-needed");
        words.extend(all.iter().map(String::as_str));
        self.compile(made, &format!("int main(void) {{ {} return 0; }}\n", calls.join(" ")), &words)
    }
}

fn coverage(words: &[&str], program: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hinterland"));
    command.args(["gpu", "coverage"]).args(words).arg(program).env_remove("LD_LIBRARY_PATH").output().unwrap()
}

fn json(words: &[&str], program: &Path) -> (i32, Value) {
    let output = coverage(&[&["--json"], words].concat(), program);
    (output.status.code().unwrap(), serde_json::from_slice(&output.stdout).unwrap())
}

fn words(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A function of the runtime that the core has or lacks.
fn function(is_there: bool) -> &'static str {
    let library = Library::of_file("libcudart.so.13").unwrap();
    library.symbols.iter().find(|symbol| symbol.is_there == is_there).unwrap().name
}

#[test]
fn a_program_whose_functions_are_all_there_is_covered() {
    let folder = Folder::new("there");
    let program = folder.caller("program", &[function(true)], &[]);
    let (status, value) = json(&[], &program);
    assert_eq!((status, value["missing"].as_array().unwrap().len()), (0, 0), "{value}");
    assert_eq!(value["files"][0]["functions"]["libcudart.so.13"], serde_json::json!([function(true)]));
    let output = coverage(&[], &program);
    assert!(words(&output).contains("libcudart.so.13       1        0  program"), "{}", words(&output));
}

#[test]
fn functions_that_are_missing_are_named_with_their_library() {
    let folder = Folder::new("missing");
    let nvml = Library::of_file("libnvidia-ml.so.1").unwrap();
    let other = nvml.symbols.iter().find(|symbol| !symbol.is_there).unwrap().name;
    let program = folder.caller("program", &[function(true), function(false), other], &[]);
    let (status, value) = json(&[], &program);
    let told: Vec<_> = value["missing"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it["library"].as_str(), it["function"].as_str()))
        .collect();
    assert_eq!(
        told,
        [(Some("libcudart.so.13"), Some(function(false))), (Some("libnvidia-ml.so.1"), Some(other))]
    );
    assert_eq!(status, 1);
    let text = words(&coverage(&[], &program));
    assert!(text.contains(function(false)) && text.contains("returns \"not supported\""), "{text}");
}

#[test]
fn libraries_beside_a_program_are_looked_at_when_asked() {
    let folder = Folder::new("deep");
    let arguments = ["-shared", "-fPIC", "-l:libcudart.so.13"];
    folder.compile("libplugin.so", &format!("void f(void) {{ {}(); }}\n", function(false)), &arguments);
    let text = "int main(void) { return 0; }\n";
    let program = folder.compile("program", text, &[]);
    let shallow = coverage(&[], &program);
    assert!(
        shallow.status.success() && words(&shallow).contains("nothing of CUDA is called"),
        "{}",
        words(&shallow)
    );
    let (status, value) = json(&["--deep"], &program);
    assert_eq!(value["missing"][0]["function"], function(false), "{value}");
    assert!(value["files"][0]["file"].as_str().unwrap().ends_with("libplugin.so"));
    assert_eq!(status, 1);
    let (status, value) = json(&["--deep"], &folder.path.join("libplugin.so"));
    assert_eq!((status, value["files"].as_array().unwrap().len()), (1, 1), "each file once: {value}");
}

#[test]
fn libraries_that_a_program_needs_are_found_by_its_own_path() {
    let folder = Folder::new("needed");
    fs::create_dir_all(folder.path.join("lib")).unwrap();
    let text = format!("void inner(void) {{ {}(); }}\n", function(true));
    folder.compile("lib/libinner.so", &text, &["-shared", "-fPIC", "-l:libcudart.so.13"]);
    let text = "void inner(void); int main(void) { inner(); return 0; }\n";
    let arguments = ["-Llib", "-linner", "-Wl,-rpath,$ORIGIN/lib"];
    fs::create_dir_all(folder.path.join("bin")).unwrap();
    let program = folder.compile("program", text, &arguments);
    let (status, value) = json(&["--deep"], &program);
    assert_eq!(status, 0, "{value}");
    assert_eq!(value["files"][0]["functions"]["libcudart.so.13"][0], function(true), "{value}");
}

#[test]
fn a_runtime_that_was_linked_into_the_program_is_said_so() {
    let folder = Folder::new("static");
    let text =
        "__attribute__((section(\".nv_fatbin\"))) int code[4] = {1}; int main(void) { return code[0]; }\n";
    let program = folder.compile("program", text, &[]);
    let output = coverage(&[], &program);
    assert_eq!(output.status.code(), Some(1));
    assert!(words(&output).contains("-cudart shared"), "{}", words(&output));
    let (_, value) = json(&[], &program);
    assert_eq!(value["files"][0]["runtime_inside"], true);
}

#[test]
fn a_runtime_without_code_and_symbols_is_known_by_its_text_and_the_vendors_library_is_none() {
    let folder = Folder::new("stripped");
    let text = "const char *text = \"/cudart.shm.%x\"; int main(void) { return text[0] != '/'; }\n";
    let program = folder.compile("program", text, &["-s"]);
    assert_eq!(json(&[], &program).1["files"][0]["runtime_inside"], true);
    let text =
        "const char *text = \"/cudart.shm.%x\"; int __cudaRegisterFatBinary(void) { return text[0]; }\n";
    let library = folder.compile("libruntime.so", text, &["-shared", "-fPIC", "-s"]);
    let (status, value) = json(&[], &library);
    assert_eq!((status, value["missing"].as_array().unwrap().len()), (0, 0), "{value}");
}

#[test]
fn libraries_of_another_version_and_those_that_nothing_stands_in_for_are_missing() {
    let folder = Folder::new("others");
    for (file, function) in [("libcudart.so.12", "cudaMalloc"), ("libcudnn.so.9", "cudnnCreate")] {
        fs::write(folder.path.join("versions"), format!("{file} {{ global: *; }};\n")).unwrap();
        let soname = format!("-Wl,-soname,{file}");
        let arguments = ["-shared", "-fPIC", &soname, "-Wl,--version-script=versions"];
        folder.compile(
            &format!("libraries/{file}"),
            &format!("int {function}(void) {{ return 0; }}\n"),
            &arguments,
        );
    }
    let text = "int main(void) { cudaMalloc(); cudnnCreate(); return 0; }\n";
    let program = folder.compile("program", text, &["-l:libcudart.so.12", "-l:libcudnn.so.9"]);
    let (status, value) = json(&[], &program);
    let told: Vec<_> = value["missing"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it["library"].as_str(), it["why"].as_str()))
        .collect();
    let wanted = [
        (Some("libcudart.so.12"), Some("only CUDA 13 is stood in for")),
        (Some("libcudnn.so.9"), Some("nothing stands in for it")),
    ];
    assert_eq!((status, &told[..]), (1, &wanted[..]), "{value}");
}

#[test]
fn libraries_that_a_program_names_without_needing_them_are_told() {
    let folder = Folder::new("named");
    let text =
        "const char *name(void) { return \"libcuda.so.1\"; } int main(void) { return name()[0] == 'x'; }\n";
    let program = folder.compile("program", text, &[]);
    let output = coverage(&[], &program);
    assert!(output.status.success());
    assert!(
        words(&output).contains("names libcuda.so.1 and may load it while it runs"),
        "{}",
        words(&output)
    );
}

#[test]
fn files_without_an_end_and_such_as_are_none_are_refused_at_once() {
    let folder = Folder::new("endless");
    let pipe = folder.path.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // Begins like a program, and is longer than any.
    let long = folder.path.join("long");
    fs::write(&long, b"\x7fELF").unwrap();
    fs::File::options().write(true).open(&long).unwrap().set_len(1 << 40).unwrap();
    let text = folder.path.join("text");
    fs::write(&text, vec![b'a'; 1 << 20]).unwrap();
    for (path, reason) in [
        (Path::new("/dev/zero"), "it is a device, a pipe or a socket"),
        (Path::new("/dev/urandom"), "it is a device, a pipe or a socket"),
        (&pipe, "it is a device, a pipe or a socket"),
        (&long, "it has 1099511627776 bytes"),
        (&text, "it does not start like one"),
        (Path::new("/dev/null"), "it is a device"),
        (Path::new("/proc/self/maps"), "it is empty"),
        (&folder.path, "Is a directory"),
    ] {
        let output = coverage(&[], path);
        let told = words(&output);
        assert!(!output.status.success() && told.contains(reason), "{}: {told}", path.display());
        assert!(told.contains("hint:"), "{told}");
    }
}
