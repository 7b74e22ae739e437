//! `hinterland run`: runs a program that sees the pool's objects as files and maps them from memory.

use crate::context::Context;
use crate::failure::{Exit, Failure};
use crate::run::{far, gpu, model, namespace, preload, program};
use crate::size::Size;
use hinterland_far::program::{STATIC, find, refusal};
use hinterland_fuse::{MountOptions, Mounted, PoolSource, ReadPreference};
use hinterland_pool::Pool;
use hinterland_proto::PoolId;
use hinterland_types::ObjectName;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::channel;

/// Which program, and how it sees the pool.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example: hinterland run --budget 2G -- llama-completion -m /pool/models/small.gguf -p Hello
         hinterland run --gpu gpu-node:7410 -- llama-server -ngl 99 -m small.gguf
         hinterland run --local 2G --far ssd:/var/tmp,lz4 -- python3 train.py
         hinterland run --gpu gpu-node:7410 --model pool:small.gguf -- llama-server -ngl 99 -m small.gguf

With --gpu the program finds CUDA's libraries replaced by ours, and its devices are those of the GPU \
node (`hinterland gpu serve`). A node on another host needs the key that it was started with, in a file that \
HINTERLAND_KEY_FILE names. `hinterland gpu coverage PROGRAM` says whether a program calls something that is not \
there. Without a node of a pool on this host the program runs without a mount.

With --local at most SIZE of the program's memory stays on this host; the rest is in the back ends that --far names, and comes \
back as the program touches it. 50% is half of what the program uses. The program needs no change, but must use the GNU C \
library as a shared one; forks are followed. It needs root, or CAP_SYS_PTRACE and the right to userfaultfd. Other options work \
as usual, and the pool is not needed.

With --model the weights of NAME do not pass through this host: a GPU node that was started with --pool reads them \
from the pool, and begins to at the program's first call of CUDA. Of the program's words, those that are NAME or \
pool:NAME, also behind a `=` of an option, become the path of the object's file.

The mount is private to the program and its children, and goes with them. The program gets the \
signals that `hinterland run` gets, and its status is ours. As root the folder is made if it is missing, and \
stays, since other programs may have mounts of their own on it.")]
pub struct Arguments {
    /// Most bytes that the host keeps of an object of another rack
    #[arg(long, value_name = "SIZE", value_parser = budget)]
    budget: Option<Size>,
    /// Bytes that are fetched at once, a power of two from 64K to 64M [default: chosen from the accesses]
    #[arg(long, value_name = "SIZE", value_parser = unit)]
    unit: Option<Size>,
    /// The folder where the program sees the objects
    #[arg(long, default_value = "/pool", value_name = "DIR")]
    at: PathBuf,
    /// Let the program make, write, rename and remove files there, as `hinterland mount --writable` does
    #[arg(long)]
    writable: bool,
    /// Show the program nothing of the pool, which needs the right to mount; for --local and --gpu
    #[arg(long, conflicts_with_all = ["at", "budget", "unit", "writable", "model"])]
    no_mount: bool,
    /// Do not preload the library: mapped files are then read through the mount
    #[arg(long)]
    no_preload: bool,
    /// Do not let the kernel read local objects by itself
    #[arg(long)]
    no_passthrough: bool,
    /// The GPU node whose devices the program has: unix:PATH or tcp:HOST:PORT
    #[arg(long, value_name = "ADDRESS", value_parser = gpu::address)]
    gpu: Option<String>,
    /// Device memory to set aside at the start [default: what the node gives to everybody]
    #[arg(long, value_name = "SIZE", requires = "gpu")]
    gpu_memory: Option<Size>,
    /// An object of the pool whose bytes the GPU node fetches by itself; may be given several times
    #[arg(long, value_name = "pool:NAME", value_parser = model::name, requires = "gpu")]
    model: Vec<ObjectName>,
    #[command(flatten)]
    far: far::Choice,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// What `hinterland run` starts between itself and the program.
#[derive(clap::Args, Debug)]
pub struct Become {
    #[arg(long)]
    parent: u32,
    #[arg(long)]
    preload: Option<OsString>,
    #[arg(long)]
    open_files: Option<u64>,
    #[arg(required = true, trailing_var_arg = true)]
    program: Vec<OsString>,
}

/// The least that the host keeps of an object: below it nothing is read from other racks in a bearable time, and most likely a unit was
/// left out.
const BUDGET_BYTES_MIN: u64 = 1 << 20;

fn budget(text: &str) -> Result<Size, String> {
    let size: Size = text.parse().map_err(|error: crate::size::SizeError| error.to_string())?;
    if size.bytes < BUDGET_BYTES_MIN {
        return Err(format!("{size} is too little of an object (hint: at least 1M, as in --budget 2G)"));
    }
    Ok(size)
}

fn unit(text: &str) -> Result<Size, String> {
    use hinterland_types::limits::{FAULT_UNIT_BYTES_MAX, FAULT_UNIT_BYTES_MIN};
    let size: Size = text.parse().map_err(|error: crate::size::SizeError| error.to_string())?;
    let fits = (FAULT_UNIT_BYTES_MIN..=FAULT_UNIT_BYTES_MAX).contains(&size.bytes);
    if fits && size.bytes.is_power_of_two() {
        Ok(size)
    } else {
        Err("a unit is a power of two from 64K to 64M (hint: 2M is a good start)".to_owned())
    }
}

/// Runs the program and ends with its status.
///
/// # Errors
/// [`Failure`] when the pool, the mount or the library cannot be had; the program is not started then.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let socket = absolute(&context.socket())?;
    let libraries = arguments.gpu.is_some().then(|| libraries(arguments, context)).transpose()?;
    // Ask before anything else, so that a missing node is told first.
    let pool = if arguments.no_mount { without_pool(arguments)? } else { pool(arguments, context)? };
    let signals = program::Signals::hold()?;
    let mut preloaded = Vec::new();
    let mut variables = Vec::new();
    if let (Some(node), Some(libraries)) = (&arguments.gpu, &libraries) {
        preloaded.extend_from_slice(libraries.paths());
        variables.extend(gpu::variables(node, arguments.gpu_memory.map(|size| size.bytes), libraries));
    }
    let mounted = if let Some(pool) = pool {
        if !arguments.no_preload {
            preloaded.push(preload::find()?);
        }
        namespace::make_mount_point(&arguments.at)?;
        namespace::enter()?;
        let mounted = mount(arguments, &socket)?;
        variables.push(("HINTERLAND_SOCKET", socket.into_os_string()));
        variables.push((program::MOUNT_VARIABLE, mounted.device().to_string().into()));
        variables.push(("HINTERLAND_MOUNT_POOL", format!("{:x}", pool.0).into()));
        if !arguments.model.is_empty() {
            let names: Vec<&str> = arguments.model.iter().map(ObjectName::as_str).collect();
            variables.push(("HINTERLAND_GPU_MODELS", names.join("\n").into()));
            // The program asks for all of its model ahead, which here is the GPU node's to fetch.
            variables.push(("HINTERLAND_NO_PREFETCH", "1".into()));
        }
        let sizes = [("HINTERLAND_BUDGET", arguments.budget), ("HINTERLAND_UNIT", arguments.unit)];
        variables.extend(
            sizes.into_iter().filter_map(|(name, size)| Some((name, size?.bytes.to_string().into()))),
        );
        Some(mounted)
    } else {
        None
    };
    let supervised = arguments.far.start(&arguments.program, context)?;
    if let Some(supervised) = &supervised {
        if !preloaded.iter().any(|path| path.ends_with(preload::LIBRARY)) {
            preloaded.push(preload::find()?);
        }
        variables.push((far::SOCKET_VARIABLE, supervised.socket()));
    }
    let words = model::with_paths(&arguments.program, &arguments.model, &arguments.at);
    let mut child = program::start(&words, &preloaded, &variables, context.output)?;
    let code = program::watch(&signals, &mut child)?;
    if let Some(supervised) = supervised {
        drop(supervised.finish(&context.output, child.try_wait().ok().flatten()));
    }
    // Children of the program that go on lose the mount, as they lose the session of their parent.
    if let Some(mounted) = mounted {
        mounted.unmount()?;
    }
    Ok(code)
}

/// The pool to mount, if there is one, and if the program has no use of anything else.
fn pool(arguments: &Arguments, context: &Context) -> Result<Option<PoolId>, Failure> {
    match context.pool() {
        Ok(pool) => asked(pool, arguments).map(Some),
        Err(_) if arguments.far.is_wanted() && arguments.gpu.is_none() => Ok(None),
        Err(failure) if arguments.gpu.is_some() && arguments.model.is_empty() => {
            // A socket that was named should have a node; nobody else needs to know that there is none.
            if context.socket.is_some() || failure.exit != Exit::Unreachable {
                context.output.warn(format_args!("the pool is not mounted: {}", failure.text));
            }
            Ok(None)
        }
        Err(failure) => Err(failure),
    }
}

/// Nothing, where that is not all that the program would have.
fn without_pool(arguments: &Arguments) -> Result<Option<PoolId>, Failure> {
    if arguments.gpu.is_none() && !arguments.far.is_wanted() {
        return Err(Failure::usage(
            "with --no-mount alone the program has nothing of Hinterland",
            "give it far memory with --local SIZE or a GPU with --gpu ADDRESS, or leave --no-mount away",
        ));
    }
    Ok(None)
}

/// What stands in for CUDA, and a word if it cannot; a node that does not answer is told before anything is made.
fn libraries(arguments: &Arguments, context: &Context) -> Result<gpu::Libraries, Failure> {
    arguments.gpu.as_deref().map(gpu::check).transpose()?;
    if let Some(program) = arguments.program.first() {
        super::gpu::warn_of_runtime_inside(program, context);
        warn_of_no_library(program, context);
    }
    gpu::Libraries::write()
}

/// Warns of a program that our libraries cannot be put before.
fn warn_of_no_library(program: &OsStr, context: &Context) {
    let refusal = find(program).and_then(|path| refusal(&path)).filter(|refusal| refusal.is_silent);
    if let Some(refusal) = refusal {
        // The loader of a program that runs as another user takes the libraries out of what that program passes on.
        let others = if refusal.text == STATIC {
            "; programs that it starts do"
        } else {
            ", nor do programs that it starts"
        };
        let path = refusal.path.display();
        context.output.warn(format_args!("{path} {}: it does not see the GPU node{others}", refusal.text));
    }
}

/// The pool, in which all models are.
fn asked(pool: Pool, arguments: &Arguments) -> Result<PoolId, Failure> {
    for name in &arguments.model {
        pool.stat(name)?;
    }
    Ok(pool.session().pool())
}

fn mount(arguments: &Arguments, socket: &std::path::Path) -> Result<Mounted, Failure> {
    // The same as the preloaded library asks for what it maps.
    let environment = ReadPreference::from_environment();
    let preference = ReadPreference {
        budget_bytes: arguments.budget.map(|size| size.bytes).or(environment.budget_bytes),
        unit_bytes: arguments.unit.map(|size| size.bytes).or(environment.unit_bytes),
        ..environment
    };
    let source = Arc::new(PoolSource::with_preference(socket, preference)?);
    let options = MountOptions {
        // Nobody outside of the namespace sees it, and root may run parts of the program as others.
        allow_other: nix::unistd::getuid().is_root(),
        passthrough: !arguments.no_passthrough,
        writable: arguments.writable,
        // The program of another `hinterland run` may start one of its own.
        cover: true,
        socket: Some(socket.to_owned()),
        ..MountOptions::new(&arguments.at)
    };
    Ok(hinterland_fuse::mount(source, &options, channel().0)?)
}

fn absolute(path: &std::path::Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| Failure::file("finding", path, &error))
}

/// Becomes the program, or says why not.
///
/// # Errors
/// Never: the failure is told here, because the status is the shell's.
pub fn become_program(arguments: &Become, context: &Context) -> Result<ExitCode, Failure> {
    let library = arguments.preload.as_deref();
    let failure =
        program::become_program(arguments.parent, library, arguments.open_files, &arguments.program);
    context.output.fail(&failure);
    Ok(failure.exit_code())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_without_its_unit_is_refused() {
        assert_eq!(budget("1M").map(|size| size.bytes), Ok(1 << 20));
        for bad in ["0", "2", "512K", "many"] {
            assert!(budget(bad).unwrap_err().contains("hint:"), "{bad}");
        }
    }

    #[test]
    fn a_unit_is_a_power_of_two_within_limits() {
        assert_eq!(unit("2M").map(|size| size.bytes), Ok(2 << 20));
        for bad in ["3M", "32K", "128M", "two"] {
            assert!(unit(bad).unwrap_err().contains("hint:"), "{bad}");
        }
    }
}
