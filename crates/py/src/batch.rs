//! `Batch`: a batch in the learner's hands. Its arrays hold on to it, so its room is not reused under them.

use crate::array;
use crate::gil::GilCell;
use crate::plan::Plan;
use pyo3::prelude::*;
use pyo3::types::PyList;
use rollway_core::ring::{Batch as CoreBatch, Consumer as Core, Ring};
use std::sync::Arc;

/// Released when `release` is called, or when it and every array of it are gone.
#[pyclass(frozen, module = "rollway._core")]
pub struct Batch {
    batch: GilCell<Option<CoreBatch<Arc<Core>>>>,
    /// Keeps the mapping after release: a view may be old then, but never dangles.
    #[allow(dead_code)]
    ring: Arc<Ring>,
    plan: Py<Plan>,
    buffer: usize,
    number: u64,
    len: usize,
    runs: Vec<(usize, usize)>,
}

impl Batch {
    pub fn new(_py: Python<'_>, batch: CoreBatch<Arc<Core>>, plan: Py<Plan>) -> PyResult<Batch> {
        batch.record_dwell();
        let (number, buffer) = batch.number();
        let (ring, len, runs) = (batch.consumer().ring().clone(), batch.len(), batch.runs());
        Ok(Batch { batch: GilCell::new(Some(batch)), ring, plan, buffer, number, len, runs })
    }
}

#[pymethods]
impl Batch {
    fn __len__(&self) -> usize {
        self.len
    }

    /// The number of the batch, counted from 1 over the life of the ring.
    #[getter]
    fn number(&self) -> u64 {
        self.number
    }

    /// Runs of rows with samples, as `(first, length)`. One, unless the batch was closed early with gaps.
    #[getter]
    fn runs(&self) -> Vec<(usize, usize)> {
        self.runs.clone()
    }

    /// One array per leaf over the rows of a run.
    fn leaves<'py>(slf: &Bound<'py, Self>, run: usize, writable: bool) -> PyResult<Bound<'py, PyList>> {
        let (py, this) = (slf.py(), slf.get());
        let &(first, len) = this.runs.get(run).ok_or_else(|| pyo3::exceptions::PyIndexError::new_err(run))?;
        let leaves = PyList::empty(py);
        for (index, leaf) in this.plan.get().leaves.iter().enumerate() {
            let data = this.ring.leaf(this.buffer, index, first);
            // SAFETY: the rows lie in the ring's mapping, which the batch (the array's base) keeps alive.
            leaves.append(unsafe { array::over(py, leaf, Some(len), data, slf.as_any(), writable)? })?;
        }
        Ok(leaves)
    }

    /// The stamps of a run, one after the other: sequence u64, committed_ns u64, producer_id u32, version u32.
    fn stamps<'py>(&self, py: Python<'py>, run: usize) -> PyResult<Bound<'py, pyo3::types::PyBytes>> {
        let &(first, len) = self.runs.get(run).ok_or_else(|| pyo3::exceptions::PyIndexError::new_err(run))?;
        let released = || pyo3::exceptions::PyValueError::new_err("this batch was released");
        self.batch.with(py, |batch| {
            let batch = batch.as_ref().ok_or_else(released)?;
            let mut bytes = Vec::with_capacity(len * 24);
            for row in first..first + len {
                let stamp = batch.stamp(row);
                bytes.extend_from_slice(&stamp.sequence.to_ne_bytes());
                bytes.extend_from_slice(&stamp.committed_ns.to_ne_bytes());
                bytes.extend_from_slice(&stamp.producer_id.to_ne_bytes());
                bytes.extend_from_slice(&stamp.version.to_ne_bytes());
            }
            Ok(pyo3::types::PyBytes::new(py, &bytes))
        })
    }

    /// Gives the room back now. Views of it stay mapped; their contents will change.
    fn release(&self, py: Python<'_>) {
        drop(self.batch.replace(py, None));
    }

    /// Puts the batch back unread, for whoever asks next.
    fn give_back(&self, py: Python<'_>) {
        if let Some(batch) = self.batch.replace(py, None) {
            batch.give_back();
        }
    }

    #[getter]
    fn released(&self, py: Python<'_>) -> bool {
        self.batch.with(py, Option::is_none)
    }
}
