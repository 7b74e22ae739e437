//! The form in which kernels run: instructions with numbered registers, numbered targets and a function for each.

use crate::body;
use crate::error::PtxError;
use crate::module::Module;
use crate::scalar::convert::Conversion;
use crate::types::Type;
use std::collections::HashMap;

/// Computes a result of up to four operands. Bits above the width of an operand's type mean nothing.
pub(crate) type Scalar = fn(u64, u64, u64, u64) -> u64;
/// Compares two operands.
pub(crate) type Compare = fn(u64, u64) -> bool;
/// Computes a result and a carry from three operands and a carry.
pub(crate) type WithCarry = fn(u64, u64, u64, bool) -> (u64, bool);
/// Joins two truth values of all lanes at once.
pub(crate) type Logic = fn(u32, u32) -> u32;

/// Where static `.shared` variables begin in a block's shared memory; what a launch asks for lies at 0.
pub(crate) const SHARED_STATIC: u64 = 0x4_0000;
/// Bytes of static shared memory of a block.
pub(crate) const SHARED_STATIC_MAX: u64 = 228 << 10;
/// Bytes of variables that one thread may have in one function.
pub(crate) const FRAME_BYTES_MAX: u64 = 512 << 10;
/// Functions that one kernel may consist of.
const FUNCTIONS_MAX: usize = 4096;

/// A kernel with all that it calls.
#[derive(Debug)]
pub(crate) struct Program {
    /// The kernel first.
    pub functions: Vec<Function>,
    /// Places in `functions` by the function's number in the module; errors of those that are only called by address.
    pub by_number: HashMap<usize, Result<usize, PtxError>>,
    /// Bytes of static shared memory.
    pub shared_bytes: u64,
    /// Its blocks wait for each other, so all have to be there at once.
    pub is_joint: bool,
    /// It asks about the cluster of its block, or waits for that.
    pub knows_cluster: bool,
}

/// A decoded function.
#[derive(Debug)]
pub(crate) struct Function {
    pub code: Vec<Instruction>,
    pub registers: u32,
    pub predicates: u32,
    /// Bytes of `.local` and `.param` variables of one thread.
    pub frame_bytes: u64,
    /// Offset in the frame and bytes of each.
    pub parameters: Vec<(u64, u64)>,
    pub results: Vec<(u64, u64)>,
}

/// One instruction.
#[derive(Debug)]
pub(crate) struct Instruction {
    /// Only lanes for which this predicate holds do it.
    pub guard: Option<Guard>,
    pub line: u32,
    pub op: Op,
}

/// A predicate, or its opposite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Guard {
    pub predicate: u32,
    pub is_negated: bool,
}

/// A register that is written: its number, and the bits that it has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Target {
    pub register: u32,
    pub mask: u64,
}

/// A value that is read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Source {
    Register(u32),
    Constant(u64),
    /// A place in the module's data.
    Data(u64),
    /// A place in the frame of the function.
    Frame(u64),
    Special(Special),
    /// 1 if it holds.
    Predicate(Guard),
}

/// A truth value that is read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Truth {
    Predicate(Guard),
    Constant(bool),
}

/// What the hardware knows of a thread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Special {
    /// Of an axis, as those below.
    Thread(u8),
    Threads(u8),
    Block(u8),
    Blocks(u8),
    Lane,
    LanesEqual,
    LanesBelow,
    LanesUpTo,
    LanesAbove,
    LanesFrom,
    Warp,
    Warps,
    Clock,
    DynamicShared,
    AllShared,
    /// Halves of the address of where the blocks of a grid wait for each other.
    GridLow,
    GridHigh,
}

/// Where an access goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Space {
    Generic,
    Global,
    Shared,
    Local,
    /// The parameters of the kernel.
    Parameter,
    /// Where the blocks of a grid wait for each other.
    Grid,
}

/// Where the address of an access comes from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Address {
    pub base: Source,
    pub offset: i64,
    pub space: Space,
}

/// How a comparison is joined with another truth value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Joined {
    pub logic: Logic,
    pub with: Truth,
}

/// A comparison that ends in predicates: the second gets what joins the opposite.
#[derive(Debug)]
pub(crate) struct Comparison {
    pub compare: Compare,
    pub targets: [Option<u32>; 2],
    pub sources: [Source; 2],
    pub joined: Option<Joined>,
    /// Two numbers of 16 bits in each operand; each predicate gets one of both answers.
    pub is_pair: bool,
}

/// A load or a store.
#[derive(Debug)]
pub(crate) struct Access {
    pub address: Address,
    pub bytes: u32,
    pub is_signed: bool,
    /// Where loaded values go; what is dropped is `None`.
    pub targets: Vec<Option<Target>>,
    /// Stored values.
    pub sources: Vec<Source>,
}

/// Reads, computes and writes in one step.
#[derive(Debug)]
pub(crate) struct Atomic {
    pub address: Address,
    pub bytes: u32,
    pub compute: Scalar,
    /// The same in global memory.
    pub compute_in_global: Scalar,
    pub target: Option<Target>,
    /// The operands behind the old value.
    pub sources: [Source; 2],
}

/// Copies to shared memory.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub to: Address,
    pub from: Address,
    pub bytes: u32,
    /// Bytes that are read; the others are zero.
    pub read: Source,
    /// If it holds, nothing is read.
    pub ignored: Option<Guard>,
}

/// Who is called.
#[derive(Debug)]
pub(crate) enum Callee {
    /// A place in the program.
    Function(usize),
    /// An address of a function.
    Address(Source),
    /// Another module has it.
    Unknown(String),
    /// `__assertfail`.
    Assertion,
    /// `vprintf`.
    Print,
}

/// A call. Arguments and results are places in the caller's frame, with their bytes.
#[derive(Debug)]
pub(crate) struct Call {
    pub callee: Callee,
    pub arguments: Vec<(u64, u64)>,
    pub results: Vec<(u64, u64)>,
}

/// What a barrier brings back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Reduction {
    Count(Target),
    All(u32),
    Any(u32),
}

/// A barrier of the block.
#[derive(Debug)]
pub(crate) struct Barrier {
    pub number: Source,
    /// Threads; all of the block if there is none.
    pub threads: Option<Source>,
    /// Whole warps count as 32, however many of their threads are left.
    pub is_aligned: bool,
    pub waits: bool,
    pub reduction: Option<(Reduction, Truth)>,
}

/// What lanes of a warp do together.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Together {
    Wait,
    /// Source lane from lane, operand, clamp and segment.
    Shuffle(Shuffle),
    VoteAll,
    VoteAny,
    VoteUniform,
    Ballot,
    MatchAny(Type),
    MatchAll(Type),
    Reduce(Scalar),
    Elect,
}

/// How a shuffle finds its source.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

/// Something that lanes of a warp do together. They wait for each other.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub together: Together,
    pub target: Option<Target>,
    pub predicate: Option<u32>,
    pub sources: [Source; 3],
    pub truth: Truth,
    pub members: Source,
}

/// `d = a * b + c` of matrices that lie across the lanes.
#[derive(Debug)]
pub(crate) struct Multiply {
    pub rows: usize,
    /// Columns of `a`, and rows of `b`, which has eight columns.
    pub depth: usize,
    /// Elements of `a` and `b` in a register.
    pub per_register: usize,
    pub kinds: [Type; 2],
    pub to: Type,
    pub with: Type,
    pub saturates: bool,
    pub a: Vec<Source>,
    pub b: Vec<Source>,
    pub c: Vec<Source>,
    pub d: Vec<Target>,
}

/// A matrix that only `wmma` knows the order of.
#[derive(Debug)]
pub(crate) struct Fragment {
    pub rows: usize,
    pub columns: usize,
    pub kind: Type,
    /// How it lies in memory.
    pub is_by_columns: bool,
}

/// `d = a * b + c` of such matrices.
#[derive(Debug)]
pub(crate) struct Fragments {
    /// Those of `a`, `b`, `c` and `d`.
    pub shapes: [Fragment; 4],
    pub sources: [Vec<Source>; 3],
    pub targets: Vec<Target>,
    pub saturates: bool,
}

/// Something that a whole warp does to matrices.
#[derive(Debug)]
pub(crate) enum Matrix {
    Load { address: Address, is_turned: bool, targets: Vec<Target> },
    Store { address: Address, is_turned: bool, sources: Vec<Source> },
    Turn { target: Target, source: Source },
    Multiply(Multiply),
    LoadFragment { fragment: Fragment, address: Address, stride: Option<Source>, targets: Vec<Target> },
    StoreFragment { fragment: Fragment, address: Address, stride: Option<Source>, sources: Vec<Source> },
    MultiplyFragments(Fragments),
}

/// The carry that comes in.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Carry {
    Fixed(bool),
    /// What an instruction before has left.
    Kept,
}

/// What an instruction does.
#[derive(Debug)]
pub(crate) enum Op {
    Nothing,
    Scalar {
        compute: Scalar,
        target: Target,
        sources: [Source; 4],
    },
    Move {
        target: Target,
        source: Source,
    },
    Convert {
        conversion: Conversion,
        target: Target,
        sources: [Source; 2],
    },
    Carry {
        compute: WithCarry,
        target: Target,
        sources: [Source; 3],
        carry: Carry,
        writes: bool,
    },
    Compare(Box<Comparison>),
    /// A comparison that ends in a number.
    Set {
        comparison: Box<Comparison>,
        target: Target,
        yes: u64,
    },
    Logic {
        logic: Logic,
        target: u32,
        truths: [Truth; 2],
    },
    Choose {
        target: u32,
        truths: [Truth; 2],
        by: Guard,
    },
    Pack {
        target: Target,
        sources: Box<[Source]>,
        bits: u32,
    },
    Unpack {
        targets: Box<[Option<Target>]>,
        source: Source,
        bits: u32,
    },
    IsSpace {
        target: u32,
        address: Source,
        space: Space,
    },
    Load(Box<Access>),
    Store(Box<Access>),
    Atomic(Box<Atomic>),
    Transfer(Box<Transfer>),
    Branch(u32),
    Jump {
        targets: Box<[u32]>,
        index: Source,
    },
    Call(Box<Call>),
    Return,
    Exit,
    Trap,
    Barrier(Box<Barrier>),
    Exchange(Box<Exchange>),
    Matrix(Box<Matrix>),
    ActiveLanes(Target),
}

impl Program {
    /// Decodes a kernel and, one after the other, what it calls.
    pub fn decode(module: &Module, entry: usize) -> Result<Self, PtxError> {
        let mut linker = Linker::new(module);
        linker.place(entry);
        let mut functions = Vec::new();
        while functions.len() < linker.wanted.len() {
            let number = linker.wanted[functions.len()];
            functions.push(body::decode(&mut linker, number)?);
            if functions.len() > FUNCTIONS_MAX {
                return Err(PtxError::new(0, format!("a kernel of more than {FUNCTIONS_MAX} functions")));
            }
        }
        let mut by_number: HashMap<_, _> = linker.places.iter().map(|(&n, &place)| (n, Ok(place))).collect();
        if linker.calls_by_address {
            linker.by_address(&mut functions, &mut by_number);
        }
        if linker.shared_end > SHARED_STATIC_MAX {
            return Err(PtxError::new(0, format!("{} bytes of static shared memory", linker.shared_end)));
        }
        let Linker { is_joint, knows_cluster, shared_end: shared_bytes, .. } = linker;
        Ok(Self { functions, by_number, shared_bytes, is_joint, knows_cluster })
    }
}

/// Gives places to functions and shared variables while a kernel is decoded.
pub(crate) struct Linker<'a> {
    pub module: &'a Module,
    pub calls_by_address: bool,
    pub is_joint: bool,
    pub knows_cluster: bool,
    wanted: Vec<usize>,
    places: HashMap<usize, usize>,
    shared: HashMap<String, u64>,
    shared_end: u64,
}

impl<'a> Linker<'a> {
    fn new(module: &'a Module) -> Self {
        let (wanted, places, shared) = (Vec::new(), HashMap::new(), HashMap::new());
        let (calls_by_address, is_joint, knows_cluster) = (false, false, false);
        Self { module, calls_by_address, is_joint, knows_cluster, wanted, places, shared, shared_end: 0 }
    }

    /// The place of a function in the program.
    pub fn place(&mut self, number: usize) -> usize {
        *self.places.entry(number).or_insert_with(|| {
            self.wanted.push(number);
            self.wanted.len() - 1
        })
    }

    /// The address in shared memory of a variable of the module, if there is one of this name.
    pub fn shared(&mut self, name: &str) -> Option<u64> {
        if let Some(&at) = self.shared.get(name) {
            return Some(at);
        }
        let variable = self.module.shared.get(name)?;
        let at = if variable.is_dynamic { 0 } else { self.shared_place(variable.bytes, variable.align) };
        self.shared.insert(name.to_string(), at);
        Some(at)
    }

    /// Sets aside shared memory.
    pub fn shared_place(&mut self, bytes: u64, align: u64) -> u64 {
        let at = self.shared_end.next_multiple_of(align);
        self.shared_end = at.saturating_add(bytes);
        SHARED_STATIC + at
    }

    /// Decodes whatever an address may lead to. What is wrong there matters only to those who call it.
    fn by_address(
        &mut self,
        functions: &mut Vec<Function>,
        by_number: &mut HashMap<usize, Result<usize, PtxError>>,
    ) {
        for number in 0..self.module.functions.len() {
            let function = &self.module.functions[number];
            if function.is_entry || function.body.is_none() || by_number.contains_key(&number) {
                continue;
            }
            let (wanted, places) = (self.wanted.clone(), self.places.clone());
            let first = functions.len();
            self.place(number);
            let mut found = Ok(first);
            while functions.len() < self.wanted.len() && found.is_ok() {
                if functions.len() >= FUNCTIONS_MAX {
                    found = Err(PtxError::new(0, format!("a kernel of more than {FUNCTIONS_MAX} functions")));
                    break;
                }
                match body::decode(self, self.wanted[functions.len()]) {
                    Ok(function) => functions.push(function),
                    Err(error) => found = Err(error),
                }
            }
            if found.is_err() {
                // What it calls in turn is decoded again for those that can be called.
                functions.truncate(first);
                (self.wanted, self.places) = (wanted, places);
            } else {
                by_number.extend(self.places.iter().map(|(&n, &place)| (n, Ok(place))));
            }
            by_number.insert(number, found);
        }
    }
}
