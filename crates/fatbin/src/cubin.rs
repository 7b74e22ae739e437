//! Machine code: kernels and variables out of a cubin, which is an ELF file of its own kind.
//!
//! A kernel is a symbol of type function whose `st_other` has the bit 0x10. What a launch needs stands in the section
//! `.nv.info.KERNEL`, a list of attributes; each has one byte of format, one of kind, and two of a value, or of the length of the bytes
//! behind it if the format is 4. Those of interest:
//!
//! | kind | bytes | what |
//! | --- | --- | --- |
//! | 0x05, 0x10 | 3 x 4 | the largest block, and the only block |
//! | 0x17 | 4, 2, 2, 4 | index, ordinal, offset of a parameter; its size in the bits from 18 |
//! | 0x45 | 4, 2, 2, 2, 2 | index, ordinal, offset, size of a parameter, for kernels with more than 4 KiB of them |
//! | 0x0a | 4, 2, 2 | index, address of the first parameter among constants, bytes of them all |
//! | 0x19 | value | bytes of all parameters |
//! | 0x3d | 3 x 4 | blocks of a cluster |
//! | 0x2f, 0x11 | 4, 4 | in `.nv.info`: symbol of a function and its registers, its bytes of local memory |

use crate::kernels::{ImageError, Kernel, Kernels, PARAMETER_BYTES_MAX, Parameter, Space, Variable};
use crate::numbers::{u16_at, u32_at};
use crate::target::{Capability, Specific, Target};
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, SectionHeader, SectionTable, Sym, SymbolTable};
use object::{LittleEndian, SectionIndex, SymbolIndex};
use std::cell::Cell;
use std::collections::{HashMap, HashSet};

type Header = FileHeader64<LittleEndian>;
type Symbol = elf::Sym64<LittleEndian>;

const ENDIAN: LittleEndian = LittleEndian;
const MACHINE_CUDA: u16 = 190;
/// The bit of `st_other` that a kernel has.
const OTHER_KERNEL: u8 = 0x10;
/// The bit of `st_other` that a managed variable has.
const OTHER_MANAGED: u8 = 0x04;
/// Shared memory that the system keeps for itself in each block, from 9.0 on. Sections count it, programs do not.
const RESERVED_SHARED_BYTES: u64 = 1024;
const RESERVED_SHARED_SECTION: &str = ".nv.shared.reserved.0";
/// The format byte of an attribute with bytes behind it.
const FORMAT_BYTES: u8 = 4;
/// The `EI_OSABI` from which on the flags have the capability in their second byte. Before, it is the first.
const ABI_OF_CUDA_13: u8 = 0x41;

/// Kernels and variables of a cubin.
pub(crate) fn read(image: &[u8]) -> Result<Kernels, ImageError> {
    let file = File::open(image)?;
    let globals = file.globals()?;
    let mut found = Kernels { target: Some(file.target()), ..Kernels::default() };
    let mut names = HashSet::new();
    for (index, symbol) in file.symbols.enumerate() {
        let section = symbol.st_shndx(ENDIAN);
        if section == elf::SHN_UNDEF || section >= elf::SHN_LORESERVE {
            continue;
        }
        if symbol.st_type() == elf::STT_FUNC && symbol.st_other() & OTHER_KERNEL != 0 {
            let kernel = file.kernel(index, symbol, &globals)?;
            if !names.insert(file.symbol_name(symbol)?) {
                return Err(damaged(format!("kernel {} is there twice", kernel.name)));
            }
            found.kernels.push(kernel);
        } else if symbol.st_type() == elf::STT_OBJECT {
            found.variables.extend(file.variable(symbol, section)?);
        }
    }
    Ok(found)
}

fn damaged(what: impl std::fmt::Display) -> ImageError {
    ImageError::Elf { reason: what.to_string() }
}

struct File<'image> {
    image: &'image [u8],
    header: &'image Header,
    sections: SectionTable<'image, Header>,
    symbols: SymbolTable<'image, Header>,
    by_name: HashMap<&'image str, SectionIndex>,
    /// Bytes of names and attributes that may still be read: parts of a file can lie upon each other, and then a small file
    /// would cost much.
    budget: Cell<usize>,
}

/// How often all of a file may be read, in names and attributes. In files of compilers nothing is read twice, but for names.
const READS_MAX: usize = 4;

/// What the section of all kernels says of each, by index of its symbol.
#[derive(Default)]
struct Globals {
    registers: HashMap<u32, u32>,
    local_bytes: HashMap<u32, u32>,
}

impl<'image> File<'image> {
    fn open(image: &'image [u8]) -> Result<Self, ImageError> {
        let header = Header::parse(image).map_err(damaged)?;
        if !header.is_little_endian() || header.e_machine(ENDIAN) != MACHINE_CUDA {
            return Err(damaged(format!("the ELF file is for machine {}", header.e_machine(ENDIAN))));
        }
        let sections = header.sections(ENDIAN, image).map_err(damaged)?;
        let symbols = sections.symbols(ENDIAN, image, elf::SHT_SYMTAB).map_err(damaged)?;
        let budget = Cell::new(image.len().saturating_mul(READS_MAX));
        let mut by_name = HashMap::new();
        for (index, section) in sections.enumerate() {
            let name = sections.section_name(ENDIAN, section).map_err(damaged)?;
            spend(&budget, name.len())?;
            by_name.entry(text(name)?).or_insert(index);
        }
        Ok(Self { image, header, sections, symbols, by_name, budget })
    }

    fn target(&self) -> Target {
        let flags = self.header.e_flags(ENDIAN);
        let shift = if self.header.e_ident().os_abi >= ABI_OF_CUDA_13 { 8 } else { 0 };
        Target { capability: Capability::of_number((flags >> shift) & 0xff), specific: Specific::No }
    }

    fn section(&self, name: &str) -> Result<Option<&'image elf::SectionHeader64<LittleEndian>>, ImageError> {
        self.by_name.get(name).map(|index| self.sections.section(*index).map_err(damaged)).transpose()
    }

    fn attributes(&self, name: &str) -> Result<Option<Attributes<'image>>, ImageError> {
        let Some(section) = self.section(name)? else { return Ok(None) };
        let rest = section.data(ENDIAN, self.image).map_err(damaged)?;
        spend(&self.budget, rest.len())?;
        Ok(Some(Attributes { rest }))
    }

    fn globals(&self) -> Result<Globals, ImageError> {
        let mut globals = Globals::default();
        for attribute in self.attributes(".nv.info")?.into_iter().flatten() {
            let (kind, bytes) = attribute?;
            let Some((symbol, value)) = u32_at(bytes, 0).zip(u32_at(bytes, 4)) else { continue };
            match kind {
                0x2f => drop(globals.registers.insert(symbol, value)),
                0x11 => drop(globals.local_bytes.insert(symbol, value)),
                _ => {}
            }
        }
        Ok(globals)
    }

    fn kernel(&self, index: SymbolIndex, symbol: &Symbol, globals: &Globals) -> Result<Kernel, ImageError> {
        let name = self.symbol_name(symbol)?;
        let number = u32::try_from(index.0).map_err(damaged)?;
        let mut kernel = Kernel {
            name: name.to_string(),
            registers: globals.registers.get(&number).copied(),
            local_bytes: globals.local_bytes.get(&number).copied(),
            static_shared_bytes: Some(self.shared_bytes(name)?),
            ..Kernel::default()
        };
        let Some(attributes) = self.attributes(&format!(".nv.info.{name}"))? else { return Ok(kernel) };
        let mut layout = Layout { kernel: name, numbered: Vec::new(), total_bytes: None };
        for attribute in attributes {
            let (kind, bytes) = attribute?;
            match kind {
                0x05 => kernel.threads_max = three(bytes).and_then(threads),
                0x10 => kernel.block = three(bytes),
                0x3d => kernel.cluster = three(bytes),
                0x17 | 0x45 => layout.add(kind, bytes)?,
                0x0a => kernel.parameters_start = u16_at(bytes, 4),
                0x19 => layout.total_bytes = u16_at(bytes, 0).map(u32::from),
                _ => {}
            }
        }
        (kernel.parameters, kernel.parameter_bytes) = layout.finish()?;
        kernel.threads_max = kernel.threads_max.or(kernel.block.and_then(threads));
        Ok(kernel)
    }

    fn shared_bytes(&self, kernel: &str) -> Result<u32, ImageError> {
        let Some(section) = self.section(&format!(".nv.shared.{kernel}"))? else { return Ok(0) };
        let reserved =
            if self.by_name.contains_key(RESERVED_SHARED_SECTION) { RESERVED_SHARED_BYTES } else { 0 };
        u32::try_from(section.sh_size(ENDIAN).saturating_sub(reserved)).map_err(damaged)
    }

    fn variable(&self, symbol: &Symbol, section: u16) -> Result<Option<Variable>, ImageError> {
        let section = self.sections.section(SectionIndex(section.into())).map_err(damaged)?;
        let place = text(self.sections.section_name(ENDIAN, section).map_err(damaged)?)?;
        let space = match place {
            ".nv.global" | ".nv.global.init" => Space::Global,
            ".nv.constant3" => Space::Constant,
            _ => return Ok(None),
        };
        let name = self.symbol_name(symbol)?.to_string();
        let is_managed = symbol.st_other() & OTHER_MANAGED != 0;
        Ok(Some(Variable { name, size: symbol.st_size(ENDIAN), space, is_managed }))
    }

    fn symbol_name(&self, symbol: &Symbol) -> Result<&'image str, ImageError> {
        let name = self.symbols.symbol_name(ENDIAN, symbol).map_err(damaged)?;
        spend(&self.budget, name.len())?;
        text(name)
    }
}

fn spend(budget: &Cell<usize>, bytes: usize) -> Result<(), ImageError> {
    let rest = budget.get().checked_sub(bytes).ok_or_else(|| damaged("its parts lie upon each other"))?;
    budget.set(rest);
    Ok(())
}

fn text(name: &[u8]) -> Result<&str, ImageError> {
    std::str::from_utf8(name).map_err(|_| damaged("a name is not text"))
}

fn three(bytes: &[u8]) -> Option<[u32; 3]> {
    Some([u32_at(bytes, 0)?, u32_at(bytes, 4)?, u32_at(bytes, 8)?])
}

/// Threads of a block of this shape, if it is one.
fn threads(block: [u32; 3]) -> Option<u32> {
    block[0].checked_mul(block[1])?.checked_mul(block[2])
}

/// The list of attributes of a section, each with its kind and its bytes.
struct Attributes<'image> {
    rest: &'image [u8],
}

impl<'image> Iterator for Attributes<'image> {
    type Item = Result<(u8, &'image [u8]), ImageError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (head, rest) = match self.rest {
            [] => return None,
            bytes => bytes.split_at_checked(4)?,
        };
        let length = usize::from(u16::from_le_bytes([head[2], head[3]]));
        let (value, rest) = match (head[0], rest.split_at_checked(length)) {
            (FORMAT_BYTES, Some(split)) => split,
            (FORMAT_BYTES, None) => {
                self.rest = &[];
                return Some(Err(damaged("an attribute is longer than its section")));
            }
            _ => (&head[2..], rest),
        };
        self.rest = rest;
        Some(Ok((head[1], value)))
    }
}

/// The parameters of one kernel while they are read.
struct Layout<'name> {
    kernel: &'name str,
    numbered: Vec<(u16, Parameter)>,
    total_bytes: Option<u32>,
}

impl Layout<'_> {
    fn add(&mut self, kind: u8, bytes: &[u8]) -> Result<(), ImageError> {
        let short = || self.wrong("an attribute of a parameter is cut off");
        let ordinal = u16_at(bytes, 4).ok_or_else(short)?;
        let offset = u16_at(bytes, 6).ok_or_else(short)?.into();
        let size = match kind {
            0x17 => u32_at(bytes, 8).ok_or_else(short)? >> 18,
            _ => u16_at(bytes, 8).ok_or_else(short)?.into(),
        };
        self.numbered.push((ordinal, Parameter { offset, size }));
        Ok(())
    }

    /// The parameters in order, and the bytes of them all.
    fn finish(mut self) -> Result<(Vec<Parameter>, u32), ImageError> {
        self.numbered.sort_by_key(|(ordinal, _)| *ordinal);
        let mut end = 0;
        for (place, (ordinal, parameter)) in self.numbered.iter().enumerate() {
            if usize::from(*ordinal) != place {
                return Err(self.wrong(&format!("parameter {place} is missing or there twice")));
            }
            if parameter.offset < end {
                return Err(self.wrong(&format!("parameter {place} lies within the one before it")));
            }
            end = parameter.offset + parameter.size;
        }
        let total_bytes = self.total_bytes.unwrap_or(end);
        if total_bytes < end || total_bytes > PARAMETER_BYTES_MAX {
            return Err(self.wrong(&format!("its parameters end at {end} of {total_bytes} bytes")));
        }
        Ok((self.numbered.iter().map(|(_, parameter)| *parameter).collect(), total_bytes))
    }

    fn wrong(&self, reason: &str) -> ImageError {
        ImageError::Parameters { kernel: self.kernel.to_string(), reason: reason.to_string() }
    }
}
