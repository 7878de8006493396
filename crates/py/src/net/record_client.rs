//! `TcpRecordSender`: a remote worker's handle for records. `rollway.TcpRecordClient` is its subclass.

use crate::convert::record_plan::{Parts, RecordPlan};
use crate::errors::{after, blocking};
use crate::net::connection::{Connection, DETACH_BYTES, TcpConnection, tcp_sender};
use crate::records::bundle::Bundle;
use crate::records::slot::{DraftSender, Place, RecordDraft};
use crate::sends::records::{Placed, RecordContext, RecordSender, record_sends};
use crate::sends::{Sender, Sent, Waited};
use pyo3::prelude::*;
use rollway_core::net::{TcpClientSpec, TcpRecordClient as Core};
use rollway_core::records::Outgoing;
use rollway_core::ring::Deadline;
use rollway_core::{Error, Result};
use std::sync::Arc;

/// One worker's connection to a learner of records. Subclassed in Python.
#[pyclass(frozen, subclass, extends = TcpConnection, module = "rollway._core")]
pub struct TcpRecordSender {
    core: Arc<Core>,
    context: RecordContext,
    connection: Arc<Connection>,
}

tcp_sender!(TcpRecordSender, RecordPlan, "records");

record_sends!(
    TcpRecordSender,
    send = "Takes one record. It is on its way; `wait` tells when the learner has it.",
    send_many = "Takes several records, in their order: a list, with a list of keys, of metadata and of versions, or one version for all.\n\
                 Gives how many. All are looked at before the first is taken.",
    reserve = "Memory to write into, which is sent when it is committed: `lengths` says how many rows each ragged leaf may have."
);

#[pymethods]
impl TcpRecordSender {
    /// How far the learner is, as of its last answer, with what is on its way there: the version that it published, and how
    /// many records wait to be taken. Asks again, for the next call.
    fn learner_news(&self) -> (u32, u32) {
        let status = self.core.learner_status();
        (status.version, status.waiting)
    }

    /// The newest weights that the learner told of, as of its last word; 0 until it did.
    #[getter]
    fn published_version(&self) -> u32 {
        self.core.published()
    }
}

impl TcpRecordSender {
    fn start(spec: TcpClientSpec, plan: &RecordPlan) -> Result<Core> {
        Core::start(spec, &plan.text)
    }

    fn wrap(core: Arc<Core>, plan: Py<RecordPlan>, connection: Arc<Connection>) -> TcpRecordSender {
        TcpRecordSender { core, context: RecordContext::new(plan), connection }
    }

    /// The sources of `parts` are alive: the GIL is held, or they are kept.
    fn put(&self, parts: &Parts, deadline: Deadline) -> Result<bool> {
        let sent = self.core.send(parts.bytes(), parts.version, parts.kind, deadline, |room| {
            // SAFETY: the room has the bytes of all parts, and is ours; the sources are alive, as the caller says.
            unsafe { parts.write(self.context.plan.get(), room.as_mut_ptr()) };
        });
        sent.map(|()| true)
    }
}

impl RecordSender for TcpRecordSender {
    type Core = Core;
    const DETACHES_FROM: usize = DETACH_BYTES;

    fn core(&self, _py: Python<'_>) -> PyResult<Arc<Core>> {
        Ok(self.core.clone())
    }

    #[inline]
    fn context(&self) -> &RecordContext {
        &self.context
    }

    fn check_size(core: &Core, bytes: usize) -> Result<()> {
        core.check_size(bytes)
    }

    fn wait_room(core: &Core, bytes: usize, deadline: Deadline) -> Result<bool> {
        core.wait_writable(bytes, deadline)
    }

    #[inline]
    fn send_now(&self, py: Python<'_>, parts: &Parts) -> Waited<bool> {
        let send = || self.put(parts, Deadline::Now);
        Ok(if parts.bytes() >= DETACH_BYTES { py.detach(send) } else { send() })
    }

    fn send_waiting(&self, py: Python<'_>, parts: &Parts, deadline: Deadline) -> Waited<bool> {
        blocking(py, || self.put(parts, deadline))
    }

    fn send_bundle(&self, py: Python<'_>, bundle: &mut Bundle<'_, '_>, deadline: Deadline) -> PyResult<Sent> {
        let core = &self.core;
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
            self.context.room_hint.note(next.bytes());
        }
        Ok((sent, ended))
    }

    /// Waits here, as with a lane, and not when it is committed.
    fn place<'py>(slf: &Bound<'py, Self>, parts: &Parts, deadline: Deadline) -> Waited<Placed<'py>> {
        let (py, this) = (slf.py(), slf.get());
        let room = blocking(py, || match this.core.wait_writable(parts.bytes(), deadline)? {
            true => Ok(()),
            false if deadline == Deadline::Now => Err(Error::Full),
            false => Err(Error::Timeout),
        });
        if let Err(error) = room? {
            return Ok(Err(error));
        }
        let draft = Bound::new(py, RecordDraft::new(parts.bytes()))?;
        let place = Place::Draft(draft.clone().unbind(), Box::new(slf.clone().unbind()));
        Ok(Ok((draft.into_any(), place)))
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
