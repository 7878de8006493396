//! Handles of learners: what they share with what they hand out, and the methods that they have in common.

use crate::errors::to_py;
use crate::gil::GilCell;
use crate::net::endpoints::Endpoints;
use pyo3::prelude::*;
use rollway_core::Error;
use std::sync::Arc;

/// A consumer of the core, of a ring or of records.
pub trait CoreConsumer {
    /// What it takes from.
    type Target;

    fn target(&self) -> &Arc<Self::Target>;

    /// Whether it was shut down.
    fn is_shut_down(target: &Self::Target) -> bool;
}

/// A ring, or records, as one consumer sees it.
pub struct ConsumerView<C: CoreConsumer> {
    core: GilCell<Option<Arc<C>>>,
    target: Arc<C::Target>,
    /// The transports that feed it from elsewhere.
    pub endpoints: Endpoints,
}

impl<C: CoreConsumer> ConsumerView<C> {
    pub fn new(core: C) -> ConsumerView<C> {
        let target = core.target().clone();
        ConsumerView { core: GilCell::new(Some(Arc::new(core))), target, endpoints: Endpoints::default() }
    }

    /// Stays readable after `close`.
    pub fn target(&self) -> &C::Target {
        &self.target
    }

    /// How many workers there are, of `seated` producers.
    pub fn workers(&self, py: Python<'_>, seated: usize) -> usize {
        self.endpoints.workers(py, seated)
    }

    /// The consumer, unless it was closed.
    pub fn core(&self, py: Python<'_>) -> PyResult<Arc<C>> {
        self.core.share(py).ok_or_else(|| to_py(py, Error::Closed))
    }

    /// Takes the consumer out, to be closed.
    pub fn take_core(&self, py: Python<'_>) -> Option<Arc<C>> {
        self.core.replace(py, None)
    }

    pub fn is_closed(&self, py: Python<'_>) -> bool {
        self.core.is_none(py) || C::is_shut_down(&self.target)
    }
}

/// `consumer_methods!(Class, Core)`: gives the class of a learner's handle `close`, `abandon`, `closed`, `name`, `resumed`, `found`,
/// `producers`, `describe_producers` and `_eventfd_waiter`. The class has the fields `view`, a [`ConsumerView`], and `name`. It expands to a block of `#[pymethods]` in
/// which each method asks the view.
macro_rules! consumer_methods {
    ($Class:ident, $Core:ident) => {
        #[pymethods]
        impl $Class {
            /// Waits for something to take, for event loops, and takes nothing.
            fn _eventfd_waiter(&self, py: Python<'_>) -> PyResult<$crate::eventfd_waiter::EventfdWaiter> {
                $crate::eventfd_waiter::EventfdWaiter::of(py, &self.core(py)?, $Core::wait_readable)
            }

            /// Leaves; the last consumer takes the name away and wakes everybody.
            fn close(&self, py: Python<'_>) -> PyResult<()> {
                match self.view.take_core(py) {
                    Some(core) => core.close().map_err(|e| $crate::errors::to_py(py, e)),
                    None => Ok(()),
                }
            }

            /// Ends as if this process had been killed: what was committed stays for the next learner.
            fn abandon(&self, py: Python<'_>) -> PyResult<()> {
                match self.view.take_core(py) {
                    Some(core) => $Core::abandon(core).map_err(|e| $crate::errors::to_py(py, e)),
                    None => Ok(()),
                }
            }

            #[getter]
            fn closed(&self, py: Python<'_>) -> bool {
                self.view.is_closed(py)
            }

            #[getter]
            fn name(&self) -> Option<&str> {
                self.name.as_deref()
            }

            /// Whether the segment was there already, with what had been committed.
            #[getter]
            fn resumed(&self, py: Python<'_>) -> PyResult<bool> {
                Ok(self.core(py)?.resumed())
            }

            /// How much earlier learners left, and how many seconds ago the segment was made. `None` if there is nothing, or
            /// another learner lives.
            fn found(&self, py: Python<'_>) -> PyResult<Option<(usize, f64)>> {
                Ok(self.core(py)?.found().map(|(committed, age)| (committed, age.as_secs_f64())))
            }

            /// What the producers are doing, in words; empty when there are none.
            fn describe_producers(&self, py: Python<'_>) -> PyResult<String> {
                let segment = self.core(py)?;
                let segment = segment.target().segment();
                Ok(py.detach(|| segment.describe(rollway_core::segment::Role::Producer)))
            }

            /// Living producers, here and at the other end of connections, and the pids of those that died without closing.
            fn producers(&self, py: Python<'_>) -> PyResult<(usize, Vec<u32>)> {
                let census = self.core(py)?.producers();
                Ok((self.view.workers(py, census.alive), census.died))
            }
        }

        impl $Class {
            /// The transports that feed it.
            pub fn endpoints(&self) -> &$crate::net::endpoints::Endpoints {
                &self.view.endpoints
            }

            pub fn core(&self, py: Python<'_>) -> PyResult<Arc<$Core>> {
                self.view.core(py)
            }
        }
    };
}
pub(crate) use consumer_methods;
