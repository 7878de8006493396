//! `RecordProducer`: a worker's handle on its lane. `rollway.ShmRecordClient` is its subclass.

use crate::convert::record_plan::{Parts, RecordPlan};
use crate::errors::{after, blocking, to_py};
use crate::records::bundle::Bundle;
use crate::records::consumer::{RecordConsumer, record_stats};
use crate::records::slot::Place;
use crate::sends::records::{Placed, RecordContext, RecordSender, record_sends};
use crate::sends::shm::{CoreProducer, Mapping, ShmHandle, ShmSender, learners, shm_sender};
use crate::sends::{Sender, Sent, Waited};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rollway_core::policies::{OnFull, ProducerSpec};
use rollway_core::records::{Deadline, Label, Outgoing, Producer as Core, Reservation};
use rollway_core::sys::clock::monotonic_ns;
use rollway_core::{Error, Result};
use std::ops::Deref;
use std::sync::Arc;

/// Copies larger than this let other threads of the interpreter run meanwhile.
const DETACH_BYTES: usize = 256 * 1024;
/// Of smaller records, the copy of one in so many is timed.
const TIMED: u64 = 64;

/// One producer of records. Subclassed in Python.
#[pyclass(frozen, subclass, module = "rollway._core")]
pub struct RecordProducer {
    handle: ShmHandle<Core>,
    context: RecordContext,
    mapping: Py<Mapping>,
}

shm_sender!(RecordProducer, RecordPlan, RecordConsumer, records);

record_sends!(
    RecordProducer,
    send = "Copies one record into this worker's lane. True: committed. False: dropped, as the policy says.",
    send_many = "Copies several records, in their order: a list, with a list of keys, of metadata and of versions, or one version for all.\n\
                 Gives how many were committed; those that the policy dropped do not count. All are looked at before the first is sent.",
    reserve = "Takes room to write into, in place: `lengths` says how many rows each ragged leaf may have."
);

#[pymethods]
impl RecordProducer {
    /// The newest weights that the learner told of; 0 until it did.
    #[getter]
    fn published_version(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.handle.core(py)?.records().published())
    }

    /// Plain numbers: what this producer sent, and what the records are doing.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let core = self.handle.core(py)?;
        let stats = record_stats(py, core.records())?;
        stats.set_item("sent", core.sent())?;
        let learners = core.consumers();
        stats.set_item("learners_alive", learners.alive)?;
        stats.set_item("learners_died", learners.died.len())?;
        Ok(stats)
    }
}

impl CoreProducer for Core {
    const TARGET: &'static str = "records";

    fn close(&self) {
        self.close();
    }

    fn is_shut_down(&self) -> bool {
        self.records().is_closed()
    }

    fn state(&self) -> String {
        let contents = self.records().census();
        format!(
            "of all lanes, {} records ({} bytes) wait for the learner, {} ({} bytes) are in its hands, {} are being \
             written{}",
            contents.ready_records,
            contents.ready_bytes,
            contents.held_records,
            contents.held_bytes,
            contents.reserved_records,
            learners(self.records().segment())
        )
    }

    fn what_is_full(name: &str) -> String {
        format!("this worker's lane in records '{name}'")
    }
}

impl ShmSender for RecordProducer {
    type Core = Core;
    type Plan = RecordPlan;

    fn attach_core(name: &str, plan: &RecordPlan, spec: ProducerSpec) -> Result<Core> {
        Core::attach(name, &plan.text, spec)
    }

    fn wrap(py: Python<'_>, core: Core, plan: Py<RecordPlan>, name: String) -> PyResult<RecordProducer> {
        let mapping = Py::new(py, Mapping(core.records().clone()))?;
        Ok(RecordProducer { handle: ShmHandle::new(core, name), context: RecordContext::new(plan), mapping })
    }
}

impl Sender for RecordProducer {
    #[cold]
    fn explain(&self, py: Python<'_>, error: Error, timeout: Option<f64>) -> PyErr {
        self.handle.explain(py, error, timeout)
    }
}

/// Room in the lane, or none because the policy dropped the record.
type Room<P> = Option<Reservation<P>>;

impl RecordSender for RecordProducer {
    type Core = Core;
    const DETACHES_FROM: usize = DETACH_BYTES;

    #[inline]
    fn core(&self, py: Python<'_>) -> PyResult<Arc<Core>> {
        self.handle.core(py)
    }

    #[inline]
    fn context(&self) -> &RecordContext {
        &self.context
    }

    fn check_size(core: &Core, bytes: usize) -> Result<()> {
        core.check_size(bytes)
    }

    fn wait_room(core: &Core, bytes: usize, deadline: Deadline) -> Result<bool> {
        core.wait_room(bytes, deadline)
    }

    #[inline]
    fn send_now(&self, py: Python<'_>, parts: &Parts) -> Waited<bool> {
        let core = self.handle.core(py)?;
        match Core::reserve(&*core, parts.bytes(), Deadline::Now) {
            Ok(room) => self.fill(py, room, parts).map(Ok),
            Err(error) => Ok(Err(error)),
        }
    }

    fn send_waiting(&self, py: Python<'_>, parts: &Parts, deadline: Deadline) -> Waited<bool> {
        let core = self.handle.core(py)?;
        match reserve_waiting(py, &*core, parts.bytes(), deadline)? {
            Ok(room) => self.fill(py, room, parts).map(Ok),
            Err(error) => Ok(Err(error)),
        }
    }

    fn send_bundle(&self, py: Python<'_>, bundle: &mut Bundle<'_, '_>, deadline: Deadline) -> PyResult<Sent> {
        let core = &*self.handle.core(py)?;
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
                    let label = Label { version: next.version(), kind: next.kind(), origin: None };
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
                        self.context.room_hint.note(bytes);
                    }
                    return Ok((sent, Err(error)));
                }
            }
            settled += 1;
            in_runs = waits; // Where no call waits, a full lane stays full: looking for more room than for one is in vain.
        }
    }

    fn place<'py>(slf: &Bound<'py, Self>, parts: &Parts, deadline: Deadline) -> Waited<Placed<'py>> {
        let (py, this) = (slf.py(), slf.get());
        let core = this.handle.core(py)?;
        let room = match Core::reserve(core.clone(), parts.bytes(), Deadline::Now) {
            Err(Error::Full) if deadline != Deadline::Now => {
                reserve_waiting(py, core, parts.bytes(), deadline)?
            }
            at_once => at_once,
        };
        // Dropped, says the policy; but the caller needs something to write into.
        let room = room.and_then(|room| room.ok_or(Error::Full));
        Ok(room.map(|room| (this.mapping.bind(py).as_any().clone(), Place::Lane(room))))
    }
}

/// Reserves room that was not there at once: waits for it if the policy says so.
fn reserve_waiting<P: Deref<Target = Core> + Clone + Send + Sync>(
    py: Python<'_>,
    core: P,
    bytes: usize,
    deadline: Deadline,
) -> Waited<Room<P>> {
    match core.on_full() {
        OnFull::Block => blocking(py, || Core::reserve(core.clone(), bytes, deadline)),
        _ => Ok(Err(Error::Full)),
    }
}

impl RecordProducer {
    /// Copies and commits; false when there is nothing to copy into.
    #[inline]
    fn fill(&self, py: Python<'_>, room: Room<&Core>, parts: &Parts) -> PyResult<bool> {
        let Some(room) = room else { return Ok(false) };
        let plan = self.context.plan.get();
        let of = if parts.bytes() >= DETACH_BYTES { 1 } else { TIMED };
        let started = room.producer().sent().is_multiple_of(of).then(monotonic_ns);
        if parts.bytes() >= DETACH_BYTES {
            // SAFETY: the reservation has room for all parts and is ours; the sources are alive, for such a record is kept.
            py.detach(|| unsafe { parts.write(plan, room.as_mut_ptr()) });
        } else {
            // SAFETY: as above; the GIL is held.
            unsafe { parts.write(plan, room.as_mut_ptr()) };
        }
        if let Some(started) = started {
            room.producer().note_copy(monotonic_ns() - started, of, parts.bytes());
        }
        let label = Label { version: parts.version, kind: parts.kind, origin: None };
        room.commit(parts.bytes(), label).map_err(|e| to_py(py, e))?;
        Ok(true)
    }
}
