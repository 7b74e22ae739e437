//! PTX: kernels and variables out of its text, without looking into the code.
//!
//! What is read: `.target`, the head of each `.entry` with its `.param` declarations and its limits, `.shared` variables within it, and
//! `.global` and `.const` variables of the module. Everything else is skipped, token by token. A parameter lies at the next
//! multiple of its alignment; the alignment is that of its type, or what `.align` says (not the one behind `.ptr`, which is of what it points to).

use crate::kernels::{ImageError, Kernel, Kernels, PARAMETER_BYTES_MAX, Parameter, Space, Variable};
use crate::target::Target;

/// Alignment of a variable or a parameter that PTX may ask for.
const ALIGNMENT_MAX: u64 = 1 << 16;
/// Shared memory of a kernel: far more than a GPU has, and far from where sums overflow.
const SHARED_BYTES_MAX: u64 = 1 << 30;

/// Kernels and variables of a module.
pub(crate) fn read(image: &[u8]) -> Result<Kernels, ImageError> {
    let text = image.split(|byte| *byte == 0).next().unwrap_or_default();
    let mut module = Module { tokens: Tokens { text, at: 0, ahead: None }, found: Kernels::default() };
    if module.tokens.next() != Some(b".version") {
        return Err(ImageError::Form);
    }
    module.read()?;
    Ok(module.found)
}

/// Words and single marks of punctuation.
struct Tokens<'text> {
    text: &'text [u8],
    at: usize,
    /// A token that was looked at and is still to come.
    ahead: Option<&'text [u8]>,
}

const PUNCTUATION: &[u8] = b"{}()[],;=:<>";

impl<'text> Tokens<'text> {
    fn next(&mut self) -> Option<&'text [u8]> {
        if let Some(token) = self.ahead.take() {
            return Some(token);
        }
        self.skip_blanks();
        let rest = &self.text[self.at..];
        let length = match rest.first()? {
            b'"' => rest[1..].iter().position(|byte| *byte == b'"').map_or(rest.len(), |end| end + 2),
            mark if PUNCTUATION.contains(mark) => 1,
            // A slash is in a word as its first letter only, so that a comment ends a word.
            _ => 1 + rest[1..].iter().position(|byte| ends_word(*byte)).unwrap_or(rest.len() - 1),
        };
        self.at += length;
        Some(&rest[..length])
    }

    fn peek(&mut self) -> Option<&'text [u8]> {
        self.ahead = self.next();
        self.ahead
    }

    fn skip_blanks(&mut self) {
        loop {
            let rest = &self.text[self.at..];
            let after = |end: &[u8]| rest.windows(end.len()).position(|part| part == end);
            self.at += match rest {
                [blank, ..] if blank.is_ascii_whitespace() => 1,
                [b'/', b'/', ..] => after(b"\n").unwrap_or(rest.len()),
                [b'/', b'*', ..] => after(b"*/").map_or(rest.len(), |end| end + 2),
                _ => return,
            };
        }
    }

    fn wrong(&self, reason: impl Into<String>) -> ImageError {
        let line = 1 + self.text[..self.at].iter().filter(|byte| **byte == b'\n').count();
        ImageError::Assembly { line, reason: reason.into() }
    }

    fn expect(&mut self) -> Result<&'text [u8], ImageError> {
        self.next().ok_or_else(|| self.wrong("the text ends within a declaration"))
    }

    fn name(&mut self) -> Result<String, ImageError> {
        let token = self.expect()?;
        let is_name =
            token.first().is_some_and(|first| first.is_ascii_alphabetic() || b"_$%".contains(first));
        match std::str::from_utf8(token) {
            Ok(name) if is_name => Ok(name.to_string()),
            _ => Err(self.wrong(format!("{:?} is no name", String::from_utf8_lossy(token)))),
        }
    }

    fn number(&mut self) -> Result<u64, ImageError> {
        let token = self.expect()?;
        let text = std::str::from_utf8(token).unwrap_or("").trim_end_matches('U');
        let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            Some(digits) => u64::from_str_radix(digits, 16),
            None if text.len() > 1 && text.starts_with('0') => u64::from_str_radix(text, 8),
            None => text.parse(),
        };
        number.map_err(|_| self.wrong(format!("{:?} is no number", String::from_utf8_lossy(token))))
    }

    /// One to three numbers with commas between them.
    fn three(&mut self) -> Result<[u32; 3], ImageError> {
        let mut found = [1; 3];
        for (place, number) in found.iter_mut().enumerate() {
            if place > 0 {
                if self.peek() != Some(b",") {
                    break;
                }
                self.next();
            }
            let value = self.number()?;
            *number = u32::try_from(value).map_err(|_| self.wrong(format!("{value} is too large")))?;
        }
        Ok(found)
    }
}

fn ends_word(byte: u8) -> bool {
    byte.is_ascii_whitespace() || PUNCTUATION.contains(&byte) || b"\"/".contains(&byte)
}

/// A declaration of a parameter or a variable, up to its name and its dimensions.
struct Declaration {
    name: String,
    size: u64,
    alignment: u64,
    is_managed: bool,
    /// A type that no program can look into: a texture, a sampler, a surface.
    is_opaque: bool,
}

struct Module<'text> {
    tokens: Tokens<'text>,
    found: Kernels,
}

impl Module<'_> {
    fn read(&mut self) -> Result<(), ImageError> {
        let mut is_external = false;
        while let Some(token) = self.tokens.next() {
            match token {
                b".extern" => {
                    is_external = true;
                    continue;
                }
                b".target" => {
                    let name = self.tokens.name()?;
                    self.found.target = self.found.target.or(Target::of_name(&name));
                }
                b".entry" => self.entry()?,
                b".global" => self.variables(Space::Global, is_external)?,
                b".const" => self.variables(Space::Constant, is_external)?,
                b"{" => self.skip_block()?,
                _ => {}
            }
            is_external = false;
        }
        Ok(())
    }

    fn entry(&mut self) -> Result<(), ImageError> {
        let mut kernel = Kernel { name: self.tokens.name()?, ..Kernel::default() };
        if self.tokens.peek() == Some(b"(") {
            self.tokens.next();
            self.parameters(&mut kernel)?;
        }
        loop {
            match self.tokens.expect()? {
                b".maxntid" => kernel.threads_max = threads(self.tokens.three()?),
                b".reqntid" => kernel.block = Some(self.tokens.three()?),
                b".reqnctapercluster" => kernel.cluster = Some(self.tokens.three()?),
                b";" => return Ok(()),
                b"{" => break,
                _ => {}
            }
        }
        kernel.static_shared_bytes = Some(self.body()?);
        kernel.threads_max = kernel.threads_max.or(kernel.block.and_then(threads));
        self.found.kernels.push(kernel);
        Ok(())
    }

    fn parameters(&mut self, kernel: &mut Kernel) -> Result<(), ImageError> {
        loop {
            match self.tokens.expect()? {
                b")" => return Ok(()),
                b"," => continue,
                b".param" => {}
                _ => return Err(self.tokens.wrong("a parameter does not start with .param")),
            }
            let declared = self.declaration()?;
            let offset = u64::from(kernel.parameter_bytes).next_multiple_of(declared.alignment);
            let end = offset + declared.size;
            let fits = u32::try_from(end).ok().filter(|end| *end <= PARAMETER_BYTES_MAX && declared.size > 0);
            let (Some(end), Ok(offset)) = (fits, u32::try_from(offset)) else {
                let reason =
                    format!("parameter {} of {} bytes ends at byte {end}", declared.name, declared.size);
                return Err(ImageError::Parameters { kernel: kernel.name.clone(), reason });
            };
            kernel.parameters.push(Parameter { offset, size: end - offset });
            // No more than ALIGNMENT_MAX.
            kernel.parameter_alignments.push(declared.alignment as u32);
            kernel.parameter_bytes = end;
        }
    }

    /// What stands behind `.param`, `.global`, `.const` or `.shared`: attributes, alignment, type, name, dimensions.
    fn declaration(&mut self) -> Result<Declaration, ImageError> {
        let mut declared =
            Declaration { name: String::new(), size: 0, alignment: 0, is_managed: false, is_opaque: false };
        let (mut element_bytes, mut elements, mut is_pointer) = (None, 1, false);
        loop {
            let token = self.tokens.peek().unwrap_or_default();
            if !token.starts_with(b".") {
                break;
            }
            self.tokens.next();
            match token {
                b".align" => {
                    let alignment = self.tokens.number()?;
                    if !alignment.is_power_of_two() || alignment > ALIGNMENT_MAX {
                        return Err(self.tokens.wrong(format!("{alignment} is no alignment")));
                    }
                    if !is_pointer {
                        declared.alignment = alignment;
                    }
                }
                b".ptr" => is_pointer = true,
                b".v2" => elements = 2,
                b".v4" => elements = 4,
                b".v8" => elements = 8,
                b".attribute" => declared.is_managed |= self.attribute()?,
                b".texref" | b".samplerref" | b".surfref" => {
                    declared.is_opaque = true;
                    element_bytes = Some(8);
                }
                _ => element_bytes = element_bytes.or(type_bytes(token)),
            }
        }
        let bytes = element_bytes.ok_or_else(|| self.tokens.wrong("a declaration has no type"))? * elements;
        declared.alignment = declared.alignment.max(if declared.alignment == 0 { bytes } else { 1 });
        declared.name = self.tokens.name()?;
        declared.size = self.dimensions(bytes)?;
        Ok(declared)
    }

    /// The words of `.attribute(...)`; whether they make a variable managed.
    fn attribute(&mut self) -> Result<bool, ImageError> {
        let mut is_managed = false;
        loop {
            match self.tokens.expect()? {
                b")" => return Ok(is_managed),
                b".managed" => is_managed = true,
                _ => {}
            }
        }
    }

    /// The size of an array of elements of so many bytes; 0 if a dimension is left open.
    fn dimensions(&mut self, bytes: u64) -> Result<u64, ImageError> {
        let mut size = bytes;
        while self.tokens.peek() == Some(b"[") {
            self.tokens.next();
            let count = if self.tokens.peek() == Some(b"]") { 0 } else { self.tokens.number()? };
            if self.tokens.expect()? != b"]" {
                return Err(self.tokens.wrong("a dimension does not end with ]"));
            }
            let product = size.checked_mul(count).filter(|size| *size <= i64::MAX as u64 / 2);
            size = product.ok_or_else(|| self.tokens.wrong("an array is too large"))?;
        }
        Ok(size)
    }

    /// One declaration of variables of the module, up to its semicolon.
    fn variables(&mut self, space: Space, is_external: bool) -> Result<(), ImageError> {
        let first = self.declaration()?;
        let (bytes, is_managed, is_opaque) = (first.size, first.is_managed, first.is_opaque);
        let mut variable = Variable { name: first.name, size: bytes, space, is_managed };
        loop {
            let is_wanted = !is_external && !is_opaque;
            self.found.variables.extend(is_wanted.then_some(variable));
            if self.skip_initial_value()? == b";" {
                return Ok(());
            }
            // Another name behind a comma has the same type; its dimensions are its own, and no compiler writes them.
            variable = Variable { name: self.tokens.name()?, size: bytes, space, is_managed };
        }
    }

    /// Skips to the comma or the semicolon behind a variable, and says which.
    fn skip_initial_value(&mut self) -> Result<&[u8], ImageError> {
        let mut depth = 0u32;
        loop {
            match self.tokens.expect()? {
                b"{" | b"(" => depth += 1,
                b"}" | b")" => depth = depth.saturating_sub(1),
                end @ (b"," | b";") if depth == 0 => return Ok(end),
                _ => {}
            }
        }
    }

    /// Skips the code of a kernel; returns the bytes of its shared variables.
    fn body(&mut self) -> Result<u32, ImageError> {
        let (mut depth, mut shared_bytes) = (1u32, 0u64);
        let mut is_external = false;
        while depth > 0 {
            match self.tokens.expect()? {
                b"{" => depth += 1,
                b"}" => depth -= 1,
                b".extern" => {
                    is_external = true;
                    continue;
                }
                b".shared" => {
                    let declared = self.declaration()?;
                    let size = if is_external { 0 } else { declared.size };
                    shared_bytes = shared_bytes.next_multiple_of(declared.alignment) + size;
                    if shared_bytes > SHARED_BYTES_MAX {
                        return Err(self
                            .tokens
                            .wrong(format!("a kernel has {shared_bytes} bytes of shared memory")));
                    }
                }
                _ => {}
            }
            is_external = false;
        }
        // No more than SHARED_BYTES_MAX.
        Ok(shared_bytes as u32)
    }

    fn skip_block(&mut self) -> Result<(), ImageError> {
        let mut depth = 1u32;
        while depth > 0 {
            match self.tokens.expect()? {
                b"{" => depth += 1,
                b"}" => depth -= 1,
                _ => {}
            }
        }
        Ok(())
    }
}

fn threads(block: [u32; 3]) -> Option<u32> {
    block[0].checked_mul(block[1])?.checked_mul(block[2])
}

/// Bytes of a value of a type such as `.u32` or `.f16x2`.
fn type_bytes(token: &[u8]) -> Option<u64> {
    Some(match token {
        b".b8" | b".u8" | b".s8" | b".pred" => 1,
        b".b16" | b".u16" | b".s16" | b".f16" | b".bf16" => 2,
        b".b32" | b".u32" | b".s32" | b".f32" | b".f16x2" | b".bf16x2" => 4,
        b".b64" | b".u64" | b".s64" | b".f64" => 8,
        b".b128" => 16,
        _ => return None,
    })
}
