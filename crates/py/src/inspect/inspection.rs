//! `Inspection`: a segment that is looked at from outside, mapped read-only.

use crate::convert::record_plan::RecordPlan;
use crate::errors::to_py;
use crate::segment::contents::contents;
use crate::segment::histogram::HistSnapshot;
use crate::stats::set_fields;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use rollway_core::Error;
use rollway_core::inspect::{Inspection as Core, Newest, Participant};

/// A segment of this user, mapped read-only. It takes no seat and no lock.
#[pyclass(frozen, module = "rollway._core")]
pub struct Inspection(Core);

#[pymethods]
impl Inspection {
    #[new]
    fn open(py: Python<'_>, name: &str) -> PyResult<Self> {
        py.detach(|| Core::open(name)).map(Inspection).map_err(|e| to_py(py, e))
    }

    #[getter]
    fn name(&self) -> &str {
        self.0.segment().name()
    }

    /// What the segment holds, in a word.
    #[getter]
    fn kind(&self) -> &'static str {
        contents(self.0.segment().header().kind).0
    }

    #[getter]
    fn schema<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.segment().schema())
    }

    #[getter]
    fn creator_pid(&self) -> u32 {
        self.0.segment().header().creator_pid
    }

    #[getter]
    fn created_unix_ns(&self) -> u64 {
        self.0.segment().header().created_unix_ns
    }

    #[getter]
    fn used_bytes(&self) -> u64 {
        self.0.segment().used_bytes()
    }

    /// Looks once: `at_ns`, `numbers`, `histograms`, `participants`, `closed`, `unlinked`.
    fn look<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let look = py.detach(|| self.0.look()).map_err(|e| to_py(py, e))?;
        let (seen, numbers, histograms) = (PyDict::new(py), PyDict::new(py), PyDict::new(py));
        for (name, number) in &look.numbers {
            numbers.set_item(name, number)?;
        }
        for (name, histogram) in &look.histograms {
            histograms.set_item(name, HistSnapshot::from(*histogram).into_pyobject(py)?)?;
        }
        let participants: Vec<_> =
            look.participants.iter().map(|one| participant(py, one)).collect::<PyResult<_>>()?;
        seen.set_item("at_ns", look.at_ns)?;
        seen.set_item("numbers", numbers)?;
        seen.set_item("histograms", histograms)?;
        seen.set_item("participants", PyList::new(py, participants)?)?;
        seen.set_item("closed", look.is_closed)?;
        seen.set_item("unlinked", look.is_unlinked)?;
        Ok(seen)
    }

    /// Copies what was committed last, the newest first.
    fn newest<'py>(&self, py: Python<'py>, count: usize) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let newest = py.detach(|| self.0.newest(count)).map_err(|e| to_py(py, e))?;
        newest.iter().map(|one| described(py, one)).collect()
    }

    /// The parts of a record that `newest` gave: its key, its metadata and its leaves, each with its rows.
    fn record_parts<'py>(
        &self,
        py: Python<'py>,
        plan: &RecordPlan,
        record: &[u8],
    ) -> PyResult<Vec<(Bound<'py, PyBytes>, usize)>> {
        let placement = plan
            .shape
            .parse(record)
            .map_err(|damage| to_py(py, Error::Corrupt { name: self.name().to_owned(), what: damage.0 }))?;
        let places = placement.offsets.iter().zip(&placement.counts).zip(&plan.shape.leaves);
        let part =
            |((&start, &rows), leaf): ((&usize, &usize), &rollway_core::records::format::LeafShape)| {
                (PyBytes::new(py, &record[start..start + rows * leaf.row_bytes]), rows)
            };
        Ok(places.map(part).collect())
    }
}

fn participant<'py>(py: Python<'py>, one: &Participant) -> PyResult<Bound<'py, PyDict>> {
    let row = PyDict::new(py);
    set_fields!(row, one, seat, pid, role, joined_unix_ns, writing, holding, oldest_held_ns, unread);
    row.set_item("remote_connected", one.remotes.connected)?;
    row.set_item("remote_lost", one.remotes.lost)?;
    row.set_item("remote_lost_ns", one.remotes.lost_ns)?;
    row.set_item("remote_lost_address", one.remotes.lost_address.map(|address| address.to_string()))?;
    row.set_item("state", one.state.name())?;
    row.set_item("activity", one.times.activity.name())?;
    set_fields!(row, one.times, wall_ns, wait_data_ns, wait_room_ns, hold_ns, work_ns, copy_ns);
    set_fields!(row, one.times, activity_ns, committed, last_commit_ns, version);
    Ok(row)
}

fn described<'py>(py: Python<'py>, newest: &Newest) -> PyResult<Bound<'py, PyDict>> {
    let row = PyDict::new(py);
    row.set_item("parts", PyList::new(py, newest.parts.iter().map(|part| PyBytes::new(py, part)))?)?;
    set_fields!(row, newest, number, age_ns, producer_id, sequence, version, kind);
    Ok(row)
}
