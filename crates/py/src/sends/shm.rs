//! Handles of workers in shared memory: how they attach, close and word their errors, the same for rings and for records.

use crate::convert::arguments::{deadline, on_full, seconds};
use crate::errors::{blocking, named, to_py};
use crate::gil::GilCell;
use pyo3::PyClass;
use pyo3::prelude::*;
use pyo3::pyclass::boolean_struct::True;
use rollway_core::policies::ProducerSpec;
use rollway_core::segment::{Role, Segment, arrival};
use rollway_core::{Error, Result};
use std::any::Any;
use std::sync::Arc;

/// What the arrays of a slot hold on to: the mapping, not the claim.
#[pyclass(frozen, module = "rollway._core")]
pub struct Mapping(#[allow(dead_code)] pub Arc<dyn Any + Send + Sync>);

/// A producer of the core, of a ring or of records.
pub trait CoreProducer: Send + Sync + Sized + 'static {
    /// What the handle sends into, in messages: "ring" or "records".
    const TARGET: &'static str;

    fn close(&self);

    /// Whether the learner closed it.
    fn is_shut_down(&self) -> bool;

    /// Who has what of it, in words.
    fn state(&self) -> String;

    /// What is full when there is no room, in words.
    fn what_is_full(name: &str) -> String;
}

/// What the learners are doing, as the end of [`CoreProducer::state`].
pub fn learners(segment: &Segment) -> String {
    match segment.describe(Role::Consumer) {
        described if described.is_empty() => "; no learner is attached".to_owned(),
        described => format!("; the learner: {described}"),
    }
}

/// A worker's handle: open until it is closed or dropped.
pub struct ShmHandle<C: CoreProducer> {
    core: GilCell<Option<Arc<C>>>,
    pub name: String,
}

impl<C: CoreProducer> ShmHandle<C> {
    pub fn new(core: C, name: String) -> ShmHandle<C> {
        ShmHandle { core: GilCell::new(Some(Arc::new(core))), name }
    }

    pub fn core(&self, py: Python<'_>) -> PyResult<Arc<C>> {
        self.core.share(py).ok_or_else(|| self.explain(py, Error::Closed, None))
    }

    /// Calls `send` with the core, without counting a reference to it.
    ///
    /// # Safety
    /// `send` does not call into Python, as [`GilCell::with`] says.
    #[inline]
    pub unsafe fn with_core<T>(&self, py: Python<'_>, send: impl FnOnce(&C) -> Result<T>) -> Result<T> {
        // SAFETY: as the caller promises.
        unsafe { self.core.with(py, |core| core.as_ref().map_or(Err(Error::Closed), |core| send(core))) }
    }

    /// Ends the calls that wait with this handle: they hold on to the core, and are woken.
    pub fn close(&self, py: Python<'_>) {
        if let Some(core) = self.core.replace(py, None) {
            core.close();
        }
    }

    pub fn is_closed(&self, py: Python<'_>) -> bool {
        self.core.share(py).is_none_or(|core| core.is_shut_down())
    }

    /// The exception for an error of this handle: what was awaited, and why it did not come.
    #[cold]
    pub fn explain(&self, py: Python<'_>, error: Error, timeout: Option<f64>) -> PyErr {
        let (name, target, core) = (&self.name, C::TARGET, self.core.share(py));
        let state = || core.as_ref().map_or_else(String::new, |core| core.state());
        let (class, message) = match error {
            Error::Closed if core.is_none() => {
                ("ConnectionClosedError", format!("this client of '{name}' is closed"))
            }
            Error::Closed => (
                "ConnectionClosedError",
                format!("the learner has closed {target} '{name}'; nothing more can be sent"),
            ),
            Error::Timeout => (
                "WaitTimeout",
                format!("no room in {target} '{name}' within {} s: {}", timeout.unwrap_or_default(), state()),
            ),
            Error::Full => ("RingFull", format!("{} is full: {}", C::what_is_full(name), state())),
            other => return to_py(py, other),
        };
        named(py, class, message)
    }
}

impl<C: CoreProducer> Drop for ShmHandle<C> {
    /// As `close`: an eventfd waiter that waits with the handle keeps it alive, and is woken.
    fn drop(&mut self) {
        if let Some(core) = self.core.get_mut().take() {
            core.close();
        }
    }
}

/// A producer that leaves everything to the segment.
pub const UNCHOSEN: ProducerSpec = ProducerSpec { producer_id: None, on_full: None, peer_timeout: None };

/// A class that is a worker's handle in shared memory.
pub trait ShmSender: Sized {
    type Core: CoreProducer;
    type Plan: PyClass<Frozen = True> + Sync;

    /// Attaches by name.
    fn attach_core(name: &str, plan: &Self::Plan, spec: ProducerSpec) -> Result<Self::Core>;

    fn wrap(py: Python<'_>, core: Self::Core, plan: Py<Self::Plan>, name: String) -> PyResult<Self>;
}

/// Attaches to a segment of that name, and waits for it to appear.
pub fn attach<S: ShmSender<Core: Send>>(
    py: Python<'_>,
    name: String,
    plan: Py<S::Plan>,
    (producer_id, on_full_name): (Option<u32>, Option<&str>),
    connect_timeout_s: f64,
    peer_timeout_s: Option<f64>,
) -> PyResult<S> {
    let spec = ProducerSpec {
        producer_id,
        on_full: on_full_name.map(on_full).transpose()?,
        peer_timeout: peer_timeout_s.map(seconds).transpose()?,
    };
    let (deadline, ours) = (deadline(Some(connect_timeout_s))?, plan.get());
    let core = blocking(py, || arrival::attach(&name, deadline, || S::attach_core(&name, ours, spec)))?;
    S::wrap(py, core.map_err(|e| to_py(py, e))?, plan, name)
}

/// `shm_sender!(Class, Plan, Consumer, target)`: gives a class that is a [`ShmSender`] its constructor, `_beside`, `close`, `closed`,
/// `name`, `blocks`, `producer_id`, `learners` and `is_orphaned`. `target` is the method of the core's consumer that gives what
/// both share. It expands to a block of `#[pymethods]` in which each method asks the class's field
/// `handle`, a [`ShmHandle`].
macro_rules! shm_sender {
    ($Class:ident, $Plan:ident, $Consumer:ident, $target:ident) => {
        #[pymethods]
        impl $Class {
            #[new]
            #[pyo3(signature = (name, plan, producer_id=None, on_full=None, connect_timeout_s=0.0, peer_timeout_s=None))]
            fn attach(
                py: Python<'_>,
                name: String,
                plan: Py<$Plan>,
                #[pyo3(from_py_with = $crate::convert::numbers::producer_id)] producer_id: Option<u32>,
                on_full: Option<&str>,
                connect_timeout_s: f64,
                peer_timeout_s: Option<f64>,
            ) -> PyResult<Self> {
                let choices = (producer_id, on_full);
                $crate::sends::shm::attach(py, name, plan, choices, connect_timeout_s, peer_timeout_s)
            }

            /// A producer in the learner's own process.
            #[staticmethod]
            fn _beside(py: Python<'_>, consumer: &$Consumer, plan: Py<$Plan>) -> PyResult<Self> {
                let target = consumer.core(py)?.$target().clone();
                let spec = $crate::sends::shm::UNCHOSEN;
                let name = target.segment().name().to_owned();
                let core = <Self as $crate::sends::shm::ShmSender>::Core::attach_to(target, spec);
                Self::wrap(py, core.map_err(|e| $crate::errors::to_py(py, e))?, plan, name)
            }

            /// Leaves, and ends the calls that wait with this handle. What was committed stays; what is reserved is given
            /// back when its slot is dropped.
            fn close(&self, py: Python<'_>) {
                self.handle.close(py);
            }

            #[getter]
            fn closed(&self, py: Python<'_>) -> bool {
                self.handle.is_closed(py)
            }

            #[getter]
            fn name(&self) -> &str {
                &self.handle.name
            }

            /// Whether `send` waits when there is no room.
            #[getter]
            fn blocks(&self, py: Python<'_>) -> PyResult<bool> {
                Ok(self.handle.core(py)?.on_full() == rollway_core::policies::OnFull::Block)
            }

            #[getter]
            fn producer_id(&self, py: Python<'_>) -> PyResult<u32> {
                Ok(self.handle.core(py)?.producer_id())
            }

            /// How many learners live, and the pids of those that died without closing.
            fn learners(&self, py: Python<'_>) -> PyResult<(usize, Vec<u32>)> {
                let census = self.handle.core(py)?.consumers();
                Ok((census.alive, census.died))
            }

            /// Whether every learner is gone, one of them by death, and no other can come: the name is gone, too.
            fn is_orphaned(&self, py: Python<'_>) -> PyResult<bool> {
                Ok(self.handle.core(py)?.is_orphaned())
            }
        }
    };
}
pub(crate) use shm_sender;
