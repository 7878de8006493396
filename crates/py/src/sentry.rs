//! `Sentry`: lets an event loop wait for a handle. `rollway.waiting.notifier` asks the handles for one.

use crate::errors::to_py;
use pyo3::prelude::*;
use rollway_core::sentry::Sentry as Core;
use rollway_core::{Error, Result, wait::Patience};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Weak};

/// A native thread that waits for a handle, and a file descriptor that is readable when it is worth looking.
#[pyclass(frozen, module = "rollway._core")]
pub struct Sentry(Core);

impl Sentry {
    /// Waits for a handle with `wait`, as long as the handle is there.
    pub fn over<T: Send + Sync + 'static>(
        py: Python<'_>,
        handle: &Arc<T>,
        wait: impl Fn(&T, Patience) -> Result<bool> + Send + 'static,
    ) -> PyResult<Sentry> {
        let handle: Weak<T> = Arc::downgrade(handle); // Ours would keep a closed handle open.
        let wait = move |patience| wait(&*handle.upgrade().ok_or(Error::Closed)?, patience);
        Core::new(wait).map(Sentry).map_err(|e| to_py(py, e))
    }
}

#[pymethods]
impl Sentry {
    /// The descriptor.
    fn fileno(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Asks it to wait, once. Does nothing while it does.
    fn post(&self) {
        self.0.post();
    }

    /// Makes the descriptor readable now.
    fn signal(&self) {
        self.0.signal();
    }

    /// Takes note: the descriptor is not readable until the next time.
    fn clear(&self) {
        self.0.clear();
    }
}
