//! `hinterland gpu libraries`: the libraries under CUDA's names in a folder that stands first for a program's loader.

use crate::context::Context;
use crate::failure::Failure;
use crate::run::cuda;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// Where to.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
A program that is started with this folder first in LD_LIBRARY_PATH finds these libraries in place of the vendor's.")]
pub struct Arguments {
    /// The folder; it is made if it is not there
    folder: PathBuf,
}

/// Writes the libraries, and prints their paths or a JSON array.
///
/// # Errors
/// [`Failure`].
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let written = cuda::write_libraries(&arguments.folder, &cuda::find_core()?)?;
    let texts: Vec<String> = written.iter().map(|path| path.display().to_string()).collect();
    context.output.either(&json!(texts), || texts.join("\n"))?;
    Ok(ExitCode::SUCCESS)
}
