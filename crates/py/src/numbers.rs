//! Whole numbers from Python, checked: out of range is an `InvalidArgument` that names it.

use crate::errors::named;
use pyo3::prelude::*;

/// `value` as a `T`, or an error that says what it is and how large it may be.
pub fn number<T: TryFrom<i64>>(py: Python<'_>, what: &'static str, value: i64, range: &str) -> PyResult<T> {
    T::try_from(value).map_err(|_| {
        let message = format!("{what} = {value} is out of range: {range}");
        named(py, "InvalidArgument", message)
    })
}

/// The range of a port.
pub const PORTS: &str = "0 to 65,535";
