//! `SampleInfo`: which producers made the samples of a batch, and the counters of the ring.

use crate::consumer_view::ConsumerView;
use crate::segment::histogram::HistSnapshot;
use numpy::PyArray1;
use pyo3::prelude::*;
use rollway_core::ring::layout::Stamp;
use rollway_core::ring::{Batch as CoreBatch, Consumer as Core};
use std::sync::Arc;

/// Which producers made the samples of a batch, and the counters of the ring.
///
/// The four arrays have one entry per sample and belong to you. The other numbers are read off the ring when you ask for
/// them, not when the batch was taken.
#[pyclass(frozen, module = "rollway")]
pub struct SampleInfo {
    view: Arc<ConsumerView<Core>>,
    stamps: Vec<Stamp>,
    /// Counted from 1 over the life of the ring.
    #[pyo3(get)]
    batch_number: u64,
    /// The buffer of the ring in which the batch lies.
    #[pyo3(get)]
    buffer: usize,
    /// Samples in the batch; fewer than `batch_size` only when it was closed early.
    #[pyo3(get)]
    pub size: usize,
}

impl SampleInfo {
    pub fn of(
        view: &Arc<ConsumerView<Core>>,
        batch: &CoreBatch<Arc<Core>>,
        runs: &[(usize, usize)],
    ) -> SampleInfo {
        let stamps = batch.stamps(runs);
        if let Some(oldest) = stamps.first() {
            batch.record_dwell(oldest);
        }
        let (size, view) = (stamps.len(), view.clone());
        let (batch_number, buffer) = batch.number();
        SampleInfo { view, stamps, batch_number, buffer, size }
    }

    fn column<'py, T: numpy::Element>(
        &self,
        py: Python<'py>,
        field: impl Fn(&Stamp) -> T,
    ) -> Bound<'py, PyArray1<T>> {
        PyArray1::from_iter(py, self.stamps.iter().map(field))
    }
}

#[pymethods]
impl SampleInfo {
    /// Which producer made each sample.
    #[getter]
    fn producer_ids<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u32>> {
        self.column(py, |stamp| stamp.producer_id)
    }

    /// The number of each sample, counted from 0 by its producer.
    #[getter]
    fn sequences<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u64>> {
        self.column(py, |stamp| stamp.sequence)
    }

    /// The version of the weights that made each sample; 0 when its producer did not say.
    #[getter]
    fn versions<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u32>> {
        self.column(py, |stamp| stamp.version)
    }

    /// When each sample was committed, by `time.monotonic_ns()`.
    #[getter]
    fn committed_ns<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u64>> {
        self.column(py, |stamp| stamp.committed_ns)
    }

    /// Committed samples that wait in the ring.
    #[getter]
    fn store_size(&self) -> usize {
        self.view.target().census().ready_samples
    }

    /// Clients attached and alive, on this machine and over the network. A learner's own `submit` is none.
    #[getter]
    fn active_connections(&self, py: Python<'_>) -> PyResult<usize> {
        let core = self.view.core(py)?;
        let seated = core.producers().alive.saturating_sub(core.own_producers());
        Ok(self.view.workers(py, seated))
    }

    /// Full batches that wait. There are no other queues in shared memory.
    #[getter]
    fn queue_depth_sum(&self) -> usize {
        self.view.target().census().ready_batches
    }

    /// As `queue_depth_sum`: there is one queue.
    #[getter]
    fn queue_depth_max(&self) -> usize {
        self.queue_depth_sum()
    }

    /// How often a producer had to wait for room.
    #[getter]
    fn push_blocked_count(&self) -> u64 {
        self.view.target().totals().blocked
    }

    /// Samples committed since the ring was made, and not dropped: used, in the learners' hands, and waiting.
    #[getter]
    fn samples_inserted_total(&self) -> u64 {
        let ring = self.view.target();
        let contents = ring.census();
        ring.totals().samples_released + (contents.held_samples + contents.ready_samples) as u64
    }

    /// How often a sleeping learner was woken.
    #[getter]
    fn notify_count(&self) -> u32 {
        self.view.target().protocol().control.readable.count()
    }

    /// Slots claimed: inserted samples, and those given back.
    #[getter]
    fn cas_success_total(&self) -> u64 {
        self.samples_inserted_total() + self.view.target().totals().aborted
    }

    /// Claims that another producer won first.
    #[getter]
    fn cas_failure_total(&self) -> u64 {
        self.view.target().totals().claim_retries
    }

    /// As `cas_failure_total`: a lost claim is tried again on the next slot.
    #[getter]
    fn reservation_retries_total(&self) -> u64 {
        self.cas_failure_total()
    }

    /// How long copying a sample into its slot took, in all producers (one send in 64 is timed).
    #[getter]
    fn memcpy(&self) -> HistSnapshot {
        self.view.target().protocol().control.memcpy.snapshot().into()
    }

    /// How long the first sample of a batch waited from its commit until the batch was taken.
    #[getter]
    fn queue_dwell(&self) -> HistSnapshot {
        self.view.target().protocol().control.dwell.snapshot().into()
    }

    /// How long the learner waited for a batch, when it had to.
    #[getter]
    fn wait(&self) -> HistSnapshot {
        self.view.target().protocol().control.wait.snapshot().into()
    }

    fn __repr__(&self) -> String {
        format!("SampleInfo(batch_number={}, size={})", self.batch_number, self.size)
    }
}
