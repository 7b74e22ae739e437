//! A channel over TCP: a ring of this process in each direction, and parcels of it on the connection between.

pub(crate) mod intake;
pub(crate) mod parcel;
pub(crate) mod pump;
pub(crate) mod socket;
