//! The types that instructions name, and how they round.

/// A type of an instruction, a register or a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is named as in PTX")]
pub enum Type {
    B8,
    B16,
    B32,
    B64,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    /// Two numbers of 8 bits, four of them for the exponent.
    E4m3x2,
    /// Two numbers of 8 bits, five of them for the exponent.
    E5m2x2,
    Tf32,
    F32,
    F64,
    Pred,
}

impl Type {
    /// The type of this name, without its dot.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "b8" => Self::B8,
            "b16" => Self::B16,
            "b32" => Self::B32,
            "b64" => Self::B64,
            "u8" => Self::U8,
            "u16" => Self::U16,
            "u32" => Self::U32,
            "u64" => Self::U64,
            "s8" => Self::S8,
            "s16" => Self::S16,
            "s32" => Self::S32,
            "s64" => Self::S64,
            "f16" => Self::F16,
            "f16x2" => Self::F16x2,
            "bf16" => Self::Bf16,
            "bf16x2" => Self::Bf16x2,
            "e4m3x2" => Self::E4m3x2,
            "e5m2x2" => Self::E5m2x2,
            "tf32" => Self::Tf32,
            "f32" => Self::F32,
            "f64" => Self::F64,
            "pred" => Self::Pred,
            _ => return None,
        })
    }

    /// Bytes of a value.
    #[must_use]
    pub fn bytes(self) -> u32 {
        match self {
            Self::B8 | Self::U8 | Self::S8 | Self::Pred => 1,
            Self::B16 | Self::U16 | Self::S16 | Self::F16 | Self::Bf16 | Self::E4m3x2 | Self::E5m2x2 => 2,
            Self::B64 | Self::U64 | Self::S64 | Self::F64 => 8,
            _ => 4,
        }
    }

    /// Bits of a value.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.bytes() * 8
    }

    /// The bits that a value may have set.
    #[must_use]
    pub fn mask(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }

    /// An integer with a sign.
    #[must_use]
    pub fn is_signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    /// A number with a binary point, or a pair of those.
    #[must_use]
    pub fn is_float(self) -> bool {
        matches!(
            self,
            Self::F16
                | Self::F16x2
                | Self::Bf16
                | Self::Bf16x2
                | Self::E4m3x2
                | Self::E5m2x2
                | Self::Tf32
                | Self::F32
                | Self::F64
        )
    }
}

/// Where a result goes that lies between two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// To the nearer, in the middle to the even one.
    Nearest,
    /// Towards zero.
    Zero,
    /// Towards minus infinity.
    Down,
    /// Towards plus infinity.
    Up,
    /// To the nearer, in the middle away from zero.
    Away,
}
