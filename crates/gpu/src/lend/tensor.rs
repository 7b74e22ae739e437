//! Tensor maps: by which kernels copy tiles of a tensor. What their bytes mean is the driver's own.

use super::{CallError, Lent};

/// A `CUtensorMap`.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy)]
pub struct TensorMap([u8; 128]);

/// A tensor and its tiles, by direction; numbers are those of `cuTensorMapEncodeTiled`.
#[derive(Debug, Clone, Copy)]
pub struct TensorShape<'sizes> {
    /// Where it lies.
    pub address: u64,
    /// What an element is.
    pub element: u32,
    /// Elements.
    pub sizes: &'sizes [u64],
    /// Bytes from one to the next, in all directions but the first.
    pub strides: &'sizes [u64],
    /// Elements of a tile.
    pub tile: &'sizes [u32],
    /// Elements from one of a tile to the next.
    pub steps: &'sizes [u32],
    /// How elements are interleaved.
    pub interleave: u32,
    /// How tiles lie in shared memory.
    pub swizzle: u32,
    /// How the cache reads ahead.
    pub promotion: u32,
    /// What lies outside of the tensor.
    pub fill: u32,
}

impl Lent {
    /// The bytes of a tensor map.
    ///
    /// # Errors
    /// The driver's. Sizes that are not as many as each other are nothing that it is asked for.
    pub fn tensor_map(&self, shape: &TensorShape<'_>) -> Result<[u8; 128], CallError> {
        let call = self.enter()?;
        let rank = shape.sizes.len();
        let is_whole =
            shape.strides.len() + 1 == rank && shape.tile.len() == rank && shape.steps.len() == rank;
        if !is_whole {
            // `CUDA_ERROR_INVALID_VALUE`.
            self.check("describing a tensor", 1)?;
        }
        let mut map = TensorMap([0; 128]);
        // SAFETY: the place is ours and aligned, and each array has as many elements as the rank says.
        let code = unsafe {
            (call.tensor_map)(
                &mut map,
                shape.element,
                // A rank that fits in no number is refused with the arrays.
                u32::try_from(rank).unwrap_or(0),
                shape.address,
                shape.sizes.as_ptr(),
                shape.strides.as_ptr(),
                shape.tile.as_ptr(),
                shape.steps.as_ptr(),
                shape.interleave,
                shape.swizzle,
                shape.promotion,
                shape.fill,
            )
        };
        self.check("describing a tensor", code)?;
        Ok(map.0)
    }
}
