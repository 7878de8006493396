//! `TcpRecordSender`: a remote worker's handle for records. `rollway.TcpRecordClient` is its subclass.

use crate::convert::arguments::{check_timeout, deadline};
use crate::convert::numbers;
use crate::convert::record_plan::{Parts, RecordPlan, rows_of};
use crate::errors::{after, blocking, to_py};
use crate::eventfd_waiter::EventfdWaiter;
use crate::net::connection::{Connection, DETACH_BYTES, Options, TcpConnection};
use crate::records::bundle::{Bundle, Versions};
use crate::records::label::{Label, TOMBSTONE};
use crate::records::room_hint::RoomHint;
use crate::records::slot::{DraftSender, Place, RecordDraft, RecordSlot};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use rollway_core::Error;
use rollway_core::net::TcpRecordClient as Core;
use rollway_core::records::Outgoing;
use rollway_core::ring::Deadline;
use std::path::PathBuf;
use std::sync::Arc;

/// One worker's connection to a learner of records. Subclassed in Python.
#[pyclass(frozen, subclass, extends = TcpConnection, module = "rollway._core")]
pub struct TcpRecordSender {
    core: Arc<Core>,
    plan: Py<RecordPlan>,
    connection: Arc<Connection>,
    room_hint: Arc<RoomHint>,
}

#[pymethods]
impl TcpRecordSender {
    #[new]
    #[pyo3(signature = (host, port, plan, *, max_inflight_msgs, token, tls, producer_id, connect_timeout_s,
                        reconnect_timeout_s, keepalive_s))]
    #[allow(clippy::too_many_arguments)] // Keywords, all of them, from one Python signature.
    fn connect(
        py: Python<'_>,
        host: String,
        #[pyo3(from_py_with = numbers::port)] port: u16,
        plan: Py<RecordPlan>,
        #[pyo3(from_py_with = numbers::max_inflight_msgs)] max_inflight_msgs: usize,
        token: Option<Vec<u8>>,
        tls: Option<(PathBuf, Option<String>)>,
        #[pyo3(from_py_with = numbers::producer_id)] producer_id: Option<u32>,
        connect_timeout_s: f64,
        reconnect_timeout_s: f64,
        keepalive_s: f64,
    ) -> PyResult<PyClassInitializer<Self>> {
        let address = format!("{host}:{port}");
        let options = Options {
            max_inflight_msgs,
            token,
            tls,
            producer_id,
            connect_timeout_s,
            reconnect_timeout_s,
            keepalive_s,
        };
        let spec = options.spec(host, port)?;
        let core = Core::start(spec, &plan.get().text).map_err(|e| to_py(py, e))?;
        blocking(py, || core.ready(Deadline::Never))?.map_err(|e| to_py(py, e))?;
        let core = Arc::new(core);
        let (connection, base) = Connection::of(&core, address, "records");
        let handle = TcpRecordSender { core, plan, connection, room_hint: Arc::default() };
        Ok(PyClassInitializer::from(base).add_subclass(handle))
    }

    /// Takes one record. It is on its way; `wait` tells when the learner has it.
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
        let mut parts = Parts::of(py, self.plan.get(), data, label.key(), label.metadata())?;
        parts.keep(self.plan.get(), data)?;
        self.put(py, &parts, &label, timeout)
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
        let mut parts = Parts::of(py, self.plan.get(), data, label.key(), label.metadata())?;
        parts.keep(self.plan.get(), data)?;
        match self.take(py, &parts, &label) {
            Ok(()) => Ok(true),
            Err(Error::Full) => {
                self.room_hint.note(parts.bytes());
                Ok(false)
            }
            Err(error) => Err(self.connection.explain(py, error, None)),
        }
    }

    /// Takes several records, in their order: a list, with a list of keys, of metadata and of versions, or one version for all.
    /// Gives how many. All are looked at before the first is taken.
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
            Err(error) => Err(after(py, self.connection.explain(py, error, timeout), sent)),
        }
    }

    /// Like `send_many`, but never waits: gives how many found room, from the first on.
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
            (sent, Err(error)) => Err(after(py, self.connection.explain(py, error, None), sent)),
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

    /// Memory to write into, which is sent when it is committed: `lengths` says how many rows each ragged leaf may have.
    #[pyo3(signature = (lengths, *, key=None, metadata=None, version=0, timeout=None))]
    fn reserve<'py>(
        slf: &Bound<'py, Self>,
        lengths: &Bound<'py, PyDict>,
        key: Option<&Bound<'py, PyAny>>,
        metadata: Option<&Bound<'py, PyAny>>,
        #[pyo3(from_py_with = numbers::version)] version: u32,
        timeout: Option<f64>,
    ) -> PyResult<RecordSlot> {
        let (py, this) = (slf.py(), slf.get());
        let deadline = deadline(timeout)?;
        let plan = this.plan.get();
        let (rows, label) = (rows_of(plan, lengths)?, Label::of(py, key, metadata, version)?);
        let parts = Parts::room(py, plan, &rows, label.key(), label.metadata())?;
        // Waiting is done here, as with a lane, and not when it is committed.
        let room = blocking(py, || match this.core.wait_writable(parts.bytes(), deadline)? {
            true => Ok(()),
            false if deadline == Deadline::Now => Err(Error::Full),
            false => Err(Error::Timeout),
        });
        room?.map_err(|e| this.no_room(py, e, parts.bytes(), timeout))?;
        let draft = Bound::new(py, RecordDraft::new(parts.bytes()))?;
        let place = Place::Draft(draft.clone().unbind(), Box::new(slf.clone().unbind()));
        RecordSlot::new(draft.as_any(), &this.plan, &parts, place, rows, &label)
    }

    /// Waits until what found no room lately may find some, for event loops, and takes none.
    fn eventfd_waiter(&self, py: Python<'_>) -> PyResult<EventfdWaiter> {
        let room_hint = self.room_hint.clone();
        EventfdWaiter::of(py, &self.core, move |core, deadline| {
            let room = core.wait_writable(room_hint.bytes(), deadline)?;
            if room {
                room_hint.forget();
            }
            Ok(room)
        })
    }

    /// How far the learner is, as of its last answer, with what is on its way there: the version that it published, and how
    /// many records wait to be taken. Asks again, for the next call.
    fn learner_news(&self) -> (u32, u32) {
        let news = self.core.news();
        (news.version, news.waiting)
    }

    /// The newest weights that the learner told of, as of its last word; 0 until it did.
    #[getter]
    fn published_version(&self) -> u32 {
        self.core.published()
    }
}

impl TcpRecordSender {
    /// Takes a record, if there is room.
    fn take(&self, py: Python<'_>, parts: &Parts, label: &Label<'_>) -> rollway_core::Result<()> {
        let (plan, version, kind) = (self.plan.get(), label.version, label.kind);
        let send = || send(&self.core, plan, parts, (version, kind), Deadline::Now);
        if parts.bytes() >= DETACH_BYTES { py.detach(send) } else { send() }
    }

    fn put(&self, py: Python<'_>, parts: &Parts, label: &Label<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let taken = match self.take(py, parts, label) {
            Err(Error::Full) if timeout != Some(0.0) => {
                let (deadline, plan) = (deadline(timeout)?, self.plan.get());
                let (version, kind) = (label.version, label.kind);
                blocking(py, || send(&self.core, plan, parts, (version, kind), deadline))?
            }
            at_once => at_once,
        };
        taken.map(|()| true).map_err(|e| self.no_room(py, e, parts.bytes(), timeout))
    }

    /// Sends the records of `send_many` until all are taken or something ends it; says how many were, and what ended it.
    fn send_bundle<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        keys: Option<&Bound<'py, PyAny>>,
        metadata: Option<&Bound<'py, PyAny>>,
        version: &Versions<'py>,
        deadline: Deadline,
    ) -> PyResult<(usize, rollway_core::Result<()>)> {
        let core = &self.core;
        let check = |bytes| core.check_size(bytes);
        let mut bundle = Bundle::of(self.plan.get(), data, keys, metadata, version, check)?;
        bundle.keep()?;
        let records = bundle.from(0);
        let send = || core.send_many(records, Deadline::Now);
        let (mut sent, mut ended) = if bundle.has_from(0, DETACH_BYTES) { py.detach(send) } else { send() };
        if matches!(ended, Err(Error::Full)) && deadline != Deadline::Now {
            let waited = blocking(py, || {
                // Signals may interrupt it, and it goes on behind what was taken.
                let (now, ended) = core.send_many(&records[sent..], deadline);
                sent += now;
                ended
            });
            ended = waited.map_err(|raised| after(py, raised, sent))?;
        }
        if let (Err(Error::Full), Some(next)) = (&ended, records.get(sent)) {
            self.room_hint.note(next.bytes());
        }
        Ok((sent, ended))
    }

    /// The error of a record that found no room; coroutines wait for that much.
    #[cold]
    fn no_room(&self, py: Python<'_>, error: Error, bytes: usize, timeout: Option<f64>) -> PyErr {
        if matches!(error, Error::Full) {
            self.room_hint.note(bytes);
        }
        self.connection.explain(py, error, timeout)
    }
}

impl DraftSender for Py<TcpRecordSender> {
    /// Takes a record that lies in one piece.
    fn send_bytes(&self, py: Python<'_>, bytes: &[u8], version: u32, kind: u32) -> PyResult<()> {
        let this = self.get();
        let send = || {
            let write = |room: &mut [u8]| room.copy_from_slice(bytes);
            this.core.send(bytes.len(), version, kind, Deadline::Never, write)
        };
        blocking(py, send)?.map_err(|e| this.connection.explain(py, e, None))
    }
}

fn send(
    core: &Core,
    plan: &RecordPlan,
    parts: &Parts,
    (version, kind): (u32, u32),
    deadline: Deadline,
) -> rollway_core::Result<()> {
    core.send(parts.bytes(), version, kind, deadline, |room| {
        // SAFETY: the room has the bytes of all parts, and is ours; the sources are kept.
        unsafe { parts.write(plan, room.as_mut_ptr()) };
    })
}
