//! `TcpConnection`: what handles of samples and of records over TCP have in common: connecting, waiting, closing, errors.

use crate::convert::arguments::deadline;
use crate::errors::{blocking, named, to_py};
use crate::eventfd_waiter::EventfdWaiter;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use rollway_core::Error;
use rollway_core::net::Client;
use std::ops::Deref;
use std::sync::Arc;

/// Copies larger than this let other threads of the interpreter run meanwhile.
pub const DETACH_BYTES: usize = 16 * 1024;

/// One connection, and how it is spoken of.
pub struct Connection {
    client: Arc<dyn Deref<Target = Client> + Send + Sync>,
    address: String,
    /// "samples", or "records".
    content: &'static str,
}

/// What a worker can ask of its connection, whatever it sends. `TcpSender` and `TcpRecordSender` extend it.
#[pyclass(frozen, subclass, module = "rollway._core")]
pub struct TcpConnection(Arc<Connection>);

#[pymethods]
impl TcpConnection {
    /// Returns when the learner has everything that was sent.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let deadline = deadline(timeout)?;
        blocking(py, || self.0.client.wait(deadline))?.map_err(|e| self.0.explain(py, e, timeout))
    }

    /// Waits until `wait` would not, for event loops, and takes nothing.
    fn _settled_eventfd_waiter(&self, py: Python<'_>) -> PyResult<EventfdWaiter> {
        EventfdWaiter::of(py, &self.0, |connection, deadline| connection.client.wait_settled(deadline))
    }

    /// Waits for what is on its way, at most `timeout` seconds, and disconnects.
    #[pyo3(signature = (timeout))]
    fn close(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let deadline = deadline(timeout)?;
        match blocking(py, || self.0.client.close(deadline))? {
            Err(Error::Forked { .. }) | Ok(()) => Ok(()),
            Err(error) => Err(self.0.explain(py, error, timeout)),
        }
    }

    #[getter]
    fn closed(&self) -> bool {
        self.0.client.is_closed()
    }

    #[getter]
    fn connected(&self) -> bool {
        self.0.client.is_connected()
    }

    /// Why there is no connection.
    #[getter]
    fn last_error(&self) -> Option<String> {
        self.0.client.last_error()
    }

    /// Whether it is of no more use: closed, or its learner gone for good.
    #[getter]
    fn over(&self) -> bool {
        self.0.client.is_over()
    }

    /// `host:port`.
    #[getter]
    fn address(&self) -> &str {
        &self.0.address
    }

    #[getter]
    fn producer_id(&self) -> Option<u32> {
        self.0.client.producer_id()
    }

    /// What was sent and is not known to be with the learner.
    #[getter]
    fn unacknowledged(&self) -> u64 {
        self.0.client.unacknowledged()
    }

    /// Plain numbers: what this client sent, and over how many connections.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (stats, client) = (PyDict::new(py), &self.0.client);
        stats.set_item("sent", client.sent())?;
        stats.set_item("acknowledged", client.acknowledged())?;
        for (name, value) in client.stats().entries() {
            stats.set_item(name, value)?;
        }
        if let Some(bytes) = client.lane_bytes() {
            stats.set_item("lane_bytes", bytes)?;
        }
        Ok(stats)
    }
}

impl Connection {
    /// The connection of a client, and the base of its handle.
    pub fn of<C>(client: &Arc<C>, address: String, content: &'static str) -> (Arc<Connection>, TcpConnection)
    where
        C: Deref<Target = Client> + Send + Sync + 'static,
    {
        let connection = Arc::new(Connection { client: client.clone(), address, content });
        (connection.clone(), TcpConnection(connection))
    }

    /// The exception for an error of this handle: what was awaited, and what is on its way.
    #[cold]
    pub fn explain(&self, py: Python<'_>, error: Error, timeout: Option<f64>) -> PyErr {
        let (address, content, waiting) = (&self.address, self.content, self.client.unacknowledged());
        let state = match self.client.last_error() {
            _ if self.client.is_connected() => "connected".to_owned(),
            Some(why) => format!("no connection now ({why})"),
            None => "no connection now".to_owned(),
        };
        match error {
            Error::Timeout => {
                let seconds = timeout.unwrap_or_default();
                let message = format!(
                    "{address} did not take everything within {seconds} s: {waiting} {content} are not acknowledged, {state}. \
                     Wait longer, or see whether the learner still takes them"
                );
                named(py, "WaitTimeout", message)
            }
            Error::Full => {
                let message = format!(
                    "no room on the way to {address}: {waiting} {content} are not acknowledged, {state}"
                );
                named(py, "RingFull", message)
            }
            Error::Closed => {
                named(py, "ConnectionClosedError", format!("this client of {address} is closed"))
            }
            Error::ConnectionClosed { unacknowledged, .. } => {
                let raised = to_py(py, error);
                match raised.value(py).setattr("unacknowledged", unacknowledged) {
                    Ok(()) => raised,
                    Err(failed) => failed,
                }
            }
            Error::ForeignSchema { ref ours, .. } => {
                let given = if content == "records" { "schema" } else { "example" };
                let ours = PyBytes::new(py, ours);
                let foreign = to_py(py, error);
                let explain = py.import("rollway.schema.pytree").and_then(|module| module.getattr("explain"));
                match explain.and_then(|explain| explain.call1((ours, foreign.value(py), given))) {
                    Ok(raised) => PyErr::from_value(raised),
                    Err(failed) => failed,
                }
            }
            other => to_py(py, other),
        }
    }
}

/// `tcp_sender!(Class, Plan, content)`: gives a class its constructor, which connects, and makes it a [`Sender`](crate::sends::Sender).
/// The class has the functions `start` and `wrap`, and a field `connection`. It expands to a block of `#[pymethods]` with the
/// constructor, and to the trait's implementation.
macro_rules! tcp_sender {
    ($Class:ident, $Plan:ident, $content:literal) => {
        #[pymethods]
        impl $Class {
            #[new]
            #[pyo3(signature = (host, port, plan, options, *, max_inflight_msgs, max_unacknowledged, producer_id, on_restart))]
            #[allow(clippy::too_many_arguments)] // Keywords, most of them.
            fn connect(
                py: Python<'_>,
                host: String,
                #[pyo3(from_py_with = $crate::convert::numbers::port)] port: u16,
                plan: Py<$Plan>,
                options: $crate::net::options::TcpOptions,
                #[pyo3(from_py_with = $crate::convert::numbers::max_inflight_msgs)] max_inflight_msgs: usize,
                #[pyo3(from_py_with = $crate::convert::numbers::max_unacknowledged)] max_unacknowledged: Option<usize>,
                #[pyo3(from_py_with = $crate::convert::numbers::producer_id)] producer_id: Option<u32>,
                on_restart: &str,
            ) -> PyResult<PyClassInitializer<Self>> {
                let address = format!("{host}:{port}");
                let spec = rollway_core::net::TcpClientSpec {
                    host,
                    port,
                    token: options.token,
                    tls: options.tls,
                    connect_timeout: options.connect_timeout,
                    reconnect_timeout: options.reconnect_timeout,
                    keepalive: options.keepalive,
                    producer_id,
                    max_inflight_msgs,
                    max_unacknowledged,
                    on_restart: $crate::convert::arguments::on_restart(on_restart)?,
                };
                let core = Self::start(spec, plan.get()).map_err(|e| $crate::errors::to_py(py, e))?;
                let connected = blocking(py, || core.ready(Deadline::Never))?;
                connected.map_err(|e| $crate::errors::to_py(py, e))?;
                let core = Arc::new(core);
                let (connection, base) = Connection::of(&core, address, $content);
                Ok(PyClassInitializer::from(base).add_subclass(Self::wrap(core, plan, connection)))
            }
        }

        impl Sender for $Class {
            #[cold]
            fn explain(&self, py: Python<'_>, error: Error, timeout: Option<f64>) -> PyErr {
                self.connection.explain(py, error, timeout)
            }
        }
    };
}
pub(crate) use tcp_sender;
