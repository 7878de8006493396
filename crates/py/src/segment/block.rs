//! `Block`: named bytes in shared memory, as a buffer.

use crate::errors::to_py;
use crate::gil::GilCell;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;
use rollway_core::Error;
use rollway_core::segment::block::Block as Core;
use rollway_core::segment::{DelegatedLease, Owner, Segment};
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

/// Zeroed bytes that other processes find by their name. `numpy.frombuffer(block.memory, …)` is a view of them.
#[pyclass(frozen, module = "rollway._core")]
pub struct Block {
    core: GilCell<Option<Arc<Core>>>,
    name: String,
}

#[pymethods]
impl Block {
    /// Makes a block.
    #[staticmethod]
    fn create(py: Python<'_>, name: String, size: usize) -> PyResult<Block> {
        let core = Core::create(&name, size).map_err(|e| to_py(py, e))?;
        Ok(Block { core: GilCell::new(Some(Arc::new(core))), name })
    }

    /// Opens one.
    #[staticmethod]
    fn attach(py: Python<'_>, name: String) -> PyResult<Block> {
        let core = Core::attach(&name).map_err(|e| to_py(py, e))?;
        Ok(Block { core: GilCell::new(Some(Arc::new(core))), name })
    }

    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The bytes, as a writable memoryview: what is made over them stays mapped, also after `close`.
    #[getter]
    fn memory<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let core = self.core.share(py).ok_or_else(|| to_py(py, Error::Closed))?;
        view(py, core.data(), core)
    }

    /// Takes the name away. False when it was gone.
    fn unlink(&self, py: Python<'_>) -> PyResult<bool> {
        match self.core.share(py) {
            Some(core) => core.unlink().map_err(|e| to_py(py, e)),
            None => Ok(false),
        }
    }

    /// Leaves. Safe to call twice.
    fn close(&self, py: Python<'_>) {
        drop(self.core.replace(py, None));
    }
}

/// The body of a ring, as a writable memoryview, for one who writes into the slots of another. As long as the view lives, what
/// that one has claimed is not taken back.
#[pyfunction]
pub fn map_for<'py>(py: Python<'py>, name: &str, owner: u64) -> PyResult<Bound<'py, PyAny>> {
    let mapped = Segment::open(name, None).and_then(|segment| {
        let delegated = DelegatedLease::hold_for(&segment, Owner::from_bits(owner))?;
        Ok((segment, delegated))
    });
    let mapped = Arc::new(mapped.map_err(|e| to_py(py, e))?);
    view(py, mapped.0.body(), mapped)
}

/// A memoryview of bytes that stay mapped as long as `owner` lives.
pub fn view<'py>(
    py: Python<'py>,
    (data, len): (NonNull<u8>, usize),
    owner: Arc<dyn std::any::Any + Send + Sync>,
) -> PyResult<Bound<'py, PyAny>> {
    let bytes = Bound::new(py, Bytes { data: data.as_ptr() as usize, len, _owner: owner })?;
    PyMemoryView::from(bytes.as_any()).map(Bound::into_any)
}

/// A run of shared memory as a writable buffer. It keeps its mapping alive.
#[pyclass(frozen, module = "rollway._core")]
struct Bytes {
    data: usize,
    len: usize,
    _owner: Arc<dyn std::any::Any + Send + Sync>,
}

#[pymethods]
impl Bytes {
    /// # Safety
    /// Called by the interpreter, with a `view` to fill in.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        let (data, len) = (this.data as *mut c_void, this.len as isize);
        // SAFETY: the bytes are mapped as long as `_owner` lives, which the view's reference to `slf` sees to; writing
        // them is what they are for, and who writes when is agreed upon by those who attach.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), data, len, 0, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
