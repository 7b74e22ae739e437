//! Files that commands read as a whole, none of which is long.

use crate::failure::Failure;
use std::fs::File;
use std::io::{Error, ErrorKind, Read};
use std::path::Path;

/// A file of at most so many bytes; a longer one, or one without an end as `/dev/zero`, is not read to its end.
///
/// # Errors
/// [`Failure`] for a file that cannot be read or is longer.
pub fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, Failure> {
    let failed = |error| Failure::file("reading", path, &error);
    let mut bytes = Vec::new();
    File::open(path).map_err(failed)?.take(bytes_max + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > bytes_max {
        return Err(Failure::new(
            format!("{} is longer than the {bytes_max} bytes that such a file may have", path.display()),
            "check the path: it is another file, or none",
        ));
    }
    Ok(bytes)
}

/// The same for text.
///
/// # Errors
/// As [`read`]; [`Failure`] for what is no text.
pub fn read_text(path: &Path, bytes_max: u64) -> Result<String, Failure> {
    let failed = |error| Failure::file("reading", path, &Error::new(ErrorKind::InvalidData, error));
    String::from_utf8(read(path, bytes_max)?).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_end_is_not_read_to_it() {
        let failure = read(Path::new("/dev/zero"), 1000).unwrap_err();
        assert!(failure.text.contains("longer than the 1000 bytes"), "{}", failure.text);
        assert!(read(Path::new("/dev/null"), 0).unwrap().is_empty());
        assert!(read_text(Path::new("/no/such/file"), 10).unwrap_err().text.contains("/no/such/file"));
    }
}
