//! `Consumer`: the learner's handle. `rollway.Server` owns one.

use crate::convert::arguments::{self, deadline, seconds};
use crate::convert::numbers;
use crate::convert::plan::Plan;
use crate::errors::{blocking, to_py};
use crate::eventfd_waiter::EventfdWaiter;
use crate::net::endpoints::Endpoints;
use crate::ring::ring_view::RingView;
use crate::ring::sample::Sample;
use crate::segment::histogram::HistSnapshot;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rollway_core::ring::{Batch as CoreBatch, Consumer as Core, Deadline, Ring, RingSpec};
use std::sync::Arc;

/// One consumer of a ring.
#[pyclass(frozen, module = "rollway._core")]
pub struct Consumer {
    view: Arc<RingView>,
    plan: Py<Plan>,
    name: Option<String>,
    writable: bool,
}

#[pymethods]
impl Consumer {
    #[new]
    #[pyo3(signature = (plan, batch_size, num_buffers, name, *, auto_named, if_exists, max_peers, on_full, huge_pages,
                        peer_timeout_s, writable))]
    #[allow(clippy::too_many_arguments)] // Python's keyword arguments, one by one.
    fn open(
        py: Python<'_>,
        plan: Py<Plan>,
        #[pyo3(from_py_with = numbers::batch_size)] batch_size: usize,
        #[pyo3(from_py_with = numbers::num_buffers)] num_buffers: usize,
        name: Option<String>,
        auto_named: bool,
        if_exists: &str,
        #[pyo3(from_py_with = numbers::max_peers)] max_peers: usize,
        on_full: &str,
        huge_pages: Option<bool>,
        peer_timeout_s: Option<f64>,
        writable: bool,
    ) -> PyResult<Self> {
        let leaf_bytes = plan.get().leaf_bytes();
        let spec = RingSpec {
            name: name.as_deref(),
            auto_named,
            schema: &plan.get().text,
            leaf_bytes: &leaf_bytes,
            batch_size,
            num_buffers,
            max_peers,
            on_full: arguments::on_full(on_full)?,
            huge_pages,
        };
        let if_exists = arguments::if_exists(if_exists)?;
        let peer_timeout = peer_timeout_s.map(seconds).transpose()?;
        let core = blocking(py, || Core::open(&spec, if_exists, peer_timeout))?.map_err(|e| to_py(py, e))?;
        Ok(Consumer { view: Arc::new(RingView::new(core)), plan, name, writable })
    }

    /// Waits for a batch. `None` when there is none and `timeout` is 0. Raises `ConnectionClosedError` once the ring is
    /// shut down and empty.
    #[pyo3(signature = (timeout=None, at_least=None))]
    fn take(
        slf: &Bound<'_, Self>,
        timeout: Option<f64>,
        #[pyo3(from_py_with = numbers::at_least)] at_least: Option<usize>,
    ) -> PyResult<Option<Sample>> {
        let (py, this) = (slf.py(), slf.get());
        let (core, deadline) = (this.core(py)?, deadline(timeout)?);
        // Trying first saves letting go of the GIL.
        let at_once = match deadline {
            Deadline::Now => Core::take(core.clone(), deadline, at_least),
            _ => Core::try_take_in_order(core.clone()),
        };
        let taken = match at_once {
            Ok(None) if deadline != Deadline::Now => {
                blocking(py, || Core::take(core.clone(), deadline, at_least))?
            }
            at_once => at_once,
        };
        Self::sample(slf, taken)
    }

    /// A batch if there is one and it is its turn; never waits.
    fn try_take_in_order(slf: &Bound<'_, Self>) -> PyResult<Option<Sample>> {
        let core = slf.get().core(slf.py())?;
        Self::sample(slf, Core::try_take_in_order(core))
    }

    /// Waits for a batch to take, for event loops, and takes none.
    fn _eventfd_waiter(&self, py: Python<'_>) -> PyResult<EventfdWaiter> {
        EventfdWaiter::of(py, &self.core(py)?, Core::wait_readable)
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.core(py)?.flush().map_err(|e| to_py(py, e))
    }

    /// Leaves; the last consumer takes the name away and wakes everybody.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        match self.view.take_core(py) {
            Some(core) => core.close().map_err(|e| to_py(py, e)),
            None => Ok(()),
        }
    }

    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        self.view.is_closed(py)
    }

    #[getter]
    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Whether the ring was there already, with what had been committed.
    #[getter]
    fn resumed(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.core(py)?.resumed())
    }

    /// Whether every batch is in this learner's hands.
    fn holds_all(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.core(py)?.holds_all())
    }

    /// Living producers, here and at the other end of connections, and the pids of those who died without closing.
    fn producers(&self, py: Python<'_>) -> PyResult<(usize, Vec<u32>)> {
        let census = self.core(py)?.producers();
        Ok((self.view.workers(py, census.alive), census.died))
    }

    /// Those who have slots reserved: `(pid, slots)`.
    fn writers(&self) -> Vec<(u32, usize)> {
        self.ring().writers()
    }

    /// Where the ring lies in this process: address and bytes.
    fn _memory(&self) -> (usize, usize) {
        let (body, bytes) = self.ring().segment().body();
        (body.as_ptr() as usize, bytes)
    }

    /// Plain numbers about the ring.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        ring_stats(py, self.ring())
    }

    /// How long things take: copying a sample, a batch's dwelling in the ring, the learner's waiting.
    fn histograms<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let control = self.ring().protocol().control;
        let histograms = PyDict::new(py);
        for (name, histogram) in
            [("memcpy", &control.memcpy), ("queue_dwell", &control.dwell), ("wait", &control.wait)]
        {
            histograms.set_item(name, HistSnapshot::from(histogram.snapshot()).into_pyobject(py)?)?;
        }
        Ok(histograms)
    }

    fn reset_histograms(&self) {
        let control = self.ring().protocol().control;
        control.memcpy.reset();
        control.dwell.reset();
        control.wait.reset();
    }
}

impl Consumer {
    fn sample(
        slf: &Bound<'_, Self>,
        taken: rollway_core::Result<Option<CoreBatch<Arc<Core>>>>,
    ) -> PyResult<Option<Sample>> {
        let (this, batch) = (slf.get(), taken.map_err(|e| to_py(slf.py(), e))?);
        batch.map(|batch| Sample::of(slf.py(), &this.view, this.plan.get(), batch, this.writable)).transpose()
    }

    pub fn ring(&self) -> &Ring {
        self.view.ring()
    }

    /// The transports that feed the ring.
    pub fn endpoints(&self) -> &Endpoints {
        self.view.endpoints()
    }

    pub fn core(&self, py: Python<'_>) -> PyResult<Arc<Core>> {
        self.view.core(py)
    }
}

/// What both sides can say about the ring.
pub fn ring_stats<'py>(py: Python<'py>, ring: &Ring) -> PyResult<Bound<'py, PyDict>> {
    let (contents, totals, geometry) = (ring.census(), ring.totals(), ring.geometry());
    let stats = PyDict::new(py);
    stats.set_item("batch_size", geometry.batch_size)?;
    stats.set_item("num_buffers", geometry.num_buffers)?;
    stats.set_item("bytes", ring.segment().header().total_bytes)?;
    stats.set_item("ready_samples", contents.ready_samples)?;
    stats.set_item("ready_batches", contents.ready_batches)?;
    stats.set_item("held_batches", contents.held_batches)?;
    stats.set_item("held_samples", contents.held_samples)?;
    stats.set_item("claimed_slots", contents.claimed_slots)?;
    stats.set_item("free_buffers", contents.free_buffers)?;
    stats.set_item("samples_released", totals.samples_released)?;
    stats.set_item("batches_released", totals.batches_released)?;
    stats.set_item("claim_retries", totals.claim_retries)?;
    stats.set_item("blocked", totals.blocked)?;
    stats.set_item("dropped_oldest", totals.dropped_oldest)?;
    stats.set_item("dropped_newest", totals.dropped_newest)?;
    stats.set_item("recovered_slots", totals.recovered_slots)?;
    stats.set_item("reoffered_batches", totals.reoffered_batches)?;
    stats.set_item("aborted", totals.aborted)?;
    stats.set_item("wakeups", ring.protocol().control.readable.count())?;
    Ok(stats)
}
