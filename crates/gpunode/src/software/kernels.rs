//! Modules of programs, what is known of their kernels, and running these.

use super::facts::{CAPABILITY, SHARED_BYTES, SHARED_OPT_IN_BYTES};
use super::options::Kernels as Mode;
use super::space::{KernelMemory, View};
use crate::failure::{Failure, number};
use crate::outbox::Outbox;
use hinterland_fatbin::{Capability, Entry, Kernels, choose, choose_assembly, entries};
use hinterland_proto::gpu::FunctionFacts;
use hinterland_proto::gpu::command;
use hinterland_ptx::{LaunchError, LaunchGeometry, Limits};
use std::collections::HashMap;
use std::sync::Arc;

/// Registers that a kernel is taken to use where its image leaves that to the compiler.
const REGISTERS: u32 = 32;
/// Most threads of a group, where the image does not say less.
const THREADS_MAX: u32 = 1024;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const DYNAMIC_SHARED_MAX: i32 = 8;
/// `CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT`.
const CARVEOUT: i32 = 9;
/// Attributes from the size of a cluster to its scheduling.
const CLUSTER_ATTRIBUTES: std::ops::RangeInclusive<i32> = 11..=15;

/// A module that can be run, and where its variables lie.
#[derive(Debug)]
struct Program {
    module: hinterland_ptx::Module,
    data: u64,
}

/// A kernel with a name of the client.
#[derive(Debug, Clone)]
pub(super) struct Kernel {
    pub(super) facts: FunctionFacts,
    pub(super) threads_max: u32,
    /// Blocks of a cluster, where its code says so.
    cluster: Option<[u32; 3]>,
    /// Its module and its name there; nothing where kernels do nothing.
    program: Option<(Arc<Program>, String)>,
}

impl Kernel {
    /// Runs it to its end.
    pub(super) fn run(
        &self,
        view: &View,
        outbox: &Outbox,
        launch: &command::Launch,
        parameters: &[u8],
    ) -> Result<(), Failure> {
        let Some((program, name)) = &self.program else { return Ok(()) };
        self.check_cluster(program, name, launch)?;
        let geometry =
            LaunchGeometry { grid: launch.grid, block: launch.block, dynamic_shared: launch.shared };
        let run = hinterland_ptx::Launch {
            entry: name,
            geometry,
            parameters,
            data: program.data,
            limits: Limits::default(),
        };
        let mut memory = KernelMemory::new(view, outbox);
        program.module.launch(&run, &mut memory).map(drop).map_err(|error| {
            let code = match &error {
                // The driver has no number of its own for it.
                LaunchError::Geometry(_) => number::INVALID_VALUE,
                other => i32::try_from(other.cuda_code()).unwrap_or(number::LAUNCH_FAILED),
            };
            Failure::new(code, format!("{name}: {error}"))
        })
    }
}

impl Kernel {
    /// Blocks run one after the other, each as a cluster of its own: a kernel that would tell the difference is not run.
    fn check_cluster(&self, program: &Program, name: &str, launch: &command::Launch) -> Result<(), Failure> {
        let is_given = launch.flags & command::launch_flags::CLUSTER != 0;
        let cluster = if is_given { launch.cluster } else { self.cluster.unwrap_or([1; 3]) };
        // What cannot be run at all is named by the launch, which says more.
        if cluster == [1; 3] || !program.module.knows_cluster(name).unwrap_or(false) {
            return Ok(());
        }
        let words = format!(
            "{name}: the device in software has no clusters of {cluster:?} blocks for kernels that ask for theirs (hint: launch it with clusters of one block)"
        );
        Err(Failure::new(number::NOT_SUPPORTED, words))
    }
}

#[derive(Debug)]
struct Module {
    kernels: Kernels,
    program: Option<Arc<Program>>,
    /// Addresses of variables that were asked for, where kernels do nothing.
    variables: HashMap<String, (u64, u64)>,
}

/// Modules and kernels by the client's names.
#[derive(Debug)]
pub(super) struct Programs {
    mode: Mode,
    modules: HashMap<u32, Module>,
    kernels: HashMap<u32, Arc<Kernel>>,
}

impl Programs {
    pub(super) fn new(mode: Mode) -> Self {
        Self { mode, modules: HashMap::new(), kernels: HashMap::new() }
    }

    /// Loads a fat binary; `place` finds memory for its variables, and `write` fills it.
    pub(super) fn load(
        &mut self,
        module: u32,
        image: &[u8],
        place: impl FnOnce(u64) -> Result<u64, Failure>,
        write: impl Fn(u64, &[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let broken = |error: &dyn std::fmt::Display| Failure::new(number::INVALID_IMAGE, error.to_string());
        let list = entries(image).map_err(|error| broken(&error))?;
        let entry = self.choose(&list)?;
        let bytes = entry.image().map_err(|error| broken(&error))?;
        let kernels = Kernels::of_image(&bytes).map_err(|error| broken(&error))?;
        let program = match self.mode {
            Mode::None => None,
            Mode::Ptx => Some(Arc::new(assemble(&bytes, place, write)?)),
        };
        self.modules.insert(module, Module { kernels, program, variables: HashMap::new() });
        Ok(())
    }

    fn choose<'image>(&self, list: &[Entry<'image>]) -> Result<Entry<'image>, Failure> {
        let device = Capability::new(CAPABILITY.0, CAPABILITY.1);
        if let Some(entry) = choose_assembly(list, device) {
            return Ok(entry);
        }
        let any = choose(list, device).or_else(|| list.first().copied());
        match (self.mode, any) {
            (Mode::None, Some(entry)) => Ok(entry),
            _ => Err(Failure::new(
                number::NO_BINARY_FOR_GPU,
                "a fat binary has no PTX that the software device could run (hint: compile with -gencode arch=compute_90,code=compute_90, or count calls only with kernels=none)",
            )),
        }
    }

    pub(super) fn drop_module(&mut self, module: u32) {
        self.modules.remove(&module);
    }

    /// Bytes of parameters that it takes.
    pub(super) fn function(&mut self, function: u32, module: u32, name: &str) -> Result<usize, Failure> {
        let missing = || Failure::new(number::NOT_FOUND, format!("module {module} has no kernel {name:?}"));
        let known = self.modules.get(&module).ok_or_else(missing)?;
        let found = known.kernels.kernel(name).ok_or_else(missing)?;
        let program = match &known.program {
            Some(program) => {
                // Whatever is not understood in it is said before it is launched.
                let check = program.module.check(name);
                check.map_err(|error| Failure::new(number::INVALID_PTX, format!("{name}: {error}")))?;
                Some((Arc::clone(program), name.to_owned()))
            }
            None => None,
        };
        let shared = found.static_shared_bytes.unwrap_or(0);
        let threads_max = found.threads_max.unwrap_or(THREADS_MAX).clamp(1, THREADS_MAX);
        let signed = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
        let facts = FunctionFacts {
            shared: u64::from(shared),
            constant: 0,
            local: u64::from(found.local_bytes.unwrap_or(0)),
            threads_max: signed(threads_max),
            registers: signed(found.registers.unwrap_or(REGISTERS)),
            ptx: signed(CAPABILITY.0 * 10 + CAPABILITY.1),
            binary: signed(CAPABILITY.0 * 10 + CAPABILITY.1),
            dynamic_shared_max: signed(SHARED_BYTES.saturating_sub(shared)),
            carveout: -1,
        };
        self.kernels
            .insert(function, Arc::new(Kernel { facts, threads_max, cluster: found.cluster, program }));
        Ok(found.parameter_bytes as usize)
    }

    pub(super) fn drop_function(&mut self, function: u32) {
        self.kernels.remove(&function);
    }

    pub(super) fn kernel(&self, function: u32) -> Result<&Arc<Kernel>, Failure> {
        self.kernels.get(&function).ok_or_else(|| Failure::unknown("kernel", function))
    }

    pub(super) fn set_attribute(&mut self, function: u32, attribute: i32, value: i32) -> Result<(), Failure> {
        let kernel = self.kernels.get_mut(&function).ok_or_else(|| Failure::unknown("kernel", function))?;
        let facts = &mut Arc::make_mut(kernel).facts;
        match attribute {
            DYNAMIC_SHARED_MAX => {
                let most = i64::from(SHARED_OPT_IN_BYTES) - facts.shared as i64;
                if value < 0 || i64::from(value) > most {
                    return Err(Failure::value(format!(
                        "{value} bytes of dynamic shared memory are more than {most}"
                    )));
                }
                facts.dynamic_shared_max = value;
            }
            CARVEOUT if (-1..=100).contains(&value) => facts.carveout = value,
            attribute if CLUSTER_ATTRIBUTES.contains(&attribute) => {}
            _ => return Err(Failure::value(format!("attribute {attribute} cannot be set to {value}"))),
        }
        Ok(())
    }

    /// Where a variable lies and its length; `place` finds memory for one that has none.
    pub(super) fn symbol(
        &mut self,
        module: u32,
        name: &str,
        place: impl FnOnce(u64) -> Result<u64, Failure>,
    ) -> Result<(u64, u64), Failure> {
        let missing = || Failure::new(number::NOT_FOUND, format!("module {module} has no variable {name:?}"));
        let module = self.modules.get_mut(&module).ok_or_else(missing)?;
        if let Some(program) = &module.program {
            let variable = program.module.variable(name).ok_or_else(missing)?;
            return Ok((program.data + variable.offset, variable.size));
        }
        if let Some(known) = module.variables.get(name) {
            return Ok(*known);
        }
        let bytes = module.kernels.variable(name).ok_or_else(missing)?.size;
        let found = (place(bytes)?, bytes);
        module.variables.insert(name.to_owned(), found);
        Ok(found)
    }
}

/// A module that can be run, with its variables in memory.
fn assemble(
    image: &[u8],
    place: impl FnOnce(u64) -> Result<u64, Failure>,
    write: impl Fn(u64, &[u8]) -> Result<(), Failure>,
) -> Result<Program, Failure> {
    let text = std::str::from_utf8(image)
        .map_err(|error| Failure::new(number::INVALID_PTX, format!("PTX that is no text: {error}")))?;
    let module = hinterland_ptx::Module::parse(text)
        .map_err(|error| Failure::new(number::INVALID_PTX, error.to_string()))?;
    let bytes = module.data_bytes();
    let data = if bytes == 0 { 0 } else { place(bytes)? };
    for (offset, part) in module.data_image(data) {
        write(data + offset, &part)?;
    }
    Ok(Program { module, data })
}
