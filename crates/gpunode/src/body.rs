//! The bytes of a command, wherever they lie.

use hinterland_channel::Frame;
use hinterland_os::SharedSlice;

/// Bytes that came with a command. They may lie in memory that the sender can still change: whoever believes something of
/// them copies it first.
#[derive(Clone, Copy, Debug)]
pub enum Body<'body> {
    /// In memory of our own.
    Own(&'body [u8]),
    /// In a frame of a channel, most of which lies in memory that the sender has mapped as well.
    Frame {
        /// The frame.
        frame: &'body Frame<'body>,
        /// Where they begin.
        at: usize,
        /// How many there are; within the frame.
        bytes: usize,
    },
}

impl<'body> Body<'body> {
    /// All of a frame.
    pub fn of(frame: &'body Frame<'body>) -> Self {
        Self::Frame { frame, at: 0, bytes: frame.len() }
    }

    /// How many there are.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Own(slice) => slice.len(),
            Self::Frame { bytes, .. } => bytes,
        }
    }

    /// What lies behind the first `at` bytes.
    pub fn tail(self, at: usize) -> Self {
        let skipped = at.min(self.bytes());
        self.part(skipped, self.bytes() - skipped)
    }

    /// `bytes` bytes from `at` on, or as many as there are.
    pub fn part(self, at: usize, bytes: usize) -> Self {
        let at_most = self.bytes();
        let start = at.min(at_most);
        let bytes = bytes.min(at_most - start);
        match self {
            Self::Own(slice) => Self::Own(&slice[start..start + bytes]),
            Self::Frame { frame, at, .. } => Self::Frame { frame, at: at + start, bytes },
        }
    }

    /// Copies the first ones, as many as `to` has; what is missing becomes zero.
    pub fn read(self, to: &mut [u8]) {
        let bytes = to.len().min(self.bytes());
        let (known, missing) = to.split_at_mut(bytes);
        missing.fill(0);
        match self {
            Self::Own(slice) => known.copy_from_slice(&slice[..bytes]),
            Self::Frame { frame, at, .. } => {
                if frame.read_at(at, known).is_err() {
                    known.fill(0);
                }
            }
        }
    }

    /// All of it.
    pub fn to_vec(self) -> Vec<u8> {
        let mut all = Vec::new();
        self.append_to(&mut all);
        all
    }

    /// Puts all of it behind what `to` has.
    pub fn append_to(self, to: &mut Vec<u8>) {
        let before = to.len();
        to.resize(before + self.bytes(), 0);
        self.read(&mut to[before..]);
    }

    /// Copies all of it to a place in shared memory; false if it does not fit there.
    pub fn read_into(self, to: &SharedSlice, to_at: usize) -> bool {
        match self {
            Self::Own(part) => to.write_at(to_at, part).is_ok(),
            Self::Frame { frame, at, bytes } => frame.copy_to(at, to, to_at, bytes).is_ok(),
        }
    }
}
