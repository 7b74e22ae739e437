//! Instructions that the lanes of a warp do together.

use super::{Modifiers, exactly};
use crate::body::{Body, Operand};
use crate::code::{Exchange, Op, Scalar, Shuffle, Source, Together, Truth};
use crate::error::PtxError;
use crate::scalar::{bits, integer};
use crate::types::Type;

/// `shfl`, `vote`, `match`, `redux`, `elect`, `activemask`.
pub(super) fn exchange<'m>(
    body: &mut Body<'_, 'm>,
    m: &mut Modifiers<'m>,
    operands: &[Operand<'m>],
) -> Result<(), PtxError> {
    if m.name == "activemask" {
        let [target] = exactly(body, operands)?;
        let target = body.target(target)?;
        body.emit(Op::ActiveLanes(target));
        return Ok(());
    }
    if !m.take("sync") {
        return Err(m.refused(body, "without `.sync` is not supported"));
    }
    match m.name {
        "shfl" => shuffle(body, m, operands),
        "vote" => vote(body, m, operands),
        "match" => matching(body, m, operands),
        "redux" => reduce(body, m, operands),
        _ => {
            let [target, members] = exactly(body, operands)?;
            let mut exchange = blank(body.source(members, Type::B32)?, Together::Elect);
            results(body, target, &mut exchange)?;
            body.emit(Op::Exchange(Box::new(exchange)));
            Ok(())
        }
    }
}

fn blank(members: Source, together: Together) -> Exchange {
    let sources = [Source::Constant(0); 3];
    Exchange { together, target: None, predicate: None, sources, truth: Truth::Constant(false), members }
}

/// `d` or `d|p`.
fn results<'m>(
    body: &mut Body<'_, 'm>,
    operand: &Operand<'m>,
    exchange: &mut Exchange,
) -> Result<(), PtxError> {
    match *operand {
        Operand::Pair(target, predicate) => {
            exchange.target = body.target_if_kept(&Operand::Name(target, 0))?;
            if predicate != "_" {
                exchange.predicate = Some(body.predicate(&Operand::Name(predicate, 0))?);
            }
        }
        _ => exchange.target = body.target_if_kept(operand)?,
    }
    Ok(())
}

/// `bar.warp.sync`.
pub(super) fn wait<'m>(body: &mut Body<'_, 'm>, operands: &[Operand<'m>]) -> Result<(), PtxError> {
    let [members] = exactly(body, operands)?;
    let members = body.source(members, Type::B32)?;
    body.emit(Op::Exchange(Box::new(blank(members, Together::Wait))));
    Ok(())
}

fn shuffle<'m>(
    body: &mut Body<'_, 'm>,
    m: &mut Modifiers<'m>,
    operands: &[Operand<'m>],
) -> Result<(), PtxError> {
    let mode = match m.one_of(&["up", "down", "bfly", "idx"]) {
        Some("up") => Shuffle::Up,
        Some("down") => Shuffle::Down,
        Some("bfly") => Shuffle::Butterfly,
        Some(_) => Shuffle::Index,
        None => return Err(m.refused(body, "has no mode")),
    };
    m.kind(body)?;
    m.finish(body)?;
    let [target, a, b, c, members] = exactly(body, operands)?;
    let mut exchange = blank(body.source(members, Type::B32)?, Together::Shuffle(mode));
    results(body, target, &mut exchange)?;
    exchange.sources = [body.source(a, Type::B32)?, body.source(b, Type::B32)?, body.source(c, Type::B32)?];
    body.emit(Op::Exchange(Box::new(exchange)));
    Ok(())
}

fn vote<'m>(
    body: &mut Body<'_, 'm>,
    m: &mut Modifiers<'m>,
    operands: &[Operand<'m>],
) -> Result<(), PtxError> {
    let together = match m.one_of(&["all", "any", "uni", "ballot"]) {
        Some("all") => Together::VoteAll,
        Some("any") => Together::VoteAny,
        Some("uni") => Together::VoteUniform,
        Some(_) => Together::Ballot,
        None => return Err(m.refused(body, "has no mode")),
    };
    m.kind(body)?;
    m.finish(body)?;
    let [target, truth, members] = exactly(body, operands)?;
    let mut exchange = blank(body.source(members, Type::B32)?, together);
    exchange.truth = body.truth(truth)?;
    if matches!(together, Together::Ballot) {
        exchange.target = body.target_if_kept(target)?;
    } else {
        exchange.predicate = Some(body.predicate(target)?);
    }
    body.emit(Op::Exchange(Box::new(exchange)));
    Ok(())
}

fn matching<'m>(
    body: &mut Body<'_, 'm>,
    m: &mut Modifiers<'m>,
    operands: &[Operand<'m>],
) -> Result<(), PtxError> {
    let is_all = m.one_of(&["any", "all"]) == Some("all");
    let kind = m.kind(body)?;
    m.finish(body)?;
    let [target, a, members] = exactly(body, operands)?;
    let together = if is_all { Together::MatchAll(kind) } else { Together::MatchAny(kind) };
    let mut exchange = blank(body.source(members, Type::B32)?, together);
    results(body, target, &mut exchange)?;
    exchange.sources[0] = body.source(a, kind)?;
    body.emit(Op::Exchange(Box::new(exchange)));
    Ok(())
}

fn reduce<'m>(
    body: &mut Body<'_, 'm>,
    m: &mut Modifiers<'m>,
    operands: &[Operand<'m>],
) -> Result<(), PtxError> {
    let name = m.one_of(&["add", "min", "max", "and", "or", "xor"]).unwrap_or("");
    let kind = m.kind(body)?;
    m.finish(body)?;
    let compute: Option<Scalar> = match (name, kind.is_float()) {
        (_, true) => None,
        ("add" | "min" | "max", _) => integer::arithmetic(name, kind),
        _ => bits::bits(name, kind),
    };
    let compute = compute.ok_or_else(|| m.refused(body, "has no such operation of this type"))?;
    let [target, a, members] = exactly(body, operands)?;
    let mut exchange = blank(body.source(members, Type::B32)?, Together::Reduce(compute));
    exchange.target = body.target_if_kept(target)?;
    exchange.sources[0] = body.source(a, kind)?;
    body.emit(Op::Exchange(Box::new(exchange)));
    Ok(())
}
