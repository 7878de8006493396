//! numpy arrays over memory of a segment. The array keeps its base alive, and the base keeps the mapping.

use crate::convert::leaf::Leaf;
use numpy::npyffi::{self, NpyTypes, PY_ARRAY_API, npy_intp};
use pyo3::ffi;
use pyo3::prelude::*;
use smallvec::SmallVec;
use std::ffi::c_int;

/// The type object of `numpy.ndarray`.
pub fn ndarray_type(py: Python<'_>) -> *mut ffi::PyTypeObject {
    // SAFETY: the GIL is held, and numpy's API table is loaded on first use.
    unsafe { npyffi::get_type_object(py, NpyTypes::PyArray_Type) }
}

/// Whether a descriptor is numpy's own for a type.
pub fn is_of_type(py: Python<'_>, descr: *mut npyffi::PyArray_Descr, kind: npyffi::NPY_TYPES) -> bool {
    // SAFETY: the GIL is held; we give back the reference that we are given. Numpy's own descriptors live for ever.
    unsafe {
        let own = PY_ARRAY_API.PyArray_DescrFromType(py, kind as c_int);
        ffi::Py_DecRef(own.cast());
        descr == own
    }
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

/// Takes the right to write away from an array that we made.
pub fn make_read_only(array: &Bound<'_, PyAny>) {
    let array = array.as_ptr().cast::<npyffi::PyArrayObject>();
    // SAFETY: the array is an ndarray that `over` made; the GIL is held.
    unsafe { (*array).fields.flags &= !npyffi::NPY_ARRAY_WRITEABLE };
}

/// A numpy scalar as an array without dimensions. `None` when it is no scalar, or of a class that was made in Python, whose
/// code would run.
///
/// # Safety
/// The GIL is held and `object` is alive.
pub unsafe fn of_scalar<'py>(py: Python<'py>, object: *mut ffi::PyObject) -> Option<Bound<'py, PyAny>> {
    // SAFETY: as the caller promises; the type is checked first, and we own the array that is made.
    unsafe {
        let scalars = npyffi::get_type_object(py, NpyTypes::PyGenericArrType_Type);
        let is_of_class = ffi::PyType_GetFlags(ffi::Py_TYPE(object)) & ffi::Py_TPFLAGS_HEAPTYPE != 0;
        if is_of_class || ffi::PyObject_TypeCheck(object, scalars) == 0 {
            return None;
        }
        let array = PY_ARRAY_API.PyArray_FromScalar(py, object, std::ptr::null_mut());
        Bound::from_owned_ptr_or_err(py, array).ok()
    }
}
