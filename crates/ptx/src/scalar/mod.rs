//! What instructions compute for one lane: functions of up to four operands, found by name and type.

pub(crate) mod bits;
pub(crate) mod compare;
pub(crate) mod convert;
pub(crate) mod float;
pub(crate) mod half;
pub(crate) mod integer;
pub(crate) mod soft;
