//! Modules of programs, and what is known of their kernels.

use super::facts::{CAPABILITY, SHARED_BYTES, SHARED_OPT_IN_BYTES};
use super::options::Kernels as Mode;
use crate::failure::{Failure, number};
use hinterland_fatbin::{Capability, Entry, Kernels, choose, choose_assembly, entries};
use hinterland_proto::gpu::FunctionFacts;
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

/// A kernel with a name of the client.
#[derive(Debug, Clone)]
pub(super) struct Kernel {
    pub(super) facts: FunctionFacts,
    pub(super) threads_max: u32,
}

#[derive(Debug)]
struct Module {
    kernels: Kernels,
    /// Addresses of variables that were asked for.
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

    pub(super) fn load(&mut self, module: u32, image: &[u8]) -> Result<(), Failure> {
        let broken = |error: &dyn std::fmt::Display| Failure::new(number::INVALID_IMAGE, error.to_string());
        let list = entries(image).map_err(|error| broken(&error))?;
        let entry = self.choose(&list)?;
        let bytes = entry.image().map_err(|error| broken(&error))?;
        let kernels = Kernels::of_image(&bytes).map_err(|error| broken(&error))?;
        self.modules.insert(module, Module { kernels, variables: HashMap::new() });
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
        let known = self.modules.get(&module).and_then(|module| module.kernels.kernel(name));
        let found = known.ok_or_else(|| {
            Failure::new(number::NOT_FOUND, format!("module {module} has no kernel {name:?}"))
        })?;
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
        self.kernels.insert(function, Arc::new(Kernel { facts, threads_max }));
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
        if let Some(known) = module.variables.get(name) {
            return Ok(*known);
        }
        let bytes = module.kernels.variable(name).ok_or_else(missing)?.size;
        let found = (place(bytes)?, bytes);
        module.variables.insert(name.to_owned(), found);
        Ok(found)
    }
}
