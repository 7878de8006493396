//! `EventfdWaiter`: lets an event loop wait for a handle. `rollway.waiting.notifier` asks the handles for one.

use crate::errors::to_py;
use pyo3::prelude::*;
use rollway_core::sys::eventfd_waiter::EventfdWaiter as Core;
use rollway_core::{Error, Result, sys::wait::Deadline};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Weak};

/// A native thread that waits for a handle, and a file descriptor that is readable when it is worth looking.
#[pyclass(frozen, module = "rollway._core")]
pub struct EventfdWaiter(Core);

impl EventfdWaiter {
    /// Waits for a handle with `wait`, as long as the handle is there.
    pub fn of<T: Send + Sync + 'static>(
        py: Python<'_>,
        handle: &Arc<T>,
        wait: impl Fn(&T, Deadline) -> Result<bool> + Send + 'static,
    ) -> PyResult<EventfdWaiter> {
        let handle: Weak<T> = Arc::downgrade(handle); // Ours would keep a closed handle open.
        let wait = move |deadline| wait(&*handle.upgrade().ok_or(Error::Closed)?, deadline);
        Core::new(wait).map(EventfdWaiter).map_err(|e| to_py(py, e))
    }
}

#[pymethods]
impl EventfdWaiter {
    /// The descriptor.
    fn fileno(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Asks it to wait, once. Does nothing while it does.
    fn arm(&self) {
        self.0.arm();
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
