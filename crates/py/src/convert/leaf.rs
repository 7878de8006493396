//! One array of a schema, as numpy knows it.

use numpy::npyffi::npy_intp;
use pyo3::prelude::*;

/// One array of a sample.
pub struct Leaf {
    pub descr: Py<PyAny>,
    pub shape: Vec<npy_intp>,
    /// Of one sample.
    pub bytes: usize,
}
