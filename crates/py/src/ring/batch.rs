//! `Batch`: what the arrays of a sample hold on to. Its room is reused when the last of them is gone.

use crate::convert::array;
use crate::convert::plan::Plan;
use crate::gil::GilCell;
use pyo3::prelude::*;
use pyo3::types::PyList;
use rollway_core::ring::{Batch as CoreBatch, Consumer as Core, Ring};
use std::sync::Arc;

/// Released when `release` is called, or when it and every array of it are gone. Not for users.
#[pyclass(frozen, module = "rollway._core")]
pub struct Batch {
    batch: GilCell<Option<Held>>,
    /// Keeps the mapping after release: a view may be old then, but never dangles.
    ring: Arc<Ring>,
    buffer: usize,
}

/// The room of a batch: dropped, it goes back to the producers. Any thread may do that.
pub type Held = CoreBatch<Arc<Core>>;

impl Batch {
    pub fn new(batch: Held) -> Batch {
        let (ring, buffer) = (batch.consumer().ring().clone(), batch.number().1);
        Batch { batch: GilCell::new(Some(batch)), ring, buffer }
    }

    /// Gives the room back now. Views of it stay mapped; their contents will change.
    pub fn release(&self, py: Python<'_>) {
        drop(self.batch.replace(py, None));
    }

    /// The room, which now is the caller's to give back; `None` when it was given back already.
    pub fn take_held(&self, py: Python<'_>) -> Option<Held> {
        self.batch.replace(py, None)
    }

    /// Puts it back, for the next call.
    pub fn give_back(&self, py: Python<'_>) {
        if let Some(batch) = self.batch.replace(py, None) {
            batch.give_back();
        }
    }

    pub fn is_released(&self, py: Python<'_>) -> bool {
        self.batch.is_none(py)
    }

    /// The samples in the structure of the example: views, or a copy where the batch was closed early with gaps.
    pub fn tree<'py>(
        slf: &Bound<'py, Self>,
        plan: &Plan,
        runs: &[(usize, usize)],
        writable: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        if let &[run] = runs {
            return plan.build(py, &Self::views(slf, plan, run, writable)?);
        }
        let numpy = py.import("numpy")?;
        let pieces: Vec<Vec<Bound<'py, PyAny>>> =
            runs.iter().map(|&run| Self::views(slf, plan, run, false)).collect::<PyResult<_>>()?;
        let leaves = (0..plan.leaves.len()).map(|leaf| {
            let parts = PyList::new(py, pieces.iter().map(|piece| &piece[leaf]))?;
            numpy.call_method1("concatenate", (parts,))
        });
        plan.build(py, &leaves.collect::<PyResult<Vec<_>>>()?)
    }

    fn views<'py>(
        slf: &Bound<'py, Self>,
        plan: &Plan,
        (first, len): (usize, usize),
        writable: bool,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let this = slf.get();
        let leaves = plan.leaves.iter().enumerate().map(|(index, leaf)| {
            let data = this.ring.leaf(this.buffer, index, first);
            // SAFETY: the rows lie in the ring's mapping, which the batch (the array's base) keeps alive.
            unsafe { array::over(slf.py(), leaf, Some(len), data, slf.as_any(), writable) }
        });
        leaves.collect()
    }
}
