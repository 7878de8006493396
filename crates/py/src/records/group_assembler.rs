//! `Assembler`: puts the records of a group together. `rollway.GroupAssembler` is its subclass.

use crate::convert::numbers;
use crate::errors::named;
use crate::records::group::Group;
use crate::records::held_record::HeldRecord;
use crate::records::key as record_key;
use crate::records::record::Record;
use crate::stats::set_fields;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rollway_core::records::groups::{Assembler as Core, OnIncomplete, OnStale, OutsideGroup, Rules};
use rollway_core::sys::clock::monotonic_ns;

/// The repetition of a tombstone that speaks for its whole group.
const WHOLE_GROUP: i64 = -1;

/// Groups in the making. Subclassed in Python.
#[pyclass(subclass, module = "rollway._core")]
pub struct Assembler {
    core: Core<HeldRecord>,
    /// Tells the time in seconds; `None`: CLOCK_MONOTONIC.
    clock: Option<Py<PyAny>>,
}

#[pymethods]
impl Assembler {
    #[new]
    #[pyo3(signature = (size, on_incomplete, deadline_s, max_groups, max_staleness, on_stale, memory, clock))]
    #[allow(clippy::too_many_arguments)] // Python's keyword arguments, one by one.
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = numbers::size)] size: usize,
        on_incomplete: &str,
        deadline_s: Option<f64>,
        #[pyo3(from_py_with = numbers::max_groups)] max_groups: usize,
        #[pyo3(from_py_with = numbers::max_staleness)] max_staleness: Option<u32>,
        on_stale: &str,
        #[pyo3(from_py_with = numbers::memory)] memory: usize,
        clock: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let on_incomplete = match on_incomplete {
            "wait" => OnIncomplete::Wait,
            "drop" => OnIncomplete::Drop,
            "partial" => OnIncomplete::Partial,
            other => {
                let message = format!("on_incomplete is '{other}'; it must be 'wait', 'drop' or 'partial'");
                return Err(named(py, "InvalidArgument", message));
            }
        };
        let on_stale = match on_stale {
            "drop" => OnStale::Drop,
            "withhold" => OnStale::Withhold,
            "report" => OnStale::Report,
            other => {
                let message = format!("on_stale is '{other}'; it must be 'drop', 'withhold' or 'report'");
                return Err(named(py, "InvalidArgument", message));
            }
        };
        let rules = Rules { size, on_incomplete, deadline_s, max_groups, max_staleness, on_stale, memory };
        Ok(Assembler { core: Core::new(rules), clock })
    }

    /// A clock may hold on to the assembler that asks it.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.clock.as_ref().map_or(Ok(()), |clock| visit.call(clock))
    }

    fn __clear__(&mut self) {
        self.clock = None;
    }

    /// Takes one record, and says how many groups are ready. It is released here if it belongs to no group that is wanted.
    fn add(&mut self, py: Python<'_>, record: Bound<'_, Record>) -> PyResult<usize> {
        let this = record.get();
        let Some((name, repetition)) = this.group_name(py)? else {
            let message = "a record of a group needs a key: send it with key=RecordKey(...)".to_owned();
            return Err(named(py, "InvalidArgument", message));
        };
        let now_s = self.now(py)?;
        let taken = if !this.is_tombstone() {
            self.core.add(&name, repetition, HeldRecord::new(&record), now_s)
        } else {
            let reason = tombstone_reason(&record)?;
            let told = if repetition == WHOLE_GROUP {
                self.core.tombstone_group(&name, &reason);
                Ok(())
            } else {
                self.core.add_tombstone(&name, repetition, &reason, now_s)
            };
            if told.is_ok() {
                this.release(py);
            }
            told
        };
        taken.map_err(|OutsideGroup| {
            let (key, size) = (record.getattr("key"), self.core.rules().size);
            let key =
                key.and_then(|key| key.str()).map_or_else(|_| "a key".to_owned(), |key| key.to_string());
            named(py, "InvalidArgument", format!("{key} has a repetition outside a group of {size}"))
        })?;
        Ok(self.core.ready())
    }

    /// Treats the group of this packed key as if the rest of it were tombstones.
    fn tombstone_rest(&mut self, py: Python<'_>, packed: &[u8], reason: &str) -> PyResult<()> {
        let (name, _) = record_key::group_name(py, packed)?;
        self.core.give_up(&name, reason);
        Ok(())
    }

    /// Says which weights are the newest; staleness is counted from there, also of groups that are ready.
    fn set_version(&mut self, #[pyo3(from_py_with = numbers::version)] version: u32) {
        self.core.set_version(version);
    }

    /// The next group that is ready, or `None`. Looks at the deadlines first.
    fn pop(&mut self, py: Python<'_>) -> PyResult<Option<Group>> {
        let now_s = self.now(py)?;
        let group = self.core.pop(now_s);
        group.map(|group| Group::of(py, group, self.core.rules().size)).transpose()
    }

    /// The next group that was withheld because it is stale, or `None`.
    fn pop_withheld(&mut self, py: Python<'_>) -> PyResult<Option<Group>> {
        let group = self.core.pop_withheld();
        group.map(|group| Group::of(py, group, self.core.rules().size)).transpose()
    }

    /// Detaches every record in its hands: they cost their workers nothing any more.
    fn detach(&self, py: Python<'_>) {
        self.core.members().for_each(|held| held.record().detach(py));
    }

    /// Releases everything that is held.
    fn close(&mut self) {
        self.core.clear();
    }

    /// Records per group.
    #[getter]
    fn size(&self) -> usize {
        self.core.rules().size
    }

    /// Unfinished groups.
    #[getter]
    fn pending(&self) -> usize {
        self.core.pending().len()
    }

    /// Groups that `pop` would give now.
    #[getter]
    fn ready(&self) -> usize {
        self.core.ready()
    }

    /// Records that it holds: of unfinished groups, and of groups that were not popped yet.
    #[getter]
    fn held(&self) -> usize {
        self.core.held()
    }

    /// Seconds until an unfinished group's deadline is over: wait no longer than that for the next record.
    #[getter]
    fn next_deadline_s(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        Ok(self.core.next_deadline_s(self.now(py)?))
    }

    /// The repetitions that each unfinished group waits for.
    fn missing<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let missing = PyDict::new(py);
        for group in self.core.pending() {
            let lacking = group.missing(self.core.rules().size);
            let lacking: Vec<usize> = lacking.filter(|at| !group.tombstones.contains_key(at)).collect();
            missing.set_item(record_key::unpack_group(py, &group.name)?, lacking)?;
        }
        Ok(missing)
    }

    /// What became of the records and groups so far, by name.
    fn count<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (now, counts) = (self.core.counts(), PyDict::new(py));
        set_fields!(
            counts, now, complete, partial, dropped, dead, stale, withheld, duplicates, late, evicted
        );
        Ok(counts)
    }
}

impl Assembler {
    /// Tells the time. A clock of the user's is asked now, for it may fail.
    fn now(&self, py: Python<'_>) -> PyResult<impl FnOnce() -> f64 + use<>> {
        let told = self.clock.as_ref().map(|clock| clock.call0(py)?.extract::<f64>(py)).transpose()?;
        Ok(move || told.unwrap_or_else(|| monotonic_ns() as f64 / 1e9))
    }
}

/// Why its worker says that it will never come; empty if it does not say.
fn tombstone_reason(tombstone: &Bound<'_, Record>) -> PyResult<String> {
    let said = tombstone.getattr("metadata")?;
    match said.cast::<PyDict>().ok().map(|said| said.get_item("reason")).transpose()?.flatten() {
        Some(reason) => Ok(reason.str()?.to_string_lossy().into_owned()),
        None => Ok(String::new()),
    }
}
