//! `Consumer`: the learner's handle. `rollway.Server` owns one.

use crate::batch::Batch;
use crate::errors::{blocking, to_py};
use crate::gil::GilCell;
use crate::histogram::HistSnapshot;
use crate::plan::Plan;
use crate::producer::{on_full, patience, seconds};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rollway_core::Error;
use rollway_core::ring::{Consumer as Core, IfExists, Ring, RingSpec};
use rollway_core::sync::Ordering;
use std::sync::Arc;

/// One consumer of a ring.
#[pyclass(frozen, module = "rollway._core")]
pub struct Consumer {
    core: GilCell<Option<Arc<Core>>>,
    ring: Arc<Ring>,
    plan: Py<Plan>,
    name: Option<String>,
}

#[pymethods]
impl Consumer {
    #[new]
    #[pyo3(signature = (plan, batch_size, num_buffers, name, *, auto_named, if_exists, max_peers, on_full, huge_pages,
                        peer_timeout_s))]
    #[allow(clippy::too_many_arguments)] // Python's keyword arguments, one by one.
    fn open(
        py: Python<'_>,
        plan: Py<Plan>,
        batch_size: usize,
        num_buffers: usize,
        name: Option<String>,
        auto_named: bool,
        if_exists: &str,
        max_peers: usize,
        on_full: &str,
        huge_pages: bool,
        peer_timeout_s: Option<f64>,
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
            on_full: self::on_full(on_full)?,
            huge_pages,
        };
        let if_exists = match if_exists {
            "resume" => IfExists::Resume,
            "replace" => IfExists::Replace,
            "error" => IfExists::Fail,
            other => {
                return Err(pyo3::exceptions::PyValueError::new_err(format!(
                    "if_exists is '{other}'; it must be 'resume', 'replace' or 'error'"
                )));
            }
        };
        let peer_timeout = peer_timeout_s.map(seconds).transpose()?;
        let core = blocking(py, || Core::open(&spec, if_exists, peer_timeout))?.map_err(|e| to_py(py, e))?;
        let ring = core.ring().clone();
        Ok(Consumer { core: GilCell::new(Some(Arc::new(core))), ring, plan, name })
    }

    /// Waits for a batch. Raises `ConnectionClosedError` once the ring is shut down and empty.
    #[pyo3(signature = (timeout=None, at_least=None))]
    fn take(&self, py: Python<'_>, timeout: Option<f64>, at_least: Option<usize>) -> PyResult<Option<Batch>> {
        let (core, patience) = (self.core(py)?, patience(timeout)?);
        let batch =
            blocking(py, || Core::take(core.clone(), patience, at_least))?.map_err(|e| to_py(py, e))?;
        Ok(batch.map(|batch| Batch::new(batch, self.plan.clone_ref(py))))
    }

    /// Sleeps until there is a batch to take, at most `timeout` seconds; false when there is none.
    fn wait_readable(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let (core, patience) = (self.core(py)?, patience(Some(timeout))?);
        blocking(py, || core.wait_readable(patience))?.map_err(|e| to_py(py, e))
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.core(py)?.flush().map_err(|e| to_py(py, e))
    }

    /// Leaves; the last consumer takes the name away and wakes everybody.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        match self.core.replace(py, None) {
            Some(core) => core.close().map_err(|e| to_py(py, e)),
            None => Ok(()),
        }
    }

    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        self.core.with(py, Option::is_none) || self.ring.is_closed()
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

    /// Living producers, and the pids of those who died without closing.
    fn producers(&self, py: Python<'_>) -> PyResult<(usize, Vec<u32>)> {
        let census = self.core(py)?.producers();
        Ok((census.alive, census.died))
    }

    /// Those who have slots reserved: `(pid, slots)`.
    fn writers(&self) -> Vec<(u32, usize)> {
        self.ring.writers()
    }

    /// Where the ring lies in this process: address and bytes.
    fn memory(&self) -> (usize, usize) {
        let (body, bytes) = self.ring.segment().body();
        (body.as_ptr() as usize, bytes)
    }

    /// Plain numbers about the ring.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        ring_stats(py, &self.ring)
    }

    /// The histogram of that name: `memcpy`, `queue_dwell` or `wait`.
    fn histogram(&self, name: &str) -> PyResult<HistSnapshot> {
        let control = self.ring.protocol().control;
        match name {
            "memcpy" => Ok(control.memcpy.snapshot().into()),
            "queue_dwell" => Ok(control.dwell.snapshot().into()),
            "wait" => Ok(control.wait.snapshot().into()),
            _ => Err(pyo3::exceptions::PyKeyError::new_err(name.to_owned())),
        }
    }

    fn reset_histograms(&self) {
        let control = self.ring.protocol().control;
        control.memcpy.reset();
        control.dwell.reset();
        control.wait.reset();
    }
}

impl Consumer {
    pub fn core(&self, py: Python<'_>) -> PyResult<Arc<Core>> {
        self.core.with(py, |core| core.clone()).ok_or_else(|| to_py(py, Error::Closed))
    }
}

/// What both sides can say about the ring.
pub fn ring_stats<'py>(py: Python<'py>, ring: &Ring) -> PyResult<Bound<'py, PyDict>> {
    let contents = ring.census();
    let control = ring.protocol().control;
    let (counters, geometry) = (&control.counters, ring.geometry());
    let seats = ring.segment().seats();
    let sum = |field: fn(&rollway_core::segment::header::SeatRecord) -> &rollway_core::sync::AtomicU64| {
        seats.iter().map(|seat| field(seat).load(Ordering::Relaxed)).sum::<u64>()
    };
    let taken = counters.samples_taken.load(Ordering::Relaxed);
    let stats = PyDict::new(py);
    stats.set_item("batch_size", geometry.batch_size)?;
    stats.set_item("num_buffers", geometry.num_buffers)?;
    stats.set_item("bytes", ring.segment().header().total_bytes)?;
    stats.set_item("ready_samples", contents.ready_samples)?;
    stats.set_item("ready_batches", contents.ready_batches)?;
    stats.set_item("held_batches", contents.held_batches)?;
    stats.set_item("claimed_slots", contents.claimed_slots)?;
    stats.set_item("free_buffers", contents.free_buffers)?;
    stats.set_item("samples_taken", taken)?;
    stats.set_item("batches_taken", counters.batches_taken.load(Ordering::Relaxed))?;
    stats.set_item("samples_sent_by_seats", sum(|seat| &seat.sent))?;
    stats.set_item("claim_retries", sum(|seat| &seat.retries))?;
    stats.set_item("blocked", counters.blocked.load(Ordering::Relaxed))?;
    stats.set_item("dropped_oldest", counters.dropped_oldest.load(Ordering::Relaxed))?;
    stats.set_item("dropped_newest", counters.dropped_newest.load(Ordering::Relaxed))?;
    stats.set_item("recovered_slots", counters.recovered_slots.load(Ordering::Relaxed))?;
    stats.set_item("reoffered_batches", counters.reoffered_batches.load(Ordering::Relaxed))?;
    stats.set_item("aborted", counters.aborted.load(Ordering::Relaxed))?;
    stats.set_item("wakeups", control.readable.count())?;
    Ok(stats)
}
