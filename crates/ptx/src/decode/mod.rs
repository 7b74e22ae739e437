//! From the text of an instruction to what runs: modifiers, special registers, and one module for each family.

mod arithmetic;
mod control;
mod data;
mod fragment;
mod matrix;
mod memory;
mod warp;

use crate::body::{Body, Operand};
use crate::code::{Op, Scalar, Source, Special, Target};
use crate::error::PtxError;
use crate::types::{Rounding, Type};

/// The name of an instruction and the modifiers that have not been understood yet.
pub(crate) struct Modifiers<'a> {
    pub name: &'a str,
    parts: Vec<&'a str>,
}

impl<'a> Modifiers<'a> {
    fn new(opcode: &'a str) -> Self {
        let mut parts = opcode.split('.');
        Self { name: parts.next().unwrap_or(""), parts: parts.collect() }
    }

    /// Whether the modifier was there.
    fn take(&mut self, modifier: &str) -> bool {
        let found = self.parts.iter().position(|part| *part == modifier);
        found.map(|index| self.parts.remove(index)).is_some()
    }

    /// The first of these modifiers that is there.
    fn one_of(&mut self, modifiers: &[&'static str]) -> Option<&'static str> {
        modifiers.iter().find(|modifier| self.take(modifier)).copied()
    }

    /// Drops all that match.
    fn drop(&mut self, is_dropped: impl Fn(&str) -> bool) {
        self.parts.retain(|part| !is_dropped(part));
    }

    /// The first type.
    fn kind_if_any(&mut self) -> Option<Type> {
        let (index, kind) =
            self.parts.iter().enumerate().find_map(|(index, part)| Some((index, Type::named(part)?)))?;
        self.parts.remove(index);
        Some(kind)
    }

    fn kind(&mut self, body: &Body<'_, '_>) -> Result<Type, PtxError> {
        self.kind_if_any().ok_or_else(|| self.refused(body, "has no type that is supported"))
    }

    fn rounding(&mut self) -> Option<Rounding> {
        Some(match self.one_of(&["rn", "rz", "rm", "rp", "rna"])? {
            "rz" => Rounding::Zero,
            "rm" => Rounding::Down,
            "rp" => Rounding::Up,
            "rna" => Rounding::Away,
            _ => Rounding::Nearest,
        })
    }

    /// Fails if something was not understood.
    fn finish(&self, body: &Body<'_, '_>) -> Result<(), PtxError> {
        match self.parts.first() {
            None => Ok(()),
            Some(part) => Err(self.refused(body, &format!("with `.{part}` is not supported"))),
        }
    }

    fn refused(&self, body: &Body<'_, '_>, why: &str) -> PtxError {
        let name: String = self.name.chars().take(40).collect();
        body.error(format!("instruction {name} {}", why.chars().take(80).collect::<String>()))
    }
}

/// So many operands, or an error.
fn exactly<'o, 'a, const N: usize>(
    body: &Body<'_, '_>,
    operands: &'o [Operand<'a>],
) -> Result<&'o [Operand<'a>; N], PtxError> {
    operands.try_into().map_err(|_| body.error(format!("{} operands in place of {N}", operands.len())))
}

/// Decodes one instruction and appends it to the body.
pub(crate) fn instruction<'m>(
    body: &mut Body<'_, 'm>,
    opcode: &'m str,
    operands: &[Operand<'m>],
) -> Result<(), PtxError> {
    let mut modifiers = Modifiers::new(opcode);
    let m = &mut modifiers;
    match m.name {
        "add" | "sub" | "mul" | "mad" | "fma" | "div" | "rem" | "min" | "max" | "abs" | "neg" | "sad"
        | "mul24" | "mad24" | "rcp" | "sqrt" | "rsqrt" | "sin" | "cos" | "lg2" | "ex2" | "tanh"
        | "copysign" => arithmetic::arithmetic(body, m, operands),
        "addc" | "subc" | "madc" => arithmetic::carrying(body, m, operands),
        "and" | "or" | "xor" | "not" | "cnot" | "shl" | "shr" | "clz" | "popc" | "brev" | "bfind" | "bfe"
        | "bfi" | "bmsk" | "szext" | "shf" | "lop3" | "fns" | "prmt" => arithmetic::bits(body, m, operands),
        "dp4a" | "dp2a" => arithmetic::dot(body, m, operands),
        "mov" => data::mov(body, m, operands),
        "cvt" => data::cvt(body, m, operands),
        "cvta" => data::cvta(body, m, operands),
        "isspacep" => data::isspacep(body, m, operands),
        "selp" | "slct" => data::select(body, m, operands),
        "setp" | "set" => data::compare(body, m, operands),
        "testp" => data::testp(body, m, operands),
        "ld" | "ldu" | "st" => memory::access(body, m, operands),
        "atom" | "red" => memory::atomic(body, m, operands),
        "cp" => memory::copy(body, m, operands),
        "createpolicy" => memory::policy(body, operands),
        "bra" => control::bra(body, m, operands),
        "brx" => control::brx(body, m, operands),
        "call" => control::call(body, m, operands),
        "bar" | "barrier" => control::barrier(body, m, operands),
        "ret" => plain(body, Op::Return),
        "exit" => plain(body, Op::Exit),
        "trap" | "brkpt" => plain(body, Op::Trap),
        "membar" | "fence" | "nanosleep" | "griddepcontrol" | "setmaxnreg" | "pmevent" | "prefetch"
        | "prefetchu" | "discard" | "applypriority" => plain(body, Op::Nothing),
        "shfl" | "vote" | "match" | "redux" | "elect" | "activemask" => warp::exchange(body, m, operands),
        "ldmatrix" | "stmatrix" | "movmatrix" | "mma" => matrix::matrix(body, m, operands),
        "wmma" => fragment::wmma(body, m, operands),
        _ => Err(m.refused(body, "is not supported")),
    }
}

fn plain(body: &mut Body<'_, '_>, op: Op) -> Result<(), PtxError> {
    body.emit(op);
    Ok(())
}

/// Appends a computation of up to four operands.
fn scalar(
    body: &mut Body<'_, '_>,
    m: &Modifiers<'_>,
    compute: Option<Scalar>,
    target: Target,
    given: &[Source],
) -> Result<(), PtxError> {
    m.finish(body)?;
    let compute =
        compute.ok_or_else(|| m.refused(body, "is not supported with this type or these modifiers"))?;
    let mut sources = [Source::Constant(0); 4];
    for (source, given) in sources.iter_mut().zip(given) {
        *source = *given;
    }
    body.emit(Op::Scalar { compute, target, sources });
    Ok(())
}

/// The special register of this name.
pub(crate) fn special(name: &str) -> Option<Source> {
    let axis = |name: &str| (0u8..3).zip(["x", "y", "z"]).find(|axis| axis.1 == name).map(|axis| axis.0);
    let found = match name {
        "%laneid" => Special::Lane,
        "%lanemask_eq" => Special::LanesEqual,
        "%lanemask_lt" => Special::LanesBelow,
        "%lanemask_le" => Special::LanesUpTo,
        "%lanemask_gt" => Special::LanesAbove,
        "%lanemask_ge" => Special::LanesFrom,
        "%warpid" => Special::Warp,
        "%nwarpid" => Special::Warps,
        "%clock" | "%clock64" | "%globaltimer" | "%globaltimer_lo" => Special::Clock,
        "%dynamic_smem_size" => Special::DynamicShared,
        "%total_smem_size" => Special::AllShared,
        "%envreg1" => Special::GridHigh,
        "%envreg2" => Special::GridLow,
        "WARP_SZ" => return Some(Source::Constant(32)),
        "%nsmid" => return Some(Source::Constant(1)),
        "%smid"
        | "%gridid"
        | "%globaltimer_hi"
        | "%clock_hi"
        | "%cluster_ctarank"
        | "%is_explicit_cluster"
        | "%reserved_smem_offset_begin" => return Some(Source::Constant(0)),
        "%cluster_nctarank" => return Some(Source::Constant(1)),
        _ => {
            let (base, component) = name.split_once('.')?;
            let axis = axis(component)?;
            match base {
                "%tid" => Special::Thread(axis),
                "%ntid" => Special::Threads(axis),
                "%ctaid" | "%clusterid" => Special::Block(axis),
                "%nctaid" | "%nclusterid" => Special::Blocks(axis),
                "%cluster_ctaid" => return Some(Source::Constant(0)),
                "%cluster_nctaid" => return Some(Source::Constant(1)),
                _ => return None,
            }
        }
    };
    Some(Source::Special(found))
}
