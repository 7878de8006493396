//! `TablesWriter`: one stream of steps, and the items that are made of it. `rollway.replay.Writer` owns one.

use crate::convert::arguments::deadline;
use crate::convert::plan::Plan;
use crate::convert::rows::Rows;
use crate::convert::value::Dims;
use crate::errors::{blocking, named};
use crate::tables::handle::closed_or;
use pyo3::prelude::*;
use rollway_core::Error;
use rollway_core::replay::Source;
use rollway_core::sys::wait::Deadline;
use rollway_core::tables::writer::Writer;
use rollway_core::tables::{NewItem, Tables as Core};
use std::sync::{Arc, Mutex, MutexGuard};

/// One stream of steps.
#[pyclass(frozen, module = "rollway._core")]
pub struct TablesWriter {
    writer: Mutex<Writer>,
    core: Arc<Core>,
    plan: Py<Plan>,
}

#[pymethods]
impl TablesWriter {
    /// Appends one step, or several that are stacked. False when there was no room in time; of several, those that were
    /// appended before stay.
    fn append(
        &self,
        py: Python<'_>,
        step: &Bound<'_, PyAny>,
        stacked: bool,
        timeout: Option<f64>,
    ) -> PyResult<bool> {
        let mut guard = self.lock(py)?;
        let writer = &mut *guard;
        let plan = self.plan.get();
        let mut rows = Rows::of(plan, step, if stacked { Dims::Rows } else { Dims::Fixed }, 0)?;
        let count = if stacked { rows.count } else { 1 };
        let mut done = 0;
        // SAFETY: there is one source for each leaf, with `count` rows, checked by `Rows::of`, and they are kept below before the
        // GIL is let go.
        let mut append = |rows: &Rows, deadline| unsafe {
            let leaves = plan.leaves.iter().enumerate();
            let source = |(index, leaf): (usize, &crate::convert::leaf::Leaf)| Source {
                data: rows.leaf(index),
                stride: leaf.bytes as isize,
                patch: None,
            };
            let sources: smallvec::SmallVec<[Source; 16]> = leaves.map(source).collect();
            writer.append(&sources, &mut done, count, deadline)
        };
        match append(&rows, Deadline::Now) {
            Err(Error::Timeout) => {
                rows.keep(plan, step)?;
                let deadline = deadline(timeout)?;
                match blocking(py, || append(&rows, deadline))? {
                    Err(Error::Timeout) => Ok(false),
                    appended => appended.map(|()| true).map_err(|e| closed_or(py, self.core.name(), e)),
                }
            }
            appended => appended.map(|()| true).map_err(|e| closed_or(py, self.core.name(), e)),
        }
    }

    /// Makes an item of the last `span` steps, but for the last `skipped`. `None` when the limiter did not admit it in time.
    #[allow(clippy::too_many_arguments)] // Python's arguments, one by one.
    fn insert(
        &self,
        py: Python<'_>,
        table: usize,
        span: u32,
        skipped: u64,
        pattern: u32,
        priority: f64,
        version: u64,
        timeout: Option<f64>,
    ) -> PyResult<Option<u64>> {
        let first = {
            let writer = self.lock(py)?;
            let end = writer.steps().saturating_sub(skipped);
            let Some(first) =
                end.checked_sub(span as u64).filter(|&first| first >= writer.oldest() && span > 0)
            else {
                let kept = end.saturating_sub(writer.oldest());
                let message = format!(
                    "an item of {span} steps cannot be made: the writer has the last {kept}. Append more first, or give it a \
                     larger history"
                );
                return Err(named(py, "InvalidArgument", message));
            };
            writer.place(first)
        };
        let item = NewItem { first, span, pattern, priority, version: version as u32 };
        let (mut done, mut keys) = (0, Vec::new());
        let mut insert = |deadline| self.core.insert(table, &[item], &mut done, &mut keys, deadline);
        match insert(Deadline::Now) {
            Err(Error::Timeout) => {
                let deadline = deadline(timeout)?;
                match blocking(py, || insert(deadline))? {
                    Err(Error::Timeout) => return Ok(None),
                    inserted => inserted.map_err(|e| closed_or(py, self.core.name(), e))?,
                }
            }
            inserted => inserted.map_err(|e| closed_or(py, self.core.name(), e))?,
        }
        Ok(keys.first().copied())
    }

    /// How many steps were appended.
    #[getter]
    fn steps(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.lock(py)?.steps())
    }

    /// How many steps items can be made of.
    #[getter]
    fn kept(&self, py: Python<'_>) -> PyResult<u64> {
        let writer = self.lock(py)?;
        Ok(writer.steps() - writer.oldest())
    }

    /// Lets go of the steps of which no item was made.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let mut guard = self.lock(py)?;
        let writer = &mut *guard;
        blocking(py, || writer.close())?.map_err(|e| closed_or(py, self.core.name(), e))
    }
}

impl TablesWriter {
    pub fn new(core: Arc<Core>, plan: Py<Plan>, history: usize) -> TablesWriter {
        TablesWriter { writer: Mutex::new(Writer::new(core.clone(), history)), core, plan }
    }

    fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Writer>> {
        let busy = || {
            let message = "this writer is in use by another thread: each thread needs a writer of its own";
            named(py, "InvalidArgument", message.to_owned())
        };
        self.writer.try_lock().map_err(|_| busy())
    }
}
