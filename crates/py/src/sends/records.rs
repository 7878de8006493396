//! Sends of records: the same methods for every handle, over a trait with what differs.

use crate::convert::arguments::{check_timeout, deadline};
use crate::convert::record_plan::{Parts, RecordPlan, rows_of};
use crate::eventfd_waiter::EventfdWaiter;
use crate::records::bundle::{Bundle, Versions};
use crate::records::label::{Label, TOMBSTONE};
use crate::records::room_hint::RoomHint;
use crate::records::slot::{Place, RecordSlot};
use crate::sends::{Sender, Sent, Waited, all_sent, sent_at_once};
use pyo3::PyClass;
use pyo3::prelude::*;
use pyo3::pyclass::boolean_struct::True;
use pyo3::types::{PyDict, PyString};
use rollway_core::sys::wait::Deadline;
use rollway_core::{Error, Result};
use std::sync::Arc;

/// What keeps a place in memory, and the place.
pub type Placed<'py> = (Bound<'py, PyAny>, Place);

/// What a handle knows of its records.
pub struct RecordContext {
    pub plan: Py<RecordPlan>,
    /// How much room the coroutines of this handle wait for.
    pub room_hint: Arc<RoomHint>,
}

impl RecordContext {
    pub fn new(plan: Py<RecordPlan>) -> RecordContext {
        RecordContext { plan, room_hint: Arc::default() }
    }
}

/// A handle that sends records of any length.
pub trait RecordSender: Sender + PyClass<Frozen = True> + Sync {
    /// The core's handle.
    type Core: Send + Sync + 'static;

    /// `send_now` releases the GIL for a record of so many bytes.
    const DETACHES_FROM: usize;

    fn core(&self, py: Python<'_>) -> PyResult<Arc<Self::Core>>;

    fn context(&self) -> &RecordContext;

    /// Whether a record may have so many bytes.
    fn check_size(core: &Self::Core, bytes: usize) -> Result<()>;

    /// Waits for room, and takes none. False when the time is over.
    fn wait_room(core: &Self::Core, bytes: usize, deadline: Deadline) -> Result<bool>;

    /// Sends a record, if there is room; `parts` are kept if they are large. False: dropped, as the policy says.
    fn send_now(&self, py: Python<'_>, parts: &Parts) -> Waited<bool>;

    /// Sends a record, whose `parts` are kept, when there is room.
    fn send_waiting(&self, py: Python<'_>, parts: &Parts, deadline: Deadline) -> Waited<bool>;

    /// Sends several records, until all are settled or something ends it.
    fn send_bundle(&self, py: Python<'_>, bundle: &mut Bundle<'_, '_>, deadline: Deadline) -> PyResult<Sent>;

    /// A place for `parts`. Waits for room as `send` does.
    fn place<'py>(slf: &Bound<'py, Self>, parts: &Parts, deadline: Deadline) -> Waited<Placed<'py>>;
}

#[inline]
pub fn send<'py, S: RecordSender>(
    sender: &S,
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    label: &Label<'_>,
    timeout: Option<f64>,
) -> PyResult<bool> {
    let mut parts = parts_of(sender, py, data, label)?;
    match sender.send_now(py, &parts)? {
        Ok(sent) => Ok(sent),
        Err(Error::Full) if timeout != Some(0.0) => {
            parts.keep(sender.context().plan.get(), data)?;
            send_later(sender, py, &parts, timeout)
        }
        Err(error) => Err(no_room(sender, py, error, parts.bytes(), timeout)),
    }
}

#[inline]
pub fn try_send<'py, S: RecordSender>(
    sender: &S,
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    label: &Label<'_>,
) -> PyResult<bool> {
    let parts = parts_of(sender, py, data, label)?;
    match sender.send_now(py, &parts)? {
        Ok(sent) => Ok(sent),
        Err(Error::Full) => {
            sender.context().room_hint.note(parts.bytes());
            Ok(false)
        }
        Err(error) => Err(sender.explain(py, error, None)),
    }
}

/// What `send_many` was given: records, their keys, their metadata and their versions.
pub struct Several<'a, 'py> {
    pub data: &'a Bound<'py, PyAny>,
    pub keys: Option<&'a Bound<'py, PyAny>>,
    pub metadata: Option<&'a Bound<'py, PyAny>>,
    pub versions: Versions<'py>,
}

pub fn send_many<S: RecordSender>(
    sender: &S,
    py: Python<'_>,
    several: &Several<'_, '_>,
    timeout: Option<f64>,
) -> PyResult<usize> {
    let sent = send_several(sender, py, several, deadline(timeout)?)?;
    all_sent(sender, py, sent, timeout)
}

pub fn try_send_many<S: RecordSender>(
    sender: &S,
    py: Python<'_>,
    several: &Several<'_, '_>,
) -> PyResult<usize> {
    let sent = send_several(sender, py, several, Deadline::Now)?;
    sent_at_once(sender, py, sent)
}

fn send_several<S: RecordSender>(
    sender: &S,
    py: Python<'_>,
    several: &Several<'_, '_>,
    deadline: Deadline,
) -> PyResult<Sent> {
    let core = sender.core(py)?;
    let check = |bytes| S::check_size(&core, bytes);
    let Several { data, keys, metadata, versions } = several;
    let mut bundle = Bundle::of(sender.context().plan.get(), data, *keys, *metadata, versions, check)?;
    sender.send_bundle(py, &mut bundle, deadline)
}

pub fn tombstone<'py, S: RecordSender>(
    sender: &S,
    py: Python<'py>,
    key: &Bound<'py, PyAny>,
    reason: Option<&Bound<'py, PyString>>,
    version: u32,
    timeout: Option<f64>,
) -> PyResult<bool> {
    check_timeout(timeout)?;
    let said = PyDict::new(py);
    said.set_item("reason", reason.unwrap_or(&PyString::new(py, "")))?;
    let mut label = Label::of(py, Some(key), Some(said.as_any()), version)?;
    label.kind |= TOMBSTONE;
    let mut parts = Parts::empty(py, sender.context().plan.get(), label.key(), label.metadata())?;
    (parts.version, parts.kind) = (label.version, label.kind);
    match sender.send_now(py, &parts)? {
        Err(Error::Full) if timeout != Some(0.0) => send_later(sender, py, &parts, timeout),
        sent => sent.map_err(|error| no_room(sender, py, error, parts.bytes(), timeout)),
    }
}

pub fn reserve<'py, S: RecordSender>(
    slf: &Bound<'py, S>,
    lengths: &Bound<'py, PyDict>,
    label: &Label<'_>,
    timeout: Option<f64>,
) -> PyResult<RecordSlot> {
    let (py, sender, deadline) = (slf.py(), slf.get(), deadline(timeout)?);
    let plan = &sender.context().plan;
    let rows = rows_of(plan.get(), lengths)?;
    let parts = Parts::room(py, plan.get(), &rows, label.key(), label.metadata())?;
    let place = S::place(slf, &parts, deadline)?;
    let (owner, place) = place.map_err(|error| no_room(sender, py, error, parts.bytes(), timeout))?;
    RecordSlot::new(&owner, plan, &parts, place, rows, label)
}

/// Waits until what found no room lately may find some, for event loops.
pub fn eventfd_waiter<S: RecordSender>(sender: &S, py: Python<'_>) -> PyResult<EventfdWaiter> {
    let room_hint = sender.context().room_hint.clone();
    EventfdWaiter::of(py, &sender.core(py)?, move |core, deadline| {
        let room = S::wait_room(core, room_hint.bytes(), deadline)?;
        if room {
            room_hint.forget();
        }
        Ok(room)
    })
}

/// What goes into a record; kept, if it is sent without the GIL.
#[inline]
fn parts_of<S: RecordSender>(
    sender: &S,
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    label: &Label<'_>,
) -> PyResult<Parts> {
    let plan = sender.context().plan.get();
    let mut parts = Parts::of(py, plan, data, label.key(), label.metadata())?;
    (parts.version, parts.kind) = (label.version, label.kind);
    if parts.bytes() >= S::DETACHES_FROM {
        parts.keep(plan, data)?;
    }
    Ok(parts)
}

/// Sends what found no room at once.
#[cold]
fn send_later<S: RecordSender>(
    sender: &S,
    py: Python<'_>,
    parts: &Parts,
    timeout: Option<f64>,
) -> PyResult<bool> {
    let sent = sender.send_waiting(py, parts, deadline(timeout)?)?;
    sent.map_err(|error| no_room(sender, py, error, parts.bytes(), timeout))
}

/// The error of a record that found no room; coroutines wait for that much.
#[cold]
fn no_room<S: RecordSender>(
    sender: &S,
    py: Python<'_>,
    error: Error,
    bytes: usize,
    timeout: Option<f64>,
) -> PyErr {
    if matches!(error, Error::Full) {
        sender.context().room_hint.note(bytes);
    }
    sender.explain(py, error, timeout)
}

/// `record_sends!(Class, send = "…", send_many = "…", reserve = "…")`: gives a class that is a [`RecordSender`] the methods `send`,
/// `try_send`, `send_many`, `try_send_many`, `tombstone`, `reserve` and `_eventfd_waiter`, with these docstrings. It expands to
/// a block of `#[pymethods]` in which each method calls the function of its name in this module.
macro_rules! record_sends {
    ($Class:ident, send = $send:literal, send_many = $send_many:literal, reserve = $reserve:literal) => {
        #[pymethods]
        impl $Class {
            #[doc = $send]
            #[pyo3(signature = (data, *, key=None, metadata=None, version=0, timeout=None))]
            fn send<'py>(
                &self,
                py: Python<'py>,
                data: &Bound<'py, PyAny>,
                key: Option<&Bound<'py, PyAny>>,
                metadata: Option<&Bound<'py, PyAny>>,
                #[pyo3(from_py_with = $crate::convert::numbers::version)] version: u32,
                timeout: Option<f64>,
            ) -> PyResult<bool> {
                $crate::convert::arguments::check_timeout(timeout)?;
                let label = $crate::records::label::Label::of(py, key, metadata, version)?;
                $crate::sends::records::send(self, py, data, &label, timeout)
            }

            /// Like `send`, but never waits: false when there is no room.
            #[pyo3(signature = (data, *, key=None, metadata=None, version=0))]
            fn try_send<'py>(
                &self,
                py: Python<'py>,
                data: &Bound<'py, PyAny>,
                key: Option<&Bound<'py, PyAny>>,
                metadata: Option<&Bound<'py, PyAny>>,
                #[pyo3(from_py_with = $crate::convert::numbers::version)] version: u32,
            ) -> PyResult<bool> {
                let label = $crate::records::label::Label::of(py, key, metadata, version)?;
                $crate::sends::records::try_send(self, py, data, &label)
            }

            #[doc = $send_many]
            #[pyo3(signature = (data, *, keys=None, metadata=None, version=$crate::records::bundle::Versions::All(0),
                                timeout=None),
                   text_signature = "($self, data, *, keys=None, metadata=None, version=0, timeout=None)")]
            fn send_many<'py>(
                &self,
                py: Python<'py>,
                data: &Bound<'py, PyAny>,
                keys: Option<&Bound<'py, PyAny>>,
                metadata: Option<&Bound<'py, PyAny>>,
                #[pyo3(from_py_with = $crate::records::bundle::Versions::of)]
                version: $crate::records::bundle::Versions<'py>,
                timeout: Option<f64>,
            ) -> PyResult<usize> {
                let several = $crate::sends::records::Several { data, keys, metadata, versions: version };
                $crate::sends::records::send_many(self, py, &several, timeout)
            }

            /// Like `send_many`, but never waits: gives how many found room.
            #[pyo3(signature = (data, *, keys=None, metadata=None, version=$crate::records::bundle::Versions::All(0)),
                   text_signature = "($self, data, *, keys=None, metadata=None, version=0)")]
            fn try_send_many<'py>(
                &self,
                py: Python<'py>,
                data: &Bound<'py, PyAny>,
                keys: Option<&Bound<'py, PyAny>>,
                metadata: Option<&Bound<'py, PyAny>>,
                #[pyo3(from_py_with = $crate::records::bundle::Versions::of)]
                version: $crate::records::bundle::Versions<'py>,
            ) -> PyResult<usize> {
                let several = $crate::sends::records::Several { data, keys, metadata, versions: version };
                $crate::sends::records::try_send_many(self, py, &several)
            }

            /// Says that this key will never come: a record with no data, and the reason as its metadata.
            // Not a `&str`: half a character, in the message of an error say, is no reason to be silent.
            #[pyo3(signature = (key, reason=None, *, version=0, timeout=None),
                   text_signature = "($self, key, reason='', *, version=0, timeout=None)")]
            fn tombstone<'py>(
                &self,
                py: Python<'py>,
                key: &Bound<'py, PyAny>,
                reason: Option<&Bound<'py, pyo3::types::PyString>>,
                #[pyo3(from_py_with = $crate::convert::numbers::version)] version: u32,
                timeout: Option<f64>,
            ) -> PyResult<bool> {
                $crate::sends::records::tombstone(self, py, key, reason, version, timeout)
            }

            #[doc = $reserve]
            #[pyo3(signature = (lengths, *, key=None, metadata=None, version=0, timeout=None))]
            fn reserve<'py>(
                slf: &Bound<'py, Self>,
                lengths: &Bound<'py, pyo3::types::PyDict>,
                key: Option<&Bound<'py, PyAny>>,
                metadata: Option<&Bound<'py, PyAny>>,
                #[pyo3(from_py_with = $crate::convert::numbers::version)] version: u32,
                timeout: Option<f64>,
            ) -> PyResult<$crate::records::slot::RecordSlot> {
                let label = $crate::records::label::Label::of(slf.py(), key, metadata, version)?;
                $crate::sends::records::reserve(slf, lengths, &label, timeout)
            }

            /// Waits until what found no room lately may find some, for event loops, and takes none.
            fn _eventfd_waiter(&self, py: Python<'_>) -> PyResult<$crate::eventfd_waiter::EventfdWaiter> {
                $crate::sends::records::eventfd_waiter(self, py)
            }
        }
    };
}
pub(crate) use record_sends;
