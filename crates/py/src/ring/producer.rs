//! `Producer`: a worker's handle. `rollway.ShmClient` is its subclass, so that `send` costs no Python frame.

use crate::convert::arguments::{check_timeout, deadline};
use crate::convert::plan::Plan;
use crate::convert::rows::Rows;
use crate::errors::{blocking, to_py};
use crate::eventfd_waiter::EventfdWaiter;
use crate::ring::consumer::{Consumer, ring_stats};
use crate::ring::slot::Slot;
use crate::sends::samples::{SampleSender, sample_sends};
use crate::sends::shm::{CoreProducer, Mapping, ShmHandle, ShmSender, UNCHOSEN, learners, shm_sender};
use crate::sends::{Sender, Waited};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rollway_core::policies::ProducerSpec;
use rollway_core::ring::protocol::Claim;
use rollway_core::ring::{Deadline, Producer as Core, Slot as CoreSlot};
use rollway_core::segment::Role;
use rollway_core::sys::clock::monotonic_ns;
use rollway_core::{Error, Result};

/// Copies larger than this let other threads of the interpreter run meanwhile.
const DETACH_BYTES: usize = 256 * 1024;
/// One send in so many is timed for the `memcpy` histogram.
const TIMED: u64 = 64;

/// One producer of a ring. Subclassed in Python.
#[pyclass(frozen, subclass, module = "rollway._core")]
pub struct Producer {
    handle: ShmHandle<Core>,
    plan: Py<Plan>,
    mapping: Py<Mapping>,
}

shm_sender!(Producer, Plan, Consumer, ring);

sample_sends!(
    Producer,
    send = "Copies one sample into the ring. True: committed. False: dropped, as the policy says.",
    send_many =
        "Copies stacked samples (every leaf has a leading dimension n). Gives how many were committed."
);

#[pymethods]
impl Producer {
    /// The producer of `Server.submit`: it is a producer, but no client.
    #[staticmethod]
    fn _of_server(py: Python<'_>, consumer: &Consumer, plan: Py<Plan>) -> PyResult<Self> {
        let ring = consumer.core(py)?.ring().clone();
        let name = ring.segment().name().to_owned();
        let core = Core::attach_as(Role::OwnProducer, ring, UNCHOSEN).map_err(|e| to_py(py, e))?;
        Self::wrap(py, core, plan, name)
    }

    /// Takes a slot to write into, in place.
    #[pyo3(signature = (timeout=None))]
    fn reserve(slf: &Bound<'_, Self>, timeout: Option<f64>) -> PyResult<Slot> {
        check_timeout(timeout)?;
        let (py, this) = (slf.py(), slf.get());
        let core = this.handle.core(py)?;
        let claimed = match core.claim(1, Deadline::Now) {
            Err(Error::Full) if timeout != Some(0.0) => claim(py, &core, 1, deadline(timeout)?)?,
            at_once => at_once,
        };
        // Dropped, says the policy; but the caller needs something to write into.
        let claim = claimed.and_then(|claim| claim.ok_or(Error::Full));
        let claim = claim.map_err(|e| this.handle.explain(py, e, timeout))?;
        Slot::new(this.mapping.bind(py), CoreSlot::of(core, claim), this.plan.get())
    }

    /// Like `reserve`, but never waits: `None` when there is no room.
    fn try_reserve(&self, py: Python<'_>) -> PyResult<Option<Slot>> {
        match Core::reserve(self.handle.core(py)?, 1, Deadline::Now) {
            Ok(Some(slot)) => Slot::new(self.mapping.bind(py), slot, self.plan.get()).map(Some),
            Ok(None) | Err(Error::Full) => Ok(None),
            Err(error) => Err(self.handle.explain(py, error, None)),
        }
    }

    /// Hands the unfinished batch to the learner, as it is.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.handle.core(py)?.flush().map_err(|e| to_py(py, e))
    }

    /// Sleeps until there is room, at most `timeout` seconds; false when there is none.
    fn _wait_writable(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let (core, deadline) = (self.handle.core(py)?, deadline(Some(timeout))?);
        blocking(py, || core.wait_writable(deadline))?.map_err(|e| to_py(py, e))
    }

    /// Waits for room, for event loops, and takes none.
    fn _eventfd_waiter(&self, py: Python<'_>) -> PyResult<EventfdWaiter> {
        EventfdWaiter::of(py, &self.handle.core(py)?, Core::wait_writable)
    }

    /// The owner that claims slots through this handle, as the ring knows it.
    #[getter]
    fn _owner(&self, py: Python<'_>) -> PyResult<u64> {
        self.handle.core(py)?.owner().map(|owner| owner.bits()).map_err(|e| to_py(py, e))
    }

    /// Where the ring lies in this process: address and bytes.
    fn _memory(&self, py: Python<'_>) -> PyResult<(usize, usize)> {
        let core = self.handle.core(py)?;
        let (body, bytes) = core.ring().segment().body();
        Ok((body.as_ptr() as usize, bytes))
    }

    /// Plain numbers: what this producer sent, and what the ring holds.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let core = self.handle.core(py)?;
        let stats = ring_stats(py, core.ring())?;
        stats.set_item("sent", core.sent())?;
        Ok(stats)
    }
}

impl CoreProducer for Core {
    const TARGET: &'static str = "ring";

    fn close(&self) {
        self.close();
    }

    fn is_shut_down(&self) -> bool {
        self.ring().is_closed()
    }

    fn state(&self) -> String {
        let contents = self.ring().census();
        format!(
            "{} samples wait for the learner, {} batches are in its hands, {} slots are being written{}",
            contents.ready_samples,
            contents.held_batches,
            contents.claimed_slots,
            learners(self.ring().segment())
        )
    }

    fn what_is_full(name: &str) -> String {
        format!("ring '{name}'")
    }
}

impl ShmSender for Producer {
    type Core = Core;
    type Plan = Plan;

    fn attach_core(name: &str, plan: &Plan, spec: ProducerSpec) -> Result<Core> {
        Core::attach(name, &plan.text, &plan.leaf_bytes(), spec)
    }

    fn wrap(py: Python<'_>, core: Core, plan: Py<Plan>, name: String) -> PyResult<Producer> {
        let mapping = Py::new(py, Mapping(core.ring().clone()))?;
        Ok(Producer { handle: ShmHandle::new(core, name), plan, mapping })
    }
}

impl Sender for Producer {
    #[cold]
    fn explain(&self, py: Python<'_>, error: Error, timeout: Option<f64>) -> PyErr {
        self.handle.explain(py, error, timeout)
    }
}

impl SampleSender for Producer {
    const DETACHES_FROM: Option<usize> = None;

    #[inline]
    fn plan(&self) -> &Plan {
        self.plan.get()
    }

    /// Claims, copies and commits. The GIL is held, so nothing can close the handle meanwhile.
    #[inline]
    fn send_now(&self, py: Python<'_>, rows: &Rows) -> Result<bool> {
        let send = |core: &Core| {
            let Some(claim) = core.claim(1, Deadline::Now)? else { return Ok(false) };
            let number = core.sent();
            let origin = core.assign_sequence(&claim, rows.version); // Nothing can fail from here on.
            self.copy_timed(core, &claim, rows, number);
            core.commit_as(claim, origin);
            Ok(true)
        };
        // SAFETY: it copies bytes, and knows nothing of Python.
        unsafe { self.handle.with_core(py, send) }
    }

    #[cold]
    fn send_waiting(&self, py: Python<'_>, rows: &Rows, deadline: Deadline) -> Waited<bool> {
        let core = self.handle.core(py)?;
        let claimed = claim(py, &core, 1, deadline)?;
        Ok(claimed.map(|claim| {
            claim.is_some_and(|claim| {
                self.copy_timed(&core, &claim, rows, core.sent());
                core.commit(claim, rows.version);
                true
            })
        }))
    }

    fn send_some(&self, py: Python<'_>, rows: &Rows, sent: &mut usize, deadline: Deadline) -> Waited<bool> {
        let (core, want) = (self.handle.core(py)?, rows.count - *sent);
        let claimed = match core.claim(want, Deadline::Now) {
            Err(Error::Full) if deadline != Deadline::Now => claim(py, &core, want, deadline)?,
            at_once => at_once,
        };
        Ok(claimed.map(|claim| {
            claim.is_some_and(|claim| {
                self.fill(py, &core, &claim, rows, *sent);
                *sent += claim.len();
                core.commit(claim, rows.version);
                true
            })
        }))
    }
}

impl Producer {
    /// Copies rows into a claim, with the GIL released when there is much to copy.
    fn fill(&self, py: Python<'_>, core: &Core, claim: &Claim, rows: &Rows, first: usize) {
        let started = monotonic_ns();
        if self.plan.get().sample_bytes * claim.len() >= DETACH_BYTES {
            py.detach(|| self.copy(core, claim, rows, first));
        } else {
            self.copy(core, claim, rows, first);
        }
        core.note_copy(monotonic_ns() - started, 1, 0);
    }

    /// Copies one sample, the `number`-th of this producer. Of small ones, one in so many is timed.
    #[inline]
    fn copy_timed(&self, core: &Core, claim: &Claim, rows: &Rows, number: u64) {
        let bytes = self.plan.get().sample_bytes;
        let of = if bytes >= DETACH_BYTES { 1 } else { TIMED };
        if !number.is_multiple_of(of) {
            return self.copy(core, claim, rows, 0);
        }
        let started = monotonic_ns();
        self.copy(core, claim, rows, 0);
        let took = monotonic_ns() - started;
        core.ring().protocol().control.memcpy.record(took);
        core.note_copy(took, of, bytes);
    }

    #[inline]
    fn copy(&self, core: &Core, claim: &Claim, rows: &Rows, first: usize) {
        for (index, leaf) in self.plan.get().leaves.iter().enumerate() {
            // SAFETY: the plan's sizes are the ring's (checked when attaching); the claim is ours, so no other process uses
            // those rows (I1); the source has at least `first + len` rows of `bytes` bytes, and is alive: the GIL is held,
            // or the rows are kept.
            unsafe {
                let source = rows.leaf(index).add(first * leaf.bytes);
                std::ptr::copy_nonoverlapping(source, core.leaf(claim, index), leaf.bytes * claim.len());
            }
        }
    }
}

/// Waits for room and claims it, with the GIL released. The outer error is Ctrl-C's.
fn claim(py: Python<'_>, core: &Core, want: usize, deadline: Deadline) -> Waited<Option<Claim>> {
    match py.detach(|| core.claim_spinning(want)) {
        Ok(None) => {
            py.check_signals()?;
            blocking(py, || core.claim(want, deadline))
        }
        ended => Ok(ended),
    }
}
