//! Fat binaries as they come in, and the names of kernels in them.

use super::Executor;
use crate::body::Body;
use crate::device::Device;
use crate::failure::{Failure, number};
use crate::store::ImageStore;
use hinterland_proto::gpu::command::{Function, FunctionAttribute, Module, ModuleDrop, ModulePart};
use hinterland_proto::gpu::{MODULE_BYTES_MAX, NAME_BYTES_MAX};
use std::collections::HashMap;

/// Most modules of a session.
const MODULES_MAX: usize = 1 << 16;
/// Most kernels of a session that have names.
const FUNCTIONS_MAX: usize = 1 << 20;

#[derive(Debug)]
struct Arriving {
    device: u32,
    bytes: u64,
    hash: [u8; 32],
    image: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    module: u32,
    parameter_bytes: Option<usize>,
}

/// Modules that are loaded, those whose bytes are on the way, and kernels.
pub(super) struct Modules {
    images: Box<dyn ImageStore>,
    arriving: HashMap<u32, Arriving>,
    arriving_bytes: u64,
    loaded: HashMap<u32, Vec<u32>>,
    functions: HashMap<u32, Known>,
}

impl Modules {
    pub(super) fn new(images: Box<dyn ImageStore>) -> Self {
        let (arriving, loaded, functions) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { images, arriving, arriving_bytes: 0, loaded, functions }
    }

    /// Bytes of parameters that a kernel takes, if that is known.
    pub(super) fn parameter_bytes(&self, function: u32) -> Result<Option<usize>, Failure> {
        match self.functions.get(&function) {
            Some(known) => Ok(known.parameter_bytes),
            None => Err(Failure::unknown("kernel", function)),
        }
    }

    pub(super) fn known(&self, module: u32) -> Result<(), Failure> {
        if self.loaded.contains_key(&module) { Ok(()) } else { Err(Failure::unknown("module", module)) }
    }
}

impl<D: Device> Executor<D> {
    pub(super) fn module(&mut self, command: &Module) -> Result<(), Failure> {
        self.known_device(command.device)?;
        let modules = &mut self.modules;
        if modules.loaded.contains_key(&command.module) || modules.arriving.contains_key(&command.module) {
            return Err(Failure::twice("module", command.module));
        }
        if modules.loaded.len() + modules.arriving.len() >= MODULES_MAX {
            return Err(Failure::too_many("modules", MODULES_MAX));
        }
        if command.bytes == 0 {
            let image = modules.images.find(&command.hash).ok_or_else(|| {
                let words = "this node has no fat binary of that hash any more: send its bytes";
                Failure::new(number::NOT_FOUND, words)
            })?;
            return self.load(command.module, command.device, &image);
        }
        if command.bytes.saturating_add(modules.arriving_bytes) > MODULE_BYTES_MAX {
            let words = format!("fat binaries of {} bytes at once are too large", command.bytes);
            return Err(Failure::value(words));
        }
        modules.arriving_bytes += command.bytes;
        let (device, bytes, hash) = (command.device, command.bytes, command.hash);
        modules.arriving.insert(command.module, Arriving { device, bytes, hash, image: Vec::new() });
        Ok(())
    }

    pub(super) fn module_part(&mut self, command: &ModulePart, body: Body<'_>) -> Result<(), Failure> {
        let modules = &mut self.modules;
        let arriving = modules
            .arriving
            .get_mut(&command.module)
            .ok_or_else(|| Failure::unknown("module on its way", command.module))?;
        let part = body.tail(ModulePart::BYTES);
        let together = (arriving.image.len() + part.bytes()) as u64;
        if together <= arriving.bytes {
            part.append_to(&mut arriving.image);
        }
        if together < arriving.bytes {
            return Ok(());
        }
        let Some(arrived) = modules.arriving.remove(&command.module) else { return Ok(()) };
        modules.arriving_bytes -= arrived.bytes;
        if together > arrived.bytes {
            let words = format!("a fat binary of {} bytes came as {together}", arrived.bytes);
            return Err(Failure::value(words));
        }
        if *blake3::hash(&arrived.image).as_bytes() != arrived.hash {
            let words = "a fat binary is not what its hash says: it was damaged on its way";
            return Err(Failure::new(number::INVALID_IMAGE, words));
        }
        self.load(command.module, arrived.device, &arrived.image)?;
        self.modules.images.keep(&arrived.hash, &arrived.image);
        Ok(())
    }

    fn load(&mut self, module: u32, device: u32, image: &[u8]) -> Result<(), Failure> {
        self.device.load(module, device, image)?;
        self.modules.loaded.insert(module, Vec::new());
        Ok(())
    }

    pub(super) fn function(&mut self, command: &Function, body: Body<'_>) -> Result<(), Failure> {
        self.modules.known(command.module)?;
        if self.modules.functions.contains_key(&command.function) {
            return Err(Failure::twice("kernel", command.function));
        }
        if self.modules.functions.len() >= FUNCTIONS_MAX {
            return Err(Failure::too_many("kernels", FUNCTIONS_MAX));
        }
        let name = name(body.tail(Function::BYTES))?;
        let parameter_bytes = self.device.function(command.function, command.module, &name)?;
        self.modules.functions.insert(command.function, Known { module: command.module, parameter_bytes });
        self.modules.loaded.entry(command.module).or_default().push(command.function);
        Ok(())
    }

    pub(super) fn function_attribute(&mut self, command: &FunctionAttribute) -> Result<(), Failure> {
        self.modules.parameter_bytes(command.function)?;
        self.device.set_attribute(command.function, command.attribute, command.value)
    }

    pub(super) fn module_drop(&mut self, command: &ModuleDrop) -> Result<(), Failure> {
        if let Some(arriving) = self.modules.arriving.remove(&command.module) {
            self.modules.arriving_bytes -= arriving.bytes;
            return Ok(());
        }
        self.modules.known(command.module)?;
        for function in self.modules.loaded.remove(&command.module).unwrap_or_default() {
            let known = self.modules.functions.remove(&function);
            debug_assert!(known.is_some_and(|known| known.module == command.module));
            self.device.drop_function(function);
        }
        self.graphs.epoch += 1;
        self.memory.forget_variables(command.module);
        self.device.drop_module(command.module);
        Ok(())
    }
}

/// A name out of a tail.
pub(super) fn name(tail: Body<'_>) -> Result<String, Failure> {
    if tail.bytes() > NAME_BYTES_MAX {
        return Err(Failure::value(format!("a name of {} bytes is too long", tail.bytes())));
    }
    match String::from_utf8(tail.to_vec()) {
        Ok(name) if !name.is_empty() && !name.contains('\0') => Ok(name),
        _ => Err(Failure::value("a name of a kernel or variable is no text")),
    }
}
