//! Sizes as people read them: powers of 1024, short.

/// Letters of the units, each 1024 times the one before.
pub const UNITS: [char; 5] = ['K', 'M', 'G', 'T', 'P'];

/// Bytes for people: `17 B`, `1.5 GiB`; three digits at most, never rounded up to 1024.
pub fn human(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut letter = 'K';
    for unit in UNITS {
        value /= 1024.0;
        letter = unit;
        if value < 1023.5 {
            break;
        }
    }
    if value < 9.995 {
        format!("{value:.2} {letter}iB")
    } else if value < 99.95 {
        format!("{value:.1} {letter}iB")
    } else {
        format!("{value:.0} {letter}iB")
    }
}

#[cfg(test)]
mod tests {
    use super::human;

    #[test]
    fn people_read_at_most_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (1536, "1.50 KiB"),
            (10 << 20, "10.0 MiB"),
            ((1 << 20) - 1, "1.00 MiB"),
            (3 << 30, "3.00 GiB"),
            (999 << 30, "999 GiB"),
            (u64::MAX, "16384 PiB"),
        ] {
            assert_eq!(human(bytes), text);
        }
    }
}
