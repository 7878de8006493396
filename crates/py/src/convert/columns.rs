//! The columns of one add: where the bytes of each field are, found natively when they are arrays.

use crate::convert::leaf::Leaf;
use crate::convert::numpy_types::{is_of_type, ndarray_type};
use crate::convert::value::{Dims, Scratch, Wanted};
use numpy::npyffi::{self, PY_ARRAY_API, npy_intp};
use pyo3::exceptions::PyRuntimeWarning;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rollway_core::replay::{Patch, Source};

/// The sources of an add, and the arrays that were converted for it.
pub struct Columns {
    pub sources: Vec<Source>,
    pub rows: usize,
    _scratch: Scratch,
}

/// One array: its bytes, from row to row.
struct Column {
    data: *const u8,
    stride: isize,
    rows: usize,
}

impl Columns {
    /// The arrays of `columns`, one for each field, checked against it. `None` when one of them has another shape or kind: then
    /// Python converts it or objects. The tuples keep what they hold alive.
    pub fn of(
        fields: &[Leaf],
        columns: &Bound<'_, PyTuple>,
        mask: Option<&Bound<'_, PyAny>>,
        patches: Option<&Bound<'_, PyTuple>>,
    ) -> PyResult<Option<Columns>> {
        let mut scratch = Scratch::default();
        let mut sources = Vec::with_capacity(fields.len());
        let mut rows = None;
        if columns.len() != fields.len() || patches.is_some_and(|patches| patches.len() != fields.len()) {
            return Ok(None);
        }
        for (index, field) in fields.iter().enumerate() {
            let Some(column) = column(field, &*columns.get_borrowed_item(index)?, &mut scratch)? else {
                return Ok(None);
            };
            if *rows.get_or_insert(column.rows) != column.rows {
                return Ok(None);
            }
            sources.push(Source { data: column.data, stride: column.stride, patch: None });
        }
        let rows = rows.unwrap_or(0);
        if let (Some(mask), Some(patches)) = (mask, patches) {
            let Some(mask) = flags(mask) else { return Ok(None) };
            for (index, field) in fields.iter().enumerate() {
                let patch = patches.get_borrowed_item(index)?;
                if patch.is_none() {
                    continue;
                }
                let Some(patch) = column(field, &patch, &mut scratch)? else { return Ok(None) };
                if patch.rows != rows || mask.rows != rows {
                    return Ok(None);
                }
                let (data, stride) = (patch.data, patch.stride);
                sources[index].patch =
                    Some(Patch { mask: mask.data, mask_stride: mask.stride, data, stride });
            }
        }
        Ok(Some(Columns { sources, rows, _scratch: scratch }))
    }
}

/// One field's rows: an array with the field's shape behind its first dimension, or what [`Scratch`] makes one of. An array
/// of another dtype of the same kind, or with rows in pieces, is converted by numpy, where all numbers fit; Python looks at
/// what may not.
#[inline]
fn column(field: &Leaf, object: &Bound<'_, PyAny>, scratch: &mut Scratch) -> PyResult<Option<Column>> {
    let py = object.py();
    // SAFETY: the GIL is held and `object` is alive; its type is checked before its fields are read.
    let Some((found, plain)) = (unsafe { plain_column(field, object.as_ptr(), ndarray_type(py)) }) else {
        return Ok(other_column(field, object, scratch));
    };
    if plain {
        return Ok(Some(found));
    }
    // SAFETY: `object` is an ndarray, by the check above. FromAny steals the reference to the descriptor that it is given.
    let (exact, safe) = unsafe {
        let (from, to) = (array(object.as_ptr()).descr, field.descr.as_ptr().cast());
        let casts = |casting| PY_ARRAY_API.PyArray_CanCastTypeTo(py, from, to, casting) != 0;
        let safe = casts(npyffi::NPY_CASTING::NPY_SAFE_CASTING);
        // A number that is too large for an integer would wrap. For a float it becomes infinite, which shows.
        let single = is_of_type(py, to, npyffi::NPY_TYPES::NPY_FLOAT);
        let fits = safe || (single && casts(npyffi::NPY_CASTING::NPY_SAME_KIND_CASTING));
        if !fits {
            return Ok(None);
        }
        let flags = npyffi::NPY_ARRAY_C_CONTIGUOUS | npyffi::NPY_ARRAY_FORCECAST | npyffi::NPY_ARRAY_ALIGNED;
        let descr = field.descr.clone_ref(py).into_ptr().cast();
        let exact =
            PY_ARRAY_API.PyArray_FromAny(py, object.as_ptr(), descr, 0, 0, flags, std::ptr::null_mut());
        match Bound::from_owned_ptr_or_err(py, exact) {
            // numpy warns of what becomes infinite, and a program may have made its warnings errors.
            Err(raised) if raised.is_instance_of::<PyRuntimeWarning>(py) => return Ok(None),
            exact => (exact?, safe),
        }
    };
    // SAFETY: as above, for the array that numpy made.
    let found = unsafe { plain_column(field, exact.as_ptr(), ndarray_type(py)) };
    let Some((column, true)) = found else { return Ok(None) };
    if !safe {
        let numbers = column.rows * field.bytes / size_of::<f32>();
        // SAFETY: numpy made an aligned array of float32 without gaps, of the field's shape and so many rows.
        let numbers = unsafe { std::slice::from_raw_parts(column.data.cast::<f32>(), numbers) };
        if !all_finite(numbers) {
            return Ok(None);
        }
    }
    scratch.memory().kept.push(exact.unbind());
    Ok(Some(column))
}

/// The rows of a list, or of an array of another library.
fn other_column(field: &Leaf, object: &Bound<'_, PyAny>, scratch: &mut Scratch) -> Option<Column> {
    let (wanted, stride) = (Wanted { leaf: field, dims: Dims::Rows, leaves: 0 }, field.bytes as isize);
    let mut column = None;
    scratch.read_kept(
        object.py(),
        std::slice::from_ref(object.as_unbound()),
        |_| wanted,
        |_, found| {
            column = Some(Column { data: found.data, stride, rows: found.rows });
            true
        },
    )?;
    let mut column = column?;
    if !scratch.take_unowned().is_empty() {
        // SAFETY: the bytes were found there, and nothing ran since then.
        column.data = unsafe { scratch.own(column.data, column.rows * field.bytes) }?;
    }
    Some(column)
}

/// Looks at all of them, which is faster than to stop at the first.
fn all_finite(numbers: &[f32]) -> bool {
    numbers.iter().fold(true, |all, number| all & number.is_finite())
}

/// A column of the right shape, and whether it can be copied as it is: the field's very dtype, each row in one piece.
///
/// # Safety
/// The GIL is held and `object` is alive.
#[inline]
unsafe fn plain_column(
    field: &Leaf,
    object: *mut ffi::PyObject,
    ndarray: *mut ffi::PyTypeObject,
) -> Option<(Column, bool)> {
    // SAFETY: the type is checked first; an ndarray has these fields, and `nd` dimensions and strides.
    unsafe {
        if ffi::Py_TYPE(object) != ndarray {
            return None;
        }
        let array = array(object);
        if array.nd as usize != field.shape.len() + 1 {
            return None;
        }
        let dims = std::slice::from_raw_parts(array.dimensions, array.nd as usize);
        let strides = std::slice::from_raw_parts(array.strides, array.nd as usize);
        if !dims[1..].iter().zip(&field.shape).all(|(a, b)| a == b) {
            return None;
        }
        let same = array.descr.cast::<ffi::PyObject>() == field.descr.as_ptr();
        let plain = same
            && (array.flags & npyffi::NPY_ARRAY_C_CONTIGUOUS != 0
                || is_one_piece(&dims[1..], &strides[1..], field));
        let data = array.data.cast_const().cast();
        Some((Column { data, stride: strides[0], rows: dims[0] as usize }, plain))
    }
}

/// Whether the dimensions behind the first lie without gaps, in order.
fn is_one_piece(dims: &[npy_intp], strides: &[npy_intp], field: &Leaf) -> bool {
    let elements: npy_intp = field.shape.iter().product();
    let mut expected = if elements == 0 { 0 } else { field.bytes as npy_intp / elements };
    dims.iter().zip(strides).rev().all(|(&dim, &stride)| {
        let fits = dim == 1 || stride == expected;
        expected *= dim;
        fits
    })
}

/// A mask: an array of bool with one dimension.
fn flags(mask: &Bound<'_, PyAny>) -> Option<Column> {
    // SAFETY: the type is checked first; an ndarray has these fields, and `nd` dimensions and strides.
    unsafe {
        if ffi::Py_TYPE(mask.as_ptr()) != ndarray_type(mask.py()) {
            return None;
        }
        let array = array(mask.as_ptr());
        let is_bool = is_of_type(mask.py(), array.descr, npyffi::NPY_TYPES::NPY_BOOL);
        (is_bool && array.nd == 1).then(|| Column {
            data: array.data.cast_const().cast(),
            stride: *array.strides,
            rows: *array.dimensions as usize,
        })
    }
}

/// # Safety
/// `object` is an ndarray, and alive.
#[inline]
unsafe fn array<'a>(object: *mut ffi::PyObject) -> &'a npyffi::objects::PyArrayObject_fields {
    // SAFETY: as the caller promises.
    unsafe { &(*object.cast::<npyffi::PyArrayObject>()).fields }
}
