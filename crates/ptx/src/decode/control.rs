//! Instructions that decide what comes next: branches, calls, barriers of the block.

use super::{Modifiers, exactly};
use crate::body::{Body, Operand};
use crate::code::{Barrier, Call, Callee, Op, Reduction, Source};
use crate::error::PtxError;
use crate::types::Type;

/// `bra`.
pub(super) fn bra<'m>(
    body: &mut Body<'_, 'm>,
    m: &mut Modifiers<'m>,
    operands: &[Operand<'m>],
) -> Result<(), PtxError> {
    m.take("uni");
    m.finish(body)?;
    let [Operand::Name(label, 0)] = *operands else { return Err(body.error("a label is missing")) };
    body.branch(label);
    Ok(())
}

/// `brx.idx`.
pub(super) fn brx<'m>(
    body: &mut Body<'_, 'm>,
    m: &mut Modifiers<'m>,
    operands: &[Operand<'m>],
) -> Result<(), PtxError> {
    m.take("uni");
    if !m.take("idx") {
        return Err(m.refused(body, "without `.idx` is not supported"));
    }
    m.finish(body)?;
    let [index, Operand::Name(table, 0)] = operands else { return Err(body.error("a table is missing")) };
    let index = body.source(index, Type::U32)?;
    body.jump(table, index)
}

/// `call`: `(results), function, (arguments), prototype`, of which only the function has to be there.
pub(super) fn call<'m>(
    body: &mut Body<'_, 'm>,
    m: &mut Modifiers<'m>,
    operands: &[Operand<'m>],
) -> Result<(), PtxError> {
    m.take("uni");
    m.finish(body)?;
    let (results, rest) = match operands {
        [Operand::Group(results), rest @ ..] => (results.as_slice(), rest),
        rest => (&[][..], rest),
    };
    let Some((Operand::Name(name, 0), rest)) = rest.split_first() else {
        return Err(body.error("a function is missing"));
    };
    let arguments = match rest.first() {
        Some(Operand::Group(arguments)) => arguments.as_slice(),
        _ => &[][..],
    };
    let module = body.linker.module;
    let callee = match module.function_names.get(*name) {
        Some(&number) if module.functions[number].body.is_some() => {
            let function = &module.functions[number];
            if function.is_entry
                || function.parameters.len() != arguments.len()
                || function.results.len() != results.len()
            {
                return Err(body.error(format!("{name} is called with other parameters than it has")));
            }
            Callee::Function(body.linker.place(number))
        }
        Some(_) if *name == "vprintf" => Callee::Print,
        Some(_) if *name == "__assertfail" => Callee::Assertion,
        Some(_) => Callee::Unknown((*name).to_string()),
        None => {
            body.linker.calls_by_address = true;
            Callee::Address(body.source(&Operand::Name(name, 0), Type::U64)?)
        }
    };
    let mut call = Call { callee, arguments: Vec::new(), results: Vec::new() };
    for operand in arguments {
        call.arguments.push(body.slot(operand)?);
    }
    for operand in results {
        call.results.push(body.slot(operand)?);
    }
    body.emit(Op::Call(Box::new(call)));
    Ok(())
}

/// `bar` and `barrier`: of the block, or of some lanes of the warp.
pub(super) fn barrier<'m>(
    body: &mut Body<'_, 'm>,
    m: &mut Modifiers<'m>,
    operands: &[Operand<'m>],
) -> Result<(), PtxError> {
    if m.take("warp") {
        m.take("sync");
        m.finish(body)?;
        return super::warp::wait(body, operands);
    }
    if m.parts.contains(&"cluster") {
        // A cluster is one block here, and what waits for it waits for itself.
        body.linker.knows_cluster = true;
        let op = if m.parts.contains(&"arrive") { Op::Nothing } else { block_barrier() };
        body.emit(op);
        return Ok(());
    }
    m.take("cta");
    let is_aligned = m.take("aligned") | (m.name == "bar");
    let waits = !m.take("arrive");
    m.take("sync");
    let reduction = if m.take("red") { m.one_of(&["popc", "and", "or"]) } else { None };
    m.drop(|part| matches!(part, "pred" | "u32"));
    m.finish(body)?;
    let (reduction, operands) = match (reduction, operands) {
        (Some(name), [target, middle @ .., truth]) => {
            let truth = body.truth(truth)?;
            let kind = match name {
                "popc" => Reduction::Count(body.target(target)?),
                "and" => Reduction::All(body.predicate(target)?),
                _ => Reduction::Any(body.predicate(target)?),
            };
            (Some((kind, truth)), middle)
        }
        (Some(_), _) => return Err(body.error("operands are missing")),
        (None, operands) => (None, operands),
    };
    let (number, threads) = match operands {
        [number] => (number, None),
        _ => {
            let [number, threads] = exactly(body, operands)?;
            (number, Some(body.source(threads, Type::U32)?))
        }
    };
    let number = body.source(number, Type::U32)?;
    body.emit(Op::Barrier(Box::new(Barrier { number, threads, is_aligned, waits, reduction })));
    Ok(())
}

fn block_barrier() -> Op {
    // Barriers that programs can name end at 15.
    let number = Source::Constant(16);
    Op::Barrier(Box::new(Barrier { number, threads: None, is_aligned: true, waits: true, reduction: None }))
}
