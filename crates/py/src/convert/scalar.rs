//! A Python number as the bytes of a leaf that has no dimensions, without asking numpy.

use pyo3::ffi;
use pyo3::prelude::*;

/// What kind of number a leaf holds.
#[derive(Clone, Copy)]
pub enum Number {
    Float32,
    Float64,
    Signed(usize),
    Unsigned(usize),
}

impl Number {
    /// `None` for dtypes that Python has to convert to.
    pub fn of(dtype: &Bound<'_, PyAny>) -> PyResult<Option<Number>> {
        let kind: String = dtype.getattr("kind")?.extract()?;
        let bytes: usize = dtype.getattr("itemsize")?.extract()?;
        let native: bool = dtype.getattr("isnative")?.extract()?;
        Ok(match (kind.as_str(), bytes) {
            _ if !native => None,
            ("f", 4) => Some(Number::Float32),
            ("f", 8) => Some(Number::Float64),
            ("i", 1..=8) => Some(Number::Signed(bytes)),
            ("u", 1..=8) => Some(Number::Unsigned(bytes)),
            _ => None,
        })
    }

    /// The bytes of an exact `float` or `int` that fits; `None`: Python converts, or objects.
    ///
    /// # Safety
    /// The GIL is held and `object` is alive.
    pub unsafe fn bytes(self, object: *mut ffi::PyObject) -> Option<[u8; 8]> {
        // SAFETY: as the caller promises; the types are checked before they are read.
        unsafe {
            match self {
                Number::Float32 => {
                    let value = float(object)?;
                    let rounded = value as f32;
                    // One that is too large is infinite here: Python refuses it in its own words.
                    let fits = rounded.is_finite() || !value.is_finite();
                    fits.then(|| (rounded.to_bits() as u64).to_ne_bytes())
                }
                Number::Float64 => Some(float(object)?.to_ne_bytes()),
                Number::Signed(bytes) => {
                    let (value, unused) = (integer(object)?, 64 - 8 * bytes as u32);
                    (value << unused >> unused == value).then_some(value.to_ne_bytes())
                }
                Number::Unsigned(bytes) => {
                    let (value, unused) = (u64::try_from(integer(object)?).ok()?, 64 - 8 * bytes as u32);
                    (value << unused >> unused == value).then_some(value.to_ne_bytes())
                }
            }
        }
    }
}

/// # Safety
/// The GIL is held and `object` is alive.
unsafe fn float(object: *mut ffi::PyObject) -> Option<f64> {
    // SAFETY: as the caller promises.
    unsafe { (ffi::PyFloat_CheckExact(object) != 0).then(|| ffi::PyFloat_AsDouble(object)) }
}

/// # Safety
/// The GIL is held and `object` is alive.
unsafe fn integer(object: *mut ffi::PyObject) -> Option<i64> {
    // SAFETY: as the caller promises.
    unsafe {
        if ffi::PyLong_CheckExact(object) == 0 {
            return None;
        }
        let mut overflow = 0;
        let value = ffi::PyLong_AsLongLongAndOverflow(object, &mut overflow);
        (overflow == 0).then_some(value)
    }
}

#[cfg(target_endian = "big")]
compile_error!("the first bytes of a number are taken for the small ones");
