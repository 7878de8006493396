//! `RecordProducer`: a worker's handle on its lane. `rollway.ShmRecordClient` is its subclass.

use crate::convert::arguments::{check_timeout, deadline, on_full, seconds};
use crate::convert::numbers;
use crate::convert::record_plan::{Parts, RecordPlan, rows_of};
use crate::errors::{after, blocking, named, to_py};
use crate::eventfd_waiter::EventfdWaiter;
use crate::gil::GilCell;
use crate::records::bundle::{Bundle, Versions};
use crate::records::consumer::{RecordConsumer, record_stats};
use crate::records::label::{Label, TOMBSTONE};
use crate::records::room_hint::RoomHint;
use crate::records::slot::{Place, RecordMapping, RecordSlot};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use rollway_core::Error;
use rollway_core::records::{
    Deadline, Label as CoreLabel, OnFull, Outgoing, Producer as Core, ProducerSpec, Reservation,
};
use rollway_core::segment::arrival;
use std::ops::Deref;
use std::sync::Arc;

/// Copies larger than this let other threads of the interpreter run meanwhile.
const DETACH_BYTES: usize = 256 * 1024;

/// One producer of records. Subclassed in Python.
#[pyclass(frozen, subclass, module = "rollway._core")]
pub struct RecordProducer {
    core: GilCell<Option<Arc<Core>>>,
    plan: Py<RecordPlan>,
    mapping: Py<RecordMapping>,
    name: String,
    room_hint: Arc<RoomHint>,
}

#[pymethods]
impl RecordProducer {
    #[new]
    #[pyo3(signature = (name, plan, producer_id=None, on_full=None, connect_timeout_s=0.0, peer_timeout_s=None))]
    fn attach(
        py: Python<'_>,
        name: String,
        plan: Py<RecordPlan>,
        #[pyo3(from_py_with = numbers::producer_id)] producer_id: Option<u32>,
        on_full: Option<&str>,
        connect_timeout_s: f64,
        peer_timeout_s: Option<f64>,
    ) -> PyResult<Self> {
        let spec = ProducerSpec {
            producer_id,
            on_full: on_full.map(self::on_full).transpose()?,
            peer_timeout: peer_timeout_s.map(seconds).transpose()?,
        };
        let deadline = deadline(Some(connect_timeout_s))?;
        let text = &plan.get().text;
        let core = blocking(py, || arrival::attach(&name, deadline, || Core::attach(&name, text, spec)))?
            .map_err(|e| to_py(py, e))?;
        Self::wrap(py, core, plan, name)
    }

    /// A producer in the learner's own process.
    #[staticmethod]
    fn beside(py: Python<'_>, consumer: &RecordConsumer, plan: Py<RecordPlan>) -> PyResult<Self> {
        let records = consumer.core(py)?.records().clone();
        let spec = ProducerSpec { producer_id: None, on_full: None, peer_timeout: None };
        let name = records.segment().name().to_owned();
        let core = Core::attach_to(records, spec).map_err(|e| to_py(py, e))?;
        Self::wrap(py, core, plan, name)
    }

    /// Copies one record into this worker's lane. True: committed. False: dropped, as the policy says.
    #[pyo3(signature = (data, *, key=None, metadata=None, version=0, timeout=None))]
    fn send<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        key: Option<&Bound<'py, PyAny>>,
        metadata: Option<&Bound<'py, PyAny>>,
        #[pyo3(from_py_with = numbers::version)] version: u32,
        timeout: Option<f64>,
    ) -> PyResult<bool> {
        check_timeout(timeout)?;
        let label = Label::of(py, key, metadata, version)?;
        let mut parts = self.parts(py, data, &label)?;
        let core = self.core(py)?;
        match Core::reserve(&*core, parts.bytes(), Deadline::Now) {
            Ok(room) => self.fill(py, room, &parts, &label),
            Err(Error::Full) => {
                parts.keep(self.plan.get(), data)?;
                self.put(py, &parts, &label, timeout)
            }
            Err(error) => Err(self.explain(py, error, timeout)),
        }
    }

    /// Like `send`, but never waits: false when there is no room.
    #[pyo3(signature = (data, *, key=None, metadata=None, version=0))]
    fn try_send<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        key: Option<&Bound<'py, PyAny>>,
        metadata: Option<&Bound<'py, PyAny>>,
        #[pyo3(from_py_with = numbers::version)] version: u32,
    ) -> PyResult<bool> {
        let label = Label::of(py, key, metadata, version)?;
        let parts = self.parts(py, data, &label)?;
        let core = self.core(py)?;
        match Core::reserve(&*core, parts.bytes(), Deadline::Now) {
            Ok(room) => self.fill(py, room, &parts, &label),
            Err(Error::Full) => {
                self.room_hint.note(parts.bytes());
                Ok(false)
            }
            Err(error) => Err(self.explain(py, error, None)),
        }
    }

    /// Copies several records, in their order: a list, with a list of keys, of metadata and of versions, or one version for all.
    /// Gives how many were committed; those that the policy dropped do not count. All are looked at before the first is sent.
    #[pyo3(signature = (data, *, keys=None, metadata=None, version=Versions::All(0), timeout=None),
           text_signature = "($self, data, *, keys=None, metadata=None, version=0, timeout=None)")]
    fn send_many<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        keys: Option<&Bound<'py, PyAny>>,
        metadata: Option<&Bound<'py, PyAny>>,
        #[pyo3(from_py_with = Versions::of)] version: Versions<'py>,
        timeout: Option<f64>,
    ) -> PyResult<usize> {
        let deadline = deadline(timeout)?;
        let (sent, ended) = self.send_bundle(py, data, keys, metadata, &version, deadline)?;
        match ended {
            Ok(()) => Ok(sent),
            Err(error) => Err(after(py, self.explain(py, error, timeout), sent)),
        }
    }

    /// Like `send_many`, but never waits: gives how many found room.
    #[pyo3(signature = (data, *, keys=None, metadata=None, version=Versions::All(0)),
           text_signature = "($self, data, *, keys=None, metadata=None, version=0)")]
    fn try_send_many<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        keys: Option<&Bound<'py, PyAny>>,
        metadata: Option<&Bound<'py, PyAny>>,
        #[pyo3(from_py_with = Versions::of)] version: Versions<'py>,
    ) -> PyResult<usize> {
        match self.send_bundle(py, data, keys, metadata, &version, Deadline::Now)? {
            (sent, Ok(()) | Err(Error::Full)) => Ok(sent),
            (sent, Err(error)) => Err(after(py, self.explain(py, error, None), sent)),
        }
    }

    /// Says that this key will never come: a record with no data, and the reason as its metadata.
    // Not a `&str`: half a character, in the message of an error say, is no reason to be silent.
    #[pyo3(signature = (key, reason=None, *, version=0, timeout=None),
           text_signature = "($self, key, reason='', *, version=0, timeout=None)")]
    fn tombstone<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        reason: Option<&Bound<'py, PyString>>,
        #[pyo3(from_py_with = numbers::version)] version: u32,
        timeout: Option<f64>,
    ) -> PyResult<bool> {
        check_timeout(timeout)?;
        let said = PyDict::new(py);
        said.set_item("reason", reason.unwrap_or(&PyString::new(py, "")))?;
        let mut label = Label::of(py, Some(key), Some(said.as_any()), version)?;
        label.kind |= TOMBSTONE;
        let parts = Parts::empty(py, self.plan.get(), label.key(), label.metadata())?;
        self.put(py, &parts, &label, timeout)
    }

    /// Takes room to write into, in place: `lengths` says how many rows each ragged leaf may have.
    #[pyo3(signature = (lengths, *, key=None, metadata=None, version=0, timeout=None))]
    fn reserve<'py>(
        &self,
        py: Python<'py>,
        lengths: &Bound<'py, PyDict>,
        key: Option<&Bound<'py, PyAny>>,
        metadata: Option<&Bound<'py, PyAny>>,
        #[pyo3(from_py_with = numbers::version)] version: u32,
        timeout: Option<f64>,
    ) -> PyResult<RecordSlot> {
        check_timeout(timeout)?;
        let plan = self.plan.get();
        let (rows, label) = (rows_of(plan, lengths)?, Label::of(py, key, metadata, version)?);
        let parts = Parts::room(py, plan, &rows, label.key(), label.metadata())?;
        // Dropped, says the policy; but the caller needs something to write into.
        let room = Self::reserve_room(py, self.core(py)?, parts.bytes(), timeout)?;
        let room = room.and_then(|room| room.ok_or(Error::Full));
        let room = room.map_err(|e| self.no_room(py, e, parts.bytes(), timeout))?;
        let (mapping, place) = (self.mapping.bind(py).as_any(), Place::Lane(room));
        RecordSlot::new(mapping, &self.plan, &parts, place, rows, &label)
    }

    /// Waits until what found no room lately may find some, for event loops, and takes none.
    fn eventfd_waiter(&self, py: Python<'_>) -> PyResult<EventfdWaiter> {
        let room_hint = self.room_hint.clone();
        EventfdWaiter::of(py, &self.core(py)?, move |core, deadline| {
            let room = core.wait_room(room_hint.bytes(), deadline)?;
            if room {
                room_hint.forget();
            }
            Ok(room)
        })
    }

    /// Leaves. What was committed stays to be read; what is reserved is given back when its slot is dropped.
    fn close(&self, py: Python<'_>) {
        if let Some(core) = self.core.replace(py, None) {
            core.close(); // Also for those who wait with it: they hold on to it, and are woken.
        }
    }

    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        self.core.share(py).is_none_or(|core| core.records().is_closed())
    }

    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Whether `send` waits when there is no room.
    #[getter]
    fn blocks(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.core(py)?.on_full() == OnFull::Block)
    }

    #[getter]
    fn producer_id(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.core(py)?.producer_id())
    }

    /// The newest weights that the learner told of; 0 until it did.
    #[getter]
    fn published_version(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.core(py)?.records().published())
    }

    /// How many learners live, and the pids of those who died without closing.
    fn learners(&self, py: Python<'_>) -> PyResult<(usize, Vec<u32>)> {
        let census = self.core(py)?.consumers();
        Ok((census.alive, census.died))
    }

    /// Whether every learner is gone, one of them by death, and no other can come: the name is gone, too.
    fn is_orphaned(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.core(py)?.is_orphaned())
    }

    /// Plain numbers: what this producer sent, and what the records are doing.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let core = self.core(py)?;
        let stats = record_stats(py, core.records())?;
        stats.set_item("sent", core.sent())?;
        let learners = core.consumers();
        stats.set_item("learners_alive", learners.alive)?;
        stats.set_item("learners_died", learners.died.len())?;
        Ok(stats)
    }
}

/// Room in the lane, or none because the policy dropped the record.
type Room<P> = Option<Reservation<P>>;

impl RecordProducer {
    fn wrap(py: Python<'_>, core: Core, plan: Py<RecordPlan>, name: String) -> PyResult<RecordProducer> {
        let mapping = Py::new(py, RecordMapping(core.records().clone()))?;
        let core = GilCell::new(Some(Arc::new(core)));
        Ok(RecordProducer { core, plan, mapping, name, room_hint: Arc::default() })
    }

    /// What goes into a record; kept, if it is large.
    #[inline]
    fn parts(&self, py: Python<'_>, data: &Bound<'_, PyAny>, label: &Label<'_>) -> PyResult<Parts> {
        let plan = self.plan.get();
        let mut parts = Parts::of(py, plan, data, label.key(), label.metadata())?;
        if parts.bytes() >= DETACH_BYTES {
            parts.keep(plan, data)?;
        }
        Ok(parts)
    }

    fn core(&self, py: Python<'_>) -> PyResult<Arc<Core>> {
        self.core.share(py).ok_or_else(|| self.explain(py, Error::Closed, None))
    }

    /// Reserves, at once if that is possible; otherwise with the GIL released.
    #[inline]
    fn reserve_room<P: Deref<Target = Core> + Clone + Send + Sync>(
        py: Python<'_>,
        core: P,
        bytes: usize,
        timeout: Option<f64>,
    ) -> PyResult<rollway_core::Result<Room<P>>> {
        match Core::reserve(core.clone(), bytes, Deadline::Now) {
            Err(Error::Full) if timeout != Some(0.0) && core.on_full() == OnFull::Block => {
                let deadline = deadline(timeout)?;
                blocking(py, || Core::reserve(core.clone(), bytes, deadline))
            }
            at_once => Ok(at_once),
        }
    }

    fn put(&self, py: Python<'_>, parts: &Parts, label: &Label<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let core = self.core(py)?;
        match Self::reserve_room(py, &*core, parts.bytes(), timeout)? {
            Ok(room) => self.fill(py, room, parts, label),
            Err(error) => Err(self.no_room(py, error, parts.bytes(), timeout)),
        }
    }

    /// Sends the records of `send_many` until all are settled or something ends it; says how many were committed, and what ended
    /// it.
    fn send_bundle<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        keys: Option<&Bound<'py, PyAny>>,
        metadata: Option<&Bound<'py, PyAny>>,
        version: &Versions<'py>,
        deadline: Deadline,
    ) -> PyResult<(usize, rollway_core::Result<()>)> {
        let core = self.core(py)?;
        let core = &*core;
        let check = |bytes| core.check_size(bytes);
        let mut bundle = Bundle::of(self.plan.get(), data, keys, metadata, version, check)?;
        let waits = core.on_full() == OnFull::Block && deadline != Deadline::Now;
        let (mut settled, mut sent, mut in_runs) = (0, 0, true);
        loop {
            let now = match in_runs {
                false => 0,
                true if bundle.has_from(settled, DETACH_BYTES) => {
                    bundle.keep()?;
                    let rest = bundle.from(settled);
                    py.detach(|| core.try_send_many(rest))
                }
                true => core.try_send_many(bundle.from(settled)),
            };
            (settled, sent) = (settled + now, sent + now);
            let Some(next) = bundle.from(settled).first() else { return Ok((sent, Ok(()))) };
            // This one found no room at once: it waits, is dropped or is refused, as alone.
            let bytes = next.bytes();
            let room = if waits {
                bundle.keep()?;
                let room = blocking(py, || Core::reserve(core, bytes, deadline));
                room.map_err(|raised| after(py, raised, sent))?
            } else {
                Core::reserve(core, bytes, Deadline::Now)
            };
            match room {
                Ok(Some(mut room)) => {
                    let next = &bundle.from(settled)[0];
                    let label = CoreLabel { version: next.version(), kind: next.kind(), origin: None };
                    if bytes >= DETACH_BYTES {
                        py.detach(|| next.write(room.bytes_mut())); // It is kept.
                    } else {
                        next.write(room.bytes_mut());
                    }
                    room.commit(bytes, label).map_err(|error| after(py, to_py(py, error), sent))?;
                    sent += 1;
                }
                Ok(None) => {} // Dropped, and counted.
                Err(error) => {
                    if matches!(error, Error::Full) {
                        self.room_hint.note(bytes);
                    }
                    return Ok((sent, Err(error)));
                }
            }
            settled += 1;
            in_runs = waits; // Where nobody waits, a full lane stays so: looking for more room than for one is in vain.
        }
    }

    /// The error of a record that found no room; coroutines wait for that much.
    #[cold]
    fn no_room(&self, py: Python<'_>, error: Error, bytes: usize, timeout: Option<f64>) -> PyErr {
        if matches!(error, Error::Full) {
            self.room_hint.note(bytes);
        }
        self.explain(py, error, timeout)
    }

    /// Copies and commits; false when there is nothing to copy into.
    #[inline]
    fn fill(&self, py: Python<'_>, room: Room<&Core>, parts: &Parts, label: &Label<'_>) -> PyResult<bool> {
        let Some(room) = room else { return Ok(false) };
        let plan = self.plan.get();
        if parts.bytes() >= DETACH_BYTES {
            // SAFETY: the reservation has room for all parts and is ours; the sources are alive, for such a record is kept.
            py.detach(|| unsafe { parts.write(plan, room.as_mut_ptr()) });
        } else {
            // SAFETY: as above; the GIL is held.
            unsafe { parts.write(plan, room.as_mut_ptr()) };
        }
        let label = CoreLabel { version: label.version, kind: label.kind, origin: None };
        room.commit(parts.bytes(), label).map_err(|e| to_py(py, e))?;
        Ok(true)
    }

    /// The error, with what is known about the lane.
    #[cold]
    fn explain(&self, py: Python<'_>, error: Error, timeout: Option<f64>) -> PyErr {
        let name = &self.name;
        let core = self.core.share(py);
        let state = core.as_ref().map_or(String::new(), |core| {
            let contents = core.records().census();
            format!(
                "of all lanes, {} records ({} bytes) wait for the learner, {} ({} bytes) are in its hands, {} are being \
                 written",
                contents.ready_records,
                contents.ready_bytes,
                contents.held_records,
                contents.held_bytes,
                contents.reserved_records
            )
        });
        let (class, message) = match error {
            Error::Closed if core.is_none() => {
                ("ConnectionClosedError", format!("this client of '{name}' is closed"))
            }
            Error::Closed => (
                "ConnectionClosedError",
                format!("the learner has closed records '{name}'; nothing more can be sent"),
            ),
            Error::Timeout => (
                "WaitTimeout",
                format!("no room in records '{name}' within {} s: {state}", timeout.unwrap_or_default()),
            ),
            Error::Full => ("RingFull", format!("this worker's lane in records '{name}' is full: {state}")),
            other => return to_py(py, other),
        };
        named(py, class, message)
    }
}

impl Drop for RecordProducer {
    /// As `close`: an eventfd waiter that waits with the handle keeps it alive, and is woken.
    fn drop(&mut self) {
        if let Some(core) = self.core.get_mut().take() {
            core.close();
        }
    }
}
