//! Code: fat binaries of the program, sent to the node when a kernel of theirs is first used, and what is known of kernels.

use std::collections::{BTreeSet, HashMap};
use std::ffi::{CString, c_char};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError, RwLock, Weak};

use hinterland_fatbin::{
    Capability, Group, Kernels, Multiprocessor, Wrapper, choose, choose_assembly, container_bytes, entries,
    repack, wrap,
};
use hinterland_proto::gpu::command::{
    AskFunction, AskOccupancy, AskSymbol, Function, FunctionAttribute, Module, ModuleDrop, ModulePart,
};
use hinterland_proto::gpu::{DEFAULT_STREAMS, FunctionFacts, MODULE_BYTES_MAX, Message};

use super::attribute;
use super::context::Owner;
use super::handle::{NumberMap, Table};
use super::limits::{CARVEOUT, DYNAMIC_SHARED_MAX, Limits};
use super::session::Session;
use crate::code::{
    Code, INVALID_FUNCTION, INVALID_IMAGE, INVALID_VALUE, NO_BINARY, NOT_FOUND, NOT_SUPPORTED,
};

/// Bytes from which the length of a fat binary or an ELF file can be told.
pub(crate) const HEADER_BYTES: usize = 64;
/// A name that no variable has.
const NO_VARIABLE: &[u8] = b" ";
/// Longest PTX text that is looked for its end.
const TEXT_MAX: usize = 256 << 20;

/// `CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH`, behind which are its height and its depth.
const CLUSTER_WIDTH: i32 = 11;

/// Modules and functions of a session.
#[derive(Debug)]
pub struct Modules {
    next: AtomicU32,
    code_bytes: AtomicU64,
    binaries: Table<Arc<Binary>>,
    functions: Table<Arc<Registered>>,
    /// Kernels that the node has, by their names there.
    kernels: Mutex<BTreeSet<u32>>,
    /// Code with variables whose places were not all asked for, and the context that has it.
    unasked: Mutex<Vec<(Weak<Loaded>, Owner)>>,
}

impl Modules {
    pub(super) fn new() -> Self {
        Self {
            next: AtomicU32::new(1),
            code_bytes: AtomicU64::new(0),
            binaries: Table::new(1),
            functions: Table::new(1),
            kernels: Mutex::default(),
            unasked: Mutex::default(),
        }
    }

    fn kernels(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.kernels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of code that were sent.
    pub(super) fn code_bytes(&self) -> u64 {
        // Relaxed: a statistic.
        self.code_bytes.load(Ordering::Relaxed)
    }

    /// Whether there is code with variables whose places were not all asked for.
    pub(super) fn has_unasked(&self) -> bool {
        !self.unasked.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Nobody asks for the places of variables in code that has gone.
    fn forget_unasked<'gone>(&self, gone: impl IntoIterator<Item = &'gone Arc<Loaded>>) {
        let gone: Vec<*const Loaded> = gone.into_iter().map(Arc::as_ptr).collect();
        let mut unasked = self.unasked.lock().unwrap_or_else(PoisonError::into_inner);
        unasked.retain(|(loaded, _)| !gone.contains(&loaded.as_ptr()));
    }

    /// Names a binary that the program loads by itself.
    ///
    /// # Errors
    /// All names were given.
    pub fn add_binary(&self, binary: Binary) -> Result<u32, Code> {
        let mut name = 0;
        self.binaries.add(|number| {
            name = number;
            Ok(Arc::new(binary))
        })?;
        Ok(name)
    }

    /// The binary with a name.
    ///
    /// # Errors
    /// There is none (any more).
    pub fn binary(&self, number: u32) -> Result<Arc<Binary>, Code> {
        self.binaries.get(number).map(|binary| (*binary).clone())
    }

    /// Takes a binary out; returns the kernels that the program got of it, too.
    fn take_binary(&self, number: u32) -> Result<(Arc<Binary>, Vec<Arc<Registered>>), Code> {
        super::recent::forget_all();
        let binary = self.binaries.remove(number).map(|binary| (*binary).clone())?;
        let names = std::mem::take(&mut *binary.named.lock().unwrap_or_else(PoisonError::into_inner));
        // All are there: each name was given to one of these kernels.
        let taken = names.into_values().filter_map(|name| self.functions.remove(name).ok());
        let functions = taken.map(|function| (*function).clone()).collect();
        Ok((binary, functions))
    }

    /// Names a kernel of a binary that the program asked for: the same one as before, if it did so before.
    ///
    /// # Errors
    /// All names were given.
    pub fn name_function(&self, binary: &Arc<Binary>, kernel: &str) -> Result<u32, Code> {
        let mut named = binary.named.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(name) = named.get(kernel) {
            return Ok(*name);
        }
        let mut name = 0;
        self.functions.add(|number| {
            name = number;
            Ok(Arc::new(Registered::new(binary.clone(), kernel.to_owned())))
        })?;
        named.insert(kernel.to_owned(), name);
        Ok(name)
    }

    /// The kernel with a name.
    ///
    /// # Errors
    /// There is none.
    pub fn function(&self, number: u32) -> Result<Arc<Registered>, Code> {
        self.functions.get(number).map(|function| (*function).clone())
    }

    fn name(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

/// An image or a fat binary in the program's memory.
#[derive(Debug)]
pub struct Binary {
    bytes: Bytes,
    /// The context that it ends with, for a module of the driver.
    pub owner: Option<Owner>,
    /// As each context has it, by number.
    loaded: Mutex<NumberMap<u32, Arc<Loaded>>>,
    /// Kernels that the program got by name, and the names that it has for them.
    named: Mutex<HashMap<String, u32>>,
}

/// Where it lies.
#[derive(Debug)]
enum Bytes {
    /// In the program's own data, for as long as the program has it registered.
    There(usize, usize),
    /// In a copy of ours.
    Here(Vec<u8>),
}

/// A binary as a context has it.
#[derive(Debug)]
pub struct Loaded {
    module: u32,
    version: u32,
    kernels: HashMap<String, hinterland_fatbin::Kernel>,
    variables: HashMap<String, u64>,
    symbols: Mutex<HashMap<String, (u64, u64)>>,
}

impl Binary {
    fn of_bytes(bytes: Bytes) -> Self {
        Self { bytes, owner: None, loaded: Mutex::default(), named: Mutex::default() }
    }

    /// The fat binary that a wrapper in the program points to.
    ///
    /// # Errors
    /// It is none.
    ///
    /// # Safety
    /// `wrapper` points to what the compiler made, and stays.
    pub unsafe fn of_wrapper(wrapper: *const u8) -> Result<Self, Code> {
        if wrapper.is_null() {
            return Err(INVALID_IMAGE);
        }
        // SAFETY: the caller's promise; a wrapper has that many bytes.
        let bytes = unsafe { std::slice::from_raw_parts(wrapper, Wrapper::BYTES) };
        let wrapper = Wrapper::parse(bytes).map_err(|error| bad_image(&error))?;
        let start = wrapper.data as usize;
        // SAFETY: the caller's promise; a container has at least its header.
        let header = unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(start), 16) };
        let length = container_bytes(header).map_err(|error| bad_image(&error))?;
        Ok(Self::of_bytes(Bytes::There(start, length)))
    }

    /// A copy of the image, fat binary or PTX text at an address.
    ///
    /// # Errors
    /// It is none of these.
    ///
    /// # Safety
    /// `image` points to as many bytes as its kind says.
    pub unsafe fn copy_of(image: *const u8) -> Result<Self, Code> {
        if image.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller's promise; each kind has at least four bytes.
        let magic = unsafe { std::slice::from_raw_parts(image, 4) };
        if magic == 0x4662_43b1_u32.to_le_bytes() {
            // SAFETY: the caller's promise.
            return unsafe { Self::of_wrapper(image) };
        }
        let length = if magic == 0xba55_ed50_u32.to_le_bytes() {
            // SAFETY: the caller's promise; a container has at least its header.
            container_bytes(unsafe { std::slice::from_raw_parts(image, 16) })
                .map_err(|error| bad_image(&error))?
        } else if magic == *b"\x7fELF" {
            // SAFETY: the caller's promise; an ELF file has at least its header.
            elf_bytes(unsafe { std::slice::from_raw_parts(image, HEADER_BYTES) }).ok_or(INVALID_IMAGE)?
        } else {
            // SAFETY: the caller's promise; text ends with a zero byte.
            let length = unsafe { libc::strnlen(image.cast(), TEXT_MAX) };
            if length == TEXT_MAX {
                return Err(INVALID_IMAGE);
            }
            length
        };
        // SAFETY: the caller's promise; the length is the one that its kind says.
        let bytes = unsafe { std::slice::from_raw_parts(image, length) }.to_vec();
        Ok(Self::of_bytes(Bytes::Here(bytes)))
    }

    /// Whether bytes that end with a zero byte hold all that their header says, so that [`copy_of`](Self::copy_of) may read them.
    pub(crate) fn fits(bytes: &[u8]) -> bool {
        let Some(header) = bytes.get(..HEADER_BYTES) else { return false };
        let length = match header[..4] {
            // A wrapper is made of addresses, which no file has.
            [0xb1, 0x43, 0x62, 0x46] => None,
            [0x50, 0xed, 0x55, 0xba] => container_bytes(&header[..16]).ok(),
            [0x7f, b'E', b'L', b'F'] => elf_bytes(header),
            _ => Some(0),
        };
        length.is_some_and(|length| length <= bytes.len())
    }

    fn bytes(&self) -> &[u8] {
        match &self.bytes {
            // SAFETY: the program keeps what it has registered, and does not change its code.
            Bytes::There(start, length) => unsafe {
                std::slice::from_raw_parts(std::ptr::with_exposed_provenance(*start), *length)
            },
            Bytes::Here(bytes) => bytes,
        }
    }
}

fn bad_image(why: &dyn std::fmt::Display) -> Code {
    eprintln!("hinterland: code for the GPU cannot be read: {why}");
    INVALID_IMAGE
}

/// Says that a variable is in unified memory, once.
pub(crate) fn say_managed(name: &str) {
    static SAYS: Once = Once::new();
    SAYS.call_once(|| {
        eprintln!(
            "hinterland: the variable {} is in unified memory, which there is none of for a GPU elsewhere (hint: __device__ and cudaMemcpyToSymbol in place of __managed__)",
            name.escape_default()
        );
    });
}

/// The length of an ELF file from its header: the end of the table that lies last.
fn elf_bytes(header: &[u8]) -> Option<usize> {
    let half = |at: usize| Some(u64::from(u16::from_le_bytes(header.get(at..at + 2)?.try_into().ok()?)));
    let long = |at: usize| Some(u64::from_le_bytes(header.get(at..at + 8)?.try_into().ok()?));
    let programs = long(32)?.checked_add(half(54)? * half(56)?)?;
    let sections = long(40)?.checked_add(half(58)? * half(60)?)?;
    usize::try_from(programs.max(sections)).ok().filter(|bytes| *bytes as u64 <= MODULE_BYTES_MAX)
}

/// A kernel in a context.
#[derive(Debug)]
pub struct Kernel {
    /// Its name at the node.
    pub function: u32,
    /// Its device and context.
    pub owner: Owner,
    /// What its image says.
    pub layout: hinterland_fatbin::Kernel,
    /// The GPU that its image was made for, as ten times major plus minor.
    version: u32,
    pub(super) limits: Limits,
    /// Attributes that the program set.
    set: Mutex<HashMap<i32, i32>>,
    facts: Mutex<Option<FunctionFacts>>,
    occupancy: Mutex<HashMap<(u32, u64, u32), u32>>,
}

impl Kernel {
    /// What there is to say of its clusters, by the driver's number: what the program has set, or else what the image says.
    #[must_use]
    pub fn of_clusters(&self, attribute: i32) -> i32 {
        let set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        let of_image = || {
            let side = usize::try_from(attribute - CLUSTER_WIDTH).ok()?;
            self.layout.cluster?.get(side).and_then(|size| i32::try_from(*size).ok())
        };
        set.get(&attribute).copied().or_else(of_image).unwrap_or(0)
    }
}

/// A kernel that the program registered under an address of its own, or got by name.
#[derive(Debug)]
pub struct Registered {
    /// Where its code is.
    pub binary: Arc<Binary>,
    /// Its name in the image.
    pub name: String,
    c_name: OnceLock<CString>,
    /// As the primary context of each device has it, and as those have it that the program made, by number.
    in_primaries: [RwLock<Option<Arc<Kernel>>>; DEFAULT_STREAMS as usize],
    in_made: RwLock<NumberMap<u32, Arc<Kernel>>>,
}

impl Registered {
    /// A kernel by its name.
    #[must_use]
    pub fn new(binary: Arc<Binary>, name: String) -> Self {
        Self {
            binary,
            name,
            c_name: OnceLock::new(),
            in_primaries: Default::default(),
            in_made: RwLock::default(),
        }
    }

    /// The kernel as a context has it.
    fn known_in(&self, context: u32) -> Option<Arc<Kernel>> {
        match self.in_primaries.get(context as usize) {
            Some(place) => place.read().unwrap_or_else(PoisonError::into_inner).clone(),
            None => self.in_made.read().unwrap_or_else(PoisonError::into_inner).get(&context).cloned(),
        }
    }

    /// Keeps the kernel as a context has it, if none is kept; returns the one that is.
    fn keep_in(&self, context: u32, kernel: Arc<Kernel>) -> Arc<Kernel> {
        match self.in_primaries.get(context as usize) {
            Some(place) => {
                place.write().unwrap_or_else(PoisonError::into_inner).get_or_insert(kernel).clone()
            }
            None => {
                let mut all = self.in_made.write().unwrap_or_else(PoisonError::into_inner);
                all.entry(context).or_insert(kernel).clone()
            }
        }
    }

    /// Forgets the kernel as a context had it.
    fn forget_in(&self, context: u32) -> Option<Arc<Kernel>> {
        match self.in_primaries.get(context as usize) {
            Some(place) => place.write().unwrap_or_else(PoisonError::into_inner).take(),
            None => self.in_made.write().unwrap_or_else(PoisonError::into_inner).remove(&context),
        }
    }

    /// What it is called at the node, in all contexts.
    fn numbers(&self) -> Vec<u32> {
        let made = self.in_made.read().unwrap_or_else(PoisonError::into_inner);
        let known = |place: &RwLock<Option<Arc<Kernel>>>| {
            place.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(|kernel| kernel.function)
        };
        made.values()
            .map(|kernel| kernel.function)
            .chain(self.in_primaries.iter().filter_map(known))
            .collect()
    }

    /// Its name as a string of C, which stays as long as this.
    ///
    /// # Errors
    /// It has a zero inside.
    pub fn c_name(&self) -> Result<*const c_char, Code> {
        if let Some(name) = self.c_name.get() {
            return Ok(name.as_ptr());
        }
        let name = CString::new(self.name.as_str()).map_err(|_| INVALID_VALUE)?;
        Ok(self.c_name.get_or_init(|| name).as_ptr())
    }
}

/// What the program registered before it started, which needs no session.
#[derive(Debug, Default)]
pub struct Registry {
    functions: RwLock<NumberMap<usize, Arc<Registered>>>,
    variables: RwLock<NumberMap<usize, (Arc<Binary>, String)>>,
}

/// The registry of the process.
pub static REGISTRY: std::sync::LazyLock<Registry> = std::sync::LazyLock::new(Registry::default);

impl Registry {
    /// A kernel under the address of its stub.
    pub fn add_function(&self, stub: usize, binary: Arc<Binary>, name: String) {
        let registered = Arc::new(Registered::new(binary, name));
        self.functions.write().unwrap_or_else(PoisonError::into_inner).insert(stub, registered);
    }

    /// A variable under the address of its shadow.
    pub fn add_variable(&self, shadow: usize, binary: Arc<Binary>, name: String) {
        self.variables.write().unwrap_or_else(PoisonError::into_inner).insert(shadow, (binary, name));
    }

    /// Forgets everything of a binary; returns its kernels.
    pub fn remove(&self, binary: &Arc<Binary>) -> Vec<Arc<Registered>> {
        let mut functions = self.functions.write().unwrap_or_else(PoisonError::into_inner);
        let taken = functions.extract_if(|_, function| Arc::ptr_eq(&function.binary, binary));
        let taken = taken.map(|(_, function)| function).collect();
        let mut variables = self.variables.write().unwrap_or_else(PoisonError::into_inner);
        variables.retain(|_, (other, _)| !Arc::ptr_eq(other, binary));
        super::recent::forget_all();
        taken
    }

    /// All kernels, and the binaries of all variables.
    fn all(&self) -> (Vec<Arc<Registered>>, Vec<Arc<Binary>>) {
        let functions = self.functions.read().unwrap_or_else(PoisonError::into_inner);
        let variables = self.variables.read().unwrap_or_else(PoisonError::into_inner);
        (
            functions.values().cloned().collect(),
            variables.values().map(|(binary, _)| binary.clone()).collect(),
        )
    }

    /// The kernel with a stub.
    ///
    /// # Errors
    /// None was registered.
    pub fn function(&self, stub: usize) -> Result<Arc<Registered>, Code> {
        let functions = self.functions.read().unwrap_or_else(PoisonError::into_inner);
        functions.get(&stub).cloned().ok_or(INVALID_FUNCTION)
    }

    /// The variable with a shadow.
    ///
    /// # Errors
    /// None was registered.
    pub fn variable(&self, shadow: usize) -> Result<(Arc<Binary>, String), Code> {
        let variables = self.variables.read().unwrap_or_else(PoisonError::into_inner);
        variables.get(&shadow).cloned().ok_or(crate::code::INVALID_SYMBOL)
    }
}

impl Session {
    /// A kernel as a context has it; its code is sent if this is the first use.
    ///
    /// # Errors
    /// There is no such kernel, no image for the device, or the node is gone.
    pub fn kernel(&self, registered: &Registered, owner: Owner) -> Result<Arc<Kernel>, Code> {
        if let Some(kernel) = registered.known_in(owner.context) {
            return Ok(kernel);
        }
        let loaded = self.load(&registered.binary, owner)?;
        let layout = loaded.kernels.get(&registered.name).ok_or_else(|| {
            eprintln!("hinterland: no image of the program has the kernel {}", registered.name);
            INVALID_FUNCTION
        })?;
        let function = self.modules.name();
        let name = registered.name.as_bytes();
        self.send_with_tail(&Function { function, module: loaded.module }, name.len(), |tail| {
            tail.put(0, name)
        })?;
        let kernel = Arc::new(Kernel {
            function,
            owner,
            limits: Limits::of(self, owner.device, layout),
            layout: layout.clone(),
            version: loaded.version,
            set: Mutex::default(),
            facts: Mutex::new(None),
            occupancy: Mutex::default(),
        });
        // Another thread may have been quicker: then its name is used, and ours is one too many.
        let kernel = registered.keep_in(owner.context, kernel);
        self.modules.kernels().insert(kernel.function);
        Ok(kernel)
    }

    /// Sends a binary for a context, once.
    fn load(&self, binary: &Binary, owner: Owner) -> Result<Arc<Loaded>, Code> {
        let mut all = binary.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = all.get(&owner.context) {
            return Ok(loaded.clone());
        }
        let device = owner.device;
        let facts = self.device(device)?;
        let gpu = Capability::new(facts.capability.0, facts.capability.1);
        let bytes = binary.bytes();
        let (packed, image);
        let (sent, readable): (&[u8], &[u8]) = if bytes.starts_with(&0xba55_ed50_u32.to_le_bytes()) {
            let entries = entries(bytes).map_err(|error| bad_image(&error))?;
            let chosen = if facts.needs_assembly { choose_assembly(&entries, gpu) } else { None };
            let chosen = chosen.or_else(|| choose(&entries, gpu)).ok_or_else(|| {
                eprintln!("hinterland: the program has no code for a GPU of capability {gpu}");
                NO_BINARY
            })?;
            packed = repack(&[chosen]);
            image = chosen.image().map_err(|error| bad_image(&error))?;
            (&packed, &image)
        } else {
            packed = wrap(bytes, gpu);
            (&packed, bytes)
        };
        let kernels = Kernels::of_image(readable).map_err(|error| bad_image(&error))?;
        if let Some(one) = kernels.variables.iter().find(|one| one.is_managed) {
            // Its kernels would use a place that the program does not see.
            say_managed(&one.name);
            return Err(NOT_SUPPORTED);
        }
        let module = self.send_module(device, sent)?;
        let made_for = kernels.target.map_or(gpu, |target| target.capability);
        let loaded = Arc::new(Loaded {
            module,
            version: made_for.major * 10 + made_for.minor,
            variables: kernels.variables.iter().map(|one| (one.name.clone(), one.size)).collect(),
            kernels: kernels.kernels.into_iter().map(|one| (one.name.clone(), one)).collect(),
            symbols: Mutex::default(),
        });
        if !loaded.variables.is_empty() {
            let mut unasked = self.modules.unasked.lock().unwrap_or_else(PoisonError::into_inner);
            unasked.push((Arc::downgrade(&loaded), owner));
        }
        all.insert(owner.context, loaded.clone());
        Ok(loaded)
    }

    fn send_module(&self, device: u32, bytes: &[u8]) -> Result<u32, Code> {
        let hash = *blake3::hash(bytes).as_bytes();
        let module = self.modules.name();
        if self.welcome.modules.contains(&hash) {
            self.send(&Module { module, device, bytes: 0, hash })?;
            return Ok(module);
        }
        self.send(&Module { module, device, bytes: bytes.len() as u64, hash })?;
        // Relaxed: a statistic.
        self.modules.code_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        for part in bytes.chunks(self.tail_max(ModulePart::FIELD_BYTES)) {
            self.send_with_tail(&ModulePart { module }, part.len(), |tail| tail.put(0, part))?;
        }
        Ok(module)
    }

    /// Forgets a binary that the program loaded by itself, and its kernels.
    ///
    /// # Errors
    /// There is none (any more).
    pub fn remove_binary(&self, number: u32) -> Result<Arc<Binary>, Code> {
        let (binary, functions) = self.modules.take_binary(number)?;
        self.forget_kernels(&functions);
        Ok(binary)
    }

    /// Forgets what the program called these kernels, which have gone.
    pub fn forget_kernels(&self, functions: &[Arc<Registered>]) {
        functions.iter().flat_map(|one| one.numbers()).for_each(|number| self.drop_kernel(number));
    }

    fn drop_kernel(&self, number: u32) {
        self.modules.kernels().remove(&number);
        self.forget_kernel(number);
    }

    /// Whether there is a kernel of this name at the node.
    pub(super) fn has_kernel(&self, number: u32) -> bool {
        self.modules.kernels().contains(&number)
    }

    /// Takes a binary from all contexts.
    ///
    /// # Errors
    /// The node is gone.
    pub fn unload(&self, binary: &Binary) -> Result<(), Code> {
        let all = std::mem::take(&mut *binary.loaded.lock().unwrap_or_else(PoisonError::into_inner));
        self.modules.forget_unasked(all.values());
        for loaded in all.values() {
            let symbols = loaded.symbols.lock().unwrap_or_else(PoisonError::into_inner);
            self.forget_symbols(symbols.values().map(|(start, _)| *start));
            drop(symbols);
            self.send(&ModuleDrop { module: loaded.module })?;
        }
        Ok(())
    }

    /// Takes all code from a context. What the program has registered, and libraries, are sent again when they are next used; modules are gone.
    ///
    /// # Errors
    /// The node is gone.
    pub(super) fn unload_all_of(&self, owner: Owner) -> Result<(), Code> {
        let (mut functions, mut binaries) = REGISTRY.all();
        functions.extend(self.modules.functions.all().into_iter().map(|one| (*one).clone()));
        for (number, binary) in self.modules.binaries.numbered() {
            binaries.push((*binary).clone());
            if binary.owner == Some(owner) {
                self.remove_binary(number)?;
            }
        }
        for function in functions {
            if let Some(kernel) = function.forget_in(owner.context) {
                self.drop_kernel(kernel.function);
            }
            binaries.push(function.binary.clone());
        }
        super::recent::forget_all();
        for binary in binaries {
            let loaded = binary.loaded.lock().unwrap_or_else(PoisonError::into_inner).remove(&owner.context);
            if let Some(loaded) = loaded {
                self.modules.forget_unasked([&loaded]);
                self.send(&ModuleDrop { module: loaded.module })?;
            }
        }
        Ok(())
    }

    /// Whether a binary has a kernel of this name for the device of a context.
    ///
    /// # Errors
    /// It has not, or no image for the device; the node is gone.
    pub fn check_kernel(&self, binary: &Binary, owner: Owner, name: &str) -> Result<(), Code> {
        self.load(binary, owner)?.kernels.contains_key(name).then_some(()).ok_or(NOT_FOUND)
    }

    /// Waits until a context has a binary, so that it is told at once if the node's driver does not take it.
    ///
    /// # Errors
    /// As it says, or it is gone.
    pub fn confirm(&self, binary: &Binary, owner: Owner) -> Result<(), Code> {
        let module = self.load(binary, owner)?.module;
        match self.ask(NO_VARIABLE, |question| AskSymbol { question, module }) {
            Ok(_) | Err(NOT_FOUND) => Ok(()),
            // Why is what it said of the module itself.
            Err(code) => Err(self.surface().err().unwrap_or(code)),
        }
    }

    /// Address and length of a variable as a context has it; asked once.
    ///
    /// # Errors
    /// There is no such variable, or the node is gone.
    pub fn symbol(&self, binary: &Binary, owner: Owner, name: &str) -> Result<(u64, u64), Code> {
        self.symbol_of(&*self.load(binary, owner)?, owner, name)
    }

    /// Asks where all variables are, of all code that was sent: a program may have the address of one from a kernel.
    pub(super) fn find_symbols(&self) {
        let unasked =
            std::mem::take(&mut *self.modules.unasked.lock().unwrap_or_else(PoisonError::into_inner));
        for (loaded, owner) in unasked {
            // What has been unloaded has none any more.
            let Some(loaded) = loaded.upgrade() else { continue };
            for name in loaded.variables.keys() {
                // One that the node does not know by its name is nowhere that could be told, and a node that is gone is met by the next call.
                let _ = self.symbol_of(&loaded, owner, name);
            }
        }
    }

    fn symbol_of(&self, loaded: &Loaded, owner: Owner, name: &str) -> Result<(u64, u64), Code> {
        let own = *loaded.variables.get(name).ok_or(NOT_FOUND)?;
        let mut symbols = loaded.symbols.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = symbols.get(name) {
            return Ok(*place);
        }
        let answer = self.ask(name.as_bytes(), |question| AskSymbol { question, module: loaded.module })?;
        let (Some(address), Some(bytes)) = (long(&answer, 0), long(&answer, 8)) else {
            return Err(INVALID_VALUE);
        };
        self.add_symbol(owner, address, bytes, own).inspect_err(|_| {
            eprintln!(
                "hinterland: the variable {} lies at {address:#x} on the GPU node, where this program has memory of its own (hint: start the program again)",
                name.escape_default()
            );
        })?;
        symbols.insert(name.to_string(), (address, bytes));
        Ok((address, bytes))
    }

    /// What the driver knows of a kernel. Machine code says it all; for PTX the node is asked, once.
    ///
    /// # Errors
    /// What the node says, or it is gone.
    pub fn facts(&self, kernel: &Kernel) -> Result<FunctionFacts, Code> {
        let mut facts = kernel.facts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(facts) = *facts {
            return Ok(facts);
        }
        let known = match self.facts_of_image(kernel) {
            Some(known) => known,
            None => {
                let answer = self.ask(&[], |question| AskFunction { question, function: kernel.function })?;
                postcard::from_bytes(&answer).map_err(|_| INVALID_VALUE)?
            }
        };
        *facts = Some(known);
        Ok(known)
    }

    fn facts_of_image(&self, kernel: &Kernel) -> Option<FunctionFacts> {
        let layout = &kernel.layout;
        let registers = layout.registers.filter(|_| !self.without.image_facts)?;
        let shared = layout.static_shared_bytes.unwrap_or(0);
        let limit = self.multiprocessor(kernel.owner.device).threads_max(registers);
        let signed = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
        let version = signed(kernel.version);
        let set = kernel.set.lock().unwrap_or_else(PoisonError::into_inner);
        let ordinary = self.attribute_or_zero(kernel.owner.device, attribute::SHARED_PER_BLOCK);
        Some(FunctionFacts {
            shared: u64::from(shared),
            constant: 0,
            local: u64::from(layout.local_bytes.unwrap_or(0)),
            threads_max: signed(layout.threads_max.unwrap_or(limit).min(limit)),
            registers: signed(registers),
            ptx: version,
            binary: version,
            dynamic_shared_max: set.get(&DYNAMIC_SHARED_MAX).copied().unwrap_or(ordinary - signed(shared)),
            carveout: set.get(&CARVEOUT).copied().unwrap_or(-1),
        })
    }

    pub(super) fn multiprocessor(&self, device: u32) -> Multiprocessor {
        let of = |number| u32::try_from(self.attribute_or_zero(device, number)).unwrap_or(0);
        Multiprocessor {
            threads: of(attribute::THREADS_PER_MULTIPROCESSOR),
            groups: of(attribute::BLOCKS_PER_MULTIPROCESSOR),
            registers: of(attribute::REGISTERS_PER_MULTIPROCESSOR),
            shared_bytes: of(attribute::SHARED_PER_MULTIPROCESSOR),
            shared_reserved_bytes: of(attribute::RESERVED_SHARED),
            shared_group_bytes: of(attribute::SHARED_PER_BLOCK_OPTIN),
        }
    }

    /// Sets an attribute of a kernel, by the driver's number.
    ///
    /// # Errors
    /// There is none of this number that can be set, or not to this; the node is gone.
    pub fn set_attribute(&self, kernel: &Kernel, attribute: i32, value: i32) -> Result<(), Code> {
        kernel.limits.set(attribute, value)?;
        self.send(&FunctionAttribute { function: kernel.function, attribute, value })?;
        kernel.set.lock().unwrap_or_else(PoisonError::into_inner).insert(attribute, value);
        // What was known of it may be another now.
        *kernel.facts.lock().unwrap_or_else(PoisonError::into_inner) = None;
        kernel.occupancy.lock().unwrap_or_else(PoisonError::into_inner).clear();
        Ok(())
    }

    /// How many groups of a kernel a multiprocessor holds. For machine code it is reckoned here; for PTX the node is asked, once for the
    /// same numbers.
    ///
    /// # Errors
    /// What the node says, or it is gone.
    pub fn occupancy(&self, kernel: &Kernel, threads: u32, shared: u64, flags: u32) -> Result<u32, Code> {
        let mut known = kernel.occupancy.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(groups) = known.get(&(threads, shared, flags)) {
            return Ok(*groups);
        }
        let function = kernel.function;
        let groups = match kernel.layout.registers.filter(|_| !self.without.image_facts) {
            Some(registers) => {
                let shared_bytes =
                    u64::from(kernel.layout.static_shared_bytes.unwrap_or(0)).saturating_add(shared);
                self.multiprocessor(kernel.owner.device).groups_of(Group { threads, registers, shared_bytes })
            }
            None => {
                let answer =
                    self.ask(&[], |question| AskOccupancy { question, function, threads, flags, shared })?;
                answer.try_into().map(u32::from_le_bytes).map_err(|_| INVALID_VALUE)?
            }
        };
        known.insert((threads, shared, flags), groups);
        Ok(groups)
    }
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
