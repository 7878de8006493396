//! The types and dtypes that numpy itself defines.

use numpy::npyffi::{self, NpyTypes, PY_ARRAY_API};
use pyo3::ffi;
use pyo3::prelude::*;
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
