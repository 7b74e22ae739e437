//! Whole numbers as programs pass them: one that is out of range is refused with the range. Which argument it was, the call adds as a note.

use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;

/// A number from `MIN` to `MAX`, for `from_py_with`.
///
/// # Errors
/// `ValueError` for a number out of range, `TypeError` for what is no whole number.
pub(crate) fn whole<const MIN: u64, const MAX: u64, T: TryFrom<u64>>(
    object: &Bound<'_, PyAny>,
) -> PyResult<T> {
    let number = match object.extract::<u64>() {
        Ok(number) => Some(number).filter(|number| (MIN..=MAX).contains(number)),
        Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => None,
        Err(error) => return Err(error),
    };
    number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| {
        let shown: String = object.str().map_or_else(|_| "a number".to_owned(), |text| text.to_string());
        let shown: String = shown.chars().take(40).collect();
        PyValueError::new_err(format!("{shown} is out of range (hint: {MIN} to {MAX} are possible)"))
    })
}

/// The same, or `None`.
///
/// # Errors
/// As [`whole`].
pub(crate) fn whole_if_any<const MIN: u64, const MAX: u64, T: TryFrom<u64>>(
    object: &Bound<'_, PyAny>,
) -> PyResult<Option<T>> {
    if object.is_none() { Ok(None) } else { whole::<MIN, MAX, T>(object).map(Some) }
}

/// A list of numbers, each of which fits.
///
/// # Errors
/// As [`whole`].
pub(crate) fn all_whole<T: TryFrom<u64>>(object: &Bound<'_, PyAny>) -> PyResult<Vec<T>> {
    let refused = || {
        let most = if size_of::<T>() < size_of::<u64>() { u64::from(u32::MAX) } else { u64::MAX };
        PyValueError::new_err(format!("a number of a list is out of range (hint: 0 to {most} are possible)"))
    };
    let numbers = object.extract::<Vec<u64>>().map_err(|error| {
        if error.is_instance_of::<PyOverflowError>(object.py()) { refused() } else { error }
    })?;
    numbers.into_iter().map(|number| T::try_from(number).map_err(|_| refused())).collect()
}

/// The same, or `None`.
///
/// # Errors
/// As [`whole`].
pub(crate) fn all_whole_if_any<T: TryFrom<u64>>(object: &Bound<'_, PyAny>) -> PyResult<Option<Vec<T>>> {
    if object.is_none() { Ok(None) } else { all_whole(object).map(Some) }
}

/// A list of such lists.
///
/// # Errors
/// As [`whole`].
pub(crate) fn lists_of_whole<T: TryFrom<u64>>(object: &Bound<'_, PyAny>) -> PyResult<Vec<Vec<T>>> {
    object.extract::<Vec<Bound<'_, PyAny>>>()?.iter().map(all_whole).collect()
}

/// Any number of bytes, and any place among them.
///
/// # Errors
/// As [`whole`].
pub(crate) fn count(object: &Bound<'_, PyAny>) -> PyResult<u64> {
    whole::<0, { u64::MAX }, u64>(object)
}

/// The same, or `None`.
///
/// # Errors
/// As [`whole`].
pub(crate) fn count_if_any(object: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    whole_if_any::<0, { u64::MAX }, u64>(object)
}
