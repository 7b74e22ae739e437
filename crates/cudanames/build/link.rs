//! Assembly into shared libraries, by the compiler driver that links Rust programs too.

use std::path::PathBuf;
use std::process::Command;

const CORE: &str = "libhinterland_cuda.so";

/// Links files in one folder.
pub struct Linker {
    folder: PathBuf,
}

impl Linker {
    /// A linker that writes into a folder.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Makes a file that has the core's name and functions, for the linker only. It lies in a folder of its own, where nothing runs.
    pub fn stub_of_core(&self, assembly: &str) -> Result<(), String> {
        let folder = self.folder.join("core");
        std::fs::create_dir_all(&folder)
            .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        let mut command = self.command("core/core.s", assembly)?;
        command.arg(format!("-Wl,-soname,{CORE}")).arg("-o").arg(folder.join(CORE));
        run(command)
    }

    /// Makes a library that needs the core, with one version for all symbols or none. A symbol that neither has is an error.
    pub fn library(&self, file: &str, version: Option<&str>, assembly: &str) -> Result<(), String> {
        let mut command = self.command(&format!("{file}.s"), assembly)?;
        if let Some(version) = version {
            let script = self.folder.join(format!("{file}.versions"));
            write(&script, &format!("{version} {{ global: *; }};\n"))?;
            command.arg(format!("-Wl,--version-script={}", script.display()));
        }
        command.arg(format!("-Wl,-soname,{file}")).args(["-Wl,-z,defs", "-Wl,--no-as-needed"]);
        command.arg("-o").arg(self.folder.join(file)).arg("-L").arg(self.folder.join("core"));
        command.arg("-lhinterland_cuda");
        run(command)
    }

    fn command(&self, name: &str, assembly: &str) -> Result<Command, String> {
        let source = self.folder.join(name);
        write(&source, assembly)?;
        let mut command = cc::Build::new().cargo_warnings(false).get_compiler().to_command();
        command.args([
            "-shared",
            "-nostdlib",
            "-Wl,--hash-style=gnu",
            "-Wl,--build-id=none",
            "-Wl,-z,relro,-z,now",
        ]);
        command.arg(source);
        Ok(command)
    }
}

fn write(path: &PathBuf, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

fn run(mut command: Command) -> Result<(), String> {
    let output = command.output().map_err(|error| {
        format!("cannot run {:?}: {error} (hint: install a C compiler)", command.get_program())
    })?;
    if output.status.success() {
        return Ok(());
    }
    let told = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?} failed:\n{told}"))
}
