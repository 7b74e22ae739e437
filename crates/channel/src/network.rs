//! A channel over TCP: a ring of this process in each direction, and segments of it on the connection between.

pub(crate) mod intake;
pub(crate) mod pump;
pub(crate) mod segment;
pub(crate) mod socket;
