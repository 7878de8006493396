//! Arrays of any library, as memory: an address, dimensions, strides and a kind of number.
//!
//! numpy's arrays are read field by field, torch's tensors through DLPack's C exchange API, and JAX's arrays through the
//! buffer protocol.

use crate::convert::numpy_types::ndarray_type;
use crate::convert::scalar::Number;
use numpy::npyffi::{self, npy_intp};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use smallvec::SmallVec;
use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::Mutex;

/// Memory with dimensions. It is alive as long as the object that it was made of.
pub struct View {
    pub data: *const u8,
    pub dims: SmallVec<[npy_intp; 6]>,
    /// In bytes.
    pub strides: SmallVec<[npy_intp; 6]>,
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
            let known = KNOWN.lock().ok()?;
            known.iter().find(|(seen, _)| *seen == class).map(|&(_, origin)| origin.library())
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
        let Ok(mut known) = KNOWN.lock() else { return Library::Other };
        if known.len() < MOST_CLASSES {
            known.push((class.as_ptr() as usize, origin));
            std::mem::forget(class); // No other class ever has its address.
        }
        origin.library()
    }
}

/// Where the objects of each class come from that was seen.
static KNOWN: Mutex<Vec<(usize, Origin)>> = Mutex::new(Vec::new());
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

impl View {
    /// An array of numpy.
    ///
    /// # Safety
    /// The GIL is held and `object` is an ndarray, and alive.
    pub unsafe fn of_numpy(py: Python<'_>, object: *mut ffi::PyObject) -> View {
        // SAFETY: an ndarray has these fields, and `nd` dimensions and strides; a descriptor has a kind and a byte order.
        unsafe {
            let array = &(*object.cast::<npyffi::PyArrayObject>()).fields;
            let descr = array.descr;
            let is_native =
                (*descr).fields.byteorder as u8 != if cfg!(target_endian = "little") { b'>' } else { b'<' };
            let bytes = npyffi::PyDataType_ELSIZE(py, descr) as usize;
            let number = Number::of_kind((*descr).fields.kind as u8 as char, bytes).filter(|_| is_native);
            let dims = of_raw(array.dimensions, array.nd as usize);
            let strides = of_raw(array.strides, array.nd as usize);
            View { data: array.data.cast_const().cast(), dims, strides, number, descr }
        }
    }

    /// A tensor of torch, which is not negated. `None` when it is not on the CPU, or torch does not give it away. Runs no Python
    /// code.
    ///
    /// # Safety
    /// The GIL is held and `object` is a tensor, and alive.
    pub unsafe fn of_torch(torch: &Torch, object: *mut ffi::PyObject) -> Option<View> {
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
            let dims: SmallVec<[npy_intp; 6]> = of_raw(tensor.shape.cast(), tensor.dimensions as usize);
            let strides = if tensor.strides.is_null() {
                contiguous(&dims, bytes)
            } else {
                let strides: SmallVec<[npy_intp; 6]> = of_raw(tensor.strides.cast(), dims.len());
                strides.into_iter().map(|stride| stride * bytes as npy_intp).collect()
            };
            if tensor.data.is_null() && !dims.contains(&0) {
                return None; // It stands for numbers that are not there: a wrapper, or memory that was taken away.
            }
            let data = tensor.data.cast_const().cast::<u8>().wrapping_add(tensor.offset as usize);
            Some(View { data, dims, strides, number, descr: null_mut() })
        }
    }

    /// An exporter of the buffer protocol. `None` when it exports nothing, or no numbers.
    pub fn of_buffer(buffer: &Buffer) -> View {
        let view = &*buffer.0;
        // SAFETY: the buffer was asked for with its dimensions, strides and format; without dimensions there are no arrays of
        // them.
        unsafe {
            let dims = of_raw(view.shape, view.ndim as usize);
            let strides = of_raw(view.strides, view.ndim as usize);
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
            View { data: view.buf.cast_const().cast(), dims, strides, number, descr: null_mut() }
        }
    }
}

/// # Safety
/// So many values can be read from there; without any, the pointer may be null.
unsafe fn of_raw(from: *const npy_intp, count: usize) -> SmallVec<[npy_intp; 6]> {
    match count {
        0 => SmallVec::new(),
        // SAFETY: as the caller promises.
        _ => SmallVec::from_slice(unsafe { std::slice::from_raw_parts(from, count) }),
    }
}

fn contiguous(dims: &[npy_intp], item: usize) -> SmallVec<[npy_intp; 6]> {
    let mut strides: SmallVec<[npy_intp; 6]> = SmallVec::from_elem(item as npy_intp, dims.len());
    for index in (1..dims.len()).rev() {
        strides[index - 1] = strides[index] * dims[index];
    }
    strides
}

/// A buffer that an object has lent.
pub struct Buffer(Box<ffi::Py_buffer>);

// SAFETY: a buffer may be released in any thread that holds the GIL.
unsafe impl Send for Buffer {}
// SAFETY: as above; it is never changed.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Asks for it. This may wait, with the GIL released.
    pub fn of(object: &Bound<'_, PyAny>) -> Option<Buffer> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: the GIL is held; the structure is released exactly if it was filled.
        let failed =
            unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut *view, ffi::PyBUF_RECORDS_RO) } != 0;
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
    /// `torch.Tensor.is_neg`: whether the numbers are to be negated on reading, which DLPack does not say.
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
            ffi::Py_XDECREF(answer);
            ffi::PyErr_Clear();
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
