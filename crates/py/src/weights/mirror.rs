//! `WeightMirror`: a worker's copy of weights on another host. `rollway.TcpWeights` is built on it.

use crate::convert::arguments::deadline;
use crate::convert::numbers;
use crate::device::leaf_copies::{Direction, LeavesOnGpu, LockedBuffers};
use crate::errors::{blocking, named, to_py};
use crate::gil::GilCell;
use crate::net::options::TcpOptions;
use crate::weights::handle::{gpu_copies, targets};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use rollway_core::Error;
use rollway_core::net::{WeightMirror as Core, WeightMirrorSpec, WeightOutlet};
use rollway_core::ring::Deadline;
use rollway_core::sys::parallel::default_threads;
use rollway_core::weights::Target;
use rollway_core::weights::copy::{CopyLeaves, HostCopies};
use rollway_core::weights::reader::Reading;
use std::sync::Arc;

/// Weights that a thread of the core keeps up to date. Not for users: addresses are taken as they are.
#[pyclass(frozen, module = "rollway._core")]
pub struct WeightMirror {
    core: Core,
    /// Of the server that it fetches from. Not asked of the core, whose lock a forked child may not take.
    address: GilCell<Arc<String>>,
    name: Option<String>,
    /// For copies to GPUs.
    locked: LockedBuffers,
}

#[pymethods]
impl WeightMirror {
    /// Connects, and returns when the learner has said what its weights are.
    #[new]
    #[pyo3(signature = (host, port, *, name, wanted, max_bytes, max_buffers, max_peers, threads, on_close, options))]
    #[allow(clippy::too_many_arguments)] // Keywords, all of them.
    fn connect(
        py: Python<'_>,
        host: String,
        #[pyo3(from_py_with = numbers::port)] port: u16,
        name: Option<String>,
        wanted: Option<Vec<u8>>,
        #[pyo3(from_py_with = numbers::max_bytes)] max_bytes: Option<u64>,
        #[pyo3(from_py_with = numbers::max_buffers)] max_buffers: usize,
        #[pyo3(from_py_with = numbers::max_peers)] max_peers: usize,
        #[pyo3(from_py_with = numbers::threads)] threads: Option<usize>,
        on_close: &str,
        options: TcpOptions,
    ) -> PyResult<Self> {
        let address = GilCell::new(Arc::new(format!("{host}:{port}")));
        let spec = WeightMirrorSpec {
            host,
            port,
            token: options.token,
            tls: options.tls,
            name: name.clone(),
            wanted,
            max_bytes,
            outlives_learners: waits_for_the_next(on_close)?,
            max_buffers,
            max_peers,
            threads: threads.unwrap_or_else(default_threads),
            connect_timeout: options.connect_timeout,
            reconnect_timeout: options.reconnect_timeout,
            keepalive: options.keepalive,
        };
        let core = py.detach(|| Core::start(spec)).map_err(|e| to_py(py, e))?;
        blocking(py, || core.ready(Deadline::Never))?.map_err(|e| to_py(py, e))?;
        Ok(WeightMirror { core, address, name, locked: LockedBuffers::default() })
    }

    #[getter]
    fn address(&self, py: Python<'_>) -> String {
        self.address.share(py).to_string()
    }

    #[getter]
    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    #[getter]
    fn schema<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.core.schema().map_err(|e| self.explain(py, e))?))
    }

    #[getter]
    fn leaf_bytes(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        self.core.leaf_bytes().map_err(|e| self.explain(py, e))
    }

    /// Where each leaf begins in a buffer.
    #[getter]
    fn leaf_offsets(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        self.core.leaf_offsets().map_err(|e| self.explain(py, e))
    }

    /// The latest version that is here, whole; 0 before the first.
    #[getter]
    fn version(&self, py: Python<'_>) -> PyResult<u64> {
        self.core.version().map_err(|e| self.explain(py, e))
    }

    #[getter]
    fn connected(&self) -> bool {
        self.core.is_connected()
    }

    /// Whether nothing more will come.
    #[getter]
    fn over(&self) -> bool {
        self.core.is_over()
    }

    /// Why there is no connection.
    #[getter]
    fn last_error(&self) -> Option<String> {
        self.core.last_error()
    }

    /// Copies the leaves that changed after `since` to these addresses. The version, and which of them were copied. `on_gpus`:
    /// which addresses are on GPUs.
    #[pyo3(signature = (leaves, addresses, since, on_gpus=Vec::new()))]
    fn read(
        &self,
        py: Python<'_>,
        leaves: Vec<usize>,
        addresses: Vec<usize>,
        #[pyo3(from_py_with = numbers::since)] since: u64,
        on_gpus: Vec<LeavesOnGpu>,
    ) -> PyResult<(u64, Vec<usize>)> {
        let targets = targets(&leaves, &addresses);
        let reading = match gpu_copies(py, &self.locked, on_gpus, Direction::ToGpu)? {
            // SAFETY: the Python side has checked that each address is that of a writable array of the leaf's size, and holds it.
            None => unsafe { self.read_with(py, &targets, since, &HostCopies) },
            Some(how) => {
                // SAFETY: as above.
                let reading = unsafe { self.read_with(py, &targets, since, &how) };
                how.warn(py)?;
                reading
            }
        }?;
        let reading = reading.map_err(|e| self.explain(py, e))?;
        Ok(reading.map_or((0, Vec::new()), |reading| (reading.version, reading.copied)))
    }

    /// Sleeps until that version, or a later one, is here; gives back which.
    fn wait_for_version(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = numbers::weights_version)] version: u64,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let deadline = deadline(timeout)?;
        let there = blocking(py, || self.core.wait_for(version, deadline))?;
        there.map_err(|error| match error {
            Error::Timeout => {
                let latest = self.core.version().unwrap_or(0);
                let state = match self.core.last_error() {
                    None => "the connection stands".to_owned(),
                    Some(why) => format!("there is no connection ({why})"),
                };
                let text = format!(
                    "version {version} of the weights did not come from {} in {} s; {latest} is the latest, and {state}",
                    self.address(py),
                    timeout.unwrap_or_default(),
                );
                named(py, "WaitTimeout", text)
            }
            other => self.explain(py, other),
        })
    }

    /// Fetches from another server from now on.
    fn redirect(
        &self,
        py: Python<'_>,
        host: &str,
        #[pyo3(from_py_with = numbers::port)] port: u16,
        token: Option<Vec<u8>>,
    ) -> PyResult<()> {
        py.detach(|| self.core.redirect((host, port), token.as_deref())).map_err(|e| self.explain(py, e))?;
        self.address.replace(py, Arc::new(format!("{host}:{port}")));
        Ok(())
    }

    /// What happened so far, in numbers.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = PyDict::new(py);
        for (name, value) in self.core.stats().entries() {
            stats.set_item(name, value)?;
        }
        Ok(stats)
    }

    /// Disconnects, and lets go of the copy.
    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            self.locked.clear();
            self.core.close();
        });
    }
}

/// What to do when the learner closes its weights.
fn waits_for_the_next(on_close: &str) -> PyResult<bool> {
    match on_close {
        "raise" => Ok(false),
        "wait" => Ok(true),
        other => Err(pyo3::exceptions::PyValueError::new_err(format!(
            "on_close is '{other}'; it must be 'raise' or 'wait'"
        ))),
    }
}

impl WeightMirror {
    /// What a server needs to give this copy to others.
    pub fn outlet(&self, py: Python<'_>) -> PyResult<Arc<WeightOutlet>> {
        py.detach(|| self.core.outlet()).map_err(|e| self.explain(py, e))
    }

    /// As often as the learner is faster; Ctrl-C ends it.
    ///
    /// # Safety
    /// As for [`Core::read`].
    unsafe fn read_with(
        &self,
        py: Python<'_>,
        targets: &[Target],
        since: u64,
        how: &impl CopyLeaves,
    ) -> PyResult<rollway_core::Result<Option<Reading>>> {
        // SAFETY: as the caller promises.
        match py.detach(|| unsafe { self.core.try_read(targets, since, how) }) {
            // SAFETY: as the caller promises.
            Err(Error::Timeout) => blocking(py, || unsafe { self.core.read(targets, since, how) }),
            reading => Ok(reading),
        }
    }

    #[cold]
    fn explain(&self, py: Python<'_>, error: Error) -> PyErr {
        match error {
            Error::Closed => named(
                py,
                "ConnectionClosedError",
                format!("this copy of the weights of {} is closed", self.address(py)),
            ),
            other => to_py(py, other),
        }
    }
}
