//! How many bytes the tensor types of GGUF take.

/// Elements and bytes of one block of a type, or `None` for a number that no known type has.
///
/// The numbers are those of `ggml_type`; those that were given up keep their meaning for old files. Q8_1 (9)
/// is absent because its size has changed; no file holds it, as it exists only within a multiplication.
pub(super) const fn block_of(ggml_type: u32) -> Option<(u64, u64)> {
    Some(match ggml_type {
        0 => (1, 4),              // F32
        1 => (1, 2),              // F16
        2 => (32, 18),            // Q4_0
        3 => (32, 20),            // Q4_1
        6 => (32, 22),            // Q5_0
        7 => (32, 24),            // Q5_1
        8 => (32, 34),            // Q8_0
        10 => (256, 84),          // Q2_K
        11 => (256, 110),         // Q3_K
        12 => (256, 144),         // Q4_K
        13 => (256, 176),         // Q5_K
        14 => (256, 210),         // Q6_K
        15 => (256, 292),         // Q8_K
        16 => (256, 66),          // IQ2_XXS
        17 => (256, 74),          // IQ2_XS
        18 => (256, 98),          // IQ3_XXS
        19 => (256, 50),          // IQ1_S
        20 | 36..=38 => (32, 18), // IQ4_NL and its interleaved forms
        21 => (256, 110),         // IQ3_S
        22 => (256, 82),          // IQ2_S
        23 => (256, 136),         // IQ4_XS
        24 => (1, 1),             // I8
        25 | 30 => (1, 2),        // I16, BF16
        26 => (1, 4),             // I32
        27 | 28 => (1, 8),        // I64, F64
        29 => (256, 56),          // IQ1_M
        31..=33 => (32, 18),      // interleaved forms of Q4_0
        34 => (256, 54),          // TQ1_0
        35 => (256, 66),          // TQ2_0
        39 => (32, 17),           // MXFP4
        40 => (64, 36),           // NVFP4
        41 => (128, 18),          // Q1_0
        _ => return None,
    })
}

/// Bytes of a tensor, or `None` if the type is unknown, its blocks do not divide a row, or the product overflows.
pub(super) fn tensor_bytes(ggml_type: u32, dimensions: &[u64]) -> Option<u64> {
    let (block_elements, block_bytes) = block_of(ggml_type)?;
    let row_elements = dimensions.first().copied().unwrap_or(1);
    if !row_elements.is_multiple_of(block_elements) {
        return None;
    }
    let row_bytes = (row_elements / block_elements).checked_mul(block_bytes)?;
    dimensions.iter().skip(1).try_fold(row_bytes, |bytes, &length| bytes.checked_mul(length))
}
