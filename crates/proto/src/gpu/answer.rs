//! Answers: what a node sends back, pushed as soon as it is there.

use super::fields::messages;

/// Libraries whose error numbers a [`Fault`] or [`Answer`] can carry.
pub mod library {
    /// The driver, whose numbers the runtime shares.
    pub const DRIVER: u32 = 0;
    /// cuBLAS.
    pub const BLAS: u32 = 1;
}

messages! {
    /// Any answer.
    AnswerMessage {
        /// The work before a mark is done, and all bytes that it copied out have been sent.
        0x01 Reached { mark: u64, error: i32 }
        /// Bytes of a transfer, which lie at `offset` of it, in the tail. With an error there are none, and no more come.
        0x02 Bytes + tail { transfer: u32, error: i32, offset: u64 }
        /// What was asked, in the tail; empty with an error.
        0x03 Answer + tail { question: u32, error: i32 }
        /// A command failed, counted from 1 in the order of sending, and why, in words, in the tail. `sticky` is 1 if the device is of no more use to this
        /// session.
        0x04 Fault + tail { error: i32, library: u32, sticky: u32, command: u64 }
        /// What threads of a kernel printed, in the tail: the program's standard output gets it before the next mark is reached.
        0x05 Printed + tail { flags: u32 }
    }
}
