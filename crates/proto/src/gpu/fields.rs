//! How numbers of a command lie in its body, and the tables that describe it.

use thiserror::Error;

/// A body that is not what its word says.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadBody {
    /// No command or answer has this number.
    #[error("nothing has the number {0:#x} (hint: the other side speaks another version)")]
    Word(u32),
    /// The body is too short, or longer than its fields where no tail is allowed.
    #[error("a body of {name} has {bytes} bytes in place of {expected}")]
    Length {
        /// The command or answer.
        name: &'static str,
        /// What came.
        bytes: usize,
        /// What its fields take.
        expected: usize,
    },
}

/// A number, or a few of them, in a body.
pub trait Field: Sized + Copy {
    /// Bytes in the body.
    const BYTES: usize;
    /// The type in tables.
    const NAME: &'static str;
    /// Writes itself; `to` has [`BYTES`](Self::BYTES) bytes.
    fn put(self, to: &mut [u8]);
    /// Reads one; `from` has [`BYTES`](Self::BYTES) bytes.
    fn take(from: &[u8]) -> Self;
}

macro_rules! numbers {
    ($($kind:ident)*) => {$(
        impl Field for $kind {
            const BYTES: usize = size_of::<$kind>();
            const NAME: &'static str = stringify!($kind);
            #[inline(always)]
            fn put(self, to: &mut [u8]) {
                to.copy_from_slice(&self.to_le_bytes());
            }
            #[inline(always)]
            fn take(from: &[u8]) -> Self {
                let mut bytes = [0; size_of::<$kind>()];
                bytes.copy_from_slice(from);
                Self::from_le_bytes(bytes)
            }
        }
    )*};
}
numbers!(u32 i32 u64 i64);

impl Field for [u32; 3] {
    const BYTES: usize = 12;
    const NAME: &'static str = "3 x u32";
    #[inline(always)]
    fn put(self, to: &mut [u8]) {
        for (part, number) in to.as_chunks_mut::<4>().0.iter_mut().zip(self) {
            number.put(part);
        }
    }
    #[inline(always)]
    fn take(from: &[u8]) -> Self {
        [u32::take(&from[0..4]), u32::take(&from[4..8]), u32::take(&from[8..12])]
    }
}

macro_rules! bytes {
    ($($count:literal $name:literal)*) => {$(
        impl Field for [u8; $count] {
            const BYTES: usize = $count;
            const NAME: &'static str = $name;
            #[inline(always)]
            fn put(self, to: &mut [u8]) {
                to.copy_from_slice(&self);
            }
            #[inline(always)]
            fn take(from: &[u8]) -> Self {
                let mut bytes = [0; $count];
                bytes.copy_from_slice(from);
                bytes
            }
        }
    )*};
}
bytes!(16 "16 bytes" 32 "32 bytes");

/// A command or an answer: fields, and for some a tail.
pub trait Message {
    /// Its number.
    const NUMBER: u32;
    /// Bytes of its fields, which is where a tail begins.
    const FIELD_BYTES: usize;
    /// Writes the fields at the start of `body`, which has at least [`FIELD_BYTES`](Self::FIELD_BYTES) bytes.
    fn write(&self, body: &mut [u8]);
}

/// One command or answer, as the tables of the documentation show it.
#[derive(Debug, Clone)]
pub struct Layout {
    /// Its number.
    pub word: u32,
    /// Its name.
    pub name: &'static str,
    /// Name and type of each field, in the order of the body.
    pub fields: &'static [(&'static str, &'static str)],
    /// Bytes of all fields.
    pub bytes: usize,
    /// Whether further bytes follow.
    pub has_tail: bool,
    /// What it means.
    pub meaning: &'static [&'static str],
}

/// Defines messages: a structure for each, the enumeration of all, and their tables.
macro_rules! messages {
    ($(#[$all_doc:meta])* $all:ident {
        $( $(#[doc = $doc:literal])+ $word:literal $name:ident $(+ $tail:ident)? {
            $( $(#[$field_doc:meta])* $field:ident : $kind:ty ),* $(,)?
        } )*
    }) => {
        $(
            $(#[doc = $doc])+
            // The words on the message say what its fields are.
            #[allow(missing_docs)]
            #[derive(Debug, Clone, Copy, PartialEq, Eq)]
            pub struct $name { $( $(#[$field_doc])* pub $field: $kind, )* }

            impl $name {
                /// Its number.
                pub const WORD: u32 = $word;
                /// Bytes of its fields, which is where a tail begins.
                pub const BYTES: usize = 0 $( + <$kind as $crate::gpu::Field>::BYTES )*;

                /// Writes the fields at the start of `body`, which has at least [`BYTES`](Self::BYTES) bytes.
                #[inline(always)]
                pub fn put(&self, body: &mut [u8]) {
                    let body = &mut body[..Self::BYTES];
                    let mut at = 0;
                    $(
                        let end = at + <$kind as $crate::gpu::Field>::BYTES;
                        $crate::gpu::Field::put(self.$field, &mut body[at..end]);
                        at = end;
                    )*
                    let _ = at;
                }

                /// Reads the fields from `body`, which has at least [`BYTES`](Self::BYTES) bytes.
                #[inline(always)]
                pub fn take(body: &[u8]) -> Self {
                    let body = &body[..Self::BYTES];
                    let mut at = 0;
                    $(
                        let end = at + <$kind as $crate::gpu::Field>::BYTES;
                        let $field = <$kind as $crate::gpu::Field>::take(&body[at..end]);
                        at = end;
                    )*
                    let _ = at;
                    Self { $($field),* }
                }
            }

            impl $crate::gpu::Message for $name {
                const NUMBER: u32 = $word;
                const FIELD_BYTES: usize = Self::BYTES;
                #[inline(always)]
                fn write(&self, body: &mut [u8]) {
                    self.put(body);
                }
            }
        )*

        $(#[$all_doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $all { $( $(#[doc = $doc])+ $name($name), )* }

        impl $all {
            /// Bytes of the fields of the one with this number: as many must be given to [`read`](Self::read).
            ///
            /// # Errors
            /// Nothing has this number.
            pub fn field_bytes(word: u32) -> Result<usize, $crate::gpu::BadBody> {
                match word {
                    $( $word => Ok($name::BYTES), )*
                    _ => Err($crate::gpu::BadBody::Word(word)),
                }
            }

            /// Reads fields; `head` is the start of the body, `bytes` the length of all of it.
            ///
            /// # Errors
            /// Nothing has this number, or the length is not that of its fields.
            pub fn read(word: u32, head: &[u8], bytes: usize) -> Result<Self, $crate::gpu::BadBody> {
                match word {
                    $( $word => {
                        let has_tail = $crate::gpu::fields::has_tail!($($tail)?);
                        let fits = if has_tail { bytes >= $name::BYTES } else { bytes == $name::BYTES };
                        if !fits || head.len() < $name::BYTES {
                            return Err($crate::gpu::BadBody::Length {
                                name: stringify!($name),
                                bytes,
                                expected: $name::BYTES,
                            });
                        }
                        Ok(Self::$name($name::take(head)))
                    } )*
                    _ => Err($crate::gpu::BadBody::Word(word)),
                }
            }

            /// The tables of all of them, in the order of their numbers.
            #[must_use]
            pub fn layouts() -> Vec<$crate::gpu::Layout> {
                vec![ $( $crate::gpu::Layout {
                    word: $word,
                    name: stringify!($name),
                    fields: &[ $( (stringify!($field), <$kind as $crate::gpu::Field>::NAME), )* ],
                    bytes: $name::BYTES,
                    has_tail: $crate::gpu::fields::has_tail!($($tail)?),
                    meaning: &[$($doc),+],
                } ),* ]
            }
        }
    };
}
pub(crate) use messages;

macro_rules! has_tail {
    () => {
        false
    };
    (tail) => {
        true
    };
}
pub(crate) use has_tail;
