//! Arrays of any library, as memory: an address, dimensions, strides and a kind of number.
//!
//! numpy's arrays are read field by field, torch's tensors through DLPack's C exchange API, and JAX's arrays through the
//! buffer protocol.

use crate::convert::numpy_types::ndarray_type;
use crate::convert::scalar::Number;
use crate::gil::GilCell;
use numpy::npyffi::{self, npy_intp};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use smallvec::SmallVec;
use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// Memory with dimensions. It is alive as long as the object that it was made of, and no Python code runs.
pub struct View<'a> {
    pub data: *const u8,
    pub dims: &'a [npy_intp],
    /// `None`: without gaps.
    strides: Option<&'a [npy_intp]>,
    /// What the strides count, in bytes.
    stride_unit: usize,
    /// What lies in it; `None`: something else than numbers in this machine's byte order.
    pub number: Option<Number>,
    /// Numpy's descriptor, where it is an array of numpy.
    pub descr: *mut npyffi::PyArray_Descr,
}

/// Which library an array is from.
pub enum Library {
    Numpy,
    Torch(&'static Torch),
    /// To look at an array waits until it is computed, with the GIL released.
    Jax,
    /// No array.
    Other,
}

impl Library {
    /// The library that made an object. `None`: an object of its class was not seen before. Runs no Python code.
    ///
    /// # Safety
    /// The GIL is held and `object` is alive.
    pub unsafe fn of(py: Python<'_>, object: *mut ffi::PyObject) -> Option<Library> {
        // SAFETY: as the caller promises.
        unsafe {
            if ffi::Py_TYPE(object) == ndarray_type(py) {
                return Some(Library::Numpy);
            }
            let class = ffi::Py_TYPE(object) as usize;
            let known = |known: &Vec<(usize, Origin)>| known.iter().find(|(seen, _)| *seen == class).copied();
            KNOWN.with(py, known).map(|(_, origin)| origin.library())
        }
    }

    /// The library that made an object, also if its class is new. May run Python code.
    pub fn of_owned(object: &Bound<'_, PyAny>) -> Library {
        // SAFETY: the GIL is held and `object` is alive.
        if let Some(library) = unsafe { Library::of(object.py(), object.as_ptr()) } {
            return library;
        }
        let class = object.get_type();
        let origin = Origin::of(&class).unwrap_or(Origin::Other);
        let mut known = KNOWN.replace(object.py(), Vec::new());
        if known.len() < MOST_CLASSES {
            known.push((class.as_ptr() as usize, origin));
            std::mem::forget(class); // No other class ever has its address.
        }
        KNOWN.replace(object.py(), known);
        origin.library()
    }
}

/// Where the objects of each class come from that was seen.
static KNOWN: GilCell<Vec<(usize, Origin)>> = GilCell::new(Vec::new());
/// More classes are not remembered.
const MOST_CLASSES: usize = 64;

#[derive(Clone, Copy)]
enum Origin {
    /// A subclass of numpy's own array, such as `memmap`.
    Numpy,
    Torch(&'static Torch),
    Jax,
    Other,
}

impl Origin {
    /// By the name of the class. The values of a masked array are not those in its memory: Python looks at it.
    fn of(class: &Bound<'_, PyType>) -> PyResult<Origin> {
        // SAFETY: the GIL is held; both are types, and alive.
        if unsafe { ffi::PyType_IsSubtype(class.as_type_ptr(), ndarray_type(class.py())) } != 0 {
            return Ok(if class.hasattr("filled")? { Origin::Other } else { Origin::Numpy });
        }
        let (module, name) = (class.module()?, class.qualname()?);
        Ok(match (module.to_str()?, name.to_str()?) {
            ("torch", "Tensor") | ("torch.nn.parameter", "Parameter") => {
                Torch::find(class.py())?.map_or(Origin::Other, Origin::Torch)
            }
            (module, "ArrayImpl") if module.starts_with("jaxlib") => Origin::Jax,
            _ => Origin::Other,
        })
    }

    fn library(self) -> Library {
        match self {
            Origin::Numpy => Library::Numpy,
            Origin::Torch(torch) => Library::Torch(torch),
            Origin::Jax => Library::Jax,
            Origin::Other => Library::Other,
        }
    }
}

impl<'a> View<'a> {
    /// An array of numpy.
    ///
    /// # Safety
    /// The GIL is held and `object` is an ndarray, and alive.
    pub unsafe fn of_numpy(py: Python<'_>, object: *mut ffi::PyObject) -> View<'a> {
        // SAFETY: an ndarray has these fields, and `nd` dimensions and strides; a descriptor has a kind and a byte order.
        unsafe {
            let array = &(*object.cast::<npyffi::PyArrayObject>()).fields;
            let descr = array.descr;
            let is_native =
                (*descr).fields.byteorder as u8 != if cfg!(target_endian = "little") { b'>' } else { b'<' };
            let bytes = npyffi::PyDataType_ELSIZE(py, descr) as usize;
            let number = Number::of_kind((*descr).fields.kind as u8 as char, bytes).filter(|_| is_native);
            let dims = of_raw(array.dimensions, array.nd as usize);
            let strides = Some(of_raw(array.strides, array.nd as usize));
            View { data: array.data.cast_const().cast(), dims, strides, stride_unit: 1, number, descr }
        }
    }

    /// A tensor of torch, which is not negated. `None` when it is not on the CPU, or torch does not give it away. Runs no Python
    /// code.
    ///
    /// # Safety
    /// The GIL is held and `object` is a tensor, and alive.
    pub unsafe fn of_torch(torch: &Torch, object: *mut ffi::PyObject) -> Option<View<'a>> {
        // SAFETY: as the caller promises; `fill` has written the whole tensor if it gives 0.
        unsafe {
            let mut tensor = MaybeUninit::<DlTensor>::uninit();
            if (torch.fill)(object.cast(), tensor.as_mut_ptr()) != 0 {
                ffi::PyErr_Clear();
                return None;
            }
            let tensor = tensor.assume_init();
            if tensor.device != DL_CPU || tensor.lanes != 1 {
                return None;
            }
            let bytes = tensor.bits as usize / 8;
            let number = match tensor.code {
                0 => Number::of_kind('i', bytes),
                1 => Number::of_kind('u', bytes),
                2 => Number::of_kind('f', bytes),
                4 if bytes == 2 => Some(Number::Bfloat16),
                6 => Number::of_kind('b', bytes),
                _ => None,
            };
            let dims = of_raw(tensor.shape.cast(), tensor.dimensions as usize);
            let strides = (!tensor.strides.is_null()).then(|| of_raw(tensor.strides.cast(), dims.len()));
            if tensor.data.is_null() && !dims.contains(&0) {
                return None; // It stands for numbers that are not there: a wrapper, or memory that was taken away.
            }
            let data = tensor.data.cast_const().cast::<u8>().wrapping_add(tensor.offset as usize);
            Some(View { data, dims, strides, stride_unit: bytes, number, descr: null_mut() })
        }
    }

    /// What an exporter of the buffer protocol has lent.
    pub fn of_buffer(buffer: &'a Buffer) -> View<'a> {
        let view = &*buffer.0;
        // SAFETY: the buffer was asked for with its dimensions and format; without dimensions there is no array of them.
        unsafe {
            let dims = of_raw(view.shape, view.ndim as usize);
            let format = if view.format.is_null() { c"B" } else { CStr::from_ptr(view.format) };
            let letter = format.to_bytes().last().copied().unwrap_or(b'B');
            let kind = match letter {
                b'?' => 'b',
                b'e' | b'f' | b'd' => 'f',
                b'b' | b'h' | b'i' | b'l' | b'q' => 'i',
                b'B' | b'H' | b'I' | b'L' | b'Q' => 'u',
                _ => 'V',
            };
            let is_simple = format.to_bytes().len() <= 2 && !format.to_bytes().starts_with(b">");
            let number = Number::of_kind(kind, view.itemsize as usize).filter(|_| is_simple);
            let data = view.buf.cast_const().cast();
            View { data, dims, strides: None, stride_unit: 1, number, descr: null_mut() }
        }
    }

    /// Whether its items, of so many bytes, lie in order and without gaps.
    pub fn is_contiguous(&self, item: usize) -> bool {
        let Some(strides) = self.strides else { return true };
        let (mut expected, unit) = (item as npy_intp, self.stride_unit as npy_intp);
        self.dims.contains(&0)
            || self.dims.iter().zip(strides).rev().all(|(&dim, &stride)| {
                let fits = dim == 1 || stride * unit == expected;
                expected *= dim;
                fits
            })
    }

    /// The bytes from item to item of each dimension. An item has so many.
    pub fn strides(&self, item: usize) -> SmallVec<[npy_intp; 6]> {
        match self.strides {
            Some(strides) => strides.iter().map(|stride| stride * self.stride_unit as npy_intp).collect(),
            None => contiguous(self.dims, item),
        }
    }
}

/// # Safety
/// So many values can be read from there; without any, the pointer may be null.
unsafe fn of_raw<'a>(from: *const npy_intp, count: usize) -> &'a [npy_intp] {
    match count {
        0 => &[],
        // SAFETY: as the caller promises.
        _ => unsafe { std::slice::from_raw_parts(from, count) },
    }
}

fn contiguous(dims: &[npy_intp], item: usize) -> SmallVec<[npy_intp; 6]> {
    let mut strides: SmallVec<[npy_intp; 6]> = SmallVec::from_elem(item as npy_intp, dims.len());
    for index in (1..dims.len()).rev() {
        strides[index - 1] = strides[index] * dims[index];
    }
    strides
}

const WITHOUT_GAPS: c_int = ffi::PyBUF_ND | ffi::PyBUF_FORMAT;

/// A buffer that an object has lent.
pub struct Buffer(Box<ffi::Py_buffer>);

// SAFETY: a buffer may be released in any thread that holds the GIL.
unsafe impl Send for Buffer {}
// SAFETY: as above; it is never changed.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Asks for one without gaps: JAX refuses others anyway. This may wait, with the GIL released.
    pub fn of(object: &Bound<'_, PyAny>) -> Option<Buffer> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: the GIL is held; the structure is released exactly if it was filled.
        let failed = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut *view, WITHOUT_GAPS) } != 0;
        if failed {
            // SAFETY: the GIL is held.
            unsafe { ffi::PyErr_Clear() };
            return None;
        }
        Some(Buffer(view))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: it was filled, and is released once.
        Python::attach(|_| unsafe { ffi::PyBuffer_Release(&mut *self.0) });
    }
}

/// What torch has to offer.
pub struct Torch {
    /// Fills a description of a tensor that borrows from it.
    fill: unsafe extern "C" fn(*mut c_void, *mut DlTensor) -> i32,
    /// `torch.Tensor.is_neg`: whether the numbers are to be negated on reading, which DLPack does not say. To call it costs more
    /// than all else, because it releases the GIL.
    is_neg: *mut ffi::PyObject,
}

// SAFETY: the function is torch's for ever; the object is never released.
unsafe impl Send for Torch {}
// SAFETY: as above.
unsafe impl Sync for Torch {}

/// `DLTensor` of DLPack 1.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: i32,
    device_number: i32,
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    offset: u64,
}

const DL_CPU: i32 = 1;

/// `DLPackExchangeAPI` of DLPack 1, as far as it is used.
#[repr(C)]
struct DlExchange {
    major: u32,
    minor: u32,
    previous: *const c_void,
    allocate: *const c_void,
    to_managed: *const c_void,
    from_managed: *const c_void,
    fill: Option<unsafe extern "C" fn(*mut c_void, *mut DlTensor) -> i32>,
}

impl Torch {
    /// Whether the numbers of a tensor are to be negated on reading, as far as torch says. This may run Python code, and let
    /// other threads run.
    pub fn is_negated(&self, tensor: &Bound<'_, PyAny>) -> bool {
        // SAFETY: the GIL is held and `tensor` is alive; a null pointer ends the arguments.
        unsafe {
            let answer =
                ffi::PyObject_CallFunctionObjArgs(self.is_neg, tensor.as_ptr(), null_mut::<ffi::PyObject>());
            if answer.is_null() {
                ffi::PyErr_Clear();
            }
            ffi::Py_XDECREF(answer);
            answer != ffi::Py_False()
        }
    }

    /// `None` for a torch without the exchange API: Python converts its tensors.
    fn find(py: Python<'_>) -> PyResult<Option<&'static Torch>> {
        static FOUND: PyOnceLock<Option<Torch>> = PyOnceLock::new();
        let class = py.import("torch")?.getattr("Tensor")?;
        let capsule = class.getattr("__dlpack_c_exchange_api__")?;
        // SAFETY: the GIL is held; a capsule of that name points to an exchange API that lives for ever.
        let exchange = unsafe {
            let exchange = ffi::PyCapsule_GetPointer(capsule.as_ptr(), c"dlpack_exchange_api".as_ptr());
            if exchange.is_null() {
                return Err(PyErr::fetch(py));
            }
            &*exchange.cast::<DlExchange>()
        };
        let fill = exchange.fill.filter(|_| exchange.major == 1);
        let is_neg = class.getattr("is_neg")?.into_ptr();
        Ok(FOUND.get_or_init(py, || fill.map(|fill| Torch { fill, is_neg })).as_ref())
    }
}
