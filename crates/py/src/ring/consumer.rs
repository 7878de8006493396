//! `Consumer`: the learner's handle. `rollway.Server` owns one.

use crate::consumer_view::{ConsumerView, CoreConsumer, consumer_methods};
use crate::convert::arguments::{self, deadline, seconds};
use crate::convert::numbers;
use crate::convert::plan::Plan;
use crate::errors::{blocking, to_py};
use crate::ring::batch::Held;
use crate::ring::sample::Sample;
use crate::segment::histogram::HistSnapshot;
use crate::stats::{set_fields, set_waits};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rollway_core::ring::{Consumer as Core, Deadline, Ring, RingSpec};
use std::sync::Arc;

/// One consumer of a ring.
#[pyclass(frozen, module = "rollway._core")]
pub struct Consumer {
    view: Arc<ConsumerView<Core>>,
    plan: Py<Plan>,
    name: Option<String>,
    writable: bool,
}

consumer_methods!(Consumer, Core);

impl CoreConsumer for Core {
    type Target = Ring;

    fn target(&self) -> &Arc<Ring> {
        self.ring()
    }

    fn is_shut_down(ring: &Ring) -> bool {
        ring.is_closed()
    }
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
        Ok(Consumer { view: Arc::new(ConsumerView::new(core)), plan, name, writable })
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

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.core(py)?.flush().map_err(|e| to_py(py, e))
    }

    /// Whether every batch is in this learner's hands.
    fn holds_all(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.core(py)?.holds_all())
    }

    /// The processes that have slots reserved: `(pid, slots)`.
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
    fn sample(slf: &Bound<'_, Self>, taken: rollway_core::Result<Option<Held>>) -> PyResult<Option<Sample>> {
        let batch = taken.map_err(|e| to_py(slf.py(), e))?;
        batch.map(|batch| Self::sample_of(slf, batch)).transpose()
    }

    /// A batch that was taken, as the learner sees it.
    pub fn sample_of(slf: &Bound<'_, Self>, batch: Held) -> PyResult<Sample> {
        let this = slf.get();
        Sample::of(slf.py(), &this.view, this.plan.get(), batch, this.writable)
    }

    pub fn ring(&self) -> &Ring {
        self.view.target()
    }
}

/// What both sides can say about the ring.
pub fn ring_stats<'py>(py: Python<'py>, ring: &Ring) -> PyResult<Bound<'py, PyDict>> {
    let (contents, totals, geometry) = (ring.census(), ring.totals(), ring.geometry());
    let stats = PyDict::new(py);
    set_fields!(stats, geometry, batch_size, num_buffers);
    stats.set_item("bytes", ring.segment().header().total_bytes)?;
    set_fields!(stats, contents, ready_samples, ready_batches, held_batches, held_samples);
    set_fields!(stats, contents, claimed_slots, free_buffers);
    set_fields!(stats, totals, samples_released, batches_released, claim_retries, blocked);
    set_fields!(stats, totals, dropped_oldest, dropped_newest, recovered_slots, reoffered_batches, aborted);
    stats.set_item("wakeups", ring.protocol().control.readable.count())?;
    set_waits(&stats, ring.segment())?;
    Ok(stats)
}
