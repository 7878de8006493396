//! numpy arrays over memory of a segment. The array keeps its base alive, and the base keeps the mapping.

use crate::convert::leaf::Leaf;
use crate::convert::numpy_types::ndarray_type;
use numpy::npyffi::{self, PY_ARRAY_API, npy_intp};
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use smallvec::SmallVec;
use std::ffi::c_int;

/// Whether a descriptor says the same as that of a leaf.
pub fn equal_dtypes(py: Python<'_>, descr: *mut npyffi::PyArray_Descr, leaf: &Leaf) -> bool {
    // SAFETY: the GIL is held, and both are descriptors, and alive.
    unsafe { PY_ARRAY_API.PyArray_EquivTypes(py, descr, leaf.descr.as_ptr().cast()) != 0 }
}

/// An array of one leaf: of one row when `rows` is `None`, otherwise of that many rows.
///
/// # Safety
/// `data` points to that many rows of the leaf, and stays mapped as long as `base` lives.
pub unsafe fn over<'py>(
    py: Python<'py>,
    leaf: &Leaf,
    rows: Option<usize>,
    data: *mut u8,
    base: &Bound<'py, PyAny>,
    writable: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let mut dims: SmallVec<[npy_intp; 4]> = SmallVec::new();
    dims.extend(rows.map(|n| n as npy_intp));
    dims.extend_from_slice(&leaf.shape);
    let flags = if writable { npyffi::NPY_ARRAY_WRITEABLE } else { 0 };
    // SAFETY: NewFromDescr steals the reference to the descriptor that we give it; SetBaseObject steals the one to the
    // base; dims has `nd` entries; the data is valid as the caller promises.
    unsafe {
        let descr = leaf.descr.clone_ref(py).into_ptr().cast();
        let array = PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            ndarray_type(py),
            descr,
            dims.len() as c_int,
            dims.as_mut_ptr(),
            std::ptr::null_mut(),
            data.cast(),
            flags,
            std::ptr::null_mut(),
        );
        let array = Bound::from_owned_ptr_or_err(py, array)?;
        if PY_ARRAY_API.PyArray_SetBaseObject(py, array.as_ptr().cast(), base.clone().into_ptr()) != 0 {
            return Err(PyErr::fetch(py));
        }
        Ok(array)
    }
}

/// The same memory as an array that may be written to, for libraries that know no read-only memory.
#[pyfunction]
pub fn writable_view<'py>(array: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let view = array.call_method0("view")?;
    let view_array = view.as_ptr().cast::<npyffi::PyArrayObject>();
    // SAFETY: the type is checked; the GIL is held.
    unsafe {
        if ffi::Py_TYPE(view.as_ptr()) != ndarray_type(array.py()) {
            return Err(PyTypeError::new_err("writable_view takes an array"));
        }
        (*view_array).fields.flags |= npyffi::NPY_ARRAY_WRITEABLE;
    }
    Ok(view)
}

/// Takes the right to write away from an array that we made.
pub fn make_read_only(array: &Bound<'_, PyAny>) {
    let array = array.as_ptr().cast::<npyffi::PyArrayObject>();
    // SAFETY: the array is an ndarray that `over` made; the GIL is held.
    unsafe { (*array).fields.flags &= !npyffi::NPY_ARRAY_WRITEABLE };
}
