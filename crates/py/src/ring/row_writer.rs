//! `RowWriter`: writes single items into rows of arrays of our own.

use crate::convert::leaf::Leaf;
use crate::convert::plan::Plan;
use crate::convert::rows::Rows;
use crate::convert::value::Dims;
use numpy::npyffi;
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use smallvec::SmallVec;

/// `RowWriter(plan, arrays)`: one array for each leaf of the plan, of its dtype; each item takes `leaf.bytes` of it.
#[pyclass(frozen, module = "rollway._core")]
pub struct RowWriter {
    plan: Py<Plan>,
    arrays: Vec<Py<PyAny>>,
}

#[pymethods]
impl RowWriter {
    #[new]
    fn new(plan: Py<Plan>, arrays: Vec<Py<PyAny>>) -> PyResult<RowWriter> {
        if arrays.len() != plan.get().leaves.len() {
            return Err(PyValueError::new_err("one array for each leaf"));
        }
        Ok(RowWriter { plan, arrays })
    }

    /// Writes an item into row `row` of all arrays. False: Python has to convert it, and nothing is written.
    fn write(&self, py: Python<'_>, row: usize, item: &Bound<'_, PyAny>) -> PyResult<bool> {
        let plan = self.plan.get();
        let Some(rows) = Rows::found(plan, item, Dims::Fixed) else { return Ok(false) };
        // SAFETY: the GIL is held, and no Python code runs from here on.
        let places: Option<SmallVec<[*mut u8; 16]>> = unsafe {
            self.arrays.iter().zip(&plan.leaves).map(|(array, leaf)| place(py, array, leaf, row)).collect()
        };
        let Some(places) = places else { return Ok(false) };
        for (index, (to, leaf)) in places.into_iter().zip(&plan.leaves).enumerate() {
            // SAFETY: the place has room for the leaf, and the source has its bytes. They may overlap.
            unsafe { std::ptr::copy(rows.leaf(index), to, leaf.bytes) };
        }
        Ok(true)
    }
}

/// Where a row of an array lies; `None` when it is no array of ours any more.
///
/// # Safety
/// The GIL is held.
unsafe fn place(py: Python<'_>, array: &Py<PyAny>, leaf: &Leaf, row: usize) -> Option<*mut u8> {
    // SAFETY: the type is checked first; an ndarray has these fields, and `nd` dimensions.
    unsafe {
        if ffi::Py_TYPE(array.as_ptr()) as usize != leaf.ndarray {
            return None;
        }
        let fields = &(*array.as_ptr().cast::<npyffi::PyArrayObject>()).fields;
        let needed = npyffi::NPY_ARRAY_C_CONTIGUOUS | npyffi::NPY_ARRAY_WRITEABLE;
        let has_dtype = fields.descr.cast::<ffi::PyObject>() == leaf.descr.as_ptr();
        let items = (0..fields.nd as usize).map(|index| *fields.dimensions.add(index) as usize);
        let bytes = items.product::<usize>() * npyffi::PyDataType_ELSIZE(py, fields.descr) as usize;
        let end = row.checked_add(1)?.checked_mul(leaf.bytes)?;
        (has_dtype && fields.flags & needed == needed && end <= bytes)
            .then(|| fields.data.cast::<u8>().add(row * leaf.bytes))
    }
}
