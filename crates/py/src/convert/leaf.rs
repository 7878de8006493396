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

impl Leaf {
    /// Whether these are the dimensions of one sample. One by one: they are few, and a call to compare them costs more.
    #[inline]
    pub fn has_shape(&self, dims: &[npy_intp]) -> bool {
        dims.len() == self.shape.len() && dims.iter().zip(&self.shape).all(|(a, b)| a == b)
    }
}
