//! `hinterland put`: puts a file or a stream into the pool.

use crate::context::Context;
use crate::failure::Failure;
use crate::progress::{Progress, summary};
use crate::shapes;
use hinterland_os::notice::Notice;
use hinterland_pool::PutOptions;
use hinterland_proto::control::Placement;
use hinterland_types::limits::COPIES_MAX;
use hinterland_types::{ObjectName, RackName};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What to put, and where.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  hinterland put model.gguf --name models/small --copies 2
  zstdcat weights.zst | hinterland put - --name weights --rack b

An object is visible once all its bytes are in every copy and checked; an interrupted put leaves \
nothing.")]
pub struct Arguments {
    /// The file, or - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The object's name [default: the file's name]
    #[arg(long, value_name = "NAME")]
    name: Option<ObjectName>,
    /// The rack of the first copy [default: this rack, or else the one with the most room]
    #[arg(long, value_name = "RACK")]
    rack: Option<RackName>,
    /// Copies on different nodes
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=i64::from(COPIES_MAX)))]
    copies: u8,
}

/// Puts the whole input and shows how far it is.
///
/// # Errors
/// [`Failure`]; nothing is left in the pool then.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let name = name(arguments)?;
    let (input, bytes) = open(&arguments.file)?;
    let options = PutOptions {
        bytes,
        copies: arguments.copies,
        placement: arguments.rack.clone().map_or(Placement::Policy, Placement::Rack),
    };
    let pool = context.pool()?;
    let mut progress = Progress::new(context.output, name.as_str(), bytes);
    let notice = context.notice(format!("the homes of {name}, which take its bytes"));
    let mut input = Heard { input, notice: &notice };
    let put = pool.put(&mut input, &name, &options, &mut |moved| progress.moved(moved));
    drop(notice);
    progress.finish();
    let info = put?;
    if context.output.json {
        context.output.json(&shapes::object(&info))?;
    } else {
        let racks: Vec<String> = info.homes.iter().map(|home| home.rack.to_string()).collect();
        let moved = summary(info.bytes, progress.elapsed());
        context.output.say(format_args!("put {name}: {moved}, in rack {}", racks.join(" and ")));
    }
    Ok(ExitCode::SUCCESS)
}

/// An input, which may be waited for without a word: whoever gives it knows how long it takes.
struct Heard<'notice> {
    input: Box<dyn Read>,
    notice: &'notice Notice,
}

impl Read for Heard<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.notice.go();
        let bytes = self.input.read(into);
        self.notice.wait();
        bytes
    }
}

fn name(arguments: &Arguments) -> Result<ObjectName, Failure> {
    if let Some(name) = &arguments.name {
        return Ok(name.clone());
    }
    if arguments.file.as_os_str() == "-" {
        return Err(Failure::usage("standard input has no name", "give the object one with --name NAME"));
    }
    let name = arguments.file.file_name().and_then(|name| name.to_str());
    let parsed = name.map(ObjectName::parse).and_then(Result::ok);
    parsed.ok_or_else(|| {
        Failure::usage(
            format!("the name of {} cannot be an object's name", arguments.file.display()),
            "give the object another with --name NAME",
        )
    })
}

/// The input, and its size if it is a plain file.
fn open(path: &Path) -> Result<(Box<dyn Read>, Option<u64>), Failure> {
    if path.as_os_str() == "-" {
        return Ok((Box::new(io::stdin()), None));
    }
    let failed = |error| Failure::file("reading", path, &error);
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        let hint = "put its files one by one: for f in DIR/*; do hinterland put \"$f\"; done";
        return Err(Failure::usage(format!("{} is a folder", path.display()), hint));
    }
    Ok((Box::new(file), metadata.is_file().then_some(metadata.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(file: &str) -> Arguments {
        Arguments { file: PathBuf::from(file), name: None, rack: None, copies: 1 }
    }

    #[test]
    fn an_object_is_named_after_its_file() {
        assert_eq!(name(&arguments("/a/b/model.gguf")).unwrap().as_str(), "model.gguf");
    }

    #[test]
    fn what_has_no_name_must_be_given_one() {
        for file in ["-", "..", "/"] {
            let failure = name(&arguments(file)).unwrap_err();
            assert!(failure.hint.contains("--name NAME"), "{file}: {failure:?}");
        }
    }

    #[test]
    fn a_folder_and_a_missing_file_are_told_apart() {
        assert!(open(Path::new("/")).err().unwrap().text.contains("is a folder"));
        assert!(open(Path::new("/nonexistent")).err().unwrap().text.contains("reading /nonexistent failed"));
    }
}
