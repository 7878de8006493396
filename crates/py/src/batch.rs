//! `Batch`: a batch in the learner's hands. Its arrays hold on to it, so its room is not reused under them.

use crate::array;
use crate::gil::GilCell;
use crate::plan::Plan;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use rollway_core::ring::{Batch as CoreBatch, Consumer as Core, Ring};
use std::sync::Arc;

/// Released when `release` is called, or when it and every array of it are gone.
#[pyclass(frozen, module = "rollway._core")]
pub struct Batch {
    batch: GilCell<Option<CoreBatch<Arc<Core>>>>,
    /// Keeps the mapping after release: a view may be old then, but never dangles.
    ring: Arc<Ring>,
    plan: Py<Plan>,
    buffer: usize,
    number: u64,
    len: usize,
    runs: Vec<(usize, usize)>,
}

impl Batch {
    pub fn new(batch: CoreBatch<Arc<Core>>, plan: Py<Plan>) -> Batch {
        let (number, buffer) = batch.number();
        let (ring, len, runs) = (batch.consumer().ring().clone(), batch.len(), batch.runs());
        if let Some(&(first, _)) = runs.first() {
            batch.record_dwell(first);
        }
        Batch { batch: GilCell::new(Some(batch)), ring, plan, buffer, number, len, runs }
    }

    fn run(&self, run: usize) -> PyResult<(usize, usize)> {
        self.runs.get(run).copied().ok_or_else(|| PyIndexError::new_err(run))
    }

    fn arrays<'py>(slf: &Bound<'py, Self>, run: usize, writable: bool) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let this = slf.get();
        let (first, len) = this.run(run)?;
        let leaves = this.plan.get().leaves.iter().enumerate().map(|(index, leaf)| {
            let data = this.ring.leaf(this.buffer, index, first);
            // SAFETY: the rows lie in the ring's mapping, which the batch (the array's base) keeps alive.
            unsafe { array::over(slf.py(), leaf, Some(len), data, slf.as_any(), writable) }
        });
        leaves.collect()
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

    /// The views of a run, in the structure of the example.
    fn tree<'py>(slf: &Bound<'py, Self>, run: usize, writable: bool) -> PyResult<Bound<'py, PyAny>> {
        slf.get().plan.get().build(slf.py(), &Self::arrays(slf, run, writable)?)
    }

    /// The views of a run, one per leaf.
    fn leaves<'py>(slf: &Bound<'py, Self>, run: usize, writable: bool) -> PyResult<Bound<'py, PyList>> {
        PyList::new(slf.py(), Self::arrays(slf, run, writable)?)
    }

    /// A copy of the slot records of a run: 32 bytes each, the stamp at offset 8.
    fn records<'py>(&self, py: Python<'py>, run: usize) -> PyResult<Bound<'py, PyBytes>> {
        let (first, len) = self.run(run)?;
        self.batch.with(py, |batch| {
            let batch = batch.as_ref().ok_or_else(|| PyValueError::new_err("this batch was released"))?;
            Ok(PyBytes::new(py, batch.records(first, len)))
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
