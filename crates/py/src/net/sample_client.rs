//! `TcpSender`: a remote worker's handle. `rollway.TcpClient` is its subclass, so that `send` costs no Python frame.

use crate::convert::arguments::{check_timeout, deadline};
use crate::convert::numbers;
use crate::convert::plan::{Expect, Plan};
use crate::convert::rows::Rows;
use crate::errors::{after, blocking, to_py};
use crate::eventfd_waiter::EventfdWaiter;
use crate::net::connection::{Connection, DETACH_BYTES, Options, TcpConnection};
use pyo3::prelude::*;
use rollway_core::Error;
use rollway_core::net::TcpClient as Core;
use rollway_core::ring::Deadline;
use std::path::PathBuf;
use std::sync::Arc;

/// One worker's connection. Subclassed in Python.
#[pyclass(frozen, subclass, extends = TcpConnection, module = "rollway._core")]
pub struct TcpSender {
    core: Arc<Core>,
    plan: Py<Plan>,
    connection: Arc<Connection>,
    sample_bytes: usize,
}

#[pymethods]
impl TcpSender {
    #[new]
    #[pyo3(signature = (host, port, plan, *, max_inflight_msgs, token, tls, producer_id, connect_timeout_s,
                        reconnect_timeout_s, keepalive_s))]
    #[allow(clippy::too_many_arguments)] // Keywords, all of them, from one Python signature.
    fn connect(
        py: Python<'_>,
        host: String,
        #[pyo3(from_py_with = numbers::port)] port: u16,
        plan: Py<Plan>,
        #[pyo3(from_py_with = numbers::max_inflight_msgs)] max_inflight_msgs: usize,
        token: Option<Vec<u8>>,
        tls: Option<(PathBuf, Option<String>)>,
        #[pyo3(from_py_with = numbers::producer_id)] producer_id: Option<u32>,
        connect_timeout_s: f64,
        reconnect_timeout_s: f64,
        keepalive_s: f64,
    ) -> PyResult<PyClassInitializer<Self>> {
        let address = format!("{host}:{port}");
        let options = Options {
            max_inflight_msgs,
            token,
            tls,
            producer_id,
            connect_timeout_s,
            reconnect_timeout_s,
            keepalive_s,
        };
        let spec = options.spec(host, port)?;
        let (text, leaf_bytes) = (&plan.get().text, plan.get().leaf_bytes());
        let core = Core::start(spec, text, &leaf_bytes).map_err(|e| to_py(py, e))?;
        blocking(py, || core.ready(Deadline::Never))?.map_err(|e| to_py(py, e))?;
        let sample_bytes = leaf_bytes.iter().sum();
        let core = Arc::new(core);
        let (connection, base) = Connection::of(&core, address, "samples");
        let handle = TcpSender { core, plan, connection, sample_bytes };
        Ok(PyClassInitializer::from(base).add_subclass(handle))
    }

    /// Takes one sample. It is on its way; `wait` tells when the learner has it.
    #[pyo3(signature = (data, *, version=0, timeout=None))]
    fn send(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numbers::version)] version: u32,
        timeout: Option<f64>,
    ) -> PyResult<bool> {
        check_timeout(timeout)?;
        let mut rows = self.sample(data)?;
        let core = &self.core;
        match self.take(py, &rows, 0, version) {
            Ok(_) => Ok(true),
            Err(Error::Full) if timeout != Some(0.0) => {
                rows.keep(self.plan.get(), data)?;
                let deadline = deadline(timeout)?;
                let leaves = rows.leaves_from(self.plan.get(), 0);
                // SAFETY: as in `take`.
                blocking(py, || unsafe { core.send(leaves.get(), 1, version, deadline) })?
                    .map_err(|e| self.explain(py, e, timeout))?;
                Ok(true)
            }
            Err(error) => Err(self.explain(py, error, timeout)),
        }
    }

    /// Like `send`, but never waits: false when there is no room.
    #[pyo3(signature = (data, *, version=0))]
    fn try_send(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numbers::version)] version: u32,
    ) -> PyResult<bool> {
        let rows = self.sample(data)?;
        match self.take(py, &rows, 0, version) {
            Ok(_) => Ok(true),
            Err(Error::Full) => Ok(false),
            Err(error) => Err(self.explain(py, error, None)),
        }
    }

    /// Takes stacked samples (every leaf has a leading dimension n). Gives how many.
    #[pyo3(signature = (data, *, version=0, timeout=None))]
    fn send_many(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numbers::version)] version: u32,
        timeout: Option<f64>,
    ) -> PyResult<usize> {
        let deadline = deadline(timeout)?;
        let (sent, ended) = self.send_rows(py, data, version, deadline)?;
        match ended {
            Ok(()) => Ok(sent),
            Err(error) => Err(after(py, self.explain(py, error, timeout), sent)),
        }
    }

    /// Like `send_many`, but never waits: gives how many found room, from the first on.
    #[pyo3(signature = (data, *, version=0))]
    fn try_send_many(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numbers::version)] version: u32,
    ) -> PyResult<usize> {
        match self.send_rows(py, data, version, Deadline::Now)? {
            (sent, Ok(()) | Err(Error::Full)) => Ok(sent),
            (sent, Err(error)) => Err(after(py, self.explain(py, error, None), sent)),
        }
    }

    /// Waits for room, for event loops, and takes none.
    fn eventfd_waiter(&self, py: Python<'_>) -> PyResult<EventfdWaiter> {
        EventfdWaiter::of(py, &self.core, Core::wait_writable)
    }
}

impl TcpSender {
    /// The arrays of one sample; kept, if it is large.
    #[inline]
    fn sample(&self, data: &Bound<'_, PyAny>) -> PyResult<Rows> {
        let mut rows = Rows::of(self.plan.get(), data, Expect::Sample)?;
        if self.sample_bytes >= DETACH_BYTES {
            rows.keep(self.plan.get(), data)?;
        }
        Ok(rows)
    }

    /// Takes rows from `first` on, as far as there is room.
    #[inline]
    fn take(&self, py: Python<'_>, rows: &Rows, first: usize, version: u32) -> rollway_core::Result<usize> {
        let leaves = rows.leaves_from(self.plan.get(), first);
        let count = rows.count - first;
        // SAFETY: the arrays were checked against the plan, whose sizes are the client's; they have `count` rows. They are
        // alive: the GIL is held, or the rows are kept.
        let send = || unsafe { self.core.send(leaves.get(), count, version, Deadline::Now) };
        if self.sample_bytes * count >= DETACH_BYTES { py.detach(send) } else { send() }
    }

    fn send_rows(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        version: u32,
        deadline: Deadline,
    ) -> PyResult<(usize, rollway_core::Result<()>)> {
        let mut rows = Rows::of(self.plan.get(), data, Expect::Stack)?;
        rows.keep(self.plan.get(), data)?;
        let core = &self.core;
        let mut sent = 0;
        while sent < rows.count {
            let at_once = self.take(py, &rows, sent, version);
            let taken = match at_once {
                Err(Error::Full) if deadline != Deadline::Now => {
                    let leaves = rows.leaves_from(self.plan.get(), sent);
                    let count = rows.count - sent;
                    let mut taken = 0; // Also when a signal came in between, and its handler raised.
                    let ended = blocking(py, || {
                        // SAFETY: as in `take`.
                        taken = unsafe { core.send(leaves.get(), count, version, deadline) }?;
                        Ok(taken)
                    });
                    ended.map_err(|raised| after(py, raised, sent + taken))?
                }
                other => other,
            };
            match taken {
                Ok(taken) => sent += taken,
                Err(error) => return Ok((sent, Err(error))),
            }
        }
        Ok((sent, Ok(())))
    }

    #[cold]
    fn explain(&self, py: Python<'_>, error: Error, timeout: Option<f64>) -> PyErr {
        self.connection.explain(py, error, timeout)
    }
}
