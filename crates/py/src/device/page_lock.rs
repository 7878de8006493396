//! `PageLock`: memory that GPUs may read and write by themselves, without a copy on the host.

use crate::device::driver::{Gpu, Result};
use crate::errors::named;
use crate::gil::GilCell;
use pyo3::prelude::*;

/// Page-locked memory. Dropped, it is as before, after the copies that are under way.
pub struct LockedPages {
    gpu: Gpu,
    address: usize,
    /// A forked child has no GPU.
    pid: u32,
}

impl LockedPages {
    /// # Safety
    /// The memory stays mapped longer than this.
    pub unsafe fn of(gpu: Gpu, address: usize, bytes: usize) -> Result<LockedPages> {
        // SAFETY: as the caller promises.
        unsafe { gpu.enter()?.register(address, bytes)? };
        Ok(LockedPages { gpu, address, pid: std::process::id() })
    }
}

impl Drop for LockedPages {
    fn drop(&mut self) {
        if self.pid == std::process::id()
            && let Ok(entered) = self.gpu.enter()
        {
            entered.unregister(self.address);
        }
    }
}

/// Page-locks memory for GPUs, until it is closed. Not for users: the address is taken as it is.
#[pyclass(frozen, module = "rollway._core")]
pub struct PageLock(GilCell<Option<LockedPages>>);

#[pymethods]
impl PageLock {
    #[new]
    fn new(py: Python<'_>, address: usize, nbytes: usize) -> PyResult<PageLock> {
        // SAFETY: the Python side closes this before it closes what has the memory.
        let locked = py.detach(|| unsafe { LockedPages::of(Gpu::open(0)?, address, nbytes) });
        let explain =
            |error| named(py, "DeviceFailed", format!("memory cannot be page-locked for CUDA: {error}"));
        Ok(PageLock(GilCell::new(Some(locked.map_err(explain)?))))
    }

    fn close(&self, py: Python<'_>) {
        let locked = self.0.replace(py, None);
        py.detach(|| drop(locked));
    }
}
