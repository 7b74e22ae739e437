//! A module: its kernels, functions and variables. Bodies are looked at when a kernel is first launched.

use crate::code::Program;
use crate::declaration::{Initial, Relocation, VARIABLE_BYTES_MAX, declaration, initial, shape};
use crate::error::PtxError;
use crate::text::{Literal, Token, Tokens, literal, shown};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

/// Functions have addresses of their own, apart from all memory, so that they can be stored and called.
pub(crate) const FUNCTION_WINDOW: u64 = 0x0700_0000_0000_0000;
/// The distance between the addresses of two functions.
pub(crate) const FUNCTION_STRIDE: u64 = 16;
/// Bytes of parameters that a kernel may have.
const PARAMETER_BYTES_MAX: u64 = 32764;
/// Bytes of text: the largest modules of inference engines have 12 MB.
const TEXT_BYTES_MAX: usize = 256 << 20;

/// One parameter of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameter {
    /// Where it starts, in bytes from the first.
    pub offset: u64,
    /// Its bytes.
    pub size: u64,
    /// What its offset is a multiple of.
    pub align: u64,
}

/// A kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name, mangled as the compiler wrote it.
    pub name: String,
    /// Its parameters in order.
    pub parameters: Vec<Parameter>,
    /// Bytes of all parameters.
    pub parameter_bytes: u64,
    /// The most threads of a block, if the kernel says so.
    pub threads_max: Option<u32>,
}

/// A `.global` or `.const` variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Its name, mangled as the compiler wrote it.
    pub name: String,
    /// Where it starts in the module's data.
    pub offset: u64,
    /// Its bytes.
    pub size: u64,
    /// Whether kernels only read it.
    pub is_constant: bool,
}

/// A parameter or result of a function, as it is declared.
#[derive(Debug, Clone)]
pub(crate) struct Formal {
    pub name: String,
    pub parameter: Parameter,
}

/// A function whose body has not been looked at.
#[derive(Debug, Clone)]
pub(crate) struct FunctionText {
    pub name: String,
    pub is_entry: bool,
    pub parameters: Vec<Formal>,
    pub results: Vec<Formal>,
    /// Start and end in the text, and the line; nothing if another module has it.
    pub body: Option<(usize, usize, u32)>,
    threads_max: Option<u32>,
}

/// A `.shared` variable that all functions see.
#[derive(Debug, Clone)]
pub(crate) struct SharedVariable {
    pub bytes: u64,
    pub align: u64,
    /// It lies at the start of what the launch asks for.
    pub is_dynamic: bool,
}

/// A parsed module. Kernels are decoded when first launched, and kept.
#[derive(Debug)]
pub struct Module {
    pub(crate) text: Arc<str>,
    pub(crate) functions: Vec<FunctionText>,
    pub(crate) function_names: HashMap<String, usize>,
    pub(crate) shared: HashMap<String, SharedVariable>,
    pub(crate) variable_names: HashMap<String, usize>,
    entries: Vec<Entry>,
    variables: Vec<Variable>,
    initials: Vec<(usize, Initial)>,
    data_bytes: u64,
    programs: Vec<OnceLock<Result<Arc<Program>, PtxError>>>,
}

impl Module {
    /// Reads the declarations of a module, and where its functions begin and end.
    ///
    /// # Errors
    /// The line, and what is not understood there. What is wrong inside of a function is found when it is needed.
    pub fn parse(text: &str) -> Result<Self, PtxError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(PtxError::new(
                1,
                format!("{} bytes of text, {TEXT_BYTES_MAX} are the most", text.len()),
            ));
        }
        let mut module = Self {
            text: text.into(),
            functions: Vec::new(),
            function_names: HashMap::new(),
            shared: HashMap::new(),
            variable_names: HashMap::new(),
            entries: Vec::new(),
            variables: Vec::new(),
            initials: Vec::new(),
            data_bytes: 0,
            programs: Vec::new(),
        };
        let mut tokens = Tokens::new(text, 1);
        let mut is_extern = false;
        while tokens.peek()? != Token::End {
            is_extern = module.directive(&mut tokens, is_extern)?;
        }
        for function in &module.functions {
            if function.is_entry && function.body.is_some() {
                let parameters: Vec<_> = function.parameters.iter().map(|formal| formal.parameter).collect();
                module.entries.push(Entry {
                    name: function.name.clone(),
                    parameter_bytes: parameters.last().map_or(0, |last| last.offset + last.size),
                    parameters,
                    threads_max: function.threads_max,
                });
            }
        }
        for (_, initial) in &module.initials {
            for relocation in &initial.relocations {
                module.address(relocation, 0)?;
            }
        }
        module.programs.resize_with(module.functions.len(), OnceLock::new);
        Ok(module)
    }

    /// All kernels, in the order of the text.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The kernel of this name.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// All `.global` and `.const` variables, in the order of the text.
    #[must_use]
    pub fn variables(&self) -> &[Variable] {
        &self.variables
    }

    /// The variable of this name.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&Variable> {
        self.variable_names.get(name).map(|&index| &self.variables[index])
    }

    /// Bytes of the module's data: all variables. Whoever loads the module sets aside so much zeroed memory for it,
    /// at a multiple of 65536, writes [`Self::data_image`] into it, and names its address at each launch.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// What the data starts with, if it lies at `base`: offsets, and the bytes there. All else is zero.
    #[must_use]
    pub fn data_image(&self, base: u64) -> Vec<(u64, Vec<u8>)> {
        let mut image = Vec::new();
        for (index, initial) in &self.initials {
            let mut bytes = initial.bytes.clone();
            for relocation in &initial.relocations {
                let address = self.address(relocation, base).unwrap_or(0);
                let stored = (address & relocation.mask) >> relocation.mask.trailing_zeros().min(63);
                let (start, length) = (relocation.offset as usize, relocation.bytes as usize);
                bytes[start..start + length].copy_from_slice(&stored.to_le_bytes()[..length]);
            }
            image.push((self.variables[*index].offset, bytes));
        }
        image
    }

    /// Whether a kernel and all that it calls can be run: finds out what a launch would find out.
    ///
    /// # Errors
    /// The line, and what is not understood or supported.
    pub fn check(&self, entry: &str) -> Result<(), PtxError> {
        match self.function_names.get(entry) {
            Some(&index) => self.program(index).map(|_| ()),
            None => Err(PtxError::new(0, format!("there is no kernel {entry}"))),
        }
    }

    /// Whether a kernel asks about the cluster of its block, or waits for that: it is right in clusters of one block alone.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn knows_cluster(&self, entry: &str) -> Result<bool, PtxError> {
        match self.function_names.get(entry) {
            Some(&index) => Ok(self.program(index)?.knows_cluster),
            None => Err(PtxError::new(0, format!("there is no kernel {entry}"))),
        }
    }

    /// The decoded form of a kernel.
    pub(crate) fn program(&self, function: usize) -> Result<Arc<Program>, PtxError> {
        self.programs[function].get_or_init(|| Program::decode(self, function).map(Arc::new)).clone()
    }

    /// The address that a relocation stands for.
    fn address(&self, relocation: &Relocation, base: u64) -> Result<u64, PtxError> {
        let symbol = &relocation.symbol;
        let address = if let Some(variable) = self.variable(symbol) {
            base.wrapping_add(variable.offset)
        } else if let Some(&function) = self.function_names.get(symbol) {
            FUNCTION_WINDOW + function as u64 * FUNCTION_STRIDE
        } else {
            return Err(PtxError::new(relocation.line, format!("{symbol} is not declared")));
        };
        Ok(address.wrapping_add_signed(relocation.addend))
    }

    /// One directive of the module; true if it only announces that the next is defined elsewhere.
    fn directive(&mut self, tokens: &mut Tokens<'_>, is_extern: bool) -> Result<bool, PtxError> {
        let line = tokens.line();
        match tokens.take()? {
            Token::Word(".extern") => return Ok(true),
            Token::Word(".visible" | ".weak" | ".common") => return Ok(is_extern),
            Token::Word(".version") => version(tokens)?,
            Token::Word(".address_size") => {
                if tokens.count()? != 64 {
                    return Err(PtxError::new(line, "addresses of other than 64 bits"));
                }
            }
            Token::Word(".target" | ".file" | ".loc") => tokens.skip_line(line)?,
            Token::Word(".section") => {
                tokens.take()?;
                tokens.braces()?;
            }
            Token::Word(".pragma" | ".alias" | ".tex" | ".texref" | ".samplerref" | ".surfref") => {
                while !tokens.accept(';')? && tokens.take()? != Token::End {}
            }
            Token::Word(".entry") => self.function(tokens, true)?,
            Token::Word(".func") => self.function(tokens, false)?,
            Token::Word(".shared") => self.shared(tokens, is_extern)?,
            Token::Word(".global") => self.data(tokens, is_extern, false)?,
            Token::Word(".const") => self.data(tokens, is_extern, true)?,
            Token::Mark(';') => {}
            other => return Err(PtxError::new(line, format!("{} outside of a function", shown(other)))),
        }
        Ok(false)
    }

    fn function(&mut self, tokens: &mut Tokens<'_>, is_entry: bool) -> Result<(), PtxError> {
        let results = if tokens.peek()? == Token::Mark('(') { formals(tokens)? } else { Vec::new() };
        let line = tokens.line();
        let name = tokens.word()?.to_string();
        let parameters = if tokens.peek()? == Token::Mark('(') { formals(tokens)? } else { Vec::new() };
        let mut function =
            FunctionText { name, is_entry, parameters, results, body: None, threads_max: None };
        loop {
            match tokens.peek()? {
                Token::Mark('{') => {
                    function.body = Some(tokens.braces()?);
                    break;
                }
                Token::Mark(';') => {
                    tokens.take()?;
                    break;
                }
                Token::Word(".maxntid" | ".reqntid") => {
                    tokens.take()?;
                    let mut product = tokens.count()?;
                    while tokens.accept(',')? {
                        product = product.saturating_mul(tokens.count()?);
                    }
                    function.threads_max = u32::try_from(product).ok();
                }
                Token::End => return Err(PtxError::new(line, "a function has no end")),
                _ => {
                    tokens.take()?;
                }
            }
        }
        match self.function_names.get(&function.name) {
            // A declaration before or behind the definition.
            Some(&index) if self.functions[index].body.is_none() => self.functions[index] = function,
            Some(_) if function.body.is_none() => {}
            Some(_) => return Err(PtxError::new(line, format!("{} is there twice", function.name))),
            None => {
                self.function_names.insert(function.name.clone(), self.functions.len());
                self.functions.push(function);
            }
        }
        Ok(())
    }

    fn shared(&mut self, tokens: &mut Tokens<'_>, is_extern: bool) -> Result<(), PtxError> {
        let shape = shape(tokens)?;
        loop {
            let found = declaration(tokens, shape)?;
            let is_dynamic = is_extern && found.is_open;
            let variable = SharedVariable { bytes: found.bytes, align: found.align, is_dynamic };
            self.shared.insert(found.name.to_string(), variable);
            if !tokens.accept(',')? {
                return tokens.expect(';');
            }
        }
    }

    fn data(&mut self, tokens: &mut Tokens<'_>, is_extern: bool, is_constant: bool) -> Result<(), PtxError> {
        let shape = shape(tokens)?;
        loop {
            let line = tokens.line();
            let mut found = declaration(tokens, shape)?;
            let values = if tokens.accept('=')? { Some(initial(tokens, &mut found)?) } else { None };
            if !is_extern && !self.variable_names.contains_key(found.name) {
                let offset = self.data_bytes.next_multiple_of(found.align);
                self.data_bytes = offset + found.bytes;
                if self.data_bytes > VARIABLE_BYTES_MAX {
                    return Err(PtxError::new(
                        line,
                        format!("more than {VARIABLE_BYTES_MAX} bytes of variables"),
                    ));
                }
                self.variable_names.insert(found.name.to_string(), self.variables.len());
                if let Some(values) = values {
                    self.initials.push((self.variables.len(), values));
                }
                let (name, size) = (found.name.to_string(), found.bytes);
                self.variables.push(Variable { name, offset, size, is_constant });
            }
            if !tokens.accept(',')? {
                return tokens.expect(';');
            }
        }
    }
}

/// Reads `9.1`.
fn version(tokens: &mut Tokens<'_>) -> Result<(), PtxError> {
    let line = tokens.line();
    let version = match tokens.take()? {
        Token::Number(number) => match literal(number) {
            Some(Literal::Double(version)) => version,
            _ => 0.0,
        },
        _ => 0.0,
    };
    if (3.0..10.0).contains(&version) {
        return Ok(());
    }
    Err(PtxError::new(line, "a version that is not 3.0 to 9.9"))
}

/// Reads `(.param .u64 a, .param .align 4 .b8 b[8])`.
fn formals(tokens: &mut Tokens<'_>) -> Result<Vec<Formal>, PtxError> {
    tokens.expect('(')?;
    let (mut found, mut end) = (Vec::new(), 0u64);
    while !tokens.accept(')')? {
        let line = tokens.line();
        if tokens.word()? != ".param" {
            return Err(PtxError::new(line, "parameters in registers"));
        }
        let shape = shape(tokens)?;
        let declared = declaration(tokens, shape)?;
        let offset = end.next_multiple_of(declared.align);
        end = offset + declared.bytes;
        if end > PARAMETER_BYTES_MAX {
            return Err(PtxError::new(line, format!("more than {PARAMETER_BYTES_MAX} bytes of parameters")));
        }
        let parameter = Parameter { offset, size: declared.bytes, align: declared.align };
        found.push(Formal { name: declared.name.to_string(), parameter });
        if !tokens.accept(',')? && tokens.peek()? != Token::Mark(')') {
            return Err(PtxError::new(line, "parameters are separated by `,`"));
        }
    }
    Ok(found)
}
