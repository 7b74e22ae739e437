//! The body of a function: scopes, declarations, labels, and the operands of instructions.

use crate::code::{
    Address, FRAME_BYTES_MAX, Function, Guard, Instruction, Linker, Op, Source, Space, Special, Target, Truth,
};
use crate::declaration::{addend, declaration, immediate, shape};
use crate::decode;
use crate::error::PtxError;
use crate::module::{FUNCTION_STRIDE, FUNCTION_WINDOW, FunctionText};
use crate::text::{Literal, Token, Tokens, literal, shown};
use crate::types::Type;
use std::collections::HashMap;

/// Blocks within blocks: inlined assembly nests two or three.
const SCOPES_MAX: usize = 64;
/// Registers that one function may use. Each takes 256 bytes for each warp.
const REGISTERS_MAX: u32 = 1 << 17;

/// An operand as it is written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operand<'a> {
    /// A name, and what is added to it.
    Name(&'a str, i64),
    Number(Literal),
    Not(&'a str),
    /// `d|p`.
    Pair(&'a str, &'a str),
    /// `{a, b}`.
    Vector(Vec<Operand<'a>>),
    /// `(a, b)`.
    Group(Vec<Operand<'a>>),
    /// `[name+offset]`, or `[offset]`.
    Memory(Option<&'a str>, i64),
}

/// What a name of the function stands for.
#[derive(Debug, Clone, Copy)]
enum Named {
    Register(u32, Type),
    Predicate(u32),
    /// Offset in the frame and bytes.
    Frame(u64, u64),
    Shared(u64),
    /// Offset among the parameters of the kernel.
    Parameter(u64),
    Prototype,
}

/// A branch whose label has not come yet.
struct Pending<'a> {
    at: usize,
    slot: usize,
    label: &'a str,
    line: u32,
}

#[derive(Default)]
struct Scope<'a> {
    names: HashMap<&'a str, Named>,
    /// By what stands before the number.
    ranges: HashMap<&'a str, (u64, Type)>,
    labels: HashMap<&'a str, u32>,
    tables: HashMap<&'a str, Vec<&'a str>>,
    pending: Vec<Pending<'a>>,
}

/// A function that is being decoded.
pub(crate) struct Body<'a, 'm> {
    pub linker: &'a mut Linker<'m>,
    pub line: u32,
    pub guard: Option<Guard>,
    function: &'m FunctionText,
    tokens: Tokens<'m>,
    scopes: Vec<Scope<'m>>,
    code: Vec<Instruction>,
    registers: u32,
    predicates: u32,
    frame_bytes: u64,
    dropped: Option<u32>,
}

/// Decodes the function of this number.
pub(crate) fn decode(linker: &mut Linker<'_>, number: usize) -> Result<Function, PtxError> {
    let module = linker.module;
    let function = &module.functions[number];
    let Some((start, end, line)) = function.body else {
        return Err(PtxError::new(0, format!("{} has no body", function.name)));
    };
    let mut body = Body {
        linker,
        line,
        guard: None,
        function,
        tokens: Tokens::new(&module.text[start..end], line),
        scopes: vec![Scope::default()],
        code: Vec::new(),
        registers: 0,
        predicates: 0,
        frame_bytes: 0,
        dropped: None,
    };
    let (mut parameters, mut results) = (Vec::new(), Vec::new());
    for (formals, places) in [(&function.parameters, &mut parameters), (&function.results, &mut results)] {
        for formal in formals {
            let (bytes, align) = (formal.parameter.size, formal.parameter.align);
            let named = if function.is_entry {
                Named::Parameter(formal.parameter.offset)
            } else {
                let at = body.frame(bytes, align)?;
                places.push((at, bytes));
                Named::Frame(at, bytes)
            };
            body.scopes[0].names.insert(&formal.name, named);
        }
    }
    body.statements()?;
    body.emit(Op::Return);
    let frame_bytes = body.frame_bytes.next_multiple_of(16);
    let (registers, predicates) = (body.registers, body.predicates);
    Ok(Function { code: body.code, registers, predicates, frame_bytes, parameters, results })
}

impl<'m> Body<'_, 'm> {
    /// An error at the line of the instruction that is being decoded.
    pub fn error(&self, what: impl Into<String>) -> PtxError {
        PtxError::new(self.line, what)
    }

    /// Appends an instruction under the guard that was read.
    pub fn emit(&mut self, op: Op) {
        self.code.push(Instruction { guard: self.guard, line: self.line, op });
    }

    pub fn is_entry(&self) -> bool {
        self.function.is_entry
    }

    fn statements(&mut self) -> Result<(), PtxError> {
        loop {
            self.line = self.tokens.line();
            self.guard = None;
            match self.tokens.take()? {
                Token::End => break,
                Token::Mark(';') => {}
                Token::Mark('{') => {
                    if self.scopes.len() >= SCOPES_MAX {
                        return Err(self.error("blocks are nested too deep"));
                    }
                    self.scopes.push(Scope::default());
                }
                Token::Mark('}') if self.scopes.len() > 1 => self.close()?,
                Token::Mark('@') => {
                    let is_negated = self.tokens.accept('!')?;
                    let name = self.tokens.word()?;
                    let predicate = self.predicate(&Operand::Name(name, 0))?;
                    self.guard = Some(Guard { predicate, is_negated });
                    let opcode = self.tokens.word()?;
                    self.instruction(opcode)?;
                }
                Token::Word(word) if word.starts_with('.') => self.directive(word)?,
                Token::Word(word) => {
                    if self.tokens.accept(':')? {
                        self.label(word)?;
                    } else {
                        self.instruction(word)?;
                    }
                }
                other => return Err(self.error(format!("{} where an instruction begins", shown(other)))),
            }
        }
        if self.scopes.len() != 1 {
            return Err(self.error("`{` has no `}`"));
        }
        self.close()
    }

    fn label(&mut self, word: &'m str) -> Result<(), PtxError> {
        let here = self.code.len() as u32;
        let scope = self.scopes.len() - 1;
        match self.tokens.peek()? {
            Token::Word(".branchtargets") => {
                self.tokens.take()?;
                let mut table = vec![self.tokens.word()?];
                while self.tokens.accept(',')? {
                    table.push(self.tokens.word()?);
                }
                self.scopes[scope].tables.insert(word, table);
            }
            Token::Word(".callprototype" | ".calltargets") => {
                self.skip_statement()?;
                self.scopes[scope].names.insert(word, Named::Prototype);
            }
            _ => {
                if self.scopes[scope].labels.insert(word, here).is_some() {
                    return Err(self.error(format!("label {word} is there twice")));
                }
            }
        }
        Ok(())
    }

    fn skip_statement(&mut self) -> Result<(), PtxError> {
        while !self.tokens.accept(';')? {
            if self.tokens.take()? == Token::End {
                return Err(self.error("a statement has no `;`"));
            }
        }
        Ok(())
    }

    /// Ends a scope: its labels are known, and what is left is looked for outside.
    fn close(&mut self) -> Result<(), PtxError> {
        let Some(scope) = self.scopes.pop() else { return Ok(()) };
        for pending in scope.pending {
            if let Some(&target) = scope.labels.get(pending.label) {
                match &mut self.code[pending.at].op {
                    Op::Branch(to) => *to = target,
                    Op::Jump { targets, .. } => targets[pending.slot] = target,
                    _ => {}
                }
            } else if let Some(outer) = self.scopes.last_mut() {
                outer.pending.push(pending);
            } else {
                return Err(PtxError::new(pending.line, format!("there is no label {}", pending.label)));
            }
        }
        Ok(())
    }

    /// Appends a branch to a label.
    pub fn branch(&mut self, label: &'m str) {
        self.wait_for(label, 0);
        self.emit(Op::Branch(0));
    }

    /// Appends a branch to one of the labels of a table.
    pub fn jump(&mut self, table: &'m str, index: Source) -> Result<(), PtxError> {
        let found = self.scopes.iter().rev().find_map(|scope| scope.tables.get(table)).cloned();
        let labels = found.ok_or_else(|| self.error(format!("there is no table {table}")))?;
        for (slot, label) in labels.iter().enumerate() {
            self.wait_for(label, slot);
        }
        self.emit(Op::Jump { targets: vec![0; labels.len()].into(), index });
        Ok(())
    }

    fn wait_for(&mut self, label: &'m str, slot: usize) {
        let pending = Pending { at: self.code.len(), slot, label, line: self.line };
        if let Some(scope) = self.scopes.last_mut() {
            scope.pending.push(pending);
        }
    }

    fn directive(&mut self, word: &'m str) -> Result<(), PtxError> {
        match word {
            ".loc" | ".file" => self.tokens.skip_line(self.line),
            ".pragma" => self.skip_statement(),
            ".reg" | ".local" | ".param" | ".shared" => self.declare(word),
            _ => Err(self.error(format!("directive `{word}` in a function is not supported"))),
        }
    }

    fn declare(&mut self, space: &str) -> Result<(), PtxError> {
        let shape = shape(&mut self.tokens)?;
        loop {
            let found = declaration(&mut self.tokens, shape)?;
            let vector = found.bytes > u64::from(found.kind.bytes());
            if space == ".reg" && vector {
                return Err(self.error("a register of several values"));
            }
            let named = match (space, found.count) {
                (".reg", Some(count)) => {
                    let range = (count, found.kind);
                    self.scopes.last_mut().and_then(|scope| scope.ranges.insert(found.name, range));
                    None
                }
                (".reg", None) => Some(self.register(found.kind)?),
                (_, Some(_)) => return Err(self.error("numbered variables")),
                (".shared", None) => Some(Named::Shared(self.linker.shared_place(found.bytes, found.align))),
                _ => Some(Named::Frame(self.frame(found.bytes, found.align)?, found.bytes)),
            };
            if let (Some(named), Some(scope)) = (named, self.scopes.last_mut()) {
                scope.names.insert(found.name, named);
            }
            if !self.tokens.accept(',')? {
                return self.tokens.expect(';');
            }
        }
    }

    /// Sets aside bytes in the frame of each thread.
    fn frame(&mut self, bytes: u64, align: u64) -> Result<u64, PtxError> {
        let at = self.frame_bytes.next_multiple_of(align);
        self.frame_bytes = at + bytes;
        if self.frame_bytes > FRAME_BYTES_MAX {
            return Err(self.error(format!("more than {FRAME_BYTES_MAX} bytes of local variables")));
        }
        Ok(at)
    }

    fn register(&mut self, kind: Type) -> Result<Named, PtxError> {
        let counter = if kind == Type::Pred { &mut self.predicates } else { &mut self.registers };
        let number = *counter;
        *counter += 1;
        if number >= REGISTERS_MAX {
            return Err(self.error(format!("more than {REGISTERS_MAX} registers")));
        }
        Ok(if kind == Type::Pred { Named::Predicate(number) } else { Named::Register(number, kind) })
    }

    fn instruction(&mut self, opcode: &'m str) -> Result<(), PtxError> {
        let mut operands = Vec::new();
        if !self.tokens.accept(';')? {
            loop {
                operands.push(self.operand()?);
                if !self.tokens.accept(',')? {
                    break;
                }
            }
            self.tokens.expect(';')?;
        }
        decode::instruction(self, opcode, &operands)
    }

    fn operand(&mut self) -> Result<Operand<'m>, PtxError> {
        if self.tokens.accept('[')? {
            let base = match self.tokens.peek()? {
                Token::Word(word) => {
                    self.tokens.take()?;
                    Some(word)
                }
                _ => None,
            };
            let offset = if base.is_some() { addend(&mut self.tokens)? } else { self.tokens.count()? as i64 };
            self.tokens.expect(']')?;
            return Ok(Operand::Memory(base, offset));
        }
        if self.tokens.accept('{')? {
            return Ok(Operand::Vector(self.list('}')?));
        }
        if self.tokens.accept('(')? {
            return Ok(Operand::Group(self.list(')')?));
        }
        self.single()
    }

    fn list(&mut self, end: char) -> Result<Vec<Operand<'m>>, PtxError> {
        let mut found = Vec::new();
        while !self.tokens.accept(end)? {
            found.push(self.single()?);
            if !self.tokens.accept(',')? {
                self.tokens.expect(end)?;
                break;
            }
        }
        Ok(found)
    }

    fn single(&mut self) -> Result<Operand<'m>, PtxError> {
        if self.tokens.accept('!')? {
            return Ok(Operand::Not(self.tokens.word()?));
        }
        let is_negative = self.tokens.accept('-')?;
        match self.tokens.take()? {
            Token::Number(number) => {
                let value = literal(number).ok_or_else(|| self.error(format!("number `{number}`")))?;
                Ok(Operand::Number(if is_negative { value.negated() } else { value }))
            }
            Token::Word(word) if !is_negative => {
                if self.tokens.accept('|')? {
                    return Ok(Operand::Pair(word, self.tokens.word()?));
                }
                Ok(Operand::Name(word, addend(&mut self.tokens)?))
            }
            other => Err(self.error(format!("{} where an operand begins", shown(other)))),
        }
    }

    /// What a name of the function stands for.
    fn named(&mut self, name: &'m str) -> Result<Option<Named>, PtxError> {
        for index in (0..self.scopes.len()).rev() {
            if let Some(&named) = self.scopes[index].names.get(name) {
                return Ok(Some(named));
            }
            if let Some(kind) = numbered(&self.scopes[index].ranges, name) {
                let named = self.register(kind)?;
                self.scopes[index].names.insert(name, named);
                return Ok(Some(named));
            }
        }
        Ok(None)
    }

    /// A register that is written, or `_`.
    pub fn target(&mut self, operand: &Operand<'m>) -> Result<Target, PtxError> {
        match *operand {
            Operand::Name("_", 0) => {
                let register = match self.dropped {
                    Some(register) => register,
                    None => match self.register(Type::B64)? {
                        Named::Register(register, _) => *self.dropped.insert(register),
                        _ => 0,
                    },
                };
                Ok(Target { register, mask: u64::MAX })
            }
            Operand::Name(name, 0) => match self.named(name)? {
                Some(Named::Register(register, kind)) => Ok(Target { register, mask: kind.mask() }),
                _ => Err(self.error(format!("{name} is no register"))),
            },
            _ => Err(self.error("a register is missing")),
        }
    }

    /// The same, but `_` is nothing.
    pub fn target_if_kept(&mut self, operand: &Operand<'m>) -> Result<Option<Target>, PtxError> {
        if *operand == Operand::Name("_", 0) { Ok(None) } else { self.target(operand).map(Some) }
    }

    /// A predicate.
    pub fn predicate(&mut self, operand: &Operand<'m>) -> Result<u32, PtxError> {
        if let Operand::Name(name, 0) = *operand
            && let Some(Named::Predicate(number)) = self.named(name)?
        {
            return Ok(number);
        }
        Err(self.error("a predicate is missing"))
    }

    /// Whether an operand is a predicate, or the opposite of one.
    pub fn is_predicate(&mut self, operand: &Operand<'m>) -> Result<bool, PtxError> {
        Ok(match *operand {
            Operand::Name(name, 0) => matches!(self.named(name)?, Some(Named::Predicate(_))),
            Operand::Not(_) => true,
            _ => false,
        })
    }

    /// A predicate or its opposite.
    pub fn guard_of(&mut self, operand: &Operand<'m>) -> Result<Guard, PtxError> {
        match *operand {
            Operand::Not(name) => {
                Ok(Guard { predicate: self.predicate(&Operand::Name(name, 0))?, is_negated: true })
            }
            _ => Ok(Guard { predicate: self.predicate(operand)?, is_negated: false }),
        }
    }

    /// A predicate, its opposite, or a number that stands for a truth value.
    pub fn truth(&mut self, operand: &Operand<'m>) -> Result<Truth, PtxError> {
        match *operand {
            Operand::Number(Literal::Integer(value)) => Ok(Truth::Constant(value != 0)),
            _ => self.guard_of(operand).map(Truth::Predicate),
        }
    }

    /// A value that is read as this type.
    pub fn source(&mut self, operand: &Operand<'m>, kind: Type) -> Result<Source, PtxError> {
        match *operand {
            Operand::Number(value) => immediate(value, kind)
                .map(Source::Constant)
                .ok_or_else(|| self.error("a number that is no value of the type")),
            Operand::Not(_) => self.guard_of(operand).map(Source::Predicate),
            Operand::Name(name, offset) => self.name(name, offset),
            _ => Err(self.error("a value is missing")),
        }
    }

    fn name(&mut self, name: &'m str, offset: i64) -> Result<Source, PtxError> {
        let moved = |at: u64| at.wrapping_add_signed(offset);
        match self.named(name)? {
            Some(Named::Register(register, _)) if offset == 0 => return Ok(Source::Register(register)),
            Some(Named::Predicate(predicate)) if offset == 0 => {
                return Ok(Source::Predicate(Guard { predicate, is_negated: false }));
            }
            Some(Named::Frame(at, _)) => return Ok(Source::Frame(moved(at))),
            Some(Named::Shared(at) | Named::Parameter(at)) => return Ok(Source::Constant(moved(at))),
            Some(_) => return Err(self.error(format!("{name} is no value"))),
            None => {}
        }
        if let Some(special) = decode::special(name) {
            self.linker.is_joint |= special == Source::Special(Special::GridLow);
            self.linker.knows_cluster |= name.contains("cluster");
            return Ok(special);
        }
        let module = self.linker.module;
        if let Some(variable) = module.variable(name) {
            return Ok(Source::Data(moved(variable.offset)));
        }
        if let Some(at) = self.linker.shared(name) {
            return Ok(Source::Constant(moved(at)));
        }
        if let Some(&number) = module.function_names.get(name) {
            return Ok(Source::Constant(moved(FUNCTION_WINDOW + number as u64 * FUNCTION_STRIDE)));
        }
        Err(self.error(format!("{name} is not declared")))
    }

    /// An address, and the space that its name says if it says one.
    pub fn address(&mut self, operand: &Operand<'m>, space: Space) -> Result<Address, PtxError> {
        let Operand::Memory(base, offset) = *operand else { return Err(self.error("an address is missing")) };
        let Some(name) = base else { return Ok(Address { base: Source::Constant(0), offset, space }) };
        let space = match self.named(name)? {
            Some(Named::Frame(..)) => Space::Local,
            Some(Named::Shared(_)) => Space::Shared,
            Some(Named::Parameter(_)) => Space::Parameter,
            None if self.linker.module.shared.contains_key(name) => Space::Shared,
            _ => space,
        };
        Ok(Address { base: self.name(name, 0)?, offset, space })
    }

    /// The place in the frame and the bytes of a parameter of a call.
    pub fn slot(&mut self, operand: &Operand<'m>) -> Result<(u64, u64), PtxError> {
        if let Operand::Name(name, 0) = *operand
            && let Some(Named::Frame(at, bytes)) = self.named(name)?
        {
            return Ok((at, bytes));
        }
        Err(self.error("a call passes something else than a `.param` variable"))
    }

    /// Whether a name is a register of 64 bits, as those of cache policies are.
    pub fn is_policy(&mut self, name: &'m str) -> Result<bool, PtxError> {
        Ok(matches!(self.named(name)?, Some(Named::Register(_, kind)) if kind.bits() == 64))
    }
}

/// The type of a name that a numbered declaration covers.
fn numbered(ranges: &HashMap<&str, (u64, Type)>, name: &str) -> Option<Type> {
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count().min(18);
    (1..=digits).find_map(|length| {
        let (prefix, number) = name.split_at(name.len() - length);
        let &(count, kind) = ranges.get(prefix)?;
        let is_plain = length == 1 || !number.starts_with('0');
        (is_plain && number.parse::<u64>().ok()? < count).then_some(kind)
    })
}
