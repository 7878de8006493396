//! `Sample`: a batch and its info, as the training loop sees them.

use crate::consumer_view::ConsumerView;
use crate::convert::plan::Plan;
use crate::errors::named;
use crate::ring::batch::{Batch, Held};
use crate::ring::sample_info::SampleInfo;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyAny, PyDict, PyInt, PyTuple};
use rollway_core::ring::{Batch as CoreBatch, Consumer as Core};
use std::sync::Arc;

/// A batch and its info: `batch, info = sample`.
///
/// `len(sample)` is the number of samples in the batch, and `sample["obs"]` is `sample.batch["obs"]`. As in a pair,
/// `sample[0]` is the batch and `sample[1]` the info.
///
/// The arrays are views into shared memory. Their room goes back to the producers when you call `release`, or when the
/// sample and every array of it are garbage, whichever comes first; until then no producer writes to it. After `release` a
/// view that you kept stays readable, but its contents will change.
#[pyclass(frozen, mapping, module = "rollway")]
pub struct Sample {
    /// The samples, stacked: the structure of the example, with a leading dimension.
    #[pyo3(get)]
    batch: Py<PyAny>,
    /// Which producers made them, and the counters of the ring.
    #[pyo3(get)]
    info: Py<SampleInfo>,
    room: Option<Py<Batch>>,
    /// The arrays lie in the room.
    is_view: bool,
}

impl Sample {
    /// Wraps a batch that was taken: builds the views and notes the stamps.
    pub fn of(
        py: Python<'_>,
        view: &Arc<ConsumerView<Core>>,
        plan: &Plan,
        batch: CoreBatch<Arc<Core>>,
        writable: bool,
    ) -> PyResult<Sample> {
        let runs = batch.runs();
        let info = Py::new(py, SampleInfo::of(view, &batch, &runs))?;
        let room = Bound::new(py, Batch::new(batch))?;
        // What cannot be built goes back, unread: nothing is lost.
        let tree = Batch::tree(&room, plan, &runs, writable).inspect_err(|_| room.get().give_back(py))?;
        if runs.len() != 1 {
            room.get().release(py); // The samples were copied out.
        }
        Ok(Sample { batch: tree.unbind(), info, room: Some(room.unbind()), is_view: runs.len() == 1 })
    }
}

impl Sample {
    /// Raises if producers may be writing to the arrays already.
    fn check_held(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_view && self.released(py) {
            let message = "the sample was released, and its room may be in use again: ask for tensors before";
            return Err(named(py, "InvalidArgument", message.to_owned()));
        }
        Ok(())
    }
}

impl Sample {
    /// The room, which now is the caller's to give back; `None` when there is none, or it was given back already.
    pub fn take_held(&self, py: Python<'_>) -> Option<Held> {
        self.room.as_ref().and_then(|room| room.get().take_held(py))
    }
}

#[pymethods]
impl Sample {
    /// Pairs arrays of your own with an info.
    #[new]
    fn new(batch: Py<PyAny>, info: Py<SampleInfo>) -> Sample {
        Sample { batch, info, room: None, is_view: false }
    }

    /// The batch as torch tensors, in the memory where it lies: no copy. They keep the room as the arrays do.
    fn torch<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.check_held(py)?;
        py.import("rollway.torch")?.call_method1("as_tensors", (&self.batch,))
    }

    /// The batch as a `TensorDict`, in the memory where it lies: no copy. Needs the package tensordict.
    fn tensordict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.check_held(py)?;
        py.import("rollway.torch")?.call_method1("as_tensordict", (&self.batch, self.__len__()))
    }

    /// The batch as arrays of JAX on a device, which are copies: they never change, also not after `release`.
    #[pyo3(signature = (device=None))]
    fn jax<'py>(&self, py: Python<'py>, device: Option<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        self.check_held(py)?;
        py.import("rollway.jax")?.call_method1("as_arrays", (&self.batch, device))
    }

    /// Gives the room back to the producers now. Does nothing the second time.
    fn release(&self, py: Python<'_>) {
        if let Some(room) = &self.room {
            room.get().release(py);
        }
    }

    /// Whether the room was given back.
    #[getter]
    fn released(&self, py: Python<'_>) -> bool {
        self.room.as_ref().is_none_or(|room| room.get().is_released(py))
    }

    fn __len__(&self) -> usize {
        self.info.get().size
    }

    /// A whole number is a place in the pair; anything else is a key of the batch.
    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = key.py();
        if !key.is_instance_of::<PyInt>() {
            return self.batch.bind(py).get_item(key);
        }
        match key.extract::<isize>() {
            Ok(0 | -2) => Ok(self.batch.bind(py).clone()),
            Ok(1 | -1) => Ok(self.info.bind(py).clone().into_any()),
            _ => Err(PyIndexError::new_err(
                "a sample is a pair, (batch, info): rows of a leaf are sample['leaf'][number]",
            )),
        }
    }

    /// Whether the batch has such a key.
    fn __contains__(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let batch = self.batch.bind(key.py());
        if batch.is_instance_of::<PyDict>() { batch.contains(key) } else { Ok(false) }
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let pair = PyTuple::new(py, [self.batch.clone_ref(py), self.info.clone_ref(py).into_any()])?;
        Ok(pair.try_iter()?.into_any())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.release(py);
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let state = if self.released(py) { " released" } else { "" };
        format!("<rollway.Sample of {}{state}>", self.info.get().size)
    }
}
