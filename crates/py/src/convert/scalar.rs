//! Single numbers: which kind a dtype holds, and a Python or numpy number as its bytes, without asking numpy.
//!
//! The rule is numpy's `same_kind`: a float takes any number, an integer takes integers and bools, a bool takes bools. A
//! number that is out of range is refused, also for an unsigned integer; rounding is allowed.

use numpy::npyffi::{self, NpyTypes};
use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyFloat;

/// The kind of number that an array holds, and how many bytes it takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Number {
    Bool,
    Float(usize),
    Bfloat16,
    Signed(usize),
    Unsigned(usize),
}

/// The value of a number.
#[derive(Clone, Copy)]
pub enum Scalar {
    Bool(bool),
    Integer(i64),
    /// An integer that is too large for the other.
    Large(u64),
    Float(f64),
}

impl Number {
    /// `None` for dtypes that hold something else, or in another byte order.
    pub fn of(dtype: &Bound<'_, PyAny>) -> PyResult<Option<Number>> {
        let kind: char = dtype.getattr("kind")?.extract()?;
        let is_native: bool = dtype.getattr("isnative")?.extract()?;
        if kind == 'V' && dtype.getattr("name")?.extract::<String>()? == "bfloat16" {
            return Ok(Some(Number::Bfloat16));
        }
        let number = Number::of_kind(kind, dtype.getattr("itemsize")?.extract()?);
        Ok(number.filter(|_| is_native))
    }

    /// Numpy's letter for a kind of dtype, with the bytes of an item.
    pub fn of_kind(kind: char, bytes: usize) -> Option<Number> {
        match (kind, bytes) {
            ('b', 1) => Some(Number::Bool),
            ('f', 2 | 4 | 8) => Some(Number::Float(bytes)),
            ('i', 1 | 2 | 4 | 8) => Some(Number::Signed(bytes)),
            ('u', 1 | 2 | 4 | 8) => Some(Number::Unsigned(bytes)),
            _ => None,
        }
    }

    /// Bytes of one number.
    pub fn size(self) -> usize {
        match self {
            Number::Bool => 1,
            Number::Bfloat16 => 2,
            Number::Float(bytes) | Number::Signed(bytes) | Number::Unsigned(bytes) => bytes,
        }
    }

    /// Whether it holds integers or bools.
    pub fn is_whole(self) -> bool {
        matches!(self, Number::Bool | Number::Signed(_) | Number::Unsigned(_))
    }

    /// A value as this kind of number; the bytes beyond its size are zero. `None`: it does not fit, or Python has to convert it.
    #[inline]
    pub fn bytes(self, value: Scalar) -> Option<[u8; 8]> {
        match (self, value) {
            (Number::Bool, Scalar::Bool(value)) => Some((value as u64).to_ne_bytes()),
            (Number::Float(8), value) => Some(value.as_float().to_ne_bytes()),
            (Number::Float(4), value) => {
                let value = value.as_float();
                let rounded = value as f32;
                let fits = rounded.is_finite() || !value.is_finite();
                fits.then(|| (rounded.to_bits() as u64).to_ne_bytes())
            }
            (Number::Signed(bytes), value) => {
                let (value, unused) = (value.as_signed()?, 64 - 8 * bytes as u32);
                (value << unused >> unused == value).then_some(value.to_ne_bytes())
            }
            (Number::Unsigned(bytes), value) => {
                let (value, unused) = (value.as_unsigned()?, 64 - 8 * bytes as u32);
                (value << unused >> unused == value).then_some(value.to_ne_bytes())
            }
            _ => None,
        }
    }

    /// The value that lies at an address.
    ///
    /// # Safety
    /// A number of this kind can be read there.
    #[inline]
    pub unsafe fn read(self, from: *const u8) -> Option<Scalar> {
        // SAFETY: as the caller promises.
        unsafe {
            Some(match self {
                Number::Bool => Scalar::Bool(from.read() != 0),
                Number::Float(4) => Scalar::Float(from.cast::<f32>().read_unaligned() as f64),
                Number::Float(8) => Scalar::Float(from.cast::<f64>().read_unaligned()),
                Number::Float(_) | Number::Bfloat16 => return None,
                Number::Signed(1) => Scalar::Integer(from.cast::<i8>().read() as i64),
                Number::Signed(2) => Scalar::Integer(from.cast::<i16>().read_unaligned() as i64),
                Number::Signed(4) => Scalar::Integer(from.cast::<i32>().read_unaligned() as i64),
                Number::Signed(_) => Scalar::Integer(from.cast::<i64>().read_unaligned()),
                Number::Unsigned(1) => Scalar::Integer(from.read() as i64),
                Number::Unsigned(2) => Scalar::Integer(from.cast::<u16>().read_unaligned() as i64),
                Number::Unsigned(4) => Scalar::Integer(from.cast::<u32>().read_unaligned() as i64),
                Number::Unsigned(_) => Scalar::of_unsigned(from.cast::<u64>().read_unaligned()),
            })
        }
    }
}

/// A number as an object: numpy's headers say so of its scalars. numpy's float64 is a subclass of `float`, so a `float` is no
/// different, which [`check_layout`] verifies.
#[repr(C)]
struct Boxed<T> {
    header: ffi::PyObject,
    value: T,
}

/// Refuses a Python whose floats lie in memory in another way than they are read: the stable ABI does not promise it.
pub fn check_layout(py: Python<'_>) -> PyResult<()> {
    let float = PyFloat::new(py, 1.5);
    let size: usize = float.get_type().getattr("__basicsize__")?.extract()?;
    // SAFETY: the GIL is held, and a float has so many bytes.
    if size == size_of::<Boxed<f64>>() && unsafe { (*float.as_ptr().cast::<Boxed<f64>>()).value } == 1.5 {
        return Ok(());
    }
    let version = Python::version_str();
    Err(PyImportError::new_err(format!(
        "this build of rollway does not know the floats of Python {version}: install a newer one"
    )))
}

impl Scalar {
    /// The value of an exact `float`, `int` or `bool`, or of a numpy scalar. `None` for everything else: a subclass may run
    /// Python code.
    ///
    /// # Safety
    /// The GIL is held and `object` is alive.
    #[inline]
    pub unsafe fn of(py: Python<'_>, object: *mut ffi::PyObject) -> Option<Scalar> {
        // SAFETY: as the caller promises; the types are checked before they are read.
        unsafe {
            if ffi::PyFloat_CheckExact(object) != 0 {
                return Some(Scalar::Float((*object.cast::<Boxed<f64>>()).value));
            }
            if ffi::PyLong_CheckExact(object) != 0 {
                return integer(object);
            }
            if ffi::PyBool_Check(object) != 0 {
                return Some(Scalar::Bool(object == ffi::Py_True()));
            }
            numpy_scalar(py, object)
        }
    }

    #[inline]
    fn as_float(self) -> f64 {
        match self {
            Scalar::Bool(value) => value as u8 as f64,
            Scalar::Integer(value) => value as f64,
            Scalar::Large(value) => value as f64,
            Scalar::Float(value) => value,
        }
    }

    fn of_unsigned(value: u64) -> Scalar {
        i64::try_from(value).map_or(Scalar::Large(value), Scalar::Integer)
    }

    fn as_signed(self) -> Option<i64> {
        match self {
            Scalar::Bool(value) => Some(value as i64),
            Scalar::Integer(value) => Some(value),
            Scalar::Large(_) | Scalar::Float(_) => None,
        }
    }

    fn as_unsigned(self) -> Option<u64> {
        match self {
            Scalar::Bool(value) => Some(value as u64),
            Scalar::Integer(value) => u64::try_from(value).ok(),
            Scalar::Large(value) => Some(value),
            Scalar::Float(_) => None,
        }
    }
}

/// # Safety
/// The GIL is held and `object` is an int.
unsafe fn integer(object: *mut ffi::PyObject) -> Option<Scalar> {
    // SAFETY: as the caller promises.
    unsafe {
        let mut overflow = 0;
        let value = ffi::PyLong_AsLongLongAndOverflow(object, &mut overflow);
        if overflow == 0 {
            return Some(Scalar::Integer(value));
        }
        let value = ffi::PyLong_AsUnsignedLongLong(object);
        let failed = value == u64::MAX && !ffi::PyErr_Occurred().is_null();
        if failed {
            ffi::PyErr_Clear();
        }
        (!failed).then_some(Scalar::Large(value))
    }
}

/// The value of a numpy scalar, by its exact type.
///
/// # Safety
/// The GIL is held and `object` is alive.
unsafe fn numpy_scalar(py: Python<'_>, object: *mut ffi::PyObject) -> Option<Scalar> {
    static TYPES: PyOnceLock<[(usize, Number); 13]> = PyOnceLock::new();
    let types = TYPES.get_or_init(py, || numpy_types(py));
    // SAFETY: as the caller promises; the type says what lies behind the header, see `Boxed`.
    unsafe {
        let own = ffi::Py_TYPE(object) as usize;
        let &(_, number) = types.iter().find(|&&(known, _)| known == own)?;
        number.read(object.cast::<u8>().add(std::mem::offset_of!(Boxed<u64>, value)))
    }
}

fn numpy_types(py: Python<'_>) -> [(usize, Number); 13] {
    let types = [
        (NpyTypes::PyDoubleArrType_Type, Number::Float(8)),
        (NpyTypes::PyFloatArrType_Type, Number::Float(4)),
        (NpyTypes::PyBoolArrType_Type, Number::Bool),
        (NpyTypes::PyLongArrType_Type, Number::Signed(size_of::<std::ffi::c_long>())),
        (NpyTypes::PyIntArrType_Type, Number::Signed(4)),
        (NpyTypes::PyLongLongArrType_Type, Number::Signed(8)),
        (NpyTypes::PyShortArrType_Type, Number::Signed(2)),
        (NpyTypes::PyByteArrType_Type, Number::Signed(1)),
        (NpyTypes::PyUByteArrType_Type, Number::Unsigned(1)),
        (NpyTypes::PyUShortArrType_Type, Number::Unsigned(2)),
        (NpyTypes::PyUIntArrType_Type, Number::Unsigned(4)),
        (NpyTypes::PyULongArrType_Type, Number::Unsigned(size_of::<std::ffi::c_ulong>())),
        (NpyTypes::PyULongLongArrType_Type, Number::Unsigned(8)),
    ];
    // SAFETY: the GIL is held. Numpy's types are static.
    let address = |kind| unsafe { npyffi::get_type_object(py, kind) as usize };
    types.map(|(kind, number)| (address(kind), number))
}

#[cfg(target_endian = "big")]
compile_error!("the first bytes of a number are taken for the small ones");
