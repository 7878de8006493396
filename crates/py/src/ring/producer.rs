//! `Producer`: a worker's handle. `rollway.ShmClient` is its subclass, so that `send` costs no Python frame.

use crate::convert::arguments::{check_timeout, deadline, on_full, seconds};
use crate::convert::numbers;
use crate::convert::plan::{Expect, Plan};
use crate::convert::rows::Rows;
use crate::errors::{after, blocking, named, to_py};
use crate::eventfd_waiter::EventfdWaiter;
use crate::gil::GilCell;
use crate::ring::consumer::Consumer;
use crate::ring::slot::{Mapping, Slot};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rollway_core::Error;
use rollway_core::ring::producer::ProducerSpec;
use rollway_core::ring::protocol::Claim;
use rollway_core::ring::{Deadline, OnFull, Producer as Core, Slot as CoreSlot};
use rollway_core::segment::arrival;
use rollway_core::sys::clock::monotonic_ns;
use std::sync::Arc;

/// Copies larger than this let other threads of the interpreter run meanwhile.
const DETACH_BYTES: usize = 256 * 1024;
/// One send in so many is timed for the `memcpy` histogram.
const TIMED: u64 = 64;

/// One producer of a ring. Subclassed in Python.
#[pyclass(frozen, subclass, module = "rollway._core")]
pub struct Producer {
    core: GilCell<Option<Arc<Core>>>,
    plan: Py<Plan>,
    mapping: Py<Mapping>,
    name: String,
    sample_bytes: usize,
}

/// Waits for room and claims it, with the GIL released. The outer error is Ctrl-C's.
fn claim(
    py: Python<'_>,
    core: &Core,
    want: usize,
    deadline: Deadline,
) -> PyResult<rollway_core::Result<Option<Claim>>> {
    match py.detach(|| core.claim_spinning(want)) {
        Ok(None) => {
            py.check_signals()?;
            blocking(py, || core.claim(want, deadline))
        }
        ended => Ok(ended),
    }
}

#[pymethods]
impl Producer {
    #[new]
    #[pyo3(signature = (name, plan, producer_id=None, on_full=None, connect_timeout_s=0.0, peer_timeout_s=None))]
    fn attach(
        py: Python<'_>,
        name: String,
        plan: Py<Plan>,
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
        let (text, leaf_bytes) = (&plan.get().text, plan.get().leaf_bytes());
        let core = blocking(py, || {
            arrival::attach(&name, deadline, || Core::attach(&name, text, &leaf_bytes, spec))
        })?
        .map_err(|e| to_py(py, e))?;
        Self::wrap(py, core, plan, name)
    }

    /// A producer in the learner's own process.
    #[staticmethod]
    fn beside(py: Python<'_>, consumer: &Consumer, plan: Py<Plan>) -> PyResult<Self> {
        let ring = consumer.core(py)?.ring().clone();
        let spec = ProducerSpec { producer_id: None, on_full: None, peer_timeout: None };
        let name = ring.segment().name().to_owned();
        let core = Core::attach_to(ring, spec).map_err(|e| to_py(py, e))?;
        Self::wrap(py, core, plan, name)
    }

    /// Copies one sample into the ring. True: committed. False: dropped, as the policy says.
    #[pyo3(signature = (data, *, version=0, timeout=None))]
    fn send(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numbers::version)] version: u32,
        timeout: Option<f64>,
    ) -> PyResult<bool> {
        check_timeout(timeout)?;
        let mut rows = Rows::of(self.plan.get(), data, Expect::Sample)?;
        // SAFETY: `send_now` copies bytes; it knows nothing of Python.
        let now = unsafe {
            self.core.with(py, |core| match core {
                Some(core) => self.send_now(core, &rows, version),
                None => Err(Error::Closed),
            })
        };
        match now {
            Ok(sent) => Ok(sent),
            Err(Error::Full) if timeout != Some(0.0) => {
                rows.keep(self.plan.get(), data)?;
                self.send_blocking(py, &rows, version, timeout)
            }
            Err(error) => Err(self.explain(py, error, timeout)),
        }
    }

    /// Like `send`, but never waits: false when there is no room.
    #[pyo3(signature = (data, *, version=0))]
    fn try_send(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numbers::version)] version: u32,
    ) -> PyResult<bool> {
        let rows = Rows::of(self.plan.get(), data, Expect::Sample)?;
        let core = self.core(py)?;
        match self.send_now(&core, &rows, version) {
            Ok(sent) => Ok(sent),
            Err(Error::Full) => Ok(false),
            Err(error) => Err(self.explain(py, error, None)),
        }
    }

    /// Copies stacked samples (every leaf has a leading dimension n). Gives how many were committed.
    #[pyo3(signature = (data, *, version=0, timeout=None))]
    fn send_many(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numbers::version)] version: u32,
        timeout: Option<f64>,
    ) -> PyResult<usize> {
        let deadline = deadline(timeout)?;
        let (sent, ended) = self.send_rows(py, data, version, deadline)?;
        match ended {
            Ok(()) => Ok(sent),
            Err(error) => Err(after(py, self.explain(py, error, timeout), sent)),
        }
    }

    /// Like `send_many`, but never waits: gives how many found room, from the first on.
    #[pyo3(signature = (data, *, version=0))]
    fn try_send_many(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numbers::version)] version: u32,
    ) -> PyResult<usize> {
        match self.send_rows(py, data, version, Deadline::Now)? {
            (sent, Ok(()) | Err(Error::Full)) => Ok(sent),
            (sent, Err(error)) => Err(after(py, self.explain(py, error, None), sent)),
        }
    }

    /// Takes a slot to write into, in place.
    #[pyo3(signature = (timeout=None))]
    fn reserve(slf: &Bound<'_, Self>, timeout: Option<f64>) -> PyResult<Slot> {
        check_timeout(timeout)?;
        let (py, this) = (slf.py(), slf.get());
        let core = this.core(py)?;
        let claimed = match core.claim(1, Deadline::Now) {
            Err(Error::Full) if timeout != Some(0.0) => claim(py, &core, 1, deadline(timeout)?)?,
            at_once => at_once,
        };
        // Dropped, says the policy; but the caller needs something to write into.
        let claim = claimed.and_then(|claim| claim.ok_or(Error::Full));
        let claim = claim.map_err(|e| this.explain(py, e, timeout))?;
        Slot::new(this.mapping.bind(py), CoreSlot::of(core, claim), this.plan.get())
    }

    /// Like `reserve`, but never waits: `None` when there is no room.
    fn try_reserve(&self, py: Python<'_>) -> PyResult<Option<Slot>> {
        match Core::reserve(self.core(py)?, 1, Deadline::Now) {
            Ok(Some(slot)) => Slot::new(self.mapping.bind(py), slot, self.plan.get()).map(Some),
            Ok(None) | Err(Error::Full) => Ok(None),
            Err(error) => Err(self.explain(py, error, None)),
        }
    }

    /// Hands the unfinished batch to the learner, as it is.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.core(py)?.flush().map_err(|e| to_py(py, e))
    }

    /// Sleeps until there is room, at most `timeout` seconds; false when there is none.
    fn wait_writable(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let (core, deadline) = (self.core(py)?, deadline(Some(timeout))?);
        blocking(py, || core.wait_writable(deadline))?.map_err(|e| to_py(py, e))
    }

    /// Waits for room, for event loops, and takes none.
    fn eventfd_waiter(&self, py: Python<'_>) -> PyResult<EventfdWaiter> {
        EventfdWaiter::of(py, &self.core(py)?, Core::wait_writable)
    }

    /// Leaves the ring, and ends the calls that wait with this handle. What was committed stays; what is reserved is given back
    /// when its slot is dropped.
    fn close(&self, py: Python<'_>) {
        if let Some(core) = self.core.replace(py, None) {
            core.close();
        }
    }

    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        self.core.share(py).is_none_or(|core| core.ring().is_closed())
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

    /// Who claims slots through this handle, as the ring knows it.
    #[getter]
    fn owner(&self, py: Python<'_>) -> PyResult<u64> {
        self.core(py)?.owner().map(|owner| owner.bits()).map_err(|e| to_py(py, e))
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

    /// Where the ring lies in this process: address and bytes.
    fn memory(&self, py: Python<'_>) -> PyResult<(usize, usize)> {
        let core = self.core(py)?;
        let (body, bytes) = core.ring().segment().body();
        Ok((body.as_ptr() as usize, bytes))
    }

    /// Plain numbers: what this producer sent, and what the ring holds.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let core = self.core(py)?;
        let stats = crate::ring::consumer::ring_stats(py, core.ring())?;
        stats.set_item("sent", core.sent())?;
        Ok(stats)
    }
}

impl Producer {
    fn wrap(py: Python<'_>, core: Core, plan: Py<Plan>, name: String) -> PyResult<Producer> {
        let sample_bytes = plan.get().leaf_bytes().iter().sum();
        let mapping = Py::new(py, Mapping(core.ring().clone()))?;
        Ok(Producer { core: GilCell::new(Some(Arc::new(core))), plan, mapping, name, sample_bytes })
    }

    fn core(&self, py: Python<'_>) -> PyResult<Arc<Core>> {
        self.core.share(py).ok_or_else(|| self.explain(py, Error::Closed, None))
    }

    /// Claims without waiting, copies and commits. The GIL is held, so nothing can close the handle meanwhile.
    #[inline]
    fn send_now(&self, core: &Arc<Core>, rows: &Rows, version: u32) -> rollway_core::Result<bool> {
        let Some(claim) = core.claim(1, Deadline::Now)? else { return Ok(false) };
        let timed = core.sent().is_multiple_of(TIMED);
        let started = if timed { monotonic_ns() } else { 0 };
        let origin = core.assign_sequence(&claim, version); // Nothing can fail from here on.
        self.copy(core, &claim, rows, 0);
        if timed {
            core.ring().protocol().control.memcpy.record(monotonic_ns() - started);
        }
        core.commit_as(claim, origin);
        Ok(true)
    }

    #[cold]
    fn send_blocking(
        &self,
        py: Python<'_>,
        rows: &Rows,
        version: u32,
        timeout: Option<f64>,
    ) -> PyResult<bool> {
        let (core, deadline) = (self.core(py)?, deadline(timeout)?);
        let claimed = claim(py, &core, 1, deadline)?;
        match claimed.map_err(|error| self.explain(py, error, timeout))? {
            Some(claim) => {
                self.copy(&core, &claim, rows, 0);
                core.commit(claim, version);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Sends stacked rows until all are committed or something ends it; says how many were, and what ended it.
    fn send_rows(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        version: u32,
        deadline: Deadline,
    ) -> PyResult<(usize, rollway_core::Result<()>)> {
        let mut rows = Rows::of(self.plan.get(), data, Expect::Stack)?;
        rows.keep(self.plan.get(), data)?;
        let core = self.core(py)?;
        let mut sent = 0;
        while sent < rows.count {
            let want = rows.count - sent;
            let claimed = match core.claim(want, Deadline::Now) {
                Err(Error::Full) if deadline != Deadline::Now => {
                    claim(py, &core, want, deadline).map_err(|raised| after(py, raised, sent))?
                }
                at_once => at_once,
            };
            let claim = match claimed {
                Ok(Some(claim)) => claim,
                Ok(None) => break, // The rest was dropped, and counted.
                Err(error) => return Ok((sent, Err(error))),
            };
            self.fill(py, &core, &claim, &rows, sent);
            sent += claim.len();
            core.commit(claim, version);
        }
        Ok((sent, Ok(())))
    }

    /// Copies rows into a claim, with the GIL released when there is much to copy.
    fn fill(&self, py: Python<'_>, core: &Core, claim: &Claim, rows: &Rows, first: usize) {
        if self.sample_bytes * claim.len() >= DETACH_BYTES {
            py.detach(|| self.copy(core, claim, rows, first));
        } else {
            self.copy(core, claim, rows, first);
        }
    }

    #[inline]
    fn copy(&self, core: &Core, claim: &Claim, rows: &Rows, first: usize) {
        for (index, leaf) in self.plan.get().leaves.iter().enumerate() {
            // SAFETY: the plan's sizes are the ring's (checked when attaching); the claim is ours, so nobody else uses
            // those rows (I1); the source has at least `first + len` rows of `bytes` bytes, and is alive: the GIL is held,
            // or the rows are kept.
            unsafe {
                let source = rows.leaf(index).add(first * leaf.bytes);
                std::ptr::copy_nonoverlapping(source, core.leaf(claim, index), leaf.bytes * claim.len());
            }
        }
    }

    /// The exception for an error of this handle: what was awaited, and why it did not come.
    #[cold]
    fn explain(&self, py: Python<'_>, error: Error, timeout: Option<f64>) -> PyErr {
        let name = &self.name;
        let contents = self.core.share(py).map(|core| core.ring().census());
        let state = contents.map_or_else(String::new, |contents| {
            format!(
                "{} samples wait for the learner, {} batches are in its hands, {} slots are being written",
                contents.ready_samples, contents.held_batches, contents.claimed_slots
            )
        });
        let (class, message) = match error {
            Error::Closed if contents.is_none() => {
                ("ConnectionClosedError", format!("this client of '{name}' is closed"))
            }
            Error::Closed => (
                "ConnectionClosedError",
                format!("the learner has closed ring '{name}'; nothing more can be sent"),
            ),
            Error::Timeout => (
                "WaitTimeout",
                format!("no room in ring '{name}' within {} s: {state}", timeout.unwrap_or_default()),
            ),
            Error::Full => ("RingFull", format!("ring '{name}' is full: {state}")),
            other => return to_py(py, other),
        };
        named(py, class, message)
    }
}

impl Drop for Producer {
    /// As `close`: an eventfd waiter that waits with the handle keeps it alive, and is woken.
    fn drop(&mut self) {
        if let Some(core) = self.core.get_mut().take() {
            core.close();
        }
    }
}
