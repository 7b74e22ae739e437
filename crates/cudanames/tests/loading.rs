//! The real loader takes the libraries: with a core made for the test, that says which of its functions was called.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

use hinterland_cudanames::{CORE_FILE, LIBRARIES, Library, Symbol, owner};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What the core of the test returns for a function that is missing, and for one that is there.
const MISSING: i32 = 801;

/// A folder with the libraries and a core, and a program that was compiled there.
struct Folder {
    path: PathBuf,
}

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        LIBRARIES.iter().for_each(|library| std::fs::write(path.join(library.file), library.image).unwrap());
        let folder = Self { path };
        folder.compile("core.c", &core(), CORE_FILE, &["-shared", "-fPIC"]);
        folder
    }

    fn compile(&self, source: &str, text: &str, made: &str, arguments: &[&str]) {
        std::fs::write(self.path.join(source), text).unwrap();
        let mut command = Command::new("cc");
        command.current_dir(&self.path).arg("-w").arg(source).args(["-o", made]).args(arguments);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn run(&self, program: &str) -> Output {
        let mut command = Command::new(self.path.join(program));
        command.env("LD_LIBRARY_PATH", &self.path).env("LD_BIND_NOW", "1").output().unwrap()
    }
}

/// A core with all functions that the libraries jump to. Each says its name.
fn core() -> String {
    let mut text = String::from("#include <stdio.h>\n");
    let there = |library: &'static Library| library.symbols.iter().filter(|symbol| symbol.is_there);
    for symbol in LIBRARIES.iter().flat_map(there) {
        let name = symbol.name;
        writeln!(text, "int hl_{name}(int a, int b, int c, int d, int e, int f, int g) {{ printf(\"{name}\\n\"); return g; }}")
            .unwrap();
    }
    for library in LIBRARIES {
        let short = library.short;
        writeln!(text, "int hl_missing_{short}(const char *name) {{ printf(\"{short} lacks %s\\n\", name); return {MISSING}; }}")
            .unwrap();
    }
    text
}

fn stdout(output: &Output) -> String {
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{:?}", output.status);
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Some function of a library that returns a status, and is missing or not.
fn some(library: &'static Library, is_there: bool) -> Option<&'static str> {
    let is_wanted = |symbol: &&Symbol| symbol.is_there == is_there && !symbol.name.starts_with("__");
    let names = library.symbols.iter().filter(is_wanted);
    names
        .map(|symbol| symbol.name)
        .find(|name| name.ends_with("Create_v2") || name.contains("Get") && !name.contains("Error"))
}

#[test]
fn names_of_programs_whose_default_stream_is_each_threads_own_are_there_where_the_plain_ones_are() {
    let there = |name: &str| {
        LIBRARIES.iter().flat_map(|library| library.symbols).any(|one| one.name == name && one.is_there)
    };
    let plain = |name: &'static str| name.strip_suffix("_ptsz").or_else(|| name.strip_suffix("_ptds"));
    let mut count = 0;
    for Symbol { name, is_there } in LIBRARIES.iter().flat_map(|library| library.symbols) {
        if plain(name).is_some_and(there) {
            count += 1;
            assert!(*is_there, "{name} is missing");
        }
    }
    assert!(count > 40, "the lists have {count} such names");
}

#[test]
fn every_function_of_every_library_is_found_and_jumps_to_the_core() {
    let folder = Folder::new("every");
    let mut text =
        String::from("#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdio.h>\n#include <stdlib.h>\n");
    text.push_str("static void *open_(const char *f) { void *l = dlopen(f, RTLD_NOW | RTLD_LOCAL); if (!l) { puts(dlerror()); exit(1); } return l; }\n");
    text.push_str("static void call(void *l, const char *n, const char *v) { int (*f)(int, int, int, int, int, int, int) = v ? dlvsym(l, n, v) : dlsym(l, n);\n  if (!f) { puts(dlerror()); exit(1); } f(1, 2, 3, 4, 5, 6, 7); }\n");
    text.push_str("int main(void) { void *l;\n");
    let mut wanted = String::new();
    for library in LIBRARIES {
        writeln!(text, "l = open_(\"{}\");", library.file).unwrap();
        let version = library.version.map_or("0".to_string(), |version| format!("\"{version}\""));
        for symbol in library.symbols {
            writeln!(text, "call(l, \"{}\", {version});", symbol.name).unwrap();
            let lacks = format!("{} lacks ", library.short);
            writeln!(wanted, "{}{}", if symbol.is_there { "" } else { &lacks }, symbol.name).unwrap();
        }
    }
    text.push_str("return 0; }\n");
    folder.compile("every.c", &text, "every", &["-ldl"]);
    assert_eq!(stdout(&folder.run("every")), wanted);
}

#[test]
fn a_linked_program_starts_without_a_word_of_the_loader() {
    let folder = Folder::new("linked");
    let mut text = String::from("#include <stdio.h>\n");
    let mut body = String::new();
    let mut wanted = String::new();
    for library in LIBRARIES {
        for (is_there, value) in [(true, 7), (false, MISSING)] {
            let Some(name) = some(library, is_there) else { continue };
            writeln!(text, "int {name}(int, int, int, int, int, int, int);").unwrap();
            writeln!(body, "printf(\"%d\\n\", {name}(1, 2, 3, 4, 5, 6, 7));").unwrap();
            let lacks = format!("{} lacks ", library.short);
            writeln!(wanted, "{}{name}\n{value}", if is_there { "" } else { &lacks }).unwrap();
        }
    }
    write!(text, "int main(void) {{ setvbuf(stdout, 0, _IOLBF, 4096);\n{body} return 0; }}\n").unwrap();
    let files: Vec<_> = LIBRARIES.iter().map(|library| format!("-l:{}", library.file)).collect();
    let mut arguments = vec!["-L.", "-Wl,-rpath-link,."];
    arguments.extend(files.iter().map(String::as_str));
    folder.compile("linked.c", &text, "linked", &arguments);
    assert_eq!(stdout(&folder.run("linked")), wanted);
}

/// Functions that return a pointer return null, so that nobody follows a status.
#[test]
fn a_missing_function_that_returns_a_pointer_returns_null() {
    let folder = Folder::new("null");
    let names = [
        "__cudaGetProcAddress",
        "cublasLtGetStatusName",
        "cublasGetStatusName",
        "nvmlErrorString",
        "cublasSdot",
    ];
    let is_missing = |name: &&str| {
        let symbol = owner(name).and_then(|library| library.symbol(name));
        !symbol.unwrap_or_else(|| panic!("{name} is in no list")).is_there
    };
    let Some(name) = names.into_iter().find(is_missing) else { return };
    let library = owner(name).unwrap();
    let text = format!(
        "#include <stdio.h>\nvoid *{name}(int);\nint main(void) {{ setvbuf(stdout, 0, _IOLBF, 4096); printf(\"%p\\n\", {name}(1)); return 0; }}\n"
    );
    let file = format!("-l:{}", library.file);
    folder.compile("null.c", &text, "null", &["-L.", "-Wl,-rpath-link,.", &file]);
    assert_eq!(stdout(&folder.run("null")), format!("{} lacks {name}\n(nil)\n", library.short));
}

#[test]
fn a_name_belongs_to_one_library_only() {
    for library in LIBRARIES {
        assert!(library.symbols.windows(2).all(|pair| pair[0].name < pair[1].name), "{}", library.short);
        for symbol in library.symbols {
            assert_eq!(owner(symbol.name).map(|owner| owner.short), Some(library.short), "{}", symbol.name);
        }
    }
}
