//! What the soak does to the memory, the disk and the clock under a node.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library that sets the clock of who loads it first.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/programs/clock.c");
const DAY: i64 = 86_400;

/// The wall clock of the nodes. Without a C compiler it does not jump.
pub struct Clock {
    library: Option<PathBuf>,
    offset: PathBuf,
}

impl Clock {
    /// Right at first.
    pub fn new(folder: &Path) -> Self {
        let library = folder.join("clock.so");
        let mut compile = Command::new("cc");
        compile.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(SOURCE).arg("-ldl");
        let is_built = compile.status().is_ok_and(|status| status.success());
        if !is_built {
            eprintln!("no C compiler: the clock does not jump");
        }
        Self { library: is_built.then_some(library), offset: folder.join("clock") }
    }

    /// A command whose processes go by this clock.
    pub fn command(&self, command: &mut Command) {
        if let Some(library) = &self.library {
            command.env("LD_PRELOAD", library).env("CLOCK_OFFSET_FILE", &self.offset);
        }
    }

    /// Sets it forth or back by up to forty days, or right; whether it can be set.
    pub fn jump(&self, number: u64) -> bool {
        let days = [0, 40, -40, 1, -1][(number % 5) as usize];
        let seconds = days * DAY + (number >> 8) as i64 % 1000;
        let draft = self.offset.with_extension("draft");
        // Whole or not at all: nodes read it all the time.
        std::fs::write(&draft, seconds.to_string()).unwrap();
        std::fs::rename(&draft, &self.offset).unwrap();
        self.library.is_some()
    }
}

/// Flips one bit of the file of blocks in a folder; false if there is none.
pub fn flip(folder: &Path, number: u64) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut blocks =
        entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "blocks"));
    let Some(path) = blocks.next() else { return false };
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let at = number % file.metadata().unwrap().len().max(1);
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ (1 << (number >> 40 & 7))], at).unwrap();
    true
}
