//! Whole numbers from Python. One that does not fit is an `InvalidArgument` that names it, not a bare `OverflowError`.
//!
//! An argument that users give is read by the function of its name: `#[pyo3(from_py_with = numbers::version)] version: u32`.
//! The ranges here are for what fits no machine word; of the rest the core says whether it makes sense.

use crate::errors::named;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use std::fmt::Display;

/// `value` as a `T`, or an error that says what it is and how large it may be.
#[inline]
pub fn fitting<'py, T: for<'a> FromPyObject<'a, 'py, Error = PyErr>>(
    value: &Bound<'py, PyAny>,
    what: impl Display,
    range: &str,
) -> PyResult<T> {
    value.extract().map_err(|error| explain(value, error, what, range))
}

#[cold]
fn explain(value: &Bound<'_, PyAny>, error: PyErr, what: impl Display, range: &str) -> PyErr {
    if !error.is_instance_of::<PyOverflowError>(value.py()) {
        return error;
    }
    // Python refuses to write out thousands of digits.
    let value_text = value.str().map_or_else(|_| "a very long number".to_owned(), |text| text.to_string());
    named(value.py(), "InvalidArgument", format!("{what} = {value_text} is out of range: {range}"))
}

/// One function for each argument.
macro_rules! arguments {
    ($($name:ident: $kind:ty, $range:literal;)*) => {
        $(pub fn $name(value: &Bound<'_, PyAny>) -> PyResult<$kind> {
            fitting(value, stringify!($name), $range)
        })*
    };
}

arguments! {
    at_least: Option<usize>, "0 to 2**64 - 1, or None";
    batch_size: usize, "1 to 8,388,607";
    budget: usize, "0 to 2**64 - 1";
    capacity: usize, "1 to 4,294,967,295";
    lane_bytes: usize, "1 to 2**63 - 1";
    lanes: usize, "1 to 1,024";
    max_buffers: usize, "3 to 256";
    max_bytes: Option<u64>, "0 to 2**64 - 1, or None";
    max_connections: usize, "1 to 2**64 - 1";
    max_groups: usize, "1 to 2**64 - 1";
    max_inflight_msgs: usize, "1 to 2**64 - 1";
    max_peers: usize, "1 to 1,024";
    max_records: usize, "2 to 16,777,216";
    max_staleness: Option<u32>, "0 to 4,294,967,295, or None";
    max_unacknowledged: Option<usize>, "1 to 2**64 - 1, or None";
    memory: usize, "0 to 2**64 - 1";
    most: usize, "1 to 2**64 - 1";
    num_buffers: usize, "2 to 65,535";
    port: u16, "0 to 65,535";
    producer_id: Option<u32>, "0 to 4,294,967,294, or None";
    rows: usize, "0 to 2**64 - 1";
    seed: Option<u64>, "0 to 2**64 - 1, or None";
    since: u64, "0 to 2**64 - 1";
    size: usize, "1 to 2**64 - 1";
    staging_bytes: usize, "0 to 2**64 - 1";
    threads: Option<usize>, "1 to 2**64 - 1, or None";
    version: u32, "0 to 4,294,967,295";
}

/// The version of weights, which is counted further than a sample tells.
pub fn weights_version(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    fitting(value, "version", "0 to 2**64 - 1")
}
