//! Memory that a block is gathered from or scattered to: runs of equal fragments, checked once.

use crate::PoolError;
use std::marker::PhantomData;

const EINVAL: i32 = 22;

/// Fragments of equal length at equal distances, in their order. A block of an engine that keeps 128 layers apart is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Run {
    /// Where the first fragment starts: an offset in the memory that the list is over, or an address.
    pub start: usize,
    /// Bytes of a fragment.
    pub bytes: usize,
    /// From the start of a fragment to the start of the next one, in bytes.
    pub stride: isize,
    /// Fragments.
    pub count: usize,
}

impl Run {
    /// One fragment.
    pub const fn single(start: usize, bytes: usize) -> Self {
        Self { start, bytes, stride: 0, count: 1 }
    }

    /// First byte and end of all that it reaches; `None` if that is no range of addresses.
    fn reach(&self) -> Option<(usize, usize)> {
        let steps = isize::try_from(self.count.checked_sub(1)?).ok()?;
        let last = self.start.checked_add_signed(self.stride.checked_mul(steps)?)?;
        let (low, high) = (self.start.min(last), self.start.max(last));
        Some((low, high.checked_add(self.bytes)?))
    }

    fn is_empty(&self) -> bool {
        self.count == 0 || self.bytes == 0
    }
}

/// Bytes of runs together, when each lies between 0 and `end`.
pub(super) fn checked(runs: &[Run], end: usize) -> Result<u64, PoolError> {
    let mut total = 0_u64;
    for run in runs.iter().filter(|run| !run.is_empty()) {
        let fits = run.reach().is_some_and(|(_, high)| high <= end);
        let bytes =
            (run.bytes as u64).checked_mul(run.count as u64).and_then(|bytes| total.checked_add(bytes));
        match bytes {
            Some(bytes) if fits => total = bytes,
            _ => {
                let text = format!(
                    "{} fragments of {} bytes from {} on, {} apart, reach beyond the memory (hint: check start, bytes, stride and count)",
                    run.count, run.bytes, run.start, run.stride
                );
                return Err(PoolError::Refused { code: EINVAL, text });
            }
        }
    }
    Ok(total)
}

/// Where the runs of a list start from.
#[derive(Clone, Copy)]
enum Base {
    Memory(*mut u8),
    Addresses,
}

impl Base {
    fn pointer(self, start: usize) -> *mut u8 {
        match self {
            Self::Memory(first) => first.wrapping_add(start),
            Self::Addresses => std::ptr::with_exposed_provenance_mut(start),
        }
    }
}

/// The starts of the fragments of a run.
fn starts(run: &Run) -> impl Iterator<Item = usize> + use<> {
    let Run { start, stride, count, bytes } = *run;
    let count = if bytes == 0 { 0 } else { count };
    // The last one was checked to be an address, so all before it are.
    (0..count).map(move |index| start.wrapping_add_signed(stride.wrapping_mul(index as isize)))
}

/// Memory that a block is gathered from.
#[derive(Clone, Copy)]
pub struct Gather<'memory> {
    base: Base,
    runs: &'memory [Run],
    bytes: u64,
    memory: PhantomData<&'memory [u8]>,
}

impl<'memory> Gather<'memory> {
    /// Runs whose starts are offsets in `memory`.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if one reaches beyond it.
    pub fn within(memory: &'memory [u8], runs: &'memory [Run]) -> Result<Self, PoolError> {
        let bytes = checked(runs, memory.len())?;
        Ok(Self { base: Base::Memory(memory.as_ptr().cast_mut()), runs, bytes, memory: PhantomData })
    }

    /// Runs whose starts are addresses (pointers whose provenance was exposed).
    ///
    /// # Errors
    /// [`PoolError::Refused`] for a run that cannot be in memory.
    ///
    /// # Safety
    /// Every fragment is memory that may be read as long as the list is used. Who writes it at the same time gets some
    /// mixture stored.
    pub unsafe fn of_addresses(runs: &'memory [Run]) -> Result<Self, PoolError> {
        let bytes = checked(runs, isize::MAX as usize)?;
        Ok(Self { base: Base::Addresses, runs, bytes, memory: PhantomData })
    }

    /// Bytes of all fragments.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The fragments in their order.
    pub(crate) fn pieces(self) -> impl Iterator<Item = &'memory [u8]> {
        self.runs.iter().flat_map(move |run| {
            starts(run).map(move |start| {
                // SAFETY: the run was checked to lie in the memory that is borrowed, or whoever made the list promised that
                // it may be read.
                unsafe { std::slice::from_raw_parts(self.base.pointer(start), run.bytes) }
            })
        })
    }
}

/// Memory that a block is scattered to. Fragments may overlap: later bytes of the block win.
pub struct Scatter<'memory> {
    base: Base,
    runs: &'memory [Run],
    bytes: u64,
    memory: PhantomData<&'memory mut [u8]>,
}

impl<'memory> Scatter<'memory> {
    /// Runs whose starts are offsets in `memory`.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if one reaches beyond it.
    pub fn within(memory: &'memory mut [u8], runs: &'memory [Run]) -> Result<Self, PoolError> {
        let bytes = checked(runs, memory.len())?;
        Ok(Self { base: Base::Memory(memory.as_mut_ptr()), runs, bytes, memory: PhantomData })
    }

    /// Runs whose starts are addresses (pointers whose provenance was exposed).
    ///
    /// # Errors
    /// [`PoolError::Refused`] for a run that cannot be in memory.
    ///
    /// # Safety
    /// Every fragment is memory that may be written, and that nobody else uses, as long as the list is used.
    pub unsafe fn of_addresses(runs: &'memory [Run]) -> Result<Self, PoolError> {
        let bytes = checked(runs, isize::MAX as usize)?;
        Ok(Self { base: Base::Addresses, runs, bytes, memory: PhantomData })
    }

    /// Bytes of all fragments.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Hands each fragment to `fill`, in their order, until it says that there is no more.
    pub(crate) fn fill(&mut self, mut fill: impl FnMut(&mut [u8]) -> bool) {
        for run in self.runs {
            for start in starts(run) {
                // SAFETY: the run was checked to lie in the memory that is borrowed, or whoever made the list promised that
                // it may be written; one fragment at a time is referred to, so that those that overlap never both are.
                let piece = unsafe { std::slice::from_raw_parts_mut(self.base.pointer(start), run.bytes) };
                if !fill(piece) {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: usize, bytes: usize, stride: isize, count: usize) -> Run {
        Run { start, bytes, stride, count }
    }

    #[test]
    fn fragments_come_in_the_order_of_the_runs() {
        let memory: Vec<u8> = (0..100).collect();
        let runs =
            [run(10, 2, 20, 3), Run::single(0, 1), run(9, 1, -4, 3), run(50, 0, 7, 9), run(0, 5, 1, 0)];
        let gather = Gather::within(&memory, &runs).unwrap();
        assert_eq!(gather.bytes(), 10);
        let pieces: Vec<&[u8]> = gather.pieces().collect();
        assert_eq!(pieces, [&[10, 11][..], &[30, 31], &[50, 51], &[0], &[9], &[5], &[1]]);
    }

    #[test]
    fn a_scatter_that_is_full_early_stops() {
        let mut memory = [0_u8; 12];
        let runs = [run(0, 2, 4, 3)];
        let mut left = 2;
        Scatter::within(&mut memory, &runs).unwrap().fill(|piece| {
            piece.fill(7);
            left -= 1;
            left > 0
        });
        assert_eq!(memory, [7, 7, 0, 0, 7, 7, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn runs_beyond_the_memory_are_refused() {
        let memory = [0; 16];
        for wrong in [
            run(15, 2, 0, 1),
            run(0, 4, 8, 3),
            run(4, 4, -5, 2),
            run(usize::MAX, 2, 1, 2),
            run(0, usize::MAX, 0, 2),
            run(0, 1, isize::MAX, 3),
            run(0, 1, isize::MIN, 2),
            run(0, 1, 0, usize::MAX),
        ] {
            let error = Gather::within(&memory, &[wrong]).err();
            assert!(error.is_some_and(|error| error.to_string().contains("hint:")), "{wrong:?}");
        }
        assert_eq!(Gather::within(&memory, &[run(12, 4, -4, 4)]).unwrap().bytes(), 16);
    }
}
