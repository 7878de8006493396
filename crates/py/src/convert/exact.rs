//! Looks into Python objects without running Python code, so that pointers borrowed from them stay good meanwhile.

use crate::convert::leaf::Leaf;
use crate::convert::numpy_types::ndarray_type;
use numpy::npyffi::{self, npy_intp};
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ptr::null_mut;

/// Whether all keys of a dict are `str` itself. To look up a `str` in such a dict runs no Python code. A subclass may have
/// an `__eq__` or `__hash__` of its own, which can change the very dict.
///
/// # Safety
/// The GIL is held and `dict` is a dict, and alive.
pub unsafe fn has_str_keys(dict: *mut ffi::PyObject) -> bool {
    let (mut position, mut key) = (0, null_mut());
    // SAFETY: as the caller promises; nothing changes the dict meanwhile, and keys are alive while it is.
    unsafe {
        while ffi::PyDict_Next(dict, &mut position, &mut key, null_mut()) != 0 {
            if ffi::PyUnicode_CheckExact(key) == 0 {
                return false;
            }
        }
    }
    true
}

/// The dimensions and bytes of an array, if it is one itself, contiguous, and of the leaf's very dtype.
///
/// # Safety
/// The GIL is held, and `object` is alive as long as what is given back is used.
#[inline]
pub unsafe fn array_like<'a>(leaf: &Leaf, object: *mut ffi::PyObject) -> Option<(&'a [npy_intp], *const u8)> {
    // SAFETY: the type is checked first; an ndarray has these fields, and `nd` dimensions.
    unsafe {
        if ffi::Py_TYPE(object) as usize != leaf.ndarray {
            return None;
        }
        let array = &(*object.cast::<npyffi::PyArrayObject>()).fields;
        if array.descr.cast::<ffi::PyObject>() != leaf.descr.as_ptr()
            || array.flags & npyffi::NPY_ARRAY_C_CONTIGUOUS == 0
        {
            return None;
        }
        let dims = match array.nd {
            0 => &[][..], // NumPy gives no pointer then.
            nd => std::slice::from_raw_parts(array.dimensions, nd as usize),
        };
        Some((dims, array.data.cast_const().cast()))
    }
}

/// The bytes of an array that a schema's `conform` made, and its rows: its first dimension if it is `stacked`, else 1.
pub fn conformed(array: &Bound<'_, PyAny>, stacked: bool) -> PyResult<(*const u8, usize)> {
    // SAFETY: the GIL is held; the type is checked first; an ndarray has these fields, and `nd` dimensions.
    unsafe {
        if ffi::Py_TYPE(array.as_ptr()) != ndarray_type(array.py()) {
            return Err(PyTypeError::new_err("conform gave something else than an array"));
        }
        let fields = &(*array.as_ptr().cast::<npyffi::PyArrayObject>()).fields;
        let rows = match (stacked, fields.nd) {
            (false, _) => 1,
            (true, 0) => return Err(PyTypeError::new_err("conform gave an array without dimensions")),
            (true, _) => *fields.dimensions as usize,
        };
        Ok((fields.data.cast_const().cast(), rows))
    }
}
