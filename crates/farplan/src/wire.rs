//! Messages between the library in a program and its supervisor: 32 bytes each, little-endian words.
//!
//! | words | from | meaning |
//! | --- | --- | --- |
//! | `HELLO`, 0, probe address, `HELLO_` bits | program | a process begins; descriptors: the shared page, and its userfaultfd unless it is a child of `fork`. Said again without `HELLO_FIRST`, and without descriptors, once it has touched its probe |
//! | `MOVER`, 0, staging address, staging bytes | program | this connection takes orders; the answer brings the userfaultfd that the supervisor serves, which the program keeps open |
//! | `REGISTER`, address, bytes, 0 | program | new anonymous memory that may be far |
//! | `LIFT`, address, bytes, 0 | program | what was told of here is about to be unmapped, replaced or moved; no answer |
//! | `LAND`, address before, address, bytes | program | what lay at the address before lies here now and has this length |
//! | `RELEASE`, address, bytes, 0 | program | this memory is the kernel's from here on, with what it holds; asked again until the answer's second value is 0 |
//! | `PROGRAM`, 0, how it begins (`BEGINS_`), 0 | program | this process is about to become another program; descriptor: its file; no answer |
//! | `PRESENT`, 0, 0, 0 | program | the library is in the first process of the run; no answer |
//! | `CONNECT`, 0, 0, 0 | program | a further connection, for a process that cannot reach the socket; descriptor: its other end; no answer here |
//! | `DONE`, 1 if memory is under service, 1 if `RELEASE` is to be asked again, or `HELLO` said again behind a touch of the probe, 0 | supervisor | the answer to `HELLO`, `MOVER`, `REGISTER`, `LAND` and `RELEASE` |
//! | `TAKE`, address, bytes, place in the staging area | supervisor | move these pages to the staging area |
//! | `RUN`, epoch, number of orders, 0 | supervisor | do the orders sent before, unless the epoch has changed |
//! | `TAKEN`, address, bytes moved, error number | program | what became of one order, in order |
//! | `CLEAR`, 0, 0, 0 | supervisor | give the pages of the staging area back to the kernel; no answer |
//!
//! Which process says something the kernel tells of its connection (`SO_PEERCRED`): in a PID namespace of its own, a process has another number for itself.
//!
//! `LIFT` and `LAND` matter before memory is under service; from then on the kernel tells of such changes.

/// Bytes of a message.
pub const BYTES: usize = 32;
/// Offset of the layout epoch (8 bytes) in the shared page: odd while a call that takes memory away is under way.
pub const EPOCH_AT: usize = 0;
/// Offset of the layout lock (4 bytes) in the shared page.
pub const LOCK_AT: usize = 8;
/// Offset of the number of threads that are in `fork` (4 bytes) in the shared page.
pub const FORKS_AT: usize = 16;
/// Error number of an order that was not tried because the layout changed.
pub const STALE: u64 = 4095;
/// How a program begins: as the library finds it, without the library or the socket in its environment, where the socket cannot be reached, without
/// the right to a userfaultfd, or where a filter forbids system calls.
pub const BEGINS_WHOLE: u64 = 0;
/// See [`BEGINS_WHOLE`].
pub const BEGINS_BARE: u64 = 1;
/// See [`BEGINS_WHOLE`].
pub const BEGINS_CUT_OFF: u64 = 2;
/// See [`BEGINS_WHOLE`].
pub const BEGINS_WITHOUT_RIGHT: u64 = 3;
/// See [`BEGINS_WHOLE`].
pub const BEGINS_FILTERED: u64 = 4;
/// Of a greeting: the process has not touched its probe.
pub const HELLO_FIRST: u64 = 1;
/// Of a greeting: some memory of the program is hidden from its children, and a child must not be taken to have it.
pub const HELLO_APART: u64 = 2;
/// Orders in one run.
pub const ORDERS_MAX: usize = 512;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Kind {
    /// A process begins.
    Hello = 1,
    /// This connection takes orders.
    Mover = 2,
    /// New memory.
    Register = 3,
    /// An answer.
    Done = 4,
    /// An order.
    Take = 5,
    /// The end of a batch of orders.
    Run = 6,
    /// What became of an order.
    Taken = 7,
    /// Empty the staging area.
    Clear = 8,
    /// Memory is about to go or to move.
    Lift = 9,
    /// Memory has moved.
    Land = 10,
    /// Memory that may no longer be far.
    Release = 16,
    /// A process becomes another program.
    Program = 17,
    /// A further connection.
    Connect = 18,
    /// The library was loaded.
    Present = 19,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it is.
    pub kind: Kind,
    /// Its three words.
    pub words: [u64; 3],
}

impl Message {
    /// A message.
    pub const fn new(kind: Kind, words: [u64; 3]) -> Self {
        Self { kind, words }
    }

    /// Its bytes.
    pub fn to_bytes(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let words = [self.kind as u64, self.words[0], self.words[1], self.words[2]];
        for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        bytes
    }

    /// The message of these bytes; `None` for a kind that is not known.
    pub fn parse(bytes: &[u8; BYTES]) -> Option<Self> {
        let word = |index: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
            u64::from_le_bytes(eight)
        };
        let kind = match word(0) {
            1 => Kind::Hello,
            2 => Kind::Mover,
            3 => Kind::Register,
            4 => Kind::Done,
            5 => Kind::Take,
            6 => Kind::Run,
            7 => Kind::Taken,
            8 => Kind::Clear,
            9 => Kind::Lift,
            10 => Kind::Land,
            16 => Kind::Release,
            17 => Kind::Program,
            18 => Kind::Connect,
            19 => Kind::Present,
            _ => return None,
        };
        Some(Self { kind, words: [word(1), word(2), word(3)] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_and_unknown_kinds_do_not() {
        for kind in [
            Kind::Hello,
            Kind::Mover,
            Kind::Register,
            Kind::Done,
            Kind::Program,
            Kind::Connect,
            Kind::Present,
        ] {
            let message = Message::new(kind, [1, u64::MAX, 3]);
            assert_eq!(Message::parse(&message.to_bytes()), Some(message));
        }
        for kind in [Kind::Take, Kind::Run, Kind::Taken, Kind::Clear, Kind::Lift, Kind::Land, Kind::Release] {
            let message = Message::new(kind, [0, 1 << 40, 9]);
            assert_eq!(Message::parse(&message.to_bytes()), Some(message));
        }
        assert_eq!(Message::parse(&[0; BYTES]), None);
        assert_eq!(Message::parse(&[255; BYTES]), None);
    }
}
