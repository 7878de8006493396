//! A cell that the GIL guards. The extension is built for the stable ABI, which exists only with a GIL.
//!
//! The safe methods copy the value out, or replace it, without running any code that could let go of the GIL in between.
//! [`GilCell::with`] lends the value to a closure and is therefore unsafe: a closure that calls into Python may let another
//! thread replace the value while it is borrowed.

use pyo3::{Py, Python};
use std::cell::UnsafeCell;
use std::sync::Arc;

/// A value that is read and replaced only by threads that hold the GIL.
pub struct GilCell<T>(UnsafeCell<T>);

// SAFETY: every access needs a `Python` token, so one thread at a time.
unsafe impl<T: Send> Sync for GilCell<T> {}

impl<T> GilCell<T> {
    pub const fn new(value: T) -> Self {
        GilCell(UnsafeCell::new(value))
    }

    /// Reads the value in place.
    ///
    /// # Safety
    /// `read` does not call into Python, drops no Python object, and does not touch this cell: each of these could replace
    /// the value while `read` borrows it.
    #[inline]
    pub unsafe fn with<R>(&self, _py: Python<'_>, read: impl FnOnce(&T) -> R) -> R {
        // SAFETY: the token proves that we hold the GIL; `read` does not let go of it, as the caller promises.
        read(unsafe { &*self.0.get() })
    }

    /// Puts another value in and gives the old one back, to be dropped by the caller.
    pub fn replace(&self, _py: Python<'_>, value: T) -> T {
        // SAFETY: the token proves that we hold the GIL, and no reference outlives a call of `with`.
        std::mem::replace(unsafe { &mut *self.0.get() }, value)
    }

    /// The value, for an owner that shares it with nobody.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

impl<T: Copy> GilCell<T> {
    pub fn get(&self, py: Python<'_>) -> T {
        // SAFETY: a copy of bytes runs no code.
        unsafe { self.with(py, |value| *value) }
    }
}

impl<T> GilCell<Arc<T>> {
    pub fn share(&self, py: Python<'_>) -> Arc<T> {
        // SAFETY: this counts a reference, whatever `T` is.
        unsafe { self.with(py, Arc::clone) }
    }
}

impl<T> GilCell<Option<T>> {
    pub fn is_none(&self, py: Python<'_>) -> bool {
        // SAFETY: this looks at the discriminant.
        unsafe { self.with(py, Option::is_none) }
    }
}

impl<T> GilCell<Option<Arc<T>>> {
    /// The value, unless it was taken out.
    #[inline]
    pub fn share(&self, py: Python<'_>) -> Option<Arc<T>> {
        // SAFETY: this counts a reference, whatever `T` is.
        unsafe { self.with(py, |value| value.clone()) }
    }
}

impl<T> GilCell<Option<Py<T>>> {
    /// The object, if there is one.
    pub fn share(&self, py: Python<'_>) -> Option<Py<T>> {
        // SAFETY: this counts a reference.
        unsafe { self.with(py, |object| object.as_ref().map(|object| object.clone_ref(py))) }
    }
}
