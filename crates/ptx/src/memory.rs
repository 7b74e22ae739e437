//! Device memory as a kernel sees it, and a piece of it in a vector.

/// Nothing lies at the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IllegalAddress;

/// Global memory. Addresses below 2^56 reach it; those above belong to the windows of other spaces.
pub trait Memory {
    /// Copies bytes out of memory.
    ///
    /// # Errors
    /// When any of them is not there.
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), IllegalAddress>;

    /// Copies bytes into memory.
    ///
    /// # Errors
    /// When any of them is not there.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), IllegalAddress>;

    /// Replaces the number of 2, 4 or 8 bytes at a multiple of its size by what `change` makes of it, in one step, and
    /// returns the old one. Memory that other threads write at the same time has to do this with the machine's atomics;
    /// `change` may be called more than once.
    ///
    /// # Errors
    /// When any of its bytes is not there.
    fn update(
        &mut self,
        address: u64,
        size: u32,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, IllegalAddress> {
        let mut bytes = [0; 8];
        let kept = bytes.get_mut(..size as usize).ok_or(IllegalAddress)?;
        self.read(address, kept)?;
        let old = u64::from_le_bytes(bytes);
        self.write(address, &change(old).to_le_bytes()[..size as usize])?;
        Ok(old)
    }

    /// Takes what a thread printed, at most 4096 bytes of any encoding; it is dropped unless this is overridden.
    fn print(&mut self, text: &[u8]) {
        let _ = text;
    }
}

/// Memory that begins at some address, for tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlatMemory {
    /// The address of the first byte.
    pub base: u64,
    /// All bytes.
    pub bytes: Vec<u8>,
    /// What kernels have printed.
    pub printed: Vec<u8>,
}

impl FlatMemory {
    /// So many zeros from `base` on.
    #[must_use]
    pub fn new(base: u64, bytes: usize) -> Self {
        Self { base, bytes: vec![0; bytes], printed: Vec::new() }
    }

    fn place(&self, address: u64, length: usize) -> Result<std::ops::Range<usize>, IllegalAddress> {
        let start = address
            .checked_sub(self.base)
            .and_then(|start| usize::try_from(start).ok())
            .ok_or(IllegalAddress)?;
        let end = start.checked_add(length).filter(|&end| end <= self.bytes.len()).ok_or(IllegalAddress)?;
        Ok(start..end)
    }
}

impl Memory for FlatMemory {
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), IllegalAddress> {
        let place = self.place(address, bytes.len())?;
        bytes.copy_from_slice(&self.bytes[place]);
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), IllegalAddress> {
        let place = self.place(address, bytes.len())?;
        self.bytes[place].copy_from_slice(bytes);
        Ok(())
    }

    fn print(&mut self, text: &[u8]) {
        self.printed.extend_from_slice(text);
    }
}
