//! `TcpSender`: a remote worker's handle. `rollway.TcpClient` is its subclass, so that `send` costs no Python frame.

use crate::convert::plan::Plan;
use crate::convert::rows::Rows;
use crate::errors::blocking;
use crate::eventfd_waiter::EventfdWaiter;
use crate::net::connection::{Connection, DETACH_BYTES, TcpConnection, tcp_sender};
use crate::sends::samples::{SampleSender, sample_sends};
use crate::sends::{Sender, Waited};
use pyo3::prelude::*;
use rollway_core::net::{TcpClient as Core, TcpClientSpec};
use rollway_core::ring::Deadline;
use rollway_core::{Error, Result};
use std::sync::Arc;

/// One worker's connection. Subclassed in Python.
#[pyclass(frozen, subclass, extends = TcpConnection, module = "rollway._core")]
pub struct TcpSender {
    core: Arc<Core>,
    plan: Py<Plan>,
    connection: Arc<Connection>,
}

tcp_sender!(TcpSender, Plan, "samples");

sample_sends!(
    TcpSender,
    send = "Takes one sample. It is on its way; `wait` tells when the learner has it.",
    send_many = "Takes stacked samples (every leaf has a leading dimension n). Gives how many."
);

#[pymethods]
impl TcpSender {
    /// Waits for room, for event loops, and takes none.
    fn _eventfd_waiter(&self, py: Python<'_>) -> PyResult<EventfdWaiter> {
        EventfdWaiter::of(py, &self.core, Core::wait_writable)
    }
}

impl TcpSender {
    fn start(spec: TcpClientSpec, plan: &Plan) -> Result<Core> {
        Core::start(spec, &plan.text, &plan.leaf_bytes())
    }

    fn wrap(core: Arc<Core>, plan: Py<Plan>, connection: Arc<Connection>) -> TcpSender {
        TcpSender { core, plan, connection }
    }

    /// Takes rows from `first` on, as far as there is room, and says how many.
    #[inline]
    fn take(&self, py: Python<'_>, rows: &Rows, first: usize) -> Result<usize> {
        let leaves = rows.leaves_from(self.plan.get(), first);
        let count = rows.count - first;
        // SAFETY: the arrays were checked against the plan, whose sizes are the client's; they have `count` rows. They are
        // alive: the GIL is held, or the rows are kept.
        let send = || unsafe { self.core.send(leaves.get(), count, rows.version, Deadline::Now) };
        if self.plan.get().sample_bytes * count >= DETACH_BYTES { py.detach(send) } else { send() }
    }
}

impl SampleSender for TcpSender {
    const DETACHES_FROM: Option<usize> = Some(DETACH_BYTES);

    #[inline]
    fn plan(&self) -> &Plan {
        self.plan.get()
    }

    #[inline]
    fn send_now(&self, py: Python<'_>, rows: &Rows) -> Result<bool> {
        self.take(py, rows, 0).map(|_| true)
    }

    #[cold]
    fn send_waiting(&self, py: Python<'_>, rows: &Rows, deadline: Deadline) -> Waited<bool> {
        let leaves = rows.leaves_from(self.plan.get(), 0);
        // SAFETY: as in `take`; the rows are kept.
        let sent = blocking(py, || unsafe { self.core.send(leaves.get(), 1, rows.version, deadline) })?;
        Ok(sent.map(|_| true))
    }

    fn send_some(&self, py: Python<'_>, rows: &Rows, sent: &mut usize, deadline: Deadline) -> Waited<bool> {
        let taken = match self.take(py, rows, *sent) {
            Err(Error::Full) if deadline != Deadline::Now => {
                let (first, count) = (*sent, rows.count - *sent);
                let leaves = rows.leaves_from(self.plan.get(), first);
                let mut taken = 0; // Also when a signal came in between, and its handler raised.
                let ended = blocking(py, || {
                    // SAFETY: as in `take`; the rows are kept.
                    taken = unsafe { self.core.send(leaves.get(), count, rows.version, deadline) }?;
                    Ok(())
                });
                *sent = first + taken;
                ended?.map(|()| 0)
            }
            at_once => at_once,
        };
        Ok(taken.map(|taken| {
            *sent += taken;
            true
        }))
    }
}
