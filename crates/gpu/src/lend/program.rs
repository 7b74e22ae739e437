//! Modules, kernels and launches.

use super::calls::{KernelNode, LaunchAttribute, LaunchShape};
use super::order::{GraphNode, Instance, Stream};
use super::{CallError, Lent};
use crate::driver::Handle;
use std::ffi::{CString, c_int, c_void};
use std::ptr;

/// Numbers of attributes of a launch: cooperative, size of a cluster, begun before the kernel in front has ended.
const COOPERATIVE: c_int = 2;
const CLUSTER: c_int = 4;
const PROGRAMMATIC: c_int = 6;
/// `CU_LAUNCH_PARAM_BUFFER_POINTER`, `_SIZE` and `_END`.
const BUFFER: usize = 1;
const BUFFER_BYTES: usize = 2;
/// Most parameters of a kernel, of one byte each.
const PARAMETERS_MAX: usize = 32_764;

/// A module.
#[derive(Debug)]
pub struct Module {
    handle: Handle,
}

/// A kernel of a module, which is never unloaded.
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    handle: Handle,
}

/// The shape of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Groups.
    pub grid: [u32; 3],
    /// Threads of a group.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// Size of a cluster, if there are any.
    pub cluster: Option<[u32; 3]>,
    /// Whether all groups run at once.
    pub is_cooperative: bool,
    /// Whether it may begin before the kernel in front of it has ended.
    pub is_programmatic: bool,
}

impl Shape {
    fn attributes(&self) -> ([LaunchAttribute; 3], u32) {
        let none = LaunchAttribute { number: 0, padding: 0, value: [0; 16] };
        let (mut all, mut count) = ([none; 3], 0);
        let mut add = |number: c_int, value: [u32; 3]| {
            all[count].number = number;
            all[count].value[..3].copy_from_slice(&value);
            count += 1;
        };
        if self.is_cooperative {
            add(COOPERATIVE, [1, 0, 0]);
        }
        if let Some(cluster) = self.cluster {
            add(CLUSTER, cluster);
        }
        if self.is_programmatic {
            add(PROGRAMMATIC, [1, 0, 0]);
        }
        (all, count as u32)
    }

    fn raw(&self, stream: Handle, attributes: &[LaunchAttribute; 3], attribute_count: u32) -> LaunchShape {
        LaunchShape {
            grid: self.grid,
            block: self.block,
            shared: self.shared,
            stream,
            attributes: attributes.as_ptr(),
            attribute_count,
        }
    }
}

impl Lent {
    /// Loads a fat binary. It stays loaded until the process ends.
    ///
    /// # Errors
    /// The driver's.
    pub fn module(&self, image: &[u8]) -> Result<Module, CallError> {
        self.enter()?;
        let mut handle = 0;
        // SAFETY: the place is ours. The driver reads as much as the header says, which the caller has compared with the length.
        let code = unsafe { (self.lender.driver.call.module_load)(&mut handle, image.as_ptr().cast()) };
        self.check("loading a module", code)?;
        Ok(Module { handle })
    }

    /// Finds a kernel.
    ///
    /// # Errors
    /// The driver's.
    pub fn kernel(&self, module: &Module, name: &str) -> Result<Kernel, CallError> {
        self.enter()?;
        let (name, mut handle) = (c_name(name)?, 0);
        // SAFETY: the place is ours, the module lives, and the name is a string.
        let code =
            unsafe { (self.lender.driver.call.module_function)(&mut handle, module.handle, name.as_ptr()) };
        self.check("finding a kernel", code)?;
        Ok(Kernel { handle })
    }

    /// Where a variable lies, and its length.
    ///
    /// # Errors
    /// The driver's.
    pub fn variable(&self, module: &Module, name: &str) -> Result<(u64, u64), CallError> {
        let call = self.enter()?;
        let (name, mut address, mut bytes) = (c_name(name)?, 0, 0);
        // SAFETY: the places are ours, the module lives, and the name is a string.
        let code = unsafe { (call.module_global)(&mut address, &mut bytes, module.handle, name.as_ptr()) };
        self.check("finding a variable", code)?;
        Ok((address, bytes as u64))
    }

    /// An attribute of a kernel, by the driver's number.
    ///
    /// # Errors
    /// The driver's.
    pub fn kernel_attribute(&self, kernel: Kernel, attribute: i32) -> Result<i32, CallError> {
        let call = self.enter()?;
        let mut value = 0;
        // SAFETY: the place is ours, and kernels live as long as the process.
        let code = unsafe { (call.function_attribute)(&mut value, attribute, kernel.handle) };
        self.check("asking for an attribute", code)?;
        Ok(value)
    }

    /// Sets an attribute of a kernel.
    ///
    /// # Errors
    /// The driver's.
    pub fn set_kernel_attribute(&self, kernel: Kernel, attribute: i32, value: i32) -> Result<(), CallError> {
        let call = self.enter()?;
        // SAFETY: plain values.
        let code = unsafe { (call.function_set)(kernel.handle, attribute, value) };
        self.check("setting an attribute", code)
    }

    /// Offset and length of each parameter of a kernel, in bytes.
    pub fn parameters(&self, kernel: Kernel) -> Option<Vec<(usize, usize)>> {
        let call = self.enter().ok()?;
        let mut all = Vec::new();
        for index in 0..PARAMETERS_MAX {
            let (mut offset, mut bytes) = (0, 0);
            // SAFETY: the places are ours; the first number that no parameter has is refused.
            if unsafe { (call.function_parameter)(kernel.handle, index, &mut offset, &mut bytes) } != 0 {
                break;
            }
            all.push((offset, bytes));
        }
        Some(all)
    }

    /// Groups of a kernel that a multiprocessor holds.
    ///
    /// # Errors
    /// The driver's.
    pub fn occupancy(&self, kernel: Kernel, threads: u32, shared: u64, flags: u32) -> Result<u32, CallError> {
        let call = self.enter()?;
        let mut groups = 0;
        let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
        // SAFETY: the place is ours.
        let code = unsafe { (call.occupancy)(&mut groups, kernel.handle, threads, shared as usize, flags) };
        self.check("asking for occupancy", code)?;
        Ok(u32::try_from(groups).unwrap_or(0))
    }

    /// Clusters of a kernel that fit at once.
    ///
    /// # Errors
    /// The driver's.
    pub fn clusters(&self, kernel: Kernel, shape: &Shape) -> Result<u32, CallError> {
        let call = self.enter()?;
        let mut count = 0;
        let (attributes, attribute_count) = shape.attributes();
        let raw = shape.raw(0, &attributes, attribute_count);
        // SAFETY: the places are ours and live through the call.
        let code = unsafe { (call.clusters)(&mut count, kernel.handle, &raw) };
        self.check("asking for clusters", code)?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// Launches a kernel. The block of parameters is as long as the kernel's, which the caller has looked at.
    ///
    /// # Errors
    /// The driver's.
    pub fn launch(
        &self,
        kernel: Kernel,
        stream: &Stream,
        shape: &Shape,
        parameters: &[u8],
    ) -> Result<(), CallError> {
        let call = self.enter()?;
        let (attributes, attribute_count) = shape.attributes();
        let raw = shape.raw(stream.handle, &attributes, attribute_count);
        let mut bytes = parameters.len();
        let mut extra = block(parameters, &mut bytes);
        let extra = if parameters.is_empty() { ptr::null_mut() } else { extra.as_mut_ptr() };
        // SAFETY: everything lives through the call, in which the driver copies the parameters and does not write them.
        let code = unsafe { (call.launch)(&raw, kernel.handle, ptr::null_mut(), extra) };
        self.check("launching a kernel", code)
    }

    /// Has launches of an instance launch another kernel in a node of the graph that it was made of, or the same one in another way; false if the driver does
    /// not do that. Attributes of the launch stay as they are.
    pub fn change_kernel(
        &self,
        instance: &Instance,
        node: GraphNode,
        kernel: Kernel,
        shape: &Shape,
        parameters: &[u8],
    ) -> bool {
        let Ok(call) = self.enter() else { return false };
        let mut bytes = parameters.len();
        let mut extra = block(parameters, &mut bytes);
        let given = KernelNode {
            function: kernel.handle,
            grid: shape.grid,
            block: shape.block,
            shared: shape.shared,
            padding: 0,
            parameters: ptr::null_mut(),
            extra: if parameters.is_empty() { ptr::null_mut() } else { extra.as_mut_ptr() },
            kernel: 0,
            context: 0,
        };
        // SAFETY: the instance and the graph that it was made of live, and everything else through the call, in which the driver copies the parameters.
        unsafe { (call.node_kernel)(instance.handle, node.handle, &given) == 0 }
    }
}

/// A block of parameters as calls of the driver take it; both places live through the call.
fn block(parameters: &[u8], bytes: &mut usize) -> [*mut c_void; 5] {
    [
        ptr::without_provenance_mut(BUFFER),
        parameters.as_ptr().cast_mut().cast(),
        ptr::without_provenance_mut(BUFFER_BYTES),
        ptr::from_mut(bytes).cast(),
        ptr::null_mut(),
    ]
}

fn c_name(name: &str) -> Result<CString, CallError> {
    CString::new(name).map_err(|_| CallError {
        what: "using a name",
        code: 1,
        words: "it has a zero byte".to_owned(),
        is_blas: false,
    })
}
