//! `EnvSink`: where the results of one step go. It takes what is plain, as nearly all of it is; the rest is Python's.

use crate::convert::numpy_types;
use numpy::npyffi::{self, NpyTypes, npy_intp};
use pyo3::ffi;
use pyo3::prelude::*;
use smallvec::SmallVec;

/// The arrays of one buffer: rows of observations, and a number for each environment in the others.
#[pyclass(frozen, module = "rollway._core")]
pub struct EnvSink {
    envs: usize,
    rows: Rows,
    rewards: Numbers,
    terminations: Numbers,
    truncations: Numbers,
    /// `numpy.False_`: there is only one.
    false_: Py<PyAny>,
    /// Everything above points into these.
    _arrays: [Py<PyAny>; 4],
}

// SAFETY: the memory belongs to the arrays, which live as long as this; it is written with the GIL held.
unsafe impl Send for EnvSink {}
// SAFETY: as above.
unsafe impl Sync for EnvSink {}

#[pymethods]
impl EnvSink {
    /// `None` when the arrays are of a kind that Python has to write to.
    #[staticmethod]
    fn over(
        rows: &Bound<'_, PyAny>,
        rewards: &Bound<'_, PyAny>,
        terminations: &Bound<'_, PyAny>,
        truncations: &Bound<'_, PyAny>,
    ) -> PyResult<Option<EnvSink>> {
        let py = rows.py();
        let Some((envs, rows_found)) = Rows::of(rows) else { return Ok(None) };
        let numbers =
            (Numbers::of(rewards, envs), Numbers::of(terminations, envs), Numbers::of(truncations, envs));
        let (Some(rewards_found), Some(terminations_found), Some(truncations_found)) = numbers else {
            return Ok(None);
        };
        if matches!(rewards_found.kind, Kind::Bool) {
            return Ok(None); // It does not hold all rewards.
        }
        let arrays = [rows, rewards, terminations, truncations];
        Ok(Some(EnvSink {
            envs,
            rows: rows_found,
            rewards: rewards_found,
            terminations: terminations_found,
            truncations: truncations_found,
            false_: py.import("numpy")?.getattr("False_")?.unbind(),
            _arrays: arrays.map(|array| array.clone().unbind()),
        }))
    }
}

impl EnvSink {
    /// Writes what a step returned, if it is plain: a tuple of five, the observation an array that is exactly what its space
    /// says, the reward a number, the episode not over, and nothing to tell. If not, nothing is written. Runs no Python code.
    #[inline]
    pub fn take(&self, env: usize, outcome: &Bound<'_, PyAny>) -> bool {
        let py = outcome.py();
        // SAFETY: the GIL is held. Types are checked before anything is read, and the tuple keeps its items alive. What is
        // written is within the arrays, for `env` is one of theirs.
        unsafe {
            let tuple = outcome.as_ptr();
            if env >= self.envs || ffi::PyTuple_CheckExact(tuple) == 0 || ffi::PyTuple_Size(tuple) != 5 {
                return false;
            }
            let item = |index| ffi::PyTuple_GetItem(tuple, index);
            let is_false =
                |object: *mut ffi::PyObject| object == ffi::Py_False() || object == self.false_.as_ptr();
            let info = item(4);
            let plain = is_false(item(2))
                && is_false(item(3))
                && ffi::PyDict_CheckExact(info) != 0
                && ffi::PyDict_Size(info) == 0;
            if !plain {
                return false;
            }
            let (Some(row), Some(reward)) = (self.rows.exact(py, item(0)), number(py, item(1))) else {
                return false;
            };
            row.copy_to_nonoverlapping(
                self.rows.data.offset(env as isize * self.rows.stride),
                self.rows.bytes,
            );
            self.rewards.put(env, reward);
            self.terminations.put(env, 0.0);
            self.truncations.put(env, 0.0);
        }
        true
    }
}

/// An array with a row for each environment, however far they are apart.
struct Rows {
    data: *mut u8,
    stride: isize,
    /// Of a row.
    shape: SmallVec<[npy_intp; 4]>,
    bytes: usize,
    descr: Py<PyAny>,
}

impl Rows {
    /// How many there are, and where; `None` when a row is not in one piece.
    fn of(array: &Bound<'_, PyAny>) -> Option<(usize, Rows)> {
        let fields = fields(array)?;
        if fields.nd < 1 {
            return None; // Its lengths and strides are nowhere.
        }
        // SAFETY: an ndarray has as many lengths and strides as it says, and its descriptor lives as long as it does.
        unsafe {
            let nd = fields.nd as usize;
            let (&[envs, ref shape @ ..], &[stride, ref steps @ ..]) = (
                std::slice::from_raw_parts(fields.dimensions, nd),
                std::slice::from_raw_parts(fields.strides, nd),
            ) else {
                return None;
            };
            let descr = Bound::from_borrowed_ptr(array.py(), fields.descr.cast());
            let mut bytes = descr.getattr("itemsize").ok()?.extract::<npy_intp>().ok()?;
            for (&length, &step) in shape.iter().zip(steps).rev() {
                if length > 1 && step != bytes {
                    return None;
                }
                bytes *= length;
            }
            let (data, shape, bytes) = (fields.data.cast(), shape.into(), bytes as usize);
            Some((envs as usize, Rows { data, stride, shape, bytes, descr: descr.unbind() }))
        }
    }

    /// The bytes of an observation that is exactly one row: type, dtype, shape, in one piece.
    ///
    /// # Safety
    /// `object` is alive.
    #[inline]
    unsafe fn exact(&self, py: Python<'_>, object: *mut ffi::PyObject) -> Option<*const u8> {
        // SAFETY: the type is checked first; an ndarray has these fields, and `nd` dimensions.
        unsafe {
            if ffi::Py_TYPE(object) != numpy_types::ndarray_type(py) {
                return None;
            }
            let given = &(*object.cast::<npyffi::PyArrayObject>()).fields;
            let is_exact = given.descr.cast::<ffi::PyObject>() == self.descr.as_ptr()
                && given.flags & npyffi::NPY_ARRAY_C_CONTIGUOUS != 0
                && given.nd as usize == self.shape.len()
                && self.shape.iter().enumerate().all(|(axis, length)| *given.dimensions.add(axis) == *length);
            is_exact.then_some(given.data.cast_const().cast())
        }
    }
}

/// An array with one number for each environment.
struct Numbers {
    data: *mut u8,
    stride: isize,
    kind: Kind,
}

enum Kind {
    Float64,
    Float32,
    Bool,
}

impl Numbers {
    /// `None` when it has another kind of number, or not one for each.
    fn of(array: &Bound<'_, PyAny>, envs: usize) -> Option<Numbers> {
        let fields = fields(array)?;
        let is = |kind| numpy_types::is_of_type(array.py(), fields.descr, kind);
        let kind = if is(npyffi::NPY_TYPES::NPY_DOUBLE) {
            Kind::Float64
        } else if is(npyffi::NPY_TYPES::NPY_FLOAT) {
            Kind::Float32
        } else if is(npyffi::NPY_TYPES::NPY_BOOL) {
            Kind::Bool
        } else {
            return None;
        };
        // SAFETY: an ndarray of one dimension has one length and one stride.
        let (length, stride) = unsafe {
            if fields.nd != 1 {
                return None;
            }
            (*fields.dimensions, *fields.strides)
        };
        (length as usize == envs).then(|| Numbers { data: fields.data.cast(), stride, kind })
    }

    /// # Safety
    /// `env` is one of the array's.
    #[inline]
    unsafe fn put(&self, env: usize, value: f64) {
        // SAFETY: as the caller promises.
        unsafe {
            let place = self.data.offset(env as isize * self.stride);
            match self.kind {
                Kind::Float64 => place.cast::<f64>().write_unaligned(value),
                Kind::Float32 => place.cast::<f32>().write_unaligned(value as f32),
                Kind::Bool => place.write(u8::from(value != 0.0)),
            }
        }
    }
}

/// What numpy knows about an array that can be written; `None` when it is none.
fn fields<'a>(array: &'a Bound<'_, PyAny>) -> Option<&'a npyffi::PyArrayObject_fields> {
    // SAFETY: the GIL is held, and the type is checked before the fields are read.
    unsafe {
        let object = array.as_ptr();
        if ffi::Py_TYPE(object) != numpy_types::ndarray_type(array.py()) {
            return None;
        }
        let fields = &(*object.cast::<npyffi::PyArrayObject>()).fields;
        (fields.flags & npyffi::NPY_ARRAY_WRITEABLE != 0).then_some(fields)
    }
}

/// A `float`, an `int` or one of numpy's floats; `None` for what might run Python code, or is none.
///
/// # Safety
/// `object` is alive.
#[inline]
unsafe fn number(py: Python<'_>, object: *mut ffi::PyObject) -> Option<f64> {
    // SAFETY: as the caller promises; the GIL is held, and the types are checked first.
    unsafe {
        let kind = ffi::Py_TYPE(object);
        let is_known = ffi::PyFloat_CheckExact(object) != 0
            || kind == npyffi::get_type_object(py, NpyTypes::PyDoubleArrType_Type)
            || kind == npyffi::get_type_object(py, NpyTypes::PyFloatArrType_Type)
            || ffi::PyLong_CheckExact(object) != 0;
        if !is_known {
            return None;
        }
        let value = ffi::PyFloat_AsDouble(object);
        if value == -1.0 && !ffi::PyErr_Occurred().is_null() {
            ffi::PyErr_Clear(); // An int that is too large: Python says so.
            return None;
        }
        Some(value)
    }
}
