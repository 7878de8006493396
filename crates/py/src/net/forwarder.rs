//! `Forwarder`: sends on what the workers of a node write into its ring, or into its lanes for records. `rollway.transport.Forwarder`
//! and `rollway.transport.RecordForwarder` own one.

use crate::convert::arguments::{self, deadline};
use crate::convert::numbers;
use crate::convert::plan::Plan;
use crate::convert::record_plan::RecordPlan;
use crate::errors::{blocking, named, to_py};
use crate::net::options::TcpOptions;
use crate::records::consumer::record_stats;
use crate::stats::set_fields;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rollway_core::Error;
use rollway_core::net::{Forwarder as Core, NodeBuffer, TcpClientSpec};
use rollway_core::records::RecordsSpec;
use rollway_core::ring::{Deadline, Ring, RingSpec};

/// One node's connection, and what it empties.
#[pyclass(frozen, module = "rollway._core")]
pub struct Forwarder {
    core: Core,
    name: String,
    address: String,
}

#[pymethods]
impl Forwarder {
    #[new]
    #[pyo3(signature = (name, plan, host, port, options, *, rows, num_buffers, max_peers, on_full, on_restart))]
    #[allow(clippy::too_many_arguments)] // Keywords, most of them.
    fn connect(
        py: Python<'_>,
        name: String,
        plan: Py<Plan>,
        host: String,
        #[pyo3(from_py_with = numbers::port)] port: u16,
        options: TcpOptions,
        #[pyo3(from_py_with = numbers::rows)] rows: usize,
        #[pyo3(from_py_with = numbers::num_buffers)] num_buffers: usize,
        #[pyo3(from_py_with = numbers::max_peers)] max_peers: usize,
        on_full: &str,
        on_restart: &str,
    ) -> PyResult<Self> {
        let leaf_bytes = plan.get().leaf_bytes();
        let ring = RingSpec {
            name: Some(&name),
            auto_named: false,
            schema: &plan.get().text,
            leaf_bytes: &leaf_bytes,
            batch_size: rows,
            num_buffers,
            max_peers,
            on_full: arguments::on_full(on_full)?,
            huge_pages: None,
        };
        Self::start(py, &name, host, port, options, on_restart, |spec| Core::start(spec, &ring))
    }

    /// One of records.
    #[staticmethod]
    #[pyo3(signature = (name, plan, host, port, options, *, lanes, lane_bytes, max_records, max_peers, on_full, on_restart))]
    #[allow(clippy::too_many_arguments)] // Keywords, most of them.
    fn of_records(
        py: Python<'_>,
        name: String,
        plan: Py<RecordPlan>,
        host: String,
        #[pyo3(from_py_with = numbers::port)] port: u16,
        options: TcpOptions,
        #[pyo3(from_py_with = numbers::lanes)] lanes: usize,
        #[pyo3(from_py_with = numbers::lane_bytes)] lane_bytes: usize,
        #[pyo3(from_py_with = numbers::max_records)] max_records: usize,
        #[pyo3(from_py_with = numbers::max_peers)] max_peers: usize,
        on_full: &str,
        on_restart: &str,
    ) -> PyResult<Self> {
        let records = RecordsSpec {
            name: Some(&name),
            auto_named: false,
            schema: &plan.get().text,
            lanes,
            lane_bytes,
            descriptors: max_records,
            max_peers,
            on_full: arguments::on_full(on_full)?,
            preallocate: false,
        };
        Self::start(py, &name, host, port, options, on_restart, |spec| Core::start_records(spec, &records))
    }

    /// Returns when the learner has everything that workers have committed so far.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let deadline = deadline(timeout)?;
        blocking(py, || self.core.wait(deadline))?.map_err(|e| self.explain(py, e, timeout))
    }

    /// Sends what is committed, waits for at most `timeout` seconds until the learner has it, and ends.
    #[pyo3(signature = (timeout))]
    fn close(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let deadline = deadline(timeout)?;
        match blocking(py, || self.core.close(deadline))? {
            Err(Error::Forked { .. }) | Ok(()) => Ok(()),
            Err(error) => Err(self.explain(py, error, timeout)),
        }
    }

    /// Ends at once. What is in the segment stays there for the next forwarder.
    fn abandon(&self, py: Python<'_>) {
        py.detach(|| self.core.abandon());
    }

    /// Ends at once, and shuts the segment down with what is in it.
    fn discard(&self, py: Python<'_>) {
        py.detach(|| self.core.discard());
    }

    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// `host:port`.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    #[getter]
    fn connected(&self) -> bool {
        self.core.is_connected()
    }

    /// Why there is no connection.
    #[getter]
    fn last_error(&self) -> Option<String> {
        self.core.last_error()
    }

    #[getter]
    fn closed(&self) -> bool {
        self.core.is_closed()
    }

    /// Whether it has ended: closed, or its learner gone for good.
    #[getter]
    fn over(&self) -> bool {
        self.core.is_over()
    }

    /// Why it has ended, if it was not closed.
    #[getter]
    fn error(&self) -> Option<String> {
        self.core.error().map(|error| error.to_string())
    }

    /// Samples, or records, that workers have committed and that the learner has not acknowledged.
    #[getter]
    fn committed(&self) -> usize {
        self.core.buffer().committed()
    }

    /// Plain numbers: what is in the segment, what was sent, and over how many connections.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = match self.core.buffer() {
            NodeBuffer::Ring(ring) => ring_stats(py, ring)?,
            NodeBuffer::Records(records) => record_stats(py, records)?,
        };
        stats.set_item("sent", self.core.sent())?;
        stats.set_item("acknowledged", self.core.acknowledged())?;
        for (name, value) in self.core.stats().entries() {
            stats.set_item(name, value)?;
        }
        Ok(stats)
    }
}

fn ring_stats<'py>(py: Python<'py>, ring: &Ring) -> PyResult<Bound<'py, PyDict>> {
    let (contents, totals, geometry) = (ring.census(), ring.totals(), ring.geometry());
    let stats = PyDict::new(py);
    set_fields!(stats, geometry, batch_size, num_buffers);
    set_fields!(stats, contents, ready_samples, held_batches, held_samples, claimed_slots, free_buffers);
    set_fields!(stats, totals, blocked, dropped_oldest, dropped_newest, recovered_slots, reoffered_batches);
    Ok(stats)
}

impl Forwarder {
    fn start(
        py: Python<'_>,
        name: &str,
        host: String,
        port: u16,
        options: TcpOptions,
        on_restart: &str,
        start: impl Fn(TcpClientSpec) -> rollway_core::Result<Core> + Sync,
    ) -> PyResult<Forwarder> {
        let address = format!("{host}:{port}");
        let spec = TcpClientSpec {
            host,
            port,
            token: options.token,
            tls: options.tls,
            connect_timeout: options.connect_timeout,
            reconnect_timeout: options.reconnect_timeout,
            keepalive: options.keepalive,
            on_restart: arguments::on_restart(on_restart)?,
            ..TcpClientSpec::default()
        };
        let core = blocking(py, || start(spec.clone()))?.map_err(|e| to_py(py, e))?;
        blocking(py, || core.ready(Deadline::Never))?.map_err(|e| to_py(py, e))?;
        Ok(Forwarder { core, name: name.to_owned(), address })
    }

    #[cold]
    fn explain(&self, py: Python<'_>, error: Error, timeout: Option<f64>) -> PyErr {
        let (name, address) = (&self.name, &self.address);
        match error {
            Error::Timeout => {
                let state = match self.core.last_error() {
                    _ if self.core.is_connected() => "connected".to_owned(),
                    Some(why) => format!("no connection now ({why})"),
                    None => "no connection now".to_owned(),
                };
                let buffer = self.core.buffer();
                let (seconds, left, content) =
                    (timeout.unwrap_or_default(), buffer.committed(), buffer.content());
                let message = format!(
                    "{address} did not take everything of '{name}' within {seconds} s: {left} {content} are committed there and not \
                     acknowledged, {state}. Wait longer, or see whether the learner still takes them"
                );
                named(py, "WaitTimeout", message)
            }
            Error::Closed => {
                named(py, "ConnectionClosedError", format!("the forwarder of '{name}' is closed"))
            }
            other => to_py(py, other),
        }
    }
}
