//! `Slot`: room for one sample, to be written in place.

use crate::convert::array;
use crate::convert::plan::Plan;
use crate::errors::to_py;
use crate::gil::GilCell;
use crate::sends::shm::Mapping;
use crate::sends::slot::slot_methods;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rollway_core::ring::{Producer as Core, Slot as CoreSlot};
use std::sync::Arc;

/// A slot of the ring: `with client.reserve() as slot: slot["obs"][:] = …`. Leaving the block commits; an exception
/// in it gives the slot back; so does dropping the slot.
#[pyclass(frozen, module = "rollway.ring")]
pub struct Slot {
    slot: GilCell<Option<CoreSlot<Arc<Core>>>>,
    leaves: Vec<Py<PyAny>>,
    tree: Py<PyAny>,
    /// The buffer of the ring that this slot is part of.
    #[pyo3(get)]
    buffer: usize,
    version: GilCell<u32>,
}

impl Slot {
    pub fn new<'py>(mapping: &Bound<'py, Mapping>, slot: CoreSlot<Arc<Core>>, plan: &Plan) -> PyResult<Slot> {
        let py = mapping.py();
        let leaves = plan.leaves.iter().enumerate().map(|(index, leaf)| {
            // SAFETY: the slot is ours to write until it is committed, and the mapping lives as long as the array.
            unsafe { array::over(py, leaf, None, slot.leaf(index), mapping.as_any(), true) }
        });
        let leaves: Vec<Bound<'_, PyAny>> = leaves.collect::<PyResult<_>>()?;
        let tree = plan.build(py, &leaves)?.unbind();
        let leaves = leaves.into_iter().map(Bound::unbind).collect();
        let buffer = slot.buffer();
        Ok(Slot { slot: GilCell::new(Some(slot)), leaves, tree, buffer, version: GilCell::new(0) })
    }

    /// Ends the claim. The arrays stay mapped, but this process has no more business in them.
    fn end(&self, py: Python<'_>) -> Option<CoreSlot<Arc<Core>>> {
        let slot = self.slot.replace(py, None);
        if slot.is_some() {
            self.leaves.iter().for_each(|leaf| array::make_read_only(leaf.bind(py)));
        }
        slot
    }
}

#[pymethods]
impl Slot {
    /// The whole sample: writable views, in the structure of the example.
    #[getter]
    fn tree(&self, py: Python<'_>) -> Py<PyAny> {
        self.tree.clone_ref(py)
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.tree.bind(py).get_item(key)
    }

    /// Publishes the sample.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        let slot = self
            .end(py)
            .ok_or_else(|| PyValueError::new_err("this slot was committed or aborted already"))?;
        if slot.producer().ring().is_closed() {
            drop(slot);
            return Err(to_py(py, rollway_core::Error::Closed));
        }
        slot.commit(self.version.get(py));
        Ok(())
    }
}

slot_methods!(Slot, slot, commit());
