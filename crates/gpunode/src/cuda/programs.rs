//! Modules and kernels by the client's names.

use super::failed;
use crate::failure::{Failure, number};
use hinterland_fatbin::Kernels;
use hinterland_gpu::lend::Lent;
use hinterland_gpu::lend::program::{Kernel, Module};
use std::collections::HashMap;

/// A kernel, its device, and the bytes of parameters that it takes, if that is known.
struct Known {
    device: u32,
    kernel: Kernel,
    parameter_bytes: Option<usize>,
}

/// Kernels by the client's names.
#[derive(Default)]
pub(super) struct Programs {
    modules: HashMap<u32, (u32, Module)>,
    /// What the image of each module says of its kernels.
    layouts: HashMap<u32, Kernels>,
    kernels: HashMap<u32, Known>,
}

impl Programs {
    /// A kernel.
    pub(super) fn kernel(&self, function: u32) -> Result<Kernel, Failure> {
        self.placed(function).map(|(_, kernel)| kernel)
    }

    /// The device of a module, and the module.
    pub(super) fn module(&self, module: u32) -> Result<(u32, &Module), Failure> {
        let known = self.modules.get(&module);
        known.map(|(device, module)| (*device, module)).ok_or_else(|| Failure::unknown("module", module))
    }

    /// The device of a module.
    pub(super) fn device_of(&self, module: u32) -> Result<u32, Failure> {
        self.module(module).map(|(device, _)| device)
    }

    /// Forgets a kernel.
    pub(super) fn drop_function(&mut self, function: u32) {
        self.kernels.remove(&function);
    }

    /// The device of a kernel, and the kernel.
    pub(super) fn placed(&self, function: u32) -> Result<(u32, Kernel), Failure> {
        self.known(function).map(|known| (known.device, known.kernel))
    }

    fn known(&self, function: u32) -> Result<&Known, Failure> {
        self.kernels.get(&function).ok_or_else(|| Failure::unknown("kernel", function))
    }

    /// A kernel that a list names, which is given so many bytes of parameters: its name may be another one's since the list was looked at, and the driver reads as
    /// many as the kernel takes.
    pub(super) fn kernel_given(&self, function: u32, bytes: usize) -> Result<Kernel, Failure> {
        let known = self.known(function)?;
        if known.parameter_bytes.is_some_and(|taken| bytes < taken) {
            let words = format!(
                "a kernel that has the name of another one takes more than {bytes} bytes of parameters"
            );
            return Err(Failure::value(words));
        }
        Ok(known.kernel)
    }

    /// Loads the one image of a fat binary on a device.
    pub(super) fn load(
        &mut self,
        module: u32,
        device: u32,
        image: &[u8],
        lent: &Lent,
    ) -> Result<(), Failure> {
        // The driver reads as much as headers say, so they are looked at first. One image goes to it by itself: the layout of parameters
        // is then the one of that image.
        let broken = |error: &dyn std::fmt::Display| Failure::new(number::INVALID_IMAGE, error.to_string());
        let entries = hinterland_fatbin::entries(image).map_err(|error| broken(&error))?;
        let [entry] = entries.as_slice() else {
            return Err(Failure::new(
                number::INVALID_IMAGE,
                format!("a fat binary of one image is wanted, not of {}", entries.len()),
            ));
        };
        let mut bytes = entry.image().map_err(|error| broken(&error))?.into_owned();
        let kernels = Kernels::of_image(&bytes).map_err(|error| broken(&error))?;
        // PTX ends with a zero.
        bytes.push(0);
        let loaded = lent.module(&bytes).map_err(failed)?;
        self.modules.insert(module, (device, loaded));
        self.layouts.insert(module, kernels);
        Ok(())
    }

    /// Forgets a module.
    pub(super) fn drop_module(&mut self, module: u32) {
        // It stays loaded: work may still use it, and the process ends with the session.
        self.modules.remove(&module);
        self.layouts.remove(&module);
    }

    /// Finds a kernel; the bytes of parameters that it takes.
    pub(super) fn function(
        &mut self,
        function: u32,
        module: u32,
        name: &str,
        lent: &Lent,
    ) -> Result<Option<usize>, Failure> {
        let (device, loaded) = self.module(module)?;
        let kernel = lent.kernel(loaded, name).map_err(failed)?;
        let there = lent.parameters(kernel);
        let here = self.layouts.get(&module).and_then(|kernels| kernels.kernel(name));
        // A compiler may put a parameter that is aligned to more than 16 bytes elsewhere than PTX says. Bytes at a wrong place would be wrong
        // bytes, so such a kernel is refused.
        if let (Some(there), Some(here)) = (&there, here) {
            let says: Vec<(usize, usize)> =
                here.parameters.iter().map(|one| (one.offset as usize, one.size as usize)).collect();
            // A driver that tells no layout has told nothing.
            if !there.is_empty() && *there != says {
                let words = format!(
                    "the driver lays out the parameters of {name} in another way than its image (hint: compile the program for this GPU, so that it has machine code)"
                );
                return Err(Failure::new(number::NOT_SUPPORTED, words));
            }
        }
        let parameter_bytes = there.map(|all| all.last().map_or(0, |(offset, bytes)| offset + bytes));
        self.kernels.insert(function, Known { device, kernel, parameter_bytes });
        Ok(parameter_bytes)
    }
}
