//! `hinterland get`: copies an object out of the pool.

mod target;

use crate::context::Context;
use crate::failure::Failure;
use crate::output::check_stdout;
use crate::progress::{Progress, summary};
use crate::shapes;
use hinterland_os::notice::Notice;
use hinterland_pool::Object;
use hinterland_proto::control::ObjectInfo;
use hinterland_types::ObjectName;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use target::Target;

/// Bytes read at once, whole blocks of checksums: large enough for the network, small enough for the progress to move.
const PIECE_BYTES: u64 = 8 << 20;

/// Names of standard output, which may be a file that others write to as well.
const STANDARD_OUTPUT: [&str; 4] = ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"];

/// What to get, and where to write it.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The object's name
    name: ObjectName,
    /// The file, or - for standard output [default: the last part of the name]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

/// Copies the whole object. A file appears under its name only when all bytes are in it, as they were put; until then nothing of it is
/// seen.
///
/// # Errors
/// [`Failure`]; no part of a file is left then.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let path = arguments.file.clone().unwrap_or_else(|| PathBuf::from(last_part(&arguments.name)));
    let is_stdout = STANDARD_OUTPUT.iter().any(|name| path == Path::new(name));
    if is_stdout {
        check_stdout()?;
    }
    // Before the pool, which has threads.
    let target = if is_stdout || is_stream(&path) { None } else { Some(Target::create(&path)?) };
    let pool = context.pool()?;
    let object = pool.open_object(&arguments.name)?;
    let mut progress = Progress::new(context.output, arguments.name.as_str(), Some(object.info().bytes));
    // What lies here comes from memory.
    let notice = (!object.is_local()).then(|| context.notice(homes(object.info())));
    if is_stdout {
        if context.output.json {
            let hint = "write to a file, or leave --json out";
            return Err(Failure::usage("standard output cannot have both the bytes and JSON", hint));
        }
        let stdout = &mut io::stdout().lock();
        let replaced = copy(&object, stdout, &mut progress, notice, |error| Failure::output(&error))?;
        progress.finish();
        warn(context, &arguments.name, replaced);
        return Ok(ExitCode::SUCCESS);
    }
    let replaced = write_file(&object, &path, target, &mut progress, notice)?;
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

/// Where the bytes come from, in words.
fn homes(info: &ObjectInfo) -> String {
    let up = info.homes.iter().filter(|home| home.up);
    let places: Vec<String> = up.map(|home| format!("{} in rack {}", home.address, home.rack)).collect();
    match places.is_empty() {
        true => format!("the bytes of {}, no home of which is up", info.name),
        false => format!("the bytes of {} from {}", info.name, places.join(" or ")),
    }
}

fn last_part(name: &ObjectName) -> &str {
    name.as_str().rsplit('/').next().unwrap_or(name.as_str())
}

/// Whether a pipe or a device is there, which takes the bytes itself; or a folder, which refuses.
fn is_stream(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| !metadata.is_file())
}

fn write_file(
    object: &Object,
    path: &Path,
    target: Option<Target>,
    progress: &mut Progress,
    notice: Option<Notice>,
) -> Result<u64, Failure> {
    let failed = |error: io::Error| Failure::file("writing", path, &error);
    let Some(mut target) = target else {
        let mut file = File::options().write(true).open(path).map_err(failed)?;
        return copy(object, &mut file, progress, notice, failed);
    };
    let replaced = copy(object, target.file(), progress, notice, failed)?;
    target.finish().map_err(failed)?;
    Ok(replaced)
}

/// Copies all bytes, each block compared with its checksum before it is written; how many came wrong from one home and right
/// from another.
fn copy(
    object: &Object,
    target: &mut dyn Write,
    progress: &mut Progress,
    notice: Option<Notice>,
    failed: impl Fn(io::Error) -> Failure,
) -> Result<u64, Failure> {
    let bytes = object.info().bytes;
    let mut reader = object.checked();
    // At most a piece, so it fits.
    let mut buffer = vec![0; bytes.min(PIECE_BYTES) as usize];
    let mut offset = 0;
    while offset < bytes {
        let piece = &mut buffer[..(bytes - offset).min(PIECE_BYTES) as usize];
        notice.iter().for_each(Notice::wait);
        reader.read_at(offset, piece)?;
        // Whoever takes the bytes may take as long as they like.
        notice.iter().for_each(Notice::go);
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
}
