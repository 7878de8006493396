//! One array of a schema, as numpy knows it.

use crate::convert::numpy_types::ndarray_type;
use crate::convert::scalar::Number;
use numpy::npyffi::npy_intp;
use pyo3::prelude::*;

/// One array of a sample.
pub struct Leaf {
    pub descr: Py<PyAny>,
    pub shape: Vec<npy_intp>,
    /// Of one sample.
    pub bytes: usize,
    /// What it holds; `None`: something else than numbers in this machine's byte order.
    pub number: Option<Number>,
    /// Arrays of another dtype of the same kind are converted.
    pub casts: bool,
    /// The address of numpy's type for arrays.
    pub ndarray: usize,
}

impl Leaf {
    pub fn new(py: Python<'_>, descr: Py<PyAny>, shape: Vec<npy_intp>, bytes: usize) -> PyResult<Leaf> {
        let number = Number::of(descr.bind(py))?;
        Ok(Leaf { descr, shape, bytes, number, casts: false, ndarray: ndarray_type(py) as usize })
    }

    /// The same leaf, which converts arrays or refuses them.
    pub fn casting(self, casts: bool) -> Leaf {
        Leaf { casts, ..self }
    }

    /// Whether these are the dimensions of one sample. One by one: they are few, and a call to compare them costs more.
    #[inline]
    pub fn has_shape(&self, dims: &[npy_intp]) -> bool {
        dims.len() == self.shape.len() && dims.iter().zip(&self.shape).all(|(a, b)| a == b)
    }
}
