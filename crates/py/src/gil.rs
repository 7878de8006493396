//! A cell that the GIL guards. The extension is built for the stable ABI, which exists only with a GIL.

use pyo3::Python;
use std::cell::UnsafeCell;

/// A value that is read and replaced only by threads that hold the GIL.
pub struct GilCell<T>(UnsafeCell<T>);

// SAFETY: every access needs a `Python` token, so one thread at a time.
unsafe impl<T: Send> Sync for GilCell<T> {}

impl<T> GilCell<T> {
    pub fn new(value: T) -> Self {
        GilCell(UnsafeCell::new(value))
    }

    /// Reads the value. `read` must not call into Python (which could let another thread replace the value).
    #[inline]
    pub fn with<R>(&self, _py: Python<'_>, read: impl FnOnce(&T) -> R) -> R {
        // SAFETY: the token proves that we hold the GIL; `read` does not let go of it.
        read(unsafe { &*self.0.get() })
    }

    /// Puts another value in and gives the old one back, to be dropped by the caller.
    pub fn replace(&self, _py: Python<'_>, value: T) -> T {
        // SAFETY: as in `with`; no reference outlives a call of `with`.
        std::mem::replace(unsafe { &mut *self.0.get() }, value)
    }
    /// The value, for an owner that shares it with nobody.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}
