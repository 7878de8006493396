//! `RecordConsumer`: the learner's handle on records. `rollway.RecordServer` owns one.

use crate::consumer_view::{ConsumerView, CoreConsumer, consumer_methods};
use crate::convert::arguments::{deadline, if_exists, on_full, seconds};
use crate::convert::numbers;
use crate::convert::record_plan::RecordPlan;
use crate::errors::{blocking, to_py};
use crate::records::record::Record;
use crate::segment::histogram::HistSnapshot;
use crate::stats::{set_fields, set_waits};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use rollway_core::records::format::Shape;
use rollway_core::records::{Consumer as Core, Deadline, Record as CoreRecord, Records, RecordsSpec};
use std::sync::Arc;

/// One consumer of records.
#[pyclass(frozen, module = "rollway._core")]
pub struct RecordConsumer {
    view: ConsumerView<Core>,
    plan: Py<RecordPlan>,
    name: Option<String>,
}

consumer_methods!(RecordConsumer, Core);

impl CoreConsumer for Core {
    type Target = Records;

    fn target(&self) -> &Arc<Records> {
        self.records()
    }

    fn is_shut_down(records: &Records) -> bool {
        records.is_closed()
    }
}

#[pymethods]
impl RecordConsumer {
    #[new]
    #[pyo3(signature = (plan, name, *, lanes, lane_bytes, max_records, auto_named, if_exists, max_peers, on_full,
                        preallocate, peer_timeout_s))]
    #[allow(clippy::too_many_arguments)] // Python's keyword arguments, one by one.
    fn open(
        py: Python<'_>,
        plan: Py<RecordPlan>,
        name: Option<String>,
        #[pyo3(from_py_with = numbers::lanes)] lanes: usize,
        #[pyo3(from_py_with = numbers::lane_bytes)] lane_bytes: usize,
        #[pyo3(from_py_with = numbers::max_records)] max_records: usize,
        auto_named: bool,
        if_exists: &str,
        #[pyo3(from_py_with = numbers::max_peers)] max_peers: usize,
        on_full: &str,
        preallocate: bool,
        peer_timeout_s: Option<f64>,
    ) -> PyResult<Self> {
        let spec = RecordsSpec {
            name: name.as_deref(),
            auto_named,
            schema: &plan.get().text,
            lanes,
            lane_bytes,
            descriptors: max_records,
            max_peers,
            on_full: self::on_full(on_full)?,
            preallocate,
        };
        let if_exists = self::if_exists(if_exists)?;
        let peer_timeout = peer_timeout_s.map(seconds).transpose()?;
        let core = blocking(py, || Core::open(&spec, if_exists, peer_timeout))?.map_err(|e| to_py(py, e))?;
        Ok(RecordConsumer::of(core, plan, name))
    }

    /// A consumer of records that are there.
    #[staticmethod]
    fn attach(
        py: Python<'_>,
        plan: Py<RecordPlan>,
        name: String,
        peer_timeout_s: Option<f64>,
    ) -> PyResult<Self> {
        let peer_timeout = peer_timeout_s.map(seconds).transpose()?;
        let core = Core::attach(&name, Some(&plan.get().text), peer_timeout).map_err(|e| to_py(py, e))?;
        Ok(RecordConsumer::of(core, plan, Some(name)))
    }

    /// Raises what keeps records of that name from being attached to.
    #[staticmethod]
    fn check(py: Python<'_>, plan: &RecordPlan, name: &str) -> PyResult<()> {
        Records::check(name, &plan.text).map_err(|e| to_py(py, e))
    }

    /// Waits for a record. `None` when there is none and `timeout` is 0. Raises `ConnectionClosedError` once the records
    /// are shut down and all taken.
    #[pyo3(signature = (timeout=None))]
    fn take(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Record>> {
        let (core, deadline) = (self.core(py)?, deadline(timeout)?);
        // Trying first saves letting go of the GIL.
        let taken = match Core::take(core.clone(), Deadline::Now) {
            Ok(None) if deadline != Deadline::Now => blocking(py, || Core::take(core.clone(), deadline))?,
            at_once => at_once,
        };
        let record = taken.map_err(|e| to_py(py, e))?;
        record.map(|record| Record::of(py, &self.plan, record)).transpose()
    }

    /// Waits for a record, then takes what is there, at most `most`, fairly from all lanes. Empty when there is none and
    /// `timeout` is 0.
    #[pyo3(signature = (most, timeout=None))]
    fn take_many<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = numbers::most)] most: usize,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyList>> {
        let (core, deadline) = (self.core(py)?, deadline(timeout)?);
        let taken = match Core::take_many(core.clone(), most, Deadline::Now) {
            Ok(none) if none.is_empty() && deadline != Deadline::Now => {
                blocking(py, || Core::take_many(core.clone(), most, deadline))?
            }
            at_once => at_once,
        };
        let mut taken = taken.map_err(|e| to_py(py, e))?.into_iter();
        let mut records: Vec<Py<Record>> = Vec::with_capacity(taken.len());
        while let Some(record) = taken.next() {
            match Record::of(py, &self.plan, record).and_then(|record| Py::new(py, record)) {
                Ok(record) => records.push(record),
                Err(error) => {
                    // It is damaged, and told of; the others are not, and come again.
                    records.iter().for_each(|record| record.get().give_back(py));
                    taken.for_each(CoreRecord::give_back);
                    return Err(error);
                }
            }
        }
        PyList::new(py, records)
    }

    /// Tells the workers which weights are the newest.
    fn publish(&self, #[pyo3(from_py_with = numbers::version)] version: u32) {
        self.records().publish(version.into());
    }

    #[getter]
    fn published_version(&self) -> u64 {
        self.records().published()
    }

    /// Removes the name: no process can attach any more. False when it was not there.
    fn unlink(&self, py: Python<'_>) -> PyResult<bool> {
        self.records().segment().unlink().map_err(|e| to_py(py, e))
    }

    /// Leaves, and shuts nothing down, also as the last.
    fn detach(&self, py: Python<'_>) {
        if let Some(core) = self.view.take_core(py) {
            core.leave();
        }
    }

    /// Plain numbers about the records.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        record_stats(py, self.records())
    }

    /// How long things take: a record's dwelling in its lane, the learner's waiting.
    fn histograms<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let control = self.records().protocol().control;
        let histograms = PyDict::new(py);
        for (name, histogram) in [("queue_dwell", &control.dwell), ("wait", &control.wait)] {
            histograms.set_item(name, HistSnapshot::from(histogram.snapshot()).into_pyobject(py)?)?;
        }
        Ok(histograms)
    }
}

impl RecordConsumer {
    fn of(core: Core, plan: Py<RecordPlan>, name: Option<String>) -> RecordConsumer {
        RecordConsumer { view: ConsumerView::new(core), plan, name }
    }

    fn records(&self) -> &Records {
        self.view.target()
    }

    /// What lies in the bytes of a record.
    pub fn shape(&self) -> Shape {
        self.plan.get().shape.clone()
    }
}

/// What both sides can say about the records.
pub fn record_stats<'py>(py: Python<'py>, records: &Records) -> PyResult<Bound<'py, PyDict>> {
    let (contents, totals, geometry) = (records.census(), records.totals(), records.geometry());
    let stats = PyDict::new(py);
    set_fields!(stats, geometry, lanes, lane_bytes);
    set_fields!(stats, contents, grown_bytes, ready_records, ready_bytes, reserved_records);
    set_fields!(stats, totals, blocked, dropped_oldest, dropped_newest, aborted);
    stats.set_item("lanes_taken", contents.lanes)?;
    stats.set_item("taken_records", contents.held_records)?;
    stats.set_item("taken_bytes", contents.held_bytes)?;
    stats.set_item("records_committed", totals.committed)?;
    stats.set_item("records_taken", totals.taken)?;
    stats.set_item("records_released", totals.released)?;
    stats.set_item("recovered_reservations", totals.recovered)?;
    stats.set_item("returned_records", totals.returned)?;
    set_waits(&stats, records.segment())?;
    Ok(stats)
}
