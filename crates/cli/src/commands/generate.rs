//! `hinterland generate`: writes manual pages, and the reference of all commands.

use crate::arguments;
use crate::context::Context;
use crate::failure::Failure;
use clap::{Arg, Command, CommandFactory};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What to write, and where.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand, Debug)]
enum What {
    /// Write one manual page a command
    Man {
        /// The folder to write into
        folder: PathBuf,
    },
    /// Write commands.md: every command with its options
    Reference {
        /// The folder to write into; standard output if it is left out
        folder: Option<PathBuf>,
    },
}

/// Writes what is asked for.
///
/// # Errors
/// [`Failure`] when the folder cannot be written to.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let mut root = arguments::Arguments::command();
    root.build();
    let written = match &arguments.what {
        What::Man { folder } => manual_pages(&root, folder)?,
        What::Reference { folder: None } => {
            context.output.data(reference(&root).trim_end())?;
            return Ok(ExitCode::SUCCESS);
        }
        What::Reference { folder: Some(folder) } => {
            vec![write(folder, "commands.md", reference(&root).as_bytes())?]
        }
    };
    if context.output.json {
        context.output.json(&json!({ "written": written }))?;
    } else {
        context.output.say(format_args!("wrote {} files", written.len()));
    }
    Ok(ExitCode::SUCCESS)
}

fn manual_pages(root: &Command, folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut written = Vec::new();
    for (title, command) in visible(root) {
        let name = title.replace(' ', "-");
        let page = clap_mangen::Man::new(command.clone()).title(name.to_uppercase());
        let mut text = Vec::new();
        page.render(&mut text).map_err(|error| Failure::file("writing", folder, &error))?;
        written.push(write(folder, &format!("{name}.1"), &text)?);
    }
    Ok(written)
}

fn write(folder: &Path, name: &str, text: &[u8]) -> Result<PathBuf, Failure> {
    let path = folder.join(name);
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(&path, text))
        .map_err(|error| Failure::file("writing", &path, &error))?;
    Ok(path)
}

/// Every command that help shows, with its full title, parents before children.
fn visible(root: &Command) -> Vec<(String, &Command)> {
    let mut found = Vec::new();
    let mut waiting = vec![(root.get_name().to_owned(), root)];
    while let Some((title, command)) = waiting.pop() {
        let children: Vec<_> = command
            .get_subcommands()
            .filter(|child| !child.is_hide_set() && child.get_name() != "help")
            .map(|child| (format!("{title} {}", child.get_name()), child))
            .collect();
        waiting.extend(children.into_iter().rev());
        found.push((title, command));
    }
    found
}

fn reference(root: &Command) -> String {
    let mut text = String::from(
        "# Commands\n\nMade by `hinterland generate reference`. Options of the last section are understood by every command.\n",
    );
    for (title, command) in visible(root).into_iter().skip(1) {
        text.push_str(&section(&title, command));
    }
    text.push_str("\n## Everywhere\n\n");
    for argument in root.get_arguments().filter(|argument| argument.is_global_set()) {
        text.push_str(&line(argument));
    }
    let after = root.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    text.push_str(&format!("\n```text\n{after}\n```\n"));
    text
}

fn section(title: &str, command: &Command) -> String {
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").trim();
    let mut text = format!("\n## {title}\n\n{about}.\n\n```text\n{usage}\n```\n\n").replace("..\n", ".\n");
    let own = command.get_arguments().filter(|argument| !argument.is_global_set() && !argument.is_hide_set());
    for argument in own.filter(|argument| argument.get_id() != "help") {
        text.push_str(&line(argument));
    }
    if let Some(after) = command.get_after_help() {
        text.push_str(&format!("\n```text\n{after}\n```\n"));
    }
    text
}

fn line(argument: &Arg) -> String {
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let defaults: Vec<_> =
        argument.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    let default = match defaults.join(" ") {
        text if text.is_empty() || argument.is_hide_default_value_set() || text == "false" => String::new(),
        text => format!(" (default `{text}`)"),
    };
    format!("- `{argument}`: {help}{default}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shown_command_stands_in_the_reference_and_no_hidden_one() {
        let mut root = arguments::Arguments::command();
        root.build();
        let text = reference(&root);
        for command in root.get_subcommands().filter(|command| command.get_name() != "help") {
            let title = format!("\n## hinterland {}\n", command.get_name());
            assert_eq!(text.contains(&title), !command.is_hide_set(), "{title}");
        }
        assert!(text.contains("- `--budget <SIZE>`: "), "{text}");
        assert!(text.contains("HINTERLAND_SOCKET"));
    }
}
