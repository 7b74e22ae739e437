//! The programs of `examples/c`, compiled with the system's compiler and linked with the library both ways.

use crate::racks::Racks;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Compiles an example against the library that was built for this test.
fn compile(name: &str, output: &Path, is_static: bool) -> PathBuf {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let libraries = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let program = output.join(format!("{name}-{is_static}"));
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-I"]);
    command.arg(tree.join("include")).arg(tree.join(format!("examples/c/{name}.c"))).arg("-o").arg(&program);
    if is_static {
        command.arg(libraries.join("libhinterland.a")).args(["-lpthread", "-ldl", "-lm", "-lgcc_s"]);
    } else {
        command.arg("-L").arg(&libraries).arg("-lhinterland");
        command.arg(format!("-Wl,-rpath,{}", libraries.display()));
    }
    finished(&mut command);
    program
}

fn finished(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    output
}

fn said(racks: &Racks, program: &Path, words: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(words).env("HINTERLAND_SOCKET", racks.socket("a").to_str().unwrap());
    String::from_utf8(finished(&mut command).stdout).unwrap()
}

#[test]
fn a_c_program_maps_what_it_put_into_either_rack() {
    let racks = Racks::start();
    let file = racks.folder().join("file");
    std::fs::write(&file, [3u8; 100_000]).unwrap();
    for (is_static, rack) in [(false, "a"), (true, "b")] {
        let program = compile("map_object", racks.folder(), is_static);
        let text = said(&racks, &program, &[file.to_str().unwrap(), "models/c", rack]);
        assert!(text.contains("models/c: 100000 bytes at 0x"), "{text}");
        assert!(text.contains("sum 300000, begins 03 03 03 03 03 03 03 03"), "{text}");
    }
    let program = compile("map_object", racks.folder(), false);
    let mut command = Command::new(program);
    command.args([file.to_str().unwrap(), "models/c"]).env("HINTERLAND_SOCKET", "/nowhere/socket");
    let output = command.output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("hint:"));
}

#[test]
fn processes_that_add_to_a_counter_under_a_lock_lose_nothing() {
    let racks = Racks::start();
    let program = compile("shared_counter", racks.folder(), false);
    let address = said(&racks, &program, &["new"]);
    let address = address.trim();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| said(&racks, &program, &["add", address, "40"]));
        }
    });
    assert_eq!(said(&racks, &program, &["show", address]).trim(), "120");
}
