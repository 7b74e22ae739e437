//! `hinterland rm`: removes objects.

use crate::context::Context;
use crate::failure::Failure;
use hinterland_types::ObjectName;
use serde_json::{Value, json};
use std::process::ExitCode;

/// What to remove.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The objects' names
    #[arg(required = true, value_name = "NAME")]
    names: Vec<ObjectName>,
}

/// Removes each object that it can; what is mapped or open stays readable until it is closed.
///
/// # Errors
/// [`Failure`] if the node cannot be asked. An object that cannot be removed is told, and the status is 1.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let pool = context.pool()?;
    let mut shown = Vec::new();
    let mut code = ExitCode::SUCCESS;
    for name in &arguments.names {
        match pool.remove(name) {
            Ok(()) => {
                context.output.say(format_args!("removed {name}"));
                shown.push(json!({ "name": name.as_str(), "removed": true }));
            }
            Err(error @ hinterland_pool::PoolError::Refused { .. }) => {
                let failure = Failure::from(error);
                if !context.output.json {
                    context.output.fail(&failure);
                }
                code = failure.exit_code();
                shown.push(json!({ "name": name.as_str(), "removed": false, "error": failure.json() }));
            }
            Err(error) => return Err(error.into()),
        }
    }
    if context.output.json {
        context.output.json(&Value::Array(shown))?;
    }
    Ok(code)
}
