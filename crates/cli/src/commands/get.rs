//! `hinterland get`: copies an object out of the pool.

use crate::context::Context;
use crate::failure::Failure;
use crate::progress::{Progress, summary};
use crate::shapes;
use hinterland_pool::Object;
use hinterland_types::ObjectName;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Bytes read at once, whole blocks of checksums: large enough for the network, small enough for the progress to move.
const PIECE_BYTES: u64 = 8 << 20;

/// What to get, and where to write it.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The object's name
    name: ObjectName,
    /// The file, or - for standard output [default: the last part of the name]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

/// Copies the whole object. A file appears under its name only when all bytes are in it, as they were put.
///
/// # Errors
/// [`Failure`]; no part of a file is left then.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let pool = context.pool()?;
    let object = pool.open_object(&arguments.name)?;
    let path = arguments.file.clone().unwrap_or_else(|| PathBuf::from(last_part(&arguments.name)));
    let mut progress = Progress::new(context.output, arguments.name.as_str(), Some(object.info().bytes));
    if path.as_os_str() == "-" {
        if context.output.json {
            let hint = "write to a file, or leave --json out";
            return Err(Failure::usage("standard output cannot have both the bytes and JSON", hint));
        }
        let stdout = &mut io::stdout().lock();
        let replaced = copy(&object, stdout, &mut progress, |error| Failure::output(&error))?;
        progress.finish();
        warn(context, &arguments.name, replaced);
        return Ok(ExitCode::SUCCESS);
    }
    let replaced = write_file(&object, &path, &mut progress)?;
    progress.finish();
    warn(context, &arguments.name, replaced);
    let info = object.info();
    if context.output.json {
        context.output.json(&shapes::object(info))?;
    } else {
        let moved = summary(info.bytes, progress.elapsed());
        context.output.say(format_args!("got {}: {moved}, in {}", info.name, path.display()));
    }
    Ok(ExitCode::SUCCESS)
}

/// Says that a home has wrong blocks, although what was written is right.
fn warn(context: &Context, name: &ObjectName, replaced: u64) {
    if replaced > 0 {
        let plural = if replaced == 1 { "block" } else { "blocks" };
        context.output.warn(format_args!(
            "{replaced} {plural} of {name} came wrong from a home, and right from another one (hint: `hinterland verify --mend {name}`)"
        ));
    }
}

fn last_part(name: &ObjectName) -> &str {
    name.as_str().rsplit('/').next().unwrap_or(name.as_str())
}

fn write_file(object: &Object, path: &Path, progress: &mut Progress) -> Result<u64, Failure> {
    let failed = |error: io::Error| Failure::file("writing", path, &error);
    if !fs::metadata(path).map_or(true, |metadata| metadata.is_file()) {
        // A pipe or a device takes the bytes itself; a folder refuses.
        let mut file = File::options().write(true).open(path).map_err(failed)?;
        return copy(object, &mut file, progress, failed);
    }
    let partial = partial_path(path);
    let mut file = File::create(&partial).map_err(failed)?;
    let outcome = copy(object, &mut file, progress, failed)
        .and_then(|replaced| fs::rename(&partial, path).map_err(failed).map(|()| replaced));
    if outcome.is_err() {
        // What failed is told; that a part stays beside it would be all that is lost here.
        let _ = fs::remove_file(&partial);
    }
    outcome
}

/// Beside the file, so that renaming stays on one disk, and hidden.
fn partial_path(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    path.with_file_name(format!(".{name}.{}.partial", std::process::id()))
}

/// Copies all bytes, each block compared with its checksum before it is written; how many came wrong from one home and right
/// from another.
fn copy(
    object: &Object,
    target: &mut dyn Write,
    progress: &mut Progress,
    failed: impl Fn(io::Error) -> Failure,
) -> Result<u64, Failure> {
    let bytes = object.info().bytes;
    let mut reader = object.checked();
    // At most a piece, so it fits.
    let mut buffer = vec![0; bytes.min(PIECE_BYTES) as usize];
    let mut offset = 0;
    while offset < bytes {
        let piece = &mut buffer[..(bytes - offset).min(PIECE_BYTES) as usize];
        reader.read_at(offset, piece)?;
        target.write_all(piece).map_err(&failed)?;
        offset += piece.len() as u64;
        progress.moved(offset);
    }
    target.flush().map_err(&failed)?;
    Ok(reader.replaced_blocks())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_named_after_the_last_part_of_the_name() {
        assert_eq!(last_part(&ObjectName::parse("models/small.gguf").unwrap()), "small.gguf");
        assert_eq!(last_part(&ObjectName::parse("small").unwrap()), "small");
    }

    #[test]
    fn a_part_of_a_file_is_hidden_beside_it() {
        let path = partial_path(Path::new("/a/b.bin"));
        assert_eq!(path.parent(), Some(Path::new("/a")));
        assert!(path.file_name().unwrap().to_str().unwrap().starts_with(".b.bin."));
    }
}
