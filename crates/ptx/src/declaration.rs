//! Declarations of variables and parameters: `.align 8 .b8 name[16]`, and what they are initialised with.

use crate::error::PtxError;
use crate::text::{Literal, Token, Tokens, literal, shown};
use crate::types::Type;

/// More bytes than any variable of a kernel may have.
pub(crate) const VARIABLE_BYTES_MAX: u64 = 1 << 30;
/// Dimensions of an array: real ones have three.
const DIMENSIONS_MAX: usize = 8;

/// One declared name.
#[derive(Debug, Clone)]
pub(crate) struct Declaration<'a> {
    pub name: &'a str,
    pub kind: Type,
    pub align: u64,
    /// Bytes of all elements; 0 for `name[]`.
    pub bytes: u64,
    /// `name[]`: the launch or the initialiser says how many.
    pub is_open: bool,
    /// `name<count>`: names with numbers appended.
    pub count: Option<u64>,
    /// Elements in an element of each dimension, the last is 1.
    strides: Vec<u64>,
}

/// The address of something else within an initialised variable.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Relocation {
    pub offset: u64,
    pub bytes: u32,
    pub symbol: String,
    pub addend: i64,
    /// The bits of the address that are stored, shifted down.
    pub mask: u64,
    pub line: u32,
}

/// What a variable starts with.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Initial {
    pub bytes: Vec<u8>,
    pub relocations: Vec<Relocation>,
}

/// The part of a declaration that several names share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    kind: Type,
    align: Option<u64>,
    vector: u64,
}

/// Reads everything between the state space and the first name.
pub(crate) fn shape(tokens: &mut Tokens<'_>) -> Result<Shape, PtxError> {
    let (mut kind, mut align, mut vector, mut is_pointer) = (None, None, 1, false);
    while let Token::Word(word) = tokens.peek()?
        && let Some(name) = word.strip_prefix('.')
    {
        let line = tokens.line();
        tokens.take()?;
        match name {
            "align" => {
                let value = tokens.count()?;
                if !value.is_power_of_two() || value > 1 << 16 {
                    return Err(PtxError::new(line, format!("alignment {value}")));
                }
                // Behind `.ptr` it is the alignment of what the parameter points to.
                if !is_pointer {
                    align = Some(value);
                }
            }
            "v2" => vector = 2,
            "v4" => vector = 4,
            "ptr" => is_pointer = true,
            "global" | "const" | "shared" | "local" if is_pointer => {}
            "attribute" => while !tokens.accept(')')? && tokens.take()? != Token::End {},
            _ => match Type::named(name) {
                Some(found) => kind = Some(found),
                None => {
                    return Err(PtxError::new(line, format!("`{word}` in a declaration is not supported")));
                }
            },
        }
    }
    let line = tokens.line();
    let kind = kind.ok_or_else(|| PtxError::new(line, "a declaration has no type"))?;
    Ok(Shape { kind, align, vector })
}

/// Reads one name with what belongs to it.
pub(crate) fn declaration<'a>(tokens: &mut Tokens<'a>, shape: Shape) -> Result<Declaration<'a>, PtxError> {
    let line = tokens.line();
    let name = tokens.word()?;
    let element = u64::from(shape.kind.bytes()) * shape.vector;
    let mut found = Declaration {
        name,
        kind: shape.kind,
        align: shape.align.unwrap_or(element),
        bytes: 0,
        is_open: false,
        count: None,
        strides: Vec::new(),
    };
    if tokens.accept('<')? {
        found.count = Some(tokens.count()?);
        tokens.expect('>')?;
    }
    let mut dimensions = Vec::new();
    while tokens.accept('[')? {
        if tokens.accept(']')? {
            found.is_open = true;
            dimensions.push(0);
        } else {
            dimensions.push(tokens.count()?);
            tokens.expect(']')?;
        }
        if dimensions.len() > DIMENSIONS_MAX {
            return Err(PtxError::new(line, "an array has too many dimensions"));
        }
    }
    let mut total = 1u64;
    for &dimension in dimensions.iter().rev() {
        found.strides.push(total);
        total = total.checked_mul(dimension).filter(|&total| total <= VARIABLE_BYTES_MAX).unwrap_or(u64::MAX);
    }
    found.strides.reverse();
    found.bytes = total.saturating_mul(element);
    if found.bytes > VARIABLE_BYTES_MAX {
        return Err(PtxError::new(line, format!("{name} is larger than {VARIABLE_BYTES_MAX} bytes")));
    }
    Ok(found)
}

/// Reads what follows `=`. An open array gets as many bytes as there are values.
pub(crate) fn initial(tokens: &mut Tokens<'_>, variable: &mut Declaration<'_>) -> Result<Initial, PtxError> {
    let element = u64::from(variable.kind.bytes());
    let (mut found, mut at, mut starts) = (Initial::default(), 0u64, Vec::new());
    loop {
        let line = tokens.line();
        if tokens.accept('{')? {
            if starts.len() > variable.strides.len() {
                return Err(PtxError::new(line, "an initialiser is nested deeper than its variable"));
            }
            starts.push(at);
            if !tokens.accept('}')? {
                continue;
            }
            starts.pop();
        } else {
            value(tokens, variable, at, &mut found)?;
            at += element;
        }
        while !starts.is_empty() && !tokens.accept(',')? {
            tokens.expect('}')?;
            if let Some(start) = starts.pop()
                && let Some(depth) = starts.len().checked_sub(1)
                && let Some(stride) = variable.strides.get(depth)
            {
                at = start + stride * element;
            }
        }
        if starts.is_empty() {
            break;
        }
    }
    if variable.is_open {
        variable.bytes = found.bytes.len() as u64;
    }
    if found.bytes.len() as u64 > variable.bytes {
        return Err(PtxError::new(tokens.line(), format!("{} has more values than room", variable.name)));
    }
    Ok(found)
}

/// One value of an initialiser, which goes to offset `at`.
fn value(
    tokens: &mut Tokens<'_>,
    variable: &Declaration<'_>,
    at: u64,
    found: &mut Initial,
) -> Result<(), PtxError> {
    let (line, bytes) = (tokens.line(), variable.kind.bytes());
    if at + u64::from(bytes) > VARIABLE_BYTES_MAX || (!variable.is_open && at >= variable.bytes) {
        return Err(PtxError::new(line, format!("{} has more values than room", variable.name)));
    }
    let is_negative = tokens.accept('-')?;
    let mut stored = 0;
    match tokens.take()? {
        Token::Number(number) => {
            let literal = literal(number).ok_or_else(|| PtxError::new(line, format!("number `{number}`")))?;
            let literal = if is_negative { literal.negated() } else { literal };
            if let (Literal::Integer(mask), true) = (literal, tokens.accept('(')?) {
                let symbol = tokens.word()?.to_string();
                let addend = addend(tokens)?;
                tokens.expect(')')?;
                found.relocations.push(Relocation { offset: at, bytes, symbol, addend, mask, line });
            } else {
                stored = immediate(literal, variable.kind)
                    .ok_or_else(|| PtxError::new(line, format!("`{number}` is no value of this type")))?;
            }
        }
        Token::Word("generic") if tokens.accept('(')? => {
            let symbol = tokens.word()?.to_string();
            let addend = addend(tokens)?;
            tokens.expect(')')?;
            found.relocations.push(Relocation { offset: at, bytes, symbol, addend, mask: u64::MAX, line });
        }
        Token::Word(word) => {
            let addend = addend(tokens)?;
            let symbol = word.to_string();
            found.relocations.push(Relocation { offset: at, bytes, symbol, addend, mask: u64::MAX, line });
        }
        other => return Err(PtxError::new(line, format!("{} in an initialiser", shown(other)))),
    }
    let start = usize::try_from(at).map_err(|_| PtxError::new(line, "an initialiser is too long"))?;
    found.bytes.resize(found.bytes.len().max(start + bytes as usize), 0);
    found.bytes[start..start + bytes as usize].copy_from_slice(&stored.to_le_bytes()[..bytes as usize]);
    Ok(())
}

/// Reads `+8` or `-8` or nothing.
pub(crate) fn addend(tokens: &mut Tokens<'_>) -> Result<i64, PtxError> {
    let is_positive = tokens.accept('+')?;
    let is_negative = tokens.accept('-')?;
    if !is_positive && !is_negative {
        return Ok(0);
    }
    let value = tokens.count()? as i64;
    Ok(if is_negative { value.wrapping_neg() } else { value })
}

/// The bits of a literal as a value of a type; nothing if it cannot be one.
pub(crate) fn immediate(literal: Literal, kind: Type) -> Option<u64> {
    let bits = match (literal, kind) {
        (Literal::Integer(value), Type::F32) => u64::from((value as i64 as f32).to_bits()),
        (Literal::Integer(value), Type::F64) => (value as i64 as f64).to_bits(),
        (Literal::Integer(value), _) => value,
        (Literal::Single(bits), Type::F64) => f64::from(f32::from_bits(bits)).to_bits(),
        (Literal::Single(bits), kind) if kind.bits() >= 32 => u64::from(bits),
        (Literal::Double(value), Type::F64 | Type::B64) => value.to_bits(),
        (Literal::Double(value), Type::F32) => u64::from((value as f32).to_bits()),
        _ => return None,
    };
    Some(bits & kind.mask())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(u64, u64, Initial), PtxError> {
        let mut tokens = Tokens::new(text, 1);
        let shape = shape(&mut tokens)?;
        let mut variable = declaration(&mut tokens, shape)?;
        let initial =
            if tokens.accept('=')? { initial(&mut tokens, &mut variable)? } else { Initial::default() };
        tokens.expect(';')?;
        Ok((variable.bytes, variable.align, initial))
    }

    #[test]
    fn rows_that_are_not_full_are_followed_by_zeros() {
        let (bytes, align, initial) = read(".align 4 .b8 a[2][3] = {{1, 2}, {-1}};").unwrap();
        assert_eq!((bytes, align), (6, 4));
        assert_eq!(initial.bytes, [1, 2, 0, 255]);
        assert_eq!(read(".u16 a[] = {1, 2};").unwrap().0, 4);
        assert_eq!(read(".f32 a = 0f3F800000;").unwrap().2.bytes, 1f32.to_le_bytes());
        assert_eq!(read(".v4 .f32 a[2];").unwrap().0, 32);
    }

    #[test]
    fn addresses_of_others_are_kept_with_their_place() {
        let (_, _, initial) = read(".u64 a[2] = {f, generic(g)+0};")
            .unwrap_or_else(|_| read(".u64 a[2] = {f, generic(g+8)};").unwrap());
        assert_eq!(initial.relocations.len(), 2);
        assert_eq!((initial.relocations[1].offset, initial.relocations[1].addend), (8, 8));
        let (_, _, initial) = read(".b8 a[2] = {0xFF(f), 0xFF00(f)};").unwrap();
        assert_eq!(initial.relocations[1].mask, 0xFF00);
    }

    #[test]
    fn wrong_declarations_are_refused() {
        for text in [
            ".b8 a[99999999999999];",
            ".b8 a[4294967296][4294967296];",
            ".b8 a[1] = {1, 2};",
            ".b8 a[1] = {{{{1}}}};",
            ".align 3 .b8 a;",
            "a;",
            ".b128 a;",
            ".b8 a = ;",
            ".b16 a = 0f3F800000;",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
