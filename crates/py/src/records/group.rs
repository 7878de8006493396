//! `Group`: the records of one group, as an assembler hands them over.

use crate::gil::GilCell;
use crate::records::held_record::HeldRecord;
use crate::records::key as record_key;
use crate::records::record::Record;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};
use rollway_core::records::groups::{Group as Core, Member, Name};

/// The records of one group.
///
/// Attributes:
///     key: What they have in common.
///     records: By repetition, in order. Release them, or let go of them, when you are done.
///     missing: Repetitions that are not there: tombstones, or not come in time.
///     tombstones: Why some of those will never come, as their workers said.
///     staleness: How many versions the oldest record was behind the newest weights when the group was handed over.
///     version: The version of the oldest weights that made one of its records; 0 when it has none.
#[pyclass(frozen, module = "rollway.records")]
pub struct Group {
    name: Name,
    #[pyo3(get)]
    records: Py<PyList>,
    #[pyo3(get)]
    missing: Py<PyList>,
    #[pyo3(get)]
    tombstones: Py<PyDict>,
    #[pyo3(get)]
    staleness: u32,
    #[pyo3(get)]
    version: u32,
    /// Made when it is first asked for.
    key: GilCell<Option<Py<PyAny>>>,
}

impl Group {
    pub fn of(py: Python<'_>, group: Core<HeldRecord>, size: usize) -> PyResult<Group> {
        let missing = PyList::empty(py);
        if group.members.len() < size {
            group.missing(size).try_for_each(|repetition| missing.append(repetition))?;
        }
        let tombstones = PyDict::new(py);
        for (repetition, reason) in &group.tombstones {
            tombstones.set_item(repetition, &**reason)?;
        }
        let version = group.members.values().map(Member::version).min().unwrap_or(0);
        let Core { name, members, staleness, .. } = group;
        let records = PyList::new(py, members.into_values().map(HeldRecord::into_record))?;
        Ok(Group {
            name,
            records: records.unbind(),
            missing: missing.unbind(),
            tombstones: tombstones.unbind(),
            staleness,
            version,
            key: GilCell::new(None),
        })
    }
}

#[pymethods]
impl Group {
    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if let Some(known) = self.key.share(py) {
            return Ok(known.into_bound(py));
        }
        let key = record_key::unpack_group(py, &self.name)?;
        drop(self.key.replace(py, Some(key.clone().unbind())));
        Ok(key)
    }

    /// Whether every repetition is there.
    #[getter]
    fn is_complete(&self, py: Python<'_>) -> bool {
        self.missing.bind(py).is_empty()
    }

    /// Which of its records, by their place in `records`, have nothing but this item in a leaf; a leaf that is empty has
    /// nothing else either. `item` is one element, as bytes.
    fn filled_with(&self, py: Python<'_>, leaf: &Bound<'_, PyString>, item: &[u8]) -> PyResult<Vec<usize>> {
        let mut filled = Vec::new();
        for (place, record) in self.records.bind(py).iter().enumerate() {
            if record.cast::<Record>()?.get().is_filled_with(leaf, item)? {
                filled.push(place);
            }
        }
        Ok(filled)
    }

    /// Gives the room of all its records back.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.records.bind(py).iter().try_for_each(|record| record.call_method0("release").map(drop))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (records, missing) = (self.records.bind(py).len(), self.missing.bind(py).repr()?);
        Ok(format!("<rollway.records.Group {} records={records} missing={missing}>", self.key(py)?.repr()?))
    }
}
