//! Options of the commands that set values and let keys end.

use crate::number;

/// Why options are refused: the text of the error reply.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone)]
pub enum OptionError {
    /// They do not go together, or there is no such option.
    #[error("ERR syntax error")]
    Syntax,
    /// A number is none.
    #[error("ERR value is not an integer or out of range")]
    Integer,
    /// A number that needs more than 32 bits.
    #[error("ERR value is out of range, value must between {} and {}", i32::MIN, i32::MAX)]
    Range,
    /// A database that is not there.
    #[error("ERR DB index is out of range")]
    Database,
    /// A time that cannot be.
    #[error("ERR invalid expire time in '{0}' command")]
    Time(&'static str),
    /// Conditions of `EXPIRE` that cannot hold together.
    #[error("ERR {0}")]
    Together(&'static str),
    /// An option that `EXPIRE` does not have.
    #[error("ERR Unsupported option {0}")]
    Unsupported(String),
}

/// When a key ends, in milliseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ends {
    /// Never.
    #[default]
    Never,
    /// As it is.
    Kept,
    /// Then.
    At(u64),
}

/// When a value is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Condition {
    /// Always.
    #[default]
    Always,
    /// If the key is not there.
    Absent,
    /// If it is.
    Present,
}

/// Options of `SET`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetOptions {
    /// When it is set.
    pub condition: Condition,
    /// Whether the old value is the answer.
    pub get: bool,
    /// When it ends.
    pub ends: Ends,
}

impl SetOptions {
    /// Reads the words behind the value.
    ///
    /// # Errors
    /// [`OptionError`].
    pub fn parse<'word>(
        mut words: impl Iterator<Item = &'word [u8]>,
        now_ms: u64,
    ) -> Result<Self, OptionError> {
        let mut options = Self::default();
        // Whether the words make sense comes before whether their numbers do.
        let mut time = None;
        while let Some(word) = words.next() {
            let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
            // Redis takes the last of several times that are given in the same way.
            let takes = |unit: &Unit| options.ends != Ends::Kept && is_last(time, *unit);
            if is("NX") && options.condition != Condition::Present {
                options.condition = Condition::Absent;
            } else if is("XX") && options.condition != Condition::Absent {
                options.condition = Condition::Present;
            } else if is("GET") {
                options.get = true;
            } else if is("KEEPTTL") && time.is_none() {
                options.ends = Ends::Kept;
            } else if let Some(unit) = Unit::of(word).filter(takes) {
                time = Some((unit, words.next().ok_or(OptionError::Syntax)?));
            } else {
                return Err(OptionError::Syntax);
            }
        }
        if let Some((unit, time)) = time {
            options.ends = Ends::At(unit.end("set", time, now_ms)?);
        }
        Ok(options)
    }
}

/// The end that `GETEX` gives a key.
///
/// # Errors
/// [`OptionError`].
pub fn getex<'word>(mut words: impl Iterator<Item = &'word [u8]>, now_ms: u64) -> Result<Ends, OptionError> {
    let (mut ends, mut time) = (Ends::Kept, None);
    while let Some(word) = words.next() {
        let takes = |unit: &Unit| ends == Ends::Kept && is_last(time, *unit);
        if word.eq_ignore_ascii_case(b"PERSIST") && time.is_none() {
            ends = Ends::Never;
        } else if let Some(unit) = Unit::of(word).filter(takes) {
            time = Some((unit, words.next().ok_or(OptionError::Syntax)?));
        } else {
            return Err(OptionError::Syntax);
        }
    }
    match time {
        Some((unit, time)) => Ok(Ends::At(unit.end("getex", time, now_ms)?)),
        None => Ok(ends),
    }
}

/// Whether a time may stand behind the one before it, if there is one: both must be given in the same way.
fn is_last(before: Option<(Unit, &[u8])>, unit: Unit) -> bool {
    before.is_none_or(|(other, _)| other == unit)
}

/// Options of `COPY`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CopyOptions {
    /// The database that it goes to, if it is named.
    pub database: Option<usize>,
    /// Whether a value that is there is replaced.
    pub replaces: bool,
}

impl CopyOptions {
    /// Reads the words behind the keys, for a server that has so many databases.
    ///
    /// # Errors
    /// [`OptionError`].
    pub fn parse<'word>(
        mut words: impl Iterator<Item = &'word [u8]>,
        databases: usize,
    ) -> Result<Self, OptionError> {
        let mut options = Self::default();
        while let Some(word) = words.next() {
            if word.eq_ignore_ascii_case(b"REPLACE") {
                options.replaces = true;
            } else if word.eq_ignore_ascii_case(b"DB")
                && let Some(word) = words.next()
            {
                options.database = Some(database(word, databases)?);
            } else {
                return Err(OptionError::Syntax);
            }
        }
        Ok(options)
    }
}

/// The number of a database, of as many as there are.
///
/// # Errors
/// [`OptionError::Integer`], [`OptionError::Range`], [`OptionError::Database`].
pub fn database(word: &[u8], databases: usize) -> Result<usize, OptionError> {
    let number = number::parse(word).ok_or(OptionError::Integer)?;
    let number = i32::try_from(number).map_err(|_| OptionError::Range)?;
    usize::try_from(number).ok().filter(|number| *number < databases).ok_or(OptionError::Database)
}

/// How a time is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Seconds from now.
    Seconds,
    /// Milliseconds from now.
    Milliseconds,
    /// Seconds since 1970.
    AtSeconds,
    /// Milliseconds since 1970.
    AtMilliseconds,
}

impl Unit {
    fn of(word: &[u8]) -> Option<Self> {
        let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
        match word.len() {
            2 if is("EX") => Some(Self::Seconds),
            2 if is("PX") => Some(Self::Milliseconds),
            4 if is("EXAT") => Some(Self::AtSeconds),
            4 if is("PXAT") => Some(Self::AtMilliseconds),
            _ => None,
        }
    }

    /// The end of a key that is set: it must be positive, as Redis wants it.
    ///
    /// # Errors
    /// [`OptionError::Integer`], [`OptionError::Time`].
    pub fn end(self, command: &'static str, time: &[u8], now_ms: u64) -> Result<u64, OptionError> {
        let number = number::parse(time).ok_or(OptionError::Integer)?;
        let end = self.milliseconds(number, now_ms).filter(|_| number > 0);
        // Positive: the cast loses nothing.
        end.map(|end| end as u64).ok_or(OptionError::Time(command))
    }

    /// The end that `EXPIRE` and its like give a key; one that is past is no error.
    ///
    /// # Errors
    /// As [`end`](Self::end).
    pub fn expire(self, command: &'static str, time: &[u8], now_ms: u64) -> Result<i64, OptionError> {
        let number = number::parse(time).ok_or(OptionError::Integer)?;
        self.milliseconds(number, now_ms).ok_or(OptionError::Time(command))
    }

    fn milliseconds(self, number: i64, now_ms: u64) -> Option<i64> {
        let number = match self {
            Self::Seconds | Self::AtSeconds => number.checked_mul(1000)?,
            Self::Milliseconds | Self::AtMilliseconds => number,
        };
        match self {
            Self::Seconds | Self::Milliseconds => number.checked_add(i64::try_from(now_ms).ok()?),
            Self::AtSeconds | Self::AtMilliseconds => Some(number),
        }
    }
}

/// Conditions of `EXPIRE`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExpireOptions {
    nx: bool,
    xx: bool,
    gt: bool,
    lt: bool,
}

impl ExpireOptions {
    /// Reads the words behind the time.
    ///
    /// # Errors
    /// [`OptionError`].
    pub fn parse<'word>(words: impl Iterator<Item = &'word [u8]>) -> Result<Self, OptionError> {
        let mut options = Self::default();
        for word in words {
            match word.to_ascii_uppercase().as_slice() {
                b"NX" => options.nx = true,
                b"XX" => options.xx = true,
                b"GT" => options.gt = true,
                b"LT" => options.lt = true,
                _ => return Err(OptionError::Unsupported(String::from_utf8_lossy(word).into_owned())),
            }
        }
        let Self { nx, xx, gt, lt } = options;
        if nx && (xx || gt || lt) {
            return Err(OptionError::Together(
                "NX and XX, GT or LT options at the same time are not compatible",
            ));
        }
        if gt && lt {
            return Err(OptionError::Together("GT and LT options at the same time are not compatible"));
        }
        Ok(options)
    }

    /// Whether a key that ends at `old` may end at `new`.
    pub fn allow(self, old: Option<u64>, new: i64) -> bool {
        let old_ms = old.map(|old| i64::try_from(old).unwrap_or(i64::MAX));
        // A key that does not end counts as one that ends later than all others.
        !(self.nx && old.is_some()
            || self.xx && old.is_none()
            || self.gt && old_ms.is_none_or(|old| new <= old)
            || self.lt && old_ms.is_some_and(|old| new >= old))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(words: &str) -> Result<SetOptions, OptionError> {
        SetOptions::parse(words.split_whitespace().map(str::as_bytes), 1000)
    }

    #[test]
    fn options_of_set_are_read_in_any_order_and_case() {
        let expected = SetOptions { condition: Condition::Absent, get: true, ends: Ends::At(6000) };
        assert_eq!(set("get ex 5 Nx"), Ok(expected));
        assert_eq!(set("PXAT 7").unwrap().ends, Ends::At(7));
        assert_eq!(set("keepttl XX").unwrap().ends, Ends::Kept);
        assert_eq!(set(""), Ok(SetOptions::default()));
    }

    #[test]
    fn the_last_of_several_times_counts_if_all_are_given_in_the_same_way() {
        let getex = |words: &str| getex(words.split_whitespace().map(str::as_bytes), 1000);
        assert_eq!(set("EX 1 NX ex 6").unwrap().ends, Ends::At(7000));
        assert_eq!(getex("PX x px 6"), Ok(Ends::At(1006)));
        assert_eq!(getex("PX 6 px x"), Err(OptionError::Integer));
        assert_eq!((getex(""), getex("persist PERSIST")), (Ok(Ends::Kept), Ok(Ends::Never)));
        for words in
            ["EX 1 PX 1", "EX 1 EX", "EX", "PERSIST EX 1", "EX 1 PERSIST", "KEEPTTL", "EX 1 EX 1 what"]
        {
            assert_eq!(getex(words), Err(OptionError::Syntax), "{words}");
        }
    }

    #[test]
    fn options_that_do_not_go_together_are_refused() {
        assert_eq!(set("NX nx").unwrap().condition, Condition::Absent);
        for words in
            ["NX XX", "EX 1 PX 1", "EX x PX 1", "EX", "KEEPTTL EX 1", "EX 1 KEEPTTL", "abc", "PERSIST"]
        {
            assert_eq!(set(words), Err(OptionError::Syntax), "{words}");
        }
        for words in ["EX 0", "PX -1", "EX 9223372036854775807", "PX 9223372036854775807"] {
            assert_eq!(set(words), Err(OptionError::Time("set")), "{words}");
        }
        assert_eq!(set("EX 1.5"), Err(OptionError::Integer));
        let expire = |words: &str| ExpireOptions::parse(words.split_whitespace().map(str::as_bytes));
        assert!(expire("NX GT").is_err() && expire("GT LT").is_err() && expire("ab").is_err());
        assert!(expire("xx gt").is_ok());
    }

    #[test]
    fn options_of_copy_name_a_database_that_is_there() {
        let copy = |words: &str| CopyOptions::parse(words.split_whitespace().map(str::as_bytes), 16);
        assert_eq!(copy(""), Ok(CopyOptions::default()));
        assert_eq!(copy("db 15 Replace"), Ok(CopyOptions { database: Some(15), replaces: true }));
        assert_eq!(copy("DB 1 DB 2").unwrap().database, Some(2));
        for words in ["DB", "REPLACE DB", "x", "REPLACE 1"] {
            assert_eq!(copy(words), Err(OptionError::Syntax), "{words}");
        }
        assert_eq!(copy("DB x what"), Err(OptionError::Integer));
        assert_eq!(copy("DB 2147483648"), Err(OptionError::Range));
        for words in ["DB 16", "DB -1"] {
            assert_eq!(copy(words), Err(OptionError::Database), "{words}");
        }
    }

    #[test]
    fn conditions_of_expire_compare_ends() {
        let allow = |words: &str, old, new| {
            ExpireOptions::parse(words.split_whitespace().map(str::as_bytes)).unwrap().allow(old, new)
        };
        assert!(allow("NX", None, 5) && !allow("NX", Some(9), 5));
        assert!(allow("XX", Some(9), 5) && !allow("XX", None, 5));
        assert!(!allow("GT", None, 5) && !allow("GT", Some(5), 5) && allow("GT", Some(4), 5));
        assert!(allow("LT", None, 5) && !allow("LT", Some(5), 5) && allow("LT", Some(6), 5));
    }
}
