//! Words, numbers and marks of PTX text, each with its line.

use crate::error::PtxError;

/// The smallest part of the text that means something.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Token<'a> {
    /// A name, an instruction with its modifiers, or a directive with its dot.
    Word(&'a str),
    /// A literal as it is written, without a sign.
    Number(&'a str),
    /// What stands between quotation marks.
    Text,
    /// One character that stands for itself.
    Mark(char),
    /// Nothing follows.
    End,
}

/// Reads tokens from a piece of text, one ahead.
pub(crate) struct Tokens<'a> {
    text: &'a str,
    at: usize,
    line: u32,
    next: Option<(Token<'a>, u32)>,
}

impl<'a> Tokens<'a> {
    /// Starts at the beginning of `text`, whose first line has this number.
    pub fn new(text: &'a str, line: u32) -> Self {
        Self { text, at: 0, line, next: None }
    }

    /// The line of the next token.
    pub fn line(&mut self) -> u32 {
        self.fill().map_or(self.line, |(_, line)| line)
    }

    /// The next token, which stays.
    pub fn peek(&mut self) -> Result<Token<'a>, PtxError> {
        Ok(self.fill()?.0)
    }

    /// The next token, which is taken.
    pub fn take(&mut self) -> Result<Token<'a>, PtxError> {
        let (token, _) = self.fill()?;
        self.next = None;
        Ok(token)
    }

    /// Takes the mark if it is next.
    pub fn accept(&mut self, mark: char) -> Result<bool, PtxError> {
        let found = self.peek()? == Token::Mark(mark);
        if found {
            self.next = None;
        }
        Ok(found)
    }

    /// Takes the mark or fails.
    pub fn expect(&mut self, mark: char) -> Result<(), PtxError> {
        let (line, token) = (self.line(), self.take()?);
        if token == Token::Mark(mark) {
            return Ok(());
        }
        Err(PtxError::new(line, format!("`{mark}` is missing before {}", shown(token))))
    }

    /// Takes a word or fails.
    pub fn word(&mut self) -> Result<&'a str, PtxError> {
        let line = self.line();
        match self.take()? {
            Token::Word(word) => Ok(word),
            other => Err(PtxError::new(line, format!("a name is missing before {}", shown(other)))),
        }
    }

    /// Takes an integer that is not negative, or fails.
    pub fn count(&mut self) -> Result<u64, PtxError> {
        let line = self.line();
        if let Token::Number(number) = self.take()?
            && let Some(Literal::Integer(value)) = literal(number)
        {
            return Ok(value);
        }
        Err(PtxError::new(line, "a count is missing"))
    }

    /// Drops all tokens that stand on this line.
    pub fn skip_line(&mut self, line: u32) -> Result<(), PtxError> {
        while self.peek()? != Token::End && self.line() == line {
            self.take()?;
        }
        Ok(())
    }

    /// With `{` next: takes everything up to its partner and returns what lies between, and the line it starts at.
    pub fn braces(&mut self) -> Result<(usize, usize, u32), PtxError> {
        self.expect('{')?;
        let (start, line) = (self.at, self.line);
        let mut depth = 1usize;
        loop {
            let before = self.at;
            match self.take()? {
                Token::Mark('{') => depth += 1,
                Token::Mark('}') => depth -= 1,
                Token::End => return Err(PtxError::new(line, "`{` has no `}`")),
                _ => {}
            }
            if depth == 0 {
                return Ok((start, before, line));
            }
        }
    }

    fn fill(&mut self) -> Result<(Token<'a>, u32), PtxError> {
        if let Some(next) = self.next {
            return Ok(next);
        }
        self.skip_space()?;
        let next = (self.read()?, self.line);
        self.next = Some(next);
        Ok(next)
    }

    fn byte(&self, ahead: usize) -> u8 {
        self.text.as_bytes().get(self.at + ahead).copied().unwrap_or(0)
    }

    fn skip_space(&mut self) -> Result<(), PtxError> {
        while self.at < self.text.len() {
            match self.byte(0) {
                b'\n' => {
                    self.line = self.line.saturating_add(1);
                    self.at += 1;
                }
                // Images in fat binaries end in a zero byte.
                b' ' | b'\t' | b'\r' | 0 => self.at += 1,
                b'/' if self.byte(1) == b'/' => {
                    let rest = &self.text.as_bytes()[self.at..];
                    self.at += rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
                }
                b'/' if self.byte(1) == b'*' => {
                    let rest = &self.text.as_bytes()[self.at + 2..];
                    let Some(end) = rest.windows(2).position(|pair| pair == b"*/") else {
                        return Err(PtxError::new(self.line, "a comment has no end"));
                    };
                    let newlines = rest[..end].iter().filter(|&&byte| byte == b'\n').count();
                    self.line = self.line.saturating_add(u32::try_from(newlines).unwrap_or(u32::MAX));
                    self.at += end + 4;
                }
                _ => break,
            }
        }
        Ok(())
    }

    fn read(&mut self) -> Result<Token<'a>, PtxError> {
        if self.at >= self.text.len() {
            return Ok(Token::End);
        }
        let start = self.at;
        let first = self.byte(0);
        if first.is_ascii_digit() {
            while self.byte(0).is_ascii_alphanumeric() || self.byte(0) == b'.' {
                let is_exponent = matches!(self.byte(0), b'e' | b'E') && self.is_decimal(start);
                self.at += 1;
                if is_exponent && matches!(self.byte(0), b'+' | b'-') {
                    self.at += 1;
                }
            }
            return Ok(Token::Number(&self.text[start..self.at]));
        }
        if is_word(first) {
            while is_word(self.byte(0)) || (self.byte(0) == b':' && self.byte(1) == b':') {
                self.at += if self.byte(0) == b':' { 2 } else { 1 };
            }
            return Ok(Token::Word(&self.text[start..self.at]));
        }
        if first == b'"' {
            let rest = &self.text.as_bytes()[start + 1..];
            let Some(end) = rest.iter().position(|&byte| byte == b'"' || byte == b'\n') else {
                return Err(PtxError::new(self.line, "a text has no closing quotation mark"));
            };
            self.at += end + 2;
            if rest[end] == b'\n' {
                return Err(PtxError::new(self.line, "a text has no closing quotation mark"));
            }
            return Ok(Token::Text);
        }
        if !first.is_ascii_graphic() {
            return Err(PtxError::new(self.line, format!("byte {first:#04x} stands outside of a comment")));
        }
        self.at += 1;
        Ok(Token::Mark(char::from(first)))
    }

    /// Whether what has been read since `start` is a decimal number, in which `e` announces an exponent.
    fn is_decimal(&self, start: usize) -> bool {
        self.text.as_bytes()[start..self.at].iter().all(|byte| byte.is_ascii_digit() || *byte == b'.')
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

pub(crate) fn shown(token: Token<'_>) -> String {
    let cut = |word: &str| word.chars().take(60).collect::<String>();
    match token {
        Token::Word(word) | Token::Number(word) => format!("`{}`", cut(word)),
        Token::Text => "a text".to_string(),
        Token::Mark(mark) => format!("`{mark}`"),
        Token::End => "the end".to_string(),
    }
}

/// What a number stands for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Literal {
    /// In two's complement, if a minus stood before it.
    Integer(u64),
    /// The bits after `0f`.
    Single(u32),
    /// A decimal number, or the bits after `0d`.
    Double(f64),
}

impl Literal {
    /// The same with a minus before it.
    pub fn negated(self) -> Self {
        match self {
            Self::Integer(value) => Self::Integer(value.wrapping_neg()),
            Self::Single(bits) => Self::Single(bits ^ 0x8000_0000),
            Self::Double(value) => Self::Double(-value),
        }
    }
}

/// Reads a literal; nothing if it is none.
pub(crate) fn literal(number: &str) -> Option<Literal> {
    let bytes = number.as_bytes();
    let prefix = if bytes.len() > 2 && bytes[0] == b'0' { bytes[1] } else { 0 };
    match prefix {
        b'f' | b'F' => return u32::from_str_radix(&number[2..], 16).ok().map(Literal::Single),
        b'd' | b'D' => {
            return u64::from_str_radix(&number[2..], 16)
                .ok()
                .map(|bits| Literal::Double(f64::from_bits(bits)));
        }
        _ => {}
    }
    let plain = number.strip_suffix(['U', 'u']).unwrap_or(number);
    let integer = match prefix {
        b'x' | b'X' => u64::from_str_radix(plain.get(2..)?, 16),
        b'b' | b'B' => u64::from_str_radix(plain.get(2..)?, 2),
        b'0'..=b'9' if !number.contains(['.', 'e', 'E']) => u64::from_str_radix(plain, 8),
        _ if number.contains(['.', 'e', 'E']) => return number.parse().ok().map(Literal::Double),
        _ => plain.parse(),
    };
    integer.ok().map(Literal::Integer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<(Token<'_>, u32)> {
        let mut tokens = Tokens::new(text, 1);
        let mut found = Vec::new();
        loop {
            let line = tokens.line();
            match tokens.take().unwrap() {
                Token::End => return found,
                token => found.push((token, line)),
            }
        }
    }

    #[test]
    fn an_instruction_is_words_numbers_and_marks_with_lines() {
        let text = "// note\n@!%p1 cp.async.L2::128B [%rd1+-8], 0x10; /* \n\n */ $L_1: mov %f1, 0f3F800000;";
        let found = all(text);
        assert_eq!(found[0], (Token::Mark('@'), 2));
        assert!(found.contains(&(Token::Word("cp.async.L2::128B"), 2)));
        assert!(found.contains(&(Token::Number("8"), 2)));
        assert!(found.contains(&(Token::Word("$L_1"), 4)) && found.contains(&(Token::Mark(':'), 4)));
        assert!(found.contains(&(Token::Number("0f3F800000"), 4)));
    }

    #[test]
    fn literals_have_their_values() {
        assert_eq!(literal("12"), Some(Literal::Integer(12)));
        assert_eq!(literal("0x3f80U"), Some(Literal::Integer(0x3f80)));
        assert_eq!(literal("0f3F800000"), Some(Literal::Single(0x3f80_0000)));
        assert_eq!(literal("0d3FF0000000000000"), Some(Literal::Double(1.0)));
        assert_eq!(literal("1.5e-1"), Some(Literal::Double(0.15)));
        assert_eq!(literal("017"), Some(Literal::Integer(15)));
        assert_eq!(literal("0b101"), Some(Literal::Integer(5)));
        assert_eq!(literal("0"), Some(Literal::Integer(0)));
        assert_eq!(literal("0f12g"), None);
    }

    #[test]
    fn what_is_not_text_is_an_error_with_its_line() {
        for text in ["\n\u{e4}", "\n/* no end", "\n\"no end\n", "\n\u{1}"] {
            let mut tokens = Tokens::new(text, 1);
            assert_eq!(tokens.take().unwrap_err().line, 2, "{text:?}");
        }
    }
}
