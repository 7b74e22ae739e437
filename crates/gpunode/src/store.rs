//! Fat binaries that outlive their session, by the hash of their bytes.

/// Where fat binaries are kept.
pub trait ImageStore: Send {
    /// The bytes with this hash, which fit it.
    fn find(&mut self, hash: &[u8; 32]) -> Option<Vec<u8>>;
    /// Keeps bytes that fit their hash; or not.
    fn keep(&mut self, hash: &[u8; 32], image: &[u8]);
    /// The hashes of what there is, for the client: [`find`](Self::find) finds each of them from then on, whatever goes meanwhile.
    fn hashes(&mut self) -> Vec<[u8; 32]>;
}

/// Keeps nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoStore;

impl ImageStore for NoStore {
    fn find(&mut self, _: &[u8; 32]) -> Option<Vec<u8>> {
        None
    }

    fn keep(&mut self, _: &[u8; 32], _: &[u8]) {}

    fn hashes(&mut self) -> Vec<[u8; 32]> {
        Vec::new()
    }
}
